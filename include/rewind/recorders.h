/**
 * rewind/recorders.h - what a step does after backward: clipping, loss scaling, the update, as a list.
 *
 * A recorder adds nodes to a step. Its functions return an rw_recorder, a small value that refers to the object; a list
 * of them is a member of rw_graph_params and rw_backward_params:
 *
 *     rw_graph_create(&g, t, loss, &(rw_graph_params){ { rw_record_clip(1.0), rw_record_update(opt) } });
 *
 * The order of the list is the order of what is recorded. Each recorder reads what those before it have computed, so
 * the list has this order, and another one is refused:
 *
 *   1. rw_record_custom()           changes each gradient as soon as backward has completed it
 *   2. rw_record_scaler()           backward starts with the loss scale; gradients are divided by it
 *   3. rw_record_clip()             clips the gradients
 *   4. rw_record_update(), rw_record_update_inside()       updates parameters
 *   5. rw_record_delayed_scaling()  the FP8 scales of the next step
 *
 * A scaler's next scale is computed after all of them. An entry of zeros records nothing, so a list may have gaps:
 *
 *     const rw_graph_params p = { { scaler ? rw_record_scaler(scaler) : rw_record_nothing(), rw_record_update(opt) } };
 *
 * The result is bit-identical to the single calls in the same order: rw_clip_grad_norm(), rw_optimizer_step(),
 * rw_scaler_backward() and so on.
 *
 * Functions that return an entry check nothing. The call that gets the list does, and its messages name the entry. It
 * reads the list during the call; a graph then keeps the objects alive (rw_graph_create()).
 * Thread-safety: as for the context.
 */
#ifndef REWIND_RECORDERS_H
#define REWIND_RECORDERS_H

#include <rewind/precision.h>
#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Maximum number of recorders in a list. */
#define RW_RECORDERS_MAX 16

/** A custom recorder, see rw_record_custom(). */
typedef struct rw_recorder_def rw_recorder_def;

/** An entry of a list of recorders. All zero: records nothing. */
typedef struct rw_recorder {
    const struct rw_recorder_kind *kind_; ///< private
    void *of_;                            ///< private
    const rw_recorder_def *def_;          ///< private
    double number_;                       ///< private
} rw_recorder;

/** Returns an entry that records nothing, for a list with a condition. */
static inline rw_recorder rw_record_nothing(void)
{
    return RW_LITERAL(rw_recorder){ 0, 0, 0, 0 };
}

/** The functions of a custom recorder: static data that outlives every graph that uses it. Unset members mean
    "none". */
struct rw_recorder_def {
    const char *name; ///< in messages
    /** Called before each pass of backward when a plan is made, to reset what `user` has. A graph that updates inside
        backward and clips or scales has two passes. */
    void (*begin)(void *user);
    /**
     * Records ops on a gradient that backward has completed, and returns what is used in its place: a value of its
     * shape and type, or the gradient itself.
     * @param user as given to rw_record_custom()
     * @param param the parameter; as an operand it has its contents before the update
     * @param gradient the sum that would be stored: scaled if the list has a scaler, and not clipped
     */
    rw_tensor *(*gradient)(void *user, rw_tape *t, rw_tensor *param, rw_tensor *gradient);
    /** Called after all gradients. May assign to buffers (rw_assign()); for that, gradient() keeps values in `user`. */
    rw_status (*record)(void *user, rw_tape *t);
};

/**
 * Returns an entry for ops of the caller, for example a gradient that is scaled per layer, or a norm that is stored in
 * a buffer:
 *
 *     static rw_tensor *halve(void *user, rw_tape *t, rw_tensor *param, rw_tensor *gradient)
 *     {
 *         return rw_scale(t, gradient, 0.5);
 *     }
 *     static const rw_recorder_def half = { .name = "half", .gradient = halve };
 *     ... { { rw_record_custom(&half, NULL), rw_record_update(opt) } }
 *
 * The functions are called when the graph is created, and their ops run in each launch. So the same restrictions hold
 * as for gradient rules (rewind/op.h): they may only record, draw no random numbers, and depend on nothing that changes
 * later; read what changes from launch to launch from a buffer. Ops with RW_OP_STATEFUL are refused, except
 * rw_assign() in record(). An error of theirs is an error of the call that makes the plan.
 * @param user passed to the functions; owned by the caller
 */
