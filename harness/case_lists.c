#include "case_read.h"

#include <stddef.h>
#include <string.h>

#include "../ocl/ocl.h"

/* ---- Checks ---- */

static enum et_status read_limit(const struct et_reader *r, const cJSON *node, const char *name,
                                 double *limit)
{
    if (cJSON_IsFalse(node)) {
        *limit = -1;
        return ET_OK;
    }
    if (cJSON_IsNumber(node) && node->valuedouble >= 0) {
        *limit = node->valuedouble;
        return ET_OK;
    }
    return et_json_mismatch(r->json, node, et_say("checks.%s", name).text, "a number of at least 0, or false",
                            r->error);
}

static enum et_status read_repeat(const struct et_reader *r, const cJSON *node, int *repeat)
{
    int64_t count = 1;
    const enum et_status status =
        cJSON_IsFalse(node) ? ET_OK
                            : et_json_int(r->json, node, "checks.repeat", 1, ET_REPEATS, &count, r->error);
    *repeat = (int)count;
    return status;
}

static enum et_status read_allclose(const struct et_reader *r, const cJSON *node, struct et_checks *checks)
{
    static const char *const keys[] = {"atol", "rtol", NULL};
    checks->allclose = !cJSON_IsFalse(node);
    if (!checks->allclose)
        return ET_OK;
    const enum et_status status = et_json_keys(r->json, node, "checks.allclose", keys, r->error);
    if (status != ET_OK)
        return status;
    const cJSON *atol = et_json_get(node, "atol"), *rtol = et_json_get(node, "rtol");
    const bool whole =
        cJSON_IsNumber(atol) && cJSON_IsNumber(rtol) && atol->valuedouble >= 0 && rtol->valuedouble >= 0;
    if (!whole)
        return et_json_fail(r->json, node, r->error,
                            "checks.allclose must be {\"atol\": A, \"rtol\": R} of at least 0, or false");
    checks->atol = atol->valuedouble;
    checks->rtol = rtol->valuedouble;
    return ET_OK;
}

#define AT(member) offsetof(struct et_checks, member)

const struct et_check_key et_check_keys[] = {
    {"nmse", ET_CHECK_LIMIT, AT(nmse), "sum of squared errors over that of the reference, at most"},
    {"bound", ET_CHECK_LIMIT, AT(bound), "largest error of an element in units of its tolerance, at most"},
    {"noise", ET_CHECK_LIMIT, AT(noise), "error energy of a row over the predicted one, at most"},
    {"gain", ET_CHECK_LIMIT, AT(gain), "coherent error of a tensor in standard deviations, at most"},
    {"agrees", ET_CHECK_LIMIT, AT(agrees), "two variants apart, in units of the sum of their tolerances"},
    {"exact", ET_CHECK_SWITCH, AT(exact), "on exact fills the bytes of the one right result"},
    {"replay", ET_CHECK_SWITCH, AT(replay), "the bytes of the claimed order of additions"},
    {"identical", ET_CHECK_SWITCH, AT(identical), "the bytes of runs of the same order, and of twins"},
    {"repeat", ET_CHECK_COUNT, AT(repeat), "executions that must give the same bytes; false: one"},
    {"written", ET_CHECK_SWITCH, AT(written), "no output element still holds its poison"},
    {"guards", ET_CHECK_SWITCH, AT(guards), "nothing around a buffer, and no padding, changed"},
    {"inputs_kept", ET_CHECK_SWITCH, AT(inputs_kept), "no input changed"},
    {"expect", ET_CHECK_SWITCH, AT(expect), "the values that the case expects"},
    {"allclose", ET_CHECK_PAIR, AT(allclose),
     "error at most atol + rtol |reference|; for parity with others"},
    {NULL, ET_CHECK_SWITCH, 0, NULL},
};

