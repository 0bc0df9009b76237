/*
 * A program in plain C in the runner's seat (docs/porting.md, section 3): gqa_av and skinny_gemm in order,
 * fused.
 *
 *     cc -std=c11 -O2 -ffp-contract=off seat.c -o seat $(pkg-config --cflags --libs etalon libcjson)
 *     etalon run --port 'exec:exec ./seat'
 *
 * libetalon has the storage types. With the argument wrong it offers variants that lose the last term
 * instead, which etalon has to notice.
 */
#define _GNU_SOURCE
#include <cjson/cJSON.h>
#include <etalon/dtype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whatever is wrong ends the program; etalon makes that one ERROR and starts it again. */
static void need(int there, const char *what)
{
    if (!there) {
        fprintf(stderr, "seat: %s\n", what);
        exit(1);
    }
}

/* A file in memory, and the JSON at its beginning: all of job.json; of safetensors, what 8 bytes of length
 * announce. */
struct file {
    char *bytes;
    size_t size, data; /* data: where tensors begin */
    cJSON *json;
};

static struct file open_file(const char *folder, const char *name, int mode)
{
    char path[4200];
    struct file f = {0};
    struct stat st;
    uint64_t length;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, mode);
    need(fd >= 0 && fstat(fd, &st) == 0, path);
    f.size = (size_t)st.st_size;
    f.bytes = mmap(NULL, f.size, mode == O_RDWR ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    need(f.bytes != MAP_FAILED, path);
    if (strstr(name, ".safetensors")) {
        memcpy(&length, f.bytes, sizeof length);
        f.data = sizeof length + length;
        f.json = cJSON_ParseWithLength(f.bytes + sizeof length, length);
    } else {
        f.json = cJSON_ParseWithLength(f.bytes, f.size);
    }
    need(f.json != NULL, path);
    return f;
}

static void close_file(struct file *f)
{
    cJSON_Delete(f->json);
    munmap(f->bytes, f->size);
}

static int64_t number(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(object, key);
    need(cJSON_IsNumber(item), key);
    return (int64_t)item->valuedouble;
}

/* A tensor of a step: its shape, and where its elements lie, in elements from data. */
struct tensor {
    enum et_dtype dtype;
    int64_t size[3], stride[3], offset;
    char *data;
};

static void numbers(const cJSON *list, int64_t dst[3])
{
    for (int i = 0; i < 3; i++)
        dst[i] = i < cJSON_GetArraySize(list) ? (int64_t)cJSON_GetArrayItem(list, i)->valuedouble : 0;
}

static struct tensor tensor_of(const struct file *f, const cJSON *step, const char *name)
{
    const cJSON *layout = cJSON_GetObjectItem(cJSON_GetObjectItem(step, "tensors"), name);
    /* One that shares a buffer says whose it is, and is filed there. */
    const char *shared = cJSON_GetStringValue(cJSON_GetObjectItem(layout, "buffer"));
    const cJSON *at =
        cJSON_GetObjectItem(cJSON_GetObjectItem(f->json, shared ? shared : name), "data_offsets");
    const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItem(layout, "dtype"));
    struct tensor t = {.offset = number(layout, "offset")};
    need(at && dtype && et_dtype_named(dtype, &t.dtype), name);
    numbers(cJSON_GetObjectItem(layout, "size"), t.size);
    numbers(cJSON_GetObjectItem(layout, "stride"), t.stride);
    t.data = f->bytes + f->data + (size_t)cJSON_GetNumberValue(at->child);
    return t;
}

static int64_t place(const struct tensor *t, int64_t i, int64_t j, int64_t k)
{
    return t->offset + i * t->stride[0] + j * t->stride[1] + k * t->stride[2];
}

static float get(const struct tensor *t, int64_t i, int64_t j, int64_t k)
{
    return et_widen(t->dtype, et_load(t->dtype, t->data, place(t, i, j, k)));
}

static void put(const struct tensor *t, int64_t i, int64_t j, int64_t k, float value)
{
    et_store(t->dtype, t->data, place(t, i, j, k), et_narrow(t->dtype, (double)value));
}

/* Both take `lost` terms off the end of each sum, and return how many roundings a term meets. */

static int64_t gqa_av(const cJSON *step, const struct file *in, const struct file *written, int lost)
{
    const cJSON *params = cJSON_GetObjectItem(step, "params");
    const struct tensor w = tensor_of(in, step, "w"), v = tensor_of(in, step, "v");
    const struct tensor out = tensor_of(written, step, "out");
    const int64_t rows = number(params, "query_length"), heads = number(params, "q_heads");
    const int64_t kv_heads = number(params, "kv_heads"), width = number(params, "head_dim");
    const int64_t context = number(params, "context");
    for (int64_t s = 0; s < rows; s++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < width; d++) {
                float sum = 0;
                for (int64_t c = 0; c < context - lost; c++)
                    sum = fmaf(get(&w, h, s, c), get(&v, c, h * kv_heads / heads, d), sum);
                put(&out, s, h, d, sum);
            }
    return context;
}

/* Elements of a tensor that may have one row, or column, for all. */
static float shared(const struct tensor *t, int64_t row, int64_t column)
{
    return get(t, t->size[0] > 1 ? row : 0, t->size[1] > 1 ? column : 0, 0);
}

