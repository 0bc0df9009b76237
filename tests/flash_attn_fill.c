/* flash_attn: its replay against straight loops, and its data: masks, and the exact family, counted in
 * integers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/etalon.h"
#include "../ref/exact.h"
#include "../ref/flash_attn.h"
#include "../ref/softmax.h"
#include "suite.h"

/* ck_assert keeps a record of every one that holds: too dear for each of millions of terms. */
#define MUST(holds)                                                                                          \
    do {                                                                                                     \
        if (!(holds))                                                                                        \
            ck_abort_msg("%s", #holds);                                                                      \
    } while (0)

struct made {
    struct et_flash_attn p;
    struct et_problem problem;
    struct et_fill fill;
    void *work;
    bool view;  /* v is the head of each row of k */
    bool exact; /* of the exact family, and taken */
};

static const enum et_dtype usual[] = {[ET_FA_Q] = ET_F32,    [ET_FA_K] = ET_F16,     [ET_FA_V] = ET_F16,
                                      [ET_FA_MASK] = ET_F16, [ET_FA_SINKS] = ET_F32, [ET_FA_OUT] = ET_F32};

/* `pad` elements are free before the first, and behind each run; with more than 3 the last dimension is not
 * the fastest. */
static void lay_out(struct et_tensor *t, int64_t pad)
{
    MUST(et_tensor_pack(t));
    int64_t n = 1;
    for (int k = t->rank - 1; k >= 0; k--) {
        const int dim = pad > 3 ? (k + 1) % t->rank : k;
        t->stride[dim] = n;
        n = n * (t->size[dim] > 0 ? t->size[dim] : 1) + pad;
    }
    t->offset = pad;
    t->bytes = et_bytes(t->dtype, n + pad);
}

/* A fill of the operator's own is the mask's. */
static void fill_tensor(struct made *m, int t)
{
    const struct et_fill plain = {.kind = ET_FILL_NORMAL, .seed = m->fill.seed}, fill = m->fill;
    struct et_tensor *tensor = &m->problem.tensor[t];
    const int64_t n = tensor->size[tensor->rank - 1], rows = et_tensor_rows(tensor);
    float *row = malloc(sizeof *row * (size_t)(n + 1));
    MUST(row);
    for (int64_t i = 0; i < rows; i++) {
        m->problem.op->fill(&m->problem, fill.kind == ET_FILL_OWN && t != ET_FA_MASK ? &plain : &fill, t, i,
                            row);
        for (int64_t j = 0; j < n; j++) {
            const uint32_t bits = et_narrow(tensor->dtype, (double)row[j]);
            MUST(!m->exact || et_widen(tensor->dtype, bits) == row[j]);
            et_store(tensor->dtype, tensor->data, et_row_at(tensor, i) + j * tensor->stride[tensor->rank - 1],
                     bits);
        }
    }
    free(row);
}

static void make(struct made *m, const struct et_flash_attn *params, const enum et_dtype *dtype, bool view,
                 int64_t pad, struct et_fill fill)
{
    *m = (struct made){.p = *params, .fill = fill, .view = view};
    m->problem.op = et_operator_named("flash_attn");
    m->problem.params = &m->p;
    struct et_error error;
    if (m->problem.op->shape(&m->p, m->problem.tensor, &error) != ET_OK)
        ck_abort_msg("%s", error.text);
    for (int t = ET_FA_Q; t <= ET_FA_OUT; t++) {
        struct et_tensor *tensor = &m->problem.tensor[t];
        tensor->dtype = dtype[t];
        lay_out(tensor, pad);
    }
    m->exact = et_fill_is_exact(fill.kind) && m->problem.op->takes(&m->problem, fill.kind, NULL) == ET_OK;
    for (int t = ET_FA_Q; t < ET_FA_OUT; t++) {
        struct et_tensor *tensor = &m->problem.tensor[t];
        if (t == ET_FA_V && view) {
            memcpy(tensor->stride, m->problem.tensor[ET_FA_K].stride, sizeof tensor->stride);
            tensor->data = m->problem.tensor[ET_FA_K].data;
            continue;
        }
        tensor->data = malloc(tensor->bytes + 1);
        MUST(tensor->data);
        memset(tensor->data, 0xff, tensor->bytes);
        fill_tensor(m, t);
    }
    m->work = malloc(m->problem.op->work_bytes(&m->problem) + 1);
    MUST(m->work);
}

static void unmake(struct made *m)
{
    for (int t = ET_FA_Q; t < ET_FA_OUT; t++)
        if (!(m->view && t == ET_FA_V))
            free(m->problem.tensor[t].data);
    free(m->work);
}

static float element(const struct made *m, int t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const struct et_tensor *x = &m->problem.tensor[t];
    const int64_t at = x->offset + a * x->stride[0] + b * x->stride[1] + c * x->stride[2] + d * x->stride[3];
    return et_widen(x->dtype, et_load(x->dtype, x->data, at));
}

/* ---- The replay ---- */

static struct et_order online(int step, enum et_dtype weights)
{
    return (struct et_order){.name = "online", .arg = {step, (int32_t)weights}};
}

/* Straight from the definition, a key at a time: what flags say, and what the mask says. */
static bool sees(const struct made *m, int64_t b, int64_t i, int64_t h, int64_t j)
{
    const struct et_flash_attn *p = &m->p;
    const int64_t position = p->causal == ET_CAUSAL_TOP_LEFT ? i : i + p->kv_length - p->query_length;
    if (p->mask != ET_MASK_NONE &&
        element(m, ET_FA_MASK, b % p->mask_batches, h % p->mask_heads, i, j) == -INFINITY)
        return false;
    if (p->mask == ET_MASK_MATERIALISED)
        return true;
    return !(p->causal && j > position) && !(p->window > 0 && j <= position - p->window) &&
           !(p->window_right >= 0 && j > position + p->window_right);
}

static float score_of(const struct made *m, int64_t b, int64_t i, int64_t h, int64_t j)
{
    const struct et_flash_attn *p = &m->p;
    const float scale = (float)(p->scale > 0 ? p->scale : 1 / sqrt((double)p->head_dim));
    float dot = 0;
    for (int64_t c = 0; c < p->head_dim; c++)
        dot = fmaf(element(m, ET_FA_Q, b, i, h, c),
                   element(m, ET_FA_K, b * p->kv_batch / p->batch, j, h * p->kv_heads / p->q_heads, c), dot);
    float s = dot * scale;
    const float cap = (float)p->softcap;
    if (cap > 0)
        s = cap * et_tanh(et_div(s, cap));
    if (p->mask != ET_MASK_NONE)
        s = fmaf(et_alibi_slope((float)p->max_bias, (et_u32)h, (et_u32)p->q_heads),
                 element(m, ET_FA_MASK, b % p->mask_batches, h % p->mask_heads, i, j), s);
    return s;
}

static float rounded(enum et_dtype type, float x)
{
    return et_widen(type, et_narrow(type, (double)x));
}

/* Unseen keys of a step that has a seen one are added with a weight of 0. */
static void straight(const struct made *m, int step, enum et_dtype weights, int64_t unit, float *value)
{
    const struct et_flash_attn *p = &m->p;
    const int64_t h = unit % p->q_heads, i = unit / p->q_heads % p->query_length,
                  b = unit / p->q_heads / p->query_length;
    float *s = malloc(sizeof *s * (size_t)step);
    MUST(s);
    float max = -INFINITY, sum = 0;
    memset(value, 0, sizeof *value * (size_t)p->v_head_dim);
    for (int64_t from = 0; from < p->kv_length; from += step) {
        float to = max;
        bool any = false;
        for (int64_t j = from; j < from + step; j++) {
            s[j - from] = j < p->kv_length && sees(m, b, i, h, j) ? score_of(m, b, i, h, j) : -INFINITY;
            any = any || s[j - from] > -INFINITY;
            to = fmaxf(to, s[j - from]);
        }
        if (!any)
            continue;
        const float factor = et_exp(max - to);
        max = to;
        sum *= factor; /* of a sum that is never -0 */
        for (int64_t d = 0; d < p->v_head_dim; d++)
            value[d] = fmaf(value[d], factor, 0);
        for (int64_t j = from; j < from + step && j < p->kv_length; j++) {
            const float w = rounded(weights, et_exp(s[j - from] - max));
            sum += w;
            for (int64_t d = 0; d < p->v_head_dim; d++)
                value[d] = fmaf(
                    w, element(m, ET_FA_V, b * p->kv_batch / p->batch, j, h * p->kv_heads / p->q_heads, d),
                    value[d]);
        }
    }
    free(s);
    if (max == -INFINITY)
        return;
    float factor = 1;
    if (p->sinks) {
        const float z =
            ((const float *)m->problem.tensor[ET_FA_SINKS].data)[m->problem.tensor[ET_FA_SINKS].offset + h];
        const float to = fmaxf(max, z);
        factor = et_exp(max - to);
        sum = fmaf(sum, factor, et_exp(z - to));
    }
    for (int64_t d = 0; d < p->v_head_dim; d++)
        value[d] = et_div(fmaf(value[d], factor, 0), sum);
}

static int64_t units_of(const struct made *m)
{
    return m->problem.op->units(&m->problem);
}

/* A number of lot i below n. */
static int64_t lot(uint64_t seed, int64_t *i, int64_t n)
{
    const struct et_stream stream = et_stream(seed, "test");
    return et_word(&stream, (uint64_t)(*i)++, 0) % n;
}

#define PICK(...)                                                                                            \
    ((const int64_t[]){__VA_ARGS__}[lot(seed, i, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))])

