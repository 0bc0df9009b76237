/* Command-line options, and what they select: cases, fills and variants, their order and their ids. */
#ifndef ET_HARNESS_PLAN_H
#define ET_HARNESS_PLAN_H

#include "case.h"
#include "mutant.h"

struct et_runner;
struct et_dump;

struct et_strings {
    const char **at;
    int count;
};

struct et_options {
    struct et_strings targets, filters, excludes, operators, variants, devices;
    enum et_tier tier;
    int shard, shards; /* K/N, 1/1 */
    bool dry_run, guards, strict, verbose, quiet, color, progress;
    const char *port;           /* "ocl", "ocl:DIR", "openblas", "exec:CMD" or "plugin:SO" */
    const char *folder;         /* DIR of port, or NULL */
    const char *command;        /* CMD of port, or NULL */
    const char *plugin;         /* SO of port, or NULL */
    bool openblas;              /* is the port */
    const struct et_dump *dump; /* of check: what outputs there are to be; or NULL */
    const char *dumped;         /* its folder */
    const char *outputs;        /* the folder of the outputs, if another; or NULL */
    struct et_runner *outsider; /* runs CMD, SO or OpenBLAS, has said hello; a run takes it over. Or NULL */
    struct et_ceilings limits;
    const char *limit; /* the same as given, or NULL */
    const char *known, *results, *junit;
    const char *failed;   /* a results file: only what failed there */
    const char *keep;     /* a folder for the jobs of failing runs */
    const char *binaries; /* a folder for the programs that are built */
    int max_fail;         /* 0: no limit */
    int slowest;          /* how many are listed */
    int64_t memory;       /* bytes that the buffers of a run may have; 0: no limit */
    int threads;
    double timeout_s; /* 0: 60, or 1200 under Oclgrind */
    int repeat;       /* 0: the case's */
    bool has_seed;
    uint64_t seed;
    bool has_cases;
    const char *cases;      /* the built-in case folder, or another that stands for it */
    const char *mutants;    /* the built-in mutant folder, or another that stands for it */
    bool json, abi, schema; /* forms of describe */
    const char *skeleton;   /* the folder to write; or NULL */
    bool list;              /* worker: say which devices there are, and end */
    const char *program;    /* this executable, for starting runners */
};

/* One run of a case, for every device. */
struct et_run {
    char *id; /* case id / fill / variant[:knob=value,...] */
    const struct et_case *c;
    enum et_fill_kind fill;
    struct et_ask ask;  /* variant NULL: a refusal that no variant is needed for */
    int group;          /* runs of one (case, fill) follow each other and share a number */
    const char *target; /* the file or folder asked for that it came with; NULL: a built-in case */
    char *skip;         /* owned; why no variant computes this case, or NULL */
};

/*
 * Whether a device without limits could compute every step and twin of a case this way (ask->variant NULL:
 * whether it has a shape at all); else the sentence of whoever refuses.
 */
enum et_status et_case_fits(const struct et_case *c, const struct et_ask *ask, struct et_error *why);

/* Not a refusal, nor a case that no variant computes. */
bool et_run_needs_device(const struct et_run *run);

struct et_plan {
    struct et_run *runs;
    int count;
    int before_shard;     /* runs selected, all shards together */
    struct et_text notes; /* a line for each variant not created, and why */
    struct et_cases cases;
    struct et_mutants mutants; /* an inner axis: each run also by each mutant of its operator */
};

/* ET_INVALID: a bad file, id, variant; or nothing selected. */
enum et_status et_plan_make(const struct et_options *options, const struct et_port *port,
                            struct et_plan *plan, struct et_error *error);
/*
 * Whether a case that was read runs the same geometry (params and types) on an exact fill with the same
 * variant, at the tier of this run or the one asked for; filters and shards do not matter.
 */
bool et_plan_has_exact(const struct et_options *options, const struct et_plan *plan,
                       const struct et_run *run);
void et_plan_free(struct et_plan *plan);

#endif
