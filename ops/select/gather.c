/*
 * gather, scatter_add, index_select, embedding_bag. Elements with the same index are summed in the order of the index.
 * The gradients of these ops are such sums, whose gradients gather again.
 */
#include "base/public_entry.h"
#include "ops/select/gather.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/embedding/embedding.h"

#include <rewind/composite.h>
#include <rewind/gather.h>

#include <string.h>

static rw_op_cost cost_moved(const rw_op_call *call)
{
    const double out = (double)call->out[0].layout->numel;
    return (rw_op_cost){ .flops = 0, .bytes = out * (2 * (double)rw_dtype_size(call->out[0].dtype) + sizeof(int32_t)) };
}

static rw_op_cost cost_summed(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 1);
}

static struct rw_gather_attrs attrs_of(int64_t axis, rw_shape x)
{
    struct rw_gather_attrs a = { .axis = axis, .rank = x.rank };
    x = rw_shape_clean(x);
    memcpy(a.dim, x.dim, sizeof a.dim);
    return a;
}

#define ELEMENTS "x, index: expected at most 2^31 - 1 elements for an index of 32 bits, got %lld and %lld"

/* The index of gather has x's rank, and at most x's extents on the axes other than its own. */
static rw_status check_index(rw_op_call *call, int input, rw_shape x, int64_t given)
{
    const rw_shape s = rw_in_shape(call, input);
    int axis;
    RW_CHECK(rw_expect_dtype(call, input, "index", RW_I32));
    RW_CHECK(rw_axis(call, (int)given, x.rank, &axis));
    if (s.rank != x.rank) return rw_unexpected(call, RW_ERR_SHAPE, input, "index", "rank %d, that of x", x.rank);
    for (int i = 0; i < x.rank; i++)
        if (i != axis && s.dim[i] > x.dim[i])
            return rw_unexpected(call, RW_ERR_SHAPE, input, "index", "at most %lld at axis %d, x's extent",
                                 (long long)x.dim[i], i);
    if (rw_shape_numel(x) > INT32_MAX || rw_shape_numel(s) > INT32_MAX)
        return rw_op_error(call, RW_ERR_SHAPE, ELEMENTS, (long long)rw_shape_numel(x), (long long)rw_shape_numel(s));
    return RW_OK;
}

/* ---- sums: (dy or src, index[, addend]) ---- */

static rw_status check_back(rw_op_call *call)
{
    const struct rw_gather_attrs *const a = call->attrs;
    rw_shape x = { .rank = (int32_t)a->rank };
    memcpy(x.dim, a->dim, sizeof x.dim);
    RW_CHECK(check_index(call, 1, x, a->axis));
    return rw_op_output(call, 0, call->in[0].dtype, x);
}

/* Sums in float, if the result is narrower, or if an addend is added at the end. */
static size_t workspace_cpu(const rw_op_call *call)
{
    const rw_dtype dtype = call->out[0].dtype;
    if (call->n_inputs < 3 && (dtype == RW_F32 || dtype == RW_F64)) return 0;
    return (size_t)call->out[0].layout->numel * (dtype == RW_F64 ? sizeof(double) : sizeof(float));
}

static rw_status grad_back(rw_grad_call *g)
{
    const struct rw_gather_attrs *const a = rw_grad_attrs(g);
    if (rw_grad_n_inputs(g) > 2 && rw_grad_wanted(g, 2)) RW_CHECK(rw_grad_set(g, 2, rw_grad_upstream(g, 0)));
    if (!rw_grad_wanted(g, 0)) return RW_OK;
    return rw_grad_set(g, 0, rw_gather(rw_grad_tape(g), rw_grad_upstream(g, 0), (int)a->axis, rw_grad_input(g, 1)));
}

RW_INTERNAL_OP(gather_back, "dy index")
RW_DECLARE_KERNELS(rw_gather_back)
RW_DECLARE_CUDA_WORKSPACE(rw_gather_back_workspace_cuda)
static const rw_op_def rw_op_gather_back = { .name = "gather_back", .n_inputs = 2, .n_outputs = 1,
                                             .check = check_back, .kernel = RW_KERNELS(rw_gather_back),
                                             .grad = grad_back, .cost = cost_summed,
                                             .workspace = RW_WORKSPACES(workspace_cpu, rw_gather_back_workspace_cuda) };