static struct et_flash_attn any_params(uint64_t seed, int64_t *i)
{
    struct et_flash_attn p = {.batch = PICK(1, 1, 2, 4),
                              .kv_heads = PICK(1, 2, 3),
                              .head_dim = PICK(8, 16, 20, 32, 64),
                              .v_head_dim = PICK(1, 2, 5, 8),
                              .query_length = PICK(1, 1, 2, 3, 5, 33),
                              .kv_length = PICK(1, 2, 7, 31, 32, 33, 64, 67, 100, 129),
                              .causal = PICK(0, 0, 1, 1, 2),
                              .window = PICK(0, 0, 1, 2, 16, 31, 33, 40),
                              .window_right = PICK(-1, -1, -1, 0, 3),
                              .sinks = PICK(0, 1),
                              .mask = PICK(0, 0, 1, 2),
                              .mask_batches = 1,
                              .mask_heads = 1};
    p.kv_batch = p.batch / (p.batch > 1 ? PICK(1, 2) : 1);
    p.q_heads = p.kv_heads * PICK(1, 2, 4);
    if (p.mask == ET_MASK_DATA) {
        p.mask_batches = PICK(1, p.batch);
        p.mask_heads = PICK(1, p.q_heads);
    }
    return p;
}

static const enum et_dtype *any_types(uint64_t seed, int64_t *i, enum et_dtype *dtype)
{
    memcpy(dtype, usual, sizeof usual);
    dtype[ET_FA_Q] = (enum et_dtype)PICK(ET_F32, ET_F16, ET_BF16);
    dtype[ET_FA_K] = (enum et_dtype)PICK(ET_F32, ET_F16, ET_BF16, ET_F8E4M3FN);
    dtype[ET_FA_V] = (enum et_dtype)PICK(ET_F32, ET_F16, ET_BF16, ET_F8E4M3FN);
    dtype[ET_FA_MASK] = (enum et_dtype)PICK(ET_F32, ET_F16);
    dtype[ET_FA_OUT] = (enum et_dtype)PICK(ET_F32, ET_F16, ET_BF16);
    return dtype;
}

/* Some of a mask's values become -Inf; of every third row all. */
static void make_holes(struct made *m, uint64_t seed, int64_t *i)
{
    struct et_tensor *mask = &m->problem.tensor[ET_FA_MASK];
    for (int64_t row = 0; row < et_tensor_rows(mask); row++)
        for (int64_t j = 0; j < mask->size[3]; j++)
            if (row % 3 == 2 || lot(seed, i, 4) == 0)
                et_store(mask->dtype, mask->data, et_row_at(mask, row) + j * mask->stride[3],
                         et_narrow(mask->dtype, -INFINITY));
}