static int64_t skinny_gemm(const cJSON *step, const struct file *in, const struct file *written, int lost)
{
    const cJSON *params = cJSON_GetObjectItem(step, "params");
    const struct tensor weight = tensor_of(in, step, "weight"), act = tensor_of(in, step, "act");
    const struct tensor scale = tensor_of(in, step, "weight_scale"),
                        zero = tensor_of(in, step, "zero_points");
    const struct tensor act_scale = tensor_of(in, step, "act_scale"), bias = tensor_of(in, step, "bias");
    const struct tensor out = tensor_of(written, step, "out");
    const int64_t terms = act.size[1], group = number(params, "group"), width = group ? group : terms;
    for (int64_t n = 0; n < out.size[0]; n++)
        for (int64_t m = 0; m < out.size[1]; m++) {
            float sum = 0;
            for (int64_t g = 0; g < terms / width; g++) {
                /* The 8 of an i4 without zero points is taken off as it is widened. */
                const float off = zero.size[0] ? get(&zero, m, g, 0) - 8 : 0;
                float part = 0;
                for (int64_t k = g * width; k < (g + 1) * width && k < terms - lost; k++)
                    part = fmaf(get(&act, n, k, 0), get(&weight, m, k, 0) - off, part);
                sum = group ? fmaf(part, get(&scale, m, g, 0), sum) : part;
            }
            if (act_scale.size[0])
                sum *= get(&act_scale, 0, 0, 0);
            if (scale.size[0] && !group)
                sum *= shared(&scale, m, 0);
            put(&out, n, m, 0, bias.size[0] ? sum + shared(&bias, n, m) : sum);
        }
    /* And two scales and a bias. */
    return width + (group ? terms / group : 0) + 3;
}

static const struct operator
{
    const char *name;
    int64_t (*compute)(const cJSON *step, const struct file *in, const struct file *written, int lost);
}
operators[] = {{"gqa_av", gqa_av}, {"skinny_gemm", skinny_gemm}};
enum { OPERATORS = sizeof operators / sizeof *operators };

static const struct operator* operator_of(const cJSON *job)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(job, "operator"));
    for (int i = 0; name && i < OPERATORS; i++)
        if (!strcmp(operators[i].name, name))
            return &operators[i];
    need(0, "job.json has another operator");
    return NULL;
}

/* Every execution of one step. Returns the roundings of a term. */
static int64_t run_step(const struct operator* op, const char *job, const char *out, const cJSON *step, int i,
                        int repeats, int lost)
{
    char name[64];
    int64_t depth = 0;
    snprintf(name, sizeof name, "%d.safetensors", i);
    struct file inputs = open_file(job, name, O_RDONLY);
    for (int r = 0; r < repeats; r++) {
        /* The file is there, full of poison: elements are written, padding stays. */
        snprintf(name, sizeof name, "%d.%d.safetensors", i, r);
        struct file outputs = open_file(out, name, O_RDWR);
        depth = op->compute(step, &inputs, &outputs, lost);
        close_file(&outputs);
    }
    close_file(&inputs);
    return depth;
}

static void answer(const char *line, int lost)
{
    cJSON *request = cJSON_Parse(line);
    const char *job = cJSON_GetStringValue(cJSON_GetObjectItem(request, "job"));
    const char *out = cJSON_GetStringValue(cJSON_GetObjectItem(request, "out"));
    const char *variant = cJSON_GetStringValue(cJSON_GetObjectItem(request, "variant"));
    need(job && out && variant, "a request has job, out and variant");
    struct file file = open_file(job, "job.json", O_RDONLY);
    printf("{\"status\": \"ok\", \"variant\": \"%s\", \"claims\": [", variant);
    const struct operator* op = operator_of(file.json);
    const cJSON *step = cJSON_GetObjectItem(file.json, "steps")->child;
    for (int i = 0; step; i++, step = step->next) {
        const int64_t depth = run_step(op, job, out, step, i, (int)number(request, "repeats"), lost);
        /* One f32 chain: so many roundings behind each other. The order has a name, so its bytes are
         * promised. */
        printf(
            "%s{\"arith\": {\"query\": \"f32\", \"product\": \"f32\", \"sum\": \"f32\", \"weight\": \"f32\", "
            "\"partial\": \"f32\", \"depth_qk\": 0, \"depth_sum\": %" PRId64 ", \"tiles\": 0}, "
            "\"order\": {\"name\": \"serial\", \"arg\": [0, 0, 0, 0, 0, 0, 0, 0]}}",
            i ? ", " : "", depth);
    }
    printf("]}\n");
    close_file(&file);
    cJSON_Delete(request);
}

int main(int argc, char **argv)
{
    const int lost = argc > 1 && !strcmp(argv[1], "wrong");
    char *line = NULL;
    size_t room = 0;
    printf("{\"etalon\": 1, \"port\": \"c\", \"device\": {\"name\": \"C\"}, \"variants\": {");
    for (int i = 0; i < OPERATORS; i++)
        printf("%s\"%s\": {\"%s\": {}}", i ? ", " : "", operators[i].name, lost ? "lost" : "in_order");
    printf("}}\n");
    fflush(stdout);
    while (getline(&line, &room, stdin) > 0) {
        answer(line, lost);
        fflush(stdout);
    }
    free(line);
    return 0;
}
