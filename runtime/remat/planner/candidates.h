/*
 * Candidates for a budget: compact form and costs of each. The sequence only grows while candidates are generated
 * (candidate_gen.h, local_search.h). A candidate's number is its index.
 */
#ifndef RW_REMAT_PLANNER_CANDIDATES_H
#define RW_REMAT_PLANNER_CANDIDATES_H

#include "record/policy.h"
#include "remat/policy/compact_choice.h"
#include "remat/schedule/parallel_simulation.h"

/* On a tape of at most that length every value is significant. On a longer one those that take more than 1 /
   RW_SPECK_PART of the bytes of `none`, if the nodes that compute them are no longer than RW_SHORT_TAPE. */
#define RW_SHORT_TAPE 24
#define RW_SPECK_PART 256

/* The length of some nodes that compute so many values: a search tries values, so ops with many outputs count more. */
static inline size_t rw_candidates_length(size_t n_nodes, size_t n_values)
{
    const size_t by_values = (n_values + 2) / 3;
    return n_nodes > by_values ? n_nodes : by_values;
}

/* What a candidate keeps is offloaded in steps of 1 / RW_MOVED_PARTS. */
#define RW_MOVED_PARTS 16

struct rw_candidate {
    bool named;
    uint8_t part;  /* number of parts offloaded of what candidate `base` keeps (offload_fraction.h); 0: it is its own */
    uint32_t base;
    struct rw_policy policy; /* of a named one; owns nothing */
    struct rw_compact_choice compact; /* of the others; empty once the candidate is removed */
    uint64_t peak, moved;    /* simulated, bytes */
    double seconds;          /* of the step, predicted */
};

struct rw_candidates {
    struct rw_replayable graph;
    struct rw_candidate *candidate;
    size_t n, cap;
    struct rw_simulations sims;
    size_t n_simulated; /* candidates with costs; later ones have none yet */
    size_t n_simulations;
    size_t n_actions; /* of `none` */
    size_t n_work;    /* of simulating `none`: its actions, or an eighth of their operands if these are many */
    size_t length;    /* of the tape */
    bool *weighty;    /* value -> a search changes it: it may be dropped and is large enough */
    size_t n_weighty; /* length of a short tape, or on a longer one of the nodes that compute such a value */
    size_t more, end_more; /* [more, end_more) are filled in another order: none of them is offloaded */
};

/* RW_ERR_MEMORY leaves *c empty. */
rw_status rw_candidates_init(struct rw_candidates *c, const struct rw_problem *p);
void rw_candidates_finish(struct rw_candidates *c);

/* Bytes of the largest value that is not significant; 0 if there are none. */
uint64_t rw_candidates_speck(const struct rw_candidates *c);

/* Finds the significant values, once the costs of `none` are known. RW_ERR_MEMORY. */
rw_status rw_candidates_weigh(struct rw_candidates *c);

/* Does the tape have so few significant nodes that the neighbors of each candidate are searched? */
bool rw_candidates_are_of_short_tape(const struct rw_candidates *c);

/* Does the node at that place compute a significant value, or follow one that does? */
bool rw_candidates_may_cut(const struct rw_candidates *c, uint32_t place);

/* Makes the choice of a candidate. RW_ERR_MEMORY leaves *ret_choice empty. */
rw_status rw_candidate_choose(const struct rw_candidates *c, uint32_t candidate, struct rw_choice *ret_choice);

/* Computes its costs again, with the schedule in that scratch. A named policy whose schedule is many times as long as
   that of `none` has INFINITY seconds and UINT64_MAX bytes, and the scratch has the beginning of the schedule. */
rw_status rw_candidate_simulate(struct rw_candidates *c, uint32_t candidate, struct rw_simulation *room);

/* Adds a candidate without costs. Takes ownership of a compact choice, also on failure. */
rw_status rw_candidates_add(struct rw_candidates *c, struct rw_compact_choice compact);
rw_status rw_candidates_add_named(struct rw_candidates *c, struct rw_policy policy);
rw_status rw_candidates_add_moved(struct rw_candidates *c, uint32_t base, uint8_t part);

/* Computes the costs of all candidates without costs, with the context's threads. */
rw_status rw_candidates_simulate(struct rw_candidates *c);

#endif
