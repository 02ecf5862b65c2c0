/* Pass 5: the walker. One loop over steps; per step a few loads per operand and one call. See run.h. */
#include "run/run.h"

#include "run/trace.h"
#include "base/alloc.h"
#include "base/round.h"
#include "verify/faults.h"
#include "verify/replays.h"

#include <stdio.h>
#include <string.h>

/* Where the places of a plan point during one run. */
struct walk {
    rw_tape *t;
    rw_context *ctx;
    const rw_plan *plan;
    char *arena;
    void **sources;
    rw_view *views;   /* of one action */
    size_t workspace; /* of the plan's, of the next action that has one */
    struct rw_device_queue queue;
    uint64_t highest; /* byte of the arena that a step used */
    uint32_t region;  /* what the profiler was told last */
    uint8_t kind;
};

static struct rw_block *block_of(const rw_tape *t, const rw_plan *plan)
{
    for (size_t i = 0; i < t->n_blocks; i++)
        if (t->blocks[i].plan == plan->serial) return &t->blocks[i];
    return NULL;
}

static bool is_held_block(const rw_tape *t, size_t block)
{
    for (size_t i = 0; i < t->n_held; i++)
        if (t->held[i].block == block) return true;
    return false;
}

static bool has_gradients(const rw_tape *t, size_t block)
{
    for (size_t i = 0; i < t->n_gradients; i++)
        if (t->gradients[i]->producer == block) return true;
    return false;
}

/* A block for the plan's results: the one it used last, or one that nothing is held in, or a new one. */
static struct rw_block *take_block(rw_tape *t, const rw_plan *plan)
{
    struct rw_block *b = block_of(t, plan);
    if (b) return b;
    for (size_t i = 0; !b && i < t->n_blocks; i++)
        if (!is_held_block(t, i) && !has_gradients(t, i)) b = &t->blocks[i];
    return b;
}

static rw_status prepare_results(rw_tape *t, const rw_plan *plan)
{
    rw_context *const ctx = t->ctx;
    struct rw_block *b = take_block(t, plan);
    if (!b) {
        if (!rw_grow(&t->blocks, &t->cap_blocks, t->n_blocks, 1, sizeof *t->blocks)) return RW_ERR_MEMORY;
        b = &t->blocks[t->n_blocks++];
        *b = (struct rw_block){ 0 };
    }
    if (b->bytes < plan->results_bytes) {
        void *const data = ctx->device->alloc(ctx->device_state, plan->results_bytes);
        if (!data) return RW_ERR_MEMORY;
        ctx->device->free(ctx->device_state, b->data);
        ctx->memory.results += plan->results_bytes - b->bytes;
        b->data = data;
        b->bytes = plan->results_bytes;
    }
    b->plan = plan->serial;
    return RW_OK;
}

static rw_status prepare_arena(rw_context *ctx, const rw_plan *plan)
{
    if (ctx->arena_bytes >= plan->arena_bytes) return RW_OK;
    void *arena = ctx->device->alloc(ctx->device_state, plan->arena_bytes);
    if (arena) {
        ctx->device->free(ctx->device_state, ctx->arena);
    } else if (ctx->arena) {
        /* What is in the old one belongs to no step any more: its memory may be what the new one lacks. */
        ctx->device->free(ctx->device_state, ctx->arena);
        ctx->arena = NULL;
        ctx->arena_bytes = 0;
        arena = ctx->device->alloc(ctx->device_state, plan->arena_bytes);
    }
    if (!arena) return RW_ERR_MEMORY;
    ctx->arena = arena;
    ctx->arena_bytes = plan->arena_bytes;
    return RW_OK;
}

