/**
 * rewind/precision.h - mixed precision: recipes (autocast), loss scaling, and delayed FP8 scaling.
 *
 * A recipe sets the types in which ops recorded in its scope run, as torch.autocast does, so a model with float32
 * parameters trains in 16 bits without changes:
 *
 *     rw_recipe_begin(t, &(rw_recipe){ .kind = RW_RECIPE_BF16 });
 *     rw_tensor *loss = model(t, ...);                              // linear, matmul, attention ... in bfloat16
 *     rw_recipe_end(t);
 *
 * A recipe records casts before the ops; docs/precision.md lists them. So replays reproduce the same values under every
 * policy, and gradients are cast back to the type of the parameter.
 *
 * Small 16-bit gradients underflow to zero. A scaler multiplies the gradient with which backward starts by a scale,
 * divides the gradients by the same scale before they are used, and skips a step if one of them is infinite or NaN:
 *
 *     rw_scaler *s = NULL;
 *     rw_scaler_create(&s, ctx, NULL);
 *     for (...) {
 *         rw_zero_grad(ctx);
 *         for (micro-batches) rw_scaler_backward(s, t, loss);   // gradients times the scale
 *         rw_scaler_unscale(s);                                 // only to clip in between
 *         rw_clip_grad_norm(ctx, 1.0, NULL);
 *         rw_scaler_step(s, opt);                               // skipped if a gradient is not finite
 *         rw_scaler_update(s);                                  // the scale of the next step
 *     }
 *
 * or in a list of recorders, rw_record_scaler(). Nothing waits for the device: its memory holds the scale, the result
 * of the check, and the number of skipped updates. The scale is read only at the start of backward, so replays never
 * depend on it. A skipped step leaves parameters, moments, master copies and step counts unchanged. With a scale that
 * is a power of two, gradients and updates of a float32 model are bit-identical to those without a scaler, unless a
 * number leaves the range of float32.
 *
 * The scale of gradients is a property of the gradients, not of the scaler. rw_zero_grad(), rw_graph_launch() and
 * rw_checkpoint_load() reset it, so the program may abandon a step at any point. Until then calls refuse to add to
 * unscaled gradients, to unscale twice, and to divide by another scale than backward used. rw_clip_grad_norm() and
 * rw_optimizer_step() refuse gradients that rw_scaler_backward() has scaled. Gradients that rw_backward()
 * adds before rw_scaler_unscale() are divided, too: multiply such a loss by the scale, the first number of the scaler's
 * buffer. Data that rw_write() stores in a gradient, or the caller at its address, counts as scaled before
 * rw_scaler_unscale() and as unscaled after it.
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

/** Types of ops inside a recipe's scope. */
typedef enum rw_recipe_kind {
    RW_RECIPE_NONE, ///< no casts: each op runs in the types of its operands, also inside another recipe
    RW_RECIPE_F32,  ///< products also in float32, for first and last layers inside another recipe
    RW_RECIPE_BF16, ///< products and attention in bfloat16; norms, softmax, sums and losses in float32
    RW_RECIPE_F16,  ///< the same in float16, which needs a scaler
    RW_RECIPE_F8,   ///< as RW_RECIPE_BF16, with FP8 operands for rw_linear(), rw_linear_gelu() and rw_linear_add()
    RW_RECIPE_COUNT
} rw_recipe_kind;

/** Amax histories for RW_RECIPE_F8, from rw_delayed_scaling_create(). */
typedef struct rw_delayed_scaling rw_delayed_scaling;

/** A precision recipe. All zero: no casts. */
typedef struct {
    rw_recipe_kind kind; ///< types of the ops
    /** RW_RECIPE_F8: granularity of current scaling for input and output gradient. Per tensor; RW_SCALING_1X128, with
        RW_SCALING_128X128 for the weight; or RW_SCALING_MX. Scales are powers of two. */
    rw_scaling scaling;
    rw_dtype gradient_dtype; ///< RW_RECIPE_F8: type of the quantized output gradient: [RW_F8_E5M2] or RW_F8_E4M3
    /** RW_RECIPE_F8 with RW_SCALING_TENSOR: take scales from amaxes of earlier steps, and gradient_dtype from
        rw_delayed_scaling_params. Must outlive the recorded step. NULL: current scaling. */
    rw_delayed_scaling *delayed;
    /** RW_RECIPE_F8: keep quantized weights in memory of the context after backward (after rw_eval() if nothing is
        trained). Ops that are recorded after a rw_tape_reset() read them, until the weight or its delayed scale is
        written. So they are quantized once per optimizer step and not once per micro-batch, with the same bytes. It
        takes 1 byte per element plus the scales (rw_memory.parameters), and as many activation bytes in the step that
        quantizes. rw_graph_create() refuses it; ops recorded after it on the same tape keep nothing. */
    bool keep_weights;
} rw_recipe;

