/* Queries about producers, for ops that read through a concatenation. */
#include "record/producer.h"

#include "record/tape.h"

static bool is_computed(const rw_tensor *x)
{
    return !(x->flags & (RW_VALUE_CONTEXT | RW_VALUE_GRADIENT | RW_VALUE_GONE)) && x->producer != RW_NONE_ID;
}

bool rw_producer_of(const rw_tensor *x, struct rw_producer *ret)
{
    if (!is_computed(x)) return false;
    const rw_tape *const t = x->owner.tape;
    const struct rw_node *const node = &t->nodes[x->producer];
    *ret = (struct rw_producer){ t->ctx->ops[node->op], t->attrs + node->attrs, node->n_inputs };
    return true;
}

rw_tensor *rw_producer_input(const rw_tensor *x, int i)
{
    const rw_tape *const t = x->owner.tape;
    return rw_tape_value(t, t->operands[t->nodes[x->producer].first_input + (uint32_t)i]);
}

bool rw_is_decided_about(const rw_tensor *x)
{
    return x->tag || (x->flags & (RW_VALUE_SAVE | RW_VALUE_RECOMPUTE | RW_VALUE_OFFLOAD));
}

int64_t rw_value_number(const rw_tensor *x)
{
    return x->id;
}
