/*
 * JSON Schema of case files. It says what the reader (case_read.c and its neighbours) checks before a case
 * has a shape, as far as a schema can: not that a model exists, that a list is as long as its tensor or that
 * names differ. tests/schema.py holds the two to each other.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "case_read.h"
#include "describe.h"
#include "write.h"

#define WORD "[A-Za-z0-9][A-Za-z0-9._-]*"

enum { COLUMNS = 118 };

/* ---- The format ---- */

/* Types that are the same for every operator. */
static const struct et_key definitions[] = {
    {"word", "'type': 'string', 'pattern': '^" WORD "$'", "stands in ids: letters, digits and ._- only"},
    {"real",
     "'type': ['number', 'string'], "
     "'pattern': '^(nan|-?(inf|0x([0-9a-fA-F]+\\\\.?[0-9a-fA-F]*|\\\\.[0-9a-fA-F]+)([pP][+-]?[0-9]+)?))$'",
     "a number, 'inf', '-inf', 'nan', or a hex float such as '0x1.8p-3'"},
    {"count", "'type': 'integer', 'minimum': 0, 'maximum': 9007199254740991", "0 to 2^53 - 1"},
    {"note", "'type': 'string'", "free text"},
    {"origin",
     "'type': 'array', 'minItems': 1, 'items': {'type': 'string', 'pattern': "
     "'^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+#[0-9]+$'}",
     "where the case comes from: owner/repo#number"},
    {"tier", "'enum': ['smoke', 'default', 'full'], 'default': 'default'",
     "the narrowest tier that runs the case"},
    {"bench", "'type': 'boolean', 'default': false", "a mark for measurements; changes no run"},
    {"model", "'type': 'string'", "a model of models.json: gives params"},
    {"layer", "'type': 'string'", "a layer of the model: gives more params"},
    {"tp", "'type': 'integer', 'minimum': 1, 'maximum': 1048576",
     "tensor parallelism: one rank's share of the model"},
    {"seed", "'$ref': '#/$defs/count', 'default': 0", "key of the random data"},
    {"poison", "'enum': ['nan', 'large'], 'default': 'nan'",
     "what elements hold that nothing may read: NaN, or 1e30"},
    {"rows",
     "'anyOf': [{'const': 'all'}, {'type': 'integer', 'minimum': 1, 'maximum': 9007199254740991}], "
     "'default': 'all'",
     "units that oracle and replay look at; edges are always among them"},
    {"values", "'type': 'array', 'minItems': 1, 'items': {'$ref': '#/$defs/real'}",
     "a value for each element, or for leading dimensions, repeated along the others"},
    {NULL, NULL, NULL},
};

/* Keys of a case that `defaults` has too. */
static const struct et_key case_keys[] = {
    {"origin", "'$ref': '#/$defs/origin'", NULL},
    {"tier", "'$ref': '#/$defs/tier'", NULL},
    {"bench", "'$ref': '#/$defs/bench'", NULL},
    {"model", "'$ref': '#/$defs/model'", NULL},
    {"tp", "'$ref': '#/$defs/tp'", NULL},
    {"layer", "'$ref': '#/$defs/layer'", NULL},
    {"params", "'$ref': '@params'", "values of the operator's params"},
    {"sweep", "'$ref': '@sweep'", "lists; the cases are their Cartesian product, last axis fastest"},
    {"dtypes", "'$ref': '@dtypes'", "storage types"},
    {"layout", "'$ref': '@layout'", "padding, order and offset in memory; packed by default"},
    {"data", "'$ref': '@data'", "where the elements of an input come from; the run's fill by default"},
    {"fills", "'$ref': '@fills'", "one run each"},
    {"seed", "'$ref': '#/$defs/seed'", NULL},
    {"poison", "'$ref': '#/$defs/poison'", NULL},
    {"variants", "'$ref': '@variants'", "what runs; by default every variant that takes the shape"},
    {"rows", "'$ref': '#/$defs/rows'", NULL},
    {"limit", "'$ref': '@limit'", "caps of params in a tier and those it contains"},
    {"checks", "'$ref': '#/$defs/checks'",
     "limits, counts and switches of checks; the others stay as they are"},
    {"twins", "'$ref': '@twins'", "other params or poison that must give the same bytes"},
    {NULL, NULL, NULL},
};

