/**
 * rewind/custom_grad.h - gradients that differ from those of the recorded ops: none, another value's, or the caller's.
 *
 * Every function returns a view of its argument, at no cost, owned by the tape until rw_tape_reset(). After an error it
 * returns NULL, the context keeps the message, and the tape is unchanged. Recompute, plans, graphs and the verifier
 * treat these nodes as any others.
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

/** Returns x without a gradient: nothing flows back through it. */
RW_API rw_tensor *rw_detach_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_detach(...) rw_detach_at(RW_HERE, __VA_ARGS__)

/**
 * Straight-through estimator (Bengio et al., arXiv 1308.3432): returns y, and passes its gradient unchanged to x and
 * not to the ops that computed y. Equal shapes and types. For rounding: rw_straight_through(t, rounded, x).
 */
RW_API rw_tensor *rw_straight_through_at(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *x);
#define rw_straight_through(...) rw_straight_through_at(RW_HERE, __VA_ARGS__)

/**
 * Records the gradient of an rw_custom_grad(), as `grad` of an rw_op_def does, with the functions of rewind/op.h.
 * rw_grad_input(g, 0) is y. rw_grad_input(g, 1 + i) is x[i]; set its gradient with rw_grad_set(g, 1 + i, ...) if it is
 * rw_grad_wanted(), for at least one i. rw_grad_upstream(g, 0) is the gradient of y, never NULL. Backward keeps the
 * values that the ops recorded here read.
 *
 * It is called when a plan is made, on the thread that makes it, and not again for a step of the same structure. So
 * only `data` may decide what it records. It may not draw random numbers: RW_ERR_ARGUMENT.
 * @param g passed to the functions of rewind/op.h
 * @param data a copy of rw_custom_grad()'s data, valid during the call
 * @return RW_OK, or an error, with which backward fails
 */
typedef rw_status (*rw_custom_grad_fn)(rw_grad_call *g, const void *data);

/**
 * Returns y with the gradient that `grad` records, in place of the rules of the ops that computed y. x are the n
 * tensors, 1 to 1024, that `grad` may set gradients of, and further ones that it reads. They need not be the operands
 * of y.
 * @param grad not NULL; must stay at its address for the life of the context, whose plans are found by it
 * @param data size bytes, at most 4096; copied. No padding, and no pointers to memory that is freed before the tape is
 *         reset. May be NULL with a size of 0.
 */
RW_API rw_tensor *rw_custom_grad_at(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *const *x, size_t n,
                                    rw_custom_grad_fn grad, const void *data, size_t size);
#define rw_custom_grad(...) rw_custom_grad_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
