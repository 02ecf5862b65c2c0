/*
 * Candidates for a budget: what each is in short, what it costs. A sequence that only grows while proposals are made
 * (propose.h, neighbours.h); a candidate's number is its place in it.
 */
#ifndef RW_REMAT_CANDIDATES_H
#define RW_REMAT_CANDIDATES_H

#include "record/policy.h"
#include "remat/recipe.h"
#include "remat/simulations.h"

/* What a candidate keeps is moved in steps of one such part. */
#define RW_MOVED_PARTS 16

struct rw_candidate {
    bool named;
    uint8_t part;  /* of what candidate `base` keeps so many parts are moved (move.h); 0: it is one of its own */
    uint32_t base;
    struct rw_policy policy; /* of a named one; nothing in it is owned */
    struct rw_recipe recipe; /* of the others; empty once the candidate is out */
    uint64_t peak, moved;    /* simulated, bytes */
    double seconds;          /* of the step, predicted */
};

struct rw_candidates {
    struct rw_replayable graph;
    struct rw_candidate *candidate;
    size_t n, cap;
    struct rw_simulations sims;
    size_t n_simulated; /* of the candidates: those behind have no costs yet */
    size_t n_simulations;
    size_t n_actions; /* of `none` */
    size_t more, end_more; /* [more, end_more) are filled in another order: close to others, nothing is moved of them */
};

/* RW_ERR_MEMORY leaves *c empty. */
rw_status rw_candidates_init(struct rw_candidates *c, const struct rw_problem *p);
void rw_candidates_finish(struct rw_candidates *c);

/* The choice that a candidate stands for. RW_ERR_MEMORY leaves *ret_choice empty. */
rw_status rw_candidate_choose(const struct rw_candidates *c, uint32_t candidate, struct rw_choice *ret_choice);

/* Its costs again, and its schedule into that room. */
rw_status rw_candidate_simulate(struct rw_candidates *c, uint32_t candidate, struct rw_simulation *room);

/* One more, without costs. A recipe is taken over, also when this fails. */
rw_status rw_candidates_add(struct rw_candidates *c, struct rw_recipe recipe);
rw_status rw_candidates_add_named(struct rw_candidates *c, struct rw_policy policy);
rw_status rw_candidates_add_moved(struct rw_candidates *c, uint32_t base, uint8_t part);

/* The costs of all that have none yet, by the context's threads. */
rw_status rw_candidates_simulate(struct rw_candidates *c);

#endif
