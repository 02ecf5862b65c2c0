/* Runs of requests: how far they run, and evaluations. */
#include "api/execute_request.h"

#include "autodiff/requested_outputs.h"
#include "plan/cache.h"
#include "plan/device_capacity.h"
#include "record/gradient_state.h"
#include "run/run_advance.h"
#include "run/source_addresses.h"

void rw_forget_error(rw_context *ctx)
{
    if (ctx->status == RW_ERR_MISMATCH || ctx->error_stays) return;
    ctx->status = RW_OK;
    ctx->message[0] = '\0';
}

/* Gradients that rw_grad() records are adjoint nodes. A node after one of them is not in a step's forward part. */
static bool follows_a_gradient(const rw_tape *t, uint32_t node)
{
    while (node && !t->nodes[node].adjoint) node--;
    return t->nodes[node].adjoint;
}

bool rw_is_in_forward(const rw_tape *t, const struct rw_tensor *v)
{
    return v->producer == RW_NONE_ID || !follows_a_gradient(t, v->producer);
}

struct rw_request rw_program_step(const rw_tape *t, const uint32_t *roots, size_t n)
{
    struct rw_request request = rw_step_request(t, roots, n);
    if (t->ctx->eager) request.policy = &rw_policy_none;
    return request;
}

static rw_status run_forward(struct rw_run *r)
{
    if (r->plan->n_forward > r->next_action) return rw_run_through(r, r->plan->n_forward);
    if (r->state == RW_RUN_NEW) rw_run_end(r); /* all of forward is held already */
    return RW_OK;
}

/* The program has requested the forward part of a step: a run that a read began is now the program's own. */
static void claim(const rw_tape *t, const struct rw_request *request)
{
    struct rw_run *const r = rw_run_stopped(t, request);
    if (r) r->flags &= (uint16_t)~RW_RUN_ASSUMED;
}

static rw_status run_part(struct rw_run *r, const void *const *seeds, bool forward_only)
{
    r->seeds = seeds;
    return forward_only ? run_forward(r) : rw_run_through(r, r->plan->n_actions);
}

static bool has_spoiled(const rw_context *ctx, const rw_plan *p)
{
    bool spoiled = false;
    for (size_t i = 0; i < p->n_gradients; i++)
        spoiled |= ctx->by_id[p->gradients[i]]->gradient.state == RW_GRADIENT_SPOILED;
    return spoiled;
}

/* An error in backward is one of the request. A failed device fails again, and a comparison that failed is reported. */
bool rw_run_assumed_part(struct rw_run *r, const void *const *seeds, bool forward_only, rw_status *ret_status)
{
    rw_tape *const t = r->tape;
    rw_context *const ctx = t->ctx;
    rw_plan *const plan = r->plan;
    struct rw_pool *const pool = r->pool;
    const bool is_assumed = r->flags & RW_RUN_ASSUMED;
    plan->references++; /* the run may end */
    pool->tried = 0;
    const rw_status status = *ret_status = run_part(r, seeds, forward_only);
    const bool may_repeat = is_assumed && status && status != RW_ERR_MISMATCH && status != RW_ERR_DEVICE &&
                            pool->tried <= plan->n_before && !has_spoiled(ctx, plan);
    rw_plan_release(plan);
    if (!may_repeat) return true;
    rw_forget_error(ctx); /* unless it is one of the request: then it is found again */
    rw_runs_end_assumed(t);
    return false;
}

static bool is_refused(const struct rw_run *r, bool forward_only)
{
    const bool is = rw_run_check(r, r->next_action, forward_only ? r->plan->n_forward : r->plan->n_actions) != RW_OK;
    rw_forget_error(r->tape->ctx); /* unless it is one of the request: then it is found again */
    return is;
}

/* Makes a run that computes the request and nothing else; NULL if that would be refused or cannot be made. */
static struct rw_run *make_alone(rw_tape *t, const struct rw_request *request, bool forward_only)
{
    rw_plan *plan;
    struct rw_run *r = NULL;
    if (rw_plan_get(t, request, &plan) || rw_plan_check_size(t, request, plan) || rw_run_make(t, plan, 0, &r))
        rw_forget_error(t->ctx);
    if (!r || !is_refused(r, forward_only)) return r;
    rw_run_end(r);
    return NULL;
}

/*
 * Finds or makes the run of a request. A suspended step that a read began, also if rw_forward() has claimed it, may
 * compute values that this request does not need. If these are refused, because something that they read has changed,
 * the request gets a run of its own, unless that is refused as well.
 */
static rw_status find_run(rw_tape *t, const struct rw_request *request, bool forward_only, struct rw_run **ret_run)
{
    const rw_status status = rw_run_find(t, request, ret_run);
    if (status || (*ret_run)->state != RW_RUN_STOPPED || !is_refused(*ret_run, forward_only)) return status;
    struct rw_run *const alone = make_alone(t, request, forward_only);
    if (!alone) return RW_OK;
    rw_run_end(*ret_run);
    *ret_run = alone;
    return RW_OK;
}

/* Runs a request to its end, or only its forward part. */
rw_status rw_run_request(rw_tape *t, const struct rw_request *request, const void *const *seeds, bool forward_only)
{
    struct rw_run *r = NULL;
    rw_status status = find_run(t, request, forward_only, &r);
    if (status) return status;
    if (!rw_run_assumed_part(r, seeds, forward_only, &status)) {
        status = rw_run_find(t, request, &r);
        if (!status) status = run_part(r, seeds, forward_only);
    }
    if (!status && forward_only) claim(t, request);
    return status;
}

/* ---- evaluations ---- */

bool rw_has_due_effects(rw_tape *t)
{
    return rw_tape_pending_effects(t, NULL) && rw_requests_include_effects(t);
}

bool rw_requests_include_effects(rw_tape *t)
{
    if (!t->n_effects) return false;
    if (t->n_retained) rw_spread_requirement(t); /* a value may have been marked after its use */
    return !rw_has_gradient(t);
}

/* Ends a begun step if it and the evaluation do not fit together into the step's budget. */
static void make_way(rw_tape *t, const struct rw_request *evaluation)
{
    struct rw_run *const r = rw_run_assumed(t);
    rw_plan *plan;
    if (!r || !r->plan->budget_bytes) return;
    if (rw_plan_get(t, evaluation, &plan)) rw_forget_error(t->ctx);
    else if (r->plan->arena_bytes + plan->arena_bytes > r->plan->budget_bytes) rw_run_end(r);
}

rw_status rw_evaluate(rw_tape *t, const uint32_t *values, size_t n, bool effects)
{
    const struct rw_request request = { .kind = RW_PLAN_EVAL, .values = values, .n_values = n,
                                        .policy = &rw_policy_none, .effects = effects };
    make_way(t, &request);
    return rw_run_request(t, &request, NULL, false);
}
