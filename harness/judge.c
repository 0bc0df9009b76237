/* The checks that compare a run with the truth: docs/checks.md has their derivations. */
#include "finding.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *et_verdict_name(enum et_verdict verdict)
{
    static const char *const names[ET_VERDICTS] = {
        [ET_PASS] = "PASS", [ET_FAIL] = "FAIL",   [ET_ERROR] = "ERROR", [ET_MISTRUSTED] = "MISTRUSTED",
        [ET_SKIP] = "SKIP", [ET_XFAIL] = "XFAIL", [ET_XPASS] = "XPASS",
    };
    return names[verdict];
}

const char *et_check_name(enum et_check check)
{
    static const char *const names[ET_CHECKS] = {
        [ET_CHECK_NMSE] = "nmse",     [ET_CHECK_BOUND] = "bound",
        [ET_CHECK_NOISE] = "noise",   [ET_CHECK_GAIN] = "gain",
        [ET_CHECK_AGREES] = "agrees", [ET_CHECK_EXACT] = "exact",
        [ET_CHECK_REPLAY] = "replay", [ET_CHECK_IDENTICAL] = "identical",
        [ET_CHECK_REPEAT] = "repeat", [ET_CHECK_WRITTEN] = "written",
        [ET_CHECK_GUARDS] = "guards", [ET_CHECK_INPUTS_KEPT] = "inputs_kept",
        [ET_CHECK_EXPECT] = "expect", [ET_CHECK_ALLCLOSE] = "allclose",
    };
    return names[check];
}

enum et_verdict et_verdict_of(const struct et_judgement *judgement)
{
    bool held = false;
    for (int i = 0; i < ET_CHECKS; i++) {
        if (judgement->check[i].outcome == ET_BROKEN)
            return ET_FAIL;
        held = held || judgement->check[i].outcome == ET_HELD;
    }
    return held ? ET_PASS : ET_SKIP;
}

static enum et_regime regime_of(const struct et_judge_input *input)
{
    const struct et_operator *op = input->c->op;
    enum et_regime regime = ET_INDEPENDENT;
    for (int t = 0; op->tensors[t].name; t++) {
        const struct et_data *d = &input->c->steps[input->step].data[t];
        if (op->tensors[t].role != ET_INPUT)
            continue;
        /* Roundings of a view's elements are as independent as of others; the data are there twice. */
        const bool view = input->c->layout[t].view_of > 0;
        if (view || (d->given && d->kind == ET_DATA_FILE))
            regime = ET_RECORDED;
        else if (d->given && d->kind == ET_DATA_VALUES)
            return ET_STRUCTURED;
        else if (!et_fill_is_iid(d->given ? d->fill.kind : input->fill))
            return ET_STRUCTURED;
    }
    return regime;
}

struct et_subject et_subject_of(const struct et_judge_input *input, int t)
{
    return (struct et_subject){
        .t = t,
        .problem = &input->job->steps[input->step].problem,
        .truth = input->truth,
        .checks = &input->c->checks,
        .arith = et_truth_arith(input->truth, &input->claim->arith),
        .regime = regime_of(input),
    };
}

bool et_has_statistics(const struct et_subject *s)
{
    return s->regime == ET_INDEPENDENT && !s->problem->op->bound_only;
}

int64_t et_lines(const struct et_subject *s)
{
    const struct et_operator *op = s->problem->op;
    return op->rows_across && s->truth->units > 0 ? op->unit(s->problem, s->truth->unit[0]).count : 0;
}

