/*
 * Local search on the simulator: for short tapes, whose best choices are not of the kind that cuts and nests make.
 *
 * What is on the frontier so far is looked at in turn. Its neighbours are the choices with one value dropped otherwise,
 * with two turned over, or, where forward is cut into segments side by side, with one cut more or less. One that is on
 * the frontier itself gets its own turn later. It ends when every turn has been taken, or after so many simulations. Of
 * very short tapes a second round looks at those where every node is a segment and two values are dropped otherwise -
 * some are then made again once, beside others that are made again for each that reads them - and a third at the
 * neighbours of what that has found; so do two more of the first candidates that something beats, as a better one may
 * lie behind a worse. Each has as many simulations.
 *
 * Where values may move, turns are of values that are kept, replayed or moved otherwise: one at a time, then two.
 *
 * Source: Paquete, Chiarandini and Stuetzle, "Pareto local optimum sets in the biobjective traveling salesman problem",
 * Metaheuristics for Multiobjective Optimisation (2004).
 */
#ifndef RW_REMAT_NEIGHBOURS_H
#define RW_REMAT_NEIGHBOURS_H

#include "remat/candidates.h"

/* Tapes of which neighbours are searched; of longer ones those in one value alone, and where values may move alone. */
#define RW_SHORT_TAPE 24 /* nodes */
#define RW_MEDIUM_TAPE 96
#define RW_NEIGHBOURS_MOST 2000

/* RW_ERR_MEMORY. */
rw_status rw_search_neighbours(struct rw_candidates *c, size_t most_simulations);

/* The same where values may wait outside: of what moves parts of what another one keeps, too. RW_ERR_MEMORY. */
rw_status rw_search_moved_neighbours(struct rw_candidates *c, size_t most_simulations);

#endif
