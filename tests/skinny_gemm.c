/* skinny_gemm: the definition on literal numbers, every claimed order against an emulation that shares no
 * code with ref/, the facts that the orders rest on, and honest kernels within their tolerance. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/etalon.h"
#include "suite.h"

enum { WEIGHT, WEIGHT_SCALE, ZERO_POINTS, ACT_SCALE, ACT, BIAS, OUT };

/* The storage types that go together. */
struct types {
    enum et_dtype weight, scale, act, out;
};

static const struct types floats = {ET_F32, ET_F32, ET_F32, ET_F32};
static const struct types all_types[] = {
    {ET_F32, ET_F32, ET_F32, ET_F32},
    {ET_F16, ET_F32, ET_F16, ET_F16},
    {ET_BF16, ET_F32, ET_BF16, ET_BF16},
    {ET_BF16, ET_F32, ET_BF16, ET_F32},
    {ET_F8E4M3FN, ET_F32, ET_F8E4M3FN, ET_F16},
    {ET_F8E4M3FNUZ, ET_F32, ET_F8E4M3FNUZ, ET_BF16},
    {ET_I8, ET_F32, ET_F16, ET_F32},
    {ET_I4, ET_F16, ET_F16, ET_F32},
    {ET_I4, ET_BF16, ET_BF16, ET_BF16},
};
enum { TYPES = sizeof all_types / sizeof *all_types };

struct made {
    struct et_skinny_gemm params;
    struct et_problem problem;
    void *work;
    double *value;
    struct et_spread *spread;
    float *replayed;
};

static enum et_status shape_of(struct et_skinny_gemm params, struct types types, struct et_tensor *tensor,
                               struct et_error *error)
{
    const enum et_dtype dtypes[] = {types.weight, types.scale, ET_U8,    ET_F32,
                                    types.act,    types.out,   types.out};
    for (int t = WEIGHT; t <= OUT; t++)
        tensor[t].dtype = dtypes[t];
    return et_operator_named("skinny_gemm")->shape(&params, tensor, error);
}

/* Rows `pad` elements further apart than they are long, beginning at element `pad`. */
static void lay_out(struct et_tensor *tensor, int64_t pad)
{
    ck_assert(et_tensor_pack(tensor));
    if (et_tensor_count(tensor) > 0) {
        tensor->stride[0] += pad;
        tensor->offset = pad;
        tensor->bytes = et_bytes(tensor->dtype, tensor->stride[0] * tensor->size[0] + pad);
    }
    tensor->data = malloc(tensor->bytes + 1);
    memset(tensor->data, 0xff, tensor->bytes + 1);
}

static void put(struct made *m, int t, int64_t i, int64_t j, double value)
{
    struct et_tensor *tensor = &m->problem.tensor[t];
    et_store(tensor->dtype, tensor->data, et_row_at(tensor, i) + j, et_narrow(tensor->dtype, value));
}

static double at(const struct made *m, int t, int64_t i, int64_t j)
{
    const struct et_tensor *tensor = &m->problem.tensor[t];
    return (double)et_widen(tensor->dtype, et_load(tensor->dtype, tensor->data, et_row_at(tensor, i) + j));
}

static void fill_with(struct made *m, int t, const struct et_fill *fill)
{
    const struct et_tensor *tensor = &m->problem.tensor[t];
    float *row = malloc(sizeof(float) * (size_t)(tensor->size[1] + 1));
    for (int64_t i = 0; i < et_tensor_rows(tensor); i++) {
        m->problem.op->fill(&m->problem, fill, t, i, row);
        for (int64_t k = 0; k < tensor->size[1]; k++)
            put(m, t, i, k, (double)row[k]);
    }
    free(row);
}

static void make(struct made *m, struct et_skinny_gemm params, struct types types, enum et_fill_kind kind,
                 uint64_t seed, int64_t pad)
{
    memset(m, 0, sizeof *m);
    m->params = params;
    m->problem = (struct et_problem){.op = et_operator_named("skinny_gemm"), .params = &m->params};
    struct et_error error;
    ck_assert_msg(shape_of(params, types, m->problem.tensor, &error) == ET_OK, "%s", error.text);
    const struct et_fill fill = {.kind = kind, .seed = seed, .value = 1};
    for (int t = WEIGHT; t <= OUT; t++)
        lay_out(&m->problem.tensor[t], pad);
    for (int t = WEIGHT; t < OUT; t++)
        fill_with(m, t, &fill);
    m->work = malloc(m->problem.op->work_bytes(&m->problem));
    m->value = malloc(sizeof(double) * (size_t)params.tokens);
    m->spread = malloc(sizeof *m->spread * (size_t)params.tokens);
    m->replayed = malloc(sizeof(float) * (size_t)params.tokens);
}

static void unmake(struct made *m)
{
    for (int t = WEIGHT; t <= OUT; t++)
        free(m->problem.tensor[t].data);
    free(m->work);
    free(m->value);
    free(m->spread);
    free(m->replayed);
}

static void oracle(struct made *m, int64_t row, const struct et_arith *arith)
{
    m->problem.op->oracle(&m->problem, row, arith, 1, m->work, m->value, m->spread);
}

static struct et_order lanes(int32_t lanes, int32_t a_chunk, int32_t dot, int32_t shards)
{
    return (struct et_order){.name = "lanes", .arg = {lanes, a_chunk, dot, shards}};
}

