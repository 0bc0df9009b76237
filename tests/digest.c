/*
 * Digests of all that must not depend on the processor: tests/aarch64.py compares this program's output with
 * that of another architecture.
 *
 * Lines `bytes NAME HASH...` owe the same text, lines `row NAME VALUE...` (doubles in hex, one row of an
 * oracle) the same numbers to 2^-44 of the largest of them. Operators, their fills, variants and orders are
 * found in the tables: a new operator needs nothing here, but may have problems of its own.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ocl/ocl.h"
#include "fmath_sample.h"

enum { STRIDE = 1 << 18 };

static uint64_t add_word(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * 0x100000001b3;
}

static uint64_t add_bits(uint64_t hash, double x)
{
    uint64_t word;
    memcpy(&word, &x, sizeof word);
    return add_word(hash, word);
}

static void print_hash(const char *kind, const char *name, uint64_t hash)
{
    printf("bytes %s/%s %016llx\n", kind, name, (unsigned long long)hash);
}

/* Ends the program: a digest of less than everything is none. */
static _Noreturn void give_up(const char *what, const char *sentence)
{
    fprintf(stderr, "digest: %s: %s\n", what, sentence);
    exit(EXIT_FAILURE);
}

static void *allocate(size_t bytes)
{
    void *p = calloc(bytes + 1, 1);
    if (!p)
        give_up("allocation", "out of memory");
    return p;
}

/* ---- dtype ---- */

/* Every pattern, or a stride of f32's: its value, what the type makes of it again, and of the tie above it.
 */
static void digest_dtype(enum et_dtype dtype)
{
    const struct et_format *format = et_format(dtype);
    const uint32_t patterns = format->bytes == 4 ? STRIDE : 1U << (8 * format->bytes);
    uint64_t widened = hash_start, narrowed = hash_start;
    for (uint32_t i = 0; i < patterns; i++) {
        const uint32_t at = format->bytes == 4 ? i << 14 | i >> 4 : i;
        const double x = (double)et_widen(dtype, at), above = (double)et_widen(dtype, at + 1);
        const double tie = x / 2 + above / 2;
        widened = add_word(widened, et_as_u32(et_widen(dtype, at)));
        narrowed = add_word(narrowed, et_narrow(dtype, x));
        narrowed = add_word(narrowed, et_narrow(dtype, tie));
        narrowed = add_word(narrowed, et_narrow(dtype, nextafter(tie, INFINITY)));
        narrowed = add_word(narrowed, et_narrow(dtype, nextafter(tie, -INFINITY)));
        narrowed = add_bits(narrowed, et_half_ulp(dtype, x));
    }
    for (uint32_t i = 0; i < STRIDE; i++)
        narrowed = add_word(narrowed, et_narrow(dtype, (double)sample(i * (SAMPLE / STRIDE))));
    print_hash("widen", format->name, widened);
    print_hash("narrow", format->name, narrowed);
}

/* ---- rng and plain fills ---- */

static void digest_random(void)
{
    static const uint32_t counter[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                          key[2] = {0xa4093822, 0x299f31d0};
    uint32_t word[4];
    et_philox(counter, key, word);
    printf("bytes philox %08x %08x %08x %08x\n", word[0], word[1], word[2], word[3]);
    float *values = allocate(STRIDE * sizeof *values);
    for (int kind = 0; kind < ET_FILLS; kind++) {
        const struct et_fill fill = {.kind = (enum et_fill_kind)kind, .seed = 0x700000001, .value = 0.1};
        et_fill_values(&fill, "query", 0xfffffff0, STRIDE, values);
        uint64_t hash = hash_start;
        for (int i = 0; i < STRIDE; i++)
            hash = hash_add(hash, values[i]);
        print_hash("fill", et_fill_name(fill.kind), hash);
    }
    free(values);
}

/* ---- fmath ---- */

static void digest_fmath(void)
{
    for (int f = 0; f < FUNCTIONS; f++) {
        uint64_t hash = hash_start;
        for (uint32_t i = 0; i < STRIDE; i++)
            hash = hash_add(hash, functions[f].portable(sample(i * (SAMPLE / STRIDE))));
        print_hash("fmath", functions[f].name, hash);
    }
    uint64_t hash = hash_start, state = 1;
    for (int i = 0; i < STRIDE; i++) {
        float a, b;
        random_pair(&state, &a, &b);
        hash = hash_add(hash, et_div(a, b));
    }
    print_hash("fmath", "div", hash);
}

/* ---- Operators ---- */

/* "NAME=VALUE ..." of the params that differ from the general problems: there each required param is K. */
static const struct special {
    const char *op, *params;
} specials[] = {
    {"gqa_av", "q_heads=6 kv_heads=2 head_dim=12 context=259 capacity=260"},
    {"gqa_av", "q_heads=9 kv_heads=3 head_dim=5 context=67 query_length=7"},
    {"skinny_gemm", "tokens=3 out_features=5 in_features=264 bias=4"},
    {"skinny_gemm", "tokens=2 out_features=3 in_features=512 bias=1 group=64"},
    {"skinny_gemm", "tokens=2 out_features=3 in_features=512 bias=3 group=128 zero_points=1"},
};

static const int general[] = {1, 2, 4, 16, 64};

/* Knobs are asked for one at a time, with each of the values 0 to 3 that they take. */
enum { ANSWERS = 4 };

static void set_params(const struct et_operator *op, const char *text, int k, void *params)
{
    for (const struct et_field *f = op->params; f->name; f++) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "%s=", f->name);
        const char *at = text;
        while (at && strncmp(at, wanted, strlen(wanted)) != 0)
            at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL;
        const int same = f->same_as ? et_field_index(op->params, f->same_as) : -1;
        const double value = at            ? strtod(at + strlen(wanted), NULL)
                             : same >= 0   ? et_param_real(&op->params[same], params)
                             : f->required ? k
                                           : f->fallback;
        et_param_set(f, params, value);
    }
}

