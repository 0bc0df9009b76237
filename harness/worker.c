#define _GNU_SOURCE /* prctl's header, F_DUPFD_CLOEXEC */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../ocl/guard.h"
#include "../ocl/ocl.h"
#include "../ref/rng.h"
#include "job.h"
#include "plugin.h"
#include "runner.h"

enum { REQUEST_MOST = 1 << 20, REPEATS_MOST = 10000, DEVICES_MOST = 256, REPORT_BYTES = 1 << 16 };

/* ---- The channel ---- */

/* Whether nobody holds the other end of stdin, and nothing that was written there is left to read. */
static bool is_deserted(void)
{
    struct pollfd in = {.fd = STDIN_FILENO};
    int left = 0;
    return poll(&in, 1, 0) == 1 && in.revents & POLLHUP && ioctl(STDIN_FILENO, FIONREAD, &left) == 0 &&
           left == 0;
}

/*
 * The protocol's own descriptor: OpenCL implementations and compilers print on stdout, which becomes stderr.
 * The judge's end is this process's end too, even where a driver does not come back to read the end of stdin:
 * by a signal, and where it came before the signal was asked for, by stdin.
 */
static int open_channel(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (is_deserted())
        return -1;
    const int fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    return fd >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0 ? fd : -1;
}

static bool write_all(int fd, const char *bytes, size_t n)
{
    size_t at = 0;
    while (at < n) {
        const ssize_t written = write(fd, bytes + at, n - at);
        if (written < 0 && errno != EINTR)
            return false;
        at += written > 0 ? (size_t)written : 0;
    }
    return true;
}

/* Writes a line and forgets it; one that memory did not suffice for is an error in few words. */
static bool say(int fd, struct et_text *line)
{
    static const char instead[] = "{\"status\": \"error\", \"error\": \"out of memory for an answer\"}\n";
    et_text_bytes(line, "\n", 1);
    const bool said =
        line->failed ? write_all(fd, instead, sizeof instead - 1) : write_all(fd, line->data, line->length);
    et_text_free(line);
    return said;
}

static void add_trouble(struct et_text *line, enum et_status status, const char *sentence)
{
    et_text_add(line, "{\"status\": \"%s\", \"error\": ",
                status == ET_REFUSED   ? "refused"
                : status == ET_LACKING ? "lacking"
                : status == ET_UNBUILT ? "unbuilt"
                                       : "error");
    et_json_add_string(line, sentence);
    et_text_add(line, "}");
}

/* Moves the next line of stdin into line; false at the end, and for a line that is none of ours or too much
 * for memory, of which either text then knows. */
static bool hear(struct et_text *rest, struct et_text *line)
{
    char chunk[4096];
    for (;;) {
        char *newline = rest->length > 0 ? memchr(rest->data, '\n', rest->length) : NULL;
        if (newline) {
            const size_t n = (size_t)(newline - rest->data);
            et_text_bytes(line, rest->data, n);
            rest->length -= n + 1;
            memmove(rest->data, newline + 1, rest->length);
            return !line->failed;
        }
        const ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || rest->length > REQUEST_MOST)
            return false;
        et_text_bytes(rest, chunk, (size_t)n);
        if (rest->failed)
            return false;
    }
}

/* ---- One request ---- */

struct work {
    const struct et_port *port;
    struct et_session *session;
    const struct et_device *device;
    struct et_json json;           /* the request */
    struct et_override *overrides; /* from it, or NULL */
    struct et_job job;
    bool guards; /* of ours around each output: the port writes to host memory */
    const char *out;
    const struct et_variant *variant;
    int64_t asked[ET_PARAMS];
    int repeats;
    struct et_problem *steps;
    struct et_claim *claims;
    struct et_facts *facts;
    double prepare_s, step_s;
};

static void free_work(struct work *work)
{
    et_free(work->overrides);
    et_free(work->facts);
    et_free(work->claims);
    et_free(work->steps);
    et_job_free(&work->job);
    et_json_free(&work->json);
}