static void replay(struct made *m, const struct et_order *order, int64_t row)
{
    struct et_met met = {false};
    struct et_error error;
    ck_assert_msg(m->problem.op->replay(&m->problem, order, row, m->work, m->replayed, &met, &error) == ET_OK,
                  "%s", error.text);
    ck_assert(!met.subnormal);
}

START_TEST(a_refused_shape_names_field_value_and_limit)
{
    static const struct {
        struct et_skinny_gemm params;
        struct types types;
        const char *sentence;
    } refused[] = {
        {{0, 1, 1, 0, 0, 0}, {ET_F32, ET_F32, ET_F32, ET_F32}, "tokens is 0, must be at least 1"},
        {{1, 0, 1, 0, 0, 0}, {ET_F32, ET_F32, ET_F32, ET_F32}, "out_features is 0, must be at least 1"},
        {{1, 1, 0, 0, 0, 0}, {ET_F32, ET_F32, ET_F32, ET_F32}, "in_features is 0, must be at least 1"},
        {{1, 1, 1, 0, 0, 0}, {ET_F16, ET_F32, ET_BF16, ET_BF16}, "act is bf16, must be f16 as weight is"},
        {{1, 1, 1, 0, 0, 0}, {ET_F16, ET_F32, ET_F16, ET_BF16}, "out is bf16, must be f32, or f16 as act is"},
        {{1, 1, 1, 0, 0, 0},
         {ET_I8, ET_F32, ET_F8E4M3FN, ET_BF16},
         "act is f8e4m3fn, must be bf16, f16 or f32 for a weight of i8"},
        {{1, 1, 1, 0, 0, 0},
         {ET_I8, ET_F16, ET_F16, ET_F16},
         "weight_scale is f16, must be f32 for a weight of i8 and act of f16"},
        {{1, 1, 32, 0, 32, 0},
         {ET_I4, ET_F32, ET_F16, ET_F16},
         "weight_scale is f32, must be f16 for a weight of i4 and act of f16"},
        {{1, 1, 32, 0, 32, 0},
         {ET_F16, ET_F32, ET_F16, ET_F16},
         "group is 32, must be 0 for a weight of f16"},
        {{1, 1, 32, 0, 0, 1},
         {ET_F16, ET_F32, ET_F16, ET_F16},
         "zero_points is true, must be false for a weight of f16"},
        {{1, 1, 32, 0, 0, 0},
         {ET_I4, ET_F16, ET_F16, ET_F16},
         "group is 0, must be 32, 64 or 128 for a weight of i4"},
        {{1, 1, 96, 0, 64, 0},
         {ET_I4, ET_F16, ET_F16, ET_F16},
         "in_features is 96, must be a multiple of group = 64"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct et_tensor tensor[ET_TENSORS];
        struct et_error error = {.text = ""};
        ck_assert_int_eq(shape_of(refused[i].params, refused[i].types, tensor, &error), ET_REFUSED);
        ck_assert_str_eq(error.text, refused[i].sentence);
    }
}
END_TEST

/* Two tokens, two rows of weights; what lies beyond the first four columns of act is 0. */
static void put_literals(struct made *m)
{
    static const double weight[2][4] = {{1, 2, 3, 4}, {5, 6, 7, -8}},
                        act[2][4] = {{1, 0, -1, 2}, {.5, .5, .5, .5}};
    const struct et_fill none = {.kind = ET_FILL_CONSTANT};
    fill_with(m, WEIGHT, &none);
    fill_with(m, ACT, &none);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 4; k++) {
            put(m, WEIGHT, i, k, weight[i][k]);
            put(m, ACT, i, k, act[i][k]);
        }
}

static void expect_literals(struct made *m, const double want[2][2])
{
    static const struct et_arith arith = {.depth_sum = 10};
    for (int64_t row = 0; row < 2; row++) {
        const struct et_unit unit = m->problem.op->unit(&m->problem, row);
        ck_assert(unit.output == OUT && unit.at == row && unit.step == 2 && unit.count == 2);
        oracle(m, row, &arith);
        for (int n = 0; n < 2; n++)
            ck_assert_double_eq(m->value[n], want[n][row]);
    }
}

/*
 * Token 0: 1*1 + 0*2 - 1*3 + 2*4 = 6 and 5 - 7 - 16 = -18; token 1: (1 + 2 + 3 + 4)/2 = 5 and (5 + 6 + 7 -
 * 8)/2 = 5. f8: times 0.5 * 4. i8 and i4: row 0 times 2, row 1 times 0.25. Zero points 3 and 10 in place of 8
 * add 5 and -2 to each weight, act adding up to 2 for both tokens: 6 + 10, -18 - 4, 5 + 10, 5 - 4.
 */
