/* Calls the recompute_output functions of ops and checks what they record: one node with one output of the same type
   and shape. */
#include "autodiff/recompute_output.h"

#include "base/alloc.h"
#include "record/tape_mark.h"

#include <string.h>

/* By value: an adjoint node reads it or a value computed from it; it has a recompute node; a recompute node reads
   it. */
enum { READ_LATE = 1, IS_RECOMPUTED = 2, IS_SOURCE = 4 };

/* What a node's op sees of it in its recompute_output function; copies, because recording may move nodes and
   attributes. */
struct ruling {
    rw_tape *t;
    uint32_t n;
    struct rw_node node;
    const rw_op_def *op;
    void *attrs;
    rw_tensor **operand;
};

static bool may_have(const rw_tape *t, const struct rw_node *node)
{
    const rw_op_def *const op = t->ctx->ops[node->op];
    const uint32_t not = RW_OP_VIEW | RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC | RW_OP_COMMIT;
    return op->recompute_output && !node->adjoint && !(op->flags & not);
}

static rw_status refuse(const struct ruling *r, rw_status status, const char *what)
{
    const rw_site at = r->t->ctx->sites[r->node.site];
    return rw_fail(r->t->ctx, status, "recompute_output of %s at %s:%d: %s", r->op->name, rw_file_of(at), at.line,
                   what);
}

/* Rolls back, so that the next recompute node draws from the same state. */
static rw_status fail(const struct ruling *r, const struct rw_tape_mark *mark, const char *what)
{
    r->t->ctx->generator.offset = mark->drawn;
    r->t->ticket_end = mark->ticket_end;
    return refuse(r, RW_ERR_ARGUMENT, what);
}

static bool is_operand_of(const struct ruling *r, uint32_t value)
{
    for (uint32_t i = 0; i < (uint32_t)r->node.n_inputs + r->node.n_outputs; i++)
        if (r->operand[i]->id == value) return true;
    return false;
}

/* The fault of the node that was recorded, NULL for none. */
static const char *fault_of(const struct ruling *r, const rw_tensor *y, const rw_tensor *value)
{
    const rw_tape *const t = r->t;
    const struct rw_node *const last = &t->nodes[t->n_nodes - 1];
    const uint32_t not = RW_OP_VIEW | RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC | RW_OP_COMMIT;
    if (y->producer != t->n_nodes - 1) return "expected a value that it recorded, got another";
    if (last->ticket != RW_NONE_ID && last->ticket != r->node.ticket)
        return "expected no random op, as the op draws none, got one";
    if (last->n_outputs != 1 || (t->ctx->ops[last->op]->flags & not))
        return "expected an op with one output that may be executed twice, got another";
    if (y->dtype != value->dtype || y->layout != value->layout)
        return "expected the type and shape of the output, got others";
    for (uint32_t i = 0; i < last->n_inputs; i++) {
        const uint32_t in = t->operands[last->first_input + i];
        if (in == value->id || !is_operand_of(r, in))
            return "expected it to read inputs and other outputs of the op, got another value";
    }
    return NULL;
}

static bool reads(const rw_tape *t, const struct rw_node *node, uint32_t first, uint32_t n, const uint8_t *state,
                  uint8_t what)
{
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const uint32_t in = t->operands[node->first_input + i];
        if (in - first < n && (state[in] & what)) return true;
    }
    return false;
}

/* The function has recorded something: one valid node becomes the recompute node of the value; otherwise it is
   rolled back. */
static rw_status settle(const struct ruling *r, const struct rw_tape_mark *mark, rw_tensor *y, uint32_t v,
                        uint8_t *state)
{
    rw_tape *const t = r->t;
    struct rw_node *const last = &t->nodes[t->n_nodes - 1];
    if (!y || t->n_nodes > mark->nodes + 1) {
        rw_tape_cut(t, mark);
        return RW_OK;
    }
    const bool is_new = rw_tape_has(t, y) && t->n_nodes > mark->nodes;
    const char *const fault = is_new ? fault_of(r, y, rw_tape_value(t, v))
                                     : "expected a value that it recorded, got another";
    if (fault) return fail(r, mark, fault);
    if (reads(t, last, r->node.first_output, r->node.n_outputs, state, IS_RECOMPUTED)) {
        rw_tape_cut(t, mark);
        return RW_OK;
    }
    for (uint32_t i = 0; i < last->n_inputs; i++) {
        const uint32_t in = t->operands[last->first_input + i];
        if (in - r->node.first_output < r->node.n_outputs) state[in] |= IS_SOURCE;
    }
    state[v] |= IS_RECOMPUTED;
    last->first_output = v;
    t->n_values = mark->values;
    return RW_OK;
}

