/* Truth: oracle and replay values of the sampled units of one step, computed on threads. */
#include "judge.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/rng.h"
#include "parallel.h"

_Static_assert(sizeof(struct et_arith) == 5 * sizeof(enum et_dtype) + 3 * sizeof(int32_t),
               "et_arith is compared as bytes: no padding");

static bool same_arith(const struct et_arith *a, const struct et_arith *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

bool et_order_same(const struct et_order *a, const struct et_order *b)
{
    return strcmp(a->name, b->name) == 0 && memcmp(a->arg, b->arg, sizeof a->arg) == 0;
}

/* Floyd's algorithm: every set of `rows` units is equally likely, with one draw a unit. */
static void draw(uint64_t seed, int64_t units, int64_t rows, unsigned char *chosen)
{
    const struct et_stream stream = et_stream(seed, "rows");
    for (int64_t i = 0; i < rows; i++) {
        uint32_t word[4];
        et_block(&stream, (uint64_t)i, 0, word);
        const int64_t last = units - rows + i;
        const uint64_t at = ((uint64_t)word[1] << 32 | word[0]) % (uint64_t)(last + 1);
        chosen[chosen[at] ? last : (int64_t)at] = 1;
    }
}

enum { EDGE = 2 };

static void mark_edges(const struct et_problem *problem, unsigned char *chosen)
{
    int64_t edge[256];
    const int64_t most = sizeof edge / sizeof *edge;
    const int64_t n = problem->op->edges(problem, most, edge);
    for (int64_t i = 0; i < n && i < most; i++)
        chosen[edge[i]] = EDGE;
}

static enum et_status sample(const struct et_problem *problem, uint64_t seed, int64_t rows,
                             struct et_truth *truth, struct et_error *error)
{
    const int64_t units = problem->op->units(problem);
    unsigned char *chosen = et_alloc((size_t)units, 1, error);
    if (!chosen)
        return ET_FAILED;
    if (rows == 0 || rows >= units)
        memset(chosen, 1, (size_t)units);
    else
        draw(seed, units, rows, chosen);
    mark_edges(problem, chosen);
    for (int64_t i = 0; i < units; i++)
        truth->units += chosen[i] != 0;
    truth->unit = et_alloc((size_t)truth->units, sizeof *truth->unit, error);
    truth->edge = et_alloc((size_t)truth->units, sizeof *truth->edge, error);
    const bool made = truth->unit && truth->edge;
    for (int64_t i = 0, n = 0; made && i < units; i++)
        if (chosen[i]) {
            truth->edge[n] = chosen[i] == EDGE;
            truth->unit[n++] = i;
        }
    et_free(chosen);
    return made ? ET_OK : ET_FAILED;
}

int et_truth_arith(const struct et_truth *truth, const struct et_arith *arith)
{
    for (int i = 0; i < truth->arith_count; i++)
        if (same_arith(&truth->ariths[i], arith))
            return i;
    return -1;
}

int et_truth_order(const struct et_truth *truth, const struct et_order *order)
{
    for (int i = 0; i < truth->order_count; i++)
        if (et_order_same(&truth->orders[i], order))
            return i;
    return -1;
}

static enum et_status distinct(const struct et_claim *claims, int n, struct et_truth *truth,
                               struct et_error *error)
{
    truth->ariths = et_alloc((size_t)n, sizeof *truth->ariths, error);
    truth->orders = et_alloc((size_t)n, sizeof *truth->orders, error);
    if (!truth->ariths || !truth->orders)
        return ET_FAILED;
    for (int i = 0; i < n; i++) {
        if (et_truth_arith(truth, &claims[i].arith) < 0)
            truth->ariths[truth->arith_count++] = claims[i].arith;
        if (strcmp(claims[i].order.name, "none") != 0 && et_truth_order(truth, &claims[i].order) < 0)
            truth->orders[truth->order_count++] = claims[i].order;
    }
    return ET_OK;
}

static enum et_status make_room(const struct et_problem *problem, struct et_truth *truth,
                                struct et_error *error)
{
    truth->at = et_alloc((size_t)truth->units + 1, sizeof *truth->at, error);
    if (!truth->at)
        return ET_FAILED;
    for (int64_t i = 0; i < truth->units; i++)
        truth->at[i + 1] = truth->at[i] + problem->op->unit(problem, truth->unit[i]).count;
    const size_t n = (size_t)truth->at[truth->units];
    const size_t orders = (size_t)truth->order_count;
    truth->value = et_alloc(n, sizeof *truth->value, error);
    truth->again = et_alloc((size_t)truth->units, sizeof *truth->again, error);
    truth->spread = et_alloc(n, (size_t)truth->arith_count * sizeof *truth->spread, error);
    while (problem->op->lies && problem->op->lies[truth->lie_count].name)
        truth->lie_count++;
    truth->lie = et_alloc(n, (size_t)truth->lie_count * sizeof *truth->lie, error);
    truth->replay = et_alloc(n, orders * sizeof *truth->replay, error);
    truth->met = et_alloc(orders, sizeof *truth->met, error);
    truth->replayed = et_alloc(orders, sizeof *truth->replayed, error);
    const bool all = truth->value && truth->again && truth->spread && truth->lie && truth->replay &&
                     truth->met && truth->replayed;
    return all ? ET_OK : ET_FAILED;
}

/* What the threads share. */
struct share {
    const struct et_problem *problem;
    struct et_truth *truth;
    const volatile sig_atomic_t *stop;
    char *scratch; /* scratch_bytes for each thread */
    size_t scratch_bytes;
    int order;             /* that is replayed */
    atomic_bool refused;   /* there is no replay of it */
    atomic_bool subnormal; /* its replay met one */
};

static void lie_unit(const struct share *share, void *work, int64_t i)
{
    const struct et_truth *truth = share->truth;
    const int64_t count = truth->at[i + 1] - truth->at[i];
    for (int k = 0; k < truth->lie_count; k++) {
        double *delta = truth->lie + truth->at[i] * truth->lie_count + k * count;
        if (truth->edge[i] && share->problem->op->lie(share->problem, truth->unit[i], k, work, delta))
            continue;
        for (int64_t d = 0; d < count; d++)
            delta[d] = (double)NAN;
    }
}

static void oracle_unit(void *context, int thread, int64_t i)
{
    const struct share *share = context;
    struct et_truth *truth = share->truth;
    void *work = share->scratch + (size_t)thread * share->scratch_bytes;
    share->problem->op->oracle(share->problem, truth->unit[i], truth->ariths, truth->arith_count, work,
                               truth->value + truth->at[i],
                               truth->spread + truth->at[i] * truth->arith_count);
    lie_unit(share, work, i);
}

static void replay_unit(void *context, int thread, int64_t i)
{
    struct share *share = context;
    struct et_truth *truth = share->truth;
    if (atomic_load(&share->refused))
        return;
    float *value = truth->replay + share->order * truth->at[truth->units] + truth->at[i];
    struct et_met met = {0};
    if (share->problem->op->replay(share->problem, &truth->orders[share->order], truth->unit[i],
                                   share->scratch + (size_t)thread * share->scratch_bytes, value, &met,
                                   NULL) != ET_OK)
        atomic_store(&share->refused, true);
    if (met.subnormal)
        atomic_store(&share->subnormal, true);
}

static void replay_order(struct share *share, int threads)
{
    struct et_truth *truth = share->truth;
    atomic_store(&share->refused, false);
    atomic_store(&share->subnormal, false);
    et_parallel(threads, truth->units, share->stop, replay_unit, share);
    truth->replayed[share->order] = !atomic_load(&share->refused);
    truth->met[share->order].subnormal = atomic_load(&share->subnormal);
}

struct stored {
    uint64_t hash;
    int64_t i;
};

static int by_hash(const void *a_, const void *b_)
{
    const struct stored *a = a_, *b = b_;
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    return (a->i > b->i) - (a->i < b->i);
}

/* FNV-1a, 64 bits, of the patterns that unit i is stored as. */
static uint64_t hash_unit(const struct et_problem *problem, const struct et_truth *truth, int64_t i)
{
    const int output = problem->op->unit(problem, truth->unit[i]).output;
    uint64_t hash = (0xcbf29ce484222325 ^ (uint64_t)output) * 0x100000001b3;
    for (int64_t k = truth->at[i]; k < truth->at[i + 1]; k++)
        hash = (hash ^ et_narrow(problem->tensor[output].dtype, truth->value[k])) * 0x100000001b3;
    return hash;
}

/* With one visible position, say, all heads of a group have one and the same output and rounding error. */
static enum et_status find_again(const struct et_problem *problem, struct et_truth *truth,
                                 struct et_error *error)
{
    struct stored *stored = et_alloc((size_t)truth->units, sizeof *stored, error);
    if (!stored)
        return ET_FAILED;
    for (int64_t i = 0; i < truth->units; i++)
        stored[i] = (struct stored){hash_unit(problem, truth, i), i};
    qsort(stored, (size_t)truth->units, sizeof *stored, by_hash);
    for (int64_t i = 1; i < truth->units; i++)
        truth->again[stored[i].i] = stored[i].hash == stored[i - 1].hash;
    et_free(stored);
    return ET_OK;
}

static enum et_status compute(const struct et_problem *problem, int threads,
                              const volatile sig_atomic_t *stop, struct et_truth *truth,
                              struct et_error *error)
{
    struct share share = {.problem = problem, .truth = truth, .stop = stop};
    const int n = threads < 1 ? 1 : threads;
    /* Whole cache lines apart: each thread writes its own scratch all the time. */
    share.scratch_bytes = (problem->op->work_bytes(problem) + 127) / 64 * 64;
    share.scratch = et_alloc((size_t)n, share.scratch_bytes, error);
    if (!share.scratch)
        return ET_FAILED;
    const double start = et_now();
    et_parallel(n, truth->units, stop, oracle_unit, &share);
    const double middle = et_now();
    for (share.order = 0; share.order < truth->order_count; share.order++)
        replay_order(&share, n);
    truth->oracle_s = middle - start;
    truth->replay_s = et_now() - middle;
    et_free(share.scratch);
    return ET_OK;
}

enum et_status et_truth_make(const struct et_problem *problem, uint64_t seed, int64_t rows,
                             const struct et_claim *claims, int claim_count, int threads,
                             const volatile sig_atomic_t *stop, struct et_truth *truth,
                             struct et_error *error)
{
    *truth = (struct et_truth){0};
    enum et_status status = sample(problem, seed, rows, truth, error);
    if (status == ET_OK)
        status = distinct(claims, claim_count, truth, error);
    if (status == ET_OK)
        status = make_room(problem, truth, error);
    if (status == ET_OK)
        status = compute(problem, threads, stop, truth, error);
    if (status == ET_OK)
        status = find_again(problem, truth, error);
    if (status != ET_OK)
        et_truth_free(truth);
    return status;
}

void et_truth_free(struct et_truth *truth)
{
    et_free(truth->unit);
    et_free(truth->edge);
    et_free(truth->lie);
    et_free(truth->at);
    et_free(truth->value);
    et_free(truth->again);
    et_free(truth->ariths);
    et_free(truth->spread);
    et_free(truth->orders);
    et_free(truth->replay);
    et_free(truth->met);
    et_free(truth->replayed);
    *truth = (struct et_truth){0};
}
