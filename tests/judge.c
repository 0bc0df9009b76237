/* Each planted fault breaks the very check that is for it, and says where; what is right breaks none. */
#include <math.h>
#include <stdio.h>

#include "judged.h"
#include "suite.h"
#include "teeth.h"

/* 16 rows of 32: enough for a mean of noise. Element e is head e / 32, channel e % 32. */
static const struct et_gqa_av params = {
    .q_heads = 16, .kv_heads = 4, .head_dim = 32, .query_length = 1, .context = 40, .capacity = 40};

enum { ELEMENTS = 16 * 32, AT = 3 * 32 + 17 };
#define PLACE "out (query_length 0, q_heads 3, head_dim 17)"

/* The outputs hold the oracle's values, each rounded once. */
static void write_truth(struct judged *j)
{
    for (int64_t i = 0; i < ELEMENTS; i++)
        judged_put(j, i, j->truth.value[i]);
}

static void open_run(struct judged *j, enum et_dtype out, enum et_fill_kind fill)
{
    judged_open(j, &params, ET_F32, out, fill, 1, 3);
    judged_truth(j, 0, 0, 1);
    write_truth(j);
}

/* The same with a truth made up: every reference and spread. */
static void open_made_up(struct judged *j, enum et_dtype out, enum et_fill_kind fill, double ref,
                         struct et_spread spread)
{
    judged_open(j, &params, ET_F32, out, fill, 1, 0);
    judged_truth(j, 0, 0, 1);
    for (int64_t i = 0; i < ELEMENTS; i++) {
        j->truth.value[i] = ref;
        j->truth.spread[i] = spread;
    }
    write_truth(j);
}

static const struct et_finding *find(const struct judged *j, enum et_check check)
{
    return &j->judgement.check[check];
}

static void expect_broken(const struct judged *j, enum et_check check, const char *text)
{
    const struct et_finding *f = find(j, check);
    ck_assert_int_eq(f->outcome, ET_BROKEN);
    ck_assert_msg(strncmp(f->text, text, strlen(text)) == 0, "%s: %s", et_check_name(check), f->text);
}

static void expect_only(const struct judged *j, enum et_check broken)
{
    for (int i = 0; i < ET_CHECKS; i++)
        ck_assert_msg((j->judgement.check[i].outcome == ET_BROKEN) == (i == (int)broken), "%s: %s",
                      et_check_name((enum et_check)i), j->judgement.check[i].text);
}

START_TEST(the_oracle_rounded_once_passes_every_check_that_applies)
{
    const enum et_dtype type = _i == 0 ? ET_F32 : _i == 1 ? ET_F16 : ET_BF16;
    struct judged j;
    open_run(&j, type, ET_FILL_NORMAL);
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    static const enum et_outcome outcome[ET_CHECKS] = {
        [ET_CHECK_NMSE] = ET_HELD,         [ET_CHECK_BOUND] = ET_HELD,       [ET_CHECK_NOISE] = ET_HELD,
        [ET_CHECK_GAIN] = ET_HELD,         [ET_CHECK_REPEAT] = ET_HELD,      [ET_CHECK_WRITTEN] = ET_HELD,
        [ET_CHECK_GUARDS] = ET_HELD,       [ET_CHECK_INPUTS_KEPT] = ET_HELD, [ET_CHECK_AGREES] = ET_NOT_RUN,
        [ET_CHECK_IDENTICAL] = ET_NOT_RUN, [ET_CHECK_REPLAY] = ET_NOT_RUN,   [ET_CHECK_EXPECT] = ET_NOT_RUN,
        [ET_CHECK_ALLCLOSE] = ET_NOT_RUN,
    };
    for (int i = 0; i < ET_CHECKS; i++) {
        const struct et_finding *f = find(&j, (enum et_check)i);
        ck_assert_int_eq(f->outcome, outcome[i]);
        ck_assert_str_eq(f->text, "");
        ck_assert_int_eq(isnan(f->figure), f->outcome == ET_NOT_RUN);
        ck_assert_int_eq(isnan(f->limit), f->outcome == ET_NOT_RUN);
    }
    ck_assert(j.judgement.headroom > 0 && j.judgement.headroom <= 1);
    ck_assert(j.judgement.noise_mean > 0 && j.judgement.noise_mean < 1.5);
    ck_assert(j.judgement.nmse_derived > find(&j, ET_CHECK_NMSE)->figure);
    judged_close(&j);
}
END_TEST

START_TEST(checks_turned_off_are_not_run)
{
    struct judged j;
    open_run(&j, ET_F32, ET_FILL_NORMAL);
    j.c.checks =
        (struct et_checks){.nmse = -1, .bound = -1, .noise = -1, .gain = -1, .agrees = -1, .repeat = 1};
    ck_assert_int_eq(judged_verdict(&j), ET_SKIP);
    for (int i = 0; i < ET_CHECKS; i++)
        ck_assert_int_eq(j.judgement.check[i].outcome, ET_NOT_RUN);
    judged_close(&j);
}
END_TEST

START_TEST(one_nan_breaks_bound_at_its_place)
{
    struct judged j;
    open_run(&j, ET_F32, ET_FILL_NORMAL);
    judged_put(&j, AT, NAN);
    ck_assert_int_eq(judged_verdict(&j), ET_FAIL);
    expect_broken(&j, ET_CHECK_BOUND, PLACE ": got nan (0x7fc00000), want ");
    ck_assert_ptr_nonnull(strstr(find(&j, ET_CHECK_BOUND)->text, "; 1 of 512 elements"));
    ck_assert_double_infinite(find(&j, ET_CHECK_BOUND)->figure);
    ck_assert_int_eq(find(&j, ET_CHECK_NMSE)->outcome, ET_BROKEN);
    ck_assert_int_eq(find(&j, ET_CHECK_GAIN)->outcome, ET_BROKEN);
    expect_broken(&j, ET_CHECK_NOISE,
                  "row of out (query_length 0, q_heads 3, head_dim 0): error energy is inf");
    judged_close(&j);
}
END_TEST

START_TEST(one_infinity_breaks_bound_at_its_place)
{
    struct judged j;
    open_run(&j, ET_F16, ET_FILL_NORMAL);
    judged_put(&j, AT, -INFINITY);
    ck_assert_int_eq(judged_verdict(&j), ET_FAIL);
    expect_broken(&j, ET_CHECK_BOUND, PLACE ": got -inf (0xfc00), want ");
    judged_close(&j);
}
END_TEST

START_TEST(zeros_instead_of_results_break_every_check_against_the_truth)
{
    struct judged j;
    open_run(&j, ET_BF16, ET_FILL_NORMAL);
    for (int64_t i = 0; i < ELEMENTS; i++)
        judged_put(&j, i, 0);
    ck_assert_int_eq(judged_verdict(&j), ET_FAIL);
    ck_assert_double_eq(find(&j, ET_CHECK_NMSE)->figure, 1); /* sum ref^2 / sum ref^2 */
    expect_broken(&j, ET_CHECK_NMSE, "out: sum err^2 ");
    expect_broken(&j, ET_CHECK_BOUND, "out (query_length 0, q_heads 0, head_dim 0): got 0 (0x0000), want ");
    ck_assert_ptr_nonnull(strstr(find(&j, ET_CHECK_BOUND)->text, "; 512 of 512 elements"));
    expect_broken(&j, ET_CHECK_NOISE, "row of out (query_length 0, q_heads 0, head_dim 0)");
    ck_assert_ptr_nonnull(strstr(find(&j, ET_CHECK_NOISE)->text, "; 16 of 16 rows"));
    expect_broken(&j, ET_CHECK_GAIN, "out: coherent error of -1 of the reference over 16 rows");
    judged_close(&j);
}
END_TEST

