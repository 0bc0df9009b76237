/*
 * flash_attn in f32, in exactly the order that a variant claims.
 *
 * Order online(step, weights): a row goes through the keys in steps of `step`, 1 to STEP_MOST, the first from
 * key 0 on, and leaves out the steps in which it sees no key. In a step: scores, each an fma a channel in
 * increasing order from +0, times the scale, and what et_flash_attn makes of them; then the largest; sums so
 * far are rescaled to it; then, in increasing order, each key's weight is rounded to the type `weights` and
 * added to the sum of weights, and an fma a channel adds its value. Keys that the row does not see weigh +0,
 * which changes no bit. Sinks come last. ref/softmax.h has each of these steps.
 */
#include <math.h>
#include <string.h>

#include "flash_attn.h"
#include "fma.h"
#include "softmax.h"

enum {
    STEP_MOST = 4096, /* what claims come from others is bounded */
    KEYS = 32         /* whose scores are summed at once */
};

struct replay {
    const struct et_problem *problem;
    struct et_fa_row row;
    enum et_dtype weights;
    float scale, softcap, slope;
    float *q, *key; /* [head_dim] each: the query, and room for a key */
    float *keys;    /* [head_dim][KEYS] */
    float *s;       /* [step]: the mask, then scores; -Inf: not seen */
    float *v;       /* [v_head_dim] */
    float *acc;     /* [v_head_dim] */
    float *spare;   /* the same, for the next acc */
    float m, l;
    bool subnormal;
};

static int64_t longest_step(const struct et_flash_attn *p)
{
    return p->kv_length < STEP_MOST ? p->kv_length : STEP_MOST;
}

size_t et_fa_replay_bytes(const struct et_problem *problem)
{
    const struct et_flash_attn *p = problem->params;
    return (size_t)((2 + KEYS) * p->head_dim + longest_step(p) + 3 * p->v_head_dim) * sizeof(float);
}

static float score(struct replay *r, float dot, float mask)
{
    float s = dot * r->scale;
    r->subnormal |= et_is_subnormal(s);
    if (r->softcap > 0) {
        s = r->softcap * et_tanh(et_div(s, r->softcap));
        r->subnormal |= et_is_subnormal(s);
    }
    if (r->row.mask) {
        r->subnormal |= et_is_subnormal(mask);
        s = ET_FMA(r->slope, mask, s);
        r->subnormal |= et_is_subnormal(s);
    }
    return et_seen_score(s);
}

/* Scores of n <= KEYS keys, at[] behind key `from`. */
static void dots(struct replay *r, int64_t from, const int64_t *at, int64_t n)
{
    const struct et_tensor *k = &r->problem->tensor[ET_FA_K];
    const int64_t channels = k->size[3];
    for (int64_t i = 0; i < n; i++) {
        et_fa_read(k, et_fa_kv_row(r->problem, &r->row, from + at[i]), r->key);
        for (int64_t c = 0; c < channels; c++)
            r->keys[c * n + i] = r->key[c];
    }
    float dot[KEYS] = {0};
    for (int64_t c = 0; c < channels; c++)
        r->subnormal |= et_fma_row(dot, r->q[c], r->keys + c * n, n);
    for (int64_t i = 0; i < n; i++)
        r->s[at[i]] = score(r, dot[i], r->s[at[i]]);
}

/* s of n keys from `from` on; false where the row sees none of them. */
static bool scores(struct replay *r, int64_t from, int64_t n)
{
    int64_t at[KEYS], waiting = 0;
    bool any = false;
    for (int64_t i = 0; i < n; i++)
        r->s[i] = et_fa_mask(&r->row, from + i);
    for (int64_t i = 0; i < n; i++) {
        if (r->s[i] > -INFINITY)
            at[waiting++] = i;
        if (waiting < KEYS && i + 1 < n)
            continue;
        dots(r, from, at, waiting);
        any = any || waiting > 0;
        waiting = 0;
    }
    return any;
}

