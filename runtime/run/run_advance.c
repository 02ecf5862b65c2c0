/* Executes parts of runs: acquires memory, runs the actions (the loop is in execute.c), waits, and commits results to
   the tape. After a failure it restores what must not change and marks gradients whose sums are incomplete. */
#include "run/run_advance.h"

#include "base/alloc.h"
#include "ops/common/pass_ops.h"
#include "record/gradient_state.h"
#include "run/commit_rollback.h"
#include "run/enforce_total_budget.h"
#include "run/execute.h"
#include "run/failure_message.h"
#include "run/source_addresses.h"

#include <assert.h>

/* ---- memory ---- */

size_t rw_runs_waiting(const rw_context *ctx)
{
    size_t bytes = 0;
    for (const rw_tape *t = rw_pool_of(ctx)->n_stopped ? ctx->tapes : NULL; t; t = t->next)
        for (const struct rw_run *r = rw_runs_of(t)->first; r; r = r->next)
            if (r->state == RW_RUN_STOPPED)
                bytes += (r->arena ? r->arena->bytes : 0) + (r->store ? r->store->bytes : 0);
    return bytes;
}

/* Borrows an arena, and a store if the plan offloads. If memory is exhausted, it frees unused results and discards
   suspended steps, the oldest first; they are recomputed later. */
static rw_status borrow(struct rw_run *r)
{
    rw_context *const ctx = rw_run_context(r);
    const size_t bytes = r->plan->arena_bytes ? r->plan->arena_bytes + 2 * r->margin : 0;
    rw_status no_store = RW_OK;
    if (!rw_run_make_room(r, r->arena ? 0 : bytes)) return rw_total_refuse(r);
    if (r->arena || !bytes) return RW_OK;
    for (;;) {
        rw_status status = rw_arena_borrow(ctx, &r->pool->arenas, r->had, bytes, &r->arena);
        if (!status && r->plan->store_bytes) {
            status = rw_arena_borrow(ctx, &r->pool->stores, NULL, r->plan->store_bytes, &r->store);
            no_store = status;
        }
        if (!status) return RW_OK;
        rw_run_give_arena_back(r);
        if (rw_results_free_unused(ctx)) continue;
        struct rw_run *const other = rw_runs_stopped_first(ctx, r);
        if (!other) break;
        rw_run_end(other);
    }
    r->had = NULL;
    if (no_store)
        return rw_fail(ctx, no_store, "run: offloaded values do not fit (%llu bytes in a store of kind %s)",
                       (unsigned long long)r->plan->store_bytes, ctx->store.fns->name);
    return rw_fail(ctx, RW_ERR_MEMORY, "run: out of memory (the arena takes %llu bytes)", (unsigned long long)bytes);
}

static void add_work(rw_cost *all, const rw_cost *one)
{
    all->forward_flops += one->forward_flops, all->forward_bytes += one->forward_bytes;
    all->replayed_flops += one->replayed_flops, all->replayed_bytes += one->replayed_bytes;
    all->backward_flops += one->backward_flops, all->backward_bytes += one->backward_bytes;
    all->model_flops += one->model_flops;
    all->forward_nodes += one->forward_nodes;
    all->replayed_nodes += one->replayed_nodes;
    all->backward_nodes += one->backward_nodes;
}

static void note_memory(rw_context *ctx, const rw_plan *plan)
{
    ctx->memory.kept = plan->kept_bytes;
    ctx->memory.replayed = plan->replayed_bytes;
    ctx->memory.workspace = plan->workspace_bytes;
    ctx->memory.consumed = plan->used_up_bytes;
    ctx->memory.largest_live = plan->largest_live;
    ctx->memory.predicted_peak = plan->arena_bytes;
}

/* ---- advancing ---- */

/* The order matters: everything that can fail on the host happens before an action is queued, so a failure changes
   nothing. Results are reserved before the arena, because a value that was computed must not be lost for lack of
   memory afterwards. */
