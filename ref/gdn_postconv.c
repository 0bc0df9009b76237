/*
 * gdn_postconv: what a gated delta net does between its short convolution and its recurrence.
 *
 * A row of conv is the convolution's output for one token, q | k | v, head after head. Per token and head
 *
 *     q, k:  x / sqrt(sum x^2 + eps)            over the head's k_head_dim elements; q scaled if scale_q
 *     v:     a copy
 *     g:     -exp(A_log) * softplus(a + dt_bias), the logarithm of the decay
 *     beta:  sigmoid(b)
 *
 * Source of the definition: vllm.cpp kGdnPostConv (mudler/vllm.cpp#1402), after vLLM's fused_post_conv_prep.
 */
#include <math.h>
#include <string.h>

#include "etalon.h"
#include "fma.h"
#include "fmath.h"

enum { CONV, A, B, A_LOG, DT_BIAS, Q, K, V, G, BETA };

#define F32       (1U << ET_F32)
#define BF16      (1U << ET_BF16)
#define FLOATS    (F32 | 1U << ET_F16 | BF16)
#define AT(field) offsetof(struct et_gdn_postconv, field)

static const struct et_field params[] = {
    {.name = "tokens",
     .offset = AT(tokens),
     .min = 1,
     .max = ET_WHOLE_MOST,
     .required = true,
     .doc = "tokens, T; decode has 1 a request"},
    {.name = "k_heads",
     .offset = AT(k_heads),
     .min = 1,
     .max = 65535,
     .required = true,
     .model_key = "k_heads",
     .parallel = ET_DIVIDED,
     .doc = "heads of q and of k, Hk"},
    {.name = "v_heads",
     .offset = AT(v_heads),
     .min = 1,
     .max = 65535,
     .required = true,
     .model_key = "v_heads",
     .parallel = ET_DIVIDED,
     .doc = "heads of v and of the gates, Hv; need not be a multiple of k_heads"},
    {.name = "k_head_dim",
     .offset = AT(k_head_dim),
     .min = 1,
     .max = 65536,
     .required = true,
     .model_key = "k_head_dim",
     .doc = "elements of a head of q or k, Dk"},
    {.name = "v_head_dim",
     .offset = AT(v_head_dim),
     .min = 1,
     .max = 65536,
     .required = true,
     .model_key = "v_head_dim",
     .doc = "elements of a head of v, Dv"},
    {.name = "eps",
     .kind = ET_REAL,
     .offset = AT(eps),
     .min = 0x1p-126,
     .max = 1,
     .fallback = 1e-6,
     .model_key = "eps",
     .doc = "added to the sum of squares; rounded to f32"},
    {.name = "scale_q",
     .kind = ET_BOOL,
     .offset = AT(scale_q),
     .fallback = 0,
     .model_key = "scale_q",
     .doc = "q is multiplied by k_head_dim^-1/2 as well"},
    {.name = NULL},
};

