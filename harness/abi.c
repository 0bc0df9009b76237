/*
 * The kernel ABI: a rule (ocl/port.h) that the tables fill in, but for the names of scalars, which stand in
 * the kernels alone and are read there.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "../ocl/source.h"
#include "describe.h"
#include "launches.h"
#include "write.h"

enum { WIDTH = 100, SIGNATURE = 8192 };

/* ---- Signatures: the text between the parentheses of a kernel, object-like macros replaced ---- */

static bool in_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* The text of `#define word text`, up to the end of its last line; NULL: there is none without arguments. */
static const char *macro(const char *source, const char *word, size_t n, size_t *length)
{
    static const char define[] = "#define ";
    const char *at = source;
    while ((at = strstr(at, define))) {
        at += sizeof define - 1;
        at += strspn(at, " ");
        if (strncmp(at, word, n) != 0 || in_word(at[n]) || at[n] == '(')
            continue;
        const char *const begin = at + n, *end = begin;
        while (*end && !(*end == '\n' && end[-1] != '\\'))
            end++;
        *length = (size_t)(end - begin);
        return begin;
    }
    return NULL;
}

/* One round of replacements; false once there is nothing left to replace, or no room. */
static bool replace_macros(const char *source, char *signature)
{
    char made[SIGNATURE] = "";
    size_t used = 0;
    bool any = false;
    for (const char *at = signature; *at;) {
        size_t n = 0, length = 0;
        while (in_word(at[n]))
            n++;
        const char *text = n > 0 ? macro(source, at, n, &length) : NULL;
        any |= text != NULL;
        const size_t step = n > 0 ? n : 1;
        if (!text) {
            text = at;
            length = step;
        }
        if (used + length >= sizeof made)
            return false;
        memcpy(made + used, text, length);
        used += length;
        at += step;
    }
    made[used] = '\0';
    memcpy(signature, made, used + 1);
    return any;
}

static bool find_signature(const char *source, const char *kernel, char signature[SIGNATURE])
{
    char opening[160];
    snprintf(opening, sizeof opening, "void %s(", kernel);
    const char *begin = strstr(source, opening), *end = begin;
    if (!begin)
        return false;
    begin = end = begin + strlen(opening);
    for (int depth = 1; *end; end++) {
        depth += (*end == '(') - (*end == ')');
        if (depth == 0)
            break;
    }
    const size_t n = (size_t)(end - begin);
    if (n >= SIGNATURE)
        return false;
    memcpy(signature, begin, n);
    signature[n] = '\0';
    for (int rounds = 0; rounds < 8 && replace_macros(source, signature); rounds++)
        ;
    return true;
}

/* The last of the parameters in signature, which is cut off there: its name ("" where there is none), and
 * whether it is a pointer to local memory. */
static bool last_parameter(char *signature, char name[64])
{
    char *const comma = strrchr(signature, ',');
    const char *const last = comma ? comma + 1 : signature;
    size_t end = strlen(last), n = 0;
    while (end > 0 && !in_word(last[end - 1]))
        end--;
    while (n < end && n < 63 && in_word(last[end - n - 1]))
        n++;
    snprintf(name, 64, "%.*s", (int)n, last + end - n);
    const bool local = strncmp(last + strspn(last, " \n\t\\"), "local ", 6) == 0;
    *(comma ? comma : signature) = '\0';
    return local;
}

/* The names that stand in the kernel alone. */
struct scalars {
    char name[ET_SCALARS][64];
    char local[64]; /* the pointer to local memory behind them; "": none */
};

