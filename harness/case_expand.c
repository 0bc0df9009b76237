#include "case_read.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 65536 }; /* that one entry may make */

/* Axes of a sweep besides params. */
static const char *const settings[] = {"model", "layer", "tp", "dtypes", "layout", "poison", "seed"};
enum { MODEL, LAYER, TP, DTYPES, LAYOUT, POISON, SEED, SETTINGS };

/* ---- Ids ---- */

static const char fit[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

bool et_id_value(const char *text)
{
    return *text && text[strspn(text, fit)] == '\0';
}

bool et_id_word(const char *text)
{
    return et_id_value(text) && !strchr("._-", *text);
}

enum et_status et_id_unfit(const struct et_reader *r, const cJSON *node, const char *text)
{
    return et_json_fail(r->json, node, r->error,
                        "\"%s\" cannot stand in an id: letters, digits and ._- only, a letter or digit first",
                        text);
}

static enum et_status add_value(const struct et_reader *r, const cJSON *node, struct et_text *id)
{
    if (cJSON_IsObject(node) || cJSON_IsArray(node)) {
        for (const cJSON *child = node->child; child; child = child->next) {
            if (child->string)
                et_text_add(id, "%s:", child->string);
            const enum et_status status = add_value(r, child, id);
            if (status != ET_OK)
                return status;
            et_text_add(id, "%s", child->next ? "+" : "");
        }
        return ET_OK;
    }
    if (cJSON_IsString(node) && !et_id_value(node->valuestring))
        return et_id_unfit(r, node, node->valuestring);
    if (cJSON_IsString(node))
        et_text_add(id, "%s", node->valuestring);
    else if (cJSON_IsNumber(node) && fabs(node->valuedouble) <= (double)ET_EXACT &&
             node->valuedouble == trunc(node->valuedouble))
        et_text_add(id, "%.0f", node->valuedouble);
    else if (cJSON_IsNumber(node))
        et_json_add_number(id, node->valuedouble);
    else
        et_text_add(id, "%s", cJSON_IsTrue(node) ? "true" : "false");
    return ET_OK;
}

static const cJSON *chosen_at(const struct et_entry *e, int axis)
{
    return cJSON_GetArrayItem(e->axis[axis].values, e->at[axis]);
}

static enum et_status add_axis(const struct et_entry *e, int axis, struct et_text *id)
{
    const cJSON *value = chosen_at(e, axis);
    if (e->axis[axis].param != ET_SHAPES)
        return add_value(&e->r, value, id);
    const cJSON *label = et_json_get(value, "label");
    if (label)
        et_text_add(id, "%s", label->valuestring);
    else
        et_text_add(id, "s%d", e->at[axis]);
    return ET_OK;
}

static enum et_status make_id(const struct et_entry *e, const struct et_case *c, char **id)
{
    struct et_text text = {0};
    et_text_add(&text, "%s/%s/%s", e->r.op->name, e->word, e->name);
    enum et_status status = ET_OK;
    for (int i = 0; status == ET_OK && i < e->axes; i++) {
        et_text_add(&text, "%c%s=", i ? ',' : '/', e->axis[i].name);
        status = add_axis(e, i, &text);
    }
    if (c->capped)
        et_text_add(&text, "%ctier=%s", e->axes ? ',' : '/', et_tier_name(c->tier));
    if (status == ET_OK && text.failed)
        status = et_fail(e->r.error, ET_FAILED, "out of memory for an id");
    if (status == ET_OK) {
        *id = et_arena_text(e->r.arena, text.data, e->r.error);
        status = *id ? ET_OK : ET_FAILED;
    }
    et_text_free(&text);
    return status;
}

static int by_text(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Names of entries differ and stand in the ids, so only cases of one entry could share one. */
static enum et_status refuse_equal_ids(const struct et_entry *e, int first)
{
    const int n = e->cases->count - first;
    const char **ids = et_alloc((size_t)n, sizeof *ids, e->r.error);
    if (!ids)
        return ET_FAILED;
    for (int i = 0; i < n; i++)
        ids[i] = e->cases->at[first + i].id;
    qsort(ids, (size_t)n, sizeof *ids, by_text);
    enum et_status status = ET_OK;
    for (int i = 1; status == ET_OK && i < n; i++)
        if (strcmp(ids[i - 1], ids[i]) == 0)
            status = et_json_fail(e->r.json, e->own, e->r.error, "two of its cases have the id %s", ids[i]);
    et_free(ids);
    return status;
}

/* ---- Axes ---- */

/* key: what the values stand under. */
static enum et_status add_axis_values(struct et_entry *e, const char *name, const char *key,
                                      const cJSON *values, int param)
{
    enum et_status status = et_json_array(e->r.json, values, key, e->r.error);
    if (status != ET_OK)
        return status;
    if (!values->child)
        return et_json_fail(e->r.json, values, e->r.error, "%s has no values", key);
    if (e->axes == ET_AXES)
        return et_json_fail(e->r.json, values, e->r.error, "more than %d axes", ET_AXES);
    e->axis[e->axes] = (struct et_axis){name, values, param};
    e->count[e->axes++] = cJSON_GetArraySize(values);
    double value;
    for (const cJSON *item = values->child; param >= 0 && status == ET_OK && item; item = item->next)
        status = et_read_field(&e->r, &e->r.op->params[param], item, &value);
    return status;
}

static enum et_status read_shapes(struct et_entry *e)
{
    const cJSON *shapes = et_json_get(e->own, "shapes");
    enum et_status status = shapes ? add_axis_values(e, "shape", "shapes", shapes, ET_SHAPES) : ET_OK;
    for (const cJSON *row = shapes ? shapes->child : NULL; status == ET_OK && row; row = row->next) {
        const char *label = NULL;
        const cJSON *node = NULL;
        status = et_json_object(e->r.json, row, "a row of shapes", e->r.error);
        if (status == ET_OK)
            node = et_json_get(row, "label");
        if (node)
            status = et_json_string(e->r.json, node, "label", &label, e->r.error);
        if (status == ET_OK && label && !et_id_word(label))
            return et_id_unfit(&e->r, node, label);
    }
    return status;
}

static enum et_status read_sweep(struct et_entry *e, const cJSON *sweep)
{
    enum et_status status = sweep ? et_json_object(e->r.json, sweep, "sweep", e->r.error) : ET_OK;
    for (const cJSON *member = sweep ? sweep->child : NULL; status == ET_OK && member;
         member = member->next) {
        struct et_nearest nearest = {.word = member->string};
        for (const struct et_field *field = e->r.op->params; field->name; field++)
            et_nearest_try(&nearest, field->name);
        for (int i = 0; i < SETTINGS; i++)
            et_nearest_try(&nearest, settings[i]);
        if (nearest.distance > 0)
            return et_json_fail_key(e->r.json, member, e->r.error,
                                    "\"%s\" cannot be swept; the nearest that can is \"%s\"", member->string,
                                    nearest.best);
        status = add_axis_values(e, member->string, member->string, member,
                                 et_field_index(e->r.op->params, member->string));
    }
    return status;
}

static enum et_status too_many(const struct et_entry *e)
{
    struct et_what product = et_say("%d", e->count[0]);
    for (int i = 1; i < e->axes; i++)
        product = et_say("%s x %d", et_say("%s", product.text).text, e->count[i]);
    return et_json_fail(e->r.json, e->own, e->r.error, "shapes and sweep make %s cases, more than %d",
                        product.text, CASES);
}

static enum et_status read_axes(struct et_entry *e)
{
    const cJSON *own = et_json_get(e->own, "sweep"), *fallback = et_json_get(e->defaults, "sweep");
    enum et_status status = read_shapes(e);
    const int shapes = e->axes;
    if (status == ET_OK)
        status = read_sweep(e, fallback);
    if (status == ET_OK && own) {
        e->axes = shapes;
        status = read_sweep(e, own);
    }
    int64_t cases = 1;
    for (int i = 0; status == ET_OK && i < e->axes; i++) {
        cases *= e->count[i];
        if (cases > CASES)
            return too_many(e);
    }
    return status;
}

static enum et_status check_setting(const struct et_reader *r, int setting, const cJSON *node)
{
    enum et_dtype dtype[ET_TENSORS];
    struct et_layout layout[ET_TENSORS];
    enum et_poison_kind poison;
    int64_t seed;
    switch (setting) {
    case DTYPES:
        return et_read_dtypes(r, node, dtype);
    case LAYOUT:
        return et_read_layout(r, node, layout);
    case POISON:
        return et_read_poison(r, node, &poison);
    case SEED:
        return et_json_int(r->json, node, "seed", 0, ET_EXACT, &seed, r->error);
    default:
        break;
    }
    return et_models_check(r, setting == MODEL ? node : NULL, setting == LAYER ? node : NULL,
                           setting == TP ? node : NULL);
}

/* Of defaults, or of the case; also where a sweep, or the case, replaces it: an error in it is one. */
static enum et_status check_settings(const struct et_reader *r, const cJSON *of)
{
    enum et_status status = ET_OK;
    for (int i = 0; status == ET_OK && i < SETTINGS; i++) {
        const cJSON *node = et_json_get(of, settings[i]);
        const cJSON *list = et_json_get(et_json_get(of, "sweep"), settings[i]);
        if (node)
            status = check_setting(r, i, node);
        for (node = list ? list->child : NULL; status == ET_OK && node; node = node->next)
            status = check_setting(r, i, node);
    }
    return status;
}

/* What the tuple has of a setting, or NULL. */
static const cJSON *swept(const struct et_entry *e, const char *key)
{
    for (int i = 0; i < e->axes; i++)
        if (e->axis[i].param == ET_SETTING && strcmp(e->axis[i].name, key) == 0)
            return chosen_at(e, i);
    return NULL;
}

static const cJSON *setting(const struct et_entry *e, const char *key)
{
    const cJSON *value = swept(e, key);
    return value ? value : et_entry_get(e, key);
}

/* ---- One tuple -> its cases ---- */

static enum et_status gather_axis(const struct et_entry *e, int axis, struct et_given *given)
{
    const cJSON *value = chosen_at(e, axis);
    const int param = e->axis[axis].param;
    enum et_status status = ET_OK;
    if (param >= 0) {
        given->given[param] = true;
        return et_read_field(&e->r, &e->r.op->params[param], value, &given->value[param]);
    }
    for (const cJSON *member = param == ET_SHAPES ? value->child : NULL; status == ET_OK && member;
         member = member->next)
        if (strcmp(member->string, "label") != 0)
            status = et_read_param(&e->r, member, given);
    return status;
}

/* defaults < model < params < shapes < sweep */
static enum et_status gather(const struct et_entry *e, struct et_given *given)
{
    const struct et_reader *r = &e->r;
    *given = (struct et_given){0};
    enum et_status status = et_read_params(r, et_json_get(e->defaults, "params"), "params", given);
    if (status == ET_OK)
        status = et_models_apply(r, setting(e, "model"), setting(e, "layer"), setting(e, "tp"), given);
    if (status == ET_OK)
        status = et_read_params(r, et_json_get(e->own, "params"), "params", given);
    for (int i = 0; status == ET_OK && i < e->axes; i++)
        status = gather_axis(e, i, given);
    return status;
}

/* Where the layout of a tensor stands, of what was read one after the other: the last one counts. */
static const cJSON *layout_at(const cJSON *const *layouts, int n, const char *name)
{
    const cJSON *found = NULL;
    for (int i = 0; i < n; i++) {
        const cJSON *node = et_json_get(layouts[i], name);
        found = node ? node : found;
    }
    return found;
}

/* What depends on more than one tensor's layout, or on types; sizes are looked at with the shape. */
static enum et_status check_sharing(const struct et_entry *e, const struct et_case *c,
                                    const cJSON *const *layouts, int n)
{
    const struct et_reader *r = &e->r;
    const struct et_tensor_spec *specs = r->op->tensors;
    for (int t = 0; specs[t].name; t++) {
        const struct et_layout *layout = &c->layout[t];
        const cJSON *node = layout_at(layouts, n, specs[t].name);
        const int of = layout->view_of - 1;
        if (of >= 0 && c->layout[of].view_of)
            return et_json_fail(r->json, et_json_get(node, "view_of"), r->error,
                                "%s is a view of %s, which is a view itself", specs[t].name, specs[of].name);
        if (of >= 0 && c->dtype[of] != c->dtype[t])
            return et_json_fail(r->json, et_json_get(node, "view_of"), r->error,
                                "%s is %s, and %s, of which it is a view, %s", specs[t].name,
                                et_format(c->dtype[t])->name, specs[of].name, et_format(c->dtype[of])->name);
        for (int u = 0; layout->buffer && u < t; u++)
            if (c->layout[u].buffer && strcmp(c->layout[u].buffer, layout->buffer) == 0 &&
                c->dtype[u] != c->dtype[t])
                return et_json_fail(r->json, et_json_get(node, "buffer"), r->error,
                                    "%s is %s, and %s, in the same buffer, %s", specs[t].name,
                                    et_format(c->dtype[t])->name, specs[u].name,
                                    et_format(c->dtype[u])->name);
    }
    return ET_OK;
}

static enum et_status gather_settings(const struct et_entry *e, struct et_case *c)
{
    const struct et_reader *r = &e->r;
    const struct et_tensor_spec *specs = r->op->tensors;
    int64_t seed = 0;
    for (int t = 0; specs[t].name; t++)
        c->dtype[t] = specs[t].same_as ? ET_DTYPES : specs[t].dtype;
    const cJSON *const dtypes[] = {et_json_get(e->defaults, "dtypes"), et_json_get(e->own, "dtypes"),
                                   swept(e, "dtypes")};
    const cJSON *const layouts[] = {et_json_get(e->defaults, "layout"), et_json_get(e->own, "layout"),
                                    swept(e, "layout")};
    enum et_status status = et_read_poison(r, setting(e, "poison"), &c->poison);
    for (int i = 0; status == ET_OK && i < 3; i++) {
        status = et_read_dtypes(r, dtypes[i], c->dtype);
        if (status == ET_OK)
            status = et_read_layout(r, layouts[i], c->layout);
    }
    for (int t = 0; specs[t].name; t++)
        c->dtype[t] =
            c->dtype[t] == ET_DTYPES ? c->dtype[et_tensor_index(r->op, specs[t].same_as)] : c->dtype[t];
    if (status == ET_OK)
        status = check_sharing(e, c, layouts, 3);
    if (status == ET_OK && setting(e, "seed"))
        status = et_json_int(r->json, setting(e, "seed"), "seed", 0, ET_EXACT, &seed, r->error);
    c->seed = (uint64_t)seed;
    return status;
}

/* In order of the fields, so that a default follows the field it is taken from. */
static bool apply_caps(const struct et_entry *e, enum et_tier tier, struct et_given *given)
{
    bool bound = false, missing;
    for (int i = 0; e->r.op->params[i].name; i++) {
        if (!(et_given_value(e->r.op->params, given, i, &missing) > e->cap[tier][i]))
            continue;
        given->given[i] = bound = true;
        given->value[i] = e->cap[tier][i];
    }
    return bound;
}

static enum et_status fill_steps(const struct et_entry *e, struct et_given given, struct et_case *c)
{
    const struct et_reader *r = &e->r;
    c->steps = et_arena_take(r->arena, (size_t)c->step_count, sizeof *c->steps, r->error);
    if (!c->steps)
        return ET_FAILED;
    memcpy(c->steps, e->form.steps, (size_t)c->step_count * sizeof *c->steps);
    for (int s = 0; s < c->step_count; s++) {
        const enum et_status status = et_read_params(r, e->sources[s].params, "params of a step", &given);
        if (status != ET_OK)
            return status;
        struct et_given capped = given;
        c->capped |= apply_caps(e, c->tier, &capped);
        for (int i = 0; r->op->params[i].name; i++) {
            bool missing;
            et_given_value(r->op->params, &capped, i, &missing);
            if (missing)
                return et_json_fail(r->json, e->own, r->error, "%s needs %s", e->name, r->op->params[i].name);
        }
        et_given_apply(r->op, &capped, c->steps[s].params);
        memcpy(c->steps[s].given, capped.given, sizeof capped.given);
    }
    return ET_OK;
}

static enum et_status check_lists(const struct et_entry *e, const struct et_case *c, int s,
                                  const struct et_problem *problem)
{
    for (int t = 0; c->op->tensors[t].name; t++) {
        const bool input = c->op->tensors[t].role == ET_INPUT;
        const cJSON *list = input ? e->sources[s].data[t] : e->sources[s].expect[t];
        const struct et_data *data = input ? &c->steps[s].data[t] : &c->steps[s].expect[t];
        struct et_error why;
        bool each;
        const bool whole = data->kind == ET_DATA_FILE &&
                           et_covers_whole(data->dtype, data->rank, data->size, &problem->tensor[t]);
        const enum et_status status =
            list && !whole ? et_values_map(problem, t, data->count, NULL, &each, &why) : ET_OK;
        if (status == ET_REFUSED)
            return et_json_fail(e->r.json, list, e->r.error, "%s: %s", c->id, why.text);
        if (status != ET_OK)
            return et_fail(e->r.error, status, "%s", why.text);
    }
    return ET_OK;
}

static enum et_status check_twin(const struct et_entry *e, const struct et_case *c,
                                 const struct et_problem *a, const struct et_problem *b)
{
    for (int t = 0; c->op->tensors[t].name; t++)
        if (c->op->tensors[t].role == ET_OUTPUT &&
            memcmp(a->tensor[t].size, b->tensor[t].size, sizeof a->tensor[t].size) != 0)
            return et_json_fail(e->r.json, e->own, e->r.error, "%s: a twin changes the shape of %s", c->id,
                                c->op->tensors[t].name);
    return ET_OK;
}

/* A view has the data of what it is a view of, which then are there for fills that follow other data. */
static enum et_status check_views(const struct et_entry *e, const struct et_case *c, int s)
{
    const struct et_tensor_spec *specs = c->op->tensors;
    const struct et_data *data = c->steps[s].data;
    for (int t = 0; specs[t].name; t++) {
        const int of = c->layout[t].view_of - 1;
        const cJSON *own = et_json_get(et_json_get(e->own, "data"), specs[t].name);
        if (of >= 0 && data[t].given)
            return et_json_fail(e->r.json, own ? own : e->own, e->r.error,
                                "%s: %s is a view of %s, and has no data of its own", c->id, specs[t].name,
                                specs[of].name);
        if (of >= 0 && et_data_is_own(&data[of]))
            return et_json_fail(e->r.json, e->own, e->r.error,
                                "%s: %s has the fill %s, which follows other data, and %s is a view of it",
                                c->id, specs[of].name, c->op->own_fills[data[of].fill.own].name,
                                specs[t].name);
    }
    return ET_OK;
}

/* What params say, no data may say otherwise. */
static enum et_status check_told(const struct et_entry *e, const struct et_case *c, int s,
                                 const struct et_problem *problem)
{
    const struct et_tensor_spec *specs = c->op->tensors;
    for (int t = 0; c->op->told && specs[t].name; t++) {
        const bool view = c->layout[t].view_of != 0;
        const cJSON *own = et_json_get(et_json_get(e->own, view ? "layout" : "data"), specs[t].name);
        if (specs[t].role == ET_INPUT && (view || c->steps[s].data[t].given) && c->op->told(problem, t))
            return et_json_fail(e->r.json, own ? own : e->own, e->r.error,
                                "%s: %s is what the params say, and %s", c->id, specs[t].name,
                                view ? "no view" : "takes no data");
    }
    return ET_OK;
}

/* Every step, and every twin of it, has a shape. */
static enum et_status check_case(const struct et_entry *e, const struct et_case *c)
{
    _Alignas(16) unsigned char params[ET_PARAMS_BYTES], twin_params[ET_PARAMS_BYTES];
    struct et_problem problem, twin;
    struct et_error why;
    enum et_status status = ET_OK;
    for (int s = 0; status == ET_OK && s < c->step_count; s++) {
        if (et_case_problem(c, s, NULL, params, &problem, &why) != ET_OK)
            return et_json_fail(e->r.json, e->own, e->r.error, "%s: %s", c->id, why.text);
        status = check_views(e, c, s);
        if (status == ET_OK)
            status = check_told(e, c, s, &problem);
        if (status == ET_OK)
            status = check_lists(e, c, s, &problem);
        for (int i = 0; status == ET_OK && i < c->twin_count; i++) {
            if (et_case_problem(c, s, &c->twins[i], twin_params, &twin, &why) != ET_OK)
                return et_json_fail(e->r.json, e->own, e->r.error, "%s: twin %d: %s", c->id, i, why.text);
            status = check_twin(e, c, &problem, &twin);
            if (status == ET_OK)
                status = check_lists(e, c, s, &twin);
        }
    }
    return status;
}

/* The array doubles at powers of two. */
static enum et_status append(struct et_entry *e, const struct et_case *c)
{
    struct et_cases *cases = e->cases;
    if ((cases->count & (cases->count - 1)) == 0) {
        struct et_case *at =
            et_resize(cases->at, cases->count ? 2 * (size_t)cases->count : 1, sizeof *at, e->r.error);
        if (!at)
            return ET_FAILED;
        cases->at = at;
    }
    cases->at[cases->count++] = *c;
    return ET_OK;
}

/* A form for each tier that a cap changes, then the uncapped one for the tiers left. */
static enum et_status expand(struct et_entry *e)
{
    struct et_given given;
    struct et_case form = e->form;
    enum et_status status = gather(e, &given);
    if (status == ET_OK)
        status = gather_settings(e, &form);
    for (int t = (int)form.tier; status == ET_OK && t < ET_TIERS; t++) {
        struct et_case c = form;
        c.tier = (enum et_tier)t;
        status = fill_steps(e, given, &c);
        if (status == ET_OK)
            status = make_id(e, &c, &c.id);
        if (status == ET_OK && !c.refused)
            status = check_case(e, &c);
        if (status == ET_OK)
            status = append(e, &c);
        if (!c.capped)
            break;
    }
    return status;
}

enum et_status et_entry_expand(struct et_entry *e)
{
    const int first = e->cases->count;
    enum et_status status = read_axes(e);
    if (status == ET_OK)
        status = check_settings(&e->r, e->defaults);
    if (status == ET_OK)
        status = check_settings(&e->r, e->own);
    while (status == ET_OK) {
        status = expand(e);
        if (!et_next_tuple(e->at, e->count, e->axes))
            break;
    }
    return status == ET_OK ? refuse_equal_ids(e, first) : status;
}
