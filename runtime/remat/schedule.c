/*
 * Pass 3: emits forward, then backward with replays on demand. See schedule.h.
 *
 * Before an adjoint node runs, each value it reads that is not there is replayed, with what that replay needs in turn;
 * nothing else is. So a replay starts as late as it can, and a node that leads to no needed value never runs again.
 *
 * When backward enters a scope, the replays of that scope are counted once (open_scope): how many steps will read each
 * replayed value. The value is forgotten at its last counted use. Values of a closed inner scope that are only passed
 * through are counted too, so they are forgotten as soon as the outer replay is done with them, and replayed again when
 * backward enters the inner scope: memory of nested regions grows with their depth, not with their number.
 */
#include "remat/schedule.h"

#include "base/alloc.h"
#include "base/round.h"

#include <string.h>

struct emitter {
    struct rw_schedule *out;
    const struct rw_scopes *scopes;
    const rw_tape *t;
    const struct rw_schedule_request *request;
    bool *needed;        /* node */
    bool *wanted;        /* base: the caller reads it */
    uint32_t *current;   /* base -> buffer that holds it now, or RW_NONE_ID */
    uint32_t *remaining; /* base -> counted uses still to come; discarded values only */
    uint32_t *order;     /* nodes in the order of running, replays left out */
    size_t n_order;
    bool *open;          /* scope */
    uint32_t *stack;     /* nodes of a demand, or bases of a closure */
    size_t n_stack, cap_stack;
    uint32_t *replay_of; /* node -> last closure that counted its inputs */
    uint32_t closure;
    size_t first_late;   /* in order */
};

static uint32_t operand_base(const rw_tape *t, const struct rw_node *node, int i)
{
    return rw_tape_base(t, t->operands[node->first_input + (uint32_t)i]);
}

static bool is_view(const rw_tape *t, const struct rw_node *node)
{
    return t->ctx->ops[node->op]->flags & RW_OP_VIEW;
}

static bool is_leaf(const struct emitter *e, uint32_t base)
{
    return rw_tape_value(e->t, base)->producer == RW_NONE_ID || rw_tape_held(e->t, base) != NULL;
}

static bool discards(const struct emitter *e, uint32_t base)
{
    return rw_decision_discards(e->scopes->decision[base]) && !is_leaf(e, base);
}

/* Buffers, sources, results */

static uint32_t add_buffer(struct emitter *e, struct rw_buffer b)
{
    struct rw_schedule *const s = e->out;
    if (!rw_grow(&s->buffers, &s->cap_buffers, s->n_buffers, 1, sizeof *s->buffers)) return RW_NONE_ID;
    b.merged = (uint32_t)s->n_buffers;
    s->buffers[s->n_buffers] = b;
    return (uint32_t)s->n_buffers++;
}

static uint32_t add_source(struct emitter *e, struct rw_source source)
{
    struct rw_schedule *const s = e->out;
    if (!rw_grow(&s->sources, &s->cap_sources, s->n_sources, 1, sizeof *s->sources)) return RW_NONE_ID;
    s->sources[s->n_sources] = source;
    return (uint32_t)s->n_sources++;
}

static uint32_t source_buffer(struct emitter *e, uint32_t base, struct rw_source source)
{
    const uint32_t index = add_source(e, source);
    if (index == RW_NONE_ID) return RW_NONE_ID;
    return add_buffer(e, (struct rw_buffer){ .value = base, .first = UINT32_MAX, .source = index });
}

static uint32_t note_read_gradient(struct rw_schedule *s, uint32_t buffer)
{
    if (!rw_grow(&s->read_gradients, &s->cap_read_gradients, s->n_read_gradients, 1, sizeof buffer)) return RW_NONE_ID;
    return s->read_gradients[s->n_read_gradients++] = buffer;
}

