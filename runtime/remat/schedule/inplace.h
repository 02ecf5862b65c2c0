/*
 * In-place writes: buffers of a schedule share memory if an op may overwrite an input at its last use with its output.
 */
#ifndef RW_REMAT_SCHEDULE_INPLACE_H
#define RW_REMAT_SCHEDULE_INPLACE_H

#include "remat/schedule/schedule.h"

/*
 * Fills in `merged`, extends the lifetimes of buffers whose memory is reused, and makes sums accumulate in parameters'
 * gradients.
 */
void rw_merge_in_place(const struct rw_problem *p, struct rw_schedule *s);

#endif
