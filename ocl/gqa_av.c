/* gqa_av: which shapes each variant takes, and what it launches. The kernels and their order: gqa_av.cl. */
#include <stdio.h>
#include <string.h>

#include "port.h"

enum { W, V, OUT };
enum { PARTIALS = 64, MOST_GROUP = 8, PARTIAL_BYTES = 16 };

static const struct et_field no_knobs[] = {{.name = NULL}};

static int64_t ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

/* Additions behind one output: the longest partial, its tail, and the tree over 64. */
static int32_t depth(int64_t context)
{
    const int64_t chain = 4 * ceil_div(context / 4, PARTIALS) + (context % 4 != 0 ? 4 : 0) + 6;
    return chain < INT32_MAX ? (int32_t)chain : INT32_MAX;
}

static enum et_status resolve(const struct et_problem *problem, const struct et_device *device, int64_t group,
                              struct et_claim *claim, struct et_error *why)
{
    const struct et_gqa_av *p = problem->params;
    if (p->query_length != 1)
        return et_fail(why, ET_REFUSED, "query_length is %lld, must be 1 (decode)",
                       (long long)p->query_length);
    *claim = (struct et_claim){
        .arith = {.query = ET_F32,
                  .product = ET_F32,
                  .sum = ET_F32,
                  .weight = ET_F32,
                  .partial = ET_F32,
                  .depth_sum = depth(p->context)},
        .order = {.name = "ctx64x4", .arg = {ET_F32}},
    };
    return et_ocl_fits(problem, device, (size_t)(PARTIALS * PARTIAL_BYTES * group), 0, why);
}

static enum et_status resolve_per_head(const struct et_problem *problem, const struct et_device *device,
                                       const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)asked;
    return resolve(problem, device, 1, claim, why);
}

static enum et_status resolve_gqa(const struct et_problem *problem, const struct et_device *device,
                                  const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)asked;
    const struct et_gqa_av *p = problem->params;
    if (p->q_heads % p->kv_heads != 0)
        return et_fail(why, ET_REFUSED,
                       "q_heads = %lld over kv_heads = %lld is a group of %.4g, must be whole and at most %d",
                       (long long)p->q_heads, (long long)p->kv_heads,
                       (double)p->q_heads / (double)p->kv_heads, MOST_GROUP);
    const int64_t group = p->q_heads / p->kv_heads;
    if (group > MOST_GROUP)
        return et_fail(why, ET_REFUSED,
                       "q_heads = %lld over kv_heads = %lld is a group of %lld, must be at most %d",
                       (long long)p->q_heads, (long long)p->kv_heads, (long long)group, MOST_GROUP);
    return resolve(problem, device, group, claim, why);
}

static int plan(const struct et_problem *problem, const char *kernel, int64_t group, int64_t heads,
                struct et_launch *launch)
{
    const struct et_gqa_av *p = problem->params;
    *launch = (struct et_launch){
        .file = "gqa_av.cl",
        .kernel = kernel,
        .groups = {(size_t)ceil_div(p->head_dim, 4), (size_t)heads},
        .items = PARTIALS,
        .scalar = {(uint64_t)p->q_heads, (uint64_t)p->kv_heads, (uint64_t)p->head_dim, (uint64_t)p->context},
        .scalars = 4,
    };
    snprintf(launch->options, sizeof launch->options, "-D GROUP_SIZE=%d", (int)group);
    return 1;
}

static int plan_per_head(const struct et_problem *problem, const struct et_claim *claim,
                         struct et_launch *launches)
{
    (void)claim;
    const struct et_gqa_av *p = problem->params;
    return plan(problem, "gqa_av_per_head", 1, p->q_heads, launches);
}

static int plan_gqa(const struct et_problem *problem, const struct et_claim *claim,
                    struct et_launch *launches)
{
    (void)claim;
    const struct et_gqa_av *p = problem->params;
    return plan(problem, "gqa_av_gqa", p->q_heads / p->kv_heads, p->kv_heads, launches);
}

const struct et_ocl_variant et_ocl_gqa_av_per_head = {
    .variant = {.op = "gqa_av",
                .name = "per_head",
                .summary = "one group per 4 outputs and query head",
                .knobs = no_knobs,
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
                .knobs = no_knobs,
                .resolve = resolve_gqa,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_gqa,
};
