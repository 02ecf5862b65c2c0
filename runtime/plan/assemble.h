/* Assembles a plan: turns a schedule and its offsets into the compact form that is cached and run. */
#ifndef RW_PLAN_ASSEMBLE_H
#define RW_PLAN_ASSEMBLE_H

#include "plan/plan.h"
#include "remat/schedule/simulate.h"

/* offset: per buffer. The caller gets one reference. RW_ERR_MEMORY, without a message. */
rw_status rw_plan_assemble(const struct rw_problem *p, const struct rw_schedule *s, const uint64_t *offset,
                           rw_plan **ret_plan);

#endif
