/*
 * rw_graph: the plan of a recorded step, launched many times.
 *
 * A launch begins the step again: gradients are clear, no value of the tape is held, and its leaves have not been read.
 * The queued work and its addresses are the same every time, so a device with capture captures it once. It is captured
 * again if a buffer has moved (a larger plan has run in the arena), or if the generator has another seed.
 *
 * Random numbers. A launch draws what recording the step again would draw: the tickets that the tape had when the graph
 * was created, moved to the generator's seed and offset (struct rw_draws). The tape's tickets stay as recorded. The
 * first launch draws them unmoved, as the recorded step would, unless another graph of the tape has done so or a
 * checkpoint was loaded meanwhile.
 *
 * - The draws belong to the launch: its run has them, and the tape has a copy for what any run computes from its values
 *   afterwards. A launch that fails restores the copy.
 * - The generator moves once, when the launch is queued. A launch that fails has drawn nothing; the next one has the
 *   same words.
 * - A ticket that was recorded after the graph was created is not part of a launch and never moves.
 */
#include "api/recorder_list.h"
#include "autodiff/roots.h"
#include "base/alloc.h"
#include "ops/common/pass_ops.h"
#include "plan/cache.h"
#include "plan/device_capacity.h"
#include "record/fp8_weight_cache.h"
#include "record/gradient_state.h"
#include "run/run_advance.h"
#include "verify/verify.h"

#include <rewind/graph.h>

#include <string.h>

struct rw_graph {
    rw_tape *t;
    uint64_t tape_step; /* a reset tape has another one */
    struct rw_run *run; /* one for all launches: its results and its words do not move */
    uint32_t loss;
    struct rw_recorders recorders;
    const void *seeds[1]; /* backward begins with this, a recorder's number; NULL: 1 */
    uint64_t launches;
    size_t n_tickets;     /* of the tape when the graph was created: those that a launch moves */
    uint64_t first_block; /* of the first of them */
    uint64_t n_blocks;    /* from there to the end of the last: how far a launch moves the generator */
    void *captured; /* the device's, NULL before the first capture */
    void *captured_arena, *captured_store, **captured_sources; /* addresses at that time */
    uint64_t captured_seed;                                    /* of the tickets: kernels received it */
};

static rw_status check_nothing_ran(const rw_tape *t)
{
    bool ran = t->n_held > 0 && !t->ctx->eager; /* REWIND_EAGER=1 has computed them all, with the same bytes */
    for (size_t i = 0; i < t->n_effects; i++) ran |= t->effects[i].done;
    if (!ran) return RW_OK;
    return rw_fail(t->ctx, RW_ERR_ARGUMENT,
                   "rw_graph_create(t): expected a tape right after recording, got one whose values were computed "
                   "already");
}

static rw_status check_tickets(const rw_tape *t)
{
    if (rw_tape_tickets_follow(t)) return RW_OK;
    return rw_fail(t->ctx, RW_ERR_ARGUMENT,
                   "rw_graph_create(t): expected one generator over the whole tape, got one that was set "
                   "(rw_generator_set(), rw_checkpoint_load()) while the tape was recorded; reset the tape and record "
                   "the step again");
}

static struct rw_request request_of(const rw_graph *g)
{
    struct rw_request request = rw_step_request(g->t, &g->loss, 1);
    request.seeded = g->seeds[0];
    return request;
}

/*
 * The plan of a step that begins again: no value is held, whatever REWIND_EAGER=1 has computed. The caller gets a
 * reference.
 */
static rw_status plan_of(rw_graph *g, rw_plan **ret_plan)
{
    rw_tape *const t = g->t;
    const size_t n_held = t->n_held;
    bool *const used_up = rw_calloc(t->ctx->n_ids, sizeof *used_up);
    if (!used_up) return rw_fail(t->ctx, RW_ERR_MEMORY, "rw_graph_create: out of memory");
    t->n_held = 0;
    struct rw_request request = request_of(g);
    request.recorders = g->recorders.entry;
    request.n_recorders = g->recorders.n;
    if (rw_recorders_consume(&g->recorders, used_up)) request.used_up = used_up;
    rw_status status = g->recorders.n ? rw_plan_build(t, &request, ret_plan) : rw_plan_get(t, &request, ret_plan);
    if (!status && !g->recorders.n) (*ret_plan)->references++;
    if (!status && (status = rw_plan_check_size(t, &request, *ret_plan))) rw_plan_release(*ret_plan);
    t->n_held = n_held;
    rw_free(used_up);
    return status;
}

