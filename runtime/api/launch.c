/*
 * rw_graph: the plan of a recorded step, launched many times. See rewind/graph.h.
 *
 * A launch begins the step anew: gradients are clear, no value of the tape is held, its leaves have not been read, and the
 * tickets stand at the generator's offset - by one number that is added to all of them. What is queued then is the same
 * work at the same addresses every time, so a device that captures does it once. Should a buffer have moved meanwhile (a
 * larger plan has run in the arena), it is captured again.
 */
#include "run/run.h"
#include "api/ask.h"
#include "run/trace.h"
#include "base/alloc.h"
#include "api/adamw.h"
#include "verify/replays.h"
#include "verify/verify.h"

#include <rewind/graph.h>

#include <string.h>

struct rw_graph {
    rw_tape *t;
    uint64_t tape_step; /* a reset tape has another */
    rw_plan *plan;
    uint32_t loss;
    rw_graph_params params;
    uint64_t launches;
    struct rw_plan_memory memory, captured_memory;
    struct rw_observer *observer; /* of REWIND_VERIFY=digest, or NULL */
    void *captured;               /* the device's, NULL before the first capture */
};

static rw_status check_nothing_ran(const rw_tape *t)
{
    bool ran = t->n_held > 0 && !t->ctx->eager; /* REWIND_EAGER=1 has computed them all, with the same bytes */
    for (size_t i = 0; i < t->n_effects; i++) ran |= t->effects[i].done;
    if (!ran) return RW_OK;
    return rw_fail(t->ctx, RW_ERR_ARGUMENT,
                   "rw_graph_create: values of the tape were computed already; create the graph right after recording");
}

/* One number must carry all tickets on: they follow one another, from one seed. */
static rw_status check_tickets(const rw_tape *t)
{
    bool sound = true;
    for (size_t i = 1; i < t->n_tickets; i++)
        sound &= t->tickets[i].seed == t->tickets[0].seed && t->tickets[i].offset >= t->tickets[i - 1].offset;
    if (sound) return RW_OK;
    return rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_graph_create: the generator was set while the tape was recorded");
}

/* The plan of a step that finds all gradients clear, whatever they hold now. */
static rw_status plan_of(rw_tape *t, uint32_t loss, rw_plan **ret_plan)
{
    rw_context *const ctx = t->ctx;
    bool *const clear = rw_malloc(ctx->n_params * sizeof *clear);
    if (!clear) return rw_fail(ctx, RW_ERR_MEMORY, "rw_graph_create: out of memory");
    for (size_t i = 0; i < ctx->n_params; i++) {
        clear[i] = ctx->params[i]->grad_clear;
        ctx->params[i]->grad_clear = true;
    }
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss, .n_values = 1, .policy = &t->policy };
    const rw_status status = rw_plan_get(t, &request, ret_plan);
    for (size_t i = 0; i < ctx->n_params; i++) ctx->params[i]->grad_clear = clear[i];
    rw_free(clear);
    return status;
}

static rw_status check(rw_tape *t, rw_tensor *loss, const rw_graph_params *p, uint32_t *ret_loss)
{
    *ret_loss = rw_loss_check(t, loss, "rw_graph_create");
    if (*ret_loss == RW_NONE_ID) return t->ctx->status;
    if (p->max_norm < 0 || p->max_norm != p->max_norm)
        return rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_graph_create: a norm of %g", p->max_norm);
    if (p->optimizer && rw_adamw_context(p->optimizer) != t->ctx)
        return rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_graph_create: the optimizer belongs to another context");
    const rw_status status = check_nothing_ran(t);
    return status ? status : check_tickets(t);
}

rw_status rw_graph_create(rw_graph **ret_graph, rw_tape *t, rw_tensor *loss, const rw_graph_params *params)
{
    if (!t) return RW_ERR_ARGUMENT;
    if (!ret_graph) return rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_graph_create: NULL argument");
    const rw_graph_params p = params ? *params : (rw_graph_params){ 0 };
    uint32_t id;
    rw_plan *plan;
    rw_status status = check(t, loss, &p, &id);
    if (!status) status = plan_of(t, id, &plan);
    if (status) return status;
    plan->references++;
    rw_graph *g = rw_calloc(1, sizeof *g);
    if (g) {
        *g = (rw_graph){ .t = t, .tape_step = t->step, .plan = plan, .loss = id, .params = p };
        g->memory.sources = rw_malloc(plan->n_sources * sizeof *g->memory.sources);
        g->captured_memory.sources = rw_malloc(plan->n_sources * sizeof *g->memory.sources);
        if (g->memory.sources && g->captured_memory.sources) {
            *ret_graph = g;
            return RW_OK;
        }
        rw_graph_destroy(&g);
    } else {
        rw_plan_release(plan);
    }
    return rw_fail(t->ctx, RW_ERR_MEMORY, "rw_graph_create: out of memory");
}

void rw_graph_destroy(rw_graph **pg)
{
    if (!pg || !*pg) return;
    rw_graph *const g = *pg;
    rw_context *const ctx = g->t->ctx;
    rw_launched_wait(ctx);
    if (g->captured) ctx->device->free_graph(ctx->device_state, g->captured);
    rw_free(g->memory.sources);
    rw_free(g->captured_memory.sources);
    rw_plan_release(g->plan);
    rw_free(g);
    *pg = NULL;
}

/* ---- a launch ---- */

