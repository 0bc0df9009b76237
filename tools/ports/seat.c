/*
 * A program in plain C in the runner's seat (docs/porting.md, section 3): every operator, gqa_av and
 * skinny_gemm in order, fused; the others with the exponentials of libm.
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
#include <stdbool.h>
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

static double real(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(object, key);
    need(cJSON_IsNumber(item), key);
    return item->valuedouble;
}

static int64_t number(const cJSON *object, const char *key)
{
    return (int64_t)real(object, key);
}

/* A tensor of a step: its shape, and where its elements lie, in elements from data. */
struct tensor {
    enum et_dtype dtype;
    int64_t size[4], stride[4], offset;
    char *data;
};

static void numbers(const cJSON *list, int64_t dst[4])
{
    for (int i = 0; i < 4; i++)
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

/* Of four dimensions the two that are left at index i of the first and j of `other`, the first of the rest
 * being 0. */
static struct tensor at(const struct tensor *t, int64_t i, int other, int64_t j)
{
    const int row = other == 0 ? 2 : 1;
    return (struct tensor){.dtype = t->dtype,
                           .size = {t->size[row], t->size[3]},
                           .stride = {t->stride[row], t->stride[3]},
                           .offset = t->offset + i * t->stride[0] + j * t->stride[other + 1],
                           .data = t->data};
}

/* Of three dimensions: what has fewer is asked for 0. */
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

/* What is claimed of a step: so many roundings behind each other in a sum and in a score, and an order, whose
 * bytes are promised, or none. */
struct claim {
    int64_t depth_sum, depth_qk;
    const char *order;
};

/* Each takes `lost` terms off the end of each sum. */

static struct claim gqa_av(const cJSON *step, const struct file *in, const struct file *written, int lost)
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
    return (struct claim){.depth_sum = context, .order = "serial"};
}

/* Elements of a tensor that may have one row, or column, for all. */
static float shared(const struct tensor *t, int64_t row, int64_t column)
{
    return get(t, t->size[0] > 1 ? row : 0, t->size[1] > 1 ? column : 0, 0);
}

static struct claim skinny_gemm(const cJSON *step, const struct file *in, const struct file *written,
                                int lost)
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
    return (struct claim){.depth_sum = width + (group ? terms / group : 0) + 3, .order = "serial"};
}

struct norms {
    int64_t width, lost;
    float eps, scale;
};

/* Head h of q or k, which begins at element `from` of a row of conv. */
static void norm(const struct tensor *conv, const struct tensor *out, int64_t token, int64_t h, int64_t from,
                 const struct norms *n)
{
    float sum = 0;
    for (int64_t d = 0; d < n->width - n->lost; d++)
        sum = fmaf(get(conv, token, from + d, 0), get(conv, token, from + d, 0), sum);
    for (int64_t d = 0; d < n->width; d++)
        put(out, token, h, d, get(conv, token, from + d, 0) / sqrtf(sum + n->eps) * n->scale);
}

static struct claim gdn_postconv(const cJSON *step, const struct file *in, const struct file *written,
                                 int lost)
{
    const cJSON *params = cJSON_GetObjectItem(step, "params");
    const struct tensor conv = tensor_of(in, step, "conv"), a = tensor_of(in, step, "a");
    const struct tensor b = tensor_of(in, step, "b"), a_log = tensor_of(in, step, "A_log");
    const struct tensor dt_bias = tensor_of(in, step, "dt_bias"), q = tensor_of(written, step, "q");
    const struct tensor k = tensor_of(written, step, "k"), v = tensor_of(written, step, "v");
    const struct tensor g = tensor_of(written, step, "g"), beta = tensor_of(written, step, "beta");
    const int64_t width = q.size[2], keys = q.size[1] * width;
    const bool scaled = cJSON_IsTrue(cJSON_GetObjectItem(params, "scale_q"));
    const struct norms of_k = {width, lost, (float)real(params, "eps"), 1};
    struct norms of_q = of_k;
    of_q.scale = scaled ? 1 / sqrtf((float)width) : 1;
    for (int64_t t = 0; t < q.size[0]; t++) {
        for (int64_t h = 0; h < q.size[1]; h++) {
            norm(&conv, &q, t, h, h * width, &of_q);
            norm(&conv, &k, t, h, keys + h * width, &of_k);
        }
        for (int64_t h = 0; h < v.size[1]; h++) {
            const double x = (double)get(&a, t, h, 0) + (double)get(&dt_bias, h, 0, 0);
            const double softened = x > 20 ? x : log1p(exp(x));
            put(&g, t, h, 0, (float)(-exp((double)get(&a_log, h, 0, 0)) * softened));
            put(&beta, t, h, 0, (float)(1 / (1 + exp(-(double)get(&b, t, h, 0)))));
            for (int64_t d = 0; d < v.size[2]; d++)
                put(&v, t, h, d, get(&conv, t, 2 * keys + h * v.size[2] + d, 0));
        }
    }
    return (struct claim){.depth_sum = width, .order = "none"};
}

