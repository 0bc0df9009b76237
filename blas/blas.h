/*
 * The port of OpenBLAS: operators that are products of matrices, by cblas_sgemm. The table and every resolve
 * are pure; the library is opened, with dlopen, by open only, so that a process that merely judges never maps
 * it.
 */
#ifndef ET_BLAS_H
#define ET_BLAS_H

#include "../ref/etalon_port.h"

extern const struct et_port et_blas;

#endif
