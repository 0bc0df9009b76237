#define _POSIX_C_SOURCE 200809L

#include "report.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "commit.h"
#include "junit.h"
#include "records.h"

#ifndef ET_VERSION
#define ET_VERSION "unknown"
#endif

struct entry {
    char *text;
    int count;
};

/* Texts with how often each was met. */
struct tally {
    struct entry *at;
    int count;
};

struct slow {
    const char *id, *device;
    double seconds;
};

struct et_report {
    const struct et_options *options;
    int results; /* negative: none */
    off_t written;
    struct et_junit *junit;
    int error, console; /* errno of the first write that failed: results, standard output */
    int total, done, verdicts[ET_VERDICTS], unlisted_skips;
    struct tally skips, programs;
    struct et_text reproduce;
    struct slow *slowest; /* options->slowest of them, slowest first */
    int slow_count;
    struct et_times times;
    double started;
};

/* A tally that cannot grow loses an entry of the summary's detail, never a count of verdicts. */
static void tally_add(struct tally *tally, const char *text)
{
    for (int i = 0; i < tally->count; i++)
        if (!strcmp(tally->at[i].text, text)) {
            tally->at[i].count++;
            return;
        }
    struct entry *grown = et_resize(tally->at, (size_t)tally->count + 1, sizeof *grown, NULL);
    if (!grown)
        return;
    tally->at = grown;
    grown[tally->count] = (struct entry){et_strdup(text, NULL), 1};
    tally->count += grown[tally->count].text != NULL;
}

static void tally_free(struct tally *tally)
{
    for (int i = 0; i < tally->count; i++)
        et_free(tally->at[i].text);
    et_free(tally->at);
}

/* ---- Reproduce lines ---- */

static void add_quoted(struct et_text *text, const char *word)
{
    et_text_add(text, "'");
    for (const char *at = word; *at; at++) {
        if (*at == '\'')
            et_text_add(text, "'\\''");
        else
            et_text_bytes(text, at, 1);
    }
    et_text_add(text, "'");
}

/* Options that changed what was run: the paths among them, and the others. */
static void add_paths(struct et_text *text, const struct et_options *options)
{
    if (strcmp(options->port, "ocl") != 0) {
        et_text_add(text, " --port ");
        add_quoted(text, options->port);
    }
    if (options->has_cases) {
        et_text_add(text, " --cases ");
        add_quoted(text, options->cases);
    }
}

static void add_options(struct et_text *text, const struct et_options *options)
{
    if (!options->guards)
        et_text_add(text, " --guards off");
    if (options->limit)
        et_text_add(text, " --limit %s", options->limit);
    if (options->has_seed)
        et_text_add(text, " --seed %llu", (unsigned long long)options->seed);
    if (options->repeat > 0)
        et_text_add(text, " --repeat %d", options->repeat);
    if (options->timeout_s > 0)
        et_text_add(text, " --timeout %g", options->timeout_s);
}

/* Whether only other runs of the case can show what is broken. */
static bool needs_others(const struct et_result *result)
{
    bool pair = false, alone = false;
    for (int i = 0; result->judgement && i < ET_CHECKS; i++) {
        const bool of_pairs = i == ET_CHECK_AGREES || i == ET_CHECK_IDENTICAL;
        const bool broken = result->judgement->check[i].outcome == ET_BROKEN;
        pair = pair || (of_pairs && broken);
        alone = alone || (!of_pairs && broken);
    }
    return pair && !alone;
}

/* The run, or all of its case and fill. A file alone takes no tier, and so finds no capped case. */
static void add_selection(struct et_text *text, const struct et_run *run, bool others)
{
    const char *variant = strrchr(run->id, '/') + 1;
    if (run->target)
        add_quoted(text, run->c->capped ? run->target : run->c->file);
    else
        add_quoted(text, others ? run->c->id : run->id);
    if (run->target || others)
        et_text_add(text, " --filter '%.*s%s'", (int)(variant - run->id), run->id, others ? "*" : variant);
    if (run->target && run->c->capped)
        et_text_add(text, " --tier %s", et_tier_name(run->c->tier));
}

