/* The oracles of operators that are products of matrices, against cblas_dgemm. Without OpenBLAS, 77. */
#define _XOPEN_SOURCE 700

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/etalon.h"
#include "../ref/rng.h"
#include "suite.h"

/* As cblas.h has it, where order and transpositions are enums: 101 by rows, 111 as it is, 112 transposed. */
typedef void dgemm_function(int order, int a_as, int b_as, int m, int n, int k, double alpha, const double *a,
                            int lda, const double *b, int ldb, double beta, double *c, int ldc);

static dgemm_function *find_dgemm(void)
{
    dgemm_function *dgemm = NULL;
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "cblas_dgemm") : NULL;
    memcpy(&dgemm, &symbol, sizeof dgemm);
    return dgemm;
}

/* c[m][n] = a[m][k] by b[n][k] transposed, and what the sizes of its terms add up to. */
struct product {
    int64_t m, n, k;
    double *a, *b, *c, *sizes;
};

static double *doubles(int64_t n)
{
    double *made = calloc((size_t)n + 1, sizeof *made);
    ck_assert(made);
    return made;
}

static struct product product_of(int64_t m, int64_t n, int64_t k)
{
    return (struct product){m, n, k, doubles(m * k), doubles(n * k), doubles(m * n), doubles(m * n)};
}

static void multiply(const struct product *p, double *c)
{
    const int m = (int)p->m, n = (int)p->n, k = (int)p->k, ld = k > 0 ? k : 1;
    find_dgemm()(101, 111, 112, m, n, k, 1, p->a, ld, p->b, ld, 0, c, n);
}

static void compute(const struct product *p)
{
    multiply(p, p->c);
    for (int64_t i = 0; i < p->m * p->k; i++)
        p->a[i] = fabs(p->a[i]);
    for (int64_t i = 0; i < p->n * p->k; i++)
        p->b[i] = fabs(p->b[i]);
    multiply(p, p->sizes);
}

static void free_product(struct product *p)
{
    free(p->a);
    free(p->b);
    free(p->c);
    free(p->sizes);
}

/* A problem with NaN wherever nothing is read, and owned data. */
struct made {
    struct et_problem problem;
    union {
        struct et_gqa_av gqa_av;
        struct et_skinny_gemm skinny_gemm;
    } params;
};

/* Lots; those before are the operator's. */
enum { FILL = 32, SEED, LAYOUTS };

/* Lot `which` of a geometry, in [least, most]. */
static int64_t draw(const struct et_stream *lots, int which, int64_t least, int64_t most)
{
    return least + (int64_t)et_word(lots, (uint64_t)which, 0) % (most - least + 1);
}

/* Elements before the first and after each row hold NaN, where the type has one; rows begin at whole bytes.
 */
static void lay(struct et_tensor *t, const struct et_stream *lots, int which)
{
    ck_assert(et_tensor_pack(t));
    const int64_t block = et_format(t->dtype)->block, gap = block * draw(lots, LAYOUTS + which, 0, 4);
    t->offset = block * draw(lots, LAYOUTS + ET_TENSORS + which, 0, 4);
    for (int d = t->rank - 2; d >= 0; d--)
        t->stride[d] = t->stride[d + 1] * t->size[d + 1] + gap;
    t->bytes = et_bytes(t->dtype, t->offset + t->stride[0] * t->size[0]);
    t->data = malloc(t->bytes + 1);
    ck_assert(t->data);
    memset(t->data, 0xff, t->bytes); /* NaN in each type */
}

static void fill(struct et_problem *problem, int t, const struct et_fill *how)
{
    const struct et_tensor *tensor = &problem->tensor[t];
    const int64_t n = tensor->size[tensor->rank - 1];
    float *row = malloc(sizeof *row * (size_t)(n + 1));
    enum et_class *class = malloc(sizeof *class * (size_t)(n + 1));
    ck_assert(row && class);
    for (int64_t i = 0; i < et_tensor_rows(tensor); i++) {
        problem->op->fill(problem, how, t, i, row);
        problem->op->classify(problem, t, i, class);
        for (int64_t k = 0; k < n; k++)
            if (class[k] != ET_POISON)
                et_store(tensor->dtype, tensor->data, et_row_at(tensor, i) + k,
                         et_narrow(tensor->dtype, class[k] == ET_DATA ? (double)row[k] : 0));
    }
    free(row);
    free(class);
}