static const struct et_tensor_spec tensors[] = {
    [CONV] = {.name = "conv",
              .role = ET_INPUT,
              .dtypes = FLOATS,
              .dtype = ET_F32,
              .rank = 2,
              .dim = {"tokens", "conv_dim"},
              .doc = "[T, 2 Hk Dk + Hv Dv], a row being q, k, v; sums of squares stay finite in f32"},
    [A] = {.name = "a",
           .role = ET_INPUT,
           .dtypes = F32 | BF16,
           .dtype = ET_F32,
           .rank = 2,
           .dim = {"tokens", "v_heads"},
           .doc = "[T, Hv], the decay's projection"},
    [B] = {.name = "b",
           .role = ET_INPUT,
           .dtypes = F32 | BF16,
           .dtype = ET_F32,
           .rank = 2,
           .dim = {"tokens", "v_heads"},
           .doc = "[T, Hv], the update gate's projection"},
    [A_LOG] = {.name = "A_log",
               .role = ET_INPUT,
               .dtypes = F32,
               .dtype = ET_F32,
               .rank = 1,
               .dim = {"v_heads"},
               .doc = "[Hv]; exp(A_log) stays finite in f32"},
    [DT_BIAS] = {.name = "dt_bias",
                 .role = ET_INPUT,
                 .dtypes = F32,
                 .dtype = ET_F32,
                 .rank = 1,
                 .dim = {"v_heads"},
                 .doc = "[Hv], added to a"},
    [Q] = {.name = "q",
           .role = ET_OUTPUT,
           .dtypes = FLOATS,
           .dtype = ET_F32,
           .rank = 3,
           .dim = {"tokens", "k_heads", "k_head_dim"},
           .doc = "[T, Hk, Dk], rounded once"},
    [K] = {.name = "k",
           .role = ET_OUTPUT,
           .dtypes = FLOATS,
           .dtype = ET_F32,
           .rank = 3,
           .dim = {"tokens", "k_heads", "k_head_dim"},
           .doc = "[T, Hk, Dk], of q's type, rounded once"},
    [V] = {.name = "v",
           .role = ET_OUTPUT,
           .dtypes = FLOATS,
           .dtype = ET_F32,
           .rank = 3,
           .dim = {"tokens", "v_heads", "v_head_dim"},
           .doc = "[T, Hv, Dv], of q's type: bits of conv where that is conv's, else rounded once"},
    [G] = {.name = "g",
           .role = ET_OUTPUT,
           .dtypes = F32,
           .dtype = ET_F32,
           .rank = 2,
           .dim = {"tokens", "v_heads"},
           .doc = "[T, Hv], <= 0, not exponentiated"},
    [BETA] = {.name = "beta",
              .role = ET_OUTPUT,
              .dtypes = F32,
              .dtype = ET_F32,
              .rank = 2,
              .dim = {"tokens", "v_heads"},
              .doc = "[T, Hv], 0 to 1, not rounded to b's type"},
    {.name = NULL},
};

static int64_t key_dim(const struct et_gdn_postconv *p)
{
    return p->k_heads * p->k_head_dim;
}

static int64_t value_dim(const struct et_gdn_postconv *p)
{
    return p->v_heads * p->v_head_dim;
}

static int64_t conv_dim(const struct et_gdn_postconv *p)
{
    return 2 * key_dim(p) + value_dim(p);
}

static enum et_status shape(const void *params_, struct et_tensor *tensor, struct et_error *error)
{
    const struct et_gdn_postconv *p = params_;
    const enum et_status status = et_params_check(params, p, error);
    if (status != ET_OK)
        return status;
    if (tensor[Q].dtype != tensor[K].dtype || tensor[Q].dtype != tensor[V].dtype)
        return et_fail(error, ET_REFUSED, "q, k and v are %s, %s and %s, must be of one type",
                       et_format(tensor[Q].dtype)->name, et_format(tensor[K].dtype)->name,
                       et_format(tensor[V].dtype)->name);
    const int64_t size[][3] = {
        [CONV] = {p->tokens, conv_dim(p)},
        [A] = {p->tokens, p->v_heads},
        [B] = {p->tokens, p->v_heads},
        [A_LOG] = {p->v_heads},
        [DT_BIAS] = {p->v_heads},
        [Q] = {p->tokens, p->k_heads, p->k_head_dim},
        [K] = {p->tokens, p->k_heads, p->k_head_dim},
        [V] = {p->tokens, p->v_heads, p->v_head_dim},
        [G] = {p->tokens, p->v_heads},
        [BETA] = {p->tokens, p->v_heads},
    };
    for (int t = CONV; t <= BETA; t++) {
        tensor[t].rank = tensors[t].rank;
        memcpy(tensor[t].size, size[t], sizeof size[t]);
    }
    return ET_OK;
}

/*
 * The exact family: docs/operators/gdn_postconv.md. A head's squares are whole numbers that add up to a power
 * of 4 beside which eps vanishes: every partial sum is exact, the root is a power of two, and so is its
 * inverse.
 */

static int64_t root_of(int64_t n)
{
    int64_t root = (int64_t)sqrt((double)n);
    while (root * root > n)
        root--;
    return root;
}

static bool is_power_of_4(int64_t n)
{
    while (n % 4 == 0)
        n /= 4;
    return n == 1;
}

enum { CODES = 8, LARGEST = 255 /* has 8 digits, as bf16 */ };

