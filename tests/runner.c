/* Both ends of the runner protocol: children that behave, children that do not, and our own worker. */
#define _XOPEN_SOURCE 700

#include "../harness/runner.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../harness/job.h"
#include "folder.h"
#include "suite.h"

/* Each test runs in a folder of its own. */
static void enter_folder(void)
{
    enter_temporary_folder();
    ck_assert_int_eq(mkdir("job", 0700), 0);
    ck_assert_int_eq(mkdir("out", 0700), 0);
}

static void leave_folder(void)
{
    char folder[256];
    ck_assert_ptr_nonnull(getcwd(folder, sizeof folder));
    ck_assert_int_eq(chdir(".."), 0);
    et_remove_folder(folder);
}

static int open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(folder);
    int n = 0;
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

static void assert_no_child_is_left(void)
{
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_int_eq(errno, ECHILD);
}

static void rest(double seconds)
{
    nanosleep(&(const struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

#define ASSERT_HAS(text, part) ck_assert_msg(strstr(text, part), "\"%s\" is not in \"%s\"", part, text)

/* ---- A port of ours, for the worker, and its variant ---- */

enum mood { FINE, REFUSE, LACK, UNBUILT, FAIL, ABORT, HANG };

static const char *const moods[] = {"fine", "refuse", "lack", "unbuilt", "fail", "abort", "hang", NULL};
static const struct et_field knobs[] = {
    {.name = "lanes", .kind = ET_INT, .min = 1, .max = 0x1p53, .fallback = 64},
    {.name = "mood", .kind = ET_NAME, .max = HANG, .names = moods},
    {.name = NULL},
};

struct et_session {
    int unused;
};

/* Values that no shorter form than 17 digits gives back. */
static const double device_ns = 1.0 / 3;
static const size_t scratch = ((size_t)1 << 53) - 1;

static enum et_status resolve(const struct et_problem *problem, const struct et_device *device,
                              const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    const struct et_gqa_av *p = problem->params;
    *claim = (struct et_claim){.scratch_bytes = scratch};
    claim->knob[0] = asked[0] == ET_UNSET ? 64 : asked[0];
    claim->knob[1] = asked[1] == ET_UNSET ? FINE : asked[1];
    claim->arith =
        (struct et_arith){ET_F16, ET_F32, ET_BF16, ET_F8E4M3FN, ET_F8E4M3FNUZ, 1, 2, (int32_t)p->context};
    claim->order = (struct et_order){"ctx64x4", {1, -2, 3, INT32_MAX, INT32_MIN, 0, 0, 8}};
    if (claim->knob[1] == REFUSE)
        return et_fail(why, ET_REFUSED, "context is %lld, above 5", (long long)p->context);
    if (claim->knob[1] == LACK)
        return et_fail(why, ET_LACKING, "%s has no \"sub-groups\"", device->name);
    return ET_OK;
}

struct state {
    const struct et_problem *steps;
    const struct et_claim *claims;
};

static enum et_status prepare(struct et_session *session, const struct et_variant *variant,
                              const struct et_problem *steps, const struct et_claim *claims, int n,
                              void **state, struct et_error *error)
{
    (void)session, (void)variant, (void)n;
    struct state *made = et_alloc(1, sizeof *made, error);
    *state = made;
    if (!made)
        return ET_FAILED;
    *made = (struct state){steps, claims};
    return ET_OK;
}

/* Writes step, repeat and the first element of v. */
static enum et_status step(void *state, int i, int repeat, void *const *out, struct et_facts *facts,
                           struct et_error *error)
{
    const struct state *s = state;
    const struct et_tensor *v = &s->steps[i].tensor[1];
    printf("a library prints on stdout\n");
    fflush(stdout);
    switch ((enum mood)s->claims[i].knob[1]) {
    case UNBUILT:
        return et_fail(error, ET_UNBUILT, "clBuildProgram: -11");
    case FAIL:
        return et_fail(error, ET_FAILED, "clFinish: -5");
    case ABORT:
        fprintf(stderr, "double free or corruption\n");
        abort();
    case HANG:
        pause();
        break;
    default:
        break;
    }
    et_store(ET_F32, out[2], 0, et_narrow(ET_F32, i));
    et_store(ET_F32, out[2], 1, et_narrow(ET_F32, repeat));
    et_store(ET_F32, out[2], 2, et_load(v->dtype, v->data, 0));
    *facts = (struct et_facts){.device_ns = device_ns * (10 * i + repeat), .guarded = true};
    snprintf(facts->kernels, sizeof facts->kernels, "step_%d,repeat_%d", i, repeat);
    snprintf(facts->guards, sizeof facts->guards, "a \"guard\"\\\n");
    return ET_OK;
}

static const struct et_variant fake = {.op = "gqa_av",
                                       .name = "fake",
                                       .knobs = knobs,
                                       .resolve = resolve,
                                       .prepare = prepare,
                                       .step = step,
                                       .finish = et_free};
static const struct et_variant *const variants[] = {&fake, NULL};

static const struct et_device fake_device = {
    .place = "0:1",
    .name = "a \"device\"",
    .vendor = "v\xc3\xa9",
    .version = "OpenCL 3.0",
    .driver = "d",
    .platform = "p",
    .compute_units = 132,
    .work_group = 1024,
    .local_memory = 49152,
    .global_memory = INT64_C(150120562688),
    .allocation = INT64_C(37530140672),
    .subgroups = true,
    .fp64 = true,
    .fp_config = 63,
    .probed = true,
    .exact = true,
    .probe = "fma differs on 12 of 65536",
};

static enum et_status open_fake(const struct et_open *options, struct et_session **session,
                                struct et_device *device, struct et_error *error)
{
    if (strcmp(options->place, "9:9") == 0)
        return et_fail(error, ET_LACKING, "there is no device 9:9");
    *device = fake_device;
    *session = et_alloc(1, sizeof **session, error);
    return *session ? ET_OK : ET_FAILED;
}

static void close_fake(struct et_session *session)
{
    et_free(session);
}

static int list_fake(struct et_device *dst, int n, char *report, size_t bytes)
{
    for (int i = 0; i < 2 && i < n; i++) {
        dst[i] = fake_device;
        snprintf(dst[i].place, sizeof dst[i].place, "0:%d", i);
    }
    snprintf(report, bytes, "a.icd: fine\nb.icd: \"no\"\n");
    return 2;
}

static const struct et_port fake_port = {
    .name = "fake", .variants = variants, .list = list_fake, .open = open_fake, .close = close_fake};

/* This program, started with that variable, is a worker. */
static void be_a_worker_if_asked(void)
{
    const char *place = getenv("ET_TEST_WORKER");
    if (place)
        exit(strcmp(place, "list") == 0
                 ? et_worker_list(&fake_port)
                 : et_worker(&fake_port, NULL, &(const struct et_open){.place = place}));
}

static const char *const self[] = {"/proc/self/exe", NULL};

/* ---- Children made of shell ---- */

static const char *const script[] = {"/bin/sh", "runner.sh", NULL};

#define HELLO "{\"etalon\": 1, \"port\": \"fake\", \"device\": {\"name\": \"D\"}}"
#define ARITH                                                                                                \
    "{\"query\": \"f32\", \"product\": \"f32\", \"sum\": \"f32\", \"weight\": \"f32\", \"partial\": "        \
    "\"f32\", "                                                                                              \
    "\"depth_qk\": 0, \"depth_sum\": 3, \"tiles\": 0}"
#define ORDER "{\"name\": \"none\", \"arg\": [0, 0, 0, 0, 0, 0, 0, 0]}"
#define KNOBS "{\"lanes\": 7, \"mood\": 0}"
#define RUNS  "\"variant\": \"fake\""
#define CLAIM "{\"arith\": " ARITH ", \"order\": " ORDER ", \"scratch\": 0, \"knobs\": " KNOBS ", " RUNS "}"
#define FACTS                                                                                                \
    "{\"ns\": 1.5, \"guarded\": false, \"guards\": \"\", \"inputs_kept\": \"\", \"kernels\": \"k\", "        \
    "\"program\": \"p\"}"
#define REPLY(claims, steps)                                                                                 \
    "{\"status\": \"ok\", \"variant\": \"fake\", \"claims\": " claims ", \"steps\": " steps                  \
    ", \"prepare_s\": 0.25, \"step_s\": 0.5}"
#define FINE_REPLY REPLY("[" CLAIM "]", "[[" FACTS "]]")

/* Shell: says a line. */
#define SAY(line) "echo '" line "'\n"
/* Does that instead of the first answer, and answers all others. */
#define ONCE(instead)                                                                                        \
    SAY(HELLO)                                                                                               \
    "while read line; do if [ -e again ]; then\n" SAY(FINE_REPLY) "else : > again\n" instead "\nfi; done\n"

static void ask_with(struct et_runner *runner, double timeout_s, const struct et_override *sources)
{
    static const int64_t unset[] = {7, ET_UNSET};
    const struct et_request request = {.job = "job",
                                       .out = "out",
                                       .variant = &fake,
                                       .knobs = unset,
                                       .steps = 1,
                                       .repeats = 1,
                                       .sources = sources};
    struct et_error error = {.text = ""};
    ck_assert_msg(et_runner_ask(runner, &request, timeout_s, &error) == ET_OK, "%s", error.text);
}

static void ask(struct et_runner *runner, double timeout_s)
{
    ask_with(runner, timeout_s, NULL);
}

/* The reply, waited for in small steps. */
static struct et_reply reply_of(struct et_runner *runner)
{
    struct et_reply reply = {0};
    struct et_error error = {.text = ""};
    bool done = false;
    const double start = et_now();
    while (!done) {
        ck_assert_msg(et_runner_poll(runner, 0.3, &done, &reply, &error) == ET_OK, "%s", error.text);
        ck_assert_double_lt(et_now() - start, 300); /* else it hangs */
    }
    return reply;
}

static void start(struct et_runner *runner, const char *text)
{
    struct et_error error = {.text = ""};
    *runner = (struct et_runner){.argv = script};
    write_text("runner.sh", text);
    ck_assert_msg(et_runner_start(runner, 10, &error) == ET_OK, "%s", error.text);
}

static void assert_it_answers(struct et_runner *runner)
{
    ask(runner, 10);
    struct et_reply reply = reply_of(runner);
    ck_assert_msg(reply.kind == ET_REPLY_OK, "%s", reply.error);
    et_reply_free(&reply);
}

START_TEST(a_reply_is_read_into_claims_and_facts)
{
    struct et_runner runner;
    start(&runner, ONCE(SAY(FINE_REPLY)));
    ck_assert_str_eq(runner.port, "fake");
    ck_assert_str_eq(runner.device.name, "D");
    ck_assert(!runner.device.exact);
    ask(&runner, 10);
    struct et_reply reply = reply_of(&runner);
    ck_assert_msg(reply.kind == ET_REPLY_OK, "%s", reply.error);
    ck_assert_int_eq(reply.step_count, 1);
    ck_assert_int_eq(reply.repeats, 1);
    ck_assert_int_eq(reply.claims[0].arith.depth_sum, 3);
    ck_assert_str_eq(reply.claims[0].order.name, "none");
    ck_assert_int_eq(reply.claims[0].knob[0], 7);
    ck_assert_double_eq(reply.facts[0].device_ns, 1.5);
    ck_assert_str_eq(reply.facts[0].kernels, "k");
    ck_assert_str_eq(reply.facts[0].program, "p");
    ck_assert_double_eq(reply.prepare_s, 0.25);
    ck_assert_double_eq(reply.step_s, 0.5);
    et_reply_free(&reply);
    et_runner_stop(&runner, NULL);
    ck_assert_int_eq(runner.started, 1);
}
END_TEST

START_TEST(a_request_is_this_line)
{
    static const struct et_override sources[] = {{"a.cl", "x\n"}, {"b.clh", ""}, {NULL, NULL}};
    struct et_runner runner;
    char line[300];
    start(&runner, SAY(HELLO) "read -r line; printf '%s\\n' \"$line\" > line\n" SAY(FINE_REPLY));
    ask_with(&runner, 10, _i == 1 ? sources : NULL);
    struct et_reply reply = reply_of(&runner);
    et_reply_free(&reply);
    et_runner_stop(&runner, NULL);
    read_text("line", line, sizeof line);
    static const char *const want[] = {"{\"job\": \"job\", \"out\": \"out\", \"variant\": \"fake\", "
                                       "\"knobs\": {\"lanes\": 7}, \"repeats\": 1}\n",
                                       "{\"job\": \"job\", \"out\": \"out\", \"variant\": \"fake\", "
                                       "\"knobs\": {\"lanes\": 7}, \"repeats\": 1, "
                                       "\"sources\": {\"a.cl\": \"x\\n\", \"b.clh\": \"\"}}\n"};
    ck_assert_str_eq(line, want[_i]);
}
END_TEST

#define NOT_PROTOCOL "the runner answered what is not the protocol's: "

/* What it does once; what is said of it; whether a new child answers next. */
static const struct {
    const char *does, *sentence;
    double timeout_s;
} once[] = {
    {SAY("{\"status\": \"error\", \"error\": \"clBuildProgram: -11\"}"), "clBuildProgram: -11", 10},
    {SAY("hello"), NOT_PROTOCOL "answer:1:1", 10},
    {SAY("hello"), "; it began: hello", 10},
    {SAY(""), NOT_PROTOCOL, 10},
    {SAY("[]"), NOT_PROTOCOL, 10},
    {SAY("{}"), "there is no status", 10},
    {SAY("{\"status\": \"fine\"}"), "status is fine", 10},
    {SAY("{\"status\": \"ok\"}"), "a reply has no variant", 10},
    {SAY("{\"status\": \"error\"}"), "a reply has no error", 10},
    {SAY("{\"status\": \"error\", \"error\": \"x\", \"more\": 1}"), "more", 10},
    {SAY(REPLY("[]", "[[" FACTS "]]")), "claims has 0 entries, not 1", 10},
    {SAY(REPLY("[" CLAIM "," CLAIM "]", "[[" FACTS "]]")), "claims has 2 entries, not 1", 10},
    {SAY(REPLY("[" CLAIM "]", "[]")), "steps has 0 entries, not 1", 10},
    {SAY(REPLY("[" CLAIM "]", "[[" FACTS "," FACTS "]]")), "a step has 2 entries, not 1", 10},
    {SAY(REPLY("[" CLAIM "]", "[[{\"ns\": 1}]]")), "an execution has no guarded", 10},
    {SAY(REPLY("[{\"order\": " ORDER ", \"scratch\": 0, \"knobs\": " KNOBS ", " RUNS "}]", "[[" FACTS "]]")),
     "a claim has no arith", 10},
    {SAY(REPLY("[{\"arith\": " ARITH ", \"order\": " ORDER ", \"scratch\": -1, \"knobs\": " KNOBS ", " RUNS
               "}]",
               "[[" FACTS "]]")),
     "scratch", 10},
    {SAY(REPLY("[{\"arith\": " ARITH ", \"order\": " ORDER
               ", \"scratch\": 0, \"knobs\": {\"lanes\": 1}, " RUNS "}]",
               "[[" FACTS "]]")),
     "knobs has no mood", 10},
    {SAY(REPLY("[{\"arith\": " ARITH ", \"order\": " ORDER ", \"scratch\": 0, \"knobs\": " KNOBS "}]",
               "[[" FACTS "]]")),
     "a claim has no variant", 10},
    {SAY(REPLY("[{\"arith\": " ARITH
               ", \"order\": {\"name\": \"a name of more than 23 bytes\", \"arg\": [0, 0, "
               "0, 0, 0, 0, 0, 0]}, \"scratch\": 0, \"knobs\": " KNOBS ", " RUNS "}]",
               "[[" FACTS "]]")),
     "name has 28 bytes, at most 23 are allowed", 10},
    {SAY("{\"status\": \"ok\", \"variant\": \"other\", \"claims\": [], \"steps\": [], \"prepare_s\": 0, "
         "\"step_s\": 0}"),
     "asked for variant fake, it ran other", 10},
    {"printf '%s\\n%s\\n' '" FINE_REPLY "' x", "more than one line; it began: {\"status\": \"ok\"", 10},
    {"printf '{\"status\"'; exit 0", "the runner exited with status 0 in the middle of an answer", 10},
    {"exit 3", "the runner exited with status 3 before it answered", 10},
    {"echo one >&2; echo two >&2; exit 3", "before it answered; stderr: one | two", 10},
    {"for i in 1 2 3 4 5 6 7; do echo $i >&2; done; exit 3", "; stderr: 3 | 4 | 5 | 6 | 7", 10},
    {"echo 'double free or corruption' >&2; kill -ABRT $$",
     "the runner died by signal 6 (Aborted); stderr: double free or corruption", 10},
    {"kill -SEGV $$", "the runner died by signal 11 (Segmentation fault)", 10},
    {"kill -KILL $$", "the runner died by signal 9 (Killed)", 10},
    {"sleep 30 & exit 4", "the runner exited with status 4", 10},
    {"sleep 30", "no answer within 0.3 s; killed", 0.3},
    {"echo thinking >&2; printf half; sleep 30", "no answer within 0.3 s; killed; stderr: thinking", 0.3},
    {"exec >&-; sleep 30", "the runner closed its output before it answered, and was killed", 10},
    {"head -c 17000000 /dev/zero | tr '\\0' x; sleep 30",
     "the runner answered with more than 16777216 bytes; killed", 10},
};

START_TEST(whatever_a_child_does_is_one_error_and_the_next_answers)
{
    char text[6000];
    struct et_runner runner;
    const int files = open_files();
    snprintf(text, sizeof text, ONCE("%s"), once[_i].does);
    start(&runner, text);
    ask(&runner, once[_i].timeout_s);
    struct et_reply reply = reply_of(&runner);
    ck_assert_int_eq(reply.kind, ET_REPLY_ERROR);
    ASSERT_HAS(reply.error, once[_i].sentence);
    ck_assert_ptr_null(strchr(reply.error, '\n'));
    ck_assert_ptr_null(reply.claims);
    et_reply_free(&reply);
    assert_it_answers(&runner);
    assert_it_answers(&runner);
    ck_assert_int_le(runner.started, 2);
    et_runner_stop(&runner, NULL);
    ck_assert_int_eq(open_files(), files);
    assert_no_child_is_left();
}
END_TEST

START_TEST(an_error_of_the_protocol_keeps_the_child)
{
    static const char *const names[] = {"refused", "lacking", "unbuilt", "error"};
    static const enum et_reply_kind kinds[] = {ET_REPLY_REFUSED, ET_REPLY_LACKING, ET_REPLY_UNBUILT,
                                               ET_REPLY_ERROR};
    struct et_runner runner;
    start(&runner, SAY(HELLO) "for s in refused lacking unbuilt error; do read line; echo \"{\\\"status\\\": "
                              "\\\"$s\\\", "
                              "\\\"error\\\": \\\"why $s\\\"}\"; done; read line\n");
    for (int i = 0; i < 4; i++) {
        char why[20];
        ask(&runner, 10);
        struct et_reply reply = reply_of(&runner);
        ck_assert_int_eq(reply.kind, kinds[i]);
        snprintf(why, sizeof why, "why %s", names[i]);
        ck_assert_str_eq(reply.error, why);
    }
    ck_assert_int_eq(runner.started, 1);
    et_runner_stop(&runner, NULL);
}
END_TEST

START_TEST(a_reply_that_is_not_there_yet_is_not_waited_for)
{
    struct et_runner runner;
    struct et_reply reply;
    bool done = true;
    start(&runner, SAY(HELLO) "read line; read line < pipe\n" SAY(FINE_REPLY));
    ck_assert_int_eq(mkfifo("pipe", 0600), 0);
    ask(&runner, 10);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(et_runner_poll(&runner, 0, &done, &reply, NULL), ET_OK);
        ck_assert(!done);
    }
    write_text("pipe", "go\n");
    reply = reply_of(&runner);
    ck_assert_int_eq(reply.kind, ET_REPLY_OK);
    et_reply_free(&reply);
    ck_assert_int_eq(et_runner_poll(&runner, 0, &done, &reply, NULL), ET_FAILED);
    et_runner_stop(&runner, NULL);
}
END_TEST

/* The whole state of a process in one letter; '-' when there is none. */
static char state_of(int pid)
{
    char path[40], text[400];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (access(path, R_OK) != 0)
        return '-';
    read_text(path, text, sizeof text);
    const char *name = strrchr(text, ')');
    return name ? name[2] : '-';
}

static void assert_it_ends(int pid)
{
    const double until = et_now() + 5;
    while (strchr("-Z", state_of(pid)) == NULL && et_now() < until)
        rest(0.001);
    ck_assert_ptr_nonnull(strchr("-Z", state_of(pid)));
}

START_TEST(a_child_inherits_nothing_but_its_three_files)
{
    struct et_runner first, second;
    char before[200], inside[200];
    /* What ls itself sees when nothing of ours is open. */
    ck_assert_int_eq(system("sh -c 'ls /proc/self/fd' > before"), 0);
    start(&first, ONCE(SAY(FINE_REPLY)));
    start(&second, "ls /proc/self/fd > inside\n" SAY(HELLO) "read line\n");
    read_text("before", before, sizeof before);
    read_text("inside", inside, sizeof inside);
    ck_assert_str_eq(inside, before);
    et_runner_stop(&first, NULL);
    et_runner_stop(&second, NULL);
}
END_TEST

START_TEST(a_child_that_does_not_end_well_is_told_of)
{
    struct et_runner runner;
    struct et_error why;
    start(&runner, SAY(HELLO) "read line\necho 'leaked 12 bytes' >&2; exit 23\n");
    ck_assert_int_eq(et_runner_stop(&runner, &why), ET_FAILED);
    ck_assert_ptr_nonnull(strstr(why.text, "the runner exited with status 23 at its end"));
    ck_assert_ptr_nonnull(strstr(why.text, "leaked 12 bytes"));
    start(&runner, SAY(HELLO) "read line\nkill -SEGV $$\n");
    ck_assert_int_eq(et_runner_stop(&runner, &why), ET_FAILED);
    ck_assert_ptr_nonnull(strstr(why.text, "signal 11"));
    start(&runner, SAY(HELLO) "read line\n:\n");
    ck_assert_int_eq(et_runner_stop(&runner, &why), ET_OK);
}
END_TEST

START_TEST(what_a_child_started_ends_with_it)
{
    struct et_runner runner;
    char text[20];
    start(&runner, "sleep 60 & echo $! > pid\n" SAY(HELLO) "while read line; do sleep 60; done\n");
    read_text("pid", text, sizeof text);
    const int pid = atoi(text);
    ck_assert_ptr_null(strchr("-Z", state_of(pid)));
    et_runner_stop(&runner, NULL);
    assert_it_ends(pid);
}
END_TEST

START_TEST(a_child_that_went_away_or_speaks_unasked_is_replaced_before_it_is_asked)
{
    static const char *const does[] = {"exit 0", "echo more"};
    for (int i = 0; i < 2; i++) {
        struct et_runner runner;
        char text[3000];
        snprintf(text, sizeof text,
                 SAY(HELLO) "read line\n" SAY(FINE_REPLY) "read line < pipe && { %s; sleep 30; }\n", does[i]);
        start(&runner, text);
        ck_assert_int_eq(mkfifo("pipe", 0600), 0);
        assert_it_answers(&runner);
        write_text("pipe", "go\n");
        unlink("pipe");
        rest(0.2);
        assert_it_answers(&runner);
        ck_assert_int_eq(runner.started, 2);
        et_runner_stop(&runner, NULL);
    }
}
END_TEST

START_TEST(a_child_that_ends_before_it_reads_is_an_error_and_no_signal)
{
    struct et_runner runner;
    signal(SIGPIPE, SIG_DFL);
    start(&runner, SAY(HELLO) "exec <&-; sleep 0.2; exit 5\n");
    ask(&runner, 10);
    struct et_reply reply = reply_of(&runner);
    ck_assert_int_eq(reply.kind, ET_REPLY_ERROR);
    ASSERT_HAS(reply.error, "the runner exited with status 5 before it answered");
    et_runner_stop(&runner, NULL);
    assert_no_child_is_left();
}
END_TEST

static const struct {
    const char *text, *sentence;
    enum et_status status;
} hellos[] = {
    {"exit 7", "the runner exited with status 7 before it answered", ET_FAILED},
    {"echo 'no libOpenCL' >&2; exit 1", "stderr: no libOpenCL", ET_FAILED},
    {"echo Hello", NOT_PROTOCOL, ET_FAILED},
    {"echo '{}'", "a hello has no etalon", ET_FAILED},
    {"sleep 30", "no answer within 0.3 s; killed", ET_FAILED},
    {SAY("{\"etalon\": 2, \"port\": \"fake\", \"device\": {\"name\": \"D\"}}"), "the protocol", ET_FAILED},
    {SAY("{\"etalon\": 1, \"port\": \"fake\", \"device\": {}}"), "device has no name", ET_FAILED},
    {SAY("{\"etalon\": 1, \"port\": \"fake\", \"device\": {\"name\": \"D\", \"cores\": 1}}"), "cores",
     ET_FAILED},
    {SAY("{\"etalon\": 1, \"port\": \"fake\", \"device\": {\"name\": \"D\", \"work_group\": -1}}"),
     "work_group", ET_FAILED},
    {SAY("{\"status\": \"lacking\", \"error\": \"there is no device\"}"), "there is no device", ET_LACKING},
    {SAY("{\"status\": \"error\", \"error\": \"clGetPlatformIDs: -1001\"}"), "clGetPlatformIDs: -1001",
     ET_FAILED},
    {SAY("{\"status\": \"ok\"}"), "a hello has no status ok", ET_FAILED},
};

START_TEST(a_hello_that_is_none_is_one_sentence)
{
    struct et_runner runner = {.argv = script};
    struct et_error error = {.text = ""};
    const int files = open_files();
    write_text("runner.sh", hellos[_i].text);
    ck_assert_int_eq(et_runner_start(&runner, strstr(hellos[_i].text, "sleep") ? 0.3 : 10, &error),
                     hellos[_i].status);
    ASSERT_HAS(error.text, hellos[_i].sentence);
    ck_assert_int_eq(runner.pid, 0);
    assert_no_child_is_left();
    et_runner_stop(&runner, NULL);
    et_runner_stop(&runner, NULL);
    ck_assert_int_eq(open_files(), files);
}
END_TEST

START_TEST(a_hello_that_is_none_leaves_the_device_as_it_was)
{
    struct et_runner runner = {.argv = script, .device = {.place = "0:1", .name = "before"}};
    struct et_error error = {.text = ""};
    write_text("runner.sh", hellos[_i].text);
    ck_assert_int_ne(et_runner_start(&runner, strstr(hellos[_i].text, "sleep") ? 0.3 : 10, &error), ET_OK);
    ck_assert_str_eq(runner.device.name, "before");
    ck_assert_str_eq(runner.device.place, "0:1");
    et_runner_stop(&runner, NULL);
}
END_TEST

START_TEST(a_program_that_is_not_there_is_named)
{
    static const char *const nothing[] = {"./no-such-program", NULL};
    struct et_runner runner = {.argv = nothing};
    struct et_error error = {.text = ""};
    const int files = open_files();
    ck_assert_int_eq(et_runner_start(&runner, 10, &error), ET_FAILED);
    ck_assert_str_eq(error.text, "./no-such-program cannot be started: No such file or directory");
    et_runner_stop(&runner, NULL);
    ck_assert_int_eq(open_files(), files);
    assert_no_child_is_left();
}
END_TEST

/* ---- Our worker ---- */

struct fixture {
    struct et_case c;
    struct et_case_step steps[2];
    struct et_job job;
};

/* Two steps whose v is 3, then 4. */
static void make_job(struct fixture *f)
{
    static const struct et_gqa_av params = {
        .q_heads = 1, .kv_heads = 1, .head_dim = 4, .query_length = 1, .context = 6, .capacity = 6};
    struct et_error error = {.text = ""};
    *f = (struct fixture){.c = {.op = et_operator_named("gqa_av"), .file = "case.json", .step_count = 2}};
    f->c.steps = f->steps;
    for (int i = 0; i < 2; i++) {
        memcpy(f->steps[i].params, &params, sizeof params);
        f->steps[i].data[1] = (struct et_data){
            .given = true, .kind = ET_DATA_FILL, .fill = {.kind = ET_FILL_CONSTANT, .value = 3 + i}};
    }
    ck_assert_msg(et_job_write(&f->c, NULL, ET_FILL_NORMAL, NULL, 1, NULL, "job", &f->job, &error) == ET_OK,
                  "%s", error.text);
}

static void ask_worker(struct et_runner *runner, enum mood mood, int repeats, double timeout_s)
{
    const int64_t asked[] = {ET_UNSET, mood};
    const struct et_request request = {
        .job = "job", .out = "out", .variant = &fake, .knobs = asked, .steps = 2, .repeats = repeats};
    struct et_error error = {.text = ""};
    ck_assert_msg(et_runner_ask(runner, &request, timeout_s, &error) == ET_OK, "%s", error.text);
}

static void start_worker(struct et_runner *runner, const char *place)
{
    struct et_error error = {.text = ""};
    *runner = (struct et_runner){.argv = self};
    ck_assert_int_eq(setenv("ET_TEST_WORKER", place, 1), 0);
    const enum et_status status = et_runner_start(runner, 10, &error);
    ck_assert_msg(status == ET_OK, "%s", error.text);
}

START_TEST(a_worker_introduces_its_device)
{
    struct et_runner runner;
    start_worker(&runner, "0:1");
    const struct et_device *d = &runner.device;
    ck_assert_str_eq(runner.port, "fake");
    ck_assert_str_eq(d->place, fake_device.place);
    ck_assert_str_eq(d->name, fake_device.name);
    ck_assert_str_eq(d->vendor, fake_device.vendor);
    ck_assert_str_eq(d->probe, fake_device.probe);
    ck_assert_int_eq(d->compute_units, 132);
    ck_assert_int_eq(d->global_memory, fake_device.global_memory);
    ck_assert_uint_eq(d->fp_config, 63);
    ck_assert(d->subgroups && !d->fp16 && d->fp64 && d->probed && d->exact && !d->exact_subnormal);
    et_runner_stop(&runner, NULL);
}
END_TEST

START_TEST(a_worker_answers_with_every_bit_of_its_claims_and_facts)
{
    struct fixture f;
    struct et_runner runner;
    make_job(&f);
    start_worker(&runner, "0:1");
    ask_worker(&runner, FINE, 3, 10);
    struct et_reply reply = reply_of(&runner);
    ck_assert_msg(reply.kind == ET_REPLY_OK, "%s", reply.error);
    ck_assert_int_eq(reply.step_count, 2);
    ck_assert_int_eq(reply.repeats, 3);
    for (int i = 0; i < 2; i++) {
        struct et_claim expected;
        const int64_t asked[] = {ET_UNSET, FINE};
        ck_assert_int_eq(resolve(&f.job.steps[i].problem, &fake_device, asked, &expected, NULL), ET_OK);
        ck_assert_mem_eq(&reply.claims[i].arith, &expected.arith, sizeof expected.arith);
        ck_assert_str_eq(reply.claims[i].order.name, expected.order.name);
        ck_assert_mem_eq(reply.claims[i].order.arg, expected.order.arg, sizeof expected.order.arg);
        ck_assert_uint_eq(reply.claims[i].scratch_bytes, scratch);
        ck_assert_int_eq(reply.claims[i].knob[0], 64);
        ck_assert_int_eq(reply.claims[i].knob[1], FINE);
        for (int repeat = 0; repeat < 3; repeat++) {
            const struct et_facts *facts = &reply.facts[3 * i + repeat];
            char kernels[40];
            snprintf(kernels, sizeof kernels, "step_%d,repeat_%d", i, repeat);
            ck_assert_double_eq(facts->device_ns, device_ns * (10 * i + repeat));
            ck_assert_str_eq(facts->kernels, kernels);
            ck_assert_str_eq(facts->guards, "a \"guard\"\\\n");
            ck_assert_str_eq(facts->inputs_kept, "");
            ck_assert(facts->guarded);

            struct et_outputs outputs;
            struct et_error error = {.text = ""};
            ck_assert_msg(et_outputs_open(&f.job, i, repeat, "out", &outputs, &error) == ET_OK, "%s",
                          error.text);
            const float expected_out[] = {(float)i, (float)repeat, (float)(3 + i)};
            /* The fourth element, which step leaves out: et_poison of f32 in even and odd repeats. */
            const uint32_t poison = repeat % 2 == 0 ? 0x7fea2a2a : 0xffd5d5d5;
            ck_assert_mem_eq(outputs.data[2], expected_out, sizeof expected_out);
            ck_assert_mem_eq((const float *)outputs.data[2] + 3, &poison, sizeof poison);
            et_outputs_close(&outputs);
        }
    }
    ck_assert_double_ge(reply.prepare_s, 0);
    ck_assert_double_gt(reply.step_s, 0);
    et_reply_free(&reply);
    et_runner_stop(&runner, NULL);
    et_job_free(&f.job);
}
END_TEST

START_TEST(a_worker_says_what_its_port_says)
{
    static const struct {
        enum mood mood;
        enum et_reply_kind kind;
        const char *sentence;
        int started;
    } table[] = {
        {REFUSE, ET_REPLY_REFUSED, "context is 6, above 5", 1},
        {LACK, ET_REPLY_LACKING, "a \"device\" has no \"sub-groups\"", 1},
        {UNBUILT, ET_REPLY_UNBUILT, "clBuildProgram: -11", 1},
        {FAIL, ET_REPLY_ERROR, "clFinish: -5", 1},
        {ABORT, ET_REPLY_ERROR, "a library prints on stdout | double free or corruption", 1},
        {HANG, ET_REPLY_ERROR, "no answer within 0.5 s; killed", 2},
        {FINE, ET_REPLY_OK, "", 3},
    };
    struct fixture f;
    struct et_runner runner;
    const int files = open_files();
    make_job(&f);
    start_worker(&runner, "0:1");
    for (int i = 0; i < 7; i++) {
        ask_worker(&runner, table[i].mood, 1, table[i].mood == HANG ? 0.5 : 10);
        struct et_reply reply = reply_of(&runner);
        ck_assert_int_eq(reply.kind, table[i].kind);
        ck_assert_int_eq(reply.late, table[i].mood == HANG);
        ASSERT_HAS(reply.error, table[i].sentence);
        ck_assert_int_eq(runner.started, table[i].started);
        et_reply_free(&reply);
    }
    et_runner_stop(&runner, NULL);
    et_job_free(&f.job);
    ck_assert_int_eq(open_files(), files);
    assert_no_child_is_left();
}
END_TEST

START_TEST(a_worker_ends_with_its_judge_even_in_the_middle_of_a_kernel)
{
    struct fixture f;
    char text[20];
    make_job(&f);
    et_job_free(&f.job);
    const pid_t judge = fork();
    if (judge == 0) {
        struct et_runner runner;
        start_worker(&runner, "0:1");
        ask_worker(&runner, HANG, 1, 10);
        while (access("out/0.0.safetensors", F_OK) != 0)
            rest(0.001);
        snprintf(text, sizeof text, "%d", runner.pid);
        write_text("pid", text);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(judge, &status, 0), judge);
    ck_assert_int_eq(status, 0);
    read_text("pid", text, sizeof text);
    assert_it_ends(atoi(text));
}
END_TEST

START_TEST(a_worker_without_its_device_is_lacking)
{
    struct et_runner runner = {.argv = self};
    struct et_error error = {.text = ""};
    ck_assert_int_eq(setenv("ET_TEST_WORKER", "9:9", 1), 0);
    ck_assert_int_eq(et_runner_start(&runner, 10, &error), ET_LACKING);
    ck_assert_str_eq(error.text, "there is no device 9:9");
    et_runner_stop(&runner, NULL);
}
END_TEST

#define REQUEST(job, variant, knobs, repeats)                                                                \
    "{\"job\": \"" job "\", \"out\": \"out\", \"variant\": \"" variant "\", \"knobs\": " knobs               \
    ", \"repeats\": " repeats "}"

START_TEST(a_bad_request_is_an_error_and_the_next_is_served)
{
    static const struct {
        const char *line, *sentence;
    } table[] = {
        {"", "request:1:1"},
        {"what", "request:1:1"},
        {"[1]", "a request"},
        {"{}", "a request has no job"},
        {REQUEST("job", "fake", "{}", "0"), "repeats"},
        {REQUEST("job", "fake", "{}", "1, \"seed\": 1"), "seed"},
        {REQUEST("job", "fake", "{}", "1, \"sources\": {\"a.cl\": \"\"}"), "port fake takes no sources"},
        {REQUEST("nowhere", "fake", "{}", "1"), "nowhere/job.json"},
        {REQUEST("job", "other", "{}", "1"), "port fake has no variant other of gqa_av"},
        {REQUEST("job", "fake", "{\"tiles\": 1}", "1"), "fake has no knob tiles"},
        {REQUEST("job", "fake", "{\"lanes\": 0}", "1"), "lanes"},
        {REQUEST("job", "fake", "{\"lanes\": \"8\"}", "1"), "lanes"},
        {REQUEST("job", "fake", "[]", "1"), "knobs"},
        {REQUEST("job", "fake", "{}", "1"), "\"status\": \"ok\""},
    };
    enum { N = sizeof table / sizeof *table };
    struct fixture f;
    char path[300], command[700], answers[20000], requests[4000] = "";
    make_job(&f);
    et_job_free(&f.job);
    for (int i = 0; i < N; i++) {
        strcat(requests, table[i].line);
        strcat(requests, "\n");
    }
    write_text("requests", requests);
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    ck_assert_int_gt(n, 0);
    path[n] = '\0';
    snprintf(command, sizeof command, "ET_TEST_WORKER=0:1 '%s' < requests > answers 2> noise", path);
    ck_assert_int_eq(system(command), 0);
    read_text("answers", answers, sizeof answers);
    char *rest = answers;
    ASSERT_HAS(strtok_r(rest, "\n", &rest), "\"etalon\": 1");
    for (int i = 0; i < N; i++) {
        const char *answer = strtok_r(NULL, "\n", &rest);
        ck_assert_ptr_nonnull(answer);
        ASSERT_HAS(answer, table[i].sentence);
        ck_assert_int_eq(strstr(answer, "\"status\": \"ok\"") != NULL, i == N - 1);
    }
    ck_assert_ptr_null(strtok_r(NULL, "\n", &rest));
    read_text("noise", answers, sizeof answers);
    ASSERT_HAS(answers, "a library prints on stdout");
}
END_TEST

START_TEST(a_worker_lists_devices)
{
    struct et_device *devices;
    char *report;
    int count;
    struct et_error error = {.text = ""};
    const int files = open_files();
    ck_assert_int_eq(setenv("ET_TEST_WORKER", "list", 1), 0);
    ck_assert_msg(et_devices_list(self, 10, NULL, &devices, &count, &report, &error) == ET_OK, "%s",
                  error.text);
    ck_assert_int_eq(count, 2);
    ck_assert_str_eq(devices[0].place, "0:0");
    ck_assert_str_eq(devices[1].place, "0:1");
    ck_assert_str_eq(devices[1].name, fake_device.name);
    ck_assert_str_eq(report, "a.icd: fine\nb.icd: \"no\"\n");
    et_free(devices);
    et_free(report);
    ck_assert_int_eq(open_files(), files);
    assert_no_child_is_left();
}
END_TEST

START_TEST(a_list_that_is_none_is_one_sentence)
{
    static const struct {
        const char *text, *sentence;
    } table[] = {
        {"echo nothing", NOT_PROTOCOL},
        {"echo '{\"devices\": []}'", "the list has no report"},
        {"echo '{\"devices\": [{\"name\": 1}], \"report\": \"\"}'", "name"},
        {"echo '{\"status\": \"error\", \"error\": \"out of memory for an answer\"}'",
         "out of memory for an answer"},
        {"echo '{\"status\": \"ok\", \"error\": \"\"}'", "the list has no status ok"},
        {"kill -BUS $$", "the runner died by signal 7 (Bus error)"},
        {"sleep 30", "no answer within 0.3 s; killed"},
    };
    enum { HANGS = sizeof table / sizeof *table - 1 };
    const int files = open_files();
    for (int i = 0; i <= HANGS; i++) {
        struct et_device *devices;
        char *report;
        int count;
        struct et_error error = {.text = ""};
        write_text("runner.sh", table[i].text);
        ck_assert_int_eq(
            et_devices_list(script, i == HANGS ? 0.3 : 10, NULL, &devices, &count, &report, &error),
            ET_FAILED);
        ASSERT_HAS(error.text, table[i].sentence);
        ck_assert_ptr_null(devices);
        ck_assert_ptr_null(report);
        ck_assert_int_eq(count, 0);
    }
    ck_assert_int_eq(open_files(), files);
    assert_no_child_is_left();
}
END_TEST

Suite *et_suite(void)
{
    be_a_worker_if_asked();
    Suite *suite = suite_create("runner");
    TCase *tests = tcase_create("runners");
    tcase_add_checked_fixture(tests, enter_folder, leave_folder);
    tcase_set_timeout(tests, 30);
    tcase_add_test(tests, a_reply_is_read_into_claims_and_facts);
    tcase_add_loop_test(tests, a_request_is_this_line, 0, 2);
    tcase_add_loop_test(tests, whatever_a_child_does_is_one_error_and_the_next_answers, 0,
                        sizeof once / sizeof *once);
    tcase_add_test(tests, an_error_of_the_protocol_keeps_the_child);
    tcase_add_test(tests, a_reply_that_is_not_there_yet_is_not_waited_for);
    tcase_add_test(tests, a_child_inherits_nothing_but_its_three_files);
    tcase_add_test(tests, a_child_that_does_not_end_well_is_told_of);
    tcase_add_test(tests, what_a_child_started_ends_with_it);
    tcase_add_test(tests, a_child_that_went_away_or_speaks_unasked_is_replaced_before_it_is_asked);
    tcase_add_test(tests, a_child_that_ends_before_it_reads_is_an_error_and_no_signal);
    tcase_add_loop_test(tests, a_hello_that_is_none_is_one_sentence, 0, sizeof hellos / sizeof *hellos);
    tcase_add_loop_test(tests, a_hello_that_is_none_leaves_the_device_as_it_was, 0,
                        sizeof hellos / sizeof *hellos);
    tcase_add_test(tests, a_program_that_is_not_there_is_named);
    tcase_add_test(tests, a_worker_introduces_its_device);
    tcase_add_test(tests, a_worker_answers_with_every_bit_of_its_claims_and_facts);
    tcase_add_test(tests, a_worker_says_what_its_port_says);
    tcase_add_test(tests, a_worker_ends_with_its_judge_even_in_the_middle_of_a_kernel);
    tcase_add_test(tests, a_worker_without_its_device_is_lacking);
    tcase_add_test(tests, a_bad_request_is_an_error_and_the_next_is_served);
    tcase_add_test(tests, a_worker_lists_devices);
    tcase_add_test(tests, a_list_that_is_none_is_one_sentence);
    suite_add_tcase(suite, tests);
    return suite;
}
