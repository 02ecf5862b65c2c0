/*
 * What could be made again: the recorded nodes of a problem as a graph of nodes and the values between them, with what
 * dropping and replaying costs. What the planner's parts (closure.h, nest.h, fill.h) work on.
 *
 * Nodes are numbered by their place in forward, values by the place of their maker. What is there anyway - leaves, held
 * values, what adjoint nodes made - is no value here.
 *
 * A node with a remake (autodiff/remake.h) is several nodes here: what makes the other outputs, and behind it what
 * makes the one of them. So dropping that one alone costs its remake, dropping all of them the node.
 */
#ifndef RW_REMAT_REPLAYABLE_H
#define RW_REMAT_REPLAYABLE_H

#include "remat/choice.h"

enum rw_replayable_flag {
    RW_IS_FREE = 1 << 0, /* asked for, read by a commit, or moved out by the caller: it is there and takes nothing */
    RW_IS_FIXED = 1 << 1, /* may not be dropped: its op runs once, the caller saves it, or its part of the tape
                             keeps everything */
    RW_MAY_WAIT = 1 << 2  /* its part of the tape may move it out under a policy by name: a bound cannot count it */
};

struct rw_replayable {
    const struct rw_problem *p;
    size_t n_nodes, n_values;
    uint32_t *node;      /* place -> node of the tape; parts of one node are neighbours */
    double *seconds;     /* place -> of one run */
    uint32_t *input_at;  /* place -> its inputs are input[input_at[i] .. input_at[i + 1]), each value once */
    uint32_t *input;
    uint32_t *output_at; /* place -> its outputs are the values [output_at[i], output_at[i + 1]) */
    uint32_t *value;     /* value -> base value of the tape */
    uint32_t *maker;     /* value -> place */
    uint64_t *bytes;     /* value -> rounded to the device's alignment */
    uint32_t *last_read; /* value -> the last place of forward that reads it; its maker's when none does */
    uint32_t *late;      /* value -> the last place in the problem's order of an adjoint node that reads it; 0: none */
    uint8_t *flags;      /* value -> enum rw_replayable_flag */
    struct rw_fate *kept; /* base value of the tape -> its fate where all is kept that may be */
    uint32_t *value_of;  /* base value of the tape -> value, RW_NONE_ID */
    uint32_t *place_of;  /* node of the tape -> place, the first of several, RW_NONE_ID */
    size_t cap_input;
};

/* RW_ERR_MEMORY leaves *g empty. */
rw_status rw_replayable_init(struct rw_replayable *g, const struct rw_problem *p);
void rw_replayable_finish(struct rw_replayable *g);

/* May forward be cut in front of that place? Not inside a node. */
static inline bool rw_place_may_begin(const struct rw_replayable *g, uint32_t place)
{
    return !place || g->node[place] != g->node[place - 1];
}

static inline bool rw_value_may_drop(const struct rw_replayable *g, uint32_t v)
{
    return !(g->flags[v] & (RW_IS_FREE | RW_IS_FIXED));
}

#endif
