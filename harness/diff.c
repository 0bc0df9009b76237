#define _GNU_SOURCE

#include "diff.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "records.h"
#include "run.h"

static const char usage[] =
    "usage: etalon diff [option ...] OLD.jsonl NEW.jsonl\n"
    "\n"
    "Compares two results files of etalon run, run by run. Runs of several devices are matched by id and\n"
    "device, else by id alone, so that two machines can be compared.\n"
    "\n"
    "  --json            one JSON object\n"
    "  --markdown        a table, for a comment on a pull request\n"
    "  --headroom N      tell of headroom that changed by more than this factor (2)\n"
    "  --strict          headroom that grew so, outputs that owe no bytes, and any check that is no longer\n"
    "                    held count as well\n"
    "  -h, --help        print this\n"
    "\n"
    "A regression: a run that went from PASS over XFAIL, SKIP to anything bad in that order; other inputs "
    "or\n"
    "outputs where bytes are owed; a PASS that lost its digests, its claim, its headroom or a check of "
    "bytes\n"
    "(replay, identical, exact); a run that is gone; a new run that is bad.\n"
    "\n"
    "exit: 0 no regression, 1 some, 2 usage, or a file that is no whole results file\n";

enum kind { WORSE, BETTER, VERDICT, INPUTS, OUTPUTS, CLAIM, HEADROOM, CHECKS, REMOVED, ADDED, KINDS };

static const char *const kind_names[] = {"worse", "better",   "verdict", "inputs",  "outputs",
                                         "claim", "headroom", "checks",  "removed", "added"};

enum form { TEXT, JSON, MARKDOWN };

struct diff {
    enum form form;
    bool strict;
    double factor;
    const char *path[2];
    struct et_records records[2];
    int counts[KINDS], regressions, shown;
    struct et_text body; /* the changes, in the form asked for */
};

/* What is said of one change. */
struct change {
    enum kind kind;
    bool regression;
    int step; /* of digests; else negative */
    const char *before, *after;
    const char *text; /* more on it, a line each, or NULL */
};

/* ---- Forms ---- */

/* Terminals and tables obey bytes that have no place in either. */
static void add_clean(struct et_text *out, const char *text, enum form form)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t n = strlen(text), length; n > 0; s += length, n -= length) {
        length = et_utf8_sequence(s, n);
        if (length == 0)
            et_text_bytes(out, "\xef\xbf\xbd", 3);
        else if (length == 1 && (*s < ' ' || *s == 127))
            et_text_bytes(out, " ", 1);
        else if (length == 1 && form == MARKDOWN && strchr("|\\<>*_`[]", *s))
            et_text_add(out, "\\%c", *s);
        else
            et_text_bytes(out, (const char *)s, length);
        length = length ? length : 1;
    }
}

static void add_lines(struct et_text *out, const char *text, const char *before, enum form form)
{
    for (const char *at = text; at && *at;) {
        const size_t n = strcspn(at, "\n");
        struct et_text line = {0};
        et_text_bytes(&line, at, n);
        et_text_add(out, "%s", before);
        add_clean(out, line.data ? line.data : "", form);
        et_text_free(&line);
        at += n + (at[n] == '\n');
    }
}

static void add_place(struct et_text *out, const struct et_record *record, enum form form)
{
    add_clean(out, record->id, form);
    if (record->device)
        et_text_add(out, " on ");
    if (record->device)
        add_clean(out, record->device, form);
}

static void add_as_text(struct diff *diff, const struct et_record *record, const struct change *change)
{
    struct et_text *out = &diff->body;
    et_text_add(out, "%-10s %-8s ", change->regression ? "REGRESSION" : "note", kind_names[change->kind]);
    add_place(out, record, TEXT);
    et_text_add(out, ": ");
    if (change->step >= 0)
        et_text_add(out, "step %d: ", change->step);
    et_text_add(out, "%s%s%s", change->before ? change->before : "",
                change->before && change->after ? " -> " : "", change->after ? change->after : "");
    add_lines(out, change->text, "\n    ", TEXT);
    et_text_add(out, "\n");
}

static void add_member(struct et_text *out, const char *key, const char *value)
{
    et_text_add(out, ",\"%s\":", key);
    if (value)
        et_json_add_string(out, value);
    else
        et_text_add(out, "null");
}

static void add_as_json(struct diff *diff, const struct et_record *record, const struct change *change)
{
    struct et_text *out = &diff->body;
    et_text_add(out, "%s\n{\"kind\":\"%s\",\"regression\":%s", diff->shown ? "," : "",
                kind_names[change->kind], change->regression ? "true" : "false");
    add_member(out, "id", record->id);
    add_member(out, "device", record->device);
    if (change->step >= 0)
        et_text_add(out, ",\"step\":%d", change->step);
    add_member(out, "old", change->before);
    add_member(out, "new", change->after);
    if (change->text)
        add_member(out, "text", change->text);
    et_text_add(out, "}");
}

