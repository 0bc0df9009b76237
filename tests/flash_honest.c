/*
 * False alarms of flash_attn's tolerance, and its teeth: honest kernels of 200 configurations raise no check,
 * in several tilings and orders, with weights and queries in all types; kernels with a known slip do.
 */
#include <stdio.h>

#include "../harness/judge.h"
#include "../ref/softmax.h"
#include "flash_made.h"
#include "suite.h"

#ifndef EVERY
#define EVERY 0 /* flash_honest_slow.c has 1: all 200, not the short ones of one seed */
#endif

enum { MOST_DIM = 128, MOST_PARTS = 32 };

enum bug { NO_BUG, LAST_KEY_DROPPED, SINK_IGNORED, SCALE_OFF, RESCALE_MISSED, PADDING_COUNTED, BUGS };
static const char *const bug_names[BUGS] = {"honest",     "last key dropped", "sink ignored",
                                            "scale +1 %", "a rescale missed", "15 padding keys counted"};

/* Keys j go to partial sums j % parts; a tile of 0 is all keys at once. The denominator adds up weights
 * before or after they are rounded. */
struct kernel {
    int64_t tile;
    int parts;
    bool exact_sum, prescaled;
    enum bug bug;
};

static const struct kernel honest[] = {{32, 1, false, false, NO_BUG}, {16, 4, true, false, NO_BUG},
                                       {64, 32, false, true, NO_BUG}, {256, 1, true, false, NO_BUG},
                                       {0, 32, true, true, NO_BUG},   {0, 1, false, false, NO_BUG}};
enum { KERNELS = sizeof honest / sizeof *honest };

/* What weights and queries are rounded to. */
static const enum et_dtype roundings[][2] = {
    {ET_F32, ET_F32}, {ET_F16, ET_F32}, {ET_BF16, ET_F32}, {ET_F8E4M3FN, ET_F32}, {ET_F8E4M3FN, ET_F8E4M3FN}};
enum { ROUNDINGS = sizeof roundings / sizeof *roundings };

static const enum et_dtype types[FA_TENSORS] = {ET_F32, ET_F16, ET_F16, ET_F16, ET_F32, ET_F32};

static float rounded(enum et_dtype type, float x)
{
    return type == ET_F32 ? x : et_widen(type, et_narrow(type, (double)x));
}

/* A row's inputs, widened. */
struct inputs {
    float q[MOST_DIM];
    const float *k, *v, *mask; /* kv_length rows; mask: NULL where there is none */
    float sink;
};

/* Running sums of one row. */
struct state {
    float most, sum[MOST_PARTS], acc[MOST_PARTS][MOST_DIM];
};

static float dot(const float *a, const float *b, int64_t n, int lanes)
{
    float sum[MOST_PARTS] = {0};
    for (int64_t c = 0; c < n; c += lanes)
        for (int64_t lane = 0; lane < lanes && c + lane < n; lane++)
            sum[lane] += a[c + lane] * b[c + lane];
    for (int lane = 1; lane < lanes; lane++)
        sum[0] += sum[lane];
    return sum[0];
}

/* Largest |q| to 448, as kernels with scaled rows of f8 do; the factor is taken into the scale. */
static float round_query(enum et_dtype type, float *q, int64_t n)
{
    float most = 0;
    for (int64_t c = 0; c < n; c++)
        most = fmaxf(most, fabsf(q[c]));
    if (type == ET_F32 || most == 0)
        return 1;
    for (int64_t c = 0; c < n; c++)
        q[c] = rounded(type, q[c] / (most / 448));
    return most / 448;
}

static float score(const struct et_flash_attn *p, const struct kernel *kernel, const struct inputs *in,
                   int64_t j, float scale, float slope)
{
    float s = dot(in->q, in->k + j * p->head_dim, p->head_dim, kernel->parts) * scale;
    if (p->softcap > 0)
        s = (float)p->softcap * et_tanh(et_div(s, (float)p->softcap));
    return in->mask ? s + slope * in->mask[j] : s;
}

