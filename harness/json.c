#define _POSIX_C_SOURCE 200809L /* strnlen */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

enum {
    DEPTH = 64,          /* containers inside one another */
    NUMBER = 63,         /* characters: cJSON cuts longer ones */
    FILE_BYTES = 1 << 26 /* lines and columns then fit an int */
};

struct et_json_place {
    const cJSON *node;
    size_t order, parent; /* places in document order; the root is its own parent */
    int line, column, key_line, key_column;
};

/* ---- The scanner: only what is RFC 8259 passes, and every value leaves its place ---- */

struct scan {
    const char *file;
    const unsigned char *text;
    size_t bytes, at, line_start;
    int line, depth;
    struct et_json_place *places;
    size_t count, capacity;
    struct et_error *error;
};

static enum et_status scan_value(struct scan *s, size_t parent, const struct et_json_place *key);

void et_hide_controls(char *text, const char *but)
{
    unsigned char *to = (unsigned char *)text;
    for (const unsigned char *c = to; *c; c++) {
        const bool c1 = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;
        c += c1;
        *to++ = c1 || *c == 0x7f || (*c < ' ' && !strchr(but, *c)) ? '?' : *c;
    }
    *to = '\0';
}

static enum et_status place_fail(const char *file, int line, int column, struct et_error *error,
                                 const char *format, va_list args)
{
    struct et_error sentence;
    vsnprintf(sentence.text, sizeof sentence.text, format, args);
    et_hide_controls(sentence.text, "");
    if (line == 0)
        return et_fail(error, ET_INVALID, "%s: %s", file, sentence.text);
    return et_fail(error, ET_INVALID, "%s:%d:%d: %s", file, line, column, sentence.text);
}

/* `at` lies on the current line: no token holds a line break. */
__attribute__((format(printf, 3, 4))) static enum et_status scan_fail(const struct scan *s, size_t at,
                                                                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int column = (int)(at - s->line_start) + 1;
    const enum et_status status = place_fail(s->file, s->line, column, s->error, format, args);
    va_end(args);
    return status;
}

static int peek(const struct scan *s)
{
    return s->at < s->bytes ? s->text[s->at] : EOF;
}

static enum et_status scan_expected(const struct scan *s, const char *what)
{
    const int c = peek(s);
    if (c == EOF)
        return scan_fail(s, s->at, "%s was expected, but the text ends", what);
    if (c > ' ' && c < 0x7f)
        return scan_fail(s, s->at, "%s was expected, not '%c'", what, c);
    return scan_fail(s, s->at, "%s was expected, not byte 0x%02x", what, (unsigned)c);
}

