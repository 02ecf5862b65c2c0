/* Queries about the ops that computed values (rewind/fusion.h). */
#include "record/context.h"
#include "record/tape.h"

#include <rewind/fusion.h>
#include <rewind/ops.h>

/* The node that computed x; NULL if none of the present recording did. */
static const struct rw_node *producer_of(const rw_tensor *x)
{
    if (!x || (x->flags & (RW_VALUE_CONTEXT | RW_VALUE_GRADIENT | RW_VALUE_GONE)) || x == rw_none()) return NULL;
    const rw_tape *const t = x->owner.tape;
    return rw_tape_has(t, x) && x->producer != RW_NONE_ID ? &t->nodes[x->producer] : NULL;
}

bool rw_tensor_producer(const rw_tensor *x, rw_producer *ret_producer)
{
    RW_LOOKS_ONLY;
    const struct rw_node *const node = producer_of(x);
    if (!node || !ret_producer) return false;
    const rw_tape *const t = x->owner.tape;
    *ret_producer = (rw_producer){ t->ctx->ops[node->op], t->attrs + node->attrs, node->n_inputs };
    return true;
}

rw_tensor *rw_tensor_producer_input(const rw_tensor *x, int k)
{
    RW_LOOKS_ONLY;
    const struct rw_node *const node = producer_of(x);
    if (!node || k < 0 || k >= node->n_inputs) return NULL;
    const rw_tape *const t = x->owner.tape;
    return rw_tape_value(t, t->operands[node->first_input + (uint32_t)k]);
}

bool rw_tensor_is_named_or_marked(const rw_tensor *x)
{
    RW_LOOKS_ONLY;
    return x && (x->tag || (x->flags & (RW_VALUE_SAVE | RW_VALUE_RECOMPUTE | RW_VALUE_OFFLOAD)));
}

int64_t rw_tensor_number(const rw_tensor *x)
{
    RW_LOOKS_ONLY;
    if (!x || (x->flags & (RW_VALUE_CONTEXT | RW_VALUE_GRADIENT | RW_VALUE_GONE)) || x == rw_none()) return -1;
    return rw_tape_has(x->owner.tape, x) ? (int64_t)x->id : -1;
}
