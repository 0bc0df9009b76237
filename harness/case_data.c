#include "case_read.h"
#include "safetensors.h"

#include <math.h>
#include <string.h>

static enum et_status read_list(const struct et_reader *r, const cJSON *node, const char *what,
                                struct et_data *data)
{
    enum et_status status = et_json_array(r->json, node, what, r->error);
    if (status != ET_OK)
        return status;
    data->kind = ET_DATA_VALUES;
    data->values = et_arena_take(r->arena, (size_t)cJSON_GetArraySize(node), sizeof *data->values, r->error);
    if (!data->values)
        return ET_FAILED;
    for (const cJSON *item = node->child; status == ET_OK && item; item = item->next)
        status = et_json_real(r->json, item, what, &data->values[data->count++], r->error);
    if (status == ET_OK && data->count == 0)
        return et_json_fail(r->json, node, r->error, "%s is empty", what);
    return status;
}

static enum et_status read_constant(const struct et_reader *r, const cJSON *node, const char *what,
                                    struct et_data *data)
{
    data->kind = ET_DATA_FILL;
    data->fill.kind = ET_FILL_CONSTANT;
    return et_json_real(r->json, node, what, &data->fill.value, r->error);
}

/* -1 where tensor t has no fill of the operator's own of that name. */
static int own_fill(const struct et_operator *op, int t, const cJSON *name)
{
    const struct et_own_fill *own = op->own_fills;
    for (int i = 0; own && own[i].name && cJSON_IsString(name); i++)
        if (own[i].tensor == t && strcmp(own[i].name, name->valuestring) == 0)
            return i;
    return -1;
}

/* Its option, or that option's default. */
static enum et_status read_own_option(const struct et_reader *r, const cJSON *node, const char *what,
                                      struct et_data *data)
{
    const struct et_field *field = &r->op->own_fills[data->fill.own].option;
    const cJSON *option = et_json_get(node, field->name);
    struct et_error why;
    data->fill.value = field->fallback;
    if (!option)
        return ET_OK;
    const enum et_status status =
        et_json_real(r->json, option, et_say("%s.%s", what, field->name).text, &data->fill.value, r->error);
    if (status == ET_OK && et_field_check(field, data->fill.value, &why) != ET_OK)
        return et_json_fail(r->json, option, r->error, "%s: %s", what, why.text);
    return status;
}

/* Options of the operator's own fills that are there although the fill is none of them, or another. */
static enum et_status refuse_options(const struct et_reader *r, const cJSON *node, const struct et_data *data)
{
    const struct et_own_fill *own = r->op->own_fills;
    for (int i = 0; own && own[i].name; i++) {
        const cJSON *option = et_json_get(node, own[i].option.name);
        const bool is_own = data->kind == ET_DATA_FILL && data->fill.kind == ET_FILL_OWN;
        if (option && !(is_own && strcmp(own[data->fill.own].option.name, own[i].option.name) == 0))
            return et_json_fail_key(r->json, option, r->error, "%s goes with the fill \"%s\" only",
                                    own[i].option.name, own[i].name);
    }
    return ET_OK;
}

static enum et_status read_fill(const struct et_reader *r, const cJSON *node, const char *what, int t,
                                struct et_data *data)
{
    const cJSON *fill = et_json_get(node, "fill"), *value = et_json_get(node, "value");
    const cJSON *seed = et_json_get(node, "seed");
    int64_t number = 0;
    data->kind = ET_DATA_FILL;
    data->fill.own = own_fill(r->op, t, fill);
    data->fill.kind = ET_FILL_OWN;
    enum et_status status = data->fill.own >= 0
                                ? read_own_option(r, node, what, data)
                                : et_find_fill(r, fill, et_say("%s.fill", what).text, &data->fill.kind);
    if (status != ET_OK)
        return status;
    const bool constant = data->fill.kind == ET_FILL_CONSTANT;
    if (constant != !!value)
        return et_json_fail(r->json, value ? value : fill, r->error, "fill \"%s\" takes %s value",
                            fill->valuestring, constant ? "a" : "no");
    if (value)
        status = et_json_real(r->json, value, et_say("%s.value", what).text, &data->fill.value, r->error);
    if (status == ET_OK && seed)
        status = et_json_int(r->json, seed, et_say("%s.seed", what).text, 0, ET_EXACT, &number, r->error);
    data->seeded = seed != NULL;
    data->fill.seed = (uint64_t)number;
    return status;
}

/* A path in a case file is relative to that file's folder. */
static const char *beside(const struct et_reader *r, const char *path)
{
    const char *slash = strrchr(r->json->file, '/');
    if (path[0] == '/' || !slash)
        return path;
    char *joined = et_print(r->error, "%.*s/%s", (int)(slash - r->json->file), r->json->file, path);
    const char *kept = joined ? et_arena_text(r->arena, joined, r->error) : NULL;
    et_free(joined);
    return kept;
}

/* The file is looked into before anything runs; what it holds is read when inputs are made. */
static enum et_status find_stored(const struct et_reader *r, const cJSON *node, struct et_data *data)
{
    struct et_tensors file;
    struct et_error why;
    enum et_status status = et_tensors_open(data->file, &file, &why);
    if (status != ET_OK)
        return status == ET_INVALID
                   ? et_json_fail(r->json, et_json_get(node, "file"), r->error, "%s", why.text)
                   : et_fail(r->error, status, "%s", why.text);
    const struct et_file_tensor *found = et_tensors_find(&file, data->tensor);
    if (!found)
        status = et_json_fail(r->json, et_json_get(node, "tensor"), r->error, "%s has no tensor \"%s\"",
                              data->file, data->tensor);
    else if (found->dtype == ET_DTYPES)
        status = et_json_fail(r->json, et_json_get(node, "tensor"), r->error,
                              "the dtype of \"%s\" in %s is none of etalon's", data->tensor, data->file);
    if (status == ET_OK) {
        data->count = et_elements(found->dtype, found->bytes);
        data->dtype = found->dtype;
        data->rank = found->rank;
        memcpy(data->size, found->size, sizeof data->size);
    }
    et_tensors_close(&file);
    return status;
}

