#define _POSIX_C_SOURCE 200809L /* fnmatch */

#include "case_read.h"

#include <fnmatch.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- Memory ---- */

struct et_arena {
    _Alignas(max_align_t) struct et_arena *next;
};

void *et_arena_take(struct et_arena **arena, size_t count, size_t size, struct et_error *error)
{
    struct et_arena *block = NULL;
    if (count <= (SIZE_MAX - sizeof *block) / size)
        block = et_alloc(1, sizeof *block + count * size, error);
    else
        et_fail(error, ET_FAILED, "out of memory: %zu x %zu bytes", count, size);
    if (!block)
        return NULL;
    block->next = *arena;
    *arena = block;
    return block + 1;
}

char *et_arena_text(struct et_arena **arena, const char *text, struct et_error *error)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = et_arena_take(arena, bytes, 1, error);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

void et_cases_free(struct et_cases *cases)
{
    while (cases->arena) {
        struct et_arena *block = cases->arena;
        cases->arena = block->next;
        et_free(block);
    }
    et_free(cases->at);
    *cases = (struct et_cases){0};
}

/* ---- Names ---- */

static const char *const tiers[ET_TIERS] = {"smoke", "default", "full"};

const char *et_tier_name(enum et_tier tier)
{
    return tiers[tier];
}

bool et_tier_named(const char *name, enum et_tier *tier)
{
    for (int i = 0; i < ET_TIERS; i++) {
        if (strcmp(tiers[i], name) != 0)
            continue;
        *tier = (enum et_tier)i;
        return true;
    }
    return false;
}

static void add_knob(const struct et_field *field, int64_t value, struct et_text *text)
{
    if (field->kind == ET_NAME)
        et_text_add(text, "%s=%s", field->name, field->names[value]);
    else if (field->kind == ET_BOOL)
        et_text_add(text, "%s=%s", field->name, value ? "true" : "false");
    else
        et_text_add(text, "%s=%lld", field->name, (long long)value);
}

void et_ask_name(const struct et_ask *ask, struct et_text *text)
{
    const struct et_field *knobs = ask->variant->knobs;
    et_text_add(text, "%s", ask->variant->name);
    char separator = ':';
    for (int i = 0; i < et_field_count(knobs); i++) {
        if (ask->knob[i] == ET_UNSET)
            continue;
        et_text_bytes(text, &separator, 1);
        add_knob(&knobs[i], ask->knob[i], text);
        separator = ',';
    }
}

bool et_glob(const char *pattern, const char *text)
{
    return fnmatch(pattern, text, 0) == 0;
}

/* ---- Problems ---- */

double et_given_value(const struct et_field *fields, const struct et_given *given, int i, bool *missing)
{
    while (!given->given[i] && fields[i].same_as)
        i = et_field_index(fields, fields[i].same_as);
    *missing = !given->given[i] && fields[i].required;
    return given->given[i] ? given->value[i] : fields[i].fallback;
}

void et_given_apply(const struct et_operator *op, const struct et_given *given, unsigned char *params)
{
    bool missing;
    for (int i = 0; op->params[i].name; i++)
        et_param_set(&op->params[i], params, et_given_value(op->params, given, i, &missing));
}

static void edited_params(const struct et_case *c, const struct et_case_step *step,
                          const struct et_twin *twin, unsigned char *params)
{
    struct et_given given = {0};
    for (int i = 0; c->op->params[i].name; i++) {
        given.given[i] = twin->edits[i] || step->given[i];
        given.value[i] = twin->edits[i] ? twin->value[i] : et_param_real(&c->op->params[i], step->params);
    }
    et_given_apply(c->op, &given, params);
}

static enum et_status too_large(const struct et_tensor_spec *spec, const struct et_tensor *tensor,
                                struct et_error *error)
{
    char sizes[ET_RANK * 24] = "";
    for (int k = 0; k < tensor->rank; k++) {
        const size_t n = strlen(sizes);
        snprintf(sizes + n, sizeof sizes - n, "%s%lld", k ? " x " : "", (long long)tensor->size[k]);
    }
    return et_fail(error, ET_REFUSED, "%s of %s %s elements and its padding are beyond 2^63 - 1 bytes",
                   spec->name, sizes, et_format(tensor->dtype)->name);
}

