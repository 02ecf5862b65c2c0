/* An AdamW step in two: what the host does each time, and what a captured graph repeats. */
#ifndef RW_API_ADAMW_H
#define RW_API_ADAMW_H

#include "record/context.h"
#include "record/param.h"

#include <rewind/optim.h>

/* A graph that steps with an optimizer holds it; released, it goes with the last who has it. */
void rw_adamw_share(rw_adamw *opt);
void rw_adamw_release(rw_adamw *opt);

rw_context *rw_adamw_context(const rw_adamw *opt);

/*
 * Counts a step of every parameter whose gradient is not clear, and puts the learning rate and the bias corrections
 * where the update finds them. The parameters count as changed from here on.
 */
rw_status rw_adamw_prepare(rw_adamw *opt);

/* Queues the update of those parameters. Reads nothing on the host that changes from step to step. */
rw_status rw_adamw_queue(rw_adamw *opt);

#endif
