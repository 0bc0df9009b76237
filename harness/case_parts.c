#include "case_read.h"

#include <stdio.h>
#include <string.h>

/* ---- Sentences and look-ups ---- */

struct et_what et_say(const char *format, ...)
{
    struct et_what what;
    va_list args;
    va_start(args, format);
    vsnprintf(what.text, sizeof what.text, format, args);
    va_end(args);
    return what;
}

enum et_status et_copy_string(const struct et_reader *r, const cJSON *node, const char *what,
                              const char **copy)
{
    const char *text = NULL;
    const enum et_status status = et_json_string(r->json, node, what, &text, r->error);
    if (status != ET_OK)
        return status;
    *copy = et_arena_text(r->arena, text, r->error);
    return *copy ? ET_OK : ET_FAILED;
}

enum et_status et_find_field(const struct et_reader *r, const struct et_field *fields, const char *owner,
                             const char *kind, const cJSON *member, int *index)
{
    struct et_nearest nearest = {.word = member->string};
    for (int i = 0; i < et_field_count(fields); i++)
        et_nearest_try(&nearest, fields[i].name);
    *index = et_field_index(fields, member->string);
    if (*index >= 0)
        return ET_OK;
    if (!nearest.best)
        return et_json_fail_key(r->json, member, r->error, "%s has no %s", owner, kind);
    return et_json_fail_key(r->json, member, r->error, "%s has no %s \"%s\"; the nearest is \"%s\"", owner,
                            kind, member->string, nearest.best);
}

enum et_status et_find_tensor(const struct et_reader *r, const cJSON *member, int *t)
{
    struct et_nearest nearest = {.word = member->string};
    for (int i = 0; i < et_tensor_count_of(r->op); i++)
        et_nearest_try(&nearest, r->op->tensors[i].name);
    *t = et_tensor_index(r->op, member->string);
    if (*t >= 0)
        return ET_OK;
    return et_json_fail_key(r->json, member, r->error, "%s has no tensor \"%s\"; the nearest is \"%s\"",
                            r->op->name, member->string, nearest.best);
}

static bool has_fill(const struct et_operator *op, enum et_fill_kind kind)
{
    return !et_fill_is_exact(kind) || op->exact_fills & 1U << kind;
}

enum et_status et_find_fill(const struct et_reader *r, const cJSON *node, const char *what,
                            enum et_fill_kind *kind)
{
    const char *name = NULL;
    if (et_json_string(r->json, node, what, &name, r->error) != ET_OK)
        return ET_INVALID;
    if (et_fill_named(name, kind)) {
        if (has_fill(r->op, *kind))
            return ET_OK;
        return et_json_fail(r->json, node, r->error, "%s has no fill \"%s\"", r->op->name, name);
    }
    struct et_nearest nearest = {.word = name};
    for (enum et_fill_kind i = 0; i < ET_FILLS; i++)
        if (has_fill(r->op, i))
            et_nearest_try(&nearest, et_fill_name(i));
    return et_json_fail(r->json, node, r->error, "there is no fill \"%s\"; the nearest is \"%s\"", name,
                        nearest.best);
}

/* ---- Params ---- */

static enum et_status read_name(const struct et_reader *r, const struct et_field *field, const cJSON *node,
                                double *value)
{
    const char *name = NULL;
    if (et_json_string(r->json, node, field->name, &name, r->error) != ET_OK)
        return ET_INVALID;
    struct et_nearest nearest = {.word = name};
    for (int i = 0; field->names[i]; i++) {
        if (strcmp(field->names[i], name) == 0) {
            *value = i;
            return ET_OK;
        }
        et_nearest_try(&nearest, field->names[i]);
    }
    return et_json_fail(r->json, node, r->error, "%s cannot be \"%s\"; the nearest is \"%s\"", field->name,
                        name, nearest.best);
}

static enum et_status read_kind(const struct et_reader *r, const struct et_field *field, const cJSON *node,
                                double *value)
{
    int64_t integer = 0;
    bool flag = false;
    enum et_status status = ET_OK;
    switch (field->kind) {
    case ET_INT:
        status = et_json_int(r->json, node, field->name, -ET_EXACT, ET_EXACT, &integer, r->error);
        *value = (double)integer;
        return status;
    case ET_BOOL:
        status = et_json_bool(r->json, node, field->name, &flag, r->error);
        *value = flag;
        return status;
    case ET_NAME:
        return read_name(r, field, node, value);
    case ET_REAL:
        break;
    }
    return et_json_real(r->json, node, field->name, value, r->error);
}

enum et_status et_read_field(const struct et_reader *r, const struct et_field *field, const cJSON *node,
                             double *value)
{
    const enum et_status status = read_kind(r, field, node, value);
    const bool ranged = field->kind == ET_INT || field->kind == ET_REAL;
    struct et_error why;
    if (status != ET_OK || !ranged || r->refused || et_field_check(field, *value, &why) == ET_OK)
        return status;
    return et_json_fail(r->json, node, r->error, "%s", why.text);
}

