/* The nest of runs against a program of ours in the runner's seat: what one run may cost the others. */
#define _XOPEN_SOURCE 700

#include "../harness/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../harness/job.h"
#include "../ocl/ocl.h"
#include "folder.h"
#include "suite.h"

/* Each test runs in a folder of its own. */
static void enter_folder(void)
{
    enter_temporary_folder();
}

static void leave_folder(void)
{
    char folder[256];
    ck_assert_ptr_nonnull(getcwd(folder, sizeof folder));
    ck_assert_int_eq(chdir(".."), 0);
    et_remove_folder(folder);
}

/* The lines of a file, each without its newline; returns how many. */
static int read_lines(const char *path, char line[][2000], int most)
{
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    int n = 0;
    while (n < most && fgets(line[n], sizeof line[n], file))
        n++;
    fclose(file);
    for (int i = 0; i < n; i++)
        line[i][strcspn(line[i], "\n")] = '\0';
    return n;
}

/* Three runs of one variant, by ./program. Returns the exit status; results are in r.jsonl. */
static int run_three(const char *program)
{
    static const volatile sig_atomic_t stop = 0;
    const char *target = "t.json";
    const struct et_options options = {.targets = {&target, 1},
                                       .shard = 1,
                                       .shards = 1,
                                       .guards = true,
                                       .port = "ocl",
                                       .results = "r.jsonl",
                                       .threads = 1,
                                       .cases = ".",
                                       .program = "./program"};
    struct et_plan plan;
    struct et_error error;
    write_text("t.json",
               "{\"format\": 1, \"operator\": \"gqa_av\", \"cases\": [{\"name\": \"a\", \"params\": "
               "{\"q_heads\": 1, \"kv_heads\": 1, \"head_dim\": 4}, \"variants\": [\"per_head\"], "
               "\"sweep\": {\"context\": [1, 2, 3]}}]}");
    write_text("models.json", "{}");
    write_text("program", program);
    ck_assert_int_eq(chmod("program", 0700), 0);
    ck_assert_msg(et_plan_make(&options, &et_ocl, &plan, &error) == ET_OK, "%s", error.text);
    const int code = et_run_plan(&options, &plan, &stop);
    et_plan_free(&plan);
    return code;
}

#define LIST                                                                                                 \
    "#!/bin/sh\n"                                                                                            \
    "case \"$*\" in *--list) echo '{\"devices\": [{\"name\": \"D\", \"place\": \"7:1\"}], \"report\": "      \
    "\"\"}'; exit;; esac\n"                                                                                  \
    "echo \"$*\" >>starts\n"                                                                                 \
    "echo '{\"etalon\": 1, \"port\": \"fake\", \"device\": {\"name\": \"D\"}}'\n"

/*
 * An access out of bounds leaves an NVIDIA context broken: every call of the process fails from then on. The
 * program of the first start answers with errors for ever; later ones have no memory, which is a SKIP. Its
 * hello names no place, so that a second start would be for no device, if the place were taken from it.
 */
START_TEST(an_error_costs_its_own_run_only)
{
    char line[5][2000];
    const int code =
        run_three(LIST "answer=error; [ $(wc -l <starts) -eq 1 ] || answer=lacking\n"
                       "while read request; do\n"
                       "echo \"{\\\"status\\\": \\\"$answer\\\", \\\"error\\\": \\\"sorry\\\"}\"\n"
                       "done\n");
    ck_assert_int_eq(code, ET_EXIT_BROKEN);
    ck_assert_int_eq(read_lines("r.jsonl", line, 5), 4);
    ck_assert_ptr_nonnull(strstr(line[1], "\"verdict\":\"ERROR\",\"reason\":\"sorry\""));
    ck_assert_ptr_nonnull(strstr(line[2], "\"verdict\":\"SKIP\",\"reason\":\"sorry\""));
    ck_assert_ptr_nonnull(strstr(line[3], "\"verdict\":\"SKIP\",\"reason\":\"sorry\""));
    ck_assert_int_eq(read_lines("starts", line, 5), 2);
    ck_assert_str_eq(line[0], "worker --port ocl --device 7:1");
    ck_assert_str_eq(line[1], "worker --port ocl --device 7:1");
}
END_TEST

/* The first run's program dies, and no later one says hello: neither run that is left may wait for another.
 */
START_TEST(a_device_that_does_not_open_again_is_given_up)
{
    char line[5][2000];
    const int code = run_three("#!/bin/sh\n"
                               "case \"$*\" in *--list) echo '{\"devices\": [{\"name\": \"D\", \"place\": "
                               "\"7:1\"}], \"report\": \"\"}'; exit;; esac\n"
                               "echo \"$*\" >>starts; [ $(wc -l <starts) -eq 1 ] || exit 3\n"
                               "echo '{\"etalon\": 1, \"port\": \"fake\", \"device\": {\"name\": \"D\"}}'\n"
                               "read request; exit 4\n");
    ck_assert_int_eq(code, ET_EXIT_BROKEN);
    ck_assert_int_eq(read_lines("r.jsonl", line, 5), 4);
    ck_assert_ptr_nonnull(strstr(line[1], "exited with status 4"));
    ck_assert_ptr_nonnull(strstr(line[2], "exited with status 3"));
    ck_assert_ptr_nonnull(strstr(line[3], "exited with status 3"));
    ck_assert_int_eq(read_lines("starts", line, 5), 2);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("run");
    TCase *tests = tcase_create("run");
    tcase_add_checked_fixture(tests, enter_folder, leave_folder);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, an_error_costs_its_own_run_only);
    tcase_add_test(tests, a_device_that_does_not_open_again_is_given_up);
    suite_add_tcase(suite, tests);
    return suite;
}
