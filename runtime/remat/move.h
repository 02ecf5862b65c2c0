/*
 * Choices in which part of what is kept waits outside the device's memory: what a planner weighs against keeping and
 * replaying it. What forward makes first backward reads last, so it is moved first: its copies have the longest time.
 */
#ifndef RW_REMAT_MOVE_H
#define RW_REMAT_MOVE_H

#include "remat/choice.h"

/*
 * Of the bytes that the choice keeps for backward the first `part` of so many parts; results and what the caller saves
 * stay. RW_ERR_MEMORY.
 */
rw_status rw_move_first(const struct rw_problem *p, struct rw_choice *c, unsigned part, unsigned parts);

/* Does the choice move anything? */
bool rw_choice_moves(const struct rw_problem *p, const struct rw_choice *c);

/* What takes less outside than one unit of files and pages stays where it is. */
#define RW_LEAST_MOVED 4096

#endif
