/* matmul: batched matrix products with broadcast leading axes; matmul_add: a sum plus such a product. */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/matmul/gemm_descriptor.h"
#include "ops/matmul/matmul.h"
#include "ops/reduce/reduce.h"
#include "ops/common/util.h"

static rw_shape leading(rw_shape s)
{
    s.rank -= 2;
    return s;
}

/* Checks operands `a` and `a` + 1 of the call, and returns the shape of their product. */
static rw_status check_product(rw_op_call *call, int a, rw_shape *ret)
{
    RW_CHECK(rw_want_float(call, a));
    RW_CHECK(rw_want_same_dtype(call, a, a + 1));
    const rw_shape x = rw_in_shape(call, a), y = rw_in_shape(call, a + 1);
    for (int i = a; i < a + 2; i++)
        if (call->in[i].layout->rank < 2) return rw_unexpected(call, RW_ERR_SHAPE, i, NULL, "rank 2 or more");
    if (x.dim[x.rank - 1] != y.dim[y.rank - 2])
        return rw_unexpected(call, RW_ERR_SHAPE, a + 1, NULL, "[..., %lld, n], a's columns",
                             (long long)x.dim[x.rank - 1]);
    RW_CHECK(rw_broadcast(call, leading(x), leading(y), ret));
    ret->dim[ret->rank++] = x.dim[x.rank - 2];
    ret->dim[ret->rank++] = y.dim[y.rank - 1];
    return RW_OK;
}

static rw_status check(rw_op_call *call)
{
    rw_shape c;
    RW_CHECK(check_product(call, 0, &c));
    return rw_op_output(call, 0, call->in[0].dtype, c);
}

static rw_status check_add(rw_op_call *call)
{
    rw_shape c;
    RW_CHECK(check_product(call, 1, &c));
    RW_CHECK(rw_want_sum_of(call, 0, 1));
    RW_CHECK(rw_expect_shape(call, 0, "sum", c));
    return rw_op_output(call, 0, call->in[0].dtype, c);
}

/* The factors of a product are the last two inputs of a call. */
static const rw_operand_desc *factors(const rw_op_call *call)
{
    return call->in + call->n_inputs - 2;
}

static rw_op_cost cost(const rw_op_call *call)
{
    const rw_layout *const a = factors(call)->layout;
    return rw_cost_product(call, 2.0 * (double)call->out[0].layout->numel * (double)a->dim[a->rank - 1]);
}

static size_t workspace_cpu(const rw_op_call *call)
{
    const rw_operand_desc *const in = factors(call);
    struct gemm g;
    rw_gemm_of_matmul(&g, in[0].layout, in[1].layout, in[0].dtype);
    g.to = call->out[0].dtype;
    const size_t plain = rw_gemm_workspace_cpu(call, &g);
    if (call->n_inputs == 2) return plain;
    g.adds = true; /* the addend may be absent at run time: workspace for either case */
    const size_t added = rw_gemm_workspace_cpu(call, &g);
    return added > plain ? added : plain;
}

RW_DECLARE_CUDA_WORKSPACE(rw_matmul_workspace_cuda)

static rw_shape shape_of_product(const rw_tensor *a, const rw_tensor *b)
{
    const rw_shape x = rw_tensor_shape(a), y = rw_tensor_shape(b);
    rw_shape c = x.rank > y.rank ? x : y;
    for (int i = 3; i <= x.rank && i <= y.rank; i++)
        c.dim[c.rank - i] = x.dim[x.rank - i] == 1 ? y.dim[y.rank - i] : x.dim[x.rank - i];
    c.dim[c.rank - 2] = x.dim[x.rank - 2];
    c.dim[c.rank - 1] = y.dim[y.rank - 1];
    return c;
}

static rw_tensor *shaped(rw_tape *t, rw_tensor *x, rw_shape shape)
{
    return x && !rw_shape_equal(rw_tensor_shape(x), shape) ? rw_reshape(t, x, shape) : x;
}

rw_status rw_grad_set_product(rw_grad_call *g, int i, rw_tensor *a, rw_tensor *b)
{
    rw_tape *const t = rw_grad_tape(g);
    if (!a || !b) return rw_grad_set(g, i, NULL);
    const rw_shape x = rw_tensor_shape(rw_grad_input(g, i)), own = shape_of_product(a, b);
    if (rw_shape_numel(own) != rw_shape_numel(x)) {
        rw_tensor *const each = rw_matmul(t, a, b);
        const bool wide = rw_grad_dtype(g, i) != rw_tensor_dtype(a);
        return wide ? rw_grad_set_sum_to(g, i, each) : rw_grad_set(g, i, rw_sum_to(t, each, x));
    }
    rw_tensor *const sum = rw_grad_wide_addend(g, i);
    rw_tensor *const y = sum ? rw_matmul_add_at(RW_HERE, t, shaped(t, sum, own), a, b) : rw_matmul(t, a, b);
    return rw_grad_set_sum(g, i, shaped(t, y, x));
}

