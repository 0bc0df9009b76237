/* The command line: run, mutate, diff, list, describe, worker. */
#define _GNU_SOURCE

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../blas/blas.h"
#include "../ocl/ocl.h"
#include "describe.h"
#include "diff.h"
#include "dump.h"
#include "json.h"
#include "run.h"
#include "runner.h"

#ifndef ET_VERSION
#define ET_VERSION "unknown"
#endif
#ifndef ET_INSTALLED
#define ET_INSTALLED "../share/etalon" /* from the folder of the executable, or from the root */
#endif
#ifndef ET_CASES
#define ET_CASES "cases"
#endif
#ifndef ET_MUTANTS
#define ET_MUTANTS "tools/mutants"
#endif

static const char usage[] =
    "usage: etalon run [FILE|DIR|ID ...]   judge cases; default: the built-in ones, tier default, every "
    "device\n"
    "       etalon dump [FILE|DIR|ID ...] -o DIR     inputs, oracle values and tolerances as files\n"
    "       etalon check DIR [FILE|DIR|ID ...]       judge outputs that were made of a dump's inputs "
    "elsewhere\n"
    "       etalon mutate [GLOB ...]         which check notices which known bug; default: all mutants\n"
    "       etalon diff OLD NEW              what changed between two results files; etalon diff --help\n"
    "       etalon list devices|operators|models\n"
    "       etalon describe [OP]             params, tensors, variants and checks of an operator; see "
    "\"forms\"\n"
    "       etalon --version | -h, --help\n"
    "\n"
    "selection   -t, --tier smoke|default|full    -k, --filter GLOB    --exclude GLOB    --operator OP\n"
    "            --cases DIR, --mutants DIR (in place of the built-in ones)\n"
    "            --variant NAME[:knob=N,..]       --shard K/N          --failed RESULTS.jsonl (what failed "
    "there)\n"
    "            --dry-run (list the runs; -v: what "
    "their checks could see, what is left out)\n"
    "device      --device NAME-GLOB|P:D           --port ocl[:DIR]|openblas|exec:CMD|plugin:FILE.so\n"
    "            --guards on|off\n"
    "            --limit work_group=N,local_memory=N,alloc=N,no_subgroups (a smaller device; N: 64, 16K, "
    "2M, 1G)\n"
    "execution   -j, --threads N                  --timeout S          --repeat N        --seed N\n"
    "            -x | --max-fail N (end early)    --memory SIZE (skip runs with larger buffers; 64K, 2M, "
    "1G)\n"
    "verdicts    --strict                         --known FILE\n"
    "            --outputs DIR (of check: where outputs lie, if not in the dump)\n"
    "output      -o, --results FILE.jsonl         --junit FILE.xml     -v, --verbose     -q, --quiet\n"
    "            --color auto|always|never        --slowest N          --keep DIR (the jobs of failing "
    "runs)\n"
    "            --binaries DIR (the programs as the driver built them)\n"
    "forms       --json (all that is known)       --abi (kernel arguments and options of each variant)\n"
    "            --schema (JSON Schema of case files; without OP: of all operators)\n"
    "            --skeleton DIR (a folder of kernels to start from, for --port ocl:DIR)\n"
    "\n"
    "exit: 0 passed, 1 failed, 2 usage or bad case file, 3 nothing could be judged, 128+N interrupted by "
    "signal N\n";

/* The one thing a signal handler may touch. */
static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    stop = number;
}

/* While there is nothing to be kept or removed yet. */
static void leave(int number)
{
    _exit(128 + number);
}

static int refuse(const char *format, const char *a, const char *b)
{
    et_complain(format, a, b);
    return ET_EXIT_USAGE;
}

/* ---- Options ---- */

enum {
    OPT_EXCLUDE = 256,
    OPT_OPERATOR,
    OPT_VARIANT,
    OPT_SHARD,
    OPT_DRY_RUN,
    OPT_DEVICE,
    OPT_PORT,
    OPT_GUARDS,
    OPT_LIMIT,
    OPT_TIMEOUT,
    OPT_REPEAT,
    OPT_SEED,
    OPT_STRICT,
    OPT_KNOWN,
    OPT_COLOR,
    OPT_JUNIT,
    OPT_FAILED,
    OPT_MAX_FAIL,
    OPT_SLOWEST,
    OPT_KEEP,
    OPT_BINARIES,
    OPT_MEMORY,
    OPT_CASES,
    OPT_MUTANTS,
    OPT_LIST,
    OPT_JSON,
    OPT_ABI,
    OPT_SCHEMA,
    OPT_SKELETON,
    OPT_OUTPUTS,
    OPT_HELP
};

static const struct option options_table[] = {
    {"tier", required_argument, NULL, 't'},
    {"filter", required_argument, NULL, 'k'},
    {"exclude", required_argument, NULL, OPT_EXCLUDE},
    {"operator", required_argument, NULL, OPT_OPERATOR},
    {"variant", required_argument, NULL, OPT_VARIANT},
    {"shard", required_argument, NULL, OPT_SHARD},
    {"dry-run", no_argument, NULL, OPT_DRY_RUN},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"port", required_argument, NULL, OPT_PORT},
    {"guards", required_argument, NULL, OPT_GUARDS},
    {"limit", required_argument, NULL, OPT_LIMIT},
    {"threads", required_argument, NULL, 'j'},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {"repeat", required_argument, NULL, OPT_REPEAT},
    {"seed", required_argument, NULL, OPT_SEED},
    {"strict", no_argument, NULL, OPT_STRICT},
    {"known", required_argument, NULL, OPT_KNOWN},
    {"results", required_argument, NULL, 'o'},
    {"junit", required_argument, NULL, OPT_JUNIT},
    {"failed", required_argument, NULL, OPT_FAILED},
    {"max-fail", required_argument, NULL, OPT_MAX_FAIL},
    {"slowest", required_argument, NULL, OPT_SLOWEST},
    {"keep", required_argument, NULL, OPT_KEEP},
    {"binaries", required_argument, NULL, OPT_BINARIES},
    {"memory", required_argument, NULL, OPT_MEMORY},
    {"verbose", no_argument, NULL, 'v'},
    {"quiet", no_argument, NULL, 'q'},
    {"color", required_argument, NULL, OPT_COLOR},
    {"cases", required_argument, NULL, OPT_CASES},
    {"mutants", required_argument, NULL, OPT_MUTANTS},
    {"list", no_argument, NULL, OPT_LIST},
    {"json", no_argument, NULL, OPT_JSON},
    {"abi", no_argument, NULL, OPT_ABI},
    {"schema", no_argument, NULL, OPT_SCHEMA},
    {"skeleton", required_argument, NULL, OPT_SKELETON},
    {"outputs", required_argument, NULL, OPT_OUTPUTS},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

