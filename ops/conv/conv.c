/* conv2d and conv_transpose2d, and the products that their gradients are. See conv.h. */
#include "ops/common/channels.h"
#include "ops/common/kernels.h"
#include "ops/conv/conv.h"
#include "ops/reduce/reduce.h"
#include "ops/shape/joined.h"
#include "record/maker.h"
#include "record/own_ops.h"

#include <rewind/conv.h>
#include <rewind/select.h>

/* ---- checks ---- */

static rw_status check_numbers(rw_op_call *call, const struct rw_conv_attrs *a)
{
    if (a->groups < 1) return rw_op_error(call, RW_ERR_ARGUMENT, "%lld groups", (long long)a->groups);
    for (int i = 0; i < 2; i++) {
        if (a->stride[i] < 1)
            return rw_op_error(call, RW_ERR_ARGUMENT, "stride %lld of axis %d", (long long)a->stride[i], i);
        if (a->dilation[i] < 1)
            return rw_op_error(call, RW_ERR_ARGUMENT, "dilation %lld of axis %d", (long long)a->dilation[i], i);
        if (a->padding[i] < 0)
            return rw_op_error(call, RW_ERR_ARGUMENT, "padding %lld of axis %d", (long long)a->padding[i], i);
    }
    return RW_OK;
}

/* Of a convolution of an extent: the result's. */
static rw_status check_extent(rw_op_call *call, const struct rw_conv_attrs *a, int i, int64_t in, int64_t kernel,
                              int64_t *ret)
{
    int64_t reach, padded;
    if (kernel < 1) return rw_op_error(call, RW_ERR_SHAPE, "a kernel of extent %lld", (long long)kernel);
    if (__builtin_mul_overflow(kernel - 1, a->dilation[i], &reach) ||
        __builtin_add_overflow(in, 2 * a->padding[i], &padded))
        return rw_op_error(call, RW_ERR_SHAPE, "extents that cannot be counted");
    if (padded - 1 < reach)
        return rw_op_error(call, RW_ERR_SHAPE, "the kernel reaches over %lld, x has %lld with its padding",
                           (long long)reach + 1, (long long)padded);
    *ret = (padded - 1 - reach) / a->stride[i] + 1;
    return RW_OK;
}

static rw_status check_images(rw_op_call *call, int n)
{
    RW_CHECK(rw_want_float(call, 0));
    for (int i = 0; i < n; i++) {
        RW_CHECK(rw_want_same_dtype(call, 0, i));
        if (call->in[i].layout->rank != 4) return rw_op_error(call, RW_ERR_SHAPE, "input %d has not four axes", i);
    }
    return check_numbers(call, call->attrs);
}

/* The shape of an x whose first piece is input `first`; pieces differ in their channels alone. */
static rw_status shape_of_pieces(rw_op_call *call, int first, rw_shape *ret)
{
    const struct rw_conv_attrs *const a = call->attrs;
    *ret = rw_in_shape(call, first);
    for (int i = first + 1; i <= first + a->more; i++) {
        const rw_shape piece = rw_in_shape(call, i);
        for (int k = 0; k < 3; k++)
            if (piece.dim[k] != ret->dim[k])
                return rw_op_error(call, RW_ERR_SHAPE, "piece %d of x has another shape", i - first);
        if (__builtin_add_overflow(ret->dim[3], piece.dim[3], &ret->dim[3]))
            return rw_op_error(call, RW_ERR_SHAPE, "more channels than can be counted");
    }
    return RW_OK;
}

/* Channels of x [n, h, w, c] and y [n, oh, ow, oc] beside those of a weight [oc, c / groups, kh, kw]. */
static rw_status check_channels(rw_op_call *call, int64_t c, int64_t oc, rw_shape weight)
{
    const struct rw_conv_attrs *const a = call->attrs;
    if (weight.dim[1] > INT64_MAX / a->groups || weight.dim[1] * a->groups != c)
        return rw_op_error(call, RW_ERR_SHAPE, "%lld channels, the weight takes %lld in each of %lld groups",
                           (long long)c, (long long)weight.dim[1], (long long)a->groups);
    if (weight.dim[0] != oc || oc % a->groups)
        return rw_op_error(call, RW_ERR_SHAPE, "%lld filters for %lld channels in %lld groups",
                           (long long)weight.dim[0], (long long)oc, (long long)a->groups);
    return RW_OK;
}

