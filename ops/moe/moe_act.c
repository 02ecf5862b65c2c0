/*
 * The ops between an expert's two products, fused: silu(x), or silu(gate) * up, and each row times its slot's weight.
 * The activation itself is never stored: backward recomputes it from its inputs, one row at a time. The bytes, of
 * gradients too, equal those of rw_silu() or rw_swiglu() followed by rw_moe_weigh(). With 16-bit types everything
 * between loads and stores is float32, so no intermediate value is rounded.
 *
 *     forward    x -> h = silu(x) -> w h                 reads x, writes w h
 *     backward   dh = w dy,  dw = <h, dy>,  dx = silu'(x) dh    reads x and dy, writes dx; dw by row, then by slot
 */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/moe/moe.h"
#include "ops/pointwise/pointwise.h"

/* Inputs of these ops: the operands of the activation (one or two), [in backward dy,] weights, order, inverse. */
#define ROUTES 3

static rw_status check(rw_op_call *call)
{
    const int n = call->n_inputs - ROUTES;
    RW_CHECK(rw_swiglu_want(call, n));
    RW_CHECK(rw_moe_want_weights(call, n));
    return rw_op_output_like(call, 0, 0);
}

static rw_status check_backward(rw_op_call *call)
{
    const int n = call->n_inputs - ROUTES - 1;
    RW_CHECK(rw_swiglu_want(call, n + 1));
    RW_CHECK(rw_moe_want_weights(call, n + 1));
    for (int i = 0; i < n; i++) RW_CHECK(rw_op_output_like(call, i, i));
    return rw_op_output_like(call, n, n + 1);
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 10);
}

static rw_status grad(rw_grad_call *g);

RW_BUILTIN_OP(moe_silu_weigh, "x weights order inverse", "-")
RW_BUILTIN_OP(moe_swiglu_weigh, "gate up weights order inverse", "-")
RW_INTERNAL_OP(moe_silu_weigh_backward, "x dy weights order inverse")
RW_INTERNAL_OP(moe_swiglu_weigh_backward, "gate up dy weights order inverse")
RW_DECLARE_KERNELS(rw_moe_silu_weigh)
static const rw_op_def rw_op_moe_silu_weigh = { .name = "moe_silu_weigh", .n_inputs = 1 + ROUTES, .n_outputs = 1,
                                                .strided = RW_OP_INPUT(0), .inplace = RW_INPLACE({ 0, 0 }),
                                                .check = check, .kernel = RW_KERNELS(rw_moe_silu_weigh), .grad = grad,
                                                .cost = cost };
RW_DECLARE_KERNELS(rw_moe_swiglu_weigh)
static const rw_op_def rw_op_moe_swiglu_weigh = { .name = "moe_swiglu_weigh", .n_inputs = 2 + ROUTES, .n_outputs = 1,
                                                  .strided = RW_OP_INPUT(0) | RW_OP_INPUT(1),
                                                  .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }), .check = check,
                                                  .kernel = RW_KERNELS(rw_moe_swiglu_weigh), .grad = grad,
                                                  .cost = cost, .cast_widest = RW_OP_INPUT(0) | RW_OP_INPUT(1) };
RW_DECLARE_KERNELS(rw_moe_silu_weigh_backward)
static const rw_op_def rw_op_moe_silu_weigh_backward = { .name = "moe_silu_weigh_backward", .n_inputs = 2 + ROUTES,
                                                         .n_outputs = 2, .flags = RW_OP_NO_GRADIENT,
                                                         .strided = RW_OP_INPUT(0) | RW_OP_INPUT(1),
                                                         .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }),
                                                         .check = check_backward,
                                                         .kernel = RW_KERNELS(rw_moe_silu_weigh_backward),
                                                         .cost = cost,
                                                         .workspace = RW_WORKSPACES(rw_moe_dots_workspace,
                                                                                    rw_moe_dots_workspace) };
