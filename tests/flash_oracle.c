/*
 * flash_attn's oracle for tests/flash_torch.py. Reads problems from stdin until it ends, each
 *
 *     19 int64   batch kv_batch q_heads kv_heads head_dim v_head_dim query_length kv_length causal window
 *                window_right sinks mask mask_batches mask_heads, types of q, k, v and mask (et_dtype)
 *     3 double   scale softcap max_bias
 *     q, k, v, mask, sinks, packed
 *
 * and writes out as doubles.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../ref/etalon.h"

enum { Q, K, V, MASK, SINKS, OUT };

struct header {
    int64_t param[15], type[4];
    double scale, softcap, max_bias;
};

static bool answer(const struct et_problem *problem, int64_t width)
{
    const struct et_operator *op = problem->op;
    const struct et_arith arith = {.depth_sum = 1};
    void *work = malloc(op->work_bytes(problem));
    double *value = malloc((size_t)width * sizeof *value);
    struct et_spread *spread = malloc((size_t)width * sizeof *spread);
    bool good = work && value && spread;
    for (int64_t i = 0; good && i < op->units(problem); i++) {
        op->oracle(problem, i, &arith, 1, work, value, spread);
        good = fwrite(value, sizeof *value, (size_t)width, stdout) == (size_t)width;
    }
    free(work);
    free(value);
    free(spread);
    return good;
}

static const char *one(const struct header *h, struct et_error *error)
{
    const int64_t *n = h->param;
    const struct et_flash_attn params = {n[0],  n[1],  n[2],  n[3],     n[4],       n[5],
                                         n[6],  n[7],  n[8],  n[9],     n[10],      n[11],
                                         n[12], n[13], n[14], h->scale, h->softcap, h->max_bias};
    struct et_problem problem = {.op = et_operator_named("flash_attn"), .params = &params};
    struct et_tensor *t = problem.tensor;
    const char *wrong = NULL;
    for (int i = Q; i <= MASK; i++)
        t[i].dtype = (enum et_dtype)h->type[i];
    if (problem.op->shape(&params, t, error) != ET_OK)
        return error->text;
    for (int i = Q; i <= OUT; i++) {
        et_tensor_pack(&t[i]);
        if (i == OUT || wrong)
            continue;
        t[i].data = malloc(t[i].bytes + 1);
        if (!t[i].data || fread(t[i].data, 1, t[i].bytes, stdin) != t[i].bytes)
            wrong = "an input ends early";
    }
    if (!wrong && !answer(&problem, params.v_head_dim))
        wrong = "no memory, or stdout is closed";
    for (int i = Q; i <= SINKS; i++)
        free(t[i].data);
    return wrong;
}

int main(void)
{
    struct header header;
    struct et_error error;
    while (fread(&header, sizeof header, 1, stdin) == 1) {
        const char *wrong = one(&header, &error);
        if (wrong) {
            fprintf(stderr, "flash_oracle: %s\n", wrong);
            return EXIT_FAILURE;
        }
    }
    return EXIT_SUCCESS;
}
