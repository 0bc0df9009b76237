/* Jobs on disk: what their inputs hold, where it lies, and what is refused when they are read. */
#define _XOPEN_SOURCE 700

#include "../harness/job.h"
#include "../harness/parallel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "folder.h"
#include "suite.h"

enum { W, V, OUT };

/* Each test runs in a folder of its own. */
static void enter_folder(void)
{
    enter_temporary_folder();
    ck_assert_int_eq(mkdir("a", 0700), 0);
    ck_assert_int_eq(mkdir("b", 0700), 0);
}

static void leave_folder(void)
{
    char folder[256];
    ck_assert_ptr_nonnull(getcwd(folder, sizeof folder));
    ck_assert_int_eq(chdir(".."), 0);
    et_remove_folder(folder);
    ck_assert_int_ne(access(folder, F_OK), 0);
}

/* ---- A case ---- */

struct fixture {
    struct et_case c;
    struct et_case_step steps[2];
};

static void set_params(struct et_case_step *step, struct et_gqa_av params)
{
    memcpy(step->params, &params, sizeof params);
    memset(step->given, true, sizeof step->given);
}

/* Four query heads on two KV heads, 6 positions of a cache of 8. w is [4, 4, 8], v [8, 2, 5], out [1, 4, 5].
 */
static const struct et_gqa_av usual = {
    .q_heads = 4, .kv_heads = 2, .head_dim = 5, .query_length = 1, .context = 6, .capacity = 8};

static void make_case(struct fixture *f, struct et_gqa_av params)
{
    *f = (struct fixture){.c = {.op = et_operator_named("gqa_av"), .file = "case.json", .step_count = 1}};
    f->c.steps = f->steps;
    set_params(&f->steps[0], params);
}

static void pad(struct et_layout *layout, int dim, int64_t before, int64_t after)
{
    layout->given = true;
    layout->pad[dim][0] = before;
    layout->pad[dim][1] = after;
}

static void give_values(struct et_data *data, double *values, int64_t count)
{
    *data = (struct et_data){.given = true, .kind = ET_DATA_VALUES, .values = values, .count = count};
}

static void give_constant(struct et_data *data, double value)
{
    *data = (struct et_data){
        .given = true, .kind = ET_DATA_FILL, .fill = {.kind = ET_FILL_CONSTANT, .value = value}};
}

static void give_file(struct et_data *data, const char *tensor)
{
    *data =
        (struct et_data){.given = true, .kind = ET_DATA_FILE, .file = "data.safetensors", .tensor = tensor};
}

static void write_job(const struct et_case *c, const char *folder, struct et_job *job)
{
    struct et_error error = {.text = ""};
    ck_assert_msg(et_job_write(c, NULL, ET_FILL_NORMAL, NULL, 1, NULL, folder, job, &error) == ET_OK, "%s",
                  error.text);
}

static void digest_of(const struct et_case *c, enum et_fill_kind fill, char digest[33])
{
    struct et_job job;
    struct et_error error = {.text = ""};
    ck_assert_msg(et_job_write(c, NULL, fill, NULL, 1, NULL, "b", &job, &error) == ET_OK, "%s", error.text);
    memcpy(digest, job.steps[0].digest, 33);
    et_job_free(&job);
}

static const struct et_tensor *tensor_of(const struct et_job *job, int t)
{
    return &job->steps[0].problem.tensor[t];
}

static float element(const struct et_tensor *tensor, int64_t i, int64_t j, int64_t k)
{
    return et_widen(tensor->dtype, et_load(tensor->dtype, tensor->data,
                                           tensor->offset + i * tensor->stride[0] + j * tensor->stride[1] +
                                               k * tensor->stride[2]));
}

/* ---- Inputs ---- */

START_TEST(elements_lie_at_their_strides_and_poison_everywhere_else)
{
    /* v[c, 0, d] = 10 (c + 1) + d, c < 2 of a cache of 3, stored d outermost, then c padded by one on both
     * sides, all shifted by one: element (c, 0, d) at 1 + 5 d + (c + 1). */
    struct fixture f;
    struct et_job job;
    double values[] = {10, 11, 20, 21};
    make_case(
        &f, (struct et_gqa_av){
                .q_heads = 1, .kv_heads = 1, .head_dim = 2, .query_length = 1, .context = 2, .capacity = 3});
    give_values(&f.steps[0].data[V], values, 4);
    pad(&f.c.layout[V], 0, 1, 1);
    f.c.layout[V].ordered = true;
    memcpy(f.c.layout[V].order, (const int[]){2, 0, 1}, 3 * sizeof(int));
    f.c.layout[V].shift = 1;
    write_job(&f.c, "a", &job);

    static const float expected[] = {NAN, NAN, 10, 20, NAN, NAN, NAN, 11, 21, NAN, NAN};
    const struct et_tensor *v = tensor_of(&job, V);
    ck_assert_uint_eq(v->bytes, sizeof expected);
    for (int i = 0; i < 11; i++) {
        const float found = et_widen(ET_F32, et_load(ET_F32, v->data, i));
        ck_assert_msg(isnan(expected[i]) ? isnan(found) : found == expected[i], "[%d] is %g", i,
                      (double)found);
    }
    et_job_free(&job);
}
END_TEST

START_TEST(nan_poison_is_quiet_and_no_constant)
{
    static const enum et_dtype dtypes[] = {ET_F32, ET_F16, ET_BF16};
    static const uint32_t quiet[] = {0x7fc00000, 0x7e00, 0x7fc0};
    for (int i = 0; i < 3; i++) {
        struct fixture f;
        struct et_job job;
        make_case(&f, usual);
        f.c.dtype[V] = dtypes[i];
        write_job(&f.c, "a", &job);
        /* Rows from the context on: elements 6 * 2 * 5 to 8 * 2 * 5. */
        int changes = 0;
        for (int64_t k = 60; k < 80; k++) {
            const uint32_t bits = et_load(dtypes[i], tensor_of(&job, V)->data, k);
            ck_assert_uint_eq(bits & quiet[i], quiet[i]);
            changes += k > 60 && bits != et_load(dtypes[i], tensor_of(&job, V)->data, k - 1);
        }
        ck_assert_int_ge(changes, 15);
        et_job_free(&job);
    }
}
END_TEST

START_TEST(large_poison_is_1e30_or_the_largest_finite_value)
{
    /* 1e30 = 0x1.93e5939a08ceap99: f32 rounds to 0x1.93e594p99 = 0x7149f2ca, bf16 to 0x1.94p99 = 0x714a. */
    static const enum et_dtype dtypes[] = {ET_F32, ET_F16, ET_BF16};
    static const uint32_t expected[] = {0x7149f2ca, 0x7bff, 0x714a};
    for (int i = 0; i < 3; i++) {
        struct fixture f;
        struct et_job job;
        make_case(&f, usual);
        f.c.dtype[V] = dtypes[i];
        f.c.poison = ET_POISON_LARGE;
        write_job(&f.c, "a", &job);
        for (int64_t k = 60; k < 80; k++)
            ck_assert_uint_eq(et_load(dtypes[i], tensor_of(&job, V)->data, k), expected[i]);
        et_job_free(&job);
    }
}
END_TEST

START_TEST(rows_that_exist_for_alignment_are_poison_and_lanes_are_zero)
{
    struct fixture f;
    struct et_job job;
    make_case(&f, usual);
    write_job(&f.c, "a", &job);
    for (int64_t h = 0; h < 4; h++)
        for (int64_t s = 0; s < 4; s++)
            for (int64_t c = 0; c < 8; c++) {
                const float w = element(tensor_of(&job, W), h, s, c);
                ck_assert(s > 0 ? isnan(w) : c < 6 ? w > 0 && w < 1 : w == 0);
            }
    et_job_free(&job);
}
END_TEST

