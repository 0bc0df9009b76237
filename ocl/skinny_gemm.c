/* skinny_gemm: what each variant takes, claims and launches, and auto's tables. The kernels and their orders:
 * skinny_gemm.cl. */
#include <stdio.h>
#include <string.h>

#include "port.h"

enum { WEIGHT, WEIGHT_SCALE, ZERO_POINTS, ACT_SCALE, ACT, BIAS, OUT };

enum { MOST_TOKENS = 16, STAGE_BYTES = 65536, UNITS = 20, WAVES_OF_UNIT = 16, ITEMS = 64 };

/* Of local memory, more than drivers keep for themselves in a kernel: NVIDIA's 16. */
enum { DRIVER_BYTES = 64 };

/* Knobs of sml, mid and big; behind them, in a claim, what resolve took from the device. */
enum { LANES, A_CHUNK, DOT, YTILE, UNROLL, WAVES, TAIL, STAGED, GROUPS };

/* As those of split_k are filed: what it has not is 1. */
enum {
    SPLIT_LANES,
    SPLIT_A_CHUNK,
    SPLIT_DOT,
    SPLIT_WAVES,
    SPLIT_TAIL,
    SPLIT_SHARDS,
    SPLIT_STAGED,
    SPLIT_GROUPS
};

static const char *const dots[] = {"fma", "pair", NULL};
static const char *const tails[] = {"local", "subgroup", "vendor", NULL};

#define LANES_KNOB                                                                                           \
    {                                                                                                        \
        .name = "lanes", .min = 32, .max = 64, .fallback = 32, .doc = "of a wave, 32 or 64"                  \
    }
#define A_CHUNK_KNOB                                                                                         \
    {                                                                                                        \
        .name = "a_chunk", .min = 8, .max = 32, .fallback = 8,                                               \
        .doc = "neighbouring terms that a lane adds in a step: 8, 16 or 32"                                  \
    }
#define DOT_KNOB                                                                                             \
    {                                                                                                        \
        .name = "dot", .kind = ET_NAME, .names = dots, .doc = "fma a term, or add pairs of products"         \
    }
#define WAVES_KNOB                                                                                           \
    {                                                                                                        \
        .name = "waves", .min = 1, .max = 32, .fallback = 4, .doc = "of a group"                             \
    }
#define TAIL_KNOB                                                                                            \
    {                                                                                                        \
        .name = "tail", .kind = ET_NAME, .names = tails,                                                     \
        .doc = "how lanes are added up: by local memory, sub-group shuffles, or shfl.sync"                   \
    }

static const struct et_field knobs[] = {
    [LANES] = LANES_KNOB,
    [A_CHUNK] = A_CHUNK_KNOB,
    [DOT] = DOT_KNOB,
    [YTILE] = {.name = "ytile", .min = 1, .max = 4, .fallback = 1, .doc = "rows of the weight a wave does"},
    [UNROLL] = {.name = "unroll",
                .min = 1,
                .max = 8,
                .fallback = 1,
                .doc = "steps whose weights are loaded together: 1, 2, 4 or 8"},
    [WAVES] = WAVES_KNOB,
    [TAIL] = TAIL_KNOB,
    {.name = NULL},
};

static const struct et_field split_knobs[] = {
    [SPLIT_LANES] = LANES_KNOB,
    [SPLIT_A_CHUNK] = A_CHUNK_KNOB,
    [SPLIT_DOT] = DOT_KNOB,
    [SPLIT_WAVES] = WAVES_KNOB,
    [SPLIT_TAIL] = TAIL_KNOB,
    [SPLIT_SHARDS] = {.name = "shards", .min = 1, .max = 64, .fallback = 2, .doc = "parts of in_features"},
    {.name = NULL},
};

/* ---- What each claims ---- */

static struct et_claim claim_of(const char *order, int64_t depth)
{
    struct et_claim claim = {.arith = {.query = ET_F32,
                                       .product = ET_F32,
                                       .sum = ET_F32,
                                       .weight = ET_F32,
                                       .partial = ET_F32,
                                       .depth_sum = depth < INT32_MAX ? (int32_t)depth : INT32_MAX}};
    snprintf(claim.order.name, sizeof claim.order.name, "%s", order);
    return claim;
}

