/**
 * rewind/optimizers.h - optimizers beside AdamW, and settings of single parameters.
 *
 * All are one type: what takes an rw_adamw - graphs, checkpoints - takes any of them. Each keeps float32 states
 * (float64 for float64 parameters; moments of Adam may be bfloat16) and a float32 master copy of 16-bit parameters, and
 * works on all parameters that the context has when it is made, but for those of rw_optimizer_exclude(). A weight that
 * is not to be trained is made by rw_buffer(): it takes neither a gradient nor states.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_OPTIMIZERS_H
#define REWIND_OPTIMIZERS_H

#include <rewind/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An optimizer of any kind; rw_adamw is its first name. */
typedef rw_adamw rw_optimizer;

/**
 * Zero means the default in brackets; RW_ZERO means zero, and so does a negative weight_decay, momentum or beta. A
 * learning rate or an epsilon below zero, a beta, momentum or dampening of one or more, a dampening of -1e300 or less,
 * and a number that is not finite are refused. Weight decay is not applied to parameters of rank 0 and 1 unless
 * decay_all.
 */
typedef struct rw_sgd_params {
    double lr;           ///< [1e-3]
    double momentum;     ///< [0: none, and no states]
    double dampening;    ///< [0] of the gradient on its way into the momentum buffer, but for the first
    bool nesterov;       ///< needs a momentum and no dampening
    double weight_decay; ///< [0] of the gradient: it gets weight_decay times the parameter
    bool decay_all;
    bool stochastic_rounding; ///< as rw_adamw_params.stochastic_rounding
    rw_states states;         ///< as rw_adamw_params.states
} rw_sgd_params;

typedef struct rw_adam_params {
    double lr;           ///< [1e-3]
    double beta1, beta2; ///< [0.9, 0.999]
    double eps;          ///< [1e-8]
    double weight_decay; ///< [0] of the gradient: it gets weight_decay times the parameter. AdamW decays apart from it
    bool decay_all;
    bool stochastic_rounding; ///< as rw_adamw_params.stochastic_rounding
    rw_dtype moments;         ///< as rw_adamw_params.moments
    rw_states states;         ///< as rw_adamw_params.states
} rw_adam_params;

typedef struct rw_lion_params {
    double lr;           ///< [1e-4]
    double beta1, beta2; ///< [0.9, 0.99] of the step's direction; of the moment
    double weight_decay; ///< [0] apart from the gradient, as AdamW's
    bool decay_all;
    bool stochastic_rounding; ///< as rw_adamw_params.stochastic_rounding
    rw_states states;         ///< as rw_adamw_params.states
} rw_lion_params;

/**
 * SGD with momentum, as torch.optim.SGD; Adam, as torch.optim.Adam (Kingma and Ba, ICLR 2015); Lion (Chen et al.,
 * "Symbolic discovery of optimization algorithms", NeurIPS 2023).
 * @param ret_opt receives the optimizer, owned by the caller; untouched on failure.
 * @param params  may be NULL for the defaults; need live only until the call returns.
 * @return RW_ERR_ARGUMENT for numbers that are refused, RW_ERR_DTYPE for moments of another type, RW_ERR_MEMORY, or an
 *         error that is stuck in the context; for states that are to be elsewhere what rw_adamw_create() returns.
 */
RW_API rw_status rw_sgd_create(rw_optimizer **ret_opt, rw_context *ctx, const rw_sgd_params *params);
RW_API rw_status rw_adam_create(rw_optimizer **ret_opt, rw_context *ctx, const rw_adam_params *params);
RW_API rw_status rw_lion_create(rw_optimizer **ret_opt, rw_context *ctx, const rw_lion_params *params);

/** As rw_adamw_destroy(), rw_adamw_step() and rw_adamw_set_lr(), for every kind; so are those. */
RW_API void rw_optimizer_destroy(rw_optimizer **opt);
RW_API rw_status rw_optimizer_step(rw_optimizer *opt);
RW_API void rw_optimizer_set_lr(rw_optimizer *opt, double lr);

/** Of one parameter; what parameter groups are elsewhere. Zero means the default in brackets; RW_ZERO and negative
    numbers mean zero. */
typedef struct rw_optimizer_settings {
    double lr_factor;    ///< of the optimizer's learning rate [1]; zero freezes the parameter (rw_adamw_step())
    double weight_decay; ///< [the optimizer's, by the parameter's rank]; any other is applied whatever the rank
} rw_optimizer_settings;

/**
 * Sets how one parameter is updated from the next step or launch on. Checkpoints save it (rewind/resume.h).
 * @param settings NULL for the defaults.
 * @return RW_ERR_ARGUMENT, which sticks: not a parameter that the optimizer has, or a number that is not finite.
 */
RW_API rw_status rw_optimizer_set(rw_optimizer *opt, rw_tensor *param, const rw_optimizer_settings *settings);

/**
 * Excludes a parameter from training: optimizers that are created later leave it out, with neither states nor updates,
 * and a step does not require that an optimizer holds it. Its gradient is still computed, for the program to read or
 * to apply itself, and still counts in rw_clip_grad_norm(). An optimizer that holds the parameter already keeps it:
 * rw_optimizer_set() with an lr_factor of RW_ZERO freezes it there. A checkpoint does not save this.
 * @param excluded false includes it again.
 * @return RW_ERR_ARGUMENT, which sticks, for what is not a parameter.
 */
RW_API rw_status rw_optimizer_exclude(rw_tensor *param, bool excluded);

#ifdef __cplusplus
}
#endif

#endif
