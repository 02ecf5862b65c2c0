/**
 * rewind/optimizers.h - SGD, Adam, AdamW and Lion, settings per parameter, and where optimizer states are stored.
 *
 * All optimizers have one type, and graphs, checkpoints and monitors take any of them. An optimizer updates all
 * parameters that the context has at its creation, except those of rw_optimizer_exclude(). Its states are float32
 * (float64 for float64 parameters; moments of Adam may be bfloat16), and 16-bit parameters get a float32 master copy.
 * Create a weight that is never trained with rw_buffer(): it has no gradient and no states.
 *
 * Source of AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019; bias correction as in
 * Kingma and Ba, "Adam", ICLR 2015.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_OPTIMIZERS_H
#define REWIND_OPTIMIZERS_H

#include <rewind/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An optimizer of any kind. */
typedef struct rw_optimizer rw_optimizer;

/** Where optimizer states (moments, momentum, master copies) are stored between updates. */
typedef enum rw_state_place {
    RW_STATE_DEVICE, ///< device memory
    RW_STATE_HOST,   ///< on CUDA: pinned host memory; on a CPU the same as RW_STATE_DEVICE
    RW_STATE_FILE    ///< a file without a name, in a folder
} rw_state_place;

/**
 * Offload of optimizer states. States outside of device memory are streamed through a window of it, block by block:
 * while one block is updated, the block before it is copied out and the next is copied in. Parameters are bit-identical
 * to RW_STATE_DEVICE. The window counts in rw_memory.optimizer, the rest in rw_memory.host or .files, so a policy
 * `total:SIZE` counts only the window.
 *
 * Memory or disk space for all states is allocated, and written to, at creation. An update that cannot read or write
 * states is RW_ERR_IO or RW_ERR_DEVICE. If it fails before the first block, no parameter has changed, and the update
 * can be repeated. Later, some parameters are updated and others are not, and the message says so: updates and
 * rw_checkpoint_save() are then RW_ERR_MODIFIED until rw_checkpoint_load() has restored all states.
 *
 * A graph can include the copies of states in pinned memory. It refuses states in a file, and fused updates with any
 * states outside of device memory: call rw_optimizer_step() after the launch instead.
 */
typedef struct rw_state_offload {
    rw_state_place place; ///< [RW_STATE_DEVICE]
    const char *path; ///< for RW_STATE_FILE: an existing folder on a disk, not tmpfs; else NULL or ""
    size_t window;    ///< maximum bytes of device memory, plus one page [64 MiB]; at least 64 KiB
} rw_state_offload;

/** Zero means the default in brackets, which is PyTorch's; RW_ZERO means zero. So `.weight_decay = 0` is a decay of
    0.01, and `.weight_decay = RW_ZERO` is none. A negative weight_decay or beta means zero, too. Refused: a negative
    learning rate or epsilon, a beta of 1 or more, numbers that are not finite, and a rate that overflows, see
    rw_optimizer_set(). */
typedef struct rw_adamw_params {
    double lr;           ///< learning rate [1e-3]; RW_ZERO: parameters are frozen until rw_optimizer_set_lr()
    double beta1, beta2; ///< decay of the moments [0.9, 0.999]
    double eps;          ///< [1e-8]
    double weight_decay; ///< [0.01]; applied to parameters of rank 0 and 1 only with decay_all
    bool decay_all;      ///< decay parameters of rank 0 and 1, too
    /** bfloat16 parameters have no master copy; updates are stochastically rounded, so the expected value is exact.
        Saves 4 bytes per element. See docs/precision.md. */
    bool stochastic_rounding;
    /** Type of the two moments: [RW_F32], or RW_BF16, which saves 4 bytes per element. The update is computed in
        float32. A bfloat16 first moment is rounded to nearest, the second stochastically, because with a beta2 of 0.999
        its changes are smaller than nearest rounding can represent. Moments of float64 parameters are float64. See
        docs/precision.md. */
    rw_dtype moments;
    rw_state_offload states; ///< [device memory]
} rw_adamw_params;

