/*
 * Products by expert. moe_linear multiplies rows by their experts' matrices. moe_outer sums outer products over an
 * expert's rows, which is the gradient of the matrices. Which rows belong to which expert is read on the device. Each
 * op is the gradient of the other.
 */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/moe/moe_onednn.h"

#include <rewind/composite.h>
#include <rewind/fusion.h>

/* Inputs: x, weight [E, out, in], offsets [E + 1], order [T k], inverse [T, k] for the gradient. */
static rw_status check_linear(rw_op_call *call)
{
    const struct rw_moe_linear_attrs *const a = call->attrs;
    const rw_shape x = rw_in_shape(call, 0), w = rw_in_shape(call, 1), inverse = rw_in_shape(call, 4);
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    for (int i = 2; i < 5; i++) RW_CHECK(rw_want_dtype(call, i, RW_I32));
    RW_CHECK(rw_expect_rank(call, 0, NULL, 2, "[rows, in]"));
    RW_CHECK(rw_expect_rank(call, 1, NULL, 3, "[E, out, in]"));
    if (x.dim[1] != w.dim[a->transposed ? 1 : 2])
        return rw_unexpected(call, RW_ERR_SHAPE, 1, NULL,
                             a->transposed ? "[E, %lld, n], x's last axis" : "[E, n, %lld], x's last axis",
                             (long long)x.dim[1]);
    const int64_t rows = a->gathers ? x.dim[0] * a->k : x.dim[0];
    if (inverse.rank != 2 || rw_shape_numel(inverse) != rows || inverse.dim[1] != a->k)
        return rw_unexpected(call, RW_ERR_SHAPE, 4, NULL, "[T, %lld] with %lld elements, the rows of x's routes",
                             (long long)a->k, (long long)rows);
    RW_CHECK(rw_expect_shape(call, 3, NULL, RW_SHAPE(rows)));
    RW_CHECK(rw_expect_shape(call, 2, NULL, RW_SHAPE(w.dim[0] + 1)));
    return rw_op_output(call, 0, call->in[0].dtype, RW_SHAPE(rows, w.dim[a->transposed ? 2 : 1]));
}

/* Inputs: dy [T k, out] and x, or rows of tokens for either, offsets, order, inverse for the gradient, and optionally
   the sum so far, of their type or, for 16 bits, of float32. */
static rw_status check_outer(rw_op_call *call)
{
    const struct rw_moe_outer_attrs *const a = call->attrs;
    const rw_shape dy = rw_in_shape(call, 0), x = rw_in_shape(call, 1);
    if (call->n_inputs > 5) RW_CHECK(rw_want_sum_of(call, 5, 0));
    return rw_op_output(call, 0, call->in[call->n_inputs > 5 ? 5 : 0].dtype,
                        RW_SHAPE(a->experts, dy.dim[1], x.dim[1]));
}

/* Rows times in times out, for any distribution over experts. */
static rw_op_cost cost_linear(const rw_op_call *call)
{
    const rw_layout *const w = call->in[1].layout;
    const double rows = (double)call->out[0].layout->dim[0];
    return rw_cost_product(call, 2 * rows * (double)w->dim[1] * (double)w->dim[2]);
}

static rw_op_cost cost_outer(const rw_op_call *call)
{
    const rw_layout *const y = call->out[0].layout;
    const double rows = (double)call->in[3].layout->dim[0];
    return rw_cost_product(call, 2 * rows * (double)y->dim[1] * (double)y->dim[2]);
}

#define SIZE_OF_SUM(call) ((call)->in[0].dtype == RW_F64 ? sizeof(double) : sizeof(float))

static size_t workspace_linear(const rw_op_call *call)
{
    const struct rw_moe_linear_attrs *const a = call->attrs;
    const rw_layout *const w = call->in[1].layout, *const y = call->out[0].layout;
    const struct moe_product m = { .rows = y->dim[0], .experts = w->dim[0], .in = w->dim[2], .out = w->dim[1],
                                   .depth = call->in[0].layout->dim[1], .width = y->dim[1],
                                   .transposed = a->transposed };
    const size_t bytes = rw_moe_library_workspace(call, &m, false);
    return bytes ? bytes : (size_t)(rw_moe_linear_elements(m.depth) * call->threads) * SIZE_OF_SUM(call);
}

