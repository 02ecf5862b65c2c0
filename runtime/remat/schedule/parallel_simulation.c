/* Distributes simulations over the team of threads: each takes the next piece until none is left. */
#include "remat/schedule/parallel_simulation.h"

#include "base/alloc.h"
#include "base/thread_team.h"

/* Each scratch holds a schedule: more of them would use a noticeable amount of memory. */
#define THREADS_MAX 16
/* Actions that are worth a thread: a tenth of a millisecond. */
#define ACTIONS_WORTH_A_THREAD 1500

rw_status rw_simulations_init(struct rw_simulations *s, int threads)
{
    s->threads = threads < THREADS_MAX ? threads : THREADS_MAX;
    s->room = rw_calloc((size_t)s->threads, sizeof *s->room);
    return s->room ? RW_OK : RW_ERR_MEMORY;
}

void rw_simulations_finish(struct rw_simulations *s)
{
    for (int i = 0; s->room && i < s->threads; i++) rw_simulation_finish(&s->room[i]);
    rw_free(s->room);
    *s = (struct rw_simulations){ 0 };
}

void rw_simulations_trim(struct rw_simulations *s)
{
    for (int i = 1; s->room && i < s->threads; i++) {
        rw_simulation_finish(&s->room[i]);
        s->room[i] = (struct rw_simulation){ 0 };
    }
}

static int threads_for(const struct rw_simulations *s, size_t n, size_t actions)
{
    if (s->threads < 2 || n < 2 || n * actions < 2 * ACTIONS_WORTH_A_THREAD) return 1;
    return rw_team_ready(s->threads) ? 1 : s->threads;
}

/* Pieces of work that threads take one by one. */
struct pieces {
    struct rw_simulations *s;
    rw_simulations_work *work;
    void *of;
    size_t n, next;
    int failed;
};

static void take_pieces(void *of, int thread, int threads)
{
    struct pieces *const p = of;
    while (!__atomic_load_n(&p->failed, __ATOMIC_RELAXED)) {
        const size_t i = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED);
        if (i >= p->n) return;
        const rw_status status = p->work(p->of, i, &p->s->room[thread]);
        if (status) __atomic_store_n(&p->failed, (int)status, __ATOMIC_RELAXED);
    }
}

rw_status rw_simulations_share(struct rw_simulations *s, size_t n, size_t actions, rw_simulations_work *work, void *of)
{
    struct pieces p = { .s = s, .work = work, .of = of, .n = n, .failed = RW_OK };
    rw_team_run(threads_for(s, n, actions), take_pieces, &p);
    return (rw_status)p.failed;
}
