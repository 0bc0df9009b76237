/* flash_attn: the definition on literal numbers and against a second implementation, its tolerance against
 * the arithmetic that variants claim, and the pieces of online softmax. */
#include "flash_made.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/softmax.h"
#include "suite.h"

static const struct et_flash_attn plain = {.batch = 1,
                                           .kv_batch = 1,
                                           .q_heads = 1,
                                           .kv_heads = 1,
                                           .head_dim = 1,
                                           .v_head_dim = 1,
                                           .query_length = 1,
                                           .kv_length = 1,
                                           .window_right = -1,
                                           .mask_batches = 1,
                                           .mask_heads = 1};

/* All scores 0; channel j of v is 1 at key j and 0 elsewhere: out shows who is seen. */
static void make_sighted(struct made *m, struct et_flash_attn params)
{
    params.v_head_dim = params.kv_length;
    make(m, params, all_f32, packed);
    for (int64_t b = 0; b < params.kv_batch; b++)
        for (int64_t j = 0; j < params.kv_length; j++)
            for (int64_t hk = 0; hk < params.kv_heads; hk++)
                put(m, FA_V, b, j, hk, j, 1);
}

/* "0110": the row sees keys 1 and 2, with equal weights. */
static const char *sight(struct made *m, int64_t b, int64_t i, int64_t h)
{
    static _Thread_local char text[64];
    const double *out = compute(m, b, i, h);
    double most = 0;
    for (int64_t j = 0; j < m->params.kv_length; j++)
        most = fmax(most, out[j]);
    for (int64_t j = 0; j < m->params.kv_length; j++) {
        ck_assert(out[j] == 0 || out[j] == most);
        text[j] = out[j] > 0 ? '1' : '0';
    }
    text[m->params.kv_length] = '\0';
    return text;
}

static void expect_near(double got, double want)
{
    ck_assert_msg(fabs(got - want) <= 0x1p-45 * fabs(want), "%.17g, want %.17g", got, want);
}

START_TEST(a_sink_takes_its_share_of_its_own_head)
{
    /* q = 0: all n scores are 0, and of V = 1 n / (n + e^z) is left. The sink is the head's, whatever the
     * query row (modular#6591 took row % heads). e = 2.718281828459045 */
    struct et_flash_attn p = plain;
    p.q_heads = 3;
    p.query_length = 2;
    p.kv_length = 3;
    p.sinks = 1;
    struct made m;
    make(&m, p, all_f32, packed);
    static const float z[] = {0, 1, -INFINITY};
    static const double want[] = {3 / 4.0, 3 / 5.718281828459045, 1};
    for (int64_t h = 0; h < 3; h++)
        put(&m, FA_SINKS, h, 0, 0, 0, (double)z[h]);
    for (int64_t j = 0; j < 3; j++)
        put(&m, FA_V, 0, j, 0, 0, 1);
    for (int64_t h = 0; h < 3; h++)
        for (int64_t i = 0; i < 2; i++)
            expect_near(*compute(&m, 0, i, h), want[h]);
    unmake(&m);
}
END_TEST

START_TEST(a_sink_is_neither_scaled_nor_capped_nor_masked)
{
    /* One key of score 100 * 0 and mask -3: e^-3 / (e^-3 + e^2) = 1 / (1 + e^5) */
    struct et_flash_attn p = plain;
    p.sinks = 1;
    p.scale = 100;
    p.softcap = 0.5;
    p.mask = ET_MASK_DATA;
    struct made m;
    make(&m, p, all_f32, packed);
    put(&m, FA_SINKS, 0, 0, 0, 0, 2);
    put(&m, FA_MASK, 0, 0, 0, 0, -3);
    put(&m, FA_V, 0, 0, 0, 0, 1);
    expect_near(*compute(&m, 0, 0, 0), 1 / (1 + 148.4131591025766));
    unmake(&m);
}
END_TEST

START_TEST(extreme_sinks_leave_all_or_nothing_and_no_nan)
{
    static const float z[] = {-INFINITY, -3e38F, 3e38F, INFINITY};
    static const double want[] = {5, 5, 0, 0};
    struct et_flash_attn p = plain;
    p.q_heads = 4;
    p.kv_length = 2;
    p.sinks = 1;
    struct made m;
    make(&m, p, all_f32, packed);
    for (int64_t h = 0; h < 4; h++)
        put(&m, FA_SINKS, h, 0, 0, 0, (double)z[h]);
    put(&m, FA_V, 0, 0, 0, 0, 4);
    put(&m, FA_V, 0, 1, 0, 0, 6);
    for (int64_t h = 0; h < 4; h++) {
        ck_assert_double_eq(*compute(&m, 0, 0, h), want[h]);
        ck_assert(m.spread->variance >= 0 && isfinite(m.spread->variance) && m.spread->bias >= 0 &&
                  isfinite(m.spread->bias) && m.spread->common >= 0 && isfinite(m.spread->common) &&
                  m.spread->worst >= 0 && isfinite(m.spread->worst));
    }
    unmake(&m);
}
END_TEST

