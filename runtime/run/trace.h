/*
 * REWIND_TRACE=file.json: every action of every plan with its time, in the format that Perfetto and chrome://tracing
 * open (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, "Trace Event Format").
 *
 * Tracks: the actions (op, call site, operations, bytes read and written), the regions they belong to, forward and
 * replay apart, and one for each lane that moves values. Times are the device's: a device that runs behind the host is
 * asked for its own. An observer.
 */
#ifndef RW_RUN_TRACE_H
#define RW_RUN_TRACE_H

#include "run/run.h"

/*
 * Traces the context's runs from now on into that file; NULL or "" traces nothing. A file that cannot be written is an
 * error of the context, and where it cannot be written any more, of the run after that. A second context writes to
 * file.json.2, and so on.
 */
void rw_trace_attach(rw_context *ctx, const char *name);

#endif
