/*
 * The judge's false alarms and its teeth, on data large enough to have statistics: honest kernels that claim
 * no order raise no check, and a kernel that loses one position of a long context is caught although its NMSE
 * passes.
 */
#include <math.h>
#include <stdio.h>

#include "judged.h"
#include "suite.h"
#include "../ref/rng.h"

enum sum { SERIAL, PAIRWISE, PARTIALS, SUMS };

static const char *const sum_names[SUMS] = {"serial", "pairwise", "32 partials"};

/* A kernel: the order of its additions, whether it fuses, and a position that one of its heads forgets. */
struct kernel {
    enum sum sum;
    bool fused;
    int64_t lost_head, lost_position; /* -1: none */
};

/* One term onto a running sum, in f32. */
static float step(const struct kernel *k, float w, float v, float acc)
{
    return k->fused ? fmaf(w, v, acc) : acc + w * v;
}

/* A leaf has 8 terms at most; halves meet in one addition. */
static float pairwise(const struct kernel *k, const float *w, const float *v, int64_t n)
{
    if (n > 8)
        return pairwise(k, w, v, n / 2) + pairwise(k, w + n / 2, v + n / 2, n - n / 2);
    float acc = 0;
    for (int64_t i = 0; i < n; i++)
        acc = step(k, w[i], v[i], acc);
    return acc;
}

static float dot(const struct kernel *k, const float *w, const float *v, int64_t n)
{
    float acc[32] = {0};
    if (k->sum == PAIRWISE)
        return pairwise(k, w, v, n);
    for (int64_t i = 0; i < n; i++) {
        float *to = &acc[k->sum == PARTIALS ? i % 32 : 0];
        *to = step(k, w[i], v[i], *to);
    }
    for (int half = 16; half >= 1; half /= 2)
        for (int i = 0; i < half; i++)
            acc[i] += acc[i + half];
    return acc[0];
}

/* Roundings on the longest way from a term to the result. */
static int32_t depth_of(const struct kernel *k, int64_t n)
{
    const int64_t a_term = k->fused ? 1 : 2;
    int64_t chain = n, tree = 0;
    if (k->sum == PAIRWISE) {
        for (; chain > 8; tree++)
            chain -= chain / 2;
    } else {
        /* a lone running sum also meets the tree, as zeros */
        chain = k->sum == PARTIALS ? (n + 31) / 32 : n;
        tree = 5;
    }
    return (int32_t)(a_term * chain + tree);
}

static float *widened(const struct et_tensor *tensor)
{
    const int64_t n = et_tensor_count(tensor);
    float *values = malloc((size_t)n * sizeof *values + 1);
    ck_assert_ptr_nonnull(values);
    et_widen_n(tensor->dtype, tensor->data, n, values);
    return values;
}

static void compute(const struct kernel *k, struct judged *j)
{
    const struct et_gqa_av *p = &j->params;
    const int64_t lanes = j->problem->tensor[JUDGED_W].size[2];
    const int64_t rows = j->problem->tensor[JUDGED_W].size[1];
    float *w = widened(&j->problem->tensor[JUDGED_W]), *v = widened(&j->problem->tensor[JUDGED_V]);
    float *column = malloc((size_t)p->context * sizeof *column + 1);
    ck_assert_ptr_nonnull(column);
    for (int64_t h = 0; h < p->q_heads; h++)
        for (int64_t d = 0; d < p->head_dim; d++) {
            const int64_t kv = h * p->kv_heads / p->q_heads;
            for (int64_t c = 0; c < p->context; c++)
                column[c] = v[(c * p->kv_heads + kv) * p->head_dim + d];
            if (h == k->lost_head)
                column[k->lost_position] = 0;
            for (int64_t s = 0; s < p->query_length; s++)
                judged_put(j, (s * p->q_heads + h) * p->head_dim + d,
                           (double)dot(k, w + (h * rows + s) * lanes, column, p->context));
        }
    free(column);
    free(w);
    free(v);
}

/* The largest of each figure over many runs. */
struct extremes {
    double headroom, noise, mean, z, nmse;
};

static void gather(struct extremes *most, const struct et_judgement *judgement)
{
    const struct et_finding *f = judgement->check;
    most->headroom = fmax(most->headroom, judgement->headroom);
    most->noise = fmax(most->noise, f[ET_CHECK_NOISE].figure);
    most->mean = fmax(most->mean, judgement->noise_mean);
    most->z = fmax(most->z, f[ET_CHECK_GAIN].figure);
    most->nmse = fmax(most->nmse, f[ET_CHECK_NMSE].figure);
}

static void expect_no_alarm(const struct kernel *k, struct judged *j, struct extremes *most)
{
    compute(k, j);
    const enum et_verdict verdict = judged_verdict(j);
    for (int i = 0; i < ET_CHECKS; i++)
        ck_assert_msg(j->judgement.check[i].outcome != ET_BROKEN,
                      "%s, %s, context %lld, head_dim %lld, heads %lld/%lld, %s %s: %s: %s",
                      sum_names[k->sum], k->fused ? "fused" : "unfused", (long long)j->params.context,
                      (long long)j->params.head_dim, (long long)j->params.q_heads,
                      (long long)j->params.kv_heads, et_fill_name(j->fill),
                      et_format(j->problem->tensor[JUDGED_OUT].dtype)->name, et_check_name((enum et_check)i),
                      j->judgement.check[i].text);
    ck_assert_int_eq(verdict, ET_PASS);
    gather(most, &j->judgement);
}

