/*
 * What others would keep, as choices over the problem that the planner decides on: so that rw_simulate() counts them
 * all alike. For comparison; no policies of the library.
 *
 * A stage is an outermost region of the tape, in the order of the tape. What stands outside of them is kept. Values
 * that may not be dropped (choice.h) never are. Where there is no memory the program ends.
 */
#ifndef RW_TESTS_RIVALS_H
#define RW_TESTS_RIVALS_H

#include "remat/frontier.h"

size_t rival_stages(const struct rw_problem *p);

/*
 * n stages in segments of sqrt(n), of which the inputs are kept; the last segment is not dropped, as nothing is gained
 * by that (so does checkpoint_sequential() of PyTorch).
 *
 * Source: Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", arXiv 1604.06174 (2016).
 */
struct rw_choice rival_sqrt(const struct rw_problem *p);

/*
 * The fewest repeated stages with room for so many (1 or more) of their inputs, that of the first one included. Stages
 * count alike, whatever they take.
 *
 * Source: Griewank and Walther, "Algorithm 799: Revolve", ACM TOMS 26 (2000).
 */
struct rw_choice rival_revolve(const struct rw_problem *p, size_t snapshots);

/*
 * What PyTorch's compiler keeps at an activation_memory_budget of 0 to 1. It is a share of the bytes that are saved
 * from forward for backward, those of budget 1 being 1:
 *
 *     1             a least cut of the graph by bytes, in which what is dear is never made again: products, attention,
 *                   random numbers, what is a fourth of its inputs or less, and what a product of backward reads
 *     less          the same cut without the last of these, if that is less than the budget
 *     still less    a knapsack over the dear values, each with its bytes and its own time: those that are not chosen
 *                   may be made again, and the cut is made once more
 *     0             nothing is kept
 *
 * What is not kept is made again once, when backward first reads it. Sources: torch/_functorch/partitioners.py and
 * torch/_functorch/_activation_checkpointing/knapsack.py ("dp", the default), read in 2026.
 *
 * What is simpler here, or other:
 *     - An op of ours is one node, where theirs is taken apart: what they could drop inside of one is not seen.
 *     - Random ops are kept at any budget and are in no knapsack. (Theirs are made again with other numbers, which is
 *       wrong, issue 190758; this is what the fix, 190759, does.)
 *     - Time is that of our costs: their estimator "profile". The default counts arithmetic.
 *     - Parameters and inputs are there and count for nothing, as their option treat_parameters_as_free_to_save says.
 *     - Bans of what is used far apart and of long chains of pointwise ops, at budget 1 alone, are left out: sums with
 *       the residual stream, which the first is about, are inside of products here. So is their list of what may be
 *       made again, which on our models comes to what is not dear.
 *     - Of values of one size those that forward makes first are first, theirs by the order that they were banned in.
 */
struct rw_choice rival_knapsack(const struct rw_problem *p, double budget);

#define RIVAL_NAME 32

/* What a policy by name keeps. */
struct rw_choice rival_named(const struct rw_problem *p, struct rw_policy policy);

/* Rival number i of a problem, counted from 0, its name into RIVAL_NAME characters; false behind the last one. By name
   (full, uniform, block), sqrt(n), Revolve, and the knapsack at rising budgets. */
bool rival_next(const struct rw_problem *p, size_t i, char *name, struct rw_choice *ret_choice);

/* The planner's answer for a budget: the fastest point that fits, NULL where none does. */
const struct rw_frontier_point *rival_ours(const struct rw_frontier *f, uint64_t bytes);

#endif
