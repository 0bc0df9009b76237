#define _XOPEN_SOURCE 700

#include "run.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "dump.h"
#include "known.h"
#include "mutate.h"
#include "records.h"
#include "report.h"

/* One device under test. */
struct station {
    struct et_runner runner;
    const char *argv[13];
    char place[16];        /* in argv: a hello may name no place, or another */
    enum et_status opened; /* ET_OK, or why every run on it ends the same way */
    struct et_error why;
    bool *spent; /* a mutant each: its remaining runs could only fail as the last one did */
    int queue;   /* next request of the group: an index into attempts * jobs */
    bool busy;
};

struct context {
    const struct et_options *options;
    const struct et_plan *plan;
    const volatile sig_atomic_t *stop;
    struct station *stations;
    int station_count;
    struct et_known known;
    struct et_report *report; /* or, where the plan has mutants, */
    struct et_kills *kills;
    char *temp[2]; /* made when first needed: in memory, on disk */
};

/* What came back for one job: the case's own problem, or one of its twins. */
struct answer {
    char *folder;
    struct et_reply reply;
    struct et_outputs *outputs; /* steps * repeats, opened for judging */
};

/* One run on one device. */
struct attempt {
    const struct et_run *run;
    const struct et_mutant *mutant; /* or NULL */
    struct station *station;
    struct et_claim *claims; /* one a step */
    struct et_claim *judged; /* likewise: what the outputs are held to */
    enum et_verdict verdict; /* decided early: ET_SKIP or ET_ERROR with why; else ET_PASS until judged */
    bool kept;
    struct et_error why;
    bool unbuilt;           /* why there is nothing to judge */
    struct answer *answers; /* one a job */
    struct et_judgement judgement;
    char (*outputs)[33];
    double device_ns, device_ns_median;
    int repeats;
};

/* Runs of one (case, fill) on all devices. */
struct group {
    const struct et_case *c;
    enum et_fill_kind fill;
    struct attempt *attempts;
    int attempt_count;
    struct et_job *jobs; /* the case's, then its twins' */
    int job_count;       /* written */
    char (**prints)[33]; /* of an outsider's jobs: what et_job_prints said when they were written; or NULL */
    char *folder;
    char *kept;             /* what the folder is to be called where a run of it failed, or NULL */
    struct et_truth *truth; /* one a step */
    int truth_count;
    char (*inputs)[33];
    double fill_s;
    const struct context *context;
    struct et_error error; /* of the truth */
    enum et_status status;
};