/* As rw_zero_grad(), rw_tape_reset() and recording again would leave things, but for what the tape says. */
static void begin_step(rw_graph *g)
{
    rw_tape *const t = g->t;
    rw_context *const ctx = t->ctx;
    rw_arena_take(t);
    rw_zero_grad(ctx);
    for (size_t i = 0; i < g->plan->n_gradients; i++) ctx->params[g->plan->gradients[i].param]->grad_clear = false;
    t->n_held = 0;
    for (size_t i = 0; i < t->n_effects; i++) t->effects[i].done = false;
    for (size_t i = 0; i < t->n_leaves; i++) {
        struct rw_leaf *const leaf = &t->leaves[i];
        leaf->ran = false;
        if (leaf->kind == RW_LEAF_PARAM) leaf->version = ctx->params[leaf->param]->version;
    }
    if (!g->launches || !t->n_tickets) return;
    for (size_t i = 0; i < t->n_tickets; i++) t->tickets[i].seed = ctx->generator.seed;
    t->ticket_base = ctx->generator.offset - t->tickets[0].offset;
    ctx->generator.offset += t->ticket_end - t->tickets[0].offset;
}

/* What is queued at every launch, and what a capture sees. */
static rw_status queue_step(rw_graph *g)
{
    rw_context *const ctx = g->t->ctx;
    rw_status status = rw_replays_watch(g->t, g->plan, &g->observer);
    if (!status) status = rw_plan_queue(g->t, g->plan, &g->memory, 0, g->plan->n_actions, g->observer);
    if (status) return status;
    if (g->params.max_norm > 0) status = rw_clip_grad_norm(ctx, g->params.max_norm, NULL);
    if (!status && g->params.optimizer) status = rw_adamw_queue(g->params.optimizer);
    return status;
}

static bool moved(const rw_graph *g)
{
    const struct rw_plan_memory *const a = &g->memory, *const b = &g->captured_memory;
    return !g->captured || a->arena != b->arena ||
           memcmp(a->sources, b->sources, g->plan->n_sources * sizeof *a->sources) != 0;
}

static rw_status capture(rw_graph *g)
{
    rw_context *const ctx = g->t->ctx;
    void *captured = NULL;
    rw_status status = ctx->device->capture_begin(ctx->device_state);
    if (status) return rw_fail(ctx, status, "rw_graph_launch: the device does not capture");
    status = queue_step(g);
    const rw_status ended = ctx->device->capture_end(ctx->device_state, &captured);
    if (!status && ended) status = rw_fail(ctx, ended, "rw_graph_launch: the capture failed");
    if (status) {
        if (captured) ctx->device->free_graph(ctx->device_state, captured);
        return status;
    }
    if (g->captured) ctx->device->free_graph(ctx->device_state, g->captured);
    g->captured = captured;
    g->captured_memory.arena = g->memory.arena;
    memcpy(g->captured_memory.sources, g->memory.sources, g->plan->n_sources * sizeof *g->memory.sources);
    return RW_OK;
}

/* A trace wants the times of single steps, which a captured graph does not have. */
static rw_status queue_and_trace(rw_graph *g)
{
    rw_context *const ctx = g->t->ctx;
    rw_status status = queue_step(g);
    if (status || !ctx->trace || g->observer) return status;
    status = rw_plan_wait(g->t, g->plan);
    if (!status) rw_trace_write(ctx->trace, g->t, g->plan, 0, g->plan->n_actions);
    return status;
}

/* The first launch is not captured: what is loaded or chosen at first use is then there. */
static rw_status run_step(rw_graph *g)
{
    rw_context *const ctx = g->t->ctx;
    if (!ctx->device->launch || !g->launches || ctx->trace) return queue_and_trace(g);
    rw_status status = moved(g) ? capture(g) : RW_OK;
    if (status) return status;
    status = ctx->device->launch(ctx->device_state, g->captured);
    return status ? rw_fail(ctx, status, "rw_graph_launch: the device failed") : RW_OK;
}

static rw_status prepare(rw_graph *g)
{
    rw_context *const ctx = g->t->ctx;
    rw_status status = rw_plan_prepare(g->t, g->plan, &g->memory);
    if (!status && ctx->device->set_ticket_base)
        status = ctx->device->set_ticket_base(ctx->device_state, g->t->ticket_base);
    if (!status && g->params.optimizer) status = rw_adamw_prepare(g->params.optimizer);
    return status;
}

rw_status rw_graph_launch(rw_graph *g)
{
    if (!g) return RW_ERR_ARGUMENT;
    rw_tape *const t = g->t;
    rw_context *const ctx = t->ctx;
    if (ctx->status) return ctx->status;
    if (t->step != g->tape_step)
        return rw_fail(ctx, RW_ERR_CHANGED, "rw_graph_launch: the tape was reset after the graph had been created");
    if (ctx->verify == RW_VERIFY_FULL && !g->launches) {
        const rw_status verified = rw_verify_or_fail(t, rw_tape_value(t, g->loss));
        if (verified) return verified;
    }
    begin_step(g);
    rw_note_plan_memory(ctx, g->plan);
    rw_status status = prepare(g);
    if (!status) status = run_step(g);
    if (status) {
        rw_plan_wait(t, g->plan); /* what was queued reads memory that may go */
        rw_zero_grad(ctx);
        return status;
    }
    g->launches++;
    g->plan->references++;
    if (ctx->launched_plan) rw_plan_release(ctx->launched_plan);
    ctx->launched = t;
    ctx->launched_plan = g->plan;
    return rw_plan_settle(t, g->plan, 0, g->plan->n_actions);
}