/**
 * Zero means the default in brackets; RW_ZERO means zero, and so does a negative weight_decay, momentum or beta.
 * Refused: a negative learning rate or epsilon; a beta, momentum or dampening of 1 or more; a dampening of -1e300 or
 * less; numbers that are not finite. Weight decay is applied to parameters of rank 0 and 1 only with decay_all.
 */
typedef struct rw_sgd_params {
    double lr;           ///< [1e-3]
    double momentum;     ///< [0: none, and no states]
    double dampening;    ///< [0] gradients after the first enter the momentum times 1 - dampening
    bool nesterov;       ///< requires a momentum and no dampening
    double weight_decay; ///< [0] L2 penalty: weight_decay times the parameter is added to the gradient
    bool decay_all;      ///< as rw_adamw_params.decay_all
    bool stochastic_rounding; ///< as rw_adamw_params.stochastic_rounding
    rw_state_offload states;         ///< as rw_adamw_params.states
} rw_sgd_params;

/** Zero and refused numbers as in rw_adamw_params. */
typedef struct rw_adam_params {
    double lr;           ///< [1e-3]
    double beta1, beta2; ///< [0.9, 0.999]
    double eps;          ///< [1e-8]
    double weight_decay; ///< [0] L2 penalty, added to the gradient; AdamW instead decouples it
    bool decay_all;      ///< as rw_adamw_params.decay_all
    bool stochastic_rounding; ///< as rw_adamw_params.stochastic_rounding
    rw_dtype moments;         ///< as rw_adamw_params.moments
    rw_state_offload states;         ///< as rw_adamw_params.states
} rw_adam_params;

/** Zero and refused numbers as in rw_adamw_params. */
typedef struct rw_lion_params {
    double lr;           ///< [1e-4]
    double beta1, beta2; ///< [0.9, 0.99] for the direction of the step; for the moment
    double weight_decay; ///< [0] decoupled from the gradient, as in AdamW
    bool decay_all;      ///< as rw_adamw_params.decay_all
    bool stochastic_rounding; ///< as rw_adamw_params.stochastic_rounding
    rw_state_offload states;         ///< as rw_adamw_params.states
} rw_lion_params;

/**
 * Creates an AdamW optimizer for all parameters that the context has now. Each parameter gets two moments, of float32
 * or params->moments (float64 for float64 parameters). A 16-bit parameter also gets a float32 master copy, except a
 * bfloat16 one with stochastic_rounding. If a parameter is written, loaded or initialized later, updates continue from
 * its new value with the old moments. On a CPU, moments below the normal range become 0.
 * @param ret_opt receives the optimizer, owned by the caller; untouched on failure.
 * @param params  may be NULL for the defaults; read during the call.
 * @return RW_OK; RW_ERR_ARGUMENT for numbers that are refused; RW_ERR_DTYPE for another type of moments; RW_ERR_MEMORY;
 *         or the context's sticky error. For `states` also RW_ERR_ARGUMENT (an unknown place, a path without
 *         RW_STATE_FILE or the reverse, a window below the minimum), RW_ERR_IO (no such folder, not writable, disk
 *         full) and RW_ERR_MEMORY (too little pinned memory).
 *         RW_ERR_MEMORY also if optimizer states and averages of the context would take more than 2^60 bytes.
 */
RW_API rw_status rw_adamw_create(rw_optimizer **ret_opt, rw_context *ctx, const rw_adamw_params *params);

/**
 * Creates an optimizer: SGD with momentum, as torch.optim.SGD; Adam, as torch.optim.Adam (Kingma and Ba, ICLR 2015);
 * Lion (Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023).
 * @param ret_opt receives the optimizer, owned by the caller; untouched on failure.
 * @param params  may be NULL for the defaults; read during the call.
 * @return as rw_adamw_create()
 */
RW_API rw_status rw_sgd_create(rw_optimizer **ret_opt, rw_context *ctx, const rw_sgd_params *params);
RW_API rw_status rw_adam_create(rw_optimizer **ret_opt, rw_context *ctx, const rw_adam_params *params);
RW_API rw_status rw_lion_create(rw_optimizer **ret_opt, rw_context *ctx, const rw_lion_params *params);

