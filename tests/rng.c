/* Published vectors, one element worked out with integers, and what a tensor of draws must look like. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "../ref/rng.h"
#include "suite.h"

enum { DRAWS = 1 << 20 };

START_TEST(philox_gives_the_published_vectors)
{
    /* kat_vectors of Random123, philox4x32 10 */
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];
        et_philox(known[i].counter, known[i].key, out);
        ck_assert_mem_eq(out, known[i].out, sizeof out);
    }
}
END_TEST

START_TEST(index_name_and_block_are_the_counter_and_the_seed_is_the_key)
{
    /* The third published vector, spelled as a stream. */
    const struct et_stream s = {{0xa4093822, 0x299f31d0}, 0x13198a2e};
    static const uint32_t want[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    uint32_t out[4];
    et_block(&s, 0x85a308d3243f6a88, 0x03707344, out);
    ck_assert_mem_eq(out, want, sizeof out);
    ck_assert_uint_eq(et_word(&s, 0x85a308d3243f6a88, 0x03707344), 0xd16cfe09);

    const struct et_stream query = et_stream(0x299f31d0a4093822, "query");
    ck_assert_uint_eq(query.key[0], 0xa4093822);
    ck_assert_uint_eq(query.key[1], 0x299f31d0);
    ck_assert_uint_eq(query.name, et_name_hash("query"));
}
END_TEST

START_TEST(names_hash_as_fnv_1a_32)
{
    /* test vectors of draft-eastlake-fnv */
    ck_assert_uint_eq(et_name_hash(""), 0x811c9dc5);
    ck_assert_uint_eq(et_name_hash("a"), 0xe40c292c);
    ck_assert_uint_eq(et_name_hash("foobar"), 0xbf9cf968);
    /* A byte above 127 counts as itself, whatever the sign of char: (0x811c9dc5 ^ 0xff) * 0x01000193 mod 2^32
     */
    ck_assert_uint_eq(et_name_hash("\xff"), 0x7a0b824e);
}
END_TEST

START_TEST(one_element_worked_out_with_integers)
{
    /* Seed 7 * 2^32 + 1, "query", element 3 * 2^32 + 5. Blocks 0 and 1, from an independent program, start
     *   1eacb8e9 4563f3d4 8b9fa2f8 1d9626b4 | 1d1d3c4f 578b21bc
     * whose halves 47337 7852 62420 17763 41720 35743 9908 7574 15439 7453 8636 22411 add up to 284256;
     * 284256 - 6 * 65536 + 6 = -108954. The first 24 bits of word 0 are 2010296; less 2^23, -6378312. */
    const struct et_stream s = et_stream(0x700000001, "query");
    const uint64_t element = (uint64_t)3 << 32 | 5;
    ck_assert_float_eq(et_normal(&s, element), -108954.0f / 65536);
    ck_assert_float_eq(et_uniform(&s, element), -6378312.0f / 8388608);
}
END_TEST

START_TEST(normal_draws_are_exact_bounded_and_have_the_moments)
{
    const struct et_stream s = et_stream(1, "key");
    double sum = 0, squares = 0, fourth = 0;
    int inexact = 0, outside = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        const float x = et_normal(&s, i);
        const double scaled = (double)x * 65536;
        inexact += scaled != rint(scaled);
        outside += !(fabsf(x) <= 393210.0f / 65536);
        sum += (double)x;
        squares += (double)x * (double)x;
        fourth += (double)x * (double)x * (double)x * (double)x;
    }
    ck_assert_int_eq(inexact, 0);
    ck_assert_int_eq(outside, 0);
    /* Five standard errors: 1/1024 of the mean, sqrt(1.9)/1024 of the variance; the fourth moment of 12
     * uniforms is 3 - 1.2/12 = 2.9, and its standard error below 10/1024. */
    ck_assert_double_le(fabs(sum / DRAWS), 5.0 / 1024);
    ck_assert_double_le(fabs(squares / DRAWS - 1), 5 * 1.38 / 1024);
    ck_assert_double_le(fabs(fourth / DRAWS - 2.9), 5 * 10.0 / 1024);
}
END_TEST