struct et_checks et_checks_default(void)
{
    return (struct et_checks){.nmse = 5e-4,
                              .bound = 1,
                              .noise = 4,
                              .gain = 6,
                              .agrees = 1,
                              .exact = true,
                              .replay = true,
                              .identical = true,
                              .written = true,
                              .guards = true,
                              .inputs_kept = true,
                              .expect = true,
                              .repeat = 2};
}

static enum et_status read_check(const struct et_reader *r, const cJSON *node, struct et_checks *checks)
{
    const struct et_check_key *key = et_check_keys;
    while (strcmp(key->name, node->string) != 0)
        key++;
    void *const at = (char *)checks + key->offset;
    switch (key->kind) {
    case ET_CHECK_LIMIT:
        return read_limit(r, node, key->name, at);
    case ET_CHECK_SWITCH:
        return et_json_bool(r->json, node, et_say("checks.%s", key->name).text, at, r->error);
    case ET_CHECK_COUNT:
        return read_repeat(r, node, at);
    case ET_CHECK_PAIR:
        break;
    }
    return read_allclose(r, node, checks);
}

enum et_status et_read_checks(const struct et_reader *r, const cJSON *node, struct et_checks *checks)
{
    const char *names[sizeof et_check_keys / sizeof et_check_keys[0]];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        names[i] = et_check_keys[i].name;
    enum et_status status = node ? et_json_keys(r->json, node, "checks", names, r->error) : ET_OK;
    for (const cJSON *member = node ? node->child : NULL; status == ET_OK && member; member = member->next)
        status = read_check(r, member, checks);
    return status;
}

/* ---- Lists: fills, origin, twins, variants ---- */

/* A list with at least one entry. */
static enum et_status read_entries(const struct et_reader *r, const cJSON *node, const char *what)
{
    const enum et_status status = et_json_array(r->json, node, what, r->error);
    if (status == ET_OK && !node->child)
        return et_json_fail(r->json, node, r->error, "%s is empty; leave it out for the default", what);
    return status;
}

enum et_status et_read_fills(const struct et_reader *r, const cJSON *node, struct et_case *c)
{
    enum et_status status = node ? read_entries(r, node, "fills") : ET_OK;
    if (status != ET_OK)
        return status;
    const int count = node ? cJSON_GetArraySize(node) : 1;
    c->fills = et_arena_take(r->arena, (size_t)count, sizeof *c->fills, r->error);
    if (!c->fills)
        return ET_FAILED;
    c->fill_count = node ? 0 : 1;
    c->fills[0] = ET_FILL_NORMAL;
    for (const cJSON *item = node ? node->child : NULL; item; item = item->next) {
        enum et_fill_kind *fill = &c->fills[c->fill_count];
        status = et_find_fill(r, item, "a fill", fill);
        if (status != ET_OK)
            return status;
        if (*fill == ET_FILL_CONSTANT)
            return et_json_fail(
                r->json, item, r->error,
                "fill \"constant\" needs a value: write \"data\": {TENSOR: {\"constant\": X}}");
        for (int i = 0; i < c->fill_count; i++)
            if (c->fills[i] == *fill)
                return et_json_fail(r->json, item, r->error, "fill \"%s\" is given twice", item->valuestring);
        c->fill_count++;
    }
    return ET_OK;
}

/* owner/repo#number */
static bool is_origin(const char *text)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t owner = strspn(text, word);
    if (owner == 0 || text[owner] != '/')
        return false;
    const char *const repo = text + owner + 1;
    const size_t n = strspn(repo, word);
    if (n == 0 || repo[n] != '#')
        return false;
    const char *const number = repo + n + 1;
    const size_t digits = strspn(number, "0123456789");
    return digits > 0 && number[digits] == '\0';
}

