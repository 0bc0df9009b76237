/*
 * How far from flash_attn's oracle an honest implementation may be: docs/operators/flash_attn.md,
 * "Tolerance".
 *
 * Four things go wrong in a row. Each score is off by some delta, which moves the output by p (e^delta - 1)
 * (v - out); each weight is rounded to the type that it is stored as; two sums, of weights and of weighted
 * values, are rounded; and what is small beside a running sum, or too small for its type, is lost. The
 * variance takes all roundings as independent, `worst` none, `likely` those of one chain.
 *
 * p, s, m: the weight and the score of a key, and the largest score; with u = 2^-24:
 *
 *     var(delta) = u^2/3 (sech^4 (Dk (raw^2 + scale^2 sum (q k)^2) + 2 raw^2) + (s - m)^2 + 4
 *                         + 9 capped^2 + s^2 + addend^2)      the last: with softcap, with a mask
 *     variance   = sum (v - out)^2 times swing(), of var(delta) and stretch()
 *                + stretch_weights() sum r (|v| + |out|)^2 + u^2/3 n (2 out^2 + sum p^2 v^2)
 *     r          = u_P^2/3 p^2 + eta_P^2/3 / l^2; 0 where s = m: e^0 is 1 in every type
 *     bias       = |out| sum of p < u + sum of p |v| < u sum p |v|
 *                + sum of p (|v| + |out|), p l < eta_P
 *     common     = u_P^2/3 sum p^2 + u^2 n + (sum of p, p < u or p l < eta_P)^2
 *     drift      = u_P^2/4 sum p
 *
 * A sink is a term of each sum whose v is 0; n is the number of terms less one: the first is added to 0.
 * Hence one key alone has no variance. drift: of numbers over many binades rounding is off by -u^2 / (8 ln 2)
 * of them on average. Within a binade errors cancel as far as the density f is smooth; at an edge e the unit
 * doubles, which leaves -f(e) u^2 e^2 / 8, and there is an edge every ln 2 of ln e.
 */
#include "flash_attn.h"

#include <math.h>

static const double u32 = 0x1p-24;
static const double least = 0x1p-126; /* et_exp and et_div flush below it */

static double square(double x)
{
    return x * x;
}

/* Unit roundoff of a type that numbers are rounded to over and above f32's own roundings. */
static double unit_of(enum et_dtype type)
{
    return type == ET_F32 ? 0 : et_format(type)->unit;
}

/* The relative error of n roundings of u one after the other: any, or independent ones. */
static double chain(double n, double u, bool independent)
{
    if (independent)
        return 6 * u * sqrt(n / 3);
    return n * u < 1 ? n * u / (1 - n * u) : INFINITY;
}

/* 0 times anything is 0. */
static double times(double a, double b)
{
    return a == 0 || b == 0 ? 0 : a * b;
}

/* What the key's score depends on, of every key alike. */
struct scoring {
    const struct et_arith *arith;
    double dim, scale, cap, slope_error; /* of the slope, in u */
    bool masked;
};

static struct scoring scoring_of(const struct et_problem *problem, const struct et_arith *arith)
{
    const struct et_flash_attn *p = problem->params;
    return (struct scoring){.arith = arith,
                            .dim = (double)p->head_dim,
                            .scale = (double)et_fa_scale(p),
                            .cap = (double)(float)p->softcap,
                            .slope_error = (float)p->max_bias > 0 ? 6 : 0,
                            .masked = p->mask != ET_MASK_NONE};
}

/* 1 / cosh^2: softcap's slope. */
static double sech2(double x)
{
    return 1 / square(cosh(fmin(fabs(x), 300)));
}

/* Variance of a key's delta. */
static double score_variance(const struct scoring *s, const struct et_fa_key *key, double most)
{
    const double squares = square(s->scale) * key->squares, product = unit_of(s->arith->product);
    const double query = unit_of(s->arith->query);
    double dot = square(u32) * (s->dim * (square(key->raw) + squares) + 2 * square(key->raw)) +
                 (square(query) + square(product)) * squares;
    double rest = square(key->score - most) + 4;
    if (query > 0)
        dot += square(s->scale * et_half_ulp(s->arith->query, 0)) * key->k_squares;
    if (s->cap > 0) {
        dot *= square(sech2(key->raw / s->cap));
        rest += 9 * square(key->capped);
    }
    if (s->masked)
        rest += square(key->score) + square(key->addend);
    return (dot + square(u32) * rest) / 3;
}

