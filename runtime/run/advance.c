/* Runs: found, made, advanced, waited for, ended. See advance.h; the loop over actions is in walk.c. */
#include "run/advance.h"

#include "plan/cache.h"
#include "plan/fits.h"
#include "base/alloc.h"
#include "record/own_ops.h"
#include "run/sources.h"
#include "run/total.h"
#include "run/walk.h"

#include <assert.h>
#include <string.h>

static rw_context *context_of(const struct rw_run *r)
{
    return r->tape->ctx;
}

bool rw_run_is_valid(const struct rw_run *r)
{
    const rw_plan *const p = r->plan;
    if (!p || p->references < 1 || !r->results || r->results->references < 2) return false;
    if (r->next_action > p->n_actions || r->settled > r->next_action || r->n_observers > RW_RUN_OBSERVERS) return false;
    if (r->arena && (!r->arena->lent || r->arena->bytes < p->arena_bytes + 2 * r->margin)) return false;
    switch ((enum rw_run_state)r->state) {
    case RW_RUN_NEW: return r->next_action == 0;
    case RW_RUN_STOPPED:
        return r->next_action < p->n_actions && (r->arena != NULL) == (p->arena_bytes > 0) &&
               (r->store != NULL) == (p->store_bytes > 0);
    case RW_RUN_QUEUED:
    case RW_RUN_DONE: return r->next_action == p->n_actions && !r->arena;
    case RW_RUN_FAILED: return !r->arena;
    }
    return false;
}

/* ---- making and ending ---- */

static void set_state(struct rw_run *r, enum rw_run_state state)
{
    struct rw_pool *const pool = context_of(r)->pool;
    pool->n_stopped += (state == RW_RUN_STOPPED) - (r->state == RW_RUN_STOPPED);
    r->state = (uint8_t)state;
}

static void give_arena_back(struct rw_run *r)
{
    if (r->arena) rw_arena_give_back(r->arena);
    if (r->store) rw_arena_give_back(r->store);
    if (r->arena) r->had = r->arena;
    r->arena = r->store = NULL;
}

static struct rw_run *take_spare(rw_context *ctx)
{
    struct rw_run *r = ctx->pool->spare;
    if (r) {
        ctx->pool->spare = r->next;
    } else {
        r = rw_calloc(1, sizeof *r);
        if (r && ctx->device->make_words && !(r->words = ctx->device->make_words(ctx->device_state))) {
            rw_free(r);
            r = NULL;
        }
    }
    return r;
}

/* What a spare run keeps for the next. */
static void make_spare(rw_context *ctx, struct rw_run *r)
{
    *r = (struct rw_run){ .next = ctx->pool->spare, .sources = r->sources, .cap_sources = r->cap_sources,
                          .views = r->views, .cap_views = r->cap_views, .words = r->words,
                          .events = r->events, .n_events = r->n_events, .ones = r->ones, .ones_of = r->ones_of,
                          .n_ones = r->n_ones };
    ctx->pool->spare = r;
}

/* Two events for each action beside the compute lane. */
static bool make_events(struct rw_run *r, size_t n)
{
    const rw_context *const ctx = context_of(r);
    if (!ctx->device->make_events || r->n_events >= n) return true;
    struct rw_events *const events = ctx->device->make_events(ctx->device_state, n);
    if (!events) return false;
    if (r->events) ctx->device->free_events(ctx->device_state, r->events);
    r->events = events;
    r->n_events = n;
    return true;
}

static rw_status attach_observers(struct rw_run *r)
{
    rw_status status = RW_OK;
    for (struct rw_attach *a = context_of(r)->attach; !status && a; a = a->next) {
        struct rw_observer *o = NULL;
        status = a->attach(a, r, &o);
        if (!status && o) rw_run_watch(r, o);
    }
    return status;
}

void rw_run_watch(struct rw_run *r, struct rw_observer *o)
{
    assert(r->n_observers < RW_RUN_OBSERVERS);
    r->observer[r->n_observers++] = o;
}

