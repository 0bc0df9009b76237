/*
 * A port in plain C for `etalon run --port plugin:./plugin.so`: gqa_av and gdn_postconv, elements in order.
 *
 *     cc -std=c11 -O2 -ffp-contract=off -fPIC -shared plugin.c -o plugin.so $(pkg-config --cflags --libs
 * etalon)
 */
#include <etalon/etalon_port.h>
#include <etalon/fmath.h>
#include <stdio.h>
#include <stdlib.h>

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

/* ---- The port ---- */

struct state {
    const struct et_problem *steps;
    void (*compute)(const struct et_problem *problem, void *const *out);
};

/* Any shape; sums in f32, `depth` roundings deep, in the order that both operators call serial. */
static void claim_serial(int64_t depth, struct et_claim *claim)
{
    *claim = (struct et_claim){
        .arith = {.query = ET_F32, .product = ET_F32, .sum = ET_F32, .weight = ET_F32, .partial = ET_F32},
        .order = {.name = "serial", .arg = {ET_F32}}};
    claim->arith.depth_sum = depth < INT32_MAX ? (int32_t)depth : INT32_MAX;
}

static enum et_status resolve_gqa_av(const struct et_problem *problem, const struct et_device *device,
                                     const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)device, (void)asked, (void)why;
    claim_serial(((const struct et_gqa_av *)problem->params)->context, claim);
    return ET_OK;
}

static enum et_status resolve_gdn_postconv(const struct et_problem *problem, const struct et_device *device,
                                           const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)device, (void)asked, (void)why;
    claim_serial(((const struct et_gdn_postconv *)problem->params)->k_head_dim, claim);
    return ET_OK;
}

static enum et_status prepare(const struct et_problem *steps,
                              void (*compute)(const struct et_problem *, void *const *), void **state,
                              struct et_error *error)
{
    struct state *made = malloc(sizeof *made);
    *state = made;
    if (!made)
        return et_fail(error, ET_FAILED, "out of memory");
    *made = (struct state){steps, compute};
    return ET_OK;
}

static enum et_status prepare_gqa_av(struct et_session *session, const struct et_variant *variant,
                                     const struct et_problem *steps, const struct et_claim *claims, int n,
                                     void **state, struct et_error *error)
{
    (void)session, (void)variant, (void)claims, (void)n;
    return prepare(steps, gqa_av, state, error);
}

static enum et_status prepare_gdn_postconv(struct et_session *session, const struct et_variant *variant,
                                           const struct et_problem *steps, const struct et_claim *claims,
                                           int n, void **state, struct et_error *error)
{
    (void)session, (void)variant, (void)claims, (void)n;
    return prepare(steps, gdn_postconv, state, error);
}

static enum et_status step(void *state, int i, int repeat, void *const *out, struct et_facts *facts,
                           struct et_error *error)
{
    const struct state *s = state;
    (void)repeat, (void)error;
    s->compute(&s->steps[i], out);
    snprintf(facts->kernels, sizeof facts->kernels, "%s_serial", s->steps[i].op->name);
    return ET_OK;
}

static void finish(void *state)
{
    free(state);
}

static const struct et_field no_knobs[] = {{.name = NULL}};

static const struct et_variant gqa_av_serial = {.op = "gqa_av",
                                                .name = "serial",
                                                .summary = "one chain over the context",
                                                .knobs = no_knobs,
                                                .resolve = resolve_gqa_av,
                                                .prepare = prepare_gqa_av,
                                                .step = step,
                                                .finish = finish};

static const struct et_variant gdn_postconv_serial = {.op = "gdn_postconv",
                                                      .name = "serial",
                                                      .summary = "one chain over a head",
                                                      .knobs = no_knobs,
                                                      .resolve = resolve_gdn_postconv,
                                                      .prepare = prepare_gdn_postconv,
                                                      .step = step,
                                                      .finish = finish};

static const struct et_variant *const variants[] = {&gqa_av_serial, &gdn_postconv_serial, NULL};

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
