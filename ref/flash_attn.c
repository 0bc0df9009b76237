/*
 * flash_attn: attention with sinks, sliding windows, softcap, ALiBi and masks.
 *
 *     s[j]   = scale * sum over c of q[b, i, h, c] * k[bk, j, hk, c]     for every key j that query row i
 * sees s[j]   = softcap * tanh(s[j] / softcap)                           with softcap > 0 s[j]  += slope[h] *
 * mask[b % M3, h % M2, i, j]                     with a mask out[b, i, h, d] = sum of e^s[j] * v[bk, j, hk,
 * d] / (sum of e^s[j] + e^sink[h])
 *
 * with hk = h * kv_heads / q_heads and bk = b * kv_batch / batch; slope is 1 without ALiBi, the sink's term
 * is there with sinks. A row that sees no key is zeros.
 *
 * Query i is at position i + kv_length - query_length of the keys, or at i if causal is top_left. It does not
 * see a key j whose mask is -Inf; j > position, if causal; j <= position - window, with a window; j >
 * position + window_right, unless that is -1. Of a materialised mask the fill has encoded the last three, and
 * only the mask counts.
 *
 * Source of the definition: ggml's FLASH_ATTN_EXT (ggml-org/llama.cpp#15982), gpt-oss for sinks; what other
 * libraries call causal or a window: docs/operators/flash_attn.md.
 */
#include "flash_attn.h"

#include <math.h>
#include <string.h>

#define FLOATS    (1U << ET_F32 | 1U << ET_F16 | 1U << ET_BF16)
#define AT(field) offsetof(struct et_flash_attn, field)

static const char *const causals[] = {[ET_CAUSAL_NONE] = "none",
                                      [ET_CAUSAL_BOTTOM_RIGHT] = "bottom_right",
                                      [ET_CAUSAL_TOP_LEFT] = "top_left",
                                      NULL};
static const char *const masks[] = {
    [ET_MASK_NONE] = "none", [ET_MASK_DATA] = "data", [ET_MASK_MATERIALISED] = "materialised", NULL};

