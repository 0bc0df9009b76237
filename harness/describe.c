#include "describe.h"

#include <math.h>
#include <string.h>

#include "case_read.h"
#include "write.h"

enum { COLUMNS = 118, WIDTH = 100 };

const char *et_kind_name(enum et_kind kind)
{
    static const char *const names[] = {
        [ET_INT] = "int", [ET_REAL] = "real", [ET_BOOL] = "bool", [ET_NAME] = "name"};
    return names[kind];
}

const char *et_parallel_name(enum et_parallel parallel)
{
    static const char *const names[] = {
        [ET_WHOLE] = "whole", [ET_DIVIDED] = "divided", [ET_REPLICATED] = "replicated"};
    return names[parallel];
}

void et_put_value(struct et_text *text, const struct et_field *field, double value)
{
    if (field->kind == ET_NAME)
        et_put_string(text, field->names[(int)value]);
    else if (field->kind == ET_BOOL)
        et_text_add(text, "%s", value != 0 ? "true" : "false");
    else
        et_json_add_real(text, value);
}

/* What a case that does not name the check has. */
void et_put_check_default(struct et_text *text, const struct et_check_key *key)
{
    const struct et_checks checks = et_checks_default();
    const void *const at = (const char *)&checks + key->offset;
    if (key->kind == ET_CHECK_LIMIT)
        et_json_add_number(text, *(const double *)at);
    else if (key->kind == ET_CHECK_COUNT)
        et_text_add(text, "%d", *(const int *)at);
    else
        et_text_add(text, "%s", *(const bool *)at ? "true" : "false");
}

static bool of(const struct et_variant *variant, const struct et_operator *op)
{
    return strcmp(variant->op, op->name) == 0;
}

static bool has_fill(const struct et_operator *op, enum et_fill_kind kind)
{
    return !et_fill_is_exact(kind) || op->exact_fills & 1U << kind;
}

/* ---- JSON ---- */

static void add_names(struct et_text *text, const char *const *names)
{
    et_text_add(text, "[");
    for (int i = 0; names[i]; i++) {
        et_text_add(text, "%s", i ? ", " : "");
        et_put_string(text, names[i]);
    }
    et_text_add(text, "]");
}

static void add_field(struct et_text *text, const struct et_field *field, bool param)
{
    const bool number = field->kind == ET_INT || field->kind == ET_REAL;
    et_put(text, "{'name': '%s', 'type': '%s'", field->name, et_kind_name(field->kind));
    if (number) {
        et_put(text, ", 'min': ");
        et_json_add_real(text, field->min);
        et_put(text, ", 'max': ");
        et_json_add_real(text, field->max);
    }
    if (field->kind == ET_NAME) {
        et_put(text, ", 'values': ");
        add_names(text, field->names);
    }
    if (param)
        et_put(text, ", 'required': %s", field->required ? "true" : "false");
    if (field->same_as)
        et_put(text, ", 'same_as': '%s'", field->same_as);
    if (!field->required && !field->same_as) {
        et_put(text, ", 'default': ");
        et_put_value(text, field, field->fallback);
    }
    if (field->model_key)
        et_put(text, ", 'model_key': '%s', 'tp': '%s'", field->model_key, et_parallel_name(field->parallel));
    et_put(text, ", 'doc': ");
    et_put_string(text, field->doc);
    et_text_add(text, "}");
}

static void add_fields(struct et_text *text, const struct et_field *fields, bool params)
{
    et_text_add(text, "[");
    for (int i = 0; fields[i].name; i++) {
        et_text_add(text, "%s", i ? ", " : "");
        add_field(text, &fields[i], params);
    }
    et_text_add(text, "]");
}

static void add_tensor(struct et_text *text, const struct et_tensor_spec *tensor)
{
    const char *comma = "";
    et_put(text, "{'name': '%s', 'role': '%s', 'dtypes': [", tensor->name,
           tensor->role == ET_INPUT ? "input" : "output");
    for (int i = 0; i < ET_DTYPES; i++)
        if (tensor->dtypes & 1U << i) {
            et_put(text, "%s'%s'", comma, et_format((enum et_dtype)i)->name);
            comma = ", ";
        }
    et_put(text, "], '%s': '%s', 'dims': [", tensor->same_as ? "same_as" : "dtype",
           tensor->same_as ? tensor->same_as : et_format(tensor->dtype)->name);
    for (int k = 0; k < tensor->rank; k++)
        et_put(text, "%s'%s'", k ? ", " : "", tensor->dim[k]);
    et_put(text, "], 'doc': ");
    et_put_string(text, tensor->doc);
    et_text_add(text, "}");
}

