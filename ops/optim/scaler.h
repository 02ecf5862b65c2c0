/* Loss scaling: the rule of the scale, and of updates that are skipped; shared by checks and kernels. C11 and C++17. */
#ifndef RW_OPS_OPTIM_SCALER_H
#define RW_OPS_OPTIM_SCALER_H

#include "base/host_device.h"
#include "ops/optim/loss_scaling_ops.h"
#include "ops/optim/update_ops.h"

#include <math.h>

/* Indices of a scaler's numbers: the scale, and counts, which float32 represents exactly up to the maximum. */
enum { RW_SCALER_SCALE, RW_SCALER_CLEAN, RW_SCALER_HYSTERESIS, RW_SCALER_SKIPPED };
#define RW_SCALER_COUNT_MAX 16777216.0f

/* Advances the scale at the end of a step: see rewind/precision.h. Products are computed in double and stored as
   float32, as in PyTorch. */
RW_HOST_DEVICE void rw_scaler_next(const struct rw_scaler_rule *r, bool found, float *s)
{
    if (found) {
        if (s[RW_SCALER_SKIPPED] < RW_SCALER_COUNT_MAX) s[RW_SCALER_SKIPPED]++;
        s[RW_SCALER_CLEAN] = 0;
        if (s[RW_SCALER_HYSTERESIS] > 0) s[RW_SCALER_HYSTERESIS]--;
        if (s[RW_SCALER_HYSTERESIS] > 0) return;
        const double less = s[RW_SCALER_SCALE] * r->backoff;
        s[RW_SCALER_SCALE] = (float)(less > r->least ? less : r->least);
        return;
    }
    const bool grows = ++s[RW_SCALER_CLEAN] >= (float)r->interval;
    if (grows || !r->refill_at_growth) s[RW_SCALER_HYSTERESIS] = (float)r->hysteresis;
    if (!grows) return;
    s[RW_SCALER_CLEAN] = 0;
    const float more = (float)(s[RW_SCALER_SCALE] * r->growth), most = (float)r->most;
    if (more - more == 0) s[RW_SCALER_SCALE] = more < most ? more : most;
}

/* The numbers of a row that depend on the number of the update, for an earlier update than the row was made for. */
RW_HOST_DEVICE void rw_update_row_of_step(struct rw_update_row *r, int rule, uint32_t step)
{
    if (rule == RW_UPDATE_ADAM) {
        r->correction1 = 1 - pow(r->b1, (double)step);
        r->correction2 = 1 - pow(r->b2, (double)step);
        r->f.rate = (float)(r->lr / r->correction1);
        r->f.root = (float)(1 / sqrt(r->correction2));
    } else if (rule == RW_UPDATE_SGD && step == 1) { /* the first gradient is the momentum */
        r->b1 = 0, r->c1 = 1;
        r->f.b1 = 0, r->f.c1 = 1;
    }
}

/* A row as it is applied, and the parameter's pending updates: see rw_op_update_rows. */
RW_HOST_DEVICE struct rw_update_row rw_update_row_due(struct rw_update_row r, int rule, bool left_out,
                                                      int32_t pending[2])
{
    if (!r.step) return r;
    r.fresh |= (uint32_t)pending[1];
    r.skips = left_out;
    pending[1] = left_out && r.fresh;
    if (left_out) pending[0]++;
    else if (pending[0]) rw_update_row_of_step(&r, rule, r.step -= (uint32_t)pending[0]);
    return r;
}

#endif
