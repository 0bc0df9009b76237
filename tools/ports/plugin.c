/*
 * A port in plain C for `etalon run --port plugin:./plugin.so`: every operator, elements in order.
 *
 *     flags=$(pkg-config --cflags --libs etalon)
 *     cc -std=c11 -O2 -ffp-contract=off -fPIC -shared plugin.c -o plugin.so $flags
 */
#include <etalon/etalon_port.h>
#include <etalon/fmath.h>
#include <etalon/softmax.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Where an element lies, of three dimensions: what has fewer is asked for 0, and of four see inner. */
static int64_t place(const struct et_tensor *t, int64_t i, int64_t j, int64_t k)
{
    const int64_t index[] = {i, j, k};
    int64_t at = t->offset;
    for (int d = 0; d < t->rank; d++)
        at += index[d] * t->stride[d];
    return at;
}

static float get(const struct et_tensor *t, int64_t i, int64_t j, int64_t k)
{
    return et_widen(t->dtype, et_load(t->dtype, t->data, place(t, i, j, k)));
}

/* One rounding to the output's type. */
static void put(const struct et_tensor *t, void *out, int64_t i, int64_t j, int64_t k, float value)
{
    et_store(t->dtype, out, place(t, i, j, k), et_narrow(t->dtype, (double)value));
}

/* ---- gqa_av: one fused chain over the context ---- */

static void gqa_av(const struct et_problem *problem, void *const *out)
{
    enum { W, V, OUT };
    const struct et_gqa_av *p = problem->params;
    const struct et_tensor *t = problem->tensor;
    for (int64_t s = 0; s < p->query_length; s++)
        for (int64_t h = 0; h < p->q_heads; h++)
            for (int64_t d = 0; d < p->head_dim; d++) {
                float sum = 0;
                for (int64_t c = 0; c < p->context; c++)
                    sum = fmaf(get(&t[W], h, s, c), get(&t[V], c, h * p->kv_heads / p->q_heads, d), sum);
                put(&t[OUT], out[OUT], s, h, d, sum);
            }
}

/* ---- gdn_postconv: one fused chain over a head's squares ---- */

enum { CONV, A, B, A_LOG, DT_BIAS, Q, K, V, G, BETA };

/* Head h of q or k, which begins at element `from` of a row of conv. */
static void norm(const struct et_problem *problem, int64_t token, int which, int64_t h, int64_t from,
                 void *out)
{
    const struct et_gdn_postconv *p = problem->params;
    const struct et_tensor *conv = &problem->tensor[CONV];
    float sum = 0;
    for (int64_t d = 0; d < p->k_head_dim; d++)
        sum = fmaf(get(conv, token, from + d, 0), get(conv, token, from + d, 0), sum);
    float inverse = et_div(1, et_sqrt(sum + (float)p->eps));
    if (which == Q && p->scale_q)
        inverse *= et_div(1, et_sqrt((float)p->k_head_dim));
    for (int64_t d = 0; d < p->k_head_dim; d++)
        put(&problem->tensor[which], out, token, h, d, get(conv, token, from + d, 0) * inverse);
}

static void gates(const struct et_problem *problem, int64_t token, int64_t h, void *const *out)
{
    const struct et_tensor *t = problem->tensor;
    const float x = get(&t[A], token, h, 0) + get(&t[DT_BIAS], h, 0, 0);
    const float softened = x > 20 ? x : et_log1p(et_exp(x));
    put(&t[G], out[G], token, h, 0, -(et_exp(get(&t[A_LOG], h, 0, 0)) * softened));
    put(&t[BETA], out[BETA], token, h, 0, et_sigmoid(get(&t[B], token, h, 0)));
}

static void gdn_postconv(const struct et_problem *problem, void *const *out)
{
    const struct et_gdn_postconv *p = problem->params;
    const struct et_tensor *t = problem->tensor;
    const int64_t keys = p->k_heads * p->k_head_dim;
    for (int64_t token = 0; token < p->tokens; token++) {
        for (int64_t h = 0; h < p->k_heads; h++) {
            norm(problem, token, Q, h, h * p->k_head_dim, out[Q]);
            norm(problem, token, K, h, keys + h * p->k_head_dim, out[K]);
        }
        for (int64_t h = 0; h < p->v_heads; h++) {
            gates(problem, token, h, out);
            for (int64_t d = 0; d < p->v_head_dim; d++)
                put(&t[V], out[V], token, h, d, get(&t[CONV], token, 2 * keys + h * p->v_head_dim + d, 0));
        }
    }
}