enum et_status et_read_origin(const struct et_reader *r, const cJSON *node, struct et_case *c)
{
    enum et_status status = node ? read_entries(r, node, "origin") : ET_OK;
    if (status != ET_OK)
        return status;
    const size_t count = node ? (size_t)cJSON_GetArraySize(node) : 0;
    const char **origin = et_arena_take(r->arena, count + 1, sizeof *origin, r->error);
    if (!origin)
        return ET_FAILED;
    c->origin = origin;
    for (const cJSON *item = node ? node->child : NULL; status == ET_OK && item;
         item = item->next, origin++) {
        status = et_copy_string(r, item, "origin", origin);
        if (status == ET_OK && !is_origin(item->valuestring))
            status = et_json_fail(r->json, item, r->error, "origin \"%s\" must read OWNER/REPO#NUMBER",
                                  item->valuestring);
    }
    return status;
}

static enum et_status read_twin(const struct et_reader *r, const cJSON *node, struct et_twin *twin)
{
    static const char *const keys[] = {"params", "poison", NULL};
    enum et_status status = et_json_keys(r->json, node, "a twin", keys, r->error);
    if (status == ET_OK && !node->child)
        return et_json_fail(r->json, node, r->error, "a twin needs params or poison");
    struct et_given given = {0};
    if (status == ET_OK)
        status = et_read_params(r, et_json_get(node, "params"), "params of a twin", &given);
    memcpy(twin->edits, given.given, sizeof twin->edits);
    memcpy(twin->value, given.value, sizeof twin->value);
    twin->has_poison = et_json_get(node, "poison") != NULL;
    return status == ET_OK ? et_read_poison(r, et_json_get(node, "poison"), &twin->poison) : status;
}

enum et_status et_read_twins(const struct et_reader *r, const cJSON *node, struct et_case *c)
{
    enum et_status status = node ? read_entries(r, node, "twins") : ET_OK;
    if (!node || status != ET_OK)
        return status;
    c->twins = et_arena_take(r->arena, (size_t)cJSON_GetArraySize(node), sizeof *c->twins, r->error);
    if (!c->twins)
        return ET_FAILED;
    c->twin_count = 0;
    for (const cJSON *item = node->child; status == ET_OK && item; item = item->next)
        status = read_twin(r, item, &c->twins[c->twin_count++]);
    return status;
}

bool et_next_tuple(int *at, const int *count, int n)
{
    for (int i = n - 1; i >= 0; i--) {
        if (++at[i] < count[i])
            return true;
        at[i] = 0;
    }
    return false;
}

/* *variant NULL: what the case names is a variant of etalon's own port, and passed over by another. */
static enum et_status find_variant(const struct et_reader *r, const cJSON *node,
                                   const struct et_variant **variant)
{
    const char *name = NULL;
    if (et_json_string(r->json, node, "the name of a variant", &name, r->error) != ET_OK)
        return ET_INVALID;
    *variant = et_variant_named(r->port, r->op->name, name);
    if (*variant || et_variant_named(&et_ocl, r->op->name, name))
        return ET_OK;
    if (strcmp(name, "auto") == 0)
        return et_json_fail(r->json, node, r->error,
                            "port %s has no variant \"auto\"; without variants every one that fits runs",
                            r->port->name);
    struct et_nearest nearest = {.word = name};
    for (int i = 0; r->port->variants[i]; i++)
        if (strcmp(r->port->variants[i]->op, r->op->name) == 0)
            et_nearest_try(&nearest, r->port->variants[i]->name);
    if (!nearest.best)
        return et_json_fail(r->json, node, r->error, "port %s has no variants of %s", r->port->name,
                            r->op->name);
    return et_json_fail(r->json, node, r->error, "%s has no variant \"%s\"; the nearest is \"%s\"",
                        r->op->name, name, nearest.best);
}

/* The knobs of one entry of `variants`: member k takes count[k] values. */
struct knobs {
    const struct et_variant *variant;
    int n, index[ET_PARAMS], count[ET_PARAMS], at[ET_PARAMS];
    const cJSON *member[ET_PARAMS];
};