/* Those that it has not. */
static const struct et_key own_keys[] = {
    {"name", "'$ref': '#/$defs/word'", "the case's part of its id"},
    {"note", "'$ref': '#/$defs/note'", NULL},
    {"shapes", "'$ref': '@shapes'", "params objects, a case each"},
    {"steps", "'$ref': '@steps'", "problems one after the other under the same buffers"},
    {"expect", "'$ref': '@expect'", "outputs that the case writes down, or the sentence that refuses it"},
    {NULL, NULL, NULL},
};

static const struct et_key step_keys[] = {
    {"params", "'$ref': '@params'", "go on from the previous step"},
    {"data", "'$ref': '@data'", "go on from the previous step"},
    {"expect", "'$ref': '@outputs'", "of this step alone"},
    {NULL, NULL, NULL},
};

static const struct et_key twin_keys[] = {
    {"params", "'$ref': '@params'", "edits"},
    {"poison", "'$ref': '#/$defs/poison'", NULL},
    {NULL, NULL, NULL},
};

/* What may be swept besides params. */
static const struct et_key settings[] = {
    {"model", "'$ref': '#/$defs/model'", NULL}, {"layer", "'$ref': '#/$defs/layer'", NULL},
    {"tp", "'$ref': '#/$defs/tp'", NULL},       {"dtypes", "'$ref': '@dtypes'", NULL},
    {"layout", "'$ref': '@layout'", NULL},      {"poison", "'$ref': '#/$defs/poison'", NULL},
    {"seed", "'$ref': '#/$defs/seed'", NULL},   {NULL, NULL, NULL},
};

/* The types of pad and order depend on the tensor's dimensions, and only inputs share memory. */
const struct et_key et_layout_keys[] = {
    {"pad", NULL, "{dimension: [before, after]}: elements of that dimension around the data"},
    {"order", NULL, "all dimensions, outermost in memory first"},
    {"shift", "'$ref': '#/$defs/count', 'default': 0", "elements before everything else"},
    {"view_of", NULL, "no memory of its own: its elements are the first ones of that input"},
    {"buffer", NULL, "inputs that name the same one lie in it, one behind the other"},
    {NULL, NULL, NULL},
};

/* The type of fill depends on the operator. */
const struct et_key et_data_keys[] = {
    {"constant", "'$ref': '#/$defs/real'", "every element"},
    {"values", "'$ref': '#/$defs/values'", "a list of them"},
    {"fill", NULL, "a fill for this tensor alone"},
    {"value", "'$ref': '#/$defs/real'", "of the fill constant, and of no other"},
    {"seed", "'$ref': '#/$defs/count'", "of a fill; by default the case's"},
    {"file", "'type': 'string'", "a safetensors file, relative to the case file's folder"},
    {"tensor", "'type': 'string'", "its name in the file"},
    {NULL, NULL, NULL},
};

const struct et_key et_expect_keys[] = {
    {"constant", "'$ref': '#/$defs/real'", "every element"},
    {"values", "'$ref': '#/$defs/values'", "a list of them"},
    {"atol",
     "'type': ['number', 'string'], 'minimum': 0, "
     "'pattern': '^0x([0-9a-fA-F]+\\\\.?[0-9a-fA-F]*|\\\\.[0-9a-fA-F]+)([pP][+-]?[0-9]+)?$'",
     "absolute tolerance; without it the bytes of the value rounded once"},
    {NULL, NULL, NULL},
};

/* ---- Writing it ---- */

struct schema {
    struct et_text *text;
    const struct et_operator *op;
    const struct et_port *port;
    const char *comma; /* before the next member: "" or ", " */
};

static void next(struct schema *s)
{
    et_text_add(s->text, "%s", s->comma);
    s->comma = ", ";
}

/* A type: ' is ", @ the path of the operator's definitions. */
static void put_type(struct schema *s, const char *type)
{
    for (; *type; type++)
        if (*type == '@')
            et_text_add(s->text, "#/$defs/%s.", s->op->name);
        else
            et_text_bytes(s->text, *type == '\'' ? "\"" : type, 1);
}

/* "name": { ... of which end_member writes the end. */
static void begin(struct schema *s, const char *name)
{
    next(s);
    et_put_string(s->text, name);
    et_text_add(s->text, ": {");
    s->comma = "";
}