static void must_replay(struct made *m, int step, enum et_dtype weights, float *value)
{
    const struct et_order order = online(step, weights);
    float *want = malloc(sizeof *want * (size_t)m->p.v_head_dim);
    MUST(want);
    struct et_met met = {false};
    struct et_error error;
    for (int64_t u = 0; u < units_of(m); u++) {
        straight(m, step, weights, u, want);
        MUST(m->problem.op->replay(&m->problem, &order, u, m->work, value, &met, &error) == ET_OK);
        if (memcmp(value, want, sizeof *want * (size_t)m->p.v_head_dim) != 0)
            ck_abort_msg("unit %lld, step %d: %a is %a", (long long)u, step, (double)value[0],
                         (double)want[0]);
    }
    free(want);
}

START_TEST(the_replay_is_what_straight_loops_have_bit_for_bit)
{
    static const int steps[] = {1, 7, 32, 32, 32, 33, 64, 256};
    enum et_dtype dtype[ET_TENSORS];
    float value[64];
    for (uint64_t seed = 1; seed <= 400; seed++) {
        int64_t at = 0, *const i = &at;
        struct et_flash_attn p = any_params(seed, i);
        p.scale = PICK(0, 0, 1) ? 0.37 : 0;
        p.softcap = (double)PICK(0, 0, 1, 20);
        p.max_bias = p.mask ? (double)PICK(0, 0, 8) : 0;
        const enum et_fill_kind kind =
            (enum et_fill_kind)PICK(ET_FILL_NORMAL, ET_FILL_UNIFORM, ET_FILL_OUTLIER, ET_FILL_RAMP);
        struct made m;
        make(&m, &p, any_types(seed, i, dtype), false, PICK(0, 3, 5),
             (struct et_fill){.kind = kind, .seed = seed});
        make_holes(&m, seed, i);
        must_replay(&m, steps[PICK(0, 1, 2, 3, 4, 5, 6, 7)],
                    (enum et_dtype)PICK(ET_F32, ET_F32, ET_F16, ET_BF16, ET_F8E4M3FN), value);
        unmake(&m);
    }
}
END_TEST

START_TEST(orders_that_it_does_not_have_are_refused)
{
    struct made m;
    struct et_flash_attn p = {1, 1, 1, 1, 4, 4, 1, 4, .window_right = -1, .mask_batches = 1, .mask_heads = 1};
    make(&m, &p, usual, false, 0, (struct et_fill){.kind = ET_FILL_NORMAL});
    const struct {
        struct et_order order;
        const char *says;
    } bad[] = {
        {{"serial", {32, 0}}, "flash_attn has no replay of order serial(32, 0)"},
        {{"online", {0, 0}}, "flash_attn has no replay of order online(0, 0)"},
        {{"online", {-32, 0}}, "flash_attn has no replay of order online(-32, 0)"},
        {{"online", {4097, 0}}, "flash_attn has no replay of order online(4097, 0)"},
        {{"online", {32, ET_I8}}, "flash_attn has no replay of order online(32, 5)"},
        {{"online", {32, -1}}, "flash_attn has no replay of order online(32, -1)"},
    };
    float value[4];
    struct et_met met = {false};
    struct et_error error;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_eq(m.problem.op->replay(&m.problem, &bad[i].order, 0, m.work, value, &met, &error),
                         ET_REFUSED);
        ck_assert_str_eq(error.text, bad[i].says);
    }
    must_replay(&m, 1, ET_F32, value);
    must_replay(&m, 4096, ET_F32, value);
    unmake(&m);
}
END_TEST

/* ---- Masks ---- */

START_TEST(a_materialised_mask_replays_to_the_bits_of_the_flags_it_holds)
{
    enum et_dtype dtype[ET_TENSORS];
    float value[8], other[8];
    for (uint64_t seed = 1; seed <= 300; seed++) {
        int64_t at = 0, *const i = &at;
        struct et_flash_attn p = any_params(seed, i);
        p.mask = ET_MASK_NONE;
        p.mask_batches = p.mask_heads = 1;
        any_types(seed, i, dtype);
        const struct et_fill fill = {.kind = ET_FILL_NORMAL, .seed = seed};
        struct made flags, mask;
        make(&flags, &p, dtype, false, 0, fill);
        p.mask = ET_MASK_MATERIALISED;
        p.mask_batches = PICK(1, p.batch);
        p.mask_heads = PICK(1, p.q_heads);
        make(&mask, &p, dtype, false, 0, fill);
        const struct et_order order = online((int)PICK(1, 16, 32, 100), ET_F32);
        struct et_met met = {false};
        for (int64_t u = 0; u < units_of(&flags); u++) {
            MUST(flags.problem.op->replay(&flags.problem, &order, u, flags.work, value, &met, NULL) == ET_OK);
            MUST(mask.problem.op->replay(&mask.problem, &order, u, mask.work, other, &met, NULL) == ET_OK);
            MUST(memcmp(value, other, sizeof *value * (size_t)p.v_head_dim) == 0);
        }
        unmake(&flags);
        unmake(&mask);
    }
}
END_TEST

