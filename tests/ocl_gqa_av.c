/*
 * gqa_av on a device: the bytes of its order, spelled out here once more, at the edges of shapes, layouts,
 * types, group sizes and guards; and that guards and inputs_kept notice.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../ocl/port.h"
#include "device.h"

enum { W, V, OUT, TENSORS };

/* A problem. */

struct shape {
    struct et_gqa_av params; /* q_heads kv_heads head_dim query_length context capacity */
    enum et_dtype dtype[TENSORS];
    int64_t pad, shift; /* elements behind each row; elements before the first */
};

static void lay_out(struct et_tensor *t, const struct shape *shape)
{
    t->stride[2] = 1;
    t->stride[1] = t->size[2] + shape->pad;
    t->stride[0] = t->size[1] * t->stride[1] + shape->pad;
    t->offset = shape->shift;
    const bool empty = t->size[0] * t->size[1] * t->size[2] == 0;
    t->bytes = empty ? 0 : (size_t)(shape->shift + t->size[0] * t->stride[0]) * et_format(t->dtype)->bytes;
    t->data = malloc(t->bytes > 0 ? t->bytes : 1);
    ck_assert_ptr_nonnull(t->data);
}

/* NaN everywhere but in the data and the zero lanes of w; rows 1..3 of w and rows of v from context on stay
 * NaN. */
static void fill_tensor(const struct et_problem *problem, int i)
{
    const struct et_tensor *t = &problem->tensor[i];
    const int64_t elements = (int64_t)(t->bytes / et_format(t->dtype)->bytes);
    for (int64_t k = 0; k < elements; k++)
        et_store(t->dtype, t->data, k, et_format(t->dtype)->nan);
    if (i == OUT || t->bytes == 0)
        return;
    const int64_t n = t->size[2];
    float *row = malloc((size_t)n * sizeof *row);
    enum et_class *class = malloc((size_t)n * sizeof *class);
    const struct et_fill fill = {.kind = ET_FILL_NORMAL, .seed = 7};
    for (int64_t r = 0; r < et_tensor_rows(t); r++) {
        et_fill_values(&fill, problem->op->tensors[i].name, r * n, n, row);
        problem->op->classify(problem, i, r, class);
        for (int64_t k = 0; k < n; k++)
            if (class[k] != ET_POISON)
                et_store(t->dtype, t->data, et_row_at(t, r) + k,
                         et_narrow(t->dtype, class[k] == ET_ZERO ? 0 : (double)row[k]));
    }
    free(row);
    free(class);
}

static struct et_problem make_problem(const struct shape *shape)
{
    struct et_problem problem = {.op = et_operator_named("gqa_av"), .params = &shape->params};
    struct et_error error;
    ck_assert_msg(problem.op->shape(problem.params, problem.tensor, &error) == ET_OK, "%s", error.text);
    for (int t = 0; t < TENSORS; t++) {
        problem.tensor[t].dtype = shape->dtype[t];
        lay_out(&problem.tensor[t], shape);
        fill_tensor(&problem, t);
    }
    return problem;
}

static void free_problem(struct et_problem *problem)
{
    for (int t = 0; t < TENSORS; t++)
        free(problem->tensor[t].data);
}

static float element(const struct et_tensor *t, int64_t i, int64_t j, int64_t k)
{
    const int64_t at = t->offset + i * t->stride[0] + j * t->stride[1] + k;
    return et_widen(t->dtype, et_load(t->dtype, t->data, at));
}

/* out[s, h, d] in order serial. */
static float emulate_serial(const struct et_problem *problem, int64_t s, int64_t h, int64_t d)
{
    const struct et_gqa_av *p = problem->params;
    float sum = 0;
    for (int64_t c = 0; c < p->context; c++)
        sum = fmaf(element(&problem->tensor[W], h, s, c),
                   element(&problem->tensor[V], c, h * p->kv_heads / p->q_heads, d), sum);
    return sum;
}

