/* The bytes of safetensors files, both ways. */
#define _XOPEN_SOURCE 700

#include "../harness/safetensors.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder.h"
#include "suite.h"

static const char path[] = "t.safetensors";

/* Each test runs in a folder of its own. */
static void enter_folder(void)
{
    enter_temporary_folder();
}

static void leave_folder(void)
{
    char folder[256];
    ck_assert_ptr_nonnull(getcwd(folder, sizeof folder));
    unlink(path);
    ck_assert_int_eq(chdir(".."), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}

static void write_file(const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, n, file), n);
    ck_assert_int_eq(fclose(file), 0);
}

static size_t read_file(unsigned char *bytes, size_t most)
{
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    const size_t n = fread(bytes, 1, most, file);
    ck_assert_int_eq(fclose(file), 0);
    return n;
}

/* A file of this header, followed by `data` bytes that count from 0. */
static void write_parts(const char *header, size_t length, size_t data)
{
    unsigned char bytes[4096] = {0};
    const size_t n = strlen(header);
    ck_assert_uint_le(8 + n + data, sizeof bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(length >> 8 * i);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < data; i++)
        bytes[8 + n + i] = (unsigned char)i;
    write_file(bytes, 8 + n + data);
}

static enum et_status open_parts(const char *header, size_t data, struct et_tensors *tensors,
                                 struct et_error *error)
{
    write_parts(header, strlen(header), data);
    return et_tensors_open(path, tensors, error);
}

START_TEST(a_file_is_these_bytes)
{
    struct et_file_tensor tensor = {.name = "a", .dtype = ET_F16, .rank = 1, .size = {2}};
    void *map;
    size_t bytes;
    ck_assert_int_eq(et_tensors_create(path, &tensor, 1, &map, &bytes, NULL), ET_OK);
    et_store(ET_F16, tensor.data, 0, 0x3c00); /* 1 */
    et_store(ET_F16, tensor.data, 1, 0xc000); /* -2 */
    et_unmap(map, bytes);

    /* 54 bytes of JSON and 2 spaces: 56 = 0x38, so that the data begin at a multiple of 8. */
    static const char expected[] = "\x38\0\0\0\0\0\0\0"
                                   "{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}  "
                                   "\x00\x3c\x00\xc0";
    unsigned char found[100];
    ck_assert_uint_eq(read_file(found, sizeof found), sizeof expected - 1);
    ck_assert_mem_eq(found, expected, sizeof expected - 1);
    ck_assert_uint_eq(bytes, sizeof expected - 1);
}
END_TEST

START_TEST(wider_types_come_first_whatever_the_order_given)
{
    struct et_file_tensor tensors[] = {
        {.name = "byte", .dtype = ET_F8E4M3FN, .rank = 1, .size = {3}},
        {.name = "half", .dtype = ET_BF16, .rank = 1, .size = {1}},
        {.name = "float", .dtype = ET_F32, .rank = 2, .size = {1, 2}},
    };
    void *map;
    size_t bytes;
    ck_assert_int_eq(et_tensors_create(path, tensors, 3, &map, &bytes, NULL), ET_OK);
    et_unmap(map, bytes);
    static const char expected[] = "{\"float\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                                   "\"half\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[8,10]},"
                                   "\"byte\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[10,13]}}";
    unsigned char found[400];
    read_file(found, sizeof found);
    ck_assert_mem_eq(found + 8, expected, sizeof expected - 1);
}
END_TEST

