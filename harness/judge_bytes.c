/* The checks that need no tolerance: what every run has to keep to, values the case gives, and identity. */
#include "finding.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A tensor's rows (et_row_at has their places), their size and innermost stride. */
struct rows {
    int64_t count, size, stride;
};

static struct rows rows_of(const struct et_tensor *t)
{
    return (struct rows){et_tensor_rows(t), t->size[t->rank - 1], t->stride[t->rank - 1]};
}

static const struct et_problem *problem_of(const struct et_judge_input *input)
{
    return &input->job->steps[input->step].problem;
}

static bool is_output(const struct et_operator *op, int t)
{
    return op->tensors[t].role == ET_OUTPUT;
}

static void compare(const struct et_output *a, const char *name_a, const struct et_output *b,
                    const char *name_b, struct et_tally *tally)
{
    const enum et_dtype dtype = a->tensor->dtype;
    const struct rows ra = rows_of(a->tensor), rb = rows_of(b->tensor);
    for (int64_t row = 0; row < ra.count; row++) {
        const int64_t at_a = et_row_at(a->tensor, row), at_b = et_row_at(b->tensor, row);
        for (int64_t i = 0; i < ra.size; i++) {
            const uint32_t x = et_canonical(dtype, et_load(dtype, a->data, at_a + i * ra.stride));
            const uint32_t y = et_canonical(dtype, et_load(dtype, b->data, at_b + i * rb.stride));
            if (!et_tally_breaks(tally, 0, x == y))
                continue;
            et_tell_place(tally, a, row * ra.size + i);
            et_tell_more(tally, ": %s of %s, %s of %s", et_show_bits(dtype, x).text, name_a,
                         et_show_bits(dtype, y).text, name_b);
        }
    }
}

struct et_finding et_judge_repeat(const struct et_judge_input *input)
{
    const struct et_problem *problem = problem_of(input);
    struct et_tally tally = {0};
    for (int t = 0; problem->op->tensors[t].name; t++)
        for (int r = 1; is_output(problem->op, t) && r < input->repeats; r++) {
            const struct et_output first = et_output_of(problem, &input->outputs[0], t);
            const struct et_output later = et_output_of(problem, &input->outputs[r], t);
            char name[32];
            snprintf(name, sizeof name, "repeat %d", r);
            compare(&first, "repeat 0", &later, name, &tally);
        }
    return et_tally_bytes(&tally);
}

static bool same_shape(const struct et_tensor *a, const struct et_tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->size, b->size, (size_t)a->rank * sizeof *a->size) == 0;
}

void et_judge_identical(const struct et_problem *a, const struct et_outputs *out_a, const char *name_a,
                        const struct et_problem *b, const struct et_outputs *out_b, const char *name_b,
                        struct et_finding *finding)
{
    struct et_tally tally = {0};
    for (int t = 0; a->op->tensors[t].name; t++) {
        if (!is_output(a->op, t))
            continue;
        const struct et_output x = et_output_of(a, out_a, t), y = et_output_of(b, out_b, t);
        if (same_shape(x.tensor, y.tensor))
            compare(&x, name_a, &y, name_b, &tally);
        else if (et_tally_breaks(&tally, 0, false))
            et_tell_more(&tally, "%s has another shape or type in %s than in %s", x.spec->name, name_a,
                         name_b);
    }
    const struct et_finding f = et_tally_bytes(&tally);
    et_finding_add(finding, &f, "");
}

static void find_poison(const struct et_output *output, int repeat, struct et_tally *tally)
{
    const enum et_dtype dtype = output->tensor->dtype;
    const uint32_t poison = et_poison(dtype, repeat);
    const struct rows rows = rows_of(output->tensor);
    for (int64_t row = 0; row < rows.count; row++) {
        const int64_t at = et_row_at(output->tensor, row);
        for (int64_t i = 0; i < rows.size; i++) {
            const uint32_t bits = et_load(dtype, output->data, at + i * rows.stride);
            if (!et_tally_breaks(tally, 0, bits != poison))
                continue;
            et_tell_place(tally, output, row * rows.size + i);
            et_tell_more(tally, ": never written in repeat %d, still %s", repeat,
                         et_show_bits(dtype, bits).text);
        }
    }
}

struct et_finding et_judge_written(const struct et_judge_input *input)
{
    const struct et_problem *problem = problem_of(input);
    struct et_tally tally = {0};
    for (int t = 0; problem->op->tensors[t].name; t++)
        for (int r = 0; is_output(problem->op, t) && r < input->repeats; r++) {
            const struct et_output output = et_output_of(problem, &input->outputs[r], t);
            find_poison(&output, r, &tally);
        }
    return et_tally_bytes(&tally);
}

/* Dimensions of more or less than one element, the widest stride first. Returns how many. */
static int nesting(const struct et_tensor *t, int order[ET_RANK])
{
    int n = 0;
    for (int k = 0; k < t->rank; k++) {
        int i = n;
        if (t->size[k] == 1)
            continue;
        for (; i > 0 && t->stride[order[i - 1]] < t->stride[k]; i--)
            order[i] = order[i - 1];
        order[i] = k;
        n++;
    }
    return n;
}

/* Whether an element of the shape lies at `place`: a stride spans all that is nested within it. */
static bool is_element(const struct et_tensor *t, const int *order, int n, int64_t place)
{
    place -= t->offset;
    if (place < 0)
        return false;
    for (int i = 0; i < n; i++) {
        if (place / t->stride[order[i]] >= t->size[order[i]])
            return false;
        place %= t->stride[order[i]];
    }
    return place == 0;
}

