#define _XOPEN_SOURCE 700 /* realpath */

#include "case_read.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FORMAT = 1,
    OWN = 5 /* keys that no default could be meant for */
};

/* Keys of a case: OWN ones, and those that `defaults` may have too. */
static const char *const keys[] = {"name",   "note",   "shapes", "steps", "expect", "origin",   "tier",
                                   "bench",  "model",  "tp",     "layer", "params", "sweep",    "dtypes",
                                   "layout", "data",   "fills",  "seed",  "poison", "variants", "rows",
                                   "limit",  "checks", "twins",  NULL};

/* ---- What the cases of an entry share ---- */

/*
 * The case's own value, or else the default. Of params, dtypes, layout, data, limit and checks both are read,
 * the default first, so that they are merged entry by entry (a tensor's layout or data being one entry).
 */
const cJSON *et_entry_get(const struct et_entry *e, const char *key)
{
    const cJSON *own = et_json_get(e->own, key);
    return own ? own : et_json_get(e->defaults, key);
}

static enum et_status find_tier(const struct et_reader *r, const cJSON *node, const char *name,
                                enum et_tier *tier)
{
    if (et_tier_named(name, tier))
        return ET_OK;
    return et_json_fail(r->json, node, r->error, "there is no tier \"%s\", only smoke, default and full",
                        name);
}

static enum et_status read_tier(const struct et_reader *r, const cJSON *node, struct et_case *c)
{
    const char *name = NULL;
    c->tier = ET_DEFAULT;
    const enum et_status status = node ? et_json_string(r->json, node, "tier", &name, r->error) : ET_OK;
    return status == ET_OK && node ? find_tier(r, node, name, &c->tier) : status;
}

static enum et_status read_bench(const struct et_reader *r, const cJSON *node, struct et_case *c)
{
    return node ? et_json_bool(r->json, node, "bench", &c->bench, r->error) : ET_OK;
}

static enum et_status read_rows(const struct et_reader *r, const cJSON *node, struct et_case *c)
{
    c->rows = 0;
    if (!node || (cJSON_IsString(node) && strcmp(node->valuestring, "all") == 0))
        return ET_OK;
    if (cJSON_IsNumber(node))
        return et_json_int(r->json, node, "rows", 1, ET_EXACT, &c->rows, r->error);
    return et_json_mismatch(r->json, node, "rows", "\"all\" or a number of at least 1", r->error);
}

/* The default first, also where the case's own value replaces it: an error in it is one. */
static enum et_status read_key(struct et_entry *e, const char *key,
                               enum et_status (*read)(const struct et_reader *r, const cJSON *node,
                                                      struct et_case *c))
{
    const cJSON *own = et_json_get(e->own, key);
    const enum et_status status = read(&e->r, et_json_get(e->defaults, key), &e->form);
    return status == ET_OK && own ? read(&e->r, own, &e->form) : status;
}

static enum et_status read_refused(struct et_entry *e)
{
    const cJSON *expect = et_json_get(e->own, "expect");
    const cJSON *refused = et_json_get(expect, "refused");
    e->r.refused = refused != NULL;
    if (refused && expect->child->next)
        return et_json_fail(e->r.json, expect, e->r.error, "expect has either refused or values, not both");
    const enum et_status status =
        refused ? et_copy_string(&e->r, refused, "expect.refused", &e->form.refused) : ET_OK;
    if (status == ET_OK && refused && !*e->form.refused)
        return et_json_fail(e->r.json, refused, e->r.error, "expect.refused is empty, must be a sentence");
    return status;
}

static enum et_status read_checks(struct et_entry *e)
{
    e->form.checks = et_checks_default();
    const enum et_status status = et_read_checks(&e->r, et_json_get(e->defaults, "checks"), &e->form.checks);
    return status == ET_OK ? et_read_checks(&e->r, et_json_get(e->own, "checks"), &e->form.checks) : status;
}

