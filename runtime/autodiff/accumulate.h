/*
 * Adding up the contributions to one gradient. A contribution that is the whole result of a product, made for this sum
 * alone, is not made: one node adds the product to the sum and rounds once. What decides is the tape, never the policy,
 * so the bytes are the same under every policy.
 */
#ifndef RW_AUTODIFF_ACCUMULATE_H
#define RW_AUTODIFF_ACCUMULATE_H

#include "record/tape.h"

/* The matmul node of backward that term is the whole result of, perhaps in another shape; RW_NONE_ID when it is not. */
uint32_t rw_product_of(const rw_tape *t, const rw_tensor *term);

/* sum + term, where nobody else reads the product: its node is then asked for by nobody. term's shape; NULL on an
 * error. */
rw_tensor *rw_add_product_at(rw_site at, rw_tape *t, rw_tensor *sum, rw_tensor *term);

#endif
