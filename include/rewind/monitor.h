/**
 * rewind/monitor.h - logs metrics of each training step and raises alerts.
 *
 * The caller passes the values that it has, such as the loss; memory and time come from the context and the clock. Each
 * step appends one line of JSON to a file, which is flushed, so it can be read during the run:
 *
 *     {"step":7,"loss":3.21,"grad_norm":0.9,"lr":0.0006,"tokens_per_s":51234,"step_ms":160.1,
 *      "memory":{"parameters":...,"gradients":...,"optimizer":...,"kept":...,"peak":...},"alerts":["loss_spike"]}
 *
 * A number that is NaN or infinite is null, and the line has "nonfinite":true. Unknown values are omitted.
 *
 * FLOPs. The work of the steps since the last call comes from the cost functions of their ops. "model_flops_per_s"
 * follows the convention of PaLM (Chowdhery et al. 2022, appendix B) and Megatron-LM: it counts multiplications and
 * additions of matrix products, convolutions and attention, in forward and backward, each once. Attention has two
 * products in forward and four in backward. A causal mask counts half of the square, as in Megatron-LM (PaLM counts all
 * of it), and a sliding window counts its keys. Example: a transformer with N weights in products, head included, L
 * layers of width w and a causal mask over s tokens, trained on T tokens, has 6 N T + 6 L w s T model FLOPs.
 *
 * "hardware_flops_per_s" counts everything that is executed. It also has ops that are not products, replays, the scores
 * that fused attention recomputes in backward, recomputed chunks of logits, and the first backward pass of a graph that
 * clips with fused updates. So separate calls, a graph and fused updates have equal model FLOPs.
 *
 * With rw_monitor_watch() a line has more:
 *
 *     "mfu":0.41,"hfu":0.52,"param_norm":88.2,"update_ratio":0.0011,"zeros":0.0003,
 *     "groups":{"attention":{"elements":28348416,"unclipped_norm":0.7,"grad_norm":0.4,"param_norm":...,
 *                            "update_ratio":...,"zeros":...},...}
 *
 * mfu and hfu are the two rates divided by a stated peak. The optimizer's update computes the other values, which do
 * not affect any byte of the training:
 *   - grad_norm: norm of the gradients that the update used, after clipping and unscaling;
 *   - param_norm: norm of the weights after the update; for 16-bit parameters, of the float32 master copies;
 *   - update_ratio: norm of the change of the weights, divided by param_norm; 0 if all weights are zero;
 *   - zeros: fraction of gradient elements that are zero.
 * Parameters that the update omits do not count: those without a gradient and frozen ones (rewind/optimizers.h). If
 * gradients are clipped, by rw_clip_grad_norm() or in a graph, the step's "grad_norm" and a group's "unclipped_norm"
 * are the norms before clipping, from the sums that clipping computes. For a skipped update only these two are
 * reported, and its groups have 0 elements.
 *
 * A line with alerts also has their numbers: the step's, and the usual one that it is compared with. For slow_step
 * these are the milliseconds of the step and their median; rw_monitor_alert lists the others:
 *
 *     "alert_numbers":[{"alert":"slow_step","value":412,"usual":118}]
 *
 * | alert | condition |
 * |---|---|
 * | loss_nonfinite, grad_nonfinite | the loss or a gradient is NaN or infinite |
 * | loss_spike | above the median of the last 100 by 10 times their median deviation, and above twice the median. Or at
 *   least 10 times the largest magnitude of the first 100, because medians follow a slowly rising loss; reported once
 *   when it begins |
 * | grad_spike | above 10 times the median of the last 100, if that is not 0: for all gradients or for a group, which
 *   then has "alerts" |
 * | slow_step | above 1.2 times the median of the last 100 |
 * | scale_drop, scale_rise | the loss scale is at most half, or at least twice, the median of the last 100; or it is
 *   below 1, reported once when that begins |
 * | skips | an update is skipped, and it is at least the third in a row, or, from step 200 on, more than 5 % of the
 *   last 200 were skipped; reported at each such update |
 * | plateau | every 100 steps, from step 200 on: compared with the 100 steps before, the median loss of the last 100 is
 *   not 0.1 % lower, and the median gradient norm is not 10 % lower |
 * | updates | update_ratio was outside of 1e-5 to 1e-1 for 100 steps in a row; reported once per hundred |
 * | zeros | more than half of the gradient elements are zero, and more than twice the median of the last 100 |
 * | site_scale_drop, site_scale_rise | a site's scale is below half, or above twice, the median of its last 50 |
 * | saturated, flushed | more than 0.1 % of a site's elements saturate, or more than 1 % underflow to zero |
 * | amax_nonfinite | a site quantized an element that is NaN or infinite |
 *
 * Alerts of sites are reported when they begin, and again only after a step without the condition. Medians are of
 * finite numbers and start with the 21st.
 *
 * Sites. Under an FP8 recipe (rewind/precision.h) each operand of a linear layer is a site: x, w and dy of a weight. If
 * requested, the quantization passes count, and a line has the sites on which the step's backward depended:
 *
 *     "sites":{"h.0.up/x":{"op":"linear","at":"model.c:81","elements":786432,"amax":3.2,"scale":128,
 *                          "scale_most":512,"saturated":0,"flushed":0.0003},"h.0.up/w":{...},"h.0.up/dy":{...},...}
 *
 * Values are for all uses and micro-batches since the last call; replays do not count again.
 *   - amax: the largest magnitude; null if it is not finite;
 *   - scale, scale_most: the smallest factor of quantization, and the largest if they differ, without blocks that are
 *     zero or not finite;
 *   - saturated: fraction of elements that are finite and above the largest FP8 number;
 *   - flushed: fraction of non-zero elements that became zero.
 * An input that several products read is quantized once; it is a site of the first product's weight. Counting does not
 * affect any byte of a gradient or parameter. A plan has 256 bytes (512 on CUDA) more per quantized tensor.
 *
 * Alerts are returned and logged. The monitor stores a policy that says how to react to each (rw_monitor_set_policy());
 * the caller reacts, and logs the reaction (rw_monitor_recovered()).
 *
 * A line has the numbers of one step, so rw_monitor_step() is called after the step's update. A program that wants to
 * skip the update because of an alert calls rw_monitor_check() before it:
 *
 *     rw_monitor_check(m, &v, &alerts);                  // the loss and the gradients of step v.step
 *     if (rw_monitor_policy(m, alerts) != RW_RECOVERY_SKIP) rw_optimizer_step(opt);
 *     rw_monitor_step(m, &v, &alerts);                   // its time and its update; writes the line
 *
 * A line, or a TensorBoard event, is written completely or not at all: a failed write is truncated, so the next one
 * follows a complete one. In a child of fork() the monitor raises alerts but does not write to its files, which belong
 * to the parent, and takes no further ones.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_MONITOR_H
#define REWIND_MONITOR_H

#include <rewind/optimizers.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A log of training steps. */
typedef struct rw_monitor rw_monitor;

