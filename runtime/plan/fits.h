/*
 * Planning answers for any machine. Who is about to run a plan asks whether this one could ever hold its arena: where
 * it could not, the call is refused before anything runs, with what there is and the least budget that would do.
 */
#ifndef RW_PLAN_FITS_H
#define RW_PLAN_FITS_H

#include "plan/build.h"

/* RW_ERR_MEMORY, recorded, for a plan of that request whose arena is larger than all memory that the device could give.
   Of a plan that has passed nobody asks again: were a limit lowered since, its arena is there, or is refused when it is
   allocated. One that was refused is asked about each time: a limit may have been raised. */
rw_status rw_plan_check_size(rw_tape *t, const struct rw_request *request, rw_plan *plan);

#endif
