/* skinny_gemm: auto's tables, what resolve answers and plan launches, without any OpenCL. */
#include <stdio.h>
#include <string.h>

#include "../ocl/ocl.h"
#include "../ocl/port.h"
#include "suite.h"

enum { WEIGHT, WEIGHT_SCALE, ZERO_POINTS, ACT_SCALE, ACT, BIAS, OUT };

/* As passed to every kernel, in this order; split_k and its sum have one more. */
enum {
    TOKENS,
    OUT_FEATURES,
    IN_FEATURES,
    BIAS_KIND,
    GROUP,
    HAS_ZERO_POINTS,
    LANES,
    WAVES,
    SLOTS,
    STAGED,
    ACT_BYTES,
    SCALARS
};

enum { GENERIC, GFX11 };

static struct et_problem shaped(const struct et_skinny_gemm *params)
{
    struct et_problem problem = {.op = et_operator_named("skinny_gemm"), .params = params};
    ck_assert_ptr_nonnull(problem.op);
    struct et_error error;
    for (int t = 0; problem.op->tensors[t].name; t++)
        problem.tensor[t].dtype = problem.op->tensors[t].dtype;
    ck_assert_msg(problem.op->shape(params, problem.tensor, &error) == ET_OK, "%s", error.text);
    for (int t = 0; problem.op->tensors[t].name; t++)
        ck_assert(et_tensor_pack(&problem.tensor[t]));
    return problem;
}

static const struct et_ocl_variant *variant_named(const char *name)
{
    const struct et_variant *variant = et_variant_named(&et_ocl, "skinny_gemm", name);
    ck_assert_ptr_nonnull(variant);
    return (const struct et_ocl_variant *)variant;
}

/* ---- auto ---- */

/* "WvPrGrp/YT/UN/AC kernel wACTIVE" at `units` compute units and 64 KiB. */
static void say(const struct et_skinny_gemm *params, int64_t units, int64_t table, char *text, size_t bytes)
{
    const struct et_problem problem = shaped(params);
    const int64_t knob[] = {units, 65536, table};
    const struct et_skinny_gemm_choice c = et_skinny_gemm_dispatch(&problem, knob);
    snprintf(text, bytes, "%d/%d/%d/%d %s w%d", c.waves, c.ytile, c.unroll, c.a_chunk,
             c.variant->variant.name, c.active);
}

