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

START_TEST(a_buffer_that_inputs_share_counts_once)
{
    /* w as the first 2048 bytes of v: 8192 of both, and 8192 of out. */
    struct et_problem problem = shaped(&small);
    problem.tensor[0].shares = 2;
    problem.tensor[0].bytes = problem.tensor[1].bytes;
    struct et_device device = {.global_memory = 16384};
    struct et_claim claim;
    struct et_error why = {""};
    const struct et_variant *gqa = &variant_named("gqa")->variant;
    ck_assert_int_eq(gqa->resolve(&problem, &device, NULL, &claim, &why), ET_OK);
    device.global_memory = 16383;
    ck_assert_int_eq(gqa->resolve(&problem, &device, NULL, &claim, &why), ET_LACKING);
    ck_assert_str_eq(why.text, "buffers up to out are 16384 bytes, the device has 16383");
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

/*
 * What auto chooses and how many groups that launches: ceil(D / 4) by Hq (per_head) or Hkv (gqa), ceil(
 * ceil(D / 4) / 2) by Hkv (gqa_tile2), ceil(ceil(S / 4) * ceil(D / 4) / 64) by Hq (tiled).
 */
static const struct choice {
    int Hq, Hkv, D, S, C, override;
    const char *variant;
    size_t groups[2];
} choices[] = {
    /* Groups of 1 to 9 and 16; the cap is 8. */
    {3, 3, 12, 1, 5, -1, "per_head", {3, 3}},
    {6, 3, 12, 1, 5, -1, "gqa", {3, 3}},
    {9, 3, 12, 1, 5, -1, "gqa", {3, 3}},
    {12, 3, 12, 1, 5, -1, "gqa", {3, 3}},
    {15, 3, 12, 1, 5, -1, "gqa", {3, 3}},
    {18, 3, 12, 1, 5, -1, "gqa", {3, 3}},
    {21, 3, 12, 1, 5, -1, "gqa", {3, 3}},
    {24, 3, 12, 1, 5, -1, "gqa", {3, 3}},
    {27, 3, 12, 1, 5, -1, "per_head", {3, 27}},
    {48, 3, 12, 1, 5, -1, "per_head", {3, 48}},
    {8, 1, 64, 1, 5, -1, "gqa", {16, 1}},
    {9, 1, 64, 1, 5, -1, "per_head", {16, 9}},
    {1, 1, 1, 1, 1, -1, "per_head", {1, 1}},
    {65535, 1, 4, 1, 1, -1, "per_head", {1, 65535}},
    {65535, 65535, 4, 1, 1, -1, "per_head", {1, 65535}},
    /* Heads that do not divide, and fewer query heads than KV heads. */
    {3, 2, 64, 1, 5, -1, "per_head", {16, 3}},
    {5, 3, 64, 1, 5, -1, "per_head", {16, 5}},
    {7, 4, 64, 1, 5, -1, "per_head", {16, 7}},
    {2, 3, 64, 1, 5, -1, "per_head", {16, 2}},
    {1, 2, 64, 1, 5, -1, "per_head", {16, 1}},
    {2, 8, 64, 1, 5, -1, "per_head", {16, 2}},
    {14, 4, 64, 1, 5, -1, "per_head", {16, 14}},
    /* Models. */
    {32, 8, 64, 1, 2048, -1, "gqa", {16, 8}},
    {24, 8, 128, 1, 2048, -1, "gqa", {32, 8}},
    {32, 8, 128, 1, 2048, -1, "gqa", {32, 8}},
    {64, 8, 128, 1, 2048, -1, "gqa", {32, 8}},
    {128, 8, 128, 1, 2048, -1, "per_head", {32, 128}},
    {40, 8, 128, 1, 2048, -1, "gqa", {32, 8}},
    {32, 32, 96, 1, 2048, -1, "per_head", {24, 32}},
    {40, 10, 128, 1, 2048, -1, "gqa", {32, 10}},
    {14, 2, 64, 1, 2048, -1, "gqa", {16, 2}},
    {12, 2, 128, 1, 2048, -1, "gqa", {32, 2}},
    {28, 4, 128, 1, 2048, -1, "gqa", {32, 4}},
    {16, 8, 128, 1, 2048, -1, "gqa", {32, 8}},
    {64, 4, 128, 1, 2048, -1, "per_head", {32, 64}},
    {16, 2, 256, 1, 2048, -1, "gqa", {64, 2}},
    {32, 2, 256, 1, 2048, -1, "per_head", {64, 32}},
    {24, 4, 256, 1, 2048, -1, "gqa", {64, 4}},
    {8, 1, 512, 1, 2048, -1, "gqa", {128, 1}},
    {9, 3, 64, 1, 2048, -1, "gqa", {16, 3}},
    /* Head dims that are no multiple of 4 or 8. */
    {4, 2, 1, 1, 5, -1, "gqa", {1, 2}},
    {4, 2, 5, 1, 5, -1, "gqa", {2, 2}},
    {4, 4, 100, 1, 5, -1, "per_head", {25, 4}},
    {4, 2, 65536, 1, 5, -1, "gqa", {16384, 2}},
    /* Contexts change nothing. */
    {4, 2, 8, 1, 0, -1, "gqa", {2, 2}},
    {4, 2, 8, 1, 131072, -1, "gqa", {2, 2}},
    /* Several queries: tiled, whatever the heads. */
    {32, 8, 64, 2, 64, -1, "tiled", {1, 32}},
    {32, 8, 64, 16, 64, -1, "tiled", {1, 32}},
    {32, 8, 64, 17, 64, -1, "tiled", {2, 32}},
    {32, 8, 64, 128, 128, -1, "tiled", {8, 32}},
    {32, 8, 64, 512, 512, -1, "tiled", {32, 32}},
    {16, 16, 128, 3, 5, -1, "tiled", {1, 16}},
    {9, 1, 5, 5, 5, -1, "tiled", {1, 9}},
    {3, 2, 100, 11, 5, -1, "tiled", {2, 3}},
    /* Forced; a group of 1 is legal. */
    {32, 8, 64, 1, 5, 0, "per_head", {16, 32}},
    {32, 8, 64, 1, 5, 1, "gqa", {16, 8}},
    {32, 8, 64, 1, 5, 2, "gqa_tile2", {8, 8}},
    {32, 8, 64, 1, 5, 3, "gqa", {16, 8}},
    {4, 4, 12, 1, 5, 0, "per_head", {3, 4}},
    {4, 4, 12, 1, 5, 1, "gqa", {3, 4}},
    {4, 4, 12, 1, 5, 2, "gqa_tile2", {2, 4}},
    {4, 4, 12, 1, 5, 3, "gqa", {3, 4}},
    {8, 2, 100, 1, 5, 2, "gqa_tile2", {13, 2}},
    {8, 2, 4, 1, 5, 2, "gqa_tile2", {1, 2}},
    {27, 3, 12, 1, 5, 0, "per_head", {3, 27}},
    /* Forced where it cannot be. */
    {9, 1, 64, 1, 5, 1, NULL, {0}},
    {9, 1, 64, 1, 5, 2, NULL, {0}},
    {9, 1, 64, 1, 5, 3, NULL, {0}},
    {3, 2, 64, 1, 5, 1, NULL, {0}},
    {3, 2, 64, 1, 5, 2, NULL, {0}},
    {2, 8, 64, 1, 5, 3, NULL, {0}},
    {8, 2, 64, 2, 5, 0, NULL, {0}},
    {8, 2, 64, 2, 5, 1, NULL, {0}},
};

START_TEST(auto_chooses_by_queries_and_heads_unless_forced)
{
    const struct choice *c = &choices[_i];
    const struct et_gqa_av params = {c->Hq, c->Hkv, c->D, c->S, c->C, c->C};
    const struct et_problem problem = shaped(&params);
    const struct et_device device = et_device_unlimited();
    const struct et_ocl_variant *variant = variant_named("auto");
    const int64_t asked = c->override;
    struct et_claim claim, own;
    struct et_error why = {""};
    const enum et_status status = variant->variant.resolve(&problem, &device, &asked, &claim, &why);
    if (!c->variant) {
        char heads[80];
        snprintf(heads, sizeof heads, "q_heads = %d over kv_heads = %d is a group of ", c->Hq, c->Hkv);
        ck_assert_int_eq(status, ET_REFUSED);
        ck_assert_msg(strstr(why.text, c->S > 1 ? "query_length is 2, must be 1" : heads), "%s", why.text);
        return;
    }
    ck_assert_msg(status == ET_OK, "%s", why.text);
    ck_assert_str_eq(et_variant_run(&variant->variant, &claim), c->variant);
    ck_assert_int_eq(claim.knob[0], c->override);
    ck_assert_ptr_eq(et_gqa_av_dispatch(&problem, c->override), variant_named(c->variant));
    ck_assert_int_eq(variant_named(c->variant)->variant.resolve(&problem, &device, NULL, &own, &why), ET_OK);
    ck_assert_str_eq(claim.order.name, own.order.name);
    ck_assert_int_eq(claim.arith.depth_sum, own.arith.depth_sum);

    struct et_launch launch[ET_LAUNCHES];
    char kernel[40];
    snprintf(kernel, sizeof kernel, "gqa_av_%s", c->variant);
    ck_assert_int_eq(variant->plan(&problem, &claim, launch), 1);
    ck_assert_str_eq(launch[0].kernel, kernel);
    ck_assert_uint_eq(launch[0].groups[0], c->groups[0]);
    ck_assert_uint_eq(launch[0].groups[1], c->groups[1]);
}
END_TEST

/* Partials of A = min(ceil(D / 4), splits) quads a group; then a tree an output quad and query head. */
START_TEST(a_split_shares_the_partials_and_adds_them_in_a_second_launch)
{
    static const struct {
        int64_t D, splits;
        size_t across;
    } rows_[] = {{64, 1, 16}, {64, 2, 8}, {64, 8, 2}, {64, 16, 1}, {64, 64, 1}, {100, 8, 4}, {512, 64, 2}};
    for (size_t i = 0; i < sizeof rows_ / sizeof *rows_; i++) {
        const struct et_gqa_av params = {32, 8, rows_[i].D, 1, 1000, 1000};
        const struct et_problem problem = shaped(&params);
        const struct et_device device = et_device_unlimited();
        struct et_claim claim;
        struct et_launch launch[ET_LAUNCHES];
        const struct et_ocl_variant *variant = variant_named("gqa_split");
        ck_assert_int_eq(variant->variant.resolve(&problem, &device, &rows_[i].splits, &claim, NULL), ET_OK);
        /* 64 partials of 16 bytes a quad of outputs */
        ck_assert_uint_eq(claim.scratch_bytes, 32 * (size_t)(rows_[i].D / 4) * 1024);
        ck_assert_int_eq(claim.arith.depth_sum, 22);
        ck_assert_int_eq(variant->plan(&problem, &claim, launch), 2);
        ck_assert_uint_eq(launch[0].groups[0], rows_[i].across);
        ck_assert_uint_eq(launch[0].groups[1], 8);
        ck_assert_uint_eq(launch[0].groups[2], (size_t)rows_[i].splits);
        ck_assert_uint_eq(launch[0].scalar[4], (uint64_t)rows_[i].splits);
        ck_assert_uint_eq(launch[1].groups[0], (size_t)rows_[i].D / 4);
        ck_assert_uint_eq(launch[1].groups[1], 32);
        ck_assert_uint_eq(launch[1].groups[2], 0);
        ck_assert_str_eq(launch[0].options, "-D GROUP_SIZE=4");
        ck_assert_str_eq(launch[1].options, launch[0].options);
    }
}
END_TEST

START_TEST(splits_must_divide_64)
{
    const struct et_problem problem = shaped(&small);
    const struct et_device device = et_device_unlimited();
    for (int64_t splits = 1; splits <= 64; splits++) {
        struct et_claim claim;
        struct et_error why = {""};
        const bool power = splits == 1 || splits == 2 || splits == 4 || splits == 8 || splits == 16 ||
                           splits == 32 || splits == 64;
        ck_assert_int_eq(
            variant_named("gqa_split")->variant.resolve(&problem, &device, &splits, &claim, &why),
            power ? ET_OK : ET_REFUSED);
        ck_assert(power || strstr(why.text, "must divide 64"));
    }
}
END_TEST

START_TEST(no_variant_takes_more_than_16_KiB_of_local_memory)
{
    static const char *const names[] = {"per_head", "gqa", "gqa_tile2", "gqa_split", "tiled", "auto"};
    const struct et_gqa_av largest = {8, 1, 64, 1, 4, 4};
    const struct et_problem problem = shaped(&largest);
    const struct et_device device = {.local_memory = 16384};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct et_claim claim;
        struct et_error why = {""};
        ck_assert_msg(variant_named(names[i])->variant.resolve(&problem, &device, NULL, &claim, &why) ==
                          ET_OK,
                      "%s: %s", names[i], why.text);
    }
    const struct et_device less = {.local_memory = 16383};
    struct et_claim claim;
    ck_assert_int_eq(variant_named("gqa_tile2")->variant.resolve(&problem, &less, NULL, &claim, NULL),
                     ET_LACKING);
}
END_TEST

