/**
 * rewind/nonfinite.h - where a NaN or an infinity came from.
 *
 * When a loss or a gradient is no number any more, the same step is run again - the same inputs, parameters and random
 * numbers, so the same bytes - and each value is looked at as soon as it is made. Nothing has to be switched on before.
 *
 *     if (!isfinite(rw_item(t, loss))) {                    // before the optimizer's step and rw_tape_reset()
 *         rw_nonfinite where;
 *         if (!rw_find_nonfinite(t, loss, 0, &where)) rw_nonfinite_print(&where, stderr);
 *     }
 * Thread-safety: as for the context.
 */
#ifndef REWIND_NONFINITE_H
#define REWIND_NONFINITE_H

#include <rewind/tape.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { RW_NONFINITE_NAN = 1 }; ///< NaN alone: a model that masks by infinities makes them on purpose

/** The first value, in order of execution, that is not finite, or not what it was. Plain data; strings are cut. */
typedef struct rw_nonfinite {
    bool found;       ///< false: every value is finite. If one was not before, the machine has made a mistake
    bool differs;     ///< the value had been read before, and came out as other bytes now: the machine has made a
                      ///< mistake, or the op breaks its law, which ckpt_verify() names
    char op[48];      ///< the op of the program that computed it, whose gradient it is, or that read it first
    char region[96];  ///< its region, "outer/inner"; "" outside any
    char site[160];   ///< file:line of the call
    char value[96];   ///< the value's name when it has one
    bool leaf;        ///< it is a parameter, a buffer or an input, which held it from the beginning
    bool backward;    ///< it was found in `op`'s gradient rule; false: in forward or a replay
    int64_t element;  ///< the first one, in row-major order
    int64_t count;    ///< how many elements are not finite
    int64_t elements; ///< of how many
    double got;       ///< NaN or an infinity
    double least, greatest; ///< of what the op read, all inputs together
    char rule_op[48]; ///< the op of the gradient rule that computed it, "sqrt_backward" say; "" outside of a rule
} rw_nonfinite;

/**
 * Runs the step of rw_backward(t, loss) again under the tape's policy, up to the first value that is not finite, or
 * that was read before and is not the same bytes now: no tolerance stands in between.
 * Gradients, buffers and what was read stay as they are. What gradients hold already is not added to, so that of
 * several backwards each is searched alone, also after rw_clip_grad_norm() has made all gradients NaN. Takes about the
 * time of a step on a CPU; on CUDA every value is copied to the host.
 * @param flags   0 or RW_NONFINITE_NAN.
 * @param ret     filled on RW_OK, whether something was found or not; untouched on failure.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL, other flags, a loss that is none; an error that is stuck in the context;
 *         RW_ERR_CHANGED when a parameter or an input was written since; RW_ERR_UNSUPPORTED on a tape with an op that
 *         says RW_OP_STATEFUL, but for rw_assign() and other commits; RW_ERR_MEMORY.
 */
RW_API rw_status rw_find_nonfinite(rw_tape *t, rw_tensor *loss, unsigned flags, rw_nonfinite *ret);

/** Prints it in one line. */
RW_API void rw_nonfinite_print(const rw_nonfinite *where, FILE *out);

#ifdef __cplusplus
}
#endif

#endif
