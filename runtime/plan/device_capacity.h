/*
 * Memory check before a plan runs. Planning works for any machine; a call that would run a plan is refused if this
 * machine could never hold its arena, with the memory that exists and the minimum budget.
 */
#ifndef RW_PLAN_DEVICE_CAPACITY_H
#define RW_PLAN_DEVICE_CAPACITY_H

#include "plan/build.h"

/* RW_ERR_MEMORY, recorded, if the plan's arena is larger than all memory of the device. A plan that has passed is
   not checked again: if a limit was lowered since, its arena exists, or its allocation fails. A refused plan is
   checked each time, because a limit may have been raised. */
rw_status rw_plan_check_size(rw_tape *t, const struct rw_request *request, rw_plan *plan);

#endif