struct et_predicted et_predict(const struct et_subject *s, const struct et_unit *unit, int64_t u, int64_t k)
{
    const struct et_truth *truth = s->truth;
    const struct et_spread *spread =
        &truth->spread[truth->arith_count * truth->at[u] + s->arith * unit->count + k];
    struct et_predicted p = {
        .ref = truth->value[truth->at[u] + k], .common = spread->common, .drift = spread->drift};
    double bound = spread->worst;
    if (s->regime == ET_INDEPENDENT)
        bound = fmin(bound, 6 * sqrt(spread->variance) + spread->bias);
    else if (s->regime == ET_RECORDED)
        bound = fmin(bound, spread->likely + spread->bias);
    const enum et_dtype dtype = s->problem->tensor[s->t].dtype;
    const bool whole = s->problem->op->bound_only;
    const double last = whole ? 0 : 3 * 0x1p-24 * fabs(p.ref);
    const double store = et_half_ulp(dtype, fabs(p.ref) + bound + last);
    p.variance = spread->variance + spread->bias * spread->bias + store * store / 3 + last * last / 3;
    p.tolerance = bound + last + store;
    if (whole && spread->worst == 0) { /* the value rounded once, and no other */
        p.ref = (double)et_widen(dtype, et_narrow(dtype, p.ref));
        p.tolerance = 0;
    }
    return p;
}

double et_gain_weight(double ref2, double weighted)
{
    const double weight = ref2 * ref2 / weighted;
    return weight > 0 ? weight : 0; /* NaN: 0 / 0, or an infinite variance of nothing */
}

double et_undrifted(double pull, double drift)
{
    return pull - copysign(fmin(fabs(pull), drift), pull);
}

/* One output of one run. */
struct subject {
    struct et_subject of;
    struct et_output output;
};

static struct subject subject_of(const struct et_judge_input *input, int t)
{
    const struct et_problem *problem = &input->job->steps[input->step].problem;
    return (struct subject){et_subject_of(input, t), et_output_of(problem, &input->outputs[0], t)};
}

/* One element of a sampled unit, beside its truth. */
struct element {
    int64_t at;
    uint32_t bits;
    double ref, got;
    double err; /* got - ref; 0 where apart */
    double tolerance;
    double variance;      /* of err: everything predicted, the store included */
    double common, drift; /* as in struct et_predicted */
    bool apart;           /* rightly not finite, or at the end of the type's range: no part of any sum */
};

/* Where |ref| and its tolerance reach past the type's range, what overflow stores there is right. */
static bool is_apart(enum et_dtype dtype, double ref, double got, double tolerance)
{
    if (isnan(ref))
        return isnan(got);
    const struct et_format *format = et_format(dtype);
    const bool past = isinf(ref) || fabs(ref) + tolerance >= et_overflow(dtype);
    return past && got == copysign(format->infinite ? (double)INFINITY : format->max, ref);
}

/* Element k of sampled unit u. */
static struct element measure(const struct subject *s, const struct et_unit *unit, int64_t u, int64_t k)
{
    const enum et_dtype dtype = s->output.tensor->dtype;
    const struct et_predicted p = et_predict(&s->of, unit, u, k);
    struct element e = {.at = unit->at + k * unit->step,
                        .ref = p.ref,
                        .tolerance = p.tolerance,
                        .variance = p.variance,
                        .common = p.common,
                        .drift = p.drift};
    e.bits = et_output_bits(&s->output, e.at);
    e.got = (double)et_widen(dtype, e.bits);
    e.apart = is_apart(dtype, e.ref, e.got, e.tolerance);
    e.err = e.apart ? 0 : e.got - e.ref;
    return e;
}

double et_ratio(double err, double tolerance)
{
    const double r = fabs(err) / tolerance;
    if (isnan(r))
        return err == 0 ? 0 : (double)INFINITY;
    return r;
}

static void tell_element(struct et_tally *tally, const struct et_output *output, const struct element *e,
                         double tolerance)
{
    const enum et_dtype dtype = output->tensor->dtype;
    et_tell_place(tally, output, e->at);
    et_tell_more(tally, ": got %s, want %s, err %.3g, tolerance %.3g", et_show(dtype, e->got, e->bits).text,
                 et_show_value(dtype, e->ref).text, fabs(e->err), tolerance);
}

/* Sums over the elements of one row. */
struct row {
    int64_t count;
    double err2, ref2, variance;
    double variance2;     /* variance^2 */
    double cross;         /* err * ref */
    double weighted;      /* variance * ref^2 */
    double common, drift; /* the largest */
};

