/* A gradient rule at work: the node it differentiates and what it hands back. */
#ifndef RW_AUTODIFF_RULE_H
#define RW_AUTODIFF_RULE_H

#include "record/tape.h"

/* Attributes up to this size are copied into the call itself, larger ones to the heap. */
#define RW_RULE_ATTRS 128

/* A value that was there before differentiation: who uses it, and what a rule left for another one. */
struct rw_use {
    uint32_t first;     /* the consumer that is met last, RW_NONE_ID once it was; without one, RW_NONE_ID */
    uint32_t n;         /* operands that are this value, of nodes that backward may pass */
    rw_tensor *columns; /* of a bias: rw_grad_set_columns() */
    bool added;
};

struct rw_grad_call {
    rw_tape *tape;
    uint32_t index;
    struct rw_node node; /* a copy: the array may move while the rule records */
    struct rw_use *use;  /* per value; NULL: not known */
    const bool *asked;   /* as of rw_value_is_wanted() */
    rw_tensor **grads;   /* the sums so far, per value */
    rw_tensor **upstream; /* by output */
    /* By input: what the rule handed over and is not in its sum yet; the sum that the rule was given to add to; and
       whether what it handed over contains that. */
    rw_tensor **result, **lent;
    bool *is_sum;
    bool again;
    bool has_set; /* the rule has handed over something */
    const void *attrs; /* a copy too, for the same reason */
    _Alignas(8) unsigned char small[RW_RULE_ATTRS];
};

/* Does anybody want the gradient of a value, or of what it is made of? asked: by value; NULL: all that require one. */
static inline bool rw_value_is_wanted(const rw_tape *t, const bool *asked, uint32_t value)
{
    return asked ? asked[value] : (rw_tape_value(t, value)->flags & RW_VALUE_REQUIRES) != 0;
}

/* The call site of the node. */
rw_site rw_rule_site(const struct rw_grad_call *g);

/* The rule is done: what it handed over goes into the sums. */
rw_status rw_rule_settle(struct rw_grad_call *g);

#endif