START_TEST(zeros_for_a_zero_reference_pass)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_CONSTANT, 0, (struct et_spread){0});
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_double_eq(find(&j, ET_CHECK_NMSE)->figure, 0);
    ck_assert_double_eq(find(&j, ET_CHECK_NMSE)->limit, 0);
    ck_assert_double_eq(find(&j, ET_CHECK_BOUND)->figure, 0);
    judged_close(&j);
}
END_TEST

START_TEST(a_zero_reference_allows_no_error_energy)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_CONSTANT, 0, (struct et_spread){.worst = 1});
    judged_put(&j, AT, 0.25);
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_NMSE);
    ck_assert_double_eq(find(&j, ET_CHECK_NMSE)->figure, 0.0625);
    judged_close(&j);
}
END_TEST

/* (2^-400)^4 is 0 in f64, and so is its product with the variance of a store; a weight that small beside a
 * sink is no less right for it. */
START_TEST(gain_has_nothing_to_say_where_every_reference_is_zero_or_next_to_it)
{
    const double references[] = {0, 0x1p-400};
    for (int i = 0; i < 2; i++) {
        struct judged j;
        struct et_teeth teeth;
        open_made_up(&j, ET_F32, ET_FILL_NORMAL, references[i], (struct et_spread){0});
        ck_assert_int_eq(judged_verdict(&j), ET_PASS);
        ck_assert_int_eq(find(&j, ET_CHECK_GAIN)->outcome, ET_NOT_RUN);
        ck_assert_int_eq(find(&j, ET_CHECK_NOISE)->outcome, ET_HELD);
        const struct et_judge_input input = judged_input(&j);
        et_teeth_of(&input, &teeth);
        ck_assert_double_nan(tooth(&teeth, "scale")->size[3]);
        judged_close(&j);
    }
}
END_TEST

/* Of 16 rows one is not: its alpha is -2^-10, var(alpha) 2^-20 / 0.25 / 32 = 2^-23, and z = 2 sqrt 2. */
START_TEST(rows_next_to_zero_take_no_part_in_gain)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_NORMAL, 0.5, (struct et_spread){.variance = 0x1p-20, .worst = 1});
    for (int64_t i = 0; i < ELEMENTS; i++) {
        j.truth.value[i] = i < 32 ? 0.5 : 0x1p-400;
        j.truth.spread[i].variance = i < 32 ? 0x1p-20 : 0;
        judged_put(&j, i, i < 32 ? 0.5 - 0x1p-11 : 0);
    }
    judged_verdict(&j);
    ck_assert_int_eq(find(&j, ET_CHECK_GAIN)->outcome, ET_HELD);
    ck_assert_double_eq_tol(find(&j, ET_CHECK_GAIN)->figure, 2 * sqrt(2), 1e-6);
    judged_close(&j);
}
END_TEST

START_TEST(a_bound_that_is_infinite_does_not_hold_but_is_skipped)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_RAMP, 0.25, (struct et_spread){.worst = INFINITY});
    judged_verdict(&j);
    ck_assert_int_eq(find(&j, ET_CHECK_BOUND)->outcome, ET_SKIPPED);
    judged_put(&j, AT, NAN);
    judged_verdict(&j);
    ck_assert_int_eq(find(&j, ET_CHECK_BOUND)->outcome, ET_BROKEN);
    judged_close(&j);
}
END_TEST

/*
 * ref 1/4, worst 2^-10: 3u|ref| is 0.75 * 2^-24, half a unit in [1/4, 1/2) is 2^-26, so the tolerance is
 * 2^-10 + 2^-24. Neighbours are 2^-25 apart there.
 */
START_TEST(the_tolerance_itself_holds_and_one_unit_more_breaks)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_RAMP, 0.25, (struct et_spread){.worst = 0x1p-10});
    judged_put(&j, AT, 0.25 + 0x1p-10 + 0x1p-24);
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_double_eq(find(&j, ET_CHECK_BOUND)->figure, 1);
    ck_assert_double_eq(j.judgement.headroom, 1);
    judged_put(&j, AT, 0.25 + 0x1p-10 + 0x1p-24 + 0x1p-25);
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_BOUND);
    expect_broken(&j, ET_CHECK_BOUND,
                  PLACE
                  ": got 0.250976652 (0x3e808003), want 0.25 (0x3e800000), err 0.000977, tolerance 0.000977; "
                  "1 of 512 elements");
    judged_close(&j);
}
END_TEST

/* 1 + 2^-11 lies between two f16 numbers, half a unit from both; two units from it is an error of three
 * halves. */
START_TEST(half_a_unit_of_the_output_type_holds_and_three_halves_break)
{
    struct judged j;
    open_made_up(&j, ET_F16, ET_FILL_RAMP, 1 + 0x1p-11, (struct et_spread){0});
    for (int64_t i = 0; i < ELEMENTS; i++)
        judged_put(&j, i, i % 2 == 0 ? 1 : 1 + 0x1p-10);
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    /* 2^-11 / (2^-11 + 3 * 2^-24 * (1 + 2^-11)) = 1 - 0.000366 */
    ck_assert_double_eq_tol(find(&j, ET_CHECK_BOUND)->figure, 0.999634, 1e-6);
    judged_put(&j, AT, 1 + 0x1p-9);
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_BOUND);
    ck_assert_double_eq_tol(find(&j, ET_CHECK_BOUND)->figure, 3 * 0.999634, 1e-5);
    judged_close(&j);
}
END_TEST

/*
 * ref 1 - 2^-14 with a bound of 2^-11 + 2^-14 before the store reaches past 1, where half a unit is 2^-11,
 * not 2^-12: 1 + 2^-10 is allowed.
 */
START_TEST(the_store_is_of_what_the_kernel_may_have_had)
{
    struct judged j;
    open_made_up(&j, ET_F16, ET_FILL_RAMP, 1 - 0x1p-14, (struct et_spread){.worst = 0x1p-11 + 0x1p-14});
    judged_put(&j, AT, 1 + 0x1p-10);
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    judged_close(&j);
}
END_TEST

/*
 * The error is 2^-10. On independent data the bound is 6 * 2^-13 + 2^-13 < 2^-10 (broken), on recorded data
 * 2^-11 + 2^-13 (broken too), on structured data the worst case, 2^-9.
 */
START_TEST(the_data_decide_which_bound_holds)
{
    static const struct {
        enum et_fill_kind fill;
        struct et_data data;
        enum et_outcome bound;
        double tolerance;
        bool statistics;
    } rows[] = {
        {ET_FILL_NORMAL, {0}, ET_BROKEN, 7 * 0x1p-13, true},
        {ET_FILL_OUTLIER, {0}, ET_BROKEN, 7 * 0x1p-13, true},
        {ET_FILL_RAMP, {0}, ET_HELD, 0x1p-9, false},
        {ET_FILL_CONSTANT, {0}, ET_HELD, 0x1p-9, false},
        {ET_FILL_RAMP,
         {.given = true, .fill.kind = ET_FILL_UNIFORM},
         ET_HELD,
         0x1p-9,
         false}, /* v is still a ramp */
        {ET_FILL_NORMAL, {.given = true, .fill.kind = ET_FILL_UNIFORM}, ET_BROKEN, 7 * 0x1p-13, true},
        {ET_FILL_NORMAL, {.given = true, .fill.kind = ET_FILL_CONSTANT}, ET_HELD, 0x1p-9, false},
        {ET_FILL_NORMAL, {.given = true, .kind = ET_DATA_VALUES}, ET_HELD, 0x1p-9, false},
        {ET_FILL_NORMAL, {.given = true, .kind = ET_DATA_FILE}, ET_BROKEN, 0x1p-11 + 0x1p-13, false},
    };
    struct judged j;
    open_made_up(
        &j, ET_F32, ET_FILL_NORMAL, 0.25,
        (struct et_spread){.variance = 0x1p-26, .bias = 0x1p-13, .likely = 0x1p-11, .worst = 0x1p-9});
    judged_put(&j, AT, 0.25 + 0x1p-10);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        j.fill = rows[i].fill;
        j.step.data[JUDGED_W] = rows[i].data;
        judged_verdict(&j);
        ck_assert_int_eq(find(&j, ET_CHECK_BOUND)->outcome, rows[i].bound);
        ck_assert_double_eq_tol(find(&j, ET_CHECK_BOUND)->figure, 0x1p-10 / (rows[i].tolerance + 0x1p-24),
                                1e-9);
        ck_assert_int_eq(find(&j, ET_CHECK_NOISE)->outcome != ET_NOT_RUN, rows[i].statistics);
        ck_assert_int_eq(find(&j, ET_CHECK_GAIN)->outcome != ET_NOT_RUN, rows[i].statistics);
    }
    judged_close(&j);
}
END_TEST