static enum et_status read_form(struct et_entry *e)
{
    struct et_case *c = &e->form;
    const cJSON *note = et_json_get(e->own, "note");
    c->op = e->r.op;
    et_json_at(e->r.json, e->own, &c->line, &c->column);
    enum et_status status = read_refused(e);
    if (status == ET_OK && note)
        status = et_copy_string(&e->r, note, "note", &c->note);
    if (status == ET_OK)
        status = read_key(e, "origin", et_read_origin);
    if (status == ET_OK)
        status = read_key(e, "tier", read_tier);
    if (status == ET_OK)
        status = read_key(e, "bench", read_bench);
    if (status == ET_OK)
        status = read_key(e, "rows", read_rows);
    if (status == ET_OK)
        status = read_checks(e);
    if (status == ET_OK)
        status = read_key(e, "fills", et_read_fills);
    if (status == ET_OK)
        status = read_key(e, "variants", et_read_asks);
    if (status == ET_OK)
        status = read_key(e, "twins", et_read_twins);
    return status;
}

/* ---- Steps ---- */

/* Data stay until a step replaces them; what a step expects is its own. */
static enum et_status read_step(struct et_entry *e, const cJSON *node, int s)
{
    static const char *const step_keys[] = {"params", "data", "expect", NULL};
    const struct et_reader *r = &e->r;
    struct et_case_step *step = &e->form.steps[s];
    struct et_sources *sources = &e->sources[s];
    enum et_status status = node ? et_json_keys(r->json, node, "a step", step_keys, r->error) : ET_OK;
    if (status != ET_OK)
        return status;
    if (s > 0) {
        memcpy(step->data, step[-1].data, sizeof step->data);
        memcpy(sources->data, sources[-1].data, sizeof sources->data);
    } else {
        status = et_read_data(r, et_json_get(e->defaults, "data"), ET_INPUT, step->data, sources->data);
        if (status == ET_OK)
            status = et_read_data(r, et_json_get(e->own, "data"), ET_INPUT, step->data, sources->data);
    }
    sources->params = et_json_get(node, "params");
    if (status == ET_OK)
        status = et_read_data(r, et_json_get(node, "data"), ET_INPUT, step->data, sources->data);
    if (status == ET_OK && !r->refused)
        status = et_read_data(r, et_json_get(e->own, "expect"), ET_OUTPUT, step->expect, sources->expect);
    if (status == ET_OK)
        status = et_read_data(r, et_json_get(node, "expect"), ET_OUTPUT, step->expect, sources->expect);
    return status;
}

static enum et_status read_steps(struct et_entry *e)
{
    const cJSON *steps = et_json_get(e->own, "steps");
    enum et_status status = steps ? et_json_array(e->r.json, steps, "steps", e->r.error) : ET_OK;
    if (status != ET_OK)
        return status;
    if (steps && !steps->child)
        return et_json_fail(e->r.json, steps, e->r.error, "steps is empty; leave it out for one step");
    const int count = steps ? cJSON_GetArraySize(steps) : 1;
    if (count > ET_STEPS)
        return et_json_fail(e->r.json, steps, e->r.error, "steps has %d entries, at most %d are allowed",
                            count, ET_STEPS);
    e->form.step_count = count;
    e->form.steps = et_arena_take(e->r.arena, (size_t)count, sizeof *e->form.steps, e->r.error);
    e->sources = et_arena_take(e->r.arena, (size_t)count, sizeof *e->sources, e->r.error);
    if (!e->form.steps || !e->sources)
        return ET_FAILED;
    const cJSON *node = steps ? steps->child : NULL;
    for (int s = 0; status == ET_OK && s < count; s++, node = node ? node->next : NULL)
        status = read_step(e, node, s);
    return status;
}

/* ---- Caps ---- */

static enum et_status read_caps_of(struct et_entry *e, const cJSON *node, enum et_tier tier)
{
    struct et_given given = {0};
    const enum et_status status = et_read_params(&e->r, node, "a tier's limit", &given);
    for (int i = 0; status == ET_OK && e->r.op->params[i].name; i++) {
        const struct et_field *field = &e->r.op->params[i];
        if (given.given[i] && field->kind != ET_INT && field->kind != ET_REAL)
            return et_json_fail(e->r.json, node, e->r.error, "%s is no number, so it has no limit",
                                field->name);
        if (given.given[i])
            e->cap[tier][i] = given.value[i];
    }
    return status;
}

static enum et_status read_caps(struct et_entry *e, const cJSON *limit, bool own)
{
    enum et_status status = limit ? et_json_object(e->r.json, limit, "limit", e->r.error) : ET_OK;
    for (const cJSON *node = limit ? limit->child : NULL; status == ET_OK && node; node = node->next) {
        enum et_tier tier = ET_DEFAULT;
        status = find_tier(&e->r, node, node->string, &tier);
        if (status == ET_OK && own && tier < e->form.tier)
            return et_json_fail_key(e->r.json, node, e->r.error, "limit for tier %s of a case of tier %s",
                                    node->string, et_tier_name(e->form.tier));
        if (status == ET_OK)
            status = read_caps_of(e, node, tier);
    }
    return status;
}

