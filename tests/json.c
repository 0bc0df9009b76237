#define _POSIX_C_SOURCE 200809L /* mkstemp, fdopen */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../harness/json.h"
#include "suite.h"

static enum et_status parse(const char *text, struct et_json *json, struct et_error *error)
{
    return et_json_parse("t", text, strlen(text), json, error);
}

/* ---- What is not JSON ---- */

struct refused {
    const char *text, *sentence;
};

static const struct refused refused[] = {
    {"", "t:1:1: the text is empty"},
    {" \n ", "t:2:2: the text is empty"},
    {"\xef\xbb\xbf{}", "t:1:1: the text starts with a byte order mark; JSON has none"},
    {"\xff\xfe{", "t:1:1: a value was expected, not byte 0xff"},
    {"{} x", "t:1:4: the end of the text was expected, not 'x'"},
    {"{}\n{}", "t:2:1: the end of the text was expected, not '{'"},
    {"1 // one", "t:1:3: the end of the text was expected, not '/'"},
    {"[1,]", "t:1:4: a value was expected, not ']'"},
    {"[1 2]", "t:1:4: ',' or ']' was expected, not '2'"},
    {"[1", "t:1:3: ',' or ']' was expected, but the text ends"},
    {"[\n1,\n", "t:3:1: a value was expected, but the text ends"},
    {"{\"a\":1,}", "t:1:8: a key in quotes was expected, not '}'"},
    {"{a:1}", "t:1:2: a key in quotes was expected, not 'a'"},
    {"{\"a\" 1}", "t:1:6: ':' was expected, not '1'"},
    {"{\"a\":}", "t:1:6: a value was expected, not '}'"},
    {"{\"a\":1 \"b\":2}", "t:1:8: ',' or '}' was expected, not '\"'"},
    {"[1}", "t:1:3: ',' or ']' was expected, not '}'"},
    {"01", "t:1:1: a number has no leading zeros"},
    {"[-012]", "t:1:3: a number has no leading zeros"},
    {"1.", "t:1:3: a digit after '.' was expected, but the text ends"},
    {"[1.e3]", "t:1:4: a digit after '.' was expected, not 'e'"},
    {"1e+", "t:1:4: a digit after 'e' was expected, but the text ends"},
    {"-", "t:1:2: a digit after '-' was expected, but the text ends"},
    {"-inf", "t:1:2: a digit after '-' was expected, not 'i'"},
    {"+1", "t:1:1: a value was expected, not '+'"},
    {".5", "t:1:1: a value was expected, not '.'"},
    {"0x10", "t:1:2: the end of the text was expected, not 'x'"},
    {"[1e999]", "t:1:2: 1e999 is beyond the range of a double"},
    {"[-1e309]", "t:1:2: -1e309 is beyond the range of a double"},
    {"0.1234567890123456789012345678901234567890123456789012345678901234",
     "t:1:1: a number of 66 characters, more than 63"},
    {"NaN", "t:1:1: unknown word NaN; JSON has true, false and null"},
    {"[True]", "t:1:2: unknown word True; JSON has true, false and null"},
    {"nul", "t:1:1: unknown word nul; JSON has true, false and null"},
    {"'a'", "t:1:1: a value was expected, not '''"},
    {"[\"a", "t:1:2: the string that starts here does not end"},
    {"[\"a\n\"]", "t:1:2: the string that starts here does not end on its line"},
    {"\"a\tb\"", "t:1:3: raw control character 0x09 in a string; write \\u0009"},
    {"\"\\x41\"", "t:1:2: a backslash here starts no escape of JSON"},
    {"\"\\", "t:1:2: a backslash here starts no escape of JSON"},
    {"\"\\u12g4\"", "t:1:2: \\u needs four hex digits"},
    {"\"\\u12", "t:1:2: \\u needs four hex digits"},
    {"\"\\ud800\"", "t:1:2: \\ud800 is half of a surrogate pair"},
    {"\"\\ud800\\u0041\"", "t:1:2: \\ud800 is half of a surrogate pair"},
    {"\"\\udc00\"", "t:1:2: \\udc00 is half of a surrogate pair"},
    {"\"\\u0000\"", "t:1:2: \\u0000 cannot stand in a string here"},
    {"\"\x80\"", "t:1:2: byte 0x80 is not UTF-8"},
    {"\"\xc0\xaf\"", "t:1:2: byte 0xc0 is not UTF-8"},         /* '/' in two bytes */
    {"\"\xe0\x80\xaf\"", "t:1:2: byte 0xe0 is not UTF-8"},     /* in three */
    {"\"\xed\xa0\x80\"", "t:1:2: byte 0xed is not UTF-8"},     /* a surrogate */
    {"\"\xf4\x90\x80\x80\"", "t:1:2: byte 0xf4 is not UTF-8"}, /* beyond U+10FFFF */
    {"\"\xe2\x82\"", "t:1:2: byte 0xe2 is not UTF-8"},         /* cut */
    {"{\"a\":1,\n \"b\":2,\n \"a\":3}", "t:3:2: key \"a\" is given twice, first on line 1"},
    {"{\"a\":1,\"\\u0061\":2}", "t:1:8: key \"a\" is given twice, first on line 1"},
    {"[{\"x\":{\"k\":1,\"k\":2}}]", "t:1:14: key \"k\" is given twice, first on line 1"},
    {"{\"b\":1,\"a\":2,\"a\":3,\n\"b\":4}", "t:1:14: key \"a\" is given twice, first on line 1"},
};