/* Digits alone: no sign, no blank. *end is behind them. */
static bool digits(const char *text, long long min, long long max, long long *value, const char **end)
{
    char *behind;
    errno = 0;
    *value = strtoll(text, &behind, 10);
    *end = behind;
    return *text >= '0' && *text <= '9' && !errno && *value >= min && *value <= max;
}

static bool whole(const char *text, long long min, long long max, long long *value)
{
    const char *end;
    return digits(text, min, max, value, &end) && !*end;
}

static bool add(struct et_strings *list, const char *text)
{
    const char **grown = et_resize(list->at, (size_t)list->count + 1, sizeof *grown, NULL);
    if (!grown)
        return false;
    list->at = grown;
    list->at[list->count++] = text;
    return true;
}

static bool one_of(const char *text, const char *const *names, int *index)
{
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], text)) {
            *index = i;
            return true;
        }
    return false;
}

static bool parse_shard(const char *text, struct et_options *options)
{
    const char *slash;
    long long k, n;
    if (!digits(text, 1, INT_MAX, &k, &slash) || *slash != '/' || !whole(slash + 1, k, 100000, &n))
        return false;
    options->shard = (int)k;
    options->shards = (int)n;
    return true;
}

/* A count in ones, K, M or G, 1 to ET_EXACT; 0 where *text begins with none. *text moves behind it. */
static int64_t read_amount(const char **text)
{
    static const char suffixes[] = "KMG";
    const char *end;
    long long n;
    const bool good = digits(*text, 0, ET_EXACT, &n, &end);
    const char *suffix = *end ? strchr(suffixes, *end) : NULL;
    const int shift = suffix ? 10 * (int)(suffix - suffixes + 1) : 0;
    *text = end + (suffix ? 1 : 0);
    return good && n <= ET_EXACT >> shift ? (int64_t)n << shift : 0;
}

/* One of the list: "NAME=" and an amount, or no_subgroups; each once. *text moves behind it. */
static bool read_limit(const char **text, struct et_ceilings *limits)
{
    static const char flag[] = "no_subgroups";
    const struct {
        const char *name;
        int64_t *value;
    } amounts[] = {{"work_group=", &limits->work_group},
                   {"local_memory=", &limits->local_memory},
                   {"alloc=", &limits->allocation}};
    for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++) {
        const size_t length = strlen(amounts[i].name);
        if (strncmp(*text, amounts[i].name, length) != 0)
            continue;
        *text += length;
        const bool again = *amounts[i].value != 0;
        *amounts[i].value = read_amount(text);
        return !again && *amounts[i].value > 0;
    }
    if (limits->no_subgroups || strncmp(*text, flag, strlen(flag)) != 0)
        return false;
    *text += strlen(flag);
    return limits->no_subgroups = true;
}

static bool parse_limits(const char *text, struct et_ceilings *limits)
{
    *limits = (struct et_ceilings){0};
    while (read_limit(&text, limits))
        if (*text++ != ',')
            return text[-1] == '\0';
    return false;
}

