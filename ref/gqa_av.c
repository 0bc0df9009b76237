/*
 * gqa_av: the attention-value product under grouped-query attention.
 *
 *     out[s, h, d] = sum over c in [0, context) of w[h, s, c] * V[c, kv(h), d]
 *
 * w are softmax weights, already normalised; kv(h) = floor(h * kv_heads / q_heads), which is h / G for G
 * query heads to a KV head. Source of the definition, the layouts and the order of additions:
 * pytorch/executorch#21063.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "etalon.h"
#include "exact.h"
#include "fma.h"
#include "fmath.h"

enum { W, V, OUT };

#define FLOATS    (1U << ET_F32 | 1U << ET_F16 | 1U << ET_BF16)
#define AT(field) offsetof(struct et_gqa_av, field)

static const struct et_field params[] = {
    {.name = "q_heads",
     .offset = AT(q_heads),
     .min = 1,
     .max = 65535,
     .required = true,
     .model_key = "q_heads",
     .parallel = ET_DIVIDED,
     .doc = "query heads, Hq"},
    {.name = "kv_heads",
     .offset = AT(kv_heads),
     .min = 1,
     .max = 65535,
     .required = true,
     .model_key = "kv_heads",
     .parallel = ET_REPLICATED,
     .doc = "key/value heads, Hkv"},
    {.name = "head_dim",
     .offset = AT(head_dim),
     .min = 1,
     .max = 65536,
     .required = true,
     .model_key = "head_dim",
     .doc = "elements of a head, D"},
    {.name = "query_length",
     .offset = AT(query_length),
     .min = 1,
     .max = ET_WHOLE_MOST,
     .fallback = 1,
     .doc = "query tokens, S; decode has 1"},
    {.name = "context",
     .offset = AT(context),
     .min = 0,
     .max = ET_WHOLE_MOST,
     .required = true,
     .doc = "live positions, C; 0 gives zeros"},
    {.name = "capacity",
     .offset = AT(capacity),
     .min = 0,
     .max = ET_WHOLE_MOST,
     .same_as = "context",
     .doc = "positions the cache has room for, Cmax; rows from context on are never read"},
    {.name = NULL},
};

static const struct et_tensor_spec tensors[] = {
    [W] =
        {.name = "w",
         .role = ET_INPUT,
         .dtypes = FLOATS,
         .dtype = ET_F32,
         .rank = 3,
         .dim = {"q_heads", "query_length", "context"},
         .doc =
             "softmax weights [Hq, align4(S), align4(C)]; lanes from C on are 0, rows from S on are poison"},
    [V] = {.name = "v",
           .role = ET_INPUT,
           .dtypes = FLOATS,
           .dtype = ET_F32,
           .rank = 3,
           .dim = {"capacity", "kv_heads", "head_dim"},
           .doc = "value cache [Cmax, Hkv, D]; rows from C on are poison"},
    [OUT] = {.name = "out",
             .role = ET_OUTPUT,
             .dtypes = FLOATS,
             .dtype = ET_F32,
             .rank = 3,
             .dim = {"query_length", "q_heads", "head_dim"},
             .doc = "[S, Hq, D], rounded once"},
    {.name = NULL},
};

static int64_t align4(int64_t n)
{
    return (n + 3) / 4 * 4;
}

static enum et_status shape(const void *params_, struct et_tensor *tensor, struct et_error *error)
{
    const struct et_gqa_av *p = params_;
    const enum et_status status = et_params_check(params, p, error);
    if (status != ET_OK)
        return status;
    if (p->capacity < p->context)
        return et_fail(error, ET_REFUSED, "capacity is %lld, below context = %lld", (long long)p->capacity,
                       (long long)p->context);
    const int64_t size[][3] = {
        [W] = {p->q_heads, align4(p->query_length), align4(p->context)},
        [V] = {p->capacity, p->kv_heads, p->head_dim},
        [OUT] = {p->query_length, p->q_heads, p->head_dim},
    };
    for (int t = W; t <= OUT; t++) {
        tensor[t].rank = 3;
        memcpy(tensor[t].size, size[t], sizeof size[t]);
    }
    return ET_OK;
}

/* A weight below this is made 0: the products of what remains never reach f32's subnormals. */
static const float least_weight = 0x1p-64F;

/* softmax of the plain fill; fmath and additions only, so that every machine makes the same bits. */
static void softmax(float *x, int64_t n)
{
    float max = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        x[i] = et_exp(x[i] - max);
        sum += (double)x[i];
    }
    for (int64_t i = 0; i < n; i++) {
        x[i] = et_div(x[i], (float)sum);
        x[i] = x[i] < least_weight ? 0 : x[i];
    }
}

