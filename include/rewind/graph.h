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
 *     rw_graph_create(&g, t, loss, &(rw_graph_params){ { rw_record_update(opt) } });
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

#include <rewind/recorders.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A recorded step that can be launched. */
typedef struct rw_graph rw_graph;

/** Parameters of rw_graph_create(). All zero: nothing follows backward, and the caller reads the gradients. */
typedef struct rw_graph_params {
    /**
     * What each launch does after backward, in this order (rewind/recorders.h). It is part of the graph's plan, after
     * all other writes of the step: parameters are bit-identical to those of the single calls.
     */
    rw_recorder recorders[RW_RECORDERS_MAX];
} rw_graph_params;

/**
 * Creates a graph of one step of a tape, under the tape's policy. Nothing is executed, and no value of the tape may
 * have been computed before. A tape may have several graphs.
 * @param ret_graph receives the graph, owned by the caller; untouched on failure. The tape, its context and the objects
 *         of its recorders may be destroyed before it: their memory is freed with the graph.
 * @param loss as for rw_backward()
 * @param params may be NULL for the defaults; read during the call
 * @return what rw_backward() returns; RW_ERR_ARGUMENT if values of the tape were computed before, if the generator was
 *         set while the tape was recorded (rw_generator_set(), rw_checkpoint_load()), or for a list of recorders in
 *         another order, with one twice or with an argument that is not allowed; RW_ERR_UNSUPPORTED for an optimizer
 *         whose states are in a file (rw_state_offload), or with rw_record_update_inside() outside of the device's
 *         memory, for rw_record_update_inside() together with a caller's op with RW_OP_COMMIT, and together with
 *         clipping or a scaler if backward cannot run twice.
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
 *         for rw_optimizer_step(). RW_ERR_UNSUPPORTED, before anything is executed, with rw_record_update_inside(), if
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