START_TEST(what_is_not_json_is_refused_at_its_place)
{
    struct et_json json;
    struct et_error error = {""};
    ck_assert_int_eq(parse(refused[_i].text, &json, &error), ET_INVALID);
    ck_assert_str_eq(error.text, refused[_i].sentence);
    ck_assert_ptr_null(json.root);
}
END_TEST

START_TEST(a_nul_byte_is_refused)
{
    struct et_json json;
    struct et_error error;
    ck_assert_int_eq(et_json_parse("t", "1\0", 2, &json, &error), ET_INVALID);
    ck_assert_str_eq(error.text, "t:1:2: the end of the text was expected, not byte 0x00");
    ck_assert_int_eq(et_json_parse("t", "\"a\0b\"", 5, &json, &error), ET_INVALID);
    ck_assert_str_eq(error.text, "t:1:3: raw control character 0x00 in a string; write \\u0000");
    ck_assert_int_eq(et_json_parse("t", "\"\\\0", 3, &json, &error), ET_INVALID);
    ck_assert_str_eq(error.text, "t:1:2: a backslash here starts no escape of JSON");
}
END_TEST

START_TEST(sixty_four_levels_are_read_and_one_more_is_not)
{
    char text[131] = "";
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    struct et_json json;
    struct et_error error;
    ck_assert_int_eq(parse(text, &json, &error), ET_OK);
    et_json_free(&json);
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    ck_assert_int_eq(parse(text, &json, &error), ET_INVALID);
    ck_assert_str_eq(error.text, "t:1:65: nested deeper than 64");
}
END_TEST

/* ---- What is ---- */

START_TEST(every_value_and_key_has_its_place)
{
    static const char text[] = "{\"a\": [1,\n  {\"b\" :true}],\r\n\"\xc3\xa9\":\t-1.5e3, \"c\":\"\"}\n";
    struct et_json json;
    struct et_error error;
    ck_assert_int_eq(parse(text, &json, &error), ET_OK);
    const cJSON *a = et_json_get(json.root, "a"), *b = et_json_get(a->child->next, "b");
    const cJSON *e = et_json_get(json.root, "\xc3\xa9"), *c = et_json_get(json.root, "c");
    const struct {
        const cJSON *node;
        int line, column;
    } place[] = {{json.root, 1, 1}, {a, 1, 7}, {a->child, 1, 8}, {a->child->next, 2, 3},
                 {b, 2, 9},         {e, 3, 7}, {c, 3, 19}};
    for (size_t i = 0; i < sizeof place / sizeof place[0]; i++) {
        int line = 0, column = 0;
        et_json_at(&json, place[i].node, &line, &column);
        ck_assert_int_eq(line, place[i].line);
        ck_assert_int_eq(column, place[i].column);
    }
    ck_assert_int_eq(et_json_fail(&json, c, &error, "%s %d", "no", 7), ET_INVALID);
    ck_assert_str_eq(error.text, "t:3:19: no 7");
    ck_assert_int_eq(et_json_fail_key(&json, b, &error, "no"), ET_INVALID);
    ck_assert_str_eq(error.text, "t:2:4: no");
    et_json_free(&json);
}
END_TEST

