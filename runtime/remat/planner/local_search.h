/*
 * Local search on the simulator, for short tapes, whose best choices may be neither cuts nor nested checkpointing.
 *
 * The length of a tape is the number of its nodes that compute a value of significant size, or a third of these values
 * if they are more than three per node; tiny values stay as they are. The search goes through the frontier points in
 * turn. The neighbors of a point are the choices that differ from it
 *
 * - in the fate of one value;
 * - in one exchange of a kept and a dropped value (on very short tapes, in any two values);
 * - in one cut, if forward is cut into segments side by side.
 *
 * A neighbor that is a frontier point itself gets its own turn later. The search ends after all turns, or after a
 * number of simulations.
 *
 * On very short tapes two more rounds follow. One tries points with every node as a segment and two values changed,
 * because some values may be recomputed once next to others that are recomputed for each reader; then the neighbors of
 * its results. The other tries the neighbors of dominated candidates, because a better point may be next to a worse
 * one. Each round has as many simulations. If descents have found more (peak_descent.h), rw_search_rest() searches next
 * to that, drops every set of values once if there are few, and on the shortest tapes cuts forward in every way.
 *
 * If values may be offloaded, neighbors differ in one value that is kept, replayed or offloaded, and then in two. Every
 * combination is tried if there are few.
 *
 * Source: Paquete, Chiarandini and Stuetzle, "Pareto local optimum sets in the biobjective traveling salesman problem",
 * Metaheuristics for Multiobjective Optimisation (2004).
 */
#ifndef RW_REMAT_PLANNER_LOCAL_SEARCH_H
#define RW_REMAT_PLANNER_LOCAL_SEARCH_H

#include "remat/planner/candidates.h"

/* Tapes of at most RW_SHORT_TAPE in significant length (candidates.h) are searched. Medium tapes are searched only if
   values may be offloaded, and only in one value at a time. */
#define RW_MEDIUM_TAPE 96 /* length */
#define RW_NEIGHBOURS_MAX 8000

/* Searches from the candidates so far. RW_ERR_MEMORY. */
rw_status rw_local_search(struct rw_candidates *c, size_t most_simulations);

/* Searches what is left when candidates from number `first` on were added after that. RW_ERR_MEMORY. */
rw_status rw_search_rest(struct rw_candidates *c, size_t first, size_t most_simulations);

/*
 * The same if values may be offloaded. Also refines candidates that offload parts of what another one keeps.
 * RW_ERR_MEMORY.
 */
rw_status rw_local_search_moved(struct rw_candidates *c, size_t most_simulations);

#endif
