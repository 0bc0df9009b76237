/*
 * What a device's arithmetic does, against C: flags are not asked, since drivers that claim neither fma nor
 * correct rounding were seen to do both. Vectors come from Philox; the classes and their sizes are in the
 * table below.
 */
#include "device.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* As in probe.cl. */
enum operation { FMA, ADD, MUL, MUL_ADD, HALF_LOAD, HALF_STORE, INT_TO_FLOAT, FLOAT_TO_INT, COMPARE };

struct vector {
    uint32_t a, b, c;
};

static float as_float(uint32_t bits)
{
    return et_widen(ET_F32, bits);
}

static uint32_t as_bits(float value)
{
    return et_load(ET_F32, &value, 0);
}

/* Vectors: words w[0..3] of the class's stream for element i. */

/* Sign and mantissa of word, exponent from 2^low to 2^high, chosen by pick. */
static uint32_t normal(uint32_t word, uint32_t pick, int low, int high)
{
    const uint32_t exponent = (uint32_t)(127 + low) + pick % (uint32_t)(high - low + 1);
    return (word & 0x807fffff) | exponent << 23;
}

static const uint32_t special[] = {
    0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0x3f800000, 0xbf800000, 0x7f7fffff,
};

/* Operands that leave sums and products normal; one vector in eight has a 0, Inf, NaN, +-1 or FLT_MAX. */
static struct vector ordinary(const uint32_t *w)
{
    struct vector v = {normal(w[0], w[3], -30, 30), normal(w[1], w[3] >> 8, -30, 30),
                       normal(w[2], w[3] >> 16, -60, 60)};
    const uint32_t value = special[w[3] >> 24 & 7];
    switch (w[3] >> 27) {
    case 0:
        v.a = value;
        break;
    case 1:
        v.b = value;
        break;
    case 2:
    case 3:
        v.c = value;
        break;
    }
    return v;
}

/* c is the negative of the rounded product: fma leaves its rounding error. */
static struct vector cancelling(const uint32_t *w)
{
    struct vector v = {normal(w[0], w[3], -30, 30), normal(w[1], w[3] >> 8, -30, 30), 0};
    v.c = as_bits(-(as_float(v.a) * as_float(v.b)));
    return v;
}

/* An odd product of 25 bits is midway between two floats; c, too small for a double's sum, decides. */
static struct vector doubly_rounded(const uint32_t *w)
{
    const float a = (float)(3072 | (w[0] & 1023) | 1), b = (float)(6144 | (w[1] & 2047) | 1);
    return (struct vector){as_bits(a), as_bits(w[3] & 1 ? b : -b),
                           normal(w[2] & 0x80000000, w[3] >> 1, -60, -30)};
}

static struct vector subnormal_fma(const uint32_t *w)
{
    switch (w[3] % 3) {
    case 0: /* an operand */
        return (struct vector){w[0] & 0x807fffff, normal(w[1], w[3] >> 8, -10, 60),
                               normal(w[2], w[3] >> 16, -120, -60)};
    case 1: /* the result */
        return (struct vector){normal(w[0], w[3] >> 8, -72, -64), normal(w[1], w[3] >> 16, -72, -64), 0};
    default: /* the addend */
        return (struct vector){normal(w[0], w[3] >> 8, -64, -60), normal(w[1], w[3] >> 16, -64, -60),
                               w[2] & 0x807fffff};
    }
}

static struct vector subnormal_sum(const uint32_t *w)
{
    return (struct vector){w[0] & 0x80ffffff, w[1] & 0x80ffffff, 0};
}

static struct vector subnormal_product(const uint32_t *w)
{
    const uint32_t a = w[3] & 1 ? w[0] & 0x807fffff : normal(w[0], w[3] >> 8, -72, -64);
    const uint32_t b = w[3] & 1 ? normal(w[1], w[3] >> 8, -2, 40) : normal(w[1], w[3] >> 16, -72, -64);
    return (struct vector){a, b, 0};
}

/* One in four is a subnormal. */
static struct vector half_bits(const uint32_t *w)
{
    return (struct vector){w[0] & (w[3] & 3 ? 0xffff : 0x83ff), 0, 0};
}

/* From below the smallest half to above the largest; half of the normal ones are at or next to a tie. */
static struct vector around_half(const uint32_t *w)
{
    const uint32_t value = normal(w[0], w[3], -27, 17);
    if (w[3] >> 16 & 1)
        return (struct vector){(value & ~0x1fffU) + 0x1000 + w[1] % 3 - 1, 0, 0};
    return (struct vector){w[3] >> 28 ? value : special[w[3] >> 24 & 7], 0, 0};
}

static struct vector integer(const uint32_t *w)
{
    const int32_t value = (int32_t)(w[0] >> (w[3] & 15));
    return (struct vector){(uint32_t)(w[3] & 16 ? value : -value), 0, 0};
}

