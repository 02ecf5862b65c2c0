/* Helpers of the suites of fused bias gradients: inputs, a bias of zeros, gradients read as a whole. */
#ifndef RW_TESTS_AUTODIFF_FUSED_BIAS_GRAD_FIXTURE_H
#define RW_TESTS_AUTODIFF_FUSED_BIAS_GRAD_FIXTURE_H

#include "support/compare.h"
#include "support/plan_queries.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static rw_tensor *numbers(struct fixture *b, rw_dtype dtype, rw_shape shape, int salt)
{
    const int64_t n = rw_shape_numel(shape);
    float *const x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)((i * 37 + i / 11 * 5 + salt * 17) % 101) / 128 - 0.375f;
    rw_tensor *const y = rw_cast(b->t, rw_input(b->t, RW_F32, shape, x, (size_t)n * sizeof *x),
                                 dtype);
    free(x);
    return y;
}

/* constant: not a parameter. */
static rw_tensor *bias_of_zeros(struct fixture *b, rw_dtype dtype, int64_t width, bool constant)
{
    const rw_shape shape = RW_SHAPE(width);
    rw_tensor *const bias = constant ? rw_buffer(b->ctx, "bias", dtype, shape) : rw_param(b->ctx, "bias", dtype, shape);
    char *const zeros = calloc(1, rw_tensor_bytes(bias));
    cr_assert_eq(rw_write(bias, zeros, rw_tensor_bytes(bias)), RW_OK);
    free(zeros);
    return bias;
}

static char *read_gradient(struct fixture *b, rw_tensor *x, size_t *ret_bytes)
{
    rw_tensor *const g = rw_gradient(x);
    char *const bytes = malloc(rw_tensor_bytes(g) + 1);
    cr_assert_eq(rw_read(b->t, g, bytes, rw_tensor_bytes(g)), RW_OK, "%s", rw_error_message(b->ctx));
    *ret_bytes = rw_tensor_bytes(g);
    return bytes;
}

static void backward(struct fixture *b, rw_tensor *loss)
{
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
}

#endif
