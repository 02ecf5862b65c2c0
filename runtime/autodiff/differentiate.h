/* Pass 2: adjoint nodes, in reverse tape order. */
#ifndef RW_AUTODIFF_DIFFERENTIATE_H
#define RW_AUTODIFF_DIFFERENTIATE_H

#include "record/tape.h"

/* Where backward begins. Contributions of several roots to one value are added in the order of the roots. */
struct rw_root {
    uint32_t value;
    rw_tensor *seed; /* the gradient of the value; NULL: ones */
};

/* Who waits for gradients. What it records stands where backward is at that moment. */
struct rw_grad_taker {
    /* The gradient of a parameter's leaf, or of a value marked by rw_require_grad(), is complete. */
    rw_status (*take)(struct rw_grad_taker *taker, uint32_t value, rw_tensor *gradient);
};

/*
 * Records the gradient of every value that requires one and that a root depends on, behind the nodes that are on the
 * tape now: of the sum of all roots' elements, each times its seed.
 *
 * The contributions to one value are added in the order in which reverse tape order meets them, whatever the policy.
 * Source: reverse-mode accumulation, e.g. Griewank and Walther, "Evaluating Derivatives", chapter 3.
 *
 * grads: per value on the tape now what its sum begins with, NULL for nothing; afterwards the sum. x: the values whose
 * gradients alone are wanted, and whose result will be differentiated itself; NULL: all, and it will not. taker may be
 * NULL.
 */
rw_status rw_differentiate(rw_tape *t, const struct rw_root *roots, size_t n_roots, const uint32_t *x, size_t n_x,
                           rw_tensor **grads, struct rw_grad_taker *taker);

/* Marks whoever depends on a value that was marked after its use. */
void rw_spread_requirement(rw_tape *t);

#endif