START_TEST(the_oracle_gives_what_is_worked_out_by_hand)
{
    static const double plain[2][2] = {{6, -18}, {5, 5}}, f8[2][2] = {{12, -36}, {10, 10}},
                        scaled[2][2] = {{12, -4.5}, {10, 1.25}}, zeroed[2][2] = {{32, -5.5}, {30, 0.25}};
    for (int64_t pad = 0; pad <= 6; pad += 6)
        for (int i = 0; i < TYPES; i++) {
            const struct types types = all_types[i];
            const bool is_f8 = types.weight == ET_F8E4M3FN || types.weight == ET_F8E4M3FNUZ;
            for (int zero = 0; zero <= (types.weight == ET_I4); zero++) {
                struct made m;
                const struct et_skinny_gemm params = {
                    2, 2, types.weight == ET_I4 ? 64 : 5, 0, types.weight == ET_I4 ? 64 : 0, zero};
                make(&m, params, types, ET_FILL_NORMAL, 1, pad);
                put_literals(&m);
                for (int64_t row = 0; row < m.problem.tensor[WEIGHT_SCALE].size[0]; row++)
                    put(&m, WEIGHT_SCALE, row, 0, is_f8 ? 4 : row == 0 ? 2 : 0.25);
                if (is_f8)
                    put(&m, ACT_SCALE, 0, 0, 0.5);
                for (int64_t row = 0; row < 2 && zero; row++)
                    put(&m, ZERO_POINTS, row, 0, row == 0 ? 3 : 10);
                expect_literals(&m, is_f8                              ? f8
                                    : zero                             ? zeroed
                                    : et_format(types.weight)->integer ? scaled
                                                                       : plain);
                unmake(&m);
            }
        }
}
END_TEST

/* On top of 6, -18, 5, 5: 1 and -2 by row, by token; 1, -2, 3, -4 by both. */
START_TEST(bias_is_added_in_each_of_its_shapes)
{
    static const double want[][2][2] = {
        [ET_BIAS_NONE] = {{6, -18}, {5, 5}}, [ET_BIAS_M] = {{7, -20}, {6, 3}},
        [ET_BIAS_1XM] = {{7, -20}, {6, 3}},  [ET_BIAS_NX1] = {{7, -17}, {3, 3}},
        [ET_BIAS_NXM] = {{7, -20}, {8, 1}},
    };
    static const double values[] = {1, -2, 3, -4};
    for (int64_t bias = ET_BIAS_NONE; bias <= ET_BIAS_NXM; bias++) {
        struct made m;
        make(&m, (struct et_skinny_gemm){2, 2, 4, bias, 0, 0}, all_types[2], ET_FILL_NORMAL, 1, 3);
        put_literals(&m);
        const struct et_tensor *tensor = &m.problem.tensor[BIAS];
        for (int64_t i = 0; i < et_tensor_count(tensor); i++)
            put(&m, BIAS, i / tensor->size[1], i % tensor->size[1], values[i]);
        expect_literals(&m, want[bias]);
        unmake(&m);
    }
}
END_TEST

static double weight_of(const struct made *m, int64_t row, int64_t k)
{
    const struct et_skinny_gemm *p = &m->params;
    const double w = at(m, WEIGHT, row, k);
    return p->zero_points ? w + 8 - at(m, ZERO_POINTS, row, k / p->group) : w;
}

static void close_to(double got, double want, double tolerance)
{
    ck_assert_msg(fabs(got - want) <= tolerance, "%.17g is not within %g of %.17g", got, tolerance, want);
}

/*
 * With u = 2^-24 and K terms t: u^2/3 (K (S^2 + sum t^2) + sum over groups of their sum squared), gamma_10
 * sum|t|, and 6u sqrt(K/3) sum|t|, S being the sum; scales multiply all that, each adds 2u|S| to bias and
 * worst, and bias its own u.
 */
START_TEST(the_spread_is_the_documents)
{
    const struct et_arith arith = {.depth_sum = 10};
    for (int i = 0; i < TYPES; i++) {
        struct made m;
        const int64_t group = all_types[i].weight == ET_I4 ? 32 : 0;
        make(&m, (struct et_skinny_gemm){2, 3, 96, ET_BIAS_NXM, group, group > 0}, all_types[i],
             ET_FILL_NORMAL, 5, 4);
        oracle(&m, 1, &arith);
        for (int64_t n = 0; n < 2; n++) {
            double sum = 0, squares = 0, sizes = 0, parts = 0, scale = 1, part = 0, u = 0x1p-24;
            for (int64_t k = 0; k < 96; k++) {
                const double t =
                    at(&m, ACT, n, k) * weight_of(&m, 1, k) * (group ? at(&m, WEIGHT_SCALE, 1, k / 32) : 1);
                sum += t;
                squares += t * t;
                sizes += fabs(t);
                part = k % 32 ? part + t : t;
                parts += group && k % 32 == 31 ? part * part : 0;
            }
            const bool f8 = m.problem.tensor[ACT_SCALE].bytes > 0, i8 = all_types[i].weight == ET_I8;
            if (f8)
                scale = at(&m, ACT_SCALE, 0, 0) * at(&m, WEIGHT_SCALE, 0, 0);
            if (i8)
                scale = at(&m, WEIGHT_SCALE, 1, 0);
            const double bias = at(&m, BIAS, n, 1);
            const double more = (f8 ? 4 : i8 ? 2 : 0) * u * fabs(sum * scale) + u * fabs(bias);
            const struct et_spread *s = &m.spread[n];
            close_to(m.value[n], sum * scale + bias, 1e-12 * sizes);
            close_to(s->variance, scale * scale * u * u / 3 * (96 * (sum * sum + squares) + parts),
                     1e-9 * s->variance);
            close_to(s->worst, scale * 10 * u / (1 - 10 * u) * sizes + more, 1e-9 * s->worst);
            close_to(s->likely, scale * 6 * u * sqrt(32) * sizes, 1e-9 * s->likely);
            close_to(s->bias, more, 1e-9 * s->bias + 1e-30);
        }
        unmake(&m);
    }
}
END_TEST

