#define _POSIX_C_SOURCE 200809L /* mkdtemp */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../harness/plan.h"
#include "../harness/safetensors.h"
#include "suite.h"

/* ---- A port of two variants ---- */

static const char *const tails[] = {"local", "subgroup", NULL};
static const struct et_field no_knobs[] = {{.name = NULL}};
static const struct et_field knobs[] = {
    {.name = "lanes", .kind = ET_INT, .min = 1, .max = 64, .fallback = 8},
    {.name = "tail", .kind = ET_NAME, .names = tails},
    {.name = "wide", .kind = ET_BOOL},
    {.name = NULL},
};

static enum et_status resolve(const struct et_problem *problem, const struct et_device *device,
                              const int64_t *asked, struct et_claim *claim, struct et_error *why)
{
    (void)problem, (void)device, (void)asked, (void)why;
    *claim = (struct et_claim){.scratch_bytes = 0};
    return ET_OK;
}

static const struct et_variant plain = {
    .op = "gqa_av", .name = "plain", .knobs = no_knobs, .resolve = resolve};
static const struct et_variant tuned = {.op = "gqa_av", .name = "tuned", .knobs = knobs, .resolve = resolve};
static const struct et_variant elsewhere = {.op = "skinny_gemm", .name = "sml", .knobs = no_knobs};
static const struct et_variant *const variants[] = {&plain, &tuned, &elsewhere, NULL};
static const struct et_port port = {.name = "fake", .variants = variants};

/* ---- Reading texts as files. A ' in a text stands for a " ---- */

static char folder[] = "/tmp/etalon-case-XXXXXX"; /* the last six are set anew for each test */
static struct et_models *models;
static struct et_cases cases;
static struct et_error error;

static const char model_text[] =
    "{'big':  {'q_heads':64,'kv_heads':8,'head_dim':128,'window':128,'source':'a'},\n"
    " 'two':  "
    "{'q_heads':6,'kv_heads':2,'layers':{'local':{'head_dim':32},'global':{'head_dim':64,'kv_heads':1},"
    "'cut':{'head_dim':20,'split':'head_dim'}},'source':'b'},\n"
    " 'odd':  {'q_heads':12,'kv_heads':3,'head_dim':0.5,'source':'c'},\n"
    " 'all':  {'q_heads':64,'kv_heads':8,'head_dim':192,'v_head_dim':128,'causal':'top_left','window':4096,"
    "'sinks':true,'scale':0.125,'softcap':50,'max_bias':8,'source':'d',\n"
    "          'layers':{'global':{'window':0,'sinks':false,'causal':'bottom_right'},\n"
    "                    'left':{'causal':'top_lft'},'half':{'sinks':0.5},'low':{'softcap':-1}}}}";

static void path_of(const char *name, char *path, size_t bytes)
{
    snprintf(path, bytes, "%s/%s", folder, name);
}

static void write_file(const char *name, const char *text, size_t bytes)
{
    char path[100];
    path_of(name, path, sizeof path);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    for (size_t i = 0; i < bytes; i++)
        fputc(text[i] == '\'' ? '"' : text[i], file);
    ck_assert_int_eq(fclose(file), 0);
}

static enum et_status read_bytes(const char *name, const char *text, size_t bytes)
{
    char path[100];
    write_file(name, text, bytes);
    path_of(name, path, sizeof path);
    return et_cases_read(path, models, &port, &cases, &error);
}

static enum et_status read_text(const char *text)
{
    return read_bytes("t.json", text, strlen(text));
}

/* The sentence without the folder. */
static const char *sentence(void)
{
    ck_assert_mem_eq(error.text, folder, sizeof folder - 1);
    return error.text + sizeof folder;
}

#define FILE_OF(list) "{'format':1,'operator':'gqa_av','cases':[\n" list "]}"
#define SIZES         "'q_heads':4,'kv_heads':2,'head_dim':8,'context':5"
#define PARAMS        "'params':{" SIZES "}"
/* One case, at line 2, with all params and, at line 3, whatever else. */
#define CASE(rest)    FILE_OF("{'name':'a'," PARAMS ",\n" rest "}")

static void read_ok(const char *text)
{
    const enum et_status status = read_text(text);
    ck_assert_msg(status == ET_OK, "%s", error.text);
}

static void set_up(void)
{
    memcpy(folder + sizeof folder - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    char path[100];
    write_file("models.json", model_text, sizeof model_text - 1);
    path_of("models.json", path, sizeof path);
    ck_assert_msg(et_models_read(path, &models, &error) == ET_OK, "%s", error.text);
}

static void tear_down(void)
{
    static const char *const names[] = {"models.json", "m.json",           "t.json", "gqa_av.json",
                                        "a b.json",    "deep/gqa_av.json", "deep",   "x.safetensors"};
    et_cases_free(&cases);
    et_models_free(models);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[100];
        path_of(names[i], path, sizeof path);
        remove(path);
    }
    rmdir(folder);
}

static const struct et_gqa_av *params_of(int i, int step)
{
    return (const struct et_gqa_av *)(const void *)cases.at[i].steps[step].params;
}

static struct et_problem problem_of(int i, int step, const struct et_twin *twin)
{
    static _Alignas(16) unsigned char params[ET_PARAMS_BYTES];
    struct et_problem problem;
    ck_assert_int_eq(et_case_problem(&cases.at[i], step, twin, params, &problem, &error), ET_OK);
    return problem;
}

static void assert_ids(const char *const *ids, int n)
{
    ck_assert_int_eq(cases.count, n);
    for (int i = 0; i < n; i++)
        ck_assert_str_eq(cases.at[i].id, ids[i]);
}

/* ---- Bad files ---- */

