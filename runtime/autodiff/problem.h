/*
 * A problem: a tape made ready to be decided on. Adjoint nodes are on the tape, what is to be held is named, and what
 * each node costs has been asked once, however many choices are then tried on it.
 *
 * A problem is open for one call: while it is, the adjoint nodes lie on the tape behind its mark, and nothing may be
 * recorded.
 */
#ifndef RW_AUTODIFF_PROBLEM_H
#define RW_AUTODIFF_PROBLEM_H

#include "autodiff/costs.h"
#include "autodiff/targets.h"

struct rw_problem {
    uint64_t serial; /* of this opening, from 1: no other one of the process has it */
    rw_tape *t;
    struct rw_tape_mark mark; /* in front of what differentiation recorded */
    struct rw_targets targets;
    bool *needed;        /* node -> some target depends on it */
    bool *wanted;        /* base value -> it is asked for, or a commit reads it */
    uint32_t *target_of; /* base value -> in targets, or RW_NONE_ID */
    bool *asked;         /* base value, a gradient's old contents -> an op reads it that cannot do without */
    bool *given;         /* base value -> it is there before anything runs: a leaf, or held from an earlier run */
    size_t first_remake; /* nodes from here on are remakes: each makes a value that another one makes too (remake.h) */
    uint32_t *remake;    /* base value -> its remake, or RW_NONE_ID */
    uint32_t *base;      /* operand of the tape -> its base value */
    uint64_t *bytes;     /* base value -> what it takes */
    uint32_t *order;     /* needed nodes in tape order, views and commits left out */
    size_t n_order;
    uint64_t *overwrites; /* needed node -> what it may write over what: rw_overwrites(); of commits nothing */
    uint64_t *workspace; /* needed node -> bytes of workspace */
    rw_op_cost *cost;    /* needed node -> arithmetic and traffic */
    uint64_t *across;    /* needed node -> inputs that threads read which others wrote: rw_call_across() */
    double *seconds;     /* needed node -> predicted time of one run, by the context's costs (costs.h) */
    uint64_t beside_bytes; /* that needed nodes read or write beside the arena: leaves, parameters' gradients */
    struct rw_memory_cost memory; /* by the same costs */
    struct rw_holding *holding; /* what the device's libraries made for the nodes, NULL where nobody counts that */
};

/* Predicted time of one run of a needed node. */
static inline double rw_problem_seconds(const struct rw_problem *p, uint32_t node)
{
    return p->seconds[node];
}

/* Predicted time of moving so many bytes on a copy lane: at the rate of the context's store, where it is known. */
double rw_move_seconds(const struct rw_problem *p, int lane, uint64_t bytes);
/* What compute loses meanwhile. */
double rw_move_loss(const struct rw_problem *p, uint64_t bytes);

/* The base value of an input of the node. */
static inline uint32_t rw_problem_input(const struct rw_problem *p, const struct rw_node *node, uint32_t i)
{
    return p->base[node->first_input + i];
}

/* Does the node, of those that may run, make a value in place of another node? */
static inline bool rw_problem_remakes(const struct rw_problem *p, uint32_t node)
{
    return node >= p->first_remake;
}

/* Errors are recorded in the context. On failure the tape is as before and *p empty. */
rw_status rw_problem_open(struct rw_problem *p, rw_tape *t, const struct rw_request *request);
void rw_problem_close(struct rw_problem *p);

/* The base of what input i of a commit reads: a copy, where the step writes what the operand names (targets.c). */
static inline uint32_t rw_problem_read_by_commit(const struct rw_problem *p, const struct rw_node *commit, uint32_t i)
{
    const uint32_t base = rw_tape_base(p->t, p->t->operands[commit->first_input + i]);
    const uint32_t leaf = rw_tape_value(p->t, base)->leaf;
    const bool writes = i >= (uint32_t)commit->n_inputs - commit->n_outputs;
    if (writes || leaf == RW_NONE_ID || leaf >= p->targets.n_instead) return base;
    return p->targets.instead[leaf] == RW_NONE_ID ? base : p->targets.instead[leaf];
}

/* Does a node of this problem make the base value? */
static inline bool rw_problem_makes(const struct rw_problem *p, uint32_t v)
{
    return !p->given[v] && rw_tape_base(p->t, v) == v;
}

#endif