static const struct et_field params[] = {
    {.name = "batch",
     .offset = AT(batch),
     .min = 1,
     .max = ET_WHOLE_MOST,
     .fallback = 1,
     .doc = "sequences, B"},
    {.name = "kv_batch",
     .offset = AT(kv_batch),
     .min = 1,
     .max = ET_WHOLE_MOST,
     .same_as = "batch",
     .doc = "sequences of keys and values, which divide batch: batch / kv_batch share one"},
    {.name = "q_heads",
     .offset = AT(q_heads),
     .min = 1,
     .max = 65535,
     .required = true,
     .model_key = "q_heads",
     .parallel = ET_DIVIDED,
     .doc = "query heads, Hq, a multiple of kv_heads"},
    {.name = "kv_heads",
     .offset = AT(kv_heads),
     .min = 1,
     .max = 65535,
     .required = true,
     .model_key = "kv_heads",
     .parallel = ET_REPLICATED,
     .doc = "key/value heads, Hkv: q_heads / kv_heads consecutive query heads share one"},
    {.name = "head_dim",
     .offset = AT(head_dim),
     .min = 1,
     .max = 1024,
     .required = true,
     .model_key = "head_dim",
     .doc = "elements of a head of q and k, Dk"},
    {.name = "v_head_dim",
     .offset = AT(v_head_dim),
     .min = 1,
     .max = 1024,
     .same_as = "head_dim",
     .model_key = "v_head_dim",
     .doc = "elements of a head of v and out, Dv"},
    {.name = "query_length",
     .offset = AT(query_length),
     .min = 1,
     .max = ET_WHOLE_MOST,
     .fallback = 1,
     .doc = "query rows, Lq; decode has 1"},
    {.name = "kv_length",
     .offset = AT(kv_length),
     .min = 0,
     .max = ET_WHOLE_MOST,
     .required = true,
     .doc = "keys, Lkv; 0 gives zeros"},
    {.name = "causal",
     .kind = ET_NAME,
     .offset = AT(causal),
     .names = causals,
     .model_key = "causal",
     .doc = "no key behind the query's position: i + kv_length - query_length, or i of top_left"},
    {.name = "window",
     .offset = AT(window),
     .min = 0,
     .max = ET_WHOLE_MOST,
     .model_key = "window",
     .doc = "no key at position - window or before: so many keys, the query's own included; 0: no window"},
    {.name = "window_right",
     .offset = AT(window_right),
     .min = -1,
     .max = ET_WHOLE_MOST,
     .fallback = -1,
     .doc = "no key behind position + window_right; -1: all"},
    {.name = "sinks",
     .kind = ET_BOOL,
     .offset = AT(sinks),
     .model_key = "sinks",
     .doc = "a query head has one more logit, without a value"},
    {.name = "mask",
     .kind = ET_NAME,
     .offset = AT(mask),
     .names = masks,
     .doc = "added to scores; materialised: it is what causal and windows say, and they themselves are off"},
    {.name = "mask_batches",
     .offset = AT(mask_batches),
     .min = 1,
     .max = ET_WHOLE_MOST,
     .fallback = 1,
     .doc = "of the mask, M3, which divide batch: b takes b % M3"},
    {.name = "mask_heads",
     .offset = AT(mask_heads),
     .min = 1,
     .max = 65535,
     .fallback = 1,
     .doc = "of the mask, M2, which divide q_heads: h takes h % M2"},
    {.name = "scale",
     .kind = ET_REAL,
     .offset = AT(scale),
     .min = 0,
     .max = 0x1p64,
     .model_key = "scale",
     .doc = "of scores, rounded to f32; 0: 1 / sqrt(head_dim)"},
    {.name = "softcap",
     .kind = ET_REAL,
     .offset = AT(softcap),
     .min = 0,
     .max = 0x1p64,
     .model_key = "softcap",
     .doc = "scores become softcap * tanh(score / softcap), before the mask; rounded to f32; 0: they do not"},
    {.name = "max_bias",
     .kind = ET_REAL,
     .offset = AT(max_bias),
     .min = 0,
     .max = 1024,
     .model_key = "max_bias",
     .doc = "ALiBi: the mask is multiplied by the head's slope, the steepest being 2^(-max_bias / q_heads) "
            "of a power "
            "of two of heads; rounded to f32; 0: it is not"},
    {.name = NULL},
};

static const struct et_tensor_spec tensors[] = {
    [ET_FA_Q] = {.name = "q",
                 .role = ET_INPUT,
                 .dtypes = FLOATS,
                 .dtype = ET_F32,
                 .rank = 4,
                 .dim = {"batch", "query_length", "q_heads", "head_dim"},
                 .doc = "[B, Lq, Hq, Dk]"},
    [ET_FA_K] = {.name = "k",
                 .role = ET_INPUT,
                 .dtypes = FLOATS | 1U << ET_F8E4M3FN,
                 .dtype = ET_F16,
                 .rank = 4,
                 .dim = {"kv_batch", "kv_length", "kv_heads", "head_dim"},
                 .doc = "[Bkv, Lkv, Hkv, Dk], finite; f8e4m3fn without a scale"},
    [ET_FA_V] = {.name = "v",
                 .role = ET_INPUT,
                 .dtypes = FLOATS | 1U << ET_F8E4M3FN,
                 .dtype = ET_F16,
                 .rank = 4,
                 .dim = {"kv_batch", "kv_length", "kv_heads", "v_head_dim"},
                 .doc = "[Bkv, Lkv, Hkv, Dv], finite; f8e4m3fn without a scale"},
    [ET_FA_MASK] = {.name = "mask",
                    .role = ET_INPUT,
                    .dtypes = 1U << ET_F16 | 1U << ET_F32,
                    .dtype = ET_F16,
                    .rank = 4,
                    .dim = {"mask_batches", "mask_heads", "query_length", "kv_length"},
                    .doc = "[M3, M2, Lq, Lkv], finite or -Inf, or empty"},
    [ET_FA_SINKS] = {.name = "sinks",
                     .role = ET_INPUT,
                     .dtypes = 1U << ET_F32,
                     .dtype = ET_F32,
                     .rank = 1,
                     .dim = {"q_heads"},
                     .doc = "[Hq] logits, neither scaled nor capped nor masked, -Inf: none; or empty"},
    [ET_FA_OUT] = {.name = "out",
                   .role = ET_OUTPUT,
                   .dtypes = FLOATS,
                   .dtype = ET_F32,
                   .rank = 4,
                   .dim = {"batch", "query_length", "q_heads", "v_head_dim"},
                   .doc = "[B, Lq, Hq, Dv], rounded once"},
    {.name = NULL},
};