/* Law 8: what a replay reads must be what the forward pass read. */
static rw_status check_source(rw_tape *t, const struct rw_source *source)
{
    /* A gradient may change; its leaf may be one that planning made on another tape and cut off again. */
    if (source->leaf == RW_NONE_ID || source->kind == RW_SOURCE_GRADIENT) return RW_OK;
    struct rw_leaf *const leaf = &t->leaves[source->leaf];
    if (leaf->kind == RW_LEAF_INPUT) {
        if (leaf->ran && leaf->version != leaf->written) {
            const char *const name = rw_tensor_name(rw_tape_value(t, leaf->value));
            return rw_fail(t->ctx, RW_ERR_CHANGED,
                           "input %s%s(value %u) was written by rw_input_write() after the forward pass had read it; "
                           "reset the tape and record the step again",
                           name, *name ? " " : "", leaf->value);
        }
        leaf->version = leaf->written;
        leaf->ran = true;
    }
    if (leaf->kind == RW_LEAF_PARAM && t->ctx->params[leaf->param]->version != leaf->version)
        return rw_fail(t->ctx, RW_ERR_CHANGED,
                       "parameter \"%s\" changed after it was recorded; what is computed from it now would not match; "
                       "reset the tape and record the step again",
                       t->ctx->params[leaf->param]->name);
    return RW_OK;
}

static rw_status resolve_sources(rw_tape *t, const rw_plan *p, void **sources)
{
    char *const results = block_of(t, p)->data;
    for (size_t i = 0; i < p->n_sources; i++) {
        const struct rw_source *const s = &p->sources[i];
        const rw_status status = check_source(t, s);
        if (status) return status;
        switch ((enum rw_source_kind)s->kind) {
        case RW_SOURCE_PARAM: sources[i] = t->ctx->params[s->index]->data; break;
        case RW_SOURCE_GRADIENT: {
            const rw_status spoiled = rw_gradient_check(t->ctx, t->ctx->params[s->index], "run");
            if (spoiled) return spoiled;
            sources[i] = t->ctx->params[s->index]->grad;
            break;
        }
        case RW_SOURCE_INPUT: sources[i] = t->leaves[s->index].data; break;
        case RW_SOURCE_HELD: sources[i] = rw_tape_held(t, s->index); break;
        case RW_SOURCE_RESULT: sources[i] = results ? results + p->results[s->index].offset : NULL; break;
        case RW_SOURCE_NOWHERE: sources[i] = NULL; break;
        }
    }
    return RW_OK;
}

static inline void *memory_of(const struct walk *w, uint32_t word)
{
    return rw_word_is_source(word) ? w->sources[rw_word_source(word)] : w->arena + rw_word_offset(w->plan, word);
}

static inline rw_view view_of(const struct walk *w, uint32_t value, uint32_t word)
{
    uint32_t layout_id;
    rw_dtype dtype;
    if (value < w->plan->mark_values) {
        const struct rw_tensor *const v = rw_tape_value(w->t, value);
        layout_id = v->layout;
        dtype = (rw_dtype)v->dtype;
    } else {
        const struct rw_value_desc *const v = &w->plan->values[value - w->plan->mark_values];
        layout_id = v->layout;
        dtype = (rw_dtype)v->dtype;
    }
    const rw_layout *const layout = rw_layout_get(&w->ctx->layouts, layout_id);
    char *const data = memory_of(w, word);
    return (rw_view){ data ? data + (size_t)layout->offset * rw_dtype_size(dtype) : NULL, layout, dtype };
}

static inline void note_use(struct walk *w, uint32_t word, uint64_t bytes)
{
    if (rw_word_is_source(word)) return;
    const uint64_t end = rw_word_offset(w->plan, word) + rw_round_up(bytes, w->plan->unit);
    if (end > w->highest) w->highest = end;
}

static rw_status kernel_failed(rw_context *ctx, const struct rw_node *node, rw_status status)
{
    const rw_site at = ctx->sites[node->site];
    return rw_fail(ctx, status, "%s recorded at %s:%d failed while it ran: %s", ctx->ops[node->op]->name, at.file,
                   at.line,
                   status == RW_ERR_ARGUMENT ? "an index in its inputs is out of range" : rw_status_name(status));
}

/* The first action's workspace at or behind an action. */
static size_t workspace_at(const rw_plan *plan, size_t action)
{
    size_t low = 0, high = plan->n_workspaces;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (plan->workspaces[middle].action < action) low = middle + 1;
        else high = middle;
    }
    return low;
}