RW_DECLARE_KERNELS(rw_moe_swiglu_weigh_backward)
static const rw_op_def rw_op_moe_swiglu_weigh_backward = { .name = "moe_swiglu_weigh_backward",
                                                           .n_inputs = 3 + ROUTES, .n_outputs = 3,
                                                           .flags = RW_OP_NO_GRADIENT,
                                                           .strided = RW_OP_INPUT(0) | RW_OP_INPUT(1) | RW_OP_INPUT(2),
                                                           .inplace = RW_INPLACE({ 0, 0 }, { 0, 2 }),
                                                           .check = check_backward,
                                                           .kernel = RW_KERNELS(rw_moe_swiglu_weigh_backward),
                                                           .cost = cost,
                                                           .workspace = RW_WORKSPACES(rw_moe_dots_workspace,
                                                                                      rw_moe_dots_workspace) };

/* The gradient as ops that can be differentiated again; the fused op has the same bytes. */
static rw_status grad_again(rw_grad_call *g, int n, const rw_moe_routes *routes)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const x = rw_grad_widened(g, rw_grad_input(g, 0));
    rw_tensor *const dy = rw_grad_widened(g, rw_grad_upstream(g, 0));
    rw_tensor *const up = n > 1 ? rw_grad_widened(g, rw_grad_input(g, 1)) : NULL;
    rw_tensor *const dh = rw_moe_weigh(t, dy, rw_grad_input(g, n), routes);
    rw_tensor *dx[2] = { NULL, NULL };
    if (up) rw_swiglu_slopes(g, x, up, dh, dx);
    else dx[0] = rw_silu_slope(g, x, dh);
    for (int i = 0; i < n; i++) RW_CHECK(rw_grad_set_narrowed(g, i, dx[i]));
    if (!rw_grad_wanted(g, n)) return RW_OK;
    return rw_grad_set(g, n, rw_moe_dot(t, up ? rw_swiglu(t, x, up) : rw_silu(t, x), dy, routes));
}

static rw_status grad(rw_grad_call *g)
{
    const int n = rw_grad_n_inputs(g) - ROUTES;
    const rw_moe_routes routes = { .order = rw_grad_input(g, n + 1), .inverse = rw_grad_input(g, n + 2) };
    rw_tensor *in[3 + ROUTES], *out[3] = { NULL, NULL, NULL };
    if (rw_grad_is_differentiable(g)) return grad_again(g, n, &routes);
    for (int i = 0; i < n; i++) in[i] = rw_grad_input(g, i);
    in[n] = rw_grad_upstream(g, 0);
    for (int i = 0; i < ROUTES; i++) in[n + 1 + i] = rw_grad_input(g, n + i);
    rw_apply(rw_grad_tape(g), n > 1 ? &rw_op_moe_swiglu_weigh_backward : &rw_op_moe_silu_weigh_backward, in,
             n + 1 + ROUTES, NULL, 0, out);
    for (int i = 0; i <= n; i++) RW_CHECK(rw_grad_set(g, i, out[i]));
    return RW_OK;
}

rw_tensor *rw_moe_silu_weigh_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weights, const rw_moe_routes *routes)
{
    RW_ENTER_OP(t);
    if (!rw_moe_is_there(at, t, "moe_silu_weigh", "routes", routes)) return NULL;
    rw_tensor *const in[] = { x, weights, routes->order, routes->inverse };
    return rw_apply_at(at, t, &rw_op_moe_silu_weigh, in, 4, NULL, 0, NULL);
}

rw_tensor *rw_moe_swiglu_weigh_at(rw_site at, rw_tape *t, rw_tensor *gate, rw_tensor *up, rw_tensor *weights,
                                  const rw_moe_routes *routes)
{
    RW_ENTER_OP(t);
    if (!rw_moe_is_there(at, t, "moe_swiglu_weigh", "routes", routes)) return NULL;
    rw_tensor *const in[] = { gate, up, weights, routes->order, routes->inverse };
    return rw_apply_at(at, t, &rw_op_moe_swiglu_weigh, in, 5, NULL, 0, NULL);
}
