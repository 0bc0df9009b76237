/* One step of gqa_av in memory, judged as the harness does it. For tests: they abort on what can't happen. */
#ifndef ET_TESTS_JUDGED_H
#define ET_TESTS_JUDGED_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "../harness/judge.h"

enum { JUDGED_W, JUDGED_V, JUDGED_OUT, JUDGED_REPEATS = 2 };

struct judged {
    struct et_gqa_av params;
    enum et_fill_kind fill;
    struct et_case_step step;
    struct et_case c;
    struct et_job_step job_step;
    struct et_job job;
    struct et_problem *problem; /* of job_step */
    struct et_claim claim;
    struct et_truth truth;
    struct et_device device;
    struct et_outputs outputs[JUDGED_REPEATS];
    struct et_facts facts[JUDGED_REPEATS];
    struct et_judgement judgement;
};

static inline void judged_fill(struct et_problem *problem, int t, enum et_fill_kind kind, uint64_t seed)
{
    const struct et_fill fill = {.kind = kind, .seed = seed, .value = 0.5};
    struct et_tensor *tensor = &problem->tensor[t];
    const int64_t n = tensor->size[tensor->rank - 1];
    tensor->data = malloc(tensor->bytes + 1);
    float *values = malloc((size_t)n * sizeof *values + 1);
    ck_assert(tensor->data && values);
    for (int64_t row = 0; row < et_tensor_rows(tensor); row++) {
        problem->op->fill(problem, &fill, t, row, values);
        et_narrow_n(tensor->dtype, values, n,
                    (char *)tensor->data + (size_t)et_row_at(tensor, row) * et_format(tensor->dtype)->bytes);
    }
    free(values);
}

/* Every buffer of the output holds poison; pad elements follow each of its rows, as many precede the first.
 */
static inline void judged_poison(struct judged *j, int64_t pad)
{
    struct et_tensor *out = &j->problem->tensor[JUDGED_OUT];
    const size_t size = et_format(out->dtype)->bytes;
    out->stride[1] += pad;
    out->stride[0] = out->stride[1] * out->size[1];
    out->offset = pad;
    out->bytes = (size_t)(out->stride[0] * out->size[0] + pad) * size;
    for (int r = 0; r < JUDGED_REPEATS; r++) {
        void *data = malloc(out->bytes + 1);
        ck_assert(data);
        for (size_t i = 0; i < out->bytes / size; i++)
            et_store(out->dtype, data, (int64_t)i, et_poison(out->dtype, r));
        j->outputs[r].data[JUDGED_OUT] = data;
        j->facts[r].guarded = true;
    }
}

/* All checks at their defaults, on all units; claims order "none" and one fused rounding a term. */
static inline void judged_open(struct judged *j, const struct et_gqa_av *params, enum et_dtype in,
                               enum et_dtype out, enum et_fill_kind fill, uint64_t seed, int64_t pad)
{
    *j = (struct judged){.params = *params, .fill = fill};
    j->problem = &j->job_step.problem;
    j->problem->op = et_operator_named("gqa_av");
    j->problem->params = &j->params;
    for (int t = JUDGED_W; t <= JUDGED_OUT; t++)
        j->problem->tensor[t].dtype = t == JUDGED_OUT ? out : in;
    struct et_error error;
    ck_assert_int_eq(j->problem->op->shape(params, j->problem->tensor, &error), ET_OK);
    for (int t = JUDGED_W; t <= JUDGED_OUT; t++)
        ck_assert(et_tensor_pack(&j->problem->tensor[t]));
    judged_fill(j->problem, JUDGED_W, fill, seed);
    judged_fill(j->problem, JUDGED_V, fill, seed);
    judged_poison(j, pad);
    j->c = (struct et_case){
        .op = j->problem->op,
        .steps = &j->step,
        .step_count = 1,
        .checks = {.nmse = 5e-4,
                   .bound = 1,
                   .noise = 4,
                   .gain = 6,
                   .agrees = 1,
                   .exact = true,
                   .replay = true,
                   .identical = true,
                   .written = true,
                   .guards = true,
                   .inputs_kept = true,
                   .expect = true,
                   .repeat = 2},
    };
    j->job = (struct et_job){.op = j->problem->op, .steps = &j->job_step, .step_count = 1};
    j->claim = (struct et_claim){.arith = {.depth_sum = (int32_t)params->context}, .order = {.name = "none"}};
    j->device = (struct et_device){.probed = true, .exact = true, .exact_subnormal = true};
}

static inline void judged_truth(struct judged *j, uint64_t seed, int64_t rows, int threads)
{
    struct et_error error;
    ck_assert_msg(et_truth_make(j->problem, seed, rows, &j->claim, 1, threads, NULL, &j->truth, &error) ==
                      ET_OK,
                  "%s", error.text);
}

static inline void judged_store(struct judged *j, int repeat, int64_t element, uint32_t bits)
{
    const struct et_tensor *out = &j->problem->tensor[JUDGED_OUT];
    const int64_t place = et_row_at(out, element / out->size[2]) + element % out->size[2];
    et_store(out->dtype, (void *)(uintptr_t)j->outputs[repeat].data[JUDGED_OUT], place, bits);
}

/* Stores a value, rounded once, in every repeat. */
static inline void judged_put(struct judged *j, int64_t element, double value)
{
    const enum et_dtype dtype = j->problem->tensor[JUDGED_OUT].dtype;
    for (int r = 0; r < JUDGED_REPEATS; r++)
        judged_store(j, r, element, et_narrow(dtype, value));
}

static inline struct et_judge_input judged_input(const struct judged *j)
{
    return (struct et_judge_input){
        .c = &j->c,
        .fill = j->fill,
        .job = &j->job,
        .truth = &j->truth,
        .claim = &j->claim,
        .device = &j->device,
        .outputs = j->outputs,
        .facts = j->facts,
        .repeats = JUDGED_REPEATS,
    };
}

static inline enum et_verdict judged_verdict(struct judged *j)
{
    const struct et_judge_input input = judged_input(j);
    j->judgement = (struct et_judgement){0};
    et_judge(&input, &j->judgement);
    return et_verdict_of(&j->judgement);
}

static inline void judged_close(struct judged *j)
{
    et_truth_free(&j->truth);
    for (int r = 0; r < JUDGED_REPEATS; r++)
        free((void *)(uintptr_t)j->outputs[r].data[JUDGED_OUT]);
    free(j->problem->tensor[JUDGED_W].data);
    free(j->problem->tensor[JUDGED_V].data);
}

#endif