/* ---- skinny_gemm: one fused chain over a row of the weight, of i4 one a group ---- */

enum { WEIGHT, WEIGHT_SCALE, ZERO_POINTS, ACT_SCALE, ACT, BIAS, RESULT };

/* Before scales of whole sums and bias. */
static float dot(const struct et_problem *problem, int64_t n, int64_t m)
{
    const struct et_skinny_gemm *p = problem->params;
    const struct et_tensor *t = problem->tensor;
    const int64_t width = p->group ? p->group : p->in_features;
    float sum = 0;
    for (int64_t g = 0; g < p->in_features / width; g++) {
        /* Without zero points it is 8, which widening takes off. */
        const float zero = p->zero_points ? get(&t[ZERO_POINTS], m, g, 0) - 8 : 0;
        float part = 0;
        for (int64_t k = g * width; k < (g + 1) * width; k++)
            part = fmaf(get(&t[ACT], n, k, 0), get(&t[WEIGHT], m, k, 0) - zero, part);
        sum = p->group ? fmaf(part, get(&t[WEIGHT_SCALE], m, g, 0), sum) : part;
    }
    return sum;
}

/* Of a tensor that may have one row, or one column, for all. */
static float shared(const struct et_tensor *t, int64_t row, int64_t column)
{
    return get(t, t->size[0] > 1 ? row : 0, t->size[1] > 1 ? column : 0, 0);
}

static void skinny_gemm(const struct et_problem *problem, void *const *out)
{
    const struct et_skinny_gemm *p = problem->params;
    const struct et_tensor *t = problem->tensor;
    for (int64_t n = 0; n < p->tokens; n++)
        for (int64_t m = 0; m < p->out_features; m++) {
            float sum = dot(problem, n, m);
            if (t[ACT_SCALE].size[0])
                sum *= get(&t[ACT_SCALE], 0, 0, 0);
            if (t[WEIGHT_SCALE].size[0] && !p->group)
                sum *= shared(&t[WEIGHT_SCALE], m, 0);
            if (p->bias != ET_BIAS_NONE)
                sum += shared(&t[BIAS], n, m);
            put(&t[RESULT], out[RESULT], n, m, 0, sum);
        }
}

/* ---- flash_attn: softmax as keys come, in steps of so many (softmax.h) ---- */

enum { STEP = 32, WIDEST = 1024 };

/* What is behind index i of the outermost dimension. */
static struct et_tensor inner(const struct et_tensor *t, int64_t i)
{
    struct et_tensor part = *t;
    part.rank--;
    part.offset += i * t->stride[0];
    memmove(part.size, t->size + 1, (size_t)part.rank * sizeof *t->size);
    memmove(part.stride, t->stride + 1, (size_t)part.rank * sizeof *t->stride);
    return part;
}

/* A sequence, [rows, heads, channels] each, and its mask, [heads, rows, keys]. */
struct sequence {
    const struct et_flash_attn *params;
    struct et_tensor q, k, v, mask, out;
};

static bool shown(const struct et_flash_attn *p, int64_t i, int64_t j)
{
    const int64_t position = p->causal == ET_CAUSAL_TOP_LEFT ? i : i + p->kv_length - p->query_length;
    if (p->mask == ET_MASK_MATERIALISED)
        return true;
    return (p->causal == ET_CAUSAL_NONE || j <= position) && (p->window == 0 || j > position - p->window) &&
           (p->window_right < 0 || j <= position + p->window_right);
}

/* Of row i of head h with key j; -Inf: it does not see that. */
static float score(const struct sequence *of, int64_t i, int64_t h, int64_t j)
{
    const struct et_flash_attn *p = of->params;
    const int64_t kv = h * p->kv_heads / p->q_heads;
    const float mask = p->mask == ET_MASK_NONE ? 0 : get(&of->mask, h % p->mask_heads, i, j);
    if (mask == -INFINITY || !shown(p, i, j))
        return -INFINITY;
    float dot = 0;
    for (int64_t c = 0; c < p->head_dim; c++)
        dot = fmaf(get(&of->q, i, h, c), get(&of->k, j, kv, c), dot);
    float s = dot * (float)(p->scale > 0 ? p->scale : 1 / sqrt((double)p->head_dim));
    if (p->softcap > 0)
        s = (float)p->softcap * et_tanh(et_div(s, (float)p->softcap));
    if (p->mask != ET_MASK_NONE)
        s = fmaf(et_alibi_slope((float)p->max_bias, (et_u32)h, (et_u32)p->q_heads), mask, s);
    return et_seen_score(s);
}

