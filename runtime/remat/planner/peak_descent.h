/*
 * Candidates by descent from the peak, for graphs whose values are read far from where they are computed.
 *
 *     forward   a1 a2 a3 ... | b3 b2 b1     b1 reads a1, b2 reads a2, ...: skip connections
 *     backward  b1' b2' b3' | ... a3' a2' a1'
 *                           ^ the peak: a1, a2, ... have been read by b1', b2', ..., and a2', a3', ... read them again
 *
 * A minimum cut drops a value until backward first reads it, and nested checkpointing cuts forward where few bytes are
 * live. Neither removes a1, a2, ... from this peak. Here every node, or on a large tape every stage of consecutive
 * nodes, is a segment, so a dropped value is recomputed for each visit that reads it. A descent begins with everything
 * kept, or with one of the smallest candidates so far, and repeats two steps until no change is accepted:
 *
 * - look at the values that are live at the peak and not read there, the largest first: drop one, for the step if only
 *   forward has read it so far, else for each visit; or keep one that a replay computes there
 * - simulate; accept the first change that does not raise the peak
 * - if none is accepted, try again those that recompute a value for each visit, with their inputs recomputed for each
 *   visit as well
 *
 * A dropped value stays dropped unless keeping it lowers the peak, so the descent terminates. Nothing here depends on a
 * budget. Greedy fills (greedy_fill.h) later keep values that were dropped without need.
 *
 * Source: Imanishi, Xu, Takagi, Wang and Castillo, "A fast heuristic to optimize time-space tradeoff for large models",
 * NeurIPS 2023 (FastSA), whose moves change the recomputation of one value; here by first improvement of the peak.
 */
#ifndef RW_REMAT_PLANNER_PEAK_DESCENT_H
#define RW_REMAT_PLANNER_PEAK_DESCENT_H

#include "remat/planner/candidates.h"

/* Maximum number of actions that are simulated for one tape. */
#define RW_DESCENT_ACTIONS 400000

/* Adds results that no candidate dominates. Simulates about most_actions actions. RW_ERR_MEMORY. */
rw_status rw_propose_descents(struct rw_candidates *c, size_t most_actions);

#endif