static struct vector in_int_range(const uint32_t *w)
{
    return (struct vector){normal(w[0], w[3], -3, 30), 0, 0};
}

/* Two of four pairs are equal or neighbours, one is of specials. */
static struct vector pair(const uint32_t *w)
{
    struct vector v = {normal(w[0], w[3] >> 8, -3, 3), normal(w[1], w[3] >> 16, -3, 3), 0};
    if ((w[3] & 3) == 0)
        v = (struct vector){special[w[0] >> 29], special[w[1] >> 29], 0};
    if ((w[3] & 3) == 1)
        v.b = v.a ^ (w[2] & 1);
    return v;
}

static const struct vector_class {
    const char *name; /* classes of one name stand together */
    bool subnormal;
    enum operation operation;
    uint32_t count;
    struct vector (*make)(const uint32_t *w);
} classes[] = {
    {"fma", false, FMA, 2048, ordinary},
    {"fma", false, FMA, 1024, cancelling},
    {"fma", false, FMA, 1024, doubly_rounded},
    {"add", false, ADD, 1024, ordinary},
    {"mul", false, MUL, 1024, ordinary},
    {"mul then add", false, MUL_ADD, 512, ordinary},
    {"mul then add", false, MUL_ADD, 512, cancelling},
    {"half load", false, HALF_LOAD, 1024, half_bits},
    {"half store", false, HALF_STORE, 1024, around_half},
    {"int to float", false, INT_TO_FLOAT, 512, integer},
    {"float to int", false, FLOAT_TO_INT, 512, in_int_range},
    {"compare", false, COMPARE, 512, pair},
    {"subnormal fma", true, FMA, 512, subnormal_fma},
    {"add", true, ADD, 256, subnormal_sum},
    {"mul", true, MUL, 256, subnormal_product},
};

enum { CLASSES = sizeof classes / sizeof classes[0] };

static uint32_t expected(enum operation operation, const struct vector *v)
{
    const float x = as_float(v->a), y = as_float(v->b), z = as_float(v->c);
    float product;
    switch (operation) {
    case FMA:
        return as_bits(fmaf(x, y, z));
    case ADD:
        return as_bits(x + y);
    case MUL:
        return as_bits(x * y);
    case MUL_ADD:
        product = x * y;
        return as_bits(product + z);
    case HALF_LOAD:
        return as_bits(et_widen(ET_F16, v->a));
    case HALF_STORE:
        return et_narrow(ET_F16, (double)x);
    case INT_TO_FLOAT:
        return as_bits((float)(int32_t)v->a);
    case FLOAT_TO_INT:
        return (uint32_t)(int32_t)x;
    case COMPARE:
        return (uint32_t)(x < y) | (uint32_t)(x == y) << 1 | (uint32_t)(x > y) << 2 | (uint32_t)isnan(x) << 3;
    }
    return 0;
}

static bool same(enum operation operation, uint32_t got, uint32_t want)
{
    if (operation == COMPARE || operation == FLOAT_TO_INT)
        return got == want;
    const enum et_dtype dtype = operation == HALF_STORE ? ET_F16 : ET_F32;
    return et_canonical(dtype, got) == et_canonical(dtype, want);
}

/* Running them. */

enum { A, B, C, OUT, BUFFERS };

struct probe {
    uint32_t total;
    uint32_t *words[BUFFERS];
    cl_mem mem[BUFFERS];
    cl_kernel kernel;
};

static void make_vectors(struct probe *probe)
{
    uint32_t at = 0;
    for (int k = 0; k < CLASSES; k++) {
        const struct et_stream stream = et_stream((uint64_t)k, "probe");
        for (uint32_t i = 0; i < classes[k].count; i++, at++) {
            uint32_t w[4];
            et_block(&stream, i, 0, w);
            const struct vector v = classes[k].make(w);
            probe->words[A][at] = v.a;
            probe->words[B][at] = v.b;
            probe->words[C][at] = v.c;
        }
    }
}

static enum et_status allocate(const struct et_session *session, struct probe *probe, struct et_error *error)
{
    const struct et_cl *cl = &session->cl;
    enum et_status status = ET_OK;
    for (int i = 0; i < BUFFERS && status == ET_OK; i++) {
        probe->words[i] = et_alloc(probe->total, sizeof(uint32_t), error);
        if (!probe->words[i])
            return ET_FAILED;
        cl_int code;
        probe->mem[i] = cl->clCreateBuffer(session->context, CL_MEM_READ_WRITE,
                                           probe->total * sizeof(uint32_t), NULL, &code);
        status = et_cl_done(cl, "clCreateBuffer", code, error);
    }
    return status;
}

