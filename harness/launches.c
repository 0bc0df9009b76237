#include "launches.h"

bool et_launches_at(const struct et_variant *variant, const struct et_given *given, struct et_launches *l)
{
    const struct et_operator *op = et_operator_named(variant->op);
    const struct et_device device = et_device_unlimited();
    int64_t asked[ET_PARAMS];
    for (int k = 0; k < ET_PARAMS; k++)
        asked[k] = ET_UNSET;
    *l = (struct et_launches){.problem = {.op = op}};
    l->problem.params = l->params;
    et_given_apply(op, given, l->params);
    for (int t = 0; op->tensors[t].name; t++)
        l->problem.tensor[t].dtype = op->tensors[t].dtype;
    if (op->shape(l->params, l->problem.tensor, NULL) != ET_OK)
        return false;
    for (int t = 0; op->tensors[t].name; t++)
        if (!et_tensor_pack(&l->problem.tensor[t]))
            return false;
    if (variant->resolve(&l->problem, &device, asked, &l->claim, NULL) != ET_OK)
        return false;
    /* A variant of this port is the first member of one of these. */
    const struct et_ocl_variant *ours = (const struct et_ocl_variant *)(const void *)variant;
    l->count = ours->plan(&l->problem, &l->claim, l->at);
    return true;
}

static double within(const struct et_field *field, double value)
{
    if (field->kind != ET_INT && field->kind != ET_REAL)
        return 0;
    return value < field->min ? field->min : value > field->max ? field->max : value;
}

enum et_status et_launches_some(const struct et_variant *variant, struct et_given *given,
                                struct et_launches *launches, struct et_error *error)
{
    static const int sizes[] = {4, 8, 16, 32, 64, 128, 256, 2, 1};
    const struct et_field *params = et_operator_named(variant->op)->params;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        *given = (struct et_given){0};
        for (int i = 0; params[i].name; i++) {
            given->given[i] = params[i].required;
            given->value[i] = params[i].required ? within(&params[i], sizes[k]) : 0;
        }
        if (et_launches_at(variant, given, launches))
            return ET_OK;
    }
    return et_fail(error, ET_FAILED, "%s of %s takes no shape whose required params are one number up to 256",
                   variant->name, variant->op);
}