static void rescale(const struct et_flash_attn *p, const struct kernel *kernel, float factor,
                    struct state *state)
{
    for (int part = 0; part < kernel->parts; part++) {
        state->sum[part] *= factor;
        for (int64_t d = 0; d < p->v_head_dim; d++)
            state->acc[part][d] *= factor;
    }
}

static void add_tile(const struct et_flash_attn *p, const struct kernel *kernel, const enum et_dtype round[2],
                     const struct inputs *in, int64_t from, int64_t to, float *s, struct state *state)
{
    float most = state->most;
    for (int64_t j = from; j < to; j++)
        most = et_larger(most, s[j]);
    if (most == -INFINITY)
        return;
    const bool missed = kernel->bug == RESCALE_MISSED && from > 0 && most > state->most;
    rescale(p, kernel, missed ? 1 : et_rescale(state->most, most), state);
    state->most = most;
    for (int64_t j = from; j < to; j++) {
        const int part = (int)(j % kernel->parts);
        const float e = et_exp(s[j] - most), w = rounded(round[0], e);
        state->sum[part] += kernel->exact_sum ? e : w;
        for (int64_t d = 0; d < p->v_head_dim; d++)
            state->acc[part][d] += w * in->v[j * p->v_head_dim + d];
    }
}

/* s: room for kv_length scores. */
static void run(const struct et_flash_attn *p, const struct kernel *kernel, const enum et_dtype round[2],
                const struct inputs *given, int64_t head, float *s, float *out)
{
    struct inputs in = *given;
    struct state state = {.most = -INFINITY};
    const int64_t n = p->kv_length - (kernel->bug == LAST_KEY_DROPPED), dim = p->head_dim;
    const int64_t tile = kernel->tile ? kernel->tile : n;
    const float slope = et_alibi_slope((float)p->max_bias, (et_u32)head, (et_u32)p->q_heads);
    float scale = (float)(1 / sqrt((double)dim)) * (kernel->bug == SCALE_OFF ? 1.01F : 1);
    for (int64_t c = 0; c < dim && kernel->prescaled; c++)
        in.q[c] *= scale;
    scale = round_query(round[1], in.q, dim) * (kernel->prescaled ? 1 : scale);
    for (int64_t j = 0; j < n; j++)
        s[j] = score(p, kernel, &in, j, scale, slope);
    for (int64_t from = 0; from < n; from += tile)
        add_tile(p, kernel, round, &in, from, from + tile < n ? from + tile : n, s, &state);
    for (int part = 1; part < kernel->parts; part++) {
        state.sum[0] += state.sum[part];
        for (int64_t d = 0; d < p->v_head_dim; d++)
            state.acc[0][d] += state.acc[part][d];
    }
    if (kernel->bug == PADDING_COUNTED)
        state.sum[0] += 15 * et_exp(0 - state.most);
    float factor = 1;
    if (p->sinks && kernel->bug != SINK_IGNORED && state.most > -INFINITY)
        factor = et_add_sink(in.sink, &state.most, &state.sum[0]);
    for (int64_t d = 0; d < p->v_head_dim; d++)
        out[d] = state.most > -INFINITY ? state.acc[0][d] * factor / state.sum[0] : 0;
}

/* ---- A problem, judged ---- */

struct judged {
    struct made made;
    struct et_case_step step;
    struct et_case c;
    struct et_job_step job_step;
    struct et_job job;
    struct et_claim claims[ROUNDINGS];
    struct et_truth truth;
    struct et_device device;
    struct et_outputs outputs;
    struct et_facts facts;
    struct et_judgement judgement;
};

