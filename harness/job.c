#define _XOPEN_SOURCE 700

#include "job.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* In the header, so that its state needs no allocation. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "../ref/etalon_port.h"
#include "parallel.h"

enum {
    FORMAT = 1,
    ITEM = 1 << 16 /* elements a thread takes at a time */
};

/* Of the whole buffer. */
static int64_t elements_of(const struct et_tensor *tensor)
{
    return et_elements(tensor->dtype, tensor->bytes);
}

/* Of the type that its buffer is filed as. */
static int64_t places_of(const struct et_tensor *tensor)
{
    return et_elements(et_storage(tensor->dtype), tensor->bytes);
}

/* ---- Where the elements of an input come from ---- */

enum source_kind { BY_OPERATOR, ONE_VALUE, LISTED, FROM_FILE };

struct source {
    enum source_kind kind;
    struct et_fill fill;  /* BY_OPERATOR; ONE_VALUE is its value */
    const double *values; /* LISTED */
    struct et_tensors file;
    const struct et_file_tensor *from;
    bool packed;    /* the file has whole blocks of the tensor's type, as u8 */
    int64_t *first; /* as et_values_map has it; NULL: a value for each element, data or not */
    bool each;
};

static void close_source(struct source *source)
{
    et_tensors_close(&source->file);
    et_free(source->first);
    *source = (struct source){0};
}

static enum et_status map_values(const struct et_problem *problem, int t, int64_t count,
                                 struct source *source, struct et_error *error)
{
    source->first = et_alloc((size_t)et_tensor_rows(&problem->tensor[t]), sizeof *source->first, error);
    return source->first ? et_values_map(problem, t, count, source->first, &source->each, error) : ET_FAILED;
}

/* The file has all elements, or as many as a list of values may have. */
static enum et_status open_file(const struct et_data *data, const struct et_problem *problem, int t,
                                struct source *source, struct et_error *error)
{
    enum et_status status = et_tensors_open(data->file, &source->file, error);
    if (status != ET_OK)
        return status;
    source->kind = FROM_FILE;
    source->from = et_tensors_find(&source->file, data->tensor);
    if (!source->from)
        return et_fail(error, ET_INVALID, "%s has no tensor %s", data->file, data->tensor);
    if (source->from->dtype == ET_DTYPES)
        return et_fail(error, ET_INVALID, "%s: the dtype of %s is none of etalon's", data->file,
                       data->tensor);
    const int64_t count = et_elements(source->from->dtype, source->from->bytes);
    const struct et_tensor *tensor = &problem->tensor[t];
    const struct et_file_tensor *from = source->from;
    source->packed = et_is_packed_rows(from->dtype, from->rank, from->size, tensor);
    if (et_covers_whole(from->dtype, from->rank, from->size, tensor))
        return ET_OK;
    struct et_error why;
    status = map_values(problem, t, count, source, &why);
    return status == ET_OK ? ET_OK
                           : et_fail(error, ET_INVALID, "%s: %s: %s", data->file, data->tensor, why.text);
}

/* run: the run's fill, its seed included. */
static enum et_status open_source(const struct et_case *c, int step, int t, const struct et_fill *run,
                                  const struct et_problem *problem, struct source *source,
                                  struct et_error *error)
{
    const struct et_data *data = &c->steps[step].data[t];
    *source = (struct source){.kind = BY_OPERATOR, .fill = *run};
    if (!data->given)
        return ET_OK;
    switch (data->kind) {
    case ET_DATA_FILL:
        source->kind = data->fill.kind == ET_FILL_CONSTANT ? ONE_VALUE : BY_OPERATOR;
        source->fill = data->fill;
        if (!data->seeded)
            source->fill.seed = run->seed;
        break;
    case ET_DATA_VALUES:
        source->kind = LISTED;
        source->values = data->values;
        return map_values(problem, t, data->count, source, error);
    case ET_DATA_FILE:
        return open_file(data, problem, t, source, error);
    }
    return ET_OK;
}

/* ---- Inputs ---- */

/* One tensor being made. */
struct making {
    const struct et_problem *problem;
    int t;
    const struct source *source;
    int64_t rows_a_turn;
    float *values;          /* a row for each thread */
    enum et_class *classes; /* two */
};

/* A buffer being poisoned. */
struct poisoning {
    const struct et_tensor *tensor;
    enum et_poison_kind poison;
};

/* Quiet NaNs whose payload and sign follow the place, so that poison is no constant either. */
static uint32_t nan_at(enum et_dtype dtype, int64_t i)
{
    const uint32_t mixed = (uint32_t)i * UINT32_C(2654435769);
    return et_nan(dtype, mixed ^ mixed >> 16);
}

static uint32_t large(enum et_dtype dtype)
{
    const double max = et_format(dtype)->max;
    return et_narrow(dtype, max < 1e30 ? max : 1e30);
}

static void poison_part(void *context, int thread, int64_t part)
{
    (void)thread;
    const struct poisoning *p = context;
    const struct et_tensor *tensor = p->tensor;
    const enum et_dtype dtype = et_storage(tensor->dtype);
    const int64_t places = places_of(tensor);
    const int64_t end = places - part * ITEM < ITEM ? places : (part + 1) * ITEM;
    const uint32_t constant = large(dtype);
    for (int64_t i = part * ITEM; i < end; i++)
        et_store(dtype, tensor->data, i, p->poison == ET_POISON_NAN ? nan_at(dtype, i) : constant);
}

