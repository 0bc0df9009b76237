#define _XOPEN_SOURCE 700

#include "plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The first thing that a variant lacks, or NULL. */
static const char *lacks(const struct et_variant *variant)
{
    return !variant->op        ? "op"
           : !variant->name    ? "name"
           : !variant->knobs   ? "knobs"
           : !variant->resolve ? "resolve"
           : !variant->prepare ? "prepare"
           : !variant->step    ? "step"
           : !variant->finish  ? "finish"
                               : NULL;
}

static enum et_status check(const struct et_port *port, struct et_error *error)
{
    if (!port)
        return et_fail(error, ET_INVALID, "et_plugin of the plugin gave no port");
    if (port->abi != ET_ABI)
        return et_fail(error, ET_INVALID,
                       "the plugin was built for ABI %d of etalon_port.h, this etalon has %d", port->abi,
                       ET_ABI);
    const char *missing = !port->name       ? "name"
                          : !port->variants ? "variants"
                          : !port->open     ? "open"
                          : !port->close    ? "close"
                                            : NULL;
    if (missing)
        return et_fail(error, ET_INVALID, "the port of the plugin has no %s", missing);
    for (int i = 0; port->variants[i]; i++) {
        missing = lacks(port->variants[i]);
        if (missing)
            return et_fail(error, ET_INVALID, "variant %d of the plugin has no %s", i, missing);
        if (!et_operator_named(port->variants[i]->op))
            return et_fail(error, ET_INVALID, "variant %d of the plugin is of %s, which is no operator", i,
                           port->variants[i]->op);
    }
    return ET_OK;
}

enum et_status et_plugin_load(const char *path, const struct et_port **port, struct et_error *error)
{
    *port = NULL;
    /* A name without a slash is one of this folder too, not of the loader's search path. */
    char *file = realpath(path, NULL);
    if (!file)
        return et_fail(error, ET_INVALID, "the plugin cannot be opened: %s", strerror(errno));
    void *object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    free(file);
    if (!object)
        return et_fail(error, ET_INVALID, "the plugin cannot be loaded: %s", dlerror());
    const struct et_port *(*plugin)(void) = NULL;
    void *symbol = dlsym(object, "et_plugin");
    if (!symbol)
        return et_fail(error, ET_INVALID, "the plugin has no function et_plugin");
    /* POSIX, not ISO C, says that the one is the other. */
    memcpy(&plugin, &symbol, sizeof plugin);
    const struct et_port *made = plugin();
    const enum et_status status = check(made, error);
    if (status == ET_OK)
        *port = made;
    return status;
}
