#define _POSIX_C_SOURCE 200809L

#include "judge.h"
#include "plan.h"
#include "records.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Files ---- */

struct paths {
    char **at;
    int count;
    struct folder *folders; /* walked so far */
    int folder_count;
};

struct folder {
    dev_t device;
    ino_t inode;
};

static void free_paths(struct paths *paths)
{
    for (int i = 0; i < paths->count; i++)
        et_free(paths->at[i]);
    et_free(paths->at);
    et_free(paths->folders);
    *paths = (struct paths){0};
}

static enum et_status add_path(struct paths *paths, char *path, struct et_error *error)
{
    char **grown = path ? et_resize(paths->at, (size_t)paths->count + 1, sizeof *grown, error) : NULL;
    if (!grown) {
        et_free(path);
        return ET_FAILED;
    }
    paths->at = grown;
    paths->at[paths->count++] = path;
    return ET_OK;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* What a case folder holds besides case files. */
static bool is_case_file(const char *name)
{
    const size_t n = strlen(name);
    return name[0] != '.' && n > 5 && !strcmp(name + n - 5, ".json") && strcmp(name, "models.json") != 0 &&
           strcmp(name, "case.schema.json") != 0;
}

/* *first: it was not walked yet, by whatever name; links may lead back. */
static enum et_status visit(const char *path, struct paths *paths, bool *first, struct et_error *error)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return et_fail(error, ET_INVALID, "%s: %s", path, strerror(errno));
    *first = false;
    for (int i = 0; i < paths->folder_count; i++)
        if (paths->folders[i].device == st.st_dev && paths->folders[i].inode == st.st_ino)
            return ET_OK;
    struct folder *grown = et_resize(paths->folders, (size_t)paths->folder_count + 1, sizeof *grown, error);
    if (!grown)
        return ET_FAILED;
    paths->folders = grown;
    paths->folders[paths->folder_count++] = (struct folder){st.st_dev, st.st_ino};
    *first = true;
    return ET_OK;
}

