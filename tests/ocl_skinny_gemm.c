/*
 * skinny_gemm on a device: the bytes of its orders, spelled out here once more, whatever the kernel, tile,
 * unroll, waves, tail, group size and slab, at the edges of shapes, layouts and types.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ocl/port.h"
#include "device.h"

enum { WEIGHT, WEIGHT_SCALE, ZERO_POINTS, ACT_SCALE, ACT, BIAS, OUT, TENSORS };

/* A problem. */

struct types {
    enum et_dtype weight, act, out;
};

struct shape {
    struct et_skinny_gemm params; /* N M K bias group zero_points */
    struct types types;
    int64_t pad, shift; /* elements behind each row and before the first, even of i4 */
};

static const struct types bf16 = {ET_BF16, ET_BF16, ET_BF16}, f32 = {ET_F32, ET_F32, ET_F32};

static void lay_out(struct et_tensor *t, int64_t pad, int64_t shift)
{
    const int64_t block = et_format(t->dtype)->block, row = t->size[1] + pad;
    t->stride[1] = 1;
    t->stride[0] = (row + block - 1) / block * block;
    t->offset = t->size[0] > 0 ? shift * block : 0;
    t->bytes = t->size[0] > 0 ? et_bytes(t->dtype, t->offset + t->size[0] * t->stride[0]) : 0;
    t->data = calloc(1, t->bytes + 1);
    ck_assert_ptr_nonnull(t->data);
}

static void fill_tensor(const struct et_problem *problem, int i)
{
    const struct et_tensor *t = &problem->tensor[i];
    const int64_t elements = t->bytes > 0 ? et_elements(t->dtype, t->bytes) : 0, n = t->size[1];
    for (int64_t k = 0; k < elements; k++)
        et_store(t->dtype, t->data, k, et_nan(t->dtype, 0xaaaaaaaa));
    float *row = malloc((size_t)n * sizeof *row + 1);
    const struct et_fill fill = {.kind = ET_FILL_NORMAL, .seed = 11};
    for (int64_t r = 0; r < t->size[0]; r++) {
        problem->op->fill(problem, &fill, i, r, row);
        for (int64_t k = 0; k < n; k++)
            et_store(t->dtype, t->data, et_row_at(t, r) + k, et_narrow(t->dtype, (double)row[k]));
    }
    free(row);
}

static struct et_problem make_problem(const struct shape *shape)
{
    struct et_problem problem = {.op = et_operator_named("skinny_gemm"), .params = &shape->params};
    const struct types *types = &shape->types;
    const enum et_dtype dtypes[] = {
        types->weight, types->weight == ET_I4 ? types->act : ET_F32, ET_U8, ET_F32, types->act, types->out,
        types->out};
    for (int t = 0; t < TENSORS; t++)
        problem.tensor[t].dtype = dtypes[t];
    struct et_error error;
    ck_assert_msg(problem.op->shape(problem.params, problem.tensor, &error) == ET_OK, "%s", error.text);
    for (int t = 0; t < TENSORS; t++) {
        lay_out(&problem.tensor[t], shape->pad, shape->shift);
        if (t < OUT)
            fill_tensor(&problem, t);
    }
    return problem;
}

static void free_problem(struct et_problem *problem)
{
    for (int t = 0; t < TENSORS; t++)
        free(problem->tensor[t].data);
}

/* What is expected: the data of out become it. */

struct order {
    int64_t lanes, a_chunk, pair, shards; /* lanes 0: serial */
};

static float element(const struct et_problem *problem, int tensor, int64_t i, int64_t j)
{
    const struct et_tensor *t = &problem->tensor[tensor];
    return et_widen(t->dtype, et_load(t->dtype, t->data, t->offset + i * t->stride[0] + j));
}

static float weight_of(const struct et_problem *problem, int64_t m, int64_t k)
{
    const struct et_skinny_gemm *p = problem->params;
    const float w = element(problem, WEIGHT, m, k);
    return p->zero_points ? w + 8 - element(problem, ZERO_POINTS, m, k / p->group) : w;
}