/*
 * The share of that variance, of q's rounding, which would be one channel's if that alone had the fourth
 * powers: the root of the sum of the squares of channels' variances. All keys have q's errors in common.
 */
static double shared_of(const struct scoring *s, const struct et_fa_key *key, double variance)
{
    const double slope = s->cap > 0 ? sech2(key->raw / s->cap) : 1;
    const double shared = square(unit_of(s->arith->query) * s->scale * slope) * sqrt(key->fourths) / 3;
    return shared > 0 ? shared / variance : 0;
}

/*
 * How far a key's score may be off: dot product, scale; softcap's quotient (half an ulp), tanh (2 ulp) and
 * product; the slope (3 ulp) and the sum with the mask.
 */
static double score_error(const struct scoring *s, const struct et_fa_key *key, bool independent)
{
    const double query = unit_of(s->arith->query);
    const double gamma =
        (1 + chain(s->arith->depth_qk, u32, independent)) * (1 + query) * (1 + unit_of(s->arith->product)) -
        1;
    double error = times(gamma, s->scale * key->sizes) + 0x1p-149 * (s->scale * s->dim + 1);
    if (query > 0)
        error += s->scale * et_half_ulp(s->arith->query, 0) * key->k_sizes;
    error += u32 * (fabs(key->raw) + error);
    if (s->cap > 0) {
        error += u32 * (fabs(key->raw) + error);
        error *= sech2(fmax(0, fabs(key->raw) - error) / s->cap);
        error = fmin(error, 2 * s->cap);
        error += 5.001 * u32 * fmin(s->cap, fabs(key->capped) + error) + s->cap * least;
    }
    if (s->masked) {
        error += s->slope_error * u32 * fabs(key->addend);
        error += u32 * (fabs(key->score) + error);
    }
    return error;
}

/* p (e^delta - 1) for delta up to `error`: always finite. */
static double drift(double p, double log_p, double error)
{
    return error < 1 ? p * expm1(error) : exp(fmin(log_p + error, 700));
}

/*
 * The variance of p where that of its score's error is `by` times as large: a quarter of the square of the
 * change that an error of two deviations makes, as `noise` lets a row have 4 times the energy predicted. That
 * is p times the error, magnified as e^x - 1 magnifies x. Softmax sees no error that all scores share, so
 * what it magnifies is the difference to the mean error, of variance `mean`; beside a heavy key of large
 * error that is the larger. Out moves by (v - out) of 1 at most where the key takes all, of p / (1 - p) where
 * it loses all.
 */
static double swing(const struct et_fa_seen *seen, const struct et_fa_key *key, double mean, double by)
{
    const double log_p = key->score - seen->most - log(seen->total), own = key->variance;
    const double magnified = fmax(own, own * (1 - 2 * key->p) + mean);
    const double most = fmax(1, key->p / fmax(1 - key->p, 0x1p-53));
    if (own == 0)
        return 0;
    const double error = 2 * sqrt(by * magnified);
    const double change =
        drift(key->p, log_p, error) - (error < 1 ? 0 : key->p); /* drift leaves out the -1 */
    return square(fmin(most, sqrt(own / magnified) * change)) / 4;
}

/* What weights alone say of a row. */
struct whole {
    double scores, pulls; /* sums of variances of what scores and rounded weights do, as `common` has them */
    double rounded;       /* sum of u_P^2 p^2 of the weights that are rounded */
    double inexact;       /* sum of these weights */
    double stagnant;      /* sum of weights below u */
    double lost;          /* of those and of the flushed */
    double terms;         /* added to others */
    double shrink;        /* how small the sum of weights may be, of what it is */
    double sink_drift, sink_variance;
    double stretch; /* of the variance of rounded weights */
};

/* Three times the variance of a weight, as it is rounded to its type. */
static double rounding(const struct et_fa_seen *seen, const struct et_arith *arith,
                       const struct et_fa_key *key)
{
    const double eta = fmax(least, et_half_ulp(arith->weight, 0)) / seen->total;
    return key->score < seen->most ? square(unit_of(arith->weight) * key->p) + square(eta) : 0;
}

