/*
 * flash_attn on a device: the bytes of the order that it claims, as ref/flash_attn_replay.c has them, at the
 * edges of shapes, masks, windows, layouts, types and limits.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ocl/port.h"
#include "../ref/flash_attn.h"
#include "../ref/rng.h"
#include "device.h"

enum { TENSORS = ET_FA_OUT + 1, REPEAT = 3 };

/* A problem. */

/* What a mask of kind data is made of besides a quarter of -Inf. */
enum pattern { MIXED, FIRST_STEP_HIDDEN, STEPS_HIDDEN, ROWS_HIDDEN, ALL_HIDDEN, PATTERNS };

struct shape {
    struct et_flash_attn p;
    const enum et_dtype *dtype;
    int64_t pad, shift; /* elements behind each row; elements before the first */
    int order;          /* which dimension of the first three is the outermost, and so on */
    enum pattern pattern;
    int64_t sinks_from; /* in the list of sinks */
};

static const enum et_dtype types[][TENSORS] = {
    {ET_F32, ET_F16, ET_F16, ET_F16, ET_F32, ET_F32},
    {ET_F32, ET_F32, ET_F32, ET_F32, ET_F32, ET_F32},
    {ET_BF16, ET_BF16, ET_BF16, ET_F16, ET_F32, ET_BF16},
    {ET_F16, ET_F8E4M3FN, ET_F8E4M3FN, ET_F32, ET_F32, ET_F16},
    {ET_F16, ET_F16, ET_F8E4M3FN, ET_F16, ET_F32, ET_BF16},
    {ET_BF16, ET_F8E4M3FN, ET_F32, ET_F16, ET_F32, ET_F32},
    {ET_F32, ET_BF16, ET_F16, ET_F32, ET_F32, ET_F16},
};

enum { TYPES = sizeof types / sizeof types[0] };

static const float sinks[] = {0, -INFINITY, 3, INFINITY, -2.5F, -1e4F, 90};

enum { SINKS = sizeof sinks / sizeof sinks[0] };

/* Of four dimensions the last is the innermost, with `pad` elements behind; the others are stored in one of
 * the orders. */
static void lay_out(struct et_tensor *t, const struct shape *shape)
{
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {2, 0, 1}};
    int64_t n = t->size[t->rank - 1] + shape->pad;
    t->stride[t->rank - 1] = 1;
    for (int i = t->rank - 2; i >= 0; i--) {
        const int dim = orders[shape->order][i];
        t->stride[dim] = n;
        n *= t->size[dim];
    }
    t->offset = shape->shift;
    const bool empty = t->size[0] == 0 || (t->rank == 4 && t->size[1] * t->size[2] * t->size[3] == 0);
    t->bytes = empty ? 0 : (size_t)(shape->shift + n) * et_format(t->dtype)->bytes;
    t->data = malloc(t->bytes > 0 ? t->bytes : 1);
    ck_assert_ptr_nonnull(t->data);
}

static bool hidden(const struct shape *shape, int64_t query, int64_t j, uint32_t lot)
{
    switch (shape->pattern) {
    case FIRST_STEP_HIDDEN:
        return j < 32 || lot % 4 == 0;
    case STEPS_HIDDEN:
        return j / 32 % 2 == 0 || lot % 16 != 0;
    case ROWS_HIDDEN:
        return query % 3 == 1 || lot % 4 == 0;
    case ALL_HIDDEN:
        return true;
    default:
        return lot % 4 == 0;
    }
}

static void fill_mask(const struct shape *shape, int64_t row, int64_t n, float *dst)
{
    const struct et_stream stream = et_stream(5, "hidden");
    const int64_t query = row % shape->p.query_length;
    int64_t from, to;
    et_fa_span(&shape->p, query, &from, &to);
    for (int64_t j = 0; j < n; j++) {
        if (shape->p.mask == ET_MASK_MATERIALISED)
            dst[j] = j >= from && j < to ? 0 : -INFINITY;
        else if (hidden(shape, query, j, et_word(&stream, (uint64_t)(row * n + j), 0)))
            dst[j] = -INFINITY;
    }
}