static enum et_status read_scalars(const struct et_launch *launch, struct scalars *scalars,
                                   struct et_error *error)
{
    const struct et_places built_in = {0};
    char signature[SIGNATURE], name[64] = "";
    struct et_text source = {0};
    *scalars = (struct scalars){.local = ""};
    enum et_status status = et_source(&built_in, launch->file, &source, error);
    if (status == ET_OK && !find_signature(source.data, launch->kernel, signature))
        status = et_fail(error, ET_FAILED, "%s has no kernel %s", launch->file, launch->kernel);
    if (status == ET_OK && last_parameter(signature, name)) {
        memcpy(scalars->local, name, sizeof name);
        last_parameter(signature, name);
    }
    for (int k = launch->scalars - 1; status == ET_OK && k >= 0; k--) {
        memcpy(scalars->name[k], name, sizeof name);
        if (!name[0])
            status = et_fail(error, ET_FAILED,
                             "kernel %s of %s has fewer arguments than the %d scalars it is given",
                             launch->kernel, launch->file, launch->scalars);
        last_parameter(signature, name);
    }
    et_text_free(&source);
    return status;
}

/* ---- Arguments ---- */

struct abi {
    struct et_text *text;
    const struct et_operator *op;
    const struct et_variant *variant;
    struct et_launches launches;
    int argument;
};

static void say(struct abi *abi, const char *name, const char *type, const char *meaning)
{
    et_text_add(abi->text, "    %3d  %-20s %-22s %s\n", abi->argument++, name, type, meaning);
}

static void say_tensor(struct abi *abi, const struct et_tensor_spec *tensor)
{
    char name[80], meaning[160];
    snprintf(meaning, sizeof meaning, "%s buffer; its type is the option's",
             tensor->role == ET_INPUT ? "input" : "output");
    say(abi, tensor->name, tensor->role == ET_INPUT ? "global const T *" : "global T *", meaning);
    snprintf(name, sizeof name, "%s_at", tensor->name);
    say(abi, name, "ulong", "place of its first element");
    for (int k = 0; k + 1 < tensor->rank; k++) {
        snprintf(name, sizeof name, "%s_stride%d", tensor->name, k);
        snprintf(meaning, sizeof meaning, "from one of %s to the next", tensor->dim[k]);
        say(abi, name, "ulong", meaning);
    }
}

static const char *meaning_of(const struct abi *abi, const char *name)
{
    const struct et_variant *run = abi->variant;
    const int param = et_field_index(abi->op->params, name), knob = et_field_index(run->knobs, name);
    return param >= 0  ? abi->op->params[param].doc
           : knob >= 0 ? run->knobs[knob].doc
                       : "as the kernel names it";
}

static void say_groups(struct abi *abi, const struct et_launch *launch)
{
    et_text_add(abi->text, "    groups %zu", launch->groups[0]);
    for (int k = 1; k < 3 && launch->groups[k] > 0; k++)
        et_text_add(abi->text, " x %zu", launch->groups[k]);
    et_text_add(abi->text, ", items of a group %zu or fewer\n", launch->items);
}

static void say_options(struct abi *abi, const struct et_launch *launch)
{
    et_text_add(abi->text, "    -cl-std=CL1.2");
    for (const struct et_tensor_spec *tensor = abi->op->tensors; tensor->name; tensor++) {
        et_text_add(abi->text, " -D ");
        for (const char *c = tensor->name; *c; c++)
            et_text_add(abi->text, "%c", toupper((unsigned char)*c));
        et_text_add(abi->text, "_DTYPE=%s", et_format(tensor->dtype)->name);
    }
    et_text_add(abi->text, "%s%s\n", launch->options[0] ? " " : "", launch->options);
}

static enum et_status say_launch(struct abi *abi, const struct et_launch *launch, struct et_error *error)
{
    struct scalars scalars;
    const enum et_status status = read_scalars(launch, &scalars, error);
    if (status != ET_OK)
        return status;
    et_text_add(abi->text, "  kernel %s of %s\n", launch->kernel, launch->file);
    say_groups(abi, launch);
    say_options(abi, launch);
    abi->argument = 0;
    for (const struct et_tensor_spec *tensor = abi->op->tensors; tensor->name; tensor++)
        say_tensor(abi, tensor);
    if (abi->launches.claim.scratch_bytes > 0) {
        say(abi, "scratch", "global float *", "what launches of one execution hand on");
        say(abi, "scratch_at", "ulong", "place of its first element");
    }
    for (int k = 0; k < launch->scalars; k++)
        say(abi, scalars.name[k], "ulong", meaning_of(abi, scalars.name[k]));
    if (scalars.local[0])
        say(abi, scalars.local, "local *", "local memory of a group");
    return ET_OK;
}

