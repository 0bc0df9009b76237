/* Data of flash_attn: plain fills, masks, and the exact family. */
#include "flash_attn.h"

#include <math.h>

enum { HOLES };

const struct et_own_fill et_fa_own_fills[] = {
    [HOLES] = {.name = "holes",
               .tensor = ET_FA_MASK,
               .option = {.name = "share",
                          .kind = ET_REAL,
                          .min = 0,
                          .max = 1,
                          .fallback = 0.25,
                          .doc = "of elements that are -Inf, by lot; the others are 0"}},
    {.name = NULL},
};

/* Of a materialised mask: 0 where the flags show a key to the query, or ALiBi's distance; else -Inf. */
static void materialise(const struct et_flash_attn *p, int64_t query, float *dst)
{
    const int64_t position = et_fa_position(p, query);
    int64_t from, to;
    et_fa_span(p, query, &from, &to);
    for (int64_t j = 0; j < p->kv_length; j++) {
        const int64_t distance = j < position ? position - j : j - position;
        const bool seen = from <= j && j < to;
        dst[j] = !seen ? -INFINITY : p->max_bias > 0 ? (float)(0 - distance) : 0;
    }
}

/* Elements of the mask from `at` on: -Inf by lot, else 0. */
static void holes(uint64_t seed, double share, int64_t at, int64_t n, float *dst)
{
    const struct et_stream lots = et_stream(seed, "mask");
    for (int64_t i = 0; i < n; i++)
        dst[i] = (double)et_word(&lots, (uint64_t)(at + i), 0) < share * 0x1p32 ? -INFINITY : 0;
}

void et_fa_fill(const struct et_problem *problem, const struct et_fill *fill, int tensor, int64_t row,
                float *dst)
{
    const struct et_flash_attn *p = problem->params;
    const struct et_tensor *t = &problem->tensor[tensor];
    const int64_t n = t->size[t->rank - 1];
    if (tensor == ET_FA_MASK && p->mask == ET_MASK_MATERIALISED)
        materialise(p, row % p->query_length, dst);
    else if (fill->kind == ET_FILL_OWN)
        holes(fill->seed, fill->value, row * n, n, dst);
    else
        et_fill_values(fill, problem->op->tensors[tensor].name, row * n, n, dst);
}

enum et_status et_fa_takes(const struct et_problem *problem, enum et_fill_kind kind, struct et_error *error)
{
    (void)problem;
    (void)kind;
    (void)error;
    return ET_OK;
}

bool et_fa_names(const struct et_problem *problem, int64_t unit, const double *got, char *text, size_t size)
{
    (void)problem;
    (void)unit;
    (void)got;
    (void)text;
    (void)size;
    return false;
}