rw_status rw_run_prepare(struct rw_run *r, size_t to)
{
    rw_context *const ctx = rw_run_context(r);
    assert(rw_run_is_valid(r));
    r->pool->active = r;
    r->threads = r->plan->threads;
    r->op_threads = rw_small_op_threads_of(&r->pool->op_threads, r->plan->serial);
    rw_status status = rw_check_runs(ctx, "run"); /* public calls have checked this before, under their own names */
    /* Plans of more threads have memory for each of them, and their kernels run in those that there are. */
    const int threads = r->threads < ctx->threads ? r->threads : ctx->threads;
    if (!status && ctx->device->on_host) status = rw_start_threads(ctx, "run", threads);
    if (!status) status = rw_run_resolve(r, r->next_action, to);
    if (!status && !rw_results_reserve(r->tape, r->plan)) status = rw_fail(ctx, RW_ERR_MEMORY, "run: out of memory");
    if (!status) status = borrow(r);
    if (!status && ctx->device->set_ticket_base) {
        status = ctx->device->set_ticket_base(ctx->device_state, rw_run_device_base(r));
        if (status) rw_fail(ctx, status, "run: the device failed");
    }
    if (status && r->state == RW_RUN_NEW) rw_run_give_arena_back(r);
    if (status) r->pool->active = NULL;
    if (!status && !(r->flags & RW_RUN_UPDATE)) note_memory(ctx, r->plan);
    return status;
}

/* Marks gradients as spoiled: this run was adding to them and failed, so their sums are incomplete. Gradients that
   were clear stay clear: the run only wrote them, and nothing reads their contents. */
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
            rw_gradient_spoil(&rw_run_context(r)->by_id[p->sources[rw_word_source(word)].index]->gradient);
        }
    }
}

/* ---- results and effects of a run ---- */

/*
 * Records the effect of an action. A stateful node that has run is done for this tape. A commit increments the version
 * of the buffers that it wrote, so later uses see that they differ from what this step read. Nodes that recorders added
 * (optimizers, clipping) keep their own accounts; commits with RW_OP_OWN_COUNTED, such as the amaxes of delayed
 * scaling, are counted here, because no caller does.
 */
static void note_effect(const struct rw_run *r, const struct rw_action *a)
{
    const rw_plan *const p = r->plan;
    rw_tape *const t = r->tape;
    if (rw_action_is_move(a->kind)) return;
    const struct rw_node *const node = rw_plan_node(t, p, a->node);
    const rw_op_def *const op = t->ctx->ops[node->op];
    if (a->node >= p->mark_nodes && !(op->flags & RW_OP_OWN_COUNTED)) return;
    if (a->node < p->mark_nodes && (op->flags & RW_OP_STATEFUL)) rw_tape_effect(t, a->node)->done = true;
    if (a->kind != RW_ACTION_COMMIT) return;
    for (uint32_t i = 0; i < node->n_outputs; i++) {
        const struct rw_source *const to = &p->sources[rw_word_source(p->words[a->word + node->n_inputs + i])];
        struct rw_param *const written = t->ctx->by_id[to->index];
        if (to->kind == RW_SOURCE_GRADIENT) rw_gradient_written(&written->gradient);
        else written->version++;
    }
}

/* True if the result is an output of a node that must not run twice. */
static bool runs_once(const struct rw_run *r, const struct rw_result *result)
{
    const rw_tape *const t = r->tape;
    if (result->of != RW_NONE_ID || result->value >= r->plan->mark_values) return false;
    const struct rw_node *const node = &t->nodes[rw_tape_value(t, result->value)->producer];
    return t->ctx->ops[node->op]->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC);
}

static bool is_outdated(const struct rw_run *r, const struct rw_result *result)
{
    if (!r->outdated || result->of != RW_NONE_ID || result->value >= r->plan->mark_values) return false;
    return r->outdated[rw_tape_value(r->tape, result->value)->producer];
}

/* Publishes results of actions before `to`. once_only: only outputs of nodes that must not run twice. */
static rw_status hold_results(struct rw_run *r, size_t to, bool once_only)
{
    const rw_plan *const p = r->plan;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < p->n_sources; i++) {
        const struct rw_source *const s = &p->sources[i];
        if (s->kind != RW_SOURCE_RESULT || s->first < r->settled || s->first >= to) continue;
        const struct rw_result *const result = &p->results[s->index];
        if (is_outdated(r, result) || (once_only && !runs_once(r, result))) continue;
        status = result->of == RW_NONE_ID ? rw_results_hold(r->tape, r->results, result)
                                          : rw_results_hand_out(r->tape, r->results, result);
    }
    return status;
}

/* After a failure: stateful nodes that ran have had their effect, so their outputs are kept for the next attempt.
   Commits were rolled back. A graph's next launch starts from the beginning and needs nothing. */