/* out[0, h, d] in order ctx64x4. */
static float emulate(const struct et_problem *problem, int64_t s, int64_t h, int64_t d)
{
    const struct et_gqa_av *p = problem->params;
    const int64_t kv = h * p->kv_heads / p->q_heads, whole = p->context / 4;
    ck_assert_int_eq(s, 0);
    float partial[64];
    for (int i = 0; i < 64; i++) {
        partial[i] = 0;
        for (int64_t q = i; q < whole; q += 64)
            for (int64_t c = 4 * q; c < 4 * q + 4; c++)
                partial[i] = fmaf(element(&problem->tensor[W], h, 0, c),
                                  element(&problem->tensor[V], c, kv, d), partial[i]);
    }
    for (int64_t c = 4 * whole; p->context % 4 != 0 && c < 4 * whole + 4; c++) {
        const bool there = c < p->context;
        partial[0] = fmaf(there ? element(&problem->tensor[W], h, 0, c) : 0,
                          there ? element(&problem->tensor[V], c, kv, d) : 0, partial[0]);
    }
    for (int half = 32; half >= 1; half /= 2)
        for (int i = 0; i < half; i++)
            partial[i] += partial[i + half];
    return partial[0];
}

/* Running. */

/* Executes n steps, the first knob asked for; out[i] receives the bytes of step i's out. */
static void run_with(struct et_session *session, const char *name, int64_t knob,
                     const struct et_problem *problems, int n, int repeat, void *const *out,
                     struct et_facts *facts)
{
    const struct et_variant *variant = et_variant_named(&et_ocl, "gqa_av", name);
    struct et_claim claims[4];
    struct et_error error = {""};
    for (int i = 0; i < n; i++)
        ck_assert_msg(variant->resolve(&problems[i], &session->device, &knob, &claims[i], &error) == ET_OK,
                      "%s", error.text);
    void *state;
    ck_assert_msg(variant->prepare(session, variant, problems, claims, n, &state, &error) == ET_OK, "%s",
                  error.text);
    for (int i = 0; i < n; i++) {
        void *const step_out[TENSORS] = {NULL, NULL, out[i]};
        ck_assert_msg(variant->step(state, i, repeat, step_out, &facts[i], &error) == ET_OK, "%s",
                      error.text);
    }
    variant->finish(state);
}

static void run(struct et_session *session, const char *name, const struct et_problem *problems, int n,
                int repeat, void *const *out, struct et_facts *facts)
{
    run_with(session, name, ET_UNSET, problems, n, repeat, out, facts);
}

/* Elements of the shape hold the emulated bytes, all others the poison of the repeat. */
static void assert_bytes(const struct et_problem *problem, bool serial, const void *out, int repeat,
                         const char *where)
{
    const struct et_gqa_av *p = problem->params;
    const struct et_tensor *t = &problem->tensor[OUT];
    const int64_t elements = (int64_t)(t->bytes / et_format(t->dtype)->bytes);
    for (int64_t at = 0; at < elements; at++) {
        const int64_t rest = at - t->offset, s = rest / t->stride[0], h = rest % t->stride[0] / t->stride[1],
                      d = rest % t->stride[0] % t->stride[1];
        const bool inside = rest >= 0 && s < p->query_length && h < p->q_heads && d < p->head_dim;
        const float value = !inside ? 0 : (serial ? emulate_serial : emulate)(problem, s, h, d);
        const uint32_t want = inside ? et_narrow(t->dtype, (double)value) : et_poison(t->dtype, repeat);
        const uint32_t got = et_load(t->dtype, out, at);
        ck_assert_msg(got == want, "%s: element %lld (head %lld, %lld) is 0x%08x, want 0x%08x", where,
                      (long long)at, (long long)h, (long long)d, got, want);
    }
}

