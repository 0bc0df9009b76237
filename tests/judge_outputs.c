/* An operator with several outputs of several types, whose spread is its whole tolerance (gdn_postconv). */
#include <math.h>
#include <stdlib.h>

#include "../harness/judge.h"
#include "suite.h"
#include "teeth.h"

enum { CONV, A, B, A_LOG, DT_BIAS, Q, K, V, G, BETA, TENSORS };

struct judged {
    struct et_gdn_postconv params;
    enum et_fill_kind fill;
    struct et_case_step step;
    struct et_case c;
    struct et_job_step job_step;
    struct et_job job;
    struct et_problem *problem; /* of job_step */
    struct et_claim claim;
    struct et_truth truth;
    struct et_device device;
    struct et_outputs outputs;
    struct et_facts facts;
    struct et_judgement judgement;
};

static const struct et_gdn_postconv usual = {
    .tokens = 16, .k_heads = 2, .v_heads = 32, .k_head_dim = 32, .v_head_dim = 4, .eps = 1e-6};

static void fill(struct judged *j, int t)
{
    const struct et_fill how = {.kind = j->fill, .seed = 1};
    struct et_tensor *tensor = &j->problem->tensor[t];
    const int64_t n = tensor->size[tensor->rank - 1];
    float *row = malloc((size_t)n * sizeof *row);
    for (int64_t r = 0; r < et_tensor_rows(tensor); r++) {
        j->problem->op->fill(j->problem, &how, t, r, row);
        et_narrow_n(tensor->dtype, row, n,
                    (char *)tensor->data + (size_t)(r * n) * et_format(tensor->dtype)->bytes);
    }
    free(row);
}

static void put(struct judged *j, int t, int64_t element, double value)
{
    const struct et_tensor *tensor = &j->problem->tensor[t];
    et_store(tensor->dtype, tensor->data, element, et_narrow(tensor->dtype, value));
}

static double at(const struct judged *j, int t, int64_t element)
{
    const struct et_tensor *tensor = &j->problem->tensor[t];
    return (double)et_widen(tensor->dtype, et_load(tensor->dtype, tensor->data, element));
}

/* The outputs hold the oracle's values, each rounded once. */
static void write_truth(struct judged *j)
{
    for (int64_t u = 0; u < j->truth.units; u++) {
        const struct et_unit unit = j->problem->op->unit(j->problem, j->truth.unit[u]);
        for (int64_t k = 0; k < unit.count; k++)
            put(j, unit.output, unit.at + k, j->truth.value[j->truth.at[u] + k]);
    }
}

/* Claims order "none", a chain over a head; conv f32, out: the type of q, k and v. */
static void open_run(struct judged *j, struct et_gdn_postconv params, enum et_dtype out,
                     enum et_fill_kind kind)
{
    *j = (struct judged){.params = params, .fill = kind};
    j->problem = &j->job_step.problem;
    *j->problem = (struct et_problem){.op = et_operator_named("gdn_postconv"), .params = &j->params};
    for (int t = Q; t <= V; t++)
        j->problem->tensor[t].dtype = out;
    ck_assert_int_eq(j->problem->op->shape(&j->params, j->problem->tensor, NULL), ET_OK);
    for (int t = CONV; t < TENSORS; t++) {
        struct et_tensor *tensor = &j->problem->tensor[t];
        ck_assert(et_tensor_pack(tensor));
        tensor->data = calloc(tensor->bytes, 1);
        if (t < Q)
            fill(j, t);
        else
            j->outputs.data[t] = tensor->data;
    }
    j->c = (struct et_case){
        .op = j->problem->op,
        .steps = &j->step,
        .step_count = 1,
        .checks =
            {.nmse = 5e-4, .bound = 1, .noise = 4, .gain = 6, .agrees = 1, .exact = true, .replay = true},
    };
    j->job = (struct et_job){.op = j->problem->op, .steps = &j->job_step, .step_count = 1};
    j->claim =
        (struct et_claim){.arith = {.depth_sum = (int32_t)params.k_head_dim}, .order = {.name = "none"}};
    struct et_error error;
    ck_assert_msg(et_truth_make(j->problem, 0, 0, &j->claim, 1, 1, NULL, &j->truth, &error) == ET_OK, "%s",
                  error.text);
    write_truth(j);
}

static struct et_judge_input input_of(const struct judged *j)
{
    return (struct et_judge_input){.c = &j->c,
                                   .fill = j->fill,
                                   .job = &j->job,
                                   .truth = &j->truth,
                                   .claim = &j->claim,
                                   .device = &j->device,
                                   .outputs = &j->outputs,
                                   .facts = &j->facts,
                                   .repeats = 1};
}

