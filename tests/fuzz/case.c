/* The scanner, and what it lets through as a case file; then each case's problems, as a plan asks for them.
 */
#include "../../harness/plan.h"
#include "../../ocl/ocl.h"
#include "fuzz.h"

#include <string.h>

static void ask(const struct et_case *c)
{
    for (int i = 0; et_ocl.variants[i]; i++) {
        struct et_ask ask = {.variant = et_ocl.variants[i]};
        struct et_error why;
        for (int k = 0; k < ET_PARAMS; k++)
            ask.knob[k] = ET_UNSET;
        if (!strcmp(ask.variant->op, c->op->name))
            et_case_fits(c, &ask, &why);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct et_cases cases = {0};
    struct et_error error = {.text = ""};
    const char *path = fuzz_file(bytes, n);
    const enum et_status status = et_cases_read(path, NULL, &et_ocl, &cases, &error);
    fuzz_must(status == ET_OK || (status == ET_INVALID && !strncmp(error.text, path, strlen(path))),
              "a case file is read, or refused with its path");
    fuzz_must(status == ET_OK || !strpbrk(error.text, "\n\x1b"), "a refusal is one line");
    fuzz_must((status == ET_OK) == (cases.count > 0), "a file that is read has cases, and no other");
    for (int i = 0; i < cases.count && i < 16; i++)
        ask(&cases.at[i]);
    et_cases_free(&cases);
    return 0;
}