rw_tensor *rw_matrix_of_rows(rw_tape *t, rw_tensor *x)
{
    if (!x) return NULL;
    const rw_shape s = rw_tensor_shape(x);
    int64_t rows = 1; /* not elements divided by the last extent, which may be 0 */
    for (int i = 0; i < s.rank - 1; i++) rows *= s.dim[i];
    return s.rank == 2 ? x : rw_reshape(t, x, RW_SHAPE(rows, s.dim[s.rank - 1]));
}

/* a^T dy. If b is one matrix for the whole batch, the sum over the batch is part of one product. */
static rw_status grad_b(rw_grad_call *g, int i, rw_tensor *a, rw_tensor *dy)
{
    rw_tape *const t = rw_grad_tape(g);
    const rw_shape x = rw_tensor_shape(a);
    const bool one = rw_tensor_shape(rw_grad_input(g, i)).rank == 2 && rw_shape_numel(x) > 0 &&
                     x.rank == rw_tensor_shape(dy).rank;
    if (!one) return rw_grad_set_product(g, i, rw_transpose(t, a, -1, -2), dy);
    return rw_grad_set_product(g, i, rw_transpose(t, rw_matrix_of_rows(t, a), 0, 1), rw_matrix_of_rows(t, dy));
}

/* The gradients of the product of inputs i and i + 1. */
static rw_status grad_product(rw_grad_call *g, int i)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_narrowed(g, i, rw_grad_upstream(g, 0));
    rw_tensor *const a = rw_grad_input(g, i), *const b = rw_grad_input(g, i + 1);
    if (rw_grad_wanted(g, i)) RW_CHECK(rw_grad_set_product(g, i, dy, rw_transpose(t, b, -1, -2)));
    return rw_grad_wanted(g, i + 1) ? grad_b(g, i + 1, a, dy) : RW_OK;
}

static rw_status grad(rw_grad_call *g)
{
    return grad_product(g, 0);
}

static rw_status grad_add(rw_grad_call *g)
{
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set(g, 0, rw_grad_upstream(g, 0)));
    return grad_product(g, 1);
}

RW_BUILTIN_OP(matmul, "a b", "torch.matmul")
RW_DECLARE_KERNELS(rw_matmul)
const rw_op_def rw_op_matmul = { .name = "matmul", .n_inputs = 2, .n_outputs = 1, .strided = RW_OP_ALL_INPUTS,
                                 .check = check, .kernel = RW_KERNELS(rw_matmul), .grad = grad, .cost = cost,
                                 .workspace = RW_WORKSPACES(workspace_cpu, rw_matmul_workspace_cuda),
                                 .cast_low = RW_OP_ALL_INPUTS };

RW_INTERNAL_OP(matmul_add, "sum a b")
RW_DECLARE_KERNELS(rw_matmul_add)
static const rw_op_def rw_op_matmul_add = { .name = "matmul_add",
                                            .n_inputs = 3,
                                            .n_outputs = 1,
                                            .strided = RW_OP_INPUT(1) | RW_OP_INPUT(2),
                                            .inplace = RW_INPLACE({ 0, 0 }),
                                            .optional = RW_OP_INPUT(0),
                                            .check = check_add,
                                            .kernel = RW_KERNELS(rw_matmul_add),
                                            .grad = grad_add,
                                            .cost = cost,
                                            .workspace = RW_WORKSPACES(workspace_cpu, rw_matmul_workspace_cuda) };

rw_tensor *rw_matmul_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b)
{
    RW_ENTER_OP(t);
    rw_tensor *const in[] = { a, b };
    return rw_apply_at(at, t, &rw_op_matmul, in, 2, NULL, 0, NULL);
}

rw_tensor *rw_matmul_add_at(rw_site at, rw_tape *t, rw_tensor *sum, rw_tensor *a, rw_tensor *b)
{
    rw_tensor *const in[] = { sum, a, b };
    return rw_apply_at(at, t, &rw_op_matmul_add, in, 3, NULL, 0, NULL);
}
