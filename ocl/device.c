#include "device.h"

#include <stdio.h>
#include <string.h>

#include "port.h"

enum { MOST = 64 }; /* platforms, and devices of one, that are looked at */

/* What a device says of itself. */

/* Any of the cl*Info calls, bound to its object. */
struct asked {
    const struct et_cl *cl;
    cl_platform_id platform; /* NULL: the device is asked */
    cl_device_id device;
};

static enum et_status ask(const struct asked *of, cl_uint what, size_t bytes, void *dst, size_t *needed,
                          struct et_error *error)
{
    if (of->platform)
        return et_cl_done(of->cl, "clGetPlatformInfo",
                          of->cl->clGetPlatformInfo(of->platform, what, bytes, dst, needed), error);
    return et_cl_done(of->cl, "clGetDeviceInfo",
                      of->cl->clGetDeviceInfo(of->device, what, bytes, dst, needed), error);
}

/* An owned string; NULL with the sentence in error on failure. */
static char *ask_text(const struct asked *of, cl_uint what, struct et_error *error)
{
    size_t bytes = 0;
    if (ask(of, what, 0, NULL, &bytes, error) != ET_OK)
        return NULL;
    char *text = et_alloc(bytes + 1, 1, error);
    if (!text || bytes == 0 || ask(of, what, bytes, text, NULL, error) == ET_OK)
        return text;
    et_free(text);
    return NULL;
}

static enum et_status copy_text(const struct asked *of, cl_uint what, char *dst, size_t bytes,
                                struct et_error *error)
{
    char *text = ask_text(of, what, error);
    if (!text)
        return ET_FAILED;
    snprintf(dst, bytes, "%s", text + strspn(text, " "));
    et_free(text);
    return ET_OK;
}

static enum et_status ask_texts(const struct asked *platform, const struct asked *device,
                                struct et_device *dst, struct et_error *error)
{
    const struct {
        const struct asked *of;
        cl_uint what;
        char *dst;
        size_t bytes;
    } texts[] = {
        {platform, CL_PLATFORM_NAME, dst->platform, sizeof dst->platform},
        {device, CL_DEVICE_NAME, dst->name, sizeof dst->name},
        {device, CL_DEVICE_VENDOR, dst->vendor, sizeof dst->vendor},
        {device, CL_DEVICE_VERSION, dst->version, sizeof dst->version},
        {device, CL_DRIVER_VERSION, dst->driver, sizeof dst->driver},
    };
    enum et_status status = ET_OK;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0] && status == ET_OK; i++)
        status = copy_text(texts[i].of, texts[i].what, texts[i].dst, texts[i].bytes, error);
    return status;
}

static int64_t clamped(cl_ulong value)
{
    return value > INT64_MAX ? INT64_MAX : (int64_t)value;
}

static enum et_status ask_limits(const struct asked *device, struct et_device *dst, struct et_error *error)
{
    cl_uint units = 0;
    size_t work_group = 0;
    cl_ulong local = 0, global = 0, allocation = 0;
    cl_device_fp_config fp = 0;
    const struct {
        cl_uint what;
        size_t bytes;
        void *dst;
    } limits[] = {
        {CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units},
        {CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof work_group, &work_group},
        {CL_DEVICE_LOCAL_MEM_SIZE, sizeof local, &local},
        {CL_DEVICE_GLOBAL_MEM_SIZE, sizeof global, &global},
        {CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof allocation, &allocation},
        {CL_DEVICE_SINGLE_FP_CONFIG, sizeof fp, &fp},
    };
    enum et_status status = ET_OK;
    for (size_t i = 0; i < sizeof limits / sizeof limits[0] && status == ET_OK; i++)
        status = ask(device, limits[i].what, limits[i].bytes, limits[i].dst, NULL, error);
    dst->compute_units = units;
    dst->work_group = clamped(work_group);
    dst->local_memory = clamped(local);
    dst->global_memory = clamped(global);
    dst->allocation = clamped(allocation);
    dst->fp_config = fp;
    return status;
}