static rw_status run_step(struct walk *w, size_t index, struct rw_observer *observer)
{
    const rw_plan *const p = w->plan;
    const struct rw_action *const step = &p->actions[index];
    const struct rw_node *const node = rw_plan_node(w->t, p, step->node);
    const rw_op_def *const op = w->ctx->ops[node->op];
    const uint32_t *const words = p->words + step->word;
    const bool recorded = step->node < p->mark_nodes;
    rw_view *const views = w->views;
    const int n_in = node->n_inputs, n_out = node->n_outputs;
    for (int i = 0; i < n_in; i++)
        views[i] = view_of(w, rw_plan_operand(w->t, p, node->first_input + (uint32_t)i), words[i]);
    for (int i = 0; i < n_out; i++) {
        views[n_in + i] = view_of(w, node->first_output + (uint32_t)i, words[n_in + i]);
        note_use(w, words[n_in + i], (uint64_t)views[n_in + i].layout->span * rw_dtype_size(views[n_in + i].dtype));
    }
    rw_kernel k = { .op = op, .attrs = recorded ? w->t->attrs + node->attrs : p->attrs + (node->attrs - p->mark_attrs),
                    .in = views, .out = views + n_in, .n_inputs = n_in, .n_outputs = n_out, .threads = w->ctx->threads,
                    .serial = (uint32_t)index, .stream = w->queue.stream, .ticket_base = w->queue.ticket_base,
                    .device = w->ctx->device_state };
    if (node->ticket != RW_NONE_ID) k.ticket = rw_plan_ticket(w->t, node);
    if (step->n_words > n_in + n_out) {
        k.workspace = memory_of(w, words[n_in + n_out]);
        k.workspace_bytes = p->workspaces[w->workspace++].bytes;
        note_use(w, words[n_in + n_out], k.workspace_bytes);
    }
    rw_status status = observer && observer->before ? observer->before(observer, p, index, &k) : RW_OK;
    rw_fault_before(w->t, p, step, &k);
    if (!status) {
        const rw_kernel_fn kernel = op->kernel[w->ctx->kind];
        status = kernel ? kernel(&k) : RW_ERR_UNSUPPORTED;
        if (status) return kernel_failed(w->ctx, node, status);
    }
    rw_fault_after(w->t, p, step, &k);
    if (!status && observer && observer->after) status = observer->after(observer, p, index, &k);
    return status;
}

/* Regions and replays, as a profiler shows them. */
static void name_range(struct walk *w, const struct rw_action *step)
{
    static const char *const kinds[] = { [RW_ACTION_FORWARD] = "forward",
                                         [RW_ACTION_REPLAY] = "replay",
                                         [RW_ACTION_BACKWARD] = "backward",
                                         [RW_ACTION_COMMIT] = "commit" };
    const uint32_t region = rw_node_region(w->t, rw_plan_node(w->t, w->plan, step->node));
    if (region == w->region && step->kind == w->kind) return;
    if (w->region != RW_NONE_ID) w->ctx->device->range(w->ctx->device_state, NULL);
    w->region = region;
    w->kind = step->kind;
    if (region == RW_NONE_ID) return;
    char path[256], text[300];
    rw_region_path(w->t, region, path, sizeof path);
    snprintf(text, sizeof text, "%s %s", kinds[step->kind], path);
    w->ctx->device->range(w->ctx->device_state, text);
}

rw_status rw_plan_prepare(rw_tape *t, const rw_plan *plan, struct rw_plan_memory *memory)
{
    rw_context *const ctx = t->ctx;
    rw_status status = prepare_arena(ctx, plan);
    if (!status) status = prepare_results(t, plan);
    if (status) return rw_fail(ctx, RW_ERR_MEMORY, "run: out of memory (the arena takes %llu bytes)",
                               (unsigned long long)plan->arena_bytes);
    memory->arena = ctx->arena;
    return resolve_sources(t, plan, memory->sources);
}

