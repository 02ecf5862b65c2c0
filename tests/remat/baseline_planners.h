/*
 * Planners of peers, as choices over the problem that our planner decides on, so that rw_simulate() evaluates all of
 * them in the same way. For comparison; they are not policies of the library.
 *
 * A stage is an outermost region of the tape, in the order of the tape. Values outside of stages are kept, and so are
 * values that may not be dropped (choice.h). Without memory the program ends.
 */
#ifndef RW_TESTS_REMAT_BASELINE_PLANNERS_H
#define RW_TESTS_REMAT_BASELINE_PLANNERS_H

#include "remat/planner/frontier.h"

size_t rival_stages(const struct rw_problem *p);

/*
 * n stages in segments of sqrt(n), whose inputs are kept. The last segment is not dropped, because nothing is gained by
 * that (as in checkpoint_sequential() of PyTorch).
 *
 * Source: Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", arXiv 1604.06174 (2016).
 */
struct rw_choice rival_sqrt(const struct rw_problem *p);

/*
 * The fewest repeated stages with memory for so many (1 or more) of their inputs, the first one's included. All stages
 * count the same, whatever their cost.
 *
 * Source: Griewank and Walther, "Algorithm 799: Revolve", ACM TOMS 26 (2000).
 */
struct rw_choice rival_revolve(const struct rw_problem *p, size_t snapshots);

/*
 * The values that PyTorch's compiler keeps at an activation_memory_budget of 0 to 1. The budget is a share of the bytes
 * that are saved from forward for backward at budget 1:
 *
 *     1             a minimum cut of the graph by bytes, in which expensive values are never recomputed: products,
 *                   attention, random numbers, values of at most a fourth of their inputs, and values that a product of
 *                   backward reads
 *     less          the same cut without the last of these, if that is less than the budget
 *     still less    a knapsack over the expensive values, each with its bytes and its own time: those that are not
 *                   chosen may be recomputed, and the cut is computed once more
 *     0             nothing is kept
 *
 * Values that are not kept are recomputed once, when backward first reads them. Sources:
 * torch/_functorch/partitioners.py and torch/_functorch/_activation_checkpointing/knapsack.py ("dp", the default), read
 * in 2026.
 *
 * Simplifications and differences:
 *     - An op of ours is one node, while theirs is decomposed: values inside of an op that they drop are not seen.
 *     - Random ops are kept at any budget and are in no knapsack. (Theirs are recomputed with other numbers, which is
 *       wrong, issue 190758; this is the behavior of the fix, 190759.)
 *     - Times are our costs: their estimator "profile". The default counts arithmetic.
 *     - Parameters and inputs exist anyway and have no weight, as with their option treat_parameters_as_free_to_save.
 *     - Bans of values used far apart and of long chains of pointwise ops, at budget 1 only, are left out: sums with
 *       the residual stream, which the first is about, are inside of products here. So is their list of recomputable
 *       ops, which on our models equals the ops that are not expensive.
 *     - Of values of equal size, those that forward computes first come first; theirs are in the order of their bans.
 */
struct rw_choice rival_knapsack(const struct rw_problem *p, double budget);

#define RIVAL_NAME 32

/* The values that a policy by name keeps. */
struct rw_choice rival_named(const struct rw_problem *p, struct rw_policy policy);

/* Peer number i of a problem, from 0, with its name in RIVAL_NAME characters; false after the last one. By name (full,
   uniform, block), sqrt(n), Revolve, and the knapsack at increasing budgets. */
bool rival_next(const struct rw_problem *p, size_t i, char *name, struct rw_choice *ret_choice);

/* The planner's answer for a budget: the fastest point that fits, NULL if none does. */
const struct rw_frontier_entry *rival_ours(const struct rw_frontier *f, uint64_t bytes);

#endif
