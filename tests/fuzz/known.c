/* A --known file, and a look-up in it. */
#include "../../harness/known.h"
#include "fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct et_known known;
    struct et_error error = {.text = ""};
    const char *path = fuzz_file(bytes, n);
    const enum et_status status = et_known_read(path, &known, &error);
    fuzz_must(status == ET_OK || (status == ET_INVALID && !strncmp(error.text, path, strlen(path))),
              "a list is read, or refused with its path");
    et_known_reason(&known, "gqa_av/f/a/normal/gqa", "a device");
    et_known_free(&known);
    return 0;
}
