/* The kill table: which check notices which mutant. */
#ifndef ET_HARNESS_MUTATE_H
#define ET_HARNESS_MUTATE_H

#include "report.h"

struct et_kills;

/* Creates the results file, if any. */
enum et_status et_kills_open(const struct et_options *options, const struct et_mutants *mutants,
                             const struct et_device *devices, int device_count, struct et_kills **kills,
                             struct et_error *error);
/* result->mutant NULL: the kernels as they are, which must pass. */
void et_kills_add(struct et_kills *kills, const struct et_result *result);
/*
 * Prints a table a device, who survived, who raised a false alarm; writes the results. Frees kills. *broken:
 * there was such a mutant or one that does not build, or the kernels as they are do not pass, or nothing was
 * judged.
 */
enum et_status et_kills_close(struct et_kills *kills, bool *broken, struct et_error *error);

#endif
