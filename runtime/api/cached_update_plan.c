/* Updates between two steps: plans, runs and records them. */
#include "api/cached_update_plan.h"

static rw_status plan(struct rw_update *u, struct rw_step_recorder *const *recorders, size_t n, rw_tensor *skip)
{
    const struct rw_request request = { .kind = RW_PLAN_EVAL, .policy = &rw_policy_none, .recorders = recorders,
                                        .n_recorders = n, .skip = skip };
    rw_plan *plan;
    rw_status status = rw_plan_build(u->t, &request, &plan);
    if (status) return status;
    status = rw_run_make(u->t, plan, RW_RUN_OWNED | RW_RUN_UPDATE, &u->run);
    rw_plan_release(plan); /* the run holds a reference */
    return status;
}

rw_status rw_update_open(struct rw_update *u, rw_context *ctx, struct rw_step_recorder *const *recorders, size_t n,
                         rw_tensor *skip)
{
    struct rw_update created = { 0 };
    rw_status status = rw_tape_create(&created.t, ctx);
    if (!status) status = plan(&created, recorders, n, skip);
    if (status) rw_tape_destroy(&created.t);
    else *u = created;
    return status;
}

void rw_update_close(struct rw_update *u)
{
    if (!u->t) return;
    rw_runs_wait(u->t->ctx);
    rw_run_end(u->run);
    rw_tape_destroy(&u->t);
    u->run = NULL;
}

bool rw_update_is_stale(const struct rw_update *u)
{
    return u->run->plan->threads != u->t->ctx->threads;
}

rw_status rw_update_run(struct rw_update *u)
{
    struct rw_run *const r = u->run;
    rw_run_restart(r);
    rw_status status = rw_run_advance(r, r->plan->n_actions);
    if (!status) status = rw_run_settle(r);
    return !status && rw_run_is_watched_each_time(r) ? rw_runs_wait(u->t->ctx) : status;
}

rw_status rw_update_record(rw_tape *t, const char *call, const rw_op_def *op, rw_tensor *const *in, int n,
                           const void *attrs, size_t attrs_size, rw_tensor **ret_outs)
{
    rw_context *const ctx = t->ctx;
    const rw_site at = { call, 0 };
    const uint32_t site = rw_site_index(ctx, at);
    if (site == RW_NONE_ID) return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory", call);
    t->origin = (struct rw_origin){ .adjoint = true, .of = RW_NONE_ID, .site = site, .ticket = RW_NONE_ID };
    const rw_tensor *const created = rw_apply_at(at, t, op, in, n, attrs, attrs_size, ret_outs);
    t->origin = (struct rw_origin){ 0 };
    return created ? RW_OK : ctx->status;
}