/* Element j of a row of n, which is its nth data element; values: the row, where it is the operator's. */
static uint32_t element(const struct source *source, enum et_dtype dtype, int64_t row, int64_t n, int64_t j,
                        int64_t nth, const float *values)
{
    const int64_t i = source->first ? source->first[row] + (source->each ? nth : 0) : row * n + j;
    switch (source->kind) {
    case BY_OPERATOR:
        return et_narrow(dtype, (double)values[j]);
    case ONE_VALUE:
        return et_narrow(dtype, source->fill.value);
    case LISTED:
        return et_narrow(dtype, source->values[i]);
    case FROM_FILE:
        break;
    }
    const struct et_file_tensor *from = source->from;
    if (source->packed)
        return et_load(dtype, (const char *)from->data + (size_t)row * et_bytes(dtype, n), j);
    const uint32_t bits = et_load(from->dtype, from->data, i);
    /* Bits of the same type are kept: a NaN of a file keeps its payload. */
    return from->dtype == dtype ? bits : et_narrow(dtype, (double)et_widen(from->dtype, bits));
}

static void make_row(const struct making *m, int64_t row, float *values, enum et_class *classes)
{
    const struct et_tensor *tensor = &m->problem->tensor[m->t];
    const int64_t n = tensor->size[tensor->rank - 1], stride = tensor->stride[tensor->rank - 1];
    int64_t at = et_row_at(tensor, row), nth = 0;
    et_case_classes(m->problem, m->t, row, classes, classes + n);
    if (m->source->kind == BY_OPERATOR)
        m->problem->op->fill(m->problem, &m->source->fill, m->t, row, values);
    for (int64_t j = 0; j < n; j++, at += stride) {
        if (classes[j] == ET_DATA)
            et_store(tensor->dtype, tensor->data, at,
                     element(m->source, tensor->dtype, row, n, j, nth++, values));
        else if (classes[j] == ET_ZERO)
            et_store(tensor->dtype, tensor->data, at, 0);
    }
}

static void make_rows(void *context, int thread, int64_t turn)
{
    const struct making *m = context;
    const struct et_tensor *tensor = &m->problem->tensor[m->t];
    const int64_t rows = et_tensor_rows(tensor), n = tensor->size[tensor->rank - 1];
    const int64_t end = rows - turn * m->rows_a_turn < m->rows_a_turn ? rows : (turn + 1) * m->rows_a_turn;
    for (int64_t row = turn * m->rows_a_turn; row < end; row++)
        make_row(m, row, m->values + thread * n, m->classes + 2 * thread * n);
}

static int64_t parts(int64_t n, int64_t part)
{
    return n / part + (n % part != 0);
}

/* Whole buffers, those that inputs share once. Not whole where *stop is set. */
static void poison_inputs(const struct et_problem *problem, enum et_poison_kind poison, int threads,
                          const volatile sig_atomic_t *stop)
{
    for (int t = 0; problem->op->tensors[t].name; t++) {
        struct poisoning p = {&problem->tensor[t], poison};
        if (problem->op->tensors[t].role == ET_INPUT && !p.tensor->shares)
            et_parallel(threads, parts(places_of(p.tensor), ITEM), stop, poison_part, &p);
    }
}

/* What of it is no poison. Not whole where *stop is set. */
static enum et_status make_input(const struct et_problem *problem, int t, const struct source *source,
                                 int threads, const volatile sig_atomic_t *stop, struct et_error *error)
{
    const struct et_tensor *tensor = &problem->tensor[t];
    const int64_t n = tensor->size[tensor->rank - 1];
    struct making m = {.problem = problem, .t = t, .source = source};
    m.rows_a_turn = n < ITEM ? ITEM / (n > 0 ? n : 1) : 1;
    m.values = et_alloc((size_t)n * (size_t)threads, sizeof *m.values, error);
    m.classes = m.values ? et_alloc((size_t)n * (size_t)threads, 2 * sizeof *m.classes, error) : NULL;
    const bool ready = m.classes != NULL;
    if (ready)
        et_parallel(threads, parts(et_tensor_rows(tensor), m.rows_a_turn), stop, make_rows, &m);
    et_free(m.values);
    et_free(m.classes);
    return ready ? ET_OK : ET_FAILED;
}

/* ---- Digests ---- */

struct hasher {
    XXH3_state_t state;
    _Alignas(8) unsigned char chunk[4096];
    size_t used;
};

static void hash_flush(struct hasher *hasher)
{
    XXH3_128bits_update(&hasher->state, hasher->chunk, hasher->used);
    hasher->used = 0;
}

static void hash_element(struct hasher *hasher, enum et_dtype dtype, uint32_t bits)
{
    const enum et_dtype unit = et_storage(dtype);
    const size_t bytes = et_format(unit)->bytes;
    et_store(unit, hasher->chunk, (int64_t)(hasher->used / bytes), et_canonical(dtype, bits));
    hasher->used += bytes;
    if (hasher->used == sizeof hasher->chunk)
        hash_flush(hasher);
}

/* classes: room for a row of an input; NULL where all elements count. */
static void hash_tensor(struct hasher *hasher, const struct et_problem *problem, int t, const void *data,
                        enum et_class *classes, const volatile sig_atomic_t *stop)
{
    const struct et_tensor *tensor = &problem->tensor[t];
    const int64_t rows = et_tensor_rows(tensor), n = tensor->size[tensor->rank - 1];
    for (int64_t row = 0; row < rows && !et_stopped(stop); row++) {
        int64_t at = et_row_at(tensor, row);
        if (classes)
            problem->op->classify(problem, t, row, classes);
        for (int64_t j = 0; j < n; j++, at += tensor->stride[tensor->rank - 1])
            if (!classes || classes[j] != ET_POISON)
                hash_element(hasher, tensor->dtype, et_load(tensor->dtype, data, at));
    }
    hash_flush(hasher);
}

