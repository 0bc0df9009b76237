/*
 * .npy files: "\x93NUMPY", two bytes of version, the length of a header (2 bytes, from version 2 on 4), the
 * header, a Python dictionary, then the elements. Source: NumPy's description, numpy.lib.format.
 */
#ifndef ET_HARNESS_NPY_H
#define ET_HARNESS_NPY_H

#include "../ocl/memory.h"

enum et_npy_kind { ET_NPY_F64, ET_NPY_F32, ET_NPY_F16, ET_NPY_I32, ET_NPY_BITS16, ET_NPY_KINDS };

/* Points into the bytes that it was read from. */
struct et_npy {
    enum et_npy_kind kind; /* BITS16: two bytes without arithmetic, as ml_dtypes stores bf16 */
    int rank;
    int64_t size[ET_RANK];
    int64_t count; /* elements */
    const char *data;
};

/*
 * Versions 1.0, 2.0 and 3.0; little-endian f64, f32, f16, i32, u16 and V2; C order. ET_INVALID: anything
 * else, more than ET_RANK dimensions, or not as many bytes as they take. Errors begin with path.
 */
enum et_status et_npy_read(const char *path, const char *bytes, size_t n, struct et_npy *npy,
                           struct et_error *error);
/* Element i; the kind is not BITS16. */
double et_npy_value(const struct et_npy *npy, int64_t i);
/* Element i of BITS16. */
uint32_t et_npy_bits(const struct et_npy *npy, int64_t i);
/* Version 1.0, f64, C order. */
void et_npy_add_header(struct et_text *text, int rank, const int64_t *size);

#endif
