/* flash_attn: its replay against straight loops, and its data: masks, and the exact family, counted in
 * integers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/etalon.h"
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
    bool view; /* v is the head of each row of k */
};

static const enum et_dtype usual[] = {[ET_FA_Q] = ET_F32,    [ET_FA_K] = ET_F16,     [ET_FA_V] = ET_F16,
                                      [ET_FA_MASK] = ET_F16, [ET_FA_SINKS] = ET_F32, [ET_FA_OUT] = ET_F32};

/* Every row begins `pad` elements later than packed, as does the buffer. */
static void lay_out(struct et_tensor *t, int64_t pad)
{
    MUST(et_tensor_pack(t));
    int64_t n = 1;
    for (int k = t->rank - 1; k >= 0; k--) {
        t->stride[k] = n;
        n = n * (t->size[k] > 0 ? t->size[k] : 1);
        n += k == t->rank - 1 ? pad : 0;
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
        for (int64_t j = 0; j < n; j++)
            et_store(tensor->dtype, tensor->data, et_row_at(tensor, i) + j,
                     et_narrow(tensor->dtype, (double)row[j]));
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
        if (t == ET_FA_OUT)
            continue;
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
                              .head_dim = PICK(8, 10, 16, 24, 64),
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
                et_store(mask->dtype, mask->data, et_row_at(mask, row) + j,
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
        make(&m, &p, any_types(seed, i, dtype), false, PICK(0, 0, 3),
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
    struct et_met met;
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
        {.kind = ET_FILL_NORMAL}, {.kind = ET_FILL_EQUAL}, {.kind = ET_FILL_OWN, .value = 0.5}};
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
    return suite;
}