static void write_digest(const XXH3_state_t *state, char digest[33])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    for (size_t i = 0; i < sizeof canonical.digest; i++)
        snprintf(digest + 2 * i, 3, "%02x", canonical.digest[i]);
}

enum et_status et_digest(const struct et_problem *problem, enum et_role role, const void *const *data,
                         const volatile sig_atomic_t *stop, char digest[33], struct et_error *error)
{
    const struct et_tensor_spec *specs = problem->op->tensors;
    struct hasher hasher = {.used = 0};
    XXH3_128bits_reset(&hasher.state);
    for (int t = 0; specs[t].name; t++) {
        if (specs[t].role != role)
            continue;
        const int64_t n = problem->tensor[t].size[problem->tensor[t].rank - 1];
        enum et_class *classes = role == ET_INPUT ? et_alloc((size_t)n, sizeof *classes, error) : NULL;
        if (role == ET_INPUT && !classes)
            return ET_FAILED;
        hash_tensor(&hasher, problem, t, data[t], classes, stop);
        et_free(classes);
    }
    if (et_stopped(stop))
        return et_fail(error, ET_FAILED, "interrupted while a digest was computed");
    write_digest(&hasher.state, digest);
    return ET_OK;
}

static enum et_status digest_inputs(struct et_job_step *step, const volatile sig_atomic_t *stop,
                                    struct et_error *error)
{
    const void *data[ET_TENSORS] = {NULL};
    for (int t = 0; step->problem.op->tensors[t].name; t++)
        data[t] = step->problem.tensor[t].data;
    return et_digest(&step->problem, ET_INPUT, data, stop, step->digest, error);
}

/* ---- Files of a job ---- */

/* Without padding and offset: the buffer is the normative shape. */
static bool is_packed(const struct et_tensor *tensor)
{
    struct et_tensor packed = *tensor;
    return et_tensor_pack(&packed) && packed.offset == tensor->offset && packed.bytes == tensor->bytes &&
           memcmp(packed.stride, tensor->stride, (size_t)tensor->rank * sizeof *tensor->stride) == 0;
}

static struct et_file_tensor as_filed(const char *name, const struct et_tensor *tensor)
{
    const enum et_dtype dtype = et_storage(tensor->dtype);
    struct et_file_tensor filed = {.name = name, .dtype = dtype, .rank = 1, .size = {places_of(tensor)}};
    if (is_packed(tensor)) {
        const int inner = tensor->rank - 1;
        filed.rank = tensor->rank;
        memcpy(filed.size, tensor->size, sizeof filed.size);
        filed.size[inner] = et_elements(dtype, et_bytes(tensor->dtype, tensor->size[inner]));
    }
    return filed;
}

/* Whether a file of the role's buffers has one under the name of tensor t. */
static bool is_filed(const struct et_problem *problem, enum et_role role, int t)
{
    return problem->op->tensors[t].role == role && !problem->tensor[t].shares;
}

/* Those that share a buffer find it where it is filed. */
static void share_data(const struct et_problem *problem, void **data)
{
    for (int t = 0; problem->op->tensors[t].name; t++)
        data[t] = data[et_tensor_home(problem, t)];
}

/* Creates a file for the tensors of one role; data[t] is NULL for the others. */
static enum et_status create_tensors(const char *path, const struct et_problem *problem, enum et_role role,
                                     void **data, void **map, size_t *bytes, struct et_error *error)
{
    const struct et_tensor_spec *specs = problem->op->tensors;
    struct et_file_tensor filed[ET_TENSORS];
    int n = 0;
    for (int t = 0; specs[t].name; t++)
        if (is_filed(problem, role, t))
            filed[n++] = as_filed(specs[t].name, &problem->tensor[t]);
    const enum et_status status = et_tensors_create(path, filed, n, map, bytes, error);
    for (int t = 0, i = 0; specs[t].name; t++)
        data[t] = status == ET_OK && is_filed(problem, role, t) ? filed[i++].data : NULL;
    share_data(problem, data);
    return status;
}

/* Finds in an open file the buffers of one role, and no others. */
static enum et_status find_tensors(const char *path, const struct et_tensors *file,
                                   const struct et_problem *problem, enum et_role role, void **data,
                                   struct et_error *error)
{
    const struct et_tensor_spec *specs = problem->op->tensors;
    int n = 0;
    for (int t = 0; specs[t].name; t++) {
        const struct et_tensor *tensor = &problem->tensor[t];
        data[t] = NULL;
        if (!is_filed(problem, role, t))
            continue;
        const struct et_file_tensor *found = et_tensors_find(file, specs[t].name);
        if (!found)
            return et_fail(error, ET_INVALID, "%s has no tensor %s", path, specs[t].name);
        if (found->dtype != et_storage(tensor->dtype) || found->bytes != tensor->bytes)
            return et_fail(error, ET_INVALID, "%s: %s is not %" PRId64 " elements of %s", path, specs[t].name,
                           elements_of(tensor), et_format(tensor->dtype)->name);
        data[t] = found->data;
        n++;
    }
    if (file->count != n)
        return et_fail(error, ET_INVALID, "%s has %d tensors, %s has %d", path, file->count,
                       problem->op->name, n);
    share_data(problem, data);
    return ET_OK;
}

static enum et_status write_text(const char *path, const struct et_text *text, struct et_error *error)
{
    if (unlink(path) != 0 && errno != ENOENT)
        return et_fail(error, ET_FAILED, "%s cannot be replaced: %s", path, strerror(errno));
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (fd < 0)
        return et_fail(error, ET_FAILED, "%s cannot be created: %s", path, strerror(errno));
    const char *at = text->data, *end = text->data + text->length;
    int code = 0;
    while (at < end && code == 0) {
        const ssize_t n = write(fd, at, (size_t)(end - at));
        if (n >= 0)
            at += n;
        else if (errno != EINTR)
            code = errno;
    }
    if (close(fd) != 0 && code == 0)
        code = errno;
    if (code == 0)
        return ET_OK;
    unlink(path);
    return et_fail(error, ET_FAILED, "%s cannot be written: %s", path, strerror(code));
}

