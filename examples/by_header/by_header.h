/*
 * The example of each public header: the text between the two marks [NAME] is on that header's page of the reference
 * (docs/reference). Each is a function that gets a new context and an empty tape, and returns whether its results are
 * as stated.
 */
#ifndef BY_HEADER_H
#define BY_HEADER_H

#include <rewind/rewind.h>

#include <stdio.h>

/* In the order of rewind/rewind.h */
#define EXAMPLES(X) \
    X(rewind) X(context) X(tensor) X(tape) X(ops) X(pointwise) X(compare) X(create) X(select) X(gather) X(conv) \
    X(norm) X(attention) X(reductions) X(einsum) X(losses) X(composite) X(custom_grad) X(kernel_pair) X(fusion) \
    X(recompute) X(verify) X(nonfinite) X(memory) X(plan) X(moe) X(recurrent) X(quantized) X(float8) X(optimizers) \
    X(lr_schedule) X(weight_average) X(precision) X(recorders) X(graph) X(io) X(checkpoint) X(monitor) X(op) \
    X(status) X(types) X(version)

#define EXAMPLE_DECLARE(name) bool example_##name(rw_context *ctx, rw_tape *t);
EXAMPLES(EXAMPLE_DECLARE)

#endif
