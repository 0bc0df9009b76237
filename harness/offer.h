/*
 * What a program that is none of ours (--port exec:CMD) offers in its hello, and our worker in any:
 *
 *   "variants": {OPERATOR: {NAME: {KNOB: [MIN, MAX] or [VALUE'S NAME, ...], ...}, ...}, ...}
 *
 * It stands for a port's table of variants. What one of them claims is known from its replies only.
 */
#ifndef ET_HARNESS_OFFER_H
#define ET_HARNESS_OFFER_H

#include "../ref/etalon_port.h"
#include "json.h"

enum { ET_OFFER_NAME = 24 };  /* bytes of a name, its end included */
enum { ET_OFFER_VALUES = 8 }; /* names of a knob's values */

/* What a knob's field points at. */
struct et_offered_names {
    char knob[ET_OFFER_NAME], value[ET_OFFER_VALUES][ET_OFFER_NAME];
    const char *values[ET_OFFER_VALUES + 1];
};

struct et_offered {
    struct et_variant variant;
    char name[ET_OFFER_NAME];
    struct et_field knobs[ET_PARAMS + 1];
    struct et_offered_names names[ET_PARAMS];
};

/* Starts as all zeros. */
struct et_offer {
    struct et_port port; /* name and variants; no function is set */
    char name[64];
    struct et_offered *at;
    const struct et_variant **list;
};

/* ET_INVALID: an operator that is none, a name that no id could have, a range that is none. */
enum et_status et_offer_read(const struct et_json *json, const cJSON *node, const char *port,
                             struct et_offer *offer, struct et_error *error);
/* The object "variants" of a port's table, as it is offered. */
void et_offer_add(struct et_text *text, const struct et_port *port);
void et_offer_free(struct et_offer *offer);

/* resolve has left this claim to the reply. */
bool et_claim_is_open(const struct et_claim *claim);

#endif
