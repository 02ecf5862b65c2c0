/* contiguous, cast, fill, arange, pad, concat, assign: the shape ops that copy or create elements. */
#include "base/public_entry.h"
#include "ops/common/channels_last.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/pass_ops.h"
#include "ops/common/util.h"
#include "ops/shape/shape.h"

#include <rewind/composite.h>
#include <rewind/create.h>

#include <limits.h>
#include <math.h>
#include <string.h>

static rw_op_cost cost_copy(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 0);
}

/* contiguous */

static rw_status check_like(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status grad_same(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

RW_BUILTIN_OP(contiguous, "x", "Tensor.contiguous")
RW_DECLARE_KERNELS(rw_copy)
const rw_op_def rw_op_contiguous = { .name = "contiguous", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_CODES,
                                     .strided = RW_OP_ALL_INPUTS, .check = check_like, .kernel = RW_KERNELS(rw_copy),
                                     .grad = grad_same, .cost = cost_copy };

rw_tensor *rw_contiguous_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    RW_ENTER_OP(t);
    if (!rw_operand_check(at, t, x, "contiguous", "x")) return NULL;
    if (rw_tensor_layout(x)->dense) return x;
    return rw_apply_at(at, t, &rw_op_contiguous, &x, 1, NULL, 0, NULL);
}

/* cast */

struct cast_attrs {
    int64_t dtype;
};

static rw_status check_cast(rw_op_call *call)
{
    const struct cast_attrs *const a = call->attrs;
    if (a->dtype < 0 || a->dtype >= RW_DTYPE_COUNT)
        return rw_unexpected_dtype(call, "dtype", a->dtype, "one of rw_dtype");
    return rw_op_output(call, 0, (rw_dtype)a->dtype, rw_in_shape(call, 0));
}

static rw_status grad_cast(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    const bool summed = rw_tensor_dtype(dy) == rw_grad_dtype(g, 0); /* in that type: rounding it loses precision */
    return rw_grad_set(g, 0, summed ? dy : rw_grad_narrowed(g, 0, dy));
}

RW_BUILTIN_OP(cast, "x", "Tensor.to")
static const rw_op_def rw_op_cast = { .name = "cast", .n_inputs = 1, .n_outputs = 1, .strided = RW_OP_ALL_INPUTS,
                                      .check = check_cast, .kernel = RW_KERNELS(rw_copy), .grad = grad_cast,
                                      .cost = cost_copy };

rw_tensor *rw_cast_at(rw_site at, rw_tape *t, rw_tensor *x, rw_dtype dtype)
{
    RW_ENTER_OP(t);
    if (x && rw_tensor_dtype(x) == dtype) return rw_operand_check(at, t, x, "cast", "x") ? x : NULL;
    const struct cast_attrs a = { dtype };
    return rw_apply_at(at, t, &rw_op_cast, &x, 1, &a, sizeof a, NULL);
}

/* fill */

struct fill_attrs {
    double value;
    int64_t dtype, rank;
    int64_t dim[RW_MAX_RANK];
};

static rw_shape shape_of(int64_t rank, const int64_t *dim)
{
    rw_shape shape = { .rank = (int32_t)rank };
    memcpy(shape.dim, dim, sizeof shape.dim);
    return shape;
}

static rw_status check_fill(rw_op_call *call)
{
    const struct fill_attrs *const a = call->attrs;
    return rw_op_output(call, 0, (rw_dtype)a->dtype, shape_of(a->rank, a->dim));
}

RW_BUILTIN_OP(fill, "", "torch.full")
RW_DECLARE_KERNELS(rw_fill)
static const rw_op_def rw_op_fill = { .name = "fill",
                                      .n_inputs = 0,
                                      .n_outputs = 1,
                                      .flags = RW_OP_NO_GRADIENT,
                                      .check = check_fill,
                                      .kernel = RW_KERNELS(rw_fill),
                                      .cost = cost_copy };

static rw_tensor *fill(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape, double value)
{
    struct fill_attrs a = { .value = value, .dtype = dtype, .rank = shape.rank };
    shape = rw_shape_clean(shape);
    memcpy(a.dim, shape.dim, sizeof a.dim);
    return rw_apply_at(at, t, &rw_op_fill, NULL, 0, &a, sizeof a, NULL);
}

/* arange */

static rw_status check_arange(rw_op_call *call)
{
    const struct rw_arange_attrs *const a = call->attrs;
    return rw_op_output(call, 0, (rw_dtype)a->dtype, RW_SHAPE(a->n));
}

RW_BUILTIN_OP(arange, "", "torch.arange")
RW_DECLARE_KERNELS(rw_arange)
static const rw_op_def rw_op_arange = { .name = "arange", .n_inputs = 0, .n_outputs = 1, .flags = RW_OP_NO_GRADIENT,
                                        .check = check_arange, .kernel = RW_KERNELS(rw_arange), .cost = cost_copy };

/* The violated expectation, as text; NULL if the numbers form a sequence of the type. */
static const char *arange_mistake(rw_dtype dtype, double start, double end, double step, double n)
{
    if (dtype == RW_BOOL) return "a type of numbers";
    if (!isfinite(start) || !isfinite(end) || !isfinite(step)) return "finite numbers";
    if (!isfinite(end - start)) return "an end - start that float64 holds";
    if (step == 0) return "a step other than 0";
    if ((end - start) / step < 0) return "a step of the sign of end - start";
    if (!(n < 0x1p53)) return "fewer than 2^53 elements";
    if (dtype != RW_I32) return NULL;
    if (start != trunc(start) || step != trunc(step)) return "whole numbers";
    const double last = start + (n > 0 ? n - 1 : 0) * step;
    return fmin(start, last) < INT32_MIN || fmax(start, last) > INT32_MAX ? "elements that i32 holds" : NULL;
}

rw_tensor *rw_arange_at(rw_site at, rw_tape *t, rw_dtype dtype, double start, double end, double step)
{
    RW_ENTER_OP(t);
    const double n = ceil((end - start) / step);
    const char *const mistake = arange_mistake(dtype, start, end, step, n);
    if (mistake) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "arange(start, end, step): expected %s, got %g, %g and %g of %s", mistake,
                     start, end, step, rw_dtype_name(dtype));
        return NULL;
    }
    const struct rw_arange_attrs a = { .start = start, .step = step, .dtype = dtype, .n = (int64_t)n };
    return rw_apply_at(at, t, &rw_op_arange, NULL, 0, &a, sizeof a, NULL);
}

