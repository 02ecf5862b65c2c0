/*
 * Remakes: nodes that make an output of another node anew, from its inputs and its other outputs. An op that ends with
 * something cheap says how (rw_op_def.remake): gelu of what a product left is made of that, not by the product again.
 *
 * A remake stands on the tape behind what differentiation recorded, and goes where that goes. Its output is the very
 * value that it makes: whoever looks at what an action writes finds a value that forward made, however it came about.
 * It never runs in forward, and a policy has nothing to say about it: a replay finds out by what is there (schedule.c).
 */
#ifndef RW_AUTODIFF_REMAKE_H
#define RW_AUTODIFF_REMAKE_H

#include "record/tape.h"

/*
 * One for each output that has one, of the first n_recorded nodes, if an adjoint node reads it or what it leads to:
 * that is what may be made again. What a remake reads has none itself. Errors are recorded in the context; what was
 * recorded stays for the caller to cut.
 */
rw_status rw_remakes_record(rw_tape *t, size_t n_recorded);

#endif
