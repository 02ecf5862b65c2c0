/* Actions for alerts. */
#ifndef REWIND_EXAMPLES_ALERT_ACTIONS_H
#define REWIND_EXAMPLES_ALERT_ACTIONS_H

#include "run.h"

/* Takes the actions for the alerts, and the update, unless it is skipped. *step is the next one. */
rw_status recover(struct run *r, int *step, unsigned alerts, double loss);

#endif
