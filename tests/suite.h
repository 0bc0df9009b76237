/* Every test program defines one suite; tests/main.c runs it. */
#ifndef ET_TESTS_SUITE_H
#define ET_TESTS_SUITE_H

#include <check.h>

Suite *et_suite(void);

#endif