/* count terms from k on, added to acc. */
static float add_terms(const struct et_problem *problem, int64_t n, int64_t m, int64_t k, int64_t count,
                       int64_t pair, float acc)
{
    for (int64_t i = k; i < k + count; i += pair ? 2 : 1) {
        const float a = element(problem, ACT, n, i), w = weight_of(problem, m, i);
        if (!pair) {
            acc = fmaf(a, w, acc);
            continue;
        }
        const float product = a * w;
        acc += fmaf(element(problem, ACT, n, i + 1), weight_of(problem, m, i + 1), product);
    }
    return acc;
}

/* A chunk: of i4 with a scale of its own. */
static float add_chunk(const struct et_problem *problem, int64_t n, int64_t m, int64_t k, int64_t count,
                       int64_t pair, float acc)
{
    const struct et_skinny_gemm *p = problem->params;
    if (p->group == 0)
        return add_terms(problem, n, m, k, count, pair, acc);
    return fmaf(add_terms(problem, n, m, k, count, pair, 0), element(problem, WEIGHT_SCALE, m, k / p->group),
                acc);
}

/* Steps first, first + 1, ... below end. */
static float add_lanes(const struct et_problem *problem, int64_t n, int64_t m, const struct order *order,
                       int64_t first, int64_t end)
{
    const struct et_skinny_gemm *p = problem->params;
    float x[64] = {0}, y[64];
    for (int64_t j = first; j < end; j++)
        for (int64_t t = 0; t < order->lanes; t++) {
            const int64_t k = (j * order->lanes + t) * order->a_chunk;
            if (k < p->in_features)
                x[t] = add_chunk(problem, n, m, k, order->a_chunk, order->pair, x[t]);
        }
    static const int64_t by[] = {8, 4, 2, 1, 16, 32};
    for (int level = 0; level < (order->lanes == 64 ? 6 : 5); level++) {
        memcpy(y, x, sizeof y);
        for (int64_t t = 0; t < order->lanes; t++)
            x[t] = y[t] + y[t ^ by[level]];
    }
    return x[order->lanes - 1];
}

static float sum_of(const struct et_problem *problem, int64_t n, int64_t m, const struct order *order)
{
    const struct et_skinny_gemm *p = problem->params;
    float sum = 0;
    const int64_t group = p->group ? p->group : p->in_features;
    for (int64_t k = 0; order->lanes == 0 && k < p->in_features; k += group)
        sum = add_chunk(problem, n, m, k, group, 0, sum);
    if (order->lanes == 0)
        return sum;
    const int64_t step = order->lanes * order->a_chunk * order->shards,
                  q = (p->in_features + step - 1) / step;
    for (int64_t s = 0; s < order->shards; s++) {
        const float total = add_lanes(problem, n, m, order, s * q, (s + 1) * q);
        sum = s == 0 ? total : sum + total;
    }
    return sum;
}

static void emulate(struct et_problem *problem, const struct order *order, int repeat)
{
    const struct et_skinny_gemm *p = problem->params;
    struct et_tensor *out = &problem->tensor[OUT];
    for (int64_t k = 0; k < et_elements(out->dtype, out->bytes); k++)
        et_store(out->dtype, out->data, k, et_poison(out->dtype, repeat));
    for (int64_t n = 0; n < p->tokens; n++)
        for (int64_t m = 0; m < p->out_features; m++) {
            float sum = sum_of(problem, n, m, order);
            if (problem->tensor[ACT_SCALE].size[0] > 0) {
                sum *= element(problem, ACT_SCALE, 0, 0);
                sum *= element(problem, WEIGHT_SCALE, 0, 0);
            }
            if (problem->tensor[WEIGHT].dtype == ET_I8)
                sum *= element(problem, WEIGHT_SCALE, m, 0);
            if (p->bias != ET_BIAS_NONE)
                sum += element(problem, BIAS, p->bias >= ET_BIAS_NX1 ? n : 0, p->bias == ET_BIAS_NX1 ? 0 : m);
            et_store(out->dtype, out->data, et_row_at(out, n) + m, et_narrow(out->dtype, (double)sum));
        }
}

