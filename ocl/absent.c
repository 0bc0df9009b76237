/* Stands in for devices where etalon was built without OpenCL's headers. */
#include <stdio.h>

#include "port.h"

static const char sentence[] = "etalon was built without the header CL/cl.h, so there is no OpenCL";

int et_device_list(struct et_device *dst, int n, char *report, size_t report_bytes)
{
    (void)dst;
    (void)n;
    if (report_bytes > 0)
        snprintf(report, report_bytes, "%s\n", sentence);
    return 0;
}

enum et_status et_device_open(const struct et_open *options, struct et_session **session,
                              struct et_device *device, struct et_error *error)
{
    (void)options;
    (void)device;
    *session = NULL;
    return et_fail(error, ET_LACKING, "%s", sentence);
}

void et_device_override(struct et_session *session, const struct et_override *overrides)
{
    (void)session;
    (void)overrides;
}

void et_device_close(struct et_session *session)
{
    (void)session;
}

enum et_status et_ocl_prepare(struct et_session *session, const struct et_variant *variant,
                              const struct et_problem *steps, const struct et_claim *claims, int n,
                              void **state, struct et_error *error)
{
    (void)session;
    (void)variant;
    (void)steps;
    (void)claims;
    (void)n;
    *state = NULL;
    return et_fail(error, ET_LACKING, "%s", sentence);
}

enum et_status et_ocl_step(void *state, int i, int repeat, void *const *out, struct et_facts *facts,
                           struct et_error *error)
{
    (void)state;
    (void)i;
    (void)repeat;
    (void)out;
    (void)facts;
    return et_fail(error, ET_LACKING, "%s", sentence);
}

void et_ocl_finish(void *state)
{
    (void)state;
}
