/* The OpenCL loader, opened at run time, and the one place where the codes of its calls are looked at. */
#ifndef ET_OCL_CL_H
#define ET_OCL_CL_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include "../ref/etalon.h"

/* Every OpenCL function that is called anywhere in ocl/. */
#define ET_CL_CALLS(X)                                                                                       \
    X(clBuildProgram)                                                                                        \
    X(clCreateBuffer)                                                                                        \
    X(clCreateCommandQueue)                                                                                  \
    X(clCreateContext)                                                                                       \
    X(clCreateKernel)                                                                                        \
    X(clCreateProgramWithSource)                                                                             \
    X(clEnqueueNDRangeKernel)                                                                                \
    X(clEnqueueReadBuffer)                                                                                   \
    X(clEnqueueWriteBuffer)                                                                                  \
    X(clFinish)                                                                                              \
    X(clGetDeviceIDs)                                                                                        \
    X(clGetDeviceInfo)                                                                                       \
    X(clGetEventProfilingInfo)                                                                               \
    X(clGetKernelInfo)                                                                                       \
    X(clGetKernelWorkGroupInfo)                                                                              \
    X(clGetPlatformIDs)                                                                                      \
    X(clGetPlatformInfo)                                                                                     \
    X(clGetProgramBuildInfo)                                                                                 \
    X(clGetProgramInfo)                                                                                      \
    X(clReleaseCommandQueue)                                                                                 \
    X(clReleaseContext)                                                                                      \
    X(clReleaseEvent)                                                                                        \
    X(clReleaseKernel)                                                                                       \
    X(clReleaseMemObject)                                                                                    \
    X(clReleaseProgram)                                                                                      \
    X(clSetKernelArg)

#define ET_CL_POINTER(name) __typeof__(name) *name;
struct et_cl {
    ET_CL_CALLS(ET_CL_POINTER)
    /* What error sentences say besides the call; NULL where there is none. Not owned. */
    const char *device, *kernel, *options;
};
#undef ET_CL_POINTER

/*
 * Opens the loader (libOpenCL.so.1), which stays mapped until the process ends: drivers start threads and
 * register exit handlers that outlive any session. ET_LACKING where there is none.
 */
enum et_status et_cl_open(struct et_cl *cl, struct et_error *error);

/* ET_OK for CL_SUCCESS; else ET_FAILED and a sentence: call, code, kernel, device, build options. */
enum et_status et_cl_done(const struct et_cl *cl, const char *call, cl_int code, struct et_error *error);

/* As in the headers, "CL_OUT_OF_RESOURCES"; "unknown code" where it has no name. */
const char *et_cl_code_name(cl_int code);

#endif
