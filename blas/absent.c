/* Stands in for the library where etalon was built without its header. */
#include "port.h"

enum et_status et_blas_open(const struct et_open *options, struct et_session **session,
                            struct et_device *device, struct et_error *error)
{
    (void)options;
    (void)device;
    *session = NULL;
    return et_fail(error, ET_LACKING, "etalon was built without the header cblas.h, so there is no OpenBLAS");
}

void et_blas_close(struct et_session *session)
{
    (void)session;
}
