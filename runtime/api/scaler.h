/* A scaler as recorders, and what the host does around each of its steps. */
#ifndef RW_API_SCALER_H
#define RW_API_SCALER_H

#include "autodiff/targets.h"
#include "base/dependent.h"
#include "record/context.h"
#include "record/param.h"

#include <rewind/precision.h>

/* A graph that uses a scaler holds it; released, it goes with the last who has it. */
void rw_scaler_share(rw_scaler *s);
void rw_scaler_release(rw_scaler *s);

/* A cache that names the scaler is told when its last user frees it, while its states are still there. It does not keep
   the scaler alive. */
void rw_scaler_depend(rw_scaler *s, struct rw_dependent *d, void (*gone)(struct rw_dependent *d));

rw_context *rw_scaler_context(const rw_scaler *s);

/* A step that begins with the scale needs a loss that can: an error that names the call. */
rw_status rw_scaler_check_loss(rw_tape *t, const rw_tensor *loss, const char *what);

/* What backward begins with: where the scale lies. */
const void *rw_scaler_seed(const rw_scaler *s);

/* The first and the last of a list: what unscales gradients and looks at them; what makes the scale of the next step.
 */
struct rw_recorder *rw_scaler_unscaler(rw_scaler *s);
struct rw_recorder *rw_scaler_updater(rw_scaler *s);

/* Around the planning of a step that updates inside backward (rw_request.first): gradients are looked at in the first
   pass, and the first of the list notes what was found. RW_ERR_MEMORY, recorded. */
rw_status rw_scaler_pass_begin(rw_scaler *s, struct rw_first_pass **ret);
void rw_scaler_pass_end(rw_scaler *s);
struct rw_recorder *rw_scaler_noter(rw_scaler *s);

/* Where the value is that says whether something was found: in a list between the two that of the plan, else the state
   where it was noted. */
rw_tensor *const *rw_scaler_found(const rw_scaler *s);

/* A launch was queued that unscales its gradients and updates the scale. */
void rw_scaler_launched(rw_scaler *s);

#endif
