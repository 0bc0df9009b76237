/* Data of flash_attn: plain fills, masks, and the exact family. */
#include "flash_attn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "exact.h"

enum { HOLES };

const struct et_own_fill et_fa_own_fills[] = {
    [HOLES] = {.name = "holes",
               .tensor = ET_FA_MASK,
               .option = {.name = "share",
                          .kind = ET_REAL,
                          .min = 0,
                          .max = 1,
                          .fallback = 0.25,
                          .doc = "of elements that are -Inf, by lot; the others are 0"}},
    {.name = NULL},
};

/* Of a materialised mask: 0 where the flags show a key to the query, or ALiBi's distance; else -Inf. */
static void materialise(const struct et_flash_attn *p, int64_t query, float *dst)
{
    const int64_t position = et_fa_position(p, query);
    int64_t from, to;
    et_fa_span(p, query, &from, &to);
    for (int64_t j = 0; j < p->kv_length; j++) {
        const int64_t distance = j < position ? position - j : j - position;
        const bool seen = from <= j && j < to;
        dst[j] = !seen ? -INFINITY : p->max_bias > 0 ? (float)(0 - distance) : 0;
    }
}

/* Elements of the mask from `at` on: -Inf by lot, else 0. */
static void holes(uint64_t seed, double share, int64_t at, int64_t n, float *dst)
{
    const struct et_stream lots = et_stream(seed, "mask");
    for (int64_t i = 0; i < n; i++)
        dst[i] = (double)et_word(&lots, (uint64_t)(at + i), 0) < share * 0x1p32 ? -INFINITY : 0;
}

/*
 * The exact family. Key j spells its own number: of the last 2 bits channels of its row of K, channel 2 b + 1
 * holds bit b of j and channel 2 b the opposite, as 0 or 1. A row cares about some of the bits of a target:
 * in those channels where they are not the target's, q is a large negative number, and 0 elsewhere. So the
 * score is a sum of zeros for every key that agrees with the target, the hot ones, however a kernel scales,
 * rounds and adds; it is -104 or less for all others, which weigh nothing. V codes the number of its row, and
 * so do the other channels of K, whose head V may be.
 */

enum {
    CARELESS_MOST = 8, /* bits that a row does not care about */
    STEP = 32,         /* multiples of it are edges: of steps, warps, tiles */
    TURNS = 4 + STEP,
    KEYS_TRIED = 3 /* of three neighbours two differ in one bit */
};

static const double cold = 104; /* e^-104 is 0 in f32 */

/* Of a mask of the exact family. The seed is no fill's, so that q's fill, which may have another than the
 * mask's, knows the holes. */
static const double hole_share = 0.25;
static const uint64_t hole_seed = 0;

static int key_bits(int64_t keys)
{
    int bits = 0;
    while ((int64_t)1 << bits < keys)
        bits++;
    return bits;
}

/* In q: what a bit that is not the target's adds to a score, before the scale. A power of two, so that every
 * type holds it. */
static double penalty(const struct et_flash_attn *p)
{
    int exponent;
    const double fraction = frexp(cold / (double)et_fa_scale(p), &exponent);
    const double least = ldexp(1, fraction == 0.5 ? exponent - 1 : exponent);
    return least > 1 ? least : 1;
}

/* Channels of a row of K that spell its key. */
static int spelling(const struct et_flash_attn *p)
{
    return 2 * key_bits(p->kv_length);
}

/* A row of q, and the keys that its flags and its mask show: what et_fa_row has of data, before there are
 * any. */
struct row {
    const struct et_flash_attn *p;
    int64_t batch, query, head, from, to;
    int64_t mask_at; /* of its row of the mask, in elements */
    bool holes;
    struct et_stream lots;
};

static struct row row_at(const struct et_flash_attn *p, uint64_t seed, int64_t i)
{
    struct row r = {.p = p, .holes = p->mask == ET_MASK_DATA, .lots = et_stream(seed, "q")};
    r.head = i % p->q_heads;
    r.query = i / p->q_heads % p->query_length;
    r.batch = i / p->q_heads / p->query_length;
    et_fa_span(p, r.query, &r.from, &r.to);
    const int64_t mask = r.batch % p->mask_batches * p->mask_heads + r.head % p->mask_heads;
    r.mask_at = (mask * p->query_length + r.query) * p->kv_length;
    return r;
}

static bool sees(const struct row *r, int64_t j)
{
    float mask = 0;
    if (j < r->from || j >= r->to)
        return false;
    if (r->holes)
        holes(hole_seed, hole_share, r->mask_at + j, 1, &mask);
    return mask == 0;
}

