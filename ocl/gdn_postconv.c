/* gdn_postconv: what each variant claims and launches. The kernels and their orders: gdn_postconv.cl. */
#include <stdio.h>

#include "../ref/fmath.h"
#include "port.h"

enum { ITEMS = 256, LANES = 32, WAVES = ITEMS / LANES, MOST_STAGED = 16, STAGED_BYTES = 16384 };

static int64_t value_dim_of(const struct et_gdn_postconv *p)
{
    return p->v_heads * p->v_head_dim;
}

/* ---- What each claims ---- */

/* `depth`: additions behind one sum of squares. */
static enum et_status resolve_order(const struct et_problem *problem, const struct et_device *device,
                                    const char *order, int64_t depth, size_t local_bytes,
                                    struct et_claim *claim, struct et_error *why)
{
    *claim = (struct et_claim){.arith = {.query = ET_F32,
                                         .product = ET_F32,
                                         .sum = ET_F32,
                                         .weight = ET_F32,
                                         .partial = ET_F32,
                                         .depth_sum = depth < INT32_MAX ? (int32_t)depth : INT32_MAX},
                               .order = {.arg = {ET_F32}}};
    snprintf(claim->order.name, sizeof claim->order.name, "%s", order);
    return et_ocl_fits(problem, device, local_bytes, 0, why);
}

static enum et_status resolve_items(const struct et_problem *problem, const struct et_device *device,
                                    const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)asked;
    const struct et_gdn_postconv *p = problem->params;
    return resolve_order(problem, device, "serial", p->k_head_dim, 0, claim, why);
}

/* Of one vector of q or k, and a place for its inverse norm. */
static int64_t vector_bytes(const struct et_gdn_postconv *p)
{
    return (p->k_head_dim + 1) * (int64_t)sizeof(float);
}

/* Vectors that `row` holds in local memory at once: up to 16, as many as 16 KiB take, whatever the device
 * has; or one. */
static int64_t staged_of(const struct et_gdn_postconv *p)
{
    const int64_t most = 2 * p->k_heads < MOST_STAGED ? 2 * p->k_heads : MOST_STAGED;
    const int64_t fit = STAGED_BYTES / vector_bytes(p);
    return fit < 1 ? 1 : fit < most ? fit : most;
}

static size_t row_bytes(const struct et_gdn_postconv *p)
{
    return (size_t)(staged_of(p) * vector_bytes(p));
}

static enum et_status resolve_row(const struct et_problem *problem, const struct et_device *device,
                                  const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)asked;
    const struct et_gdn_postconv *p = problem->params;
    return resolve_order(problem, device, "serial", p->k_head_dim, row_bytes(p), claim, why);
}

/* The longest partial, and the tree over 32. */
static enum et_status resolve_wave(const struct et_problem *problem, const struct et_device *device,
                                   const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)asked;
    const struct et_gdn_postconv *p = problem->params;
    return resolve_order(problem, device, "lanes32", et_ceil_div(p->k_head_dim, LANES) + 5,
                         2 * ITEMS * sizeof(float), claim, why);
}

/* ---- What each launches ---- */

struct et_gdn_postconv_work et_gdn_postconv_work(const struct et_gdn_postconv *p,
                                                 enum et_gdn_postconv_split split)
{
    const int64_t value_dim = value_dim_of(p), norms = 4 * p->k_head_dim;
    const int64_t chunks = split == ET_GDN_PER_TOKEN_HEAD ? 0 : et_ceil_div(value_dim, p->k_head_dim);
    const int64_t gates = split == ET_GDN_CHUNKED_GATES ? p->v_heads : 1;
    const int64_t copied = chunks > 0 ? p->k_head_dim : value_dim;
    return (struct et_gdn_postconv_work){.slots = p->k_heads + chunks + gates,
                                         .longest = norms > copied ? norms : copied};
}

