/*
 * What the sources of the case reader share. case_read.c: a file and its entries; case_expand.c: the cases of
 * an entry; case_parts.c, case_data.c, case_lists.c: the values of a case's keys; models.c: params from
 * models.json.
 */
#ifndef ET_HARNESS_CASE_READ_H
#define ET_HARNESS_CASE_READ_H

#include "case.h"
#include "json.h"

/* count * size zeroed bytes, and a copy of a text, as long-lived as the arena. NULL: error has the sentence.
 */
void *et_arena_take(struct et_arena **arena, size_t count, size_t size, struct et_error *error);
char *et_arena_text(struct et_arena **arena, const char *text, struct et_error *error);

struct et_reader {
    const struct et_json *json;
    const struct et_operator *op;
    const struct et_models *models; /* or NULL */
    const struct et_port *port;
    struct et_arena **arena;
    struct et_error *error;
    bool refused; /* the case expects a refusal: ranges of params are then the operator's to check */
};

/* The keys of `checks`: what each takes, and which member of et_checks it sets. */
enum et_check_value {
    ET_CHECK_LIMIT,  /* a number of at least 0, or false */
    ET_CHECK_SWITCH, /* true or false */
    ET_CHECK_COUNT,  /* 1 to ET_REPEATS, or false */
    ET_CHECK_PAIR    /* {"atol": A, "rtol": R}, or false */
};
enum { ET_REPEATS = 1000 };

struct et_check_key {
    const char *name;
    enum et_check_value kind;
    size_t offset;
    const char *doc;
};

extern const struct et_check_key et_check_keys[]; /* ends with a NULL name */
struct et_checks et_checks_default(void);

/* Params before defaults. */
struct et_given {
    bool given[ET_PARAMS];
    double value[ET_PARAMS];
};

/* The value given, or that of the field it defaults to, or the default. *missing: required and not there. */
double et_given_value(const struct et_field *fields, const struct et_given *given, int i, bool *missing);
void et_given_apply(const struct et_operator *op, const struct et_given *given, unsigned char *params);

/* Letters, digits and ._- only, so that ids need no quotes anywhere; a word starts with a letter or digit. */
bool et_id_value(const char *text);
bool et_id_word(const char *text);
enum et_status et_id_unfit(const struct et_reader *r, const cJSON *node, const char *text);

/* What a value is called in sentences. */
struct et_what {
    char text[120];
};
struct et_what et_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

enum et_status et_copy_string(const struct et_reader *r, const cJSON *node, const char *what,
                              const char **copy);

/* The index of what a member's key (fill: a node's value) names; fails with the nearest name there is. */
enum et_status et_find_field(const struct et_reader *r, const struct et_field *fields, const char *owner,
                             const char *kind, const cJSON *member, int *index);
enum et_status et_find_tensor(const struct et_reader *r, const cJSON *member, int *t);
enum et_status et_find_fill(const struct et_reader *r, const cJSON *node, const char *what,
                            enum et_fill_kind *kind);

/* One value of a param or knob; and a param that is a member of an object. */
enum et_status et_read_field(const struct et_reader *r, const struct et_field *field, const cJSON *node,
                             double *value);
enum et_status et_read_param(const struct et_reader *r, const cJSON *member, struct et_given *given);

/* All of these accept NULL for an absent node, and then leave the default. What is there before gives way. */
enum et_status et_read_params(const struct et_reader *r, const cJSON *node, const char *what,
                              struct et_given *given);
enum et_status et_read_dtypes(const struct et_reader *r, const cJSON *node, enum et_dtype *dtype);
enum et_status et_read_layout(const struct et_reader *r, const cJSON *node, struct et_layout *layout);
/* lists[t] becomes what names the values of tensor t (a list, or a tensor of a file), or NULL: their count is
 * checked once the shape is known. */
enum et_status et_read_data(const struct et_reader *r, const cJSON *node, enum et_role role,
                            struct et_data *data, const cJSON **lists);
enum et_status et_read_poison(const struct et_reader *r, const cJSON *node, enum et_poison_kind *poison);
enum et_status et_read_checks(const struct et_reader *r, const cJSON *node, struct et_checks *checks);
enum et_status et_read_fills(const struct et_reader *r, const cJSON *node, struct et_case *c);
enum et_status et_read_asks(const struct et_reader *r, const cJSON *node, struct et_case *c);
enum et_status et_read_twins(const struct et_reader *r, const cJSON *node, struct et_case *c);
enum et_status et_read_origin(const struct et_reader *r, const cJSON *node, struct et_case *c);

/* Steps at[] through all tuples, the last place fastest; false once all were seen. */
bool et_next_tuple(int *at, const int *count, int n);

/* What the three keys may be by themselves, of which each may be NULL; whether they fit is for apply. */
enum et_status et_models_check(const struct et_reader *r, const cJSON *model, const cJSON *layer,
                               const cJSON *tp);
/* Params that a model, and a layer of it (or NULL), give on one of tp ranks (NULL: one). */
enum et_status et_models_apply(const struct et_reader *r, const cJSON *model, const cJSON *layer,
                               const cJSON *tp, struct et_given *given);

enum { ET_AXES = 16 };

struct et_axis {
    const char *name;
    const cJSON *values; /* shapes: rows of params; else what is swept */
    int param;           /* index, or ET_SETTING, or ET_SHAPES */
};
enum { ET_SETTING = -1, ET_SHAPES = -2 };

/* Where things stand that are looked at once a case's shape is known. */
struct et_sources {
    const cJSON *params, *data[ET_TENSORS], *expect[ET_TENSORS];
};

/* One member of `cases`, and the tuple of its axes that is being made into a case. */
struct et_entry {
    struct et_reader r;
    const cJSON *own, *defaults;
    const char *word, *name;
    struct et_case form;        /* what its cases share */
    struct et_sources *sources; /* a step each */
    double cap[ET_TIERS][ET_PARAMS];
    struct et_axis axis[ET_AXES];
    int axes, count[ET_AXES], at[ET_AXES];
    struct et_cases *cases;
};

/* The case's own value, or else the default. */
const cJSON *et_entry_get(const struct et_entry *e, const char *key);
/* Appends every case of shapes x sweep x capped tiers. The form, the sources and the caps are there. */
enum et_status et_entry_expand(struct et_entry *e);

#endif
