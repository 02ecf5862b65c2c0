/*
 * A problem: a tape that is ready for a decision. Its adjoint nodes are recorded, its requested outputs are named, and
 * the cost of each node has been evaluated once, however many choices are then tried.
 *
 * A problem is open for one call. Meanwhile the adjoint nodes are on the tape after its mark, and nothing else may be
 * recorded.
 */
#ifndef RW_AUTODIFF_PLANNING_PROBLEM_H
#define RW_AUTODIFF_PLANNING_PROBLEM_H

#include "autodiff/costs.h"
#include "autodiff/requested_outputs.h"

struct rw_problem {
    uint64_t serial; /* serial of this opening, from 1, unique in the process */
    rw_tape *t;
    struct rw_tape_mark mark; /* before the nodes that differentiation recorded */
    struct rw_outputs targets;
    bool *needed;        /* node -> a requested output depends on it */
    bool *wanted;        /* base value -> it is a requested output, or a commit reads it */
    uint32_t *target_of; /* base value -> its index in targets, or RW_NONE_ID */
    bool *is_read;       /* base value, a gradient's old contents -> an op reads it for which it is not optional */
    bool *given;         /* base value -> it exists before the run: a leaf, or held from an earlier run */
    size_t first_recompute_node; /* nodes from here on recompute an output of another node (recompute_output.h) */
    uint32_t *recompute_node;    /* base value -> its recompute node, or RW_NONE_ID */
    uint32_t *base;      /* operand of the tape -> its base value */
    uint64_t *bytes;     /* base value -> its bytes */
    uint32_t *order;     /* needed nodes in tape order, without views and commits */
    size_t n_order;
    bool *deferrable;    /* node -> only backward reads it: where its outputs are dropped, it waits for backward */
    size_t n_deferrable;
    uint64_t *overwrites; /* needed node -> its possible in-place writes: rw_overwrites(); none for commits */
    uint64_t *workspace; /* needed node -> bytes of workspace */
    uint64_t all_bytes;  /* bytes of all outputs and workspaces of needed nodes */
    rw_op_cost *cost;    /* needed node -> arithmetic and memory traffic */
    uint64_t *across;    /* needed node -> inputs that threads read after others wrote them: rw_cache_transfers() */
    double *seconds;     /* needed node -> predicted time of one run, by the context's costs (costs.h) */
    uint64_t beside_bytes; /* bytes outside of the arena that needed nodes read or write: leaves, parameters'
                              gradients */
    struct rw_memory_cost memory; /* by the same costs */
    struct rw_library_ref *holding; /* memory of the device's libraries for the nodes, NULL if it is not counted */
};

/* Predicted time of one run of a needed node. */
static inline double rw_problem_seconds(const struct rw_problem *p, uint32_t node)
{
    return p->seconds[node];
}

/* Predicted time to copy so many bytes on a copy lane, at the rate of the context's store if it is known. */
double rw_move_seconds(const struct rw_problem *p, int lane, uint64_t bytes);
/* Seconds that compute loses to a copy of so many bytes. */
double rw_move_loss(const struct rw_problem *p, uint64_t bytes);

/* The base value of an input of the node. */
static inline uint32_t rw_problem_input(const struct rw_problem *p, const struct rw_node *node, uint32_t i)
{
    return p->base[node->first_input + i];
}

/* True if the node recomputes an output of another node, among those that may be replayed. */
static inline bool rw_problem_is_recompute_node(const struct rw_problem *p, uint32_t node)
{
    return node >= p->first_recompute_node;
}

/* Errors are recorded in the context. On failure the tape is as before and *p empty. */
rw_status rw_problem_open(struct rw_problem *p, rw_tape *t, const struct rw_request *request);
void rw_problem_close(struct rw_problem *p);

/* The base of what input i of a commit reads: a copy, if the step writes to the memory of the operand
   (requested_outputs.c). */
static inline uint32_t rw_problem_read_by_commit(const struct rw_problem *p, const struct rw_node *commit, uint32_t i)
{
    const uint32_t base = rw_tape_base(p->t, p->t->operands[commit->first_input + i]);
    const uint32_t leaf = rw_tape_value(p->t, base)->leaf;
    const bool writes = i >= (uint32_t)commit->n_inputs - commit->n_outputs;
    if (writes || leaf == RW_NONE_ID || leaf >= p->targets.n_instead) return base;
    return p->targets.instead[leaf] == RW_NONE_ID ? base : p->targets.instead[leaf];
}

/* True if a node of this problem computes the base value. */
static inline bool rw_problem_makes(const struct rw_problem *p, uint32_t v)
{
    return !p->given[v] && rw_tape_base(p->t, v) == v;
}

#endif
