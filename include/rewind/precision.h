/**
 * rewind/precision.h - recipes, and loss scaling for float16.
 *
 * A recipe says in which types the ops that are recorded while it is open run, so that a model with float32 parameters
 * trains in 16 bits without being touched (what torch.autocast does):
 *
 *     rw_recipe_begin(t, &(rw_recipe){ .kind = RW_RECIPE_BF16 });
 *     rw_tensor *loss = model(t, ...);                              // linear, matmul, attention ... in bfloat16
 *     rw_recipe_end(t);
 *
 * What it does are casts, recorded before the ops: docs/precision.md lists which. So a replay makes what was made, by
 * which policy it may be, and gradients come back through the casts to the type of the parameter.
 *
 * Gradients of 16 bits that are small become zero. A scaler multiplies what backward begins with, divides the
 * gradients by the same number before they are used, and leaves a step out where one of them is infinite or no number:
 *
 *     rw_scaler *s = NULL;
 *     rw_scaler_create(&s, ctx, NULL);
 *     for (...) {
 *         rw_zero_grad(ctx);
 *         for (micro-batches) rw_scaler_backward(s, t, loss);   // gradients times the scale
 *         rw_scaler_unscale(s);                                 // only to clip in between
 *         rw_clip_grad_norm(ctx, 1.0, NULL);
 *         rw_scaler_step(s, opt);                               // left out where a gradient is not finite
 *         rw_scaler_update(s);                                  // the scale of the next step
 *     }
 *
 * or as a graph, with rw_graph_params.scaler. Nothing waits for the device: what was found, the scale, and how many
 * updates an optimizer left out are in its memory. The scale is read where backward begins and nowhere else, so no
 * replay can read another; a step that is left out leaves parameters, moments, master copies and their counts as they
 * were. With a scale that is a power of two, gradients and updates of a float32 model have the bytes that they have
 * without, but where a number leaves the range of float32 on the way.
 *
 * By what gradients are multiplied is a property of the gradients, not of the scaler. It ends with rw_zero_grad(),
 * rw_graph_launch() and rw_checkpoint_load(), so a step may be left out by the program at any place. Until then no
 * backward adds to gradients that were unscaled, and none are divided twice, or by another number than backward
 * multiplied by: RW_ERR_CHANGED. Gradients that rw_backward() adds before are divided too; multiply such a loss by the
 * scale, the first number of the scaler's buffer. What rw_write() writes into a gradient, or a caller at its address,
 * counts as scaled before rw_scaler_unscale() and as unscaled after it.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_PRECISION_H
#define REWIND_PRECISION_H

#include <rewind/optimizers.h>
#include <rewind/float8.h>
#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rw_recipe_kind {
    RW_RECIPE_NONE, ///< everything in the types that it is given, inside of another recipe too
    RW_RECIPE_F32,  ///< products in float32 too, whatever they are given: edge layers inside of another recipe
    RW_RECIPE_BF16, ///< products and attention in bfloat16; norms, softmax, sums and losses in float32
    RW_RECIPE_F16,  ///< the same in float16, which wants a scaler (below)
    RW_RECIPE_F8,   ///< as bfloat16, and rw_linear(), rw_linear_gelu() and rw_linear_add() of 8-bit codes
    RW_RECIPE_COUNT
} rw_recipe_kind;

typedef struct rw_delayed rw_delayed;

/** In which types ops run. Zero is none. */
typedef struct {
    rw_recipe_kind kind;
    /** Of RW_RECIPE_F8: current scaling of input and output gradient by the tensor, by RW_SCALING_1X128 with the weight
        by RW_SCALING_128X128, or by RW_SCALING_MX. Scales are powers of two. */
    rw_scaling scaling;
    rw_dtype gradient_dtype; ///< of the codes of the output's gradient [RW_F8_E5M2], or RW_F8_E4M3
    /** Of RW_RECIPE_F8 with RW_SCALING_TENSOR: scales come from amaxes of earlier steps (below), and gradient_dtype is
        theirs. It outlives the step that is recorded. NULL: current scaling. */
    rw_delayed *delayed;
    /** Of RW_RECIPE_F8: codes of weights are kept when backward has run, or rw_eval() where nothing is trained, in
        memory of the context, and read by what is recorded after a rw_tape_reset(), until the weight is written, or the
        scale that delayed scaling gives it. So micro-batches make them once an optimizer's step. The bytes are the
        same; it takes a byte an element and the scales (rw_memory.parameters), and as much of the activations of the
        step that makes them. Not in graphs. */
    bool keep_weights;
} rw_recipe;

/**
 * Opens a recipe: until the rw_recipe_end() that belongs to it, floating-point operands of what is recorded are cast to
 * the types that it says, those of float64 apart. Recipes nest, the innermost one counts; what begins inside a region
 * ends there. A cast is recorded once for each value in each region that uses it, that of a parameter or buffer once a
 * step, and kept or made again as any other op. Nodes that gradient rules record run in the types they meet.
 * @param recipe copied.
 * @return RW_ERR_ARGUMENT without a tape or a recipe, for a kind or scaling that there is not, or for delayed scaling
 *         of another kind, scaling or context; RW_ERR_DTYPE for codes of gradients of another type; RW_ERR_MEMORY.
 */