static void keep_what_runs_once(struct rw_run *r, size_t ran)
{
    if (r->flags & RW_RUN_CLEARS) return;
    if (hold_results(r, ran, true)) return; /* no memory, though prepare() has reserved it */
    for (size_t i = r->settled; r->plan->n_effects && i < ran; i++)
        if (r->plan->actions[i].kind != RW_ACTION_COMMIT) note_effect(r, &r->plan->actions[i]);
}

static void tell_end(struct rw_run *r, rw_status status, size_t action)
{
    for (int i = 0; i < r->n_observers; i++)
        if (r->observer[i]->end) r->observer[i]->end(r->observer[i], r, status, action);
}

/* Ends a failed run. None of its work is in flight; actions before `ran` have run. The order matters: commits are
   rolled back before results are published, and observers are notified before the error is recorded. `followers`:
   the runs that were queued after it. */
static void give_up(struct rw_run *r, rw_status status, size_t action, size_t ran, struct rw_run *followers)
{
    rw_context *const ctx = rw_run_context(r);
    rw_commit_rollback_restore(r);
    keep_what_runs_once(r, ran);
    tell_end(r, status, action);
    if (status == RW_ERR_ARGUMENT) rw_action_failed(r, action, NULL, 0, status);
    rw_fail(ctx, status, status == RW_ERR_MISMATCH ? "run: a comparison failed" : "run: the device failed");
    if (r->flags & RW_RUN_CLEARS) {
        rw_zero_grad(ctx);
        for (; followers; followers = followers->next_queued) followers->flags |= RW_RUN_LOST;
    } else {
        spoil(r, 0, r->reached);
    }
    if (r->store) rw_store_close(ctx, r->store); /* the store may have caused the failure: the next run opens another */
    rw_run_give_arena_back(r);
    rw_run_set_state(r, RW_RUN_FAILED);
}

/* Reads the error flags that kernels of the run have set on the device: RW_ERR_ARGUMENT or RW_ERR_MISMATCH, at
   action *ret_action. */
static rw_status read_words(struct rw_run *r, size_t *ret_action)
{
    if (!r->words) return RW_OK;
    const struct rw_error_flags words = *r->words;
    *r->words = (struct rw_error_flags){ 0 };
    *ret_action = (words.bad_index ? words.bad_index : words.bad_comparison) - 1u;
    return words.bad_index ? RW_ERR_ARGUMENT : words.bad_comparison ? RW_ERR_MISMATCH : RW_OK;
}

rw_status rw_run_fail(struct rw_run *r, rw_status status)
{
    rw_context *const ctx = rw_run_context(r);
    size_t action = 0;
    const rw_status finished = ctx->device->finish(ctx->device_state); /* queued work reads memory that may be freed
                                                                          below */
    struct rw_run *const followers = rw_run_leave_queue(r);
    read_words(r, &action);
    if (!ctx->status) rw_fail(ctx, status, "run: %s", rw_status_name(status));
    r->pool->tried = r->reached;
    give_up(r, status, 0, finished ? r->from : r->ran, followers);
    return status;
}

/* Waits for copies out before a step is suspended, if the host or a file is involved: only then can a copy fail
   without the device reporting it. So an error is known before backward touches gradients. */
static rw_status await_copies(const struct rw_run *r, size_t to)
{
    rw_context *const ctx = rw_run_context(r);
    if (!r->store || to == r->plan->n_actions) return RW_OK;
    if (!ctx->device->on_host && !r->store->fns->in_file) return RW_OK;
    const rw_status status = ctx->device->finish(ctx->device_state);
    return status ? rw_fail(ctx, status, "run: a copy of an offloaded value failed") : RW_OK;
}

static rw_status walk(struct rw_run *r, size_t from, size_t to)
{
    rw_context *const ctx = rw_run_context(r);
    const enum rw_callback before = rw_callback_enter(ctx, RW_CALLBACK_KERNEL);
    const rw_status status = rw_execute(r, from, to);
    rw_callback_leave(ctx, before); /* a call that it refused becomes the kernel's status */
    return status;
}

/* The commits that run when the step ends: the actions from here to the plan's last one. Updates inside backward are
   before it, among other actions. */
static size_t first_commit(const rw_plan *p)
{
    size_t first = p->n_actions;
    while (first && p->actions[first - 1].kind == RW_ACTION_COMMIT) first--;
    return first;
}

