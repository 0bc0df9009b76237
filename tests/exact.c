/* The exact family of gqa_av: every order gives the same bits, and every term, head, row and channel shows.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/etalon.h"
#include "suite.h"

enum { W, V, OUT };

/* ck_assert keeps a record of every one that holds: too dear for each of millions of terms. */
#define MUST(holds)                                                                                          \
    do {                                                                                                     \
        if (!(holds))                                                                                        \
            ck_abort_msg("%s", #holds);                                                                      \
    } while (0)

/* One problem; term(c) of an output is w[c] * v[c]. */
struct made {
    struct et_gqa_av p;
    struct et_problem problem;
    struct et_fill fill;
    float *w, *v; /* as stored, widened: [head][lane] of the first query row, [position][kv_head][channel] */
};

static void make(struct made *m, const struct et_gqa_av *params, const enum et_dtype dtype[3],
                 enum et_fill_kind kind, uint64_t seed)
{
    *m = (struct made){.p = *params, .fill = {.kind = kind, .seed = seed}};
    m->problem.op = et_operator_named("gqa_av");
    m->problem.params = &m->p;
    ck_assert_int_eq(m->problem.op->shape(&m->p, m->problem.tensor, NULL), ET_OK);
    for (int t = W; t <= OUT; t++) {
        struct et_tensor *tensor = &m->problem.tensor[t];
        tensor->dtype = dtype[t];
        MUST(et_tensor_pack(tensor));
    }
    float **const dst[] = {&m->w, &m->v};
    for (int t = W; t <= V; t++) {
        struct et_tensor *tensor = &m->problem.tensor[t];
        const int64_t n = tensor->size[2], rows = et_tensor_rows(tensor);
        float *all = *dst[t] = malloc(sizeof(float) * (size_t)(n * rows + 1));
        tensor->data = malloc(tensor->bytes + 1);
        MUST(all && tensor->data);
        for (int64_t row = 0; row < rows; row++) {
            m->problem.op->fill(&m->problem, &m->fill, t, row, all + row * n);
            for (int64_t i = 0; i < n; i++) {
                const uint32_t bits = et_narrow(tensor->dtype, (double)all[row * n + i]);
                MUST(et_widen(tensor->dtype, bits) == all[row * n + i]);
                et_store(tensor->dtype, tensor->data, row * n + i, bits);
            }
        }
    }
}

static void unmake(struct made *m)
{
    free(m->w);
    free(m->v);
    free(m->problem.tensor[W].data);
    free(m->problem.tensor[V].data);
}

static const float *weights(const struct made *m, int64_t h)
{
    return m->w + h * m->problem.tensor[W].size[1] * m->problem.tensor[W].size[2];
}

static float value(const struct made *m, int64_t c, int64_t kv, int64_t d)
{
    return m->v[(c * m->p.kv_heads + kv) * m->p.head_dim + d];
}

static int64_t kv_head(const struct made *m, int64_t h)
{
    return h * m->p.kv_heads / m->p.q_heads;
}

static double exactly(const struct made *m, int64_t h, int64_t kv, int64_t d)
{
    double sum = 0;
    for (int64_t c = 0; c < m->p.context; c++)
        sum += (double)weights(m, h)[c] * (double)value(m, c, kv, d);
    return sum;
}

static uint32_t stored(const struct made *m, double x)
{
    return et_narrow(m->problem.tensor[OUT].dtype, x);
}

static const struct et_gqa_av shapes[] = {
    {1, 1, 1, 1, 1, 1},       {2, 1, 2, 1, 2, 2},         {4, 2, 5, 1, 3, 7},       {3, 2, 4, 1, 4, 4},
    {8, 1, 8, 1, 17, 18},     {6, 2, 12, 1, 63, 64},      {6, 3, 8, 1, 256, 256},   {9, 3, 8, 1, 257, 300},
    {32, 16, 4, 1, 512, 512}, {14, 2, 64, 1, 1003, 1003}, {8, 8, 4, 1, 1024, 1024}, {2, 1, 4, 1, 2051, 2051},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const enum et_dtype dtypes[][3] = {
    {ET_F32, ET_F32, ET_F32},  {ET_F16, ET_F16, ET_F16},  {ET_BF16, ET_BF16, ET_BF16},
    {ET_F16, ET_BF16, ET_F32}, {ET_BF16, ET_F16, ET_F32}, {ET_F32, ET_F16, ET_BF16},
    {ET_BF16, ET_F32, ET_F16},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes, KINDS = 3 };

static const enum et_fill_kind kinds[KINDS] = {ET_FILL_EXACT, ET_FILL_EQUAL, ET_FILL_ONEHOT};

/* Calls body for every shape, combination of types and fill. */
static void each(void (*body)(const struct made *m))
{
    for (int i = 0; i < SHAPES; i++)
        for (int k = 0; k < DTYPES * KINDS; k++) {
            struct made m;
            make(&m, &shapes[i], dtypes[k / KINDS], kinds[k % KINDS], (uint64_t)i);
            body(&m);
            unmake(&m);
        }
}

static void is_representable(const struct made *m)
{
    const enum et_dtype out = m->problem.tensor[OUT].dtype;
    for (int64_t h = 0; h < m->p.q_heads; h++)
        for (int64_t d = 0; d < m->p.head_dim; d++) {
            const double sum = exactly(m, h, kv_head(m, h), d);
            MUST(sum != 0 && (double)et_widen(out, et_narrow(out, sum)) == sum);
        }
}

START_TEST(the_result_is_a_number_of_the_output_type)
{
    each(is_representable);
}
END_TEST

enum order { SERIAL, REVERSE, STRIDED, PAIRWISE, ORDERS };

/* The c-th position to be added. */
static int64_t place(enum order order, int64_t c, int64_t n)
{
    if (order == REVERSE)
        return n - 1 - c;
    /* 7 lanes, one after the other: lane l has ceil((n - l) / 7) positions */
    for (int64_t lane = 0; order == STRIDED && lane < 7; lane++) {
        const int64_t count = (n - lane + 6) / 7;
        if (c < count)
            return lane + 7 * c;
        c -= count;
    }
    return c;
}

/* Accumulators are of type `sum`: f32, or the output's own. */
static float round_to(enum et_dtype sum, double x)
{
    return et_widen(sum, et_narrow(sum, x));
}

static float pairwise(const struct made *m, enum et_dtype sum, int64_t h, int64_t d, int64_t from, int64_t to)
{
    if (to - from == 1)
        return round_to(sum, (double)(weights(m, h)[from] * value(m, from, kv_head(m, h), d)));
    const int64_t half = from + (to - from) / 2;
    return round_to(sum,
                    (double)pairwise(m, sum, h, d, from, half) + (double)pairwise(m, sum, h, d, half, to));
}

static float add_up(const struct made *m, enum order order, enum et_dtype sum, bool fused, int64_t h,
                    int64_t d)
{
    float acc = 0;
    if (order == PAIRWISE)
        return pairwise(m, sum, h, d, 0, m->p.context);
    for (int64_t i = 0; i < m->p.context; i++) {
        const int64_t c = place(order, i, m->p.context);
        const float w = weights(m, h)[c], v = value(m, c, kv_head(m, h), d);
        acc = fused ? round_to(sum, (double)fmaf(w, v, acc))
                    : round_to(sum, (double)(round_to(sum, (double)(w * v)) + acc));
    }
    return acc;
}

static void has_one_result(const struct made *m)
{
    const enum et_dtype sums[] = {ET_F32, m->problem.tensor[OUT].dtype};
    for (int64_t h = 0; h < m->p.q_heads; h += 3)
        for (int64_t d = 0; d < m->p.head_dim; d += 7)
            for (int k = 0; k < ORDERS * 4; k++) {
                const float got = add_up(m, (enum order)(k / 4), sums[k % 2], k / 2 % 2, h, d);
                MUST((double)got == exactly(m, h, kv_head(m, h), d));
            }
}

START_TEST(every_order_gives_it_fused_or_not_in_f32_and_in_the_output_type)
{
    each(has_one_result);
}
END_TEST

static void is_the_replay(const struct made *m)
{
    const struct et_operator *op = m->problem.op;
    const struct et_order order = {.name = "ctx64x4", .arg = {ET_F32}};
    void *work = malloc(op->work_bytes(&m->problem));
    float *got = malloc(sizeof *got * (size_t)m->p.head_dim);
    struct et_met met = {0};
    for (int64_t h = 0; h < m->p.q_heads; h++) {
        ck_assert_int_eq(op->replay(&m->problem, &order, h, work, got, &met, NULL), ET_OK);
        for (int64_t d = 0; d < m->p.head_dim; d++)
            MUST((double)got[d] == exactly(m, h, kv_head(m, h), d));
    }
    MUST(!met.subnormal);
    free(got);
    free(work);
}

START_TEST(the_claimed_order_gives_it_and_meets_no_subnormal)
{
    each(is_the_replay);
}
END_TEST

static void shows_every_term(const struct made *m)
{
    for (int64_t h = 0; h < m->p.q_heads; h += 3)
        for (int64_t d = 0; d < m->p.head_dim; d += 3) {
            const int64_t kv = kv_head(m, h);
            const double sum = exactly(m, h, kv, d);
            for (int64_t c = 0; c < m->p.context; c++) {
                const double term = (double)weights(m, h)[c] * (double)value(m, c, kv, d);
                MUST(term == 0 || stored(m, sum - term) != stored(m, sum));
                MUST(term == 0 || stored(m, sum + term) != stored(m, sum));
            }
        }
}

START_TEST(no_term_can_be_lost_or_added_twice_without_a_trace)
{
    each(shows_every_term);
}
END_TEST

/* Hexadecimal digits of the last V row's number: so many channels tell every row from every other. */
static int64_t digits_of(const struct made *m)
{
    int64_t digits = 1;
    for (int64_t last = m->p.context * m->p.kv_heads - 1; last >= 16; last /= 16)
        digits++;
    return digits;
}

static bool shows_head(const struct made *m, int64_t h, int64_t wrong)
{
    for (int64_t d = 0; d < m->p.head_dim; d++)
        if (stored(m, exactly(m, h, wrong, d)) != stored(m, exactly(m, h, kv_head(m, h), d)))
            return true;
    return false;
}

static void shows_every_head(const struct made *m)
{
    if (digits_of(m) > m->p.head_dim)
        return;
    for (int64_t h = 0; h < m->p.q_heads; h += 2)
        for (int64_t wrong = 0; wrong < m->p.kv_heads; wrong++)
            MUST(wrong == kv_head(m, h) || shows_head(m, h, wrong));
}

START_TEST(no_kv_head_passes_for_another)
{
    each(shows_every_head);
}
END_TEST

/* Position c of head h reads the row of position `wrong`. */
static bool shows_row(const struct made *m, int64_t h, int64_t c, int64_t wrong)
{
    const int64_t kv = kv_head(m, h);
    for (int64_t d = 0; d < digits_of(m); d++) {
        const double change =
            (double)weights(m, h)[c] * ((double)value(m, wrong, kv, d) - (double)value(m, c, kv, d));
        const double sum = exactly(m, h, kv, d);
        if (stored(m, sum + change) != stored(m, sum))
            return true;
    }
    return false;
}

static void shows_every_row(const struct made *m)
{
    const int64_t n = m->p.context;
    if (digits_of(m) > m->p.head_dim)
        return;
    for (int64_t h = 0; h < m->p.q_heads; h += 5)
        for (int64_t c = 0; c<n; c += n> 1000 ? 499 : 1) {
            if (weights(m, h)[c] == 0)
                continue;
            MUST(c == 0 || shows_row(m, h, c, c - 1));
            MUST(c == n - 1 || shows_row(m, h, c, c + 1));
        }
}

START_TEST(no_row_passes_for_its_neighbour)
{
    each(shows_every_row);
}
END_TEST

static bool shows_channel(const struct made *m, int64_t step)
{
    const int64_t n = m->p.head_dim;
    for (int64_t h = 0; h < m->p.q_heads; h++)
        for (int64_t d = 0; d < n; d++) {
            const int64_t kv = kv_head(m, h);
            if (stored(m, exactly(m, h, kv, (d + step) % n)) != stored(m, exactly(m, h, kv, d)))
                return true;
        }
    return false;
}

static void shows_every_channel(const struct made *m)
{
    static const int64_t steps[] = {1, 2, 3, 4, 8, 16, 32};
    /* `equal` weighs whole runs of rows alike: there the sums of two channels may well be the same. */
    for (int i = 0; m->fill.kind != ET_FILL_EQUAL && i < 7; i++)
        MUST(steps[i] % m->p.head_dim == 0 || shows_channel(m, steps[i]));
}

START_TEST(no_channel_passes_for_one_nearby)
{
    each(shows_every_channel);
}
END_TEST

START_TEST(no_two_of_256_channels_of_a_digit_are_alike)
{
    const struct et_gqa_av p = {1, 1, 256, 1, 16, 16}; /* 16 rows: one digit */
    struct made m;
    make(&m, &p, dtypes[0], ET_FILL_EXACT, 0);
    for (int64_t a = 0; a < 256; a++)
        for (int64_t b = 0; b < a; b++) {
            bool differ = false;
            for (int64_t c = 0; c < 16; c++)
                differ = differ || value(&m, c, 0, a) != value(&m, c, 0, b);
            ck_assert_msg(differ, "channels %d and %d", (int)a, (int)b);
        }
    unmake(&m);
}
END_TEST

START_TEST(exact_and_equal_weigh_first_last_and_tail)
{
    for (int i = 3; i < SHAPES; i++)
        for (int k = 0; k < DTYPES * 2; k++) {
            struct made m;
            make(&m, &shapes[i], dtypes[k / 2], kinds[k % 2], 5);
            const int64_t n = m.p.context, tail = n % 4 ? n % 4 : 1;
            for (int64_t h = 0; h < m.p.q_heads; h++) {
                MUST(weights(&m, h)[0] > 0);
                for (int64_t c = n - tail; c < n; c++)
                    MUST(weights(&m, h)[c] > 0);
            }
            unmake(&m);
        }
}
END_TEST

START_TEST(equal_weights_are_one_over_a_power_of_two_of_positions)
{
    /* out's digits - 4: 2^4 positions for bf16 (8 digits), 2^7 for f16 (11); f32 is capped at 2^14 */
    static const struct {
        enum et_dtype dtype;
        int64_t context;
        int count;
    } rows[] = {{ET_BF16, 4096, 16},  {ET_BF16, 9, 8},      {ET_F16, 4096, 128},    {ET_F16, 100, 64},
                {ET_F32, 4096, 4096}, {ET_F32, 4097, 4096}, {ET_F32, 40000, 16384}, {ET_F32, 3, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct et_gqa_av p = {2, 1, 1, 1, rows[i].context, rows[i].context};
        const enum et_dtype dtype[] = {rows[i].dtype, rows[i].dtype, rows[i].dtype};
        struct made m;
        make(&m, &p, dtype, ET_FILL_EQUAL, 1);
        int count = 0;
        for (int64_t c = 0; c < p.context; c++) {
            count += weights(&m, 1)[c] != 0;
            MUST(weights(&m, 1)[c] == 0 || weights(&m, 1)[c] == 1.0F / (float)rows[i].count);
        }
        ck_assert_int_eq(count, rows[i].count);
        unmake(&m);
    }
}
END_TEST

static int64_t hot_of(const struct made *m, int64_t h)
{
    int64_t hot = -1;
    for (int64_t c = 0; c < m->p.context; c++) {
        const float w = weights(m, h)[c];
        MUST(w == 0 || (w == 1 && hot < 0));
        hot = w == 1 ? c : hot;
    }
    ck_assert_int_ge(hot, 0);
    return hot;
}

START_TEST(onehot_visits_both_ends_the_tail_and_every_worker)
{
    /* 1003 = 250 quads and a tail of 3: 1 + 3 + 64 turns, 17 seeds of 4 heads */
    const struct et_gqa_av p = {4, 1, 4, 1, 1003, 1003};
    bool seen[1003] = {false}, worker[64] = {false};
    for (uint64_t seed = 0; seed < 17; seed++) {
        struct made m;
        make(&m, &p, dtypes[1], ET_FILL_ONEHOT, seed);
        for (int64_t h = 0; h < 4; h++) {
            const int64_t hot = hot_of(&m, h);
            seen[hot] = true;
            if (hot < 1000)
                worker[hot / 4 % 64] = true;
        }
        unmake(&m);
        MUST(seed > 0 || (seen[0] && seen[1000] && seen[1001] && seen[1002]));
    }
    for (int i = 0; i < 64; i++)
        ck_assert_msg(worker[i], "no row weighs a quad of worker %d", i);
}
END_TEST

START_TEST(onehot_outputs_name_the_row_they_are)
{
    const struct et_gqa_av p = {6, 3, 8, 1, 263, 263};
    struct made m;
    make(&m, &p, dtypes[2], ET_FILL_ONEHOT, 2);
    char text[80], want[80];
    double got[8];
    for (int64_t h = 0; h < 6; h++) {
        for (int64_t d = 0; d < 8; d++)
            got[d] = exactly(&m, h, h / 2, d);
        MUST(m.problem.op->names(&m.problem, h, got, text, sizeof text));
        snprintf(want, sizeof want, "V of position %d, KV head %d", (int)hot_of(&m, h), (int)h / 2);
        ck_assert_str_eq(text, want);
        got[7] += 1;
        MUST(!m.problem.op->names(&m.problem, h, got, text, sizeof text));
    }
    for (int64_t d = 0; d < 8; d++)
        got[d] = NAN;
    MUST(!m.problem.op->names(&m.problem, 0, got, text, sizeof text));
    unmake(&m);
}
END_TEST

START_TEST(capacity_changes_nothing)
{
    const struct et_gqa_av a = {4, 2, 8, 1, 67, 67}, b = {4, 2, 8, 1, 67, 4099};
    for (int k = 0; k < KINDS; k++) {
        struct made x, y;
        make(&x, &a, dtypes[0], kinds[k], 3);
        make(&y, &b, dtypes[0], kinds[k], 3);
        ck_assert_mem_eq(x.v, y.v, sizeof(float) * 67 * 2 * 8);
        ck_assert_mem_eq(x.w, y.w, sizeof(float) * 4 * 4 * 68);
        unmake(&x);
        unmake(&y);
    }
}
END_TEST

START_TEST(lies_are_the_differences_they_are_named_for)
{
    static const enum et_fill_kind fills[] = {ET_FILL_NORMAL, ET_FILL_EXACT};
    for (int k = 0; k < 2; k++) {
        const struct et_gqa_av p = {6, 3, 5, 1, 37, 40};
        struct made m;
        make(&m, &p, dtypes[0], fills[k], 1);
        const struct et_operator *op = m.problem.op;
        void *work = malloc(op->work_bytes(&m.problem));
        double delta[3][5];
        for (int64_t h = 0; h < 6; h++) {
            const int64_t kv = h / 2, wrong = h % 3 != kv ? h % 3 : (kv + 1) % 3;
            for (int lie = 0; lie < 3; lie++)
                MUST(op->lie(&m.problem, h, lie, work, delta[lie]));
            for (int64_t d = 0; d < 5; d++) {
                const float *w = weights(&m, h);
                MUST(delta[0][d] == -(double)w[0] * (double)value(&m, 0, kv, d));
                MUST(delta[1][d] == -(double)w[36] * (double)value(&m, 36, kv, d));
                ck_assert_double_eq_tol(delta[2][d], exactly(&m, h, wrong, d) - exactly(&m, h, kv, d), 1e-12);
            }
        }
        free(work);
        unmake(&m);
    }
    ck_assert_str_eq(et_operator_named("gqa_av")->lies[2].name, "kv_head");
}
END_TEST

START_TEST(one_kv_head_and_an_empty_context_have_no_such_lie)
{
    const struct et_gqa_av one = {4, 1, 5, 1, 9, 9}, empty = {4, 2, 5, 1, 0, 3};
    struct made m;
    double delta[5];
    make(&m, &one, dtypes[0], ET_FILL_EXACT, 0);
    void *work = malloc(m.problem.op->work_bytes(&m.problem));
    MUST(m.problem.op->lie(&m.problem, 0, 0, work, delta));
    MUST(!m.problem.op->lie(&m.problem, 0, 2, work, delta));
    unmake(&m);
    make(&m, &empty, dtypes[0], ET_FILL_EXACT, 0);
    for (int lie = 0; lie < 3; lie++)
        MUST(!m.problem.op->lie(&m.problem, 0, lie, work, delta));
    unmake(&m);
    free(work);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("exact");
    TCase *tests = tcase_create("gqa_av");
    tcase_add_test(tests, the_result_is_a_number_of_the_output_type);
    tcase_add_test(tests, every_order_gives_it_fused_or_not_in_f32_and_in_the_output_type);
    tcase_add_test(tests, the_claimed_order_gives_it_and_meets_no_subnormal);
    tcase_add_test(tests, no_term_can_be_lost_or_added_twice_without_a_trace);
    tcase_add_test(tests, no_kv_head_passes_for_another);
    tcase_add_test(tests, no_row_passes_for_its_neighbour);
    tcase_add_test(tests, no_channel_passes_for_one_nearby);
    tcase_add_test(tests, no_two_of_256_channels_of_a_digit_are_alike);
    tcase_add_test(tests, exact_and_equal_weigh_first_last_and_tail);
    tcase_add_test(tests, equal_weights_are_one_over_a_power_of_two_of_positions);
    tcase_add_test(tests, onehot_visits_both_ends_the_tail_and_every_worker);
    tcase_add_test(tests, onehot_outputs_name_the_row_they_are);
    tcase_add_test(tests, capacity_changes_nothing);
    tcase_add_test(tests, lies_are_the_differences_they_are_named_for);
    tcase_add_test(tests, one_kv_head_and_an_empty_context_have_no_such_lie);
    tcase_set_timeout(tests, 120);
    suite_add_tcase(suite, tests);
    return suite;
}
