/* JUnit XML: what is written for which run, and that it is XML whatever a driver says. */
#define _XOPEN_SOURCE 700

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../harness/junit.h"
#include "folder.h"
#include "suite.h"

static void leave_folder(void)
{
    char folder[256];
    ck_assert_ptr_nonnull(getcwd(folder, sizeof folder));
    ck_assert_int_eq(chdir(".."), 0);
    et_remove_folder(folder);
}

static const struct et_operator op = {.name = "gqa_av"};
static const struct et_case a_case = {.op = &op};
static const char digests[2][33] = {"00000000000000000000000000000001", "00000000000000000000000000000002"};

static void write_one(const struct et_result *result, const char *tool, char *text, size_t bytes)
{
    struct et_junit *junit = NULL;
    struct et_error error = {""};
    ck_assert_msg(et_junit_open("junit.xml", tool, &junit, &error) == ET_OK, "%s", error.text);
    et_junit_add(junit, result, "etalon run 'x'");
    ck_assert_msg(et_junit_close(junit, 0, &error) == ET_OK, "%s", error.text);
    read_text("junit.xml", text, bytes);
}

static const char head[] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                           "<testsuites name=\"etalon\" tests=\"1\" failures=\"%d\" errors=\"%d\" "
                           "skipped=\"%d\">\n"
                           "<testsuite name=\"%s\" tests=\"1\" failures=\"%d\" errors=\"%d\" skipped=\"%d\" "
                           "time=\"0.000000\">\n"
                           "<properties>\n<property name=\"etalon\" value=\"%s\"/>\n</properties>\n";

static void expect(const char *text, int failures, int errors, int skipped, const char *suite,
                   const char *tool, const char *body)
{
    char wanted[4096];
    const int n = snprintf(wanted, sizeof wanted, head, failures, errors, skipped, suite, failures, errors,
                           skipped, tool);
    snprintf(wanted + n, sizeof wanted - (size_t)n, "%s</testcase>\n</testsuite>\n</testsuites>\n", body);
    ck_assert_str_eq(wanted, text);
}

START_TEST(a_pass_has_its_digests_headroom_and_reproduce_line_as_properties)
{
    char text[4096];
    const struct et_run run = {.id = (char[]){"gqa_av/f/n/normal/gqa"}, .c = &a_case};
    const struct et_judgement judgement = {.headroom = 0.25};
    write_one(&(struct et_result){.run = &run,
                                  .verdict = ET_PASS,
                                  .judgement = &judgement,
                                  .steps = 2,
                                  .inputs = digests,
                                  .outputs = digests},
              "0.1.0 abc", text, sizeof text);
    expect(text, 0, 0, 0, "no device", "0.1.0 abc",
           "<testcase classname=\"gqa_av\" name=\"gqa_av/f/n/normal/gqa\" time=\"0.000000\">\n"
           "<properties>\n<property name=\"verdict\" value=\"PASS\"/>\n"
           "<property name=\"headroom\" value=\"0.25\"/>\n"
           "<property name=\"inputs\" "
           "value=\"00000000000000000000000000000001 00000000000000000000000000000002\"/>\n"
           "<property name=\"outputs\" "
           "value=\"00000000000000000000000000000001 00000000000000000000000000000002\"/>\n"
           "<property name=\"reproduce\" value=\"etalon run &#39;x&#39;\"/>\n</properties>\n");
}
END_TEST

/* XML 1.0 has no control characters but tab, LF, CR, no surrogates, no U+FFFE, U+FFFF; "]]>" ends no CDATA.
 */
START_TEST(an_error_is_xml_whatever_the_driver_and_the_build_log_hold)
{
    char text[4096];
    const struct et_device device = {.place = "0:0", .name = "\x01<\"GPU\">\xff"};
    const struct et_run run = {.id = (char[]){"gqa_av/f/n/normal/gqa"}, .c = &a_case};
    write_one(&(struct et_result){.run = &run,
                                  .device = &device,
                                  .verdict = ET_ERROR,
                                  .reason = "a\tb \x1b[31m]]>\r\n\xc3\xa4\xed\xa0\x80\xef\xbf\xbe\xef\xbf\xbf"
                                            "\xf0\x9f\x98\x80\xc3 'q' &\x7f"},
              "\xfe&", text, sizeof text);
    expect(text, 0, 1, 0, "0:0 \xef\xbf\xbd&#60;&#34;GPU&#34;&#62;\xef\xbf\xbd", "\xef\xbf\xbd&#38;",
           "<testcase classname=\"gqa_av\" name=\"gqa_av/f/n/normal/gqa\" time=\"0.000000\">\n"
           "<properties>\n<property name=\"verdict\" value=\"ERROR\"/>\n"
           "<property name=\"reproduce\" value=\"etalon run &#39;x&#39;\"/>\n</properties>\n"
           "<error type=\"ERROR\" message=\"a&#9;b \xef\xbf\xbd[31m]]&#62;&#13;\">"
           "a&#9;b \xef\xbf\xbd[31m]]&#62;&#13;&#10;\xc3\xa4\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
           "\xef\xbf\xbd\xef\xbf\xbd\xf0\x9f\x98\x80\xef\xbf\xbd &#39;q&#39; &#38;&#127;&#10;</error>\n");
}
END_TEST

