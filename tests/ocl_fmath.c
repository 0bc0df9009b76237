/*
 * fmath.h on devices: the same bytes as from C. A program of its own, without Check, so that it runs on a
 * machine that has nothing but an OpenCL driver.
 *
 * usage: ocl_fmath [-f FILE] [PLACE ...]
 *
 * PLACE: a device as `etalon list devices` numbers it; default: all. FILE: devices take it for fmath.h.
 * Vectors: sample() of all 2^22 for a function of one argument, as many random pairs for div, on Oclgrind
 * 2^16; and every pair of the edges below. A line for each function and device, with the hash of all outputs
 * but the edges' (on 2^22 it is the recorded one); before it the first 4 vectors that differ. Exit status: 0;
 * 1 where a byte differs or a call fails; 77 where there is no device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ocl/device.h"
#include "../ocl/ocl.h"
#include "fmath_sample.h"

/* The number of a function is its place in functions[]; div comes behind them. */
static const char kernel[] =
    "#include \"fmath.h\"\n"
    "kernel void of_each(global const uint *a, global const uint *b, global uint *out,\n"
    "                    uint function)\n"
    "{\n"
    "    const size_t i = get_global_id(0);\n"
    "    const float x = as_float(a[i]), y = as_float(b[i]);\n"
    "    switch (function) {\n"
    "    case 0: out[i] = as_uint(et_exp(x)); break;\n"
    "    case 1: out[i] = as_uint(et_log1p(x)); break;\n"
    "    case 2: out[i] = as_uint(et_sqrt(x)); break;\n"
    "    case 3: out[i] = as_uint(et_sigmoid(x)); break;\n"
    "    case 4: out[i] = as_uint(et_tanh(x)); break;\n"
    "    case 5: out[i] = as_uint(et_div(x, y)); break;\n"
    "    }\n"
    "}\n";

enum { DIV = FUNCTIONS, ALL };

/* With both signs: zero, subnormals, the ends of the normal numbers, significands that are all zeros, all
 * ones, or in the middle, the last x that exp takes, the first that it does not, 0.55, 9.02, Inf, NaN. */
static const uint32_t edges[] = {
    0x00000000, 0x00000001, 0x00400000, 0x007fffff, 0x00800000, 0x00800001, 0x00ffffff, 0x01000000,
    0x3effffff, 0x3f7fffff, 0x3f800000, 0x3f800001, 0x3fbfffff, 0x3fffffff, 0x40000000, 0x42aeac4f,
    0x42aeac50, 0x42b17217, 0x42b17218, 0x3f0ccccd, 0x411051ec, 0x7effffff, 0x7f000000, 0x7f7ffffe,
    0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff,
};

enum { EDGES = 2 * sizeof edges / sizeof *edges };

static uint32_t edge(uint32_t i)
{
    return edges[i / 2] | (i % 2 ? ET_F32_SIGN : 0);
}

enum { A, B, OUT, BUFFERS };
enum { GROUP = 64 };

struct vectors {
    uint32_t count, total; /* without and with pairs of edges; whole groups */
    uint32_t *words[BUFFERS];
    cl_mem mem[BUFFERS];
    cl_kernel kernel;
};

static const char *name_of(int function)
{
    return function == DIV ? "div" : functions[function].name;
}

static uint32_t expected(const struct vectors *v, int function, uint32_t i)
{
    const float a = et_as_f32(v->words[A][i]), b = et_as_f32(v->words[B][i]);
    return et_as_u32(function == DIV ? et_div(a, b) : functions[function].portable(a));
}

static void make(struct vectors *v, int function)
{
    uint64_t state = 1;
    for (uint32_t i = 0; i < v->count; i++) {
        float a = sample(i * (SAMPLE / v->count)), b = 0;
        if (function == DIV)
            random_pair(&state, &a, &b);
        v->words[A][i] = et_as_u32(a);
        v->words[B][i] = et_as_u32(b);
    }
    for (uint32_t i = 0; i < v->total - v->count; i++) {
        v->words[A][v->count + i] = edge(i / EDGES % EDGES);
        v->words[B][v->count + i] = edge(i % EDGES);
    }
    /* What no function gives. */
    memset(v->words[OUT], 0xff, v->total * sizeof(uint32_t));
}

static enum et_status allocate(const struct et_session *session, struct vectors *v, struct et_error *error)
{
    enum et_status status = ET_OK;
    for (cl_uint i = 0; i < BUFFERS && status == ET_OK; i++) {
        v->words[i] = et_alloc(v->total, sizeof(uint32_t), error);
        if (!v->words[i])
            return ET_FAILED;
        cl_int code;
        v->mem[i] = session->cl.clCreateBuffer(session->context, CL_MEM_READ_WRITE,
                                               v->total * sizeof(uint32_t), NULL, &code);
        status = et_cl_done(&session->cl, "clCreateBuffer", code, error);
        if (status == ET_OK)
            status =
                et_cl_done(&session->cl, "clSetKernelArg",
                           session->cl.clSetKernelArg(v->kernel, i, sizeof v->mem[i], &v->mem[i]), error);
    }
    return status;
}

