/*
 * Views: reshape, permute, transpose, slice, split, broadcast_to. They have no kernels: the result refers to the
 * input's memory.
 */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/pass_ops.h"
#include "ops/common/util.h"
#include "ops/shape/shape.h"

#include <rewind/composite.h>

#include <string.h>

/* permute */

struct permute_attrs {
    int32_t rank;
    int32_t axis[RW_MAX_RANK];
};

/* Checks the permutation and describes the view. */
static rw_status check_permute(rw_op_call *call)
{
    const struct permute_attrs *const a = call->attrs;
    const rw_layout *const in = call->in[0].layout;
    if (a->rank != in->rank)
        return rw_unexpected_int(call, RW_ERR_SHAPE, "axes", a->rank, "%d axes, the rank of x", in->rank);
    rw_shape shape = { .rank = in->rank };
    int64_t stride[RW_MAX_RANK];
    uint32_t seen = 0;
    for (int i = 0; i < in->rank; i++) {
        const int axis = a->axis[i];
        if (axis < 0 || axis >= in->rank || (seen >> axis & 1))
            return rw_op_error(call, RW_ERR_SHAPE, "axes: expected each of 0 to %d once, got %d at position %d",
                               in->rank - 1, axis, i);
        seen |= 1u << axis;
        shape.dim[i] = in->dim[axis];
        stride[i] = in->stride[axis];
    }
    return rw_op_output_view(call, 0, shape, stride, in->offset);
}

static rw_status grad_permute(rw_grad_call *g)
{
    const struct permute_attrs *const a = rw_grad_attrs(g);
    int back[RW_MAX_RANK];
    for (int i = 0; i < a->rank; i++) back[a->axis[i]] = i;
    return rw_grad_set(g, 0, rw_permute(rw_grad_tape(g), rw_grad_upstream(g, 0), back));
}

RW_BUILTIN_OP(permute, "x", "torch.permute")
static const rw_op_def rw_op_permute = { .name = "permute", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_VIEW,
    .kernel = RW_NO_KERNELS,
                                         .check = check_permute, .grad = grad_permute };

rw_tensor *rw_permute_at(rw_site at, rw_tape *t, rw_tensor *x, const int *axes)
{
    RW_ENTER_OP(t);
    struct permute_attrs a = { .rank = rw_tensor_shape(x).rank };
    if (!axes && x) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "permute: axes is NULL; expected %d axes", a.rank);
        return NULL;
    }
    for (int i = 0; i < a.rank; i++) a.axis[i] = axes[i];
    return rw_apply_at(at, t, &rw_op_permute, &x, 1, &a, sizeof a, NULL);
}

/* Records the permutation that exchanges two axes. */
rw_tensor *rw_transpose_at(rw_site at, rw_tape *t, rw_tensor *x, int axis_a, int axis_b)
{
    RW_ENTER_OP(t);
    if (!rw_operand_check(at, t, x, "transpose", "x")) return NULL;
    struct permute_attrs a = { .rank = rw_tensor_shape(x).rank };
    for (int i = 0; i < a.rank; i++) a.axis[i] = i;
    const int64_t p = axis_a < 0 ? axis_a + (int64_t)a.rank : axis_a;
    const int64_t q = axis_b < 0 ? axis_b + (int64_t)a.rank : axis_b;
    if (p < 0 || q < 0 || p >= a.rank || q >= a.rank) {
        rw_refuse_at(at, t, RW_ERR_SHAPE, "transpose(axis_a, axis_b): expected axes of x of rank %d, got %d and %d",
                     a.rank, axis_a, axis_b);
        return NULL;
    }
    a.axis[p] = (int32_t)q;
    a.axis[q] = (int32_t)p;
    return rw_apply_at(at, t, &rw_op_permute, &x, 1, &a, sizeof a, NULL);
}

/* reshape */

struct reshape_attrs {
    int64_t rank;
    int64_t dim[RW_MAX_RANK];
};