/* The next key seen from j on, of [from, to) in a circle; -1: none. */
static int64_t seen_from(const struct row *r, int64_t j)
{
    for (int64_t i = 0; i < r->to - r->from; i++) {
        const int64_t at = j + i < r->to ? j + i : j + i - (r->to - r->from);
        if (sees(r, at))
            return at;
    }
    return -1;
}

/* Keys that agree with `target` in all bits but those of `careless`. */
struct hot {
    int64_t target, careless;
};

/* How many of them the row sees. */
static int64_t count_seen(const struct row *r, struct hot hot)
{
    int64_t n = 0, at = 0;
    do {
        n += sees(r, (hot.target & ~hot.careless) | at);
        at = (at - hot.careless) & hot.careless;
    } while (at != 0);
    return n;
}

/* Between how many hot keys a row may have; a power of two in any case. */
struct range {
    int64_t least, most;
};

static bool suits(const struct row *r, struct hot hot, struct range want)
{
    const int64_t n = count_seen(r, hot);
    return n >= want.least && n <= want.most && (n & (n - 1)) == 0;
}

static int64_t lowest(int64_t set, int n)
{
    int64_t some = 0;
    for (; n > 0 && set != 0; n--, set &= set - 1)
        some |= set & -set;
    return some;
}

/*
 * Hot keys on both sides of an edge, key `beyond` next to it among them. Bit t takes `beyond` across, and the
 * lower bits that differ from it in that take none back, so that half of the hot keys lie on either side. up:
 * across is up. t < bits.
 */
static bool across(const struct row *r, int64_t beyond, bool up, int bits, struct range want, struct hot *hot)
{
    const int64_t flips = up ? ~beyond : beyond; /* bits that lead across */
    int n = CARELESS_MOST - 1;
    while (n > 0 && (int64_t)1 << n > want.most)
        n--;
    for (; n >= 0; n--)
        for (int t = 0; t < bits; t++) {
            const int64_t below = ~flips & (((int64_t)1 << t) - 1), some = lowest(below, n);
            *hot = (struct hot){beyond, (int64_t)1 << t | some};
            if (flips >> t & 1 && (n == 0 || lowest(below, n - 1) != some) && suits(r, *hot, want))
                return true;
        }
    return false;
}

/* Two hot keys or more, `key` among them: of each of equal stretches one, or neighbours, or a pair. */
static bool about(const struct row *r, int64_t key, struct range want, struct hot *hot)
{
    const int bits = key_bits(r->p->kv_length);
    const int most = bits < CARELESS_MOST ? bits : CARELESS_MOST;
    want.least = 2;
    for (int turn = 0; turn < 2; turn++)
        for (int n = most; n >= 1; n--) {
            const int64_t low = ((int64_t)1 << n) - 1;
            *hot = (struct hot){key, turn == 0 ? low << (bits - n) : low};
            if (suits(r, *hot, want))
                return true;
        }
    for (int b = 0; b < bits; b++) {
        *hot = (struct hot){key, (int64_t)1 << b};
        if (suits(r, *hot, want))
            return true;
    }
    return false;
}

/* A multiple of STEP within (from, to), by lot; 0: there is none. */
static int64_t step_edge(const struct row *r, int64_t i)
{
    const int64_t first = r->from / STEP + 1, n = (r->to - 1) / STEP - first + 1;
    return n > 0 ? (first + et_word(&r->lots, (uint64_t)i, 0) % n) * STEP : 0;
}

enum edge { FIRST, LAST, OF_STEP, NO_EDGE };

/* Several hot keys. Rows take turns over the edges that they have, and over none: keys all over, the last
 * among them. Behind kv_length, padding that is taken for keys has a score of 0, and so is hot for every row.
 */
static struct hot several(const struct row *r, int64_t i, int64_t turn, struct range want)
{
    const int64_t step = step_edge(r, i);
    enum edge edges[4];
    int n = 0;
    if (r->from > 0)
        edges[n++] = FIRST;
    if (r->to < r->p->kv_length)
        edges[n++] = LAST;
    if (step > 0)
        edges[n++] = OF_STEP;
    edges[n++] = NO_EDGE;
    const enum edge edge = edges[turn % n];
    const int bits = edge == OF_STEP ? key_bits(step & -step) + 1 : key_bits(r->p->kv_length);
    int64_t key = seen_from(r, edge == FIRST ? r->from : edge == OF_STEP ? step : r->to - 1);
    struct hot hot;
    if ((edge == FIRST && across(r, r->from - 1, true, bits, want, &hot)) ||
        (edge == LAST && across(r, r->to, false, bits, want, &hot)) ||
        (edge == OF_STEP && across(r, step - 1, true, bits, want, &hot)))
        return hot;
    for (int k = 0; k < KEYS_TRIED; k++, key = seen_from(r, key + 1 < r->to ? key + 1 : r->from))
        if (about(r, key, want, &hot))
            return hot;
    return (struct hot){key, 0};
}

