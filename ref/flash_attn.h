/* What the files of flash_attn share: its tensors, and which keys a query row sees. */
#ifndef ET_FLASH_ATTN_H
#define ET_FLASH_ATTN_H

#include "etalon.h"

enum { ET_FA_Q, ET_FA_K, ET_FA_V, ET_FA_MASK, ET_FA_SINKS, ET_FA_OUT };

/* A unit: one row of out, units being in row-major order of (batch, query, head). */
struct et_fa_row {
    int64_t batch, query, head;
    int64_t kv_batch, kv_head;
    int64_t from, to; /* keys that the flags show, [from, to) of kv_length: to >= from, equal where none is */
    const char *mask; /* its row of the mask, of mask_dtype; NULL: none */
    enum et_dtype mask_dtype;
    int64_t mask_stride;
};

struct et_fa_row et_fa_row(const struct et_problem *problem, int64_t unit);

/* Where that query is among the keys; may be negative. */
int64_t et_fa_position(const struct et_flash_attn *params, int64_t query);

/* [*from, *to): the keys that causal, window and window_right show to that query, whatever the mask param
 * says. */
void et_fa_span(const struct et_flash_attn *params, int64_t query, int64_t *from, int64_t *to);

/* What the mask has for key j: 0 where there is none; -Inf: not visible. */
float et_fa_mask(const struct et_fa_row *row, int64_t j);

/* softmax's scale, as kernels have it: in f32, 1 / sqrt(head_dim) by default. */
float et_fa_scale(const struct et_flash_attn *params);

/* One key that a row sees, in f64. */
struct et_fa_key {
    int64_t j;
    double raw;                /* scale * sum over c of q[c] * k[c] */
    double sizes, squares;     /* sums of |q[c] * k[c]| and of their squares */
    double fourths;            /* sum of (q[c] * k[c])^4 */
    double k_sizes, k_squares; /* sums of |k[c]| and of their squares */
    double capped, addend;     /* raw after softcap, and slope * mask */
    double score;              /* their sum */
    double p;                  /* its softmax weight */
    double pull;               /* <v - out, out> / <out, out> */
    double apart;              /* <v - out, v - out> */
    double variance, drift;    /* of p, as errors of scores make it: room for et_fa_spread */
    double shared;             /* likewise: of the variance, what a single channel of q would have */
};

/* All that a row sees. Without a key, or with a sink of Inf, there are no keys: it is zeros. */
struct et_fa_seen {
    struct et_fa_row row;
    struct et_fa_key *key;
    int64_t count;
    double sink;        /* its logit; -Inf: none */
    double sink_p;      /* its weight */
    double *sizes;      /* sum over j of p |v[j][d]|, of each channel d */
    double energy;      /* <out, out> */
    double most, total; /* the largest score, and the sum of e^(score - most); the sink's is among them */
};

/* Row `row` of a tensor, counted as by et_row_at. */
void et_fa_read(const struct et_tensor *tensor, int64_t row, float *dst);

/* The sink's logit of a query head, where there are sinks. */
float et_fa_sink(const struct et_problem *problem, int64_t head);

/* The row of K or V that key j has for that row. */
int64_t et_fa_kv_row(const struct et_problem *problem, const struct et_fa_row *row, int64_t j);

/*
 * flash_attn_spread.c: how far from value[v_head_dim] one declared arithmetic may be. v: room for a row of V;
 * sums: for ET_FA_SUMS times v_head_dim.
 */
enum { ET_FA_SUMS = 8 };
void et_fa_spread(const struct et_problem *problem, const struct et_fa_seen *seen,
                  const struct et_arith *arith, const double *value, float *v, double *sums,
                  struct et_spread *spread);

/*
 * flash_attn_replay.c: order online(step, weights): a row goes through keys [0, step), [step, 2 step)... of
 * those that it sees. weights: the et_dtype that a weight is rounded to before it is added and multiplied.
 */
size_t et_fa_replay_bytes(const struct et_problem *problem);
enum et_status et_fa_replay(const struct et_problem *problem, const struct et_order *order, int64_t unit,
                            void *work, float *value, struct et_met *met, struct et_error *error);

/* flash_attn_fill.c */
extern const struct et_own_fill et_fa_own_fills[];
void et_fa_fill(const struct et_problem *problem, const struct et_fill *fill, int tensor, int64_t row,
                float *dst);
enum et_status et_fa_takes(const struct et_problem *problem, enum et_fill_kind kind, struct et_error *error);
bool et_fa_names(const struct et_problem *problem, int64_t unit, const double *got, char *text, size_t size);

#endif
