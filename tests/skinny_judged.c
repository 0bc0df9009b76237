/* skinny_gemm in the harness: jobs whose weights share bytes, fills of its own, and statistics across units.
 */
#define _XOPEN_SOURCE 700

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../harness/job.h"
#include "../harness/judge.h"
#include "folder.h"
#include "suite.h"

enum { WEIGHT, WEIGHT_SCALE, ZERO_POINTS, ACT_SCALE, ACT, BIAS, OUT };

static void leave_folder(void)
{
    char folder[256];
    ck_assert_ptr_nonnull(getcwd(folder, sizeof folder));
    ck_assert_int_eq(chdir(".."), 0);
    et_remove_folder(folder);
}

struct fixture {
    struct et_case c;
    struct et_case_step step;
};

static void make_case(struct fixture *f, struct et_skinny_gemm params, enum et_dtype weight,
                      enum et_dtype act, enum et_dtype out)
{
    *f =
        (struct fixture){.c = {.op = et_operator_named("skinny_gemm"), .file = "case.json", .step_count = 1}};
    const enum et_dtype dtypes[] = {weight, weight == ET_I4 ? act : ET_F32, ET_U8, ET_F32, act, out, out};
    memcpy(f->c.dtype, dtypes, sizeof dtypes);
    f->c.steps = &f->step;
    f->c.checks =
        (struct et_checks){.nmse = 5e-4, .bound = 1, .noise = 4, .gain = 6, .agrees = 1, .repeat = 1};
    memcpy(f->step.params, &params, sizeof params);
    memset(f->step.given, true, sizeof f->step.given);
}

static void write_job(const struct et_case *c, const char *folder, struct et_job *job)
{
    struct et_error error = {.text = ""};
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    ck_assert_msg(et_job_write(c, NULL, ET_FILL_NORMAL, NULL, 2, NULL, folder, job, &error) == ET_OK, "%s",
                  error.text);
}

static void pad_rows(struct et_case *c, int64_t before, int64_t after)
{
    c->layout[WEIGHT].given = true;
    c->layout[WEIGHT].pad[1][0] = before;
    c->layout[WEIGHT].pad[1][1] = after;
}

static const struct et_skinny_gemm int4 = {2, 3, 64, ET_BIAS_NONE, 32, 1};

START_TEST(weights_that_share_bytes_are_filed_as_u8_and_read_back)
{
    enter_temporary_folder();
    for (int64_t pad = 0; pad <= 2; pad += 2) {
        struct fixture f;
        struct et_job job, read;
        struct et_error error = {.text = ""};
        const char *folder = pad ? "padded" : "packed";
        make_case(&f, int4, ET_I4, ET_F16, ET_F16);
        pad_rows(&f.c, pad, pad);
        write_job(&f.c, folder, &job);
        ck_assert_msg(et_job_read(folder, &read, &error) == ET_OK, "%s", error.text);
        const struct et_tensor *a = &job.steps[0].problem.tensor[WEIGHT],
                               *b = &read.steps[0].problem.tensor[WEIGHT];
        /* 3 rows of 64 nibbles, or of 68 */
        ck_assert_uint_eq(a->bytes, pad ? 102 : 96);
        ck_assert_uint_eq(b->bytes, a->bytes);
        ck_assert_int_eq(b->offset, pad);
        ck_assert_mem_eq(a->data, b->data, a->bytes);
        et_job_free(&job);
        et_job_free(&read);
    }
    leave_folder();
}
END_TEST

START_TEST(rows_of_whole_blocks_come_from_a_file_as_they_are)
{
    enter_temporary_folder();
    struct fixture f;
    struct et_job job, again;
    make_case(&f, int4, ET_I4, ET_F16, ET_F16);
    write_job(&f.c, "first", &job);
    f.c.seed = 99;
    f.step.data[WEIGHT] = (struct et_data){
        .given = true, .kind = ET_DATA_FILE, .file = "first/0.safetensors", .tensor = "weight"};
    pad_rows(&f.c, 0, 4);
    write_job(&f.c, "second", &again);
    const struct et_tensor *a = &job.steps[0].problem.tensor[WEIGHT],
                           *b = &again.steps[0].problem.tensor[WEIGHT];
    for (int64_t row = 0; row < 3; row++)
        ck_assert_mem_eq((const char *)a->data + 32 * row, (const char *)b->data + 34 * row, 32);
    et_job_free(&job);
    et_job_free(&again);
    leave_folder();
}
END_TEST

