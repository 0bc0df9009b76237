/* A decode step end to end: softmax weights, as flash_attn's oracle has them, given to gqa_av's oracle are
 * what flash_attn's makes of K and V at once. */
#include "flash_made.h"
#include "suite.h"

enum { W, V, OUT };

/* gqa_av of the weights in `weights`, [q_heads][context], and the values of `m`. */
struct product {
    struct et_gqa_av params;
    struct et_problem problem;
    void *work;
};

static void make_product(struct product *product, const struct made *m, const double *weights)
{
    const struct et_flash_attn *p = &m->params;
    *product =
        (struct product){.params = {p->q_heads, p->kv_heads, p->v_head_dim, 1, p->kv_length, p->kv_length}};
    struct et_problem *problem = &product->problem;
    struct et_tensor *w = &problem->tensor[W];
    problem->op = et_operator_named("gqa_av");
    problem->params = &product->params;
    problem->tensor[V].dtype = m->problem.tensor[FA_V].dtype;
    struct et_error error = {""};
    ck_assert_msg(problem->op->shape(problem->params, problem->tensor, &error) == ET_OK, "%s", error.text);
    for (int t = W; t <= OUT; t++)
        ck_assert(et_tensor_pack(&problem->tensor[t]));
    problem->tensor[V].data = m->problem.tensor[FA_V].data; /* [1, C, Hkv, D], packed */
    w->data = calloc(w->bytes + 1, 1);
    product->work = malloc(problem->op->work_bytes(problem));
    ck_assert(w->data && product->work);
    for (int64_t h = 0; h < p->q_heads; h++)
        for (int64_t j = 0; j < p->kv_length; j++)
            et_store(ET_F32, w->data, et_row_at(w, h * w->size[1]) + j,
                     et_narrow(ET_F32, weights[h * p->kv_length + j]));
}

static void unmake_product(struct product *product)
{
    free(product->problem.tensor[W].data);
    free(product->work);
}

/* Weights of every head: channel j of v is 1 at key j and 0 elsewhere. */
static double *weights_of(const struct made *given)
{
    struct et_flash_attn p = given->params;
    struct made m;
    p.v_head_dim = p.kv_length;
    make(&m, p, half_kv, packed);
    double *weights = malloc(sizeof *weights * (size_t)(p.q_heads * p.kv_length));
    ck_assert_ptr_nonnull(weights);
    for (int t = FA_Q; t <= FA_SINKS; t++)
        if (t != FA_V)
            memcpy(m.problem.tensor[t].data, given->problem.tensor[t].data, given->problem.tensor[t].bytes);
    for (int64_t j = 0; j < p.kv_length; j++)
        for (int64_t h = 0; h < p.kv_heads; h++)
            put(&m, FA_V, 0, j, h, j, 1);
    for (int64_t h = 0; h < p.q_heads; h++)
        memcpy(weights + h * p.kv_length, compute(&m, 0, 0, h), sizeof *weights * (size_t)p.kv_length);
    unmake(&m);
    return weights;
}

/* Weights are stored in f32, each off by 2^-24 of itself at most: as much as one rounding a term, worst of
 * depth 1. */
static void expect_equal(struct made *m, const struct product *product)
{
    const struct et_flash_attn *p = &m->params;
    const struct et_problem *problem = &product->problem;
    double value[128];
    struct et_spread spread[128];
    const struct et_arith sizes = {.depth_sum = 1};
    for (int64_t h = 0; h < p->q_heads; h++) {
        const double *whole = compute(m, 0, 0, h);
        problem->op->oracle(problem, h, &sizes, 1, product->work, value, spread);
        for (int64_t d = 0; d < p->v_head_dim; d++)
            if (!(fabs(value[d] - whole[d]) <= spread[d].worst))
                ck_abort_msg("head %lld, channel %lld: %.17g, want %.17g", (long long)h, (long long)d,
                             value[d], whole[d]);
    }
}

START_TEST(weights_and_their_product_are_attention)
{
    static const struct et_flash_attn steps[] = {
        {1, 1, 8, 2, 64, 64, 1, 1000, 1, 0, -1, 0, 0, 1, 1, 0, 0, 0},   /* llama */
        {1, 1, 8, 1, 64, 64, 1, 333, 1, 128, -1, 1, 0, 1, 1, 0, 0, 0},  /* gpt-oss: window and sinks */
        {1, 1, 8, 4, 128, 128, 1, 515, 1, 0, -1, 0, 0, 1, 1, 0, 50, 0}, /* gemma 2: softcap */
        {1, 1, 12, 12, 64, 64, 1, 97, 0, 0, -1, 0, 1, 1, 1, 0, 0, 8},   /* ALiBi */
        {1, 1, 5, 5, 16, 16, 1, 1, 1, 0, -1, 0, 0, 1, 1, 0, 0, 0},      /* the first token */
    };
    struct made m;
    struct product product;
    make(&m, steps[_i], half_kv, packed);
    scatter(&m, (uint64_t)_i);
    double *weights = weights_of(&m);
    make_product(&product, &m, weights);
    expect_equal(&m, &product);
    unmake_product(&product);
    free(weights);
    unmake(&m);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("sdpa_decode");
    TCase *tests = tcase_create("sdpa_decode");
    tcase_add_loop_test(tests, weights_and_their_product_are_attention, 0, 5);
    suite_add_tcase(suite, tests);
    return suite;
}
