#define _POSIX_C_SOURCE 200809L

#include "mutant.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../ocl/source.h"
#include "case.h"

static const char order_none[] = "order none, depth_sum ", honest[] = "honest-";

/* One mutant's file while it is read. */
struct reading {
    const char *path, *kernels;
    int line, edit; /* lines from 1: this one, and where the edit began */
    struct et_mutant *mutant;
    int file;                   /* that is edited; -1: none yet */
    struct et_text minus, plus; /* of the edit so far */
    int minus_lines, plus_lines;
    int edits; /* applied */
};

static enum et_status bad(const struct reading *r, struct et_error *error, const char *sentence)
{
    return et_fail(error, ET_INVALID, "%s:%d: %s", r->path, r->line, sentence);
}

/* The text after key, or NULL. */
static const char *value_of(const char *line, const char *key)
{
    const size_t n = strlen(key);
    return !strncmp(line, key, n) && line[n] ? line + n : NULL;
}

/* ---- Edits ---- */

/* Replaces minus, which must stand in the file exactly once. */
static enum et_status apply(struct reading *r, struct et_error *error)
{
    if (r->minus_lines == 0)
        return ET_OK;
    if (r->plus_lines == 0)
        return bad(r, error, "lines to be replaced (-) are followed by no replacement (+)");
    char **text = &r->mutant->text[r->file];
    const char *found = strstr(*text, r->minus.data);
    if (!found || strstr(found + 1, r->minus.data))
        return et_fail(error, ET_INVALID, "%s:%d: mutant %s: %s has this text %s, must have it exactly once",
                       r->path, r->edit, r->mutant->name, r->mutant->file[r->file],
                       found ? "several times" : "nowhere");
    char *edited = et_print(error, "%.*s%s%s", (int)(found - *text), *text, r->plus.data ? r->plus.data : "",
                            found + strlen(r->minus.data));
    if (!edited)
        return ET_FAILED;
    et_free(*text);
    *text = edited;
    et_text_free(&r->minus);
    et_text_free(&r->plus);
    r->minus_lines = r->plus_lines = 0;
    r->edits++;
    return ET_OK;
}

static enum et_status add_line(struct reading *r, const char *line, struct et_error *error)
{
    if (r->file < 0)
        return bad(r, error, "an edit needs a line \"file: NAME\" before it");
    if (*line == '-' && r->plus_lines > 0) {
        const enum et_status status = apply(r, error);
        if (status != ET_OK)
            return status;
    }
    if (*line == '-' && r->minus_lines == 0)
        r->edit = r->line;
    if (*line == '+' && r->minus_lines == 0)
        return bad(r, error, "a replacement (+) follows no line to be replaced (-)");
    struct et_text *text = *line == '-' ? &r->minus : &r->plus;
    int *lines = *line == '-' ? &r->minus_lines : &r->plus_lines;
    et_text_add(text, "%s%s", (*lines)++ > 0 ? "\n" : "", line + 1);
    if (text->failed)
        return et_fail(error, ET_FAILED, "out of memory for %s", r->path);
    return r->minus.length > 0 ? ET_OK : bad(r, error, "the text to be replaced is empty");
}

static enum et_status open_file(struct reading *r, const char *name, struct et_error *error)
{
    struct et_mutant *m = r->mutant;
    for (r->file = 0; r->file < ET_MUTANT_FILES && m->file[r->file]; r->file++)
        if (!strcmp(m->file[r->file], name))
            return ET_OK;
    if (r->file == ET_MUTANT_FILES)
        return bad(r, error, "more files than a mutant may edit");
    struct et_text text = {0};
    bool found = false;
    const enum et_status status =
        et_source_file(&(const struct et_places){.folder = r->kernels}, name, &text, &found, error);
    m->text[r->file] = text.data;
    if (status != ET_OK)
        return status;
    if (!found || !text.data)
        return et_fail(error, ET_INVALID, "%s:%d: mutant %s: there is no kernel file %s", r->path, r->line,
                       m->name, name);
    m->file[r->file] = et_strdup(name, error);
    return m->file[r->file] ? ET_OK : ET_FAILED;
}

/* ---- The header ---- */

/* [INT*]PARAM[/INT][+INT] */
static bool read_depth(const char *form, struct et_mutant *m)
{
    char *at, name[64];
    m->factor = m->divisor = 1;
    const long long factor = strtoll(form, &at, 10);
    if (at != form) {
        if (*at != '*')
            return false;
        m->factor = factor;
        form = at + 1;
    }
    const size_t n = strcspn(form, "/+");
    if (n >= sizeof name)
        return false;
    memcpy(name, form, n);
    name[n] = '\0';
    const int i = et_field_index(m->op->params, name);
    m->param = i >= 0 ? &m->op->params[i] : NULL;
    form += n;
    if (*form == '/')
        m->divisor = strtoll(form + 1, &at, 10), form = at;
    if (*form == '+')
        m->extra = strtoll(form + 1, &at, 10), form = at;
    const int64_t most = 1000000;
    return m->param && !*form && m->factor >= 1 && m->factor <= most && m->divisor >= 1 &&
           m->divisor <= most && m->extra >= 0 && m->extra <= most;
}

