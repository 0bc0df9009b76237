/* gqa_av: which shapes each variant takes, and what it launches. The kernels and their orders: gqa_av.cl. */
#include <stdio.h>
#include <string.h>

#include "port.h"

enum { PARTIALS = 64, ITEMS = 64, MOST_GROUP = 8, QUAD_BYTES = 16 };

static int64_t quads_of(const struct et_gqa_av *p)
{
    return et_ceil_div(p->head_dim, 4);
}

/* Query heads of a KV head; 0 where the grouped variants do not take them. */
static int64_t group_of(const struct et_gqa_av *p)
{
    const int64_t group = p->q_heads / p->kv_heads;
    return p->q_heads % p->kv_heads == 0 && group <= MOST_GROUP ? group : 0;
}

static int64_t asked_or(const int64_t *asked, int knob, int64_t fallback)
{
    return asked && asked[knob] != ET_UNSET ? asked[knob] : fallback;
}

/* ---- What each claims ---- */

static struct et_claim claim_of(const char *order, int64_t depth)
{
    struct et_claim claim = {.arith = {.query = ET_F32,
                                       .product = ET_F32,
                                       .sum = ET_F32,
                                       .weight = ET_F32,
                                       .partial = ET_F32,
                                       .depth_sum = depth < INT32_MAX ? (int32_t)depth : INT32_MAX},
                             .order = {.arg = {ET_F32}}};
    snprintf(claim.order.name, sizeof claim.order.name, "%s", order);
    return claim;
}

/* `outputs`: quads of outputs whose partials a group holds in local memory. */
static enum et_status resolve_decode(const struct et_problem *problem, const struct et_device *device,
                                     int64_t outputs, size_t scratch_bytes, struct et_claim *claim,
                                     struct et_error *why)
{
    const struct et_gqa_av *p = problem->params;
    if (p->query_length != 1)
        return et_fail(why, ET_REFUSED, "query_length is %lld, must be 1 (decode)",
                       (long long)p->query_length);
    /* Additions behind one output: the longest partial, its tail, and the tree over 64. */
    const int64_t chain = 4 * et_ceil_div(p->context / 4, PARTIALS) + (p->context % 4 != 0 ? 4 : 0) + 6;
    *claim = claim_of("ctx64x4", chain);
    claim->scratch_bytes = scratch_bytes;
    return et_ocl_fits(problem, device, (size_t)(PARTIALS * QUAD_BYTES * outputs), scratch_bytes, why);
}

static enum et_status resolve_per_head(const struct et_problem *problem, const struct et_device *device,
                                       const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)asked;
    return resolve_decode(problem, device, 1, 0, claim, why);
}

static enum et_status refuse_group(const struct et_gqa_av *p, struct et_error *why)
{
    return et_fail(why, ET_REFUSED, "q_heads = %lld over kv_heads = %lld is a group of %.4g, must be %s%d",
                   (long long)p->q_heads, (long long)p->kv_heads, (double)p->q_heads / (double)p->kv_heads,
                   p->q_heads % p->kv_heads != 0 ? "whole and at most " : "at most ", MOST_GROUP);
}

static enum et_status resolve_gqa(const struct et_problem *problem, const struct et_device *device,
                                  const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)asked;
    const int64_t group = group_of(problem->params);
    return group > 0 ? resolve_decode(problem, device, group, 0, claim, why)
                     : refuse_group(problem->params, why);
}

static enum et_status resolve_tile2(const struct et_problem *problem, const struct et_device *device,
                                    const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)asked;
    const int64_t group = group_of(problem->params);
    return group > 0 ? resolve_decode(problem, device, 2 * group, 0, claim, why)
                     : refuse_group(problem->params, why);
}

enum { SPLITS };

static const struct et_field split_knobs[] = {
    [SPLITS] = {.name = "splits",
                .min = 1,
                .max = PARTIALS,
                .fallback = 8,
                .doc = "how many groups share the 64 partials of an output: 1, 2, 4, 8, 16, 32 or 64"},
    {.name = NULL},
};

