/* What the ops' checks share: broadcasting, axes, types; and the threshold below which kernels stay serial. */
#ifndef RW_OPS_COMMON_UTIL_H
#define RW_OPS_COMMON_UTIL_H

#include "base/alloc.h"
#include "base/zero.h"
#include "record/own_ops.h"

#include <rewind/ops.h>

/* Below this many elements a parallel region costs more than it saves. */
#define RW_PARALLEL_FROM 32768

#define RW_CHECK(expr)                          \
    do {                                        \
        const rw_status status_ = (expr);       \
        if (status_) return status_;            \
    } while (0)

/* Memory while a call lasts, for what it has as many of as a caller likes: that may be too much for a thread's stack.
   For rw_free(). NULL after a refusal in the op's name. */
void *rw_scratch_at(rw_site at, rw_tape *t, const char *name, size_t n, size_t size);

/* NumPy broadcasting of two shapes; the message gives both. */
rw_status rw_broadcast(rw_op_call *call, rw_shape a, rw_shape b, rw_shape *ret);

/* axis from the end when negative; an error when out of range. */
rw_status rw_axis(rw_op_call *call, int axis, int rank, int *ret);

/* A set made by RW_AXES() as a bit mask over the axes of a rank. */
rw_status rw_axes_mask(rw_op_call *call, uint32_t axes, int rank, uint32_t *ret_mask);

rw_status rw_want_float(rw_op_call *call, int input);
rw_status rw_want_same_dtype(rw_op_call *call, int a, int b);
rw_status rw_want_dtype(rw_op_call *call, int input, rw_dtype dtype);

/* Input `sum` may be what is added to: of the term's type, or float32 over a term of 16 bits. */
rw_status rw_want_sum_of(rw_op_call *call, int sum, int term);

/* For rules: x in the type of input i, which its gradient's sum may be wider than. */
rw_tensor *rw_grad_narrowed(rw_grad_call *g, int i, rw_tensor *x);

/* For rules that compose what else a fused op does: x in the type that it computes in, float32 for 16 bits, in which
   squares would leave the range between two ops, and differences lose their bits. Other types stay as they are, without
   a node; so does NULL. */
rw_tensor *rw_grad_widened(rw_grad_call *g, rw_tensor *x);

/* What is made of widened operands as the gradient of input i, in that one's type. */
rw_status rw_grad_set_narrowed(rw_grad_call *g, int i, rw_tensor *dx);

static inline rw_shape rw_in_shape(const rw_op_call *call, int i)
{
    return rw_layout_shape(call->in[i].layout);
}

/*
 * Records x - mean(x) over the axes. Twice: the mean of numbers far from 0 is off by some units in the last place,
 * which may be more than their spread; what it is off by is the mean of the distances from it.
 */
rw_tensor *rw_centred_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes);

/* A constant as an op on x takes it: as it is for float64, else rounded to float32, in which the kernels compute. */
double rw_constant(const rw_tensor *x, double value);

/* Costs of element-wise ops; rw_cost_bytes() is the runtime's too. */
rw_op_cost rw_cost_pointwise(const rw_op_call *call, double flops_per_element);

#endif
