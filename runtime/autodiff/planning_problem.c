/* Opens and closes problems: differentiates, marks needed nodes, and evaluates bytes, workspaces and costs of every
   node. */
#include "autodiff/planning_problem.h"

#include "autodiff/cache_coherence_traffic.h"
#include "autodiff/recompute_output.h"
#include "base/alloc.h"
#include "record/overwrite.h"

#include <assert.h>

#define NOMINAL_MOVED_BYTES_PER_S 2e9
#define NOMINAL_MOVE_S 1e-5
/* The rates of a store are in real seconds. Without measured costs, compute is at nominal rates, as on a machine
   that is slower by this factor: copies would seem to be hidden. */
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

/* Marks the nodes that a requested output depends on, from the last node to the first. */
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

static void list_recompute_nodes(struct rw_problem *p)
{
    for (uint32_t v = 0; v < p->t->n_values; v++) p->recompute_node[v] = RW_NONE_ID;
    for (size_t n = p->first_recompute_node; n < p->t->n_nodes; n++)
        p->recompute_node[p->t->nodes[n].first_output] = (uint32_t)n;
}

/* Bytes that needed nodes read or write outside of the arena, each counted once: leaves and parameters' gradients. */
static uint64_t count_beside(const struct rw_problem *p)
{
    const rw_tape *const t = p->t;
    uint64_t bytes = 0;
    for (uint32_t v = 0; v < p->mark.values; v++) {
        const struct rw_tensor *const x = rw_tape_value(t, v);
        if (p->is_read[v] && x->producer == RW_NONE_ID && rw_tape_base(t, v) == v) bytes += rw_tensor_bytes(x);
    }
    for (size_t i = 0; i < p->targets.n_params; i++) bytes += t->ctx->by_id[p->targets.params[i]]->gradient.bytes;
    return bytes;
}

static bool is_optional(const rw_op_def *op, uint32_t input)
{
    return op->optional >> (input < 31 ? input : 31) & 1;
}

static void mark_read(struct rw_problem *p)
{
    const rw_tape *const t = p->t;
    for (size_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        for (uint32_t i = 0; p->needed[n] && i < node->n_inputs; i++) {
            const uint32_t b = rw_tape_base(t, t->operands[node->first_input + i]);
            if (!is_view(t, node) && !is_optional(t->ctx->ops[node->op], i)) p->is_read[b] = true;
        }
    }
}

/* Lists base values once, because every candidate needs them. */
static void list_bases(struct rw_problem *p)
{
    const rw_tape *const t = p->t;
    for (size_t i = 0; i < t->n_operands; i++) p->base[i] = rw_tape_base(t, t->operands[i]);
    for (uint32_t v = 0; v < t->n_values; v++) p->bytes[v] = rw_tensor_bytes(rw_tape_value(t, v));
}

/* Limit for the sum of all outputs and workspaces: then no sum of some of them overflows, nor several times the live
   bytes. */
#define BYTES_MAX ((uint64_t)1 << 61)

static rw_status count_bytes(struct rw_problem *p, const struct rw_node *node, uint64_t workspace)
{
    const rw_tape *const t = p->t;
    uint64_t bytes = workspace;
    for (uint32_t i = 0; i < node->n_outputs && bytes <= BYTES_MAX; i++) {
        const uint64_t room = rw_tensor_bytes(rw_tape_value(t, node->first_output + i));
        bytes = room <= BYTES_MAX ? bytes + room + t->ctx->device->alignment : room;
    }
    if (bytes <= BYTES_MAX && (p->all_bytes += bytes) <= BYTES_MAX) return RW_OK;
    const rw_site site = t->ctx->sites[node->site];
    return rw_fail(t->ctx, RW_ERR_MEMORY,
                   "planning: expected values and workspaces of at most 2^61 bytes, got more at %s (%s:%d), whose own "
                   "take %llu, %llu of them workspace", t->ctx->ops[node->op]->name, site.file, (int)site.line,
                   (unsigned long long)bytes, (unsigned long long)workspace);
}

