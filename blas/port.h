/*
 * What an operator's file provides: resolve, the room that it needs, and what it computes there. Allocation
 * and the library are written once, in blas.c and library.c.
 */
#ifndef ET_BLAS_PORT_H
#define ET_BLAS_PORT_H

#include "../ref/etalon_port.h"

/* c[rows][columns] = a[rows][depth] b[depth][columns], or b[columns][depth] where it is `transposed`; all
 * packed, depth may be 0. Each number is at most ET_BLAS_MOST. */
struct et_product {
    int64_t rows, columns, depth;
    bool transposed;
    const float *a, *b;
    float *c;
};

#define ET_BLAS_MOST INT32_MAX

/* An open library. */
struct et_session {
    void (*multiply)(const struct et_session *session, const struct et_product *product);
};

struct et_blas_variant {
    struct et_variant variant; /* first: an et_variant of this port is one of these */
    /* The floats that compute needs in `room`. */
    size_t (*room)(const struct et_problem *problem);
    void (*compute)(const struct et_session *session, const struct et_problem *problem, float *room,
                    void *const *out);
};

/* The port's open and close. ET_LACKING: the library is not here, or was not when etalon was built. */
enum et_status et_blas_open(const struct et_open *options, struct et_session **session,
                            struct et_device *device, struct et_error *error);
void et_blas_close(struct et_session *session);

/* The variant's prepare, step and finish. */
enum et_status et_blas_prepare(struct et_session *session, const struct et_variant *variant,
                               const struct et_problem *steps, const struct et_claim *claims, int n,
                               void **state, struct et_error *error);
enum et_status et_blas_step(void *state, int i, int repeat, void *const *out, struct et_facts *facts,
                            struct et_error *error);
void et_blas_finish(void *state);

/* ET_REFUSED where a number is more than the library takes; it opens with `name`. */
enum et_status et_blas_fits(const char *name, int64_t value, struct et_error *why);

/* What sgemm claims: f32 throughout, chains of at most `depth` roundings, in no order that it tells of. */
struct et_claim et_blas_claim(int64_t depth);

/* The first n elements of a row of a tensor (et_row_at), widened; and n values, each rounded once, into a row
 * of an output's buffer. */
void et_blas_load(const struct et_tensor *tensor, int64_t row, int64_t n, float *dst);
void et_blas_store(const struct et_tensor *tensor, void *out, int64_t row, int64_t n, const float *src);

extern const struct et_blas_variant et_blas_gqa_av, et_blas_skinny_gemm, et_blas_flash_attn;

#endif
