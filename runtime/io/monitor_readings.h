/* Collects the numbers of a step for TensorBoard and Prometheus, with their names and help texts. */
#ifndef RW_IO_MONITOR_READINGS_H
#define RW_IO_MONITOR_READINGS_H

#include "io/monitor_state.h"

#define RW_VALIDATION_HELP "Loss on text that is not trained on"
#define RW_STEP_READINGS (60 + 5 * RW_WATCHED_GROUPS) /* without sites */

void rw_readings_put(struct rw_readings *r, const char *name, const char *help, double value);

/* Collects all of them in m->readings. RW_ERR_IO, with errno, if there are too many. */
rw_status rw_monitor_readings(rw_monitor *m, const struct rw_shown_step *s);

#endif
