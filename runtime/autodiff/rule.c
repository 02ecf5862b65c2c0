/* The functions that gradient rules call (rewind/op.h), and the sums of gradients. A sum is a chain of nodes on the
   tape: each contribution is added to the result of the one before, so their order, and with it every bit, is that
   of the tape. If a rule adds to the sum itself (an addend), its result replaces the sum. */
#include "autodiff/rule.h"

#include "autodiff/gradient_edges.h"
#include "record/handle_check.h"
#include "record/param.h"

#include <rewind/create.h>
#include <rewind/fusion.h>
#include <rewind/ops.h>

#include <stdio.h>

/* 0 for NULL, which no rule is given. */
static int n_inputs(const rw_grad_call *g)
{
    return g ? g->node.n_inputs : 0;
}

static int n_outputs(const rw_grad_call *g)
{
    return g ? g->node.n_outputs : 0;
}

rw_tape *rw_grad_tape(const rw_grad_call *g)
{
    RW_LOOKS_ONLY;
    return g ? g->tape : NULL;
}

const void *rw_grad_attrs(const rw_grad_call *g)
{
    RW_LOOKS_ONLY;
    return g ? g->attrs : NULL;
}

int rw_grad_n_inputs(const rw_grad_call *g)
{
    RW_LOOKS_ONLY;
    return n_inputs(g);
}

int rw_grad_n_outputs(const rw_grad_call *g)
{
    RW_LOOKS_ONLY;
    return n_outputs(g);
}

/* A rule may query an operand that the node does not have. */
static bool has(int n, int i)
{
    return i >= 0 && i < n;
}

rw_tensor *rw_grad_input(const rw_grad_call *g, int i)
{
    RW_LOOKS_ONLY;
    if (!has(n_inputs(g), i)) return NULL;
    return rw_tape_value(g->tape, g->tape->operands[g->node.first_input + (uint32_t)i]);
}

rw_tensor *rw_grad_output(const rw_grad_call *g, int i)
{
    RW_LOOKS_ONLY;
    if (!has(n_outputs(g), i)) return NULL;
    return rw_tape_value(g->tape, g->node.first_output + (uint32_t)i);
}

rw_tensor *rw_grad_upstream(const rw_grad_call *g, int i)
{
    RW_LOOKS_ONLY;
    return has(n_outputs(g), i) ? g->upstream[i] : NULL;
}

static uint32_t value_of(const rw_grad_call *g, int i)
{
    return g->tape->operands[g->node.first_input + (uint32_t)i];
}

bool rw_grad_wanted(const rw_grad_call *g, int i)
{
    RW_LOOKS_ONLY;
    return has(n_inputs(g), i) && rw_value_is_wanted(g->tape, g->requested, value_of(g, i));
}

/* The type in which a value's gradient is summed. */
static rw_dtype sum_dtype(const rw_tape *t, const struct rw_tensor *v)
{
    const struct rw_leaf *const leaf = v->leaf == RW_NONE_ID ? NULL : &t->leaves[v->leaf];
    if (!leaf || leaf->kind != RW_LEAF_PARAM || !(v->flags & RW_VALUE_REQUIRES)) return (rw_dtype)v->dtype;
    return (rw_dtype)t->ctx->by_id[leaf->param]->gradient.tensor.dtype;
}

rw_dtype rw_grad_dtype(const rw_grad_call *g, int i)
{
    RW_LOOKS_ONLY;
    const rw_tensor *const x = rw_grad_input(g, i);
    return x ? sum_dtype(g->tape, x) : RW_F32;
}