static void end(struct schema *s)
{
    et_text_add(s->text, "}");
    s->comma = ", ";
}

static void put_doc(struct schema *s, const char *doc)
{
    if (!doc)
        return;
    next(s);
    et_put(s->text, "'description': ");
    et_put_string(s->text, doc);
}

static void put_keys(struct schema *s, const struct et_key *keys)
{
    for (; keys->name; keys++) {
        if (!keys->type)
            continue;
        begin(s, keys->name);
        put_doc(s, keys->doc);
        next(s);
        put_type(s, keys->type);
        end(s);
    }
}

static void begin_properties(struct schema *s)
{
    next(s);
    et_put(s->text, "'type': 'object', ");
    s->comma = "";
    begin(s, "properties");
}

static void end_properties(struct schema *s)
{
    end(s);
    next(s);
    et_put(s->text, "'additionalProperties': false");
}

/* The definition NAME of the operator, whose type is the text of a list. */
static void begin_definition(struct schema *s, const char *name)
{
    char full[120];
    snprintf(full, sizeof full, "%s.%s", s->op->name, name);
    begin(s, full);
}

static void put_definition(struct schema *s, const char *name, const char *type)
{
    begin_definition(s, name);
    next(s);
    put_type(s, type);
    end(s);
}

/* A definition that is an object of these keys and no others. */
static void put_object(struct schema *s, const char *name, const struct et_key *keys, const char *rest)
{
    begin_definition(s, name);
    begin_properties(s);
    put_keys(s, keys);
    end_properties(s);
    if (rest) {
        next(s);
        put_type(s, rest);
    }
    end(s);
}

/* ---- Fields ---- */

static bool is_number(const struct et_field *field)
{
    return field->kind == ET_INT || field->kind == ET_REAL;
}

static void put_names(struct schema *s, const struct et_field *field)
{
    et_put(s->text, "'enum': [");
    for (int i = 0; field->names[i]; i++) {
        et_text_add(s->text, "%s", i ? ", " : "");
        et_put_string(s->text, field->names[i]);
    }
    et_text_add(s->text, "]");
}

/* Of the strings that a real may be: those that no range has. Hex floats are beyond a schema. */
static void put_no_strings(struct schema *s, const struct et_field *field)
{
    next(s);
    et_put(s->text, "'not': {'enum': ['nan'%s%s]}", isfinite(field->min) ? ", \"-inf\"" : "",
           isfinite(field->max) ? ", \"inf\"" : "");
}

/* What any value of the kind is, or (ranged) one within the field's own limits. */
static void put_limits(struct schema *s, const struct et_field *field, bool ranged)
{
    const double most = field->kind == ET_INT ? (double)ET_EXACT : (double)INFINITY;
    const double min = ranged && field->min > -most ? field->min : -most;
    const double max = ranged && field->max < most ? field->max : most;
    if (isfinite(min)) {
        next(s);
        et_put(s->text, "'minimum': ");
        et_json_add_number(s->text, min);
    }
    if (isfinite(max)) {
        next(s);
        et_put(s->text, "'maximum': ");
        et_json_add_number(s->text, max);
    }
    if (ranged && field->kind == ET_REAL)
        put_no_strings(s, field);
}

static void put_kind(struct schema *s, const struct et_field *field, bool ranged)
{
    static const char *const types[] = {[ET_INT] = "'type': 'integer'",
                                        [ET_REAL] = "'$ref': '#/$defs/real'",
                                        [ET_BOOL] = "'type': 'boolean'"};
    next(s);
    if (field->kind == ET_NAME)
        put_names(s, field);
    else
        put_type(s, types[field->kind]);
    if (is_number(field))
        put_limits(s, field, ranged);
}

static void put_default(struct schema *s, const struct et_field *field)
{
    if (field->required || field->same_as)
        return;
    next(s);
    et_put(s->text, "'default': ");
    et_put_value(s->text, field, field->fallback);
}

enum part { TYPES, ROW, SWEPT, CAPPED };

static void put_param(struct schema *s, const struct et_field *field, enum part part)
{
    begin(s, field->name);
    if (part != SWEPT)
        put_doc(s, field->doc);
    if (part == SWEPT) {
        next(s);
        et_put(s->text, "'type': 'array', 'minItems': 1, ");
        s->comma = "";
        begin(s, "items");
    }
    put_kind(s, field, false);
    if (part == TYPES)
        put_default(s, field);
    if (part == SWEPT)
        end(s);
    end(s);
}