static rw_status try_output(const struct ruling *r, uint32_t output, uint8_t *state)
{
    rw_tape *const t = r->t;
    const struct rw_tape_mark mark = rw_tape_mark(t);
    rw_op_call call = rw_call_of(t, &r->node);
    call.attrs = r->attrs;
    t->origin = rw_origin_of(t, r->n);
    const enum rw_callback before = rw_callback_enter(t->ctx, RW_CALLBACK_RULE);
    rw_tensor *const y = r->op->recompute_output(t, &call, (int)output, r->operand, r->operand + r->node.n_inputs);
    rw_callback_leave(t->ctx, before);
    t->origin = (struct rw_origin){ 0 };
    if (t->ctx->status) return refuse(r, t->ctx->status, rw_status_name(t->ctx->status));
    return settle(r, &mark, y, r->node.first_output + output, state);
}

static rw_status try_each_output(const struct ruling *r, uint8_t *state)
{
    rw_status status = RW_OK;
    for (uint32_t i = 0; !status && i < r->node.n_outputs; i++)
        if ((state[r->node.first_output + i] & (READ_LATE | IS_SOURCE)) == READ_LATE) status = try_output(r, i, state);
    return status;
}

static rw_status record_of(rw_tape *t, uint32_t n, uint8_t *state)
{
    struct ruling r = { .t = t, .n = n, .node = t->nodes[n], .op = t->ctx->ops[t->nodes[n].op] };
    r.attrs = rw_malloc(r.node.attrs_size);
    r.operand = rw_malloc((r.node.n_inputs + (size_t)r.node.n_outputs) * sizeof *r.operand);
    rw_status status = r.attrs && r.operand ? RW_OK : refuse(&r, RW_ERR_MEMORY, "out of memory");
    if (!status) {
        if (r.node.attrs_size) memcpy(r.attrs, t->attrs + r.node.attrs, r.node.attrs_size);
        for (uint32_t i = 0; i < r.node.n_inputs; i++)
            r.operand[i] = rw_tape_value(t, t->operands[r.node.first_input + i]);
        for (uint32_t i = 0; i < r.node.n_outputs; i++)
            r.operand[r.node.n_inputs + i] = rw_tape_value(t, r.node.first_output + i);
        status = try_each_output(&r, state);
    }
    rw_free(r.attrs);
    rw_free(r.operand);
    return status;
}

/* Marks values from which a late read can be reached, since a replay on the way to it may recompute them. Views are
   nodes, too. */
static void find_late(const rw_tape *t, uint8_t *state)
{
    for (size_t n = t->n_nodes; n-- > 0;) {
        const struct rw_node *const node = &t->nodes[n];
        bool late = node->adjoint;
        for (uint32_t i = 0; !late && i < node->n_outputs; i++) late = state[node->first_output + i] & READ_LATE;
        for (uint32_t i = 0; late && i < node->n_inputs; i++)
            state[rw_tape_base(t, t->operands[node->first_input + i])] |= READ_LATE;
    }
}

rw_status rw_recompute_nodes_record(rw_tape *t, size_t n_recorded)
{
    uint32_t n = 0;
    while (n < n_recorded && !may_have(t, &t->nodes[n])) n++;
    if (n == n_recorded) return RW_OK;
    uint8_t *const state = rw_calloc(t->n_values, sizeof *state);
    if (!state) return rw_fail(t->ctx, RW_ERR_MEMORY, "planning: out of memory");
    find_late(t, state);
    rw_status status = RW_OK;
    for (; !status && n < n_recorded; n++)
        if (may_have(t, &t->nodes[n])) status = record_of(t, n, state);
    rw_free(state);
    return status;
}