static void skip_space(struct scan *s)
{
    for (int c = peek(s); c == ' ' || c == '\t' || c == '\r' || c == '\n'; c = peek(s)) {
        s->at++;
        if (c == '\n') {
            s->line++;
            s->line_start = s->at;
        }
    }
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

/* Bytes of the UTF-8 sequence at s (RFC 3629: shortest form, no surrogates, to U+10FFFF); 0 if it is none. */
size_t et_utf8_sequence(const unsigned char *s, size_t n)
{
    const unsigned char c = s[0];
    if (c < 0x80)
        return 1;
    const size_t length = c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (length == 0 || length > n)
        return 0;
    const unsigned char low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

/* The four hex digits at `at`, or -1. */
static int hex4(const struct scan *s, size_t at)
{
    int value = 0;
    for (size_t i = at; i < at + 4; i++) {
        const int c = i < s->bytes ? s->text[i] : EOF;
        if (is_digit(c))
            value = value * 16 + c - '0';
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            value = value * 16 + (c | 0x20) - 'a' + 10;
        else
            return -1;
    }
    return value;
}

static enum et_status scan_unicode_escape(struct scan *s)
{
    const size_t start = s->at;
    const int unit = hex4(s, start + 2);
    if (unit < 0)
        return scan_fail(s, start, "\\u needs four hex digits");
    if (unit == 0)
        return scan_fail(s, start, "\\u0000 cannot stand in a string here");
    s->at += 6;
    if (unit < 0xd800 || unit > 0xdfff)
        return ET_OK;
    const bool paired = unit < 0xdc00 && s->bytes - s->at >= 6 && memcmp(s->text + s->at, "\\u", 2) == 0;
    const int low = paired ? hex4(s, s->at + 2) : -1;
    if (low < 0xdc00 || low > 0xdfff)
        return scan_fail(s, start, "\\u%04x is half of a surrogate pair", (unsigned)unit);
    s->at += 6;
    return ET_OK;
}

static enum et_status scan_escape(struct scan *s)
{
    const int c = s->at + 1 < s->bytes ? s->text[s->at + 1] : EOF;
    if (c == 'u')
        return scan_unicode_escape(s);
    if (c == EOF || c == 0 || !strchr("\"\\/bfnrt", c))
        return scan_fail(s, s->at, "a backslash here starts no escape of JSON");
    s->at += 2;
    return ET_OK;
}

static enum et_status scan_string(struct scan *s)
{
    const size_t start = s->at++;
    for (int c = peek(s); c != '"'; c = peek(s)) {
        if (c == EOF)
            return scan_fail(s, start, "the string that starts here does not end");
        if (c == '\n')
            return scan_fail(s, start, "the string that starts here does not end on its line");
        if (c < ' ')
            return scan_fail(s, s->at, "raw control character 0x%02x in a string; write \\u%04x", (unsigned)c,
                             (unsigned)c);
        if (c == '\\') {
            const enum et_status status = scan_escape(s);
            if (status != ET_OK)
                return status;
            continue;
        }
        const size_t length = et_utf8_sequence(s->text + s->at, s->bytes - s->at);
        if (length == 0)
            return scan_fail(s, s->at, "byte 0x%02x is not UTF-8", (unsigned)c);
        s->at += length;
    }
    s->at++;
    return ET_OK;
}

static enum et_status scan_digits(struct scan *s, const char *after)
{
    if (!is_digit(peek(s))) {
        char what[40];
        snprintf(what, sizeof what, "a digit after '%s'", after);
        return scan_expected(s, what);
    }
    while (is_digit(peek(s)))
        s->at++;
    return ET_OK;
}

static enum et_status scan_number_text(struct scan *s)
{
    enum et_status status = ET_OK;
    if (peek(s) == '-')
        s->at++;
    if (peek(s) == '0') {
        s->at++;
        if (is_digit(peek(s)))
            return scan_fail(s, s->at - 1, "a number has no leading zeros");
    } else {
        status = scan_digits(s, "-");
    }
    if (status == ET_OK && peek(s) == '.') {
        s->at++;
        status = scan_digits(s, ".");
    }
    if (status == ET_OK && (peek(s) == 'e' || peek(s) == 'E')) {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-')
            s->at++;
        status = scan_digits(s, "e");
    }
    return status;
}

static enum et_status scan_number(struct scan *s)
{
    const size_t start = s->at;
    const enum et_status status = scan_number_text(s);
    if (status != ET_OK)
        return status;
    const size_t length = s->at - start;
    if (length > NUMBER)
        return scan_fail(s, start, "a number of %zu characters, more than %d", length, NUMBER);
    char copy[NUMBER + 1] = {0};
    memcpy(copy, s->text + start, length);
    if (isinf(strtod(copy, NULL)))
        return scan_fail(s, start, "%s is beyond the range of a double", copy);
    return ET_OK;
}

static enum et_status scan_word(struct scan *s)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t length = 0;
    while (s->at + length < s->bytes && ((s->text[s->at + length] | 0x20) >= 'a') &&
           ((s->text[s->at + length] | 0x20) <= 'z'))
        length++;
    if (length == 0)
        return scan_expected(s, "a value");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strlen(words[i]) == length && memcmp(words[i], s->text + s->at, length) == 0) {
            s->at += length;
            return ET_OK;
        }
    }
    return scan_fail(s, s->at, "unknown word %.*s; JSON has true, false and null",
                     (int)(length < 40 ? length : 40), (const char *)s->text + s->at);
}

