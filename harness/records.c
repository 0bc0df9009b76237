#include "records.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More than a hundred thousand runs of 2 KB. */
enum { FILE_BYTES = 1 << 28 };

bool et_verdict_bad(enum et_verdict verdict)
{
    return verdict == ET_FAIL || verdict == ET_ERROR || verdict == ET_MISTRUSTED || verdict == ET_XPASS;
}

/* ---- One line ---- */

/* A member that may be missing or null; *value is then NULL. */
static enum et_status read_text(const struct et_json *json, const cJSON *object, const char *key,
                                char **value, struct et_error *error)
{
    const cJSON *node = et_json_get(object, key);
    const char *text = NULL;
    if (!node || cJSON_IsNull(node))
        return ET_OK;
    const enum et_status status = et_json_string(json, node, key, &text, error);
    if (status != ET_OK)
        return status;
    *value = et_strdup(text, error);
    return *value ? ET_OK : ET_FAILED;
}

static enum et_status read_digests(const struct et_json *json, const char *key, char **value,
                                   struct et_error *error)
{
    const cJSON *node = et_json_get(json->root, key);
    if (!node)
        return ET_OK;
    struct et_text text = {0};
    enum et_status status = et_json_array(json, node, key, error);
    for (node = status == ET_OK ? node->child : NULL; node && status == ET_OK; node = node->next) {
        const char *digest = NULL;
        status = et_json_string(json, node, "a digest", &digest, error);
        if (status == ET_OK && strlen(digest) != 32)
            status = et_json_fail(json, node, error, "a digest has %zu characters, not 32", strlen(digest));
        if (status == ET_OK)
            et_text_add(&text, "%s%s", text.length > 0 ? " " : "", digest);
    }
    if (status == ET_OK && text.failed)
        status = et_fail(error, ET_FAILED, "out of memory for digests");
    if (status == ET_OK)
        *value = text.data;
    else
        et_text_free(&text);
    return status;
}

static enum et_status read_verdict(const struct et_json *json, enum et_verdict *verdict,
                                   struct et_error *error)
{
    const cJSON *node = et_json_get(json->root, "verdict");
    const char *name = NULL;
    if (!node)
        return et_json_fail(json, json->root, error, "a run has no verdict");
    const enum et_status status = et_json_string(json, node, "verdict", &name, error);
    for (int i = 0; status == ET_OK && i < ET_VERDICTS; i++)
        if (!strcmp(et_verdict_name((enum et_verdict)i), name)) {
            *verdict = (enum et_verdict)i;
            return ET_OK;
        }
    return status == ET_OK ? et_json_fail(json, node, error, "verdict is \"%s\", which is none", name)
                           : status;
}

static void keep_outcome(const char *name, const char *outcome, struct et_record *record)
{
    static const char *const outcomes[] = {
        [ET_HELD] = "held", [ET_BROKEN] = "broken", [ET_SKIPPED] = "skipped"};
    for (int check = 0; check < ET_CHECKS; check++)
        for (int i = ET_HELD; i <= ET_SKIPPED && !strcmp(et_check_name((enum et_check)check), name); i++)
            if (!strcmp(outcomes[i], outcome))
                record->check[check] = (enum et_outcome)i;
}

static enum et_status read_outcome(const struct et_json *json, const cJSON *check, struct et_record *record,
                                   struct et_text *broken, struct et_error *error)
{
    enum et_status status = et_json_object(json, check, check->string, error);
    char *outcome = NULL, *text = NULL;
    if (status == ET_OK)
        status = read_text(json, check, "outcome", &outcome, error);
    if (status == ET_OK)
        status = read_text(json, check, "text", &text, error);
    if (status == ET_OK && outcome)
        keep_outcome(check->string, outcome, record);
    if (status == ET_OK && outcome && !strcmp(outcome, "broken"))
        et_text_add(broken, "%s%s: %s", broken->length > 0 ? "\n" : "", check->string, text ? text : "");
    if (status == ET_OK && outcome && !strcmp(outcome, "skipped") && !strcmp(check->string, "replay"))
        record->owed = false;
    et_free(outcome);
    et_free(text);
    return status;
}