/*
 * The exact family: docs/operators/gqa_av.md. Terms are whole multiples of one unit, and their sizes add up
 * to less than 2^digits units, so that every partial sum of any order is a number of out's type and of f32.
 */

/* The V rows of the context, position * kv_heads + kv_head, are what codes number. Capacity has no part in
 * it: it may not change what is read. */
static int64_t code_digits(const struct et_gqa_av *p)
{
    return et_code_digits(p->context * p->kv_heads);
}

/* The first of the last positions that no row of weights leaves out: the tail's, or the last quad's last. */
static int64_t tail_of(int64_t context)
{
    const int64_t at = context - (context % 4 ? context % 4 : 1);
    return at > 1 ? at : 1;
}

/* Gives a weight of 1 to `terms` <= context positions: the first, the tail, and one of each of equal
 * stretches between them, drawn by lot. */
static void choose(const struct et_stream *lots, int64_t first, int64_t context, int64_t terms, float *w)
{
    const int64_t tail = tail_of(context);
    int64_t left = terms - 1;
    w[0] = 1;
    for (int64_t c = context - 1; c >= tail && left > 0; c--, left--)
        w[c] = 1;
    for (int64_t i = 0; i < left; i++) {
        const int64_t from = 1 + (tail - 1) * i / left, to = 1 + (tail - 1) * (i + 1) / left;
        w[from + et_word(lots, (uint64_t)(first + i), 0) % (to - from)] = 1;
    }
}

static int least_int(int a, int b)
{
    return a < b ? a : b;
}

/* Weights of one row for `exact` (1 to 2^a units, a quarter of the bits there are) or `equal` (1/terms). */
static void weigh(const struct et_problem *problem, const struct et_fill *how, int64_t row, float *w)
{
    const struct et_gqa_av *p = problem->params;
    const struct et_stream lots = et_stream(how->seed, tensors[W].name);
    const int digits =
        least_int(et_format(problem->tensor[OUT].dtype)->digits, et_format(ET_F32)->digits) - ET_CODE_BITS;
    const bool equal = how->kind == ET_FILL_EQUAL;
    const int finest = least_int(digits, 14); /* 2^-14 is f16's least normal */
    const int weight_bits = equal ? 0 : digits / 4;
    int64_t terms = (int64_t)1 << (equal ? finest : digits - weight_bits);
    if (equal)
        while (terms > p->context)
            terms /= 2;
    else if (terms > p->context)
        terms = p->context;
    const int64_t first = row * problem->tensor[W].size[2];
    choose(&lots, first, p->context, terms, w);
    const float unit = equal ? 1.0F / (float)terms : 1.0F / (float)((int64_t)1 << finest);
    for (int64_t c = 0; c < p->context; c++)
        if (w[c] != 0)
            w[c] = unit * (float)(1 + et_word(&lots, (uint64_t)(first + c), 1) % (1U << weight_bits));
}

/*
 * The one position that query row s of head h weighs: rows take turns over the first position, the tail, and
 * a quad of each of the 64 residues, of any lap; the next seed goes on where this one ends.
 */
static int64_t hot(const struct et_gqa_av *p, uint64_t seed, int64_t row)
{
    const struct et_stream lots = et_stream(seed, tensors[W].name);
    const int64_t s = row % align4(p->query_length), h = row / align4(p->query_length);
    const int64_t quads = p->context / 4, residues = quads < 64 ? quads : 64;
    const int64_t ends = 1 + p->context - tail_of(p->context), turns = ends + residues;
    const int64_t begin = (int64_t)(seed % (uint64_t)turns) * (p->query_length * p->q_heads % turns);
    const int64_t turn = (begin + s * p->q_heads + h) % turns;
    if (turn < ends)
        return turn == 0 ? 0 : p->context - turn;
    const int64_t residue = turn - ends, laps = (quads - residue + 63) / 64;
    const int64_t lap = et_word(&lots, (uint64_t)row, 0) % laps;
    return 4 * (residue + 64 * lap) + et_word(&lots, (uint64_t)row, 1) % 4;
}