/* ---- Writing ---- */

static void add_param(struct et_text *text, const struct et_field *field, const void *params)
{
    const int64_t value = field->kind == ET_REAL ? 0 : et_param_int(field, params);
    switch (field->kind) {
    case ET_INT:
        et_text_add(text, "%" PRId64, value);
        break;
    case ET_REAL:
        et_json_add_real(text, et_param_real(field, params));
        break;
    case ET_BOOL:
        et_text_add(text, "%s", value ? "true" : "false");
        break;
    case ET_NAME:
        et_json_add_string(text, field->names[value]);
        break;
    }
}

static void add_ints(struct et_text *text, const char *key, const int64_t *values, int n)
{
    et_text_add(text, ", \"%s\": [", key);
    for (int i = 0; i < n; i++)
        et_text_add(text, "%s%" PRId64, i > 0 ? ", " : "", values[i]);
    et_text_add(text, "]");
}

static void add_tensor(struct et_text *text, const struct et_problem *problem, int t)
{
    const struct et_tensor_spec *spec = &problem->op->tensors[t];
    const struct et_tensor *tensor = &problem->tensor[t];
    et_json_add_string(text, spec->name);
    et_text_add(text, ": {\"role\": \"%s\", \"dtype\": \"%s\"", spec->role == ET_INPUT ? "input" : "output",
                et_format(tensor->dtype)->name);
    add_ints(text, "size", tensor->size, tensor->rank);
    add_ints(text, "stride", tensor->stride, tensor->rank);
    et_text_add(text, ", \"offset\": %" PRId64 ", \"elements\": %" PRId64, tensor->offset,
                elements_of(tensor));
    if (tensor->shares)
        et_text_add(text, ", \"buffer\": \"%s\"", problem->op->tensors[tensor->shares - 1].name);
    et_text_add(text, "}");
}

static void add_step(struct et_text *text, const struct et_problem *problem)
{
    const struct et_operator *op = problem->op;
    et_text_add(text, "{\"params\": {");
    for (int i = 0; op->params[i].name; i++) {
        et_text_add(text, "%s", i > 0 ? ", " : "");
        et_json_add_string(text, op->params[i].name);
        et_text_add(text, ": ");
        add_param(text, &op->params[i], problem->params);
    }
    et_text_add(text, "},\n  \"tensors\": {");
    for (int t = 0; op->tensors[t].name; t++) {
        et_text_add(text, "%s", t > 0 ? ",\n    " : "\n    ");
        add_tensor(text, problem, t);
    }
    et_text_add(text, "}}");
}

static enum et_status write_description(const struct et_job *job, struct et_error *error)
{
    struct et_text text = {0};
    et_text_add(&text, "{\"format\": %d, \"operator\": ", FORMAT);
    et_json_add_string(&text, job->op->name);
    et_text_add(&text, ", \"steps\": [");
    for (int i = 0; i < job->step_count; i++) {
        et_text_add(&text, "%s", i > 0 ? ",\n " : "\n ");
        add_step(&text, &job->steps[i].problem);
    }
    et_text_add(&text, "]}\n");
    char *path = et_print(error, "%s/job.json", job->folder);
    enum et_status status = ET_FAILED;
    if (path && text.failed)
        et_fail(error, ET_FAILED, "out of memory for %s", path);
    else if (path)
        status = write_text(path, &text, error);
    et_free(path);
    et_text_free(&text);
    return status;
}

/* own: those that have a fill of the operator's own, which may read the others. */
static enum et_status make_inputs(const struct et_case *c, int i, bool own, const struct et_fill *run,
                                  int threads, const volatile sig_atomic_t *stop, struct et_job_step *step,
                                  struct et_error *error)
{
    struct et_problem *problem = &step->problem;
    enum et_status status = ET_OK;
    for (int t = 0; c->op->tensors[t].name && status == ET_OK; t++) {
        const struct et_data *data = &c->steps[i].data[t];
        if (c->op->tensors[t].role != ET_INPUT || c->layout[t].view_of || et_data_is_own(data) != own)
            continue;
        struct source source;
        status = open_source(c, i, t, run, problem, &source, error);
        if (status == ET_OK)
            status = make_input(problem, t, &source, threads, stop, error);
        if (status == ET_OK && et_stopped(stop))
            status = et_fail(error, ET_FAILED, "interrupted while inputs were made");
        close_source(&source);
    }
    return status;
}

static enum et_status protect(const char *path, void *map, size_t bytes, struct et_error *error)
{
    return chmod(path, 0444) == 0 && mprotect(map, bytes, PROT_READ) == 0
               ? ET_OK
               : et_fail(error, ET_FAILED, "%s cannot be made read-only: %s", path, strerror(errno));
}