START_TEST(tiled_is_left_out_of_decode_and_auto_of_everything)
{
    const struct et_gqa_av many = {32, 8, 64, 3, 1000, 1000};
    const struct et_problem decode = shaped(&small), queries = shaped(&many);
    const struct et_variant *tiled = &variant_named("tiled")->variant,
                            *chosen = &variant_named("auto")->variant;
    ck_assert(tiled->left_out(&decode) && !tiled->left_out(&queries));
    ck_assert(chosen->left_out(&decode) && chosen->left_out(&queries));
    struct et_claim claim;
    const struct et_device device = et_device_unlimited();
    ck_assert_int_eq(tiled->resolve(&queries, &device, NULL, &claim, NULL), ET_OK);
    ck_assert_str_eq(claim.order.name, "serial");
    ck_assert_int_eq(claim.arith.depth_sum, 1000);
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
    static const uint32_t want[ET_I8][2] = {
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
    tcase_add_loop_test(resolve, auto_chooses_by_queries_and_heads_unless_forced, 0,
                        (int)(sizeof choices / sizeof choices[0]));
    tcase_add_test(resolve, a_split_shares_the_partials_and_adds_them_in_a_second_launch);
    tcase_add_test(resolve, splits_must_divide_64);
    tcase_add_test(resolve, no_variant_takes_more_than_16_KiB_of_local_memory);
    tcase_add_test(resolve, tiled_is_left_out_of_decode_and_auto_of_everything);
    tcase_add_test(resolve, a_buffer_that_inputs_share_counts_once);
    tcase_add_test(resolve, resolving_maps_no_OpenCL);
    tcase_add_test(resolve, an_unknown_variant_has_no_row);
    suite_add_tcase(suite, resolve);
    TCase *poison = tcase_create("poison");
    tcase_add_loop_test(poison, poison_is_nan_and_alternates, 0, ET_I8);
    suite_add_tcase(suite, poison);
    return suite;
}