static void fill_exact(const struct et_problem *problem, const struct et_fill *how, int t, int64_t row,
                       float *dst)
{
    const struct et_gqa_av *p = problem->params;
    const int64_t n = problem->tensor[t].size[2], digits = code_digits(p);
    for (int64_t i = 0; i < n; i++)
        dst[i] = t == V ? et_code(digits, row, i) : 0;
    if (t == V || p->context == 0)
        return;
    if (how->kind == ET_FILL_ONEHOT)
        dst[hot(p, how->seed, row)] = 1;
    else
        weigh(problem, how, row, dst);
}

static bool names(const struct et_problem *problem, int64_t i, const double *got, char *text, size_t size)
{
    const struct et_gqa_av *p = problem->params;
    const int64_t row = et_code_row(code_digits(p), got, p->head_dim);
    (void)i;
    if (row < 0)
        return false;
    snprintf(text, size, "V of position %lld, KV head %lld", (long long)(row / p->kv_heads),
             (long long)(row % p->kv_heads));
    return true;
}

static void fill(const struct et_problem *problem, const struct et_fill *how, int t, int64_t row, float *dst)
{
    const struct et_gqa_av *p = problem->params;
    const int64_t n = problem->tensor[t].size[2];
    if (et_fill_is_exact(how->kind)) {
        fill_exact(problem, how, t, row, dst);
        return;
    }
    et_fill_values(how, tensors[t].name, row * n, n, dst);
    if (t == W)
        softmax(dst, p->context);
}

static void classify(const struct et_problem *problem, int t, int64_t row, enum et_class *dst)
{
    const struct et_gqa_av *p = problem->params;
    const int64_t n = problem->tensor[t].size[2];
    const bool live =
        t == W ? row % align4(p->query_length) < p->query_length : row / p->kv_heads < p->context;
    for (int64_t i = 0; i < n; i++)
        dst[i] = !live ? ET_POISON : t == W && i >= p->context ? ET_ZERO : ET_DATA;
}

/* Units are (s, h): one row of out. */
static int64_t units(const struct et_problem *problem)
{
    const struct et_gqa_av *p = problem->params;
    return p->query_length * p->q_heads;
}

static struct et_unit unit(const struct et_problem *problem, int64_t i)
{
    const struct et_gqa_av *p = problem->params;
    return (struct et_unit){.output = OUT, .at = i * p->head_dim, .step = 1, .count = p->head_dim};
}

/* Heads on both sides of a group's edge, in the first and the last row. */
static int64_t edges(const struct et_problem *problem, int64_t n, int64_t *dst)
{
    const struct et_gqa_av *p = problem->params;
    const int64_t group = p->q_heads > p->kv_heads ? p->q_heads / p->kv_heads : 1;
    const int64_t head[] = {0, group - 1, group, p->q_heads - 1};
    const int64_t row[] = {0, p->query_length - 1};
    int64_t count = 0;
    for (int s = 0; s < 2; s++)
        for (int h = 0; h < 4; h++) {
            const int64_t at = row[s] * p->q_heads + (head[h] < p->q_heads ? head[h] : p->q_heads - 1);
            if (count < n && (count == 0 || dst[count - 1] < at))
                dst[count++] = at;
        }
    return count;
}

static int64_t kv_head(const struct et_gqa_av *p, int64_t h)
{
    return h * p->kv_heads / p->q_heads;
}

static const char *row_of(const struct et_tensor *t, int64_t i, int64_t j)
{
    const int64_t at = t->offset + i * t->stride[0] + j * t->stride[1];
    return (const char *)t->data + (size_t)at * et_format(t->dtype)->bytes;
}

enum { PARTIALS = 64 };

/* Room for the oracle's three sums and the replay's partials, one row of V and one of weights. */
static size_t work_bytes(const struct et_problem *problem)
{
    const struct et_gqa_av *p = problem->params;
    const size_t d = (size_t)p->head_dim;
    return d * (3 * sizeof(double) + (PARTIALS + 1) * sizeof(float)) +
           (size_t)align4(p->context) * sizeof(float);
}

/* Terms below half a unit of the running sum change nothing: for accumulators narrower than f32. */
static double stagnant(const struct et_problem *problem, const float *w, int64_t h, int64_t d, double least)
{
    const struct et_gqa_av *p = problem->params;
    const struct et_tensor *v = &problem->tensor[V];
    double lost = 0;
    for (int64_t c = 0; c < p->context; c++) {
        const void *row = row_of(v, c, kv_head(p, h));
        const double term = fabs((double)w[c] * (double)et_widen(v->dtype, et_load(v->dtype, row, d)));
        lost += term < least ? term : 0;
    }
    return lost;
}

static double square(double x)
{
    return x * x;
}