/* Of one output: over elements, and over rows with alpha = <err, ref> / <ref, ref> of each. */
struct sums {
    struct et_tally bound, allclose, noise;
    double err2, ref2, variance;
    double energy, energy_variance; /* of rows' errors, in units of what is predicted */
    double pull, weight;            /* alpha / var(alpha), 1 / var(alpha) */
    double drift;                   /* of alpha / var(alpha), what all rows may have alike */
    int64_t energy_rows, gain_rows;
    int64_t unbounded; /* elements without a finite tolerance */
};

static void judge_element(const struct subject *s, const struct element *e, struct sums *sums)
{
    const double headroom = et_ratio(e->err, e->tolerance);
    sums->unbounded += !e->apart && isinf(e->tolerance);
    if (et_tally_breaks(&sums->bound, headroom, headroom <= s->of.checks->bound))
        tell_element(&sums->bound, &s->output, e, s->of.checks->bound * e->tolerance);
    const double tolerance = s->of.checks->atol + s->of.checks->rtol * fabs(e->ref);
    const double part = et_ratio(e->err, tolerance);
    if (et_tally_breaks(&sums->allclose, part, part <= 1))
        tell_element(&sums->allclose, &s->output, e, tolerance);
}

static void add_element(struct row *row, const struct element *e)
{
    if (e->apart)
        return;
    const double ref2 = e->ref * e->ref;
    row->count++;
    row->err2 += e->err * e->err;
    row->ref2 += ref2;
    row->variance += e->variance;
    row->variance2 += e->variance * e->variance;
    row->cross += e->err * e->ref;
    row->weighted += e->variance * ref2;
    row->common = fmax(row->common, e->common);
    row->drift = fmax(row->drift, e->drift);
}

static double judge_noise(const struct subject *s, const struct row *row, int64_t first,
                          struct et_tally *tally)
{
    const double energy = et_ratio(row->err2, row->variance), limit = s->of.checks->noise;
    if (et_tally_breaks(tally, energy, energy <= limit)) {
        et_tell_more(tally, "row of ");
        et_tell_place(tally, &s->output, first);
        et_tell_more(tally, ": error energy is %.3g of the predicted, limit %.3g", energy, limit);
    }
    return energy;
}

/* A row that is an earlier one again says nothing new about means. */
static void add_row(const struct subject *s, const struct row *row, int64_t first, bool again,
                    struct sums *sums)
{
    sums->err2 += row->err2;
    sums->ref2 += row->ref2;
    sums->variance += row->variance;
    const double energy = row->count >= 16 ? judge_noise(s, row, first, &sums->noise) : 0;
    if (row->count >= 16 && !again) {
        /* 3 U^2, U uniform in [-1, 1], has variance 4/5; a row has variance^2 / variance2 of them at least */
        sums->energy += energy;
        sums->energy_variance += 0.8 * row->variance2 / (row->variance * row->variance);
        sums->energy_rows++;
    }
    /* alpha = cross / ref2, var(alpha) = weighted / ref2^2 */
    const double weighted = row->weighted + row->common * row->ref2 * row->ref2;
    const double weight = et_gain_weight(row->ref2, weighted);
    if (weight > 0 && !again) {
        sums->pull += row->cross * row->ref2 / weighted;
        sums->weight += weight;
        sums->drift += row->drift * weight;
        sums->gain_rows++;
    }
}

/* A unit's element at `line` of every unit, in place of a unit's elements, where rows run across. */
static void sum_across(const struct subject *s, int64_t line, struct sums *sums)
{
    struct row row = {0};
    int64_t first = 0;
    for (int64_t u = 0; u < s->of.truth->units; u++) {
        const struct et_unit unit = s->of.problem->op->unit(s->of.problem, s->of.truth->unit[u]);
        const struct element e = measure(s, &unit, u, line);
        judge_element(s, &e, sums);
        first = u == 0 ? e.at : first;
        /* A unit that is an earlier one again counts in no mean: it would count twice. */
        if (!s->of.truth->again[u])
            add_element(&row, &e);
    }
    add_row(s, &row, first, false, sums);
}