/* Running. */

struct ask {
    const char *name;
    int64_t knob[7];
};

#define DEFAULT ET_UNSET

static int64_t knob_of(const struct et_claim *claim, const char *name, const char *knob)
{
    const struct et_variant *v = et_variant_named(&et_ocl, "skinny_gemm", name);
    return claim->knob[et_field_index(v->knobs, knob)];
}

static struct order order_of(const struct ask *ask, const struct et_claim *claim)
{
    if (strcmp(ask->name, "naive") == 0)
        return (struct order){0};
    return (struct order){.lanes = knob_of(claim, ask->name, "lanes"),
                          .a_chunk = knob_of(claim, ask->name, "a_chunk"),
                          .pair = knob_of(claim, ask->name, "dot"),
                          .shards =
                              strcmp(ask->name, "split_k") == 0 ? knob_of(claim, ask->name, "shards") : 1};
}

static void assert_bytes(const struct et_session *session, const struct et_problem *problem,
                         const struct ask *ask, const void *got)
{
    const struct et_tensor *want = &problem->tensor[OUT];
    const struct et_skinny_gemm *p = problem->params;
    int64_t at = 0;
    const int64_t n = et_elements(want->dtype, want->bytes);
    while (at < n && et_load(want->dtype, want->data, at) == et_load(want->dtype, got, at))
        at++;
    if (at == n)
        return;
    ck_abort_msg(
        "%s %d,%d,%d,%d,%d,%d,%d items %d local %d: N %d M %d K %d bias %d group %d of %s: element %d is "
        "0x%08x, want 0x%08x",
        ask->name, (int)ask->knob[0], (int)ask->knob[1], (int)ask->knob[2], (int)ask->knob[3],
        (int)ask->knob[4], (int)ask->knob[5], (int)ask->knob[6], (int)session->device.work_group,
        (int)session->device.local_memory, (int)p->tokens, (int)p->out_features, (int)p->in_features,
        (int)p->bias, (int)p->group, et_format(problem->tensor[WEIGHT].dtype)->name, (int)at,
        et_load(want->dtype, got, at), et_load(want->dtype, want->data, at));
}

/* The operator's own replay of the claimed order says what is spelled out here. */
static void assert_replay(const struct et_problem *problem, const struct et_order *order)
{
    const struct et_tensor *want = &problem->tensor[OUT];
    void *work = malloc(problem->op->work_bytes(problem) + 1);
    float value[32];
    for (int64_t m = 0; m < want->size[1]; m++) {
        struct et_met met = {0};
        struct et_error error;
        ck_assert_msg(problem->op->replay(problem, order, m, work, value, &met, &error) == ET_OK, "%s",
                      error.text);
        for (int64_t n = 0; n < want->size[0]; n++)
            ck_assert_uint_eq(et_narrow(want->dtype, (double)value[n]),
                              et_load(want->dtype, want->data, et_row_at(want, n) + m));
    }
    free(work);
}

static void assert_run(struct et_session *session, struct et_problem *problem, const struct ask *ask)
{
    const struct et_variant *v = et_variant_named(&et_ocl, "skinny_gemm", ask->name);
    struct et_claim claim;
    struct et_error error = {""};
    int64_t asked[ET_PARAMS];
    memcpy(asked, ask->knob, sizeof ask->knob);
    ck_assert_msg(v->resolve(problem, &session->device, asked, &claim, &error) == ET_OK, "%s: %s", ask->name,
                  error.text);
    const struct order order = order_of(ask, &claim);
    emulate(problem, &order, 3);
    assert_replay(problem, &claim.order);
    void *state, *out[TENSORS] = {0};
    out[OUT] = malloc(problem->tensor[OUT].bytes);
    struct et_facts facts;
    ck_assert_msg(v->prepare(session, v, problem, &claim, 1, &state, &error) == ET_OK, "%s", error.text);
    ck_assert_msg(v->step(state, 0, 3, out, &facts, &error) == ET_OK, "%s", error.text);
    v->finish(state);
    assert_bytes(session, problem, ask, out[OUT]);
    ck_assert_str_eq(facts.guards, "");
    ck_assert_str_eq(facts.inputs_kept, "");
    free(out[OUT]);
}

