/* Elementary functions of portable kernels: one file, both C11 and OpenCL C 1.2, the same bits from both.
 *
 * Only fma, add, multiply and integers, so that nothing depends on how a device divides, contracts, or treats
 * subnormals: a subnormal that could decide a bit is flushed by an integer test, operands before use, results
 * below the smallest normal 2^-126, to a zero of their sign. Every NaN returned is 0x7fc00000. In C, compile
 * with -ffp-contract=off.
 */
#ifndef ET_FMATH_H
#define ET_FMATH_H

#ifdef __OPENCL_VERSION__
#pragma OPENCL FP_CONTRACT OFF
typedef uint et_u32;
#define ET_FMA(a, b, c) fma(a, b, c)
#define et_as_u32(x)    as_uint(x)
#define et_as_f32(x)    as_float(x)
#else
#include <math.h>
#include <stdint.h>
#include <string.h>
typedef uint32_t et_u32;
#define ET_FMA(a, b, c) fmaf(a, b, c)

static inline et_u32 et_as_u32(float x)
{
    et_u32 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float et_as_f32(et_u32 bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
#endif

#define ET_F32_SIGN     0x80000000u
#define ET_F32_FRACTION 0x007fffffu
#define ET_F32_MIN      0x00800000u /* the smallest normal, 2^-126 */
#define ET_F32_ONE      0x3f800000u
#define ET_F32_INF      0x7f800000u
#define ET_F32_NAN      0x7fc00000u
#define ET_EXP_LEAST    (-0x1.5d589ep6f) /* the least x whose e^x is at least 2^-126 */

/* The e^x = p 2^n that et_exp rounds, for x within its limits: p, in [0.7, 1.42), and n, modulo 2^32. */
static inline float et_exp_parts(float x, et_u32 *n)
{
    /* x = n ln 2 + r, |r| <= ln(2)/2: at 1.5 * 2^23 the unit is 1, so the sum is rounded to an integer, n in
     * its low bits. ln 2 is split in two; the first step is exact. */
    const float shifted = ET_FMA(x, 0x1.715476p0f, 0x1.8p23f);
    const float whole = shifted - 0x1.8p23f;
    const float r = ET_FMA(whole, 0x1.05c610p-29f, ET_FMA(whole, -0x1.62e430p-1f, x));
    *n = et_as_u32(shifted) - et_as_u32(0x1.8p23f);

    /* 1 + r + r^2 s(r), s fitted for the least relative error of the sum: 2^-28.2 over the interval. */
    float p = 0x1.6a4d46p-10f;
    p = ET_FMA(p, r, 0x1.12398cp-7f);
    p = ET_FMA(p, r, 0x1.5558b0p-5f);
    p = ET_FMA(p, r, 0x1.555492p-3f);
    p = ET_FMA(p, r, 0x1.fffffcp-2f);
    p = ET_FMA(p, r, 1.0f);
    return ET_FMA(p, r, 1.0f);
}

/* e^x within 1 ulp; 1 for x = +-0; 0 for x < ln 2^-126, about -87.3365; Inf for x > 88.72283, from where on
 * e^x rounds to Inf. */
static inline float et_exp(float x)
{
    if ((et_as_u32(x) & ~ET_F32_SIGN) > ET_F32_INF)
        return et_as_f32(ET_F32_NAN);
    if (x < ET_EXP_LEAST)
        return 0.0f;
    if (x > 0x1.62e42ep6f)
        return et_as_f32(ET_F32_INF);

    et_u32 n;
    const float p = et_exp_parts(x, &n);
    /* times 2^n in the exponent field, which the limits above keep in range */
    return et_as_f32(et_as_u32(p) + (n << 23));
}

/* ln(1 + x) within 1 ulp; x where that is a zero or a subnormal, which becomes a zero; -Inf for x = -1, NaN
 * below it. */
static inline float et_log1p(float x)
{
    const et_u32 magnitude = et_as_u32(x) & ~ET_F32_SIGN;
    if (magnitude > ET_F32_INF || x < -1.0f)
        return et_as_f32(ET_F32_NAN);
    if (magnitude < ET_F32_MIN)
        return et_as_f32(et_as_u32(x) & ET_F32_SIGN);
    if (magnitude == ET_F32_INF)
        return x;
    if (x == -1.0f)
        return et_as_f32(ET_F32_SIGN | ET_F32_INF);

    /* 1 + x = 2^n (1 + f), 1 + f in [3/4, 3/2). f = 2^-n x + (2^-n - 1) is a difference of near numbers, so
     * exact up to n = 24 (but next to an end of the interval), and off by at most 2^-25 beyond, where the
     * result is above 16. 2^-n, down to 2^-128, comes as a quarter of a normal number. */
    const et_u32 biased = (et_as_u32(1.0f + x) - et_as_u32(0.75f) + (32u << 23)) >> 23;
    const et_u32 exponent = (biased - 32u) << 23;
    const float n = (float)(int)biased - 32.0f;
    const float f =
        et_as_f32(et_as_u32(x) - exponent) + ET_FMA(et_as_f32(et_as_u32(4.0f) - exponent), 0.25f, -1.0f);

    /* ln(1 + f) = f + f^2 p(f), p fitted for the least relative error of the sum: 2^-27.5. */
    float p = -0x1.71e7a8p-5f;
    p = ET_FMA(p, f, 0x1.ad09ecp-4f);
    p = ET_FMA(p, f, -0x1.0da4d6p-3f);
    p = ET_FMA(p, f, 0x1.288486p-3f);
    p = ET_FMA(p, f, -0x1.54ed86p-3f);
    p = ET_FMA(p, f, 0x1.99695ep-3f);
    p = ET_FMA(p, f, -0x1.000046p-2f);
    p = ET_FMA(p, f, 0x1.5555a4p-2f);
    p = ET_FMA(p, f, -0.5f);

    /* n ln 2 + f with its rounding error: n times the upper part of ln 2, of 15 bits, is exact. */
    const float whole = n * 0x1.62e4p-1f;
    const float sum = whole + f;
    const float rest = ET_FMA(n, 0x1.7f7d1cp-20f, f - (sum - whole));
    return sum + ET_FMA(p, f * f, rest);
}

/* Correctly rounded a / b for a, b in [1, 2). Markstein (IA-64 and Elementary Functions, 2000): with y the
 * correctly rounded 1 / b and q within one unit in the last place of a / b, q + (a - b q) y is. */
static inline float et_div_significands(float a, float b)
{
    /* Newton from 24/17 - 8/17 b, which is within 1/17; four steps round correctly for every b but one. */
    float y = ET_FMA(b, -0.47058824f, 1.4117647f);
    y = ET_FMA(ET_FMA(-b, y, 1.0f), y, y);
    y = ET_FMA(ET_FMA(-b, y, 1.0f), y, y);
    y = ET_FMA(ET_FMA(-b, y, 1.0f), y, y);
    y = ET_FMA(ET_FMA(-b, y, 1.0f), y, y);
    /* 1 / (2 - 2^-23) lies 2^-49 above the tie between 1/2 and its successor. */
    if (et_as_u32(b) == 0x3fffffffu)
        y = 0x1.000002p-1f;

    /* a y may be 1.5 units off, hence two corrections. */
    float q = a * y;
    q = ET_FMA(ET_FMA(-b, q, a), y, q);
    return ET_FMA(ET_FMA(-b, q, a), y, q);
}

/* a / b, correctly rounded, with subnormal operands and results replaced by zeros of their sign; no quotient
 * below 2^-126 rounds up to it, so a result is flushed exactly where IEEE division gives a subnormal or zero.
 * 0/0 and Inf/Inf are NaN, x/0 is Inf and x/Inf is 0 with the sign of the quotient. */
static inline float et_div(float a, float b)
{
    const et_u32 sign = (et_as_u32(a) ^ et_as_u32(b)) & ET_F32_SIGN;
    const et_u32 dividend = et_as_u32(a) & ~ET_F32_SIGN;
    const et_u32 divisor = et_as_u32(b) & ~ET_F32_SIGN;
    const int a_zero = dividend < ET_F32_MIN, b_zero = divisor < ET_F32_MIN;
    const int a_inf = dividend == ET_F32_INF, b_inf = divisor == ET_F32_INF;

    if (dividend > ET_F32_INF || divisor > ET_F32_INF || (a_zero && b_zero) || (a_inf && b_inf))
        return et_as_f32(ET_F32_NAN);
    if (a_zero || b_inf)
        return et_as_f32(sign);
    if (b_zero || a_inf)
        return et_as_f32(sign | ET_F32_INF);

    const float q = et_div_significands(et_as_f32(ET_F32_ONE | (dividend & ET_F32_FRACTION)),
                                        et_as_f32(ET_F32_ONE | (divisor & ET_F32_FRACTION)));
    const int exponent = (int)(et_as_u32(q) >> 23) + (int)(dividend >> 23) - (int)(divisor >> 23);
    if (exponent <= 0)
        return et_as_f32(sign);
    if (exponent >= 255)
        return et_as_f32(sign | ET_F32_INF);
    return et_as_f32(sign | (et_u32)exponent << 23 | (et_as_u32(q) & ET_F32_FRACTION));
}

/* The square root, correctly rounded; -0 and negative subnormals give -0, what lies below them NaN. */
static inline float et_sqrt(float x)
{
    const et_u32 magnitude = et_as_u32(x) & ~ET_F32_SIGN;
    if (magnitude < ET_F32_MIN)
        return et_as_f32(et_as_u32(x) & ET_F32_SIGN);
    if (et_as_u32(x) > ET_F32_INF)
        return et_as_f32(ET_F32_NAN);
    if (magnitude == ET_F32_INF)
        return x;

    /* x = 4^k m, m in [1, 4) */
    const et_u32 k = (((magnitude >> 23) + 1) >> 1) - 64u;
    const float m = et_as_f32(magnitude - (k << 24));

    /* Goldschmidt: root to sqrt(m), slope to 1 / (2 sqrt(m)). Halving and negating the exponent in the
     * pattern starts within 3.5 %. */
    const float start = et_as_f32(0x5f3759dfu - (et_as_u32(m) >> 1));
    float root = m * start, slope = 0.5f * start;
    for (int i = 0; i < 3; i++) {
        const float error = ET_FMA(-root, slope, 0.5f);
        root = ET_FMA(root, error, root);
        slope = ET_FMA(slope, error, slope);
    }
    /* As in et_div_significands, m - root^2 is exact. */
    root = ET_FMA(ET_FMA(-root, root, m), slope, root);
    return et_as_f32(et_as_u32(root) + (k << 23));
}

/* 1 / (1 + e^-x) within 2 ulp, in either tail; 0 where et_exp(x) is. */
static inline float et_sigmoid(float x)
{
    const et_u32 magnitude = et_as_u32(x) & ~ET_F32_SIGN;
    if (magnitude > ET_F32_INF)
        return et_as_f32(ET_F32_NAN);
    const float below = et_as_f32(ET_F32_SIGN | magnitude);
    if (below < ET_EXP_LEAST)
        return x < 0 ? 0.0f : 1.0f;

    /* t = e^-|x| = p 2^n, and 1 + t = sum + rest exactly. */
    et_u32 n;
    const float p = et_exp_parts(below, &n);
    const float t = et_as_f32(et_as_u32(p) + (n << 23));
    const float sum = 1.0f + t;
    const float rest = t - (sum - 1.0f);

    /* inverse (1 + error) = 1 / (1 + t): Newton from within 1/17, as in et_div_significands. */
    float inverse = ET_FMA(sum, -0.47058824f, 1.4117647f);
    inverse = ET_FMA(ET_FMA(-sum, inverse, 1.0f), inverse, inverse);
    inverse = ET_FMA(ET_FMA(-sum, inverse, 1.0f), inverse, inverse);
    inverse = ET_FMA(ET_FMA(-sum, inverse, 1.0f), inverse, inverse);
    const float error = ET_FMA(-rest, inverse, ET_FMA(-sum, inverse, 1.0f));

    /* 1 / (1 + t), or p / (1 + t) and then times 2^n: the small product has no subnormal parts that way. */
    const int negative = x < 0;
    const float numerator = negative ? p : 1.0f;
    const float q = numerator * inverse;
    const float result = q + ET_FMA(q, error, ET_FMA(numerator, inverse, -q));
    return et_as_f32(et_as_u32(result) + (negative ? n << 23 : 0u));
}

/* tanh(x) within 2 ulp; +-1 for |x| >= 9.02, a zero or a subnormal gives the zero of its sign. */
static inline float et_tanh(float x)
{
    const et_u32 sign = et_as_u32(x) & ET_F32_SIGN;
    const et_u32 magnitude = et_as_u32(x) & ~ET_F32_SIGN;
    if (magnitude > ET_F32_INF)
        return et_as_f32(ET_F32_NAN);
    if (magnitude < ET_F32_MIN)
        return et_as_f32(sign);
    /* 1 - 2 / (1 + e^2|x|); from 0.55 on its errors are small beside 1. */
    const float size = et_as_f32(magnitude);
    if (size > 0.55f)
        return et_as_f32(sign | et_as_u32(ET_FMA(-2.0f, et_sigmoid(-2.0f * size), 1.0f)));

    /* x + x^3 p(x^2), p fitted for the least relative error of the sum: 2^-29.7. */
    const float square = x * x;
    float p = -0x1.9921a2p-8f;
    p = ET_FMA(p, square, 0x1.58e518p-6f);
    p = ET_FMA(p, square, -0x1.b91e7ep-5f);
    p = ET_FMA(p, square, 0x1.110ceep-3f);
    p = ET_FMA(p, square, -0x1.55554ap-2f);
    return ET_FMA(p, square * x, x);
}

#endif
