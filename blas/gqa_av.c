/* gqa_av: a product of matrices for each head, weights [S, C] by values [C, D]. */
#include "port.h"

enum { W, V, OUT };

static enum et_status resolve(const struct et_problem *problem, const struct et_device *device,
                              const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    const struct et_gqa_av *p = problem->params;
    (void)device;
    (void)asked;
    enum et_status status = et_blas_fits("query_length", p->query_length, why);
    if (status == ET_OK)
        status = et_blas_fits("context", p->context, why);
    *claim = et_blas_claim(p->context);
    return status;
}

static size_t room(const struct et_problem *problem)
{
    const struct et_gqa_av *p = problem->params;
    const size_t s = (size_t)p->query_length, c = (size_t)p->context, d = (size_t)p->head_dim;
    return s * c + c * d + s * d;
}

static void compute(const struct et_session *session, const struct et_problem *problem, float *room,
                    void *const *out)
{
    const struct et_gqa_av *p = problem->params;
    const struct et_tensor *t = problem->tensor;
    const int64_t s_count = p->query_length, c_count = p->context, d_count = p->head_dim;
    float *w = room, *v = w + s_count * c_count, *sums = v + c_count * d_count;
    int64_t held = -1; /* the KV head in v */
    for (int64_t h = 0; h < p->q_heads; h++) {
        const int64_t kv = h * p->kv_heads / p->q_heads;
        for (int64_t c = 0; kv != held && c < c_count; c++)
            et_blas_load(&t[V], c * p->kv_heads + kv, d_count, v + c * d_count);
        held = kv;
        for (int64_t s = 0; s < s_count; s++)
            et_blas_load(&t[W], h * t[W].size[1] + s, c_count, w + s * c_count);
        session->multiply(
            session, &(const struct et_product){
                         .rows = s_count, .columns = d_count, .depth = c_count, .a = w, .b = v, .c = sums});
        for (int64_t s = 0; s < s_count; s++)
            et_blas_store(&t[OUT], out[OUT], s * p->q_heads + h, d_count, sums + s * d_count);
    }
}

const struct et_blas_variant et_blas_gqa_av = {.variant = {.op = "gqa_av",
                                                           .name = "sgemm",
                                                           .summary = "a product of matrices for each head",
                                                           .knobs = et_no_knobs,
                                                           .resolve = resolve,
                                                           .prepare = et_blas_prepare,
                                                           .step = et_blas_step,
                                                           .finish = et_blas_finish},
                                               .room = room,
                                               .compute = compute};