/* docs/operators/gqa_av.md, "Tolerance": n roundings of sums no larger than |ref| and a walk over the terms.
 */
static struct et_spread spread_of(const struct et_arith *arith, double n, double ref, double squares,
                                  double sizes)
{
    const double u = et_format(arith->sum)->unit;
    const double h = (double)arith->depth_sum;
    struct et_spread spread = {
        .variance = square(u) / 3 * n * (square(ref) + squares),
        .likely = 6 * u * sqrt(n / 3) * sizes,
        .worst = h * u < 1 ? h * u / (1 - h * u) * sizes : INFINITY,
    };
    if (arith->sum != ET_F32) {
        const double eta = et_half_ulp(arith->sum, 0);
        spread.variance += n * square(eta) / 3;
        spread.worst += h * eta;
    }
    if (arith->product != ET_F32) {
        spread.variance += square(et_format(arith->product)->unit) / 3 * squares;
        spread.worst += et_format(arith->product)->unit * sizes;
    }
    if (arith->partial != ET_F32) {
        spread.variance +=
            square(et_format(arith->partial)->unit) / 3 * arith->tiles * (square(ref) + squares);
        spread.worst += et_format(arith->partial)->unit * sizes;
    }
    return spread;
}

static void oracle(const struct et_problem *problem, int64_t i, const struct et_arith *ariths, int n,
                   void *work, double *value, struct et_spread *spread)
{
    const struct et_gqa_av *p = problem->params;
    const struct et_tensor *wt = &problem->tensor[W], *vt = &problem->tensor[V];
    const int64_t d_count = p->head_dim, s = i / p->q_heads, h = i % p->q_heads;
    double *squares = work, *sizes = squares + d_count;
    float *v = (float *)(sizes + d_count), *w = v + d_count;

    et_widen_n(wt->dtype, row_of(wt, h, s), p->context, w);
    for (int64_t d = 0; d < d_count; d++)
        value[d] = squares[d] = sizes[d] = 0;
    for (int64_t c = 0; c < p->context; c++) {
        et_widen_n(vt->dtype, row_of(vt, c, kv_head(p, h)), d_count, v);
        for (int64_t d = 0; d < d_count; d++) {
            const double term = (double)w[c] * (double)v[d];
            value[d] += term;
            squares[d] += term * term;
            sizes[d] += fabs(term);
        }
    }
    for (int a = 0; a < n; a++)
        for (int64_t d = 0; d < d_count; d++) {
            struct et_spread *out = &spread[a * d_count + d];
            *out = spread_of(&ariths[a], (double)p->context, value[d], squares[d], sizes[d]);
            if (ariths[a].sum != ET_F32)
                out->bias = stagnant(problem, w, h, d, et_format(ariths[a].sum)->unit * sizes[d]);
        }
}

enum { FIRST_POSITION, LAST_POSITION, KV_HEAD };

static const struct et_lie lies[] = {
    [FIRST_POSITION] = {"first_position", false}, /* not added */
    [LAST_POSITION] = {"last_position", false},   /* not added: the least of what a lost tail costs */
    [KV_HEAD] = {"kv_head", true},                /* h % kv_heads, or the next one where that is right */
    {NULL, false},
};

static bool lie(const struct et_problem *problem, int64_t i, int which, void *work, double *delta)
{
    const struct et_gqa_av *p = problem->params;
    const struct et_tensor *wt = &problem->tensor[W], *vt = &problem->tensor[V];
    const int64_t d_count = p->head_dim, s = i / p->q_heads, h = i % p->q_heads, right = kv_head(p, h);
    const int64_t wrong = h % p->kv_heads != right ? h % p->kv_heads : (right + 1) % p->kv_heads;
    if (p->context == 0 || (which == KV_HEAD && p->kv_heads == 1))
        return false;
    float *v = work, *other = v + d_count, *w = other + d_count;
    et_widen_n(wt->dtype, row_of(wt, h, s), p->context, w);
    for (int64_t d = 0; d < d_count; d++)
        delta[d] = 0;
    const int64_t from = which == LAST_POSITION ? p->context - 1 : 0;
    const int64_t to = which == FIRST_POSITION ? 1 : p->context;
    for (int64_t c = from; c < to; c++) {
        et_widen_n(vt->dtype, row_of(vt, c, right), d_count, v);
        memset(other, 0, (size_t)d_count * sizeof *other);
        if (which == KV_HEAD)
            et_widen_n(vt->dtype, row_of(vt, c, wrong), d_count, other);
        for (int64_t d = 0; d < d_count; d++)
            delta[d] += (double)w[c] * ((double)other[d] - (double)v[d]);
    }
    return true;
}