/* A comment holds 65,536 characters. */
enum { ROWS_MOST = 100 };

static void add_as_markdown(struct diff *diff, const struct et_record *record, const struct change *change)
{
    struct et_text *out = &diff->body;
    if (diff->shown >= ROWS_MOST)
        return;
    et_text_add(out, "| %s%s%s | ", change->regression ? "**" : "", kind_names[change->kind],
                change->regression ? "**" : "");
    add_place(out, record, MARKDOWN);
    if (change->step > 0)
        et_text_add(out, ", step %d", change->step);
    add_lines(out, change->text, "<br>", MARKDOWN);
    et_text_add(out, " | %s | %s |\n", change->before ? change->before : "",
                change->after ? change->after : "");
}

static void tell(struct diff *diff, const struct et_record *record, const struct change *change)
{
    static void (*const forms[])(struct diff *, const struct et_record *,
                                 const struct change *) = {add_as_text, add_as_json, add_as_markdown};
    forms[diff->form](diff, record, change);
    diff->counts[change->kind]++;
    diff->regressions += change->regression;
    diff->shown++;
}

/* ---- What changed ---- */

/* PASS is best; of what is bad nothing is worse than the rest. */
static int rank(enum et_verdict verdict)
{
    return verdict == ET_PASS ? 0 : verdict == ET_XFAIL ? 1 : verdict == ET_SKIP ? 2 : 3;
}

/* What there is to say of a verdict that is not PASS. */
static const char *why(const struct et_record *record)
{
    return record->broken ? record->broken : record->reason;
}

static void compare_verdicts(struct diff *diff, const struct et_record *old, const struct et_record *new)
{
    const int by = rank(new->verdict) - rank(old->verdict);
    struct change change = {.kind = by > 0   ? WORSE
                                    : by < 0 ? BETTER
                                             : VERDICT,
                            .regression = by > 0,
                            .step = -1,
                            .before = et_verdict_name(old->verdict),
                            .after = et_verdict_name(new->verdict),
                            .text = why(new)};
    if (old->verdict != new->verdict)
        tell(diff, new, &change);
}

/* Step i of a list of digests, in digest; "none" behind its end. */
static const char *digest_of(const char *digests, int i, char digest[33])
{
    enum { EACH = 33 };
    if (!digests || strlen(digests) < (size_t)(i * EACH))
        return "none";
    snprintf(digest, EACH, "%s", digests + i * EACH);
    return digest;
}

/* The first step whose digests differ; the steps behind it may follow from it. */
static void compare_digests(struct diff *diff, const struct et_record *new, enum kind kind,
                            const char *before, const char *after, bool regression)
{
    char one[33], other[33];
    struct change change = {.kind = kind, .regression = regression, .step = 0};
    for (;; change.step++) {
        change.before = digest_of(before, change.step, one);
        change.after = digest_of(after, change.step, other);
        if (strcmp(change.before, change.after) != 0)
            break;
    }
    change.text =
        kind == OUTPUTS && !new->broken ? "no check is broken: the claim or its replay changed too" : NULL;
    if (change.text && !regression)
        change.text =
            "no bytes are owed: it did not pass before, its order is none, or the device's arithmetic "
            "is not C's";
    tell(diff, new, &change);
}

/* What else than a PASS lacks, its verdict tells. */
static bool both_passed(const struct et_record *old, const struct et_record *new)
{
    return old->verdict == ET_PASS && new->verdict == ET_PASS;
}

/* A PASS that no longer says what it rests on. What the old file, a reduced one, say, does not have cannot be
 * lost; whether bytes are owed is for the old file to say, as the new one may have lost that too. */
static void compare_evidence(struct diff *diff, const struct et_record *old, const struct et_record *new)
{
    const struct {
        enum kind kind;
        const char *before, *after;
    } digests[] = {{INPUTS, old->inputs, new->inputs}, {OUTPUTS, old->outputs, new->outputs}};
    char digest[33];
    struct change change = {.regression = old->owed || diff->strict, .after = "none"};
    for (int i = 0; i < 2; i++) {
        if (!digests[i].before || digests[i].after)
            continue;
        change.kind = digests[i].kind;
        change.before = digest_of(digests[i].before, 0, digest);
        change.text = "it passed without a digest";
        tell(diff, new, &change);
    }
    if (!old->order || new->order)
        return;
    change.kind = CLAIM;
    change.step = -1;
    change.before = old->order;
    change.text = "it passed without a claim";
    tell(diff, new, &change);
}

