/*
 * Loss scaling: checks of the ops that unscale gradients together or one by one, and that update the scale at the end
 * of a step.
 */
#include "ops/optim/scaler.h"

#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <rewind/composite.h>

#include <limits.h>

static rw_status want_numbers(rw_op_call *call, int i, rw_dtype dtype, int64_t n)
{
    RW_CHECK(rw_want_dtype(call, i, dtype));
    if (call->in[i].layout->numel == n) return RW_OK;
    return rw_unexpected(call, RW_ERR_SHAPE, i, NULL, "%lld elements", (long long)n);
}

static rw_status check_unscale(rw_op_call *call)
{
    RW_CHECK(rw_expect_inputs(call, 2, INT_MAX, "scaler, found and gradients"));
    RW_CHECK(want_numbers(call, 0, RW_F32, RW_SCALER_NUMBERS));
    RW_CHECK(want_numbers(call, 1, RW_I32, 1));
    for (int i = 2; i < call->n_inputs; i++) RW_CHECK(rw_want_float(call, i));
    call->n_outputs = call->n_inputs - 1;
    for (int i = 0; i < call->n_outputs; i++) RW_CHECK(rw_op_output_like(call, i, i + 1));
    return RW_OK;
}

static rw_op_cost cost_unscale(const rw_op_call *call)
{
    double elements = 0;
    for (int i = 2; i < call->n_inputs; i++) elements += (double)call->in[i].layout->numel;
    return (rw_op_cost){ .flops = 2 * elements, .bytes = rw_op_operand_bytes(call) };
}

RW_INTERNAL_OP(unscale_grads, "scaler found gradients[]")
RW_DECLARE_KERNELS(rw_unscale_grads)
const rw_op_def rw_op_unscale_grads = { .name = "unscale_grads", .n_inputs = RW_OP_VARIADIC,
                                        .n_outputs = RW_OP_VARIADIC,
                                        .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                                        .optional = RW_OP_ALL_INPUTS & ~RW_OP_INPUT(0) & ~RW_OP_INPUT(1),
                                        .check = check_unscale, .kernel = RW_KERNELS(rw_unscale_grads),
                                        .cost = cost_unscale };

/* ---- gradients one by one ---- */

static rw_status check_one(rw_op_call *call)
{
    RW_CHECK(want_numbers(call, 0, RW_F32, RW_SCALER_NUMBERS));
    RW_CHECK(rw_want_float(call, 1));
    RW_CHECK(rw_op_output_like(call, 0, 1));
    return rw_op_output(call, 1, RW_I32, RW_SCALAR);
}

static rw_op_cost cost_one(const rw_op_call *call)
{
    return (rw_op_cost){ .flops = 2 * (double)call->in[1].layout->numel, .bytes = rw_op_operand_bytes(call) };
}

RW_INTERNAL_OP(unscale_grad, "scaler gradient")
RW_DECLARE_KERNELS(rw_unscale_grad)
const rw_op_def rw_op_unscale_grad = { .name = "unscale_grad", .n_inputs = 2, .n_outputs = 2,
                                       .flags = RW_OP_NO_GRADIENT, .inplace = RW_INPLACE({ 0, 1 }),
                                       .check = check_one, .kernel = RW_KERNELS(rw_unscale_grad), .cost = cost_one };

static rw_status check_any(rw_op_call *call)
{
    RW_CHECK(rw_expect_inputs(call, 1, INT_MAX, "the founds of gradients, then found"));
    for (int i = 0; i < call->n_inputs; i++) RW_CHECK(want_numbers(call, i, RW_I32, 1));
    return rw_op_output_like(call, 0, call->n_inputs - 1);
}

RW_INTERNAL_OP(any_found, "found[]")
RW_DECLARE_KERNELS(rw_any_found)
const rw_op_def rw_op_any_found = { .name = "any_found", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                    .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT, .check = check_any,
                                    .kernel = RW_KERNELS(rw_any_found) };

/* ---- the end of a step ---- */

static rw_status check_update(rw_op_call *call)
{
    RW_CHECK(want_numbers(call, 0, RW_I32, 1));
    RW_CHECK(want_numbers(call, 1, RW_F32, RW_SCALER_NUMBERS));
    return rw_op_output_like(call, 0, 1);
}

RW_INTERNAL_OP(scaler_update, "found scaler")
RW_DECLARE_KERNELS(rw_scaler_update)
const rw_op_def rw_op_scaler_update = { .name = "scaler_update", .n_inputs = 2, .n_outputs = 1,
                                        .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                                        .check = check_update, .kernel = RW_KERNELS(rw_scaler_update) };

static rw_status check_rows(rw_op_call *call)
{
    const int rows = call->n_inputs - 3;
    RW_CHECK(rw_expect_inputs(call, 3, 4, "optionally found, then rows, pending and due"));
    for (int i = 0; i < call->n_inputs; i++) RW_CHECK(rw_want_dtype(call, i, RW_I32));
    const rw_shape uploaded = rw_in_shape(call, rows);
    const int64_t n = uploaded.rank ? uploaded.dim[0] : 0;
    RW_CHECK(rw_expect_shape(call, rows, "rows", RW_SHAPE(n, RW_UPDATE_ROW_WORDS)));
    RW_CHECK(rw_expect_shape_of(call, rows + 2, "due", rows, "rows"));
    RW_CHECK(rw_expect_shape(call, rows + 1, "pending", RW_SHAPE(n, 2)));
    if (rows) RW_CHECK(want_numbers(call, 0, RW_I32, 1));
    RW_CHECK(rw_op_output_like(call, 0, rows + 1));
    return rw_op_output_like(call, 1, rows + 2);
}

RW_DECLARE_KERNELS(rw_update_rows)
const rw_op_def rw_op_update_rows = { .name = "update_rows", .n_inputs = RW_OP_VARIADIC, .n_outputs = 2,
                                      .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT, .check = check_rows,
                                      .kernel = RW_KERNELS(rw_update_rows) };