static const struct {
    const char *text, *sentence;
} bad[] = {
    {"[]", "t.json:1:1: the file is a list, not an object"},
    {"{'format':1,}", "t.json:1:13: a key in quotes was expected, not '}'"},
    {"{'operator':'gqa_av'}", "t.json:1:1: the file needs \"format\""},
    {"{'format':2,'operator':'gqa_av','extra':{}}",
     "t.json:1:11: format 2 is newer than this etalon reads (1)"},
    {"{'format':0}", "t.json:1:11: format is 0, not a whole number from 1 to 9007199254740991"},
    {"{'format':1,'operator':'gqa_av','case':[]}",
     "t.json:1:33: the file has no \"case\"; the nearest is \"cases\""},
    {"{'format':1}", "t.json:1:1: the file needs \"operator\""},
    {"{'format':1,'operator':'gqa-av'}",
     "t.json:1:24: there is no operator \"gqa-av\"; the nearest is \"gqa_av\""},
    {"{'format':1,'operator':'gqa_av'}", "t.json:1:1: the file needs \"cases\""},
    {"{'format':1,'operator':'gqa_av','note':1,'cases':[]}", "t.json:1:40: note is 1, not a string"},
    {"{'format':1,'operator':'gqa_av','cases':[]}", "t.json:1:41: cases is empty"},
    {"{'format':1,'operator':'gqa_av','cases':{}}", "t.json:1:41: cases is an object, not a list"},
    {"{'format':1,'operator':'gqa_av','defaults':{'steps':[]},'cases':[]}",
     "t.json:1:45: steps is for cases, not for defaults"},
    {FILE_OF("7"), "t.json:2:1: a case is 7, not an object"},
    {FILE_OF("{" PARAMS "}"), "t.json:2:1: a case needs a name"},
    {FILE_OF("{'name':'a b'}"), "t.json:2:9: \"a b\" cannot stand in an id: letters, digits and ._- only, "
                                "a letter or digit first"},
    {FILE_OF("{'name':'..'}"), "t.json:2:9: \"..\" cannot stand in an id: letters, digits and ._- only, "
                               "a letter or digit first"},
    {FILE_OF("{'name':'a'," PARAMS "},\n{'name':'b'," PARAMS "},\n{'name':'a'}"),
     "t.json:4:9: \"a\" is the name of the case on line 2 too"},
    {CASE("'parms':{}"), "t.json:3:1: a case has no \"parms\"; the nearest is \"params\""},
    {CASE("'note':[]"), "t.json:3:8: note is a list, not a string"},
    {CASE("'origin':'a/b#1'"), "t.json:3:10: origin is \"a/b#1\", not a list"},
    {CASE("'origin':['a/b']"), "t.json:3:11: origin \"a/b\" must read OWNER/REPO#NUMBER"},
    {CASE("'tier':'nightly'"), "t.json:3:8: there is no tier \"nightly\", only smoke, default and full"},
    {CASE("'bench':1"), "t.json:3:9: bench is 1, not true or false"},
    {CASE("'seed':9007199254740992"),
     "t.json:3:8: seed is 9007199254740992, not a whole number from 0 to 9007199254740991"},
    {CASE("'poison':'zero'"), "t.json:3:10: poison is \"zero\", not nan or large"},
    {CASE("'rows':0"), "t.json:3:8: rows is 0, not a whole number from 1 to 9007199254740991"},
    {CASE("'rows':'some'"), "t.json:3:8: rows is \"some\", not \"all\" or a number of at least 1"},
    {CASE("'fills':['normall']"), "t.json:3:10: there is no fill \"normall\"; the nearest is \"normal\""},
    {CASE("'fills':['ramp','ramp']"), "t.json:3:17: fill \"ramp\" is given twice"},
    {CASE("'fills':['constant']"), "t.json:3:10: fill \"constant\" needs a value: write "
                                   "\"data\": {TENSOR: {\"constant\": X}}"},
    {CASE("'fills':[]"), "t.json:3:9: fills is empty; leave it out for the default"},

    /* params */
    {FILE_OF("{'name':'a','params':{'q_head':4}}"),
     "t.json:2:23: gqa_av has no param \"q_head\"; the nearest is \"q_heads\""},
    {FILE_OF("{'name':'a','params':{'q_heads':4,'kv_heads':2,'context':5}}"), "t.json:2:1: a needs head_dim"},
    {FILE_OF("{'name':'a','params':{'q_heads':0}}"), "t.json:2:33: q_heads is 0, must be at least 1"},
    {FILE_OF("{'name':'a','params':{'q_heads':1.5}}"),
     "t.json:2:33: q_heads is 1.5, not a whole number from -9007199254740991 to 9007199254740991"},
    {FILE_OF("{'name':'a','params':{'q_heads':1,'q_heads':2}}"),
     "t.json:2:35: key \"q_heads\" is given twice, first on line 2"},
    {CASE("'shapes':[{'capacity':4}]"), "t.json:2:1: gqa_av/t/a/shape=s0: capacity is 4, below context = 5"},
    {CASE("'shapes':[{'capacity':9007199254740991,'head_dim':65536}]"),
     "t.json:2:1: gqa_av/t/a/shape=s0: v of 9007199254740991 x 2 x 65536 f32 elements and its padding are "
     "beyond 2^63 - 1 bytes"},
    {CASE("'shapes':[{'label':'a,b'}]"), "t.json:3:20: \"a,b\" cannot stand in an id: letters, digits and "
                                         "._- only, a letter or digit first"},
    {CASE("'shapes':[{'context':1},{'labl':'x'}]"),
     "t.json:3:26: gqa_av has no param \"labl\"; the nearest is \"q_heads\""},
    {CASE("'shapes':[{'label':'x'},{'label':'x'}]"),
     "t.json:2:1: two of its cases have the id gqa_av/t/a/shape=x"},

    /* models */
    {CASE("'model':'bigg'"), "t.json:3:9: there is no model \"bigg\"; the nearest is \"big\""},
    {CASE("'model':'two','layer':'locl'"),
     "t.json:3:23: there is no layer \"locl\"; the nearest is \"local\""},
    {CASE("'model':'big','layer':'local'"), "t.json:3:23: there is no layer \"local\", nor any other"},
    {CASE("'layer':'local'"), "t.json:3:9: layer is given, but no model"},
    {CASE("'tp':2"), "t.json:3:6: tp is given, but no model"},
    {CASE("'model':'big','tp':0"), "t.json:3:20: tp is 0, not a whole number from 1 to 1048576"},
    {CASE("'model':'big','tp':3"), "t.json:3:20: tp = 3 does not divide q_heads = 64 of big"},
    {CASE("'model':'odd','tp':2"),
     "t.json:3:20: tp = 2 neither divides kv_heads = 3 of odd nor is a multiple of it"},
    {FILE_OF("{'name':'a','model':'odd','params':{'context':5}}"),
     "models.json:3:48: head_dim is 0.5, not a whole number from -9007199254740991 to 9007199254740991"},
    {FILE_OF("{'name':'a','model':'two','params':{'context':5}}"), "t.json:2:1: a needs head_dim"},

    /* sweep */
    {CASE("'sweep':{'contxt':[1]}"),
     "t.json:3:10: \"contxt\" cannot be swept; the nearest that can is \"context\""},
    {CASE("'sweep':{'context':5}"), "t.json:3:20: context is 5, not a list"},
    {CASE("'sweep':{'context':[]}"), "t.json:3:20: context has no values"},
    {CASE("'sweep':{'context':[5,5.0]}"), "t.json:2:1: two of its cases have the id gqa_av/t/a/context=5"},
    {CASE("'sweep':{'context':[5,-1]}"), "t.json:3:23: context is -1, must be at least 0"},
    {CASE("'sweep':{'model':['big','no such']}"),
     "t.json:3:25: there is no model \"no such\"; the nearest is \"odd\""},

    /* tensors */
    {CASE("'dtypes':{'k':'f16'}"), "t.json:3:11: gqa_av has no tensor \"k\"; the nearest is \"w\""},
    {CASE("'dtypes':{'v':'int4'}"), "t.json:3:15: v cannot be \"int4\"; it can be f32, f16, bf16"},
    {CASE("'dtypes':{'v':'f8e4m3fn'}"), "t.json:3:15: v cannot be \"f8e4m3fn\"; it can be f32, f16, bf16"},
    {CASE("'layout':{'v':{'pads':{}}}"), "t.json:3:16: layout.v has no \"pads\"; the nearest is \"pad\""},
    {CASE("'layout':{'v':{'pad':{'tokens':[0,1]}}}"),
     "t.json:3:23: v has no dimension \"tokens\"; the nearest is \"kv_heads\""},
    {CASE("'layout':{'v':{'pad':{'capacity':[1]}}}"),
     "t.json:3:34: layout.v.pad.capacity must read [before, after]"},
    {CASE("'layout':{'v':{'pad':{'capacity':[0,-1]}}}"),
     "t.json:3:37: layout.v.pad is -1, not a whole number from 0 to 9007199254740991"},
    {CASE("'layout':{'v':{'pad':{'capacity':[0,9007199254740991],'head_dim':[0,9007199254740991]}}}"),
     "t.json:2:1: gqa_av/t/a: v of 5 x 2 x 8 f32 elements and its padding are beyond 2^63 - 1 bytes"},
    {CASE("'layout':{'v':{'order':['kv_heads','capacity','capacity']}}"),
     "t.json:3:24: layout.v.order must list each of capacity, kv_heads, head_dim once"},
    {CASE("'layout':{'v':{'order':['kv_heads','capacity']}}"),
     "t.json:3:24: layout.v.order must list each of capacity, kv_heads, head_dim once"},
    {CASE("'layout':{'v':{'view_of':'w'}}"), /* [5, 2, 8] of [4, 4, 8] */
     "t.json:2:1: gqa_av/t/a: v is a view of w, and its capacity is 5, above q_heads = 4"},
    {CASE("'layout':{'v':{'view_of':'k'}}"), "t.json:3:26: gqa_av has no tensor \"k\"; the nearest is \"w\""},
    {CASE("'layout':{'v':{'view_of':'v'}}"), "t.json:3:26: layout.v.view_of: v cannot be a view of itself"},
    {CASE("'layout':{'v':{'view_of':'out'}}"),
     "t.json:3:26: layout.v.view_of: out is an output, and only inputs share memory"},
    {CASE("'layout':{'out':{'view_of':'v'}}"),
     "t.json:3:28: layout.out.view_of: out is an output, and only inputs share memory"},
    {CASE("'layout':{'w':{'view_of':'v'},'v':{'view_of':'w'}}"),
     "t.json:3:26: w is a view of v, which is a view itself"},
    {CASE("'layout':{'v':{'view_of':'w','shift':1}}"),
     "t.json:3:30: v is a view, which has no layout of its own"},
    {CASE("'dtypes':{'v':'f16'},'layout':{'v':{'view_of':'w'}}"),
     "t.json:3:47: v is f16, and w, of which it is a view, f32"},
    {FILE_OF("{'name':'a','params':{'q_heads':8,'kv_heads':2,'head_dim':8,'context':8},\n'layout':{'v':{'"
             "view_of':"
             "'w'}},'data':{'v':{'constant':1}}}"),
     "t.json:3:44: gqa_av/t/a: v is a view of w, and has no data of its own"},
    {CASE("'layout':{'out':{'buffer':'b'}}"),
     "t.json:3:27: layout.out.buffer: out is an output, and only inputs share memory"},
    {CASE("'dtypes':{'v':'f16'},'layout':{'w':{'buffer':'b'},'v':{'buffer':'b'}}"),
     "t.json:3:65: v is f16, and w, in the same buffer, f32"},
    {CASE("'layout':{'v':{'view_of':'w'}},'sweep':{'layout':[{'w':{'view_of':'v'}}]}"),
     "t.json:3:67: w is a view of v, which is a view itself"},
    {CASE("'data':{'out':{'constant':0}}"), "t.json:3:9: data is for inputs, and out is not one"},
    {CASE("'data':{'v':{}}"), "t.json:3:13: data.v needs one of constant, values, fill and file"},
    {CASE("'data':{'v':{'constant':0,'fill':'ramp'}}"),
     "t.json:3:13: data.v needs one of constant, values, fill and file"},
    {CASE("'data':{'v':{'vals':[1]}}"), "t.json:3:14: data.v has no \"vals\"; the nearest is \"values\""},
    {CASE("'data':{'v':{'constant':0,'seed':1}}"), "t.json:3:27: seed goes with fill only"},
    {CASE("'data':{'v':{'constant':'zero'}}"),
     "t.json:3:25: data.v.constant is \"zero\", not a number, \"inf\", "
     "\"-inf\", \"nan\" or a hex float in quotes"},
    {CASE("'data':{'v':{'fill':'constant'}}"), "t.json:3:21: fill \"constant\" takes a value"},
    {CASE("'data':{'v':{'fill':'ramp','value':1}}"), "t.json:3:36: fill \"ramp\" takes no value"},
    {CASE("'data':{'v':{'file':'x.safetensors'}}"),
     "t.json:3:13: data.v needs the name of the tensor in its file"},
    {CASE("'data':{'v':{'values':[]}}"), "t.json:3:23: data.v.values is empty"},
    {CASE("'data':{'v':{'values':[1,[2]]}}"), "t.json:3:26: data.v.values is a list, not a number, \"inf\", "
                                              "\"-inf\", \"nan\" or a hex float in quotes"},
    {CASE("'data':{'v':{'values':[1,2,3]}}"),
     "t.json:3:23: gqa_av/t/a: 3 values for v, which can take 1, 5, 10, 80"},
    {CASE("'data':{'w':{'values':[1,2,3]}}"), /* 4 heads, one row each, 5 of 8 lanes */
     "t.json:3:23: gqa_av/t/a: 3 values for w, which can take 1, 4, 20"},
    {CASE("'expect':{'out':{'values':[1,2,3]}}"), /* one query, 4 heads, 8 channels */
     "t.json:3:27: gqa_av/t/a: 3 values for out, which can take 1, 4, 32"},
    {CASE("'expect':{'v':{'constant':0}}"), "t.json:3:11: expect is for outputs, and v is not one"},
    {CASE("'expect':{'out':{'fill':'ramp'}}"),
     "t.json:3:18: expect.out has no \"fill\"; the nearest is \"atol\""},
    {CASE("'expect':{'out':{'constant':0,'atol':-1}}"),
     "t.json:3:38: expect.out.atol is -1, not finite and at least 0"},
    {CASE("'expect':{'refused':'x','out':{'constant':0}}"),
     "t.json:3:10: expect has either refused or values, not both"},
    {CASE("'expect':{'refused':1}"), "t.json:3:21: expect.refused is 1, not a string"},
    {CASE("'expect':{'refused':''}"), "t.json:3:21: expect.refused is empty, must be a sentence"},

    /* steps, variants, limit, checks, twins */
    {CASE("'steps':[]"), "t.json:3:9: steps is empty; leave it out for one step"},
    {CASE("'steps':[{'dtypes':{}}]"), "t.json:3:11: a step has no \"dtypes\"; the nearest is \"params\""},
    {CASE("'steps':[{},{'expect':{'refused':'x'}}]"),
     "t.json:3:24: gqa_av has no tensor \"refused\"; the nearest is \"out\""},
    {CASE("'steps':[{},{'params':{'context':6,'capacity':5}}]"),
     "t.json:2:1: gqa_av/t/a: capacity is 5, below context = 6"},
    {CASE("'data':{'v':{'values':[1,2,3,4,5]}},'steps':[{},{'params':{'context':4}}]"),
     "t.json:3:23: gqa_av/t/a: 5 values for v, which can take 1, 4, 8, 64"},
    {CASE("'variants':['plane']"), "t.json:3:13: gqa_av has no variant \"plane\"; the nearest is \"plain\""},
    {CASE("'variants':['sml']"), "t.json:3:13: gqa_av has no variant \"sml\"; the nearest is \"plain\""},
    {"{'format':1,'operator':'gdn_postconv','cases':[{'name':'a','variants':['auto'],'params':"
     "{'tokens':1,'k_heads':1,'v_heads':1,'k_head_dim':1,'v_head_dim':1}}]}",
     "t.json:1:72: port fake has no variant \"auto\"; without variants every one that fits runs"},
    {CASE("'variants':['plain','plain']"), "t.json:3:21: variants asks for the same plain twice"},
    {CASE("'variants':[{'lanes':8}]"), "t.json:3:13: a variant needs its name"},
    {CASE("'variants':[{'name':'plain','lanes':8}]"), "t.json:3:29: plain has no knob"},
    {CASE("'variants':[{'name':'tuned','lane':8}]"),
     "t.json:3:29: tuned has no knob \"lane\"; the nearest is \"lanes\""},
    {CASE("'variants':[{'name':'tuned','lanes':[8,65]}]"), "t.json:3:40: lanes is 65, must be at most 64"},
    {CASE("'variants':[{'name':'tuned','tail':'locl'}]"),
     "t.json:3:36: tail cannot be \"locl\"; the nearest is \"local\""},
    {CASE("'limit':{'quick':{}}"), "t.json:3:18: there is no tier \"quick\", only smoke, default and full"},
    {CASE("'limit':{'smoke':{'context':1}}"), "t.json:3:10: limit for tier smoke of a case of tier default"},
    {CASE("'limit':{'default':{'contex':1}}"),
     "t.json:3:21: gqa_av has no param \"contex\"; the nearest is \"context\""},
    {CASE("'checks':{'nsme':1}"), "t.json:3:11: checks has no \"nsme\"; the nearest is \"nmse\""},
    {CASE("'checks':{'nmse':true}"),
     "t.json:3:18: checks.nmse is true, not a number of at least 0, or false"},
    {CASE("'checks':{'nmse':-1}"), "t.json:3:18: checks.nmse is -1, not a number of at least 0, or false"},
    {CASE("'checks':{'replay':0}"), "t.json:3:20: checks.replay is 0, not true or false"},
    {CASE("'checks':{'repeat':0}"), "t.json:3:20: checks.repeat is 0, not a whole number from 1 to 1000"},
    {CASE("'checks':{'allclose':{'atol':1}}"),
     "t.json:3:22: checks.allclose must be {\"atol\": A, \"rtol\": R} of at least 0, or false"},
    {CASE("'twins':[{}]"), "t.json:3:10: a twin needs params or poison"},
    {CASE("'twins':[{'poison':'large','fills':[]}]"),
     "t.json:3:28: a twin has no \"fills\"; the nearest is \"params\""},
    {CASE("'twins':[{'params':{'head_dim':4}}]"), "t.json:2:1: gqa_av/t/a: a twin changes the shape of out"},
    {CASE("'twins':[{'poison':'large'},{'params':{'capacity':1}}]"),
     "t.json:2:1: gqa_av/t/a: twin 1: capacity is 1, below context = 5"},
};

