/**
 * rewind/einsum.h - sums of products by Einstein's notation.
 *
 * Call the name without _at: rw_einsum(t, ...) is rw_einsum_at(RW_HERE, t, ...).
 */
#ifndef REWIND_EINSUM_H
#define REWIND_EINSUM_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most operands of rw_einsum(). */
#define RW_EINSUM_OPERANDS 16

/**
 * "bij,bjk->bik": a letter (a to z, A to Z) for each axis of each of the n operands, separated by commas, and behind
 * the arrow for each axis of the result. What the result does not name is summed. A letter twice in one operand takes
 * its diagonal. An ellipsis, "...ij,...jk->...ik", stands for all axes that have no letter, as many as there are,
 * aligned at their last ones. Without an arrow the result has the axes of ellipses, then the letters that stand once,
 * in the order of the alphabet, upper case first. Spaces count nothing. Floating-point operands of one type, with any
 * strides; a letter has one extent wherever it stands, or 1, which stretches. What torch.einsum takes, but for lists of
 * numbers in place of letters.
 *
 * Recorded as diagonals and sums of single operands, then, operand by operand from the left, products: rw_matmul()
 * where something is summed, rw_mul() where nothing is; of 16 bits each is rounded. Gradients are theirs. A diagonal is
 * a view where the operand is dense, else of a copy.
 * @return the result, owned by the tape until rw_tape_reset(); NULL on a mistake, with a message that gives the column
 *         in the equation: RW_ERR_ARGUMENT for the notation, RW_ERR_SHAPE for axes and extents. The tape is as it was.
 * Thread-safety: as for the context.
 */
RW_API rw_tensor *rw_einsum_at(rw_site at, rw_tape *t, const char *equation, rw_tensor *const *x, int n);
#define rw_einsum(...) rw_einsum_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
