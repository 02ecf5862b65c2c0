/*
 * Recompute nodes: nodes that recompute one output of another node from its inputs and its other outputs. An op with a
 * cheap last part defines how (rw_op_def.recompute_output): gelu is recomputed from what the product left, without the
 * product.
 *
 * A recompute node follows the adjoint nodes on the tape and is part of the plan's tail. Its output is the same value
 * that the original node computes, so readers need not know which node computed it. It never runs in forward, and
 * policies do not see it: a replay uses it if its inputs are available (schedule.c).
 */
#ifndef RW_AUTODIFF_RECOMPUTE_OUTPUT_H
#define RW_AUTODIFF_RECOMPUTE_OUTPUT_H

#include "record/tape.h"

/*
 * Records a recompute node for each output of the first n_recorded nodes that has one, if an adjoint node reads that
 * output or a value computed from it, since only these may be recomputed. Inputs of a recompute node have no recompute
 * node themselves. Errors are recorded in the context; the caller cuts what was recorded.
 */
rw_status rw_recompute_nodes_record(rw_tape *t, size_t n_recorded);

#endif