static enum et_status read_checks(const struct et_json *json, struct et_record *record,
                                  struct et_error *error)
{
    const cJSON *checks = et_json_get(json->root, "checks");
    struct et_text broken = {0};
    enum et_status status = checks ? et_json_object(json, checks, "checks", error) : ET_OK;
    for (const cJSON *check = checks && status == ET_OK ? checks->child : NULL; check && status == ET_OK;
         check = check->next)
        status = read_outcome(json, check, record, &broken, error);
    if (status == ET_OK && broken.failed)
        status = et_fail(error, ET_FAILED, "out of memory for a run");
    record->broken = broken.data;
    return status;
}

static enum et_status read_figures(const struct et_json *json, struct et_record *record,
                                   struct et_error *error)
{
    const cJSON *headroom = et_json_get(json->root, "headroom"), *claim = et_json_get(json->root, "claim");
    enum et_status status = ET_OK;
    record->headroom = (double)NAN;
    record->owed = true;
    if (headroom && !cJSON_IsNull(headroom))
        status = et_json_real(json, headroom, "headroom", &record->headroom, error);
    if (status == ET_OK && claim)
        status = et_json_object(json, claim, "claim", error);
    if (status == ET_OK && claim)
        status = read_text(json, claim, "order", &record->order, error);
    if (record->order && !strcmp(record->order, "none"))
        record->owed = false;
    return status;
}

static enum et_status read_record(const struct et_json *json, struct et_record *record,
                                  struct et_error *error)
{
    if (!et_json_get(json->root, "id"))
        return et_json_fail(json, json->root, error,
                            "neither a header nor a run: there is no \"format\" and no \"id\"");
    enum et_status status = read_text(json, json->root, "id", &record->id, error);
    if (status == ET_OK && !record->id)
        status = et_json_fail(json, et_json_get(json->root, "id"), error, "a run has no id");
    if (status == ET_OK)
        status = read_verdict(json, &record->verdict, error);
    if (status == ET_OK)
        status = read_text(json, json->root, "device", &record->device, error);
    if (status == ET_OK)
        status = read_text(json, json->root, "reason", &record->reason, error);
    if (status == ET_OK)
        status = read_figures(json, record, error);
    if (status == ET_OK)
        status = read_digests(json, "inputs", &record->inputs, error);
    if (status == ET_OK)
        status = read_digests(json, "outputs", &record->outputs, error);
    return status == ET_OK ? read_checks(json, record, error) : status;
}

static void free_record(struct et_record *record)
{
    char *const owned[] = {record->id,     record->device,  record->reason, record->order,
                           record->inputs, record->outputs, record->broken};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        et_free(owned[i]);
}

/* ---- The file ---- */

static enum et_status read_header(const struct et_json *json, struct et_records *records,
                                  struct et_error *error)
{
    int64_t format = 0, runs = 0;
    const cJSON *announced = et_json_get(json->root, "runs");
    enum et_status status =
        et_json_int(json, et_json_get(json->root, "format"), "format", 1, ET_EXACT, &format, error);
    if (status == ET_OK && format != 1)
        status = et_json_fail(json, et_json_get(json->root, "format"), error,
                              "format is %lld, this etalon reads 1", (long long)format);
    if (status == ET_OK && announced)
        status = et_json_int(json, announced, "runs", 0, INT32_MAX, &runs, error);
    const bool counted = announced && records->announced >= 0;
    if (status == ET_OK && counted && runs > INT32_MAX - records->announced)
        status = et_json_fail(json, announced, error, "the headers announce more than %d runs", INT32_MAX);
    records->announced = status == ET_OK && counted ? records->announced + (int)runs : -1;
    if (status != ET_OK || records->tool)
        return status;
    char *etalon = NULL, *commit = NULL;
    status = read_text(json, json->root, "etalon", &etalon, error);
    if (status == ET_OK)
        status = read_text(json, json->root, "commit", &commit, error);
    if (status == ET_OK) {
        records->tool =
            et_print(error, "%s%s%s", etalon ? etalon : "unknown", commit ? " " : "", commit ? commit : "");
        status = records->tool ? ET_OK : ET_FAILED;
    }
    et_free(etalon);
    et_free(commit);
    return status;
}