void rw_plan_spoil(rw_tape *t, const rw_plan *plan, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        const struct rw_action *const step = &plan->actions[i];
        const struct rw_node *const node = rw_plan_node(t, plan, step->node);
        for (uint32_t k = 0; k < node->n_outputs; k++) {
            const uint32_t word = plan->words[step->word + node->n_inputs + k];
            if (!rw_word_is(plan, word, RW_SOURCE_GRADIENT)) continue;
            struct rw_param *const p = t->ctx->params[plan->sources[rw_word_source(word)].index];
            p->grad_spoiled = !p->grad_clear; /* what was clear still is: it was written, and nobody reads that */
        }
    }
}

rw_status rw_plan_queue(rw_tape *t, rw_plan *plan, const struct rw_plan_memory *memory, size_t from, size_t to,
                        struct rw_observer *observer)
{
    rw_context *const ctx = t->ctx;
    struct walk w = { .t = t, .ctx = ctx, .plan = plan, .arena = memory->arena, .sources = memory->sources,
                      .workspace = workspace_at(plan, from), .region = RW_NONE_ID,
                      .views = rw_malloc(plan->most_operands * sizeof *w.views) };
    if (!w.views) return rw_fail(ctx, RW_ERR_MEMORY, "run: out of memory");
    RW_ON_DEVICE_OF(ctx);
    if (ctx->device->queue) w.queue = ctx->device->queue(ctx->device_state);
    struct rw_trace *const trace = observer ? NULL
                                            : ctx->trace; /* a watched run is the verifier's, not the program's */
    rw_status status = trace ? rw_trace_begin(trace, ctx, to - from) : RW_OK;
    size_t reached = from;
    for (size_t i = from; !status && i < to; reached = ++i) {
        if (ctx->device->range) name_range(&w, &plan->actions[i]);
        if (trace) rw_trace_step(trace, ctx, i - from);
        status = run_step(&w, i, observer);
    }
    if (status) rw_plan_spoil(t, plan, from, reached);
    if (trace && !status) rw_trace_step(trace, ctx, to - from);
    if (ctx->device->range && w.region != RW_NONE_ID) ctx->device->range(ctx->device_state, NULL);
    if (from == 0) ctx->memory.measured_peak = 0;
    if (w.highest > ctx->memory.measured_peak) ctx->memory.measured_peak = w.highest;
    rw_free(w.views);
    return status;
}

rw_status rw_plan_wait(rw_tape *t, const rw_plan *plan)
{
    rw_context *const ctx = t->ctx;
    uint32_t bad = 0;
    const rw_status status = ctx->device->finish(ctx->device_state, &bad);
    if (status == RW_ERR_MISMATCH) return rw_replays_report(t, plan, bad);
    if (status == RW_ERR_ARGUMENT) return kernel_failed(ctx, rw_plan_node(t, plan, plan->actions[bad].node), status);
    return status ? rw_fail(ctx, status, "run: the device failed") : RW_OK;
}

rw_status rw_launched_wait(rw_context *ctx)
{
    rw_tape *const t = ctx->launched;
    rw_plan *const plan = ctx->launched_plan;
    if (!t) return RW_OK;
    ctx->launched = NULL;
    ctx->launched_plan = NULL;
    const rw_status status = rw_plan_wait(t, plan);
    if (status) rw_zero_grad(ctx); /* as after a launch that fails at once */
    rw_plan_release(plan);
    return status;
}

rw_status rw_plan_run(rw_tape *t, rw_plan *plan, size_t from, size_t to, struct rw_observer *observer)
{
    rw_context *const ctx = t->ctx;
    struct rw_plan_memory memory = { .sources = rw_malloc(plan->n_sources * sizeof *memory.sources) };
    if (!memory.sources) return rw_fail(ctx, RW_ERR_MEMORY, "run: out of memory");
    rw_status status = rw_launched_wait(ctx);
    if (!status) status = rw_plan_prepare(t, plan, &memory);
    if (!status && ctx->device->set_ticket_base)
        status = ctx->device->set_ticket_base(ctx->device_state, t->ticket_base);
    if (!status) status = rw_plan_queue(t, plan, &memory, from, to, observer);
    const rw_status waited = rw_plan_wait(t, plan); /* after a failure too: what was queued reads memory that may go */
    if (waited && !status) rw_plan_spoil(t, plan, from, to);
    if (ctx->trace && !observer && !status && !waited) rw_trace_write(ctx->trace, t, plan, from, to);
    rw_free(memory.sources);
    return status ? status : waited;
}