START_TEST(a_row_that_sees_no_key_is_zeros_without_tolerance)
{
    /* Query 0 of 2 with one key, bottom right, is at position -1. */
    for (int sinks = 0; sinks < 2; sinks++) {
        struct et_flash_attn p = plain;
        p.query_length = 2;
        p.causal = ET_CAUSAL_BOTTOM_RIGHT;
        p.sinks = sinks;
        struct made m;
        make(&m, p, all_f32, packed);
        put(&m, FA_V, 0, 0, 0, 0, 7);
        ck_assert_double_eq(*compute(&m, 0, 0, 0), 0);
        ck_assert(m.spread->worst == 0 && m.spread->variance == 0 && m.spread->bias == 0);
        ck_assert_double_eq(*compute(&m, 0, 1, 0), sinks ? 3.5 : 7);
        unmake(&m);
    }
}
END_TEST

START_TEST(a_row_whose_mask_hides_all_is_zeros)
{
    for (int sinks = 0; sinks < 2; sinks++) {
        struct et_flash_attn p = plain;
        p.kv_length = 3;
        p.sinks = sinks;
        p.mask = ET_MASK_DATA;
        struct made m;
        make(&m, p, half_kv, packed);
        for (int64_t j = 0; j < 3; j++) {
            put(&m, FA_MASK, 0, 0, 0, j, -INFINITY);
            put(&m, FA_V, 0, j, 0, 0, 7);
        }
        ck_assert_double_eq(*compute(&m, 0, 0, 0), 0);
        unmake(&m);
    }
}
END_TEST

START_TEST(no_key_gives_zeros)
{
    struct et_flash_attn p = plain;
    p.kv_length = 0;
    p.mask = ET_MASK_DATA;
    struct made m;
    make(&m, p, half_kv, packed);
    ck_assert_double_eq(*compute(&m, 0, 0, 0), 0);
    unmake(&m);
}
END_TEST

START_TEST(causal_is_aligned_at_the_end_it_names)
{
    /* 3 queries, 5 keys: bottom right puts query i at i + 2 */
    struct et_flash_attn p = plain;
    p.query_length = 3;
    p.kv_length = 5;
    struct made m;
    p.causal = ET_CAUSAL_BOTTOM_RIGHT;
    make_sighted(&m, p);
    ck_assert_str_eq(sight(&m, 0, 0, 0), "11100");
    ck_assert_str_eq(sight(&m, 0, 2, 0), "11111");
    unmake(&m);
    p.causal = ET_CAUSAL_TOP_LEFT;
    make_sighted(&m, p);
    ck_assert_str_eq(sight(&m, 0, 0, 0), "10000");
    ck_assert_str_eq(sight(&m, 0, 2, 0), "11100");
    unmake(&m);
    /* 5 queries, 3 keys: the first two bottom right see nothing */
    p.query_length = 5;
    p.kv_length = 3;
    p.causal = ET_CAUSAL_BOTTOM_RIGHT;
    make_sighted(&m, p);
    ck_assert_str_eq(sight(&m, 0, 1, 0), "000");
    ck_assert_str_eq(sight(&m, 0, 2, 0), "100");
    unmake(&m);
    p.causal = ET_CAUSAL_TOP_LEFT;
    make_sighted(&m, p);
    ck_assert_str_eq(sight(&m, 0, 0, 0), "100");
    ck_assert_str_eq(sight(&m, 0, 4, 0), "111");
    unmake(&m);
}
END_TEST

START_TEST(a_window_of_w_sees_w_keys_and_hides_no_future)
{
    struct et_flash_attn p = plain;
    p.query_length = 6;
    p.kv_length = 6;
    p.window = 4;
    struct made m;
    p.causal = ET_CAUSAL_BOTTOM_RIGHT; /* transformers#39408: W = 4, Lq = 6 */
    make_sighted(&m, p);
    ck_assert_str_eq(sight(&m, 0, 3, 0), "111100");
    ck_assert_str_eq(sight(&m, 0, 4, 0), "011110");
    ck_assert_str_eq(sight(&m, 0, 5, 0), "001111");
    unmake(&m);
    p.causal = ET_CAUSAL_NONE;
    make_sighted(&m, p);
    ck_assert_str_eq(sight(&m, 0, 0, 0), "111111");
    ck_assert_str_eq(sight(&m, 0, 4, 0), "011111");
    unmake(&m);
    p.window_right = 1;
    make_sighted(&m, p);
    ck_assert_str_eq(sight(&m, 0, 0, 0), "110000");
    ck_assert_str_eq(sight(&m, 0, 4, 0), "011111");
    unmake(&m);
    p.window = 1;
    p.window_right = 0; /* causal by another name, and itself alone */
    make_sighted(&m, p);
    ck_assert_str_eq(sight(&m, 0, 4, 0), "000010");
    unmake(&m);
}
END_TEST

START_TEST(of_a_materialised_mask_only_the_mask_counts)
{
    struct et_flash_attn p = plain;
    p.kv_length = 4;
    p.query_length = 2;
    p.causal = ET_CAUSAL_BOTTOM_RIGHT;
    p.window = 1;
    p.mask = ET_MASK_MATERIALISED;
    struct made m;
    make_sighted(&m, p);
    put(&m, FA_MASK, 0, 0, 0, 1, -INFINITY);
    ck_assert_str_eq(sight(&m, 0, 0, 0), "1011");
    ck_assert_str_eq(sight(&m, 0, 1, 0), "1111");
    unmake(&m);
    p.mask = ET_MASK_DATA; /* and beside the flags otherwise */
    p.window = 0;
    make_sighted(&m, p);
    put(&m, FA_MASK, 0, 0, 0, 1, -INFINITY);
    ck_assert_str_eq(sight(&m, 0, 0, 0), "1010");
    unmake(&m);
}
END_TEST

