/*
 * gdn_postconv on a device: the bytes of its two orders, spelled out here once more and by the operator's
 * replay, at the edges of shapes, layouts, types, values, group sizes and guards.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ocl/port.h"
#include "../ref/fmath.h"
#include "device.h"

enum { CONV, A, B, A_LOG, DT_BIAS, Q, K, V, G, BETA, TENSORS };

static const char *const names[] = {"per_token_head", "chunked", "chunked_gates", "row", "wave"};

enum { VARIANTS = sizeof names / sizeof *names };

/* A problem. */

struct shape {
    struct et_gdn_postconv params; /* tokens k_heads v_heads k_head_dim v_head_dim eps scale_q */
    enum et_dtype conv, a, b, out;
    int64_t pad,
        shift; /* elements behind each row, a tensor more than the one before; elements before the first */
};

static enum et_dtype dtype_of(const struct shape *shape, int t)
{
    return t == CONV          ? shape->conv
           : t == A           ? shape->a
           : t == B           ? shape->b
           : t >= Q && t <= V ? shape->out
                              : ET_F32;
}

/* No two tensors have the same padding. */
static void lay_out(struct et_tensor *t, int64_t pad, int64_t shift)
{
    t->stride[t->rank - 1] = 1;
    for (int i = t->rank - 2; i >= 0; i--)
        t->stride[i] = t->size[i + 1] * t->stride[i + 1] + pad;
    t->offset = shift;
    t->bytes = (size_t)(shift + t->size[0] * t->stride[0]) * et_format(t->dtype)->bytes;
    t->data = malloc(t->bytes);
    ck_assert_ptr_nonnull(t->data);
}

/* Softplus on both sides of its threshold, heads as small as eps, everything else about 1; NaN in between. */
static double value_of(int t, int64_t row, float x)
{
    return t == CONV          ? (double)x * (row % 3 == 2 ? 0x1p-10 : 1)
           : t == A || t == B ? 6 * (double)x
                              : (double)x;
}

static void fill_tensor(const struct et_problem *problem, int i)
{
    const struct et_tensor *t = &problem->tensor[i];
    const int64_t elements = (int64_t)(t->bytes / et_format(t->dtype)->bytes), n = t->size[t->rank - 1];
    for (int64_t k = 0; k < elements; k++)
        et_store(t->dtype, t->data, k, et_format(t->dtype)->nan);
    float *row = malloc((size_t)n * sizeof *row);
    const struct et_fill fill = {.kind = ET_FILL_NORMAL, .seed = 7};
    for (int64_t r = 0; r < et_tensor_rows(t); r++) {
        et_fill_values(&fill, problem->op->tensors[i].name, r * n, n, row);
        for (int64_t k = 0; k < n; k++)
            et_store(t->dtype, t->data, et_row_at(t, r) + k, et_narrow(t->dtype, value_of(i, r, row[k])));
    }
    free(row);
}

static struct et_problem make_problem(const struct shape *shape)
{
    struct et_problem problem = {.op = et_operator_named("gdn_postconv"), .params = &shape->params};
    for (int t = 0; t < TENSORS; t++)
        problem.tensor[t].dtype = dtype_of(shape, t);
    struct et_error error;
    ck_assert_msg(problem.op->shape(problem.params, problem.tensor, &error) == ET_OK, "%s", error.text);
    for (int t = 0; t < TENSORS; t++) {
        lay_out(&problem.tensor[t], shape->pad > 0 ? shape->pad + t : 0, shape->shift);
        if (t < Q)
            fill_tensor(&problem, t);
    }
    return problem;
}

static void free_problem(struct et_problem *problem)
{
    for (int t = 0; t < TENSORS; t++)
        free(problem->tensor[t].data);
}

/* What is expected: the data of the problem's outputs become it. */

static uint32_t bits(const struct et_tensor *t, int64_t i, int64_t j)
{
    return et_load(t->dtype, t->data, t->offset + i * t->stride[0] + j);
}

static float element(const struct et_tensor *t, int64_t i, int64_t j)
{
    return et_widen(t->dtype, bits(t, i, j));
}

static void put(struct et_tensor *t, int64_t i, int64_t j, int64_t k, uint32_t pattern)
{
    const int64_t at = t->offset + i * t->stride[0] + (t->rank > 2 ? j * t->stride[1] + k : j);
    et_store(t->dtype, t->data, at, pattern);
}