/* NaN everywhere but in the data. */
static void fill_tensor(const struct et_problem *problem, int i, const struct shape *shape)
{
    const struct et_tensor *t = &problem->tensor[i];
    const int64_t elements = (int64_t)(t->bytes / et_format(t->dtype)->bytes), n = t->size[t->rank - 1];
    for (int64_t k = 0; k < elements; k++)
        et_store(t->dtype, t->data, k, et_format(t->dtype)->nan);
    if (t->bytes == 0)
        return;
    float *row = malloc((size_t)n * sizeof *row);
    const struct et_fill fill = {.kind = ET_FILL_NORMAL, .seed = 7};
    for (int64_t r = 0; r < et_tensor_rows(t); r++) {
        et_fill_values(&fill, problem->op->tensors[i].name, r * n, n, row);
        if (i == ET_FA_MASK)
            fill_mask(shape, r, n, row);
        for (int64_t k = 0; k < n; k++) {
            const float x = i == ET_FA_SINKS ? sinks[(shape->sinks_from + k) % SINKS] : row[k];
            et_store(t->dtype, t->data, et_row_at(t, r) + k, et_narrow(t->dtype, (double)x));
        }
    }
    free(row);
}

static struct et_problem make_problem(const struct shape *shape)
{
    struct et_problem problem = {.op = et_operator_named("flash_attn"), .params = &shape->p};
    struct et_error error;
    for (int t = 0; t < TENSORS; t++)
        problem.tensor[t].dtype = shape->dtype[t];
    ck_assert_msg(problem.op->shape(problem.params, problem.tensor, &error) == ET_OK, "%s", error.text);
    for (int t = 0; t < TENSORS; t++) {
        lay_out(&problem.tensor[t], shape);
        if (t != ET_FA_OUT)
            fill_tensor(&problem, t, shape);
    }
    return problem;
}

static void free_problem(struct et_problem *problem)
{
    for (int t = 0; t < TENSORS; t++)
        free(problem->tensor[t].data);
}

/* Running. */

static const struct et_variant *variant(void)
{
    return et_variant_named(&et_ocl, "flash_attn", "tile_f32");
}

static void describe(const struct shape *shape, char *text, size_t size)
{
    const struct et_flash_attn *p = &shape->p;
    snprintf(
        text, size,
        "B %d/%d H %d/%d D %d/%d L %d/%d causal %d window %d/%d sinks %d mask %d [%d, %d] scale %g softcap "
        "%g max_bias %g, %s %s %s, pad %d shift %d order %d pattern %d",
        (int)p->batch, (int)p->kv_batch, (int)p->q_heads, (int)p->kv_heads, (int)p->head_dim,
        (int)p->v_head_dim, (int)p->query_length, (int)p->kv_length, (int)p->causal, (int)p->window,
        (int)p->window_right, (int)p->sinks, (int)p->mask, (int)p->mask_batches, (int)p->mask_heads, p->scale,
        p->softcap, p->max_bias, et_format(shape->dtype[ET_FA_Q])->name,
        et_format(shape->dtype[ET_FA_K])->name, et_format(shape->dtype[ET_FA_V])->name, (int)shape->pad,
        (int)shape->shift, shape->order, shape->pattern);
}

static void run(struct et_session *session, const struct et_problem *problem, struct et_claim *claim,
                void *out)
{
    struct et_error error = {""};
    struct et_facts facts;
    void *state, *outs[TENSORS] = {[ET_FA_OUT] = out};
    ck_assert_msg(variant()->resolve(problem, &session->device, NULL, claim, &error) == ET_OK, "%s",
                  error.text);
    ck_assert_msg(variant()->prepare(session, variant(), problem, claim, 1, &state, &error) == ET_OK, "%s",
                  error.text);
    ck_assert_msg(variant()->step(state, 0, REPEAT, outs, &facts, &error) == ET_OK, "%s", error.text);
    variant()->finish(state);
    ck_assert_str_eq(facts.guards, "");
    ck_assert_str_eq(facts.inputs_kept, "");
    ck_assert(facts.guarded == session->guards);
    ck_assert_str_eq(facts.kernels, "flash_attn_tile_f32");
}

/* The row's bytes as replayed; where f32 subnormals take part and the device is not known for them, what it
 * has. */
static void put_row(const struct et_problem *problem, const struct et_claim *claim, bool subnormals,
                    int64_t unit, const void *out, void *want)
{
    const struct et_tensor *t = &problem->tensor[ET_FA_OUT];
    const int64_t n = t->size[3], at = et_row_at(t, unit);
    void *work = malloc(problem->op->work_bytes(problem));
    float *value = malloc((size_t)n * sizeof *value);
    struct et_met met = {0};
    struct et_error error;
    ck_assert_msg(problem->op->replay(problem, &claim->order, unit, work, value, &met, &error) == ET_OK, "%s",
                  error.text);
    for (int64_t d = 0; d < n; d++) {
        const bool trusted = subnormals || !met.subnormal;
        et_store(t->dtype, want, at + d,
                 trusted ? et_narrow(t->dtype, (double)value[d]) : et_load(t->dtype, out, at + d));
    }
    free(value);
    free(work);
}

