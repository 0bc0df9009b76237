#define _XOPEN_SOURCE 700

#include "dump.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../ocl/ocl.h"
#include "finding.h"
#include "npy.h"
#include "parallel.h"

#ifndef ET_VERSION
#define ET_VERSION "unknown"
#endif

enum { FORMAT = 1, RUNS_MOST = 1000000, MANIFEST_BYTES = 1 << 26 };

enum et_status et_dump_port(struct et_offer *offer, struct et_error *error)
{
    struct et_text text = {0};
    struct et_json json = {0};
    et_text_add(&text, "{");
    for (int i = 0; et_operators[i]; i++)
        et_text_add(&text, "%s\"%s\": {\"outputs\": {}}", i ? ", " : "", et_operators[i]->name);
    et_text_add(&text, "}");
    enum et_status status = text.failed ? et_fail(error, ET_FAILED, "out of memory for a port")
                                        : et_json_parse("port", text.data, text.length, &json, error);
    if (status == ET_OK)
        status = et_offer_read(&json, json.root, "files", offer, error);
    et_json_free(&json);
    et_text_free(&text);
    return status;
}

/* ---- Writing ---- */

static int32_t twice(int32_t depth)
{
    return depth > INT32_MAX / 2 ? INT32_MAX : 2 * depth;
}

/* Of the variants that take this shape, layouts aside, the one with the longest chains of roundings. */
static enum et_status widest_claim(const struct et_problem *problem, struct et_claim *claim,
                                   struct et_error *error)
{
    const struct et_device device = et_device_unlimited();
    struct et_problem packed = *problem;
    int64_t asked[ET_PARAMS];
    bool found = false;
    for (int k = 0; k < ET_PARAMS; k++)
        asked[k] = ET_UNSET;
    for (int t = 0; problem->op->tensors[t].name; t++)
        et_tensor_pack(&packed.tensor[t]);
    for (const struct et_variant *const *v = et_ocl.variants; *v; v++) {
        struct et_claim other;
        if (strcmp((*v)->op, problem->op->name) != 0 ||
            (*v)->resolve(&packed, &device, asked, &other, error) != ET_OK)
            continue;
        if (!found || other.arith.depth_sum > claim->arith.depth_sum)
            *claim = (struct et_claim){.arith = other.arith, .order = {.name = "none"}};
        found = true;
    }
    if (!found)
        return ET_REFUSED;
    claim->arith.depth_sum = twice(claim->arith.depth_sum);
    claim->arith.depth_qk = twice(claim->arith.depth_qk);
    return ET_OK;
}

static enum et_status write_bytes(const char *path, const struct et_text *header, const void *bytes, size_t n,
                                  const volatile sig_atomic_t *stop, struct et_error *error)
{
    enum { PIECE = 1 << 20 };
    FILE *file = header->failed ? NULL : fopen(path, "wbx");
    bool good = file && fwrite(header->data, 1, header->length, file) == header->length;
    for (size_t at = 0, piece; good && at < n && !et_stopped(stop); at += piece) {
        piece = n - at < PIECE ? n - at : PIECE;
        good = fwrite((const char *)bytes + at, 1, piece, file) == piece;
    }
    if (file)
        good = fclose(file) == 0 && good;
    return good ? ET_OK : et_fail(error, ET_INVALID, "%s cannot be written: %s", path, strerror(errno));
}

static enum et_status write_npy(const char *folder, int step, const char *name, const char *what,
                                const struct et_tensor *tensor, const double *values,
                                const volatile sig_atomic_t *stop, struct et_error *error)
{
    struct et_text header = {0};
    char *path = et_print(error, "%s/%d.%s.%s.npy", folder, step, name, what);
    et_npy_add_header(&header, tensor->rank, tensor->size);
    const enum et_status status =
        path ? write_bytes(path, &header, values, (size_t)et_tensor_count(tensor) * sizeof *values, stop,
                           error)
             : ET_FAILED;
    et_text_free(&header);
    et_free(path);
    return status;
}

