/*
 * Choices made by hand: an open problem, one choice over it, and the plan of that choice in the context's cache, where
 * rw_backward() finds it.
 */
#ifndef RW_TESTS_REMAT_MANUAL_CHOICE_FIXTURE_H
#define RW_TESTS_REMAT_MANUAL_CHOICE_FIXTURE_H

#include "support/support.h"

#include "plan/cache.h"

struct by_hand {
    struct fixture *b;
    uint32_t loss;
    struct rw_request request;
    struct rw_plan_key key;
    struct rw_planning g; /* has the problem and the choice from the start */
    struct rw_simulation sim;
};

/* Opens the problem of rw_backward(b->t, loss) with everything kept. Close it before anything is recorded or run. */
void by_hand_open(struct by_hand *h, struct fixture *b, rw_tensor *loss);
void by_hand_close(struct by_hand *h);

/* A new segment of the nodes that compute x .. y. It is inside `parent`, to which these nodes belong. */
uint32_t by_hand_segment(struct by_hand *h, uint32_t parent, const rw_tensor *x, const rw_tensor *y);

/* Call it when all segments exist: adjoint nodes are assigned to the segments of the nodes that they differentiate. */
void by_hand_segments_end(struct by_hand *h);

/* Drops x after the reads of forward. */
void by_hand_drop(struct by_hand *h, const rw_tensor *x, uint32_t level);

/* Schedules and counts into h->g, checks all invariants, and puts the plan into the cache. */
const rw_plan *by_hand_plan(struct by_hand *h);

/* Number of replays of the node that computes x, in a plan. */
size_t by_hand_replays(const rw_plan *plan, const rw_tensor *x);

#endif
