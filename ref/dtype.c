#include "dtype.h"

#include <math.h>
#include <string.h>

static const struct et_format formats[ET_DTYPES] = {
    [ET_F32] = {.name = "f32",
                .bytes = 4,
                .block = 1,
                .digits = 24,
                .min_exponent = -126,
                .max_exponent = 127,
                .infinite = true,
                .signed_zero = true,
                .min = -0x1.fffffep127,
                .max = 0x1.fffffep127,
                .unit = 0x1p-24,
                .sign = 0x80000000,
                .max_bits = 0x7f7fffff,
                .nan = 0x7fc00000},
    [ET_F16] = {.name = "f16",
                .bytes = 2,
                .block = 1,
                .digits = 11,
                .min_exponent = -14,
                .max_exponent = 15,
                .infinite = true,
                .signed_zero = true,
                .min = -65504,
                .max = 65504,
                .unit = 0x1p-11,
                .sign = 0x8000,
                .max_bits = 0x7bff,
                .nan = 0x7e00},
    [ET_BF16] = {.name = "bf16",
                 .bytes = 2,
                 .block = 1,
                 .digits = 8,
                 .min_exponent = -126,
                 .max_exponent = 127,
                 .infinite = true,
                 .signed_zero = true,
                 .min = -0x1.fep127,
                 .max = 0x1.fep127,
                 .unit = 0x1p-8,
                 .sign = 0x8000,
                 .max_bits = 0x7f7f,
                 .nan = 0x7fc0},
    [ET_F8E4M3FN] = {.name = "f8e4m3fn",
                     .bytes = 1,
                     .block = 1,
                     .digits = 4,
                     .min_exponent = -6,
                     .max_exponent = 8,
                     .infinite = false,
                     .signed_zero = true,
                     .min = -448,
                     .max = 448,
                     .unit = 0x1p-4,
                     .sign = 0x80,
                     .max_bits = 0x7e,
                     .nan = 0x7f},
    [ET_F8E4M3FNUZ] = {.name = "f8e4m3fnuz",
                       .bytes = 1,
                       .block = 1,
                       .digits = 4,
                       .min_exponent = -7,
                       .max_exponent = 7,
                       .infinite = false,
                       .signed_zero = false,
                       .min = -240,
                       .max = 240,
                       .unit = 0x1p-4,
                       .sign = 0x80,
                       .max_bits = 0x7f,
                       .nan = 0x80},
    /* Integers: one binade, whose quantum is 1. */
    [ET_I8] = {.name = "i8",
               .bytes = 1,
               .block = 1,
               .digits = 7,
               .min_exponent = 6,
               .max_exponent = 6,
               .integer = true,
               .min = -128,
               .max = 127,
               .unit = 0x1p-7,
               .sign = 0x80,
               .max_bits = 0x7f},
    [ET_U8] = {.name = "u8",
               .bytes = 1,
               .block = 1,
               .digits = 8,
               .min_exponent = 7,
               .max_exponent = 7,
               .integer = true,
               .max = 255,
               .unit = 0x1p-8,
               .max_bits = 0xff},
    [ET_I4] = {.name = "i4",
               .bytes = 1,
               .block = 2,
               .digits = 3,
               .min_exponent = 2,
               .max_exponent = 2,
               .integer = true,
               .min = -8,
               .max = 7,
               .unit = 0x1p-3,
               .max_bits = 0xf},
};