RW_API rw_status rw_recipe_begin_at(rw_site at, rw_tape *t, const rw_recipe *recipe);
#define rw_recipe_begin(...) rw_recipe_begin_at(RW_HERE, __VA_ARGS__)

/** Closes the innermost recipe. RW_ERR_REGION when none is open, or a region that began inside it still is. */
RW_API rw_status rw_recipe_end_at(rw_site at, rw_tape *t);
#define rw_recipe_end(...) rw_recipe_end_at(RW_HERE, __VA_ARGS__)

typedef struct rw_scaler rw_scaler;

/**
 * Zero means the default in brackets, which together are PyTorch's; no member may be zero. At each rw_scaler_update():
 *
 *     a gradient was not finite   hysteresis goes down by one; once it is none, scale = max(scale * backoff_factor,
 *                                 min_scale), at each further one too; the clean steps count from zero
 *     all were finite             after growth_interval such steps, scale = min(scale * growth_factor, max_scale) if
 *                                 that is finite, and they count from zero; hysteresis is full again - with
 *                                 refill_at_growth only then, not at every clean step
 *
 * Megatron's rule is { .init_scale = 0x1p32, .growth_interval = 1000, .hysteresis = 2, .refill_at_growth = true,
 * .min_scale = 1 }.
 */
typedef struct rw_scaler_params {
    double init_scale;       ///< [65536]
    double growth_factor;    ///< above 1 [2]
    double backoff_factor;   ///< between 0 and 1 [0.5]
    int64_t growth_interval; ///< at most 2^24 [2000]
    int32_t hysteresis;      ///< which of the steps that are left out brings the scale down; at most 2^24 [1]
    bool refill_at_growth;
    double min_scale; ///< [the least float32 above zero that is normal]
    double max_scale; ///< [the largest float32]
    const char *name; ///< of its buffer, copied ["scaler"]
} rw_scaler_params;

/** What a scaler has come to. */
typedef struct rw_scaler_state {
    double scale;
    int64_t growth_tracker; ///< clean steps since the scale last changed, or since one was left out
    int32_t hysteresis;     ///< what is left of it
    int64_t skipped;        ///< steps that were left out; counted up to 2^24
    bool found_inf;         ///< in the last step
} rw_scaler_state;

/**
 * Makes a scaler. Its state is a buffer of the context, of four float32, which rw_save() saves with the weights and
 * rw_load() loads; where one of that name is there already, as after an earlier scaler, it goes on from that.
 * @param ret_scaler receives the scaler, owned by the caller; untouched on failure.
 * @return RW_ERR_ARGUMENT for numbers that make no sense or a name that is none or taken by something else,
 *         RW_ERR_MEMORY, or an error that is stuck in the context.
 */
RW_API rw_status rw_scaler_create(rw_scaler **ret_scaler, rw_context *ctx, const rw_scaler_params *params);

/** Frees the scaler, not its buffer, and sets *s to NULL; with the graphs that use it, where there are any. NULL-safe.
 */
RW_API void rw_scaler_destroy(rw_scaler **s);

/**
 * rw_backward() that begins with the scale instead of one. A loss that is to be read before is computed by
 * rw_forward(t, 1, &loss); after it, reading costs nothing.
 * @param loss as for rw_backward(), of float32: in 16 bits there may be no such number.
 * @return what rw_backward() returns; RW_ERR_DTYPE for a loss of another type; RW_ERR_CHANGED where the gradients were
 *         multiplied by another scaler, or by another scale of this one, since they were clear.
 */
RW_API rw_status rw_scaler_backward(rw_scaler *s, rw_tape *t, rw_tensor *loss);

/**
 * Divides all gradients of the context by the scale, and finds out whether all of them are finite. Once for the
 * gradients of a step; rw_scaler_step() does it where no call has. On CUDA it is only queued.
 * @return RW_ERR_ARGUMENT when these gradients were unscaled, by this scaler or another, or when an optimizer was
 *         stepped with other gradients since rw_scaler_update(); RW_ERR_CHANGED where some of the gradients were
 *         unscaled and others were not, where backward multiplied them by another scale, and for a gradient that a
 *         failed backward has left half-way; RW_ERR_MEMORY, or an error that is stuck in the context; RW_ERR_ARGUMENT
 *         as well for more than 32,765 parameters. Then nothing has changed.
 */
RW_API rw_status rw_scaler_unscale(rw_scaler *s);

