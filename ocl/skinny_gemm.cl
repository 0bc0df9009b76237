/*
 * skinny_gemm: out[n, m] = (sum over k of act[n, k] * weight[m, k]) * scales + bias[n, m].
 *
 * variant   a group has `waves` waves of `lanes` items; a wave does YTILE rows of the weight for all tokens
 * sml       all of act in local memory, copied there once
 * mid       the first `staged` elements of act, rows behind one another, in local memory; the others from global memory
 * big       `staged` columns of act at a time in local memory
 * split_k   big on shards of k: group (x, s) sums shard s into scratch[s][n][m]; skinny_gemm_split_k_sum adds shards
 * naive     an item an output; groups of 64
 *
 * Groups loop over tiles of rows: group g takes tiles g * waves + wave, then those get_num_groups(0) * waves further on.
 * A wave without a tile, or an item without a lane, adds no term and comes to every barrier; it goes through the loop over
 * lanes too (where it skipped that, PoCL 3.1 gave 0 for the waves beside it). A row of a tile behind the last of the weight
 * is the last row, read again and not stored. A group with fewer items than waves * lanes has as many whole waves as it
 * can, and with fewer than `lanes` one wave, of which an item does several lanes one after the other: no bit depends on it.
 *
 * Order lanes: lane t adds chunks t, lanes + t, 2 * lanes + t, ... of A_CHUNK terms each, in increasing k, from +0.
 * DOT 0: acc = fma(a, w, acc) a term; 1: acc = acc + fma(a1, w1, a0 * w0) two terms. i4: a chunk is summed so from +0,
 * then acc = fma(sum, scale, acc). Then lane t becomes itself + lane t ^ s for s = 8, 4, 2, 1, 16 and, of 64 lanes, 32.
 * split_k: shard s has the chunks of steps [s, s + 1) * ceil(K / (lanes * A_CHUNK * shards)), and their totals are
 * added in the order of shards. Order serial, of naive: one fma a term; i4: a group of weights is summed so, then as above.
 *
 * Local memory, bytes: act's, in multiples of 16, then 4 * lanes * slots: a wave's sums, each of `lanes` partials, as
 * many at a time as there is room for; slots = max(waves, YTILE * TOKENS).
 *
 * -D YTILE=1..4, A_CHUNK=8 | 16 | 32, UNROLL=1 | 2 | 4 | 8: chunks of a row in flight;
 * TOKENS: tokens, or 8 or 16 where they are 5..8 or 9..16; DOT=0 | 1 (0 where absent);
 * TAIL=1, SUBGROUP=lanes: the tree by cl_khr_subgroup_shuffle or cl_intel_subgroups; TAIL=2: by NVIDIA's shfl.sync (local
 * memory where absent, or where a group is cut to a part of a wave); a type of each tensor
 */
#include "dtype.clh"
#include "shuffle.clh"

#ifndef DOT
#define DOT 0
#endif

#define SUMS      (YTILE * TOKENS)
#define W_WORDS   (A_CHUNK * WIDTH(WEIGHT_DTYPE) / 32)
#define A_WORDS   (A_CHUNK * WIDTH(ACT_DTYPE) / 32)
#define IS_I4     SAME(WEIGHT_DTYPE, i4)
#define IS_I8     SAME(WEIGHT_DTYPE, i8)
#define IS_F8     (SAME(WEIGHT_DTYPE, f8e4m3fn) || SAME(WEIGHT_DTYPE, f8e4m3fnuz))

enum { BIAS_NONE, BIAS_M, BIAS_1XM, BIAS_NX1, BIAS_NXM };
enum { SML, MID, BIG };

