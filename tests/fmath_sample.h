/* What the tests of fmath.h share: its functions of one argument with their limits and recorded bits, and the
 * inputs that stand for all. */
#ifndef ET_TESTS_FMATH_SAMPLE_H
#define ET_TESTS_FMATH_SAMPLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "../ref/fmath.h"

enum { SAMPLE = 1 << 22 };

/* One input in each 1024 consecutive patterns, at changing places: every exponent with either sign. */
static inline float sample(uint32_t i)
{
    return et_as_f32(i << 10 | i >> 12);
}

/* splitmix64 */
static inline uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* FNV-1a over words in place of bytes. */
static const uint64_t hash_start = 0xcbf29ce484222325;

static inline uint64_t hash_add(uint64_t hash, float x)
{
    return (hash ^ et_as_u32(x)) * 0x100000001b3;
}

/* The next two random patterns. */
static inline void random_pair(uint64_t *state, float *a, float *b)
{
    const uint64_t word = random_bits(state);
    *a = et_as_f32((uint32_t)word);
    *b = et_as_f32((uint32_t)(word >> 32));
}

static inline double true_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The hashes are recorded, not derived: an edit of fmath.h that moves a bit of any kernel changes them. */
struct function {
    const char *name;
    float (*portable)(float);
    double (*exact)(double); /* so much closer to the function than an f32 can be that it stands for it */
    bool rounded;            /* correctly, that is */
    double limit;            /* of the error, in units in the last place */
    uint64_t sample_hash;    /* of the outputs for sample(0), sample(1), ... */
    double worst;            /* over all inputs, to 1e-4 */
    uint64_t hash;           /* of the outputs for all patterns, in their order */
};

static const struct function functions[] = {
    {"exp", et_exp, exp, false, 1, 0x7d2d5bd347aafa65, 0.8913, 0x78ae3983d4fb73df},
    {"log1p", et_log1p, log1p, false, 1, 0x91e405b22a747765, 0.9160, 0x4161b7653ded0a60},
    {"sqrt", et_sqrt, sqrt, true, 0.5, 0xd18425426734960d, 0.5, 0x6d776e56348e2655},
    {"sigmoid", et_sigmoid, true_sigmoid, false, 2, 0xcd7d0fd61f16e83e, 1.4797, 0xffd08645beda988d},
    {"tanh", et_tanh, tanh, false, 2, 0x8e662148e2768e94, 1.1303, 0xc7535fd23b84a42d},
};

enum { FUNCTIONS = sizeof functions / sizeof *functions };

static inline uint64_t sample_hash(const struct function *f)
{
    uint64_t hash = hash_start;
    for (uint32_t i = 0; i < SAMPLE; i++)
        hash = hash_add(hash, f->portable(sample(i)));
    return hash;
}

/*
 * The error of got = portable(x) in units in the last place at the true value; infinite where a zero, an
 * infinity, a NaN or a correct rounding is not the one promised. A subnormal x stands for a zero.
 */
static inline double error_of(const struct function *f, float x, float got)
{
    const float flushed = (et_as_u32(x) & ~ET_F32_SIGN) < ET_F32_MIN ? copysignf(0, x) : x;
    const double want = f->exact((double)flushed), size = fabs(want);
    if (isnan(want))
        return et_as_u32(got) == ET_F32_NAN ? 0 : (double)INFINITY;
    const float nearest = size < 0x1p-126 ? copysignf(0, (float)want) : (float)want;
    const bool special = size < 0x1p-126 || size >= 0x1.ffffffp127;
    if ((special || f->rounded) && et_as_u32(got) != et_as_u32(nearest))
        return (double)INFINITY;
    return special ? 0 : fabs((double)got - want) / ldexp(1, ilogb(want) - 23);
}

#endif
