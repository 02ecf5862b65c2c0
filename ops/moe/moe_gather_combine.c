/*
 * Ops on rows of tokens. gather copies each row from its token; combine sums a token's rows; weigh multiplies rows by
 * their slots' weights; dot computes dot products of rows by slot. Each is the gradient of another, so all can be
 * differentiated again. If the gradient is not differentiated, weigh_backward computes weigh and dot in one pass over
 * the rows, with the same bytes.
 */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/moe/moe.h"

static rw_dtype sum_type(rw_dtype dtype)
{
    return dtype == RW_F64 ? RW_F64 : RW_F32;
}

static rw_status check_routes(rw_op_call *call, int order, int64_t rows)
{
    RW_CHECK(rw_expect_dtype(call, order, "order", RW_I32));
    return rw_expect_shape(call, order, "order", RW_SHAPE(rows));
}

static rw_status want_rows(rw_op_call *call, int input)
{
    RW_CHECK(rw_want_float(call, input));
    return rw_expect_rank(call, input, NULL, 2, "[T k, n]");
}

/* x [T, n], order [T k] */
static rw_status check_gather(rw_op_call *call)
{
    const struct rw_moe_gather_attrs *const a = call->attrs;
    const rw_shape s = rw_in_shape(call, 0);
    RW_CHECK(want_rows(call, 0));
    RW_CHECK(check_routes(call, 1, s.dim[0] * a->k));
    return rw_op_output(call, 0, call->in[0].dtype, RW_SHAPE(s.dim[0] * a->k, s.dim[1]));
}

/* rows [T k, n], inverse [T, k], order [T k] for the gradient */
static rw_status check_combine(rw_op_call *call)
{
    const rw_shape s = rw_in_shape(call, 0), inverse = rw_in_shape(call, 1);
    RW_CHECK(want_rows(call, 0));
    RW_CHECK(rw_want_dtype(call, 1, RW_I32));
    if (inverse.rank != 2 || rw_shape_numel(inverse) != s.dim[0])
        return rw_unexpected(call, RW_ERR_SHAPE, 1, NULL, "[T, k] with %lld elements, the rows", (long long)s.dim[0]);
    RW_CHECK(check_routes(call, 2, s.dim[0]));
    return rw_op_output(call, 0, call->in[0].dtype, RW_SHAPE(inverse.dim[0], s.dim[1]));
}

/* Checks weights [T, k], order [T k], inverse [T, k] for the gradient: inputs `at` to at + 2, for rows [T k, n]. */
rw_status rw_moe_want_weights(rw_op_call *call, int at)
{
    const rw_shape s = rw_in_shape(call, 0);
    RW_CHECK(want_rows(call, 0));
    RW_CHECK(rw_expect_dtype(call, at, "weights", sum_type(call->in[0].dtype)));
    RW_CHECK(check_routes(call, at + 1, s.dim[0]));
    RW_CHECK(rw_expect_dtype(call, at + 2, "inverse", RW_I32));
    if (rw_in_shape(call, at).rank != 2 || rw_shape_numel(rw_in_shape(call, at)) != s.dim[0])
        return rw_unexpected(call, RW_ERR_SHAPE, at, "weights", "[T, k] with %lld elements, the rows",
                             (long long)s.dim[0]);
    return rw_expect_shape_of(call, at + 2, "inverse", at, "weights");
}

static rw_status check_weigh(rw_op_call *call)
{
    RW_CHECK(rw_moe_want_weights(call, 1));
    return rw_op_output_like(call, 0, 0);
}

/* a and b [T k, n], inverse [T, k], order [T k] for the gradient */
static rw_status check_dot(rw_op_call *call)
{
    RW_CHECK(want_rows(call, 0));
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    return rw_op_output(call, 0, sum_type(call->in[0].dtype), rw_in_shape(call, 2));
}

/* rows and dy [T k, n], weights [T, k], order [T k], inverse [T, k] */
static rw_status check_weigh_backward(rw_op_call *call)
{
    RW_CHECK(want_rows(call, 0));
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    RW_CHECK(rw_op_output_like(call, 0, 1));
    return rw_op_output_like(call, 1, 2);
}

size_t rw_moe_dots_workspace(const rw_op_call *call)
{
    return (size_t)call->in[0].layout->dim[0] * rw_dtype_size(sum_type(call->in[0].dtype));
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 1);
}

static rw_status grad_gather(rw_grad_call *g);
static rw_status grad_combine(rw_grad_call *g);
static rw_status grad_weigh(rw_grad_call *g);
static rw_status grad_dot(rw_grad_call *g);

RW_BUILTIN_OP(moe_combine, "rows inverse order", "-")
RW_BUILTIN_OP(moe_weigh, "rows weights order inverse", "-")
RW_INTERNAL_OP(moe_dot, "a b inverse order")
RW_INTERNAL_OP(moe_gather, "x order inverse")
RW_INTERNAL_OP(moe_weigh_backward, "rows dy weights order inverse")
/* gather also has the inverse as an input, for its gradient. */
RW_DECLARE_KERNELS(rw_moe_gather)
const rw_op_def rw_op_moe_gather = { .name = "moe_gather", .n_inputs = 3, .n_outputs = 1, .check = check_gather,
                                     .kernel = RW_KERNELS(rw_moe_gather), .grad = grad_gather, .cost = cost };
