/* What resolve answers and plan launches, without any OpenCL. */
#include <stdio.h>
#include <string.h>

#include "../ocl/ocl.h"
#include "../ocl/port.h"
#include "suite.h"

static const struct et_operator *gqa_av(void)
{
    return et_operator_named("gqa_av");
}

/* A problem without data: resolve looks at shapes only. */
static struct et_problem shaped(const struct et_gqa_av *params)
{
    struct et_problem problem = {.op = gqa_av(), .params = params};
    struct et_error error;
    ck_assert_msg(problem.op->shape(params, problem.tensor, &error) == ET_OK, "%s", error.text);
    for (int t = 0; problem.op->tensors[t].name; t++)
        ck_assert(et_tensor_pack(&problem.tensor[t]));
    return problem;
}

static const struct row {
    const char *variant;
    struct et_gqa_av params; /* q_heads kv_heads head_dim query_length context capacity */
    enum et_status status;
    const char *says;    /* of the sentence, where there is one */
    int32_t depth;       /* 4 ceil(floor(C/4) / 64), 4 more for a tail, 6 for the tree */
    size_t groups[2];    /* ceil(D / 4) by heads: Hq or Hkv */
    const char *options; /* of the plan */
} rows[] = {
    /* Llama 3.2 1B at 2048: 512 quads, 8 to a partial. 16 x 32 groups against 16 x 8. */
    {"per_head", {32, 8, 64, 1, 2048, 2048}, ET_OK, NULL, 38, {16, 32}, "-D GROUP_SIZE=1"},
    {"gqa", {32, 8, 64, 1, 2048, 2048}, ET_OK, NULL, 38, {16, 8}, "-D GROUP_SIZE=4"},
    /* MHA: auto dispatch would never pick gqa, but forced it is right. */
    {"per_head", {16, 16, 128, 1, 256, 256}, ET_OK, NULL, 10, {32, 16}, "-D GROUP_SIZE=1"},
    {"gqa", {16, 16, 128, 1, 256, 256}, ET_OK, NULL, 10, {32, 16}, "-D GROUP_SIZE=1"},
    /* The cap is 8, included. */
    {"gqa", {8, 1, 128, 1, 1, 1}, ET_OK, NULL, 10, {32, 1}, "-D GROUP_SIZE=8"},
    {"gqa", {64, 8, 64, 1, 4, 4}, ET_OK, NULL, 10, {16, 8}, "-D GROUP_SIZE=8"},
    {"gqa",
     {9, 1, 64, 1, 4, 4},
     ET_REFUSED,
     "q_heads = 9 over kv_heads = 1 is a group of 9, must be at most 8",
     0,
     {0},
     NULL},
    {"gqa",
     {128, 8, 64, 1, 4, 4},
     ET_REFUSED,
     "q_heads = 128 over kv_heads = 8 is a group of 16, must be at most 8",
     0,
     {0},
     NULL},
    {"per_head", {128, 8, 64, 1, 4, 4}, ET_OK, NULL, 10, {16, 128}, "-D GROUP_SIZE=1"},
    /* Heads that do not divide. */
    {"gqa",
     {7, 2, 64, 1, 4, 4},
     ET_REFUSED,
     "q_heads = 7 over kv_heads = 2 is a group of 3.5, must be whole and at most 8",
     0,
     {0},
     NULL},
    {"gqa",
     {2, 8, 64, 1, 4, 4},
     ET_REFUSED,
     "q_heads = 2 over kv_heads = 8 is a group of 0.25, must be whole and at most 8",
     0,
     {0},
     NULL},
    {"per_head", {7, 2, 64, 1, 4, 4}, ET_OK, NULL, 10, {16, 7}, "-D GROUP_SIZE=1"},
    {"per_head", {2, 8, 64, 1, 4, 4}, ET_OK, NULL, 10, {16, 2}, "-D GROUP_SIZE=1"},
    /* Decode only. */
    {"per_head", {8, 2, 64, 2, 4, 4}, ET_REFUSED, "query_length is 2, must be 1 (decode)", 0, {0}, NULL},
    {"gqa", {8, 2, 64, 7, 4, 4}, ET_REFUSED, "query_length is 7, must be 1 (decode)", 0, {0}, NULL},
    /* Depth at the edges: none, tail alone, one quad, quad and tail, 64 quads, 64 and tail, 65, many. */
    {"gqa", {8, 2, 64, 1, 0, 0}, ET_OK, NULL, 6, {16, 2}, "-D GROUP_SIZE=4"},
    {"gqa", {8, 2, 64, 1, 0, 16}, ET_OK, NULL, 6, {16, 2}, "-D GROUP_SIZE=4"},
    {"gqa", {8, 2, 64, 1, 3, 3}, ET_OK, NULL, 10, {16, 2}, "-D GROUP_SIZE=4"},
    {"gqa", {8, 2, 64, 1, 5, 5}, ET_OK, NULL, 14, {16, 2}, "-D GROUP_SIZE=4"},
    {"gqa", {8, 2, 64, 1, 257, 300}, ET_OK, NULL, 14, {16, 2}, "-D GROUP_SIZE=4"},
    {"gqa", {8, 2, 64, 1, 260, 300}, ET_OK, NULL, 14, {16, 2}, "-D GROUP_SIZE=4"},
    {"gqa", {8, 2, 64, 1, 131072, 131072}, ET_OK, NULL, 2054, {16, 2}, "-D GROUP_SIZE=4"},
    /* Head dims that are no multiple of 4. */
    {"gqa", {8, 2, 1, 1, 4, 4}, ET_OK, NULL, 10, {1, 2}, "-D GROUP_SIZE=4"},
    {"per_head", {8, 2, 101, 1, 4, 4}, ET_OK, NULL, 10, {26, 8}, "-D GROUP_SIZE=1"},
};

