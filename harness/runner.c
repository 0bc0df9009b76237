#define _GNU_SOURCE /* pipe2, mkostemp */

#include "runner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_MOST = 16 << 20, DEVICES_MOST = 1024 };

double et_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- Structs as JSON objects ---- */

enum member_kind { TEXT, SHORT, LONG, TRUTH, REAL, DTYPE };

struct member {
    const char *key; /* NULL ends a table */
    enum member_kind kind;
    size_t offset, bytes;
    bool optional;
};

#define MEMBER(type, field, key, kind, optional)                                                             \
    {                                                                                                        \
        key, kind, offsetof(struct type, field), sizeof((struct type *)0)->field, optional                   \
    }
#define DEVICE(field, kind)    MEMBER(et_device, field, #field, kind, true)
#define ARITH(field, kind)     MEMBER(et_arith, field, #field, kind, false)
#define FACT(field, key, kind) MEMBER(et_facts, field, key, kind, false)

static const struct member device_members[] = {
    DEVICE(place, TEXT),         MEMBER(et_device, name, "name", TEXT, false),
    DEVICE(vendor, TEXT),        DEVICE(version, TEXT),
    DEVICE(driver, TEXT),        DEVICE(platform, TEXT),
    DEVICE(compute_units, LONG), DEVICE(work_group, LONG),
    DEVICE(local_memory, LONG),  DEVICE(global_memory, LONG),
    DEVICE(allocation, LONG),    DEVICE(subgroups, TRUTH),
    DEVICE(fp16, TRUTH),         DEVICE(fp64, TRUTH),
    DEVICE(shuffles, LONG),      DEVICE(vendor_shuffles, LONG),
    DEVICE(fp_config, LONG),     DEVICE(probed, TRUTH),
    DEVICE(exact, TRUTH),        DEVICE(exact_subnormal, TRUTH),
    DEVICE(probe, TEXT),         {.key = NULL},
};

static const struct member arith_members[] = {
    ARITH(query, DTYPE),     ARITH(product, DTYPE), ARITH(sum, DTYPE),
    ARITH(weight, DTYPE),    ARITH(partial, DTYPE), ARITH(depth_qk, SHORT),
    ARITH(depth_sum, SHORT), ARITH(tiles, SHORT),   {.key = NULL},
};

static const struct member facts_members[] = {
    FACT(device_ns, "ns", REAL),
    FACT(guarded, "guarded", TRUTH),
    FACT(guards, "guards", TEXT),
    FACT(inputs_kept, "inputs_kept", TEXT),
    FACT(kernels, "kernels", TEXT),
    FACT(program, "program", TEXT),
    {.key = NULL},
};

static void add_member(struct et_text *text, const struct member *m, const void *from)
{
    int32_t small;
    int64_t whole;
    enum et_dtype dtype;
    switch (m->kind) {
    case TEXT:
        et_json_add_string(text, from);
        break;
    case SHORT:
        memcpy(&small, from, sizeof small);
        et_text_add(text, "%" PRId32, small);
        break;
    case LONG:
        memcpy(&whole, from, sizeof whole);
        et_text_add(text, "%" PRId64, whole < 0 || whole > ET_EXACT ? ET_EXACT : whole);
        break;
    case TRUTH:
        et_text_add(text, "%s", *(const bool *)from ? "true" : "false");
        break;
    case REAL:
        et_json_add_real(text, *(const double *)from);
        break;
    case DTYPE:
        memcpy(&dtype, from, sizeof dtype);
        et_json_add_string(text, et_format(dtype)->name);
        break;
    }
}

static void add_members(struct et_text *text, const struct member *m, const void *object)
{
    for (const char *open = "{"; m->key; m++, open = ", ") {
        et_text_add(text, "%s\"%s\": ", open, m->key);
        add_member(text, m, (const char *)object + m->offset);
    }
    et_text_add(text, "}");
}

void et_device_add(struct et_text *text, const struct et_device *device)
{
    add_members(text, device_members, device);
}

void et_arith_add(struct et_text *text, const struct et_arith *arith)
{
    add_members(text, arith_members, arith);
}

void et_facts_add(struct et_text *text, const struct et_facts *facts)
{
    add_members(text, facts_members, facts);
}

enum { ORDER_ARGS = sizeof((struct et_order *)0)->arg / sizeof(int32_t) };

void et_order_add(struct et_text *text, const struct et_order *order)
{
    et_text_add(text, "{\"name\": ");
    et_json_add_string(text, order->name);
    et_text_add(text, ", \"arg\": [");
    for (int i = 0; i < ORDER_ARGS; i++)
        et_text_add(text, "%s%" PRId32, i > 0 ? ", " : "", order->arg[i]);
    et_text_add(text, "]}");
}

