#include "npy.h"

#include <inttypes.h>
#include <string.h>

enum { PREFIX = 8, HEADER_MOST = 1 << 16 };

static const struct {
    const char *descr;
    enum et_npy_kind kind;
    size_t bytes;
} kinds[] = {
    {"<f8", ET_NPY_F64, 8},    {"<f4", ET_NPY_F32, 4},    {"<f2", ET_NPY_F16, 2},    {"<i4", ET_NPY_I32, 4},
    {"<u2", ET_NPY_BITS16, 2}, {"<V2", ET_NPY_BITS16, 2}, {"|V2", ET_NPY_BITS16, 2},
};

/* What is left of the header. */
struct cursor {
    const char *at, *end;
};

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t'))
        c->at++;
}

/* Whether the next thing is this word, which is then behind. */
static bool takes(struct cursor *c, const char *word)
{
    const size_t n = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        return false;
    c->at += n;
    return true;
}

/* A string in either quotes, without escapes. */
static bool take_string(struct cursor *c, char text[16])
{
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
        return false;
    const char quote = *c->at++;
    size_t n = 0;
    while (c->at < c->end && *c->at != quote && *c->at != '\\' && n < 15)
        text[n++] = *c->at++;
    text[n] = '\0';
    return c->at < c->end && *c->at++ == quote;
}

static bool take_size(struct cursor *c, int64_t *size)
{
    skip_space(c);
    const char *from = c->at;
    *size = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (__builtin_mul_overflow(*size, 10, size) || __builtin_add_overflow(*size, *c->at - '0', size))
            return false;
    return c->at > from;
}

/* (), (3,), (3, 4) or (3, 4,) */
static bool take_shape(struct cursor *c, struct et_npy *npy)
{
    npy->rank = 0;
    if (!takes(c, "("))
        return false;
    while (!takes(c, ")")) {
        if (npy->rank == ET_RANK || !take_size(c, &npy->size[npy->rank++]))
            return false;
        if (!takes(c, ",") && (npy->rank == 1 || c->at == c->end || *c->at != ')'))
            return false;
    }
    return true;
}

struct header {
    char descr[16];
    bool fortran;
    bool has_descr, has_order, has_shape;
};

/* One entry of the dictionary; false where it is none, or one that was there. */
static bool take_entry(struct cursor *c, struct header *header, struct et_npy *npy)
{
    char key[16];
    if (!take_string(c, key) || !takes(c, ":"))
        return false;
    bool *has = !strcmp(key, "descr")           ? &header->has_descr
                : !strcmp(key, "fortran_order") ? &header->has_order
                : !strcmp(key, "shape")         ? &header->has_shape
                                                : NULL;
    if (!has || *has)
        return false;
    *has = true;
    if (has == &header->has_descr)
        return take_string(c, header->descr);
    if (has == &header->has_shape)
        return take_shape(c, npy);
    header->fortran = takes(c, "True");
    return header->fortran || takes(c, "False");
}

static bool take_header(struct cursor *c, struct header *header, struct et_npy *npy)
{
    if (!takes(c, "{"))
        return false;
    while (!takes(c, "}")) {
        if (!take_entry(c, header, npy))
            return false;
        if (!takes(c, ",") && (c->at == c->end || *c->at != '}'))
            return false;
    }
    skip_space(c);
    return c->at == c->end && header->has_descr && header->has_order && header->has_shape;
}

/* Where the header lies in the file. */
static enum et_status find_header(const char *path, const char *bytes, size_t n, struct cursor *c,
                                  struct et_error *error)
{
    if (n < PREFIX + 2 || memcmp(bytes, "\x93NUMPY", 6) != 0)
        return et_fail(error, ET_INVALID, "%s does not begin as an .npy file does", path);
    const unsigned char *u = (const unsigned char *)bytes;
    const size_t width = u[6] == 1 ? 2 : 4;
    if (u[6] < 1 || u[6] > 3 || u[7] != 0)
        return et_fail(error, ET_INVALID, "%s has version %d.%d of the format, not 1.0, 2.0 or 3.0", path,
                       u[6], u[7]);
    size_t length = 0;
    if (n < PREFIX + width)
        return et_fail(error, ET_INVALID, "%s has %zu bytes: too few for an .npy file", path, n);
    for (size_t i = width; i-- > 0;)
        length = length << 8 | u[PREFIX + i];
    if (length > n - PREFIX - width)
        return et_fail(error, ET_INVALID, "%s: its header has %zu bytes, the file has %zu after that number",
                       path, length, n - PREFIX - width);
    if (length > HEADER_MOST)
        return et_fail(error, ET_INVALID, "%s: its header has %zu bytes, at most %d are allowed", path,
                       length, HEADER_MOST);
    *c = (struct cursor){bytes + PREFIX + width, bytes + PREFIX + width + length};
    return ET_OK;
}