#define TENSORS                                                                                                   \
    global const STORED(WEIGHT_DTYPE) *weight, ulong weight_at, ulong weight_stride0,                             \
        global const STORED(WEIGHT_SCALE_DTYPE) *weight_scale, ulong weight_scale_at, ulong weight_scale_stride0, \
        global const STORED(ZERO_POINTS_DTYPE) *zero_points, ulong zero_points_at, ulong zero_points_stride0,     \
        global const STORED(ACT_SCALE_DTYPE) *act_scale, ulong act_scale_at, ulong act_scale_stride0,             \
        global const STORED(ACT_DTYPE) *act, ulong act_at, ulong act_stride0,                                     \
        global const STORED(BIAS_DTYPE) *bias, ulong bias_at, ulong bias_stride0,                                 \
        global STORED(OUT_DTYPE) *out, ulong out_at, ulong out_stride0
/* staged: elements of act in local memory; of big and split_k columns of it. */
#define SIZES                                                                                                     \
    ulong tokens, ulong out_features, ulong in_features, ulong bias_kind, ulong group, ulong has_zero_points,     \
        ulong lanes, ulong waves, ulong slots, ulong staged, ulong act_bytes
#define ALL                                                                                                       \
    weight, weight_at, weight_stride0, weight_scale, weight_scale_at, weight_scale_stride0, zero_points,          \
        zero_points_at, zero_points_stride0, act_scale, act_scale_at, act_scale_stride0, act, act_at,             \
        act_stride0, bias, bias_at, bias_stride0, out, out_at, out_stride0, tokens, out_features, in_features,    \
        bias_kind, group, has_zero_points, lanes, waves, slots, staged, act_bytes

/* What every sum ends with: scales, bias, one rounding. */
static void store_sum(TENSORS, SIZES, ulong n, ulong m, float sum)
{
#if IS_F8
    sum = sum * LOAD(ACT_SCALE_DTYPE)(act_scale, act_scale_at);
    sum = sum * LOAD(WEIGHT_SCALE_DTYPE)(weight_scale, weight_scale_at);
#elif IS_I8
    sum = sum * LOAD(WEIGHT_SCALE_DTYPE)(weight_scale, weight_scale_at + m * weight_scale_stride0);
#endif
    if (bias_kind != BIAS_NONE) {
        const ulong row = bias_kind >= BIAS_NX1 ? n * bias_stride0 : 0, column = bias_kind == BIAS_NX1 ? 0 : m;
        sum = sum + LOAD(BIAS_DTYPE)(bias, bias_at + row + column);
    }
    STORE(OUT_DTYPE)(out, out_at + n * out_stride0 + m, sum);
}

/* What an i4 weight's value lacks: 8 is in it already. */
static float zero_point(TENSORS, SIZES, ulong m, ulong g)
{
#if IS_I4
    if (has_zero_points)
        return LOAD(ZERO_POINTS_DTYPE)(zero_points, zero_points_at + m * zero_points_stride0 + g) - 8.0f;
#endif
    return 0.0f;
}

/* Whether rows of a tensor may be read in wide words: 16 bytes, or a chunk where that is less. */
static bool is_wide(ulong address, ulong stride, uint width, uint words)
{
    const ulong bytes = words % 4 == 0 ? 16 : words % 2 == 0 ? 8 : 4;
    return address % bytes == 0 && stride * width / 8 % bytes == 0;
}

/* acc with a chunk of products added. */
static float add_chunk(float acc, const float *w, const float *a)
{
    for (uint i = 0; i < A_CHUNK; i += 2) {
#if DOT == 1
        const float p = fma(a[i + 1], w[i + 1], a[i] * w[i]);
        acc = acc + p;
#else
        acc = fma(a[i], w[i], acc);
        acc = fma(a[i + 1], w[i + 1], acc);
#endif
    }
    return acc;
}

/* Columns first, first + 1, ... below end of act, rows behind one another, `pitch` elements each, up to `most` of all. */
static void stage(TENSORS, SIZES, bool wide, ulong first, ulong pitch, ulong most, local uint *dst)
{
    const uint words = 8 * WIDTH(ACT_DTYPE) / 32;
    const ulong pieces = min(tokens * pitch, most) / 8; /* 0 of a pitch of 0 */
    for (ulong i = get_local_id(0); i < pieces; i += get_local_size(0)) {
        uint w[8 * WIDTH(ACT_DTYPE) / 32];
        const ulong n = 8 * i / pitch, k = 8 * i % pitch;
        LOAD_WORDS(ACT_DTYPE)(w, words, act, act_at + n * act_stride0 + first + k, wide);
        for (uint j = 0; j < words; j++)
            dst[words * i + j] = w[j];
    }
}