void et_claim_add(struct et_text *text, const struct et_variant *variant, const struct et_claim *claim)
{
    et_text_add(text, "{\"arith\": ");
    et_arith_add(text, &claim->arith);
    et_text_add(text, ", \"order\": ");
    et_order_add(text, &claim->order);
    et_text_add(text, ", \"scratch\": %zu, \"knobs\": {", claim->scratch_bytes);
    for (int i = 0; i < et_field_count(variant->knobs); i++)
        et_text_add(text, "%s\"%s\": %" PRId64, i > 0 ? ", " : "", variant->knobs[i].name, claim->knob[i]);
    et_text_add(text, "}, \"variant\": ");
    et_json_add_string(text, et_variant_run(variant, claim));
    et_text_add(text, "}");
}

/* Copies a string; one that is too long is cut where `cut`, else refused. */
static enum et_status read_text(const struct et_json *json, const cJSON *node, const char *what, char *dst,
                                size_t bytes, bool cut, struct et_error *error)
{
    const char *value = NULL;
    const enum et_status status = et_json_string(json, node, what, &value, error);
    if (status != ET_OK)
        return status;
    if (!cut && strlen(value) >= bytes)
        return et_json_fail(json, node, error, "%s has %zu bytes, at most %zu are allowed", what,
                            strlen(value), bytes - 1);
    snprintf(dst, bytes, "%s", value);
    return ET_OK;
}

static enum et_status read_dtype(const struct et_json *json, const cJSON *node, const char *what,
                                 enum et_dtype *dtype, struct et_error *error)
{
    const char *name = NULL;
    const enum et_status status = et_json_string(json, node, what, &name, error);
    if (status == ET_OK && !et_dtype_named(name, dtype))
        return et_json_fail(json, node, error, "%s is %s, which is no dtype", what, name);
    return status;
}

static enum et_status read_member(const struct et_json *json, const cJSON *node, const struct member *m,
                                  void *to, struct et_error *error)
{
    int64_t whole = 0;
    enum et_status status = ET_OK;
    switch (m->kind) {
    case TEXT:
        return read_text(json, node, m->key, to, m->bytes, true, error);
    case SHORT:
        status = et_json_int(json, node, m->key, 0, INT32_MAX, &whole, error);
        *(int32_t *)to = (int32_t)whole;
        return status;
    case LONG:
        status = et_json_int(json, node, m->key, 0, ET_EXACT, &whole, error);
        memcpy(to, &whole, sizeof whole);
        return status;
    case TRUTH:
        return et_json_bool(json, node, m->key, to, error);
    case REAL:
        return et_json_real(json, node, m->key, to, error);
    case DTYPE:
        return read_dtype(json, node, m->key, to, error);
    }
    return status;
}

enum { MEMBERS_MOST = 32 };

/* partial: what is missing stays as it is. */
static enum et_status read_members(const struct et_json *json, const cJSON *node, const char *what,
                                   const struct member *m, bool partial, void *object, struct et_error *error)
{
    const char *keys[MEMBERS_MOST + 1] = {NULL};
    for (int i = 0; m[i].key; i++)
        keys[i] = m[i].key;
    enum et_status status = et_json_object(json, node, what, error);
    if (status == ET_OK)
        status = et_json_keys(json, node, what, keys, error);
    for (; m->key && status == ET_OK; m++) {
        const cJSON *member = et_json_get(node, m->key);
        if (member)
            status = read_member(json, member, m, (char *)object + m->offset, error);
        else if (!m->optional && !partial)
            status = et_json_fail(json, node, error, "%s has no %s", what, m->key);
    }
    return status;
}

/* What a device says of itself stands in lines of ours. */
static enum et_status read_device(const struct et_json *json, const cJSON *node, const char *what,
                                  struct et_device *device, struct et_error *error)
{
    const enum et_status status = read_members(json, node, what, device_members, false, device, error);
    for (const struct member *m = device_members; m->key; m++)
        if (m->kind == TEXT)
            et_hide_controls((char *)device + m->offset, "");
    return status;
}

static enum et_status array_of(const struct et_json *json, const cJSON *node, const char *what, int n,
                               struct et_error *error)
{
    const enum et_status status = et_json_array(json, node, what, error);
    if (status == ET_OK && cJSON_GetArraySize(node) != n)
        return et_json_fail(json, node, error, "%s has %d entries, not %d", what, cJSON_GetArraySize(node),
                            n);
    return status;
}

/* ---- Messages ---- */

static enum et_status read_order(const struct et_json *json, const cJSON *node, struct et_order *order,
                                 struct et_error *error)
{
    static const char *const keys[] = {"name", "arg", NULL};
    enum et_status status = et_json_exact(json, node, "order", keys, error);
    if (status == ET_OK)
        status =
            read_text(json, et_json_get(node, "name"), "name", order->name, sizeof order->name, false, error);
    const cJSON *args = status == ET_OK ? et_json_get(node, "arg") : NULL;
    if (status == ET_OK)
        status = array_of(json, args, "arg", ORDER_ARGS, error);
    const cJSON *arg = status == ET_OK ? args->child : NULL;
    for (int i = 0; arg && status == ET_OK; i++, arg = arg->next) {
        int64_t value = 0;
        status = et_json_int(json, arg, "arg", INT32_MIN, INT32_MAX, &value, error);
        order->arg[i] = (int32_t)value;
    }
    return status;
}