static void judge_open(struct judged *j)
{
    const struct et_flash_attn *p = &j->made.params;
    struct et_error error = {""};
    j->job_step.problem = j->made.problem;
    j->c = (struct et_case){.op = j->made.problem.op, .steps = &j->step, .step_count = 1};
    j->c.checks =
        (struct et_checks){.nmse = 5e-4, .bound = 1, .noise = 4, .gain = 6, .agrees = -1, .repeat = 1};
    j->job = (struct et_job){.op = j->made.problem.op, .steps = &j->job_step, .step_count = 1};
    j->outputs.data[FA_OUT] = j->made.problem.tensor[FA_OUT].data;
    for (int r = 0; r < ROUNDINGS; r++)
        j->claims[r] = (struct et_claim){.arith = {.query = roundings[r][1],
                                                   .weight = roundings[r][0],
                                                   .depth_qk = 2 * (int32_t)p->head_dim,
                                                   .depth_sum = 2 * (int32_t)p->kv_length,
                                                   .tiles = (int32_t)(p->kv_length + 15) / 16},
                                         .order = {.name = "none"}};
    ck_assert_msg(
        et_truth_make(&j->job_step.problem, 0, 0, j->claims, ROUNDINGS, 2, NULL, &j->truth, &error) == ET_OK,
        "%s", error.text);
}

static void judge_close(struct judged *j)
{
    et_truth_free(&j->truth);
    unmake(&j->made);
}

static float *widened(const struct made *m, int t, int64_t head, int64_t dim)
{
    const int64_t n = m->params.kv_length;
    float *to = malloc((size_t)(n * dim + 1) * sizeof *to);
    ck_assert_ptr_nonnull(to);
    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < dim; d++)
            to[j * dim + d] = (float)at(m, t, 0, j, head, d);
    return to;
}

/* All rows of a kernel, to out. */
static void run_all(struct judged *j, const struct kernel *kernel, const enum et_dtype round[2])
{
    struct made *m = &j->made;
    const struct et_flash_attn *p = &m->params;
    float *scores = malloc((size_t)p->kv_length * sizeof *scores),
          *mask = malloc((size_t)p->kv_length * sizeof *mask);
    float *k = NULL, *v = NULL, out[MOST_DIM];
    ck_assert(scores && mask);
    for (int64_t h = 0; h < p->q_heads; h++) {
        if (h % (p->q_heads / p->kv_heads) == 0) {
            free(k);
            free(v);
            k = widened(m, FA_K, h / (p->q_heads / p->kv_heads), p->head_dim);
            v = widened(m, FA_V, h / (p->q_heads / p->kv_heads), p->v_head_dim);
        }
        for (int64_t i = 0; i < p->query_length; i++) {
            struct inputs in = {.k = k, .v = v, .mask = p->mask ? mask : NULL};
            in.sink = p->sinks ? (float)at(m, FA_SINKS, h, 0, 0, 0) : -INFINITY;
            for (int64_t c = 0; c < p->head_dim; c++)
                in.q[c] = (float)at(m, FA_Q, 0, i, h, c);
            for (int64_t key = 0; p->mask && key < p->kv_length; key++)
                mask[key] = (float)at(m, FA_MASK, 0, 0, i, key);
            run(p, kernel, round, &in, h, scores, out);
            for (int64_t d = 0; d < p->v_head_dim; d++)
                put(m, FA_OUT, 0, i, h, d, (double)out[d]);
        }
    }
    free(k);
    free(v);
    free(scores);
    free(mask);
}

static const struct et_finding *judge(struct judged *j, int rounding)
{
    const struct et_judge_input input = {.c = &j->c,
                                         .fill = ET_FILL_NORMAL,
                                         .job = &j->job,
                                         .truth = &j->truth,
                                         .claim = &j->claims[rounding],
                                         .device = &j->device,
                                         .outputs = &j->outputs,
                                         .facts = &j->facts,
                                         .repeats = 1};
    j->judgement = (struct et_judgement){0};
    et_judge(&input, &j->judgement);
    return j->judgement.check;
}

/* ---- Data ---- */

enum data { NORMAL, UNIFORM, OUTLIER, HEAVY, POSITIVE, DATA };
static const char *const data_names[DATA] = {"normal", "uniform", "outlier", "heavy", "positive"};

static float draw(enum data data, const struct et_stream *lots, const char *name, uint64_t seed, int64_t i)
{
    const struct et_fill outlier = {.kind = ET_FILL_OUTLIER, .seed = seed};
    float x = et_normal(lots, (uint64_t)i);
    switch (data) {
    case UNIFORM:
        return et_uniform(lots, (uint64_t)i);
    case OUTLIER:
        et_fill_values(&outlier, name, i, 1, &x);
        return x;
    case HEAVY:
        return copysignf(et_exp(x), et_uniform(lots, (uint64_t)i));
    case POSITIVE:
        return fabsf(x);
    default:
        return x;
    }
}

