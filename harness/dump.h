/*
 * Problems in files, for kernels that cannot be run from here. `etalon dump` writes to a folder
 *
 *   manifest.json                {"format": 1, "etalon": VERSION, "tier": TIER, "seed": N or null, "runs":
 * [{"id": ID, "folder": N, "steps": [{"inputs": DIGEST, "claim": CLAIM}, ...]}, ...]} N/job.json,
 * N/STEP.safetensors       as a runner is given them (job.h) N/STEP.NAME.oracle.npy               of each
 * output, f64, normative shape; NaN where `rows` leaves out N/STEP.NAME.tolerance.npy            what `bound`
 * allows each element of it under CLAIM
 *
 * and `etalon check` judges outputs made of them elsewhere, in the same folder or another:
 *
 *   N/STEP.outputs.safetensors           all outputs of a step, each of its own type and normative shape; or
 *   N/STEP.NAME.npy                      one output: values that its type has, or (u2, V2) the bits of a bf16
 */
#ifndef ET_HARNESS_DUMP_H
#define ET_HARNESS_DUMP_H

#include "job.h"
#include "plan.h"
#include "runner.h"

struct et_dumped {
    char *id;
    int64_t folder;
    int step_count;
    char (*inputs)[33];      /* digest of each step's */
    struct et_claim *claims; /* of each step: what its outputs are held to */
};

struct et_dump {
    enum et_tier tier;
    bool has_seed;
    uint64_t seed;
    struct et_dumped *at;
    int count;
};

/* The port whose only variant, of every operator, is whoever makes the outputs. */
enum et_status et_dump_port(struct et_offer *offer, struct et_error *error);

/*
 * Writes the runs of a plan that was made for et_dump_port. The folder must not be there, or be empty. What
 * is claimed is f32 with each term rounded as a product and in every sum of the longest order that etalon's
 * own variants have; a manifest may be edited.
 */
enum et_status et_dump_write(const struct et_options *options, const struct et_plan *plan, const char *folder,
                             const volatile sig_atomic_t *stop, struct et_error *error);

/* ET_INVALID: no manifest, or not one. */
enum et_status et_dump_read(const char *folder, struct et_dump *dump, struct et_error *error);
void et_dump_free(struct et_dump *dump);
const struct et_dumped *et_dump_find(const struct et_dump *dump, const char *id);

/*
 * Reads the outputs of all steps of one run below a folder and writes them, as a runner would, to `out`.
 * ET_INVALID with the file and what is wrong with it.
 */
enum et_status et_dump_outputs(const struct et_dumped *dumped, const char *folder, const struct et_job *job,
                               const char *out, struct et_error *error);

#endif