START_TEST(uniform_draws_are_exact_bounded_and_have_the_moments)
{
    const struct et_stream s = et_stream(1, "key");
    double sum = 0, squares = 0;
    int inexact = 0, outside = 0, odd = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        const float x = et_uniform(&s, i);
        const double scaled = (double)x * 8388608;
        inexact += scaled != rint(scaled);
        odd += fmod(scaled, 2) != 0;
        outside += !(x >= -1 && x < 1);
        sum += (double)x;
        squares += (double)x * (double)x;
    }
    ck_assert_int_eq(inexact, 0);
    ck_assert_int_eq(outside, 0);
    /* Five standard errors, sqrt(1/3)/1024 and sqrt(4/45)/1024; a last bit as often one as zero. */
    ck_assert_double_le(fabs(sum / DRAWS), 5 * 0.578 / 1024);
    ck_assert_double_le(fabs(squares / DRAWS - 1.0 / 3), 5 * 0.299 / 1024);
    ck_assert_int_le(abs(2 * odd - DRAWS), 5 * 1024);
}
END_TEST

/* Correlation of DRAWS pairs of independent draws has a standard error of 1/1024. */
static double correlation(struct et_stream a, struct et_stream b, uint64_t shift)
{
    double sum = 0;
    for (uint64_t i = 0; i < DRAWS; i++)
        sum += (double)et_normal(&a, i) * (double)et_normal(&b, i + shift);
    return sum / DRAWS;
}

START_TEST(draws_of_other_elements_names_and_seeds_are_unrelated)
{
    const struct et_stream s = et_stream(1, "key");
    ck_assert_double_ge(correlation(s, s, 0), 0.9);
    ck_assert_double_le(fabs(correlation(s, s, 1)), 5.0 / 1024);
    ck_assert_double_le(fabs(correlation(s, s, (uint64_t)1 << 32)), 5.0 / 1024);
    ck_assert_double_le(fabs(correlation(s, et_stream(1, "value"), 0)), 5.0 / 1024);
    ck_assert_double_le(fabs(correlation(s, et_stream(2, "key"), 0)), 5.0 / 1024);
    ck_assert_double_le(fabs(correlation(s, et_stream((uint64_t)1 << 32 | 1, "key"), 0)), 5.0 / 1024);
}
END_TEST

START_TEST(arrays_hold_the_draws_of_their_elements)
{
    const struct et_stream s = et_stream(3, "value");
    const uint64_t first = 0xfffffffe; /* the index carries into its high word */
    float normal[8] = {[7] = 9}, uniform[8] = {[7] = 9};
    et_normal_n(&s, first, 7, normal);
    et_uniform_n(&s, first, 7, uniform);
    for (uint64_t i = 0; i < 7; i++) {
        ck_assert_float_eq(normal[i], et_normal(&s, first + i));
        ck_assert_float_eq(uniform[i], et_uniform(&s, first + i));
    }
    ck_assert_float_eq(normal[7], 9);
    ck_assert_float_eq(uniform[7], 9);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("rng");
    TCase *tcase = tcase_create("philox");
    tcase_add_test(tcase, philox_gives_the_published_vectors);
    tcase_add_test(tcase, index_name_and_block_are_the_counter_and_the_seed_is_the_key);
    tcase_add_test(tcase, names_hash_as_fnv_1a_32);
    tcase_add_test(tcase, one_element_worked_out_with_integers);
    tcase_add_test(tcase, normal_draws_are_exact_bounded_and_have_the_moments);
    tcase_add_test(tcase, uniform_draws_are_exact_bounded_and_have_the_moments);
    tcase_add_test(tcase, draws_of_other_elements_names_and_seeds_are_unrelated);
    tcase_add_test(tcase, arrays_hold_the_draws_of_their_elements);
    suite_add_tcase(suite, tcase);
    return suite;
}
