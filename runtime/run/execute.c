/* Executes the actions of a plan in their order. Per action it reads one 32-bit word per operand, turns it into an
   address (an offset in the arena, or a source that was resolved before), and calls the kernel; nothing is
   allocated. Rare cases cost one test per action: observers, other lanes, fused pairs. */
#include "run/execute.h"

#include "base/clock.h"
#include "base/float_mode.h"
#include "base/round_up.h"
#include "ops/common/pass_ops.h"
#include "run/copy_lane_sync.h"
#include "run/failure_message.h"

#include <stdio.h>

/* State of the loop: what is constant while a part of a run executes, and the current position. */
struct walk {
    struct rw_run *run;
    rw_tape *t;
    rw_context *ctx;
    const rw_plan *plan;
    char *arena;
    struct rw_device_queue queue[RW_LANES];
    struct rw_lanes lanes;
    size_t workspace; /* index of the next workspace of the plan */
    size_t fused;     /* index of the next fused pair of the plan */
    size_t next_fused; /* the action that it begins with; SIZE_MAX: none */
    uint32_t region;  /* the region last reported to the profiler */
    uint8_t kind;
};

/* Makes pair `i` of the plan the next one. */
static void set_fused(struct walk *w, size_t i)
{
    w->fused = i;
    w->next_fused = i < w->plan->n_fused ? w->plan->fused[i].first : SIZE_MAX;
}

static void pass_fused(struct walk *w)
{
    set_fused(w, w->fused + 1);
}

static inline void *memory_of(const struct walk *w, uint32_t word)
{
    return rw_word_is_source(word) ? w->run->sources[rw_word_source(word)] : w->arena + rw_word_offset(w->plan, word);
}

/* The operand of a kernel: its layout and type from the tape or the plan's tail, and its address. A view's offset is
   part of the address, so kernels never see it. */
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
    const bool moved = data && layout->offset; /* rare; the size of a type is a function call */
    return (rw_view){ moved ? data + (size_t)layout->offset * rw_dtype_size(dtype) : data, layout, dtype };
}

static inline uint64_t note_use(struct walk *w, uint32_t word, uint64_t bytes)
{
    if (rw_word_is_source(word)) return 0;
    const uint64_t end = rw_word_offset(w->plan, word) + rw_round_up(bytes, w->plan->unit);
    if (end > w->run->highest) w->run->highest = end;
    return end;
}

/* Index of the workspace of the first action at or after an action that has one. */
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

static void find_operands(struct walk *w, const struct rw_action *action, const struct rw_node *node, rw_view *views)
{
    const rw_plan *const p = w->plan;
    const uint32_t *const words = p->words + action->word;
    const uint32_t n_in = node->n_inputs, n_out = node->n_outputs;
    for (uint32_t i = 0; i < n_in; i++)
        views[i] = view_of(w, rw_plan_operand(w->t, p, node->first_input + i), words[i]);
    for (uint32_t i = 0; i < n_out; i++) {
        views[n_in + i] = view_of(w, node->first_output + i, words[n_in + i]);
        note_use(w, words[n_in + i], rw_view_span(&views[n_in + i]));
    }
}

/* All but the workspace. */
static inline rw_kernel kernel_of(const struct rw_run *r, const struct rw_action *action, const struct rw_at *at,
                                  const struct rw_device_queue *queue)
{
    const rw_plan *const p = r->plan;
    const rw_context *const ctx = r->tape->ctx;
    const struct rw_node *const node = at->node;
    const bool recorded = action->node < p->mark_nodes;
    const bool alone = (action->flags & RW_ACTION_ALONE) || (action->little && r->op_threads->alone);
    return (rw_kernel){ .op = ctx->ops[node->op],
                        .attrs = recorded ? r->tape->attrs + node->attrs : p->attrs + (node->attrs - p->mark_attrs),
                        .in = at->in, .out = at->out, .n_inputs = at->n_in, .n_outputs = at->n_out,
                        .ticket = at->ticket, .threads = alone ? 1 : r->threads,
                        .serial = (uint32_t)at->action, .stream = queue->stream, .ticket_base = queue->ticket_base,
                        .device = ctx->device_state, .words_ = r->words };
}

