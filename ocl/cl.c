#include "cl.h"

#include <dlfcn.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
/*
 * PoCL, rusticl and their compilers leak when they build a kernel. They are mapped only where a device is
 * opened, which the judge never does, so nothing of its own is hidden.
 */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void)
{
    return "leak:libpocl\nleak:libRusticlOpenCL\nleak:libLLVM\n";
}
#endif

static const struct {
    size_t offset;
    const char *name;
} calls[] = {
#define CALL(call) {offsetof(struct et_cl, call), #call},
    ET_CL_CALLS(CALL)
#undef CALL
};

enum et_status et_cl_open(struct et_cl *cl, struct et_error *error)
{
    static const char library[] = "libOpenCL.so.1";
    *cl = (struct et_cl){0};
    void *loader = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!loader)
        return et_fail(error, ET_LACKING, "the OpenCL loader cannot be opened: %s", dlerror());
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        void *function = dlsym(loader, calls[i].name);
        if (!function)
            return et_fail(error, ET_LACKING, "the OpenCL loader %s has no %s", library, calls[i].name);
        memcpy((char *)cl + calls[i].offset, &function, sizeof function);
    }
    return ET_OK;
}

/* Of cl.h 1.2, and the loader's own. */
static const struct {
    cl_int code;
    const char *name;
} codes[] = {
#define CODE(code)                                                                                           \
    {                                                                                                        \
        code, #code                                                                                          \
    }
    CODE(CL_SUCCESS),
    CODE(CL_DEVICE_NOT_FOUND),
    CODE(CL_DEVICE_NOT_AVAILABLE),
    CODE(CL_COMPILER_NOT_AVAILABLE),
    CODE(CL_MEM_OBJECT_ALLOCATION_FAILURE),
    CODE(CL_OUT_OF_RESOURCES),
    CODE(CL_OUT_OF_HOST_MEMORY),
    CODE(CL_PROFILING_INFO_NOT_AVAILABLE),
    CODE(CL_MEM_COPY_OVERLAP),
    CODE(CL_BUILD_PROGRAM_FAILURE),
    CODE(CL_MAP_FAILURE),
    CODE(CL_MISALIGNED_SUB_BUFFER_OFFSET),
    CODE(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
    CODE(CL_COMPILE_PROGRAM_FAILURE),
    CODE(CL_LINKER_NOT_AVAILABLE),
    CODE(CL_LINK_PROGRAM_FAILURE),
    CODE(CL_KERNEL_ARG_INFO_NOT_AVAILABLE),
    CODE(CL_INVALID_VALUE),
    CODE(CL_INVALID_DEVICE_TYPE),
    CODE(CL_INVALID_PLATFORM),
    CODE(CL_INVALID_DEVICE),
    CODE(CL_INVALID_CONTEXT),
    CODE(CL_INVALID_QUEUE_PROPERTIES),
    CODE(CL_INVALID_COMMAND_QUEUE),
    CODE(CL_INVALID_HOST_PTR),
    CODE(CL_INVALID_MEM_OBJECT),
    CODE(CL_INVALID_BINARY),
    CODE(CL_INVALID_BUILD_OPTIONS),
    CODE(CL_INVALID_PROGRAM),
    CODE(CL_INVALID_PROGRAM_EXECUTABLE),
    CODE(CL_INVALID_KERNEL_NAME),
    CODE(CL_INVALID_KERNEL_DEFINITION),
    CODE(CL_INVALID_KERNEL),
    CODE(CL_INVALID_ARG_INDEX),
    CODE(CL_INVALID_ARG_VALUE),
    CODE(CL_INVALID_ARG_SIZE),
    CODE(CL_INVALID_KERNEL_ARGS),
    CODE(CL_INVALID_WORK_DIMENSION),
    CODE(CL_INVALID_WORK_GROUP_SIZE),
    CODE(CL_INVALID_WORK_ITEM_SIZE),
    CODE(CL_INVALID_GLOBAL_OFFSET),
    CODE(CL_INVALID_EVENT_WAIT_LIST),
    CODE(CL_INVALID_EVENT),
    CODE(CL_INVALID_OPERATION),
    CODE(CL_INVALID_BUFFER_SIZE),
    CODE(CL_INVALID_GLOBAL_WORK_SIZE),
    CODE(CL_INVALID_PROPERTY),
    CODE(CL_INVALID_COMPILER_OPTIONS),
    CODE(CL_INVALID_LINKER_OPTIONS),
    {-1001, "CL_PLATFORM_NOT_FOUND_KHR"},
    {-9999, "NVIDIA: illegal read or write to a buffer"},
#undef CODE
};

const char *et_cl_code_name(cl_int code)
{
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i].code == code)
            return codes[i].name;
    return "unknown code";
}

enum et_status et_cl_done(const struct et_cl *cl, const char *call, cl_int code, struct et_error *error)
{
    if (code == CL_SUCCESS)
        return ET_OK;
    return et_fail(error, ET_FAILED, "%s: %s (%d)%s%s%s%s%s%s", call, et_cl_code_name(code), code,
                   cl->kernel ? ", kernel " : "", cl->kernel ? cl->kernel : "", cl->device ? ", device " : "",
                   cl->device ? cl->device : "", cl->options ? ", built with " : "",
                   cl->options ? cl->options : "");
}
