/*
 * gqa_av on f32 by CUDA, for etalon run --port plugin:./cuda.so. docs/porting.md; it is built by
 *
 *   nvcc -O2 -shared -Xcompiler -fPIC cuda.cu -o cuda.so $(pkg-config --cflags --libs etalon)
 *
 * serial: one thread an element of the output, one chain of fma over the context: the order class of that name.
 */
#include <cuda_runtime.h>
#include <etalon/etalon_port.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { W, V, OUT, TENSORS, GROUP = 256 };

struct state {
    const struct et_problem *steps;
    void *buffer[TENSORS];
    cudaEvent_t from, to;
};

static enum et_status check(cudaError_t code, const char *call, struct et_error *error)
{
    return code == cudaSuccess ? ET_OK
                               : et_fail(error, code == cudaErrorMemoryAllocation ? ET_LACKING : ET_FAILED, "%s: %s", call,
                                         cudaGetErrorString(code));
}

__device__ static float *at(const struct et_tensor &t, int64_t i, int64_t j, int64_t k)
{
    return (float *)t.data + t.offset + i * t.stride[0] + j * t.stride[1] + k * t.stride[2];
}

__global__ static void chain(struct et_gqa_av p, struct et_tensor w, struct et_tensor v, struct et_tensor out)
{
    const int64_t n = p.query_length * p.q_heads * p.head_dim, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t s = i / p.head_dim / p.q_heads, h = i / p.head_dim % p.q_heads, d = i % p.head_dim;
    float sum = 0;
    if (i >= n)
        return;
    for (int64_t c = 0; c < p.context; c++)
        sum = fmaf(*at(w, h, s, c), *at(v, c, h * p.kv_heads / p.q_heads, d), sum);
    *at(out, s, h, d) = sum;
}

static enum et_status resolve(const struct et_problem *problem, const struct et_device *, const int64_t *,
                              struct et_claim *claim, struct et_error *why)
{
    const struct et_gqa_av *p = (const struct et_gqa_av *)problem->params;
    for (int t = 0; t < TENSORS; t++)
        if (problem->tensor[t].dtype != ET_F32)
            return et_fail(why, ET_REFUSED, "%s is %s, must be f32", problem->op->tensors[t].name,
                           et_format(problem->tensor[t].dtype)->name);
    if (et_tensor_count(&problem->tensor[OUT]) > INT64_C(1) << 31)
        return et_fail(why, ET_REFUSED, "out has %lld elements, must be at most 2^31",
                       (long long)et_tensor_count(&problem->tensor[OUT]));
    memset(claim, 0, sizeof *claim); /* every et_dtype of arith: ET_F32, which is 0 */
    claim->arith.depth_sum = p->context < INT32_MAX ? (int32_t)p->context : INT32_MAX;
    snprintf(claim->order.name, sizeof claim->order.name, "serial");
    claim->order.arg[0] = ET_F32;
    return ET_OK;
}

static enum et_status prepare(struct et_session *, const struct et_variant *, const struct et_problem *steps,
                              const struct et_claim *, int n, void **state, struct et_error *error)
{
    struct state *s = new struct state();
    enum et_status status = ET_OK;
    *state = s;
    s->steps = steps;
    for (int t = 0; t < TENSORS && status == ET_OK; t++) {
        size_t most = 1;
        for (int i = 0; i < n; i++)
            most = steps[i].tensor[t].bytes > most ? steps[i].tensor[t].bytes : most;
        status = check(cudaMalloc(&s->buffer[t], most), "cudaMalloc", error);
    }
    if (status == ET_OK)
        status = check(cudaEventCreate(&s->from), "cudaEventCreate", error);
    if (status == ET_OK)
        status = check(cudaEventCreate(&s->to), "cudaEventCreate", error);
    return status;
}

static enum et_status step(void *state, int i, int, void *const *out, struct et_facts *facts, struct et_error *error)
{
    struct state *s = (struct state *)state;
    struct et_tensor t[TENSORS];
    enum et_status status = ET_OK;
    float ms = 0;
    memcpy(t, s->steps[i].tensor, sizeof t);
    const int64_t n = et_tensor_count(&t[OUT]);
    for (int k = 0; k < TENSORS && status == ET_OK; k++) {
        const void *from = k == OUT ? out[OUT] : t[k].data; /* the poison of out as well: padding keeps it */
        status = check(cudaMemcpy(s->buffer[k], from, t[k].bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device", error);
        t[k].data = s->buffer[k];
    }
    if (status != ET_OK)
        return status;
    cudaEventRecord(s->from);
    if (n > 0) /* an empty grid is an error */
        chain<<<(unsigned)((n + GROUP - 1) / GROUP), GROUP>>>(*(const struct et_gqa_av *)s->steps[i].params, t[W], t[V], t[OUT]);
    status = check(cudaGetLastError(), "the launch of chain", error);
    cudaEventRecord(s->to);
    if (status == ET_OK)
        status = check(cudaMemcpy(out[OUT], s->buffer[OUT], t[OUT].bytes, cudaMemcpyDeviceToHost), "chain, or cudaMemcpy from it",
                       error);
    if (status == ET_OK)
        status = check(cudaEventElapsedTime(&ms, s->from, s->to), "cudaEventElapsedTime", error);
    facts->device_ns = 1e6 * (double)ms;
    return status;
}

static void finish(void *state)
{
    struct state *s = (struct state *)state;
    for (int t = 0; s && t < TENSORS; t++)
        cudaFree(s->buffer[t]);
    if (s && s->from)
        cudaEventDestroy(s->from);
    if (s && s->to)
        cudaEventDestroy(s->to);
    delete s;
}

static enum et_status open_gpu(const struct et_open *, struct et_session **session, struct et_device *device,
                               struct et_error *error)
{
    cudaDeviceProp found;
    const cudaError_t code = cudaGetDeviceProperties(&found, 0);
    *session = NULL;
    if (code != cudaSuccess)
        return et_fail(error, ET_LACKING, "no CUDA device: %s", cudaGetErrorString(code));
    memset(device, 0, sizeof *device);
    snprintf(device->name, sizeof device->name, "%.127s", found.name);
    device->compute_units = found.multiProcessorCount;
    device->global_memory = (int64_t)found.totalGlobalMem;
    return ET_OK;
}

static void close_gpu(struct et_session *)
{
}

static const struct et_variant serial = {"gqa_av", "serial", "one thread an element, one chain", et_no_knobs, NULL,
                                         resolve,  prepare,  step, finish};
static const struct et_variant *const variants[] = {&serial, NULL};
static const struct et_port port = {ET_ABI, "cuda", variants, NULL, open_gpu, NULL, close_gpu};

const struct et_port *et_plugin(void)
{
    return &port;
}