rw_status rw_run_execute(struct rw_run *r, size_t to)
{
    rw_status status = RW_OK;
    r->from = r->reached = r->ran = r->next_action;
    for (int i = r->n_observers; !status && i-- > 0;)
        if (r->observer[i]->begin) status = r->observer[i]->begin(r->observer[i], r, r->from, to);
    const size_t commits = first_commit(r->plan);
    size_t from = r->from;
    if (!status && from < commits && commits < to) {
        status = walk(r, from, commits);
        from = commits;
    }
    if (!status && commits < to) status = rw_commit_rollback_save(r, from, to);
    if (!status) status = walk(r, from, to);
    return status ? status : await_copies(r, to);
}

static void join_queue(struct rw_run *r)
{
    struct rw_run **link = &r->pool->queued;
    for (; *link; link = &(*link)->next_queued)
        if (*link == r) return;
    r->next_queued = NULL;
    *link = r;
}

/* Records that actions up to `to` are queued. A completed run returns its arena at once: the device executes in
   order, so the next user's kernels run after this run's. A suspended run keeps its arena, which may push older
   suspended runs over the limits. */
void rw_run_is_queued(struct rw_run *r, size_t to)
{
    struct rw_pool *const pool = r->pool;
    r->from = r->next_action;
    r->reached = r->ran = r->next_action = to;
    join_queue(r);
    if (to == r->plan->n_actions) {
        rw_run_give_arena_back(r);
        const bool counts = !(r->flags & (RW_RUN_REHEARSAL | RW_RUN_UPDATE)) && r->plan->kind == RW_PLAN_STEP;
        if (counts) add_work(&pool->work, &r->plan->cost);
        rw_run_set_state(r, RW_RUN_QUEUED);
        return;
    }
    rw_run_set_state(r, RW_RUN_STOPPED);
    r->stopped_at = ++pool->clock;
    while (pool->n_stopped > 1 &&
           (pool->n_stopped > RW_RUNS_STOPPED_MAX || rw_runs_waiting(rw_run_context(r)) > pool->waiting_most))
        rw_run_end(rw_runs_stopped_first(rw_run_context(r), r));
}

rw_status rw_run_advance(struct rw_run *r, size_t to)
{
    rw_status status = rw_run_prepare(r, to);
    if (status) return status;
    status = rw_run_execute(r, to);
    if (status) return rw_run_fail(r, status);
    rw_run_is_queued(r, to);
    return RW_OK;
}

/* ---- waiting ---- */

/* One wait for the whole queue: then the error flags of each run are read in order, and a failed run is ended before
   the next one is examined, because it may clear the gradients that the next one added to. */
rw_status rw_runs_wait(rw_context *ctx)
{
    struct rw_pool *const pool = rw_pool_of(ctx);
    if (!pool->queued) return RW_OK;
    const rw_status finished = ctx->device->finish(ctx->device_state);
    rw_status first = RW_OK;
    while (pool->queued) {
        struct rw_run *const r = pool->queued;
        size_t action = 0;
        rw_status status = read_words(r, &action);
        if (finished) status = finished;
        if (!first) first = status;
        if (status) pool->tried = finished ? r->reached : action + 1;
        if (status) give_up(r, status, action, finished ? r->from : r->ran, r->next_queued);
        else tell_end(r, RW_OK, 0);
        pool->queued = r->next_queued;
        r->next_queued = NULL;
        if (r->state == RW_RUN_QUEUED) rw_run_set_state(r, RW_RUN_DONE);
        assert(rw_run_is_valid(r));
    }
    return first;
}

/* Gradients count as written only when the whole plan has run, so a suspended run does not change their state. A run
   whose predecessor failed (RW_RUN_LOST) must not mark cleared gradients as sums. */
rw_status rw_run_settle(struct rw_run *r)
{
    rw_context *const ctx = rw_run_context(r);
    const rw_plan *const p = r->plan;
    /* A rehearsal publishes only outputs of nodes that must not run twice: the real run is planned as if there had
       been no rehearsal. */
    const rw_status status = hold_results(r, r->next_action, r->flags & RW_RUN_REHEARSAL);
    if (status) {
        rw_fail(ctx, status, "run: out of memory");
        give_up(r, status, 0, r->settled, r->next_queued);
        return status;
    }
    rw_commit_rollback_forget(r);
    for (size_t i = r->settled; p->n_effects && i < r->next_action; i++) note_effect(r, &p->actions[i]);
    r->settled = r->next_action;
    r->n_held = r->tape->n_held;
    if (r->next_action != p->n_actions || (r->flags & (RW_RUN_LOST | RW_RUN_REHEARSAL))) return RW_OK;
    for (size_t i = 0; i < p->n_gradients; i++) rw_gradient_written(&ctx->by_id[p->gradients[i]]->gradient);
    const bool adds = p->kind == RW_PLAN_STEP && !(r->flags & (RW_RUN_CLEARS | RW_RUN_UPDATE));
    for (size_t i = 0; adds && i < p->n_gradients; i++) rw_gradient_added(&ctx->by_id[p->gradients[i]]->gradient);
    return RW_OK;
}

