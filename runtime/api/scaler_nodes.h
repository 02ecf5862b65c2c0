/* Records loss scaling, for its calls and for lists of recorders: functions of a struct rw_scaler_recorder. */
#ifndef RW_API_SCALER_NODES_H
#define RW_API_SCALER_NODES_H

#include "api/scaler_struct.h"

rw_status rw_scaler_record_begin(struct rw_step_recorder *r, const struct rw_recording *now);
void rw_scaler_record_end(struct rw_step_recorder *r);

/* Unscales one gradient, in either of two passes. */
rw_tensor *rw_scaler_record_gradient(struct rw_step_recorder *r, struct rw_recording *now, uint32_t param,
                                     rw_tensor *gradient);

/* Unscales all gradients, or after two passes combines what was found in them, and sets rw_recording.skip. */
rw_status rw_scaler_record_unscaling(struct rw_step_recorder *r, struct rw_recording *now);

/* The scale of the next step. */
rw_status rw_scaler_record_next(struct rw_step_recorder *r, struct rw_recording *now);

#endif
