/* Runs a target over files and the files of folders. Options, which are libFuzzer's, are passed over. */
#define _POSIX_C_SOURCE 200809L

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../ocl/memory.h"
#include "fuzz.h"

static void run_file(const char *path)
{
    struct et_text text = {0};
    struct et_error error;
    if (et_text_file(&text, path, 1 << 26, &error) != ET_OK) {
        fprintf(stderr, "%s\n", error.text);
        exit(EXIT_FAILURE);
    }
    /* Of exactly its size, so that a sanitizer sees a read beyond. */
    uint8_t *bytes = malloc(text.length ? text.length : 1);
    if (bytes && text.length)
        memcpy(bytes, text.data, text.length);
    if (bytes)
        LLVMFuzzerTestOneInput(bytes, text.length);
    free(bytes);
    et_text_free(&text);
}

static int run_folder(const char *path)
{
    struct dirent **entries = NULL;
    const int n = scandir(path, &entries, NULL, alphasort);
    int run = 0;
    for (int i = 0; i < n; i++) {
        char *file = entries[i]->d_name[0] == '.' ? NULL : et_print(NULL, "%s/%s", path, entries[i]->d_name);
        if (file) {
            run_file(file);
            run++;
        }
        et_free(file);
        free(entries[i]);
    }
    free(entries);
    return run;
}

int main(int argc, char **argv)
{
    int run = 0;
    for (int i = 1; i < argc; i++)
        if (argv[i][0] != '-')
            run += run_folder(argv[i]);
    printf("%d inputs\n", run);
    return run > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