/* Elements of the shape hold the bytes of the order, all others the poison of the repeat. */
static void assert_bytes(const struct et_problem *problem, const struct et_claim *claim, bool subnormals,
                         const void *out, const char *where)
{
    const struct et_tensor *t = &problem->tensor[ET_FA_OUT];
    const int64_t elements = (int64_t)(t->bytes / et_format(t->dtype)->bytes);
    void *want = malloc(t->bytes);
    for (int64_t at = 0; at < elements; at++)
        et_store(t->dtype, want, at, et_poison(t->dtype, REPEAT));
    for (int64_t i = 0; i < problem->op->units(problem); i++)
        put_row(problem, claim, subnormals, i, out, want);
    for (int64_t at = 0; at < elements; at++)
        ck_assert_msg(et_load(t->dtype, out, at) == et_load(t->dtype, want, at),
                      "%s: element %lld is 0x%08x, want 0x%08x", where, (long long)at,
                      et_load(t->dtype, out, at), et_load(t->dtype, want, at));
    free(want);
}

static void assert_shape(struct et_session *session, const struct shape *shape)
{
    char where[400];
    describe(shape, where, sizeof where);
    struct et_problem problem = make_problem(shape);
    struct et_claim claim;
    void *out = malloc(problem.tensor[ET_FA_OUT].bytes);
    run(session, &problem, &claim, out);
    assert_bytes(&problem, &claim, session->device.exact_subnormal, out, where);
    free(out);
    free_problem(&problem);
}

/* Any geometry. */

/* A number below n. */
static int64_t lot(const struct et_stream *stream, uint32_t *drawn, int64_t n)
{
    return et_word(stream, (*drawn)++, 0) % n;
}

#define PICK(list) list[lot(&stream, &drawn, sizeof list / sizeof *list)]

static struct shape any_shape(uint64_t number)
{
    static const int64_t dims[] = {1, 4, 5, 8, 13, 16, 40, 64, 64, 64, 72, 80, 96, 112, 128, 128};
    static const int64_t lengths[] = {1, 5, 31, 32, 33, 63, 64, 65, 96, 97, 130, 160};
    static const int64_t queries[] = {1, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 70};
    static const double caps[] = {0, 0, 0, 1.5, 30}, scales[] = {0, 0, 1, 0.37};
    const struct et_stream stream = et_stream(number, "shape");
    uint32_t drawn = 0;
    struct shape s = {.p = {.batch = 1 + lot(&stream, &drawn, 3),
                            .kv_heads = 1 + lot(&stream, &drawn, 3),
                            .head_dim = PICK(dims),
                            .v_head_dim = PICK(dims),
                            .query_length = PICK(queries),
                            .kv_length = PICK(lengths),
                            .causal = lot(&stream, &drawn, 3),
                            .window_right = lot(&stream, &drawn, 3) == 0 ? lot(&stream, &drawn, 50) : -1,
                            .window = lot(&stream, &drawn, 3) == 0 ? 1 + lot(&stream, &drawn, 70) : 0,
                            .sinks = lot(&stream, &drawn, 2),
                            .mask = lot(&stream, &drawn, 3),
                            .mask_batches = 1,
                            .mask_heads = 1,
                            .scale = PICK(scales),
                            .softcap = PICK(caps)},
                      .dtype = types[lot(&stream, &drawn, TYPES)],
                      .pad = lot(&stream, &drawn, 4),
                      .shift = lot(&stream, &drawn, 4),
                      .order = (int)lot(&stream, &drawn, 3),
                      .pattern = (enum pattern)lot(&stream, &drawn, PATTERNS),
                      .sinks_from = lot(&stream, &drawn, SINKS)};
    s.p.kv_batch = lot(&stream, &drawn, 2) ? 1 : s.p.batch;
    s.p.q_heads = s.p.kv_heads * (1 + lot(&stream, &drawn, 3));
    s.p.mask_batches = lot(&stream, &drawn, 2) ? 1 : s.p.batch;
    s.p.mask_heads = lot(&stream, &drawn, 2) ? 1 : s.p.kv_heads;
    s.p.max_bias = s.p.mask != ET_MASK_NONE && lot(&stream, &drawn, 2) ? 8 : 0;
    return s;
}