static rw_status query_costs(struct rw_problem *p, uint32_t n)
{
    const rw_tape *const t = p->t;
    const struct rw_node *const node = &t->nodes[n];
    const rw_op_call call = rw_call_of(t, node);
    const enum rw_callback before = rw_callback_enter(t->ctx, RW_CALLBACK_QUERY);
    p->cost[n] = rw_call_cost(&call);
    p->across[n] = rw_cache_transfers(&call);
    p->seconds[n] = rw_costs_seconds(rw_costs_of(t->ctx), &call, node->attrs_size, p->cost[n]);
    const size_t bytes = rw_call_workspace(&call);
    if (rw_callback_leave(t->ctx, before)) return RW_ERR_ARGUMENT; /* an illegal call of its check or cost function:
                                                                      the error is recorded */
    p->workspace[n] = bytes;
    p->overwrites[n] = is_commit(t, node) ? 0 : rw_overwrites(t, node);
    return bytes == SIZE_MAX ? RW_ERR_MEMORY : count_bytes(p, node, bytes);
}

double rw_move_seconds(const struct rw_problem *p, int lane, uint64_t bytes)
{
    const struct rw_store_rate *const rate = &p->t->ctx->store.rate;
    const double known = lane == RW_LANE_OUT ? rate->out : rate->in;
    const double slower = rw_costs_of(p->t->ctx) ? 1 : NOMINAL_IS_SLOWER;
    return NOMINAL_MOVE_S + (double)bytes / (known > 0 ? known / slower : NOMINAL_MOVED_BYTES_PER_S);
}

double rw_move_loss(const struct rw_problem *p, uint64_t bytes)
{
    const rw_context *const ctx = p->t->ctx;
    return (double)bytes * ctx->store.rate.loss * (rw_costs_of(ctx) ? 1 : NOMINAL_IS_SLOWER);
}

static rw_status make_order(struct rw_problem *p)
{
    rw_status status = RW_OK;
    for (uint32_t n = 0; !status && n < p->t->n_nodes; n++) {
        const struct rw_node *const node = &p->t->nodes[n];
        const bool recomputes = rw_problem_is_recompute_node(p, n);
        if (!p->needed[recomputes ? node->of : n] || is_view(p->t, node)) continue;
        if (!recomputes && !is_commit(p->t, node)) p->order[p->n_order++] = n;
        status = query_costs(p, n);
    }
    return status;
}

/* A gradient's old contents are there until backward writes over them. */
static bool reads_gradient(const struct rw_problem *p, const struct rw_node *node)
{
    const rw_tape *const t = p->t;
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const uint32_t leaf = rw_tape_value(t, rw_problem_input(p, node, i))->leaf;
        if (leaf != RW_NONE_ID && t->leaves[leaf].kind == RW_LEAF_GRADIENT) return true;
    }
    return false;
}

/* May it run later than it was recorded? What it computes depends on its inputs and its ticket alone, and no output
   is requested. Where a recompute node makes an output, the node itself might never run. */
static bool may_wait(const struct rw_problem *p, const struct rw_node *node, const bool *read)
{
    const uint32_t flags = p->t->ctx->ops[node->op]->flags;
    if ((flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC | RW_OP_COMMIT)) || !node->n_outputs) return false;
    for (uint32_t i = 0; i < node->n_outputs; i++) {
        const uint32_t v = node->first_output + i;
        if (!rw_problem_makes(p, v) || p->wanted[v] || read[v] || p->recompute_node[v] != RW_NONE_ID) return false;
    }
    return !reads_gradient(p, node);
}

/*
 * The nodes of forward that nothing reads but backward and each other. From the last to the first: what is read by a
 * node that may not wait may not wait either. The last node of forward may not, so that one follows each deferred node:
 * there a run notes what forward has read (plan/assemble.c).
 */