static void add_keys(struct et_text *text, const char *name, const struct et_key *keys)
{
    et_put(text, ", '%s': [", name);
    for (int i = 0; keys[i].name; i++) {
        et_put(text, "%s{'key': '%s', 'doc': ", i ? ", " : "", keys[i].name);
        et_put_string(text, keys[i].doc);
        et_text_add(text, "}");
    }
    et_text_add(text, "]");
}

/* What sort of data a fill makes: it decides which checks apply. */
static const char *family(enum et_fill_kind kind)
{
    return et_fill_is_exact(kind) ? "exact" : et_fill_is_iid(kind) ? "independent" : "structured";
}

static void add_fills(struct et_text *text, const struct et_operator *op)
{
    const char *comma = "";
    et_put(text, ", 'fills': [");
    for (enum et_fill_kind kind = 0; kind < ET_FILLS; kind++) {
        const bool constant = kind == ET_FILL_CONSTANT;
        if (!has_fill(op, kind))
            continue;
        et_put(text, "%s{'name': '%s', 'family': '%s', 'of_runs': %s, 'options': [%s]}", comma,
               et_fill_name(kind), family(kind), constant ? "false" : "true",
               constant ? "\"value\", \"seed\"" : "\"seed\"");
        comma = ", ";
    }
    for (const struct et_own_fill *own = op->own_fills; own && own->name; own++)
        et_put(text,
               "%s{'name': '%s', 'family': 'structured', 'of_runs': false, 'options': ['%s', 'seed'], 'of': "
               "'%s'}",
               comma, own->name, own->option.name, op->tensors[own->tensor].name);
    et_text_add(text, "]");
}

static void add_variants(struct et_text *text, const struct et_operator *op, const struct et_port *port)
{
    const char *comma = "";
    et_put(text, ", 'variants': [");
    for (const struct et_variant *const *v = port->variants; *v; v++) {
        if (!of(*v, op))
            continue;
        et_put(text, "%s{'name': '%s', 'summary': ", comma, (*v)->name);
        et_put_string(text, (*v)->summary);
        et_put(text, ", 'may_be_left_out': %s, 'knobs': ", (*v)->left_out ? "true" : "false");
        add_fields(text, (*v)->knobs, false);
        et_text_add(text, "}");
        comma = ", ";
    }
    et_text_add(text, "]");
}

static const char *const check_values[] = {[ET_CHECK_LIMIT] = "limit",
                                           [ET_CHECK_SWITCH] = "switch",
                                           [ET_CHECK_COUNT] = "count",
                                           [ET_CHECK_PAIR] = "atol and rtol"};

static void add_checks(struct et_text *text)
{
    et_put(text, ", 'checks': [");
    for (const struct et_check_key *key = et_check_keys; key->name; key++) {
        et_put(text, "%s{'name': '%s', 'takes': '%s', 'default': ", key == et_check_keys ? "" : ", ",
               key->name, check_values[key->kind]);
        et_put_check_default(text, key);
        et_put(text, ", 'doc': ");
        et_put_string(text, key->doc);
        et_text_add(text, "}");
    }
    et_text_add(text, "]");
}

static void add_operator(struct et_text *text, const struct et_operator *op, const struct et_port *port)
{
    et_put(text, "{'operator': '%s', 'summary': ", op->name);
    et_put_string(text, op->summary);
    et_put(text, ", 'params': ");
    add_fields(text, op->params, true);
    et_put(text, ", 'tensors': [");
    for (int t = 0; op->tensors[t].name; t++) {
        et_text_add(text, "%s", t ? ", " : "");
        add_tensor(text, &op->tensors[t]);
    }
    et_text_add(text, "]");
    add_keys(text, "layout", et_layout_keys);
    add_keys(text, "data", et_data_keys);
    add_keys(text, "expect", et_expect_keys);
    add_fills(text, op);
    add_variants(text, op, port);
    add_checks(text);
    et_put(text, ", 'lies': [");
    for (int i = 0; op->lies[i].name; i++)
        et_put(text, "%s{'name': '%s', 'whole': %s}", i ? ", " : "", op->lies[i].name,
               op->lies[i].whole ? "true" : "false");
    et_text_add(text, "]}");
}

enum et_status et_describe_json(const struct et_operator *op, const struct et_port *port,
                                struct et_text *text, struct et_error *error)
{
    struct et_text compact = {0};
    add_operator(&compact, op, port);
    if (!compact.failed)
        et_put_lines(text, compact.data, COLUMNS);
    const bool failed = compact.failed || text->failed;
    et_text_free(&compact);
    return failed ? et_fail(error, ET_FAILED, "out of memory for the description of %s", op->name) : ET_OK;
}

/* ---- Text ---- */