static enum et_status refuse_knob(const char *name, int64_t value, const char *must, struct et_error *why)
{
    return et_fail(why, ET_REFUSED, "%s is %lld, must be %s", name, (long long)value, must);
}

static void choose(const struct et_field *fields, const int64_t *asked, int64_t *knob)
{
    for (int i = 0; fields[i].name; i++)
        knob[i] = asked && asked[i] != ET_UNSET ? asked[i] : (int64_t)fields[i].fallback;
}

/* What keeps the fast variants from a problem or knobs on any device. */
static enum et_status check(const struct et_problem *problem, const int64_t *knob, struct et_error *why)
{
    const struct et_skinny_gemm *p = problem->params;
    if (knob[LANES] != 32 && knob[LANES] != 64)
        return refuse_knob("lanes", knob[LANES], "32 or 64", why);
    if (knob[A_CHUNK] != 8 && knob[A_CHUNK] != 16 && knob[A_CHUNK] != 32)
        return refuse_knob("a_chunk", knob[A_CHUNK], "8, 16 or 32", why);
    if (knob[UNROLL] < 1 || 8 % knob[UNROLL] != 0)
        return refuse_knob("unroll", knob[UNROLL], "1, 2, 4 or 8", why);
    if (p->tokens > MOST_TOKENS)
        return et_fail(why, ET_REFUSED, "tokens is %lld, must be at most %d", (long long)p->tokens,
                       MOST_TOKENS);
    if (p->in_features % knob[A_CHUNK] != 0)
        return et_fail(why, ET_REFUSED, "in_features is %lld, must be a multiple of a_chunk = %lld",
                       (long long)p->in_features, (long long)knob[A_CHUNK]);
    return ET_OK;
}

static enum et_status check_tail(const struct et_device *device, const int64_t *knob, struct et_error *why)
{
    const int64_t reach = knob[TAIL] == 1 ? device->shuffles : device->vendor_shuffles;
    if (knob[TAIL] == 0 || reach >= knob[LANES])
        return ET_OK;
    return et_fail(why, ET_LACKING, "tail %s takes exchanges over %lld lanes, the device has them over %lld",
                   tails[knob[TAIL]], (long long)knob[LANES], (long long)reach);
}

static int64_t act_bytes(const struct et_problem *problem, int64_t elements)
{
    return (int64_t)et_bytes(problem->tensor[ACT].dtype, elements);
}

/* The kernels' TOKENS: the fewer values, the fewer programs there are. */
static int64_t most_tokens(const struct et_skinny_gemm *p)
{
    return p->tokens <= 4 ? p->tokens : p->tokens <= 8 ? 8 : MOST_TOKENS;
}

static int64_t slots_of(const struct et_skinny_gemm *p, const int64_t *knob)
{
    const int64_t sums = knob[YTILE] * most_tokens(p);
    return sums > knob[WAVES] ? sums : knob[WAVES];
}

static int64_t partial_bytes(const struct et_skinny_gemm *p, const int64_t *knob)
{
    return slots_of(p, knob) * knob[LANES] * (int64_t)sizeof(float);
}

/* Local memory of `elements` of act, in whole vectors of 16 bytes. */
static int64_t copy_bytes(const struct et_problem *problem, int64_t elements)
{
    return et_ceil_div(act_bytes(problem, elements), 16) * 16;
}

/* What mid and big copy to: what 64 KiB leave beside the partials, or what the device has where that is less.
 */
static int64_t room_of(const struct et_problem *problem, const struct et_device *device, const int64_t *knob)
{
    const int64_t has = device->local_memory > 0 ? device->local_memory - DRIVER_BYTES : STAGE_BYTES;
    const int64_t all = has < STAGE_BYTES ? has : STAGE_BYTES;
    const int64_t room = all / 16 * 16 - partial_bytes(problem->params, knob);
    return room > 0 ? room : 0;
}

/* As many groups as keep 16 waves on each compute unit, and no more than have a tile at first. */
static int64_t groups_of(const struct et_skinny_gemm *p, const struct et_device *device, const int64_t *knob)
{
    const int64_t units = device->compute_units > 0 ? device->compute_units : UNITS;
    const int64_t each = knob[WAVES] < WAVES_OF_UNIT ? WAVES_OF_UNIT / knob[WAVES] : 1;
    const int64_t most = et_ceil_div(et_ceil_div(p->out_features, knob[YTILE]), knob[WAVES]);
    return units * each < most ? units * each : most;
}

