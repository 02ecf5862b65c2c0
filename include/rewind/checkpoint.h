/**
 * rewind/checkpoint.h - training checkpoints: saves the state of a run and resumes it bit for bit.
 *
 * A checkpoint file holds parameters and buffers; the optimizer's states, learning rate, step counts and settings per
 * parameter; averages of the weights; the schedule; the random generator; the step number; and bytes of the caller. It
 * is a safetensors file, so rw_load() and any other reader of the format can read the weights. The metadata has a
 * digest of each tensor and of the header.
 *
 *     rw_checkpoint *ck = NULL;
 *     rw_checkpoint_found last;
 *     rw_checkpoint_create(&ck, ctx, &(rw_checkpoint_params){ .folder = "runs/a", .optimizer = opt });
 *     rw_checkpoint_load(ck, &last);                       // the newest valid one, if there is any
 *     for (uint64_t step = last.step; step < steps; step++) {
 *         train(step);
 *         if ((step + 1) % 500 == 0) rw_checkpoint_save(ck, step + 1, NULL, 0);
 *     }
 *     rw_checkpoint_destroy(&ck);                          // waits for the last file
 *
 * A run that is saved, killed at any time and loaded again computes the same bytes as one that never ended. Policies,
 * graphs, verification and the number of threads may differ before and after. Gradients are not saved, so save between
 * steps. A recorded step has already drawn its random numbers: if it has not run when the run is saved, the loaded run
 * continues with the numbers after it.
 *
 * Not saved. The program sets the following by the calls that create the objects, and must set the same values again:
 *
 *     optimizers     all numbers except the learning rate and rw_optimizer_set(): betas, eps, momentum, dampening,
 *                    decay, decay_all, nesterov, types of states, stochastic_rounding; rw_optimizer_exclude()
 *     parameters     the order of creation: stochastic rounding depends on a parameter's position in its optimizer
 *     averages       the decay, of rw_weight_average_create() or rw_weight_average_set_decay()
 *     rw_scaler      growth and backoff factors, interval, hysteresis, limits (its scale and counts are a saved buffer)
 *     rw_delayed_scaling     rule, length of the history, margin (scales, histories and amaxes are saved buffers)
 *     clipping       the norm, of each call or graph
 *     recipes        kind, scalings and keep_weights (quantized weights are computed from the weights)
 *     further objects    optimizers, averages and schedules other than those in rw_checkpoint_params
 *
 * Medians, counts and policies of an rw_monitor are not saved either. Its alerts of the first hundred steps may differ,
 * and so may the program's reactions to them. Measured costs have a file of their own (rw_costs_save()); they affect
 * plans, not bytes.
 *
 * Writes are atomic: a file is written under a temporary name, flushed to the disk and renamed. If the process ends or
 * the disk is full, earlier files are intact.
 * Thread-safety: as for the context. A thread of the library writes the files; it does not access the context.
 */
#ifndef REWIND_CHECKPOINT_H
#define REWIND_CHECKPOINT_H

#include <rewind/weight_average.h>
#include <rewind/optimizers.h>
#include <rewind/lr_schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The checkpoint files of one run: their folder, and the objects to save. */
typedef struct rw_checkpoint rw_checkpoint;

/** Zero means the default in brackets. */
typedef struct rw_checkpoint_params {
    const char *folder;  ///< a folder for this run only; created if missing, but its parent must exist
    /** Saved and loaded; NULL: none. The checkpoint does not keep it alive: after rw_optimizer_destroy() has freed it,
        rw_checkpoint_save() and rw_checkpoint_load() return RW_ERR_ARGUMENT. */
    rw_optimizer *optimizer;
    rw_weight_average *average; ///< likewise, with rw_weight_average_destroy()
    /** The struct is saved, and overwritten by rw_checkpoint_load(), so the run continues with the schedule that it
        started with. NULL: none. It must outlive the checkpoint. */
    rw_lr_schedule *schedule;
    int keep;            ///< number of files to keep, the newest; older ones are removed [3]
} rw_checkpoint_params;

/** Result of rw_checkpoint_load(). */
typedef struct rw_checkpoint_found {
    bool found;         ///< false: the folder has no checkpoint file, and nothing has changed
    uint64_t step;      ///< as given to rw_checkpoint_save(); 0 if nothing was found
    const void *extra;  ///< the caller's bytes; owned by the checkpoint until its next load or its end
    size_t extra_bytes; ///< their size
    size_t skipped;     ///< number of newer files that are incomplete or damaged
    char path[256];     ///< the loaded file; a long path loses its beginning
    char why[256];      ///< the fault of the newest skipped file; "" if there is none
    char missing[256];  ///< what a file of an older version lacks, "" if nothing. The program's own values stay, so the
                        ///< run may continue differently from the saved one
} rw_checkpoint_found;

/**
 * Creates a checkpoint: names a folder and the objects to save. Nothing is read or written yet.
 * @param ret_checkpoint receives the checkpoint, owned by the caller; untouched on failure.
 * @param params read during the call.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL, an empty folder, a negative keep, or an optimizer or average of another
 *         context; RW_ERR_IO for a relative folder if the current folder was removed; RW_ERR_MEMORY; or the context's
 *         sticky error.
 */