/* What lies in an output's buffer and is no element of it: nobody may write there. */
static void find_spill(const struct et_output *output, int repeat, struct et_tally *tally)
{
    const struct et_tensor *t = output->tensor;
    const uint32_t poison = et_poison(t->dtype, repeat);
    const int64_t places = et_elements(t->dtype, t->bytes);
    int order[ET_RANK];
    const int n = nesting(t, order);
    if (places == et_tensor_count(t))
        return;
    for (int64_t place = 0; place < places; place++) {
        if (is_element(t, order, n, place))
            continue;
        const uint32_t bits = et_load(t->dtype, output->data, place);
        if (et_tally_breaks(tally, 0, bits == poison))
            et_tell_more(tally, "%s: padding at element %lld of the buffer was overwritten: %s, was %s",
                         output->spec->name, (long long)place, et_show_bits(t->dtype, bits).text,
                         et_show_bits(t->dtype, poison).text);
    }
}

/* Changes that the port itself found, at most one an execution. */
static void add_fact(struct et_tally *tally, const char *text)
{
    if (et_tally_breaks(tally, 0, text[0] == '\0'))
        et_tell_more(tally, "%s", text);
}

struct et_finding et_judge_guards(const struct et_judge_input *input)
{
    const struct et_problem *problem = problem_of(input);
    struct et_tally tally = {0};
    bool guarded = true;
    for (int r = 0; r < input->repeats; r++) {
        guarded = guarded && input->facts[r].guarded;
        add_fact(&tally, input->facts[r].guards);
        for (int t = 0; problem->op->tensors[t].name; t++) {
            if (!is_output(problem->op, t))
                continue;
            const struct et_output output = et_output_of(problem, &input->outputs[r], t);
            find_spill(&output, r, &tally);
        }
    }
    if (!guarded && tally.broken == 0)
        return et_skipped("guards off");
    return et_tally_finding(&tally, (double)tally.broken, 0, "places");
}

struct et_finding et_judge_inputs_kept(const struct et_judge_input *input)
{
    struct et_tally tally = {0};
    for (int r = 0; r < input->repeats; r++)
        add_fact(&tally, input->facts[r].inputs_kept);
    return et_tally_finding(&tally, (double)tally.broken, 0, "executions");
}

/* A list covers the leading dimensions and repeats along the others. */
static double expected(const struct et_data *expect, int64_t count, int64_t element)
{
    return expect->kind == ET_DATA_VALUES ? expect->values[element / (count / expect->count)]
                                          : expect->fill.value;
}

struct side {
    const char *name;
    const struct et_output *output;
    const struct et_data *expect;
    struct et_tally tally;
};

static void expect_element(struct side *side, int64_t element, double got, uint32_t bits)
{
    const struct et_tensor *t = side->output->tensor;
    const double want = expected(side->expect, et_tensor_count(t), element);
    const bool alike = got == want || (isnan(got) && isnan(want));
    const double err = alike ? 0 : isnan(got - want) ? (double)INFINITY : fabs(got - want);
    const bool holds = side->expect->has_atol ? err <= side->expect->atol
                                              : et_canonical(t->dtype, bits) == et_narrow(t->dtype, want);
    if (!et_tally_breaks(&side->tally, err, holds))
        return;
    et_tell_more(&side->tally, "%s: ", side->name);
    et_tell_place(&side->tally, side->output, element);
    et_tell_more(&side->tally, ": got %s, expected %s", et_show(t->dtype, got, bits).text,
                 et_show_value(t->dtype, want).text);
}

static struct et_finding expect_finding(const struct side *side)
{
    if (side->expect->has_atol)
        return et_tally_finding(&side->tally, side->tally.worst, side->expect->atol, "elements");
    return et_tally_bytes(&side->tally);
}

static struct et_finding expect_oracle(const struct et_judge_input *input, const struct et_output *output,
                                       int t)
{
    const struct et_problem *problem = problem_of(input);
    const struct et_truth *truth = input->truth;
    struct side side = {
        .name = "oracle", .output = output, .expect = &input->c->steps[input->step].expect[t]};
    for (int64_t u = 0; u < truth->units; u++) {
        const struct et_unit unit = problem->op->unit(problem, truth->unit[u]);
        for (int64_t k = 0; unit.output == t && k < unit.count; k++) {
            const double value = truth->value[truth->at[u] + k];
            expect_element(&side, unit.at + k * unit.step, value, et_narrow(output->tensor->dtype, value));
        }
    }
    return expect_finding(&side);
}

static struct et_finding expect_port(const struct et_judge_input *input, const struct et_output *output,
                                     int t)
{
    const enum et_dtype dtype = output->tensor->dtype;
    const int64_t count = et_tensor_count(output->tensor);
    struct side side = {.name = "port", .output = output, .expect = &input->c->steps[input->step].expect[t]};
    for (int64_t element = 0; element < count; element++) {
        const uint32_t bits = et_output_bits(output, element);
        expect_element(&side, element, (double)et_widen(dtype, bits), bits);
    }
    return expect_finding(&side);
}

/* The oracle comes first: a port that is compared with a wrong oracle is not the news. */
struct et_finding et_judge_expect(const struct et_judge_input *input)
{
    const struct et_problem *problem = problem_of(input);
    struct et_finding finding = {.outcome = ET_NOT_RUN, .figure = NAN, .limit = NAN};
    for (int t = 0; problem->op->tensors[t].name; t++) {
        if (!is_output(problem->op, t) || !input->c->steps[input->step].expect[t].given)
            continue;
        const struct et_output output = et_output_of(problem, &input->outputs[0], t);
        const struct et_finding oracle = expect_oracle(input, &output, t),
                                port = expect_port(input, &output, t);
        et_finding_add(&finding, &oracle, "");
        et_finding_add(&finding, &port, "");
    }
    return finding;
}
