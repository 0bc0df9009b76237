/* Every pattern of the 8- and 16-bit types, against the formula of the format and a search in its table of
 * values. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/dtype.h"
#include "suite.h"

/* The types small enough to enumerate, written out from their specifications and not from ref/. */
struct layout {
    enum et_dtype dtype;
    int width, mantissa, bias;
    uint32_t values;   /* patterns 0 .. values-1 are the finite magnitudes, in order */
    uint32_t overflow; /* what a magnitude beyond them is stored as */
    uint32_t nan;
};

static const struct layout layouts[] = {
    {ET_F16, 16, 10, 15, 0x7c00, 0x7c00, 0x7e00},
    {ET_BF16, 16, 7, 127, 0x7f80, 0x7f80, 0x7fc0},
    {ET_F8E4M3FN, 8, 3, 7, 0x7f, 0x7e, 0x7f},
    {ET_F8E4M3FNUZ, 8, 3, 8, 0x80, 0x7f, 0x80},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Check notes every assertion it passes, which is too slow for loops over all patterns. */
static void check(bool holds)
{
    if (!holds)
        ck_assert(holds);
}

static void check_bits(uint32_t got, uint32_t want)
{
    if (got != want)
        ck_assert_uint_eq(got, want);
}

static void check_value(double got, double want)
{
    if (!(got == want))
        ck_assert_double_eq(got, want);
}

/* splitmix64 */
static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* 2^e (1 + m/2^k) with the bias taken off, or 2^(1-bias) m/2^k for subnormals; continues past the finite
 * values. */
static double decode(const struct layout *l, uint32_t magnitude)
{
    const int exponent = (int)(magnitude >> l->mantissa);
    const double fraction = ldexp(magnitude & ((1u << l->mantissa) - 1), -l->mantissa);
    return exponent == 0 ? ldexp(fraction, 1 - l->bias) : ldexp(1 + fraction, exponent - l->bias);
}

static uint32_t sign_bit(const struct layout *l)
{
    return 1u << (l->width - 1);
}

/* Index of the value nearest to x >= 0, the even pattern on a tie, among values[0..count]; values[count] is
 * the one an unbounded exponent would add. */
static uint32_t nearest(const double *values, uint32_t count, double x)
{
    uint32_t low = 0, high = count;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (values[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    const double below = x - values[low], above = values[high] - x;
    if (below == above)
        return low % 2 == 0 ? low : high;
    return below < above ? low : high;
}

static uint32_t expected(const struct layout *l, const double *values, double x)
{
    const uint32_t index = nearest(values, l->values, fabs(x));
    const uint32_t bits = index == l->values ? l->overflow : index;
    if (l->dtype == ET_F8E4M3FNUZ && bits == 0)
        return 0;
    return signbit(x) ? bits | sign_bit(l) : bits;
}

static double *value_table(const struct layout *l)
{
    double *values = malloc((l->values + 1) * sizeof *values);
    ck_assert_ptr_nonnull(values);
    for (uint32_t i = 0; i <= l->values; i++)
        values[i] = decode(l, i);
    return values;
}

enum { FLOATS = ET_I8 }; /* integer types come after those that have NaN and Inf */

START_TEST(formats_state_their_layout)
{
    const struct layout *l = &layouts[_i];
    const struct et_format *f = et_format(l->dtype);
    ck_assert_uint_eq(f->bytes, (size_t)l->width / 8);
    ck_assert_int_eq(f->digits, l->mantissa + 1);
    ck_assert_int_eq(f->min_exponent, 1 - l->bias);
    ck_assert_int_eq(f->max_exponent, ilogb(decode(l, l->values - 1)));
    ck_assert_double_eq(f->max, decode(l, l->values - 1));
    ck_assert_uint_eq(f->max_bits, l->values - 1);
    ck_assert_double_eq(f->unit, ldexp(1, -l->mantissa - 1));
    ck_assert_uint_eq(f->sign, sign_bit(l));
    ck_assert_uint_eq(f->nan, l->nan);
    ck_assert_int_eq(f->infinite, l->overflow == l->values);
    ck_assert_int_eq(f->signed_zero, l->nan != sign_bit(l));
}
END_TEST

START_TEST(formats_are_found_by_name)
{
    static const char *const names[ET_DTYPES] = {"f32",        "f16", "bf16", "f8e4m3fn",
                                                 "f8e4m3fnuz", "i8",  "u8",   "i4"};
    for (int i = 0; i < ET_DTYPES; i++) {
        enum et_dtype dtype = ET_DTYPES;
        ck_assert(et_dtype_named(names[i], &dtype));
        ck_assert_int_eq(dtype, i);
        ck_assert_str_eq(et_format(dtype)->name, names[i]);
    }
    enum et_dtype untouched = ET_BF16;
    ck_assert(!et_dtype_named("f8e4m3", &untouched));
    ck_assert(!et_dtype_named("", &untouched));
    ck_assert_int_eq(untouched, ET_BF16);
}
END_TEST

START_TEST(every_finite_pattern_has_the_value_of_its_formula_and_comes_back)
{
    const struct layout *l = &layouts[_i];
    for (uint32_t i = 0; i < l->values; i++) {
        check_value((double)et_widen(l->dtype, i), decode(l, i));
        check_bits(et_narrow(l->dtype, decode(l, i)), i);
        if (sign_bit(l) + i == l->nan)
            continue;
        const float negative = et_widen(l->dtype, sign_bit(l) + i);
        check_value((double)negative, -decode(l, i));
        check(signbit(negative) != 0);
        check_bits(et_narrow(l->dtype, -decode(l, i)), sign_bit(l) + i);
    }
}
END_TEST

START_TEST(every_other_pattern_is_inf_or_nan)
{
    const struct layout *l = &layouts[_i];
    for (uint32_t bits = 0; bits < 2 * sign_bit(l); bits++) {
        const uint32_t magnitude = bits % sign_bit(l);
        const bool infinite = magnitude == l->values && l->overflow == l->values;
        const bool nan = bits == l->nan || (magnitude >= l->values && !infinite);
        check(nan == !!isnan(et_widen(l->dtype, bits)));
        check(infinite == !!isinf(et_widen(l->dtype, bits)));
        check(nan == et_is_nan(l->dtype, bits));
        check_bits(et_canonical(l->dtype, bits), nan ? l->nan : bits);
    }
}
END_TEST

START_TEST(midpoints_round_to_even_and_their_neighbours_to_nearest)
{
    const struct layout *l = &layouts[_i];
    double *values = value_table(l);
    for (uint32_t i = 0; i < l->values; i++) {
        const double middle = (values[i] + values[i + 1]) / 2;
        const double probe[] = {middle, nextafter(middle, 0), nextafter(middle, INFINITY)};
        for (int j = 0; j < 3; j++) {
            check_bits(et_narrow(l->dtype, probe[j]), expected(l, values, probe[j]));
            check_bits(et_narrow(l->dtype, -probe[j]), expected(l, values, -probe[j]));
        }
    }
    free(values);
}
END_TEST

START_TEST(random_doubles_round_to_nearest)
{
    const struct layout *l = &layouts[_i];
    double *values = value_table(l);
    uint64_t state = 1;
    for (int i = 0; i < 100000; i++) {
        /* Exponents from four binades below the smallest subnormal to four above the largest value. */
        const int lowest = -l->bias - l->mantissa - 4;
        const int binades = ilogb(values[l->values]) + 4 - lowest;
        const uint64_t word = random_bits(&state);
        const double significand = 1 + ldexp((double)(word >> 12), -52);
        const double x = ldexp(significand, lowest + (int)(word % (uint64_t)binades));
        check_bits(et_narrow(l->dtype, x), expected(l, values, x));
        check_bits(et_narrow(l->dtype, -x), expected(l, values, -x));
    }
    free(values);
}
END_TEST

START_TEST(halves_round_where_arithmetic_by_hand_says)
{
    /* In units of 2^-24 the largest subnormal is 1023 and the smallest normal 1024: 6.1005e-5 is 1023.494 of
     * them, 6.1006e-5 is 1023.511. */
    ck_assert_uint_eq(et_narrow(ET_F16, 6.1005e-5), 0x03ff);
    ck_assert_uint_eq(et_narrow(ET_F16, 6.1006e-5), 0x0400);
    /* 2^-25 is half the smallest subnormal: a tie with zero, which is even. */
    ck_assert_uint_eq(et_narrow(ET_F16, 0x1p-25), 0);
    ck_assert_uint_eq(et_narrow(ET_F16, 0x1.0000000000001p-25), 1);
    ck_assert_uint_eq(et_narrow(ET_F16, -0x1p-25), 0x8000);
    /* 1 + 2^-11 is a tie with 1; a rounding to f32 first would lose the 2^-40 that decides. */
    ck_assert_uint_eq(et_narrow(ET_F16, 1 + 0x1p-11), 0x3c00);
    ck_assert_uint_eq(et_narrow(ET_F16, 1 + 0x1p-11 + 0x1p-40), 0x3c01);
    ck_assert_uint_eq(et_narrow(ET_BF16, 1 + 0x1p-8 + 0x1p-40), 0x3f81);
    ck_assert_uint_eq(et_narrow(ET_F8E4M3FN, 1 + 0x1p-4 + 0x1p-40), 0x39);
}
END_TEST

#ifdef __FLT16_MANT_DIG__
START_TEST(halves_agree_with_the_compilers_own_type)
{
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        const uint16_t pattern = (uint16_t)bits;
        __extension__ _Float16 half;
        memcpy(&half, &pattern, sizeof half);
        const float value = (float)half;
        if (!isnan(value)) {
            check_bits(float_bits(et_widen(ET_F16, bits)), float_bits(value));
            check_bits(et_narrow(ET_F16, (double)value), bits);
        }
    }
    uint64_t state = 2;
    for (int i = 0; i < 1000000; i++) {
        const float value = bits_float((uint32_t)random_bits(&state));
        if (isnan(value))
            continue;
        __extension__ const _Float16 half = (_Float16)value;
        uint16_t pattern;
        memcpy(&pattern, &half, sizeof pattern);
        check_bits(et_narrow(ET_F16, (double)value), pattern);
    }
}
END_TEST
#endif

START_TEST(f32_rounds_as_the_c_conversion_does)
{
    static const double edge[] = {
        0,
        0x1p-150, /* half the smallest subnormal: a tie with zero */
        0x1.0000000000001p-150,
        0x1p-149,
        0x1.8p-149,
        0x1.fffffep-127, /* halfway from the largest subnormal to the smallest normal */
        0x1p-126,
        0x1.000001p0,
        0x1.000003p0,
        0x1.fffffep127,
        0x1.fffffefffffffp127, /* the last double below the overflow threshold */
        0x1.ffffffp127,
        0x1p128,
        0x1p1023,
        0x1p-1074,
        INFINITY};
    for (size_t i = 0; i < sizeof edge / sizeof *edge; i++) {
        check_bits(et_narrow(ET_F32, edge[i]), float_bits((float)edge[i]));
        check_bits(et_narrow(ET_F32, -edge[i]), float_bits((float)-edge[i]));
    }
    uint64_t state = 3;
    for (int i = 0; i < 1000000; i++) {
        const uint64_t word = random_bits(&state);
        const int exponent = -155 + (int)(word % 290); /* below all subnormals to above all values */
        const double x = ldexp(1 + ldexp((double)(word >> 12), -52), exponent);
        check_bits(et_narrow(ET_F32, x), float_bits((float)x));
        check_bits(et_narrow(ET_F32, -x), float_bits((float)-x));
    }
}
END_TEST

START_TEST(infinities_and_large_values_overflow_or_saturate)
{
    static const uint32_t beyond[FLOATS] = {0x7f800000, 0x7c00, 0x7f80, 0x7e, 0x7f};
    /* max + half an ulp: 65504 + 16, 448 + 16, 240 + 8; for f32 and bf16 2^128 less half an ulp. */
    static const double threshold[FLOATS] = {0x1.ffffffp127, 65520, 0x1.ffp127, 464, 248};
    for (int t = 0; t < FLOATS; t++) {
        const enum et_dtype dtype = (enum et_dtype)t;
        const struct et_format *f = et_format(dtype);
        ck_assert_double_eq(et_overflow(dtype), threshold[t]);
        ck_assert_uint_eq(et_narrow(dtype, threshold[t]), beyond[t]);
        ck_assert_uint_eq(et_narrow(dtype, nextafter(threshold[t], 0)), f->max_bits);
        const double large[] = {2 * threshold[t], 0x1p1023, INFINITY};
        for (int i = 0; i < 3; i++) {
            ck_assert_uint_eq(et_narrow(dtype, large[i]), beyond[t]);
            ck_assert_uint_eq(et_narrow(dtype, -large[i]), beyond[t] | f->sign);
        }
    }
}
END_TEST

START_TEST(zero_keeps_its_sign_where_the_type_has_one)
{
    static const uint32_t minus_zero[FLOATS] = {0x80000000, 0x8000, 0x8000, 0x80, 0};
    for (int t = 0; t < FLOATS; t++) {
        const enum et_dtype dtype = (enum et_dtype)t;
        ck_assert_uint_eq(et_narrow(dtype, 0.0), 0);
        ck_assert_uint_eq(et_narrow(dtype, -0.0), minus_zero[t]);
        ck_assert_uint_eq(et_narrow(dtype, -0x1p-1074), minus_zero[t]);
        ck_assert_uint_eq(float_bits(et_widen(dtype, 0)), 0);
        ck_assert_uint_eq(float_bits(et_widen(dtype, minus_zero[t])), minus_zero[t] ? 0x80000000 : 0);
    }
}
END_TEST

START_TEST(every_nan_is_stored_as_the_types_one_nan)
{
    static const uint32_t nan_bits[FLOATS] = {0x7fc00000, 0x7e00, 0x7fc0, 0x7f, 0x80};
    /* quiet, negative quiet, and smallest payload: the last rounds to Inf if the payload is merely cut off */
    const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0x7f800001};
    for (int t = 0; t < FLOATS; t++) {
        const enum et_dtype dtype = (enum et_dtype)t;
        for (int i = 0; i < 3; i++) {
            const float value = bits_float(nans[i]);
            uint32_t stored = 0;
            ck_assert_uint_eq(et_narrow(dtype, (double)value), nan_bits[t]);
            et_narrow_n(dtype, &value, 1, &stored);
            ck_assert_uint_eq(et_load(dtype, &stored, 0), nan_bits[t]);
        }
        ck_assert(et_is_nan(dtype, nan_bits[t]));
    }
    ck_assert(et_is_nan(ET_F32, 0xff800001));
    ck_assert(!et_is_nan(ET_F32, 0xff800000));
    ck_assert_uint_eq(et_canonical(ET_F32, 0xff800001), 0x7fc00000);
    ck_assert_uint_eq(et_canonical(ET_F32, 0xff800000), 0xff800000);
}
END_TEST

/* The quiet bit always; of a pattern the sign and the bits below the quiet one. */
START_TEST(a_nan_takes_the_payload_that_its_type_has_room_for)
{
    static const uint32_t want[FLOATS][2] = {
        [ET_F32] = {0x7fc00000, 0xffffffff}, [ET_F16] = {0x7e00, 0xffff},    [ET_BF16] = {0x7fc0, 0xffff},
        [ET_F8E4M3FN] = {0x7f, 0xff},        [ET_F8E4M3FNUZ] = {0x80, 0x80},
    };
    ck_assert_uint_eq(et_nan((enum et_dtype)_i, 0), want[_i][0]);
    ck_assert_uint_eq(et_nan((enum et_dtype)_i, 0xffffffff), want[_i][1]);
}
END_TEST

START_TEST(widening_keeps_sign_and_payload_of_a_16_bit_nan)
{
    ck_assert_uint_eq(float_bits(et_widen(ET_F16, 0xfe01)), 0xffc02000);
    ck_assert_uint_eq(float_bits(et_widen(ET_BF16, 0xffc1)), 0xffc10000);
    ck_assert_uint_eq(float_bits(et_widen(ET_F8E4M3FN, 0xff)), 0xffc00000);
    ck_assert_uint_eq(float_bits(et_widen(ET_F8E4M3FNUZ, 0x80)), 0x7fc00000);
}
END_TEST

START_TEST(arrays_convert_as_their_elements_do)
{
    const enum et_dtype dtype = layouts[_i].dtype;
    enum { GUARD = 1, MOST = 0x10000 };
    const int64_t n = 2 * (int64_t)sign_bit(&layouts[_i]);
    const size_t bytes = et_format(dtype)->bytes;
    unsigned char *patterns = malloc(MOST * sizeof(uint16_t));
    unsigned char *stored = malloc((MOST + GUARD) * sizeof(uint16_t));
    float *values = malloc((MOST + GUARD) * sizeof *values);
    ck_assert(patterns && stored && values);

    for (int64_t i = 0; i < n; i++)
        et_store(dtype, patterns, i, (uint32_t)i);
    values[n] = -1;
    et_widen_n(dtype, patterns, n, values);
    for (int64_t i = 0; i < n; i++) {
        check_bits(et_load(dtype, patterns, i), (uint32_t)i);
        check_bits(float_bits(values[i]), float_bits(et_widen(dtype, (uint32_t)i)));
    }
    ck_assert_float_eq(values[n], -1);

    et_store(dtype, stored, n, 0x55);
    et_narrow_n(dtype, values, n, stored);
    for (int64_t i = 0; i < n; i++)
        check_bits(et_load(dtype, stored, i), et_canonical(dtype, (uint32_t)i));
    ck_assert_uint_eq(et_load(dtype, stored, n), 0x55);
    ck_assert_uint_eq(stored[0], patterns[0]);
    ck_assert_uint_eq(stored[(size_t)n / 4 * bytes], patterns[(size_t)n / 4 * bytes]);

    free(patterns);
    free(stored);
    free(values);
}
END_TEST

START_TEST(f32_arrays_are_copied_except_for_nan_payloads)
{
    const uint32_t patterns[] = {0,          0x80000000, 1,          0x807fffff,
                                 0x3f800001, 0x7f7fffff, 0xff800000, 0x7f800001};
    float values[8], stored[8];
    et_widen_n(ET_F32, patterns, 8, values);
    ck_assert_mem_eq(values, patterns, sizeof patterns);
    et_narrow_n(ET_F32, values, 8, stored);
    ck_assert_mem_eq(stored, patterns, 7 * sizeof *patterns);
    ck_assert_uint_eq(et_load(ET_F32, stored, 7), 0x7fc00000);
}
END_TEST

START_TEST(half_ulp_is_half_the_gap_to_the_next_value_up)
{
    const struct layout *l = &layouts[_i];
    for (uint32_t i = 0; i < l->values; i++) {
        const double value = decode(l, i), gap = decode(l, i + 1) - value;
        check_value(et_half_ulp(l->dtype, value), gap / 2);
        check_value(et_half_ulp(l->dtype, -(value + gap / 4)), gap / 2);
    }
    const double last = decode(l, l->values) - decode(l, l->values - 1);
    ck_assert_double_eq(et_half_ulp(l->dtype, INFINITY), last / 2);
    ck_assert_double_eq(et_half_ulp(l->dtype, NAN), last / 2);
    ck_assert_double_eq(et_overflow(l->dtype), decode(l, l->values - 1) + last / 2);
}
END_TEST

/* Two's complement; i4 plus 8, the even element in the low nibble: -8 and 7 are 0xf0. */
START_TEST(integers_have_the_value_of_their_pattern_and_come_back)
{
    for (uint32_t bits = 0; bits < 256; bits++) {
        ck_assert_float_eq(et_widen(ET_I8, bits), (float)(int8_t)bits);
        ck_assert_float_eq(et_widen(ET_U8, bits), (float)bits);
        ck_assert_uint_eq(et_narrow(ET_I8, (double)(int8_t)bits), bits);
        ck_assert_uint_eq(et_narrow(ET_U8, bits), bits);
    }
    for (uint32_t bits = 0; bits < 16; bits++) {
        ck_assert_float_eq(et_widen(ET_I4, bits), (float)bits - 8);
        ck_assert_uint_eq(et_narrow(ET_I4, (double)bits - 8), bits);
    }
}
END_TEST

START_TEST(integers_round_to_even_saturate_and_store_a_nan_as_0)
{
    static const struct {
        enum et_dtype dtype;
        double value, want;
    } rounded[] = {
        {ET_I8, 0.5, 0},    {ET_I8, 1.5, 2},       {ET_I8, -2.5, -2},        {ET_I8, 127.5, 127},
        {ET_I8, 1e30, 127}, {ET_I8, -128.5, -128}, {ET_I8, -INFINITY, -128}, {ET_U8, 2.5, 2},
        {ET_U8, -1, 0},     {ET_U8, 300, 255},     {ET_I4, 6.5, 6},          {ET_I4, 7.5, 7},
        {ET_I4, -9, -8},    {ET_I4, INFINITY, 7},  {ET_I8, NAN, 0},          {ET_U8, NAN, 0},
        {ET_I4, NAN, 0},
    };
    for (size_t i = 0; i < sizeof rounded / sizeof *rounded; i++)
        ck_assert_double_eq((double)et_widen(rounded[i].dtype, et_narrow(rounded[i].dtype, rounded[i].value)),
                            rounded[i].want);
    ck_assert_double_eq(et_half_ulp(ET_I8, 0), 0.5);
    ck_assert_double_eq(et_half_ulp(ET_U8, 200), 0.5);
    ck_assert_double_eq(et_overflow(ET_I4), 7.5);
    for (enum et_dtype dtype = ET_I8; dtype < ET_DTYPES; dtype++) {
        ck_assert(!et_is_nan(dtype, 0xff) && !et_is_nan(dtype, 0));
        ck_assert_uint_eq(et_canonical(dtype, 0x8), 0x8);
        ck_assert_uint_eq(et_nan(dtype, 0xabcd), dtype == ET_I4 ? 0xd : 0xcd);
    }
}
END_TEST

START_TEST(elements_that_share_a_byte_are_stored_side_by_side)
{
    unsigned char pair[3] = {0xff, 0xff, 0xff};
    const float values[] = {-8, 7, 0, 1, 5};
    float back[5];
    et_narrow_n(ET_I4, values, 5, pair);
    ck_assert_uint_eq(pair[0], 0xf0);
    ck_assert_uint_eq(pair[1], 0x98);
    ck_assert_uint_eq(pair[2], 0xfd); /* the neighbour's nibble is left alone */
    et_widen_n(ET_I4, pair, 5, back);
    ck_assert_mem_eq(back, values, sizeof values);
    ck_assert_uint_eq(et_load(ET_I4, pair, 1), 15);
}
END_TEST

START_TEST(bytes_count_whole_blocks)
{
    ck_assert_uint_eq(et_bytes(ET_I4, 0), 0);
    ck_assert_uint_eq(et_bytes(ET_I4, 1), 1);
    ck_assert_uint_eq(et_bytes(ET_I4, 2), 1);
    ck_assert_uint_eq(et_bytes(ET_I4, 5), 3);
    ck_assert_uint_eq(et_bytes(ET_BF16, 5), 10);
    ck_assert_int_eq(et_elements(ET_I4, 3), 6);
    ck_assert_int_eq(et_elements(ET_F32, 12), 3);
    ck_assert_int_eq(et_storage(ET_I4), ET_U8);
    ck_assert_int_eq(et_storage(ET_I8), ET_I8);
}
END_TEST

START_TEST(half_ulp_of_f32_by_hand)
{
    ck_assert_double_eq(et_half_ulp(ET_F32, 1), 0x1p-24);
    ck_assert_double_eq(et_half_ulp(ET_F32, 0x1.fffffep0), 0x1p-24);
    ck_assert_double_eq(et_half_ulp(ET_F32, 2), 0x1p-23);
    ck_assert_double_eq(et_half_ulp(ET_F32, 0), 0x1p-150);
    ck_assert_double_eq(et_half_ulp(ET_F32, 1e300), 0x1p103);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("dtype");
    TCase *each = tcase_create("each small type");
    tcase_add_loop_test(each, formats_state_their_layout, 0, LAYOUTS);
    tcase_add_loop_test(each, every_finite_pattern_has_the_value_of_its_formula_and_comes_back, 0, LAYOUTS);
    tcase_add_loop_test(each, every_other_pattern_is_inf_or_nan, 0, LAYOUTS);
    tcase_add_loop_test(each, midpoints_round_to_even_and_their_neighbours_to_nearest, 0, LAYOUTS);
    tcase_add_loop_test(each, random_doubles_round_to_nearest, 0, LAYOUTS);
    tcase_add_loop_test(each, a_nan_takes_the_payload_that_its_type_has_room_for, 0, FLOATS);
    tcase_add_loop_test(each, arrays_convert_as_their_elements_do, 0, LAYOUTS);
    tcase_add_loop_test(each, half_ulp_is_half_the_gap_to_the_next_value_up, 0, LAYOUTS);
    suite_add_tcase(suite, each);

    TCase *all = tcase_create("all types");
    tcase_add_test(all, formats_are_found_by_name);
    tcase_add_test(all, halves_round_where_arithmetic_by_hand_says);
#ifdef __FLT16_MANT_DIG__
    tcase_add_test(all, halves_agree_with_the_compilers_own_type);
#endif
    tcase_add_test(all, f32_rounds_as_the_c_conversion_does);
    tcase_add_test(all, infinities_and_large_values_overflow_or_saturate);
    tcase_add_test(all, zero_keeps_its_sign_where_the_type_has_one);
    tcase_add_test(all, every_nan_is_stored_as_the_types_one_nan);
    tcase_add_test(all, widening_keeps_sign_and_payload_of_a_16_bit_nan);
    tcase_add_test(all, f32_arrays_are_copied_except_for_nan_payloads);
    tcase_add_test(all, integers_have_the_value_of_their_pattern_and_come_back);
    tcase_add_test(all, integers_round_to_even_saturate_and_store_a_nan_as_0);
    tcase_add_test(all, elements_that_share_a_byte_are_stored_side_by_side);
    tcase_add_test(all, bytes_count_whole_blocks);
    tcase_add_test(all, half_ulp_of_f32_by_hand);
    suite_add_tcase(suite, all);
    return suite;
}
