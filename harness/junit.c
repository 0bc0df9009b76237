#define _POSIX_C_SOURCE 200809L

#include "junit.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "records.h"

/* The runs of one device, or those that need none. */
struct suite {
    char *name;
    struct et_text cases;
    int tests, failures, errors, skipped;
    double seconds;
};

struct et_junit {
    char *path, *tool;
    FILE *file;
    struct suite *suites;
    int count;
    bool failed; /* for want of memory */
};

/* ---- XML 1.0 ---- */

/* U+FFFE and U+FFFF are no characters of XML. */
static bool is_noncharacter(const unsigned char *s, size_t length)
{
    return length == 3 && s[0] == 0xef && s[1] == 0xbf && s[2] >= 0xbe;
}

/*
 * Of an attribute or between tags. What XML cannot hold, and what is not UTF-8, becomes U+FFFD. Line ends are
 * written by number: a parser would make spaces of them in attributes, and of a CR anything.
 */
static void add_text(struct et_text *out, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t n = strlen(text), length; n > 0; s += length, n -= length) {
        length = et_utf8_sequence(s, n);
        const bool control = length == 1 && *s < ' ' && !strchr("\t\n\r", *s);
        if (length == 0 || control || is_noncharacter(s, length))
            et_text_bytes(out, "\xef\xbf\xbd", 3);
        else if (length == 1 && (*s < ' ' || *s == 127 || strchr("<>&\"'", *s)))
            et_text_add(out, "&#%d;", *s);
        else
            et_text_bytes(out, (const char *)s, length);
        length = length ? length : 1;
    }
}

static void add_attribute(struct et_text *out, const char *name, const char *value)
{
    et_text_add(out, " %s=\"", name);
    add_text(out, value);
    et_text_add(out, "\"");
}

static void add_property(struct et_text *out, const char *name, const char *value)
{
    et_text_add(out, "<property name=\"%s\"", name);
    add_attribute(out, "value", value);
    et_text_add(out, "/>\n");
}

/* ---- A run ---- */

static void add_digests(struct et_text *out, const char *name, const char (*digests)[33], int steps)
{
    struct et_text text = {0};
    for (int i = 0; i < steps; i++)
        et_text_add(&text, "%s%s", i ? " " : "", digests[i]);
    if (text.data)
        add_property(out, name, text.data);
    et_text_free(&text);
}

static void add_properties(struct et_text *out, const struct et_result *result, const char *reproduce)
{
    et_text_add(out, "<properties>\n");
    add_property(out, "verdict", et_verdict_name(result->verdict));
    if (result->judgement && result->inputs) {
        struct et_text headroom = {0};
        et_json_add_number(&headroom, result->judgement->headroom);
        add_property(out, "headroom", headroom.data ? headroom.data : "null");
        et_text_free(&headroom);
    }
    if (result->inputs && result->outputs) {
        add_digests(out, "inputs", result->inputs, result->steps);
        add_digests(out, "outputs", result->outputs, result->steps);
    }
    add_property(out, "reproduce", reproduce);
    et_text_add(out, "</properties>\n");
}

/* What is wrong with it: the first line as the message, all of them as the text. */
static void add_trouble(struct et_text *out, const char *tag, const struct et_result *result)
{
    struct et_text lines = {0};
    if (result->reason)
        et_text_add(&lines, "%s\n", result->reason);
    for (int i = 0; result->judgement && i < ET_CHECKS; i++) {
        const struct et_finding *finding = &result->judgement->check[i];
        if (finding->outcome == ET_BROKEN)
            et_text_add(&lines, "%s: %s\n", et_check_name((enum et_check)i), finding->text);
    }
    const char *all = lines.data ? lines.data : "";
    struct et_text first = {0};
    et_text_bytes(&first, all, strcspn(all, "\n"));
    et_text_add(out, "<%s", tag);
    add_attribute(out, "type", et_verdict_name(result->verdict));
    add_attribute(out, "message", first.data ? first.data : "");
    et_text_add(out, ">");
    add_text(out, all);
    et_text_add(out, "</%s>\n", tag);
    out->failed = out->failed || lines.failed || first.failed;
    et_text_free(&first);
    et_text_free(&lines);
}

static struct suite *suite_of(struct et_junit *junit, const struct et_device *device)
{
    char *name = device ? et_print(NULL, "%s %s", device->place, device->name) : et_strdup("no device", NULL);
    for (int i = 0; name && i < junit->count; i++)
        if (!strcmp(junit->suites[i].name, name)) {
            et_free(name);
            return &junit->suites[i];
        }
    struct suite *grown =
        name ? et_resize(junit->suites, (size_t)junit->count + 1, sizeof *grown, NULL) : NULL;
    if (!grown) {
        et_free(name);
        return NULL;
    }
    junit->suites = grown;
    grown[junit->count] = (struct suite){.name = name};
    return &grown[junit->count++];
}

