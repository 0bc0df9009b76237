#include "blas.h"

#include <stdio.h>
#include <stdlib.h>

#include "port.h"

static const struct et_variant *const variants[] = {
    &et_blas_gqa_av.variant,
    &et_blas_skinny_gemm.variant,
    &et_blas_flash_attn.variant,
    NULL,
};

const struct et_port et_blas = {
    .abi = ET_ABI,
    .name = "openblas",
    .variants = variants,
    .open = et_blas_open,
    .close = et_blas_close,
};

enum et_status et_blas_fits(const char *name, int64_t value, struct et_error *why)
{
    if (value > ET_BLAS_MOST)
        return et_fail(why, ET_REFUSED, "%s is %lld, must be at most %d", name, (long long)value,
                       ET_BLAS_MOST);
    return ET_OK;
}

struct et_claim et_blas_claim(int64_t depth)
{
    return (struct et_claim){.arith = {.query = ET_F32,
                                       .product = ET_F32,
                                       .sum = ET_F32,
                                       .weight = ET_F32,
                                       .partial = ET_F32,
                                       .depth_sum = depth < INT32_MAX ? (int32_t)depth : INT32_MAX},
                             .order = {.name = "none"}};
}

void et_blas_load(const struct et_tensor *tensor, int64_t row, int64_t n, float *dst)
{
    const int64_t at = et_row_at(tensor, row), stride = tensor->stride[tensor->rank - 1];
    if (stride == 1) {
        et_widen_n(tensor->dtype, (const char *)tensor->data + (size_t)at * et_format(tensor->dtype)->bytes,
                   n, dst);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        dst[i] = et_widen(tensor->dtype, et_load(tensor->dtype, tensor->data, at + i * stride));
}

void et_blas_store(const struct et_tensor *tensor, void *out, int64_t row, int64_t n, const float *src)
{
    const int64_t at = et_row_at(tensor, row), stride = tensor->stride[tensor->rank - 1];
    for (int64_t i = 0; i < n; i++)
        et_store(tensor->dtype, out, at + i * stride, et_narrow(tensor->dtype, (double)src[i]));
}

/* One case, whose steps share the room. */
struct state {
    const struct et_session *session;
    const struct et_blas_variant *variant;
    const struct et_problem *steps;
    float *room;
};

enum et_status et_blas_prepare(struct et_session *session, const struct et_variant *variant,
                               const struct et_problem *steps, const struct et_claim *claims, int n,
                               void **state, struct et_error *error)
{
    const struct et_blas_variant *mine = (const struct et_blas_variant *)variant;
    size_t most = 1;
    (void)claims;
    for (int i = 0; i < n; i++) {
        const size_t room = mine->room(&steps[i]);
        most = room > most ? room : most;
    }
    struct state *made = malloc(sizeof *made);
    *state = made;
    if (!made)
        return et_fail(error, ET_FAILED, "out of memory for %zu bytes", sizeof *made);
    *made = (struct state){session, mine, steps, calloc(most, sizeof *made->room)};
    if (!made->room)
        return et_fail(error, ET_FAILED, "out of memory for %zu floats", most);
    return ET_OK;
}

enum et_status et_blas_step(void *state, int i, int repeat, void *const *out, struct et_facts *facts,
                            struct et_error *error)
{
    const struct state *s = state;
    const struct et_variant *variant = &s->variant->variant;
    (void)repeat;
    (void)error;
    s->variant->compute(s->session, &s->steps[i], s->room, out);
    snprintf(facts->kernels, sizeof facts->kernels, "%s_%s", variant->op, variant->name);
    return ET_OK;
}

void et_blas_finish(void *state)
{
    struct state *s = state;
    if (s)
        free(s->room);
    free(s);
}
