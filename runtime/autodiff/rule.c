/* The side of differentiation that gradient rules see. See rewind/op.h. */
#include "autodiff/rule.h"

rw_tape *rw_grad_tape(const rw_grad_call *g)
{
    return g->tape;
}

const void *rw_grad_attrs(const rw_grad_call *g)
{
    return g->attrs;
}

int rw_grad_n_inputs(const rw_grad_call *g)
{
    return g->node.n_inputs;
}

int rw_grad_n_outputs(const rw_grad_call *g)
{
    return g->node.n_outputs;
}

rw_tensor *rw_grad_input(const rw_grad_call *g, int i)
{
    return rw_tape_value(g->tape, g->tape->operands[g->node.first_input + (uint32_t)i]);
}

rw_tensor *rw_grad_output(const rw_grad_call *g, int i)
{
    return rw_tape_value(g->tape, g->node.first_output + (uint32_t)i);
}

rw_tensor *rw_grad_upstream(const rw_grad_call *g, int i)
{
    return g->upstream[i];
}

bool rw_grad_wanted(const rw_grad_call *g, int i)
{
    return rw_grad_input(g, i)->flags & RW_VALUE_REQUIRES;
}

rw_status rw_grad_set(rw_grad_call *g, int i, rw_tensor *dx)
{
    rw_context *const ctx = g->tape->ctx;
    if (!dx) return ctx->status ? ctx->status : RW_ERR_ARGUMENT;
    const rw_tensor *const x = rw_grad_input(g, i);
    const rw_layout *const a = rw_tensor_layout(ctx, x), *const b = rw_tensor_layout(ctx, dx);
    if (x->dtype != dx->dtype || !rw_shape_equal(rw_layout_shape(a), rw_layout_shape(b))) {
        const rw_site at = rw_rule_site(g);
        return rw_fail(ctx, RW_ERR_SHAPE,
                       "gradient rule of %s at %s:%d: the gradient of input %d has another shape or type than "
                       "the input",
                       ctx->ops[g->node.op]->name, at.file, at.line, i);
    }
    g->result[i] = dx;
    return RW_OK;
}

bool rw_grad_again(const rw_grad_call *g)
{
    return g->again;
}

rw_tensor *rw_grad_apply(rw_grad_call *g, const rw_op_def *op, rw_tensor *const *in, int n, const void *attrs,
                         size_t attrs_size, rw_tensor **ret_outs)
{
    return rw_apply_at(rw_rule_site(g), g->tape, op, in, n, attrs, attrs_size, ret_outs);
}

/* Every random op that a rule records draws its node's numbers again; a rule never draws new ones. */
uint32_t rw_rule_ticket(const struct rw_grad_call *g)
{
    return g->node.ticket;
}

rw_site rw_rule_site(const struct rw_grad_call *g)
{
    return g->tape->ctx->sites[g->node.site];
}

void rw_rule_stamp(const struct rw_grad_call *g, struct rw_node *node)
{
    node->level = 1;
    node->region = g->node.region;
}