static enum et_status add_line(const char *path, int number, const char *line, size_t length,
                               struct et_records *records, struct et_error *error)
{
    struct et_json json;
    enum et_status status = et_json_parse_line(path, number, line, length, &json, error);
    if (status != ET_OK)
        return status;
    status = et_json_object(&json, json.root, "a line of results", error);
    const bool header = status == ET_OK && et_json_get(json.root, "format");
    if (status == ET_OK && !header && number == 1)
        status = et_json_fail(&json, json.root, error, "no results file: its first line has no \"format\"");
    if (header)
        status = read_header(&json, records, error);
    struct et_record record = {.line = number};
    if (status == ET_OK && !header)
        status = read_record(&json, &record, error);
    struct et_record *grown = NULL;
    if (status == ET_OK && !header) {
        grown = et_resize(records->at, (size_t)records->count + 1, sizeof *grown, error);
        status = grown ? ET_OK : ET_FAILED;
    }
    if (grown) {
        records->at = grown;
        grown[records->count++] = record;
    } else {
        free_record(&record);
    }
    et_json_free(&json);
    return status;
}

static int by_id(const void *a_, const void *b_)
{
    const struct et_record *a = a_, *b = b_;
    const int ids = strcmp(a->id, b->id);
    const int devices = ids ? ids : strcmp(a->device ? a->device : "", b->device ? b->device : "");
    return devices ? devices : (a->line > b->line) - (a->line < b->line);
}

static enum et_status sort(struct et_records *records, struct et_error *error)
{
    if (records->count > 0)
        qsort(records->at, (size_t)records->count, sizeof *records->at, by_id);
    const char *device = NULL;
    bool several = false;
    for (int i = 0; i < records->count; i++) {
        struct et_record *record = &records->at[i];
        const struct et_record *last = i > 0 ? record - 1 : NULL;
        if (last && !strcmp(last->id, record->id) &&
            !strcmp(last->device ? last->device : "", record->device ? record->device : ""))
            record->same = last->same + 1;
        several = several || record->same > 0 || (device && record->device && strcmp(device, record->device));
        device = record->device ? record->device : device;
    }
    if (several || !device)
        return ET_OK;
    records->device = et_strdup(device, error);
    return records->device ? ET_OK : ET_FAILED;
}

static enum et_status read_lines(const char *path, const struct et_text *text, struct et_records *records,
                                 struct et_error *error)
{
    if (text->length == 0)
        return et_fail(error, ET_INVALID, "%s:1: the file is empty", path);
    enum et_status status = ET_OK;
    const char *const last = text->data + text->length;
    for (const char *at = text->data, *end; at < last && status == ET_OK; at = end + 1) {
        end = memchr(at, '\n', (size_t)(last - at));
        records->last_line++;
        if (!end)
            return et_fail(error, ET_INVALID, "%s:%d: the file ends in the middle of this line", path,
                           records->last_line);
        status = add_line(path, records->last_line, at, (size_t)(end - at), records, error);
    }
    return status;
}

enum et_status et_records_read(const char *path, struct et_records *records, struct et_error *error)
{
    struct et_text text = {0};
    *records = (struct et_records){0};
    enum et_status status = et_text_file(&text, path, FILE_BYTES, error);
    if (status == ET_OK)
        status = read_lines(path, &text, records, error);
    et_text_free(&text);
    if (status == ET_OK)
        status = sort(records, error);
    if (status != ET_OK)
        et_records_free(records);
    return status == ET_LACKING ? ET_INVALID : status;
}

enum et_status et_records_whole(const char *path, const struct et_records *records, struct et_error *error)
{
    if (records->announced < 0 || records->count >= records->announced)
        return ET_OK;
    return et_fail(error, ET_INVALID,
                   "%s:%d: the file ends after %d of the %d runs that its header announces", path,
                   records->last_line, records->count, records->announced);
}

int et_records_find(const struct et_records *records, const char *id)
{
    int low = 0, high = records->count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (strcmp(records->at[middle].id, id) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < records->count && !strcmp(records->at[low].id, id) ? low : -1;
}

void et_records_free(struct et_records *records)
{
    for (int i = 0; i < records->count; i++)
        free_record(&records->at[i]);
    et_free(records->at);
    et_free(records->device);
    et_free(records->tool);
    *records = (struct et_records){0};
}