/* Adds result i to the sum of its value. A first contribution that is narrower than the sum is widened. */
static rw_status settle(rw_grad_call *g, int i)
{
    rw_tape *const t = g->tape;
    rw_tensor **const to = &g->grads[value_of(g, i)];
    rw_tensor *sum = g->result[i];
    if (*to && !g->is_sum[i]) sum = rw_accumulate_at(RW_HERE, t, *to, sum);
    else if (!*to && (rw_dtype)sum->dtype != rw_grad_dtype(g, i))
        sum = rw_cast_at(RW_HERE, t, sum, rw_grad_dtype(g, i));
    if (!sum) return t->ctx->status ? t->ctx->status : RW_ERR_MEMORY;
    *to = sum;
    g->result[i] = g->lent[i] = NULL;
    g->is_sum[i] = false;
    return RW_OK;
}

/* Adds the results for one value, or for all values (RW_NONE_ID). A result that includes the sum so far comes before
   those that are added to it. */
static rw_status settle_all(rw_grad_call *g, uint32_t value)
{
    rw_status status = RW_OK;
    for (int sums = 1; sums >= 0; sums--)
        for (int i = 0; !status && i < g->node.n_inputs; i++)
            if (g->result[i] && g->is_sum[i] >= sums && (value == RW_NONE_ID || value_of(g, i) == value))
                status = settle(g, i);
    return status;
}

rw_status rw_rule_settle(rw_grad_call *g)
{
    return settle_all(g, RW_NONE_ID);
}

/* In a step the sum of every parameter starts with its gradient; in rw_grad() there is none. */
static rw_tensor *begin_wide(rw_grad_call *g, int i)
{
    const rw_shape shape = rw_layout_shape(rw_layout_of(g->tape->ctx, rw_grad_input(g, i)));
    return rw_full_at(RW_HERE, g->tape, rw_grad_dtype(g, i), shape, 0);
}

rw_tensor *rw_grad_accumulator(rw_grad_call *g, int i)
{
    RW_ENTER_RECORDING(g ? g->tape : NULL, NULL);
    if (!rw_grad_wanted(g, i) || rw_grad_dtype(g, i) != (rw_dtype)rw_grad_input(g, i)->dtype) return NULL;
    return rw_grad_wide_addend(g, i);
}

rw_tensor *rw_grad_wide_addend(rw_grad_call *g, int i)
{
    RW_ENTER_RECORDING(g ? g->tape : NULL, NULL);
    if (!rw_grad_wanted(g, i)) return NULL;
    const uint32_t value = value_of(g, i);
    /* If two inputs got the same addend, each result would lack the other's contribution */
    for (int k = 0; k < g->node.n_inputs; k++)
        if (k != i && g->lent[k] && !g->result[k] && value_of(g, k) == value) return NULL;
    if (settle_all(g, value)) return NULL;
    if (!g->grads[value] && rw_grad_dtype(g, i) != (rw_dtype)rw_grad_input(g, i)->dtype)
        g->grads[value] = begin_wide(g, i);
    return g->lent[i] = g->grads[value];
}

/* True if no other contribution to input i's gradient follows, of this rule or a later one. */
static bool is_last_part(const rw_grad_call *g, int i)
{
    int uses = 0;
    for (int k = 0; k < g->node.n_inputs; k++) uses += value_of(g, k) == value_of(g, i);
    return uses == 1 && g->use[value_of(g, i)].first == g->index;
}

/* The bias of the linear layer that computed value v; RW_NONE_ID if the conditions for column sums do not hold. */
static uint32_t bias_of_producer(const rw_grad_call *g, uint32_t v)
{
    const rw_tape *const t = g->tape;
    const rw_tensor *const x = rw_tape_value(t, v);
    if (x->producer == RW_NONE_ID || rw_layout_of(t->ctx, x)->rank < 2) return RW_NONE_ID;
    const struct rw_node *const layer = &t->nodes[x->producer];
    const int bias = t->ctx->ops[layer->op]->bias;
    if (!bias || !has(layer->n_inputs, bias)) return RW_NONE_ID;
    const uint32_t b = t->operands[layer->first_input + (uint32_t)bias];
    return g->use[b].n == 1 && rw_tape_value(t, b)->flags & RW_VALUE_REQUIRES ? b : RW_NONE_ID;
}