rw_status rw_run_make(rw_tape *t, rw_plan *plan, unsigned flags, struct rw_run **ret_run)
{
    rw_context *const ctx = t->ctx;
    struct rw_run *const r = take_spare(ctx);
    if (!r) return rw_fail(ctx, RW_ERR_MEMORY, "run: out of memory");
    r->tape = t;
    r->plan = plan;
    r->flags = (uint8_t)flags;
    r->next = t->runs;
    t->runs = r;
    plan->references++;
    r->n_effects = t->n_effects;
    r->n_retained = t->n_retained;
    r->results = rw_results_take(t, plan);
    rw_status status = r->results && rw_grow(&r->sources, &r->cap_sources, 0, plan->n_sources, sizeof *r->sources) &&
                               rw_grow(&r->views, &r->cap_views, 0, plan->most_operands, sizeof *r->views) &&
                               make_events(r, 2 * plan->n_aside)
                           ? RW_OK
                           : RW_ERR_MEMORY;
    if (!status) status = attach_observers(r);
    if (status) {
        rw_run_end(r);
        return rw_fail(ctx, status, "run: %s", rw_status_name(status));
    }
    *ret_run = r;
    return RW_OK;
}

static void leave_queue(struct rw_run *r)
{
    for (struct rw_run **link = &context_of(r)->pool->queued; *link; link = &(*link)->next_queued) {
        if (*link != r) continue;
        *link = r->next_queued;
        return;
    }
}

void rw_run_end(struct rw_run *r)
{
    if (!r) return;
    rw_context *const ctx = context_of(r);
    for (int i = r->n_observers; i-- > 0;)
        if (r->observer[i]->detach) r->observer[i]->detach(r->observer[i], r);
    leave_queue(r);
    give_arena_back(r);
    ctx->device->free(ctx->device_state, r->own_gradients);
    set_state(r, RW_RUN_DONE);
    rw_results_release(ctx, r->results);
    rw_plan_release(r->plan);
    struct rw_run **link = &r->tape->runs;
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    make_spare(ctx, r);
}

void rw_run_restart(struct rw_run *r)
{
    give_arena_back(r);
    set_state(r, RW_RUN_NEW);
    r->next_action = r->settled = r->from = r->reached = 0;
}

/* ---- finding ---- */

/* What may run only once and is still to come in this run: has somebody else run it since it stopped? */
static bool has_been_overtaken(const struct rw_run *r)
{
    const rw_tape *const t = r->tape;
    if (t->n_held == r->n_held && !r->plan->n_effects) return false;
    for (size_t i = r->next_action; i < r->plan->n_actions; i++) {
        const struct rw_action *const a = &r->plan->actions[i];
        if (a->node >= r->plan->mark_nodes || (a->kind != RW_ACTION_FORWARD && a->kind != RW_ACTION_COMMIT)) continue;
        const struct rw_node *const node = &t->nodes[a->node];
        const uint32_t flags = t->ctx->ops[node->op]->flags;
        if ((flags & RW_OP_STATEFUL) && rw_tape_effect(t, a->node)->done) return true;
        if ((flags & RW_OP_NONDETERMINISTIC) && node->n_outputs && rw_tape_held(t, node->first_output)) return true;
    }
    return false;
}

/* Nodes that were recorded since are none of its business: a plan names what stood before its own mark. */
static bool goes_on(const struct rw_run *r)
{
    const rw_tape *const t = r->tape;
    return r->n_effects == t->n_effects && r->n_retained == t->n_retained && !has_been_overtaken(r);
}

/* A plan that is given what it begins with can be given ones. */
static bool is_of(const rw_plan *p, const struct rw_request *q)
{
    return p->n_roots == q->n_values && (p->seeded || !q->seeded) &&
           !memcmp(p->roots, q->values, p->n_roots * sizeof *p->roots);
}

struct rw_run *rw_run_stopped(const rw_tape *t, const struct rw_request *q)
{
    for (struct rw_run *r = t->runs; r && q->kind == RW_PLAN_STEP; r = r->next)
        if (r->state == RW_RUN_STOPPED && !r->flags && is_of(r->plan, q)) return r;
    return NULL;
}

static struct rw_run *stopped_first(const rw_context *ctx, const struct rw_run *but)
{
    struct rw_run *found = NULL;
    for (const rw_tape *t = ctx->tapes; t; t = t->next)
        for (struct rw_run *r = t->runs; r; r = r->next)
            if (r->state == RW_RUN_STOPPED && r != but && (!found || r->stopped_at < found->stopped_at)) found = r;
    return found;
}

