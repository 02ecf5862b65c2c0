/* See threads.h. */
#include "device/cpu/threads.h"

#include <rewind/context.h>

#include <pthread.h>
#include <stdbool.h>

/* How many threads the calling thread's team has: OpenMP keeps one for each thread that runs parallel regions, and ends
 * those of its threads that a smaller region does not use. */
static _Thread_local int team = 1;

static unsigned forks; /* how many lie between the first process and this one */

static void note_child(void)
{
    __atomic_add_fetch(&forks, 1, __ATOMIC_RELAXED);
}

static void watch_fork(void)
{
    pthread_atfork(NULL, NULL, note_child);
}

void rw_threads_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_fork);
}

unsigned rw_threads_forks(void)
{
    return __atomic_load_n(&forks, __ATOMIC_RELAXED);
}

int rw_threads_usable(int n)
{
    return rw_threads_forks() ? 1 : n;
}

/* So many threads at one time, none of which does anything. */
struct rehearsal {
    pthread_mutex_t mutex;
    pthread_cond_t over;
    bool is_over;
};

static void *wait_for_the_end(void *argument)
{
    struct rehearsal *const r = argument;
    pthread_mutex_lock(&r->mutex);
    while (!r->is_over) pthread_cond_wait(&r->over, &r->mutex);
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

static bool can_be_started(int n)
{
    struct rehearsal r = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false };
    pthread_t thread[RW_MAX_THREADS];
    int started = 0;
    while (started < n && !pthread_create(&thread[started], NULL, wait_for_the_end, &r)) started++;
    pthread_mutex_lock(&r.mutex);
    r.is_over = true;
    pthread_cond_broadcast(&r.over);
    pthread_mutex_unlock(&r.mutex);
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
    return started == n;
}

rw_status rw_threads_ready(int n, int *ret_n)
{
    const int usable = rw_threads_usable(n);
    if (usable > team) {
        if (!can_be_started(usable - team)) return RW_ERR_MEMORY;
#pragma omp parallel num_threads(usable)
        {
        }
    }
    if (usable > 1) team = usable;
    *ret_n = usable;
    return RW_OK;
}
