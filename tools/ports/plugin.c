/*
 * A port in plain C for `etalon run --port plugin:./plugin.so`: every operator, elements in order.
 *
 *     flags=$(pkg-config --cflags --libs etalon)
 *     cc -std=c11 -O2 -ffp-contract=off -fPIC -shared plugin.c -o plugin.so $flags
 */
#include <etalon/etalon_port.h>
#include <etalon/fmath.h>
#include <stdio.h>
#include <string.h>

/* Where an element lies. Tensors of a lower rank are asked for 0 in the dimensions that they lack. */
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

/* ---- The port ---- */

static int64_t depth_gqa_av(const void *params)
{
    return ((const struct et_gqa_av *)params)->context;
}

static int64_t depth_gdn_postconv(const void *params)
{
    return ((const struct et_gdn_postconv *)params)->k_head_dim;
}

static int64_t depth_skinny_gemm(const void *params)
{
    const struct et_skinny_gemm *p = params;
    /* And two scales and a bias. */
    return (p->group ? p->group + p->in_features / p->group : p->in_features) + 3;
}

static const struct kernel {
    const char *op;
    void (*compute)(const struct et_problem *problem, void *const *out);
    int64_t (*depth)(const void *params); /* roundings that a term of a sum meets */
} kernels[] = {{"gqa_av", gqa_av, depth_gqa_av},
               {"gdn_postconv", gdn_postconv, depth_gdn_postconv},
               {"skinny_gemm", skinny_gemm, depth_skinny_gemm}};

/* Each operator of a variant below is there. */
static const struct kernel *kernel_of(const struct et_problem *problem)
{
    const struct kernel *kernel = kernels;
    while (strcmp(kernel->op, problem->op->name) != 0)
        kernel++;
    return kernel;
}

/* Any shape; sums in f32, in the order that all operators call serial. */
static enum et_status resolve(const struct et_problem *problem, const struct et_device *device,
                              const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)device, (void)asked, (void)why;
    const int64_t depth = kernel_of(problem)->depth(problem->params);
    *claim = (struct et_claim){
        .arith = {.query = ET_F32, .product = ET_F32, .sum = ET_F32, .weight = ET_F32, .partial = ET_F32},
        .order = {.name = "serial", .arg = {ET_F32}}};
    claim->arith.depth_sum = depth < INT32_MAX ? (int32_t)depth : INT32_MAX;
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

static const struct et_variant *const variants[] = {&gqa_av_serial, &gdn_postconv_serial, &skinny_gemm_serial,
                                                    NULL};

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