RW_API rw_recorder rw_record_custom(const rw_recorder_def *def, void *user);

/**
 * Returns an entry that clips gradients to a joint norm, as rw_clip_grad_norm(): a norm that is NaN or infinite makes
 * all of them NaN. In a graph these are the gradients that the step computes: one that it does not reach, and whose
 * address rw_tensor_data() has returned, keeps its zeros.
 * @param max_norm above 0. Infinity changes nothing, and the norm is measured (rewind/monitor.h).
 */
RW_API rw_recorder rw_record_clip(double max_norm);

/**
 * Returns an entry of a loss scaler: backward starts with its scale, gradients are divided by it, updates are skipped
 * if one is not finite, and the next scale is computed (rewind/precision.h). The loss is f32.
 */
RW_API rw_recorder rw_record_scaler(rw_scaler *s);

/**
 * Returns an entry that updates the parameters of an optimizer, as rw_optimizer_step(). A list may have several
 * optimizers that have no parameter in common. In a graph the optimizer's states must not be in a file
 * (rw_state_offload).
 */
RW_API rw_recorder rw_record_update(rw_optimizer *opt);

/**
 * Returns an entry for fused updates, of a graph only: each parameter of the optimizer is updated as soon as its
 * gradient is complete and backward has read the parameter for the last time. A gradient is then live only from its
 * first contribution to its update. Parameters and losses are bit-identical to those with the update at the end, under
 * every policy. From the first launch on, the gradients of these parameters are clear and take no memory
 * (rw_memory.gradients and .consumed) until another call, such as rw_backward(), needs it. A gradient whose address
 * rw_tensor_data() has returned keeps its memory: a launch stores zeros there. Such a gradient counts as written in
 * every step, but only parameters that the step reaches are updated inside it. For another parameter of the optimizer a
 * launch is RW_ERR_UNSUPPORTED, because its update would be missing.
 *
 * Clipping and a scaler need all gradients before the first update, so with them backward runs twice. The first pass
 * computes the norm and whether all gradients are finite, and drops each gradient after that; the second applies the
 * updates. Both passes use the same random numbers, so the bits are those of an update at the end. Replays are executed
 * twice, the loss is computed once, and the second pass records the amaxes of delayed scaling. A skipped update changes
 * nothing and counts as skipped. Two passes are refused for a gradient rule that records an op with RW_OP_STATEFUL or
 * RW_OP_NONDETERMINISTIC.
 *
 * All updates of a list are inside backward, or none is. If the device fails inside backward, some parameters are
 * updated and others are not: load a checkpoint.
 */
RW_API rw_recorder rw_record_update_inside(rw_optimizer *opt);

/** Returns an entry that advances the histories of delayed scaling, as rw_delayed_scaling_update(). */
RW_API rw_recorder rw_record_delayed_scaling(rw_delayed_scaling *d);

/** Parameters of rw_backward_with(). All zero: nothing follows backward. */
typedef struct rw_backward_params {
    rw_recorder recorders[RW_RECORDERS_MAX]; ///< what follows backward, in this order
} rw_backward_params;

/**
 * Runs backward, and then what the list records: a whole step in one call, for tapes that are recorded anew.
 *
 *     rw_zero_grad(ctx);
 *     for (all micro-batches but the last) rw_backward(t, loss), rw_tape_reset(t);
 *     rw_backward_with(t, loss, &(rw_backward_params){ { rw_record_clip(1.0), rw_record_update(opt) } });
 *
 * Gradients are added to those that exist, as by rw_backward(), and the recorders get the sums; with a scaler, call
 * rw_scaler_backward() for the other micro-batches. The result is bit-identical to the single calls. The context keeps
 * the plan of the last list, so use the same list in each step; numbers in it may change. It does not keep the list's
 * objects alive. rw_record_custom() and rw_record_update_inside() need a graph: RW_ERR_UNSUPPORTED.
 * @param loss as for rw_backward()
 * @param params may be NULL for the defaults; read during the call
 * @return what rw_backward() and the single calls return. An error of the list, or of gradients that have another
 *         scale, has changed nothing. After an error of the update the gradients are those of backward: call
 *         rw_zero_grad() to drop them.
 */
RW_API rw_status rw_backward_with(rw_tape *t, rw_tensor *loss, const rw_backward_params *params);

#ifdef __cplusplus
}
#endif

#endif
