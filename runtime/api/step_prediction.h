/* Plans for prediction: nothing runs, and no plan stays in the cache. */
#ifndef RW_API_STEP_PREDICTION_H
#define RW_API_STEP_PREDICTION_H

#include "autodiff/requested_outputs.h"
#include "record/tape.h"

/* Called with the request of the step. */
typedef rw_status rw_use_request(rw_tape *t, const struct rw_request *request, void *result);

/*
 * Checks t and loss, parses the policy (NULL: the tape's own) and calls use() with the request that rw_backward() would
 * make under it; once more with that of the loss alone where backward would do so. Errors name `call` and are recorded.
 */
rw_status rw_plan_under(rw_tape *t, rw_tensor *loss, const char *policy, const char *call, rw_use_request *use,
                        void *result);

#endif