static void assert_knob(struct et_session *session, const char *name, int64_t knob, const char *kernels,
                        const struct shape *shape)
{
    struct et_problem problem = make_problem(shape);
    const struct et_gqa_av *p = &shape->params;
    char where[120];
    snprintf(where, sizeof where, "%s Hq %d Hkv %d D %d C %d %s %s %s", name, (int)p->q_heads,
             (int)p->kv_heads, (int)p->head_dim, (int)p->context, et_format(shape->dtype[W])->name,
             et_format(shape->dtype[V])->name, et_format(shape->dtype[OUT])->name);
    void *out = malloc(problem.tensor[OUT].bytes);
    struct et_facts facts;
    run_with(session, name, knob, &problem, 1, 3, &out, &facts);
    assert_bytes(&problem, strcmp(kernels, "gqa_av_tiled") == 0, out, 3, where);
    ck_assert_str_eq(facts.guards, "");
    ck_assert_str_eq(facts.inputs_kept, "");
    ck_assert(facts.guarded == session->guards);
    ck_assert_str_eq(facts.kernels, kernels);
    free(out);
    free_problem(&problem);
}

static void assert_variant(struct et_session *session, const char *name, const struct shape *shape)
{
    char kernel[40];
    snprintf(kernel, sizeof kernel, "gqa_av_%s", name);
    assert_knob(session, name, ET_UNSET, kernel, shape);
}

static void assert_split(struct et_session *session, int64_t splits, const struct shape *shape)
{
    assert_knob(session, "gqa_split", splits, "gqa_av_gqa_split,gqa_av_gqa_split_tree", shape);
}

static const struct shape shapes[] = {
    /* contexts around a quad and around 64 quads */
    {{2, 1, 5, 1, 1, 3}, {ET_F32, ET_F32, ET_F32}, 0, 0},
    {{2, 1, 5, 1, 3, 3}, {ET_F32, ET_F32, ET_F32}, 3, 1},
    {{3, 1, 5, 1, 4, 6}, {ET_F32, ET_F32, ET_F32}, 0, 1},
    {{2, 2, 5, 1, 255, 260}, {ET_F32, ET_F32, ET_F32}, 1, 0},
    {{4, 2, 64, 1, 256, 256}, {ET_F32, ET_F32, ET_F32}, 0, 0},
    {{8, 1, 5, 1, 257, 259}, {ET_F32, ET_F32, ET_F32}, 0, 5},
    {{3, 1, 100, 1, 259, 264}, {ET_F32, ET_F32, ET_F32}, 2, 3},
    {{6, 2, 1, 1, 1037, 1040}, {ET_F32, ET_F32, ET_F32}, 0, 0},
    /* nothing to add */
    {{4, 2, 5, 1, 0, 2}, {ET_F32, ET_F32, ET_F32}, 0, 0},
    {{4, 2, 5, 1, 0, 0}, {ET_F16, ET_BF16, ET_F16}, 0, 1},
    /* storage types */
    {{4, 2, 64, 1, 259, 260}, {ET_F16, ET_F16, ET_F16}, 1, 1},
    {{4, 2, 5, 1, 257, 260}, {ET_BF16, ET_BF16, ET_BF16}, 1, 1},
    {{4, 2, 100, 1, 255, 260}, {ET_F32, ET_F16, ET_BF16}, 0, 0},
    {{8, 1, 5, 1, 259, 260}, {ET_BF16, ET_F32, ET_F16}, 3, 3},
    {{2, 2, 1, 1, 3, 4}, {ET_F16, ET_BF16, ET_F32}, 0, 1},
};

enum { SHAPES = sizeof shapes / sizeof shapes[0] };