/* Roundings behind one output: a lane's chain, the tree, the scales and the bias. i4: a chunk's, then one a
 * chunk. */
static int64_t depth_of(const struct et_problem *problem, const int64_t *knob, int64_t shards)
{
    const struct et_skinny_gemm *p = problem->params;
    const int64_t step = knob[LANES] * knob[A_CHUNK],
                  steps = et_ceil_div(et_ceil_div(p->in_features, step), shards);
    const int64_t chain =
        problem->tensor[WEIGHT].dtype == ET_I4 ? knob[A_CHUNK] + steps : knob[A_CHUNK] * steps;
    return chain + (knob[DOT] ? 2 : 0) + (knob[LANES] == 64 ? 6 : 5) + shards - 1 + 3;
}

static struct et_claim claim_lanes(const struct et_problem *problem, const int64_t *knob, int64_t shards)
{
    struct et_claim claim = claim_of("lanes", depth_of(problem, knob, shards));
    const int32_t arg[] = {(int32_t)knob[LANES], (int32_t)knob[A_CHUNK], (int32_t)knob[DOT], (int32_t)shards};
    memcpy(claim.order.arg, arg, sizeof arg);
    return claim;
}

/* knob: STAGED is set; GROUPS is set here. */
static enum et_status claim_fast(const struct et_problem *problem, const struct et_device *device,
                                 int64_t *knob, struct et_claim *claim, struct et_error *why)
{
    const struct et_skinny_gemm *p = problem->params;
    knob[GROUPS] = groups_of(p, device, knob);
    *claim = claim_lanes(problem, knob, 1);
    memcpy(claim->knob, knob, (GROUPS + 1) * sizeof *knob);
    enum et_status status = check_tail(device, knob, why);
    if (status != ET_OK)
        return status;
    return et_ocl_fits(problem, device, (size_t)(copy_bytes(problem, knob[STAGED]) + partial_bytes(p, knob)),
                       0, why);
}

static enum et_status resolve_sml(const struct et_problem *problem, const struct et_device *device,
                                  const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    const struct et_skinny_gemm *p = problem->params;
    int64_t knob[GROUPS + 1];
    choose(knobs, asked, knob);
    const enum et_status status = check(problem, knob, why);
    if (status != ET_OK)
        return status;
    if (p->out_features % knob[YTILE] != 0)
        return et_fail(why, ET_REFUSED, "out_features is %lld, must be a multiple of ytile = %lld",
                       (long long)p->out_features, (long long)knob[YTILE]);
    knob[STAGED] = p->tokens * p->in_features;
    return claim_fast(problem, device, knob, claim, why);
}

static enum et_status resolve_mid(const struct et_problem *problem, const struct et_device *device,
                                  const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    const struct et_skinny_gemm *p = problem->params;
    int64_t knob[GROUPS + 1];
    choose(knobs, asked, knob);
    const enum et_status status = check(problem, knob, why);
    if (status != ET_OK)
        return status;
    const int64_t fit = et_elements(problem->tensor[ACT].dtype, (size_t)room_of(problem, device, knob));
    const int64_t all = p->tokens * p->in_features;
    knob[STAGED] = all < fit ? all : fit / knob[A_CHUNK] * knob[A_CHUNK];
    return claim_fast(problem, device, knob, claim, why);
}

/* Columns of a slab: whole unrolled steps, or whole steps where no more fit; a step where not even that does,
 * which the device then lacks. */
static int64_t slab_of(const struct et_problem *problem, const struct et_device *device, const int64_t *knob,
                       int64_t columns)
{
    const struct et_skinny_gemm *p = problem->params;
    const int64_t fit =
        et_elements(problem->tensor[ACT].dtype, (size_t)room_of(problem, device, knob)) / p->tokens;
    const int64_t step = knob[LANES] * knob[A_CHUNK], unrolled = step * knob[UNROLL];
    const int64_t slab = fit >= unrolled ? fit / unrolled * unrolled : fit >= step ? fit / step * step : step;
    return slab < columns ? slab : columns;
}

