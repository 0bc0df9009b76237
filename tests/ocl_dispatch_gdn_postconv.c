/* gdn_postconv: what resolve answers and plan launches, without any OpenCL. */
#include <stdio.h>
#include <string.h>

#include "../ocl/ocl.h"
#include "../ocl/port.h"
#include "suite.h"

static const char *const names[] = {"per_token_head", "chunked", "chunked_gates", "row", "wave"};

enum { PER_TOKEN_HEAD, CHUNKED, CHUNKED_GATES, ROW, WAVE, VARIANTS };

/* As passed to every kernel, in this order; `row` has one more. */
enum { TOKENS, K_HEADS, V_HEADS, K_HEAD_DIM, V_HEAD_DIM, SLOTS, EPS, Q_SCALE, SCALARS };

static struct et_problem shaped(const struct et_gdn_postconv *params)
{
    struct et_problem problem = {.op = et_operator_named("gdn_postconv"), .params = params};
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
    const struct et_variant *variant = et_variant_named(&et_ocl, "gdn_postconv", name);
    ck_assert_ptr_nonnull(variant);
    return (const struct et_ocl_variant *)variant;
}

static struct et_launch planned(int variant, const struct et_gdn_postconv *params, struct et_claim *claim)
{
    const struct et_problem problem = shaped(params);
    const struct et_device device = et_device_unlimited();
    struct et_error why = {""};
    struct et_launch launch[ET_LAUNCHES];
    const struct et_ocl_variant *v = variant_named(names[variant]);
    ck_assert_msg(v->variant.resolve(&problem, &device, NULL, claim, &why) == ET_OK, "%s", why.text);
    ck_assert_int_eq(v->plan(&problem, claim, launch), 1);
    return launch[0];
}

/* Hk Hv Dk = Dv = 128. The figures of mudler/vllm.cpp#1402, where Hv is 32: 17 -> 49; with gates split, 80.
 */
static const struct seed {
    int64_t v_heads;
    /* Hk + 1; Hk + Hv + 1; Hk + 2 Hv; and of wave Hk + 128 Hv / 32 + ceil(Hv / 32) waves of 32 lanes */
    uint64_t slots[VARIANTS];
} seeds[] = {
    {16, {17, 33, 48, 1, 16 + 64 + 1}},
    {32, {17, 49, 80, 1, 16 + 128 + 1}},
    {48, {17, 65, 112, 1, 16 + 192 + 2}},
    {64, {17, 81, 144, 1, 16 + 256 + 2}},
};

START_TEST(a_token_has_the_items_of_the_seed)
{
    const struct seed *seed = &seeds[_i];
    const struct et_gdn_postconv params = {1, 16, seed->v_heads, 128, 128, 1e-6, 0};
    for (int v = 0; v < VARIANTS; v++) {
        struct et_claim claim;
        const struct et_launch launch = planned(v, &params, &claim);
        ck_assert_uint_eq(launch.scalar[SLOTS], seed->slots[v]);
        /* 17, 49, 80 or 144 items of 256 sit in one group; of wave there are 8 in one */
        ck_assert_uint_eq(launch.groups[0], v == WAVE ? (seed->slots[v] + 7) / 8 : 1);
        ck_assert_uint_eq(launch.items, 256);
    }
}
END_TEST

/*
 * per_token_head: one item copies Hv Dv = 4096 elements. Chunked: no copy is longer than Dk = 128, and what
 * is left to shorten is a head: q and k, 128 elements each, gone through twice, to sum and to scale. wave: 32
 * lanes do that, 512 lanes for 16 heads, and a lane an element of v and a gate.
 */
START_TEST(the_longest_item_does_512_elements_in_place_of_4096)
{
    const struct et_gdn_postconv params = {1, 16, 32, 128, 128, 1e-6, 0};
    ck_assert_int_eq(et_gdn_postconv_work(&params, ET_GDN_PER_TOKEN_HEAD).longest, 4096);
    ck_assert_int_eq(et_gdn_postconv_work(&params, ET_GDN_CHUNKED).longest, 512);
    ck_assert_int_eq(et_gdn_postconv_work(&params, ET_GDN_CHUNKED_GATES).longest, 512);
    struct et_claim claim;
    ck_assert_uint_eq(32 * planned(WAVE, &params, &claim).scalar[SLOTS], 512 + 4096 + 32);
    /* a row of v shorter than a head's work */
    const struct et_gdn_postconv small = {1, 2, 1, 16, 24, 1e-6, 0};
    ck_assert_int_eq(et_gdn_postconv_work(&small, ET_GDN_PER_TOKEN_HEAD).longest, 64);
}
END_TEST