/* Checks the arguments of rw_graph_create(). */
static rw_status check(rw_tape *t, rw_tensor *loss, const rw_graph_params *p, uint32_t *ret_loss)
{
    *ret_loss = rw_loss_check(t, loss, "rw_graph_create");
    if (*ret_loss == RW_NONE_ID) return t->ctx->status;
    const rw_status listed = rw_recorders_check(p->recorders, "rw_graph_create", t, loss, true);
    if (listed) return listed;
    const rw_status runs = rw_check_runs(t->ctx, "rw_graph_create");
    if (runs) return runs;
    const char *const kept = rw_kept_codes_named(t);
    if (kept)
        return rw_fail(t->ctx, RW_ERR_UNSUPPORTED,
                       "rw_graph_create: the recipe keeps the quantized weight of \"%s\" for later micro-batches "
                       "(keep_weights); a graph quantizes it in each launch; record the step without keep_weights",
                       kept);
    const rw_status status = check_nothing_ran(t);
    return status ? status : check_tickets(t);
}

/*
 * Refuses a step with values offloaded to a file: its copies are host work, which a capture cannot contain. The same on
 * every device.
 */
static rw_status check_store(rw_context *ctx, const rw_plan *plan, const char *what)
{
    if (!plan->store_bytes || !ctx->store.fns->in_file) return RW_OK;
    return rw_fail(ctx, RW_ERR_UNSUPPORTED,
                   "%s: a step that offloads values to a file (in %s) cannot be captured; use a policy without "
                   "offload, or a store in memory", what, ctx->store.path);
}

/* Plans the step and makes the one run of all launches. */
static rw_status make_run(rw_graph *g)
{
    rw_plan *plan;
    rw_status status = plan_of(g, &plan);
    if (status) return status;
    status = check_store(g->t->ctx, plan, "rw_graph_create");
    if (status) {
        rw_plan_release(plan);
        return status;
    }
    g->captured_sources = rw_malloc(plan->n_sources * sizeof *g->captured_sources);
    status = g->captured_sources ? rw_run_make(g->t, plan, RW_RUN_OWNED | RW_RUN_CLEARS, &g->run)
                                 : rw_fail(g->t->ctx, RW_ERR_MEMORY, "rw_graph_create: out of memory");
    rw_plan_release(plan); /* the run holds a reference */
    return status ? status : rw_recorders_attend(&g->recorders, g->run);
}

static void destroy(rw_graph *g, bool never_ran)
{
    rw_context *const ctx = g->t->ctx;
    rw_runs_wait(ctx);
    if (g->captured) ctx->device->free_graph(ctx->device_state, g->captured);
    rw_run_end(g->run);
    rw_recorders_close(&g->recorders, never_ran);
    rw_free(g->captured_sources);
    rw_tape_release(g->t);
    rw_free(g);
}

/* Plans the step with its recorders, and makes its run. Nothing runs yet. */
rw_status rw_graph_create(rw_graph **ret_graph, rw_tape *t, rw_tensor *loss, const rw_graph_params *params)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_graph_create", "t");
    if (!ret_graph) return rw_fail_null(t->ctx, "rw_graph_create", "ret_graph");
    static const rw_graph_params none;
    const rw_graph_params *const p = params ? params : &none;
    uint32_t id;
    rw_status status = check(t, loss, p, &id);
    if (status) return status;
    rw_graph *g = rw_calloc(1, sizeof *g);
    if (!g) return rw_fail(t->ctx, RW_ERR_MEMORY, "rw_graph_create: out of memory");
    *g = (rw_graph){ .t = t, .tape_step = t->step, .loss = id };
    if (t->n_tickets) {
        g->n_tickets = t->n_tickets;
        g->first_block = t->tickets[0].offset;
        g->n_blocks = t->ticket_end - g->first_block;
    }
    t->n_users++;
    status = rw_recorders_open(&g->recorders, p->recorders, "rw_graph_create", t->ctx, true);
    g->seeds[0] = rw_recorders_seed(&g->recorders);
    if (!status) status = make_run(g);
    if (status) destroy(g, true);
    else *ret_graph = g;
    return status;
}

