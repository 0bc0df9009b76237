/*
 * flash_attn: out[b, i, h] = sum over the keys j that query row i sees of e^s[j] V[j] / (sum of e^s[j] + e^sink).
 *
 * variant   one group computes                             groups
 * tile_f32  R query rows of one batch and query head       ceil(query_length / R) x q_heads x batch
 *
 * R = 16 for v_head_dim <= 128, 8 up to 256, 4 up to 512, 2 up to 1024. Groups have 1..32 items; whatever their number,
 * every bit is the same. Local memory 15808 bytes: R rows of accumulators, their scores of a step, and slices of q and of
 * K, then of V, widened: 16 channels where R is 16, else 32. An item does 2 rows x 8 keys of Q K^T, 2 rows x 8 channels
 * of the product with V.
 *
 * Order online(32, f32), of a row: m = -Inf, l = +0, acc = +0, then steps of 32 keys from key 0 on. Of a key: one fma a
 * channel, in order, from +0; times the scale; softcap; plus the mask. Of a step: to = the largest of m and the scores;
 * l and acc times e^(m - to); then key by key p = e^(s - to), l = l + p, acc = fma(p, V, acc), p of an unseen key being
 * +0; m = to. A step in which the row sees no key changes nothing. Behind the last step the sink; then acc / l.
 *
 * K and V are read from keys [0, kv_length) alone, of steps in which a row of the group sees a key.
 *
 * -D of each tensor's type: Q_DTYPE, OUT_DTYPE = f32 | f16 | bf16, K_DTYPE, V_DTYPE = f32 | f16 | bf16 | f8e4m3fn,
 * MASK_DTYPE = f32 | f16, SINKS_DTYPE = f32
 */
#include "dtype.clh"
#include "softmax.h"

#define STEP      32         /* keys */
#define LINE      (STEP + 4) /* scores of a row, so that rows begin in different banks */
#define MOST_ROWS 16
#define MOST_ACC  2048 /* rows * v_head_dim rounded up to 8 */
#define MOST_Q    256  /* rows * slice */
#define MOST_TILE (STEP * 32)

/*
 * heads_share: query heads of a KV head; batch_share: batches of a kv_batch. A row's position is query + shift (signed).
 * window 0: none; reach: keys from position + reach on are hidden, 0: none. mask_batches 0: no mask. scale, softcap and
 * max_bias: bits of floats.
 */
#define ARGUMENTS                                                                                                 \
    global const STORED(Q_DTYPE) *q, ulong q_at, ulong q_stride0, ulong q_stride1, ulong q_stride2,               \
        global const STORED(K_DTYPE) *k, ulong k_at, ulong k_stride0, ulong k_stride1, ulong k_stride2,           \
        global const STORED(V_DTYPE) *v, ulong v_at, ulong v_stride0, ulong v_stride1, ulong v_stride2,           \
        global const STORED(MASK_DTYPE) *mask, ulong mask_at, ulong mask_stride0, ulong mask_stride1,             \
        ulong mask_stride2, global const STORED(SINKS_DTYPE) *sinks, ulong sinks_at,                              \
        global STORED(OUT_DTYPE) *out, ulong out_at, ulong out_stride0, ulong out_stride1, ulong out_stride2,     \
        ulong rows, ulong heads_share, ulong batch_share, ulong head_dim, ulong v_head_dim, ulong query_length,   \
        ulong kv_length, ulong shift, ulong window, ulong reach, ulong mask_batches, ulong mask_heads,            \
        ulong has_sinks, ulong scale, ulong softcap, ulong max_bias

/* What makes a dot product a score. */
struct scoring {
    float scale, softcap, slope;
};

static float score_of(float dot, float addend, bool masked, struct scoring how)
{
    float s = dot * how.scale;
    if (how.softcap > 0.0f)
        s = how.softcap * et_tanh(et_div(s, how.softcap));
    return et_seen_score(masked ? fma(how.slope, addend, s) : s);
}

/* Which keys the flags show to queries; none: from >= to. */
struct flags {
    ulong kv_length;
    long shift, window, reach;
};

static ulong first_key(long query, struct flags flags)
{
    const long from = query + flags.shift - flags.window + 1;
    return flags.window > 0 && from > 0 ? (ulong)from : 0;
}

static ulong end_key(long query, struct flags flags)
{
    const long to = query + flags.shift + flags.reach;
    if (flags.reach == 0 || to >= (long)flags.kv_length)
        return flags.kv_length;
    return to > 0 ? (ulong)to : 0;
}