/*
 * Adds, to the YTILE * TOKENS sums of a lane, its chunks from column `at` on, below end. first, pitch: the column and
 * the length of the staged rows.
 */
static void add_lane(TENSORS, SIZES, int kind, float *acc, ulong m, ulong at, ulong end, ulong first, ulong pitch,
                     bool wide_weight, bool wide_act, local const uint *copy)
{
    const ulong step = lanes * A_CHUNK;
    for (ulong k = at; k < end; k += UNROLL * step) {
        uint w[UNROLL][YTILE][W_WORDS];
        for (uint u = 0; u < UNROLL; u++)
            for (uint y = 0; y < YTILE; y++)
                LOAD_WORDS(WEIGHT_DTYPE)
                (w[u][y], W_WORDS, weight,
                 weight_at + min(m + y, out_features - 1) * weight_stride0 + (k + u * step < end ? k + u * step : k),
                 wide_weight);
        for (uint u = 0; u < UNROLL && k + u * step < end; u++) {
            const ulong column = k + u * step;
            float x[YTILE][A_CHUNK];
#if IS_I4
            float scale[YTILE];
#endif
            for (uint y = 0; y < YTILE; y++) {
                WIDEN(WEIGHT_DTYPE)(x[y], w[u][y], W_WORDS);
#if IS_I4
                const ulong row = min(m + y, out_features - 1);
                const float zero = zero_point(ALL, row, column / group);
                for (uint i = 0; i < A_CHUNK; i++)
                    x[y][i] -= zero;
                scale[y] = LOAD(WEIGHT_SCALE_DTYPE)(weight_scale,
                                                    weight_scale_at + row * weight_scale_stride0 + column / group);
#endif
            }
            for (uint n = 0; n < TOKENS; n++) {
                if (TOKENS > 4 && n >= tokens)
                    break;
                const ulong place = n * pitch + (column - first);
                uint words[A_WORDS];
                float a[A_CHUNK];
                if (kind != MID || place < staged)
                    load_wide_local(words, A_WORDS, copy + place * WIDTH(ACT_DTYPE) / 32);
                else
                    LOAD_WORDS(ACT_DTYPE)(words, A_WORDS, act, act_at + n * act_stride0 + column, wide_act);
                WIDEN(ACT_DTYPE)(a, words, A_WORDS);
                for (uint y = 0; y < YTILE; y++)
#if IS_I4
                    acc[y * TOKENS + n] = fma(add_chunk(0.0f, x[y], a), scale[y], acc[y * TOKENS + n]);
#else
                    acc[y * TOKENS + n] = add_chunk(acc[y * TOKENS + n], x[y], a);
#endif
            }
        }
    }
}

/* One level of the tree: of each row of `lanes` partials, those that are left get the one `by` lanes further on added. */
static void fold(local float *partial, uint rows, uint lanes, uint by)
{
    const uint low = by < 16 ? by : 1, block = by < 16 ? 16 : 2 * by, pairs = lanes / block * low;
    for (uint j = get_local_id(0); j < rows * pairs; j += get_local_size(0)) {
        const uint at = j / pairs * lanes + j % pairs / low * block + j % low;
        partial[at] += partial[at + by];
    }
}

/* Where a sum goes: out, or a shard's place in scratch. */
static void put_sum(TENSORS, SIZES, global float *shard, ulong n, ulong m, float sum)
{
    if (m >= out_features || n >= tokens)
        return;
    if (shard)
        shard[n * out_features + m] = sum;
    else
        store_sum(ALL, n, m, sum);
}

/* The waves of the group at work, and what of one an item is. */
struct place {
    uint waves, wave, lane, step; /* lanes lane, lane + step, ... are this item's */
};

