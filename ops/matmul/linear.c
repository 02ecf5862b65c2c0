/* linear: x weight^T + bias, the bias added before the one rounding; linear_gelu: its gelu, and it. */
#include "ops/kernels.h"
#include "ops/matmul/gemm.h"
#include "ops/matmul/matmul.h"
#include "ops/pointwise/pointwise.h"
#include "ops/util.h"

/* Of one output, or of two that are alike: the activation and what it is taken of. */
static rw_status check(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    for (int i = 1; i < call->n_inputs; i++) RW_CHECK(rw_want_same_dtype(call, 0, i));
    const rw_shape x = rw_in_shape(call, 0), w = rw_in_shape(call, 1);
    if (call->n_inputs < 2 || call->n_inputs > 3) 
        return rw_op_error(call, RW_ERR_ARGUMENT, "takes x, weight and at most a bias");
    if (x.rank < 1 || w.rank != 2) return rw_op_error(call, RW_ERR_SHAPE, "x needs an axis and weight two: [out, in]");
    if (x.dim[x.rank - 1] != w.dim[1])
        return rw_op_error(call, RW_ERR_SHAPE, "x has %lld features, weight [out, in] takes %lld",
                           (long long)x.dim[x.rank - 1], (long long)w.dim[1]);
    if (call->n_inputs == 3) {
        const rw_shape bias = rw_in_shape(call, 2);
        if (bias.rank != 1 || bias.dim[0] != w.dim[0])
            return rw_op_error(call, RW_ERR_SHAPE, "bias is not [%lld]", (long long)w.dim[0]);
    }
    rw_shape y = x;
    y.dim[y.rank - 1] = w.dim[0];
    for (int i = 1; i < call->n_outputs; i++) RW_CHECK(rw_op_output(call, i, call->in[0].dtype, y));
    return rw_op_output(call, 0, call->in[0].dtype, y);
}

static rw_op_cost cost(const rw_op_call *call)
{
    const double k = (double)call->in[1].layout->dim[1];
    return (rw_op_cost){ 2 * k * (double)call->out[0].layout->numel, rw_cost_bytes(call) };
}

static rw_op_cost cost_gelu(const rw_op_call *call)
{
    rw_op_cost c = cost(call);
    c.flops += 8.0 * (double)call->out[0].layout->numel;
    return c;
}

static size_t workspace(const rw_op_call *call, rw_device device)
{
    struct gemm g;
    rw_gemm_of_linear(&g, call->in[0].layout, call->in[1].layout, call->n_inputs > 2, call->in[0].dtype);
    g.gelu = call->n_outputs > 1;
    return rw_gemm_workspace(call, call->in, device, &g);
}

static rw_status grad_of(rw_grad_call *g, rw_tensor *dy)
{
    rw_tape *const t = rw_grad_tape(g);
    if (rw_grad_wanted(g, 0)) {
        rw_tensor *const x = rw_grad_input(g, 0), *const w = rw_grad_input(g, 1);
        rw_tensor *const dx = rw_matmul(t, rw_matrix_of_rows(t, dy), w);
        RW_CHECK(rw_grad_set(g, 0, dx && rw_tensor_shape(x).rank != 2 ? rw_reshape(t, dx, rw_tensor_shape(x)) : dx));
    }
    if (rw_grad_wanted(g, 1)) {
        rw_tensor *const rows = rw_matrix_of_rows(t, dy);
        rw_tensor *const turned = rows ? rw_transpose(t, rows, 0, 1) : NULL;
        RW_CHECK(rw_grad_set(g, 1, rw_matmul(t, turned, rw_matrix_of_rows(t, rw_grad_input(g, 0)))));
    }
    if (rw_grad_n_inputs(g) > 2 && rw_grad_wanted(g, 2)) {
        const rw_shape y = rw_tensor_shape(dy);
        RW_CHECK(rw_grad_set(g, 2, y.rank == 1 ? dy : rw_sum_to(t, dy, RW_SHAPE(y.dim[y.rank - 1]))));
    }
    return RW_OK;
}

static rw_status grad(rw_grad_call *g)
{
    return grad_of(g, rw_grad_upstream(g, 0));
}

/* Into the second output flows what a gradient of a gradient found: the slope is taken there. */
static rw_status grad_gelu(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0), *const more = rw_grad_upstream(g, 1);
    rw_tensor *dz = dy ? rw_gelu_tanh_slope(g, rw_grad_output(g, 1), dy) : more;
    if (dy && more) dz = rw_accumulate_at(RW_HERE, rw_grad_tape(g), dz, more);
    return dz ? grad_of(g, dz) : rw_grad_set(g, 0, NULL);
}

RW_DECLARE_KERNELS(rw_linear)
RW_DECLARE_KERNELS(rw_linear_gelu)
const rw_op_def rw_op_linear = { .name = "linear", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                 .strided = RW_OP_INPUT(0) | RW_OP_INPUT(1), .check = check,
                                 .kernel = RW_KERNELS(rw_linear), .grad = grad, .cost = cost, .workspace = workspace };

static const rw_op_def rw_op_linear_gelu = { .name = "linear_gelu", .n_inputs = RW_OP_VARIADIC, .n_outputs = 2,
                                             .strided = RW_OP_INPUT(0) | RW_OP_INPUT(1), .check = check,
                                             .kernel = RW_KERNELS(rw_linear_gelu), .grad = grad_gelu, .cost = cost_gelu,
                                             .workspace = workspace };

rw_tensor *rw_linear_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias)
{
    rw_tensor *const in[] = { x, weight, bias };
    return rw_apply_at(at, t, &rw_op_linear, in, bias == rw_none() ? 2 : 3, NULL, 0, NULL);
}

rw_tensor *rw_linear_gelu_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias)
{
    rw_tensor *const in[] = { x, weight, bias };
    return rw_apply_at(at, t, &rw_op_linear_gelu, in, bias == rw_none() ? 2 : 3, NULL, 0, NULL);
}
