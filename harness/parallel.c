#include "parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum { THREADS_MOST = 1024 };

struct loop {
    void (*body)(void *context, int thread, int64_t i);
    void *context;
    int64_t n;
    const volatile sig_atomic_t *stop;
    _Atomic int64_t next;
    atomic_int threads;
};

bool et_stopped(const volatile sig_atomic_t *stop)
{
    return stop && *stop;
}

static void *take_turns(void *argument)
{
    struct loop *loop = argument;
    const int thread = atomic_fetch_add(&loop->threads, 1);
    for (int64_t i; !et_stopped(loop->stop) && (i = atomic_fetch_add(&loop->next, 1)) < loop->n;)
        loop->body(loop->context, thread, i);
    return NULL;
}

void et_parallel(int threads, int64_t n, const volatile sig_atomic_t *stop,
                 void (*body)(void *context, int thread, int64_t i), void *context)
{
    struct loop loop = {.body = body, .context = context, .n = n, .stop = stop};
    pthread_t started[THREADS_MOST];
    int count = 0;
    while (count + 1 < threads && count + 1 < n && count < THREADS_MOST &&
           pthread_create(&started[count], NULL, take_turns, &loop) == 0)
        count++;
    take_turns(&loop);
    for (int i = 0; i < count; i++)
        pthread_join(started[i], NULL);
}