static enum et_status resolve_big(const struct et_problem *problem, const struct et_device *device,
                                  const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    const struct et_skinny_gemm *p = problem->params;
    int64_t knob[GROUPS + 1];
    choose(knobs, asked, knob);
    const enum et_status status = check(problem, knob, why);
    if (status != ET_OK)
        return status;
    const int64_t slab = slab_of(problem, device, knob, p->in_features);
    knob[STAGED] = slab * p->tokens;
    return claim_fast(problem, device, knob, claim, why);
}

/* split_k's knobs as those of the others. */
static void spread(const int64_t *split, int64_t *knob)
{
    knob[LANES] = split[SPLIT_LANES];
    knob[A_CHUNK] = split[SPLIT_A_CHUNK];
    knob[DOT] = split[SPLIT_DOT];
    knob[YTILE] = knob[UNROLL] = 1;
    knob[WAVES] = split[SPLIT_WAVES];
    knob[TAIL] = split[SPLIT_TAIL];
    knob[STAGED] = split[SPLIT_STAGED];
    knob[GROUPS] = split[SPLIT_GROUPS];
}

/* Columns of a shard. */
static int64_t shard_of(const struct et_skinny_gemm *p, const int64_t *knob, int64_t shards)
{
    const int64_t step = knob[LANES] * knob[A_CHUNK];
    return et_ceil_div(p->in_features, step * shards) * step;
}

static enum et_status resolve_split(const struct et_problem *problem, const struct et_device *device,
                                    const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    const struct et_skinny_gemm *p = problem->params;
    int64_t split[SPLIT_GROUPS + 1] = {0}, knob[GROUPS + 1];
    choose(split_knobs, asked, split);
    spread(split, knob);
    enum et_status status = check(problem, knob, why);
    if (status != ET_OK)
        return status;
    const int64_t shards = split[SPLIT_SHARDS], columns = shard_of(p, knob, shards);
    const int64_t slab = slab_of(problem, device, knob, columns < p->in_features ? columns : p->in_features);
    split[SPLIT_STAGED] = slab * p->tokens;
    split[SPLIT_GROUPS] = groups_of(p, device, knob);
    *claim = claim_lanes(problem, knob, shards);
    memcpy(claim->knob, split, sizeof split);
    claim->scratch_bytes = (size_t)(shards * p->tokens * p->out_features) * sizeof(float);
    status = check_tail(device, knob, why);
    if (status != ET_OK)
        return status;
    const int64_t local = copy_bytes(problem, split[SPLIT_STAGED]) + partial_bytes(p, knob);
    return et_ocl_fits(problem, device, (size_t)local, claim->scratch_bytes, why);
}

static enum et_status resolve_naive(const struct et_problem *problem, const struct et_device *device,
                                    const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)asked;
    const struct et_skinny_gemm *p = problem->params;
    const int64_t chain = p->group ? p->group + p->in_features / p->group : p->in_features;
    *claim = claim_of("serial", chain + 3);
    return et_ocl_fits(problem, device, 0, 0, why);
}

/* ---- What each launches ---- */

/* naive and the sum of shards share the programs of default knobs. */
static const int64_t plain[GROUPS + 1] = {
    [LANES] = 32, [A_CHUNK] = 8, [YTILE] = 1, [UNROLL] = 1, [WAVES] = 4};

