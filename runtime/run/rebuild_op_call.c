/* Rebuilds a node's rw_op_call: descriptors of its operands from the tape or the plan. */
#include "run/rebuild_op_call.h"

static rw_operand_desc desc_of(const rw_tape *t, const rw_plan *plan, uint32_t v)
{
    const bool recorded = v < plan->mark_values;
    const uint32_t layout = recorded ? rw_tape_value(t, v)->layout : plan->values[v - plan->mark_values].layout;
    const uint8_t dtype = recorded ? rw_tape_value(t, v)->dtype : plan->values[v - plan->mark_values].dtype;
    return (rw_operand_desc){ (rw_dtype)dtype, rw_layout_get(&t->ctx->layouts, layout) };
}

rw_op_call rw_plan_call(const rw_tape *t, const rw_plan *plan, const struct rw_node *node, rw_operand_desc *descs)
{
    rw_operand_desc *const out = descs + node->n_inputs;
    for (uint32_t i = 0; i < node->n_inputs; i++)
        descs[i] = desc_of(t, plan, rw_plan_operand(t, plan, node->first_input + i));
    for (uint32_t i = 0; i < node->n_outputs; i++) out[i] = desc_of(t, plan, node->first_output + i);
    const bool recorded = node->attrs < plan->mark_attrs;
    return (rw_op_call){ .op = t->ctx->ops[node->op],
                         .n_inputs = node->n_inputs,
                         .n_outputs = node->n_outputs,
                         .in = descs,
                         .out = out,
                         .kind = t->ctx->kind,
                         .threads = t->ctx->threads,
                         .device = t->ctx->device_state,
                         .ctx = t->ctx,
                         .attrs = recorded ? t->attrs + node->attrs : plan->attrs + (node->attrs - plan->mark_attrs) };
}