/* Results */

/*
 * A stateful node has run and will not run again on this tape. A commit has written its buffers: whoever computes from
 * them from now on sees other values than this step did.
 */
static void note_effect(rw_tape *t, const rw_plan *plan, size_t index)
{
    const struct rw_action *const step = &plan->actions[index];
    if (step->node >= plan->mark_nodes) return;
    const struct rw_node *const node = &t->nodes[step->node];
    if (t->ctx->ops[node->op]->flags & RW_OP_STATEFUL) rw_tape_effect(t, step->node)->done = true;
    if (step->kind != RW_ACTION_COMMIT) return;
    for (uint32_t i = 0; i < node->n_outputs; i++) {
        const uint32_t to = rw_word_source(plan->words[step->word + node->n_inputs + i]);
        t->ctx->params[plan->sources[to].index]->version++;
    }
}

static bool produced_in(const rw_tape *t, const rw_plan *plan, const struct rw_result *r, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        const struct rw_node *const node = rw_plan_node(t, plan, plan->actions[i].node);
        if (plan->actions[i].kind != RW_ACTION_REPLAY && r->value - node->first_output < node->n_outputs) return true;
    }
    return false;
}

static rw_status hold(rw_tape *t, const rw_plan *plan, const struct rw_result *r)
{
    if (rw_tape_held(t, r->value)) return RW_OK;
    if (!rw_grow(&t->held, &t->cap_held, t->n_held, 1, sizeof *t->held)) return RW_ERR_MEMORY;
    t->held[t->n_held++] = (struct rw_held){ r->value, (uint32_t)(block_of(t, plan) - t->blocks), r->offset };
    return RW_OK;
}

static rw_status hand_out_gradient(rw_tape *t, const rw_plan *plan, const struct rw_result *r)
{
    struct rw_tensor *handle = NULL;
    for (size_t i = 0; !handle && i < t->n_gradients; i++)
        if (t->gradients[i]->id == r->of) handle = t->gradients[i];
    if (!handle) {
        if (!rw_grow(&t->gradients, &t->cap_gradients, t->n_gradients, 1, sizeof *t->gradients)) return RW_ERR_MEMORY;
        handle = rw_malloc(sizeof *handle);
        if (!handle) return RW_ERR_MEMORY;
        t->gradients[t->n_gradients++] = handle;
    }
    /* producer and leaf are free in a handle: they say in which block and where the elements lie. */
    *handle = (struct rw_tensor){ .owner.tape = t, .id = r->of, .layout = r->layout, .dtype = r->dtype,
                                  .flags = RW_VALUE_GRADIENT, .producer = (uint32_t)(block_of(t, plan) - t->blocks),
                                  .leaf = (uint32_t)(r->offset / RW_RESULT_ALIGNMENT) };
    return RW_OK;
}

rw_status rw_plan_settle(rw_tape *t, const rw_plan *plan, size_t from, size_t to)
{
    rw_context *const ctx = t->ctx;
    rw_status status = RW_OK;
    const bool whole = from == 0 && to == plan->n_actions;
    for (size_t i = 0; !status && i < plan->n_results; i++) {
        const struct rw_result *const r = &plan->results[i];
        if (r->of_param || (!whole && !produced_in(t, plan, r, from, to))) continue;
        status = r->of == RW_NONE_ID ? hold(t, plan, r) : hand_out_gradient(t, plan, r);
    }
    if (status) return rw_fail(ctx, status, "run: out of memory");
    for (size_t i = from; plan->n_effects && i < to; i++) note_effect(t, plan, i);
    if (to != plan->n_actions) return RW_OK;
    for (size_t i = 0; i < plan->n_gradients; i++) ctx->params[plan->gradients[i].param]->grad_clear = false;
    return RW_OK;
}
