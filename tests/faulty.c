/*
 * Linked into a second etalon, -Wl,--wrap, so that the first has no hook: the n-th allocation or OpenCL call
 * of one process fails, or that process ends there or in the middle of an answer. See tests/faults.py.
 *
 *   ETALON_FAULT      WHO:WHAT:N:HOW
 *                     WHO   judge; list, the worker that lists devices; worker, one of a device
 *                     WHAT  alloc, cl, or say: a line of the worker, of which the first is its hello
 *                     HOW   fail; kill (SIGKILL)
 *                           half (say: half the line, then SIGKILL)
 *                           cut, late (say: every file of outputs is cut to nothing, before or after
 *                           the end of the line is said)
 *
 *   ETALON_FAULT_LOG  made when it happens, and told what failed; where it is there, nothing happens any more
 */
#define _GNU_SOURCE

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../harness/job.h"
#include "../ocl/cl.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
ssize_t __real_write(int fd, const void *bytes, size_t n);
enum et_status __real_et_cl_open(struct et_cl *cl, struct et_error *error);
enum et_status __real_et_outputs_create(const struct et_job *job, int step, int repeat, const char *folder,
                                        void **out, void **map, size_t *bytes, struct et_error *error);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
ssize_t __wrap_write(int fd, const void *bytes, size_t n);
enum et_status __wrap_et_cl_open(struct et_cl *cl, struct et_error *error);
enum et_status __wrap_et_outputs_create(const struct et_job *job, int step, int repeat, const char *folder,
                                        void **out, void **map, size_t *bytes, struct et_error *error);

static struct {
    char what[16], how[16];
    const char *log;
    int at; /* 0: never */
    atomic_int seen;
} fault;

static struct et_cl real;
static char outputs[4096];

/* What a compiler's runtime allocates after main, that of a coverage build, is none of etalon's. */
static void rest(void)
{
    fault.at = 0;
}

/* glibc hands a constructor what main gets. */
__attribute__((constructor)) static void choose(int argc, char **argv)
{
    char who[16] = "", is[16] = "judge";
    const char *text = getenv("ETALON_FAULT");
    int at = 0;
    if (argc > 1 && !strcmp(argv[1], "worker"))
        snprintf(is, sizeof is, "%s", !strcmp(argv[argc - 1], "--list") ? "list" : "worker");
    fault.log = getenv("ETALON_FAULT_LOG");
    if (!text || !fault.log || sscanf(text, "%15[^:]:%15[^:]:%d:%15s", who, fault.what, &at, fault.how) != 4)
        return;
    fault.at = strcmp(who, is) ? 0 : at;
    atexit(rest);
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = __wrap_malloc, .free_fn = free});
}

/* Whether this is the call that something happens to; it is where it returns. */
static bool strikes(const char *what, const char *name)
{
    if (fault.at == 0 || strcmp(what, fault.what) != 0 || atomic_fetch_add(&fault.seen, 1) + 1 != fault.at)
        return false;
    const int fd = open(fault.log, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    const bool told = __real_write(fd, name, strlen(name)) > 0;
    close(fd);
    if (!told || !strcmp(fault.how, "kill"))
        kill(getpid(), SIGKILL);
    return true;
}

/* ---- Allocations: all of ref/, ocl/, harness/ and cJSON, none of the C library or a driver ---- */

static bool memory_ends(const char *name)
{
    const bool ends = strikes("alloc", name);
    errno = ends ? ENOMEM : errno;
    return ends;
}

void *__wrap_malloc(size_t bytes)
{
    return memory_ends("malloc") ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return memory_ends("calloc") ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    return memory_ends("realloc") ? NULL : __real_realloc(p, bytes);
}

/* ---- Lines of a worker ---- */

static void cut_outputs(void)
{
    DIR *folder = outputs[0] ? opendir(outputs) : NULL;
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[sizeof outputs + sizeof entry->d_name];
        snprintf(path, sizeof path, "%s/%s", outputs, entry->d_name);
        if (entry->d_name[0] != '.' && truncate(path, 0) != 0)
            abort();
    }
    if (folder)
        closedir(folder);
}

ssize_t __wrap_write(int fd, const void *bytes, size_t n)
{
    if (!strikes("say", "write"))
        return __real_write(fd, bytes, n);
    const bool half = !strcmp(fault.how, "half"), late = !strcmp(fault.how, "late");
    const ssize_t written = __real_write(fd, bytes, half ? n / 2 : late ? n : n - 1);
    if (half)
        kill(getpid(), SIGKILL);
    cut_outputs();
    return written; /* of cut, the caller writes the rest */
}

enum et_status __wrap_et_outputs_create(const struct et_job *job, int step, int repeat, const char *folder,
                                        void **out, void **map, size_t *bytes, struct et_error *error)
{
    snprintf(outputs, sizeof outputs, "%s", folder);
    return __real_et_outputs_create(job, step, repeat, folder, out, map, bytes, error);
}

/* ---- OpenCL calls ---- */

