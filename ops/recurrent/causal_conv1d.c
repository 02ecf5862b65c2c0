/*
 * causal_conv1d, and the products that are its gradients (causal_conv1d.h defines these): checks, costs and gradient
 * rules.
 */
#include "ops/recurrent/causal_conv1d.h"

#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/reduce/reduce.h"

/* ---- checks ---- */

static rw_status check_sequence(rw_op_call *call, int i)
{
    RW_CHECK(rw_want_float(call, i));
    RW_CHECK(rw_want_same_dtype(call, 0, i));
    return rw_expect_rank(call, i, NULL, 3, "[batch, length, channels]");
}

static rw_status check_taps(rw_op_call *call, int64_t taps)
{
    if (taps >= 1 && taps <= RW_CAUSAL_CONV1D_MAX) return RW_OK;
    return rw_unexpected_int(call, RW_ERR_SHAPE, "weight", taps, "1 to %d taps", RW_CAUSAL_CONV1D_MAX);
}

static rw_status check(rw_op_call *call)
{
    RW_CHECK(rw_expect_inputs(call, 2, 3, "x, weight and optionally bias"));
    RW_CHECK(check_sequence(call, 0));
    for (int i = 1; i < call->n_inputs; i++) RW_CHECK(rw_want_same_dtype(call, 0, i));
    const rw_shape x = rw_in_shape(call, 0), weight = rw_in_shape(call, 1);
    if (weight.rank != 2 || weight.dim[0] != x.dim[2])
        return rw_unexpected(call, RW_ERR_SHAPE, 1, NULL, "[%lld, taps], x's channels", (long long)x.dim[2]);
    RW_CHECK(check_taps(call, weight.dim[1]));
    if (call->n_inputs == 3) RW_CHECK(rw_expect_shape(call, 2, NULL, RW_SHAPE(x.dim[2])));
    return rw_op_output(call, 0, call->in[0].dtype, x);
}

static rw_status check_weight(rw_op_call *call)
{
    const struct rw_causal_conv1d_attrs *const a = call->attrs;
    RW_CHECK(rw_expect_inputs(call, 2, 3, "x, dy and optionally sum"));
    for (int i = 0; i < 2; i++) RW_CHECK(check_sequence(call, i));
    const rw_shape weight = RW_SHAPE(rw_in_shape(call, 0).dim[2], a->taps);
    RW_CHECK(check_taps(call, a->taps));
    RW_CHECK(rw_expect_shape_of(call, 1, NULL, 0, NULL));
    if (call->n_inputs == 3) RW_CHECK(rw_want_same_dtype(call, 0, 2));
    if (call->n_inputs == 3) RW_CHECK(rw_expect_shape(call, 2, NULL, weight));
    return rw_op_output(call, 0, call->in[0].dtype, weight);
}

/* ---- costs ---- */

static rw_op_cost cost_of(const rw_op_call *call, int64_t taps)
{
    return rw_cost_product(call, 2 * (double)taps * (double)call->in[0].layout->numel);
}

static rw_op_cost cost(const rw_op_call *call)
{
    return cost_of(call, call->in[1].layout->dim[1]);
}

static rw_op_cost cost_weight(const rw_op_call *call)
{
    return cost_of(call, ((const struct rw_causal_conv1d_attrs *)call->attrs)->taps);
}

/* The weights with taps as the outer axis, in the type of sums. */
static size_t workspace(const rw_op_call *call)
{
    return (size_t)call->in[1].layout->numel * (call->in[0].dtype == RW_F64 ? sizeof(double) : sizeof(float));
}

/* ---- rules ---- */

static rw_status grad(rw_grad_call *g);
static rw_status grad_weight(rw_grad_call *g);

