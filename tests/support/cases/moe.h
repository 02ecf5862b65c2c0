/* What the cases and the golden rows of mixtures of experts share: see moe.c. */
#ifndef RW_TESTS_CASES_MOE_H
#define RW_TESTS_CASES_MOE_H

#include "support/op_cases.h"

/* How many experts the layer of op_build_moe_layer() has, and how many each token is given. */
#define LAYER_EXPERTS 6
#define LAYER_CHOSEN 2

/* A router, experts with SwiGLU and their weights on the activation. Operands: x [T, h], the router's matrix [E, h],
   [E, 2 f, h] and [E, h, f]. c->axis: a rw_moe_score; c->keep: normalized weights of groups, times 2.5; c->value: of a
   bias that takes part in the choice, 0: none; c->causal: experts have half the room that they need on the average,
   c->ignoring: for the largest weights. */
rw_tensor *op_build_moe_layer(rw_tape *t, rw_tensor **x, const struct op_case *c);
void op_count_moe_layer(struct op_case *c);

/* The best scores of each token. Operand: scores [T, E]. */
rw_tensor *op_build_moe_topk(rw_tape *t, rw_tensor **x, const struct op_case *c);

#endif
