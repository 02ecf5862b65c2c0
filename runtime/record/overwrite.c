/* The conditions of in-place execution that depend on one node only. */
#include "record/overwrite.h"

/* A dense part of a buffer is not enough: an op that broadcasts reads it again after the rest was overwritten. */
static bool is_whole_buffer(const rw_tape *t, const struct rw_tensor *v)
{
    return rw_layout_is_whole(rw_layout_of(t->ctx, v)) &&
           rw_tensor_bytes(v) == rw_tensor_bytes(rw_tape_value(t, v->base));
}

/* Equal bytes are not enough: an op reads each of fewer, larger elements again for several results. */
static bool is_as_large(const struct rw_tensor *to, const struct rw_tensor *from)
{
    return rw_tensor_bytes(to) == rw_tensor_bytes(from) && rw_dtype_size(to->dtype) == rw_dtype_size(from->dtype);
}

bool rw_may_overwrite(const rw_tape *t, const struct rw_node *node, uint32_t output, uint32_t input)
{
    const rw_op_def *const op = t->ctx->ops[node->op];
    if (!op->inplace || output >= node->n_outputs || !rw_op_writes_over(op, (int)output, (int)input)) return false;
    const uint32_t *const operand = t->operands + node->first_input;
    const uint32_t buffer = rw_tape_base(t, operand[input]);
    const struct rw_tensor *const to = rw_tape_value(t, node->first_output + output);
    if (!is_as_large(to, rw_tape_value(t, buffer))) return false;
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const struct rw_tensor *const v = rw_tape_value(t, operand[i]);
        if (v->base != buffer) continue;
        if (!is_whole_buffer(t, v) || !rw_op_writes_over(op, (int)output, (int)i)) return false;
    }
    return true;
}

uint64_t rw_overwrites(const rw_tape *t, const struct rw_node *node)
{
    const rw_inplace *const pairs = t->ctx->ops[node->op]->inplace;
    uint64_t bits = 0;
    for (size_t k = 0; pairs && pairs[k].output != UINT16_MAX; k++) {
        const bool exists = pairs[k].output < node->n_outputs && pairs[k].input < node->n_inputs;
        const size_t bit = k < RW_OVERWRITES_LAST ? k : RW_OVERWRITES_LAST;
        if (exists && rw_may_overwrite(t, node, pairs[k].output, pairs[k].input)) bits |= (uint64_t)1 << bit;
    }
    return bits;
}
