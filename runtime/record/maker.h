/*
 * For ops that look at what made their operands, as those do that read the pieces of a concatenation
 * (ops/shape/joined.h).
 */
#ifndef RW_RECORD_MAKER_H
#define RW_RECORD_MAKER_H

#include <rewind/op.h>

/* What made x, a value of a tape, and how many inputs that had; the attributes are good until something is recorded.
   False for what no op made. rw_maker_input() is one of these inputs. */
struct rw_maker {
    const rw_op_def *op;
    const void *attrs;
    int n_inputs;
};
bool rw_maker_of(const rw_tensor *x, struct rw_maker *ret);
rw_tensor *rw_maker_input(const rw_tensor *x, int i);

/* Has x, no view, a name, or has ckpt_save() or the like decided about it? */
bool rw_is_decided_about(const rw_tensor *x);

/*
 * For an op that reads the pieces of a value instead of the value, and has its number among its attributes: its
 * rw_op_def.parts says so. In its rule: that value, whether its gradient is wanted, and that, of its type and shape,
 * which is added to what others contribute. The value is recorded before the op's node, so its own rule comes later.
 */
int64_t rw_value_number(const rw_tensor *x);
rw_tensor *rw_grad_value(const rw_grad_call *g, int64_t number);
bool rw_grad_value_wanted(const rw_grad_call *g, int64_t number);
rw_status rw_grad_set_value(rw_grad_call *g, rw_tensor *x, rw_tensor *dx);

#endif
