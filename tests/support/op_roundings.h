/*
 * Number of roundings that the results and gradients of the ops take, derived from the arithmetic in ops/: the n and s
 * of compare.h, for op_cases.c and golden.c. Each is an upper bound over the devices. The terms of M are in
 * op_magnitudes.c.
 *
 * A sum or a product of k terms, in any order, is k roundings. A library function such as exp is N_F = 4: CUDA's are
 * within 2 ulp (SLEEF's within 1), and an ulp is two unit roundoffs. powf is within 4 ulp.
 */
#ifndef RW_TESTS_OP_ROUNDINGS_H
#define RW_TESTS_OP_ROUNDINGS_H

#include "support/op_cases.h"

#define N_F 4
#define N_POW 8
#define N_POW_G (N_POW + 4)

/* exp, sum, quotient, and 1 to spare; y (1 - y) dy contains it twice. */
#define N_SIGMOID (N_F + 3)
#define N_SIGMOID_G (2 * N_SIGMOID + 1)
/* exp, the logarithm of it plus 1, and their sum. log1p does not increase the error of its argument. */
#define N_SOFTPLUS (2 * N_F + 2)
/* exp of -x x, where |x| <= 2: a rounding of x x has weight 4; the constant and the product with the upstream
   gradient. */
#define N_ERF_G (N_F + 6)
/* 1 - y y: y twice, product, difference, product with the upstream gradient. */
#define N_TANH_G (2 * N_F + 3)
#define N_SILU (N_SIGMOID + 2)
/* s (1 + x (1 - s)): s twice, difference, two products, sum, product with the upstream gradient. */
#define N_SILU_G (2 * N_SIGMOID + 6)
#define N_SWIGLU (N_SILU + 1)
#define N_SWIGLU_G (N_SILU_G + 1)
/* erf's argument (2 at half weight), erf, sum, half, product. The slope adds the density, whose argument has 3. */
#define N_GELU (N_F + 6)
#define N_GELU_G (2 * N_F + 12)
/* The inner polynomial of 6 at a quarter of its weight, sigmoid or tanh, product. The slope has twice that. */
#define N_GELU_TANH (2 * N_F + 8)
#define N_GELU_TANH_G (4 * N_F + 16)
/* 1 - p, its inverse, the product. */
#define N_DROPOUT 3
/* Logarithm, root, sine or cosine, product. */
#define N_RANDN (2 * N_F + 3)

/* The shape that two shapes broadcast to. */
rw_shape op_broadcast(rw_shape a, rw_shape b);

/* Sets c->r from the operands and the parameters of c. */
void op_count_product(struct op_case *c);
void op_count_matmul_add(struct op_case *c);
void op_count_linear(struct op_case *c);
void op_count_linear_gelu(struct op_case *c);
void op_count_linear_add(struct op_case *c);
void op_count_norm(struct op_case *c);
void op_count_sum(struct op_case *c);
void op_count_mean(struct op_case *c);
void op_count_max(struct op_case *c);
void op_count_logsumexp(struct op_case *c);
void op_count_sum_to(struct op_case *c);
void op_count_softmax(struct op_case *c);
void op_count_log_softmax(struct op_case *c);
void op_count_attention(struct op_case *c);
void op_count_conv(struct op_case *c);
void op_count_groups(struct op_case *c);
void op_count_pool(struct op_case *c);
void op_count_adaptive_pool(struct op_case *c);
void op_count_rope(struct op_case *c);
void op_count_rope_with(struct op_case *c);
void op_count_embedding(struct op_case *c);
void op_count_bag_with(struct op_case *c);
void op_count_cross_entropy(struct op_case *c);
void op_count_row_loss(struct op_case *c);
void op_count_soft_loss(struct op_case *c);
void op_count_linear_loss(struct op_case *c);
void op_count_bce(struct op_case *c);
void op_count_mse_with(struct op_case *c);
void op_count_huber(struct op_case *c);
void op_count_kl(struct op_case *c);
void op_count_nll(struct op_case *c);
void op_count_prod(struct op_case *c);
void op_count_var(struct op_case *c);
void op_count_norm_of(struct op_case *c);
void op_count_normalize(struct op_case *c);
void op_count_einsum(struct op_case *c);
void op_count_mse(struct op_case *c);
void op_count_broadcast_to(struct op_case *c);

/* Adds to the gradients the roundings of summing over broadcast axes. Operands have one shape, or broadcast as in
   NumPy. */
void op_count_broadcast(struct op_case *c);

#endif
