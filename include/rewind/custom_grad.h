/**
 * rewind/custom_grad.h - gradients other than those that follow from the ops: none, another's, or the caller's own.
 *
 * Every function returns a view of its argument, which costs nothing, owned by the tape until rw_tape_reset(). On a
 * mistake it returns NULL, with a message, and leaves the tape as it was. Recompute, plans, graphs and the verifier
 * treat what these record as they treat anything else.
 *
 * Call the names without _at: rw_detach(t, x) is rw_detach_at(RW_HERE, t, x).
 * Thread-safety: as for the context.
 */
#ifndef REWIND_CUSTOM_GRAD_H
#define REWIND_CUSTOM_GRAD_H

#include <rewind/op.h>

#ifdef __cplusplus
extern "C" {
#endif

/** x, through which no gradient flows. */
RW_API rw_tensor *rw_detach_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_detach(...) rw_detach_at(RW_HERE, __VA_ARGS__)

/**
 * y, whose gradient is that of x: what flows into y flows into x as it is, and nothing into what made y (Bengio et al.,
 * arXiv 1308.3432). Equal shapes and types. Rounding, say: rw_straight_through(t, rounded, x).
 */
RW_API rw_tensor *rw_straight_through_at(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *x);
#define rw_straight_through(...) rw_straight_through_at(RW_HERE, __VA_ARGS__)

/**
 * Records the gradient of a rw_custom_grad(): as `grad` of an rw_op_def, with the functions of rewind/op.h.
 * rw_grad_input(g, 0) is y; rw_grad_input(g, 1 + i) is x[i], whose gradient rw_grad_set(g, 1 + i, ...) hands over for
 * those that are rw_grad_wanted(), one at least; rw_grad_upstream(g, 0) is the gradient of y, never NULL. What the ops
 * recorded here read is what is kept for backward. Called while a plan is made, on the thread that makes it: not again
 * for a step of the same structure, so nothing but `data` may decide what it records, and it draws no numbers, which is
 * RW_ERR_ARGUMENT.
 * @param data a copy of what rw_custom_grad() was given, valid during the call
 */
typedef rw_status (*rw_custom_grad_fn)(rw_grad_call *g, const void *data);

/**
 * y, whose gradient `grad` records: the rules of the ops that made y are not asked. x are the n tensors, 1 to 1024,
 * that it may give gradients to, and others that it reads; more than what y was made of is allowed, also less.
 * @param grad      no NULL; code that stays where it is for as long as the context, whose plans are found by it
 * @param data      size bytes, copied, without padding and without pointers to what dies before the tape is reset; may
 *                  be NULL with a size of 0; 4096 at most
 */
RW_API rw_tensor *rw_custom_grad_at(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *const *x, int n,
                                    rw_custom_grad_fn grad, const void *data, size_t size);
#define rw_custom_grad(...) rw_custom_grad_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