/* A narrower tier runs nothing larger than a wider one, so caps hold downwards too. */
static enum et_status read_limits(struct et_entry *e)
{
    for (int t = 0; t < ET_TIERS; t++)
        for (int i = 0; i < ET_PARAMS; i++)
            e->cap[t][i] = (double)INFINITY;
    enum et_status status = read_caps(e, et_json_get(e->defaults, "limit"), false);
    if (status == ET_OK)
        status = read_caps(e, et_json_get(e->own, "limit"), true);
    for (int t = ET_TIERS - 2; t >= 0; t--)
        for (int i = 0; i < ET_PARAMS; i++)
            e->cap[t][i] = fmin(e->cap[t][i], e->cap[t + 1][i]);
    return status;
}

static enum et_status read_entry(struct et_entry *e)
{
    const cJSON *name = et_json_get(e->own, "name");
    enum et_status status = et_json_keys(e->r.json, e->own, "a case", keys, e->r.error);
    if (status != ET_OK)
        return status;
    if (!name)
        return et_json_fail(e->r.json, e->own, e->r.error, "a case needs a name");
    status = et_json_string(e->r.json, name, "name", &e->name, e->r.error);
    if (status == ET_OK && !et_id_word(e->name))
        return et_id_unfit(&e->r, name, e->name);
    if (status == ET_OK)
        status = read_form(e);
    if (status == ET_OK)
        status = read_steps(e);
    if (status == ET_OK)
        status = read_limits(e);
    return status == ET_OK ? et_entry_expand(e) : status;
}

/* ---- Files ---- */

static enum et_status need(const struct et_reader *r, const char *key, const cJSON **node)
{
    *node = et_json_get(r->json->root, key);
    return *node ? ET_OK : et_json_fail(r->json, r->json->root, r->error, "the file needs \"%s\"", key);
}

static enum et_status read_format(const struct et_reader *r)
{
    const cJSON *node = NULL;
    int64_t format = 0;
    enum et_status status = need(r, "format", &node);
    if (status == ET_OK)
        status = et_json_int(r->json, node, "format", 1, ET_EXACT, &format, r->error);
    if (status == ET_OK && format > FORMAT)
        return et_json_fail(r->json, node, r->error, "format %lld is newer than this etalon reads (%d)",
                            (long long)format, FORMAT);
    return status;
}

static enum et_status read_operator(struct et_reader *r)
{
    const cJSON *node = NULL;
    const char *name = NULL;
    enum et_status status = need(r, "operator", &node);
    if (status == ET_OK)
        status = et_json_string(r->json, node, "operator", &name, r->error);
    if (status != ET_OK)
        return status;
    struct et_nearest nearest = {.word = name};
    for (int i = 0; et_operators[i]; i++)
        et_nearest_try(&nearest, et_operators[i]->name);
    r->op = et_operator_named(name);
    if (r->op)
        return ET_OK;
    return et_json_fail(r->json, node, r->error, "there is no operator \"%s\"; the nearest is \"%s\"", name,
                        nearest.best);
}

static enum et_status check_defaults(const struct et_reader *r)
{
    const cJSON *defaults = et_json_get(r->json->root, "defaults");
    for (int i = 0; i < OWN; i++) {
        const cJSON *node = et_json_get(defaults, keys[i]);
        if (node)
            return et_json_fail_key(r->json, node, r->error, "%s is for cases, not for defaults", keys[i]);
    }
    return defaults ? et_json_keys(r->json, defaults, "defaults", keys + OWN, r->error) : ET_OK;
}

/* A newer format may have any other keys, so its number is looked at first. */
static enum et_status read_head(struct et_reader *r)
{
    static const char *const file_keys[] = {"format", "operator", "note", "defaults", "cases", NULL};
    const cJSON *note = NULL;
    const char *text = NULL;
    enum et_status status = et_json_object(r->json, r->json->root, "the file", r->error);
    if (status == ET_OK)
        status = read_format(r);
    if (status == ET_OK)
        status = et_json_keys(r->json, r->json->root, "the file", file_keys, r->error);
    if (status == ET_OK)
        status = read_operator(r);
    note = et_json_get(r->json->root, "note");
    if (status == ET_OK && note)
        status = et_json_string(r->json, note, "note", &text, r->error);
    return status == ET_OK ? check_defaults(r) : status;
}