static inline uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t double_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double power_of_two(int exponent)
{
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Exponent of the type's binade that holds |magnitude|, clamped to those the type has. */
static inline int binade(const struct et_format *f, double magnitude)
{
    const int exponent = (int)(double_bits(fabs(magnitude)) >> 52) - 1023;
    const int raised = exponent > f->min_exponent ? exponent : f->min_exponent;
    return raised < f->max_exponent ? raised : f->max_exponent;
}

static inline bool is_nan(const struct et_format *f, uint32_t bits)
{
    return !f->integer && ((bits & ~f->sign) > f->max_bits + f->infinite || bits == f->nan);
}

/* f32 pattern of a value whose type has only normal f32 values. Selects, not branches: loops vectorise. */
static inline uint32_t widen_small(const struct et_format *f, uint32_t bits)
{
    const uint32_t magnitude = bits & ~f->sign;
    const uint32_t shifted = magnitude << (24 - f->digits);
    const float quantum = bits_float((uint32_t)(f->min_exponent - f->digits + 1 + 127) << 23);

    const uint32_t normal = shifted + ((uint32_t)(f->min_exponent - 1 + 127) << 23);
    const uint32_t subnormal = float_bits((float)(int32_t)magnitude * quantum);
    const uint32_t finite = magnitude >> (f->digits - 1) ? normal : subnormal;

    const uint32_t special = 0x7f800000 | (f->infinite ? shifted : 0x00400000);
    const bool is_special = magnitude > f->max_bits || (!f->signed_zero && bits == f->nan);
    const uint32_t sign = f->signed_zero || !is_special ? bits & f->sign : 0;
    return (is_special ? special : finite) | sign << (32 - 8 * f->bytes);
}

/* Of an integer type: two's complement, or for one without a sign bit, the value less the least. */
static inline float widen_integer(const struct et_format *f, uint32_t bits)
{
    if (f->sign == 0)
        return (float)bits + (float)f->min;
    return (float)(int32_t)(bits ^ f->sign) - (float)f->sign;
}

static uint32_t narrow_integer(const struct et_format *f, double value)
{
    const double inside = value > f->min ? fmin(value, f->max) : f->min;
    const int32_t whole = isnan(value) ? 0 : (int32_t)rint(inside);
    return f->sign == 0 ? (uint32_t)(whole - (int32_t)f->min) : (uint32_t)whole & (f->sign | f->max_bits);
}

static inline uint32_t narrow(const struct et_format *f, double value)
{
    const double magnitude = fabs(value);
    const int exponent = binade(f, magnitude);
    /* A double whose unit in the last place is the type's quantum in this binade: adding it rounds. */
    const double anchor = power_of_two(exponent - f->digits + 53);
    const uint64_t quanta = double_bits(magnitude + anchor) - double_bits(anchor);
    /* The hidden bit, and a carry out of the significand, count as one step of the exponent field. */
    const uint64_t rounded = ((uint64_t)(exponent - f->min_exponent) << (f->digits - 1)) + quanta;

    const uint32_t bits = rounded > f->max_bits ? f->max_bits + f->infinite : (uint32_t)rounded;
    const uint32_t sign = f->signed_zero || bits != 0 ? (uint32_t)(double_bits(value) >> 63) * f->sign : 0;
    return isnan(value) ? f->nan : bits | sign;
}

const struct et_format *et_format(enum et_dtype dtype)
{
    return &formats[dtype];
}

size_t et_bytes(enum et_dtype dtype, int64_t n)
{
    const int64_t block = formats[dtype].block;
    return (size_t)(n / block + (n % block != 0)) * formats[dtype].bytes;
}

int64_t et_elements(enum et_dtype dtype, size_t bytes)
{
    return (int64_t)(bytes / formats[dtype].bytes) * formats[dtype].block;
}

enum et_dtype et_storage(enum et_dtype dtype)
{
    return formats[dtype].block == 1 ? dtype : ET_U8;
}

bool et_dtype_named(const char *name, enum et_dtype *dtype)
{
    for (int i = 0; i < ET_DTYPES; i++) {
        if (strcmp(name, formats[i].name) == 0) {
            *dtype = (enum et_dtype)i;
            return true;
        }
    }
    return false;
}

float et_widen(enum et_dtype dtype, uint32_t bits)
{
    switch (dtype) {
    case ET_F32:
        return bits_float(bits);
    case ET_BF16:
        return bits_float(bits << 16);
    case ET_I8:
    case ET_U8:
    case ET_I4:
        return widen_integer(&formats[dtype], bits);
    default:
        return bits_float(widen_small(&formats[dtype], bits));
    }
}

uint32_t et_narrow(enum et_dtype dtype, double value)
{
    const struct et_format *f = &formats[dtype];
    return f->integer ? narrow_integer(f, value) : narrow(f, value);
}

static void widen_bf16(const uint16_t *restrict src, int64_t n, float *restrict dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = bits_float((uint32_t)src[i] << 16);
}

static void widen_f16(const uint16_t *restrict src, int64_t n, float *restrict dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = bits_float(widen_small(&formats[ET_F16], src[i]));
}

static void widen_f8(const struct et_format *f, const uint8_t *restrict src, int64_t n, float *restrict dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = bits_float(widen_small(f, src[i]));
}

static void widen_integers(enum et_dtype dtype, const void *src, int64_t n, float *restrict dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = widen_integer(&formats[dtype], et_load(dtype, src, i));
}

void et_widen_n(enum et_dtype dtype, const void *src, int64_t n, float *dst)
{
    switch (dtype) {
    case ET_F32:
        memcpy(dst, src, (size_t)n * sizeof *dst);
        break;
    case ET_F16:
        widen_f16(src, n, dst);
        break;
    case ET_BF16:
        widen_bf16(src, n, dst);
        break;
    case ET_I8:
    case ET_U8:
    case ET_I4:
        widen_integers(dtype, src, n, dst);
        break;
    default:
        widen_f8(&formats[dtype], src, n, dst);
    }
}

void et_narrow_n(enum et_dtype dtype, const float *src, int64_t n, void *dst)
{
    for (int64_t i = 0; i < n; i++)
        et_store(dtype, dst, i, et_narrow(dtype, (double)src[i]));
}

/* Even elements of i4 are the low nibbles. */
static inline int nibble_shift(int64_t i)
{
    return (int)(i % 2) * 4;
}

uint32_t et_load(enum et_dtype dtype, const void *base, int64_t i)
{
    if (dtype == ET_I4)
        return (uint32_t)((const uint8_t *)base)[i / 2] >> nibble_shift(i) & 15;
    switch (formats[dtype].bytes) {
    case 1:
        return ((const uint8_t *)base)[i];
    case 2:
        return ((const uint16_t *)base)[i];
    default:
        return float_bits(((const float *)base)[i]);
    }
}

void et_store(enum et_dtype dtype, void *base, int64_t i, uint32_t bits)
{
    if (dtype == ET_I4) {
        uint8_t *pair = (uint8_t *)base + i / 2;
        *pair = (uint8_t)((*pair & 0xf0U >> nibble_shift(i)) | (bits & 15U) << nibble_shift(i));
        return;
    }
    switch (formats[dtype].bytes) {
    case 1:
        ((uint8_t *)base)[i] = (uint8_t)bits;
        break;
    case 2:
        ((uint16_t *)base)[i] = (uint16_t)bits;
        break;
    default:
        ((float *)base)[i] = bits_float(bits);
    }
}

bool et_is_nan(enum et_dtype dtype, uint32_t bits)
{
    return is_nan(&formats[dtype], bits);
}

/* The payload is what lies below the lowest bit of nan, the quiet bit; a type without -0 has one NaN. */
uint32_t et_nan(enum et_dtype dtype, uint32_t pattern)
{
    const struct et_format *f = &formats[dtype];
    if (f->integer)
        return pattern & (f->sign | f->max_bits);
    const uint32_t payload = (f->nan & (~f->nan + 1)) - 1;
    return f->signed_zero ? f->nan | (pattern & (f->sign | payload)) : f->nan;
}

uint32_t et_canonical(enum et_dtype dtype, uint32_t bits)
{
    return is_nan(&formats[dtype], bits) ? formats[dtype].nan : bits;
}

double et_half_ulp(enum et_dtype dtype, double magnitude)
{
    const struct et_format *f = &formats[dtype];
    return power_of_two(binade(f, magnitude) - f->digits);
}

double et_overflow(enum et_dtype dtype)
{
    const struct et_format *f = &formats[dtype];
    return f->max + power_of_two(f->max_exponent - f->digits);
}
