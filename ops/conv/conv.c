/*
 * conv2d and conv_transpose2d, and the products that are their gradients (conv.h defines these): checks, gradient rules
 * and public functions.
 */
#include "base/public_entry.h"
#include "ops/common/channels_last.h"
#include "ops/common/declare_kernels.h"
#include "ops/conv/conv.h"
#include "ops/reduce/reduce.h"
#include "ops/shape/virtual_concat.h"

#include <rewind/composite.h>
#include <rewind/conv.h>
#include <rewind/fusion.h>
#include <rewind/precision.h>
#include <rewind/select.h>

/* ---- checks ---- */

static const char *const STRIDE[] = { "stride[0]", "stride[1]" }, *const DILATION[] = { "dilation[0]", "dilation[1]" },
                  *const PADDING[] = { "padding[0]", "padding[1]" };

static rw_status check_numbers(rw_op_call *call, const struct rw_conv_attrs *a)
{
    if (a->groups < 1) return rw_unexpected_int(call, RW_ERR_ARGUMENT, "groups", a->groups, "1 or more");
    for (int i = 0; i < 2; i++) {
        if (a->stride[i] < 1) return rw_unexpected_int(call, RW_ERR_ARGUMENT, STRIDE[i], a->stride[i], "1 or more");
        if (a->dilation[i] < 1)
            return rw_unexpected_int(call, RW_ERR_ARGUMENT, DILATION[i], a->dilation[i], "1 or more");
        if (a->padding[i] < 0) return rw_unexpected_int(call, RW_ERR_ARGUMENT, PADDING[i], a->padding[i], "0 or more");
    }
    return RW_OK;
}

/* Checks the parameters along one axis of a convolution and returns the result's extent. */
static rw_status check_extent(rw_op_call *call, const struct rw_conv_attrs *a, int i, int64_t in, int64_t kernel,
                              int64_t *ret)
{
    int64_t reach, padded;
    if (kernel < 1) return rw_unexpected_int(call, RW_ERR_SHAPE, "weight", kernel, "a kernel extent of 1 or more");
    if (__builtin_mul_overflow(kernel - 1, a->dilation[i], &reach) ||
        __builtin_add_overflow(in, 2 * a->padding[i], &padded))
        return rw_op_error(call, RW_ERR_SHAPE, "x: expected fewer than 2^63 elements along a padded axis, got extent "
                           "%lld, padding %lld and dilation %lld", (long long)in, (long long)a->padding[i],
                           (long long)a->dilation[i]);
    if (padded - 1 < reach)
        return rw_unexpected_int(call, RW_ERR_SHAPE, "x", padded,
                                 "a padded extent of at least %lld, that of the dilated kernel", (long long)reach + 1);
    *ret = (padded - 1 - reach) / a->stride[i] + 1;
    return RW_OK;
}

static rw_status check_images(rw_op_call *call, int n)
{
    RW_CHECK(rw_want_float(call, 0));
    for (int i = 0; i < n; i++) {
        RW_CHECK(rw_want_same_dtype(call, 0, i));
        RW_CHECK(rw_expect_rank(call, i, NULL, 4, "four axes"));
    }
    return check_numbers(call, call->attrs);
}

/* The shape of an x whose first concatenation input is input `first`; these inputs differ only in their channels. */
static rw_status shape_of_pieces(rw_op_call *call, int first, rw_shape *ret)
{
    const struct rw_conv_attrs *const a = call->attrs;
    *ret = rw_in_shape(call, first);
    for (int i = first + 1; i <= first + a->more; i++) {
        const rw_shape piece = rw_in_shape(call, i);
        for (int k = 0; k < 3; k++)
            if (piece.dim[k] != ret->dim[k])
                return rw_unexpected(call, RW_ERR_SHAPE, i, "x", "the extents of the first concatenation input but for "
                                     "channels, [%lld, %lld, %lld, any]", (long long)ret->dim[0],
                                     (long long)ret->dim[1], (long long)ret->dim[2]);
        if (__builtin_add_overflow(ret->dim[3], piece.dim[3], &ret->dim[3]))
            return rw_unexpected(call, RW_ERR_SHAPE, i, "x", "fewer than 2^63 channels over all concatenation inputs");
    }
    return RW_OK;
}

