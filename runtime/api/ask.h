/* What the caller asks of a tape: values and gradients. */
#ifndef RW_API_ASK_H
#define RW_API_ASK_H

#include "plan/build.h"

/* REWIND_EAGER=1: runs the node that was just recorded. */
rw_status rw_run_eagerly(rw_tape *t, uint32_t node);

/*
 * Finds or makes the run of a request, and runs it to its end, or to where backward begins. seeds: by root, where the
 * gradient lies that backward begins with, NULL for ones; NULL for none at all.
 */
rw_status rw_run_request(rw_tape *t, const struct rw_request *request, const void *const *seeds, bool forward_only);

/*
 * The step of rw_backward() and of what begins or continues it. With REWIND_EAGER=1 every value has been computed and
 * is held: there is nothing to decide, and a budget of the tape's policy has no meaning.
 */
struct rw_request rw_program_step(const rw_tape *t, const uint32_t *roots, size_t n);

/* Is the value made by the forward part of a step? Not, when gradients were recorded before it. */
bool rw_is_in_forward(const rw_tape *t, const struct rw_tensor *v);

#endif