static enum et_status write_step(const struct et_case *c, int i, const struct et_twin *twin,
                                 const struct et_fill *run, int threads, const volatile sig_atomic_t *stop,
                                 struct et_job *job, struct et_error *error)
{
    struct et_job_step *step = &job->steps[i];
    enum et_status status = et_case_problem(c, i, twin, step->params, &step->problem, error);
    if (status != ET_OK)
        return status;
    char *path = et_print(error, "%s/%d.safetensors", job->folder, i);
    void *data[ET_TENSORS];
    status = path ? create_tensors(path, &step->problem, ET_INPUT, data, &step->map, &step->map_bytes, error)
                  : ET_FAILED;
    for (int t = 0; status == ET_OK && c->op->tensors[t].name; t++)
        step->problem.tensor[t].data = data[t];
    const enum et_poison_kind poison = twin && twin->has_poison ? twin->poison : c->poison;
    if (status == ET_OK)
        poison_inputs(&step->problem, poison, threads, stop);
    for (int own = 0; own < 2 && status == ET_OK; own++)
        status = make_inputs(c, i, own, run, threads, stop, step, error);
    if (status == ET_OK)
        status = protect(path, step->map, step->map_bytes, error);
    if (status == ET_OK)
        status = digest_inputs(step, stop, error);
    if (status != ET_OK && step->map)
        unlink(path);
    et_free(path);
    return status;
}

/* An empty job of n steps. */
static enum et_status job_new(const char *folder, const struct et_operator *op, int n, struct et_job *job,
                              struct et_error *error)
{
    *job = (struct et_job){.op = op, .step_count = n};
    job->folder = et_strdup(folder, error);
    job->steps = job->folder ? et_alloc((size_t)n, sizeof *job->steps, error) : NULL;
    return job->steps ? ET_OK : ET_FAILED;
}

enum et_status et_job_write(const struct et_case *c, const struct et_twin *twin, enum et_fill_kind fill,
                            const uint64_t *seed, int threads, const volatile sig_atomic_t *stop,
                            const char *folder, struct et_job *job, struct et_error *error)
{
    const struct et_fill run = {.kind = fill, .seed = seed ? *seed : c->seed, .value = 1};
    enum et_status status = job_new(folder, c->op, c->step_count, job, error);
    for (int i = 0; i < c->step_count && status == ET_OK; i++)
        status = write_step(c, i, twin, &run, threads, stop, job, error);
    if (status == ET_OK)
        status = write_description(job, error);
    if (status != ET_OK)
        et_job_free(job);
    return status;
}

/* ---- A buffer for each tensor ---- */

static bool shares_any(const struct et_problem *problem)
{
    for (int t = 0; problem->op->tensors[t].name; t++)
        if (problem->tensor[t].shares)
            return true;
    return false;
}

static void copy_elements(const struct et_tensor *from, const struct et_tensor *to,
                          const volatile sig_atomic_t *stop)
{
    const int inner = from->rank - 1;
    const int64_t rows = et_tensor_rows(from);
    for (int64_t row = 0; row < rows && !et_stopped(stop); row++) {
        const int64_t at = et_row_at(from, row), at_to = et_row_at(to, row);
        for (int64_t j = 0; j < from->size[inner]; j++)
            et_store(to->dtype, to->data, at_to + j * to->stride[inner],
                     et_load(from->dtype, from->data, at + j * from->stride[inner]));
    }
}

/* Inputs of a step, packed, in place of those that share buffers. */
static enum et_status part_step(const struct et_job *job, int i, const volatile sig_atomic_t *stop,
                                struct et_error *error)
{
    struct et_job_step *step = &job->steps[i];
    struct et_problem apart = step->problem;
    for (int t = 0; apart.op->tensors[t].name; t++) {
        apart.tensor[t].shares = 0;
        if (apart.op->tensors[t].role == ET_INPUT && !et_tensor_pack(&apart.tensor[t]))
            return et_fail(error, ET_FAILED, "%s is too large to address", apart.op->tensors[t].name);
    }
    void *data[ET_TENSORS], *map = NULL;
    size_t bytes = 0;
    char *path = et_print(error, "%s/%d.safetensors", job->folder, i);
    enum et_status status =
        path ? create_tensors(path, &apart, ET_INPUT, data, &map, &bytes, error) : ET_FAILED;
    for (int t = 0; status == ET_OK && apart.op->tensors[t].name; t++) {
        apart.tensor[t].data = data[t];
        if (data[t])
            copy_elements(&step->problem.tensor[t], &apart.tensor[t], stop);
    }
    if (status == ET_OK && et_stopped(stop))
        status = et_fail(error, ET_FAILED, "interrupted while inputs were made");
    if (status == ET_OK)
        status = protect(path, map, bytes, error);
    if (status == ET_OK) {
        et_unmap(step->map, step->map_bytes);
        step->problem = apart;
        step->map = map;
        step->map_bytes = bytes;
    } else {
        et_unmap(map, bytes);
    }
    et_free(path);
    return status;
}

enum et_status et_job_part(struct et_job *job, const volatile sig_atomic_t *stop, struct et_error *error)
{
    enum et_status status = ET_OK;
    bool parted = false;
    for (int i = 0; i < job->step_count && status == ET_OK; i++) {
        if (!shares_any(&job->steps[i].problem))
            continue;
        parted = true;
        status = part_step(job, i, stop, error);
    }
    return status == ET_OK && parted ? write_description(job, error) : status;
}

/* ---- Reading ---- */

static enum et_status read_name(const struct et_json *json, const cJSON *node, const struct et_field *field,
                                double *value, struct et_error *error)
{
    const char *name = NULL;
    const enum et_status status = et_json_string(json, node, field->name, &name, error);
    if (status != ET_OK)
        return status;
    for (int i = 0; field->names[i]; i++) {
        if (strcmp(field->names[i], name) == 0) {
            *value = i;
            return ET_OK;
        }
    }
    return et_json_fail(json, node, error, "%s cannot be %s", field->name, name);
}

