/* A loss scaler, and the host's work around each of its steps. */
#ifndef RW_API_SCALER_H
#define RW_API_SCALER_H

#include "base/weak_refs.h"
#include "record/context.h"
#include "record/param.h"

#include <rewind/precision.h>

/* A graph that uses a scaler holds it. The last user frees it. */
void rw_scaler_share(rw_scaler *s);
void rw_scaler_release(rw_scaler *s);

/* A cache that refers to the scaler is notified when its last user frees it, while its states still exist. This does
   not keep the scaler alive. */
void rw_scaler_depend(rw_scaler *s, struct rw_dependent *d, void (*gone)(struct rw_dependent *d));

rw_context *rw_scaler_context(const rw_scaler *s);

/* Checks that backward of this loss can begin with a scale; an error names the call. */
rw_status rw_scaler_check_loss(const rw_tape *t, const rw_tensor *loss, const char *what);

/* Checks that it may divide the gradients that exist, and that backward may add to them by its scale. */
rw_status rw_scaler_check_scaled(const rw_scaler *s, const char *what);

/* The address of the scale, with which backward begins. */
const void *rw_scaler_seed(const rw_scaler *s);

/* The state in which the result of the last unscaling is stored: one RW_I32, above zero if something was found. */
rw_tensor *rw_scaler_found(const rw_scaler *s);

/* A launch was queued that unscales its gradients and updates the scale. */
void rw_scaler_launched(rw_scaler *s);

#endif
