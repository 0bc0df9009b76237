#include "finding.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool et_tally_breaks(struct et_tally *tally, double figure, bool holds)
{
    tally->judged++;
    tally->worst = figure > tally->worst ? figure : tally->worst;
    return !holds && tally->broken++ == 0;
}

struct et_finding et_tally_finding(const struct et_tally *tally, double figure, double limit,
                                   const char *things)
{
    if (tally->judged == 0)
        return (struct et_finding){.outcome = ET_NOT_RUN, .figure = NAN, .limit = NAN};
    struct et_finding finding = {.outcome = ET_HELD, .figure = figure, .limit = limit};
    if (tally->broken > 0) {
        finding.outcome = ET_BROKEN;
        snprintf(finding.text, sizeof finding.text, "%s; %lld of %lld %s", tally->first,
                 (long long)tally->broken, (long long)tally->judged, things);
    }
    return finding;
}

struct et_finding et_tally_bytes(const struct et_tally *tally)
{
    return et_tally_finding(tally, (double)tally->broken, 0, "elements");
}

struct et_finding et_skipped(const char *why)
{
    struct et_finding finding = {.outcome = ET_SKIPPED, .figure = NAN, .limit = NAN};
    snprintf(finding.text, sizeof finding.text, "%s", why);
    return finding;
}

static int rank(enum et_outcome outcome)
{
    static const int ranks[] = {[ET_NOT_RUN] = 0, [ET_HELD] = 1, [ET_SKIPPED] = 2, [ET_BROKEN] = 3};
    return ranks[outcome];
}

static double excess(const struct et_finding *finding)
{
    return finding->limit > 0 ? finding->figure / finding->limit : finding->figure;
}

void et_finding_add(struct et_finding *into, const struct et_finding *more, const char *prefix)
{
    if (into->outcome == ET_NOT_RUN || isnan(into->figure) || excess(more) > excess(into)) {
        into->figure = more->figure;
        into->limit = more->limit;
    }
    if (rank(more->outcome) <= rank(into->outcome))
        return;
    into->outcome = more->outcome;
    const int room = (int)(sizeof into->text - 1 - strlen(prefix));
    snprintf(into->text, sizeof into->text, "%s%.*s", more->text[0] ? prefix : "", room, more->text);
}

struct et_output et_output_of(const struct et_problem *problem, const struct et_outputs *outputs, int t)
{
    return (struct et_output){&problem->op->tensors[t], &problem->tensor[t], outputs->data[t]};
}

uint32_t et_output_bits(const struct et_output *output, int64_t element)
{
    const struct et_tensor *t = output->tensor;
    const int64_t inner = t->size[t->rank - 1];
    const int64_t place = et_row_at(t, element / inner) + element % inner * t->stride[t->rank - 1];
    return et_load(t->dtype, output->data, place);
}

struct et_shown et_show(enum et_dtype dtype, double value, uint32_t bits)
{
    struct et_shown shown;
    const int digits = (int)et_format(dtype)->bytes * 2;
    snprintf(shown.text, sizeof shown.text, "%.9g (0x%0*x)", value, digits, (unsigned)bits);
    return shown;
}

struct et_shown et_show_bits(enum et_dtype dtype, uint32_t bits)
{
    return et_show(dtype, (double)et_widen(dtype, bits), bits);
}

struct et_shown et_show_value(enum et_dtype dtype, double value)
{
    return et_show(dtype, value, et_narrow(dtype, value));
}

void et_tell_more(struct et_tally *tally, const char *format, ...)
{
    const size_t n = strlen(tally->first);
    va_list args;
    va_start(args, format);
    vsnprintf(tally->first + n, sizeof tally->first - n, format, args);
    va_end(args);
}

void et_tell_place(struct et_tally *tally, const struct et_output *output, int64_t element)
{
    const struct et_tensor *t = output->tensor;
    int64_t at[ET_RANK];
    for (int k = t->rank - 1; k >= 0; k--) {
        at[k] = element % t->size[k];
        element /= t->size[k];
    }
    et_tell_more(tally, "%s (", output->spec->name);
    for (int k = 0; k < t->rank; k++)
        et_tell_more(tally, "%s%s %lld", k > 0 ? ", " : "", output->spec->dim[k], (long long)at[k]);
    et_tell_more(tally, ")");
}