static enum et_status read_param(const struct et_json *json, const cJSON *node, const struct et_field *field,
                                 void *params, struct et_error *error)
{
    enum et_status status = ET_OK;
    int64_t integer = 0;
    bool truth = false;
    double value = 0;
    switch (field->kind) {
    case ET_INT:
        status = et_json_int(json, node, field->name, -ET_EXACT, ET_EXACT, &integer, error);
        value = (double)integer;
        break;
    case ET_REAL:
        status = et_json_real(json, node, field->name, &value, error);
        break;
    case ET_BOOL:
        status = et_json_bool(json, node, field->name, &truth, error);
        value = truth;
        break;
    case ET_NAME:
        status = read_name(json, node, field, &value, error);
        break;
    }
    struct et_error why;
    if (status == ET_OK && et_field_check(field, value, &why) != ET_OK)
        status = et_json_fail(json, node, error, "%s", why.text);
    if (status == ET_OK)
        et_param_set(field, params, value);
    return status;
}

static enum et_status read_params(const struct et_json *json, const cJSON *node, const struct et_operator *op,
                                  void *params, struct et_error *error)
{
    const char *keys[ET_PARAMS + 1] = {NULL};
    for (int i = 0; op->params[i].name; i++)
        keys[i] = op->params[i].name;
    enum et_status status = et_json_exact(json, node, "params", keys, error);
    for (int i = 0; op->params[i].name && status == ET_OK; i++)
        status = read_param(json, et_json_get(node, keys[i]), &op->params[i], params, error);
    return status;
}

static enum et_status read_ints(const struct et_json *json, const cJSON *node, const char *what, int n,
                                int64_t *values, struct et_error *error)
{
    enum et_status status = et_json_array(json, node, what, error);
    if (status == ET_OK && cJSON_GetArraySize(node) != n)
        return et_json_fail(json, node, error, "%s has %d entries, not %d", what, cJSON_GetArraySize(node),
                            n);
    const cJSON *entry = status == ET_OK ? node->child : NULL;
    for (int i = 0; entry && status == ET_OK; i++, entry = entry->next)
        status = et_json_int(json, entry, what, 0, INT64_C(1) << 52, &values[i], error);
    return status;
}

/* Every element lies in the buffer. */
static bool is_inside(const struct et_tensor *tensor)
{
    if (et_tensor_count(tensor) == 0)
        return tensor->offset <= elements_of(tensor);
    int64_t last = tensor->offset;
    for (int k = 0; k < tensor->rank; k++) {
        int64_t span;
        if (__builtin_mul_overflow(tensor->size[k] - 1, tensor->stride[k], &span) ||
            __builtin_add_overflow(last, span, &last))
            return false;
    }
    return last < elements_of(tensor);
}

static enum et_status read_layout(const struct et_json *json, const cJSON *node,
                                  const struct et_tensor_spec *spec, struct et_tensor *tensor,
                                  struct et_error *error)
{
    const int64_t most = INT64_C(1) << 52;
    int64_t size[ET_RANK], elements = 0;
    const cJSON *sizes = et_json_get(node, "size");
    enum et_status status = read_ints(json, sizes, "size", tensor->rank, size, error);
    if (status == ET_OK)
        status = read_ints(json, et_json_get(node, "stride"), "stride", tensor->rank, tensor->stride, error);
    if (status == ET_OK)
        status = et_json_int(json, et_json_get(node, "offset"), "offset", 0, most, &tensor->offset, error);
    if (status == ET_OK)
        status = et_json_int(json, et_json_get(node, "elements"), "elements", 0, most, &elements, error);
    if (status != ET_OK)
        return status;
    if (memcmp(size, tensor->size, (size_t)tensor->rank * sizeof *size) != 0)
        return et_json_fail(json, sizes, error, "the size of %s is not what the params make it", spec->name);
    tensor->bytes = et_bytes(tensor->dtype, elements);
    struct et_error why;
    if (et_tensor_check_blocks(tensor, spec->name, &why) != ET_OK)
        return et_json_fail(json, node, error, "%s", why.text);
    if (!is_inside(tensor))
        return et_json_fail(json, node, error, "%s reaches beyond its %" PRId64 " elements", spec->name,
                            elements);
    return ET_OK;
}

static enum et_status read_type(const struct et_json *json, const cJSON *node,
                                const struct et_tensor_spec *spec, enum et_dtype *dtype,
                                struct et_error *error)
{
    static const char *const keys[] = {"buffer", "role",   "dtype",    "size",
                                       "stride", "offset", "elements", NULL};
    const char *const role = spec->role == ET_INPUT ? "input" : "output";
    const char *text = NULL;
    enum et_status status =
        et_json_exact(json, node, spec->name, et_json_get(node, "buffer") ? keys : keys + 1, error);
    if (status == ET_OK)
        status = et_json_string(json, et_json_get(node, "role"), "role", &text, error);
    if (status == ET_OK && strcmp(text, role) != 0)
        status =
            et_json_fail(json, et_json_get(node, "role"), error, "the role of %s is %s", spec->name, role);
    if (status == ET_OK)
        status = et_json_string(json, et_json_get(node, "dtype"), "dtype", &text, error);
    if (status == ET_OK && (!et_dtype_named(text, dtype) || !(spec->dtypes >> *dtype & 1)))
        status = et_json_fail(json, et_json_get(node, "dtype"), error, "%s cannot be %s", spec->name, text);
    return status;
}

/* tensor has its type, and the sizes that the params make. */
static enum et_status read_tensor(const struct et_json *json, const cJSON *node,
                                  const struct et_tensor_spec *spec, struct et_tensor *tensor,
                                  struct et_error *error)
{
    struct et_tensor packed = *tensor;
    if (!et_tensor_pack(&packed))
        return et_json_fail(json, node, error, "%s is too large to address", spec->name);
    return read_layout(json, node, spec, tensor, error);
}