enum et_status et_npy_read(const char *path, const char *bytes, size_t n, struct et_npy *npy,
                           struct et_error *error)
{
    struct cursor c = {NULL, NULL};
    struct header header = {.fortran = false};
    *npy = (struct et_npy){.rank = 0};
    const enum et_status status = find_header(path, bytes, n, &c, error);
    if (status != ET_OK)
        return status;
    npy->data = c.end;
    if (!take_header(&c, &header, npy))
        return et_fail(
            error, ET_INVALID,
            "%s: its header is not {'descr': ..., 'fortran_order': ..., 'shape': ...} of at most %d "
            "dimensions",
            path, ET_RANK);
    size_t k = 0;
    while (k < sizeof kinds / sizeof *kinds && strcmp(kinds[k].descr, header.descr) != 0)
        k++;
    if (k == sizeof kinds / sizeof *kinds)
        return et_fail(error, ET_INVALID, "%s has elements \"%s\", not <f8, <f4, <f2, <i4, <u2 or V2", path,
                       strspn(header.descr, "<>=|abcdefgiuVOSUmM0123456789") == strlen(header.descr)
                           ? header.descr
                           : "?");
    if (header.fortran)
        return et_fail(error, ET_INVALID, "%s is in Fortran order; store it in C order", path);
    npy->kind = kinds[k].kind;
    npy->count = 1;
    bool fits = true;
    for (int i = 0; i < npy->rank; i++)
        fits = fits && !__builtin_mul_overflow(npy->count, npy->size[i], &npy->count);
    const size_t left = n - (size_t)(npy->data - bytes);
    if (!fits || (uint64_t)npy->count > left / kinds[k].bytes || (size_t)npy->count * kinds[k].bytes != left)
        return et_fail(error, ET_INVALID, "%s has %zu bytes of data, which is not what its shape takes", path,
                       left);
    return ET_OK;
}

double et_npy_value(const struct et_npy *npy, int64_t i)
{
    double wide;
    float single;
    int32_t whole;
    switch (npy->kind) {
    case ET_NPY_F64:
        memcpy(&wide, npy->data + 8 * i, sizeof wide);
        return wide;
    case ET_NPY_F32:
        memcpy(&single, npy->data + 4 * i, sizeof single);
        return (double)single;
    case ET_NPY_I32:
        memcpy(&whole, npy->data + 4 * i, sizeof whole);
        return (double)whole;
    default:
        return (double)et_widen(ET_F16, et_npy_bits(npy, i));
    }
}

uint32_t et_npy_bits(const struct et_npy *npy, int64_t i)
{
    uint16_t bits;
    memcpy(&bits, npy->data + 2 * i, sizeof bits);
    return bits;
}

void et_npy_add_header(struct et_text *text, int rank, const int64_t *size)
{
    enum { ALIGNED = 64 };
    struct et_text header = {0};
    et_text_add(&header, "{'descr': '<f8', 'fortran_order': False, 'shape': (");
    for (int i = 0; i < rank; i++)
        et_text_add(&header, "%s%" PRId64 "%s", i ? " " : "", size[i], i + 1 < rank || rank == 1 ? "," : "");
    et_text_add(&header, "), }");
    const size_t used = PREFIX + 2 + header.length + 1;
    et_text_add(&header, "%*s\n", (int)((ALIGNED - used % ALIGNED) % ALIGNED), "");
    const char prefix[] = {
        '\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, (char)(header.length & 0xff), (char)(header.length >> 8)};
    et_text_bytes(text, prefix, sizeof prefix);
    if (header.failed)
        text->failed = true;
    else
        et_text_bytes(text, header.data, header.length);
    et_text_free(&header);
}
