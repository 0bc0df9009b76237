#include "port.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "device.h"
#include "guard.h"

/* State of a prepared case. */

enum { BUFFERS = ET_TENSORS + 1, CHUNK_BYTES = 1 << 20 };

/* guard | the step's data | guard, in elements. Tensors that share one have the same mem. */
struct buffer {
    const char *name;
    enum et_dtype dtype;
    cl_mem mem;
    size_t element; /* bytes */
    size_t guard;   /* before the data, and after those of the largest step */
    size_t total;
};

struct launch {
    struct et_launch plan;
    cl_kernel kernel;
    size_t items;
    char program[480]; /* file and options */
};

struct step {
    struct launch launch[ET_LAUNCHES];
    int launches;
};

struct state {
    struct et_session *session;
    const struct et_ocl_variant *variant;
    struct et_problem *problems; /* copies, n of each */
    struct et_claim *claims;
    int n, tensors;
    bool scratch;
    struct buffer buffer[BUFFERS]; /* tensors, then scratch if any step has it */
    struct step *steps;
    unsigned char *expected, *found; /* CHUNK_BYTES each */
};

static int buffers(const struct state *s)
{
    return s->tensors + s->scratch;
}

/* The tensor whose own the buffer is. What is done to buffers is done to these. */
static int home(const struct state *s, int b)
{
    return b < s->tensors ? et_tensor_home(&s->problems[0], b) : b;
}

static enum et_role role(const struct state *s, int b)
{
    return b < s->tensors ? s->problems[0].op->tensors[b].role : ET_OUTPUT;
}

/* Elements of the step's data; a tensor without any is one poisoned element. */
static size_t data_count(const struct state *s, int b, int i)
{
    const size_t bytes = b < s->tensors ? s->problems[i].tensor[b].bytes : s->claims[i].scratch_bytes;
    const size_t n = (bytes + s->buffer[b].element - 1) / s->buffer[b].element;
    return n > 0 ? n : 1;
}

/* Buffers. */

/* Of the step, and of the tensors in it, that need most. */
static size_t guard_count(const struct state *s, int b)
{
    size_t most = ET_GUARD_BYTES;
    for (int i = 0; b < s->tensors && i < s->n * s->tensors; i++) {
        const int t = i % s->tensors;
        const size_t bytes = home(s, t) == b ? et_guard_bytes(&s->problems[i / s->tensors].tensor[t]) : 0;
        most = bytes > most ? bytes : most;
    }
    return most / s->buffer[b].element;
}

static void lay_out(struct state *s, int b)
{
    struct buffer *buffer = &s->buffer[b];
    const bool tensor = b < s->tensors;
    buffer->name = tensor ? s->problems[0].op->tensors[b].name : "scratch";
    buffer->dtype = tensor ? et_storage(s->problems[0].tensor[b].dtype) : ET_F32;
    buffer->element = et_format(buffer->dtype)->bytes;
    buffer->guard = s->session->guards ? guard_count(s, b) : 0;
    for (int i = 0; i < s->n; i++) {
        const size_t n = data_count(s, b, i);
        buffer->total = n > buffer->total ? n : buffer->total;
    }
    buffer->total += 2 * buffer->guard;
}

