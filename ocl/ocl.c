/* The port's tables and what every resolve asks: pure, and there without any OpenCL. */
#include "ocl.h"

#include "port.h"

static const struct et_variant *const variants[] = {
    &et_ocl_gqa_av_per_head.variant,
    &et_ocl_gqa_av_gqa.variant,
    &et_ocl_gqa_av_gqa_tile2.variant,
    &et_ocl_gqa_av_gqa_split.variant,
    &et_ocl_gqa_av_tiled.variant,
    &et_ocl_gqa_av_auto.variant,
    &et_ocl_gdn_postconv_per_token_head.variant,
    &et_ocl_gdn_postconv_chunked.variant,
    &et_ocl_gdn_postconv_chunked_gates.variant,
    &et_ocl_gdn_postconv_row.variant,
    &et_ocl_gdn_postconv_wave.variant,
    &et_ocl_skinny_gemm_naive.variant,
    &et_ocl_skinny_gemm_sml.variant,
    &et_ocl_skinny_gemm_mid.variant,
    &et_ocl_skinny_gemm_big.variant,
    &et_ocl_skinny_gemm_split_k.variant,
    &et_ocl_skinny_gemm_auto.variant,
    &et_ocl_flash_attn_tile_f32.variant,
    NULL,
};

const struct et_port et_ocl = {
    .abi = ET_ABI,
    .name = "ocl",
    .variants = variants,
    .list = et_device_list,
    .open = et_device_open,
    .override = et_device_override,
    .close = et_device_close,
};

/* Limits. */

static bool exceeds(size_t bytes, int64_t limit)
{
    return limit > 0 && bytes > (uint64_t)limit;
}

enum et_status et_fits_global(const struct et_device *device, const char *name, size_t bytes, size_t *sum,
                              struct et_error *why)
{
    *sum = bytes > SIZE_MAX - *sum ? SIZE_MAX : *sum + bytes;
    if (exceeds(bytes, device->allocation))
        return et_fail(why, ET_LACKING, "%s is %zu bytes, the device allocates %lld at most", name, bytes,
                       (long long)device->allocation);
    if (exceeds(*sum, device->global_memory))
        return et_fail(why, ET_LACKING, "buffers up to %s are %zu bytes, the device has %lld", name, *sum,
                       (long long)device->global_memory);
    return ET_OK;
}

enum et_status et_fits_local(const struct et_device *device, const char *what, size_t bytes,
                             struct et_error *why)
{
    if (exceeds(bytes, device->local_memory))
        return et_fail(why, ET_LACKING, "%s takes %zu bytes of local memory, the device has %lld", what,
                       bytes, (long long)device->local_memory);
    return ET_OK;
}

enum et_status et_ocl_fits(const struct et_problem *problem, const struct et_device *device,
                           size_t local_bytes, size_t scratch_bytes, struct et_error *why)
{
    const struct et_tensor_spec *specs = problem->op->tensors;
    for (int t = 0; specs[t].name; t++) {
        const struct et_tensor *tensor = &problem->tensor[t];
        if (tensor->stride[tensor->rank - 1] != 1)
            return et_fail(why, ET_REFUSED, "%s: the innermost stride of %s is %lld, must be 1",
                           problem->op->name, specs[t].name, (long long)tensor->stride[tensor->rank - 1]);
    }
    enum et_status status = et_fits_local(device, "a group", local_bytes, why);
    size_t sum = 0;
    for (int t = 0; specs[t].name && status == ET_OK; t++)
        if (!problem->tensor[t].shares)
            status = et_fits_global(device, specs[t].name, problem->tensor[t].bytes, &sum, why);
    return status == ET_OK ? et_fits_global(device, "scratch", scratch_bytes, &sum, why) : status;
}
