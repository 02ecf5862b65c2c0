/* matmul: batched matrix products with broadcast leading axes. */
#include "ops/kernels.h"
#include "ops/matmul/gemm.h"
#include "ops/matmul/matmul.h"
#include "ops/util.h"

static rw_shape leading(rw_shape s)
{
    s.rank -= 2;
    return s;
}

static rw_status check(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    const rw_shape a = rw_in_shape(call, 0), b = rw_in_shape(call, 1);
    if (a.rank < 2 || b.rank < 2) return rw_op_error(call, RW_ERR_SHAPE, "both operands need two axes or more");
    if (a.dim[a.rank - 1] != b.dim[b.rank - 2])
        return rw_op_error(call, RW_ERR_SHAPE, "the first operand has %lld columns, the second %lld rows",
                           (long long)a.dim[a.rank - 1], (long long)b.dim[b.rank - 2]);
    rw_shape c;
    RW_CHECK(rw_broadcast(call, leading(a), leading(b), &c));
    c.dim[c.rank++] = a.dim[a.rank - 2];
    c.dim[c.rank++] = b.dim[b.rank - 1];
    return rw_op_output(call, 0, call->in[0].dtype, c);
}

static rw_op_cost cost(const rw_op_call *call)
{
    const rw_layout *const a = call->in[0].layout;
    return (rw_op_cost){ 2.0 * (double)call->out[0].layout->numel * (double)a->dim[a->rank - 1], rw_cost_bytes(call) };
}

static size_t workspace(const rw_op_call *call, rw_device device)
{
    struct gemm g;
    rw_gemm_of_matmul(&g, call->in[0].layout, call->in[1].layout, call->in[0].dtype);
    return rw_gemm_workspace(call, device, &g);
}

static rw_tensor *summed_to(rw_tape *t, rw_tensor *x, rw_shape shape)
{
    return x && !rw_shape_equal(rw_tensor_shape(x), shape) ? rw_sum_to(t, x, shape) : x;
}

rw_tensor *rw_matrix_of_rows(rw_tape *t, rw_tensor *x)
{
    if (!x) return NULL;
    const rw_shape s = rw_tensor_shape(x);
    int64_t rows = 1; /* not the elements over the last extent, which may be 0 */
    for (int i = 0; i < s.rank - 1; i++) rows *= s.dim[i];
    return s.rank == 2 ? x : rw_reshape(t, x, RW_SHAPE(rows, s.dim[s.rank - 1]));
}

/* a^T dy. Where b is one matrix for the whole batch, the sum over the batch is part of one product. */
static rw_tensor *grad_b(rw_tape *t, rw_tensor *a, rw_tensor *dy, rw_shape b)
{
    if (!a || !dy) return NULL;
    if (b.rank == 2 && rw_shape_numel(rw_tensor_shape(a)) > 0 && rw_tensor_shape(a).rank == rw_tensor_shape(dy).rank)
        return rw_matmul(t, rw_transpose(t, rw_matrix_of_rows(t, a), 0, 1), rw_matrix_of_rows(t, dy));
    return summed_to(t, rw_matmul(t, rw_transpose(t, a, -1, -2), dy), b);
}

static rw_status grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) {
        rw_tensor *const da = rw_matmul(t, dy, rw_transpose(t, rw_grad_input(g, 1), -1, -2));
        RW_CHECK(rw_grad_set(g, 0, summed_to(t, da, rw_tensor_shape(rw_grad_input(g, 0)))));
    }
    if (rw_grad_wanted(g, 1)) {
        const rw_shape b = rw_tensor_shape(rw_grad_input(g, 1));
        RW_CHECK(rw_grad_set(g, 1, grad_b(t, rw_grad_input(g, 0), dy, b)));
    }
    return RW_OK;
}

RW_DECLARE_KERNELS(rw_matmul)
const rw_op_def rw_op_matmul = { .name = "matmul", .n_inputs = 2, .n_outputs = 1, .strided = RW_OP_ALL_INPUTS, .check = check,
                                 .kernel = RW_KERNELS(rw_matmul), .grad = grad, .cost = cost,
                                 .workspace = workspace };

rw_tensor *rw_matmul_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b)
{
    rw_tensor *const in[] = { a, b };
    return rw_apply_at(at, t, &rw_op_matmul, in, 2, NULL, 0, NULL);
}
