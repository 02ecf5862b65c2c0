/* Pass 4 for a schedule: in-place merging, placement, and the compact form that a plan keeps. */
#ifndef RW_PLAN_LAYOUT_PLAN_H
#define RW_PLAN_LAYOUT_PLAN_H

#include "plan/plan.h"
#include "remat/schedule.h"

/* Fills the plan's steps, places, sources, results, byte counts and costs. RW_ERR_MEMORY; the plan is then released. */
rw_status rw_layout_plan(const rw_tape *t, struct rw_schedule *s, rw_plan *plan);

#endif