/* The rest of a problem whose params and dtypes are set: layouts and data, drawn by lot. */
static void make(struct made *m, const char *op, const struct et_stream *lots)
{
    static const enum et_fill_kind kinds[] = {ET_FILL_NORMAL, ET_FILL_UNIFORM, ET_FILL_OUTLIER, ET_FILL_RAMP};
    struct et_error error;
    m->problem.op = et_operator_named(op);
    m->problem.params = &m->params;
    ck_assert_msg(m->problem.op->shape(&m->params, m->problem.tensor, &error) == ET_OK, "%s", error.text);
    const struct et_fill how = {.kind = kinds[draw(lots, FILL, 0, 3)],
                                .seed = (uint64_t)draw(lots, SEED, 0, 1 << 30)};
    for (int t = 0; m->problem.op->tensors[t].name; t++) {
        lay(&m->problem.tensor[t], lots, t);
        if (m->problem.op->tensors[t].role == ET_INPUT)
            fill(&m->problem, t, &how);
    }
}

static void unmake(struct made *m)
{
    for (int t = 0; m->problem.op->tensors[t].name; t++)
        free(m->problem.tensor[t].data);
}

static double get(const struct et_tensor *t, int64_t row, int64_t k)
{
    return (double)et_widen(t->dtype, et_load(t->dtype, t->data, et_row_at(t, row) + k));
}

/* Row i of c is unit first + i * step, within 2^-44 of what the terms add up to: the roundings of two chains
 * of f64, 2^-53 each, that wander by less than 2^9 of them. */
static void hold(const struct et_problem *problem, int64_t first, int64_t step, const struct product *p)
{
    const struct et_arith arith = {.sum = ET_F32};
    void *work = malloc(problem->op->work_bytes(problem) + 1);
    double *value = doubles(p->n);
    struct et_spread *spread = malloc(sizeof *spread * (size_t)(p->n + 1));
    ck_assert(work && spread);
    for (int64_t i = 0; i < p->m; i++) {
        const int64_t unit = first + i * step;
        ck_assert_int_eq(problem->op->unit(problem, unit).count, p->n);
        problem->op->oracle(problem, unit, &arith, 1, work, value, spread);
        for (int64_t k = 0; k < p->n; k++)
            ck_assert_msg(fabs(value[k] - p->c[i * p->n + k]) <= 0x1p-44 * p->sizes[i * p->n + k],
                          "unit %lld, element %lld: %.17g, by dgemm %.17g", (long long)unit, (long long)k,
                          value[k], p->c[i * p->n + k]);
    }
    free(value);
    free(spread);
    free(work);
}

static void hold_gqa_av(const struct et_stream *lots)
{
    enum { W, V, OUT };
    static const enum et_dtype types[] = {ET_F32, ET_F16, ET_BF16};
    struct made m = {.params.gqa_av = {.q_heads = draw(lots, 0, 1, 9),
                                       .kv_heads = draw(lots, 1, 1, 4),
                                       .head_dim = draw(lots, 2, 1, 40),
                                       .query_length = draw(lots, 3, 1, 6),
                                       .context = draw(lots, 4, 0, 600)}};
    struct et_gqa_av *p = &m.params.gqa_av;
    p->capacity = p->context + draw(lots, 5, 0, 3);
    struct et_tensor *t = m.problem.tensor;
    for (int i = W; i <= OUT; i++)
        t[i].dtype = types[draw(lots, 6 + i, 0, 2)];
    make(&m, "gqa_av", lots);
    struct product product = product_of(p->query_length, p->head_dim, p->context);
    for (int64_t h = 0; h < p->q_heads; h++) {
        for (int64_t c = 0; c < p->context; c++) {
            for (int64_t s = 0; s < p->query_length; s++)
                product.a[s * p->context + c] = get(&t[W], h * t[W].size[1] + s, c);
            for (int64_t d = 0; d < p->head_dim; d++)
                product.b[d * p->context + c] = get(&t[V], c * p->kv_heads + h * p->kv_heads / p->q_heads, d);
        }
        compute(&product);
        hold(&m.problem, h, p->q_heads, &product);
    }
    free_product(&product);
    unmake(&m);
}

START_TEST(the_oracle_of_gqa_av_is_dgemm_on_300_geometries)
{
    for (uint64_t i = 0; i < 300; i++) {
        const struct et_stream lots = et_stream(i, "gqa_av");
        hold_gqa_av(&lots);
    }
}
END_TEST

enum { WEIGHT, WEIGHT_SCALE, ZERO_POINTS, ACT_SCALE, ACT, BIAS, RESULT };