/* One fused step of partial `acc` in the accumulator's type. */
static bool accumulate(enum et_dtype type, float *acc, float w, const float *v, int64_t n)
{
    if (type == ET_F32)
        return et_fma_row(acc, w, v, n);
    et_fma_row_f16(acc, w, v, n);
    return false;
}

/*
 * Order ctx64x4: 64 partials an output. Partial i adds the context quads i, i + 64, ... in order, four fmas
 * each; the last, incomplete quad goes to partial 0 after its own, its missing lanes as fma(0, 0, .); then a
 * tree: 32, 16, 8, 4, 2, 1. Order serial: one sum, an fma a position in order. arg[0] is the accumulators'
 * et_dtype: f32, or f16 as in the seed's half-precision buffer shader.
 */
static enum et_status replay(const struct et_problem *problem, const struct et_order *order, int64_t i,
                             void *work, float *value, struct et_met *met, struct et_error *error)
{
    const struct et_gqa_av *p = problem->params;
    const struct et_tensor *wt = &problem->tensor[W], *vt = &problem->tensor[V];
    const enum et_dtype type = (enum et_dtype)order->arg[0];
    const bool serial = strcmp(order->name, "serial") == 0;
    if ((!serial && strcmp(order->name, "ctx64x4") != 0) || (type != ET_F32 && type != ET_F16))
        return et_fail(error, ET_REFUSED, "gqa_av has no replay of order %s(%d)", order->name, order->arg[0]);

    const int64_t d_count = p->head_dim, s = i / p->q_heads, h = i % p->q_heads;
    float *acc = work, *v = acc + PARTIALS * d_count, *w = v + d_count;
    et_widen_n(wt->dtype, row_of(wt, h, s), p->context, w);
    memset(acc, 0, (size_t)(PARTIALS * d_count) * sizeof *acc);
    const int64_t partials = serial ? 1 : PARTIALS, whole = p->context / 4 * 4;
    bool subnormal = false;
    for (int64_t c = 0; c < (serial ? p->context : align4(p->context)); c++) {
        const bool there = c < p->context;
        if (there)
            et_widen_n(vt->dtype, row_of(vt, c, kv_head(p, h)), d_count, v);
        else
            memset(v, 0, (size_t)d_count * sizeof *v);
        const int64_t partial = c < whole ? c / 4 % partials : 0;
        subnormal |= accumulate(type, acc + partial * d_count, there ? w[c] : 0, v, d_count);
    }
    for (int64_t half = partials / 2; half >= 1; half /= 2)
        for (int64_t k = 0; k < half * d_count; k++) {
            acc[k] += acc[k + half * d_count];
            acc[k] = type == ET_F32 ? acc[k] : et_widen(type, et_narrow(type, (double)acc[k]));
            subnormal |= et_is_subnormal(acc[k]);
        }
    memcpy(value, acc, (size_t)d_count * sizeof *value);
    met->subnormal |= subnormal;
    return ET_OK;
}

static void cost(const struct et_problem *problem, struct et_cost *dst)
{
    const struct et_gqa_av *p = problem->params;
    const double s = (double)p->query_length, c = (double)p->context, d = (double)p->head_dim;
    *dst = (struct et_cost){.flops = 2 * s * (double)p->q_heads * c * d};
    dst->bytes[W] = s * (double)p->q_heads * c * (double)et_format(problem->tensor[W].dtype)->bytes;
    dst->bytes[V] = c * (double)p->kv_heads * d * (double)et_format(problem->tensor[V].dtype)->bytes;
    dst->bytes[OUT] = s * (double)p->q_heads * d * (double)et_format(problem->tensor[OUT].dtype)->bytes;
}

const struct et_operator et_gqa_av_operator = {
    .name = "gqa_av",
    .summary = "grouped-query attention value product",
    .params = params,
    .params_bytes = sizeof(struct et_gqa_av),
    .tensors = tensors,
    .exact_fills = 1U << ET_FILL_EXACT | 1U << ET_FILL_EQUAL | 1U << ET_FILL_ONEHOT,
    .lies = lies,
    .shape = shape,
    .fill = fill,
    .classify = classify,
    .units = units,
    .unit = unit,
    .edges = edges,
    .work_bytes = work_bytes,
    .oracle = oracle,
    .replay = replay,
    .lie = lie,
    .names = names,
    .cost = cost,
};