START_TEST(every_variant_has_the_bytes_of_its_order)
{
    static const int64_t splits[] = {1, 2, 8, 64};
    struct et_session *session = open_session(_i, NULL);
    for (int i = 0; i < SHAPES; i++) {
        assert_variant(session, "per_head", &shapes[i]);
        assert_variant(session, "gqa", &shapes[i]);
        assert_variant(session, "gqa_tile2", &shapes[i]);
        assert_variant(session, "tiled", &shapes[i]);
        assert_split(session, splits[i % 4], &shapes[i]);
    }
    et_ocl.close(session);
}
END_TEST

START_TEST(tiled_has_the_bytes_of_its_order_for_any_number_of_queries)
{
    static const struct shape many[] = {
        {{4, 2, 8, 2, 7, 7}, {ET_F32, ET_F32, ET_F32}, 0, 0},
        {{3, 2, 5, 3, 5, 6}, {ET_F32, ET_F32, ET_F32}, 3, 1},
        {{2, 1, 1, 5, 1, 1}, {ET_F32, ET_F32, ET_F32}, 0, 0},
        {{2, 1, 5, 4, 0, 3}, {ET_F32, ET_F32, ET_F32}, 0, 1},
        {{4, 2, 20, 70, 33, 40}, {ET_F32, ET_F32, ET_F32}, 0, 0},
        {{4, 2, 5, 17, 67, 67}, {ET_F16, ET_BF16, ET_F32}, 1, 3},
    };
    struct et_session *session = open_session(_i % 2, NULL);
    session->device.work_group = _i == 2 ? 7 : session->device.work_group;
    for (size_t i = 0; i < sizeof many / sizeof *many; i++)
        assert_variant(session, "tiled", &many[i]);
    et_ocl.close(session);
}
END_TEST

START_TEST(auto_runs_the_kernel_of_what_it_chooses)
{
    static const struct shape decode = {{4, 2, 5, 1, 9, 9}, {ET_F32, ET_F32, ET_F32}, 0, 0};
    static const struct shape queries = {{4, 2, 5, 3, 9, 9}, {ET_F32, ET_F32, ET_F32}, 0, 0};
    static const char *const kernels[] = {"gqa_av_gqa", "gqa_av_per_head", "gqa_av_gqa", "gqa_av_gqa_tile2",
                                          "gqa_av_gqa"};
    struct et_session *session = open_session(true, NULL);
    for (int override = -1; override <= 3; override++)
        assert_knob(session, "auto", override, kernels[override + 1], &decode);
    assert_knob(session, "auto", ET_UNSET, "gqa_av_tiled", &queries);
    et_ocl.close(session);
}
END_TEST

START_TEST(per_head_serves_head_h_from_floor_of_h_Hkv_over_Hq)
{
    static const struct shape odd[] = {
        {{7, 2, 5, 1, 5, 5}, {ET_F32, ET_F32, ET_F32}, 0, 0},
        {{2, 5, 5, 1, 5, 5}, {ET_F32, ET_F32, ET_F32}, 0, 0},
        {{9, 1, 5, 1, 5, 5}, {ET_F32, ET_F32, ET_F32}, 0, 0},
    };
    struct et_session *session = open_session(_i, NULL);
    for (int i = 0; i < 3; i++)
        assert_variant(session, "per_head", &odd[i]);
    et_ocl.close(session);
}
END_TEST

START_TEST(a_smaller_work_group_gives_the_same_bytes)
{
    static const int64_t limits[] = {1, 2, 7, 32, 63};
    struct et_session *session = open_session(false, NULL);
    session->device.work_group = limits[_i];
    for (int i = 4; i < 8; i++) { /* contexts 256, 257, 259, 1037 */
        assert_variant(session, "gqa", &shapes[i]);
        assert_variant(session, "gqa_tile2", &shapes[i]);
        assert_split(session, 8, &shapes[i]);
    }
    assert_variant(session, "per_head", &shapes[7]);
    et_ocl.close(session);
}
END_TEST

/* Weight 1 and context 1: out is V, plus 0, rounded to out's type. */
static const struct passage {
    enum et_dtype v, out;
} passages[] = {{ET_F16, ET_F16}, {ET_BF16, ET_BF16}, {ET_F32, ET_F16}, {ET_F32, ET_BF16}};

