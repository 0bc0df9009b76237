/* Mutants: kernels with a known bug, or with another honest order of additions, as textual edits
 * (docs/checks.md). */
#ifndef ET_HARNESS_MUTANT_H
#define ET_HARNESS_MUTANT_H

#include "../ocl/memory.h"
#include "../ref/etalon_port.h"

enum { ET_MUTANT_FILES = 4 };

struct et_mutant {
    char *name; /* of its file */
    const struct et_operator *op;
    char *bug;    /* one sentence */
    char *origin; /* "owner/repo#number, ...", or NULL */
    bool honest;  /* no bug: only the order of additions is another */
    /* honest: its depth_sum, ceil(factor * param / divisor) + extra */
    const struct et_field *param;
    int64_t factor, divisor, extra;
    char *file[ET_MUTANT_FILES], *text[ET_MUTANT_FILES]; /* edited kernel files */
    struct et_override sources[ET_MUTANT_FILES + 1];     /* the same */
};

struct et_mutants {
    struct et_mutant *at;
    int count;
};

/*
 * Appends the mutants of one operator, FOLDER/OPERATOR/NAME, in the order of their names; a folder that is
 * not there has none. What they edit is looked for in kernels (NULL: none) and then among the built-in files.
 * ET_INVALID: a file is malformed, or text to be replaced does not stand in the kernel exactly once.
 */
enum et_status et_mutants_read(const char *folder, const struct et_operator *op, const char *kernels,
                               struct et_mutants *mutants, struct et_error *error);
void et_mutants_free(struct et_mutants *mutants);
/* Keeps those whose name one of the globs matches; no glob: all. */
void et_mutants_keep(struct et_mutants *mutants, const char *const *globs, int count);

/* What an honest reordering is judged by in place of the kernel's claim: order none, and its own depth. */
void et_mutant_claim(const struct et_mutant *mutant, const struct et_problem *problem,
                     struct et_claim *claim);

#endif
