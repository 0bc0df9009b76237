/* A port that a shared object brings (ref/etalon_port.h, et_plugin): for the worker, the judge loads none. */
#ifndef ET_HARNESS_PLUGIN_H
#define ET_HARNESS_PLUGIN_H

#include "../ref/etalon_port.h"

/*
 * Maps the file, which stays mapped until the process ends, and takes its port. ET_INVALID: no such file,
 * none that can be loaded, no et_plugin, another ABI, a table with holes.
 */
enum et_status et_plugin_load(const char *path, const struct et_port **port, struct et_error *error);

#endif