START_TEST(softcap_comes_before_the_mask)
{
    /* flashinfer#350: a score of -40 capped at 10, 127 keys masked, must not leak. */
    struct et_flash_attn p = plain;
    p.kv_length = 128;
    p.softcap = 10;
    p.scale = 1;
    p.mask = ET_MASK_DATA;
    struct made m;
    make(&m, p, half_kv, packed);
    put(&m, FA_Q, 0, 0, 0, 0, 1);
    for (int64_t j = 0; j < 128; j++) {
        put(&m, FA_K, 0, j, 0, 0, j == 5 ? -40 : 40);
        put(&m, FA_V, 0, j, 0, 0, j == 5 ? 3 : 100);
        put(&m, FA_MASK, 0, 0, 0, j, j == 5 ? 0 : -INFINITY);
    }
    ck_assert_double_eq(*compute(&m, 0, 0, 0), 3);
    unmake(&m);

    /* Scores 40 and 0: 10 tanh 4 = 9.993292997390670, and 0; the first has a mask of -10: e^-0.00670700260933
     * to 1. */
    p.kv_length = 2;
    make(&m, p, all_f32, packed);
    put(&m, FA_Q, 0, 0, 0, 0, 1);
    put(&m, FA_K, 0, 0, 0, 0, 40);
    put(&m, FA_MASK, 0, 0, 0, 0, -10);
    put(&m, FA_V, 0, 0, 0, 0, 1);
    const double weight = exp(-0.00670700260933);
    ck_assert_double_eq_tol(*compute(&m, 0, 0, 0), weight / (1 + weight), 1e-13);
    unmake(&m);
}
END_TEST

/* Two keys of score 0 with a mask of 0 and -1, V 0 and 1: 1 / (1 + e^slope). */
static void expect_slope(int64_t heads, int64_t h, double slope)
{
    struct et_flash_attn p = plain;
    p.q_heads = heads;
    p.kv_length = 2;
    p.mask = ET_MASK_DATA;
    p.max_bias = 8;
    struct made m;
    make(&m, p, all_f32, packed);
    put(&m, FA_MASK, 0, 0, 0, 1, -1);
    put(&m, FA_V, 0, 1, 0, 0, 1);
    expect_near(*compute(&m, 0, 0, h), 1 / (1 + exp(slope)));
    unmake(&m);
}

START_TEST(alibi_slopes_of_any_number_of_heads)
{
    /* n2 = 2: 2^-4 each step; the third is 2^(-8 / 4) */
    expect_slope(3, 0, 0x1p-4);
    expect_slope(3, 1, 0x1p-8);
    expect_slope(3, 2, 0x1p-2);
    /* n2 = 4: 2^-2 each; then 2^-1 and 2^-3 */
    expect_slope(6, 3, 0x1p-8);
    expect_slope(6, 4, 0x1p-1);
    expect_slope(6, 5, 0x1p-3);
    /* n2 = 8: 2^-1 each; then 2^-0.5, 2^-1.5... */
    expect_slope(12, 0, 0x1p-1);
    expect_slope(12, 7, 0x1p-8);
    expect_slope(12, 8, exp2(-0.5));
    expect_slope(12, 11, exp2(-3.5));
    /* n2 = 32: 2^-0.25 each; then 2^-0.125... 2^-3.875 */
    expect_slope(48, 31, 0x1p-8);
    expect_slope(48, 32, exp2(-0.125));
    expect_slope(48, 47, exp2(-3.875));
    expect_slope(1, 0, 0x1p-8);
}
END_TEST

START_TEST(a_mask_is_broadcast_by_remainder)
{
    struct et_flash_attn p = plain;
    p.batch = p.kv_batch = 4;
    p.q_heads = 6;
    p.kv_heads = 2;
    p.kv_length = 6;
    p.mask = ET_MASK_DATA;
    p.mask_batches = 2;
    p.mask_heads = 3;
    struct made m;
    make_sighted(&m, p);
    for (int64_t b = 0; b < 2; b++)
        for (int64_t h = 0; h < 3; h++)
            put(&m, FA_MASK, b, h, 0, b * 3 + h, -INFINITY);
    ck_assert_str_eq(sight(&m, 0, 0, 0), "011111");
    ck_assert_str_eq(sight(&m, 2, 0, 4), "101111");
    ck_assert_str_eq(sight(&m, 3, 0, 5), "111110");
    ck_assert_str_eq(sight(&m, 1, 0, 3), "111011");
    unmake(&m);
}
END_TEST

START_TEST(heads_and_sequences_share_keys_in_consecutive_groups)
{
    struct et_flash_attn p = plain;
    p.batch = 4;
    p.kv_batch = 2;
    p.q_heads = 6;
    p.kv_heads = 2;
    struct made m;
    make(&m, p, all_f32, packed);
    for (int64_t b = 0; b < 2; b++)
        for (int64_t h = 0; h < 2; h++)
            put(&m, FA_V, b, 0, h, 0, (double)(10 * b + h));
    ck_assert_double_eq(*compute(&m, 0, 0, 2), 0);
    ck_assert_double_eq(*compute(&m, 1, 0, 3), 1);
    ck_assert_double_eq(*compute(&m, 2, 0, 0), 10);
    ck_assert_double_eq(*compute(&m, 3, 0, 5), 11);
    unmake(&m);
}
END_TEST