/* One hot key. Rows take turns over the first and the last, both sides of the last edge of a step, and each
 * place in a step, of any step. */
static struct hot one(const struct row *r, int64_t i, int64_t turn)
{
    const int64_t n = r->to - r->from, last = (r->to - 1) / STEP * STEP;
    int64_t key = turn == 0 ? r->from : turn == 1 ? r->to - 1 : turn == 2 ? last : last - 1;
    if (turn >= 4) {
        const int64_t place = (turn - 4 - r->from % STEP + STEP) % STEP,
                      steps = (n - place + STEP - 1) / STEP;
        const int64_t lap = steps > 0 ? et_word(&r->lots, (uint64_t)i, 0) % steps : 0;
        key = r->from + place + lap * STEP;
    }
    if (key < r->from || key >= r->to)
        key = r->from + turn % n;
    return (struct hot){seen_from(r, key), 0};
}

/* The next seed goes on where the turns of this one end. */
static int64_t turn_of(uint64_t seed, int64_t rows, int64_t i, int64_t turns)
{
    return ((int64_t)(seed % (uint64_t)turns) * (rows % turns) + i) % turns;
}

/* All sums of hot values are numbers of out's type and of f32. */
static int64_t hot_most(const struct et_problem *problem)
{
    const int out = et_format(problem->tensor[ET_FA_OUT].dtype)->digits, f32 = et_format(ET_F32)->digits;
    return (int64_t)1 << ((out < f32 ? out : f32) - ET_CODE_BITS);
}

static struct hot hot_of(const struct et_problem *problem, const struct et_fill *fill, const struct row *r,
                         int64_t i)
{
    const struct et_flash_attn *p = problem->params;
    const int64_t rows = p->batch * p->query_length * p->q_heads;
    const bool pair = fill->kind == ET_FILL_BALANCE && !p->sinks;
    if (fill->kind != ET_FILL_EQUAL && !pair)
        return one(r, i, turn_of(fill->seed, rows, i, TURNS));
    const struct range want = {pair ? 2 : 1, pair ? 2 : hot_most(problem)};
    return several(r, i, turn_of(fill->seed, rows, r->batch + r->query + r->head, 12), want);
}

static void fill_query(const struct et_problem *problem, const struct et_fill *fill, int64_t i, float *dst)
{
    const struct et_flash_attn *p = problem->params;
    const struct row r = row_at(p, fill->seed, i);
    memset(dst, 0, (size_t)p->head_dim * sizeof *dst);
    if (p->head_dim < spelling(p) || seen_from(&r, r.from) < 0)
        return;
    const struct hot hot = hot_of(problem, fill, &r, i);
    float *const spelt = dst + p->head_dim - spelling(p);
    for (int b = 0; b < key_bits(p->kv_length); b++)
        if (!(hot.careless >> b & 1))
            spelt[2 * b + !(hot.target >> b & 1)] = -(float)penalty(p);
}

/* Row i of K or of V, of n channels. */
static void fill_cache(const struct et_flash_attn *p, int tensor, int64_t i, int64_t n, float *dst)
{
    const int64_t digits = et_code_digits(p->kv_batch * p->kv_length * p->kv_heads);
    const int64_t j = i / p->kv_heads % p->kv_length;
    const int64_t codes = tensor == ET_FA_V ? n : n - spelling(p);
    for (int64_t d = 0; d < n; d++) {
        const int64_t at = d - codes;
        dst[d] = d < codes ? et_code(digits, i, d) : (float)((j >> at / 2 & 1) == at % 2);
    }
}

static void fill_exact(const struct et_problem *problem, const struct et_fill *fill, int tensor, int64_t row,
                       int64_t n, float *dst)
{
    const struct et_flash_attn *p = problem->params;
    if (tensor == ET_FA_Q)
        fill_query(problem, fill, row, dst);
    else if (tensor == ET_FA_MASK)
        holes(hole_seed, hole_share, row * n, n, dst);
    else if (tensor != ET_FA_SINKS)
        fill_cache(p, tensor, row, n, dst);
    else
        for (int64_t h = 0; h < n; h++)
            dst[h] = fill->kind == ET_FILL_BALANCE ? 0 : h % 2 ? -INFINITY : -1e4F;
}

void et_fa_fill(const struct et_problem *problem, const struct et_fill *fill, int tensor, int64_t row,
                float *dst)
{
    const struct et_flash_attn *p = problem->params;
    const struct et_tensor *t = &problem->tensor[tensor];
    const int64_t n = t->size[t->rank - 1];
    if (tensor == ET_FA_MASK && p->mask == ET_MASK_MATERIALISED)
        materialise(p, row % p->query_length, dst);
    else if (et_fill_is_exact(fill->kind))
        fill_exact(problem, fill, tensor, row, n, dst);
    else if (fill->kind == ET_FILL_OWN)
        holes(fill->seed, fill->value, row * n, n, dst);
    else
        et_fill_values(fill, problem->op->tensors[tensor].name, row * n, n, dst);
}