RW_DECLARE_KERNELS(rw_moe_combine)
const rw_op_def rw_op_moe_combine = { .name = "moe_combine", .n_inputs = 3, .n_outputs = 1, .check = check_combine,
                                      .kernel = RW_KERNELS(rw_moe_combine), .grad = grad_combine, .cost = cost };
RW_DECLARE_KERNELS(rw_moe_weigh)
static const rw_op_def rw_op_moe_weigh = { .name = "moe_weigh", .n_inputs = 4, .n_outputs = 1, .check = check_weigh,
                                           .inplace = RW_INPLACE({ 0, 0 }), .kernel = RW_KERNELS(rw_moe_weigh),
                                           .grad = grad_weigh, .cost = cost };
RW_DECLARE_KERNELS(rw_moe_dot)
static const rw_op_def rw_op_moe_dot = { .name = "moe_dot", .n_inputs = 4, .n_outputs = 1, .check = check_dot,
                                         .kernel = RW_KERNELS(rw_moe_dot), .grad = grad_dot, .cost = cost };
RW_DECLARE_KERNELS(rw_moe_weigh_backward)
static const rw_op_def rw_op_moe_weigh_backward = { .name = "moe_weigh_backward", .n_inputs = 5, .n_outputs = 2,
                                                    .flags = RW_OP_NO_GRADIENT, .check = check_weigh_backward,
                                                    .inplace = RW_INPLACE({ 0, 1 }),
                                                    .kernel = RW_KERNELS(rw_moe_weigh_backward), .cost = cost,
                                                    .workspace = RW_WORKSPACES(rw_moe_dots_workspace,
                                                                               rw_moe_dots_workspace) };

static rw_status grad_gather(rw_grad_call *g)
{
    rw_tensor *const in[] = { rw_grad_upstream(g, 0), rw_grad_input(g, 2), rw_grad_input(g, 1) };
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &rw_op_moe_combine, in, 3, NULL, 0, NULL));
}

static rw_status grad_combine(rw_grad_call *g)
{
    const struct rw_moe_gather_attrs a = { rw_tensor_shape(rw_grad_input(g, 1)).dim[1] };
    rw_tensor *const in[] = { rw_grad_upstream(g, 0), rw_grad_input(g, 2), rw_grad_input(g, 1) };
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &rw_op_moe_gather, in, 3, &a, sizeof a, NULL));
}

rw_tensor *rw_moe_dot(rw_tape *t, rw_tensor *a, rw_tensor *b, const rw_moe_routes *routes)
{
    rw_tensor *const in[] = { a, b, routes->inverse, routes->order };
    return rw_apply(t, &rw_op_moe_dot, in, 4, NULL, 0, NULL);
}

static rw_status grad_weigh(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    const rw_moe_routes routes = { .order = rw_grad_input(g, 2), .inverse = rw_grad_input(g, 3) };
    rw_tensor *const x = rw_grad_input(g, 0), *const weights = rw_grad_input(g, 1), *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0) && rw_grad_wanted(g, 1) && !rw_grad_is_differentiable(g)) {
        rw_tensor *const in[] = { x, dy, weights, routes.order, routes.inverse };
        rw_tensor *out[2] = { NULL, NULL };
        if (rw_apply(t, &rw_op_moe_weigh_backward, in, 5, NULL, 0, out)) RW_CHECK(rw_grad_set(g, 0, out[0]));
        return rw_grad_set(g, 1, out[1]);
    }
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set(g, 0, rw_moe_weigh(t, dy, weights, &routes)));
    if (rw_grad_wanted(g, 1)) RW_CHECK(rw_grad_set(g, 1, rw_moe_dot(t, x, dy, &routes)));
    return RW_OK;
}

static rw_status grad_dot(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    for (int i = 0; i < 2; i++) {
        rw_tensor *const in[] = { rw_grad_input(g, 1 - i), rw_grad_upstream(g, 0), rw_grad_input(g, 3),
                                  rw_grad_input(g, 2) };
        if (rw_grad_wanted(g, i)) RW_CHECK(rw_grad_set(g, i, rw_apply(t, &rw_op_moe_weigh, in, 4, NULL, 0, NULL)));
    }
    return RW_OK;
}

rw_tensor *rw_moe_weigh_at(rw_site at, rw_tape *t, rw_tensor *rows, rw_tensor *weights, const rw_moe_routes *routes)
{
    RW_ENTER_OP(t);
    if (!rw_moe_is_there(at, t, "moe_weigh", "routes", routes)) return NULL;
    rw_tensor *const in[] = { rows, weights, routes->order, routes->inverse };
    return rw_apply_at(at, t, &rw_op_moe_weigh, in, 4, NULL, 0, NULL);
}

rw_tensor *rw_moe_combine_at(rw_site at, rw_tape *t, rw_tensor *rows, const rw_moe_routes *routes)
{
    RW_ENTER_OP(t);
    if (!rw_moe_is_there(at, t, "moe_combine", "routes", routes)) return NULL;
    rw_tensor *const in[] = { rows, routes->inverse, routes->order };
    return rw_apply_at(at, t, &rw_op_moe_combine, in, 3, NULL, 0, NULL);
}
