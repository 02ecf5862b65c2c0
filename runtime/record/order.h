/*
 * REWIND_DEBUG=order: finds calls whose arguments record random ops, more than one of them. C does not say which
 * argument is evaluated first, so the compiler decides which op draws its numbers first:
 *
 *     rw_sub(t, rw_dropout(t, a, p), rw_dropout(t, b, p))
 *
 * A call that stands inside another one's arguments is recorded before it, and stands on its line or on one of the next
 * lines; of two statements the one that is recorded first stands above. What is seen: two operands of a node hold what
 * random ops of its own line or of the next RW_ORDER_LINES have made, each as it was made or behind ops whose other
 * operands are parameters and buffers. What is not: arguments that are functions of the caller's, whose ops have lines
 * of their own, and operands that have met another tensor's values on the way; a loop looks like that.
 */
#ifndef RW_RECORD_ORDER_H
#define RW_RECORD_ORDER_H

#include "record/tape.h"

#define RW_ORDER_LINES 16

/* The two random nodes that an op at that call site would bring together; false when there are none. */
bool rw_order_meets(const rw_tape *t, uint32_t site, struct rw_tensor *const *in, int n, uint32_t ret_nodes[2]);

/* Notes what the node made; there is room for it. */
void rw_order_note(rw_tape *t, const struct rw_node *node);

/* Room for notes on so many more values; false without memory. */
static inline bool rw_order_reserve(rw_tape *t, size_t n)
{
    return rw_grow(&t->drawn_by, &t->cap_drawn_by, t->n_values, n, sizeof *t->drawn_by);
}

#endif