/* Stores that reach f16's overflow, 65520, or f8e4m3fn's, 464, are right; from references that can't, wrong.
 */
START_TEST(overflow_is_right_where_the_tolerance_reaches_it)
{
    static const struct {
        enum et_dtype dtype;
        double ref, got;
        enum et_outcome bound;
    } rows[] = {
        {ET_F16, 70000, INFINITY, ET_HELD},   {ET_F16, 70000, 65504, ET_BROKEN},
        {ET_F16, 65510, INFINITY, ET_HELD},   {ET_F16, 65510, 65504, ET_HELD},
        {ET_F16, 65400, INFINITY, ET_BROKEN}, {ET_F16, 70000, -INFINITY, ET_BROKEN},
        {ET_F16, -70000, -INFINITY, ET_HELD}, {ET_F16, INFINITY, INFINITY, ET_HELD},
        {ET_F16, INFINITY, 65504, ET_BROKEN}, {ET_F16, INFINITY, -INFINITY, ET_BROKEN},
        {ET_F16, NAN, NAN, ET_HELD},          {ET_F16, NAN, 1, ET_BROKEN},
        {ET_F16, NAN, INFINITY, ET_BROKEN},   {ET_F16, 70000, NAN, ET_BROKEN},
        {ET_F8E4M3FN, 1000, 448, ET_HELD},    {ET_F8E4M3FN, 1000, 416, ET_BROKEN},
        {ET_F8E4M3FN, -1000, 448, ET_BROKEN}, {ET_F8E4M3FN, 380, 448, ET_BROKEN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct judged j;
        open_made_up(&j, rows[i].dtype, ET_FILL_RAMP, 1, (struct et_spread){0});
        j.truth.value[AT] = rows[i].ref;
        judged_put(&j, AT, rows[i].got);
        judged_verdict(&j);
        ck_assert_msg(find(&j, ET_CHECK_BOUND)->outcome == rows[i].bound, "ref %g got %g", rows[i].ref,
                      rows[i].got);
        /* what overflowed rightly has no part in a sum, so nmse holds as well */
        ck_assert_int_eq(find(&j, ET_CHECK_NMSE)->outcome, rows[i].bound);
        judged_close(&j);
    }
}
END_TEST

/* 2^-6 more than 2^-1 everywhere is 2^-10; a variance of 2^-13 predicts 4 * 2^-13 / 2^-2 = 2^-9. */
START_TEST(nmse_is_normalised_by_the_reference_and_its_limit_follows_the_declared_arithmetic)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_RAMP, 0.5, (struct et_spread){.worst = 1});
    for (int64_t i = 0; i < ELEMENTS; i++)
        judged_put(&j, i, 0.5 + 0x1p-6);
    judged_verdict(&j);
    ck_assert_double_eq(find(&j, ET_CHECK_NMSE)->figure, 0x1p-10);
    ck_assert_double_eq(find(&j, ET_CHECK_NMSE)->limit, 5e-4);
    expect_only(&j, ET_CHECK_NMSE);
    for (int64_t i = 0; i < ELEMENTS; i++)
        j.truth.spread[i].variance = 0x1p-13;
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_double_eq_tol(find(&j, ET_CHECK_NMSE)->limit, 0x1p-9, 1e-12);
    ck_assert_double_eq_tol(j.judgement.nmse_derived, 0x1p-9, 1e-12);
    /* 4 * 2^-4 / 2^-2 = 1: an output of zeros would hold that. */
    for (int64_t i = 0; i < ELEMENTS; i++)
        j.truth.spread[i].variance = 0x1p-4;
    judged_verdict(&j);
    ck_assert_int_eq(find(&j, ET_CHECK_NMSE)->outcome, ET_SKIPPED);
    ck_assert_str_eq(find(&j, ET_CHECK_NMSE)->text,
                     "the declared roundings leave no limit below the reference itself");
    judged_close(&j);
}
END_TEST

/* sigma 2^-10; every error of row 3 is 2.5 sigma, of alternating sign: energy 6.25, each within 6 sigma. */
START_TEST(a_row_with_too_much_error_energy_breaks_noise_alone)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_NORMAL, 0.5, (struct et_spread){.variance = 0x1p-20, .worst = 1});
    for (int64_t i = 0; i < 32; i++)
        judged_put(&j, 3 * 32 + i, 0.5 + (i % 2 ? 2.5 : -2.5) * 0x1p-10);
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_NOISE);
    ck_assert_double_eq_tol(find(&j, ET_CHECK_NOISE)->figure, 6.25, 1e-4);
    ck_assert_double_eq(find(&j, ET_CHECK_NOISE)->limit, 4);
    expect_broken(
        &j, ET_CHECK_NOISE,
        "row of out (query_length 0, q_heads 3, head_dim 0): error energy is 6.25 of the predicted, limit 4; "
        "1 of 16 rows");
    judged_close(&j);
}
END_TEST

/* 1.3 sigma everywhere: energy 1.69 a row, allowed, but its mean is over 1.5. References differ, so rows do.
 */
START_TEST(a_mean_over_rows_breaks_noise_where_no_row_does)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_NORMAL, 0.5, (struct et_spread){.variance = 0x1p-20, .worst = 1});
    for (int64_t i = 0; i < ELEMENTS; i++)
        judged_put(&j, i, 0.5 + (i % 2 ? 1.3 : -1.3) * 0x1p-10);
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_NOISE);
    ck_assert_double_eq_tol(find(&j, ET_CHECK_NOISE)->figure, 1.69, 1e-4);
    ck_assert_double_eq(find(&j, ET_CHECK_NOISE)->limit, 1.5);
    ck_assert_double_eq_tol(j.judgement.noise_mean, 1.69, 1e-4);
    expect_broken(&j, ET_CHECK_NOISE,
                  "out: mean error energy of 16 rows is 1.69 of the predicted, limit 1.5");
    judged_close(&j);
}
END_TEST

/* One element of each row has all the energy: the mean of 16 strays by sqrt(0.8 / 16), and 6 of those
 * are 1.34. */
START_TEST(a_mean_over_few_elements_may_stray_further)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_NORMAL, 0.5, (struct et_spread){.variance = 0x1p-60, .worst = 1});
    for (int64_t row = 0; row < 16; row++) {
        j.truth.spread[row * 32].variance = 0x1p-20;
        judged_put(&j, row * 32, 0.5 + (row % 2 ? 1.5 : -1.5) * 0x1p-10); /* energy 2.25 */
    }
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    for (int64_t row = 0; row < 16; row++)
        judged_put(&j, row * 32, 0.5 + (row % 2 ? 1.6 : -1.6) * 0x1p-10); /* 2.56 */
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_NOISE);
    ck_assert_double_eq_tol(find(&j, ET_CHECK_NOISE)->limit, 2.3416, 1e-3); /* 1 + 6 sqrt(0.05) */
    judged_close(&j);
}
END_TEST