enum { ANY = 40 };

START_TEST(any_geometry_has_the_bytes_of_the_order)
{
    struct et_session *session = open_session(_i % 2, NULL);
    for (int i = 0; i < ANY; i++) {
        const struct shape shape = any_shape((uint64_t)(_i * ANY + i));
        assert_shape(session, &shape);
    }
    et_ocl.close(session);
}
END_TEST

START_TEST(a_smaller_work_group_and_16_KiB_of_local_memory_give_the_same_bytes)
{
    static const int64_t limits[] = {1, 3, 31};
    struct et_session *session = open_session(false, NULL);
    session->device.work_group = limits[_i];
    session->device.local_memory = 16384;
    for (int i = 0; i < ANY; i += 2) {
        const struct shape shape = any_shape((uint64_t)(_i * ANY + i));
        assert_shape(session, &shape);
    }
    et_ocl.close(session);
}
END_TEST

/* Edges. */

static struct shape plain(int64_t heads, int64_t dim, int64_t v_dim, int64_t queries, int64_t keys)
{
    return (struct shape){.p = {.batch = 1,
                                .kv_batch = 1,
                                .q_heads = heads,
                                .kv_heads = 1,
                                .head_dim = dim,
                                .v_head_dim = v_dim,
                                .query_length = queries,
                                .kv_length = keys,
                                .window_right = -1,
                                .mask_batches = 1,
                                .mask_heads = 1},
                          .dtype = types[0],
                          .pad = 1,
                          .shift = 1};
}

START_TEST(every_size_of_heads_has_the_bytes_of_the_order)
{
    static const int64_t dims[][2] = {
        {1, 1},     {4, 4},     {5, 5},     {8, 3},     {40, 40},   {64, 64},   {72, 72},     {80, 80},
        {96, 96},   {112, 112}, {128, 128}, {192, 128}, {192, 192}, {128, 129}, {256, 256},   {320, 256},
        {256, 257}, {512, 512}, {576, 512}, {64, 513},  {80, 1020}, {1021, 64}, {1024, 1024}, {31, 1},
    };
    struct et_session *session = open_session(true, NULL);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        struct shape shape = plain(2, dims[i][0], dims[i][1], 19, 67);
        shape.p.causal = ET_CAUSAL_BOTTOM_RIGHT;
        assert_shape(session, &shape);
    }
    et_ocl.close(session);
}
END_TEST

START_TEST(every_length_around_a_step_has_the_bytes_of_the_order)
{
    static const int64_t lengths[] = {0, 1, 2, 31, 32, 33, 63, 64, 65, 95, 96, 97};
    static const int64_t queries[] = {1, 2, 15, 16, 17, 33};
    struct et_session *session = open_session(true, NULL);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (size_t k = 0; k < sizeof queries / sizeof *queries; k++) {
            struct shape shape = plain(1, 20, 12, queries[k], lengths[i]);
            shape.p.causal = _i;
            assert_shape(session, &shape);
        }
    et_ocl.close(session);
}
END_TEST

START_TEST(every_window_has_the_bytes_of_the_order)
{
    static const int64_t windows[][2] = {{1, -1}, {1, 0},   {32, -1}, {33, 0},   {31, 1},
                                         {64, 2}, {500, 0}, {0, 0},   {0, 1000}, {INT32_MAX, INT32_MAX}};
    static const int64_t lengths[][2] = {{40, 100}, {100, 40}, {70, 70}, {1, 129}};
    struct et_session *session = open_session(true, NULL);
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++)
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            struct shape shape = plain(1, 9, 10, lengths[k][0], lengths[k][1]);
            shape.p.causal = _i;
            shape.p.window = windows[i][0];
            shape.p.window_right = windows[i][1];
            assert_shape(session, &shape);
        }
    et_ocl.close(session);
}
END_TEST

START_TEST(every_mask_with_every_sink_has_the_bytes_of_the_order)
{
    struct et_session *session = open_session(true, NULL);
    for (int pattern = MIXED; pattern < PATTERNS; pattern++)
        for (int kind = ET_MASK_NONE; kind <= ET_MASK_MATERIALISED; kind++) {
            struct shape shape = plain(SINKS, 16, 16, 20, 100);
            shape.p.batch = shape.p.mask_batches = 2;
            shape.p.mask_heads = pattern % 2 ? SINKS : 1;
            shape.p.sinks = 1;
            shape.p.mask = kind;
            shape.p.causal = ET_CAUSAL_BOTTOM_RIGHT;
            shape.p.max_bias = kind == ET_MASK_DATA ? 8 : 0;
            shape.pattern = (enum pattern)pattern;
            assert_shape(session, &shape);
        }
    et_ocl.close(session);
}
END_TEST