/* ---- What depends on the shape ---- */

/* Kernels and options: what is built. */
static bool same_programs(const struct et_launches *a, const struct et_launches *b)
{
    bool same = a->count == b->count;
    for (int i = 0; same && i < a->count; i++)
        same = !strcmp(a->at[i].kernel, b->at[i].kernel) && !strcmp(a->at[i].options, b->at[i].options);
    return same;
}

/* Whether twice or half as much of a param gives other programs. */
static bool varies_with(const struct abi *abi, const struct et_given *given, int i)
{
    const struct et_field *field = &abi->op->params[i];
    bool missing;
    const double value = et_given_value(abi->op->params, given, i, &missing);
    const double other[] = {2 * value, value / 2};
    for (int k = 0; k < 2 && field->kind == ET_INT; k++) {
        struct et_given edited = *given;
        struct et_launches launches;
        edited.given[i] = true;
        edited.value[i] = other[k];
        if (et_field_check(field, other[k], NULL) == ET_OK &&
            et_launches_at(abi->variant, &edited, &launches) && !same_programs(&abi->launches, &launches))
            return true;
    }
    return false;
}

static void say_variation(struct abi *abi, const struct et_given *given)
{
    bool any = false;
    for (int i = 0; abi->op->params[i].name; i++)
        if (varies_with(abi, given, i)) {
            et_text_add(abi->text, "%s%s", any ? ", " : "  kernels or options depend on ",
                        abi->op->params[i].name);
            any = true;
        }
    et_text_add(abi->text, "%s", any ? "\n" : "");
}

static enum et_status say_variant(struct abi *abi, struct et_error *error)
{
    struct et_given given;
    enum et_status status = et_launches_some(abi->variant, &given, &abi->launches, error);
    if (status != ET_OK)
        return status;
    const struct et_launches *l = &abi->launches;
    et_text_add(abi->text, "\n%s: %s\n  at", abi->variant->name, abi->variant->summary);
    for (int i = 0; abi->op->params[i].name; i++) {
        bool missing;
        et_text_add(abi->text, " %s=", abi->op->params[i].name);
        et_put_value(abi->text, &abi->op->params[i], et_given_value(abi->op->params, &given, i, &missing));
    }
    et_text_add(abi->text, ":\n");
    if (l->claim.variant[0]) {
        et_text_add(abi->text, "  launches what %s does\n", l->claim.variant);
        say_variation(abi, &given);
        return ET_OK;
    }
    say_variation(abi, &given);
    if (l->claim.scratch_bytes > 0)
        et_text_add(abi->text, "  scratch %zu bytes\n", l->claim.scratch_bytes);
    for (int i = 0; status == ET_OK && i < l->count; i++)
        status = say_launch(abi, &l->at[i], error);
    return status;
}

enum et_status et_describe_abi(const struct et_operator *op, const struct et_port *port, struct et_text *text,
                               struct et_error *error)
{
    enum et_status status = ET_OK;
    et_text_add(text,
                "%s: kernels of port %s, one program a file and options.\n"
                "T is float for f32, ushort for 16-bit types, uchar for 8-bit ones. Places and strides count "
                "elements; the\ninnermost stride is 1. Of the options, types are the case's; the ones behind "
                "them come from the variant.\n",
                op->name, port->name);
    for (const struct et_variant *const *v = port->variants; status == ET_OK && *v; v++) {
        struct abi abi = {.text = text, .op = op, .variant = *v};
        if (!strcmp((*v)->op, op->name))
            status = say_variant(&abi, error);
    }
    if (status == ET_OK && text->failed)
        status = et_fail(error, ET_FAILED, "out of memory for the ABI of %s", op->name);
    return status;
}