/* Sets one option; false where the argument is not one it takes. */
static bool set_option(int option, struct et_options *options)
{
    static const char *const tiers[] = {"smoke", "default", "full", NULL};
    static const char *const switches[] = {"off", "on", NULL};
    static const char *const colors[] = {"never", "always", "auto", NULL};
    int index = 0;
    long long n = 0;
    char *end;
    const char *amount = optarg;
    bool good = true;
    switch (option) {
    case 't':
        good = one_of(optarg, tiers, &index);
        options->tier = (enum et_tier)index;
        return good;
    case 'k':
        return *optarg && add(&options->filters, optarg);
    case OPT_EXCLUDE:
        return *optarg && add(&options->excludes, optarg);
    case OPT_OPERATOR:
        return et_operator_named(optarg) && add(&options->operators, optarg);
    case OPT_VARIANT:
        return add(&options->variants, optarg);
    case OPT_SHARD:
        return parse_shard(optarg, options);
    case OPT_DEVICE:
        return *optarg && add(&options->devices, optarg);
    case OPT_PORT:
        options->port = optarg;
        options->folder = !strncmp(optarg, "ocl:", 4) ? optarg + 4 : NULL;
        options->command = !strncmp(optarg, "exec:", 5) ? optarg + 5 : NULL;
        options->plugin = !strncmp(optarg, "plugin:", 7) ? optarg + 7 : NULL;
        options->openblas = !strcmp(optarg, "openblas");
        return !strcmp(optarg, "ocl") || options->openblas || (options->folder && *options->folder) ||
               (options->command && *options->command) || (options->plugin && *options->plugin);
    case OPT_GUARDS:
        good = one_of(optarg, switches, &index);
        options->guards = index == 1;
        return good;
    case OPT_LIMIT:
        options->limit = optarg;
        return parse_limits(optarg, &options->limits);
    case 'j':
        good = whole(optarg, 1, 1024, &n);
        options->threads = (int)n;
        return good;
    case OPT_TIMEOUT:
        options->timeout_s = strtod(optarg, &end);
        return *optarg && !*end && options->timeout_s > 0 && options->timeout_s <= 1e6;
    case OPT_REPEAT:
        good = whole(optarg, 1, 10000, &n);
        options->repeat = (int)n;
        return good;
    case OPT_SEED:
        good = whole(optarg, 0, 9007199254740991, &n);
        options->seed = (uint64_t)n;
        options->has_seed = true;
        return good;
    case OPT_COLOR:
        good = one_of(optarg, colors, &index);
        options->color = index == 1 || (index == 2 && options->color);
        return good;
    case OPT_DRY_RUN:
        options->dry_run = true;
        return true;
    case OPT_STRICT:
        options->strict = true;
        return true;
    case OPT_KNOWN:
        options->known = optarg;
        return *optarg;
    case 'o':
        options->results = optarg;
        return *optarg;
    case OPT_JUNIT:
        options->junit = optarg;
        return *optarg;
    case OPT_FAILED:
        options->failed = optarg;
        return *optarg;
    case OPT_KEEP:
        options->keep = optarg;
        return *optarg;
    case OPT_BINARIES:
        options->binaries = optarg;
        return *optarg;
    case 'x':
        options->max_fail = 1;
        return true;
    case OPT_MAX_FAIL:
        good = whole(optarg, 1, INT_MAX, &n);
        options->max_fail = (int)n;
        return good;
    case OPT_SLOWEST:
        good = whole(optarg, 1, 10000, &n);
        options->slowest = (int)n;
        return good;
    case OPT_MEMORY:
        options->memory = read_amount(&amount);
        return options->memory > 0 && !*amount;
    case 'v':
        options->verbose = true;
        return true;
    case 'q':
        options->quiet = true;
        return true;
    case OPT_CASES:
        options->cases = optarg;
        options->has_cases = true;
        return *optarg;
    case OPT_MUTANTS:
        options->mutants = optarg;
        return *optarg;
    case OPT_LIST:
        return options->list = true;
    case OPT_JSON:
        return options->json = true;
    case OPT_ABI:
        return options->abi = true;
    case OPT_SCHEMA:
        return options->schema = true;
    case OPT_OUTPUTS:
        options->outputs = optarg;
        return *optarg != '\0';
    case OPT_SKELETON:
        options->skeleton = optarg;
        return *optarg != '\0';
    default:
        return false;
    }
}

static void free_options(struct et_options *options)
{
    struct et_strings *const lists[] = {&options->targets,   &options->filters,  &options->excludes,
                                        &options->operators, &options->variants, &options->devices};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        et_free(lists[i]->at);
}

/* Where the files that come with etalon are: beside an installed executable, or else in the source tree. */
struct data {
    char cases[PATH_MAX], mutants[PATH_MAX];
};

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static void find_data(const char *program, struct data *data)
{
    const char *slash = strrchr(program, '/');
    const int n = ET_INSTALLED[0] == '/' || !slash ? 0 : (int)(slash - program) + 1;
    const int a = snprintf(data->cases, PATH_MAX, "%.*s%s/cases", n, program, ET_INSTALLED);
    const int b = snprintf(data->mutants, PATH_MAX, "%.*s%s/mutants", n, program, ET_INSTALLED);
    if (a >= PATH_MAX || !is_folder(data->cases))
        snprintf(data->cases, PATH_MAX, "%s", ET_CASES);
    if (b >= PATH_MAX || !is_folder(data->mutants))
        snprintf(data->mutants, PATH_MAX, "%s", ET_MUTANTS);
}

static struct et_options defaults(const struct data *data)
{
    const char *plain = getenv("NO_COLOR"), *cases = getenv("ETALON_CASES");
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return (struct et_options){.tier = ET_DEFAULT,
                               .shard = 1,
                               .shards = 1,
                               .guards = true,
                               .color = isatty(STDOUT_FILENO) && !(plain && *plain),
                               .port = "ocl",
                               .threads = cores < 1      ? 1
                                          : cores > 1024 ? 1024
                                                         : (int)cores,
                               .cases = cases && *cases ? cases : data->cases,
                               .mutants = data->mutants};
}

/* The row of an option; the last row, without a name, for a letter that is none. */
static const struct option *row_of(int option)
{
    const struct option *row = options_table;
    while (row->name && row->val != option)
        row++;
    return row;
}

/* getopt leaves in optopt what it stumbled over; 0: a long option that it does not know. */
static int refuse_option(const char *word)
{
    const struct option *row = row_of(optopt);
    const char letter[] = {'-', (char)optopt, '\0'};
    if (optopt == 0 || !row->name)
        return refuse("%s is no option%s; see etalon --help", optopt == 0 ? word : letter, "");
    return refuse("--%s %s; see etalon --help", row->name,
                  row->has_arg == required_argument ? "lacks its argument" : "takes no argument");
}

/* Reads everything after the subcommand; bit i of *given: row i of options_table was. Returns an exit status,
 * or -1 to go on. */
