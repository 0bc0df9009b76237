/* Kernel sources: embedded at build, replaceable by files of a folder, #include lines expanded here. */
#ifndef ET_OCL_SOURCE_H
#define ET_OCL_SOURCE_H

#include "../ref/etalon_port.h"
#include "memory.h"

struct et_embedded {
    const char *name; /* without folder */
    const char *bytes;
    size_t length;
};

extern const struct et_embedded et_embedded[]; /* written by tools/embed; ends with a NULL name */

/* Where kernel files are looked for, in this order; then among the embedded ones. */
struct et_places {
    const struct et_override *overrides; /* ends with a NULL name; NULL: none */
    const char *folder;                  /* NULL: none */
};

/*
 * Adds to text the file `name`, each `#include "x"` line replaced by the file x, once, and #line directives
 * so that a build log names files. An include found nowhere is left to the compiler. ET_LACKING: the folder
 * has no file `name`, overridden or not.
 */
enum et_status et_source(const struct et_places *places, const char *name, struct et_text *text,
                         struct et_error *error);
/* Adds the file as it stands. *found false: there is none, which is no failure. */
enum et_status et_source_file(const struct et_places *places, const char *name, struct et_text *text,
                              bool *found, struct et_error *error);
/* Whether this line is `#include "x"`, and then x. */
bool et_source_included(const char *line, size_t length, char *name, size_t bytes);

#endif