static void sum_up(const struct subject *s, struct sums *sums)
{
    const int64_t lines = et_lines(&s->of);
    for (int64_t line = 0; line < lines; line++)
        sum_across(s, line, sums);
    for (int64_t u = 0; lines == 0 && u < s->of.truth->units; u++) {
        const struct et_unit unit = s->of.problem->op->unit(s->of.problem, s->of.truth->unit[u]);
        if (unit.output != s->of.t)
            continue;
        struct row row = {0};
        for (int64_t k = 0; k < unit.count; k++) {
            const struct element e = measure(s, &unit, u, k);
            judge_element(s, &e, sums);
            add_element(&row, &e);
        }
        add_row(s, &row, unit.at, s->of.truth->again[u], sums);
    }
}

/* Without a reference to normalise by, there may be no error either. */
static struct et_finding nmse_finding(const struct subject *s, const struct sums *sums, double derived)
{
    const bool zero = sums->ref2 == 0;
    struct et_finding f = {
        .outcome = ET_HELD,
        .figure = et_ratio(sums->err2, zero ? 1 : sums->ref2),
        .limit = zero ? 0 : fmax(s->of.checks->nmse, derived),
    };
    if (derived >= 1) /* zeros would hold it */
        return et_skipped("the declared roundings leave no limit below the reference itself");
    if (f.figure > f.limit) {
        f.outcome = ET_BROKEN;
        snprintf(f.text, sizeof f.text, "%s: sum err^2 %.3g, sum ref^2 %.3g, nmse %.3g, limit %.3g",
                 s->output.spec->name, sums->err2, sums->ref2, f.figure, f.limit);
    }
    return f;
}

static double mean_energy(const struct sums *sums)
{
    return sums->energy_rows >= 16 ? sums->energy / (double)sums->energy_rows : 0;
}

/*
 * To a row's limit as 1.5 to 4; but where few large elements make up all the energy, a mean of honest rows
 * strays further: 6 standard deviations are let pass.
 */
static double mean_limit(const struct subject *s, const struct sums *sums)
{
    const double deviation = sqrt(sums->energy_variance) / (double)sums->energy_rows;
    return s->of.checks->noise / 4 * fmax(1.5, 1 + 6 * deviation);
}

static struct et_finding noise_finding(const struct subject *s, const struct sums *sums)
{
    const double mean = mean_energy(sums), limit = mean_limit(s, sums);
    struct et_finding f = et_tally_finding(&sums->noise, sums->noise.worst, s->of.checks->noise, "rows");
    if (f.outcome != ET_HELD || mean <= limit)
        return f;
    f = (struct et_finding){.outcome = ET_BROKEN, .figure = mean, .limit = limit};
    snprintf(f.text, sizeof f.text, "%s: mean error energy of %lld rows is %.3g of the predicted, limit %.3g",
             s->output.spec->name, (long long)sums->energy_rows, mean, limit);
    return f;
}

static struct et_finding gain_finding(const struct subject *s, const struct sums *sums)
{
    const double z = et_undrifted(sums->pull, sums->drift) / sqrt(sums->weight);
    struct et_finding f = {.outcome = ET_HELD, .figure = et_ratio(z, 1), .limit = s->of.checks->gain};
    if (f.figure > f.limit) {
        f.outcome = ET_BROKEN;
        snprintf(f.text, sizeof f.text,
                 "%s: coherent error of %.3g of the reference over %lld rows, z %.3g, limit %.3g",
                 s->output.spec->name, sums->pull / sums->weight, (long long)sums->gain_rows, z, f.limit);
    }
    return f;
}

static void report(struct et_judgement *judgement, enum et_check check, bool on, struct et_finding finding,
                   const char *prefix)
{
    if (on)
        et_finding_add(&judgement->check[check], &finding, prefix);
}

/* On structured data a depth of 1/u roundings and more bounds nothing: that is not "held". */
static struct et_finding bound_finding(const struct subject *s, const struct sums *sums)
{
    if (sums->unbounded > 0 && sums->bound.broken == 0)
        return et_skipped("the declared depth of roundings leaves no finite bound on structured data");
    return et_tally_finding(&sums->bound, sums->bound.worst, s->of.checks->bound, "elements");
}