START_TEST(a_bad_case_file_is_refused_at_its_place)
{
    ck_assert_int_eq(read_text(bad[_i].text), ET_INVALID);
    ck_assert_str_eq(sentence(), bad[_i].sentence);
    ck_assert_int_eq(cases.count, 0);
}
END_TEST

static const struct {
    const char *text, *sentence;
} bad_models[] = {
    {"[]", "m.json:1:1: the file is a list, not an object"},
    {"{'a':1}", "m.json:1:6: a is 1, not an object"},
    {"{'a b':{'source':''}}",
     "m.json:1:2: model \"a b\" cannot stand in an id: letters, digits and ._- only, "
     "a letter or digit first"},
    {"{'a':{'q_heads':1}}", "m.json:1:6: model a needs its source"},
    {"{'a':{'q_head':1,'source':''}}",
     "m.json:1:7: model a has \"q_head\"; the nearest key there is is \"q_heads\""},
    {"{'a':{'q_heads':[1],'source':''}}",
     "m.json:1:17: q_heads of model a is a list, not a number, a string, true or false"},
    {"{'a':{'layers':{'x':{'windw':1}},'source':''}}",
     "m.json:1:22: model a has \"windw\"; the nearest key there is is \"window\""},
    {"{'a':{'layers':{'x':{'window':1,'split':1}},'source':''}}", "m.json:1:41: split is 1, not a string"},
    {"{'a':{'layers':{'x':{'window':1,'split':'sinks'}},'source':''}}",
     "m.json:1:41: layer x is split by \"sinks\", which it does not have"},
    {"{'a':{'layers':{'x':{'split':'split'}},'source':''}}",
     "m.json:1:30: layer x is split by \"split\", which it does not have"},
    {"{'a':{'split':'q_heads','q_heads':1,'source':''}}",
     "m.json:1:7: model a has \"split\"; the nearest key there is is \"sinks\""},
    {"{'a':{'layers':{'x':1},'source':''}}", "m.json:1:21: x is 1, not an object"},
    {"{'a':{'layers':{'x/y':{}},'source':''}}", "m.json:1:17: layer \"x/y\" cannot stand in an id: letters, "
                                                "digits and ._- only, a letter or digit first"},
    {"{'a':{'source':''},'a':{'source':''}}", "m.json:1:20: key \"a\" is given twice, first on line 1"},
};

START_TEST(a_bad_model_file_is_refused_at_its_place)
{
    char path[100];
    struct et_models *read = NULL;
    write_file("m.json", bad_models[_i].text, strlen(bad_models[_i].text));
    path_of("m.json", path, sizeof path);
    ck_assert_int_eq(et_models_read(path, &read, &error), ET_INVALID);
    ck_assert_str_eq(sentence(), bad_models[_i].sentence);
    ck_assert_ptr_null(read);
}
END_TEST

START_TEST(a_failed_file_leaves_the_cases_read_before)
{
    read_ok(CASE("'seed':1"));
    ck_assert_int_eq(read_text(FILE_OF("{'name':'ok'," PARAMS "},{'name':'b'}")), ET_INVALID);
    static const char *const ids[] = {"gqa_av/t/a"};
    assert_ids(ids, 1);
    read_ok(FILE_OF("{'name':'c'," PARAMS "}"));
    static const char *const more[] = {"gqa_av/t/a", "gqa_av/t/c"};
    assert_ids(more, 2);
}
END_TEST