static enum et_verdict verdict(struct judged *j)
{
    const struct et_judge_input input = input_of(j);
    j->judgement = (struct et_judgement){0};
    et_judge(&input, &j->judgement);
    return et_verdict_of(&j->judgement);
}

static void close_run(struct judged *j)
{
    et_truth_free(&j->truth);
    for (int t = CONV; t < TENSORS; t++)
        free(j->problem->tensor[t].data);
}

static const struct et_finding *find(const struct judged *j, enum et_check check)
{
    return &j->judgement.check[check];
}

START_TEST(the_truth_passes_and_statistics_are_not_run)
{
    struct judged j;
    open_run(&j, usual, _i == 0 ? ET_F32 : ET_BF16, ET_FILL_NORMAL);
    ck_assert_int_eq(verdict(&j), ET_PASS);
    ck_assert_int_eq(find(&j, ET_CHECK_NMSE)->outcome, ET_HELD);
    ck_assert_int_eq(find(&j, ET_CHECK_BOUND)->outcome, ET_HELD);
    ck_assert_int_eq(find(&j, ET_CHECK_NOISE)->outcome, ET_NOT_RUN);
    ck_assert_int_eq(find(&j, ET_CHECK_GAIN)->outcome, ET_NOT_RUN);
    ck_assert_double_eq(j.judgement.noise_mean, 0);
    close_run(&j);
}
END_TEST

/* Element 40 of v is token 0, head 10, element 0; of bf16 values the next one is right for no rounding. */
START_TEST(a_spread_of_zero_asks_for_the_value_rounded_once)
{
    struct judged j;
    open_run(&j, usual, _i == 0 ? ET_F32 : ET_BF16, ET_FILL_NORMAL);
    const struct et_tensor *v = &j.problem->tensor[V];
    const uint32_t bits = et_load(v->dtype, v->data, 40);
    et_store(v->dtype, v->data, 40, bits + 1);
    ck_assert_int_eq(verdict(&j), ET_FAIL);
    ck_assert_int_eq(find(&j, ET_CHECK_BOUND)->outcome, ET_BROKEN);
    ck_assert_msg(
        strncmp(find(&j, ET_CHECK_BOUND)->text, "v (tokens 0, v_heads 10, v_head_dim 0): got ", 44) == 0,
        "%s", find(&j, ET_CHECK_BOUND)->text);
    ck_assert_ptr_nonnull(strstr(find(&j, ET_CHECK_BOUND)->text, "; 1 of 2048 elements"));
    et_store(v->dtype, v->data, 40, bits);
    ck_assert_int_eq(verdict(&j), ET_PASS);
    close_run(&j);
}
END_TEST

/*
 * The tolerance of y is |y| u (6 sqrt(32/3)/2 + 5) = 14.8 u |y| and half a unit in the last place, which is
 * 0.5 to 1 u |y|: no 3u |y| more.
 */
START_TEST(nothing_is_added_to_the_spread_but_the_store)
{
    struct judged j;
    open_run(&j, usual, ET_F32, ET_FILL_NORMAL);
    const double y = at(&j, Q, 5), u = 0x1p-24;
    const double most = (3 * sqrt(32 / 3.) + 5) * u * fabs(y) + et_half_ulp(ET_F32, fabs(y));
    put(&j, Q, 5, y + 0.9 * most);
    ck_assert_int_eq(verdict(&j), ET_PASS);
    put(&j, Q, 5, y + 1.1 * most);
    ck_assert_int_eq(verdict(&j), ET_FAIL);
    close_run(&j);
}
END_TEST

