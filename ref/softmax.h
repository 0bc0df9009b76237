/* Online softmax: one file, both C11 and OpenCL C 1.2, the same bits from both (fmath.h).
 *
 * A row of attention goes through its keys in steps, and keeps of those so far the largest score m (-Inf
 * before any), the sum l of the exponentials of the others relative to it, and the sum of value rows weighted
 * by them. The algorithm: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018. Scores
 * are finite, or -Inf: not visible. A row without a visible key is zeros: its m is -Inf, and none of these
 * functions is to be asked.
 */
#ifndef ET_SOFTMAX_H
#define ET_SOFTMAX_H

#include "fmath.h"

/* The larger, of which neither is NaN; of +0 and -0 either. */
static inline float et_larger(float a, float b)
{
    return a > b ? a : b;
}

/* The score of a key that is seen: -Inf is that of one that is not, so what is below f32's range is its
 * lowest number. */
static inline float et_seen_score(float s)
{
    const float lowest = -0x1.fffffep127f;
    return lowest > s ? lowest : s;
}

/* The factor that makes sums relative to m, which may be -Inf, relative to `to`, a finite score no smaller.
 */
static inline float et_rescale(float m, float to)
{
    return et_exp(m - to);
}

/* A sum times that factor, but +0 for a factor of 0: some devices lose what tells fma(x, 0, +0) from x * 0.
 */
static inline float et_rescaled(float sum, float factor)
{
    return factor == 0.0f ? 0.0f : sum * factor;
}

/*
 * A sink is one more logit z, without a value: merged once, after the last step. m is finite. To m: the
 * larger; to l: what all exponentials add up to, the sink's included. Returns the factor for sums of values.
 * z = -Inf changes nothing, z = +Inf leaves zeros.
 */
static inline float et_add_sink(float z, float *m, float *l)
{
    const float from = *m, to = et_larger(from, z);
    if (to == et_as_f32(ET_F32_INF)) {
        *m = to;
        *l = 1.0f;
        return 0.0f;
    }
    const float factor = et_rescale(from, to);
    *m = to;
    *l = ET_FMA(*l, factor, et_exp(z - to));
    return factor;
}

/* x = 2^-e, for e = bias * steps / n2, 0 <= e; n2 a power of two. */
static inline float et_alibi_power(float bias, float steps, float n2)
{
    /* e in two parts, the second what the first has rounded off. 1 / n2 by its bits: OpenCL's quotients may
     * be off by 2.5 ulp. */
    const float product = bias * steps, inverse = et_as_f32(2 * ET_F32_ONE - et_as_u32(n2));
    const float rest = ET_FMA(bias, steps, -product) * inverse, e = product * inverse;
    if (e > 125.0f)
        return 0.0f;
    const et_u32 whole = (et_u32)e;
    const float p = et_exp(-0x1.62e430p-1f * (e - (float)whole + rest));
    return p * et_as_f32(ET_F32_ONE - (whole << 23));
}

/*
 * ALiBi's slope of head h of n, for the largest bias max_bias > 0 (0: 1, no slope): with n2 the largest power
 * of two up to n, 2^(-max_bias (h + 1) / n2) for h < n2, and of those beyond 2^(-max_bias (2 (h - n2) + 1) /
 * (2 n2)). Within 3 ulp; below 2^-125 it is 0. Press, Smith and Lewis, "Train Short, Test Long", 2022; the
 * division of heads is ggml's.
 */
static inline float et_alibi_slope(float max_bias, et_u32 h, et_u32 n)
{
    if (max_bias == 0.0f)
        return 1.0f;
    et_u32 n2 = 1;
    while (n2 <= n / 2)
        n2 *= 2;
    return h < n2 ? et_alibi_power(max_bias, (float)(h + 1), (float)n2)
                  : et_alibi_power(max_bias, (float)(2 * (h - n2) + 1), (float)(2 * n2));
}

#endif