static struct place place_of(uint lanes, uint waves)
{
    const uint items = get_local_size(0), item = get_local_id(0);
    struct place p;
    p.waves = min(waves, max(items / lanes, 1u));
    p.wave = item / lanes;
    p.lane = item % lanes;
    p.step = min(items, lanes);
    return p;
}

/*
 * The tail through local memory, `rows` sums of a wave at a time, in phases: the sums go there (those of an item with
 * several lanes are there already), each level of the tree, and what lane 0 has goes out. One loop, for one barrier in the
 * source: compilers for CPUs take their time with each. Every item of the group comes here.
 */
static void add_up_local(TENSORS, SIZES, const float *acc, struct place p, ulong first_tile,
                         local float *partial, global float *shard)
{
    const uint rows = slots / p.waves, levels = lanes > 32 ? 6 : 5, phases = levels + 2;
    for (uint i = 0; i < (SUMS + rows - 1) / rows * phases; i++) {
        const uint first = i / phases * rows, phase = i % phases;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (phase == 0) {
            if (p.step == lanes && p.wave < p.waves)
                for (uint s = 0; s < SUMS; s++) /* a constant place in acc keeps it in registers */
                    if (s - first < rows)
                        partial[(p.wave * rows + s - first) * lanes + p.lane] = acc[s];
        } else if (phase <= levels) {
            fold(partial, p.waves * rows, lanes, phase <= 4 ? 16 >> phase : phase == 5 ? 16 : 32);
        } else {
            for (uint j = get_local_id(0); j < p.waves * rows; j += get_local_size(0)) {
                const uint sum = first + j % rows;
                const ulong m = YTILE * (first_tile + j / rows) + sum / TOKENS;
                if (sum < SUMS)
                    put_sum(ALL, shard, sum % TOKENS, m, partial[j * lanes]);
            }
        }
    }
}

#if TAIL
/* The tail by exchanges within a wave; lane s stores sum s. */
static void add_up_lanes(TENSORS, SIZES, const float *acc, struct place p, ulong tile, global float *shard)
{
    for (uint s = 0; s < SUMS; s++) {
        float x = acc[s];
        for (uint by = 8; by > 0; by /= 2)
            x = x + et_exchange(x, by);
        for (uint by = 16; by < lanes; by *= 2)
            x = x + et_exchange(x, by);
        if (p.wave < p.waves && p.lane == s % lanes)
            put_sum(ALL, shard, s % TOKENS, YTILE * tile + s / TOKENS, x);
    }
}
#endif

/* Columns [from, end) of the rows of this group's tiles. Every item of the group comes here. */
static void gemm(TENSORS, SIZES, int kind, ulong from, ulong end, global float *shard, local uint4 *memory)
{
    const struct place p = place_of(lanes, waves);
    local uint *copy = (local uint *)memory;
    local float *partial = (local float *)((local uchar *)memory + act_bytes);
    const bool wide_weight = is_wide((ulong)weight + weight_at * WIDTH(WEIGHT_DTYPE) / 8, weight_stride0,
                                     WIDTH(WEIGHT_DTYPE), W_WORDS);
    const bool wide_act =
        is_wide((ulong)act + act_at * WIDTH(ACT_DTYPE) / 8, act_stride0, WIDTH(ACT_DTYPE), A_WORDS);
    const ulong tiles = (out_features + YTILE - 1) / YTILE, most = kind == BIG ? staged : in_features;
    const ulong slabs = kind == BIG ? max((end - from + most - 1) / most, 1ul) : 1; /* of no columns: one */
    for (ulong tile = get_group_id(0) * p.waves; tile < tiles; tile += get_num_groups(0) * p.waves) {
        const bool busy = p.wave < p.waves && tile + p.wave < tiles;
        float acc[SUMS];
        for (uint s = 0; s < SUMS; s++)
            acc[s] = 0.0f;
        for (ulong i = 0; i < 2 * slabs; i++) { /* a slab is staged, then used */
            const ulong slab = i / 2, first = from + slab * most, columns = min(most, end - first);
            barrier(CLK_LOCAL_MEM_FENCE);
            if (i % 2 == 0) {
                if (slabs > 1 || tile == get_group_id(0) * p.waves)
                    stage(ALL, wide_act, first, columns, kind == MID ? staged : tokens * columns, copy);
                continue;
            }
            for (uint lane = p.lane; lane < lanes; lane += p.step) {
                for (uint s = 0; p.step < lanes && s < SUMS; s++)
                    acc[s] = slab > 0 ? partial[s * lanes + lane] : 0.0f;
                add_lane(ALL, kind, acc, YTILE * (tile + p.wave), first + lane * A_CHUNK, busy ? first + columns : 0, first,
                         columns, wide_weight, wide_act, copy);
                for (uint s = 0; p.step < lanes && s < SUMS; s++)
                    partial[s * lanes + lane] = acc[s];
            }
        }
#if TAIL
        if (get_local_size(0) % lanes == 0 && et_exchanges(lanes)) {
            add_up_lanes(ALL, acc, p, tile + p.wave, shard);
            continue;
        }
#endif
        add_up_local(ALL, acc, p, tile, partial, shard);
    }
}

