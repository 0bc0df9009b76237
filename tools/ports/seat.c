/*
 * A program in plain C in the runner's seat (docs/porting.md, section 3): gqa_av in order, fused.
 *
 *     cc -std=c11 -O2 -ffp-contract=off seat.c -o seat $(pkg-config --cflags --libs etalon libcjson)
 *     etalon run --operator gqa_av --port 'exec:exec ./seat'
 *
 * libetalon has the storage types. With the argument wrong it offers a variant that loses the last position
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

/* A tensor of a step: where its elements lie, in elements from data. */
struct tensor {
    enum et_dtype dtype;
    int64_t offset, stride[3];
    char *data;
};

static struct tensor tensor_of(const struct file *f, const cJSON *step, const char *name)
{
    const cJSON *layout = cJSON_GetObjectItem(cJSON_GetObjectItem(step, "tensors"), name);
    const cJSON *at = cJSON_GetObjectItem(cJSON_GetObjectItem(f->json, name), "data_offsets");
    const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItem(layout, "dtype"));
    struct tensor t = {.offset = number(layout, "offset")};
    need(at && dtype && et_dtype_named(dtype, &t.dtype), name);
    for (int i = 0; i < 3; i++)
        t.stride[i] =
            (int64_t)cJSON_GetNumberValue(cJSON_GetArrayItem(cJSON_GetObjectItem(layout, "stride"), i));
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

static void gqa_av(const cJSON *params, int64_t context, const struct tensor *w, const struct tensor *v,
                   const struct tensor *out)
{
    const int64_t rows = number(params, "query_length"), heads = number(params, "q_heads");
    const int64_t kv_heads = number(params, "kv_heads"), width = number(params, "head_dim");
    for (int64_t s = 0; s < rows; s++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < width; d++) {
                float sum = 0;
                for (int64_t c = 0; c < context; c++)
                    sum = fmaf(get(w, h, s, c), get(v, c, h * kv_heads / heads, d), sum);
                et_store(out->dtype, out->data, place(out, s, h, d), et_narrow(out->dtype, (double)sum));
            }
}

/* Every execution of one step. Returns its context. */
static int64_t run_step(const char *job, const char *out, const cJSON *step, int i, int repeats, int lost)
{
    char name[64];
    const cJSON *params = cJSON_GetObjectItem(step, "params");
    const int64_t context = number(params, "context");
    snprintf(name, sizeof name, "%d.safetensors", i);
    struct file inputs = open_file(job, name, O_RDONLY);
    for (int r = 0; r < repeats; r++) {
        /* The file is there, full of poison: elements are written, padding stays. */
        snprintf(name, sizeof name, "%d.%d.safetensors", i, r);
        struct file outputs = open_file(out, name, O_RDWR);
        const struct tensor w = tensor_of(&inputs, step, "w"), v = tensor_of(&inputs, step, "v");
        const struct tensor o = tensor_of(&outputs, step, "out");
        gqa_av(params, context > 0 ? context - lost : 0, &w, &v, &o);
        close_file(&outputs);
    }
    close_file(&inputs);
    return context;
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
    const cJSON *step = cJSON_GetObjectItem(file.json, "steps")->child;
    for (int i = 0; step; i++, step = step->next) {
        const int64_t context = run_step(job, out, step, i, (int)number(request, "repeats"), lost);
        /* One f32 chain: so many roundings behind each other. The order has a name, so its bytes are
         * promised. */
        printf(
            "%s{\"arith\": {\"query\": \"f32\", \"product\": \"f32\", \"sum\": \"f32\", \"weight\": \"f32\", "
            "\"partial\": \"f32\", \"depth_qk\": 0, \"depth_sum\": %" PRId64 ", \"tiles\": 0}, "
            "\"order\": {\"name\": \"serial\", \"arg\": [0, 0, 0, 0, 0, 0, 0, 0]}}",
            i ? ", " : "", context);
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
    printf("{\"etalon\": 1, \"port\": \"c\", \"device\": {\"name\": \"C\"}, "
           "\"variants\": {\"gqa_av\": {\"%s\": {}}}}\n",
           lost ? "lost" : "in_order");
    fflush(stdout);
    while (getline(&line, &room, stdin) > 0) {
        answer(line, lost);
        fflush(stdout);
    }
    free(line);
    return 0;
}
