/* Teeth: how large wrong answers would be in units of each check's limit, from the truth alone. */
#include "finding.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NMSE, BOUND, NOISE, GAIN, ALLCLOSE };

const enum et_check et_tooth_checks[ET_TOOTH_CHECKS] = {
    [NMSE] = ET_CHECK_NMSE, [BOUND] = ET_CHECK_BOUND,       [NOISE] = ET_CHECK_NOISE,
    [GAIN] = ET_CHECK_GAIN, [ALLCLOSE] = ET_CHECK_ALLCLOSE,
};

/* What the right answer adds up to, over the finite elements of all sampled rows. */
struct total {
    int64_t count;
    double ref, ref2, variance, weight;
    double drift; /* of a sum of pulls, what the right answer may have */
    bool only;    /* zeros, and nothing that adds up to them: no other answer is near */
};

/* Wrong answers of any of these have an error that is known for each element of a row. */
enum wrong { SCALE, ZEROS, MEAN, LIE };

/* One wrong answer, over one row or over all. */
struct damage {
    double err2, bound, noise, pull, part;
    bool noisy; /* a row was long enough for `noise` */
};

static struct et_unit unit_of(const struct et_subject *s, int64_t u)
{
    return s->problem->op->unit(s->problem, s->truth->unit[u]);
}

/* A row of the statistics: sampled units [from, to), each with its elements [first, last). */
struct line {
    int64_t from, to, first, last;
};

static int64_t lines_of(const struct et_subject *s)
{
    const int64_t across = et_lines(s);
    return across > 0 ? across : s->truth->units;
}

static struct line line_of(const struct et_subject *s, int64_t i)
{
    if (et_lines(s) > 0)
        return (struct line){0, s->truth->units, i, i + 1};
    const struct et_unit unit = unit_of(s, i);
    return (struct line){i, i + 1, 0, unit.output == s->t ? unit.count : 0};
}

/* What the right answer has of a line. */
struct right {
    int64_t count;
    double ref2, weighted, variance, common, drift;
};

static void add_right(const struct et_subject *s, int64_t u, const struct et_predicted *p,
                      struct right *right)
{
    if (et_lines(s) > 0 && s->truth->again[u])
        return;
    right->count++;
    right->ref2 += p->ref * p->ref;
    right->weighted += p->variance * p->ref * p->ref;
    right->variance += p->variance;
    right->common = fmax(right->common, p->common);
    right->drift = fmax(right->drift, p->drift);
}

/* ref2^2 times the variance of the line's relative error: docs/checks.md, "gain". */
static double uncertain(const struct right *right)
{
    return right->weighted + right->common * right->ref2 * right->ref2;
}

/* A line that is an earlier one again says nothing new about means. */
static bool is_again(const struct et_subject *s, const struct line *line)
{
    return et_lines(s) == 0 && s->truth->again[line->from];
}

static struct total total_of(const struct et_subject *s)
{
    const double least = et_half_ulp(s->problem->tensor[s->t].dtype, 0);
    struct total total = {.only = true};
    for (int64_t i = 0; i < lines_of(s); i++) {
        const struct line line = line_of(s, i);
        struct right right = {0};
        for (int64_t u = line.from; u < line.to; u++) {
            const struct et_unit unit = unit_of(s, u);
            for (int64_t k = line.first; k < line.last; k++) {
                const struct et_predicted p = et_predict(s, &unit, u, k);
                if (!isfinite(p.ref))
                    continue;
                total.count++;
                total.only = total.only && p.ref == 0 && p.tolerance <= least;
                total.ref += p.ref;
                total.variance += p.variance;
                total.ref2 += p.ref * p.ref;
                add_right(s, u, &p, &right);
            }
        }
        const double weight = is_again(s, &line) ? 0 : et_gain_weight(right.ref2, uncertain(&right));
        total.weight += weight;
        total.drift += right.drift * weight;
    }
    return total;
}

static double delta_of(enum wrong wrong, double ref, double mean, double lie)
{
    return wrong == SCALE ? 0.01 * ref : wrong == ZEROS ? -ref : wrong == MEAN ? mean - ref : lie;
}