/*
 * Whole numbers whose squares add up to sum, 4^m: codes of 1 to 8 drawn by lot, then what is missing in ever
 * smaller squares. The last and the first element take about half of what is missing each. Greedy squares of
 * n < 7223 are at most 6, and 255^2 > 65000.
 */
static void exact_squares(const struct et_stream *lots, int64_t first, int64_t n, int64_t sum, float *x)
{
    const int64_t spare = 10 + n / 250, codes = n > spare ? n - spare : 0;
    int64_t missing = sum;
    for (int64_t d = 1; d <= codes; d++) {
        const int64_t code = 1 + et_word(lots, (uint64_t)(first + d), 0) % CODES;
        x[d] = (float)code;
        missing -= code * code;
    }
    for (int64_t i = 0; i < n - codes; i++) {
        const int64_t d = i == 0 ? n - 1 : i == 1 ? 0 : n - i;
        const int64_t root = root_of(i == 0 ? missing / 2 : missing);
        const int64_t value = root < LARGEST ? root : LARGEST;
        x[d] = (float)value;
        missing -= value * value;
    }
}

/* One head of q (part 0) or of k (part 1), which begins at element `first` of conv. */
static void exact_head(const struct et_gdn_postconv *p, const struct et_stream *lots, int64_t token, int part,
                       int64_t head, int64_t first, float *x)
{
    const int64_t n = p->k_head_dim;
    int64_t sum = 64;
    while (sum <= CODES * CODES * n && n >= 5)
        sum *= 4;
    /* neighbouring rows have other roots; half an ulp of the sum is 2^-24 of it */
    double scale = (double)(1 << (token + 2 * head + part) % 3);
    while ((double)sum * scale * scale <= 0x1p25 * p->eps)
        scale *= 2;
    memset(x, 0, (size_t)n * sizeof *x);
    if (part == 0 && p->scale_q && !is_power_of_4(n))
        return; /* k_head_dim^-1/2 is no power of two: only zeros are exact */
    if (n < 5)
        x[(token + head) % n] = 8; /* 64 is no sum of fewer than four squares but that of 8 */
    else
        exact_squares(lots, first, n, sum, x);
    /* the first signs are the row's number: short heads differ in little else */
    const int64_t row = token * 2 * p->k_heads + part * p->k_heads + head;
    for (int64_t d = 0; d < n; d++) {
        const bool minus = (d < 16 ? row >> d : et_word(lots, (uint64_t)(first + d), 1)) & 1;
        x[d] *= (float)(minus ? -scale : scale);
    }
}

static void exact_conv(const struct et_gdn_postconv *p, const struct et_stream *lots, int64_t token,
                       float *dst)
{
    const int64_t row = token * conv_dim(p);
    for (int64_t i = 0; i < 2 * p->k_heads; i++) {
        const int64_t at = i * p->k_head_dim;
        exact_head(p, lots, token, (int)(i / p->k_heads), i % p->k_heads, row + at, dst + at);
    }
    for (int64_t at = 2 * key_dim(p); at < conv_dim(p); at++) {
        const uint32_t word = et_word(lots, (uint64_t)(row + at), 0);
        dst[at] = (float)(1 + word % LARGEST) * (word >> 31 ? -1.0F : 1.0F);
    }
}

/*
 * g = -(a + dt_bias) with A_log = 0: a is 33 to 255 by token and head, dt_bias 256 a head, so their sum says
 * which a and which dt_bias it is. beta is 1/2, 1 or 0 by lot.
 */
static void fill_exact(const struct et_problem *problem, const struct et_fill *how, int t, int64_t row,
                       float *dst)
{
    const struct et_gdn_postconv *p = problem->params;
    const struct et_stream lots = et_stream(how->seed, tensors[t].name);
    static const float gate[] = {0, 32, -128};
    if (t == CONV)
        exact_conv(p, &lots, row, dst);
    for (int64_t h = 0; t != CONV && h < p->v_heads; h++)
        dst[h] = t == A         ? (float)(33 + (31 * row + h) % 223)
                 : t == B       ? gate[et_word(&lots, (uint64_t)(row * p->v_heads + h), 0) % 3]
                 : t == DT_BIAS ? 256 * (float)h
                                : 0;
}