START_TEST(tensors_come_back_as_they_were_written)
{
    struct et_file_tensor written[] = {
        {.name = "f8", .dtype = ET_F8E4M3FN, .rank = 2, .size = {3, 5}},
        {.name = "f8z", .dtype = ET_F8E4M3FNUZ, .rank = 1, .size = {7}},
        {.name = "none", .dtype = ET_F32, .rank = 3, .size = {4, 0, 2}},
        {.name = "scalar", .dtype = ET_BF16, .rank = 0},
        {.name = "half", .dtype = ET_F16, .rank = 5, .size = {1, 2, 1, 3, 1}},
        {.name = "a \"name\"\n\xc3\xa9", .dtype = ET_F32, .rank = 1, .size = {9}},
    };
    enum { N = sizeof written / sizeof *written };
    static const size_t bytes_of[N] = {15, 7, 0, 2, 12, 36};
    void *map;
    size_t bytes;
    ck_assert_int_eq(et_tensors_create(path, written, N, &map, &bytes, NULL), ET_OK);
    for (int i = 0; i < N; i++) {
        ck_assert_uint_eq(written[i].bytes, bytes_of[i]);
        ck_assert_uint_eq((uintptr_t)written[i].data % et_format(written[i].dtype)->bytes, 0);
        for (size_t k = 0; k < bytes_of[i]; k++) {
            ck_assert_uint_eq(((unsigned char *)written[i].data)[k], 0);
            ((unsigned char *)written[i].data)[k] = (unsigned char)(16 * i + (int)k + 1);
        }
    }
    et_unmap(map, bytes);

    struct et_tensors read;
    ck_assert_int_eq(et_tensors_open(path, &read, NULL), ET_OK);
    ck_assert_int_eq(read.count, N);
    ck_assert_uint_eq(read.bytes, bytes);
    for (int i = 0; i < N; i++) {
        const struct et_file_tensor *found = et_tensors_find(&read, written[i].name);
        ck_assert_ptr_nonnull(found);
        ck_assert_int_eq(found->dtype, written[i].dtype);
        ck_assert_int_eq(found->rank, written[i].rank);
        ck_assert_mem_eq(found->size, written[i].size, sizeof found->size);
        ck_assert_uint_eq(found->bytes, bytes_of[i]);
        for (size_t k = 0; k < bytes_of[i]; k++)
            ck_assert_uint_eq(((const unsigned char *)found->data)[k], (unsigned char)(16 * i + (int)k + 1));
    }
    ck_assert_ptr_null(et_tensors_find(&read, "half "));
    et_tensors_close(&read);
    ck_assert_ptr_null(read.map);
    et_tensors_close(&read);
}
END_TEST

START_TEST(a_file_of_no_tensors_is_one)
{
    void *map;
    size_t bytes;
    struct et_tensors read;
    ck_assert_int_eq(et_tensors_create(path, NULL, 0, &map, &bytes, NULL), ET_OK);
    ck_assert_uint_eq(bytes, 16);
    et_unmap(map, bytes);
    ck_assert_int_eq(et_tensors_open(path, &read, NULL), ET_OK);
    ck_assert_int_eq(read.count, 0);
    et_tensors_close(&read);
}
END_TEST

START_TEST(a_file_that_others_wrote_is_read_with_its_metadata_and_foreign_types)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"z\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
        "\"ids\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
        "\"packed\":{\"data_offsets\":[16,18],\"shape\":[4],\"dtype\":\"F4\"}}        ";
    ck_assert_uint_eq((sizeof header - 1) % 4, 0);
    struct et_tensors read;
    struct et_error error = {.text = ""};
    ck_assert_msg(open_parts(header, 18, &read, &error) == ET_OK, "%s", error.text);
    ck_assert_int_eq(read.count, 3);
    ck_assert_str_eq(read.at[0].name, "ids");
    ck_assert_int_eq(read.at[0].dtype, ET_DTYPES);
    ck_assert_str_eq(read.at[1].name, "z");
    ck_assert_int_eq(read.at[1].dtype, ET_F32);
    ck_assert_uint_eq(*(const unsigned char *)read.at[1].data, 8);
    ck_assert_uint_eq(read.at[2].bytes, 2);
    et_tensors_close(&read);
}
END_TEST

#define TENSOR(name, dtype, shape, offsets)                                                                  \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE(dtype, shape, offsets) "{" TENSOR("a", dtype, shape, offsets) "}"

