/*
 * What the targets share. Each is one LLVMFuzzerTestOneInput: with -Dfuzz=true and clang a libFuzzer program,
 * else a program of main.c that runs it over files.
 */
#ifndef ET_TESTS_FUZZ_H
#define ET_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* A file in memory with these bytes, the same one each time, by its path. Ends the program where there is
 * none. */
const char *fuzz_file(const uint8_t *bytes, size_t n);
/* Ends the program where a reader broke its word. */
void fuzz_must(int held, const char *what);

#endif