/* Every eighth head row of q and k is so small that eps counts. */
static void shrink_heads(const struct et_gdn_postconv *p, int64_t token, float *row)
{
    for (int64_t i = 0; i < 2 * p->k_heads; i++)
        for (int64_t d = 0; (token + i) % 8 == 7 && d < p->k_head_dim; d++)
            row[i * p->k_head_dim + d] *= 0x1p-10F;
}

static void fill(const struct et_problem *problem, const struct et_fill *how, int t, int64_t row, float *dst)
{
    const struct et_tensor *tensor = &problem->tensor[t];
    const int64_t n = tensor->size[tensor->rank - 1];
    if (et_fill_is_exact(how->kind)) {
        fill_exact(problem, how, t, row, dst);
        return;
    }
    et_fill_values(how, tensors[t].name, row * n, n, dst);
    if (t == CONV)
        shrink_heads(problem->params, row, dst);
    for (int64_t h = 0; t != CONV && h < n; h++)
        dst[h] = t == A_LOG ? 0.5F * dst[h] - 1.25F : t == DT_BIAS ? 0.125F * dst[h] : 4 * dst[h];
}

static void classify(const struct et_problem *problem, int t, int64_t row, enum et_class *dst)
{
    const struct et_tensor *tensor = &problem->tensor[t];
    (void)row;
    for (int64_t i = 0; i < tensor->size[tensor->rank - 1]; i++)
        dst[i] = ET_DATA;
}

/* Units of a token: its heads of q, of k, of v; its g, all heads; its beta. */
static int64_t units_of_token(const struct et_gdn_postconv *p)
{
    return 2 * p->k_heads + p->v_heads + 2;
}

/* A unit: the row of one output that it is. head: 0 where the row has all heads. */
struct place {
    int output;
    int64_t token, head;
};

static struct place place_of(const struct et_gdn_postconv *p, int64_t i)
{
    const int64_t token = i / units_of_token(p), at = i % units_of_token(p);
    if (at < 2 * p->k_heads)
        return (struct place){at < p->k_heads ? Q : K, token, at % p->k_heads};
    if (at < 2 * p->k_heads + p->v_heads)
        return (struct place){V, token, at - 2 * p->k_heads};
    return (struct place){at == units_of_token(p) - 2 ? G : BETA, token, 0};
}

static int64_t units(const struct et_problem *problem)
{
    const struct et_gdn_postconv *p = problem->params;
    return p->tokens * units_of_token(p);
}

static struct et_unit unit(const struct et_problem *problem, int64_t i)
{
    const struct et_gdn_postconv *p = problem->params;
    const struct place place = place_of(p, i);
    const struct et_tensor *tensor = &problem->tensor[place.output];
    const int64_t count = tensor->size[tensor->rank - 1];
    const int64_t heads = tensor->rank == 3 ? tensor->size[1] : 1;
    return (struct et_unit){
        .output = place.output, .at = (place.token * heads + place.head) * count, .step = 1, .count = count};
}

/* The first and the last head of everything, in the first two tokens and the last: no row stride shows in
 * token 0. */
static int64_t edges(const struct et_problem *problem, int64_t n, int64_t *dst)
{
    const struct et_gdn_postconv *p = problem->params;
    const int64_t token[] = {0, 1, p->tokens - 1};
    const int64_t end = 2 * p->k_heads + p->v_heads;
    const int64_t at[] = {0,   p->k_heads - 1, p->k_heads, 2 * p->k_heads - 1, 2 * p->k_heads, end - 1,
                          end, end + 1};
    int64_t count = 0;
    for (int t = 0; t < 3; t++)
        for (int k = 0; k < 8; k++) {
            const int64_t i = token[t] * units_of_token(p) + at[k];
            if (token[t] < p->tokens && count < n && (count == 0 || dst[count - 1] < i))
                dst[count++] = i;
        }
    return count;
}

/* Room for one row of conv: a head. */
static size_t work_bytes(const struct et_problem *problem)
{
    const struct et_gdn_postconv *p = problem->params;
    return (size_t)p->k_head_dim * sizeof(float);
}

static double square(double x)
{
    return x * x;
}

static float element(const struct et_tensor *t, int64_t i, int64_t j)
{
    return et_widen(t->dtype, et_load(t->dtype, t->data, t->offset + i * t->stride[0] + j * t->stride[1]));
}

