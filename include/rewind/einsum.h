/**
 * rewind/einsum.h - sums of products in Einstein notation.
 *
 * Call the name without _at: rw_einsum(t, ...) is rw_einsum_at(RW_HERE, t, ...).
 */
#ifndef REWIND_EINSUM_H
#define REWIND_EINSUM_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Maximum number of operands of rw_einsum(). */
#define RW_EINSUM_OPERANDS 16

/**
 * Evaluates an equation such as "bij,bjk->bik": one letter (a to z, A to Z) for each axis of each of the n operands,
 * separated by commas, and after the arrow one for each axis of the result.
 *
 * - Letters that the result lacks are summed. A letter twice in one operand takes its diagonal.
 * - An ellipsis, "...ij,...jk->...ik", matches all axes without a letter, however many, aligned at their last ones.
 * - Without an arrow, the result has the axes of ellipses, then the letters that occur once, in alphabetical order,
 *   upper case first.
 * - Spaces are ignored. Operands are floating point, of one type, with any strides. A letter has one extent everywhere,
 *   or 1, which broadcasts. All equations of torch.einsum are accepted, except lists of numbers in place of letters.
 *
 * It records diagonals and sums of single operands, then products, operand by operand from the left: rw_matmul() if an
 * axis is summed, rw_mul() otherwise. In 16-bit types each of these rounds. Gradients are those of these ops. A
 * diagonal is a view if the operand is dense and its two axes are the last ones, else a view of a copy. If there is
 * nothing to compute, the result is a view of the operand.
 * @param x the n operands
 * @return the result, owned by the tape until rw_tape_reset(). NULL on an error, with a message that gives the column
 *         in the equation, and an unchanged tape: RW_ERR_ARGUMENT for the notation, RW_ERR_SHAPE for axes and extents;
 *         RW_ERR_DTYPE for operands that are not floating point.
 * Thread-safety: as for the context.
 */
RW_API rw_tensor *rw_einsum_at(rw_site at, rw_tape *t, const char *equation, rw_tensor *const *x, size_t n);
#define rw_einsum(...) rw_einsum_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