/* What a query sees, and how that is scored. */
struct attention {
    int64_t heads, kv_heads, rows, keys;
    int64_t diagonal;      /* the key of row i is i + diagonal; it sees so many */
    int64_t ahead, behind; /* behind and before that one */
    float scale, softcap, max_bias;
    bool masked, sinks;
};

static struct attention attention_of(const cJSON *params, int lost)
{
    const char *causal = cJSON_GetStringValue(cJSON_GetObjectItem(params, "causal"));
    const char *mask = cJSON_GetStringValue(cJSON_GetObjectItem(params, "mask"));
    const int64_t keys = number(params, "kv_length"), rows = number(params, "query_length");
    const double scale = real(params, "scale"), width = real(params, "head_dim");
    const int64_t window = number(params, "window"), right = number(params, "window_right");
    need(causal && mask, "params have causal and mask");
    struct attention a = {.heads = number(params, "q_heads"),
                          .kv_heads = number(params, "kv_heads"),
                          .rows = rows,
                          .keys = keys > lost ? keys - lost : 0,
                          .diagonal = strcmp(causal, "top_left") ? keys - rows : 0,
                          .ahead = INT64_MAX,
                          .behind = INT64_MAX,
                          .scale = (float)(scale > 0 ? scale : 1 / sqrt(width)),
                          .softcap = (float)real(params, "softcap"),
                          .max_bias = (float)real(params, "max_bias"),
                          .masked = strcmp(mask, "none") != 0,
                          .sinks = cJSON_IsTrue(cJSON_GetObjectItem(params, "sinks"))};
    /* A materialised mask has what they say. */
    if (!strcmp(mask, "materialised"))
        return a;
    if (window > 0)
        a.behind = window - 1;
    if (right >= 0)
        a.ahead = right;
    if (strcmp(causal, "none"))
        a.ahead = 0;
    return a;
}

/* ALiBi's, of head h. */
static float slope(const struct attention *a, int64_t h)
{
    int64_t n = 1;
    while (n <= a->heads / 2)
        n *= 2;
    const double steps = h < n ? (double)(h + 1) / (double)n : (double)(2 * (h - n) + 1) / (double)(2 * n);
    return (float)exp2(-(double)a->max_bias * steps);
}

/* One head of a sequence: q and out [rows, channels], k and v [keys, channels], mask [rows, keys]. */
struct head {
    const struct attention *a;
    struct tensor q, k, v, mask, out;
    float slope, sink; /* -Inf: none */
};

/* s[keys] of row i, -Inf where it does not see the key. Returns the largest. */
static float scores(const struct head *head, int64_t i, float *s)
{
    const struct attention *a = head->a;
    float largest = -INFINITY;
    for (int64_t j = 0; j < a->keys; j++) {
        const int64_t ahead = j - i - a->diagonal;
        const float mask = a->masked ? get(&head->mask, i, j, 0) : 0;
        s[j] = -INFINITY;
        if (ahead > a->ahead || -ahead > a->behind || mask == -INFINITY)
            continue;
        float dot = 0;
        for (int64_t c = 0; c < head->q.size[1]; c++)
            dot = fmaf(get(&head->q, i, c, 0), get(&head->k, j, c, 0), dot);
        s[j] = dot * a->scale;
        if (a->softcap > 0)
            s[j] = a->softcap * tanhf(s[j] / a->softcap);
        s[j] += head->slope * mask;
        largest = fmaxf(largest, s[j]);
    }
    return largest;
}

