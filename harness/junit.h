/* Results as JUnit XML, for the pages of CI systems (docs/ci.md). */
#ifndef ET_HARNESS_JUNIT_H
#define ET_HARNESS_JUNIT_H

#include "report.h"

struct et_junit;

/* Creates the file, which stays empty until et_junit_close; tool: this etalon, for a property. */
enum et_status et_junit_open(const char *path, const char *tool, struct et_junit **junit,
                             struct et_error *error);
/* reproduce: the command line that runs it again. Want of memory is told by et_junit_close. */
void et_junit_add(struct et_junit *junit, const struct et_result *result, const char *reproduce);
/* Writes the file and frees junit. left: runs that an early end left out. ET_FAILED: it is not whole. */
enum et_status et_junit_close(struct et_junit *junit, int left, struct et_error *error);

#endif