static int parse(int argc, char **argv, struct et_options *options, uint64_t *given)
{
    *given = 0;
    opterr = 0;
    optind = 1;
    for (;;) {
        const int option = getopt_long(argc, argv, "t:k:j:o:xvqh", options_table, NULL);
        if (option == -1)
            break;
        if (option == OPT_HELP || option == 'h') {
            fputs(usage, stdout);
            return ET_EXIT_PASS;
        }
        if (option == '?' || option == ':')
            return refuse_option(argv[optind - 1]);
        errno = 0;
        *given |= UINT64_C(1) << (row_of(option == 'x' ? OPT_MAX_FAIL : option) - options_table);
        if (set_option(option, options))
            continue;
        if (optarg && !*optarg && errno != ENOMEM)
            return refuse("--%s takes no empty argument%s; see etalon --help", row_of(option)->name, "");
        return errno == ENOMEM ? refuse("out of memory%s%s", "", "")
                               : refuse("\"%s\" is not what --%s takes; see etalon --help",
                                        optarg ? optarg : "", row_of(option)->name);
    }
    for (int i = optind; i < argc; i++)
        if (!add(&options->targets, argv[i]))
            return refuse("out of memory%s%s", "", "");
    options->progress = !options->quiet && isatty(STDERR_FILENO);
    return -1;
}

/* ---- Files that are read and written ---- */

struct named {
    const char *option, *path; /* path NULL: not given */
};

/* The folder of a path, and its name in it. */
static bool split(const char *path, struct stat *folder, const char **name)
{
    const char *slash = strrchr(path, '/');
    char parent[PATH_MAX] = ".";
    if (slash && (size_t)(slash - path) + 2 > sizeof parent)
        return false;
    if (slash)
        snprintf(parent, sizeof parent, "%.*s/", (int)(slash - path), path);
    *name = slash ? slash + 1 : path;
    return stat(parent, folder) == 0;
}

/* Whether what is written to one would destroy the other: not of terminals, pipes, /dev/null. */
static bool one_file(const char *a, const char *b)
{
    struct stat x, y;
    const char *name_a, *name_b;
    const bool there = stat(a, &x) == 0;
    if (there != (stat(b, &y) == 0))
        return false;
    if (there)
        return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
    return split(a, &x, &name_a) && split(b, &y, &name_b) && x.st_dev == y.st_dev && x.st_ino == y.st_ino &&
           !strcmp(name_a, name_b);
}

static bool clash(const struct named *output, const struct named *other)
{
    if (!output->path || !other->path || !one_file(output->path, other->path))
        return false;
    et_complain("%s %s and %s %s are one file", output->option, output->path, other->option, other->path);
    return true;
}

static bool clashes_with_data(const struct named *output, const struct et_data *data)
{
    return data->given && data->kind == ET_DATA_FILE &&
           clash(output, &(struct named){"the data file", data->file});
}

/* The case and what its steps read. */
static bool clashes_with_case(const struct named *output, const struct et_case *c)
{
    if (output->path && clash(output, &(struct named){"the case file", c->file}))
        return true;
    for (int i = 0; output->path && i < c->step_count; i++)
        for (int t = 0; c->op->tensors[t].name; t++)
            if (clashes_with_data(output, &c->steps[i].data[t]) ||
                clashes_with_data(output, &c->steps[i].expect[t]))
                return true;
    return false;
}

static bool clashes_with_folder(const struct named *output, const char *folder)
{
    char path[PATH_MAX];
    DIR *there = opendir(folder);
    bool clashes = false;
    for (const struct dirent *entry; there && !clashes && (entry = readdir(there));) {
        const int n = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        clashes = n < (int)sizeof path && clash(output, &(struct named){"the dump's file", path});
    }
    if (there)
        closedir(there);
    return clashes;
}

/* The manifest, and what lies in the folders of runs: jobs, truth, outputs. */
static bool clashes_with_dump(const struct named *output, const struct et_options *options)
{
    const char *const parents[] = {options->dumped, options->outputs};
    char path[PATH_MAX];
    if (!output->path || !options->dump)
        return false;
    snprintf(path, sizeof path, "%s/manifest.json", options->dumped);
    if (clash(output, &(struct named){"the manifest", path}))
        return true;
    for (int i = 0; i < 2 * options->dump->count; i++) {
        const long long folder = (long long)options->dump->at[i / 2].folder;
        if (!parents[i % 2])
            continue;
        snprintf(path, sizeof path, "%s/%lld", parents[i % 2], folder);
        if (clashes_with_folder(output, path))
            return true;
    }
    return false;
}

/* Told on stderr: an output that is another, or that the run reads. */
static bool outputs_clash(const struct et_options *options, const struct et_plan *plan)
{
    const struct named files[] = {{"--results", options->results}, {"--junit", options->junit},
                                  {"--keep", options->keep},       {"--known", options->known},
                                  {"--failed", options->failed},   {"--port", options->plugin}};
    enum { OUTPUTS = 3, FILES = sizeof files / sizeof *files };
    for (int i = 0; i < OUTPUTS; i++) {
        for (int k = i + 1; k < FILES; k++)
            if (clash(&files[i], &files[k]))
                return true;
        if (clashes_with_dump(&files[i], options))
            return true;
        for (int k = 0; k < plan->cases.count; k++)
            if (clashes_with_case(&files[i], &plan->cases.at[k]))
                return true;
    }
    return false;
}

/* ---- Commands ---- */

static void on_signals(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler,
                               .sa_flags = (int)SA_RESETHAND}; /* the second one ends at once */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL); /* a file beyond ulimit -f is a write that fails */
}

static bool is_outside(const struct et_options *options)
{
    return options->command || options->plugin || options->openblas;
}

/*
 * The port that options name. Where it is not the OpenCL port, a program of others is started for it, or a
 * worker that loads OpenBLAS or a shared object of others: what it has, its hello says. To be closed also
 * after a failure.
 */
struct opened {
    const struct et_port *port;
    const char *argv[9];
    struct et_offer offer;
    struct et_runner runner;
};