/* Rows of the group's queries, of one batch and head. Its query r sees key j where *addend is not -Inf. */
struct rows {
    ulong first, n; /* queries; rows from n on see nothing */
    uint even;      /* n rounded up to whole tasks */
    ulong mask_at, mask_stride;
    bool masked;
};

/* -Inf: the row does not see the key; else what is added to its score. */
static float addend_of(uint r, ulong key, struct rows rows, struct flags flags, global const STORED(MASK_DTYPE) *mask)
{
    const long query = rows.first + r;
    if (r >= rows.n || key < first_key(query, flags) || key >= end_key(query, flags))
        return -INFINITY;
    return rows.masked ? LOAD(MASK_DTYPE)(mask, rows.mask_at + query * rows.mask_stride + key) : 0.0f;
}

/*
 * Whether any row sees a key of the step that begins with `key`; without a mask, whether it begins before `to`. Every item
 * comes here, and has the same answer.
 */
static bool any_sees(ulong key, ulong to, struct rows rows, struct flags flags, global const STORED(MASK_DTYPE) *mask,
                     local float *tile, local float *largest)
{
    const uint even = rows.masked && key < to ? rows.even : 0;
    for (uint j = get_local_id(0); j < even * STEP; j += get_local_size(0))
        tile[j] = addend_of(j / STEP, key + j % STEP, rows, flags, mask);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint r = get_local_id(0); r < even; r += get_local_size(0)) {
        float most = -INFINITY;
        for (uint j = 0; j < STEP; j++)
            most = et_larger(most, tile[r * STEP + j]);
        largest[r] = most;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float most = -INFINITY;
    for (uint r = 0; r < even; r++)
        most = et_larger(most, largest[r]);
    return rows.masked ? most != -INFINITY : key < to;
}

/* How many of n channels fall into quad t. A subtraction that stops at 0 would be an intrinsic Oclgrind has not. */
static ulong lanes_of(ulong n, ulong t)
{
    return n / 4 > t ? 4 : n / 4 == t ? n % 4 : 0;
}

/* to[r][c] = q of row r, channel c of n; rows that are not there are zeros. */
static void load_q(local float *to, uint slice, ulong n, global const STORED(Q_DTYPE) *q, ulong at, ulong stride,
                   struct rows rows)
{
    for (uint j = get_local_id(0); j < rows.even * (slice / 4); j += get_local_size(0)) {
        const uint r = j / (slice / 4), c = j % (slice / 4) * 4;
        vstore4(LOAD4(Q_DTYPE)(q, at + (rows.first + r) * stride + c, r < rows.n ? lanes_of(n, c / 4) : 0), 0,
                to + r * slice + c);
    }
}

/* to[c][j] = channel c of n of key j of `keys`, others 0: neighbouring items write neighbouring keys. */
static void load_keys(local float *to, uint slice, ulong n, global const STORED(K_DTYPE) *k, ulong at, ulong stride,
                      ulong keys)
{
    for (uint i = get_local_id(0); i < STEP * (slice / 4); i += get_local_size(0)) {
        const uint j = i % STEP, c = i / STEP * 4;
        const float4 x = LOAD4(K_DTYPE)(k, at + j * stride + c, j < keys ? lanes_of(n, c / 4) : 0);
        to[c * STEP + j] = x.x;
        to[(c + 1) * STEP + j] = x.y;
        to[(c + 2) * STEP + j] = x.z;
        to[(c + 3) * STEP + j] = x.w;
    }
}

/* to[j][d] = channel d of n of key j of `keys`, others 0. */
static void load_values(local float *to, uint slice, ulong n, global const STORED(V_DTYPE) *v, ulong at, ulong stride,
                        ulong keys)
{
    for (uint i = get_local_id(0); i < STEP * (slice / 4); i += get_local_size(0)) {
        const uint j = i / (slice / 4), d = i % (slice / 4) * 4;
        vstore4(LOAD4(V_DTYPE)(v, at + j * stride + d, j < keys ? lanes_of(n, d / 4) : 0), 0, to + j * slice + d);
    }
}

