/* embedding: rows of a table by index. The gradient sorts the indices, so that each row is summed once, in order. */
#include "base/public_entry.h"
#include "ops/embedding/embedding.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <rewind/compare.h>
#include <rewind/composite.h>
#include <rewind/gather.h>
#include <rewind/select.h>

#include <string.h>

static rw_status check_forward(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_dtype(call, 1, RW_I32));
    RW_CHECK(rw_expect_rank(call, 0, NULL, 2, "[n, c]"));
    rw_shape shape = rw_in_shape(call, 1);
    if (shape.rank >= RW_MAX_RANK)
        return rw_unexpected(call, RW_ERR_SHAPE, 1, NULL, "a rank of at most %d", RW_MAX_RANK - 1);
    shape.dim[shape.rank++] = call->in[0].layout->dim[1];
    return rw_op_output(call, 0, call->in[0].dtype, shape);
}

/* dy [..., c], index [...], and optionally an addend [n, c] -> [n, c] */
static rw_status check_backward(rw_op_call *call)
{
    const struct rw_table_attrs *const a = call->attrs;
    const rw_shape table = RW_SHAPE(a->rows, a->width);
    RW_CHECK(rw_expect_inputs(call, 2, 3, "dy, index and optionally sum"));
    if (call->n_inputs > 2) {
        RW_CHECK(rw_want_sum_of(call, 2, 0));
        RW_CHECK(rw_expect_shape(call, 2, "sum", table));
    }
    return rw_op_output(call, 0, call->in[call->n_inputs > 2 ? 2 : 0].dtype, table);
}

static rw_status grad_backward(rw_grad_call *g)
{
    if (rw_grad_n_inputs(g) > 2 && rw_grad_wanted(g, 2)) RW_CHECK(rw_grad_set(g, 2, rw_grad_upstream(g, 0)));
    if (!rw_grad_wanted(g, 0)) return RW_OK;
    rw_tensor *const dy = rw_grad_narrowed(g, 0, rw_grad_upstream(g, 0));
    return rw_grad_set(g, 0, rw_embedding(rw_grad_tape(g), dy, rw_grad_input(g, 1))); /* already without padding */
}

/* The start of each row's tokens, then the tokens sorted by row. */
static size_t workspace_backward_cpu(const rw_op_call *call)
{
    const struct rw_table_attrs *const a = call->attrs;
    return (size_t)(a->rows + 1 + call->in[1].layout->numel) * sizeof(int32_t);
}

static rw_op_cost cost(const rw_op_call *call)
{
    const double size = (double)rw_dtype_size(call->out[0].dtype);
    return (rw_op_cost){ .bytes = 2 * (double)call->out[0].layout->numel * size };
}

/* With an addend only the rows of tokens are accessed: at most one per token. */
static rw_op_cost cost_backward(const rw_op_call *call)
{
    if (call->n_inputs < 3) return cost(call);
    const double size = (double)rw_dtype_size(call->out[0].dtype);
    return (rw_op_cost){ .bytes = 3 * (double)call->in[0].layout->numel * size };
}

RW_INTERNAL_OP(embedding_backward, "dy index sum")
RW_DECLARE_KERNELS(rw_embedding_backward)
RW_DECLARE_CUDA_WORKSPACE(rw_embedding_backward_workspace_cuda)
static const rw_op_def rw_op_embedding_backward = { .name = "embedding_backward", .n_inputs = RW_OP_VARIADIC,
                                                    .n_outputs = 1, .inplace = RW_INPLACE({ 0, 2 }),
                                                    .optional = RW_OP_INPUT(2),
                                                    .check = check_backward, .grad = grad_backward,
                                                    .kernel = RW_KERNELS(rw_embedding_backward),
                                                    .cost = cost_backward,
                                                    .workspace = RW_WORKSPACES(workspace_backward_cpu,
                                                                               rw_embedding_backward_workspace_cuda) };

struct padding_attrs {
    int64_t row; /* the row without a gradient; -1: none */
};

/* dy, but 0 where the index is that of the padding. */
static rw_tensor *without_padding(rw_tape *t, rw_tensor *dy, rw_tensor *index, const struct padding_attrs *a)
{
    rw_tensor *const mask = rw_eq_scalar(t, index, (double)a->row);
    return rw_masked_fill(t, dy, rw_unsqueeze(t, mask, -1), 0);
}

static rw_status grad(rw_grad_call *g)
{
    const rw_shape table = rw_tensor_shape(rw_grad_input(g, 0));
    const struct rw_table_attrs a = { table.dim[0], table.dim[1] };
    const struct padding_attrs *const padding = rw_grad_attrs(g);
    rw_tensor *dy = rw_grad_upstream(g, 0);
    if (padding->row >= 0) dy = without_padding(rw_grad_tape(g), dy, rw_grad_input(g, 1), padding);
    rw_tensor *const in[] = { dy, rw_grad_input(g, 1), rw_grad_wide_addend(g, 0) };
    return rw_grad_set_sum(g, 0,
                           rw_apply(rw_grad_tape(g), &rw_op_embedding_backward, in, in[2] ? 3 : 2, &a, sizeof a, NULL));
}

RW_BUILTIN_OP(embedding, "table index", "F.embedding")
RW_DECLARE_KERNELS(rw_embedding)
static const rw_op_def rw_op_embedding = { .name = "embedding",
                                           .n_inputs = 2,
                                           .n_outputs = 1,
                                           .check = check_forward,
                                           .grad = grad,
                                           .kernel = RW_KERNELS(rw_embedding),
                                           .cost = cost };

rw_tensor *rw_embedding_at(rw_site at, rw_tape *t, rw_tensor *table, rw_tensor *index)
{
    RW_ENTER_OP(t);
    const struct padding_attrs a = { -1 };
    rw_tensor *const in[] = { table, index };
    return rw_apply_at(at, t, &rw_op_embedding, in, 2, &a, sizeof a, NULL);
}

bool rw_padding_row_at(rw_site at, rw_tape *t, const char *what, const rw_tensor *table, bool has, int64_t index,
                       int64_t *ret_row)
{
    const int64_t rows = rw_tensor_shape(table).rank ? rw_tensor_shape(table).dim[0] : 0;
    *ret_row = !has ? -1 : index < 0 ? index + rows : index;
    if (!has && index)
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(padding_index): expected 0 without has_padding_index, got %lld; set "
                     "has_padding_index as well", what, (long long)index);
    else if (has && (index < -rows || index >= rows))
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(padding_index): expected a row of the table, %lld to %lld, got %lld",
                     what, (long long)-rows, (long long)rows - 1, (long long)index);
    else return true;
    return false;
}

/* Records an embedding whose padding row gets no gradient; see the public header for the contract. */
rw_tensor *rw_embedding_with_at(rw_site at, rw_tape *t, rw_tensor *table, rw_tensor *index,
                                const rw_embedding_params *params)
{
    RW_ENTER_OP(t);
    static const char what[] = "embedding_with";
    static const rw_embedding_params defaults;
    const rw_embedding_params *const p = params ? params : &defaults;
    struct padding_attrs a;
    if (!rw_operand_check(at, t, table, what, "table") ||
        !rw_padding_row_at(at, t, what, table, p->has_padding_index, p->padding_index, &a.row))
        return NULL;
    const rw_composite c = rw_composite_begin(t, what);
    rw_tensor *const in[] = { table, index };
    return rw_composite_end(&c, rw_apply_at(at, t, &rw_op_embedding, in, 2, &a, sizeof a, NULL));
}
