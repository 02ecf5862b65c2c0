/*
 * Parts of a tape with their own budgets: which nodes belong to each, what is dropped there in which order, and how
 * many bytes a part takes.
 *
 * A part has the nodes recorded between its two calls, their replays, and the nodes that differentiate them. Its bytes
 * are those of the arena that these nodes write, without results and parameters' gradients: values, each from the node
 * that writes it to its last reader (of several that share memory, the present one), and workspaces. The maximum over
 * all moments counts.
 *
 * A part decides about the values of its own nodes, except where another part inside of it, a replayed region around
 * it, or the caller decides. It drops them in one fixed order, made from tape and costs only: the cuts of min_cut.h for
 * increasing prices of a byte of this part, and between two cuts in the order in which forward computes the values.
 * Each cut replays what the one before replays, and more, because gains increase with the price while required inputs
 * cost the same (Gallo, Grigoriadis and Tarjan, SIAM J. Computing 18 (1989)).
 *
 * A replay may read values of other nodes that nothing else reads after forward. They do not count in the bytes of the
 * part, but they take memory. So a first series of cuts counts them like bytes of the part, and a second one, which
 * does not, adds the rest of the order.
 *
 * Values of the part that a replay outside of it may read are not dropped. So the bytes of one part do not depend on
 * another part's budget, except for values that only such a replay reads (`beside`).
 */
#ifndef RW_REMAT_PLANNER_PARTS_WITH_BUDGETS_H
#define RW_REMAT_PLANNER_PARTS_WITH_BUDGETS_H

#include "remat/policy/choice.h"
#include "remat/planner/min_cut.h"
#include "remat/schedule/schedule.h"

/* A part with a budget, and the order in which it drops: places of the graph, place[first .. first + n). */
struct rw_part_order {
    uint32_t part; /* of the tape */
    size_t first, n;
    uint64_t beside; /* bytes that only replays outside of the part read; they may be live in addition */
};

struct rw_parts {
    const struct rw_problem *p;
    struct rw_replayable graph;
    uint32_t *part_of; /* node of the tape -> its part with a budget, or RW_NONE_ID */
    bool *decides;     /* value of the graph -> its part decides about it */
    uint32_t *place;
    size_t n_places;
    struct rw_part_order *order; /* in the order of the tape */
    size_t n;
    struct rw_lifetime *life; /* scratch of rw_parts_count() */
    uint32_t *holder;
    bool *keep;
    int64_t *delta;
    size_t cap_life, cap_holder, cap_keep, cap_delta;
};

/* Does a part of the tape have a budget that this policy leaves in force? */
bool rw_has_part_budgets(const rw_tape *t, const struct rw_policy *policy);

/* base: the choice of the policies, with everything kept that parts with budgets decide about. most_cuts: maximum for
   each part. RW_ERR_MEMORY leaves *x empty. */
rw_status rw_parts_init(struct rw_parts *x, const struct rw_problem *p, const struct rw_choice *base, size_t most_cuts);
void rw_parts_finish(struct rw_parts *x);

/* Changes *c: the first n_dropped places of the order drop their outputs, the others keep them. */
void rw_parts_choose(const struct rw_parts *x, const struct rw_part_order *o, size_t n_dropped, struct rw_choice *c);

/* The maximum bytes of the part at one moment of a schedule, buffers merged. RW_ERR_MEMORY. */
rw_status rw_parts_count(struct rw_parts *x, const struct rw_schedule *s, const struct rw_part_order *o,
                         uint64_t *ret_bytes);

#endif