/* Past the comma, or *more false past the closing bracket. */
static enum et_status scan_next(struct scan *s, char close, bool *more)
{
    skip_space(s);
    const int c = peek(s);
    if (c != ',' && c != close)
        return scan_expected(s, close == '}' ? "',' or '}'" : "',' or ']'");
    *more = c == ',';
    s->at++;
    skip_space(s);
    return ET_OK;
}

static enum et_status scan_member(struct scan *s, size_t parent)
{
    if (peek(s) != '"')
        return scan_expected(s, "a key in quotes");
    const struct et_json_place key = {.key_line = s->line, .key_column = (int)(s->at - s->line_start) + 1};
    const enum et_status status = scan_string(s);
    if (status != ET_OK)
        return status;
    skip_space(s);
    if (peek(s) != ':')
        return scan_expected(s, "':'");
    s->at++;
    skip_space(s);
    return scan_value(s, parent, &key);
}

static enum et_status scan_container(struct scan *s, size_t self, char close)
{
    if (++s->depth > DEPTH)
        return scan_fail(s, s->at, "nested deeper than %d", DEPTH);
    s->at++;
    skip_space(s);
    bool more = peek(s) != close;
    if (!more)
        s->at++;
    while (more) {
        enum et_status status = close == '}' ? scan_member(s, self) : scan_value(s, self, NULL);
        if (status == ET_OK)
            status = scan_next(s, close, &more);
        if (status != ET_OK)
            return status;
    }
    s->depth--;
    return ET_OK;
}

static enum et_status add_place(struct scan *s, size_t parent, const struct et_json_place *key)
{
    if (s->count == s->capacity) {
        const size_t capacity = s->capacity ? 2 * s->capacity : 256;
        struct et_json_place *places = et_resize(s->places, capacity, sizeof *places, s->error);
        if (!places)
            return ET_FAILED;
        s->places = places;
        s->capacity = capacity;
    }
    struct et_json_place *place = &s->places[s->count];
    *place = key ? *key : (struct et_json_place){0};
    place->order = s->count++;
    place->parent = parent;
    place->line = s->line;
    place->column = (int)(s->at - s->line_start) + 1;
    return ET_OK;
}

static enum et_status scan_value(struct scan *s, size_t parent, const struct et_json_place *key)
{
    const size_t self = s->count;
    const enum et_status status = add_place(s, parent, key);
    if (status != ET_OK)
        return status;
    const int c = peek(s);
    if (c == '{' || c == '[')
        return scan_container(s, self, c == '{' ? '}' : ']');
    if (c == '"')
        return scan_string(s);
    if (c == '-' || is_digit(c))
        return scan_number(s);
    return scan_word(s);
}

static enum et_status scan_document(struct scan *s)
{
    if (s->bytes > FILE_BYTES)
        return scan_fail(s, 0, "%zu bytes of JSON, more than %d", s->bytes, FILE_BYTES);
    if (s->bytes >= 3 && memcmp(s->text, "\xef\xbb\xbf", 3) == 0)
        return scan_fail(s, 0, "the text starts with a byte order mark; JSON has none");
    skip_space(s);
    if (s->at == s->bytes)
        return scan_fail(s, s->at, "the text is empty");
    const enum et_status status = scan_value(s, 0, NULL);
    if (status != ET_OK)
        return status;
    skip_space(s);
    return s->at == s->bytes ? ET_OK : scan_expected(s, "the end of the text");
}

/* ---- Places of nodes ---- */

/* Both walks are pre-order, so the i-th node is the i-th place. */
static void pair(struct et_json *json, const cJSON *node, size_t *i)
{
    if (*i < json->count)
        json->places[*i].node = node;
    ++*i;
    const cJSON *child = NULL;
    cJSON_ArrayForEach (child, node)
        pair(json, child, i);
}

static int by_key(const void *left, const void *right)
{
    const struct et_json_place *a = left, *b = right;
    if (a->parent != b->parent)
        return a->parent < b->parent ? -1 : 1;
    const bool keyed = a->node->string && b->node->string;
    const int order = keyed ? strcmp(a->node->string, b->node->string) : 0;
    return order ? order : (a->order > b->order) - (a->order < b->order);
}

