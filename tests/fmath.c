/* fmath.h: anchors, error and rounding over a sample of all inputs, and hashes that move with any output bit.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "fmath_sample.h"
#include "suite.h"

static uint32_t bits(float x)
{
    return et_as_u32(x);
}

static float value(uint32_t x)
{
    return et_as_f32(x);
}

static uint64_t div_hash(void)
{
    uint64_t hash = hash_start, state = 1;
    for (int i = 0; i < SAMPLE; i++) {
        float a, b;
        random_pair(&state, &a, &b);
        hash = hash_add(hash, et_div(a, b));
    }
    return hash;
}

/* What et_div promises, from the C division. */
static uint32_t quotient(float a, float b)
{
    const float x = fpclassify(a) == FP_SUBNORMAL ? copysignf(0, a) : a;
    const float y = fpclassify(b) == FP_SUBNORMAL ? copysignf(0, b) : b;
    const float q = x / y;
    if (isnan(q))
        return 0x7fc00000;
    return bits(fpclassify(q) == FP_SUBNORMAL ? copysignf(0, q) : q);
}

/* Check notes every assertion it passes, which is too slow for millions of quotients. */
static void check_div(float a, float b)
{
    if (bits(et_div(a, b)) != quotient(a, b))
        ck_abort_msg("%a / %a is %a, not %a", (double)a, (double)b, (double)et_div(a, b),
                     (double)value(quotient(a, b)));
}

START_TEST(exp_holds_its_anchors)
{
    ck_assert_uint_eq(bits(et_exp(0.0f)), 0x3f800000);
    ck_assert_uint_eq(bits(et_exp(-0.0f)), 0x3f800000);
    ck_assert_uint_eq(bits(et_exp(value(0x00000001))), 0x3f800000);
    ck_assert_uint_eq(bits(et_exp(value(0x807fffff))), 0x3f800000);
    /* e = 2.718281828: 0x402df854 is 2.71828175, its successor 2.71828198 */
    ck_assert_uint_eq(bits(et_exp(1.0f)), 0x402df854);
    ck_assert_uint_eq(bits(et_exp(-87.34f)), 0);
    ck_assert_uint_eq(bits(et_exp(-1e30f)), 0);
    ck_assert_uint_eq(bits(et_exp(-INFINITY)), 0);
    ck_assert_uint_eq(bits(et_exp(INFINITY)), 0x7f800000);
    ck_assert_uint_eq(bits(et_exp(1e30f)), 0x7f800000);
    ck_assert_uint_eq(bits(et_exp(value(0x7f800001))), 0x7fc00000);
    ck_assert_uint_eq(bits(et_exp(value(0xffffffff))), 0x7fc00000);
}
END_TEST

START_TEST(exp_ends_where_its_value_leaves_the_normal_range)
{
    /* ln 2^-126 = -87.336544750: -0x1.5d589ep6 = -87.33654022 is the last f32 inside, the next -87.33654785.
     * ln (2^128 - 2^103) = 88.722839052: 0x1.62e42ep6 = 88.72283173 inside, the next 88.72283936. */
    ck_assert_float_ge(et_exp(-0x1.5d589ep6f), 0x1p-126f);
    ck_assert_uint_eq(bits(et_exp(-0x1.5d58a0p6f)), 0);
    ck_assert_float_le(et_exp(0x1.62e42ep6f), 0x1.fffffep127f);
    ck_assert_uint_eq(bits(et_exp(0x1.62e430p6f)), 0x7f800000);
}
END_TEST

/* Patterns of f at zeros, which subnormals stand for too, and at infinities; of NaN it is NaN. */
struct ends {
    uint32_t zero, minus_zero, infinity, minus_infinity;
};

static void check_ends(float (*f)(float), const struct ends *want)
{
    static const uint32_t zeros[] = {0x00000000, 0x00000001, 0x00400000, 0x007fffff};
    static const uint32_t nans[] = {0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fc12345, 0x7fffffff};
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++) {
        ck_assert_uint_eq(bits(f(value(zeros[i]))), want->zero);
        ck_assert_uint_eq(bits(f(value(0x80000000 | zeros[i]))), want->minus_zero);
    }
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        ck_assert_uint_eq(bits(f(value(nans[i]))), 0x7fc00000);
        ck_assert_uint_eq(bits(f(value(0x80000000 | nans[i]))), 0x7fc00000);
    }
    ck_assert_uint_eq(bits(f(INFINITY)), want->infinity);
    ck_assert_uint_eq(bits(f(-INFINITY)), want->minus_infinity);
}

