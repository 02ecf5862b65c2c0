/* See problem.h. */
#include "autodiff/problem.h"

#include "autodiff/across.h"
#include "autodiff/remake.h"
#include "base/alloc.h"
#include "record/overwrite.h"

#include <assert.h>

#define NOMINAL_MOVED_BYTES_PER_S 2e9
#define NOMINAL_MOVE_S 1e-5
/* What is known of a store is in real seconds. Without measured costs compute is in those of a machine so much slower:
   copies would seem to hide behind it. */
#define NOMINAL_IS_SLOWER 4

static bool is_view(const rw_tape *t, const struct rw_node *node)
{
    return t->ctx->ops[node->op]->flags & RW_OP_VIEW;
}

static bool is_commit(const rw_tape *t, const struct rw_node *node)
{
    return t->ctx->ops[node->op]->flags & RW_OP_COMMIT;
}

static void need(struct rw_problem *p, uint32_t value)
{
    const uint32_t b = rw_tape_base(p->t, value);
    if (!p->given[b]) p->needed[rw_tape_value(p->t, b)->producer] = true;
}

static void mark_given(struct rw_problem *p)
{
    const rw_tape *const t = p->t;
    for (uint32_t v = 0; v < t->n_values; v++) p->given[v] = rw_tape_value(t, v)->producer == RW_NONE_ID;
    for (size_t i = 0; i < t->n_held; i++) p->given[t->held[i].value] = true;
}

/* What a target depends on is needed, from the last node to the first. */
static void mark_needed(struct rw_problem *p)
{
    const rw_tape *const t = p->t;
    for (uint32_t v = 0; v < t->n_values; v++) p->target_of[v] = RW_NONE_ID;
    for (size_t i = p->targets.n; i-- > 0;) {
        const struct rw_target *const target = &p->targets.target[i];
        const uint32_t b = rw_tape_base(t, target->value);
        if (!target->only_if_needed) need(p, b);
        p->wanted[b] = true;
        p->target_of[b] = (uint32_t)i;
    }
    for (size_t n = t->n_nodes; n-- > 0;) {
        const struct rw_node *const node = &t->nodes[n];
        if (!p->needed[n]) continue;
        for (uint32_t i = 0; i < node->n_inputs; i++) need(p, t->operands[node->first_input + i]);
        const uint32_t n_read = is_commit(t, node) ? (uint32_t)node->n_inputs - node->n_outputs : 0;
        for (uint32_t i = 0; i < n_read; i++) {
            const uint32_t b = rw_problem_read_by_commit(p, node, i);
            need(p, b);
            p->wanted[b] = true;
        }
    }
}

static void list_remakes(struct rw_problem *p)
{
    for (uint32_t v = 0; v < p->t->n_values; v++) p->remake[v] = RW_NONE_ID;
    for (size_t n = p->first_remake; n < p->t->n_nodes; n++) p->remake[p->t->nodes[n].first_output] = (uint32_t)n;
}

/* Each once, as a step goes through it. */
static uint64_t count_beside(const struct rw_problem *p)
{
    const rw_tape *const t = p->t;
    uint64_t bytes = 0;
    for (uint32_t v = 0; v < p->mark.values; v++) {
        const struct rw_tensor *const x = rw_tape_value(t, v);
        if (p->asked[v] && x->producer == RW_NONE_ID && rw_tape_base(t, v) == v) bytes += rw_tensor_bytes(x);
    }
    for (size_t i = 0; i < p->targets.n_params; i++) bytes += t->ctx->by_id[p->targets.params[i]]->gradient.bytes;
    return bytes;
}

static bool is_optional(const rw_op_def *op, uint32_t input)
{
    return op->optional >> (input < 31 ? input : 31) & 1;
}

static void mark_asked(struct rw_problem *p)
{
    const rw_tape *const t = p->t;
    for (size_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        for (uint32_t i = 0; p->needed[n] && i < node->n_inputs; i++) {
            const uint32_t b = rw_tape_base(t, t->operands[node->first_input + i]);
            if (!is_view(t, node) && !is_optional(t->ctx->ops[node->op], i)) p->asked[b] = true;
        }
    }
}

/* Asked once: what is tried on the problem asks for them again and again. */
static void list_bases(struct rw_problem *p)
{
    const rw_tape *const t = p->t;
    for (size_t i = 0; i < t->n_operands; i++) p->base[i] = rw_tape_base(t, t->operands[i]);
    for (uint32_t v = 0; v < t->n_values; v++) p->bytes[v] = rw_tensor_bytes(rw_tape_value(t, v));
}

static rw_status ask_costs(struct rw_problem *p, uint32_t n)
{
    const rw_tape *const t = p->t;
    const struct rw_node *const node = &t->nodes[n];
    const rw_op_call call = rw_call_of(t, node);
    p->cost[n] = rw_call_cost(&call);
    p->across[n] = rw_call_across(&call);
    p->seconds[n] = rw_costs_seconds(t->ctx->costs, &call, node->attrs_size, p->cost[n]);
    const size_t bytes = call.op->workspace[t->ctx->kind] ? call.op->workspace[t->ctx->kind](&call) : 0;
    p->workspace[n] = bytes;
    p->overwrites[n] = is_commit(t, node) ? 0 : rw_overwrites(t, node);
    return bytes == SIZE_MAX ? RW_ERR_MEMORY : RW_OK;
}

