/* A loop whose turns are shared out among threads. */
#ifndef ET_HARNESS_PARALLEL_H
#define ET_HARNESS_PARALLEL_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * body(context, thread, i) for every i < n, on at most `threads` threads (at least 1), this one included;
 * thread < threads. Returns when all turns are done, or those begun before *stop was set (stop may be NULL).
 * Cannot fail: a thread that is not to be had is one less.
 */
void et_parallel(int threads, int64_t n, const volatile sig_atomic_t *stop,
                 void (*body)(void *context, int thread, int64_t i), void *context);
bool et_stopped(const volatile sig_atomic_t *stop);

#endif
