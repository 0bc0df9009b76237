/*
 * gqa_av: out[s, h, d] = sum over c of w[h, s, c] * V[c, kv(h), d].
 *
 * variant    one group computes                                              groups
 * per_head   4 outputs of 1 query head, which reads KV head kv(h)            D4 x q_heads
 * gqa        4 outputs of the GROUP_SIZE query heads of a KV head            D4 x kv_heads
 * gqa_tile2  8 outputs of the GROUP_SIZE query heads of a KV head            ceil(D4 / 2) x kv_heads
 * gqa_split  64 / splits partials of A quads of outputs of those heads       ceil(D4 / A) x kv_heads x splits
 *            second launch: the tree of 4 outputs of 1 query head            D4 x q_heads
 * tiled      64 tiles of 4 query rows x 4 outputs of 1 query head, 1 an item ceil(S4 * D4 / 64) x q_heads
 *
 * D4 = ceil(head_dim / 4), S4 = ceil(query_length / 4), A = min(D4, splits). Groups have 1..64 items; whatever their
 * number, the order of additions, and so every bit, is the same. Local memory, bytes: per_head and the tree 1024,
 * gqa 1024 * GROUP_SIZE, gqa_tile2 2048 * GROUP_SIZE, the others none.
 *
 * Order ctx64x4, of all but tiled, for one query row: an output has 64 partials. Partial i adds context quads i,
 * i + 64, ... in order, four fmas each, starting from +0; partial 0 then adds the last, incomplete quad, its missing
 * lanes as fma(0, 0, .). Then p[i] = p[i] + p[i + s] for s = 32, 16, 8, 4, 2, 1.
 * Order serial, of tiled: one fma a position, in order, starting from +0.
 *
 * -D GROUP_SIZE=1..8: q_heads / kv_heads for the kernels called gqa, else 1;
 * W_DTYPE, V_DTYPE, OUT_DTYPE = f32 | f16 | bf16
 */
#include "dtype.clh"

#define PARTIALS 64
#define ITEMS    64

#define TENSORS                                                                                                   \
    global const STORED(W_DTYPE) *w, ulong w_at, ulong w_stride0, ulong w_stride1,                                \
        global const STORED(V_DTYPE) *v, ulong v_at, ulong v_stride0, ulong v_stride1,                            \
        global STORED(OUT_DTYPE) *out, ulong out_at, ulong out_stride0, ulong out_stride1
#define SIZES ulong q_heads, ulong kv_heads, ulong head_dim, ulong context

/* How many of `lanes` fall into quad t. A subtraction that stops at 0 would be an intrinsic Oclgrind has not. */
static ulong lanes_of(ulong lanes, ulong t)
{
    return lanes / 4 > t ? 4 : lanes / 4 == t ? lanes % 4 : 0;
}

/*
 * acc[t * heads + g] += w[head g, c] * V[c, quad t] for the n <= 4 positions c of one context quad. V rows from n on
 * are not read, nor lanes of V from `lanes` on. heads and tiles are constants where this is inlined.
 */
static void add_quad(float4 *acc, int heads, int tiles, global const STORED(W_DTYPE) *w, ulong w_at, ulong w_stride,
                     global const STORED(V_DTYPE) *v, ulong v_at, ulong v_stride, ulong n, ulong lanes)
{
    float4 x[2][4];
    for (int t = 0; t < tiles; t++)
        for (int k = 0; k < 4; k++)
            x[t][k] = LOAD4(V_DTYPE)(v, v_at + k * v_stride + 4 * t, k < n ? lanes_of(lanes, t) : 0);
    for (int g = 0; g < heads; g++) {
        const float4 a = LOAD4(W_DTYPE)(w, w_at + g * w_stride, n);
        for (int t = 0; t < tiles; t++) {
            float4 sum = acc[t * heads + g];
            sum = fma(a.xxxx, x[t][0], sum);
            sum = fma(a.yyyy, x[t][1], sum);
            sum = fma(a.zzzz, x[t][2], sum);
            acc[t * heads + g] = fma(a.wwww, x[t][3], sum);
        }
    }
}

