/* Ops that passes record themselves, and what passes know of an op without its name. ops/ implements the ops. */
#ifndef RW_OPS_COMMON_PASS_OPS_H
#define RW_OPS_COMMON_PASS_OPS_H

#include <rewind/op.h>

/* Flags of built-in ops alone, beside rw_op_flags: what passes need to know of an op, without its name. */
enum {
    /* A commit that no recorder counts: the run itself increments the versions of the buffers that it writes. */
    RW_OP_OWN_COUNTED = 1 << 16,
    /* Adds a contribution to a gradient: if its bytes differ, contributions were added in another order. */
    RW_OP_OWN_ADDS = 1 << 17
};

/* A dense copy, which recording inserts before an op that does not accept a strided input. */
extern const rw_op_def rw_op_contiguous;

/*
 * A kernel that computes two ops at once, bit-identical to running both: rw_op_def.fused of the first one. A loss is
 * the last op of forward, and its gradient the first of backward, so one pass over the logits serves both.
 *
 * Operands are numbered per op, inputs first, then outputs. Planning fuses two actions if the second one is the next
 * action, or the next but for one that only makes its operand `filled` (a seed gradient), and if their operands have
 * the memory that `same` requires. The kernel gets the operands in[0..n_in) and out[0..n_out), the attributes of the
 * first op and the workspace of the second.
 */
enum { RW_FUSED_OPERANDS = 5 }; /* maximum number of operands of either op, and of the kernel */
struct rw_fused_pair {
    const rw_op_def *second;
    rw_kernel_fn kernel[RW_DEVICE_COUNT];
    uint8_t n_same, filled, n_in, n_out;
    struct {
        uint8_t of_second, of_first;
    } same[RW_FUSED_OPERANDS];
    struct rw_fused_operand {
        bool of_second;
        uint8_t operand;
    } in[RW_FUSED_OPERANDS], out[RW_FUSED_OPERANDS];
};

/* Marks the library's own definitions, at kernel[RW_DEVICE_AUTO]; custom ops cannot name it. */
rw_status rw_op_is_own(const rw_kernel *k);

/* The name of input i of a built-in op in its public header, "x[3]" where one parameter holds any number of inputs; or
   its name in the op's definition where only the library records the op. "input 3" for any other. */
const char *rw_op_input_name(const rw_op_def *op, int i, char *text, size_t size);

/* True for an op that a function of rewind/ops.h records; false for one that only gradient rules record. */
bool rw_op_is_builtin(const char *name);
const char *rw_builtin_name(size_t i); /* in alphabetical order; NULL past the last */

#endif