static enum et_status describe(const struct et_cl *cl, cl_platform_id platform, cl_device_id id,
                               struct et_device *dst, struct et_error *error)
{
    const struct asked of_platform = {.cl = cl, .platform = platform}, of_device = {.cl = cl, .device = id};
    enum et_status status = ask_texts(&of_platform, &of_device, dst, error);
    if (status == ET_OK)
        status = ask_limits(&of_device, dst, error);
    char *extensions = status == ET_OK ? ask_text(&of_device, CL_DEVICE_EXTENSIONS, error) : NULL;
    if (!extensions)
        return ET_FAILED;
    dst->subgroups = strstr(extensions, "_subgroups");
    /* What may be probed for; the lanes are the probe's to say. */
    dst->shuffles = strstr(extensions, "cl_khr_subgroup_shuffle") || strstr(extensions, "cl_intel_subgroups");
    dst->vendor_shuffles = strstr(dst->vendor, "NVIDIA") != NULL;
    dst->fp16 = strstr(extensions, "cl_khr_fp16");
    dst->fp64 = strstr(extensions, "cl_khr_fp64");
    et_free(extensions);
    return ET_OK;
}

/* What there is. */

static enum et_status platforms_of(const struct et_cl *cl, cl_platform_id *id, cl_uint *n,
                                   struct et_error *error)
{
    *n = 0;
    const enum et_status status =
        et_cl_done(cl, "clGetPlatformIDs", cl->clGetPlatformIDs(MOST, id, n), error);
    *n = status != ET_OK ? 0 : *n < MOST ? *n : MOST;
    return status;
}

static enum et_status devices_of(const struct et_cl *cl, cl_platform_id platform, cl_device_id *id,
                                 cl_uint *n, struct et_error *error)
{
    *n = 0;
    const enum et_status status = et_cl_done(
        cl, "clGetDeviceIDs", cl->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, MOST, id, n), error);
    *n = status != ET_OK ? 0 : *n < MOST ? *n : MOST;
    return status;
}

struct listing {
    struct et_device *dst;
    int n, count;
    struct et_text report;
};

static void list_platform(const struct et_cl *cl, cl_platform_id platform, cl_uint p, struct listing *listing)
{
    struct et_error error = {""};
    char name[128] = "";
    const struct asked of = {.cl = cl, .platform = platform};
    if (copy_text(&of, CL_PLATFORM_NAME, name, sizeof name, &error) != ET_OK)
        et_text_add(&listing->report, "platform %u: %s\n", p, error.text);
    cl_device_id id[MOST];
    cl_uint n;
    if (devices_of(cl, platform, id, &n, &error) != ET_OK)
        et_text_add(&listing->report, "platform %u, %s, has no device: %s\n", p, name, error.text);
    for (cl_uint d = 0; d < n; d++) {
        struct et_device device = {0};
        snprintf(device.place, sizeof device.place, "%hhu:%hhu", (unsigned char)p, (unsigned char)d);
        if (describe(cl, platform, id[d], &device, &error) != ET_OK)
            et_text_add(&listing->report, "device %s: %s\n", device.place, error.text);
        if (listing->count < listing->n)
            listing->dst[listing->count] = device;
        listing->count++;
    }
}

int et_device_list(struct et_device *dst, int n, char *report, size_t report_bytes)
{
    struct listing listing = {.dst = dst, .n = n};
    struct et_error error = {""};
    struct et_cl cl;
    cl_platform_id id[MOST];
    cl_uint platforms = 0;
    enum et_status status = et_driver_environment(&error);
    if (status == ET_OK)
        status = et_cl_open(&cl, &error);
    if (status == ET_OK)
        status = platforms_of(&cl, id, &platforms, &error);
    if (status != ET_OK)
        et_text_add(&listing.report, "%s\n", error.text);
    et_driver_report(&listing.report);
    for (cl_uint p = 0; p < platforms; p++)
        list_platform(&cl, id[p], p, &listing);
    if (report_bytes > 0)
        snprintf(report, report_bytes, "%s", listing.report.data ? listing.report.data : "");
    et_text_free(&listing.report);
    return listing.count;
}

