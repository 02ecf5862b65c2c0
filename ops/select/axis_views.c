/* select, unsqueeze, unbind, unfold, stack: views of an axis, and the concatenation along a new one. */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/select/axis_remap.h"
#include "ops/shape/shape.h"

#include <rewind/composite.h>
#include <rewind/select.h>

#include <stdio.h>

/* select */

struct select_attrs {
    int64_t axis, index;
};

/* Describes the view of one index of an axis. */
static rw_status check_select(rw_op_call *call)
{
    const struct select_attrs *const a = call->attrs;
    const rw_layout *const in = call->in[0].layout;
    rw_shape shape = { .rank = in->rank - 1 };
    int64_t stride[RW_MAX_RANK];
    int axis;
    RW_CHECK(rw_axis(call, (int)a->axis, in->rank, &axis));
    const int64_t n = in->dim[axis], index = a->index < 0 ? a->index + n : a->index;
    if (index < 0 || index >= n)
        return rw_unexpected_int(call, RW_ERR_SHAPE, "index", a->index, "%lld to %lld, of axis %d with extent %lld",
                                 (long long)-n, (long long)n - 1, axis, (long long)n);
    for (int i = 0; i < shape.rank; i++) {
        shape.dim[i] = in->dim[i + (i >= axis)];
        stride[i] = in->stride[i + (i >= axis)];
    }
    return rw_op_output_view(call, 0, shape, stride, in->offset + index * in->stride[axis]);
}

static rw_status grad_select(rw_grad_call *g)
{
    const struct select_attrs *const a = rw_grad_attrs(g);
    rw_tape *const t = rw_grad_tape(g);
    const rw_shape x = rw_tensor_shape(rw_grad_input(g, 0));
    const int axis = (int)(a->axis < 0 ? a->axis + x.rank : a->axis);
    const int64_t n = x.dim[axis], index = a->index < 0 ? a->index + n : a->index;
    rw_tensor *const dy = rw_unsqueeze(t, rw_grad_upstream(g, 0), axis);
    return rw_grad_set(g, 0, n == 1 ? dy : rw_pad_axis_at(RW_HERE, t, dy, x, axis, index, 0));
}

RW_BUILTIN_OP(select, "x", "torch.select")
static const rw_op_def rw_op_select = { .name = "select", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_VIEW,
                                        .kernel = RW_NO_KERNELS, .check = check_select, .grad = grad_select };

rw_tensor *rw_select_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, int64_t index)
{
    RW_ENTER_OP(t);
    const struct select_attrs a = { axis, index };
    return rw_apply_at(at, t, &rw_op_select, &x, 1, &a, sizeof a, NULL);
}

/* unsqueeze */

struct unsqueeze_attrs {
    int64_t axis;
};

/* Describes the view with a new axis of extent 1. */
static rw_status check_unsqueeze(rw_op_call *call)
{
    const struct unsqueeze_attrs *const a = call->attrs;
    const rw_layout *const in = call->in[0].layout;
    rw_shape shape = { .rank = in->rank + 1 };
    int64_t stride[RW_MAX_RANK];
    int axis;
    if (shape.rank > RW_MAX_RANK)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "a rank of at most %d", RW_MAX_RANK - 1);
    RW_CHECK(rw_axis(call, (int)a->axis, shape.rank, &axis));
    for (int i = 0; i < shape.rank; i++) {
        shape.dim[i] = i == axis ? 1 : in->dim[i - (i > axis)];
        stride[i] = i == axis ? 1 : in->stride[i - (i > axis)];
    }
    return rw_op_output_view(call, 0, shape, stride, in->offset);
}

static rw_status grad_unsqueeze(rw_grad_call *g)
{
    const struct unsqueeze_attrs *const a = rw_grad_attrs(g);
    return rw_grad_set(g, 0, rw_select(rw_grad_tape(g), rw_grad_upstream(g, 0), (int)a->axis, 0));
}

RW_BUILTIN_OP(unsqueeze, "x", "torch.unsqueeze")
static const rw_op_def rw_op_unsqueeze = { .name = "unsqueeze", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_VIEW,
                                           .kernel = RW_NO_KERNELS, .check = check_unsqueeze, .grad = grad_unsqueeze };

rw_tensor *rw_unsqueeze_at(rw_site at, rw_tape *t, rw_tensor *x, int axis)
{
    RW_ENTER_OP(t);
    const struct unsqueeze_attrs a = { axis };
    return rw_apply_at(at, t, &rw_op_unsqueeze, &x, 1, &a, sizeof a, NULL);
}

/* unbind: split into parts of one element, each without the axis */

#define UNBIND_MAX 8189 /* maximum number of parts of rw_split() */

static rw_status failed(rw_tape *t)
{
    const rw_status status = rw_error_status(rw_tape_context(t));
    return status ? status : RW_ERR_ARGUMENT;
}

