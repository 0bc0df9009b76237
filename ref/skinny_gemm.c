/*
 * skinny_gemm: a linear layer of a few tokens.
 *
 *     out[n, m] = (sum over k in [0, K) of act[n, k] * w[m, k]) * scales + bias
 *
 * w is the weight as stored, but for i4: there w[m, k] = (q[m, k] - z) * weight_scale[m, k / group], with q
 * the stored nibble, 0..15, and z = zero_points[m, k / group], or 8 without them. scales are act_scale *
 * weight_scale for f8, weight_scale[m] for i8, and none otherwise. Source of the definition and of the orders
 * of additions: vLLM's wvSplitK (ROCm/vllm#982) and its int4 and int8 variants.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "etalon.h"
#include "fma.h"

enum { WEIGHT, WEIGHT_SCALE, ZERO_POINTS, ACT_SCALE, ACT, BIAS, OUT };

#define FLOATS    (1U << ET_F32 | 1U << ET_F16 | 1U << ET_BF16)
#define F8        (1U << ET_F8E4M3FN | 1U << ET_F8E4M3FNUZ)
#define AT(field) offsetof(struct et_skinny_gemm, field)

static const char *const biases[] = {[ET_BIAS_NONE] = "none", [ET_BIAS_M] = "m",     [ET_BIAS_1XM] = "1xm",
                                     [ET_BIAS_NX1] = "nx1",   [ET_BIAS_NXM] = "nxm", NULL};

static const struct et_field params[] = {
    {.name = "tokens", .offset = AT(tokens), .min = 1, .max = ET_WHOLE_MOST, .required = true, .doc = "N"},
    {.name = "out_features",
     .model_key = "out_features",
     .parallel = ET_WHOLE,
     .offset = AT(out_features),
     .min = 1,
     .max = ET_WHOLE_MOST,
     .required = true,
     .doc = "rows of the weight, M"},
    {.name = "in_features",
     .model_key = "in_features",
     .parallel = ET_WHOLE,
     .offset = AT(in_features),
     .min = 1,
     .max = ET_WHOLE_MOST,
     .required = true,
     .doc = "terms of a sum, K"},
    {.name = "bias",
     .kind = ET_NAME,
     .offset = AT(bias),
     .names = biases,
     .doc = "shape of the bias: m and 1xm [1, M], nx1 [N, 1], nxm [N, M]"},
    {.name = "group",
     .offset = AT(group),
     .min = 0,
     .max = 128,
     .doc = "weights of a row that share a scale: 32, 64 or 128 of i4, else 0"},
    {.name = "zero_points",
     .kind = ET_BOOL,
     .offset = AT(zero_points),
     .doc = "whether i4 weights have a zero point a group; without, it is 8"},
    {.name = NULL},
};

static const struct et_tensor_spec tensors[] = {
    [WEIGHT] = {.name = "weight",
                .role = ET_INPUT,
                .dtypes = FLOATS | F8 | 1U << ET_I8 | 1U << ET_I4,
                .dtype = ET_BF16,
                .rank = 2,
                .dim = {"out_features", "in_features"},
                .doc = "[M, K]"},
    [WEIGHT_SCALE] = {.name = "weight_scale",
                      .role = ET_INPUT,
                      .dtypes = FLOATS,
                      .dtype = ET_F32,
                      .rank = 2,
                      .dim = {"scale_rows", "groups"},
                      .doc = "[1, 1] f32 of f8 weights, [M, 1] f32 of i8, [M, K/group] of act's type of i4, "
                             "else empty"},
    [ZERO_POINTS] = {.name = "zero_points",
                     .role = ET_INPUT,
                     .dtypes = 1U << ET_U8,
                     .dtype = ET_U8,
                     .rank = 2,
                     .dim = {"out_features", "groups"},
                     .doc = "[M, K/group], 0 to 15, or empty"},
    [ACT_SCALE] = {.name = "act_scale",
                   .role = ET_INPUT,
                   .dtypes = 1U << ET_F32,
                   .dtype = ET_F32,
                   .rank = 2,
                   .dim = {"scale_rows", "groups"},
                   .doc = "[1, 1] of f8, else empty"},
    [ACT] = {.name = "act",
             .role = ET_INPUT,
             .dtypes = FLOATS | F8,
             .dtype = ET_BF16,
             .rank = 2,
             .dim = {"tokens", "in_features"},
             .doc = "[N, K]"},
    [BIAS] = {.name = "bias",
              .role = ET_INPUT,
              .dtypes = FLOATS,
              .dtype = ET_BF16,
              .same_as = "out",
              .rank = 2,
              .dim = {"bias_rows", "bias_columns"},
              .doc = "[1, M], [N, 1] or [N, M] of out's type, or empty"},
    [OUT] = {.name = "out",
             .role = ET_OUTPUT,
             .dtypes = FLOATS,
             .dtype = ET_BF16,
             .rank = 2,
             .dim = {"tokens", "out_features"},
             .doc = "[N, M], rounded once"},
    {.name = NULL},
};

static bool is_f8(enum et_dtype dtype)
{
    return F8 >> dtype & 1;
}

static const char *name_of(const struct et_tensor *tensor, int t)
{
    return et_format(tensor[t].dtype)->name;
}

static enum et_status check_types(const struct et_tensor *tensor, bool bias, struct et_error *error)
{
    const enum et_dtype weight = tensor[WEIGHT].dtype, act = tensor[ACT].dtype, out = tensor[OUT].dtype;
    const bool whole = et_format(weight)->integer;
    if (!whole && weight != act)
        return et_fail(error, ET_REFUSED, "act is %s, must be %s as weight is", name_of(tensor, ACT),
                       name_of(tensor, WEIGHT));
    if (whole && is_f8(act))
        return et_fail(error, ET_REFUSED, "act is %s, must be bf16, f16 or f32 for a weight of %s",
                       name_of(tensor, ACT), name_of(tensor, WEIGHT));
    if (!is_f8(act) && out != act && out != ET_F32)
        return et_fail(error, ET_REFUSED, "out is %s, must be f32, or %s as act is", name_of(tensor, OUT),
                       name_of(tensor, ACT));
    const enum et_dtype scale = weight == ET_I4 ? act : ET_F32;
    const bool scaled = whole || is_f8(weight);
    if (scaled && tensor[WEIGHT_SCALE].dtype != scale)
        return et_fail(error, ET_REFUSED, "weight_scale is %s, must be %s for a weight of %s and act of %s",
                       name_of(tensor, WEIGHT_SCALE), et_format(scale)->name, name_of(tensor, WEIGHT),
                       name_of(tensor, ACT));
    if (bias && tensor[BIAS].dtype != out)
        return et_fail(error, ET_REFUSED, "bias is %s, must be %s as out is", name_of(tensor, BIAS),
                       name_of(tensor, OUT));
    return ET_OK;
}

static enum et_status check_groups(const struct et_skinny_gemm *p, const struct et_tensor *tensor,
                                   struct et_error *error)
{
    const long long group = (long long)p->group;
    if (tensor[WEIGHT].dtype != ET_I4 && group != 0)
        return et_fail(error, ET_REFUSED, "group is %lld, must be 0 for a weight of %s", group,
                       name_of(tensor, WEIGHT));
    if (tensor[WEIGHT].dtype != ET_I4 && p->zero_points)
        return et_fail(error, ET_REFUSED, "zero_points is true, must be false for a weight of %s",
                       name_of(tensor, WEIGHT));
    if (tensor[WEIGHT].dtype != ET_I4)
        return ET_OK;
    if (group != 32 && group != 64 && group != 128)
        return et_fail(error, ET_REFUSED, "group is %lld, must be 32, 64 or 128 for a weight of i4", group);
    if (p->in_features % p->group != 0)
        return et_fail(error, ET_REFUSED, "in_features is %lld, must be a multiple of group = %lld",
                       (long long)p->in_features, group);
    return ET_OK;
}

static enum et_status shape(const void *params_, struct et_tensor *tensor, struct et_error *error)
{
    const struct et_skinny_gemm *p = params_;
    enum et_status status = et_params_check(params, p, error);
    if (status == ET_OK)
        status = check_types(tensor, p->bias != ET_BIAS_NONE, error);
    if (status == ET_OK)
        status = check_groups(p, tensor, error);
    if (status != ET_OK)
        return status;
    const int64_t n = p->tokens, m = p->out_features, k = p->in_features;
    const enum et_dtype weight = tensor[WEIGHT].dtype;
    const int64_t groups = p->group ? k / p->group : 0;
    const int64_t f8 = is_f8(weight);
    const int64_t rows[] = {
        [ET_BIAS_NONE] = 0, [ET_BIAS_M] = 1, [ET_BIAS_1XM] = 1, [ET_BIAS_NX1] = n, [ET_BIAS_NXM] = n};
    const int64_t columns[] = {
        [ET_BIAS_NONE] = 0, [ET_BIAS_M] = m, [ET_BIAS_1XM] = m, [ET_BIAS_NX1] = 1, [ET_BIAS_NXM] = m};
    const int64_t size[][2] = {
        [WEIGHT] = {m, k},
        [WEIGHT_SCALE] = {f8                          ? 1
                          : weight == ET_I8 || groups ? m
                                                      : 0,
                          weight == ET_I8 || f8 ? 1 : groups},
        [ZERO_POINTS] = {p->zero_points ? m : 0, p->zero_points ? groups : 0},
        [ACT_SCALE] = {f8, f8},
        [ACT] = {n, k},
        [BIAS] = {rows[p->bias], columns[p->bias]},
        [OUT] = {n, m},
    };
    for (int t = WEIGHT; t <= OUT; t++) {
        tensor[t].rank = 2;
        memcpy(tensor[t].size, size[t], sizeof size[t]);
    }
    return ET_OK;
}

static const void *row_of(const struct et_tensor *t, int64_t row)
{
    return (const char *)t->data + et_bytes(t->dtype, et_row_at(t, row));
}

static float value_at(const struct et_tensor *t, int64_t row, int64_t column)
{
    const int64_t at = et_row_at(t, row) + column * t->stride[1];
    return et_widen(t->dtype, et_load(t->dtype, t->data, at));
}

/* Row `row` of a matrix, widened. */
static void read_row(const struct et_tensor *t, int64_t row, float *dst)
{
    if (t->stride[1] == 1)
        et_widen_n(t->dtype, row_of(t, row), t->size[1], dst);
    else
        for (int64_t k = 0; k < t->size[1]; k++)
            dst[k] = value_at(t, row, k);
}

