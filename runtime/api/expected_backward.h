/*
 * Steps that a read begins. rw_item() of a small value runs the forward part of the step that it is expected to belong
 * to, and keeps what backward needs; the backward of that step continues from there. request_history.h defines what is
 * expected. If nothing is known yet, the value itself is assumed to be the loss.
 *
 * A step may begin before its tape is fully recorded. Its plan is that of the last step with the same structure, and it
 * runs as far as the tape is recorded (RW_RUN_AHEAD). Code that continues it compares the tape's words first.
 *
 * A failure here is no error: the value is then computed separately.
 *
 * A step also computes values ahead of their requests, and eager mode computes all of them, from the elements that
 * inputs have at that time. When an input is written, all that was computed ahead from it is dropped and later computed
 * again, unless the program has requested a value that depends on it (t->requested): then the step stays bound to the
 * old elements. An op with an effect is not executed ahead of its request, except in eager mode, which refuses the
 * write.
 */
#ifndef RW_API_EXPECTED_BACKWARD_H
#define RW_API_EXPECTED_BACKWARD_H

#include "api/request_history.h"
#include "run/run_state.h"

/* Computes the value as part of a step, if possible; otherwise changes nothing. */
void rw_begin_step_for(rw_tape *t, const rw_tensor *x);

/* Backward from one loss, which is added to the log. Continues a step that was begun, or runs one that computes what
   the last such step requested. seeds as in rw_run_request(). */
rw_status rw_begun_backward(rw_tape *t, uint32_t loss, const void *const *seeds);

/*
 * Makes the request of rw_backward(t, *loss) with everything that it also computes because the last such step requested
 * it. policy: NULL for the tape's. False: backward computes its loss alone. If the request fails with a status of
 * rw_is_of_more(), backward forgets the error and does the same. Free *ret_values, which the request refers to, with
 * rw_free().
 */
bool rw_backward_request(rw_tape *t, const uint32_t *loss, const struct rw_policy *policy, struct rw_request *ret,
                         uint32_t **ret_values);
/* Can the failure come from values that the step computes besides its loss? Then the loss alone may succeed. */
bool rw_is_of_more(rw_status status);

/* Calls that the tape makes through struct rw_upward. */
rw_status rw_begun_written(rw_tape *t, uint32_t leaf);
/*
 * Plans ahead when a step has ended and holds nothing. A next step that reads before it is fully recorded needs this
 * plan.
 */
void rw_begun_plan_ahead(rw_tape *t, struct rw_expected *e);

#endif
