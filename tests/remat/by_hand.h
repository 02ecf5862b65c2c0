/*
 * Choices made by hand: an open problem, one choice over it, and the plan of that choice put into the context's cache,
 * where rw_backward() finds it and runs it.
 */
#ifndef RW_TESTS_BY_HAND_H
#define RW_TESTS_BY_HAND_H

#include "support/support.h"

#include "plan/cache.h"

struct by_hand {
    struct fixture *b;
    uint32_t loss;
    struct rw_request request;
    struct rw_plan_key key;
    struct rw_planning g; /* problem and choice are there from the beginning */
    struct rw_simulation sim;
};

/* Of rw_backward(b->t, loss), everything kept. To be closed before anything is recorded or run. */
void by_hand_open(struct by_hand *h, struct fixture *b, rw_tensor *loss);
void by_hand_close(struct by_hand *h);

/* A new segment around the nodes that make x .. y; it is inside `parent`, whose nodes those are. */
uint32_t by_hand_segment(struct by_hand *h, uint32_t parent, const rw_tensor *x, const rw_tensor *y);

/* When all segments are there: adjoint nodes go where those are that they differentiate. */
void by_hand_segments_end(struct by_hand *h);

/* x is dropped after the reads of forward. */
void by_hand_drop(struct by_hand *h, const rw_tensor *x, uint32_t level);

/* Orders and counts into h->g, checks what there is to check, and puts the plan into the cache. */
const rw_plan *by_hand_plan(struct by_hand *h);

/* Replays of the node that makes x, in a plan. */
size_t by_hand_replays(const rw_plan *plan, const rw_tensor *x);

#endif
