/* flash_attn: of each head query rows by keys, softmax, and weights by values, for so many rows at a time. */
#include "../ref/flash_attn.h"

#include <math.h>

#include "../ref/softmax.h"
#include "port.h"

enum { ROWS = 64 };

static enum et_status resolve(const struct et_problem *problem, const struct et_device *device,
                              const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    const struct et_flash_attn *p = problem->params;
    (void)device;
    (void)asked;
    *claim = et_blas_claim(p->kv_length);
    claim->arith.depth_qk = (int32_t)p->head_dim;
    return et_blas_fits("kv_length", p->kv_length, why);
}

static int64_t rows_of(const struct et_flash_attn *p)
{
    return p->query_length < ROWS ? p->query_length : ROWS;
}

static size_t room(const struct et_problem *problem)
{
    const struct et_flash_attn *p = problem->params;
    const size_t channels = (size_t)(p->head_dim + p->v_head_dim);
    const size_t keys = (size_t)p->kv_length, rows = (size_t)rows_of(p);
    return keys * channels + rows * (channels + keys);
}

static int64_t unit_of(const struct et_flash_attn *p, int64_t b, int64_t i, int64_t h)
{
    return (b * p->query_length + i) * p->q_heads + h;
}

/* s[keys] of a row, from products with keys to weights, 0 for a key that it does not see. Returns what their
 * sum of values is to be divided by. */
static float weigh(const struct et_problem *problem, int64_t unit, float *s)
{
    const struct et_flash_attn *p = problem->params;
    const struct et_fa_row row = et_fa_row(problem, unit);
    const float slope = et_alibi_slope((float)p->max_bias, (et_u32)row.head, (et_u32)p->q_heads);
    const float scale = et_fa_scale(p), cap = (float)p->softcap;
    float largest = -INFINITY, sink = -INFINITY;
    for (int64_t j = 0; j < p->kv_length; j++) {
        const float mask = et_fa_mask(&row, j);
        s[j] *= scale;
        if (cap > 0)
            s[j] = cap * et_tanh(et_div(s[j], cap));
        s[j] = j < row.from || j >= row.to || mask == -INFINITY ? -INFINITY
                                                                : et_seen_score(ET_FMA(slope, mask, s[j]));
        largest = et_larger(largest, s[j]);
    }
    if (p->sinks)
        sink = et_fa_sink(problem, row.head);
    const bool any = largest > -INFINITY;
    const float top = et_larger(largest, sink);
    float total = any && sink < top ? et_exp(sink - top) : 1;
    for (int64_t j = 0; j < p->kv_length; j++) {
        s[j] = any ? et_exp(s[j] - top) : 0;
        total += s[j];
    }
    return total;
}

/* Rows [i, i + rows) of a head, by its k [keys, head_dim] and v [keys, v_head_dim]; spare: room for the rest.
 */
static void attend(const struct et_session *session, const struct et_problem *problem, int64_t b, int64_t h,
                   int64_t i, int64_t rows, const float *k, const float *v, float *spare, void *out)
{
    const struct et_flash_attn *p = problem->params;
    const int64_t keys = p->kv_length, dk = p->head_dim, dv = p->v_head_dim;
    float *q = spare, *s = q + rows * dk, *sums = s + rows * keys;
    for (int64_t r = 0; r < rows; r++)
        et_blas_load(&problem->tensor[ET_FA_Q], unit_of(p, b, i + r, h), dk, q + r * dk);
    session->multiply(
        session, &(const struct et_product){
                     .rows = rows, .columns = keys, .depth = dk, .transposed = true, .a = q, .b = k, .c = s});
    float total[ROWS];
    for (int64_t r = 0; r < rows; r++)
        total[r] = weigh(problem, unit_of(p, b, i + r, h), s + r * keys);
    session->multiply(session, &(const struct et_product){
                                   .rows = rows, .columns = dv, .depth = keys, .a = s, .b = v, .c = sums});
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t d = 0; d < dv; d++)
            sums[r * dv + d] = et_div(sums[r * dv + d], total[r]);
        et_blas_store(&problem->tensor[ET_FA_OUT], out, unit_of(p, b, i + r, h), dv, sums + r * dv);
    }
}

static void compute(const struct et_session *session, const struct et_problem *problem, float *room,
                    void *const *out)
{
    const struct et_flash_attn *p = problem->params;
    const int64_t keys = p->kv_length, block = rows_of(p);
    float *k = room, *v = k + keys * p->head_dim, *spare = v + keys * p->v_head_dim;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->q_heads; h++) {
            const int64_t shared = b / (p->batch / p->kv_batch), kv = h / (p->q_heads / p->kv_heads);
            for (int64_t j = 0; j < keys; j++) {
                const int64_t row = (shared * keys + j) * p->kv_heads + kv;
                et_blas_load(&problem->tensor[ET_FA_K], row, p->head_dim, k + j * p->head_dim);
                et_blas_load(&problem->tensor[ET_FA_V], row, p->v_head_dim, v + j * p->v_head_dim);
            }
            for (int64_t i = 0; i < p->query_length; i += block)
                attend(session, problem, b, h, i, i + block < p->query_length ? block : p->query_length - i,
                       k, v, spare, out[ET_FA_OUT]);
        }
}

const struct et_blas_variant et_blas_flash_attn = {
    .variant = {.op = "flash_attn",
                .name = "sgemm",
                .summary = "two products of matrices for a head",
                .knobs = et_no_knobs,
                .resolve = resolve,
                .prepare = et_blas_prepare,
                .step = et_blas_step,
                .finish = et_blas_finish},
    .room = room,
    .compute = compute};