/**
 * Opens a recipe: until the matching rw_recipe_end(), floating-point operands of recorded ops are cast to the types of
 * the recipe, except float64 operands. Recipes nest, and the innermost one applies. A recipe that begins inside a
 * region ends inside it. A cast is recorded once per value and region that uses it, and once per step for a parameter
 * or buffer; it is kept or recomputed as any other op. Nodes that gradient rules record run in the types of their
 * operands.
 * @param recipe copied.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL, for an unknown kind or scaling, and for delayed scaling with another kind or
 *         scaling or of another context; RW_ERR_DTYPE for another gradient_dtype; RW_ERR_MEMORY.
 */
RW_API rw_status rw_recipe_begin_at(rw_site at, rw_tape *t, const rw_recipe *recipe);
#define rw_recipe_begin(...) rw_recipe_begin_at(RW_HERE, __VA_ARGS__)

/** Closes the innermost recipe. @return RW_OK; RW_ERR_REGION if none is open, or if a region that began inside it is
    still open. */
RW_API rw_status rw_recipe_end_at(rw_site at, rw_tape *t);
#define rw_recipe_end(...) rw_recipe_end_at(RW_HERE, __VA_ARGS__)

/**
 * Returns x as the innermost recipe casts it for a product, for a function that records several ops; an op itself sets
 * rw_op_def.cast_low. x itself without a recipe, or if it is NULL or not of a floating-point type. NULL on an error,
 * which is sticky: x is no operand on the tape, or memory.
 * @param x a tensor, or an operand of the function that may be NULL
 */
RW_API rw_tensor *rw_recipe_cast_low_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_recipe_cast_low(...) rw_recipe_cast_low_at(RW_HERE, __VA_ARGS__)

/** Returns x as the innermost recipe casts it for a sum (rw_op_def.cast_f32), otherwise as rw_recipe_cast_low(). */
RW_API rw_tensor *rw_recipe_cast_f32_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_recipe_cast_f32(...) rw_recipe_cast_f32_at(RW_HERE, __VA_ARGS__)

/** Returns the type to which rw_recipe_cast_low() casts x; x's type if it casts nothing. */
RW_API rw_dtype rw_recipe_low_dtype(const rw_tape *t, const rw_tensor *x);

/** Returns the innermost open recipe if it is RW_RECIPE_F8, valid until something is recorded; else NULL. */
RW_API const rw_recipe *rw_recipe_fp8(const rw_tape *t);

/** Operands of the products of a weight, each with a history under delayed scaling and statistics in rw_monitor. */
typedef enum rw_delayed_operand {
    RW_DELAYED_INPUT,    ///< what is multiplied by the weight
    RW_DELAYED_WEIGHT,   ///< the weight itself
    RW_DELAYED_GRADIENT, ///< the gradient of the product
    RW_DELAYED_OPERANDS
} rw_delayed_operand;

/**
 * Quantizes x as an operand of a product with a weight under the recipe of rw_recipe_fp8(): once per step for a
 * parameter or buffer, once per region for another value; with rw_recipe.keep_weights perhaps in an earlier step. Under
 * delayed scaling the scale is that of the operand, and its amax is recorded.
 * @param x, weight values of the tape: rw_operand_at(); the weight itself is quantized as RW_DELAYED_WEIGHT
 * @param params    as for rw_quantize(); dtype RW_F8_E4M3. A tensor that was quantized before with the same scaling
 *                  keeps the data and scale of the first call
 * @param operand   RW_DELAYED_INPUT or RW_DELAYED_WEIGHT
 * @param ret_scale receives the scales for rw_dequantize()
 * @return the quantized tensor; NULL on an error, which is sticky: RW_ERR_ARGUMENT without such a recipe, for a tensor
 *         that is not a value of the tape, or for a weight without a history
 */
