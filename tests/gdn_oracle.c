/*
 * gdn_postconv's oracle for tests/gdn_numpy.py. Reads problems from stdin until it ends, each
 *
 *     8 int64  tokens k_heads v_heads k_head_dim v_head_dim scale_q, types of conv and of a and b (et_dtype)
 *     double   eps
 *     conv, a, b, A_log, dt_bias, packed
 *
 * and writes q, k, v, g and beta as doubles.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../ref/etalon.h"

enum { CONV, A, B, A_LOG, DT_BIAS, Q, K, V, G, BETA };

struct header {
    int64_t tokens, k_heads, v_heads, k_head_dim, v_head_dim, scale_q, conv, gate;
    double eps;
};

static int fail(const char *what)
{
    fprintf(stderr, "gdn_oracle: %s\n", what);
    return EXIT_FAILURE;
}

static bool answer(const struct et_problem *problem, double *const value[])
{
    const struct et_operator *op = problem->op;
    const struct et_arith arith = {.depth_sum = 1};
    void *work = malloc(op->work_bytes(problem));
    int64_t longest = 1;
    for (int t = Q; t <= BETA; t++)
        for (int k = 0; k < problem->tensor[t].rank; k++)
            longest = problem->tensor[t].size[k] > longest ? problem->tensor[t].size[k] : longest;
    struct et_spread *spread = malloc((size_t)longest * sizeof *spread);
    const bool ready = work && spread;
    for (int64_t i = 0; ready && i < op->units(problem); i++) {
        const struct et_unit unit = op->unit(problem, i);
        op->oracle(problem, i, &arith, 1, work, value[unit.output] + unit.at, spread);
    }
    free(work);
    free(spread);
    return ready;
}

static const char *one(const struct header *h, struct et_error *error)
{
    const struct et_gdn_postconv params = {h->tokens,     h->k_heads, h->v_heads, h->k_head_dim,
                                           h->v_head_dim, h->eps,     h->scale_q};
    struct et_problem problem = {.op = et_operator_named("gdn_postconv"), .params = &params};
    struct et_tensor *t = problem.tensor;
    double *value[BETA + 1] = {NULL};
    const char *wrong = NULL;
    t[CONV].dtype = (enum et_dtype)h->conv;
    t[A].dtype = t[B].dtype = (enum et_dtype)h->gate;
    if (problem.op->shape(&params, t, error) != ET_OK)
        return error->text;
    for (int i = CONV; i <= BETA && !wrong; i++) {
        et_tensor_pack(&t[i]);
        const size_t count = (size_t)et_tensor_count(&t[i]);
        if (i >= Q)
            value[i] = malloc(count * sizeof **value);
        else if (!(t[i].data = malloc(t[i].bytes)) || fread(t[i].data, 1, t[i].bytes, stdin) != t[i].bytes)
            wrong = "an input ends early";
    }
    if (!wrong && !answer(&problem, value))
        wrong = "no memory";
    for (int i = CONV; i <= BETA; i++) {
        const size_t count = (size_t)et_tensor_count(&t[i]);
        if (i >= Q && !wrong && fwrite(value[i], sizeof **value, count, stdout) != count)
            wrong = "stdout is closed";
        free(value[i]);
        free(t[i].data);
    }
    return wrong;
}

int main(void)
{
    struct header header;
    struct et_error error;
    while (fread(&header, sizeof header, 1, stdin) == 1) {
        const char *wrong = one(&header, &error);
        if (wrong)
            return fail(wrong);
        fflush(stdout);
    }
    return EXIT_SUCCESS;
}
