#include "guard.h"

#include <stdio.h>

#include "../ref/dtype.h"

size_t et_guard_bytes(const struct et_tensor *t)
{
    const int64_t row = t->rank > 1 ? t->stride[t->rank - 2] : t->size[0];
    const size_t bytes = et_bytes(t->dtype, row);
    const size_t least = bytes > ET_GUARD_BYTES && bytes <= t->bytes ? bytes : ET_GUARD_BYTES;
    return (least + ET_GUARD_BYTES - 1) / ET_GUARD_BYTES * ET_GUARD_BYTES;
}

void et_guard_values(enum et_dtype dtype, uint32_t was, uint32_t is, char *dst, size_t bytes)
{
    const int digits = 2 * (int)et_format(dtype)->bytes;
    snprintf(dst, bytes, "was %.9g (0x%0*x), is %.9g (0x%0*x)", (double)et_widen(dtype, was), digits, was,
             (double)et_widen(dtype, is), digits, is);
}

void et_guard_tell(struct et_facts *facts, const char *name, enum et_dtype dtype, size_t n, bool before,
                   uint32_t was, uint32_t is)
{
    char values[100];
    et_guard_values(dtype, was, is, values, sizeof values);
    snprintf(facts->guards, sizeof facts->guards, "%s: element %zu %s %s", name, n,
             before ? "before its start" : "past its end", values);
}