/* zeros, ones, full */

static rw_tensor *filled(rw_site at, rw_tape *t, const char *name, rw_dtype dtype, rw_shape shape, double value)
{
    const rw_composite c = rw_composite_begin(t, name);
    return rw_composite_end(&c, fill(at, t, dtype, shape, value));
}

rw_tensor *rw_zeros_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape)
{
    RW_ENTER_OP(t);
    return filled(at, t, "zeros", dtype, shape, 0);
}

rw_tensor *rw_ones_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape)
{
    RW_ENTER_OP(t);
    return filled(at, t, "ones", dtype, shape, 1);
}

rw_tensor *rw_full_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape, double value)
{
    RW_ENTER_OP(t);
    return filled(at, t, "full", dtype, shape, value);
}

/* pad: the gradient of slice, and constant padding */

static rw_status check_pad(rw_op_call *call)
{
    const struct rw_pad_attrs *const a = call->attrs;
    return rw_op_output(call, 0, call->in[0].dtype, shape_of(a->rank, a->dim));
}

static rw_status grad_pad(rw_grad_call *g)
{
    const struct rw_pad_attrs *const a = rw_grad_attrs(g);
    const rw_shape x = rw_tensor_shape(rw_grad_input(g, 0));
    const int axis = a->axis < 0 ? (int)a->axis + x.rank : (int)a->axis;
    return rw_grad_set(g, 0, rw_slice(rw_grad_tape(g), rw_grad_upstream(g, 0), axis, a->start, a->start + x.dim[axis]));
}

RW_BUILTIN_OP(pad, "x", "F.pad")
RW_DECLARE_KERNELS(rw_pad)
static const rw_op_def rw_op_pad = { .name = "pad", .n_inputs = 1, .n_outputs = 1, .strided = RW_OP_ALL_INPUTS,
                                     .check = check_pad, .kernel = RW_KERNELS(rw_pad), .grad = grad_pad,
                                     .cost = cost_copy };

rw_tensor *rw_pad_axis_at(rw_site at, rw_tape *t, rw_tensor *x, rw_shape shape, int axis, int64_t start, double value)
{
    struct rw_pad_attrs a = { .value = value, .axis = axis, .start = start, .rank = shape.rank };
    shape = rw_shape_clean(shape);
    memcpy(a.dim, shape.dim, sizeof a.dim);
    return rw_apply_at(at, t, &rw_op_pad, &x, 1, &a, sizeof a, NULL);
}

/* concat */