static uint32_t leaf_buffer(struct emitter *e, uint32_t base)
{
    const struct rw_tensor *const v = rw_tape_value(e->t, base);
    if (v->producer != RW_NONE_ID)
        return source_buffer(e, base, (struct rw_source){ .kind = RW_SOURCE_HELD, .index = base, .leaf = RW_NONE_ID });
    const struct rw_leaf *const leaf = &e->t->leaves[v->leaf];
    const uint8_t kind = leaf->kind == RW_LEAF_PARAM   ? RW_SOURCE_PARAM
                         : leaf->kind == RW_LEAF_INPUT ? RW_SOURCE_INPUT
                                                       : RW_SOURCE_GRADIENT;
    const uint32_t buffer = source_buffer(e, base,
                                          (struct rw_source){ .kind = kind,
                                                              .index = kind == RW_SOURCE_INPUT ? v->leaf : leaf->param,
                                                              .leaf = v->leaf });
    return kind == RW_SOURCE_GRADIENT && buffer != RW_NONE_ID ? note_read_gradient(e->out, buffer) : buffer;
}

static uint32_t result_buffer(struct emitter *e, const struct rw_sink *sink, uint32_t base, uint64_t bytes)
{
    struct rw_schedule *const s = e->out;
    const struct rw_tensor *const v = rw_tape_value(e->t, base);
    if (sink->into_gradient)
        return source_buffer(e, base, (struct rw_source){ .kind = RW_SOURCE_GRADIENT, .index = sink->of,
                                                          .leaf = RW_NONE_ID });
    if (!rw_grow(&s->results, &s->cap_results, s->n_results, 1, sizeof *s->results)) return RW_NONE_ID;
    s->results[s->n_results] = (struct rw_result){ .value = base, .of = sink->of, .of_param = sink->of_param,
                                                   .layout = v->layout, .dtype = v->dtype, .offset = s->results_bytes,
                                                   .bytes = bytes };
    s->results_bytes += rw_round_up(bytes, RW_RESULT_ALIGNMENT);
    return source_buffer(e, base, (struct rw_source){ .kind = RW_SOURCE_RESULT, .index = (uint32_t)s->n_results++,
                                                      .leaf = RW_NONE_ID });
}

static const struct rw_sink *sink_of(const struct emitter *e, uint32_t base)
{
    for (size_t i = 0; i < e->request->n_sinks; i++)
        if (rw_tape_base(e->t, e->request->sinks[i].value) == base) return &e->request->sinks[i];
    return NULL;
}

/* The buffer that a node's output is written to in this step. */
static uint32_t output_buffer(struct emitter *e, const struct rw_node *node, uint32_t base, uint8_t kind)
{
    const struct rw_tensor *const v = rw_tape_value(e->t, base);
    const uint64_t bytes = rw_tensor_bytes(v);
    if (kind == RW_ACTION_COMMIT) {
        const int written = node->n_inputs - node->n_outputs + (int)(base - node->first_output);
        const struct rw_tensor *const to = rw_tape_value(e->t, operand_base(e->t, node, written));
        const struct rw_leaf *const leaf = &e->t->leaves[to->leaf];
        return source_buffer(e, base, (struct rw_source){ .kind = RW_SOURCE_PARAM, .index = leaf->param,
                                                          .leaf = RW_NONE_ID });
    }
    if (e->wanted[base] && kind != RW_ACTION_REPLAY) {
        const struct rw_sink *const sink = sink_of(e, base);
        if (sink) return result_buffer(e, sink, base, bytes);
    }
    if (!bytes) return source_buffer(e, base, (struct rw_source){ .kind = RW_SOURCE_NOWHERE, .leaf = RW_NONE_ID });
    return add_buffer(e, (struct rw_buffer){ .value = base, .source = RW_NONE_ID, .bytes = bytes,
                                             .replay = kind == RW_ACTION_REPLAY });
}

static size_t workspace_bytes(const rw_tape *t, const struct rw_node *node)
{
    const rw_op_def *const op = t->ctx->ops[node->op];
    if (!op->workspace) return 0;
    rw_desc in[RW_OP_MAX_INPUTS], out[RW_OP_MAX_OUTPUTS];
    const rw_op_call call = rw_call_of(t, node, in, out);
    return op->workspace(&call, t->ctx->kind);
}

/* Steps */

