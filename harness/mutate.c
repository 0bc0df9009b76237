#define _POSIX_C_SOURCE 200809L

#include "mutate.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "commit.h"

#ifndef ET_VERSION
#define ET_VERSION "unknown"
#endif

/* All runs by one mutant on one device. */
struct row {
    int runs, errors, broken[ET_CHECKS]; /* runs in which */
    int due;                             /* runs that the kernels as they are had: fewer after an interrupt */
    struct et_error unbuilt;             /* why it does not build, or "" */
};

struct et_kills {
    const struct et_options *options;
    const struct et_mutants *mutants;
    struct et_device *devices;
    int device_count;
    struct row *rows; /* of a device: the kernels as they are, then each mutant */
    bool ran[ET_CHECKS];
    struct et_error unsound; /* the first run of the kernels as they are that does not pass, or "" */
    FILE *results;
    double started;
};

enum et_status et_kills_open(const struct et_options *options, const struct et_mutants *mutants,
                             const struct et_device *devices, int device_count, struct et_kills **opened,
                             struct et_error *error)
{
    struct et_kills *kills = et_alloc(1, sizeof *kills, error);
    if (!kills)
        return ET_FAILED;
    *kills = (struct et_kills){
        .options = options, .mutants = mutants, .device_count = device_count, .started = et_now()};
    enum et_status status = ET_OK;
    kills->devices = et_alloc((size_t)device_count, sizeof *kills->devices, error);
    kills->rows = et_alloc((size_t)device_count * (size_t)(1 + mutants->count), sizeof *kills->rows, error);
    if (!kills->devices || !kills->rows)
        status = ET_FAILED;
    if (status == ET_OK && options->results) {
        kills->results = fopen(options->results, "w");
        if (!kills->results)
            status = et_fail(error, ET_INVALID, "%s: %s", options->results, strerror(errno));
    }
    if (status == ET_OK) {
        memcpy(kills->devices, devices, (size_t)device_count * sizeof *devices);
        *opened = kills;
        return ET_OK;
    }
    et_free(kills->devices);
    et_free(kills->rows);
    et_free(kills);
    return status;
}

/* Mutant -1: the kernels as they are. */
static struct row *row_of(const struct et_kills *kills, int device, int mutant)
{
    return &kills->rows[device * (1 + kills->mutants->count) + 1 + mutant];
}

void et_kills_add(struct et_kills *kills, const struct et_result *result)
{
    int device = 0;
    if (!result->device)
        return;
    while (strcmp(kills->devices[device].place, result->device->place) != 0)
        device++;
    struct row *row = row_of(kills, device, result->mutant ? (int)(result->mutant - kills->mutants->at) : -1);
    row->runs += result->verdict != ET_SKIP;
    for (int m = 0; m < kills->mutants->count && !result->mutant; m++)
        row_of(kills, device, m)->due +=
            result->verdict != ET_SKIP && kills->mutants->at[m].op == result->run->c->op;
    row->errors += result->verdict == ET_ERROR && !result->unbuilt;
    if (result->unbuilt)
        et_fail(&row->unbuilt, ET_OK, "%s", result->reason);
    for (int i = 0; result->judgement && i < ET_CHECKS; i++) {
        row->broken[i] += result->judgement->check[i].outcome == ET_BROKEN;
        kills->ran[i] = kills->ran[i] || result->judgement->check[i].outcome != ET_NOT_RUN;
    }
    if (!result->mutant && result->verdict != ET_PASS && result->verdict != ET_SKIP &&
        !kills->unsound.text[0])
        et_fail(&kills->unsound, ET_OK, "%s", result->run->id);
    if (kills->options->progress)
        fprintf(stderr, "\r\033[K%.80s", result->run->id);
}

/* ---- What the rows say ---- */

static bool builds(const struct row *row)
{
    return !row->unbuilt.text[0];
}

/* What does not build is not run, so nobody can have noticed what it does. */
static bool noticed(const struct row *row)
{
    if (!builds(row))
        return false;
    bool any = row->errors > 0;
    for (int i = 0; i < ET_CHECKS; i++)
        any = any || row->broken[i] > 0;
    return any;
}

