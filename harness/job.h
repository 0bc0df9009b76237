/*
 * A job: one problem (all its steps) written to a folder, which is all that a runner is given.
 *
 *   job.json                        {"format": 1, "operator": "...", "steps": [STEP, ...]}; a step is
 *                                   {"params": {...}, "tensors": {"w": {"role": "input", "dtype": "f32",
 *                                   "size": [...], "stride": [...], "offset": 0, "elements": N}, ...}}; an
 *                                   input that lies in the buffer of k has "buffer": "k" as well
 *   STEP.safetensors                the inputs of step STEP, from 0: whole buffers, one that is shared under
 *                                   the name of its own tensor alone. One without padding and
 *                                   offset has its normative shape, any other is one dimension of `elements`;
 *                                   job.json says where its elements lie.
 *   (out)/STEP.REPEAT.safetensors   written by the runner: the output buffers of one execution, likewise.
 *
 * Oracle values are never in there.
 */
#ifndef ET_HARNESS_JOB_H
#define ET_HARNESS_JOB_H

#include <signal.h>

#include "case.h"
#include "json.h"
#include "safetensors.h"

struct et_job_step {
    _Alignas(16) unsigned char params[ET_PARAMS_BYTES];
    struct et_problem problem; /* inputs' data are mapped */
    void *map;
    size_t map_bytes;
    char digest[33]; /* of the inputs (et_digest); set by et_job_write */
};

struct et_job {
    char *folder;
    const struct et_operator *op;
    struct et_job_step *steps;
    int step_count;
};

/*
 * The judge's side: generates every input of the case under one fill (threads > 0 of them), writes the folder
 * (which must exist; files of the same names are replaced) and keeps the inputs mapped. `seed` replaces the
 * case's when given. twin may be NULL. The fill `constant`, asked for by name alone, is of ones.
 * ET_FAILED soon after *stop is set (stop may be NULL); no inputs that are not whole are left.
 */
enum et_status et_job_write(const struct et_case *c, const struct et_twin *twin, enum et_fill_kind fill,
                            const uint64_t *seed, int threads, const volatile sig_atomic_t *stop,
                            const char *folder, struct et_job *job, struct et_error *error);

/*
 * Gives each input of a job that was written a buffer of its own, packed, in place of those that share one,
 * and files them so: for programs that look for each by its name. Digests stay. ET_FAILED: no space, too
 * large, or *stop was set; files may be of both kinds then.
 */
enum et_status et_job_part(struct et_job *job, const volatile sig_atomic_t *stop, struct et_error *error);

/* The runner's side: reads job.json strictly, maps the inputs read-only. ET_INVALID: something is wrong in
 * it. */
enum et_status et_job_read(const char *folder, struct et_job *job, struct et_error *error);
void et_job_free(struct et_job *job); /* the folder stays */

/* Output tensors of one execution, read (a runner may cut its files yet); checked against the job's step.
 * data[t] NULL for inputs. */
struct et_outputs {
    struct et_tensors file;
    const void *data[ET_TENSORS];
};

enum et_status et_outputs_open(const struct et_job *job, int step, int repeat, const char *folder,
                               struct et_outputs *outputs, struct et_error *error);
void et_outputs_close(struct et_outputs *outputs);
/* Creates that file for writing, all zero; out[t] NULL for inputs. Unmap with et_unmap(*map, *bytes). */
enum et_status et_outputs_create(const struct et_job *job, int step, int repeat, const char *folder,
                                 void **out, void **map, size_t *bytes, struct et_error *error);

/* Fills the outputs, out[t], with et_poison of that repeat; not whole where *stop is set. */
void et_poison_fill(const struct et_problem *problem, int repeat, const volatile sig_atomic_t *stop,
                    void *const *out);
/* The same, all poison (et_poison of that repeat): for a runner that is to write elements alone. */
enum et_status et_outputs_poison(const struct et_job *job, int step, int repeat,
                                 const volatile sig_atomic_t *stop, const char *folder,
                                 struct et_error *error);

/*
 * XXH3-128, in hex, of each file that a runner is given, read and not mapped, as it may have been cut: of
 * STEP.safetensors at [STEP], of job.json behind them. ET_INVALID: a file cannot be read. ET_FAILED as well
 * once *stop is set.
 */
enum et_status et_job_prints(const struct et_job *job, const volatile sig_atomic_t *stop, char (*prints)[33],
                             struct et_error *error);
/* The file that prints[i] is of. */
void et_job_file(const struct et_job *job, int i, char name[32]);

/*
 * XXH3-128, in hex, over the elements of the given role in normative order, a tensor after the other, NaN
 * canonical; data[t] are buffers. Elements that are poison do not count, so that neither layout nor poison
 * shows. Fails for want of memory, or soon after *stop is set (stop may be NULL).
 */
enum et_status et_digest(const struct et_problem *problem, enum et_role role, const void *const *data,
                         const volatile sig_atomic_t *stop, char digest[33], struct et_error *error);

/* Removes a folder and what is in it; missing is fine. */
void et_remove_folder(const char *folder);

#endif
