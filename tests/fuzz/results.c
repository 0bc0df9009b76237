/* A results file, and a look-up in it. */
#include "../../harness/records.h"
#include "fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct et_records records;
    struct et_error error = {.text = ""};
    const char *path = fuzz_file(bytes, n);
    enum et_status status = et_records_read(path, &records, &error);
    for (int i = 0; i < records.count; i++) {
        const int first = et_records_find(&records, records.at[i].id);
        fuzz_must(first >= 0 && first <= i && !strcmp(records.at[first].id, records.at[i].id),
                  "a run that was read is found");
    }
    if (status == ET_OK)
        status = et_records_whole(path, &records, &error);
    fuzz_must(status == ET_OK || (status == ET_INVALID && !strncmp(error.text, path, strlen(path))),
              "results are read, or refused with their path");
    et_records_free(&records);
    return 0;
}