START_TEST(strings_are_decoded)
{
    struct et_json json;
    struct et_error error;
    ck_assert_int_eq(parse("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00\x7f\"", &json, &error), ET_OK);
    ck_assert_str_eq(json.root->valuestring, "\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80\x7f");
    et_json_free(&json);
}
END_TEST

START_TEST(keys_differing_in_case_are_two_keys)
{
    struct et_json json;
    struct et_error error;
    ck_assert_int_eq(parse("{\"A\":1,\"a\":2}", &json, &error), ET_OK);
    ck_assert_double_eq(et_json_get(json.root, "a")->valuedouble, 2);
    ck_assert_double_eq(et_json_get(json.root, "A")->valuedouble, 1);
    ck_assert_ptr_null(et_json_get(json.root, "b"));
    et_json_free(&json);
}
END_TEST

START_TEST(a_file_is_read_whole)
{
    char path[] = "/tmp/etalon-json-XXXXXX";
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    FILE *file = fdopen(fd, "w");
    fputc('[', file);
    for (int i = 0; i < 20000; i++)
        fprintf(file, "%d,", i);
    fprintf(file, "-1]");
    fclose(file);
    struct et_json json;
    struct et_error error = {""};
    const enum et_status status = et_json_read(path, &json, &error);
    unlink(path);
    ck_assert_msg(status == ET_OK, "%s", error.text);
    ck_assert_int_eq(cJSON_GetArraySize(json.root), 20001);
    et_json_free(&json);
}
END_TEST

START_TEST(what_cannot_be_read_is_named_in_one_sentence)
{
    struct et_json json;
    struct et_error error;
    ck_assert_int_eq(et_json_read("/nowhere/a.json", &json, &error), ET_INVALID);
    ck_assert_str_eq(error.text, "/nowhere/a.json: cannot be read: No such file or directory");
    ck_assert_int_eq(et_json_read("/", &json, &error), ET_INVALID);
    ck_assert_str_eq(error.text, "/: cannot be read: Is a directory");
    ck_assert_int_eq(et_json_read("/dev/zero", &json, &error), ET_INVALID);
    ck_assert_str_eq(error.text, "/dev/zero: more than 67108864 bytes");
    ck_assert_int_eq(et_json_read("/dev/null", &json, &error), ET_INVALID);
    ck_assert_str_eq(error.text, "/dev/null:1:1: the text is empty");
}
END_TEST

/* ---- Typed readers ---- */

static const struct {
    const char *text;
    int64_t value; /* -1: refused */
    const char *sentence;
} ints[] = {
    {"7", 7, NULL},
    {"0", 0, NULL},
    {"1e3", 1000, NULL},
    {"9007199254740991", 9007199254740991, NULL}, /* 2^53 - 1 */
    {"9007199254740992", -1,
     "t:1:1: rows is 9007199254740992, not a whole number from 0 to 9007199254740991"},
    {"9007199254740993", -1,
     "t:1:1: rows is 9007199254740992, not a whole number from 0 to 9007199254740991"},
    {"4294967296", 4294967296, NULL}, /* valueint saturates far below */
    {"3.7", -1, "t:1:1: rows is 3.7, not a whole number from 0 to 9007199254740991"},
    {"-1", -1, "t:1:1: rows is -1, not a whole number from 0 to 9007199254740991"},
    {"\"7\"", -1, "t:1:1: rows is \"7\", not a whole number from 0 to 9007199254740991"},
    {"null", -1, "t:1:1: rows is null, not a whole number from 0 to 9007199254740991"},
    {"true", -1, "t:1:1: rows is true, not a whole number from 0 to 9007199254740991"},
    {"[7]", -1, "t:1:1: rows is a list, not a whole number from 0 to 9007199254740991"},
};