RW_API rw_tensor *rw_recipe_quantize_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_quantize_params *params,
                                        rw_tensor *weight, rw_delayed_operand operand, rw_tensor **ret_scale);
#define rw_recipe_quantize(...) rw_recipe_quantize_at(RW_HERE, __VA_ARGS__)

/** Where the gradient of a product records its amax and its statistics: data for attributes. All zero: nowhere. */
typedef struct rw_recipe_slot {
    uint32_t amax_[2];   ///< private
    uint32_t counts_[2]; ///< private
} rw_recipe_slot;

/**
 * Finds, when a product with the weight is recorded under the recipe of rw_recipe_fp8(), the slot of its gradient.
 * @param weight    a value of the tape
 * @param ret_slot  receives the slot, for rw_recipe_quantize_gradient() in the product's rule
 * @param ret_scale receives, under delayed scaling, the scale of the gradient, which must be an input of the rule's op;
 *        else RW_NONE
 * @return RW_OK; RW_ERR_ARGUMENT as for rw_recipe_quantize(); RW_ERR_MEMORY
 */
RW_API rw_status rw_recipe_gradient_slot_at(rw_site at, rw_tape *t, rw_tensor *weight, rw_recipe_slot *ret_slot,
                                            rw_tensor **ret_scale);
#define rw_recipe_gradient_slot(...) rw_recipe_gradient_slot_at(RW_HERE, __VA_ARGS__)

/**
 * Quantizes the gradient of a product, in its rule, and records amax and statistics where the slot says, when backward
 * ends.
 * @param dy     the gradient
 * @param scale  the scale of rw_recipe_gradient_slot(), an input of the rule; or RW_NONE
 * @param params, ret_scale as for rw_quantize()
 * @param slot   of rw_recipe_gradient_slot()
 * @return the quantized tensor; NULL on an error, which is sticky
 */
RW_API rw_tensor *rw_recipe_quantize_gradient_at(rw_site at, rw_tape *t, rw_tensor *dy, rw_tensor *scale,
                                                 const rw_quantize_params *params, const rw_recipe_slot *slot,
                                                 rw_tensor **ret_scale);
#define rw_recipe_quantize_gradient(...) rw_recipe_quantize_gradient_at(RW_HERE, __VA_ARGS__)

/** A loss scale with its rule. */
typedef struct rw_scaler rw_scaler;

/**
 * Zero means the default in brackets. The defaults are PyTorch's, and no member can be set to zero. The rule of
 * rw_scaler_update():
 *
 *     a gradient was not finite   The count of clean steps becomes zero. Hysteresis decreases by one; when it is zero,
 *                                 and at each further such step, scale = max(scale * backoff_factor, min_scale).
 *     all were finite             After growth_interval such steps, scale = min(scale * growth_factor, max_scale), if
 *                                 the product is finite (else the scale stays), and the count becomes zero. Hysteresis
 *                                 is reset: at every clean step, or with refill_at_growth only when the scale grows.
 *
 * Megatron's rule is { .init_scale = 0x1p32, .growth_interval = 1000, .hysteresis = 2, .refill_at_growth = true,
 * .min_scale = 1 }.
 */
typedef struct rw_scaler_params {
    double init_scale;       ///< [65536]
    double growth_factor;    ///< above 1 [2]
    double backoff_factor;   ///< between 0 and 1 [0.5]
    int64_t growth_interval; ///< at most 2^24 [2000]
    int32_t hysteresis;      ///< the scale decreases at the skipped step of this number; at most 2^24 [1]
    bool refill_at_growth; ///< reset the hysteresis only when the scale grows, not at every clean step
    double min_scale; ///< [the smallest positive normal float32]
    double max_scale; ///< [the largest float32]
    const char *name; ///< name of its buffer, copied ["scaler"]
} rw_scaler_params;

/** The state of a scaler. */
typedef struct rw_scaler_state {
    double scale;           ///< factor of the loss
    int64_t growth_tracker; ///< clean steps since the scale last changed or a step was skipped
    int32_t hysteresis;     ///< remaining hysteresis
    int64_t skipped;        ///< number of skipped steps, at most 2^24
    bool found_inf;         ///< a gradient was not finite in the last step
} rw_scaler_state;