/* Waits for launches, and releases everything that the graph holds. */
void rw_graph_destroy(rw_graph **pg)
{
    RW_ENTER(rw_edge_context(pg && *pg ? (*pg)->t : NULL), );
    if (!pg || !*pg) return;
    destroy(*pg, false);
    *pg = NULL;
}

/* ---- a launch ---- */

/* Leaves the state that rw_zero_grad(), rw_tape_reset() and recording again would leave, except that the tape stays. */
static void begin_step(rw_graph *g)
{
    rw_tape *const t = g->t;
    rw_context *const ctx = t->ctx;
    rw_runs_end(t);
    rw_results_let_go(t);
    rw_zero_grad(ctx);
    for (size_t i = 0; i < t->n_effects; i++) t->effects[i].done = false;
    memset(t->requested, 0, t->n_values * sizeof *t->requested);
    for (size_t i = 0; i < t->n_leaves; i++) {
        struct rw_leaf *const leaf = &t->leaves[i];
        leaf->ran = leaf->is_requested = false;
        if (leaf->kind == RW_LEAF_PARAM) leaf->version = ctx->by_id[leaf->param]->version;
    }
}

/* The draws of the next launch. */
static struct rw_draws draws_of(const rw_graph *g)
{
    const rw_generator_state *const at = &g->t->ctx->generator;
    if (!g->t->launch_draws || !g->n_tickets) return (struct rw_draws){ 0 };
    return (struct rw_draws){ at->seed, at->offset - g->first_block, g->n_tickets };
}

/* The launch is queued: no other draw may use its words. */
static void count_draws(const rw_graph *g)
{
    if (g->run->draws.n) g->t->ctx->generator.offset += g->n_blocks;
    g->t->launch_draws = true;
}

static void *data_of(const struct rw_arena *a)
{
    return a ? a->data : NULL;
}

/* The seed of the launch's tickets, which have one in common. */
static uint64_t seed_of(const rw_graph *g)
{
    return g->n_tickets ? rw_tape_ticket(g->t, 0, &g->run->draws).seed : 0;
}

/* Would a capture contain other addresses or another seed now? */
static bool is_outdated(const rw_graph *g)
{
    const struct rw_run *const r = g->run;
    return !g->captured || g->captured_seed != seed_of(g) || g->captured_arena != data_of(r->arena) ||
           g->captured_store != data_of(r->store) ||
           rw_recorders_have_moved(&g->recorders) ||
           memcmp(g->captured_sources, r->sources, r->plan->n_sources * sizeof *r->sources) != 0;
}

/* Captures the run and replaces the old graph. */
static rw_status capture(rw_graph *g)
{
    rw_context *const ctx = g->t->ctx;
    void *captured = NULL;
    rw_status status = ctx->device->capture_begin(ctx->device_state);
    if (status) return rw_fail(ctx, status, "rw_graph_launch: the device does not capture");
    status = rw_run_execute(g->run, g->run->plan->n_actions);
    const rw_status ended = ctx->device->capture_end(ctx->device_state, &captured);
    if (!status && ended) status = rw_fail(ctx, ended, "rw_graph_launch: the capture failed");
    rw_recorders_captured(&g->recorders, !status);
    if (status) {
        if (captured) ctx->device->free_graph(ctx->device_state, captured);
        return status;
    }
    if (g->captured) ctx->device->free_graph(ctx->device_state, g->captured);
    g->captured = captured;
    g->captured_arena = data_of(g->run->arena);
    g->captured_store = data_of(g->run->store);
    g->captured_seed = seed_of(g);
    memcpy(g->captured_sources, g->run->sources, g->run->plan->n_sources * sizeof *g->run->sources);
    return RW_OK;
}