START_TEST(a_materialised_mask_holds_flags_and_distances_whatever_its_fill)
{
    /* Of 3 queries and 5 keys the middle one is at position 1 + 5 - 3 = 3; a window of 3 has keys 1, 2, 3. */
    struct et_flash_attn p = {1, 1, 1, 1, 4, 4, 3, 5, ET_CAUSAL_BOTTOM_RIGHT, .window = 3};
    p.window_right = -1;
    p.mask = ET_MASK_MATERIALISED;
    p.mask_batches = p.mask_heads = 1;
    const struct et_fill fills[] = {
        {.kind = ET_FILL_NORMAL}, {.kind = ET_FILL_RAMP}, {.kind = ET_FILL_OWN, .value = 0.5}};
    for (int f = 0; f < 3; f++) {
        struct made m;
        p.max_bias = 0;
        make(&m, &p, usual, false, 0, fills[f]);
        const float flags[5] = {-INFINITY, 0, 0, 0, -INFINITY};
        for (int64_t j = 0; j < 5; j++)
            ck_assert(element(&m, ET_FA_MASK, 0, 0, 1, j) == flags[j]);
        unmake(&m);
        p.max_bias = 8;
        make(&m, &p, usual, false, 0, fills[f]);
        const float distances[5] = {-INFINITY, -2, -1, 0, -INFINITY};
        for (int64_t j = 0; j < 5; j++)
            ck_assert(element(&m, ET_FA_MASK, 0, 0, 1, j) == distances[j]);
        unmake(&m);
    }
    /* Without causal a query has distances on both sides. */
    p.causal = ET_CAUSAL_NONE;
    p.window = 0;
    struct made m;
    make(&m, &p, usual, false, 0, fills[0]);
    const float both[5] = {-3, -2, -1, 0, -1};
    for (int64_t j = 0; j < 5; j++)
        ck_assert(element(&m, ET_FA_MASK, 0, 0, 1, j) == both[j]);
    unmake(&m);
}
END_TEST

START_TEST(holes_are_a_share_of_a_mask)
{
    struct et_flash_attn p = {1, 1, 4, 1, 4, 4, 25, 100, .window_right = -1, .mask = ET_MASK_DATA};
    p.mask_batches = 1;
    p.mask_heads = 4;
    /* 10000 lots; half a share deviates by 50 */
    const double shares[] = {0, 0.25, 0.5, 1};
    const int64_t least[] = {0, 2250, 4750, 10000}, most[] = {0, 2750, 5250, 10000};
    for (int s = 0; s < 4; s++) {
        struct made m;
        make(&m, &p, usual, false, 0, (struct et_fill){.kind = ET_FILL_OWN, .seed = 3, .value = shares[s]});
        int64_t n = 0;
        for (int64_t i = 0; i < 10000; i++) {
            const float x = element(&m, ET_FA_MASK, 0, i / 2500, i / 100 % 25, i % 100);
            MUST(x == 0 || x == -INFINITY);
            n += x != 0;
        }
        ck_assert_int_ge(n, least[s]);
        ck_assert_int_le(n, most[s]);
        unmake(&m);
    }
}
END_TEST

/* ---- The exact family ---- */

/* Where a unit is, and its keys: with a score of 0, or of none. */
struct where {
    int64_t b, i, h, kv_b, kv_h;
};

static struct where where_is(const struct made *m, int64_t unit)
{
    const struct et_flash_attn *p = &m->p;
    struct where w = {.h = unit % p->q_heads,
                      .i = unit / p->q_heads % p->query_length,
                      .b = unit / p->q_heads / p->query_length};
    w.kv_b = w.b * p->kv_batch / p->batch;
    w.kv_h = w.h * p->kv_heads / p->q_heads;
    return w;
}

/* Zeros, and powers of two: exact. */
static double dot_of(const struct made *m, struct where w, int64_t j)
{
    double dot = 0;
    for (int64_t c = 0; c < m->p.head_dim; c++)
        dot +=
            (double)element(m, ET_FA_Q, w.b, w.i, w.h, c) * (double)element(m, ET_FA_K, w.kv_b, j, w.kv_h, c);
    return dot;
}

static bool is_hot(const struct made *m, struct where w, int64_t j)
{
    const double dot = dot_of(m, w, j);
    MUST(dot == 0 || dot * (double)et_fa_scale(&m->p) <= -104 * (1 - 0x1p-23));
    return dot == 0;
}

static double code_of(const struct made *m, struct where w, int64_t j, int64_t d)
{
    return (double)element(m, ET_FA_V, w.kv_b, j, w.kv_h, d);
}

struct counted {
    int64_t seen, hot, key; /* key: the last hot one */
};

static struct counted count(const struct made *m, struct where w, double *sum)
{
    struct counted n = {0, 0, -1};
    for (int64_t d = 0; d < m->p.v_head_dim; d++)
        sum[d] = 0;
    for (int64_t j = 0; j < m->p.kv_length; j++) {
        const bool hot = is_hot(m, w, j);
        if (!sees(m, w.b, w.i, w.h, j))
            continue;
        n.seen++;
        if (!hot)
            continue;
        n.hot++;
        n.key = j;
        for (int64_t d = 0; d < m->p.v_head_dim; d++)
            sum[d] += code_of(m, w, j, d);
    }
    return n;
}

static const enum et_fill_kind kinds[] = {ET_FILL_EQUAL, ET_FILL_ONEHOT, ET_FILL_BALANCE};

static void must_be_counted(struct made *m, struct where w, const float *value)
{
    const bool balance = m->fill.kind == ET_FILL_BALANCE;
    const struct et_format *out = et_format(m->problem.tensor[ET_FA_OUT].dtype);
    double sum[64];
    const struct counted n = count(m, w, sum);
    const double shares = (double)n.hot + (balance && m->p.sinks);
    for (int64_t d = 0; d < m->p.v_head_dim; d++) {
        if ((double)value[d] != (n.seen ? sum[d] / shares : 0))
            ck_abort_msg("%a, not %a / %a", (double)value[d], sum[d], shares);
        MUST(fabs(sum[d]) <= ldexp(1, out->digits < 24 ? out->digits : 24));
    }
    if (n.seen == 0)
        return;
    MUST(n.hot > 0 && (n.hot & (n.hot - 1)) == 0);
    const bool one = m->fill.kind == ET_FILL_ONEHOT || (balance && m->p.sinks);
    MUST(!one || n.hot == 1);
    MUST(!balance || n.hot <= 2);
    MUST(!balance || one || m->p.mask == ET_MASK_DATA || n.seen < 3 || n.hot == 2);
}

