/*
 * gdn_postconv: from the rows of a convolution, q and k of each head divided by their norms, v as it is, and of two
 * projections the decay g and the step beta of each value head.
 *
 * variant         an item, or a wave of 32 lanes, does                                          of them a token
 * per_token_head  q and k of one head | all of v and all gates                                  Hk + 1
 * chunked         q and k of one head | k_head_dim elements of v | all gates                    Hk + NV + 1
 * chunked_gates   q and k of one head | k_head_dim elements of v | the gate of one head         Hk + NV + Hv
 * row             everything: a group a token                                                   1
 * wave            q and k of one head | 32 elements of v | 32 gates: a lane an element or gate  Hk + ceil(VD / 32) +
 *                                                                                                 ceil(Hv / 32)
 * VD = v_heads * v_head_dim, NV = ceil(VD / k_head_dim); the last chunk ends with the row. A group of the first three is
 * 256 items, one of wave 8 waves; both count through tokens, and what lies behind the last token does nothing. Groups
 * have 1..256 items; whatever their number, every bit is the same.
 *
 * Local memory: row 4 * (k_head_dim + 1) bytes for each of `staged` vectors of q and k, each with its inverse norm
 * behind it, which also keeps neighbours out of one bank. wave 2048. Others none.
 *
 * Order serial, of all but wave: ss = fma(x, x, ss) over a head, in order, from +0.
 * Order lanes32, of wave: partial i of 32 does so over i, i + 32, ..., from +0; then p[i] = p[i] + p[i + s] for s = 16, 8,
 * 4, 2, 1.
 *
 * -D of each tensor's type: CONV_DTYPE, Q_DTYPE, K_DTYPE, V_DTYPE = f32 | f16 | bf16, A_DTYPE, B_DTYPE = f32 | bf16;
 * A_LOG_DTYPE, DT_BIAS_DTYPE, G_DTYPE, BETA_DTYPE = f32
 */
#include "dtype.clh"
#include "fmath.h"

#define ITEMS 256
#define LANES 32
#define WAVES (ITEMS / LANES)

/* slots: items or waves of a token. eps and q_scale: bits of a float. */
#define ARGUMENTS                                                                                                 \
    global const STORED(CONV_DTYPE) *conv, ulong conv_at, ulong conv_stride0, global const STORED(A_DTYPE) *a,    \
        ulong a_at, ulong a_stride0, global const STORED(B_DTYPE) *b, ulong b_at, ulong b_stride0,                \
        global const STORED(A_LOG_DTYPE) *A_log, ulong A_log_at, global const STORED(DT_BIAS_DTYPE) *dt_bias,     \
        ulong dt_bias_at, global STORED(Q_DTYPE) *q, ulong q_at, ulong q_stride0, ulong q_stride1,                \
        global STORED(K_DTYPE) *k, ulong k_at, ulong k_stride0, ulong k_stride1, global STORED(V_DTYPE) *v,       \
        ulong v_at, ulong v_stride0, ulong v_stride1, global STORED(G_DTYPE) *g, ulong g_at, ulong g_stride0,     \
        global STORED(BETA_DTYPE) *beta, ulong beta_at, ulong beta_stride0, ulong tokens, ulong k_heads,          \
        ulong v_heads, ulong k_head_dim, ulong v_head_dim, ulong slots, ulong eps, ulong q_scale
#define ALL                                                                                                       \
    conv, conv_at, conv_stride0, a, a_at, a_stride0, b, b_at, b_stride0, A_log, A_log_at, dt_bias, dt_bias_at, q, \
        q_at, q_stride0, q_stride1, k, k_at, k_stride0, k_stride1, v, v_at, v_stride0, v_stride1, g, g_at,        \
        g_stride0, beta, beta_at, beta_stride0, tokens, k_heads, v_heads, k_head_dim, v_head_dim, slots, eps,     \
        q_scale

/* Over elements first, first + step, ... of a vector of n. */
static float sum_of_squares(global const STORED(CONV_DTYPE) *conv, ulong at, ulong first, ulong step, ulong n)
{
    float ss = 0.0f;
    for (ulong i = first; i < n; i += step) {
        const float x = LOAD(CONV_DTYPE)(conv, at + i);
        ss = fma(x, x, ss);
    }
    return ss;
}

static float inverse_norm(float ss, ulong eps)
{
    return et_div(1.0f, et_sqrt(ss + as_float((uint)eps)));
}