/* Once all tensors are read. */
static enum et_status read_sharing(const struct et_json *json, const cJSON *nodes,
                                   const struct et_operator *op, int t, struct et_tensor *tensors,
                                   struct et_error *error)
{
    const cJSON *buffer = et_json_get(et_json_get(nodes, op->tensors[t].name), "buffer");
    const char *name = NULL;
    const enum et_status status = buffer ? et_json_string(json, buffer, "buffer", &name, error) : ET_OK;
    if (!buffer || status != ET_OK)
        return status;
    const int home = et_tensor_index(op, name);
    if (home < 0 || op->tensors[t].role != ET_INPUT || op->tensors[home].role != ET_INPUT ||
        et_json_get(et_json_get(nodes, name), "buffer"))
        return et_json_fail(json, buffer, error, "%s cannot lie in a buffer of %s", op->tensors[t].name,
                            name);
    if (tensors[home].dtype != tensors[t].dtype || tensors[home].bytes != tensors[t].bytes)
        return et_json_fail(json, buffer, error, "the buffer of %s is not %" PRId64 " elements of %s", name,
                            elements_of(&tensors[t]), et_format(tensors[t].dtype)->name);
    tensors[t].shares = home + 1;
    return ET_OK;
}

static enum et_status map_inputs(const char *folder, int i, struct et_job_step *step, struct et_error *error)
{
    char *path = et_print(error, "%s/%d.safetensors", folder, i);
    if (!path)
        return ET_FAILED;
    struct et_tensors file;
    void *data[ET_TENSORS];
    enum et_status status = et_tensors_open(path, &file, error);
    if (status == ET_OK)
        status = find_tensors(path, &file, &step->problem, ET_INPUT, data, error);
    if (status == ET_OK) {
        for (int t = 0; step->problem.op->tensors[t].name; t++)
            step->problem.tensor[t].data = data[t];
        step->map = file.map;
        step->map_bytes = file.bytes;
        file.map = NULL;
    }
    et_tensors_close(&file);
    et_free(path);
    return status;
}

static enum et_status read_step(const struct et_json *json, const cJSON *node, const struct et_operator *op,
                                struct et_job_step *step, struct et_error *error)
{
    static const char *const keys[] = {"params", "tensors", NULL};
    const char *names[ET_TENSORS + 1] = {NULL};
    for (int t = 0; op->tensors[t].name; t++)
        names[t] = op->tensors[t].name;
    step->problem = (struct et_problem){.op = op, .params = step->params};

    enum et_status status = et_json_exact(json, node, "a step", keys, error);
    const cJSON *params = et_json_get(node, "params"), *tensors = et_json_get(node, "tensors");
    if (status == ET_OK)
        status = read_params(json, params, op, step->params, error);
    if (status == ET_OK)
        status = et_json_exact(json, tensors, "tensors", names, error);
    struct et_tensor *tensor = step->problem.tensor;
    for (int t = 0; names[t] && status == ET_OK; t++)
        status = read_type(json, et_json_get(tensors, names[t]), &op->tensors[t], &tensor[t].dtype, error);
    struct et_error why;
    if (status == ET_OK && op->shape(step->params, tensor, &why) != ET_OK)
        status = et_json_fail(json, node, error, "%s", why.text);
    for (int t = 0; names[t] && status == ET_OK; t++)
        status = read_tensor(json, et_json_get(tensors, names[t]), &op->tensors[t], &tensor[t], error);
    for (int t = 0; names[t] && status == ET_OK; t++)
        status = read_sharing(json, tensors, op, t, tensor, error);
    return status;
}

/* Buffers are those of all steps. */
static enum et_status check_sharing(const struct et_json *json, const cJSON *node, const struct et_job *job,
                                    int i, struct et_error *error)
{
    const struct et_tensor *first = job->steps[0].problem.tensor, *tensor = job->steps[i].problem.tensor;
    for (int t = 0; job->op->tensors[t].name; t++)
        if (tensor[t].shares != first[t].shares)
            return et_json_fail(json, node, error, "%s lies in another buffer than in step 0",
                                job->op->tensors[t].name);
    return ET_OK;
}

static enum et_status read_steps(const char *folder, const struct et_json *json, const struct et_operator *op,
                                 struct et_job *job, struct et_error *error)
{
    const cJSON *steps = et_json_get(json->root, "steps");
    enum et_status status = et_json_array(json, steps, "steps", error);
    const int n = status == ET_OK ? cJSON_GetArraySize(steps) : 0;
    if (status == ET_OK && (n == 0 || n > ET_STEPS))
        status = et_json_fail(json, steps, error, "a job has 1 to %d steps, not %d", ET_STEPS, n);
    if (status == ET_OK)
        status = job_new(folder, op, n, job, error);
    const cJSON *node = status == ET_OK ? steps->child : NULL;
    for (int i = 0; node && status == ET_OK; i++, node = node->next) {
        status = read_step(json, node, op, &job->steps[i], error);
        if (status == ET_OK)
            status = check_sharing(json, node, job, i, error);
        if (status == ET_OK)
            status = map_inputs(folder, i, &job->steps[i], error);
    }
    return status;
}

static enum et_status read_description(const char *folder, const struct et_json *json, struct et_job *job,
                                       struct et_error *error)
{
    static const char *const keys[] = {"format", "operator", "steps", NULL};
    int64_t format = 0;
    const char *name = NULL;
    enum et_status status = et_json_exact(json, json->root, "a job", keys, error);
    const cJSON *op_node = et_json_get(json->root, "operator");
    if (status == ET_OK)
        status =
            et_json_int(json, et_json_get(json->root, "format"), "format", FORMAT, FORMAT, &format, error);
    if (status == ET_OK)
        status = et_json_string(json, op_node, "operator", &name, error);
    const struct et_operator *op = status == ET_OK ? et_operator_named(name) : NULL;
    if (status == ET_OK && !op)
        status = et_json_fail(json, op_node, error, "there is no operator %s", name);
    return status == ET_OK ? read_steps(folder, json, op, job, error) : status;
}

