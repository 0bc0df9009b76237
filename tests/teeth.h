/* A tooth by its name. */
#ifndef ET_TESTS_TEETH_H
#define ET_TESTS_TEETH_H

#include <string.h>

#include "../harness/judge.h"
#include "suite.h"

static inline const struct et_tooth *tooth(const struct et_teeth *teeth, const char *name)
{
    for (int i = 0; i < teeth->count; i++)
        if (!strcmp(teeth->at[i].name, name))
            return &teeth->at[i];
    ck_abort_msg("no tooth %s", name);
    return NULL;
}

#endif
