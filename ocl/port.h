/*
 * What an operator's OpenCL file provides: resolve, and plan, which says what to launch. Both are pure;
 * building, buffers, guards, poison and launching are written once, in port.c, from the operator's tensor
 * table.
 *
 * Kernel arguments: for each tensor in table order a pointer (to the same where tensors share memory), the
 * place of its first element and its strides but the innermost, which is 1; with scratch, a pointer to floats
 * and the place of the first; then the scalars; with local_bytes, a pointer to local memory. Places and
 * strides count elements. All but pointers are ulong. Options: -D NAME_DTYPE=f32 for each tensor, then the
 * plan's own.
 */
#ifndef ET_OCL_PORT_H
#define ET_OCL_PORT_H

#include "../ref/etalon_port.h"

enum { ET_LAUNCHES = 4, ET_SCALARS = 16 };

struct et_launch {
    const char *file, *kernel;
    char options[160];
    size_t groups[3]; /* unused dimensions: 0 */
    size_t items; /* of a group, in its first dimension, at most: with any fewer the group does the same */
    uint64_t scalar[ET_SCALARS];
    int scalars;
    size_t local_bytes; /* what the last argument, a pointer to local memory, points to; 0: there is none */
};

static inline int64_t et_ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

struct et_ocl_variant {
    struct et_variant variant; /* first: an et_variant of this port is one of these */
    /* Writes at most ET_LAUNCHES launches, in their order; returns how many. */
    int (*plan)(const struct et_problem *problem, const struct et_claim *claim, struct et_launch *launches);
};

/* The variant's prepare, step and finish. */
enum et_status et_ocl_prepare(struct et_session *session, const struct et_variant *variant,
                              const struct et_problem *steps, const struct et_claim *claims, int n,
                              void **state, struct et_error *error);
enum et_status et_ocl_step(void *state, int i, int repeat, void *const *out, struct et_facts *facts,
                           struct et_error *error);
void et_ocl_finish(void *state);

/* The port's list, open, override and close. */
int et_device_list(struct et_device *dst, int n, char *report, size_t report_bytes);
enum et_status et_device_open(const struct et_open *options, struct et_session **session,
                              struct et_device *device, struct et_error *error);
void et_device_override(struct et_session *session, const struct et_override *overrides);
void et_device_close(struct et_session *session);

/*
 * What every resolve asks last. ET_REFUSED: an innermost stride is not 1. ET_LACKING: local memory, one
 * buffer or all of them are more than the device has. Limits of 0 are unknown.
 */
enum et_status et_ocl_fits(const struct et_problem *problem, const struct et_device *device,
                           size_t local_bytes, size_t scratch_bytes, struct et_error *why);

/* Parts of it: *sum grows by bytes; `what` and `name` are what takes them. */
enum et_status et_fits_local(const struct et_device *device, const char *what, size_t bytes,
                             struct et_error *why);
enum et_status et_fits_global(const struct et_device *device, const char *name, size_t bytes, size_t *sum,
                              struct et_error *why);

extern const struct et_ocl_variant et_ocl_gqa_av_per_head, et_ocl_gqa_av_gqa, et_ocl_gqa_av_gqa_tile2,
    et_ocl_gqa_av_gqa_split, et_ocl_gqa_av_tiled, et_ocl_gqa_av_auto;

extern const struct et_ocl_variant et_ocl_gdn_postconv_per_token_head, et_ocl_gdn_postconv_chunked,
    et_ocl_gdn_postconv_chunked_gates, et_ocl_gdn_postconv_row, et_ocl_gdn_postconv_wave;

extern const struct et_ocl_variant et_ocl_skinny_gemm_naive, et_ocl_skinny_gemm_sml, et_ocl_skinny_gemm_mid,
    et_ocl_skinny_gemm_big, et_ocl_skinny_gemm_split_k, et_ocl_skinny_gemm_auto;

extern const struct et_ocl_variant et_ocl_flash_attn_tile_f32;

/* What skinny_gemm's `auto` runs; of naive there is the variant only. */
struct et_skinny_gemm_choice {
    const struct et_ocl_variant *variant;
    int waves, ytile, unroll, a_chunk;
    int swap;   /* 1: lanes are added up by exchanges where the device has any; 0: by local memory */
    int active; /* waves that are launched: the fewest that need as many rounds as `waves` do */
};

/* knob: compute_units, bytes of local memory, and table, 0 generic or 1 gfx11. It looks at no device. */
struct et_skinny_gemm_choice et_skinny_gemm_dispatch(const struct et_problem *problem, const int64_t *knob);

/* Values of auto's knob `override`, as in pytorch/executorch#21063 and #21064. */
enum et_gqa_av_override {
    ET_GQA_AV_AUTO = -1,
    ET_GQA_AV_PER_HEAD,
    ET_GQA_AV_GQA,
    ET_GQA_AV_TILE2,
    ET_GQA_AV_BASE
};

/*
 * What `auto` runs: tiled where S != 1, gqa where Hq > Hkv, Hq % Hkv == 0 and Hq / Hkv <= 8, else per_head;
 * or what override names, whose own resolve then takes or refuses the shape. It looks at no device: there the
 * same case would be another order.
 */
const struct et_ocl_variant *et_gqa_av_dispatch(const struct et_problem *problem, int64_t override);

/* The decompositions of gdn_postconv into items of one thread each. */
enum et_gdn_postconv_split { ET_GDN_PER_TOKEN_HEAD, ET_GDN_CHUNKED, ET_GDN_CHUNKED_GATES };

struct et_gdn_postconv_work {
    int64_t slots;   /* items of one token */
    int64_t longest; /* most elements that an item goes through one after the other: 4 k_head_dim where it
                        sums and scales a q and a k, else what it copies */
};

struct et_gdn_postconv_work et_gdn_postconv_work(const struct et_gdn_postconv *params,
                                                 enum et_gdn_postconv_split split);

#endif