static const struct row {
    struct et_gdn_postconv params;
    uint64_t slots[VARIANTS];
    size_t groups[VARIANTS]; /* ceil(T * slots / 256), or / 8 for wave; row: T */
} rows[] = {
    /* a last chunk that is clipped: 512 elements of v are 300 and 212 */
    {{3, 4, 4, 300, 128, 1e-6, 0}, {5, 7, 10, 1, 21}, {1, 1, 1, 3, 8}},
    /* 3 elements of v are 2 and 1 */
    {{1, 1, 1, 2, 3, 1e-6, 0}, {2, 4, 4, 1, 3}, {1, 1, 1, 1, 1}},
    /* v shorter than one chunk */
    {{1, 1, 1, 128, 3, 1e-6, 0}, {2, 3, 3, 1, 3}, {1, 1, 1, 1, 1}},
    /* the seed's test shape: 96 elements of v are 6 chunks of 16 */
    {{4, 2, 4, 16, 24, 1e-6, 0}, {3, 9, 12, 1, 6}, {1, 1, 1, 4, 3}},
    /* 256 items and one more */
    {{64, 3, 1, 1, 1, 1e-6, 0}, {4, 5, 5, 1, 5}, {1, 2, 2, 64, 40}},
    {{257, 16, 32, 128, 128, 1e-6, 0}, {17, 49, 80, 1, 145}, {18, 50, 81, 257, 4659}},
    /* beyond 2^32 items */
    {{1LL << 32, 16, 32, 128, 128, 1e-6, 0},
     {17, 49, 80, 1, 145},
     {17LL << 24, 49LL << 24, 80LL << 24, 1LL << 32, 145LL << 29}},
};

START_TEST(every_shape_is_launched_whole)
{
    const struct row *row = &rows[_i];
    for (int v = 0; v < VARIANTS; v++) {
        struct et_claim claim;
        const struct et_launch launch = planned(v, &row->params, &claim);
        ck_assert_uint_eq(launch.scalar[SLOTS], row->slots[v]);
        ck_assert_uint_eq(launch.groups[0], row->groups[v]);
        ck_assert_uint_eq(launch.groups[1], 0);
        ck_assert_uint_eq(launch.scalar[TOKENS], (uint64_t)row->params.tokens);
        ck_assert_uint_eq(launch.scalar[K_HEADS], (uint64_t)row->params.k_heads);
        ck_assert_uint_eq(launch.scalar[V_HEADS], (uint64_t)row->params.v_heads);
        ck_assert_uint_eq(launch.scalar[K_HEAD_DIM], (uint64_t)row->params.k_head_dim);
        ck_assert_uint_eq(launch.scalar[V_HEAD_DIM], (uint64_t)row->params.v_head_dim);
        ck_assert_int_eq(launch.scalars, v == ROW ? SCALARS + 1 : SCALARS);
        ck_assert_str_eq(launch.options, ""); /* types alone make a program */
        ck_assert_str_eq(launch.file, "gdn_postconv.cl");
    }
}
END_TEST

START_TEST(all_but_wave_claim_a_chain_over_the_head)
{
    /* of wave the longest partial, ceil(Dk / 32), and 5 levels of a tree */
    static const struct {
        int64_t dim;
        int32_t wave;
    } depths[] = {{1, 6}, {32, 6}, {33, 7}, {128, 9}, {300, 15}, {65536, 2053}};
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
        for (int v = 0; v < VARIANTS; v++) {
            const struct et_gdn_postconv params = {2, 1, 1, depths[i].dim, 1, 1e-6, 0};
            struct et_claim claim;
            planned(v, &params, &claim);
            ck_assert_str_eq(claim.order.name, v == WAVE ? "lanes32" : "serial");
            ck_assert_int_eq(claim.arith.depth_sum, v == WAVE ? depths[i].wave : (int32_t)depths[i].dim);
            ck_assert_int_eq(claim.arith.sum, ET_F32);
            ck_assert_uint_eq(claim.scratch_bytes, 0);
        }
}
END_TEST

START_TEST(eps_and_the_scale_of_q_go_as_bits)
{
    struct et_gdn_postconv params = {1, 1, 1, 128, 1, 1e-6, 0};
    struct et_claim claim;
    ck_assert_uint_eq(planned(CHUNKED, &params, &claim).scalar[EPS], 0x358637bd); /* 1e-6f */
    ck_assert_uint_eq(planned(CHUNKED, &params, &claim).scalar[Q_SCALE], 0x3f800000);
    params.scale_q = 1;
    /* sqrt 128 = 11.3137085 = 0x413504f3; its inverse, 0.0883883461 = 0x3db504f3 */
    ck_assert_uint_eq(planned(CHUNKED, &params, &claim).scalar[Q_SCALE], 0x3db504f3);
    params.k_head_dim = 256;
    ck_assert_uint_eq(planned(WAVE, &params, &claim).scalar[Q_SCALE], 0x3d800000);
}
END_TEST

/*
 * Vectors of q and k that `row` holds at once, and the bytes, 4 (Dk + 1) a vector: 16, or as many as 16 KiB
 * take. The seed, always 16, takes (16 Dk + 16) * 4 bytes: 64 KiB at Dk = 1023, and does not launch from 1024
 * on (localai-org/vllm.cpp c18e34de).
 */
