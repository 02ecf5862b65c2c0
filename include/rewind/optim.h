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

/** Where an optimizer's states - moments, momentum, master copies - are between its updates. */
typedef enum rw_states_place {
    RW_STATES_DEVICE, ///< in the device's memory
    RW_STATES_HOST,   ///< on CUDA in pinned memory of the host; on a CPU, whose memory that is, as RW_STATES_DEVICE
    RW_STATES_FILE    ///< in a file without a name, in a folder
} rw_states_place;

/**
 * What is not in the device's memory comes through a window of it, block by block: while one block is updated the one
 * before it goes out and another comes in. Parameters are the same bytes as with RW_STATES_DEVICE. The window counts in
 * rw_memory.optimizer, the rest in rw_memory.host or .files; so a policy `total:SIZE` sees the window alone.
 *
 * Room for all states is taken, and written to, when the optimizer is made. In a run an update that could not read or
 * write them is RW_ERR_IO (RW_ERR_DEVICE): before the first block, no parameter has changed, and the update can be
 * tried again; later, some parameters are updated and others are not, the message says so, and updates and
 * rw_checkpoint_save() are RW_ERR_CHANGED until rw_checkpoint_load() has written all states. A graph holds the copies
 * of states in pinned memory; of a file, or inside backward, it refuses them: rw_optimizer_step() is called behind it.
 */
typedef struct rw_states {
    rw_states_place place;
    const char *path; ///< of RW_STATES_FILE: an existing folder, of a disk, not of memory; else NULL or ""
    size_t window;    ///< at most so many bytes of the device's memory [64 MiB], and a page; at least 64 KiB
} rw_states;

/** Zero means the default in brackets, PyTorch's; RW_ZERO means zero. `.weight_decay = 0` is a decay of 0.01, and
    `.weight_decay = RW_ZERO` is none. A negative weight_decay or beta means zero, too. A learning rate or an epsilon
    below zero, a beta of one or more, and a number that is not finite are refused. */
typedef struct rw_adamw_params {
    double lr;           ///< learning rate [1e-3]; RW_ZERO: parameters are frozen until rw_adamw_set_lr()
    double beta1, beta2; ///< decay of the moments [0.9, 0.999]
    double eps;          ///< [1e-8]
    double weight_decay; ///< [0.01]; not applied to parameters of rank 0 and 1 unless decay_all
    bool decay_all;
    /** Parameters of bf16 have no master copy: an update is stored as one of its two neighbours, by chance, the nearer
        the likelier, so that it is kept on the average. 4 bytes less an element. See docs/precision.md. */
    bool stochastic_rounding;
    /** Type of the two moments [RW_F32], or RW_BF16: 4 bytes less an element. The update is computed in float32; the
        first moment is stored rounded to nearest, the second by chance, as that parameter is: a beta2 of 0.999 changes
        it by less than nearest would see. Those of float64 parameters stay float64. See docs/precision.md. */
    rw_dtype moments;
    rw_states states; ///< [in the device's memory]
} rw_adamw_params;

/**
 * Creates an optimizer over all parameters that the context has now: two moments each, of float32 or of
 * params->moments (float64 for float64 parameters), and a float32 master copy for 16-bit ones, but for those of bf16
 * under stochastic_rounding. A parameter that is written, loaded or initialized later counts as it is then; its moments
 * stay. On a CPU moments that have faded below the least normal number are 0.
 * @param ret_opt receives the optimizer, owned by the caller; untouched on failure.
 * @return RW_ERR_ARGUMENT for numbers that are refused, RW_ERR_DTYPE for moments of another type, RW_ERR_MEMORY, or an
 *         error that is stuck in the context; for states that are to be elsewhere RW_ERR_ARGUMENT (a place that is
 *         none, a path without RW_STATES_FILE or the other way round, too small a window), RW_ERR_IO (no such folder,
 *         not writable, no room on the disk), RW_ERR_MEMORY (too little pinned memory).
 */
RW_API rw_status rw_adamw_create(rw_adamw **ret_opt, rw_context *ctx, const rw_adamw_params *params);

/**
 * Frees the optimizer with its states, their memory, file and room on the disk, and sets *opt to NULL. Graphs that step
 * with it keep it: then it is freed when the last of them is destroyed. Scalers, monitors and checkpoints do not keep
 * it: a monitor that watches it has no numbers of updates from then on, and a checkpoint refuses to save and load.
 * NULL-safe.
 */
RW_API void rw_adamw_destroy(rw_adamw **opt);

/**
 * One update of every parameter that has a gradient and a rate above zero; each counts its own steps. On CUDA it is
 * only queued. It counts as a change of these parameters, as rw_write() does.
 *
 * A rate of zero, the optimizer's or by rw_optimizer_set(), freezes a parameter: neither it nor its moments, master
 * copy and count of steps change, whatever its gradient, NaN and infinity included, and whatever its weight decay.
 * PyTorch leaves the parameter as it is, too (p *= 1 - 0 * decay), but takes the gradient into the moments and counts a
 * step. So a schedule whose first rate is zero begins here with its second step; rw_schedule_lr() gives no zero during
 * a warm-up.
 * @return an error that is stuck in the context, RW_ERR_CHANGED for a gradient that a failed backward has left
 *         half-way, RW_ERR_MEMORY; RW_ERR_ARGUMENT for a parameter that has a gradient, no optimizer of the context
 *         that holds it, because it was made later, and no rw_optimizer_exclude(); then nothing has changed.
 */
RW_API rw_status rw_adamw_step(rw_adamw *opt);

/** Changes the learning rate of the following steps and launches; zero freezes the parameters. A rate that is negative
    or not finite changes nothing and is an error that sticks: the next step returns RW_ERR_ARGUMENT. */
RW_API void rw_adamw_set_lr(rw_adamw *opt, double lr);

#ifdef __cplusplus
}
#endif

#endif