START_TEST(log1p_holds_its_anchors)
{
    check_ends(et_log1p, &(struct ends){0x00000000, 0x80000000, 0x7f800000, 0x7fc00000});
    ck_assert_uint_eq(bits(et_log1p(-1)), 0xff800000);
    ck_assert_uint_eq(bits(et_log1p(-0x1.000002p0f)), 0x7fc00000);
    ck_assert_uint_eq(bits(et_log1p(-0x1.fffffep127f)), 0x7fc00000);
    /* x - x^2/2 rounds to x */
    ck_assert_uint_eq(bits(et_log1p(0x1p-126f)), 0x00800000);
    ck_assert_uint_eq(bits(et_log1p(-0x1p-126f)), 0x80800000);
    /* ln 2 = 0xb17217.f8p-24, ln 2^-24 = -0x851591.f9p-19, ln 2^128 = 0xb17217.f8p-17 */
    ck_assert_uint_eq(bits(et_log1p(1)), 0x3f317218);
    ck_assert_uint_eq(bits(et_log1p(-0x1.fffffep-1f)), 0xc1851592);
    ck_assert_uint_eq(bits(et_log1p(0x1.fffffep127f)), 0x42b17218);
}
END_TEST

START_TEST(sqrt_holds_its_anchors)
{
    check_ends(et_sqrt, &(struct ends){0x00000000, 0x80000000, 0x7f800000, 0x7fc00000});
    ck_assert_uint_eq(bits(et_sqrt(-0x1p-126f)), 0x7fc00000);
    ck_assert_uint_eq(bits(et_sqrt(-1)), 0x7fc00000);
    ck_assert_float_eq(et_sqrt(0x1p-126f), 0x1p-63f);
    ck_assert_float_eq(et_sqrt(1), 1);
    ck_assert_float_eq(et_sqrt(4), 2);
    ck_assert_float_eq(et_sqrt(9), 3);
    /* sqrt 2 = 0xb504f3.34p-23 */
    ck_assert_uint_eq(bits(et_sqrt(2)), 0x3fb504f3);
    /* 2^64 sqrt(1 - 2^-24) = 2^64 (1 - 2^-25 - 2^-51 ...), between 2^64 (1 - 2^-24) and, farther off, 2^64 */
    ck_assert_uint_eq(bits(et_sqrt(0x1.fffffep127f)), 0x5f7fffff);
}
END_TEST

/* All of [1, 4): what a power of 4 makes of it lies in the exponent alone. */
START_TEST(sqrt_rounds_correctly_for_every_significand)
{
    for (uint32_t x = 0x3f800000; x < 0x40800000; x++) {
        if (bits(et_sqrt(value(x))) != bits(sqrtf(value(x))))
            ck_abort_msg("sqrt of %a is %a", (double)value(x), (double)et_sqrt(value(x)));
    }
}
END_TEST

START_TEST(sigmoid_holds_its_anchors)
{
    check_ends(et_sigmoid, &(struct ends){0x3f000000, 0x3f000000, 0x3f800000, 0x00000000});
    ck_assert_float_eq(et_sigmoid(0x1.fffffep127f), 1);
    ck_assert_uint_eq(bits(et_sigmoid(-0x1.fffffep127f)), 0);
    /* e^-17.33 = 2^-25.002, and 1 - 2^-25 is the tie between 1 and its predecessor. */
    ck_assert_float_eq(et_sigmoid(17.33f), 1);
    /* e^-87 = 0xb33686.d6p-149 */
    ck_assert_uint_eq(bits(et_sigmoid(-87)), 0x00b33687);
    /* Where exp ends: ln 2^-126 = -87.336544750. */
    ck_assert_float_ge(et_sigmoid(-0x1.5d589ep6f), 0x1p-126f);
    ck_assert_uint_eq(bits(et_sigmoid(-0x1.5d58a0p6f)), 0);
}
END_TEST