static void judge_values(const struct subject *s, const char *prefix, struct et_judgement *judgement)
{
    const struct et_checks *checks = s->of.checks;
    struct sums sums = {0};
    sum_up(s, &sums);
    if (sums.bound.judged == 0)
        return;
    const double derived = sums.ref2 > 0 ? 4 * sums.variance / sums.ref2 : 0;
    judgement->headroom = fmax(judgement->headroom, sums.bound.worst);
    judgement->nmse_derived = fmax(judgement->nmse_derived, derived);
    const bool statistics = et_has_statistics(&s->of);
    if (statistics)
        judgement->noise_mean = fmax(judgement->noise_mean, mean_energy(&sums));
    report(judgement, ET_CHECK_NMSE, checks->nmse >= 0, nmse_finding(s, &sums, derived), prefix);
    report(judgement, ET_CHECK_BOUND, checks->bound >= 0, bound_finding(s, &sums), prefix);
    report(judgement, ET_CHECK_NOISE, checks->noise >= 0 && statistics, noise_finding(s, &sums), prefix);
    report(judgement, ET_CHECK_GAIN, checks->gain >= 0 && statistics && sums.gain_rows > 0,
           gain_finding(s, &sums), prefix);
    report(judgement, ET_CHECK_ALLCLOSE, checks->allclose,
           et_tally_finding(&sums.allclose, sums.allclose.worst, 1, "elements"), prefix);
}

static struct et_finding compare_replay(const struct subject *s, int order)
{
    const enum et_dtype dtype = s->output.tensor->dtype;
    const struct et_truth *truth = s->of.truth;
    const float *value = truth->replay + order * truth->at[truth->units];
    struct et_tally tally = {0};
    for (int64_t u = 0; u < truth->units; u++) {
        const struct et_unit unit = s->of.problem->op->unit(s->of.problem, truth->unit[u]);
        for (int64_t k = 0; unit.output == s->of.t && k < unit.count; k++) {
            const int64_t at = unit.at + k * unit.step;
            const uint32_t got = et_canonical(dtype, et_output_bits(&s->output, at));
            const uint32_t want = et_narrow(dtype, (double)value[truth->at[u] + k]);
            if (!et_tally_breaks(&tally, 0, got == want))
                continue;
            et_tell_place(&tally, &s->output, at);
            et_tell_more(&tally, ": got %s, replay %s", et_show_bits(dtype, got).text,
                         et_show_bits(dtype, want).text);
        }
    }
    return et_tally_bytes(&tally);
}

static const char flushed[] = "probe: subnormal numbers, which the replay met, differ on this device";

/* Numbers that the replay met are not computed as in C on this device. */
static bool is_flushed(const struct subject *s, const struct et_judge_input *input)
{
    const int order = et_truth_order(s->of.truth, &input->claim->order);
    return order >= 0 && s->of.truth->met[order].subnormal && input->device->probed &&
           !input->device->exact_subnormal;
}

enum et_fill_kind et_exact_fill(const struct et_case *c, int step, enum et_fill_kind fill)
{
    enum et_fill_kind common = ET_FILLS;
    for (int t = 0; c->op->tensors[t].name; t++) {
        const struct et_data *d = &c->steps[step].data[t];
        if (c->op->tensors[t].role != ET_INPUT)
            continue;
        const enum et_fill_kind kind = d->given ? d->fill.kind : fill;
        /* A view has the other's data: whether that is exact, only one that looks into shapes knows. */
        if (c->layout[t].view_of && c->op->takes)
            continue;
        if (c->layout[t].view_of || (d->given && d->kind != ET_DATA_FILL) || !et_fill_is_exact(kind) ||
            (common != ET_FILLS && kind != common))
            return ET_FILLS;
        common = kind;
    }
    return common;
}

/* Digits that all partial sums of an exact fill have room in. */
static int exact_digits(const struct et_problem *problem)
{
    int digits = et_format(ET_F32)->digits;
    for (int t = 0; problem->op->tensors[t].name; t++)
        if (problem->op->tensors[t].role == ET_OUTPUT && et_format(problem->tensor[t].dtype)->digits < digits)
            digits = et_format(problem->tensor[t].dtype)->digits;
    return digits;
}

