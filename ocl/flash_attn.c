/* flash_attn: which shapes each variant takes, and what it launches. Kernels and their orders: flash_attn.cl.
 */
#include <stdio.h>
#include <string.h>

#include "../ref/flash_attn.h"
#include "port.h"

enum { STEP = 32, ITEMS = 32, TILE_LOCAL_BYTES = 15808 };

static int32_t at_most_int32(int64_t n)
{
    return n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

static enum et_status resolve_tile(const struct et_problem *problem, const struct et_device *device,
                                   const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)asked;
    const struct et_flash_attn *p = problem->params;
    *claim = (struct et_claim){.arith = {.query = ET_F32,
                                         .product = ET_F32,
                                         .sum = ET_F32,
                                         .weight = ET_F32,
                                         .partial = ET_F32,
                                         .depth_qk = at_most_int32(p->head_dim),
                                         .depth_sum = at_most_int32(p->kv_length),
                                         .tiles = at_most_int32(et_ceil_div(p->kv_length, STEP))},
                               .order = {.name = "online", .arg = {STEP, ET_F32}}};
    return et_ocl_fits(problem, device, TILE_LOCAL_BYTES, 0, why);
}

/* Query rows of a group: as many as have their accumulators in 8 KiB. */
static int64_t rows_of(const struct et_flash_attn *p)
{
    return p->v_head_dim <= 128 ? 16 : p->v_head_dim <= 256 ? 8 : p->v_head_dim <= 512 ? 4 : 2;
}

static uint64_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Keys from a row's position + reach on are hidden; 0: none are. */
static int64_t reach_of(const struct et_flash_attn *p)
{
    return p->causal != ET_CAUSAL_NONE ? 1 : p->window_right + 1;
}

static int plan_tile(const struct et_problem *problem, const struct et_claim *claim,
                     struct et_launch *launches)
{
    (void)claim;
    const struct et_flash_attn *p = problem->params;
    const bool flags = p->mask != ET_MASK_MATERIALISED;
    const int64_t shift = p->causal == ET_CAUSAL_TOP_LEFT ? 0 : p->kv_length - p->query_length;
    launches[0] = (struct et_launch){
        .file = "flash_attn.cl",
        .kernel = "flash_attn_tile_f32",
        .groups = {(size_t)et_ceil_div(p->query_length, rows_of(p)), (size_t)p->q_heads, (size_t)p->batch},
        .items = ITEMS,
        .scalar = {(uint64_t)rows_of(p), (uint64_t)(p->q_heads / p->kv_heads),
                   (uint64_t)(p->batch / p->kv_batch), (uint64_t)p->head_dim, (uint64_t)p->v_head_dim,
                   (uint64_t)p->query_length, (uint64_t)p->kv_length, (uint64_t)shift,
                   flags ? (uint64_t)p->window : 0, flags ? (uint64_t)reach_of(p) : 0,
                   p->mask != ET_MASK_NONE ? (uint64_t)p->mask_batches : 0, (uint64_t)p->mask_heads,
                   (uint64_t)p->sinks, bits_of(et_fa_scale(p)), bits_of((float)p->softcap),
                   bits_of((float)p->max_bias)},
        .scalars = 16,
    };
    return 1;
}

const struct et_ocl_variant et_ocl_flash_attn_tile_f32 = {
    .variant = {.op = "flash_attn",
                .name = "tile_f32",
                .summary = "one group per 2 to 16 query rows of a head, keys in steps of 32, f32 throughout",
                .knobs = et_no_knobs,
                .resolve = resolve_tile,
                .prepare = et_ocl_prepare,
                .step = et_ocl_step,
                .finish = et_ocl_finish},
    .plan = plan_tile,
};
