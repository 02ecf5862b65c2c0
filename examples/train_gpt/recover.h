/* What is done about alerts. */
#ifndef REWIND_EXAMPLES_RECOVER_H
#define REWIND_EXAMPLES_RECOVER_H

#include "run.h"

/* What is to be done about the alerts, and the update, unless it is left out. *step is the next one. */
rw_status recover(struct run *r, int *step, unsigned alerts, double loss);

#endif
