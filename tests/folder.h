/* A temporary folder of a test's own, as its working directory. */
#ifndef ET_TESTS_FOLDER_H
#define ET_TESTS_FOLDER_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* mkdtemp: the including file defines _XOPEN_SOURCE 700 or _GNU_SOURCE. */
static inline void enter_temporary_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    char folder[256];
    snprintf(folder, sizeof folder, "%s/etalon-test-XXXXXX", tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
}

static inline void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

static inline void read_text(const char *path, char *text, size_t most)
{
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    text[fread(text, 1, most - 1, file)] = '\0';
    fclose(file);
}

#endif