/* The shape of a convolution of x, whose axes are those of [n, h, w, c], with a weight. */
static rw_status shape_of_result(rw_op_call *call, rw_shape x, rw_shape weight, rw_shape *ret)
{
    const struct rw_conv_attrs *const a = call->attrs;
    *ret = x;
    for (int i = 0; i < 2; i++) RW_CHECK(check_extent(call, a, i, x.dim[1 + i], weight.dim[2 + i], &ret->dim[1 + i]));
    ret->dim[3] = weight.dim[0];
    return RW_OK;
}

static rw_status check_forward(rw_op_call *call)
{
    const struct rw_conv_inputs at = rw_conv_inputs_of(call->attrs);
    rw_shape x, y;
    if (call->n_inputs <= at.other || call->n_inputs > at.third + 1)
        return rw_op_error(call, RW_ERR_ARGUMENT, "takes x, weight and at most a bias");
    RW_CHECK(check_images(call, at.third));
    RW_CHECK(shape_of_pieces(call, at.first, &x));
    const rw_shape weight = rw_in_shape(call, at.other);
    RW_CHECK(check_channels(call, x.dim[3], weight.dim[0], weight));
    RW_CHECK(shape_of_result(call, x, weight, &y));
    if (call->n_inputs > at.third) {
        RW_CHECK(rw_want_same_dtype(call, 0, at.third));
        if (call->in[at.third].layout->rank != 1 || call->in[at.third].layout->dim[0] != weight.dim[0])
            return rw_op_error(call, RW_ERR_SHAPE, "bias is not [%lld]", (long long)weight.dim[0]);
    }
    return rw_op_output(call, 0, call->in[0].dtype, y);
}

/* A dx is of a shape whose convolution has that of dy. */
static rw_status check_data(rw_op_call *call)
{
    const struct rw_conv_attrs *const a = call->attrs;
    rw_shape y;
    RW_CHECK(check_images(call, 2));
    const rw_shape dy = rw_in_shape(call, 0), weight = rw_in_shape(call, 1);
    rw_shape x = dy;
    for (int i = 0; i < 2; i++) {
        x.dim[1 + i] = a->made[i];
        if (a->made[i] < 0) return rw_op_error(call, RW_ERR_SHAPE, "a result of extent %lld", (long long)a->made[i]);
    }
    if (__builtin_mul_overflow(weight.dim[1], a->groups, &x.dim[3]))
        return rw_op_error(call, RW_ERR_SHAPE, "more channels than can be counted");
    RW_CHECK(check_channels(call, x.dim[3], dy.dim[3], weight));
    RW_CHECK(shape_of_result(call, x, weight, &y));
    if (!rw_shape_equal(y, dy))
        return rw_op_error(call, RW_ERR_SHAPE, "a result of %lld x %lld is not what the convolution makes of it",
                           (long long)a->made[0], (long long)a->made[1]);
    return rw_op_output(call, 0, call->in[0].dtype, x);
}

static rw_status check_weight(rw_op_call *call)
{
    const struct rw_conv_attrs *const a = call->attrs;
    const struct rw_conv_inputs at = rw_conv_inputs_of(a);
    rw_shape x, y;
    if (call->n_inputs <= at.other || (call->n_inputs > at.third + 1 && !a->sum_first))
        return rw_op_error(call, RW_ERR_ARGUMENT, "takes x, dy and a sum that is added to");
    RW_CHECK(check_images(call, call->n_inputs));
    RW_CHECK(shape_of_pieces(call, at.first, &x));
    const rw_shape dy = rw_in_shape(call, at.other);
    const rw_shape weight = RW_SHAPE(dy.dim[3], x.dim[3] / a->groups, a->made[0], a->made[1]);
    RW_CHECK(check_channels(call, x.dim[3], dy.dim[3], weight));
    RW_CHECK(shape_of_result(call, x, weight, &y));
    if (!rw_shape_equal(y, dy)) return rw_op_error(call, RW_ERR_SHAPE, "dy has not the convolution's shape");
    if (call->n_inputs > at.third && !rw_shape_equal(rw_in_shape(call, at.third), weight))
        return rw_op_error(call, RW_ERR_SHAPE, "the sum has not the weight's shape");
    return rw_op_output(call, 0, call->in[0].dtype, weight);
}

/* ---- costs ---- */

#define OF_KIND(name, KIND)                                                                         \
    static rw_op_cost cost_##name(const rw_op_call *call)                                           \
    {                                                                                               \
        const struct rw_conv c = rw_conv_of_call(call, KIND);                                       \
        return (rw_op_cost){ 2 * rw_conv_products(&c), rw_cost_bytes(call) };                       \
    }                                                                                               \
    static size_t workspace_##name(const rw_op_call *call)                                          \
    {                                                                                               \
        return rw_conv_workspace_cpu(call, KIND);                                                   \
    }

