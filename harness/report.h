/* What the harness says: progress, failures and a summary on the console, one JSON line a run in a file,
 * JUnit XML. */
#ifndef ET_HARNESS_REPORT_H
#define ET_HARNESS_REPORT_H

#include "judge.h"
#include "plan.h"

/* Seconds spent in each kind of work. */
struct et_times {
    double fill, oracle, compile, kernel;
};

/* One run on one device, judged. */
struct et_result {
    const struct et_run *run;
    const struct et_mutant *mutant; /* NULL: the kernels as they are */
    const struct et_device *device; /* NULL: no device was needed */
    enum et_verdict verdict;
    bool listed;                          /* among the known failures */
    bool unbuilt;                         /* an ERROR: the kernels do not build */
    const char *reason;                   /* one sentence for anything but PASS */
    const struct et_judgement *judgement; /* NULL where nothing was compared */
    const struct et_claim *claim;         /* of the first step; NULL where nothing ran */
    int steps;
    const char (*inputs)[33], (*outputs)[33]; /* digests, one a step; NULL where nothing ran */
    double device_ns, device_ns_median;
    struct et_times times;
    const char *program;
    const char *kept; /* the folder that its job is kept in, or NULL */
};

struct et_report; /* opened once a run of the harness */

/* Creates the results files (if any) and writes the header line; drivers: what the port looked at, or NULL.
 */
enum et_status et_report_open(const struct et_options *options, const struct et_plan *plan,
                              const struct et_device *devices, int device_count, const char *drivers,
                              struct et_report **report, struct et_error *error);
/* Prints and records one result. A write that fails is told once, by et_report_close. */
void et_report_add(struct et_report *report, const struct et_result *result);
/* Prints the reproduce lines and the summary. Frees the report. ET_FAILED: results could not be written. */
enum et_status et_report_close(struct et_report *report, struct et_error *error);

int et_report_count(const struct et_report *report, enum et_verdict verdict);
/* As many failures as --max-fail allows. */
bool et_report_full(const struct et_report *report);
int et_report_unlisted_skips(const struct et_report *report);

/* Prints a sentence of somebody else's, `between` in place of each line end: none of its lines is one of
 * ours. */
void et_print_lines(const char *sentence, const char *between);

#endif