static void add_each(struct et_text *text, const char *option, const struct et_strings *words)
{
    for (int i = 0; i < words->count; i++) {
        et_text_add(text, " %s ", option);
        add_quoted(text, words->at[i]);
    }
}

/* Targets are taken again, as the manifest has none. */
static void add_check(struct et_text *text, const struct et_options *options, const struct et_run *run)
{
    et_text_add(text, "etalon check ");
    add_quoted(text, options->dumped);
    for (int i = 0; i < options->targets.count; i++) {
        et_text_add(text, " ");
        add_quoted(text, options->targets.at[i]);
    }
    if (options->outputs) {
        et_text_add(text, " --outputs ");
        add_quoted(text, options->outputs);
    }
    et_text_add(text, " --filter ");
    add_quoted(text, run->id);
}

static void add_reproduce(struct et_text *text, const struct et_options *options,
                          const struct et_result *result)
{
    const bool others = needs_others(result);
    const char *variant = strrchr(result->run->id, '/') + 1;
    const struct et_strings own = {.at = &variant, .count = options->variants.count > 0};
    const struct et_strings device = {.at = (const char *[]){result->device ? result->device->name : ""},
                                      .count = result->device != NULL};
    if (options->dump) {
        add_check(text, options, result->run);
        return;
    }
    et_text_add(text, "etalon run ");
    add_selection(text, result->run, others);
    add_each(text, "--variant", others ? &options->variants : &own);
    add_each(text, "--device", others ? &options->devices : &device);
    add_paths(text, options);
    add_options(text, options);
    if (result->verdict == ET_XPASS) {
        et_text_add(text, " --known ");
        add_quoted(text, options->known);
    }
}

/* ---- JSON Lines ---- */

static void add_key(struct et_text *text, const char *key)
{
    if (text->length > 0 && text->data[text->length - 1] != '{')
        et_text_add(text, ",");
    et_json_add_string(text, key);
    et_text_add(text, ":");
}

static void add_text(struct et_text *text, const char *key, const char *value)
{
    add_key(text, key);
    if (value)
        et_json_add_string(text, value);
    else
        et_text_add(text, "null");
}

static void add_figure(struct et_text *text, const char *key, double value)
{
    add_key(text, key);
    et_json_add_number(text, value);
}

