/*
 * linear: x weight^T + bias, with the bias added before the one rounding. linear_gelu: the same and its gelu.
 * linear_add: the same plus a residual, rounded once; the residual is its input 0, and x, weight and bias follow.
 */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/pass_ops.h"
#include "ops/common/util.h"
#include "ops/matmul/gemm_descriptor.h"
#include "ops/matmul/linear_fp8.h"
#include "ops/matmul/matmul.h"
#include "ops/pointwise/pointwise.h"
#include "ops/reduce/reduce.h"

#include <rewind/composite.h>
#include <rewind/fusion.h>
#include <rewind/precision.h>

/* Checks x, weight and an optional bias, inputs from `x` on, and returns the shape of the result. */
static rw_status check_layer(rw_op_call *call, int x, rw_shape *ret)
{
    RW_CHECK(rw_want_float(call, 0));
    for (int i = 1; i < call->n_inputs; i++) RW_CHECK(rw_want_same_dtype(call, 0, i));
    RW_CHECK(rw_expect_inputs(call, x + 2, x + 3, x ? "residual, x, weight and optionally bias"
                                                    : "x, weight and optionally bias"));
    const rw_shape rows = rw_in_shape(call, x), w = rw_in_shape(call, x + 1);
    if (rows.rank < 1) return rw_unexpected(call, RW_ERR_SHAPE, x, NULL, "[..., in]");
    RW_CHECK(rw_expect_rank(call, x + 1, NULL, 2, "[out, in]"));
    if (rows.dim[rows.rank - 1] != w.dim[1])
        return rw_unexpected(call, RW_ERR_SHAPE, x + 1, NULL, "[out, %lld], x's last axis",
                             (long long)rows.dim[rows.rank - 1]);
    if (call->n_inputs == x + 3) RW_CHECK(rw_expect_shape(call, x + 2, NULL, RW_SHAPE(w.dim[0])));
    *ret = rows;
    ret->dim[ret->rank - 1] = w.dim[0];
    return RW_OK;
}

/* One output; or two with cast_widest: the activation and the pre-activation. */
static rw_status check(rw_op_call *call)
{
    rw_shape y;
    RW_CHECK(check_layer(call, 0, &y));
    for (int i = 1; i < call->n_outputs; i++) RW_CHECK(rw_op_output(call, i, call->in[0].dtype, y));
    return rw_op_output(call, 0, call->in[0].dtype, y);
}

static rw_status check_add(rw_op_call *call)
{
    rw_shape y;
    RW_CHECK(check_layer(call, 1, &y));
    RW_CHECK(rw_expect_shape(call, 0, NULL, y));
    return rw_op_output(call, 0, call->in[0].dtype, y);
}

static rw_op_cost cost_of(const rw_op_call *call, int weight)
{
    const double k = (double)call->in[weight].layout->dim[1];
    return rw_cost_product(call, 2 * k * (double)call->out[0].layout->numel);
}

static rw_op_cost cost(const rw_op_call *call)
{
    return cost_of(call, 1);
}

static rw_op_cost cost_add(const rw_op_call *call)
{
    return cost_of(call, 2);
}

static rw_op_cost cost_gelu(const rw_op_call *call)
{
    rw_op_cost c = cost(call);
    c.flops += 8.0 * (double)call->out[0].layout->numel;
    return c;
}

static size_t workspace_of(const rw_op_call *call, int x)
{
    const rw_operand_desc *const in = call->in + x;
    struct gemm g;
    rw_gemm_of_linear(&g, in[0].layout, in[1].layout, call->n_inputs > x + 2, in[0].dtype);
    g.gelu = call->n_outputs > 1;
    g.adds = x > 0;
    return rw_gemm_workspace_cpu(call, &g);
}

static size_t workspace_cpu(const rw_op_call *call)
{
    return workspace_of(call, 0);
}

static size_t workspace_add_cpu(const rw_op_call *call)
{
    return workspace_of(call, 1);
}

RW_DECLARE_CUDA_WORKSPACE(rw_linear_workspace_cuda)
RW_DECLARE_CUDA_WORKSPACE(rw_linear_add_workspace_cuda)
#ifdef RW_HAVE_CUDA
bool rw_linear_gelu_may_fuse_cuda(const rw_op_call *call);
#endif

