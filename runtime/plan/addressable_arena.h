/* The largest arena of a plan: an operand word holds an offset in units of the device's alignment (plan/plan.h). */
#ifndef RW_PLAN_ADDRESSABLE_ARENA_H
#define RW_PLAN_ADDRESSABLE_ARENA_H

#include "record/tape.h"

/* The maximum size of an arena. */
uint64_t rw_arena_size_max(const rw_context *ctx);

/* Refuses a larger arena with RW_ERR_MEMORY, recorded. */
rw_status rw_arena_check_size(const rw_tape *t, uint64_t bytes);

#endif
