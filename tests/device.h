/* The device of a test, and a session on it. */
#ifndef ET_TESTS_DEVICE_H
#define ET_TESTS_DEVICE_H

#include <stdio.h>
#include <string.h>

#include "../ocl/device.h"
#include "../ocl/ocl.h"
#include "suite.h"

/* PoCL if there is one, else the first; false if there is none. */
static inline bool first_device(struct et_device *device)
{
    struct et_device all[16];
    char report[4000];
    const int n = et_ocl.list(all, 16, report, sizeof report);
    int k = 0;
    for (int i = (n < 16 ? n : 16) - 1; i >= 0; i--)
        k = strcmp(all[i].platform, "Portable Computing Language") == 0 ? i : k;
    if (n > 0)
        *device = all[k];
    else
        fputs(report, stderr);
    return n > 0;
}

static inline struct et_session *open_session(bool guards, const char *folder)
{
    struct et_device device;
    ck_assert(first_device(&device));
    char place[sizeof device.place];
    memcpy(place, device.place, sizeof place);
    const struct et_open options = {.place = place, .folder = folder, .guards = guards};
    struct et_session *session;
    struct et_error error;
    ck_assert_msg(et_ocl.open(&options, &session, &device, &error) == ET_OK, "%s", error.text);
    ck_assert(device.probed);
    return session;
}

#endif