/* Poison of what has no NaN is bits by lot: the padding of three rows is not all the same byte. */
START_TEST(padding_of_integers_holds_bits_by_lot)
{
    enter_temporary_folder();
    static const enum et_dtype dtypes[] = {ET_I4, ET_I8};
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        struct et_job job;
        const int64_t group = dtypes[i] == ET_I4 ? 32 : 0;
        make_case(&f, (struct et_skinny_gemm){1, 3, 64, ET_BIAS_NONE, group, 0}, dtypes[i], ET_F16, ET_F16);
        pad_rows(&f.c, 0, 32);
        write_job(&f.c, i ? "i8" : "i4", &job);
        const struct et_tensor *t = &job.steps[0].problem.tensor[WEIGHT];
        bool seen[256] = {false};
        int values = 0;
        for (int64_t row = 0; row < 3; row++)
            for (int64_t k = 64; k < 96; k++)
                seen[et_load(t->dtype, t->data, row * 96 + k)] = true;
        for (int value = 0; value < 256; value++)
            values += seen[value];
        ck_assert_int_ge(values, 8);
        et_job_free(&job);
    }
    leave_folder();
}
END_TEST

START_TEST(a_layout_that_breaks_a_block_is_refused_by_a_sentence)
{
    static const struct {
        int64_t before, after, shift;
        bool turned;
        const char *sentence;
    } refused[] = {
        {0, 1, 0, false, "weight: rows are 65 elements apart, must be a multiple of 2, which i4 packs"},
        {1, 1, 0, false, "weight begins at element 1, must be a multiple of 2, which i4 packs"},
        {0, 0, 3, false, "weight begins at element 3, must be a multiple of 2, which i4 packs"},
        {0, 0, 0, true, "weight: elements of a row are 4 apart, must be 1: i4 packs 2 together"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct fixture f;
        struct et_problem problem;
        unsigned char params[ET_PARAMS_BYTES];
        struct et_error error = {.text = ""};
        make_case(&f, int4, ET_I4, ET_F16, ET_F16);
        pad_rows(&f.c, refused[i].before, refused[i].after);
        f.c.layout[WEIGHT].shift = refused[i].shift;
        f.c.layout[WEIGHT].ordered = refused[i].turned;
        memcpy(f.c.layout[WEIGHT].order, (const int[]){1, 0}, 2 * sizeof(int));
        ck_assert_int_eq(et_case_problem(&f.c, 0, NULL, params, &problem, &error), ET_REFUSED);
        ck_assert_str_eq(error.text, refused[i].sentence);
    }
}
END_TEST

START_TEST(a_row_of_odd_length_takes_a_whole_byte_at_its_end)
{
    struct et_tensor tensor = {.dtype = ET_I4, .rank = 2, .size = {3, 5}};
    ck_assert(et_tensor_pack(&tensor));
    ck_assert_int_eq(tensor.stride[0], 6);
    ck_assert_uint_eq(tensor.bytes, 9);
}
END_TEST

static void make_truth(const struct et_job *job, struct et_truth *truth, const struct et_claim *claim,
                       int64_t rows)
{
    struct et_error error = {.text = ""};
    ck_assert_msg(et_truth_make(&job->steps[0].problem, 1, rows, claim, 1, 2, NULL, truth, &error) == ET_OK,
                  "%s", error.text);
}

START_TEST(cancel_is_made_after_the_activations_it_undoes)
{
    enter_temporary_folder();
    struct fixture f;
    struct et_job job;
    struct et_truth truth;
    const struct et_claim claim = {.arith = {.depth_sum = 4096}, .order = {.name = "serial"}};
    make_case(&f, (struct et_skinny_gemm){1, 2, 4096, 0, 0, 0}, ET_F32, ET_F32, ET_F32);
    f.step.data[WEIGHT] = (struct et_data){
        .given = true, .kind = ET_DATA_FILL, .fill = {.kind = ET_FILL_OWN, .own = 0, .value = 1e-3}};
    write_job(&f.c, "job", &job);
    make_truth(&job, &truth, &claim, 0);
    for (int i = 0; i < 2; i++)
        ck_assert_double_eq_tol(truth.value[i], 1e-3, 1e-5);
    et_truth_free(&truth);
    et_job_free(&job);
    leave_folder();
}
END_TEST

/* ---- Statistics ---- */

struct judged {
    struct fixture f;
    struct et_job job;
    struct et_truth truth;
    struct et_claim claim;
    struct et_judgement judgement;
};

/* The honest kernel is the replay; element (n, m) of it times factor[n]. */
static void judge(struct judged *j, int64_t rows, const double *factor)
{
    enter_temporary_folder();
    *j = (struct judged){.claim = {.arith = {.depth_sum = 1024}, .order = {.name = "serial"}}};
    make_case(&j->f, (struct et_skinny_gemm){4, rows, 1024, 0, 0, 0}, ET_BF16, ET_BF16, ET_BF16);
    write_job(&j->f.c, "job", &j->job);
    make_truth(&j->job, &j->truth, &j->claim, 0);
    struct et_tensor *out = &j->job.steps[0].problem.tensor[OUT];
    uint16_t *data = malloc(out->bytes);
    for (int64_t m = 0; m < rows; m++)
        for (int64_t n = 0; n < 4; n++)
            data[n * rows + m] = (uint16_t)et_narrow(ET_BF16, (double)j->truth.replay[4 * m + n] * factor[n]);
    struct et_outputs outputs = {.data = {[OUT] = data}};
    const struct et_facts facts = {.guarded = true};
    const struct et_device device = {.probed = true, .exact = true, .exact_subnormal = true};
    const struct et_judge_input input = {.c = &j->f.c,
                                         .fill = ET_FILL_NORMAL,
                                         .job = &j->job,
                                         .truth = &j->truth,
                                         .claim = &j->claim,
                                         .device = &device,
                                         .outputs = &outputs,
                                         .facts = &facts,
                                         .repeats = 1};
    et_judge(&input, &j->judgement);
    et_teeth_of(&input, &j->judgement.teeth);
    free(data);
    et_truth_free(&j->truth);
    et_job_free(&j->job);
    leave_folder();
}

/* 1024 outputs of bf16: a rounding is 0.16 % of its value (root mean square, the small ones counting less),
 * the mean of 1024 some 0.005 %: a thousandth is some 20 of these, beside the honest one of its own. */
START_TEST(gain_sees_a_thousandth_of_scale_that_all_tokens_lose)
{
    struct judged j;
    judge(&j, 256, (const double[]){1, 1, 1, 1});
    ck_assert_int_eq(j.judgement.check[ET_CHECK_GAIN].outcome, ET_HELD);
    ck_assert_int_eq(j.judgement.check[ET_CHECK_NOISE].outcome, ET_HELD);
    ck_assert_int_eq(j.judgement.check[ET_CHECK_BOUND].outcome, ET_HELD);
    judge(&j, 256, (const double[]){0.999, 0.999, 0.999, 0.999});
    ck_assert_int_eq(j.judgement.check[ET_CHECK_GAIN].outcome, ET_BROKEN);
    ck_assert_ptr_nonnull(strstr(j.judgement.check[ET_CHECK_GAIN].text, "over 4 rows"));
}
END_TEST

START_TEST(noise_names_the_token_whose_row_is_off)
{
    struct judged j;
    judge(&j, 64, (const double[]){1, 1, 1.01, 1});
    const struct et_finding *noise = &j.judgement.check[ET_CHECK_NOISE];
    ck_assert_int_eq(noise->outcome, ET_BROKEN);
    ck_assert_msg(strstr(noise->text, "row of out (tokens 2, out_features 0)") != NULL, "%s", noise->text);
}
END_TEST

START_TEST(noise_needs_sixteen_sampled_rows_of_weights)
{
    struct judged j;
    judge(&j, 15, (const double[]){1, 1, 1.01, 1});
    ck_assert_int_eq(j.judgement.check[ET_CHECK_NOISE].outcome, ET_NOT_RUN);
    judge(&j, 16, (const double[]){1, 1, 1.01, 1});
    ck_assert_int_eq(j.judgement.check[ET_CHECK_NOISE].outcome, ET_BROKEN);
}
END_TEST

/* One per cent in all elements is some ten times the rounding of bf16, and in `gain` ten times a
 * thousandth's. */
START_TEST(teeth_count_rows_as_the_checks_do)
{
    struct judged j;
    judge(&j, 64, (const double[]){1, 1, 1, 1});
    for (int i = 0; i < j.judgement.teeth.count; i++) {
        const struct et_tooth *tooth = &j.judgement.teeth.at[i];
        if (strcmp(tooth->name, "scale") != 0)
            continue;
        ck_assert_msg(tooth->size[2] > 5 && tooth->size[2] < 100, "noise %g", tooth->size[2]);
        ck_assert_msg(tooth->size[3] > 5 && tooth->size[3] < 100, "gain %g", tooth->size[3]);
    }
    ck_assert_str_eq(j.judgement.teeth.blind, "");
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("skinny_judged");
    TCase *tcase = tcase_create("all");
    tcase_add_test(tcase, weights_that_share_bytes_are_filed_as_u8_and_read_back);
    tcase_add_test(tcase, rows_of_whole_blocks_come_from_a_file_as_they_are);
    tcase_add_test(tcase, padding_of_integers_holds_bits_by_lot);
    tcase_add_test(tcase, a_layout_that_breaks_a_block_is_refused_by_a_sentence);
    tcase_add_test(tcase, a_row_of_odd_length_takes_a_whole_byte_at_its_end);
    tcase_add_test(tcase, cancel_is_made_after_the_activations_it_undoes);
    tcase_add_test(tcase, gain_sees_a_thousandth_of_scale_that_all_tokens_lose);
    tcase_add_test(tcase, noise_names_the_token_whose_row_is_off);
    tcase_add_test(tcase, noise_needs_sixteen_sampled_rows_of_weights);
    tcase_add_test(tcase, teeth_count_rows_as_the_checks_do);
    suite_add_tcase(suite, tcase);
    return suite;
}