/**
 * Creates a scaler. Its state is a buffer of the context with four float32, which rw_save() and rw_load() handle with
 * the weights. If a buffer of that name exists, for example of an earlier scaler, it continues from its contents.
 * @param ret_scaler receives the scaler, owned by the caller; untouched on failure.
 * @param params may be NULL for the defaults.
 * @return RW_OK; RW_ERR_ARGUMENT for numbers out of range, or a name that is invalid or used by something else;
 *         RW_ERR_MEMORY; or the context's sticky error.
 */
RW_API rw_status rw_scaler_create(rw_scaler **ret_scaler, rw_context *ctx, const rw_scaler_params *params);

/** Frees the scaler and sets *s to NULL; its buffer stays. Graphs that use it keep it alive. NULL-safe. */
RW_API void rw_scaler_destroy(rw_scaler **s);

/**
 * rw_backward() that starts with the scale instead of 1. To read the loss first, compute it by rw_forward(t, &loss, 1);
 * reading then costs a copy.
 * @param loss as for rw_backward(), of float32, because 16 bits may not represent the scale.
 * @return what rw_backward() returns; RW_ERR_DTYPE for a loss of another type; RW_ERR_MODIFIED if the gradients already
 *         contain contributions with another scale or of another scaler.
 */
RW_API rw_status rw_scaler_backward(rw_scaler *s, rw_tape *t, rw_tensor *loss);

/**
 * Divides all gradients of the context by the scale and checks whether all of them are finite. Call it at most once per
 * step; rw_scaler_step() does it if no call has. On CUDA it is only queued.
 * @return RW_OK.
 *         RW_ERR_ARGUMENT if the gradients are already unscaled, by this scaler or another one; if an optimizer was
 *         stepped with other gradients since rw_scaler_update(); or for more than 32,765 parameters.
 *         RW_ERR_MODIFIED if only some of the gradients are unscaled, if backward multiplied them by another scale, or
 *         for a gradient that a failed backward left incomplete.
 *         RW_ERR_MEMORY, or the context's sticky error.
 *         On failure nothing has changed.
 */
RW_API rw_status rw_scaler_unscale(rw_scaler *s);

/**
 * rw_optimizer_step() with unscaled gradients, or nothing if one of them is not finite: parameters, moments and step
 * counts are then unchanged. Several optimizers may be stepped, each once before rw_scaler_update(), all with the same
 * gradients. If gradients are cleared between losses, use one scaler per loss, or update the scale after each loss.
 * After its first rw_scaler_step(), or rw_graph_create() with it and a scaler, an optimizer counts its steps on the
 * device. A graph of the optimizer that was created before is then RW_ERR_MODIFIED when it is launched.
 * @param opt of the scaler's context
 * @return what rw_optimizer_step() returns; what rw_scaler_unscale() returns, except that gradients may already be
 *         unscaled by this scaler; RW_ERR_ARGUMENT for an optimizer of another context, or one that was stepped since
 *         rw_scaler_update(). A step that is refused has changed nothing: gradients are as they were, and the optimizer
 *         counts its steps where it did.
 */
RW_API rw_status rw_scaler_step(rw_scaler *s, rw_optimizer *opt);

/** Updates the scale for the next step. @return RW_OK; RW_ERR_ARGUMENT if nothing was unscaled since the last update;
    or the context's sticky error. */
RW_API rw_status rw_scaler_update(rw_scaler *s);

/** Waits for queued work and fills *ret_state. @return RW_OK; RW_ERR_ARGUMENT for NULL; RW_ERR_DEVICE; or the context's
    sticky error. */
RW_API rw_status rw_scaler_get(rw_scaler *s, rw_scaler_state *ret_state);