/* The header is a multiple of 4 long after padding where alignment is not what is tested. */
static const struct {
    const char *header;
    size_t data;
    const char *sentence;
} malformed[] = {
    {"", 0, "does not begin with {"},
    {"[]", 0, "does not begin with {"},
    {" {}", 0, "does not begin with {"},
    {"{", 0, ":1:"},
    {"{}x", 0, ":1:"},
    {"{}", 1, "the tensors end at byte 0 of the data, which has 1"},
    {"{\"a\":1}", 0, "a"},
    {"{\"a\":{}}", 0, "a has no dtype"},
    {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1]}}", 1, "a has no data_offsets"},
    {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1],\"stride\":[1]}}", 1, "stride"},
    {"{\"__metadata__\":{\"version\":1}}", 0, "version"},
    {"{\"__metadata__\":[]}", 0, "__metadata__"},
    {ONE("F33", "[1]", "[0,4]"), 4, "F33 is no dtype of the format"},
    {ONE("F8_E4M3", "[1,1,1,1,1,1]", "[0,1]"), 1, "a has more than 5 dimensions"},
    {ONE("F8_E4M3", "[-1]", "[0,1]"), 1, "a size"},
    {ONE("F8_E4M3", "[0.5]", "[0,1]"), 1, "a size"},
    {ONE("F8_E4M3", "[\"1\"]", "[0,1]"), 1, "a size"},
    {ONE("F8_E4M3", "2", "[0,2]"), 2, "shape"},
    {ONE("F8_E4M3", "[2]", "[0,1]"), 1, "a has 1 bytes, which is not what its shape and dtype take"},
    {ONE("F8_E4M3", "[1]", "[0,2]"), 2, "a has 2 bytes, which is not"},
    {ONE("F8_E4M3", "[1]", "[0,1,2]"), 1, "data_offsets has 3 entries, not 2"},
    {ONE("F8_E4M3", "[1]", "[-1,0]"), 1, "data_offsets"},
    {ONE("F8_E4M3", "[2]", "[0,2]"), 1, "data_offsets"},
    {ONE("F8_E4M3", "[1]", "[1,0]"), 1, "data_offsets"},
    {ONE("F8_E4M3", "[1]", "[9007199254740993,9007199254740994]"), 1, "data_offsets"},
    /* 2^32 * 2^32 bytes are 0 modulo 2^64; 2^40 * 2^30 are beyond int64_t. */
    {ONE("F8_E4M3", "[4294967296,4294967296]", "[0,0]"), 0, "a has 0 bytes, which is not"},
    {ONE("F32", "[1099511627776,1073741824]", "[0,0]"), 0, "a has 0 bytes, which is not"},
    {ONE("F4", "[3]", "[0,1]"), 1, "a has 1 bytes, which is not"},
    {ONE("F8_E4M3", "[1]", "[1,2]"), 2, "a begins at byte 1 of the data, the one before ends at 0"},
    {"{" TENSOR("a", "U8", "[2]", "[0,2]") "," TENSOR("b", "U8", "[2]", "[1,3]") "}", 3,
     "b begins at byte 1 of the data, the one before ends at 2"},
    {"{" TENSOR("a", "U8", "[1]", "[0,1]") "," TENSOR("b", "U8", "[1]", "[2,3]") "}", 3,
     "b begins at byte 2 of the data, the one before ends at 1"},
    {"{" TENSOR("a", "U8", "[2]", "[0,2]") "," TENSOR("b", "U8", "[2]", "[0,2]") "}", 2, "begins at byte 0"},
    {"{" TENSOR("a", "U8", "[1]", "[0,1]") "," TENSOR("a", "U8", "[1]", "[1,2]") "}", 2, "a"},
    /* 53 characters: the data begin at an odd byte. */
    {ONE("F32", "[ 1]", "[0,4]"), 4, "a is not aligned to its type"},
    {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, ":1:"},
};

START_TEST(a_malformed_header_is_one_sentence)
{
    struct et_tensors read;
    struct et_error error = {.text = ""};
    ck_assert_int_eq(open_parts(malformed[_i].header, malformed[_i].data, &read, &error), ET_INVALID);
    ck_assert_msg(strstr(error.text, malformed[_i].sentence), "%s", error.text);
    ck_assert_msg(strstr(error.text, "t.safetensors"), "%s", error.text);
    ck_assert_ptr_null(read.map);
    ck_assert_ptr_null(read.at);
}
END_TEST