/* Terms [from, to) of one output, written from operators' prose: one output at a time. */
static float dot_of(const struct made *m, int64_t n, int64_t row, int64_t from, int64_t to, bool pair,
                    float acc)
{
    for (int64_t k = from; k < to; k++) {
        const float a = (float)at(m, ACT, n, k), w = (float)weight_of(m, row, k);
        if (pair) {
            const float first = a * w;
            k++;
            const float both = fmaf((float)at(m, ACT, n, k), (float)weight_of(m, row, k), first);
            acc = acc + both;
        } else {
            acc = fmaf(a, w, acc);
        }
    }
    return acc;
}

static float piece_of(const struct made *m, int64_t n, int64_t row, int64_t from, int64_t to, bool pair,
                      float acc)
{
    if (m->params.group == 0)
        return dot_of(m, n, row, from, to, pair, acc);
    const float sum = dot_of(m, n, row, from, to, pair, 0);
    return fmaf(sum, (float)at(m, WEIGHT_SCALE, row, from / m->params.group), acc);
}

static float finish(const struct made *m, int64_t n, int64_t row, float sum)
{
    static const int64_t by_token[] = {[ET_BIAS_NX1] = 1, [ET_BIAS_NXM] = 1};
    const struct et_tensor *t = m->problem.tensor;
    if (t[ACT_SCALE].bytes > 0) {
        sum *= (float)at(m, ACT_SCALE, 0, 0);
        sum *= (float)at(m, WEIGHT_SCALE, 0, 0);
    } else if (t[WEIGHT].dtype == ET_I8) {
        sum *= (float)at(m, WEIGHT_SCALE, row, 0);
    }
    if (m->params.bias == ET_BIAS_NONE)
        return sum;
    return sum +
           (float)at(m, BIAS, by_token[m->params.bias] ? n : 0, m->params.bias == ET_BIAS_NX1 ? 0 : row);
}

static float emulate(const struct made *m, const struct et_order *order, int64_t n, int64_t row)
{
    static const int distance[] = {8, 4, 2, 1, 16, 32};
    const int64_t k = m->params.in_features, width = order->arg[0], chunk = order->arg[1];
    const int64_t shards = order->arg[3] > 1 ? order->arg[3] : 1, step = width * chunk;
    const int64_t q = (k + step * shards - 1) / (step * shards);
    float total = 0;
    for (int64_t s = 0; s < shards; s++) {
        float x[64] = {0}, y[64];
        for (int64_t t = 0; t < width; t++)
            for (int64_t j = s * q; j < (s + 1) * q; j++)
                if (j * step + t * chunk < k)
                    x[t] = piece_of(m, n, row, j * step + t * chunk, j * step + (t + 1) * chunk,
                                    order->arg[2] == 1, x[t]);
        for (int d = 0; d < (width == 64 ? 6 : 5); d++) {
            for (int64_t t = 0; t < width; t++)
                y[t] = x[t] + x[t ^ distance[d]];
            memcpy(x, y, sizeof x);
        }
        total = s == 0 ? x[0] : total + x[0];
    }
    return finish(m, n, row, total);
}

static float emulate_serial(const struct made *m, int64_t n, int64_t row)
{
    const int64_t k = m->params.in_features, piece = m->params.group ? m->params.group : k;
    float acc = 0;
    for (int64_t from = 0; from < k; from += piece)
        acc = piece_of(m, n, row, from, from + piece, false, acc);
    return finish(m, n, row, acc);
}

static void same_bits(float got, float want, const char *what)
{
    ck_assert_msg(memcmp(&got, &want, sizeof got) == 0, "%s: %a is not %a", what, (double)got, (double)want);
}

START_TEST(a_replay_is_the_claimed_order)
{
    const struct et_order serial = {.name = "serial"};
    static const int64_t sizes[] = {32, 288, 1056, 2592};
    for (int i = 0; i < TYPES; i++)
        for (int s = 0; s < 4; s++) {
            const int64_t group = all_types[i].weight == ET_I4 ? 32 : 0;
            struct made m;
            make(&m, (struct et_skinny_gemm){3, 2, sizes[s], s + 1, group, group && s % 2}, all_types[i],
                 ET_FILL_NORMAL, (uint64_t)s, 2);
            for (int order = 0; order < 2 * 3 * 2 * 3; order++) {
                const struct et_order o = lanes(32 << order % 2, 8 << order / 2 % 3, order / 6 % 2,
                                                order / 12 == 0 ? 0 : 4 * (order / 12) - 2);
                replay(&m, &o, 1);
                for (int64_t n = 0; n < 3; n++)
                    same_bits(m.replayed[n], emulate(&m, &o, n, 1), "lanes");
            }
            replay(&m, &serial, 1);
            for (int64_t n = 0; n < 3; n++)
                same_bits(m.replayed[n], emulate_serial(&m, n, 1), "serial");
            unmake(&m);
        }
}
END_TEST