/*
 * Errors of 0.5 sigma, all of one sign: var(alpha) of a row is 32 sigma^2 ref^2 / (32 ref^2)^2, so 16 rows
 * make z = 0.5 sqrt(16 * 32) = 11.3. Elements and rows see nothing.
 */
START_TEST(a_coherent_error_breaks_gain_alone)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_NORMAL, 0.5, (struct et_spread){.variance = 0x1p-20, .worst = 1});
    for (int64_t i = 0; i < ELEMENTS; i++)
        judged_put(&j, i, 0.5 - 0x1p-11);
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_GAIN);
    ck_assert_double_eq_tol(find(&j, ET_CHECK_GAIN)->figure, 11.3137, 1e-3);
    ck_assert_double_eq(find(&j, ET_CHECK_GAIN)->limit, 6);
    expect_broken(&j, ET_CHECK_GAIN,
                  "out: coherent error of -0.000977 of the reference over 16 rows, z -11.3, limit 6");
    judged_close(&j);
}
END_TEST

/* Of a row var(alpha) is 2^-20 / 0.25 / 32 = 2^-23 by its elements, and 3 * 2^-23 that they have alike:
 * 2^-21. alpha is -2^-10, so z = 2^-10 * sqrt(16 * 2^21) = 4 * sqrt 2 where it was twice that; and of 1 % 4 *
 * 0.01 * 2^10.5, of a limit of 6. */
START_TEST(gain_allows_for_the_error_that_elements_of_a_row_have_alike)
{
    struct judged j;
    struct et_teeth teeth;
    open_made_up(&j, ET_F32, ET_FILL_NORMAL, 0.5,
                 (struct et_spread){.variance = 0x1p-20, .common = 0x3p-23, .worst = 1});
    for (int64_t i = 0; i < ELEMENTS; i++)
        judged_put(&j, i, 0.5 - 0x1p-11);
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_double_eq_tol(find(&j, ET_CHECK_GAIN)->figure, 4 * sqrt(2), 1e-6);
    const struct et_judge_input input = judged_input(&j);
    et_teeth_of(&input, &teeth);
    ck_assert_double_eq_tol(tooth(&teeth, "scale")->size[3], 0.04 * 1024 * sqrt(2) / 6, 1e-6);
    /* a quarter of alpha that all rows may have alike: three quarters are left */
    for (int64_t i = 0; i < ELEMENTS; i++)
        j.truth.spread[i].drift = 0x1p-12;
    judged_verdict(&j);
    ck_assert_double_eq_tol(find(&j, ET_CHECK_GAIN)->figure, 3 * sqrt(2), 1e-6);
    et_teeth_of(&input, &teeth);
    ck_assert_double_eq_tol(tooth(&teeth, "scale")->size[3], 4 * (0.01 - 0x1p-12) * 1024 * sqrt(2) / 6, 1e-6);
    judged_close(&j);
}
END_TEST

/* One visible position: the four heads of a group store the same values, and err alike. Only one of them
 * counts. */
START_TEST(rows_that_are_the_same_are_one_witness)
{
    const struct et_gqa_av one = {
        .q_heads = 16, .kv_heads = 4, .head_dim = 32, .query_length = 1, .context = 1, .capacity = 1};
    struct judged j;
    judged_open(&j, &one, ET_F32, ET_BF16, ET_FILL_NORMAL, 1, 0);
    judged_truth(&j, 0, 0, 1);
    for (int64_t u = 0; u < 16; u++)
        ck_assert_int_eq(j.truth.again[u], u % 4 != 0);
    judged_close(&j);

    /* 0.5 sigma of one sign: over 4 rows z is 0.5 sqrt(4 * 32) = 5.7; 4 rows have no mean either */
    open_made_up(&j, ET_F32, ET_FILL_NORMAL, 0.5, (struct et_spread){.variance = 0x1p-20, .worst = 1});
    for (int64_t i = 0; i < ELEMENTS; i++)
        judged_put(&j, i, 0.5 + 0x1p-11);
    for (int64_t u = 0; u < 16; u++)
        j.truth.again[u] = u % 4 != 0;
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_double_eq_tol(find(&j, ET_CHECK_GAIN)->figure, 5.65685, 1e-3);
    ck_assert_double_eq(j.judgement.noise_mean, 0);
    judged_close(&j);
}
END_TEST

START_TEST(rows_below_16_elements_have_no_noise)
{
    const struct et_gqa_av narrow = {
        .q_heads = 16, .kv_heads = 4, .head_dim = 15, .query_length = 1, .context = 40, .capacity = 40};
    struct judged j;
    judged_open(&j, &narrow, ET_F32, ET_F32, ET_FILL_NORMAL, 1, 0);
    judged_truth(&j, 0, 0, 1);
    for (int64_t i = 0; i < 16 * 15; i++)
        judged_put(&j, i, j.truth.value[i]);
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_int_eq(find(&j, ET_CHECK_NOISE)->outcome, ET_NOT_RUN);
    ck_assert_int_eq(find(&j, ET_CHECK_GAIN)->outcome, ET_HELD);
    judged_close(&j);
}
END_TEST

/* Of a reference of 1 without spread: the store's u^2 / 3, and 3 u^2. Errors of 2u are 4 / (10 / 3) of that.
 */
START_TEST(three_roundings_of_the_result_are_predicted_besides_the_store)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_NORMAL, 1, (struct et_spread){0});
    for (int64_t i = 0; i < ELEMENTS; i++)
        judged_put(&j, i, i % 2 ? 1 + 0x1p-23 : 1 - 0x1p-23);
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_double_eq_tol(find(&j, ET_CHECK_NOISE)->figure, 1.2, 1e-9);
    judged_close(&j);
}
END_TEST

START_TEST(an_element_never_written_is_found_in_every_repeat_and_unit)
{
    struct judged j;
    judged_open(&j, &params, ET_F32, ET_F16, ET_FILL_NORMAL, 1, 0);
    judged_truth(&j, 0, 0, 1);
    write_truth(&j);
    et_truth_free(&j.truth);
    judged_truth(&j, 0, 1, 1); /* head 7 is not sampled: edges are 0, 3, 4, 15, and one more is drawn */
    for (int64_t u = 0; u < j.truth.units; u++)
        ck_assert_int_ne(j.truth.unit[u], 7);
    const int64_t at = 7 * 32 + 5;
    judged_store(&j, 1, at, et_poison(ET_F16, 1));
    judged_verdict(&j);
    expect_broken(
        &j, ET_CHECK_WRITTEN,
        "out (query_length 0, q_heads 7, head_dim 5): never written in repeat 1, still -nan (0xffd5)");
    ck_assert_ptr_nonnull(strstr(find(&j, ET_CHECK_WRITTEN)->text, "; 1 of 1024 elements"));
    ck_assert_double_eq(find(&j, ET_CHECK_WRITTEN)->figure, 1);
    expect_broken(&j, ET_CHECK_REPEAT, "out (query_length 0, q_heads 7, head_dim 5): ");
    judged_close(&j);
}
END_TEST

START_TEST(another_repeats_poison_is_not_this_ones)
{
    struct judged j;
    open_run(&j, ET_F32, ET_FILL_NORMAL);
    judged_store(&j, 0, AT, et_poison(ET_F32, 1));
    judged_verdict(&j);
    ck_assert_int_eq(find(&j, ET_CHECK_WRITTEN)->outcome, ET_HELD);
    ck_assert_int_eq(find(&j, ET_CHECK_BOUND)->outcome, ET_BROKEN);
    judged_close(&j);
}
END_TEST

