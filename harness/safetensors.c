#define _POSIX_C_SOURCE 200809L

#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "json.h"

enum { LENGTH_BYTES = 8, HEADER_MOST = 100000000 /* the format's own limit */ };

/* Every type of the format, so that a file may hold tensors that nobody asks for. */
static const struct {
    const char *name;
    int64_t bits;
    enum et_dtype dtype;
} types[] = {
    {"F32", 32, ET_F32},
    {"F16", 16, ET_F16},
    {"BF16", 16, ET_BF16},
    {"F8_E4M3", 8, ET_F8E4M3FN},
    {"F8_E4M3FNUZ", 8, ET_F8E4M3FNUZ},
    {"BOOL", 8, ET_DTYPES},
    {"F4", 4, ET_DTYPES},
    {"F6_E2M3", 6, ET_DTYPES},
    {"F6_E3M2", 6, ET_DTYPES},
    {"U8", 8, ET_U8},
    {"I8", 8, ET_I8},
    {"F8_E5M2", 8, ET_DTYPES},
    {"F8_E5M2FNUZ", 8, ET_DTYPES},
    {"F8_E8M0", 8, ET_DTYPES},
    {"I16", 16, ET_DTYPES},
    {"U16", 16, ET_DTYPES},
    {"I32", 32, ET_DTYPES},
    {"U32", 32, ET_DTYPES},
    {"I64", 64, ET_DTYPES},
    {"U64", 64, ET_DTYPES},
    {"F64", 64, ET_DTYPES},
    {"C64", 64, ET_DTYPES},
};
enum { TYPES = sizeof types / sizeof *types };

static int type_named(const char *name)
{
    for (int i = 0; i < TYPES; i++)
        if (strcmp(types[i].name, name) == 0)
            return i;
    return -1;
}

static const char *type_name(enum et_dtype dtype)
{
    int i = 0;
    while (types[i].dtype != dtype)
        i++;
    return types[i].name;
}

/* Bytes of a shape; false where bits do not fill bytes or leave int64_t. */
static bool shape_bytes(int rank, const int64_t *size, int64_t bits, size_t *bytes)
{
    int64_t n = bits;
    bool empty = false;
    for (int k = 0; k < rank; k++) {
        empty = empty || size[k] == 0;
        if (size[k] > 0 && __builtin_mul_overflow(n, size[k], &n))
            return false;
    }
    *bytes = empty ? 0 : (size_t)(n / 8);
    return empty || n % 8 == 0;
}

/* ---- Writing ---- */

/* Lays the tensors out, widest type first, and describes them; *end gets the bytes of all data. */
static enum et_status make_header(struct et_file_tensor *tensors, int n, struct et_text *header, size_t *end,
                                  struct et_error *error)
{
    *end = 0;
    et_text_add(header, "{");
    for (size_t width = sizeof(float); width > 0; width /= 2) {
        for (int i = 0; i < n; i++) {
            struct et_file_tensor *t = &tensors[i];
            if (et_format(t->dtype)->bytes != width)
                continue;
            if (!shape_bytes(t->rank, t->size, (int64_t)width * 8, &t->bytes) ||
                t->bytes > PTRDIFF_MAX - *end)
                return et_fail(error, ET_FAILED, "tensor %s does not fit in a file", t->name);
            et_text_add(header, "%s", header->length > 1 ? "," : "");
            et_json_add_string(header, t->name);
            et_text_add(header, ":{\"dtype\":\"%s\",\"shape\":[", type_name(t->dtype));
            for (int k = 0; k < t->rank; k++)
                et_text_add(header, "%s%" PRId64, k > 0 ? "," : "", t->size[k]);
            et_text_add(header, "],\"data_offsets\":[%zu,%zu]}", *end, *end + t->bytes);
            *end += t->bytes;
        }
    }
    et_text_add(header, "}");
    /* The data begin aligned to 8. */
    et_text_add(header, "%*s", (int)(-header->length % LENGTH_BYTES), "");
    return header->failed ? et_fail(error, ET_FAILED, "out of memory for the header of %d tensors", n)
                          : ET_OK;
}