static void put_params(struct schema *s, enum part part)
{
    for (const struct et_field *field = s->op->params; field->name; field++)
        if (part != CAPPED || is_number(field))
            put_param(s, field, part);
}

/* Ranges hold unless the case expects a refusal: then they are the operator's to check. */
static void put_ranges(struct schema *s)
{
    begin_definition(s, "ranges");
    begin(s, "properties");
    for (const struct et_field *field = s->op->params; field->name; field++) {
        begin(s, field->name);
        if (is_number(field))
            put_limits(s, field, true);
        end(s);
    }
    end(s);
    end(s);
    begin_definition(s, "swept_ranges");
    begin(s, "properties");
    for (const struct et_field *field = s->op->params; field->name; field++) {
        begin(s, field->name);
        begin(s, "items");
        if (is_number(field))
            put_limits(s, field, true);
        end(s);
        end(s);
    }
    end(s);
    end(s);
}

static void put_sweep(struct schema *s)
{
    begin_definition(s, "sweep");
    begin_properties(s);
    put_params(s, SWEPT);
    for (const struct et_key *key = settings; key->name; key++) {
        begin(s, key->name);
        next(s);
        et_put(s->text, "'type': 'array', 'minItems': 1, 'items': {");
        put_type(s, key->type);
        et_text_add(s->text, "}");
        end(s);
    }
    end_properties(s);
    end(s);
}

static void put_param_definitions(struct schema *s)
{
    begin_definition(s, "params");
    begin_properties(s);
    put_params(s, TYPES);
    end_properties(s);
    end(s);
    begin_definition(s, "caps");
    begin_properties(s);
    put_params(s, CAPPED);
    end_properties(s);
    end(s);
    begin_definition(s, "shapes");
    next(s);
    et_put(s->text, "'type': 'array', 'minItems': 1, ");
    s->comma = "";
    begin(s, "items");
    begin_properties(s);
    begin(s, "label");
    next(s);
    et_put(s->text, "'$ref': '#/$defs/word', 'description': 'names the row in ids'");
    end(s);
    put_params(s, ROW);
    end_properties(s);
    end(s);
    end(s);
    put_ranges(s);
    put_sweep(s);
}

/* ---- Tensors ---- */

static void put_dtypes(struct schema *s)
{
    begin_definition(s, "dtypes");
    begin_properties(s);
    for (const struct et_tensor_spec *tensor = s->op->tensors; tensor->name; tensor++) {
        begin(s, tensor->name);
        put_doc(s, tensor->doc);
        next(s);
        et_put(s->text, "'enum': [");
        const char *comma = "";
        for (int i = 0; i < ET_DTYPES; i++)
            if (tensor->dtypes & 1U << i) {
                et_put(s->text, "%s'%s'", comma, et_format((enum et_dtype)i)->name);
                comma = ", ";
            }
        et_put(s->text, "], 'default': '%s'", et_format(tensor->dtype)->name);
        end(s);
    }
    end_properties(s);
    end(s);
}

static const char *doc_of(const struct et_key *keys, const char *name)
{
    while (strcmp(keys->name, name) != 0)
        keys++;
    return keys->doc;
}

static void put_pad(struct schema *s, const struct et_tensor_spec *tensor)
{
    begin(s, "pad");
    put_doc(s, doc_of(et_layout_keys, "pad"));
    begin_properties(s);
    for (int k = 0; k < tensor->rank; k++) {
        begin(s, tensor->dim[k]);
        next(s);
        et_put(s->text, "'type': 'array', 'minItems': 2, 'maxItems': 2, 'items': {'$ref': '#/$defs/count'}");
        end(s);
    }
    end_properties(s);
    end(s);
}

static void put_order(struct schema *s, const struct et_tensor_spec *tensor)
{
    begin(s, "order");
    put_doc(s, doc_of(et_layout_keys, "order"));
    next(s);
    et_put(s->text,
           "'type': 'array', 'minItems': %d, 'maxItems': %d, 'uniqueItems': true, 'items': {'enum': [",
           tensor->rank, tensor->rank);
    for (int k = 0; k < tensor->rank; k++)
        et_put(s->text, "%s'%s'", k ? ", " : "", tensor->dim[k]);
    et_text_add(s->text, "]}");
    end(s);
}