/* Elements first, first + step, ... of q and k of one head, divided by their norms. */
static void store_head(ARGUMENTS, ulong t, ulong head, ulong first, ulong step, float q_inverse, float k_inverse)
{
    const ulong from = conv_at + t * conv_stride0 + head * k_head_dim, key_dim = k_heads * k_head_dim;
    const ulong q_to = q_at + t * q_stride0 + head * q_stride1, k_to = k_at + t * k_stride0 + head * k_stride1;
    for (ulong i = first; i < k_head_dim; i += step) {
        STORE(Q_DTYPE)(q, q_to + i, LOAD(CONV_DTYPE)(conv, from + i) * q_inverse);
        STORE(K_DTYPE)(k, k_to + i, LOAD(CONV_DTYPE)(conv, from + key_dim + i) * k_inverse);
    }
}

static void normalise_head(ARGUMENTS, ulong t, ulong head)
{
    const ulong from = conv_at + t * conv_stride0 + head * k_head_dim, key_dim = k_heads * k_head_dim;
    const float q_sum = sum_of_squares(conv, from, 0, 1, k_head_dim);
    const float k_sum = sum_of_squares(conv, from + key_dim, 0, 1, k_head_dim);
    store_head(ALL, t, head, 0, 1, inverse_norm(q_sum, eps) * as_float((uint)q_scale), inverse_norm(k_sum, eps));
}

/* Elements first, first + step, ... below end of v of token t, all heads one row. */
static void copy_v(ARGUMENTS, ulong t, ulong first, ulong step, ulong end)
{
    const ulong from = conv_at + t * conv_stride0 + 2 * k_heads * k_head_dim, to = v_at + t * v_stride0;
    ulong head = first / v_head_dim, d = first % v_head_dim;
    for (ulong i = first; i < end; i += step) {
#if SAME(CONV_DTYPE, V_DTYPE)
        /* as integers: NaNs keep their payloads */
        ((global BITS(V_DTYPE) *)v)[to + head * v_stride1 + d] = ((global const BITS(CONV_DTYPE) *)conv)[from + i];
#else
        STORE(V_DTYPE)(v, to + head * v_stride1 + d, LOAD(CONV_DTYPE)(conv, from + i));
#endif
        for (d += step; d >= v_head_dim; d -= v_head_dim)
            head++;
    }
}

/* g and beta of heads first, first + step, ... of token t. */
static void store_gates(ARGUMENTS, ulong t, ulong first, ulong step, ulong end)
{
    for (ulong h = first; h < end; h += step) {
        const float x = LOAD(A_DTYPE)(a, a_at + t * a_stride0 + h) + LOAD(DT_BIAS_DTYPE)(dt_bias, dt_bias_at + h);
        const float softplus = x > 20.0f ? x : et_log1p(et_exp(x));
        const float rate = et_exp(LOAD(A_LOG_DTYPE)(A_log, A_log_at + h));
        STORE(G_DTYPE)(g, g_at + t * g_stride0 + h, -(rate * softplus));
        STORE(BETA_DTYPE)(beta, beta_at + t * beta_stride0 + h,
                          et_sigmoid(LOAD(B_DTYPE)(b, b_at + t * b_stride0 + h)));
    }
}

kernel void gdn_postconv_per_token_head(ARGUMENTS)
{
    for (uint j = get_local_id(0); j < ITEMS; j += get_local_size(0)) {
        const ulong item = ITEMS * get_group_id(0) + j, t = item / slots, slot = item % slots;
        if (t >= tokens)
            continue;
        if (slot < k_heads) {
            normalise_head(ALL, t, slot);
        } else {
            copy_v(ALL, t, 0, 1, v_heads * v_head_dim);
            store_gates(ALL, t, 0, 1, v_heads);
        }
    }
}

/* Slot `slot` of token t, the gates being shared by `gates` slots, `share` to each. */
static void chunk_slot(ARGUMENTS, ulong t, ulong slot, ulong gates, ulong share)
{
    if (slot < k_heads) {
        normalise_head(ALL, t, slot);
    } else if (slot < slots - gates) {
        const ulong first = (slot - k_heads) * k_head_dim;
        copy_v(ALL, t, first, 1, min(first + k_head_dim, v_heads * v_head_dim));
    } else {
        const ulong first = (slot - (slots - gates)) * share;
        store_gates(ALL, t, first, 1, first + share);
    }
}

kernel void gdn_postconv_chunked(ARGUMENTS)
{
    for (uint j = get_local_id(0); j < ITEMS; j += get_local_size(0)) {
        const ulong item = ITEMS * get_group_id(0) + j;
        if (item / slots < tokens)
            chunk_slot(ALL, item / slots, item % slots, 1, v_heads);
    }
}

