/* What is generic over ports. */
#include "etalon_port.h"

#include <string.h>

const struct et_field et_no_knobs[] = {{.name = NULL}};

struct et_device et_device_unlimited(void)
{
    return (struct et_device){.name = "unlimited",
                              .subgroups = true,
                              .fp16 = true,
                              .fp64 = true,
                              .shuffles = 64,
                              .vendor_shuffles = 32};
}

static void lower(int64_t *value, int64_t limit)
{
    if (limit > 0 && (*value == 0 || *value > limit))
        *value = limit;
}

void et_limit_device(struct et_device *device, const struct et_ceilings *limits)
{
    lower(&device->work_group, limits->work_group);
    lower(&device->local_memory, limits->local_memory);
    lower(&device->allocation, limits->allocation);
    device->subgroups = device->subgroups && !limits->no_subgroups;
    if (limits->no_subgroups)
        device->shuffles = device->vendor_shuffles = 0;
}

const struct et_variant *et_variant_named(const struct et_port *port, const char *op, const char *name)
{
    for (int i = 0; port->variants[i]; i++)
        if (strcmp(port->variants[i]->op, op) == 0 && strcmp(port->variants[i]->name, name) == 0)
            return port->variants[i];
    return NULL;
}

const char *et_variant_run(const struct et_variant *variant, const struct et_claim *claim)
{
    return claim->variant[0] ? claim->variant : variant->name;
}

/*
 * Sign and payload alternate from one repeat to the next; neither payload is empty or all ones, which are
 * what arithmetic produces. f8e4m3fn has a sign only, f8e4m3fnuz neither.
 */
uint32_t et_poison(enum et_dtype dtype, int repeat)
{
    return et_nan(dtype, repeat % 2 == 0 ? 0x2aaa2a2a : 0xd555d5d5);
}