/* A head of q or k: `lanes` chains over every lanes-th element, then halves added to halves. */
static void emulate_head(struct et_problem *problem, int out, int64_t token, int64_t head, int lanes)
{
    const struct et_gdn_postconv *p = problem->params;
    const struct et_tensor *conv = &problem->tensor[CONV];
    const int64_t first = ((out == K ? p->k_heads : 0) + head) * p->k_head_dim;
    float partial[32] = {0};
    for (int64_t d = 0; d < p->k_head_dim; d++) {
        const float x = element(conv, token, first + d);
        partial[d % lanes] = fmaf(x, x, partial[d % lanes]);
    }
    for (int half = lanes / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; i++)
            partial[i] += partial[i + half];
    float inverse = et_div(1, et_sqrt(partial[0] + (float)p->eps));
    if (out == Q && p->scale_q)
        inverse *= et_div(1, et_sqrt((float)p->k_head_dim));
    for (int64_t d = 0; d < p->k_head_dim; d++) {
        const float y = element(conv, token, first + d) * inverse;
        put(&problem->tensor[out], token, head, d, et_narrow(problem->tensor[out].dtype, (double)y));
    }
}

static void emulate_v(struct et_problem *problem, int64_t token, int64_t head)
{
    const struct et_gdn_postconv *p = problem->params;
    const struct et_tensor *conv = &problem->tensor[CONV];
    struct et_tensor *v = &problem->tensor[V];
    const int64_t first = 2 * p->k_heads * p->k_head_dim + head * p->v_head_dim;
    for (int64_t d = 0; d < p->v_head_dim; d++)
        put(v, token, head, d,
            conv->dtype == v->dtype ? bits(conv, token, first + d)
                                    : et_narrow(v->dtype, (double)element(conv, token, first + d)));
}

static void emulate_gate(struct et_problem *problem, int64_t token, int64_t head)
{
    const struct et_tensor *t = problem->tensor;
    const float x = element(&t[A], token, head) + element(&t[DT_BIAS], 0, head);
    const float softplus = x > 20 ? x : et_log1p(et_exp(x));
    put(&problem->tensor[G], token, head, 0, et_as_u32(-(et_exp(element(&t[A_LOG], 0, head)) * softplus)));
    put(&problem->tensor[BETA], token, head, 0, et_as_u32(et_sigmoid(element(&t[B], token, head))));
}

static void emulate(struct et_problem *problem, int lanes, int repeat)
{
    const struct et_gdn_postconv *p = problem->params;
    for (int t = Q; t < TENSORS; t++) {
        struct et_tensor *out = &problem->tensor[t];
        for (size_t k = 0; k < out->bytes / et_format(out->dtype)->bytes; k++)
            et_store(out->dtype, out->data, (int64_t)k, et_poison(out->dtype, repeat));
    }
    for (int64_t token = 0; token < p->tokens; token++) {
        for (int64_t head = 0; head < p->k_heads; head++) {
            emulate_head(problem, Q, token, head, lanes);
            emulate_head(problem, K, token, head, lanes);
        }
        for (int64_t head = 0; head < p->v_heads; head++) {
            emulate_v(problem, token, head);
            emulate_gate(problem, token, head);
        }
    }
}

static int lanes_of(const char *name)
{
    return strcmp(name, "wave") == 0 ? 32 : 1;
}

/* Running. */

static void allocate_outputs(const struct et_problem *problem, void **out)
{
    for (int t = 0; t < TENSORS; t++)
        out[t] = t < Q ? NULL : malloc(problem->tensor[t].bytes);
}

static void free_outputs(void **out)
{
    for (int t = Q; t < TENSORS; t++)
        free(out[t]);
}

/* Executes n steps; out[i][t] receives the bytes of step i's outputs. */
static void run(struct et_session *session, const char *name, const struct et_problem *problems, int n,
                int repeat, void *(*out)[TENSORS], struct et_facts *facts)
{
    const struct et_variant *variant = et_variant_named(&et_ocl, "gdn_postconv", name);
    struct et_claim claims[4];
    struct et_error error = {""};
    for (int i = 0; i < n; i++)
        ck_assert_msg(variant->resolve(&problems[i], &session->device, NULL, &claims[i], &error) == ET_OK,
                      "%s", error.text);
    void *state;
    ck_assert_msg(variant->prepare(session, variant, problems, claims, n, &state, &error) == ET_OK, "%s",
                  error.text);
    for (int i = 0; i < n; i++)
        ck_assert_msg(variant->step(state, i, repeat, out[i], &facts[i], &error) == ET_OK, "%s", error.text);
    variant->finish(state);
}