START_TEST(ints_are_exact_or_refused)
{
    struct et_json json;
    struct et_error error = {""};
    int64_t value = -1;
    ck_assert_int_eq(parse(ints[_i].text, &json, &error), ET_OK);
    const enum et_status status = et_json_int(&json, json.root, "rows", 0, INT64_MAX, &value, &error);
    et_json_free(&json);
    ck_assert_int_eq(status, ints[_i].sentence ? ET_INVALID : ET_OK);
    ck_assert_int_eq(value, ints[_i].value);
    ck_assert_str_eq(error.text, ints[_i].sentence ? ints[_i].sentence : "");
}
END_TEST

static const struct {
    const char *text;
    double value; /* of refused ones: unused */
    bool read;
} reals[] = {
    {"0.5", 0.5, true},
    {"-0", -0.0, true},
    {"\"inf\"", (double)INFINITY, true},
    {"\"-inf\"", -(double)INFINITY, true},
    {"\"0x1.8p-3\"", 0.1875, true}, /* 1.5 / 8 */
    {"\"-0x1p+4\"", -16, true},
    {"\"0xA\"", 10, true},
    {"\"0x1p99999\"", 0, false},
    {"\"0x\"", 0, false},
    {"\"0x1.8p\"", 0, false},
    {"\"0x1 \"", 0, false},
    {"\" 0x1\"", 0, false},
    {"\"--0x1\"", 0, false},
    {"\"0.5\"", 0, false},
    {"\"infinity\"", 0, false},
    {"\"-nan\"", 0, false},
    {"\"\"", 0, false},
    {"true", 0, false},
    {"{}", 0, false},
};

START_TEST(reals_are_numbers_infinities_nan_and_hex_floats)
{
    struct et_json json;
    struct et_error error = {""};
    double value = 0;
    ck_assert_int_eq(parse(reals[_i].text, &json, &error), ET_OK);
    const enum et_status status = et_json_real(&json, json.root, "atol", &value, &error);
    et_json_free(&json);
    ck_assert_int_eq(status, reals[_i].read ? ET_OK : ET_INVALID);
    if (!reals[_i].read) {
        ck_assert_ptr_nonnull(strstr(error.text, "not a number, \"inf\", \"-inf\", \"nan\" or a hex float"));
        return;
    }
    ck_assert(value == reals[_i].value && !signbit(value) == !signbit(reals[_i].value));
}
END_TEST

START_TEST(nan_is_read_from_its_string)
{
    struct et_json json;
    struct et_error error;
    double value = 0;
    ck_assert_int_eq(parse("\"nan\"", &json, &error), ET_OK);
    ck_assert_int_eq(et_json_real(&json, json.root, "x", &value, &error), ET_OK);
    ck_assert(isnan(value));
    et_json_free(&json);
}
END_TEST

