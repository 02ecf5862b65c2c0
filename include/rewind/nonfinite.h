/**
 * rewind/nonfinite.h - finds the op that produced a NaN or an infinity.
 *
 * When a loss or gradient is not finite, rw_find_nonfinite() executes the same step once more - same inputs, parameters
 * and random numbers, so the same bytes - and checks each value as soon as it is computed. Nothing has to be enabled
 * beforehand.
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

enum { RW_NONFINITE_NAN = 1 }; ///< search NaN only, for models that use infinities on purpose, as masks

/** The first value in execution order that is not finite, or that differs from what was read. Plain data; strings are
    truncated. */
typedef struct rw_nonfinite {
    bool found;       ///< false: every value is finite. If one was not before, the hardware made an error
    bool differs;     ///< the value was read before and has other bytes now: a hardware error, or an op that is not
                      ///< deterministic, which ckpt_verify() finds
    char op[48];      ///< the program's op that computed it, whose gradient it is, or that first read it
    char region[96];  ///< region of the op, "outer/inner"; "" outside any
    char site[160];   ///< file:line of the call
    char value[96];   ///< name of the value, "" if it has none. Of a leaf that the op reads through a view it is the
                      ///< leaf's; "gradient of P" is the gradient of parameter P
    bool leaf;        ///< it is a parameter, buffer, input or gradient, and was not finite before the step
    bool backward;    ///< found in the gradient rule of `op`; false: in forward or a replay
    int64_t element;  ///< index of the first such element, in row-major order; of a leaf, in the view that the op reads
    int64_t count;    ///< number of elements that are not finite
    int64_t elements; ///< number of all elements, of the same view
    double got;       ///< that element: NaN or an infinity
    double least, greatest; ///< minimum and maximum of everything that the op read; INFINITY and -INFINITY for nothing
    char rule_op[48]; ///< the gradient rule's op that computed it, such as "sqrt_backward"; "" outside of a rule
} rw_nonfinite;

/**
 * Executes the step of rw_backward(t, loss) once more under the tape's policy, up to the first value that is not finite
 * or that was read before and now has other bytes. Comparisons have no tolerance.
 *
 * Gradients, buffers and values that were read are unchanged. The search ignores what gradients already contain, so of
 * several backwards each is searched alone, even after rw_clip_grad_norm() has set all gradients to NaN. It takes about
 * the time of a step on a CPU; on CUDA every value is copied to the host.
 * @param flags 0 or RW_NONFINITE_NAN.
 * @param ret   filled on RW_OK, whether something was found or not; untouched on failure.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL or other flags, and for a loss that rw_backward() would refuse (then also
 *         RW_ERR_SHAPE, RW_ERR_DTYPE or RW_ERR_REGION); RW_ERR_MODIFIED if a parameter or input was written since;
 *         RW_ERR_UNSUPPORTED for a tape that has an op with RW_OP_STATEFUL other than rw_assign() and other commits;
 *         RW_ERR_MEMORY; or the context's sticky error.
 */
RW_API rw_status rw_find_nonfinite(rw_tape *t, rw_tensor *loss, unsigned flags, rw_nonfinite *ret);

/** Prints a result, `where`, to `out` in one line. */
RW_API void rw_nonfinite_print(const rw_nonfinite *where, FILE *out);

#ifdef __cplusplus
}
#endif

#endif
