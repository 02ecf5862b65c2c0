/* Numbers computed from their position, and reading of results, for the tests of mixtures of experts. */
#ifndef RW_TESTS_OPS_MOE_TEST_DATA_H
#define RW_TESTS_OPS_MOE_TEST_DATA_H

#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static inline double number(int64_t i, int salt)
{
    return (double)((i * 37 + salt * 101 + i * i * 11 + i / 64 * 29) % 127 - 63) / 64;
}

static inline rw_tensor *numbers(rw_tape *t, rw_dtype dtype, rw_shape shape, int salt, int64_t from)
{
    const int64_t n = rw_shape_numel(shape);
    char *const data = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++) cr_assert(number_put(data, dtype, i, number(from + i, salt)));
    rw_tensor *const x = rw_input(t, dtype, shape, data, (size_t)n * rw_dtype_size(dtype));
    free(data);
    return rw_require_grad(t, x);
}

static inline void *bytes_of(rw_tape *t, rw_tensor *x)
{
    void *const to = malloc(rw_tensor_bytes(x) + 8);
    cr_assert_eq(rw_read(t, x, to, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(rw_tape_context(t)));
    return to;
}

#endif
