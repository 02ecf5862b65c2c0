/* One call of a gradient rule: the node that it differentiates, and the gradients that it returns. */
#ifndef RW_AUTODIFF_RULE_H
#define RW_AUTODIFF_RULE_H

#include "record/tape.h"

/* Attributes up to this size are copied into the call, larger ones to the heap. */
#define RW_RULE_ATTRS 128

/* A value from before differentiation: its first and last user, and a contribution that one rule left for another. */
struct rw_use {
    uint32_t first;     /* the first node that uses it, which the walk meets last; RW_NONE_ID after that, or without
                           one */
    uint32_t n;         /* number of operands with this value, of nodes that backward may visit */
    rw_tensor *columns; /* of a bias: rw_grad_set_column_sums() */
    bool added;
};

struct rw_grad_call {
    rw_tape *tape;
    uint32_t index;
    struct rw_node node;   /* a copy, because the array may move while the rule records */
    struct rw_use *use;    /* per value; NULL: not known */
    const bool *requested; /* as of rw_value_is_wanted() */
    rw_tensor **grads;     /* the sums so far, per value */
    rw_tensor **upstream; /* by output */
    /* By input: the gradient that the rule has set and that is not in its sum yet; the addend that it got; and
       whether what it has set includes the addend. */
    rw_tensor **result, **lent;
    bool *is_sum;
    bool again;
    bool has_set; /* the rule has set a gradient */
    const void *attrs; /* a copy, for the same reason */
    _Alignas(8) unsigned char small[RW_RULE_ATTRS];
};

/* Is the gradient of a value needed, or that of a value it is a part of? asked: by value; NULL: all that require
   one. */
static inline bool rw_value_is_wanted(const rw_tape *t, const bool *requested, uint32_t value)
{
    return requested ? requested[value] : (rw_tape_value(t, value)->flags & RW_VALUE_REQUIRES) != 0;
}

/* The call site of the node. */
rw_site rw_rule_site(const struct rw_grad_call *g);

/* After the rule: adds the gradients that it has set to the sums. */
rw_status rw_rule_settle(struct rw_grad_call *g);

#endif