static enum et_status create_buffers(struct state *s, struct et_error *error)
{
    const struct et_cl *cl = &s->session->cl;
    enum et_status status = ET_OK;
    size_t sum = 0;
    for (int b = 0; b < buffers(s) && status == ET_OK; b++) {
        struct buffer *buffer = &s->buffer[b];
        if (home(s, b) != b)
            continue;
        lay_out(s, b);
        const size_t bytes = buffer->total * buffer->element;
        status = et_fits_global(&s->session->device, buffer->name, bytes, &sum, error);
        if (status != ET_OK)
            break;
        cl_int code;
        buffer->mem = cl->clCreateBuffer(s->session->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
        status = et_cl_done(cl, "clCreateBuffer", code, error);
    }
    for (int b = 0; b < s->tensors && status == ET_OK; b++)
        if (home(s, b) != b) {
            s->buffer[b] = s->buffer[home(s, b)];
            s->buffer[b].name = s->problems[0].op->tensors[b].name;
        }
    return status;
}

/* A part of a buffer, and what it holds before a launch. */
struct region {
    size_t first, count;
    enum content { NAN_BITS, POISON, DATA } content;
    uint32_t poison;
    const unsigned char *data;
};

enum { BEFORE, MIDDLE, AFTER, REGIONS };

static struct region region(const struct state *s, int b, int i, int repeat, int part)
{
    const struct buffer *buffer = &s->buffer[b];
    const size_t n = data_count(s, b, i);
    if (part == BEFORE)
        return (struct region){.first = 0, .count = buffer->guard, .content = NAN_BITS};
    if (part == AFTER)
        return (struct region){
            .first = buffer->guard + n, .count = buffer->total - buffer->guard - n, .content = NAN_BITS};
    struct region middle = {.first = buffer->guard, .count = n, .content = POISON};
    middle.poison = et_poison(buffer->dtype, repeat);
    if (role(s, b) == ET_INPUT && s->problems[i].tensor[b].bytes > 0) {
        middle.content = DATA;
        middle.data = s->problems[i].tensor[b].data;
    }
    return middle;
}

/* Elements of a buffer. */
struct span {
    size_t at, n;
};

/* Those of [at, at + n) that lie in the region. */
static struct span overlap(const struct region *region, size_t at, size_t n)
{
    const size_t last = region->first + region->count, end = at + n < last ? at + n : last;
    const size_t from = at > region->first ? at : region->first;
    return (struct span){.at = from, .n = end > from ? end - from : 0};
}

/* What they hold before a launch. */
static void make(const struct buffer *buffer, const struct region *region, struct span span, void *dst)
{
    if (region->content == DATA) {
        memcpy(dst, region->data + (span.at - region->first) * buffer->element, span.n * buffer->element);
        return;
    }
    const struct et_stream stream = et_stream(0, buffer->name);
    for (size_t k = 0; k < span.n; k++) {
        const uint32_t bits = region->content == POISON
                                  ? region->poison
                                  : et_nan(buffer->dtype, et_word(&stream, span.at + k, 0));
        et_store(buffer->dtype, dst, (int64_t)k, bits);
    }
}

/* Elements from `at` on that are moved together: every call costs tens of microseconds on some devices. */
static size_t chunk(const struct buffer *buffer, size_t at)
{
    const size_t most = CHUNK_BYTES / buffer->element, left = buffer->total - at;
    return left < most ? left : most;
}

static enum et_status write_buffer(const struct state *s, int b, int i, int repeat, struct et_error *error)
{
    const struct et_cl *cl = &s->session->cl;
    const struct buffer *buffer = &s->buffer[b];
    enum et_status status = ET_OK;
    for (size_t at = 0, n; at < buffer->total && status == ET_OK; at += n) {
        n = chunk(buffer, at);
        for (int part = 0; part < REGIONS; part++) {
            const struct region r = region(s, b, i, repeat, part);
            const struct span span = overlap(&r, at, n);
            if (span.n > 0)
                make(buffer, &r, span, s->expected + (span.at - at) * buffer->element);
        }
        status =
            et_cl_done(cl, "clEnqueueWriteBuffer",
                       cl->clEnqueueWriteBuffer(s->session->queue, buffer->mem, CL_TRUE, at * buffer->element,
                                                n * buffer->element, s->expected, 0, NULL, NULL),
                       error);
    }
    return status;
}

/* An element that is not what it was. */
struct change {
    bool any;
    size_t at; /* from the region's start */
    uint32_t was, is;
};

static struct change compare(const struct state *s, const struct buffer *buffer, const struct region *region,
                             struct span span, const unsigned char *found)
{
    const unsigned char *expected = s->expected;
    make(buffer, region, span, s->expected);
    if (memcmp(expected, found, span.n * buffer->element) == 0)
        return (struct change){0};
    size_t k = 0;
    while (memcmp(expected + k * buffer->element, found + k * buffer->element, buffer->element) == 0)
        k++;
    return (struct change){true, span.at - region->first + k, et_load(buffer->dtype, expected, (int64_t)k),
                           et_load(buffer->dtype, found, (int64_t)k)};
}

/* What a step brought to light. */

/* Writes " at (0,0,12)"; false for a place that holds no element of the tensor. */
static bool say_place(const struct et_tensor *t, int64_t at, char *dst, size_t bytes)
{
    int64_t index[ET_RANK] = {0}, rest = at - t->offset;
    bool inside = rest >= 0 && t->rank > 0, taken[ET_RANK] = {false};
    for (int done = 0; done < t->rank; done++) {
        int k = -1;
        for (int j = 0; j < t->rank; j++)
            if (!taken[j] && (k < 0 || t->stride[j] > t->stride[k]))
                k = j;
        taken[k] = true;
        index[k] = t->size[k] > 1 && t->stride[k] > 0 ? rest / t->stride[k] : 0;
        rest -= index[k] * t->stride[k];
        inside = inside && index[k] < t->size[k];
    }
    if (!inside || rest != 0)
        return false;
    size_t used = 0;
    for (int k = 0; k < t->rank && used < bytes; k++)
        used +=
            (size_t)snprintf(dst + used, bytes - used, "%s%lld", k == 0 ? " at (" : ",", (long long)index[k]);
    if (used < bytes)
        snprintf(dst + used, bytes - used, ")");
    return true;
}

static void say_guard(const struct buffer *buffer, const struct region *guard, int part,
                      const struct change *change, struct et_facts *facts)
{
    const bool before = part == BEFORE;
    et_guard_tell(facts, buffer->name, buffer->dtype, before ? guard->count - change->at : change->at + 1,
                  before, change->was, change->is);
}

static void say_input(const struct state *s, int b, int i, const struct change *change,
                      struct et_facts *facts)
{
    const struct buffer *buffer = &s->buffer[b];
    const struct et_tensor *tensors = s->problems[i].tensor;
    const int64_t at = (int64_t)change->at * et_format(tensors[b].dtype)->block;
    char values[100], place[120] = " (padding)";
    et_guard_values(buffer->dtype, change->was, change->is, values, sizeof values);
    int named = b;
    if (!say_place(&tensors[b], at, place, sizeof place))
        for (int t = 0; t < s->tensors; t++)
            if (t != b && home(s, t) == b && say_place(&tensors[t], at, place, sizeof place))
                named = t;
    snprintf(facts->inputs_kept, sizeof facts->inputs_kept, "%s: element %zu%s %s", s->buffer[named].name,
             change->at, place, values);
}

/* Elements at `found` of a part that no kernel may write. */
static void check(const struct state *s, int b, int i, int part, const struct region *region,
                  struct span span, const unsigned char *found, struct et_facts *facts)
{
    const char *said = part == MIDDLE ? facts->inputs_kept : facts->guards;
    const struct change change = compare(s, &s->buffer[b], region, span, found);
    if (!change.any || said[0] != '\0')
        return;
    if (part == MIDDLE)
        say_input(s, b, i, &change, facts);
    else
        say_guard(&s->buffer[b], region, part, &change, facts);
}

/* Copies an output's data to out, NULL: to nowhere, and looks at all that no kernel may write. */
static enum et_status read_buffer(const struct state *s, int b, int i, int repeat, unsigned char *out,
                                  struct et_facts *facts, struct et_error *error)
{
    const struct et_cl *cl = &s->session->cl;
    const struct buffer *buffer = &s->buffer[b];
    const bool input = role(s, b) == ET_INPUT;
    enum et_status status = ET_OK;
    const bool needed = input || out || facts->guarded;
    for (size_t at = 0, n; needed && at < buffer->total && status == ET_OK; at += n) {
        n = chunk(buffer, at);
        status =
            et_cl_done(cl, "clEnqueueReadBuffer",
                       cl->clEnqueueReadBuffer(s->session->queue, buffer->mem, CL_TRUE, at * buffer->element,
                                               n * buffer->element, s->found, 0, NULL, NULL),
                       error);
        for (int part = 0; part < REGIONS && status == ET_OK; part++) {
            const struct region r = region(s, b, i, repeat, part);
            const struct span span = overlap(&r, at, n);
            const unsigned char *found = s->found + (span.at - at) * buffer->element;
            if (span.n == 0)
                continue;
            if (part == MIDDLE && out)
                memcpy(out + (span.at - r.first) * buffer->element, found, span.n * buffer->element);
            if (part == MIDDLE ? input : facts->guarded)
                check(s, b, i, part, &r, span, found, facts);
        }
    }
    return status;
}

/* Kernels. */

static enum et_status set_argument(const struct et_cl *cl, cl_kernel kernel, cl_uint *at, size_t bytes,
                                   const void *value, struct et_error *error)
{
    return et_cl_done(cl, "clSetKernelArg", cl->clSetKernelArg(kernel, (*at)++, bytes, value), error);
}

static enum et_status set_place(const struct state *s, cl_kernel kernel, int b, int i, cl_uint *at,
                                struct et_error *error)
{
    const struct et_cl *cl = &s->session->cl;
    const struct buffer *buffer = &s->buffer[b];
    const struct et_tensor *t = b < s->tensors ? &s->problems[i].tensor[b] : NULL;
    /* Guards are counted as they are filed, places in elements, of which several may share a byte. */
    const cl_ulong before = buffer->guard * (t ? (cl_ulong)et_format(t->dtype)->block : 1);
    const cl_ulong place = before + (t ? (cl_ulong)t->offset : 0);
    enum et_status status = set_argument(cl, kernel, at, sizeof buffer->mem, &buffer->mem, error);
    if (status == ET_OK)
        status = set_argument(cl, kernel, at, sizeof place, &place, error);
    for (int k = 0; t && k < t->rank - 1 && status == ET_OK; k++) {
        const cl_ulong stride = (cl_ulong)t->stride[k];
        status = set_argument(cl, kernel, at, sizeof stride, &stride, error);
    }
    return status;
}

static enum et_status set_arguments(const struct state *s, const struct launch *launch, int i,
                                    struct et_error *error)
{
    cl_uint at = 0;
    enum et_status status = ET_OK;
    for (int b = 0; b < buffers(s) && status == ET_OK; b++)
        status = set_place(s, launch->kernel, b, i, &at, error);
    for (int k = 0; k < launch->plan.scalars && status == ET_OK; k++) {
        const cl_ulong scalar = launch->plan.scalar[k];
        status = set_argument(&s->session->cl, launch->kernel, &at, sizeof scalar, &scalar, error);
    }
    if (launch->plan.local_bytes > 0 && status == ET_OK)
        status = set_argument(&s->session->cl, launch->kernel, &at, launch->plan.local_bytes, NULL, error);
    return status;
}

/* How many items the device and the built kernel allow, and whether its local memory, that of its arguments
 * included, fits. */
static enum et_status ask_kernel(const struct state *s, struct launch *launch, struct et_error *error)
{
    const struct et_session *session = s->session;
    const struct et_cl *cl = &session->cl;
    size_t most = 0;
    cl_ulong local = 0;
    enum et_status status =
        et_cl_done(cl, "clGetKernelWorkGroupInfo",
                   cl->clGetKernelWorkGroupInfo(launch->kernel, session->id, CL_KERNEL_WORK_GROUP_SIZE,
                                                sizeof most, &most, NULL),
                   error);
    if (status == ET_OK)
        status =
            et_cl_done(cl, "clGetKernelWorkGroupInfo",
                       cl->clGetKernelWorkGroupInfo(launch->kernel, session->id, CL_KERNEL_LOCAL_MEM_SIZE,
                                                    sizeof local, &local, NULL),
                       error);
    launch->items = launch->plan.items < most ? launch->plan.items : most;
    const int64_t limit = session->device.work_group;
    if (limit > 0 && launch->items > (size_t)limit)
        launch->items = (size_t)limit;
    return status == ET_OK ? et_fits_local(&session->device, launch->plan.kernel, local, error) : status;
}

/* "-D W_DTYPE=f32 ... " and the plan's own options. NULL with the sentence in error on failure. */
static char *options_of(const struct state *s, const struct et_launch *plan, struct et_error *error)
{
    struct et_text text = {0};
    for (int b = 0; b < s->tensors; b++) {
        et_text_add(&text, "-D ");
        for (const char *c = s->buffer[b].name; *c != '\0'; c++)
            et_text_add(&text, "%c", toupper((unsigned char)*c));
        et_text_add(&text, "_DTYPE=%s ", et_format(s->problems[0].tensor[b].dtype)->name);
    }
    et_text_add(&text, "%s", plan->options);
    if (!text.failed)
        return text.data;
    et_fail(error, ET_FAILED, "out of memory for the build options of %s", plan->kernel);
    et_text_free(&text);
    return NULL;
}

static enum et_status make_launch(struct state *s, int i, struct launch *launch, struct et_error *error)
{
    struct et_session *session = s->session;
    char *options = options_of(s, &launch->plan, error);
    if (!options)
        return ET_FAILED;
    enum et_status status = et_kernel(session, session->folder, launch->plan.file, options,
                                      launch->plan.kernel, &launch->kernel, error);
    snprintf(launch->program, sizeof launch->program, "%s -cl-std=CL1.2 %s", launch->plan.file, options);
    session->cl.kernel = launch->plan.kernel;
    session->cl.options = options;
    if (status == ET_OK)
        status = set_arguments(s, launch, i, error);
    if (status == ET_OK)
        status = ask_kernel(s, launch, error);
    session->cl.kernel = session->cl.options = NULL;
    et_free(options);
    return status;
}

static enum et_status make_step(struct state *s, int i, struct et_error *error)
{
    struct et_launch plans[ET_LAUNCHES];
    struct step *step = &s->steps[i];
    step->launches = s->variant->plan(&s->problems[i], &s->claims[i], plans);
    enum et_status status = ET_OK;
    for (int k = 0; k < step->launches && status == ET_OK; k++) {
        step->launch[k].plan = plans[k];
        status = make_launch(s, i, &step->launch[k], error);
    }
    return status;
}

/* Adds the name that the kernel object itself has to facts->kernels. */
static enum et_status add_name(const struct et_cl *cl, cl_kernel kernel, struct et_facts *facts,
                               struct et_error *error)
{
    char name[100] = "";
    const enum et_status status =
        et_cl_done(cl, "clGetKernelInfo",
                   cl->clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL), error);
    const size_t used = strlen(facts->kernels);
    snprintf(facts->kernels + used, sizeof facts->kernels - used, "%s%.*s", used > 0 ? "," : "",
             (int)sizeof name, name);
    return status;
}

