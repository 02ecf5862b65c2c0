/*
 * Counts the optimizers of each parameter, refuses updates that leave one out, and implements rw_optimizer_exclude().
 */
#include "api/optimizer_coverage.h"

#include "record/gradient_state.h"

#include <rewind/optimizers.h>

bool rw_param_is_for_optimizers(const struct rw_param *p)
{
    return rw_param_is_trained(p) && !p->is_excluded;
}

void rw_param_hold(struct rw_param *p)
{
    p->n_optimizers++;
}

void rw_param_release(struct rw_param *p)
{
    p->n_optimizers--;
}

static bool is_forgotten(const struct rw_param *p)
{
    return !p->n_optimizers && rw_param_is_for_optimizers(p);
}

static rw_status refuse(rw_context *ctx, const struct rw_param *p, const char *call)
{
    return rw_fail(ctx, RW_ERR_ARGUMENT,
                   "%s: expected an optimizer of the context for each parameter with a gradient, got none for \"%s\", "
                   "which would never be updated; create the optimizer after the parameter, or freeze it: "
                   "rw_optimizer_exclude()", call, p->name);
}

rw_status rw_optimizer_coverage_check(rw_context *ctx, const char *call)
{
    for (size_t i = 0; i < ctx->n_params; i++) {
        const struct rw_param *const p = ctx->params[i];
        if (!rw_gradient_is_clear(&p->gradient) && is_forgotten(p)) return refuse(ctx, p, call);
    }
    return RW_OK;
}

rw_status rw_optimizer_coverage_check_ids(rw_context *ctx, const uint32_t *ids, size_t n, const char *call)
{
    for (size_t i = 0; i < n; i++)
        if (is_forgotten(ctx->by_id[ids[i]])) return refuse(ctx, ctx->by_id[ids[i]], call);
    return RW_OK;
}

rw_status rw_optimizer_exclude(rw_tensor *param, bool excluded)
{
    RW_ENTER(rw_tensor_context(param), RW_ERR_ARGUMENT);
    struct rw_param *const p = rw_param_of(param);
    if (!p || (param->flags & RW_VALUE_GRADIENT) || !rw_param_is_trained(p))
        return rw_fail(rw_tensor_context(param), RW_ERR_ARGUMENT,
                       "rw_optimizer_exclude(param): expected a parameter created by rw_param(), got another tensor");
    p->is_excluded = excluded;
    return RW_OK;
}