/* A lie is told by unit `liar` alone. */
static struct damage damage_of(const struct et_subject *s, const struct line *line, enum wrong wrong,
                               double mean, const double *lie, int64_t liar)
{
    struct damage row = {0};
    struct right right = {0};
    double cross = 0, err2 = 0;
    for (int64_t u = line->from; u < line->to; u++) {
        const struct et_unit unit = unit_of(s, u);
        for (int64_t k = line->first; k < line->last; k++) {
            const struct et_predicted p = et_predict(s, &unit, u, k);
            const double delta = delta_of(wrong, p.ref, mean, lie && u == liar ? lie[k] : 0);
            if (!isfinite(p.ref))
                continue;
            row.err2 += delta * delta;
            row.bound = fmax(row.bound, et_ratio(delta, p.tolerance));
            row.part = fmax(row.part, et_ratio(delta, s->checks->atol + s->checks->rtol * fabs(p.ref)));
            add_right(s, u, &p, &right);
            if (et_lines(s) > 0 && s->truth->again[u])
                continue;
            cross += delta * p.ref;
            err2 += delta * delta;
        }
    }
    row.noisy = right.count >= 16;
    row.noise = row.noisy ? et_ratio(err2, right.variance) : 0;
    const bool counts = !is_again(s, line) && et_gain_weight(right.ref2, uncertain(&right)) > 0;
    row.pull = counts ? cross * right.ref2 / uncertain(&right) : 0;
    return row;
}

static void add_damage(struct damage *all, const struct damage *row)
{
    all->err2 += row->err2;
    all->pull += row->pull;
    all->bound = fmax(all->bound, row->bound);
    all->noise = fmax(all->noise, row->noise);
    all->part = fmax(all->part, row->part);
    all->noisy = all->noisy || row->noisy;
}

static void size_up(const struct et_subject *s, const struct total *total, const struct damage *damage,
                    double size[ET_TOOTH_CHECKS])
{
    const struct et_checks *checks = s->checks;
    const bool statistics = et_has_statistics(s);
    for (int i = 0; i < ET_TOOTH_CHECKS; i++)
        size[i] = (double)NAN;
    if (checks->nmse >= 0)
        size[NMSE] = et_ratio(damage->err2, fmax(checks->nmse * total->ref2, 4 * total->variance));
    if (checks->nmse >= 0 && total->ref2 == 0)
        size[NMSE] = et_ratio(damage->err2, 0);
    if (checks->bound >= 0)
        size[BOUND] = et_ratio(damage->bound, checks->bound);
    if (checks->noise >= 0 && statistics && damage->noisy)
        size[NOISE] = et_ratio(damage->noise, checks->noise);
    if (checks->gain >= 0 && statistics && total->weight > 0)
        size[GAIN] = et_ratio(et_undrifted(damage->pull, total->drift) / sqrt(total->weight), checks->gain);
    if (checks->allclose)
        size[ALLCLOSE] = damage->part;
}

/* One that all rows of an output have at once. */
static void everywhere(const struct et_subject *s, const struct total *total, enum wrong wrong,
                       double size[ET_TOOTH_CHECKS])
{
    struct damage all = {0};
    for (int64_t i = 0; i < lines_of(s); i++) {
        const struct line line = line_of(s, i);
        const struct damage row = damage_of(s, &line, wrong, total->ref / (double)total->count, NULL, -1);
        add_damage(&all, &row);
    }
    size_up(s, total, &all, size);
}

/* One that a single row has: the edge row that shows it least. False where no row can have it. */
static bool in_one_row(const struct et_subject *s, const struct total *total, int lie,
                       double size[ET_TOOTH_CHECKS])
{
    const struct et_truth *truth = s->truth;
    bool any = false;
    for (int64_t u = 0; u < truth->units; u++) {
        const struct et_unit unit = unit_of(s, u);
        const double *delta = truth->lie + truth->at[u] * truth->lie_count + lie * unit.count;
        if (unit.output != s->t || unit.count == 0 || isnan(delta[0]))
            continue;
        double row[ET_TOOTH_CHECKS];
        struct damage damage = {0};
        for (int64_t i = 0; i < lines_of(s); i++) {
            const struct line line = line_of(s, i);
            if (u < line.from || u >= line.to)
                continue;
            const struct damage part = damage_of(s, &line, LIE, 0, delta, u);
            add_damage(&damage, &part);
        }
        size_up(s, total, &damage, row);
        for (int i = 0; i < ET_TOOTH_CHECKS; i++)
            size[i] = any ? fmin(size[i], row[i]) : row[i];
        any = true;
    }
    return any;
}