static enum et_status walk(const char *folder, struct paths *paths, struct et_error *error)
{
    struct dirent **entries;
    bool first;
    const enum et_status visited = visit(folder, paths, &first, error);
    if (visited != ET_OK || !first)
        return visited;
    const int n = scandir(folder, &entries, NULL, alphasort);
    if (n < 0)
        return et_fail(error, ET_INVALID, "%s: %s", folder, strerror(errno));
    enum et_status status = ET_OK;
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        char *path = status == ET_OK && name[0] != '.' ? et_print(error, "%s/%s", folder, name) : NULL;
        if (status == ET_OK && name[0] != '.' && !path)
            status = ET_FAILED;
        if (path && is_folder(path)) {
            status = walk(path, paths, error);
            et_free(path);
        } else if (path && is_case_file(name)) {
            status = add_path(paths, path, error);
        } else {
            et_free(path);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* ---- Cases ---- */

/* models.json beside the case file or one folder up, else the built-in one. */
static enum et_status models_for(const char *path, const struct et_options *options,
                                 struct et_models **models, struct et_error *error)
{
    const char *slash = strrchr(path, '/');
    const int n = slash ? (int)(slash - path) : 1;
    const char *const parents[] = {slash ? path : ".", slash ? path : ".", options->cases};
    const int lengths[] = {n, n, (int)strlen(options->cases)};
    const char *const up[] = {"", "/..", ""};
    for (int i = 0; i < 3; i++) {
        char *at = et_print(error, "%.*s%s/models.json", lengths[i], parents[i], up[i]);
        if (!at)
            return ET_FAILED;
        const bool take = i == 2 || exists(at);
        const enum et_status status = take ? et_models_read(at, models, error) : ET_OK;
        et_free(at);
        if (take)
            return status;
    }
    return ET_OK;
}

static enum et_status read_file(const char *path, const struct et_options *options,
                                const struct et_port *port, struct et_plan *plan, struct et_error *error)
{
    struct et_models *models = NULL;
    enum et_status status = models_for(path, options, &models, error);
    if (status == ET_OK)
        status = et_cases_read(path, models, port, &plan->cases, error);
    et_models_free(models);
    return status;
}

static bool listed(const struct et_strings *list, const char *text)
{
    for (int i = 0; i < list->count; i++)
        if (!strcmp(list->at[i], text))
            return true;
    return false;
}

static bool globbed(const struct et_strings *globs, const char *id, const char *case_id)
{
    for (int i = 0; i < globs->count; i++)
        if (et_glob(globs->at[i], id) || et_glob(globs->at[i], case_id))
            return true;
    return false;
}

/* ---- Variants ---- */

/* A variant asked for by a case or the command line, and whether any case took it. */
struct demand {
    const struct et_case *c; /* first case of the entry that asked; NULL: the command line */
    char *text;
    int fitted;
    struct et_error why; /* the last refusal */
};

struct builder {
    const struct et_options *options;
    const struct et_port *port;
    struct et_plan *plan;
    struct demand *demands;
    int demand_count;
    const char *target; /* as in struct et_run */
    const char *only;   /* an id asked for, or NULL */
    bool found;         /* a run of that id was added */
    int group;
    int *slots;                /* of a hash table: 1 + the index of a run, or 0 */
    int slot_count;            /* a power of two, more than twice the runs */
    int fitted;                /* variants so far that fit their case */
    struct et_records results; /* of --failed */
    bool *met;                 /* one of them: it is a run of a case that was read */
    struct et_error why;       /* the last refusal */
};

/* Expanded cases of one entry stand at one place of one file. */
static bool same_entry(const struct et_case *a, const struct et_case *b)
{
    return a && b && a->line == b->line && a->column == b->column && !strcmp(a->file, b->file);
}

static struct demand *demand_of(struct builder *b, const struct et_case *c, const char *text,
                                struct et_error *error)
{
    for (int i = 0; i < b->demand_count; i++) {
        struct demand *d = &b->demands[i];
        if (!strcmp(d->text, text) && ((!c && !d->c) || same_entry(c, d->c)))
            return d;
    }
    struct demand *grown = et_resize(b->demands, (size_t)b->demand_count + 1, sizeof *grown, error);
    if (!grown)
        return NULL;
    b->demands = grown;
    b->demands[b->demand_count] = (struct demand){.c = c, .text = et_strdup(text, error)};
    return b->demands[b->demand_count].text ? &b->demands[b->demand_count++] : NULL;
}

enum et_status et_case_fits(const struct et_case *c, const struct et_ask *ask, struct et_error *why)
{
    const struct et_device device = et_device_unlimited();
    const int jobs = 1 + c->twin_count;
    for (int i = 0; i < c->step_count * jobs; i++) {
        const struct et_twin *twin = i % jobs ? &c->twins[i % jobs - 1] : NULL;
        _Alignas(16) unsigned char params[ET_PARAMS_BYTES];
        struct et_problem problem;
        struct et_claim claim;
        enum et_status status = et_case_problem(c, i / jobs, twin, params, &problem, why);
        if (status == ET_OK && ask->variant)
            status = ask->variant->resolve(&problem, &device, ask->knob, &claim, why);
        if (status != ET_OK)
            return status;
    }
    return ET_OK;
}

/* Two spellings of one path are one file. */
static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return !strcmp(a, b) ||
           (stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino);
}

/* The slot of an id: the one that has it, or the free one where it belongs. FNV-1a. */
static int *slot_of(const struct builder *b, const char *id)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (const char *c = id; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
    int at = (int)(hash & (uint64_t)(b->slot_count - 1));
    while (b->slots[at] && strcmp(b->plan->runs[b->slots[at] - 1].id, id) != 0)
        at = (at + 1) & (b->slot_count - 1);
    return &b->slots[at];
}

/* Room for one more run, in the plan and in the table. */
static enum et_status make_room(struct builder *b, struct et_error *error)
{
    struct et_plan *plan = b->plan;
    if (2 * (plan->count + 1) < b->slot_count)
        return ET_OK;
    const int count = b->slot_count > 0 ? 2 * b->slot_count : 64;
    struct et_run *runs = et_resize(plan->runs, (size_t)count / 2, sizeof *runs, error);
    if (!runs)
        return ET_FAILED;
    plan->runs = runs;
    int *slots = et_alloc((size_t)count, sizeof *slots, error);
    if (!slots)
        return ET_FAILED;
    et_free(b->slots);
    b->slots = slots;
    b->slot_count = count;
    for (int i = 0; i < plan->count; i++)
        *slot_of(b, plan->runs[i].id) = i + 1;
    return ET_OK;
}

/* Whether --failed, if given, has it as failed on any device. */
static bool failed_before(struct builder *b, const char *id)
{
    if (!b->options->failed)
        return true;
    const struct et_records *results = &b->results;
    bool failed = false;
    for (int i = et_records_find(results, id); i >= 0 && i < results->count; i++) {
        if (strcmp(results->at[i].id, id) != 0)
            break;
        b->met[i] = true;
        failed = failed || et_verdict_bad(results->at[i].verdict);
    }
    return failed;
}

static enum et_status add_run(struct builder *b, const struct et_case *c, const char *fill,
                              enum et_fill_kind kind, const struct et_ask *ask, struct et_error *error)
{
    struct et_plan *plan = b->plan;
    struct et_text id = {0};
    et_text_add(&id, "%s/%s/", c->id, fill);
    if (ask->variant)
        et_ask_name(ask, &id);
    else
        et_text_add(&id, "-");
    enum et_status status =
        id.failed ? et_fail(error, ET_FAILED, "out of memory for an id") : make_room(b, error);
    const bool failed = status == ET_OK && failed_before(b, id.data);
    const bool wanted = failed && (!b->only || !strcmp(b->only, c->id) || !strcmp(b->only, id.data)) &&
                        (b->options->filters.count == 0 || globbed(&b->options->filters, id.data, c->id)) &&
                        !globbed(&b->options->excludes, id.data, c->id);
    int *const slot = wanted ? slot_of(b, id.data) : NULL;
    b->found = b->found || wanted;
    if (!wanted || *slot) {
        const struct et_run *same = wanted ? &plan->runs[*slot - 1] : NULL;
        et_text_free(&id);
        if (same && !same_file(same->c->file, c->file))
            status = et_fail(error, ET_INVALID, "%s:%d:%d: the id %s is that of a case of %s too", c->file,
                             c->line, c->column, c->id, same->c->file);
        return status;
    }
    *slot = plan->count + 1;
    plan->runs[plan->count++] = (struct et_run){
        .id = id.data, .c = c, .fill = kind, .ask = *ask, .group = b->group, .target = b->target};
    return ET_OK;
}

static enum et_status add_ask(struct builder *b, const struct et_case *c, enum et_fill_kind fill,
                              const struct et_ask *ask, bool by_command, struct et_error *error)
{
    struct et_text name = {0};
    et_ask_name(ask, &name);
    struct et_error why = {"out of memory for the name of a variant"};
    const enum et_status fit = name.failed ? ET_FAILED : et_case_fits(c, ask, &why);
    /* What broke is no variant that does not fit. */
    enum et_status status = fit == ET_FAILED ? et_fail(error, fit, "%s", why.text) : ET_OK;
    struct demand *d = NULL;
    b->fitted += fit == ET_OK;
    if (fit != ET_OK)
        b->why = why;
    if (status == ET_OK && ask->named) {
        d = demand_of(b, by_command ? NULL : c, name.data, error);
        status = d ? ET_OK : ET_FAILED;
    }
    if (d) {
        d->fitted += fit == ET_OK;
        if (fit != ET_OK)
            d->why = why;
    }
    if (status == ET_OK && fit == ET_OK)
        status = add_run(b, c, et_fill_name(fill), fill, ask, error);
    else if (status == ET_OK && fill == c->fills[0])
        et_text_add(&b->plan->notes, "%s: no %s: %s\n", c->id, name.data, why.text);
    et_text_free(&name);
    return status;
}

/* The value of a knob as et_ask_name prints it: a number, a truth, or one of its names. *end is where it
 * stopped. */
static enum et_status parse_knob(const struct et_field *knob, const char *text, int64_t *value,
                                 const char **end, struct et_error *error)
{
    static const char *const truths[] = {"false", "true", NULL};
    const char *const *names = knob->kind == ET_BOOL ? truths : knob->kind == ET_NAME ? knob->names : NULL;
    const size_t n = strcspn(text, ",");
    *end = text + n;
    for (int64_t i = 0; names && names[i]; i++)
        if (strlen(names[i]) == n && !strncmp(names[i], text, n)) {
            *value = i;
            return ET_OK;
        }
    char *after;
    *value = strtoll(text, &after, 10);
    if (names || n == 0 || after != *end)
        return et_fail(error, ET_INVALID, "\"%.*s\" is no value of knob %s", (int)n, text, knob->name);
    return et_field_check(knob, (double)*value, error);
}

static const struct et_variant *variant_of(const char *text, const char *op, const struct et_port *port)
{
    char name[64];
    const size_t n = strcspn(text, ":");
    if (n >= sizeof name)
        return NULL;
    memcpy(name, text, n);
    name[n] = '\0';
    return et_variant_named(port, op, name);
}

/* "name:knob=value,knob=value" of the command line; ask->variant NULL: the operator has no such variant. */
static enum et_status parse_ask(const char *text, const char *op, const struct et_port *port,
                                struct et_ask *ask, struct et_error *error)
{
    *ask = (struct et_ask){.variant = variant_of(text, op, port), .named = true};
    for (int i = 0; i < ET_PARAMS; i++)
        ask->knob[i] = ET_UNSET;
    const char *at = text + strcspn(text, ":");
    while (ask->variant && *at) {
        char name[64];
        const size_t n = strcspn(at + 1, "=");
        if (n >= sizeof name || at[1 + n] != '=')
            return et_fail(error, ET_INVALID, "--variant %s: must read NAME:knob=VALUE,knob=VALUE", text);
        memcpy(name, at + 1, n);
        name[n] = '\0';
        const int k = et_field_index(ask->variant->knobs, name);
        if (k < 0)
            return et_fail(error, ET_INVALID, "--variant %s: %s has no knob \"%s\"", text, ask->variant->name,
                           name);
        struct et_error why;
        if (parse_knob(&ask->variant->knobs[k], at + 2 + n, &ask->knob[k], &at, &why) != ET_OK)
            return et_fail(error, ET_INVALID, "--variant %s: %s", text, why.text);
    }
    return ET_OK;
}

/* ---- Runs of one case ---- */

/* Whether --variant, if given, names it. */
static bool by_name(const struct et_strings *variants, const char *name)
{
    const size_t n = strlen(name);
    for (int i = 0; i < variants->count; i++)
        if (!strncmp(variants->at[i], name, n) && (variants->at[i][n] == '\0' || variants->at[i][n] == ':'))
            return true;
    return variants->count == 0;
}

static enum et_status add_refusal(struct builder *b, const struct et_case *c, struct et_error *error)
{
    const struct et_ask none = {0};
    enum et_status status = ET_OK;
    b->group++;
    for (int i = 0; status == ET_OK && i < c->ask_count; i++)
        if (by_name(&b->options->variants, c->asks[i].variant->name))
            status = add_run(b, c, "-", ET_FILL_NORMAL, &c->asks[i], error);
    if (c->ask_count == 0 && b->options->variants.count == 0)
        status = add_run(b, c, "-", ET_FILL_NORMAL, &none, error);
    return status;
}

static enum et_status add_by_command(struct builder *b, const struct et_case *c, enum et_fill_kind fill,
                                     struct et_error *error)
{
    for (int i = 0; i < b->options->variants.count; i++) {
        const char *text = b->options->variants.at[i];
        struct et_ask ask;
        enum et_status status = parse_ask(text, c->op->name, b->port, &ask, error);
        int own = 0;
        for (int k = 0; status == ET_OK && ask.variant && !strchr(text, ':') && k < c->ask_count; k++)
            if (c->asks[k].variant == ask.variant) {
                status = add_ask(b, c, fill, &c->asks[k], false, error);
                own++;
            }
        if (status == ET_OK && ask.variant && !own)
            status = add_ask(b, c, fill, &ask, true, error);
        if (status != ET_OK)
            return status;
    }
    return ET_OK;
}

/* A case that no variant computes is told of, not left out. */
static enum et_status add_skip(struct builder *b, const struct et_case *c, enum et_fill_kind fill,
                               struct et_error *error)
{
    const struct et_ask none = {0};
    const int before = b->plan->count;
    const enum et_status status = add_run(b, c, et_fill_name(fill), fill, &none, error);
    if (status != ET_OK || b->plan->count == before)
        return status;
    struct et_run *run = &b->plan->runs[before];
    run->skip = et_strdup(b->why.text, error);
    return run->skip ? ET_OK : ET_FAILED;
}

/* A variant that only a case or --variant that names it runs on this shape. */
static bool left_out(const struct et_case *c, const struct et_variant *variant)
{
    _Alignas(16) unsigned char params[ET_PARAMS_BYTES];
    struct et_problem problem;
    return variant->left_out && et_case_problem(c, 0, NULL, params, &problem, NULL) == ET_OK &&
           variant->left_out(&problem);
}

static enum et_status add_by_default(struct builder *b, const struct et_case *c, enum et_fill_kind fill,
                                     struct et_error *error)
{
    const int fitted = b->fitted;
    enum et_status status = ET_OK;
    et_fail(&b->why, ET_OK, "port %s has no variant of %s", b->port->name, c->op->name);
    for (int i = 0; status == ET_OK && i < c->ask_count; i++)
        status = add_ask(b, c, fill, &c->asks[i], false, error);
    for (int i = 0; status == ET_OK && c->ask_count == 0 && b->port->variants[i]; i++) {
        struct et_ask ask = {.variant = b->port->variants[i]};
        for (int k = 0; k < ET_PARAMS; k++)
            ask.knob[k] = ET_UNSET;
        if (!strcmp(ask.variant->op, c->op->name) && !left_out(c, ask.variant))
            status = add_ask(b, c, fill, &ask, false, error);
    }
    if (status == ET_OK && c->ask_count == 0 && b->fitted == fitted)
        status = add_skip(b, c, fill, error);
    return status;
}

static enum et_status add_case(struct builder *b, const struct et_case *c, struct et_error *error)
{
    b->found = b->found || (b->only && !strcmp(b->only, c->id));
    if (b->options->operators.count > 0 && !listed(&b->options->operators, c->op->name))
        return ET_OK;
    /* What an outsider's variants refuse, though they be called as ours, the outsider alone knows. */
    if (c->refused && (c->elsewhere || (c->ask_count > 0 && b->options->outsider))) {
        et_text_add(&b->plan->notes, "%s: the refusal is one of variants that port %s does not have\n", c->id,
                    b->port->name);
        return ET_OK;
    }
    if (c->refused)
        return add_refusal(b, c, error);
    for (int i = 0; i < c->fill_count; i++) {
        b->group++;
        const enum et_status status = b->options->variants.count > 0
                                          ? add_by_command(b, c, c->fills[i], error)
                                          : add_by_default(b, c, c->fills[i], error);
        if (status != ET_OK)
            return status;
    }
    return ET_OK;
}

/* ---- Targets ---- */

/* The cases that one target brought in. All are read before any run points to one, as the array moves. */
struct range {
    int first, last;
    bool all; /* whatever the tier */
    const char *target;
    const char *only;
};

static enum et_status read_target(struct builder *b, const char *path, struct range *range,
                                  struct et_error *error)
{
    struct paths paths = {0};
    range->first = b->plan->cases.count;
    enum et_status status = ET_OK;
    if (is_folder(path))
        status = walk(path, &paths, error);
    else
        status = add_path(&paths, et_strdup(path, error), error);
    for (int i = 0; status == ET_OK && i < paths.count; i++)
        status = read_file(paths.at[i], b->options, b->port, b->plan, error);
    free_paths(&paths);
    range->last = b->plan->cases.count;
    return status;
}

static bool names_an_operator(const char *target)
{
    for (int i = 0; et_operators[i]; i++) {
        const size_t n = strlen(et_operators[i]->name);
        if (!strncmp(target, et_operators[i]->name, n) && target[n] == '/')
            return true;
    }
    return false;
}

/* A path that exists is a file or folder; OPERATOR/... is an id among the built-in cases. */
static enum et_status read_targets(struct builder *b, struct range *ranges, struct et_error *error)
{
    const struct et_strings *targets = &b->options->targets;
    struct range built_in = {.first = -1};
    for (int i = 0; i < (targets->count ? targets->count : 1); i++) {
        const char *target = targets->count ? targets->at[i] : NULL;
        const bool is_id = target && !exists(target) && names_an_operator(target);
        enum et_status status = ET_OK;
        if (target && !is_id) {
            ranges[i] = (struct range){.all = !is_folder(target), .target = target};
            status = read_target(b, target, &ranges[i], error);
        } else {
            if (built_in.first < 0)
                status = read_target(b, b->options->cases, &built_in, error);
            ranges[i] = built_in;
            ranges[i].only = target;
        }
        if (status != ET_OK)
            return status;
    }
    return ET_OK;
}

/* A capped case belongs to its tier alone, and gives way to the whole one where tiers do not count. */
static enum et_status add_range(struct builder *b, const struct range *range, struct et_error *error)
{
    b->only = range->only;
    b->target = range->target;
    b->found = false;
    enum et_status status = ET_OK;
    for (int i = range->first; status == ET_OK && i < range->last; i++) {
        const struct et_case *c = &b->plan->cases.at[i];
        const enum et_tier tier = range->all ? ET_FULL : b->options->tier;
        if (range->only || b->options->failed || (c->capped ? c->tier == tier : c->tier <= tier))
            status = add_case(b, c, error);
    }
    if (status == ET_OK && range->only && !b->found)
        return et_fail(error, ET_INVALID, "no case and no run has the id \"%s\"", range->only);
    return status;
}

static enum et_status check_demands(const struct builder *b, struct et_error *error)
{
    for (int i = 0; i < b->demand_count; i++) {
        const struct demand *d = &b->demands[i];
        if (d->fitted > 0)
            continue;
        if (!d->c)
            return et_fail(error, ET_INVALID, "--variant %s fits none of the cases selected: %s", d->text,
                           d->why.text);
        return et_fail(error, ET_INVALID, "%s:%d:%d: variant %s fits none of this case's shapes: %s",
                       d->c->file, d->c->line, d->c->column, d->text, d->why.text);
    }
    return ET_OK;
}

static enum et_status check_variant_names(const struct builder *b, struct et_error *error)
{
    for (int i = 0; i < b->options->variants.count; i++) {
        bool there = false;
        for (int k = 0; et_operators[k]; k++)
            there = there || variant_of(b->options->variants.at[i], et_operators[k]->name, b->port);
        if (!there)
            return et_fail(error, ET_INVALID, "--variant %s: port %s has no such variant",
                           b->options->variants.at[i], b->port->name);
    }
    return ET_OK;
}

bool et_run_needs_device(const struct et_run *run)
{
    return !run->c->refused && !run->skip;
}

static void free_run(struct et_run *run)
{
    et_free(run->id);
    et_free(run->skip);
}

static enum et_status read_failed(struct builder *b, struct et_error *error)
{
    bool any = false;
    const char *path = b->options->failed;
    const enum et_status status = path ? et_records_read(path, &b->results, error) : ET_OK;
    if (status != ET_OK || !path)
        return status;
    for (int i = 0; i < b->results.count; i++)
        any = any || et_verdict_bad(b->results.at[i].verdict);
    if (!any)
        return et_fail(error, ET_INVALID, "nothing selected: none of the %d runs of %s failed",
                       b->results.count, path);
    b->met = et_alloc((size_t)b->results.count, sizeof *b->met, error);
    return b->met ? ET_OK : ET_FAILED;
}

/* A failure that cannot be run again must not look mended. */
static enum et_status check_failed(const struct builder *b, struct et_error *error)
{
    const bool narrowed = b->options->operators.count > 0 || b->options->variants.count > 0;
    for (int i = 0; i < b->results.count && !narrowed; i++)
        if (et_verdict_bad(b->results.at[i].verdict) && !b->met[i])
            return et_fail(error, ET_INVALID,
                           "%s:%d: no case that was read has the run %s; name the files and variants of then",
                           b->options->failed, b->results.at[i].line, b->results.at[i].id);
    return ET_OK;
}

/* Groups in turn to shards: the runs of one (case, fill) stay together, as they share one oracle. */
static void take_shard(struct et_plan *plan, const struct et_options *options)
{
    int kept = 0, ordinal = 0;
    plan->before_shard = plan->count;
    for (int i = 0, last = -1; i < plan->count; i++) {
        ordinal += i > 0 && plan->runs[i].group != last;
        last = plan->runs[i].group;
        if (ordinal % options->shards == options->shard - 1)
            plan->runs[kept++] = plan->runs[i];
        else
            free_run(&plan->runs[i]);
    }
    plan->count = kept;
}

/* The first variant left out tells more than that nothing is left. */
static enum et_status nothing_selected(const struct et_options *options, const struct et_plan *plan,
                                       struct et_error *error)
{
    if (!plan->notes.data || options->filters.count > 0 || options->excludes.count > 0)
        return et_fail(error, ET_INVALID, "nothing selected: no run of %d cases read passes tier and filters",
                       plan->cases.count);
    return et_fail(error, ET_INVALID, "nothing selected of %d cases read: %.*s", plan->cases.count,
                   (int)strcspn(plan->notes.data, "\n"), plan->notes.data);
}

enum et_status et_plan_make(const struct et_options *options, const struct et_port *port,
                            struct et_plan *plan, struct et_error *error)
{
    *plan = (struct et_plan){0};
    struct builder b = {.options = options, .port = port, .plan = plan};
    const int n = options->targets.count ? options->targets.count : 1;
    struct range *ranges = et_alloc((size_t)n, sizeof *ranges, error);
    enum et_status status = ranges ? check_variant_names(&b, error) : ET_FAILED;
    if (status == ET_OK)
        status = read_failed(&b, error);
    if (status == ET_OK && options->folder && !is_folder(options->folder))
        status = et_fail(error, ET_INVALID, "--port ocl:%s: there is no such folder", options->folder);
    if (status == ET_OK)
        status = read_targets(&b, ranges, error);
    for (int i = 0; status == ET_OK && i < n; i++)
        status = add_range(&b, &ranges[i], error);
    if (status == ET_OK)
        status = check_demands(&b, error);
    if (status == ET_OK)
        status = check_failed(&b, error);
    if (status == ET_OK && plan->count == 0)
        status = nothing_selected(options, plan, error);
    if (status == ET_OK)
        take_shard(plan, options);
    for (int i = 0; i < b.demand_count; i++)
        et_free(b.demands[i].text);
    et_free(b.demands);
    et_free(b.met);
    et_records_free(&b.results);
    et_free(b.slots);
    et_free(ranges);
    return status;
}

static bool same_geometry(const struct et_case *a, const struct et_case *b)
{
    return a->op == b->op && !memcmp(a->dtype, b->dtype, sizeof a->dtype) &&
           !memcmp(a->steps[0].params, b->steps[0].params, a->op->params_bytes);
}

static bool runs_variant(const struct et_case *c, const struct et_variant *variant)
{
    for (int i = 0; i < c->ask_count; i++)
        if (c->asks[i].variant == variant)
            return true;
    return c->ask_count == 0;
}

static bool runs_exact(const struct et_case *c)
{
    for (int i = 0; i < c->fill_count; i++)
        if (et_exact_fill(c, 0, c->fills[i]) != ET_FILLS)
            return c->checks.exact;
    return false;
}

bool et_plan_has_exact(const struct et_options *options, const struct et_plan *plan, const struct et_run *run)
{
    const enum et_tier tier = options->tier > run->c->tier ? options->tier : run->c->tier;
    for (int i = 0; i < plan->cases.count; i++) {
        const struct et_case *c = &plan->cases.at[i];
        if (!c->refused && c->tier <= tier && same_geometry(c, run->c) && runs_variant(c, run->ask.variant) &&
            runs_exact(c))
            return true;
    }
    return false;
}

void et_plan_free(struct et_plan *plan)
{
    for (int i = 0; i < plan->count; i++)
        free_run(&plan->runs[i]);
    et_free(plan->runs);
    et_text_free(&plan->notes);
    et_cases_free(&plan->cases);
    et_mutants_free(&plan->mutants);
    *plan = (struct et_plan){0};
}
