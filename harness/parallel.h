/* A loop whose turns are shared out among threads. */
#ifndef ET_HARNESS_PARALLEL_H
#define ET_HARNESS_PARALLEL_H

#include <stdint.h>

/*
 * body(context, thread, i) for every i < n, on at most `threads` threads (at least 1), this one included;
 * thread < threads. Returns when all turns are done. Cannot fail: a thread that is not to be had is one less.
 */
void et_parallel(int threads, int64_t n, void (*body)(void *context, int thread, int64_t i), void *context);

#endif
