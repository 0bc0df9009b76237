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

/* e^x within 1 ulp; 1 for x = +-0; 0 for x < ln 2^-126, about -87.3365; Inf for x > 88.72283, from where on
 * e^x rounds to Inf. */
static inline float et_exp(float x)
{
    if ((et_as_u32(x) & ~ET_F32_SIGN) > ET_F32_INF)
        return et_as_f32(ET_F32_NAN);
    if (x < -0x1.5d589ep6f)
        return 0.0f;
    if (x > 0x1.62e42ep6f)
        return et_as_f32(ET_F32_INF);

    /* x = n ln 2 + r, |r| <= ln(2)/2: at 1.5 * 2^23 the unit is 1, so the sum is rounded to an integer, n in
     * its low bits. ln 2 is split in two; the first step is exact. */
    const float shifted = ET_FMA(x, 0x1.715476p0f, 0x1.8p23f);
    const et_u32 n = et_as_u32(shifted) - et_as_u32(0x1.8p23f);
    const float whole = shifted - 0x1.8p23f;
    const float r = ET_FMA(whole, 0x1.05c610p-29f, ET_FMA(whole, -0x1.62e430p-1f, x));

    /* 1 + r + r^2 s(r), s fitted for the least relative error of the sum: 2^-28.2 over the interval. */
    float p = 0x1.6a4d46p-10f;
    p = ET_FMA(p, r, 0x1.12398cp-7f);
    p = ET_FMA(p, r, 0x1.5558b0p-5f);
    p = ET_FMA(p, r, 0x1.555492p-3f);
    p = ET_FMA(p, r, 0x1.fffffcp-2f);
    p = ET_FMA(p, r, 1.0f);
    p = ET_FMA(p, r, 1.0f);

    /* times 2^n in the exponent field, which the limits above keep in range */
    return et_as_f32(et_as_u32(p) + (n << 23));
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

#endif