enum { PASSED = 4096 };

/*
 * f16: all subnormals, then every 32nd pattern, Inf and NaN among them. bf16: every 16th. f32: at and next to
 * ties of out's type, from below f16's smallest to above its largest.
 */
static uint32_t pattern(const struct passage *passage, uint32_t i)
{
    if (passage->v == ET_F16)
        return i < 2048 ? i % 1024 + i / 1024 * 0x8000 : (i - 2048) * 32 + i % 32;
    if (passage->v == ET_BF16)
        return i * 16 + i % 16;
    const struct et_stream stream = et_stream(1, "v");
    const uint32_t half = passage->out == ET_F16 ? 0x1000 : 0x8000;
    const uint32_t mantissa = (et_word(&stream, i, 0) & 0x807fffff & ~(2 * half - 1)) + half - 1 + i % 3;
    return mantissa | (100 + i % 45) << 23;
}

START_TEST(every_kind_of_value_is_loaded_and_stored_exactly)
{
    const struct passage *passage = &passages[_i];
    const struct shape shape = {{1, 1, PASSED, 1, 1, 1}, {ET_F32, passage->v, passage->out}, 0, 0};
    struct et_problem problem = make_problem(&shape);
    et_store(ET_F32, problem.tensor[W].data, 0, 0x3f800000);
    for (uint32_t i = 0; i < PASSED; i++) {
        const uint32_t bits = pattern(passage, i);
        const bool normal =
            fabsf(et_widen(passage->v, bits)) >= 0x1p-126F || isnan(et_widen(passage->v, bits));
        et_store(passage->v, problem.tensor[V].data, i,
                 normal ? bits : 0); /* a device may drop f32 subnormals */
    }
    void *out = malloc(problem.tensor[OUT].bytes);
    struct et_facts facts;
    struct et_session *session = open_session(false, NULL);
    run(session, "per_head", &problem, 1, 0, &out, &facts);
    for (uint32_t i = 0; i < PASSED; i++) {
        const float value = et_widen(passage->v, et_load(passage->v, problem.tensor[V].data, i));
        const uint32_t want = et_narrow(passage->out, (double)(value + 0.0F)); /* -0 + 0 is 0 */
        const uint32_t got = et_canonical(passage->out, et_load(passage->out, out, i));
        ck_assert_msg(got == want, "%a became 0x%04x, want 0x%04x", (double)value, got, want);
    }
    et_ocl.close(session);
    free(out);
    free_problem(&problem);
}
END_TEST

START_TEST(steps_share_buffers_and_see_their_own_data)
{
    static const char *const variants[] = {"gqa", "gqa_split"};
    const struct shape steps[] = {
        {{4, 2, 8, 1, 9, 12}, {ET_F32, ET_F32, ET_F32}, 0, 0},
        {{4, 2, 8, 1, 3, 3}, {ET_F32, ET_F32, ET_F32}, 0, 2},
        {{8, 2, 4, 1, 0, 0}, {ET_F32, ET_F32, ET_F32}, 0, 0},
        {{4, 4, 12, 1, 12, 12}, {ET_F32, ET_F32, ET_F32}, 1, 0},
    };
    struct et_problem problems[4];
    void *out[4];
    struct et_facts facts[4];
    for (int i = 0; i < 4; i++) {
        problems[i] = make_problem(&steps[i]);
        out[i] = malloc(problems[i].tensor[OUT].bytes);
    }
    struct et_session *session = open_session(_i, NULL);
    run(session, variants[_i], problems, 4, 1, out, facts);
    et_ocl.close(session);
    for (int i = 0; i < 4; i++) {
        assert_bytes(&problems[i], false, out[i], 1, "step");
        ck_assert_str_eq(facts[i].guards, "");
        ck_assert_str_eq(facts[i].inputs_kept, "");
        free(out[i]);
        free_problem(&problems[i]);
    }
}
END_TEST