static enum et_status read_knobs(struct work *work, const cJSON *node, struct et_error *error)
{
    const struct et_field *knobs = work->variant->knobs;
    for (int i = 0; i < ET_PARAMS; i++)
        work->asked[i] = ET_UNSET;
    enum et_status status = et_json_object(&work->json, node, "knobs", error);
    const cJSON *knob = status == ET_OK ? node->child : NULL;
    for (; knob && status == ET_OK; knob = knob->next) {
        const int i = et_field_index(knobs, knob->string);
        if (i < 0)
            return et_json_fail_key(&work->json, knob, error, "%s has no knob %s", work->variant->name,
                                    knob->string);
        status = et_json_int(&work->json, knob, knobs[i].name, -ET_EXACT, ET_EXACT, &work->asked[i], error);
        if (status == ET_OK)
            status = et_field_check(&knobs[i], (double)work->asked[i], error);
    }
    return status;
}

static enum et_status read_sources(struct work *work, const cJSON *node, struct et_error *error)
{
    if (!work->port->override)
        return et_json_fail(&work->json, node, error, "port %s takes no sources", work->port->name);
    enum et_status status = et_json_object(&work->json, node, "sources", error);
    if (status != ET_OK)
        return status;
    work->overrides = et_alloc((size_t)cJSON_GetArraySize(node) + 1, sizeof *work->overrides, error);
    if (!work->overrides)
        return ET_FAILED;
    struct et_override *override = work->overrides;
    for (node = node->child; node && status == ET_OK; node = node->next, override++) {
        override->name = node->string;
        status = et_json_string(&work->json, node, node->string, &override->text, error);
    }
    return status;
}

static enum et_status read_request(struct work *work, const struct et_text *line, struct et_error *error)
{
    static const char *const keys[] = {"sources", "job", "out", "variant", "knobs", "repeats", NULL};
    const char *folder = NULL, *variant = NULL;
    int64_t repeats = 0;
    struct et_json *json = &work->json;
    enum et_status status = et_json_parse("request", line->data ? line->data : "", line->length, json, error);
    const cJSON *sources = status == ET_OK ? et_json_get(json->root, "sources") : NULL;
    if (status == ET_OK)
        status = et_json_exact(json, json->root, "a request", sources ? keys : keys + 1, error);
    if (status == ET_OK && sources)
        status = read_sources(work, sources, error);
    if (status == ET_OK)
        status = et_json_string(json, et_json_get(json->root, "job"), "job", &folder, error);
    if (status == ET_OK)
        status = et_json_string(json, et_json_get(json->root, "out"), "out", &work->out, error);
    if (status == ET_OK)
        status = et_json_string(json, et_json_get(json->root, "variant"), "variant", &variant, error);
    if (status == ET_OK)
        status = et_json_int(json, et_json_get(json->root, "repeats"), "repeats", 1, REPEATS_MOST, &repeats,
                             error);
    if (status == ET_OK)
        status = et_job_read(folder, &work->job, error);
    if (status != ET_OK)
        return status;
    work->repeats = (int)repeats;
    work->variant = et_variant_named(work->port, work->job.op->name, variant);
    if (!work->variant)
        return et_fail(error, ET_INVALID, "port %s has no variant %s of %s", work->port->name, variant,
                       work->job.op->name);
    return read_knobs(work, et_json_get(json->root, "knobs"), error);
}

static enum et_status resolve(struct work *work, struct et_error *error)
{
    const size_t n = (size_t)work->job.step_count;
    work->steps = et_alloc(n, sizeof *work->steps, error);
    work->claims = et_alloc(n, sizeof *work->claims, error);
    work->facts = et_alloc(n * (size_t)work->repeats, sizeof *work->facts, error);
    if (!work->steps || !work->claims || !work->facts)
        return ET_FAILED;
    enum et_status status = ET_OK;
    for (size_t i = 0; i < n && status == ET_OK; i++) {
        work->steps[i] = work->job.steps[i].problem;
        status = work->variant->resolve(&work->steps[i], work->device, work->asked, &work->claims[i], error);
    }
    return status;
}

/* guard | data | guard; NULL where there is no output. */
struct guarded {
    unsigned char *memory;
    size_t guard; /* bytes */
};

static enum et_status add_guards(const struct et_problem *problem, struct guarded *guarded, void **out,
                                 struct et_error *error)
{
    for (int t = 0; problem->op->tensors[t].name; t++) {
        const struct et_tensor *tensor = &problem->tensor[t];
        struct guarded *g = &guarded[t];
        if (problem->op->tensors[t].role != ET_OUTPUT)
            continue;
        g->guard = et_guard_bytes(tensor);
        g->memory = et_alloc(2 * g->guard + tensor->bytes, 1, error);
        if (!g->memory)
            return ET_FAILED;
        const struct et_stream stream = et_stream(0, problem->op->tensors[t].name);
        const size_t n = g->guard / et_format(tensor->dtype)->bytes;
        for (size_t k = 0; k < 2 * n; k++)
            et_store(tensor->dtype, g->memory + (k < n ? 0 : tensor->bytes), (int64_t)k,
                     et_nan(tensor->dtype, et_word(&stream, k, 0)));
        out[t] = g->memory + g->guard;
    }
    return ET_OK;
}