static uint32_t fused_bias_of(const rw_grad_call *g, int i)
{
    if (!g || !g->use || !rw_grad_wanted(g, i) || !is_last_part(g, i)) return RW_NONE_ID;
    return bias_of_producer(g, value_of(g, i));
}

/* The base of input i, a view; RW_NONE_ID if other ops read the base or a view in between, or if a gradient has
   already flowed into one of them. */
static uint32_t seen_alone(const rw_grad_call *g, int i)
{
    const rw_tape *const t = g->tape;
    for (uint32_t v = value_of(g, i);;) {
        if (g->use[v].n != 1 || g->grads[v]) return RW_NONE_ID;
        const uint32_t producer = rw_tape_value(t, v)->producer;
        if (producer == RW_NONE_ID || !(t->ctx->ops[t->nodes[producer].op]->flags & RW_OP_VIEW)) return v;
        v = t->operands[t->nodes[producer].first_input];
    }
}

static uint32_t fused_bias_of_pieces(const rw_grad_call *g, int n, int64_t columns)
{
    if (!g || !g->use || n < 1 || n > g->node.n_inputs) return RW_NONE_ID;
    const uint32_t whole = seen_alone(g, 0);
    if (whole == RW_NONE_ID) return RW_NONE_ID;
    for (int i = 0; i < n; i++)
        if (!rw_grad_wanted(g, i) || seen_alone(g, i) != whole) return RW_NONE_ID;
    const rw_layout *const l = rw_layout_of(g->tape->ctx, rw_tape_value(g->tape, whole));
    return l->rank && l->dim[l->rank - 1] == columns ? bias_of_producer(g, whole) : RW_NONE_ID;
}

/* Is there a bias that wants columns? Returns the sum that they may be added to. */
static bool wants_columns(const rw_grad_call *g, uint32_t bias, rw_tensor **ret_sum)
{
    if (ret_sum) *ret_sum = bias == RW_NONE_ID ? NULL : g->grads[bias];
    return bias != RW_NONE_ID;
}

bool rw_grad_pieces_want_column_sums(const rw_grad_call *g, int pieces, int64_t columns, rw_tensor **ret_sum)
{
    RW_LOOKS_ONLY;
    return wants_columns(g, fused_bias_of_pieces(g, pieces, columns), ret_sum);
}

bool rw_grad_wants_column_sums(const rw_grad_call *g, int i, rw_tensor **ret_sum)
{
    RW_LOOKS_ONLY;
    return wants_columns(g, fused_bias_of(g, i), ret_sum);
}

bool rw_grad_is_whole(const rw_grad_call *g, int i)
{
    RW_LOOKS_ONLY;
    return g && g->use && has(g->node.n_inputs, i) && is_last_part(g, i) && !g->grads[value_of(g, i)];
}

/* Leaves columns for the rule of the layer whose bias this is. */
static rw_status leave_columns(rw_grad_call *g, const char *what, uint32_t bias, rw_tensor *columns, bool added)
{
    rw_context *const ctx = g->tape->ctx;
    if (ctx->status) return ctx->status;
    const rw_site at = rw_rule_site(g);
    const char *fault = bias == RW_NONE_ID                               ? "which wants none"
                        : !columns || !rw_tape_has(g->tape, columns)     ? "that are no value of the tape"
                        : rw_layout_of(ctx, columns)->rank != 1          ? "of another rank"
                        : added && !g->grads[bias]                       ? "added to a sum, and there is none"
                                                                         : NULL;
    const struct rw_tensor *const b = fault ? NULL : rw_tape_value(g->tape, bias);
    if (b && (rw_layout_of(ctx, columns)->numel != rw_layout_of(ctx, b)->numel ||
              (columns->dtype != b->dtype && (rw_dtype)columns->dtype != sum_dtype(g->tape, b))))
        fault = "of another extent or type";
    if (fault)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "gradient rule of %s at %s:%d: %s: expected the columns that a bias "
                       "wants, got columns %s", ctx->ops[g->node.op]->name, rw_file_of(at), at.line, what, fault);
    g->use[bias].columns = columns;
    g->use[bias].added = added;
    return RW_OK;
}