/* Kernels that do wrong. */

/* Runs shape {2, 1, 4, ...} with a gqa_av.cl of its own, whose body is `line`. */
static enum et_status run_wrong(const char *line, struct et_facts *facts, struct et_error *error)
{
    char folder[] = "/tmp/etalon-XXXXXX", path[64];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/gqa_av.cl", folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(
        file,
        "#include \"dtype.clh\"\n"
        "kernel void gqa_av_gqa(global float *w, ulong w_at, ulong w_stride0, ulong w_stride1, global float "
        "*v, "
        "ulong v_at, ulong v_stride0, ulong v_stride1, global float *out, ulong out_at, ulong out_stride0, "
        "ulong out_stride1, ulong q_heads, ulong kv_heads, ulong head_dim, ulong context) {\n%s\n}\n",
        line);
    fclose(file);

    const struct shape shape = {{2, 1, 4, 1, 3, 4}, {ET_F32, ET_F32, ET_F32}, 0, 0};
    struct et_problem problem = make_problem(&shape);
    struct et_session *session = open_session(true, folder);
    const struct et_variant *variant = et_variant_named(&et_ocl, "gqa_av", "gqa");
    struct et_claim claim;
    ck_assert_int_eq(variant->resolve(&problem, &session->device, NULL, &claim, error), ET_OK);
    void *state, *out[TENSORS] = {NULL};
    enum et_status status = variant->prepare(session, variant, &problem, &claim, 1, &state, error);
    if (status == ET_OK)
        status = variant->step(state, 0, 0, out, facts, error);
    variant->finish(state);
    et_ocl.close(session);
    free_problem(&problem);
    unlink(path);
    rmdir(folder);
    return status;
}

static const struct wrong {
    const char *line, *guards, *kept;
} wrongs[] = {
    /* out is 2 x 4: element 8 is the first past its end. What a guard held is random. */
    {"out[out_at + 8] = 0.5f;", "out: element 1 past its end was ", ""},
    {"out[out_at + 8 + 1023] = 0.5f;", "out: element 1024 past its end was ", ""},
    {"out[out_at - 1] = 0.5f;", "out: element 1 before its start was ", ""},
    {"out[0] = 0.5f;", "out: element 1024 before its start was ", ""},
    {"w[w_at - 3] = 0.5f;", "w: element 3 before its start was ", ""},
    /* w is [2, 4, 4]: its last element is at (1,3,3), a poison row. v is [4, 1, 4]. */
    {"w[w_at + 31] = 0.5f;", "", "w: element 31 at (1,3,3) was nan (0x7fc00000), is 0.5 (0x3f000000)"},
    {"v[v_at + 14] = 0.5f;", "", "v: element 14 at (3,0,2) was nan (0x7fc00000), is 0.5 (0x3f000000)"},
    {"", "", ""},
};

START_TEST(a_kernel_that_strays_is_told_by_tensor_and_place)
{
    struct et_facts facts;
    struct et_error error = {""};
    ck_assert_msg(run_wrong(wrongs[_i].line, &facts, &error) == ET_OK, "%s", error.text);
    const size_t n = strlen(wrongs[_i].guards);
    ck_assert_msg(strncmp(facts.guards, wrongs[_i].guards, n > 0 ? n : 1) == 0, "\"%s\"", facts.guards);
    ck_assert(n == 0 || strstr(facts.guards, "is 0.5 (0x3f000000)"));
    ck_assert_str_eq(facts.inputs_kept, wrongs[_i].kept);
}
END_TEST

