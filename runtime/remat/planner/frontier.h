/*
 * The memory-time frontier of a step: the plans that no other plan beats in both bytes and seconds.
 *
 * Candidates are a fixed sequence, made from tape and costs only and never from a budget:
 *
 *     by name     none, full, uniform:k, block:k, outputs of expensive ops kept, regions of one name alone: policies
 *                 that users write by hand
 *     cuts        the best choice for some price of a byte (min_cut.h): any tape, single values
 *     nested      segments inside of segments (rotor.h): for budgets that do not hold the inputs of all blocks
 *     filled      for a series of limits between minimum and maximum: the fastest of these that fits, with the
 *                 remaining bytes used to keep more values (greedy_fill.h); on tapes that simulate quickly, also in a
 *                 second order
 *     positions   the first stages of forward as segments, the rest kept: for long tapes of equal values; filled
 *     descents    values that are live at the peak are dropped one after the other (peak_descent.h): for graphs with
 *                 skip connections; filled up to the smallest peak before
 *     neighbors   of a short tape: choices that differ from these in one value or cut (local_search.h)
 *
 *     moved       if offload is requested (offload_frontier.c): of these points, with the first sixteenths of what each
 *                 keeps offloaded. Values that a point drops are cheap to recompute for their bytes, so those that it
 *                 keeps, and that are offloaded, are the expensive ones. Then cuts at two prices, of a kept and of an
 *                 offloaded byte (offload_min_cut.h). Except on long tapes, also choices that differ from these in one
 *                 or two values (local_search.h)
 *
 * Each candidate is simulated. A candidate that is slower and not smaller than another one is removed; the rest are the
 * points. For a budget, a planner takes the first point in order of seconds whose placed size fits. This is monotone by
 * construction: a larger budget has more points to choose from, and a different answer is one that did not fit before.
 */
#ifndef RW_REMAT_PLANNER_FRONTIER_H
#define RW_REMAT_PLANNER_FRONTIER_H

#include "remat/planner/bound.h"
#include "remat/planner/candidates.h"

struct rw_frontier_entry {
    uint64_t peak;  /* simulated, bytes; placement may need more */
    uint64_t moved; /* offloaded bytes */
    double seconds; /* of the step, predicted */
    uint32_t candidate;
};

struct rw_frontier {
    struct rw_candidates candidates; /* number 0 is `none` */
    struct rw_frontier_entry *point; /* the fastest first: rw_frontier_faster_first() */
    size_t n_points;
    struct rw_bound *bound; /* NULL until it is first requested */
};

struct rw_frontier_entry rw_frontier_point_of(const struct rw_candidates *c, uint32_t candidate);

/* Finds the points. RW_ERR_MEMORY leaves *f empty. The problem must stay open while the frontier is used. */
rw_status rw_frontier_init(struct rw_frontier *f, const struct rw_problem *p);
void rw_frontier_finish(struct rw_frontier *f);

/*
 * For qsort(): the order of points, by seconds, then by offloaded bytes, then by peak and candidate. Hidden copies take
 * no time, but a value that fits should not be offloaded.
 */
int rw_frontier_faster_first(const void *a, const void *b);

/* Adds points that offload values, at the rates of the context's store. Existing points stay. RW_ERR_MEMORY. */
rw_status rw_frontier_add_moved(struct rw_frontier *f);

/* Makes the choice of a point. RW_ERR_MEMORY leaves *ret_choice empty. */
rw_status rw_frontier_choose(const struct rw_frontier *f, size_t point, struct rw_choice *ret_choice);

/* Peak and seconds of `none`. */
static inline uint64_t rw_frontier_none_peak(const struct rw_frontier *f)
{
    return f->candidates.candidate[0].peak;
}

static inline double rw_frontier_none_seconds(const struct rw_frontier *f)
{
    return f->candidates.candidate[0].seconds;
}

/* The policy of a point that is a hand-written one, or NULL for the planner's own. */
static inline const struct rw_policy *rw_frontier_policy(const struct rw_frontier *f, size_t point)
{
    const struct rw_candidate *const c = &f->candidates.candidate[f->point[point].candidate];
    return c->named ? &c->policy : NULL;
}

/*
 * Lower bound of the seconds of any choice whose peak is at most that many bytes (bound.h). INFINITY if there is none.
 * The cuts are kept for the next call. RW_ERR_MEMORY.
 */
rw_status rw_frontier_bound(struct rw_frontier *f, uint64_t bytes, double *ret_seconds);

/* The same if values may be offloaded, at the rates of the context's store. RW_ERR_MEMORY. */
rw_status rw_frontier_bound_moved(struct rw_frontier *f, uint64_t bytes, double *ret_seconds);

#endif