/* Tells the change next to the data; of what an execution brought to light the first is enough. */
static void look_at_guards(const struct et_tensor *tensor, const char *name, const struct guarded *g,
                           struct et_facts *facts)
{
    const struct et_stream stream = et_stream(0, name);
    const size_t n = g->guard / et_format(tensor->dtype)->bytes;
    for (size_t i = 0; i < 2 * n && !facts->guards[0]; i++) {
        const size_t k = i < n ? n - 1 - i : i;
        const uint32_t was = et_nan(tensor->dtype, et_word(&stream, k, 0));
        const uint32_t is = et_load(tensor->dtype, g->memory + (k < n ? 0 : tensor->bytes), (int64_t)k);
        if (is != was)
            et_guard_tell(facts, name, tensor->dtype, k < n ? n - k : k - n + 1, k < n, was, is);
    }
}

/* Outputs come to `out` once the port is done: a write beside one of them harms none of the others. */
static enum et_status step_guarded(struct work *work, void *state, int i, int repeat, void *const *out,
                                   struct et_facts *facts, struct et_error *error)
{
    const struct et_problem *problem = &work->steps[i];
    struct guarded guarded[ET_TENSORS] = {{NULL, 0}};
    void *inner[ET_TENSORS] = {NULL};
    enum et_status status = add_guards(problem, guarded, inner, error);
    if (status == ET_OK) {
        et_poison_fill(problem, repeat, NULL, inner);
        status = work->variant->step(state, i, repeat, inner, facts, error);
    }
    for (int t = 0; t < ET_TENSORS; t++) {
        if (status == ET_OK && guarded[t].memory) {
            look_at_guards(&problem->tensor[t], problem->op->tensors[t].name, &guarded[t], facts);
            memcpy(out[t], inner[t], problem->tensor[t].bytes);
        }
        et_free(guarded[t].memory);
    }
    facts->guarded = true;
    return status;
}

static enum et_status execute(struct work *work, void *state, int i, int repeat, struct et_error *error)
{
    void *out[ET_TENSORS] = {NULL}, *map = NULL;
    size_t bytes = 0;
    struct et_facts *facts = &work->facts[i * work->repeats + repeat];
    enum et_status status = et_outputs_create(&work->job, i, repeat, work->out, out, &map, &bytes, error);
    if (status == ET_OK && work->guards) {
        status = step_guarded(work, state, i, repeat, out, facts, error);
    } else if (status == ET_OK) {
        et_poison_fill(&work->steps[i], repeat, NULL, out);
        status = work->variant->step(state, i, repeat, out, facts, error);
    }
    et_unmap(map, bytes);
    return status;
}

static enum et_status run(struct work *work, struct et_error *error)
{
    void *state = NULL;
    const double start = et_now();
    if (work->overrides)
        work->port->override(work->session, work->overrides);
    enum et_status status = work->variant->prepare(work->session, work->variant, work->steps, work->claims,
                                                   work->job.step_count, &state, error);
    const double prepared = et_now();
    for (int i = 0; i < work->job.step_count; i++)
        for (int repeat = 0; repeat < work->repeats && status == ET_OK; repeat++)
            status = execute(work, state, i, repeat, error);
    work->prepare_s = prepared - start;
    work->step_s = et_now() - prepared;
    work->variant->finish(state);
    if (work->overrides)
        work->port->override(work->session, NULL);
    return status;
}

static void add_results(struct et_text *line, const struct work *work)
{
    et_text_add(line, "{\"status\": \"ok\", \"variant\": ");
    et_json_add_string(line, work->variant->name);
    et_text_add(line, ", \"claims\": [");
    for (int i = 0; i < work->job.step_count; i++) {
        et_text_add(line, "%s", i > 0 ? ", " : "");
        et_claim_add(line, work->variant, &work->claims[i]);
    }
    et_text_add(line, "], \"steps\": [");
    for (int i = 0; i < work->job.step_count * work->repeats; i++) {
        et_text_add(line, "%s%s", i > 0 ? ", " : "", i % work->repeats == 0 ? "[" : "");
        et_facts_add(line, &work->facts[i]);
        et_text_add(line, "%s", (i + 1) % work->repeats == 0 ? "]" : "");
    }
    et_text_add(line, "], \"prepare_s\": ");
    et_json_add_real(line, work->prepare_s);
    et_text_add(line, ", \"step_s\": ");
    et_json_add_real(line, work->step_s);
    et_text_add(line, "}");
}