START_TEST(fail_mistrusted_and_xpass_are_failures_and_their_broken_checks_the_text)
{
    const enum et_verdict verdicts[] = {ET_FAIL, ET_MISTRUSTED, ET_XPASS};
    struct et_judgement judgement = {.headroom = INFINITY};
    judgement.check[ET_CHECK_BOUND] = (struct et_finding){.outcome = ET_BROKEN, .text = "out (0): got nan"};
    judgement.check[ET_CHECK_REPLAY] = (struct et_finding){.outcome = ET_BROKEN, .text = "out (0): 1"};
    judgement.check[ET_CHECK_NMSE] = (struct et_finding){.outcome = ET_HELD, .text = "not this"};
    for (int i = 0; i < 3; i++) {
        char text[4096], body[2048];
        const struct et_run run = {.id = (char[]){"id"}, .c = &a_case};
        write_one(&(struct et_result){.run = &run,
                                      .verdict = verdicts[i],
                                      .reason = "why",
                                      .judgement = &judgement,
                                      .steps = 1,
                                      .inputs = digests},
                  "t", text, sizeof text);
        snprintf(body, sizeof body,
                 "<testcase classname=\"gqa_av\" name=\"id\" time=\"0.000000\">\n"
                 "<properties>\n<property name=\"verdict\" value=\"%s\"/>\n"
                 "<property name=\"headroom\" value=\"null\"/>\n"
                 "<property name=\"reproduce\" value=\"etalon run &#39;x&#39;\"/>\n</properties>\n"
                 "<failure type=\"%s\" message=\"why\">why&#10;bound: out (0): got nan&#10;"
                 "replay: out (0): 1&#10;</failure>\n",
                 et_verdict_name(verdicts[i]), et_verdict_name(verdicts[i]));
        expect(text, 1, 0, 0, "no device", "t", body);
    }
}
END_TEST

START_TEST(a_skip_has_its_reason_and_an_xfail_is_a_test_that_passed)
{
    char text[4096];
    const struct et_run run = {.id = (char[]){"id"}, .c = &a_case};
    write_one(&(struct et_result){.run = &run, .verdict = ET_SKIP, .reason = "too large"}, "t", text,
              sizeof text);
    expect(text, 0, 0, 1, "no device", "t",
           "<testcase classname=\"gqa_av\" name=\"id\" time=\"0.000000\">\n"
           "<properties>\n<property name=\"verdict\" value=\"SKIP\"/>\n"
           "<property name=\"reproduce\" value=\"etalon run &#39;x&#39;\"/>\n</properties>\n"
           "<skipped message=\"too large\"/>\n");
    write_one(&(struct et_result){.run = &run, .verdict = ET_XFAIL, .reason = "known"}, "t", text,
              sizeof text);
    expect(text, 0, 0, 0, "no device", "t",
           "<testcase classname=\"gqa_av\" name=\"id\" time=\"0.000000\">\n"
           "<properties>\n<property name=\"verdict\" value=\"XFAIL\"/>\n"
           "<property name=\"reproduce\" value=\"etalon run &#39;x&#39;\"/>\n</properties>\n");
}
END_TEST

START_TEST(a_file_that_cannot_be_written_is_told_by_its_name)
{
    struct et_junit *junit = NULL;
    struct et_error error = {""};
    ck_assert_int_eq(et_junit_open("no/folder", "t", &junit, &error), ET_INVALID);
    ck_assert_str_eq("no/folder: No such file or directory", error.text);
    ck_assert_int_eq(et_junit_open("/dev/full", "t", &junit, &error), ET_OK);
    ck_assert_int_eq(et_junit_close(junit, 0, &error), ET_FAILED);
    ck_assert_str_eq("/dev/full: No space left on device: the results are not whole", error.text);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("junit");
    TCase *tests = tcase_create("junit");
    tcase_add_checked_fixture(tests, enter_temporary_folder, leave_folder);
    tcase_add_test(tests, a_pass_has_its_digests_headroom_and_reproduce_line_as_properties);
    tcase_add_test(tests, an_error_is_xml_whatever_the_driver_and_the_build_log_hold);
    tcase_add_test(tests, fail_mistrusted_and_xpass_are_failures_and_their_broken_checks_the_text);
    tcase_add_test(tests, a_skip_has_its_reason_and_an_xfail_is_a_test_that_passed);
    tcase_add_test(tests, a_file_that_cannot_be_written_is_told_by_its_name);
    suite_add_tcase(suite, tests);
    return suite;
}