/* Numbers, reals, names and truths; window_right, mask and lengths are no model's. */
START_TEST(a_model_gives_flash_attn_params_of_every_kind)
{
    read_ok(
        "{'format':1,'operator':'flash_attn','defaults':{'model':'all','params':{'kv_length':9,'mask':'data'}"
        "},"
        "'cases':[{'name':'a'},{'name':'b','layer':'global','tp':16},{'name':'c','params':{'causal':'none',"
        "'sinks':false,'softcap':0}}]}");
    ck_assert_int_eq(cases.count, 3);
    static const struct et_flash_attn expected[] = {
        {.q_heads = 64,
         .kv_heads = 8,
         .causal = ET_CAUSAL_TOP_LEFT,
         .window = 4096,
         .sinks = 1,
         .softcap = 50},
        {.q_heads = 4,
         .kv_heads = 1,
         .causal = ET_CAUSAL_BOTTOM_RIGHT,
         .window = 0,
         .sinks = 0,
         .softcap = 50},
        {.q_heads = 64, .kv_heads = 8, .causal = ET_CAUSAL_NONE, .window = 4096, .sinks = 0, .softcap = 0},
    };
    for (int i = 0; i < 3; i++) {
        struct et_flash_attn found;
        memcpy(&found, cases.at[i].steps[0].params, sizeof found);
        ck_assert_int_eq(found.q_heads, expected[i].q_heads);
        ck_assert_int_eq(found.kv_heads, expected[i].kv_heads);
        ck_assert_int_eq(found.causal, expected[i].causal);
        ck_assert_int_eq(found.window, expected[i].window);
        ck_assert_int_eq(found.sinks, expected[i].sinks);
        ck_assert_double_eq(found.softcap, expected[i].softcap);
        ck_assert_int_eq(found.head_dim, 192);
        ck_assert_int_eq(found.v_head_dim, 128);
        ck_assert_double_eq(found.scale, 0.125);
        ck_assert_double_eq(found.max_bias, 8);
        ck_assert_int_eq(found.window_right, -1);
        ck_assert_int_eq(found.kv_length, 9);
    }
    static const char *const wrong[][2] = {
        {"left", "models.json:6:38: causal cannot be \"top_lft\"; the nearest is \"top_left\""},
        {"half", "models.json:6:65: sinks is 0.5, not true or false"},
        {"low", "models.json:6:87: softcap is -1, must be at least 0"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[200];
        snprintf(
            text, sizeof text,
            "{'format':1,'operator':'flash_attn','cases':[{'name':'a','model':'all','layer':'%s','params':{"
            "'kv_length':9}}]}",
            wrong[i][0]);
        ck_assert_int_eq(read_text(text), ET_INVALID);
        ck_assert_str_eq(sentence(), wrong[i][1]);
    }
}
END_TEST

START_TEST(a_case_needs_no_models_until_it_names_one)
{
    struct et_models *kept = models;
    models = NULL;
    read_ok(CASE("'seed':1"));
    ck_assert_int_eq(read_text(CASE("'model':'big'")), ET_INVALID);
    ck_assert_str_eq(sentence(), "t.json:3:9: there is no model \"big\", nor any other");
    models = kept;
}
END_TEST

/* ---- Ids and their order ---- */

START_TEST(shapes_come_before_sweeps_and_the_first_key_is_outermost)
{
    read_ok(CASE("'shapes':[{'context':7},{'label':'long','context':9}],"
                 "'sweep':{'head_dim':[1,2],'poison':['nan','large']}"));
    static const char *const ids[] = {
        "gqa_av/t/a/shape=s0,head_dim=1,poison=nan",   "gqa_av/t/a/shape=s0,head_dim=1,poison=large",
        "gqa_av/t/a/shape=s0,head_dim=2,poison=nan",   "gqa_av/t/a/shape=s0,head_dim=2,poison=large",
        "gqa_av/t/a/shape=long,head_dim=1,poison=nan", "gqa_av/t/a/shape=long,head_dim=1,poison=large",
        "gqa_av/t/a/shape=long,head_dim=2,poison=nan", "gqa_av/t/a/shape=long,head_dim=2,poison=large",
    };
    assert_ids(ids, 8);
    ck_assert_int_eq(params_of(0, 0)->context, 7);
    ck_assert_int_eq(params_of(7, 0)->context, 9);
    ck_assert_int_eq(params_of(7, 0)->head_dim, 2);
    ck_assert_int_eq(cases.at[6].poison, ET_POISON_NAN);
    ck_assert_int_eq(cases.at[7].poison, ET_POISON_LARGE);
}
END_TEST

START_TEST(objects_lists_and_numbers_are_short_in_ids)
{
    read_ok(CASE("'sweep':{'dtypes':[{'w':'f16','v':'bf16'},{}],'seed':[1e3,9007199254740991],"
                 "'layout':[{'v':{'pad':{'capacity':[0,3]},'shift':1}}]}"));
    static const char *const ids[] = {
        "gqa_av/t/a/dtypes=w:f16+v:bf16,seed=1000,layout=v:pad:capacity:0+3+shift:1",
        "gqa_av/t/a/dtypes=w:f16+v:bf16,seed=9007199254740991,layout=v:pad:capacity:0+3+shift:1",
        "gqa_av/t/a/dtypes=,seed=1000,layout=v:pad:capacity:0+3+shift:1",
        "gqa_av/t/a/dtypes=,seed=9007199254740991,layout=v:pad:capacity:0+3+shift:1",
    };
    assert_ids(ids, 4);
    ck_assert_int_eq(cases.at[0].dtype[0], ET_F16);
    ck_assert_int_eq(cases.at[0].dtype[1], ET_BF16);
    ck_assert_int_eq(cases.at[2].dtype[0], ET_F32);
    ck_assert_uint_eq(cases.at[1].seed, 9007199254740991);
    ck_assert_int_eq(cases.at[0].layout[1].shift, 1);
}
END_TEST

START_TEST(a_file_named_after_its_operator_takes_its_folders_name)
{
    static const char text[] = CASE("'seed':1");
    char path[100];
    path_of("deep", path, sizeof path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(read_bytes("deep/gqa_av.json", text, sizeof text - 1), ET_OK);
    ck_assert_str_eq(cases.at[0].id, "gqa_av/deep/a");
    ck_assert_int_eq(chdir(folder), 0);
    write_file("gqa_av.json", text, sizeof text - 1);
    /* However the path is spelled: an id that knew where it was run from would be another in CI. */
    char id[100];
    snprintf(id, sizeof id, "gqa_av/%s/a", strrchr(folder, '/') + 1);
    ck_assert_int_eq(et_cases_read("gqa_av.json", models, &port, &cases, &error), ET_OK);
    ck_assert_str_eq(cases.at[1].id, id);
    ck_assert_int_eq(et_cases_read("./gqa_av.json", models, &port, &cases, &error), ET_OK);
    ck_assert_str_eq(cases.at[2].id, id);
    ck_assert_int_eq(read_bytes("a b.json", text, sizeof text - 1), ET_INVALID);
    ck_assert_str_eq(sentence(),
                     "a b.json: \"a b\" cannot stand in an id: letters, digits and ._- only, a letter or "
                     "digit first");
    ck_assert_int_eq(chdir("/"), 0);
}
END_TEST

/* ---- Params ---- */

START_TEST(what_is_more_particular_wins)
{
    /* head_dim is set at every level, one level after the other left out */
    read_ok("{'format':1,'operator':'gqa_av','defaults':{'params':{'head_dim':1,'context':5}},'cases':["
            "{'name':'defaults','params':{'q_heads':1,'kv_heads':1}},"
            "{'name':'model','model':'big'},"
            "{'name':'params','model':'big','params':{'head_dim':2}},"
            "{'name':'shapes','model':'big','params':{'head_dim':2},'shapes':[{'head_dim':3}]},"
            "{'name':'sweep','model':'big','params':{'head_dim':2},'shapes':[{'head_dim':3}],"
            "'sweep':{'head_dim':[4]}},"
            "{'name':'step','model':'big','params':{'head_dim':2},'shapes':[{'head_dim':3}],"
            "'sweep':{'head_dim':[4]},'steps':[{},{'params':{'head_dim':6}},{}]}]}");
    static const int64_t head_dim[] = {1, 128, 2, 3, 4, 4};
    ck_assert_int_eq(cases.count, 6);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(params_of(i, 0)->head_dim, head_dim[i]);
    ck_assert_int_eq(params_of(5, 1)->head_dim, 6);
    ck_assert_int_eq(params_of(5, 2)->head_dim, 6);
    ck_assert_int_eq(params_of(5, 2)->q_heads, 64);
}
END_TEST

START_TEST(a_layer_lies_on_top_of_its_model)
{
    read_ok(
        FILE_OF("{'name':'a','model':'two','params':{'context':5},'sweep':{'layer':['local','global']}}"));
    static const char *const ids[] = {"gqa_av/t/a/layer=local", "gqa_av/t/a/layer=global"};
    assert_ids(ids, 2);
    ck_assert_int_eq(params_of(0, 0)->head_dim, 32);
    ck_assert_int_eq(params_of(0, 0)->kv_heads, 2);
    ck_assert_int_eq(params_of(1, 0)->head_dim, 64);
    ck_assert_int_eq(params_of(1, 0)->kv_heads, 1);
    ck_assert_int_eq(params_of(1, 0)->q_heads, 6);
}
END_TEST

START_TEST(tensor_parallelism_divides_heads_and_shares_the_last_kv_head)
{
    read_ok(FILE_OF("{'name':'a','model':'big','params':{'context':5},'sweep':{'tp':[1,4,8,16,64]}}"));
    static const int64_t q_heads[] = {64, 16, 8, 4, 1}, kv_heads[] = {8, 2, 1, 1, 1};
    ck_assert_int_eq(cases.count, 5);
    ck_assert_str_eq(cases.at[3].id, "gqa_av/t/a/tp=16");
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(params_of(i, 0)->q_heads, q_heads[i]);
        ck_assert_int_eq(params_of(i, 0)->kv_heads, kv_heads[i]);
        ck_assert_int_eq(params_of(i, 0)->head_dim, 128);
    }
}
END_TEST

START_TEST(tp_divides_what_the_model_gives_and_no_param)
{
    read_ok(FILE_OF("{'name':'a','model':'big','tp':8,'params':{'q_heads':24,'context':5}}"));
    ck_assert_int_eq(params_of(0, 0)->q_heads, 24);
    ck_assert_int_eq(params_of(0, 0)->kv_heads, 1);
}
END_TEST

START_TEST(tp_divides_what_a_layer_is_split_by)
{
    read_ok(FILE_OF(
        "{'name':'a','model':'two','params':{'context':5},'sweep':{'layer':['cut','local'],'tp':[1,2]}}"));
    static const int64_t head_dim[] = {20, 10, 32, 32};
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(params_of(i, 0)->head_dim, head_dim[i]);
    ck_assert_int_eq(params_of(1, 0)->q_heads, 3);
    ck_assert_int_eq(read_text(CASE("'model':'two','layer':'cut','tp':6")), ET_INVALID);
    ck_assert_str_eq(sentence(), "t.json:3:34: tp = 6 does not divide head_dim = 20 of two");
}
END_TEST

START_TEST(a_default_follows_the_field_it_is_taken_from)
{
    read_ok(
        CASE("'sweep':{'context':[5,9]},'steps':[{},{'params':{'context':7}},{'params':{'capacity':8}},"
             "{'params':{'context':6}}],'twins':[{'params':{'capacity':11}},{'params':{'query_length':1}}]"));
    ck_assert_int_eq(params_of(0, 0)->query_length, 1);
    ck_assert_int_eq(params_of(1, 0)->capacity, 9);
    ck_assert_int_eq(params_of(1, 1)->capacity, 7);
    ck_assert_int_eq(params_of(1, 2)->capacity, 8);
    ck_assert_int_eq(params_of(1, 3)->capacity, 8);
    ck_assert_int_eq(problem_of(0, 0, &cases.at[0].twins[0]).tensor[1].size[0], 11);
    ck_assert_int_eq(problem_of(0, 1, &cases.at[0].twins[1]).tensor[1].size[0], 7);
    ck_assert_int_eq(problem_of(0, 1, NULL).tensor[1].size[0], 7);
}
END_TEST

START_TEST(a_case_that_expects_a_refusal_is_not_refused_while_reading)
{
    read_ok(
        FILE_OF("{'name':'a','params':{'q_heads':0,'kv_heads':2,'head_dim':8,'context':5},"
                "'data':{'v':{'values':[1,2,3]}},'expect':{'refused':'q_heads is 0, must be at least 1'}}"));
    ck_assert_str_eq(cases.at[0].refused, "q_heads is 0, must be at least 1");
    _Alignas(16) unsigned char params[ET_PARAMS_BYTES];
    struct et_problem problem;
    ck_assert_int_eq(et_case_problem(&cases.at[0], 0, NULL, params, &problem, &error), ET_REFUSED);
    ck_assert_str_eq(error.text, cases.at[0].refused);
}
END_TEST

/* ---- Tiers ---- */

/* 67 keys have 7 bits, of 2 channels each. */
#define NARROW "'params':{'q_heads':1,'kv_heads':1,'head_dim':5,'kv_length':67}"
#define SAYS   "balance needs a head_dim of at least 14 for 67 keys, it is 5"

START_TEST(what_params_say_of_a_mask_no_data_may_say_otherwise)
{
#define ALIKE "'params':{'q_heads':1,'kv_heads':1,'head_dim':5,'kv_length':5,'mask':'materialised'}"
    ck_assert_int_eq(read_text("{'format':1,'operator':'flash_attn','cases':[\n{'name':'a'," ALIKE
                               ",'data':{'mask':{'constant':0}}}]}"),
                     ET_INVALID);
    ck_assert_str_eq(sentence(),
                     "t.json:2:113: flash_attn/t/a: mask is what the params say, and takes no data");
    ck_assert_int_eq(read_text("{'format':1,'operator':'flash_attn','cases':[\n{'name':'a'," ALIKE
                               ",'layout':{'mask':{'view_of':'k'}}}]}"),
                     ET_INVALID);
    ck_assert_str_eq(sentence(), "t.json:2:115: flash_attn/t/a: mask is what the params say, and no view");
    read_ok("{'format':1,'operator':'flash_attn','cases':[{'name':'a','params':{'q_heads':1,'kv_heads':1,"
            "'head_dim':5,'kv_length':5,'mask':'data'},'data':{'mask':{'constant':0}}}]}");
#undef ALIKE
}
END_TEST

START_TEST(a_fill_without_an_exact_result_is_a_bad_case)
{
    static const struct {
        const char *text, *sentence;
    } refused[] = {
        {"{'format':1,'operator':'flash_attn','cases':[\n{'name':'a'," NARROW
         ",'fills':['normal','balance']}]}",
         "t.json:2:1: flash_attn/t/a: " SAYS},
        {"{'format':1,'operator':'flash_attn','defaults':{'fills':['balance']},'cases':[\n{'name':'a'," NARROW
         "}]}",
         "t.json:2:1: flash_attn/t/a: " SAYS},
        {"{'format':1,'operator':'flash_attn','cases':[\n{'name':'a'," NARROW
         ",'data':{'k':{'fill':'balance'}}}]}",
         "t.json:2:1: flash_attn/t/a: " SAYS},
        {"{'format':1,'operator':'flash_attn','defaults':{" NARROW ",'fills':['balance']},'cases':[\n"
         "{'name':'a','shapes':[{'head_dim':14},{'head_dim':5}]}]}",
         "t.json:2:1: flash_attn/t/a/shape=s1: " SAYS},
        {"{'format':1,'operator':'flash_attn','defaults':{" NARROW ",'fills':['balance']},'cases':[\n"
         "{'name':'a','params':{'head_dim':12,'kv_length':64},'twins':[{'params':{'kv_length':67,'head_dim':"
         "5}"
         "}]}]}",
         "t.json:2:1: flash_attn/t/a: twin 0: " SAYS},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ck_assert_int_eq(read_text(refused[i].text), ET_INVALID);
        ck_assert_str_eq(sentence(), refused[i].sentence);
    }
    /* No input has the fill. */
    read_ok("{'format':1,'operator':'flash_attn','cases':[{'name':'a'," NARROW ",'fills':['balance'],'data':{"
            "'q':{'constant':1},'k':{'constant':1},'v':{'constant':1},'mask':{'constant':1},"
            "'sinks':{'constant':1}}}]}");
    /* What a case expects to be refused, it may ask for. */
    read_ok("{'format':1,'operator':'flash_attn','cases':[{'name':'a'," NARROW ",'fills':['balance'],"
            "'expect':{'refused':'" SAYS "'}}]}");
    const struct et_ask ask = {.variant = NULL};
    ck_assert_int_eq(et_case_fits(&cases.at[1], &ask, &error), ET_REFUSED);
    ck_assert_str_eq(error.text, SAYS);
}
END_TEST

START_TEST(a_cap_makes_a_case_of_its_own_in_its_tier)
{
    read_ok(CASE("'shapes':[{'label':'short','context':10},{'label':'long','context':300}],"
                 "'limit':{'default':{'context':17}}"));
    static const char *const ids[] = {"gqa_av/t/a/shape=short", "gqa_av/t/a/shape=long,tier=default",
                                      "gqa_av/t/a/shape=long"};
    static const enum et_tier tier[] = {ET_DEFAULT, ET_DEFAULT, ET_FULL};
    static const bool capped[] = {false, true, false};
    static const int64_t context[] = {10, 17, 300};
    assert_ids(ids, 3);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(cases.at[i].tier, tier[i]);
        ck_assert_int_eq(cases.at[i].capped, capped[i]);
        ck_assert_int_eq(params_of(i, 0)->context, context[i]);
        ck_assert_int_eq(params_of(i, 0)->capacity, context[i]);
    }
}
END_TEST