/* Of an input. */
static void put_sharing(struct schema *s, const struct et_tensor_spec *tensor)
{
    begin(s, "view_of");
    put_doc(s, doc_of(et_layout_keys, "view_of"));
    next(s);
    et_put(s->text, "'enum': [");
    const char *comma = "";
    for (const struct et_tensor_spec *other = s->op->tensors; other->name; other++)
        if (other != tensor && other->role == ET_INPUT) {
            et_put(s->text, "%s'%s'", comma, other->name);
            comma = ", ";
        }
    et_text_add(s->text, "]");
    end(s);
    begin(s, "buffer");
    put_doc(s, doc_of(et_layout_keys, "buffer"));
    next(s);
    et_put(s->text, "'type': 'string'");
    end(s);
}

static void put_layout(struct schema *s)
{
    begin_definition(s, "layout");
    begin_properties(s);
    for (const struct et_tensor_spec *tensor = s->op->tensors; tensor->name; tensor++) {
        begin(s, tensor->name);
        begin_properties(s);
        put_pad(s, tensor);
        put_order(s, tensor);
        put_keys(s, et_layout_keys);
        if (tensor->role == ET_INPUT)
            put_sharing(s, tensor);
        end_properties(s);
        if (tensor->role == ET_INPUT) {
            next(s);
            et_put(s->text, "'if': {'required': ['view_of']}, 'then': {'maxProperties': 1}");
        }
        end(s);
    }
    end_properties(s);
    end(s);
}

static bool has_fill(const struct et_operator *op, enum et_fill_kind kind)
{
    return !et_fill_is_exact(kind) || op->exact_fills & 1U << kind;
}

/* Of a run, or of a tensor: constant, which takes a value, is for the latter only. */
static void put_fill_names(struct schema *s, bool constant)
{
    const char *comma = "";
    et_put(s->text, "'enum': [");
    for (int i = 0; i < ET_FILLS; i++)
        if (has_fill(s->op, (enum et_fill_kind)i) && (constant || i != ET_FILL_CONSTANT)) {
            et_put(s->text, "%s'%s'", comma, et_fill_name((enum et_fill_kind)i));
            comma = ", ";
        }
    for (const struct et_own_fill *own = s->op->own_fills; constant && own && own->name; own++)
        et_put(s->text, ", '%s'", own->name);
    et_text_add(s->text, "]");
}

/* The options of the operator's own fills. */
static void put_own_options(struct schema *s)
{
    for (const struct et_own_fill *own = s->op->own_fills; own && own->name; own++) {
        begin(s, own->option.name);
        put_doc(s, own->option.doc);
        next(s);
        et_put(s->text, "'type': 'number', 'minimum': %.17g, 'maximum': %.17g, 'default': %.17g",
               own->option.min, own->option.max, own->option.fallback);
        end(s);
    }
}

/* An object with a member of the type for each tensor of the role. */
static void put_tensors(struct schema *s, enum et_role role, const char *type)
{
    for (const struct et_tensor_spec *tensor = s->op->tensors; tensor->name; tensor++) {
        if (tensor->role != role)
            continue;
        begin(s, tensor->name);
        put_doc(s, tensor->doc);
        next(s);
        put_type(s, type);
        end(s);
    }
}

static void put_data(struct schema *s)
{
    begin_definition(s, "fills");
    next(s);
    et_put(s->text, "'type': 'array', 'minItems': 1, 'uniqueItems': true, 'default': ['normal'], 'items': {");
    put_fill_names(s, false);
    et_text_add(s->text, "}");
    end(s);

    begin_definition(s, "source");
    begin_properties(s);
    begin(s, "fill");
    put_doc(s, doc_of(et_data_keys, "fill"));
    next(s);
    put_fill_names(s, true);
    end(s);
    put_keys(s, et_data_keys);
    put_own_options(s);
    end_properties(s);
    et_put(s->text,
           ", 'oneOf': [{'required': ['constant']}, {'required': ['values']}, {'required': ['fill']}, "
           "{'required': ['file']}], 'dependentRequired': {'value': ['fill'], 'seed': ['fill'], ");
    for (const struct et_own_fill *own = s->op->own_fills; own && own->name; own++)
        et_put(s->text, "'%s': ['fill'], ", own->option.name);
    et_put(s->text, "'tensor': ['file'], 'file': ['tensor']}, "
                    "'if': {'properties': {'fill': {'const': 'constant'}}, 'required': ['fill']}, "
                    "'then': {'required': ['value']}, 'else': {'properties': {'value': false}}");
    end(s);

    begin_definition(s, "data");
    begin_properties(s);
    put_tensors(s, ET_INPUT, "'$ref': '@source'");
    end_properties(s);
    end(s);
}