/* argv has room for 9. */
static void set_worker(const struct et_options *options, const char **argv)
{
    int n = 0;
    argv[n++] = options->program;
    argv[n++] = "worker";
    argv[n++] = "--port";
    argv[n++] = options->port;
    if (!options->guards) {
        argv[n++] = "--guards";
        argv[n++] = "off";
    }
    if (options->limit) {
        argv[n++] = "--limit";
        argv[n++] = options->limit;
    }
    argv[n] = NULL;
}

static enum et_status open_port(struct et_options *options, struct opened *opened, struct et_error *error)
{
    *opened = (struct opened){.port = &et_ocl};
    if (!is_outside(options))
        return ET_OK;
    if (options->command && (!options->guards || options->limit))
        return et_fail(error, ET_INVALID, "--port exec:CMD takes no --guards and no --limit: they are CMD's");
    if (options->binaries)
        return et_fail(error, ET_INVALID, "--port %s takes no --binaries: it builds nothing of etalon's",
                       options->port);
    on_signals(on_signal); /* it may never say hello, and is to be ended */
    if (options->command)
        memcpy(opened->argv, (const char *[]){"/bin/sh", "-c", options->command}, 3 * sizeof *opened->argv);
    else
        set_worker(options, opened->argv);
    opened->runner = (struct et_runner){.argv = opened->argv, .offer = &opened->offer, .stop = &stop};
    options->outsider = &opened->runner;
    opened->port = &opened->offer.port;
    struct et_error why;
    const double seconds = options->timeout_s > 0 ? options->timeout_s : ET_HELLO_S;
    const enum et_status status = et_runner_start(&opened->runner, seconds, &why);
    on_signals(leave); /* it waits for requests, and ends where none can come */
    return status == ET_OK ? ET_OK : et_fail(error, ET_LACKING, "--port %s: %s", options->port, why.text);
}

/* A runner that a run took over is the run's to end. */
static void close_port(struct opened *opened)
{
    et_runner_stop(&opened->runner, NULL);
    et_offer_free(&opened->offer);
}

/* ET_LACKING is an outsider's that did not start. */
static int exit_of(enum et_status status)
{
    return stop ? 128 + stop : status == ET_LACKING ? ET_EXIT_NOTHING : ET_EXIT_USAGE;
}

/* -v: what the checks of each run could see, and the variants that do not fit. */
static int dry_run(const struct et_options *options, const struct et_plan *plan)
{
    struct et_error error;
    /* What an outsider would claim, and so what there is to predict, its replies say. */
    const bool predicted = options->verbose && !options->outsider;
    for (int i = 0; i < plan->count && !predicted; i++)
        printf("%s\n", plan->runs[i].id);
    if (predicted && et_predict_plan(options, plan, &stop, &error) != ET_OK) {
        et_complain("%s", error.text);
        return ET_EXIT_USAGE;
    }
    if (options->verbose && plan->notes.data)
        fputs(plan->notes.data, stdout);
    fprintf(stderr, "%d runs, none executed\n", plan->count);
    return stop ? 128 + stop : ET_EXIT_PASS;
}

static int command_run(struct et_options *options)
{
    struct et_plan plan = {.runs = NULL};
    struct opened opened;
    struct et_error error;
    int code = ET_EXIT_USAGE;
    const char *temp = getenv("TMPDIR");
    struct stat st;
    if (temp && *temp && (stat(temp, &st) != 0 || access(temp, W_OK | X_OK) != 0))
        return refuse("TMPDIR is %s: %s", temp, strerror(errno));
    if (temp && *temp && !S_ISDIR(st.st_mode))
        return refuse("TMPDIR is %s: %s", temp, strerror(ENOTDIR));
    enum et_status status = open_port(options, &opened, &error);
    const bool is_open = status == ET_OK;
    if (is_open)
        status = et_plan_make(options, opened.port, &plan, &error);
    on_signals(on_signal);
    if (status != ET_OK) {
        et_complain("%s", error.text);
        code = exit_of(is_open ? ET_INVALID : status);
    } else if (outputs_clash(options, &plan)) {
        code = ET_EXIT_USAGE;
    } else if (options->dry_run) {
        code = dry_run(options, &plan);
    } else {
        code = et_run_plan(options, &plan, &stop);
    }
    et_plan_free(&plan);
    close_port(&opened);
    return code;
}

/* What is dumped, and what is checked, are runs of the one variant of et_dump_port. */
static int command_dump(struct et_options *options)
{
    struct et_plan plan = {.runs = NULL};
    struct et_offer offer = {.at = NULL};
    struct et_error error;
    int code = ET_EXIT_PASS;
    if (!options->results)
        return refuse("dump needs the folder to write, -o DIR%s%s", "", "");
    enum et_status status = et_dump_port(&offer, &error);
    if (status == ET_OK)
        status = et_plan_make(options, &offer.port, &plan, &error);
    on_signals(on_signal);
    if (status == ET_OK && outputs_clash(options, &plan)) {
        code = ET_EXIT_USAGE;
    } else if (status == ET_OK && options->dry_run) {
        struct et_options ids = *options;
        ids.verbose = false;
        dry_run(&ids, &plan);
    } else if (status == ET_OK) {
        status = et_dump_write(options, &plan, options->results, &stop, &error);
    }
    if (status != ET_OK) {
        et_complain("%s", error.text);
        code = ET_EXIT_USAGE;
    }
    et_plan_free(&plan);
    et_offer_free(&offer);
    return stop ? 128 + stop : code;
}

/* The runs that the manifest has and --filter lets pass are all that is selected. */
static enum et_status select_dumped(struct et_options *options, const struct et_dump *dump,
                                    struct et_error *error)
{
    const struct et_strings wanted = options->filters;
    enum et_status status = ET_OK;
    options->filters = (struct et_strings){.count = 0};
    for (int i = 0; i < dump->count && status == ET_OK; i++) {
        bool named = wanted.count == 0;
        for (int k = 0; k < wanted.count; k++)
            named = named || et_glob(wanted.at[k], dump->at[i].id);
        if (named && !add(&options->filters, dump->at[i].id))
            status = et_fail(error, ET_FAILED, "out of memory for ids");
    }
    if (status == ET_OK && options->filters.count == 0)
        status =
            et_fail(error, ET_INVALID, "nothing selected: no run of %s passes the filters", options->dumped);
    et_free(wanted.at);
    return status;
}

