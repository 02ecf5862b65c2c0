/*
 * linear_quantized: x times the transpose of a quantized weight (NF4, INT8), or times the weight itself, which is the
 * gradient of x.
 */
#include "ops/quantized/linear_quantized.h"

#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/matmul/gemm_descriptor.h"
#include "ops/matmul/matmul.h"
#include "ops/reduce/reduce.h"

#include <rewind/composite.h>

/* Checks x, the weight's words and an optional bias against the attributes. */
static rw_status check(rw_op_call *call)
{
    const struct rw_linear_quantized_attrs *const a = call->attrs;
    const int64_t features = a->transposed ? a->out : a->in;
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_dtype(call, 1, RW_I32));
    RW_CHECK(rw_op_check_shape(call, RW_SHAPE(a->out, a->in)));
    if (a->kind == RW_NF4 && a->in % RW_NF4_BLOCK)
        return rw_unexpected_int(call, RW_ERR_SHAPE, "weight", a->in, "rows that are a multiple of %d numbers, for NF4",
                                 RW_NF4_BLOCK);
    const int64_t words = quantized_parts_of(a).bytes / 4;
    RW_CHECK(rw_expect_shape(call, 1, NULL, RW_SHAPE(words)));
    rw_shape x = rw_in_shape(call, 0);
    if (x.rank < 1 || x.dim[x.rank - 1] != features)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "[..., %lld] for a weight [%lld, %lld]", (long long)features,
                             (long long)a->out, (long long)a->in);
    x.dim[x.rank - 1] = a->transposed ? a->in : a->out;
    if (call->n_inputs > 2) {
        RW_CHECK(rw_want_same_dtype(call, 0, 2));
        RW_CHECK(rw_expect_shape(call, 2, NULL, RW_SHAPE(a->out)));
    }
    return rw_op_output(call, 0, call->in[0].dtype, x);
}

static rw_op_cost cost(const rw_op_call *call)
{
    const rw_layout *const x = call->in[0].layout;
    const double depth = (double)x->dim[x->rank - 1];
    return rw_cost_product(call, 2 * depth * (double)call->out[0].layout->numel);
}

void rw_quantized_gemm(struct gemm *g, const struct rw_linear_quantized_attrs *a, const rw_layout *x, bool bias,
                       rw_dtype dtype)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < x->rank; i++) rows *= x->dim[i];
    rw_gemm_of_panels(g, rows, a->transposed ? a->in : a->out, a->transposed ? a->out : a->in, dtype);
    g->a_is_stored = true;
    g->a.row = g->k;
    g->a.col = 1;
    g->from_b.transposed = !a->transposed;
    g->has_bias = bias;
}

static size_t workspace_cpu(const rw_op_call *call)
{
    struct gemm g;
    rw_quantized_gemm(&g, call->attrs, call->in[0].layout, call->n_inputs > 2, call->in[0].dtype);
    return rw_gemm_workspace_cpu(call, &g);
}

#ifdef RW_HAVE_CUDA
/* A panel, and the larger workspace of the two panel widths: the last panel may be narrower. */
static size_t workspace_cuda(const rw_op_call *call)
{
    const struct rw_linear_quantized_attrs *const a = call->attrs;
    const rw_layout *const x = call->in[0].layout;
    const struct quantized_panels p = quantized_panels_of(a, x, call->in[0].dtype, QUANTIZED_PANEL_CUDA);
    size_t greedier = 0;
    for (int64_t i = 0; i < p.n; i += p.n > 1 ? p.n - 1 : 1) {
        const rw_layout *const bias = call->n_inputs > 2 ? call->in[2].layout : NULL;
        const struct quantized_product q = quantized_product_of(&p, i, a->transposed, x, bias);
        const rw_operand_desc in[] = { { call->in[0].dtype, &q.x },
                                       { call->in[0].dtype, &q.weight },
                                       { call->in[0].dtype, &q.bias } };
        rw_op_call product = *call;
        product.in = in;
        product.n_inputs = bias ? 3 : 2;
        const size_t bytes = rw_linear_panel_workspace_cuda(&product, p.cols);
        if (bytes == SIZE_MAX) return SIZE_MAX;
        if (bytes > greedier) greedier = bytes;
    }
    return p.bytes + greedier;
}
#endif

static rw_status grad(rw_grad_call *g);

RW_BUILTIN_OP(linear_quantized, "x words bias", "bitsandbytes.matmul_4bit")
RW_DECLARE_KERNELS(rw_linear_quantized)
static const rw_op_def rw_op_linear_quantized = { .name = "linear_quantized",
                                                  .n_inputs = RW_OP_VARIADIC,
                                                  .n_outputs = 1,
                                                  .check = check,
                                                  .kernel = RW_KERNELS(rw_linear_quantized),
                                                  .grad = grad,
                                                  .cost = cost,
                                                  .workspace = RW_WORKSPACES(workspace_cpu, workspace_cuda) };

/* The gradient: x w^T has the gradient dy w, whose gradient is again the first form. */
static rw_status grad(rw_grad_call *g)
{
    struct rw_linear_quantized_attrs a = *(const struct rw_linear_quantized_attrs *)rw_grad_attrs(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) {
        rw_tensor *const in[] = { dy, rw_grad_input(g, 1) };
        a.transposed = !a.transposed;
        RW_CHECK(rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &rw_op_linear_quantized, in, 2, &a, sizeof a, NULL)));
    }
    if (rw_grad_n_inputs(g) < 3 || !rw_grad_wanted(g, 2)) return RW_OK;
    return rw_tensor_shape(dy).rank == 1 ? rw_grad_set(g, 2, dy) : rw_grad_set_sum_to(g, 2, dy);
}

rw_tensor *rw_linear_quantized_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_quantized *weight, rw_tensor *bias)
{
    RW_ENTER_OP(t);
    if (!weight || (unsigned)weight->kind >= RW_QUANTIZED_KIND_COUNT) {
        if (weight)
            rw_refuse_at(at, t, RW_ERR_ARGUMENT,
                         "rw_linear_quantized(weight): expected kind RW_NF4 (%d) or RW_INT8 (%d), got %d", RW_NF4,
                         RW_INT8, (int)weight->kind);
        else
            rw_refuse_at(at, t, RW_ERR_ARGUMENT,
                         "rw_linear_quantized: weight is NULL; expected a weight of rw_quantized_create()");
        return NULL;
    }
    const struct rw_linear_quantized_attrs a = { weight->kind, weight->out, weight->in, false };
    rw_tensor *const in[] = { x, weight->words, bias };
    return rw_apply_at(at, t, &rw_op_linear_quantized, in, bias == rw_none() ? 2 : 3, &a, sizeof a, NULL);
}
