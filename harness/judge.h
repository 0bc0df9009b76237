/* Truth (oracle and replay values of the sampled units) and the checks that compare outputs with it. */
#ifndef ET_HARNESS_JUDGE_H
#define ET_HARNESS_JUDGE_H

#include <signal.h>

#include "job.h"
#include "runner.h"

/* What is true of one step of one (case, fill), for every distinct arithmetic and order claimed. */
struct et_truth {
    int64_t *unit; /* sampled unit numbers, increasing */
    int64_t units;
    int64_t *at; /* units + 1: first value of each unit in the arrays below */
    double *value;
    bool *again; /* this unit is stored as the same bytes as an earlier one: its error is no second witness */
    struct et_arith *ariths;
    int arith_count;
    struct et_spread *spread; /* unit i, arithmetic a: `count` from arith_count * at[i] + a * count on */
    struct et_order *orders;  /* "none" is not among them */
    int order_count;
    float *replay; /* order_count * at[units]: all of one order, then all of the next */
    double *lie;   /* lie_count * at[units], as `spread`: what op->lie says, NaN where there is none. Of */
    bool *edge;    /* these units alone, which sampling never leaves out */
    int lie_count;
    struct et_met *met; /* order_count */
    bool *replayed;     /* order_count: false where the operator has no replay of it */
    double oracle_s, replay_s;
};

/*
 * Computes the truth of a step on `threads` threads. rows: sampled units (0: all), chosen from seed by
 * name-keyed Philox, edges always among them. Where *stop is set meanwhile (stop may be NULL), values are
 * left out.
 */
enum et_status et_truth_make(const struct et_problem *problem, uint64_t seed, int64_t rows,
                             const struct et_claim *claims, int claim_count, int threads,
                             const volatile sig_atomic_t *stop, struct et_truth *truth,
                             struct et_error *error);
void et_truth_free(struct et_truth *truth);

/* Index of an arithmetic or order of a claim, or -1. */
int et_truth_arith(const struct et_truth *truth, const struct et_arith *arith);
int et_truth_order(const struct et_truth *truth, const struct et_order *order);
bool et_order_same(const struct et_order *a, const struct et_order *b);

enum et_verdict { ET_PASS, ET_FAIL, ET_ERROR, ET_MISTRUSTED, ET_SKIP, ET_XFAIL, ET_XPASS, ET_VERDICTS };
const char *et_verdict_name(enum et_verdict verdict);

enum et_check {
    ET_CHECK_NMSE,
    ET_CHECK_BOUND,
    ET_CHECK_NOISE,
    ET_CHECK_GAIN,
    ET_CHECK_AGREES,
    ET_CHECK_EXACT,
    ET_CHECK_REPLAY,
    ET_CHECK_IDENTICAL,
    ET_CHECK_REPEAT,
    ET_CHECK_WRITTEN,
    ET_CHECK_GUARDS,
    ET_CHECK_INPUTS_KEPT,
    ET_CHECK_EXPECT,
    ET_CHECK_ALLCLOSE,
    ET_CHECKS
};
const char *et_check_name(enum et_check check);

enum et_outcome { ET_NOT_RUN, ET_HELD, ET_BROKEN, ET_SKIPPED };

/*
 * figure (Inf where a NaN came in): bound, allclose, agrees: max(err / tolerance); noise: energy of the worst
 * row, or the mean where only that is too large; gain: abs z; expect with atol: max(err); other checks of
 * bytes: elements that differ (limit 0); guards and inputs_kept: places found changed (limit 0).
 */
struct et_finding {
    enum et_outcome outcome;
    double figure, limit; /* NaN where the check has none: not run, skipped */
    char text[400];       /* broken: coordinates, got and want in decimal and hex; skipped: why */
};

enum { ET_TOOTH_CHECKS = 5, ET_TEETH = ET_LIES + 3 };
extern const enum et_check et_tooth_checks[ET_TOOTH_CHECKS]; /* nmse bound noise gain allclose */

/* One wrong answer, and how large it is in units of each check's limit: from 1 on the check sees it. */
struct et_tooth {
    const char *name;             /* a lie of the operator; or scale, zeros, mean */
    bool whole;                   /* as in struct et_lie */
    double size[ET_TOOTH_CHECKS]; /* NaN where the check is off or does not apply */
};

/* What a step's checks of distance could have seen. */
struct et_teeth {
    struct et_tooth at[ET_TEETH];
    int count;
    char blind[400]; /* why the step's data prove nothing; empty where they do */
};

/* What is known of one run once it was judged. Starts as all zeros. */
struct et_judgement {
    struct et_teeth teeth; /* of the first step, or of the first that proves nothing */
    struct et_finding check[ET_CHECKS];
    double headroom;     /* max(err / tolerance) */
    double nmse_derived; /* 4 * predicted error energy, the store's rounding included, / sum ref^2 */
    double noise_mean;   /* over rows of at least 16 elements; 0 where there are not 16 of them */
};

struct et_judge_input {
    const struct et_case *c;
    enum et_fill_kind fill;
    int step;
    const struct et_job *job;
    const struct et_truth *truth;
    const struct et_claim *claim;
    const struct et_device *device;
    const struct et_outputs *outputs; /* `repeats` of them */
    const struct et_facts *facts;     /* likewise */
    int repeats;
};

/*
 * All checks that concern one run alone: nmse bound noise gain exact replay repeat written guards inputs_kept
 * expect allclose. Adds to *judgement: with several steps a finding already broken stays, figures are the
 * worst. The claim is one that the truth was made for. Limits are the case's: bound in units of each
 * tolerance, noise for a row (for the mean 3/8 of that, or what few large elements may stray), nmse unless
 * the claim predicts more.
 */
void et_judge(const struct et_judge_input *input, struct et_judgement *judgement);

/*
 * Bytes equal, element for element of the normative shape, NaN canonical: `identical` between two runs, or a
 * run and its twin. Adds to *finding, as et_judge does, and so does et_judge_agrees.
 */
void et_judge_identical(const struct et_problem *a, const struct et_outputs *out_a, const char *name_a,
                        const struct et_problem *b, const struct et_outputs *out_b, const char *name_b,
                        struct et_finding *finding);
/* Two runs within the sum of their tolerances on the sampled units; both have the same truth. */
void et_judge_agrees(const struct et_judge_input *a, const struct et_judge_input *b, const char *name_b,
                     struct et_finding *finding);

/*
 * Predicts the teeth of a step under a claim, from its truth alone: outputs, facts and device are not looked
 * at. docs/checks.md, "Teeth".
 */
void et_teeth_of(const struct et_judge_input *input, struct et_teeth *teeth);
/* The largest size of a tooth, and at which check; 0 where none applies. */
double et_tooth_largest(const struct et_tooth *tooth, enum et_check *check);
/* A check of bytes that stands for itself held: replay, exact or expect. Such a run needs no teeth. */
bool et_judged_by_bytes(const struct et_judgement *judgement);

/* The fill of the exact family that all inputs of a step have in common, or ET_FILLS. */
enum et_fill_kind et_exact_fill(const struct et_case *c, int step, enum et_fill_kind fill);
/* Whether all that a claim rounds to has the digits that the exact family counts on. */
bool et_exact_covers(const struct et_problem *problem, const struct et_arith *arith);

/* FAIL when a check is broken, PASS when none is and at least one held, else SKIP. */
enum et_verdict et_verdict_of(const struct et_judgement *judgement);

#endif