/* Rows of 32 are followed by 3 elements of padding, and 3 come first: 3 + 2 * 35 + 32 is behind row 2. */
START_TEST(padding_that_changed_breaks_guards)
{
    struct judged j;
    open_run(&j, ET_F32, ET_FILL_NORMAL);
    static const int64_t places[] = {0, 2, 3 + 2 * 35 + 32, 3 + 15 * 35 + 34};
    for (int i = 0; i < 4; i++)
        et_store(ET_F32, (void *)(uintptr_t)j.outputs[1].data[JUDGED_OUT], places[i], 0x3f800000);
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_GUARDS);
    expect_broken(&j, ET_CHECK_GUARDS,
                  "out: padding at element 0 of the buffer was overwritten: 1 (0x3f800000), was -nan (0x");
    ck_assert_double_eq(find(&j, ET_CHECK_GUARDS)->figure, 4);
    /* 3 + 16 * 3 elements of padding, and the port's own word, of two repeats */
    ck_assert_ptr_nonnull(strstr(find(&j, ET_CHECK_GUARDS)->text, "; 4 of 104 places"));
    judged_close(&j);
}
END_TEST

START_TEST(a_permuted_layout_has_no_padding_but_what_is_between_its_elements)
{
    struct judged j;
    judged_open(&j, &params, ET_F32, ET_F32, ET_FILL_NORMAL, 1, 3);
    struct et_tensor *out = &j.problem->tensor[JUDGED_OUT];
    /* head_dim outermost, then heads; query_length has one element, so its stride means nothing */
    out->stride[0] = 1;
    out->stride[1] = 1;
    out->stride[2] = 16;
    judged_truth(&j, 0, 0, 1);
    for (int64_t h = 0; h < 16; h++)
        for (int64_t d = 0; d < 32; d++)
            for (int r = 0; r < JUDGED_REPEATS; r++)
                et_store(ET_F32, (void *)(uintptr_t)j.outputs[r].data[JUDGED_OUT], 3 + d * 16 + h,
                         et_narrow(ET_F32, j.truth.value[h * 32 + d]));
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    et_store(ET_F32, (void *)(uintptr_t)j.outputs[0].data[JUDGED_OUT], 3 + ELEMENTS, 0);
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_GUARDS);
    judged_close(&j);
}
END_TEST

START_TEST(what_the_port_found_breaks_guards_and_inputs_kept)
{
    struct judged j;
    open_run(&j, ET_F32, ET_FILL_NORMAL);
    snprintf(j.facts[1].guards, sizeof j.facts[1].guards, "out: guard byte 3 after the end is 0x00");
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_GUARDS);
    expect_broken(&j, ET_CHECK_GUARDS, "out: guard byte 3 after the end is 0x00");
    j.facts[1].guards[0] = '\0';
    snprintf(j.facts[0].inputs_kept, sizeof j.facts[0].inputs_kept, "v: element 7 changed");
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_INPUTS_KEPT);
    expect_broken(&j, ET_CHECK_INPUTS_KEPT, "v: element 7 changed; 1 of 2 executions");
    judged_close(&j);
}
END_TEST

START_TEST(guards_are_skipped_where_there_were_none)
{
    struct judged j;
    open_run(&j, ET_F32, ET_FILL_NORMAL);
    j.facts[1].guarded = false;
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_int_eq(find(&j, ET_CHECK_GUARDS)->outcome, ET_SKIPPED);
    ck_assert_str_eq(find(&j, ET_CHECK_GUARDS)->text, "guards off");
    judged_close(&j);
}
END_TEST

START_TEST(a_repeat_that_differs_in_one_bit_breaks_repeat)
{
    struct judged j;
    open_made_up(&j, ET_F16, ET_FILL_NORMAL, 1, (struct et_spread){.variance = 1, .worst = 1});
    judged_store(&j, 1, AT, 0x3c01);
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_REPEAT);
    expect_broken(&j, ET_CHECK_REPEAT,
                  PLACE ": 1 (0x3c00) of repeat 0, 1.00097656 (0x3c01) of repeat 1; 1 of 512 elements");
    judged_close(&j);
}
END_TEST

START_TEST(exact_needs_no_order_and_sees_one_bit)
{
    struct judged j;
    open_run(&j, ET_BF16, ET_FILL_EXACT);
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_int_eq(find(&j, ET_CHECK_EXACT)->outcome, ET_HELD);
    ck_assert_int_eq(find(&j, ET_CHECK_REPLAY)->outcome, ET_NOT_RUN);
    ck_assert(et_judged_by_bytes(&j.judgement));
    for (int r = 0; r < JUDGED_REPEATS; r++)
        judged_store(&j, r, AT, et_narrow(ET_BF16, j.truth.value[AT]) ^ 1);
    ck_assert_int_eq(judged_verdict(&j), ET_FAIL);
    ck_assert_int_eq(find(&j, ET_CHECK_EXACT)->outcome, ET_BROKEN);
    ck_assert(strstr(find(&j, ET_CHECK_EXACT)->text, PLACE ": got "));
    j.c.checks.exact = false;
    judged_verdict(&j);
    ck_assert_int_eq(find(&j, ET_CHECK_EXACT)->outcome, ET_NOT_RUN);
    judged_close(&j);
}
END_TEST

START_TEST(exact_is_skipped_where_the_claim_rounds_to_fewer_digits_than_the_fill_needs)
{
    static const struct {
        enum et_dtype out;
        enum et_outcome outcome;
    } rows[] = {{ET_F32, ET_SKIPPED}, {ET_F16, ET_HELD}, {ET_BF16, ET_HELD}};
    for (int i = 0; i < 3; i++) {
        struct judged j;
        judged_open(&j, &params, ET_F32, rows[i].out, ET_FILL_EQUAL, 1, 0);
        j.claim.arith.sum = ET_F16;
        judged_truth(&j, 0, 0, 1);
        write_truth(&j);
        judged_verdict(&j);
        ck_assert_int_eq(find(&j, ET_CHECK_EXACT)->outcome, rows[i].outcome);
        if (rows[i].outcome == ET_SKIPPED)
            ck_assert_str_eq(find(&j, ET_CHECK_EXACT)->text,
                             "f16, which the claim rounds to, has 11 digits, and the fill needs 24");
        judged_close(&j);
    }
}
END_TEST

START_TEST(exact_is_for_inputs_that_have_one_fill_in_common)
{
    struct judged j;
    open_run(&j, ET_F32, ET_FILL_EXACT);
    j.step.data[JUDGED_V] = (struct et_data){.given = true, .fill = {.kind = ET_FILL_ONEHOT}};
    judged_verdict(&j);
    ck_assert_int_eq(find(&j, ET_CHECK_EXACT)->outcome, ET_NOT_RUN);
    judged_close(&j);
}
END_TEST