/* posix_fallocate: a full disk is an error here, and not a SIGBUS at the first write. */
static enum et_status map_new(const char *path, size_t bytes, void **map, struct et_error *error)
{
    if (unlink(path) != 0 && errno != ENOENT)
        return et_fail(error, ET_FAILED, "%s cannot be replaced: %s", path, strerror(errno));
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return et_fail(error, ET_FAILED, "%s cannot be created: %s", path, strerror(errno));
    /* Not left to fallocate alone: some file systems fill up before it fails. */
    struct statvfs fs;
    if (fstatvfs(fd, &fs) == 0 && bytes / fs.f_frsize >= fs.f_bavail) {
        close(fd);
        unlink(path);
        return et_fail(error, ET_FAILED, "%s of %zu bytes cannot be made: its file system has %.0f free",
                       path, bytes, (double)fs.f_bavail * (double)fs.f_frsize);
    }
    int code;
    do
        code = posix_fallocate(fd, 0, (off_t)bytes);
    while (code == EINTR);
    if (code == 0) {
        *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        code = *map == MAP_FAILED ? errno : 0;
    }
    close(fd);
    if (code == 0)
        return ET_OK;
    *map = NULL;
    unlink(path);
    return et_fail(error, ET_FAILED, "%s of %zu bytes cannot be made: %s", path, bytes, strerror(code));
}

static void write_header(char *map, const struct et_text *header)
{
    for (size_t i = 0; i < LENGTH_BYTES; i++)
        map[i] = (char)(header->length >> 8 * i & 0xff);
    memcpy(map + LENGTH_BYTES, header->data, header->length);
}

static void point_into(char *data, struct et_file_tensor *tensors, int n)
{
    for (size_t width = sizeof(float); width > 0; width /= 2) {
        for (int i = 0; i < n; i++) {
            if (et_format(tensors[i].dtype)->bytes != width)
                continue;
            tensors[i].data = data;
            data += tensors[i].bytes;
        }
    }
}

enum et_status et_tensors_create(const char *path, struct et_file_tensor *tensors, int n, void **map,
                                 size_t *bytes, struct et_error *error)
{
    struct et_text header = {0};
    size_t end = 0;
    *map = NULL;
    *bytes = 0;
    enum et_status status = make_header(tensors, n, &header, &end, error);
    const size_t total = LENGTH_BYTES + header.length + end;
    if (status == ET_OK)
        status = map_new(path, total, map, error);
    if (status == ET_OK) {
        write_header(*map, &header);
        point_into((char *)*map + LENGTH_BYTES + header.length, tensors, n);
        *bytes = total;
    }
    et_text_free(&header);
    return status;
}

/* ---- Reading ---- */

static enum et_status open_old(const char *path, int *fd, size_t *bytes, struct et_error *error)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return et_fail(error, ET_INVALID, "%s cannot be opened: %s", path, strerror(errno));
    struct stat st = {0};
    enum et_status status = ET_OK;
    if (fstat(*fd, &st) != 0 || !S_ISREG(st.st_mode))
        status = et_fail(error, ET_INVALID, "%s is not a file", path);
    else if (st.st_size < LENGTH_BYTES)
        status = et_fail(error, ET_INVALID, "%s has %lld bytes: too few for a safetensors file", path,
                         (long long)st.st_size);
    *bytes = (size_t)st.st_size;
    if (status != ET_OK)
        close(*fd);
    return status;
}

/* first: the file's first LENGTH_BYTES; bytes: all that it has. */
static enum et_status header_length(const char *path, const unsigned char *first, size_t bytes,
                                    size_t *length, struct et_error *error)
{
    uint64_t n = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        n = n << 8 | first[i];
    if (n > bytes - LENGTH_BYTES)
        return et_fail(error, ET_INVALID,
                       "%s: its header has %" PRIu64 " bytes, the file has %zu after that number", path, n,
                       bytes - LENGTH_BYTES);
    if (n > HEADER_MOST)
        return et_fail(error, ET_INVALID, "%s: its header has %" PRIu64 " bytes, the format allows %d", path,
                       n, HEADER_MOST);
    *length = (size_t)n;
    return ET_OK;
}