static enum et_status read_knobs(const struct et_json *json, const cJSON *node,
                                 const struct et_variant *variant, int64_t *knob, struct et_error *error)
{
    const char *keys[ET_PARAMS + 1] = {NULL};
    for (int i = 0; i < et_field_count(variant->knobs); i++)
        keys[i] = variant->knobs[i].name;
    enum et_status status = et_json_exact(json, node, "knobs", keys, error);
    for (int i = 0; keys[i] && status == ET_OK; i++) {
        status = et_json_int(json, et_json_get(node, keys[i]), keys[i], -ET_EXACT, ET_EXACT, &knob[i], error);
        if (status == ET_OK && et_field_check(&variant->knobs[i], (double)knob[i], error) != ET_OK)
            status = ET_INVALID;
    }
    return status;
}

/* All keys are known, and those before the first NULL are there; of an object of ours, all are. */
static enum et_status have_keys(const struct et_json *json, const cJSON *node, const char *what,
                                const char *const *keys, const char *const *required, struct et_error *error)
{
    if (!required)
        return et_json_exact(json, node, what, keys, error);
    enum et_status status = et_json_object(json, node, what, error);
    if (status == ET_OK)
        status = et_json_keys(json, node, what, keys, error);
    for (; *required && status == ET_OK; required++)
        if (!et_json_get(node, *required))
            status = et_json_fail(json, node, error, "%s has no %s", what, *required);
    return status;
}

static enum et_status read_claim(const struct et_json *json, const cJSON *node,
                                 const struct et_runner *runner, struct et_claim *claim,
                                 struct et_error *error)
{
    static const char *const keys[] = {"arith", "order", "scratch", "knobs", "variant", NULL};
    const bool knobs = et_field_count(runner->variant->knobs) > 0;
    const char *const required[] = {"arith", knobs ? "knobs" : NULL, NULL};
    int64_t scratch = 0;
    claim->order = (struct et_order){.name = "none"};
    enum et_status status = have_keys(json, node, "a claim", keys, runner->offer ? required : NULL, error);
    if (status != ET_OK)
        return status;
    const cJSON *order = et_json_get(node, "order"), *bytes = et_json_get(node, "scratch");
    const cJSON *given = et_json_get(node, "knobs"), *ran = et_json_get(node, "variant");
    status =
        read_members(json, et_json_get(node, "arith"), "arith", arith_members, false, &claim->arith, error);
    if (status == ET_OK && order)
        status = read_order(json, order, &claim->order, error);
    if (status == ET_OK && !claim->order.name[0])
        return et_json_fail(json, order, error, "an order has a name; \"none\" claims none");
    if (status == ET_OK && bytes)
        status = et_json_int(json, bytes, "scratch", 0, ET_EXACT, &scratch, error);
    if (status == ET_OK && given)
        status = read_knobs(json, given, runner->variant, claim->knob, error);
    if (status == ET_OK && ran)
        status = read_text(json, ran, "variant", claim->variant, sizeof claim->variant, false, error);
    if (status == ET_OK && runner->offer && claim->variant[0] &&
        strcmp(claim->variant, runner->variant->name) &&
        (!runner->offer->at || !et_variant_named(&runner->offer->port, runner->variant->op, claim->variant)))
        status = et_json_fail(json, ran, error, "\"%s\" is no variant of this port", claim->variant);
    claim->scratch_bytes = (size_t)scratch;
    return status;
}

enum et_status et_claim_read(const struct et_json *json, const cJSON *node, const struct et_variant *variant,
                             struct et_claim *claim, struct et_error *error)
{
    struct et_offer offer = {.at = NULL};
    const struct et_runner runner = {.variant = variant, .offer = &offer};
    return read_claim(json, node, &runner, claim, error);
}

static enum et_status read_facts(const struct et_json *json, const cJSON *node,
                                 const struct et_runner *runner, struct et_facts *facts,
                                 struct et_error *error)
{
    enum et_status status = array_of(json, node, "steps", runner->steps, error);
    for (node = node->child; node && status == ET_OK; node = node->next) {
        status = array_of(json, node, "a step", runner->repeats, error);
        const cJSON *fact = status == ET_OK ? node->child : NULL;
        for (; fact && status == ET_OK; fact = fact->next)
            status = read_members(json, fact, "an execution", facts_members, runner->offer, facts++, error);
    }
    return status;
}

static enum et_status read_seconds(const struct et_json *json, const char *key, double *seconds,
                                   struct et_error *error)
{
    const cJSON *node = et_json_get(json->root, key);
    return node ? et_json_real(json, node, key, seconds, error) : ET_OK;
}