START_TEST(other_types_are_named_when_they_do_not_fit)
{
    struct et_json json;
    struct et_error error;
    bool flag = false;
    const char *text = NULL;
    ck_assert_int_eq(parse("[0, \"a text that is longer than forty characters are\", {}]", &json, &error),
                     ET_OK);
    const cJSON *number = json.root->child, *string = number->next, *object = string->next;
    ck_assert_int_eq(et_json_bool(&json, number, "bench", &flag, &error), ET_INVALID);
    ck_assert_str_eq(error.text, "t:1:2: bench is 0, not true or false");
    ck_assert_int_eq(et_json_string(&json, object, "note", &text, &error), ET_INVALID);
    ck_assert_str_eq(error.text, "t:1:56: note is an object, not a string");
    ck_assert_int_eq(et_json_object(&json, string, "params", &error), ET_INVALID);
    ck_assert_str_eq(error.text,
                     "t:1:5: params is \"a text that is longer than forty charact...\", not an object");
    ck_assert_int_eq(et_json_array(&json, object, "cases", &error), ET_INVALID);
    ck_assert_str_eq(error.text, "t:1:56: cases is an object, not a list");
    ck_assert_int_eq(et_json_string(&json, string, "note", &text, &error), ET_OK);
    ck_assert_int_eq(et_json_object(&json, object, "params", &error), ET_OK);
    ck_assert_int_eq(et_json_array(&json, json.root, "cases", &error), ET_OK);
    et_json_free(&json);
}
END_TEST

START_TEST(an_unknown_key_is_told_the_nearest)
{
    static const char *const allowed[] = {"name", "note", "params", NULL};
    struct et_json json;
    struct et_error error;
    ck_assert_int_eq(parse("{\"note\": 1,\n \"parms\": 2}", &json, &error), ET_OK);
    ck_assert_int_eq(et_json_keys(&json, json.root, "the case", allowed, &error), ET_INVALID);
    ck_assert_str_eq(error.text, "t:2:2: the case has no \"parms\"; the nearest is \"params\"");
    et_json_free(&json);
    ck_assert_int_eq(parse("{\"note\": 1, \"name\": 2}", &json, &error), ET_OK);
    ck_assert_int_eq(et_json_keys(&json, json.root, "the case", allowed, &error), ET_OK);
    et_json_free(&json);
}
END_TEST

START_TEST(nearest_counts_edits_and_keeps_the_first_of_equals)
{
    struct et_nearest nearest = {.word = "gqa"};
    et_nearest_try(&nearest, "per_head");
    et_nearest_try(&nearest, "gqa_split"); /* 6 insertions */
    ck_assert_str_eq(nearest.best, "gqa_split");
    ck_assert_uint_eq(nearest.distance, 6);
    et_nearest_try(&nearest, "qa");  /* one deletion */
    et_nearest_try(&nearest, "gua"); /* one replacement: no nearer */
    ck_assert_str_eq(nearest.best, "qa");
    et_nearest_try(&nearest, "gqa");
    ck_assert_uint_eq(nearest.distance, 0);
}
END_TEST

/* ---- Writers ---- */

START_TEST(numbers_are_written_short_and_come_back)
{
    static const struct {
        double value;
        const char *text;
    } number[] = {
        {0, "0"},
        {-0.0, "-0"},
        {0.1, "0.1"},
        {0.1 + 0.2, "0.30000000000000004"},
        {5e-324, "4.94065645841247e-324"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {9007199254740991.0, "9007199254740991"},
        {200000, "200000"},
        {(double)NAN, "null"},
        {(double)INFINITY, "null"},
    };
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++) {
        struct et_text text = {0};
        et_json_add_number(&text, number[i].value);
        ck_assert_str_eq(text.data, number[i].text);
        if (isfinite(number[i].value))
            ck_assert_double_eq(strtod(text.data, NULL), number[i].value);
        et_text_free(&text);
    }
}
END_TEST

START_TEST(reals_are_written_as_they_are_read)
{
    struct et_text text = {0};
    et_json_add_real(&text, (double)NAN);
    et_json_add_real(&text, (double)INFINITY);
    et_json_add_real(&text, -(double)INFINITY);
    et_json_add_real(&text, 1.5);
    ck_assert_str_eq(text.data, "\"nan\"\"inf\"\"-inf\"1.5");
    et_text_free(&text);
}
END_TEST