START_TEST(v_may_be_the_first_elements_of_each_row_of_k)
{
    struct et_flash_attn p = plain;
    p.head_dim = 6;
    p.v_head_dim = 4;
    p.kv_length = 5;
    p.kv_heads = p.q_heads = 2;
    struct made apart, view;
    make(&apart, p, half_kv, packed);
    scatter(&apart, 3);
    make(&view, p, half_kv, packed);
    scatter(&view, 3);
    free(view.problem.tensor[FA_V].data);
    view.problem.tensor[FA_V] = view.problem.tensor[FA_K];
    view.problem.tensor[FA_V].size[3] = 4;
    for (int64_t j = 0; j < 5; j++)
        for (int64_t h = 0; h < 2; h++)
            for (int64_t d = 0; d < 4; d++)
                put(&apart, FA_V, 0, j, h, d, (double)at(&apart, FA_K, 0, j, h, d));
    for (int64_t h = 0; h < 2; h++)
        ck_assert_mem_eq(compute(&apart, 0, 0, h), compute(&view, 0, 0, h), 4 * sizeof(double));
    view.problem.tensor[FA_V].data = NULL;
    unmake(&view);
    unmake(&apart);
}
END_TEST

START_TEST(what_is_no_attention_is_refused_by_name)
{
    static const struct {
        struct et_flash_attn p;
        const char *sentence;
    } wrong[] = {
        {{1, 1, 6, 4, 8, 8, 1, 1, 0, 0, -1, 0, 0, 1, 1, 0, 0, 0}, "kv_heads is 4, must divide q_heads = 6"},
        {{4, 3, 1, 1, 8, 8, 1, 1, 0, 0, -1, 0, 0, 1, 1, 0, 0, 0}, "kv_batch is 3, must divide batch = 4"},
        {{1, 1, 6, 2, 8, 8, 1, 1, 0, 0, -1, 0, 1, 1, 4, 0, 0, 0}, "mask_heads is 4, must divide q_heads = 6"},
        {{4, 4, 6, 2, 8, 8, 1, 1, 0, 0, -1, 0, 2, 3, 1, 0, 0, 0}, "mask_batches is 3, must divide batch = 4"},
        {{1, 1, 1, 1, 8, 8, 1, 1, 0, 0, -1, 0, 0, 1, 1, 0, 0, 8}, "max_bias is 8, must be 0 without a mask"},
        {{1, 1, 1, 1, 1025, 8, 1, 1, 0, 0, -1, 0, 0, 1, 1, 0, 0, 0}, "head_dim is 1025"},
        {{1, 1, 1, 1, 8, 8, 0, 1, 0, 0, -1, 0, 0, 1, 1, 0, 0, 0}, "query_length is 0"},
        {{1, 1, 1, 1, 8, 8, 1, 1, 0, 0, -2, 0, 0, 1, 1, 0, 0, 0}, "window_right is -2"},
        {{1, 1, 1, 1, 8, 8, 1, 1, 0, 0, -1, 0, 0, 1, 1, -1, 0, 0}, "scale is -1"},
        {{1, 1, 1, 1, 8, 8, 1, 1, 0, 0, -1, 0, 0, 1, 1, 0, -1, 0}, "softcap is -1"},
        {{1, 1, 1, 1, 8, 8, 1, 1, 0, 0, -1, 0, 0, 1, 1, 1e-60, 0, 0},
         "scale is 1e-60, must be 0 or at least 2^-126"},
        {{1, 1, 1, 1, 8, 8, 1, 1, 0, 0, -1, 0, 0, 1, 1, 0, 0x1p-127, 0},
         "softcap is 5.87747e-39, must be 0 or at least 2^-126"},
        {{1, 1, 1, 1, 8, 8, 1, 1, 0, 0, -1, 0, 1, 1, 1, 0, 0, 1e-40},
         "max_bias is 1e-40, must be 0 or at least 2^-126"},
        {{1, 1, 1, 1, 8, 8, 1, 65521, 0, 0, -1, 0, 2, 1, 1, 0, 0, 8},
         "kv_length is 65521, must be at most 65520 for distances in a mask of f16"},
        {{1, 1, 1, 1, 8, 8, 65521, 5, 0, 0, -1, 0, 2, 1, 1, 0, 0, 8},
         "query_length is 65521, must be at most 65520 for distances in a mask of f16"},
    };
    const struct et_operator *op = et_operator_named("flash_attn");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct et_tensor tensor[ET_TENSORS] = {[FA_MASK] = {.dtype = ET_F16}};
        struct et_error error = {""};
        ck_assert_int_eq(op->shape(&wrong[i].p, tensor, &error), ET_REFUSED);
        ck_assert_msg(strncmp(error.text, wrong[i].sentence, strlen(wrong[i].sentence)) == 0, "%s",
                      error.text);
    }
}
END_TEST

/* ---- A second implementation ---- */

static bool sees(const struct made *m, int64_t i, int64_t j, long double mask)
{
    const struct et_flash_attn *p = &m->params;
    const int64_t position = p->causal == ET_CAUSAL_TOP_LEFT ? i : i + p->kv_length - p->query_length;
    if (p->mask != ET_MASK_NONE && isinf(mask))
        return false;
    if (p->mask == ET_MASK_MATERIALISED)
        return true;
    return !(p->causal != ET_CAUSAL_NONE && j > position) && !(p->window > 0 && j <= position - p->window) &&
           !(p->window_right >= 0 && j > position + p->window_right);
}

