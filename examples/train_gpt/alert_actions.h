/* Actions for alerts. */
#ifndef REWIND_EXAMPLES_ALERT_ACTIONS_H
#define REWIND_EXAMPLES_ALERT_ACTIONS_H

#include "run.h"

/* Makes the update of a step, unless an alert that was raised before it skips it, rolls back, or stops the run because
   a number is not finite. */
rw_status update_or_skip(struct run *r, unsigned alerts, bool *ret_skipped);

/* Takes the other actions for all alerts of the step, after its update and its line. *step becomes the next one. */
rw_status recover(struct run *r, int *step, unsigned alerts, bool skipped, double loss);

#endif
