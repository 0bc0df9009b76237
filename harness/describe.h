/*
 * What etalon says about its operators, all of it taken from the tables of etalon.h and etalon_port.h:
 * nothing here knows any operator.
 */
#ifndef ET_HARNESS_DESCRIBE_H
#define ET_HARNESS_DESCRIBE_H

#include "../ocl/memory.h"
#include "../ref/etalon_port.h"

/*
 * All of these add to text. ET_FAILED: out of memory, or the kernel sources and the port's tables contradict
 * each other.
 */

/* For people, and everything as JSON. */
enum et_status et_describe_text(const struct et_operator *op, const struct et_port *port,
                                struct et_text *text, struct et_error *error);
enum et_status et_describe_json(const struct et_operator *op, const struct et_port *port,
                                struct et_text *text, struct et_error *error);

/* JSON Schema (2020-12) of the case files of one operator, or (NULL) of all. */
enum et_status et_describe_schema(const struct et_operator *op, const struct et_port *port,
                                  struct et_text *text, struct et_error *error);

/* What etalon's OpenCL port launches for each variant: files, options, arguments. */
enum et_status et_describe_abi(const struct et_operator *op, const struct et_port *port, struct et_text *text,
                               struct et_error *error);

/*
 * Writes the built-in kernel files that the variants of an operator launch, and what they include, to a
 * folder, which is made if it is not there. ET_INVALID: one of them is there already (nothing is written
 * then), or cannot be written. text gets the paths, a line each.
 */
enum et_status et_describe_skeleton(const struct et_operator *op, const struct et_port *port,
                                    const char *folder, struct et_text *text, struct et_error *error);

/* ---- Shared by the sources of this header ---- */

/* A key of a part of the case format. */
struct et_key {
    const char *name;
    const char *type; /* JSON Schema, ' for " and @ for the operator's definitions */
    const char *doc;
};

extern const struct et_key et_layout_keys[], et_data_keys[], et_expect_keys[]; /* end with a NULL name */

const char *et_kind_name(enum et_kind kind);
const char *et_parallel_name(enum et_parallel parallel);

/* A value as it stands in JSON: 3, 0.5, true, "name". */
void et_put_value(struct et_text *text, const struct et_field *field, double value);

struct et_check_key;
/* What a case that does not name the check has. */
void et_put_check_default(struct et_text *text, const struct et_check_key *key);

#endif
