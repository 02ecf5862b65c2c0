/*
 * Simulations by the context's threads: pieces of work on one problem that do not know of each other. Each thread has a
 * room of its own to simulate in, as a scratch that has been used before allocates nothing.
 */
#ifndef RW_REMAT_SIMULATIONS_H
#define RW_REMAT_SIMULATIONS_H

#include "remat/simulate.h"

struct rw_simulations {
    struct rw_simulation *room; /* by thread; number 0 is the caller's, whoever simulates one thing alone */
    int threads;                /* that may be asked for */
};

/* RW_ERR_MEMORY leaves *s empty. */
rw_status rw_simulations_init(struct rw_simulations *s, int threads);
void rw_simulations_finish(struct rw_simulations *s);

/* Piece i of what `of` says, in that room. What it does must not depend on the room. */
typedef rw_status rw_simulations_work(void *of, size_t i, struct rw_simulation *room);

/*
 * Pieces 0 to n - 1 of so many actions each. Where all together are little, or no threads can be started, the calling
 * thread does them alone: planning does not fail for that. The status of one that failed, RW_OK where none has; behind
 * a failure pieces may be left out.
 */
rw_status rw_simulations_share(struct rw_simulations *s, size_t n, size_t actions, rw_simulations_work *work,
                               void *of);

#endif