static enum et_status read_line(struct reading *r, const char *line, struct et_error *error)
{
    struct et_mutant *m = r->mutant;
    const char *value;
    if (*line == '-' || *line == '+')
        return add_line(r, line, error);
    enum et_status status = apply(r, error);
    if (status != ET_OK)
        return status;
    if (r->line == 1) {
        m->bug = et_strdup(line, error);
        return m->bug ? ET_OK : ET_FAILED;
    }
    if (r->file < 0 && !m->origin && (value = value_of(line, "origin: "))) {
        m->origin = et_strdup(value, error);
        return m->origin ? ET_OK : ET_FAILED;
    }
    if (r->file < 0 && !m->honest && (value = value_of(line, "claim: "))) {
        m->honest = true;
        const char *form = value_of(value, order_none);
        return form && read_depth(form, m)
                   ? ET_OK
                   : bad(r, error, "a claim must read \"order none, depth_sum [INT*]PARAM[/INT][+INT]\"");
    }
    if ((value = value_of(line, "file: ")))
        return open_file(r, value, error);
    return bad(r, error, "must be \"origin: \" or \"claim: \" (once, above all edits), \"file: \", - or +");
}

static enum et_status read_lines(struct reading *r, char *text, struct et_error *error)
{
    enum et_status status = ET_OK;
    for (char *line = text, *next; status == ET_OK && *line; line = next) {
        char *end = strchr(line, '\n');
        next = end ? end + 1 : line + strlen(line);
        if (end)
            *end = '\0';
        r->line++;
        status = read_line(r, line, error);
    }
    if (status == ET_OK)
        status = apply(r, error);
    if (status == ET_OK && r->edits == 0)
        return bad(r, error, "a mutant edits something");
    if (status == ET_OK && r->mutant->honest != !strncmp(r->mutant->name, honest, sizeof honest - 1))
        return bad(r, error, "honest-NAME has a claim, and no other mutant has");
    return status;
}

static enum et_status read_mutant(const char *folder, const char *name, const char *kernels,
                                  struct et_mutant *mutant, struct et_error *error)
{
    struct et_text text = {0};
    bool found = false;
    char *path = et_print(error, "%s/%s", folder, name);
    mutant->name = et_strdup(name, error);
    struct reading r = {.path = path, .kernels = kernels, .mutant = mutant, .file = -1};
    enum et_status status = path && mutant->name ? ET_OK : ET_FAILED;
    if (status == ET_OK)
        status = et_source_file(&(const struct et_places){.folder = folder}, name, &text, &found, error);
    if (status == ET_OK && (!text.data || strlen(text.data) != text.length))
        status = et_fail(error, ET_INVALID, "%s: is empty or holds a NUL byte", path);
    if (status == ET_OK)
        status = read_lines(&r, text.data, error);
    for (int i = 0; i < ET_MUTANT_FILES && mutant->file[i]; i++)
        mutant->sources[i] = (struct et_override){mutant->file[i], mutant->text[i]};
    et_text_free(&r.minus);
    et_text_free(&r.plus);
    et_text_free(&text);
    et_free(path);
    return status;
}

static int is_mutant(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static enum et_status read_folder(const char *path, const struct et_operator *op, const char *kernels,
                                  struct et_mutants *mutants, struct et_error *error)
{
    struct dirent **entries;
    const int n = scandir(path, &entries, is_mutant, alphasort);
    if (n < 0)
        return errno == ENOENT ? ET_OK : et_fail(error, ET_INVALID, "%s: %s", path, strerror(errno));
    struct et_mutant *grown = et_resize(mutants->at, (size_t)(mutants->count + n), sizeof *grown, error);
    enum et_status status = grown ? ET_OK : ET_FAILED;
    if (grown)
        mutants->at = grown;
    for (int i = 0; i < n; i++) {
        if (status == ET_OK) {
            struct et_mutant *mutant = &mutants->at[mutants->count++];
            *mutant = (struct et_mutant){.op = op};
            status = read_mutant(path, entries[i]->d_name, kernels, mutant, error);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

enum et_status et_mutants_read(const char *folder, const struct et_operator *op, const char *kernels,
                               struct et_mutants *mutants, struct et_error *error)
{
    char *path = et_print(error, "%s/%s", folder, op->name);
    const enum et_status status = path ? read_folder(path, op, kernels, mutants, error) : ET_FAILED;
    et_free(path);
    return status;
}

static void free_mutant(struct et_mutant *m)
{
    for (int k = 0; k < ET_MUTANT_FILES; k++) {
        et_free(m->file[k]);
        et_free(m->text[k]);
    }
    et_free(m->name);
    et_free(m->bug);
    et_free(m->origin);
}

void et_mutants_keep(struct et_mutants *mutants, const char *const *globs, int count)
{
    int kept = 0;
    for (int i = 0; i < mutants->count; i++) {
        bool wanted = count == 0;
        for (int k = 0; k < count; k++)
            wanted = wanted || et_glob(globs[k], mutants->at[i].name);
        if (wanted)
            mutants->at[kept++] = mutants->at[i];
        else
            free_mutant(&mutants->at[i]);
    }
    mutants->count = kept;
}

void et_mutants_free(struct et_mutants *mutants)
{
    for (int i = 0; i < mutants->count; i++)
        free_mutant(&mutants->at[i]);
    et_free(mutants->at);
    *mutants = (struct et_mutants){0};
}

void et_mutant_claim(const struct et_mutant *mutant, const struct et_problem *problem, struct et_claim *claim)
{
    const int64_t n = et_param_int(mutant->param, problem->params);
    const int64_t most = INT32_MAX - mutant->extra;
    const int64_t depth =
        n > most / mutant->factor ? most : (mutant->factor * n + mutant->divisor - 1) / mutant->divisor;
    claim->order = (struct et_order){.name = "none"};
    claim->arith.depth_sum = (int32_t)((depth < most ? depth : most) + mutant->extra);
}