START_TEST(each_output_is_named_where_it_is_wrong)
{
    static const struct {
        int t;
        int64_t element;
        const char *place;
    } rows[] = {{Q, 33, "q (tokens 0, k_heads 1, k_head_dim 1)"},
                {K, 65, "k (tokens 1, k_heads 0, k_head_dim 1)"},
                {V, 131, "v (tokens 1, v_heads 0, v_head_dim 3)"},
                {G, 33, "g (tokens 1, v_heads 1)"},
                {BETA, 31, "beta (tokens 0, v_heads 31)"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct judged j;
        open_run(&j, usual, ET_F16, ET_FILL_NORMAL);
        put(&j, rows[i].t, rows[i].element, at(&j, rows[i].t, rows[i].element) * 1.01);
        ck_assert_int_eq(verdict(&j), ET_FAIL);
        const char *text = find(&j, ET_CHECK_BOUND)->text;
        ck_assert_msg(strncmp(text, rows[i].place, strlen(rows[i].place)) == 0, "%s", text);
        close_run(&j);
    }
}
END_TEST

/* bf16 outputs do not keep others from f32: 24 digits of g are compared. */
START_TEST(exact_data_are_compared_in_each_outputs_own_type)
{
    struct judged j;
    open_run(&j, usual, ET_BF16, ET_FILL_EXACT);
    ck_assert_int_eq(verdict(&j), ET_PASS);
    ck_assert_int_eq(find(&j, ET_CHECK_EXACT)->outcome, ET_HELD);
    put(&j, G, 7, at(&j, G, 7) * (1 + 0x1p-22));
    ck_assert_int_eq(verdict(&j), ET_FAIL);
    ck_assert_int_eq(find(&j, ET_CHECK_EXACT)->outcome, ET_BROKEN);
    ck_assert_int_eq(find(&j, ET_CHECK_BOUND)->outcome, ET_HELD);
    close_run(&j);
}
END_TEST

START_TEST(random_data_show_every_lie_at_bound)
{
    struct judged j;
    struct et_teeth teeth;
    open_run(&j, usual, ET_F32, ET_FILL_NORMAL);
    const struct et_judge_input input = input_of(&j);
    et_teeth_of(&input, &teeth);
    ck_assert_str_eq(teeth.blind, "");
    ck_assert_int_eq(teeth.count, 8);
    for (int i = 0; i < teeth.count; i++) {
        enum et_check check;
        ck_assert_msg(et_tooth_largest(&teeth.at[i], &check) > 1, "%s", teeth.at[i].name);
        ck_assert(isnan(teeth.at[i].size[2]) && isnan(teeth.at[i].size[3])); /* noise, gain */
    }
    ck_assert(tooth(&teeth, "k_head")->whole && !tooth(&teeth, "first_element")->whole);
    close_run(&j);
}
END_TEST

/* Heads that are all alike hide which one was read; v, which is told to the bit, does not vouch for q. */
START_TEST(no_output_vouches_for_another)
{
    struct judged j;
    struct et_teeth teeth;
    open_run(&j, usual, ET_F32, ET_FILL_NORMAL);
    for (int64_t t = 0; t < usual.tokens; t++)
        for (int64_t d = 0; d < 32; d++)
            put(&j, CONV, t * 256 + 32 + d, at(&j, CONV, t * 256 + d));
    et_truth_free(&j.truth);
    ck_assert_int_eq(et_truth_make(j.problem, 0, 0, &j.claim, 1, 1, NULL, &j.truth, NULL), ET_OK);
    const struct et_judge_input input = input_of(&j);
    et_teeth_of(&input, &teeth);
    ck_assert_str_eq(teeth.blind, "q: these data could not have told: k_head is 0 of the limit of nmse");
    close_run(&j);
}
END_TEST

/* Limits of a million tolerances and 5 % of energy let everything pass but in v, whose tolerance is 0. */
START_TEST(a_limit_that_hides_every_slip_of_an_output_is_told)
{
    struct judged j;
    struct et_teeth teeth;
    open_run(&j, usual, ET_F32, ET_FILL_NORMAL);
    j.c.checks.bound = 1e6;
    j.c.checks.nmse = 0.05;
    const struct et_judge_input input = input_of(&j);
    et_teeth_of(&input, &teeth);
    ck_assert_msg(strncmp(teeth.blind, "q: these data could not have told: first_element is ", 52) == 0, "%s",
                  teeth.blind);
    close_run(&j);
}
END_TEST

START_TEST(one_element_may_be_its_own_mean)
{
    struct judged j;
    struct et_teeth teeth;
    open_run(&j, (struct et_gdn_postconv){1, 1, 1, 8, 8, 1e-6, 0}, ET_F32, ET_FILL_NORMAL);
    const struct et_judge_input input = input_of(&j);
    et_teeth_of(&input, &teeth);
    ck_assert_str_eq(teeth.blind, "");
    close_run(&j);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("judge_outputs");
    TCase *tests = tcase_create("judge_outputs");
    tcase_add_loop_test(tests, the_truth_passes_and_statistics_are_not_run, 0, 2);
    tcase_add_loop_test(tests, a_spread_of_zero_asks_for_the_value_rounded_once, 0, 2);
    tcase_add_test(tests, nothing_is_added_to_the_spread_but_the_store);
    tcase_add_test(tests, each_output_is_named_where_it_is_wrong);
    tcase_add_test(tests, exact_data_are_compared_in_each_outputs_own_type);
    tcase_add_test(tests, random_data_show_every_lie_at_bound);
    tcase_add_test(tests, no_output_vouches_for_another);
    tcase_add_test(tests, a_limit_that_hides_every_slip_of_an_output_is_told);
    tcase_add_test(tests, one_element_may_be_its_own_mean);
    suite_add_tcase(suite, tests);
    return suite;
}
