/*
 * Helpers of the ops' checks and rules: broadcasting, axes, types, costs; and the threshold below which kernels are
 * single-threaded.
 */
#ifndef RW_OPS_COMMON_UTIL_H
#define RW_OPS_COMMON_UTIL_H

#include "base/alloc.h"
#include "base/explicit_zero_param.h"
#include "ops/common/expect.h"

#include <rewind/create.h>
#include <rewind/ops.h>

/* Below this many elements, waking other threads costs more than it saves. */
#define RW_PARALLEL_FROM 32768

/* The number of threads for a loop over that many elements. */
static inline int rw_threads_for(const rw_kernel *k, int64_t elements)
{
    return elements >= RW_PARALLEL_FROM ? k->threads : 1;
}

#define RW_CHECK(expr)                          \
    do {                                        \
        const rw_status status_ = (expr);       \
        if (status_) return status_;            \
    } while (0)

/* Temporary memory for the duration of a call, for arrays whose size the caller determines: they may be too large for a
   thread's stack. Free it with rw_free(). NULL without memory, after an error in the op's name. */
void *rw_scratch_at(rw_site at, rw_tape *t, const char *name, size_t n, size_t size);

/* NumPy broadcasting of two shapes; the error message prints both. */
rw_status rw_broadcast(rw_op_call *call, rw_shape a, rw_shape b, rw_shape *ret);

/* Resolves an axis, counted from the end if negative; an error if it is out of range. */
rw_status rw_axis(rw_op_call *call, int axis, int rank, int *ret);

/* Converts a set made by RW_AXES() to a bit mask over the axes of a tensor of that rank. */
rw_status rw_axes_mask(rw_op_call *call, uint32_t axes, int rank, uint32_t *ret_mask);

/* As rw_expect_*(), with the name that rw_op_input_name() has for the input. */
static inline rw_status rw_want_float(rw_op_call *call, int input)
{
    return rw_expect_float(call, input, NULL);
}

static inline rw_status rw_want_same_dtype(rw_op_call *call, int like, int input)
{
    return rw_expect_dtype_of(call, input, NULL, like, NULL);
}

static inline rw_status rw_want_dtype(rw_op_call *call, int input, rw_dtype dtype)
{
    return rw_expect_dtype(call, input, NULL, dtype);
}

/* Checks the input `sum`, an addend: it has the term's type, or float32 if the term has 16 bits. */
rw_status rw_want_sum_of(rw_op_call *call, int sum, int term);

/* For rules: casts x to the type of input i; the sum of that input's gradient may be wider. */
rw_tensor *rw_grad_narrowed(rw_grad_call *g, int i, rw_tensor *x);

/* For rules that are composed of other ops although the op itself is fused: casts x to float32 if it has 16 bits. In 16
   bits squares would overflow between two ops, and differences would lose precision. Other types and NULL are returned
   unchanged, without a node. */
rw_tensor *rw_grad_widened(rw_grad_call *g, rw_tensor *x);

/* Sets the gradient of input i to dx, computed from widened operands, after a cast to the input's type. */
rw_status rw_grad_set_narrowed(rw_grad_call *g, int i, rw_tensor *dx);

/* The shape with zeros after its rank, so that equal attributes have equal bytes. */
static inline rw_shape rw_shape_clean(rw_shape shape)
{
    for (int i = shape.rank < 0 ? 0 : shape.rank; i < RW_MAX_RANK; i++) shape.dim[i] = 0;
    return shape;
}

/* NULL, with the error of a call without a tape: its inputs may lead to a context for it. */
static inline rw_tensor *rw_refuse_no_tape(rw_site at, const char *what, rw_tensor *const *in, size_t n)
{
    return rw_apply_at(at, NULL, &(rw_op_def){ .name = what }, in, n, NULL, 0, NULL);
}

static inline rw_shape rw_in_shape(const rw_op_call *call, int i)
{
    return rw_layout_shape(call->in[i].layout);
}

/*
 * Records x - mean(x) over the axes, twice. The mean of numbers far from 0 has an error of some units in the last
 * place, which may exceed their spread. The mean of the differences is that error, and the second pass subtracts it.
 */
rw_tensor *rw_centred_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes);

/* A constant as an op on x uses it: unchanged for float64, else rounded to float32, in which the kernels compute. */
double rw_constant(const rw_tensor *x, double value);

/* Costs of an op of products alone, all of whose operations are model FLOPs; and of an element-wise op. */
rw_op_cost rw_cost_product(const rw_op_call *call, double flops);
rw_op_cost rw_cost_pointwise(const rw_op_call *call, double flops_per_element);

#endif