/* The benchmark's layers on 20 compute units with the gfx11 table, for 1 to 4 tokens. */
static const struct layer {
    const char *name;
    int64_t m, k;
    const char *want[4];
} layers[] = {
    {"Qwen3-4B qkv",
     6144,
     2560,
     {"16/4/1/8 sml w16", "16/4/1/8 sml w16", "16/4/1/8 sml w16", "16/4/1/8 sml w16"}},
    {"Qwen3-4B o",
     2560,
     4096,
     {"16/1/4/32 sml w16", "16/1/2/32 sml w16", "16/1/2/32 sml w16", "16/1/4/16 sml w16"}},
    {"Qwen3-4B gate_up",
     19456,
     2560,
     {"16/4/1/8 sml w16", "16/4/1/8 sml w16", "16/4/1/8 sml w16", "16/4/1/8 sml w16"}},
    {"Qwen3-4B down",
     2560,
     9728,
     {"16/4/1/8 sml w16", "16/4/1/8 sml w16", "16/4/1/8 sml w16", "16/4/1/8 mid w16"}},
    {"Qwen3-4B lm_head",
     151936,
     2560,
     {"16/4/1/8 sml w16", "16/4/1/8 sml w16", "16/4/1/8 sml w16", "16/4/1/8 sml w16"}},
    {"Q2.5VL7B qkv",
     4608,
     3584,
     {"16/4/1/8 sml w15", "16/4/1/8 sml w15", "16/4/1/8 sml w15", "16/4/1/8 sml w15"}},
    {"Q2.5VL7B o",
     3584,
     3584,
     {"16/4/1/8 sml w15", "16/4/1/8 sml w15", "16/4/1/8 sml w15", "16/4/1/8 sml w15"}},
    {"Q2.5VL7B gate_up",
     37888,
     3584,
     {"16/4/1/8 sml w16", "16/4/1/8 sml w16", "16/4/1/8 sml w16", "16/4/1/8 sml w16"}},
    {"Q2.5VL7B down",
     3584,
     18944,
     {"16/4/1/8 sml w15", "16/4/1/8 mid w15", "16/4/1/8 big w15", "16/4/1/8 big w15"}},
    {"Q2.5VL7B lm_head",
     152064,
     3584,
     {"16/4/1/8 sml w16", "16/4/1/8 sml w16", "16/4/1/8 sml w16", "16/4/1/8 sml w16"}},
    {"Q3.5-35B router",
     256,
     2048,
     {"32/1/8/16 sml w20", "16/1/2/32 sml w13", "16/1/2/32 sml w13", "16/1/4/16 sml w13"}},
    {"Q3.5-35B sh gate_up",
     1024,
     2048,
     {"32/1/8/16 sml w26", "16/1/2/32 sml w13", "16/1/2/32 sml w13", "16/1/4/16 sml w13"}},
    {"Q3.5-35B sh down",
     2048,
     512,
     {"16/2/4/8 sml w13", "16/2/4/8 sml w13", "16/2/4/8 sml w13", "16/2/4/8 sml w13"}},
    {"Q3.5-35B lm_head",
     248320,
     2048,
     {"32/1/8/16 sml w32", "16/1/2/32 sml w16", "16/1/2/32 sml w16", "16/1/4/16 sml w16"}},
    {"L8B q/o",
     4096,
     4096,
     {"16/1/4/32 sml w16", "32/1/2/32 sml w30", "16/1/2/32 sml w16", "16/1/4/16 sml w16"}},
    {"L8B qkv",
     6144,
     4096,
     {"16/1/4/32 sml w16", "32/1/2/32 sml w31", "16/1/2/32 sml w16", "16/1/4/16 sml w16"}},
    {"L8B gate_up",
     28672,
     4096,
     {"16/1/4/32 sml w16", "32/1/2/32 sml w32", "16/1/2/32 sml w16", "16/1/4/16 sml w16"}},
    {"L8B down",
     4096,
     14336,
     {"16/1/4/16 sml w16", "32/2/4/16 sml w26", "16/1/4/16 big w16", "16/1/4/16 big w16"}},
    {"L8B lm_head",
     128256,
     4096,
     {"16/1/4/32 sml w16", "32/1/2/32 sml w32", "16/1/2/32 sml w16", "16/1/4/16 sml w16"}},
};

enum { LAYERS = sizeof layers / sizeof *layers };

START_TEST(gfx11_takes_the_seed_s_kernel_and_knobs_for_its_76_benchmarks)
{
    const struct layer *layer = &layers[_i];
    for (int n = 1; n <= 4; n++) {
        const struct et_skinny_gemm params = {n, layer->m, layer->k, ET_BIAS_NONE, 0, 0};
        char got[60];
        say(&params, 20, GFX11, got, sizeof got);
        ck_assert_msg(strcmp(got, layer->want[n - 1]) == 0, "%s, N %d: %s, want %s", layer->name, n, got,
                      layer->want[n - 1]);
    }
}
END_TEST