static enum et_status resolve_split(const struct et_problem *problem, const struct et_device *device,
                                    const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    const struct et_gqa_av *p = problem->params;
    const int64_t splits = asked_or(asked, SPLITS, (int64_t)split_knobs[SPLITS].fallback);
    if (splits < 1 || PARTIALS % splits != 0)
        return et_fail(why, ET_REFUSED, "splits is %lld, must divide %d", (long long)splits, PARTIALS);
    if (group_of(p) == 0)
        return refuse_group(p, why);
    const size_t scratch = (size_t)(p->q_heads * quads_of(p) * PARTIALS * QUAD_BYTES);
    const enum et_status status = resolve_decode(problem, device, 1, scratch, claim, why);
    claim->knob[SPLITS] = splits;
    return status;
}

static enum et_status resolve_tiled(const struct et_problem *problem, const struct et_device *device,
                                    const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)asked;
    const struct et_gqa_av *p = problem->params;
    *claim = claim_of("serial", p->context);
    return et_ocl_fits(problem, device, 0, 0, why);
}

/* Legal for decode, and named for it: it has the order of no other variant there. */
static bool tiled_left_out(const struct et_problem *problem)
{
    const struct et_gqa_av *p = problem->params;
    return p->query_length == 1;
}

/* ---- What each launches ---- */

/* `group`: the heads that share a V quad, 1 where none do. The fewer values, the fewer programs there are. */
static struct et_launch launch_of(const struct et_problem *problem, const char *kernel, int64_t group,
                                  int64_t across, int64_t heads)
{
    const struct et_gqa_av *p = problem->params;
    struct et_launch launch = {
        .file = "gqa_av.cl",
        .kernel = kernel,
        .groups = {(size_t)across, (size_t)heads},
        .items = ITEMS,
        .scalar = {(uint64_t)p->q_heads, (uint64_t)p->kv_heads, (uint64_t)p->head_dim, (uint64_t)p->context},
        .scalars = 4,
    };
    snprintf(launch.options, sizeof launch.options, "-D GROUP_SIZE=%d", (int)group);
    return launch;
}

static int plan_per_head(const struct et_problem *problem, const struct et_claim *claim,
                         struct et_launch *launches)
{
    (void)claim;
    const struct et_gqa_av *p = problem->params;
    launches[0] = launch_of(problem, "gqa_av_per_head", 1, quads_of(p), p->q_heads);
    return 1;
}

static int plan_gqa(const struct et_problem *problem, const struct et_claim *claim,
                    struct et_launch *launches)
{
    (void)claim;
    const struct et_gqa_av *p = problem->params;
    launches[0] = launch_of(problem, "gqa_av_gqa", group_of(p), quads_of(p), p->kv_heads);
    return 1;
}

static int plan_tile2(const struct et_problem *problem, const struct et_claim *claim,
                      struct et_launch *launches)
{
    (void)claim;
    const struct et_gqa_av *p = problem->params;
    launches[0] =
        launch_of(problem, "gqa_av_gqa_tile2", group_of(p), et_ceil_div(quads_of(p), 2), p->kv_heads);
    return 1;
}

static int plan_split(const struct et_problem *problem, const struct et_claim *claim,
                      struct et_launch *launches)
{
    const struct et_gqa_av *p = problem->params;
    const int64_t splits = claim->knob[SPLITS], quads = quads_of(p);
    const int64_t across = quads < splits ? quads : splits;
    launches[0] =
        launch_of(problem, "gqa_av_gqa_split", group_of(p), et_ceil_div(quads, across), p->kv_heads);
    launches[0].groups[2] = (size_t)splits;
    launches[0].scalar[launches[0].scalars++] = (uint64_t)splits;
    launches[1] = launch_of(problem, "gqa_av_gqa_split_tree", group_of(p), quads, p->q_heads);
    return 2;
}

static int plan_tiled(const struct et_problem *problem, const struct et_claim *claim,
                      struct et_launch *launches)
{
    (void)claim;
    const struct et_gqa_av *p = problem->params;
    const int64_t tiles = et_ceil_div(p->query_length, 4) * quads_of(p);
    launches[0] = launch_of(problem, "gqa_av_tiled", 1, et_ceil_div(tiles, ITEMS), p->q_heads);
    launches[0].scalar[launches[0].scalars++] = (uint64_t)p->query_length;
    return 1;
}