/* Values and tolerances of one output; not whole where *stop is set. */
static enum et_status write_output(const struct et_judge_input *input, int t,
                                   const volatile sig_atomic_t *stop, struct et_error *error)
{
    const struct et_problem *problem = &input->job->steps[input->step].problem;
    const struct et_tensor *tensor = &problem->tensor[t];
    const struct et_subject subject = et_subject_of(input, t);
    const size_t n = (size_t)et_tensor_count(tensor);
    double *value = et_alloc(2 * n, sizeof *value, error), *tolerance = value + n;
    if (!value)
        return ET_FAILED;
    for (size_t i = 0; i < 2 * n && !et_stopped(stop); i++)
        value[i] = NAN;
    for (int64_t u = 0; u < input->truth->units && !et_stopped(stop); u++) {
        const struct et_unit unit = problem->op->unit(problem, input->truth->unit[u]);
        for (int64_t k = 0; unit.output == t && k < unit.count; k++) {
            const struct et_predicted p = et_predict(&subject, &unit, u, k);
            value[unit.at + k * unit.step] = p.ref;
            tolerance[unit.at + k * unit.step] = fmax(input->c->checks.bound, 0) * p.tolerance;
        }
    }
    const char *const name = problem->op->tensors[t].name;
    enum et_status status =
        write_npy(input->job->folder, input->step, name, "oracle", tensor, value, stop, error);
    if (status == ET_OK)
        status =
            write_npy(input->job->folder, input->step, name, "tolerance", tensor, tolerance, stop, error);
    et_free(value);
    return status;
}

struct dumping {
    const struct et_options *options;
    const volatile sig_atomic_t *stop;
    const struct et_variant *variant;
    struct et_text text; /* the manifest */
};

static enum et_status write_step(struct dumping *d, const struct et_run *run, const struct et_job *job, int i,
                                 struct et_error *error)
{
    const struct et_problem *problem = &job->steps[i].problem;
    struct et_claim claim = {.scratch_bytes = 0};
    struct et_truth truth = {0};
    struct et_error why = {""};
    if (widest_claim(problem, &claim, &why) != ET_OK)
        return et_fail(error, ET_INVALID, "%s: no arithmetic to go by: %s", run->id, why.text);
    const uint64_t seed = d->options->has_seed ? d->options->seed : run->c->seed;
    enum et_status status =
        et_truth_make(problem, seed, run->c->rows, &claim, 1, d->options->threads, d->stop, &truth, error);
    const struct et_judge_input input = {
        .c = run->c, .fill = run->fill, .step = i, .job = job, .truth = &truth, .claim = &claim};
    for (int t = 0; status == ET_OK && problem->op->tensors[t].name; t++)
        if (problem->op->tensors[t].role == ET_OUTPUT)
            status = write_output(&input, t, d->stop, error);
    et_truth_free(&truth);
    et_text_add(&d->text, "%s{\"inputs\": \"%s\", \"claim\": ", i ? ", " : "", job->steps[i].digest);
    et_claim_add(&d->text, run->ask.variant, &claim);
    et_text_add(&d->text, "}");
    return status;
}

static enum et_status write_run(struct dumping *d, const struct et_run *run, const char *parent, int number,
                                struct et_error *error)
{
    struct et_job job = {.folder = NULL};
    char *folder = et_print(error, "%s/%d", parent, number);
    enum et_status status = folder ? ET_OK : ET_FAILED;
    if (folder && mkdir(folder, 0777) != 0)
        status = et_fail(error, ET_INVALID, "%s: %s", folder, strerror(errno));
    if (status == ET_OK)
        status = et_job_write(run->c, NULL, run->fill, d->options->has_seed ? &d->options->seed : NULL,
                              d->options->threads, d->stop, folder, &job, error);
    if (status == ET_OK)
        status = et_job_part(&job, d->stop, error);
    et_text_add(&d->text, "%s\n{\"id\": ", number ? "," : "");
    et_json_add_string(&d->text, run->id);
    et_text_add(&d->text, ", \"folder\": %d, \"steps\": [", number);
    for (int i = 0; status == ET_OK && i < run->c->step_count; i++)
        status = write_step(d, run, &job, i, error);
    et_text_add(&d->text, "]}");
    et_job_free(&job);
    et_free(folder);
    return status;
}