static enum et_status read_ok(const struct et_json *json, const struct et_runner *runner,
                              struct et_reply *reply, struct et_error *error)
{
    static const char *const keys[] = {"status", "variant", "claims", "steps", "prepare_s", "step_s", NULL};
    static const char *const required[] = {"status", "variant", "claims", NULL};
    const char *variant = NULL;
    enum et_status status =
        have_keys(json, json->root, "a reply", keys, runner->offer ? required : NULL, error);
    if (status != ET_OK)
        return status;
    const cJSON *steps = et_json_get(json->root, "steps");
    const cJSON *name = et_json_get(json->root, "variant"), *claims = et_json_get(json->root, "claims");
    status = et_json_string(json, name, "variant", &variant, error);
    if (status == ET_OK && strcmp(variant, runner->variant->name) != 0)
        status = et_json_fail(json, name, error, "asked for variant %s, it ran %s", runner->variant->name,
                              variant);
    if (status == ET_OK)
        status = array_of(json, claims, "claims", runner->steps, error);
    if (status != ET_OK)
        return status;

    reply->step_count = runner->steps;
    reply->repeats = runner->repeats;
    reply->claims = et_alloc((size_t)runner->steps, sizeof *reply->claims, error);
    reply->facts = et_alloc((size_t)runner->steps * (size_t)runner->repeats, sizeof *reply->facts, error);
    if (!reply->claims || !reply->facts)
        return ET_FAILED;
    const cJSON *claim = claims->child;
    for (int i = 0; claim && status == ET_OK; i++, claim = claim->next)
        status = read_claim(json, claim, runner, &reply->claims[i], error);
    if (status == ET_OK && steps)
        status = read_facts(json, steps, runner, reply->facts, error);
    if (status == ET_OK)
        status = read_seconds(json, "prepare_s", &reply->prepare_s, error);
    if (status == ET_OK)
        status = read_seconds(json, "step_s", &reply->step_s, error);
    return status;
}

static const char *const status_names[] = {[ET_REPLY_OK] = "ok",
                                           [ET_REPLY_REFUSED] = "refused",
                                           [ET_REPLY_LACKING] = "lacking",
                                           [ET_REPLY_UNBUILT] = "unbuilt",
                                           [ET_REPLY_ERROR] = "error"};

static enum et_status read_kind(const struct et_json *json, enum et_reply_kind *kind, struct et_error *error)
{
    const char *name = NULL;
    const cJSON *node = et_json_get(json->root, "status");
    if (!node)
        return et_json_fail(json, json->root, error, "there is no status");
    const enum et_status status = et_json_string(json, node, "status", &name, error);
    if (status != ET_OK)
        return status;
    for (int i = ET_REPLY_OK; i <= ET_REPLY_ERROR; i++) {
        if (strcmp(status_names[i], name) == 0) {
            *kind = (enum et_reply_kind)i;
            return ET_OK;
        }
    }
    return et_json_fail(json, node, error, "status is %s", name);
}

/* {"status": ..., "error": ...} */
static enum et_status read_trouble(const struct et_json *json, struct et_reply *reply, struct et_error *error)
{
    static const char *const keys[] = {"status", "error", NULL};
    enum et_status status = et_json_exact(json, json->root, "a reply", keys, error);
    if (status == ET_OK)
        status = read_text(json, et_json_get(json->root, "error"), "error", reply->error, sizeof reply->error,
                           true, error);
    et_hide_controls(reply->error, "\n\t"); /* a compiler's log has lines */
    return status;
}

static enum et_status read_reply(const struct et_json *json, const struct et_runner *runner,
                                 struct et_reply *reply, struct et_error *error)
{
    enum et_status status = et_json_object(json, json->root, "a reply", error);
    if (status == ET_OK)
        status = read_kind(json, &reply->kind, error);
    if (status != ET_OK)
        return status;
    return reply->kind == ET_REPLY_OK ? read_ok(json, runner, reply, error)
                                      : read_trouble(json, reply, error);
}

/* An offer is taken once: a program that is started again is to be the same. Where it knows of no probe, its
 * claims stand for one: an order that it names is judged. */
static enum et_status read_offer(const struct et_json *json, struct et_runner *runner,
                                 struct et_device *device, struct et_error *error)
{
    if (!device->place[0])
        snprintf(device->place, sizeof device->place, "0:0");
    if (!et_json_get(et_json_get(json->root, "device"), "probed"))
        device->probed = device->exact = device->exact_subnormal = true;
    if (runner->offer->list)
        return ET_OK;
    if (!et_json_get(json->root, "variants"))
        return et_json_fail(json, json->root, error, "a hello has no variants");
    return et_offer_read(json, et_json_get(json->root, "variants"), runner->port, runner->offer, error);
}

static enum et_status read_hello(const struct et_json *json, struct et_runner *runner,
                                 struct et_reply *trouble, struct et_error *error)
{
    static const char *const keys[] = {"etalon", "port", "device", "variants", NULL};
    static const char *const required[] = {"etalon", "port", "device", NULL};
    enum et_status status = et_json_object(json, json->root, "a hello", error);
    trouble->kind = ET_REPLY_OK;
    if (status == ET_OK && et_json_get(json->root, "status")) {
        status = read_kind(json, &trouble->kind, error);
        if (status == ET_OK && trouble->kind == ET_REPLY_OK)
            status = et_json_fail(json, json->root, error, "a hello has no status ok");
        return status == ET_OK ? read_trouble(json, trouble, error) : status;
    }
    int64_t protocol = 0;
    if (status == ET_OK)
        status = have_keys(json, json->root, "a hello", keys, required, error);
    if (status == ET_OK)
        status = et_json_int(json, et_json_get(json->root, "etalon"), "the protocol's number", ET_PROTOCOL,
                             ET_PROTOCOL, &protocol, error);
    if (status == ET_OK)
        status = read_text(json, et_json_get(json->root, "port"), "port", runner->port, sizeof runner->port,
                           true, error);
    struct et_device device = {.place = ""};
    if (status == ET_OK)
        status = read_device(json, et_json_get(json->root, "device"), "device", &device, error);
    if (status == ET_OK && runner->offer)
        status = read_offer(json, runner, &device, error);
    if (status == ET_OK)
        runner->device = device;
    return status;
}

