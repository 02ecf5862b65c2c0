/*
 * Decides which values to keep and which to recompute for a given price of a byte, by a minimum cut. Chains of replays
 * are priced exactly through all dependencies.
 *
 * For a price l of a byte that is kept through backward, finds the nodes to replay (q) and the values that are
 * available (p) with minimum cost:
 *
 *     minimum of  sum over nodes of seconds * q  +  l * sum over values of bytes * (p - q of its producer)
 *     where       p = 1 for what backward reads
 *                 q of a node <= p of each input: a replay needs all its inputs
 *                 q of a node <= p of each output that may be dropped: a replay writes all its outputs. Its other
 *                 outputs are kept or not needed, so they have no part in this
 *
 * The first execution of a node that can be deferred (autodiff/planning_problem.h) looks like a replay of it. So such a
 * node costs no seconds here.
 *
 * A replay of a node gains l * bytes of its outputs - its seconds, and it requires its inputs. An input costs l * its
 * bytes, or it is replayed and requires its own inputs. This is a maximum closure problem, which one minimum cut
 * solves:
 *
 *     source --gain--> q of a node --unlimited--> p of each required value --l * bytes--> sink
 *
 * rw_min_cut_hull() finds every choice that is best for some price, which is the lower convex hull of bytes against
 * seconds. It bisects: between two known choices, the cut at the price at which both cost the same is either below the
 * line through them, or there is none.
 *
 * Sources: Picard, "Maximal closure of a graph and applications to combinatorial problems", Management Science 22
 * (1976); Eisner and Severance, "Mathematical techniques for efficient record segmentation", JACM 23 (1976);
 * Gallo, Grigoriadis and Tarjan, "A fast parametric maximum flow algorithm and applications", SIAM Journal on
 * Computing 18 (1989).
 */
#ifndef RW_REMAT_PLANNER_MIN_CUT_H
#define RW_REMAT_PLANNER_MIN_CUT_H

#include "remat/planner/max_flow.h"
#include "remat/policy/replayable.h"

struct rw_min_cut {
    const struct rw_replayable *g;
    struct rw_max_flow flow;
    uint32_t *gain, *price; /* place, value -> edge. The edges to what a place requires follow that of its gain */
    uint32_t *place;        /* places that the last cut decided */
    size_t n_places;
    uint8_t *state; /* by value, flags of min_cut.c */
    const double *factor; /* by value: its price as a part of the price; NULL: 1 for all. The caller owns it. */
};

struct rw_cut {
    double kept;    /* bytes */
    double seconds; /* of replays */
    bool *replayed; /* by place */
};

rw_status rw_min_cut_init(struct rw_min_cut *c, const struct rw_replayable *g);
void rw_min_cut_finish(struct rw_min_cut *c);

/* The need for a value at the moment that is considered. */
enum rw_need {
    RW_NEED_NOT,
    RW_NEED_LATER, /* backward reads it later than that */
    RW_NEED_THERE  /* it is live whatever is chosen, and does not count here */
};

/* Solves for one price. need: by value, enum rw_need. cut->replayed has an entry for every node. */
void rw_min_cut_solve(struct rw_min_cut *c, const uint8_t *need, double price, struct rw_cut *cut);

/*
 * Solves for one price, given the cuts at a lower and at a higher price for the same need. Places that the cut at the
 * lower price replays are replayed, and places that the one at the higher price does not replay are not (Gallo,
 * Grigoriadis and Tarjan). So only the places in between are decided. less, more: the nodes that these cuts replay, by
 * place; NULL if a cut is not known.
 */
void rw_min_cut_solve_between(struct rw_min_cut *c, const uint8_t *need, double price, const bool *less,
                              const bool *more, struct rw_cut *cut);

/* A price at which any two choices whose kept bytes differ by at least one alignment differ by more than the seconds of
   all replays. So the cut there keeps the minimum. */
double rw_min_cut_highest_price(const struct rw_min_cut *c);

/* Cuts from the one that keeps everything to the one that keeps the minimum. */
struct rw_hull {
    struct rw_cut *cut;
    size_t n, cap;
};

/*
 * Finds the lower hull, or if it has more than `most` cuts, a selection that divides it evenly. RW_ERR_MEMORY leaves *h
 * empty.
 */
rw_status rw_min_cut_hull(struct rw_min_cut *c, const uint8_t *need, size_t most, struct rw_hull *h);
void rw_hull_finish(struct rw_hull *h);

#endif
