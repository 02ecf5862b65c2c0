/* Plans for prediction: nothing runs, and no plan stays in the cache. */
#ifndef RW_API_STEP_PREDICTION_H
#define RW_API_STEP_PREDICTION_H

#include "record/policy.h"
#include "record/tape.h"

/* Called with the checked loss and the policy to plan with. */
typedef rw_status rw_use_policy(rw_tape *t, uint32_t loss, const struct rw_policy *policy, void *result);

/* Checks t and loss, parses the policy (NULL: the tape's own) and calls use(). Errors name `call` and are recorded. */
rw_status rw_plan_under(rw_tape *t, rw_tensor *loss, const char *policy, const char *call, rw_use_policy *use,
                        void *result);

#endif