static float of_head(const struct et_tensor *t, int64_t h)
{
    return et_widen(t->dtype, et_load(t->dtype, t->data, t->offset + h * t->stride[0]));
}

/* Where a head of q, k or v begins in its row of conv. */
static int64_t begin_of(const struct et_gdn_postconv *p, const struct place *place)
{
    const int64_t part = place->output == Q ? 0 : place->output == K ? key_dim(p) : 2 * key_dim(p);
    return part + place->head * (place->output == V ? p->v_head_dim : p->k_head_dim);
}

static void read_head(const struct et_problem *problem, const struct place *place, float *x)
{
    const struct et_gdn_postconv *p = problem->params;
    const int64_t begin = begin_of(p, place);
    for (int64_t d = 0; d < p->k_head_dim; d++)
        x[d] = element(&problem->tensor[CONV], place->token, begin + d);
}

static double sum_of_squares(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += square((double)x[d]);
    return sum;
}

/* What x is multiplied by. */
static double inverse_norm(const struct et_gdn_postconv *p, int output, double sum)
{
    const double inverse = 1 / sqrt(sum + (double)(float)p->eps);
    return output == Q && p->scale_q ? inverse / sqrt((double)p->k_head_dim) : inverse;
}

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* exp(A_log), and a + dt_bias. */
struct gate {
    double rate, x;
};

static struct gate gate_of(const struct et_problem *problem, int64_t token, int64_t h)
{
    const struct et_tensor *t = problem->tensor;
    return (struct gate){.rate = exp((double)of_head(&t[A_LOG], h)),
                         .x = (double)element(&t[A], token, h) + (double)of_head(&t[DT_BIAS], h)};
}

/* Element k of the unit's output. */
static double gate_value(const struct et_problem *problem, const struct place *place, int64_t h)
{
    const struct gate gate = gate_of(problem, place->token, h);
    return place->output == G ? -gate.rate * softplus(gate.x)
                              : sigmoid((double)element(&problem->tensor[B], place->token, h));
}

static const double u = 0x1p-24;

/* No part of what is right depends on luck: one bound for all data. */
static struct et_spread certain(double bound)
{
    return (struct et_spread){.bias = bound, .worst = bound};
}

/*
 * Relative to y: half of the sum's error, h roundings of it, and 5 more roundings for eps, root, inverse and
 * product; 3 for the scale. An x of 0 is 0 whatever the norm.
 */
static struct et_spread spread_of_norm(const struct et_gdn_postconv *p, int output,
                                       const struct et_arith *arith, double y)
{
    if (y == 0)
        return certain(0);
    const double unit_sum = et_format(arith->sum)->unit, h = (double)arith->depth_sum;
    const double after = (output == Q && p->scale_q ? 8 : 5) * u * fabs(y) + 0x1p-149;
    const double sum = h * unit_sum < 1 ? h * unit_sum / (1 - h * unit_sum) / 2 : (double)INFINITY;
    struct et_spread spread = certain(sum * fabs(y) + after);
    if (arith->sum != ET_F32)
        return spread;
    spread.variance = square(y * u / 2) * h / 3;
    spread.likely = 6 * sqrt(spread.variance);
    spread.bias = after;
    return spread;
}

/*
 * g: roundings of softplus, of exp(A_log) and of the product, and that of the argument. A softplus below
 * 2^-126 may be flushed to 0, and so may the result.
 */
static struct et_spread spread_of_gate(const struct et_problem *problem, const struct place *place, int64_t h,
                                       double value)
{
    const struct gate gate = gate_of(problem, place->token, h);
    const double softened = 6 * u * softplus(gate.x) + u * fabs(gate.x) * sigmoid(gate.x) + 0x1p-126;
    return certain((place->output == G ? gate.rate * softened : 4 * u * value) + 0x1p-126);
}