void et_junit_add(struct et_junit *junit, const struct et_result *result, const char *reproduce)
{
    struct suite *suite = suite_of(junit, result->device);
    if (!suite) {
        junit->failed = true;
        return;
    }
    const double seconds = result->times.compile + result->times.kernel;
    struct et_text *out = &suite->cases;
    et_text_add(out, "<testcase classname=\"%s\"", result->run->c->op->name);
    add_attribute(out, "name", result->run->id);
    et_text_add(out, " time=\"%.6f\">\n", seconds);
    add_properties(out, result, reproduce);
    if (result->verdict == ET_SKIP) {
        et_text_add(out, "<skipped");
        add_attribute(out, "message", result->reason ? result->reason : "");
        et_text_add(out, "/>\n");
    } else if (et_verdict_bad(result->verdict)) {
        add_trouble(out, result->verdict == ET_ERROR ? "error" : "failure", result);
    }
    et_text_add(out, "</testcase>\n");
    suite->tests++;
    suite->skipped += result->verdict == ET_SKIP;
    suite->errors += result->verdict == ET_ERROR;
    suite->failures += et_verdict_bad(result->verdict) && result->verdict != ET_ERROR;
    suite->seconds += seconds;
}

/* ---- The file ---- */

enum et_status et_junit_open(const char *path, const char *tool, struct et_junit **opened,
                             struct et_error *error)
{
    struct et_junit *junit = et_alloc(1, sizeof *junit, error);
    if (!junit)
        return ET_FAILED;
    junit->path = et_strdup(path, error);
    junit->tool = et_strdup(tool, error);
    enum et_status status = junit->path && junit->tool ? ET_OK : ET_FAILED;
    if (status == ET_OK) {
        junit->file = fopen(path, "w");
        if (!junit->file)
            status = et_fail(error, ET_INVALID, "%s: %s", path, strerror(errno));
    }
    if (status == ET_OK) {
        *opened = junit;
        return ET_OK;
    }
    et_free(junit->path);
    et_free(junit->tool);
    et_free(junit);
    return status;
}

static void add_suite(struct et_text *out, const struct et_junit *junit, const struct suite *suite, int left)
{
    et_text_add(out, "<testsuite");
    add_attribute(out, "name", suite->name);
    et_text_add(out,
                " tests=\"%d\" failures=\"%d\" errors=\"%d\" skipped=\"%d\" time=\"%.6f\">\n<properties>\n",
                suite->tests, suite->failures, suite->errors, suite->skipped, suite->seconds);
    add_property(out, "etalon", junit->tool);
    if (left > 0) {
        char count[20];
        snprintf(count, sizeof count, "%d", left);
        add_property(out, "not run", count);
    }
    et_text_add(out, "</properties>\n");
    et_text_bytes(out, suite->cases.data ? suite->cases.data : "", suite->cases.length);
    et_text_add(out, "</testsuite>\n");
    out->failed = out->failed || suite->cases.failed;
}

static void add_suites(struct et_text *out, const struct et_junit *junit, int left)
{
    struct suite all = {0};
    for (int i = 0; i < junit->count; i++) {
        all.tests += junit->suites[i].tests;
        all.failures += junit->suites[i].failures;
        all.errors += junit->suites[i].errors;
        all.skipped += junit->suites[i].skipped;
    }
    et_text_add(out,
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                "<testsuites name=\"etalon\" tests=\"%d\" failures=\"%d\" errors=\"%d\" skipped=\"%d\">\n",
                all.tests, all.failures, all.errors, all.skipped);
    for (int i = 0; i < junit->count; i++)
        add_suite(out, junit, &junit->suites[i], left);
    et_text_add(out, "</testsuites>\n");
}

enum et_status et_junit_close(struct et_junit *junit, int left, struct et_error *error)
{
    struct et_text text = {0};
    add_suites(&text, junit, left);
    int code = text.failed || junit->failed ? ENOMEM : 0;
    errno = 0;
    if (!code && fwrite(text.data, 1, text.length, junit->file) != text.length)
        code = errno;
    errno = 0;
    if (fclose(junit->file) != 0 && !code)
        code = errno;
    const enum et_status status =
        code ? et_fail(error, ET_FAILED, "%s: %s: the results are not whole", junit->path, strerror(code))
             : ET_OK;
    et_text_free(&text);
    for (int i = 0; i < junit->count; i++) {
        et_free(junit->suites[i].name);
        et_text_free(&junit->suites[i].cases);
    }
    et_free(junit->suites);
    et_free(junit->path);
    et_free(junit->tool);
    et_free(junit);
    return status;
}
