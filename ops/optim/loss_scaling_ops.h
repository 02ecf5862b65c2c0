/* Ops of loss scaling, which passes record. scaler.c implements them. */
#ifndef RW_OPS_OPTIM_LOSS_SCALING_OPS_H
#define RW_OPS_OPTIM_LOSS_SCALING_OPS_H

#include <rewind/op.h>

/* Loss scaling, commits: (scaler, found, gradients) -> (found, gradients), and (found, scaler) -> (scaler). A scaler
   is four RW_F32, the first of which is the scale; found is one RW_I32. Attributes of the second: the rule. */
extern const rw_op_def rw_op_unscale_grads;
extern const rw_op_def rw_op_scaler_update;

/* The first of these for gradients that are computed one after the other, and recomputed: (scaler, gradient) ->
   (gradient, found), not a commit, and for all of them (founds ..., found) -> (found), one. Bit-identical to
   unscale_grads. */
extern const rw_op_def rw_op_unscale_grad, rw_op_any_found;

struct rw_scaler_rule {
    double growth, backoff, least, most;
    int64_t interval;
    int32_t hysteresis, refill_at_growth;
};
#define RW_SCALER_NUMBERS 4

#endif
