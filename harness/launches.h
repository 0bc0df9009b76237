/* What the OpenCL port launches for a variant of an operator at some shape that both take. */
#ifndef ET_HARNESS_LAUNCHES_H
#define ET_HARNESS_LAUNCHES_H

#include "../ocl/port.h"
#include "case_read.h"

struct et_launches {
    _Alignas(16) unsigned char params[ET_PARAMS_BYTES];
    struct et_problem problem;
    struct et_claim claim;
    struct et_launch at[ET_LAUNCHES];
    int count;
};

/*
 * Launches at these params, the others having their defaults, with the operator's types and packed tensors.
 * False where operator or variant refuse the shape.
 */
bool et_launches_at(const struct et_variant *variant, const struct et_given *given,
                    struct et_launches *launches);

/*
 * The same at a small shape that they take, which *given becomes: all required params are one number.
 * ET_FAILED: there is none.
 */
enum et_status et_launches_some(const struct et_variant *variant, struct et_given *given,
                                struct et_launches *launches, struct et_error *error);

#endif