START_TEST(a_build_that_fails_says_call_kernel_options_and_log)
{
    struct et_facts facts;
    struct et_error error = {""};
    ck_assert_int_eq(run_wrong("no_such_name;", &facts, &error), ET_UNBUILT);
    static const char *const says[] = {
        "clBuildProgram: CL_BUILD_PROGRAM_FAILURE (-11), kernel gqa_av_gqa, device ",
        "-cl-std=CL1.2 -D W_DTYPE=f32 -D V_DTYPE=f32 -D OUT_DTYPE=f32 -D GROUP_SIZE=2", "no_such_name"};
    for (int i = 0; i < 3; i++)
        ck_assert_msg(strstr(error.text, says[i]), "\"%s\" lacks \"%s\"", error.text, says[i]);
    /* Oclgrind goes by no #line. */
    ck_assert(strstr(error.text, "gqa_av.cl:3") || strstr(error.text, "device Oclgrind"));
}
END_TEST

START_TEST(a_place_without_a_device_is_said)
{
    static const char *const places[] = {"99:0", "0:99", "0", "x:0", "0:0x"};
    static const enum et_status want[] = {ET_LACKING, ET_LACKING, ET_INVALID, ET_INVALID, ET_INVALID};
    for (int i = 0; i < 5; i++) {
        const struct et_open options = {.place = places[i]};
        struct et_session *session;
        struct et_device device;
        struct et_error error = {""};
        ck_assert_int_eq(et_ocl.open(&options, &session, &device, &error), want[i]);
        ck_assert_ptr_null(session);
        ck_assert_ptr_nonnull(strstr(error.text, places[i]));
    }
}
END_TEST

START_TEST(the_list_says_which_driver_files_were_read)
{
    struct et_device devices[16];
    char report[4000];
    ck_assert_int_ge(et_ocl.list(devices, 16, report, sizeof report), 1);
    ck_assert(strstr(report, ".icd: ") || strstr(report, "OCL_ICD_VENDORS is "));
}
END_TEST

Suite *et_suite(void)
{
    /* Drivers' threads do not survive a fork. */
    setenv("CK_FORK", "no", 1);
    struct et_device device;
    if (!first_device(&device))
        exit(77);

    Suite *suite = suite_create("ocl_gqa_av");
    /* Buffers of exact size: a simulator that checks accesses sees each stray one. */
    TCase *exact = tcase_create("exact");
    tcase_add_loop_test(exact, every_variant_has_the_bytes_of_its_order, 0, 1);
    tcase_add_loop_test(exact, tiled_has_the_bytes_of_its_order_for_any_number_of_queries, 0, 3);
    tcase_add_loop_test(exact, per_head_serves_head_h_from_floor_of_h_Hkv_over_Hq, 0, 1);
    tcase_add_loop_test(exact, a_smaller_work_group_gives_the_same_bytes, 0, 5);
    tcase_add_loop_test(exact, every_kind_of_value_is_loaded_and_stored_exactly, 0,
                        (int)(sizeof passages / sizeof passages[0]));
    tcase_add_loop_test(exact, steps_share_buffers_and_see_their_own_data, 0, 1);
    suite_add_tcase(suite, exact);

    TCase *guards = tcase_create("guards");
    tcase_add_loop_test(guards, every_variant_has_the_bytes_of_its_order, 1, 2);
    tcase_add_test(guards, auto_runs_the_kernel_of_what_it_chooses);
    tcase_add_loop_test(guards, steps_share_buffers_and_see_their_own_data, 1, 2);
    tcase_add_loop_test(guards, a_kernel_that_strays_is_told_by_tensor_and_place, 0,
                        (int)(sizeof wrongs / sizeof wrongs[0]));
    suite_add_tcase(suite, guards);

    TCase *failures = tcase_create("failures");
    tcase_add_test(failures, a_build_that_fails_says_call_kernel_options_and_log);
    tcase_add_test(failures, a_place_without_a_device_is_said);
    tcase_add_test(failures, the_list_says_which_driver_files_were_read);
    suite_add_tcase(suite, failures);
    return suite;
}