START_TEST(of_76_there_are_40_21_and_15_a_chunks_and_70_2_and_4_kernels)
{
    int chunks[33] = {0}, sml = 0, mid = 0, big = 0;
    for (int i = 0; i < LAYERS; i++)
        for (int n = 1; n <= 4; n++) {
            const struct et_skinny_gemm params = {n, layers[i].m, layers[i].k, ET_BIAS_NONE, 0, 0};
            const struct et_problem problem = shaped(&params);
            const int64_t knob[] = {20, 65536, GFX11};
            const struct et_skinny_gemm_choice c = et_skinny_gemm_dispatch(&problem, knob);
            chunks[c.a_chunk]++;
            sml += c.variant == &et_ocl_skinny_gemm_sml;
            mid += c.variant == &et_ocl_skinny_gemm_mid;
            big += c.variant == &et_ocl_skinny_gemm_big;
            ck_assert_int_eq(c.swap, c.a_chunk != 32); /* a_chunk 32 keeps local memory */
        }
    ck_assert_int_eq(chunks[8], 40);
    ck_assert_int_eq(chunks[32], 21);
    ck_assert_int_eq(chunks[16], 15);
    ck_assert_int_eq(sml, 70);
    ck_assert_int_eq(mid, 2);
    ck_assert_int_eq(big, 4);
}
END_TEST

static const struct rule {
    int64_t units, table;
    struct et_skinny_gemm params;
    const char *want;
} rules[] = {
    /* generic: ceil(M / 80) is 1, 2, 8, 9, 12, 13; 4 tokens, 1 token, act beyond 64 KiB */
    {20, GENERIC, {4, 80, 512, ET_BIAS_NONE, 0, 0}, "16/1/4/8 sml w4"},
    {20, GENERIC, {4, 82, 512, ET_BIAS_NONE, 0, 0}, "16/2/2/8 sml w4"},
    {20, GENERIC, {4, 640, 512, ET_BIAS_NONE, 0, 0}, "16/2/2/8 sml w16"},
    {20, GENERIC, {4, 642, 512, ET_BIAS_NONE, 0, 0}, "16/3/2/8 sml w11"},
    {20, GENERIC, {4, 961, 512, ET_BIAS_NONE, 0, 0}, "16/4/1/8 mid w13"},
    {20, GENERIC, {3, 964, 512, ET_BIAS_NONE, 0, 0}, "16/4/2/8 sml w13"},
    {20, GENERIC, {1, 964, 512, ET_BIAS_NONE, 0, 0}, "16/2/2/8 sml w13"},
    {20, GENERIC, {4, 964, 8200, ET_BIAS_NONE, 0, 0}, "16/2/2/8 mid w13"},
    /* L = 32768: N K = 32768 is sml; 39320 = floor(1.2 L) to 8 is mid, 39328 big */
    {20, GENERIC, {1, 964, 32768, ET_BIAS_NONE, 0, 0}, "16/2/2/8 sml w13"},
    {20, GENERIC, {1, 965, 32768, ET_BIAS_NONE, 0, 0}, "16/2/2/8 mid w13"},
    {20, GENERIC, {1, 964, 32776, ET_BIAS_NONE, 0, 0}, "16/2/2/8 mid w13"},
    {20, GENERIC, {1, 964, 39320, ET_BIAS_NONE, 0, 0}, "16/2/2/8 mid w13"},
    {20, GENERIC, {1, 964, 39328, ET_BIAS_NONE, 0, 0}, "16/2/2/8 big w13"},
    /* 5 to 16 tokens take the row of 4, and the capacity of their own number */
    {20, GFX11, {16, 4096, 2048, ET_BIAS_NONE, 0, 0}, "16/1/4/16 sml w16"},
    {20, GFX11, {16, 4096, 4096, ET_BIAS_NONE, 0, 0}, "16/1/4/16 big w16"},
    {20, GFX11, {17, 4096, 2048, ET_BIAS_NONE, 0, 0}, "0/0/0/0 naive w0"},
    /* in_features no multiple of a_chunk */
    {20, GFX11, {4, 4096, 2049, ET_BIAS_NONE, 0, 0}, "0/0/0/0 naive w0"},
    {20, GFX11, {1, 1, 1, ET_BIAS_NONE, 0, 0}, "0/0/0/0 naive w0"},
    /* rows 1, 3, 4, 10, 13, 14 and 15 of gfx11 */
    {20, GFX11, {1, 80, 2048, ET_BIAS_NONE, 0, 0}, "16/1/4/8 sml w4"},
    {20, GFX11, {1, 81, 4608, ET_BIAS_NONE, 0, 0}, "16/4/1/8 mid w4"},
    {20, GFX11, {2, 160, 8192, ET_BIAS_NONE, 0, 0}, "32/1/2/32 sml w20"},
    {20, GFX11, {2, 160, 1032, ET_BIAS_NONE, 0, 0}, "16/1/4/8 sml w8"},
    {20, GFX11, {4, 160, 9216, ET_BIAS_NONE, 0, 0}, "16/2/4/8 mid w4"},
    {20, GFX11, {4, 160, 9224, ET_BIAS_NONE, 0, 0}, "16/1/4/8 mid w8"},
    {20, GFX11, {1, 160, 9224, ET_BIAS_NONE, 0, 0}, "16/1/2/8 sml w8"},
    {20, GFX11, {3, 160, 9224, ET_BIAS_NONE, 0, 0}, "16/1/1/8 sml w8"},
};