/* The largest score so far, and sums relative to it. */
struct state {
    float m, l, acc[WIDEST];
};

static void rescale(struct state *state, int64_t width, float factor)
{
    for (int64_t d = 0; d < width; d++)
        state->acc[d] = et_rescaled(state->acc[d], factor);
}

static void add_keys(struct state *state, const struct sequence *of, int64_t i, int64_t h, int64_t from,
                     int64_t n)
{
    const struct et_flash_attn *p = of->params;
    const int64_t kv = h * p->kv_heads / p->q_heads;
    float s[STEP], to = state->m;
    for (int64_t j = 0; j < n; j++) {
        s[j] = score(of, i, h, from + j);
        to = et_larger(to, s[j]);
    }
    if (to == -INFINITY)
        return;
    const float factor = et_rescale(state->m, to);
    state->m = to;
    state->l = et_rescaled(state->l, factor);
    rescale(state, p->v_head_dim, factor);
    for (int64_t j = 0; j < n; j++) {
        const float weight = et_exp(s[j] - to);
        state->l += weight;
        for (int64_t d = 0; d < p->v_head_dim && weight > 0; d++)
            state->acc[d] = fmaf(weight, get(&of->v, from + j, kv, d), state->acc[d]);
    }
}

static void attend(const struct sequence *of, int64_t i, int64_t h, const struct et_tensor *sinks, void *out)
{
    const struct et_flash_attn *p = of->params;
    struct state state = {.m = -INFINITY};
    for (int64_t from = 0; from < p->kv_length; from += STEP)
        add_keys(&state, of, i, h, from, p->kv_length - from < STEP ? p->kv_length - from : STEP);
    const bool any = state.m > -INFINITY;
    if (any && p->sinks)
        rescale(&state, p->v_head_dim, et_add_sink(get(sinks, h, 0, 0), &state.m, &state.l));
    for (int64_t d = 0; d < p->v_head_dim; d++)
        put(&of->out, out, i, h, d, any ? et_div(state.acc[d], state.l) : 0);
}

static void flash_attn(const struct et_problem *problem, void *const *out)
{
    enum { QUERY, KEY, VALUE, MASK, SINKS, OUT };
    const struct et_flash_attn *p = problem->params;
    const struct et_tensor *t = problem->tensor;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t shared = b * p->kv_batch / p->batch;
        const struct sequence sequence = {.params = p,
                                          .q = inner(&t[QUERY], b),
                                          .k = inner(&t[KEY], shared),
                                          .v = inner(&t[VALUE], shared),
                                          .mask = inner(&t[MASK], b % p->mask_batches),
                                          .out = inner(&t[OUT], b)};
        for (int64_t i = 0; i < p->query_length; i++)
            for (int64_t h = 0; h < p->q_heads; h++)
                attend(&sequence, i, h, &t[SINKS], out[OUT]);
    }
}

/* ---- The port ---- */

/* Roundings that a term of a sum meets. */
struct depth {
    int64_t sum, qk, tiles;
};

static struct depth depth_gqa_av(const void *params)
{
    return (struct depth){.sum = ((const struct et_gqa_av *)params)->context};
}

static struct depth depth_gdn_postconv(const void *params)
{
    return (struct depth){.sum = ((const struct et_gdn_postconv *)params)->k_head_dim};
}

static struct depth depth_skinny_gemm(const void *params)
{
    const struct et_skinny_gemm *p = params;
    /* And two scales and a bias. */
    return (struct depth){.sum = (p->group ? p->group + p->in_features / p->group : p->in_features) + 3};
}

static struct depth depth_flash_attn(const void *params)
{
    const struct et_flash_attn *p = params;
    return (struct depth){
        .sum = p->kv_length, .qk = p->head_dim, .tiles = p->kv_length / STEP + (p->kv_length % STEP > 0)};
}