/* The declared type that results pass through and that has the fewest digits. */
static enum et_dtype narrowest(const struct et_arith *arith)
{
    enum et_dtype least = arith->sum;
    const enum et_dtype others[] = {arith->product, arith->partial};
    for (int i = 0; i < 2; i++)
        least = et_format(others[i])->digits < et_format(least)->digits ? others[i] : least;
    return least;
}

bool et_exact_covers(const struct et_problem *problem, const struct et_arith *arith)
{
    return et_format(narrowest(arith))->digits >= exact_digits(problem);
}

/* ": that is V of position 12, KV head 0, in place of V of position 13, KV head 0" */
static void tell_name(const struct subject *s, const struct et_unit *unit, int64_t u, struct et_tally *tally)
{
    const struct et_operator *op = s->of.problem->op;
    double *got = op->names ? et_alloc((size_t)unit->count, sizeof *got, NULL) : NULL;
    char is[80], want[80];
    for (int64_t k = 0; got && k < unit->count; k++)
        got[k] =
            (double)et_widen(s->output.tensor->dtype, et_output_bits(&s->output, unit->at + k * unit->step));
    if (got && op->names(s->of.problem, s->of.truth->unit[u], got, is, sizeof is) &&
        op->names(s->of.problem, s->of.truth->unit[u], s->of.truth->value + s->of.truth->at[u], want,
                  sizeof want))
        et_tell_more(tally, ": this is %s, in place of %s", is, want);
    et_free(got);
}

/* No order of additions is claimed or assumed: there is only one result. */
static struct et_finding judge_exact(const struct subject *s, const struct et_judge_input *input)
{
    const enum et_dtype dtype = s->output.tensor->dtype, least = narrowest(&input->claim->arith);
    const struct et_truth *truth = s->of.truth;
    struct et_tally tally = {0};
    if (!et_exact_covers(s->of.problem, &input->claim->arith)) {
        char why[200];
        snprintf(why, sizeof why, "%s, which the claim rounds to, has %d digits, and the fill needs %d",
                 et_format(least)->name, et_format(least)->digits, exact_digits(s->of.problem));
        return et_skipped(why);
    }
    for (int64_t u = 0; u < truth->units; u++) {
        const struct et_unit unit = s->of.problem->op->unit(s->of.problem, truth->unit[u]);
        for (int64_t k = 0; unit.output == s->of.t && k < unit.count; k++) {
            const int64_t at = unit.at + k * unit.step;
            const double want = truth->value[truth->at[u] + k];
            const uint32_t got = et_canonical(dtype, et_output_bits(&s->output, at));
            if (!et_tally_breaks(&tally, 0, got == et_narrow(dtype, want)))
                continue;
            et_tell_place(&tally, &s->output, at);
            et_tell_more(&tally, ": got %s, exactly %s", et_show_bits(dtype, got).text,
                         et_show_value(dtype, want).text);
            tell_name(s, &unit, u, &tally);
        }
    }
    return et_tally_bytes(&tally);
}

/* Bytes are promised where the device computes as C does, on the numbers that the replay met. */
static struct et_finding judge_replay(const struct subject *s, const struct et_judge_input *input)
{
    const struct et_order *claimed = &input->claim->order;
    const struct et_device *device = input->device;
    const int order = et_truth_order(s->of.truth, claimed);
    char why[400];
    if (order < 0 || !s->of.truth->replayed[order])
        snprintf(why, sizeof why, "%s has no replay of order %s", s->of.problem->op->name, claimed->name);
    else if (!device->probed || !device->exact)
        snprintf(why, sizeof why, "probe: %s", device->probe[0] ? device->probe : "was not run");
    else if (is_flushed(s, input))
        snprintf(why, sizeof why, "%s", flushed);
    else
        return compare_replay(s, order);
    return et_skipped(why);
}