/* Checks that inputs differ only along the axis, and describes the result. */
static rw_status check_concat(rw_op_call *call)
{
    const struct rw_concat_attrs *const a = call->attrs;
    RW_CHECK(rw_expect_inputs(call, 1, INT_MAX, "1 tensor or more"));
    rw_shape out = rw_in_shape(call, 0);
    int axis;
    RW_CHECK(rw_axis(call, (int)a->axis, out.rank, &axis));
    for (int i = 1; i < call->n_inputs; i++) {
        const rw_shape s = rw_in_shape(call, i);
        RW_CHECK(rw_want_same_dtype(call, 0, i));
        for (int k = 0; k < out.rank || k < s.rank; k++)
            if (s.rank != out.rank || (k != axis && s.dim[k] != out.dim[k]))
                return rw_unexpected(call, RW_ERR_SHAPE, i, NULL, "%s but for axis %d, as x[0]",
                                     rw_shape_text((char[RW_SHAPE_TEXT]){ "" }, RW_SHAPE_TEXT, rw_in_shape(call, 0)),
                                     axis);
        if (__builtin_add_overflow(out.dim[axis], s.dim[axis], &out.dim[axis]))
            return rw_unexpected(call, RW_ERR_SHAPE, i, NULL, "fewer than 2^63 elements along axis %d in all",
                                 axis);
    }
    return rw_op_output(call, 0, call->in[0].dtype, out);
}

static rw_status grad_concat(rw_grad_call *g)
{
    const struct rw_concat_attrs *const a = rw_grad_attrs(g);
    int64_t at = 0;
    for (int i = 0; i < rw_grad_n_inputs(g); i++) {
        const rw_shape s = rw_tensor_shape(rw_grad_input(g, i));
        const int axis = a->axis < 0 ? (int)a->axis + s.rank : (int)a->axis;
        const int64_t from = at;
        at += s.dim[axis];
        if (!rw_grad_wanted(g, i)) continue;
        RW_CHECK(rw_grad_set(g, i, rw_slice(rw_grad_tape(g), rw_grad_upstream(g, 0), axis, from, at)));
    }
    return RW_OK;
}

RW_BUILTIN_OP(concat, "x[]", "torch.cat")
RW_DECLARE_KERNELS(rw_concat)
const rw_op_def rw_op_concat = { .name = "concat",
                                 .n_inputs = RW_OP_VARIADIC,
                                 .n_outputs = 1,
                                 .strided = RW_OP_ALL_INPUTS,
                                 .check = check_concat,
                                 .kernel = RW_KERNELS(rw_concat),
                                 .grad = grad_concat,
                                 .cost = cost_copy,
                                 .cast_widest = RW_OP_ALL_INPUTS };

rw_tensor *rw_concat_at(rw_site at, rw_tape *t, rw_tensor *const *x, size_t n, int axis)
{
    RW_ENTER_OP(t);
    struct rw_concat_attrs a = { axis };
    if (t && (n < 1 || n >= RW_OP_MAX_OPERANDS)) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "concat(n): expected 1 to %d tensors, got %zu", RW_OP_MAX_OPERANDS - 1, n);
        return NULL;
    }
    if (t && !x) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "concat: x is NULL; expected an array of %zu tensors", n);
        return NULL;
    }
    const int rank = rw_any_is_channels_last(x, n) ? rw_tensor_shape(x[0]).rank : 0;
    if (axis >= -rank && axis < rank) a.axis = rw_axis_inside(axis < 0 ? axis + rank : axis, rank);
    return rw_apply_in_order_at(at, t, &rw_op_concat, x, n, &a, sizeof a);
}

/* assign */

static rw_status check_assign(rw_op_call *call)
{
    RW_CHECK(rw_want_same_dtype(call, 1, 0));
    RW_CHECK(rw_expect_shape_of(call, 0, NULL, 1, NULL));
    return rw_op_output_like(call, 0, 1);
}

RW_BUILTIN_OP(assign, "x buffer", "Tensor.copy_")
static const rw_op_def rw_op_assign = { .name = "assign",
                                        .n_inputs = 2,
                                        .n_outputs = 1,
                                        .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT | RW_OP_CODES |
                                                 RW_OP_OWN_COUNTED,
                                        .strided = RW_OP_ALL_INPUTS,
                                        .check = check_assign,
                                        .kernel = RW_KERNELS(rw_copy),
                                        .cost = cost_copy };

/* Records the assignment, a commit; see the public header for the contract. */
rw_status rw_assign_at(rw_site at, rw_tape *t, rw_tensor *buffer, rw_tensor *x)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (!t || !buffer) {
        rw_operand_check(at, t, t ? buffer : buffer ? buffer : x, "assign", "buffer");
        return RW_ERR_ARGUMENT;
    }
    if (!rw_operand_check(at, t, buffer, "rw_assign", "buffer")) return RW_ERR_ARGUMENT;
    if (rw_tensor_kind_of(buffer) != RW_TENSOR_BUFFER)
        return rw_refuse_at(at, t, RW_ERR_ARGUMENT, "rw_assign(buffer): expected a buffer made by rw_buffer(), got "
                            "another tensor");
    rw_tensor *const in[] = { x, buffer };
    if (rw_apply_at(at, t, &rw_op_assign, in, 2, NULL, 0, NULL)) return RW_OK;
    const rw_status status = rw_error_status(rw_tape_context(t));
    return status ? status : RW_ERR_ARGUMENT;
}
