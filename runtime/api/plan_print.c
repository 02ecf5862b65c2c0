/* rw_plan_print(): the plan of a step as text. */
#include "api/step_prediction.h"
#include "autodiff/roots.h"
#include "base/sigpipe_safe_output.h"
#include "plan/build.h"
#include "plan/print.h"

#include <rewind/plan.h>

static rw_status print_placed(const struct rw_planning *g, const rw_plan *plan, FILE *out)
{
    struct rw_printing printing = rw_printing_begin(out);
    const rw_status status = rw_plan_print_to(g, plan, out);
    const char *const why = rw_printing_end(&printing);
    if (status) return rw_fail(g->problem.t->ctx, status, "rw_plan_print: %s", rw_status_name(status));
    return why ? rw_fail(g->problem.t->ctx, RW_ERR_IO, "rw_plan_print(out): cannot be written to: %s", why) : RW_OK;
}

/* Plans the step under a policy and prints the plan. */
static rw_status print_under(rw_tape *t, const struct rw_request *request, void *result)
{
    struct rw_planning planning;
    rw_plan *plan;
    rw_status status = rw_planning_open(&planning, t, request);
    if (status) return status;
    status = rw_planning_place(&planning, &plan);
    if (!status) {
        status = print_placed(&planning, plan, result);
        rw_plan_release(plan);
    }
    rw_planning_close(&planning);
    return status;
}

rw_status rw_plan_print(rw_tape *t, rw_tensor *loss, const char *policy, FILE *out)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_plan_print", "t");
    if (!out) return rw_fail_null(t->ctx, "rw_plan_print", "out");
    return rw_plan_under(t, loss, policy, "rw_plan_print", print_under, out);
}
