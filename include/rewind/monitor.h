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
 * The work of the steps that ran since the last call is known from the costs of their ops: "model_flops_per_s" counts
 * forward and backward, "hardware_flops_per_s" replays as well. With rw_monitor_watch() there is more:
 *
 *     "mfu":0.41,"hfu":0.52,"param_norm":88.2,"update_ratio":0.0011,"zeros":0.0003,
 *     "groups":{"attention":{"elements":28348416,"unclipped_norm":0.7,"grad_norm":0.4,"param_norm":...,
 *                            "update_ratio":...,"zeros":...},...}
 *
 * mfu and hfu are shares of a stated peak. The rest comes from the optimizer's own pass: the norm of the gradients as
 * it took them (behind clipping and unscaling), of the weights behind the update, the norm of what was added to the
 * weights over that of the weights (0 where they are all zero), and the share of gradients that are zero. Parameters
 * that the update leaves out, without a gradient or frozen (rewind/optimizers.h), do not count. Of 16-bit parameters
 * the weights are the float32 master copies. Where gradients are clipped, by rw_clip_grad_norm() or in a graph,
 * "grad_norm" of the step and "unclipped_norm" of a group are what they were before, taken from the clipping's own
 * sums; of an update that was left out these are all that is known, and its groups have 0 elements. No byte of the
 * training depends on it.
 *
 * | alert | when |
 * |---|---|
 * | loss_nonfinite, grad_nonfinite | at once |
 * | loss_spike | above the median of the last 100 by ten times their median deviation, and above twice the median; or
 *   at ten times the largest magnitude of the first 100, told when it begins: medians follow a loss that rises slowly |
 * | grad_spike | above ten times the median of the last 100: of all, or of a group, which then has "alerts" as well |
 * | slow_step | above 1.2 times the median of the last 100 |
 * | scale_drop, scale_rise | the loss scale is at most half, or at least twice the median of the last 100; below one,
 *   told when it begins |
 * | skips | the third update in a row was left out, or more than 5 % of the last 200 were, told once for each of them |
 * | plateau | every 100 steps from the 200th on: the median loss of the last 100 is not 0.1 % below that of the 100
 *   before, and the median norm of the gradients has not fallen by 10 % either |
 * | updates | the update over the weights was outside 1e-5 to 1e-1 for 100 steps in a row, told once for each hundred |
 * | zeros | more than half of the gradients are zero, and more than twice the median of the last 100 |
 * | site_scale_drop, site_scale_rise | a site's scale is below half, or above twice the median of its last 50 |
 * | saturated, flushed | more than 0.1 % of a site's numbers are saturated, or more than 1 % flushed to zero |
 * | amax_nonfinite | an element that a site quantised was no number or infinite |
 *
 * Those of sites are told when they begin, and again only after a step in which they did not hold.
 *
 * Under a recipe of 8-bit codes (rewind/precision.h) each operand of a linear layer is a site: x, w and dy of a weight.
 * Asked for, the passes that make codes count on the way, and a line has what the step's backward depended on:
 *
 *     "sites":{"h.0.up/x":{"op":"linear","at":"model.c:81","elements":786432,"amax":3.2,"scale":128,
 *                          "scale_most":512,"saturated":0,"flushed":0.0003},"h.0.up/w":{...},"h.0.up/dy":{...},...}
 *
 * Of all uses and micro-batches since the last call together, replays not counted again: the largest magnitude, null
 * where it is not finite; by what numbers were multiplied, the least of it, and the largest where it was not one number
 * alone, of blocks that are neither zero nor infinite; the share of numbers that were finite and above the largest
 * code, and of those that were not zero and became zero. What several products read as their input has one set of
 * codes, and is a site of the first one's weight. No byte of a gradient or parameter depends on it; a plan has 256
 * bytes (512 on CUDA) more for each set of codes.
 *
 * Medians are of finite numbers, from the 21st on. Alerts are told and written; what is to be done about each is a
 * policy that the monitor keeps (rw_monitor_set_policy()), and the caller does it: what was seen and done is then
 * written down (rw_monitor_recovered()).
 * Thread-safety: as for the context.
 */
#ifndef REWIND_MONITOR_H
#define REWIND_MONITOR_H

#include <rewind/optimizers.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rw_monitor rw_monitor;

