/* exp and div: anchors, error and rounding over a sample of all inputs, and a hash that moves with any output
 * bit. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "../ref/fmath.h"
#include "suite.h"

enum { SAMPLE = 1 << 22 };
static const uint64_t fnv_start = 0xcbf29ce484222325, fnv_prime = 0x100000001b3;

static uint32_t bits(float x)
{
    return et_as_u32(x);
}

static float value(uint32_t x)
{
    return et_as_f32(x);
}

/* splitmix64 */
static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* One input in each 1024 consecutive patterns, at changing places. */
static float sample(uint32_t i)
{
    return value(i << 10 | i >> 12);
}

/* Error in units in the last place at the true value; infinite where a special value is not the one expected.
 */
static double exp_error(float x)
{
    const float got = et_exp(x);
    const double want = exp((double)x);
    if (isnan(x))
        return bits(got) == 0x7fc00000 ? 0 : INFINITY;
    if (want < 0x1p-126)
        return bits(got) == 0 ? 0 : INFINITY;
    if (want >= 0x1.ffffffp127)
        return bits(got) == 0x7f800000 ? 0 : INFINITY;
    return fabs((double)got - want) / ldexp(1, ilogb(want) - 23);
}

/* FNV-1a over words in place of bytes, here and below. */
static uint64_t exp_hash(void)
{
    uint64_t hash = fnv_start;
    for (uint32_t i = 0; i < SAMPLE; i++)
        hash = (hash ^ bits(et_exp(sample(i)))) * fnv_prime;
    return hash;
}

static uint64_t div_hash(void)
{
    uint64_t hash = fnv_start, state = 1;
    for (int i = 0; i < SAMPLE; i++) {
        const uint64_t word = random_bits(&state);
        hash = (hash ^ bits(et_div(value((uint32_t)word), value((uint32_t)(word >> 32))))) * fnv_prime;
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

START_TEST(exp_is_within_one_ulp)
{
    double worst = 0;
    for (uint32_t i = 0; i < SAMPLE; i++) {
        const double error = exp_error(sample(i));
        if (!(error <= worst))
            worst = error;
    }
    printf("exp: %.4f ulp at most over 2^22 inputs\n", worst);
    ck_assert_double_le(worst, 1);
}
END_TEST

/* Recorded, not derived: an edit of fmath.h that moves a bit of any kernel changes it. */
START_TEST(exp_gives_the_recorded_bits)
{
    ck_assert_uint_eq(exp_hash(), 0x7d2d5bd347aafa65);
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
        const uint64_t word = random_bits(&state);
        check_div(value((uint32_t)word), value((uint32_t)(word >> 32)));
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
    uint64_t (*volatile const functions[])(void) = {exp_hash, div_hash};
    const unsigned int flush_results_and_operands = 0x8040;
    for (int i = 0; i < 2; i++) {
        const uint64_t with_subnormals = functions[i]();
        const unsigned int mode = _mm_getcsr();
        _mm_setcsr(mode | flush_results_and_operands);
        const uint64_t without = functions[i]();
        _mm_setcsr(mode);
        ck_assert_uint_eq(without, with_subnormals);
    }
}
END_TEST
#endif

Suite *et_suite(void)
{
    Suite *suite = suite_create("fmath");
    TCase *tcase = tcase_create("exp");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, exp_holds_its_anchors);
    tcase_add_test(tcase, exp_ends_where_its_value_leaves_the_normal_range);
    tcase_add_test(tcase, exp_is_within_one_ulp);
    tcase_add_test(tcase, exp_gives_the_recorded_bits);
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
