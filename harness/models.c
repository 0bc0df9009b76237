#include "case_read.h"

#include <math.h>
#include <string.h>

struct et_models {
    struct et_json json;
};

/* The key of a layer that names which of its others tp divides: one matrix is split by rows, another by
 * columns. */
#define SPLIT "split"

/* What models.json may say, whether or not an operator of today asks for it. */
static const char *const known[] = {
    "q_heads", "kv_heads",      "head_dim",  "v_head_dim", "k_heads", "v_heads",      "k_head_dim",
    "causal",  "window",        "sinks",     "scale",      "softcap", "max_bias",     "eps",
    "scale_q", "softmax_scale", "page_size", "bias",       "group",   "out_features", "in_features",
};

static bool is_known(const char *key, struct et_nearest *nearest)
{
    *nearest = (struct et_nearest){.word = key};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        et_nearest_try(nearest, known[i]);
    for (int i = 0; et_operators[i]; i++)
        for (const struct et_field *field = et_operators[i]->params; field->name; field++)
            if (field->model_key)
                et_nearest_try(nearest, field->model_key);
    return nearest->distance == 0;
}

static enum et_status check_value(const struct et_json *json, const cJSON *member, const char *model,
                                  struct et_error *error)
{
    struct et_nearest nearest;
    if (!is_known(member->string, &nearest))
        return et_json_fail_key(json, member, error,
                                "model %s has \"%s\"; the nearest key there is is \"%s\"", model,
                                member->string, nearest.best);
    if (!cJSON_IsNumber(member) && !cJSON_IsBool(member) && !cJSON_IsString(member))
        return et_json_mismatch(json, member, et_say("%s of model %s", member->string, model).text,
                                "a number, a string, true or false", error);
    return ET_OK;
}

static enum et_status check_name(const struct et_json *json, const cJSON *member, const char *what,
                                 struct et_error *error)
{
    if (et_id_word(member->string))
        return et_json_object(json, member, member->string, error);
    return et_json_fail_key(json, member, error,
                            "%s \"%s\" cannot stand in an id: letters, digits and ._- only, "
                            "a letter or digit first",
                            what, member->string);
}

static enum et_status check_split(const struct et_json *json, const cJSON *member, const cJSON *layer,
                                  struct et_error *error)
{
    const char *key = NULL;
    if (et_json_string(json, member, SPLIT, &key, error) != ET_OK)
        return ET_INVALID;
    if (strcmp(key, SPLIT) != 0 && et_json_get(layer, key))
        return ET_OK;
    return et_json_fail(json, member, error, "layer %s is split by \"%s\", which it does not have",
                        layer->string, key);
}

static enum et_status check_layers(const struct et_json *json, const cJSON *layers, const char *model,
                                   struct et_error *error)
{
    enum et_status status = et_json_object(json, layers, "layers", error);
    for (const cJSON *layer = layers->child; status == ET_OK && layer; layer = layer->next) {
        status = check_name(json, layer, "layer", error);
        for (const cJSON *member = layer->child; status == ET_OK && member; member = member->next)
            status = strcmp(member->string, SPLIT) == 0 ? check_split(json, member, layer, error)
                                                        : check_value(json, member, model, error);
    }
    return status;
}

static enum et_status check_model(const struct et_json *json, const cJSON *model, struct et_error *error)
{
    enum et_status status = check_name(json, model, "model", error);
    for (const cJSON *member = model->child; status == ET_OK && member; member = member->next) {
        const char *source = NULL;
        if (strcmp(member->string, "layers") == 0)
            status = check_layers(json, member, model->string, error);
        else if (strcmp(member->string, "source") == 0)
            status = et_json_string(json, member, "source", &source, error);
        else
            status = check_value(json, member, model->string, error);
    }
    if (status == ET_OK && !et_json_get(model, "source"))
        status = et_json_fail(json, model, error, "model %s needs its source", model->string);
    return status;
}

enum et_status et_models_read(const char *path, struct et_models **models, struct et_error *error)
{
    *models = NULL;
    struct et_models *read = et_alloc(1, sizeof *read, error);
    if (!read)
        return ET_FAILED;
    enum et_status status = et_json_read(path, &read->json, error);
    if (status == ET_OK)
        status = et_json_object(&read->json, read->json.root, "the file", error);
    for (const cJSON *model = status == ET_OK ? read->json.root->child : NULL; status == ET_OK && model;
         model = model->next)
        status = check_model(&read->json, model, error);
    if (status == ET_OK)
        *models = read;
    else
        et_models_free(read);
    return status;
}

void et_models_free(struct et_models *models)
{
    if (!models)
        return;
    et_json_free(&models->json);
    et_free(models);
}

bool et_models_entry(const struct et_models *models, int i, const char **name, const char **source)
{
    const cJSON *model = i >= 0 ? cJSON_GetArrayItem(models->json.root, i) : NULL;
    if (!model)
        return false;
    *name = model->string;
    *source = et_json_get(model, "source")->valuestring;
    return true;
}