/* An open one. */

static enum et_status locate(const struct et_cl *cl, const char *place, cl_platform_id *platform,
                             cl_device_id *device, struct et_error *error)
{
    unsigned p, d;
    int length = -1;
    if (!place || sscanf(place, "%u:%u%n", &p, &d, &length) != 2 || place[length] != '\0')
        return et_fail(error, ET_INVALID, "device \"%s\" is not of the form PLATFORM:DEVICE",
                       place ? place : "");
    cl_platform_id platforms[MOST];
    cl_device_id devices[MOST];
    cl_uint n;
    if (platforms_of(cl, platforms, &n, error) != ET_OK)
        return ET_LACKING;
    if (p >= n)
        return et_fail(error, ET_LACKING, "there is no device %s: %u OpenCL platforms were found", place, n);
    if (devices_of(cl, platforms[p], devices, &n, error) != ET_OK)
        return ET_LACKING;
    if (d >= n)
        return et_fail(error, ET_LACKING, "there is no device %s: its platform has %u", place, n);
    *platform = platforms[p];
    *device = devices[d];
    return ET_OK;
}

static enum et_status create(struct et_session *session, struct et_error *error)
{
    const struct et_cl *cl = &session->cl;
    cl_int code;
    session->context = cl->clCreateContext(NULL, 1, &session->id, NULL, NULL, &code);
    enum et_status status = et_cl_done(cl, "clCreateContext", code, error);
    if (status != ET_OK)
        return status;
    session->queue =
        cl->clCreateCommandQueue(session->context, session->id, CL_QUEUE_PROFILING_ENABLE, &code);
    return et_cl_done(cl, "clCreateCommandQueue", code, error);
}

static enum et_status open_session(const struct et_open *options, struct et_session *session,
                                   struct et_error *error)
{
    session->guards = options->guards;
    if (options->folder) {
        session->folder = et_strdup(options->folder, error);
        if (!session->folder)
            return ET_FAILED;
    }
    if (options->binaries) {
        session->binaries = et_strdup(options->binaries, error);
        if (!session->binaries)
            return ET_FAILED;
    }
    cl_platform_id platform;
    enum et_status status = et_driver_environment(error);
    if (status == ET_OK)
        status = et_cl_open(&session->cl, error);
    if (status == ET_OK)
        status = locate(&session->cl, options->place, &platform, &session->id, error);
    if (status == ET_OK)
        status = describe(&session->cl, platform, session->id, &session->device, error);
    snprintf(session->device.place, sizeof session->device.place, "%s", options->place ? options->place : "");
    session->cl.device = session->device.name;
    et_limit_device(&session->device, &options->limits);
    if (status == ET_OK)
        status = create(session, error);
    if (status == ET_OK)
        status = et_probe(session, error);
    if (status == ET_OK)
        et_probe_shuffles(session);
    return status;
}

enum et_status et_device_open(const struct et_open *options, struct et_session **session,
                              struct et_device *device, struct et_error *error)
{
    *session = et_alloc(1, sizeof **session, error);
    if (!*session)
        return ET_FAILED;
    const enum et_status status = open_session(options, *session, error);
    if (status == ET_OK) {
        *device = (*session)->device;
        return ET_OK;
    }
    et_device_close(*session);
    *session = NULL;
    return status;
}

void et_device_override(struct et_session *session, const struct et_override *overrides)
{
    session->overrides = overrides;
}

void et_device_close(struct et_session *session)
{
    if (!session)
        return;
    et_programs_free(session);
    if (session->queue)
        session->cl.clReleaseCommandQueue(session->queue);
    if (session->context)
        session->cl.clReleaseContext(session->context);
    et_free(session->folder);
    et_free(session->binaries);
    et_free(session);
}
