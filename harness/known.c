#include "known.h"

#include <string.h>

#include "case.h"

enum { FILE_BYTES = 1 << 26 };

static enum et_status slurp(const char *path, struct et_text *text, struct et_error *error)
{
    const enum et_status status = et_text_file(text, path, FILE_BYTES, error);
    if (status == ET_OK && text->data && strlen(text->data) != text->length)
        return et_fail(error, ET_INVALID, "%s: holds a NUL byte", path);
    return status == ET_LACKING ? ET_INVALID : status;
}

static enum et_status add_line(const char *path, int number, char *line, struct et_known *known,
                               struct et_error *error)
{
    char *device = strchr(line, '\t');
    char *reason = device ? strchr(device + 1, '\t') : NULL;
    if (!reason || device == line || reason == device + 1 || !reason[1] || strchr(reason + 1, '\t'))
        return et_fail(error, ET_INVALID, "%s:%d: must read ID-GLOB TAB DEVICE-GLOB TAB REASON", path,
                       number);
    *device = *reason = '\0';
    struct et_known_line *grown = et_resize(known->at, (size_t)known->count + 1, sizeof *grown, error);
    if (!grown)
        return ET_FAILED;
    known->at = grown;
    known->at[known->count++] = (struct et_known_line){line, device + 1, reason + 1};
    return ET_OK;
}

enum et_status et_known_read(const char *path, struct et_known *known, struct et_error *error)
{
    struct et_text text = {0};
    *known = (struct et_known){0};
    enum et_status status = slurp(path, &text, error);
    known->text = text.data;
    int number = 1;
    for (char *line = text.data, *next; status == ET_OK && line && *line; line = next, number++) {
        char *end = strchr(line, '\n');
        next = end ? end + 1 : NULL;
        if (end)
            *end = '\0';
        if (*line && *line != '#')
            status = add_line(path, number, line, known, error);
    }
    if (status != ET_OK)
        et_known_free(known);
    return status;
}

void et_known_free(struct et_known *known)
{
    et_free(known->text);
    et_free(known->at);
    *known = (struct et_known){0};
}

const char *et_known_reason(const struct et_known *known, const char *id, const char *device)
{
    for (int i = 0; i < known->count; i++)
        if (et_glob(known->at[i].id, id) && et_glob(known->at[i].device, device))
            return known->at[i].reason;
    return NULL;
}