static rw_status find_deferrable(struct rw_problem *p)
{
    bool *const read = rw_calloc(p->t->n_values, sizeof *read); /* by a node of forward that does not wait */
    size_t end = 0;
    if (!read) return RW_ERR_MEMORY;
    while (end < p->n_order && p->order[end] < p->mark.nodes && !p->t->nodes[p->order[end]].adjoint) end++;
    for (size_t i = p->n_order; i-- > 0;) {
        const struct rw_node *const node = &p->t->nodes[p->order[i]];
        if (node->adjoint) continue;
        p->deferrable[p->order[i]] = i + 1 < end && may_wait(p, node, read);
        p->n_deferrable += p->deferrable[p->order[i]];
        for (uint32_t k = 0; !p->deferrable[p->order[i]] && k < node->n_inputs; k++)
            read[rw_problem_input(p, node, k)] = true;
    }
    rw_free(read);
    return RW_OK;
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

/* Everything that is equal for all choices is computed here, once. Recompute nodes are recorded first, because they add
   nodes and values that the arrays must cover. */
static rw_status fill(struct rw_problem *p)
{
    p->first_recompute_node = p->t->n_nodes;
    const rw_status status = rw_recompute_nodes_record(p->t, p->mark.nodes);
    const size_t nodes = p->t->n_nodes, values = p->t->n_values;
    if (status) return status;
    p->needed = rw_calloc(nodes, sizeof *p->needed);
    p->wanted = rw_calloc(values, sizeof *p->wanted);
    p->target_of = rw_malloc(values * sizeof *p->target_of);
    p->is_read = rw_calloc(values, sizeof *p->is_read);
    p->given = rw_malloc(values * sizeof *p->given);
    p->recompute_node = rw_malloc(values * sizeof *p->recompute_node);
    p->base = rw_malloc(p->t->n_operands * sizeof *p->base);
    p->bytes = rw_malloc(values * sizeof *p->bytes);
    p->order = rw_malloc(nodes * sizeof *p->order);
    p->deferrable = rw_calloc(nodes, sizeof *p->deferrable);
    p->overwrites = rw_calloc(nodes, sizeof *p->overwrites);
    p->workspace = rw_calloc(nodes, sizeof *p->workspace);
    p->cost = rw_calloc(nodes, sizeof *p->cost);
    p->across = rw_calloc(nodes, sizeof *p->across);
    p->seconds = rw_calloc(nodes, sizeof *p->seconds);
    if (!p->needed || !p->wanted || !p->target_of || !p->is_read || !p->given || !p->recompute_node || !p->base ||
        !p->bytes || !p->order || !p->deferrable || !p->overwrites || !p->workspace || !p->cost || !p->across ||
        !p->seconds)
        return RW_ERR_MEMORY;
    list_bases(p);
    list_recompute_nodes(p);
    mark_given(p);
    mark_needed(p);
    mark_read(p);
    p->beside_bytes = count_beside(p);
    if (rw_costs_of(p->t->ctx)) p->memory = rw_costs_of(p->t->ctx)->memory;
    const rw_status ordered = make_order_holding(p);
    return ordered ? ordered : find_deferrable(p);
}

static _Atomic uint64_t n_opened;

rw_status rw_problem_open(struct rw_problem *p, rw_tape *t, const struct rw_request *request)
{
    RW_ON_DEVICE_OF(t->ctx); /* for ops that query a library for the size of a workspace */
    const bool eager = t->ctx->eager;
    assert(rw_tape_is_valid(t));
    t->ctx->eager = false; /* nodes recorded by planning run as part of the plan */
    *p = (struct rw_problem){ .serial = ++n_opened, .t = t, .mark = rw_tape_mark(t) };
    t->planning = true;
    rw_status status = rw_outputs_init(&p->targets, t, request);
    if (!status && (status = fill(p))) rw_fail(t->ctx, status, "planning: %s", rw_status_name(status));
    t->ctx->eager = eager;
    assert(status || rw_tape_is_valid(t));
    if (status) rw_problem_close(p);
    return status;
}

void rw_problem_close(struct rw_problem *p)
{
    void *const arrays[] = { p->needed, p->wanted, p->target_of, p->is_read, p->given, p->recompute_node, p->base,
                             p->bytes, p->order, p->deferrable, p->overwrites, p->workspace, p->cost, p->across,
                             p->seconds };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) rw_free(arrays[i]);
    rw_outputs_finish(&p->targets);
    rw_library_ref_release(p->holding);
    if (p->t) rw_tape_cut(p->t, &p->mark);
    if (p->t) p->t->planning = false;
    *p = (struct rw_problem){ 0 };
}
