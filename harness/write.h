/* Writing JSON by hand: ' for " in formats, and a layout for people. */
#ifndef ET_HARNESS_WRITE_H
#define ET_HARNESS_WRITE_H

#include "../ocl/memory.h"

/* et_text_add, every ' of the format being a ". Arguments stay as they are. */
void et_put(struct et_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A string with its quotes; NULL: null. */
void et_put_string(struct et_text *text, const char *value);

/*
 * Adds JSON, written with ", " and ": " between values, as lines: what fits into `columns` stays on one line,
 * the rest has a member a line, indented by two. A newline ends it.
 */
void et_put_lines(struct et_text *text, const char *json, int columns);

/* Adds words of `value`, broken before `columns`; every line begins with `indent` spaces. */
void et_put_wrapped(struct et_text *text, const char *value, int indent, int columns);

#endif
