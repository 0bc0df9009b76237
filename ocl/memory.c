#define _POSIX_C_SOURCE 200809L

#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void out_of_memory(struct et_error *error, size_t count, size_t size)
{
    et_fail(error, ET_FAILED, "out of memory: %zu x %zu bytes", count, size);
}

/* count * size, at least 1; 0 where it is too large to say. */
static size_t product(size_t count, size_t size)
{
    if (count == 0 || size == 0)
        return 1;
    return count <= SIZE_MAX / size ? count * size : 0;
}

void *et_alloc(size_t count, size_t size, struct et_error *error)
{
    const size_t bytes = product(count, size);
    void *p = bytes > 0 ? calloc(bytes, 1) : NULL;
    if (!p)
        out_of_memory(error, count, size);
    return p;
}

void *et_resize(void *p, size_t count, size_t size, struct et_error *error)
{
    const size_t bytes = product(count, size);
    void *resized = bytes > 0 ? realloc(p, bytes) : NULL;
    if (!resized)
        out_of_memory(error, count, size);
    return resized;
}

void et_free(void *p)
{
    free(p);
}

char *et_strdup(const char *text, struct et_error *error)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = et_alloc(bytes, 1, error);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

char *et_print(struct et_error *error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) {
        et_fail(error, ET_FAILED, "cannot format \"%s\"", format);
        return NULL;
    }
    char *text = et_alloc((size_t)length + 1, 1, error);
    if (!text)
        return NULL;
    va_start(args, format);
    vsnprintf(text, (size_t)length + 1, format, args);
    va_end(args);
    return text;
}

/* Room for n more bytes and the final zero. */
static bool grow(struct et_text *text, size_t n)
{
    if (text->failed || n >= SIZE_MAX / 2 - text->length) {
        text->failed = true;
        return false;
    }
    const size_t needed = text->length + n + 1;
    if (needed <= text->capacity)
        return true;
    const size_t capacity = needed < 128 ? 128 : needed + needed / 2;
    char *data = et_resize(text->data, capacity, 1, NULL);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void et_text_bytes(struct et_text *text, const char *bytes, size_t n)
{
    if (!grow(text, n))
        return;
    if (n > 0)
        memcpy(text->data + text->length, bytes, n);
    text->length += n;
    text->data[text->length] = '\0';
}

void et_text_add(struct et_text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0)
        text->failed = true;
    if (n < 0 || !grow(text, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(text->data + text->length, (size_t)n + 1, format, args);
    va_end(args);
    text->length += (size_t)n;
}

void et_text_free(struct et_text *text)
{
    et_free(text->data);
    *text = (struct et_text){0};
}

/* The errno that ended the reading, or 0. */
static int add_stream(struct et_text *text, FILE *file, size_t most)
{
    const size_t before = text->length;
    char block[1 << 14];
    size_t n;
    while (!text->failed && text->length - before <= most && (n = fread(block, 1, sizeof block, file)) > 0)
        et_text_bytes(text, block, n);
    return ferror(file) ? errno : 0;
}

/* With what is open under that path, or is not and errno says why. */
static enum et_status add_file(struct et_text *text, FILE *file, const char *path, size_t most,
                               struct et_error *error)
{
    const size_t before = text->length;
    if (!file)
        return et_fail(error, errno == ENOENT ? ET_LACKING : ET_INVALID, "%s: cannot be read: %s", path,
                       strerror(errno));
    const int code = add_stream(text, file, most);
    struct stat st = {0};
    const bool sized = fstat(fileno(file), &st) == 0 && S_ISREG(st.st_mode);
    fclose(file);
    if (code != 0)
        return et_fail(error, ET_INVALID, "%s: cannot be read: %s", path, strerror(code));
    if (text->failed)
        return et_fail(error, ET_FAILED, "%s: out of memory for its text", path);
    if (text->length - before > most && sized)
        return et_fail(error, ET_INVALID, "%s: has %lld bytes, at most %zu are read", path,
                       (long long)st.st_size, most);
    if (text->length - before > most)
        return et_fail(error, ET_INVALID, "%s: more than %zu bytes", path, most);
    return ET_OK;
}

enum et_status et_text_file(struct et_text *text, const char *path, size_t most, struct et_error *error)
{
    return add_file(text, fopen(path, "rb"), path, most, error);
}

enum et_status et_text_regular(struct et_text *text, const char *path, size_t most, struct et_error *error)
{
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && !S_ISREG(st.st_mode)) {
        close(fd);
        return et_fail(error, ET_INVALID, "%s is not a file", path);
    }
    FILE *file = fd >= 0 ? fdopen(fd, "rb") : NULL;
    if (fd >= 0 && !file)
        close(fd);
    return add_file(text, file, path, most, error);
}
