/* Declarations that the cases and the golden rows of mixtures of experts share. */
#ifndef RW_TESTS_CASES_MOE_H
#define RW_TESTS_CASES_MOE_H

#include "support/op_cases.h"

/* Number of experts of the layer of op_build_moe_layer(), and number of experts per token. */
#define LAYER_EXPERTS 6
#define LAYER_CHOSEN 2

/* A router, experts with SwiGLU, and the routing weights applied to the activation. Operands: x [T, h], the router's
   matrix [E, h], [E, 2 f, h] and [E, h, f]. c->axis: a rw_moe_score; c->keep: grouped choice with normalized weights,
   times 2.5; c->value: a bias added for the choice, 0: none; c->causal: experts have a capacity of half their average
   load, c->ignoring: for the largest weights. */
rw_tensor *op_build_moe_layer(rw_tape *t, rw_tensor **x, const struct op_case *c);
void op_count_moe_layer(struct op_case *c);

/* The best scores of each token. Operand: scores [T, E]. */
rw_tensor *op_build_moe_topk(rw_tape *t, rw_tensor **x, const struct op_case *c);

#endif