static bool is_flushed(const struct et_fa_seen *seen, const struct et_arith *arith,
                       const struct et_fa_key *key)
{
    return key->p * seen->total < fmax(least, et_half_ulp(arith->weight, 0));
}

/* Sets variance and drift of every key. */
static struct whole weigh(const struct et_problem *problem, const struct et_fa_seen *seen,
                          const struct et_arith *arith, bool independent)
{
    const struct scoring scoring = scoring_of(problem, arith);
    const double u = et_format(arith->sum)->unit, log_total = log(seen->total);
    /* Rescales, each of an exponential within an ulp, and that of the weight itself. */
    const double exps = chain(2 * (arith->tiles + 2.0), u32, independent);
    struct whole w = {.terms = (double)seen->count - 1 + (seen->sink > -INFINITY)};
    double top = 0, over = 0; /* how far the largest score may be below, and above, what it is */
    for (int64_t i = 0; i < seen->count; i++) {
        struct et_fa_key *key = &seen->key[i];
        key->drift = score_error(&scoring, key, independent);
        over = fmax(over, key->score + key->drift - seen->most);
        if (key->score == seen->most)
            top = fmax(top, key->drift);
    }
    top = fmax(top, over);
    for (int64_t i = 0; i < seen->count; i++) {
        struct et_fa_key *key = &seen->key[i];
        const double below = seen->most - key->score;
        const double error = key->drift + u32 * (below + key->drift + top) + exps;
        key->variance = score_variance(&scoring, key, seen->most);
        key->shared = shared_of(&scoring, key, key->variance);
        key->drift = drift(key->p, -below - log_total, error);
        w.shrink += times(key->p, exp(-error));
        w.rounded += below > 0 ? square(unit_of(arith->weight) * key->p) : 0;
        w.inexact += below > 0 ? key->p : 0;
        w.pulls += rounding(seen, arith, key) * fmax(square(key->pull), square(1 + key->pull));
        w.stagnant += key->p < u ? key->p : 0;
        w.lost += key->p < u || is_flushed(seen, arith, key) ? key->p : 0;
    }
    if (seen->sink > -INFINITY) {
        const double below = seen->most - seen->sink, error = u32 * (below + top) + exps;
        w.sink_variance = square(seen->sink_p * u32) / 3 * (square(below) + 4);
        w.sink_drift = drift(seen->sink_p, -below - log_total, error);
        w.shrink += times(seen->sink_p, exp(-error));
    }
    return w;
}

/*
 * From the variance of scores' errors to that of weights. Few errors that a whole row depends on, many
 * roundings each, exceed 4 times the energy predicted too often: of n of them, normal, energy deviates from
 * its mean by sqrt(2 / n) of it. Room is made for 6 such deviations; from n = 8 on there is.
 * Errors of q are the same in all keys. The products of two keys' errors, which the variance leaves out, add
 * sum of s s' e e' over pairs to sum e^2 for their scatter, and as much again for their mean, k being of
 * independent signs; s: `shared`, and values taken for parallel.
 */
static void stretch(const struct et_fa_seen *seen, struct whole *w)
{
    double sum = w->sink_variance * seen->energy, squares = square(sum), shared = 0, mean = 0;
    for (int64_t i = 0; i < seen->count; i++)
        mean += square(seen->key[i].p) * seen->key[i].variance;
    for (int64_t i = 0; i < seen->count; i++) {
        const double energy = swing(seen, &seen->key[i], mean, 1) * seen->key[i].apart;
        sum += energy;
        squares += square(energy) - 2 * square(seen->key[i].shared * energy);
        shared += seen->key[i].shared * energy;
    }
    squares += 2 * square(shared);
    const double by = sum > 0 ? fmax(1, (1 + 6 * sqrt(2 * squares) / sum) / 4) : 1;
    w->sink_variance *= by;
    for (int64_t i = 0; i < seen->count; i++) {
        struct et_fa_key *key = &seen->key[i];
        key->variance = swing(seen, key, mean, by);
        w->scores += square(key->pull) * key->variance;
    }
}