void et_complain(const char *format, ...)
{
    char line[2 * PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    et_hide_controls(line, "");
    fprintf(stderr, "etalon: %s\n", line);
}

static int jobs_of(const struct et_case *c)
{
    return 1 + c->twin_count;
}

static int repeats_of(const struct context *context, const struct et_case *c)
{
    return context->options->repeat > 0 ? context->options->repeat : c->checks.repeat;
}

/* ---- Folders ---- */

static char *make_temp(const char *parent, struct et_error *error)
{
    char *path = et_print(error, "%s/etalon-XXXXXX", parent);
    if (path && mkdtemp(path))
        return path;
    if (path)
        et_fail(error, ET_FAILED, "%s: no folder for jobs can be made there: %s", parent, strerror(errno));
    et_free(path);
    return NULL;
}

static bool has_room(const char *path, double bytes)
{
    struct statvfs fs;
    return statvfs(path, &fs) == 0 && (double)fs.f_bavail * (double)fs.f_frsize > bytes;
}

/* Where a job of so many bytes goes: where jobs are kept, if they are; TMPDIR if that is set; else memory
 * where it fits twice, else disk. */
static const char *temp_for(struct context *context, double bytes, struct et_error *error)
{
    const char *keep = context->report ? context->options->keep : NULL;
    const char *given = keep ? keep : getenv("TMPDIR");
    const bool memory =
        !(given && *given) && access("/dev/shm", W_OK | X_OK) == 0 && has_room("/dev/shm", 2 * bytes);
    char **at = &context->temp[memory ? 0 : 1];
    if (!*at)
        *at = make_temp(memory ? "/dev/shm" : given && *given ? given : "/tmp", error);
    return *at;
}

static void remove_temp(struct context *context)
{
    for (int i = 0; i < 2; i++) {
        if (context->temp[i])
            et_remove_folder(context->temp[i]);
        et_free(context->temp[i]);
    }
}

/* ---- Requests ---- */

static void set_verdict(struct attempt *attempt, enum et_verdict verdict, const char *text)
{
    attempt->verdict = verdict;
    et_fail(&attempt->why, ET_OK, "%s", text);
}

/* A simulator of devices is about that much slower than what it simulates. */
static double timeout_of(const struct et_options *options, const struct et_device *device)
{
    if (options->timeout_s > 0)
        return options->timeout_s;
    return strcmp(device->platform, "Oclgrind") == 0 ? 20 * 60 : 60;
}

/* Whether a mutant is, on this station, not worth another run; a place to say so. NULL: no mutant. */
static bool *spent_of(const struct context *context, const struct attempt *attempt)
{
    return attempt->mutant ? &attempt->station->spent[attempt->mutant - context->plan->mutants.at] : NULL;
}

/* An outsider finds its outputs there, and need not know of poison and padding. */
static enum et_status poison_outputs(const struct group *group, const struct attempt *attempt, int job,
                                     struct et_error *error)
{
    enum et_status status = ET_OK;
    for (int i = 0; status == ET_OK && i < group->c->step_count * attempt->repeats; i++)
        status = et_outputs_poison(&group->jobs[job], i / attempt->repeats, i % attempt->repeats,
                                   group->context->stop, attempt->answers[job].folder, error);
    return status;
}

static void ask_next(struct context *context, struct group *group, struct station *station)
{
    const int jobs = jobs_of(group->c);
    for (; station->queue < group->attempt_count * jobs; station->queue++) {
        struct attempt *attempt = &group->attempts[station->queue / jobs];
        if (attempt->station != station || attempt->verdict != ET_PASS)
            continue;
        if (station->opened != ET_OK) {
            set_verdict(attempt, ET_ERROR, station->why.text);
            continue;
        }
        const bool *spent = spent_of(context, attempt);
        if (spent && *spent) {
            set_verdict(attempt, ET_SKIP, "an earlier run of this mutant did not build or was late");
            continue;
        }
        const int job = station->queue % jobs;
        struct et_error error;
        if (station->runner.offer && poison_outputs(group, attempt, job, &error) != ET_OK) {
            set_verdict(attempt, ET_ERROR, error.text);
            continue;
        }
        const struct et_request request = {.job = group->jobs[job].folder,
                                           .out = attempt->answers[job].folder,
                                           .variant = attempt->run->ask.variant,
                                           .knobs = attempt->run->ask.knob,
                                           .steps = group->c->step_count,
                                           .repeats = attempt->repeats,
                                           .sources = attempt->mutant ? attempt->mutant->sources : NULL};
        if (et_runner_ask(&station->runner, &request, timeout_of(context->options, &station->runner.device),
                          &error) == ET_OK) {
            station->busy = true;
            return;
        }
        set_verdict(attempt, ET_ERROR, error.text);
        /* What does not open again would cost every run left the wait for its hello. */
        station->opened = ET_FAILED;
        station->why = error;
    }
}

static enum et_status write_job(struct group *group, int j, const char *folder, struct et_error *error)
{
    const struct et_options *options = group->context->options;
    enum et_status status = et_job_write(group->c, j ? &group->c->twins[j - 1] : NULL, group->fill,
                                         options->has_seed ? &options->seed : NULL, options->threads,
                                         group->context->stop, folder, &group->jobs[j], error);
    if (status == ET_OK && group->prints)
        status = et_job_prints(&group->jobs[j], group->context->stop, group->prints[j], error);
    return status;
}

/*
 * What an outsider was given must be as it was: it is not trusted to look. What was changed is made again,
 * for those who come after.
 */
static enum et_status check_inputs(struct group *group, int j, struct et_reply *reply, struct et_error *error)
{
    struct et_job *job = &group->jobs[j];
    char name[32], (*now)[33] = et_alloc((size_t)job->step_count + 1, sizeof *now, error);
    enum et_status status = now ? et_job_prints(job, group->context->stop, now, error) : ET_FAILED;
    int changed = 0;
    while (status != ET_FAILED && changed <= job->step_count &&
           !strcmp(now[changed], group->prints[j][changed]))
        changed++;
    et_free(now);
    if (status == ET_FAILED || changed > job->step_count)
        return status;
    et_job_file(job, changed, name);
    for (int i = 0; reply->kind == ET_REPLY_OK && i < reply->step_count * reply->repeats; i++)
        snprintf(reply->facts[i].inputs_kept, sizeof reply->facts[i].inputs_kept,
                 "the runner changed %s of the job, which is not its to change", name);
    char *folder = et_strdup(job->folder, error);
    et_job_free(job);
    status = folder ? write_job(group, j, folder, error) : ET_FAILED;
    et_free(folder);
    return status;
}

/* Without inputs that are known to be right, nothing of the group is to be judged, or can be. */
static void lose_inputs(struct group *group, struct station *station, enum et_status status,
                        const struct et_error *why)
{
    group->status = status;
    group->error = *why;
    station->opened = ET_FAILED;
    station->why = *why;
}

/*
 * A request of the queue was answered. After an error the runner goes as well: an access out of bounds, for
 * one, breaks a context of NVIDIA's for every later call.
 */
static void take_reply(struct group *group, struct station *station, const struct et_reply *reply)
{
    const int jobs = jobs_of(group->c);
    struct attempt *attempt = &group->attempts[station->queue / jobs];
    attempt->answers[station->queue % jobs].reply = *reply;
    struct et_error why;
    const enum et_status kept =
        station->runner.offer
            ? check_inputs(group, station->queue % jobs, &attempt->answers[station->queue % jobs].reply, &why)
            : ET_OK;
    if (kept != ET_OK)
        lose_inputs(group, station, kept, &why);
    station->queue++;
    station->busy = false;
    if (reply->kind == ET_REPLY_ERROR)
        et_runner_stop(&station->runner, NULL);
    attempt->unbuilt = reply->kind == ET_REPLY_UNBUILT;
    bool *spent = spent_of(group->context, attempt);
    if (spent && (reply->late || attempt->unbuilt))
        *spent = true;
    if (reply->kind == ET_REPLY_LACKING || (reply->kind == ET_REPLY_REFUSED && station->runner.offer))
        set_verdict(attempt, ET_SKIP, reply->error);
    else if (reply->kind != ET_REPLY_OK)
        set_verdict(attempt, ET_ERROR, reply->error);
}

static void drive(struct context *context, struct group *group)
{
    for (;;) {
        int busy = 0;
        for (int i = 0; i < context->station_count; i++) {
            struct station *station = &context->stations[i];
            if (!station->busy && !*context->stop)
                ask_next(context, group, station);
            busy += station->busy;
        }
        if (busy == 0 || *context->stop)
            return;
        for (int i = 0; i < context->station_count; i++) {
            struct station *station = &context->stations[i];
            struct et_reply reply = {0};
            struct et_error error;
            bool done = false;
            if (!station->busy)
                continue;
            if (et_runner_poll(&station->runner, busy > 1 ? 0.01 : 0.5, &done, &reply, &error) != ET_OK) {
                done = true;
                reply = (struct et_reply){.kind = ET_REPLY_ERROR};
                snprintf(reply.error, sizeof reply.error, "%s", error.text);
            }
            if (done)
                take_reply(group, station, &reply);
        }
    }
}

/* ---- Preparing a group ---- */

/* What a step holds at a time. */
static double buffers_of(const struct et_problem *problem, const struct et_claim *claim)
{
    double bytes = (double)claim->scratch_bytes;
    for (int t = 0; problem->op->tensors[t].name; t++)
        bytes += problem->tensor[t].shares ? 0 : (double)problem->tensor[t].bytes;
    return bytes;
}

/* What every step claims on this device; skipped where the device lacks something. */
static enum et_status resolve(const struct context *context, const struct group *group,
                              struct attempt *attempt, struct et_error *error)
{
    const struct et_case *c = group->c;
    attempt->repeats = repeats_of(context, c);
    attempt->claims = et_alloc((size_t)c->step_count, sizeof *attempt->claims, error);
    attempt->judged = et_alloc((size_t)c->step_count, sizeof *attempt->judged, error);
    attempt->answers = et_alloc((size_t)jobs_of(c), sizeof *attempt->answers, error);
    attempt->outputs = et_alloc((size_t)c->step_count, sizeof *attempt->outputs, error);
    if (!attempt->claims || !attempt->judged || !attempt->answers || !attempt->outputs)
        return ET_FAILED;
    if (attempt->station->opened != ET_OK) {
        set_verdict(attempt, attempt->station->opened == ET_LACKING ? ET_SKIP : ET_ERROR,
                    attempt->station->why.text);
        return ET_OK;
    }
    for (int j = 0; j < jobs_of(c); j++)
        for (int i = 0; i < c->step_count && attempt->verdict == ET_PASS; i++) {
            _Alignas(16) unsigned char params[ET_PARAMS_BYTES];
            struct et_problem problem;
            struct et_claim twin;
            struct et_error why;
            enum et_status status =
                et_case_problem(c, i, j ? &c->twins[j - 1] : NULL, params, &problem, &why);
            if (status == ET_OK)
                status = attempt->run->ask.variant->resolve(&problem, &attempt->station->runner.device,
                                                            attempt->run->ask.knob,
                                                            j ? &twin : &attempt->claims[i], &why);
            const double memory = (double)context->options->memory;
            const double bytes = status == ET_OK ? buffers_of(&problem, j ? &twin : &attempt->claims[i]) : 0;
            if (memory > 0 && bytes > memory)
                status = et_fail(&why, ET_LACKING, "its buffers are %.0f bytes, --memory allows %.0f", bytes,
                                 memory);
            if (status != ET_OK)
                set_verdict(attempt, status == ET_LACKING ? ET_SKIP : ET_ERROR, why.text);
            if (j > 0)
                continue;
            if (status == ET_OK)
                attempt->judged[i] = attempt->claims[i];
            if (status == ET_OK && attempt->mutant && attempt->mutant->honest)
                et_mutant_claim(attempt->mutant, &problem, &attempt->judged[i]);
        }
    return ET_OK;
}

static bool any_left(const struct group *group)
{
    for (int i = 0; i < group->attempt_count; i++)
        if (group->attempts[i].verdict == ET_PASS)
            return true;
    return false;
}

static double bytes_of(const struct context *context, const struct group *group)
{
    const double runs = (double)group->attempt_count * repeats_of(context, group->c);
    double bytes = 0;
    for (int i = 0; i < group->c->step_count * jobs_of(group->c); i++) {
        const int job = i % jobs_of(group->c);
        _Alignas(16) unsigned char params[ET_PARAMS_BYTES];
        struct et_problem problem;
        if (et_case_problem(group->c, i / jobs_of(group->c), job ? &group->c->twins[job - 1] : NULL, params,
                            &problem, NULL) != ET_OK)
            continue;
        for (int t = 0; group->c->op->tensors[t].name; t++) {
            const double times = group->c->op->tensors[t].role == ET_OUTPUT ? runs : 1;
            bytes += problem.tensor[t].shares ? 0 : (double)problem.tensor[t].bytes * times;
        }
    }
    return bytes;
}

static char *make_folder(const char *parent, const char *prefix, int number, struct et_error *error)
{
    char *path = et_print(error, "%s/%s%d", parent, prefix, number);
    if (path && mkdir(path, 0700) == 0)
        return path;
    if (path)
        et_fail(error, ET_FAILED, "%s: %s", path, strerror(errno));
    et_free(path);
    return NULL;
}

static enum et_status make_prints(struct group *group, struct et_error *error)
{
    group->prints = et_alloc((size_t)jobs_of(group->c), sizeof *group->prints, error);
    for (int j = 0; group->prints && j < jobs_of(group->c); j++) {
        group->prints[j] = et_alloc((size_t)group->c->step_count + 1, sizeof *group->prints[j], error);
        if (!group->prints[j])
            return ET_FAILED;
    }
    return group->prints ? ET_OK : ET_FAILED;
}

static enum et_status write_jobs(struct context *context, struct group *group, struct et_error *error)
{
    const double started = et_now();
    const char *temp = temp_for(context, bytes_of(context, group), error);
    group->folder = temp ? make_folder(temp, "group", group->attempts[0].run->group, error) : NULL;
    group->jobs = et_alloc((size_t)jobs_of(group->c), sizeof *group->jobs, error);
    if (!group->folder || !group->jobs)
        return ET_FAILED;
    const enum et_status room =
        context->options->outsider && !context->options->dump ? make_prints(group, error) : ET_OK;
    if (room != ET_OK)
        return room;
    for (int j = 0; j < jobs_of(group->c); j++) {
        char *folder = make_folder(group->folder, "job", j, error);
        const enum et_status status = folder ? write_job(group, j, folder, error) : ET_FAILED;
        et_free(folder);
        group->job_count++;
        if (status != ET_OK)
            return status;
    }
    for (int i = 0; i < group->attempt_count; i++)
        for (int j = 0; j < jobs_of(group->c); j++) {
            struct answer *answer = &group->attempts[i].answers[j];
            answer->folder = make_folder(group->folder, "out", i * jobs_of(group->c) + j, error);
            if (!answer->folder)
                return ET_FAILED;
        }
    group->fill_s = et_now() - started;
    return ET_OK;
}

/* Runs beside the runners: the truth of every step for all that is claimed. */
static void *make_truth(void *argument)
{
    struct group *group = argument;
    const struct context *context = group->context;
    struct et_claim *claims = et_alloc((size_t)group->attempt_count, sizeof *claims, &group->error);
    group->status = claims ? ET_OK : ET_FAILED;
    for (int i = 0; group->status == ET_OK && i < group->c->step_count; i++) {
        int n = 0;
        for (int k = 0; k < group->attempt_count; k++)
            if (group->attempts[k].judged && !et_claim_is_open(&group->attempts[k].judged[i]))
                claims[n++] = group->attempts[k].judged[i];
        const uint64_t seed = context->options->has_seed ? context->options->seed : group->c->seed;
        group->status =
            et_truth_make(&group->jobs[0].steps[i].problem, seed, group->c->rows, claims, n,
                          context->options->threads, context->stop, &group->truth[i], &group->error);
        group->truth_count += group->status == ET_OK;
    }
    et_free(claims);
    return NULL;
}

/* ---- Judging ---- */

static bool answered(const struct attempt *attempt)
{
    return attempt->verdict == ET_PASS;
}

static bool same_claim(const struct et_variant *variant, const struct et_claim *a, const struct et_claim *b)
{
    return et_order_same(&a->order, &b->order) && !memcmp(&a->arith, &b->arith, sizeof a->arith) &&
           !memcmp(a->knob, b->knob, (size_t)et_field_count(variant->knobs) * sizeof *a->knob) &&
           !strcmp(et_variant_run(variant, a), et_variant_run(variant, b));
}

/* Whether name is one of a comma-separated list. */
static bool is_among(const char *name, const char *list)
{
    const size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == '\0'))
            return true;
    return false;
}