enum et_status et_read_param(const struct et_reader *r, const cJSON *member, struct et_given *given)
{
    int i = -1;
    const enum et_status status = et_find_field(r, r->op->params, r->op->name, "param", member, &i);
    if (status != ET_OK)
        return status;
    given->given[i] = true;
    return et_read_field(r, &r->op->params[i], member, &given->value[i]);
}

enum et_status et_read_params(const struct et_reader *r, const cJSON *node, const char *what,
                              struct et_given *given)
{
    enum et_status status = node ? et_json_object(r->json, node, what, r->error) : ET_OK;
    for (const cJSON *member = node ? node->child : NULL; status == ET_OK && member; member = member->next)
        status = et_read_param(r, member, given);
    return status;
}

/* ---- Tensors: types, layout, data ---- */

static enum et_status bad_dtype(const struct et_reader *r, const cJSON *node, int t)
{
    char accepted[ET_DTYPES * 16] = "";
    for (int i = 0; i < ET_DTYPES; i++) {
        const size_t n = strlen(accepted);
        if (r->op->tensors[t].dtypes & 1U << i)
            snprintf(accepted + n, sizeof accepted - n, "%s%s", n ? ", " : "",
                     et_format((enum et_dtype)i)->name);
    }
    return et_json_fail(r->json, node, r->error, "%s cannot be \"%s\"; it can be %s", r->op->tensors[t].name,
                        node->valuestring, accepted);
}

enum et_status et_read_dtypes(const struct et_reader *r, const cJSON *node, enum et_dtype *dtype)
{
    enum et_status status = node ? et_json_object(r->json, node, "dtypes", r->error) : ET_OK;
    for (const cJSON *member = node ? node->child : NULL; status == ET_OK && member; member = member->next) {
        int t = -1;
        const char *name = NULL;
        status = et_find_tensor(r, member, &t);
        if (status == ET_OK)
            status = et_json_string(r->json, member, member->string, &name, r->error);
        if (status == ET_OK &&
            !(et_dtype_named(name, &dtype[t]) && r->op->tensors[t].dtypes & 1U << dtype[t]))
            status = bad_dtype(r, member, t);
    }
    return status;
}

static int find_dimension(const struct et_tensor_spec *spec, const char *name)
{
    for (int k = 0; k < spec->rank; k++)
        if (strcmp(spec->dim[k], name) == 0)
            return k;
    return -1;
}

static enum et_status read_pad(const struct et_reader *r, const cJSON *node,
                               const struct et_tensor_spec *spec, struct et_layout *layout)
{
    const struct et_what what = et_say("layout.%s.pad", spec->name);
    enum et_status status = et_json_object(r->json, node, what.text, r->error);
    for (const cJSON *member = node->child; status == ET_OK && member; member = member->next) {
        const int k = find_dimension(spec, member->string);
        struct et_nearest nearest = {.word = member->string};
        for (int i = 0; i < spec->rank; i++)
            et_nearest_try(&nearest, spec->dim[i]);
        if (k < 0)
            return et_json_fail_key(r->json, member, r->error,
                                    "%s has no dimension \"%s\"; the nearest is \"%s\"", spec->name,
                                    member->string, nearest.best);
        if (!cJSON_IsArray(member) || cJSON_GetArraySize(member) != 2)
            return et_json_fail(r->json, member, r->error, "%s.%s must read [before, after]", what.text,
                                member->string);
        for (int side = 0; status == ET_OK && side < 2; side++)
            status = et_json_int(r->json, side ? member->child->next : member->child, what.text, 0, ET_EXACT,
                                 &layout->pad[k][side], r->error);
    }
    return status;
}

static enum et_status read_order(const struct et_reader *r, const cJSON *node,
                                 const struct et_tensor_spec *spec, struct et_layout *layout)
{
    int count = 0;
    bool seen[ET_RANK] = {false};
    bool whole = cJSON_IsArray(node) && cJSON_GetArraySize(node) == spec->rank;
    for (const cJSON *item = node->child; whole && item; item = item->next) {
        const int k = cJSON_IsString(item) ? find_dimension(spec, item->valuestring) : -1;
        whole = k >= 0 && !seen[k];
        if (whole) {
            seen[k] = true;
            layout->order[count++] = k;
        }
    }
    layout->ordered = true;
    if (whole)
        return ET_OK;
    struct et_what dims = et_say("%s", spec->dim[0]);
    for (int k = 1; k < spec->rank; k++)
        dims = et_say("%s, %s", et_say("%s", dims.text).text, spec->dim[k]);
    return et_json_fail(r->json, node, r->error, "layout.%s.order must list each of %s once", spec->name,
                        dims.text);
}

