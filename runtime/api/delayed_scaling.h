/* Delayed scaling, as a recorder of a step. */
#ifndef RW_API_DELAYED_SCALING_H
#define RW_API_DELAYED_SCALING_H

#include "autodiff/requested_outputs.h"

/* A graph that uses it holds it. The last user frees it. */
void rw_delayed_share(rw_delayed_scaling *d);
void rw_delayed_release(rw_delayed_scaling *d);

rw_context *rw_delayed_context(const rw_delayed_scaling *d);

/* The recorder that advances the histories. found: while recording, the address of the value that says whether the step
   is skipped; NULL: no step is skipped. */
struct rw_recorder *rw_delayed_recorder(rw_delayed_scaling *d, rw_tensor *const *found);

/* A launch with it was queued: scales and histories have changed. */
void rw_delayed_count(rw_delayed_scaling *d);

#endif
