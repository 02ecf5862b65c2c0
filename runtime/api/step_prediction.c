/* rw_tape_plan(), rw_tape_frontier(): memory and time of a step before it runs. */
#include "api/step_prediction.h"

#include "api/execute_request.h"
#include "api/expected_backward.h"
#include "autodiff/roots.h"
#include "base/alloc.h"
#include "plan/fastest_in_budget.h"
#include "plan/prediction.h"

#include <assert.h>
#include <math.h>

/* Sets the minimum budget and the lower bound. The tolerance of the assertion is for sums in another order. */
static void set_limits(const struct rw_limits *limits, const struct rw_policy *policy, rw_prediction *ret)
{
    ret->least_bytes = limits->least + (policy->total ? ret->total_bytes - ret->peak_bytes : 0);
    assert(limits->bound >= 0 && limits->bound * 1e3 <= ret->ms * (1 + 1e-9));
    ret->bound_ms = fmin(limits->bound * 1e3, ret->ms);
    ret->gap = ret->bound_ms > 0 ? ret->ms / ret->bound_ms - 1 : 0;
}

/* Plans the step and predicts it, with limits for a budget. */
static rw_status predict_under(rw_tape *t, const struct rw_request *request, void *result)
{
    rw_prediction *const ret = result;
    const struct rw_policy *const policy = request->policy;
    struct rw_planning planning;
    struct rw_limits limits;
    rw_plan *plan;
    rw_prediction p;
    rw_status status = rw_planning_open_with_limits(&planning, t, request, &limits);
    if (status == RW_ERR_BUDGET) ret->least_bytes = planning.least;
    if (status) return status;
    status = rw_planning_place(&planning, &plan);
    if (!status) {
        status = rw_predict(&planning, plan, &p);
        if (!status && policy->kind == RW_POLICY_BUDGET) set_limits(&limits, policy, &p);
        if (!status) *ret = p;
        else rw_fail(t->ctx, status, "rw_tape_plan: %s", rw_status_name(status));
        rw_plan_release(plan);
    }
    rw_planning_close(&planning);
    return status;
}

/* As rw_backward(): if the step with everything that is expected of it has no plan, the loss alone may have one. */
static rw_status use_request(rw_tape *t, uint32_t loss, const struct rw_policy *policy, rw_use_request *use,
                             void *result)
{
    struct rw_request request;
    uint32_t *values;
    if (rw_backward_request(t, &loss, policy, &request, &values)) {
        const rw_status status = use(t, &request, result);
        rw_free(values);
        if (!rw_is_of_more(status)) return status;
        rw_forget_error(t->ctx);
    }
    request = rw_step_request(t, &loss, 1);
    request.policy = policy;
    return use(t, &request, result);
}

rw_status rw_plan_under(rw_tape *t, rw_tensor *loss, const char *policy, const char *call, rw_use_request *use,
                        void *result)
{
    const uint32_t id = rw_loss_check(t, loss, call);
    if (id == RW_NONE_ID) return t->ctx->status;
    if (!policy) return use_request(t, id, &t->policy, use, result);
    struct rw_policy parsed;
    char message[RW_MESSAGE_MAX];
    rw_status status = rw_policy_parse(policy, &parsed, message, sizeof message);
    if (status) return rw_fail(t->ctx, status, "%s: %s", call, message);
    status = use_request(t, id, &parsed, use, result);
    rw_policy_finish(&parsed);
    return status;
}

rw_status rw_tape_plan(rw_tape *t, rw_tensor *loss, const char *policy, rw_prediction *ret)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_tape_plan", "t");
    if (!ret) return rw_fail_null(t->ctx, "rw_tape_plan", "ret");
    return rw_plan_under(t, loss, policy, "rw_tape_plan", predict_under, ret);
}

/* Selects `room` of n points: the first, the last, and some in between. */
static void thin(const rw_frontier_point *points, size_t n, rw_frontier_point *ret, size_t room)
{
    for (size_t i = 0; i < room; i++) ret[i] = points[room == 1 ? 0 : i * (n - 1) / (room - 1)];
}

struct points {
    rw_frontier_point *point;
    size_t n;
};

/* Computes all points of the frontier. */
static rw_status find_points(rw_tape *t, const struct rw_request *request, void *result)
{
    struct points *const ret = result;
    struct rw_problem problem;
    rw_status status = rw_planning_open_problem(&problem, t, request);
    if (status) return status;
    status = rw_measure_store_for_budgets(&problem, request->policy);
    if (!status) {
        status = rw_budget_points(&problem, request->policy, &ret->point, &ret->n);
        if (status) rw_fail(t->ctx, status, "rw_tape_frontier: %s", rw_status_name(status));
    }
    rw_problem_close(&problem);
    return status;
}

/* Writes as many points as fit into the caller's array. */
rw_status rw_tape_frontier(rw_tape *t, rw_tensor *loss, rw_frontier_point *points, size_t *n)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_tape_frontier", "t");
    rw_context *const ctx = t->ctx;
    if (!n || (*n && !points)) return rw_fail_null(ctx, "rw_tape_frontier", n ? "points" : "n");
    const uint32_t id = rw_loss_check(t, loss, "rw_tape_frontier");
    if (id == RW_NONE_ID) return ctx->status;
    static char spec[] = "budget:";
    const struct rw_policy budgets = { .kind = RW_POLICY_BUDGET, .spec = spec, .moves = t->policy.moves };
    struct points all;
    const rw_status status = use_request(t, id, &budgets, find_points, &all);
    if (status) return status;
    thin(all.point, all.n, points, *n < all.n ? *n : all.n);
    if (!*n || all.n < *n) *n = all.n;
    rw_free(all.point);
    return RW_OK;
}