/* Every variant's main kernel is called OPERATOR_VARIANT: what ran must be what was claimed to run. */
static void check_engaged(const struct group *group, struct attempt *attempt)
{
    const struct et_variant *variant = attempt->run->ask.variant;
    char kernel[160];
    for (int j = 0; j < jobs_of(group->c); j++) {
        const struct et_reply *reply = &attempt->answers[j].reply;
        for (int i = 0; i < group->c->step_count * attempt->repeats; i++) {
            snprintf(kernel, sizeof kernel, "%s_%s", variant->op,
                     et_variant_run(variant, &reply->claims[i / attempt->repeats]));
            if (!is_among(kernel, reply->facts[i].kernels)) {
                et_fail(&attempt->why, ET_OK, "%s was asked for, but the kernels that ran are: %s", kernel,
                        reply->facts[i].kernels[0] ? reply->facts[i].kernels : "none");
                attempt->verdict = ET_ERROR;
            }
        }
        for (int i = 0; j == 0 && i < group->c->step_count; i++)
            if (!same_claim(variant, &reply->claims[i], &attempt->claims[i])) {
                et_fail(
                    &attempt->why, ET_OK,
                    "the runner claims another arithmetic, order (%s) or variant (%s) than resolve (%s, %s)",
                    reply->claims[i].order.name, et_variant_run(variant, &reply->claims[i]),
                    attempt->claims[i].order.name, et_variant_run(variant, &attempt->claims[i]));
                attempt->verdict = ET_ERROR;
            }
    }
}