START_TEST(the_first_row_that_holds_is_taken)
{
    const struct rule *rule = &rules[_i];
    char got[60];
    say(&rule->params, rule->units, rule->table, got, sizeof got);
    ck_assert_str_eq(got, rule->want);
}
END_TEST

START_TEST(padding_of_act_counts_against_the_capacity)
{
    const struct et_skinny_gemm params = {4, 964, 8192, ET_BIAS_NONE, 0, 0};
    struct et_problem problem = shaped(&params);
    const int64_t knob[] = {20, 65536, GENERIC};
    ck_assert_ptr_eq(et_skinny_gemm_dispatch(&problem, knob).variant, &et_ocl_skinny_gemm_sml);
    problem.tensor[ACT].stride[0]++;
    ck_assert_ptr_eq(et_skinny_gemm_dispatch(&problem, knob).variant, &et_ocl_skinny_gemm_mid);
}
END_TEST

START_TEST(auto_claims_the_variant_that_runs_and_launches_its_row)
{
    const struct et_skinny_gemm params = {1, 256, 2048, ET_BIAS_NONE, 0, 0};
    const struct et_problem problem = shaped(&params);
    const struct et_ocl_variant *v = variant_named("auto");
    const struct et_device device = {.compute_units = 2};
    struct et_claim claim;
    struct et_launch launch[ET_LAUNCHES];
    ck_assert_int_eq(v->variant.resolve(&problem, &device, NULL, &claim, NULL), ET_OK);
    ck_assert_str_eq(claim.variant, "sml");
    ck_assert_str_eq(claim.order.name, "lanes");
    ck_assert_int_eq(claim.order.arg[0], 32);
    ck_assert_int_eq(claim.order.arg[1], 16);
    ck_assert_int_eq(claim.knob[0], 20);
    ck_assert_int_eq(v->plan(&problem, &claim, launch), 1);
    ck_assert_str_eq(launch[0].kernel, "skinny_gemm_sml");
    ck_assert_str_eq(launch[0].options, "-D YTILE=1 -D TOKENS=1 -D A_CHUNK=16 -D UNROLL=8");
    ck_assert_uint_eq(launch[0].items, 20 * 32);
}
END_TEST