rw_kernel rw_execute_kernel(const struct rw_at *at)
{
    const struct rw_action *const action = &at->run->plan->actions[at->action];
    const rw_context *const ctx = at->run->tape->ctx;
    struct rw_device_queue queue = { 0 };
    if (ctx->device->queue) queue = ctx->device->queue(ctx->device_state, action->lane);
    return kernel_of(at->run, action, at, &queue);
}

/* Sets the action's workspace, whose word follows those of its operands. Workspaces are in the order of the actions,
   so it is the next one. */
static void give_workspace(struct walk *w, const struct rw_action *action, int operands, rw_kernel *k)
{
    const uint32_t word = w->plan->words[action->word + (uint32_t)operands];
    k->workspace = memory_of(w, word);
    k->workspace_bytes = w->plan->workspaces[w->workspace++].bytes;
    const uint64_t end = note_use(w, word, k->workspace_bytes);
    if (end > w->run->highest_workspace) w->run->highest_workspace = end;
}

static rw_status run_kernel(struct walk *w, const struct rw_action *action, const struct rw_at *at)
{
    rw_kernel k = kernel_of(w->run, action, at, &w->queue[action->lane]);
    if (action->n_words > at->n_in + at->n_out) give_workspace(w, action, at->n_in + at->n_out, &k);
    const rw_kernel_fn kernel = k.op->kernel[w->ctx->kind];
    if (!kernel) return rw_action_failed(w->run, at->action, NULL, 0, RW_ERR_UNSUPPORTED);
    const bool timed = action->little && w->run->threads > 1;
    const double begin = timed ? rw_now_s() : 0;
    const rw_status status = kernel(&k);
    rw_library_mode_keep();
    if (timed) rw_small_op_threads_note(w->run->op_threads, action->little, rw_now_s() - begin);
    const rw_view *const in = w->ctx->device->on_host ? at->in : NULL;
    if (status) return rw_action_failed(w->run, at->action, in, at->n_in, status);
    return w->ctx->edge.refused ? RW_ERR_ARGUMENT : RW_OK; /* an illegal call of the kernel: the error is recorded */
}

static const struct rw_plan_slot *slot_of(const rw_plan *p, const struct rw_action *move)
{
    const uint32_t word = p->words[move->word + (move->kind == RW_ACTION_OUT)];
    return &p->slots[p->sources[rw_word_source(word)].index];
}

/* The word of a copy's side in device memory. */
static uint32_t near_word(const rw_plan *p, const struct rw_action *move)
{
    return p->words[move->word + (move->kind == RW_ACTION_IN)];
}

/* Copies one value to its slot in the store, or back. */
static rw_status run_move(struct walk *w, const struct rw_action *move, const struct rw_at *at)
{
    const struct rw_store_fns *const store = w->run->store->fns;
    const struct rw_plan_slot *const slot = slot_of(w->plan, move);
    const uint32_t near = near_word(w->plan, move);
    void *const device = w->ctx->device_state, *const held = w->run->store->data;
    rw_status status;
    if (move->kind == RW_ACTION_OUT) {
        status = store->put(device, move->lane, held, slot->offset, memory_of(w, near), slot->bytes);
    } else {
        note_use(w, near, slot->bytes);
        status = store->get(device, move->lane, memory_of(w, near), held, slot->offset, slot->bytes);
    }
    return status ? rw_action_failed(w->run, at->action, NULL, 0, status) : RW_OK;
}

static rw_status run_watched(struct walk *w, const struct rw_action *action, struct rw_at *at)
{
    struct rw_run *const r = w->run;
    rw_status status = RW_OK;
    for (int i = r->n_observers; !status && i-- > 0;)
        if (r->observer[i]->before) status = r->observer[i]->before(r->observer[i], at);
    if (at->node) at->node = rw_plan_node(w->t, w->plan, action->node); /* observers may run kernels */
    if (!status) status = at->node ? run_kernel(w, action, at) : run_move(w, action, at);
    /* a custom kernel may have recorded, which moves the nodes */
    if (at->node) at->node = rw_plan_node(w->t, w->plan, action->node);
    for (int i = 0; !status && i < r->n_observers; i++)
        if (r->observer[i]->after) status = r->observer[i]->after(r->observer[i], at);
    return status;
}

