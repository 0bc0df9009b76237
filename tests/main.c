/* Runs the suite of one test program. A misspelt CK_RUN_CASE would run nothing and exit 0: no test is a
 * failure. */
#include <stdio.h>
#include <stdlib.h>

#include "suite.h"

int main(void)
{
    SRunner *runner = srunner_create(et_suite());
    srunner_run_all(runner, CK_ENV);
    const int run = srunner_ntests_run(runner);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (run == 0)
        fprintf(stderr, "no test ran\n");
    return run == 0 || failed > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
