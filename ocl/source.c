#include "source.h"

#include <stdio.h>
#include <string.h>

struct expansion {
    const struct et_places *places;
    struct et_text *text;
    struct et_text seen; /* names of the files so far, a newline before and after each */
};

enum { FILE_BYTES = 1 << 26 };

/* *found false: there is no such file, which is no failure. */
static enum et_status read_file(const char *folder, const char *name, struct et_text *text, bool *found,
                                struct et_error *error)
{
    *found = false;
    char *path = et_print(error, "%s/%s", folder, name);
    if (!path)
        return ET_FAILED;
    const enum et_status status = et_text_regular(text, path, FILE_BYTES, error);
    et_free(path);
    *found = status != ET_LACKING;
    return *found ? status : ET_OK;
}

enum et_status et_source_file(const struct et_places *places, const char *name, struct et_text *text,
                              bool *found, struct et_error *error)
{
    *found = false;
    for (const struct et_override *o = places->overrides; o && o->name && !*found; o++) {
        *found = strcmp(o->name, name) == 0;
        if (*found)
            et_text_bytes(text, o->text, strlen(o->text));
    }
    const enum et_status status =
        places->folder && !*found ? read_file(places->folder, name, text, found, error) : ET_OK;
    for (int i = 0; status == ET_OK && !*found && et_embedded[i].name; i++) {
        if (strcmp(et_embedded[i].name, name) != 0)
            continue;
        *found = true;
        et_text_bytes(text, et_embedded[i].bytes, et_embedded[i].length);
    }
    return status != ET_OK || !text->failed ? status
                                            : et_fail(error, ET_FAILED, "out of memory for %s", name);
}

bool et_source_included(const char *line, size_t length, char *name, size_t bytes)
{
    static const char word[] = "include";
    const char *at = line, *end = line + length;
    at += strspn(at, " \t");
    if (at == end || *at != '#')
        return false;
    at += 1 + strspn(at + 1, " \t");
    if (strncmp(at, word, sizeof word - 1) != 0)
        return false;
    at += sizeof word - 1;
    at += strspn(at, " \t");
    if (at == end || *at != '"')
        return false;
    at++;
    const size_t n = strcspn(at, "\"\n");
    if (at[n] != '"' || n == 0 || n >= bytes)
        return false;
    memcpy(name, at, n);
    name[n] = '\0';
    return true;
}

/* Whether this is the first time that name is asked for. */
static bool first(struct expansion *expansion, const char *name)
{
    char key[260];
    snprintf(key, sizeof key, "\n%s\n", name);
    if (expansion->seen.data && strstr(expansion->seen.data, key))
        return false;
    et_text_add(&expansion->seen, "%s", key);
    return true;
}

static enum et_status expand(struct expansion *expansion, const char *name, bool *found,
                             struct et_error *error)
{
    struct et_text file = {0};
    enum et_status status = et_source_file(expansion->places, name, &file, found, error);
    if (status == ET_OK && *found)
        et_text_add(expansion->text, "#line 1 \"%s\"\n", name);
    const char *line = file.data ? file.data : "";
    for (int number = 1; status == ET_OK && *line != '\0'; number++) {
        const size_t length = strcspn(line, "\n");
        char other[256];
        bool there = false;
        if (et_source_included(line, length, other, sizeof other)) {
            there = !first(expansion, other);
            status = there ? ET_OK : expand(expansion, other, &there, error);
        }
        if (there)
            et_text_add(expansion->text, "#line %d \"%s\"\n", number + 1, name);
        else
            et_text_add(expansion->text, "%.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
    et_text_free(&file);
    return status;
}

enum et_status et_source(const struct et_places *places, const char *name, struct et_text *text,
                         struct et_error *error)
{
    struct expansion expansion = {.places = places, .text = text};
    bool found = true;
    if (places->folder) {
        /* What a folder does not provide is not to pass for it; includes may be the built-in ones. */
        struct et_text own = {0};
        const enum et_status read = read_file(places->folder, name, &own, &found, error);
        et_text_free(&own);
        if (read != ET_OK || !found)
            return read != ET_OK
                       ? read
                       : et_fail(error, ET_LACKING, "not provided: the folder of --port has no %s", name);
    }
    first(&expansion, name);
    enum et_status status = expand(&expansion, name, &found, error);
    if (status == ET_OK && !found)
        status = et_fail(error, ET_FAILED, "kernel source %s is not built in", name);
    if (status == ET_OK && (text->failed || expansion.seen.failed))
        status = et_fail(error, ET_FAILED, "out of memory for %s", name);
    et_text_free(&expansion.seen);
    return status;
}
