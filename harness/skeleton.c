#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../ocl/source.h"
#include "describe.h"
#include "launches.h"

enum { FILES = 32 };

struct files {
    char *name[FILES]; /* owned */
    struct et_text text[FILES];
    int count;
};

static void free_files(struct files *files)
{
    for (int i = 0; i < files->count; i++) {
        et_free(files->name[i]);
        et_text_free(&files->text[i]);
    }
}

/* A built-in file, once. What is included but not built in is not ours to give. */
static enum et_status add_file(struct files *files, const char *name, struct et_error *error)
{
    const struct et_places built_in = {0};
    bool found = false;
    for (int i = 0; i < files->count; i++)
        if (!strcmp(files->name[i], name))
            return ET_OK;
    if (files->count == FILES)
        return et_fail(error, ET_FAILED, "more than %d kernel files", FILES);
    struct et_text text = {0};
    enum et_status status = et_source_file(&built_in, name, &text, &found, error);
    char *copy = status == ET_OK && found ? et_strdup(name, error) : NULL;
    if (copy) {
        files->name[files->count] = copy;
        files->text[files->count++] = text;
        return ET_OK;
    }
    et_text_free(&text);
    return status == ET_OK && found ? ET_FAILED : status;
}

static enum et_status add_included(struct files *files, int i, struct et_error *error)
{
    enum et_status status = ET_OK;
    const char *line = files->text[i].data;
    while (status == ET_OK && line && *line) {
        const size_t length = strcspn(line, "\n");
        char name[256];
        if (et_source_included(line, length, name, sizeof name))
            status = add_file(files, name, error);
        line += length + (line[length] == '\n');
    }
    return status;
}

static enum et_status gather(const struct et_operator *op, const struct et_port *port, struct files *files,
                             struct et_error *error)
{
    enum et_status status = ET_OK;
    for (const struct et_variant *const *v = port->variants; status == ET_OK && *v; v++) {
        struct et_given given;
        struct et_launches launches = {.count = 0};
        if (!strcmp((*v)->op, op->name))
            status = et_launches_some(*v, &given, &launches, error);
        for (int i = 0; status == ET_OK && i < launches.count; i++)
            status = add_file(files, launches.at[i].file, error);
    }
    for (int i = 0; status == ET_OK && i < files->count; i++)
        status = add_included(files, i, error);
    return status;
}

/* All or none: a folder half of somebody else's kernels would be neither. */
static enum et_status refuse_existing(const char *folder, const struct files *files, struct et_error *error)
{
    enum et_status status = ET_OK;
    for (int i = 0; status == ET_OK && i < files->count; i++) {
        struct stat there;
        char *path = et_print(error, "%s/%s", folder, files->name[i]);
        if (!path)
            return ET_FAILED;
        if (lstat(path, &there) == 0)
            status = et_fail(error, ET_INVALID, "%s is there already; --skeleton overwrites nothing", path);
        et_free(path);
    }
    return status;
}

static enum et_status write_file(const char *path, const struct et_text *text, struct et_error *error)
{
    FILE *file = fopen(path, "wbx");
    bool good = file && fwrite(text->data ? text->data : "", 1, text->length, file) == text->length;
    good = file && fclose(file) == 0 && good;
    return good ? ET_OK : et_fail(error, ET_INVALID, "%s cannot be written: %s", path, strerror(errno));
}

enum et_status et_describe_skeleton(const struct et_operator *op, const struct et_port *port,
                                    const char *folder, struct et_text *text, struct et_error *error)
{
    struct files files = {.count = 0};
    enum et_status status = gather(op, port, &files, error);
    if (status == ET_OK)
        status = refuse_existing(folder, &files, error);
    if (status == ET_OK && mkdir(folder, 0777) != 0 && errno != EEXIST)
        status = et_fail(error, ET_INVALID, "folder %s cannot be made: %s", folder, strerror(errno));
    for (int i = 0; status == ET_OK && i < files.count; i++) {
        char *path = et_print(error, "%s/%s", folder, files.name[i]);
        status = path ? write_file(path, &files.text[i], error) : ET_FAILED;
        if (status == ET_OK)
            et_text_add(text, "%s\n", path);
        et_free(path);
    }
    free_files(&files);
    return status;
}