/* References of 1 with variance 1 and worst 1: every tolerance is 1, every limit of nmse 4. */
START_TEST(teeth_are_in_units_of_each_limit)
{
    struct judged j;
    struct et_teeth teeth;
    open_made_up(&j, ET_F32, ET_FILL_NORMAL, 1, (struct et_spread){.variance = 1, .worst = 1});
    for (int64_t i = 0; i < ELEMENTS * j.truth.lie_count; i++)
        j.truth.lie[i] = 0.5;
    const struct et_judge_input input = judged_input(&j);
    et_teeth_of(&input, &teeth);
    static const struct {
        const char *name;
        int check;
        double size;
    } rows[] = {{"first_position", 1, 0.5}, {"scale", 1, 0.01}, {"scale", 0, 1e-4 / 4}, {"zeros", 0, 0.25},
                {"zeros", 2, 0.25},         {"mean", 0, 0},     {"mean", 1, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ck_assert_double_eq_tol(tooth(&teeth, rows[i].name)->size[rows[i].check], rows[i].size, 1e-6);
    ck_assert(isnan(tooth(&teeth, "zeros")->size[4]));
    ck_assert_msg(
        strstr(teeth.blind, "these data could not have told: first_position is 0.5 of the limit of bound"),
        "%s", teeth.blind);
    judged_close(&j);
}
END_TEST

START_TEST(random_data_have_teeth_and_an_empty_context_needs_none)
{
    struct judged j;
    struct et_teeth teeth;
    open_run(&j, ET_BF16, ET_FILL_NORMAL);
    struct et_judge_input input = judged_input(&j);
    et_teeth_of(&input, &teeth);
    ck_assert_str_eq(teeth.blind, "");
    judged_close(&j);
    const struct et_gqa_av empty = {
        .q_heads = 2, .kv_heads = 1, .head_dim = 16, .query_length = 1, .capacity = 4};
    judged_open(&j, &empty, ET_F32, ET_F32, ET_FILL_NORMAL, 1, 0);
    judged_truth(&j, 0, 0, 1);
    input = judged_input(&j);
    et_teeth_of(&input, &teeth);
    ck_assert_str_eq(teeth.blind, "");
    judged_close(&j);
}
END_TEST

/* ctx64x4 with 40 positions: partials 0..9 of one quad each, then the tree. */
START_TEST(replay_compares_bytes_where_the_device_computes_as_c_does)
{
    struct judged j;
    judged_open(&j, &params, ET_F32, ET_F32, ET_FILL_NORMAL, 1, 0);
    j.claim.order = (struct et_order){.name = "ctx64x4", .arg = {ET_F32}};
    judged_truth(&j, 0, 0, 1);
    for (int64_t i = 0; i < ELEMENTS; i++)
        judged_put(&j, i, (double)j.truth.replay[i]);
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_int_eq(find(&j, ET_CHECK_REPLAY)->outcome, ET_HELD);
    ck_assert_double_eq(find(&j, ET_CHECK_REPLAY)->figure, 0);

    const uint32_t bits = et_narrow(ET_F32, (double)j.truth.replay[AT]);
    judged_store(&j, 0, AT, bits + 1);
    judged_store(&j, 1, AT, bits + 1);
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_REPLAY);
    expect_broken(&j, ET_CHECK_REPLAY, PLACE ": got ");
    ck_assert_double_eq(find(&j, ET_CHECK_REPLAY)->figure, 1);

    j.device.probed = false;
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_int_eq(find(&j, ET_CHECK_REPLAY)->outcome, ET_SKIPPED);
    ck_assert_str_eq(find(&j, ET_CHECK_REPLAY)->text, "probe: was not run");
    j.device = (struct et_device){.probed = true, .probe = "fma differs on 12 of 65536"};
    judged_verdict(&j);
    ck_assert_str_eq(find(&j, ET_CHECK_REPLAY)->text, "probe: fma differs on 12 of 65536");
    j.device.exact = true;
    judged_verdict(&j);
    ck_assert_int_eq(find(&j, ET_CHECK_REPLAY)->outcome, ET_BROKEN);
    j.truth.met[0].subnormal = true;
    judged_verdict(&j);
    ck_assert_int_eq(find(&j, ET_CHECK_REPLAY)->outcome, ET_SKIPPED);
    j.device.exact_subnormal = true;
    judged_verdict(&j);
    ck_assert_int_eq(find(&j, ET_CHECK_REPLAY)->outcome, ET_BROKEN);
    judged_close(&j);
}
END_TEST

START_TEST(an_order_without_replay_is_skipped)
{
    struct judged j;
    judged_open(&j, &params, ET_F32, ET_F32, ET_FILL_NORMAL, 1, 0);
    j.claim.order = (struct et_order){.name = "zigzag"};
    judged_truth(&j, 0, 0, 1);
    write_truth(&j);
    ck_assert_int_eq(j.truth.order_count, 1);
    ck_assert(!j.truth.replayed[0]);
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_str_eq(find(&j, ET_CHECK_REPLAY)->text, "gqa_av has no replay of order zigzag");
    judged_close(&j);
}
END_TEST

START_TEST(expect_without_atol_compares_the_value_rounded_once)
{
    struct judged j;
    open_made_up(&j, ET_BF16, ET_FILL_CONSTANT, 0.1, (struct et_spread){.worst = 1});
    j.step.expect[JUDGED_OUT] =
        (struct et_data){.given = true, .fill = {.kind = ET_FILL_CONSTANT, .value = 0.1}};
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_int_eq(find(&j, ET_CHECK_EXPECT)->outcome, ET_HELD);
    judged_put(&j, AT, 0.125);
    judged_verdict(&j);
    /* 0.1 = 0x3dcccccd in f32; its upper half rounds to 0x3dcd, 0.10009765625 */
    expect_broken(&j, ET_CHECK_EXPECT,
                  "port: " PLACE ": got 0.125 (0x3e00), expected 0.1 (0x3dcd); 1 of 512 elements");
    judged_put(&j, AT, 0.1);
    j.truth.value[AT] = 0.125;
    judged_verdict(&j);
    expect_broken(&j, ET_CHECK_EXPECT, "oracle: " PLACE ": got 0.125 (0x3e00), expected 0.1 (0x3dcd)");
    judged_close(&j);
}
END_TEST

/* 16 values: one a head. */
START_TEST(expected_values_cover_the_leading_dimensions)
{
    double values[16];
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_CONSTANT, 0, (struct et_spread){0});
    for (int64_t i = 0; i < ELEMENTS; i++) {
        values[i / 32] = (double)(i / 32 + 1);
        j.truth.value[i] = values[i / 32];
    }
    write_truth(&j);
    j.step.expect[JUDGED_OUT] =
        (struct et_data){.given = true, .kind = ET_DATA_VALUES, .values = values, .count = 16};
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    values[3] = 9;
    judged_verdict(&j);
    expect_broken(
        &j, ET_CHECK_EXPECT,
        "oracle: out (query_length 0, q_heads 3, head_dim 0): got 4 (0x40800000), expected 9 (0x41100000); "
        "32 of 512 elements");
    judged_close(&j);
}
END_TEST

START_TEST(expect_with_atol_allows_that_much)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_CONSTANT, 1, (struct et_spread){.worst = 1});
    j.step.expect[JUDGED_OUT] = (struct et_data){
        .given = true, .fill = {.kind = ET_FILL_CONSTANT, .value = 1}, .has_atol = true, .atol = 0x1p-10};
    judged_put(&j, AT, 1 + 0x1p-10);
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_double_eq(find(&j, ET_CHECK_EXPECT)->figure, 0x1p-10);
    judged_put(&j, AT, 1 + 0x1p-10 + 0x1p-23);
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_EXPECT);
    judged_put(&j, AT, NAN);
    judged_verdict(&j);
    ck_assert_int_eq(find(&j, ET_CHECK_EXPECT)->outcome, ET_BROKEN);
    judged_close(&j);
}
END_TEST

START_TEST(allclose_runs_where_given)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_CONSTANT, 0.5, (struct et_spread){.worst = 1});
    j.c.checks.allclose = true;
    j.c.checks.atol = 0x1p-10;
    j.c.checks.rtol = 0x1p-9; /* 2^-10 + 2^-9 / 2 = 2^-9 */
    judged_put(&j, AT, 0.5 - 0x1p-9);
    ck_assert_int_eq(judged_verdict(&j), ET_PASS);
    ck_assert_double_eq(find(&j, ET_CHECK_ALLCLOSE)->figure, 1);
    judged_put(&j, AT, 0.5 - 0x1p-8);
    judged_verdict(&j);
    expect_only(&j, ET_CHECK_ALLCLOSE);
    ck_assert_double_eq(find(&j, ET_CHECK_ALLCLOSE)->figure, 2);
    judged_close(&j);
}
END_TEST

