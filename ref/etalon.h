/*
 * etalon's reference library: what each operator computes, and how far an honest implementation may be from
 * it.
 *
 * C11 and libm only. No OpenCL, no JSON, no I/O, no mutable globals, no allocation: the caller owns every
 * buffer and says how large it is. Every function may be called from several threads at once.
 *
 * An operator is one row of et_operators: its params (which define the function), its tensors, and the
 * functions that validate, fill, compute (f64 oracle), emulate (f32 replay of a claimed order) and cost one
 * problem.
 */
#ifndef ETALON_H
#define ETALON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dtype.h"
#include "rng.h"

#ifdef __cplusplus
extern "C" {
#endif

enum et_limits {
    ET_RANK = 5,     /* dimensions of a tensor at most */
    ET_TENSORS = 12, /* tensors of an operator at most */
    ET_PARAMS = 24,  /* params of an operator, and knobs of a variant, at most */
    ET_PARAMS_BYTES = 256,
    ET_OWN_FILLS = 4, /* of an operator, at most */
    ET_LIES = 6       /* of an operator, at most */
};

/* The largest whole number of a param: 2^53 - 1, exact in JSON. */
#define ET_WHOLE_MOST 9007199254740991.0

enum et_status {
    ET_OK,
    ET_REFUSED, /* the geometry or params are not ones this operator or variant computes */
    ET_LACKING, /* right, but this device or machine lacks something: a limit, an extension, memory */
    ET_INVALID, /* input from outside is malformed: a file, a message, a command line */
    ET_FAILED,  /* something broke: a system or OpenCL call, an allocation */
    ET_UNBUILT  /* the sources of a kernel do not build, or hold no kernel of that name */
};

/* One sentence that names the thing, the value and the limit. */
struct et_error {
    char text[2000];
};

/* Writes the sentence (printf style, cut to fit) and returns status. error may be NULL. */
enum et_status et_fail(struct et_error *error, enum et_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- Params and knobs: one kind of table for both ---- */

enum et_kind {
    ET_INT,  /* int64_t */
    ET_REAL, /* double */
    ET_BOOL, /* int64_t, 0 or 1 */
    ET_NAME  /* int64_t, an index into names */
};

/* What tensor parallelism over tp ranks does to a param taken from a model. */
enum et_parallel {
    ET_WHOLE,     /* every rank has all of it */
    ET_DIVIDED,   /* value / tp, which must divide it */
    ET_REPLICATED /* value / tp, or 1 where tp is a multiple of the value: ranks then share a head */
};

struct et_field {
    const char *name;
    enum et_kind kind;
    size_t offset;            /* into the params struct; unused for knobs, which are an array */
    double min, max;          /* of ET_INT and ET_REAL */
    double fallback;          /* the default, unless required or same_as */
    bool required;            /* there is no default */
    const char *same_as;      /* the default is that field's value */
    const char *const *names; /* ET_NAME: NULL-terminated */
    const char *model_key;    /* the key of models.json that sets it, or NULL */
    enum et_parallel parallel;
    const char *doc;
};

/* ---- Tensors ---- */

enum et_role { ET_INPUT, ET_OUTPUT };

/* What is known of a tensor before there is a problem. */
struct et_tensor_spec {
    const char *name;
    enum et_role role;
    unsigned dtypes;     /* bit 1 << et_dtype: the storage types accepted */
    enum et_dtype dtype; /* the default */
    const char *same_as; /* the default is that tensor's type */
    int rank;
    const char *dim[ET_RANK]; /* names of dimensions, outermost first */
    const char *doc;          /* shape, meaning, what is poison */
};

/*
 * A tensor in memory. Element (i0, i1, ...) lies at data[offset + i0 * stride[0] + ...], everything counted
 * in elements. size is the operator's normative shape; bytes is the whole buffer, padding and offset
 * included.
 *
 * Inputs may share a buffer: data, bytes and dtype are then the same, offset and stride each one's own. Their
 * elements may be the same ones (v the first elements of each row of k) or lie apart (a fused cache).
 */
struct et_tensor {
    enum et_dtype dtype;
    int rank;
    int64_t size[ET_RANK], stride[ET_RANK], offset;
    void *data;
    size_t bytes;
    int shares; /* 0: the buffer is its own; t + 1: it is that of tensor t, whose own it is */
};

int64_t et_tensor_count(const struct et_tensor *tensor); /* elements of the normative shape */
int64_t et_tensor_rows(const struct et_tensor *tensor);  /* count / innermost size; 0 when empty */
/* Place, in elements from data, of row's first element; rows are in row-major order of the outer dimensions.
 */
int64_t et_row_at(const struct et_tensor *tensor, int64_t row);
/* Row-major strides without padding, but that every row begins at a whole block of its type. Fails (returns
 * false) when a product leaves int64_t or size_t. */
bool et_tensor_pack(struct et_tensor *tensor);

/* ET_REFUSED, with a sentence about `name`, where a row begins within a block of the tensor's type, or the
 * elements of one do not lie side by side. */
enum et_status et_tensor_check_blocks(const struct et_tensor *tensor, const char *name,
                                      struct et_error *error);

/* What an element of an input is for. */
enum et_class {
    ET_DATA,  /* read, and free to take any value */
    ET_ZERO,  /* 0 by the operator's contract */
    ET_POISON /* never read: may hold NaN, may hold 1e30, may not change one output bit */
};

/* One step of one case. */
struct et_problem {
    const struct et_operator *op;
    const void *params; /* the operator's params struct */
    struct et_tensor tensor[ET_TENSORS];
};

/* The tensor whose own the buffer of tensor t is: t itself, or the one that it shares with. */
int et_tensor_home(const struct et_problem *problem, int t);

/* One row of one output: the unit that sampling samples and that `noise` and `gain` speak of. */
struct et_unit {
    int output;              /* index into the tensor table */
    int64_t at, step, count; /* elements of the normative shape, row-major */
};

/* ---- Arithmetic that a port declares: every field is a term of docs/checks.md ---- */

struct et_arith {
    enum et_dtype query;   /* what the query operand is rounded to before products */
    enum et_dtype product; /* what each product is rounded to; f32 also stands for "not at all" */
    enum et_dtype sum;     /* accumulators */
    enum et_dtype
        weight; /* what softmax weights are rounded to; skinny_gemm: u8: i4 weights enter sums plus 128 */
    enum et_dtype partial; /* what partial results are stored as between launches */
    int32_t depth_qk;      /* longest chain of roundings in a score */
    int32_t depth_sum;     /* longest chain of roundings in an output's sum */
    int32_t tiles;         /* rescales of a running sum */
};

/* Says which order of additions a port claims; "none": no claim, no replay, no identity. */
struct et_order {
    char name[24];
    int32_t arg[8];
};

/* How far one output element of one declared arithmetic may be from the oracle's value, before the store. */
struct et_spread {
    double variance; /* of the rounding error, on independent data */
    double common;   /* of a relative error that all elements of the unit have alike: `gain` alone asks */
    double drift;    /* a relative error that all units have alike, at most: likewise */
    double bias;     /* deterministic part */
    double likely;   /* bound for structured data: roundings independent, data not */
    double worst;    /* bound for any data */
};

/* ---- Fills ---- */

enum et_fill_kind {
    ET_FILL_NORMAL,
    ET_FILL_UNIFORM,
    ET_FILL_OUTLIER,
    ET_FILL_RAMP,
    ET_FILL_CONSTANT,
    ET_FILL_EXACT, /* the exact family: every order of summation in f32 gives the same bits. What they are is
                    */
    ET_FILL_EQUAL, /* the operator's to say, all its inputs together */
    ET_FILL_ONEHOT,
    ET_FILL_BALANCE,
    ET_FILLS,
    ET_FILL_OWN /* one of the operator's own */
};

struct et_fill {
    enum et_fill_kind kind;
    uint64_t seed;
    double value; /* constant: the value; one of the operator's own: its option */
    int own;      /* one of the operator's own: its index */
};

/*
 * A fill that only one operator has, for one of its inputs. It is made after the inputs that have none of
 * their own, whose data it may read.
 */
struct et_own_fill {
    const char *name;
    int tensor;
    struct et_field option; /* name, kind, range, default and doc of its one option */
};

const char *et_fill_name(enum et_fill_kind kind);
bool et_fill_named(const char *name, enum et_fill_kind *kind);
/* Independent, identically distributed data: the statistical checks hold on these. */
bool et_fill_is_iid(enum et_fill_kind kind);
/* One of the exact family: outputs are the oracle's, rounded once, to the byte. */
bool et_fill_is_exact(enum et_fill_kind kind);
/* The plain form of every fill but the exact family, which has none: n values of the tensor called name from
 * element `at` on. */
void et_fill_values(const struct et_fill *fill, const char *name, int64_t at, int64_t n, float *dst);

/* ---- Operators ---- */

/* Bytes that each tensor moves once, and the flops, of one step: the denominators of a roofline. */
struct et_cost {
    double bytes[ET_TENSORS];
    double flops;
};

/* A wrong answer that checks should tell from the right one. */
struct et_lie {
    const char *name;
    bool whole; /* another function altogether, not a slip in one place: data that hide it prove nothing */
};

/* What a replay came across. */
struct et_met {
    bool subnormal; /* an f32 operand or result between 0 and the smallest normal: devices may differ */
};

struct et_operator {
    const char *name, *summary;
    const struct et_field *params; /* ends with a NULL name */
    size_t params_bytes;
    const struct et_tensor_spec *tensors; /* ends with a NULL name */
    /*
     * Its spread is all of the tolerance but the store: the judge adds no roundings of its own, a spread of 0
     * asks for the value rounded once, and `noise` and `gain`, which need a variance of every rounding, are
     * not run. False: they are.
     */
    bool bound_only;
    /*
     * The rows of which `noise` and `gain` speak are element k of every sampled unit, and not the elements of
     * one unit: units have one output and one count.
     */
    bool rows_across;
    const struct et_own_fill *own_fills; /* at most ET_OWN_FILLS; NULL, or ends with a NULL name */
    unsigned exact_fills;                /* bit 1 << et_fill_kind: those of the exact family that it has */
    const struct et_lie *lies;           /* at most ET_LIES; ends with a NULL name */

    /*
     * Validates params and sets rank and size of every tensor (dtype is the caller's; strides are packed
     * after). ET_REFUSED with a sentence naming field, value and limit.
     */
    enum et_status (*shape)(const void *params, struct et_tensor *tensors, struct et_error *error);

    /*
     * ET_REFUSED, with a sentence naming what is in the way, where the fill of the exact family has no exact
     * result here. NULL: it always has.
     */
    enum et_status (*takes)(const struct et_problem *problem, enum et_fill_kind kind, struct et_error *error);

    /*
     * Whether params say all of that input, whatever the fill: it takes no data, and is no view. NULL: they
     * say of none.
     */
    bool (*told)(const struct et_problem *problem, int tensor);

    /* Values of one row (innermost dimension) of one input, as f32 before rounding to the tensor's type. */
    void (*fill)(const struct et_problem *problem, const struct et_fill *fill, int tensor, int64_t row,
                 float *dst);

    /* The class of every element of that row. */
    void (*classify)(const struct et_problem *problem, int tensor, int64_t row, enum et_class *dst);

    int64_t (*units)(const struct et_problem *problem);
    struct et_unit (*unit)(const struct et_problem *problem, int64_t i);

    /* Units that sampling must never leave out: writes at most n, increasing, and returns how many. */
    int64_t (*edges)(const struct et_problem *problem, int64_t n, int64_t *dst);

    /* Bytes of scratch that one call of oracle or replay needs. */
    size_t (*work_bytes)(const struct et_problem *problem);

    /*
     * The f64 value of each element of unit i, and for each of n declared arithmetics its spread:
     * value[count], spread[n][count] laid out one arithmetic after the other.
     */
    void (*oracle)(const struct et_problem *problem, int64_t i, const struct et_arith *ariths, int n,
                   void *work, double *value, struct et_spread *spread);

    /*
     * The f32 results, before the store, of unit i in exactly the claimed order. ET_REFUSED when this
     * operator has no replay of that order.
     */
    enum et_status (*replay)(const struct et_problem *problem, const struct et_order *order, int64_t i,
                             void *work, float *value, struct et_met *met, struct et_error *error);

    /*
     * delta[count]: unit i as lie `lie` has it, minus as it is. False where this problem has no such lie.
     */
    bool (*lie)(const struct et_problem *problem, int64_t i, int lie, void *work, double *delta);

    /*
     * Says of which input elements a unit of an exact fill's output is a copy: got[count]. False where it is
     * of none.
     */
    bool (*names)(const struct et_problem *problem, int64_t i, const double *got, char *text, size_t size);

    void (*cost)(const struct et_problem *problem, struct et_cost *cost);
};

extern const struct et_operator *const et_operators[]; /* ends with NULL */
const struct et_operator *et_operator_named(const char *name);

/* Sizes of the tables, and look-ups; -1 where there is no such name. */
int et_field_count(const struct et_field *fields);
int et_field_index(const struct et_field *fields, const char *name);
int et_tensor_count_of(const struct et_operator *op);
int et_tensor_index(const struct et_operator *op, const char *name);
int64_t et_param_int(const struct et_field *field, const void *params);
double et_param_real(const struct et_field *field, const void *params);
void et_param_set(const struct et_field *field, void *params, double value);

/*
 * Checks one value against its field: integrality and range. ET_REFUSED, with a sentence that opens with the
 * name.
 */
enum et_status et_field_check(const struct et_field *field, double value, struct et_error *error);

/* Checks each value of a params struct against its field. */
enum et_status et_params_check(const struct et_field *fields, const void *params, struct et_error *error);

/* ---- Params of each operator ---- */

/* Grouped-query attention value product. Source: pytorch/executorch#21063. See gqa_av.c. */
struct et_gqa_av {
    int64_t q_heads, kv_heads, head_dim, query_length, context, capacity;
};

/* Gated-delta-net post-convolution glue. Source: vllm.cpp kGdnPostConv, vLLM fused_post_conv_prep. See
 * gdn_postconv.c. */
struct et_gdn_postconv {
    int64_t tokens, k_heads, v_heads, k_head_dim, v_head_dim;
    double eps;
    int64_t scale_q;
};

enum et_bias { ET_BIAS_NONE, ET_BIAS_M, ET_BIAS_1XM, ET_BIAS_NX1, ET_BIAS_NXM };

/* Linear layer of a few tokens. Source: vLLM wvSplitK, ROCm/vllm#982. See skinny_gemm.c. */
struct et_skinny_gemm {
    int64_t tokens, out_features, in_features;
    int64_t bias; /* enum et_bias */
    int64_t group, zero_points;
};

/* Which keys a query sees of those behind it in the text. */
enum et_causal { ET_CAUSAL_NONE, ET_CAUSAL_BOTTOM_RIGHT, ET_CAUSAL_TOP_LEFT };

/* Whether scores have an additive mask: of data beside the flags, or of what the flags say, instead of them.
 */
enum et_mask { ET_MASK_NONE, ET_MASK_DATA, ET_MASK_MATERIALISED };

/* Attention with sinks, windows, softcap, ALiBi and masks. Source: ggml FLASH_ATTN_EXT, llama.cpp#15982. See
 * flash_attn.c. */
struct et_flash_attn {
    int64_t batch, kv_batch, q_heads, kv_heads, head_dim, v_head_dim, query_length, kv_length;
    int64_t causal; /* enum et_causal */
    int64_t window, window_right, sinks;
    int64_t mask; /* enum et_mask */
    int64_t mask_batches, mask_heads;
    double scale, softcap, max_bias;
};

#ifdef __cplusplus
}
#endif

#endif