static enum et_status add_time(const struct et_cl *cl, cl_event event, struct et_facts *facts,
                               struct et_error *error)
{
    cl_ulong start = 0, end = 0;
    cl_int code = cl->clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof start, &start, NULL);
    if (code == CL_SUCCESS)
        code = cl->clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL);
    if (code == CL_PROFILING_INFO_NOT_AVAILABLE)
        return ET_OK;
    facts->device_ns += end > start ? (double)(end - start) : 0;
    return et_cl_done(cl, "clGetEventProfilingInfo", code, error);
}

static enum et_status enqueue(const struct state *s, const struct launch *launch, struct et_facts *facts,
                              struct et_error *error)
{
    struct et_session *session = s->session;
    const struct et_cl *cl = &session->cl;
    session->cl.kernel = launch->plan.kernel;
    session->cl.options = launch->program;
    size_t global[3], local[3] = {launch->items, 1, 1};
    cl_uint dims = 0;
    while (dims < 3 && launch->plan.groups[dims] > 0) {
        global[dims] = launch->plan.groups[dims] * local[dims];
        dims++;
    }
    cl_event event = NULL;
    enum et_status status = et_cl_done(cl, "clEnqueueNDRangeKernel",
                                       cl->clEnqueueNDRangeKernel(session->queue, launch->kernel, dims, NULL,
                                                                  global, local, 0, NULL, &event),
                                       error);
    if (status == ET_OK)
        status = et_cl_done(cl, "clFinish", cl->clFinish(session->queue), error);
    if (status == ET_OK)
        status = add_name(cl, launch->kernel, facts, error);
    snprintf(facts->program, sizeof facts->program, "%s", launch->program);
    if (status == ET_OK)
        status = add_time(cl, event, facts, error);
    if (event)
        cl->clReleaseEvent(event);
    session->cl.kernel = session->cl.options = NULL;
    return status;
}

