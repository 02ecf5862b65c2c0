/*
 * The cost of a choice, as peak bytes and seconds, without placement. A planner calls this for thousands of choices of
 * one problem. With a scratch that has been used before it allocates nothing.
 *
 * The peak is the maximum of the live bytes, each buffer rounded up to the device's alignment, with in-place writes and
 * workspaces. It is counted on the very schedule that would run, so it is the lower limit of placement. The arena may
 * be larger because of fragmentation (place/place.h).
 */
#ifndef RW_REMAT_SCHEDULE_SIMULATE_H
#define RW_REMAT_SCHEDULE_SIMULATE_H

#include "remat/schedule/cache_model.h"
#include "remat/schedule/copy_schedule.h"

struct rw_cost_of_schedule {
    uint64_t peak;        /* bytes */
    uint32_t peak_action; /* the first at which it is reached */
    uint64_t kept;        /* bytes live between the last action of forward and the first of backward */
    uint64_t replayed;    /* maximum of the live bytes of replayed values */
    uint64_t workspace;   /* largest of one action, in bytes */
    uint64_t moved;       /* offloaded bytes */
    size_t n_replays;     /* actions that repeat a node */
    double seconds;       /* predicted, by the problem's costs: of its nodes and of cache misses */
};

/* Scratch memory for sweeps. All zero is empty. */
struct rw_sweep_scratch {
    struct rw_lifetime *life;
    size_t cap_life;
    int64_t *delta;
    double *end; /* of each action */
    size_t cap_delta;
    struct rw_cache_model caches;
};
void rw_sweep_scratch_finish(struct rw_sweep_scratch *scratch);

/* Computes the costs of a schedule whose buffers have been merged. RW_ERR_MEMORY. */
rw_status rw_schedule_cost(const struct rw_problem *p, const struct rw_schedule *s, struct rw_sweep_scratch *scratch,
                           struct rw_cost_of_schedule *ret);

/* Scratch memory of simulations of one problem after the other, except for the choice. */
struct rw_simulation {
    struct rw_choice choice; /* of a planner, for the graph of one problem: rw_compact_choice_expand() */
    struct rw_order_scratch order;
    struct rw_copy_schedule_scratch overlap;
    struct rw_schedule schedule;
    struct rw_sweep_scratch sweep;
};
void rw_simulation_finish(struct rw_simulation *sim);

/* Computes the costs of a choice. RW_ERR_MEMORY leaves *ret untouched. */
rw_status rw_simulate(const struct rw_problem *p, const struct rw_choice *c, struct rw_simulation *sim,
                      struct rw_cost_of_schedule *ret);

/* The same for comparing choices: fills in only peak, moved and seconds. */
rw_status rw_simulate_briefly(const struct rw_problem *p, const struct rw_choice *c, struct rw_simulation *sim,
                              struct rw_cost_of_schedule *ret);

#endif