OF_KIND(forward, RW_CONV_FORWARD)
OF_KIND(data, RW_CONV_DATA)
OF_KIND(weight, RW_CONV_WEIGHT)

/* ---- rules ---- */

static int parts(const void *attrs, int64_t *ret_whole)
{
    const struct rw_conv_attrs *const a = attrs;
    *ret_whole = a->whole;
    return a->more ? (int)a->more + 1 : 0;
}

static rw_status grad_forward(rw_grad_call *g);
static rw_status grad_data(rw_grad_call *g);
static rw_status grad_weight(rw_grad_call *g);

RW_DECLARE_KERNELS(rw_conv2d)
RW_DECLARE_CUDA_WORKSPACE(rw_conv2d_workspace_cuda)
static const rw_op_def rw_op_conv2d = { .name = "conv2d", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                        .check = check_forward, .kernel = RW_KERNELS(rw_conv2d), .grad = grad_forward,
                                        .cost = cost_forward, .parts = parts,
                                        .workspace = RW_WORKSPACES(workspace_forward, rw_conv2d_workspace_cuda),
                                        .lowered = RW_OP_ALL_INPUTS };

/* The same op as a gradient and by its own name. */
RW_DECLARE_KERNELS(rw_conv2d_data)
RW_DECLARE_CUDA_WORKSPACE(rw_conv2d_data_workspace_cuda)
#define DATA(NAME)                                                                                                  \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = 2, .n_outputs = 1, .check = check_data,      \
                                            .kernel = RW_KERNELS(rw_conv2d_data), .grad = grad_data,                \
                                            .cost = cost_data,                                                      \
                                            .workspace = RW_WORKSPACES(workspace_data,                              \
                                                                       rw_conv2d_data_workspace_cuda),              \
                                            .lowered = RW_OP_ALL_INPUTS };
DATA(conv2d_data)
DATA(conv_transpose2d)

RW_DECLARE_KERNELS(rw_conv2d_weight)
RW_DECLARE_CUDA_WORKSPACE(rw_conv2d_weight_workspace_cuda)
static const rw_op_def rw_op_conv2d_weight = { .name = "conv2d_weight", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                               .inplace = RW_INPLACE({ 0, 2 }), .optional = RW_OP_INPUT(2),
                                               .check = check_weight, .kernel = RW_KERNELS(rw_conv2d_weight),
                                               .grad = grad_weight, .cost = cost_weight,
                                               .workspace = RW_WORKSPACES(workspace_weight,
                                                                          rw_conv2d_weight_workspace_cuda) };

/* Of x in pieces: where the library adds, and where the op adds to a sum, which comes first then. No gradients: what is
   to be differentiated again reads the whole. */
#define JOINED(NAME, ADD)                                                                                            \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = RW_OP_VARIADIC, .n_outputs = 1, ADD           \
                                            .check = check_weight, .kernel = RW_KERNELS(rw_conv2d_weight),           \
                                            .cost = cost_weight,                                                     \
                                            .workspace = RW_WORKSPACES(workspace_weight,                             \
                                                                       rw_conv2d_weight_workspace_cuda) };
#define TO_THE_SUM .inplace = RW_INPLACE({ 0, 0 }), .optional = RW_OP_INPUT(0),
JOINED(conv2d_weight_joined, )
JOINED(conv2d_weight_joined_add, TO_THE_SUM)

/* A node's own, for another one of an x that is whole. */
static struct rw_conv_attrs attrs_of_rule(const rw_grad_call *g)
{
    struct rw_conv_attrs a = *(const struct rw_conv_attrs *)rw_grad_attrs(g);
    a.made[0] = a.made[1] = a.more = a.whole = a.sum_first = 0;
    return a;
}

static rw_tensor *convolved(rw_grad_call *g, rw_tensor *x, rw_tensor *weight)
{
    const struct rw_conv_attrs a = attrs_of_rule(g);
    return rw_apply(rw_grad_tape(g), &rw_op_conv2d, (rw_tensor *const[]){ x, weight }, 2, &a, sizeof a, NULL);
}

/* The gradient of an x. */
static rw_tensor *of_data(rw_grad_call *g, rw_tensor *dy, rw_tensor *weight, const rw_tensor *x)
{
    struct rw_conv_attrs a = attrs_of_rule(g);
    for (int i = 0; i < 2; i++) a.made[i] = rw_tensor_shape(x).dim[1 + i];
    return rw_apply(rw_grad_tape(g), &rw_op_conv2d_data, (rw_tensor *const[]){ dy, weight }, 2, &a, sizeof a, NULL);
}