/* What an outsider claims is what it is held to. */
static void adopt_claims(struct group *group)
{
    for (int i = 0; i < group->attempt_count; i++) {
        struct attempt *attempt = &group->attempts[i];
        for (int step = 0; answered(attempt) && step < group->c->step_count; step++)
            attempt->claims[step] = attempt->judged[step] = attempt->answers[0].reply.claims[step];
    }
}

static void open_outputs(struct group *group, struct attempt *attempt)
{
    const int steps = group->c->step_count, repeats = attempt->repeats;
    for (int j = 0; j < jobs_of(group->c); j++) {
        struct answer *answer = &attempt->answers[j];
        answer->outputs = et_alloc((size_t)(steps * repeats), sizeof *answer->outputs, &attempt->why);
        enum et_status status = answer->outputs ? ET_OK : ET_FAILED;
        for (int i = 0; status == ET_OK && i < steps * repeats; i++)
            status = et_outputs_open(&group->jobs[j], i / repeats, i % repeats, answer->folder,
                                     &answer->outputs[i], &attempt->why);
        if (status != ET_OK)
            attempt->verdict = ET_ERROR;
    }
}

static struct et_judge_input input_of(const struct group *group, const struct attempt *attempt, int step)
{
    const int first = step * attempt->repeats;
    return (struct et_judge_input){.c = group->c,
                                   .fill = group->fill,
                                   .step = step,
                                   .job = &group->jobs[0],
                                   .truth = &group->truth[step],
                                   .claim = &attempt->judged[step],
                                   .device = &attempt->station->runner.device,
                                   .outputs = &attempt->answers[0].outputs[first],
                                   .facts = &attempt->answers[0].reply.facts[first],
                                   .repeats = attempt->repeats};
}

/* Twins: the same bytes, and no guard or input touched either. */
static void judge_twins(const struct group *group, struct attempt *attempt, int step)
{
    const struct et_checks *checks = &group->c->checks;
    const int first = step * attempt->repeats;
    for (int j = 1; j < jobs_of(group->c); j++) {
        const struct answer *twin = &attempt->answers[j];
        char name[32];
        snprintf(name, sizeof name, "twin %d", j - 1);
        if (checks->identical)
            et_judge_identical(&group->jobs[0].steps[step].problem, &attempt->answers[0].outputs[first],
                               "the case", &group->jobs[j].steps[step].problem, &twin->outputs[first], name,
                               &attempt->judgement.check[ET_CHECK_IDENTICAL]);
        for (int r = 0; r < attempt->repeats; r++) {
            const struct et_facts *facts = &twin->reply.facts[first + r];
            const char *const found[] = {facts->guards, facts->inputs_kept};
            const enum et_check check[] = {ET_CHECK_GUARDS, ET_CHECK_INPUTS_KEPT};
            const bool on[] = {checks->guards, checks->inputs_kept};
            for (int k = 0; k < 2; k++) {
                struct et_finding *finding = &attempt->judgement.check[check[k]];
                if (!on[k] || !found[k][0] || finding->outcome == ET_BROKEN)
                    continue;
                *finding = (struct et_finding){.outcome = ET_BROKEN, .figure = 1};
                snprintf(finding->text, sizeof finding->text, "%s: %s", name, found[k]);
            }
        }
    }
}

/* Whether subnormals were met that one of the two devices does not compute as C does. */
static bool flushed_apart(const struct group *group, const struct attempt *a, const struct attempt *b,
                          int step)
{
    const struct et_truth *truth = &group->truth[step];
    const int order = et_truth_order(truth, &a->judged[step].order);
    return a->station != b->station && order >= 0 && truth->met[order].subnormal &&
           !(a->station->runner.device.exact_subnormal && b->station->runner.device.exact_subnormal);
}

/* Against the first run of the same kernels that must be close, and the first that must be the same bytes. */
static void judge_pairs(const struct group *group, int at, int step)
{
    struct attempt *attempt = &group->attempts[at];
    const struct et_checks *checks = &group->c->checks;
    const struct et_judge_input input = input_of(group, attempt, step);
    bool identical = !checks->identical || !strcmp(input.claim->order.name, "none");
    bool agrees = checks->agrees < 0;
    for (int i = 0; i < group->attempt_count && !(identical && agrees); i++) {
        const struct attempt *other = &group->attempts[i];
        if (i == at || !answered(other) || other->mutant != attempt->mutant)
            continue;
        const struct et_judge_input reference = input_of(group, other, step);
        char name[ET_PARAMS * 16 + 300];
        snprintf(name, sizeof name, "%s on %s", other->run->id + strlen(group->c->id) + 1,
                 reference.device->name);
        if (flushed_apart(group, attempt, other, step))
            continue;
        if (!agrees)
            et_judge_agrees(&input, &reference, name, &attempt->judgement.check[ET_CHECK_AGREES]);
        agrees = true;
        const bool comparable =
            other->station == attempt->station || (input.device->exact && reference.device->exact);
        if (identical || !comparable || !et_order_same(&input.claim->order, &reference.claim->order))
            continue;
        et_judge_identical(&input.job->steps[step].problem, input.outputs, "this run",
                           &reference.job->steps[step].problem, reference.outputs, name,
                           &attempt->judgement.check[ET_CHECK_IDENTICAL]);
        identical = true;
    }
}

/* The teeth of the first step that proves nothing, else of the first. */
static void add_teeth(const struct et_judge_input *input, struct et_judgement *judgement)
{
    struct et_teeth teeth;
    et_teeth_of(input, &teeth);
    if (input->step == 0 || (teeth.blind[0] && !judgement->teeth.blind[0]))
        judgement->teeth = teeth;
}