START_TEST(a_cap_holds_in_narrower_tiers_and_in_every_step)
{
    read_ok(CASE("'tier':'smoke','limit':{'smoke':{'head_dim':2},'default':{'context':17}},"
                 "'steps':[{},{'params':{'context':18}}]"));
    static const char *const ids[] = {"gqa_av/t/a/tier=smoke", "gqa_av/t/a/tier=default", "gqa_av/t/a"};
    static const int64_t head_dim[] = {2, 8, 8}, context[] = {17, 17, 18};
    assert_ids(ids, 3);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(cases.at[i].tier, i);
        ck_assert_int_eq(params_of(i, 0)->head_dim, head_dim[i]);
        ck_assert_int_eq(params_of(i, 0)->context, 5);
        ck_assert_int_eq(params_of(i, 1)->context, context[i]);
    }
}
END_TEST

START_TEST(where_full_is_capped_too_there_is_no_whole_form)
{
    read_ok(CASE("'tier':'full','limit':{'full':{'context':2}}"));
    static const char *const ids[] = {"gqa_av/t/a/tier=full"};
    assert_ids(ids, 1);
    ck_assert(cases.at[0].capped);
}
END_TEST

/* ---- Layouts ---- */

START_TEST(without_a_layout_tensors_are_packed)
{
    read_ok(CASE("'dtypes':{'v':'f16'}"));
    struct et_problem problem = problem_of(0, 0, NULL);
    for (int t = 0; t < 3; t++) {
        struct et_tensor packed = problem.tensor[t];
        ck_assert(et_tensor_pack(&packed));
        ck_assert_mem_eq(packed.stride, problem.tensor[t].stride, 3 * sizeof packed.stride[0]);
        ck_assert_int_eq(problem.tensor[t].offset, 0);
        ck_assert_uint_eq(problem.tensor[t].bytes, packed.bytes);
    }
    ck_assert_uint_eq(problem.tensor[1].bytes, 5 * 2 * 8 * 2); /* [5, 2, 8] of f16 */
}
END_TEST