static enum et_status make_folder(const char *folder, struct et_error *error)
{
    if (mkdir(folder, 0777) == 0)
        return ET_OK;
    DIR *there = errno == EEXIST ? opendir(folder) : NULL;
    if (!there)
        return et_fail(error, ET_INVALID, "folder %s cannot be made: %s", folder, strerror(errno));
    int entries = 0;
    while (readdir(there))
        entries++;
    closedir(there);
    /* "." and ".." */
    return entries <= 2 ? ET_OK : et_fail(error, ET_INVALID, "folder %s is not empty", folder);
}

/* Last: a folder without it is no dump. */
static enum et_status write_manifest(struct dumping *d, const char *folder, struct et_error *error)
{
    char *path = et_print(error, "%s/manifest.json", folder);
    et_text_add(&d->text, "\n]}\n");
    if (d->text.failed)
        et_fail(error, ET_FAILED, "out of memory for a manifest");
    const enum et_status status =
        path && !d->text.failed ? write_bytes(path, &d->text, "", 0, NULL, error) : ET_FAILED;
    et_free(path);
    return status;
}

enum et_status et_dump_write(const struct et_options *options, const struct et_plan *plan, const char *folder,
                             const volatile sig_atomic_t *stop, struct et_error *error)
{
    struct dumping d = {.options = options, .stop = stop};
    enum et_status status = make_folder(folder, error);
    int number = 0;
    et_text_add(&d.text, "{\"format\": %d, \"etalon\": \"%s\", \"tier\": \"%s\", \"seed\": ", FORMAT,
                ET_VERSION, et_tier_name(options->tier));
    if (options->has_seed)
        et_text_add(&d.text, "%" PRIu64, options->seed);
    else
        et_text_add(&d.text, "null");
    et_text_add(&d.text, ", \"runs\": [");
    for (int i = 0; status == ET_OK && i < plan->count && !*stop; i++)
        if (et_run_needs_device(&plan->runs[i]))
            status = write_run(&d, &plan->runs[i], folder, number++, error);
    if (*stop) /* what was interrupted is no trouble of its own */
        status = et_fail(error, ET_FAILED, "interrupted: %s has no manifest", folder);
    if (status == ET_OK && number == 0)
        status = et_fail(error, ET_INVALID, "nothing to dump: what is selected has no outputs");
    if (status == ET_OK)
        status = write_manifest(&d, folder, error);
    et_text_free(&d.text);
    return status;
}

/* ---- The manifest ---- */

static enum et_status read_step(const struct et_json *json, const cJSON *node, struct et_dumped *dumped,
                                int i, struct et_error *error)
{
    static const char *const keys[] = {"inputs", "claim", NULL};
    const struct et_variant variant = {.name = "outputs", .knobs = et_no_knobs};
    const char *digest = NULL;
    enum et_status status = et_json_exact(json, node, "a step", keys, error);
    if (status == ET_OK)
        status = et_json_string(json, et_json_get(node, "inputs"), "inputs", &digest, error);
    if (status == ET_OK)
        status = et_claim_read(json, et_json_get(node, "claim"), &variant, &dumped->claims[i], error);
    if (status == ET_OK)
        snprintf(dumped->inputs[i], sizeof dumped->inputs[i], "%s", digest);
    return status;
}

