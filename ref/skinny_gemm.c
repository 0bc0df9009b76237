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
#include <stdlib.h>
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
     .offset = AT(out_features),
     .min = 1,
     .max = ET_WHOLE_MOST,
     .required = true,
     .doc = "rows of the weight, M"},
    {.name = "in_features",
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

static void fill(const struct et_problem *problem, const struct et_fill *how, int t, int64_t row, float *dst)
{
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
    .shape = shape,
    .fill = fill,
    .classify = classify,
    .units = units,
    .unit = unit,
    .edges = edges,
    .cost = cost,
};