START_TEST(flags_and_the_mask_that_says_the_same_have_equal_bytes)
{
    struct et_session *session = open_session(false, NULL);
    for (int causal = ET_CAUSAL_NONE; causal <= ET_CAUSAL_TOP_LEFT; causal++) {
        struct shape shape = plain(2, 24, 24, 50, 90);
        shape.p.causal = causal;
        shape.p.window = 40;
        void *out[2];
        size_t bytes = 0;
        for (int kind = 0; kind < 2; kind++) {
            shape.p.mask = kind ? ET_MASK_MATERIALISED : ET_MASK_NONE;
            struct et_problem problem = make_problem(&shape);
            struct et_claim claim;
            bytes = problem.tensor[ET_FA_OUT].bytes;
            out[kind] = malloc(bytes);
            run(session, &problem, &claim, out[kind]);
            free_problem(&problem);
        }
        ck_assert_mem_eq(out[0], out[1], bytes);
        free(out[0]);
        free(out[1]);
    }
    et_ocl.close(session);
}
END_TEST

/* What it says of itself. */

START_TEST(the_claim_is_of_steps_of_32_keys_in_f32)
{
    const struct shape shape = plain(1, 40, 24, 2, 65);
    struct et_problem problem = make_problem(&shape);
    const struct et_device unlimited = et_device_unlimited();
    struct et_claim claim;
    struct et_error why;
    ck_assert_int_eq(variant()->resolve(&problem, &unlimited, NULL, &claim, &why), ET_OK);
    ck_assert_str_eq(claim.order.name, "online");
    ck_assert_int_eq(claim.order.arg[0], 32);
    ck_assert_int_eq(claim.order.arg[1], ET_F32);
    ck_assert_int_eq(claim.arith.depth_qk, 40);
    ck_assert_int_eq(claim.arith.depth_sum, 65);
    ck_assert_int_eq(claim.arith.tiles, 3);
    ck_assert_int_eq(claim.arith.weight, ET_F32);
    free_problem(&problem);
}
END_TEST

START_TEST(what_it_does_not_take_is_said)
{
    const struct shape shape = plain(1, 40, 24, 2, 65);
    struct et_problem problem = make_problem(&shape);
    struct et_device device = et_device_unlimited();
    struct et_claim claim;
    struct et_error why;
    device.local_memory = 8192;
    ck_assert_int_eq(variant()->resolve(&problem, &device, NULL, &claim, &why), ET_LACKING);
    ck_assert_str_eq(why.text, "a group takes 15808 bytes of local memory, the device has 8192");
    problem.tensor[ET_FA_K].stride[3] = 65;
    ck_assert_int_eq(variant()->resolve(&problem, &device, NULL, &claim, &why), ET_REFUSED);
    ck_assert_str_eq(why.text, "flash_attn: the innermost stride of k is 65, must be 1");
    free_problem(&problem);
}
END_TEST

Suite *et_suite(void)
{
    /* Drivers' threads do not survive a fork. */
    setenv("CK_FORK", "no", 1);
    struct et_device device;
    if (!first_device(&device))
        exit(77);

    Suite *suite = suite_create("ocl_flash_attn");
    TCase *bytes = tcase_create("bytes");
    tcase_add_loop_test(bytes, any_geometry_has_the_bytes_of_the_order, 0, 4);
    tcase_add_loop_test(bytes, a_smaller_work_group_and_16_KiB_of_local_memory_give_the_same_bytes, 0, 3);
    tcase_add_test(bytes, every_size_of_heads_has_the_bytes_of_the_order);
    tcase_add_loop_test(bytes, every_length_around_a_step_has_the_bytes_of_the_order, 0, 3);
    tcase_add_loop_test(bytes, every_window_has_the_bytes_of_the_order, 0, 3);
    tcase_add_test(bytes, every_mask_with_every_sink_has_the_bytes_of_the_order);
    tcase_add_test(bytes, flags_and_the_mask_that_says_the_same_have_equal_bytes);
    suite_add_tcase(suite, bytes);

    TCase *claims = tcase_create("claims");
    tcase_add_test(claims, the_claim_is_of_steps_of_32_keys_in_f32);
    tcase_add_test(claims, what_it_does_not_take_is_said);
    suite_add_tcase(suite, claims);
    return suite;
}
