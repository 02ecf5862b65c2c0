/*
 * layernorm and rmsnorm over the last axis: checks, gradient rules and public functions. No statistics are kept:
 * backward recomputes them from the row of x that it reads anyway. If gradients must be differentiable, the rule
 * composes them from ops.
 */
#include "ops/norm/layer_rms_norm.h"

#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <rewind/composite.h>
#include <rewind/fusion.h>

#include <math.h>

static rw_status check_rows(rw_op_call *call)
{
    const rw_layout *const x = call->in[0].layout;
    RW_CHECK(rw_want_float(call, 0));
    if (x->rank < 1) return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "rank 1 or more: the last axis is normalized");
    const struct rw_norm_attrs *const a = call->attrs;
    const int vectors = a->vectors;
    if (!(a->eps >= 0 && isfinite(a->eps)))
        return rw_unexpected_real(call, "eps", a->eps, "a finite number of 0 or more");
    for (int i = 1; i <= vectors; i++) {
        RW_CHECK(rw_want_same_dtype(call, 0, i));
        RW_CHECK(rw_expect_shape(call, i, i == 1 ? "weight" : "bias", RW_SHAPE(x->dim[x->rank - 1])));
    }
    return RW_OK;
}

static rw_status check_forward(rw_op_call *call)
{
    RW_CHECK(check_rows(call));
    return rw_op_output_like(call, 0, 0);
}

/* (x, weight, dy[, with a->sums one addend for each vector, and perhaps one for dx]) -> dx and the vectors: dweight,
   for layernorm dbias, and perhaps the sums of dx's columns. Each addend is added to an output. */
static rw_status check_backward(rw_op_call *call)
{
    const int of_dx = rw_norm_addend(call->attrs, call->n_outputs);
    RW_CHECK(rw_expect_inputs(call, of_dx, of_dx + 1, "x, weight, dy and the sums that gradients are added to"));
    RW_CHECK(check_rows(call));
    for (int i = 2; i < call->n_inputs; i++) {
        const int like = i > 2 && i < of_dx;
        const char *const name = i == 2 ? "dy" : "sum";
        RW_CHECK(like ? rw_want_sum_of(call, i, 0) : rw_expect_dtype_of(call, i, name, 0, "x"));
        RW_CHECK(rw_expect_shape_of(call, i, name, like, like ? "weight" : "x"));
    }
    RW_CHECK(rw_op_output_like(call, 0, 0));
    for (int i = 1; i < call->n_outputs; i++) RW_CHECK(rw_op_output_like(call, i, of_dx > 3 ? 2 + i : 1));
    return RW_OK;
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 8);
}

static size_t workspace_backward_cpu(const rw_op_call *call)
{
    const rw_layout *const x = call->in[0].layout;
    const int64_t width = x->dim[x->rank - 1], blocks = rw_norm_blocks(rw_norm_rows(x));
    const size_t size = call->in[0].dtype == RW_F64 ? sizeof(double) : sizeof(float);
    return (size_t)(blocks * rw_norm_vectors(call->n_outputs) * width) * size;
}

RW_DECLARE_KERNELS(rw_norm)
RW_DECLARE_KERNELS(rw_norm_backward)
RW_DECLARE_CUDA_WORKSPACE(rw_norm_backward_workspace_cuda)

/* _add: with addends for the vectors' gradients, followed by that of dx. _columns: with the sums of dx's columns. */
#define BACKWARD(NAME, N_OUTPUTS, OPTIONAL, ...)                                                                       \
    static const rw_op_def rw_op_##NAME = { .name = #NAME,                                                             \
                                            .n_inputs = RW_OP_VARIADIC,                                                \
                                            .n_outputs = N_OUTPUTS,                                                    \
                                            .inplace = RW_INPLACE({ 0, 2 }, __VA_ARGS__),                              \
                                            .optional = OPTIONAL,                                                      \
                                            .check = check_backward,                                                   \
                                            .kernel = RW_KERNELS(rw_norm_backward),                                    \
                                            .cost = cost,                                                              \
                                            .workspace = RW_WORKSPACES(workspace_backward_cpu,                         \
                                                                       rw_norm_backward_workspace_cuda) };