static enum et_status read_run(const struct et_json *json, const cJSON *node, struct et_dumped *dumped,
                               struct et_error *error)
{
    static const char *const keys[] = {"id", "folder", "steps", NULL};
    const char *id = NULL;
    enum et_status status = et_json_exact(json, node, "a run", keys, error);
    const cJSON *steps = status == ET_OK ? et_json_get(node, "steps") : NULL;
    if (status == ET_OK)
        status = et_json_string(json, et_json_get(node, "id"), "id", &id, error);
    if (status == ET_OK)
        status =
            et_json_int(json, et_json_get(node, "folder"), "folder", 0, RUNS_MOST, &dumped->folder, error);
    if (status == ET_OK)
        status = et_json_array(json, steps, "steps", error);
    if (status != ET_OK)
        return status;
    dumped->step_count = cJSON_GetArraySize(steps);
    dumped->id = et_strdup(id, error);
    dumped->inputs = et_alloc((size_t)dumped->step_count, sizeof *dumped->inputs, error);
    dumped->claims = et_alloc((size_t)dumped->step_count, sizeof *dumped->claims, error);
    if (!dumped->id || !dumped->inputs || !dumped->claims)
        return ET_FAILED;
    const cJSON *step = steps->child;
    for (int i = 0; status == ET_OK && step; i++, step = step->next)
        status = read_step(json, step, dumped, i, error);
    return status;
}

static enum et_status read_tier(const struct et_json *json, const cJSON *node, enum et_tier *tier,
                                struct et_error *error)
{
    const char *name = NULL;
    const enum et_status status = et_json_string(json, node, "tier", &name, error);
    if (status != ET_OK)
        return status;
    return et_tier_named(name, tier) ? ET_OK : et_json_fail(json, node, error, "there is no tier %s", name);
}

static int by_id(const void *a, const void *b)
{
    const struct et_dumped *const *x = a, *const *y = b;
    return strcmp((*x)->id, (*y)->id);
}

/* No two runs are one. */
static enum et_status check_ids(const struct et_json *json, const cJSON *runs, const struct et_dump *dump,
                                struct et_error *error)
{
    const struct et_dumped **sorted = et_alloc((size_t)dump->count, sizeof *sorted, error);
    if (!sorted)
        return ET_FAILED;
    for (int i = 0; i < dump->count; i++)
        sorted[i] = &dump->at[i];
    qsort(sorted, (size_t)dump->count, sizeof *sorted, by_id);
    enum et_status status = ET_OK;
    for (int i = 1; status == ET_OK && i < dump->count; i++)
        if (by_id(&sorted[i - 1], &sorted[i]) == 0)
            status = et_json_fail(json, runs, error, "the run %s is there twice", sorted[i]->id);
    et_free(sorted);
    return status;
}

static enum et_status read_manifest(const struct et_json *json, struct et_dump *dump, struct et_error *error)
{
    static const char *const keys[] = {"format", "etalon", "tier", "seed", "runs", NULL};
    int64_t format = 0, seed = 0;
    const char *version = NULL;
    enum et_status status = et_json_exact(json, json->root, "a manifest", keys, error);
    if (status == ET_OK)
        status =
            et_json_int(json, et_json_get(json->root, "format"), "format", FORMAT, FORMAT, &format, error);
    if (status == ET_OK)
        status = et_json_string(json, et_json_get(json->root, "etalon"), "etalon", &version, error);
    if (status == ET_OK)
        status = read_tier(json, et_json_get(json->root, "tier"), &dump->tier, error);
    const cJSON *given = et_json_get(json->root, "seed");
    dump->has_seed = given && !cJSON_IsNull(given);
    if (status == ET_OK && dump->has_seed)
        status = et_json_int(json, given, "seed", 0, ET_EXACT, &seed, error);
    dump->seed = (uint64_t)seed;
    const cJSON *runs = et_json_get(json->root, "runs");
    if (status == ET_OK)
        status = et_json_array(json, runs, "runs", error);
    if (status == ET_OK && (!runs->child || cJSON_GetArraySize(runs) > RUNS_MOST))
        status = et_json_fail(json, runs, error, "a manifest has 1 to %d runs", RUNS_MOST);
    if (status != ET_OK)
        return status;
    dump->at = et_alloc((size_t)cJSON_GetArraySize(runs), sizeof *dump->at, error);
    if (!dump->at)
        return ET_FAILED;
    for (const cJSON *run = runs->child; run && status == ET_OK; run = run->next)
        status = read_run(json, run, &dump->at[dump->count++], error);
    return status == ET_OK ? check_ids(json, runs, dump, error) : status;
}