static enum et_status check_divides(const char *part, int64_t n, const char *whole, int64_t of,
                                    struct et_error *error)
{
    if (of % n == 0)
        return ET_OK;
    return et_fail(error, ET_REFUSED, "%s is %lld, must divide %s = %lld", part, (long long)n, whole,
                   (long long)of);
}

static enum et_status shape(const void *params_, struct et_tensor *tensor, struct et_error *error)
{
    const struct et_flash_attn *p = params_;
    enum et_status status = et_params_check(params, p, error);
    if (status == ET_OK)
        status = check_divides("kv_heads", p->kv_heads, "q_heads", p->q_heads, error);
    if (status == ET_OK)
        status = check_divides("kv_batch", p->kv_batch, "batch", p->batch, error);
    if (status == ET_OK && p->mask != ET_MASK_NONE)
        status = check_divides("mask_heads", p->mask_heads, "q_heads", p->q_heads, error);
    if (status == ET_OK && p->mask != ET_MASK_NONE)
        status = check_divides("mask_batches", p->mask_batches, "batch", p->batch, error);
    if (status == ET_OK && p->max_bias > 0 && p->mask == ET_MASK_NONE)
        status = et_fail(error, ET_REFUSED, "max_bias is %g, must be 0 without a mask", p->max_bias);
    if (status != ET_OK)
        return status;
    const bool masked = p->mask != ET_MASK_NONE;
    const int64_t size[][4] = {
        [ET_FA_Q] = {p->batch, p->query_length, p->q_heads, p->head_dim},
        [ET_FA_K] = {p->kv_batch, p->kv_length, p->kv_heads, p->head_dim},
        [ET_FA_V] = {p->kv_batch, p->kv_length, p->kv_heads, p->v_head_dim},
        [ET_FA_MASK] = {masked ? p->mask_batches : 0, masked ? p->mask_heads : 0,
                        masked ? p->query_length : 0, masked ? p->kv_length : 0},
        [ET_FA_SINKS] = {p->sinks ? p->q_heads : 0},
        [ET_FA_OUT] = {p->batch, p->query_length, p->q_heads, p->v_head_dim},
    };
    for (int t = ET_FA_Q; t <= ET_FA_OUT; t++) {
        tensor[t].rank = tensors[t].rank;
        memcpy(tensor[t].size, size[t], sizeof size[t]);
    }
    return ET_OK;
}

float et_fa_scale(const struct et_flash_attn *p)
{
    return (float)(p->scale > 0 ? p->scale : 1 / sqrt((double)p->head_dim));
}

int64_t et_fa_position(const struct et_flash_attn *p, int64_t query)
{
    return p->causal == ET_CAUSAL_TOP_LEFT ? query : query + p->kv_length - p->query_length;
}

void et_fa_span(const struct et_flash_attn *p, int64_t query, int64_t *from, int64_t *to)
{
    const int64_t position = et_fa_position(p, query);
    *from = p->window > 0 && position >= p->window ? position - p->window + 1 : 0;
    *to = p->kv_length;
    if (p->causal != ET_CAUSAL_NONE && position + 1 < *to)
        *to = position + 1;
    if (p->window_right >= 0 && position + p->window_right + 1 < *to)
        *to = position + p->window_right + 1;
    *to = *to > *from ? *to : *from;
}