static long double slope_by_powers(const struct et_flash_attn *p, int64_t h)
{
    const long double n2 = powl(2, floorl(log2l((long double)p->q_heads)));
    const long double bias = (long double)(float)p->max_bias;
    if (bias == 0)
        return 1;
    return (long double)h < n2 ? powl(powl(2, -bias / n2), (long double)(h + 1))
                               : powl(powl(2, -bias / (2 * n2)), 2 * ((long double)h - n2) + 1);
}

/* out[d] of one row, and its scale: sum of p |v|. */
static long double attend(const struct made *m, const int64_t row[3], int64_t d, long double *size)
{
    const struct et_flash_attn *p = &m->params;
    const int64_t b = row[0], i = row[1], h = row[2];
    const int64_t bk = b / (p->batch / p->kv_batch), hk = h / (p->q_heads / p->kv_heads);
    long double score[64], most = p->sinks ? at(m, FA_SINKS, h, 0, 0, 0) : -(long double)INFINITY;
    bool seen[64];
    for (int64_t j = 0; j < p->kv_length; j++) {
        const long double mask =
            p->mask == ET_MASK_NONE ? 0 : at(m, FA_MASK, b % p->mask_batches, h % p->mask_heads, i, j);
        seen[j] = sees(m, i, j, mask);
        long double dot = 0;
        for (int64_t c = 0; c < p->head_dim; c++)
            dot += at(m, FA_Q, b, i, h, c) * at(m, FA_K, bk, j, hk, c);
        const long double scale =
            (long double)(float)(p->scale > 0 ? p->scale : 1 / sqrt((double)p->head_dim));
        score[j] = dot * scale;
        if (p->softcap > 0)
            score[j] = (long double)(float)p->softcap * tanhl(score[j] / (long double)(float)p->softcap);
        if (p->mask != ET_MASK_NONE)
            score[j] += slope_by_powers(p, h) * mask;
        if (seen[j] && score[j] > most)
            most = score[j];
    }
    long double sum = 0, total = 0;
    *size = 0;
    if (most == (long double)INFINITY)
        return 0;
    for (int64_t j = 0; j < p->kv_length; j++)
        if (seen[j]) {
            const long double e = expl(score[j] - most), v = at(m, FA_V, bk, j, hk, d);
            sum += e * v;
            *size += e * fabsl(v);
            total += e;
        }
    if (total == 0 && *size == 0)
        return 0;
    if (p->sinks)
        total += expl(at(m, FA_SINKS, h, 0, 0, 0) - most);
    *size /= total;
    return sum / total;
}

static void expect_same(struct made *m, int config)
{
    const struct et_flash_attn *p = &m->params;
    for (int64_t unit = 0; unit < m->problem.op->units(&m->problem); unit++) {
        const int64_t row[] = {unit / p->q_heads / p->query_length, unit / p->q_heads % p->query_length,
                               unit % p->q_heads};
        const double *got = compute(m, row[0], row[1], row[2]);
        for (int64_t d = 0; d < p->v_head_dim; d++) {
            long double size;
            const long double want = attend(m, row, d, &size);
            if (!(fabsl((long double)got[d] - want) <= 0x1p-40L * size))
                ck_abort_msg("configuration %d, batch %lld, query %lld, head %lld, channel %lld: %.17g, want "
                             "%.17Lg",
                             config, (long long)row[0], (long long)row[1], (long long)row[2], (long long)d,
                             got[d], want);
            const struct et_spread *s = &m->spread[d];
            if (!(s->variance >= 0 && s->bias >= 0 && s->common >= 0 && s->likely >= 0 && s->worst >= 0))
                ck_abort_msg("configuration %d: a spread is no number", config);
        }
    }
}

START_TEST(the_oracle_is_what_plain_loops_compute)
{
    for (int config = 0; config < 400; config++) {
        struct made m;
        make_random(&m, (uint64_t)config);
        expect_same(&m, config);
        unmake(&m);
    }
}
END_TEST

/* ---- Its tolerance ---- */

/* One row as variants compute it, in steps of 32 keys: docs/operators/flash_attn.md. */
static void run_online(const struct made *m, const int64_t row[3], float *acc)
{
    const struct et_flash_attn *p = &m->params;
    const int64_t b = row[0], i = row[1], h = row[2], n = p->v_head_dim;
    const int64_t bk = b / (p->batch / p->kv_batch), hk = h / (p->q_heads / p->kv_heads);
    const float scale = (float)(p->scale > 0 ? p->scale : 1 / sqrt((double)p->head_dim));
    const float cap = (float)p->softcap;
    const float slope = et_alibi_slope((float)p->max_bias, (et_u32)h, (et_u32)p->q_heads);
    float most = -INFINITY, sum = 0;
    for (int64_t d = 0; d < n; d++)
        acc[d] = 0;
    for (int64_t first = 0; first < p->kv_length; first += 32) {
        float score[32], to = most;
        bool seen[32] = {false}, any = false;
        for (int64_t j = first; j < first + 32 && j < p->kv_length; j++) {
            const float mask = p->mask == ET_MASK_NONE
                                   ? 0
                                   : (float)at(m, FA_MASK, b % p->mask_batches, h % p->mask_heads, i, j);
            if (!sees(m, i, j, (long double)mask))
                continue;
            float s = 0;
            for (int64_t c = 0; c < p->head_dim; c++)
                s = fmaf((float)at(m, FA_Q, b, i, h, c), (float)at(m, FA_K, bk, j, hk, c), s);
            s *= scale;
            if (cap > 0)
                s = cap * et_tanh(et_div(s, cap));
            if (p->mask != ET_MASK_NONE)
                s = fmaf(slope, mask, s);
            score[j - first] = s;
            any = seen[j - first] = true;
            to = et_larger(to, s);
        }
        if (!any)
            continue;
        const float factor = et_rescale(most, to);
        sum = et_rescaled(sum, factor);
        for (int64_t d = 0; d < n; d++)
            acc[d] = et_rescaled(acc[d], factor);
        most = to;
        for (int64_t j = first; j < first + 32 && j < p->kv_length; j++) {
            if (!seen[j - first])
                continue;
            const float e = et_exp(score[j - first] - most);
            sum += e;
            for (int64_t d = 0; d < n; d++)
                acc[d] = fmaf(e, (float)at(m, FA_V, bk, j, hk, d), acc[d]);
        }
    }
    if (most == -INFINITY)
        return;
    const float factor = p->sinks ? et_add_sink((float)at(m, FA_SINKS, h, 0, 0, 0), &most, &sum) : 1;
    for (int64_t d = 0; d < n; d++)
        acc[d] = et_div(et_rescaled(acc[d], factor), sum);
}