/* Whether the runs that it had say what it is: one that notices does. */
static bool is_judged(const struct row *row)
{
    return builds(row) && row->runs > 0 && (noticed(row) || row->runs >= row->due);
}

static const char *verdict(const struct et_mutant *mutant, const struct row *row)
{
    if (row->runs == 0)
        return "NOT RUN";
    if (!builds(row))
        return "DOES NOT BUILD";
    if (!is_judged(row))
        return "NOT ALL RUN";
    if (mutant->honest)
        return noticed(row) ? "FALSE ALARM" : "quiet";
    return noticed(row) ? "killed" : "SURVIVED";
}

static bool is_bad(const struct et_mutant *mutant, const struct row *row)
{
    return !is_judged(row) || noticed(row) == mutant->honest;
}

/* What each check and all together do to the mutants, and to the honest reorderings. */
struct totals {
    int mutants, killed, honest, flagged, errors, by[ET_CHECKS], bad;
};

static struct totals total(const struct et_kills *kills, int device)
{
    struct totals t = {0};
    for (int m = 0; m < kills->mutants->count; m++) {
        const struct et_mutant *mutant = &kills->mutants->at[m];
        const struct row *row = row_of(kills, device, m);
        t.bad += is_bad(mutant, row);
        t.honest += mutant->honest;
        t.flagged += mutant->honest && noticed(row);
        if (mutant->honest)
            continue;
        t.mutants++;
        t.killed += noticed(row);
        if (!noticed(row))
            continue;
        t.errors += row->errors > 0;
        for (int i = 0; i < ET_CHECKS; i++)
            t.by[i] += row->broken[i] > 0;
    }
    return t;
}

/* ---- The table, which is Markdown ---- */

enum { NAME_WIDTH = 28 };

static void print_count(int n, int width)
{
    if (n > 0)
        printf(" | %*d", width, n);
    else
        printf(" | %*s", width, ".");
}

static void print_counts(const struct et_kills *kills, const int *broken, int errors)
{
    for (int i = 0; i < ET_CHECKS; i++)
        if (kills->ran[i])
            print_count(broken[i], (int)strlen(et_check_name((enum et_check)i)));
    print_count(errors, (int)strlen("error"));
}

static void print_head(const struct et_kills *kills, int runs)
{
    char head[NAME_WIDTH + 1];
    snprintf(head, sizeof head, "runs of %d that notice", runs);
    printf("| %-*s", NAME_WIDTH, head);
    for (int i = 0; i < ET_CHECKS; i++)
        if (kills->ran[i])
            printf(" | %s", et_check_name((enum et_check)i));
    printf(" | error | |\n|---");
    for (int i = 0; i < ET_CHECKS; i++)
        if (kills->ran[i])
            printf("|--:");
    printf("|--:|---|\n");
}

static void print_bad(const struct et_mutant *mutant, const struct row *row)
{
    if (!builds(row)) {
        printf("%s/%s does not build: ", mutant->op->name, mutant->name);
        et_print_lines(row->unbuilt.text, "\n    ");
        printf("\n");
    } else if (is_bad(mutant, row)) {
        printf("%s %s/%s: %s\n", verdict(mutant, row), mutant->op->name, mutant->name, mutant->bug);
    }
}

static void print_table(const struct et_kills *kills, int device)
{
    const struct et_mutants *mutants = kills->mutants;
    const struct totals t = total(kills, device);
    printf("%s, %s\n\n", kills->devices[device].name, kills->devices[device].version);
    print_head(kills, row_of(kills, device, -1)->runs);
    for (int honest = 0; honest < 2; honest++)
        for (int m = 0; m < mutants->count; m++) {
            const struct row *row = row_of(kills, device, m);
            if (mutants->at[m].honest != honest)
                continue;
            printf("| %-*s", NAME_WIDTH, mutants->at[m].name);
            print_counts(kills, row->broken, row->errors);
            printf(" | %s |\n", verdict(&mutants->at[m], row));
        }
    printf("| %-*s", NAME_WIDTH, "mutants killed");
    print_counts(kills, t.by, t.errors);
    printf(" | %d of %d |\n\n", t.killed, t.mutants);
    for (int m = 0; m < mutants->count; m++)
        print_bad(&mutants->at[m], row_of(kills, device, m));
    printf("%d of %d mutants killed, by nmse alone %d; %d of %d honest reorderings flagged\n", t.killed,
           t.mutants, t.by[ET_CHECK_NMSE], t.flagged, t.honest);
}

