/*
 * etalon's OpenCL port. The tables and every resolve are pure; the OpenCL loader is opened, with dlopen, by
 * list and open only, so that a process that merely plans and judges never maps it.
 */
#ifndef ET_OCL_H
#define ET_OCL_H

#include "../ref/etalon_port.h"

extern const struct et_port et_ocl;

#endif