static void oracle(const struct et_problem *problem, int64_t i, const struct et_arith *ariths, int n,
                   void *work, double *value, struct et_spread *spread)
{
    const struct et_gdn_postconv *p = problem->params;
    const struct place place = place_of(p, i);
    const int64_t count = unit(problem, i).count;
    switch (place.output) {
    case Q:
    case K: {
        float *x = work;
        read_head(problem, &place, x);
        const double inverse = inverse_norm(p, place.output, sum_of_squares(x, count));
        for (int64_t d = 0; d < count; d++)
            value[d] = (double)x[d] * inverse;
        for (int64_t k = 0; k < n * count; k++)
            spread[k] = spread_of_norm(p, place.output, &ariths[k / count], value[k % count]);
        return;
    }
    case V:
        for (int64_t d = 0; d < count; d++)
            value[d] = (double)element(&problem->tensor[CONV], place.token, begin_of(p, &place) + d);
        for (int64_t k = 0; k < n * count; k++)
            spread[k] = certain(0);
        return;
    default:
        for (int64_t h = 0; h < count; h++)
            value[h] = gate_value(problem, &place, h);
        for (int64_t k = 0; k < n * count; k++)
            spread[k] = spread_of_gate(problem, &place, k % count, value[k % count]);
    }
}

enum { FIRST_ELEMENT, LAST_ELEMENT, V_ELEMENT, K_HEAD, GATE_HEAD };

static const struct et_lie lies[] = {
    [FIRST_ELEMENT] = {"first_element", false}, /* missing from the sum of squares */
    [LAST_ELEMENT] = {"last_element", false},   /* missing from the sum of squares */
    [V_ELEMENT] = {"v_element", false},         /* the last one of a head left 0 */
    [K_HEAD] = {"k_head", true},                /* the next head of q or k */
    [GATE_HEAD] = {"gate_head", true},          /* the next head of g or beta */
    {NULL, false},
};

static void lie_norm(const struct et_problem *problem, const struct place *place, int which, float *x,
                     double *delta)
{
    const struct et_gdn_postconv *p = problem->params;
    const int64_t n = p->k_head_dim;
    read_head(problem, place, x);
    const double sum = sum_of_squares(x, n), right = inverse_norm(p, place->output, sum);
    const double lost = square((double)x[which == LAST_ELEMENT ? n - 1 : 0]);
    const double wrong = inverse_norm(p, place->output, fmax(sum - lost, 0));
    for (int64_t d = 0; d < n; d++)
        delta[d] = (double)x[d] * ((which == K_HEAD ? 0 : wrong) - right);
    if (which != K_HEAD)
        return;
    const struct place next = {place->output, place->token, (place->head + 1) % p->k_heads};
    read_head(problem, &next, x);
    const double other = inverse_norm(p, place->output, sum_of_squares(x, n));
    for (int64_t d = 0; d < n; d++)
        delta[d] += (double)x[d] * other;
}

static bool lie(const struct et_problem *problem, int64_t i, int which, void *work, double *delta)
{
    const struct et_gdn_postconv *p = problem->params;
    const struct place place = place_of(p, i);
    const int64_t n = unit(problem, i).count;
    if (place.output == V) {
        memset(delta, 0, (size_t)n * sizeof *delta);
        delta[n - 1] = -(double)element(&problem->tensor[CONV], place.token, begin_of(p, &place) + n - 1);
        return which == V_ELEMENT;
    }
    if (place.output == Q || place.output == K) {
        if (which == V_ELEMENT || which == GATE_HEAD || (which == K_HEAD && p->k_heads == 1))
            return false;
        lie_norm(problem, &place, which, work, delta);
        return true;
    }
    for (int64_t h = 0; h < n; h++)
        delta[h] = gate_value(problem, &place, (h + 1) % n) - gate_value(problem, &place, h);
    return which == GATE_HEAD && n > 1;
}

enum { LANES = 32 };

/* Sum of squares in f32: one chain of fused steps over all elements, or the partials of 32 lanes. */
static float sum_in_order(const float *x, int64_t n, int64_t lanes, bool *subnormal)
{
    float acc[LANES] = {0};
    for (int64_t d = 0; d < n; d++) {
        acc[d % lanes] = fmaf(x[d], x[d], acc[d % lanes]);
        *subnormal = *subnormal || et_is_subnormal(x[d]) || et_is_subnormal(acc[d % lanes]);
    }
    for (int64_t half = lanes / 2; half >= 1; half /= 2)
        for (int64_t i = 0; i < half; i++)
            acc[i] += acc[i + half];
    return acc[0];
}

