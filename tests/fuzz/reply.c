/* What a runner says: a reply to one request of two steps, a hello, and a list of devices. */
#include "../../harness/runner.c"
#include "fuzz.h"

static const struct et_field fuzz_knobs[] = {{.name = "lanes", .kind = ET_INT, .min = 1, .max = 64},
                                             {.name = NULL}};
static const struct et_variant fuzz_variant = {.op = "gqa_av", .name = "gqa", .knobs = fuzz_knobs};

static void hear_reply(const struct et_json *json, const struct et_runner *runner)
{
    struct et_reply reply = {0};
    struct et_error error;
    struct et_text text = {0};
    if (read_reply(json, runner, &reply, &error) == ET_OK && reply.kind == ET_REPLY_OK) {
        fuzz_must(reply.step_count == 2 && reply.repeats == 2, "a reply has what was asked for");
        for (int i = 0; i < 2; i++)
            et_claim_add(&text, &fuzz_variant, &reply.claims[i]);
        for (int i = 0; i < 4; i++)
            et_facts_add(&text, &reply.facts[i]);
    }
    et_text_free(&text);
    et_reply_free(&reply);
}

static void hear_list(const struct et_json *json)
{
    struct et_device *devices = NULL;
    int count = 0;
    char *report = NULL;
    struct et_error error;
    struct et_reply trouble;
    if (read_devices(json, &devices, &count, &report, &trouble, &error) == ET_OK)
        fuzz_must(count >= 0 && count <= DEVICES_MOST, "a list of devices has an end");
    et_free(devices);
    et_free(report);
}

/* The same from a program that is none of ours, whose hello has a table of variants. */
static void hear_outsider(const struct et_json *json)
{
    struct et_offer offer = {.at = NULL};
    struct et_runner runner = {.variant = &fuzz_variant, .steps = 2, .repeats = 2, .offer = &offer};
    struct et_reply trouble = {0};
    struct et_error error;
    hear_reply(json, &runner);
    if (read_hello(json, &runner, &trouble, &error) == ET_OK && trouble.kind == ET_REPLY_OK) {
        fuzz_must(offer.list && offer.list[0], "an offer has a variant");
        for (int i = 0; offer.list[i]; i++)
            fuzz_must(et_variant_named(&offer.port, offer.list[i]->op, offer.list[i]->name) != NULL,
                      "a variant that is offered is found by its name");
    }
    et_offer_free(&offer);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct et_runner runner = {.variant = &fuzz_variant, .steps = 2, .repeats = 2};
    struct et_reply trouble = {0};
    struct et_json json;
    struct et_error error;
    et_text_bytes(&runner.buffer, (const char *)bytes, n);
    if (parse(&runner, &json, &error) == ET_OK) {
        hear_reply(&json, &runner);
        read_hello(&json, &runner, &trouble, &error);
        hear_outsider(&json);
        hear_list(&json);
        et_json_free(&json);
    }
    struct et_text text = {0};
    add_opening(&runner, &text);
    fuzz_must(!strpbrk(text.data, "\n\x1b"), "what a runner said is shown on one line");
    et_text_free(&text);
    et_text_free(&runner.buffer);
    return 0;
}
