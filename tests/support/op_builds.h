/* The build functions of the table, one per op: see op_cases.h. */
#ifndef RW_TESTS_OP_BUILDS_H
#define RW_TESTS_OP_BUILDS_H

#include "support/op_cases.h"

/* The float32 next to it, as the references have arguments. */
double op_single(double value);

#define OP_BUILD(name) rw_tensor *op_build_##name(rw_tape *t, rw_tensor **x, const struct op_case *c);
OP_BUILD(add)
OP_BUILD(sub)
OP_BUILD(mul)
OP_BUILD(div)
OP_BUILD(maximum)
OP_BUILD(scale)
OP_BUILD(add_scalar)
OP_BUILD(pow_scalar)
OP_BUILD(neg)
OP_BUILD(abs)
OP_BUILD(exp)
OP_BUILD(log)
OP_BUILD(sqrt)
OP_BUILD(tanh)
OP_BUILD(sigmoid)
OP_BUILD(relu)
OP_BUILD(silu)
OP_BUILD(gelu)
OP_BUILD(gelu_tanh)
OP_BUILD(swiglu)
OP_BUILD(matmul)
OP_BUILD(matmul_add)
OP_BUILD(linear)
OP_BUILD(linear_gelu)
OP_BUILD(linear_add)
OP_BUILD(layernorm)
OP_BUILD(rmsnorm)
OP_BUILD(sum)
OP_BUILD(mean)
OP_BUILD(max)
OP_BUILD(logsumexp)
OP_BUILD(sum_to)
OP_BUILD(softmax)
OP_BUILD(log_softmax)
OP_BUILD(causal_softmax)
OP_BUILD(attention)
OP_BUILD(rope)
OP_BUILD(embedding)
OP_BUILD(cross_entropy)
OP_BUILD(mse_loss)
OP_BUILD(reshape)
OP_BUILD(permute)
OP_BUILD(contiguous)
OP_BUILD(slice)
OP_BUILD(broadcast_to)
OP_BUILD(concat)
OP_BUILD(cast)
OP_BUILD(dropout)
OP_BUILD(dropout_add)
OP_BUILD(rand)
OP_BUILD(randn)
OP_BUILD(split)
#undef OP_BUILD

#endif