static void replay_norm(const struct et_problem *problem, const struct place *place, int64_t lanes, float *x,
                        float *value, bool *subnormal)
{
    const struct et_gdn_postconv *p = problem->params;
    read_head(problem, place, x);
    const float sum = sum_in_order(x, p->k_head_dim, lanes, subnormal);
    float inverse = et_div(1, et_sqrt(sum + (float)p->eps));
    if (place->output == Q && p->scale_q)
        inverse *= et_div(1, et_sqrt((float)p->k_head_dim));
    for (int64_t d = 0; d < p->k_head_dim; d++) {
        value[d] = x[d] * inverse;
        *subnormal = *subnormal || et_is_subnormal(value[d]);
    }
}

static void replay_copy(const struct et_problem *problem, const struct place *place, float *value,
                        bool *subnormal)
{
    const struct et_gdn_postconv *p = problem->params;
    const struct et_tensor *conv = &problem->tensor[CONV];
    for (int64_t d = 0; d < p->v_head_dim; d++) {
        value[d] = element(conv, place->token, begin_of(p, place) + d);
        *subnormal = *subnormal || (conv->dtype != problem->tensor[V].dtype && et_is_subnormal(value[d]));
    }
}

static float replay_gate(const struct et_problem *problem, const struct place *place, int64_t h,
                         bool *subnormal)
{
    const struct et_tensor *t = problem->tensor;
    const float b = element(&t[B], place->token, h);
    if (place->output == BETA)
        return et_sigmoid(b);
    const float a = element(&t[A], place->token, h), bias = of_head(&t[DT_BIAS], h);
    const float x = a + bias;
    const float softened = x > 20 ? x : et_log1p(et_exp(x));
    const float decay = et_exp(of_head(&t[A_LOG], h)) * softened;
    *subnormal = *subnormal || et_is_subnormal(a) || et_is_subnormal(bias) || et_is_subnormal(x) ||
                 et_is_subnormal(decay);
    return -decay;
}

/*
 * Orders differ in the sums of squares alone. `serial`: one chain over the head, in order. `lanes32`: lane i
 * is a chain over elements i, i + 32, ...; then a tree, 16, 8, 4, 2, 1. Chains are fused multiply-adds from
 * +0.
 */
static enum et_status replay(const struct et_problem *problem, const struct et_order *order, int64_t i,
                             void *work, float *value, struct et_met *met, struct et_error *error)
{
    const struct place place = place_of(problem->params, i);
    const bool serial = strcmp(order->name, "serial") == 0;
    if (!serial && strcmp(order->name, "lanes32") != 0)
        return et_fail(error, ET_REFUSED, "gdn_postconv has no replay of order %s", order->name);
    if (place.output == Q || place.output == K)
        replay_norm(problem, &place, serial ? 1 : LANES, work, value, &met->subnormal);
    else if (place.output == V)
        replay_copy(problem, &place, value, &met->subnormal);
    else
        for (int64_t h = 0; h < unit(problem, i).count; h++)
            value[h] = replay_gate(problem, &place, h, &met->subnormal);
    return ET_OK;
}

/* An elementary function counts as one. */
static void cost(const struct et_problem *problem, struct et_cost *dst)
{
    const struct et_gdn_postconv *p = problem->params;
    const double rows = (double)p->tokens * 2 * (double)p->k_heads;
    const double gates = (double)p->tokens * (double)p->v_heads;
    *dst = (struct et_cost){.flops = rows * (3 * (double)p->k_head_dim + 3) + gates * 7};
    for (int t = CONV; t <= BETA; t++) {
        const struct et_tensor *tensor = &problem->tensor[t];
        dst->bytes[t] = (double)et_tensor_count(tensor) * (double)et_format(tensor->dtype)->bytes;
    }
}

const struct et_operator et_gdn_postconv_operator = {
    .name = "gdn_postconv",
    .summary = "gated-delta-net glue after the convolution: q/k norm, v, decay, beta",
    .params = params,
    .params_bytes = sizeof(struct et_gdn_postconv),
    .tensors = tensors,
    .bound_only = true,
    .exact_fills = 1U << ET_FILL_EXACT,
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
    .cost = cost,
};