static void assert_all(struct et_session *session, const struct shape *shape, const struct ask *asks, int n)
{
    struct et_problem problem = make_problem(shape);
    for (int i = 0; i < n; i++)
        assert_run(session, &problem, &asks[i]);
    free_problem(&problem);
}

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Of each variant its default knobs. */
static const struct ask plain[] = {
    {"naive", {DEFAULT}},
    {"sml", {DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT}},
    {"mid", {DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT}},
    {"big", {DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT}},
    {"split_k", {DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT}},
};

START_TEST(every_variant_has_the_bytes_of_its_order_for_1_to_16_tokens)
{
    static const int64_t tokens[] = {1, 2, 3, 4, 5, 8, 9, 16};
    struct et_session *session = open_session(true, NULL);
    const struct shape shape = {{tokens[_i], 37, 520, ET_BIAS_NXM, 0, 0}, bf16, 0, 0};
    assert_all(session, &shape, plain, COUNT(plain));
    et_ocl.close(session);
}
END_TEST

START_TEST(every_variant_has_the_bytes_of_its_order_at_edges_of_in_features)
{
    struct et_session *session = open_session(true, NULL);
    static const int64_t sizes[] = {8, 16, 248, 256, 264, 504, 512, 1032, 4104};
    for (int i = 0; i < COUNT(sizes); i++) {
        const struct shape shape = {{2, 5, sizes[i], ET_BIAS_NONE, 0, 0}, bf16, 0, 0};
        assert_all(session, &shape, plain, COUNT(plain));
    }
    static const int64_t odd[] = {1, 7, 9, 127, 129, 1023, 1025};
    for (int i = 0; i < COUNT(odd); i++) {
        const struct shape shape = {{2, 5, odd[i], ET_BIAS_M, 0, 0}, bf16, 0, 0};
        assert_all(session, &shape, plain, 1);
    }
    et_ocl.close(session);
}
END_TEST

static const struct types types[] = {
    {ET_BF16, ET_BF16, ET_BF16},
    {ET_BF16, ET_BF16, ET_F32},
    {ET_F16, ET_F16, ET_F16},
    {ET_F16, ET_F16, ET_F32},
    {ET_F32, ET_F32, ET_F32},
    {ET_F8E4M3FN, ET_F8E4M3FN, ET_BF16},
    {ET_F8E4M3FNUZ, ET_F8E4M3FNUZ, ET_F16},
    {ET_I8, ET_BF16, ET_BF16},
    {ET_I8, ET_F16, ET_F32},
    {ET_I4, ET_BF16, ET_BF16},
    {ET_I4, ET_F16, ET_F32},
    {ET_I4, ET_F32, ET_F32},
};

/* Alignment: as allocated, rows at odd places, first row at an odd place. */
START_TEST(every_type_and_layout_has_the_bytes_of_its_order)
{
    struct et_session *session = open_session(true, NULL);
    static const int64_t layouts[][2] = {{0, 0}, {8, 0}, {3, 0}, {0, 1}, {5, 3}};
    for (int l = 0; l < COUNT(layouts); l++)
        for (int bias = ET_BIAS_NONE; bias <= ET_BIAS_NXM; bias++) {
            const bool i4 = types[_i].weight == ET_I4;
            const struct shape shape = {{3, 6, 640, bias, i4 ? 32 << bias % 3 : 0, i4 && l % 2 == 0},
                                        types[_i],
                                        layouts[l][0],
                                        layouts[l][1]};
            assert_all(session, &shape, plain, bias == l ? COUNT(plain) : 2);
        }
    et_ocl.close(session);
}
END_TEST