enum {
    RW_ALERT_LOSS_NONFINITE = 1 << 0,
    RW_ALERT_LOSS_SPIKE = 1 << 1,
    RW_ALERT_GRAD_NONFINITE = 1 << 2,
    RW_ALERT_GRAD_SPIKE = 1 << 3,
    RW_ALERT_SLOW_STEP = 1 << 4,
    RW_ALERT_SCALE_DROP = 1 << 5,
    RW_ALERT_SCALE_RISE = 1 << 6,
    RW_ALERT_SKIPS = 1 << 7,
    RW_ALERT_PLATEAU = 1 << 8,
    RW_ALERT_UPDATES = 1 << 9,
    RW_ALERT_ZEROS = 1 << 10,
    RW_ALERT_SITE_SCALE_DROP = 1 << 11,
    RW_ALERT_SITE_SCALE_RISE = 1 << 12,
    RW_ALERT_SATURATED = 1 << 13,
    RW_ALERT_FLUSHED = 1 << 14,
    RW_ALERT_AMAX_NONFINITE = 1 << 15
};

/** What is done about an alert, from the weakest to the strongest. */
typedef enum rw_recovery {
    RW_RECOVERY_NOTE,      ///< nothing
    RW_RECOVERY_SKIP,      ///< this step's update is left out
    RW_RECOVERY_LOWER,     ///< the learning rate is lowered
    RW_RECOVERY_ROLL_BACK, ///< the run goes back to its last checkpoint
    RW_RECOVERY_STOP
} rw_recovery;

/** Files beside the lines of JSON. */
typedef enum rw_monitor_format {
    RW_MONITOR_TENSORBOARD, ///< a folder, made when it is not there: each monitor adds a file of events, as TensorBoard
                            ///< reads them while they grow
    RW_MONITOR_PROMETHEUS   ///< a file in Prometheus' text format 0.0.4, written aside and renamed: the last step, once
                            ///< in a second; one with an alert at once; one that waits when rw_monitor_watch() is
                            ///< called, and the very last when the monitor is destroyed
} rw_monitor_format;

/** Parameters that are shown together. */
typedef struct rw_monitor_group {
    const char *name;    ///< in lines and files: 1 to 60 bytes, without quotes, backslashes and control characters
    const char *pattern; ///< of names, as a shell's for files: "h.*.attn.*"; a star takes in points and slashes
} rw_monitor_group;

/** What a monitor looks at beside what it is given. */
typedef struct rw_monitor_sources {
    rw_optimizer *optimizer;        ///< its updates are summed up from the next one on; NULL: none
    const rw_monitor_group *groups; ///< of its parameters; each belongs to the first that fits, or to none
    size_t n_groups;                ///< 16 at most
    double peak_flops;              ///< that the machine can do in a second; 0: not known
    bool sites; ///< operands of linear layers of 8-bit codes are counted, of the weights that are there now
} rw_monitor_sources;

/** What the caller knows of a step. Zeroed members but for `step` and `loss` are not known. */
typedef struct rw_monitor_values {
    uint64_t step;
    double loss;
    double grad_norm; ///< before clipping: what rw_clip_grad_norm() gives; negative: known to be 0. Not known: with an
                      ///< optimizer that is watched that of the last clipping, or of its update, stands here
    double lr;
    double tokens;    ///< of this step
    double seconds;   ///< that it took [since the last call; the first one has no time]
    double loss_scale; ///< what the loss was multiplied by
    bool skipped;     ///< the update was left out
} rw_monitor_values;

/**
 * Begins to watch a run.
 * @param ret_monitor receives the monitor, owned by the caller; untouched on failure.
 * @param path        the file, whose lines are added to: a run that goes on goes on there; a device is taken as well, a
 *                    FIFO refused, as one would wait for its reader. NULL: none, alerts alone.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL; an error that is stuck in the context; RW_ERR_IO, RW_ERR_MEMORY.
 */
RW_API rw_status rw_monitor_create(rw_monitor **ret_monitor, rw_context *ctx, const char *path);

/**
 * What is looked at from now on; replaces what was said before. A graph that is to be watched is created after this
 * call: one that was there goes on as it is, and its updates tell nothing. Where the monitor is called before a step's
 * update, it tells of the update before.
 * @param sources need live only until the call returns; NULL: nothing more. The monitor does not keep the optimizer
 *                alive: when that is freed, its numbers are unknown from then on.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL, more than 16 groups, groups without an optimizer, a name that is refused, an
 *         optimizer of another context, a peak that is negative or not finite, or `sites` while another monitor of the
 *         context counts them; RW_ERR_IO: the step that waits for RW_MONITOR_PROMETHEUS could not be written;
 *         RW_ERR_MEMORY; an error that is stuck in the context. An error leaves what was looked at before.
 */