static const struct et_ocl_variant *variant_named(const char *name)
{
    const struct et_variant *variant = et_variant_named(&et_ocl, "gqa_av", name);
    ck_assert_ptr_nonnull(variant);
    return (const struct et_ocl_variant *)variant;
}

START_TEST(every_shape_is_claimed_or_refused_in_one_sentence)
{
    const struct row *row = &rows[_i];
    const struct et_ocl_variant *variant = variant_named(row->variant);
    const struct et_device device = et_device_unlimited();
    const struct et_problem problem = shaped(&row->params);
    struct et_claim claim;
    struct et_error why = {""};
    ck_assert_int_eq(variant->variant.resolve(&problem, &device, NULL, &claim, &why), row->status);
    if (row->status != ET_OK) {
        ck_assert_msg(strstr(why.text, row->says), "\"%s\" lacks \"%s\"", why.text, row->says);
        return;
    }
    ck_assert_int_eq(claim.arith.depth_sum, row->depth);
    ck_assert_int_eq(claim.arith.sum, ET_F32);
    ck_assert_str_eq(claim.order.name, "ctx64x4");
    ck_assert_int_eq(claim.order.arg[0], ET_F32);
    ck_assert_uint_eq(claim.scratch_bytes, 0);

    struct et_launch launch[ET_LAUNCHES];
    ck_assert_int_eq(variant->plan(&problem, &claim, launch), 1);
    ck_assert_uint_eq(launch[0].groups[0], row->groups[0]);
    ck_assert_uint_eq(launch[0].groups[1], row->groups[1]);
    ck_assert_uint_eq(launch[0].groups[2], 0);
    ck_assert_uint_eq(launch[0].items, 64);
    ck_assert_str_eq(launch[0].options, row->options);
}
END_TEST

/* 32 x 4 x 4 weights, 4 x 8 x 64 values, 32 x 64 outputs, f32: 2048, 8192 and 8192 bytes. */
static const struct et_gqa_av small = {32, 8, 64, 1, 4, 4};

static const struct limited {
    const char *variant;
    int64_t local_memory, allocation, global_memory;
    enum et_status status;
    const char *says;
} limits[] = {
    /* 64 partials of 16 bytes for each of 1 and 4 query heads */
    {"per_head", 1024, 0, 0, ET_OK, NULL},
    {"per_head", 1023, 0, 0, ET_LACKING, "a group takes 1024 bytes of local memory, the device has 1023"},
    {"gqa", 4096, 0, 0, ET_OK, NULL},
    {"gqa", 4095, 0, 0, ET_LACKING, "a group takes 4096 bytes of local memory, the device has 4095"},
    {"gqa", 0, 8192, 0, ET_OK, NULL},
    {"gqa", 0, 8191, 0, ET_LACKING, "v is 8192 bytes, the device allocates 8191 at most"},
    {"gqa", 0, 2047, 0, ET_LACKING, "w is 2048 bytes, the device allocates 2047 at most"},
    {"gqa", 0, 0, 18432, ET_OK, NULL},
    {"gqa", 0, 0, 18431, ET_LACKING, "buffers up to out are 18432 bytes, the device has 18431"},
    {"gqa", -1, -1, -1, ET_OK, NULL},
};