static const struct ask tiles[] = {
    {"sml", {32, 8, 0, 1, 1, 1, 0}},   {"sml", {32, 8, 0, 1, 8, 32, 0}},  {"mid", {32, 8, 0, 2, 1, 4, 0}},
    {"mid", {32, 8, 0, 4, 1, 16, 0}},  {"big", {32, 8, 0, 3, 2, 3, 0}},   {"big", {32, 8, 0, 4, 4, 1, 0}},
    {"sml", {64, 8, 0, 1, 2, 2, 0}},   {"mid", {64, 8, 1, 3, 1, 5, 0}},   {"big", {64, 16, 1, 2, 1, 2, 0}},
    {"sml", {32, 16, 0, 1, 4, 12, 0}}, {"mid", {32, 16, 1, 4, 2, 1, 0}},  {"big", {32, 32, 0, 2, 1, 13, 0}},
    {"sml", {64, 32, 1, 1, 1, 4, 0}},  {"split_k", {32, 16, 1, 2, 0, 3}}, {"split_k", {64, 8, 0, 4, 0, 64}},
    {"split_k", {32, 32, 0, 1, 0, 1}},
};

/* f32, so that no rounding to 16 bits hides a changed order. */
START_TEST(ytile_unroll_waves_and_kernel_change_no_bit)
{
    struct et_session *session = open_session(true, NULL);
    const struct shape shapes[] = {
        {{4, 61, 1696, ET_BIAS_NX1, 0, 0}, f32, 0, 0},
        {{1, 3, 1696, ET_BIAS_1XM, 0, 0}, f32, 1, 1},
        {{2, 7, 2048, ET_BIAS_M, 128, 1}, {ET_I4, ET_F32, ET_F32}, 2, 0},
    };
    assert_all(session, &shapes[_i], tiles, COUNT(tiles));
    et_ocl.close(session);
}
END_TEST

/* A persistent group goes through many tiles; a group with less than a wave does its lanes in turn. */
START_TEST(groups_of_any_size_give_the_same_bytes)
{
    static const int64_t items[] = {1, 5, 20, 31, 32, 33, 64, 100, 256};
    struct et_session *session = open_session(true, NULL);
    session->device.work_group = items[_i];
    session->device.compute_units = 1;
    const struct shape shape = {{3, 150, 576, ET_BIAS_NXM, 0, 0}, bf16, 0, 0};
    struct ask asks[] = {
        {"sml", {32, 8, 0, 1, 1, 4, 0}},
        {"mid", {32, 8, 0, 4, 2, 4, 0}},
        {"big", {64, 8, 0, 2, 1, 2, 0}},
        {"split_k", {32, 8, 0, 4, 0, 2}},
        {"naive", {DEFAULT}},
    };
    assert_all(session, &shape, asks, COUNT(asks));
    et_ocl.close(session);
}
END_TEST

/*
 * Local memory for the partials, 4 waves x 32 lanes x 4 bytes = 512, and for 2 rows of 256 columns of bf16,
 * 1024: a slab is one step, mid holds less than all. With 16 bytes less big lacks room, and mid holds 8
 * elements less.
 */
START_TEST(a_slab_of_one_step_and_a_copy_of_a_part_change_no_bit)
{
    struct et_session *session = open_session(true, NULL);
    const struct shape shape = {{2, 21, 2056, ET_BIAS_NONE, 0, 0}, bf16, 0, 0};
    static const int64_t limits[] = {512 + 1024, 512 + 2048, 512 + 16, 512, 512 + 2 * 2056};
    session->device.compute_units = 1;
    session->device.local_memory = limits[_i];
    const struct ask mid = {"mid", {32, 8, 0, 2, 2, 4, 0}}, big = {"big", {32, 8, 0, 2, 2, 4, 0}};
    const struct ask split = {"split_k", {32, 8, 0, 4, 0, 3}};
    assert_all(session, &shape, &mid, 1);
    if (limits[_i] >= 512 + 1024)
        assert_all(session, &shape, &big, 1);
    if (limits[_i] >= 512 + 1024)
        assert_all(session, &shape, &split, 1);
    et_ocl.close(session);
}
END_TEST