/* Under `total:` steps that wait give theirs, too, where all that is free is not enough. False: nor is that. */
static bool make_room(struct rw_run *r, size_t bytes)
{
    while (!rw_total_fits(r, bytes)) {
        struct rw_run *const other = stopped_first(context_of(r), r);
        if (!other) return false;
        rw_run_end(other);
    }
    return true;
}

rw_status rw_run_find(rw_tape *t, const struct rw_request *request, struct rw_run **ret_run)
{
    if (rw_is_called_by_a_kernel(t->ctx, "running a step")) return RW_ERR_ARGUMENT;
    struct rw_run *const stopped = rw_run_stopped(t, request);
    if (stopped && goes_on(stopped) && make_room(stopped, 0)) {
        *ret_run = stopped;
        return RW_OK;
    }
    rw_run_end(stopped); /* nobody will go on with it, or not with so much */
    rw_plan *plan;
    rw_status status = rw_plan_get(t, request, &plan);
    if (!status) status = rw_plan_check_size(t, request, plan);
    return status ? status : rw_run_make(t, plan, 0, ret_run);
}

/* ---- memory ---- */

size_t rw_runs_waiting(const rw_context *ctx)
{
    size_t bytes = 0;
    for (const rw_tape *t = ctx->pool->n_stopped ? ctx->tapes : NULL; t; t = t->next)
        for (const struct rw_run *r = t->runs; r; r = r->next)
            if (r->state == RW_RUN_STOPPED)
                bytes += (r->arena ? r->arena->bytes : 0) + (r->store ? r->store->bytes : 0);
    return bytes;
}

/* When there is no memory for one more arena, steps that wait for their backward give theirs: they will be computed
   again. */
static rw_status borrow(struct rw_run *r)
{
    rw_context *const ctx = context_of(r);
    const size_t bytes = r->plan->arena_bytes ? r->plan->arena_bytes + 2 * r->margin : 0;
    rw_status no_store = RW_OK;
    if (!make_room(r, r->arena ? 0 : bytes)) return rw_total_refuse(r);
    if (r->arena || !bytes) return RW_OK;
    for (;;) {
        rw_status status = rw_arena_borrow(ctx, &ctx->pool->arenas, r->had, bytes, &r->arena);
        if (!status && r->plan->store_bytes) {
            status = rw_arena_borrow(ctx, &ctx->pool->stores, NULL, r->plan->store_bytes, &r->store);
            no_store = status;
        }
        if (!status) return RW_OK;
        give_arena_back(r);
        struct rw_run *const other = stopped_first(ctx, r);
        if (!other) break;
        rw_run_end(other);
    }
    r->had = NULL;
    if (no_store)
        return rw_fail(ctx, no_store, "run: values that are moved out find no room (%llu bytes in a store of kind %s)",
                       (unsigned long long)r->plan->store_bytes, ctx->store.fns->name);
    return rw_fail(ctx, RW_ERR_MEMORY, "run: out of memory (the arena takes %llu bytes)", (unsigned long long)bytes);
}

static void add_work(rw_cost *all, const rw_cost *one)
{
    all->forward_flops += one->forward_flops, all->forward_bytes += one->forward_bytes;
    all->replayed_flops += one->replayed_flops, all->replayed_bytes += one->replayed_bytes;
    all->backward_flops += one->backward_flops, all->backward_bytes += one->backward_bytes;
    all->forward_nodes += one->forward_nodes;
    all->replayed_nodes += one->replayed_nodes;
    all->backward_nodes += one->backward_nodes;
}

static void note_memory(rw_context *ctx, const rw_plan *plan)
{
    ctx->memory.kept = plan->kept_bytes;
    ctx->memory.replayed = plan->replayed_bytes;
    ctx->memory.workspace = plan->workspace_bytes;
    ctx->memory.used_up = plan->used_up_bytes;
    ctx->memory.largest_live = plan->largest_live;
    ctx->memory.predicted_peak = plan->arena_bytes;
}

/* ---- advancing ---- */