/* What a nibble of group g is relative to; et_widen has taken 8 off already. */
static float zero_of(const struct et_problem *problem, int64_t m, int64_t g)
{
    const struct et_skinny_gemm *p = problem->params;
    return p->zero_points ? value_at(&problem->tensor[ZERO_POINTS], m, g) - 8 : 0;
}

/* Weight row m without its scales: what a term multiplies act by, exact in f32. */
static void read_weights(const struct et_problem *problem, int64_t m, float *w)
{
    const struct et_skinny_gemm *p = problem->params;
    read_row(&problem->tensor[WEIGHT], m, w);
    for (int64_t k = 0; p->zero_points && k < p->in_features; k++)
        w[k] -= zero_of(problem, m, k / p->group);
}

/* The scale of group g of weight row m, which is in its terms; 1 without groups. */
static float group_scale(const struct et_problem *problem, int64_t m, int64_t g)
{
    const struct et_skinny_gemm *p = problem->params;
    return p->group ? value_at(&problem->tensor[WEIGHT_SCALE], m, g) : 1;
}

/* Scales of the whole sum, in the order they are applied; returns how many. */
static int sum_scales(const struct et_problem *problem, int64_t m, float scale[2])
{
    const enum et_dtype weight = problem->tensor[WEIGHT].dtype;
    int n = 0;
    if (is_f8(weight))
        scale[n++] = value_at(&problem->tensor[ACT_SCALE], 0, 0);
    if (is_f8(weight) || weight == ET_I8)
        scale[n++] = value_at(&problem->tensor[WEIGHT_SCALE], weight == ET_I8 ? m : 0, 0);
    return n;
}