/**
 * Frees the optimizer and its states, in memory or in a file, and sets *opt to NULL. Graphs that use it keep it alive
 * until the last of them is destroyed. Scalers, monitors and checkpoints do not: a monitor that watches it reports no
 * update statistics afterwards, and a checkpoint refuses to save and load. NULL-safe.
 */
RW_API void rw_optimizer_destroy(rw_optimizer **opt);

/**
 * Updates every parameter that has a gradient and a learning rate above zero. Each parameter counts its own steps. On
 * CUDA the update is only queued. It counts as a change of these parameters, as rw_write() does.
 *
 * A learning rate of zero, the optimizer's or by rw_optimizer_set(), freezes a parameter: it, its moments, its master
 * copy and its count of steps do not change, whatever its weight decay and its gradient, including NaN and infinity.
 * PyTorch also leaves the parameter unchanged, but updates the moments and counts a step. So a schedule whose first
 * rate is zero effectively starts with its second step; rw_lr_schedule_rate() returns no zero during a warm-up.
 * @return RW_OK; RW_ERR_MODIFIED for a gradient that a failed backward left incomplete, and for gradients of
 *         rw_scaler_backward() before rw_scaler_unscale(); RW_ERR_MEMORY; RW_ERR_ARGUMENT for a parameter with a
 *         gradient that no optimizer of the context holds, because it was created later, unless rw_optimizer_exclude()
 *         excluded it; or the context's sticky error. On failure nothing has changed.
 */
RW_API rw_status rw_optimizer_step(rw_optimizer *opt);

/**
 * Sets the learning rate of later steps and launches to lr; zero freezes the parameters. A rate that is negative or not
 * finite changes nothing and is a sticky RW_ERR_ARGUMENT, which the next step returns. The same holds for a rate that
 * does not fit the settings of a parameter, see rw_optimizer_set().
 */
RW_API void rw_optimizer_set_lr(rw_optimizer *opt, double lr);

/** Settings of one parameter, in place of PyTorch's parameter groups. Zero means the default in brackets; RW_ZERO and
    negative numbers mean zero. */
typedef struct rw_optimizer_settings {
    double lr_factor;    ///< factor of the optimizer's learning rate [1]; RW_ZERO freezes the parameter
    double weight_decay; ///< [the optimizer's, which depends on the parameter's rank]; other values apply to any rank
} rw_optimizer_settings;

/**
 * Sets how one parameter is updated, from the next step or launch on. Checkpoints save it (rewind/checkpoint.h).
 *
 * The learning rate times lr_factor, also divided by Adam's correction, and its product with the weight decay must be
 * finite in float32 (float64 for a float64 parameter). Otherwise a gradient of zero would give a weight of NaN.
 * @param settings NULL for the defaults.
 * @return RW_OK; RW_ERR_ARGUMENT, which is sticky, if the optimizer does not hold this parameter, for a number that is
 *         not finite, or if the optimizer's learning rate does not fit: the message has all numbers. Then the earlier
 *         settings stay.
 */
RW_API rw_status rw_optimizer_set(rw_optimizer *opt, rw_tensor *param, const rw_optimizer_settings *settings);

/**
 * Excludes a parameter from training. Optimizers that are created later have no states for it and do not update it, and
 * a step does not require that an optimizer holds it. Its gradient is still computed, so the program can read or apply
 * it, and still counts in rw_clip_grad_norm(). An optimizer that already holds the parameter keeps it; to freeze it
 * there, call rw_optimizer_set() with an lr_factor of RW_ZERO. Checkpoints do not save the exclusion.
 * @param excluded false includes the parameter again.
 * @return RW_OK; RW_ERR_ARGUMENT, which is sticky, if `param` is not a parameter.
 */
RW_API rw_status rw_optimizer_exclude(rw_tensor *param, bool excluded);

#ifdef __cplusplus
}
#endif

#endif