START_TEST(a_header_longer_than_the_file_is_refused)
{
    static const struct {
        size_t length;
        const char *sentence;
    } table[] = {
        {3, "its header has 3 bytes, the file has 2 after that number"},
        {SIZE_MAX, "its header has 18446744073709551615 bytes"},
        {(size_t)1 << 63, "its header has 9223372036854775808 bytes"},
        {0, "does not begin with {"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct et_tensors read;
        struct et_error error = {.text = ""};
        write_parts("{}", table[i].length, 0);
        ck_assert_int_eq(et_tensors_open(path, &read, &error), ET_INVALID);
        ck_assert_msg(strstr(error.text, table[i].sentence), "%s", error.text);
    }
}
END_TEST

START_TEST(every_cut_of_a_file_is_refused)
{
    static const char header[] = ONE("F8_E4M3", "[4]", "[0,4]");
    unsigned char bytes[200];
    write_parts(header, sizeof header - 1, 4);
    const size_t n = read_file(bytes, sizeof bytes);
    struct et_tensors read;
    ck_assert_int_eq(et_tensors_open(path, &read, NULL), ET_OK);
    et_tensors_close(&read);
    for (size_t cut = 0; cut < n; cut++) {
        struct et_error error;
        write_file(bytes, cut);
        ck_assert_int_eq(et_tensors_open(path, &read, &error), ET_INVALID);
    }
}
END_TEST

START_TEST(whatever_byte_is_changed_tensors_lie_in_the_file)
{
    static const char header[] =
        "{" TENSOR("a", "F16", "[2,3]", "[0,12]") "," TENSOR("b", "U8", "[4]", "[12,16]") "} ";
    unsigned char bytes[300];
    write_parts(header, sizeof header - 1, 16);
    const size_t n = read_file(bytes, sizeof bytes);
    int opened = 0;
    ck_assert_uint_eq((sizeof header - 1) % 2, 0);
    for (size_t i = 0; i < n - 16; i++) {
        for (int bit = 0; bit < 8; bit++) {
            struct et_tensors read;
            struct et_error error;
            bytes[i] ^= (unsigned char)(1 << bit);
            write_file(bytes, n);
            const enum et_status status = et_tensors_open(path, &read, &error);
            ck_assert(status == ET_OK || status == ET_INVALID);
            for (int k = 0; status == ET_OK && k < read.count; k++) {
                const size_t at = (size_t)((char *)read.at[k].data - (char *)read.map);
                ck_assert(at <= n && read.at[k].bytes <= n - at);
            }
            opened += status == ET_OK;
            et_tensors_close(&read);
            bytes[i] ^= (unsigned char)(1 << bit);
        }
    }
    /* The names may change, and hardly anything else. */
    ck_assert_int_ge(opened, 6);
    ck_assert_int_lt(opened, 40);
}
END_TEST

START_TEST(what_is_not_a_file_is_refused)
{
    struct et_tensors read;
    struct et_error error;
    ck_assert_int_eq(et_tensors_open(path, &read, &error), ET_INVALID);
    ck_assert_msg(strstr(error.text, "No such file"), "%s", error.text);
    ck_assert_int_eq(et_tensors_open(".", &read, &error), ET_INVALID);
    ck_assert_msg(strstr(error.text, "is not a file"), "%s", error.text);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(et_tensors_open(path, &read, &error), ET_INVALID);
    ck_assert_msg(strstr(error.text, "is not a file"), "%s", error.text);
}
END_TEST

START_TEST(a_file_is_replaced_and_not_rewritten)
{
    struct et_file_tensor tensor = {.name = "a", .dtype = ET_F8E4M3FN, .rank = 1, .size = {4}};
    void *map;
    size_t bytes;
    struct et_tensors old;
    write_parts(ONE("F8_E4M3", "[4]", "[0,4]"), strlen(ONE("F8_E4M3", "[4]", "[0,4]")), 4);
    ck_assert_int_eq(chmod(path, 0444), 0);
    ck_assert_int_eq(et_tensors_open(path, &old, NULL), ET_OK);
    ck_assert_int_eq(et_tensors_create(path, &tensor, 1, &map, &bytes, NULL), ET_OK);
    memset(tensor.data, 0xff, 4);
    ck_assert_mem_eq(old.at[0].data, "\0\1\2\3", 4);
    et_unmap(map, bytes);
    et_tensors_close(&old);
}
END_TEST

START_TEST(a_file_that_cannot_be_made_leaves_nothing_behind)
{
    struct et_file_tensor tensor = {.name = "a", .dtype = ET_F32, .rank = 1, .size = {65536}};
    struct et_error error;
    void *map;
    size_t bytes;
    struct rlimit before;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(const struct rlimit){65536, before.rlim_max});
    ck_assert_int_eq(et_tensors_create(path, &tensor, 1, &map, &bytes, &error), ET_FAILED);
    setrlimit(RLIMIT_FSIZE, &before);
    ck_assert_msg(strstr(error.text, "cannot be made"), "%s", error.text);
    ck_assert_ptr_null(map);
    ck_assert_int_ne(access(path, F_OK), 0);

    tensor.size[0] = INT64_MAX / 8;
    ck_assert_int_eq(et_tensors_create(path, &tensor, 1, &map, &bytes, &error), ET_FAILED);
    ck_assert_msg(strstr(error.text, "a does not fit in a file"), "%s", error.text);
    ck_assert_int_eq(et_tensors_create("/nowhere/at/all", &tensor, 0, &map, &bytes, &error), ET_FAILED);
    ck_assert_msg(strstr(error.text, "/nowhere/at/all"), "%s", error.text);
}
END_TEST