/* Partial i of each output of `tiles` quads and `heads` query heads. Places are those of position 0. */
static void add_context(float4 *acc, int heads, int tiles, uint i, global const STORED(W_DTYPE) *w, ulong w_at,
                        ulong w_stride, global const STORED(V_DTYPE) *v, ulong v_at, ulong v_stride, ulong context,
                        ulong lanes)
{
    const ulong quads = context / 4, rest = context % 4;
    for (int k = 0; k < heads * tiles; k++)
        acc[k] = 0.0f;
    for (ulong q = i; q < quads; q += PARTIALS)
        add_quad(acc, heads, tiles, w, w_at + 4 * q, w_stride, v, v_at + 4 * q * v_stride, v_stride, 4, lanes);
    if (i == 0 && rest > 0)
        add_quad(acc, heads, tiles, w, w_at + 4 * quads, w_stride, v, v_at + 4 * quads * v_stride, v_stride, rest,
                 lanes);
}

/* The tree: partial[k * PARTIALS] becomes the sum of its PARTIALS, for k < n. Every item of the group comes here. */
static void add_partials(local float4 *partial, uint n)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint step = PARTIALS / 2; step > 0; step /= 2) {
        for (uint j = get_local_id(0); j < n * step; j += get_local_size(0)) {
            const uint at = j / step * PARTIALS + j % step;
            partial[at] += partial[at + step];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

/* `tiles` quads of outputs of `heads` query heads. Places are those of element 0 of the first head's row. */
static void value_product(int heads, int tiles, global const STORED(W_DTYPE) *w, ulong w_at, ulong w_stride,
                          global const STORED(V_DTYPE) *v, ulong v_at, ulong v_stride,
                          global STORED(OUT_DTYPE) *out, ulong out_at, ulong out_stride, ulong head_dim,
                          ulong context, local float4 *partial)
{
    const ulong d = 4 * tiles * get_group_id(0), lanes = head_dim - d;
    for (uint i = get_local_id(0); i < PARTIALS; i += get_local_size(0)) {
        float4 acc[2 * GROUP_SIZE];
        add_context(acc, heads, tiles, i, w, w_at, w_stride, v, v_at + d, v_stride, context, lanes);
        for (int k = 0; k < heads * tiles; k++)
            partial[k * PARTIALS + i] = acc[k];
    }
    add_partials(partial, heads * tiles);

    for (uint k = get_local_id(0); k < heads * tiles; k += get_local_size(0)) {
        const uint g = k % heads, t = k / heads;
        if (4 * t < lanes)
            STORE4(OUT_DTYPE)(out, out_at + g * out_stride + d + 4 * t, lanes_of(lanes, t), partial[k * PARTIALS]);
    }
}

kernel void gqa_av_per_head(TENSORS, SIZES)
{
    local float4 partial[PARTIALS];
    const ulong head = get_group_id(1), kv_head = head * kv_heads / q_heads;
    value_product(1, 1, w, w_at + head * w_stride0, w_stride0, v, v_at + kv_head * v_stride1, v_stride0, out,
                  out_at + head * out_stride1, out_stride1, head_dim, context, partial);
}

kernel void gqa_av_gqa(TENSORS, SIZES)
{
    local float4 partial[GROUP_SIZE * PARTIALS];
    const ulong kv_head = get_group_id(1), head = kv_head * GROUP_SIZE;
    value_product(GROUP_SIZE, 1, w, w_at + head * w_stride0, w_stride0, v, v_at + kv_head * v_stride1, v_stride0,
                  out, out_at + head * out_stride1, out_stride1, head_dim, context, partial);
}

kernel void gqa_av_gqa_tile2(TENSORS, SIZES)
{
    local float4 partial[2 * GROUP_SIZE * PARTIALS];
    const ulong kv_head = get_group_id(1), head = kv_head * GROUP_SIZE;
    value_product(GROUP_SIZE, 2, w, w_at + head * w_stride0, w_stride0, v, v_at + kv_head * v_stride1, v_stride0,
                  out, out_at + head * out_stride1, out_stride1, head_dim, context, partial);
}

/* Scratch: float4 [q_heads][PARTIALS][D4], so that neighbouring items write, as they read, neighbouring quads. */
kernel void gqa_av_gqa_split(TENSORS, global float *scratch, ulong scratch_at, SIZES, ulong splits)
{
    const ulong quads = (head_dim + 3) / 4, kv_head = get_group_id(1), head = kv_head * GROUP_SIZE;
    const uint across = min(quads, splits), partials = PARTIALS / splits;
    for (uint j = get_local_id(0); j < across * partials; j += get_local_size(0)) {
        const ulong quad = across * get_group_id(0) + j % across;
        const uint i = partials * get_group_id(2) + j / across;
        if (quad >= quads)
            continue;
        float4 acc[GROUP_SIZE];
        add_context(acc, GROUP_SIZE, 1, i, w, w_at + head * w_stride0, w_stride0, v,
                    v_at + kv_head * v_stride1 + 4 * quad, v_stride0, context, head_dim - 4 * quad);
        for (int g = 0; g < GROUP_SIZE; g++)
            vstore4(acc[g], ((head + g) * PARTIALS + i) * quads + quad, scratch + scratch_at);
    }
}

kernel void gqa_av_gqa_split_tree(TENSORS, global float *scratch, ulong scratch_at, SIZES)
{
    local float4 partial[PARTIALS];
    const ulong quads = (head_dim + 3) / 4, quad = get_group_id(0), head = get_group_id(1);
    for (uint i = get_local_id(0); i < PARTIALS; i += get_local_size(0))
        partial[i] = vload4((head * PARTIALS + i) * quads + quad, scratch + scratch_at);
    add_partials(partial, 1);
    if (get_local_id(0) == 0)
        STORE4(OUT_DTYPE)(out, out_at + head * out_stride1 + 4 * quad, head_dim - 4 * quad, partial[0]);
}

/* The first `rows` of 4 query rows x the first `lanes` of 4 outputs. Places: of the tile's first element. */
static void value_tile(global const STORED(W_DTYPE) *w, ulong w_at, ulong w_stride, global const STORED(V_DTYPE) *v,
                       ulong v_at, ulong v_stride, global STORED(OUT_DTYPE) *out, ulong out_at, ulong out_stride,
                       ulong context, ulong rows, ulong lanes)
{
    float4 acc[4];
    for (int r = 0; r < 4; r++)
        acc[r] = 0.0f;
    for (ulong c = 0; c < context; c++) {
        const float4 x = LOAD4(V_DTYPE)(v, v_at + c * v_stride, lanes);
        for (int r = 0; r < 4; r++)
            acc[r] = fma(LOAD4(W_DTYPE)(w, w_at + r * w_stride + c, r < rows ? 1 : 0).xxxx, x, acc[r]);
    }
    for (int r = 0; r < 4; r++)
        if (r < rows)
            STORE4(OUT_DTYPE)(out, out_at + r * out_stride, lanes, acc[r]);
}

kernel void gqa_av_tiled(TENSORS, SIZES, ulong query_length)
{
    const ulong quads = (head_dim + 3) / 4, head = get_group_id(1), kv_head = head * kv_heads / q_heads;
    for (uint j = get_local_id(0); j < ITEMS; j += get_local_size(0)) {
        const ulong tile = ITEMS * get_group_id(0) + j, s = 4 * (tile / quads), d = 4 * (tile % quads);
        if (s < query_length)
            value_tile(w, w_at + head * w_stride0 + s * w_stride1, w_stride1, v, v_at + kv_head * v_stride1 + d,
                       v_stride0, out, out_at + s * out_stride0 + head * out_stride1 + d, out_stride0, context,
                       query_length - s, head_dim - d);
    }
}
