#define _XOPEN_SOURCE 700

#include <cblas.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "port.h"

static const char file[] = "libopenblas.so.0";

struct library {
    struct et_session session; /* first: it is what is handed out */
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(openblas_set_num_threads) *set_num_threads;
    __typeof__(openblas_get_config) *get_config;
    __typeof__(openblas_get_corename) *get_corename;
};

static const struct {
    size_t offset;
    const char *name;
} calls[] = {
    {offsetof(struct library, sgemm), "cblas_sgemm"},
    {offsetof(struct library, set_num_threads), "openblas_set_num_threads"},
    {offsetof(struct library, get_config), "openblas_get_config"},
    {offsetof(struct library, get_corename), "openblas_get_corename"},
};

static blasint at_least_1(int64_t n)
{
    return n > 0 ? (blasint)n : 1;
}

static void multiply(const struct et_session *session, const struct et_product *p)
{
    const struct library *library = (const struct library *)session;
    library->sgemm(CblasRowMajor, CblasNoTrans, p->transposed ? CblasTrans : CblasNoTrans, (blasint)p->rows,
                   (blasint)p->columns, (blasint)p->depth, 1, p->a, at_least_1(p->depth), p->b,
                   at_least_1(p->transposed ? p->depth : p->columns), 0, p->c, at_least_1(p->columns));
}

static enum et_status find(struct library *library, struct et_error *error)
{
    void *object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        return et_fail(error, ET_LACKING, "OpenBLAS cannot be opened: %s", dlerror());
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        void *function = dlsym(object, calls[i].name);
        if (!function)
            return et_fail(error, ET_LACKING, "OpenBLAS, %s, has no %s", file, calls[i].name);
        memcpy((char *)library + calls[i].offset, &function, sizeof function);
    }
    return ET_OK;
}

enum et_status et_blas_open(const struct et_open *options, struct et_session **session,
                            struct et_device *device, struct et_error *error)
{
    struct library *library = malloc(sizeof *library);
    (void)options;
    *session = NULL;
    if (!library)
        return et_fail(error, ET_FAILED, "out of memory for %zu bytes", sizeof *library);
    *library = (struct library){.session = {multiply}};
    /* One thread: with more, how sums are split would be the machine's number of cores. Said before the
     * library is mapped, it starts none. */
    if (setenv("OPENBLAS_NUM_THREADS", "1", 1) != 0) {
        free(library);
        return et_fail(error, ET_FAILED, "OPENBLAS_NUM_THREADS cannot be set");
    }
    const enum et_status status = find(library, error);
    if (status != ET_OK) {
        free(library);
        return status;
    }
    library->set_num_threads(1);
    *device = (struct et_device){.name = "OpenBLAS", .platform = "CPU", .place = "0:0", .compute_units = 1};
    snprintf(device->version, sizeof device->version, "%s", library->get_config());
    snprintf(device->driver, sizeof device->driver, "%s", library->get_corename());
    *session = &library->session;
    return ET_OK;
}

/* The library stays mapped: it has exit handlers of its own. */
void et_blas_close(struct et_session *session)
{
    free(session);
}
