/* Kernel sources: embedded at build, replaceable by files of a folder, #include lines expanded here. */
#ifndef ET_OCL_SOURCE_H
#define ET_OCL_SOURCE_H

#include "memory.h"

struct et_embedded {
    const char *name; /* without folder */
    const char *bytes;
    size_t length;
};

extern const struct et_embedded et_embedded[]; /* written by tools/embed; ends with a NULL name */

/*
 * Adds to text the file `name`, of folder or, where that is NULL, embedded, each `#include "x"` line replaced
 * by the file x (of folder or else embedded), once, and #line directives so that a build log names files. An
 * include found nowhere is left to the compiler. ET_LACKING: the folder has no such file.
 */
enum et_status et_source(const char *folder, const char *name, struct et_text *text, struct et_error *error);

#endif
