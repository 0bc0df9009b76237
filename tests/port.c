/* What is generic over ports: a smaller device that stands for the real one. */
#include "../ref/etalon_port.h"
#include "suite.h"

static const struct et_device real = {.compute_units = 24,
                                      .work_group = 1024,
                                      .local_memory = 49152,
                                      .global_memory = 8589934592,
                                      .allocation = 2147483648,
                                      .subgroups = true};

START_TEST(a_limit_lowers_what_it_names_and_leaves_the_rest)
{
    struct et_device device = real;
    et_limit_device(&device, &(struct et_ceilings){.work_group = 64, .allocation = 4096});
    ck_assert_int_eq(device.work_group, 64);
    ck_assert_int_eq(device.local_memory, 49152);
    ck_assert_int_eq(device.allocation, 4096);
    ck_assert_int_eq(device.global_memory, 8589934592);
    ck_assert_int_eq(device.compute_units, 24);
    ck_assert(device.subgroups);
    et_limit_device(&device, &(struct et_ceilings){.local_memory = 16384, .no_subgroups = true});
    ck_assert_int_eq(device.work_group, 64);
    ck_assert_int_eq(device.local_memory, 16384);
    ck_assert(!device.subgroups);
}
END_TEST

START_TEST(a_limit_above_what_the_device_has_changes_nothing)
{
    struct et_device device = real;
    et_limit_device(
        &device, &(struct et_ceilings){.work_group = 1025, .local_memory = 49153, .allocation = 2147483649});
    ck_assert_int_eq(device.work_group, 1024);
    ck_assert_int_eq(device.local_memory, 49152);
    ck_assert_int_eq(device.allocation, 2147483648);
}
END_TEST

START_TEST(a_limit_stands_for_what_is_not_known_of_the_device)
{
    struct et_device device = et_device_unlimited();
    et_limit_device(&device,
                    &(struct et_ceilings){.work_group = 64, .local_memory = 16384, .allocation = 4096});
    ck_assert_int_eq(device.work_group, 64);
    ck_assert_int_eq(device.local_memory, 16384);
    ck_assert_int_eq(device.allocation, 4096);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("port");
    TCase *limits = tcase_create("limits");
    tcase_add_test(limits, a_limit_lowers_what_it_names_and_leaves_the_rest);
    tcase_add_test(limits, a_limit_above_what_the_device_has_changes_nothing);
    tcase_add_test(limits, a_limit_stands_for_what_is_not_known_of_the_device);
    suite_add_tcase(suite, limits);
    return suite;
}