static void say_range(struct et_text *text, const struct et_field *field)
{
    if (field->kind == ET_NAME)
        for (int i = 0; field->names[i]; i++)
            et_text_add(text, "%s%s", i ? " | " : "", field->names[i]);
    if (field->kind == ET_BOOL)
        et_text_add(text, "true | false");
    if (field->kind == ET_INT || field->kind == ET_REAL) {
        et_text_add(text, "%s ", et_kind_name(field->kind));
        et_json_add_number(text, field->min);
        et_text_add(text, "..");
        if (field->max < (double)ET_EXACT)
            et_json_add_number(text, field->max);
    }
}

static void say_field(struct et_text *text, const struct et_field *field, int indent)
{
    et_text_add(text, "%*s%-14s ", indent, "", field->name);
    say_range(text, field);
    if (field->required)
        et_text_add(text, ", required");
    else if (field->same_as)
        et_text_add(text, ", default: %s", field->same_as);
    else {
        et_text_add(text, ", default ");
        et_put_value(text, field, field->fallback);
    }
    if (field->model_key)
        et_text_add(text, ", from models: %s, %s under tp", field->model_key,
                    et_parallel_name(field->parallel));
    et_text_add(text, "\n");
    et_put_wrapped(text, field->doc, indent + 15, WIDTH);
}

static void say_tensor(struct et_text *text, const struct et_tensor_spec *tensor)
{
    et_text_add(text, "  %-14s %s [", tensor->name, tensor->role == ET_INPUT ? "input" : "output");
    for (int k = 0; k < tensor->rank; k++)
        et_text_add(text, "%s%s", k ? ", " : "", tensor->dim[k]);
    et_text_add(text, "],");
    for (int i = 0; i < ET_DTYPES; i++)
        if (tensor->dtypes & 1U << i)
            et_text_add(text, " %s", et_format((enum et_dtype)i)->name);
    et_text_add(text, ", default%s %s\n", tensor->same_as ? ":" : "",
                tensor->same_as ? tensor->same_as : et_format(tensor->dtype)->name);
    et_put_wrapped(text, tensor->doc, 17, WIDTH);
}

static void say_keys(struct et_text *text, const char *title, const struct et_key *keys)
{
    et_text_add(text, "\n%s\n", title);
    for (; keys->name; keys++)
        et_text_add(text, "  %-14s %s\n", keys->name, keys->doc);
}

static void say_fills(struct et_text *text, const struct et_operator *op)
{
    et_text_add(text, "\nfills\n");
    for (enum et_fill_kind kind = 0; kind < ET_FILLS; kind++)
        if (has_fill(op, kind))
            et_text_add(text, "  %-14s %s%s\n", et_fill_name(kind), family(kind),
                        kind == ET_FILL_CONSTANT ? "; of one tensor, with its value" : "");
    for (const struct et_own_fill *own = op->own_fills; own && own->name; own++)
        et_text_add(text, "  %-14s structured; of %s, with its %s: %s\n", own->name,
                    op->tensors[own->tensor].name, own->option.name, own->option.doc);
}

static void say_variants(struct et_text *text, const struct et_operator *op, const struct et_port *port)
{
    et_text_add(text, "\nvariants (port %s)\n", port->name);
    for (const struct et_variant *const *v = port->variants; *v; v++) {
        if (!of(*v, op))
            continue;
        et_text_add(text, "  %-14s %s\n", (*v)->name, (*v)->summary);
        for (const struct et_field *knob = (*v)->knobs; knob->name; knob++)
            say_field(text, knob, 4);
    }
}

static void say_checks(struct et_text *text)
{
    et_text_add(text, "\nchecks\n");
    for (const struct et_check_key *key = et_check_keys; key->name; key++) {
        et_text_add(text, "  %-14s %s, default ", key->name, check_values[key->kind]);
        et_put_check_default(text, key);
        et_text_add(text, ": %s\n", key->doc);
    }
}

enum et_status et_describe_text(const struct et_operator *op, const struct et_port *port,
                                struct et_text *text, struct et_error *error)
{
    et_text_add(text, "%s - %s\n\nparams\n", op->name, op->summary);
    for (const struct et_field *param = op->params; param->name; param++)
        say_field(text, param, 2);
    et_text_add(text, "\ntensors\n");
    for (const struct et_tensor_spec *tensor = op->tensors; tensor->name; tensor++)
        say_tensor(text, tensor);
    say_keys(text, "layout of a tensor", et_layout_keys);
    say_keys(text, "data of an input", et_data_keys);
    say_keys(text, "expected of an output", et_expect_keys);
    say_fills(text, op);
    say_variants(text, op, port);
    say_checks(text);
    et_text_add(text, "\nwrong answers that checks are measured by\n");
    for (const struct et_lie *lie = op->lies; lie->name; lie++)
        et_text_add(text, "  %-14s %s\n", lie->name, lie->whole ? "everywhere" : "in one place");
    return text->failed ? et_fail(error, ET_FAILED, "out of memory for the description of %s", op->name)
                        : ET_OK;
}
