/*
 * A lower bound of the seconds of a step within a number of bytes: no choice is faster.
 *
 * Stop the step before node o_t of its order. For the recorded values v (b_v bytes) and the nodes i that compute them
 * (s_i seconds per execution) let
 *
 *     made(v) < t      v has been computed. A value computed at t or later is computed for the first time, without
 *                      a replay
 *     needed(v)        it has been computed, and o_t or a later node reads it
 *     There(t)         the values that o_t reads: they are live
 *     A(t)             bytes that are live whatever is chosen: those of There(t), gradients in flight, the workspace of
 *                      o_t, and its outputs unless its op writes in place
 *
 * Every other needed value is live at t, or it is recomputed after t, from inputs that are themselves live at t or
 * recomputed after t. Let p_v = 1 for values that are available after t, and q_i = 1 for nodes that are replayed after
 * t. Then the seconds of replays still to come are at least
 *
 *     R_t(m) = minimum of sum of s_i q_i   where  p_v = 1 for needed v,   q_i <= p_u for each input u of i,
 *                                                 sum of b_v (p_v - q_maker(v))  <=  m - A(t)
 *
 *     R_t(m) >= D_t(l) - l (m - A(t))   for every price l >= 0 of a byte (weak duality), where
 *     D_t(l)  = minimum of sum of s_i q_i + l * sum of b_v (p_v - q_maker(v))    one minimum cut: min_cut.h
 *
 * The bound is the seconds of all nodes once, plus the maximum of that over some moments t of forward and backward and
 * over the prices. Replays before t, and the arrangement of bytes after t, are left out; both only make it smaller. It
 * holds for every plan that runs the nodes in this order, including plans that recompute within forward, or a value
 * several times. It does not hold for other orders, or for plans that recompute gradients.
 *
 * Nodes that can be deferred (autodiff/planning_problem.h) are an exception to the order, because their execution after
 * t may be their first. So they have s_i = 0 in D_t; none of them is o_t, because it need not run there; and their
 * reads of parameters and inputs do not count as reads of forward.
 *
 * Memory itself may have a price (autodiff/costs.h): c seconds for a byte that misses the caches twice. Then a step
 * with m bytes live at the moment takes another c * (m - near), whatever its order is (remat/schedule/cache_model.h):
 * bytes that the caches do not hold were evicted before, and miss again after. The outputs and the workspace of the
 * node are not among them; parameters and inputs that both sides read are.
 *
 * If values may be offloaded, a needed value may also be in the store at t. With M offloaded bytes at `out` and `in`
 * seconds per byte, F and B seconds of forward and backward, and R seconds of replays (all in backward)
 *
 *     T >= F + B + R        compute
 *     T >= M out + B + R    backward begins when every copy out has arrived; nodes that can be deferred are in F
 *     T >= F + M in         copies back begin with backward; here nodes that can be deferred are in B
 *
 * and so for weights a, b >= 0, a + b <= 1 of the second and the third
 *
 *     T >= F + B + (1 - b) R + (a out + b in) M - a F - b B
 *
 * An offloaded byte is one that is not kept, at the price a out + b in. If (1 - b) l is at most that price, the same
 * cut D_t(l) bounds R and M together.
 *
 * Sources: Fisher, "The Lagrangian relaxation method for solving integer programming problems", Management Science 27
 * (1981); the best price by tangents: Kelley, "The cutting-plane method for solving convex programs", Journal of the
 * SIAM 8 (1960).
 */
#ifndef RW_REMAT_PLANNER_BOUND_H
#define RW_REMAT_PLANNER_BOUND_H

#include "remat/policy/replayable.h"
#include "remat/schedule/schedule.h"

/* The cuts of one tape. They depend on no budget, so all budgets share them. */
struct rw_bound;

/*
 * Prepares the bound. none: the schedule that drops nothing, buffers merged; it is not used after this call. The graph
 * must exist as long as *ret. RW_ERR_MEMORY.
 */
rw_status rw_bound_create(struct rw_bound **ret, const struct rw_replayable *graph, const struct rw_schedule *none);
void rw_bound_destroy(struct rw_bound **b);

/* The lower bound for that many bytes. INFINITY if no step fits. */
double rw_bound_seconds(struct rw_bound *b, uint64_t bytes);

/* The same if every value may be offloaded, at the rates of the context's store. */
double rw_bound_seconds_moved(struct rw_bound *b, uint64_t bytes);

#endif