static void put_expect(struct schema *s)
{
    begin_definition(s, "outputs");
    begin_properties(s);
    put_tensors(s, ET_OUTPUT, "'$ref': '#/$defs/expected'");
    end_properties(s);
    end(s);
    begin_definition(s, "expect");
    begin_properties(s);
    begin(s, "refused");
    next(s);
    et_put(s->text, "'type': 'string', 'minLength': 1, "
                    "'description': 'operator, or each variant named, refuses with these very words'");
    end(s);
    put_tensors(s, ET_OUTPUT, "'$ref': '#/$defs/expected'");
    end_properties(s);
    et_put(s->text, ", 'if': {'required': ['refused']}, 'then': {'maxProperties': 1}");
    end(s);
}

/* ---- Variants ---- */

static void put_knob(struct schema *s, const struct et_field *knob)
{
    begin(s, knob->name);
    put_doc(s, knob->doc);
    put_default(s, knob);
    next(s);
    et_put(s->text, "'anyOf': [{");
    s->comma = "";
    put_kind(s, knob, true);
    et_put(s->text, "}, {'type': 'array', 'minItems': 1, ");
    s->comma = "";
    begin(s, "items");
    put_kind(s, knob, true);
    end(s);
    et_text_add(s->text, "}]");
    end(s);
}

static void put_variant(struct schema *s, const struct et_variant *variant)
{
    et_put(s->text, ", {");
    s->comma = "";
    put_doc(s, variant->summary);
    begin_properties(s);
    begin(s, "name");
    next(s);
    et_put(s->text, "'const': '%s'", variant->name);
    end(s);
    for (const struct et_field *knob = variant->knobs; knob->name; knob++)
        put_knob(s, knob);
    end_properties(s);
    et_put(s->text, ", 'required': ['name']}");
}

static void put_variants(struct schema *s)
{
    const char *comma = "";
    begin_definition(s, "variants");
    et_put(s->text, "'type': 'array', 'minItems': 1, 'uniqueItems': true, 'items': {'anyOf': [{'enum': [");
    for (const struct et_variant *const *v = s->port->variants; *v; v++)
        if (!strcmp((*v)->op, s->op->name)) {
            et_put(s->text, "%s'%s'", comma, (*v)->name);
            comma = ", ";
        }
    et_text_add(s->text, "]}");
    for (const struct et_variant *const *v = s->port->variants; *v; v++)
        if (!strcmp((*v)->op, s->op->name))
            put_variant(s, *v);
    et_text_add(s->text, "]}");
    end(s);
}

/* ---- A file ---- */

static const char in_range[] =
    "'if': {'properties': {'expect': {'required': ['refused']}}, 'required': ['expect']}, "
    "'else': {'properties': {'params': {'$ref': '@ranges'}, 'shapes': {'items': {'$ref': '@ranges'}}, "
    "'sweep': {'$ref': '@swept_ranges'}, 'steps': {'items': {'properties': {'params': {'$ref': "
    "'@ranges'}}}}, "
    "'twins': {'items': {'properties': {'params': {'$ref': '@ranges'}}}}, "
    "'limit': {'additionalProperties': {'$ref': '@ranges'}}}}";