static void attend(const struct head *head, int64_t i, float *s)
{
    const int64_t keys = head->a->keys;
    const float largest = scores(head, i, s), top = fmaxf(largest, head->sink);
    float total = head->sink == top ? 1 : expf(head->sink - top);
    for (int64_t j = 0; j < keys; j++) {
        s[j] = expf(s[j] - top);
        total += s[j];
    }
    for (int64_t d = 0; d < head->v.size[1]; d++) {
        float sum = 0;
        for (int64_t j = 0; j < keys; j++)
            sum = fmaf(s[j], get(&head->v, j, d, 0), sum);
        put(&head->out, i, d, 0, largest > -INFINITY ? sum / total : 0);
    }
}

static struct claim flash_attn(const cJSON *step, const struct file *in, const struct file *written, int lost)
{
    const cJSON *params = cJSON_GetObjectItem(step, "params");
    const struct tensor q = tensor_of(in, step, "q"), k = tensor_of(in, step, "k");
    const struct tensor v = tensor_of(in, step, "v"), mask = tensor_of(in, step, "mask");
    const struct tensor sinks = tensor_of(in, step, "sinks"), out = tensor_of(written, step, "out");
    const int64_t batch = number(params, "batch"), kv_batch = number(params, "kv_batch");
    const int64_t mask_batches = number(params, "mask_batches"), mask_heads = number(params, "mask_heads");
    const struct attention a = attention_of(params, lost);
    float *s = malloc((size_t)(a.keys + 1) * sizeof *s);
    need(s != NULL, "memory for scores");
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < a.heads; h++) {
            const int64_t shared = b * kv_batch / batch, kv = h * a.kv_heads / a.heads;
            const struct head head = {.a = &a,
                                      .q = at(&q, b, 1, h),
                                      .k = at(&k, shared, 1, kv),
                                      .v = at(&v, shared, 1, kv),
                                      .mask = at(&mask, b % mask_batches, 0, h % mask_heads),
                                      .out = at(&out, b, 1, h),
                                      .slope = slope(&a, h),
                                      .sink = a.sinks ? get(&sinks, h, 0, 0) : -INFINITY};
            for (int64_t i = 0; i < a.rows; i++)
                attend(&head, i, s);
        }
    free(s);
    return (struct claim){.depth_sum = a.keys, .depth_qk = q.size[3], .order = "none"};
}

static const struct operator
{
    const char *name;
    struct claim (*compute)(const cJSON *step, const struct file *in, const struct file *written, int lost);
}
operators[] = {{"gqa_av", gqa_av},
               {"gdn_postconv", gdn_postconv},
               {"skinny_gemm", skinny_gemm},
               {"flash_attn", flash_attn}};
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

/* Every execution of one step. */
static struct claim run_step(const struct operator* op, const char *job, const char *out, const cJSON *step,
                             int i, int repeats, int lost)
{
    char name[64];
    struct claim claim = {.order = "none"};
    snprintf(name, sizeof name, "%d.safetensors", i);
    struct file inputs = open_file(job, name, O_RDONLY);
    for (int r = 0; r < repeats; r++) {
        /* The file is there, full of poison: elements are written, padding stays. */
        snprintf(name, sizeof name, "%d.%d.safetensors", i, r);
        struct file outputs = open_file(out, name, O_RDWR);
        claim = op->compute(step, &inputs, &outputs, lost);
        close_file(&outputs);
    }
    close_file(&inputs);
    return claim;
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
        const struct claim claim = run_step(op, job, out, step, i, (int)number(request, "repeats"), lost);
        printf(
            "%s{\"arith\": {\"query\": \"f32\", \"product\": \"f32\", \"sum\": \"f32\", \"weight\": \"f32\", "
            "\"partial\": \"f32\", \"depth_qk\": %" PRId64 ", \"depth_sum\": %" PRId64 ", \"tiles\": 0}, "
            "\"order\": {\"name\": \"%s\", \"arg\": [0, 0, 0, 0, 0, 0, 0, 0]}}",
            i ? ", " : "", claim.depth_qk, claim.depth_sum, claim.order);
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