/* A PASS that no check of bytes decided, on data that could not have told. */
static bool mistrusted(const struct context *context, const struct group *group,
                       const struct attempt *attempt)
{
    const struct et_judgement *judgement = &attempt->judgement;
    if (!judgement->teeth.blind[0] || et_judged_by_bytes(judgement) || et_verdict_of(judgement) != ET_PASS)
        return false;
    return !et_plan_has_exact(context->options, context->plan, attempt->run) ||
           !et_exact_covers(&group->jobs[0].steps[0].problem, &attempt->claims[0].arith);
}

/* Of n executions of a step; of an even number the lower one. */
static double median_ns(const struct et_facts *facts, int n)
{
    int i = 0;
    for (int before = -1; before != (n - 1) / 2; i++) {
        before = 0;
        for (int k = 0; k < n; k++)
            before += facts[k].device_ns < facts[i].device_ns ||
                      (facts[k].device_ns == facts[i].device_ns && k < i);
    }
    return facts[i - 1].device_ns;
}

static void judge_group(struct group *group)
{
    for (int i = 0; i < group->attempt_count; i++) {
        struct attempt *attempt = &group->attempts[i];
        if (answered(attempt) && group->status != ET_OK)
            set_verdict(attempt, ET_ERROR, group->error.text);
        if (answered(attempt) && !attempt->station->runner.offer)
            check_engaged(group, attempt);
        if (answered(attempt))
            open_outputs(group, attempt);
    }
    for (int step = 0; step < group->c->step_count; step++)
        for (int i = 0; i < group->attempt_count; i++) {
            struct attempt *attempt = &group->attempts[i];
            if (!answered(attempt))
                continue;
            const struct et_judge_input input = input_of(group, attempt, step);
            et_judge(&input, &attempt->judgement);
            add_teeth(&input, &attempt->judgement);
            judge_twins(group, attempt, step);
            judge_pairs(group, i, step);
            attempt->device_ns += input.facts[0].device_ns;
            attempt->device_ns_median += median_ns(input.facts, input.repeats);
            struct et_error error;
            if (et_digest(&input.job->steps[step].problem, ET_OUTPUT, input.outputs[0].data,
                          group->context->stop, attempt->outputs[step], &error) != ET_OK)
                set_verdict(attempt, ET_ERROR, error.text);
        }
}

/* ---- Keeping ---- */

/* The folder that an option names is ours alone, so that nothing in it is of another run. path: or NULL. */
static enum et_status own_folder(const char *option, const char *path, struct et_error *error)
{
    if (!path)
        return ET_OK;
    if (mkdir(path, 0777) == 0)
        return ET_OK;
    DIR *folder = errno == EEXIST ? opendir(path) : NULL;
    if (!folder || access(path, W_OK | X_OK) != 0) {
        const char *why = strerror(errno);
        if (folder)
            closedir(folder);
        return et_fail(error, ET_INVALID, "%s %s: %s", option, path, why);
    }
    int entries = 0;
    while (readdir(folder))
        entries++;
    closedir(folder);
    /* "." and ".." */
    return entries <= 2 ? ET_OK : et_fail(error, ET_INVALID, "%s %s: not empty", option, path);
}

/* After the case and fill: what is no name of a file is cut or replaced, and then the group's number added.
 */
static void name_kept(const struct context *context, struct group *group)
{
    enum { NAME_MOST = 200 };
    struct et_text name = {0};
    et_text_add(&name, "%s/%s", group->c->id, et_fill_name(group->fill));
    for (size_t i = 0; i < name.length; i++)
        if (name.data[i] == '/')
            name.data[i] = '.';
    const bool cut = name.length > NAME_MOST;
    char *path = et_print(NULL, "%s/%.*s", context->options->keep, (int)NAME_MOST, name.data);
    struct stat st;
    if (path && (cut || lstat(path, &st) == 0)) {
        et_free(path);
        path = et_print(NULL, "%s/%.*s.%d", context->options->keep, (int)NAME_MOST, name.data,
                        group->attempts[0].run->group);
    }
    et_text_free(&name);
    group->kept = path;
}

/* The outputs of what failed get the names of variant, device and twin; those of the others go. */
static void keep_outputs(const struct group *group)
{
    for (int i = 0; i < group->attempt_count; i++)
        for (int j = 0; j < jobs_of(group->c); j++) {
            const struct attempt *attempt = &group->attempts[i];
            const char *from = attempt->answers ? attempt->answers[j].folder : NULL;
            if (!from)
                continue;
            char *to = et_print(NULL, "%s/%s@%s", group->folder, strrchr(attempt->run->id, '/') + 1,
                                attempt->station->place);
            char *twin = to && j ? et_print(NULL, "%s.twin%d", to, j - 1) : NULL;
            if (!attempt->kept)
                et_remove_folder(from);
            else if (!to || rename(from, twin ? twin : to) != 0)
                et_complain("%s: %s", from, strerror(errno));
            et_free(twin);
            et_free(to);
        }
}

static void keep_group(struct group *group)
{
    keep_outputs(group);
    if (rename(group->folder, group->kept) == 0)
        return;
    et_complain("%s: %s", group->kept, strerror(errno));
    et_remove_folder(group->folder);
}

/* ---- Reporting ---- */

static void add_result(struct context *context, const struct et_result *result)
{
    if (context->kills)
        et_kills_add(context->kills, result);
    else
        et_report_add(context->report, result);
}

static void apply_known(const struct context *context, struct et_result *result)
{
    const char *device = result->device ? result->device->name : "-";
    const char *reason = et_known_reason(&context->known, result->run->id, device);
    result->listed = reason != NULL;
    if (!reason || (result->verdict != ET_FAIL && result->verdict != ET_PASS))
        return;
    result->verdict = result->verdict == ET_FAIL ? ET_XFAIL : ET_XPASS;
    result->reason = reason;
}

