/* gqa_av's definition: shapes, classes, oracle, and the replay of each order against an element-by-element
 * emulation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/etalon.h"
#include "../ref/fma.h"
#include "suite.h"

enum { W, V, OUT };

/* A problem with packed tensors and owned data under one fill. */
struct made {
    struct et_gqa_av params;
    struct et_problem problem;
};

static void make(struct made *m, struct et_gqa_av params, enum et_dtype dtype, enum et_fill_kind kind)
{
    memset(m, 0, sizeof *m);
    m->params = params;
    m->problem.op = et_operator_named("gqa_av");
    m->problem.params = &m->params;
    struct et_error error;
    ck_assert_msg(m->problem.op->shape(&m->params, m->problem.tensor, &error) == ET_OK, "%s", error.text);
    const struct et_fill fill = {.kind = kind, .value = 1};
    for (int t = W; t <= OUT; t++) {
        struct et_tensor *tensor = &m->problem.tensor[t];
        tensor->dtype = dtype;
        ck_assert(et_tensor_pack(tensor));
        tensor->data = malloc(tensor->bytes + 1);
        const int64_t n = tensor->size[2];
        float *row = malloc(sizeof(float) * (size_t)(n + 1));
        enum et_class *class = malloc(sizeof *class * (size_t)(n + 1));
        for (int64_t i = 0; t != OUT && i < et_tensor_rows(tensor); i++) {
            m->problem.op->fill(&m->problem, &fill, t, i, row);
            m->problem.op->classify(&m->problem, t, i, class);
            for (int64_t k = 0; k < n; k++) {
                const double value = class[k] == ET_DATA ? (double)row[k] : class[k] == ET_ZERO ? 0 : NAN;
                et_store(dtype, tensor->data, et_row_at(tensor, i) + k, et_narrow(dtype, value));
            }
        }
        free(row);
        free(class);
    }
}

static void unmake(struct made *m)
{
    for (int t = W; t <= OUT; t++)
        free(m->problem.tensor[t].data);
}

static float at(const struct made *m, int t, int64_t i, int64_t j, int64_t k)
{
    const struct et_tensor *tensor = &m->problem.tensor[t];
    return et_widen(tensor->dtype,
                    et_load(tensor->dtype, tensor->data,
                            i * tensor->stride[0] + j * tensor->stride[1] + k * tensor->stride[2]));
}