/* Checks the channels of x [n, h, w, c] and y [n, oh, ow, oc] against a weight [oc, c / groups, kh, kw]. */
static rw_status check_channels(rw_op_call *call, int64_t c, int64_t oc, rw_shape weight)
{
    const struct rw_conv_attrs *const a = call->attrs;
    const int64_t want = weight.dim[1] > INT64_MAX / a->groups ? INT64_MAX : weight.dim[1] * a->groups;
    if (want != c)
        return rw_unexpected_int(call, RW_ERR_SHAPE, "x", c, "%lld channels, as weight has %lld in each of %lld groups",
                                 (long long)want, (long long)weight.dim[1], (long long)a->groups);
    if (weight.dim[0] != oc)
        return rw_unexpected_int(call, RW_ERR_SHAPE, "weight", weight.dim[0], "extent %lld at axis 0", (long long)oc);
    if (oc % a->groups)
        return rw_unexpected_int(call, RW_ERR_SHAPE, "weight", oc, "an extent at axis 0 that %lld groups divide",
                                 (long long)a->groups);
    return RW_OK;
}

/* The shape of a convolution of x, with axes [n, h, w, c], and a weight. */
static rw_status shape_of_result(rw_op_call *call, rw_shape x, rw_shape weight, rw_shape *ret)
{
    const struct rw_conv_attrs *const a = call->attrs;
    *ret = x;
    for (int i = 0; i < 2; i++) RW_CHECK(check_extent(call, a, i, x.dim[1 + i], weight.dim[2 + i], &ret->dim[1 + i]));
    ret->dim[3] = weight.dim[0];
    return RW_OK;
}

/* Checks conv2d: x or its concatenation inputs, weight and an optional bias. */
static rw_status check_forward(rw_op_call *call)
{
    const struct rw_conv_inputs at = rw_conv_inputs_of(call->attrs);
    rw_shape x, y;
    RW_CHECK(rw_expect_inputs(call, at.other + 1, at.third + 1, "x, weight and optionally bias"));
    RW_CHECK(check_images(call, at.third));
    RW_CHECK(shape_of_pieces(call, at.first, &x));
    const rw_shape weight = rw_in_shape(call, at.other);
    RW_CHECK(check_channels(call, x.dim[3], weight.dim[0], weight));
    RW_CHECK(shape_of_result(call, x, weight, &y));
    if (call->n_inputs > at.third) {
        RW_CHECK(rw_expect_dtype_of(call, at.third, "bias", 0, "x"));
        RW_CHECK(rw_expect_shape(call, at.third, "bias", RW_SHAPE(weight.dim[0])));
    }
    return rw_op_output(call, 0, call->in[0].dtype, y);
}

/* Checks conv2d_data: the convolution of a dx of that shape has the shape of dy. */
static rw_status check_data(rw_op_call *call)
{
    const struct rw_conv_attrs *const a = call->attrs;
    rw_shape y;
    RW_CHECK(check_images(call, 2));
    const rw_shape dy = rw_in_shape(call, 0), weight = rw_in_shape(call, 1);
    rw_shape x = dy;
    for (int i = 0; i < 2; i++) {
        x.dim[1 + i] = a->result_extent[i];
        if (a->result_extent[i] < 0)
            return rw_unexpected_int(call, RW_ERR_SHAPE, "result", a->result_extent[i], "an extent of 0 or more");
    }
    if (__builtin_mul_overflow(weight.dim[1], a->groups, &x.dim[3]))
        return rw_unexpected_int(call, RW_ERR_SHAPE, "weight", weight.dim[1],
                                 "fewer than 2^63 channels over %lld groups", (long long)a->groups);
    RW_CHECK(check_channels(call, x.dim[3], dy.dim[3], weight));
    RW_CHECK(shape_of_result(call, x, weight, &y));
    RW_CHECK(rw_expect_shape(call, 0, NULL, y));
    return rw_op_output(call, 0, call->in[0].dtype, x);
}

