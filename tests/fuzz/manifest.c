/* The manifest of a dump, as check reads it. */
#include "../../harness/dump.c"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct et_dump dump = {.count = 0};
    struct et_json json = {0};
    struct et_error error;
    if (et_json_parse("manifest.json", (const char *)bytes, n, &json, &error) == ET_OK &&
        read_manifest(&json, &dump, &error) == ET_OK) {
        fuzz_must(dump.count > 0, "a manifest has runs");
        for (int i = 0; i < dump.count; i++) {
            fuzz_must(dump.at[i].folder >= 0 && dump.at[i].folder <= RUNS_MOST, "a folder is a number");
            fuzz_must(et_dump_find(&dump, dump.at[i].id) != NULL, "a run is found by its id");
            for (int k = 0; k < dump.at[i].step_count; k++)
                fuzz_must(!et_claim_is_open(&dump.at[i].claims[k]), "a claim names its order");
        }
    }
    et_dump_free(&dump);
    et_json_free(&json);
    return 0;
}
