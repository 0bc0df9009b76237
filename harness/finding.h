/* What the checks of judge.c and judge_bytes.c share: counting what is broken, and saying where. */
#ifndef ET_HARNESS_FINDING_H
#define ET_HARNESS_FINDING_H

#include "judge.h"

/* What one check saw, element by element or row by row. */
struct et_tally {
    double worst;
    int64_t judged, broken;
    char first[300];
};

/* Counts one judgement; true for the first that is broken: its text is then due. */
bool et_tally_breaks(struct et_tally *tally, double figure, bool holds);
/* Not run when nothing was judged. `things` are what was counted. */
struct et_finding et_tally_finding(const struct et_tally *tally, double figure, double limit,
                                   const char *things);
/* The same for a comparison of bytes: the figure is how many elements differ. */
struct et_finding et_tally_bytes(const struct et_tally *tally);
struct et_finding et_skipped(const char *why);

/* The worst figure, the worst outcome and that outcome's first text, which opens with prefix. */
void et_finding_add(struct et_finding *into, const struct et_finding *more, const char *prefix);

/* One output tensor as one execution left it. */
struct et_output {
    const struct et_tensor_spec *spec;
    const struct et_tensor *tensor;
    const void *data;
};

struct et_output et_output_of(const struct et_problem *problem, const struct et_outputs *outputs, int t);
/* Pattern of an element of the normative shape, counted in row-major order. */
uint32_t et_output_bits(const struct et_output *output, int64_t element);

struct et_shown {
    char text[40];
};

/* "0.25 (0x3e800000)" */
struct et_shown et_show(enum et_dtype dtype, double value, uint32_t bits);
struct et_shown et_show_bits(enum et_dtype dtype, uint32_t bits);
struct et_shown et_show_value(enum et_dtype dtype, double value); /* bits: of the value rounded once */

/* "out (query_length 0, q_heads 3, head_dim 17)" */
void et_tell_place(struct et_tally *tally, const struct et_output *output, int64_t element);
void et_tell_more(struct et_tally *tally, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What a step's inputs are decides which bound holds: one structured input makes the step structured. */
enum et_regime { ET_INDEPENDENT, ET_RECORDED, ET_STRUCTURED };

/* One output of one step, and what it is measured with. */
struct et_subject {
    int t;
    const struct et_problem *problem;
    const struct et_truth *truth;
    const struct et_checks *checks;
    int arith; /* of the truth; negative: none of it is the claimed one */
    enum et_regime regime;
};

struct et_subject et_subject_of(const struct et_judge_input *input, int t);

/* `noise` and `gain` apply: the data are independent and the operator predicts a variance. */
bool et_has_statistics(const struct et_subject *s);

/* Rows of the statistics that run across units, each an element of every one; 0: rows are units. */
int64_t et_lines(const struct et_subject *s);

/* What is predicted of one element of a sampled unit. */
struct et_predicted {
    double ref;
    double tolerance;
    double variance; /* of the error: everything predicted, the store included */
    double common;   /* variance of the relative error that its unit's elements have alike */
    double drift;    /* the relative error that all units may have alike */
};

/* Of element k of sampled unit u. */
struct et_predicted et_predict(const struct et_subject *s, const struct et_unit *unit, int64_t u, int64_t k);
/*
 * 1 / var(alpha) of a row whose squares add up to ref2, var(alpha) being weighted / ref2^2; 0, which leaves
 * it out of `gain`, of a reference that is zero or too small for its square to be a double.
 */
double et_gain_weight(double ref2, double weighted);
/* What is left of a sum of pulls where that much of it, of either sign, is allowed. */
double et_undrifted(double pull, double drift);
/* |err| / tolerance; Inf for what no limit covers: a NaN, or any error where none is allowed. */
double et_ratio(double err, double tolerance);

/* The checks of judge_bytes.c, of all outputs of one step. */
struct et_finding et_judge_repeat(const struct et_judge_input *input);
struct et_finding et_judge_written(const struct et_judge_input *input);
struct et_finding et_judge_guards(const struct et_judge_input *input);
struct et_finding et_judge_inputs_kept(const struct et_judge_input *input);
struct et_finding et_judge_expect(const struct et_judge_input *input);

#endif
