/*
 * Which parameters an optimizer holds. A parameter that has a gradient and no optimizer is never updated, without a
 * word; so the calls that update, rw_optimizer_step(), rw_scaler_step() and rw_graph_launch(), refuse it.
 */
#ifndef RW_API_HELD_H
#define RW_API_HELD_H

#include "record/context.h"
#include "record/param.h"

/* A new optimizer takes this parameter: it is trained, and rw_optimizer_exclude() has not excluded it. */
bool rw_param_is_for_optimizers(const struct rw_param *p);

/* An optimizer of the context takes the parameter, and releases it when its memory is freed. */
void rw_param_hold(struct rw_param *p);
void rw_param_release(struct rw_param *p);

/* RW_ERR_ARGUMENT, recorded as an error of `call`, where a parameter has a gradient, is not excluded, and no optimizer
   of the context holds it; in the second form one of the n whose gradients a step writes. Names the first one. */
rw_status rw_held_check(rw_context *ctx, const char *call);
rw_status rw_held_check_ids(rw_context *ctx, const uint32_t *ids, size_t n, const char *call);

#endif