kernel void gdn_postconv_chunked_gates(ARGUMENTS)
{
    for (uint j = get_local_id(0); j < ITEMS; j += get_local_size(0)) {
        const ulong item = ITEMS * get_group_id(0) + j;
        if (item / slots < tokens)
            chunk_slot(ALL, item / slots, item % slots, v_heads, 1);
    }
}

/*
 * Of the vectors of token t, those of q and then those of k, `count` from `first` on. rows: count rows of k_head_dim + 1,
 * each with its inverse norm in the last place. Every item of the group comes here.
 */
static void normalise_staged(ARGUMENTS, ulong t, ulong first, uint count, local float *rows)
{
    const uint n = k_head_dim, row = n + 1, lane = get_local_id(0), lanes = get_local_size(0);
    const ulong from = conv_at + t * conv_stride0 + first * k_head_dim;
    for (uint j = lane; j < count * n; j += lanes)
        rows[j / n * row + j % n] = LOAD(CONV_DTYPE)(conv, from + j);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint r = lane; r < count; r += lanes) {
        float ss = 0.0f;
        for (uint i = 0; i < n; i++)
            ss = fma(rows[r * row + i], rows[r * row + i], ss);
        rows[r * row + n] = inverse_norm(ss, eps) * (first + r < k_heads ? as_float((uint)q_scale) : 1.0f);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint j = lane; j < count * n; j += lanes) {
        local const float *x = rows + j / n * row;
        const ulong vector = first + j / n, i = j % n;
        if (vector < k_heads)
            STORE(Q_DTYPE)(q, q_at + t * q_stride0 + vector * q_stride1 + i, x[i] * x[n]);
        else
            STORE(K_DTYPE)(k, k_at + t * k_stride0 + (vector - k_heads) * k_stride1 + i, x[i] * x[n]);
    }
    /* No barrier: an element is staged anew by the item that has just read it, a norm behind the next barrier. */
}

kernel void gdn_postconv_row(ARGUMENTS, ulong staged, local float *rows)
{
    const ulong t = get_group_id(0);
    for (ulong first = 0; first < 2 * k_heads; first += staged)
        normalise_staged(ALL, t, first, min(staged, 2 * k_heads - first), rows);
    copy_v(ALL, t, get_local_id(0), get_local_size(0), v_heads * v_head_dim);
    store_gates(ALL, t, get_local_id(0), get_local_size(0), v_heads);
}

/* The tree: partial[v * LANES] becomes the sum of its LANES, for v < n. Every item of the group comes here. */
static void add_partials(local float *partial, uint n)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint step = LANES / 2; step > 0; step /= 2) {
        for (uint j = get_local_id(0); j < n * step; j += get_local_size(0)) {
            const uint at = j / step * LANES + j % step;
            partial[at] += partial[at + step];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

/* One lane's part of a wave that needs no other: 32 elements of v, or 32 gates; slot: behind those of the heads. */
static void wave_slot(ARGUMENTS, ulong t, ulong slot, ulong lane)
{
    const ulong value_dim = v_heads * v_head_dim, copies = (value_dim + LANES - 1) / LANES;
    if (slot < copies) {
        copy_v(ALL, t, slot * LANES + lane, LANES, min(slot * LANES + LANES, value_dim));
    } else {
        const ulong first = (slot - copies) * LANES;
        store_gates(ALL, t, first + lane, LANES, min(first + LANES, v_heads));
    }
}

kernel void gdn_postconv_wave(ARGUMENTS)
{
    local float partial[2 * WAVES * LANES];
    for (uint j = get_local_id(0); j < ITEMS; j += get_local_size(0)) {
        const ulong item = WAVES * get_group_id(0) + j / LANES, t = item / slots, slot = item % slots;
        const bool head = t < tokens && slot < k_heads;
        const ulong from = conv_at + t * conv_stride0 + slot * k_head_dim;
        partial[j] = sum_of_squares(conv, from, j % LANES, LANES, head ? k_head_dim : 0);
        partial[ITEMS + j] =
            sum_of_squares(conv, from + k_heads * k_head_dim, j % LANES, LANES, head ? k_head_dim : 0);
        if (t < tokens && !head)
            wave_slot(ALL, t, slot - k_heads, j % LANES);
    }
    add_partials(partial, 2 * WAVES);
    for (uint j = get_local_id(0); j < ITEMS; j += get_local_size(0)) {
        const ulong item = WAVES * get_group_id(0) + j / LANES, t = item / slots, slot = item % slots;
        const uint wave = j / LANES * LANES;
        if (t < tokens && slot < k_heads)
            store_head(ALL, t, slot, j % LANES, LANES, inverse_norm(partial[wave], eps) * as_float((uint)q_scale),
                       inverse_norm(partial[ITEMS + wave], eps));
    }
}