/* Sums over the keys, of each channel: an array each. */
struct sums {
    double *scores;   /* (v - out)^2 times the variance of p */
    double *rounded;  /* 3 r (|v| + |out|)^2 */
    double *strayed;  /* 3 r v^2 or (v - out)^2, the larger: what rounding a weight does to it */
    double *squares;  /* p^2 v^2 */
    double *tiny;     /* |v|, of weights that are rounded */
    double *lost;     /* p |v|, of terms that stagnate, and p (|v| + |out|), of weights that are flushed */
    double *drift;    /* drift |v - out| */
    double *swelling; /* drift |v| */
};

static struct sums sums_of(double *room, int64_t n)
{
    for (int64_t i = 0; i < ET_FA_SUMS * n; i++)
        room[i] = 0;
    return (struct sums){room,         room + n,     room + 2 * n, room + 3 * n,
                         room + 4 * n, room + 5 * n, room + 6 * n, room + 7 * n};
}

/* `full`: also what only variance and bias ask for. */
static void add_key(const struct et_fa_seen *seen, const struct et_arith *arith, const struct et_fa_key *key,
                    const float *v, const double *value, int64_t n, bool full, const struct sums *to)
{
    const double p2 = square(key->p), round = rounding(seen, arith, key);
    const double inexact = key->score < seen->most ? 1 : 0, u = et_format(arith->sum)->unit;
    const double flushed = is_flushed(seen, arith, key) ? key->p : 0;
    for (int64_t d = 0; d < n; d++) {
        const double size = fabs((double)v[d]);
        to->drift[d] += key->drift * fabs((double)v[d] - value[d]);
        to->swelling[d] += key->drift * size;
        to->tiny[d] += inexact * size;
    }
    for (int64_t d = 0; full && d < n; d++) {
        const double size = fabs((double)v[d]), term = key->p * size;
        to->scores[d] += key->variance * square((double)v[d] - value[d]);
        to->rounded[d] += round * square(size + fabs(value[d]));
        to->strayed[d] += round * square(fmax(size, fabs((double)v[d] - value[d])));
        to->squares[d] += p2 * square(size);
        to->lost[d] += flushed * (size + fabs(value[d])) + (term < u * seen->sizes[d] ? term : 0);
    }
}

static void add_keys(const struct et_problem *problem, const struct et_fa_seen *seen,
                     const struct et_arith *arith, const double *value, float *v, bool full,
                     const struct sums *to)
{
    const struct et_flash_attn *p = problem->params;
    for (int64_t i = 0; i < seen->count; i++) {
        et_fa_read(&problem->tensor[ET_FA_V], et_fa_kv_row(problem, &seen->row, seen->key[i].j), v);
        add_key(seen, arith, &seen->key[i], v, value, p->v_head_dim, full, to);
    }
}

/*
 * Likewise for rounded weights. Channels that few values carry are as few as few keys: of errors that the
 * keys have alone, energy e each, and channels share, c each, energy has the variance 2 (sum e^2 + sum c^2),
 * values being of independent signs. Unlike scores' errors these are bounded, by sqrt(3 e), and by so much is
 * the row: one weight alone can't exceed 3 times its energy.
 */
static double stretch_weights(const struct et_fa_seen *seen, const struct et_arith *arith,
                              const struct sums *sums, int64_t n)
{
    double mean = 0, squares = 0, predicted = 0, most = 0;
    for (int64_t i = 0; i < seen->count; i++) {
        const struct et_fa_key *key = &seen->key[i];
        const double size = key->apart + (1 + 2 * key->pull) * seen->energy; /* <v, v> */
        const double energy = rounding(seen, arith, key) * fmax(key->apart, size);
        squares += square(energy);
        most += sqrt(3 * energy);
    }
    for (int64_t d = 0; d < n; d++) {
        mean += sums->strayed[d];
        squares += square(sums->strayed[d]);
        predicted += sums->rounded[d];
    }
    const double likely = fmin(mean + 6 * sqrt(2 * fmin(squares, square(mean))), square(most));
    return predicted > 0 ? fmax(1, likely / (4 * predicted)) : 1;
}

/*
 * The most that one output may be off, before the last division and the store. Weights relative to their sum
 * change by drift / shrink; that changes out by `moved`, and sum p |v| to `sizes`; both sums then have the
 * relative error g.
 */