static const struct staged {
    int64_t k_heads, dim;
    uint64_t vectors;
    size_t bytes;
} stages[] = {
    {16, 128, 16, 8256},  {2, 128, 4, 2064},    {1, 1, 2, 16},        {16, 255, 16, 16384},
    {16, 256, 15, 15420}, {16, 300, 13, 15652}, {16, 1023, 4, 16384}, {16, 1024, 3, 12300},
    {16, 2048, 1, 8196},  {16, 4095, 1, 16384}, {16, 4096, 1, 16388},
};

START_TEST(row_stages_what_16_KiB_hold_and_at_least_a_vector)
{
    const struct staged *staged = &stages[_i];
    const struct et_gdn_postconv params = {2, staged->k_heads, 2, staged->dim, 2, 1e-6, 0};
    struct et_claim claim;
    const struct et_launch launch = planned(ROW, &params, &claim);
    ck_assert_uint_eq(launch.scalar[SCALARS], staged->vectors);
    ck_assert_uint_eq(launch.local_bytes, staged->bytes);

    const struct et_problem problem = shaped(&params);
    const struct et_variant *row = &variant_named("row")->variant;
    struct et_device device = {.local_memory = (int64_t)staged->bytes};
    struct et_error why = {""};
    ck_assert_int_eq(row->resolve(&problem, &device, NULL, &claim, &why), ET_OK);
    device.local_memory--;
    char says[120];
    snprintf(says, sizeof says, "a group takes %zu bytes of local memory, the device has %zu", staged->bytes,
             staged->bytes - 1);
    ck_assert_int_eq(row->resolve(&problem, &device, NULL, &claim, &why), ET_LACKING);
    ck_assert_str_eq(why.text, says);
}
END_TEST

START_TEST(wave_takes_2_KiB_of_local_memory_and_items_none)
{
    const struct et_gdn_postconv params = {1, 16, 32, 128, 128, 1e-6, 0};
    const struct et_problem problem = shaped(&params);
    for (int v = 0; v < VARIANTS; v++) {
        const struct et_device device = {.local_memory = v == WAVE ? 2047 : v == ROW ? 8255 : 1};
        struct et_claim claim;
        ck_assert_int_eq(variant_named(names[v])->variant.resolve(&problem, &device, NULL, &claim, NULL),
                         v == WAVE || v == ROW ? ET_LACKING : ET_OK);
    }
    const struct et_device enough = {.local_memory = 2048};
    struct et_claim claim;
    ck_assert_int_eq(variant_named("wave")->variant.resolve(&problem, &enough, NULL, &claim, NULL), ET_OK);
}
END_TEST

START_TEST(an_innermost_stride_other_than_1_is_refused_by_tensor)
{
    const struct et_gdn_postconv params = {2, 2, 4, 16, 24, 1e-6, 0};
    struct et_problem problem = shaped(&params);
    problem.tensor[_i].stride[problem.tensor[_i].rank - 1] = 2;
    char says[120];
    snprintf(says, sizeof says, "gdn_postconv: the innermost stride of %s is 2, must be 1",
             problem.op->tensors[_i].name);
    for (int v = 0; v < VARIANTS; v++) {
        const struct et_device device = et_device_unlimited();
        struct et_claim claim;
        struct et_error why = {""};
        ck_assert_int_eq(variant_named(names[v])->variant.resolve(&problem, &device, NULL, &claim, &why),
                         ET_REFUSED);
        ck_assert_str_eq(why.text, says);
    }
}
END_TEST

START_TEST(every_variant_runs_unasked)
{
    for (int v = 0; v < VARIANTS; v++)
        ck_assert(!variant_named(names[v])->variant.left_out);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("ocl_dispatch_gdn_postconv");
    TCase *resolve = tcase_create("resolve");
    tcase_add_loop_test(resolve, a_token_has_the_items_of_the_seed, 0, (int)(sizeof seeds / sizeof *seeds));
    tcase_add_test(resolve, the_longest_item_does_512_elements_in_place_of_4096);
    tcase_add_loop_test(resolve, every_shape_is_launched_whole, 0, (int)(sizeof rows / sizeof *rows));
    tcase_add_test(resolve, all_but_wave_claim_a_chain_over_the_head);
    tcase_add_test(resolve, eps_and_the_scale_of_q_go_as_bits);
    tcase_add_loop_test(resolve, row_stages_what_16_KiB_hold_and_at_least_a_vector, 0,
                        (int)(sizeof stages / sizeof *stages));
    tcase_add_test(resolve, wave_takes_2_KiB_of_local_memory_and_items_none);
    tcase_add_loop_test(resolve, an_innermost_stride_other_than_1_is_refused_by_tensor, 0, 10);
    tcase_add_test(resolve, every_variant_runs_unasked);
    suite_add_tcase(suite, resolve);
    return suite;
}
