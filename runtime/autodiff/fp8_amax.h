/* Delayed FP8 scaling in a step: the amaxes that the step computes are recorded once, when backward ends. */
#ifndef RW_AUTODIFF_FP8_AMAX_H
#define RW_AUTODIFF_FP8_AMAX_H

#include "record/tape.h"

/*
 * Records a commit per buffer that receives amaxes of the tape. Only amaxes of nodes and kept FP8 data that a loss or
 * gradient of the step depends on count, so that no node is executed for its amax alone. nodes: by node, false except
 * for the producers of those values; the call completes it. Errors are recorded.
 */
rw_status rw_amaxes_record(rw_tape *t, bool *nodes);

#endif