/* Checks the new shape, and finds the strides of a view if there are any. */
static rw_status check_reshape(rw_op_call *call)
{
    const struct reshape_attrs *const a = call->attrs;
    const rw_layout *const in = call->in[0].layout;
    rw_shape shape = { .rank = (int32_t)a->rank };
    if (a->rank < 0 || a->rank > RW_MAX_RANK)
        return rw_unexpected_int(call, RW_ERR_SHAPE, "shape", a->rank, "a rank of 0 to %d", RW_MAX_RANK);
    int unknown = -1;
    int64_t known = 1;
    for (int i = 0; i < shape.rank; i++) {
        shape.dim[i] = a->dim[i];
        if (a->dim[i] == -1 && unknown < 0) unknown = i;
        else if (a->dim[i] < 0)
            return rw_unexpected_int(call, RW_ERR_SHAPE, "shape", a->dim[i],
                                     "an extent of 0 or more at axis %d, or -1 at one axis alone", i);
        else if (__builtin_mul_overflow(known, a->dim[i], &known)) known = INT64_MAX;
    }
    if (unknown >= 0) shape.dim[unknown] = known ? in->numel / known : 0;
    RW_CHECK(rw_op_check_shape(call, shape));
    if (rw_shape_numel(shape) != in->numel) {
        char text[RW_SHAPE_TEXT];
        memcpy(shape.dim, a->dim, sizeof shape.dim);
        return rw_op_error(call, RW_ERR_SHAPE, "shape: expected a shape of %lld elements, those of x, got %s",
                           (long long)in->numel, rw_shape_text(text, sizeof text, shape));
    }
    int64_t stride[RW_MAX_RANK], step = 1;
    for (int i = shape.rank - 1; i >= 0; i--) {
        stride[i] = step;
        step *= shape.dim[i];
    }
    return rw_op_output_view(call, 0, shape, stride, in->offset);
}

static rw_status grad_reshape(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_reshape(rw_grad_tape(g), rw_grad_upstream(g, 0), rw_tensor_shape(rw_grad_input(g, 0))));
}

RW_BUILTIN_OP(reshape, "x", "torch.reshape")
static const rw_op_def rw_op_reshape = { .name = "reshape", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_VIEW,
    .kernel = RW_NO_KERNELS,
                                         .check = check_reshape, .grad = grad_reshape };

rw_tensor *rw_reshape_at(rw_site at, rw_tape *t, rw_tensor *x, rw_shape shape)
{
    RW_ENTER_OP(t);
    if (!rw_operand_check(at, t, x, "reshape", "x")) return NULL;
    struct reshape_attrs a = { .rank = shape.rank };
    shape = rw_shape_clean(shape);
    memcpy(a.dim, shape.dim, sizeof a.dim);
    const rw_composite c = rw_composite_begin(t, "reshape");
    rw_tensor *const dense = rw_contiguous_at(at, t, x);
    return rw_composite_end(&c, dense ? rw_apply_at(at, t, &rw_op_reshape, &dense, 1, &a, sizeof a, NULL) : NULL);
}

/* slice */

struct slice_attrs {
    int64_t axis, start, end;
};

static rw_status check_slice(rw_op_call *call)
{
    const struct slice_attrs *const a = call->attrs;
    const rw_layout *const in = call->in[0].layout;
    int axis;
    RW_CHECK(rw_axis(call, (int)a->axis, in->rank, &axis));
    if (a->start < 0 || a->start > a->end || a->end > in->dim[axis])
        return rw_op_error(call, RW_ERR_SHAPE, "start, end: expected 0 <= start <= end <= %lld, the extent of axis %d, "
                           "got %lld and %lld", (long long)in->dim[axis], axis, (long long)a->start,
                           (long long)a->end);
    rw_shape shape = rw_in_shape(call, 0);
    shape.dim[axis] = a->end - a->start;
    return rw_op_output_view(call, 0, shape, in->stride, in->offset + a->start * in->stride[axis]);
}

