/* Exchanges between the items of a wave: extensions are not trusted, a kernel is built and its values looked
 * at. */
#include "device.h"

enum { ITEMS = 128 };

/* Values of item i with partner i ^ by, for every by of a tree over `lanes`. */
static enum et_status exchange(struct et_session *session, cl_kernel kernel, cl_mem mem, cl_uint lanes,
                               cl_uint by, float *out, struct et_error *error)
{
    const struct et_cl *cl = &session->cl;
    const size_t items = ITEMS;
    enum et_status status =
        et_cl_done(cl, "clSetKernelArg", cl->clSetKernelArg(kernel, 0, sizeof mem, &mem), error);
    if (status == ET_OK)
        status = et_cl_done(cl, "clSetKernelArg", cl->clSetKernelArg(kernel, 1, sizeof lanes, &lanes), error);
    if (status == ET_OK)
        status = et_cl_done(cl, "clSetKernelArg", cl->clSetKernelArg(kernel, 2, sizeof by, &by), error);
    if (status == ET_OK)
        status = et_cl_done(
            cl, "clEnqueueNDRangeKernel",
            cl->clEnqueueNDRangeKernel(session->queue, kernel, 1, NULL, &items, &items, 0, NULL, NULL),
            error);
    if (status == ET_OK)
        status = et_cl_done(
            cl, "clEnqueueReadBuffer",
            cl->clEnqueueReadBuffer(session->queue, mem, CL_TRUE, 0, ITEMS * sizeof *out, out, 0, NULL, NULL),
            error);
    return status;
}

static bool works(struct et_session *session, cl_kernel kernel, cl_mem mem, cl_uint lanes)
{
    float out[ITEMS];
    for (cl_uint by = 1; by < lanes; by *= 2) {
        if (exchange(session, kernel, mem, lanes, by, out, NULL) != ET_OK)
            return false;
        for (cl_uint i = 0; i < ITEMS; i++)
            if (out[i] != (float)(i ^ by))
                return false;
    }
    return true;
}

/* lanes, where exchanges over them build and work; else 0. What does not is no failure: the device lacks it.
 */
static int64_t reach(struct et_session *session, const char *options, cl_uint lanes)
{
    cl_kernel kernel;
    if (et_kernel(session, NULL, "shuffle.cl", options, "shuffle", &kernel, NULL) != ET_OK)
        return 0;
    cl_int code;
    const cl_mem mem =
        session->cl.clCreateBuffer(session->context, CL_MEM_READ_WRITE, ITEMS * sizeof(float), NULL, &code);
    const bool good = code == CL_SUCCESS && works(session, kernel, mem, lanes);
    if (mem)
        session->cl.clReleaseMemObject(mem);
    session->cl.clReleaseKernel(kernel);
    return good ? lanes : 0;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void et_probe_shuffles(struct et_session *session)
{
    struct et_device *device = &session->device;
    const bool wide = device->work_group == 0 || device->work_group >= ITEMS;
    device->shuffles = wide && device->shuffles ? larger(reach(session, "-D TAIL=1 -D SUBGROUP=32", 32),
                                                         reach(session, "-D TAIL=1 -D SUBGROUP=64", 64))
                                                : 0;
    device->vendor_shuffles = wide && device->vendor_shuffles ? reach(session, "-D TAIL=2", 32) : 0;
}