/* Where 64 KiB do not hold act, as the seed's shapes have it. */
START_TEST(act_larger_than_64_KiB_has_the_bytes_of_its_order)
{
    struct et_session *session = open_session(true, NULL);
    const struct shape shape = {{4, 3, 9728, ET_BIAS_NONE, 0, 0}, bf16, 0, 0};
    assert_all(session, &shape, plain, COUNT(plain));
    et_ocl.close(session);
}
END_TEST

START_TEST(buffers_of_exact_size_give_the_same_bytes)
{
    struct et_session *session = open_session(false, NULL);
    const struct shape shapes[] = {{{3, 7, 264, ET_BIAS_NXM, 0, 0}, bf16, 0, 0},
                                   {{3, 7, 288, ET_BIAS_NXM, 32, 1}, {ET_I4, ET_BF16, ET_BF16}, 0, 0}};
    for (int i = 0; i < 2; i++)
        assert_all(session, &shapes[i], plain, COUNT(plain));
    et_ocl.close(session);
}
END_TEST

/* Exchanges the device has not are named, those it has give the bytes of local memory. */
START_TEST(each_tail_gives_the_same_bytes_or_is_lacking)
{
    struct et_session *session = open_session(true, NULL);
    const struct shape shape = {{3, 9, 1032, ET_BIAS_NONE, 0, 0}, f32, 0, 0};
    for (int64_t tail = 1; tail <= 2; tail++)
        for (int64_t lanes = 32; lanes <= 64; lanes += 32) {
            const int64_t reach = tail == 1 ? session->device.shuffles : session->device.vendor_shuffles;
            const struct ask ask = {"mid", {lanes, 8, 0, 2, 1, 2, tail}};
            if (reach >= lanes) {
                assert_all(session, &shape, &ask, 1);
                continue;
            }
            struct et_problem problem = make_problem(&shape);
            struct et_claim claim;
            struct et_error why;
            char says[120];
            snprintf(says, sizeof says, "tail %s takes exchanges over %d lanes, the device has them over %d",
                     tail == 1 ? "subgroup" : "vendor", (int)lanes, (int)reach);
            ck_assert_int_eq(et_variant_named(&et_ocl, "skinny_gemm", "mid")
                                 ->resolve(&problem, &session->device, ask.knob, &claim, &why),
                             ET_LACKING);
            ck_assert_str_eq(why.text, says);
            free_problem(&problem);
        }
    et_ocl.close(session);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("ocl_skinny_gemm");
    TCase *device = tcase_create("device");
    /* Drivers' threads do not survive a fork. */
    setenv("CK_FORK", "no", 1);
    struct et_device first;
    if (!first_device(&first))
        exit(77);
    tcase_set_timeout(device, 300);
    tcase_add_loop_test(device, every_variant_has_the_bytes_of_its_order_for_1_to_16_tokens, 0, 8);
    tcase_add_test(device, every_variant_has_the_bytes_of_its_order_at_edges_of_in_features);
    tcase_add_loop_test(device, every_type_and_layout_has_the_bytes_of_its_order, 0, COUNT(types));
    tcase_add_loop_test(device, ytile_unroll_waves_and_kernel_change_no_bit, 0, 3);
    tcase_add_loop_test(device, groups_of_any_size_give_the_same_bytes, 0, 9);
    tcase_add_loop_test(device, a_slab_of_one_step_and_a_copy_of_a_part_change_no_bit, 0, 5);
    tcase_add_test(device, act_larger_than_64_KiB_has_the_bytes_of_its_order);
    tcase_add_test(device, buffers_of_exact_size_give_the_same_bytes);
    tcase_add_test(device, each_tail_gives_the_same_bytes_or_is_lacking);
    suite_add_tcase(suite, device);
    return suite;
}