/** Alerts: bits of a set. */
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

/** Reactions to an alert, from the weakest to the strongest. */
typedef enum rw_recovery {
    RW_RECOVERY_NOTE,      ///< none
    RW_RECOVERY_SKIP,      ///< skip the update of this step
    RW_RECOVERY_LOWER,     ///< lower the learning rate
    RW_RECOVERY_ROLL_BACK, ///< return to the last checkpoint
    RW_RECOVERY_STOP       ///< stop the run
} rw_recovery;

/** Output formats in addition to JSON lines. */
typedef enum rw_monitor_format {
    RW_MONITOR_TENSORBOARD, ///< a folder, created if missing, to which each monitor adds one event file
    RW_MONITOR_PROMETHEUS   ///< a file in Prometheus' text format 0.0.4, replaced atomically. It has the last step and
                            ///< is written at most once per second; at once for a step with an alert; and, if a step
                            ///< is pending, in rw_monitor_watch() and rw_monitor_destroy()
} rw_monitor_format;

/** A group of parameters that are reported together. */
typedef struct rw_monitor_group {
    const char *name;    ///< name in files, of this group only: 1 to 60 bytes of UTF-8 without quotes, backslashes and
                         ///< control characters
    const char *pattern; ///< shell pattern of parameter names, "h.*.attn.*"; * also matches dots and slashes
} rw_monitor_group;

/** What a monitor observes in addition to the values that it is given. RW_ZERO is the same as 0. */
typedef struct rw_monitor_sources {
    rw_optimizer *optimizer;        ///< report statistics of its updates, from the next one on; NULL: none
    const rw_monitor_group *groups; ///< groups of its parameters; a parameter belongs to the first that matches
    size_t n_groups;                ///< at most 16
    double peak_flops;              ///< peak FLOP/s of the machine, for mfu and hfu; 0: unknown
    bool sites; ///< count quantized operands of linear layers under FP8 recipes, for the weights that exist now
} rw_monitor_sources;

/** Values of a step that the caller knows. A member that is 0 is unknown, except `step` and `loss`. RW_ZERO is a known
    zero in `grad_norm`, `lr` and `tokens`, and the same as 0 in other members. */
typedef struct rw_monitor_values {
    uint64_t step;    ///< number of the step
    double loss;      ///< loss of the step
    double grad_norm; ///< before clipping, as rw_clip_grad_norm() returns it; negative: known to be 0. If it is unknown
                      ///< and an optimizer is watched, the norm of the last clipping or update is used
    double lr;        ///< learning rate
    double tokens;    ///< tokens of this step
    double seconds;   ///< duration of the step [time since the last call; unknown for the first]
    double loss_scale; ///< factor of the loss
    bool skipped;     ///< the update was skipped
} rw_monitor_values;