START_TEST(a_file_that_was_read_may_be_cut)
{
    struct et_file_tensor tensor = {.name = "a", .dtype = ET_F32, .rank = 1, .size = {65536}};
    struct et_tensors read;
    struct et_error error = {.text = ""};
    void *map;
    size_t bytes;
    ck_assert_int_eq(et_tensors_create(path, &tensor, 1, &map, &bytes, NULL), ET_OK);
    memset(tensor.data, 0x41, tensor.bytes);
    et_unmap(map, bytes);
    ck_assert_msg(et_tensors_read(path, 4 * 65536, &read, &error) == ET_OK, "%s", error.text);
    ck_assert_int_eq(truncate(path, 1), 0);
    for (size_t i = 0; i < read.at[0].bytes; i++)
        ck_assert_int_eq(((const char *)read.at[0].data)[i], 0x41);
    et_tensors_close(&read);
}
END_TEST

/* 2^40 bytes of nothing take no disk, and must take no memory. */
START_TEST(a_file_of_more_data_than_expected_is_refused_before_it_is_read)
{
    static const char header[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1099511627776],\"data_offsets\":[0,1099511627776]}}";
    struct et_tensors read;
    struct et_error error;
    write_parts(header, sizeof header - 1, 0);
    ck_assert_int_eq(truncate(path, (off_t)(8 + sizeof header - 1) + (INT64_C(1) << 40)), 0);
    ck_assert_int_eq(et_tensors_read(path, 4096, &read, &error), ET_INVALID);
    ck_assert_str_eq(error.text, "t.safetensors has 1099511627776 bytes of data, at most 4096 are expected");
    ck_assert_ptr_null(read.map);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("safetensors");
    TCase *tests = tcase_create("files");
    tcase_add_checked_fixture(tests, enter_folder, leave_folder);
    tcase_add_test(tests, a_file_is_these_bytes);
    tcase_add_test(tests, wider_types_come_first_whatever_the_order_given);
    tcase_add_test(tests, tensors_come_back_as_they_were_written);
    tcase_add_test(tests, a_file_of_no_tensors_is_one);
    tcase_add_test(tests, a_file_that_others_wrote_is_read_with_its_metadata_and_foreign_types);
    tcase_add_loop_test(tests, a_malformed_header_is_one_sentence, 0, sizeof malformed / sizeof *malformed);
    tcase_add_test(tests, a_header_longer_than_the_file_is_refused);
    tcase_add_test(tests, every_cut_of_a_file_is_refused);
    tcase_add_test(tests, whatever_byte_is_changed_tensors_lie_in_the_file);
    tcase_add_test(tests, what_is_not_a_file_is_refused);
    tcase_add_test(tests, a_file_is_replaced_and_not_rewritten);
    tcase_add_test(tests, a_file_that_cannot_be_made_leaves_nothing_behind);
    tcase_add_test(tests, a_file_that_was_read_may_be_cut);
    tcase_add_test(tests, a_file_of_more_data_than_expected_is_refused_before_it_is_read);
    suite_add_tcase(suite, tests);
    return suite;
}