/**
 * rw_optimizer_step() of unscaled gradients, or nothing where one of them is not finite: parameters, moments and their
 * counts of steps stay. Several optimizers may be stepped, each once before rw_scaler_update(), all with the same
 * gradients: losses whose gradients are cleared in between take a scaler each, or an update of the scale each. From the
 * first time on an optimizer counts on the device.
 * @return what rw_optimizer_step() returns, and what rw_scaler_unscale() returns but for gradients that this scaler has
 *         unscaled; RW_ERR_ARGUMENT for an optimizer of another context, and for one that was stepped since
 *         rw_scaler_update().
 */
RW_API rw_status rw_scaler_step(rw_scaler *s, rw_optimizer *opt);

/** The scale of the next step. RW_ERR_ARGUMENT when nothing was unscaled since the last one. */
RW_API rw_status rw_scaler_update(rw_scaler *s);

/** What it has come to, when all that is queued has run. */
RW_API rw_status rw_scaler_get(rw_scaler *s, rw_scaler_state *ret_state);

/**
 * Delayed scaling of RW_RECIPE_F8: the scale of a step comes from the amaxes of the steps before it, so that codes are
 * made in one pass.
 *
 *     rw_delayed *d = NULL;
 *     rw_delayed_create(&d, ctx, NULL);                      // when the model's parameters are there
 *     const rw_recipe recipe = { .kind = RW_RECIPE_F8, .delayed = d };
 *     for (...) {
 *         rw_zero_grad(ctx);
 *         for (micro-batches) { rw_recipe_begin(t, &recipe); ... rw_recipe_end(t); rw_backward(t, loss); }
 *         rw_optimizer_step(opt);                            // or rw_scaler_step(s, opt), rw_scaler_update(s)
 *         rw_delayed_update(d, NULL);                        // or with s
 *     }
 *
 * A scale is an operand of what is recorded and its amax a result, so a replay computes with the scale that forward
 * computed with, and leaves nothing behind: where the scale changed in between, backward is an error that names it.
 * Backward takes the amaxes of what its loss depends on, once, as it ends. ckpt_verify() takes none.
 */
typedef enum rw_delayed_rule {
    RW_DELAYED_MAX,        ///< by the largest amax of the history
    RW_DELAYED_MOST_RECENT ///< by that of the last step alone
} rw_delayed_rule;

/** Zero means the default in brackets. */
typedef struct rw_delayed_params {
    int32_t history; ///< amaxes of so many updates are kept, at most 1024 [16]
    rw_delayed_rule rule;
    int32_t margin;          ///< scales are divided by 2^margin; at most 6 [0]
    rw_dtype gradient_dtype; ///< of codes of gradients [RW_F8_E5M2], or RW_F8_E4M3
    const char *name;        ///< its buffers' names begin with it, copied ["fp8"]
} rw_delayed_params;

/**
 * Makes the histories of each parameter and buffer of rank 2 of float32, bfloat16 or float16 that the context has: row
 * i's are 3 i for inputs of products with it, 3 i + 1 for itself, 3 i + 2 for gradients of their outputs. All uses of a
 * weight share them; what several products read as their input has one set of codes, by the first one's. They are
 * three buffers, which rw_save() saves and rw_load() loads:
 *
 *     NAME.scale [3 n]              by which numbers are multiplied: powers of two, 1 at first
 *     NAME.history [3 n, history]   amaxes, the latest first, 0 where there is none yet
 *     NAME.amax [3 n]               the largest since the last update
 *
 * Where they are there already, of these shapes, it goes on from them.
 * @param ret_delayed receives it, owned by the caller; untouched on failure.
 * @return RW_ERR_ARGUMENT for numbers that make no sense, without such a parameter, or for a name that is none or is
 *         taken by something else; RW_ERR_DTYPE for another gradient_dtype; RW_ERR_MEMORY; or an error that is stuck.
 */
RW_API rw_status rw_delayed_create(rw_delayed **ret_delayed, rw_context *ctx, const rw_delayed_params *params);

/** Frees it, not its buffers, and sets *d to NULL; with the graphs that use it, where there are any. A layer that is
    recorded under a recipe that names it, still open, is refused from then on: RW_ERR_ARGUMENT. NULL-safe. */
RW_API void rw_delayed_destroy(rw_delayed **d);

/**
 * The scales of the next step, once an optimizer's step: of each row whose amax is finite and above zero
 *
 *     the history moves on by one and begins with amax; m = its largest number, or amax
 *     scale = 2^floor(log2(largest code / m)) / 2^margin, the quotient in float32, at most 2^127
 *
 * A row that nothing was computed with, or with an amax that is not finite, stays; then all amaxes are zero. On CUDA
 * it is only queued.
 * @param s the scaler by which the step was made, NULL for none: when it has left the step out, every row stays.
 * @return RW_ERR_ARGUMENT for a scaler of another context, RW_ERR_MEMORY, or an error that is stuck in the context.
 */
RW_API rw_status rw_delayed_update(rw_delayed *d, rw_scaler *s);

/** The row i of a parameter or buffer; -1 where it has none. */
RW_API int64_t rw_delayed_row(const rw_delayed *d, const rw_tensor *weight);

#ifdef __cplusplus
}
#endif

#endif