static bool bias_at(const struct et_problem *problem, int64_t n, int64_t m, float *bias)
{
    const struct et_skinny_gemm *p = problem->params;
    const bool by_token = p->bias == ET_BIAS_NX1 || p->bias == ET_BIAS_NXM;
    *bias = 0;
    if (p->bias == ET_BIAS_NONE)
        return false;
    *bias = value_at(&problem->tensor[BIAS], by_token ? n : 0, p->bias == ET_BIAS_NX1 ? 0 : m);
    return true;
}

/* A power of two times 1 to 2: positive, and in the middle of what weights and activations make of it. */
static void fill_scale(const struct et_problem *problem, const struct et_fill *how, int t, int64_t at,
                       int64_t n, float *dst)
{
    const struct et_stream stream = et_stream(how->seed, tensors[t].name);
    const enum et_dtype weight = problem->tensor[WEIGHT].dtype;
    const float least = weight == ET_I8 ? 0x1p-6F : weight == ET_I4 ? 0x1p-3F : 0x1p-2F;
    for (int64_t i = 0; i < n; i++)
        dst[i] = least * (1 + (float)(et_word(&stream, (uint64_t)(at + i), 0) >> 16) * 0x1p-16F);
}

/* Normal and uniform data of an integer weight use most of its range. */
static float spread_over(enum et_dtype dtype, enum et_fill_kind kind)
{
    if (!et_format(dtype)->integer || kind == ET_FILL_CONSTANT)
        return 1;
    const float most = (float)et_format(dtype)->max;
    return kind == ET_FILL_NORMAL || kind == ET_FILL_OUTLIER ? most / 3 : most;
}

static void fill_plain(const struct et_problem *problem, const struct et_fill *how, int t, int64_t row,
                       float *dst)
{
    const int64_t n = problem->tensor[t].size[1];
    const bool scale = t == WEIGHT_SCALE || t == ACT_SCALE;
    const struct et_stream stream = et_stream(how->seed, tensors[t].name);
    et_fill_values(how, tensors[t].name, row * n, n, dst);
    if (how->kind == ET_FILL_CONSTANT)
        return;
    if (scale)
        fill_scale(problem, how, t, row * n, n, dst);
    const float factor = t == WEIGHT ? spread_over(problem->tensor[t].dtype, how->kind) : 1;
    for (int64_t i = 0; i < n; i++)
        dst[i] =
            t == ZERO_POINTS ? (float)(et_word(&stream, (uint64_t)(row * n + i), 0) % 16) : dst[i] * factor;
}

/*
 * The exact family: docs/operators/skinny_gemm.md. Terms are whole numbers, and the sizes of all that is
 * added to one output, bias included, sum up to no more than 2^digits of out's type: every partial sum of any
 * order is a number of that type and of f32, and each single term changes it.
 */

