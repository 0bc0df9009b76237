/* An .npy file; every element that it promises is looked at. */
#include <math.h>

#include "../../harness/npy.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct et_npy npy;
    struct et_error error;
    const enum et_status status = et_npy_read("a.npy", (const char *)bytes, n, &npy, &error);
    fuzz_must(status == ET_OK || status == ET_INVALID, "a file is read or refused");
    int64_t same = 0;
    for (int64_t i = 0; status == ET_OK && i < npy.count; i++)
        if (npy.kind == ET_NPY_BITS16)
            same += et_npy_bits(&npy, i) <= UINT16_MAX;
        else
            same += !(et_npy_value(&npy, i) != et_npy_value(&npy, i)) || isnan(et_npy_value(&npy, i));
    fuzz_must(status != ET_OK || same == npy.count, "every element is there");
    return 0;
}
