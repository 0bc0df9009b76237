/* The one allocator of ocl/ and harness/: every failure is a sentence, and any can be made to happen. */
#ifndef ET_OCL_MEMORY_H
#define ET_OCL_MEMORY_H

#include <stdarg.h>
#include <stddef.h>

#include "../ref/etalon.h"

/*
 * count * size zeroed bytes (never NULL for 0), or NULL with the sentence in error (which may be NULL). Free
 * with et_free.
 */
void *et_alloc(size_t count, size_t size, struct et_error *error);
/* Resizes to count * size bytes, keeping what fits; on failure returns NULL and leaves p as it was. */
void *et_resize(void *p, size_t count, size_t size, struct et_error *error);
void et_free(void *p);

/* Owned strings. NULL with the sentence in error on failure. */
char *et_strdup(const char *text, struct et_error *error);
char *et_print(struct et_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A growing text. After a failed allocation `failed` is set and further additions do nothing. */
struct et_text {
    char *data; /* NUL-terminated, or NULL while empty */
    size_t length, capacity;
    bool failed;
};

void et_text_add(struct et_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void et_text_bytes(struct et_text *text, const char *bytes, size_t n);
void et_text_free(struct et_text *text);
/*
 * Adds all that a file holds, at most `most` bytes. ET_LACKING: there is no such file. ET_INVALID: it cannot
 * be read, or holds more; what was added stays. Errors begin with the path. A pipe is waited for: it is what
 * a user named.
 */
enum et_status et_text_file(struct et_text *text, const char *path, size_t most, struct et_error *error);
/* The same of a file in a folder that others made. ET_INVALID where something other than a file is there. */
enum et_status et_text_regular(struct et_text *text, const char *path, size_t most, struct et_error *error);

#endif