static enum et_status read_file(const struct et_reader *r, const cJSON *node, const char *what,
                                struct et_data *data)
{
    const cJSON *tensor = et_json_get(node, "tensor");
    data->kind = ET_DATA_FILE;
    if (!tensor)
        return et_json_fail(r->json, node, r->error, "%s needs the name of the tensor in its file", what);
    const char *path = NULL;
    enum et_status status = et_copy_string(r, et_json_get(node, "file"), et_say("%s.file", what).text, &path);
    if (status == ET_OK)
        status = et_copy_string(r, tensor, et_say("%s.tensor", what).text, &data->tensor);
    data->file = status == ET_OK ? beside(r, path) : NULL;
    if (status == ET_OK && !data->file)
        return ET_FAILED;
    return status == ET_OK ? find_stored(r, node, data) : status;
}

enum source { CONSTANT, VALUES, FILL, STORED, SOURCES };

static const char *const sources[] = {"constant", "values", "fill", "file"};

/* Exactly one source, and no option of another. */
static enum et_status find_source(const struct et_reader *r, const cJSON *node, const char *what,
                                  enum et_role role, enum source *source)
{
    const char *keys[][8 + ET_OWN_FILLS] = {
        [ET_INPUT] = {"constant", "values", "fill", "value", "seed", "file", "tensor"},
        [ET_OUTPUT] = {"constant", "values", "atol"},
    };
    const struct et_own_fill *own = r->op->own_fills;
    for (int i = 0; own && own[i].name; i++)
        keys[ET_INPUT][7 + i] = own[i].option.name;
    static const struct {
        const char *name;
        enum source of;
    } options[] = {{"value", FILL}, {"seed", FILL}, {"tensor", STORED}};
    const enum et_status status = et_json_keys(r->json, node, what, keys[role], r->error);
    if (status != ET_OK)
        return status;
    int found = 0;
    for (int i = 0; i < SOURCES; i++)
        if (et_json_get(node, sources[i])) {
            *source = (enum source)i;
            found++;
        }
    if (found != 1)
        return et_json_fail(r->json, node, r->error, "%s needs one of %s", what,
                            role == ET_INPUT ? "constant, values, fill and file" : "constant and values");
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        const cJSON *option = et_json_get(node, options[i].name);
        if (option && options[i].of != *source)
            return et_json_fail_key(r->json, option, r->error, "%s goes with %s only", options[i].name,
                                    sources[options[i].of]);
    }
    return ET_OK;
}

static enum et_status read_source(const struct et_reader *r, const cJSON *node, const char *what, int t,
                                  enum source source, struct et_data *data)
{
    const struct et_what inner = et_say("%s.%s", what, sources[source]);
    switch (source) {
    case CONSTANT:
        return read_constant(r, et_json_get(node, sources[source]), inner.text, data);
    case VALUES:
        return read_list(r, et_json_get(node, sources[source]), inner.text, data);
    case FILL:
        return read_fill(r, node, what, t, data);
    case STORED:
    case SOURCES:
        break;
    }
    return read_file(r, node, what, data);
}

static enum et_status read_atol(const struct et_reader *r, const cJSON *node, const char *what,
                                struct et_data *data)
{
    const cJSON *atol = et_json_get(node, "atol");
    if (!atol)
        return ET_OK;
    const struct et_what name = et_say("%s.atol", what);
    const enum et_status status = et_json_real(r->json, atol, name.text, &data->atol, r->error);
    data->has_atol = true;
    if (status == ET_OK && !(data->atol >= 0 && isfinite(data->atol)))
        return et_json_mismatch(r->json, atol, name.text, "finite and at least 0", r->error);
    return status;
}

enum et_status et_read_data(const struct et_reader *r, const cJSON *node, enum et_role role,
                            struct et_data *data, const cJSON **lists)
{
    const char *const part = role == ET_INPUT ? "data" : "expect";
    enum et_status status = node ? et_json_object(r->json, node, part, r->error) : ET_OK;
    for (const cJSON *member = node ? node->child : NULL; status == ET_OK && member; member = member->next) {
        int t = -1;
        enum source source = CONSTANT;
        const struct et_what what = et_say("%s.%s", part, member->string);
        status = et_find_tensor(r, member, &t);
        if (status == ET_OK && r->op->tensors[t].role != role)
            status = et_json_fail_key(r->json, member, r->error, "%s is for %s, and %s is not one", part,
                                      role == ET_INPUT ? "inputs" : "outputs", member->string);
        if (status == ET_OK)
            status = find_source(r, member, what.text, role, &source);
        if (status != ET_OK)
            return status;
        data[t] = (struct et_data){.given = true};
        lists[t] = et_json_get(member, source == STORED ? "tensor" : "values");
        status = read_source(r, member, what.text, t, source, &data[t]);
        if (status == ET_OK && role == ET_INPUT)
            status = refuse_options(r, member, &data[t]);
        if (status == ET_OK)
            status = read_atol(r, member, what.text, &data[t]);
    }
    return status;
}