static enum et_status map_file(const char *path, int fd, struct et_tensors *tensors, struct et_error *error)
{
    void *map = mmap(NULL, tensors->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return et_fail(error, ET_FAILED, "%s cannot be mapped: %s", path, strerror(errno));
    tensors->map = map;
    return ET_OK;
}

/* The first n bytes. */
static enum et_status read_bytes(const char *path, int fd, void *dst, size_t n, struct et_error *error)
{
    size_t at = 0;
    ssize_t got = 1;
    while (at < n && (got > 0 || (got < 0 && errno == EINTR))) {
        got = pread(fd, (char *)dst + at, n - at, (off_t)at);
        at += got > 0 ? (size_t)got : 0;
    }
    if (got < 0)
        return et_fail(error, ET_INVALID, "%s cannot be read: %s", path, strerror(errno));
    return at == n ? ET_OK
                   : et_fail(error, ET_INVALID, "%s was cut to %zu bytes while it was read", path, at);
}

static enum et_status read_file(const char *path, int fd, size_t most, struct et_tensors *tensors,
                                struct et_error *error)
{
    unsigned char first[LENGTH_BYTES];
    size_t length = 0;
    enum et_status status = read_bytes(path, fd, first, sizeof first, error);
    if (status == ET_OK)
        status = header_length(path, first, tensors->bytes, &length, error);
    const size_t data = tensors->bytes - LENGTH_BYTES - length;
    if (status == ET_OK && data > most)
        status = et_fail(error, ET_INVALID, "%s has %zu bytes of data, at most %zu are expected", path, data,
                         most);
    if (status != ET_OK)
        return status;
    tensors->read = true;
    tensors->map = et_alloc(tensors->bytes, 1, error);
    return tensors->map ? read_bytes(path, fd, tensors->map, tensors->bytes, error) : ET_FAILED;
}

static enum et_status read_shape(const struct et_json *json, const cJSON *node, struct et_file_tensor *tensor,
                                 struct et_error *error)
{
    enum et_status status = et_json_array(json, node, "shape", error);
    const cJSON *size;
    for (size = status == ET_OK ? node->child : NULL; size && status == ET_OK; size = size->next) {
        if (tensor->rank == ET_RANK)
            return et_json_fail(json, node, error, "%s has more than %d dimensions", tensor->name, ET_RANK);
        status = et_json_int(json, size, "a size", 0, INT64_C(1) << 52, &tensor->size[tensor->rank++], error);
    }
    return status;
}

static enum et_status read_offsets(const struct et_json *json, const cJSON *node, int64_t most,
                                   int64_t *begin, int64_t *end, struct et_error *error)
{
    enum et_status status = et_json_array(json, node, "data_offsets", error);
    if (status == ET_OK && cJSON_GetArraySize(node) != 2)
        return et_json_fail(json, node, error, "data_offsets has %d entries, not 2",
                            cJSON_GetArraySize(node));
    if (status == ET_OK)
        status = et_json_int(json, node->child, "data_offsets", 0, most, begin, error);
    if (status == ET_OK)
        status = et_json_int(json, node->child->next, "data_offsets", *begin, most, end, error);
    return status;
}

static enum et_status read_type(const struct et_json *json, const cJSON *node, struct et_file_tensor *tensor,
                                int64_t *bits, struct et_error *error)
{
    const char *name = NULL;
    const enum et_status status = et_json_string(json, node, "dtype", &name, error);
    if (status != ET_OK)
        return status;
    const int type = type_named(name);
    if (type < 0)
        return et_json_fail(json, node, error, "%s is no dtype of the format", name);
    tensor->dtype = types[type].dtype;
    *bits = types[type].bits;
    return ET_OK;
}

/* data has `most` bytes. */
static enum et_status read_tensor(const struct et_json *json, const cJSON *node, char *data, size_t most,
                                  struct et_file_tensor *tensor, struct et_error *error)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets", NULL};
    enum et_status status = et_json_exact(json, node, tensor->name, keys, error);
    int64_t bits = 0, begin = 0, end = 0;
    if (status == ET_OK)
        status = read_type(json, et_json_get(node, "dtype"), tensor, &bits, error);
    if (status == ET_OK)
        status = read_shape(json, et_json_get(node, "shape"), tensor, error);
    const cJSON *offsets = et_json_get(node, "data_offsets");
    if (status == ET_OK)
        status = read_offsets(json, offsets, (int64_t)most, &begin, &end, error);
    if (status != ET_OK)
        return status;

    if (!shape_bytes(tensor->rank, tensor->size, bits, &tensor->bytes) ||
        (size_t)(end - begin) != tensor->bytes)
        return et_json_fail(json, offsets, error,
                            "%s has %" PRId64 " bytes, which is not what its shape and dtype take",
                            tensor->name, end - begin);
    tensor->data = data + begin;
    if (tensor->dtype != ET_DTYPES && tensor->bytes > 0 &&
        (uintptr_t)tensor->data % et_format(tensor->dtype)->bytes != 0)
        return et_json_fail(json, offsets, error, "%s is not aligned to its type", tensor->name);
    return ET_OK;
}

static enum et_status check_metadata(const struct et_json *json, const cJSON *node, struct et_error *error)
{
    const char *value;
    enum et_status status = et_json_object(json, node, "__metadata__", error);
    for (const cJSON *child = node->child; child && status == ET_OK; child = child->next)
        status = et_json_string(json, child, child->string, &value, error);
    return status;
}

