/**
 * rewind/graph.h - a recorded step, launched many times.
 *
 * A step whose shapes stay the same need not be recorded again: write the next batch into its inputs and launch. Each
 * launch is what recording the step again would be, to the last bit: parameters as they are now, fresh random numbers
 * (the same in forward and replay), the generator moved on. On CUDA the whole step - gradients cleared, forward,
 * replays, backward, clipping, optimizer - is captured as one CUDA graph, so a launch costs the host microseconds; on
 * the CPU the plan is walked.
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
 * all later launches do. Each of these moves the generator by the numbers of the recorded step. A launch that fails
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

typedef struct rw_graph rw_graph;

/** All zero means: neither clipping nor an optimizer; the gradients are read by the caller. Both are nodes of the
    graph's plan, behind what the step itself writes: parameters are what the single calls give, to the last bit. */
typedef struct rw_graph_params {
    rw_adamw *optimizer; ///< makes one update at the end of each launch; its states are not in a file (rw_states)
    double max_norm;     ///< gradients are clipped to this joint norm before the update, as by rw_clip_grad_norm(): a
                         ///< norm that is NaN or infinite makes all of them NaN; 0: not clipped
    rw_scaler *scaler;   ///< backward begins with its scale, gradients are unscaled before they are clipped, the update
                         ///< is left out where one is not finite, and the scale is updated (rewind/precision.h)
    /**
     * Each parameter of the optimizer is updated as soon as its gradient is complete and backward has read the
     * parameter for the last time, so that a gradient lives only from its first contribution to its update. Parameters
     * and losses are the same bytes as with the update at the end, under every policy. From the first launch on the
     * gradients of these parameters are clear and take no memory (rw_memory.gradients and .used_up), until a call
     * needs it again, rw_backward() say. A gradient whose address rw_tensor_data() has given keeps its memory: a launch
     * stores zeros there.
     *
     * With `max_norm` or a `scaler`, which look at all gradients before the first update, backward runs twice: first
     * for the norm, and for whether all are finite, each gradient dropped as soon as it has been looked at, then for
     * the updates. It is the same backward, from the same random numbers, so the bytes are those of the update behind
     * it; what it replays it replays twice, the loss is computed once, and the amaxes of delayed scaling are noted in
     * the second. An update that is left out changes nothing and counts as left out. Refused with two passes: a
     * gradient rule that records what is RW_OP_STATEFUL or RW_OP_NONDETERMINISTIC.
     *
     * When the device fails inside backward, some parameters have been updated and others have not: go back to a
     * checkpoint.
     */
    bool update_inside;
    rw_delayed *delayed; ///< the histories move on behind the update (rw_delayed_update())
} rw_graph_params;

/**
 * Makes a graph of one step of a tape, under the tape's policy. Nothing runs yet. Nothing of the tape may have run
 * either. A tape may have several graphs.
 * @param ret_graph receives the graph, owned by the caller; untouched on failure. The tape, its context and the
 *                  optimizer may be destroyed before it: their memory goes with the graph.
 * @param loss      as for rw_backward().
 * @param params    may be NULL for the defaults; need live only until the call returns.
 * @return what rw_backward() returns; RW_ERR_ARGUMENT when values of the tape were computed before, when the
 *         generator was set while the tape was recorded (rw_generator_set(), rw_checkpoint_load()), or for
 *         update_inside without an optimizer;
 *         RW_ERR_UNSUPPORTED for an optimizer whose states wait in a file (rw_states), or anywhere else for
 *         update_inside, for update_inside beside a caller's op that says RW_OP_COMMIT, and for update_inside with a
 *         max_norm or a scaler where backward cannot run twice.
 */
RW_API rw_status rw_graph_create(rw_graph **ret_graph, rw_tape *t, rw_tensor *loss, const rw_graph_params *params);

/**
 * Runs the step once. On CUDA it only queues it: a failure of the device is reported by the next call that reads.
 * Afterwards the loss and the gradients are those of this launch; after a failure the gradients are clear.
 *
 * It begins with clear gradients, as after rw_zero_grad(). So it drops those of the last launch, those that the caller
 * wrote (rw_write(), rw_tensor_data()), and those that an optimizer's step has used. RW_ERR_ARGUMENT when it would drop
 * any other: rw_backward() or rw_backward_from() of any tape of the context has added to it. The message names the
 * first; nothing has changed.
 *
 * RW_ERR_CHANGED when the tape was reset or destroyed. RW_ERR_ARGUMENT, before anything has run, for a graph with an
 * optimizer whose step makes the gradient of a parameter that no optimizer of the context holds, as for
 * rw_optimizer_step(). RW_ERR_BUDGET when it was created under `total:SIZE` and the
 * context has come to hold so much that its plan does not fit any more: nothing has run. With REWIND_VERIFY=1 the first
 * launch is verified before it runs; RW_ERR_UNSUPPORTED on a tape with an op that says RW_OP_STATEFUL and not
 * RW_OP_COMMIT. Each launch runs the tape's effects once, whatever ran on the tape before; one that fails may have run
 * an op that says RW_OP_STATEFUL, and the next one runs it again. With REWIND_VERIFY=digest each launch checks its
 * replays, on CUDA within the captured graph: RW_ERR_MISMATCH comes from the next call that reads, when the optimizer
 * of the graph has made its update.
 */
RW_API rw_status rw_graph_launch(rw_graph *g);

/** Frees the graph and sets *g to NULL. NULL-safe. */
RW_API void rw_graph_destroy(rw_graph **g);

#ifdef __cplusplus
}
#endif

#endif
