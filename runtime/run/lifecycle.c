/* Creates and destroys runs. A destroyed run keeps its arrays in the context's pool, so a steady state allocates
   nothing. */
#include "run/lifecycle.h"

#include "base/alloc.h"
#include "plan/cache.h"
#include "plan/device_capacity.h"
#include "run/enforce_total_budget.h"
#include "run/commit_rollback.h"

#include <string.h>

bool rw_run_is_valid(const struct rw_run *r)
{
    const rw_plan *const p = r->plan;
    if (!p || p->references < 1 || !r->results || r->results->references < 2) return false;
    if (r->next_action > p->n_actions || r->settled > r->next_action) return false;
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

void rw_run_set_state(struct rw_run *r, enum rw_run_state state)
{
    struct rw_pool *const pool = r->pool;
    if (pool->active == r) pool->active = NULL;
    pool->n_stopped += (state == RW_RUN_STOPPED) - (r->state == RW_RUN_STOPPED);
    r->state = (uint8_t)state;
}

void rw_run_give_arena_back(struct rw_run *r)
{
    if (r->arena) rw_arena_give_back(r->arena);
    if (r->store) rw_arena_give_back(r->store);
    if (r->arena) r->had = r->arena;
    r->arena = r->store = NULL;
}

static struct rw_run *take_spare(rw_context *ctx)
{
    struct rw_pool *const pool = rw_pool_of(ctx);
    struct rw_run *r = pool->spare;
    if (r) {
        pool->spare = r->next;
    } else {
        r = rw_calloc(1, sizeof *r);
        if (r && ctx->device->make_words && !(r->words = ctx->device->make_words(ctx->device_state))) {
            rw_free(r);
            r = NULL;
        }
    }
    if (r) r->pool = pool;
    return r;
}

/* Keeps a destroyed run's arrays for the next run. */
static void make_spare(struct rw_run *r)
{
    struct rw_pool *const pool = r->pool;
    *r = (struct rw_run){ .next = pool->spare, .sources = r->sources, .cap_sources = r->cap_sources,
                          .views = r->views, .cap_views = r->cap_views, .words = r->words,
                          .observer = r->observer, .cap_observers = r->cap_observers,
                          .events = r->events, .n_events = r->n_events, .ones = r->ones, .ones_of = r->ones_of,
                          .n_ones = r->n_ones, .undo = r->undo, .cap_undo = r->cap_undo };
    pool->spare = r;
}

/* Creates two events per copy action. */
static bool make_events(struct rw_run *r, size_t n)
{
    const rw_context *const ctx = rw_run_context(r);
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
    for (struct rw_attach *a = r->pool->attach; !status && a; a = a->next) {
        struct rw_observer *o = NULL;
        status = a->attach(a, r, &o);
        if (!status && o) status = rw_run_watch(r, o);
    }
    return status;
}

rw_status rw_run_watch(struct rw_run *r, struct rw_observer *o)
{
    if (!rw_grow(&r->observer, &r->cap_observers, (size_t)r->n_observers, 1, sizeof *r->observer)) {
        if (o->detach) o->detach(o, r);
        return rw_fail(rw_run_context(r), RW_ERR_MEMORY, "run: out of memory");
    }
    r->observer[r->n_observers++] = o;
    return RW_OK;
}

/* Results are not in the arena: they are kept as long as they can be read. */
static rw_status refuse_results(rw_context *ctx, const rw_plan *plan)
{
    return rw_fail(ctx, RW_ERR_MEMORY, "run: out of memory (the values kept for reading take %llu bytes)",
                   (unsigned long long)plan->results_bytes);
}

static bool make_room(struct rw_run *r)
{
    const rw_plan *const plan = r->plan;
    return rw_grow(&r->sources, &r->cap_sources, 0, plan->n_sources, sizeof *r->sources) &&
           rw_grow(&r->views, &r->cap_views, 0, plan->most_operands, sizeof *r->views) &&
           make_events(r, 2 * plan->n_aside);
}

/* The run is in the tape's list from the start, so a failure of any later part ends it like any other run. */
rw_status rw_run_make(rw_tape *t, rw_plan *plan, unsigned flags, struct rw_run **ret_run)
{
    rw_context *const ctx = t->ctx;
    struct rw_run *const r = take_spare(ctx);
    if (!r) return rw_fail(ctx, RW_ERR_MEMORY, "run: out of memory");
    r->tape = t;
    r->plan = plan;
    r->flags = (uint16_t)flags;
    r->draws = t->draws;
    struct rw_tape_runs *const runs = rw_runs_of(t);
    r->next = runs->first;
    runs->first = r;
    plan->references++;
    r->n_effects = t->n_effects;
    r->n_retained = t->n_retained;
    r->results = rw_results_take(t, plan);
    rw_status status = r->results ? RW_OK : refuse_results(ctx, plan);
    if (!status && !make_room(r)) status = RW_ERR_MEMORY;
    if (!status) status = attach_observers(r);
    if (status) {
        rw_run_end(r);
        return rw_fail(ctx, status, "run: %s", rw_status_name(status));
    }
    *ret_run = r;
    return RW_OK;
}

struct rw_run *rw_run_leave_queue(struct rw_run *r)
{
    struct rw_run *const followers = r->next_queued;
    struct rw_run **link = &r->pool->queued;
    while (*link && *link != r) link = &(*link)->next_queued;
    if (*link) *link = followers;
    r->next_queued = NULL;
    return followers;
}

/* Observers are detached first, while everything they refer to still exists; the plan is released last. */
void rw_run_end(struct rw_run *r)
{
    if (!r) return;
    rw_context *const ctx = rw_run_context(r);
    for (int i = r->n_observers; i-- > 0;)
        if (r->observer[i]->detach) r->observer[i]->detach(r->observer[i], r);
    rw_run_leave_queue(r);
    rw_run_give_arena_back(r);
    rw_commit_rollback_forget(r);
    ctx->device->free(ctx->device_state, r->own_gradients);
    rw_free(r->outdated);
    rw_run_set_state(r, RW_RUN_DONE);
    rw_results_release(ctx, r->results);
    rw_plan_release(r->plan);
    struct rw_run **link = &rw_runs_of(r->tape)->first;
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    make_spare(r);
}

void rw_run_restart(struct rw_run *r)
{
    rw_run_give_arena_back(r);
    rw_run_set_state(r, RW_RUN_NEW);
    r->next_action = r->settled = r->from = r->reached = 0;
    r->flags &= (uint16_t)~RW_RUN_LOST;
    r->draws = r->tape->draws;
}

/* ---- finding ---- */

bool rw_run_is_overtaken(const struct rw_run *r)
{
    const rw_tape *const t = r->tape;
    if (t->n_held == r->n_held && !r->plan->n_effects) return false;
    const size_t n_nodes = r->plan->mark_nodes < t->n_nodes ? r->plan->mark_nodes : t->n_nodes; /* a run ahead */
    for (size_t i = r->next_action; i < r->plan->n_actions; i++) {
        const struct rw_action *const a = &r->plan->actions[i];
        if (a->node >= n_nodes || (a->kind != RW_ACTION_FORWARD && a->kind != RW_ACTION_COMMIT)) continue;
        const struct rw_node *const node = &t->nodes[a->node];
        const uint32_t flags = t->ctx->ops[node->op]->flags;
        if ((flags & RW_OP_STATEFUL) && rw_tape_effect(t, a->node)->done) return true;
        if ((flags & RW_OP_NONDETERMINISTIC) && node->n_outputs && rw_tape_held(t, node->first_output)) return true;
    }
    return false;
}

bool rw_run_is_reached(struct rw_run *r)
{
    const rw_tape *const t = r->tape;
    const struct rw_tape_point at = rw_tape_point(t);
    if (!(r->flags & RW_RUN_AHEAD)) return true;
    if (!rw_point_is_same(&at, &r->plan->recorded)) return false;
    r->flags &= (uint16_t)~RW_RUN_AHEAD;
    r->n_effects = t->n_effects;
    r->n_retained = t->n_retained;
    return true;
}

/* Has a read begun the step before fork(), with values in a file? The program itself has suspended nothing. */
static bool is_begun_by_parent(const struct rw_run *r)
{
    return (r->flags & RW_RUN_ASSUMED) && r->store && rw_store_is_of_parent(r->store);
}

/* True if the run can continue. Nodes recorded since do not matter: a plan only refers to nodes before its own mark. */
static bool goes_on(const struct rw_run *r)
{
    const rw_tape *const t = r->tape;
    if (is_begun_by_parent(r)) return false;
    return r->n_effects == t->n_effects && r->n_retained == t->n_retained && !rw_run_is_overtaken(r);
}

/* Seeds do not have to match: a plan that takes seeds from the caller can also be given ones. */
static bool is_of(const rw_plan *p, const struct rw_request *q)
{
    return p->n_roots == q->n_values && (p->seeded || !q->seeded) &&
           !memcmp(p->roots, q->values, p->n_roots * sizeof *p->roots);
}

struct rw_run *rw_run_stopped(const rw_tape *t, const struct rw_request *q)
{
    for (struct rw_run *r = rw_runs_of(t)->first; r && q->kind == RW_PLAN_STEP; r = r->next)
        if (r->state == RW_RUN_STOPPED && !(r->flags & ~(RW_RUN_ASSUMED | RW_RUN_AHEAD)) && is_of(r->plan, q) &&
            rw_run_is_reached(r))
            return r;
    return NULL;
}

struct rw_run *rw_run_assumed(const rw_tape *t)
{
    for (struct rw_run *r = rw_runs_of(t)->first; r; r = r->next)
        if (r->state == RW_RUN_STOPPED && (r->flags & RW_RUN_ASSUMED)) return r;
    return NULL;
}

void rw_runs_end_assumed(const rw_tape *t)
{
    for (struct rw_run *r = rw_runs_of(t)->first, *next; r; r = next) {
        next = r->next;
        if (r->state == RW_RUN_STOPPED && (r->flags & RW_RUN_ASSUMED)) rw_run_end(r);
    }
}

struct rw_run *rw_runs_stopped_first(const rw_context *ctx, const struct rw_run *but)
{
    struct rw_run *found = NULL;
    for (const rw_tape *t = ctx->tapes; t; t = t->next)
        for (struct rw_run *r = rw_runs_of(t)->first; r; r = r->next)
            if (r->state == RW_RUN_STOPPED && r != but && (!found || r->stopped_at < found->stopped_at)) found = r;
    return found;
}

bool rw_run_make_room(struct rw_run *r, size_t bytes)
{
    while (!rw_total_fits(r, bytes)) {
        struct rw_run *const other = rw_runs_stopped_first(rw_run_context(r), r);
        if (!other) return false;
        rw_run_end(other);
    }
    return true;
}

bool rw_runs_release(rw_context *ctx)
{
    struct rw_pool *const pool = rw_pool_of(ctx);
    if (!pool || ctx->edge.callback != RW_CALLBACK_NONE) return false;
    bool freed = rw_arenas_free_unused(ctx, &pool->arenas);
    if (ctx->device->on_host) freed |= rw_arenas_free_unused(ctx, &pool->stores);
    if (freed || rw_results_free_unused(ctx)) return true;
    struct rw_run *const oldest = rw_runs_stopped_first(ctx, pool->active);
    rw_run_end(oldest);
    return oldest;
}

rw_status rw_run_find(rw_tape *t, const struct rw_request *request, struct rw_run **ret_run)
{
    const rw_status missed = rw_tape_misses_nothing(t, "running a step");
    if (missed) return missed;
    struct rw_run *const stopped = rw_run_stopped(t, request);
    if (stopped && goes_on(stopped) && rw_run_make_room(stopped, 0)) {
        *ret_run = stopped;
        return RW_OK;
    }
    rw_run_end(stopped); /* it cannot continue, or only with less memory */
    if (request->kind == RW_PLAN_STEP) rw_runs_end_assumed(t);
    rw_plan *plan;
    rw_status status = rw_plan_get(t, request, &plan);
    if (!status) status = rw_plan_check_size(t, request, plan);
    return status ? status : rw_run_make(t, plan, 0, ret_run);
}