/* Tolerances 2^-10 + 2^-24 each (see above): 2^-9 apart agree, 2^-8 do not. */
START_TEST(two_runs_agree_within_the_sum_of_their_tolerances)
{
    struct judged a, b;
    open_made_up(&a, ET_F32, ET_FILL_RAMP, 0.25, (struct et_spread){.worst = 0x1p-10});
    open_made_up(&b, ET_F32, ET_FILL_RAMP, 0.25, (struct et_spread){.worst = 0x1p-10});
    judged_put(&a, AT, 0.25 + 0x1p-10);
    judged_put(&b, AT, 0.25 - 0x1p-10);
    const struct et_judge_input in_a = judged_input(&a), in_b = judged_input(&b);
    struct et_finding f = {0};
    et_judge_agrees(&in_a, &in_b, "base", &f);
    ck_assert_int_eq(f.outcome, ET_HELD);
    ck_assert_double_eq_tol(f.figure, 1, 1e-4);
    judged_put(&b, AT, 0.25 - 0x3p-10);
    et_judge_agrees(&in_a, &in_b, "base", &f);
    ck_assert_int_eq(f.outcome, ET_BROKEN);
    ck_assert_double_eq_tol(f.figure, 2, 1e-3);
    ck_assert_str_eq(f.text, PLACE ": 0.250976562 (0x3e808000), but 0.247070312 (0x3e7d0000) of base, "
                                   "tolerance 0.00195; 1 of 512 elements");
    judged_put(&b, AT, NAN);
    f = (struct et_finding){0};
    et_judge_agrees(&in_a, &in_b, "base", &f);
    ck_assert_int_eq(f.outcome, ET_BROKEN);
    ck_assert_double_infinite(f.figure);
    judged_close(&a);
    judged_close(&b);
}
END_TEST