/* Checks conv2d_weight: x or its concatenation inputs, dy and an optional addend. */
static rw_status check_weight(rw_op_call *call)
{
    const struct rw_conv_attrs *const a = call->attrs;
    const struct rw_conv_inputs at = rw_conv_inputs_of(a);
    rw_shape x, y;
    RW_CHECK(rw_expect_inputs(call, at.other + 1, a->sum_first ? call->n_inputs : at.third + 1,
                              "x, dy and optionally sum"));
    RW_CHECK(check_images(call, call->n_inputs));
    RW_CHECK(shape_of_pieces(call, at.first, &x));
    const rw_shape dy = rw_in_shape(call, at.other);
    const rw_shape weight = RW_SHAPE(dy.dim[3], x.dim[3] / a->groups, a->result_extent[0], a->result_extent[1]);
    RW_CHECK(check_channels(call, x.dim[3], dy.dim[3], weight));
    RW_CHECK(shape_of_result(call, x, weight, &y));
    RW_CHECK(rw_expect_shape(call, at.other, "dy", y));
    if (call->n_inputs > at.third) RW_CHECK(rw_expect_shape(call, at.third, "sum", weight));
    return rw_op_output(call, 0, call->in[0].dtype, weight);
}

/* ---- costs ---- */

#define OF_KIND(name, KIND)                                                                         \
    static rw_op_cost cost_##name(const rw_op_call *call)                                           \
    {                                                                                               \
        const struct rw_conv c = rw_conv_of_call(call, KIND);                                       \
        return rw_cost_product(call, 2 * rw_conv_products(&c));                                    \
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

RW_BUILTIN_OP(conv2d, "x weight bias", "F.conv2d")
RW_DECLARE_KERNELS(rw_conv2d)
RW_DECLARE_CUDA_WORKSPACE(rw_conv2d_workspace_cuda)
static const rw_op_def rw_op_conv2d = { .name = "conv2d", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                        .check = check_forward, .kernel = RW_KERNELS(rw_conv2d), .grad = grad_forward,
                                        .cost = cost_forward, .parts = parts,
                                        .workspace = RW_WORKSPACES(workspace_forward, rw_conv2d_workspace_cuda),
                                        .cast_low = RW_OP_ALL_INPUTS };

RW_BUILTIN_OP(conv_transpose2d, "x weight", "F.conv_transpose2d")
RW_INTERNAL_OP(conv2d_data, "dy weight")
/* The same op under two names: as a gradient, and as conv_transpose2d. */
RW_DECLARE_KERNELS(rw_conv2d_data)
RW_DECLARE_CUDA_WORKSPACE(rw_conv2d_data_workspace_cuda)
#define DATA(NAME)                                                                                                  \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = 2, .n_outputs = 1, .check = check_data,      \
                                            .kernel = RW_KERNELS(rw_conv2d_data), .grad = grad_data,                \
                                            .cost = cost_data,                                                      \
                                            .workspace = RW_WORKSPACES(workspace_data,                              \
                                                                       rw_conv2d_data_workspace_cuda),              \
                                            .cast_low = RW_OP_ALL_INPUTS };
DATA(conv2d_data)
DATA(conv_transpose2d)

RW_INTERNAL_OP(conv2d_weight, "x dy sum")
RW_DECLARE_KERNELS(rw_conv2d_weight)
RW_DECLARE_CUDA_WORKSPACE(rw_conv2d_weight_workspace_cuda)
static const rw_op_def rw_op_conv2d_weight = { .name = "conv2d_weight", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                               .inplace = RW_INPLACE({ 0, 2 }), .optional = RW_OP_INPUT(2),
                                               .check = check_weight, .kernel = RW_KERNELS(rw_conv2d_weight),
                                               .grad = grad_weight, .cost = cost_weight,
                                               .workspace = RW_WORKSPACES(workspace_weight,
                                                                          rw_conv2d_weight_workspace_cuda) };

/* Ops on a virtually concatenated x. If a sum is added, it is input 0. They have no gradient rules: an op that must be
   differentiable reads the whole x. */
#define JOINED(NAME, ADD)                                                                                            \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = RW_OP_VARIADIC, .n_outputs = 1, ADD           \
                                            .check = check_weight, .kernel = RW_KERNELS(rw_conv2d_weight),           \
                                            .cost = cost_weight,                                                     \
                                            .workspace = RW_WORKSPACES(workspace_weight,                             \
                                                                       rw_conv2d_weight_workspace_cuda) };
#define TO_THE_SUM .inplace = RW_INPLACE({ 0, 0 }), .optional = RW_OP_INPUT(0),
JOINED(conv2d_weight_joined, )
JOINED(conv2d_weight_joined_add, TO_THE_SUM)

