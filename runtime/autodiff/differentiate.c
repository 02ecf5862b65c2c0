/* Pass 2: walks the tape backwards and lets each op's rule record its adjoint. See differentiate.h. */
#include "autodiff/differentiate.h"

#include "autodiff/accumulate.h"
#include "autodiff/rule.h"
#include "memory/alloc.h"
#include "ops/pointwise/pointwise.h"
#include "ops/shape/shape.h"

#include <stddef.h>
#include <string.h>

/* A value marked by rw_require_grad() after it was used: what was recorded meanwhile depends on it too. */
static void spread_requirement(rw_tape *t)
{
    for (size_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        bool requires = false;
        for (int i = 0; i < node->n_inputs; i++)
            requires |= rw_tape_value(t, t->operands[node->first_input + (uint32_t)i])->flags & RW_VALUE_REQUIRES;
        if (!requires || (t->ctx->ops[node->op]->flags & RW_OP_NO_GRADIENT)) continue;
        for (int i = 0; i < node->n_outputs; i++) {
            struct rw_tensor *const v = rw_tape_value(t, node->first_output + (uint32_t)i);
            if (rw_dtype_is_float((rw_dtype)v->dtype)) v->flags |= RW_VALUE_REQUIRES;
        }
    }
}

/* Was result i made by a product that this rule recorded for nothing else? first_*: where the rule began to record. */
static bool is_own_product(const struct rw_grad_call *g, int i, size_t first_node, size_t first_operand)
{
    const rw_tape *const t = g->tape;
    const rw_tensor *const term = g->result[i];
    const uint32_t product = rw_product_of(t, term);
    if (product == RW_NONE_ID || product < first_node) return false;
    int reads = 0;
    for (size_t k = first_operand; k < t->n_operands; k++) reads += rw_tape_base(t, t->operands[k]) == term->base;
    for (int k = 0; k < g->node.n_inputs; k++)
        if (k != i && g->result[k] && g->result[k]->base == term->base) return false;
    return reads == (term->base != term->id); /* by the reshape alone */
}

/* Adds what the rule found to what other consumers contributed before. */
static rw_status collect(struct rw_grad_call *g, rw_tensor **grads, size_t first_node, size_t first_operand)
{
    rw_tape *const t = g->tape;
    for (int i = 0; i < g->node.n_inputs; i++) {
        if (!g->result[i]) continue;
        const uint32_t in = t->operands[g->node.first_input + (uint32_t)i];
        rw_tensor *sum = g->result[i];
        if (grads[in] && is_own_product(g, i, first_node, first_operand))
            sum = rw_add_product_at(rw_rule_site(g), t, grads[in], sum);
        else if (grads[in]) sum = rw_accumulate_at(rw_rule_site(g), t, grads[in], sum);
        if (!sum) return t->ctx->status ? t->ctx->status : RW_ERR_MEMORY;
        grads[in] = sum;
    }
    return RW_OK;
}

/* The tape's attributes move when the rule records: it sees a copy. */
static bool copy_attrs(struct rw_grad_call *g)
{
    unsigned char *const copy = g->node.attrs_size <= RW_RULE_ATTRS ? g->small : rw_malloc(g->node.attrs_size);
    if (copy && g->node.attrs_size) memcpy(copy, g->tape->attrs + g->node.attrs, g->node.attrs_size);
    g->attrs = copy;
    return copy != NULL;
}

static rw_status run_rule(struct rw_grad_call *g, const rw_op_def *op, rw_tensor **grads)
{
    rw_tape *const t = g->tape;
    const size_t first_node = t->n_nodes, first_operand = t->n_operands;
    if (!copy_attrs(g)) return RW_ERR_MEMORY;
    t->rule = g;
    rw_status status = op->grad(g);
    if (!status) status = t->ctx->status;
    if (!status) status = collect(g, grads, first_node, first_operand);
    t->rule = NULL;
    if (g->attrs != g->small) rw_free((void *)(uintptr_t)g->attrs);
    return status;
}

static rw_status apply_rule(rw_tape *t, uint32_t n, bool again, rw_tensor **grads)
{
    struct rw_grad_call g;
    memset(&g, 0, offsetof(struct rw_grad_call, small));
    g.tape = t;
    g.node = t->nodes[n];
    g.again = again;
    const rw_op_def *const op = t->ctx->ops[g.node.op];
    bool flows = false, wanted = false;
    for (int i = 0; i < g.node.n_outputs; i++) {
        g.upstream[i] = grads[g.node.first_output + (uint32_t)i];
        flows |= g.upstream[i] != NULL;
    }
    for (int i = 0; i < g.node.n_inputs; i++) wanted |= rw_grad_wanted(&g, i);
    if (!flows || !wanted || (op->flags & RW_OP_NO_GRADIENT)) return RW_OK;
    const rw_site at = rw_rule_site(&g);
    if (!op->grad)
        return rw_fail(t->ctx, RW_ERR_NO_GRADIENT,
                       "%s at %s:%d: the op has no gradient rule, and a gradient has to flow through it", op->name,
                       at.file, at.line);
    const rw_status status = run_rule(&g, op, grads);
    if (status)
        rw_fail(t->ctx, status, "gradient rule of %s at %s:%d: %s", op->name, at.file, at.line, rw_status_name(status));
    return status;
}

static rw_tensor *seed(rw_tape *t, uint32_t root, bool again)
{
    const struct rw_tensor *const y = rw_tape_value(t, root);
    struct rw_grad_call g = { .tape = t, .again = again, .node.ticket = RW_NONE_ID, .node.region = RW_NONE_ID };
    if (y->producer != RW_NONE_ID) g.node = t->nodes[y->producer];
    else if (t->n_nodes) g.node.site = t->nodes[0].site;
    else return NULL;
    t->rule = &g;
    rw_tensor *const one = rw_fill_at(rw_rule_site(&g), t, (rw_dtype)y->dtype,
                                      rw_layout_shape(rw_tensor_layout(t->ctx, y)), 1.0);
    t->rule = NULL;
    return one;
}

rw_status rw_differentiate(rw_tape *t, uint32_t root, bool again, rw_tensor ***ret_grads)
{
    const size_t n_values = t->n_values;
    spread_requirement(t);
    rw_tensor **const grads = rw_calloc(n_values, sizeof *grads);
    if (!grads) return rw_fail(t->ctx, RW_ERR_MEMORY, "backward: out of memory");
    const struct rw_tensor *const y = rw_tape_value(t, root);
    rw_status status = RW_OK;
    if (y->flags & RW_VALUE_REQUIRES) {
        grads[root] = seed(t, root, again);
        if (!grads[root]) status = t->ctx->status ? t->ctx->status : RW_ERR_MEMORY;
        for (uint32_t n = y->producer; !status && n != RW_NONE_ID; n--) {
            status = apply_rule(t, n, again, grads);
            if (n == 0) break;
        }
    }
    if (status) {
        rw_free(grads);
        return status;
    }
    *ret_grads = grads;
    return RW_OK;
}
