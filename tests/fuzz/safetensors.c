/* Both ways to read a file of tensors; every byte that they promise is looked at. */
#include "../../harness/safetensors.h"
#include "fuzz.h"

static unsigned sum(const struct et_tensors *tensors)
{
    unsigned sum = 0;
    for (int i = 0; i < tensors->count; i++)
        for (size_t k = 0; k < tensors->at[i].bytes; k++)
            sum += ((const unsigned char *)tensors->at[i].data)[k];
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct et_tensors mapped, read;
    struct et_error error;
    const char *path = fuzz_file(bytes, n);
    const enum et_status status = et_tensors_open(path, &mapped, &error);
    fuzz_must(status == et_tensors_read(path, n, &read, &error), "mapped or read, a file is the same");
    fuzz_must(status == ET_OK || status == ET_INVALID, "a file is read or refused");
    fuzz_must(mapped.count == read.count && sum(&mapped) == sum(&read),
              "mapped or read, tensors are the same");
    et_tensors_close(&mapped);
    et_tensors_close(&read);
    return 0;
}