static struct et_launch launch_of(const struct et_problem *problem, const char *kernel, const int64_t *knob)
{
    const struct et_skinny_gemm *p = problem->params;
    const bool local = knob[GROUPS] > 0;
    struct et_launch launch = {
        .file = "skinny_gemm.cl",
        .kernel = kernel,
        .groups = {(size_t)(local ? knob[GROUPS] : et_ceil_div(p->tokens * p->out_features, ITEMS))},
        .items = (size_t)(local ? knob[WAVES] * knob[LANES] : ITEMS),
        .scalar = {(uint64_t)p->tokens, (uint64_t)p->out_features, (uint64_t)p->in_features,
                   (uint64_t)p->bias, (uint64_t)p->group, (uint64_t)p->zero_points, (uint64_t)knob[LANES],
                   (uint64_t)knob[WAVES], (uint64_t)slots_of(p, knob), (uint64_t)knob[STAGED],
                   (uint64_t)copy_bytes(problem, knob[STAGED])},
        .scalars = 11,
        .local_bytes = local ? (size_t)(copy_bytes(problem, knob[STAGED]) + partial_bytes(p, knob)) : 0,
    };
    const int used =
        snprintf(launch.options, sizeof launch.options, "-D YTILE=%d -D TOKENS=%d -D A_CHUNK=%d -D UNROLL=%d",
                 (int)knob[YTILE], (int)most_tokens(p), (int)knob[A_CHUNK], (int)knob[UNROLL]);
    char *rest = launch.options + used;
    const size_t left = sizeof launch.options - (size_t)used;
    snprintf(rest, left, "%s%s", knob[DOT] ? " -D DOT=1" : "",
             knob[TAIL] == 2     ? " -D TAIL=2"
             : knob[TAIL] == 0   ? ""
             : knob[LANES] == 64 ? " -D TAIL=1 -D SUBGROUP=64"
                                 : " -D TAIL=1 -D SUBGROUP=32");
    return launch;
}

static int plan_sml(const struct et_problem *problem, const struct et_claim *claim,
                    struct et_launch *launches)
{
    launches[0] = launch_of(problem, "skinny_gemm_sml", claim->knob);
    return 1;
}

static int plan_mid(const struct et_problem *problem, const struct et_claim *claim,
                    struct et_launch *launches)
{
    launches[0] = launch_of(problem, "skinny_gemm_mid", claim->knob);
    return 1;
}

enum { STAGED_SCALAR = 9 };

/* Of big and split_k the kernels count columns. */
static void count_columns(const struct et_problem *problem, struct et_launch *launch)
{
    const struct et_skinny_gemm *p = problem->params;
    launch->scalar[STAGED_SCALAR] /= (uint64_t)p->tokens;
}

static int plan_big(const struct et_problem *problem, const struct et_claim *claim,
                    struct et_launch *launches)
{
    launches[0] = launch_of(problem, "skinny_gemm_big", claim->knob);
    count_columns(problem, &launches[0]);
    return 1;
}

static int plan_split(const struct et_problem *problem, const struct et_claim *claim,
                      struct et_launch *launches)
{
    const struct et_skinny_gemm *p = problem->params;
    const int64_t shards = claim->knob[SPLIT_SHARDS];
    int64_t knob[GROUPS + 1];
    spread(claim->knob, knob);
    launches[0] = launch_of(problem, "skinny_gemm_split_k", knob);
    count_columns(problem, &launches[0]);
    launches[0].groups[1] = (size_t)shards;
    launches[0].scalar[launches[0].scalars++] = (uint64_t)shard_of(p, knob, shards);
    knob[GROUPS] = 0;
    launches[1] = launch_of(problem, "skinny_gemm_split_k_sum", knob);
    launches[1].scalar[launches[1].scalars++] = (uint64_t)shards;
    return 2;
}

static int plan_naive(const struct et_problem *problem, const struct et_claim *claim,
                      struct et_launch *launches)
{
    (void)claim;
    launches[0] = launch_of(problem, "skinny_gemm_naive", plain);
    return 1;
}

/* ---- auto: the dispatch of the seed, as tables ---- */

enum { FAST = 1 };
enum { ANY, YES, NO };

/*
 * The first row whose conditions all hold; 0 is no condition. Source: csrc/rocm/skinny_gemms.cu of vLLM
 * (generic) and of its gfx11 fork (ROCm/vllm#982).
 */
struct row {
    int64_t steps_least, steps_most;       /* of ceil(M / (4 CU)) */
    int64_t k_least, k_most, k_of, k_rest; /* K, and K % k_of == k_rest */
    int64_t n_least, n_most, m_least, m_most;
    int fit, narrow; /* act, row strides included, within L; its row stride below L / 2 */
    int waves, ytile, unroll, a_chunk;
    int swap; /* 1: lanes are added up by exchanges where there are any; 0: by local memory */
};