rw_tensor *rw_gather_back(rw_tape *t, rw_tensor *dy, rw_tensor *index, rw_shape x, int axis)
{
    const struct rw_gather_attrs a = attrs_of(axis, x);
    rw_tensor *const in[] = { dy, index };
    return rw_apply(t, &rw_op_gather_back, in, 2, &a, sizeof a, NULL);
}

static rw_status check_scatter(rw_op_call *call)
{
    const struct rw_gather_attrs *const a = call->attrs;
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_same_dtype(call, 0, 2));
    RW_CHECK(check_index(call, 1, rw_in_shape(call, 2), a->axis));
    RW_CHECK(rw_expect_shape_of(call, 0, NULL, 1, NULL));
    return rw_op_output_like(call, 0, 2);
}

RW_BUILTIN_OP(scatter_add, "src index x", "torch.scatter_add")
static const rw_op_def rw_op_scatter_add = { .name = "scatter_add", .n_inputs = 3, .n_outputs = 1,
                                             .inplace = RW_INPLACE({ 0, 2 }), .check = check_scatter,
                                             .kernel = RW_KERNELS(rw_gather_back), .grad = grad_back,
                                             .cost = cost_summed,
                                             .workspace = RW_WORKSPACES(workspace_cpu, rw_gather_back_workspace_cuda),
                                             .cast_widest = RW_OP_ALL_INPUTS };

rw_tensor *rw_scatter_add_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, rw_tensor *index, rw_tensor *src)
{
    RW_ENTER_OP(t);
    if (!rw_operand_check(at, t, x, "scatter_add", "x")) return NULL;
    const struct rw_gather_attrs a = attrs_of(axis, rw_tensor_shape(x));
    rw_tensor *const in[] = { src, index, x };
    return rw_apply_at(at, t, &rw_op_scatter_add, in, 3, &a, sizeof a, NULL);
}

/* ---- gather ---- */

static rw_status check_gather(rw_op_call *call)
{
    const struct rw_gather_attrs *const a = call->attrs;
    RW_CHECK(check_index(call, 1, rw_in_shape(call, 0), a->axis));
    return rw_op_output(call, 0, call->in[0].dtype, rw_in_shape(call, 1));
}

static rw_status grad_gather(rw_grad_call *g)
{
    const struct rw_gather_attrs *const a = rw_grad_attrs(g);
    return rw_grad_set(g, 0, rw_gather_back(rw_grad_tape(g), rw_grad_upstream(g, 0), rw_grad_input(g, 1),
                                            rw_tensor_shape(rw_grad_input(g, 0)), (int)a->axis));
}

RW_BUILTIN_OP(gather, "x index", "torch.gather")
RW_DECLARE_KERNELS(rw_gather)
static const rw_op_def rw_op_gather = { .name = "gather", .n_inputs = 2, .n_outputs = 1, .strided = RW_OP_INPUT(0),
                                        .check = check_gather, .kernel = RW_KERNELS(rw_gather), .grad = grad_gather,
                                        .cost = cost_moved };

rw_tensor *rw_gather_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, rw_tensor *index)
{
    RW_ENTER_OP(t);
    const struct rw_gather_attrs a = attrs_of(axis, RW_SCALAR);
    rw_tensor *const in[] = { x, index };
    return rw_apply_at(at, t, &rw_op_gather, in, 2, &a, sizeof a, NULL);
}

/* ---- index_select ---- */

struct list_attrs {
    int64_t axis;
};

static rw_status check_list(rw_op_call *call)
{
    const struct list_attrs *const a = call->attrs;
    rw_shape s = rw_in_shape(call, 0);
    int axis;
    RW_CHECK(rw_want_dtype(call, 1, RW_I32));
    RW_CHECK(rw_axis(call, (int)a->axis, s.rank, &axis));
    RW_CHECK(rw_expect_rank(call, 1, NULL, 1, "[n]"));
    s.dim[axis] = call->in[1].layout->numel;
    return rw_op_output(call, 0, call->in[0].dtype, s);
}

