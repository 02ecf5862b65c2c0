/*
 * A plan as text, for people and for comparing: the same bytes for the same plan on every machine where its costs are
 * the same. docs/plans.md explains each column.
 */
#ifndef RW_PLAN_PRINT_H
#define RW_PLAN_PRINT_H

#include "plan/planning_state.h"

#include <stdio.h>

/* Of a planning and the plan that it placed. Write errors stay in the stream (base/sigpipe_safe_output.h).
   RW_ERR_MEMORY, which is not recorded, before anything is printed. */
rw_status rw_plan_print_to(const struct rw_planning *g, const rw_plan *plan, FILE *out);

#endif
