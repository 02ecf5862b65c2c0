/**
 * rewind/graph.h - a recorded step, launched many times.
 *
 * A step whose shapes stay the same need not be recorded again: write the next batch into its inputs and launch. Each
 * launch is bit-identical to recording the step again: current parameters, fresh random numbers (the same in forward
 * and replay), the generator advanced. On CUDA the whole step - gradients cleared, forward, replays, backward,
 * clipping, optimizer - is captured as one CUDA graph, so a launch costs the host microseconds; on the CPU the plan is
 * executed.
 *
 *     rw_tensor *loss = model(t, x, y);                  // recorded once
 *     rw_graph *g = NULL;
 *     rw_graph_create(&g, t, loss, &(rw_graph_params){ .optimizer = opt });
 *     for (int step = 0; step < steps; step++) {
 *         rw_input_write(x, next_tokens(), bytes);
 *         rw_input_write(y, next_targets(), bytes);
 *         rw_graph_launch(g);
 *         if (step % 100 == 0) printf("%d %f\n", step, rw_item(t, loss));
 *     }
 *     rw_graph_destroy(&g);
 *
 * Random numbers. The first launch draws what the step drew when it was recorded. If another graph of the tape was
 * launched before, or a checkpoint was loaded after recording (rw_checkpoint_load()), it draws from the generator, as
 * all later launches do. Each of these advances the generator by the numbers of the recorded step. A launch that fails
 * draws nothing: the next one draws the same numbers. An op that is recorded after rw_graph_create() is not part of the
 * graph's launches: it keeps the random values drawn when it was recorded.
 *
 * Values of the tape that are read or computed after a launch are of that launch: its inputs, parameters and random
 * numbers. This includes gradients of rw_grad() and rw_backward(), which redraw its masks, and ckpt_verify(). A value
 * that depends on ops of the graph and on random ops recorded later has the launch's numbers for the former and the
 * recorded ones for the latter.
 *
 * Thread-safety: as for the context.
 */
#ifndef REWIND_GRAPH_H
#define REWIND_GRAPH_H

#include <rewind/precision.h>
#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A recorded step that can be launched. */
typedef struct rw_graph rw_graph;

/**
 * Parameters of rw_graph_create(). All zero: neither clipping nor an optimizer, and the caller reads the gradients.
 * Clipping and the update are nodes of the graph's plan, after all other writes of the step: parameters are
 * bit-identical to those of the single calls.
 */
typedef struct rw_graph_params {
    /** One update at the end of each launch. Its states must not be in a file (rw_state_offload). */
    rw_optimizer *optimizer;
    double max_norm;     ///< clip gradients to this joint norm before the update, as rw_clip_grad_norm(): a norm
                         ///< that is NaN or infinite makes all of them NaN; 0, and RW_ZERO: no clipping
    rw_scaler *scaler;   ///< backward starts with its scale, gradients are unscaled before clipping, the update
                         ///< is skipped if one is not finite, and the scale is updated (rewind/precision.h)
    /**
     * Fused updates: each parameter of the optimizer is updated as soon as its gradient is complete and backward has
     * read the parameter for the last time. A gradient is then live only from its first contribution to its update.
     * Parameters and losses are bit-identical to those with the update at the end, under every policy. From the first
     * launch on, the gradients of these parameters are clear and take no memory (rw_memory.gradients and .consumed)
     * until another call, such as rw_backward(), needs it. A gradient whose address rw_tensor_data() has returned keeps
     * its memory: a launch stores zeros there. Such a gradient counts as written in every step, but only parameters
     * that the step reaches are updated inside it. For another parameter of the optimizer a launch is
     * RW_ERR_UNSUPPORTED, because its update would be missing.
     *
     * `max_norm` and a `scaler` need all gradients before the first update, so with them backward runs twice. The first
     * pass computes the norm and whether all gradients are finite, and drops each gradient after that; the second
     * applies the updates. Both passes use the same random numbers, so the bits are those of an update at the end.
     * Replays are executed twice, the loss is computed once, and the second pass records the amaxes of delayed scaling.
     * A skipped update changes nothing and counts as skipped. Two passes are refused for a gradient rule that records
     * an op with RW_OP_STATEFUL or RW_OP_NONDETERMINISTIC.
     *
     * If the device fails inside backward, some parameters are updated and others are not: load a checkpoint.
     */
    bool update_inside;
    rw_delayed_scaling *delayed; ///< its histories advance after the update (rw_delayed_scaling_update())
} rw_graph_params;