static int least_int(int a, int b)
{
    return a < b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static struct et_stream stream_of(const struct et_fill *how, int t)
{
    return et_stream(how->seed, tensors[t].name);
}

static int out_digits(const struct et_problem *problem)
{
    return least_int(et_format(problem->tensor[OUT].dtype)->digits, et_format(ET_F32)->digits);
}

/* Sizes that a weight may have are 1 to this: a power of two, so that its negative is one as well. i4 keeps
 * within what is left on both sides of its zero points, exact_zero. */
static int64_t weight_sizes(const struct et_problem *problem, const struct et_fill *how)
{
    const enum et_dtype weight = problem->tensor[WEIGHT].dtype;
    if (weight == ET_I4)
        return 4;
    if (how->kind != ET_FILL_ONEHOT)
        return 8;
    const int digits = et_format(weight)->digits - et_format(weight)->integer;
    return (int64_t)1 << least_int(least_int(digits, out_digits(problem)), 20);
}

static float exact_zero(const struct et_fill *how, int64_t at)
{
    const struct et_stream lots = stream_of(how, ZERO_POINTS);
    return (float)(4 + et_word(&lots, (uint64_t)at, 0) % 8);
}

/* Scales of 1 and 2, so that one for another changes what it scales; of f8 a half and 4, so that either alone
 * and either twice does. */
static float exact_scale(const struct et_problem *problem, const struct et_fill *how, int t, int64_t at)
{
    const struct et_stream lots = stream_of(how, t);
    if (how->kind == ET_FILL_ONEHOT)
        return 1;
    if (is_f8(problem->tensor[WEIGHT].dtype))
        return t == ACT_SCALE ? 0.5F : 4;
    return (float)(1 + et_word(&lots, (uint64_t)at, 0) % 2);
}

enum { SCALE_MOST = 2, BIAS_MOST = 8 };

static float exact_bias(const struct et_fill *how, int64_t at)
{
    const struct et_stream lots = stream_of(how, BIAS);
    const int32_t size = (int32_t)(1 + et_word(&lots, (uint64_t)at, 0) % BIAS_MOST);
    return how->kind == ET_FILL_ONEHOT ? 0 : (float)(et_word(&lots, (uint64_t)at, 1) % 2 ? -size : size);
}

/* Weight (m, k) for onehot: consecutive sizes along a row, other ones in the next row, and a sign that
 * differs between laps of either. For the others: by lot. */
static float exact_weight(const struct et_problem *problem, const struct et_fill *how, int64_t m, int64_t k)
{
    const struct et_skinny_gemm *p = problem->params;
    const int64_t sizes = weight_sizes(problem, how);
    const struct et_stream lots = stream_of(how, WEIGHT);
    const uint64_t at = (uint64_t)(m * p->in_features + k);
    int64_t size = (k % sizes + 7 * (m % sizes)) % sizes + 1;
    bool negative = (k / sizes + m / sizes) % 2;
    if (how->kind != ET_FILL_ONEHOT) {
        size = 1 + et_word(&lots, at, 0) % (uint32_t)sizes;
        negative = et_word(&lots, at, 1) % 2;
    }
    const float value = (float)(negative ? -size : size);
    return p->zero_points ? value + exact_zero(how, m * (p->in_features / p->group) + k / p->group) - 8
                          : value;
}

/*
 * The one position that token n looks at: tokens take turns over the first, the last, and the first and the
 * last of every chunk of eight of 64 lanes, of any lap; the next seed goes on where this one ends.
 */
static int64_t hot(const struct et_skinny_gemm *p, uint64_t seed, int64_t n)
{
    const struct et_stream lots = et_stream(seed, tensors[ACT].name);
    const int64_t k = p->in_features, chunks = k / 8, residues = least(chunks, 64), turns = 2 + 2 * residues;
    const int64_t turn = ((int64_t)(seed % (uint64_t)turns) * (p->tokens % turns) + n) % turns;
    if (turn < 2)
        return turn == 0 ? 0 : k - 1;
    const int64_t residue = (turn - 2) / 2, laps = (chunks - residue + 63) / 64;
    const int64_t lap = et_word(&lots, (uint64_t)n, 0) % laps;
    return 8 * (residue + 64 * lap) + (turn % 2 ? 7 : 0);
}

/* So many terms have room in one output. */
static int64_t terms_of(const struct et_problem *problem, const struct et_fill *how)
{
    const struct et_skinny_gemm *p = problem->params;
    const enum et_dtype weight = problem->tensor[WEIGHT].dtype;
    const bool scaled = et_format(weight)->integer || is_f8(weight);
    const int64_t term = weight_sizes(problem, how) * (scaled ? SCALE_MOST : 1);
    const int64_t room = (((int64_t)1 << out_digits(problem)) - BIAS_MOST) / term;
    return least(room, p->in_features);
}

/* Row n of act: 0, but for the first, the last, and one of each of equal stretches between them. */
static void exact_act(const struct et_problem *problem, const struct et_fill *how, int64_t n, float *dst)
{
    const struct et_skinny_gemm *p = problem->params;
    const struct et_stream lots = stream_of(how, ACT);
    const int64_t k = p->in_features, terms = terms_of(problem, how), inner = terms - 2;
    memset(dst, 0, (size_t)k * sizeof *dst);
    if (how->kind == ET_FILL_ONEHOT) {
        dst[hot(p, how->seed, n)] = 1;
        return;
    }
    dst[0] = dst[k - 1] = 1;
    for (int64_t i = 0; i < inner; i++) {
        const int64_t from = 1 + (k - 2) * i / inner, to = 1 + (k - 2) * (i + 1) / inner;
        dst[from + et_word(&lots, (uint64_t)(n * k + i), 0) % (to - from)] = 1;
    }
    for (int64_t i = 0; how->kind == ET_FILL_EXACT && i < k; i++)
        dst[i] = et_word(&lots, (uint64_t)(n * k + i), 1) % 2 ? -dst[i] : dst[i];
}

static void fill_exact(const struct et_problem *problem, const struct et_fill *how, int t, int64_t row,
                       float *dst)
{
    const int64_t n = problem->tensor[t].size[1];
    if (t == ACT)
        exact_act(problem, how, row, dst);
    for (int64_t i = 0; t != ACT && i < n; i++) {
        const int64_t at = row * n + i;
        dst[i] = t == WEIGHT        ? exact_weight(problem, how, row, i)
                 : t == ZERO_POINTS ? exact_zero(how, at)
                 : t == BIAS        ? exact_bias(how, at)
                                    : exact_scale(problem, how, t, at);
    }
}

static float weight_at(const struct et_problem *problem, int64_t m, int64_t k)
{
    const struct et_skinny_gemm *p = problem->params;
    return value_at(&problem->tensor[WEIGHT], m, k) - (p->group ? zero_of(problem, m, k / p->group) : 0);
}

/* The one position that token n looks at; -1: there is no one. */
static int64_t looked_at(const struct et_problem *problem, int64_t n)
{
    const struct et_skinny_gemm *p = problem->params;
    int64_t found = -1;
    for (int64_t k = 0; k < p->in_features; k++) {
        const float a = value_at(&problem->tensor[ACT], n, k);
        if (a != 0 && (found >= 0 || a != 1))
            return -1;
        found = a != 0 ? k : found;
    }
    return found;
}

/* The weight nearest to (*m, *k) along its row, else along its column, that is `got`. */
static bool find_weight(const struct et_problem *problem, double got, int64_t *m, int64_t *k)
{
    const struct et_skinny_gemm *p = problem->params;
    for (int64_t away = 0; away < p->in_features; away++)
        for (int64_t at = *k - away; at <= *k + away; at += away ? 2 * away : 1)
            if (at >= 0 && at < p->in_features && (double)weight_at(problem, *m, at) == got) {
                *k = at;
                return true;
            }
    for (int64_t away = 1; away < p->out_features; away++)
        for (int64_t at = *m - away; at <= *m + away; at += 2 * away)
            if (at >= 0 && at < p->out_features && (double)weight_at(problem, at, *k) == got) {
                *m = at;
                return true;
            }
    return false;
}

/* Of onehot, whose data say where each token looks. */
static bool names(const struct et_problem *problem, int64_t i, const double *got, char *text, size_t size)
{
    const struct et_skinny_gemm *p = problem->params;
    size_t used = (size_t)snprintf(text, size, "weight (out_features, in_features)");
    for (int64_t n = 0; n < p->tokens; n++) {
        int64_t m = i, k = looked_at(problem, n);
        if (k < 0 || !find_weight(problem, got[n], &m, &k))
            return false;
        if (used < size)
            used += (size_t)snprintf(text + used, size - used, "%s(%lld, %lld)", n ? ", " : " ", (long long)m,
                                     (long long)k);
    }
    return true;
}

/*
 * cancel: the second half of weight row m is such that its terms of token 0 undo those of the first half, one
 * after the other, up to `rest`. What rounding a weight leaves goes to the next term; where act is too small
 * to undo anything with, the weight is left as it is.
 */
static const struct et_own_fill own_fills[] = {
    {.name = "cancel",
     .tensor = WEIGHT,
     .option = {.name = "rest",
                .kind = ET_REAL,
                .min = -1,
                .max = 1,
                .fallback = 0,
                .doc = "what the terms of token 0 add up to, but for one weight's rounding"}},
    {.name = NULL},
};

/* What a stored weight of 1 at (m, k) adds to token 0's sum, and what one of 0 does. */
struct line {
    double slope, zero;
};

static struct line line_of(const struct et_problem *problem, int64_t m, int64_t k)
{
    const struct et_skinny_gemm *p = problem->params;
    const int64_t g = p->group ? k / p->group : 0;
    const double slope = (double)value_at(&problem->tensor[ACT], 0, k) * (double)group_scale(problem, m, g);
    return (struct line){slope, -slope * (p->group ? (double)zero_of(problem, m, g) : 0)};
}

static void fill_cancel(const struct et_problem *problem, const struct et_fill *how, int64_t m, float *dst)
{
    const struct et_skinny_gemm *p = problem->params;
    const struct et_fill normal = {.kind = ET_FILL_NORMAL, .seed = how->seed};
    const enum et_dtype dtype = problem->tensor[WEIGHT].dtype;
    const int64_t k = p->in_features, half = k / 2;
    double left = -how->value;
    fill_plain(problem, &normal, WEIGHT, m, dst);
    for (int64_t i = 0; i < k; i++) {
        const struct line line = line_of(problem, m, i);
        if (i < half)
            continue;
        const struct line first = line_of(problem, m, i - half);
        if (i - half < half)
            left +=
                (double)et_widen(dtype, et_narrow(dtype, (double)dst[i - half])) * first.slope + first.zero;
        if (fabs(line.slope) >= 0x1p-6)
            dst[i] = (float)(-(left + line.zero) / line.slope);
        left += (double)et_widen(dtype, et_narrow(dtype, (double)dst[i])) * line.slope + line.zero;
    }
}

static void fill(const struct et_problem *problem, const struct et_fill *how, int t, int64_t row, float *dst)
{
    if (how->kind == ET_FILL_OWN)
        fill_cancel(problem, how, row, dst);
    else if (et_fill_is_exact(how->kind))
        fill_exact(problem, how, t, row, dst);
    else
        fill_plain(problem, how, t, row, dst);
}

static void classify(const struct et_problem *problem, int t, int64_t row, enum et_class *dst)
{
    (void)row;
    for (int64_t i = 0; i < problem->tensor[t].size[1]; i++)
        dst[i] = ET_DATA;
}

/* Units are rows of the weight: a column of out. */
static int64_t units(const struct et_problem *problem)
{
    const struct et_skinny_gemm *p = problem->params;
    return p->out_features;
}

static struct et_unit unit(const struct et_problem *problem, int64_t i)
{
    const struct et_skinny_gemm *p = problem->params;
    return (struct et_unit){.output = OUT, .at = i, .step = p->out_features, .count = p->tokens};
}

/* The first and the last rows: where tiles of up to four begin, and where the last is cut short or moved. */
static int64_t edges(const struct et_problem *problem, int64_t n, int64_t *dst)
{
    const struct et_skinny_gemm *p = problem->params;
    int64_t count = 0;
    for (int64_t m = 0; m < p->out_features && count < n; m++) {
        if (m == 4 && p->out_features > 8)
            m = p->out_features - 4;
        dst[count++] = m;
    }
    return count;
}

enum { LANES = 64 };

/* Room for two rows of weights and one of act (oracle, lies), or for a row of weights, all of act and the
 * replay's accumulators. */
static size_t work_bytes(const struct et_problem *problem)
{
    const struct et_skinny_gemm *p = problem->params;
    const size_t n = (size_t)p->tokens, k = (size_t)p->in_features;
    return (k * (n + 2) + n * (LANES + 3)) * sizeof(float);
}

static double square(double x)
{
    return x * x;
}

/* What the terms of one output add up to. */
struct sum {
    double value, squares, sizes; /* of terms: sum, sum of squares, sum of sizes */
    double parts;                 /* sum of squares of the groups' sums */
    double offset,
        offset_sizes; /* squares and sizes of what the offset of a group's weights adds and takes off */
};

static struct sum add_up(const struct et_problem *problem, int64_t m, const float *w, const float *a)
{
    const struct et_skinny_gemm *p = problem->params;
    const int64_t group = p->group ? p->group : p->in_features;
    struct sum sum = {0};
    for (int64_t g = 0; g < p->in_features / group; g++) {
        const double scale = (double)group_scale(problem, m, g);
        double part = 0, acts = 0, acts2 = 0, acts_size = 0;
        for (int64_t k = g * group; k < (g + 1) * group; k++) {
            const double term = (double)a[k] * (double)w[k] * scale;
            part += term;
            acts += (double)a[k];
            acts2 += square((double)a[k]);
            acts_size += fabs((double)a[k]);
            sum.squares += term * term;
            sum.sizes += fabs(term);
        }
        sum.value += part;
        sum.parts += part * part;
        sum.offset += square(scale) * (square(136 * acts) + square(132) * acts2);
        sum.offset_sizes += fabs(scale) * (136 + 144) * acts_size;
    }
    return sum;
}

/* Terms below half a unit of the running sum change nothing: for accumulators narrower than f32. */
static double stagnant(const struct et_problem *problem, int64_t m, const float *w, const float *a,
                       double least)
{
    const struct et_skinny_gemm *p = problem->params;
    double lost = 0;
    for (int64_t k = 0; k < p->in_features; k++) {
        const double scale = (double)group_scale(problem, m, p->group ? k / p->group : 0);
        const double term = fabs((double)a[k] * (double)w[k] * scale);
        lost += term < least ? term : 0;
    }
    return lost;
}

/*
 * docs/operators/skinny_gemm.md, "Tolerance": n roundings of sums no larger than |ref| and a walk over the
 * terms; with groups, one more of each group's sum.
 * A declared weight of u8 is i4's offset trick: nibbles enter a group's sum plus 128, and 136 times the sum
 * of act, which is what that and the middle of a nibble add, is taken off it.
 */
static struct et_spread spread_of(const struct et_problem *problem, const struct et_arith *arith,
                                  const struct sum *sum)
{
    const struct et_skinny_gemm *p = problem->params;
    const double u = et_format(arith->sum)->unit, h = (double)arith->depth_sum;
    const double n = (double)p->in_features, energy = square(sum->value) + sum->squares;
    struct et_spread spread = {
        .variance = square(u) / 3 * (n * energy + (p->group ? sum->parts : 0)),
        .likely = 6 * u * sqrt(n / 3) * sum->sizes,
        .worst = h * u < 1 ? h * u / (1 - h * u) * sum->sizes : INFINITY,
    };
    if (arith->sum != ET_F32) {
        const double eta = et_half_ulp(arith->sum, 0);
        spread.variance += n * square(eta) / 3;
        spread.worst += h * eta;
    }
    if (p->group && arith->weight == ET_U8) {
        spread.variance += square(u) / 3 * (double)p->group * sum->offset;
        spread.likely += 6 * u * sqrt((double)p->group / 3) * sum->offset_sizes;
        spread.worst += h * u < 1 ? h * u / (1 - h * u) * sum->offset_sizes : INFINITY;
    }
    if (arith->product != ET_F32) {
        spread.variance += square(et_format(arith->product)->unit) / 3 * sum->squares;
        spread.worst += et_format(arith->product)->unit * sum->sizes;
    }
    if (arith->partial != ET_F32) {
        spread.variance += square(et_format(arith->partial)->unit) / 3 * arith->tiles * energy;
        spread.worst += et_format(arith->partial)->unit * sum->sizes;
    }
    return spread;
}

/* Scales multiply the sum and what may be wrong with it; each rounds, and so does the addition of bias. */
static void finish_spread(double scale, int scales, double scaled, double bias, struct et_spread *spread)
{
    const double u = et_format(ET_F32)->unit, more = 2 * u * scales * fabs(scaled) + u * fabs(bias);
    spread->variance *= square(scale);
    spread->likely *= fabs(scale);
    spread->bias = spread->bias * fabs(scale) + more;
    spread->worst = spread->worst * fabs(scale) + more;
}

static void oracle(const struct et_problem *problem, int64_t m, const struct et_arith *ariths, int n,
                   void *work, double *value, struct et_spread *spread)
{
    const struct et_skinny_gemm *p = problem->params;
    float *w = work, *a = w + p->in_features, scale[2];
    const int scales = sum_scales(problem, m, scale);
    double product = 1;
    for (int i = 0; i < scales; i++)
        product *= (double)scale[i];
    read_weights(problem, m, w);
    for (int64_t token = 0; token < p->tokens; token++) {
        float bias;
        read_row(&problem->tensor[ACT], token, a);
        bias_at(problem, token, m, &bias);
        const struct sum sum = add_up(problem, m, w, a);
        value[token] = sum.value * product + (double)bias;
        for (int i = 0; i < n; i++) {
            struct et_spread *out = &spread[i * p->tokens + token];
            *out = spread_of(problem, &ariths[i], &sum);
            if (ariths[i].sum != ET_F32)
                out->bias = stagnant(problem, m, w, a, et_format(ariths[i].sum)->unit * sum.sizes);
            finish_spread(product, scales, sum.value * product, (double)bias, out);
        }
    }
}

enum { FIRST_TERM, LAST_TERM, LAST_CHUNK, NO_BIAS, WEIGHT_ROW };

static const struct et_lie lies[] = {
    [FIRST_TERM] = {"first_term", false}, /* not added */
    [LAST_TERM] = {"last_term", false},   /* not added: the least of what a lost tail costs */
    [LAST_CHUNK] = {"last_chunk", false}, /* the last eight not added */
    [NO_BIAS] = {"no_bias", false},       /* not added */
    [WEIGHT_ROW] = {"weight_row", true},  /* the next row of weights in place of this one */
    {NULL, false},
};

/* Of terms [from, to) of one output. */
static double part_of(const struct et_problem *problem, int64_t m, const float *w, const float *a,
                      int64_t from, int64_t to)
{
    const struct et_skinny_gemm *p = problem->params;
    double sum = 0;
    for (int64_t k = from; k < to; k++)
        sum += (double)a[k] * (double)w[k] * (double)group_scale(problem, m, p->group ? k / p->group : 0);
    return sum;
}

static double whole_of(const struct et_problem *problem, int64_t m, const float *w, const float *a,
                       int64_t from, int64_t to)
{
    float scale[2];
    const int scales = sum_scales(problem, m, scale);
    double value = part_of(problem, m, w, a, from, to);
    for (int i = 0; i < scales; i++)
        value *= (double)scale[i];
    return value;
}

static bool lie(const struct et_problem *problem, int64_t m, int which, void *work, double *delta)
{
    const struct et_skinny_gemm *p = problem->params;
    const int64_t last = p->in_features, next = (m + 1) % p->out_features;
    const int64_t from = which == LAST_TERM ? last - 1 : which == LAST_CHUNK && last > 8 ? last - 8 : 0;
    const int64_t to = which == FIRST_TERM ? 1 : last;
    float *w = work, *a = w + last, *other = a + last, bias;
    if (which == NO_BIAS && p->bias == ET_BIAS_NONE)
        return false;
    if (which == WEIGHT_ROW && next == m)
        return false;
    read_weights(problem, m, w);
    if (which == WEIGHT_ROW)
        read_weights(problem, next, other);
    for (int64_t n = 0; n < p->tokens; n++) {
        read_row(&problem->tensor[ACT], n, a);
        bias_at(problem, n, m, &bias);
        delta[n] = which == NO_BIAS ? -(double)bias : -whole_of(problem, m, w, a, from, to);
        if (which == WEIGHT_ROW)
            delta[n] += whole_of(problem, next, other, a, from, to);
    }
    return true;
}

/* ---- Replay: all tokens of a weight row at once ---- */

/* An empty shard takes as long to replay as its tree: what claims come from others is bounded. */
enum { SHARDS_MOST = 1024 };

/* A claimed order of additions. */
struct plan {
    bool serial, pair;
    int64_t lanes, chunk, shards;
};

struct replay {
    const struct et_problem *problem;
    struct plan plan;
    int64_t m, tokens, terms;
    float *w;             /* [terms] */
    float *a;             /* [terms][tokens] */
    float *lane;          /* [LANES][tokens] */
    float *total, *p, *s; /* [tokens] each: a shard's or the whole sum, a pair, a group's part */
    bool subnormal;
};

static void add(struct replay *r, float *acc, const float *x)
{
    for (int64_t n = 0; n < r->tokens; n++) {
        r->subnormal |= et_is_subnormal(x[n]);
        acc[n] += x[n];
        r->subnormal |= et_is_subnormal(acc[n]);
    }
}

/* Terms [from, to), by the claimed rule for two of them: acc = fma(a, w, acc), or acc += fma(a1, w1, a0 *
 * w0). */
static void dot(struct replay *r, int64_t from, int64_t to, float *acc)
{
    for (int64_t k = from; k < to; k += r->plan.pair ? 2 : 1) {
        const float *a = r->a + k * r->tokens;
        if (!r->plan.pair) {
            r->subnormal |= et_fma_row(acc, r->w[k], a, r->tokens);
            continue;
        }
        memset(r->p, 0, (size_t)r->tokens * sizeof *r->p);
        r->subnormal |= et_fma_row(r->p, r->w[k], a, r->tokens);
        r->subnormal |= et_fma_row(r->p, r->w[k + 1], a + r->tokens, r->tokens);
        add(r, acc, r->p);
    }
}

/* The same of terms that share a scale: their sum from +0, and one fma that scales and adds it. */
static void chunk(struct replay *r, int64_t from, int64_t to, float *acc)
{
    const struct et_skinny_gemm *p = r->problem->params;
    if (!p->group) {
        dot(r, from, to, acc);
        return;
    }
    memset(r->s, 0, (size_t)r->tokens * sizeof *r->s);
    dot(r, from, to, r->s);
    r->subnormal |= et_fma_row(acc, group_scale(r->problem, r->m, from / p->group), r->s, r->tokens);
}

static void serial(struct replay *r)
{
    const struct et_skinny_gemm *p = r->problem->params;
    const int64_t group = p->group ? p->group : r->terms;
    memset(r->total, 0, (size_t)r->tokens * sizeof *r->total);
    for (int64_t k = 0; k < r->terms; k += group)
        chunk(r, k, k + group, r->total);
}

/* Every lane adds another's sum to its own: 8, 4, 2, 1, 16 lanes away, and 32 of 64. Lane 0's is kept, bits
 * being those of any other's. */
static void butterfly(struct replay *r)
{
    static const int64_t away[] = {8, 4, 2, 1, 16, 32};
    for (int i = 0; i < 6; i++)
        for (int64_t t = 0; away[i] < r->plan.lanes && t < r->plan.lanes; t++)
            if (t < (t ^ away[i])) {
                float *x = r->lane + t * r->tokens;
                add(r, x, r->lane + (t ^ away[i]) * r->tokens);
                memcpy(r->lane + (t ^ away[i]) * r->tokens, x, (size_t)r->tokens * sizeof *x);
            }
}

/* Shard s of `shards`: steps of lanes * chunk terms, of which lane t has `chunk` from t * chunk on. */
static void shard(struct replay *r, int64_t s)
{
    const int64_t step = r->plan.lanes * r->plan.chunk, all = step * r->plan.shards;
    const int64_t steps = r->terms / all + (r->terms % all != 0);
    memset(r->lane, 0, (size_t)(r->plan.lanes * r->tokens) * sizeof *r->lane);
    for (int64_t from = s * steps * step; from < (s + 1) * steps * step && from < r->terms; from += step)
        for (int64_t t = 0; t < r->plan.lanes && from + t * r->plan.chunk < r->terms; t++)
            chunk(r, from + t * r->plan.chunk, from + (t + 1) * r->plan.chunk, r->lane + t * r->tokens);
    butterfly(r);
}

static void lanes(struct replay *r)
{
    shard(r, 0);
    memcpy(r->total, r->lane, (size_t)r->tokens * sizeof *r->total);
    for (int64_t s = 1; s < r->plan.shards; s++) {
        shard(r, s);
        add(r, r->total, r->lane);
    }
}

static void epilogue(struct replay *r, float *value)
{
    float scale[2], bias;
    const int scales = sum_scales(r->problem, r->m, scale);
    for (int64_t n = 0; n < r->tokens; n++) {
        value[n] = r->total[n];
        for (int i = 0; i < scales; i++) {
            value[n] *= scale[i];
            r->subnormal |= et_is_subnormal(value[n]);
        }
        if (bias_at(r->problem, n, r->m, &bias))
            value[n] += bias;
        r->subnormal |= et_is_subnormal(bias) || et_is_subnormal(value[n]);
    }
}

static enum et_status plan_of(const struct et_skinny_gemm *p, const struct et_order *order, struct plan *plan,
                              struct et_error *error)
{
    *plan = (struct plan){.serial = strcmp(order->name, "serial") == 0, .pair = order->arg[2] == 1};
    if (plan->serial)
        plan->pair = false;
    plan->lanes = order->arg[0];
    plan->chunk = order->arg[1];
    plan->shards = order->arg[3] ? order->arg[3] : 1;
    const bool known = strcmp(order->name, "lanes") == 0 && (plan->lanes == 32 || plan->lanes == 64) &&
                       (plan->chunk == 8 || plan->chunk == 16 || plan->chunk == 32) &&
                       (order->arg[2] == 0 || order->arg[2] == 1) && plan->shards >= 1 &&
                       plan->shards <= SHARDS_MOST;
    if (!plan->serial && !known)
        return et_fail(error, ET_REFUSED, "skinny_gemm has no replay of order %s(%d, %d, %d, %d)",
                       order->name, order->arg[0], order->arg[1], order->arg[2], order->arg[3]);
    if (!plan->serial && p->in_features % plan->chunk != 0)
        return et_fail(error, ET_REFUSED, "in_features is %lld, must be a multiple of a_chunk = %lld",
                       (long long)p->in_features, (long long)plan->chunk);
    return ET_OK;
}

/*
 * Order serial: one chain of fmas in increasing k, from +0; of i4, one a group, whose sum is scaled and added
 * by an fma. Order lanes(lanes, a_chunk, dot, shards): lane t has a_chunk terms of every lanes * a_chunk, as
 * shard() has it; of i4, the sum of each a_chunk is scaled and added by an fma. dot is 0: fma, or 1: pair;
 * shards is 0 (as 1) to SHARDS_MOST.
 */
static enum et_status replay(const struct et_problem *problem, const struct et_order *order, int64_t m,
                             void *work, float *value, struct et_met *met, struct et_error *error)
{
    const struct et_skinny_gemm *p = problem->params;
    struct replay r = {.problem = problem, .m = m, .tokens = p->tokens, .terms = p->in_features, .w = work};
    const enum et_status status = plan_of(p, order, &r.plan, error);
    if (status != ET_OK)
        return status;
    r.a = r.w + r.terms;
    r.lane = r.a + r.terms * r.tokens;
    r.total = r.lane + LANES * r.tokens;
    r.p = r.total + r.tokens;
    r.s = r.p + r.tokens;
    for (int64_t n = 0; n < r.tokens; n++) {
        read_row(&problem->tensor[ACT], n, r.w);
        for (int64_t k = 0; k < r.terms; k++)
            r.a[k * r.tokens + n] = r.w[k];
    }
    read_weights(problem, m, r.w);
    if (r.plan.serial)
        serial(&r);
    else
        lanes(&r);
    epilogue(&r, value);
    met->subnormal |= r.subnormal;
    return ET_OK;
}

static void cost(const struct et_problem *problem, struct et_cost *dst)
{
    const struct et_skinny_gemm *p = problem->params;
    *dst =
        (struct et_cost){.flops = 2 * (double)p->tokens * (double)p->out_features * (double)p->in_features};
    for (int t = WEIGHT; t <= OUT; t++) {
        const struct et_tensor *tensor = &problem->tensor[t];
        dst->bytes[t] = (double)et_tensor_rows(tensor) * (double)et_bytes(tensor->dtype, tensor->size[1]);
    }
}

const struct et_operator et_skinny_gemm_operator = {
    .name = "skinny_gemm",
    .summary = "linear layer of a few tokens",
    .params = params,
    .params_bytes = sizeof(struct et_skinny_gemm),
    .tensors = tensors,
    .rows_across = true,
    .own_fills = own_fills,
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