static rw_status grad_of_x(rw_grad_call *g, int at, rw_tensor *dy)
{
    if (!rw_grad_wanted(g, at)) return RW_OK;
    return rw_grad_set_product(g, at, rw_matrix_of_rows(rw_grad_tape(g), dy), rw_grad_input(g, at + 1));
}

static rw_status grad_of_weight(rw_grad_call *g, int at, rw_tensor *dy)
{
    rw_tape *const t = rw_grad_tape(g);
    if (!rw_grad_wanted(g, at + 1)) return RW_OK;
    rw_tensor *const rows = rw_matrix_of_rows(t, dy);
    rw_tensor *const transposed = rows ? rw_transpose(t, rows, 0, 1) : NULL;
    return rw_grad_set_product(g, at + 1, transposed, rw_matrix_of_rows(t, rw_grad_input(g, at)));
}

/*
 * The gradients of x, weight and bias, inputs from `at` on, for a gradient dy of the product. sum: the bias gradient,
 * if the caller has computed it. The weight's gradient comes first: it is the last op that reads x, so dx may then take
 * the memory of x. If both are the same value, their contributions keep the order of the operands.
 */
static rw_status grad_of(rw_grad_call *g, int at, rw_tensor *dy, rw_tensor *sum)
{
    const bool is_one = rw_tensor_base(rw_grad_input(g, at)) == rw_tensor_base(rw_grad_input(g, at + 1));
    if (is_one) RW_CHECK(grad_of_x(g, at, dy));
    RW_CHECK(grad_of_weight(g, at, dy));
    if (!is_one) RW_CHECK(grad_of_x(g, at, dy));
    if (rw_grad_n_inputs(g) > at + 2 && rw_grad_wanted(g, at + 2)) {
        if (sum) return rw_grad_set_sum(g, at + 2, sum);
        return rw_tensor_shape(dy).rank == 1 ? rw_grad_set(g, at + 2, dy) : rw_grad_set_sum_to(g, at + 2, dy);
    }
    return RW_OK;
}

static rw_status grad(rw_grad_call *g)
{
    return grad_of(g, 0, rw_grad_upstream(g, 0), rw_grad_column_sums(g, 2));
}

static rw_status grad_add(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set(g, 0, dy));
    return grad_of(g, 1, dy, rw_grad_column_sums(g, 3));
}

/* The second output, the pre-activation, receives gradients only from gradients of gradients; they are added there. */
static rw_status grad_gelu(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0), *const more = rw_grad_upstream(g, 1);
    const bool sums = rw_grad_n_inputs(g) > 2 && rw_grad_wanted(g, 2) && !more;
    rw_tensor *dz = more, *sum = NULL;
    if (dy && sums) dz = rw_gelu_tanh_slope_sum(g, 2, rw_grad_output(g, 1), dy, &sum);
    else if (dy) dz = rw_gelu_tanh_slope(g, rw_grad_output(g, 1), dy);
    if (dy && more) dz = rw_accumulate_at(RW_HERE, rw_grad_tape(g), dz, more);
    return dz ? grad_of(g, 0, dz, sum) : rw_grad_set(g, 0, NULL);
}

/* Recomputes gelu from the stored, rounded pre-activation, unless a library computes it from the unrounded one. */
static rw_tensor *recompute_gelu(rw_tape *t, const rw_op_call *call, int i, rw_tensor *const *in, rw_tensor *const *out)
{
    if (i != 0) return NULL;
#ifdef RW_HAVE_CUDA
    if (call->kind == RW_DEVICE_CUDA && rw_linear_gelu_may_fuse_cuda(call)) return NULL;
#endif
    return rw_gelu_tanh(t, out[1]);
}