START_TEST(a_constant_given_by_the_case_is_itself_and_the_runs_fill_is_the_operators)
{
    struct fixture f;
    struct et_job job;
    make_case(&f, usual);
    give_constant(&f.steps[0].data[W], -3.5);
    ck_assert_int_eq(et_job_write(&f.c, NULL, ET_FILL_CONSTANT, NULL, 1, NULL, "a", &job, NULL), ET_OK);
    ck_assert(element(tensor_of(&job, W), 3, 0, 5) == -3.5F);
    ck_assert(element(tensor_of(&job, W), 3, 0, 6) == 0);
    ck_assert(element(tensor_of(&job, V), 5, 1, 4) == 1);
    et_job_free(&job);

    /* softmax of four ones */
    struct et_gqa_av four = usual;
    four.context = 4;
    make_case(&f, four);
    ck_assert_int_eq(et_job_write(&f.c, NULL, ET_FILL_CONSTANT, NULL, 1, NULL, "a", &job, NULL), ET_OK);
    ck_assert(element(tensor_of(&job, W), 3, 0, 3) == 0.25F);
    et_job_free(&job);
}
END_TEST

START_TEST(values_are_rounded_once)
{
    /* 1 + 2^-11 + 2^-40 is above the tie between two f16: f32 would lose what decides. */
    struct fixture f;
    struct et_job job;
    double value = 1 + 0x1p-11 + 0x1p-40;
    make_case(&f, usual);
    f.c.dtype[V] = f.c.dtype[W] = ET_F16;
    give_values(&f.steps[0].data[V], &value, 1);
    give_constant(&f.steps[0].data[W], value);
    write_job(&f.c, "a", &job);
    ck_assert_uint_eq(et_load(ET_F16, tensor_of(&job, V)->data, 0), 0x3c01);
    ck_assert_uint_eq(et_load(ET_F16, tensor_of(&job, W)->data, 0), 0x3c01);
    et_job_free(&job);
}
END_TEST

START_TEST(values_may_cover_leading_dimensions)
{
    struct fixture f;
    struct et_job job;
    double values[] = {1, 2, 3, 4, 5, 6}, three[] = {1, 2, 3};
    make_case(&f, usual);
    give_values(&f.steps[0].data[V], values, 6);
    write_job(&f.c, "a", &job);
    for (int64_t c = 0; c < 6; c++)
        for (int64_t d = 0; d < 5; d++)
            ck_assert(element(tensor_of(&job, V), c, d % 2, d) == (float)(c + 1));
    et_job_free(&job);

    struct et_error error;
    give_values(&f.steps[0].data[V], three, 3);
    ck_assert_int_ne(et_job_write(&f.c, NULL, ET_FILL_NORMAL, NULL, 1, NULL, "a", &job, &error), ET_OK);
    ck_assert_msg(strstr(error.text, "3 values for v"), "%s", error.text);
    ck_assert_ptr_null(job.steps);
}
END_TEST

START_TEST(the_seed_moves_what_has_none_of_its_own)
{
    struct fixture f;
    struct et_job first, second;
    const uint64_t seed = 7;
    make_case(&f, usual);
    f.steps[0].data[W] = (struct et_data){
        .given = true, .kind = ET_DATA_FILL, .fill = {.kind = ET_FILL_UNIFORM, .seed = 3}, .seeded = true};
    write_job(&f.c, "a", &first);
    ck_assert_int_eq(et_job_write(&f.c, NULL, ET_FILL_NORMAL, &seed, 1, NULL, "b", &second, NULL), ET_OK);
    ck_assert_mem_eq(tensor_of(&first, W)->data, tensor_of(&second, W)->data, tensor_of(&first, W)->bytes);
    ck_assert_mem_ne(tensor_of(&first, V)->data, tensor_of(&second, V)->data, tensor_of(&first, V)->bytes);
    et_job_free(&second);

    f.c.seed = 7;
    struct et_job third;
    write_job(&f.c, "b", &third);
    char digest[33];
    digest_of(&f.c, ET_FILL_NORMAL, digest);
    ck_assert_str_eq(digest, third.steps[0].digest);
    ck_assert_str_ne(digest, first.steps[0].digest);
    et_job_free(&first);
    et_job_free(&third);
}
END_TEST

START_TEST(any_number_of_threads_makes_the_same_bytes)
{
    /* Rows longer than what a thread takes at a time (w), and many short ones (v). */
    struct fixture f;
    struct et_job one, three;
    make_case(&f, (struct et_gqa_av){.q_heads = 2,
                                     .kv_heads = 2,
                                     .head_dim = 3,
                                     .query_length = 2,
                                     .context = 70001,
                                     .capacity = 70003});
    f.c.dtype[V] = ET_BF16;
    pad(&f.c.layout[W], 2, 1, 2);
    ck_assert_int_eq(et_job_write(&f.c, NULL, ET_FILL_OUTLIER, NULL, 1, NULL, "a", &one, NULL), ET_OK);
    ck_assert_int_eq(et_job_write(&f.c, NULL, ET_FILL_OUTLIER, NULL, 3, NULL, "b", &three, NULL), ET_OK);
    ck_assert_uint_eq(one.steps[0].map_bytes, three.steps[0].map_bytes);
    ck_assert_mem_eq(one.steps[0].map, three.steps[0].map, one.steps[0].map_bytes);
    ck_assert_str_eq(one.steps[0].digest, three.steps[0].digest);
    et_job_free(&one);
    et_job_free(&three);
}
END_TEST

/* Turn 3 of one thread stops the rest. */
static void stop_at_3(void *context, int thread, int64_t i)
{
    volatile sig_atomic_t *stop = context;
    ck_assert_int_eq(thread, 0);
    ck_assert_int_le(i, 3);
    *stop = i == 3;
}

START_TEST(no_turn_of_a_loop_begins_once_it_is_stopped)
{
    volatile sig_atomic_t stop = 0;
    et_parallel(1, 10, &stop, stop_at_3, (void *)&stop);
    ck_assert_int_eq(stop, 1);
}
END_TEST

START_TEST(a_job_that_is_stopped_leaves_no_inputs)
{
    struct fixture f;
    struct et_job job;
    struct et_error error;
    const volatile sig_atomic_t stop = 1;
    make_case(&f, usual);
    ck_assert_int_eq(et_job_write(&f.c, NULL, ET_FILL_NORMAL, NULL, 1, &stop, "a", &job, &error), ET_FAILED);
    ck_assert_str_eq(error.text, "interrupted while inputs were made");
    ck_assert_ptr_null(job.steps);
    ck_assert_int_ne(access("a/0.safetensors", F_OK), 0);

    write_job(&f.c, "a", &job);
    const struct et_problem *problem = &job.steps[0].problem;
    const void *data[ET_TENSORS] = {[W] = problem->tensor[W].data, [V] = problem->tensor[V].data};
    char digest[33];
    ck_assert_int_eq(et_digest(problem, ET_INPUT, data, &stop, digest, &error), ET_FAILED);
    ck_assert_str_eq(error.text, "interrupted while a digest was computed");
    char prints[2][33];
    ck_assert_int_eq(et_job_prints(&job, &stop, prints, &error), ET_FAILED);
    ck_assert_str_eq(error.text, "interrupted while files of a job were read");
    ck_assert_int_eq(et_outputs_poison(&job, 0, 0, &stop, "a", &error), ET_FAILED);
    ck_assert_str_eq(error.text, "interrupted while outputs were poisoned");
    et_job_free(&job);
}
END_TEST

/* ---- Data files ---- */

static void write_data(enum et_dtype dtype, int rank, const int64_t *size, float first)
{
    struct et_file_tensor tensor = {.name = "cache", .dtype = dtype, .rank = rank};
    memcpy(tensor.size, size, (size_t)rank * sizeof *size);
    void *map;
    size_t bytes;
    ck_assert_int_eq(et_tensors_create("data.safetensors", &tensor, 1, &map, &bytes, NULL), ET_OK);
    const int64_t n = (int64_t)(tensor.bytes / et_format(dtype)->bytes);
    for (int64_t i = 0; i < n; i++)
        et_store(dtype, tensor.data, i, et_narrow(dtype, (double)(first + (float)i)));
    et_unmap(map, bytes);
}