/* The port. */

static bool allocate(struct state *s, const struct et_problem *steps, const struct et_claim *claims,
                     struct et_error *error)
{
    const size_t n = (size_t)s->n;
    s->problems = et_alloc(n, sizeof *s->problems, error);
    s->claims = s->problems ? et_alloc(n, sizeof *s->claims, error) : NULL;
    s->steps = s->claims ? et_alloc(n, sizeof *s->steps, error) : NULL;
    s->expected = s->steps ? et_alloc(CHUNK_BYTES, 1, error) : NULL;
    s->found = s->expected ? et_alloc(CHUNK_BYTES, 1, error) : NULL;
    if (!s->found)
        return false;
    memcpy(s->problems, steps, n * sizeof *steps);
    memcpy(s->claims, claims, n * sizeof *claims);
    return true;
}

static enum et_status prepare(struct state *s, struct et_error *error)
{
    for (int i = 0; i < s->n; i++)
        s->scratch = s->scratch || s->claims[i].scratch_bytes > 0;
    enum et_status status = create_buffers(s, error);
    for (int i = 0; i < s->n && status == ET_OK; i++)
        status = make_step(s, i, error);
    return status;
}

enum et_status et_ocl_prepare(struct et_session *session, const struct et_variant *variant,
                              const struct et_problem *steps, const struct et_claim *claims, int n,
                              void **state, struct et_error *error)
{
    struct state *s = et_alloc(1, sizeof *s, error);
    *state = s;
    if (!s)
        return ET_FAILED;
    s->session = session;
    s->variant = (const struct et_ocl_variant *)variant;
    s->n = n;
    s->tensors = et_tensor_count_of(steps[0].op);
    return allocate(s, steps, claims, error) ? prepare(s, error) : ET_FAILED;
}

