/* skinny_gemm: act [N, K] by weight [M, K] transposed, for as many rows of weight at a time as fit a block.
 */
#include "port.h"

enum { WEIGHT, WEIGHT_SCALE, ZERO_POINTS, ACT_SCALE, ACT, BIAS, OUT };

/* Floats of widened weights held at once: the lm_head of a large model would be gigabytes. */
enum { BLOCK = 1 << 22 };

static enum et_status resolve(const struct et_problem *problem, const struct et_device *device,
                              const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    const struct et_skinny_gemm *p = problem->params;
    (void)device;
    (void)asked;
    enum et_status status = et_blas_fits("tokens", p->tokens, why);
    if (status == ET_OK)
        status = et_blas_fits("in_features", p->in_features, why);
    /* A dequantised weight is rounded once before the chain; two scales and a bias round after it. */
    *claim = et_blas_claim(p->in_features + (problem->tensor[WEIGHT].dtype == ET_I4) + 3);
    return status;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Rows of weight in a block. */
static int64_t rows_of(const struct et_skinny_gemm *p)
{
    const int64_t rows = BLOCK / p->in_features;
    return least(rows > 0 ? rows : 1, p->out_features);
}

static size_t room(const struct et_problem *problem)
{
    const struct et_skinny_gemm *p = problem->params;
    const size_t n = (size_t)p->tokens, k = (size_t)p->in_features, rows = (size_t)rows_of(p);
    return n * k + rows * k + n * rows;
}

/* An element, or the one that stands for it where the tensor has but one in that dimension. */
static float wide(const struct et_tensor *t, int64_t i, int64_t j)
{
    const int64_t at =
        t->offset + (t->size[0] > 1 ? i * t->stride[0] : 0) + (t->size[1] > 1 ? j * t->stride[1] : 0);
    return et_widen(t->dtype, et_load(t->dtype, t->data, at));
}

/* Row m of int4 weights: each nibble less its zero point, times its group's scale. */
static void dequantise(const struct et_problem *problem, int64_t m, float *dst)
{
    const struct et_skinny_gemm *p = problem->params;
    const struct et_tensor *t = problem->tensor, *w = &t[WEIGHT];
    const int64_t row = et_row_at(w, m);
    for (int64_t k = 0; k < p->in_features; k++) {
        const int64_t group = k / p->group;
        const float nibble = (float)et_load(w->dtype, w->data, row + k * w->stride[1]);
        const float zero = p->zero_points ? wide(&t[ZERO_POINTS], m, group) : 8;
        dst[k] = (nibble - zero) * wide(&t[WEIGHT_SCALE], m, group);
    }
}

/* What is left to do to a sum, as the operator has it. */
static float finished(const struct et_tensor *t, int64_t n, int64_t m, float sum)
{
    if (et_tensor_count(&t[ACT_SCALE]) > 0)
        sum *= wide(&t[ACT_SCALE], 0, 0);
    if (t[WEIGHT].dtype != ET_I4 && et_tensor_count(&t[WEIGHT_SCALE]) > 0)
        sum *= wide(&t[WEIGHT_SCALE], m, 0);
    return et_tensor_count(&t[BIAS]) > 0 ? sum + wide(&t[BIAS], n, m) : sum;
}

static void widen(const struct et_problem *problem, int64_t m, float *dst)
{
    const struct et_skinny_gemm *p = problem->params;
    if (problem->tensor[WEIGHT].dtype == ET_I4)
        dequantise(problem, m, dst);
    else
        et_blas_load(&problem->tensor[WEIGHT], m, p->in_features, dst);
}

/* Sums [N, rows] of the rows of weight from m on. */
static void store(const struct et_problem *problem, int64_t m, int64_t rows, const float *sums, void *out)
{
    const struct et_skinny_gemm *p = problem->params;
    const struct et_tensor *t = problem->tensor, *o = &t[OUT];
    for (int64_t n = 0; n < p->tokens; n++)
        for (int64_t i = 0; i < rows; i++)
            et_store(o->dtype, out, o->offset + n * o->stride[0] + (m + i) * o->stride[1],
                     et_narrow(o->dtype, (double)finished(t, n, m + i, sums[n * rows + i])));
}

static void compute(const struct et_session *session, const struct et_problem *problem, float *room,
                    void *const *out)
{
    const struct et_skinny_gemm *p = problem->params;
    const struct et_tensor *t = problem->tensor;
    const int64_t n_count = p->tokens, k_count = p->in_features, block = rows_of(p);
    float *act = room, *weight = act + n_count * k_count, *sums = weight + block * k_count;
    for (int64_t n = 0; n < n_count; n++)
        et_blas_load(&t[ACT], n, k_count, act + n * k_count);
    for (int64_t m = 0; m < p->out_features; m += block) {
        const int64_t rows = least(block, p->out_features - m);
        for (int64_t i = 0; i < rows; i++)
            widen(problem, m + i, weight + i * k_count);
        session->multiply(session, &(const struct et_product){.rows = n_count,
                                                              .columns = rows,
                                                              .depth = k_count,
                                                              .transposed = true,
                                                              .a = act,
                                                              .b = weight,
                                                              .c = sums});
        store(problem, m, rows, sums, out[OUT]);
    }
}

const struct et_blas_variant et_blas_skinny_gemm = {.variant = {.op = "skinny_gemm",
                                                                .name = "sgemm",
                                                                .summary = "act by blocks of weight's rows",
                                                                .knobs = et_no_knobs,
                                                                .resolve = resolve,
                                                                .prepare = et_blas_prepare,
                                                                .step = et_blas_step,
                                                                .finish = et_blas_finish},
                                                    .room = room,
                                                    .compute = compute};