RW_BUILTIN_OP(causal_conv1d, "x weight bias", "F.conv1d(groups=channels), padded on the left")
RW_INTERNAL_OP(causal_conv1d_data, "dy weight")
/* The same op under two names: as causal_conv1d, and as a gradient. */
RW_DECLARE_KERNELS(rw_causal_conv1d)
#define CONV(NAME)                                                                                                   \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,               \
                                            .strided = RW_OP_INPUT(0), .check = check,                               \
                                            .kernel = RW_KERNELS(rw_causal_conv1d), .grad = grad, .cost = cost,      \
                                            .workspace = RW_WORKSPACES(workspace, NULL),                             \
                                            .cast_low = RW_OP_ALL_INPUTS };
CONV(causal_conv1d)
CONV(causal_conv1d_data)

RW_INTERNAL_OP(causal_conv1d_weight, "x dy sum")
RW_DECLARE_KERNELS(rw_causal_conv1d_weight)
RW_DECLARE_CUDA_WORKSPACE(rw_causal_conv1d_weight_workspace_cuda)
static const rw_op_def rw_op_causal_conv1d_weight = {
    .name = "causal_conv1d_weight",
    .n_inputs = RW_OP_VARIADIC,
    .n_outputs = 1,
    .strided = RW_OP_INPUT(0),
    .inplace = RW_INPLACE({ 0, 2 }),
    .optional = RW_OP_INPUT(2),
    .check = check_weight,
    .kernel = RW_KERNELS(rw_causal_conv1d_weight),
    .grad = grad_weight,
    .cost = cost_weight,
    .workspace = RW_WORKSPACES(NULL, rw_causal_conv1d_weight_workspace_cuda),
};

static rw_tensor *conv(rw_grad_call *g, rw_tensor *x, rw_tensor *weight, bool reversed)
{
    const struct rw_causal_conv1d_attrs a = { reversed, 0 };
    const rw_op_def *const op = reversed ? &rw_op_causal_conv1d_data : &rw_op_causal_conv1d;
    return rw_apply(rw_grad_tape(g), op, (rw_tensor *const[]){ x, weight }, 2, &a, sizeof a, NULL);
}

static rw_status grad(rw_grad_call *g)
{
    const struct rw_causal_conv1d_attrs *const own = rw_grad_attrs(g);
    rw_tensor *const x = rw_grad_input(g, 0), *const weight = rw_grad_input(g, 1), *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set(g, 0, conv(g, dy, weight, !own->reversed)));
    if (rw_grad_wanted(g, 1)) {
        const struct rw_causal_conv1d_attrs a = { own->reversed, rw_tensor_shape(weight).dim[1] };
        rw_tensor *const in[] = { x, dy, rw_grad_accumulator(g, 1) };
        rw_tensor *const dw = rw_apply(rw_grad_tape(g), &rw_op_causal_conv1d_weight, in, in[2] ? 3 : 2, &a, sizeof a,
                                       NULL);
        RW_CHECK(rw_grad_set_sum(g, 1, dw));
    }
    return rw_grad_n_inputs(g) > 2 && rw_grad_wanted(g, 2) ? rw_grad_set_sum_to(g, 2, dy) : RW_OK;
}

/* The rule of causal_conv1d_weight; u, the gradient of its dweight, has the shape of the weight. */
static rw_status grad_weight(rw_grad_call *g)
{
    const bool reversed = ((const struct rw_causal_conv1d_attrs *)rw_grad_attrs(g))->reversed;
    rw_tensor *const x = rw_grad_input(g, 0), *const dy = rw_grad_input(g, 1), *const u = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set(g, 0, conv(g, dy, u, !reversed)));
    if (rw_grad_wanted(g, 1)) RW_CHECK(rw_grad_set(g, 1, conv(g, x, u, reversed)));
    return rw_grad_n_inputs(g) > 2 && rw_grad_wanted(g, 2) ? rw_grad_set(g, 2, u) : RW_OK;
}

rw_tensor *rw_causal_conv1d_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias)
{
    RW_ENTER_OP(t);
    const struct rw_causal_conv1d_attrs a = { 0, 0 };
    rw_tensor *const in[] = { x, weight, bias };
    return rw_apply_at(at, t, &rw_op_causal_conv1d, in, bias == rw_none() ? 2 : 3, &a, sizeof a, NULL);
}