#define INPUTS_3_TO_4 (RW_OP_INPUT(3) | RW_OP_INPUT(4))
#define INPUTS_3_TO_5 (INPUTS_3_TO_4 | RW_OP_INPUT(5))
BACKWARD(layernorm_backward, 3, RW_OP_INPUT(3), { 0, 3 })
BACKWARD(layernorm_backward_add, 3, INPUTS_3_TO_5, { 0, 5 }, { 1, 3 }, { 2, 4 })
BACKWARD(layernorm_backward_columns, 4, RW_OP_INPUT(3), { 0, 3 })
BACKWARD(layernorm_backward_columns_add, 4, INPUTS_3_TO_5 | RW_OP_INPUT(6), { 0, 6 }, { 1, 3 }, { 2, 4 }, { 3, 5 })
BACKWARD(rmsnorm_backward, 2, RW_OP_INPUT(3), { 0, 3 })
BACKWARD(rmsnorm_backward_add, 2, INPUTS_3_TO_4, { 0, 4 }, { 1, 3 })
BACKWARD(rmsnorm_backward_columns, 3, RW_OP_INPUT(3), { 0, 3 })
BACKWARD(rmsnorm_backward_columns_add, 3, INPUTS_3_TO_5, { 0, 5 }, { 1, 3 }, { 2, 4 })

rw_tensor *rw_norm_scale(rw_tape *t, rw_tensor *var, double eps)
{
    rw_tensor *const finite = rw_add(t, var, rw_scale(t, var, 0));
    return rw_pow_scalar(t, rw_add_scalar(t, finite, eps), -0.5);
}

/* Composed of ops: xh = (x - mean) / sqrt(var + eps), dx = r (h - mean(h) - xh mean(h xh)) with h = dy weight and r = 1
   / sqrt(var + eps). */
static rw_status grad_again(rw_grad_call *g, const struct rw_norm_attrs *a)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const x = rw_grad_widened(g, rw_grad_input(g, 0)), *const w = rw_grad_widened(g, rw_grad_input(g, 1));
    rw_tensor *const dy = rw_grad_widened(g, rw_grad_upstream(g, 0));
    const rw_shape vector = rw_tensor_shape(w);
    rw_tensor *const centred = a->rms ? x : rw_centred_at(RW_HERE, t, x, RW_AXES(-1));
    rw_tensor *const var = rw_mean(t, rw_mul(t, centred, centred), RW_AXES(-1), true);
    rw_tensor *const r = rw_norm_scale(t, var, a->eps);
    rw_tensor *const xh = rw_mul(t, centred, r), *const h = rw_mul(t, dy, w);
    rw_tensor *inner = rw_mul(t, xh, rw_mean(t, rw_mul(t, h, xh), RW_AXES(-1), true));
    if (!a->rms) inner = rw_add(t, inner, rw_mean(t, h, RW_AXES(-1), true));
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set_narrowed(g, 0, rw_mul(t, r, rw_sub(t, h, inner))));
    if (rw_grad_wanted(g, 1)) RW_CHECK(rw_grad_set_narrowed(g, 1, rw_sum_to(t, rw_mul(t, dy, xh), vector)));
    if (a->vectors == 2 && rw_grad_wanted(g, 2)) return rw_grad_set_narrowed(g, 2, rw_sum_to(t, dy, vector));
    return RW_OK;
}

/* The sums so far of the vectors' gradients; false if one of them has none. */
static bool has_sums(rw_grad_call *g, int vectors, rw_tensor **ret_sums)
{
    bool all = true;
    for (int i = 0; i < vectors; i++) all &= (ret_sums[i] = rw_grad_wide_addend(g, 1 + i)) != NULL;
    return all;
}

/*
 * Adds to the sums so far in the same pass: x may be a residual stream, and the vectors are parameters. If x is the
 * output of a layer with a bias, also computes the sums of dx's columns, which are the gradient of that bias.
 */