/* Elements of the shape hold the emulated bytes, all others the poison of the repeat. */
static void assert_bytes(struct et_problem *problem, const char *name, void *const *out, int repeat)
{
    const struct et_gdn_postconv *p = problem->params;
    emulate(problem, lanes_of(name), repeat);
    for (int t = Q; t < TENSORS; t++) {
        const struct et_tensor *want = &problem->tensor[t];
        const size_t bytes = et_format(want->dtype)->bytes;
        if (memcmp(want->data, out[t], want->bytes) == 0)
            continue;
        size_t at = 0;
        while (memcmp((char *)want->data + at, (char *)out[t] + at, bytes) == 0)
            at += bytes;
        const int64_t i = (int64_t)(at / bytes);
        ck_abort_msg("%s T %d Hk %d Hv %d Dk %d Dv %d %s to %s: %s, element %lld is 0x%08x, want 0x%08x",
                     name, (int)p->tokens, (int)p->k_heads, (int)p->v_heads, (int)p->k_head_dim,
                     (int)p->v_head_dim, et_format(problem->tensor[CONV].dtype)->name,
                     et_format(problem->tensor[V].dtype)->name, problem->op->tensors[t].name, (long long)i,
                     et_load(want->dtype, out[t], i), et_load(want->dtype, want->data, i));
    }
}

static void assert_problem(struct et_session *session, const char *name, struct et_problem *problem)
{
    void *out[1][TENSORS];
    struct et_facts facts;
    char kernel[60];
    snprintf(kernel, sizeof kernel, "gdn_postconv_%s", name);
    allocate_outputs(problem, out[0]);
    run(session, name, problem, 1, 3, out, &facts);
    assert_bytes(problem, name, out[0], 3);
    ck_assert_str_eq(facts.guards, "");
    ck_assert_str_eq(facts.inputs_kept, "");
    ck_assert(facts.guarded == session->guards);
    ck_assert_str_eq(facts.kernels, kernel);
    free_outputs(out[0]);
}

static void assert_variants(struct et_session *session, const struct shape *shape)
{
    struct et_problem problem = make_problem(shape);
    for (int v = 0; v < VARIANTS; v++)
        assert_problem(session, names[v], &problem);
    free_problem(&problem);
}

#define F32  ET_F32, ET_F32, ET_F32, ET_F32
#define BF16 ET_BF16, ET_BF16, ET_BF16, ET_BF16

