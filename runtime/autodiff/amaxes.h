/* Delayed scaling in a step: what it has computed of amaxes is noted once, when backward ends. */
#ifndef RW_AUTODIFF_AMAXES_H
#define RW_AUTODIFF_AMAXES_H

#include "record/tape.h"

/*
 * Records a commit for each buffer that amaxes of the tape go to, of those alone whose nodes one of the values depends
 * on: what a step has no need of it does not run for their sake. needed: by node, the caller's, false but for the
 * makers of those values; it is filled in. Errors are recorded.
 */
rw_status rw_amaxes_record(rw_tape *t, bool *needed);

#endif