static int by_place(const void *a, const void *b)
{
    const struct et_file_tensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The data are covered once and without holes. */
static enum et_status check_cover(const char *path, const struct et_tensors *tensors, const char *data,
                                  size_t bytes, struct et_error *error)
{
    size_t at = 0;
    for (int i = 0; i < tensors->count; i++) {
        const size_t begin = (size_t)((const char *)tensors->at[i].data - data);
        if (begin != at)
            return et_fail(error, ET_INVALID,
                           "%s: %s begins at byte %zu of the data, the one before ends at %zu", path,
                           tensors->at[i].name, begin, at);
        at += tensors->at[i].bytes;
    }
    if (at != bytes)
        return et_fail(error, ET_INVALID, "%s: the tensors end at byte %zu of the data, which has %zu", path,
                       at, bytes);
    return ET_OK;
}

static enum et_status read_tensors(const struct et_json *json, char *data, size_t bytes,
                                   struct et_tensors *tensors, struct et_error *error)
{
    size_t name_bytes = 0;
    for (const cJSON *node = json->root->child; node; node = node->next)
        name_bytes += strlen(node->string) + 1;
    tensors->at = et_alloc((size_t)cJSON_GetArraySize(json->root), sizeof *tensors->at, error);
    tensors->names = et_alloc(name_bytes, 1, error);
    if (!tensors->at || !tensors->names)
        return ET_FAILED;

    enum et_status status = ET_OK;
    char *name = tensors->names;
    for (const cJSON *node = json->root->child; node && status == ET_OK; node = node->next) {
        if (strcmp(node->string, "__metadata__") == 0) {
            status = check_metadata(json, node, error);
            continue;
        }
        struct et_file_tensor *tensor = &tensors->at[tensors->count++];
        tensor->name = strcpy(name, node->string);
        name += strlen(name) + 1;
        status = read_tensor(json, node, data, bytes, tensor, error);
    }
    if (status != ET_OK)
        return status;
    qsort(tensors->at, (size_t)tensors->count, sizeof *tensors->at, by_place);
    return check_cover(json->file, tensors, data, bytes, error);
}

static enum et_status parse_file(const char *path, struct et_tensors *tensors, struct et_error *error)
{
    struct et_json json = {0};
    size_t length = 0;
    char *const bytes = tensors->map;
    enum et_status status = header_length(path, tensors->map, tensors->bytes, &length, error);
    if (status == ET_OK && (length == 0 || bytes[LENGTH_BYTES] != '{'))
        status = et_fail(error, ET_INVALID, "%s: its header does not begin with {", path);
    if (status == ET_OK)
        status = et_json_parse(path, bytes + LENGTH_BYTES, length, &json, error);
    if (status == ET_OK)
        status = read_tensors(&json, bytes + LENGTH_BYTES + length, tensors->bytes - LENGTH_BYTES - length,
                              tensors, error);
    et_json_free(&json);
    return status;
}

/* most: of data, to read; NULL: map. */
static enum et_status open_tensors(const char *path, const size_t *most, struct et_tensors *tensors,
                                   struct et_error *error)
{
    int fd = -1;
    *tensors = (struct et_tensors){0};
    enum et_status status = open_old(path, &fd, &tensors->bytes, error);
    if (status != ET_OK)
        return status;
    status = most ? read_file(path, fd, *most, tensors, error) : map_file(path, fd, tensors, error);
    close(fd);
    if (status == ET_OK)
        status = parse_file(path, tensors, error);
    if (status != ET_OK)
        et_tensors_close(tensors);
    return status;
}

enum et_status et_tensors_open(const char *path, struct et_tensors *tensors, struct et_error *error)
{
    return open_tensors(path, NULL, tensors, error);
}

enum et_status et_tensors_read(const char *path, size_t most, struct et_tensors *tensors,
                               struct et_error *error)
{
    return open_tensors(path, &most, tensors, error);
}

void et_tensors_close(struct et_tensors *tensors)
{
    if (tensors->read)
        et_free(tensors->map);
    else
        et_unmap(tensors->map, tensors->bytes);
    et_free(tensors->at);
    et_free(tensors->names);
    *tensors = (struct et_tensors){0};
}

const struct et_file_tensor *et_tensors_find(const struct et_tensors *tensors, const char *name)
{
    for (int i = 0; i < tensors->count; i++)
        if (strcmp(tensors->at[i].name, name) == 0)
            return &tensors->at[i];
    return NULL;
}

void et_unmap(void *map, size_t bytes)
{
    if (map)
        munmap(map, bytes);
}