static int by_node(const void *left, const void *right)
{
    const struct et_json_place *a = left, *b = right;
    const uintptr_t x = (uintptr_t)a->node, y = (uintptr_t)b->node;
    return (x > y) - (x < y);
}

static bool same_key(const struct et_json_place *a, const struct et_json_place *b)
{
    return a->parent == b->parent && a->node->string && b->node->string &&
           strcmp(a->node->string, b->node->string) == 0;
}

/* Keys are compared decoded: "a" and "\u0061" are the same key. */
static enum et_status refuse_duplicates(struct et_json *json, struct et_error *error)
{
    qsort(json->places, json->count, sizeof *json->places, by_key);
    const struct et_json_place *second = NULL;
    int first_line = 0;
    for (size_t i = 1; i < json->count; i++) {
        const struct et_json_place *place = &json->places[i];
        if (same_key(place - 1, place) && (!second || place->order < second->order)) {
            second = place;
            first_line = place[-1].key_line;
        }
    }
    if (!second)
        return ET_OK;
    return et_fail(error, ET_INVALID, "%s:%d:%d: key \"%s\" is given twice, first on line %d", json->file,
                   second->key_line, second->key_column, second->node->string, first_line);
}

static enum et_status build(const char *text, size_t bytes, struct et_json *json, struct et_error *error)
{
    json->root = cJSON_ParseWithLengthOpts(text, bytes, NULL, false);
    if (!json->root)
        return et_fail(error, ET_FAILED, "%s: no memory for its %zu values", json->file, json->count);
    size_t nodes = 0;
    pair(json, json->root, &nodes);
    if (nodes != json->count)
        return et_fail(error, ET_FAILED, "%s: cJSON read %zu values of %zu", json->file, nodes, json->count);
    const enum et_status status = refuse_duplicates(json, error);
    qsort(json->places, json->count, sizeof *json->places, by_node);
    return status;
}

enum et_status et_json_parse(const char *file, const char *text, size_t bytes, struct et_json *json,
                             struct et_error *error)
{
    return et_json_parse_line(file, 1, text, bytes, json, error);
}

enum et_status et_json_parse_line(const char *file, int line, const char *text, size_t bytes,
                                  struct et_json *json, struct et_error *error)
{
    *json = (struct et_json){.file = et_strdup(file, error)};
    if (!json->file)
        return ET_FAILED;
    struct scan s = {
        .file = file, .text = (const unsigned char *)text, .bytes = bytes, .line = line, .error = error};
    enum et_status status = scan_document(&s);
    json->places = s.places;
    json->count = s.count;
    if (status == ET_OK)
        status = build(text, bytes, json, error);
    if (status != ET_OK)
        et_json_free(json);
    return status;
}

enum et_status et_json_read(const char *path, struct et_json *json, struct et_error *error)
{
    struct et_text text = {0};
    *json = (struct et_json){0};
    enum et_status status = et_text_file(&text, path, FILE_BYTES, error);
    if (status == ET_OK)
        status = et_json_parse(path, text.data ? text.data : "", text.length, json, error);
    et_text_free(&text);
    return status == ET_LACKING ? ET_INVALID : status;
}

void et_json_free(struct et_json *json)
{
    cJSON_Delete(json->root);
    et_free(json->places);
    et_free(json->file);
    *json = (struct et_json){0};
}

static struct et_json_place place_of(const struct et_json *json, const cJSON *node)
{
    const struct et_json_place key = {.node = node};
    const struct et_json_place *place =
        json->count ? bsearch(&key, json->places, json->count, sizeof key, by_node) : NULL;
    return place ? *place : (struct et_json_place){0};
}

void et_json_at(const struct et_json *json, const cJSON *node, int *line, int *column)
{
    const struct et_json_place place = place_of(json, node);
    *line = place.line;
    *column = place.column;
}