static size_t workspace_outer(const rw_op_call *call)
{
    const rw_layout *const y = call->out[0].layout;
    const struct moe_product m = { .rows = call->in[3].layout->dim[0], .experts = y->dim[0], .in = y->dim[2],
                                   .out = y->dim[1] };
    const size_t bytes = rw_moe_library_workspace(call, &m, true);
    return bytes ? bytes : (size_t)(MOE_OUTER_ELEMENTS * call->threads) * SIZE_OF_SUM(call);
}

static rw_status grad_linear(rw_grad_call *g);
static rw_status grad_outer(rw_grad_call *g);

RW_BUILTIN_OP(moe_linear, "x weight offsets order inverse", "torch._grouped_mm")
RW_INTERNAL_OP(moe_outer, "dy x offsets order inverse sum")
RW_DECLARE_KERNELS(rw_moe_linear)
static const rw_op_def rw_op_moe_linear = { .name = "moe_linear", .n_inputs = 5, .n_outputs = 1, .check = check_linear,
                                            .kernel = RW_KERNELS(rw_moe_linear), .grad = grad_linear,
                                            .cost = cost_linear, .workspace = RW_WORKSPACES(workspace_linear, NULL),
                                            .cast_low = RW_OP_INPUT(0) | RW_OP_INPUT(1) };
RW_DECLARE_KERNELS(rw_moe_outer)
static const rw_op_def rw_op_moe_outer = { .name = "moe_outer", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                           .optional = RW_OP_INPUT(5), .inplace = RW_INPLACE({ 0, 5 }),
                                           .check = check_outer, .kernel = RW_KERNELS(rw_moe_outer),
                                           .grad = grad_outer, .cost = cost_outer,
                                           .workspace = RW_WORKSPACES(workspace_outer, NULL) };

/* Converts the gradients of rows to those of their tokens. */
static rw_tensor *of_tokens(rw_tape *t, rw_tensor *rows, rw_tensor *inverse, rw_tensor *order, bool gathers)
{
    rw_tensor *const in[] = { rows, inverse, order };
    return gathers ? rw_apply(t, &rw_op_moe_combine, in, 3, NULL, 0, NULL) : rows;
}

/* The product by expert of the rows of x with w [E, out, in]: x w^T, or x w if `transposed`. */
static rw_tensor *product(rw_tape *t, rw_tensor *x, rw_tensor *w, rw_tensor *const *routes, bool gathers,
                          bool transposed)
{
    const struct rw_moe_linear_attrs a = { rw_tensor_shape(routes[2]).dim[1], gathers, transposed };
    rw_tensor *const in[] = { x, w, routes[0], routes[1], routes[2] };
    return rw_apply(t, &rw_op_moe_linear, in, 5, &a, sizeof a, NULL);
}

/* Rows, or the tokens' rows that they are gathered from. */
struct rows {
    rw_tensor *x;
    bool gathers;
};

/* If x is a result of moe_gather with these routes, reads the input of the gather instead; then the gathered rows are
   not needed. */
static struct rows rows_of(rw_tensor *x, rw_tensor *const *routes)
{
    rw_producer producer;
    if (!rw_tensor_producer(x, &producer) || producer.op != &rw_op_moe_gather ||
        rw_tensor_producer_input(x, 1) != routes[1] ||
        ((const struct rw_moe_gather_attrs *)producer.attrs)->k != rw_tensor_shape(routes[2]).dim[1])
        return (struct rows){ x, false };
    return (struct rows){ rw_tensor_producer_input(x, 0), true };
}

static rw_tensor *outer(rw_tape *t, struct rows dy, struct rows x, rw_tensor *const *routes, int64_t experts,
                        rw_tensor *sum)
{
    const struct rw_moe_outer_attrs a = { rw_tensor_shape(routes[2]).dim[1], x.gathers, dy.gathers, experts };
    rw_tensor *const in[] = { dy.x, x.x, routes[0], routes[1], routes[2], sum };
    return rw_apply(t, &rw_op_moe_outer, in, sum ? 6 : 5, &a, sizeof a, NULL);
}

