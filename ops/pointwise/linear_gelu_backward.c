/*
 * The backward op of linear_gelu. In one pass it computes dz, which is gelu's slope (tanh form) times dy, and the sums
 * of its columns, which are the gradient of the bias, added to the bias's sum so far. The bytes equal those of
 * gelu_tanh_backward, sum_to and accumulate.
 */
#include "ops/common/declare_kernels.h"
#include "ops/pointwise/pointwise.h"
#include "ops/reduce/reduce.h"
#include "ops/common/util.h"

static rw_status check(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    const rw_shape z = rw_in_shape(call, 0);
    RW_CHECK(rw_expect_inputs(call, 2, 3, "x, dy and optionally sum"));
    RW_CHECK(rw_expect_shape_of(call, 1, NULL, 0, NULL));
    if (call->n_inputs > 2) RW_CHECK(rw_want_sum_of(call, 2, 0));
    RW_CHECK(rw_op_output_like(call, 0, 0));
    return rw_op_output(call, 1, call->in[call->n_inputs > 2 ? 2 : 0].dtype, RW_SHAPE(z.dim[z.rank - 1]));
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 9);
}

static size_t workspace_cpu(const rw_op_call *call)
{
    const rw_layout *const z = call->in[0].layout;
    return rw_reduce_sum_workspace_cpu(z, rw_reduce_rows(z->rank));
}

RW_INTERNAL_OP(gelu_tanh_backward_sum, "x dy sum")
RW_DECLARE_KERNELS(rw_gelu_tanh_backward_sum)
RW_DECLARE_CUDA_WORKSPACE(rw_gelu_tanh_backward_sum_workspace_cuda)
static const rw_op_def rw_op_gelu_tanh_backward_sum = { .name = "gelu_tanh_backward_sum",
                                                        .n_inputs = RW_OP_VARIADIC,
                                                        .n_outputs = 2,
                                                        .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }, { 1, 2 }),
                                                        .optional = RW_OP_INPUT(2),
                                                        .check = check,
                                                        .kernel = RW_KERNELS(rw_gelu_tanh_backward_sum),
                                                        .cost = cost,
                                                        .workspace = RW_WORKSPACES(
                                                            workspace_cpu, rw_gelu_tanh_backward_sum_workspace_cuda) };

rw_tensor *rw_gelu_tanh_slope_sum(rw_grad_call *g, int bias, rw_tensor *z, rw_tensor *dy, rw_tensor **ret_sum)
{
    const rw_shape s = rw_tensor_shape(z);
    const int64_t columns = s.rank ? s.dim[s.rank - 1] : 1;
    *ret_sum = NULL;
    if (rw_grad_is_differentiable(g) || columns < 2 || rw_shape_numel(s) < 2 * columns)
        return rw_gelu_tanh_slope(g, z, dy);
    rw_tensor *const in[] = { z, dy, rw_grad_wide_addend(g, bias) };
    rw_tensor *out[2] = { NULL, NULL };
    rw_apply(rw_grad_tape(g), &rw_op_gelu_tanh_backward_sum, in, in[2] ? 3 : 2, NULL, 0, out);
    *ret_sum = out[1];
    return out[0];
}
