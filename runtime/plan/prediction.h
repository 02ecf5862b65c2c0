/* Fills in an rw_prediction: memory and time of a plan before it runs. */
#ifndef RW_PLAN_PREDICTION_H
#define RW_PLAN_PREDICTION_H

#include "plan/build.h"

#include <rewind/plan.h>

/* For a planning and the plan that it placed. RW_ERR_MEMORY leaves *ret untouched; it is not recorded. */
rw_status rw_predict(const struct rw_planning *g, const rw_plan *plan, rw_prediction *ret);

#endif
