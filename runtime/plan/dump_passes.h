/*
 * REWIND_DUMP: writes what each pass made of a step, one file per pass, to find the pass that a surprise comes from.
 *
 *     0001.tape      recorded nodes                           0001.schedule  actions and buffers before placement
 *     0001.problem   nodes to run, with costs and bytes       0001.plan      what runs: plan/print.h
 *     0001.choice    what becomes of each value, and why
 *
 * A number that the folder has is left out, so several processes may share it.
 */
#ifndef RW_PLAN_DUMP_PASSES_H
#define RW_PLAN_DUMP_PASSES_H

#include "plan/planning_state.h"

/* Dumps the context's plans into the folder, which is created now, so that a mistake in its name does not fail a later
   step. NULL or "": no dump. Errors are recorded. */
rw_status rw_plan_dump_into(rw_context *ctx, const char *folder);

/* Of a planning and the plan that it placed, where the context dumps. Errors are recorded. */
rw_status rw_plan_dump(const struct rw_planning *g, const rw_plan *plan);

#endif