RW_BUILTIN_OP(linear, "x weight bias", "F.linear")
RW_DECLARE_KERNELS(rw_linear)
RW_DECLARE_KERNELS(rw_linear_gelu)
const rw_op_def rw_op_linear = { .name = "linear",
                                 .n_inputs = RW_OP_VARIADIC,
                                 .n_outputs = 1,
                                 .strided = RW_OP_INPUT(0) | RW_OP_INPUT(1),
                                 .check = check,
                                 .kernel = RW_KERNELS(rw_linear),
                                 .grad = grad,
                                 .cost = cost,
                                 .workspace = RW_WORKSPACES(workspace_cpu, rw_linear_workspace_cuda),
                                 .cast_low = RW_OP_ALL_INPUTS,
                                 .bias = 2 };

RW_BUILTIN_OP(linear_gelu, "x weight bias", "F.linear, F.gelu(approximate='tanh')")
static const rw_op_def rw_op_linear_gelu = { .name = "linear_gelu", .n_inputs = RW_OP_VARIADIC, .n_outputs = 2,
                                             .strided = RW_OP_INPUT(0) | RW_OP_INPUT(1), .check = check,
                                             .kernel = RW_KERNELS(rw_linear_gelu), .grad = grad_gelu, .cost = cost_gelu,
                                             .workspace = RW_WORKSPACES(workspace_cpu, rw_linear_workspace_cuda),
                                             .recompute_output = recompute_gelu,
                                             .cast_low = RW_OP_ALL_INPUTS };

RW_BUILTIN_OP(linear_add, "residual x weight bias", "F.linear, torch.add")
RW_DECLARE_KERNELS(rw_linear_add)
static const rw_op_def rw_op_linear_add = { .name = "linear_add",
                                            .n_inputs = RW_OP_VARIADIC,
                                            .n_outputs = 1,
                                            .strided = RW_OP_INPUT(1) | RW_OP_INPUT(2),
                                            .inplace = RW_INPLACE({ 0, 0 }),
                                            .check = check_add,
                                            .kernel = RW_KERNELS(rw_linear_add),
                                            .grad = grad_add,
                                            .cost = cost_add,
                                            .workspace = RW_WORKSPACES(workspace_add_cpu,
                                                                       rw_linear_add_workspace_cuda),
                                            .cast_low = RW_OP_ALL_INPUTS,
                                            .bias = 3 };

rw_tensor *rw_linear_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias)
{
    RW_ENTER_OP(t);
    const rw_recipe *const codes = rw_recipe_fp8(t);
    if (codes && rw_tensor_dtype(x) != RW_F64) return rw_linear_of_codes_at(at, t, codes, x, weight, bias);
    rw_tensor *const in[] = { x, weight, bias };
    return rw_apply_at(at, t, &rw_op_linear, in, bias == rw_none() ? 2 : 3, NULL, 0, NULL);
}

rw_tensor *rw_linear_gelu_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias)
{
    RW_ENTER_OP(t);
    if (rw_recipe_fp8(t)) {
        const rw_composite c = rw_composite_begin(t, "linear_gelu");
        rw_tensor *const z = rw_linear_at(at, t, x, weight, bias);
        return rw_composite_end(&c, z ? rw_gelu_tanh_at(at, t, z) : NULL);
    }
    rw_tensor *const in[] = { x, weight, bias };
    return rw_apply_at(at, t, &rw_op_linear_gelu, in, bias == rw_none() ? 2 : 3, NULL, 0, NULL);
}

/* Under a recipe the product has 16 bits and the residual stream that it is added to does not. */
static rw_tensor *add_apart(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                            rw_tensor *residual)
{
    const rw_composite c = rw_composite_begin(t, "linear_add");
    rw_tensor *const y = rw_linear_at(at, t, x, weight, bias);
    return rw_composite_end(&c, y ? rw_add_at(at, t, residual, y) : NULL);
}

rw_tensor *rw_linear_add_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                            rw_tensor *residual)
{
    RW_ENTER_OP(t);
    if (rw_recipe_fp8(t) || rw_recipe_low_dtype(t, residual) != rw_tensor_dtype(residual))
        return add_apart(at, t, x, weight, bias, residual);
    rw_tensor *const in[] = { residual, x, weight, bias };
    return rw_apply_at(at, t, &rw_op_linear_add, in, bias == rw_none() ? 3 : 4, NULL, 0, NULL);
}
