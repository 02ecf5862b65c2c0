/*
 * The memory-time frontier of a step: what can be had for how many bytes.
 *
 * Candidates are a fixed sequence, made from tape and costs alone and never from a budget:
 *
 *     by name     none, full, uniform:k, block:k, the outputs of expensive ops kept, regions of one name alone: what
 *                 people write by hand
 *     cuts        what is best for some price of a byte (closure.h): any tape, single values
 *     nests       segments inside of segments (nest.h): for budgets in which the inputs of all blocks don't fit
 *     filled      for a row of bounds between the least and the most: the fastest of these that fits, with what is left
 *                 spent on values that are kept besides (fill.h); of tapes that are simulated quickly, in a second
 *                 order as well
 *     neighbours  of a short tape: what differs from these in one value or cut (neighbours.h)
 *
 *     moved       of points that these come to: the first sixteenths of what each keeps wait outside the device's
 *                 memory, where that is asked for (frontier_moved.c). What a point drops is cheap to make again for its
 *                 bytes, so what it keeps, and what goes out, is what is dear. Of tapes that are not long, what
 *                 differs from these in a value or two as well (neighbours.h)
 *
 * Each is simulated. Those that are slower and no smaller than another one go; what is left are the points. A planner
 * that takes, for a budget, the first of the points in order of seconds whose placed size fits is monotone by
 * construction: with more bytes it has more to choose from, and another answer is one that did not fit before.
 */
#ifndef RW_REMAT_FRONTIER_H
#define RW_REMAT_FRONTIER_H

#include "remat/candidates.h"

struct rw_frontier_point {
    uint64_t peak;  /* simulated, bytes; what placement needs may be more */
    uint64_t moved; /* bytes that wait outside */
    double seconds; /* of the step, predicted */
    uint32_t candidate;
};

struct rw_frontier {
    struct rw_candidates candidates; /* number 0 is `none` */
    struct rw_frontier_point *point; /* the fastest first: rw_frontier_faster_first() */
    size_t n_points;
};

struct rw_frontier_point rw_frontier_point_of(const struct rw_candidates *c, uint32_t candidate);

/* RW_ERR_MEMORY leaves *f empty. The problem stays open as long as the frontier is used. */
rw_status rw_frontier_init(struct rw_frontier *f, const struct rw_problem *p);
void rw_frontier_finish(struct rw_frontier *f);

/*
 * For qsort(): the order of points, by seconds, then by what waits outside, then by peak and candidate. Copies that are
 * hidden take no time, but who has room for a value does not move it.
 */
int rw_frontier_faster_first(const void *a, const void *b);

/* Adds what moves values, at the rates of the context's store. The points that are there stay. RW_ERR_MEMORY. */
rw_status rw_frontier_add_moved(struct rw_frontier *f);

/* The choice that a point stands for. RW_ERR_MEMORY leaves *ret_choice empty. */
rw_status rw_frontier_choose(const struct rw_frontier *f, size_t point, struct rw_choice *ret_choice);

/* What `none` takes and needs. */
static inline uint64_t rw_frontier_none_peak(const struct rw_frontier *f)
{
    return f->candidates.candidate[0].peak;
}

static inline double rw_frontier_none_seconds(const struct rw_frontier *f)
{
    return f->candidates.candidate[0].seconds;
}

/* The policy of a point that is a hand-written one, NULL for the planner's own. */
static inline const struct rw_policy *rw_frontier_policy(const struct rw_frontier *f, size_t point)
{
    const struct rw_candidate *const c = &f->candidates.candidate[f->point[point].candidate];
    return c->named ? &c->policy : NULL;
}

/*
 * No choice whose peak is at most so many bytes takes less (bound.h): what is known without looking for one. INFINITY
 * where there is none. RW_ERR_MEMORY.
 */
rw_status rw_frontier_bound(struct rw_frontier *f, uint64_t bytes, double *ret_seconds);

/*
 * What runs whatever is chosen, where values may move, too. Not what `none` takes: that replays where a part or a mark
 * asks for it. RW_ERR_MEMORY.
 */
rw_status rw_frontier_seconds_without_replays(struct rw_frontier *f, double *ret_seconds);

#endif