START_TEST(runs_that_may_differ_at_the_end_of_the_range_agree)
{
    static const struct {
        double ref, a, b;
        enum et_outcome outcome;
    } rows[] = {
        {65510, INFINITY, 65504, ET_HELD}, {NAN, NAN, NAN, ET_HELD}, {INFINITY, INFINITY, INFINITY, ET_HELD},
        {NAN, NAN, 1, ET_BROKEN},          {NAN, 1, NAN, ET_BROKEN}, {1, INFINITY, 1, ET_BROKEN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct judged a, b;
        open_made_up(&a, ET_F16, ET_FILL_RAMP, 1, (struct et_spread){0});
        open_made_up(&b, ET_F16, ET_FILL_RAMP, 1, (struct et_spread){0});
        a.truth.value[AT] = b.truth.value[AT] = rows[i].ref;
        judged_put(&a, AT, rows[i].a);
        judged_put(&b, AT, rows[i].b);
        const struct et_judge_input in_a = judged_input(&a), in_b = judged_input(&b);
        struct et_finding f = {0};
        et_judge_agrees(&in_a, &in_b, "base", &f);
        ck_assert_msg(f.outcome == rows[i].outcome, "ref %g: %g, %g", rows[i].ref, rows[i].a, rows[i].b);
        judged_close(&a);
        judged_close(&b);
    }
}
END_TEST

START_TEST(identical_compares_bytes_whatever_the_layout)
{
    struct judged a, b;
    open_run(&a, ET_F32, ET_FILL_NORMAL); /* padded */
    open_made_up(&b, ET_F32, ET_FILL_NORMAL, 0, (struct et_spread){0});
    for (int64_t i = 0; i < ELEMENTS; i++)
        judged_put(&b, i, a.truth.value[i]);
    judged_store(&a, 0, AT, 0x7fc00001);
    judged_store(&b, 0, AT, 0xffc00000); /* every NaN is one */
    struct et_finding f = {0};
    et_judge_identical(a.problem, &a.outputs[0], "the case", b.problem, &b.outputs[0], "its twin", &f);
    ck_assert_int_eq(f.outcome, ET_HELD);
    judged_store(&a, 0, AT, 0x3f800000);
    judged_store(&b, 0, AT, 0x3f800001);
    et_judge_identical(a.problem, &a.outputs[0], "the case", b.problem, &b.outputs[0], "its twin", &f);
    ck_assert_int_eq(f.outcome, ET_BROKEN);
    ck_assert_str_eq(f.text, PLACE ": 1 (0x3f800000) of the case, 1.00000012 (0x3f800001) of its twin; "
                                   "1 of 512 elements");
    judged_store(&b, 0, AT, 0x3f800000);
    et_judge_identical(a.problem, &a.outputs[0], "the case", b.problem, &b.outputs[0], "its twin", &f);
    ck_assert_int_eq(f.outcome, ET_BROKEN); /* what was broken stays */
    judged_close(&a);
    judged_close(&b);
}
END_TEST

START_TEST(of_several_steps_the_first_broken_text_and_the_worst_figure_stay)
{
    struct judged j;
    open_made_up(&j, ET_F32, ET_FILL_RAMP, 0.25, (struct et_spread){.worst = 0x1p-10});
    struct et_job_step job_steps[3] = {j.job_step, j.job_step, j.job_step};
    const struct et_case_step steps[3] = {0};
    j.job.steps = job_steps;
    j.c.steps = (struct et_case_step *)(uintptr_t)steps;
    j.c.step_count = 3;
    struct et_judge_input input = judged_input(&j);
    j.facts[0].guarded = false;
    et_judge(&input, &j.judgement);
    ck_assert_int_eq(find(&j, ET_CHECK_BOUND)->outcome, ET_HELD);
    ck_assert_str_eq(find(&j, ET_CHECK_GUARDS)->text, "step 0: guards off");
    snprintf(j.facts[0].guards, sizeof j.facts[0].guards, "w: changed");
    input.step = 1;
    judged_put(&j, AT, 0.25 + 0x1p-9);
    et_judge(&input, &j.judgement);
    expect_broken(&j, ET_CHECK_BOUND, "step 1: " PLACE);
    expect_broken(&j, ET_CHECK_GUARDS, "step 1: w: changed");
    ck_assert_double_eq(find(&j, ET_CHECK_GUARDS)->figure, 1);
    input.step = 2;
    judged_put(&j, 0, 0.25 + 0x1p-8);
    et_judge(&input, &j.judgement);
    expect_broken(&j, ET_CHECK_BOUND, "step 1: " PLACE);
    ck_assert_double_eq_tol(find(&j, ET_CHECK_BOUND)->figure, 4, 1e-3);
    ck_assert_int_eq(et_verdict_of(&j.judgement), ET_FAIL);
    judged_close(&j);
}
END_TEST

START_TEST(truth_samples_the_same_units_whatever_the_threads)
{
    const struct et_gqa_av p = {
        .q_heads = 24, .kv_heads = 6, .head_dim = 8, .query_length = 25, .context = 7, .capacity = 7};
    struct judged j;
    judged_open(&j, &p, ET_F32, ET_F32, ET_FILL_NORMAL, 1, 0);
    j.claim.order = (struct et_order){.name = "ctx64x4", .arg = {ET_F32}};
    judged_truth(&j, 5, 100, 1);
    struct et_truth one = j.truth;
    judged_truth(&j, 5, 100, 3);
    struct et_truth three = j.truth;
    /* the edges: heads 0, 3, 4, 23 of rows 0 and 24; some of them may be among the 100 */
    static const int64_t edges[] = {0, 3, 4, 23, 24 * 24, 24 * 24 + 3, 24 * 24 + 4, 24 * 24 + 23};
    ck_assert(one.units >= 100 && one.units <= 108);
    for (int64_t i = 1; i < one.units; i++)
        ck_assert_int_lt(one.unit[i - 1], one.unit[i]);
    for (int64_t e = 0, i = 0; e < 8; e++) {
        while (i < one.units && one.unit[i] < edges[e])
            i++;
        ck_assert(i < one.units && one.unit[i] == edges[e]);
    }
    const size_t n = (size_t)one.at[one.units];
    ck_assert_uint_eq(n, (size_t)one.units * 8);
    ck_assert_int_eq(one.units, three.units);
    ck_assert_mem_eq(one.unit, three.unit, (size_t)one.units * sizeof *one.unit);
    ck_assert_mem_eq(one.value, three.value, n * sizeof *one.value);
    ck_assert_mem_eq(one.spread, three.spread, n * sizeof *one.spread);
    ck_assert_mem_eq(one.replay, three.replay, n * sizeof *one.replay);

    judged_truth(&j, 6, 100, 1);
    ck_assert(j.truth.units != one.units ||
              memcmp(j.truth.unit, one.unit, (size_t)one.units * sizeof *one.unit) != 0);
    et_truth_free(&one);
    et_truth_free(&three);
    judged_close(&j);
}
END_TEST

START_TEST(truth_takes_all_units_where_rows_are_none_or_enough)
{
    struct judged j;
    judged_open(&j, &params, ET_F32, ET_F32, ET_FILL_NORMAL, 1, 0);
    static const int64_t rows[] = {0, 16, 17};
    for (int i = 0; i < 3; i++) {
        judged_truth(&j, 0, rows[i], 2);
        ck_assert_int_eq(j.truth.units, 16);
        et_truth_free(&j.truth);
    }
    judged_truth(&j, 0, 15, 2);
    ck_assert_int_ge(j.truth.units, 15);
    judged_close(&j);
}
END_TEST

START_TEST(truth_serves_each_distinct_arithmetic_and_order_once)
{
    struct judged j;
    judged_open(&j, &params, ET_F32, ET_F32, ET_FILL_NORMAL, 1, 0);
    const struct et_order order = {.name = "ctx64x4", .arg = {ET_F32}},
                          half = {.name = "ctx64x4", .arg = {ET_F16}};
    const struct et_order none = {.name = "none"};
    const struct et_arith deep = {.depth_sum = 40}, flat = {.depth_sum = 10},
                          narrow = {.sum = ET_F16, .depth_sum = 10};
    const struct et_claim claims[] = {
        {.arith = deep, .order = none},   {.arith = flat, .order = order}, {.arith = flat, .order = order},
        {.arith = narrow, .order = half}, {.arith = deep, .order = order},
    };
    struct et_error error;
    ck_assert_int_eq(et_truth_make(j.problem, 0, 0, claims, 5, 1, NULL, &j.truth, &error), ET_OK);
    ck_assert_int_eq(j.truth.arith_count, 3);
    ck_assert_int_eq(j.truth.order_count, 2);
    ck_assert_int_eq(et_truth_arith(&j.truth, &narrow), 2);
    ck_assert_int_eq(et_truth_order(&j.truth, &half), 1);
    ck_assert_int_eq(et_truth_order(&j.truth, &none), -1);
    /* unit 1: 32 spreads of each arithmetic in turn; the worst case grows with the depth, and with f16 */
    const struct et_spread *spread = j.truth.spread + 3 * j.truth.at[1];
    ck_assert_double_gt(spread[0].worst, 3.9 * spread[32].worst);
    ck_assert_double_gt(spread[64].worst, 8000 * spread[32].worst);
    judged_close(&j);
}
END_TEST

START_TEST(a_claim_without_truth_breaks_bound)
{
    struct judged j;
    open_run(&j, ET_F32, ET_FILL_NORMAL);
    j.claim.arith.depth_sum++;
    ck_assert_int_eq(judged_verdict(&j), ET_FAIL);
    expect_broken(&j, ET_CHECK_BOUND, "out: no truth was made for the claimed arithmetic");
    judged_close(&j);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("judge");
    TCase *t = tcase_create("judge");
    tcase_add_loop_test(t, the_oracle_rounded_once_passes_every_check_that_applies, 0, 3);
    tcase_add_test(t, checks_turned_off_are_not_run);
    tcase_add_test(t, one_nan_breaks_bound_at_its_place);
    tcase_add_test(t, one_infinity_breaks_bound_at_its_place);
    tcase_add_test(t, zeros_instead_of_results_break_every_check_against_the_truth);
    tcase_add_test(t, zeros_for_a_zero_reference_pass);
    tcase_add_test(t, a_zero_reference_allows_no_error_energy);
    tcase_add_test(t, gain_has_nothing_to_say_where_every_reference_is_zero_or_next_to_it);
    tcase_add_test(t, rows_next_to_zero_take_no_part_in_gain);
    tcase_add_test(t, a_bound_that_is_infinite_does_not_hold_but_is_skipped);
    tcase_add_test(t, the_tolerance_itself_holds_and_one_unit_more_breaks);
    tcase_add_test(t, half_a_unit_of_the_output_type_holds_and_three_halves_break);
    tcase_add_test(t, the_store_is_of_what_the_kernel_may_have_had);
    tcase_add_test(t, the_data_decide_which_bound_holds);
    tcase_add_test(t, overflow_is_right_where_the_tolerance_reaches_it);
    tcase_add_test(t, nmse_is_normalised_by_the_reference_and_its_limit_follows_the_declared_arithmetic);
    tcase_add_test(t, a_row_with_too_much_error_energy_breaks_noise_alone);
    tcase_add_test(t, a_mean_over_rows_breaks_noise_where_no_row_does);
    tcase_add_test(t, a_mean_over_few_elements_may_stray_further);
    tcase_add_test(t, a_coherent_error_breaks_gain_alone);
    tcase_add_test(t, gain_allows_for_the_error_that_elements_of_a_row_have_alike);
    tcase_add_test(t, rows_that_are_the_same_are_one_witness);
    tcase_add_test(t, rows_below_16_elements_have_no_noise);
    tcase_add_test(t, three_roundings_of_the_result_are_predicted_besides_the_store);
    tcase_add_test(t, an_element_never_written_is_found_in_every_repeat_and_unit);
    tcase_add_test(t, another_repeats_poison_is_not_this_ones);
    tcase_add_test(t, padding_that_changed_breaks_guards);
    tcase_add_test(t, a_permuted_layout_has_no_padding_but_what_is_between_its_elements);
    tcase_add_test(t, what_the_port_found_breaks_guards_and_inputs_kept);
    tcase_add_test(t, guards_are_skipped_where_there_were_none);
    tcase_add_test(t, a_repeat_that_differs_in_one_bit_breaks_repeat);
    tcase_add_test(t, exact_needs_no_order_and_sees_one_bit);
    tcase_add_test(t, exact_is_skipped_where_the_claim_rounds_to_fewer_digits_than_the_fill_needs);
    tcase_add_test(t, exact_is_for_inputs_that_have_one_fill_in_common);
    tcase_add_test(t, teeth_are_in_units_of_each_limit);
    tcase_add_test(t, random_data_have_teeth_and_an_empty_context_needs_none);
    tcase_add_test(t, replay_compares_bytes_where_the_device_computes_as_c_does);
    tcase_add_test(t, an_order_without_replay_is_skipped);
    tcase_add_test(t, expect_without_atol_compares_the_value_rounded_once);
    tcase_add_test(t, expected_values_cover_the_leading_dimensions);
    tcase_add_test(t, expect_with_atol_allows_that_much);
    tcase_add_test(t, allclose_runs_where_given);
    tcase_add_test(t, two_runs_agree_within_the_sum_of_their_tolerances);
    tcase_add_test(t, runs_that_may_differ_at_the_end_of_the_range_agree);
    tcase_add_test(t, identical_compares_bytes_whatever_the_layout);
    tcase_add_test(t, of_several_steps_the_first_broken_text_and_the_worst_figure_stay);
    tcase_add_test(t, truth_samples_the_same_units_whatever_the_threads);
    tcase_add_test(t, truth_takes_all_units_where_rows_are_none_or_enough);
    tcase_add_test(t, truth_serves_each_distinct_arithmetic_and_order_once);
    tcase_add_test(t, a_claim_without_truth_breaks_bound);
    suite_add_tcase(suite, t);
    return suite;
}
