/*
 * The edges of a node: the values to which its gradient rule may send gradients. Differentiation follows edges, not
 * operands. They are the node's inputs, with one exception. If the op reads the parts of a value in place of the value
 * (rw_op_def.parts, a virtual concatenation), the parts are only read, and the edge is the whole, which is not an
 * operand.
 *
 *     both = concat(straight_through(concat(a, b), z), c)      y = batchnorm(both), which reads a, b, c
 *
 *     operands of y: a, b, c, weight, bias      edges of y: both, weight, bias
 */
#ifndef RW_AUTODIFF_GRADIENT_EDGES_H
#define RW_AUTODIFF_GRADIENT_EDGES_H

#include "record/tape.h"

struct rw_edges {
    uint32_t first, n; /* operands of the tape */
    uint32_t whole;    /* RW_NONE_ID: none */
};

static inline struct rw_edges rw_edges_of(const rw_tape *t, const struct rw_node *node)
{
    const rw_op_def *const op = t->ctx->ops[node->op];
    int64_t whole = 0;
    const int named = op->parts ? op->parts(t->attrs + node->attrs, &whole) : 0;
    /* recording has checked it; a custom function may give another answer now */
    const bool is_sound = named > 0 && named <= node->n_inputs && whole >= 0 && whole < node->first_output;
    const uint32_t parts = is_sound ? (uint32_t)named : 0;
    return (struct rw_edges){ node->first_input + parts, node->n_inputs - parts,
                              parts ? (uint32_t)whole : RW_NONE_ID };
}

static inline uint32_t rw_edges_count(const struct rw_edges *e)
{
    return e->n + (e->whole != RW_NONE_ID);
}

/* Edge i, a value. */
static inline uint32_t rw_edge(const rw_tape *t, const struct rw_edges *e, uint32_t i)
{
    return i < e->n ? t->operands[e->first + i] : e->whole;
}

#endif
