/* exp over all 2^32 inputs, div over more pairs than the default suite has time for. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>

#include "../ref/fmath.h"
#include "suite.h"

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

/* Error in units in the last place at the true value; infinite where a special value is not the one expected.
 */
static double exp_error(float x, float got)
{
    if (isnan(x))
        return bits(got) == 0x7fc00000 ? 0 : INFINITY;
    const double want = exp((double)x);
    if (want < 0x1p-126)
        return bits(got) == 0 ? 0 : INFINITY;
    if (want >= 0x1.ffffffp127)
        return bits(got) == 0x7f800000 ? 0 : INFINITY;
    return fabs((double)got - want) / ldexp(1, ilogb(want) - 23);
}

START_TEST(exp_is_within_one_ulp_for_every_input)
{
    double worst = 0;
    uint32_t at = 0;
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a over words in place of bytes */
    for (uint64_t i = 0; i <= UINT32_MAX; i++) {
        const float x = value((uint32_t)i), got = et_exp(x);
        const double error = exp_error(x, got);
        if (!(error <= worst)) {
            worst = error;
            at = (uint32_t)i;
        }
        hash = (hash ^ bits(got)) * 0x100000001b3;
    }
    printf("exp: %.4f ulp at most, at 0x%08x; hash 0x%016llx\n", worst, (unsigned int)at,
           (unsigned long long)hash);
    ck_assert_double_le(worst, 1);
    ck_assert_uint_eq(hash, 0x78ae3983d4fb73df);
}
END_TEST

static void check_significands(uint32_t a, uint32_t b)
{
    const float x = value(0x3f800000 | a), y = value(0x3f800000 | b);
    if (bits(et_div(x, y)) != bits(x / y))
        ck_abort_msg("%a / %a is %a, not %a", (double)x, (double)y, (double)et_div(x, y), (double)(x / y));
}

START_TEST(div_rounds_correctly_for_every_dividend_of_a_hard_divisor)
{
    /* All ones, its neighbour, and the two smallest above 1. */
    static const uint32_t divisors[] = {0x7fffff, 0x7ffffe, 1, 2};
    for (int i = 0; i < 4; i++) {
        for (uint32_t a = 0; a < 1 << 23; a++)
            check_significands(a, divisors[i]);
    }
}
END_TEST

START_TEST(div_rounds_correctly_for_random_significands)
{
    uint64_t state = 5;
    for (uint32_t i = 0; i < 1 << 28; i++) {
        const uint64_t word = random_bits(&state);
        check_significands((uint32_t)(word >> 41), (uint32_t)word & 0x7fffff);
    }
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("fmath_slow");
    TCase *tcase = tcase_create("all inputs");
    tcase_set_timeout(tcase, 3600);
    tcase_add_test(tcase, exp_is_within_one_ulp_for_every_input);
    tcase_add_test(tcase, div_rounds_correctly_for_every_dividend_of_a_hard_divisor);
    tcase_add_test(tcase, div_rounds_correctly_for_random_significands);
    suite_add_tcase(suite, tcase);
    return suite;
}