static bool touch(struct emitter *e, uint32_t buffer, bool starts)
{
    struct rw_schedule *const s = e->out;
    if (buffer == RW_NONE_ID || !rw_grow(&s->refs, &s->cap_refs, s->n_refs, 1, sizeof *s->refs)) return false;
    s->refs[s->n_refs++] = buffer;
    struct rw_buffer *const b = &s->buffers[buffer];
    if (starts || b->first == UINT32_MAX) b->first = (uint32_t)s->n_actions;
    b->last = (uint32_t)s->n_actions;
    return true;
}

static void forget_if_done(struct emitter *e, uint32_t base)
{
    if (!e->remaining[base] && discards(e, base)) e->current[base] = RW_NONE_ID;
}

static rw_status emit(struct emitter *e, uint32_t n, uint8_t kind)
{
    struct rw_schedule *const s = e->out;
    const struct rw_node *const node = &e->t->nodes[n];
    if (!rw_grow(&s->actions, &s->cap_actions, s->n_actions, 1, sizeof *s->actions)) return RW_ERR_MEMORY;
    struct rw_action step = { .node = n, .word = (uint32_t)s->n_refs, .kind = kind };
    for (int i = 0; i < node->n_inputs; i++) {
        const uint32_t b = operand_base(e->t, node, i);
        if (e->current[b] == RW_NONE_ID && is_leaf(e, b)) e->current[b] = leaf_buffer(e, b);
        if (!touch(e, e->current[b], false)) return RW_ERR_MEMORY;
        if (discards(e, b) && e->remaining[b]) e->remaining[b]--;
    }
    for (int i = 0; i < node->n_outputs; i++) {
        const uint32_t b = node->first_output + (uint32_t)i;
        const uint32_t buffer = output_buffer(e, node, b, kind);
        if (!touch(e, buffer, true)) return RW_ERR_MEMORY;
        e->current[b] = buffer;
    }
    const size_t workspace = workspace_bytes(e->t, node);
    if (workspace == SIZE_MAX) return RW_ERR_MEMORY;
    if (workspace) {
        const uint32_t buffer = add_buffer(e, (struct rw_buffer){ .value = RW_NONE_ID, .source = RW_NONE_ID,
                                                                  .bytes = workspace });
        if (!touch(e, buffer, true)) return RW_ERR_MEMORY;
    }
    for (int i = 0; i < node->n_inputs; i++) forget_if_done(e, operand_base(e->t, node, i));
    for (int i = 0; i < node->n_outputs; i++) forget_if_done(e, node->first_output + (uint32_t)i);
    step.n_words = (uint16_t)(s->n_refs - step.word);
    s->actions[s->n_actions++] = step;
    return RW_OK;
}

static rw_status push(struct emitter *e, uint32_t x)
{
    if (!rw_grow(&e->stack, &e->cap_stack, e->n_stack, 1, sizeof *e->stack)) return RW_ERR_MEMORY;
    e->stack[e->n_stack++] = x;
    return RW_OK;
}

static bool is_there(const struct emitter *e, uint32_t base)
{
    return e->current[base] != RW_NONE_ID || is_leaf(e, base);
}

/* Replays what is missing for a base, inputs first, without recursion: a chain may be long. */
static rw_status demand(struct emitter *e, uint32_t base)
{
    if (is_there(e, base)) return RW_OK;
    e->n_stack = 0;
    rw_status status = push(e, base);
    while (!status && e->n_stack) {
        const uint32_t b = e->stack[e->n_stack - 1];
        if (is_there(e, b)) {
            e->n_stack--;
            continue;
        }
        const uint32_t n = rw_tape_value(e->t, b)->producer;
        const struct rw_node *const node = &e->t->nodes[n];
        const size_t depth = e->n_stack;
        for (int i = 0; !status && i < node->n_inputs; i++) {
            const uint32_t in = operand_base(e->t, node, i);
            if (!is_there(e, in)) status = push(e, in);
        }
        if (status || e->n_stack > depth) continue;
        /* Its uses may be counted nowhere (a rule that reads a value of another scope): hold it for the step at
           hand. */
        if (!e->remaining[b]) e->remaining[b] = 1;
        status = emit(e, n, RW_ACTION_REPLAY);
        e->n_stack--;
    }
    return status;
}

