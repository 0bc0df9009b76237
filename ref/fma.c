#include "fma.h"

#include <math.h>
#include <string.h>

#include "dtype.h"

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

INLINE uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* 1 for a subnormal: the exponent is 0 and the rest is not. */
INLINE uint32_t subnormal(float value)
{
    const uint32_t bits = bits_of(value);
    return (uint32_t)((bits & 0x7f800000U) == 0) & (uint32_t)((bits & 0x007fffffU) != 0);
}

bool et_is_subnormal(float value)
{
    return subnormal(value);
}

INLINE bool fma_row(float *restrict acc, float a, const float *restrict x, int64_t n)
{
    uint32_t met = subnormal(a);
    for (int64_t i = 0; i < n; i++) {
        acc[i] = fmaf(a, x[i], acc[i]);
        met |= subnormal(x[i]) | subnormal(acc[i]);
    }
    return met;
}

bool et_fma_row_plain(float *acc, float a, const float *x, int64_t n)
{
    return fma_row(acc, a, x, n);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,fma"))) static bool fma_row_x86(float *acc, float a, const float *x, int64_t n)
{
    return fma_row(acc, a, x, n);
}

bool et_fma_row(float *acc, float a, const float *x, int64_t n)
{
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
        return fma_row_x86(acc, a, x, n);
    return fma_row(acc, a, x, n);
}
#else
bool et_fma_row(float *acc, float a, const float *x, int64_t n)
{
    return fma_row(acc, a, x, n);
}
#endif

/*
 * a * x is exact in f64 for operands of 26 bits and less. Rounding the sum to odd keeps the second rounding,
 * to f16, from seeing a tie that is none (Boldo and Melquiond, "Emulation of a FMA and correctly rounded
 * sums", 2008).
 */
void et_fma_row_f16(float *acc, float a, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double product = (double)a * (double)x[i];
        const double addend = (double)acc[i];
        double sum = product + addend;
        const double back = sum - product;
        const double rest = (product - (sum - back)) + (addend - back);
        uint64_t bits;
        memcpy(&bits, &sum, sizeof bits);
        if (isfinite(sum) && rest != 0 && (bits & 1) == 0)
            sum = nextafter(sum, rest > 0 ? INFINITY : -INFINITY);
        acc[i] = et_widen(ET_F16, et_narrow(ET_F16, sum));
    }
}