rw_status rw_run_prepare(struct rw_run *r, size_t to)
{
    rw_context *const ctx = context_of(r);
    assert(rw_run_is_valid(r));
    r->threads = r->plan->threads;
    r->company = rw_company_of(&ctx->pool->companies, r->plan->serial);
    rw_status status = ctx->device->on_host ? rw_team(ctx, "run", r->plan->threads, &r->threads) : RW_OK;
    if (!status) status = rw_run_resolve(r, r->next_action, to);
    if (!status && !rw_results_reserve(r->tape, r->plan)) status = rw_fail(ctx, RW_ERR_MEMORY, "run: out of memory");
    if (!status) status = borrow(r);
    if (!status && ctx->device->set_ticket_base) {
        status = ctx->device->set_ticket_base(ctx->device_state, r->tape->ticket_base);
        if (status) rw_fail(ctx, status, "run: the device failed");
    }
    if (status && r->state == RW_RUN_NEW) give_arena_back(r);
    if (!status && !(r->flags & RW_RUN_UPDATE)) note_memory(ctx, r->plan);
    return status;
}

/* A whole that was being added to gradients has failed: they are no sums. What was clear still is: it was written, and
   nobody reads that. */
static void spoil(const struct rw_run *r, size_t from, size_t to)
{
    const rw_plan *const p = r->plan;
    if (r->flags & (RW_RUN_REHEARSAL | RW_RUN_PRIVATE)) return;
    for (size_t i = from; i < to; i++) {
        const struct rw_action *const a = &p->actions[i];
        const struct rw_node *const node = rw_plan_node(r->tape, p, a->node);
        for (uint32_t k = 0; !rw_action_is_move(a->kind) && k < node->n_outputs; k++) {
            const uint32_t word = p->words[a->word + node->n_inputs + k];
            if (!rw_word_is(p, word, RW_SOURCE_GRADIENT)) continue;
            struct rw_param *const param = context_of(r)->by_id[p->sources[rw_word_source(word)].index];
            param->grad_spoiled = !param->grad_clear;
        }
    }
}

static void tell_end(struct rw_run *r, rw_status status, size_t action)
{
    for (int i = 0; i < r->n_observers; i++)
        if (r->observer[i]->end) r->observer[i]->end(r->observer[i], r, status, action);
}

/* Nothing of the run is under way any more: what it has added to gradients is marked. */
static void give_up(struct rw_run *r, rw_status status, size_t action)
{
    rw_context *const ctx = context_of(r);
    tell_end(r, status, action);
    if (status == RW_ERR_ARGUMENT) rw_walk_failed(r, action, status);
    rw_fail(ctx, status, status == RW_ERR_MISMATCH ? "run: a comparison failed" : "run: the device failed");
    if (r->flags & RW_RUN_CLEARS) {
        rw_zero_grad(ctx);
        for (struct rw_run *behind = r->next_queued; behind; behind = behind->next_queued) behind->flags |= RW_RUN_LOST;
    } else {
        spoil(r, r->from, r->reached);
    }
    if (r->store) rw_store_close(ctx, r->store); /* it may be what failed: the next run opens another */
    give_arena_back(r);
    set_state(r, RW_RUN_FAILED);
}

/* What kernels of the run have to say, now that they have run: RW_ERR_ARGUMENT or RW_ERR_MISMATCH at *ret_action. */
static rw_status read_words(struct rw_run *r, size_t *ret_action)
{
    if (!r->words) return RW_OK;
    const struct rw_run_words words = *r->words;
    *r->words = (struct rw_run_words){ 0 };
    *ret_action = (words.bad_index ? words.bad_index : words.bad_comparison) - 1u;
    return words.bad_index ? RW_ERR_ARGUMENT : words.bad_comparison ? RW_ERR_MISMATCH : RW_OK;
}

rw_status rw_run_fail(struct rw_run *r, rw_status status)
{
    rw_context *const ctx = context_of(r);
    size_t action = 0;
    ctx->device->finish(ctx->device_state); /* what was queued reads memory that may go */
    leave_queue(r);
    read_words(r, &action);
    if (!ctx->status) rw_fail(ctx, status, "run: %s", rw_status_name(status));
    give_up(r, status, 0);
    return status;
}

/* Where a step stops, all that is outside has arrived: what was moved by the host itself, and what no device can tell
   that it failed. */