START_TEST(a_file_gives_data_elements_whether_it_has_the_others_or_not)
{
    static const struct {
        int rank;
        int64_t size[3];
    } shapes[] = {{3, {8, 2, 5}}, {1, {80}}, {3, {6, 2, 5}}, {1, {60}}, {2, {10, 6}}};
    for (int i = 0; i < 5; i++) {
        struct fixture f;
        struct et_job job;
        make_case(&f, usual);
        f.c.dtype[V] = ET_BF16;
        give_file(&f.steps[0].data[V], "cache");
        write_data(ET_F16, shapes[i].rank, shapes[i].size, 1);
        write_job(&f.c, "a", &job);
        for (int64_t k = 0; k < 80; k++) {
            const float found = et_widen(ET_BF16, et_load(ET_BF16, tensor_of(&job, V)->data, k));
            ck_assert(k < 60 ? found == (float)(k + 1) : isnan(found));
        }
        et_job_free(&job);
    }
}
END_TEST

START_TEST(a_nan_of_a_file_of_the_same_type_keeps_its_payload)
{
    struct fixture f;
    struct et_job job;
    make_case(&f, usual);
    f.c.dtype[V] = ET_F16;
    give_file(&f.steps[0].data[V], "cache");
    struct et_file_tensor tensor = {.name = "cache", .dtype = ET_F16, .rank = 1, .size = {60}};
    void *map;
    size_t bytes;
    ck_assert_int_eq(et_tensors_create("data.safetensors", &tensor, 1, &map, &bytes, NULL), ET_OK);
    et_store(ET_F16, tensor.data, 59, 0xfd23);
    et_unmap(map, bytes);
    write_job(&f.c, "a", &job);
    ck_assert_uint_eq(et_load(ET_F16, tensor_of(&job, V)->data, 59), 0xfd23);
    et_job_free(&job);
}
END_TEST

START_TEST(a_file_that_does_not_fit_is_refused)
{
    static const struct {
        const char *tensor;
        enum et_dtype dtype;
        int rank;
        int64_t size[3];
        const char *sentence;
    } table[] = {
        {"cache", ET_F32, 1, {61}, "cache: 61 values for v"},
        {"cache", ET_F32, 3, {2, 8, 5}, "cache: 80 values for v"},
        {"other", ET_F32, 1, {60}, "data.safetensors has no tensor other"},
    };
    for (int i = 0; i < 3; i++) {
        struct fixture f;
        struct et_job job;
        struct et_error error;
        make_case(&f, usual);
        give_file(&f.steps[0].data[V], table[i].tensor);
        write_data(table[i].dtype, table[i].rank, table[i].size, 0);
        ck_assert_int_eq(et_job_write(&f.c, NULL, ET_FILL_NORMAL, NULL, 1, NULL, "a", &job, &error),
                         ET_INVALID);
        ck_assert_msg(strstr(error.text, table[i].sentence), "%s", error.text);
    }
}
END_TEST

/* ---- Digests ---- */

