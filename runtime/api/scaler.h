/* A loss scaler as recorders, and the host's work around each of its steps. */
#ifndef RW_API_SCALER_H
#define RW_API_SCALER_H

#include "autodiff/requested_outputs.h"
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
rw_status rw_scaler_check_loss(rw_tape *t, const rw_tensor *loss, const char *what);

/* The address of the scale, with which backward begins. */
const void *rw_scaler_seed(const rw_scaler *s);

/* The first and the last recorder of a list: one unscales and checks gradients, the other computes the next scale. */
struct rw_recorder *rw_scaler_unscaler(rw_scaler *s);
struct rw_recorder *rw_scaler_updater(rw_scaler *s);

/* Call these before and after planning a step that updates inside backward (rw_request.first). Gradients are checked in
   the first pass, and the first recorder of the list stores the result. RW_ERR_MEMORY, recorded. The second is for any
   step with these recorders: if planning fails between them, rw_scaler_found() would stay a value of the plan. */
rw_status rw_scaler_pass_begin(rw_scaler *s, struct rw_first_pass **ret);
void rw_scaler_pass_end(rw_scaler *s);
struct rw_recorder *rw_scaler_noter(rw_scaler *s);

/* The address of the value that says whether something was found. In a list, between the two recorders, it is the value
   of the plan; otherwise it is the state in which that is stored. */
rw_tensor *const *rw_scaler_found(const rw_scaler *s);

/* A launch was queued that unscales its gradients and updates the scale. */
void rw_scaler_launched(rw_scaler *s);

#endif