START_TEST(what_a_device_lacks_is_said_with_both_numbers)
{
    const struct limited *row = &limits[_i];
    const struct et_device device = {.local_memory = row->local_memory,
                                     .allocation = row->allocation,
                                     .global_memory = row->global_memory};
    const struct et_problem problem = shaped(&small);
    struct et_claim claim;
    struct et_error why = {""};
    ck_assert_int_eq(variant_named(row->variant)->variant.resolve(&problem, &device, NULL, &claim, &why),
                     row->status);
    ck_assert_str_eq(why.text, row->says ? row->says : "");
}
END_TEST

START_TEST(an_innermost_stride_other_than_1_is_refused_by_tensor)
{
    static const char *const says[] = {
        "gqa_av: the innermost stride of w is 2, must be 1",
        "gqa_av: the innermost stride of v is 2, must be 1",
        "gqa_av: the innermost stride of out is 2, must be 1",
    };
    struct et_problem problem = shaped(&small);
    problem.tensor[_i].stride[2] = 2;
    const struct et_device device = et_device_unlimited();
    struct et_claim claim;
    struct et_error why = {""};
    ck_assert_int_eq(variant_named("gqa")->variant.resolve(&problem, &device, NULL, &claim, &why),
                     ET_REFUSED);
    ck_assert_str_eq(why.text, says[_i]);
}
END_TEST

START_TEST(an_unknown_variant_has_no_row)
{
    ck_assert_ptr_null(et_variant_named(&et_ocl, "gqa_av", "gqa_"));
    ck_assert_ptr_null(et_variant_named(&et_ocl, "gqa", "gqa"));
}
END_TEST

/*
 * nan | (pattern & (sign | payload)), the pattern 0x2aaa2a2a for even repeats and its complement for odd
 * ones: f16 0x7e00 | (0x2a2a & 0x81ff) = 0x7e2a, bf16 0x7fc0 | (0x2a2a & 0x803f) = 0x7fea, e4m3fn the sign
 * alone.
 */
START_TEST(poison_is_nan_and_alternates)
{
    static const uint32_t want[ET_DTYPES][2] = {
        [ET_F32] = {0x7fea2a2a, 0xffd5d5d5}, [ET_F16] = {0x7e2a, 0xffd5},    [ET_BF16] = {0x7fea, 0xffd5},
        [ET_F8E4M3FN] = {0x7f, 0xff},        [ET_F8E4M3FNUZ] = {0x80, 0x80},
    };
    for (int repeat = 0; repeat < 4; repeat++) {
        ck_assert_uint_eq(et_poison((enum et_dtype)_i, repeat), want[_i][repeat % 2]);
        ck_assert(et_is_nan((enum et_dtype)_i, et_poison((enum et_dtype)_i, repeat)));
    }
}
END_TEST

START_TEST(resolving_maps_no_OpenCL)
{
    const struct et_device device = et_device_unlimited();
    const struct et_problem problem = shaped(&small);
    struct et_claim claim;
    ck_assert_int_eq(variant_named("gqa")->variant.resolve(&problem, &device, NULL, &claim, NULL), ET_OK);
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1000];
    int lines = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        ck_assert_msg(!strstr(line, "libOpenCL"), "%s", line);
        lines++;
    }
    if (maps)
        fclose(maps);
    ck_assert_int_gt(lines, 0);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("ocl_dispatch");
    TCase *resolve = tcase_create("resolve");
    tcase_add_loop_test(resolve, every_shape_is_claimed_or_refused_in_one_sentence, 0,
                        (int)(sizeof rows / sizeof rows[0]));
    tcase_add_loop_test(resolve, what_a_device_lacks_is_said_with_both_numbers, 0,
                        (int)(sizeof limits / sizeof limits[0]));
    tcase_add_loop_test(resolve, an_innermost_stride_other_than_1_is_refused_by_tensor, 0, 3);
    tcase_add_test(resolve, resolving_maps_no_OpenCL);
    tcase_add_test(resolve, an_unknown_variant_has_no_row);
    suite_add_tcase(suite, resolve);
    TCase *poison = tcase_create("poison");
    tcase_add_loop_test(poison, poison_is_nan_and_alternates, 0, ET_DTYPES);
    suite_add_tcase(suite, poison);
    return suite;
}