static const struct et_gqa_av shapes[] = {
    {1, 1, 1, 1, 0, 0},     {1, 1, 1, 1, 1, 1},      {4, 2, 5, 1, 3, 7},       {3, 2, 4, 1, 4, 4},
    {8, 1, 8, 1, 255, 256}, {6, 2, 12, 1, 256, 256}, {9, 3, 64, 1, 257, 300},  {16, 1, 4, 1, 1023, 1023},
    {5, 5, 3, 2, 259, 259}, {4, 2, 5, 7, 67, 68},    {2, 1, 100, 1, 517, 600}, {1, 3, 2, 1, 9, 9},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static enum et_status shape_of(struct et_gqa_av params, struct et_error *error)
{
    struct et_tensor tensor[ET_TENSORS];
    return et_operator_named("gqa_av")->shape(&params, tensor, error);
}

START_TEST(a_refused_shape_names_field_value_and_limit)
{
    static const struct {
        struct et_gqa_av params;
        const char *sentence;
    } refused[] = {
        {{0, 1, 1, 1, 1, 1}, "q_heads is 0, must be at least 1"},
        {{1, 0, 1, 1, 1, 1}, "kv_heads is 0, must be at least 1"},
        {{1, 1, 0, 1, 1, 1}, "head_dim is 0, must be at least 1"},
        {{1, 1, 1, 0, 1, 1}, "query_length is 0, must be at least 1"},
        {{1, 1, 1, 1, -1, 1}, "context is -1, must be at least 0"},
        {{65536, 1, 1, 1, 1, 1}, "q_heads is 65536, must be at most 65535"},
        {{1, 1, 1, 1, 9, 5}, "capacity is 5, below context = 9"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct et_error error;
        ck_assert_int_eq(shape_of(refused[i].params, &error), ET_REFUSED);
        ck_assert_str_eq(error.text, refused[i].sentence);
    }
}
END_TEST

START_TEST(weights_are_padded_to_four_rows_and_four_lanes)
{
    struct made m;
    make(&m, (struct et_gqa_av){2, 1, 4, 1, 5, 6}, ET_F32, ET_FILL_NORMAL);
    const int64_t size[] = {2, 4, 8};
    for (int k = 0; k < 3; k++)
        ck_assert_int_eq(m.problem.tensor[W].size[k], size[k]);
    for (int h = 0; h < 2; h++)
        for (int s = 0; s < 4; s++)
            for (int c = 0; c < 8; c++) {
                const float w = at(&m, W, h, s, c);
                if (s > 0)
                    ck_assert_msg(isnan(w), "row %d is never read", s);
                else
                    ck_assert_msg(c < 5 ? w > 0 : w == 0, "lane %d", c);
            }
    for (int d = 0; d < 4; d++)
        ck_assert(isnan(at(&m, V, 5, 0, d)) && !isnan(at(&m, V, 4, 0, d)));
    unmake(&m);
}
END_TEST

START_TEST(filled_weights_are_a_softmax_without_subnormals)
{
    for (int kind = 0; kind <= ET_FILL_CONSTANT; kind++) {
        struct made m;
        make(&m, (struct et_gqa_av){3, 1, 1, 1, 1000, 1000}, ET_F32, (enum et_fill_kind)kind);
        for (int h = 0; h < 3; h++) {
            double sum = 0;
            for (int c = 0; c < 1000; c++) {
                const float w = at(&m, W, h, 0, c);
                ck_assert(w == 0 || (w >= 0x1p-64F && w <= 1));
                sum += (double)w;
            }
            /* 1000 weights, each rounded once (2^-24 of itself) after a sum rounded once: 1 within 2^-22. */
            ck_assert_double_eq_tol(sum, 1, 0x1p-22);
        }
        unmake(&m);
    }
}
END_TEST

static void close_to(double got, double want, double tolerance)
{
    ck_assert_msg(fabs(got - want) <= tolerance, "%.17g is not within %g of %.17g", got, tolerance, want);
}

START_TEST(the_oracle_is_the_definition)
{
    for (int i = 0; i < SHAPES; i++) {
        struct made m;
        const struct et_gqa_av p = shapes[i];
        make(&m, p, i % 2 ? ET_F16 : ET_F32, ET_FILL_NORMAL);
        const struct et_operator *op = m.problem.op;
        void *work = malloc(op->work_bytes(&m.problem));
        double *value = malloc(sizeof(double) * (size_t)p.head_dim);
        struct et_spread *spread = malloc(sizeof *spread * (size_t)p.head_dim);
        const struct et_arith arith = {.depth_sum = 10};
        ck_assert_int_eq(op->units(&m.problem), p.query_length * p.q_heads);
        for (int64_t u = 0; u < op->units(&m.problem); u++) {
            const int64_t s = u / p.q_heads, h = u % p.q_heads;
            ck_assert_int_eq(op->unit(&m.problem, u).at, u * p.head_dim);
            op->oracle(&m.problem, u, &arith, 1, work, value, spread);
            for (int64_t d = 0; d < p.head_dim; d++) {
                long double sum = 0, sizes = 0, squares = 0;
                for (int64_t c = 0; c < p.context; c++) {
                    const long double term = (long double)at(&m, W, h, s, c) *
                                             (long double)at(&m, V, c, h * p.kv_heads / p.q_heads, d);
                    sum += term;
                    sizes += fabsl(term);
                    squares += term * term;
                }
                close_to(value[d], (double)sum, (double)sizes * 0x1p-44);
                /* u^2/3 n (ref^2 + sum t^2), gamma_10 sum|t|, 6 u sqrt(n/3) sum|t| with u = 2^-24 */
                const double n = (double)p.context, u24 = 0x1p-24;
                close_to(spread[d].variance, u24 * u24 / 3 * n * (double)(sum * sum + squares),
                         1e-9 * spread[d].variance);
                close_to(spread[d].worst, 10 * u24 / (1 - 10 * u24) * (double)sizes, 1e-9 * spread[d].worst);
                close_to(spread[d].likely, 6 * u24 * sqrt(n / 3) * (double)sizes, 1e-9 * spread[d].likely);
                ck_assert(spread[d].bias == 0);
            }
        }
        free(spread);
        free(value);
        free(work);
        unmake(&m);
    }
}
END_TEST

/* One output of ctx64x4, written from operators' prose rather than from ref/: an element at a time. */
static float emulate(const struct made *m, int64_t s, int64_t h, int64_t d)
{
    const struct et_gqa_av *p = &m->params;
    float partial[64] = {0};
    for (int64_t quad = 0; quad * 4 < p->context; quad++) {
        const bool tail = quad * 4 + 4 > p->context;
        float *sum = &partial[tail ? 0 : quad % 64];
        for (int64_t c = quad * 4; c < quad * 4 + 4; c++)
            *sum = c < p->context
                       ? fmaf(at(m, W, h, s, c), at(m, V, c, h * p->kv_heads / p->q_heads, d), *sum)
                       : fmaf(0, 0, *sum);
    }
    for (int width = 32; width; width /= 2)
        for (int i = 0; i < width; i++)
            partial[i] = partial[i] + partial[i + width];
    return partial[0];
}

static float emulate_serial(const struct made *m, int64_t s, int64_t h, int64_t d)
{
    const struct et_gqa_av *p = &m->params;
    float sum = 0;
    for (int64_t c = 0; c < p->context; c++)
        sum = fmaf(at(m, W, h, s, c), at(m, V, c, h * p->kv_heads / p->q_heads, d), sum);
    return sum;
}

static const struct replayed {
    struct et_order order;
    float (*emulate)(const struct made *m, int64_t s, int64_t h, int64_t d);
} replays[] = {{{.name = "ctx64x4"}, emulate}, {{.name = "serial"}, emulate_serial}};

START_TEST(the_replay_is_the_order)
{
    const struct et_order order = replays[_i].order;
    for (int i = 0; i < SHAPES; i++) {
        struct made m;
        const struct et_gqa_av p = shapes[i];
        make(&m, p, (enum et_dtype)(i % 3), ET_FILL_UNIFORM);
        const struct et_operator *op = m.problem.op;
        void *work = malloc(op->work_bytes(&m.problem));
        float *value = malloc(sizeof(float) * (size_t)p.head_dim);
        for (int64_t u = 0; u < op->units(&m.problem); u++) {
            struct et_met met = {false};
            struct et_error error;
            ck_assert_int_eq(op->replay(&m.problem, &order, u, work, value, &met, &error), ET_OK);
            ck_assert(!met.subnormal);
            for (int64_t d = 0; d < p.head_dim; d++) {
                const float want = replays[_i].emulate(&m, u / p.q_heads, u % p.q_heads, d);
                ck_assert_msg(!memcmp(&want, &value[d], sizeof want), "shape %d, unit %d, d %d: %a, not %a",
                              i, (int)u, (int)d, (double)value[d], (double)want);
            }
        }
        free(value);
        free(work);
        unmake(&m);
    }
}
END_TEST

START_TEST(an_order_without_a_replay_is_refused_by_name)
{
    struct made m;
    make(&m, shapes[1], ET_F32, ET_FILL_NORMAL);
    float value;
    struct et_met met = {false};
    struct et_error error;
    void *work = malloc(m.problem.op->work_bytes(&m.problem));
    const struct et_order order = {.name = "lanes32", .arg = {7}};
    ck_assert_int_eq(m.problem.op->replay(&m.problem, &order, 0, work, &value, &met, &error), ET_REFUSED);
    ck_assert_str_eq(error.text, "gqa_av has no replay of order lanes32(7)");
    free(work);
    unmake(&m);
}
END_TEST

START_TEST(the_machines_fma_and_the_plain_one_give_the_same_bytes)
{
    enum { N = 1 << 12 };
    float x[N], fast[N], plain[N];
    const struct et_stream stream = et_stream(1, "fma");
    for (uint32_t block = 0; block < 8; block++) {
        for (int i = 0; i < N; i++) {
            /* every pattern but NaN: subnormals and infinities too */
            uint32_t bits[2];
            for (uint32_t k = 0; k < 2; k++)
                bits[k] = et_word(&stream, (uint64_t)i, 2 * block + k);
            memcpy(&x[i], &bits[0], sizeof x[i]);
            memcpy(&fast[i], &bits[1], sizeof fast[i]);
            x[i] = isnan(x[i]) ? 1 : x[i];
            fast[i] = isnan(fast[i]) || isinf(fast[i]) ? 0 : fast[i];
            plain[i] = fast[i];
        }
        const float a = block % 2 ? 0x1.23456p-20F : -0x1.6789abp+3F;
        ck_assert_int_eq(et_fma_row(fast, a, x, N), et_fma_row_plain(plain, a, x, N));
        ck_assert(!memcmp(fast, plain, sizeof fast));
    }
}
END_TEST

START_TEST(an_f16_accumulator_rounds_once)
{
    /*
     * 1 + 2^-10 is odd; 2^-11 (1 + 2^-22)(1 - 2^-22) = 2^-11 - 2^-55 is just below half its ulp, so the sum
     * rounds down. Through f64 it would become the tie, which goes up to even.
     */
    float acc = 0x1.004p0F;
    const float x = 0x1p-11F * (1 - 0x1p-22F);
    et_fma_row_f16(&acc, 1 + 0x1p-22F, &x, 1);
    ck_assert_float_eq(acc, 0x1.004p0F);
    /* and just above the half of an even one it rounds up: 1 + (2^-11 + 2^-33 ...) */
    acc = 1;
    const float y = 0x1p-11F * (1 + 0x1p-22F);
    et_fma_row_f16(&acc, 1, &y, 1);
    ck_assert_float_eq(acc, 0x1.004p0F);
    acc = 1;
    const float tie = 0x1p-11F;
    et_fma_row_f16(&acc, 1, &tie, 1);
    ck_assert_float_eq(acc, 1);
}
END_TEST

START_TEST(a_narrow_accumulator_is_allowed_more_and_stagnates)
{
    struct made m;
    make(&m, (struct et_gqa_av){1, 1, 1, 1, 4096, 4096}, ET_F16, ET_FILL_CONSTANT);
    void *work = malloc(m.problem.op->work_bytes(&m.problem));
    const struct et_arith arith[] = {{.depth_sum = 74}, {.sum = ET_F16, .depth_sum = 74}};
    double value;
    struct et_spread spread[2];
    m.problem.op->oracle(&m.problem, 0, arith, 2, work, &value, spread);
    /* w = 1/4096, v = 1: the terms 2^-12 are below u S = 2^-11, so all of them may be lost. */
    ck_assert_double_eq_tol(value, 1, 1e-12);
    ck_assert(spread[0].bias == 0);
    ck_assert_double_eq_tol(spread[1].bias, 1, 1e-12);
    ck_assert(spread[1].variance > 1e7 * spread[0].variance);
    free(work);
    unmake(&m);
}
END_TEST

START_TEST(edges_are_increasing_and_stand_at_groups_borders)
{
    struct made m;
    int64_t edge[16];
    make(&m, (struct et_gqa_av){12, 3, 1, 1, 4, 4}, ET_F32, ET_FILL_NORMAL);
    const int64_t want[] = {0, 3, 4, 11};
    ck_assert_int_eq(m.problem.op->edges(&m.problem, 16, edge), 4);
    ck_assert_mem_eq(edge, want, sizeof want);
    unmake(&m);
    make(&m, (struct et_gqa_av){1, 1, 1, 1, 4, 4}, ET_F32, ET_FILL_NORMAL);
    ck_assert_int_eq(m.problem.op->edges(&m.problem, 16, edge), 1);
    unmake(&m);
}
END_TEST

START_TEST(sizes_that_leave_63_bits_are_refused_before_any_allocation)
{
    struct et_tensor tensor = {.dtype = ET_F32, .rank = 3, .size = {1LL << 40, 1 << 16, 1 << 16}};
    ck_assert(!et_tensor_pack(&tensor));
    tensor.size[0] = 1 << 20;
    ck_assert(et_tensor_pack(&tensor));
    ck_assert_uint_eq(tensor.bytes, (size_t)1 << 54);
    tensor.size[1] = 0;
    ck_assert(et_tensor_pack(&tensor));
    ck_assert_uint_eq(tensor.bytes, 0);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("gqa_av");
    TCase *tests = tcase_create("gqa_av");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, a_refused_shape_names_field_value_and_limit);
    tcase_add_test(tests, weights_are_padded_to_four_rows_and_four_lanes);
    tcase_add_test(tests, filled_weights_are_a_softmax_without_subnormals);
    tcase_add_test(tests, the_oracle_is_the_definition);
    tcase_add_loop_test(tests, the_replay_is_the_order, 0, 2);
    tcase_add_test(tests, an_order_without_a_replay_is_refused_by_name);
    tcase_add_test(tests, the_machines_fma_and_the_plain_one_give_the_same_bytes);
    tcase_add_test(tests, an_f16_accumulator_rounds_once);
    tcase_add_test(tests, a_narrow_accumulator_is_allowed_more_and_stagnates);
    tcase_add_test(tests, edges_are_increasing_and_stand_at_groups_borders);
    tcase_add_test(tests, sizes_that_leave_63_bits_are_refused_before_any_allocation);
    suite_add_tcase(suite, tests);
    return suite;
}