enum et_status et_job_read(const char *folder, struct et_job *job, struct et_error *error)
{
    *job = (struct et_job){0};
    char *path = et_print(error, "%s/job.json", folder);
    struct et_json json = {0};
    enum et_status status = path ? et_json_read(path, &json, error) : ET_FAILED;
    if (status == ET_OK)
        status = read_description(folder, &json, job, error);
    if (status != ET_OK)
        et_job_free(job);
    et_json_free(&json);
    et_free(path);
    return status;
}

void et_job_free(struct et_job *job)
{
    for (int i = 0; job->steps && i < job->step_count; i++)
        et_unmap(job->steps[i].map, job->steps[i].map_bytes);
    et_free(job->steps);
    et_free(job->folder);
    *job = (struct et_job){0};
}

/* ---- Outputs ---- */

static char *output_path(const char *folder, int step, int repeat, struct et_error *error)
{
    return et_print(error, "%s/%d.%d.safetensors", folder, step, repeat);
}

enum et_status et_outputs_open(const struct et_job *job, int step, int repeat, const char *folder,
                               struct et_outputs *outputs, struct et_error *error)
{
    *outputs = (struct et_outputs){0};
    char *path = output_path(folder, step, repeat, error);
    if (!path)
        return ET_FAILED;
    void *data[ET_TENSORS] = {NULL};
    const struct et_problem *problem = &job->steps[step].problem;
    size_t most = 0;
    for (int t = 0; problem->op->tensors[t].name; t++)
        if (problem->op->tensors[t].role == ET_OUTPUT)
            most += problem->tensor[t].bytes;
    enum et_status status = et_tensors_read(path, most, &outputs->file, error);
    if (status == ET_OK)
        status = find_tensors(path, &outputs->file, problem, ET_OUTPUT, data, error);
    for (int t = 0; t < ET_TENSORS; t++)
        outputs->data[t] = data[t];
    if (status != ET_OK)
        et_outputs_close(outputs);
    et_free(path);
    return status;
}

void et_outputs_close(struct et_outputs *outputs)
{
    et_tensors_close(&outputs->file);
    *outputs = (struct et_outputs){0};
}

enum et_status et_outputs_create(const struct et_job *job, int step, int repeat, const char *folder,
                                 void **out, void **map, size_t *bytes, struct et_error *error)
{
    char *path = output_path(folder, step, repeat, error);
    const enum et_status status =
        path ? create_tensors(path, &job->steps[step].problem, ET_OUTPUT, out, map, bytes, error) : ET_FAILED;
    et_free(path);
    return status;
}

void et_poison_fill(const struct et_problem *problem, int repeat, const volatile sig_atomic_t *stop,
                    void *const *out)
{
    for (int t = 0; problem->op->tensors[t].name; t++) {
        const enum et_dtype dtype = et_storage(problem->tensor[t].dtype);
        const int64_t n = out[t] ? places_of(&problem->tensor[t]) : 0;
        for (int64_t i = 0; i < n && !(i % ITEM == 0 && et_stopped(stop)); i++)
            et_store(dtype, out[t], i, et_poison(dtype, repeat));
    }
}

enum et_status et_outputs_poison(const struct et_job *job, int step, int repeat,
                                 const volatile sig_atomic_t *stop, const char *folder,
                                 struct et_error *error)
{
    void *out[ET_TENSORS] = {NULL}, *map = NULL;
    size_t bytes = 0;
    enum et_status status = et_outputs_create(job, step, repeat, folder, out, &map, &bytes, error);
    if (status == ET_OK)
        et_poison_fill(&job->steps[step].problem, repeat, stop, out);
    if (status == ET_OK && et_stopped(stop))
        status = et_fail(error, ET_FAILED, "interrupted while outputs were poisoned");
    et_unmap(map, bytes);
    return status;
}

/* ---- Prints ---- */

static enum et_status print_file(const char *path, const volatile sig_atomic_t *stop, char digest[33],
                                 struct et_error *error)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return et_fail(error, ET_INVALID, "%s cannot be opened: %s", path, strerror(errno));
    XXH3_state_t state;
    char chunk[1 << 16];
    ssize_t n = 0;
    XXH3_128bits_reset(&state);
    while (!et_stopped(stop) && ((n = read(fd, chunk, sizeof chunk)) > 0 || (n < 0 && errno == EINTR)))
        if (n > 0)
            XXH3_128bits_update(&state, chunk, (size_t)n);
    const int code = errno;
    close(fd);
    if (et_stopped(stop))
        return et_fail(error, ET_FAILED, "interrupted while files of a job were read");
    if (n < 0)
        return et_fail(error, ET_INVALID, "%s cannot be read: %s", path, strerror(code));
    write_digest(&state, digest);
    return ET_OK;
}

void et_job_file(const struct et_job *job, int i, char name[32])
{
    if (i < job->step_count)
        snprintf(name, 32, "%d.safetensors", i);
    else
        snprintf(name, 32, "job.json");
}

enum et_status et_job_prints(const struct et_job *job, const volatile sig_atomic_t *stop, char (*prints)[33],
                             struct et_error *error)
{
    enum et_status status = ET_OK;
    for (int i = 0; i <= job->step_count && status == ET_OK; i++) {
        char name[32];
        et_job_file(job, i, name);
        char *path = et_print(error, "%s/%s", job->folder, name);
        status = path ? print_file(path, stop, prints[i], error) : ET_FAILED;
        et_free(path);
    }
    return status;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    remove(path);
    return 0;
}

void et_remove_folder(const char *folder)
{
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