static struct rw_conv_attrs attrs_of_weight(const rw_grad_call *g, int i)
{
    struct rw_conv_attrs a = attrs_of_rule(g);
    for (int k = 0; k < 2; k++) a.made[k] = rw_tensor_shape(rw_grad_input(g, i)).dim[2 + k];
    return a;
}

/* The gradient of input i, a weight, is added to what is there. */
static rw_status set_weight(rw_grad_call *g, int i, rw_tensor *x, rw_tensor *dy)
{
    const struct rw_conv_attrs a = attrs_of_weight(g, i);
    rw_tensor *const in[] = { x, dy, rw_grad_addend(g, i) };
    const int n = in[2] ? 3 : 2;
    return rw_grad_set_sum(g, i, rw_apply(rw_grad_tape(g), &rw_op_conv2d_weight, in, n, &a, sizeof a, NULL));
}

/* The same where x is the inputs in front of that one. */
static rw_status set_weight_of_pieces(rw_grad_call *g, int i, rw_tensor *dy)
{
    struct rw_conv_attrs a = attrs_of_weight(g, i);
    rw_tensor *in[RW_PIECES_MOST + 2] = { rw_grad_addend(g, i) };
    int n = in[0] != NULL;
    a.more = i - 1;
    a.sum_first = n;
    for (int k = 0; k < i; k++) in[n++] = rw_grad_input(g, k);
    in[n++] = dy;
    const rw_op_def *const op = a.sum_first ? &rw_op_conv2d_weight_joined_add : &rw_op_conv2d_weight_joined;
    return rw_grad_set_sum(g, i, rw_apply(rw_grad_tape(g), op, in, n, &a, sizeof a, NULL));
}

/* The gradient of an x in pieces is that of what they make up. */
static rw_status grad_of_pieces(rw_grad_call *g, int weight, rw_tensor *dy)
{
    const struct rw_conv_attrs *const a = rw_grad_attrs(g);
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const whole = rw_grad_value(g, a->whole), *const w = rw_grad_input(g, weight);
    if (rw_grad_value_wanted(g, a->whole)) {
        rw_tensor *const dx = of_data(g, dy, w, whole);
        RW_CHECK(rw_grad_set_value(g, whole, dx ? rw_cast(t, dx, rw_tensor_dtype(whole)) : NULL));
    }
    if (!rw_grad_wanted(g, weight)) return RW_OK;
    if (!rw_grad_again(g)) return set_weight_of_pieces(g, weight, dy);
    return set_weight(g, weight, rw_cast(t, whole, rw_tensor_dtype(w)), dy);
}

static rw_status grad_of_whole(rw_grad_call *g, rw_tensor *dy)
{
    rw_tensor *const x = rw_grad_input(g, 0), *const weight = rw_grad_input(g, 1);
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set(g, 0, of_data(g, dy, weight, x)));
    return rw_grad_wanted(g, 1) ? set_weight(g, 1, x, dy) : RW_OK;
}

static rw_status grad_forward(rw_grad_call *g)
{
    const struct rw_conv_attrs *const a = rw_grad_attrs(g);
    const struct rw_conv_inputs at = rw_conv_inputs_of(a);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    RW_CHECK(a->more ? grad_of_pieces(g, at.other, dy) : grad_of_whole(g, dy));
    return rw_grad_n_inputs(g) > at.third && rw_grad_wanted(g, at.third) ? rw_grad_set_sum_to(g, at.third, dy) : RW_OK;
}

/* u has the shape of an x. */
static rw_status grad_data(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_input(g, 0), *const weight = rw_grad_input(g, 1), *const u = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set(g, 0, convolved(g, u, weight)));
    return rw_grad_wanted(g, 1) ? set_weight(g, 1, u, dy) : RW_OK;
}

/* u has the shape of a weight. */
static rw_status grad_weight(rw_grad_call *g)
{
    rw_tensor *const x = rw_grad_input(g, 0), *const dy = rw_grad_input(g, 1), *const u = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set(g, 0, of_data(g, dy, u, x)));
    if (rw_grad_wanted(g, 1)) RW_CHECK(rw_grad_set(g, 1, convolved(g, x, u)));
    return rw_grad_n_inputs(g) > 2 && rw_grad_wanted(g, 2) ? rw_grad_set(g, 2, u) : RW_OK;
}

/* ---- public functions ---- */