/* `slots` of a token, `per_group` in a group. */
static struct et_launch launch_of(const struct et_problem *problem, const char *kernel, int64_t slots,
                                  int64_t per_group)
{
    const struct et_gdn_postconv *p = problem->params;
    const float q_scale = p->scale_q ? et_div(1.0f, et_sqrt((float)p->k_head_dim)) : 1.0f;
    return (struct et_launch){
        .file = "gdn_postconv.cl",
        .kernel = kernel,
        .groups = {(size_t)et_ceil_div(p->tokens * slots, per_group)},
        .items = ITEMS,
        .scalar = {(uint64_t)p->tokens, (uint64_t)p->k_heads, (uint64_t)p->v_heads, (uint64_t)p->k_head_dim,
                   (uint64_t)p->v_head_dim, (uint64_t)slots, et_as_u32((float)p->eps), et_as_u32(q_scale)},
        .scalars = 8,
    };
}

static int plan_items(const struct et_problem *problem, const char *kernel, enum et_gdn_postconv_split split,
                      struct et_launch *launches)
{
    launches[0] = launch_of(problem, kernel, et_gdn_postconv_work(problem->params, split).slots, ITEMS);
    return 1;
}

static int plan_per_token_head(const struct et_problem *problem, const struct et_claim *claim,
                               struct et_launch *launches)
{
    (void)claim;
    return plan_items(problem, "gdn_postconv_per_token_head", ET_GDN_PER_TOKEN_HEAD, launches);
}

static int plan_chunked(const struct et_problem *problem, const struct et_claim *claim,
                        struct et_launch *launches)
{
    (void)claim;
    return plan_items(problem, "gdn_postconv_chunked", ET_GDN_CHUNKED, launches);
}

static int plan_chunked_gates(const struct et_problem *problem, const struct et_claim *claim,
                              struct et_launch *launches)
{
    (void)claim;
    return plan_items(problem, "gdn_postconv_chunked_gates", ET_GDN_CHUNKED_GATES, launches);
}

static int plan_row(const struct et_problem *problem, const struct et_claim *claim,
                    struct et_launch *launches)
{
    (void)claim;
    const struct et_gdn_postconv *p = problem->params;
    launches[0] = launch_of(problem, "gdn_postconv_row", 1, 1);
    launches[0].scalar[launches[0].scalars++] = (uint64_t)staged_of(p);
    launches[0].local_bytes = row_bytes(p);
    return 1;
}

static int plan_wave(const struct et_problem *problem, const struct et_claim *claim,
                     struct et_launch *launches)
{
    (void)claim;
    const struct et_gdn_postconv *p = problem->params;
    const int64_t slots = p->k_heads + et_ceil_div(value_dim_of(p), LANES) + et_ceil_div(p->v_heads, LANES);
    launches[0] = launch_of(problem, "gdn_postconv_wave", slots, WAVES);
    return 1;
}

/* ---- The table ---- */

const struct et_ocl_variant et_ocl_gdn_postconv_per_token_head = {
    .variant = {.op = "gdn_postconv",
                .name = "per_token_head",
                .summary = "an item does q and k of one head, or all of v and all gates of a token",
                .knobs = et_no_knobs,
                .resolve = resolve_items,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_per_token_head,
};

const struct et_ocl_variant et_ocl_gdn_postconv_chunked = {
    .variant = {.op = "gdn_postconv",
                .name = "chunked",
                .summary = "as per_token_head, with v in chunks of k_head_dim elements an item",
                .knobs = et_no_knobs,
                .resolve = resolve_items,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_chunked,
};

const struct et_ocl_variant et_ocl_gdn_postconv_chunked_gates = {
    .variant = {.op = "gdn_postconv",
                .name = "chunked_gates",
                .summary = "as chunked, with the gate of each value head an item of its own",
                .knobs = et_no_knobs,
                .resolve = resolve_items,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_chunked_gates,
};

const struct et_ocl_variant et_ocl_gdn_postconv_row = {
    .variant = {.op = "gdn_postconv",
                .name = "row",
                .summary = "a group a token: q and k in local memory, one item adding up a vector",
                .knobs = et_no_knobs,
                .resolve = resolve_row,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_row,
};

const struct et_ocl_variant et_ocl_gdn_postconv_wave = {
    .variant = {.op = "gdn_postconv",
                .name = "wave",
                .summary = "32 lanes a head, a lane an element of v and a gate; sums by 32 partials",
                .knobs = et_no_knobs,
                .resolve = resolve_wave,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_wave,
};