/* The largest error of a problem's rows, in units of `worst` and of `likely` with bias, and what the judge
 * adds to either. */
static void measure(struct made *m, double *worst, double *likely)
{
    const struct et_flash_attn *p = &m->params;
    float out[16];
    for (int64_t unit = 0; unit < m->problem.op->units(&m->problem); unit++) {
        const int64_t row[] = {unit / p->q_heads / p->query_length, unit / p->q_heads % p->query_length,
                               unit % p->q_heads};
        const double *want = compute(m, row[0], row[1], row[2]);
        run_online(m, row, out);
        for (int64_t d = 0; d < p->v_head_dim; d++) {
            const double error = fabs((double)out[d] - want[d]), last = 0x3p-24 * fabs(want[d]);
            const double a = m->spread[d].worst + last, b = m->spread[d].likely + m->spread[d].bias + last;
            if (isnan(error))
                ck_abort_msg("NaN in unit %lld", (long long)unit);
            *worst = fmax(*worst, error / (a + et_half_ulp(ET_F32, fabs(want[d]) + a)));
            *likely = fmax(*likely, error / (b + et_half_ulp(ET_F32, fabs(want[d]) + b)));
        }
    }
}

START_TEST(worst_and_likely_bound_the_claimed_arithmetic)
{
    double worst = 0, likely = 0;
    for (int config = 0; config < 400; config++) {
        struct made m;
        make_random(&m, (uint64_t)config);
        m.arith.depth_qk = (int32_t)m.params.head_dim;
        m.arith.depth_sum = (int32_t)m.params.kv_length;
        m.arith.tiles = (int32_t)((m.params.kv_length + 31) / 32);
        measure(&m, &worst, &likely);
        unmake(&m);
    }
    printf("400 problems: %.3f of worst, %.3f of likely\n", worst, likely);
    ck_assert(worst <= 1 && likely <= 1);
}
END_TEST

START_TEST(one_key_is_copied_without_an_error_of_its_own)
{
    /* e^0 = 1, 1 / 1 and 1 * v are exact, whatever weights are stored as. */
    static const enum et_dtype weights[] = {ET_F32, ET_F16, ET_BF16, ET_F8E4M3FN};
    struct et_flash_attn p = plain;
    p.v_head_dim = 5;
    struct made m;
    make(&m, p, all_f32, packed);
    scatter(&m, 1);
    m.arith.depth_sum = 1;
    for (int k = 0; k < 4; k++) {
        m.arith.weight = weights[k];
        const double *out = compute(&m, 0, 0, 0);
        for (int64_t d = 0; d < 5; d++) {
            ck_assert_double_eq(out[d], (double)at(&m, FA_V, 0, 0, 0, d));
            ck_assert(m.spread[d].variance == 0 && m.spread[d].bias == 0x1p-126 && m.spread[d].common == 0);
            ck_assert(m.spread[d].worst >= 0 && isfinite(m.spread[d].worst));
        }
    }
    unmake(&m);
}
END_TEST

START_TEST(scores_at_the_ends_of_their_range_leave_no_nan)
{
    static const double sizes[] = {0, 1e-30, 1e4, 1e18, 3e38};
    static const float sinks[] = {-INFINITY, -3e38F, 0, 3e38F, INFINITY};
    for (int a = 0; a < 5 * 5 * 2 * 2; a++) {
        struct et_flash_attn p = plain;
        p.kv_length = 3;
        p.head_dim = 2;
        p.sinks = 1;
        p.softcap = a / 25 % 2 * 30;
        p.mask = a / 50 ? ET_MASK_DATA : ET_MASK_NONE;
        struct made m;
        make(&m, p, all_f32, packed);
        put(&m, FA_Q, 0, 0, 0, 0, sizes[a % 5]);
        put(&m, FA_SINKS, 0, 0, 0, 0, (double)sinks[a / 5 % 5]);
        for (int64_t j = 0; j < 3; j++) {
            put(&m, FA_K, 0, j, 0, 0, (double)(j - 1) * sizes[a % 5]);
            put(&m, FA_V, 0, j, 0, 0, (double)(j + 1));
            if (p.mask)
                put(&m, FA_MASK, 0, 0, 0, j, j == 1 ? -3e38 : j == 2 ? -INFINITY : 0);
        }
        m.arith = (struct et_arith){.query = ET_F16, .weight = ET_F8E4M3FN, .depth_qk = 2, .depth_sum = 3};
        const double out = *compute(&m, 0, 0, 0);
        const struct et_spread *s = m.spread;
        ck_assert(out >= 0 && out <= 3 && s->variance >= 0 && s->bias >= 0 && s->common >= 0 &&
                  s->likely >= 0 && s->worst >= 0);
        unmake(&m);
    }
}
END_TEST