/* Even heads have no sink; of masks a key in four is hidden, the others are up to -20 away. */
static void fill_all(struct made *m, enum data data, uint64_t seed)
{
    static const char *const names[] = {"q", "k", "v"};
    for (int t = FA_Q; t <= FA_V; t++) {
        const struct et_stream lots = et_stream(seed, names[t]);
        const int64_t *n = m->problem.tensor[t].size;
        for (int64_t e = 0; e < n[1] * n[2] * n[3]; e++)
            put(m, t, 0, e / (n[2] * n[3]), e / n[3] % n[2], e % n[3],
                (double)draw(data, &lots, names[t], seed, e));
    }
    const struct et_stream lots = et_stream(seed, "mask");
    const struct et_flash_attn *p = &m->params;
    for (int64_t h = 0; h < p->q_heads && p->sinks; h++)
        put(m, FA_SINKS, h, 0, 0, 0, h % 2 ? 2 * (double)et_normal(&lots, (uint64_t)h) : -(double)INFINITY);
    for (int64_t e = 0; e < p->query_length * p->kv_length && p->mask; e++) {
        const uint32_t word = et_word(&lots, (uint64_t)e, 1);
        put(m, FA_MASK, 0, 0, e / p->kv_length, e % p->kv_length,
            word % 4 ? -20.0 * (double)et_word(&lots, (uint64_t)e, 2) / 0x1p32 : -(double)INFINITY);
    }
}

static void judge_make(struct judged *j, const struct et_flash_attn *p, enum data data, uint64_t seed)
{
    memset(j, 0, sizeof *j);
    make(&j->made, *p, types, packed);
    fill_all(&j->made, data, seed);
}

/* The largest of each figure. */
struct extremes {
    double headroom, noise, mean, z;
};

static void expect_no_alarm(struct judged *j, const char *what, uint64_t seed, struct extremes *most)
{
    for (int r = 0; r < ROUNDINGS; r++)
        for (int k = 0; k < KERNELS; k++) {
            run_all(j, &honest[k], roundings[r]);
            const struct et_finding *f = judge(j, r);
            for (int i = 0; i < ET_CHECKS; i++)
                if (f[i].outcome == ET_BROKEN)
                    ck_abort_msg("%s, %lld keys, seed %lld, weights %s, query %s, kernel %d: %s: %s", what,
                                 (long long)j->made.params.kv_length, (long long)seed,
                                 et_format(roundings[r][0])->name, et_format(roundings[r][1])->name, k,
                                 et_check_name((enum et_check)i), f[i].text);
            ck_assert_int_eq(f[ET_CHECK_BOUND].outcome, ET_HELD);
            most->headroom = fmax(most->headroom, j->judgement.headroom);
            most->noise = fmax(most->noise, f[ET_CHECK_NOISE].figure);
            most->mean = fmax(most->mean, j->judgement.noise_mean);
            most->z = fmax(most->z, f[ET_CHECK_GAIN].figure);
        }
}

static void tell(const char *what, const struct extremes *most)
{
    printf("%s: headroom %.3f, noise %.2f, mean %.2f, |z| %.2f\n", what, most->headroom, most->noise,
           most->mean, most->z);
}

START_TEST(honest_kernels_raise_no_check)
{
    static const int64_t keys[] = {16, 200, 2048, 8192};
    const enum data data = (enum data)_i;
    struct extremes most = {0};
    for (int n = 0; n < (EVERY ? 4 : 3); n++)
        for (uint64_t seed = 0; seed < (EVERY ? 2 : 1); seed++) {
            struct judged j;
            const struct et_flash_attn p = {1, 1, 4, 2, 64, 64, EVERY || n < 2 ? 8 : 4, keys[n], 0, 0, -1, 1,
                                            0, 1, 1, 0, 0,  0};
            judge_make(&j, &p, data, seed);
            judge_open(&j);
            expect_no_alarm(&j, data_names[data], seed, &most);
            judge_close(&j);
        }
    tell(data_names[data], &most);
}
END_TEST