/* Dot products of a step go on by the n channels of a slice; `fresh`: they begin. */
static void add_products(local float *score, uint even, local const float *q, local const float *k, uint slice, ulong n,
                         bool fresh)
{
    for (uint i = get_local_id(0); i < even / 2 * (STEP / 8); i += get_local_size(0)) {
        const uint r = i / (STEP / 8) * 2, j = i % (STEP / 8) * 8;
        local float *at = score + r * LINE + j;
        float8 a = 0.0f, b = 0.0f;
        if (!fresh) {
            a = vload8(0, at);
            b = vload8(0, at + LINE);
        }
        for (uint c = 0; c < n; c++) {
            const float8 x = vload8(0, k + c * STEP + j);
            a = fma((float8)(q[r * slice + c]), x, a);
            b = fma((float8)(q[(r + 1) * slice + c]), x, b);
        }
        vstore8(a, 0, at);
        vstore8(b, 0, at + LINE);
    }
}

/* Dot products become scores, -Inf where the row does not see the key. */
static void finish_scores(local float *score, ulong key, struct rows rows, struct flags flags, struct scoring how,
                          global const STORED(MASK_DTYPE) *mask)
{
    for (uint i = get_local_id(0); i < rows.even * STEP; i += get_local_size(0)) {
        const uint r = i / STEP, j = i % STEP;
        const float addend = addend_of(r, key + j, rows, flags, mask);
        local float *s = score + r * LINE + j;
        *s = addend == -INFINITY ? -INFINITY : score_of(*s, addend, rows.masked, how);
    }
}

/* largest[r] goes on by a step's scores; factor[r]: what sums so far are multiplied by. */
static void step_rows(local float *largest, local float *factor, local const float *score, uint even)
{
    for (uint r = get_local_id(0); r < even; r += get_local_size(0)) {
        const float m = largest[r];
        float to = m;
        for (uint j = 0; j < STEP; j++)
            to = et_larger(to, score[r * LINE + j]);
        factor[r] = to == -INFINITY ? 1.0f : et_rescale(m, to);
        largest[r] = to;
    }
}

/* Scores become weights, +0 of a key that is not seen. */
static void weigh(local float *score, local const float *largest, uint even)
{
    for (uint i = get_local_id(0); i < even * STEP; i += get_local_size(0)) {
        local float *s = score + i / STEP * LINE + i % STEP;
        *s = *s == -INFINITY ? 0.0f : et_exp(*s - largest[i / STEP]);
    }
}

static void add_weights(local float *sum, local const float *factor, local const float *weight, uint even)
{
    for (uint r = get_local_id(0); r < even; r += get_local_size(0)) {
        float l = et_rescaled(sum[r], factor[r]);
        for (uint j = 0; j < STEP; j++)
            l = l + weight[r * LINE + j];
        sum[r] = l;
    }
}

static float8 rescaled8(float8 sum, float factor)
{
    return factor == 0.0f ? (float8)(0.0f) : sum * factor;
}

/* acc[r][d] goes on by the keys of a step, for the channels of a slice, at most `channels`, of which v has the values. */
static void add_values(local float *acc, uint stride, local const float *factor, local const float *weight, uint even,
                       local const float *v, uint slice, uint channels, uint keys)
{
    const uint octets = min(slice, channels) / 8;
    for (uint i = get_local_id(0); i < even / 2 * octets; i += get_local_size(0)) {
        const uint r = i / octets * 2, d = i % octets * 8;
        local float *at = acc + r * stride + d;
        local const float *p = weight + r * LINE;
        float8 a = rescaled8(vload8(0, at), factor[r]);
        float8 b = rescaled8(vload8(0, at + stride), factor[r + 1]);
        for (uint j = 0; j < keys; j++) {
            const float8 x = vload8(0, v + j * slice + d);
            a = fma((float8)(p[j]), x, a);
            b = fma((float8)(p[LINE + j]), x, b);
        }
        vstore8(a, 0, at);
        vstore8(b, 0, at + stride);
    }
}

/* The sink's logit joins a row's sums; factor[r]: what is left to multiply its values by. */
static void add_sinks(local float *largest, local float *sum, local float *factor, uint even,
                      global const STORED(SINKS_DTYPE) *sinks, ulong at)
{
    for (uint r = get_local_id(0); r < even; r += get_local_size(0)) {
        float m = largest[r], l = sum[r];
        if (m == -INFINITY)
            continue;
        factor[r] = et_add_sink(LOAD(SINKS_DTYPE)(sinks, at), &m, &l);
        sum[r] = l;
    }
}