struct et_fa_row et_fa_row(const struct et_problem *problem, int64_t unit)
{
    const struct et_flash_attn *p = problem->params;
    const struct et_tensor *mask = &problem->tensor[ET_FA_MASK];
    struct et_fa_row row = {.head = unit % p->q_heads,
                            .query = unit / p->q_heads % p->query_length,
                            .batch = unit / p->q_heads / p->query_length,
                            .to = p->kv_length};
    row.kv_head = row.head / (p->q_heads / p->kv_heads);
    row.kv_batch = row.batch / (p->batch / p->kv_batch);
    if (p->mask != ET_MASK_MATERIALISED)
        et_fa_span(p, row.query, &row.from, &row.to);
    if (p->mask == ET_MASK_NONE || p->kv_length == 0)
        return row;
    const int64_t at = mask->offset + row.batch % p->mask_batches * mask->stride[0] +
                       row.head % p->mask_heads * mask->stride[1] + row.query * mask->stride[2];
    row.mask_dtype = mask->dtype;
    row.mask_stride = mask->stride[3];
    row.mask = (const char *)mask->data + et_bytes(mask->dtype, at);
    return row;
}

float et_fa_mask(const struct et_fa_row *row, int64_t j)
{
    return row->mask ? et_widen(row->mask_dtype, et_load(row->mask_dtype, row->mask, j * row->mask_stride))
                     : 0;
}

/* Every key of [0, kv_length) is data, seen or not; what lies around them is the layout's, and poison. */
static void classify(const struct et_problem *problem, int t, int64_t row, enum et_class *dst)
{
    const struct et_tensor *tensor = &problem->tensor[t];
    (void)row;
    for (int64_t i = 0; i < tensor->size[tensor->rank - 1]; i++)
        dst[i] = ET_DATA;
}

static int64_t units(const struct et_problem *problem)
{
    const struct et_flash_attn *p = problem->params;
    return p->batch * p->query_length * p->q_heads;
}

static struct et_unit unit(const struct et_problem *problem, int64_t i)
{
    const struct et_flash_attn *p = problem->params;
    return (struct et_unit){.output = ET_FA_OUT, .at = i * p->v_head_dim, .step = 1, .count = p->v_head_dim};
}

static int64_t edges(const struct et_problem *problem, int64_t n, int64_t *dst)
{
    (void)problem;
    (void)n;
    (void)dst;
    return 0;
}

static size_t work_bytes(const struct et_problem *problem)
{
    const size_t replay = et_fa_replay_bytes(problem);
    return replay;
}

static void oracle(const struct et_problem *problem, int64_t i, const struct et_arith *ariths, int n,
                   void *work, double *value, struct et_spread *spread)
{
    (void)problem;
    (void)i;
    (void)ariths;
    (void)n;
    (void)work;
    (void)value;
    (void)spread;
}

static const struct et_lie lies[] = {
    {NULL, false},
};

static bool lie(const struct et_problem *problem, int64_t i, int which, void *work, double *delta)
{
    (void)problem;
    (void)i;
    (void)which;
    (void)work;
    (void)delta;
    return false;
}

static void cost(const struct et_problem *problem, struct et_cost *dst)
{
    (void)problem;
    *dst = (struct et_cost){0};
}

const struct et_operator et_flash_attn_operator = {
    .name = "flash_attn",
    .summary = "attention with sinks, windows, softcap, ALiBi and masks",
    .params = params,
    .params_bytes = sizeof(struct et_flash_attn),
    .tensors = tensors,
    .own_fills = et_fa_own_fills,
    .exact_fills = 1U << ET_FILL_EQUAL | 1U << ET_FILL_ONEHOT | 1U << ET_FILL_BALANCE,
    .lies = lies,
    .shape = shape,
    .takes = et_fa_takes,
    .fill = et_fa_fill,
    .classify = classify,
    .units = units,
    .unit = unit,
    .edges = edges,
    .work_bytes = work_bytes,
    .oracle = oracle,
    .replay = et_fa_replay,
    .lie = lie,
    .names = et_fa_names,
    .cost = cost,
};
