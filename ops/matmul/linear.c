/* linear: x weight^T + bias, the bias added before the one rounding. */
#include "ops/kernels.h"
#include "ops/matmul/gemm.h"
#include "ops/matmul/matmul.h"
#include "ops/util.h"

static rw_status check(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    for (int i = 1; i < call->n_inputs; i++) RW_CHECK(rw_want_same_dtype(call, 0, i));
    const rw_shape x = rw_in_shape(call, 0), w = rw_in_shape(call, 1);
    if (call->n_inputs < 2 || call->n_inputs > 3) return rw_op_error(call, RW_ERR_ARGUMENT, "takes x, weight and at most a bias");
    if (x.rank < 1 || w.rank != 2) return rw_op_error(call, RW_ERR_SHAPE, "x needs an axis and weight two: [out, in]");
    if (x.dim[x.rank - 1] != w.dim[1])
        return rw_op_error(call, RW_ERR_SHAPE, "x has %lld features, weight [out, in] takes %lld", (long long)x.dim[x.rank - 1],
                           (long long)w.dim[1]);
    if (call->n_inputs == 3) {
        const rw_shape bias = rw_in_shape(call, 2);
        if (bias.rank != 1 || bias.dim[0] != w.dim[0])
            return rw_op_error(call, RW_ERR_SHAPE, "bias is not [%lld]", (long long)w.dim[0]);
    }
    rw_shape y = x;
    y.dim[y.rank - 1] = w.dim[0];
    return rw_op_output(call, 0, call->in[0].dtype, y);
}

static rw_op_cost cost(const rw_op_call *call)
{
    return (rw_op_cost){ 2.0 * (double)call->out[0].layout->numel * (double)call->in[1].layout->dim[1], rw_cost_bytes(call) };
}

static size_t workspace(const rw_op_call *call, rw_device device)
{
    struct gemm g;
    rw_gemm_of_linear(&g, call->in[0].layout, call->in[1].layout, call->n_inputs > 2, call->in[0].dtype);
    return rw_gemm_workspace(call, call->in, device, &g);
}

static rw_status grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) {
        rw_tensor *const x = rw_grad_input(g, 0), *const w = rw_grad_input(g, 1);
        rw_tensor *const dx = rw_matmul(t, rw_matrix_of_rows(t, dy), w);
        RW_CHECK(rw_grad_set(g, 0, dx && rw_tensor_shape(x).rank != 2 ? rw_reshape(t, dx, rw_tensor_shape(x)) : dx));
    }
    if (rw_grad_wanted(g, 1)) {
        rw_tensor *const rows = rw_matrix_of_rows(t, dy);
        RW_CHECK(rw_grad_set(g, 1, rw_matmul(t, rows ? rw_transpose(t, rows, 0, 1) : NULL, rw_matrix_of_rows(t, rw_grad_input(g, 0)))));
    }
    if (rw_grad_n_inputs(g) > 2 && rw_grad_wanted(g, 2)) {
        const rw_shape y = rw_tensor_shape(dy);
        RW_CHECK(rw_grad_set(g, 2, y.rank == 1 ? dy : rw_sum_to(t, dy, RW_SHAPE(y.dim[y.rank - 1]))));
    }
    return RW_OK;
}

RW_DECLARE_KERNELS(rw_linear)
const rw_op_def rw_op_linear = { .name = "linear", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1, .strided = RW_OP_INPUT(0) | RW_OP_INPUT(1),
                                 .check = check, .kernel = RW_KERNELS(rw_linear), .grad = grad, .cost = cost,
                                 .workspace = workspace };

rw_tensor *rw_linear_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias)
{
    rw_tensor *const in[] = { x, weight, bias };
    return rw_apply_at(at, t, &rw_op_linear, in, bias == rw_none() ? 2 : 3, NULL, 0, NULL);
}
