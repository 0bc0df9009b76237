#include "offer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../ocl/memory.h"

enum { VARIANTS_MOST = 256 };

/* Whether it fits any shape, and how it computes, the program itself says when it is asked. */
static enum et_status leave_open(const struct et_problem *problem, const struct et_device *device,
                                 const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)problem, (void)device, (void)asked, (void)why;
    *claim = (struct et_claim){.scratch_bytes = 0};
    return ET_OK;
}

bool et_claim_is_open(const struct et_claim *claim)
{
    return claim->order.name[0] == '\0';
}

/* A name that may stand in an id, on a command line and in a case file. */
static bool is_name(const char *text, char name[ET_OFFER_NAME])
{
    static const char fit[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    const size_t n = strlen(text);
    if (n == 0 || n >= ET_OFFER_NAME || strspn(text, fit) != n)
        return false;
    memcpy(name, text, n + 1);
    return true;
}

static enum et_status read_name(const struct et_json *json, const cJSON *node, const char *what,
                                char name[ET_OFFER_NAME], struct et_error *error)
{
    if (is_name(node->string, name))
        return ET_OK;
    return et_json_fail_key(json, node, error, "%s has 1 to %d letters, digits, _ . and -", what,
                            ET_OFFER_NAME - 1);
}

static enum et_status read_values(const struct et_json *json, const cJSON *node,
                                  struct et_offered_names *names, struct et_field *knob,
                                  struct et_error *error)
{
    int n = 0;
    for (const cJSON *value = node->child; value; value = value->next, n++) {
        if (n == ET_OFFER_VALUES)
            return et_json_fail(json, value, error, "knob %s has more than %d names", names->knob,
                                ET_OFFER_VALUES);
        if (!cJSON_IsString(value) || !is_name(value->valuestring, names->value[n]))
            return et_json_fail(json, value, error,
                                "a name of knob %s has 1 to %d letters, digits, _ . and -", names->knob,
                                ET_OFFER_NAME - 1);
        names->values[n] = names->value[n];
        for (int i = 0; i < n; i++)
            if (strcmp(names->value[i], names->value[n]) == 0)
                return et_json_fail(json, value, error, "knob %s has the name %s twice", names->knob,
                                    names->value[n]);
    }
    *knob = (struct et_field){.name = names->knob, .kind = ET_NAME, .names = names->values};
    return ET_OK;
}

static enum et_status read_bounds(const struct et_json *json, const cJSON *node, const char *name,
                                  struct et_field *knob, struct et_error *error)
{
    int64_t min = 0, max = 0;
    if (cJSON_GetArraySize(node) != 2)
        return et_json_fail(json, node, error, "knob %s has %d bounds, not 2", name,
                            cJSON_GetArraySize(node));
    enum et_status status = et_json_int(json, node->child, name, -ET_EXACT, ET_EXACT, &min, error);
    if (status == ET_OK)
        status = et_json_int(json, node->child->next, name, min, ET_EXACT, &max, error);
    *knob = (struct et_field){.name = name, .kind = ET_INT, .min = (double)min, .max = (double)max};
    return status;
}

static enum et_status read_knob(const struct et_json *json, const cJSON *node, struct et_offered_names *names,
                                struct et_field *knob, struct et_error *error)
{
    enum et_status status = read_name(json, node, "a knob", names->knob, error);
    if (status == ET_OK)
        status = et_json_array(json, node, names->knob, error);
    if (status != ET_OK)
        return status;
    return cJSON_IsString(node->child) ? read_values(json, node, names, knob, error)
                                       : read_bounds(json, node, names->knob, knob, error);
}

static enum et_status read_variant(const struct et_json *json, const cJSON *node, const char *op,
                                   struct et_offered *offered, struct et_error *error)
{
    enum et_status status = read_name(json, node, "a variant", offered->name, error);
    if (status == ET_OK)
        status = et_json_object(json, node, offered->name, error);
    if (status == ET_OK && cJSON_GetArraySize(node) > ET_PARAMS)
        return et_json_fail(json, node, error, "%s has %d knobs, at most %d are allowed", offered->name,
                            cJSON_GetArraySize(node), ET_PARAMS);
    const cJSON *knob = status == ET_OK ? node->child : NULL;
    for (int i = 0; knob && status == ET_OK; i++, knob = knob->next)
        status = read_knob(json, knob, &offered->names[i], &offered->knobs[i], error);
    offered->variant =
        (struct et_variant){.op = op, .name = offered->name, .knobs = offered->knobs, .resolve = leave_open};
    return status;
}

/* Checks the two outer levels, and counts. */
static enum et_status count_variants(const struct et_json *json, const cJSON *node, int *count,
                                     struct et_error *error)
{
    enum et_status status = et_json_object(json, node, "variants", error);
    *count = 0;
    for (const cJSON *op = status == ET_OK ? node->child : NULL; op && status == ET_OK; op = op->next) {
        if (!et_operator_named(op->string))
            return et_json_fail_key(json, op, error, "there is no operator %s", op->string);
        status = et_json_object(json, op, op->string, error);
        *count += cJSON_GetArraySize(op);
    }
    if (status == ET_OK && (*count == 0 || *count > VARIANTS_MOST))
        return et_json_fail(json, node, error, "a port has 1 to %d variants, not %d", VARIANTS_MOST, *count);
    return status;
}

enum et_status et_offer_read(const struct et_json *json, const cJSON *node, const char *port,
                             struct et_offer *offer, struct et_error *error)
{
    int count = 0, i = 0;
    enum et_status status = count_variants(json, node, &count, error);
    if (status != ET_OK)
        return status;
    offer->at = et_alloc((size_t)count, sizeof *offer->at, error);
    offer->list = et_alloc((size_t)count + 1, sizeof *offer->list, error);
    if (!offer->at || !offer->list)
        status = ET_FAILED;
    for (const cJSON *op = node->child; op && status == ET_OK; op = op->next)
        for (const cJSON *v = op->child; v && status == ET_OK; v = v->next, i++) {
            status = read_variant(json, v, et_operator_named(op->string)->name, &offer->at[i], error);
            offer->list[i] = &offer->at[i].variant;
        }
    snprintf(offer->name, sizeof offer->name, "%s", port);
    offer->port = (struct et_port){.name = offer->name, .variants = offer->list};
    if (status != ET_OK)
        et_offer_free(offer);
    return status;
}

static void add_knobs(struct et_text *text, const struct et_field *knobs)
{
    for (int i = 0; knobs[i].name; i++) {
        et_text_add(text, "%s", i ? ", " : "");
        et_json_add_string(text, knobs[i].name);
        et_text_add(text, ": [");
        for (int k = 0; knobs[i].kind == ET_NAME && knobs[i].names[k]; k++) {
            et_text_add(text, "%s", k ? ", " : "");
            et_json_add_string(text, knobs[i].names[k]);
        }
        if (knobs[i].kind != ET_NAME)
            et_text_add(text, "%" PRId64 ", %" PRId64, knobs[i].kind == ET_INT ? (int64_t)knobs[i].min : 0,
                        knobs[i].kind == ET_INT ? (int64_t)knobs[i].max : 1);
        et_text_add(text, "]");
    }
}

void et_offer_add(struct et_text *text, const struct et_port *port)
{
    et_text_add(text, "{");
    const char *op_comma = "";
    for (int i = 0; et_operators[i]; i++) {
        const char *comma = "";
        for (int k = 0; port->variants[k]; k++) {
            const struct et_variant *variant = port->variants[k];
            if (strcmp(variant->op, et_operators[i]->name) != 0)
                continue;
            if (!*comma)
                et_text_add(text, "%s\"%s\": {", op_comma, variant->op);
            et_text_add(text, "%s", comma);
            et_json_add_string(text, variant->name);
            et_text_add(text, ": {");
            add_knobs(text, variant->knobs);
            et_text_add(text, "}");
            comma = op_comma = ", ";
        }
        et_text_add(text, "%s", *comma ? "}" : "");
    }
    et_text_add(text, "}");
}

void et_offer_free(struct et_offer *offer)
{
    et_free(offer->at);
    et_free(offer->list);
    *offer = (struct et_offer){.at = NULL};
}