static const struct row generic[] = {
    {.steps_most = 1, .waves = 16, .ytile = 1, .unroll = 4, .a_chunk = 8, .swap = FAST},
    {.n_most = 1, .waves = 16, .ytile = 2, .unroll = 2, .a_chunk = 8, .swap = FAST},
    {.fit = NO, .waves = 16, .ytile = 2, .unroll = 2, .a_chunk = 8, .swap = FAST},
    {.steps_most = 8, .waves = 16, .ytile = 2, .unroll = 2, .a_chunk = 8, .swap = FAST},
    {.steps_most = 12, .waves = 16, .ytile = 3, .unroll = 2, .a_chunk = 8, .swap = FAST},
    {.n_least = 4, .waves = 16, .ytile = 4, .unroll = 1, .a_chunk = 8, .swap = FAST},
    {.waves = 16, .ytile = 4, .unroll = 2, .a_chunk = 8, .swap = FAST},
};

static const struct row gfx11[] = {
    {.steps_most = 1, .waves = 16, .ytile = 1, .unroll = 4, .a_chunk = 8, .swap = FAST},
    {.k_most = 1023, .waves = 16, .ytile = 2, .unroll = 4, .a_chunk = 8, .swap = FAST},
    {.k_of = 1024,
     .k_rest = 512,
     .steps_least = 40,
     .waves = 16,
     .ytile = 4,
     .unroll = 1,
     .a_chunk = 8,
     .swap = FAST},
    {.k_of = 1024,
     .k_rest = 512,
     .k_least = 4096,
     .waves = 16,
     .ytile = 4,
     .unroll = 1,
     .a_chunk = 8,
     .swap = FAST},
    {.k_least = 2048,
     .k_most = 2048,
     .n_most = 1,
     .waves = 32,
     .ytile = 1,
     .unroll = 8,
     .a_chunk = 16,
     .swap = FAST},
    {.k_least = 2048,
     .k_most = 2048,
     .n_least = 2,
     .n_most = 3,
     .waves = 16,
     .ytile = 1,
     .unroll = 2,
     .a_chunk = 32},
    {.k_least = 4096, .k_most = 4096, .n_most = 1, .waves = 16, .ytile = 1, .unroll = 4, .a_chunk = 32},
    {.k_least = 4096,
     .k_most = 4096,
     .n_least = 2,
     .n_most = 2,
     .m_most = 4095,
     .waves = 16,
     .ytile = 1,
     .unroll = 2,
     .a_chunk = 32},
    {.k_least = 4096,
     .k_most = 4096,
     .n_least = 2,
     .n_most = 2,
     .waves = 32,
     .ytile = 1,
     .unroll = 2,
     .a_chunk = 32},
    {.k_least = 4096,
     .k_most = 4096,
     .n_least = 3,
     .n_most = 3,
     .waves = 16,
     .ytile = 1,
     .unroll = 2,
     .a_chunk = 32},
    {.k_least = 8192,
     .k_most = 8192,
     .n_least = 2,
     .n_most = 2,
     .waves = 32,
     .ytile = 1,
     .unroll = 2,
     .a_chunk = 32},
    {.k_of = 2048,
     .n_least = 2,
     .n_most = 2,
     .waves = 32,
     .ytile = 2,
     .unroll = 4,
     .a_chunk = 16,
     .swap = FAST},
    {.k_of = 2048, .waves = 16, .ytile = 1, .unroll = 4, .a_chunk = 16, .swap = FAST},
    {.k_most = 2048, .waves = 16, .ytile = 1, .unroll = 4, .a_chunk = 8, .swap = FAST},
    {.n_least = 2,
     .fit = NO,
     .k_of = 1024,
     .narrow = YES,
     .waves = 16,
     .ytile = 2,
     .unroll = 4,
     .a_chunk = 8,
     .swap = FAST},
    {.n_least = 2, .fit = NO, .waves = 16, .ytile = 1, .unroll = 4, .a_chunk = 8, .swap = FAST},
    {.n_most = 1, .waves = 16, .ytile = 1, .unroll = 2, .a_chunk = 8, .swap = FAST},
    {.waves = 16, .ytile = 1, .unroll = 1, .a_chunk = 8, .swap = FAST},
};

static bool within(int64_t value, int64_t least, int64_t most)
{
    return value >= least && (most == 0 || value <= most);
}