/* Scopes */

static uint32_t scope_of(const struct emitter *e, uint32_t n)
{
    return rw_scope_of_node(e->scopes, e->t, &e->t->nodes[n]);
}

/* Counts the reads of everything that a demand for `base` will replay. */
static rw_status count_closure(struct emitter *e, uint32_t base)
{
    if (is_there(e, base)) return RW_OK;
    e->n_stack = 0;
    rw_status status = push(e, base);
    while (!status && e->n_stack) {
        const uint32_t b = e->stack[--e->n_stack];
        const uint32_t n = rw_tape_value(e->t, b)->producer;
        if (e->replay_of[n] == e->closure) continue;
        e->replay_of[n] = e->closure;
        const struct rw_node *const node = &e->t->nodes[n];
        for (int i = 0; !status && i < node->n_inputs; i++) {
            const uint32_t in = operand_base(e->t, node, i);
            if (!discards(e, in)) continue;
            /* What a scope around has counted already will be there by then. */
            if (e->remaining[in]++ == 0 && !is_there(e, in)) status = push(e, in);
        }
    }
    return status;
}

/* Backward enters a scope at place i of the order: what will it read while it stays inside? */
static rw_status open_scope(struct emitter *e, uint32_t scope, size_t i)
{
    rw_status status = RW_OK;
    e->open[scope] = true;
    e->closure++;
    for (; !status && i < e->n_order; i++) {
        const struct rw_node *const node = &e->t->nodes[e->order[i]];
        if (!node->adjoint) continue;
        if (!rw_scope_contains(e->scopes, scope, scope_of(e, e->order[i]))) break;
        for (int k = 0; !status && k < node->n_inputs; k++) {
            const uint32_t b = operand_base(e->t, node, k);
            if (!discards(e, b) || e->scopes->home[b] != scope) continue;
            if (e->remaining[b]++ == 0) status = count_closure(e, b);
        }
    }
    return status;
}

static rw_status enter(struct emitter *e, uint32_t scope, size_t i)
{
    if (e->open[scope]) return RW_OK;
    const rw_status status = scope ? enter(e, e->scopes->parent[scope], i) : RW_OK;
    return status ? status : open_scope(e, scope, i);
}

static void leave(struct emitter *e, uint32_t from, uint32_t to)
{
    for (uint32_t s = from; s && !rw_scope_contains(e->scopes, s, to); s = e->scopes->parent[s]) e->open[s] = false;
}

/* The two passes over the order */

static rw_status emit_late(struct emitter *e, uint32_t n, size_t i, uint32_t *scope)
{
    const struct rw_node *const node = &e->t->nodes[n];
    const uint32_t to = scope_of(e, n);
    rw_status status = RW_OK;
    if (to != *scope || !e->open[to]) {
        leave(e, *scope, to);
        *scope = to;
        status = enter(e, to, i);
    }
    for (int k = 0; !status && k < node->n_inputs; k++) status = demand(e, operand_base(e->t, node, k));
    return status ? status : emit(e, n, RW_ACTION_BACKWARD);
}

static rw_status emit_early(struct emitter *e, uint32_t n)
{
    const struct rw_node *const node = &e->t->nodes[n];
    rw_status status = RW_OK;
    for (int k = 0; !status && k < node->n_inputs; k++) status = demand(e, operand_base(e->t, node, k));
    return status ? status : emit(e, n, RW_ACTION_FORWARD);
}

static bool is_commit(const rw_tape *t, const struct rw_node *node)
{
    return t->ctx->ops[node->op]->flags & RW_OP_COMMIT;
}

static rw_status emit_all(struct emitter *e)
{
    rw_status status = RW_OK;
    uint32_t scope = 0;
    bool late = false;
    for (size_t i = 0; !status && i < e->n_order; i++) {
        const uint32_t n = e->order[i];
        if (!e->t->nodes[n].adjoint) {
            status = emit_early(e, n);
            continue;
        }
        if (!late) e->out->n_forward = e->out->n_actions;
        late = true;
        status = emit_late(e, n, i, &scope);
    }
    if (!late) e->out->n_forward = e->out->n_actions;
    for (size_t i = 0; !status && i < e->t->n_effects; i++) {
        const uint32_t n = e->t->effects[i].node;
        if (e->needed[n] && is_commit(e->t, &e->t->nodes[n])) status = emit(e, n, RW_ACTION_COMMIT);
    }
    return status;
}