/* Each that was selected is there; checks of what is not known of such outputs are off. */
static enum et_status fit_plan(const struct et_options *options, struct et_plan *plan, struct et_error *error)
{
    for (int k = 0; k < options->filters.count; k++) {
        int i = 0;
        while (i < plan->count && strcmp(plan->runs[i].id, options->filters.at[k]) != 0)
            i++;
        if (i == plan->count)
            return et_fail(error, ET_INVALID,
                           "no case that was read has the run %s of %s; name the files that were dumped",
                           options->filters.at[k], options->dumped);
    }
    for (int i = 0; i < plan->cases.count; i++) {
        struct et_case *c = &plan->cases.at[i];
        c->twin_count = 0;
        c->checks.repeat = 1;
        c->checks.written = c->checks.guards = c->checks.inputs_kept = false;
    }
    return ET_OK;
}

static int command_check(struct et_options *options)
{
    struct et_plan plan = {.runs = NULL};
    struct et_offer offer = {.at = NULL};
    struct et_dump dump = {.count = 0};
    struct et_error error;
    struct et_runner runner = {
        .offer = &offer,
        .device = {.place = "0:0", .name = "files", .probed = true, .exact = true, .exact_subnormal = true}};
    const struct et_strings given = options->targets;
    int code = ET_EXIT_USAGE;
    if (given.count == 0)
        return refuse("check needs the folder that dump wrote%s%s", "", "");
    options->dumped = given.at[0];
    options->targets = (struct et_strings){.at = given.at + 1, .count = given.count - 1};
    enum et_status status = et_dump_read(options->dumped, &dump, &error);
    options->tier = dump.tier;
    options->has_seed = dump.has_seed;
    options->seed = dump.seed;
    options->dump = &dump;
    options->outsider = &runner;
    if (status == ET_OK)
        status = select_dumped(options, &dump, &error);
    if (status == ET_OK)
        status = et_dump_port(&offer, &error);
    if (status == ET_OK)
        status = et_plan_make(options, &offer.port, &plan, &error);
    if (status == ET_OK)
        status = fit_plan(options, &plan, &error);
    on_signals(on_signal);
    if (status != ET_OK)
        et_complain("%s", error.text);
    else if (outputs_clash(options, &plan))
        code = ET_EXIT_USAGE;
    else if (options->dry_run)
        code = dry_run(options, &plan);
    else
        code = et_run_plan(options, &plan, &stop);
    options->targets = given;
    et_plan_free(&plan);
    et_dump_free(&dump);
    et_offer_free(&offer);
    return code;
}

/* Mutants of every operator that has runs in the plan. */
static enum et_status read_mutants(const struct et_options *options, const struct et_strings *names,
                                   struct et_plan *plan, struct et_error *error)
{
    enum et_status status = ET_OK;
    for (int i = 0; et_operators[i] && status == ET_OK; i++) {
        bool planned = false;
        for (int k = 0; k < plan->count; k++)
            planned = planned || plan->runs[k].c->op == et_operators[i];
        if (planned)
            status =
                et_mutants_read(options->mutants, et_operators[i], options->folder, &plan->mutants, error);
    }
    if (status == ET_OK)
        et_mutants_keep(&plan->mutants, names->at, names->count);
    if (status == ET_OK && plan->mutants.count == 0)
        return et_fail(error, ET_INVALID, "no mutant of %s is selected", options->mutants);
    return status;
}

/* The arguments name mutants; the runs are those of the cases called teeth, or what --filter says. */
static int command_mutate(struct et_options *options)
{
    if (is_outside(options))
        return refuse("mutate takes no --port %s: its bugs are planted in etalon's own kernels%s",
                      options->command  ? "exec:CMD"
                      : options->plugin ? "plugin:FILE.so"
                                        : "openblas",
                      "");
    const struct et_strings names = options->targets;
    struct et_plan plan;
    struct et_error error;
    int code = ET_EXIT_USAGE;
    options->targets = (struct et_strings){0};
    if (options->filters.count == 0 && !add(&options->filters, "*/teeth/*"))
        return refuse("out of memory%s%s", "", "");
    enum et_status status = et_plan_make(options, &et_ocl, &plan, &error);
    if (status == ET_OK)
        status = read_mutants(options, &names, &plan, &error);
    on_signals(on_signal);
    const bool clash = status == ET_OK && outputs_clash(options, &plan);
    for (int i = 0; status == ET_OK && !clash && options->dry_run && i < plan.mutants.count; i++)
        printf("%s/%s\n", plan.mutants.at[i].op->name, plan.mutants.at[i].name);
    if (status != ET_OK)
        et_complain("%s", error.text);
    else if (clash)
        code = ET_EXIT_USAGE;
    else if (options->dry_run)
        dry_run(options, &plan), code = ET_EXIT_PASS;
    else
        code = et_run_plan(options, &plan, &stop);
    et_plan_free(&plan);
    et_free(names.at);
    return code;
}

static void print_device(const struct et_device *device)
{
    printf("%-5s %s (%s; %s), %lld units, local memory %lld KiB, largest buffer %lld MiB\n", device->place,
           device->name, device->platform, device->driver, (long long)device->compute_units,
           (long long)device->local_memory / 1024, (long long)device->allocation / 1048576);
}