/* Types that go together, and of int4 groups, zero points and a K of whole groups. */
static void draw_types(const struct et_stream *lots, struct et_skinny_gemm *p, struct et_tensor *t)
{
    static const enum et_dtype floats[] = {ET_F32, ET_F16, ET_BF16};
    static const enum et_dtype weights[] = {ET_F32,        ET_F16, ET_BF16, ET_F8E4M3FN,
                                            ET_F8E4M3FNUZ, ET_I8,  ET_I4};
    const enum et_dtype weight = weights[draw(lots, 8, 0, 6)], any = floats[draw(lots, 9, 0, 2)];
    const bool f8 = weight == ET_F8E4M3FN || weight == ET_F8E4M3FNUZ;
    const bool integer = weight == ET_I8 || weight == ET_I4;
    t[WEIGHT].dtype = weight;
    t[WEIGHT_SCALE].dtype = weight == ET_I4 ? any : ET_F32;
    t[ZERO_POINTS].dtype = ET_U8;
    t[ACT_SCALE].dtype = ET_F32;
    t[ACT].dtype = integer ? any : weight;
    t[RESULT].dtype = f8 ? any : draw(lots, 10, 0, 1) ? t[ACT].dtype : ET_F32;
    t[BIAS].dtype = t[RESULT].dtype;
    if (weight == ET_I4) {
        p->group = 32 << draw(lots, 11, 0, 2);
        p->zero_points = draw(lots, 12, 0, 1);
        p->in_features = p->group * draw(lots, 13, 1, 1024 / p->group);
    }
}

/* Of int4 dequantised: exact in f64, as every other type is. */
static double weight_at(const struct et_problem *problem, int64_t m, int64_t k)
{
    const struct et_skinny_gemm *p = problem->params;
    const struct et_tensor *t = problem->tensor;
    if (t[WEIGHT].dtype != ET_I4)
        return get(&t[WEIGHT], m, k);
    const double nibble = (double)et_load(ET_I4, t[WEIGHT].data, et_row_at(&t[WEIGHT], m) + k);
    const double zero = p->zero_points ? get(&t[ZERO_POINTS], m, k / p->group) : 8;
    return (nibble - zero) * get(&t[WEIGHT_SCALE], m, k / p->group);
}

/* What a whole sum is multiplied by. */
static double scale_of(const struct et_tensor *t, int64_t m)
{
    if (t[WEIGHT].dtype == ET_I8)
        return get(&t[WEIGHT_SCALE], m, 0);
    return et_tensor_count(&t[ACT_SCALE]) > 0 ? get(&t[ACT_SCALE], 0, 0) * get(&t[WEIGHT_SCALE], 0, 0) : 1;
}

static double bias_of(const struct et_tensor *bias, int64_t m, int64_t n)
{
    if (et_tensor_count(bias) == 0)
        return 0;
    return get(bias, bias->size[0] > 1 ? n : 0, bias->size[1] > 1 ? m : 0);
}

static void hold_skinny_gemm(const struct et_stream *lots)
{
    struct made made = {.params.skinny_gemm = {.tokens = draw(lots, 0, 1, 20),
                                               .out_features = draw(lots, 1, 1, 60),
                                               .in_features = draw(lots, 2, 1, 1100),
                                               .bias = draw(lots, 3, 0, 4)}};
    struct et_skinny_gemm *p = &made.params.skinny_gemm;
    struct et_tensor *t = made.problem.tensor;
    draw_types(lots, p, t);
    make(&made, "skinny_gemm", lots);
    struct product product = product_of(p->out_features, p->tokens, p->in_features);
    for (int64_t k = 0; k < p->in_features; k++) {
        for (int64_t m = 0; m < p->out_features; m++)
            product.a[m * p->in_features + k] = weight_at(&made.problem, m, k);
        for (int64_t n = 0; n < p->tokens; n++)
            product.b[n * p->in_features + k] = get(&t[ACT], n, k);
    }
    compute(&product);
    for (int64_t m = 0; m < p->out_features; m++)
        for (int64_t n = 0; n < p->tokens; n++) {
            const double scale = scale_of(t, m), bias = bias_of(&t[BIAS], m, n);
            double *c = &product.c[m * p->tokens + n], *sizes = &product.sizes[m * p->tokens + n];
            *c = *c * scale + bias;
            *sizes = *sizes * fabs(scale) + fabs(bias);
        }
    hold(&made.problem, 0, 1, &product);
    free_product(&product);
    unmake(&made);
}

START_TEST(the_oracle_of_skinny_gemm_is_dgemm_on_300_geometries)
{
    for (uint64_t i = 0; i < 300; i++) {
        const struct et_stream lots = et_stream(i, "skinny_gemm");
        hold_skinny_gemm(&lots);
    }
}
END_TEST

Suite *et_suite(void)
{
    if (!find_dgemm()) {
        puts("there is no libopenblas.so.0 with cblas_dgemm");
        exit(77);
    }
    Suite *suite = suite_create("dgemm");
    TCase *tests = tcase_create("dgemm");
    tcase_add_test(tests, the_oracle_of_gqa_av_is_dgemm_on_300_geometries);
    tcase_add_test(tests, the_oracle_of_skinny_gemm_is_dgemm_on_300_geometries);
    suite_add_tcase(suite, tests);
    return suite;
}