START_TEST(an_order_that_does_not_fit_is_refused_by_a_sentence)
{
    struct made m;
    make(&m, (struct et_skinny_gemm){1, 1, 24, 0, 0, 0}, floats, ET_FILL_NORMAL, 1, 0);
    const struct et_order wide = lanes(32, 16, 0, 1), odd = lanes(16, 8, 0, 1),
                          many = lanes(32, 8, 0, INT32_MAX), less = lanes(32, 8, 0, -1);
    struct et_met met = {false};
    struct et_error error;
    ck_assert_int_eq(m.problem.op->replay(&m.problem, &wide, 0, m.work, m.replayed, &met, &error),
                     ET_REFUSED);
    ck_assert_str_eq(error.text, "in_features is 24, must be a multiple of a_chunk = 16");
    ck_assert_int_eq(m.problem.op->replay(&m.problem, &odd, 0, m.work, m.replayed, &met, &error), ET_REFUSED);
    ck_assert_str_eq(error.text, "skinny_gemm has no replay of order lanes(16, 8, 0, 1)");
    ck_assert_int_eq(m.problem.op->replay(&m.problem, &many, 0, m.work, m.replayed, &met, &error),
                     ET_REFUSED);
    ck_assert_str_eq(error.text, "skinny_gemm has no replay of order lanes(32, 8, 0, 2147483647)");
    ck_assert_int_eq(m.problem.op->replay(&m.problem, &less, 0, m.work, m.replayed, &met, &error),
                     ET_REFUSED);
    unmake(&m);
}
END_TEST

/* What lane 31 holds after row_shr 8, 4, 2, 1 in rows of 16 lanes, where 0 comes in from outside, and the sum
 * of lane ^ 16 added. */
static float shifted(const float *lane)
{
    float x[32];
    memcpy(x, lane, sizeof x);
    for (int by = 8; by >= 1; by /= 2)
        for (int t = 31; t >= 0; t--)
            x[t] = x[t] + (t % 16 >= by ? x[t - by] : 0);
    return x[31] + x[15];
}

static float sixteen_first(const float *lane)
{
    static const int distance[] = {16, 8, 4, 2, 1};
    float x[32], y[32];
    memcpy(x, lane, sizeof x);
    for (int d = 0; d < 5; d++) {
        for (int t = 0; t < 32; t++)
            y[t] = x[t] + x[t ^ distance[d]];
        memcpy(x, y, sizeof x);
    }
    return x[31];
}

/*
 * 200,000 vectors of lane sums, products of two normal numbers rounded to f32: the replay's tree, seen
 * through lanes that have one term each, is the shifts'; adding the far half first is another sum in 63 % of
 * them (binomial: 0.1 % off at most once in 370 runs; 61 to 65 allowed).
 */
START_TEST(the_tree_is_the_hardware_shifts_and_16_first_is_another)
{
    enum { TOKENS = 64, CALLS = 3125, K = 256 };
    struct made m;
    make(&m, (struct et_skinny_gemm){TOKENS, 1, K, 0, 0, 0}, floats, ET_FILL_CONSTANT, 1, 0);
    const struct et_stream stream = et_stream(7, "lanes");
    const struct et_order order = lanes(32, 8, 0, 1);
    int differ = 0, others = 0;
    float *act = m.problem.tensor[ACT].data;
    memset(act, 0, sizeof(float) * TOKENS * K);
    for (int call = 0; call < CALLS; call++) {
        static float lane[TOKENS][32];
        for (int i = 0; i < TOKENS * 32; i++) {
            const uint64_t index = 2 * ((uint64_t)call * TOKENS * 32 + (uint64_t)i);
            lane[i / 32][i % 32] = et_normal(&stream, index) * et_normal(&stream, index + 1);
            act[i / 32 * K + i % 32 * 8] = lane[i / 32][i % 32];
        }
        replay(&m, &order, 0);
        for (int n = 0; n < TOKENS; n++) {
            differ += m.replayed[n] != shifted(lane[n]);
            others += m.replayed[n] != sixteen_first(lane[n]);
        }
    }
    ck_assert_int_eq(differ, 0);
    ck_assert_msg(others > 122000 && others < 130000, "%d of 200000", others);
    unmake(&m);
}
END_TEST

/* 102,400 outputs of 2048 bf16 terms: f32 sums of three a_chunks are not all the same in 87 %, their bf16 in
 * 0.05 %. */
START_TEST(a_chunk_is_a_class_of_its_own)
{
    struct made m;
    enum { TOKENS = 64, ROWS = 1600 };
    make(&m, (struct et_skinny_gemm){TOKENS, ROWS, 2048, 0, 0, 0}, all_types[2], ET_FILL_NORMAL, 3, 0);
    const struct et_order orders[] = {lanes(32, 8, 0, 1), lanes(32, 16, 0, 1), lanes(32, 32, 0, 1)};
    int sums = 0, stored = 0;
    for (int64_t row = 0; row < ROWS; row++) {
        float x[3][TOKENS];
        for (int i = 0; i < 3; i++) {
            replay(&m, &orders[i], row);
            memcpy(x[i], m.replayed, sizeof x[i]);
        }
        for (int n = 0; n < TOKENS; n++) {
            uint32_t bits[3];
            for (int i = 0; i < 3; i++)
                bits[i] = et_narrow(ET_BF16, (double)x[i][n]);
            sums += x[0][n] != x[1][n] || x[0][n] != x[2][n];
            stored += bits[0] != bits[1] || bits[0] != bits[2];
        }
    }
    ck_assert_msg(sums > TOKENS * ROWS / 100 * 84 && sums < TOKENS * ROWS / 100 * 90, "%d", sums);
    ck_assert_msg(stored > 20 && stored < 150, "%d", stored);
    unmake(&m);
}
END_TEST