kernel SUBGROUP_SIZE void skinny_gemm_sml(TENSORS, SIZES, local uint4 *memory)
{
    gemm(ALL, SML, 0, in_features, 0, memory);
}

kernel SUBGROUP_SIZE void skinny_gemm_mid(TENSORS, SIZES, local uint4 *memory)
{
    gemm(ALL, MID, 0, in_features, 0, memory);
}

kernel SUBGROUP_SIZE void skinny_gemm_big(TENSORS, SIZES, local uint4 *memory)
{
    gemm(ALL, BIG, 0, in_features, 0, memory);
}

/* Scratch: [shards][tokens][out_features]. columns: of a shard. */
kernel SUBGROUP_SIZE void skinny_gemm_split_k(TENSORS, global float *scratch, ulong scratch_at, SIZES, ulong columns,
                                              local uint4 *memory)
{
    const ulong s = get_group_id(1), from = min(s * columns, in_features), end = min(from + columns, in_features);
    gemm(ALL, BIG, from, end, scratch + scratch_at + s * tokens * out_features, memory);
}

kernel void skinny_gemm_split_k_sum(TENSORS, global float *scratch, ulong scratch_at, SIZES, ulong shards)
{
    for (uint j = get_local_id(0); j < 64; j += get_local_size(0)) {
        const ulong i = 64 * get_group_id(0) + j, outputs = tokens * out_features;
        if (i >= outputs)
            continue;
        float sum = scratch[scratch_at + i];
        for (ulong s = 1; s < shards; s++)
            sum = sum + scratch[scratch_at + s * outputs + i];
        store_sum(ALL, i / out_features, i % out_features, sum);
    }
}

/* One chain over columns [from, end) of a row. */
static float chain(TENSORS, SIZES, ulong n, ulong m, ulong from, ulong end, float zero)
{
    float sum = 0.0f;
    for (ulong k = from; k < end; k++)
        sum = fma(LOAD(ACT_DTYPE)(act, act_at + n * act_stride0 + k),
                  LOAD(WEIGHT_DTYPE)(weight, weight_at + m * weight_stride0 + k) - zero, sum);
    return sum;
}

kernel void skinny_gemm_naive(TENSORS, SIZES)
{
    for (uint j = get_local_id(0); j < 64; j += get_local_size(0)) {
        const ulong i = 64 * get_group_id(0) + j, n = i / out_features, m = i % out_features;
        if (n >= tokens)
            continue;
#if IS_I4
        float sum = 0.0f;
        for (ulong g = 0; g < in_features / group; g++)
            sum = fma(chain(ALL, n, m, g * group, (g + 1) * group, zero_point(ALL, m, g)),
                      LOAD(WEIGHT_SCALE_DTYPE)(weight_scale, weight_scale_at + m * weight_scale_stride0 + g), sum);
#else
        const float sum = chain(ALL, n, m, 0, in_features, 0.0f);
#endif
        store_sum(ALL, n, m, sum);
    }
}