enum et_status et_dump_read(const char *folder, struct et_dump *dump, struct et_error *error)
{
    struct et_json json = {0};
    *dump = (struct et_dump){.count = 0};
    char *path = et_print(error, "%s/manifest.json", folder);
    struct et_text text = {0};
    enum et_status status = path ? et_text_regular(&text, path, MANIFEST_BYTES, error) : ET_FAILED;
    if (status == ET_LACKING)
        status =
            et_fail(error, ET_INVALID, "%s is not there: %s is no dump, or not a whole one", path, folder);
    if (status == ET_OK)
        status = et_json_parse(path, text.data ? text.data : "", text.length, &json, error);
    et_text_free(&text);
    if (status == ET_OK)
        status = read_manifest(&json, dump, error);
    if (status != ET_OK)
        et_dump_free(dump);
    et_json_free(&json);
    et_free(path);
    return status;
}

void et_dump_free(struct et_dump *dump)
{
    for (int i = 0; i < dump->count; i++) {
        et_free(dump->at[i].id);
        et_free(dump->at[i].inputs);
        et_free(dump->at[i].claims);
    }
    et_free(dump->at);
    *dump = (struct et_dump){.count = 0};
}

const struct et_dumped *et_dump_find(const struct et_dump *dump, const char *id)
{
    for (int i = 0; i < dump->count; i++)
        if (!strcmp(dump->at[i].id, id))
            return &dump->at[i];
    return NULL;
}

/* ---- Outputs ---- */

/* The place in its buffer of element i of the normative shape. */
static int64_t place_of(const struct et_tensor *tensor, int64_t i)
{
    const int64_t n = tensor->size[tensor->rank - 1];
    return et_row_at(tensor, i / n) + i % n * tensor->stride[tensor->rank - 1];
}

static bool same_shape(int rank, const int64_t *size, const struct et_tensor *tensor)
{
    return rank == tensor->rank && !memcmp(size, tensor->size, (size_t)rank * sizeof *size);
}

static enum et_status refuse_shape(const char *path, const char *name, const struct et_tensor *tensor,
                                   struct et_error *error)
{
    char shape[ET_RANK * 24] = "";
    for (int k = 0, used = 0; k < tensor->rank; k++)
        used +=
            snprintf(shape + used, sizeof shape - (size_t)used, "%s%" PRId64, k ? ", " : "", tensor->size[k]);
    return et_fail(error, ET_INVALID, "%s: %s is not of shape [%s]%s%s", path, name, shape, " and type ",
                   et_format(tensor->dtype)->name);
}

static enum et_status copy_npy(const char *path, const struct et_npy *npy, const struct et_tensor *tensor,
                               void *out, struct et_error *error)
{
    const bool bits = npy->kind == ET_NPY_BITS16;
    if (bits && tensor->dtype != ET_BF16)
        return et_fail(error, ET_INVALID, "%s has 16 bits an element, which stand for bf16 only, not for %s",
                       path, et_format(tensor->dtype)->name);
    for (int64_t i = 0; i < npy->count; i++) {
        const double value = bits ? 0 : et_npy_value(npy, i);
        const uint32_t stored = bits ? et_npy_bits(npy, i) : et_narrow(tensor->dtype, value);
        if (!bits && !isnan(value) && (double)et_widen(tensor->dtype, stored) != value)
            return et_fail(error, ET_INVALID, "%s: element %" PRId64 " is %.17g, which is no %s", path, i,
                           value, et_format(tensor->dtype)->name);
        et_store(tensor->dtype, out, place_of(tensor, i), stored);
    }
    return ET_OK;
}