/* Rounded once, they are the same bytes. */
static void must_be_the_oracles(struct made *m, int64_t unit, const float *value)
{
    const enum et_dtype out = m->problem.tensor[ET_FA_OUT].dtype;
    struct et_spread spread[64];
    double oracle[64];
    const struct et_arith arith = {
        .depth_qk = (int32_t)m->p.head_dim, .depth_sum = (int32_t)m->p.kv_length, .tiles = 1};
    m->problem.op->oracle(&m->problem, unit, &arith, 1, m->work, oracle, spread);
    for (int64_t d = 0; d < m->p.v_head_dim; d++)
        MUST(et_narrow(out, oracle[d]) == et_narrow(out, (double)value[d]));
}

START_TEST(results_of_the_exact_family_are_counted)
{
    enum et_dtype dtype[ET_TENSORS];
    float value[64];
    int made = 0, views = 0, capped = 0, several = 0;
    for (uint64_t seed = 1; seed <= 700; seed++) {
        int64_t at = 0, *const i = &at;
        struct et_flash_attn p = any_params(seed, i);
        if (p.query_length * p.batch < 8)
            p.kv_length = PICK(p.kv_length, 300, 515);
        p.scale = (const double[]){0, 0, 0.25, 1, 3, 0x1p-10}[PICK(0, 1, 2, 3, 4, 5)];
        p.softcap = (double)PICK(0, 0, 50);
        any_types(seed, i, dtype);
        const struct et_fill fill = {.kind = kinds[PICK(0, 1, 2)], .seed = seed};
        struct made m;
        /* The head of a row of K that holds codes is a row of V as well. */
        const bool view = p.head_dim >= 32 && p.v_head_dim <= 10 && dtype[ET_FA_K] == dtype[ET_FA_V];
        make(&m, &p, dtype, view, PICK(0, 3, 5), fill);
        if (m.exact) {
            const struct et_order order = online((int)PICK(1, 32, 32, 100), ET_F32);
            struct et_met met = {false};
            for (int64_t u = 0; u < units_of(&m); u++) {
                MUST(m.problem.op->replay(&m.problem, &order, u, m.work, value, &met, NULL) == ET_OK);
                must_be_counted(&m, where_is(&m, u), value);
                must_be_the_oracles(&m, u, value);
            }
            MUST(!met.subnormal);
            made++;
            views += view;
            capped += p.softcap > 0;
            several += fill.kind == ET_FILL_EQUAL;
        }
        unmake(&m);
    }
    ck_assert_int_ge(made, 500);
    ck_assert_int_ge(views, 40);
    ck_assert_int_ge(capped, 100);
    ck_assert_int_ge(several, 100);
}
END_TEST

/* Kernels that scale q first, rounded to a type or not, and add in any order, have hot scores of 0 as well.
 */
START_TEST(scaled_and_rounded_queries_have_the_same_hot_keys)
{
    static const enum et_dtype types[] = {ET_F32, ET_F16, ET_BF16};
    for (int64_t head_dim = 17; head_dim < 160; head_dim += 9)
        for (int t = 0; t < 9; t++) {
            struct et_flash_attn p = {
                1, 1, 4, 2, head_dim, 8, 7, 90, ET_CAUSAL_BOTTOM_RIGHT, .window_right = -1};
            p.mask_batches = p.mask_heads = 1;
            struct made m;
            make(&m, &p, usual, false, 0, (struct et_fill){.kind = kinds[t % 3], .seed = 5});
            for (int64_t u = 0; u < units_of(&m); u++) {
                const struct where w = where_is(&m, u);
                for (int64_t j = 0; j < p.kv_length; j++) {
                    float dot = 0, back = 0;
                    for (int64_t c = 0; c < head_dim; c++) {
                        const float scale = et_fa_scale(&p) * 0x1.715476p0F;
                        const float k = element(&m, ET_FA_K, w.kv_b, j, w.kv_h, c);
                        const float q = element(&m, ET_FA_Q, w.b, w.i, w.h, c);
                        const float last = element(&m, ET_FA_Q, w.b, w.i, w.h, head_dim - 1 - c);
                        dot = fmaf(rounded(types[t / 3], q * scale), k, dot);
                        back += rounded(types[t / 3], last * scale) *
                                element(&m, ET_FA_K, w.kv_b, j, w.kv_h, head_dim - 1 - c);
                    }
                    const bool hot = is_hot(&m, w, j);
                    MUST(hot ? dot == 0 && back == 0 : dot < -104 && back < -104);
                }
            }
            unmake(&m);
        }
}
END_TEST

static struct et_flash_attn shape(int64_t q_heads, int64_t query_length, int64_t kv_length)
{
    struct et_flash_attn p = {1, 1, q_heads, 1, 32, 8, query_length, kv_length, .window_right = -1};
    p.mask_batches = p.mask_heads = 1;
    return p;
}

START_TEST(onehot_takes_turns_over_both_ends_and_every_place_of_a_step)
{
    for (int window = 0; window <= 40; window += 40) {
        struct et_flash_attn p = shape(4, 64, 200);
        p.causal = ET_CAUSAL_BOTTOM_RIGHT;
        p.window = window;
        struct made m;
        make(&m, &p, usual, false, 0, (struct et_fill){.kind = ET_FILL_ONEHOT, .seed = 9});
        int first = 0, last = 0, before = 0, place[32] = {0}, outside = 0;
        int64_t keys[4 * 64];
        double sum[8];
        for (int64_t u = 0; u < units_of(&m); u++) {
            int64_t from, to;
            const struct where w = where_is(&m, u);
            et_fa_span(&p, w.i, &from, &to);
            const int64_t key = keys[u] = count(&m, w, sum).key;
            first += key == from;
            last += key == to - 1;
            before += key == (to - 1) / 32 * 32 - 1;
            place[key % 32]++;
            for (int64_t v = 0; v < u;
                 v++) /* the first key of one row, and the last that another leaves out */
                outside += window && key == from && keys[v] == from - 1;
        }
        ck_assert_int_ge(first, 7); /* 256 rows have 7 laps of 36 turns */
        ck_assert_int_ge(last, 7);
        ck_assert_int_ge(before, 5);
        for (int i = 0; i < 32; i++)
            ck_assert_int_ge(place[i], 5);
        ck_assert(!window || outside > 0);
        unmake(&m);
    }
    /* Eight rows of decode have both ends, and both sides of the last edge of a step, from seed 0 on. */
    struct et_flash_attn p = shape(8, 1, 200);
    struct made m;
    make(&m, &p, usual, false, 0, (struct et_fill){.kind = ET_FILL_ONEHOT});
    const int64_t turns[4] = {0, 199, 192, 191};
    double sum[8];
    for (int64_t u = 0; u < 4; u++)
        ck_assert_int_eq(count(&m, where_is(&m, u), sum).key, turns[u]);
    unmake(&m);
    /* 8 rows further in the circle of 36: the next seed begins at the turn of the first 4 + 4 places. */
    make(&m, &p, usual, false, 0, (struct et_fill){.kind = ET_FILL_ONEHOT, .seed = 1});
    ck_assert_int_eq(count(&m, where_is(&m, 0), sum).key % 32, 4);
    unmake(&m);
}
END_TEST

