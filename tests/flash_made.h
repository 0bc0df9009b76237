/* A problem of flash_attn in memory. For tests: they abort on what can't happen. */
#ifndef ET_TESTS_FLASH_MADE_H
#define ET_TESTS_FLASH_MADE_H

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/etalon.h"
#include "../ref/rng.h"

enum { FA_Q, FA_K, FA_V, FA_MASK, FA_SINKS, FA_OUT, FA_TENSORS };

static const enum et_dtype all_f32[FA_TENSORS] = {ET_F32, ET_F32, ET_F32, ET_F32, ET_F32, ET_F32};
static const enum et_dtype half_kv[FA_TENSORS] = {ET_F32, ET_F16, ET_F16, ET_F16, ET_F32, ET_F32};

struct made {
    struct et_flash_attn params;
    struct et_problem problem;
    struct et_arith arith;
    void *work;
    double *value;
    struct et_spread *spread;
};

/* How tensors lie: dimensions in memory, the slowest first, elements left free behind each run of them, and
 * before the first. */
struct lay {
    int order[4], gap;
};
static const struct lay packed = {{0, 1, 2, 3}, 0};

static inline void lay_out(struct et_tensor *tensor, const struct lay *lay)
{
    int64_t run = 1 + lay->gap;
    ck_assert(et_tensor_pack(tensor));
    for (int k = 3; k >= 0; k--) {
        const int dim = tensor->rank == 4 ? lay->order[k] : k;
        if (dim >= tensor->rank)
            continue;
        tensor->stride[dim] = run;
        run = run * tensor->size[dim] + lay->gap;
    }
    tensor->offset = lay->gap;
    tensor->bytes = et_tensor_count(tensor) == 0 ? 0 : et_bytes(tensor->dtype, run + lay->gap);
}

static inline int64_t place(const struct made *m, int t, const int64_t i[4])
{
    const struct et_tensor *tensor = &m->problem.tensor[t];
    int64_t place = tensor->offset;
    for (int k = 0; k < tensor->rank; k++) {
        if (i[k] < 0 || i[k] >= tensor->size[k]) /* ck_assert calls the system each time */
            ck_abort_msg("element %lld of dimension %d", (long long)i[k], k);
        place += i[k] * tensor->stride[k];
    }
    return place;
}

static inline void put(struct made *m, int t, int64_t i, int64_t j, int64_t k, int64_t l, double value)
{
    const struct et_tensor *tensor = &m->problem.tensor[t];
    et_store(tensor->dtype, tensor->data, place(m, t, (const int64_t[]){i, j, k, l}),
             et_narrow(tensor->dtype, value));
}

static inline long double at(const struct made *m, int t, int64_t i, int64_t j, int64_t k, int64_t l)
{
    const struct et_tensor *tensor = &m->problem.tensor[t];
    const int64_t where = place(m, t, (const int64_t[]){i, j, k, l});
    return (long double)et_widen(tensor->dtype, et_load(tensor->dtype, tensor->data, where));
}

/* Inputs are zeros, what lies around them NaN. */
static inline void make(struct made *m, struct et_flash_attn params, const enum et_dtype types[FA_TENSORS],
                        struct lay lay)
{
    memset(m, 0, sizeof *m);
    m->params = params;
    m->problem.op = et_operator_named("flash_attn");
    m->problem.params = &m->params;
    struct et_error error = {""};
    for (int t = 0; t < FA_TENSORS; t++)
        m->problem.tensor[t].dtype = types[t];
    ck_assert_msg(m->problem.op->shape(&m->params, m->problem.tensor, &error) == ET_OK, "%s", error.text);
    for (int t = 0; t < FA_TENSORS; t++) {
        struct et_tensor *tensor = &m->problem.tensor[t];
        lay_out(tensor, &lay);
        tensor->data = malloc(tensor->bytes + 1);
        ck_assert_ptr_nonnull(tensor->data);
        memset(tensor->data, 0xff, tensor->bytes + 1);
        const int64_t *n = tensor->size;
        for (int64_t e = 0; e < et_tensor_count(tensor); e++) {
            if (tensor->rank == 1)
                put(m, t, e, 0, 0, 0, 0);
            else
                put(m, t, e / (n[1] * n[2] * n[3]), e / (n[2] * n[3]) % n[1], e / n[3] % n[2], e % n[3], 0);
        }
    }
    m->work = malloc(m->problem.op->work_bytes(&m->problem) + 1);
    m->value = malloc((size_t)params.v_head_dim * sizeof *m->value);
    m->spread = malloc((size_t)params.v_head_dim * sizeof *m->spread);
    ck_assert(m->work && m->value && m->spread);
}