/* 4 x 8192 of bf16 are 64 KiB: sml by the table, and more than the device has. */
START_TEST(auto_takes_the_next_kernel_where_local_memory_is_short)
{
    static const char *const fast[] = {"auto", "mid", "big"};
    const struct et_skinny_gemm params = {4, 256, 8192, ET_BIAS_NONE, 0, 0};
    const struct et_problem problem = shaped(&params);
    const struct et_device device = {.compute_units = 2, .local_memory = 49152};
    struct et_claim claim;
    struct et_launch launch[ET_LAUNCHES];
    for (int i = 0; i < 3; i++) {
        const struct et_ocl_variant *v = variant_named(fast[i]);
        ck_assert_int_eq(v->variant.resolve(&problem, &device, NULL, &claim, NULL), ET_OK);
        ck_assert_int_eq(v->plan(&problem, &claim, launch), 1);
        /* NVIDIA's driver keeps 16 bytes of the 49152 for itself */
        ck_assert_uint_le(launch[0].local_bytes, 49152 - 16);
        ck_assert_uint_ge(launch[0].local_bytes, 49152 - 4096);
        if (i == 0) {
            ck_assert_str_eq(claim.variant, "mid");
            ck_assert_str_eq(launch[0].kernel, "skinny_gemm_mid");
        }
    }
    const struct et_device none = {.compute_units = 2, .local_memory = 511};
    struct et_error why = {""};
    ck_assert_int_eq(variant_named("auto")->variant.resolve(&problem, &none, NULL, &claim, &why), ET_LACKING);
}
END_TEST

/* ---- What is launched ---- */

#define DEFAULT ET_UNSET

static const struct size {
    const char *name;
    int64_t asked[7];
    struct et_skinny_gemm params;
    size_t groups[2], items;
    uint64_t slots, staged, act_bytes;
    size_t local_bytes;
    const char *options;
} sizes[] = {
    /* 2 units of 16 waves, 4 waves a group: 8 groups of 160 / 4 = 40. 2 x 1024 of bf16; 4 waves x 32 lanes x
       4 bytes */
    {"sml",
     {DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT},
     {2, 160, 1024, ET_BIAS_NONE, 0, 0},
     {8, 0},
     128,
     4,
     2048,
     4096,
     4096 + 512,
     "-D YTILE=1 -D TOKENS=2 -D A_CHUNK=8 -D UNROLL=1"},
    /* 5 tiles of 3 rows: 5 groups of a wave of 64; 3 rows x 8 tokens are 24 sums of 64 lanes */
    {"mid",
     {64, 16, 1, 3, 2, 1, 0},
     {5, 13, 1024, ET_BIAS_NONE, 0, 0},
     {5, 0},
     64,
     24,
     5120,
     10240,
     10240 + 6144,
     "-D YTILE=3 -D TOKENS=8 -D A_CHUNK=16 -D UNROLL=2 -D DOT=1"},
    /* 64 KiB - 4 x 128 bytes are 32512 elements, whole chunks */
    {"mid",
     {DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT},
     {4, 160, 9728, ET_BIAS_NONE, 0, 0},
     {8, 0},
     128,
     4,
     32512,
     65024,
     65536,
     "-D YTILE=1 -D TOKENS=4 -D A_CHUNK=8 -D UNROLL=1"},
    /* 32512 / 4 = 8128 columns, to steps of 256: 7936 */
    {"big",
     {DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT},
     {4, 160, 9728, ET_BIAS_NONE, 0, 0},
     {8, 0},
     128,
     4,
     7936,
     63488,
     63488 + 512,
     "-D YTILE=1 -D TOKENS=4 -D A_CHUNK=8 -D UNROLL=1"},
    /* a third of 9728 / 256 = 38 steps: 13, 3328 columns */
    {"split_k",
     {DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, 3},
     {4, 160, 9728, ET_BIAS_NONE, 0, 0},
     {8, 3},
     128,
     4,
     3328,
     26624,
     26624 + 512,
     "-D YTILE=1 -D TOKENS=4 -D A_CHUNK=8 -D UNROLL=1"},
    /* 17 x 160 outputs, 64 a group; no waves */
    {"naive",
     {DEFAULT},
     {17, 160, 7, ET_BIAS_NONE, 0, 0},
     {43, 0},
     64,
     16,
     0,
     0,
     0,
     "-D YTILE=1 -D TOKENS=16 -D A_CHUNK=8 -D UNROLL=1"},
};