START_TEST(tanh_holds_its_anchors)
{
    check_ends(et_tanh, &(struct ends){0x00000000, 0x80000000, 0x3f800000, 0xbf800000});
    /* x - x^3/3 rounds to x */
    ck_assert_uint_eq(bits(et_tanh(0x1p-126f)), 0x00800000);
    ck_assert_uint_eq(bits(et_tanh(-0x1p-126f)), 0x80800000);
    /* 1 - 2 e^-18.04 = 1 - 2^-25.03, and 1 - 2^-25 is the tie between 1 and its predecessor. */
    ck_assert_float_eq(et_tanh(9.02f), 1);
    ck_assert_float_eq(et_tanh(-9.02f), -1);
    for (uint32_t x = bits(9.02f); x < 0x7f800000; x += 1021) {
        if (bits(et_tanh(value(x))) != 0x3f800000 || bits(et_tanh(-value(x))) != 0xbf800000)
            ck_abort_msg("tanh of %a is not 1", (double)value(x));
    }
}
END_TEST

START_TEST(errors_are_within_the_limit)
{
    const struct function *f = &functions[_i];
    double worst = 0;
    for (uint32_t i = 0; i < SAMPLE; i++) {
        const double error = error_of(f, sample(i), f->portable(sample(i)));
        if (!(error <= worst))
            worst = error;
    }
    printf("%s: %.4f ulp at most over 2^22 inputs\n", f->name, worst);
    ck_assert_double_le(worst, f->limit);
}
END_TEST

START_TEST(outputs_are_the_recorded_bits)
{
    const struct function *f = &functions[_i];
    const uint64_t hash = sample_hash(f);
    ck_assert_msg(hash == f->sample_hash, "%s has hash 0x%016llx", f->name, (unsigned long long)hash);
}
END_TEST

/* As error_of must see it, or the tests above prove nothing. */
START_TEST(an_error_is_seen)
{
    const struct function *f = &functions[_i];
    const float x = 0.7f, y = f->portable(x);
    ck_assert_double_le(error_of(f, x, y), f->limit);
    ck_assert_double_gt(error_of(f, x, value(bits(y) + 3)), f->limit);
    ck_assert_double_gt(error_of(f, NAN, value(0xffc00000)), f->limit);
    ck_assert_double_gt(error_of(f, -INFINITY, 0x1p-149f), f->limit);
    ck_assert_double_gt(error_of(f, INFINITY, 0), f->limit);
}
END_TEST

START_TEST(div_handles_zeros_infinities_and_nans)
{
    const float special[] = {0, 0x1p-149f, 0x1.fffffcp-127f, 0x1p-126f, 1, 0x1.fffffep127f, INFINITY, NAN};
    enum { SPECIALS = sizeof special / sizeof *special };
    for (int i = 0; i < 4 * SPECIALS * SPECIALS; i++) {
        const float a = special[i / 4 % SPECIALS], b = special[i / 4 / SPECIALS];
        check_div(i & 1 ? -a : a, i & 2 ? -b : b);
    }
    ck_assert_uint_eq(bits(et_div(0, -0.0f)), 0x7fc00000);
    ck_assert_uint_eq(bits(et_div(-INFINITY, INFINITY)), 0x7fc00000);
    ck_assert_uint_eq(bits(et_div(value(0xffc12345), 1)), 0x7fc00000);
    ck_assert_uint_eq(bits(et_div(1, -0.0f)), 0xff800000);
    ck_assert_uint_eq(bits(et_div(1, value(0x80000001))), 0xff800000);
    ck_assert_uint_eq(bits(et_div(value(0x80000001), 1)), 0x80000000);
    ck_assert_uint_eq(bits(et_div(-1, INFINITY)), 0x80000000);
}
END_TEST

START_TEST(div_rounds_correctly_for_every_divisor_significand)
{
    uint64_t state = 2;
    for (uint32_t i = 0; i < 1 << 23; i++) {
        const float b = value(0x3f800000 | i);
        check_div(1, b);
        check_div(value(0x3f800000 | (uint32_t)(random_bits(&state) >> 41)), b);
    }
}
END_TEST

START_TEST(div_rounds_correctly_by_a_divisor_of_all_ones)
{
    for (uint32_t i = 0; i < 1 << 23; i += 7)
        check_div(value(0x3f800000 | i), 0x1.fffffep0f);
}
END_TEST