static struct rw_conv_attrs attrs_of(const rw_conv2d_params *p)
{
    static const rw_conv2d_params defaults;
    if (!p) p = &defaults;
    struct rw_conv_attrs a = { .groups = p->groups ? p->groups : 1 };
    for (int i = 0; i < 2; i++) {
        a.stride[i] = p->stride[i] ? p->stride[i] : 1;
        a.dilation[i] = p->dilation[i] ? p->dilation[i] : 1;
        a.padding[i] = p->padding[i];
    }
    return a;
}

/* What is told before anything is recorded: that x and weight are there, and four axes for both. */
static bool is_image(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, const char *name)
{
    if (!rw_operand_check(at, t, x, name, "x") || !rw_operand_check(at, t, weight, name, "weight")) return false;
    if (rw_tensor_shape(x).rank == 4 && rw_tensor_shape(weight).rank == 4) return true;
    rw_refuse_at(at, t, RW_ERR_SHAPE, "%s: x of rank %d and a weight of rank %d, both need four axes", name,
                 rw_tensor_shape(x).rank, rw_tensor_shape(weight).rank);
    return false;
}

rw_tensor *rw_conv2d_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                        const rw_conv2d_params *params)
{
    struct rw_conv_attrs a = attrs_of(params);
    if (!is_image(at, t, x, weight, "conv2d")) return NULL;
    const struct rw_composite c = rw_composite_begin(t, "conv2d");
    rw_tensor *in[RW_PIECES_MOST + 2];
    int n = rw_joined_pieces(rw_channels_inside_at(at, t, x), 3, in, &a.more, &a.whole);
    in[n++] = weight;
    if (bias != rw_none()) in[n++] = bias;
    rw_tensor *const y = rw_apply_at(at, t, &rw_op_conv2d, in, n, &a, sizeof a, NULL);
    return rw_composite_end(&c, y ? rw_channels_outside_at(at, t, y) : NULL);
}

/* PyTorch's extent of a transposed convolution; what cannot be counted is refused as no extent. */
static int64_t extent_of_transposed(const struct rw_conv_attrs *a, int i, int64_t in, int64_t kernel, int64_t more)
{
    int64_t steps, reach, made;
    if (__builtin_mul_overflow(in - 1, a->stride[i], &steps) ||
        __builtin_mul_overflow(kernel - 1, a->dilation[i], &reach) || __builtin_add_overflow(steps, reach, &made) ||
        __builtin_add_overflow(made, more + 1 - 2 * a->padding[i], &made))
        return -1;
    return made;
}

/* A result that is larger by a stride or more is that of an x with as many rows or columns of zeros behind it. */
static rw_tensor *with_zeros_behind(rw_site at, rw_tape *t, rw_tensor *x, const int64_t *zeros)
{
    if (!zeros[0] && !zeros[1]) return x;
    return rw_pad_at(at, t, x, (const int64_t[]){ 0, zeros[1], 0, zeros[0] }, 4, RW_PAD_CONSTANT, 0);
}

rw_tensor *rw_conv_transpose2d_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                                  const rw_conv2d_params *params)
{
    struct rw_conv_attrs a = attrs_of(params);
    int64_t zeros[2];
    if (!is_image(at, t, x, weight, "conv_transpose2d")) return NULL;
    for (int i = 0; i < 2; i++) {
        const int64_t more = params ? params->output_padding[i] : 0;
        if (more < 0 || (more >= a.stride[i] && more >= a.dilation[i])) {
            rw_refuse_at(at, t, RW_ERR_ARGUMENT, "conv_transpose2d: output padding %lld of axis %d", (long long)more,
                         i);
            return NULL;
        }
        zeros[i] = a.stride[i] > 0 ? more / a.stride[i] : 0;
        a.made[i] = extent_of_transposed(&a, i, rw_tensor_shape(x).dim[2 + i], rw_tensor_shape(weight).dim[2 + i],
                                         more);
    }
    const struct rw_composite c = rw_composite_begin(t, "conv_transpose2d");
    x = with_zeros_behind(at, t, x, zeros);
    rw_tensor *const in[] = { x ? rw_channels_inside_at(at, t, x) : NULL, weight };
    rw_tensor *y = rw_apply_at(at, t, &rw_op_conv_transpose2d, in, 2, &a, sizeof a, NULL);
    if (y && bias != rw_none())
        y = rw_operand_check(at, t, bias, "conv_transpose2d", "bias")
                ? rw_add_at(at, t, y, rw_lowered_at(at, t, bias))
                : NULL;
    return rw_composite_end(&c, y ? rw_channels_outside_at(at, t, y) : NULL);
}