/* Set member by member: copying a whole struct would wait for these stores, in every action. */
static void at_node(struct walk *w, size_t index, struct rw_at *at)
{
    const struct rw_action *const action = &w->plan->actions[index];
    const struct rw_node *const node = rw_plan_node(w->t, w->plan, action->node);
    rw_view *const views = w->run->views;
    find_operands(w, action, node, views);
    at->run = w->run;
    at->action = index;
    at->node = node;
    at->value = RW_NONE_ID;
    at->kind = action->kind;
    at->n_in = node->n_inputs;
    at->n_out = node->n_outputs;
    at->in = views;
    at->out = views + node->n_inputs;
    at->ticket = node->ticket != RW_NONE_ID ? rw_run_ticket(w->run, node) : (rw_ticket){ 0 };
}

/* For observers, a copy shows its side in device memory. */
static void at_move(struct walk *w, size_t index, struct rw_at *at)
{
    const struct rw_action *const move = &w->plan->actions[index];
    const uint32_t value = slot_of(w->plan, move)->value;
    const bool out = move->kind == RW_ACTION_OUT;
    rw_view *const view = w->run->views;
    *view = view_of(w, value, near_word(w->plan, move));
    *at = (struct rw_at){ .run = w->run, .action = index, .kind = move->kind, .value = value, .n_in = out,
                          .n_out = !out, .in = view, .out = view };
}

static rw_status run_action(struct walk *w, size_t index)
{
    const struct rw_action *const action = &w->plan->actions[index];
    const bool move = rw_action_is_move(action->kind);
    struct rw_at at;
    if (move) at_move(w, index, &at);
    else at_node(w, index, &at);
    if (w->run->n_observers) return run_watched(w, action, &at);
    return move ? run_move(w, action, &at) : run_kernel(w, action, &at);
}

/* The compute lane has waited for copies in: lets observers see the values that arrived. */
static rw_status show_arrivals(struct walk *w, size_t from, size_t to)
{
    struct rw_run *const r = w->run;
    rw_status status = RW_OK;
    for (size_t k = from; r->n_observers && k < to; k++) {
        const struct rw_wait *const wait = &w->plan->waits[k];
        if (w->plan->actions[wait->action].lane != RW_LANE_COMPUTE || w->plan->actions[wait->on].kind != RW_ACTION_IN)
            continue;
        struct rw_at at;
        at_move(w, wait->on, &at);
        for (int i = 0; !status && i < r->n_observers; i++)
            if (r->observer[i]->arrived) status = r->observer[i]->arrived(r->observer[i], &at);
    }
    return status;
}

static rw_status run_among_lanes(struct walk *w, size_t index)
{
    const size_t waits = w->lanes.wait;
    size_t on = index;
    rw_status status = rw_lanes_before(&w->lanes, &on);
    if (status) return on != index ? rw_action_failed(w->run, on, NULL, 0, status)
                                   : rw_fail(w->ctx, status, "run: the device failed");
    status = show_arrivals(w, waits, w->lanes.wait);
    if (!status) status = run_action(w, index);
    if (status) return status;
    status = rw_lanes_after(&w->lanes);
    return status ? rw_fail(w->ctx, status, "run: the device failed") : RW_OK;
}

/* ---- two actions in one kernel ---- */

/* The pair that begins with this action, if it may be executed as one now; else NULL. Observers see each action by
   itself, and a lane may wait at one of the two. */
static const struct rw_fused_actions *fused_at(struct walk *w, size_t index, size_t to)
{
    while (w->next_fused < index) pass_fused(w);
    if (w->next_fused > index) return NULL;
    const struct rw_fused_actions *const f = &w->plan->fused[w->fused];
    return f->last < to && f->last < w->lanes.next && !w->run->n_observers ? f : NULL;
}

