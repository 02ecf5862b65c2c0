/**
 * rewind/monitor.h - what a run writes down of each step, and what it is warned of.
 *
 * The caller hands over what it has read anyway; memory and time are taken from the context and the clock. One line of
 * JSON for each step goes to a file, which is flushed, so that it can be read while the run goes on:
 *
 *     {"step":7,"loss":3.21,"grad_norm":0.9,"lr":0.0006,"tokens_per_s":51234,"step_ms":160.1,
 *      "memory":{"parameters":...,"gradients":...,"optimizer":...,"kept":...,"peak":...},"alerts":["loss_spike"]}
 *
 * What is no number or infinite is null, and the line has "nonfinite":true. What the caller does not know is left out.
 *
 * | alert | when |
 * |---|---|
 * | loss_nonfinite, grad_nonfinite | at once |
 * | loss_spike | above the median of the last 100 by ten times their median deviation, and above twice the median |
 * | grad_spike | above ten times the median of the last 100 |
 * | slow_step | above 1.2 times the median of the last 100 |
 *
 * Medians are of finite numbers, from the 21st on. Alerts are told and written; what is done about them is the caller's
 * choice: to note it, to stop, to go back to the last checkpoint.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_MONITOR_H
#define REWIND_MONITOR_H

#include <rewind/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rw_monitor rw_monitor;

enum {
    RW_ALERT_LOSS_NONFINITE = 1 << 0,
    RW_ALERT_LOSS_SPIKE = 1 << 1,
    RW_ALERT_GRAD_NONFINITE = 1 << 2,
    RW_ALERT_GRAD_SPIKE = 1 << 3,
    RW_ALERT_SLOW_STEP = 1 << 4
};

/** What the caller knows of a step. Zeroed members but for `step` and `loss` are not known. */
typedef struct rw_monitor_values {
    uint64_t step;
    double loss;
    double grad_norm; ///< before clipping: what rw_clip_grad_norm() gives; negative: known to be 0
    double lr;
    double tokens;    ///< of this step
    double seconds;   ///< that it took [since the last call; the first one has no time]
} rw_monitor_values;

/**
 * Begins to watch a run.
 * @param ret_monitor receives the monitor, owned by the caller; untouched on failure.
 * @param path        the file, whose lines are added to: a run that goes on goes on there. NULL: none, alerts alone.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL; an error that is stuck in the context; RW_ERR_IO, RW_ERR_MEMORY.
 */
RW_API rw_status rw_monitor_create(rw_monitor **ret_monitor, rw_context *ctx, const char *path);

/**
 * Takes a step in, and writes its line.
 * @param ret_alerts receives RW_ALERT_... flags, 0 for none; may be NULL; filled whenever the values were taken in.
 * @return RW_OK, RW_ERR_ARGUMENT for NULL; RW_ERR_IO: the line could not be written (a full disk), the step was taken
 *         in all the same, and the next line is tried again. An error that is stuck in the context does not keep it
 *         from its work: what a failed step looked like should be written down.
 */
RW_API rw_status rw_monitor_step(rw_monitor *monitor, const rw_monitor_values *values, unsigned *ret_alerts);

/** The name of one alert as it stands in the file, "?" for any other number. Any thread. */
RW_API const char *rw_alert_name(unsigned alert);

/** Closes the file and sets *monitor to NULL. NULL-safe. */
RW_API void rw_monitor_destroy(rw_monitor **monitor);

#ifdef __cplusplus
}
#endif

#endif
