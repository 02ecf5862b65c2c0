/* Pass 2: adjoint nodes, in reverse tape order. */
#ifndef RW_AUTODIFF_DIFFERENTIATE_H
#define RW_AUTODIFF_DIFFERENTIATE_H

#include "record/tape.h"

/*
 * Records d sum(root) / d v for every value v that requires a gradient and that root depends on, behind the nodes that
 * are on the tape now.
 *
 * The contributions to one value are added in the order in which reverse tape order meets them, whatever the policy.
 * Source: reverse-mode accumulation, e.g. Griewank and Walther, "Evaluating Derivatives", chapter 3.
 *
 * ret_grads receives an array of n_values (before the call) tensors, NULL where nothing flows; freed by the caller
 * with rw_free(). again: the result will be differentiated itself.
 */
rw_status rw_differentiate(rw_tape *t, uint32_t root, bool again, rw_tensor ***ret_grads);

#endif