static enum et_status read_npy(const char *path, const char *name, const struct et_tensor *tensor, void *out,
                               struct et_error *error)
{
    enum { HEADERS = 1 << 17 };
    struct et_text file = {0};
    struct et_npy npy;
    const size_t most = (size_t)et_tensor_count(tensor) * sizeof(double) + HEADERS;
    enum et_status status = et_text_regular(&file, path, most, error);
    if (status == ET_OK)
        status = et_npy_read(path, file.data ? file.data : "", file.length, &npy, error);
    if (status == ET_OK && !same_shape(npy.rank, npy.size, tensor))
        status = refuse_shape(path, name, tensor, error);
    if (status == ET_OK)
        status = copy_npy(path, &npy, tensor, out, error);
    et_text_free(&file);
    return status;
}

static enum et_status copy_tensor(const char *path, const struct et_tensors *file, const char *name,
                                  const struct et_tensor *tensor, void *out, struct et_error *error)
{
    const struct et_file_tensor *found = et_tensors_find(file, name);
    if (!found)
        return et_fail(error, ET_INVALID, "%s has no tensor %s", path, name);
    if (found->dtype != tensor->dtype || !same_shape(found->rank, found->size, tensor))
        return refuse_shape(path, name, tensor, error);
    for (int64_t i = 0; i < et_tensor_count(tensor); i++)
        et_store(tensor->dtype, out, place_of(tensor, i), et_load(tensor->dtype, found->data, i));
    return ET_OK;
}

static enum et_status read_safetensors(const char *path, const struct et_problem *problem, void *const *out,
                                       struct et_error *error)
{
    const struct et_tensor_spec *specs = problem->op->tensors;
    struct et_tensors file;
    size_t most = 0;
    int n = 0;
    for (int t = 0; specs[t].name; t++)
        if (specs[t].role == ET_OUTPUT) {
            most += et_bytes(problem->tensor[t].dtype, et_tensor_count(&problem->tensor[t]));
            n++;
        }
    enum et_status status = et_tensors_read(path, most, &file, error);
    if (status == ET_OK && file.count > n)
        status = et_fail(error, ET_INVALID, "%s has %d tensors, %s has %d outputs", path, file.count,
                         problem->op->name, n);
    for (int t = 0; status == ET_OK && specs[t].name; t++)
        if (specs[t].role == ET_OUTPUT)
            status = copy_tensor(path, &file, specs[t].name, &problem->tensor[t], out[t], error);
    et_tensors_close(&file);
    return status;
}

static enum et_status read_npys(const char *folder, const struct et_dumped *dumped, int step,
                                const struct et_problem *problem, void *const *out, struct et_error *error)
{
    enum et_status status = ET_OK;
    for (int t = 0; status == ET_OK && problem->op->tensors[t].name; t++) {
        const char *const name = problem->op->tensors[t].name;
        if (problem->op->tensors[t].role != ET_OUTPUT)
            continue;
        char *path = et_print(error, "%s/%" PRId64 "/%d.%s.npy", folder, dumped->folder, step, name);
        status = path ? read_npy(path, name, &problem->tensor[t], out[t], error) : ET_FAILED;
        if (status == ET_LACKING)
            status = et_fail(error, ET_INVALID, "%s is not there, and neither is %d.outputs.safetensors",
                             path, step);
        et_free(path);
    }
    return status;
}

enum et_status et_dump_outputs(const struct et_dumped *dumped, const char *folder, const struct et_job *job,
                               const char *out, struct et_error *error)
{
    enum et_status status = ET_OK;
    for (int i = 0; status == ET_OK && i < job->step_count; i++) {
        const struct et_problem *problem = &job->steps[i].problem;
        void *data[ET_TENSORS] = {NULL}, *map = NULL;
        size_t bytes = 0;
        struct stat st;
        char *path = et_print(error, "%s/%" PRId64 "/%d.outputs.safetensors", folder, dumped->folder, i);
        status = path ? et_outputs_create(job, i, 0, out, data, &map, &bytes, error) : ET_FAILED;
        if (status == ET_OK)
            status = stat(path, &st) == 0 ? read_safetensors(path, problem, data, error)
                                          : read_npys(folder, dumped, i, problem, data, error);
        et_unmap(map, bytes);
        et_free(path);
    }
    return status;
}
