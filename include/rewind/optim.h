/**
 * rewind/optim.h - AdamW.
 *
 * Source: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019; bias correction as in Kingma and
 * Ba, "Adam", ICLR 2015.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_OPTIM_H
#define REWIND_OPTIM_H

#include <rewind/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rw_adamw rw_adamw;

/** Zero means the default in brackets; a negative weight_decay or beta means zero. A learning rate or an epsilon below
    zero, a beta of one or more, and what is no number or infinite are refused. */
typedef struct rw_adamw_params {
    double lr;           ///< learning rate [1e-3]
    double beta1, beta2; ///< decay of the moments [0.9, 0.999]
    double eps;          ///< [1e-8]
    double weight_decay; ///< [0.01]; not applied to parameters of rank 0 and 1 unless decay_all
    bool decay_all;
    /** Parameters of bf16 have no master copy: an update is stored as one of its two neighbours, by chance, the nearer
        the likelier, so that it is kept on the average. 4 bytes less an element. See docs/precision.md. */
    bool stochastic_rounding;
} rw_adamw_params;

/**
 * Creates an optimizer over all parameters that the context has now: two float32 moments each (float64 for float64
 * parameters), and a float32 master copy for 16-bit ones, but for those of bf16 under stochastic_rounding. A parameter
 * that is written, loaded or initialized later counts as it is then; its moments stay.
 * @param ret_opt receives the optimizer, owned by the caller; untouched on failure.
 * @return RW_ERR_ARGUMENT for numbers that are refused, RW_ERR_MEMORY, or an error that is stuck in the context.
 */
RW_API rw_status rw_adamw_create(rw_adamw **ret_opt, rw_context *ctx, const rw_adamw_params *params);

/** Frees the optimizer and sets *opt to NULL; with the graphs that step with it, where there are any. NULL-safe. */
RW_API void rw_adamw_destroy(rw_adamw **opt);

/**
 * One update of every parameter that has a gradient; each counts its own steps. On CUDA it is only queued. It counts as
 * a change of these parameters, as rw_write() does.
 * @return an error that is stuck in the context, RW_ERR_CHANGED for a gradient that a failed backward has left
 *         half-way, RW_ERR_MEMORY; then nothing has changed.
 */
RW_API rw_status rw_adamw_step(rw_adamw *opt);

/** Changes the learning rate of the following steps and launches; zero is one. What is negative or no number changes
    nothing and is an error that sticks: the next step returns RW_ERR_ARGUMENT. */
RW_API void rw_adamw_set_lr(rw_adamw *opt, double lr);

#ifdef __cplusplus
}
#endif

#endif