static bool is(int condition, bool value)
{
    return condition == ANY || (condition == YES) == value;
}

/* What rows ask about. */
struct facts {
    int64_t steps, m, n, k, stride, capacity; /* stride, capacity: of act, L; in elements of 16 bits */
};

static bool holds(const struct row *row, const struct facts *f)
{
    return within(f->steps, row->steps_least, row->steps_most) && within(f->k, row->k_least, row->k_most) &&
           (row->k_of == 0 || f->k % row->k_of == row->k_rest) && within(f->n, row->n_least, row->n_most) &&
           within(f->m, row->m_least, row->m_most) && is(row->fit, f->stride * f->n <= f->capacity) &&
           is(row->narrow, f->stride < f->capacity / 2);
}

/* The fewest waves, of waves - 12 and more, that leave the number of rounds as it is. */
static int64_t active_waves(int64_t m, int64_t rows_of_wave, int64_t waves)
{
    const int64_t rounds = et_ceil_div(m, rows_of_wave * waves);
    int64_t active = waves > 12 ? waves - 12 : 1;
    while (et_ceil_div(m, rows_of_wave * active) != rounds)
        active++;
    return active;
}

enum { COMPUTE_UNITS, LOCAL_MEMORY, TABLE, CHOSEN };

static const char *const tables[] = {"generic", "gfx11", NULL};

static const struct et_field auto_knobs[] = {
    [COMPUTE_UNITS] =
        {.name = "compute_units", .min = 1, .max = 4096, .fallback = UNITS, .doc = "of the device"},
    [LOCAL_MEMORY] = {.name = "local_memory",
                      .min = 1024,
                      .max = 1 << 24,
                      .fallback = STAGE_BYTES,
                      .doc = "bytes of the device that a group may use"},
    [TABLE] = {.name = "table", .kind = ET_NAME, .names = tables, .fallback = 1, .doc = "of rules"},
    {.name = NULL},
};

static const struct et_ocl_variant *kernel_of(const struct et_skinny_gemm *p, const struct facts *f,
                                              int ytile)
{
    const int64_t all = f->stride * p->tokens;
    return all <= f->capacity && p->out_features % ytile == 0 ? &et_ocl_skinny_gemm_sml
           : 5 * all <= 6 * f->capacity                       ? &et_ocl_skinny_gemm_mid
                                                              : &et_ocl_skinny_gemm_big;
}

struct et_skinny_gemm_choice et_skinny_gemm_dispatch(const struct et_problem *problem, const int64_t *knob)
{
    const struct et_skinny_gemm *p = problem->params;
    const struct et_tensor *act = &problem->tensor[ACT];
    const struct facts f = {.steps = et_ceil_div(p->out_features, 4 * knob[COMPUTE_UNITS]),
                            .m = p->out_features,
                            .n = p->tokens < 4 ? p->tokens : 4,
                            .k = p->in_features,
                            .stride = act_bytes(problem, act->stride[0]) / 2,
                            .capacity = knob[LOCAL_MEMORY] / 2};
    const struct row *row = knob[TABLE] ? gfx11 : generic;
    while (!holds(row, &f))
        row++;
    if (p->in_features % row->a_chunk != 0 || p->tokens > MOST_TOKENS)
        return (struct et_skinny_gemm_choice){.variant = &et_ocl_skinny_gemm_naive};
    return (struct et_skinny_gemm_choice){
        .variant = kernel_of(p, &f, row->ytile),
        .waves = row->waves,
        .ytile = row->ytile,
        .unroll = row->unroll,
        .a_chunk = row->a_chunk,
        .swap = row->swap,
        .active = (int)active_waves(p->out_features, knob[COMPUTE_UNITS] * row->ytile, row->waves)};
}

static const struct et_ocl_variant *const of_auto[] = {&et_ocl_skinny_gemm_naive, &et_ocl_skinny_gemm_sml,
                                                       &et_ocl_skinny_gemm_mid, &et_ocl_skinny_gemm_big,
                                                       NULL};

/* The table's kernel, or of sml, mid and big the next whose local memory the device has: the bytes are the
 * same. */