/* Runs a fused pair. The action between them, if any, runs first, because the pair's kernel reads what it makes. */
static rw_status run_fused(struct walk *w, const struct rw_fused_actions *f)
{
    const struct rw_action *const first = &w->plan->actions[f->first], *const second = &w->plan->actions[f->last];
    const struct rw_node *const node[] = { rw_plan_node(w->t, w->plan, first->node),
                                           rw_plan_node(w->t, w->plan, second->node) };
    rw_view operand[2][RW_FUSED_OPERANDS], in[RW_FUSED_OPERANDS], out[RW_FUSED_OPERANDS];
    const uint32_t n_first = node[0]->n_inputs + node[0]->n_outputs, n_second = node[1]->n_inputs + node[1]->n_outputs;
    /* Only advances past the first action's workspace: the action between may write to that memory, and the second
       one's workspace serves both. */
    if (first->n_words > n_first) give_workspace(w, first, n_first, &(rw_kernel){ 0 });
    const rw_status filled = f->last > f->first + 1 ? run_action(w, f->first + 1) : RW_OK;
    if (filled) return filled;
    find_operands(w, first, node[0], operand[0]);
    find_operands(w, second, node[1], operand[1]);
    for (int i = 0; i < f->pair->n_in; i++) in[i] = operand[f->pair->in[i].of_second][f->pair->in[i].operand];
    for (int i = 0; i < f->pair->n_out; i++) out[i] = operand[f->pair->out[i].of_second][f->pair->out[i].operand];
    const struct rw_at at = { .run = w->run, .action = f->first, .node = node[0], .kind = first->kind,
                              .n_in = f->pair->n_in, .n_out = f->pair->n_out, .in = in, .out = out,
                              .value = RW_NONE_ID };
    rw_kernel k = kernel_of(w->run, first, &at, &w->queue[first->lane]);
    if (second->n_words > n_second) give_workspace(w, second, n_second, &k);
    const rw_status status = f->pair->kernel[w->ctx->kind](&k);
    return status ? rw_action_failed(w->run, f->first, NULL, 0, status) : RW_OK;
}

/* Executes the next action, or a fused pair: *index becomes the last one executed. */
static rw_status run_next(struct walk *w, size_t *index, size_t to)
{
    const struct rw_fused_actions *const f = w->next_fused > *index ? NULL : fused_at(w, *index, to);
    if (!f) return run_action(w, *index);
    const rw_status status = run_fused(w, f);
    if (!status) *index = f->last;
    return status;
}

/* Tells a profiler the regions, and whether they are replayed. */
static void name_range(struct walk *w, const struct rw_action *action)
{
    const uint32_t region = rw_node_region(w->t, rw_plan_node(w->t, w->plan, action->node));
    if (region == w->region && action->kind == w->kind) return;
    if (w->region != RW_NONE_ID) w->ctx->device->range(w->ctx->device_state, NULL);
    w->region = region;
    w->kind = action->kind;
    if (region == RW_NONE_ID) return;
    char path[256], text[300];
    rw_region_path(w->t, region, path, sizeof path);
    snprintf(text, sizeof text, "%s %s", rw_action_kind_name(action->kind), path);
    w->ctx->device->range(w->ctx->device_state, text);
}

/* The loop. `i == w.lanes.next` is the only test for other lanes, and run_next() the only one for fused pairs, so a
   plan of one lane without observers pays a comparison and a call per action. r->ran excludes the action that
   failed: its effects do not count. */
static rw_status walk_over(struct rw_run *r, size_t from, size_t to)
{
    rw_context *const ctx = r->tape->ctx;
    struct walk w = { .run = r, .t = r->tape, .ctx = ctx, .plan = r->plan, .arena = rw_run_arena(r),
                      .workspace = workspace_at(r->plan, from), .lanes = rw_lanes_at(r, from), .region = RW_NONE_ID };
    set_fused(&w, 0);
    RW_ON_DEVICE_OF(ctx);
    for (int lane = 0; ctx->device->queue && lane < RW_LANES; lane++)
        w.queue[lane] = ctx->device->queue(ctx->device_state, lane);
    rw_status status = RW_OK;
    size_t i = from;
    if (!from) r->highest = r->highest_workspace = 0;
    for (; !status && i < to; i++) {
        if (ctx->device->range) name_range(&w, &r->plan->actions[i]);
        if (i == w.lanes.next) status = run_among_lanes(&w, i);
        else status = run_next(&w, &i, to);
    }
    if (ctx->device->range && w.region != RW_NONE_ID) ctx->device->range(ctx->device_state, NULL);
    if (!(r->flags & RW_RUN_UPDATE)) ctx->memory.measured_peak = r->highest;
    if (i == r->plan->n_actions) rw_small_op_threads_judge(r->op_threads);
    r->reached = i;
    r->ran = status ? i - 1 : i;
    return status;
}

rw_status rw_execute(struct rw_run *r, size_t from, size_t to)
{
    struct rw_float_mode mode;
    rw_float_mode_enter(&mode);
    const rw_status status = walk_over(r, from, to);
    rw_float_mode_leave(&mode);
    return status;
}