static int list_devices(const struct et_options *options)
{
    const char *const argv[] = {options->program, "worker", "--port", options->port, "--list", NULL};
    struct et_device *devices = NULL;
    char *report = NULL;
    int count = 0;
    struct et_error error;
    int code = ET_EXIT_PASS;
    if (et_devices_list(argv, ET_HELLO_S, NULL, &devices, &count, &report, &error) != ET_OK) {
        et_complain("%s", error.text);
        return ET_EXIT_NOTHING;
    }
    for (int i = 0; i < count; i++)
        print_device(&devices[i]);
    if (count == 0 || options->verbose)
        fprintf(count ? stdout : stderr, "%s%s", count ? "" : "etalon: no device\n", report ? report : "");
    if (count == 0)
        code = ET_EXIT_NOTHING;
    et_free(devices);
    et_free(report);
    return code;
}

static int list_models(const struct et_options *options)
{
    struct et_models *models = NULL;
    struct et_error error;
    char *path = et_print(&error, "%s/models.json", options->cases);
    if (!path || et_models_read(path, &models, &error) != ET_OK) {
        et_free(path);
        et_complain("%s", error.text);
        return ET_EXIT_USAGE;
    }
    const char *name, *source;
    for (int i = 0; et_models_entry(models, i, &name, &source); i++)
        printf("%-24s %s\n", name, source);
    et_models_free(models);
    et_free(path);
    return ET_EXIT_PASS;
}

/* A program of others offers names and knobs, without a word on them. */
static void list_variant(const struct et_variant *variant)
{
    const struct et_field *knob = variant->knobs;
    printf("  %-14s %s", variant->name,
           variant->summary ? variant->summary
           : knob->name     ? "knobs"
                            : "no knobs");
    for (; !variant->summary && knob->name; knob++) {
        printf("%s %s ", knob == variant->knobs ? "" : ",", knob->name);
        if (knob->kind != ET_NAME)
            printf("%.0f to %.0f", knob->min, knob->max);
        for (int i = 0; knob->kind == ET_NAME && knob->names[i]; i++)
            printf("%s%s", i ? " | " : "", knob->names[i]);
    }
    printf("\n");
}

static void list_operators(const struct et_port *port)
{
    for (int i = 0; et_operators[i]; i++) {
        printf("%-16s %s\n", et_operators[i]->name, et_operators[i]->summary);
        for (int k = 0; port->variants[k]; k++)
            if (!strcmp(port->variants[k]->op, et_operators[i]->name))
                list_variant(port->variants[k]);
    }
}

/* What a program of others says of itself. */
static int list_outside(struct et_options *options, bool devices)
{
    struct opened opened;
    struct et_error error;
    const enum et_status status = open_port(options, &opened, &error);
    if (status != ET_OK)
        et_complain("%s", error.text);
    else if (devices)
        print_device(&opened.runner.device);
    else
        list_operators(opened.port);
    close_port(&opened);
    return status == ET_OK ? ET_EXIT_PASS : exit_of(status);
}

static int command_list(struct et_options *options)
{
    const char *what = options->targets.count == 1 ? options->targets.at[0] : "";
    if (is_outside(options) && (!strcmp(what, "devices") || !strcmp(what, "operators")))
        return list_outside(options, what[0] == 'd');
    if (!strcmp(what, "devices"))
        return list_devices(options);
    if (!strcmp(what, "models"))
        return list_models(options);
    if (strcmp(what, "operators") != 0)
        return refuse("list devices, operators or models%s%s", "", "");
    list_operators(&et_ocl);
    return ET_EXIT_PASS;
}

/* NULL, with a sentence on stderr, where the arguments do not name one. */
static const struct et_operator *one_operator(const struct et_options *options)
{
    struct et_nearest nearest = {.word = options->targets.count == 1 ? options->targets.at[0] : ""};
    const struct et_operator *op = et_operator_named(nearest.word);
    for (int i = 0; et_operators[i]; i++)
        et_nearest_try(&nearest, et_operators[i]->name);
    if (!op && options->targets.count == 1)
        refuse("there is no operator \"%s\"; the nearest is \"%s\"", nearest.word, nearest.best);
    else if (!op)
        refuse("describe takes one operator, see etalon list operators%s%s", "", "");
    return op;
}

static int command_describe(struct et_options *options)
{
    struct et_text text = {0};
    struct et_error error;
    enum et_status status;
    if (options->json + options->abi + options->schema + (options->skeleton != NULL) > 1)
        return refuse("describe takes one of --json, --abi, --schema and --skeleton%s%s", "", "");
    const bool all = options->schema && options->targets.count == 0;
    const struct et_operator *op = all ? NULL : one_operator(options);
    if (!op && !all)
        return ET_EXIT_USAGE;
    if (options->schema)
        status = et_describe_schema(op, &et_ocl, &text, &error);
    else if (options->abi)
        status = et_describe_abi(op, &et_ocl, &text, &error);
    else if (options->json)
        status = et_describe_json(op, &et_ocl, &text, &error);
    else if (options->skeleton)
        status = et_describe_skeleton(op, &et_ocl, options->skeleton, &text, &error);
    else
        status = et_describe_text(op, &et_ocl, &text, &error);
    if (status == ET_OK)
        fputs(text.data, stdout);
    else
        et_complain("%s", error.text);
    et_text_free(&text);
    return status == ET_OK ? ET_EXIT_PASS : status == ET_INVALID ? ET_EXIT_USAGE : ET_EXIT_BROKEN;
}

