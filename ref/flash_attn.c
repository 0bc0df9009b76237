/*
 * flash_attn: attention with sinks, sliding windows, softcap, ALiBi and masks.
 *
 *     s[j]  = scale * sum over c of q[b, i, h, c] * k[bk, j, hk, c]    for every key j that row i sees
 *     s[j]  = softcap * tanh(s[j] / softcap)                           with softcap > 0
 *     s[j] += slope[h] * mask[b % M3, h % M2, i, j]                    with a mask
 *
 *     out[b, i, h, d] = sum of e^s[j] * v[bk, j, hk, d] / (sum of e^s[j] + e^sink[h])
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

/* Kernels have it in f32, where less than the least normal number is none. */
static enum et_status check_normal(const char *name, double value, struct et_error *error)
{
    if (value == 0 || value >= 0x1p-126)
        return ET_OK;
    return et_fail(error, ET_REFUSED, "%s is %g, must be 0 or at least 2^-126", name, value);
}

/* A distance that the mask's type stores as Inf would hide its key. */
static enum et_status check_distances(const struct et_flash_attn *p, enum et_dtype mask,
                                      struct et_error *error)
{
    const int64_t length = p->kv_length > p->query_length ? p->kv_length : p->query_length;
    if (p->mask != ET_MASK_MATERIALISED || p->max_bias == 0 || (double)length <= et_overflow(mask))
        return ET_OK;
    return et_fail(error, ET_REFUSED, "%s is %lld, must be at most %lld for distances in a mask of %s",
                   p->kv_length > p->query_length ? "kv_length" : "query_length", (long long)length,
                   (long long)et_overflow(mask), et_format(mask)->name);
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
    if (status == ET_OK)
        status = check_distances(p, tensor[ET_FA_MASK].dtype, error);
    if (status == ET_OK)
        status = check_normal("scale", p->scale, error);
    if (status == ET_OK)
        status = check_normal("softcap", p->softcap, error);
    if (status == ET_OK)
        status = check_normal("max_bias", p->max_bias, error);
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

float et_fa_sink(const struct et_problem *problem, int64_t head)
{
    const struct et_tensor *sinks = &problem->tensor[ET_FA_SINKS];
    return et_widen(sinks->dtype,
                    et_load(sinks->dtype, sinks->data, sinks->offset + head * sinks->stride[0]));
}

int64_t et_fa_kv_row(const struct et_problem *problem, const struct et_fa_row *row, int64_t j)
{
    const struct et_flash_attn *p = problem->params;
    return (row->kv_batch * p->kv_length + j) * p->kv_heads + row->kv_head;
}

void et_fa_read(const struct et_tensor *tensor, int64_t row, float *dst)
{
    const int64_t at = et_row_at(tensor, row), n = tensor->size[tensor->rank - 1],
                  step = tensor->stride[tensor->rank - 1];
    if (step == 1) {
        et_widen_n(tensor->dtype, (const char *)tensor->data + et_bytes(tensor->dtype, at), n, dst);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        dst[i] = et_widen(tensor->dtype, et_load(tensor->dtype, tensor->data, at + i * step));
}

/* Puts a unit in its place among those there are, once. */
static void add_edge(int64_t unit, int64_t n, int64_t *dst, int64_t *count)
{
    int64_t at = *count;
    while (at > 0 && dst[at - 1] >= unit)
        at--;
    if (*count == n || (at < *count && dst[at] == unit))
        return;
    memmove(dst + at + 1, dst + at, (size_t)(*count - at) * sizeof *dst);
    dst[at] = unit;
    ++*count;
}

/*
 * The first and the last query, of the first sequence and of the last in turns, in the heads
 * on both sides of a group's edge; and of the first sequence, one head each, the queries on both sides of a
 * tile's edge, and the first that a window cuts.
 */
static int64_t edges(const struct et_problem *problem, int64_t n, int64_t *dst)
{
    const struct et_flash_attn *p = problem->params;
    const int64_t group = p->q_heads / p->kv_heads, last = p->query_length - 1;
    const int64_t head[] = {0, group - 1, group % p->q_heads, p->q_heads - 1};
    const int64_t before = p->causal == ET_CAUSAL_TOP_LEFT ? 0 : p->kv_length - p->query_length;
    const int64_t cut = p->window > 0 ? p->window - before : 0;
    const int64_t query[] = {15, 16, 31, 32, cut};
    int64_t count = 0;
    for (int h = 0; h < 4; h++)
        for (int end = 0; end < 2; end++) {
            const int64_t batch = h % 2 * (p->batch - 1), q = end * last;
            add_edge((batch * p->query_length + q) * p->q_heads + head[h], n, dst, &count);
        }
    for (int k = 0; k < 5; k++)
        if (query[k] > 0 && query[k] < last)
            add_edge(query[k] * p->q_heads + head[k % 4], n, dst, &count);
    return count;
}

/* Where an oracle works. */
struct room {
    struct et_fa_key *key;
    double *sums, *sizes, *other; /* ET_FA_SUMS rows of V, and two more */
    float *q, *k, *v;
};

static struct room room_of(const struct et_problem *problem, void *work)
{
    const struct et_flash_attn *p = problem->params;
    struct room room = {.key = work};
    room.sums = (double *)(room.key + p->kv_length);
    room.sizes = room.sums + ET_FA_SUMS * p->v_head_dim;
    room.other = room.sizes + p->v_head_dim;
    room.q = (float *)(room.other + p->v_head_dim);
    room.k = room.q + p->head_dim;
    room.v = room.k + p->head_dim;
    return room;
}

static size_t work_bytes(const struct et_problem *problem)
{
    const struct et_flash_attn *p = problem->params;
    const size_t dk = (size_t)p->head_dim, dv = (size_t)p->v_head_dim;
    const size_t replay = et_fa_replay_bytes(problem);
    const size_t oracle = (size_t)p->kv_length * sizeof(struct et_fa_key) +
                          (ET_FA_SUMS + 2) * dv * sizeof(double) + (2 * dk + dv) * sizeof(float);
    return oracle > replay ? oracle : replay;
}

/* ALiBi's slope, as ggml divides heads: docs/operators/flash_attn.md. */
static double slope_of(const struct et_flash_attn *p, int64_t head)
{
    const double bias = (double)(float)p->max_bias;
    int64_t n2 = 1;
    while (2 * n2 <= p->q_heads)
        n2 *= 2;
    if (bias == 0)
        return 1;
    return head < n2 ? exp2(-bias * (double)(head + 1) / (double)n2)
                     : exp2(-bias * (double)(2 * (head - n2) + 1) / (double)(2 * n2));
}

/* What a row attends to: as it is, or with one thing wrong. */
struct view {
    struct et_fa_row row;
    double scale;
    bool sink;       /* it counts */
    int64_t without; /* a key that does not; -1: none */
    int64_t extra;   /* a key that does though it is hidden; -1: none */
};

static struct view view_of(const struct et_problem *problem, int64_t i)
{
    const struct et_flash_attn *p = problem->params;
    return (struct view){.row = et_fa_row(problem, i),
                         .scale = (double)et_fa_scale(p),
                         .sink = p->sinks != 0,
                         .without = -1,
                         .extra = -1};
}

static bool is_seen(const struct et_fa_row *row, int64_t j)
{
    return j >= row->from && j < row->to && et_fa_mask(row, j) != -INFINITY;
}

/* Score of key j, and what its rounding depends on. */
static void score(const struct et_flash_attn *p, const struct view *view, const float *q, const float *k,
                  struct et_fa_key *key)
{
    double dot = 0, sizes = 0, squares = 0, fourths = 0, k_sizes = 0, k_squares = 0;
    for (int64_t c = 0; c < p->head_dim; c++) {
        const double term = (double)q[c] * (double)k[c];
        dot += term;
        sizes += fabs(term);
        squares += term * term;
        fourths += term * term * (term * term);
        k_sizes += fabs((double)k[c]);
        k_squares += (double)k[c] * (double)k[c];
    }
    const double cap = (double)(float)p->softcap;
    const float mask = et_fa_mask(&view->row, key->j);
    key->sizes = sizes;
    key->squares = squares;
    key->fourths = fourths;
    key->k_sizes = k_sizes;
    key->k_squares = k_squares;
    key->raw = view->scale * dot;
    key->capped = cap > 0 ? cap * tanh(key->raw / cap) : key->raw;
    key->addend = mask == -INFINITY ? 0 : slope_of(p, view->row.head) * (double)mask;
    key->score = key->capped + key->addend;
}

/* softmax over the keys, and the sink. */
static void weigh(struct et_fa_seen *seen)
{
    seen->most = seen->sink;
    for (int64_t i = 0; i < seen->count; i++)
        seen->most = fmax(seen->most, seen->key[i].score);
    if (seen->count == 0 || seen->sink == INFINITY) { /* the sink takes all */
        seen->count = 0;
        return;
    }
    seen->sink_p = exp(seen->sink - seen->most);
    seen->total = seen->sink_p;
    for (int64_t i = 0; i < seen->count; i++) {
        seen->key[i].p = exp(seen->key[i].score - seen->most);
        seen->total += seen->key[i].p;
    }
    seen->sink_p /= seen->total;
    for (int64_t i = 0; i < seen->count; i++)
        seen->key[i].p /= seen->total;
}

static struct et_fa_seen see(const struct et_problem *problem, int64_t i, const struct view *view,
                             const struct room *room)
{
    const struct et_flash_attn *p = problem->params;
    struct et_fa_seen seen = {.row = view->row, .key = room->key, .sizes = room->sizes, .sink = -INFINITY};
    if (view->sink)
        seen.sink = (double)et_fa_sink(problem, view->row.head);
    et_fa_read(&problem->tensor[ET_FA_Q], i, room->q);
    for (int64_t j = 0; j < p->kv_length; j++) {
        if (j == view->without || (j != view->extra && !is_seen(&view->row, j)))
            continue;
        struct et_fa_key *key = &seen.key[seen.count++];
        *key = (struct et_fa_key){.j = j};
        et_fa_read(&problem->tensor[ET_FA_K], et_fa_kv_row(problem, &view->row, j), room->k);
        score(p, view, room->q, room->k, key);
    }
    weigh(&seen);
    return seen;
}

static void add_up(const struct et_problem *problem, const struct et_fa_seen *seen, float *v, double *value)
{
    const struct et_flash_attn *p = problem->params;
    for (int64_t d = 0; d < p->v_head_dim; d++)
        value[d] = seen->sizes[d] = 0;
    for (int64_t i = 0; i < seen->count; i++) {
        const double weight = seen->key[i].p;
        et_fa_read(&problem->tensor[ET_FA_V], et_fa_kv_row(problem, &seen->row, seen->key[i].j), v);
        for (int64_t d = 0; d < p->v_head_dim; d++) {
            value[d] += weight * (double)v[d];
            seen->sizes[d] += weight * fabs((double)v[d]);
        }
    }
}

/* How much of each key's value is of out's direction, and how far it is from out. */
static void compare(const struct et_problem *problem, struct et_fa_seen *seen, float *v, const double *value)
{
    const struct et_flash_attn *p = problem->params;
    for (int64_t d = 0; d < p->v_head_dim; d++)
        seen->energy += value[d] * value[d];
    for (int64_t i = 0; i < seen->count; i++) {
        double product = 0, apart = 0;
        et_fa_read(&problem->tensor[ET_FA_V], et_fa_kv_row(problem, &seen->row, seen->key[i].j), v);
        for (int64_t d = 0; d < p->v_head_dim; d++) {
            product += (double)v[d] * value[d];
            apart += ((double)v[d] - value[d]) * ((double)v[d] - value[d]);
        }
        seen->key[i].pull = seen->energy > 0 ? product / seen->energy - 1 : 0;
        seen->key[i].apart = apart;
    }
}

static void oracle(const struct et_problem *problem, int64_t i, const struct et_arith *ariths, int n,
                   void *work, double *value, struct et_spread *spread)
{
    const struct et_flash_attn *p = problem->params;
    const struct room room = room_of(problem, work);
    const struct view view = view_of(problem, i);
    struct et_fa_seen seen = see(problem, i, &view, &room);
    add_up(problem, &seen, room.v, value);
    compare(problem, &seen, room.v, value);
    for (int a = 0; a < n; a++)
        et_fa_spread(problem, &seen, &ariths[a], value, room.v, room.sums, spread + a * p->v_head_dim);
}

enum { FIRST_KEY, LAST_KEY, EXTRA_KEY, NO_SINK, SCORE_SCALE, KV_HEAD };

static const struct et_lie lies[] = {
    [FIRST_KEY] = {"first_key", false},     /* of those seen, not counted */
    [LAST_KEY] = {"last_key", false},       /* of those seen, not counted */
    [EXTRA_KEY] = {"extra_key", false},     /* the first of those hidden is seen */
    [NO_SINK] = {"no_sink", false},         /* not counted */
    [SCORE_SCALE] = {"score_scale", false}, /* scale is 1 % too large */
    [KV_HEAD] = {"kv_head", true},          /* h % kv_heads, or the next one where that is right */
    {NULL, false},
};

/* The first key that a row does not see, or -1. */
static int64_t hidden_of(const struct et_problem *problem, const struct et_fa_row *row)
{
    const struct et_flash_attn *p = problem->params;
    for (int64_t j = 0; j < p->kv_length; j++)
        if (!is_seen(row, j))
            return j;
    return -1;
}

/* The view of that lie. False where the row, which sees keys, cannot have it. */
static bool lie_view(const struct et_problem *problem, const struct et_fa_seen *seen, int which,
                     struct view *view)
{
    const struct et_flash_attn *p = problem->params;
    const int64_t right = view->row.kv_head, modulo = view->row.head % p->kv_heads;
    switch (which) {
    case FIRST_KEY:
        view->without = seen->key[0].j;
        return true;
    case LAST_KEY:
        view->without = seen->key[seen->count - 1].j;
        return true;
    case EXTRA_KEY:
        view->extra = hidden_of(problem, &view->row);
        return view->extra >= 0;
    case NO_SINK:
        view->sink = false;
        return seen->sink > -INFINITY;
    case SCORE_SCALE: /* a single weight is 1, whatever its score */
        view->scale *= 1.01;
        return seen->count > 1 || seen->sink > -INFINITY;
    default:
        view->row.kv_head = modulo != right ? modulo : (right + 1) % p->kv_heads;
        return true;
    }
}

static bool lie(const struct et_problem *problem, int64_t i, int which, void *work, double *delta)
{
    const struct et_flash_attn *p = problem->params;
    if ((which == NO_SINK && !p->sinks) || (which == KV_HEAD && p->kv_heads == 1))
        return false;
    const struct room room = room_of(problem, work);
    struct view view = view_of(problem, i);
    const struct et_fa_seen right = see(problem, i, &view, &room);
    /* A row that sees no key, or only its sink, has nothing to lose. */
    if (right.count == 0 || right.sink_p == 1 || !lie_view(problem, &right, which, &view))
        return false;
    add_up(problem, &right, room.v, room.other);
    const struct et_fa_seen wrong = see(problem, i, &view, &room);
    add_up(problem, &wrong, room.v, delta);
    for (int64_t d = 0; d < p->v_head_dim; d++)
        delta[d] -= room.other[d];
    return true;
}

/* Of K and V the keys that any row sees, and of flops the pairs of query and key, as the flags say. */
static void cost(const struct et_problem *problem, struct et_cost *dst)
{
    const struct et_flash_attn *p = problem->params;
    int64_t first = p->kv_length, end = 0;
    double pairs = 0;
    for (int64_t i = 0; i < p->query_length; i++) {
        int64_t from, to;
        et_fa_span(p, i, &from, &to);
        if (from >= to)
            continue;
        first = from < first ? from : first;
        end = to > end ? to : end;
        pairs += (double)(to - from);
    }
    *dst = (struct et_cost){.flops = 2 * pairs * (double)(p->batch * p->q_heads) *
                                     (double)(p->head_dim + p->v_head_dim)};
    for (int t = ET_FA_Q; t <= ET_FA_OUT; t++) {
        const struct et_tensor *tensor = &problem->tensor[t];
        dst->bytes[t] = (double)et_tensor_count(tensor) * (double)et_format(tensor->dtype)->bytes;
        if (t == ET_FA_K || t == ET_FA_V)
            dst->bytes[t] *= end > first ? (double)(end - first) / (double)p->kv_length : 0;
    }
}

static bool told(const struct et_problem *problem, int tensor)
{
    const struct et_flash_attn *p = problem->params;
    return tensor == ET_FA_MASK && p->mask == ET_MASK_MATERIALISED;
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
    .told = told,
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