START_TEST(padding_order_and_shift_place_every_element)
{
    read_ok(CASE("'layout':{'v':{'pad':{'capacity':[1,2],'head_dim':[0,3]},"
                 "'order':['kv_heads','capacity','head_dim'],'shift':5},'out':{'shift':3}}"));
    const struct et_problem problem = problem_of(0, 0, NULL);
    const struct et_tensor *v = &problem.tensor[1], *out = &problem.tensor[2];
    /* stored [2, 1 + 5 + 2, 8 + 3]: strides 88, 11, 1; one row of 11 and the shift before the first element
     */
    ck_assert_int_eq(v->stride[0], 11);
    ck_assert_int_eq(v->stride[1], 88);
    ck_assert_int_eq(v->stride[2], 1);
    ck_assert_int_eq(v->offset, 5 + 11);
    ck_assert_uint_eq(v->bytes, (5 + 2 * 88) * 4);
    ck_assert_int_eq(v->size[0], 5);
    ck_assert_int_eq(out->offset, 3);
    ck_assert_uint_eq(out->bytes, (3 + 1 * 4 * 8) * 4);
}
END_TEST

START_TEST(a_tensor_without_elements_has_no_bytes)
{
    read_ok(FILE_OF("{'name':'a','params':{'q_heads':4,'kv_heads':2,'head_dim':8,'context':0},"
                    "'layout':{'v':{'pad':{'capacity':[1,2]},'shift':5}}}"));
    const struct et_problem problem = problem_of(0, 0, NULL);
    ck_assert_uint_eq(problem.tensor[0].bytes, 0);
    ck_assert_uint_eq(problem.tensor[1].bytes, 0);
    ck_assert_int_eq(problem.tensor[1].offset, 0);
    ck_assert_uint_eq(problem.tensor[2].bytes, 4 * 8 * 4);
}
END_TEST

START_TEST(a_tensors_layout_replaces_the_default_one_whole)
{
    read_ok("{'format':1,'operator':'gqa_av','defaults':{" PARAMS
            ",'layout':{'v':{'shift':5},'w':{'shift':6}}},'cases':["
            "{'name':'a','layout':{'v':{'pad':{'head_dim':[0,1]}}}}]}");
    ck_assert_int_eq(cases.at[0].layout[1].shift, 0);
    ck_assert_int_eq(cases.at[0].layout[1].pad[2][1], 1);
    ck_assert_int_eq(cases.at[0].layout[0].shift, 6);
}
END_TEST

/* ---- Lists of values ---- */

/* w is [2, 4, 8] for 2 heads, one query, 5 keys: data are rows 0 and 4, lanes 0..4. v is [6, 1, 3], rows
 * 0..4. */
#define SMALL "'params':{'q_heads':2,'kv_heads':1,'head_dim':3,'context':5,'capacity':6}"

static const struct {
    int tensor;
    int64_t count;
    bool each;
    int64_t row, value; /* first of that row */
} maps[] = {
    {0, 1, false, 4, 0}, {0, 2, false, 0, 0}, {0, 2, false, 4, 1}, {0, 10, true, 0, 0}, {0, 10, true, 4, 5},
    {1, 1, false, 4, 0}, {1, 5, false, 0, 0}, {1, 5, false, 4, 4}, {1, 15, true, 0, 0}, {1, 15, true, 4, 12},
    {2, 1, false, 1, 0}, {2, 2, false, 1, 1}, {2, 6, true, 1, 3}, /* out is [1, 2, 3] */
};

START_TEST(a_list_covers_leading_dimensions_of_what_is_data)
{
    read_ok(FILE_OF("{'name':'a'," SMALL "}"));
    const struct et_problem problem = problem_of(0, 0, NULL);
    int64_t first[8] = {0};
    bool each = !maps[_i].each;
    ck_assert_int_le(et_tensor_rows(&problem.tensor[maps[_i].tensor]), 8);
    ck_assert_int_eq(et_values_map(&problem, maps[_i].tensor, maps[_i].count, first, &each, &error), ET_OK);
    ck_assert_int_eq(each, maps[_i].each);
    ck_assert_int_eq(first[maps[_i].row], maps[_i].value);
}
END_TEST

START_TEST(a_list_of_another_length_is_told_those_that_fit)
{
    read_ok(FILE_OF("{'name':'a'," SMALL "}"));
    const struct et_problem problem = problem_of(0, 0, NULL);
    bool each;
    ck_assert_int_eq(et_values_map(&problem, 0, 64, NULL, &each, &error), ET_REFUSED); /* of [2, 4, 8] */
    ck_assert_str_eq(error.text, "64 values for w, which can take 1, 2, 10");
    ck_assert_int_eq(et_values_map(&problem, 1, 6, NULL, &each, &error), ET_REFUSED); /* row 5 is poison */
    ck_assert_str_eq(error.text, "6 values for v, which can take 1, 5, 15");
    ck_assert_int_eq(et_values_map(&problem, 2, 0, NULL, &each, &error), ET_REFUSED);
    ck_assert_str_eq(error.text, "0 values for out, which can take 1, 2, 6");
}
END_TEST

START_TEST(data_stay_until_a_step_replaces_them_and_expectations_do_not)
{
    read_ok(CASE("'data':{'v':{'constant':1},'w':{'constant':2}},'expect':{'out':{'constant':5}},"
                 "'steps':[{'expect':{'out':{'constant':6}}},{'data':{'v':{'constant':'0x1p-1'}}},"
                 "{'data':{'w':{'fill':'uniform','seed':7}}}]"));
    const struct et_case_step *step = cases.at[0].steps;
    ck_assert_int_eq(cases.at[0].step_count, 3);
    ck_assert_double_eq(step[0].data[1].fill.value, 1);
    ck_assert_double_eq(step[1].data[1].fill.value, 0.5);
    ck_assert_double_eq(step[2].data[1].fill.value, 0.5);
    ck_assert_double_eq(step[1].data[0].fill.value, 2);
    ck_assert_int_eq(step[2].data[0].fill.kind, ET_FILL_UNIFORM);
    ck_assert(step[2].data[0].seeded && !step[2].data[1].seeded);
    ck_assert_uint_eq(step[2].data[0].fill.seed, 7);
    ck_assert_double_eq(step[0].expect[2].fill.value, 6);
    ck_assert_double_eq(step[1].expect[2].fill.value, 5);
    ck_assert_double_eq(step[2].expect[2].fill.value, 5);
    ck_assert(!step[0].expect[2].has_atol);
}
END_TEST

START_TEST(values_may_be_infinite_nan_and_hexadecimal)
{
    read_ok(CASE("'data':{'v':{'values':['inf','-inf','nan','0x1.8p-1',-3e38]}},"
                 "'expect':{'out':{'values':[0.5],'atol':1e-6}}"));
    const struct et_data *v = &cases.at[0].steps[0].data[1], *out = &cases.at[0].steps[0].expect[2];
    ck_assert_int_eq(v->kind, ET_DATA_VALUES);
    ck_assert_int_eq(v->count, 5);
    ck_assert(isinf(v->values[0]) && v->values[0] > 0);
    ck_assert(isinf(v->values[1]) && v->values[1] < 0);
    ck_assert(isnan(v->values[2]));
    ck_assert_double_eq(v->values[3], 0.75); /* 1.5 / 2 */
    ck_assert_double_eq(v->values[4], -3e38);
    ck_assert(out->given && out->has_atol);
    ck_assert_double_eq(out->atol, 1e-6);
}
END_TEST

START_TEST(a_tensor_may_come_from_a_file_beside_the_case_file)
{
    char path[100], text[1000];
    struct et_file_tensor stored[] = {{.name = "cache", .rank = 1, .size = {5}},
                                      {.name = "w", .rank = 3, .size = {4, 4, 8}}};
    void *map;
    size_t bytes;
    path_of("x.safetensors", path, sizeof path);
    ck_assert_msg(et_tensors_create(path, stored, 2, &map, &bytes, &error) == ET_OK, "%s", error.text);
    et_unmap(map, bytes);
    snprintf(text, sizeof text,
             CASE("'data':{'v':{'file':'x.safetensors','tensor':'cache'},'w':{'file':'%s','tensor':'w'}}"),
             path);
    read_ok(text);
    const struct et_data *data = cases.at[0].steps[0].data;
    ck_assert_int_eq(data[1].kind, ET_DATA_FILE);
    ck_assert_str_eq(data[1].file, path);
    ck_assert_str_eq(data[1].tensor, "cache");
    ck_assert_int_eq(data[1].count, 5);
    ck_assert_str_eq(data[0].file, path);
    ck_assert_int_eq(data[0].rank, 3);
}
END_TEST

