/* One step of a replay over many outputs at once: the only part of a replay that is hot. */
#ifndef ET_REF_FMA_H
#define ET_REF_FMA_H

#include <stdbool.h>
#include <stdint.h>

/*
 * acc[i] = fma(a, x[i], acc[i]) for n elements, each rounded once. Returns whether an operand or result was a
 * subnormal. Uses the machine's fma where it has one; et_fma_row_plain calls libm's. Bytes are equal either
 * way.
 */
bool et_fma_row(float *acc, float a, const float *x, int64_t n);
bool et_fma_row_plain(float *acc, float a, const float *x, int64_t n);

/* The same with f16 accumulators: acc holds f16 values, and each step is one rounding to f16. */
void et_fma_row_f16(float *acc, float a, const float *x, int64_t n);

bool et_is_subnormal(float value);

#endif
