/* The JSON writer: quotes and layout. Expected texts are written out by hand. */
#include <check.h>
#include <string.h>

#include "../harness/write.h"
#include "suite.h"

static struct et_text text;

static void tear_down(void)
{
    et_text_free(&text);
}

static void assert_lines(const char *json, int columns, const char *lines)
{
    et_put_lines(&text, json, columns);
    ck_assert_str_eq(text.data, lines);
    et_text_free(&text);
}

START_TEST(quotes_stand_for_double_ones_in_formats_only)
{
    et_put(&text, "{'a': '%s', 'b': %d}", "it's", 7);
    ck_assert_str_eq(text.data, "{\"a\": \"it's\", \"b\": 7}");
}
END_TEST

START_TEST(a_string_is_escaped_and_none_is_null)
{
    et_put_string(&text, "a\"b\\\n");
    et_text_add(&text, " ");
    et_put_string(&text, NULL);
    ck_assert_str_eq(text.data, "\"a\\\"b\\\\\\n\" null");
}
END_TEST

START_TEST(what_fits_stays_on_its_line)
{
    /* 21 characters, and room for the comma that may follow. */
    assert_lines("{\"a\": [1, 2], \"b\": 3}", 22, "{\"a\": [1, 2], \"b\": 3}\n");
    assert_lines("{\"a\": [1, 2], \"b\": 3}", 21, "{\n  \"a\": [1, 2],\n  \"b\": 3\n}\n");
    /* `  "a": [1, 2]` takes 13 */
    assert_lines("{\"a\": [1, 2], \"b\": 3}", 14, "{\n  \"a\": [1, 2],\n  \"b\": 3\n}\n");
    assert_lines("{\"a\": [1, 2], \"b\": 3}", 13, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": 3\n}\n");
}
END_TEST

START_TEST(brackets_and_quotes_in_strings_are_no_brackets_and_quotes)
{
    assert_lines("[\"a]}\\\"\", {\"b[,\": \"{\"}]", 4,
                 "[\n  \"a]}\\\"\",\n  {\n    \"b[,\": \"{\"\n  }\n]\n");
}
END_TEST

START_TEST(empty_lists_and_objects_and_plain_values_are_values)
{
    assert_lines("{\"a\": [], \"b\": {}, \"c\": -1e5, \"d\": null}", 10,
                 "{\n  \"a\": [],\n  \"b\": {},\n  \"c\": -1e5,\n  \"d\": null\n}\n");
    assert_lines("true", 1, "true\n");
}
END_TEST

START_TEST(words_are_wrapped_and_a_long_one_is_left_whole)
{
    et_put_wrapped(&text, "one two three four", 2, 11);
    ck_assert_str_eq(text.data, "  one two\n  three\n  four\n");
    et_text_free(&text);
    et_put_wrapped(&text, "incomprehensible words", 1, 8);
    ck_assert_str_eq(text.data, " incomprehensible\n words\n");
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("write");
    TCase *all = tcase_create("all");
    tcase_add_checked_fixture(all, NULL, tear_down);
    tcase_add_test(all, quotes_stand_for_double_ones_in_formats_only);
    tcase_add_test(all, a_string_is_escaped_and_none_is_null);
    tcase_add_test(all, what_fits_stays_on_its_line);
    tcase_add_test(all, brackets_and_quotes_in_strings_are_no_brackets_and_quotes);
    tcase_add_test(all, empty_lists_and_objects_and_plain_values_are_values);
    tcase_add_test(all, words_are_wrapped_and_a_long_one_is_left_whole);
    suite_add_tcase(suite, all);
    return suite;
}
