/*
 * gqa_av, order class ctx64x4: out[h, d] = sum over c of w[h, c] * V[c, kv(h), d].
 *
 * variant   one group computes                                      GROUP_SIZE
 * per_head  4 outputs of 1 query head, which reads KV head kv(h)    1
 * gqa       4 outputs of the GROUP_SIZE query heads of a KV head    q_heads / kv_heads
 *
 * Groups: ceil(head_dim / 4) x heads, of 1..64 items. An output has 64 partials, item t of L computes t, t + L, ...
 * Partial i adds context quads i, i + 64, ... in order, four fmas each, starting from +0; partial 0 then adds the
 * last, incomplete quad, its missing lanes as fma(0, 0, .). Then p[i] = p[i] + p[i + s] for s = 32, 16, 8, 4, 2, 1.
 * Local memory: 1024 * GROUP_SIZE bytes.
 *
 * -D GROUP_SIZE=1..8, W_DTYPE, V_DTYPE, OUT_DTYPE = f32 | f16 | bf16
 */
#include "dtype.clh"

#define PARTIALS 64

/* acc[g] += w[head g, c] * V[c] for the n <= 4 positions c of one quad: V rows from n on are not read. */
static void add_quad(float4 *acc, global const STORED(W_DTYPE) *w, ulong w_at, ulong w_stride,
                     global const STORED(V_DTYPE) *v, ulong v_at, ulong v_stride, ulong n, ulong lanes)
{
    const float4 v0 = LOAD4(V_DTYPE)(v, v_at, lanes);
    const float4 v1 = LOAD4(V_DTYPE)(v, v_at + v_stride, n > 1 ? lanes : 0);
    const float4 v2 = LOAD4(V_DTYPE)(v, v_at + 2 * v_stride, n > 2 ? lanes : 0);
    const float4 v3 = LOAD4(V_DTYPE)(v, v_at + 3 * v_stride, n > 3 ? lanes : 0);
    for (int g = 0; g < GROUP_SIZE; g++) {
        const float4 a = LOAD4(W_DTYPE)(w, w_at + g * w_stride, n);
        acc[g] = fma(a.xxxx, v0, acc[g]);
        acc[g] = fma(a.yyyy, v1, acc[g]);
        acc[g] = fma(a.zzzz, v2, acc[g]);
        acc[g] = fma(a.wwww, v3, acc[g]);
    }
}

/* Outputs d..d+3 of GROUP_SIZE query heads. Places are those of element 0 of the first head's row. */
static void value_product(global const STORED(W_DTYPE) *w, ulong w_at, ulong w_stride,
                          global const STORED(V_DTYPE) *v, ulong v_at, ulong v_stride,
                          global STORED(OUT_DTYPE) *out, ulong out_at, ulong out_stride, ulong head_dim,
                          ulong context, local float4 *partial)
{
    const size_t item = get_local_id(0), items = get_local_size(0);
    const ulong d = 4 * get_group_id(0);
    const ulong lanes = min(head_dim - d, (ulong)4), quads = context / 4, rest = context % 4;

    for (size_t i = item; i < PARTIALS; i += items) {
        float4 acc[GROUP_SIZE];
        for (int g = 0; g < GROUP_SIZE; g++)
            acc[g] = 0.0f;
        for (ulong q = i; q < quads; q += PARTIALS)
            add_quad(acc, w, w_at + 4 * q, w_stride, v, v_at + 4 * q * v_stride + d, v_stride, 4, lanes);
        if (i == 0 && rest > 0)
            add_quad(acc, w, w_at + 4 * quads, w_stride, v, v_at + 4 * quads * v_stride + d, v_stride, rest, lanes);
        for (int g = 0; g < GROUP_SIZE; g++)
            partial[g * PARTIALS + i] = acc[g];
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    for (size_t step = PARTIALS / 2; step > 0; step /= 2) {
        for (size_t j = item; j < GROUP_SIZE * step; j += items) {
            const size_t at = j / step * PARTIALS + j % step;
            partial[at] += partial[at + step];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    for (size_t g = item; g < GROUP_SIZE; g += items)
        STORE4(OUT_DTYPE)(out, out_at + g * out_stride + d, lanes, partial[g * PARTIALS]);
}

kernel void gqa_av_per_head(global const STORED(W_DTYPE) *w, ulong w_at, ulong w_stride0, ulong w_stride1,
                            global const STORED(V_DTYPE) *v, ulong v_at, ulong v_stride0, ulong v_stride1,
                            global STORED(OUT_DTYPE) *out, ulong out_at, ulong out_stride0, ulong out_stride1,
                            ulong q_heads, ulong kv_heads, ulong head_dim, ulong context)
{
    local float4 partial[GROUP_SIZE * PARTIALS];
    const ulong head = get_group_id(1), kv_head = head * kv_heads / q_heads;
    value_product(w, w_at + head * w_stride0, w_stride0, v, v_at + kv_head * v_stride1, v_stride0, out,
                  out_at + head * out_stride1, out_stride1, head_dim, context, partial);
}

kernel void gqa_av_gqa(global const STORED(W_DTYPE) *w, ulong w_at, ulong w_stride0, ulong w_stride1,
                       global const STORED(V_DTYPE) *v, ulong v_at, ulong v_stride0, ulong v_stride1,
                       global STORED(OUT_DTYPE) *out, ulong out_at, ulong out_stride0, ulong out_stride1,
                       ulong q_heads, ulong kv_heads, ulong head_dim, ulong context)
{
    local float4 partial[GROUP_SIZE * PARTIALS];
    const ulong kv_head = get_group_id(1), head = kv_head * GROUP_SIZE;
    value_product(w, w_at + head * w_stride0, w_stride0, v, v_at + kv_head * v_stride1, v_stride0, out,
                  out_at + head * out_stride1, out_stride1, head_dim, context, partial);
}
