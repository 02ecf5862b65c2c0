/*
 * REWIND_TRACE=file.json: every step of every plan with its time, in the format that Perfetto and chrome://tracing open
 * (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, "Trace Event Format").
 *
 * Two tracks: the steps (op, call site, operations, bytes read and written), and the regions they belong to, forward and replay apart. Times are
 * the device's: a device that runs behind the host is asked for its own.
 */
#ifndef RW_RUN_TRACE_H
#define RW_RUN_TRACE_H

#include "run/run.h"

struct rw_trace;

/* Opens what the environment asks for; NULL, without an error, when it asks for nothing. A file that cannot be written is
   an error of the context. A second context writes to file.json.2, and so on. */
struct rw_trace *rw_trace_open(rw_context *ctx);
void rw_trace_close(struct rw_trace **trace);

/* Around the steps [from, to) of a plan: room for the times, the begin of a step, its end. */
rw_status rw_trace_begin(struct rw_trace *trace, rw_context *ctx, size_t n_steps);
void rw_trace_step(struct rw_trace *trace, rw_context *ctx, size_t i);

/* After the plan was waited for: writes its events. */
void rw_trace_write(struct rw_trace *trace, const rw_tape *t, const rw_plan *plan, size_t from, size_t to);

#endif