static void fill_tensor(struct et_problem *problem, int t, enum et_fill_kind kind)
{
    struct et_tensor *tensor = &problem->tensor[t];
    const int64_t n = tensor->size[tensor->rank - 1];
    const struct et_fill fill = {.kind = kind, .seed = 11};
    float *row = allocate((size_t)n * sizeof *row);
    enum et_class *class = allocate((size_t)n * sizeof *class);
    for (int64_t r = 0; r < et_tensor_rows(tensor); r++) {
        problem->op->fill(problem, &fill, t, r, row);
        problem->op->classify(problem, t, r, class);
        for (int64_t i = 0; i < n; i++) {
            const double value = class[i] == ET_DATA ? (double)row[i] : class[i] == ET_ZERO ? 0 : (double)NAN;
            et_store(tensor->dtype, tensor->data, et_row_at(tensor, r) + i, et_narrow(tensor->dtype, value));
        }
    }
    free(class);
    free(row);
}

static uint64_t hash_of_inputs(const struct et_problem *problem)
{
    uint64_t hash = hash_start;
    for (int t = 0; problem->op->tensors[t].name; t++)
        for (int64_t i = 0; problem->tensor[t].bytes > 0 && i < et_tensor_count(&problem->tensor[t]); i++)
            hash = add_word(hash, et_load(problem->tensor[t].dtype, problem->tensor[t].data, i));
    return hash;
}

/* The type where a tensor can have it; the others have their default, or f32 where `wide` and they can. */
static void set_types(const struct et_operator *op, enum et_dtype dtype, bool wide, struct et_tensor *tensor)
{
    for (int t = 0; op->tensors[t].name; t++)
        tensor[t].dtype = op->tensors[t].dtypes >> dtype & 1              ? dtype
                          : wide && (op->tensors[t].dtypes >> ET_F32 & 1) ? ET_F32
                                                                          : op->tensors[t].dtype;
}

/* False where there is no such problem. */
static bool make_problem(const struct et_operator *op, const void *params, enum et_dtype dtype,
                         enum et_fill_kind kind, struct et_problem *problem)
{
    struct et_error error;
    *problem = (struct et_problem){.op = op, .params = params};
    set_types(op, dtype, false, problem->tensor);
    enum et_status status = op->shape(params, problem->tensor, &error);
    if (status != ET_OK) {
        set_types(op, dtype, true, problem->tensor);
        status = op->shape(params, problem->tensor, &error);
    }
    if (status != ET_OK)
        return false;
    for (int t = 0; op->tensors[t].name; t++) {
        if (!et_tensor_pack(&problem->tensor[t]))
            return false;
        problem->tensor[t].data = allocate(problem->tensor[t].bytes);
    }
    for (int t = 0; op->tensors[t].name; t++)
        if (op->tensors[t].role == ET_INPUT)
            fill_tensor(problem, t, kind);
    return true;
}

static void free_problem(struct et_problem *problem)
{
    for (int t = 0; problem->op->tensors[t].name; t++)
        free(problem->tensor[t].data);
}

static void print_row(const struct et_problem *problem, const char *name, int64_t i, void *work)
{
    const struct et_arith arith = {.depth_qk = 1, .depth_sum = 1, .tiles = 1};
    const int64_t n = problem->op->unit(problem, i).count;
    double *value = allocate((size_t)n * sizeof *value);
    struct et_spread *spread = allocate((size_t)n * sizeof *spread);
    problem->op->oracle(problem, i, &arith, 1, work, value, spread);
    printf("row %s/%lld", name, (long long)i);
    for (int64_t k = 0; k < n; k++)
        printf(" %a", value[k]);
    printf("\nrow %s/%lld/worst", name, (long long)i);
    for (int64_t k = 0; k < n; k++)
        printf(" %a", spread[k].worst);
    printf("\n");
    free(spread);
    free(value);
}