/* Splits x and removes the axis from each part; see the public header for the contract. */
rw_status rw_unbind_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, rw_tensor **ret_parts, size_t n)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (!t) return rw_refuse_no_tape(at, "unbind", &x, 1), RW_ERR_ARGUMENT;
    const rw_composite c = rw_composite_begin(t, "unbind");
    if (n < 1 || n > UNBIND_MAX || !ret_parts) {
        const rw_status status = rw_split_at(at, t, x, axis, &(int64_t){ 0 }, n, ret_parts);
        rw_composite_end(&c, NULL);
        return status;
    }
    int64_t *const sizes = rw_scratch_at(at, t, "unbind", n, sizeof *sizes);
    for (size_t i = 0; i < n; i++) ret_parts[i] = NULL;
    for (size_t i = 0; sizes && i < n; i++) sizes[i] = 1;
    rw_tensor *last = NULL;
    if (sizes && !rw_split_at(at, t, x, axis, sizes, n, ret_parts)) {
        last = ret_parts[0];
        for (size_t i = 0; i < n && last; i++) last = ret_parts[i] = rw_select_at(at, t, ret_parts[i], axis, 0);
    }
    rw_free(sizes);
    if (rw_composite_end(&c, last)) return RW_OK;
    for (size_t i = 0; i < n; i++) ret_parts[i] = NULL;
    return failed(t);
}

/* stack */

/* Operand i. A message about it has its number. */
static rw_tensor *unsqueezed(rw_site at, rw_tape *t, rw_tensor *x, size_t i, int axis)
{
    char name[32];
    snprintf(name, sizeof name, "x[%zu]", i);
    return rw_operand_check(at, t, x, "stack", name) ? rw_unsqueeze_at(at, t, x, axis) : NULL;
}

rw_tensor *rw_stack_at(rw_site at, rw_tape *t, rw_tensor *const *x, size_t n, int axis)
{
    RW_ENTER_OP(t);
    if (!t) return rw_refuse_no_tape(at, "stack", x, n);
    const rw_composite c = rw_composite_begin(t, "stack");
    if (n < 1 || n >= RW_OP_MAX_OPERANDS || !x) return rw_composite_end(&c, rw_concat_at(at, t, x, n, axis));
    rw_tensor **const part = rw_scratch_at(at, t, "stack", n, sizeof *part), *result = NULL;
    size_t n_done = 0;
    if (!part) return rw_composite_end(&c, NULL);
    while (n_done < n && (part[n_done] = unsqueezed(at, t, x[n_done], n_done, axis))) n_done++;
    if (n_done == n) result = rw_concat_at(at, t, part, n, axis);
    rw_free(part);
    return rw_composite_end(&c, result);
}

/* unfold */

struct unfold_attrs {
    int64_t axis, size, step;
};

/* Describes the view of sliding windows along an axis. */
static rw_status check_unfold(rw_op_call *call)
{
    const struct unfold_attrs *const a = call->attrs;
    const rw_layout *const in = call->in[0].layout;
    rw_shape shape = rw_in_shape(call, 0);
    int64_t stride[RW_MAX_RANK];
    int axis;
    RW_CHECK(rw_axis(call, (int)a->axis, in->rank, &axis));
    if (in->rank >= RW_MAX_RANK)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "a rank of at most %d", RW_MAX_RANK - 1);
    if (a->step < 1) return rw_unexpected_int(call, RW_ERR_SHAPE, "step", a->step, "1 or more");
    if (a->size < 0 || a->size > in->dim[axis])
        return rw_unexpected_int(call, RW_ERR_SHAPE, "size", a->size, "0 to %lld, the extent of axis %d",
                                 (long long)in->dim[axis], axis);
    for (int i = 0; i < in->rank; i++) stride[i] = in->stride[i];
    shape.dim[axis] = (in->dim[axis] - a->size) / a->step + 1;
    stride[axis] = shape.dim[axis] > 1 ? in->stride[axis] * a->step : in->stride[axis];
    stride[in->rank] = in->stride[axis];
    shape.dim[shape.rank++] = a->size;
    return rw_op_output_view(call, 0, shape, stride, in->offset);
}

static rw_status grad_unfold(rw_grad_call *g)
{
    const struct unfold_attrs *const a = rw_grad_attrs(g);
    const rw_shape x = rw_tensor_shape(rw_grad_input(g, 0)), y = rw_tensor_shape(rw_grad_output(g, 0));
    const int axis = (int)(a->axis < 0 ? a->axis + x.rank : a->axis);
    const struct rw_remap_attrs back = { .mode = RW_REMAP_WINDOWS, .axis = axis, .from = x.dim[axis],
                                         .to = y.dim[axis], .size = a->size, .step = a->step };
    return rw_grad_set(g, 0, rw_remap_back(rw_grad_tape(g), rw_grad_upstream(g, 0), &back));
}

RW_BUILTIN_OP(unfold, "x", "Tensor.unfold")
static const rw_op_def rw_op_unfold = { .name = "unfold", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_VIEW,
                                        .kernel = RW_NO_KERNELS, .check = check_unfold, .grad = grad_unfold };

rw_tensor *rw_unfold_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, int64_t size, int64_t step)
{
    RW_ENTER_OP(t);
    const struct unfold_attrs a = { axis, size, step };
    return rw_apply_at(at, t, &rw_op_unfold, &x, 1, &a, sizeof a, NULL);
}