static void add_request(struct et_text *text, const struct et_request *request)
{
    et_text_add(text, "{\"job\": ");
    et_json_add_string(text, request->job);
    et_text_add(text, ", \"out\": ");
    et_json_add_string(text, request->out);
    et_text_add(text, ", \"variant\": ");
    et_json_add_string(text, request->variant->name);
    et_text_add(text, ", \"knobs\": {");
    const char *open = "";
    for (int i = 0; i < et_field_count(request->variant->knobs); i++) {
        if (request->knobs[i] == ET_UNSET)
            continue;
        et_text_add(text, "%s\"%s\": %" PRId64, open, request->variant->knobs[i].name, request->knobs[i]);
        open = ", ";
    }
    et_text_add(text, "}, \"repeats\": %d", request->repeats);
    for (const struct et_override *o = request->sources; o && o->name; o++) {
        et_text_add(text, "%s", o == request->sources ? ", \"sources\": {" : ", ");
        et_json_add_string(text, o->name);
        et_text_add(text, ": ");
        et_json_add_string(text, o->text);
    }
    et_text_add(text, "%s}\n", request->sources ? "}" : "");
}

/* ---- The child ---- */

/* A deleted file, emptied when there is one already. */
static enum et_status open_log(struct et_runner *runner, struct et_error *error)
{
    if (runner->log > 0)
        return ftruncate(runner->log, 0) == 0 ? ET_OK
                                              : et_fail(error, ET_FAILED, "ftruncate: %s", strerror(errno));
    const char *folder = getenv("TMPDIR");
    char *path = et_print(error, "%s/etalon-stderr-XXXXXX", folder && *folder ? folder : "/tmp");
    if (!path)
        return ET_FAILED;
    const int fd = mkostemp(path, O_CLOEXEC | O_APPEND);
    enum et_status status = ET_OK;
    if (fd < 0) {
        status = et_fail(error, ET_FAILED, "%s cannot be created: %s", path, strerror(errno));
    } else {
        unlink(path);
        runner->log = fd;
    }
    et_free(path);
    return status;
}

static int spawn(const char *const *argv, const int fd[3], pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, ordinary;
    sigemptyset(&none);
    sigemptyset(&ordinary);
    sigaddset(&ordinary, SIGPIPE);
    sigaddset(&ordinary, SIGINT);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    for (int i = 0; i < 3; i++)
        posix_spawn_file_actions_adddup2(&actions, fd[i], i);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &ordinary);
    /* posix_spawn takes what exec takes: strings that it does not change. */
    char **args;
    memcpy(&args, &argv, sizeof args);
    const int code = posix_spawnp(pid, args[0], &actions, &attributes, args, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return code;
}

static void close_pair(const int fd[2])
{
    for (int i = 0; i < 2; i++)
        if (fd[i] >= 0)
            close(fd[i]);
}

/* To the child a socket, so that writing to a dead one is an error and not a signal. */
static enum et_status start_child(struct et_runner *runner, struct et_error *error)
{
    int to[2] = {-1, -1}, from[2] = {-1, -1};
    enum et_status status = open_log(runner, error);
    if (status != ET_OK)
        return status;
    pid_t pid = 0;
    int code = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to) != 0 || pipe2(from, O_CLOEXEC) != 0)
        code = errno;
    else
        code = spawn(runner->argv, (const int[]){to[1], from[1], runner->log}, &pid);
    if (code != 0) {
        close_pair(to);
        close_pair(from);
        return et_fail(error, ET_FAILED, "%s cannot be started: %s", runner->argv[0], strerror(code));
    }
    close(to[1]);
    close(from[1]);
    runner->pid = pid;
    runner->in = to[0];
    runner->out = from[0];
    runner->deadline = 0;
    runner->started++;
    return ET_OK;
}

static void nap(void)
{
    nanosleep(&(const struct timespec){.tv_nsec = 2000000}, NULL);
}

/* Has it ended? It is not reaped, so that its number stays its own. */
static bool has_ended(pid_t pid)
{
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == pid;
}

/*
 * Waits at most grace_s for the child to end by itself, then kills it, and whatever is left of its group in
 * any case. Returns whether it ended by itself; *status is wait's. A child that even SIGKILL does not end,
 * stuck in a driver, is abandoned after some seconds.
 */
