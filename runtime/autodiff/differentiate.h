/* Pass 2: adjoint nodes, in reverse tape order. */
#ifndef RW_AUTODIFF_DIFFERENTIATE_H
#define RW_AUTODIFF_DIFFERENTIATE_H

#include "record/tape.h"

/* Who waits for gradients. What it records stands where backward is at that moment. */
struct rw_grad_taker {
    /* The gradient of a parameter's leaf, or of a value marked by rw_require_grad(), is complete. */
    rw_status (*take)(struct rw_grad_taker *taker, uint32_t value, rw_tensor *gradient);
};

/*
 * Records d sum(root) / d v for every value v that requires a gradient and that root depends on, behind the nodes that
 * are on the tape now.
 *
 * The contributions to one value are added in the order in which reverse tape order meets them, whatever the policy.
 * Source: reverse-mode accumulation, e.g. Griewank and Walther, "Evaluating Derivatives", chapter 3.
 *
 * grads: per value on the tape now what its sum begins with, NULL for nothing; afterwards the sum. again: the result
 * will be differentiated itself. taker may be NULL.
 */
rw_status rw_differentiate(rw_tape *t, uint32_t root, bool again, rw_tensor **grads, struct rw_grad_taker *taker);

/* Marks whoever depends on a value that was marked after its use. */
void rw_spread_requirement(rw_tape *t);

#endif