static double bound_of(const struct et_fa_seen *seen, const struct et_arith *arith, const struct whole *w,
                       const struct sums *sums, double value, int64_t d, bool independent)
{
    const double roundings = arith->depth_sum + arith->tiles + 2.0;
    const double u = et_format(arith->sum)->unit, small = et_half_ulp(arith->sum, 0);
    const double eta = fmax(least, et_half_ulp(arith->weight, 0)), size = fabs(value);
    const double g = (1 + chain(roundings, u, independent)) * (1 + unit_of(arith->weight)) *
                         (1 + unit_of(arith->product)) * (1 + unit_of(arith->partial)) -
                     1;
    const double moved = times(sums->drift[d] + w->sink_drift * size, 1 / w->shrink);
    const double sizes = times(seen->sizes[d] + sums->swelling[d], 1 / w->shrink);
    if (sizes == 0)
        return 0;
    const double absolute = eta * (sums->tiny[d] + (double)seen->count * size) + roundings * 2 * small;
    const double rest = g * (sizes + size + moved) + absolute / (seen->total * w->shrink);
    return g < 1 ? moved + rest / (1 - g) : INFINITY;
}

static double variance_of(const struct et_fa_seen *seen, const struct et_arith *arith, const struct whole *w,
                          const struct sums *sums, double value, int64_t d)
{
    const double u = et_format(arith->sum)->unit;
    const double out2 = square(value), small = et_half_ulp(arith->sum, 0);
    double variance = sums->scores[d] + w->sink_variance * out2;
    variance += w->stretch * sums->rounded[d] / 3;
    variance += square(u) / 3 * w->terms * (2 * out2 + sums->squares[d]);
    variance += square(unit_of(arith->product)) / 3 * sums->squares[d];
    variance += square(unit_of(arith->partial)) / 3 * (out2 + sums->squares[d]);
    if (arith->sum != ET_F32)
        variance += w->terms * square(small / seen->total) / 3;
    return variance;
}

/*
 * What moves all channels of the row by one factor. Scores and weights do so as far as their key's value is
 * of out's direction; a variance of each channel by itself, which `gain` adds, does not say that, but has
 * `told` of it.
 */
static double common_of(const struct et_fa_seen *seen, const struct et_arith *arith, const struct whole *w,
                        const struct sums *sums, const double *value, int64_t n)
{
    const double energy = seen->energy;
    double scores = 0, rounded = 0;
    for (int64_t d = 0; d < n; d++) {
        scores += sums->scores[d] * square(value[d]);
        rounded += sums->rounded[d] * square(value[d]);
    }
    if (energy == 0)
        return 0;
    const double told = scores / square(energy), told_rounded = rounded / square(energy);
    return fmax(w->rounded, w->pulls - told_rounded) / 3 + fmax(0, w->scores - told) + w->sink_variance +
           w->terms * square(et_format(arith->sum)->unit) + square(w->lost);
}

void et_fa_spread(const struct et_problem *problem, const struct et_fa_seen *seen,
                  const struct et_arith *arith, const double *value, float *v, double *room,
                  struct et_spread *spread)
{
    const struct et_flash_attn *p = problem->params;
    const int64_t n = p->v_head_dim;
    for (int64_t d = 0; d < n; d++)
        spread[d] = (struct et_spread){0};
    if (seen->count == 0)
        return;
    struct sums sums = sums_of(room, n);
    struct whole w = weigh(problem, seen, arith, true);
    add_keys(problem, seen, arith, value, v, false, &sums);
    for (int64_t d = 0; d < n; d++)
        spread[d].likely = bound_of(seen, arith, &w, &sums, value[d], d, true) + least;

    sums = sums_of(room, n);
    w = weigh(problem, seen, arith, false);
    stretch(seen, &w);
    add_keys(problem, seen, arith, value, v, true, &sums);
    w.stretch = stretch_weights(seen, arith, &sums, n);
    const double common = common_of(seen, arith, &w, &sums, value, n);
    for (int64_t d = 0; d < n; d++) {
        spread[d].worst = bound_of(seen, arith, &w, &sums, value[d], d, false) + least;
        spread[d].variance = variance_of(seen, arith, &w, &sums, value[d], d);
        spread[d].bias = fabs(value[d]) * w.stagnant + sums.lost[d] + least;
        spread[d].common = common;
        spread[d].drift = square(unit_of(arith->weight)) / 4 * w.inexact;
    }
}