rw_status rw_grad_set_column_sums(rw_grad_call *g, int i, rw_tensor *columns, bool added)
{
    RW_ENTER_RECORDING(g ? g->tape : NULL, RW_ERR_ARGUMENT);
    if (!g) return rw_fail_null(NULL, "rw_grad_set_column_sums", "g");
    return leave_columns(g, "rw_grad_set_column_sums", fused_bias_of(g, i), columns, added);
}

rw_status rw_grad_set_column_sums_of_pieces(rw_grad_call *g, int pieces, rw_tensor *columns, bool added)
{
    RW_ENTER_RECORDING(g ? g->tape : NULL, RW_ERR_ARGUMENT);
    if (!g) return rw_fail_null(NULL, "rw_grad_set_column_sums_of_pieces", "g");
    const int64_t n = columns ? rw_tensor_shape(columns).dim[0] : 0;
    return leave_columns(g, "rw_grad_set_column_sums_of_pieces", fused_bias_of_pieces(g, pieces, n), columns, added);
}

rw_tensor *rw_grad_column_sums(rw_grad_call *g, int bias)
{
    RW_ENTER_RECORDING(g ? g->tape : NULL, NULL);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (!g || !g->use || !dy || !rw_grad_wanted(g, bias)) return NULL;
    const struct rw_use *const use = &g->use[value_of(g, bias)];
    if (!use->columns || use->columns->producer != rw_tensor_base(dy)->producer) return NULL;
    if (use->added) g->lent[bias] = g->grads[value_of(g, bias)];
    return use->columns;
}

/* Checks a gradient that a rule sets, and stores it until the rule has ended. It is not added at once: another input
   of the node may be the same value and may have got the present sum as its addend. */
static rw_status hand_over(rw_grad_call *g, int i, rw_tensor *dx, bool is_sum)
{
    rw_context *const ctx = g->tape->ctx;
    if (ctx->status) return ctx->status;
    const rw_site at = rw_rule_site(g);
    const rw_op_def *const op = ctx->ops[g->node.op];
    if (i < 0 || i >= g->node.n_inputs)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "gradient rule of %s at %s:%d: expected the gradient of input 0 to %d, "
                       "got that of input %d", op->name, rw_file_of(at), at.line, g->node.n_inputs - 1, i);
    const char *const fault = dx && rw_tape_has(g->tape, dx) ? NULL : rw_value_fault(g->tape, dx);
    char text[RW_FAULT_TEXT], name[48];
    if (fault) {
        snprintf(name, sizeof name, "gradient of input %d", i);
        return rw_fail(ctx, RW_ERR_ARGUMENT, "gradient rule of %s at %s:%d: %s", op->name, rw_file_of(at), at.line,
                       rw_fault_text(text, dx, name, "an input or result of this tape", fault));
    }
    g->has_set = true;
    const rw_tensor *const x = rw_grad_input(g, i);
    const rw_layout *const a = rw_layout_of(ctx, x), *const b = rw_layout_of(ctx, dx);
    const bool typed = dx->dtype == x->dtype || (rw_dtype)dx->dtype == sum_dtype(g->tape, x);
    if (!typed || !rw_shape_equal(rw_layout_shape(a), rw_layout_shape(b))) {
        char want[RW_SHAPE_TEXT], got[RW_SHAPE_TEXT];
        return rw_fail(ctx, RW_ERR_SHAPE,
                       "gradient rule of %s at %s:%d: the gradient of input %d has another shape or type: expected "
                       "%s%s, got %s%s", op->name, rw_file_of(at), at.line, i, rw_dtype_name((rw_dtype)x->dtype),
                       rw_shape_text(want, sizeof want, rw_layout_shape(a)), rw_dtype_name((rw_dtype)dx->dtype),
                       rw_shape_text(got, sizeof got, rw_layout_shape(b)));
    }
    g->result[i] = dx;
    g->is_sum[i] = is_sum;
    return RW_OK;
}