static void replay(const struct et_problem *problem, const struct et_order *order, const char *name,
                   void *work)
{
    struct et_met met = {0};
    uint64_t hash = hash_start;
    for (int64_t i = 0; i < problem->op->units(problem); i++) {
        const int64_t n = problem->op->unit(problem, i).count;
        float *value = allocate((size_t)n * sizeof *value);
        struct et_error error;
        if (problem->op->replay(problem, order, i, work, value, &met, &error) != ET_OK)
            give_up(name, error.text);
        for (int64_t k = 0; k < n; k++)
            hash = add_word(hash, et_canonical(ET_F32, et_as_u32(value[k])));
        free(value);
    }
    printf("bytes %s/%s", name, order->name);
    for (size_t k = 0; k < sizeof order->arg / sizeof *order->arg; k++)
        printf(":%d", (int)order->arg[k]);
    printf(" %016llx%s\n", (unsigned long long)hash, met.subnormal ? " subnormal" : "");
}

/* The orders that the variants of a problem claim, each once. */
struct orders {
    struct et_order order[64];
    int n;
};

static void add_order(struct orders *orders, const struct et_order *order)
{
    bool known = strcmp(order->name, "none") == 0;
    for (int i = 0; i < orders->n; i++)
        known = known || (strcmp(orders->order[i].name, order->name) == 0 &&
                          memcmp(orders->order[i].arg, order->arg, sizeof order->arg) == 0);
    if (known)
        return;
    if (orders->n == sizeof orders->order / sizeof *orders->order)
        give_up("orders", "there are more than 64");
    orders->order[orders->n++] = *order;
}

static void add_orders(struct orders *orders, const struct et_problem *problem,
                       const struct et_variant *variant)
{
    const struct et_device device = et_device_unlimited();
    for (int k = -1; k < et_field_count(variant->knobs) * ANSWERS; k++) {
        int64_t asked[ET_PARAMS];
        for (int i = 0; i < ET_PARAMS; i++)
            asked[i] = ET_UNSET;
        struct et_error error;
        if (k >= 0 && et_field_check(&variant->knobs[k / ANSWERS], k % ANSWERS, &error) != ET_OK)
            continue;
        if (k >= 0)
            asked[k / ANSWERS] = k % ANSWERS;
        struct et_claim claim = {0};
        if (variant->resolve(problem, &device, asked, &claim, &error) == ET_OK)
            add_order(orders, &claim.order);
    }
}

/* Returns how many orders were replayed. */
static int digest_problem(const struct et_problem *problem, const char *name)
{
    struct orders orders = {.n = 0};
    int64_t rows[16];
    void *work = allocate(problem->op->work_bytes(problem));
    print_hash(name, "inputs", hash_of_inputs(problem));
    for (int v = 0; et_ocl.variants[v]; v++)
        if (strcmp(et_ocl.variants[v]->op, problem->op->name) == 0)
            add_orders(&orders, problem, et_ocl.variants[v]);
    for (int i = 0; i < orders.n; i++)
        replay(problem, &orders.order[i], name, work);
    const int64_t edges = problem->op->edges(problem, sizeof rows / sizeof *rows, rows);
    for (int64_t i = 0; i < edges; i++)
        print_row(problem, name, rows[i], work);
    free(work);
    return orders.n;
}

static bool takes(const struct et_operator *op, enum et_dtype dtype)
{
    unsigned all = 0;
    for (int t = 0; op->tensors[t].name; t++)
        all |= op->tensors[t].dtypes;
    return all >> dtype & 1;
}

/* Every type, every fill. Returns how many orders were replayed, all together. */
static int digest_params(const struct et_operator *op, const char *text, int k)
{
    int replayed = 0;
    _Alignas(16) char params[ET_PARAMS_BYTES];
    set_params(op, text, k, params);
    for (int cell = 0; cell < ET_DTYPES * ET_FILLS; cell++) {
        const enum et_dtype dtype = (enum et_dtype)(cell / ET_FILLS);
        const enum et_fill_kind kind = (enum et_fill_kind)(cell % ET_FILLS);
        if (!takes(op, dtype) || (et_fill_is_exact(kind) && !(op->exact_fills >> kind & 1)))
            continue;
        struct et_problem problem;
        if (make_problem(op, params, dtype, kind, &problem)) {
            char name[300];
            snprintf(name, sizeof name, "%s/%s,k=%d/%s/%s", op->name, text, k, et_format(dtype)->name,
                     et_fill_name(kind));
            for (char *c = name; *c; c++)
                *c = (char)(*c == ' ' ? ',' : *c);
            replayed += digest_problem(&problem, name);
        }
        free_problem(&problem);
    }
    return replayed;
}

int main(void)
{
    for (int dtype = 0; dtype < ET_DTYPES; dtype++)
        digest_dtype((enum et_dtype)dtype);
    digest_random();
    digest_fmath();
    for (int i = 0; et_operators[i]; i++) {
        int replayed = 0;
        for (size_t k = 0; k < sizeof general / sizeof *general; k++)
            replayed += digest_params(et_operators[i], "", general[k]);
        for (size_t s = 0; s < sizeof specials / sizeof *specials; s++)
            if (strcmp(specials[s].op, et_operators[i]->name) == 0)
                replayed += digest_params(et_operators[i], specials[s].params, 0);
        if (replayed == 0)
            give_up(et_operators[i]->name, "no problem of tests/digest.c is replayed");
    }
    return EXIT_SUCCESS;
}
