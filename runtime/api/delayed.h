/* Delayed scaling as a recorder of a step. */
#ifndef RW_API_DELAYED_H
#define RW_API_DELAYED_H

#include "autodiff/targets.h"

/* A graph that uses it holds it; released, it goes with the last who has it. */
void rw_delayed_share(rw_delayed *d);
void rw_delayed_release(rw_delayed *d);

rw_context *rw_delayed_context(const rw_delayed *d);

/* What moves the histories on. found: where the value is, when it is recorded, that says whether the step is left out;
   NULL: no step is. */
struct rw_recorder *rw_delayed_recorder(rw_delayed *d, rw_tensor *const *found);

/* A launch with it was queued: scales and histories have changed. */
void rw_delayed_count(rw_delayed *d);

#endif
