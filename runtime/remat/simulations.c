/* See simulations.h. */
#include "remat/simulations.h"

#include "base/alloc.h"
#include "device/cpu/threads.h"

#include <omp.h>

/* A room holds a schedule: more of them than this would be felt. */
#define THREADS_MOST 16
/* Actions that are worth a thread: a tenth of a millisecond. */
#define ACTIONS_WORTH_A_THREAD 1500

rw_status rw_simulations_init(struct rw_simulations *s, int threads)
{
    s->threads = threads < THREADS_MOST ? threads : THREADS_MOST;
    s->room = rw_calloc((size_t)s->threads, sizeof *s->room);
    return s->room ? RW_OK : RW_ERR_MEMORY;
}

void rw_simulations_finish(struct rw_simulations *s)
{
    for (int i = 0; s->room && i < s->threads; i++) rw_simulation_finish(&s->room[i]);
    rw_free(s->room);
    *s = (struct rw_simulations){ 0 };
}

/* All or one: OpenMP ends the threads of a team that a smaller region leaves out, and ops would start them anew. */
static int threads_for(const struct rw_simulations *s, size_t n, size_t actions)
{
    int threads = s->threads;
    if (threads < 2 || n < 2 || n * actions < 2 * ACTIONS_WORTH_A_THREAD) return 1;
    return rw_threads_ready(threads, &threads) ? 1 : threads;
}

rw_status rw_simulations_share(struct rw_simulations *s, size_t n, size_t actions, rw_simulations_work *work, void *of)
{
    const int threads = threads_for(s, n, actions);
    int failed = RW_OK;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
    for (size_t i = 0; i < n; i++) {
        if (__atomic_load_n(&failed, __ATOMIC_RELAXED)) continue;
        const rw_status status = work(of, i, &s->room[omp_get_thread_num()]);
        if (status) __atomic_store_n(&failed, (int)status, __ATOMIC_RELAXED);
    }
    return (rw_status)failed;
}
