/*
 * Strict JSON (RFC 8259) in, with places; JSON text out. A scanner of ours walks the text first and refuses
 * what cJSON lets through (duplicate keys, trailing text, 01, raw control characters, lone surrogates,
 * numbers that overflow); cJSON's tree is then read in the same order, so every node has a line and a column.
 */
#ifndef ET_HARNESS_JSON_H
#define ET_HARNESS_JSON_H

#include <cjson/cJSON.h>

#include "../ocl/memory.h"

#define ET_EXACT INT64_C(9007199254740991) /* 2^53 - 1: up to it a double has every integer */

struct et_json {
    char *file;
    cJSON *root;
    struct et_json_place *places; /* sorted by node; private to json.c */
    size_t count;
};

/*
 * All errors read "file:line:column: sentence" (columns count bytes from 1; control characters of what is
 * quoted show as ?) and are ET_INVALID; of a file that cannot be read, "file: sentence". On failure *json is
 * empty. `\u0000`, numbers of more than 63 characters, more than 64 levels and more than 64 MiB are refused.
 */
enum et_status et_json_parse(const char *file, const char *text, size_t bytes, struct et_json *json,
                             struct et_error *error);
/* The same for a text that begins on that line of its file. */
enum et_status et_json_parse_line(const char *file, int line, const char *text, size_t bytes,
                                  struct et_json *json, struct et_error *error);
enum et_status et_json_read(const char *path, struct et_json *json, struct et_error *error);
void et_json_free(struct et_json *json);

/* Fails at a node's place (an object member's place is that of its value). */
enum et_status et_json_fail(const struct et_json *json, const cJSON *node, struct et_error *error,
                            const char *format, ...) __attribute__((format(printf, 4, 5)));
/* The same at the member's key. */
enum et_status et_json_fail_key(const struct et_json *json, const cJSON *node, struct et_error *error,
                                const char *format, ...) __attribute__((format(printf, 4, 5)));
/* "WHAT is VALUE, not WANTED" at a node's place. */
enum et_status et_json_mismatch(const struct et_json *json, const cJSON *node, const char *what,
                                const char *wanted, struct et_error *error);
void et_json_at(const struct et_json *json, const cJSON *node, int *line, int *column);

/* Typed readers; `what` names the thing in sentences. Ints are exact: integral and within +-(2^53 - 1). */
enum et_status et_json_int(const struct et_json *json, const cJSON *node, const char *what, int64_t min,
                           int64_t max, int64_t *value, struct et_error *error);
/* A number, or one of the strings "inf" "-inf" "nan", or a hex float such as "0x1.8p-3". */
enum et_status et_json_real(const struct et_json *json, const cJSON *node, const char *what, double *value,
                            struct et_error *error);
enum et_status et_json_bool(const struct et_json *json, const cJSON *node, const char *what, bool *value,
                            struct et_error *error);
enum et_status et_json_string(const struct et_json *json, const cJSON *node, const char *what,
                              const char **value, struct et_error *error);
enum et_status et_json_object(const struct et_json *json, const cJSON *node, const char *what,
                              struct et_error *error);
enum et_status et_json_array(const struct et_json *json, const cJSON *node, const char *what,
                             struct et_error *error);
/* Every key of the object is one of allowed (ends with NULL); the sentence names the nearest allowed key. */
enum et_status et_json_keys(const struct et_json *json, const cJSON *object, const char *what,
                            const char *const *allowed, struct et_error *error);
/* The same, and none of them is missing. */
enum et_status et_json_exact(const struct et_json *json, const cJSON *object, const char *what,
                             const char *const *keys, struct et_error *error);
/* Case-sensitive look-up; NULL where there is none. */
const cJSON *et_json_get(const cJSON *object, const char *key);

/*
 * The candidate with the fewest edits to word, for sentences about names nobody knows: {.word = ...}, then
 * every candidate; the first of equals stays. best is NULL until then.
 */
struct et_nearest {
    const char *word, *best;
    size_t distance;
};
void et_nearest_try(struct et_nearest *nearest, const char *candidate);

/* Names and values of others go into sentences, which are one line and steer no terminal: C0, DEL and C1
 * become '?', except the characters of `but`. */
void et_hide_controls(char *text, const char *but);

/* Bytes of the UTF-8 sequence that s, of n > 0 bytes, begins with; 0: it begins with none. */
size_t et_utf8_sequence(const unsigned char *s, size_t n);

/* Writers. A double round-trips; NaN and infinities are written as null. */
void et_json_add_string(struct et_text *text, const char *value);
void et_json_add_number(struct et_text *text, double value);
/* The same, but NaN and infinities as the strings that et_json_real reads. */
void et_json_add_real(struct et_text *text, double value);

#endif
