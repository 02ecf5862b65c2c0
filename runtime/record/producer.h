/*
 * For ops that inspect the producers of their operands, such as those that read the inputs of a virtual concatenation
 * (ops/shape/virtual_concat.h).
 */
#ifndef RW_RECORD_PRODUCER_H
#define RW_RECORD_PRODUCER_H

#include <rewind/op.h>

/* The producer of x, a value of a tape, and its number of inputs; attributes are valid until something is recorded.
   False if no op computes x. rw_producer_input() returns one of the inputs. */
struct rw_producer {
    const rw_op_def *op;
    const void *attrs;
    int n_inputs;
};
bool rw_producer_of(const rw_tensor *x, struct rw_producer *ret);
rw_tensor *rw_producer_input(const rw_tensor *x, int i);

/* Is x, which is not a view, named, or subject to ckpt_keep() or a similar call? */
bool rw_is_decided_about(const rw_tensor *x);

/*
 * For an op that reads the parts of a value instead of the value, and has the value's number among its attributes
 * (rw_op_def.parts). In its rule: that value; whether its gradient is needed; and its gradient, of its type and shape,
 * which is added to other contributions. The value is recorded before the op's node, so its own rule runs later.
 */
int64_t rw_value_number(const rw_tensor *x);
rw_tensor *rw_grad_value(const rw_grad_call *g, int64_t number);
bool rw_grad_value_wanted(const rw_grad_call *g, int64_t number);
rw_status rw_grad_set_value(rw_grad_call *g, rw_tensor *x, rw_tensor *dx);

#endif