RW_API rw_status rw_monitor_watch(rw_monitor *monitor, const rw_monitor_sources *sources);

/**
 * Takes a step in, and writes its line.
 * @param ret_alerts receives RW_ALERT_... flags, 0 for none; may be NULL; filled whenever the values were taken in.
 * @return RW_OK, RW_ERR_ARGUMENT for NULL; RW_ERR_IO: the line could not be written (a full disk), the step was taken
 *         in all the same, and the next line is tried again. An error that is stuck in the context does not keep it
 *         from its work: what a failed step looked like should be written down.
 */
RW_API rw_status rw_monitor_step(rw_monitor *monitor, const rw_monitor_values *values, unsigned *ret_alerts);

/**
 * Every step from now on goes there as well.
 * @return RW_OK, RW_ERR_ARGUMENT for NULL, an unknown format, or one that the monitor writes already; RW_ERR_IO,
 *         RW_ERR_MEMORY: nothing has changed.
 */
RW_API rw_status rw_monitor_add(rw_monitor *monitor, rw_monitor_format format, const char *path);

/**
 * What is to be done about these alerts, RW_ALERT_... flags [RW_RECOVERY_NOTE].
 * @return RW_OK, RW_ERR_ARGUMENT for NULL, flags that are no alerts, or no recovery.
 */
RW_API rw_status rw_monitor_set_policy(rw_monitor *monitor, unsigned alerts, rw_recovery recovery);

/** The strongest of what is to be done about these alerts; RW_RECOVERY_NOTE for none, and for NULL. */
RW_API rw_recovery rw_monitor_policy(const rw_monitor *monitor, unsigned alerts);

/**
 * Writes down what was done: a line {"step":7,"recovery":"lower","alerts":["loss_spike"],"note":"..."}.
 * @param note in words, up to 500 bytes of UTF-8; more is cut off. NULL: none.
 * @return as rw_monitor_step(); RW_ERR_ARGUMENT for an unknown recovery.
 */
RW_API rw_status rw_monitor_recovered(rw_monitor *monitor, uint64_t step, unsigned alerts, rw_recovery recovery,
                                      const char *note);

/** Its name as it stands in the file: note, skip, lower, roll_back, stop; "?" for any other number. Any thread. */
RW_API const char *rw_recovery_name(rw_recovery recovery);

/** The name of one alert as it stands in the file, "?" for any other number. Any thread. */
RW_API const char *rw_alert_name(unsigned alert);

/** Of the last step that was taken in, as its line has them. NaN: not known. */
typedef struct rw_monitor_numbers {
    double grad_norm;    ///< given, of a clipping, or of the update
    double param_norm;   ///< of an optimizer that is watched, as what follows
    double update_ratio;
    double zeros;
    double model_flops, hardware_flops; ///< in a second
} rw_monitor_numbers;

/** All of them are NaN before the first step, and for NULL. */
RW_API rw_monitor_numbers rw_monitor_get_numbers(const rw_monitor *monitor);

/** A site of the last step that was taken in. What is told is of all its uses since the step before. */
typedef struct rw_monitor_site {
    const char *name;  ///< of its weight and operand: "h.0.up/x"; valid until rw_monitor_watch() or the monitor's end
    rw_site at;        ///< where its product was recorded
    double elements;   ///< that were quantised; 0: none, and nothing else is known
    double amax;       ///< infinite or no number where an element was
    double scale;      ///< the least that numbers were multiplied by, of blocks neither zero nor infinite; 0: none
    double scale_most; ///< the largest
    double saturated;  ///< share
    double flushed;    ///< share
    unsigned alerts;   ///< that began in this step: RW_ALERT_SITE_SCALE_DROP and what follows it
} rw_monitor_site;

/**
 * Site i, in the order of the weights: x, w and dy of each.
 * @return true; false behind the last one, without sites, or for NULL, and *ret is untouched.
 */
RW_API bool rw_monitor_get_site(const rw_monitor *monitor, size_t i, rw_monitor_site *ret);

/** Closes the file and sets *monitor to NULL. NULL-safe. */
RW_API void rw_monitor_destroy(rw_monitor **monitor);

#ifdef __cplusplus
}
#endif

#endif
