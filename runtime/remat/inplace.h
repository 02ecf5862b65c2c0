/* Which buffers of a schedule share memory because an op may write its output over an input that dies there. */
#ifndef RW_REMAT_INPLACE_H
#define RW_REMAT_INPLACE_H

#include "remat/schedule.h"

/* Fills in `merged`, lengthens the lives of what is taken over, and moves sums into parameters' gradients. */
void rw_merge_in_place(const struct rw_problem *p, struct rw_schedule *s);

#endif
