/* rw_tape_plan(), rw_tape_frontier(): what a step would take, before it runs. */
#include "autodiff/roots.h"
#include "base/alloc.h"
#include "plan/budget.h"
#include "plan/predict.h"

/* The least that a budget can be, and what no step within the arena's bytes can be faster than. */
static rw_status find_limits(const struct rw_planning *g, const struct rw_policy *policy, rw_prediction *ret)
{
    uint64_t least;
    double bound;
    const rw_status status = rw_budget_limits(&g->problem, policy, ret->peak_bytes, &least, &bound);
    if (status) return status;
    ret->least_bytes = least + (policy->total ? ret->total_bytes - ret->peak_bytes : 0);
    ret->bound_ms = bound * 1e3;
    ret->gap = bound > 0 ? ret->ms / ret->bound_ms - 1 : 0;
    return RW_OK;
}

static rw_status plan_under(rw_tape *t, uint32_t loss, const struct rw_policy *policy, rw_prediction *ret)
{
    struct rw_request request = rw_step_request(t, &loss, 1);
    request.policy = policy;
    struct rw_planning planning;
    rw_plan *plan;
    rw_prediction p;
    rw_status status = rw_planning_open(&planning, t, &request);
    if (status == RW_ERR_BUDGET) ret->least_bytes = planning.least;
    if (status) return status;
    status = rw_planning_place(&planning, &plan);
    if (!status) {
        status = rw_predict(&planning, plan, &p);
        if (!status && policy->kind == RW_POLICY_BUDGET) status = find_limits(&planning, policy, &p);
        if (!status) *ret = p;
        else rw_fail(t->ctx, status, "rw_tape_plan: %s", rw_status_name(status));
        rw_plan_release(plan);
    }
    rw_planning_close(&planning);
    return status;
}

rw_status rw_tape_plan(rw_tape *t, rw_tensor *loss, const char *policy, rw_prediction *ret)
{
    if (!t) return RW_ERR_ARGUMENT;
    rw_context *const ctx = t->ctx;
    if (!ret) return rw_fail_null(ctx, "rw_tape_plan", "ret");
    const uint32_t id = rw_loss_check(t, loss, "rw_tape_plan");
    if (id == RW_NONE_ID) return ctx->status;
    if (!policy) return plan_under(t, id, &t->policy, ret);
    struct rw_policy parsed;
    char message[RW_MESSAGE_MAX];
    rw_status status = rw_policy_parse(policy, &parsed, message, sizeof message);
    if (status) return rw_fail(ctx, status, "rw_tape_plan: %s", message);
    status = plan_under(t, id, &parsed, ret);
    rw_policy_finish(&parsed);
    return status;
}

/* n points into the caller's room: the first, the last, and some in between. */
static void thin(const rw_point *points, size_t n, rw_point *ret, size_t room)
{
    for (size_t i = 0; i < room; i++) ret[i] = points[room == 1 ? 0 : i * (n - 1) / (room - 1)];
}

static rw_status find_points(rw_tape *t, uint32_t loss, rw_point **ret_points, size_t *ret_n)
{
    static char spec[] = "budget:";
    const struct rw_policy budgets = { .kind = RW_POLICY_BUDGET, .spec = spec, .moves = t->policy.moves };
    const struct rw_request request = rw_step_request(t, &loss, 1);
    struct rw_problem problem;
    rw_status status = rw_part_budgets_check(t, &budgets);
    if (!status) status = rw_problem_open(&problem, t, &request);
    if (status) return status;
    status = rw_measure_store_for_budgets(&problem, &budgets);
    if (!status) {
        status = rw_budget_points(&problem, &budgets, ret_points, ret_n);
        if (status) rw_fail(t->ctx, status, "rw_tape_frontier: %s", rw_status_name(status));
    }
    rw_problem_close(&problem);
    return status;
}

rw_status rw_tape_frontier(rw_tape *t, rw_tensor *loss, rw_point *points, size_t *n)
{
    if (!t) return RW_ERR_ARGUMENT;
    rw_context *const ctx = t->ctx;
    if (!n || (*n && !points)) return rw_fail_null(ctx, "rw_tape_frontier", n ? "points" : "n");
    const uint32_t id = rw_loss_check(t, loss, "rw_tape_frontier");
    if (id == RW_NONE_ID) return ctx->status;
    rw_point *all;
    size_t n_all;
    const rw_status status = find_points(t, id, &all, &n_all);
    if (status) return status;
    if (*n && n_all > *n) thin(all, n_all, points, *n);
    else if (*n) thin(all, n_all, points, n_all);
    if (!*n || n_all < *n) *n = n_all;
    rw_free(all);
    return RW_OK;
}