/* (dy, index[, addend]): sums rows of x by index, where a row is everything after the axis */
static rw_status check_list_back(rw_op_call *call)
{
    const struct rw_gather_attrs *const a = call->attrs;
    rw_shape x = { .rank = (int32_t)a->rank };
    memcpy(x.dim, a->dim, sizeof x.dim);
    if (rw_shape_numel(x) > INT32_MAX || call->in[0].layout->numel > INT32_MAX)
        return rw_op_error(call, RW_ERR_SHAPE, ELEMENTS, (long long)rw_shape_numel(x),
                           (long long)call->in[0].layout->numel);
    if (call->n_inputs > 2) {
        RW_CHECK(rw_want_sum_of(call, 2, 0));
        RW_CHECK(rw_expect_shape(call, 2, "sum", x));
    }
    return rw_op_output(call, 0, call->in[call->n_inputs > 2 ? 2 : 0].dtype, x);
}

static rw_status grad_list_back(rw_grad_call *g)
{
    const struct rw_gather_attrs *const a = rw_grad_attrs(g);
    if (rw_grad_n_inputs(g) > 2 && rw_grad_wanted(g, 2)) RW_CHECK(rw_grad_set(g, 2, rw_grad_upstream(g, 0)));
    if (!rw_grad_wanted(g, 0)) return RW_OK;
    rw_tensor *const dy = rw_grad_narrowed(g, 0, rw_grad_upstream(g, 0));
    return rw_grad_set(g, 0, rw_index_select(rw_grad_tape(g), dy, (int)a->axis, rw_grad_input(g, 1)));
}

/* For the first axis the workspace of an embedding's gradient, for another axis the sums. */
static size_t workspace_list_cpu(const rw_op_call *call)
{
    const struct rw_gather_attrs *const a = call->attrs;
    int64_t outer = 1;
    for (int i = 0; i < a->axis; i++) outer *= a->dim[i];
    if (outer > 1) return workspace_cpu(call);
    return (size_t)(a->dim[a->axis] + 1 + call->in[1].layout->numel) * sizeof(int32_t);
}

RW_INTERNAL_OP(index_select_back, "dy index sum")
RW_DECLARE_KERNELS(rw_index_select_back)
RW_DECLARE_CUDA_WORKSPACE(rw_index_select_back_workspace_cuda)
static const rw_op_def rw_op_list_back = { .name = "index_select_back", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                           .inplace = RW_INPLACE({ 0, 2 }), .optional = RW_OP_INPUT(2),
                                           .check = check_list_back, .kernel = RW_KERNELS(rw_index_select_back),
                                           .grad = grad_list_back, .cost = cost_summed,
                                           .workspace = RW_WORKSPACES(workspace_list_cpu,
                                                                      rw_index_select_back_workspace_cuda) };

rw_tensor *rw_rows_added_at(rw_site at, rw_tape *t, rw_tensor *src, rw_tensor *index, rw_shape x)
{
    const struct rw_gather_attrs a = attrs_of(0, x);
    rw_tensor *const in[] = { src, index };
    return rw_apply_at(at, t, &rw_op_list_back, in, 2, &a, sizeof a, NULL);
}

/* Sets the gradient of input 0: dy summed by rows, plus the sum so far. */
static rw_status set_rows(rw_grad_call *g, rw_tensor *dy, rw_tensor *index, int axis)
{
    const struct rw_gather_attrs a = attrs_of(axis, rw_tensor_shape(rw_grad_input(g, 0)));
    rw_tensor *const in[] = { dy, index, rw_grad_wide_addend(g, 0) };
    return rw_grad_set_sum(g, 0, rw_apply(rw_grad_tape(g), &rw_op_list_back, in, in[2] ? 3 : 2, &a, sizeof a, NULL));
}

