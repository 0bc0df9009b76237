/* models.json, and a case for each of the first models. */
#include "../../harness/case.h"
#include "../../harness/json.h"
#include "../../ocl/ocl.h"
#include "fuzz.h"

#include <stdio.h>
#include <string.h>

static void use(const struct et_models *models, const char *name)
{
    struct et_text text = {0};
    struct et_cases cases = {0};
    struct et_error error;
    et_text_add(&text, "{\"format\": 1, \"operator\": \"%s\", \"cases\": [{\"name\": \"a\", \"model\": ",
                et_operators[0]->name);
    et_json_add_string(&text, name);
    et_text_add(&text, ", \"sweep\": {\"tp\": [1, 2, 3]}}]}");
    et_cases_read(fuzz_file((const uint8_t *)text.data, text.length), models, &et_ocl, &cases, &error);
    et_cases_free(&cases);
    et_text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct et_models *models = NULL;
    struct et_error error = {.text = ""};
    const char *path = fuzz_file(bytes, n), *name, *source;
    const enum et_status status = et_models_read(path, &models, &error);
    fuzz_must(status == ET_OK || (status == ET_INVALID && !strncmp(error.text, path, strlen(path))),
              "models are read, or refused with their path");
    for (int i = 0; status == ET_OK && i < 4 && et_models_entry(models, i, &name, &source); i++)
        use(models, name);
    et_models_free(models);
    return 0;
}
