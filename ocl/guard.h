/*
 * Guards: what lies before and after a buffer that a port writes, random NaNs of its type, so that a write
 * beside it is seen.
 */
#ifndef ET_OCL_GUARD_H
#define ET_OCL_GUARD_H

#include "../ref/etalon_port.h"

enum { ET_GUARD_BYTES = 4096 };

/* Bytes on either side: at least 4096 and one row, and a multiple of 4096, which keeps alignment as it is. */
size_t et_guard_bytes(const struct et_tensor *tensor);
/* "was 0.5 (0x3f000000), is nan (0x7fc00000)", of two bit patterns; written to dst, cut after `bytes`. */
void et_guard_values(enum et_dtype dtype, uint32_t was, uint32_t is, char *dst, size_t bytes);
/* "out: element 1 past its end was ..., is ...": the n-th element before or behind the tensor's buffer. */
void et_guard_tell(struct et_facts *facts, const char *name, enum et_dtype dtype, size_t n, bool before,
                   uint32_t was, uint32_t is);

#endif