rw_status rw_grad_set(rw_grad_call *g, int i, rw_tensor *dx)
{
    RW_ENTER_RECORDING(g ? g->tape : NULL, RW_ERR_ARGUMENT);
    if (!g) return rw_fail_null(NULL, "rw_grad_set", "g");
    return hand_over(g, i, dx, false);
}

rw_status rw_grad_set_sum(rw_grad_call *g, int i, rw_tensor *sum)
{
    RW_ENTER_RECORDING(g ? g->tape : NULL, RW_ERR_ARGUMENT);
    if (!g) return rw_fail_null(NULL, "rw_grad_set_sum", "g");
    return hand_over(g, i, sum, has(g->node.n_inputs, i) && g->lent[i]);
}

/* The value whose parts the node reads; RW_NONE_ID if there is none. */
static uint32_t whole_of(const rw_grad_call *g)
{
    return g ? rw_edges_of(g->tape, &g->node).whole : RW_NONE_ID;
}

rw_tensor *rw_grad_whole(const rw_grad_call *g)
{
    RW_LOOKS_ONLY;
    const uint32_t whole = whole_of(g);
    return whole == RW_NONE_ID ? NULL : rw_tape_value(g->tape, whole);
}

bool rw_grad_whole_wanted(const rw_grad_call *g)
{
    RW_LOOKS_ONLY;
    const uint32_t whole = whole_of(g);
    return whole != RW_NONE_ID && rw_value_is_wanted(g->tape, g->requested, whole);
}

static rw_status refuse_whole(const rw_grad_call *g, rw_status status, const char *fault)
{
    rw_context *const ctx = g->tape->ctx;
    const rw_site at = rw_rule_site(g);
    return rw_fail(ctx, status, "gradient rule of %s at %s:%d: rw_grad_set_whole: %s", ctx->ops[g->node.op]->name,
                   rw_file_of(at), at.line, fault);
}

/* Adds dx at once: the value is not an input of the node, so no other input has got its sum as an addend. */
rw_status rw_grad_set_whole(rw_grad_call *g, rw_tensor *dx)
{
    RW_ENTER_RECORDING(g ? g->tape : NULL, RW_ERR_ARGUMENT);
    if (!g) return rw_fail_null(NULL, "rw_grad_set_whole", "g");
    rw_context *const ctx = g->tape->ctx;
    const uint32_t whole = whole_of(g);
    if (ctx->status) return ctx->status;
    if (whole == RW_NONE_ID)
        return refuse_whole(g, RW_ERR_ARGUMENT, "expected an op that reads parts of a value, got another");
    if (!dx || !rw_tape_has(g->tape, dx))
        return refuse_whole(g, RW_ERR_ARGUMENT, "dx: expected a result of this tape, got none");
    const rw_tensor *const x = rw_tape_value(g->tape, whole);
    if (dx->dtype != x->dtype || !rw_shape_equal(rw_tensor_shape(dx), rw_tensor_shape(x)))
        return refuse_whole(g, RW_ERR_SHAPE, "dx: expected the type and shape of the value, got others");
    rw_tensor **const to = &g->grads[whole];
    g->has_set = true;
    if (*to) dx = rw_accumulate_at(RW_HERE, g->tape, *to, dx);
    if (!dx) return ctx->status ? ctx->status : RW_ERR_MEMORY;
    *to = dx;
    return RW_OK;
}

bool rw_grad_is_differentiable(const rw_grad_call *g)
{
    RW_LOOKS_ONLY;
    return g && g->again;
}

rw_site rw_rule_site(const struct rw_grad_call *g)
{
    return g->tape->ctx->sites[g->node.site];
}