START_TEST(honest_kernels_of_few_keys_raise_no_check)
{
    static const int64_t keys[] = {1, 2, 3, 4, 6, 9, 33};
    static const int64_t dims[] = {1, 16, 128};
    struct extremes most = {0};
    for (int n = 0; n < 7; n++)
        for (int d = 0; d < 3; d++)
            for (uint64_t seed = 0; seed < (EVERY ? 12 : 2); seed++) {
                struct judged j;
                const struct et_flash_attn p = {1, 1,  4, 2, dims[d], 64, 8, keys[n], 0,
                                                0, -1, 1, 0, 1,       1,  0, 0,       0};
                judge_make(&j, &p, (enum data)_i, seed);
                judge_open(&j);
                expect_no_alarm(&j, data_names[_i], seed, &most);
                judge_close(&j);
            }
    tell(data_names[_i], &most);
}
END_TEST

START_TEST(honest_kernels_with_softcap_masks_and_slopes_raise_no_check)
{
    static const int64_t keys[] = {5, 40, 300};
    struct extremes most = {0};
    for (int n = 0; n < 3; n++)
        for (int how = 1; how < 6; how++)
            for (uint64_t seed = 0; seed < (EVERY ? 12 : 1); seed++) {
                struct judged j;
                struct et_flash_attn p = {1, 1, 6, 2, 64, 64, 8, keys[n], 0, 0, -1, 1, 0, 1, 1, 0, 0, 0};
                p.softcap = how % 2 ? 3 : 0;
                p.mask = how / 2 ? ET_MASK_DATA : ET_MASK_NONE;
                p.max_bias = how / 4 ? 8 : 0;
                judge_make(&j, &p, (enum data)_i, seed);
                judge_open(&j);
                expect_no_alarm(&j, data_names[_i], seed, &most);
                judge_close(&j);
            }
    tell(data_names[_i], &most);
}
END_TEST

/* tolerances: D = 128, 64 rows, normal, 4096 keys, f32 weights, sinks of logit 0. */
START_TEST(slips_are_caught_at_4096_keys)
{
    static const struct kernel kernel = {32, 1, false, false, NO_BUG};
    struct judged j;
    const struct et_flash_attn p = {1, 1, 4, 2, 128, 128, 16, 4096, 0, 0, -1, 1, 0, 1, 1, 0, 0, 0};
    judge_make(&j, &p, NORMAL, 0);
    for (int64_t h = 0; h < 4; h++)
        put(&j.made, FA_SINKS, h, 0, 0, 0, 0);
    judge_open(&j);
    for (int bug = NO_BUG; bug < BUGS; bug++) {
        struct kernel slip = kernel;
        slip.bug = (enum bug)bug;
        run_all(&j, &slip, roundings[0]);
        const struct et_finding *f = judge(&j, 0);
        printf("%s: bound %.3g, noise %.3g, gain %.3g\n", bug_names[bug], j.judgement.headroom,
               f[ET_CHECK_NOISE].figure, f[ET_CHECK_GAIN].figure);
        for (int check = ET_CHECK_BOUND; check <= ET_CHECK_GAIN; check++)
            ck_assert_msg(f[check].outcome == (bug == NO_BUG ? ET_HELD : ET_BROKEN), "%s: %s", bug_names[bug],
                          et_check_name((enum et_check)check));
    }
    judge_close(&j);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("flash_honest");
    TCase *tests = tcase_create("flash_honest");
    tcase_set_timeout(tests, EVERY ? 600 : 100);
    tcase_add_loop_test(tests, honest_kernels_raise_no_check, 0, DATA);
    tcase_add_loop_test(tests, honest_kernels_of_few_keys_raise_no_check, 0, DATA);
    tcase_add_loop_test(tests, honest_kernels_with_softcap_masks_and_slopes_raise_no_check, 0, DATA);
    tcase_add_test(tests, slips_are_caught_at_4096_keys);
    suite_add_tcase(suite, tests);
    return suite;
}