START_TEST(the_digest_is_of_data_elements_in_normative_order)
{
    /* w: 4 rows of 6 halves and 2 zeros; v: 60 ones. The bytes, written out: */
    struct fixture f;
    struct et_job job;
    make_case(&f, usual);
    give_constant(&f.steps[0].data[W], 0.5);
    give_constant(&f.steps[0].data[V], 1);
    f.c.dtype[V] = ET_BF16;
    write_job(&f.c, "a", &job);
    float w[4][8] = {{0}};
    uint16_t v[60];
    for (int h = 0; h < 4; h++)
        for (int c = 0; c < 6; c++)
            w[h][c] = 0.5F;
    for (int i = 0; i < 60; i++)
        v[i] = 0x3f80;
    unsigned char bytes[sizeof w + sizeof v];
    memcpy(bytes, w, sizeof w);
    memcpy(bytes + sizeof w, v, sizeof v);
    const XXH128_hash_t hash = XXH3_128bits(bytes, sizeof bytes);
    char expected[33];
    snprintf(expected, sizeof expected, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    ck_assert_str_eq(job.steps[0].digest, expected);
    et_job_free(&job);
}
END_TEST

START_TEST(the_digest_of_nothing_is_xxh3s)
{
    /* XXH3_128bits of no bytes, from xxHash's own sanity tests. */
    struct fixture f;
    struct et_gqa_av empty = usual;
    char digest[33];
    empty.context = empty.capacity = 0;
    make_case(&f, empty);
    digest_of(&f.c, ET_FILL_NORMAL, digest);
    ck_assert_str_eq(digest, "99aa06d3014798d86001c324468d497f");
}
END_TEST

START_TEST(the_digest_depends_on_neither_layout_nor_poison_nor_room)
{
    struct fixture f;
    char plain[33], other[33];
    make_case(&f, usual);
    digest_of(&f.c, ET_FILL_NORMAL, plain);
    ck_assert_uint_eq(strspn(plain, "0123456789abcdef"), 32);

    f.c.poison = ET_POISON_LARGE;
    digest_of(&f.c, ET_FILL_NORMAL, other);
    ck_assert_str_eq(plain, other);

    pad(&f.c.layout[V], 1, 2, 3);
    pad(&f.c.layout[W], 2, 0, 5);
    f.c.layout[V].shift = 3;
    f.c.layout[V].ordered = true;
    memcpy(f.c.layout[V].order, (const int[]){1, 2, 0}, 3 * sizeof(int));
    digest_of(&f.c, ET_FILL_NORMAL, other);
    ck_assert_str_eq(plain, other);

    struct et_gqa_av roomy = usual;
    roomy.capacity = 100;
    set_params(&f.steps[0], roomy);
    digest_of(&f.c, ET_FILL_NORMAL, other);
    ck_assert_str_eq(plain, other);

    digest_of(&f.c, ET_FILL_UNIFORM, other);
    ck_assert_str_ne(plain, other);
    f.c.seed = 1;
    digest_of(&f.c, ET_FILL_NORMAL, other);
    ck_assert_str_ne(plain, other);
}
END_TEST

START_TEST(the_digest_takes_every_nan_for_the_same)
{
    struct fixture f;
    struct et_job job;
    make_case(&f, usual);
    write_job(&f.c, "a", &job);
    const struct et_problem *problem = &job.steps[0].problem;
    float out[20] = {0};
    const void *data[ET_TENSORS] = {[OUT] = out};
    char zero[33], one[33], two[33];
    ck_assert_int_eq(et_digest(problem, ET_OUTPUT, data, NULL, zero, NULL), ET_OK);
    et_store(ET_F32, out, 19, 0x7fc00000);
    ck_assert_int_eq(et_digest(problem, ET_OUTPUT, data, NULL, one, NULL), ET_OK);
    et_store(ET_F32, out, 19, 0xffabcdef);
    ck_assert_int_eq(et_digest(problem, ET_OUTPUT, data, NULL, two, NULL), ET_OK);
    ck_assert_str_ne(zero, one);
    ck_assert_str_eq(one, two);
    et_job_free(&job);
}
END_TEST

/* ---- Reading back ---- */

START_TEST(a_job_reads_back_as_it_was_written)
{
    struct fixture f;
    struct et_job written, read;
    struct et_error error = {.text = ""};
    make_case(&f, usual);
    f.c.step_count = 2;
    f.c.dtype[V] = ET_F16;
    pad(&f.c.layout[V], 2, 0, 3);
    f.c.layout[OUT].given = true;
    f.c.layout[OUT].shift = 2;
    struct et_gqa_av second = usual;
    second.context = 8;
    set_params(&f.steps[1], second);
    write_job(&f.c, "a", &written);
    ck_assert_msg(et_job_read("a", &read, &error) == ET_OK, "%s", error.text);

    ck_assert_ptr_eq(read.op, written.op);
    ck_assert_str_eq(read.folder, "a");
    ck_assert_int_eq(read.step_count, 2);
    for (int i = 0; i < 2; i++) {
        const struct et_problem *a = &written.steps[i].problem, *b = &read.steps[i].problem;
        ck_assert_mem_eq(a->params, b->params, sizeof(struct et_gqa_av));
        ck_assert_ptr_eq(b->params, read.steps[i].params);
        for (int t = W; t <= OUT; t++) {
            const struct et_tensor *x = &a->tensor[t], *y = &b->tensor[t];
            ck_assert_int_eq(x->dtype, y->dtype);
            ck_assert_int_eq(x->rank, y->rank);
            ck_assert_mem_eq(x->size, y->size, 3 * sizeof *x->size);
            ck_assert_mem_eq(x->stride, y->stride, 3 * sizeof *x->stride);
            ck_assert_int_eq(x->offset, y->offset);
            ck_assert_uint_eq(x->bytes, y->bytes);
            if (t == OUT)
                ck_assert_ptr_null(y->data);
            else
                ck_assert_mem_eq(x->data, y->data, x->bytes);
        }
    }
    et_job_free(&read);
    et_job_free(&written);
}
END_TEST

static mode_t mode_of(const char *path)
{
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_mode & 0777;
}

START_TEST(a_job_is_read_only_and_may_be_written_again)
{
    struct fixture f;
    struct et_job job, again;
    make_case(&f, usual);
    write_job(&f.c, "a", &job);
    ck_assert_uint_eq(mode_of("a/job.json"), 0444);
    ck_assert_uint_eq(mode_of("a/0.safetensors"), 0444);
    f.c.seed = 1;
    write_job(&f.c, "a", &again);
    ck_assert_mem_ne(job.steps[0].map, again.steps[0].map, job.steps[0].map_bytes);
    et_job_free(&job);
    et_job_free(&again);
}
END_TEST

START_TEST(a_twin_has_its_own_params_and_poison)
{
    struct fixture f;
    struct et_job job, twin;
    struct et_twin edit = {.has_poison = true, .poison = ET_POISON_LARGE};
    make_case(&f, usual);
    edit.edits[5] = true; /* capacity */
    edit.value[5] = 9;
    write_job(&f.c, "a", &job);
    ck_assert_int_eq(et_job_write(&f.c, &edit, ET_FILL_NORMAL, NULL, 1, NULL, "b", &twin, NULL), ET_OK);
    ck_assert_int_eq(tensor_of(&twin, V)->size[0], 9);
    ck_assert(element(tensor_of(&twin, V), 8, 0, 0) == 1e30F);
    ck_assert_str_eq(job.steps[0].digest, twin.steps[0].digest);
    et_job_free(&job);
    et_job_free(&twin);
}
END_TEST

START_TEST(a_shape_that_is_refused_writes_no_job)
{
    struct fixture f;
    struct et_job job;
    struct et_error error;
    struct et_gqa_av params = usual;
    params.capacity = 5;
    make_case(&f, params);
    ck_assert_int_eq(et_job_write(&f.c, NULL, ET_FILL_NORMAL, NULL, 1, NULL, "a", &job, &error), ET_REFUSED);
    ck_assert_msg(strstr(error.text, "capacity is 5, below context = 6"), "%s", error.text);
    ck_assert_int_ne(access("a/job.json", F_OK), 0);
    ck_assert_ptr_null(job.folder);
}
END_TEST

/* A job's files are read-only. */
static void replace_text(const char *path, const char *text)
{
    unlink(path);
    write_text(path, text);
}

START_TEST(a_description_is_this_text)
{
    struct fixture f;
    struct et_job job;
    char found[2000];
    make_case(&f, usual);
    f.c.dtype[V] = ET_F16;
    pad(&f.c.layout[V], 2, 0, 3);
    write_job(&f.c, "a", &job);
    et_job_free(&job);
    read_text("a/job.json", found, sizeof found);
    ck_assert_str_eq(
        found,
        "{\"format\": 1, \"operator\": \"gqa_av\", \"steps\": [\n"
        " {\"params\": {\"q_heads\": 4, \"kv_heads\": 2, \"head_dim\": 5, \"query_length\": 1, \"context\": "
        "6, "
        "\"capacity\": 8},\n"
        "  \"tensors\": {\n"
        "    \"w\": {\"role\": \"input\", \"dtype\": \"f32\", \"size\": [4, 4, 8], \"stride\": [32, 8, 1], "
        "\"offset\": 0, \"elements\": 128},\n"
        "    \"v\": {\"role\": \"input\", \"dtype\": \"f16\", \"size\": [8, 2, 5], \"stride\": [16, 8, 1], "
        "\"offset\": 0, \"elements\": 128},\n"
        "    \"out\": {\"role\": \"output\", \"dtype\": \"f32\", \"size\": [1, 4, 5], \"stride\": [20, 5, "
        "1], "
        "\"offset\": 0, \"elements\": 20}}}]}\n");
}
END_TEST

/* Damages to that text (without padding): the first occurrence of one string becomes another. */
static const struct {
    const char *from, *to, *sentence;
} damages[] = {
    {"{\"format\"", "[\"format\"", "job.json:1:"},
    {"\"format\": 1", "\"format\": 2", "format"},
    {"\"format\": 1, ", "", "a job has no format"},
    {"\"format\": 1", "\"format\": 1, \"seed\": 0", "seed"},
    {"\"gqa_av\"", "\"gqa\"", "there is no operator gqa"},
    {"\"gqa_av\"", "7", "operator"},
    {"\"steps\": [", "\"steps\": [], \"x\": [", "\"x\""},
    {"\"q_heads\": 4, ", "", "params has no q_heads"},
    {"\"q_heads\": 4", "\"q_heads\": 4.5", "q_heads"},
    {"\"q_heads\": 4", "\"q_heads\": \"4\"", "q_heads"},
    {"\"q_heads\": 4", "\"q_heads\": 0", "q_heads is 0"},
    {"\"q_heads\": 4", "\"q_heads\": 1e300", "q_heads"},
    {"\"q_heads\": 4", "\"q_heads\": 4, \"heads\": 4", "heads"},
    {"\"capacity\": 8", "\"capacity\": 5", "capacity is 5, below context = 6"},
    {"\"capacity\": 8", "\"capacity\": 9", "the size of v is not what the params make it"},
    {"\"capacity\": 8", "\"capacity\": 9007199254740991", "the size of v is not"},
    {"\"kv_heads\": 2, \"head_dim\": 5", "\"kv_heads\": 65535, \"head_dim\": 65536", "the size of v is not"},
    {"\"capacity\": 8}", "\"capacity\": 9007199254740991}, \"y\": 0", "\"y\""},
    {"\"w\": {", "\"ww\": {", "ww"},
    {"\"w\": {", "\"w\": 3, \"v2\": {", "v2"},
    {"\"role\": \"input\"", "\"role\": \"output\"", "the role of w is input"},
    {"\"dtype\": \"f32\"", "\"dtype\": \"f8e4m3fn\"", "w cannot be f8e4m3fn"},
    {"\"dtype\": \"f32\"", "\"dtype\": \"f64\"", "w cannot be f64"},
    {"\"size\": [4, 4, 8]", "\"size\": [4, 4]", "size has 2 entries, not 3"},
    {"\"size\": [4, 4, 8]", "\"size\": [4, 8, 4]", "the size of w is not what the params make it"},
    {"\"stride\": [32, 8, 1]", "\"stride\": [32, 8, 2]", "w reaches beyond its 128 elements"},
    {"\"stride\": [32, 8, 1]", "\"stride\": [32, 8, -1]", "stride"},
    {"\"stride\": [32, 8, 1]", "\"stride\": [32, 8]", "stride has 2 entries, not 3"},
    {"\"stride\": [32, 8, 1]", "\"stride\": [4503599627370496, 4503599627370496, 4503599627370496]",
     "w reaches beyond its 128 elements"},
    {"\"offset\": 0", "\"offset\": 1", "w reaches beyond its 128 elements"},
    {"\"offset\": 0", "\"offset\": -1", "offset"},
    {"\"elements\": 128", "\"elements\": 127", "w reaches beyond its 127 elements"},
    {"\"elements\": 128", "\"elements\": 129", "a/0.safetensors: w is not 129 elements of f32"},
    {"\"elements\": 128", "\"elements\": 4503599627370496", "w is not 4503599627370496 elements of f32"},
    {", \"elements\": 128", "", "w has no elements"},
    {"}}}]}", "}}}, 5]}", "a step"},
    {"}}}]}", "}}}]} x", "job.json:"},
};

START_TEST(a_malformed_description_is_one_sentence)
{
    struct fixture f;
    struct et_job job;
    char text[2000], damaged[2400];
    struct et_error error = {.text = ""};
    make_case(&f, usual);
    write_job(&f.c, "a", &job);
    et_job_free(&job);
    read_text("a/job.json", text, sizeof text);
    const char *at = strstr(text, damages[_i].from);
    ck_assert_ptr_nonnull(at);
    snprintf(damaged, sizeof damaged, "%.*s%s%s", (int)(at - text), text, damages[_i].to,
             at + strlen(damages[_i].from));
    replace_text("a/job.json", damaged);
    ck_assert_int_eq(et_job_read("a", &job, &error), ET_INVALID);
    ck_assert_msg(strstr(error.text, damages[_i].sentence), "%s", error.text);
    ck_assert_ptr_null(strchr(error.text, '\n'));
    ck_assert_ptr_null(job.steps);
    ck_assert_ptr_null(job.folder);
}
END_TEST

/* Params of all kinds, names with capitals, ranks 1 to 3; and types that do not go together. */
START_TEST(a_job_of_another_operator_reads_back_and_its_types_are_checked)
{
    const struct et_gdn_postconv params = {2, 1, 3, 5, 4, 1e-6, 1};
    struct fixture f = {.c = {.op = et_operator_named("gdn_postconv"), .file = "case.json", .step_count = 1}};
    struct et_job job;
    struct et_error error = {.text = ""};
    char text[4000], mixed[4000];
    f.c.steps = f.steps;
    memcpy(f.steps[0].params, &params, sizeof params);
    write_job(&f.c, "a", &job);
    const uint32_t A_log = et_load(ET_F32, job.steps[0].problem.tensor[3].data, 2);
    et_job_free(&job);
    ck_assert_msg(et_job_read("a", &job, &error) == ET_OK, "%s", error.text);
    ck_assert_mem_eq(job.steps[0].params, &params, sizeof params);
    ck_assert_int_eq(et_load(ET_F32, job.steps[0].problem.tensor[3].data, 2), A_log);
    et_job_free(&job);
    read_text("a/job.json", text, sizeof text);
    const char *const from = "\"k\": {\"role\": \"output\", \"dtype\": \"f32\"";
    const char *at = strstr(text, from);
    ck_assert_ptr_nonnull(at);
    snprintf(mixed, sizeof mixed, "%.*s\"k\": {\"role\": \"output\", \"dtype\": \"f16\"%s", (int)(at - text),
             text, at + strlen(from));
    replace_text("a/job.json", mixed);
    ck_assert_int_eq(et_job_read("a", &job, &error), ET_INVALID);
    ck_assert_msg(strstr(error.text, "q, k and v are f32, f16 and f32, must be of one type"), "%s",
                  error.text);
}
END_TEST

START_TEST(strides_whose_products_wrap_are_beyond_the_buffer)
{
    /* 65534 * 2^52 = 2^68 - 2^53, which is -2^53 modulo 2^64: before the buffer's end, if it wrapped. */
    struct et_job job;
    struct et_error error = {.text = ""};
    replace_text(
        "a/job.json",
        "{\"format\": 1, \"operator\": \"gqa_av\", \"steps\": [{\"params\": {\"q_heads\": 65535, "
        "\"kv_heads\": 1, \"head_dim\": 1, \"query_length\": 1, \"context\": 1, \"capacity\": 1}, "
        "\"tensors\": {\"w\": {\"role\": \"input\", \"dtype\": \"f32\", \"size\": [65535, 4, 4], "
        "\"stride\": [4503599627370496, 4, 1], \"offset\": 0, \"elements\": 1}, "
        "\"v\": {\"role\": \"input\", \"dtype\": \"f32\", \"size\": [1, 1, 1], \"stride\": [1, 1, 1], "
        "\"offset\": 0, \"elements\": 1}, \"out\": {\"role\": \"output\", \"dtype\": \"f32\", "
        "\"size\": [1, 65535, 1], \"stride\": [65535, 1, 1], \"offset\": 0, \"elements\": 65535}}}]}");
    ck_assert_int_eq(et_job_read("a", &job, &error), ET_INVALID);
    ck_assert_msg(strstr(error.text, "w reaches beyond its 1 elements"), "%s", error.text);
}
END_TEST

START_TEST(a_job_without_its_files_is_refused)
{
    struct fixture f;
    struct et_job job;
    struct et_error error;
    make_case(&f, usual);
    ck_assert_int_eq(et_job_read("a", &job, &error), ET_INVALID);
    ck_assert_msg(strstr(error.text, "a/job.json"), "%s", error.text);
    write_job(&f.c, "a", &job);
    et_job_free(&job);

    void *map;
    size_t bytes;
    struct et_file_tensor tensors[] = {{.name = "w", .dtype = ET_F32, .rank = 1, .size = {128}},
                                       {.name = "v", .dtype = ET_F32, .rank = 1, .size = {80}},
                                       {.name = "x", .dtype = ET_F32, .rank = 1, .size = {1}}};
    static const char *const sentences[] = {"has no tensor w", "has no tensor v", NULL,
                                            "has 3 tensors, gqa_av has 2"};
    for (int n = 0; n < 4; n++) {
        ck_assert_int_eq(et_tensors_create("a/0.safetensors", tensors, n, &map, &bytes, NULL), ET_OK);
        et_unmap(map, bytes);
        const enum et_status status = et_job_read("a", &job, &error);
        ck_assert_int_eq(status, sentences[n] ? ET_INVALID : ET_OK);
        if (sentences[n])
            ck_assert_msg(strstr(error.text, sentences[n]), "%s", error.text);
        et_job_free(&job);
    }
    unlink("a/0.safetensors");
    ck_assert_int_eq(et_job_read("a", &job, &error), ET_INVALID);
    ck_assert_msg(strstr(error.text, "a/0.safetensors"), "%s", error.text);
}
END_TEST

/* ---- Outputs ---- */

START_TEST(outputs_come_back_as_whole_buffers)
{
    struct fixture f;
    struct et_job job;
    void *out[ET_TENSORS], *map;
    size_t bytes;
    make_case(&f, usual);
    f.c.dtype[OUT] = ET_F16;
    pad(&f.c.layout[OUT], 2, 0, 1);
    write_job(&f.c, "a", &job);
    ck_assert_int_eq(et_outputs_create(&job, 0, 2, "b", out, &map, &bytes, NULL), ET_OK);
    ck_assert_ptr_null(out[W]);
    ck_assert_ptr_null(out[V]);
    for (int i = 0; i < 24; i++)
        et_store(ET_F16, out[OUT], i, (uint32_t)(i + 1));
    et_unmap(map, bytes);
    ck_assert_uint_eq(mode_of("b/0.2.safetensors"), 0644);

    struct et_outputs outputs;
    ck_assert_int_eq(et_outputs_open(&job, 0, 2, "b", &outputs, NULL), ET_OK);
    ck_assert_ptr_null(outputs.data[W]);
    /* The runner's file is its own: what it does to it afterwards is no signal to the judge. */
    ck_assert_int_eq(truncate("b/0.2.safetensors", 0), 0);
    for (int i = 0; i < 24; i++)
        ck_assert_uint_eq(et_load(ET_F16, outputs.data[OUT], i), (uint32_t)(i + 1));
    et_outputs_close(&outputs);
    et_job_free(&job);
}
END_TEST

START_TEST(outputs_that_are_not_the_jobs_are_refused)
{
    static const struct {
        const char *name;
        enum et_dtype dtype;
        int64_t count;
        const char *sentence;
    } table[] = {
        {"out", ET_F32, 20, NULL},
        {"out", ET_F32, 19, "b/0.0.safetensors: out is not 20 elements of f32"},
        {"out", ET_BF16, 40, "b/0.0.safetensors: out is not 20 elements of f32"},
        {"output", ET_F32, 20, "b/0.0.safetensors has no tensor out"},
    };
    struct fixture f;
    struct et_job job;
    struct et_outputs outputs;
    struct et_error error;
    make_case(&f, usual);
    write_job(&f.c, "a", &job);
    ck_assert_int_eq(et_outputs_open(&job, 0, 0, "b", &outputs, &error), ET_INVALID);
    ck_assert_msg(strstr(error.text, "b/0.0.safetensors"), "%s", error.text);
    for (int i = 0; i < 4; i++) {
        struct et_file_tensor tensor = {
            .name = table[i].name, .dtype = table[i].dtype, .rank = 1, .size = {table[i].count}};
        void *map;
        size_t bytes;
        ck_assert_int_eq(et_tensors_create("b/0.0.safetensors", &tensor, 1, &map, &bytes, NULL), ET_OK);
        et_unmap(map, bytes);
        const enum et_status status = et_outputs_open(&job, 0, 0, "b", &outputs, &error);
        ck_assert_int_eq(status, table[i].sentence ? ET_INVALID : ET_OK);
        if (table[i].sentence)
            ck_assert_msg(strstr(error.text, table[i].sentence), "%s", error.text);
        ck_assert_int_eq(outputs.data[OUT] != NULL, !table[i].sentence);
        et_outputs_close(&outputs);
    }
    et_job_free(&job);
}
END_TEST

START_TEST(a_folder_is_removed_with_what_is_in_it)
{
    ck_assert_int_eq(mkdir("a/deep", 0700), 0);
    replace_text("a/deep/file", "x");
    ck_assert_int_eq(chmod("a/deep/file", 0444), 0);
    ck_assert_int_eq(symlink("../b", "a/link"), 0);
    replace_text("b/kept", "x");
    et_remove_folder("a");
    ck_assert_int_ne(access("a", F_OK), 0);
    ck_assert_int_eq(access("b/kept", F_OK), 0);
    et_remove_folder("a");
}
END_TEST

/* ---- Inputs that share memory ---- */

/* w is [2, 4, 4], of which row 0 of a head is data, its first 2 lanes, and rows 1 to 3 are poison; v [2, 1,
 * 3]. */
static const struct et_gqa_av small = {
    .q_heads = 2, .kv_heads = 1, .head_dim = 3, .query_length = 1, .context = 2, .capacity = 2};

static float at(const struct et_tensor *tensor, int64_t i)
{
    return et_widen(tensor->dtype, et_load(tensor->dtype, tensor->data, i));
}

static void expect_buffer(const struct et_tensor *tensor, const float *expected, int n)
{
    ck_assert_int_eq(et_elements(tensor->dtype, tensor->bytes), n);
    for (int i = 0; i < n; i++)
        ck_assert_msg(isnan(expected[i]) ? isnan(at(tensor, i)) : at(tensor, i) == expected[i],
                      "[%d] is %g, not %g", i, (double)at(tensor, i), (double)expected[i]);
}

START_TEST(a_view_is_the_first_elements_of_what_it_is_a_view_of)
{
    /* w[h, 0, :] = 10, 11, 0, 0 and 20, 21, 0, 0, heads padded to 5 lanes, shifted by 1. v[c, 0, d] is
     * w[c, 0, d], whose strides and place it has; of it lane 2 is 0, as w has it. */
    struct fixture f;
    struct et_job job;
    double values[] = {10, 11, 20, 21};
    make_case(&f, small);
    give_values(&f.steps[0].data[W], values, 4);
    pad(&f.c.layout[W], 2, 0, 1);
    f.c.layout[W].shift = 1;
    f.c.layout[V] = (struct et_layout){.given = true, .view_of = W + 1};
    write_job(&f.c, "a", &job);
    static const float expected[41] = {
        [0] = NAN,  [1] = 10,   [2] = 11,   [5] = NAN,  [6] = NAN,  [7] = NAN,  [8] = NAN,  [9] = NAN,
        [10] = NAN, [11] = NAN, [12] = NAN, [13] = NAN, [14] = NAN, [15] = NAN, [16] = NAN, [17] = NAN,
        [18] = NAN, [19] = NAN, [20] = NAN, [21] = 20,  [22] = 21,  [25] = NAN, [26] = NAN, [27] = NAN,
        [28] = NAN, [29] = NAN, [30] = NAN, [31] = NAN, [32] = NAN, [33] = NAN, [34] = NAN, [35] = NAN,
        [36] = NAN, [37] = NAN, [38] = NAN, [39] = NAN, [40] = NAN};
    const struct et_tensor *w = tensor_of(&job, W), *v = tensor_of(&job, V);
    expect_buffer(w, expected, 41);
    ck_assert_ptr_eq(v->data, w->data);
    ck_assert_uint_eq(v->bytes, w->bytes);
    ck_assert_int_eq(v->offset, 1);
    ck_assert_mem_eq(v->stride, ((const int64_t[]){20, 5, 1}), 3 * sizeof(int64_t));
    ck_assert_int_eq(v->shares, W + 1);
    ck_assert_float_eq(element(v, 1, 0, 1), 21);

    /* Its own elements are what the digest has of it: w as it is, then v as if it lay alone. */
    char digest[33];
    double same[] = {10, 11, 0, 20, 21, 0};
    make_case(&f, small);
    give_values(&f.steps[0].data[W], values, 4);
    give_values(&f.steps[0].data[V], same, 6);
    digest_of(&f.c, ET_FILL_NORMAL, digest);
    ck_assert_str_eq(digest, job.steps[0].digest);
    et_job_free(&job);
}
END_TEST

START_TEST(what_a_view_covers_is_data_and_what_is_zero_for_it_is_zero)
{
    /* Of v [3, 2, 4] all rows are data but those of position 2, which is capacity. w [2, 4, 4] is a view of
     * v's buffer the other way round: v, smaller, of w. Row 1 of head 0 of w is poison for w and v[0, 1, :].
     */
    struct et_gqa_av params = {
        .q_heads = 3, .kv_heads = 2, .head_dim = 4, .query_length = 1, .context = 2, .capacity = 3};
    struct fixture f;
    struct et_job job;
    make_case(&f, params);
    f.c.layout[V] = (struct et_layout){.given = true, .view_of = W + 1};
    give_constant(&f.steps[0].data[W], 7);
    write_job(&f.c, "a", &job);
    const float n = NAN;
    const float expected[] = {
        7, 7, 0, 0, 7, 7, 7, 7, n, n, n, n, n, n, n, n,  /* v[0, 0:2, :], then rows of w */
        7, 7, 0, 0, 7, 7, 7, 7, n, n, n, n, n, n, n, n,  /* v[1, 0:2, :] */
        7, 7, 0, 0, n, n, n, n, n, n, n, n, n, n, n, n}; /* beyond v's context */
    expect_buffer(tensor_of(&job, W), expected, 48);
    et_job_free(&job);

    /* A list for w has a value for those as well: 2 + 4 of each of the first two heads, 2 of the third. */
    double values[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    give_values(&f.steps[0].data[W], values, 14);
    write_job(&f.c, "a", &job);
    ck_assert_float_eq(element(tensor_of(&job, V), 0, 1, 3), 6);
    ck_assert_float_eq(element(tensor_of(&job, V), 1, 0, 0), 7);
    ck_assert_float_eq(element(tensor_of(&job, W), 2, 0, 1), 14);
    et_job_free(&job);
}
END_TEST

static void share_buffer(struct fixture *f)
{
    f->c.layout[W].given = f->c.layout[V].given = true;
    f->c.layout[W].buffer = f->c.layout[V].buffer = "cache";
}

START_TEST(inputs_of_one_buffer_lie_one_behind_the_other_each_as_it_is_laid_out)
{
    /* w: 32 elements; v: shifted by 1, rows of 3 padded by 1 before: 1 + 2 * 4, from 32 on. */
    struct fixture f;
    struct et_job job;
    make_case(&f, small);
    double values[] = {1, 2, 3, 4, 5, 6};
    give_constant(&f.steps[0].data[W], 9);
    give_values(&f.steps[0].data[V], values, 6);
    pad(&f.c.layout[V], 2, 1, 0);
    f.c.layout[V].shift = 1;
    share_buffer(&f);
    write_job(&f.c, "a", &job);
    const float n = NAN;
    const float expected[] = {9, 9, 0, 0, n, n, n, n, n, n, n, n, n, n, n, n, 9, 9, 0, 0, n,
                              n, n, n, n, n, n, n, n, n, n, n, n, n, 1, 2, 3, n, 4, 5, 6};
    const struct et_tensor *w = tensor_of(&job, W), *v = tensor_of(&job, V);
    expect_buffer(w, expected, 41);
    ck_assert_ptr_eq(v->data, w->data);
    ck_assert_uint_eq(v->bytes, w->bytes);
    ck_assert_int_eq(w->shares, 0);
    ck_assert_int_eq(v->shares, W + 1);
    ck_assert_int_eq(v->offset, 34);
    et_job_free(&job);
}
END_TEST

START_TEST(the_digest_does_not_depend_on_who_shares_a_buffer)
{
    struct fixture f;
    char plain[33], other[33];
    make_case(&f, usual);
    digest_of(&f.c, ET_FILL_NORMAL, plain);
    f.c.layout[V] = (struct et_layout){.given = true, .buffer = "alone"};
    digest_of(&f.c, ET_FILL_NORMAL, other);
    ck_assert_str_eq(plain, other);
    share_buffer(&f);
    digest_of(&f.c, ET_FILL_NORMAL, other);
    ck_assert_str_eq(plain, other);
    pad(&f.c.layout[W], 0, 1, 2);
    f.c.layout[V].shift = 5;
    f.c.poison = ET_POISON_LARGE;
    digest_of(&f.c, ET_FILL_NORMAL, other);
    ck_assert_str_eq(plain, other);
}
END_TEST

/* Views come before what they are a view of, in a buffer that another begins. */
START_TEST(a_view_of_an_input_in_a_buffer_lies_in_it_too)
{
    const struct et_gdn_postconv params = {2, 1, 3, 5, 4, 1e-6, 1};
    enum { CONV, A, B, A_LOG, DT_BIAS };
    struct fixture f = {.c = {.op = et_operator_named("gdn_postconv"), .file = "case.json", .step_count = 1}};
    struct et_job job, read;
    struct et_error error = {.text = ""};
    f.c.steps = f.steps;
    memcpy(f.steps[0].params, &params, sizeof params);
    f.c.layout[CONV].buffer = f.c.layout[B].buffer = "qkvb";
    f.c.layout[A].view_of = B + 1;
    f.c.layout[A_LOG].view_of = DT_BIAS + 1;
    write_job(&f.c, "a", &job);
    ck_assert_msg(et_job_read("a", &read, &error) == ET_OK, "%s", error.text);
    for (int i = 0; i < 2; i++) {
        const struct et_tensor *tensor = i ? read.steps[0].problem.tensor : job.steps[0].problem.tensor;
        /* conv is [2, 2 * 5 + 3 * 4], a and b [2, 3], A_log and dt_bias [3] */
        static const int shares[] = {0, CONV + 1, CONV + 1, DT_BIAS + 1, 0};
        static const int64_t offset[] = {0, 44, 44, 0, 0};
        for (int t = 0; t <= DT_BIAS; t++) {
            ck_assert_int_eq(tensor[t].shares, shares[t]);
            ck_assert_int_eq(tensor[t].offset, offset[t]);
            ck_assert_ptr_eq(tensor[t].data, tensor[shares[t] ? shares[t] - 1 : t].data);
            ck_assert_ptr_nonnull(tensor[t].data);
        }
        ck_assert_uint_eq(tensor[A].bytes, (44 + 6) * 4);
    }
    et_job_free(&read);
    et_job_free(&job);
}
END_TEST

START_TEST(a_buffer_that_is_empty_or_has_an_empty_tensor_reads_back)
{
    struct et_gqa_av params = small;
    struct fixture f;
    struct et_job job;
    struct et_error error = {.text = ""};
    params.context = 0; /* w is [2, 4, 0] */
    for (params.capacity = 0; params.capacity < 2; params.capacity++) {
        make_case(&f, params);
        share_buffer(&f);
        write_job(&f.c, "a", &job);
        et_job_free(&job);
        ck_assert_msg(et_job_read("a", &job, &error) == ET_OK, "%s", error.text);
        ck_assert_uint_eq(tensor_of(&job, W)->bytes, params.capacity ? 12 : 0);
        ck_assert_uint_eq(tensor_of(&job, V)->bytes, params.capacity ? 12 : 0);
        et_job_free(&job);
    }
}
END_TEST

START_TEST(the_steps_of_a_view_have_each_its_own)
{
    struct fixture f;
    struct et_job job;
    make_case(&f, small);
    f.c.layout[V] = (struct et_layout){.given = true, .view_of = W + 1};
    f.c.step_count = 2;
    f.steps[1] = f.steps[0];
    give_constant(&f.steps[0].data[W], 1);
    give_constant(&f.steps[1].data[W], 2);
    write_job(&f.c, "a", &job);
    ck_assert_float_eq(element(&job.steps[0].problem.tensor[V], 1, 0, 1), 1);
    ck_assert_float_eq(element(&job.steps[1].problem.tensor[V], 1, 0, 1), 2);
    et_job_free(&job);
}
END_TEST

START_TEST(a_view_that_is_larger_is_refused)
{
    struct fixture f;
    struct et_job job;
    struct et_error error = {.text = ""};
    make_case(&f, usual); /* w is [4, 4, 8], v [8, 2, 5] */
    f.c.layout[V] = (struct et_layout){.given = true, .view_of = W + 1};
    ck_assert_int_eq(et_job_write(&f.c, NULL, ET_FILL_NORMAL, NULL, 1, NULL, "a", &job, &error), ET_REFUSED);
    ck_assert_str_eq(error.text, "v is a view of w, and its capacity is 8, above q_heads = 4");
}
END_TEST

START_TEST(a_description_says_whose_buffer_it_is)
{
    struct fixture f;
    struct et_job job;
    char found[2000];
    make_case(&f, small);
    share_buffer(&f);
    write_job(&f.c, "a", &job);
    et_job_free(&job);
    read_text("a/job.json", found, sizeof found);
    ck_assert(strstr(found,
                     "\"w\": {\"role\": \"input\", \"dtype\": \"f32\", \"size\": [2, 4, 4], \"stride\": "
                     "[16, 4, 1], \"offset\": 0, \"elements\": 38},\n"));
    ck_assert(strstr(found,
                     "\"v\": {\"role\": \"input\", \"dtype\": \"f32\", \"size\": [2, 1, 3], \"stride\": "
                     "[3, 3, 1], \"offset\": 32, \"elements\": 38, \"buffer\": \"w\"},\n"));
}
END_TEST

/* Damages to a description with that line. */
static const struct {
    const char *from, *to, *sentence;
} shared_damages[] = {
    {"\"buffer\": \"w\"", "\"buffer\": 1", "buffer is 1, not a string"},
    {"\"buffer\": \"w\"", "\"buffer\": \"v\"", "v cannot lie in a buffer of v"},
    {"\"buffer\": \"w\"", "\"buffer\": \"k\"", "v cannot lie in a buffer of k"},
    {"\"buffer\": \"w\"", "\"buffer\": \"out\"", "v cannot lie in a buffer of out"},
    {"\"elements\": 38}", "\"elements\": 38, \"buffer\": \"v\"}", "w cannot lie in a buffer of v"},
    {"\"elements\": 6}", "\"elements\": 6, \"buffer\": \"w\"}", "out cannot lie in a buffer of w"},
    {"\"elements\": 38, \"buffer\"", "\"elements\": 39, \"buffer\"",
     "the buffer of w is not 39 elements of f32"},
    {"\"dtype\": \"f32\", \"size\": [2, 1, 3]", "\"dtype\": \"f16\", \"size\": [2, 1, 3]",
     "the buffer of w is not 38 elements of f16"},
    {", \"buffer\": \"w\"", "", "has no tensor v"},
};

START_TEST(a_malformed_description_of_a_shared_buffer_is_one_sentence)
{
    struct fixture f;
    struct et_job job;
    char text[2000], damaged[2400];
    struct et_error error = {.text = ""};
    make_case(&f, small);
    share_buffer(&f);
    write_job(&f.c, "a", &job);
    et_job_free(&job);
    read_text("a/job.json", text, sizeof text);
    const char *found = strstr(text, shared_damages[_i].from);
    ck_assert_ptr_nonnull(found);
    snprintf(damaged, sizeof damaged, "%.*s%s%s", (int)(found - text), text, shared_damages[_i].to,
             found + strlen(shared_damages[_i].from));
    replace_text("a/job.json", damaged);
    ck_assert_int_eq(et_job_read("a", &job, &error), ET_INVALID);
    ck_assert_msg(strstr(error.text, shared_damages[_i].sentence), "%s", error.text);
}
END_TEST

START_TEST(a_step_that_shares_otherwise_than_the_first_is_refused)
{
    struct fixture f;
    struct et_job job;
    char text[2000], twice[4200];
    struct et_error error = {.text = ""};
    make_case(&f, small);
    share_buffer(&f);
    write_job(&f.c, "a", &job);
    et_job_free(&job);
    read_text("a/job.json", text, sizeof text);
    const char *steps = strchr(text, '['), *end = strrchr(text, ']');
    ck_assert(steps && end);
    const int n = (int)(end - steps - 1);
    char step[2000];
    snprintf(step, sizeof step, "%.*s", n, steps + 1);
    char *shared = strstr(step, ", \"buffer\": \"w\"");
    ck_assert_ptr_nonnull(shared);
    snprintf(twice, sizeof twice, "%.*s%.*s,%.*s%s%s", (int)(steps + 1 - text), text, n, steps + 1,
             (int)(shared - step), step, shared + strlen(", \"buffer\": \"w\""), end);
    replace_text("a/job.json", twice);
    ck_assert_int_eq(et_job_read("a", &job, &error), ET_INVALID);
    ck_assert_msg(strstr(error.text, "v lies in another buffer than in step 0"), "%s", error.text);
}
END_TEST

START_TEST(a_job_that_is_parted_has_each_input_by_its_name_and_the_same_digest)
{
    struct fixture f;
    struct et_job job, read;
    struct et_error error = {.text = ""};
    char digest[33];
    make_case(&f, small);
    pad(&f.c.layout[W], 2, 3, 1);
    f.c.layout[V] = (struct et_layout){.given = true, .view_of = W + 1};
    write_job(&f.c, "a", &job);
    memcpy(digest, job.steps[0].digest, sizeof digest);
    ck_assert_msg(et_job_part(&job, NULL, &error) == ET_OK, "%s", error.text);
    ck_assert_str_eq(digest, job.steps[0].digest);
    ck_assert_msg(et_job_read("a", &read, &error) == ET_OK, "%s", error.text);
    const struct et_tensor *w = tensor_of(&read, W), *v = tensor_of(&read, V);
    ck_assert_ptr_ne(v->data, w->data);
    ck_assert_uint_eq(w->bytes, 32 * sizeof(float));
    ck_assert_uint_eq(v->bytes, 6 * sizeof(float));
    ck_assert_int_eq(v->shares, 0);
    const void *data[] = {w->data, v->data, NULL};
    ck_assert_int_eq(et_digest(&read.steps[0].problem, ET_INPUT, data, NULL, digest, &error), ET_OK);
    ck_assert_str_eq(digest, job.steps[0].digest);
    ck_assert_ptr_ne(tensor_of(&job, V)->data, tensor_of(&job, W)->data);
    et_job_free(&read);
    et_job_free(&job);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("job");
    TCase *tests = tcase_create("jobs");
    tcase_add_checked_fixture(tests, enter_folder, leave_folder);
    tcase_add_test(tests, elements_lie_at_their_strides_and_poison_everywhere_else);
    tcase_add_test(tests, nan_poison_is_quiet_and_no_constant);
    tcase_add_test(tests, large_poison_is_1e30_or_the_largest_finite_value);
    tcase_add_test(tests, rows_that_exist_for_alignment_are_poison_and_lanes_are_zero);
    tcase_add_test(tests, a_constant_given_by_the_case_is_itself_and_the_runs_fill_is_the_operators);
    tcase_add_test(tests, values_are_rounded_once);
    tcase_add_test(tests, values_may_cover_leading_dimensions);
    tcase_add_test(tests, the_seed_moves_what_has_none_of_its_own);
    tcase_add_test(tests, any_number_of_threads_makes_the_same_bytes);
    tcase_add_test(tests, a_file_gives_data_elements_whether_it_has_the_others_or_not);
    tcase_add_test(tests, a_nan_of_a_file_of_the_same_type_keeps_its_payload);
    tcase_add_test(tests, a_file_that_does_not_fit_is_refused);
    tcase_add_test(tests, the_digest_is_of_data_elements_in_normative_order);
    tcase_add_test(tests, the_digest_of_nothing_is_xxh3s);
    tcase_add_test(tests, the_digest_depends_on_neither_layout_nor_poison_nor_room);
    tcase_add_test(tests, the_digest_takes_every_nan_for_the_same);
    tcase_add_test(tests, a_job_reads_back_as_it_was_written);
    tcase_add_test(tests, a_job_is_read_only_and_may_be_written_again);
    tcase_add_test(tests, a_twin_has_its_own_params_and_poison);
    tcase_add_test(tests, a_shape_that_is_refused_writes_no_job);
    tcase_add_test(tests, a_description_is_this_text);
    tcase_add_loop_test(tests, a_malformed_description_is_one_sentence, 0, sizeof damages / sizeof *damages);
    tcase_add_test(tests, a_job_of_another_operator_reads_back_and_its_types_are_checked);
    tcase_add_test(tests, strides_whose_products_wrap_are_beyond_the_buffer);
    tcase_add_test(tests, no_turn_of_a_loop_begins_once_it_is_stopped);
    tcase_add_test(tests, a_job_that_is_stopped_leaves_no_inputs);
    tcase_add_test(tests, a_job_without_its_files_is_refused);
    tcase_add_test(tests, outputs_come_back_as_whole_buffers);
    tcase_add_test(tests, outputs_that_are_not_the_jobs_are_refused);
    tcase_add_test(tests, a_folder_is_removed_with_what_is_in_it);
    tcase_add_test(tests, a_view_is_the_first_elements_of_what_it_is_a_view_of);
    tcase_add_test(tests, what_a_view_covers_is_data_and_what_is_zero_for_it_is_zero);
    tcase_add_test(tests, inputs_of_one_buffer_lie_one_behind_the_other_each_as_it_is_laid_out);
    tcase_add_test(tests, the_digest_does_not_depend_on_who_shares_a_buffer);
    tcase_add_test(tests, a_view_of_an_input_in_a_buffer_lies_in_it_too);
    tcase_add_test(tests, a_buffer_that_is_empty_or_has_an_empty_tensor_reads_back);
    tcase_add_test(tests, the_steps_of_a_view_have_each_its_own);
    tcase_add_test(tests, a_view_that_is_larger_is_refused);
    tcase_add_test(tests, a_description_says_whose_buffer_it_is);
    tcase_add_loop_test(tests, a_malformed_description_of_a_shared_buffer_is_one_sentence, 0,
                        sizeof shared_damages / sizeof *shared_damages);
    tcase_add_test(tests, a_step_that_shares_otherwise_than_the_first_is_refused);
    tcase_add_test(tests, a_job_that_is_parted_has_each_input_by_its_name_and_the_same_digest);
    suite_add_tcase(suite, tests);
    return suite;
}