/* The runner: started by run and list devices, on the protocol of runner.h. */
static int command_worker(struct et_options *options)
{
    if (options->command)
        return refuse("worker takes no --port exec:CMD: CMD is the worker itself%s%s", "", "");
    const char *outside = options->plugin ? "plugin:FILE.so" : "openblas";
    if (options->binaries && is_outside(options))
        return refuse("worker takes no --binaries of --port %s%s", outside, "");
    if (options->list && is_outside(options))
        return refuse("worker takes no --list of --port %s, which is one device%s", outside, "");
    if (options->list)
        return et_worker_list(&et_ocl);
    if (options->devices.count != 1 && !is_outside(options))
        return refuse("worker needs one --device P:D%s%s", "", "");
    const struct et_open open = {.place = is_outside(options) ? "0:0" : options->devices.at[0],
                                 .folder = options->folder,
                                 .guards = options->guards,
                                 .limits = options->limits,
                                 .binaries = options->binaries};
    return et_worker(options->plugin ? NULL : options->openblas ? &et_blas : &et_ocl, options->plugin, &open);
}

/* ---- The commands ---- */

/* Which of its rows each takes; an option that would do nothing is refused. */
static const struct command {
    const char *name;
    int (*act)(struct et_options *options);
    bool judges; /* until it has something to keep, a signal ends it at once */
    int takes[32];
} commands[] = {
    {"run", command_run, true, {'t',         'k',        OPT_EXCLUDE,  OPT_OPERATOR, OPT_VARIANT, OPT_SHARD,
                                OPT_DRY_RUN, OPT_DEVICE, OPT_PORT,     OPT_GUARDS,   OPT_LIMIT,   'j',
                                OPT_TIMEOUT, OPT_REPEAT, OPT_SEED,     OPT_STRICT,   OPT_KNOWN,   'o',
                                OPT_JUNIT,   OPT_FAILED, OPT_MAX_FAIL, OPT_SLOWEST,  OPT_KEEP,    OPT_MEMORY,
                                'v',         'q',        OPT_COLOR,    OPT_CASES,    OPT_BINARIES}},
    {"dump",
     command_dump,
     true,
     {'t', 'k', OPT_EXCLUDE, OPT_OPERATOR, OPT_DRY_RUN, 'j', OPT_SEED, 'o', 'v', 'q', OPT_COLOR, OPT_CASES}},
    {"check",
     command_check,
     true,
     {'k', OPT_EXCLUDE, OPT_OPERATOR, OPT_DRY_RUN, 'j', OPT_STRICT, OPT_KNOWN, 'o', OPT_JUNIT, OPT_MAX_FAIL,
      OPT_SLOWEST, OPT_MEMORY, 'v', 'q', OPT_COLOR, OPT_CASES, OPT_OUTPUTS}},
    {"mutate", command_mutate, true, {'t',         'k',         OPT_EXCLUDE, OPT_OPERATOR, OPT_VARIANT,
                                      OPT_DRY_RUN, OPT_DEVICE,  OPT_PORT,    OPT_GUARDS,   OPT_LIMIT,
                                      'j',         OPT_TIMEOUT, OPT_REPEAT,  OPT_SEED,     'o',
                                      OPT_MEMORY,  'v',         'q',         OPT_COLOR,    OPT_CASES,
                                      OPT_MUTANTS}},
    {"list", command_list, false, {OPT_PORT, OPT_TIMEOUT, 'v', OPT_CASES}},
    {"describe", command_describe, false, {OPT_JSON, OPT_ABI, OPT_SCHEMA, OPT_SKELETON}},
    {"worker", command_worker, false, {OPT_PORT, OPT_DEVICE, OPT_GUARDS, OPT_LIMIT, OPT_BINARIES, OPT_LIST}},
};

static bool takes(const struct command *command, int option)
{
    const int *each = command->takes;
    while (*each && *each != option)
        each++;
    return *each != 0;
}

static int act(const struct command *command, struct et_options *options, uint64_t given)
{
    for (int i = 0; options_table[i].name; i++)
        if (given >> i & 1 && !takes(command, options_table[i].val))
            return refuse("%s takes no --%s; see etalon --help", command->name, options_table[i].name);
    if (command->judges)
        on_signals(leave);
    return command->act(options);
}

/* Else the first files and pipes that are opened would stand in for them. */
static bool open_standard_files(void)
{
    bool there = true;
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0) {
            there = there && fd != STDOUT_FILENO;
            if (open("/dev/null", O_RDWR) != fd)
                return false;
        }
    return there;
}

static int execute(int argc, char **argv)
{
    const char *command = argc > 1 ? argv[1] : "";
    if (!strcmp(command, "--version")) {
        printf("etalon %s\n", ET_VERSION);
        return ET_EXIT_PASS;
    }
    if (!strcmp(command, "--help") || !strcmp(command, "-h") || !strcmp(command, "help")) {
        fputs(usage, stdout);
        return ET_EXIT_PASS;
    }
    if (!strcmp(command, "diff"))
        return et_diff(argc - 1, argv + 1);
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    const char *program = n > 0 ? self : argv[0];
    struct data data;
    find_data(program, &data);
    struct et_options options = defaults(&data);
    options.program = program;
    uint64_t given = 0;
    int code = argc > 1 ? parse(argc - 1, argv + 1, &options, &given) : -1;
    if (code >= 0) {
        free_options(&options);
        return code;
    }
    code = ET_EXIT_USAGE;
    const struct command *row = commands, *end = commands + sizeof commands / sizeof *commands;
    while (row < end && strcmp(row->name, command) != 0)
        row++;
    if (row < end)
        code = act(row, &options, given);
    else if (argc > 1)
        refuse("\"%s\" is no command%s; see etalon --help", command, "");
    else
        fputs(usage, stderr);
    free_options(&options);
    return code;
}

int main(int argc, char **argv)
{
    if (!open_standard_files())
        return refuse("standard output is closed%s%s", "", "");
    const int code = execute(argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    refuse("standard output: %s%s", strerror(errno), "");
    return code == ET_EXIT_PASS ? ET_EXIT_BROKEN : code;
}