/* ---- Honest kernels ---- */

enum kernel { SERIAL, UNFUSED, PAIR, WIDE, SPLIT, BLOCKED, KERNELS };

static float blocked(const struct made *m, int64_t n, int64_t row, int64_t block)
{
    const int64_t k = m->params.in_features;
    float acc = 0;
    for (int64_t from = 0; from < k; from += block)
        acc += dot_of(m, n, row, from, from + block < k ? from + block : k, false, 0);
    return acc;
}

static float unfused(const struct made *m, int64_t n, int64_t row)
{
    float acc = 0;
    for (int64_t k = 0; k < m->params.in_features; k++) {
        const float term = (float)at(m, ACT, n, k) * (float)at(m, WEIGHT, row, k);
        acc = acc + term;
    }
    return acc;
}

static float run_kernel(const struct made *m, enum kernel kernel, int64_t n, int64_t row)
{
    const struct et_order pair = lanes(32, 8, 1, 1), wide = lanes(64, 16, 0, 1), split = lanes(32, 8, 0, 8);
    switch (kernel) {
    case SERIAL:
        return emulate_serial(m, n, row);
    case UNFUSED:
        return unfused(m, n, row);
    case PAIR:
        return emulate(m, &pair, n, row);
    case WIDE:
        return emulate(m, &wide, n, row);
    case SPLIT:
        return emulate(m, &split, n, row);
    case BLOCKED:
    case KERNELS:
        break;
    }
    return blocked(m, n, row, 256);
}

/* As the judge has it for independent data; depth is generous, so that `likely` is not what holds. */
static double tolerance(const struct made *m, int64_t n)
{
    const struct et_spread *s = &m->spread[n];
    const double bound = fmin(s->worst, 6 * sqrt(s->variance) + s->bias) + 3 * 0x1p-24 * fabs(m->value[n]);
    return bound + et_half_ulp(m->problem.tensor[OUT].dtype, fabs(m->value[n]) + bound);
}

enum data { NORMAL, UNIFORM, OUTLIER, POSITIVE, CANCELLING, DATA };

static void make_data(struct made *m, int64_t k, struct types types, enum data data)
{
    static const enum et_fill_kind kinds[] = {ET_FILL_NORMAL, ET_FILL_UNIFORM, ET_FILL_OUTLIER,
                                              ET_FILL_UNIFORM, ET_FILL_NORMAL};
    make(m, (struct et_skinny_gemm){2, 6, k, 0, 0, 0}, types, kinds[data], 9, 0);
    for (int t = WEIGHT; t <= ACT && data == POSITIVE; t += ACT - WEIGHT)
        for (int64_t i = 0; i < m->problem.tensor[t].size[0] * k; i++)
            put(m, t, i / k, i % k, fabs(at(m, t, i / k, i % k)));
    const struct et_fill cancel = {.kind = ET_FILL_OWN, .seed = 9, .value = 1e-3};
    if (data == CANCELLING)
        fill_with(m, WEIGHT, &cancel);
}

static double worst_ratio(struct made *m, float (*sum)(const struct made *, enum kernel, int64_t, int64_t),
                          enum kernel kernel, enum et_dtype declared)
{
    const struct et_arith arith = {.depth_sum = (int32_t)m->params.in_features * 2, .weight = declared};
    const enum et_dtype out = m->problem.tensor[OUT].dtype;
    double worst = 0;
    for (int64_t row = 0; row < m->params.out_features; row++) {
        oracle(m, row, &arith);
        for (int64_t n = 0; n < m->params.tokens; n++) {
            const float got = et_widen(out, et_narrow(out, (double)sum(m, kernel, n, row)));
            worst = fmax(worst, fabs((double)got - m->value[n]) / tolerance(m, n));
        }
    }
    return worst;
}

START_TEST(honest_kernels_keep_within_the_bound)
{
    static const int64_t sizes[] = {1008, 4096, 28672};
    const struct types narrow = all_types[2], wide = all_types[3];
    for (int data = 0; data < DATA; data++)
        for (int s = 0; s < 3; s++) {
            struct made m;
            make_data(&m, sizes[s], s % 2 ? narrow : wide, (enum data)data);
            for (int kernel = 0; kernel < KERNELS; kernel++) {
                const double worst = worst_ratio(&m, run_kernel, (enum kernel)kernel, ET_F32);
                ck_assert_msg(worst < 1, "kernel %d, data %d, K %d: %g", kernel, data, (int)sizes[s], worst);
                ck_assert_msg(s % 2 || worst < 0.6, "kernel %d, data %d, K %d, f32 out: %g", kernel, data,
                              (int)sizes[s], worst);
            }
            unmake(&m);
        }
}
END_TEST

/* The offset trick: q + 128 is exact in few bits, and 136 times the sum of act is taken off a group's sum. */
static float offset_trick(const struct made *m, enum kernel kernel, int64_t n, int64_t row)
{
    const int64_t group = m->params.group;
    float acc = 0;
    for (int64_t from = 0; from < m->params.in_features; from += group) {
        float sum = 0, acts = 0;
        for (int64_t k = from; k < from + group; k++) {
            sum = fmaf((float)at(m, ACT, n, k), (float)at(m, WEIGHT, row, k) + 136, sum);
            acts += (float)at(m, ACT, n, k);
        }
        acc = fmaf(fmaf(-136, acts, sum), (float)at(m, WEIGHT_SCALE, row, from / group), acc);
    }
    return kernel == PAIR ? run_kernel(m, PAIR, n, row) : acc;
}