static void print_bugs(const struct et_mutants *mutants)
{
    printf("\n");
    for (int m = 0; m < mutants->count; m++)
        printf("* %s: %s%s%s\n", mutants->at[m].name, mutants->at[m].bug,
               mutants->at[m].origin ? " Origin: " : "", mutants->at[m].origin ? mutants->at[m].origin : "");
}

/* ---- Results: a header, then a line a mutant and device ---- */

static void add_text(struct et_text *text, const char *key, const char *value)
{
    et_text_add(text, "\"%s\":", key);
    et_json_add_string(text, value);
    et_text_add(text, ",");
}

static void add_row(struct et_text *text, const struct et_kills *kills, int device, int m)
{
    const struct et_mutant *mutant = &kills->mutants->at[m];
    const struct row *row = row_of(kills, device, m);
    et_text_add(text, "{");
    add_text(text, "operator", mutant->op->name);
    add_text(text, "mutant", mutant->name);
    add_text(text, "bug", mutant->bug);
    add_text(text, "origin", mutant->origin ? mutant->origin : "");
    add_text(text, "device", kills->devices[device].name);
    add_text(text, "verdict", verdict(mutant, row));
    et_text_add(text, "\"honest\":%s,\"runs\":%d,\"errors\":%d,\"broken\":{",
                mutant->honest ? "true" : "false", row->runs, row->errors);
    const char *comma = "";
    for (int i = 0; i < ET_CHECKS; i++)
        if (kills->ran[i]) {
            et_text_add(text, "%s\"%s\":%d", comma, et_check_name((enum et_check)i), row->broken[i]);
            comma = ",";
        }
    et_text_add(text, "}}\n");
}

static enum et_status write_results(const struct et_kills *kills, struct et_error *error)
{
    struct et_text text = {0};
    et_text_add(&text, "{\"format\":1,");
    add_text(&text, "etalon", ET_VERSION);
    add_text(&text, "commit", ET_COMMIT);
    et_text_add(&text, "\"command\":\"mutate\"}\n");
    for (int d = 0; d < kills->device_count; d++)
        for (int m = 0; m < kills->mutants->count; m++)
            add_row(&text, kills, d, m);
    const bool whole = !text.failed && fwrite(text.data, 1, text.length, kills->results) == text.length;
    const bool closed = fclose(kills->results) == 0;
    et_text_free(&text);
    return whole && closed
               ? ET_OK
               : et_fail(error, ET_FAILED, "%s: the results are not whole", kills->options->results);
}

enum et_status et_kills_close(struct et_kills *kills, bool *broken, struct et_error *error)
{
    if (kills->options->progress)
        fprintf(stderr, "\r\033[K");
    *broken = kills->unsound.text[0] != '\0';
    for (int d = 0; d < kills->device_count; d++) {
        print_table(kills, d);
        *broken = *broken || total(kills, d).bad > 0;
    }
    if (kills->options->verbose)
        print_bugs(kills->mutants);
    if (kills->unsound.text[0])
        printf("the kernels as they are do not pass: etalon run '%s'\n", kills->unsound.text);
    fprintf(stderr, "in %.1f s\n", et_now() - kills->started);
    enum et_status status = kills->results ? write_results(kills, error) : ET_OK;
    if (status == ET_OK && (fflush(stdout) != 0 || ferror(stdout)))
        status = et_fail(error, ET_FAILED, "standard output: %s", strerror(errno));
    et_free(kills->devices);
    et_free(kills->rows);
    et_free(kills);
    return status;
}