/* The forward is y = x w^T by expert, or x w if `transposed`. */
static rw_status grad_linear(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    const struct rw_moe_linear_attrs a = *(const struct rw_moe_linear_attrs *)rw_grad_attrs(g);
    rw_tensor *const w = rw_grad_input(g, 1);
    rw_tensor *const routes[] = { rw_grad_input(g, 2), rw_grad_input(g, 3), rw_grad_input(g, 4) };
    const struct rows x = { rw_grad_input(g, 0), a.gathers }, dy = rows_of(rw_grad_upstream(g, 0), routes);
    if (rw_grad_wanted(g, 0)) {
        rw_tensor *const rows = product(t, dy.x, w, routes, dy.gathers, !a.transposed);
        RW_CHECK(rw_grad_set(g, 0, of_tokens(t, rows, routes[2], routes[1], a.gathers)));
    }
    if (!rw_grad_wanted(g, 1)) return RW_OK;
    rw_tensor *const sum = rw_grad_wide_addend(g, 1);
    const int64_t experts = rw_tensor_shape(w).dim[0];
    return rw_grad_set_sum(g, 1, a.transposed ? outer(t, x, dy, routes, experts, sum)
                                              : outer(t, dy, x, routes, experts, sum));
}

/* The gradients of moe_outer: products by expert with the gradient of its result. */
static rw_status grad_outer(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    const struct rw_moe_outer_attrs a = *(const struct rw_moe_outer_attrs *)rw_grad_attrs(g);
    rw_tensor *const dy = rw_grad_input(g, 0), *const x = rw_grad_input(g, 1);
    rw_tensor *const routes[] = { rw_grad_input(g, 2), rw_grad_input(g, 3), rw_grad_input(g, 4) };
    rw_tensor *const u = rw_grad_narrowed(g, 0, rw_grad_upstream(g, 0));
    if (rw_grad_wanted(g, 0)) {
        rw_tensor *const rows = product(t, x, u, routes, a.gathers, false);
        RW_CHECK(rw_grad_set(g, 0, of_tokens(t, rows, routes[2], routes[1], a.gathers_dy)));
    }
    if (rw_grad_wanted(g, 1)) {
        rw_tensor *const rows = product(t, dy, u, routes, a.gathers_dy, true);
        RW_CHECK(rw_grad_set(g, 1, of_tokens(t, rows, routes[2], routes[1], a.gathers)));
    }
    if (rw_grad_n_inputs(g) == 6 && rw_grad_wanted(g, 5)) RW_CHECK(rw_grad_set(g, 5, rw_grad_upstream(g, 0)));
    return RW_OK;
}

static rw_tensor *record(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, const rw_moe_routes *routes,
                         bool gathers)
{
    const rw_shape index = rw_tensor_shape(routes->inverse);
    const struct rw_moe_linear_attrs a = { index.rank == 2 ? index.dim[1] : 1, gathers, 0 };
    rw_tensor *const in[] = { x, weight, routes->offsets, routes->order, routes->inverse };
    return rw_apply_at(at, t, &rw_op_moe_linear, in, 5, &a, sizeof a, NULL);
}

rw_tensor *rw_moe_linear_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, const rw_moe_routes *routes)
{
    RW_ENTER_OP(t);
    if (!rw_moe_is_there(at, t, "moe_linear", "routes", routes)) return NULL;
    return record(at, t, x, weight, routes, false);
}

rw_tensor *rw_moe_linear_of_tokens_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight,
                                      const rw_moe_routes *routes)
{
    RW_ENTER_OP(t);
    if (!rw_moe_is_there(at, t, "moe_linear_of_tokens", "routes", routes)) return NULL;
    const rw_composite c = rw_composite_begin(t, "moe_linear_of_tokens");
    return rw_composite_end(&c, record(at, t, x, weight, routes, true));
}