START_TEST(honest_int4_kernels_keep_within_the_bound)
{
    static const enum et_fill_kind kinds[] = {ET_FILL_NORMAL, ET_FILL_UNIFORM, ET_FILL_OUTLIER};
    for (int i = 0; i < 3; i++)
        for (int kernel = SERIAL; kernel <= PAIR; kernel += PAIR) {
            struct made m;
            make(&m, (struct et_skinny_gemm){2, 8, 4096, 0, 128, 0}, all_types[7], kinds[i], 4, 0);
            const double worst =
                worst_ratio(&m, offset_trick, (enum kernel)kernel, kernel == PAIR ? ET_F32 : ET_U8);
            ck_assert_msg(worst < 1, "kernel %d, fill %d: %g", kernel, i, worst);
            unmake(&m);
        }
}
END_TEST

/* ---- Fills ---- */

START_TEST(exact_data_have_one_sum_in_every_order_and_each_term_shows)
{
    const struct et_order orders[] = {
        {.name = "serial"}, lanes(32, 8, 0, 1), lanes(64, 32, 1, 1), lanes(32, 16, 0, 3)};
    static const struct et_arith arith = {.depth_sum = 10};
    for (int i = 0; i < TYPES; i++)
        for (enum et_fill_kind kind = ET_FILL_EXACT; kind <= ET_FILL_ONEHOT; kind++) {
            const int64_t group = all_types[i].weight == ET_I4 ? 64 : 0;
            struct made m;
            make(&m, (struct et_skinny_gemm){4, 3, 1024, ET_BIAS_NXM, group, group > 0}, all_types[i], kind,
                 6, 2);
            const enum et_dtype out = all_types[i].out;
            for (int64_t row = 0; row < 3; row++) {
                oracle(&m, row, &arith);
                for (int o = 0; o < 4; o++) {
                    replay(&m, &orders[o], row);
                    for (int64_t n = 0; n < 4; n++)
                        ck_assert_double_eq((double)m.replayed[n], m.value[n]);
                }
                int terms = 0;
                for (int64_t n = 0; n < 4; n++) {
                    const double whole = m.value[n];
                    ck_assert_double_eq((double)et_widen(out, et_narrow(out, whole)), whole);
                    for (int64_t k = 0; k < 1024; k++) {
                        const double term = at(&m, ACT, n, k) * weight_of(&m, row, k);
                        terms += term != 0;
                        ck_assert(term == 0 || et_narrow(out, whole - term) != et_narrow(out, whole));
                    }
                    ck_assert(at(&m, ACT, n, 0) != 0 || kind == ET_FILL_ONEHOT);
                    ck_assert(at(&m, ACT, n, 1023) != 0 || kind == ET_FILL_ONEHOT);
                }
                ck_assert_int_ge(terms, kind == ET_FILL_ONEHOT ? 4 : 4 * 15);
            }
            unmake(&m);
        }
}
END_TEST

START_TEST(a_wrong_element_of_onehot_data_is_named)
{
    struct made m;
    char text[200];
    make(&m, (struct et_skinny_gemm){2, 9, 512, 0, 0, 0}, all_types[2], ET_FILL_ONEHOT, 0, 0);
    /* Seed 0: token 0 looks at the first position, token 1 at the last. */
    const double right[] = {at(&m, WEIGHT, 3, 0), at(&m, WEIGHT, 3, 511)};
    const double next[] = {at(&m, WEIGHT, 3, 1), at(&m, WEIGHT, 3, 510)}, nothing[] = {0, 0};
    ck_assert(m.problem.op->names(&m.problem, 3, right, text, sizeof text));
    ck_assert_str_eq(text, "weight (out_features, in_features) (3, 0), (3, 511)");
    ck_assert(m.problem.op->names(&m.problem, 3, next, text, sizeof text));
    ck_assert_str_eq(text, "weight (out_features, in_features) (3, 1), (3, 510)");
    ck_assert(!m.problem.op->names(&m.problem, 3, nothing, text, sizeof text));
    unmake(&m);
}
END_TEST

START_TEST(onehot_looks_at_both_ends_of_every_lane_residue)
{
    bool seen[1024] = {false};
    for (uint64_t seed = 0; seed < 130; seed++) {
        struct made m;
        make(&m, (struct et_skinny_gemm){1, 1, 1024, 0, 0, 0}, all_types[2], ET_FILL_ONEHOT, seed, 0);
        for (int64_t k = 0; k < 1024; k++)
            seen[k] |= at(&m, ACT, 0, k) != 0;
        unmake(&m);
    }
    ck_assert(seen[0] && seen[1023]);
    for (int residue = 0; residue < 64; residue++)
        for (int end = 0; end <= 7; end += 7)
            ck_assert(seen[8 * residue + end] || seen[512 + 8 * residue + end]);
}
END_TEST

