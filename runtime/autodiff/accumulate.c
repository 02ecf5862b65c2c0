/* A product that is added to a gradient, as one node. See accumulate.h. */
#include "autodiff/accumulate.h"

#include "ops/matmul/matmul.h"

#include <rewind/ops.h>

uint32_t rw_product_of(const rw_tape *t, const rw_tensor *term)
{
    const struct rw_tensor *const whole = rw_tape_value(t, term->base);
    const rw_layout *const layout = rw_tensor_layout(t->ctx, term);
    if (whole->producer == RW_NONE_ID || term->dtype != whole->dtype) return RW_NONE_ID;
    if (!rw_layout_is_whole(layout) || layout->numel != rw_tensor_layout(t->ctx, whole)->numel) return RW_NONE_ID;
    const struct rw_node *const node = &t->nodes[whole->producer];
    return node->level && t->ctx->ops[node->op] == &rw_op_matmul ? whole->producer : RW_NONE_ID;
}

rw_tensor *rw_add_product_at(rw_site at, rw_tape *t, rw_tensor *sum, rw_tensor *term)
{
    const struct rw_tensor *const whole = rw_tape_value(t, term->base);
    const uint32_t *const in = t->operands + t->nodes[whole->producer].first_input;
    rw_tensor *const a = rw_tape_value(t, in[0]), *const b = rw_tape_value(t, in[1]);
    if (whole == term) return rw_matmul_add_at(at, t, sum, a, b);
    const rw_shape own = rw_layout_shape(rw_tensor_layout(t->ctx, whole)),
                   asked = rw_layout_shape(rw_tensor_layout(t->ctx, term));
    return rw_reshape_at(at, t, rw_matmul_add_at(at, t, rw_reshape_at(at, t, sum, own), a, b), asked);
}