static bool write_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        errno = ENOSPC;
        const ssize_t n = write(fd, data, bytes);
        if (n <= 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Whole or not at all, where that can be: what is cut off makes a line that is no JSON. */
static void write_line(struct et_report *report, struct et_text *text)
{
    et_text_add(text, "}\n");
    if (text->failed) {
        report->error = report->error ? report->error : ENOMEM;
    } else if (!report->error && !write_all(report->results, text->data, text->length)) {
        report->error = errno;
        /* A pipe or a device cannot be cut, and needs not. */
        if (ftruncate(report->results, report->written) != 0)
            errno = report->error;
    }
    report->written += report->error ? 0 : (off_t)text->length;
    et_text_free(text);
}

static void add_device(struct et_text *text, const struct et_device *device)
{
    et_text_add(text, "{");
    add_text(text, "device", device->name);
    add_text(text, "place", device->place);
    add_text(text, "vendor", device->vendor);
    add_text(text, "platform", device->platform);
    add_text(text, "version", device->version);
    add_text(text, "driver", device->driver);
    add_figure(text, "compute_units", (double)device->compute_units);
    add_figure(text, "work_group", (double)device->work_group);
    add_figure(text, "local_memory", (double)device->local_memory);
    add_figure(text, "allocation", (double)device->allocation);
    add_figure(text, "fp_config", (double)device->fp_config);
    add_text(text, "probe", device->probe);
    et_text_add(text, "}");
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* What was selected and how it was run. No paths in results: of files their names, of a kernel folder
 * nothing. */
static void add_command(struct et_text *text, const struct et_options *options)
{
    et_text_add(text, options->dump ? "check" : "run");
    for (int i = 0; i < options->targets.count; i++) {
        const char *target = options->targets.at[i];
        et_text_add(text, " %s", access(target, F_OK) == 0 ? last_part(target) : target);
    }
    et_text_add(text, " --tier %s", et_tier_name(options->tier));
    add_each(text, "--filter", &options->filters);
    add_each(text, "--exclude", &options->excludes);
    add_each(text, "--operator", &options->operators);
    add_each(text, "--variant", &options->variants);
    add_each(text, "--device", &options->devices);
    if (options->shards > 1)
        et_text_add(text, " --shard %d/%d", options->shard, options->shards);
    if (options->folder)
        et_text_add(text, " --port ocl:DIR");
    if (options->command)
        et_text_add(text, " --port exec:CMD");
    if (options->plugin)
        et_text_add(text, " --port plugin:FILE");
    if (options->openblas)
        et_text_add(text, " --port openblas");
    if (options->known)
        et_text_add(text, " --known %s", last_part(options->known));
    if (options->strict)
        et_text_add(text, " --strict");
    if (options->failed)
        et_text_add(text, " --failed %s", last_part(options->failed));
    if (options->max_fail > 0)
        et_text_add(text, " --max-fail %d", options->max_fail);
    if (options->memory > 0)
        et_text_add(text, " --memory %lld", (long long)options->memory);
    add_options(text, options);
}

/* A string that was put together, which is freed. Without memory for it there is none for the line. */
static void add_made(struct et_text *text, struct et_text *made)
{
    text->failed = text->failed || made->failed;
    if (!text->failed)
        et_json_add_string(text, made->data ? made->data : "");
    et_text_free(made);
}

/* The machine, and what the port said of its drivers, a list of lines without folders. */
static void add_environment(struct et_text *text, const char *drivers)
{
    struct utsname system;
    if (uname(&system) == 0) {
        struct et_text name = {0};
        et_text_add(&name, "%s %s %s", system.sysname, system.release, system.machine);
        add_key(text, "system");
        add_made(text, &name);
    }
    add_text(text, "compiler", __VERSION__);
    struct et_text line = {0};
    add_key(text, "drivers");
    et_text_add(text, "[");
    bool first = true;
    for (const char *at = drivers ? drivers : ""; *at;) {
        const size_t n = strcspn(at, " \n");
        char word[300];
        snprintf(word, sizeof word, "%.*s", (int)n, at);
        et_text_add(&line, "%s%s", line.length > 0 ? " " : "", last_part(word));
        at += n;
        if (*at == '\n' || (!*at && line.length > 0)) {
            et_text_add(text, first ? "" : ",");
            add_made(text, &line);
            first = false;
        }
        at += *at != '\0';
    }
    et_text_add(text, "]");
    et_text_free(&line);
}

static void write_header(struct et_report *report, const struct et_device *devices, int device_count,
                         const char *drivers)
{
    struct et_text text = {0};
    et_text_add(&text, "{");
    add_figure(&text, "format", 1);
    add_text(&text, "etalon", ET_VERSION);
    add_text(&text, "commit", ET_COMMIT);
    add_text(&text, "tier", et_tier_name(report->options->tier));
    add_figure(&text, "runs", report->total);
    struct et_text command = {0};
    add_command(&command, report->options);
    add_key(&text, "command");
    add_made(&text, &command);
    add_environment(&text, drivers);
    add_key(&text, "devices");
    et_text_add(&text, "[");
    for (int i = 0; i < device_count; i++) {
        et_text_add(&text, i ? "," : "");
        add_device(&text, &devices[i]);
    }
    et_text_add(&text, "]");
    write_line(report, &text);
}

/* A param or a knob by its name, `value` by its own where it has one. */
static void add_value(struct et_text *text, const struct et_field *field, double value)
{
    if (field->kind == ET_NAME)
        add_text(text, field->name, field->names[(int)value]);
    else
        add_figure(text, field->name, value);
}

static void add_params(struct et_text *text, const struct et_case *c)
{
    add_key(text, "params");
    et_text_add(text, "{");
    for (const struct et_field *f = c->op->params; f->name && !c->refused; f++)
        add_value(text, f, et_param_real(f, c->steps[0].params));
    et_text_add(text, "}");
    add_key(text, "dtypes");
    et_text_add(text, "{");
    for (int t = 0; c->op->tensors[t].name; t++)
        add_text(text, c->op->tensors[t].name, et_format(c->dtype[t])->name);
    et_text_add(text, "}");
}

static void add_claim(struct et_text *text, const struct et_run *run, const struct et_claim *claim)
{
    add_text(text, "variant", run->ask.variant ? run->ask.variant->name : NULL);
    if (!claim)
        return;
    add_key(text, "claim");
    et_text_add(text, "{");
    add_key(text, "knobs");
    et_text_add(text, "{");
    const struct et_field *knobs = run->ask.variant->knobs;
    for (int k = 0; k < et_field_count(knobs); k++)
        add_value(text, &knobs[k], (double)claim->knob[k]);
    et_text_add(text, "}");
    add_text(text, "order", claim->order.name);
    add_text(text, "sum", et_format(claim->arith.sum)->name);
    add_figure(text, "depth_sum", claim->arith.depth_sum);
    add_figure(text, "scratch_bytes", (double)claim->scratch_bytes);
    add_text(text, "variant", et_variant_run(run->ask.variant, claim));
    et_text_add(text, "}");
}

static void add_checks(struct et_text *text, const struct et_judgement *judgement)
{
    static const char *const outcomes[] = {"not run", "held", "broken", "skipped"};
    add_figure(text, "headroom", judgement->headroom);
    add_figure(text, "nmse", judgement->check[ET_CHECK_NMSE].figure);
    add_figure(text, "nmse_derived", judgement->nmse_derived);
    add_figure(text, "noise_mean", judgement->noise_mean);
    add_key(text, "checks");
    et_text_add(text, "{");
    for (int i = 0; i < ET_CHECKS; i++) {
        const struct et_finding *finding = &judgement->check[i];
        if (finding->outcome == ET_NOT_RUN)
            continue;
        add_key(text, et_check_name((enum et_check)i));
        et_text_add(text, "{");
        add_text(text, "outcome", outcomes[finding->outcome]);
        if (!isnan(finding->limit)) {
            add_figure(text, "figure", finding->figure);
            add_figure(text, "limit", finding->limit);
        }
        if (finding->text[0])
            add_text(text, "text", finding->text);
        et_text_add(text, "}");
    }
    et_text_add(text, "}");
}

/* {"scale": {"nmse": 0.2, "bound": 2.2e5, ...}, ...}, in units of each limit. */
static void add_teeth(struct et_text *text, const struct et_teeth *teeth)
{
    add_key(text, "teeth");
    et_text_add(text, "{");
    for (int i = 0; i < teeth->count; i++) {
        add_key(text, teeth->at[i].name);
        et_text_add(text, "{");
        for (int k = 0; k < ET_TOOTH_CHECKS; k++)
            if (!isnan(teeth->at[i].size[k]))
                add_figure(text, et_check_name(et_tooth_checks[k]), teeth->at[i].size[k]);
        et_text_add(text, "}");
    }
    et_text_add(text, "}");
}

static void add_digests(struct et_text *text, const char *key, const char (*digests)[33], int steps)
{
    add_key(text, key);
    et_text_add(text, "[");
    for (int i = 0; i < steps; i++)
        et_text_add(text, "%s\"%s\"", i ? "," : "", digests[i]);
    et_text_add(text, "]");
}

static void write_result(struct et_report *report, const struct et_result *result)
{
    struct et_text text = {0};
    et_text_add(&text, "{");
    add_text(&text, "id", result->run->id);
    add_text(&text, "device", result->device ? result->device->name : NULL);
    add_text(&text, "verdict", et_verdict_name(result->verdict));
    if (result->reason)
        add_text(&text, "reason", result->reason);
    add_params(&text, result->run->c);
    add_figure(&text, "seed",
               (double)(report->options->has_seed ? report->options->seed : result->run->c->seed));
    add_text(&text, "fill", result->run->c->refused ? NULL : et_fill_name(result->run->fill));
    add_claim(&text, result->run, result->claim);
    if (result->judgement)
        add_checks(&text, result->judgement);
    if (result->judgement && result->judgement->teeth.count > 0)
        add_teeth(&text, &result->judgement->teeth);
    if (result->inputs && result->outputs) {
        add_digests(&text, "inputs", result->inputs, result->steps);
        add_digests(&text, "outputs", result->outputs, result->steps);
        add_figure(&text, "device_ns", result->device_ns);
        add_figure(&text, "device_ns_median", result->device_ns_median);
        add_figure(&text, "compile_s", result->times.compile);
        add_figure(&text, "kernel_s", result->times.kernel);
        add_text(&text, "program", result->program);
    }
    write_line(report, &text);
}

/* ---- Console ---- */

static const char *color_of(const struct et_options *options, enum et_verdict verdict)
{
    if (!options->color)
        return "";
    switch (verdict) {
    case ET_PASS:
        return "\033[32m";
    case ET_SKIP:
    case ET_XFAIL:
        return "\033[33m";
    default:
        return "\033[31m";
    }
}

/* Deeper than any line of a result. */
#define CONTINUED "\n        "

void et_print_lines(const char *sentence, const char *between)
{
    for (const char *at = sentence; *at; at++) {
        if (*at != '\n')
            putchar(iscntrl((unsigned char)*at) && *at != '\t' ? '?' : *at);
        else if (at[1] && at[1] != '\n')
            fputs(between, stdout);
    }
}

static void print_finding(const char *name, const char *skipped, const struct et_finding *finding)
{
    printf("    %s: %s", name, skipped);
    if (finding->outcome == ET_BROKEN && !isnan(finding->limit))
        printf("%.4g, limit %.4g: ", finding->figure, finding->limit);
    et_print_lines(finding->text, CONTINUED);
    printf("\n");
}

static void print_result(struct et_report *report, const struct et_result *result, const char *reproduce)
{
    const struct et_options *options = report->options;
    const bool bad = et_verdict_bad(result->verdict);
    if (!bad && !options->verbose)
        return;
    errno = 0;
    if (options->progress)
        fprintf(stderr, "\r\033[K");
    printf("%s%-5s%s %s", color_of(options, result->verdict), et_verdict_name(result->verdict),
           options->color ? "\033[0m" : "", result->run->id);
    if (result->device)
        printf(" on %s", result->device->name);
    if (result->judgement && result->verdict == ET_PASS)
        printf("  headroom %.3g, nmse %.2e, %.3g us", result->judgement->headroom,
               result->judgement->check[ET_CHECK_NMSE].figure, result->device_ns / 1000);
    printf("\n");
    if (result->reason && (result->verdict != ET_FAIL || !result->judgement)) {
        printf("    ");
        et_print_lines(result->reason, CONTINUED);
        printf("\n");
    }
    for (int i = 0; result->judgement && i < ET_CHECKS; i++) {
        const struct et_finding *finding = &result->judgement->check[i];
        const char *name = et_check_name((enum et_check)i);
        if (finding->outcome == ET_BROKEN)
            print_finding(name, "", finding);
        else if (finding->outcome == ET_SKIPPED && options->verbose)
            print_finding(name, "skipped: ", finding);
    }
    if (!bad)
        return;
    if (result->kept)
        printf("    kept: %s\n", result->kept);
    printf("    reproduce: %s\n", reproduce);
}

/* Nobody may be listening any more: the results are written all the same. */
static void flush_console(struct et_report *report)
{
    if ((fflush(stdout) != 0 || ferror(stdout)) && !report->console)
        report->console = errno ? errno : EIO;
}

static void print_progress(const struct et_report *report, const char *id)
{
    const double passed = et_now() - report->started;
    const double left = report->done > 0 ? passed / report->done * (report->total - report->done) : 0;
    fprintf(stderr, "\r\033[K[%d/%d] %.0f s left  %.80s", report->done, report->total, left, id);
    fflush(stderr);
}

/* ---- Interface ---- */

enum et_status et_report_open(const struct et_options *options, const struct et_plan *plan,
                              const struct et_device *devices, int device_count, const char *drivers,
                              struct et_report **opened, struct et_error *error)
{
    struct et_report *report = et_alloc(1, sizeof *report, error);
    if (!report)
        return ET_FAILED;
    *report = (struct et_report){.options = options, .results = -1, .started = et_now()};
    for (int i = 0; i < plan->count; i++)
        report->total += et_run_needs_device(&plan->runs[i]) ? device_count : 1;
    report->slowest = et_alloc((size_t)options->slowest, sizeof *report->slowest, error);
    enum et_status status = report->slowest ? ET_OK : ET_FAILED;
    if (status == ET_OK && options->junit)
        status = et_junit_open(options->junit, ET_VERSION " " ET_COMMIT, &report->junit, error);
    if (status == ET_OK && options->results) {
        report->results = open(options->results, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (report->results < 0)
            status = et_fail(error, ET_INVALID, "%s: %s", options->results, strerror(errno));
    }
    if (status != ET_OK) {
        if (report->junit)
            et_junit_close(report->junit, 0, NULL);
        et_free(report->slowest);
        et_free(report);
        return status;
    }
    if (report->results >= 0)
        write_header(report, devices, device_count, drivers);
    *opened = report;
    return ET_OK;
}

static void rank_slowest(struct et_report *report, const struct et_result *result)
{
    const double seconds = result->times.compile + result->times.kernel;
    int at = report->slow_count;
    while (at > 0 && report->slowest[at - 1].seconds < seconds)
        at--;
    if (at >= report->options->slowest || seconds <= 0)
        return;
    report->slow_count += report->slow_count < report->options->slowest;
    memmove(&report->slowest[at + 1], &report->slowest[at],
            (size_t)(report->slow_count - 1 - at) * sizeof *report->slowest);
    report->slowest[at] =
        (struct slow){result->run->id, result->device ? result->device->name : NULL, seconds};
}

void et_report_add(struct et_report *report, const struct et_result *result)
{
    report->done++;
    report->verdicts[result->verdict]++;
    report->times.fill += result->times.fill;
    report->times.oracle += result->times.oracle;
    report->times.compile += result->times.compile;
    report->times.kernel += result->times.kernel;
    if (result->verdict == ET_SKIP) {
        tally_add(&report->skips, result->reason);
        report->unlisted_skips += !result->listed;
    }
    if (result->program && result->device) {
        struct et_text key = {0};
        et_text_add(&key, "%s %s", result->device->place, result->program);
        if (!key.failed)
            tally_add(&report->programs, key.data);
        et_text_free(&key);
    }
    rank_slowest(report, result);
    struct et_text reproduce = {0};
    add_reproduce(&reproduce, report->options, result);
    print_result(report, result, reproduce.data ? reproduce.data : "");
    flush_console(report);
    if (et_verdict_bad(result->verdict))
        et_text_add(&report->reproduce, "  %s\n", reproduce.data ? reproduce.data : "");
    if (report->junit)
        et_junit_add(report->junit, result, reproduce.data ? reproduce.data : "");
    et_text_free(&reproduce);
    if (report->results >= 0)
        write_result(report, result);
    if (report->options->progress)
        print_progress(report, result->run->id);
}

static void print_skips(const struct tally *skips)
{
    enum { SHOWN = 4 };
    for (int i = 0; i < skips->count && i < SHOWN; i++) {
        printf("%s%d ", i ? ", " : " (", skips->at[i].count);
        et_print_lines(skips->at[i].text, " ");
    }
    if (skips->count > SHOWN)
        printf(", and %d more reasons", skips->count - SHOWN);
    printf(skips->count ? ")" : "");
}

bool et_report_full(const struct et_report *report)
{
    int bad = 0;
    for (int i = 0; i < ET_VERDICTS; i++)
        bad += et_verdict_bad((enum et_verdict)i) ? report->verdicts[i] : 0;
    return report->options->max_fail > 0 && bad >= report->options->max_fail;
}

static void print_summary(const struct et_report *report)
{
    const int *n = report->verdicts;
    if (report->reproduce.length > 0 && !report->reproduce.failed)
        printf("reproduce:\n%s", report->reproduce.data);
    for (int i = 0; i < report->slow_count; i++)
        printf("%s%9.3f s  %s on %s\n", i ? "" : "slowest, compile and kernel:\n", report->slowest[i].seconds,
               report->slowest[i].id, report->slowest[i].device);
    printf("%d passed, %d failed", n[ET_PASS], n[ET_FAIL]);
    if (n[ET_ERROR])
        printf(", %d errors", n[ET_ERROR]);
    if (n[ET_MISTRUSTED])
        printf(", %d mistrusted", n[ET_MISTRUSTED]);
    if (n[ET_XFAIL])
        printf(", %d known failures", n[ET_XFAIL]);
    if (n[ET_XPASS])
        printf(", %d known failures that pass", n[ET_XPASS]);
    if (n[ET_SKIP]) {
        printf(", %d skipped", n[ET_SKIP]);
        print_skips(&report->skips);
    }
    if (report->done < report->total)
        printf(", %d not run", report->total - report->done);
    if (report->done < report->total && et_report_full(report))
        printf(" (--max-fail %d)", report->options->max_fail);
    printf(" in %.1f s: compile %.1f (%d programs), kernel %.1f, oracle %.1f, fill %.1f\n",
           et_now() - report->started, report->times.compile, report->programs.count, report->times.kernel,
           report->times.oracle, report->times.fill);
}

/* One sentence after the other: each tells of something else that is lost. */
static void add_sentence(struct et_text *text, const char *name, const char *what, const char *then)
{
    et_text_add(text, "%s%s: %s%s", text->length > 0 ? "; " : "", name, what, then);
}

enum et_status et_report_close(struct et_report *report, struct et_error *error)
{
    struct et_text lost = {0};
    struct et_error junit;
    if (report->options->progress)
        fprintf(stderr, "\r\033[K");
    errno = 0;
    print_summary(report);
    flush_console(report);
    if (report->results >= 0 && close(report->results) != 0 && !report->error)
        report->error = errno;
    if (report->error)
        add_sentence(&lost, report->options->results, strerror(report->error), ": the results are not whole");
    if (report->junit && et_junit_close(report->junit, report->total - report->done, &junit) != ET_OK)
        et_text_add(&lost, "%s%s", lost.length > 0 ? "; " : "", junit.text);
    if (report->console) {
        add_sentence(&lost, "standard output", strerror(report->console), "");
        /* It is told: the end of the program need not try again. */
        if (!freopen("/dev/null", "w", stdout))
            errno = report->console;
    }
    const enum et_status status = lost.length > 0 ? et_fail(error, ET_FAILED, "%s", lost.data) : ET_OK;
    et_text_free(&lost);
    tally_free(&report->skips);
    tally_free(&report->programs);
    et_text_free(&report->reproduce);
    et_free(report->slowest);
    et_free(report);
    return status;
}

int et_report_count(const struct et_report *report, enum et_verdict verdict)
{
    return report->verdicts[verdict];
}

int et_report_unlisted_skips(const struct et_report *report)
{
    return report->unlisted_skips;
}