static enum et_status read_knobs(const struct et_reader *r, const cJSON *node, struct knobs *knobs)
{
    const cJSON *name = cJSON_IsObject(node) ? et_json_get(node, "name") : node;
    if (!name)
        return et_json_fail(r->json, node, r->error, "a variant needs its name");
    enum et_status status = find_variant(r, name, &knobs->variant);
    if (!cJSON_IsObject(node) || !knobs->variant)
        return status;
    for (const cJSON *member = node->child; status == ET_OK && member; member = member->next) {
        if (member == name)
            continue;
        int index = -1;
        status = et_find_field(r, knobs->variant->knobs, knobs->variant->name, "knob", member, &index);
        if (status == ET_OK && cJSON_IsArray(member))
            status = read_entries(r, member, member->string);
        if (status != ET_OK)
            return status;
        knobs->member[knobs->n] = member;
        knobs->index[knobs->n] = index;
        knobs->count[knobs->n++] = cJSON_IsArray(member) ? cJSON_GetArraySize(member) : 1;
    }
    return status;
}

static enum et_status read_ask(const struct et_reader *r, const struct knobs *knobs, struct et_ask *ask)
{
    struct et_reader ranged = *r;
    ranged.refused = false;
    *ask = (struct et_ask){.variant = knobs->variant, .named = true};
    for (int k = 0; k < ET_PARAMS; k++)
        ask->knob[k] = ET_UNSET;
    for (int k = 0; k < knobs->n; k++) {
        const cJSON *member = knobs->member[k];
        const cJSON *value = cJSON_IsArray(member) ? cJSON_GetArrayItem(member, knobs->at[k]) : member;
        double number = 0;
        const enum et_status status =
            et_read_field(&ranged, &knobs->variant->knobs[knobs->index[k]], value, &number);
        if (status != ET_OK)
            return status;
        ask->knob[knobs->index[k]] = (int64_t)number;
    }
    return ET_OK;
}

static enum et_status refuse_repeated(const struct et_reader *r, const cJSON *node, const struct et_case *c)
{
    const struct et_ask *last = &c->asks[c->ask_count - 1];
    for (const struct et_ask *ask = c->asks; ask < last; ask++)
        if (ask->variant == last->variant && memcmp(ask->knob, last->knob, sizeof ask->knob) == 0)
            return et_json_fail(r->json, node, r->error, "variants asks for the same %s twice",
                                last->variant->name);
    return ET_OK;
}

enum { ASKS = 1024 };

static enum et_status read_asks_of(const struct et_reader *r, const cJSON *node, struct et_case *c)
{
    struct knobs knobs = {0};
    enum et_status status = read_knobs(r, node, &knobs);
    while (status == ET_OK && knobs.variant) {
        if (c->ask_count == ASKS)
            return et_json_fail(r->json, node, r->error, "variants makes more than %d runs of each case",
                                ASKS);
        status = read_ask(r, &knobs, &c->asks[c->ask_count++]);
        if (status == ET_OK)
            status = refuse_repeated(r, node, c);
        if (!et_next_tuple(knobs.at, knobs.count, knobs.n))
            return status;
    }
    return status;
}

enum et_status et_read_asks(const struct et_reader *r, const cJSON *node, struct et_case *c)
{
    enum et_status status = node ? read_entries(r, node, "variants") : ET_OK;
    if (!node || status != ET_OK)
        return status;
    struct et_ask *all = et_alloc(ASKS, sizeof *all, r->error);
    if (!all)
        return ET_FAILED;
    c->asks = all;
    c->ask_count = 0;
    for (const cJSON *item = node->child; status == ET_OK && item; item = item->next)
        status = read_asks_of(r, item, c);
    c->elsewhere = c->ask_count == 0;
    c->asks = et_arena_take(r->arena, (size_t)c->ask_count, sizeof *c->asks, r->error);
    if (c->asks)
        memcpy(c->asks, all, (size_t)c->ask_count * sizeof *c->asks);
    et_free(all);
    return c->asks ? status : ET_FAILED;
}