static void compare_checks(struct diff *diff, const struct et_record *old, const struct et_record *new)
{
    static const char *const outcomes[] = {
        [ET_NOT_RUN] = "not run", [ET_BROKEN] = "broken", [ET_SKIPPED] = "skipped"};
    struct et_text text = {0};
    struct change change = {.kind = CHECKS, .step = -1, .before = "held", .after = "not held"};
    for (int i = 0; i < ET_CHECKS; i++) {
        const enum et_outcome outcome = new->check[i];
        if (old->check[i] != ET_HELD || outcome == ET_HELD)
            continue;
        const bool bytes = i == ET_CHECK_REPLAY || i == ET_CHECK_IDENTICAL || i == ET_CHECK_EXACT;
        change.regression =
            change.regression || diff->strict || outcome == ET_BROKEN || (bytes && outcome == ET_NOT_RUN);
        et_text_add(&text, "%s%s: %s", text.length > 0 ? "\n" : "", et_check_name((enum et_check)i),
                    outcomes[outcome]);
    }
    diff->body.failed = diff->body.failed || text.failed;
    change.text = text.data;
    if (text.length > 0)
        tell(diff, new, &change);
    et_text_free(&text);
}

static void compare_bytes(struct diff *diff, const struct et_record *old, const struct et_record *new)
{
    const bool owed = old->owed && new->owed;
    const struct change claim = {.kind = CLAIM, .step = -1, .before = old->order, .after = new->order};
    if (!old->outputs || !new->outputs)
        return;
    if (old->order && new->order && strcmp(old->order, new->order) != 0)
        tell(diff, new, &claim);
    if (old->inputs && new->inputs && strcmp(old->inputs, new->inputs) != 0)
        compare_digests(diff, new, INPUTS, old->inputs, new->inputs, true);
    else if (strcmp(old->outputs, new->outputs) != 0)
        compare_digests(diff, new, OUTPUTS, old->outputs, new->outputs,
                        old->verdict == ET_PASS && (owed || diff->strict));
}

/* Below this headroom a factor says nothing: errors of a hundredth of what is allowed. */
#define HEADROOM_LEAST 0.01

static double headroom_of(const struct et_record *record)
{
    return fmax(record->headroom, HEADROOM_LEAST); /* of a NaN the least: its verdict tells more */
}

static void compare_headrooms(struct diff *diff, const struct et_record *old, const struct et_record *new)
{
    const double ratio = headroom_of(new) / headroom_of(old);
    const bool lost = !isnan(old->headroom) && isnan(new->headroom) && both_passed(old, new);
    const bool moved =
        !isnan(old->headroom) && !isnan(new->headroom) && (ratio > diff->factor || 1 / ratio > diff->factor);
    char before[40], after[60] = "none";
    if (!lost && !moved)
        return;
    snprintf(before, sizeof before, "%.3g", old->headroom);
    if (moved)
        snprintf(after, sizeof after, "%.3g", new->headroom);
    tell(diff, new,
         &(struct change){.kind = HEADROOM,
                          .regression = lost || (diff->strict && ratio > 1),
                          .step = -1,
                          .before = before,
                          .after = after});
}

static void compare(struct diff *diff, const struct et_record *old, const struct et_record *new)
{
    compare_verdicts(diff, old, new);
    if (both_passed(old, new))
        compare_evidence(diff, old, new);
    compare_bytes(diff, old, new);
    compare_headrooms(diff, old, new);
    if (both_passed(old, new))
        compare_checks(diff, old, new);
}

/* One file of a single device, or of none, is matched with the other by id alone. */
static int order(const struct diff *diff, const struct et_record *a, const struct et_record *b)
{
    const bool by_device = a->device && b->device && (!diff->records[0].device || !diff->records[1].device);
    const int ids = strcmp(a->id, b->id);
    const int devices = ids || !by_device ? ids : strcmp(a->device, b->device);
    return devices ? devices : (a->same > b->same) - (a->same < b->same);
}

static void compare_all(struct diff *diff)
{
    const struct et_records *old = &diff->records[0], *new = &diff->records[1];
    for (int i = 0, k = 0; i < old->count || k < new->count;) {
        const struct et_record *a = &old->at[i], *b = &new->at[k];
        const int at = i == old->count ? 1 : k == new->count ? -1 : order(diff, a, b);
        struct change change = {.kind = at < 0 ? REMOVED : ADDED, .step = -1};
        if (at == 0)
            compare(diff, a, b);
        if (at < 0) {
            change.regression = true;
            change.before = et_verdict_name(a->verdict);
            tell(diff, a, &change);
        } else if (at > 0) {
            change.regression = et_verdict_bad(b->verdict);
            change.after = et_verdict_name(b->verdict);
            change.text = why(b);
            tell(diff, b, &change);
        }
        i += at <= 0;
        k += at >= 0;
    }
}