static enum et_status compute(const struct et_session *session, const struct vectors *v, int function,
                              struct et_error *error)
{
    const struct et_cl *cl = &session->cl;
    const cl_uint number = (cl_uint)function;
    const size_t count = v->total, group = GROUP, bytes = count * sizeof(uint32_t);
    enum et_status status = et_cl_done(cl, "clSetKernelArg",
                                       cl->clSetKernelArg(v->kernel, BUFFERS, sizeof number, &number), error);
    for (int i = 0; i < BUFFERS && status == ET_OK; i++)
        status = et_cl_done(cl, "clEnqueueWriteBuffer",
                            cl->clEnqueueWriteBuffer(session->queue, v->mem[i], CL_TRUE, 0, bytes,
                                                     v->words[i], 0, NULL, NULL),
                            error);
    if (status == ET_OK)
        status = et_cl_done(
            cl, "clEnqueueNDRangeKernel",
            cl->clEnqueueNDRangeKernel(session->queue, v->kernel, 1, NULL, &count, &group, 0, NULL, NULL),
            error);
    if (status == ET_OK)
        status = et_cl_done(cl, "clEnqueueReadBuffer",
                            cl->clEnqueueReadBuffer(session->queue, v->mem[OUT], CL_TRUE, 0, bytes,
                                                    v->words[OUT], 0, NULL, NULL),
                            error);
    return status;
}

/* Prints the function's line; returns whether all bytes are C's. */
static bool judge(const struct vectors *v, int function)
{
    uint32_t equal = 0;
    uint64_t hash = hash_start;
    for (uint32_t i = 0; i < v->total; i++) {
        const uint32_t want = expected(v, function, i), got = v->words[OUT][i];
        hash = i < v->count ? hash_add(hash, et_as_f32(got)) : hash;
        equal += got == want;
        if (got != want && i + 1 - equal <= 4)
            printf("  of 0x%08x, 0x%08x: 0x%08x, in C 0x%08x\n", v->words[A][i], v->words[B][i], got, want);
    }
    printf("%s: %u of %u equal, hash 0x%016llx\n", name_of(function), equal, v->total,
           (unsigned long long)hash);
    return equal == v->total;
}

static void release(const struct et_cl *cl, struct vectors *v)
{
    for (int i = 0; i < BUFFERS; i++) {
        if (v->mem[i])
            cl->clReleaseMemObject(v->mem[i]);
        et_free(v->words[i]);
    }
    if (v->kernel)
        cl->clReleaseKernel(v->kernel);
}

static enum et_status compare(struct et_session *session, uint32_t count, bool *equal, struct et_error *error)
{
    struct vectors v = {.count = count, .total = count + (EDGES * EDGES + GROUP - 1) / GROUP * GROUP};
    enum et_status status = et_kernel(session, NULL, "ocl_fmath.cl", "", "of_each", &v.kernel, error);
    if (status == ET_OK)
        status = allocate(session, &v, error);
    for (int function = 0; function < ALL && status == ET_OK; function++) {
        make(&v, function);
        status = compute(session, &v, function, error);
        if (status == ET_OK)
            *equal = judge(&v, function) && *equal;
    }
    release(&session->cl, &v);
    return status;
}

static bool run(const char *place, const struct et_override *sources)
{
    const struct et_open options = {.place = place};
    struct et_session *session = NULL;
    struct et_device device;
    struct et_error error = {""};
    bool equal = true;
    enum et_status status = et_ocl.open(&options, &session, &device, &error);
    if (status == ET_OK) {
        printf("%s %s, %s %s\n", place, device.name, device.platform, device.driver);
        et_ocl.override(session, sources);
        status = compare(session, strcmp(device.platform, "Oclgrind") ? SAMPLE : SAMPLE / 64, &equal, &error);
    }
    et_ocl.close(session);
    if (status != ET_OK)
        fprintf(stderr, "%s: %s\n", place, error.text);
    return status == ET_OK && equal;
}

static bool read_file(const char *path, struct et_text *text)
{
    FILE *file = fopen(path, "r");
    char bytes[4096];
    for (size_t n = sizeof bytes; file && n == sizeof bytes;) {
        n = fread(bytes, 1, sizeof bytes, file);
        et_text_bytes(text, bytes, n);
    }
    const bool good = file && !ferror(file) && !text->failed;
    if (file)
        fclose(file);
    return good;
}

int main(int argc, char **argv)
{
    const char *path = argc > 2 && !strcmp(argv[1], "-f") ? argv[2] : NULL;
    const int first = path ? 3 : 1;
    struct et_text text = {0};
    if (path && !read_file(path, &text)) {
        fprintf(stderr, "%s cannot be read\n", path);
        return EXIT_FAILURE;
    }
    const struct et_override sources[] = {
        {"ocl_fmath.cl", kernel}, {path ? "fmath.h" : NULL, text.data}, {NULL, NULL}};
    struct et_device all[16];
    char report[4000];
    const int found = et_ocl.list(all, 16, report, sizeof report), n = argc > first ? argc - first : found;
    if (found <= 0)
        fputs(report, stderr);
    bool good = true;
    for (int i = 0; found > 0 && i < n; i++)
        good = run(argc > first ? argv[first + i] : all[i].place, sources) && good;
    et_text_free(&text);
    return found <= 0 ? 77 : good ? EXIT_SUCCESS : EXIT_FAILURE;
}
