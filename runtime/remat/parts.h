/*
 * Parts of a tape that have a budget of their own: which nodes are whose, what is dropped there in which order, and how
 * many bytes a part takes.
 *
 * To a part belong the nodes recorded between its two calls, their replays, and the nodes that differentiate them. It
 * takes what these make in the arena, results and parameters' gradients left out: values, each from the node that makes
 * it to the last that reads it (of what shares memory the one that lies there), and workspaces; of that the most at one
 * moment.
 *
 * A part decides about values of its own nodes that nobody else has decided about: another part inside of it, a
 * replayed region around, the caller. It drops them in one fixed order, made from tape and costs alone: the cuts of
 * closure.h for rising prices of a byte of this part; between two cuts what forward makes first. Each cut replays what
 * the one before replays, and more (gains rise with the price, what is asked for costs the same: Gallo, Grigoriadis and
 * Tarjan, SIAM J. Computing 18 (1989)). So what is dropped for more bytes is dropped for less: a budget that grows
 * replays no node that it did not replay before, whatever else is replayed on the tape.
 *
 * What may be replayed outside of a part finds what it reads of the part: such values are not dropped. So the bytes of
 * one part do not depend on another one's budget, but for values that only such a replay reads (beside).
 */
#ifndef RW_REMAT_PARTS_H
#define RW_REMAT_PARTS_H

#include "remat/choice.h"
#include "remat/closure.h"
#include "remat/schedule.h"

/* A part with a budget, and the order in which it drops: places of the graph, place[first .. first + n). */
struct rw_part_order {
    uint32_t part; /* of the tape */
    size_t first, n;
    uint64_t beside; /* bytes that only replays outside of it read, if there are such: they may live besides */
};

struct rw_parts {
    const struct rw_problem *p;
    struct rw_replayable graph;
    uint32_t *part_of; /* node of the tape -> the part with a budget that it belongs to, RW_NONE_ID */
    bool *decides;     /* value of the graph -> its part decides about it */
    uint32_t *place;
    size_t n_places;
    struct rw_part_order *order; /* a list, in the order of the tape */
    size_t n;
    struct rw_life *life; /* room for rw_parts_count() */
    uint32_t *holder;
    bool *keep;
    int64_t *delta;
    size_t cap_life, cap_holder, cap_keep, cap_delta;
};

/* Has some part of the tape a budget that this policy leaves in force? */
bool rw_has_part_budgets(const rw_tape *t, const struct rw_policy *policy);

/* base: what the policies say, with everything kept that parts with budgets decide about. most_cuts: for each part.
   RW_ERR_MEMORY leaves *x empty. */
rw_status rw_parts_init(struct rw_parts *x, const struct rw_problem *p, const struct rw_choice *base, size_t most_cuts);
void rw_parts_finish(struct rw_parts *x);

/* The first so many places of the order drop what they make, the others keep it. */
void rw_parts_choose(const struct rw_parts *x, const struct rw_part_order *o, size_t n_dropped, struct rw_choice *c);

/* The most bytes that the part takes at one moment of a schedule, buffers merged. RW_ERR_MEMORY. */
rw_status rw_parts_count(struct rw_parts *x, const struct rw_schedule *s, const struct rw_part_order *o,
                         uint64_t *ret_bytes);

#endif