static void report_group(struct context *context, struct group *group)
{
    bool charged = false;
    for (int i = 0; i < group->attempt_count; i++) {
        struct attempt *attempt = &group->attempts[i];
        const bool judged = answered(attempt);
        struct et_result result = {.run = attempt->run,
                                   .mutant = attempt->mutant,
                                   .device = &attempt->station->runner.device,
                                   .verdict = attempt->verdict,
                                   .reason = judged ? NULL : attempt->why.text,
                                   .unbuilt = attempt->unbuilt};
        for (int j = 0; attempt->answers && j < jobs_of(group->c); j++) {
            result.times.compile += attempt->answers[j].reply.prepare_s;
            result.times.kernel += attempt->answers[j].reply.step_s;
        }
        if (!charged) {
            charged = true;
            result.times.fill = group->fill_s;
            for (int s = 0; s < group->truth_count; s++)
                result.times.oracle += group->truth[s].oracle_s + group->truth[s].replay_s;
        }
        if (judged) {
            result.verdict = et_verdict_of(&attempt->judgement);
            result.reason = result.verdict == ET_SKIP ? "every check was off or did not apply" : NULL;
            if (mistrusted(context, group, attempt)) {
                result.verdict = ET_MISTRUSTED;
                result.reason = attempt->judgement.teeth.blind;
            }
            result.judgement = &attempt->judgement;
            result.claim = &attempt->claims[0];
            result.steps = group->c->step_count;
            result.inputs = (const char(*)[33])group->inputs;
            result.outputs = (const char(*)[33])attempt->outputs;
            result.device_ns = attempt->device_ns;
            result.device_ns_median = attempt->device_ns_median;
            result.program = attempt->answers[0].reply.facts[0].program;
        }
        apply_known(context, &result);
        attempt->kept = context->options->keep && group->folder && et_verdict_bad(result.verdict);
        if (attempt->kept && !group->kept)
            name_kept(context, group);
        result.kept = attempt->kept ? group->kept : NULL;
        add_result(context, &result);
    }
}

static void free_group(struct group *group)
{
    if (group->kept)
        keep_group(group);
    for (int i = 0; i < group->attempt_count; i++) {
        struct attempt *attempt = &group->attempts[i];
        for (int j = 0; attempt->answers && j < jobs_of(group->c); j++) {
            struct answer *answer = &attempt->answers[j];
            for (int k = 0; answer->outputs && k < group->c->step_count * attempt->repeats; k++)
                et_outputs_close(&answer->outputs[k]);
            et_free(answer->outputs);
            et_free(answer->folder);
            et_reply_free(&answer->reply);
        }
        et_free(attempt->answers);
        et_free(attempt->claims);
        et_free(attempt->judged);
        et_free(attempt->outputs);
    }
    for (int i = 0; group->truth && i < group->truth_count; i++)
        et_truth_free(&group->truth[i]);
    for (int j = 0; j < group->job_count; j++)
        et_job_free(&group->jobs[j]);
    for (int j = 0; group->prints && j < jobs_of(group->c); j++)
        et_free(group->prints[j]);
    et_free(group->prints);
    if (group->folder && !group->kept)
        et_remove_folder(group->folder);
    et_free(group->folder);
    et_free(group->kept);
    et_free(group->truth);
    et_free(group->inputs);
    et_free(group->jobs);
    et_free(group->attempts);
}

/* ---- The nest ---- */

/* Stands for a runner's answer: outputs that were made elsewhere. */
static enum et_status read_answer(const struct context *context, const struct group *group,
                                  struct attempt *attempt, struct et_error *error)
{
    const struct et_options *options = context->options;
    const struct et_dumped *dumped = et_dump_find(options->dump, attempt->run->id);
    const int steps = group->c->step_count;
    struct et_reply *reply = &attempt->answers[0].reply;
    if (!dumped || dumped->step_count != steps)
        return et_fail(error, ET_INVALID, "%s has no such run of %d steps", options->dumped, steps);
    for (int i = 0; i < steps; i++)
        if (strcmp(dumped->inputs[i], group->inputs[i]) != 0)
            return et_fail(error, ET_INVALID, "the case or its seed changed: its inputs are not those of %s",
                           options->dumped);
    *reply = (struct et_reply){.kind = ET_REPLY_OK, .step_count = steps, .repeats = 1};
    reply->claims = et_alloc((size_t)steps, sizeof *reply->claims, error);
    reply->facts = et_alloc((size_t)steps, sizeof *reply->facts, error);
    if (!reply->claims || !reply->facts)
        return ET_FAILED;
    memcpy(reply->claims, dumped->claims, (size_t)steps * sizeof *reply->claims);
    return et_dump_outputs(dumped, options->outputs ? options->outputs : options->dumped, &group->jobs[0],
                           attempt->answers[0].folder, error);
}

static void read_answers(const struct context *context, struct group *group)
{
    for (int i = 0; i < group->attempt_count && !*context->stop; i++) {
        struct attempt *attempt = &group->attempts[i];
        struct et_error why;
        if (answered(attempt) && read_answer(context, group, attempt, &why) != ET_OK)
            set_verdict(attempt, ET_ERROR, why.text);
    }
}

/* Truth comes last: which arithmetic it is to be of, the replies say. */
static void judge_claimed(struct context *context, struct group *group)
{
    if (*context->stop) /* some have no reply */
        return;
    adopt_claims(group);
    if (group->status == ET_OK && any_left(group))
        make_truth(group);
    if (!*context->stop)
        judge_group(group);
}

static enum et_status execute(struct context *context, struct group *group, struct et_error *error)
{
    enum et_status status = write_jobs(context, group, error);
    if (status != ET_OK)
        return status;
    for (int i = 0; i < group->c->step_count; i++)
        memcpy(group->inputs[i], group->jobs[0].steps[i].digest, sizeof group->inputs[i]);
    for (int i = 0; i < context->station_count; i++)
        context->stations[i].queue = 0;
    if (context->options->outsider) {
        if (context->options->dump)
            read_answers(context, group);
        else
            drive(context, group);
        judge_claimed(context, group);
        return ET_OK;
    }
    pthread_t thread;
    const int code = pthread_create(&thread, NULL, make_truth, group);
    if (code != 0)
        return et_fail(error, ET_FAILED, "no thread for the oracle: %s", strerror(code));
    drive(context, group);
    pthread_join(thread, NULL);
    if (!*context->stop)
        judge_group(group);
    return ET_OK;
}

static enum et_status add_attempts(const struct context *context, struct group *group,
                                   const struct et_run *runs, int n, const struct et_mutant *mutant,
                                   struct et_error *error)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < context->station_count; k++) {
            struct attempt *attempt = &group->attempts[group->attempt_count++];
            *attempt = (struct attempt){.run = &runs[i], .mutant = mutant, .station = &context->stations[k]};
            const enum et_status status = resolve(context, group, attempt, error);
            if (status != ET_OK)
                return status;
        }
    return ET_OK;
}

static enum et_status begin_group(struct context *context, struct group *group, const struct et_run *runs,
                                  int n, struct et_error *error)
{
    const size_t steps = (size_t)runs->c->step_count;
    group->context = context;
    group->c = runs->c;
    group->fill = runs->fill;
    const struct et_mutants *mutants = &context->plan->mutants;
    group->attempts = et_alloc((size_t)(n * context->station_count) * (size_t)(1 + mutants->count),
                               sizeof *group->attempts, error);
    group->truth = et_alloc(steps, sizeof *group->truth, error);
    group->inputs = et_alloc(steps, sizeof *group->inputs, error);
    if (!group->attempts || !group->truth || !group->inputs)
        return ET_FAILED;
    enum et_status status = add_attempts(context, group, runs, n, NULL, error);
    for (int m = 0; m < mutants->count && status == ET_OK; m++)
        if (mutants->at[m].op == group->c->op)
            status = add_attempts(context, group, runs, n, &mutants->at[m], error);
    return status;
}