double rw_move_seconds(const struct rw_problem *p, int lane, uint64_t bytes)
{
    const struct rw_store_rate *const rate = &p->t->ctx->store.rate;
    const double known = lane == RW_LANE_OUT ? rate->out : rate->in;
    const double slower = p->t->ctx->costs ? 1 : NOMINAL_IS_SLOWER;
    return NOMINAL_MOVE_S + (double)bytes / (known > 0 ? known / slower : NOMINAL_MOVED_BYTES_PER_S);
}

double rw_move_loss(const struct rw_problem *p, uint64_t bytes)
{
    const rw_context *const ctx = p->t->ctx;
    return (double)bytes * ctx->store.rate.loss * (ctx->costs ? 1 : NOMINAL_IS_SLOWER);
}

static rw_status make_order(struct rw_problem *p)
{
    rw_status status = RW_OK;
    for (uint32_t n = 0; !status && n < p->t->n_nodes; n++) {
        const struct rw_node *const node = &p->t->nodes[n];
        const bool remakes = rw_problem_remakes(p, n);
        if (!p->needed[remakes ? node->of : n] || is_view(p->t, node)) continue;
        if (!remakes && !is_commit(p->t, node)) p->order[p->n_order++] = n;
        status = ask_costs(p, n);
    }
    return status;
}

static rw_status make_order_holding(struct rw_problem *p)
{
    const rw_context *const ctx = p->t->ctx;
    if (!ctx->device->hold_begin) return make_order(p);
    p->holding = ctx->device->hold_begin(ctx->device_state);
    if (!p->holding) return RW_ERR_MEMORY;
    const rw_status status = make_order(p);
    ctx->device->hold_end(ctx->device_state);
    return status;
}

static rw_status fill(struct rw_problem *p)
{
    p->first_remake = p->t->n_nodes;
    const rw_status status = rw_remakes_record(p->t, p->mark.nodes);
    const size_t nodes = p->t->n_nodes, values = p->t->n_values;
    if (status) return status;
    p->needed = rw_calloc(nodes, sizeof *p->needed);
    p->wanted = rw_calloc(values, sizeof *p->wanted);
    p->target_of = rw_malloc(values * sizeof *p->target_of);
    p->asked = rw_calloc(values, sizeof *p->asked);
    p->given = rw_malloc(values * sizeof *p->given);
    p->remake = rw_malloc(values * sizeof *p->remake);
    p->base = rw_malloc(p->t->n_operands * sizeof *p->base);
    p->bytes = rw_malloc(values * sizeof *p->bytes);
    p->order = rw_malloc(nodes * sizeof *p->order);
    p->overwrites = rw_calloc(nodes, sizeof *p->overwrites);
    p->workspace = rw_calloc(nodes, sizeof *p->workspace);
    p->cost = rw_calloc(nodes, sizeof *p->cost);
    p->across = rw_calloc(nodes, sizeof *p->across);
    p->seconds = rw_calloc(nodes, sizeof *p->seconds);
    if (!p->needed || !p->wanted || !p->target_of || !p->asked || !p->given || !p->remake || !p->base ||
        !p->bytes || !p->order || !p->overwrites || !p->workspace || !p->cost || !p->across || !p->seconds)
        return RW_ERR_MEMORY;
    list_bases(p);
    list_remakes(p);
    mark_given(p);
    mark_needed(p);
    mark_asked(p);
    p->beside_bytes = count_beside(p);
    if (p->t->ctx->costs) p->memory = p->t->ctx->costs->memory;
    return make_order_holding(p);
}

static _Atomic uint64_t n_opened;

rw_status rw_problem_open(struct rw_problem *p, rw_tape *t, const struct rw_request *request)
{
    RW_ON_DEVICE_OF(t->ctx); /* for those who ask a library how much workspace it takes */
    const bool eager = t->ctx->eager;
    assert(rw_tape_is_valid(t));
    t->ctx->eager = false; /* what planning records runs as part of the plan */
    *p = (struct rw_problem){ .serial = ++n_opened, .t = t, .mark = rw_tape_mark(t) };
    t->planning = true;
    rw_status status = rw_targets_init(&p->targets, t, request);
    if (!status && (status = fill(p))) rw_fail(t->ctx, status, "planning: %s", rw_status_name(status));
    t->ctx->eager = eager;
    assert(status || rw_tape_is_valid(t));
    if (status) rw_problem_close(p);
    return status;
}

void rw_problem_close(struct rw_problem *p)
{
    void *const arrays[] = { p->needed, p->wanted, p->target_of, p->asked, p->given, p->remake, p->base,
                             p->bytes, p->order, p->overwrites, p->workspace, p->cost, p->across, p->seconds };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) rw_free(arrays[i]);
    rw_targets_finish(&p->targets);
    rw_holding_release(p->holding);
    if (p->t) rw_tape_cut(p->t, &p->mark);
    if (p->t) p->t->planning = false;
    *p = (struct rw_problem){ 0 };
}
