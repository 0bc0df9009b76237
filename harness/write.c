#include "write.h"

#include <stdio.h>
#include <string.h>

#include "json.h"

void et_put(struct et_text *text, const char *format, ...)
{
    va_list args, again;
    char *const quoted = et_strdup(format, NULL);
    for (char *at = quoted; at && *at; at++)
        if (*at == '\'')
            *at = '"';
    va_start(args, format);
    va_copy(again, args);
    const int n = quoted ? vsnprintf(NULL, 0, quoted, args) : -1;
    char *const made = n >= 0 ? et_alloc((size_t)n + 1, 1, NULL) : NULL;
    if (made) {
        vsnprintf(made, (size_t)n + 1, quoted, again);
        et_text_bytes(text, made, (size_t)n);
    } else {
        text->failed = true;
    }
    va_end(again);
    va_end(args);
    et_free(made);
    et_free(quoted);
}

void et_put_string(struct et_text *text, const char *value)
{
    if (value)
        et_json_add_string(text, value);
    else
        et_text_add(text, "null");
}

/* ---- Layout ---- */

static const char *string_end(const char *at)
{
    for (at++; *at != '"'; at++)
        at += *at == '\\';
    return at + 1;
}

/* Behind the value that begins at `at`. */
static const char *value_end(const char *at)
{
    int depth = 0;
    do {
        if (*at == '"') {
            at = string_end(at);
            continue;
        }
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        at++;
    } while (*at && (depth > 0 || !strchr(",]}", *at)));
    return at;
}

/* The value at `at`, which begins at column `begin` of a line indented by `indent`; returns its end. */
static const char *add_lines(struct et_text *text, const char *at, int indent, int begin, int columns)
{
    const char *const end = value_end(at);
    if ((*at != '{' && *at != '[') || begin + (end - at) < columns) {
        et_text_bytes(text, at, (size_t)(end - at));
        return end;
    }
    const char close = *at == '{' ? '}' : ']';
    et_text_bytes(text, at++, 1);
    while (*at != close) {
        const char *const key = at;
        const bool member = close == '}';
        if (member)
            at = string_end(at) + 2;
        et_text_add(text, "\n%*s%.*s", indent + 2, "", (int)(at - key), key);
        at = add_lines(text, at, indent + 2, indent + 2 + (int)(at - key), columns);
        if (*at == ',') {
            et_text_add(text, ",");
            at += 2;
        }
    }
    et_text_add(text, "\n%*s%c", indent, "", close);
    return end;
}

void et_put_lines(struct et_text *text, const char *json, int columns)
{
    add_lines(text, json, 0, 0, columns);
    et_text_add(text, "\n");
}

void et_put_wrapped(struct et_text *text, const char *value, int indent, int columns)
{
    const size_t most = columns > indent ? (size_t)(columns - indent) : 1;
    while (*value) {
        /* As many whole words as fit, or one that does not. */
        size_t n = strcspn(value, " ");
        for (size_t word = n; value[word]; word += 1 + strcspn(value + word + 1, " "))
            n = word <= most ? word : n;
        if (strlen(value) <= most)
            n = strlen(value);
        et_text_add(text, "%*s%.*s\n", indent, "", (int)n, value);
        value += n;
        value += strspn(value, " ");
    }
}
