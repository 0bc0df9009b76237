/* The operator table and what is generic over it: params, shapes, plain fills, error sentences. */
#include "etalon.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

extern const struct et_operator et_gqa_av_operator, et_gdn_postconv_operator, et_skinny_gemm_operator,
    et_flash_attn_operator;

const struct et_operator *const et_operators[] = {&et_gqa_av_operator, &et_gdn_postconv_operator,
                                                  &et_skinny_gemm_operator, &et_flash_attn_operator, NULL};

enum et_status et_fail(struct et_error *error, enum et_status status, const char *format, ...)
{
    if (!error)
        return status;
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return status;
}

const struct et_operator *et_operator_named(const char *name)
{
    for (int i = 0; et_operators[i]; i++)
        if (!strcmp(et_operators[i]->name, name))
            return et_operators[i];
    return NULL;
}

/* ---- Params ---- */

int et_field_count(const struct et_field *fields)
{
    int n = 0;
    while (fields && fields[n].name)
        n++;
    return n;
}

int et_field_index(const struct et_field *fields, const char *name)
{
    for (int i = 0; fields && fields[i].name; i++)
        if (!strcmp(fields[i].name, name))
            return i;
    return -1;
}

int64_t et_param_int(const struct et_field *field, const void *params)
{
    int64_t value;
    memcpy(&value, (const char *)params + field->offset, sizeof value);
    return value;
}

double et_param_real(const struct et_field *field, const void *params)
{
    if (field->kind != ET_REAL)
        return (double)et_param_int(field, params);
    double value;
    memcpy(&value, (const char *)params + field->offset, sizeof value);
    return value;
}

void et_param_set(const struct et_field *field, void *params, double value)
{
    char *at = (char *)params + field->offset;
    const int64_t integer = field->kind == ET_REAL ? 0 : (int64_t)value;
    if (field->kind == ET_REAL)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &integer, sizeof integer);
}

/* Truths and names have a range of their own. */
static double most_of(const struct et_field *field)
{
    int64_t names = 0;
    while (field->kind == ET_NAME && field->names[names])
        names++;
    return field->kind == ET_BOOL ? 1 : field->kind == ET_NAME ? (double)(names - 1) : field->max;
}

enum et_status et_field_check(const struct et_field *field, double value, struct et_error *error)
{
    if (field->kind == ET_REAL && isnan(value))
        return et_fail(error, ET_REFUSED, "%s is nan, must be a number", field->name);
    if (field->kind != ET_REAL && value != floor(value))
        return et_fail(error, ET_REFUSED, "%s is %.17g, must be a whole number", field->name, value);
    const double min = field->kind == ET_INT || field->kind == ET_REAL ? field->min : 0;
    const double max = most_of(field);
    if (value < min)
        return et_fail(error, ET_REFUSED, "%s is %.17g, must be at least %.17g", field->name, value, min);
    if (value > max)
        return et_fail(error, ET_REFUSED, "%s is %.17g, must be at most %.17g", field->name, value, max);
    return ET_OK;
}

enum et_status et_params_check(const struct et_field *fields, const void *params, struct et_error *error)
{
    enum et_status status = ET_OK;
    for (const struct et_field *field = fields; field->name && status == ET_OK; field++)
        status = et_field_check(field, et_param_real(field, params), error);
    return status;
}

/* ---- Tensors ---- */

int et_tensor_count_of(const struct et_operator *op)
{
    int n = 0;
    while (op->tensors[n].name)
        n++;
    return n;
}

int et_tensor_index(const struct et_operator *op, const char *name)
{
    for (int i = 0; op->tensors[i].name; i++)
        if (!strcmp(op->tensors[i].name, name))
            return i;
    return -1;
}

int et_tensor_home(const struct et_problem *problem, int t)
{
    return problem->tensor[t].shares ? problem->tensor[t].shares - 1 : t;
}

int64_t et_tensor_count(const struct et_tensor *tensor)
{
    int64_t n = 1;
    for (int k = 0; k < tensor->rank; k++)
        n *= tensor->size[k];
    return n;
}

int64_t et_tensor_rows(const struct et_tensor *tensor)
{
    int64_t n = tensor->size[tensor->rank - 1] > 0;
    for (int k = 0; k < tensor->rank - 1; k++)
        n *= tensor->size[k];
    return n;
}

int64_t et_row_at(const struct et_tensor *tensor, int64_t row)
{
    int64_t at = tensor->offset;
    for (int k = tensor->rank - 2; k >= 0; k--) {
        at += row % tensor->size[k] * tensor->stride[k];
        row /= tensor->size[k];
    }
    return at;
}