static rw_status await_copies(const struct rw_run *r, size_t to)
{
    rw_context *const ctx = context_of(r);
    if (!r->store || to == r->plan->n_actions) return RW_OK;
    if (!ctx->device->on_host && !r->store->fns->in_file) return RW_OK;
    const rw_status status = ctx->device->finish(ctx->device_state);
    return status ? rw_fail(ctx, status, "run: what was moved out did not arrive") : RW_OK;
}

static rw_status walk(struct rw_run *r, size_t to)
{
    rw_context *const ctx = context_of(r);
    ctx->running = true;
    const rw_status status = rw_walk(r, r->from, to, &r->reached);
    const bool disturbed = ctx->disturbed;
    ctx->running = ctx->disturbed = false;
    return !status && disturbed ? RW_ERR_ARGUMENT : status;
}

rw_status rw_run_walk(struct rw_run *r, size_t to)
{
    rw_status status = RW_OK;
    r->from = r->reached = r->next_action;
    for (int i = r->n_observers; !status && i-- > 0;)
        if (r->observer[i]->begin) status = r->observer[i]->begin(r->observer[i], r, r->from, to);
    if (!status) status = walk(r, to);
    return status ? status : await_copies(r, to);
}

static void join_queue(struct rw_run *r)
{
    struct rw_run **link = &context_of(r)->pool->queued;
    for (; *link; link = &(*link)->next_queued)
        if (*link == r) return;
    r->next_queued = NULL;
    *link = r;
}

void rw_run_is_queued(struct rw_run *r, size_t to)
{
    struct rw_pool *const pool = context_of(r)->pool;
    r->from = r->next_action;
    r->reached = r->next_action = to;
    join_queue(r);
    if (to == r->plan->n_actions) {
        give_arena_back(r);
        const bool counts = !(r->flags & (RW_RUN_REHEARSAL | RW_RUN_UPDATE)) && r->plan->kind == RW_PLAN_STEP;
        if (counts) add_work(&context_of(r)->work, &r->plan->cost);
        set_state(r, RW_RUN_QUEUED);
        return;
    }
    set_state(r, RW_RUN_STOPPED);
    r->stopped_at = ++pool->clock;
    while (pool->n_stopped > 1 &&
           (pool->n_stopped > RW_RUNS_STOPPED_MOST || rw_runs_waiting(context_of(r)) > pool->waiting_most))
        rw_run_end(stopped_first(context_of(r), r));
}

rw_status rw_run_advance(struct rw_run *r, size_t to)
{
    rw_status status = rw_run_prepare(r, to);
    if (status) return status;
    status = rw_run_walk(r, to);
    if (status) return rw_run_fail(r, status);
    rw_run_is_queued(r, to);
    return RW_OK;
}

/* ---- waiting ---- */

rw_status rw_runs_wait(rw_context *ctx)
{
    struct rw_pool *const pool = ctx->pool;
    if (!pool->queued) return RW_OK;
    const rw_status finished = ctx->device->finish(ctx->device_state);
    rw_status first = RW_OK;
    while (pool->queued) {
        struct rw_run *const r = pool->queued;
        size_t action = 0;
        rw_status status = read_words(r, &action);
        if (finished) status = finished;
        if (!first) first = status;
        if (status) give_up(r, status, action);
        else tell_end(r, RW_OK, 0);
        pool->queued = r->next_queued;
        if (r->state == RW_RUN_QUEUED) set_state(r, RW_RUN_DONE);
        assert(rw_run_is_valid(r));
    }
    return first;
}

/* ---- what a run leaves behind ---- */

/*
 * A stateful node has run and will not run again on this tape. A commit has written its buffers: whoever computes
 * from them from now on sees other values than this step did. What planning recorded is counted by who had it recorded;
 * but for amaxes, which nobody asks for.
 */