/* ---- The rest of a case ---- */

START_TEST(defaults_are_those_documented)
{
    read_ok(FILE_OF("{'name':'a'," PARAMS "}"));
    const struct et_case *c = &cases.at[0];
    ck_assert_int_eq(c->line, 2);
    ck_assert_int_eq(c->column, 1);
    ck_assert_ptr_null(c->note);
    ck_assert_ptr_null(c->origin[0]);
    ck_assert_int_eq(c->tier, ET_DEFAULT);
    ck_assert(!c->capped && !c->bench && !c->refused);
    ck_assert_uint_eq(c->seed, 0);
    ck_assert_int_eq(c->poison, ET_POISON_NAN);
    ck_assert_int_eq(c->step_count, 1);
    ck_assert_int_eq(c->fill_count, 1);
    ck_assert_int_eq(c->fills[0], ET_FILL_NORMAL);
    ck_assert_int_eq(c->ask_count, 0);
    ck_assert_int_eq(c->rows, 0);
    ck_assert_int_eq(c->twin_count, 0);
    const struct et_checks *k = &c->checks;
    ck_assert_double_eq(k->nmse, 5e-4);
    ck_assert_double_eq(k->bound, 1);
    ck_assert_double_eq(k->noise, 4);
    ck_assert_double_eq(k->gain, 6);
    ck_assert_double_eq(k->agrees, 1);
    ck_assert(k->replay && k->identical && k->written && k->guards && k->inputs_kept && k->expect);
    ck_assert(!k->allclose);
    ck_assert_int_eq(k->repeat, 2);
}
END_TEST

START_TEST(everything_else_is_read)
{
    read_ok(CASE("'note':'n','origin':['a/b.c#12','d/e#3'],'tier':'smoke','bench':true,'seed':3,'rows':64,"
                 "'poison':'large','fills':['outlier','ramp'],"
                 "'twins':[{'params':{'capacity':6},'poison':'nan'},{'poison':'large'}]"));
    const struct et_case *c = &cases.at[0];
    ck_assert_str_eq(c->note, "n");
    ck_assert_str_eq(c->origin[0], "a/b.c#12");
    ck_assert_str_eq(c->origin[1], "d/e#3");
    ck_assert_ptr_null(c->origin[2]);
    ck_assert_int_eq(c->tier, ET_SMOKE);
    ck_assert(c->bench);
    ck_assert_uint_eq(c->seed, 3);
    ck_assert_int_eq(c->rows, 64);
    ck_assert_int_eq(c->poison, ET_POISON_LARGE);
    ck_assert_int_eq(c->fill_count, 2);
    ck_assert_int_eq(c->fills[0], ET_FILL_OUTLIER);
    ck_assert_int_eq(c->fills[1], ET_FILL_RAMP);
    ck_assert_int_eq(c->twin_count, 2);
    ck_assert(c->twins[0].edits[5] && !c->twins[0].edits[0] && c->twins[0].value[5] == 6);
    ck_assert(c->twins[0].has_poison && c->twins[0].poison == ET_POISON_NAN);
    ck_assert(c->twins[1].has_poison && c->twins[1].poison == ET_POISON_LARGE);
}
END_TEST

START_TEST(checks_add_to_the_defaults_one_by_one)
{
    read_ok(
        "{'format':1,'operator':'gqa_av','defaults':{" PARAMS ",'checks':{'repeat':5,'nmse':false}},'cases':["
        "{'name':'a','checks':{'gain':false,'bound':0.5,'replay':false,'allclose':{'atol':1e-3,'rtol':0}}},"
        "{'name':'b','checks':{'nmse':1e-5,'repeat':false}}]}");
    const struct et_checks *a = &cases.at[0].checks, *b = &cases.at[1].checks;
    ck_assert_double_lt(a->nmse, 0);
    ck_assert_double_lt(a->gain, 0);
    ck_assert_double_eq(a->bound, 0.5);
    ck_assert_double_eq(a->noise, 4);
    ck_assert(!a->replay && a->identical && a->allclose);
    ck_assert_double_eq(a->atol, 1e-3);
    ck_assert_double_eq(a->rtol, 0);
    ck_assert_int_eq(a->repeat, 5);
    ck_assert_double_eq(b->nmse, 1e-5);
    ck_assert_int_eq(b->repeat, 1);
}
END_TEST

START_TEST(lists_of_knobs_expand_and_are_named)
{
    read_ok(CASE("'variants':['plain',{'name':'tuned','tail':['local','subgroup'],'lanes':[1,64]},"
                 "{'name':'tuned','wide':true}]"));
    static const char *const names[] = {"plain",
                                        "tuned:lanes=1,tail=local",
                                        "tuned:lanes=64,tail=local",
                                        "tuned:lanes=1,tail=subgroup",
                                        "tuned:lanes=64,tail=subgroup",
                                        "tuned:wide=true"};
    ck_assert_int_eq(cases.at[0].ask_count, 6);
    for (int i = 0; i < 6; i++) {
        struct et_text text = {0};
        et_ask_name(&cases.at[0].asks[i], &text);
        ck_assert_str_eq(text.data, names[i]);
        ck_assert(cases.at[0].asks[i].named);
        et_text_free(&text);
    }
    ck_assert_ptr_eq(cases.at[0].asks[1].variant, &tuned);
    ck_assert_int_eq(cases.at[0].asks[4].knob[1], 1);
    ck_assert(cases.at[0].asks[5].knob[0] == ET_UNSET);
}
END_TEST

/* gqa and auto are etalon's own; fake has plain and tuned. */
START_TEST(variants_of_etalons_own_port_are_passed_over_by_another)
{
    read_ok(CASE("'variants':['gqa',{'name':'gqa_split','splits':[1,8]},'plain','auto']"));
    ck_assert_int_eq(cases.at[0].ask_count, 1);
    ck_assert_ptr_eq(cases.at[0].asks[0].variant, &plain);
    ck_assert(!cases.at[0].elsewhere);
    read_ok(CASE("'variants':['gqa','auto']"));
    const struct et_case *c = &cases.at[cases.count - 1];
    ck_assert_int_eq(c->ask_count, 0);
    ck_assert(c->elsewhere);
}
END_TEST

START_TEST(truths_and_names_of_fields_have_their_own_range)
{
    for (int i = 1; i <= 2; i++) {
        ck_assert_int_eq(et_field_check(&knobs[i], 0, &error), ET_OK);
        ck_assert_int_eq(et_field_check(&knobs[i], 1, &error), ET_OK);
        ck_assert_int_eq(et_field_check(&knobs[i], -1, &error), ET_REFUSED);
        ck_assert_int_eq(et_field_check(&knobs[i], 2, &error), ET_REFUSED);
    }
    ck_assert_str_eq(error.text, "wide is 2, must be at most 1");
}
END_TEST

/* What stands in an id is what --variant takes, so that a reproduce line reproduces. */
START_TEST(a_variant_of_the_command_line_is_written_as_ids_have_it)
{
    static const char *const texts[] = {"tuned:lanes=64,tail=subgroup,wide=true", "tuned:wide=false",
                                        "tuned:wide=1", "tuned:wide=truer", "tuned:lanes=true"};
    char path[100];
    path_of("t.json", path, sizeof path);
    write_file("t.json", CASE("'note':''"), strlen(CASE("'note':''")));
    for (int i = 0; i < 5; i++) {
        const char *target = path, *variant = texts[i];
        const struct et_options options = {
            .targets = {&target, 1}, .variants = {&variant, 1}, .shard = 1, .shards = 1, .cases = folder};
        struct et_plan plan;
        ck_assert_int_eq(et_plan_make(&options, &port, &plan, &error), i < 2 ? ET_OK : ET_INVALID);
        if (i < 2) {
            ck_assert_int_eq(plan.count, 1);
            ck_assert_str_eq(strrchr(plan.runs[0].id, '/') + 1, texts[i]);
        }
        et_plan_free(&plan);
    }
    ck_assert_str_eq(error.text, "--variant tuned:lanes=true: \"true\" is no value of knob lanes");
}
END_TEST

START_TEST(models_are_listed_in_order)
{
    const char *name = NULL, *source = NULL;
    ck_assert(et_models_entry(models, 1, &name, &source));
    ck_assert_str_eq(name, "two");
    ck_assert_str_eq(source, "b");
    ck_assert(et_models_entry(models, 3, &name, &source));
    ck_assert_str_eq(name, "all");
    ck_assert(!et_models_entry(models, 4, &name, &source));
    ck_assert(!et_models_entry(models, -1, &name, &source));
}
END_TEST

START_TEST(globs_cross_slashes)
{
    ck_assert(et_glob("gqa_av/*", "gqa_av/t/a/shape=s0/normal/plain"));
    ck_assert(et_glob("*/plain", "gqa_av/t/a/shape=s0/normal/plain"));
    ck_assert(et_glob("gqa_av/t/?", "gqa_av/t/a"));
    ck_assert(!et_glob("gqa_av", "gqa_av/t/a"));
    ck_assert(!et_glob("t", "gqa_av/t/a"));
    ck_assert(et_glob("*", ".hidden"));
}
END_TEST

START_TEST(tiers_have_names)
{
    enum et_tier tier = ET_SMOKE;
    ck_assert(et_tier_named("full", &tier));
    ck_assert_int_eq(tier, ET_FULL);
    ck_assert(!et_tier_named("Full", &tier));
    ck_assert_str_eq(et_tier_name(ET_SMOKE), "smoke");
}
END_TEST