RW_API rw_status rw_checkpoint_create(rw_checkpoint **ret_checkpoint, rw_context *ctx,
                                      const rw_checkpoint_params *params);

/**
 * Saves the current state of the run. The call copies the state to host memory and returns; a thread writes the file.
 * If the previous save is still being written, the call first waits for it. The checkpoint reuses the host memory.
 *
 * Files are named NUMBER-stepSTEP.safetensors. The number grows with every save, so after a rollback to an earlier step
 * the newest file is still the one to resume from. The folder is locked from the first save until
 * rw_checkpoint_destroy() or the end of the process; children by fork() do not hold the lock. Locking also removes
 * incomplete files of a killed process. If the folder is removed or renamed meanwhile, the next save creates it again,
 * or uses the folder that is now at its path in the same way.
 * @param step  any number, such as the number of completed steps.
 * @param extra extra_bytes of the caller, copied; may be NULL with 0.
 * @return RW_OK once the copy is taken.
 *         An error of writing the previous save (RW_ERR_IO: full disk, no permission; RW_ERR_MEMORY): then this call
 *         has saved nothing, and after rw_error_clear() the next call tries again.
 *         The context's sticky error, or an error of the device.
 *         RW_ERR_IO if the folder cannot be created or read, if another process or checkpoint saves there, or if a file
 *         already has the largest possible number.
 *         RW_ERR_ARGUMENT for a schedule without a valid learning rate (rw_lr_schedule_rate()), which could not be
 *         loaded; for a parameter with the reserved name "__metadata__" or "rewind:...", or a name that is not UTF-8;
 *         or if the optimizer or average was destroyed.
 *         RW_ERR_MEMORY.
 */
RW_API rw_status rw_checkpoint_save(rw_checkpoint *checkpoint, uint64_t step, const void *extra, size_t extra_bytes);

/** Waits until the last save is on the disk. @return RW_OK, or the error of writing it, which is reported once. Failure
    to remove an older file is not an error: see rw_checkpoint_warning(). */
RW_API rw_status rw_checkpoint_wait(rw_checkpoint *checkpoint);

/**
 * Returns a warning about cleanup after the last save: an older file that cannot be removed, or a folder that cannot be
 * read to find them. No file is lost, and later saves are not affected. Waits for the save, as rw_checkpoint_wait().
 * @return a sentence, reported once and valid until the next call on the checkpoint; NULL if there is none.
 */
RW_API const char *rw_checkpoint_warning(rw_checkpoint *checkpoint);

/**
 * Restores the state from the newest valid file, that is one whose digests are all correct. Newer files that are
 * truncated or damaged are skipped and reported in ret_found; they are not removed and do not count for `keep`. A file
 * that the system cannot read might be valid, so it is an error. If a run that saves to the folder removes a file
 * meanwhile, the folder is read again. Gradients are clear afterwards.
 *
 * Load before recording a step, because a recorded step keeps the random values that it drew. A tape that has a graph
 * may hold a recorded step: every launch after loading, including the first, draws from the loaded generator
 * (rewind/graph.h).
 *
 * The file must have every parameter and buffer of the context with its type and shape, and the states of the
 * checkpoint's optimizer, average and schedule. Other entries are ignored. A file of an older build may lack the
 * settings of rw_optimizer_set(): then the program's own settings stay, and ret_found->missing says so.
 * @param ret_found may be NULL; untouched on failure.
 * @return RW_OK, also if there is no file.
 *         RW_ERR_IO if the folder or the newest file cannot be read, or if there are files but none is valid. Also if
 *         the newest valid one lacks an entry, or has an impossible value such as a negative learning rate; the message
 *         names the file and the field.
 *         RW_ERR_SHAPE, RW_ERR_DTYPE, RW_ERR_ARGUMENT if its contents do not fit the context or the optimizer.
 *         RW_ERR_ARGUMENT also while a tape without a graph holds a recorded step (reset it first), and if the
 *         optimizer or average was destroyed.
 *         RW_ERR_UNSUPPORTED for a file of a newer version.
 *         RW_ERR_MEMORY, or the context's sticky error.
 *         On failure nothing has changed. The one exception: if the device, or the file of offloaded optimizer states,
 *         fails while the state is copied to it (RW_ERR_DEVICE, RW_ERR_IO, RW_ERR_MEMORY), the state is partly loaded,
 *         and the message says so. Load again, which opens another file for the states.
 */
RW_API rw_status rw_checkpoint_load(rw_checkpoint *checkpoint, rw_checkpoint_found *ret_found);

/** Waits for the last save, frees the checkpoint and sets *checkpoint to NULL. A write error that was not queried is
    dropped. NULL-safe. */
RW_API void rw_checkpoint_destroy(rw_checkpoint **checkpoint);

#ifdef __cplusplus
}
#endif

#endif