static rw_status grad_list(rw_grad_call *g)
{
    const struct list_attrs *const a = rw_grad_attrs(g);
    const int rank = rw_tensor_shape(rw_grad_input(g, 0)).rank;
    return set_rows(g, rw_grad_upstream(g, 0), rw_grad_input(g, 1), (int)(a->axis < 0 ? a->axis + rank : a->axis));
}

RW_BUILTIN_OP(index_select, "x index", "torch.index_select")
RW_DECLARE_KERNELS(rw_index_select)
static const rw_op_def rw_op_index_select = { .name = "index_select", .n_inputs = 2, .n_outputs = 1,
                                              .check = check_list, .kernel = RW_KERNELS(rw_index_select),
                                              .grad = grad_list, .cost = cost_moved };

rw_tensor *rw_index_select_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, rw_tensor *index)
{
    RW_ENTER_OP(t);
    const struct list_attrs a = { axis };
    rw_tensor *const in[] = { x, index };
    return rw_apply_at(at, t, &rw_op_index_select, in, 2, &a, sizeof a, NULL);
}

/* ---- embedding_bag ---- */

struct bag_attrs {
    int64_t mode;
};

static rw_status check_bag(rw_op_call *call)
{
    const struct bag_attrs *const a = call->attrs;
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_dtype(call, 1, RW_I32));
    if (a->mode != RW_BAG_SUM && a->mode != RW_BAG_MEAN)
        return rw_unexpected_int(call, RW_ERR_ARGUMENT, "mode", a->mode, "RW_BAG_SUM (%d) or RW_BAG_MEAN (%d)",
                                 RW_BAG_SUM, RW_BAG_MEAN);
    RW_CHECK(rw_expect_rank(call, 0, NULL, 2, "[n, c]"));
    RW_CHECK(rw_expect_rank(call, 1, NULL, 2, "[b, m]"));
    return rw_op_output(call, 0, call->in[0].dtype, RW_SHAPE(call->in[1].layout->dim[0], call->in[0].layout->dim[1]));
}

static rw_op_cost cost_bag(const rw_op_call *call)
{
    const double elements = (double)call->in[1].layout->numel * (double)call->in[0].layout->dim[1];
    return (rw_op_cost){ .flops = elements, .bytes = elements * (double)rw_dtype_size(call->in[0].dtype) };
}

/* Each row of a bag gets the bag's gradient. */
static rw_status grad_bag(rw_grad_call *g)
{
    const struct bag_attrs *const a = rw_grad_attrs(g);
    rw_tape *const t = rw_grad_tape(g);
    const rw_shape index = rw_tensor_shape(rw_grad_input(g, 1));
    const int64_t b = index.dim[0], m = index.dim[1], c = rw_tensor_shape(rw_grad_input(g, 0)).dim[1];
    rw_tensor *dy = rw_grad_upstream(g, 0);
    if (a->mode == RW_BAG_MEAN && m) dy = rw_scale(t, dy, 1 / (double)m);
    dy = rw_broadcast_to(t, rw_reshape(t, dy, RW_SHAPE(b, 1, c)), RW_SHAPE(b, m, c));
    return set_rows(g, rw_reshape(t, dy, RW_SHAPE(b * m, c)), rw_reshape(t, rw_grad_input(g, 1), RW_SHAPE(b * m)), 0);
}

RW_BUILTIN_OP(embedding_bag, "table index", "F.embedding_bag")
RW_DECLARE_KERNELS(rw_embedding_bag)
static const rw_op_def rw_op_embedding_bag = { .name = "embedding_bag", .n_inputs = 2, .n_outputs = 1,
                                               .check = check_bag, .kernel = RW_KERNELS(rw_embedding_bag),
                                               .grad = grad_bag, .cost = cost_bag };

rw_tensor *rw_embedding_bag_at(rw_site at, rw_tape *t, rw_tensor *table, rw_tensor *index, rw_bag_mode mode)
{
    RW_ENTER_OP(t);
    const struct bag_attrs a = { mode };
    rw_tensor *const in[] = { table, index };
    return rw_apply_at(at, t, &rw_op_embedding_bag, in, 2, &a, sizeof a, NULL);
}
