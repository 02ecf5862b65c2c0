/**
 * rewind/resume.h - a run that ended goes on, to the last bit.
 *
 * A checkpoint file holds parameters, buffers, the optimizer's states with its learning rate, its counts of steps and
 * the settings of single parameters, averages of the weights, the schedule, the random generator, the number of the
 * step, and bytes of the caller's own.
 * It is a safetensors file: rw_load() and every other reader of the format take the weights out of it. Each tensor has
 * a digest in the file's metadata, and so has the header.
 *
 *     rw_checkpoint *ck = NULL;
 *     rw_checkpoint_found last;
 *     rw_checkpoint_create(&ck, ctx, &(rw_checkpoint_params){ .folder = "runs/a", .optimizer = opt });
 *     rw_checkpoint_load(ck, &last);                       // the newest whole one, when there is any
 *     for (uint64_t step = last.step; step < steps; step++) {
 *         train(step);
 *         if ((step + 1) % 500 == 0) rw_checkpoint_save(ck, step + 1, NULL, 0);
 *     }
 *     rw_checkpoint_destroy(&ck);                          // waits for what is still being written
 *
 * A run that was saved, ended at any moment and loaded again makes the same bytes as one that never ended, whatever
 * policies, graphs, verification and numbers of threads there are before and after. Gradients are not saved: save
 * between steps. A recorded step has drawn its random numbers: if it has not run when the run is saved, the loaded run
 * goes on with the numbers after it.
 *
 * The program states these itself, by the calls that create the objects, and they must be as before:
 *
 *     optimizers     all numbers but the learning rate and rw_optimizer_set(): betas, eps, momentum, dampening, decay,
 *                    decay_all, nesterov, the types of states, stochastic_rounding; rw_optimizer_exclude()
 *     parameters     the order of their creation: stochastic rounding draws by a parameter's place in its optimizer
 *     averages       the decay
 *     rw_scaler      growth and backoff factors, interval, hysteresis, limits; its scale and counts are a buffer, saved
 *     rw_delayed     rule, length of the history, margin; scales, histories and amaxes are buffers, saved
 *     clipping       the norm, of each call or graph
 *     recipes        a recipe's kind, scalings and keep_weights, whose quantized weights are made from the weights
 *     a schedule that rw_checkpoint_params does not name; a second optimizer, and averages beside the one that is named
 *
 * Medians, counts and policies of a rw_monitor are not saved: it begins as a new one, so its alerts of the first
 * hundred steps may differ, and with them what the program does about alerts. Measured costs are a file of their own
 * (rw_costs_save()); they decide plans, not bytes.
 *
 * A file appears whole or not at all: it is written beside, brought to the disk and renamed. Whatever ends the process
 * or fills the disk meanwhile, the files before it are there.
 * Thread-safety: as for the context. Files are written by a thread of the library's own, which touches nothing of the
 * context.
 */
#ifndef REWIND_RESUME_H
#define REWIND_RESUME_H

#include <rewind/average.h>
#include <rewind/optim.h>
#include <rewind/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The checkpoint files of one run: a folder, and what goes into them. */
typedef struct rw_checkpoint rw_checkpoint;

/** Zero means the default in brackets. */
typedef struct rw_checkpoint_params {
    const char *folder;  ///< of this run's own; made when it is not there, but not what leads to it
    /** Saved and loaded with the rest; NULL: none. The checkpoint does not keep it alive: once rw_optimizer_destroy()
        has freed it, rw_checkpoint_save() and rw_checkpoint_load() return RW_ERR_ARGUMENT. */
    rw_adamw *optimizer;
    rw_average *average; ///< likewise, with rw_average_destroy()
    /** What it points to is saved, and written over by rw_checkpoint_load(): the run goes on by the schedule that it
        began with. NULL: none. It must outlive the checkpoint. */
    rw_schedule *schedule;
    int keep;            ///< so many of the newest files stay, older ones are removed [3]
} rw_checkpoint_params;

/** What rw_checkpoint_load() found. */
typedef struct rw_checkpoint_found {
    bool found;         ///< false: there is no checkpoint file in the folder, and nothing has changed
    uint64_t step;      ///< as it was given to rw_checkpoint_save(); 0 when nothing was found
    const void *extra;  ///< the caller's own bytes; owned by the checkpoint until its next load, or its end
    size_t extra_bytes;
    size_t skipped;     ///< newer files that are not whole
    char path[256];     ///< the file that was loaded, cut to fit at its beginning
    char why[256];      ///< what is wrong with the newest of those that were skipped; "" when there is none
    char missing[256];  ///< what a file of an older version does not have, and the program's own values of which stay;
                        ///< "" when it has everything. The run may then go on otherwise than the one that was saved
} rw_checkpoint_found;