/* Rows whose result changes when key `at` is let in. */
static int64_t let_in(const struct made *m, bool first, int64_t *rows)
{
    int64_t changed = 0;
    double sum[8];
    for (int64_t u = 0; u < units_of(m); u++) {
        const struct where w = where_is(m, u);
        int64_t from, to;
        et_fa_span(&m->p, w.i, &from, &to);
        const int64_t at = first ? from - 1 : to;
        if (from >= to || at < 0 || at >= m->p.kv_length)
            continue;
        ++*rows;
        const struct counted n = count(m, w, sum);
        bool differs = false;
        for (int64_t d = 0; d < m->p.v_head_dim && n.hot > 0 && is_hot(m, w, at); d++)
            differs =
                differs || sum[d] / (double)n.hot != (sum[d] + code_of(m, w, at, d)) / (double)(n.hot + 1);
        changed += differs;
    }
    return changed;
}

START_TEST(equal_shows_a_key_let_in_at_every_kind_of_edge)
{
    static const struct {
        int64_t heads, queries, keys, causal, window, right, mask;
        bool first, last; /* edges that it has */
    } of[] = {
        {4, 16, 100, ET_CAUSAL_BOTTOM_RIGHT, 0, -1, ET_MASK_NONE, false, true},
        {4, 16, 100, ET_CAUSAL_BOTTOM_RIGHT, 40, -1, ET_MASK_NONE, true, true},
        {4, 16, 100, ET_CAUSAL_BOTTOM_RIGHT, 40, -1, ET_MASK_MATERIALISED, true, true},
        {4, 16, 100, ET_CAUSAL_BOTTOM_RIGHT, 40, -1, ET_MASK_DATA, true, true},
        {4, 16, 100, ET_CAUSAL_TOP_LEFT, 0, -1, ET_MASK_NONE, false, true},
        {4, 33, 20, ET_CAUSAL_TOP_LEFT, 7, -1, ET_MASK_NONE, true, true},
        {4, 16, 100, ET_CAUSAL_NONE, 0, 5, ET_MASK_NONE, false, true},
        {4, 16, 100, ET_CAUSAL_NONE, 8, 8, ET_MASK_NONE, true, true},
        {4, 16, 100, ET_CAUSAL_BOTTOM_RIGHT, 1, -1, ET_MASK_NONE, true, true},
        {4, 1, 515, ET_CAUSAL_NONE, 128, -1, ET_MASK_NONE, true, false},
        {8, 1, 4096, ET_CAUSAL_NONE, 128, -1, ET_MASK_NONE, true, false}, /* from = 3968 = 31 * 128 */
        {3, 1, 1000, ET_CAUSAL_NONE, 100, -1, ET_MASK_NONE, true, false},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (int narrow = 0; narrow < 2; narrow++) {
            struct et_flash_attn p = shape(of[i].heads, of[i].queries, of[i].keys);
            p.causal = of[i].causal;
            p.window = of[i].window;
            p.window_right = of[i].right;
            p.mask = of[i].mask;
            enum et_dtype dtype[ET_TENSORS];
            memcpy(dtype, usual, sizeof usual);
            dtype[ET_FA_OUT] = narrow ? ET_BF16 : ET_F32;
            struct made m;
            make(&m, &p, dtype, false, 0, (struct et_fill){.kind = ET_FILL_EQUAL, .seed = 4});
            int64_t firsts = 0, lasts = 0;
            const int64_t first = let_in(&m, true, &firsts), last = let_in(&m, false, &lasts);
            ck_assert_msg((firsts > 0) == of[i].first && (lasts > 0) == of[i].last, "edges of %zu", i);
            /* One row in four has the turn; of these, holes hide a few. */
            ck_assert_msg(first * 8 >= firsts, "%zu: %lld of %lld", i, (long long)first, (long long)firsts);
            ck_assert_msg(last * 8 >= lasts, "%zu: %lld of %lld", i, (long long)last, (long long)lasts);
            unmake(&m);
        }
}
END_TEST

START_TEST(equal_has_hot_keys_on_both_sides_of_a_step_and_in_many)
{
    struct et_flash_attn p = shape(4, 1, 4096);
    struct made m;
    make(&m, &p, usual, false, 0, (struct et_fill){.kind = ET_FILL_EQUAL, .seed = 0});
    int straddle = 0, most = 0;
    for (int64_t u = 0; u < units_of(&m); u++) {
        const struct where w = where_is(&m, u);
        int steps = 0;
        bool both = false;
        for (int64_t j = 0; j < 4096; j += 32) {
            bool any = false;
            for (int64_t k = j; k < j + 32; k++)
                any = any || is_hot(&m, w, k);
            steps += any;
            both = both || (j > 0 && is_hot(&m, w, j - 1) && is_hot(&m, w, j));
        }
        straddle += both;
        most = steps > most ? steps : most;
    }
    ck_assert_int_ge(straddle, 1);
    ck_assert_int_eq(most, 128); /* each */
    unmake(&m);
}
END_TEST

START_TEST(balance_shows_a_sink_that_is_ignored)
{
    struct et_flash_attn p = shape(6, 3, 70);
    p.sinks = 1;
    struct made m;
    make(&m, &p, usual, false, 0, (struct et_fill){.kind = ET_FILL_BALANCE, .seed = 2});
    const struct et_order order = online(32, ET_F32);
    float with[8], without[8];
    double sum[8];
    struct et_met met = {false};
    for (int64_t u = 0; u < units_of(&m); u++) {
        m.p.sinks = 1;
        MUST(m.problem.op->replay(&m.problem, &order, u, m.work, with, &met, NULL) == ET_OK);
        m.p.sinks = 0;
        MUST(m.problem.op->replay(&m.problem, &order, u, m.work, without, &met, NULL) == ET_OK);
        ck_assert_int_eq(count(&m, where_is(&m, u), sum).hot, 1);
        for (int64_t d = 0; d < 8; d++) {
            /* a code halved; counted twice it would be a third */
            ck_assert((double)with[d] == sum[d] / 2 && (double)without[d] == sum[d] && sum[d] != 0);
            ck_assert(sum[d] / 3 != sum[d] / 2);
        }
    }
    unmake(&m);
}
END_TEST

START_TEST(balance_finds_two_keys_among_three)
{
    /* Keys 255 and 256 differ in nine bits. */
    struct et_flash_attn p = shape(1, 270, 4096);
    p.causal = ET_CAUSAL_TOP_LEFT;
    p.window = 3;
    struct made m;
    make(&m, &p, usual, false, 0, (struct et_fill){.kind = ET_FILL_BALANCE, .seed = 0});
    double sum[8];
    for (int64_t i = 250; i < 264; i++)
        ck_assert_int_eq(count(&m, where_is(&m, i), sum).hot, 2);
    unmake(&m);
}
END_TEST

START_TEST(sinks_of_onehot_and_equal_weigh_nothing_and_are_finite_in_every_other_head)
{
    struct et_flash_attn p = shape(4, 1, 10);
    p.sinks = 1;
    for (int k = 0; k < 2; k++) {
        struct made m;
        make(&m, &p, usual, false, 0, (struct et_fill){.kind = kinds[k]});
        const float want[4] = {-1e4F, -INFINITY, -1e4F, -INFINITY};
        ck_assert_mem_eq(m.problem.tensor[ET_FA_SINKS].data, want, sizeof want);
        unmake(&m);
    }
}
END_TEST

START_TEST(a_copy_of_a_row_of_v_is_named)
{
    struct et_flash_attn p = {2, 2, 4, 2, 32, 8, 1, 40, .window_right = -1};
    p.mask_batches = p.mask_heads = 1;
    struct made m;
    make(&m, &p, usual, false, 0, (struct et_fill){.kind = ET_FILL_ONEHOT});
    /* Row (1, 0, 3), the eighth: turn 7 is the fourth place of a step, key 3 or 35. */
    const struct et_order order = online(32, ET_F32);
    float value[8];
    double got[8];
    struct et_met met = {false};
    ck_assert_int_eq(m.problem.op->replay(&m.problem, &order, 7, m.work, value, &met, NULL), ET_OK);
    for (int d = 0; d < 8; d++)
        got[d] = (double)value[d];
    char text[100];
    ck_assert(m.problem.op->names(&m.problem, 7, got, text, sizeof text));
    const int64_t key = count(&m, where_is(&m, 7), got).key;
    ck_assert_str_eq(text, key == 3 ? "V of batch 1, key 3, KV head 1" : "V of batch 1, key 35, KV head 1");
    got[3]++;
    ck_assert(!m.problem.op->names(&m.problem, 7, got, text, sizeof text));
    /* The code of the 161st of 160 rows. */
    for (int d = 0; d < 8; d++)
        got[d] = (double)et_code(2, 160, d);
    ck_assert(!m.problem.op->names(&m.problem, 7, got, text, sizeof text));
    unmake(&m);
}
END_TEST

START_TEST(a_problem_without_an_exact_result_is_refused_by_name)
{
    static const struct {
        int64_t head_dim, keys;
        double scale, softcap, max_bias;
        enum et_dtype q;
        const char *says; /* NULL: it has one */
    } of[] = {
        {13, 67, 0, 0, 0, ET_F32, "onehot needs a head_dim of at least 14 for 67 keys, it is 13"},
        {14, 67, 0, 0, 0, ET_F32, NULL},
        {12, 64, 0, 0, 0, ET_F32, NULL},
        {12, 65, 0, 0, 0, ET_F32, "onehot needs a head_dim of at least 14 for 65 keys, it is 12"},
        {1, 1, 0, 0, 0, ET_F32, NULL},
        {1, 0, 0, 0, 0, ET_F32, NULL},
        {64, 67, 0, 0, 8, ET_F32, "onehot needs a max_bias of 0, it is 8"},
        /* 17.4 + ln(16 * 67) = 24.377 */
        {64, 67, 0, 24, 0, ET_F32,
         "onehot needs scores down to -24.4 for 67 keys, a softcap of 24 leaves -24"},
        {64, 67, 0, 24.5, 0, ET_F32, NULL},
        {64, 131072, 0, 50, 0, ET_F32, NULL}, /* 17.4 + 14.6 < 50 tanh(104 / 50) = 48.5 */
        /* 104 / 1e-3 is below 2^17, 104 * 2^126 below 2^133; f32's largest by 64 is 2^122. */
        {64, 67, 1e-3, 0, 0, ET_F16,
         "onehot needs 1.31e+05 in q at a scale of 0.001, f16 takes up to 6.55e+04"},
        {64, 67, 1e-3, 0, 0, ET_BF16, NULL},
        {64, 67, 0x1p-126, 0, 0, ET_F32,
         "onehot needs 1.09e+40 in q at a scale of 1.18e-38, f32 takes up to 5.32e+36"},
        {64, 67, 0x1p64, 0, 0, ET_F16, NULL},
        {1024, 131072, 0, 0, 0, ET_F16, NULL}, /* 104 * 32 is below 2^12 */
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct et_flash_attn p = shape(1, 1, of[i].keys);
        p.head_dim = of[i].head_dim;
        p.scale = of[i].scale;
        p.softcap = of[i].softcap;
        p.max_bias = of[i].max_bias;
        p.mask = of[i].max_bias > 0 ? ET_MASK_DATA : ET_MASK_NONE;
        struct et_problem problem = {.op = et_operator_named("flash_attn"), .params = &p};
        ck_assert_int_eq(problem.op->shape(&p, problem.tensor, NULL), ET_OK);
        for (int t = 0; t < ET_FA_OUT; t++)
            problem.tensor[t].dtype = usual[t];
        problem.tensor[ET_FA_Q].dtype = of[i].q;
        struct et_error error = {""};
        const enum et_status status = problem.op->takes(&problem, ET_FILL_ONEHOT, &error);
        ck_assert_str_eq(error.text, of[i].says ? of[i].says : "");
        ck_assert_int_eq(status, of[i].says ? ET_REFUSED : ET_OK);
    }
}
END_TEST

START_TEST(a_view_has_no_exact_result_where_v_would_reach_what_spells_keys)
{
    /* 40 keys have 6 bits: of 32 channels of k 20 are codes. */
    for (int64_t v_head_dim = 20; v_head_dim <= 21; v_head_dim++) {
        struct et_flash_attn p = shape(1, 1, 40);
        p.v_head_dim = v_head_dim;
        struct et_problem problem = {.op = et_operator_named("flash_attn"), .params = &p};
        struct et_tensor *k = &problem.tensor[ET_FA_K], *v = &problem.tensor[ET_FA_V];
        ck_assert_int_eq(problem.op->shape(&p, problem.tensor, NULL), ET_OK);
        for (int t = 0; t <= ET_FA_OUT; t++) {
            problem.tensor[t].dtype = usual[t];
            ck_assert(et_tensor_pack(&problem.tensor[t]));
        }
        struct et_error error = {""};
        ck_assert_int_eq(problem.op->takes(&problem, ET_FILL_EQUAL, &error), ET_OK);
        memcpy(v->stride, k->stride, sizeof v->stride);
        v->shares = ET_FA_K + 1;
        const enum et_status status = problem.op->takes(&problem, ET_FILL_EQUAL, &error);
        ck_assert_int_eq(status, v_head_dim > 20 ? ET_REFUSED : ET_OK);
        ck_assert_str_eq(error.text, v_head_dim > 20 ? "equal needs a v_head_dim of at most 20 for 40 keys "
                                                       "where v is a view of k, it is 21"
                                                     : "");
    }
}
END_TEST

/* q would hold codes, or k's codes be a mask. */
START_TEST(views_of_other_tensors_than_k_and_v_have_no_exact_result)
{
    static const struct {
        int t, of;
        const char *says;
    } pairs[] = {
        {ET_FA_Q, ET_FA_K, "onehot needs data of q that are not those of k"},
        {ET_FA_V, ET_FA_Q, "onehot needs data of q that are not those of v"},
        {ET_FA_MASK, ET_FA_K, "onehot needs data of k that are not those of mask"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct et_flash_attn p = shape(1, 1, 40);
        p.v_head_dim = 20;
        p.mask = ET_MASK_DATA;
        struct et_problem problem = {.op = et_operator_named("flash_attn"), .params = &p};
        struct et_tensor *t = &problem.tensor[pairs[i].t], *of = &problem.tensor[pairs[i].of];
        ck_assert_int_eq(problem.op->shape(&p, problem.tensor, NULL), ET_OK);
        for (int k = 0; k <= ET_FA_OUT; k++) {
            problem.tensor[k].dtype = usual[k];
            ck_assert(et_tensor_pack(&problem.tensor[k]));
        }
        memcpy(t->stride, of->stride, sizeof t->stride);
        t->shares = pairs[i].of + 1;
        t->offset = 64; /* behind it in one buffer */
        ck_assert_int_eq(problem.op->takes(&problem, ET_FILL_ONEHOT, NULL), ET_OK);
        t->offset = 0;
        struct et_error error = {""};
        ck_assert_int_eq(problem.op->takes(&problem, ET_FILL_ONEHOT, &error), ET_REFUSED);
        ck_assert_str_eq(error.text, pairs[i].says);
    }
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("flash_attn_fill");
    TCase *replay = tcase_create("replay");
    tcase_add_test(replay, the_replay_is_what_straight_loops_have_bit_for_bit);
    tcase_add_test(replay, orders_that_it_does_not_have_are_refused);
    suite_add_tcase(suite, replay);
    TCase *masks = tcase_create("masks");
    tcase_add_test(masks, a_materialised_mask_replays_to_the_bits_of_the_flags_it_holds);
    tcase_add_test(masks, a_materialised_mask_holds_flags_and_distances_whatever_its_fill);
    tcase_add_test(masks, holes_are_a_share_of_a_mask);
    suite_add_tcase(suite, masks);
    TCase *exact = tcase_create("exact");
    tcase_add_test(exact, results_of_the_exact_family_are_counted);
    tcase_add_test(exact, scaled_and_rounded_queries_have_the_same_hot_keys);
    tcase_add_test(exact, onehot_takes_turns_over_both_ends_and_every_place_of_a_step);
    tcase_add_test(exact, equal_shows_a_key_let_in_at_every_kind_of_edge);
    tcase_add_test(exact, equal_has_hot_keys_on_both_sides_of_a_step_and_in_many);
    tcase_add_test(exact, balance_shows_a_sink_that_is_ignored);
    tcase_add_test(exact, balance_finds_two_keys_among_three);
    tcase_add_test(exact, sinks_of_onehot_and_equal_weigh_nothing_and_are_finite_in_every_other_head);
    tcase_add_test(exact, a_copy_of_a_row_of_v_is_named);
    tcase_add_test(exact, a_problem_without_an_exact_result_is_refused_by_name);
    tcase_add_test(exact, a_view_has_no_exact_result_where_v_would_reach_what_spells_keys);
    tcase_add_test(exact, views_of_other_tensors_than_k_and_v_have_no_exact_result);
    suite_add_tcase(suite, exact);
    return suite;
}