static void judge_output(const struct et_judge_input *input, int t, const char *prefix,
                         struct et_judgement *judgement)
{
    const struct subject s = subject_of(input, t);
    if (s.of.arith < 0) {
        struct et_finding f = {.outcome = ET_BROKEN, .figure = NAN, .limit = NAN};
        snprintf(f.text, sizeof f.text, "%s: no truth was made for the claimed arithmetic",
                 s.output.spec->name);
        et_finding_add(&judgement->check[ET_CHECK_BOUND], &f, prefix);
        return;
    }
    if (is_flushed(&s, input)) /* no tolerance has a term for what is flushed */
        report(judgement, ET_CHECK_BOUND, input->c->checks.bound >= 0, et_skipped(flushed), prefix);
    else
        judge_values(&s, prefix, judgement);
    if (et_exact_fill(input->c, input->step, input->fill) != ET_FILLS)
        report(judgement, ET_CHECK_EXACT, input->c->checks.exact, judge_exact(&s, input), prefix);
    const bool ordered = strcmp(input->claim->order.name, "none") != 0;
    report(judgement, ET_CHECK_REPLAY, input->c->checks.replay && ordered, judge_replay(&s, input), prefix);
}

/* Texts name the step where there are several. */
static void name_step(const struct et_judge_input *input, char prefix[32])
{
    prefix[0] = '\0';
    if (input->c->step_count > 1)
        snprintf(prefix, 32, "step %d: ", input->step);
}

void et_judge(const struct et_judge_input *input, struct et_judgement *judgement)
{
    const struct et_checks *checks = &input->c->checks;
    const struct et_operator *op = input->c->op;
    char prefix[32];
    name_step(input, prefix);
    for (int t = 0; op->tensors[t].name; t++)
        if (op->tensors[t].role == ET_OUTPUT)
            judge_output(input, t, prefix, judgement);
    report(judgement, ET_CHECK_REPEAT, checks->repeat > 1, et_judge_repeat(input), prefix);
    report(judgement, ET_CHECK_WRITTEN, checks->written, et_judge_written(input), prefix);
    report(judgement, ET_CHECK_GUARDS, checks->guards, et_judge_guards(input), prefix);
    report(judgement, ET_CHECK_INPUTS_KEPT, checks->inputs_kept, et_judge_inputs_kept(input), prefix);
    report(judgement, ET_CHECK_EXPECT, checks->expect, et_judge_expect(input), prefix);
    for (int i = 0; i < ET_CHECKS; i++)
        if (judgement->check[i].outcome == ET_NOT_RUN)
            judgement->check[i].figure = judgement->check[i].limit = NAN;
}

/* What is right at the end of the range is each run's own affair: it has no distance. */
static bool comparable(const struct element *a, const struct element *b)
{
    return isfinite(a->ref) ? !a->apart && !b->apart : !a->apart || !b->apart;
}

static struct et_finding agreement(const struct subject *a, const struct subject *b, const char *name_b)
{
    const double limit = a->of.checks->agrees;
    const enum et_dtype dtype = a->output.tensor->dtype;
    struct et_tally tally = {0};
    for (int64_t u = 0; u < a->of.truth->units; u++) {
        const struct et_unit unit = a->of.problem->op->unit(a->of.problem, a->of.truth->unit[u]);
        for (int64_t k = 0; unit.output == a->of.t && k < unit.count; k++) {
            const struct element x = measure(a, &unit, u, k), y = measure(b, &unit, u, k);
            const double tolerance = x.tolerance + y.tolerance;
            const double part = comparable(&x, &y) ? et_ratio(x.got - y.got, tolerance) : 0;
            if (!et_tally_breaks(&tally, part, part <= limit))
                continue;
            et_tell_place(&tally, &a->output, x.at);
            et_tell_more(&tally, ": %s, but %s of %s, tolerance %.3g", et_show_bits(dtype, x.bits).text,
                         et_show_bits(dtype, y.bits).text, name_b, limit * tolerance);
        }
    }
    return et_tally_finding(&tally, tally.worst, limit, "elements");
}

void et_judge_agrees(const struct et_judge_input *a, const struct et_judge_input *b, const char *name_b,
                     struct et_finding *finding)
{
    const struct et_operator *op = a->c->op;
    char prefix[32];
    name_step(a, prefix);
    for (int t = 0; op->tensors[t].name; t++) {
        if (op->tensors[t].role != ET_OUTPUT || a->c->checks.agrees < 0)
            continue;
        const struct subject x = subject_of(a, t), y = subject_of(b, t);
        const struct et_finding f = agreement(&x, &y, name_b);
        et_finding_add(finding, &f, prefix);
    }
}