/* Advances, waits and commits. */
static rw_status run_part(struct rw_run *r, size_t to)
{
    rw_status status = rw_run_advance(r, to);
    if (status) return status;
    status = rw_runs_wait(rw_run_context(r));
    const rw_status settled = r->state == RW_RUN_FAILED ? RW_OK : rw_run_settle(r);
    return status ? status : settled;
}

rw_status rw_run_through(struct rw_run *r, size_t to)
{
    const size_t commits = first_commit(r->plan);
    rw_status status = RW_OK;
    /* Errors of asynchronous kernels are detected at the wait, so commits are queued only after it. */
    const bool in_two = !rw_run_context(r)->device->on_host && r->next_action < commits && commits < to;
    if (in_two) status = run_part(r, commits);
    if (!status) status = run_part(r, to);
    if (in_two && status && r->state == RW_RUN_STOPPED) rw_run_fail(r, status);
    assert(rw_run_is_valid(r));
    if (r->state != RW_RUN_STOPPED) rw_run_end(r);
    return status;
}

/* ---- runs of a tape, of a context ---- */

void rw_runs_end(rw_tape *t)
{
    for (struct rw_run *r = rw_runs_of(t)->first, *next; r; r = next) {
        next = r->next;
        if (!(r->flags & RW_RUN_OWNED)) rw_run_end(r);
    }
}

/* The tape is reset: destroys its suspended runs, waits for the others, and releases what the tape holds. */
static void reset(rw_tape *t, void *state)
{
    bool queued = false;
    for (const struct rw_run *r = rw_runs_of(t)->first; r; r = r->next) queued |= r->state == RW_RUN_QUEUED;
    if (queued) rw_runs_wait(t->ctx);
    rw_runs_end(t);
    rw_results_forget(t);
    rw_results_trim(t);
}

static void free_spare(rw_context *ctx, struct rw_run *r)
{
    if (r->words) ctx->device->free_words(ctx->device_state, r->words);
    if (r->events) ctx->device->free_events(ctx->device_state, r->events);
    ctx->device->free(ctx->device_state, r->ones);
    rw_free(r->sources);
    rw_free(r->views);
    rw_free(r->observer);
    rw_free(r->undo);
    rw_free(r);
}

/* Waits before it frees anything: queued work may use arenas and events. What was attached to the context goes next,
   while the pool still exists. */
static void destroy(rw_context *ctx, void *state)
{
    struct rw_pool *const pool = rw_pool_of(ctx);
    rw_runs_wait(ctx);
    while (pool->attach) {
        struct rw_attach *const a = pool->attach;
        pool->attach = a->next;
        a->destroy(a);
    }
    while (pool->spare) {
        struct rw_run *const r = pool->spare;
        pool->spare = r->next;
        free_spare(ctx, r);
    }
    rw_arenas_finish(ctx, &pool->arenas);
    rw_arenas_finish(ctx, &pool->stores);
}

static void report(const rw_context *ctx, const void *state, rw_memory *memory)
{
    memory->runs += rw_pool_of(ctx)->n_stopped;
    memory->waiting += rw_runs_waiting(ctx);
}

/* Of a context: ends runs. The pool, which it uses, is a state of its own (run_state.c). */
static struct rw_extension runs_extension = { .name = "runs", .reset = reset, .destroy = destroy, .report = report };

rw_status rw_runs_init(rw_context *ctx, size_t waiting_most)
{
    struct rw_pool *const pool = rw_extension_make(&ctx->extensions, &rw_pool_extension);
    if (!pool || !rw_extension_make(&ctx->extensions, &runs_extension)) return RW_ERR_MEMORY;
    pool->stores.outside = true;
    pool->waiting_most = waiting_most;
    return RW_OK;
}