/**
 * Creates a graph of one step of a tape, under the tape's policy. Nothing is executed, and no value of the tape may
 * have been computed before. A tape may have several graphs.
 * @param ret_graph receives the graph, owned by the caller; untouched on failure. The tape, its context and the
 *         optimizer may be destroyed before it: their memory is freed with the graph.
 * @param loss as for rw_backward()
 * @param params may be NULL for the defaults; read during the call
 * @return what rw_backward() returns; RW_ERR_ARGUMENT if values of the tape were computed before, if the generator was
 *         set while the tape was recorded (rw_generator_set(), rw_checkpoint_load()), or for update_inside without an
 *         optimizer; RW_ERR_UNSUPPORTED for an optimizer whose states are in a file (rw_state_offload), or with
 *         update_inside outside of the device's memory, for update_inside together with a caller's op with
 *         RW_OP_COMMIT, and for update_inside with a max_norm or a scaler if backward cannot run twice.
 */
RW_API rw_status rw_graph_create(rw_graph **ret_graph, rw_tape *t, rw_tensor *loss, const rw_graph_params *params);

/**
 * Executes the step once. On CUDA it is only queued: the next call that reads reports a failure of the device.
 * Afterwards the loss and the gradients are those of this launch; after a failure the gradients are clear.
 *
 * Gradients. A launch starts with clear gradients, as after rw_zero_grad(). It drops those of the last launch, those
 * that the caller wrote (rw_write(), rw_tensor_data()), and those that an optimizer's step has used. RW_ERR_ARGUMENT if
 * it would drop any other gradient, one that rw_backward() or rw_backward_from() of any tape of the context has added
 * to: the message names the first, and nothing has changed.
 *
 * Reading. The loss and the scalars that it depends on are copies. Any other value is evaluated by each rw_item() or
 * rw_read() of it, in a forward pass of its own: use one rw_eval() for several.
 *
 * Effects. Each launch runs the tape's effects once, whatever ran on the tape before. A launch that fails may have run
 * an op with RW_OP_STATEFUL, and the next one runs it again.
 *
 * Verification. With REWIND_VERIFY=1 the first launch is verified before it runs; RW_ERR_UNSUPPORTED on a tape with an
 * op that has RW_OP_STATEFUL and not RW_OP_COMMIT. With REWIND_VERIFY=digest each launch checks its replays, on CUDA
 * within the captured graph: RW_ERR_MISMATCH comes from the next call that reads, after the update of the graph's
 * optimizer.
 * @return RW_ERR_MODIFIED if the tape was reset or destroyed, or if the optimizer counts its steps on the device since
 *         then (rw_scaler_step()): create the graph again. RW_ERR_ARGUMENT, before anything is executed, for a graph
 *         with an optimizer whose step computes the gradient of a parameter that no optimizer of the context holds, as
 *         for rw_optimizer_step(). RW_ERR_UNSUPPORTED, before anything is executed, with update_inside, if
 *         rw_tensor_data() has returned the address of the gradient of a parameter of the optimizer that the step does
 *         not reach. RW_ERR_BUDGET if the graph was created under `total:SIZE` and the context now holds so much that
 *         its plan does not fit: nothing is executed.
 */
RW_API rw_status rw_graph_launch(rw_graph *g);

/** Frees the graph and sets *g to NULL. NULL-safe. */
RW_API void rw_graph_destroy(rw_graph **g);

#ifdef __cplusplus
}
#endif

#endif
