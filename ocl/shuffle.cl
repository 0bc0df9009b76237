/* Whether exchanges work: of `lanes`, out[i] = x of the lane ^ by, or -1 where they do not reach so far. */
#include "shuffle.clh"

kernel SUBGROUP_SIZE void shuffle(global float *out, uint lanes, uint by)
{
    const float x = et_exchange((float)(uint)get_local_id(0), by);
    out[get_local_id(0)] = et_exchanges(lanes) ? x : -1.0f;
}