static enum et_status lay_out(const struct et_layout *layout, const struct et_tensor_spec *spec,
                              struct et_tensor *tensor, struct et_error *error)
{
    const int64_t block = et_format(tensor->dtype)->block;
    int64_t stride = 1, offset = layout->shift, elements = 0, bytes = 0;
    bool over = false, empty = false;
    for (int k = tensor->rank - 1; k >= 0; k--) {
        const int d = layout->ordered ? layout->order[k] : k;
        const int64_t before = layout->pad[d][0], after = layout->pad[d][1];
        int64_t skipped = 0, extent = 0;
        tensor->stride[d] = stride;
        over |= __builtin_mul_overflow(before, stride, &skipped);
        over |= __builtin_add_overflow(offset, skipped, &offset);
        over |= __builtin_add_overflow(tensor->size[d], before + after, &extent);
        over |= __builtin_mul_overflow(stride, extent > 0 ? extent : 1, &stride);
        if (before + after == 0)
            over |= __builtin_add_overflow(stride, (block - stride % block) % block, &stride);
        empty |= tensor->size[d] == 0;
    }
    over |= __builtin_add_overflow(stride, layout->shift, &elements);
    over |= __builtin_mul_overflow(elements, (int64_t)et_format(tensor->dtype)->bytes, &bytes);
    if (over)
        return too_large(spec, tensor, error);
    tensor->offset = empty ? 0 : offset;
    tensor->bytes = empty ? 0 : et_bytes(tensor->dtype, elements);
    return et_tensor_check_blocks(tensor, spec->name, error);
}

/* Fills of the exact family, of which inputs are made, have an exact result here. */
static enum et_status check_fills(const struct et_case *c, int step, const struct et_problem *problem,
                                  struct et_error *error)
{
    unsigned fills = 0, kinds = 0;
    for (int i = 0; i < c->fill_count; i++)
        fills |= 1U << c->fills[i];
    for (int t = 0; c->op->tensors[t].name; t++) {
        const struct et_data *data = &c->steps[step].data[t];
        if (c->op->tensors[t].role == ET_INPUT)
            kinds |= !data->given ? fills : data->kind == ET_DATA_FILL ? 1U << data->fill.kind : 0;
    }
    enum et_status status = ET_OK;
    for (enum et_fill_kind kind = 0; c->op->takes && status == ET_OK && kind < ET_FILLS; kind++)
        if (kinds >> kind & 1 && et_fill_is_exact(kind))
            status = c->op->takes(problem, kind, error);
    return status;
}

/* Element (i...) of a view is element (i...) of the tensor that it is a view of. */
static enum et_status view(const struct et_operator *op, struct et_tensor *tensors, int t, int of,
                           struct et_error *error)
{
    const struct et_tensor_spec *spec = &op->tensors[t], *base_spec = &op->tensors[of];
    const struct et_tensor *base = &tensors[of];
    struct et_tensor *tensor = &tensors[t];
    for (int k = 0; k < tensor->rank; k++)
        if (tensor->size[k] > base->size[k])
            return et_fail(error, ET_REFUSED, "%s is a view of %s, and its %s is %lld, above %s = %lld",
                           spec->name, base_spec->name, spec->dim[k], (long long)tensor->size[k],
                           base_spec->dim[k], (long long)base->size[k]);
    memcpy(tensor->stride, base->stride, sizeof tensor->stride);
    tensor->offset = base->offset;
    tensor->bytes = base->bytes;
    tensor->shares = base->shares ? base->shares : of + 1;
    return ET_OK;
}

/* Those that name the buffer of tensor t, the first to do so, are put behind it, each as it is laid out. */
static enum et_status join(const struct et_case *c, struct et_tensor *tensors, int t, struct et_error *error)
{
    const char *const buffer = c->layout[t].buffer;
    int64_t bytes = (int64_t)tensors[t].bytes;
    for (int u = t + 1; c->op->tensors[u].name; u++) {
        if (!c->layout[u].buffer || strcmp(c->layout[u].buffer, buffer) != 0)
            continue;
        const int64_t behind = et_elements(tensors[u].dtype, (size_t)bytes);
        if (__builtin_add_overflow(tensors[u].offset, behind, &tensors[u].offset) ||
            __builtin_add_overflow(bytes, (int64_t)tensors[u].bytes, &bytes))
            return et_fail(error, ET_REFUSED, "buffer %s is beyond 2^63 - 1 bytes", buffer);
        tensors[u].shares = t + 1;
    }
    for (int u = t; c->op->tensors[u].name; u++)
        if (u == t || tensors[u].shares == t + 1)
            tensors[u].bytes = (size_t)bytes;
    return ET_OK;
}