/* What no attempt could be made of: an error each, as a run that is not told of would pass. */
static void report_unattempted(struct context *context, const struct group *group, const struct et_run *runs,
                               int n, const struct et_error *error)
{
    for (int i = group->attempt_count; i < n * context->station_count; i++) {
        struct et_result result = {.run = &runs[i / context->station_count],
                                   .device = &context->stations[i % context->station_count].runner.device,
                                   .verdict = ET_ERROR,
                                   .reason = error->text};
        apply_known(context, &result);
        add_result(context, &result);
    }
}

static void run_group(struct context *context, const struct et_run *runs, int n)
{
    struct group group = {0};
    struct et_error error;
    enum et_status status = begin_group(context, &group, runs, n, &error);
    if (status == ET_OK && any_left(&group))
        status = execute(context, &group, &error);
    for (int i = 0; status != ET_OK && i < group.attempt_count; i++)
        if (answered(&group.attempts[i]))
            set_verdict(&group.attempts[i], ET_ERROR, error.text);
    if (!*context->stop) {
        report_group(context, &group);
        report_unattempted(context, &group, runs, n, &error);
    }
    free_group(&group);
}

static void skip_case(struct context *context, const struct et_run *run)
{
    struct et_result result = {.run = run, .verdict = ET_SKIP, .reason = run->skip};
    apply_known(context, &result);
    et_report_add(context->report, &result);
}

/* A case that must be refused: the sentence is the result, and no device is needed. */
static void run_refusal(struct context *context, const struct et_run *run)
{
    const struct et_case *c = run->c;
    struct et_error why = {""}, reason;
    struct et_judgement judgement = {0};
    struct et_finding *finding = &judgement.check[ET_CHECK_EXPECT];
    const bool held = et_case_fits(c, &run->ask, &why) == ET_REFUSED && !strcmp(why.text, c->refused);
    *finding = (struct et_finding){.outcome = held ? ET_HELD : ET_BROKEN, .figure = NAN, .limit = NAN};
    if (!held)
        snprintf(finding->text, sizeof finding->text, "must be refused with \"%s\", %s%s%s", c->refused,
                 why.text[0] ? "was with \"" : "was accepted", why.text, why.text[0] ? "\"" : "");
    et_fail(&reason, ET_OK, "%.400s", finding->text);
    struct et_result result = {.run = run,
                               .verdict = held ? ET_PASS : ET_FAIL,
                               .reason = held ? NULL : reason.text,
                               .judgement = &judgement};
    apply_known(context, &result);
    add_result(context, &result);
}

static bool selected(const struct et_options *options, const struct et_device *device)
{
    for (int i = 0; i < options->devices.count; i++)
        if (et_glob(options->devices.at[i], device->name) || !strcmp(options->devices.at[i], device->place))
            return true;
    return options->devices.count == 0;
}

static enum et_status start(struct context *context, struct station *station, const struct et_device *device,
                            struct et_error *error)
{
    const struct et_options *options = context->options;
    int n = 0;
    station->spent = et_alloc((size_t)context->plan->mutants.count + 1, sizeof *station->spent, error);
    if (!station->spent)
        return ET_FAILED;
    station->argv[n++] = options->program;
    station->argv[n++] = "worker";
    station->argv[n++] = "--port";
    station->argv[n++] = options->port;
    station->argv[n++] = "--device";
    station->argv[n++] = station->place;
    if (!options->guards) {
        station->argv[n++] = "--guards";
        station->argv[n++] = "off";
    }
    if (options->limit) {
        station->argv[n++] = "--limit";
        station->argv[n++] = options->limit;
    }
    if (options->binaries) {
        station->argv[n++] = "--binaries";
        station->argv[n++] = options->binaries;
    }
    snprintf(station->place, sizeof station->place, "%s", device->place);
    station->runner.device = *device;
    station->runner.argv = station->argv;
    station->runner.stop = context->stop;
    station->opened = et_runner_start(&station->runner, timeout_of(options, device), &station->why);
    return ET_OK;
}

/* A program of others is one device, and runs already. */
static enum et_status seat_outsider(struct context *context, struct et_error *error)
{
    struct et_runner *outsider = context->options->outsider;
    if (!selected(context->options, &outsider->device))
        return ET_OK;
    context->stations = et_alloc(1, sizeof *context->stations, error);
    if (!context->stations)
        return ET_FAILED;
    struct station *station = &context->stations[context->station_count++];
    station->runner = *outsider;
    *outsider = (struct et_runner){.pid = 0};
    return ET_OK;
}

/* All devices wanted, opened; *report what the port looked at. */
static enum et_status open_stations(struct context *context, char **report, struct et_error *error)
{
    const struct et_options *options = context->options;
    if (options->outsider)
        return seat_outsider(context, error);
    const char *const argv[] = {options->program, "worker", "--port", options->port, "--list", NULL};
    struct et_device *devices = NULL;
    int count = 0;
    enum et_status status = et_devices_list(argv, ET_HELLO_S, context->stop, &devices, &count, report, error);
    if (status == ET_OK)
        context->stations = et_alloc((size_t)count, sizeof *context->stations, error);
    if (!context->stations)
        status = status == ET_OK ? ET_FAILED : status;
    for (int i = 0; status == ET_OK && i < count; i++)
        if (selected(options, &devices[i]) && !*context->stop)
            status = start(context, &context->stations[context->station_count++], &devices[i], error);
    et_free(devices);
    return status;
}

static enum et_status open_report(struct context *context, const char *drivers, struct et_error *error)
{
    struct et_device *devices = et_alloc((size_t)context->station_count, sizeof *devices, error);
    if (!devices)
        return ET_FAILED;
    for (int i = 0; i < context->station_count; i++)
        devices[i] = context->stations[i].runner.device;
    const enum et_status status =
        context->plan->mutants.count > 0
            ? et_kills_open(context->options, &context->plan->mutants, devices, context->station_count,
                            &context->kills, error)
            : et_report_open(context->options, context->plan, devices, context->station_count, drivers,
                             &context->report, error);
    et_free(devices);
    return status;
}

static int runs_of_group(const struct et_plan *plan, int first)
{
    int n = 1;
    while (first + n < plan->count && plan->runs[first + n].group == plan->runs[first].group)
        n++;
    return n;
}