/* ---- Any text ---- */

static const char whole[] =
    "{'format':1,'operator':'gqa_av','note':'n','defaults':{'params':{'q_heads':4,'context':7},\n"
    "'dtypes':{'v':'f16'}},'cases':[{'name':'a','origin':['a/"
    "b#1'],'tier':'smoke','model':'two','layer':'local',\n"
    "'tp':2,'params':{'kv_heads':1},'shapes':[{'context':9,'label':'x'},{'context':5}],\n"
    "'sweep':{'head_dim':[3,4],'dtypes':[{'w':'f16'},{}]},'layout':{'v':{'pad':{'capacity':[1,0]},\n"
    "'order':['kv_heads','capacity','head_dim'],'shift':2}},'fills':['normal','ramp'],'seed':3,'rows':4,\n"
    "'poison':'large','steps':[{'data':{'v':{'constant':1}}},{'params':{'context':5},\n"
    "'data':{'v':{'values':[1,2,3,4,'inf']}},'expect':{'out':{'values':[1],'atol':1e-3}}}],\n"
    "'variants':['plain',{'name':'tuned','lanes':[1,2],'tail':'local','wide':true}],\n"
    "'limit':{'smoke':{'context':6}},'checks':{'nmse':1,'replay':false,'repeat':2,\n"
    "'allclose':{'atol':1,'rtol':0}},'twins':[{'params':{'capacity':9}},{'poison':'nan'}]}]}";

START_TEST(any_text_is_read_or_refused_without_harm)
{
    static const char changes[] = "9\"]x-";
    char text[sizeof whole];
    const size_t n = sizeof whole - 1;
    int refused = 0, read = 0;
    ck_assert_msg(read_bytes("t.json", whole, n) == ET_OK, "%s", error.text);
    for (size_t i = 0; i < n; i++) {
        ck_assert_int_eq(read_bytes("t.json", whole, i), ET_INVALID);
        memcpy(text, whole, i);
        memcpy(text + i, whole + i + 1, n - i - 1);
        refused += read_bytes("t.json", text, n - 1) != ET_OK;
        memcpy(text, whole, n);
        for (size_t k = 0; k < sizeof changes - 1; k++) {
            text[i] = changes[k];
            const bool ok = read_bytes("t.json", text, n) == ET_OK;
            read += ok;
            refused += !ok;
            if (!ok)
                ck_assert_ptr_nonnull(strstr(error.text, "json:"));
        }
        et_cases_free(&cases);
    }
    ck_assert_int_gt(read, 0);
    ck_assert_int_gt(refused, read);
}
END_TEST

#define GEMM(rest)                                                                                           \
    "{'format':1,'operator':'skinny_gemm','cases':[\n{'name':'a','params':{'tokens':1,'out_features':2,"     \
    "'in_features':64},\n" rest "}]}"

START_TEST(an_operators_own_fill_takes_its_own_option)
{
    read_ok(GEMM("'data':{'weight':{'fill':'cancel','rest':0.25,'seed':5}}"));
    const struct et_data *data = &cases.at[0].steps[0].data[0];
    ck_assert(et_data_is_own(data) && !et_data_is_own(&cases.at[0].steps[0].data[4]));
    ck_assert_double_eq(data->fill.value, 0.25);
    ck_assert_uint_eq(data->fill.seed, 5);
    et_cases_free(&cases);
    read_ok(GEMM("'data':{'weight':{'fill':'cancel'}}"));
    ck_assert_double_eq(cases.at[0].steps[0].data[0].fill.value, 0);
}
END_TEST

START_TEST(an_operators_own_fill_is_for_its_own_tensor_and_its_option_for_no_other)
{
    static const struct {
        const char *text, *sentence;
    } refused[] = {
        {GEMM("'data':{'act':{'fill':'cancel'}}"),
         "t.json:3:23: there is no fill \"cancel\"; the nearest is \"normal\""},
        {GEMM("'data':{'weight':{'fill':'normal','rest':1}}"),
         "t.json:3:35: rest goes with the fill \"cancel\" only"},
        {GEMM("'data':{'weight':{'constant':1,'rest':1}}"),
         "t.json:3:32: rest goes with the fill \"cancel\" only"},
        {GEMM("'data':{'weight':{'fill':'cancel','rest':2}}"),
         "t.json:3:42: data.weight: rest is 2, must be at most 1"},
        {GEMM("'data':{'weight':{'fill':'cancel','value':2}}"),
         "t.json:3:43: fill \"cancel\" takes no value"},
        {GEMM("'fills':['cancel']"), "t.json:3:10: there is no fill \"cancel\"; the nearest is \"normal\""},
        {CASE("'data':{'v':{'fill':'ramp','rest':1}}"),
         "t.json:3:28: data.v has no \"rest\"; the nearest is \"seed\""},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ck_assert_int_eq(read_text(refused[i].text), ET_INVALID);
        ck_assert_str_eq(sentence(), refused[i].sentence);
    }
}
END_TEST

/* Bias is of out's type unless it says otherwise. */
START_TEST(a_type_by_default_is_that_of_the_tensor_it_follows)
{
    read_ok(GEMM("'dtypes':{'weight':'f16','act':'f16','out':'f16'}"));
    ck_assert_int_eq(cases.at[0].dtype[5], ET_F16);
    et_cases_free(&cases);
    read_ok(GEMM("'dtypes':{'weight':'f16','act':'f16','out':'f16','bias':'f32'}"));
    ck_assert_int_eq(cases.at[0].dtype[5], ET_F32);
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("case");
    TCase *all = tcase_create("case");
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_set_timeout(all, 60);
    tcase_add_loop_test(all, a_bad_case_file_is_refused_at_its_place, 0, (int)(sizeof bad / sizeof bad[0]));
    tcase_add_loop_test(all, a_bad_model_file_is_refused_at_its_place, 0,
                        (int)(sizeof bad_models / sizeof bad_models[0]));
    tcase_add_test(all, a_failed_file_leaves_the_cases_read_before);
    tcase_add_test(all, a_model_gives_flash_attn_params_of_every_kind);
    tcase_add_test(all, a_case_needs_no_models_until_it_names_one);
    tcase_add_test(all, shapes_come_before_sweeps_and_the_first_key_is_outermost);
    tcase_add_test(all, objects_lists_and_numbers_are_short_in_ids);
    tcase_add_test(all, a_file_named_after_its_operator_takes_its_folders_name);
    tcase_add_test(all, what_is_more_particular_wins);
    tcase_add_test(all, a_layer_lies_on_top_of_its_model);
    tcase_add_test(all, tensor_parallelism_divides_heads_and_shares_the_last_kv_head);
    tcase_add_test(all, tp_divides_what_the_model_gives_and_no_param);
    tcase_add_test(all, tp_divides_what_a_layer_is_split_by);
    tcase_add_test(all, a_default_follows_the_field_it_is_taken_from);
    tcase_add_test(all, a_case_that_expects_a_refusal_is_not_refused_while_reading);
    tcase_add_test(all, what_params_say_of_a_mask_no_data_may_say_otherwise);
    tcase_add_test(all, a_fill_without_an_exact_result_is_a_bad_case);
    tcase_add_test(all, a_cap_makes_a_case_of_its_own_in_its_tier);
    tcase_add_test(all, a_cap_holds_in_narrower_tiers_and_in_every_step);
    tcase_add_test(all, where_full_is_capped_too_there_is_no_whole_form);
    tcase_add_test(all, without_a_layout_tensors_are_packed);
    tcase_add_test(all, padding_order_and_shift_place_every_element);
    tcase_add_test(all, a_tensor_without_elements_has_no_bytes);
    tcase_add_test(all, a_tensors_layout_replaces_the_default_one_whole);
    tcase_add_loop_test(all, a_list_covers_leading_dimensions_of_what_is_data, 0,
                        (int)(sizeof maps / sizeof maps[0]));
    tcase_add_test(all, a_list_of_another_length_is_told_those_that_fit);
    tcase_add_test(all, data_stay_until_a_step_replaces_them_and_expectations_do_not);
    tcase_add_test(all, values_may_be_infinite_nan_and_hexadecimal);
    tcase_add_test(all, a_tensor_may_come_from_a_file_beside_the_case_file);
    tcase_add_test(all, defaults_are_those_documented);
    tcase_add_test(all, everything_else_is_read);
    tcase_add_test(all, checks_add_to_the_defaults_one_by_one);
    tcase_add_test(all, lists_of_knobs_expand_and_are_named);
    tcase_add_test(all, variants_of_etalons_own_port_are_passed_over_by_another);
    tcase_add_test(all, truths_and_names_of_fields_have_their_own_range);
    tcase_add_test(all, a_variant_of_the_command_line_is_written_as_ids_have_it);
    tcase_add_test(all, models_are_listed_in_order);
    tcase_add_test(all, globs_cross_slashes);
    tcase_add_test(all, tiers_have_names);
    tcase_add_test(all, any_text_is_read_or_refused_without_harm);
    tcase_add_test(all, an_operators_own_fill_takes_its_own_option);
    tcase_add_test(all, an_operators_own_fill_is_for_its_own_tensor_and_its_option_for_no_other);
    tcase_add_test(all, a_type_by_default_is_that_of_the_tensor_it_follows);
    suite_add_tcase(suite, all);
    return suite;
}