static void put_operator(struct schema *s)
{
    put_object(s, "defaults", case_keys, NULL);
    begin_definition(s, "case");
    begin_properties(s);
    put_keys(s, own_keys);
    put_keys(s, case_keys);
    end_properties(s);
    et_put(s->text, ", 'required': ['name'], ");
    put_type(s, in_range);
    end(s);
    put_param_definitions(s);
    put_definition(
        s, "limit",
        "'type': 'object', 'properties': {'smoke': {'$ref': '@caps'}, 'default': {'$ref': '@caps'}, "
        "'full': {'$ref': '@caps'}}, 'additionalProperties': false");
    put_dtypes(s);
    put_layout(s);
    put_data(s);
    put_expect(s);
    put_variants(s);
    put_object(s, "step", step_keys, NULL);
    put_definition(s, "steps", "'type': 'array', 'minItems': 1, 'items': {'$ref': '@step'}");
    put_object(s, "twin", twin_keys, "'minProperties': 1");
    put_definition(s, "twins", "'type': 'array', 'minItems': 1, 'items': {'$ref': '@twin'}");
}

static void put_checks(struct schema *s)
{
    static const char *const types[] = {
        [ET_CHECK_LIMIT] = "'anyOf': [{'const': false}, {'type': 'number', 'minimum': 0}]",
        [ET_CHECK_SWITCH] = "'type': 'boolean'",
        [ET_CHECK_COUNT] = "'anyOf': [{'const': false}, {'type': 'integer', 'minimum': 1, 'maximum': 1000}]",
        [ET_CHECK_PAIR] = "'anyOf': [{'const': false}, {'type': 'object', "
                          "'properties': {'atol': {'type': 'number', 'minimum': 0}, "
                          "'rtol': {'type': 'number', 'minimum': 0}}, 'required': ['atol', 'rtol'], "
                          "'additionalProperties': false}]",
    };
    begin(s, "checks");
    begin_properties(s);
    for (const struct et_check_key *key = et_check_keys; key->name; key++) {
        begin(s, key->name);
        put_doc(s, key->doc);
        next(s);
        put_type(s, types[key->kind]);
        next(s);
        et_put(s->text, "'default': ");
        et_put_check_default(s->text, key);
        end(s);
    }
    end_properties(s);
    end(s);
}

static void put_expected(struct schema *s)
{
    begin(s, "expected");
    begin_properties(s);
    put_keys(s, et_expect_keys);
    end_properties(s);
    et_put(s->text, ", 'oneOf': [{'required': ['constant']}, {'required': ['values']}]");
    end(s);
}

static void put_file(struct schema *s, const struct et_operator *const *ops)
{
    et_put(s->text,
           "{'$schema': 'https://json-schema.org/draft/2020-12/schema', 'title': 'etalon case file', "
           "'description': 'docs/cases.md says what it means', 'type': 'object', 'properties': {"
           "'format': {'const': 1}, 'operator': {'enum': [");
    for (int i = 0; ops[i]; i++)
        et_put(s->text, "%s'%s'", i ? ", " : "", ops[i]->name);
    et_put(s->text, "]}, 'note': {'$ref': '#/$defs/note'}, "
                    "'defaults': {'description': 'keys of a case, for all cases of the file'}, "
                    "'cases': {'type': 'array', 'minItems': 1}}, "
                    "'required': ['format', 'operator', 'cases'], 'additionalProperties': false, 'allOf': [");
    for (int i = 0; ops[i]; i++)
        et_put(s->text,
               "%s{'if': {'properties': {'operator': {'const': '%s'}}, 'required': ['operator']}, "
               "'then': {'properties': {'defaults': {'$ref': '#/$defs/%s.defaults'}, "
               "'cases': {'items': {'$ref': '#/$defs/%s.case'}}}}}",
               i ? ", " : "", ops[i]->name, ops[i]->name, ops[i]->name);
    et_text_add(s->text, "], ");
    s->comma = "";
    begin(s, "$defs");
    put_keys(s, definitions);
    put_checks(s);
    put_expected(s);
    for (int i = 0; ops[i]; i++) {
        s->op = ops[i];
        put_operator(s);
    }
    end(s);
    et_text_add(s->text, "}");
}

enum et_status et_describe_schema(const struct et_operator *op, const struct et_port *port,
                                  struct et_text *text, struct et_error *error)
{
    const struct et_operator *const one[] = {op, NULL};
    struct et_text compact = {0};
    struct schema s = {.text = &compact, .port = port, .comma = ""};
    put_file(&s, op ? one : et_operators);
    if (!compact.failed)
        et_put_lines(text, compact.data, COLUMNS);
    const bool failed = compact.failed || text->failed;
    et_text_free(&compact);
    return failed ? et_fail(error, ET_FAILED, "out of memory for a schema") : ET_OK;
}