/**
 * Names a folder and what is saved there. Nothing is read or written yet.
 * @param ret_checkpoint receives the checkpoint, owned by the caller; untouched on failure.
 * @param params need live only until the call returns.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL, an empty folder, a keep below 0, an optimizer or averages of another
 *         context; an error that is stuck in the context; RW_ERR_MEMORY.
 */
RW_API rw_status rw_checkpoint_create(rw_checkpoint **ret_checkpoint, rw_context *ctx,
                                      const rw_checkpoint_params *params);

/**
 * Saves the run as it is now. The call takes a copy in host memory, which the checkpoint keeps for the next time, and
 * returns: a thread writes it. When the save before is still being written, it is waited for first.
 *
 * Files are named NUMBER-stepSTEP.safetensors. The number goes up with every save, so a run that was set back to an
 * earlier step goes on from there after its next end, too. The folder is locked from the first save until
 * rw_checkpoint_destroy() or the end of the process; what a process that was ended left half-written is removed then.
 * @param step  any number of the caller's: how many steps were made, say.
 * @param extra extra_bytes of the caller's own, copied; may be NULL with 0.
 * @return RW_OK: the copy was taken. What the save before met when it was written (RW_ERR_IO: a full disk, no
 *         permission; RW_ERR_MEMORY): then this call has saved nothing, and after rw_error_clear() the next one tries
 *         again. An error that is stuck in the context or that the device has met; RW_ERR_IO: the folder cannot be
 *         made, or another process or checkpoint saves there; RW_ERR_ARGUMENT for a schedule that gives no learning
 *         rate (rw_schedule_lr()), which could not be loaded, for a parameter named "__metadata__" or
 *         "rewind:...", which the file has for itself, or with a name that is not UTF-8, or when the optimizer or the
 *         averages were destroyed; RW_ERR_MEMORY.
 */
RW_API rw_status rw_checkpoint_save(rw_checkpoint *checkpoint, uint64_t step, const void *extra, size_t extra_bytes);

/** Waits until the last save is on the disk. @return RW_OK or what writing it met, told once. */
RW_API rw_status rw_checkpoint_wait(rw_checkpoint *checkpoint);

/**
 * Goes back to the newest file that is whole: all its digests are right. Newer ones that are not - cut off, damaged -
 * are passed over, which ret_found tells; they stay where they are, and don't count as kept. Gradients are clear
 * afterwards. Load before a step is recorded: what is recorded keeps the random values it drew. A tape that has a
 * graph may hold a recorded step: each launch after loading draws from the loaded generator (rewind/graph.h).
 *
 * Every parameter and buffer of the context must be in the file with its type and shape, and so must the states of the
 * optimizer, the averages and the schedule, where there are any. What else is in the file is ignored. A file of an
 * older build does not have what rw_optimizer_set() has set: the program's own settings stay, and ret_found->missing
 * says so. A graph that was created before goes on from the random generator that is loaded, its first launch included.
 * @param ret_found may be NULL; untouched on failure.
 * @return RW_OK, also when there is no file. RW_ERR_IO: there are files, but none is whole, or something is not in the
 *         newest whole one, or has a value that no run saves, as a learning rate that is negative or not finite: the
 *         message names the file and the field. RW_ERR_SHAPE, RW_ERR_DTYPE, RW_ERR_ARGUMENT: what is in it does not fit
 *         the context or the optimizer; RW_ERR_ARGUMENT as well while a tape without a graph holds a recorded step
 *         (reset it before), and when the optimizer or the averages were destroyed. RW_ERR_UNSUPPORTED: written by a
 *         newer version. RW_ERR_MEMORY; an error that is stuck in the context. Nothing has changed then.
 */
RW_API rw_status rw_checkpoint_load(rw_checkpoint *checkpoint, rw_checkpoint_found *ret_found);

/** Waits for what is being written, frees the checkpoint and sets *checkpoint to NULL. NULL-safe. What was written
    badly and never asked for is not told. */
RW_API void rw_checkpoint_destroy(rw_checkpoint **checkpoint);

#ifdef __cplusplus
}
#endif

#endif
