/* Compares an arena with the device's memory, and finds the minimum budget for the message. */
#include "plan/device_capacity.h"

#include "plan/build.h"
#include "plan/fastest_in_budget.h"

#include <stdio.h>

/* The minimum arena of that step under a budget; *ret_known: a budget may be set. Not for steps with recorders
   (fused updates, clipping), which record their nodes once, so the step cannot be planned again. */
static rw_status find_least(rw_tape *t, const struct rw_request *request, uint64_t *ret, bool *ret_known)
{
    const struct rw_policy *const policy = request->policy;
    struct rw_problem problem;
    *ret_known = request->kind == RW_PLAN_STEP && !request->n_recorders && !rw_has_part_budgets(t, policy);
    if (!*ret_known) return RW_OK;
    rw_status status = rw_planning_open_problem(&problem, t, request);
    if (status) return status;
    status = rw_measure_store_for_budgets(&problem, policy);
    if (!status && (status = rw_budget_least(&problem, policy, ret)))
        rw_fail(t->ctx, status, "planning: %s", rw_status_name(status));
    rw_problem_close(&problem);
    return status;
}

static rw_status refuse(rw_tape *t, const struct rw_request *request, const rw_plan *plan,
                        const struct rw_device_memory *all)
{
    char advice[96] = "";
    uint64_t least = 0;
    bool known;
    const rw_status status = find_least(t, request, &least, &known);
    if (status) return status;
    if (known)
        snprintf(advice, sizeof advice, least <= all->bytes ? "; the minimum is budget:%lluB%s"
                                                     : "; the minimum, budget:%lluB%s, does not fit either",
                 (unsigned long long)least, request->policy->moves ? "+offload" : "");
    return rw_fail(t->ctx, RW_ERR_MEMORY, "run: the arena takes %llu bytes, the %s %llu%s%s",
                   (unsigned long long)plan->arena_bytes, all->has, (unsigned long long)all->bytes, all->note, advice);
}

rw_status rw_plan_check_size(rw_tape *t, const struct rw_request *request, rw_plan *plan)
{
    if (plan->fits) return RW_OK;
    plan->fits = plan->arena_bytes <= RW_ALWAYS_HELD;
    if (plan->fits) return RW_OK;
    const struct rw_device_memory all = t->ctx->device->memory(t->ctx->device_state);
    plan->fits = plan->arena_bytes <= all.bytes;
    return plan->fits ? RW_OK : refuse(t, request, plan, &all);
}