/**
 * Creates a monitor.
 * @param ret_monitor receives the monitor, owned by the caller; untouched on failure.
 * @param path        the file, to which lines are appended, also by a resumed run. It may be a device. A FIFO is
 *                    refused, because opening it would wait for a reader. NULL: no file, alerts only.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL; RW_ERR_IO; RW_ERR_MEMORY; or the context's sticky error.
 */
RW_API rw_status rw_monitor_create(rw_monitor **ret_monitor, rw_context *ctx, const char *path);

/**
 * Sets what the monitor observes, in place of earlier settings. Create graphs after this call: the updates of an older
 * graph report nothing. rw_monitor_step() reports the last update since the call before, so it is called after the
 * step's update. It waits for that update.
 * @param sources read during the call; NULL: nothing. The monitor does not keep the optimizer alive; its statistics are
 *                unknown after rw_optimizer_destroy().
 * @return RW_OK; RW_ERR_ARGUMENT for NULL, more than 16 groups, groups without an optimizer, an invalid name, an
 *         optimizer of another context, a peak that is negative or not finite, or `sites` while another monitor of the
 *         context counts them; RW_ERR_IO if the pending step for RW_MONITOR_PROMETHEUS could not be written;
 *         RW_ERR_MEMORY; or the context's sticky error. On failure the earlier settings stay.
 */
RW_API rw_status rw_monitor_watch(rw_monitor *monitor, const rw_monitor_sources *sources);

/**
 * Evaluates a step before its update, and writes nothing. rw_monitor_step() with the same number must follow: it only
 * adds the time, the update or that it was skipped, and a loss scale that was unknown here. If it is called with
 * another number, this step has no line.
 * @param values as for rw_monitor_step(); `tokens`, `seconds` and `skipped` are not read.
 * @param ret_alerts receives RW_ALERT_... flags, 0 for none; may be NULL. slow_step, skips, updates and zeros are only
 *                   known after the update. So are grad_spike, if `grad_norm` is unknown and gradients are not clipped,
 *                   and scale_drop and scale_rise, if `loss_scale` is unknown.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL; or an error of the device.
 */
RW_API rw_status rw_monitor_check(rw_monitor *monitor, const rw_monitor_values *values, unsigned *ret_alerts);

/**
 * Evaluates a step and writes its line. It works even if the context has a sticky error, so that failed steps are
 * logged.
 * @param values read during the call; required
 * @param ret_alerts receives RW_ALERT_... flags, 0 for none, with those that rw_monitor_check() has returned for this
 *                   step; may be NULL. Also set with RW_ERR_IO.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL; RW_ERR_IO if the line could not be written (full disk). The step then counts
 *         nevertheless, and later lines are written if possible.
 */
RW_API rw_status rw_monitor_step(rw_monitor *monitor, const rw_monitor_values *values, unsigned *ret_alerts);

/**
 * Adds an output format: all later steps are also written there. A relative path is resolved now.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL, an unknown format, or one that the monitor already has, and in a child of
 *         fork() for a monitor of the parent; RW_ERR_IO; RW_ERR_MEMORY. On failure nothing has changed.
 */
RW_API rw_status rw_monitor_add(rw_monitor *monitor, rw_monitor_format format, const char *path);

/**
 * Sets the reaction to these alerts, RW_ALERT_... flags [RW_RECOVERY_NOTE]. The monitor only stores it.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL, unknown flags or an unknown recovery.
 */
RW_API rw_status rw_monitor_set_policy(rw_monitor *monitor, unsigned alerts, rw_recovery recovery);

/** Returns the strongest reaction set for these alerts; RW_RECOVERY_NOTE for none and for NULL. */
RW_API rw_recovery rw_monitor_policy(const rw_monitor *monitor, unsigned alerts);

/**
 * Logs a reaction: writes a line {"step":7,"recovery":"lower","alerts":["loss_spike"],"note":"..."}. RW_RECOVERY_SKIP
 * counts as a skipped update of the last step (rewind_skipped_total), unless rw_monitor_values.skipped has counted it.
 * @param note text, truncated to 500 bytes; bytes that are not UTF-8 become U+FFFD. NULL: none.
 * @return as rw_monitor_step(); RW_ERR_ARGUMENT for an unknown recovery.
 */
RW_API rw_status rw_monitor_recovered(rw_monitor *monitor, uint64_t step, unsigned alerts, rw_recovery recovery,
                                      const char *note);

