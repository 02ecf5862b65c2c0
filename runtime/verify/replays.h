/*
 * REWIND_VERIFY=digest: every value that a step replays is digested when it is first computed and when it is computed
 * again. Digests stay where the bytes are, and the device compares them: nothing is waited for, and a captured graph
 * checks itself at each launch.
 */
#ifndef RW_VERIFY_REPLAYS_H
#define RW_VERIFY_REPLAYS_H

#include "run/run.h"

/*
 * Who watches what is queued next of plan: *ret_observer is the plan's own, or NULL when the mode is another. The first
 * call allocates and may not be within a capture.
 */
rw_status rw_replays_watch(rw_tape *t, rw_plan *plan, struct rw_observer **ret_observer);

/* Step `step` of a run that has ended is a replay that gave other bytes: RW_ERR_MISMATCH, and the error says which. */
rw_status rw_replays_report(rw_tape *t, const rw_plan *plan, size_t step);

void rw_replays_destroy(struct rw_replays *r); /* NULL-safe */

#endif
