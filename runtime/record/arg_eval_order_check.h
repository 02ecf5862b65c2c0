/*
 * REWIND_DEBUG=order: finds calls in whose arguments more than one random op is recorded. C does not define the order
 * of evaluation of arguments, so the compiler decides which op draws its numbers first:
 *
 *     rw_sub(t, rw_dropout(t, a, p), rw_dropout(t, b, p))
 *
 * Method: a call inside another call's arguments is recorded before it, and is on its line or one of the next lines; of
 * two statements, the one recorded first is on an earlier line. Detected: two operands of a node come from random ops
 * of its own line or of the next RW_ORDER_LINES lines, directly or through ops whose other operands are parameters and
 * buffers. Not detected: arguments that are functions of the caller, whose ops have lines of their own, and operands
 * that were combined with another tensor's values in between, which a loop also looks like.
 */
#ifndef RW_RECORD_ARG_EVAL_ORDER_CHECK_H
#define RW_RECORD_ARG_EVAL_ORDER_CHECK_H

#include "record/tape.h"

#define RW_ORDER_LINES 16

/* Of a tape whose calls are checked. On a context it is empty, and means that the tapes created from now on are. */
struct rw_order_check {
    uint32_t *drawn_by; /* by value: the random node from which its numbers come, RW_NONE_ID for none */
    size_t cap_drawn_by;
};

extern struct rw_extension rw_order_check_extension;

/* NULL: calls are not checked. */
static inline struct rw_order_check *rw_order_check_of(const rw_tape *t)
{
    return rw_extension_find(&t->extensions, &rw_order_check_extension);
}

/* Checks the tapes of the context, from their creation on. RW_ERR_MEMORY, not recorded. */
rw_status rw_order_check_begin(rw_context *ctx);

/* The two random nodes among the arguments of an op at that call site; false if there are none. */
bool rw_order_meets(const struct rw_order_check *o, const rw_tape *t, uint32_t site, struct rw_tensor *const *in, int n,
                    uint32_t ret_nodes[2]);

/* Records the origin of the node's outputs; memory is reserved. */
void rw_order_note(struct rw_order_check *o, const rw_tape *t, const struct rw_node *node);

/* Reserves memory for so many more values; false without memory. */
static inline bool rw_order_reserve(struct rw_order_check *o, const rw_tape *t, size_t n)
{
    return rw_grow(&o->drawn_by, &o->cap_drawn_by, t->n_values, n, sizeof *o->drawn_by);
}

#endif