/* Each in an order that its operator's page has. */
static const struct kernel {
    const char *op;
    void (*compute)(const struct et_problem *problem, void *const *out);
    struct depth (*depth)(const void *params);
    struct et_order order;
} kernels[] = {{"gqa_av", gqa_av, depth_gqa_av, {"serial", {ET_F32}}},
               {"gdn_postconv", gdn_postconv, depth_gdn_postconv, {"serial", {ET_F32}}},
               {"skinny_gemm", skinny_gemm, depth_skinny_gemm, {"serial", {ET_F32}}},
               {"flash_attn", flash_attn, depth_flash_attn, {"online", {STEP, ET_F32}}}};

/* Each operator of a variant below is there. */
static const struct kernel *kernel_of(const struct et_problem *problem)
{
    const struct kernel *kernel = kernels;
    while (strcmp(kernel->op, problem->op->name) != 0)
        kernel++;
    return kernel;
}

static int32_t counted(int64_t n)
{
    return n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

/* Any shape; sums in f32. */
static enum et_status resolve(const struct et_problem *problem, const struct et_device *device,
                              const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)device, (void)asked, (void)why;
    const struct kernel *kernel = kernel_of(problem);
    const struct depth depth = kernel->depth(problem->params);
    *claim = (struct et_claim){.arith = {.query = ET_F32,
                                         .product = ET_F32,
                                         .sum = ET_F32,
                                         .weight = ET_F32,
                                         .partial = ET_F32,
                                         .depth_qk = counted(depth.qk),
                                         .depth_sum = counted(depth.sum),
                                         .tiles = counted(depth.tiles)},
                               .order = kernel->order};
    return ET_OK;
}

static enum et_status prepare(struct et_session *session, const struct et_variant *variant,
                              const struct et_problem *steps, const struct et_claim *claims, int n,
                              void **state, struct et_error *error)
{
    (void)session, (void)variant, (void)claims, (void)n, (void)error;
    *state = (void *)steps; /* they last until finish */
    return ET_OK;
}

static enum et_status step(void *state, int i, int repeat, void *const *out, struct et_facts *facts,
                           struct et_error *error)
{
    const struct et_problem *problem = (const struct et_problem *)state + i;
    (void)repeat, (void)error;
    kernel_of(problem)->compute(problem, out);
    snprintf(facts->kernels, sizeof facts->kernels, "%s_serial", problem->op->name);
    return ET_OK;
}

static void finish(void *state)
{
    (void)state;
}

static const struct et_field no_knobs[] = {{.name = NULL}};

static const struct et_variant gqa_av_serial = {.op = "gqa_av",
                                                .name = "serial",
                                                .summary = "one chain over the context",
                                                .knobs = no_knobs,
                                                .resolve = resolve,
                                                .prepare = prepare,
                                                .step = step,
                                                .finish = finish};

static const struct et_variant gdn_postconv_serial = {.op = "gdn_postconv",
                                                      .name = "serial",
                                                      .summary = "one chain over a head",
                                                      .knobs = no_knobs,
                                                      .resolve = resolve,
                                                      .prepare = prepare,
                                                      .step = step,
                                                      .finish = finish};

static const struct et_variant skinny_gemm_serial = {.op = "skinny_gemm",
                                                     .name = "serial",
                                                     .summary = "one chain over a row of the weight",
                                                     .knobs = no_knobs,
                                                     .resolve = resolve,
                                                     .prepare = prepare,
                                                     .step = step,
                                                     .finish = finish};

static const struct et_variant flash_attn_serial = {.op = "flash_attn",
                                                    .name = "serial",
                                                    .summary = "keys in order, in steps of 32",
                                                    .knobs = no_knobs,
                                                    .resolve = resolve,
                                                    .prepare = prepare,
                                                    .step = step,
                                                    .finish = finish};

static const struct et_variant *const variants[] = {&gqa_av_serial, &gdn_postconv_serial, &skinny_gemm_serial,
                                                    &flash_attn_serial, NULL};

static enum et_status open_cpu(const struct et_open *options, struct et_session **session,
                               struct et_device *device, struct et_error *error)
{
    (void)options, (void)error;
    *session = NULL;
    *device = (struct et_device){.name = "plain C", .place = "0:0"};
    return ET_OK;
}

static void close_cpu(struct et_session *session)
{
    (void)session;
}

static const struct et_port port = {
    .abi = ET_ABI, .name = "plain", .variants = variants, .open = open_cpu, .close = close_cpu};

const struct et_port *et_plugin(void)
{
    return &port;
}