static bool end_child(struct et_runner *runner, double grace_s, int *status)
{
    const pid_t pid = runner->pid;
    const double until = et_now() + grace_s;
    while (!has_ended(pid) && et_now() < until)
        nap();
    const bool by_itself = has_ended(pid);
    kill(-pid, SIGKILL);
    const double abandoned = et_now() + 5;
    pid_t reaped = 0;
    *status = 0;
    while ((reaped = waitpid(pid, status, WNOHANG)) == 0 && et_now() < abandoned)
        nap();
    close(runner->in);
    close(runner->out);
    runner->pid = 0;
    runner->deadline = 0;
    et_text_free(&runner->buffer);
    return by_itself && reaped == pid;
}

/* ---- What it says ---- */

enum heard { LINE, NOTHING_YET, THE_END, TOO_LATE, TOO_MUCH, MORE_THAN_A_LINE, NO_MEMORY };

/* Is there something to read, or the end, within ms? */
static bool is_readable(int fd, int ms)
{
    struct pollfd waited = {.fd = fd, .events = POLLIN};
    return poll(&waited, 1, ms) > 0;
}

/* Reads what is there. LINE: the buffer holds exactly one, without its newline. */
static enum heard take(struct et_runner *runner)
{
    char chunk[65536];
    const ssize_t n = read(runner->out, chunk, sizeof chunk);
    if (n <= 0)
        return n < 0 && errno == EINTR ? NOTHING_YET : THE_END;
    const char *newline = memchr(chunk, '\n', (size_t)n);
    et_text_bytes(&runner->buffer, chunk, newline ? (size_t)(newline - chunk) : (size_t)n);
    if (runner->buffer.failed)
        return NO_MEMORY;
    if (runner->buffer.length > ANSWER_MOST)
        return TOO_MUCH;
    if (!newline)
        return NOTHING_YET;
    return newline + 1 == chunk + n ? LINE : MORE_THAN_A_LINE;
}

static bool is_stopped(const struct et_runner *runner)
{
    return runner->stop && *runner->stop;
}

/* Waits until `until` for a line. A child that ends while others hold its output is noticed too. */
static enum heard listen_until(struct et_runner *runner, double until)
{
    const double end = until < runner->deadline ? until : runner->deadline;
    enum heard heard = NOTHING_YET;
    do {
        const double left = fmax(0, fmin(end - et_now(), 0.1));
        const bool ended = has_ended(runner->pid);
        if (is_readable(runner->out, ended ? 0 : (int)ceil(left * 1000)))
            heard = take(runner);
        else if (ended)
            heard = THE_END;
    } while (heard == NOTHING_YET && et_now() < end && !is_stopped(runner));
    return heard == NOTHING_YET && end == runner->deadline && !is_stopped(runner) ? TOO_LATE : heard;
}

/* ---- What went wrong ---- */

/* Printable, on one line. */
static void clean(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c < ' ' || *c == 127)
            *c = ' ';
}

enum { LAST_LINES = 5, LAST_BYTES = 1000 };

/* The last lines of stderr, "; stderr: " before and " | " between; empty when there are none. */
static void add_last_words(const struct et_runner *runner, struct et_text *text)
{
    char tail[LAST_BYTES + 1];
    const off_t size = lseek(runner->log, 0, SEEK_END);
    const off_t from = size > LAST_BYTES ? size - LAST_BYTES : 0;
    const ssize_t n = size > 0 ? pread(runner->log, tail, LAST_BYTES, from) : 0;
    char *line[LAST_LINES];
    int count = 0;
    tail[n > 0 ? n : 0] = '\0';
    for (char *rest = tail, *next = strtok_r(rest, "\n", &rest); next; next = strtok_r(NULL, "\n", &rest))
        line[count++ % LAST_LINES] = next;
    for (int i = count > LAST_LINES ? count - LAST_LINES : 0, first = i; i < count; i++) {
        clean(line[i % LAST_LINES]);
        et_text_add(text, "%s%s", i == first ? "; stderr: " : " | ", line[i % LAST_LINES]);
    }
}

/* The first bytes of what it said. */
static void add_opening(const struct et_runner *runner, struct et_text *text)
{
    char opening[201];
    const size_t n = runner->buffer.length < 200 ? runner->buffer.length : 200;
    if (n > 0)
        memcpy(opening, runner->buffer.data, n);
    opening[n] = '\0';
    clean(opening);
    et_text_add(text, "; it began: %s", opening);
}