/* Log-uniform over [1, most]: short and long are equally likely. */
static int64_t draw(const struct et_stream *stream, int64_t i, uint32_t block, int64_t most)
{
    const double x = (double)et_word(stream, (uint64_t)i, block) / 0x1p32;
    return (int64_t)exp(x * log((double)most + 1));
}

/* Heads are cut so that no geometry costs more than 2^20 multiplications. */
static struct et_gqa_av draw_geometry(const struct et_stream *stream, int64_t i)
{
    struct et_gqa_av p = {.query_length = draw(stream, i, 9, 3)};
    const int64_t group = draw(stream, i, 0, 16);
    p.kv_heads = draw(stream, i, 1, 8);
    p.head_dim = draw(stream, i, 2, 256);
    p.context = draw(stream, i, 3, 4096);
    const int64_t most = (1 << 20) / (group * p.query_length * p.context);
    while (p.kv_heads > 1 && p.kv_heads * p.head_dim > most)
        p.kv_heads--;
    while (p.head_dim > 1 && p.head_dim > most)
        p.head_dim = (p.head_dim + 1) / 2;
    p.q_heads = group * p.kv_heads;
    p.capacity = p.context;
    return p;
}

START_TEST(honest_orders_raise_no_check)
{
    static const enum et_dtype types[] = {ET_F32, ET_F16, ET_BF16};
    static const enum et_fill_kind fills[] = {ET_FILL_NORMAL, ET_FILL_UNIFORM, ET_FILL_OUTLIER};
    const struct et_stream stream = et_stream(1, "honest");
    struct extremes most = {0};
    for (int64_t i = 0; i < 200; i++) {
        const struct et_gqa_av p = draw_geometry(&stream, i);
        const enum et_dtype in = types[i % 3], out = types[i / 3 % 3];
        for (int sum = SERIAL; sum < SUMS; sum++) {
            const struct kernel k = {(enum sum)sum, et_word(&stream, (uint64_t)i, 4 + (uint32_t)sum) % 2 == 0,
                                     -1, -1};
            struct judged j;
            judged_open(&j, &p, in, out, fills[i / 9 % 3], (uint64_t)i, 0);
            j.claim.arith.depth_sum = depth_of(&k, p.context);
            judged_truth(&j, 0, 0, 1);
            expect_no_alarm(&k, &j, &most);
            judged_close(&j);
        }
    }
    printf(
        "200 geometries, 3 honest orders each: headroom %.3f, noise %.3f, mean %.3f, gain %.2f, nmse %.2g\n",
        most.headroom, most.noise, most.mean, most.z, most.nmse);
}
END_TEST

/*
 * A typical softmax weight of 4096 normal scores is 1/4096, and their squares add up to e/4096. One of them
 * lost by one head in 32 makes a whole-tensor NMSE of about 1 / (4096 * e * 32) = 2.8e-6, far below 5e-4.
 */
START_TEST(a_position_lost_by_one_head_is_caught_though_nmse_passes)
{
    static const enum et_dtype types[] = {ET_F32, ET_F16, ET_BF16};
    const struct et_gqa_av p = {
        .q_heads = 32, .kv_heads = 8, .head_dim = 64, .query_length = 1, .context = 4096, .capacity = 4096};
    const enum et_dtype type = types[_i];
    const struct kernel honest = {PARTIALS, true, -1, -1}, mutant = {PARTIALS, true, 5, 2047};
    struct extremes most = {0};
    struct judged j;
    judged_open(&j, &p, type, type, ET_FILL_NORMAL, 0, 0);
    j.claim.arith.depth_sum = depth_of(&honest, p.context);
    judged_truth(&j, 0, 0, 2);
    expect_no_alarm(&honest, &j, &most);
    compute(&mutant, &j);
    ck_assert_int_eq(judged_verdict(&j), ET_FAIL);
    const struct et_finding *f = j.judgement.check;
    ck_assert_int_eq(f[ET_CHECK_NMSE].outcome, ET_HELD);
    ck_assert_int_eq(f[ET_CHECK_BOUND].outcome, ET_BROKEN);
    ck_assert_ptr_nonnull(strstr(f[ET_CHECK_BOUND].text, "q_heads 5"));
    printf("%s, honest: nmse %.2g, headroom %.3f, noise %.3f, gain %.2f\n", et_format(type)->name, most.nmse,
           most.headroom, most.noise, most.z);
    printf("%s, one position of one head lost: nmse %.2g of %.2g (derived %.2g), headroom %.3g, noise %.3g "
           "of %.3g, "
           "gain %.3g of %.3g\n",
           et_format(type)->name, f[ET_CHECK_NMSE].figure, f[ET_CHECK_NMSE].limit, j.judgement.nmse_derived,
           f[ET_CHECK_BOUND].figure, f[ET_CHECK_NOISE].figure, f[ET_CHECK_NOISE].limit,
           f[ET_CHECK_GAIN].figure, f[ET_CHECK_GAIN].limit);
    judged_close(&j);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("honest");
    TCase *tests = tcase_create("honest");
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, honest_orders_raise_no_check);
    tcase_add_loop_test(tests, a_position_lost_by_one_head_is_caught_though_nmse_passes, 0, 3);
    suite_add_tcase(suite, tests);
    return suite;
}
