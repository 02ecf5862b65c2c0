/*
 * REWIND_TRACE=file.json: writes every executed action with its time, in the format of Perfetto and chrome://tracing
 * (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, "Trace Event Format").
 *
 * Tracks: actions (op, call site, operations, bytes read and written); their regions, forward and replay separately;
 * and one per copy lane. Times are the device's own. The trace is an observer of runs.
 */
#ifndef RW_RUN_TRACE_H
#define RW_RUN_TRACE_H

#include "run/run_state.h"

/*
 * Traces the context's later runs to a file whose name trace_file.h derives from `name`; NULL or "" traces nothing. A
 * file that cannot be created is an error of the context. If a later write fails, its actions are missing, the file
 * stays valid, and the next run reports the error once. A child of fork() is not traced.
 */
void rw_trace_attach(rw_context *ctx, const char *name);

#endif