static void run_all(struct context *context)
{
    const struct et_plan *plan = context->plan;
    for (int i = 0, n; i < plan->count && !*context->stop; i += n) {
        if (context->report && et_report_full(context->report))
            return;
        n = runs_of_group(plan, i);
        if (et_run_needs_device(&plan->runs[i]))
            run_group(context, &plan->runs[i], n);
        for (int k = 0; plan->runs[i].c->refused && k < n; k++)
            run_refusal(context, &plan->runs[i + k]);
        if (plan->runs[i].skip)
            skip_case(context, &plan->runs[i]);
    }
}

/* Closes the kill table: none of a mutant's verdicts counts by itself. */
static int close_kills(const struct context *context)
{
    struct et_error error;
    bool broken = false;
    if (et_kills_close(context->kills, &broken, &error) == ET_OK)
        return broken ? ET_EXIT_BROKEN : ET_EXIT_PASS;
    et_complain("%s", error.text);
    return ET_EXIT_BROKEN;
}

static int exit_status(const struct context *context, const char *drivers)
{
    const struct et_report *report = context->report;
    const int good = et_report_count(report, ET_PASS) + et_report_count(report, ET_XFAIL);
    const int bad = et_report_count(report, ET_FAIL) + et_report_count(report, ET_ERROR) +
                    et_report_count(report, ET_MISTRUSTED) + et_report_count(report, ET_XPASS);
    if (*context->stop)
        return 128 + *context->stop;
    if (bad > 0 || (context->options->strict && et_report_unlisted_skips(report) > 0))
        return ET_EXIT_BROKEN;
    if (good > 0 || context->plan->count == 0)
        return ET_EXIT_PASS;
    et_complain("nothing could be judged");
    fputs(drivers ? drivers : "", stderr);
    return ET_EXIT_NOTHING;
}

static bool needs_device(const struct et_plan *plan)
{
    for (int i = 0; i < plan->count; i++)
        if (et_run_needs_device(&plan->runs[i]))
            return true;
    return false;
}

/* ---- What checks could see, without a device ---- */

static void print_teeth(const struct et_teeth *teeth)
{
    for (int i = 0; i < teeth->count; i++) {
        printf("    %s:", teeth->at[i].name);
        for (int k = 0; k < ET_TOOTH_CHECKS; k++)
            if (!isnan(teeth->at[i].size[k]))
                printf(" %s %.3g", et_check_name(et_tooth_checks[k]), teeth->at[i].size[k]);
        printf("\n");
    }
    if (teeth->blind[0])
        printf("    blind: %s\n", teeth->blind);
}

static void print_attempt(const struct group *group, const struct attempt *attempt)
{
    printf("%s\n", attempt->run->id);
    for (int step = 0; answered(attempt) && step < group->truth_count; step++) {
        const struct et_judge_input input = {.c = group->c,
                                             .fill = group->fill,
                                             .step = step,
                                             .job = &group->jobs[0],
                                             .truth = &group->truth[step],
                                             .claim = &attempt->claims[step]};
        struct et_teeth teeth;
        et_teeth_of(&input, &teeth);
        if (group->c->step_count > 1)
            printf("  step %d\n", step);
        print_teeth(&teeth);
    }
    if (!answered(attempt))
        printf("    %s\n", attempt->why.text);
}

static enum et_status predict_group(struct context *context, const struct et_run *runs, int n,
                                    struct et_error *error)
{
    struct group group = {0};
    enum et_status status = begin_group(context, &group, runs, n, error);
    if (status == ET_OK && any_left(&group))
        status = write_jobs(context, &group, error);
    if (status == ET_OK && any_left(&group)) {
        make_truth(&group);
        status = group.status;
        *error = group.error;
    }
    for (int i = 0; status == ET_OK && i < group.attempt_count; i++)
        print_attempt(&group, &group.attempts[i]);
    free_group(&group);
    return status;
}

enum et_status et_predict_plan(const struct et_options *options, const struct et_plan *plan,
                               const volatile sig_atomic_t *stop, struct et_error *error)
{
    struct station anything = {.runner = {.device = et_device_unlimited()}};
    struct context context = {
        .options = options, .plan = plan, .stop = stop, .stations = &anything, .station_count = 1};
    enum et_status status = ET_OK;
    for (int i = 0, n; status == ET_OK && i < plan->count && !*stop; i += n) {
        n = runs_of_group(plan, i);
        if (plan->runs[i].c->refused)
            for (int k = 0; k < n; k++)
                printf("%s\n", plan->runs[i + k].id);
        else
            status = predict_group(&context, &plan->runs[i], n, error);
    }
    remove_temp(&context);
    return *stop ? ET_OK : status; /* what was interrupted is no trouble of its own */
}

int et_run_plan(const struct et_options *options, const struct et_plan *plan,
                const volatile sig_atomic_t *stop)
{
    struct context context = {.options = options, .plan = plan, .stop = stop};
    struct et_error error = {""};
    char *drivers = NULL;
    int code = ET_EXIT_USAGE;
    enum et_status status = options->known ? et_known_read(options->known, &context.known, &error) : ET_OK;
    if (status == ET_OK)
        status = own_folder("--keep", options->keep, &error);
    if (status == ET_OK)
        status = own_folder("--binaries", options->binaries, &error);
    if (status == ET_OK && needs_device(plan)) {
        status = open_stations(&context, &drivers, &error);
        code = ET_EXIT_NOTHING;
    }
    if (*stop) {
        et_complain("interrupted while devices were opened");
        goto done;
    }
    if (status == ET_OK && needs_device(plan) && context.station_count == 0) {
        et_complain("no device%s", options->devices.count ? " of that name" : "");
        fputs(drivers ? drivers : "", stderr);
        goto done;
    }
    if (status == ET_OK) {
        code = ET_EXIT_USAGE;
        status = open_report(&context, drivers, &error);
    }
    if (status != ET_OK) {
        et_complain("%s", error.text);
        goto done;
    }
    run_all(&context);
    if (context.kills) {
        code = close_kills(&context);
        goto done;
    }
    code = exit_status(&context, drivers);
    if (et_report_close(context.report, &error) != ET_OK) {
        et_complain("%s", error.text);
        code = ET_EXIT_BROKEN;
    }
done:
    for (int i = 0; i < context.station_count; i++) {
        struct station *station = &context.stations[i];
        if (et_runner_stop(&station->runner, &error) != ET_OK)
            et_complain("%s: %s", station->runner.device.name, error.text);
        et_free(station->spent);
    }
    remove_temp(&context);
    et_free(context.stations);
    et_free(drivers);
    et_known_free(&context.known);
    return *stop ? 128 + *stop : code;
}