enum et_status et_json_fail(const struct et_json *json, const cJSON *node, struct et_error *error,
                            const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const struct et_json_place place = place_of(json, node);
    const enum et_status status = place_fail(json->file, place.line, place.column, error, format, args);
    va_end(args);
    return status;
}

enum et_status et_json_fail_key(const struct et_json *json, const cJSON *node, struct et_error *error,
                                const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const struct et_json_place place = place_of(json, node);
    const enum et_status status =
        place_fail(json->file, place.key_line, place.key_column, error, format, args);
    va_end(args);
    return status;
}

/* ---- Typed readers ---- */

struct shown {
    char text[64];
};

static struct shown show(const cJSON *node)
{
    struct shown shown = {""};
    if (cJSON_IsString(node))
        snprintf(shown.text, sizeof shown.text, strlen(node->valuestring) <= 40 ? "\"%s\"" : "\"%.40s...\"",
                 node->valuestring);
    else if (cJSON_IsNumber(node))
        snprintf(shown.text, sizeof shown.text, "%.16g", node->valuedouble);
    else
        snprintf(shown.text, sizeof shown.text, "%s",
                 cJSON_IsObject(node)  ? "an object"
                 : cJSON_IsArray(node) ? "a list"
                 : cJSON_IsTrue(node)  ? "true"
                 : cJSON_IsFalse(node) ? "false"
                                       : "null");
    return shown;
}

enum et_status et_json_mismatch(const struct et_json *json, const cJSON *node, const char *what,
                                const char *wanted, struct et_error *error)
{
    return et_json_fail(json, node, error, "%s is %s, not %s", what, show(node).text, wanted);
}

enum et_status et_json_int(const struct et_json *json, const cJSON *node, const char *what, int64_t min,
                           int64_t max, int64_t *value, struct et_error *error)
{
    const int64_t low = min < -ET_EXACT ? -ET_EXACT : min, high = max > ET_EXACT ? ET_EXACT : max;
    const double x = cJSON_IsNumber(node) ? node->valuedouble : (double)NAN;
    if (!(x >= (double)low && x <= (double)high) || x != trunc(x))
        return et_json_fail(json, node, error, "%s is %s, not a whole number from %lld to %lld", what,
                            show(node).text, (long long)low, (long long)high);
    *value = (int64_t)x;
    return ET_OK;
}

/* strtod takes more than hex floats, so their start is looked at first. */
static bool real_named(const char *text, double *value)
{
    const bool negative = text[0] == '-';
    const char *const digits = text + negative;
    if (strcmp(digits, "inf") == 0) {
        *value = negative ? -(double)INFINITY : (double)INFINITY;
        return true;
    }
    if (strcmp(text, "nan") == 0) {
        *value = (double)NAN;
        return true;
    }
    if (strncmp(digits, "0x", 2) != 0)
        return false;
    char *end = NULL;
    *value = strtod(text, &end);
    return *end == '\0' && isfinite(*value);
}

enum et_status et_json_real(const struct et_json *json, const cJSON *node, const char *what, double *value,
                            struct et_error *error)
{
    if (cJSON_IsNumber(node)) {
        *value = node->valuedouble;
        return ET_OK;
    }
    if (cJSON_IsString(node) && real_named(node->valuestring, value))
        return ET_OK;
    return et_json_mismatch(json, node, what, "a number, \"inf\", \"-inf\", \"nan\" or a hex float in quotes",
                            error);
}

enum et_status et_json_bool(const struct et_json *json, const cJSON *node, const char *what, bool *value,
                            struct et_error *error)
{
    if (!cJSON_IsBool(node))
        return et_json_mismatch(json, node, what, "true or false", error);
    *value = cJSON_IsTrue(node);
    return ET_OK;
}

enum et_status et_json_string(const struct et_json *json, const cJSON *node, const char *what,
                              const char **value, struct et_error *error)
{
    if (!cJSON_IsString(node))
        return et_json_mismatch(json, node, what, "a string", error);
    *value = node->valuestring;
    return ET_OK;
}

