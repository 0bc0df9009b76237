/* flash_attn in f32, in exactly the order that a variant claims. */
#include "flash_attn.h"
#include "softmax.h"

size_t et_fa_replay_bytes(const struct et_problem *problem)
{
    (void)problem;
    return 0;
}

enum et_status et_fa_replay(const struct et_problem *problem, const struct et_order *order, int64_t unit,
                            void *work, float *value, struct et_met *met, struct et_error *error)
{
    (void)problem;
    (void)unit;
    (void)work;
    (void)value;
    (void)met;
    return et_fail(error, ET_REFUSED, "flash_attn has no replay of order %s", order->name);
}