START_TEST(div_rounds_correctly_over_all_patterns)
{
    uint64_t state = 3;
    for (int i = 0; i < SAMPLE; i++) {
        float a, b;
        random_pair(&state, &a, &b);
        check_div(a, b);
    }
}
END_TEST

START_TEST(div_overflows_and_flushes_where_ieee_division_does)
{
    /* Exponents whose quotient lies in the last two binades either side of the normal range. */
    static const int edge[] = {-128, -127, -126, -125, 126, 127, 128};
    uint64_t state = 4;
    for (uint32_t i = 0; i < 1 << 20; i++) {
        const uint64_t word = random_bits(&state);
        const int exponent = edge[i % 7],
                  a_exponent = exponent < 0 ? -(int)(word & 31) - 95 : (int)(word & 31) + 96;
        /* Every fourth pair differs by a few units: quotients next to a power of two. */
        const uint32_t fraction = (uint32_t)(word >> 41);
        const uint32_t other = i % 4 ? (uint32_t)(word >> 18) & 0x7fffff : (fraction + i % 5) & 0x7fffff;
        const float a = ldexpf(value(0x3f800000 | fraction), a_exponent);
        const float b = ldexpf(value(0x3f800000 | other), a_exponent - exponent);
        check_div(a, b);
        check_div(-a, b);
    }
}
END_TEST

START_TEST(div_gives_the_recorded_bits)
{
    ck_assert_uint_eq(div_hash(), 0x5254c0e374936c58);
}
END_TEST

#ifdef __SSE__
START_TEST(a_processor_that_flushes_subnormals_gives_the_same_bits)
{
    /* Through a volatile pointer, or the compiler might compute either side in the other's mode. */
    uint64_t (*volatile const of_one)(const struct function *) = sample_hash;
    uint64_t (*volatile const of_two)(void) = div_hash;
    const unsigned int flush_results_and_operands = 0x8040, mode = _mm_getcsr();
    for (int i = 0; i <= FUNCTIONS; i++) {
        const uint64_t with_subnormals = i < FUNCTIONS ? of_one(&functions[i]) : of_two();
        _mm_setcsr(mode | flush_results_and_operands);
        const uint64_t without = i < FUNCTIONS ? of_one(&functions[i]) : of_two();
        _mm_setcsr(mode);
        ck_assert_uint_eq(without, with_subnormals);
    }
}
END_TEST
#endif

Suite *et_suite(void)
{
    Suite *suite = suite_create("fmath");
    TCase *tcase = tcase_create("one argument");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, exp_holds_its_anchors);
    tcase_add_test(tcase, exp_ends_where_its_value_leaves_the_normal_range);
    tcase_add_test(tcase, log1p_holds_its_anchors);
    tcase_add_test(tcase, sqrt_holds_its_anchors);
    tcase_add_test(tcase, sqrt_rounds_correctly_for_every_significand);
    tcase_add_test(tcase, sigmoid_holds_its_anchors);
    tcase_add_test(tcase, tanh_holds_its_anchors);
    tcase_add_loop_test(tcase, errors_are_within_the_limit, 0, FUNCTIONS);
    tcase_add_loop_test(tcase, outputs_are_the_recorded_bits, 0, FUNCTIONS);
    tcase_add_loop_test(tcase, an_error_is_seen, 0, FUNCTIONS);
    suite_add_tcase(suite, tcase);

    tcase = tcase_create("div");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, div_handles_zeros_infinities_and_nans);
    tcase_add_test(tcase, div_rounds_correctly_for_every_divisor_significand);
    tcase_add_test(tcase, div_rounds_correctly_by_a_divisor_of_all_ones);
    tcase_add_test(tcase, div_rounds_correctly_over_all_patterns);
    tcase_add_test(tcase, div_overflows_and_flushes_where_ieee_division_does);
    tcase_add_test(tcase, div_gives_the_recorded_bits);
    suite_add_tcase(suite, tcase);

#ifdef __SSE__
    tcase = tcase_create("both");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, a_processor_that_flushes_subnormals_gives_the_same_bits);
    suite_add_tcase(suite, tcase);
#endif
    return suite;
}
