/* Executes a plan: jobs, runners, truth, checks, report. */
#ifndef ET_HARNESS_RUN_H
#define ET_HARNESS_RUN_H

#include <signal.h>

#include "plan.h"

/* Exit statuses, frozen (docs/checks.md). */
enum et_exit { ET_EXIT_PASS = 0, ET_EXIT_BROKEN = 1, ET_EXIT_USAGE = 2, ET_EXIT_NOTHING = 3 };

/* Prints "etalon: ", the sentence and a line end to stderr: one line, whatever the names that it quotes. */
void et_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * Runs everything on every device that options name and returns the exit status. Sentences for the user go to
 * stderr. *stop becomes the number of a signal that asks for an end: what was judged is kept, the rest is
 * left.
 */
int et_run_plan(const struct et_options *options, const struct et_plan *plan,
                const volatile sig_atomic_t *stop);

/*
 * Prints the ids of a plan, and under each what its checks could see (docs/checks.md, "Teeth"): inputs and
 * truth are made, no device is opened. Ends early once *stop is set.
 */
enum et_status et_predict_plan(const struct et_options *options, const struct et_plan *plan,
                               const volatile sig_atomic_t *stop, struct et_error *error);

#endif
