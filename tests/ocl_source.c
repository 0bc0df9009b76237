/* Expansion of kernel sources, and the text and memory helpers they rest on. */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../ocl/source.h"
#include "suite.h"

/* A folder with a.cl and b.clh of the given texts, expanded from a.cl. */
static enum et_status expand(const char *a, const char *b, struct et_text *text, struct et_error *error)
{
    char folder[] = "/tmp/etalon-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    const char *const names[] = {"a.cl", "b.clh"}, *const texts[] = {a, b};
    char path[2][64];
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", folder, names[i]);
        FILE *file = fopen(path[i], "w");
        ck_assert_ptr_nonnull(file);
        fputs(texts[i], file);
        fclose(file);
    }
    const enum et_status status = et_source(&(const struct et_places){.folder = folder}, "a.cl", text, error);
    unlink(path[0]);
    unlink(path[1]);
    rmdir(folder);
    return status;
}

static const struct expansion {
    const char *a, *b, *want;
} expansions[] = {
    {"x\ny", "", "#line 1 \"a.cl\"\nx\ny\n"},
    {"x\n#include \"b.clh\"\ny\n", "b\n", "#line 1 \"a.cl\"\nx\n#line 1 \"b.clh\"\nb\n#line 3 \"a.cl\"\ny\n"},
    /* once */
    {"#include \"b.clh\"\n # include  \"b.clh\" // again\n", "b\n",
     "#line 1 \"a.cl\"\n#line 1 \"b.clh\"\nb\n#line 2 \"a.cl\"\n#line 3 \"a.cl\"\n"},
    /* a circle ends */
    {"#include \"b.clh\"\n", "#include \"a.cl\"\nb\n",
     "#line 1 \"a.cl\"\n#line 1 \"b.clh\"\n#line 2 \"b.clh\"\nb\n#line 2 \"a.cl\"\n"},
    /* what is found nowhere, or is no such line, is the compiler's */
    {"#include \"c.clh\"\n#include <math.h>\n// #include \"b.clh\"\n#include \"b.clh\n#\n", "b\n",
     "#line 1 \"a.cl\"\n#include \"c.clh\"\n#include <math.h>\n// #include \"b.clh\"\n#include \"b.clh\n#\n"},
};

START_TEST(includes_are_expanded_in_place)
{
    const struct expansion *row = &expansions[_i];
    struct et_text text = {0};
    struct et_error error = {""};
    ck_assert_msg(expand(row->a, row->b, &text, &error) == ET_OK, "%s", error.text);
    ck_assert_str_eq(text.data, row->want);
    et_text_free(&text);
}
END_TEST

START_TEST(an_override_comes_before_folder_and_built_in_files)
{
    const struct et_override overrides[] = {
        {"dtype.clh", "x\n"}, {"gqa_av.cl", "#include \"dtype.clh\"\ny"}, {NULL, NULL}};
    struct et_text text = {0};
    const struct et_places places = {.overrides = overrides, .folder = ET_CASES "/../ocl"};
    ck_assert_int_eq(et_source(&places, "gqa_av.cl", &text, NULL), ET_OK);
    ck_assert_str_eq(text.data,
                     "#line 1 \"gqa_av.cl\"\n#line 1 \"dtype.clh\"\nx\n#line 2 \"gqa_av.cl\"\ny\n");
    et_text_free(&text);
}
END_TEST

START_TEST(a_folder_comes_before_what_is_built_in)
{
    struct et_text text = {0};
    ck_assert_int_eq(expand("#include \"dtype.clh\"\n", "", &text, NULL), ET_OK);
    ck_assert_ptr_nonnull(strstr(text.data, "load4_bf16"));
    et_text_free(&text);
    ck_assert_int_eq(et_source(&(const struct et_places){0}, "gqa_av.cl", &text, NULL), ET_OK);
    ck_assert_ptr_nonnull(strstr(text.data, "gqa_av_per_head"));
    et_text_free(&text);
}
END_TEST

START_TEST(a_source_that_is_nowhere_is_named)
{
    struct et_text text = {0};
    struct et_error error = {""};
    ck_assert_int_eq(et_source(&(const struct et_places){0}, "none.cl", &text, &error), ET_FAILED);
    ck_assert_str_eq(error.text, "kernel source none.cl is not built in");
    et_text_free(&text);
}
END_TEST

START_TEST(what_a_folder_does_not_provide_does_not_pass_for_it)
{
    struct et_text text = {0};
    struct et_error error = {""};
    ck_assert_int_eq(et_source(&(const struct et_places){.folder = "/nowhere"}, "gqa_av.cl", &text, &error),
                     ET_LACKING);
    ck_assert_str_eq(error.text, "not provided: the folder of --port has no gqa_av.cl");
    et_text_free(&text);
}
END_TEST

START_TEST(what_is_embedded_is_the_file)
{
    int n = 0;
    for (; et_embedded[n].name; n++) {
        ck_assert_uint_gt(et_embedded[n].length, 0);
        ck_assert_int_eq(et_embedded[n].bytes[et_embedded[n].length - 1], '\n');
    }
    ck_assert_int_gt(n, 0);
}
END_TEST

START_TEST(a_text_grows)
{
    struct et_text text = {0};
    for (int i = 0; i < 1000; i++)
        et_text_add(&text, "%03d", i);
    et_text_bytes(&text, "\0end", 4);
    ck_assert(!text.failed);
    ck_assert_uint_eq(text.length, 3004);
    ck_assert_int_eq(memcmp(text.data + 2997, "999\0end", 8), 0);
    et_text_free(&text);
    ck_assert_ptr_null(text.data);
}
END_TEST

START_TEST(memory_that_cannot_be_had_is_a_sentence)
{
    struct et_error error = {""};
    ck_assert_ptr_null(et_alloc(SIZE_MAX / 2, 3, &error));
    ck_assert_ptr_nonnull(strstr(error.text, "out of memory: 9223372036854775807 x 3 bytes"));
    char *p = et_print(&error, "%s-%d", "kept", 1);
    ck_assert_ptr_null(et_resize(p, SIZE_MAX / 2, 3, &error));
    ck_assert_str_eq(p, "kept-1");
    et_free(p);
    p = et_alloc(0, 8, NULL);
    ck_assert_ptr_nonnull(p);
    et_free(p);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("ocl_source");
    TCase *source = tcase_create("source");
    tcase_add_loop_test(source, includes_are_expanded_in_place, 0,
                        (int)(sizeof expansions / sizeof expansions[0]));
    tcase_add_test(source, a_folder_comes_before_what_is_built_in);
    tcase_add_test(source, an_override_comes_before_folder_and_built_in_files);
    tcase_add_test(source, a_source_that_is_nowhere_is_named);
    tcase_add_test(source, what_a_folder_does_not_provide_does_not_pass_for_it);
    tcase_add_test(source, what_is_embedded_is_the_file);
    suite_add_tcase(suite, source);
    TCase *memory = tcase_create("memory");
    tcase_add_test(memory, a_text_grows);
    tcase_add_test(memory, memory_that_cannot_be_had_is_a_sentence);
    suite_add_tcase(suite, memory);
    return suite;
}
