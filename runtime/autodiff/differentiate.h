/* Pass 2: differentiation. Calls gradient rules in reverse tape order; they record adjoint nodes. */
#ifndef RW_AUTODIFF_DIFFERENTIATE_H
#define RW_AUTODIFF_DIFFERENTIATE_H

#include "record/tape.h"

/* A root: where backward starts. Contributions of several roots to one value are added in the order of the roots. */
struct rw_root {
    uint32_t value;
    rw_tensor *seed; /* the gradient of the value; NULL: ones */
};

/* Receives each gradient as soon as it is complete. Nodes that it records follow the adjoint nodes so far. */
struct rw_grad_taker {
    /* Called when the gradient of a parameter's leaf, or of a value marked by rw_require_grad(), is complete. */
    rw_status (*take)(struct rw_grad_taker *taker, uint32_t value, rw_tensor *gradient);
};

/*
 * Records the gradient of every value that requires one and that a root depends on, after all nodes that are on the
 * tape now. It is the gradient of the sum over all roots of root times seed.
 *
 * Contributions to one value are added in the order in which reverse tape order meets them, whatever the policy: sums
 * have the same bits. Source: reverse-mode accumulation, e.g. Griewank and Walther, "Evaluating Derivatives", chapter
 * 3.
 *
 * grads: per value on the tape now the initial value of its sum, NULL for none; afterwards the sum. x: if only the
 * gradients of these values are requested, and the result will be differentiated again; NULL: all, and it will not.
 * taker may be NULL.
 */
rw_status rw_differentiate(rw_tape *t, const struct rw_root *roots, size_t n_roots, const uint32_t *x, size_t n_x,
                           rw_tensor **grads, struct rw_grad_taker *taker);

/* Marks everything that depends on a value which rw_require_grad() marked after its use. */
void rw_spread_requirement(rw_tape *t);

#endif