static void answer(const struct et_port *port, struct et_session *session, const struct et_device *device,
                   bool guards, const struct et_text *request, struct et_text *line)
{
    struct work work = {.port = port, .session = session, .device = device, .guards = guards};
    struct et_error error = {.text = ""};
    enum et_status status = read_request(&work, request, &error);
    if (status == ET_OK)
        status = resolve(&work, &error);
    if (status == ET_OK)
        status = run(&work, &error);
    if (status == ET_OK)
        add_results(line, &work);
    else
        add_trouble(line, status, error.text);
    free_work(&work);
}

/* ---- The two commands ---- */

/* Our judge asks for the variants of a plugin; one that has this worker for `exec`, for those of any port. */
static void add_hello(struct et_text *line, const struct et_port *port, const struct et_device *device)
{
    et_text_add(line, "{\"etalon\": %d, \"port\": ", ET_PROTOCOL);
    et_json_add_string(line, port->name);
    et_text_add(line, ", \"device\": ");
    et_device_add(line, device);
    et_text_add(line, ", \"variants\": ");
    et_offer_add(line, port);
    et_text_add(line, "}");
}

int et_worker(const struct et_port *port, const char *plugin, const struct et_open *open)
{
    const int fd = open_channel();
    struct et_session *session = NULL;
    struct et_device device = {0};
    struct et_error error = {.text = ""};
    struct et_text line = {0}, request = {0}, rest = {0};
    if (fd < 0)
        return EXIT_FAILURE;
    enum et_status status = plugin ? et_plugin_load(plugin, &port, &error) : ET_OK;
    if (status == ET_OK)
        status = port->open(open, &session, &device, &error);
    et_limit_device(&device, &open->limits);
    /* As of any outsider: an order that it claims is judged. */
    if (plugin && !device.probed)
        device.probed = device.exact = device.exact_subnormal = true;
    if (status == ET_OK)
        add_hello(&line, port, &device);
    else
        add_trouble(&line, status == ET_LACKING ? ET_LACKING : ET_FAILED, error.text);
    bool fine = say(fd, &line) && status == ET_OK;
    /* Every other port writes to host memory, and has no guards of its own. */
    const bool guards = open->guards && port != &et_ocl;
    while (fine && hear(&rest, &request)) {
        answer(port, session, &device, guards, &request, &line);
        et_text_free(&request);
        fine = say(fd, &line);
    }
    line.failed = request.failed || rest.failed;
    if (fine && line.failed) {
        say(fd, &line);
        fine = false;
    }
    et_text_free(&request);
    et_text_free(&rest);
    if (port)
        port->close(session);
    close(fd);
    return fine ? EXIT_SUCCESS : EXIT_FAILURE;
}

static void add_list(struct et_text *line, const struct et_port *port, struct et_device *devices,
                     char *report)
{
    const int found = port->list(devices, DEVICES_MOST, report, REPORT_BYTES);
    const int count = found < DEVICES_MOST ? found : DEVICES_MOST;
    et_text_add(line, "{\"devices\": [");
    for (int i = 0; i < count; i++) {
        et_text_add(line, "%s", i > 0 ? ", " : "");
        et_device_add(line, &devices[i]);
    }
    et_text_add(line, "], \"report\": ");
    et_json_add_string(line, report);
    et_text_add(line, "}");
}

int et_worker_list(const struct et_port *port)
{
    const int fd = open_channel();
    if (fd < 0)
        return EXIT_FAILURE;
    struct et_device *devices = et_alloc(DEVICES_MOST, sizeof *devices, NULL);
    char *report = et_alloc(REPORT_BYTES, 1, NULL);
    struct et_text line = {.failed = !devices || !report};
    if (!line.failed)
        add_list(&line, port, devices, report);
    const bool fine = say(fd, &line);
    et_free(devices);
    et_free(report);
    close(fd);
    return fine ? EXIT_SUCCESS : EXIT_FAILURE;
}