START_TEST(every_shape_is_launched_whole)
{
    const struct size *size = &sizes[_i];
    const struct et_problem problem = shaped(&size->params);
    const struct et_ocl_variant *v = variant_named(size->name);
    const struct et_device device = {.compute_units = 2};
    struct et_claim claim;
    struct et_error why = {""};
    struct et_launch launch[ET_LAUNCHES];
    int64_t asked[ET_PARAMS];
    memcpy(asked, size->asked, sizeof size->asked);
    ck_assert_msg(v->variant.resolve(&problem, &device, asked, &claim, &why) == ET_OK, "%s", why.text);
    const bool split = strcmp(size->name, "split_k") == 0;
    ck_assert_int_eq(v->plan(&problem, &claim, launch), split ? 2 : 1);
    ck_assert_uint_eq(launch[0].groups[0], size->groups[0]);
    ck_assert_uint_eq(launch[0].groups[1], size->groups[1]);
    ck_assert_uint_eq(launch[0].items, size->items);
    ck_assert_uint_eq(launch[0].scalar[SLOTS], size->slots);
    ck_assert_uint_eq(launch[0].scalar[STAGED], size->staged);
    ck_assert_uint_eq(launch[0].scalar[ACT_BYTES], size->act_bytes);
    ck_assert_uint_eq(launch[0].local_bytes, size->local_bytes);
    ck_assert_str_eq(launch[0].options, size->options);
    ck_assert_int_eq(launch[0].scalars, split ? SCALARS + 1 : SCALARS);
    ck_assert_uint_eq(claim.scratch_bytes, split ? 3 * 4 * 160 * 4 : 0);
    if (split) {
        ck_assert_uint_eq(launch[0].scalar[SCALARS], 3328);
        ck_assert_uint_eq(launch[1].groups[0], 10); /* 4 x 160 outputs, 64 a group */
        ck_assert_uint_eq(launch[1].scalar[SCALARS], 3);
    }
}
END_TEST

/* ---- What is refused ---- */

static const struct refusal {
    const char *name;
    int64_t asked[7];
    struct et_skinny_gemm params;
    struct et_device device;
    enum et_status status;
    const char *says;
} refusals[] = {
    {"sml",
     {48, 8, 0, 1, 1, 4, 0},
     {1, 8, 64, ET_BIAS_NONE, 0, 0},
     {.name = ""},
     ET_REFUSED,
     "lanes is 48, must be 32 or 64"},
    {"mid",
     {32, 24, 0, 1, 1, 4, 0},
     {1, 8, 96, ET_BIAS_NONE, 0, 0},
     {.name = ""},
     ET_REFUSED,
     "a_chunk is 24, must be 8, 16 or 32"},
    {"big",
     {32, 8, 0, 1, 3, 4, 0},
     {1, 8, 64, ET_BIAS_NONE, 0, 0},
     {.name = ""},
     ET_REFUSED,
     "unroll is 3, must be 1, 2, 4 or 8"},
    {"sml",
     {32, 8, 0, 1, 1, 4, 0},
     {17, 8, 64, ET_BIAS_NONE, 0, 0},
     {.name = ""},
     ET_REFUSED,
     "tokens is 17, must be at most 16"},
    {"big",
     {32, 16, 0, 1, 1, 4, 0},
     {1, 8, 72, ET_BIAS_NONE, 0, 0},
     {.name = ""},
     ET_REFUSED,
     "in_features is 72, must be a multiple of a_chunk = 16"},
    {"split_k",
     {32, 32, 0, 4, 0, 2},
     {1, 8, 72, ET_BIAS_NONE, 0, 0},
     {.name = ""},
     ET_REFUSED,
     "in_features is 72, must be a multiple of a_chunk = 32"},
    {"sml",
     {32, 8, 0, 3, 1, 4, 0},
     {1, 8, 64, ET_BIAS_NONE, 0, 0},
     {.name = ""},
     ET_REFUSED,
     "out_features is 8, must be a multiple of ytile = 3"},
    /* 2 x 64 x 2 bytes of act, 4 x 32 x 4 of partials */
    {"sml",
     {32, 8, 0, 1, 1, 4, 0},
     {2, 8, 64, ET_BIAS_NONE, 0, 0},
     {.local_memory = 767},
     ET_LACKING,
     "a group takes 768 bytes of local memory, the device has 767"},
    {"mid",
     {32, 8, 0, 1, 1, 4, 0},
     {2, 8, 64, ET_BIAS_NONE, 0, 0},
     {.local_memory = 511},
     ET_LACKING,
     "a group takes 512 bytes of local memory, the device has 511"},
    /* a step of 256 columns x 2 tokens x 2 bytes */
    {"big",
     {32, 8, 0, 1, 1, 4, 0},
     {2, 8, 512, ET_BIAS_NONE, 0, 0},
     {.local_memory = 1535},
     ET_LACKING,
     "a group takes 1536 bytes of local memory, the device has 1535"},
    {"sml",
     {32, 8, 0, 1, 1, 4, 1},
     {2, 8, 64, ET_BIAS_NONE, 0, 0},
     {.vendor_shuffles = 32},
     ET_LACKING,
     "tail subgroup takes exchanges over 32 lanes, the device has them over 0"},
    {"big",
     {64, 8, 0, 1, 1, 4, 2},
     {2, 8, 64, ET_BIAS_NONE, 0, 0},
     {.vendor_shuffles = 32},
     ET_LACKING,
     "tail vendor takes exchanges over 64 lanes, the device has them over 32"},
};