/* The attributes of a node, for another op on a whole x. */
static struct rw_conv_attrs attrs_of_rule(const rw_grad_call *g)
{
    struct rw_conv_attrs a = *(const struct rw_conv_attrs *)rw_grad_attrs(g);
    a.result_extent[0] = a.result_extent[1] = a.more = a.whole = a.sum_first = 0;
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
    for (int i = 0; i < 2; i++) a.result_extent[i] = rw_tensor_shape(x).dim[1 + i];
    return rw_apply(rw_grad_tape(g), &rw_op_conv2d_data, (rw_tensor *const[]){ dy, weight }, 2, &a, sizeof a, NULL);
}

static struct rw_conv_attrs attrs_of_weight(const rw_grad_call *g, int i)
{
    struct rw_conv_attrs a = attrs_of_rule(g);
    for (int k = 0; k < 2; k++) a.result_extent[k] = rw_tensor_shape(rw_grad_input(g, i)).dim[2 + k];
    return a;
}

/* Sets the gradient of input i, a weight, added to the sum so far. */
static rw_status set_weight(rw_grad_call *g, int i, rw_tensor *x, rw_tensor *dy)
{
    const struct rw_conv_attrs a = attrs_of_weight(g, i);
    rw_tensor *const in[] = { x, dy, rw_grad_accumulator(g, i) };
    const int n = in[2] ? 3 : 2;
    return rw_grad_set_sum(g, i, rw_apply(rw_grad_tape(g), &rw_op_conv2d_weight, in, n, &a, sizeof a, NULL));
}

/* The same for a virtually concatenated x, whose inputs come before the weight. */
static rw_status set_weight_of_pieces(rw_grad_call *g, int i, rw_tensor *dy)
{
    struct rw_conv_attrs a = attrs_of_weight(g, i);
    rw_tensor *in[RW_PIECES_MAX + 2] = { rw_grad_accumulator(g, i) };
    int n = in[0] != NULL;
    a.more = i - 1;
    a.sum_first = n;
    for (int k = 0; k < i; k++) in[n++] = rw_grad_input(g, k);
    in[n++] = dy;
    const rw_op_def *const op = a.sum_first ? &rw_op_conv2d_weight_joined_add : &rw_op_conv2d_weight_joined;
    return rw_grad_set_sum(g, i, rw_apply(rw_grad_tape(g), op, in, n, &a, sizeof a, NULL));
}

/* The gradient of a virtually concatenated x is the gradient of the concatenation. */
static rw_status grad_of_pieces(rw_grad_call *g, int weight, rw_tensor *dy)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const whole = rw_grad_whole(g), *const w = rw_grad_input(g, weight);
    if (rw_grad_whole_wanted(g)) {
        rw_tensor *const dx = of_data(g, dy, w, whole);
        RW_CHECK(rw_grad_set_whole(g, dx ? rw_cast(t, dx, rw_tensor_dtype(whole)) : NULL));
    }
    if (!rw_grad_wanted(g, weight)) return RW_OK;
    if (!rw_grad_is_differentiable(g)) return set_weight_of_pieces(g, weight, dy);
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

/* The rule of conv2d_data; u, the gradient of its dx, has the shape of x. */
static rw_status grad_data(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_input(g, 0), *const weight = rw_grad_input(g, 1), *const u = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set(g, 0, convolved(g, u, weight)));
    return rw_grad_wanted(g, 1) ? set_weight(g, 1, u, dy) : RW_OK;
}

/* The rule of conv2d_weight; u, the gradient of its dweight, has the shape of the weight. */
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

/* attrs_of() does not have the output padding, which rw_conv2d() takes but does not use. */
static bool is_padding(rw_site at, rw_tape *t, const char *name, const rw_conv2d_params *p)
{
    for (int i = 0; p && i < 2; i++) {
        if (p->output_padding[i] >= 0) continue;
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(output_padding[%d]): expected 0 or more, got %d", name, i,
                     p->output_padding[i]);
        return false;
    }
    return true;
}