/* ---- Lies, edges, cost ---- */

static double lie_of(struct made *m, const char *name, int64_t i)
{
    const struct et_operator *op = m->problem.op;
    int which = 0;
    while (strcmp(op->lies[which].name, name) != 0)
        which++;
    double delta[16];
    return op->lie(&m->problem, i, which, m->work, delta) ? delta[0] : (double)NAN;
}

START_TEST(lies_are_what_they_say)
{
    /* Four keys, query 2 of 4 sees the first three, all scores 0, V 1 2 4 8 of head 0 and 3 of head 1; a sink
     * of logit 0: (1 + 2 + 4) / 4 */
    struct et_flash_attn p = plain;
    p.q_heads = p.kv_heads = 2;
    p.query_length = p.kv_length = 4;
    p.causal = ET_CAUSAL_BOTTOM_RIGHT;
    p.sinks = 1;
    struct made m;
    make(&m, p, all_f32, packed);
    for (int64_t j = 0; j < 4; j++) {
        put(&m, FA_V, 0, j, 0, 0, (double)(1 << j));
        put(&m, FA_V, 0, j, 1, 0, 3);
    }
    const int64_t row = 2 * 2;
    ck_assert_double_eq(*compute(&m, 0, 2, 0), 7.0 / 4);
    expect_near(lie_of(&m, "first_key", row), 6.0 / 3 - 7.0 / 4);
    expect_near(lie_of(&m, "last_key", row), 3.0 / 3 - 7.0 / 4);
    expect_near(lie_of(&m, "extra_key", row), 15.0 / 5 - 7.0 / 4);
    expect_near(lie_of(&m, "no_sink", row), 7.0 / 3 - 7.0 / 4);
    expect_near(lie_of(&m, "kv_head", row), 9.0 / 4 - 7.0 / 4);
    ck_assert_double_eq(lie_of(&m, "score_scale", row), 0);
    ck_assert(isnan(lie_of(&m, "extra_key", 3 * 2)));
    put(&m, FA_SINKS, 0, 0, 0, 0, -INFINITY);
    ck_assert(isnan(lie_of(&m, "no_sink", row)));
    ck_assert(isnan(lie_of(&m, "score_scale", 0)));
    expect_near(lie_of(&m, "first_key", 0), -1);
    /* scores 1 and 0: e / (e + 1) at 1 %: e^1.01 / (e^1.01 + 1) */
    put(&m, FA_Q, 0, 1, 0, 0, 1);
    put(&m, FA_K, 0, 1, 0, 0, 1);
    ck_assert_double_eq_tol(lie_of(&m, "score_scale", 1 * 2), 1 / (1 + exp(-1.01)) - 1 / (1 + exp(-1)), 1e-8);
    unmake(&m);
}
END_TEST

START_TEST(edges_are_increasing_and_within_the_rows)
{
    for (uint64_t config = 0; config < 200; config++) {
        struct made m;
        make_random(&m, config);
        int64_t edge[64];
        const int64_t n = m.problem.op->edges(&m.problem, 64, edge);
        ck_assert(n >= 1 && n <= 24);
        for (int64_t i = 0; i < n; i++)
            ck_assert(edge[i] >= 0 && edge[i] < m.problem.op->units(&m.problem) &&
                      (i == 0 || edge[i] > edge[i - 1]));
        ck_assert(edge[0] == 0 && edge[n - 1] == m.problem.op->units(&m.problem) - 1);
        ck_assert_int_eq(m.problem.op->edges(&m.problem, 1, edge), 1);
        unmake(&m);
    }
}
END_TEST

START_TEST(edges_have_both_sides_of_tiles_and_the_first_row_cut)
{
    struct et_flash_attn p = plain;
    p.query_length = p.kv_length = 40;
    p.window = 20;
    struct made m;
    make(&m, p, all_f32, packed);
    static const int64_t want[] = {0, 15, 16, 20, 31, 32, 39};
    int64_t edge[24];
    ck_assert_int_eq(m.problem.op->edges(&m.problem, 24, edge), 7);
    ck_assert_mem_eq(edge, want, sizeof want);
    unmake(&m);
}
END_TEST

START_TEST(cost_counts_the_keys_that_some_row_sees)
{
    /* 2 queries at 98 and 99 of 100 keys, window 10: keys 89..98 and 90..99, 20 pairs, 11 keys */
    struct et_flash_attn p = plain;
    p.q_heads = 4;
    p.kv_heads = 2;
    p.head_dim = 8;
    p.v_head_dim = 16;
    p.query_length = 2;
    p.kv_length = 100;
    p.window = 10;
    p.causal = ET_CAUSAL_BOTTOM_RIGHT;
    p.sinks = 1;
    struct made m;
    make(&m, p, half_kv, packed);
    struct et_cost cost;
    m.problem.op->cost(&m.problem, &cost);
    ck_assert_double_eq(cost.flops, 2 * 20 * 4 * (8 + 16));
    ck_assert_double_eq(cost.bytes[FA_Q], 2 * 4 * 8 * 4);
    ck_assert_double_eq(cost.bytes[FA_K], 11 * 2 * 8 * 2);
    ck_assert_double_eq(cost.bytes[FA_V], 11 * 2 * 16 * 2);
    ck_assert_double_eq(cost.bytes[FA_MASK], 0);
    ck_assert_double_eq(cost.bytes[FA_SINKS], 4 * 4);
    ck_assert_double_eq(cost.bytes[FA_OUT], 2 * 4 * 16 * 4);
    unmake(&m);
}
END_TEST