/* ---- auto: the rule by which one of the others is chosen ---- */

enum { OVERRIDE };

static const struct et_field auto_knobs[] = {
    [OVERRIDE] = {.name = "override",
                  .min = ET_GQA_AV_AUTO,
                  .max = ET_GQA_AV_BASE,
                  .fallback = ET_GQA_AV_AUTO,
                  .doc = "-1: the rule; 0: per_head; 1: gqa; 2: gqa_tile2; 3: gqa, whatever 1 may become"},
    {.name = NULL},
};

const struct et_ocl_variant *et_gqa_av_dispatch(const struct et_problem *problem, int64_t override)
{
    const struct et_gqa_av *p = problem->params;
    switch (override) {
    case ET_GQA_AV_PER_HEAD:
        return &et_ocl_gqa_av_per_head;
    case ET_GQA_AV_GQA:
    case ET_GQA_AV_BASE:
        return &et_ocl_gqa_av_gqa;
    case ET_GQA_AV_TILE2:
        return &et_ocl_gqa_av_gqa_tile2;
    default:
        return p->query_length != 1 ? &et_ocl_gqa_av_tiled
               : group_of(p) > 1    ? &et_ocl_gqa_av_gqa
                                    : &et_ocl_gqa_av_per_head;
    }
}

static enum et_status resolve_auto(const struct et_problem *problem, const struct et_device *device,
                                   const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    const int64_t override = asked_or(asked, OVERRIDE, ET_GQA_AV_AUTO);
    const struct et_variant *chosen = &et_gqa_av_dispatch(problem, override)->variant;
    const enum et_status status = chosen->resolve(problem, device, NULL, claim, why);
    claim->knob[OVERRIDE] = override;
    snprintf(claim->variant, sizeof claim->variant, "%s", chosen->name);
    return status;
}

static int plan_auto(const struct et_problem *problem, const struct et_claim *claim,
                     struct et_launch *launches)
{
    return et_gqa_av_dispatch(problem, claim->knob[OVERRIDE])->plan(problem, claim, launches);
}

/* It would run one of the others a second time. */
static bool auto_left_out(const struct et_problem *problem)
{
    (void)problem;
    return true;
}

/* ---- The table ---- */

const struct et_ocl_variant et_ocl_gqa_av_per_head = {
    .variant = {.op = "gqa_av",
                .name = "per_head",
                .summary = "one group per 4 outputs and query head",
                .knobs = et_no_knobs,
                .resolve = resolve_per_head,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_per_head,
};

const struct et_ocl_variant et_ocl_gqa_av_gqa = {
    .variant = {.op = "gqa_av",
                .name = "gqa",
                .summary = "one group per 4 outputs and KV head: each V quad loaded once for its query heads",
                .knobs = et_no_knobs,
                .resolve = resolve_gqa,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_gqa,
};

const struct et_ocl_variant et_ocl_gqa_av_gqa_tile2 = {
    .variant = {.op = "gqa_av",
                .name = "gqa_tile2",
                .summary = "gqa with 8 outputs a group: each weight loaded once for two V quads",
                .knobs = et_no_knobs,
                .resolve = resolve_tile2,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_tile2,
};

const struct et_ocl_variant et_ocl_gqa_av_gqa_split = {
    .variant = {.op = "gqa_av",
                .name = "gqa_split",
                .summary =
                    "gqa with the partials of an output over several groups, their tree in a second launch",
                .knobs = split_knobs,
                .resolve = resolve_split,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_split,
};

const struct et_ocl_variant et_ocl_gqa_av_tiled = {
    .variant = {.op = "gqa_av",
                .name = "tiled",
                .summary =
                    "any number of query rows: 4 rows x 4 outputs an item, each one chain over the context",
                .knobs = et_no_knobs,
                .left_out = tiled_left_out,
                .resolve = resolve_tiled,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_tiled,
};

const struct et_ocl_variant et_ocl_gqa_av_auto = {
    .variant = {.op = "gqa_av",
                .name = "auto",
                .summary = "tiled for several query rows, gqa for groups of 2 to 8, else per_head",
                .knobs = auto_knobs,
                .left_out = auto_left_out,
                .resolve = resolve_auto,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_auto,
};
