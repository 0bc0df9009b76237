/*
 * What a port implements: one table of variants, the same for etalon's OpenCL kernels and for anybody else's.
 *
 * A variant is a way to compute an operator. `resolve` is pure: it looks at the problem, the device's limits
 * and the knobs that were asked for, and either claims (which knobs, arithmetic, order, scratch) or refuses
 * in one sentence. Knobs may never change the function, only how it is computed.
 */
#ifndef ETALON_PORT_H
#define ETALON_PORT_H

#include "etalon.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The only source of limits: dispatch and its tests need no hardware. All zero: nothing is known. */
struct et_device {
    char place[16]; /* "P:D": platform and device number */
    char name[128], vendor[128], version[128], driver[128], platform[128];
    int64_t compute_units;
    int64_t work_group;                /* work-items of a group at most */
    int64_t local_memory;              /* bytes a group may use */
    int64_t global_memory, allocation; /* bytes: all, and one buffer */
    bool subgroups, fp16, fp64;
    int64_t shuffles;        /* lanes over which sub-group shuffles were seen to exchange values; 0: none */
    int64_t vendor_shuffles; /* the same of NVIDIA's shfl.sync, through inline PTX */
    uint64_t fp_config;      /* CL_DEVICE_SINGLE_FP_CONFIG as reported: recorded, never trusted */
    /* The arithmetic probe: what the device did on our vectors, against C. */
    bool probed;
    bool exact; /* every vector that replay relies on (normal numbers) matched */
    bool exact_subnormal;
    char probe[256]; /* one sentence: what differs, e.g. "fma differs on 12 of 65536" */
};

/* A device that refuses nothing: for resolving before a device is known. */
struct et_device et_device_unlimited(void);

/* A smaller device to stand for the real one, members as in et_device; 0 and false leave it as it is. */
struct et_ceilings {
    int64_t work_group, local_memory, allocation;
    bool no_subgroups;
};

/* Lowers what exceeds a limit, or is unknown, to it. */
void et_limit_device(struct et_device *device, const struct et_ceilings *limits);

/* The version of this header's structs. A port says which it was built with, first of all; another is
 * refused. */
#define ET_ABI 3

struct et_claim {
    int64_t knob[ET_PARAMS]; /* every knob resolved, in the order of the variant's table */
    struct et_arith arith;
    struct et_order order;
    size_t scratch_bytes;
    char variant[24]; /* the one that runs, where the one asked only chooses; empty: the one asked */
};

/* A knob that was not asked for: resolve chooses. */
#define ET_UNSET INT64_MIN

struct et_session; /* a port's open device */

/* What one execution of one step brought to light besides the outputs. Empty text: nothing wrong. */
struct et_facts {
    double device_ns;      /* by the device's own clock, launches only; 0 when it has none */
    bool guarded;          /* guards were there to be looked at */
    char guards[240];      /* the first guard byte that changed: tensor, side, place, value */
    char inputs_kept[240]; /* the first input element that changed: tensor, place, before, after */
    char kernels[240];     /* the kernels that were launched, comma separated */
    char program[480];     /* what was built for it: source and options; distinct texts count programs */
};

/* The table of a variant without knobs. */
extern const struct et_field et_no_knobs[];

struct et_variant {
    const char *op, *name, *summary;
    const struct et_field *knobs; /* ends with a NULL name */

    /* Whether a case that names no variants leaves this one out. NULL: it does not. */
    bool (*left_out)(const struct et_problem *problem);

    /*
     * asked[i] is the value asked for knob i, or ET_UNSET. ET_REFUSED: this shape or these knobs are not for
     * this variant, on any device. ET_LACKING: this device lacks something. `why` names place, value and
     * limit.
     */
    enum et_status (*resolve)(const struct et_problem *problem, const struct et_device *device,
                              const int64_t *asked, struct et_claim *claim, struct et_error *why);

    /*
     * Builds and allocates for a case of n steps, which share their buffers; steps[i].tensor[].data of inputs
     * stay valid and unchanged until finish. The state is the port's; it is set, for finish to free, even on
     * failure.
     */
    enum et_status (*prepare)(struct et_session *session, const struct et_variant *variant,
                              const struct et_problem *steps, const struct et_claim *claims, int n,
                              void **state, struct et_error *error);

    /*
     * Executes step i: uploads its inputs, poisons outputs and scratch with et_poison(dtype, repeat),
     * computes, and reads whole output buffers, padding included, to out[t] (t as in the tensor table, NULL
     * for inputs). out[t] has that poison already and is laid out as steps[i].tensor[t]: a port in host
     * memory writes elements there, and nothing else.
     */
    enum et_status (*step)(void *state, int i, int repeat, void *const *out, struct et_facts *facts,
                           struct et_error *error);

    void (*finish)(void *state); /* NULL is allowed */
};

struct et_open {
    const char *place;         /* "P:D", as listed */
    const char *folder;        /* kernel sources looked for here first, or NULL */
    bool guards;               /* guard zones around every buffer; off: buffers of exact size */
    struct et_ceilings limits; /* of the device, from its opening on */
    const char *binaries;      /* a folder for what is built, or NULL; a plugin may leave it alone */
};

/* A kernel source in memory, in place of the port's own file of that name. */
struct et_override {
    const char *name, *text;
};

struct et_port {
    int abi; /* ET_ABI; first in every version */
    const char *name;
    const struct et_variant *const *variants; /* ends with NULL */
    /*
     * Writes at most n devices (place, names and limits; not probed), returns how many there are. report
     * gets, a line each, what was looked at and what failed (driver files, platforms without devices). A
     * plugin, which is one device, has NULL here.
     */
    int (*list)(struct et_device *dst, int n, char *report, size_t report_bytes);
    /*
     * Opens a device, runs the arithmetic probe and fills *device; *session may become NULL. A plugin need
     * not probe: it then owes the bytes of whatever order it claims.
     */
    enum et_status (*open)(const struct et_open *options, struct et_session **session,
                           struct et_device *device, struct et_error *error);
    /*
     * From here on, whatever is built takes these sources (which end with a NULL name and stay valid) first;
     * NULL ends it. A port without sources has NULL here.
     */
    void (*override)(struct et_session *session, const struct et_override *overrides);
    void (*close)(struct et_session *session); /* NULL is allowed */
};

/*
 * What a shared object for `--port plugin:FILE.so` has: its port, which stays valid. Called once, by the
 * runner; the judge never loads it.
 */
#define ET_EXPORT __attribute__((visibility("default")))
ET_EXPORT const struct et_port *et_plugin(void);

const struct et_variant *et_variant_named(const struct et_port *port, const char *op, const char *name);

/* The name of the variant that a claim of `variant` runs: the part of its kernels' names behind OPERATOR_. */
const char *et_variant_run(const struct et_variant *variant, const struct et_claim *claim);

/*
 * The bit patterns that outputs and scratch hold before a kernel runs: a NaN of the type that no arithmetic
 * produces where the type has more than one; repeat r and repeat r + 1 differ, so that a stale read changes
 * bytes.
 */
uint32_t et_poison(enum et_dtype dtype, int repeat);

#ifdef __cplusplus
}
#endif

#endif