/* The member of `among` that node names. */
static enum et_status find(const struct et_reader *r, const cJSON *node, const char *what, const cJSON *among,
                           const cJSON **found)
{
    const char *name = NULL;
    if (et_json_string(r->json, node, what, &name, r->error) != ET_OK)
        return ET_INVALID;
    *found = et_json_get(among, name);
    if (*found)
        return ET_OK;
    struct et_nearest nearest = {.word = name};
    for (const cJSON *member = among ? among->child : NULL; member; member = member->next)
        et_nearest_try(&nearest, member->string);
    if (!nearest.best)
        return et_json_fail(r->json, node, r->error, "there is no %s \"%s\", nor any other", what, name);
    return et_json_fail(r->json, node, r->error, "there is no %s \"%s\"; the nearest is \"%s\"", what, name,
                        nearest.best);
}

struct share {
    const cJSON *model, *tp; /* tp: the node, for its place */
    double ranks;
    const char *split; /* the model key that the layer has divided, or NULL */
};

/* One rank's share of a param. */
static enum et_status divide(const struct et_reader *r, const struct et_field *field,
                             const struct share *share, double *value)
{
    const double ranks = share->ranks;
    const bool split = share->split && strcmp(field->model_key, share->split) == 0;
    if ((field->parallel == ET_WHOLE && !split) || ranks == 1)
        return ET_OK;
    if (fmod(*value, ranks) == 0) {
        *value /= ranks;
        return ET_OK;
    }
    if (field->parallel != ET_REPLICATED)
        return et_json_fail(r->json, share->tp, r->error, "tp = %.0f does not divide %s = %.0f of %s", ranks,
                            field->model_key, *value, share->model->string);
    if (fmod(ranks, *value) != 0)
        return et_json_fail(r->json, share->tp, r->error,
                            "tp = %.0f neither divides %s = %.0f of %s nor is a multiple of it", ranks,
                            field->model_key, *value, share->model->string);
    *value = 1;
    return ET_OK;
}

static enum et_status find_model(const struct et_reader *r, const cJSON *node, const cJSON **model)
{
    return find(r, node, "model", r->models ? r->models->json.root : NULL, model);
}

static enum et_status read_ranks(const struct et_reader *r, const cJSON *node, int64_t *ranks)
{
    return et_json_int(r->json, node, "tp", 1, 1 << 20, ranks, r->error);
}

enum et_status et_models_check(const struct et_reader *r, const cJSON *model, const cJSON *layer,
                               const cJSON *tp)
{
    const cJSON *found = NULL;
    const char *name = NULL;
    int64_t ranks = 1;
    enum et_status status = model ? find_model(r, model, &found) : ET_OK;
    if (status == ET_OK && layer)
        status = et_json_string(r->json, layer, "layer", &name, r->error);
    return status == ET_OK && tp ? read_ranks(r, tp, &ranks) : status;
}

/* Values are read at their place in models.json, and divided at the place of tp. */
static enum et_status apply(const struct et_reader *r, const cJSON *values, const struct share *share,
                            struct et_given *given)
{
    struct et_reader theirs = *r;
    theirs.json = &r->models->json;
    for (int i = 0; r->op->params[i].name; i++) {
        const struct et_field *field = &r->op->params[i];
        const cJSON *node = field->model_key ? et_json_get(values, field->model_key) : NULL;
        if (!node)
            continue;
        enum et_status status = et_read_field(&theirs, field, node, &given->value[i]);
        if (status == ET_OK)
            status = divide(r, field, share, &given->value[i]);
        if (status != ET_OK)
            return status;
        given->given[i] = true;
    }
    return ET_OK;
}

enum et_status et_models_apply(const struct et_reader *r, const cJSON *model, const cJSON *layer,
                               const cJSON *tp, struct et_given *given)
{
    if (!model && (layer || tp))
        return et_json_fail(r->json, layer ? layer : tp, r->error, "%s is given, but no model",
                            layer ? "layer" : "tp");
    if (!model)
        return ET_OK;
    int64_t ranks = 1;
    struct share share = {.tp = tp};
    const cJSON *values = NULL;
    enum et_status status = find_model(r, model, &share.model);
    if (status == ET_OK && tp)
        status = read_ranks(r, tp, &ranks);
    share.ranks = (double)ranks;
    if (status == ET_OK)
        status = apply(r, share.model, &share, given);
    if (status == ET_OK && layer) {
        status = find(r, layer, "layer", et_json_get(share.model, "layers"), &values);
        const cJSON *split = status == ET_OK ? et_json_get(values, SPLIT) : NULL;
        share.split = split ? split->valuestring : NULL;
        if (status == ET_OK)
            status = apply(r, values, &share, given);
    }
    return status;
}