/* Preparation */

static void need(struct emitter *e, uint32_t value)
{
    const uint32_t b = rw_tape_base(e->t, value);
    if (!is_leaf(e, b)) e->needed[rw_tape_value(e->t, b)->producer] = true;
}

static void mark_needed(struct emitter *e)
{
    const rw_tape *const t = e->t;
    for (size_t i = 0; i < e->request->n_sinks; i++) {
        const uint32_t v = e->request->sinks[i].value;
        if (!e->request->sinks[i].only_if_needed) need(e, v);
        e->wanted[rw_tape_base(t, v)] = true;
    }
    for (size_t n = t->n_nodes; n-- > 0;) {
        const struct rw_node *const node = &t->nodes[n];
        if (!e->needed[n]) continue;
        for (int i = 0; i < node->n_inputs; i++) need(e, t->operands[node->first_input + (uint32_t)i]);
        const int n_read = is_commit(t, node) ? node->n_inputs - node->n_outputs : 0;
        for (int i = 0; i < n_read; i++) e->wanted[operand_base(t, node, i)] = true;
    }
}

static void make_order(struct emitter *e)
{
    for (uint32_t n = 0; n < e->t->n_nodes; n++) {
        const struct rw_node *const node = &e->t->nodes[n];
        if (!e->needed[n] || is_view(e->t, node) || is_commit(e->t, node)) continue;
        e->order[e->n_order++] = n;
        for (int k = 0; !node->adjoint && k < node->n_inputs; k++) {
            const uint32_t b = operand_base(e->t, node, k);
            if (discards(e, b)) e->remaining[b]++;
        }
    }
}

static void emitter_finish(struct emitter *e)
{
    void *const arrays[] = { e->needed, e->wanted, e->current, e->remaining,
                             e->order,  e->open,   e->stack,   e->replay_of };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) rw_free(arrays[i]);
}

static rw_status emitter_init(struct emitter *e)
{
    const size_t nodes = e->t->n_nodes, values = e->t->n_values;
    e->needed = rw_calloc(nodes, sizeof *e->needed);
    e->wanted = rw_calloc(values, sizeof *e->wanted);
    e->current = rw_malloc(values * sizeof *e->current);
    e->remaining = rw_calloc(values, sizeof *e->remaining);
    e->order = rw_malloc(nodes * sizeof *e->order);
    e->open = rw_calloc(e->t->n_regions + 1, sizeof *e->open);
    e->replay_of = rw_calloc(nodes, sizeof *e->replay_of);
    if (!e->needed || !e->wanted || !e->current || !e->remaining || !e->order || !e->open || !e->replay_of)
        return RW_ERR_MEMORY;
    for (size_t v = 0; v < values; v++) e->current[v] = RW_NONE_ID;
    return RW_OK;
}

void rw_schedule_finish(struct rw_schedule *s)
{
    rw_free(s->actions);
    rw_free(s->refs);
    rw_free(s->buffers);
    rw_free(s->sources);
    rw_free(s->read_gradients);
    rw_free(s->results);
    *s = (struct rw_schedule){ 0 };
}

rw_status rw_schedule_init(struct rw_schedule *s, struct rw_scopes *scopes, const rw_tape *t,
                           const struct rw_schedule_request *request)
{
    *s = (struct rw_schedule){ 0 };
    struct emitter e = { .out = s, .scopes = scopes, .t = t, .request = request };
    rw_status status = emitter_init(&e);
    if (!status) mark_needed(&e);
    if (!status) status = rw_scopes_init(scopes, t, request->policy, e.needed, e.wanted);
    if (!status) {
        make_order(&e);
        status = emit_all(&e);
    }
    emitter_finish(&e);
    if (status) {
        rw_schedule_finish(s);
        rw_scopes_finish(scopes);
    }
    return status;
}