static void add_ending(struct et_text *text, int status, const char *when)
{
    if (WIFSIGNALED(status))
        et_text_add(text, "the runner died by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        et_text_add(text, "the runner exited with status %d %s", WEXITSTATUS(status), when);
}

/* Describes what was heard instead of a message, and ends the child. why: of a LINE that made no sense. */
static void give_up(struct et_runner *runner, enum heard heard, const struct et_error *why,
                    struct et_text *text)
{
    const bool halfway = runner->buffer.length > 0;
    int status = 0;
    switch (heard) {
    case TOO_LATE:
        et_text_add(text, "no answer within %g s; killed", runner->due_s);
        break;
    case THE_END:
        if (end_child(runner, 1, &status))
            add_ending(text, status, halfway ? "in the middle of an answer" : "before it answered");
        else
            et_text_add(text, "the runner closed its output before it answered, and was killed");
        break;
    case TOO_MUCH:
        et_text_add(text, "the runner answered with more than %d bytes; killed", ANSWER_MOST);
        break;
    case MORE_THAN_A_LINE:
        et_text_add(text, "the runner answered what is not the protocol's: more than one line");
        add_opening(runner, text);
        break;
    case LINE:
        et_text_add(text, "the runner answered what is not the protocol's: %s", why->text);
        add_opening(runner, text);
        break;
    case NOTHING_YET:
        et_text_add(text, "interrupted before the runner answered; killed");
        break;
    case NO_MEMORY:
        et_text_add(text, "out of memory for the runner's answer");
        break;
    }
    if (runner->pid > 0)
        end_child(runner, 0, &status);
    add_last_words(runner, text);
}

/* The same, into a fixed text. */
static void explain(struct et_runner *runner, enum heard heard, const struct et_error *why, char *dst,
                    size_t bytes)
{
    struct et_text text = {0};
    give_up(runner, heard, why, &text);
    snprintf(dst, bytes, "%s", text.data ? text.data : "out of memory for the runner's trouble");
    et_text_free(&text);
}

/* ---- The judge's calls ---- */

enum et_status et_runner_stop(struct et_runner *runner, struct et_error *error)
{
    enum { GRACE_S = 5 };
    enum et_status result = ET_OK;
    if (runner->pid > 0) {
        int status;
        shutdown(runner->in, SHUT_WR);
        const bool idle = runner->deadline == 0;
        if (end_child(runner, idle ? GRACE_S : 0, &status) && idle && status != 0) {
            struct et_text text = {0};
            add_ending(&text, status, "at its end");
            add_last_words(runner, &text);
            result = et_fail(error, ET_FAILED, "%s", text.data ? text.data : "the runner did not end well");
            et_text_free(&text);
        }
    }
    if (runner->log > 0)
        close(runner->log);
    runner->log = 0;
    et_text_free(&runner->buffer);
    return result;
}

static void expect_within(struct et_runner *runner, double seconds)
{
    runner->due_s = seconds;
    runner->deadline = et_now() + seconds;
    runner->buffer.length = 0;
}

static enum et_status parse(const struct et_runner *runner, struct et_json *json, struct et_error *error)
{
    const struct et_text *buffer = &runner->buffer;
    return et_json_parse("answer", buffer->data ? buffer->data : "", buffer->length, json, error);
}

/* Starts the child and waits for its first line. On failure nothing runs. */
static enum et_status first_line(struct et_runner *runner, double timeout_s, struct et_error *error)
{
    enum et_status status = start_child(runner, error);
    if (status != ET_OK)
        return status;
    expect_within(runner, timeout_s);
    const enum heard heard = listen_until(runner, runner->deadline);
    if (heard == LINE)
        return ET_OK;
    struct et_error why;
    explain(runner, heard, NULL, why.text, sizeof why.text);
    return et_fail(error, ET_FAILED, "%s", why.text);
}

enum et_status et_runner_start(struct et_runner *runner, double timeout_s, struct et_error *error)
{
    int ended;
    if (runner->pid > 0)
        end_child(runner, 0, &ended);
    runner->hello_s = timeout_s;
    enum et_status status = first_line(runner, timeout_s, error);
    if (status != ET_OK)
        return status;
    struct et_json json = {0};
    struct et_reply trouble = {.kind = ET_REPLY_OK};
    struct et_error why;
    status = parse(runner, &json, &why);
    if (status == ET_OK)
        status = read_hello(&json, runner, &trouble, &why);
    if (status != ET_OK)
        explain(runner, status == ET_FAILED ? NO_MEMORY : LINE, &why, trouble.error, sizeof trouble.error);
    else if (trouble.kind != ET_REPLY_OK)
        end_child(runner, 1, &ended);
    et_json_free(&json);
    runner->deadline = 0;
    if (status == ET_OK && trouble.kind == ET_REPLY_OK)
        return ET_OK;
    return et_fail(error, trouble.kind == ET_REPLY_LACKING ? ET_LACKING : ET_FAILED, "%s", trouble.error);
}

/* Nothing was asked: whatever there is to read is its end, or out of step. */
static bool is_idle(const struct et_runner *runner)
{
    return runner->pid > 0 && runner->deadline == 0 && !has_ended(runner->pid) &&
           !is_readable(runner->out, 0);
}

enum et_status et_runner_ask(struct et_runner *runner, const struct et_request *request, double timeout_s,
                             struct et_error *error)
{
    if (!is_idle(runner)) {
        const enum et_status status =
            et_runner_start(runner, runner->hello_s > 0 ? runner->hello_s : timeout_s, error);
        if (status != ET_OK)
            return status;
    }
    struct et_text line = {0};
    add_request(&line, request);
    enum et_status status = ET_OK;
    if (line.failed)
        status = et_fail(error, ET_FAILED, "out of memory for a request");
    const ssize_t sent =
        status == ET_OK ? send(runner->in, line.data, line.length, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
    /* A child that is gone shows when its answer is waited for. */
    const bool gone = sent < 0 && (errno == EPIPE || errno == ECONNRESET);
    if (status == ET_OK && !gone && sent != (ssize_t)line.length)
        status = et_fail(error, ET_FAILED, "a request of %zu bytes cannot be sent: %s", line.length,
                         sent < 0 ? strerror(errno) : "it is too long");
    et_text_free(&line);
    if (status != ET_OK)
        return status;
    runner->variant = request->variant;
    runner->steps = request->steps;
    runner->repeats = request->repeats;
    expect_within(runner, timeout_s);
    return ET_OK;
}

enum et_status et_runner_poll(struct et_runner *runner, double wait_s, bool *done, struct et_reply *reply,
                              struct et_error *error)
{
    *done = false;
    *reply = (struct et_reply){.kind = ET_REPLY_ERROR};
    if (runner->pid <= 0 || runner->deadline == 0)
        return et_fail(error, ET_FAILED, "the runner was asked nothing");
    const enum heard heard = listen_until(runner, et_now() + wait_s);
    if (heard == NOTHING_YET)
        return ET_OK;
    struct et_error why = {.text = ""};
    struct et_json json = {0};
    enum et_status status = heard == NO_MEMORY ? ET_FAILED : ET_INVALID;
    if (heard == LINE)
        status = parse(runner, &json, &why);
    if (status == ET_OK)
        status = read_reply(&json, runner, reply, &why);
    et_json_free(&json);
    *done = true;
    if (status == ET_OK) {
        runner->deadline = 0;
        return ET_OK;
    }
    et_reply_free(reply);
    reply->kind = ET_REPLY_ERROR;
    reply->late = heard == TOO_LATE;
    explain(runner, status == ET_FAILED ? NO_MEMORY : heard, &why, reply->error, sizeof reply->error);
    return status == ET_FAILED ? et_fail(error, ET_FAILED, "%s", reply->error) : ET_OK;
}

void et_reply_free(struct et_reply *reply)
{
    et_free(reply->claims);
    et_free(reply->facts);
    *reply = (struct et_reply){0};
}

/* ---- The list of devices ---- */

static enum et_status read_devices(const struct et_json *json, struct et_device **devices, int *count,
                                   char **report, struct et_reply *trouble, struct et_error *error)
{
    static const char *const keys[] = {"devices", "report", NULL};
    const char *text = NULL;
    *trouble = (struct et_reply){.kind = ET_REPLY_OK};
    if (et_json_get(json->root, "status")) {
        const enum et_status read = read_kind(json, &trouble->kind, error);
        if (read == ET_OK && trouble->kind == ET_REPLY_OK)
            return et_json_fail(json, json->root, error, "the list has no status ok");
        return read == ET_OK ? read_trouble(json, trouble, error) : read;
    }
    enum et_status status = et_json_exact(json, json->root, "the list", keys, error);
    const cJSON *list = status == ET_OK ? et_json_get(json->root, "devices") : NULL;
    if (status == ET_OK)
        status = et_json_array(json, list, "devices", error);
    if (status == ET_OK && cJSON_GetArraySize(list) > DEVICES_MOST)
        status = et_json_fail(json, list, error, "there are more than %d devices", DEVICES_MOST);
    if (status == ET_OK)
        status = et_json_string(json, et_json_get(json->root, "report"), "report", &text, error);
    if (status != ET_OK)
        return status;
    *report = et_strdup(text, error);
    *devices = *report ? et_alloc((size_t)cJSON_GetArraySize(list), sizeof **devices, error) : NULL;
    if (!*devices)
        return ET_FAILED;
    for (const cJSON *node = list->child; node && status == ET_OK; node = node->next)
        status = read_device(json, node, "a device", &(*devices)[(*count)++], error);
    return status;
}

enum et_status et_devices_list(const char *const *argv, double timeout_s, const volatile sig_atomic_t *stop,
                               struct et_device **devices, int *count, char **report, struct et_error *error)
{
    struct et_runner runner = {.argv = argv, .stop = stop};
    struct et_reply trouble = {.kind = ET_REPLY_OK};
    struct et_json json = {0};
    struct et_error why;
    *devices = NULL;
    *report = NULL;
    *count = 0;
    enum et_status status = first_line(&runner, timeout_s, error);
    if (status != ET_OK) {
        et_runner_stop(&runner, NULL);
        return status;
    }
    status = parse(&runner, &json, &why);
    if (status == ET_OK)
        status = read_devices(&json, devices, count, report, &trouble, &why);
    et_json_free(&json);
    if (status != ET_OK || trouble.kind != ET_REPLY_OK) {
        if (status != ET_OK)
            explain(&runner, status == ET_FAILED ? NO_MEMORY : LINE, &why, trouble.error,
                    sizeof trouble.error);
        status = et_fail(error, ET_FAILED, "%s", trouble.error);
        et_free(*devices);
        et_free(*report);
        *devices = NULL;
        *report = NULL;
        *count = 0;
    }
    et_runner_stop(&runner, NULL);
    return status;
}
