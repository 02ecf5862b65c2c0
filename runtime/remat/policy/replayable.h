/*
 * The values that can be recomputed: the recorded nodes of a problem as a graph of nodes and values, with the costs of
 * dropping and replaying. The parts of the planner (min_cut.h, rotor.h, greedy_fill.h) work on it.
 *
 * Nodes are numbered by their place in forward, values by the place of their producer. What exists anyway is no value
 * of this graph: leaves, held values, and outputs of adjoint nodes.
 *
 * A node with a recompute node (autodiff/recompute_output.h) is several nodes here: one that computes the other
 * outputs, and after it one for each output with a recompute node. So dropping only that output costs its recompute
 * node, and dropping all outputs costs the node.
 */
#ifndef RW_REMAT_POLICY_REPLAYABLE_H
#define RW_REMAT_POLICY_REPLAYABLE_H

#include "remat/policy/choice.h"

enum rw_replayable_flag {
    RW_IS_FREE = 1 << 0, /* requested, read by a commit, or offloaded by the caller: it is live and takes no bytes */
    RW_IS_FIXED = 1 << 1, /* may not be dropped: its op runs once, the caller saves it, or its part of the tape keeps
                             everything */
    RW_MAY_WAIT = 1 << 2, /* its part's policy may offload it by name: a bound cannot count it */
    RW_STAYS = 1 << 3     /* a budget must not offload it: rw_value_stays() */
};

struct rw_replayable {
    const struct rw_problem *p;
    size_t n_nodes, n_values;
    uint32_t *node;      /* place -> node of the tape; parts of one node are next to each other */
    double *seconds;     /* place -> of one execution */
    double *again;       /* place -> minimum that dropping its outputs adds: 0 if the node can be deferred */
    uint32_t *input_at;  /* place -> its inputs are input[input_at[i] .. input_at[i + 1]), each value once */
    uint32_t *input;
    uint32_t *output_at; /* place -> its outputs are the values [output_at[i], output_at[i + 1]) */
    uint32_t *value;     /* value -> base value of the tape */
    uint32_t *producer;  /* value -> place of its producer */
    uint64_t *bytes;     /* value -> bytes, rounded up to the device's alignment */
    uint32_t *last_read; /* value -> the last place of forward that reads it; its producer's place if none does */
    uint32_t *late;      /* value -> the last place in the problem's order of an adjoint node that reads it; 0: none */
    uint8_t *flags;      /* value -> enum rw_replayable_flag */
    struct rw_fate *kept; /* base value of the tape -> its fate if everything possible is kept */
    uint32_t *value_of;  /* base value of the tape -> value, or RW_NONE_ID */
    uint32_t *place_of;  /* node of the tape -> place, the first of several, or RW_NONE_ID */
    size_t cap_input;
};

/* RW_ERR_MEMORY leaves *g empty. */
rw_status rw_replayable_init(struct rw_replayable *g, const struct rw_problem *p);
void rw_replayable_finish(struct rw_replayable *g);

/* May forward be cut before that place? Not inside of a node. */
static inline bool rw_place_may_begin(const struct rw_replayable *g, uint32_t place)
{
    return !place || g->node[place] != g->node[place - 1];
}

static inline bool rw_value_may_drop(const struct rw_replayable *g, uint32_t v)
{
    return !(g->flags[v] & (RW_IS_FREE | RW_IS_FIXED));
}

#endif
