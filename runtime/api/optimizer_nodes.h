/* Records the updates of an optimizer, for its call and for lists of recorders. */
#ifndef RW_API_OPTIMIZER_NODES_H
#define RW_API_OPTIMIZER_NODES_H

#include "api/optimizer_struct.h"

/* All its parameters, after backward. */
rw_status rw_optimizer_record_after(rw_optimizer *opt, struct rw_recording *now);

/* A separate update for each parameter of which the step has a gradient. */
rw_status rw_optimizer_record_inside(rw_optimizer *opt, struct rw_recording *now);

#endif