/* Once each tensor is laid out by itself. */
static enum et_status share(const struct et_case *c, struct et_tensor *tensors, struct et_error *error)
{
    enum et_status status = ET_OK;
    for (int t = 0; status == ET_OK && c->op->tensors[t].name; t++)
        if (c->layout[t].buffer && !tensors[t].shares)
            status = join(c, tensors, t, error);
    for (int t = 0; status == ET_OK && c->op->tensors[t].name; t++)
        if (c->layout[t].view_of)
            status = view(c->op, tensors, t, c->layout[t].view_of - 1, error);
    return status;
}

enum et_status et_case_problem(const struct et_case *c, int step, const struct et_twin *twin,
                               unsigned char params[ET_PARAMS_BYTES], struct et_problem *problem,
                               struct et_error *error)
{
    memcpy(params, c->steps[step].params, ET_PARAMS_BYTES);
    if (twin)
        edited_params(c, &c->steps[step], twin, params);
    *problem = (struct et_problem){.op = c->op, .params = params};
    const int tensors = et_tensor_count_of(c->op);
    for (int t = 0; t < tensors; t++)
        problem->tensor[t].dtype = c->dtype[t];
    enum et_status status = c->op->shape(params, problem->tensor, error);
    for (int t = 0; status == ET_OK && t < tensors; t++)
        status = lay_out(&c->layout[t], &c->op->tensors[t], &problem->tensor[t], error);
    if (status == ET_OK)
        status = share(c, problem->tensor, error);
    return status == ET_OK ? check_fills(c, step, problem, error) : status;
}

/* ---- What elements are for ---- */

/* The row at the same indices of another tensor of its rank; -1 where that has none. */
static int64_t same_row(const struct et_tensor *tensor, int64_t row, const struct et_tensor *other)
{
    int64_t found = 0, rows = 1;
    for (int k = tensor->rank - 2; k >= 0; k--) {
        const int64_t i = row % tensor->size[k];
        if (i >= other->size[k])
            return -1;
        found += i * rows;
        rows *= other->size[k];
        row /= tensor->size[k];
    }
    return other->size[tensor->rank - 1] > 0 ? found : -1;
}

/* Two of one buffer that begin at one place and have the same strides: one is a view of the other. */
static bool is_same_place(const struct et_problem *problem, int t, int u)
{
    const struct et_tensor *a = &problem->tensor[t], *b = &problem->tensor[u];
    return et_tensor_home(problem, t) == et_tensor_home(problem, u) && a->offset == b->offset &&
           a->rank == b->rank && memcmp(a->stride, b->stride, (size_t)a->rank * sizeof *a->stride) == 0;
}

void et_case_classes(const struct et_problem *problem, int t, int64_t row, enum et_class *dst,
                     enum et_class *room)
{
    const struct et_tensor *tensor = &problem->tensor[t];
    const int inner = tensor->rank - 1;
    problem->op->classify(problem, t, row, dst);
    for (int u = 0; problem->op->tensors[u].name; u++) {
        const struct et_tensor *other = &problem->tensor[u];
        const bool same = u != t && other->size[inner] <= tensor->size[inner] && is_same_place(problem, t, u);
        const int64_t at = same ? same_row(tensor, row, other) : -1;
        if (at < 0)
            continue;
        problem->op->classify(problem, u, at, room);
        for (int64_t i = 0; i < other->size[inner]; i++)
            if (room[i] == ET_ZERO || dst[i] == ET_POISON)
                dst[i] = room[i];
    }
}

/* ---- Lists of values ---- */

bool et_data_is_own(const struct et_data *data)
{
    return data->given && data->kind == ET_DATA_FILL && data->fill.kind == ET_FILL_OWN;
}

bool et_is_packed_rows(enum et_dtype dtype, int rank, const int64_t *size, const struct et_tensor *tensor)
{
    const int inner = tensor->rank - 1;
    return et_format(tensor->dtype)->block > 1 && dtype == et_storage(tensor->dtype) &&
           rank == tensor->rank && memcmp(size, tensor->size, (size_t)inner * sizeof *size) == 0 &&
           size[inner] == (int64_t)et_bytes(tensor->dtype, tensor->size[inner]);
}