/* Queues a launch. The first one is not captured, so that everything that is loaded or chosen at first use exists
   before a capture. A run whose single actions are observed is not captured either. */
static rw_status queue_launch(rw_graph *g)
{
    rw_context *const ctx = g->t->ctx;
    if (!ctx->device->launch || !g->launches || rw_run_is_watched_each_time(g->run))
        return rw_run_execute(g->run, g->run->plan->n_actions);
    rw_status status = is_outdated(g) ? capture(g) : RW_OK;
    if (status) return status;
    status = ctx->device->launch(ctx->device_state, g->captured);
    return status ? rw_fail(ctx, status, "rw_graph_launch: the device failed") : RW_OK;
}

/* Adds to the versions of the parameters and buffers that commits of the program write when the step ends. */
static void add_commits(const rw_graph *g, uint32_t added)
{
    const rw_plan *const p = g->run->plan;
    for (size_t i = p->n_actions; i-- > 0 && p->actions[i].kind == RW_ACTION_COMMIT;) {
        const struct rw_action *const a = &p->actions[i];
        if (a->node >= p->mark_nodes) continue;
        const struct rw_node *const node = &g->t->nodes[a->node];
        for (uint32_t k = 0; k < node->n_outputs; k++) {
            const uint32_t word = p->words[a->word + node->n_inputs + k];
            if (rw_word_is(p, word, RW_SOURCE_PARAM))
                g->t->ctx->by_id[p->sources[rw_word_source(word)].index]->version += added;
        }
    }
}

/* Gradients that are consumed inside the step, and what its commits write, count as written while the update's numbers
   are computed: the update follows them. */
static rw_status prepare_update(rw_graph *g)
{
    rw_context *const ctx = g->t->ctx;
    const rw_plan *const p = g->run->plan;
    for (size_t i = 0; i < p->n_used_up; i++) rw_gradient_written(&ctx->by_id[p->used_up[i]]->gradient);
    add_commits(g, 1);
    const rw_status status = rw_recorders_prepare(&g->recorders);
    add_commits(g, -1u);
    for (size_t i = 0; i < p->n_used_up; i++) rw_gradient_used_up(&ctx->by_id[p->used_up[i]]->gradient);
    return status;
}

/*
 * Releases the memory of gradients that are consumed inside the step. Gradients have been cleared before, which has
 * ended all reads and writes of them.
 */
static rw_status give_gradients_up(rw_graph *g)
{
    rw_context *const ctx = g->t->ctx;
    const rw_plan *const p = g->run->plan;
    bool any = false;
    for (size_t i = 0; i < p->n_used_up; i++) any |= rw_gradient_can_give_up(&ctx->by_id[p->used_up[i]]->gradient);
    const rw_status status = any ? rw_runs_wait(ctx) : RW_OK;
    for (size_t i = 0; !status && any && i < p->n_used_up; i++) rw_gradient_give_up(ctx, ctx->by_id[p->used_up[i]]);
    return status;
}

/* Prepares the run and queues it. */
static rw_status queue_run(rw_graph *g)
{
    struct rw_run *const r = g->run;
    const size_t end = r->plan->n_actions;
    rw_run_restart(r);
    r->seeds = g->seeds[0] ? g->seeds : NULL;
    rw_status status = rw_recorders_before(&g->recorders);
    if (!status) status = rw_run_prepare(r, end);
    for (size_t i = 0; !status && i < r->plan->n_gradients; i++) /* the update must find them written */
        rw_gradient_written(&g->t->ctx->by_id[r->plan->gradients[i]]->gradient);
    if (!status) status = prepare_update(g);
    if (!status) status = queue_launch(g);
    if (status) {
        const rw_status failed = rw_run_fail(r, status);
        rw_recorders_failed(&g->recorders);
        return failed;
    }
    rw_run_is_queued(r, end);
    return RW_OK;
}

