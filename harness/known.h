/* Known failures: lines of id glob TAB device glob TAB reason. '#' opens a comment line. */
#ifndef ET_HARNESS_KNOWN_H
#define ET_HARNESS_KNOWN_H

#include "../ocl/memory.h"

struct et_known_line {
    const char *id, *device, *reason;
};

struct et_known {
    char *text; /* the file, cut into the fields of its lines */
    struct et_known_line *at;
    int count;
};

/* ET_INVALID, "file:line: sentence", for a line that is not three fields. */
enum et_status et_known_read(const char *path, struct et_known *known, struct et_error *error);
void et_known_free(struct et_known *known);
/* The reason of the first line that matches, or NULL. */
const char *et_known_reason(const struct et_known *known, const char *id, const char *device);

#endif