static rw_status grad_slice(rw_grad_call *g)
{
    const struct slice_attrs *const a = rw_grad_attrs(g);
    return rw_grad_set(g, 0,
                       rw_pad_axis_at(RW_HERE, rw_grad_tape(g), rw_grad_upstream(g, 0),
                                      rw_tensor_shape(rw_grad_input(g, 0)), (int)a->axis, a->start, 0));
}

RW_BUILTIN_OP(slice, "x", "torch.narrow")
static const rw_op_def rw_op_slice = {
    .name = "slice", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_VIEW,
    .kernel = RW_NO_KERNELS, .check = check_slice, .grad = grad_slice
};

rw_tensor *rw_slice_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, int64_t start, int64_t end)
{
    RW_ENTER_OP(t);
    const struct slice_attrs a = { axis, start, end };
    return rw_apply_at(at, t, &rw_op_slice, &x, 1, &a, sizeof a, NULL);
}

/* split: one node with several outputs, whose gradient is one concat, or a view */

struct split_attrs {
    int64_t axis, n;
    int64_t size[];
};

#define SPLIT_MAX                                                                                                     \
    ((UINT16_MAX - sizeof(struct split_attrs)) / sizeof(int64_t)) /* parts: limited by a node's attributes */

/* Checks the sizes and describes the views. */
static rw_status check_split(rw_op_call *call)
{
    const struct split_attrs *const a = call->attrs;
    const rw_layout *const in = call->in[0].layout;
    int axis;
    RW_CHECK(rw_axis(call, (int)a->axis, in->rank, &axis));
    int64_t at = 0;
    for (int i = 0; i < a->n; i++) {
        if (a->size[i] < 0 || __builtin_add_overflow(at, a->size[i], &at))
            return rw_op_error(call, RW_ERR_SHAPE, "sizes[%d]: expected 0 to %lld, the extent of axis %d, got %lld", i,
                               (long long)in->dim[axis], axis, (long long)a->size[i]);
    }
    if (at != in->dim[axis])
        return rw_unexpected_int(call, RW_ERR_SHAPE, "sizes", at, "a total of %lld, the extent of axis %d",
                                 (long long)in->dim[axis], axis);
    call->n_outputs = (int)a->n;
    rw_shape shape = rw_in_shape(call, 0);
    at = 0;
    for (int i = 0; i < a->n; i++) {
        shape.dim[axis] = a->size[i];
        RW_CHECK(rw_op_output_view(call, i, shape, in->stride, in->offset + at * in->stride[axis]));
        at += a->size[i];
    }
    return RW_OK;
}

/* part: an array for the parts' gradients. */
static rw_tensor *join(rw_grad_call *g, rw_tensor **part, int n, int axis)
{
    rw_tape *const t = rw_grad_tape(g);
    for (int i = 0; i < n; i++) {
        part[i] = rw_grad_upstream(g, i);
        if (part[i]) continue;
        rw_tensor *const y = rw_grad_output(g, i);
        part[i] = rw_full_at(RW_HERE, t, rw_tensor_dtype(y), rw_tensor_shape(y), 0);
        if (!part[i]) return NULL;
    }
    /* If gradients are differentiable, the parts may be differentiated themselves: they are joined by a node that reads
       them. */
    rw_tensor *const whole = rw_grad_is_differentiable(g) ? NULL : rw_whole_of_pieces(t, part, n, axis);
    return whole ? whole : rw_concat(t, part, n, axis);
}

static rw_status grad_split(rw_grad_call *g)
{
    const struct split_attrs *const a = rw_grad_attrs(g);
    const int n = (int)a->n, axis = (int)a->axis;
    rw_tensor **const part = rw_scratch_at(RW_HERE, rw_grad_tape(g), "split", (size_t)n, sizeof *part);
    rw_tensor *const dx = part ? join(g, part, n, axis) : NULL;
    rw_free(part);
    return rw_grad_set(g, 0, dx);
}

RW_BUILTIN_OP(split, "x", "torch.split")
static const rw_op_def rw_op_split = { .name = "split", .n_inputs = 1, .n_outputs = RW_OP_VARIADIC, .flags = RW_OP_VIEW,
    .kernel = RW_NO_KERNELS,
                                       .check = check_split, .grad = grad_split };