START_TEST(what_does_not_fit_is_named_with_value_and_limit)
{
    const struct refusal *refusal = &refusals[_i];
    const struct et_problem problem = shaped(&refusal->params);
    struct et_claim claim;
    struct et_error why = {""};
    int64_t asked[ET_PARAMS];
    memcpy(asked, refusal->asked, sizeof refusal->asked);
    ck_assert_int_eq(
        variant_named(refusal->name)->variant.resolve(&problem, &refusal->device, asked, &claim, &why),
        refusal->status);
    ck_assert_str_eq(why.text, refusal->says);
}
END_TEST

START_TEST(a_device_without_sub_groups_has_no_exchanges)
{
    struct et_device device = et_device_unlimited();
    ck_assert_int_eq(device.shuffles, 64);
    et_limit_device(&device, &(struct et_ceilings){.no_subgroups = true});
    ck_assert_int_eq(device.shuffles, 0);
    ck_assert_int_eq(device.vendor_shuffles, 0);
}
END_TEST

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

Suite *et_suite(void)
{
    Suite *suite = suite_create("ocl_dispatch_skinny_gemm");
    TCase *resolve = tcase_create("resolve");
    tcase_add_loop_test(resolve, gfx11_takes_the_seed_s_kernel_and_knobs_for_its_76_benchmarks, 0, LAYERS);
    tcase_add_test(resolve, of_76_there_are_40_21_and_15_a_chunks_and_70_2_and_4_kernels);
    tcase_add_loop_test(resolve, the_first_row_that_holds_is_taken, 0, COUNT(rules));
    tcase_add_test(resolve, padding_of_act_counts_against_the_capacity);
    tcase_add_test(resolve, auto_claims_the_variant_that_runs_and_launches_its_row);
    tcase_add_test(resolve, auto_takes_the_next_kernel_where_local_memory_is_short);
    tcase_add_loop_test(resolve, every_shape_is_launched_whole, 0, COUNT(sizes));
    tcase_add_loop_test(resolve, what_does_not_fit_is_named_with_value_and_limit, 0, COUNT(refusals));
    tcase_add_test(resolve, a_device_without_sub_groups_has_no_exchanges);
    suite_add_tcase(suite, resolve);
    return suite;
}
