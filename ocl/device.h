/* Devices: what there is, an open one, its programs, and what its arithmetic does. */
#ifndef ET_OCL_DEVICE_H
#define ET_OCL_DEVICE_H

#include "../ref/etalon_port.h"
#include "cl.h"
#include "memory.h"

struct et_program; /* one built program of a session */

struct et_session {
    struct et_cl cl;
    struct et_device device; /* with the limits it was opened with */
    cl_device_id id;
    cl_context context;
    cl_command_queue queue;
    char *folder, *binaries;             /* or NULL */
    const struct et_override *overrides; /* of the request, or NULL */
    bool guards;
    struct et_program *programs;
};

/*
 * A kernel of `file` (an override, of folder, or embedded), built with -cl-std=CL1.2 and options. Programs
 * are kept until the session is closed, so that the same text with the same options is built once. Release
 * the kernel with clReleaseKernel. A build that fails says so with the log. With binaries, what was built is
 * FILE-HASH@PLACE.bin there, HASH of text and options, and FILE-HASH@PLACE.txt is a line: file and options.
 */
enum et_status et_kernel(struct et_session *session, const char *folder, const char *file,
                         const char *options, const char *kernel, cl_kernel *dst, struct et_error *error);
void et_programs_free(struct et_session *session);

/* Runs the arithmetic probe; sets probed, exact, exact_subnormal and probe of the session's device. */
enum et_status et_probe(struct et_session *session, struct et_error *error);

/* Sets shuffles and vendor_shuffles of the session's device: over how many lanes exchanges were seen to work.
 */
void et_probe_shuffles(struct et_session *session);

/* Adds a line for each driver file the loader reads: the library it names, and whether that opens. */
void et_driver_report(struct et_text *report);
/* Before the loader is opened: what a driver reads from the environment and processes must not share. */
enum et_status et_driver_environment(struct et_error *error);

#endif
