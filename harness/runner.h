/*
 * The judge's end of a runner: a child process that is sent one JSON line a job and answers with one.
 *
 * hello    {"etalon": 1, "port": NAME, "device": {...et_device...}, "variants": {...offer.h...}}, before any
 *          request; or
 *          {"status": "lacking" | "error", "error": SENTENCE}, and it exits
 * request  {"job": FOLDER, "out": FOLDER, "variant": NAME, "knobs": {NAME: INT, ...}, "repeats": N},
 *          and "sources": {FILE: TEXT, ...} where kernel files are replaced for this request
 * reply    {"status": "ok", "variant": NAME, "claims": [CLAIM, ...one a step],
 *          "steps": [[FACTS, ...one a repeat], ...], "prepare_s": T, "step_s": T}; or
 *          {"status": "refused" | "lacking" | "unbuilt" | "error", "error": SENTENCE}
 * CLAIM    {"arith": {...}, "order": {"name": S, "arg": [...]}, "scratch": BYTES, "knobs": {...}, "variant":
 * NAME} FACTS    {"ns": T, "guarded": B, "guards": S, "inputs_kept": S, "kernels": S, "program": S}
 *
 * Every key of a reply is required. Of the device only its name is: what is not said is not known.
 *
 * A program that is none of ours (`offer` is set) says in its hello which variants it has (offer.h), and in a
 * reply needs no more than {"status": "ok", "variant": NAME, "claims": [{"arith": {...}}, ...]}; knobs where
 * it has some.
 */
#ifndef ET_HARNESS_RUNNER_H
#define ET_HARNESS_RUNNER_H

#include <signal.h>

#include "../ref/etalon_port.h"
#include "json.h"
#include "offer.h"

enum { ET_PROTOCOL = 1, ET_HELLO_S = 60 };

/* Zero-initialise and set argv. */
struct et_runner {
    const char *const *argv; /* the caller's, valid until stop; ends with NULL; started again from it */
    int pid;                 /* 0: not running */
    int in, out;             /* to it, from it */
    int log;                 /* a deleted file that takes its stderr; 0: none yet */
    struct et_text buffer;   /* what it said and was not yet read */
    char port[64];           /* from its hello */
    struct et_device device; /* from its last good hello */
    struct et_offer *offer;  /* NULL: the runner is our own worker. Filled by the first good hello */
    double hello_s;          /* its hello is due within that */
    double deadline;         /* CLOCK_MONOTONIC seconds; 0: nothing asked */
    double due_s;            /* what was given when it was asked */
    const struct et_variant *variant; /* asked for */
    int steps, repeats;               /* likewise */
    int started;                      /* how often */
    /* The caller's, or NULL: once it is set, nothing is waited for. */
    const volatile sig_atomic_t *stop;
};

/* What is borrowed must last until the request is answered. */
struct et_request {
    const char *job, *out; /* folders; out exists */
    const struct et_variant *variant;
    const int64_t *knobs; /* in the order of the variant's table; ET_UNSET: not asked for */
    int steps;            /* of the job: the reply must have as many */
    int repeats;
    const struct et_override *sources; /* ends with a NULL name; NULL: none */
};

enum et_reply_kind { ET_REPLY_OK, ET_REPLY_REFUSED, ET_REPLY_LACKING, ET_REPLY_UNBUILT, ET_REPLY_ERROR };

struct et_reply {
    enum et_reply_kind kind;
    bool late; /* an ERROR that is a hang beyond the deadline */
    char error[2000];
    int step_count, repeats;
    struct et_claim *claims; /* step_count */
    struct et_facts *facts;  /* step_count * repeats, a step after the other */
    double prepare_s, step_s;
};

/*
 * Starts the child and waits for its hello (at most timeout_s). ET_LACKING: it says so. A child that dies, is
 * late or says something else: ET_FAILED. The child dies with the calling thread: call from one that lasts.
 */
enum et_status et_runner_start(struct et_runner *runner, double timeout_s, struct et_error *error);
/* Sends a request; the reply is due within timeout_s. Starts the child again first if it is gone. */
enum et_status et_runner_ask(struct et_runner *runner, const struct et_request *request, double timeout_s,
                             struct et_error *error);
/*
 * Waits at most wait_s for the reply. *done false: not yet. A crash, a hang beyond the deadline (the child is
 * killed) and an answer that is not the protocol's or another variant's are replies of kind ET_REPLY_ERROR
 * with what happened: signal, exit status, last lines of stderr. Fails where nothing was asked, and for want
 * of memory.
 */
enum et_status et_runner_poll(struct et_runner *runner, double wait_s, bool *done, struct et_reply *reply,
                              struct et_error *error);
/*
 * Asks it to end (closes its input), waits shortly, kills it and its process group. Safe in any state.
 * ET_FAILED: it had nothing left to do, and yet died or exited with another status than 0 (a driver's
 * clean-up, a leak checker).
 */
enum et_status et_runner_stop(struct et_runner *runner, struct et_error *error);
void et_reply_free(struct et_reply *reply);

/*
 * What a worker started with --list says: *devices and *report are the caller's, for et_free. stop: as in
 * struct et_runner.
 */
enum et_status et_devices_list(const char *const *argv, double timeout_s, const volatile sig_atomic_t *stop,
                               struct et_device **devices, int *count, char **report, struct et_error *error);

/* Parts of messages and of results: JSON objects. */
void et_device_add(struct et_text *text, const struct et_device *device);
void et_arith_add(struct et_text *text, const struct et_arith *arith);
void et_order_add(struct et_text *text, const struct et_order *order);
void et_facts_add(struct et_text *text, const struct et_facts *facts);
void et_claim_add(struct et_text *text, const struct et_variant *variant, const struct et_claim *claim);

/* A claim as an outsider makes it: arith, the rest by default. */
enum et_status et_claim_read(const struct et_json *json, const cJSON *node, const struct et_variant *variant,
                             struct et_claim *claim, struct et_error *error);

double et_now(void); /* CLOCK_MONOTONIC, seconds */

/*
 * The runner's side: `etalon worker --port SPEC --device P:D [--guards off] [--limit L]`; an exit status. Of
 * a shared object, plugin, which is loaded here, the port is taken; else plugin is NULL.
 */
int et_worker(const struct et_port *port, const char *plugin, const struct et_open *open);
/* `etalon worker --port SPEC --list`: one JSON line {"devices": [...], "report": TEXT}. */
int et_worker_list(const struct et_port *port);

#endif