static void rescale_values(struct replay *r, float factor)
{
    const int64_t n = r->problem->tensor[ET_FA_V].size[3];
    float *const was = r->acc;
    memset(r->spare, 0, (size_t)n * sizeof *r->spare);
    r->subnormal |= et_fma_row(r->spare, factor, was, n);
    r->acc = r->spare;
    r->spare = was;
}

static void step(struct replay *r, int64_t from, int64_t n)
{
    const struct et_tensor *v = &r->problem->tensor[ET_FA_V];
    if (!scores(r, from, n))
        return;
    float to = r->m;
    for (int64_t i = 0; i < n; i++)
        to = et_larger(to, r->s[i]);
    const float factor = et_rescale(r->m, to);
    r->m = to;
    r->l = et_rescaled(r->l, factor);
    r->subnormal |= et_is_subnormal(r->l);
    rescale_values(r, factor);
    for (int64_t i = 0; i < n; i++) {
        float p = et_exp(r->s[i] - to);
        if (r->weights != ET_F32)
            p = et_widen(r->weights, et_narrow(r->weights, (double)p));
        if (p == 0)
            continue;
        r->l += p;
        et_fa_read(v, et_fa_kv_row(r->problem, &r->row, from + i), r->v);
        r->subnormal |= et_fma_row(r->acc, p, r->v, v->size[3]);
    }
}

static void add_sink(struct replay *r)
{
    const float z = et_fa_sink(r->problem, r->row.head);
    r->subnormal |= et_is_subnormal(z);
    const float factor = et_add_sink(z, &r->m, &r->l);
    r->subnormal |= et_is_subnormal(r->l);
    rescale_values(r, factor);
}

static struct replay begin(const struct et_problem *problem, int64_t unit, void *work)
{
    const struct et_flash_attn *p = problem->params;
    struct replay r = {.problem = problem,
                       .row = et_fa_row(problem, unit),
                       .scale = et_fa_scale(p),
                       .softcap = (float)p->softcap,
                       .q = work,
                       .m = -INFINITY};
    r.slope = et_alibi_slope((float)p->max_bias, (et_u32)r.row.head, (et_u32)p->q_heads);
    r.subnormal = et_is_subnormal(r.scale);
    r.key = r.q + p->head_dim;
    r.keys = r.key + p->head_dim;
    r.s = r.keys + KEYS * p->head_dim;
    r.v = r.s + longest_step(p);
    r.acc = r.v + p->v_head_dim;
    r.spare = r.acc + p->v_head_dim;
    memset(r.acc, 0, (size_t)p->v_head_dim * sizeof *r.acc);
    et_fa_read(&problem->tensor[ET_FA_Q], unit, r.q);
    return r;
}

enum et_status et_fa_replay(const struct et_problem *problem, const struct et_order *order, int64_t unit,
                            void *work, float *value, struct et_met *met, struct et_error *error)
{
    const struct et_flash_attn *p = problem->params;
    const int64_t n = order->arg[0];
    const int weights = order->arg[1];
    const bool known = weights == ET_F32 || weights == ET_F16 || weights == ET_BF16 || weights == ET_F8E4M3FN;
    if (strcmp(order->name, "online") != 0 || n < 1 || n > STEP_MOST || !known)
        return et_fail(error, ET_REFUSED, "flash_attn has no replay of order %s(%d, %d)", order->name,
                       order->arg[0], order->arg[1]);

    struct replay r = begin(problem, unit, work);
    r.weights = (enum et_dtype)weights;
    for (int64_t from = r.row.from / n * n; from < r.row.to; from += n) {
        const int64_t first = from > r.row.from ? from : r.row.from;
        const int64_t end = from + n < r.row.to ? from + n : r.row.to;
        step(&r, first, end - first);
    }
    memset(value, 0, (size_t)p->v_head_dim * sizeof *value);
    if (r.m > -INFINITY) {
        if (p->sinks)
            add_sink(&r);
        for (int64_t d = 0; d < p->v_head_dim; d++)
            value[d] = et_div(r.acc[d], r.l);
    }
    met->subnormal |= r.subnormal;
    return ET_OK;
}