/* Counts the launch in everything that takes part in it, after its commits were counted: the update follows them. */
static void count_launch(rw_graph *g)
{
    rw_recorders_launched(&g->recorders);
    g->launches++;
    count_draws(g);
}

/* Refuses ops with effects: a rehearsal of a step that begins again would run them once more than the program does. */
static rw_status check_effects(const rw_tape *t)
{
    for (size_t i = 0; i < t->n_effects; i++) {
        const struct rw_node *const node = &t->nodes[t->effects[i].node];
        const rw_op_def *const op = t->ctx->ops[node->op];
        if (op->flags & RW_OP_COMMIT) continue;
        const rw_site at = t->ctx->sites[node->site];
        return rw_fail(t->ctx, RW_ERR_UNSUPPORTED,
                       "rw_graph_launch: REWIND_VERIFY=1: %s, recorded at %s:%d, has an effect (RW_OP_STATEFUL) and "
                       "cannot run in a rehearsal and in the launch; use REWIND_VERIFY=digest", op->name,
                       rw_file_of(at),
                       at.line);
    }
    return RW_OK;
}

/*
 * Under REWIND_VERIFY=1, before the first launch: verifies the step with the parameters and random numbers of the
 * launch.
 */
static rw_status verify_first(rw_graph *g)
{
    if (g->t->ctx->verify != RW_VERIFY_FULL || g->launches) return RW_OK;
    const rw_status effects = check_effects(g->t);
    if (effects) return effects;
    begin_step(g);
    const struct rw_request request = request_of(g);
    return rw_verify_or_fail(g->t, &request, g->seeds[0] ? g->seeds : NULL);
}

/* A launch begins with clear gradients: refuses gradients that were not used. */
static rw_status check_gradients(rw_context *ctx)
{
    const struct rw_param *const p = rw_gradient_unused(ctx);
    if (!p) return RW_OK;
    return rw_fail(ctx, RW_ERR_ARGUMENT,
                   "rw_graph_launch: expected clear gradients, got a gradient of \"%s\" that rw_backward() has added "
                   "to since the last launch, rw_optimizer_step() or rw_zero_grad(); make the update, or call "
                   "rw_zero_grad() to drop it", p->name);
}

/* Begins the step and queues it. A failed launch restores the tape's draws. */
static rw_status launch(rw_graph *g)
{
    rw_tape *const t = g->t;
    const struct rw_draws before = t->draws;
    t->draws = draws_of(g);
    rw_status status = verify_first(g);
    if (!status) {
        begin_step(g);
        status = give_gradients_up(g);
    }
    if (!status && (status = queue_run(g))) rw_results_forget(t); /* it may have written gradients of marked values */
    if (status) {
        t->draws = before;
        return status;
    }
    status = rw_run_settle(g->run);
    count_launch(g);
    return !status && rw_run_is_watched_each_time(g->run) ? rw_runs_wait(t->ctx) : status;
}

/* Checks that the graph is still valid for its tape, optimizer and context, and launches it. */
rw_status rw_graph_launch(rw_graph *g)
{
    RW_ENTER(rw_edge_context(g ? g->t : NULL), RW_ERR_ARGUMENT);
    if (!g) return rw_fail_null(NULL, "rw_graph_launch", "g");
    rw_tape *const t = g->t;
    rw_context *const ctx = t->ctx;
    if (ctx->status) return ctx->status;
    if (t->step != g->tape_step)
        return rw_fail(ctx, RW_ERR_MODIFIED,
                       "rw_graph_launch: the tape was reset or destroyed after the graph had been created; create the "
                       "graph again");
    const rw_status missed = rw_tape_misses_nothing(t, "rw_graph_launch");
    if (missed) return missed;
    const rw_plan *const p = g->run->plan;
    const rw_status fits = rw_recorders_check_launch(&g->recorders, g->run, "rw_graph_launch");
    if (fits) return fits;
    const rw_status stored = check_store(ctx, p, "rw_graph_launch");
    if (stored) return stored;
    const rw_status unused = check_gradients(ctx);
    return unused ? unused : launch(g);
}