/* ---- The whole ---- */

static void add_counts(struct et_text *out, const struct diff *diff)
{
    et_text_add(out, "%d regressions, %d changes of %d runs before, %d after", diff->regressions, diff->shown,
                diff->records[0].count, diff->records[1].count);
    for (int i = 0, first = 1; i < KINDS; i++)
        if (diff->counts[i] > 0) {
            et_text_add(out, "%s%d %s", first ? ": " : ", ", diff->counts[i], kind_names[i]);
            first = 0;
        }
}

static void add_side(struct et_text *out, const char *key, const char *path, const struct et_records *records)
{
    et_text_add(out, "\"%s\":{\"file\":", key);
    et_json_add_string(out, path);
    add_member(out, "etalon", records->tool);
    add_member(out, "device", records->device);
    et_text_add(out, ",\"runs\":%d}", records->count);
}

static bool print(const struct diff *diff)
{
    struct et_text out = {0};
    const char *body = diff->body.data ? diff->body.data : "";
    switch (diff->form) {
    case TEXT:
        et_text_add(&out, "%s", body);
        add_counts(&out, diff);
        break;
    case JSON:
        et_text_add(&out, "{\"format\":1,");
        add_side(&out, "old", diff->path[0], &diff->records[0]);
        et_text_add(&out, ",");
        add_side(&out, "new", diff->path[1], &diff->records[1]);
        et_text_add(&out, ",\"regressions\":%d,\"changes\":[%s]}", diff->regressions, body);
        break;
    case MARKDOWN:
        et_text_add(&out, "**etalon diff**: ");
        add_counts(&out, diff);
        et_text_add(&out, "%s%s",
                    diff->shown ? "\n\n| change | run | before | after |\n|---|---|---|---|\n" : "", body);
        if (diff->shown > ROWS_MOST)
            et_text_add(&out, "\nand %d more\n", diff->shown - ROWS_MOST);
        break;
    }
    const bool whole = !out.failed && !diff->body.failed;
    if (whole)
        printf("%s%s", out.data, diff->form == MARKDOWN && diff->shown ? "" : "\n");
    et_text_free(&out);
    return whole;
}

static enum et_status read_both(struct diff *diff, struct et_error *error)
{
    enum et_status status = ET_OK;
    for (int i = 0; i < 2 && status == ET_OK; i++) {
        status = et_records_read(diff->path[i], &diff->records[i], error);
        if (status == ET_OK)
            status = et_records_whole(diff->path[i], &diff->records[i], error);
    }
    return status;
}

/* ---- Options ---- */

/* Returns an exit status, or -1 to go on. */
static int parse(int argc, char **argv, struct diff *diff)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'},           {"markdown", no_argument, NULL, 'm'},
        {"headroom", required_argument, NULL, 'f'}, {"strict", no_argument, NULL, 's'},
        {"help", no_argument, NULL, 'h'},           {NULL, 0, NULL, 0},
    };
    char *end;
    opterr = 0;
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (option) {
        case 'j':
            diff->form = JSON;
            break;
        case 'm':
            diff->form = MARKDOWN;
            break;
        case 's':
            diff->strict = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return ET_EXIT_PASS;
        case 'f':
            diff->factor = strtod(optarg, &end);
            if (*optarg && !*end && diff->factor >= 1)
                break;
            et_complain("--headroom takes a factor from 1 on, not \"%s\"", optarg);
            return ET_EXIT_USAGE;
        default:
            et_complain("\"%s\" is not what diff takes; see etalon diff --help", argv[optind - 1]);
            return ET_EXIT_USAGE;
        }
    }
    if (argc - optind != 2) {
        et_complain("diff takes two results files; see etalon diff --help");
        return ET_EXIT_USAGE;
    }
    diff->path[0] = argv[optind];
    diff->path[1] = argv[optind + 1];
    return -1;
}

int et_diff(int argc, char **argv)
{
    struct diff diff = {.factor = 2};
    struct et_error error = {""};
    int code = parse(argc, argv, &diff);
    if (code >= 0)
        return code;
    code = ET_EXIT_USAGE;
    if (read_both(&diff, &error) == ET_OK) {
        compare_all(&diff);
        code = diff.regressions > 0 ? ET_EXIT_BROKEN : ET_EXIT_PASS;
        if (!print(&diff)) {
            et_fail(&error, ET_FAILED, "out of memory for what changed");
            code = ET_EXIT_USAGE;
        }
    }
    if (error.text[0])
        et_complain("%s", error.text);
    for (int i = 0; i < 2; i++)
        et_records_free(&diff.records[i]);
    et_text_free(&diff.body);
    return code;
}