static enum et_status set_arguments(const struct et_cl *cl, const struct probe *probe, int k, cl_ulong first,
                                    struct et_error *error)
{
    const cl_uint operation = classes[k].operation;
    enum et_status status = ET_OK;
    for (cl_uint i = 0; i < BUFFERS && status == ET_OK; i++)
        status = et_cl_done(cl, "clSetKernelArg",
                            cl->clSetKernelArg(probe->kernel, i, sizeof(cl_mem), &probe->mem[i]), error);
    if (status == ET_OK)
        status = et_cl_done(cl, "clSetKernelArg",
                            cl->clSetKernelArg(probe->kernel, BUFFERS, sizeof first, &first), error);
    if (status == ET_OK)
        status =
            et_cl_done(cl, "clSetKernelArg",
                       cl->clSetKernelArg(probe->kernel, BUFFERS + 1, sizeof operation, &operation), error);
    return status;
}

static enum et_status compute(const struct et_session *session, const struct probe *probe,
                              struct et_error *error)
{
    const struct et_cl *cl = &session->cl;
    const size_t bytes = probe->total * sizeof(uint32_t);
    enum et_status status = ET_OK;
    for (int i = 0; i < BUFFERS && status == ET_OK; i++)
        status = et_cl_done(cl, "clEnqueueWriteBuffer",
                            cl->clEnqueueWriteBuffer(session->queue, probe->mem[i], CL_TRUE, 0, bytes,
                                                     probe->words[i], 0, NULL, NULL),
                            error);
    size_t first = 0;
    for (int k = 0; k < CLASSES && status == ET_OK; k++) {
        const size_t count = classes[k].count;
        status = set_arguments(cl, probe, k, first, error);
        if (status == ET_OK)
            status = et_cl_done(cl, "clEnqueueNDRangeKernel",
                                cl->clEnqueueNDRangeKernel(session->queue, probe->kernel, 1, NULL, &count,
                                                           NULL, 0, NULL, NULL),
                                error);
        first += count;
    }
    if (status == ET_OK)
        status = et_cl_done(cl, "clEnqueueReadBuffer",
                            cl->clEnqueueReadBuffer(session->queue, probe->mem[OUT], CL_TRUE, 0, bytes,
                                                    probe->words[OUT], 0, NULL, NULL),
                            error);
    return status;
}

static uint32_t matches(const struct probe *probe, int k, uint32_t first)
{
    uint32_t n = 0;
    for (uint32_t i = first; i < first + classes[k].count; i++) {
        const struct vector v = {probe->words[A][i], probe->words[B][i], probe->words[C][i]};
        n += same(classes[k].operation, probe->words[OUT][i], expected(classes[k].operation, &v));
    }
    return n;
}

/* "fma 4096/4096, add 1024/1024, ...": vectors that matched, of how many. */
static void judge(const struct probe *probe, struct et_device *device)
{
    device->probed = device->exact = device->exact_subnormal = true;
    uint32_t matched = 0, of = 0, first = 0;
    size_t used = 0;
    for (int k = 0; k < CLASSES; k++) {
        const uint32_t n = matches(probe, k, first);
        bool *exact = classes[k].subnormal ? &device->exact_subnormal : &device->exact;
        *exact = *exact && n == classes[k].count;
        first += classes[k].count;
        matched += n;
        of += classes[k].count;
        const bool last = k + 1 == CLASSES;
        if (!last && strcmp(classes[k].name, classes[k + 1].name) == 0)
            continue;
        const char *end = last ? "" : classes[k].subnormal != classes[k + 1].subnormal ? "; " : ", ";
        const int length = snprintf(device->probe + used, sizeof device->probe - used, "%s %u/%u%s",
                                    classes[k].name, matched, of, end);
        used += length > 0 && (size_t)length < sizeof device->probe - used ? (size_t)length : 0;
        matched = of = 0;
    }
}

static void release(const struct et_cl *cl, struct probe *probe)
{
    if (probe->kernel)
        cl->clReleaseKernel(probe->kernel);
    for (int i = 0; i < BUFFERS; i++) {
        if (probe->mem[i])
            cl->clReleaseMemObject(probe->mem[i]);
        et_free(probe->words[i]);
    }
}

enum et_status et_probe(struct et_session *session, struct et_error *error)
{
    struct probe probe = {0};
    for (int k = 0; k < CLASSES; k++)
        probe.total += classes[k].count;
    enum et_status status = et_kernel(session, NULL, "probe.cl", "", "probe", &probe.kernel, error);
    if (status == ET_OK)
        status = allocate(session, &probe, error);
    if (status == ET_OK) {
        make_vectors(&probe);
        status = compute(session, &probe, error);
    }
    if (status == ET_OK)
        judge(&probe, &session->device);
    release(&session->cl, &probe);
    return status;
}