/* Checked before anything is recorded: x and weight exist and have four axes. */
static bool is_image(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, const char *name)
{
    if (!rw_operand_check(at, t, x, name, "x") || !rw_operand_check(at, t, weight, name, "weight")) return false;
    if (rw_tensor_shape(x).rank != 4) return rw_refuse_operand_at(at, t, RW_ERR_SHAPE, name, "x", x, "[n, c, h, w]");
    if (rw_tensor_shape(weight).rank == 4) return true;
    return rw_refuse_operand_at(at, t, RW_ERR_SHAPE, name, "weight", weight, "four axes, the last two [kh, kw]");
}

rw_tensor *rw_conv2d_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                        const rw_conv2d_params *params)
{
    RW_ENTER_OP(t);
    struct rw_conv_attrs a = attrs_of(params);
    if (!is_image(at, t, x, weight, "conv2d") || !is_padding(at, t, "conv2d", params)) return NULL;
    const rw_composite c = rw_composite_begin(t, "conv2d");
    rw_tensor *in[RW_PIECES_MAX + 2];
    int n = rw_virtual_concat_inputs(rw_channels_inside_at(at, t, x), 3, in, &a.more, &a.whole);
    in[n++] = weight;
    if (bias != rw_none()) in[n++] = bias;
    rw_tensor *const y = rw_apply_at(at, t, &rw_op_conv2d, in, n, &a, sizeof a, NULL);
    return rw_composite_end(&c, y ? rw_channels_outside_at(at, t, y) : NULL);
}

/* PyTorch's extent of a transposed convolution; an extent that overflows is reported as an invalid extent. */
static int64_t extent_of_transposed(const struct rw_conv_attrs *a, int i, int64_t in, int64_t kernel, int64_t more)
{
    int64_t steps, reach, result_extent;
    if (__builtin_mul_overflow(in - 1, a->stride[i], &steps) ||
        __builtin_mul_overflow(kernel - 1, a->dilation[i], &reach) || __builtin_add_overflow(steps, reach,
                                                                                             &result_extent) ||
        __builtin_add_overflow(result_extent, more + 1 - 2 * a->padding[i], &result_extent))
        return -1;
    return result_extent;
}

/* A result that is larger by a stride or more equals that of an x with a corresponding number of zero rows or columns
   appended. */
static rw_tensor *pad_at_end(rw_site at, rw_tape *t, rw_tensor *x, const int64_t *zeros)
{
    if (!zeros[0] && !zeros[1]) return x;
    return rw_pad_at(at, t, x, (const int64_t[]){ 0, zeros[1], 0, zeros[0] }, 4, RW_PAD_CONSTANT, 0);
}

/* Records a transposed convolution as conv2d_data; see the public header for the contract. */
rw_tensor *rw_conv_transpose2d_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                                  const rw_conv2d_params *params)
{
    RW_ENTER_OP(t);
    struct rw_conv_attrs a = attrs_of(params);
    int64_t zeros[2];
    if (!is_image(at, t, x, weight, "conv_transpose2d")) return NULL;
    for (int i = 0; i < 2; i++) {
        const int64_t more = params ? params->output_padding[i] : 0;
        if (more < 0 || (more >= a.stride[i] && more >= a.dilation[i])) {
            rw_refuse_at(at, t, RW_ERR_ARGUMENT, "conv_transpose2d(output_padding[%d]): expected 0 or more, less than "
                         "stride or dilation, got %lld", i, (long long)more);
            return NULL;
        }
        zeros[i] = a.stride[i] > 0 ? more / a.stride[i] : 0;
        a.result_extent[i] = extent_of_transposed(&a, i, rw_tensor_shape(x).dim[2 + i],
                                                  rw_tensor_shape(weight).dim[2 + i],
                                                  more);
    }
    const rw_composite c = rw_composite_begin(t, "conv_transpose2d");
    x = pad_at_end(at, t, x, zeros);
    rw_tensor *const in[] = { x ? rw_channels_inside_at(at, t, x) : NULL, weight };
    rw_tensor *y = rw_apply_at(at, t, &rw_op_conv_transpose2d, in, 2, &a, sizeof a, NULL);
    if (y && bias != rw_none())
        y = rw_operand_check(at, t, bias, "conv_transpose2d", "bias")
                ? rw_add_at(at, t, y, rw_recipe_cast_low_at(at, t, bias))
                : NULL;
    return rw_composite_end(&c, y ? rw_channels_outside_at(at, t, y) : NULL);
}
