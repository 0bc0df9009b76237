/* What `etalon mutate` says of a mutant, by the runs that it had. */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../harness/mutate.h"
#include "suite.h"

enum { RUNS = 3 };

/* The verdict, after RUNS runs of the kernels as they are, on a mutant that had `runs`, `broken` of them
 * broken. */
static void judged(bool honest, int runs, int broken, const char *want)
{
    char name[] = "mutant", bug[] = "a bug", path[] = "/tmp/etalon-kills-XXXXXX", line[2000] = "";
    struct et_mutant mutant = {.name = name, .op = et_operator_named("gqa_av"), .bug = bug, .honest = honest};
    const struct et_mutants mutants = {.at = &mutant, .count = 1};
    const struct et_device device = {.name = "d", .place = "0:0"};
    const struct et_case c = {.op = mutant.op};
    const struct et_run run = {.id = name, .c = &c};
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    const struct et_options options = {.results = path};
    struct et_kills *kills;
    struct et_error error;
    bool bad;
    ck_assert_int_eq(et_kills_open(&options, &mutants, &device, 1, &kills, &error), ET_OK);
    for (int i = 0; i < RUNS + runs; i++) {
        struct et_judgement judgement = {.check[ET_CHECK_BOUND].outcome =
                                             i >= RUNS && i - RUNS < broken ? ET_BROKEN : ET_HELD};
        et_kills_add(kills, &(struct et_result){.run = &run,
                                                .mutant = i < RUNS ? NULL : &mutant,
                                                .device = &device,
                                                .verdict = ET_PASS,
                                                .judgement = &judgement});
    }
    ck_assert_int_eq(et_kills_close(kills, &bad, &error), ET_OK);
    FILE *file = fdopen(fd, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
    ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
    fclose(file);
    unlink(path);
    char verdict[60];
    snprintf(verdict, sizeof verdict, "\"verdict\":\"%s\"", want);
    ck_assert_msg(strstr(line, verdict), "%s in %s", verdict, line);
    ck_assert_int_eq(bad, strcmp(want, "killed") != 0 && strcmp(want, "quiet") != 0);
}

START_TEST(a_mutant_survives_only_what_it_was_run_with)
{
    judged(false, RUNS, 1, "killed");
    judged(false, 1, 1, "killed");
    judged(false, RUNS, 0, "SURVIVED");
    judged(false, RUNS - 1, 0, "NOT ALL RUN");
    judged(false, 0, 0, "NOT RUN");
    judged(true, RUNS, 0, "quiet");
    judged(true, RUNS - 1, 0, "NOT ALL RUN");
    judged(true, 1, 1, "FALSE ALARM");
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("kills");
    TCase *rows = tcase_create("rows");
    tcase_add_test(rows, a_mutant_survives_only_what_it_was_run_with);
    suite_add_tcase(suite, rows);
    return suite;
}