/* That this is an input: inputs alone share memory. */
static enum et_status need_input(const struct et_reader *r, const cJSON *node, const char *what, int t)
{
    const struct et_tensor_spec *spec = &r->op->tensors[t];
    return spec->role == ET_INPUT
               ? ET_OK
               : et_json_fail(r->json, node, r->error, "%s: %s is an output, and only inputs share memory",
                              what, spec->name);
}

static enum et_status read_view(const struct et_reader *r, const cJSON *node, int t, struct et_layout *layout)
{
    const struct et_tensor_spec *spec = &r->op->tensors[t];
    const struct et_what what = et_say("layout.%s.view_of", spec->name);
    const char *name = NULL;
    enum et_status status = et_json_string(r->json, node, what.text, &name, r->error);
    if (status != ET_OK)
        return status;
    struct et_nearest nearest = {.word = name};
    for (int i = 0; i < et_tensor_count_of(r->op); i++)
        et_nearest_try(&nearest, r->op->tensors[i].name);
    const int of = et_tensor_index(r->op, name);
    if (of < 0)
        return et_json_fail(r->json, node, r->error, "%s has no tensor \"%s\"; the nearest is \"%s\"",
                            r->op->name, name, nearest.best);
    status = need_input(r, node, what.text, t);
    if (status == ET_OK)
        status = need_input(r, node, what.text, of);
    if (status == ET_OK && of == t)
        return et_json_fail(r->json, node, r->error, "%s: %s cannot be a view of itself", what.text, name);
    if (status == ET_OK && r->op->tensors[of].rank != spec->rank)
        return et_json_fail(r->json, node, r->error, "%s: %s has %d dimensions, and %s %d", what.text, name,
                            r->op->tensors[of].rank, spec->name, spec->rank);
    layout->view_of = of + 1;
    return status;
}

static enum et_status read_buffer(const struct et_reader *r, const cJSON *node, int t,
                                  struct et_layout *layout)
{
    const struct et_what what = et_say("layout.%s.buffer", r->op->tensors[t].name);
    const enum et_status status = need_input(r, node, what.text, t);
    return status == ET_OK ? et_copy_string(r, node, what.text, &layout->buffer) : status;
}

static enum et_status read_layout_of(const struct et_reader *r, const cJSON *node, int t,
                                     struct et_layout *layout)
{
    static const char *const keys[] = {"pad", "order", "shift", "view_of", "buffer", NULL};
    const struct et_tensor_spec *spec = &r->op->tensors[t];
    const struct et_what what = et_say("layout.%s", spec->name),
                         shift = et_say("layout.%s.shift", spec->name);
    *layout = (struct et_layout){.given = true};
    enum et_status status = et_json_keys(r->json, node, what.text, keys, r->error);
    if (status != ET_OK)
        return status;
    const cJSON *pad = et_json_get(node, keys[0]), *order = et_json_get(node, keys[1]);
    const cJSON *by = et_json_get(node, keys[2]);
    const cJSON *view = et_json_get(node, keys[3]), *buffer = et_json_get(node, keys[4]);
    if (view && node->child->next)
        return et_json_fail_key(r->json, node->child == view ? view->next : node->child, r->error,
                                "%s is a view, which has no layout of its own", spec->name);
    if (view)
        return read_view(r, view, t, layout);
    if (buffer)
        status = read_buffer(r, buffer, t, layout);
    if (status == ET_OK && pad)
        status = read_pad(r, pad, spec, layout);
    if (status == ET_OK && order)
        status = read_order(r, order, spec, layout);
    if (status == ET_OK && by)
        status = et_json_int(r->json, by, shift.text, 0, ET_EXACT, &layout->shift, r->error);
    return status;
}

enum et_status et_read_layout(const struct et_reader *r, const cJSON *node, struct et_layout *layout)
{
    enum et_status status = node ? et_json_object(r->json, node, "layout", r->error) : ET_OK;
    for (const cJSON *member = node ? node->child : NULL; status == ET_OK && member; member = member->next) {
        int t = -1;
        status = et_find_tensor(r, member, &t);
        if (status == ET_OK)
            status = read_layout_of(r, member, t, &layout[t]);
    }
    return status;
}

static const char *const poisons[] = {[ET_POISON_NAN] = "nan", [ET_POISON_LARGE] = "large"};

static bool poison_named(const char *name, enum et_poison_kind *poison)
{
    for (int i = ET_POISON_NAN; i <= ET_POISON_LARGE; i++) {
        if (strcmp(poisons[i], name) != 0)
            continue;
        *poison = (enum et_poison_kind)i;
        return true;
    }
    return false;
}

enum et_status et_read_poison(const struct et_reader *r, const cJSON *node, enum et_poison_kind *poison)
{
    const char *name = NULL;
    enum et_status status = node ? et_json_string(r->json, node, "poison", &name, r->error) : ET_OK;
    if (node && status == ET_OK && !poison_named(name, poison))
        status = et_json_fail(r->json, node, r->error, "poison is \"%s\", not nan or large", name);
    return status;
}