/* The call is not made, and says so. */
#define CODE(name, parameters, ...)                                                                          \
    static cl_int CL_API_CALL name##_ parameters                                                             \
    {                                                                                                        \
        return strikes("cl", #name) ? CL_OUT_OF_RESOURCES : real.name(__VA_ARGS__);                          \
    }
/* The same where the code is the last argument. */
#define MADE(type, name, parameters, ...)                                                                    \
    static type CL_API_CALL name##_ parameters                                                               \
    {                                                                                                        \
        if (!strikes("cl", #name))                                                                           \
            return real.name(__VA_ARGS__);                                                                   \
        *code = CL_OUT_OF_RESOURCES;                                                                         \
        return NULL;                                                                                         \
    }
/* Released all the same: nothing of ours would have leaked. */
#define RELEASE(name, type)                                                                                  \
    static cl_int CL_API_CALL name##_(type object)                                                           \
    {                                                                                                        \
        const cl_int code = real.name(object);                                                               \
        return strikes("cl", #name) ? CL_OUT_OF_RESOURCES : code;                                            \
    }

typedef void(CL_CALLBACK *built)(cl_program program, void *user);
typedef void(CL_CALLBACK *noted)(const char *text, const void *more, size_t bytes, void *user);

CODE(clBuildProgram,
     (cl_program program, cl_uint n, const cl_device_id *devices, const char *options, built back,
      void *user),
     program, n, devices, options, back, user)
MADE(cl_mem, clCreateBuffer, (cl_context context, cl_mem_flags flags, size_t bytes, void *host, cl_int *code),
     context, flags, bytes, host, code)
MADE(cl_command_queue, clCreateCommandQueue,
     (cl_context context, cl_device_id device, cl_command_queue_properties properties, cl_int *code), context,
     device, properties, code)
MADE(cl_context, clCreateContext,
     (const cl_context_properties *properties, cl_uint n, const cl_device_id *devices, noted back, void *user,
      cl_int *code),
     properties, n, devices, back, user, code)
MADE(cl_kernel, clCreateKernel, (cl_program program, const char *name, cl_int *code), program, name, code)
MADE(cl_program, clCreateProgramWithSource,
     (cl_context context, cl_uint n, const char **texts, const size_t *lengths, cl_int *code), context, n,
     texts, lengths, code)
CODE(clEnqueueNDRangeKernel,
     (cl_command_queue queue, cl_kernel kernel, cl_uint dims, const size_t *offset, const size_t *global,
      const size_t *local, cl_uint n, const cl_event *wait, cl_event *event),
     queue, kernel, dims, offset, global, local, n, wait, event)
CODE(clEnqueueReadBuffer,
     (cl_command_queue queue, cl_mem mem, cl_bool blocking, size_t at, size_t bytes, void *dst, cl_uint n,
      const cl_event *wait, cl_event *event),
     queue, mem, blocking, at, bytes, dst, n, wait, event)
CODE(clEnqueueWriteBuffer,
     (cl_command_queue queue, cl_mem mem, cl_bool blocking, size_t at, size_t bytes, const void *src,
      cl_uint n, const cl_event *wait, cl_event *event),
     queue, mem, blocking, at, bytes, src, n, wait, event)
CODE(clFinish, (cl_command_queue queue), queue)
CODE(clGetDeviceIDs,
     (cl_platform_id platform, cl_device_type type, cl_uint n, cl_device_id *ids, cl_uint *found), platform,
     type, n, ids, found)
CODE(clGetDeviceInfo, (cl_device_id device, cl_device_info what, size_t bytes, void *dst, size_t *needed),
     device, what, bytes, dst, needed)
CODE(clGetEventProfilingInfo,
     (cl_event event, cl_profiling_info what, size_t bytes, void *dst, size_t *needed), event, what, bytes,
     dst, needed)
CODE(clGetKernelInfo, (cl_kernel kernel, cl_kernel_info what, size_t bytes, void *dst, size_t *needed),
     kernel, what, bytes, dst, needed)
CODE(clGetKernelWorkGroupInfo,
     (cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info what, size_t bytes, void *dst,
      size_t *needed),
     kernel, device, what, bytes, dst, needed)
CODE(clGetPlatformIDs, (cl_uint n, cl_platform_id *ids, cl_uint *found), n, ids, found)
CODE(clGetPlatformInfo,
     (cl_platform_id platform, cl_platform_info what, size_t bytes, void *dst, size_t *needed), platform,
     what, bytes, dst, needed)
CODE(clGetProgramBuildInfo,
     (cl_program program, cl_device_id device, cl_program_build_info what, size_t bytes, void *dst,
      size_t *needed),
     program, device, what, bytes, dst, needed)
CODE(clGetProgramInfo, (cl_program program, cl_program_info what, size_t bytes, void *dst, size_t *needed),
     program, what, bytes, dst, needed)
CODE(clSetKernelArg, (cl_kernel kernel, cl_uint at, size_t bytes, const void *value), kernel, at, bytes,
     value)
RELEASE(clReleaseCommandQueue, cl_command_queue)
RELEASE(clReleaseContext, cl_context)
RELEASE(clReleaseEvent, cl_event)
RELEASE(clReleaseKernel, cl_kernel)
RELEASE(clReleaseMemObject, cl_mem)
RELEASE(clReleaseProgram, cl_program)

enum et_status __wrap_et_cl_open(struct et_cl *cl, struct et_error *error)
{
    const enum et_status status = __real_et_cl_open(&real, error);
    *cl = real;
    if (status != ET_OK)
        return status;
#define REPLACE(call) cl->call = call##_;
    ET_CL_CALLS(REPLACE)
    return ET_OK;
}