static rw_status grad(rw_grad_call *g)
{
    static const rw_op_def *const ops[2][2][2] = {
        { { &rw_op_layernorm_backward, &rw_op_layernorm_backward_add },
          { &rw_op_layernorm_backward_columns, &rw_op_layernorm_backward_columns_add } },
        { { &rw_op_rmsnorm_backward, &rw_op_rmsnorm_backward_add },
          { &rw_op_rmsnorm_backward_columns, &rw_op_rmsnorm_backward_columns_add } }
    };
    const struct rw_norm_attrs forward = *(const struct rw_norm_attrs *)rw_grad_attrs(g);
    if (rw_grad_is_differentiable(g)) return grad_again(g, &forward);
    struct rw_norm_attrs a = forward;
    const int n_gradients = a.rms ? 1 : 2; /* number of gradients of vectors */
    a.vectors = 1;
    rw_tensor *in[7] = { rw_grad_input(g, 0), rw_grad_input(g, 1), rw_grad_upstream(g, 0) };
    rw_tensor *out[4] = { NULL, NULL, NULL, NULL };
    bool columns = rw_grad_wants_column_sums(g, 0, &in[3 + n_gradients]);
    /* layernorm's backward computes dbias even without a bias: it then has no addend */
    a.sums = (a.rms || forward.vectors == 2) && has_sums(g, forward.vectors, in + 3) &&
             (!columns || in[3 + n_gradients]);
    /* without addends the sums would be rounded to x's type before they are added to a wider sum */
    columns &= a.sums || !in[3 + n_gradients] || rw_tensor_dtype(in[3 + n_gradients]) == rw_tensor_dtype(in[0]);
    const int of_dx = a.sums ? 3 + n_gradients + columns : 3;
    in[of_dx] = rw_grad_accumulator(g, 0);
    rw_apply(rw_grad_tape(g), ops[a.rms != 0][columns][a.sums], in, in[of_dx] ? of_dx + 1 : of_dx, &a, sizeof a, out);
    if (columns) rw_grad_set_column_sums(g, 0, out[1 + n_gradients], a.sums);
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set_sum(g, 0, out[0]));
    for (int i = 1; i <= forward.vectors; i++) {
        if (!rw_grad_wanted(g, i)) continue;
        RW_CHECK(a.sums ? rw_grad_set_sum(g, i, out[i]) : rw_grad_set(g, i, out[i]));
    }
    return RW_OK;
}

RW_BUILTIN_OP(layernorm, "x weight bias", "F.layer_norm")
RW_BUILTIN_OP(rmsnorm, "x weight", "F.rms_norm")
static const rw_op_def rw_op_layernorm = { .name = "layernorm",
                                           .n_inputs = RW_OP_VARIADIC,
                                           .n_outputs = 1,
                                           .inplace = RW_INPLACE({ 0, 0 }),
                                           .check = check_forward,
                                           .kernel = RW_KERNELS(rw_norm),
                                           .grad = grad,
                                           .cost = cost,
                                           .cast_f32 = RW_OP_ALL_INPUTS };
static const rw_op_def rw_op_rmsnorm = { .name = "rmsnorm",
                                         .n_inputs = 2,
                                         .n_outputs = 1,
                                         .inplace = RW_INPLACE({ 0, 0 }),
                                         .check = check_forward,
                                         .kernel = RW_KERNELS(rw_norm),
                                         .grad = grad,
                                         .cost = cost,
                                         .cast_f32 = RW_OP_ALL_INPUTS };

static rw_tensor *record(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                         double eps)
{
    const bool rms = op == &rw_op_rmsnorm, has_bias = !rms && bias != rw_none();
    const struct rw_norm_attrs a = { .eps = rw_constant(x, eps), .vectors = has_bias ? 2 : 1, .rms = rms };
    rw_tensor *const in[] = { x, weight, bias };
    return rw_apply_at(at, t, op, in, has_bias ? 3 : 2, &a, sizeof a, NULL);
}

/* Without a weight the kernel multiplies by ones, which is exact. */
static rw_tensor *record_plain(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *x, rw_tensor *bias, double eps)
{
    if (!rw_operand_check(at, t, x, op->name, "x")) return NULL;
    const rw_shape s = rw_tensor_shape(x);
    const rw_composite c = rw_composite_begin(t, op->name);
    rw_tensor *const ones = rw_full_at(at, t, rw_tensor_dtype(x), RW_SHAPE(s.rank ? s.dim[s.rank - 1] : 1), 1);
    return rw_composite_end(&c, ones ? record(at, t, op, x, ones, bias, eps) : NULL);
}

rw_tensor *rw_layernorm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias, double eps)
{
    RW_ENTER_OP(t);
    return weight == rw_none() ? record_plain(at, t, &rw_op_layernorm, x, bias, eps)
                               : record(at, t, &rw_op_layernorm, x, weight, bias, eps);
}

rw_tensor *rw_rmsnorm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, double eps)
{
    RW_ENTER_OP(t);
    return weight == rw_none() ? record_plain(at, t, &rw_op_rmsnorm, x, rw_none(), eps)
                               : record(at, t, &rw_op_rmsnorm, x, weight, rw_none(), eps);
}