enum et_status et_json_object(const struct et_json *json, const cJSON *node, const char *what,
                              struct et_error *error)
{
    return cJSON_IsObject(node) ? ET_OK : et_json_mismatch(json, node, what, "an object", error);
}

enum et_status et_json_array(const struct et_json *json, const cJSON *node, const char *what,
                             struct et_error *error)
{
    return cJSON_IsArray(node) ? ET_OK : et_json_mismatch(json, node, what, "a list", error);
}

enum { WORD = 64 };

/* Levenshtein's distance of the first WORD - 1 characters. */
static size_t distance(const char *a, const char *b)
{
    const size_t n = strnlen(a, WORD - 1), m = strnlen(b, WORD - 1);
    size_t row[WORD];
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            const size_t shorter = (row[j - 1] < row[j] ? row[j - 1] : row[j]) + 1;
            diagonal = row[j];
            row[j] = replaced < shorter ? replaced : shorter;
        }
    }
    return row[m];
}

void et_nearest_try(struct et_nearest *nearest, const char *candidate)
{
    const size_t d = distance(nearest->word, candidate);
    if (nearest->best && d >= nearest->distance)
        return;
    nearest->best = candidate;
    nearest->distance = d;
}

enum et_status et_json_keys(const struct et_json *json, const cJSON *object, const char *what,
                            const char *const *allowed, struct et_error *error)
{
    const enum et_status status = et_json_object(json, object, what, error);
    if (status != ET_OK)
        return status;
    const cJSON *member = NULL;
    cJSON_ArrayForEach (member, object) {
        struct et_nearest nearest = {.word = member->string};
        for (const char *const *key = allowed; *key; key++)
            et_nearest_try(&nearest, *key);
        if (!nearest.best || strcmp(nearest.best, member->string) != 0)
            return et_json_fail_key(json, member, error, "%s has no \"%s\"; the nearest is \"%s\"", what,
                                    member->string, nearest.best ? nearest.best : "");
    }
    return ET_OK;
}

enum et_status et_json_exact(const struct et_json *json, const cJSON *object, const char *what,
                             const char *const *keys, struct et_error *error)
{
    enum et_status status = et_json_keys(json, object, what, keys, error);
    for (int i = 0; keys[i] && status == ET_OK; i++)
        if (!et_json_get(object, keys[i]))
            status = et_json_fail(json, object, error, "%s has no %s", what, keys[i]);
    return status;
}

const cJSON *et_json_get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* ---- Writers ---- */

static void add_character(struct et_text *text, unsigned char c)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *found = c ? strchr(plain, c) : NULL;
    if (found)
        et_text_add(text, "\\%c", letter[found - plain]);
    else if (c < ' ')
        et_text_add(text, "\\u%04x", c);
    else
        et_text_bytes(text, (const char *)&c, 1);
}

/* What is not UTF-8 (a driver's device name, say) becomes U+FFFD: the output is JSON whatever comes in. */
void et_json_add_string(struct et_text *text, const char *value)
{
    const unsigned char *s = (const unsigned char *)value;
    size_t n = strlen(value);
    et_text_bytes(text, "\"", 1);
    while (n > 0) {
        const size_t length = et_utf8_sequence(s, n);
        if (length == 1)
            add_character(text, *s);
        else if (length > 1)
            et_text_bytes(text, (const char *)s, length);
        else
            et_text_bytes(text, "\xef\xbf\xbd", 3);
        const size_t step = length ? length : 1;
        s += step;
        n -= step;
    }
    et_text_bytes(text, "\"", 1);
}

void et_json_add_number(struct et_text *text, double value)
{
    if (!isfinite(value)) {
        et_text_add(text, "null");
        return;
    }
    char shortest[40] = "";
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(shortest, sizeof shortest, "%.*g", digits, value);
        if (strtod(shortest, NULL) == value)
            break;
    }
    et_text_add(text, "%s", shortest);
}

void et_json_add_real(struct et_text *text, double value)
{
    if (isfinite(value))
        et_json_add_number(text, value);
    else
        et_text_add(text, "%s", isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"");
}