START_TEST(strings_are_written_as_json_whatever_they_hold)
{
    struct et_text text = {0};
    et_json_add_string(&text, "a\"\\\b\f\n\r\t\x01/\x7f\xc3\xa9\xff\xe2\x82");
    ck_assert_str_eq(text.data,
                     "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0001/\x7f\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
    struct et_json json;
    struct et_error error;
    ck_assert_int_eq(parse(text.data, &json, &error), ET_OK);
    et_json_free(&json);
    et_text_free(&text);
}
END_TEST

/* ---- Any text ---- */

static const char whole[] = "{\"a\": [1, -2.5e-3, true, null, \"x\\u00e9\\ud83d\\ude00\xe2\x82\xac\"],\n"
                            " \"b\": {\"c\": {}, \"d\": [], \"e\": \"\\n\"}, \"f\": 0.125}";

/* An exact-size copy, so that reading past its end is seen. */
static enum et_status parse_exact(const char *text, size_t bytes)
{
    char *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, text, bytes);
    struct et_json json;
    struct et_error error = {""};
    const enum et_status status = et_json_parse("t", copy, bytes, &json, &error);
    if (status == ET_OK)
        et_json_free(&json);
    else
        ck_assert(error.text[0] == 't' && strchr(error.text, ' '));
    free(copy);
    return status;
}

START_TEST(no_prefix_is_json)
{
    for (size_t n = 0; n < sizeof whole - 1; n++)
        ck_assert_int_eq(parse_exact(whole, n), ET_INVALID);
    ck_assert_int_eq(parse_exact(whole, sizeof whole - 1), ET_OK);
}
END_TEST

START_TEST(any_byte_may_be_lost_or_changed_without_harm)
{
    char text[sizeof whole];
    int read = 0, seen = 0;
    for (size_t i = 0; i < sizeof whole - 1; i++) {
        memcpy(text, whole, i);
        memcpy(text + i, whole + i + 1, sizeof whole - i - 1);
        read += parse_exact(text, sizeof whole - 2) == ET_OK;
        memcpy(text, whole, sizeof whole);
        for (int byte = 0; byte < 256; byte++) {
            text[i] = (char)byte;
            read += parse_exact(text, sizeof whole - 1) == ET_OK;
            seen++;
        }
    }
    ck_assert_int_gt(read, 0);
    ck_assert_int_lt(read, seen);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("json");
    TCase *json = tcase_create("json");
    tcase_set_timeout(json, 30);
    const int refused_count = (int)(sizeof refused / sizeof refused[0]);
    const int int_count = (int)(sizeof ints / sizeof ints[0]),
              real_count = (int)(sizeof reals / sizeof reals[0]);
    tcase_add_loop_test(json, what_is_not_json_is_refused_at_its_place, 0, refused_count);
    tcase_add_test(json, a_nul_byte_is_refused);
    tcase_add_test(json, sixty_four_levels_are_read_and_one_more_is_not);
    tcase_add_test(json, every_value_and_key_has_its_place);
    tcase_add_test(json, strings_are_decoded);
    tcase_add_test(json, keys_differing_in_case_are_two_keys);
    tcase_add_test(json, a_file_is_read_whole);
    tcase_add_test(json, what_cannot_be_read_is_named_in_one_sentence);
    tcase_add_loop_test(json, ints_are_exact_or_refused, 0, int_count);
    tcase_add_loop_test(json, reals_are_numbers_infinities_nan_and_hex_floats, 0, real_count);
    tcase_add_test(json, nan_is_read_from_its_string);
    tcase_add_test(json, other_types_are_named_when_they_do_not_fit);
    tcase_add_test(json, an_unknown_key_is_told_the_nearest);
    tcase_add_test(json, nearest_counts_edits_and_keeps_the_first_of_equals);
    tcase_add_test(json, numbers_are_written_short_and_come_back);
    tcase_add_test(json, reals_are_written_as_they_are_read);
    tcase_add_test(json, strings_are_written_as_json_whatever_they_hold);
    tcase_add_test(json, no_prefix_is_json);
    tcase_add_test(json, any_byte_may_be_lost_or_changed_without_harm);
    suite_add_tcase(suite, json);
    return suite;
}