/* ---- softmax.h ---- */

START_TEST(alibi_slope_is_within_3_ulp)
{
    static const double biases[] = {1, 2, 4, 8, 16, 0.3};
    double most = 0;
    for (int k = 0; k < 6; k++)
        for (uint32_t n = 1; n <= 256; n++)
            for (uint32_t h = 0; h < n; h++) {
                const float bias = (float)biases[k];
                uint32_t n2 = 1;
                while (n2 * 2 <= n)
                    n2 *= 2;
                const double e =
                    h < n2 ? (double)bias * (h + 1) / n2 : (double)bias * (2 * (h - n2) + 1) / (2 * n2);
                const double want = exp2(-e), ulp = 2 * et_half_ulp(ET_F32, want);
                most = fmax(most, fabs((double)et_alibi_slope(bias, h, n) - want) / ulp);
            }
    printf("slopes: %.3f ulp\n", most);
    ck_assert(most <= 3);
}
END_TEST

START_TEST(a_sink_of_minus_infinity_changes_no_bit_and_of_infinity_leaves_zeros)
{
    static const float scores[] = {-3e38F, -1e4F, -1, 0, 0.3F, 88, 3e38F};
    for (int i = 0; i < 7; i++) {
        float m = scores[i], l = 3.7F;
        ck_assert_uint_eq(et_as_u32(et_add_sink(-INFINITY, &m, &l)), et_as_u32(1.0F));
        ck_assert(m == scores[i] && l == 3.7F);
        ck_assert_uint_eq(et_as_u32(et_add_sink(INFINITY, &m, &l)), 0);
        ck_assert(l == 1 && m == INFINITY);
        ck_assert_uint_eq(et_as_u32(et_div(et_rescaled(-5, 0), l)), 0);
    }
}
END_TEST

START_TEST(rescaling_and_merging_never_make_nan_of_finite_scores)
{
    static const float z[] = {-INFINITY, -3.4e38F, -1e30F, -104, -1, 0, 1e-40F, 1, 104, 1e30F, 3.4e38F};
    for (int a = 0; a < 11; a++)
        for (int b = 1; b < 11; b++) {
            if (a <= b) {
                const float factor = et_rescale(z[a], z[b]);
                ck_assert(factor >= 0 && factor <= 1);
                ck_assert(factor > 0 || et_as_u32(et_rescaled(-1, factor)) == 0);
            }
            float m = z[b], l = 1;
            const float factor = et_add_sink(z[a], &m, &l);
            ck_assert(factor >= 0 && factor <= 1 && l >= 1 && l <= 2 && m == et_larger(z[a], z[b]));
        }
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("flash_attn");
    TCase *tests = tcase_create("flash_attn");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, a_sink_takes_its_share_of_its_own_head);
    tcase_add_test(tests, a_sink_is_neither_scaled_nor_capped_nor_masked);
    tcase_add_test(tests, extreme_sinks_leave_all_or_nothing_and_no_nan);
    tcase_add_test(tests, a_row_that_sees_no_key_is_zeros_without_tolerance);
    tcase_add_test(tests, a_row_whose_mask_hides_all_is_zeros);
    tcase_add_test(tests, no_key_gives_zeros);
    tcase_add_test(tests, causal_is_aligned_at_the_end_it_names);
    tcase_add_test(tests, a_window_of_w_sees_w_keys_and_hides_no_future);
    tcase_add_test(tests, of_a_materialised_mask_only_the_mask_counts);
    tcase_add_test(tests, softcap_comes_before_the_mask);
    tcase_add_test(tests, alibi_slopes_of_any_number_of_heads);
    tcase_add_test(tests, a_mask_is_broadcast_by_remainder);
    tcase_add_test(tests, heads_and_sequences_share_keys_in_consecutive_groups);
    tcase_add_test(tests, v_may_be_the_first_elements_of_each_row_of_k);
    tcase_add_test(tests, what_is_no_attention_is_refused_by_name);
    tcase_add_test(tests, the_oracle_is_what_plain_loops_compute);
    tcase_add_test(tests, worst_and_likely_bound_the_claimed_arithmetic);
    tcase_add_test(tests, one_key_is_copied_without_an_error_of_its_own);
    tcase_add_test(tests, scores_at_the_ends_of_their_range_leave_no_nan);
    tcase_add_test(tests, lies_are_what_they_say);
    tcase_add_test(tests, edges_are_increasing_and_within_the_rows);
    tcase_add_test(tests, edges_have_both_sides_of_tiles_and_the_first_row_cut);
    tcase_add_test(tests, cost_counts_the_keys_that_some_row_sees);
    tcase_add_test(tests, alibi_slope_is_within_3_ulp);
    tcase_add_test(tests, a_sink_of_minus_infinity_changes_no_bit_and_of_infinity_leaves_zeros);
    tcase_add_test(tests, rescaling_and_merging_never_make_nan_of_finite_scores);
    suite_add_tcase(suite, tests);
    return suite;
}