static void store_rows(global STORED(OUT_DTYPE) *out, ulong at, ulong out_stride, ulong v_head_dim, struct rows rows,
                       local const float *acc, uint stride, local const float *largest, local const float *sum,
                       local const float *factor, bool sunk)
{
    for (uint i = get_local_id(0); i < rows.n * v_head_dim; i += get_local_size(0)) {
        const uint r = i / (uint)v_head_dim, d = i % (uint)v_head_dim;
        const float x = acc[r * stride + d];
        const float merged = sunk ? et_rescaled(x, factor[r]) : x;
        const float value = largest[r] == -INFINITY ? 0.0f : et_div(merged, sum[r]);
        STORE(OUT_DTYPE)(out, at + (rows.first + r) * out_stride + d, value);
    }
}

/*
 * Loops and sinks have no branch around their barriers, but run once where there is nothing to do, on no keys or rows:
 * PoCL's compiler copies what follows such a branch, which makes it three times as slow.
 */
kernel void flash_attn_tile_f32(ARGUMENTS)
{
    local float acc[MOST_ACC], tile[MOST_TILE], score[MOST_ROWS * LINE], q_tile[MOST_Q];
    local float largest[MOST_ROWS], sum[MOST_ROWS], factor[MOST_ROWS];
    const ulong head = get_group_id(1), batch = get_group_id(2);
    const ulong kv_head = head / heads_share, kv_batch = batch / batch_share;
    const uint slice = rows > 8 ? 16 : 32, stride = (v_head_dim + 7) / 8 * 8;
    const struct flags flags = {kv_length, (long)shift, (long)window, (long)reach};
    const struct scoring how = {as_float((uint)scale), as_float((uint)softcap),
                                et_alibi_slope(as_float((uint)max_bias), (uint)head, (uint)get_num_groups(1))};
    struct rows group = {.first = get_group_id(0) * rows, .mask_stride = mask_stride2, .masked = mask_batches > 0};
    group.n = min(rows, query_length - group.first);
    group.even = ((uint)group.n + 1) / 2 * 2;
    if (group.masked)
        group.mask_at = mask_at + batch % mask_batches * mask_stride0 + head % mask_heads * mask_stride1;
    q_at += batch * q_stride0 + head * q_stride2;
    k_at += kv_batch * k_stride0 + kv_head * k_stride2;
    v_at += kv_batch * v_stride0 + kv_head * v_stride2;

    for (uint i = get_local_id(0); i < group.even * stride; i += get_local_size(0))
        acc[i] = 0.0f;
    for (uint r = get_local_id(0); r < group.even; r += get_local_size(0)) {
        largest[r] = -INFINITY;
        sum[r] = 0.0f;
    }
    const ulong to = end_key(group.first + group.n - 1, flags);
    ulong key = first_key(group.first, flags) / STEP * STEP;
    do {
        const bool seen = any_sees(key, to, group, flags, mask, tile, factor);
        const ulong keys = seen ? min((ulong)STEP, kv_length - key) : 0;
        ulong c = 0, d = 0;
        do {
            const ulong n = min((ulong)slice, head_dim - c);
            barrier(CLK_LOCAL_MEM_FENCE);
            load_q(q_tile, slice, n, q, q_at + c, q_stride1, group);
            load_keys(tile, slice, n, k, k_at + key * k_stride1 + c, k_stride1, keys);
            barrier(CLK_LOCAL_MEM_FENCE);
            add_products(score, group.even, q_tile, tile, slice, n, c == 0);
            c += slice;
        } while (seen && c < head_dim);
        barrier(CLK_LOCAL_MEM_FENCE);
        finish_scores(score, key, group, flags, how, mask);
        barrier(CLK_LOCAL_MEM_FENCE);
        step_rows(largest, factor, score, group.even);
        barrier(CLK_LOCAL_MEM_FENCE);
        weigh(score, largest, group.even);
        barrier(CLK_LOCAL_MEM_FENCE);
        add_weights(sum, factor, score, group.even);
        do {
            barrier(CLK_LOCAL_MEM_FENCE);
            load_values(tile, slice, v_head_dim - d, v, v_at + key * v_stride1 + d, v_stride1, keys);
            barrier(CLK_LOCAL_MEM_FENCE);
            add_values(acc + d, stride, factor, score, group.even, tile, slice, stride - d, keys);
            d += slice;
        } while (seen && d < v_head_dim);
        barrier(CLK_LOCAL_MEM_FENCE);
        key += STEP;
    } while (key < to);
    add_sinks(largest, sum, factor, has_sinks ? group.even : 0, sinks, sinks_at + head);
    barrier(CLK_LOCAL_MEM_FENCE);
    store_rows(out, out_at + batch * out_stride0 + head * out_stride2, out_stride1, v_head_dim, group, acc, stride,
               largest, sum, factor, has_sinks != 0);
}
