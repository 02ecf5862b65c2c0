/*
 * Matrix products of 8-bit quantized operands with scales, which are decoded inside the product: on the CPU one panel
 * at a time. They have the names of the 16-bit products that they replace, because policies match ops by name.
 */
#include "ops/matmul/fp8_matmul.h"

#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/float8/quantize.h"
#include "ops/matmul/gemm_descriptor.h"

/* Checks the shape of the scales of input i against its scaling mode. */
static rw_status check_scales(rw_op_call *call, int i, int64_t scaling)
{
    const rw_layout *const x = call->in[i].layout;
    const struct rw_scales s = rw_scales_of(x, scaling);
    rw_shape want = RW_SCALAR;
    if (scaling != RW_SCALING_TENSOR) {
        want = rw_layout_shape(x);
        want.dim[want.rank - 1] = s.across;
        if (scaling == RW_SCALING_128X128) want = RW_SHAPE(s.down, s.across);
    }
    const char *const scales = i == RW_CODES_A ? "scales of a" : "scales of b";
    if (call->in[i].dtype != RW_F8_E4M3 && call->in[i].dtype != RW_F8_E5M2)
        return rw_unexpected(call, RW_ERR_DTYPE, i, i == RW_CODES_A ? "a" : "b", "f8_e4m3 or f8_e5m2");
    RW_CHECK(rw_expect_dtype(call, i + 1, scales, scaling == RW_SCALING_MX ? RW_F8_E8M0 : RW_F32));
    return rw_expect_shape(call, i + 1, scales, want);
}

/* Checks both factors and returns the extents of their product. */
static rw_status check_factors(rw_op_call *call, struct rw_codes_extents *ret)
{
    const struct rw_codes_product_attrs *const a = call->attrs;
    RW_CHECK(rw_expect_inputs(call, RW_CODES_MORE, RW_CODES_MORE + 1,
                              "a and b in FP8, each with its scales, and optionally bias or sum"));
    if (call->in[RW_CODES_A].layout->rank < 1 || call->in[RW_CODES_B].layout->rank < 1)
        return rw_op_error(call, RW_ERR_SHAPE, "a, b: expected rank 1 or more, got %d and %d",
                           call->in[RW_CODES_A].layout->rank, call->in[RW_CODES_B].layout->rank);
    RW_CHECK(check_scales(call, RW_CODES_A, a->a_scaling));
    RW_CHECK(check_scales(call, RW_CODES_B, a->b_scaling));
    const rw_layout x = rw_codes_factor(call->in[RW_CODES_A].layout, a->a_transposed);
    const rw_layout y = rw_codes_factor(call->in[RW_CODES_B].layout, a->b_transposed);
    if (x.dim[1] != y.dim[0])
        return rw_unexpected_int(call, RW_ERR_SHAPE, "b", y.dim[0], "%lld rows, as a has columns", (long long)x.dim[1]);
    *ret = rw_codes_extents_of(a, call->in[RW_CODES_A].layout, call->in[RW_CODES_B].layout);
    return RW_OK;
}

/* The leading axes are those of the first factor. */
static rw_status check_linear(rw_op_call *call)
{
    struct rw_codes_extents e;
    RW_CHECK(check_factors(call, &e));
    rw_shape y = rw_in_shape(call, RW_CODES_A);
    y.dim[y.rank - 1] = e.n;
    if (call->n_inputs > RW_CODES_MORE) {
        RW_CHECK(rw_expect_dtype(call, RW_CODES_MORE, "bias", RW_BF16));
        RW_CHECK(rw_expect_shape(call, RW_CODES_MORE, "bias", RW_SHAPE(e.n)));
    }
    return rw_op_output(call, 0, RW_BF16, y);
}

static rw_status check_matmul(rw_op_call *call)
{
    struct rw_codes_extents e;
    RW_CHECK(check_factors(call, &e));
    if (call->n_inputs == RW_CODES_MORE) return rw_op_output(call, 0, RW_BF16, RW_SHAPE(e.m, e.n));
    const rw_dtype to = call->in[RW_CODES_MORE].dtype;
    if (to != RW_BF16 && to != RW_F32)
        return rw_unexpected(call, RW_ERR_DTYPE, RW_CODES_MORE, "sum", "bf16 or f32");
    RW_CHECK(rw_expect_shape(call, RW_CODES_MORE, "sum", RW_SHAPE(e.m, e.n)));
    return rw_op_output(call, 0, to, RW_SHAPE(e.m, e.n));
}

static rw_op_cost cost(const rw_op_call *call)
{
    const struct rw_codes_product_attrs *const a = call->attrs;
    const struct rw_codes_extents e = rw_codes_extents_of(a, call->in[RW_CODES_A].layout, call->in[RW_CODES_B].layout);
    return rw_cost_product(call, 2.0 * (double)e.m * (double)e.n * (double)e.k);
}

static size_t workspace_of(const rw_op_call *call, bool bias, bool adds)
{
    const struct rw_codes_product_attrs *const a = call->attrs;
    const struct rw_codes_extents e = rw_codes_extents_of(a, call->in[RW_CODES_A].layout, call->in[RW_CODES_B].layout);
    struct gemm g;
    rw_gemm_of_panels(&g, e.m, e.n, e.k, RW_BF16);
    g.from_a.transposed = a->a_transposed;
    g.from_b.transposed = a->b_transposed;
    g.to = call->out[0].dtype;
    g.has_bias = bias;
    g.adds = adds;
    return rw_gemm_workspace_cpu(call, &g);
}

static size_t workspace_linear_cpu(const rw_op_call *call)
{
    return workspace_of(call, call->n_inputs > RW_CODES_MORE, false);
}

/* The addend may be absent at run time: reserves workspace for either case. */
static size_t workspace_matmul_cpu(const rw_op_call *call)
{
    const size_t plain = workspace_of(call, false, false);
    const size_t added = call->n_inputs > RW_CODES_MORE ? workspace_of(call, false, true) : 0;
    return added > plain ? added : plain;
}

RW_DECLARE_KERNELS(rw_linear_of_codes)
RW_DECLARE_KERNELS(rw_matmul_of_codes)
RW_DECLARE_CUDA_WORKSPACE(rw_linear_of_codes_workspace_cuda)
RW_DECLARE_CUDA_WORKSPACE(rw_matmul_of_codes_workspace_cuda)
const rw_op_def rw_op_linear_of_codes = { .name = "linear",
                                          .n_inputs = RW_OP_VARIADIC,
                                          .n_outputs = 1,
                                          .flags = RW_OP_NO_GRADIENT | RW_OP_CODES,
                                          .check = check_linear,
                                          .kernel = RW_KERNELS(rw_linear_of_codes),
                                          .cost = cost,
                                          .workspace = RW_WORKSPACES(workspace_linear_cpu,
                                                                     rw_linear_of_codes_workspace_cuda) };

const rw_op_def rw_op_matmul_of_codes = { .name = "matmul",
                                          .n_inputs = RW_OP_VARIADIC,
                                          .n_outputs = 1,
                                          .flags = RW_OP_NO_GRADIENT | RW_OP_CODES,
                                          .inplace = RW_INPLACE({ 0, RW_CODES_MORE }),
                                          .optional = RW_OP_INPUT(RW_CODES_MORE),
                                          .check = check_matmul,
                                          .kernel = RW_KERNELS(rw_matmul_of_codes),
                                          .cost = cost,
                                          .workspace = RW_WORKSPACES(workspace_matmul_cpu,
                                                                     rw_matmul_of_codes_workspace_cuda) };