static enum et_status check_softcap(const struct et_flash_attn *p, const char *name, struct et_error *error)
{
    /* Half a unit in f32's last place, shared among all keys, each with the largest code. */
    const double vanish = 17.4 + (p->kv_length > 0 ? log((double)p->kv_length * 16) : 0);
    const double capped = p->softcap > 0 ? p->softcap * tanh(cold / p->softcap) : cold;
    if (capped >= vanish)
        return ET_OK;
    return et_fail(error, ET_REFUSED,
                   "%s needs scores down to -%.3g for %lld keys, a softcap of %g leaves -%.3g", name, vanish,
                   (long long)p->kv_length, p->softcap, capped);
}

static enum et_status check_scale(const struct et_problem *problem, const char *name, struct et_error *error)
{
    const struct et_flash_attn *p = problem->params;
    const struct et_format *q = et_format(problem->tensor[ET_FA_Q].dtype);
    const double most = fmin(q->max, et_format(ET_F32)->max / 64); /* sums of a score's terms stay finite */
    if (spelling(p) == 0 || penalty(p) <= most)
        return ET_OK;
    return et_fail(error, ET_REFUSED, "%s needs %.3g in q at a scale of %.3g, %s takes up to %.3g", name,
                   penalty(p), (double)et_fa_scale(p), q->name, most);
}

/* Whether the elements of one are those of the other. */
static bool is_view(const struct et_problem *problem, int t, int u)
{
    const struct et_tensor *a = &problem->tensor[t], *b = &problem->tensor[u];
    return et_tensor_home(problem, t) == et_tensor_home(problem, u) && a->offset == b->offset &&
           memcmp(a->stride, b->stride, sizeof a->stride) == 0 && et_tensor_count(a) > 0 &&
           et_tensor_count(b) > 0;
}

/* Codes are V's and the head of K's rows alike; of no other two tensors the data are. */
static enum et_status check_views(const struct et_problem *problem, const char *name, struct et_error *error)
{
    const struct et_flash_attn *p = problem->params;
    const struct et_tensor_spec *specs = problem->op->tensors;
    const int64_t codes = p->head_dim - spelling(p);
    for (int t = ET_FA_Q; t < ET_FA_OUT; t++)
        for (int u = t + 1; u < ET_FA_OUT; u++)
            if (!(t == ET_FA_K && u == ET_FA_V) && is_view(problem, t, u))
                return et_fail(error, ET_REFUSED, "%s needs data of %s that are not those of %s", name,
                               specs[t].name, specs[u].name);
    if (!is_view(problem, ET_FA_K, ET_FA_V) || p->v_head_dim <= codes)
        return ET_OK;
    return et_fail(error, ET_REFUSED,
                   "%s needs a v_head_dim of at most %lld for %lld keys where v is a view of k, it is %lld",
                   name, (long long)codes, (long long)p->kv_length, (long long)p->v_head_dim);
}

enum et_status et_fa_takes(const struct et_problem *problem, enum et_fill_kind kind, struct et_error *error)
{
    const struct et_flash_attn *p = problem->params;
    const char *name = et_fill_name(kind);
    if (p->head_dim < spelling(p))
        return et_fail(error, ET_REFUSED, "%s needs a head_dim of at least %d for %lld keys, it is %lld",
                       name, spelling(p), (long long)p->kv_length, (long long)p->head_dim);
    if (p->max_bias > 0)
        return et_fail(error, ET_REFUSED, "%s needs a max_bias of 0, it is %g", name, p->max_bias);
    enum et_status status = check_softcap(p, name, error);
    if (status == ET_OK)
        status = check_scale(problem, name, error);
    return status == ET_OK ? check_views(problem, name, error) : status;
}

bool et_fa_names(const struct et_problem *problem, int64_t unit, const double *got, char *text, size_t size)
{
    const struct et_flash_attn *p = problem->params;
    const int64_t rows = p->kv_batch * p->kv_length * p->kv_heads;
    const int64_t row = et_code_row(et_code_digits(rows), got, p->v_head_dim);
    (void)unit;
    if (row < 0 || row >= rows)
        return false;
    snprintf(text, size, "V of batch %lld, key %lld, KV head %lld",
             (long long)(row / p->kv_heads / p->kv_length), (long long)(row / p->kv_heads % p->kv_length),
             (long long)(row % p->kv_heads));
    return true;
}
