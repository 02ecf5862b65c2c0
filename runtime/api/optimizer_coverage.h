/*
 * Which parameters have an optimizer. A parameter with a gradient and without an optimizer would silently never be
 * updated. So the calls that update refuse it: rw_optimizer_step(), rw_scaler_step() and rw_graph_launch().
 */
#ifndef RW_API_OPTIMIZER_COVERAGE_H
#define RW_API_OPTIMIZER_COVERAGE_H

#include "record/context.h"
#include "record/param.h"

/* Does a new optimizer take this parameter? Yes if it is trained and not excluded by rw_optimizer_exclude(). */
bool rw_param_is_for_optimizers(const struct rw_param *p);

/* An optimizer of the context takes the parameter, and releases it when the optimizer is freed. */
void rw_param_hold(struct rw_param *p);
void rw_param_release(struct rw_param *p);

/* RW_ERR_ARGUMENT, recorded as an error of `call`, if a parameter has a gradient, is not excluded, and has no optimizer
   in the context. The second function checks the n parameters whose gradients a step writes. Names the first one. */
rw_status rw_optimizer_coverage_check(rw_context *ctx, const char *call);
rw_status rw_optimizer_coverage_check_ids(rw_context *ctx, const uint32_t *ids, size_t n, const char *call);

#endif