static rw_status refuse_split(rw_site at, rw_tape *t, rw_tensor *x, size_t n, const char *null)
{
    if (!t) rw_operand_check(at, t, x, "split", "x");
    if (!t) return RW_ERR_ARGUMENT;
    if (null) return rw_refuse_at(at, t, RW_ERR_ARGUMENT, "split: %s is NULL; expected an array of n", null);
    return rw_refuse_at(at, t, RW_ERR_ARGUMENT, "split(n): expected 1 to %zu parts, got %zu", SPLIT_MAX, n);
}

/* Records the split; see the public header for the contract. */
rw_status rw_split_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, const int64_t *sizes, size_t n,
                      rw_tensor **ret_parts)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (n < 1 || n > SPLIT_MAX || !ret_parts || !sizes || !t)
        return refuse_split(at, t, x, n, !ret_parts ? "ret_parts" : !sizes ? "sizes" : NULL);
    for (size_t i = 0; i < n; i++) ret_parts[i] = NULL;
    const size_t bytes = sizeof(struct split_attrs) + n * sizeof *sizes;
    struct split_attrs *const a = rw_scratch_at(at, t, "split", 1, bytes);
    if (a) {
        a->axis = axis, a->n = (int64_t)n;
        memcpy(a->size, sizes, n * sizeof *sizes);
    }
    const bool ok = a && rw_apply_at(at, t, &rw_op_split, &x, 1, a, bytes, ret_parts);
    rw_free(a);
    if (ok) return RW_OK;
    for (size_t i = 0; i < n; i++) ret_parts[i] = NULL;
    const rw_status status = rw_error_status(rw_tape_context(t));
    return status ? status : RW_ERR_ARGUMENT;
}

/* broadcast_to */

/* Checks the shapes and describes a view with strides of 0. */
static rw_status check_broadcast(rw_op_call *call)
{
    const struct reshape_attrs *const a = call->attrs;
    const rw_layout *const in = call->in[0].layout;
    rw_shape shape = { .rank = (int32_t)a->rank }, joint;
    memcpy(shape.dim, a->dim, sizeof shape.dim);
    if (a->rank < in->rank || a->rank > RW_MAX_RANK)
        return rw_unexpected_int(call, RW_ERR_SHAPE, "shape", a->rank, "a rank of %d to %d, at least that of x",
                                 in->rank, RW_MAX_RANK);
    RW_CHECK(rw_broadcast(call, rw_in_shape(call, 0), shape, &joint));
    if (!rw_shape_equal(joint, shape))
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "a shape that broadcasts to %s",
                             rw_shape_text((char[RW_SHAPE_TEXT]){ "" }, RW_SHAPE_TEXT, shape));
    int64_t stride[RW_MAX_RANK];
    for (int i = 0; i < shape.rank; i++) {
        const int k = i - (shape.rank - in->rank);
        stride[i] = k < 0 || in->dim[k] == 1 ? 0 : in->stride[k];
    }
    return rw_op_output_view(call, 0, shape, stride, in->offset);
}

static rw_status grad_broadcast(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_sum_to(rw_grad_tape(g), rw_grad_upstream(g, 0), rw_tensor_shape(rw_grad_input(g, 0))));
}

RW_BUILTIN_OP(broadcast_to, "x", "torch.broadcast_to")
static const rw_op_def rw_op_broadcast = { .name = "broadcast_to", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_VIEW,
    .kernel = RW_NO_KERNELS,
                                           .check = check_broadcast, .grad = grad_broadcast };

rw_tensor *rw_broadcast_to_at(rw_site at, rw_tape *t, rw_tensor *x, rw_shape shape)
{
    RW_ENTER_OP(t);
    struct reshape_attrs a = { .rank = shape.rank };
    shape = rw_shape_clean(shape);
    memcpy(a.dim, shape.dim, sizeof a.dim);
    return rw_apply_at(at, t, &rw_op_broadcast, &x, 1, &a, sizeof a, NULL);
}