bool et_tensor_pack(struct et_tensor *tensor)
{
    const struct et_format *format = et_format(tensor->dtype);
    const int64_t most = INT64_MAX / (int64_t)format->bytes - format->block;
    bool empty = false;
    for (int k = 0; k < tensor->rank; k++)
        empty = empty || tensor->size[k] == 0;
    int64_t n = 1;
    for (int k = tensor->rank - 1; k >= 0; k--) {
        const int64_t size = tensor->size[k] > 0 ? tensor->size[k] : 1;
        tensor->stride[k] = n;
        if (n > most / size)
            return false;
        n *= size;
        n += (format->block - n % format->block) % format->block;
    }
    tensor->offset = 0;
    tensor->bytes = empty ? 0 : et_bytes(tensor->dtype, n);
    return true;
}

enum et_status et_tensor_check_blocks(const struct et_tensor *tensor, const char *name,
                                      struct et_error *error)
{
    const struct et_format *format = et_format(tensor->dtype);
    const int inner = tensor->rank - 1;
    if (format->block == 1)
        return ET_OK;
    if (tensor->size[inner] > 1 && tensor->stride[inner] != 1)
        return et_fail(error, ET_REFUSED,
                       "%s: elements of a row are %lld apart, must be 1: %s packs %d together", name,
                       (long long)tensor->stride[inner], format->name, format->block);
    if (tensor->offset % format->block != 0)
        return et_fail(error, ET_REFUSED,
                       "%s begins at element %lld, must be a multiple of %d, which %s packs", name,
                       (long long)tensor->offset, format->block, format->name);
    for (int k = 0; k < inner; k++)
        if (tensor->size[k] > 1 && tensor->stride[k] % format->block != 0)
            return et_fail(error, ET_REFUSED,
                           "%s: rows are %lld elements apart, must be a multiple of %d, which %s packs", name,
                           (long long)tensor->stride[k], format->block, format->name);
    return ET_OK;
}

/* ---- Fills ---- */

static const struct {
    const char *name;
    bool iid, exact;
} fills[ET_FILLS] = {
    [ET_FILL_NORMAL] = {.name = "normal", .iid = true},
    [ET_FILL_UNIFORM] = {.name = "uniform", .iid = true},
    [ET_FILL_OUTLIER] = {.name = "outlier", .iid = true},
    [ET_FILL_RAMP] = {.name = "ramp"},
    [ET_FILL_CONSTANT] = {.name = "constant"},
    [ET_FILL_EXACT] = {.name = "exact", .exact = true},
    [ET_FILL_EQUAL] = {.name = "equal", .exact = true},
    [ET_FILL_ONEHOT] = {.name = "onehot", .exact = true},
    [ET_FILL_BALANCE] = {.name = "balance", .exact = true},
};

const char *et_fill_name(enum et_fill_kind kind)
{
    return fills[kind].name;
}

bool et_fill_is_iid(enum et_fill_kind kind)
{
    return kind < ET_FILLS && fills[kind].iid;
}

bool et_fill_is_exact(enum et_fill_kind kind)
{
    return kind < ET_FILLS && fills[kind].exact;
}

bool et_fill_named(const char *name, enum et_fill_kind *kind)
{
    for (int i = 0; i < ET_FILLS; i++) {
        if (strcmp(fills[i].name, name) != 0)
            continue;
        *kind = (enum et_fill_kind)i;
        return true;
    }
    return false;
}

/* Steps of 1/16 in [-1, 1], period 33: exact in every type, and coprime to the tiles kernels like. */
static float ramp(int64_t at)
{
    return (float)(at % 33 - 16) / 16;
}

/* One element in 64 is 20 times as large. Block 2 of the counter: blocks 0 and 1 are the normal's own. */
static void outliers(const struct et_stream *stream, int64_t at, int64_t n, float *dst)
{
    et_normal_n(stream, (uint64_t)at, n, dst);
    for (int64_t i = 0; i < n; i++)
        if (et_word(stream, (uint64_t)(at + i), 2) % 64 == 0)
            dst[i] *= 20;
}

void et_fill_values(const struct et_fill *fill, const char *name, int64_t at, int64_t n, float *dst)
{
    const struct et_stream stream = et_stream(fill->seed, name);
    switch (fill->kind) {
    case ET_FILL_UNIFORM:
        et_uniform_n(&stream, (uint64_t)at, n, dst);
        return;
    case ET_FILL_OUTLIER:
        outliers(&stream, at, n, dst);
        return;
    case ET_FILL_RAMP:
        for (int64_t i = 0; i < n; i++)
            dst[i] = ramp(at + i);
        return;
    case ET_FILL_CONSTANT:
        for (int64_t i = 0; i < n; i++)
            dst[i] = (float)fill->value;
        return;
    case ET_FILL_NORMAL:
    case ET_FILL_EXACT:
    case ET_FILL_EQUAL:
    case ET_FILL_ONEHOT:
    case ET_FILL_BALANCE:
    case ET_FILLS:
    case ET_FILL_OWN:
        et_normal_n(&stream, (uint64_t)at, n, dst);
        return;
    }
}