static enum et_status launch_all(struct state *s, int i, struct et_facts *facts, struct et_error *error)
{
    const struct step *step = &s->steps[i];
    enum et_status status = ET_OK;
    for (int k = 0; k < step->launches && status == ET_OK; k++) {
        s->session->cl.kernel = step->launch[k].plan.kernel;
        status = enqueue(s, &step->launch[k], facts, error);
        s->session->cl.kernel = NULL;
    }
    return status;
}

static enum et_status read_buffers(const struct state *s, int i, int repeat, void *const *out,
                                   struct et_facts *facts, struct et_error *error)
{
    enum et_status status = ET_OK;
    for (int b = 0; b < buffers(s) && status == ET_OK; b++) {
        const bool wanted = b < s->tensors && role(s, b) == ET_OUTPUT && s->problems[i].tensor[b].bytes > 0;
        if (home(s, b) == b)
            status = read_buffer(s, b, i, repeat, wanted ? out[b] : NULL, facts, error);
    }
    return status;
}

enum et_status et_ocl_step(void *state, int i, int repeat, void *const *out, struct et_facts *facts,
                           struct et_error *error)
{
    struct state *s = state;
    *facts = (struct et_facts){.guarded = s->session->guards};
    enum et_status status = ET_OK;
    for (int b = 0; b < buffers(s) && status == ET_OK; b++)
        if (home(s, b) == b)
            status = write_buffer(s, b, i, repeat, error);
    if (status == ET_OK)
        status = launch_all(s, i, facts, error);
    if (status == ET_OK)
        status = read_buffers(s, i, repeat, out, facts, error);
    return status;
}

void et_ocl_finish(void *state)
{
    struct state *s = state;
    if (!s)
        return;
    const struct et_cl *cl = &s->session->cl;
    for (int i = 0; s->steps && i < s->n; i++)
        for (int k = 0; k < ET_LAUNCHES; k++)
            if (s->steps[i].launch[k].kernel)
                cl->clReleaseKernel(s->steps[i].launch[k].kernel);
    for (int b = 0; b < BUFFERS; b++)
        if (s->buffer[b].mem && home(s, b) == b)
            cl->clReleaseMemObject(s->buffer[b].mem);
    et_free(s->problems);
    et_free(s->claims);
    et_free(s->steps);
    et_free(s->expected);
    et_free(s->found);
    et_free(s);
}
