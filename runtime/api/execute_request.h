/* Runs requests: steps, halves of steps, evaluations. Callers decide which values are requested and when. */
#ifndef RW_API_EXECUTE_REQUEST_H
#define RW_API_EXECUTE_REQUEST_H

#include "plan/build.h"
#include "run/run_state.h"

/*
 * Finds or makes the run of a request, and runs it to its end, or to the beginning of backward. seeds: by root, the
 * address of the gradient with which backward begins, NULL for ones; NULL for ones everywhere.
 */
rw_status rw_run_request(rw_tape *t, const struct rw_request *request, const void *const *seeds, bool forward_only);

/*
 * Runs r to its end, or to the beginning of backward. False: run the request alone. For r may also have computed values
 * that the program has not requested (RW_RUN_ASSUMED), has failed before backward, no sum of gradients is lost, and the
 * error is forgotten.
 */
bool rw_run_assumed_part(struct rw_run *r, const void *const *seeds, bool forward_only, rw_status *ret_status);

/* Computes values with the memory of inference and keeps nothing else; effects: also runs effects that are pending. */
rw_status rw_evaluate(rw_tape *t, const uint32_t *values, size_t n, bool effects);

/*
 * Does a request of a value also request the effects? Yes on a tape on which nothing requires a gradient. On any other
 * tape effects belong to the step and run with its backward. False for a tape without effects.
 */
bool rw_requests_include_effects(rw_tape *t);

/* Must an evaluation run effects, even if every requested value is already computed? */
bool rw_has_due_effects(rw_tape *t);

/*
 * The step of rw_backward() and of what begins or continues it. With REWIND_EAGER=1 every value is already computed and
 * held, so there is nothing to decide, and a budget of the tape's policy has no meaning.
 */
struct rw_request rw_program_step(const rw_tape *t, const uint32_t *roots, size_t n);

/* Does the forward part of a step compute the value? Not if gradients were recorded before it. */
bool rw_is_in_forward(const rw_tape *t, const struct rw_tensor *v);

/* Clears an error of an assumption, which is not an error of the program. RW_ERR_MISMATCH, and an error that nothing
   would report again, are kept in any case. */
void rw_forget_error(rw_context *ctx);

#endif
