/* Case files -> cases: every problem that a file describes, each with its id (docs/cases.md). */
#ifndef ET_HARNESS_CASE_H
#define ET_HARNESS_CASE_H

#include "../ocl/memory.h"
#include "../ref/etalon_port.h"

enum { ET_STEPS = 4096 }; /* of a case, at most */

enum et_tier { ET_SMOKE, ET_DEFAULT, ET_FULL, ET_TIERS }; /* each contains the ones before */

const char *et_tier_name(enum et_tier tier);
bool et_tier_named(const char *name, enum et_tier *tier);

enum et_poison_kind { ET_POISON_NAN, ET_POISON_LARGE };

/* Where the elements of one tensor come from. */
enum et_data_kind { ET_DATA_FILL, ET_DATA_VALUES, ET_DATA_FILE };

struct et_data {
    enum et_data_kind kind;
    bool given;          /* by the case; otherwise the run's fill */
    struct et_fill fill; /* ET_DATA_FILL (a plain constant is the fill of that name) */
    bool seeded;         /* fill.seed was given, and is not the case's */
    double *values;      /* ET_DATA_VALUES: owned by the case's arena */
    int64_t count;       /* of values, or of the elements in the file */
    const char *file; /* ET_DATA_FILE: the path of a safetensors file, a tensor in it, its type and shape */
    const char *tensor;
    enum et_dtype dtype; /* ET_DTYPES: none of etalon's */
    int rank;
    int64_t size[ET_RANK];
    bool has_atol; /* in expect only */
    double atol;
};

struct et_layout {
    bool given;
    int64_t pad[ET_RANK][2];
    bool ordered;
    int order[ET_RANK]; /* order[k]: the dimension stored k-th, outermost first */
    int64_t shift;      /* elements before the first */
    int view_of;        /* t + 1: no memory of its own, its elements are those of tensor t; 0: it has some */
    const char *buffer; /* inputs that name the same one lie behind each other in it; NULL: one of its own */
};

struct et_case_step {
    _Alignas(16) unsigned char params[ET_PARAMS_BYTES];
    bool given[ET_PARAMS];             /* the others have defaults, which twins derive anew */
    struct et_data data[ET_TENSORS];   /* inputs */
    struct et_data expect[ET_TENSORS]; /* given: this output is compared with it */
};

/* One variant with the knobs asked for; not yet resolved. */
struct et_ask {
    const struct et_variant *variant;
    int64_t knob[ET_PARAMS];
    bool named; /* by the case or the command line, not by default */
};

/* A limit per check; off where disabled. */
struct et_checks {
    double nmse, bound, noise, gain, agrees; /* limits; negative: off */
    bool exact, replay, identical, written, guards, inputs_kept, expect;
    int repeat;    /* executions; 1: off */
    bool allclose; /* off unless given */
    double atol, rtol;
};

/* A second problem whose outputs must be the same bytes. */
struct et_twin {
    bool edits[ET_PARAMS]; /* params given */
    double value[ET_PARAMS];
    bool has_poison;
    enum et_poison_kind poison;
};

/* Whether an input is made by a fill of the operator's own. */
bool et_data_is_own(const struct et_data *data);

struct et_case {
    char *id; /* operator/file/name[/axis=value,...] */
    const struct et_operator *op;
    const char *file; /* path as given, for messages */
    int line, column; /* of the case in it */
    const char *note;
    const char *const *origin; /* ends with NULL */
    enum et_tier tier;
    bool capped; /* belongs to `tier` alone: a wider tier has its own form */
    bool bench;
    uint64_t seed;
    enum et_poison_kind poison;
    enum et_dtype dtype[ET_TENSORS];
    struct et_layout layout[ET_TENSORS];
    struct et_case_step *steps;
    int step_count;
    enum et_fill_kind *fills;
    int fill_count;
    struct et_ask *asks; /* in run order; empty: the case names none of the port's, and all of them apply */
    int ask_count;
    bool elsewhere; /* the variants it names are all of etalon's own port, and this is another */
    int64_t rows;   /* sampled units; 0: all */
    struct et_checks checks;
    struct et_twin *twins;
    int twin_count;
    const char *refused; /* the sentence that shape or resolve must refuse with, or NULL */
};

/* Many cases and everything they point to. */
struct et_cases {
    struct et_case *at;
    int count;
    struct et_arena *arena;
};

struct et_models; /* models.json, read */

enum et_status et_models_read(const char *path, struct et_models **models, struct et_error *error);
void et_models_free(struct et_models *models);
/* Prints nothing: name and source of model i, or false. */
bool et_models_entry(const struct et_models *models, int i, const char **name, const char **source);

/*
 * Appends the cases of one file; the ids of one file differ. Errors read "file:line:column: sentence", and
 * leave cases as they were. models may be NULL: no case may then name one. What stands in cases depends on
 * neither models nor the file afterwards.
 */
enum et_status et_cases_read(const char *path, const struct et_models *models, const struct et_port *port,
                             struct et_cases *cases, struct et_error *error);
void et_cases_free(struct et_cases *cases);

/*
 * The problem of one step (twin NULL) or of that step as a twin has it: shapes, dtypes, strides, offsets and
 * bytes of every tensor, no data. params points into *params. ET_REFUSED with the operator's or the layout's
 * sentence, or with that about a fill of the exact family which has no exact result there.
 */
enum et_status et_case_problem(const struct et_case *c, int step, const struct et_twin *twin,
                               unsigned char params[ET_PARAMS_BYTES], struct et_problem *problem,
                               struct et_error *error);

/*
 * What the elements of a row of an input are for, those of other inputs that are the same ones included: data
 * where one of them has data, 0 where one of them has 0. n is the innermost size: dst[n], room[n].
 */
void et_case_classes(const struct et_problem *problem, int tensor, int64_t row, enum et_class *dst,
                     enum et_class *room);

/*
 * How a list of count values covers an input: with one value for each element that et_case_classes calls
 * ET_DATA, or one for each prefix of leading dimensions under which there is any, repeated along the other
 * dimensions (count 1: the prefix of none). An output has ET_DATA only. first[i] becomes the index of the
 * value that the first ET_DATA element of row i takes; the others of that row take the next ones (*each) or
 * the same (!*each). first has et_tensor_rows entries; NULL: only looks whether the count is right.
 * ET_REFUSED with the counts that are.
 */
enum et_status et_values_map(const struct et_problem *problem, int tensor, int64_t count, int64_t *first,
                             bool *each, struct et_error *error);

/* Whether a stored tensor has this one's rows as they are, of a type whose elements share bytes: i4 as u8. */
bool et_is_packed_rows(enum et_dtype dtype, int rank, const int64_t *size, const struct et_tensor *tensor);
/* Whether it has all elements of this one: so, in its shape, or in one dimension. */
bool et_covers_whole(enum et_dtype dtype, int rank, const int64_t *size, const struct et_tensor *tensor);

/* "name" or "name:knob=value,knob=value" (only knobs asked for), into text. */
void et_ask_name(const struct et_ask *ask, struct et_text *text);

/* Globs match whole ids: `*` also matches `/`. */
bool et_glob(const char *pattern, const char *text);

#endif