/**
 * Delayed scaling for RW_RECIPE_F8: the scales of a step come from the amaxes of earlier steps, so each tensor is
 * quantized in one pass.
 *
 *     rw_delayed_scaling *d = NULL;
 *     rw_delayed_scaling_create(&d, ctx, NULL);                      // after the model's parameters
 *     const rw_recipe recipe = { .kind = RW_RECIPE_F8, .delayed = d };
 *     for (...) {
 *         rw_zero_grad(ctx);
 *         for (micro-batches) { rw_recipe_begin(t, &recipe); ... rw_recipe_end(t); rw_backward(t, loss); }
 *         rw_optimizer_step(opt);                            // or rw_scaler_step(s, opt), rw_scaler_update(s)
 *         rw_delayed_scaling_update(d, NULL);                        // or with s
 *     }
 *
 * A scale is an operand of a recorded op, and its amax is a result. So a replay computes with the scale that forward
 * used and has no side effect; if the scale has changed since, backward is an error that names it. When backward ends,
 * it records the amaxes of everything that its loss depends on, once, and of nothing else that the step computes.
 * ckpt_verify() records none.
 */
typedef enum rw_delayed_scaling_rule {
    RW_DELAYED_MAX,        ///< use the largest amax of the history
    RW_DELAYED_MOST_RECENT ///< use the amax of the last step
} rw_delayed_scaling_rule;

/** Zero means the default in brackets. */
typedef struct rw_delayed_scaling_params {
    int32_t history; ///< length of the history in updates, at most 1024 [16]
    rw_delayed_scaling_rule rule; ///< [RW_DELAYED_MAX]
    int32_t margin;          ///< scales are divided by 2^margin; at most 6 [0]
    rw_dtype gradient_dtype; ///< type of quantized gradients: [RW_F8_E5M2] or RW_F8_E4M3
    const char *name;        ///< prefix of its buffers' names, copied ["fp8"]
} rw_delayed_scaling_params;

/**
 * Creates amax histories for each parameter and buffer of rank 2 and type float32, bfloat16 or float16 that the context
 * has now. Weight i uses row 3 i for inputs of its products, row 3 i + 1 for itself, and row 3 i + 2 for gradients of
 * their outputs. All uses of a weight share its rows. An input that several products read is quantized once, with the
 * scale of the first one's weight. The state is in three buffers, which rw_save() and rw_load() handle:
 *
 *     NAME.scale [3 n]              factors, which are powers of two; 1 at first
 *     NAME.history [3 n, history]   amaxes, the latest first; 0 where there is none yet
 *     NAME.amax [3 n]               the largest amax since the last update
 *
 * If buffers of these names and shapes exist, it continues from their contents.
 * @param ret_delayed receives the object, owned by the caller; untouched on failure.
 * @param params may be NULL for the defaults.
 * @return RW_OK; RW_ERR_ARGUMENT for numbers out of range, if there is no such parameter, or for a name that is invalid
 *         or used by something else; RW_ERR_DTYPE for another gradient_dtype; RW_ERR_MEMORY; or the context's sticky
 *         error.
 */
RW_API rw_status rw_delayed_scaling_create(rw_delayed_scaling **ret_delayed, rw_context *ctx,
                                           const rw_delayed_scaling_params *params);

/** Frees the object and sets *d to NULL; its buffers stay. Graphs that use it keep it alive. Recording a layer under an
    open recipe that names it is RW_ERR_ARGUMENT from then on. NULL-safe. */
RW_API void rw_delayed_scaling_destroy(rw_delayed_scaling **d);

/**
 * Computes the scales of the next step; call it once per optimizer step. For each row whose amax is finite and above
 * zero:
 *
 *     the history shifts by one and gets amax as its first entry; m = its maximum, or amax (rw_delayed_scaling_rule)
 *     scale = 2^floor(log2(largest FP8 number / m)) / 2^margin, the quotient in float32, at most 2^127
 *
 * Other rows are unchanged: nothing was computed with them, or their amax is not finite. Then all amaxes are set to
 * zero. On CUDA the update is only queued.
 * @param s the scaler of the step, or NULL. If it skipped the step, all rows are unchanged.
 * @return RW_OK; RW_ERR_ARGUMENT for a scaler of another context; RW_ERR_MEMORY; or the context's sticky error.
 */
RW_API rw_status rw_delayed_scaling_update(rw_delayed_scaling *d, rw_scaler *s);

/** Returns i, the index of weight, a parameter or buffer, among the weights with rows; -1 if it has none. */
RW_API int64_t rw_delayed_scaling_row(const rw_delayed_scaling *d, const rw_tensor *weight);

#ifdef __cplusplus
}
#endif

#endif
