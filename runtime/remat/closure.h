/*
 * What to keep and what to make again, priced right through every dependency: a least cut.
 *
 * For a price l of a byte that is kept through backward, the choice of nodes to replay (q) and of values to have (p)
 * that is cheapest:
 *
 *     least   sum over nodes of seconds * q  +  l * sum over values of bytes * (p - q of its maker)
 *     where   p = 1 for what backward reads;  who replays has all inputs:  q of a node <= p of each input;
 *             who replays makes all outputs:  q of a node <= p of each output
 *
 * A node that is replayed gains l * bytes of its outputs - its seconds and asks for its inputs; an input costs l * its
 * bytes, or is replayed and asks in turn. That is a closure problem, solved by one least cut:
 *
 *     source --gain--> q of a node --unlimited--> p of what it asks for --l * bytes--> sink
 *
 * Every choice that is best for some price is found (the lower hull of bytes against seconds) by halving: between two
 * that are known, the price at which both cost the same finds one below the line through them, or there is none.
 *
 * Sources: Picard, "Maximal closure of a graph and applications to combinatorial problems", Management Science 22
 * (1976); Eisner and Severance, "Mathematical techniques for efficient record segmentation", JACM 23 (1976).
 */
#ifndef RW_REMAT_CLOSURE_H
#define RW_REMAT_CLOSURE_H

#include "remat/flow.h"
#include "remat/replayable.h"

struct rw_closure {
    const struct rw_replayable *g;
    struct rw_flow flow;
    uint32_t *gain, *price; /* place, value -> edge */
};

struct rw_cut {
    double kept;    /* bytes */
    double seconds; /* of replay */
    bool *replayed; /* by place */
};

rw_status rw_closure_init(struct rw_closure *c, const struct rw_replayable *g);
void rw_closure_finish(struct rw_closure *c);

/* Of a value, at the moment that is looked at. */
enum rw_need {
    RW_NEED_NOT,
    RW_NEED_LATER, /* backward reads it from then on */
    RW_NEED_THERE  /* it is alive whatever is chosen, and counts for nothing here */
};

/* need: by value, enum rw_need. cut->replayed has room for every node. */
void rw_closure_solve(struct rw_closure *c, const uint8_t *need, double price, struct rw_cut *cut);

/* A price at which a byte is dearer than any replay. */
double rw_closure_highest_price(const struct rw_closure *c);

/* A list of cuts, from the one that keeps all to the one that keeps least. */
struct rw_hull {
    struct rw_cut *cut;
    size_t n, cap;
};

/* The lower hull, or of a long one so many cuts that divide it evenly. RW_ERR_MEMORY leaves *h empty. */
rw_status rw_closure_hull(struct rw_closure *c, const uint8_t *need, size_t most, struct rw_hull *h);
void rw_hull_finish(struct rw_hull *h);

#endif