bool et_covers_whole(enum et_dtype dtype, int rank, const int64_t *size, const struct et_tensor *tensor)
{
    return et_is_packed_rows(dtype, rank, size, tensor) ||
           (rank == 1 && size[0] == et_tensor_count(tensor)) ||
           (rank == tensor->rank && memcmp(size, tensor->size, (size_t)rank * sizeof *size) == 0);
}

#define LISTED (INT64_C(1) << 26) /* elements of a tensor that a list may cover: each is looked at */

/* Prefixes met so far, of each number of leading dimensions, with data under them; has[rank]: elements. */
struct prefixes {
    int64_t has[ET_RANK + 1];
    int64_t last[ET_RANK], rows[ET_RANK]; /* the prefix last met, and the rows under each */
};

static struct prefixes prefixes_of(const struct et_tensor *tensor)
{
    struct prefixes p = {0};
    int64_t rows = 1;
    for (int k = tensor->rank - 1; k >= 0; k--) {
        p.rows[k] = rows;
        p.last[k] = -1;
        rows *= k > 0 ? tensor->size[k - 1] : 1;
    }
    return p;
}

static int64_t data_elements(const struct et_problem *problem, int t, int64_t row, enum et_class *classes)
{
    const int64_t n = problem->tensor[t].size[problem->tensor[t].rank - 1];
    if (problem->op->tensors[t].role == ET_OUTPUT)
        return n;
    et_case_classes(problem, t, row, classes, classes + n);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += classes[i] == ET_DATA;
    return count;
}

/* first, unless NULL, is filled for values that go to prefixes of `dims` dimensions. */
static void count_prefixes(const struct et_problem *problem, int t, enum et_class *classes,
                           struct prefixes *p, int dims, int64_t *first)
{
    const struct et_tensor *tensor = &problem->tensor[t];
    const int64_t rows = et_tensor_rows(tensor);
    *p = prefixes_of(tensor);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t data = data_elements(problem, t, row, classes);
        for (int k = 0; data > 0 && k < tensor->rank; k++) {
            p->has[k] += p->last[k] != row / p->rows[k];
            p->last[k] = row / p->rows[k];
        }
        if (first)
            first[row] = dims == tensor->rank ? p->has[dims] : p->has[dims] - (p->has[dims] > 0);
        p->has[tensor->rank] += data;
    }
}

static enum et_status wrong_count(const struct et_problem *problem, int t, int64_t count,
                                  const struct prefixes *p, struct et_error *error)
{
    const int rank = problem->tensor[t].rank;
    const char *name = problem->op->tensors[t].name;
    char right[(ET_RANK + 1) * 24] = "";
    if (p->has[rank] == 0)
        return et_fail(error, ET_REFUSED, "%lld values for %s, which has no data here", (long long)count,
                       name);
    for (int k = 0; k <= rank; k++) {
        const size_t n = strlen(right);
        if (k == 0 || p->has[k] != p->has[k - 1])
            snprintf(right + n, sizeof right - n, "%s%lld", k ? ", " : "", (long long)p->has[k]);
    }
    return et_fail(error, ET_REFUSED, "%lld values for %s, which can take %s", (long long)count, name, right);
}

enum et_status et_values_map(const struct et_problem *problem, int t, int64_t count, int64_t *first,
                             bool *each, struct et_error *error)
{
    const struct et_tensor *tensor = &problem->tensor[t];
    const int64_t elements = et_tensor_count(tensor);
    if (elements > LISTED && count != 1)
        return et_fail(error, ET_REFUSED, "%lld values for %s of %lld elements; above 2^26 a list has 1",
                       (long long)count, problem->op->tensors[t].name, (long long)elements);
    *each = false;
    if (count == 1 && elements > 0) {
        for (int64_t row = 0; first && row < et_tensor_rows(tensor); row++)
            first[row] = 0;
        return ET_OK;
    }
    enum et_class *classes = et_alloc((size_t)tensor->size[tensor->rank - 1], 2 * sizeof *classes, error);
    if (!classes)
        return ET_FAILED;
    struct prefixes p;
    count_prefixes(problem, t, classes, &p, 0, NULL);
    int dims = 0;
    while (dims < tensor->rank && p.has[dims] != count)
        dims++;
    enum et_status status = ET_OK;
    if (p.has[dims] != count || count == 0)
        status = wrong_count(problem, t, count, &p, error);
    else if (first)
        count_prefixes(problem, t, classes, &p, dims, first);
    *each = dims == tensor->rank;
    et_free(classes);
    return status;
}