static const char *last_part(const char *path, const char *end)
{
    while (end > path && end[-1] != '/')
        end--;
    return end;
}

/* The name of the folder that a path's file lies in, however the path is spelled; NULL for none. Free it. */
static char *folder_name(const char *path, const char *part, struct et_error *error)
{
    char *folder = et_print(error, "%.*s", part > path ? (int)(part - path) : 1, part > path ? path : ".");
    char *real = folder ? realpath(folder, NULL) : NULL;
    char *name = real ? et_strdup(last_part(real, real + strlen(real)), error) : NULL;
    et_free(folder);
    free(real);
    return name;
}

/* The stem of the file's name; where that is the operator's, the name of its folder. */
static enum et_status file_word(const struct et_reader *r, const char *path, char **word)
{
    const char *end = path + strlen(path), *part = last_part(path, end);
    if (end - part > 5 && strcmp(end - 5, ".json") == 0)
        end -= 5;
    char *stem = et_print(r->error, "%.*s", (int)(end - part), part);
    if (stem && strcmp(stem, r->op->name) == 0) {
        char *folder = folder_name(path, part, r->error);
        if (folder && *folder) {
            et_free(stem);
            stem = folder;
        } else {
            et_free(folder);
        }
    }
    *word = stem ? et_arena_text(r->arena, stem, r->error) : NULL;
    et_free(stem);
    if (!*word)
        return ET_FAILED;
    return et_id_word(*word) ? ET_OK : et_id_unfit(r, NULL, *word);
}

static const cJSON *same_name(const cJSON *cases, const cJSON *own)
{
    const cJSON *name = et_json_get(own, "name");
    for (const cJSON *earlier = cases->child; cJSON_IsString(name) && earlier != own;
         earlier = earlier->next) {
        const cJSON *other = et_json_get(earlier, "name");
        if (cJSON_IsString(other) && strcmp(name->valuestring, other->valuestring) == 0)
            return other;
    }
    return NULL;
}

static enum et_status check_names(const struct et_reader *r, const cJSON *cases)
{
    for (const cJSON *own = cases->child; own; own = own->next) {
        const cJSON *other = same_name(cases, own);
        int line = 0, column = 0;
        et_json_at(r->json, other, &line, &column);
        if (other)
            return et_json_fail(r->json, et_json_get(own, "name"), r->error,
                                "\"%s\" is the name of the case on line %d too", other->valuestring, line);
    }
    return ET_OK;
}

static enum et_status read_file(struct et_reader *r, const char *path, struct et_cases *cases)
{
    char *word = NULL;
    const cJSON *list = NULL;
    const char *file = et_arena_text(r->arena, path, r->error);
    enum et_status status = file ? read_head(r) : ET_FAILED;
    if (status == ET_OK)
        status = file_word(r, path, &word);
    if (status == ET_OK)
        status = need(r, "cases", &list);
    if (status == ET_OK)
        status = et_json_array(r->json, list, "cases", r->error);
    if (status == ET_OK && !list->child)
        status = et_json_fail(r->json, list, r->error, "cases is empty");
    if (status == ET_OK)
        status = check_names(r, list);
    for (const cJSON *own = status == ET_OK ? list->child : NULL; status == ET_OK && own; own = own->next) {
        struct et_entry e = {.r = *r,
                             .own = own,
                             .defaults = et_json_get(r->json->root, "defaults"),
                             .word = word,
                             .form.file = file,
                             .cases = cases};
        status = read_entry(&e);
    }
    return status;
}

enum et_status et_cases_read(const char *path, const struct et_models *models, const struct et_port *port,
                             struct et_cases *cases, struct et_error *error)
{
    struct et_json json;
    const int before = cases->count;
    enum et_status status = et_json_read(path, &json, error);
    if (status != ET_OK)
        return status;
    struct et_reader r = {
        .json = &json, .models = models, .port = port, .arena = &cases->arena, .error = error};
    status = read_file(&r, path, cases);
    if (status != ET_OK)
        cases->count = before;
    et_json_free(&json);
    return status;
}
