/*
 * Simulations by the context's threads: independent pieces of work on one problem. Each thread has its own scratch,
 * because a scratch that has been used before allocates nothing.
 */
#ifndef RW_REMAT_SCHEDULE_PARALLEL_SIMULATION_H
#define RW_REMAT_SCHEDULE_PARALLEL_SIMULATION_H

#include "remat/schedule/simulate.h"

struct rw_simulations {
    struct rw_simulation *room; /* scratch by thread; number 0 is the caller's, also for single simulations */
    int threads;                /* maximum number of threads */
};

/* RW_ERR_MEMORY leaves *s empty. */
rw_status rw_simulations_init(struct rw_simulations *s, int threads);
void rw_simulations_finish(struct rw_simulations *s);

/* Releases the scratch memory of the other threads. They allocate it again if there is more work for them. */
void rw_simulations_trim(struct rw_simulations *s);

/* Does piece i of the work that `of` describes, with that scratch. The result must not depend on the scratch. */
typedef rw_status rw_simulations_work(void *of, size_t i, struct rw_simulation *room);

/*
 * Does pieces 0 to n - 1, of about `actions` actions each. If there is little work, or no threads can be started, the
 * calling thread does all of it: planning does not fail for lack of threads. Returns RW_OK or the status of a piece
 * that failed; after a failure pieces may be skipped.
 */
rw_status rw_simulations_share(struct rw_simulations *s, size_t n, size_t actions, rw_simulations_work *work,
                               void *of);

#endif
