/* rw_tape_plan(): what a step would take, before it runs. */
#include "autodiff/roots.h"
#include "plan/predict.h"

static rw_status plan_under(rw_tape *t, uint32_t loss, const struct rw_policy *policy, rw_prediction *ret)
{
    struct rw_request request = rw_step_request(t, &loss, 1);
    request.policy = policy;
    struct rw_planning planning;
    rw_plan *plan;
    rw_status status = rw_planning_open(&planning, t, &request);
    if (status) return status;
    status = rw_planning_place(&planning, &plan);
    if (!status) {
        status = rw_predict(&planning, plan, ret);
        if (status) rw_fail(t->ctx, status, "rw_tape_plan: %s", rw_status_name(status));
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
