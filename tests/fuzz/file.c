#define _GNU_SOURCE /* memfd_create */

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

void fuzz_must(int held, const char *what)
{
    if (held)
        return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

const char *fuzz_file(const uint8_t *bytes, size_t n)
{
    static char path[40];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    fuzz_must(fd >= 0 && ftruncate(fd, 0) == 0 && (n == 0 || pwrite(fd, bytes, n, 0) == (ssize_t)n),
              "a file in memory");
    return path;
}