/* Of several outputs the one that shows it most. */
static void add_tooth(struct et_teeth *teeth, const char *name, bool whole,
                      const double size[ET_TOOTH_CHECKS])
{
    int i = 0;
    while (i < teeth->count && strcmp(teeth->at[i].name, name) != 0)
        i++;
    struct et_tooth *tooth = &teeth->at[i];
    if (i == teeth->count) {
        *tooth = (struct et_tooth){.name = name, .whole = whole};
        memcpy(tooth->size, size, sizeof tooth->size);
        teeth->count++;
    }
    for (int k = 0; k < ET_TOOTH_CHECKS; k++)
        tooth->size[k] = fmax(tooth->size[k], size[k]);
}

double et_tooth_largest(const struct et_tooth *tooth, enum et_check *check)
{
    double most = 0;
    *check = ET_CHECKS;
    for (int i = 0; i < ET_TOOTH_CHECKS; i++)
        if (!isnan(tooth->size[i]) && (*check == ET_CHECKS || tooth->size[i] > most)) {
            most = tooth->size[i];
            *check = et_tooth_checks[i];
        }
    return most;
}

static void tell_tooth(struct et_teeth *teeth, const struct et_tooth *tooth, const char *before)
{
    enum et_check check;
    const double size = et_tooth_largest(tooth, &check);
    const size_t n = strlen(teeth->blind);
    if (check == ET_CHECKS)
        snprintf(teeth->blind + n, sizeof teeth->blind - n, "%s%s is seen by no check", before, tooth->name);
    else
        snprintf(teeth->blind + n, sizeof teeth->blind - n, "%s%s is %.2g of the limit of %s", before,
                 tooth->name, size, et_check_name(check));
}

/* Every slip is too small to see; or, on random data, another function altogether is. */
static void find_blind(struct et_teeth *teeth, bool random)
{
    enum et_check check;
    bool seen = false;
    for (int i = 0; i < teeth->count; i++)
        seen = seen || (!teeth->at[i].whole && et_tooth_largest(&teeth->at[i], &check) >= 1);
    for (int i = 0; i < teeth->count; i++) {
        const struct et_tooth *tooth = &teeth->at[i];
        const bool hidden = et_tooth_largest(tooth, &check) < 1;
        if (hidden && (tooth->whole ? random : !seen))
            tell_tooth(teeth, tooth, teeth->blind[0] ? ", " : "these data could not have told: ");
    }
}

static void bite(const struct et_subject *s, const struct total *total, struct et_teeth *teeth)
{
    const struct et_lie *lies = s->problem->op->lies;
    double size[ET_TOOTH_CHECKS];
    for (int k = 0; k < s->truth->lie_count; k++)
        if (in_one_row(s, total, k, size))
            add_tooth(teeth, lies[k].name, lies[k].whole, size);
    everywhere(s, total, SCALE, size);
    add_tooth(teeth, "scale", false, size);
    everywhere(s, total, ZEROS, size);
    add_tooth(teeth, "zeros", true, size);
    everywhere(s, total, MEAN, size);
    if (total->count > 1) /* one element is its own mean */
        add_tooth(teeth, "mean", true, size);
}

static bool has_several_outputs(const struct et_operator *op)
{
    int outputs = 0;
    for (int t = 0; op->tensors[t].name; t++)
        outputs += op->tensors[t].role == ET_OUTPUT;
    return outputs > 1;
}

/* Each output has to be told from wrong ones by itself: none vouches for another. */
void et_teeth_of(const struct et_judge_input *input, struct et_teeth *teeth)
{
    const struct et_operator *op = input->c->op;
    const bool several = has_several_outputs(op);
    *teeth = (struct et_teeth){0};
    for (int t = 0; op->tensors[t].name; t++) {
        const struct et_subject s = et_subject_of(input, t);
        if (op->tensors[t].role != ET_OUTPUT || s.arith < 0)
            continue;
        const struct total total = total_of(&s);
        if (total.count == 0)
            continue;
        struct et_teeth own = {0};
        bite(&s, &total, &own);
        for (int i = 0; i < own.count; i++)
            add_tooth(teeth, own.at[i].name, own.at[i].whole, own.at[i].size);
        if (total.only || teeth->blind[0])
            continue;
        find_blind(&own, s.regime == ET_INDEPENDENT);
        if (own.blind[0])
            snprintf(teeth->blind, sizeof teeth->blind, "%s%s%s", several ? op->tensors[t].name : "",
                     several ? ": " : "", own.blind);
    }
}

bool et_judged_by_bytes(const struct et_judgement *judgement)
{
    return judgement->check[ET_CHECK_REPLAY].outcome == ET_HELD ||
           judgement->check[ET_CHECK_EXACT].outcome == ET_HELD ||
           judgement->check[ET_CHECK_EXPECT].outcome == ET_HELD;
}
