/* What the judge says to a worker; and, of the bytes after the first newline, the job that it names. */
#define _GNU_SOURCE

#include "../../harness/worker.c"

#include <stdio.h>
#include <sys/stat.h>

#include "../../ocl/ocl.h"
#include "fuzz.h"

static char folder[] = "/tmp/etalon-fuzz-XXXXXX";

static void remove_folder(void)
{
    et_remove_folder(folder);
}

/* A folder to stand in, where job/job.json is the input's, and the tensors are those of the corpus's first
 * job. */
static void enter_folder(const char *job)
{
    static bool entered;
    struct et_file_tensor tensors[] = {{.name = "w", .rank = 3, .size = {2, 4, 4}},
                                       {.name = "v", .rank = 3, .size = {1, 1, 1}}};
    void *map = NULL;
    size_t bytes = 0;
    if (entered)
        return;
    entered = mkdtemp(folder) && atexit(remove_folder) == 0 && chdir(folder) == 0 &&
              mkdir("job", 0700) == 0 && symlink(job, "job/job.json") == 0;
    fuzz_must(entered && et_tensors_create("job/0.safetensors", tensors, 2, &map, &bytes, NULL) == ET_OK,
              "a folder of its own");
    et_unmap(map, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const struct et_device device;
    struct work work = {.port = &et_ocl, .device = &device};
    struct et_text line = {0};
    struct et_error error;
    const uint8_t *newline = n ? memchr(bytes, '\n', n) : NULL;
    const size_t length = newline ? (size_t)(newline - bytes) : n;
    enter_folder(fuzz_file(newline ? newline + 1 : bytes, newline ? n - length - 1 : 0));
    et_text_bytes(&line, (const char *)bytes, length);
    enum et_status status = read_request(&work, &line, &error);
    if (status == ET_OK && work.repeats < 8)
        resolve(&work, &error);
    free_work(&work);
    et_text_free(&line);
    return 0;
}
