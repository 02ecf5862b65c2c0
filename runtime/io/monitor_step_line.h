/* Composes the JSON line of a step. rewind/monitor.h lists its members. */
#ifndef RW_IO_MONITOR_STEP_LINE_H
#define RW_IO_MONITOR_STEP_LINE_H

#include "io/monitor_line.h"
#include "io/monitor_state.h"

#define RW_LINE_TEXT 500 /* bytes of a file name or note; the rest is left out */
#define RW_STEP_LINE 10240 /* bytes of a line without sites */
#define RW_SITE_LINE (RW_SITE_NAME + 3 * (RW_LINE_TEXT + 3) + 600) /* a byte that is not UTF-8 becomes three */

/* ,"alerts":[...] */
void rw_line_alerts(struct rw_line *l, unsigned alerts);

/* Writes a JSON string: control characters are omitted, invalid UTF-8 becomes U+FFFD, and multi-byte characters are
   not split. */
void rw_line_text(struct rw_line *l, const char *text);

/* Writes the whole line to the monitor's memory. */
void rw_line_of_step(struct rw_line *l, const rw_monitor *m, const struct rw_shown_step *s);

#endif