/* 4096 terms of size 1 add up to some 64; these to 1e-3, but for a weight's rounding. */
START_TEST(cancelling_weights_add_up_to_the_rest)
{
    static const struct et_arith arith = {.depth_sum = 10};
    for (int i = 0; i < TYPES; i++) {
        struct made m;
        const int64_t group = all_types[i].weight == ET_I4 ? 128 : 0;
        make(&m, (struct et_skinny_gemm){1, 4, 4096, 0, group, group > 0}, all_types[i], ET_FILL_NORMAL, 2,
             0);
        const struct et_fill cancel = {.kind = ET_FILL_OWN, .seed = 2, .value = 1e-3};
        fill_with(&m, WEIGHT, &cancel);
        for (int64_t row = 0; row < 4; row++) {
            oracle(&m, row, &arith);
            ck_assert_msg(fabs(m.value[0]) < 4, "types %d: %g", i, m.value[0]);
            ck_assert_msg(i != 0 || fabs(m.value[0] - 1e-3) < 1e-5, "f32: %g", m.value[0]);
        }
        unmake(&m);
    }
}
END_TEST

START_TEST(scales_are_positive_and_zero_points_are_nibbles)
{
    for (int kind = ET_FILL_NORMAL; kind < ET_FILLS; kind++) {
        struct made m;
        make(&m, (struct et_skinny_gemm){1, 50, 256, 0, 32, 1}, all_types[7], (enum et_fill_kind)kind, 2, 0);
        for (int64_t i = 0; i < 50 * 8; i++) {
            const double scale = at(&m, WEIGHT_SCALE, i / 8, i % 8), zero = at(&m, ZERO_POINTS, i / 8, i % 8);
            ck_assert(scale >= 0x1p-3 && scale <= 2);
            ck_assert(zero >= 0 && zero <= 15);
        }
        unmake(&m);
    }
}
END_TEST

START_TEST(cost_counts_each_tensor_once)
{
    struct made m;
    struct et_cost cost;
    make(&m, (struct et_skinny_gemm){3, 5, 64, ET_BIAS_M, 32, 1}, all_types[7], ET_FILL_NORMAL, 2, 4);
    m.problem.op->cost(&m.problem, &cost);
    /* 5 rows of 32 bytes; 5 x 2 f16; 5 x 2 bytes; none; 3 x 64 f16; 5 f32; 15 f32 */
    const double bytes[] = {160, 20, 10, 0, 384, 20, 60};
    for (int t = WEIGHT; t <= OUT; t++)
        ck_assert_double_eq(cost.bytes[t], bytes[t]);
    ck_assert_double_eq(cost.flops, 2 * 3 * 5 * 64);
    unmake(&m);
}
END_TEST

/* Lies on data of one nonzero term each: what is lost is what the term was. */
START_TEST(a_lie_is_the_wrong_answer_minus_the_right_one)
{
    struct made m;
    make(&m, (struct et_skinny_gemm){2, 2, 16, ET_BIAS_M, 0, 0}, floats, ET_FILL_CONSTANT, 1, 0);
    double delta[2];
    for (int64_t k = 0; k < 16; k++) {
        put(&m, WEIGHT, 0, k, (double)(k + 1));
        put(&m, WEIGHT, 1, k, (double)(2 * k));
        put(&m, ACT, 1, k, 3);
    }
    put(&m, BIAS, 0, 0, 5);
    /* first 1, last 16, the last eight 9 + ... + 16 = 100, bias 5, next row 240 - 136; token 1 sees thrice
     * that */
    static const double want[][2] = {{-1, -3}, {-16, -48}, {-100, -300}, {-5, -5}, {104, 312}};
    for (int i = 0; m.problem.op->lies[i].name; i++) {
        ck_assert(m.problem.op->lie(&m.problem, 0, i, m.work, delta));
        for (int n = 0; n < 2; n++)
            ck_assert_double_eq(delta[n], want[i][n]);
    }
    unmake(&m);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("skinny_gemm");
    TCase *tcase = tcase_create("reference");
    tcase_add_test(tcase, a_refused_shape_names_field_value_and_limit);
    tcase_add_test(tcase, the_oracle_gives_what_is_worked_out_by_hand);
    tcase_add_test(tcase, bias_is_added_in_each_of_its_shapes);
    tcase_add_test(tcase, the_spread_is_the_documents);
    tcase_add_test(tcase, a_replay_is_the_claimed_order);
    tcase_add_test(tcase, an_order_that_does_not_fit_is_refused_by_a_sentence);
    tcase_add_test(tcase, the_tree_is_the_hardware_shifts_and_16_first_is_another);
    tcase_add_test(tcase, a_chunk_is_a_class_of_its_own);
    tcase_add_test(tcase, honest_kernels_keep_within_the_bound);
    tcase_add_test(tcase, honest_int4_kernels_keep_within_the_bound);
    tcase_add_test(tcase, exact_data_have_one_sum_in_every_order_and_each_term_shows);
    tcase_add_test(tcase, a_wrong_element_of_onehot_data_is_named);
    tcase_add_test(tcase, onehot_looks_at_both_ends_of_every_lane_residue);
    tcase_add_test(tcase, cancelling_weights_add_up_to_the_rest);
    tcase_add_test(tcase, scales_are_positive_and_zero_points_are_nibbles);
    tcase_add_test(tcase, cost_counts_each_tensor_once);
    tcase_add_test(tcase, a_lie_is_the_wrong_answer_minus_the_right_one);
    suite_add_tcase(suite, tcase);
    return suite;
}