static inline void unmake(struct made *m)
{
    for (int t = 0; t < FA_TENSORS; t++)
        free(m->problem.tensor[t].data);
    free(m->work);
    free(m->value);
    free(m->spread);
}

/* The oracle's values of one row; its spread under m->arith is in m->spread. */
static inline const double *compute(struct made *m, int64_t b, int64_t i, int64_t h)
{
    const int64_t unit = (b * m->params.query_length + i) * m->params.q_heads + h;
    m->problem.op->oracle(&m->problem, unit, &m->arith, 1, m->work, m->value, m->spread);
    return m->value;
}

/* Normal q, k and v; masks of 0, -Inf and small numbers; sinks of any size, two in eight without a say. */
static inline void scatter(struct made *m, uint64_t seed)
{
    static const double ends[] = {-(double)INFINITY, (double)INFINITY, -3e38, 3e38};
    static const char *const names[] = {"q", "k", "v", "mask", "sinks"};
    for (int t = FA_Q; t <= FA_SINKS; t++) {
        const struct et_tensor *tensor = &m->problem.tensor[t];
        const struct et_stream lots = et_stream(seed, names[t]);
        const int64_t *n = tensor->size;
        for (int64_t e = 0; e < et_tensor_count(tensor); e++) {
            double x = (double)et_normal(&lots, (uint64_t)e);
            const uint32_t lot = et_word(&lots, (uint64_t)e, 7);
            if (t == FA_MASK)
                x = lot % 3 == 0 ? -(double)INFINITY : lot % 3 == 1 ? 0 : 4 * x;
            if (t == FA_SINKS)
                x = lot % 16 < 4 ? ends[lot % 16] : 3 * x;
            if (tensor->rank == 1)
                put(m, t, e, 0, 0, 0, x);
            else
                put(m, t, e / (n[1] * n[2] * n[3]), e / (n[2] * n[3]) % n[1], e / n[3] % n[2], e % n[3], x);
        }
    }
}

struct lots {
    struct et_stream stream;
    uint64_t drawn;
};

/* One of 0, 1... most - 1. */
static inline int64_t lot(struct lots *lots, uint32_t most)
{
    return (int64_t)(et_word(&lots->stream, lots->drawn++, 0) % most);
}

/* A small problem of any params, types and layouts. */
static inline void make_random(struct made *m, uint64_t seed)
{
    static const struct lay lays[] = {
        {{0, 1, 2, 3}, 0}, {{0, 1, 2, 3}, 3}, {{0, 2, 1, 3}, 0}, {{2, 0, 3, 1}, 1}, {{3, 2, 1, 0}, 0}};
    static const enum et_dtype floats[] = {ET_F32, ET_F16, ET_BF16, ET_F8E4M3FN};
    static const uint32_t choices[FA_TENSORS] = {3, 4, 4, 2, 1, 3};
    struct lots lots = {et_stream(seed, "random"), 0};
    struct et_flash_attn p = {.window_right = -1};
    p.kv_batch = 1 + lot(&lots, 2);
    p.kv_heads = 1 + lot(&lots, 3);
    p.batch = p.kv_batch * (1 + lot(&lots, 2));
    p.q_heads = p.kv_heads * (1 + lot(&lots, 4));
    p.head_dim = 1 + lot(&lots, 12);
    p.v_head_dim = 1 + lot(&lots, 12);
    p.query_length = 1 + lot(&lots, 5);
    p.kv_length = lot(&lots, 8) == 0 ? lot(&lots, 3) : 1 + lot(&lots, 63);
    p.causal = lot(&lots, 3);
    p.window = lot(&lots, 2) == 0 ? lot(&lots, 9) : 0;
    p.window_right = lot(&lots, 3) == 0 ? lot(&lots, 6) : -1;
    p.sinks = lot(&lots, 2);
    p.mask = lot(&lots, 3);
    p.mask_batches = lot(&lots, 2) ? p.batch : 1;
    p.mask_heads = lot(&lots, 2) ? p.q_heads / p.kv_heads : 1;
    p.scale = lot(&lots, 2) ? 0.1 * (double)(1 + lot(&lots, 30)) : 0;
    p.softcap = lot(&lots, 2) ? 0.3 * (double)(1 + lot(&lots, 30)) : 0;
    p.max_bias = p.mask != ET_MASK_NONE && lot(&lots, 2) ? 0.7 * (double)(1 + lot(&lots, 12)) : 0;
    enum et_dtype types[FA_TENSORS];
    for (int t = 0; t < FA_TENSORS; t++)
        types[t] = floats[lot(&lots, choices[t])];
    make(m, p, types, lays[lot(&lots, 5)]);
    scatter(m, seed);
}

#endif