static enum et_status resolve_chosen(const struct et_ocl_variant *chosen, const struct et_problem *problem,
                                     const struct et_device *device, const int64_t *knob,
                                     struct et_claim *claim, struct et_error *why)
{
    int i = 0;
    while (of_auto[i] != chosen)
        i++;
    enum et_status status = chosen->variant.resolve(problem, device, knob, claim, why);
    while (status == ET_LACKING && i > 0 && of_auto[i + 1])
        status = of_auto[++i]->variant.resolve(problem, device, knob, claim, why);
    snprintf(claim->variant, sizeof claim->variant, "%s", of_auto[i]->variant.name);
    return status;
}

static enum et_status resolve_auto(const struct et_problem *problem, const struct et_device *device,
                                   const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    int64_t knob[CHOSEN];
    choose(auto_knobs, asked, knob);
    const struct et_skinny_gemm_choice c = et_skinny_gemm_dispatch(problem, knob);
    const int64_t tail = !c.swap ? 0 : device->shuffles >= 32 ? 1 : device->vendor_shuffles >= 32 ? 2 : 0;
    const int64_t inner[] = {[LANES] = 32,        [A_CHUNK] = c.a_chunk, [DOT] = 0,    [YTILE] = c.ytile,
                             [UNROLL] = c.unroll, [WAVES] = c.active,    [TAIL] = tail};
    const enum et_status status = resolve_chosen(c.variant, problem, device, inner, claim, why);
    int64_t found[GROUPS + 1];
    memcpy(found, claim->knob, sizeof found);
    if (found[GROUPS] > knob[COMPUTE_UNITS])
        found[GROUPS] = knob[COMPUTE_UNITS];
    memcpy(claim->knob, knob, sizeof knob);
    memcpy(claim->knob + CHOSEN, found, sizeof found);
    return status;
}

static int plan_auto(const struct et_problem *problem, const struct et_claim *claim,
                     struct et_launch *launches)
{
    struct et_claim inner = *claim;
    int i = 0;
    memcpy(inner.knob, claim->knob + CHOSEN, (GROUPS + 1) * sizeof *inner.knob);
    while (strcmp(of_auto[i]->variant.name, claim->variant) != 0)
        i++;
    return of_auto[i]->plan(problem, &inner, launches);
}

/* It would run one of the others a second time. */
static bool auto_left_out(const struct et_problem *problem)
{
    (void)problem;
    return true;
}

/* ---- The table ---- */

const struct et_ocl_variant et_ocl_skinny_gemm_naive = {
    .variant = {.op = "skinny_gemm",
                .name = "naive",
                .summary = "an item an output, each one chain over in_features",
                .knobs = et_no_knobs,
                .resolve = resolve_naive,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_naive,
};

const struct et_ocl_variant et_ocl_skinny_gemm_sml = {
    .variant = {.op = "skinny_gemm",
                .name = "sml",
                .summary = "a wave ytile rows of the weight; all of act in local memory",
                .knobs = knobs,
                .resolve = resolve_sml,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_sml,
};

const struct et_ocl_variant et_ocl_skinny_gemm_mid = {
    .variant = {.op = "skinny_gemm",
                .name = "mid",
                .summary = "as sml, with what fits of act in local memory and the rest read where it is",
                .knobs = knobs,
                .resolve = resolve_mid,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_mid,
};

const struct et_ocl_variant et_ocl_skinny_gemm_big = {
    .variant = {.op = "skinny_gemm",
                .name = "big",
                .summary = "as sml, with as many columns of act at a time as fit local memory",
                .knobs = knobs,
                .resolve = resolve_big,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_big,
};

const struct et_ocl_variant et_ocl_skinny_gemm_split_k = {
    .variant = {.op = "skinny_gemm",
                .name = "split_k",
                .summary = "big on shards of in_features, whose totals a second launch adds in their order",
                .knobs = split_knobs,
                .resolve = resolve_split,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_split,
};

const struct et_ocl_variant et_ocl_skinny_gemm_auto = {
    .variant = {.op = "skinny_gemm",
                .name = "auto",
                .summary =
                    "sml, mid or big with the knobs of a table, or naive where those do not take the shape",
                .knobs = auto_knobs,
                .left_out = auto_left_out,
                .resolve = resolve_auto,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_auto,
};
