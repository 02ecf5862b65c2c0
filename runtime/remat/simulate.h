/*
 * What a choice would cost: its peak and its time, without placing anything. A planner asks this for thousands of
 * choices over one problem; with a scratch that has been used before, nothing is allocated.
 *
 * The peak is the largest sum of live bytes, each buffer rounded up to the device's alignment, in-place writing and
 * workspaces counted. It is taken from the very schedule that would run, so it is what placement aims at; an arena may
 * be larger by what does not fit together (place/place.h).
 */
#ifndef RW_REMAT_SIMULATE_H
#define RW_REMAT_SIMULATE_H

#include "remat/caches.h"
#include "remat/overlap.h"

struct rw_cost_of_schedule {
    uint64_t peak;        /* bytes */
    uint32_t peak_action; /* the first at which it is reached */
    uint64_t kept;        /* bytes alive between the last action of forward and the first of backward */
    uint64_t replayed;    /* most bytes of replayed values alive at one time */
    uint64_t workspace;   /* largest of one action, in bytes */
    uint64_t moved;       /* bytes that wait outside */
    size_t n_replays;     /* actions that repeat a node */
    double seconds;       /* predicted, by the problem's costs: its nodes', and those of what comes from afar */
};

/* Room for sweeps. All zero is empty. */
struct rw_sweep_scratch {
    struct rw_life *life;
    bool *keep;
    size_t cap_life;
    int64_t *delta;
    double *end; /* of each action */
    size_t cap_delta;
    struct rw_caches caches;
};
void rw_sweep_scratch_finish(struct rw_sweep_scratch *scratch);

/* The costs of a schedule in which buffers have been merged. RW_ERR_MEMORY. */
rw_status rw_schedule_cost(const struct rw_problem *p, const struct rw_schedule *s, struct rw_sweep_scratch *scratch,
                           struct rw_cost_of_schedule *ret);

struct rw_simulation {
    struct rw_order_scratch order;
    struct rw_overlap_scratch overlap;
    struct rw_schedule schedule;
    struct rw_sweep_scratch sweep;
};
void rw_simulation_finish(struct rw_simulation *sim);

/* What the choice costs. RW_ERR_MEMORY leaves *ret untouched. */
rw_status rw_simulate(const struct rw_problem *p, const struct rw_choice *c, struct rw_simulation *sim,
                      struct rw_cost_of_schedule *ret);

/* The same for who compares choices: peak, moved and seconds alone. */
rw_status rw_simulate_briefly(const struct rw_problem *p, const struct rw_choice *c, struct rw_simulation *sim,
                              struct rw_cost_of_schedule *ret);

#endif