/**
 * Logs a validation loss after the update of a step. It writes a line {"step":99,"validation_loss":2.59}; a loss that
 * is not finite is null with "nonfinite":true. TensorBoard gets an event of that name. Prometheus gets
 * rewind_validation_loss, from its next write on until the next validation loss.
 * @return as rw_monitor_step().
 */
RW_API rw_status rw_monitor_validation(rw_monitor *monitor, uint64_t step, double loss);

/** Returns the name of a recovery in files: note, skip, lower, roll_back, stop; "?" for any other number. Any
    thread. */
RW_API const char *rw_recovery_name(rw_recovery recovery);

/** Returns the name of one alert in files; "?" for any other number. Any thread. */
RW_API const char *rw_alert_name(unsigned alert);

/** Numbers of the last step, as in its line. NaN: unknown. */
typedef struct rw_monitor_numbers {
    double grad_norm;    ///< as given, or of the last clipping or update
    double param_norm;   ///< this and the next two need a watched optimizer
    double update_ratio; ///< norm of the weights' change, divided by param_norm
    double zeros;        ///< fraction of gradient elements that are zero
    double model_flops, hardware_flops; ///< FLOP/s
} rw_monitor_numbers;

/** Returns the numbers of the last step; all are NaN before the first step and for NULL. */
RW_API rw_monitor_numbers rw_monitor_get_numbers(const rw_monitor *monitor);

/** Numbers of a group in the last step. NaN: unknown. */
typedef struct rw_monitor_group_numbers {
    const char *name;      ///< valid until rw_monitor_watch() or rw_monitor_destroy()
    double unclipped_norm; ///< norm of its gradients before clipping
    double grad_norm;      ///< norm of its gradients that the update used
    double param_norm;     ///< this and the next two as in rw_monitor_numbers
    double update_ratio;   ///< of the group
    double zeros;          ///< of the group
    unsigned alerts;       ///< alerts of this group: RW_ALERT_GRAD_SPIKE
    double usual_norm;     ///< with that alert: the median with which its norm was compared
} rw_monitor_group_numbers;

/**
 * Gets group i, in the order of rw_monitor_sources.groups.
 * @return true; false past the last one, without groups, before the first step, or for NULL, and *ret is untouched.
 */
RW_API bool rw_monitor_get_group(const rw_monitor *monitor, size_t i, rw_monitor_group_numbers *ret);

/**
 * The numbers of an alert. NaN: none, as for loss_nonfinite, grad_nonfinite and amax_nonfinite.
 *
 * | alert | value | usual |
 * |---|---|---|
 * | loss_spike | the loss | the median of the last 100, or the largest of the first 100 |
 * | grad_spike | the norm of all gradients, or else of the first group with the alert | its median |
 * | slow_step | milliseconds | their median |
 * | scale_drop, scale_rise | the loss scale | its median |
 * | skips | how many of the last 200 updates were skipped | none |
 * | plateau | the median loss of the last 100 steps | that of the 100 before |
 * | updates | update_ratio | none |
 * | zeros | the fraction of zeros | its median |
 * | site_scale_drop, site_scale_rise | the scale of the first site with the alert | its median |
 * | saturated, flushed | the fraction of the first site with the alert | none |
 */
typedef struct rw_monitor_alert {
    double value; ///< of the step
    double usual; ///< the number with which it was compared
} rw_monitor_alert;

/**
 * Gets the numbers of one alert of the last step.
 * @param alert one RW_ALERT_... flag.
 * @return true; false if the last step does not have this alert, before the first step, or for NULL, and *ret is
 *         untouched.
 */
RW_API bool rw_monitor_get_alert(const rw_monitor *monitor, unsigned alert, rw_monitor_alert *ret);

/** A site in the last step, over all its uses since the step before. */
typedef struct rw_monitor_site {
    const char *name;  ///< weight and operand, "h.0.up/x"; valid until rw_monitor_watch() or rw_monitor_destroy()
    rw_site at;        ///< call site of its product
    double elements;   ///< number of quantized elements; 0: none, and nothing else is known
    double amax;       ///< largest magnitude; infinite or NaN if an element was
    double scale;      ///< smallest factor, without blocks that are zero or not finite; 0: none
    double scale_most; ///< largest factor
    double saturated;  ///< fraction
    double flushed;    ///< fraction
    unsigned alerts;   ///< alerts that began in this step, RW_ALERT_SITE_SCALE_DROP and following
} rw_monitor_site;

/**
 * Gets site i, in the order of the weights: x, w and dy of each.
 * @return true; false past the last one, without sites, or for NULL, and *ret is untouched.
 */
RW_API bool rw_monitor_get_site(const rw_monitor *monitor, size_t i, rw_monitor_site *ret);

/** Closes the files and frees the monitor; sets *monitor to NULL. NULL-safe. */
RW_API void rw_monitor_destroy(rw_monitor **monitor);

#ifdef __cplusplus
}
#endif

#endif