static const struct shape shapes[] = {
    /* smallest */
    {{1, 1, 1, 1, 1, 1e-6, 0}, F32, 0, 0},
    {{2, 1, 1, 1, 1, 1e-6, 0}, F32, 3, 1},
    /* last chunks of v: whole, clipped, the only one */
    {{4, 2, 4, 16, 24, 1e-6, 0}, F32, 0, 0},
    {{3, 4, 4, 300, 128, 1e-6, 0}, F32, 0, 0},
    {{3, 1, 1, 2, 3, 1e-6, 1}, F32, 2, 5},
    {{2, 1, 2, 128, 3, 1e-6, 0}, F32, 0, 0},
    /* around 32 elements, and heads of v around 32 gates */
    {{3, 2, 31, 31, 2, 1e-6, 0}, F32, 1, 0},
    {{3, 3, 32, 32, 1, 1e-6, 1}, F32, 0, 1},
    {{3, 2, 33, 33, 5, 1e-6, 0}, F32, 4, 3},
    {{2, 2, 65, 97, 1, 1e-6, 0}, F32, 0, 0},
    /* row: more heads than are staged at once, by number and by bytes */
    {{2, 19, 3, 5, 7, 1e-6, 1}, F32, 1, 2},
    {{2, 3, 2, 1024, 5, 1e-6, 0}, F32, 0, 0},
    /* 257 and more items */
    {{17, 16, 5, 3, 2, 1e-6, 0}, F32, 0, 0},
    {{65, 3, 2, 4, 9, 1e-6, 0}, F32, 5, 0},
    /* models */
    {{1, 16, 32, 128, 128, 1e-6, 0}, BF16, 0, 0},
    {{3, 16, 48, 128, 128, 1e-6, 0}, BF16, 0, 0},
    /* storage types */
    {{3, 2, 5, 20, 7, 1e-6, 1}, BF16, 3, 1},
    {{3, 2, 5, 20, 7, 1e-6, 0}, ET_F32, ET_BF16, ET_F32, ET_BF16, 3, 1},
    {{3, 2, 5, 20, 7, 1e-6, 0}, ET_BF16, ET_F32, ET_BF16, ET_F32, 0, 3},
    {{3, 2, 5, 20, 7, 1e-6, 0}, ET_F32, ET_F32, ET_F32, ET_F16, 1, 1},
    {{3, 2, 5, 20, 7, 1e-6, 0}, ET_F16, ET_F32, ET_F32, ET_F16, 1, 1},
    {{3, 2, 5, 20, 7, 1e-6, 0}, ET_F16, ET_BF16, ET_BF16, ET_BF16, 2, 0},
    /* another eps */
    {{2, 2, 2, 6, 4, 0.5, 0}, F32, 0, 0},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

START_TEST(every_variant_has_the_bytes_of_its_order)
{
    struct et_session *session = open_session(_i, NULL);
    for (int i = 0; i < SHAPES; i++)
        assert_variants(session, &shapes[i]);
    et_ocl.close(session);
}
END_TEST

/* So variants of one order owe each other the same bytes, and of v, g and beta all of them do. */
START_TEST(the_bytes_are_those_of_the_replay)
{
    for (int i = 0; i < SHAPES; i++)
        for (int lanes = 1; lanes <= 32; lanes += 31) {
            struct et_problem problem = make_problem(&shapes[i]);
            emulate(&problem, lanes, 0);
            const struct et_order order = {.name = "serial"}, wave = {.name = "lanes32"};
            void *work = malloc(problem.op->work_bytes(&problem) + 1);
            float *value = malloc(4096 * sizeof *value);
            for (int64_t k = 0; k < problem.op->units(&problem); k++) {
                const struct et_unit unit = problem.op->unit(&problem, k);
                const struct et_tensor *t = &problem.tensor[unit.output];
                struct et_met met = {0};
                ck_assert_int_le(unit.count, 4096);
                ck_assert_int_eq(
                    problem.op->replay(&problem, lanes > 1 ? &wave : &order, k, work, value, &met, NULL),
                    ET_OK);
                for (int64_t d = 0; d < unit.count; d++)
                    ck_assert_uint_eq(et_narrow(t->dtype, (double)value[d]),
                                      et_load(t->dtype, t->data, et_row_at(t, unit.at / unit.count) + d));
            }
            free(value);
            free(work);
            free_problem(&problem);
        }
}
END_TEST

START_TEST(a_smaller_work_group_gives_the_same_bytes)
{
    static const int64_t limits[] = {1, 7, 64};
    struct et_session *session = open_session(false, NULL);
    session->device.work_group = limits[_i];
    for (int i = 2; i < 13; i++)
        assert_variants(session, &shapes[i]);
    et_ocl.close(session);
}
END_TEST

/* More than the 65535 groups that some devices have in a dimension but the first. */
START_TEST(many_tokens_are_all_done)
{
    static const struct shape many = {{70001, 1, 2, 3, 2, 1e-6, 0}, F32, 1, 0};
    struct et_session *session = open_session(true, NULL);
    assert_variants(session, &many);
    et_ocl.close(session);
}
END_TEST

/* f32 takes patterns from all over, NaNs of both kinds among them; 16-bit types have every one of theirs. */
static uint32_t pattern(enum et_dtype dtype, uint32_t i)
{
    static const uint32_t corners[] = {0x7f800001, 0x7fc00000, 0xffd5d5d5, 0x7fffffff, 0xff800000,
                                       0x00000001, 0x80000000, 0x807fffff, 0x00800000, 0x7f7fffff};
    const struct et_stream stream = et_stream(1, "v");
    if (dtype != ET_F32)
        return i;
    return i < 10 ? corners[i] : et_word(&stream, i, 0) | (i % 8 == 0 ? 0x7f800000 : 0);
}

START_TEST(v_of_conv_s_type_is_copied_bit_by_bit)
{
    const enum et_dtype dtype = (enum et_dtype)_i;
    const struct shape shape = {
        {1, 1, 64, 8, 1024, 1e-6, 0}, dtype, ET_F32, ET_F32, dtype, 0, 0,
    };
    struct et_problem problem = make_problem(&shape);
    for (uint32_t i = 0; i < 65536; i++)
        et_store(dtype, problem.tensor[CONV].data, 16 + i, pattern(dtype, i));
    struct et_session *session = open_session(false, NULL);
    for (int v = 0; v < VARIANTS; v++)
        assert_problem(session, names[v], &problem);
    et_ocl.close(session);
    free_problem(&problem);
}
END_TEST

/* x = a + dt_bias next to 20 and where exp x vanishes or overflows; b where the sigmoid is 0, 1 or in
 * between. */
START_TEST(gates_have_the_bytes_of_C_at_their_edges)
{
    static const float xs[] = {20,  0x1.400002p4F, 0x1.3ffffep4F, 19.99F, 0,    -0.0F, -16,
                               -17, -30,           -88,           -100,   1e4F, 88,    INFINITY};
    static const float betas[] = {0,   -0.0F, 20,   -20,   80,     -80,      90,
                                  -90, 100,   -100, 1e-3F, -1e30F, INFINITY, -INFINITY};
    static const float logs[] = {-10, 2.77F, 80, -0.5F};
    const struct shape shape = {{1, 1, 14, 2, 1, 1e-6, 0}, F32, 0, 0};
    struct et_problem problem = make_problem(&shape);
    for (int64_t h = 0; h < 14; h++) {
        et_store(ET_F32, problem.tensor[A].data, h, et_as_u32(xs[h]));
        et_store(ET_F32, problem.tensor[DT_BIAS].data, h, 0);
        et_store(ET_F32, problem.tensor[B].data, h, et_as_u32(betas[h]));
        et_store(ET_F32, problem.tensor[A_LOG].data, h, et_as_u32(logs[h % 4]));
    }
    struct et_session *session = open_session(false, NULL);
    for (int v = 0; v < VARIANTS; v++)
        assert_problem(session, names[v], &problem);
    et_ocl.close(session);
    free_problem(&problem);
}
END_TEST

START_TEST(steps_share_buffers_and_see_their_own_data)
{
    const struct shape steps[] = {
        {{4, 2, 4, 16, 24, 1e-6, 0}, F32, 0, 0},
        {{1, 2, 1, 3, 2, 1e-6, 1}, F32, 0, 2},
        {{2, 9, 3, 300, 4, 1e-6, 0}, F32, 1, 0},
    };
    struct et_problem problems[3];
    void *out[3][TENSORS];
    struct et_facts facts[3];
    for (int i = 0; i < 3; i++) {
        problems[i] = make_problem(&steps[i]);
        allocate_outputs(&problems[i], out[i]);
    }
    struct et_session *session = open_session(true, NULL);
    run(session, names[_i], problems, 3, 1, out, facts);
    et_ocl.close(session);
    for (int i = 0; i < 3; i++) {
        assert_bytes(&problems[i], names[_i], out[i], 1);
        ck_assert_str_eq(facts[i].guards, "");
        ck_assert_str_eq(facts[i].inputs_kept, "");
        free_outputs(out[i]);
        free_problem(&problems[i]);
    }
}
END_TEST

/* What resolve could not foresee, because the device takes it for itself, is asked of the built kernel. */
START_TEST(local_memory_that_an_argument_takes_is_counted)
{
    static const struct shape shape = {{1, 8, 1, 128, 1, 1e-6, 0}, F32, 0, 0};
    struct et_problem problem = make_problem(&shape);
    struct et_session *session = open_session(false, NULL);
    const struct et_variant *row = et_variant_named(&et_ocl, "gdn_postconv", "row");
    struct et_claim claim;
    struct et_error error = {""};
    ck_assert_int_eq(row->resolve(&problem, &session->device, NULL, &claim, &error), ET_OK);
    session->device.local_memory = 8255; /* 8256 are needed */
    void *state;
    ck_assert_int_eq(row->prepare(session, row, &problem, &claim, 1, &state, &error), ET_LACKING);
    ck_assert_msg(strstr(error.text, "gdn_postconv_row takes "), "%s", error.text);
    ck_assert_msg(strstr(error.text, " bytes of local memory, the device has 8255"), "%s", error.text);
    row->finish(state);
    et_ocl.close(session);
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

    Suite *suite = suite_create("ocl_gdn_postconv");
    /* Buffers of exact size: a simulator that checks accesses sees each stray one. */
    TCase *exact = tcase_create("exact");
    tcase_add_loop_test(exact, every_variant_has_the_bytes_of_its_order, 0, 1);
    tcase_add_loop_test(exact, a_smaller_work_group_gives_the_same_bytes, 0, 3);
    tcase_add_loop_test(exact, v_of_conv_s_type_is_copied_bit_by_bit, ET_F32, ET_BF16 + 1);
    tcase_add_test(exact, gates_have_the_bytes_of_C_at_their_edges);
    tcase_add_test(exact, local_memory_that_an_argument_takes_is_counted);
    suite_add_tcase(suite, exact);

    TCase *guards = tcase_create("guards");
    tcase_add_test(guards, the_bytes_are_those_of_the_replay);
    tcase_add_loop_test(guards, every_variant_has_the_bytes_of_its_order, 1, 2);
    tcase_add_test(guards, many_tokens_are_all_done);
    tcase_add_loop_test(guards, steps_share_buffers_and_see_their_own_data, 0, VARIANTS);
    suite_add_tcase(suite, guards);
    return suite;
}
