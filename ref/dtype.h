/* Storage types: their exact values as f32, and the one rounding that stores a value.
 *
 * IEEE 754 binary32 and binary16; bfloat16; e4m3 as in OCP 8-bit Floating Point Specification 1.0 (fn: no
 * Inf, NaN at mantissa all ones) and as in LLVM's APFloat (fnuz: bias 8, no Inf, no -0, whose pattern is the
 * one NaN). i8 is two's complement. i4 packs two elements to a byte, the even one in the low nibble, and
 * stores the value plus 8; a nibble taken as it is, 0..15, is et_load's. A `bits` argument or result holds
 * one element's pattern in its low bytes, the rest is zero. Assumes the default rounding mode. Thread-safe;
 * nothing here fails.
 */
#ifndef ET_DTYPE_H
#define ET_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum et_dtype { ET_F32, ET_F16, ET_BF16, ET_F8E4M3FN, ET_F8E4M3FNUZ, ET_I8, ET_U8, ET_I4, ET_DTYPES };

struct et_format {
    const char *name;  /* as in case files: "f32" "f16" "bf16" "f8e4m3fn" "f8e4m3fnuz" "i8" "u8" "i4" */
    size_t bytes;      /* of a block */
    int block;         /* elements that share `bytes` bytes: 1, but for i4's 2; rows begin at whole blocks */
    int digits;        /* of the significand, hidden bit included */
    int min_exponent;  /* of the smallest normal, 2^min_exponent */
    int max_exponent;  /* of max */
    bool integer;      /* whole numbers; no NaN, no Inf, saturates */
    bool infinite;     /* has Inf; a type without saturates */
    bool signed_zero;  /* has -0 */
    double min;        /* least finite value */
    double max;        /* largest finite value */
    double unit;       /* unit roundoff, 2^-digits */
    uint32_t sign;     /* the sign bit */
    uint32_t max_bits; /* pattern of max */
    uint32_t nan;      /* the pattern that stands for every NaN */
};

const struct et_format *et_format(enum et_dtype dtype);

/* Bytes that n elements take, the last block whole. */
size_t et_bytes(enum et_dtype dtype, int64_t n);

/* Elements that whole blocks in `bytes` bytes hold. */
int64_t et_elements(enum et_dtype dtype, size_t bytes);

/* The type whose elements a buffer is filed, copied and guarded as: u8 where elements share bytes, else the
 * type itself. */
enum et_dtype et_storage(enum et_dtype dtype);

/* Sets *dtype and returns true if `name` is the name of a format. */
bool et_dtype_named(const char *name, enum et_dtype *dtype);

/* The exact value. An f16 or bf16 NaN keeps sign and payload, as the top bits of the f32's. */
float et_widen(enum et_dtype dtype, uint32_t bits);

/* The nearest value of the type, ties to even, subnormals included, in one rounding. Beyond et_overflow: Inf,
 * or max where the type has no Inf (±Inf too). Every NaN becomes the format's nan, or 0 where the
 * type is an integer. */
uint32_t et_narrow(enum et_dtype dtype, double value);

/* The same for n elements; src and dst must not overlap. */
void et_widen_n(enum et_dtype dtype, const void *src, int64_t n, float *dst);
void et_narrow_n(enum et_dtype dtype, const float *src, int64_t n, void *dst);

/* Pattern of element i of an array of the type. */
uint32_t et_load(enum et_dtype dtype, const void *base, int64_t i);
void et_store(enum et_dtype dtype, void *base, int64_t i, uint32_t bits);

bool et_is_nan(enum et_dtype dtype, uint32_t bits);

/* A quiet NaN with the sign and the payload of pattern's low bits, as far as the type has them; of an integer
 * type, which has none, those bits. */
uint32_t et_nan(enum et_dtype dtype, uint32_t pattern);

/* `bits`, or the format's nan for any NaN. */
uint32_t et_canonical(enum et_dtype dtype, uint32_t bits);

/* Half a unit in the last place of the type in the binade of |magnitude|; in the lowest normal binade for
 * anything below it, in the highest for anything above it, Inf and NaN included. */
double et_half_ulp(enum et_dtype dtype, double magnitude);

/* max + half an ulp: at and above it a magnitude is stored as Inf, or as max where the type has no Inf. */
double et_overflow(enum et_dtype dtype);

#ifdef __cplusplus
}
#endif

#endif
