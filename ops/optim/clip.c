/* Clipping of gradients by their joint norm: checks and costs of its ops. */
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/optim/update_ops.h"

#include <rewind/composite.h>

#include <limits.h>

static rw_status want_number(rw_op_call *call, int i)
{
    RW_CHECK(rw_want_dtype(call, i, RW_F64));
    return call->in[i].layout->numel == 1 ? RW_OK : rw_unexpected(call, RW_ERR_SHAPE, i, NULL, "one element");
}

/* Workspace for this number of sums. */
static rw_status want_sums(rw_op_call *call, int i, int n)
{
    RW_CHECK(rw_want_dtype(call, i, RW_F64));
    if (rw_in_shape(call, i).rank == 1 && call->in[i].layout->numel >= n) return RW_OK;
    return rw_unexpected(call, RW_ERR_SHAPE, i, "sums", "[n] with n at least %d", n);
}

static rw_status check(rw_op_call *call)
{
    RW_CHECK(rw_expect_inputs(call, 3, INT_MAX, "limit, norm, sums and gradients"));
    RW_CHECK(want_number(call, 0));
    RW_CHECK(want_number(call, 1));
    RW_CHECK(want_sums(call, 2, call->n_inputs - 3));
    for (int i = 3; i < call->n_inputs; i++) RW_CHECK(rw_want_float(call, i));
    call->n_outputs = call->n_inputs - 1;
    for (int i = 0; i < call->n_outputs; i++) RW_CHECK(rw_op_output_like(call, i, i + 1));
    return RW_OK;
}

static rw_op_cost cost(const rw_op_call *call)
{
    double elements = 0;
    for (int i = 3; i < call->n_inputs; i++) elements += (double)call->in[i].layout->numel;
    return (rw_op_cost){ .flops = 3 * elements, .bytes = rw_op_operand_bytes(call) };
}

RW_INTERNAL_OP(clip_grad_norm, "limit norm sums gradients[]")
RW_DECLARE_KERNELS(rw_clip_grad_norm)
RW_DECLARE_CUDA_WORKSPACE(rw_clip_grad_norm_workspace_cuda)
const rw_op_def rw_op_clip_grad_norm = { .name = "clip_grad_norm", .n_inputs = RW_OP_VARIADIC,
                                         .n_outputs = RW_OP_VARIADIC,
                                         .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                                         .optional = RW_OP_ALL_INPUTS & ~RW_OP_INPUT(0) & ~RW_OP_INPUT(1) &
                                                     ~RW_OP_INPUT(2),
                                         .check = check, .kernel = RW_KERNELS(rw_clip_grad_norm), .cost = cost,
                                         .workspace = RW_WORKSPACES(NULL, rw_clip_grad_norm_workspace_cuda) };

/* ---- gradients one by one ---- */

static rw_status check_squares(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    return rw_op_output(call, 0, RW_F64, RW_SCALAR);
}

static rw_status check_factor(rw_op_call *call)
{
    RW_CHECK(rw_expect_inputs(call, 1, INT_MAX, "limit and sums"));
    for (int i = 0; i < call->n_inputs; i++) RW_CHECK(want_number(call, i));
    RW_CHECK(rw_op_output(call, 0, RW_F64, RW_SCALAR));
    return rw_op_output(call, 1, RW_F64, RW_SCALAR);
}

static rw_status check_note(rw_op_call *call)
{
    const int norm = call->n_inputs - 2;
    RW_CHECK(rw_expect_inputs(call, 3, INT_MAX, "the norm's value, sums of gradients, norm and sums"));
    for (int i = 0; i <= norm; i++) RW_CHECK(want_number(call, i));
    RW_CHECK(want_sums(call, norm + 1, norm - 1));
    RW_CHECK(rw_op_output_like(call, 0, norm));
    return rw_op_output_like(call, 1, norm + 1);
}

static rw_status check_scale(rw_op_call *call)
{
    RW_CHECK(want_number(call, 0));
    RW_CHECK(rw_want_float(call, 1));
    return rw_op_output_like(call, 0, 1);
}

static rw_op_cost cost_of_one(const rw_op_call *call)
{
    const int g = call->n_inputs - 1;
    return (rw_op_cost){ .flops = 2 * (double)call->in[g].layout->numel, .bytes = rw_op_operand_bytes(call) };
}

RW_INTERNAL_OP(clip_factor, "limit sums[]")
RW_INTERNAL_OP(clip_scale, "factor gradient")
RW_INTERNAL_OP(grad_squares, "gradient")
RW_DECLARE_KERNELS(rw_grad_squares)
RW_DECLARE_KERNELS(rw_clip_factor)
RW_DECLARE_KERNELS(rw_clip_scale)
RW_DECLARE_KERNELS(rw_clip_note)
RW_DECLARE_CUDA_WORKSPACE(rw_grad_squares_workspace_cuda)
RW_DECLARE_CUDA_WORKSPACE(rw_clip_factor_workspace_cuda)
const rw_op_def rw_op_grad_squares = { .name = "grad_squares", .n_inputs = 1, .n_outputs = 1,
                                       .flags = RW_OP_NO_GRADIENT, .check = check_squares,
                                       .kernel = RW_KERNELS(rw_grad_squares), .cost = cost_of_one,
                                       .workspace = RW_WORKSPACES(NULL, rw_grad_squares_workspace_cuda) };
const rw_op_def rw_op_clip_factor = { .name = "clip_factor", .n_inputs = RW_OP_VARIADIC, .n_outputs = 2,
                                      .flags = RW_OP_NO_GRADIENT, .check = check_factor,
                                      .kernel = RW_KERNELS(rw_clip_factor),
                                      .workspace = RW_WORKSPACES(NULL, rw_clip_factor_workspace_cuda) };
const rw_op_def rw_op_clip_scale = { .name = "clip_scale", .n_inputs = 2, .n_outputs = 1, .flags = RW_OP_NO_GRADIENT,
                                     .inplace = RW_INPLACE({ 0, 1 }), .check = check_scale,
                                     .kernel = RW_KERNELS(rw_clip_scale), .cost = cost_of_one };
const rw_op_def rw_op_clip_note = { .name = "clip_note", .n_inputs = RW_OP_VARIADIC, .n_outputs = 2,
                                    .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT, .check = check_note,
                                    .kernel = RW_KERNELS(rw_clip_note) };