static void note_effect(const struct rw_run *r, const struct rw_action *a)
{
    const rw_plan *const p = r->plan;
    rw_tape *const t = r->tape;
    if (rw_action_is_move(a->kind)) return;
    const struct rw_node *const node = rw_plan_node(t, p, a->node);
    const rw_op_def *const op = t->ctx->ops[node->op];
    if (a->node >= p->mark_nodes && op != &rw_op_note_amax) return;
    if (a->node < p->mark_nodes && (op->flags & RW_OP_STATEFUL)) rw_tape_effect(t, a->node)->done = true;
    if (a->kind != RW_ACTION_COMMIT) return;
    for (uint32_t i = 0; i < node->n_outputs; i++) {
        const uint32_t to = rw_word_source(p->words[a->word + node->n_inputs + i]);
        t->ctx->by_id[p->sources[to].index]->version++;
    }
}

static rw_status hold_results(struct rw_run *r)
{
    const rw_plan *const p = r->plan;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < p->n_sources; i++) {
        const struct rw_source *const s = &p->sources[i];
        if (s->kind != RW_SOURCE_RESULT || s->first < r->settled || s->first >= r->next_action) continue;
        const struct rw_result *const result = &p->results[s->index];
        status = result->of == RW_NONE_ID ? rw_results_hold(r->tape, r->results, result)
                                          : rw_results_hand_out(r->tape, r->results, result);
    }
    return status;
}

rw_status rw_run_settle(struct rw_run *r)
{
    rw_context *const ctx = context_of(r);
    const rw_plan *const p = r->plan;
    const rw_status status = hold_results(r);
    if (status) {
        rw_fail(ctx, status, "run: out of memory");
        give_up(r, status, 0);
        return status;
    }
    for (size_t i = r->settled; p->n_effects && i < r->next_action; i++) note_effect(r, &p->actions[i]);
    r->settled = r->next_action;
    r->n_held = r->tape->n_held;
    if (r->next_action != p->n_actions || (r->flags & (RW_RUN_LOST | RW_RUN_REHEARSAL))) return RW_OK;
    for (size_t i = 0; i < p->n_gradients; i++) ctx->by_id[p->gradients[i]]->grad_clear = false;
    return RW_OK;
}

rw_status rw_run_through(struct rw_run *r, size_t to)
{
    rw_status status = rw_run_advance(r, to);
    if (!status) {
        status = rw_runs_wait(context_of(r));
        const rw_status settled = r->state == RW_RUN_FAILED ? RW_OK : rw_run_settle(r);
        if (!status) status = settled;
    }
    assert(rw_run_is_valid(r));
    if (r->state != RW_RUN_STOPPED) rw_run_end(r);
    return status;
}

/* ---- a tape's, a context's ---- */

void rw_runs_end(rw_tape *t)
{
    for (struct rw_run *r = t->runs, *next; r; r = next) {
        next = r->next;
        if (!(r->flags & RW_RUN_OWNED)) rw_run_end(r);
    }
}

void rw_runs_reset(rw_tape *t)
{
    bool queued = false;
    for (const struct rw_run *r = t->runs; r; r = r->next) queued |= r->state == RW_RUN_QUEUED;
    if (queued) rw_runs_wait(t->ctx);
    rw_runs_end(t);
    rw_results_forget(t);
}

rw_status rw_runs_init(rw_context *ctx, size_t waiting_most)
{
    ctx->pool = rw_calloc(1, sizeof *ctx->pool);
    if (!ctx->pool) return RW_ERR_MEMORY;
    ctx->pool->stores.outside = true;
    ctx->pool->waiting_most = waiting_most;
    return RW_OK;
}

void rw_runs_finish(rw_context *ctx)
{
    if (!ctx->pool) return;
    rw_runs_wait(ctx);
    while (ctx->attach) {
        struct rw_attach *const a = ctx->attach;
        ctx->attach = a->next;
        a->destroy(a);
    }
    while (ctx->pool->spare) {
        struct rw_run *const r = ctx->pool->spare;
        ctx->pool->spare = r->next;
        if (r->words) ctx->device->free_words(ctx->device_state, r->words);
        if (r->events) ctx->device->free_events(ctx->device_state, r->events);
        ctx->device->free(ctx->device_state, r->ones);
        rw_free(r->sources);
        rw_free(r->views);
        rw_free(r);
    }
    rw_arenas_finish(ctx, &ctx->pool->arenas);
    rw_arenas_finish(ctx, &ctx->pool->stores);
    rw_free(ctx->pool);
    ctx->pool = NULL;
}
