/*
 * batchnorm, group_norm and instance_norm, and the running statistics of batchnorm: checks, gradient rules and public
 * functions.
 */
#include "ops/norm/batch_group_instance_norm.h"

#include "base/public_entry.h"
#include "ops/common/channels_last.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/pass_ops.h"
#include "ops/norm/layer_rms_norm.h"
#include "ops/pointwise/pointwise.h"
#include "ops/shape/virtual_concat.h"

#include <rewind/composite.h>
#include <rewind/fusion.h>
#include <rewind/norm.h>

#include <math.h>

/* ---- checks ---- */

/* Input `at` is x, or the first of its concatenation inputs, which have one type and differ only in their channels. */
static rw_status check_image(rw_op_call *call, int at, struct rw_groups *ret)
{
    const struct rw_groups_attrs *const a = call->attrs;
    const rw_layout *const x = call->in[at].layout;
    RW_CHECK(rw_want_float(call, at));
    if (x->rank < 2) return rw_unexpected(call, RW_ERR_SHAPE, at, "x", "rank 2 or more");
    if (!(a->eps >= 0 && isfinite(a->eps)))
        return rw_unexpected_real(call, "eps", a->eps, "a finite number of 0 or more");
    int64_t c = rw_groups_channels(x);
    for (int i = at + 1; i <= at + a->more; i++) {
        rw_shape s = rw_in_shape(call, i);
        RW_CHECK(rw_want_same_dtype(call, at, i));
        if (s.rank == x->rank && __builtin_add_overflow(c, s.dim[s.rank - 1], &c)) c = INT64_MAX;
        s.dim[x->rank - 1] = rw_groups_channels(x);
        if (!rw_shape_equal(s, rw_in_shape(call, at)))
            return rw_unexpected_shape_of(call, i, "concatenation input", at, "the first but for channels");
    }
    if (a->groups < 0 || (a->groups && c % a->groups))
        return rw_unexpected_int(call, RW_ERR_ARGUMENT, "groups", a->groups, "a divisor of %lld channels",
                                 (long long)c);
    *ret = rw_groups_of(a, x, c);
    return RW_OK;
}

static rw_status want_vector(rw_op_call *call, int i, rw_dtype dtype, int64_t n, const char *name)
{
    RW_CHECK(rw_expect_dtype(call, i, name, dtype));
    return rw_expect_shape(call, i, name, RW_SHAPE(n));
}

static rw_status want_statistics(rw_op_call *call, int i, const struct rw_groups *g)
{
    const rw_dtype wide = rw_groups_wide(call->in[0].dtype);
    RW_CHECK(want_vector(call, i, wide, g->segments * g->groups, "the mean"));
    return want_vector(call, i + 1, wide, g->segments * g->groups, "the variance");
}

/* (x, weight, bias[, mean, variance][, addend]) -> y[, mean, variance] */
static rw_status check_forward(rw_op_call *call)
{
    const struct rw_groups_attrs *const a = call->attrs;
    struct rw_groups g;
    RW_CHECK(check_image(call, 0, &g));
    const int weight = rw_groups_weight(&g);
    rw_shape y = rw_in_shape(call, 0);
    y.dim[y.rank - 1] = g.c;
    RW_CHECK(want_vector(call, weight, call->in[0].dtype, g.c, "weight"));
    RW_CHECK(want_vector(call, weight + 1, call->in[0].dtype, g.c, "bias"));
    if (call->n_inputs > rw_groups_added(&g)) RW_CHECK(rw_want_same_dtype(call, 0, rw_groups_added(&g)));
    RW_CHECK(rw_op_output(call, 0, call->in[0].dtype, y));
    if (g.given) return want_statistics(call, weight + 2, &g);
    if (!a->groups && g.rows == 1)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, "x", "2 elements or more per channel, for a variance");
    for (int i = 1; i < 3; i++)
        RW_CHECK(rw_op_output(call, i, rw_groups_wide(call->in[0].dtype), RW_SHAPE(g.segments * g.groups)));
    return RW_OK;
}

/* (dy, weight, mean, variance[, bias], x) -> dx, dweight, dbias */
static rw_status check_backward(rw_op_call *call)
{
    const struct rw_groups_attrs *const a = call->attrs;
    const int x = rw_groups_backward_x(a->relu != 0);
    struct rw_groups g;
    RW_CHECK(check_image(call, x, &g));
    rw_shape dy = rw_in_shape(call, x);
    dy.dim[dy.rank - 1] = g.c;
    RW_CHECK(want_vector(call, 1, call->in[0].dtype, g.c, "weight"));
    RW_CHECK(rw_want_same_dtype(call, 0, x));
    RW_CHECK(rw_expect_shape(call, 0, "dy", dy));
    RW_CHECK(want_statistics(call, 2, &g));
    if (g.relu) RW_CHECK(want_vector(call, 4, call->in[0].dtype, g.c, "bias"));
    RW_CHECK(rw_op_output_like(call, 0, 0));
    for (int i = 1; i < 3; i++) RW_CHECK(rw_op_output_like(call, i, 1));
    return RW_OK;
}

/* (mean, variance, running mean, running variance[, number of batches]), a commit to the last two or three. */
static rw_status check_update(rw_op_call *call)
{
    for (int i = 1; i < 4; i++) {
        RW_CHECK(rw_want_same_dtype(call, 0, i));
        RW_CHECK(rw_expect_shape_of(call, i, NULL, 0, NULL));
    }
    for (int i = 2; i < call->n_inputs; i++) RW_CHECK(rw_op_output_like(call, i - 2, i));
    return RW_OK;
}

/* Most operations are those of the statistics of x, or in backward of the sums with dy. */
static rw_op_cost cost(const rw_op_call *call)
{
    const struct rw_groups_attrs *const a = call->attrs;
    return rw_cost_pointwise(call, a->given && call->n_outputs == 1 ? 3 : 8);
}

/* From the layouts of y and of dx, which are always whole. */
static struct rw_groups groups_of(const rw_op_call *call)
{
    return rw_groups_of(call->attrs, call->out[0].layout, rw_groups_channels(call->out[0].layout));
}

static size_t workspace(const rw_op_call *call)
{
    const struct rw_groups g = groups_of(call);
    const int64_t size = (int64_t)rw_dtype_size(rw_groups_wide(call->in[0].dtype));
    return (size_t)rw_groups_workspace(&g, RW_GROUPS_LINES, !g.given, size);
}

static size_t workspace_backward(const rw_op_call *call)
{
    const struct rw_groups g = groups_of(call);
    const int64_t size = (int64_t)rw_dtype_size(rw_groups_wide(call->in[0].dtype));
    return (size_t)rw_groups_workspace(&g, g.relu ? RW_GROUPS_LINES_OF_RELU : RW_GROUPS_LINES, true, size);
}

RW_DECLARE_KERNELS(rw_groups)
RW_DECLARE_KERNELS(rw_groups_backward)
RW_DECLARE_KERNELS(rw_groups_update)

#define BACKWARD(NAME)                                                                                             \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = RW_OP_VARIADIC, .n_outputs = 3,             \
                                            .inplace = RW_INPLACE({ 0, 0 }), .check = check_backward,              \
                                            .kernel = RW_KERNELS(rw_groups_backward), .cost = cost,                \
                                            .workspace = RW_WORKSPACES(workspace_backward, workspace_backward) };
BACKWARD(batchnorm_backward)
BACKWARD(group_norm_backward)

RW_BUILTIN_OP(batchnorm_average, "mean variance running_mean running_var batches",
              "its running statistics with momentum=None")
RW_BUILTIN_OP(batchnorm_update, "mean variance running_mean running_var", "its running statistics")
#define UPDATE(NAME, IN, OUT)                                                                                      \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = IN, .n_outputs = OUT,                       \
                                            .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,            \
                                            .check = check_update, .kernel = RW_KERNELS(rw_groups_update) };
UPDATE(batchnorm_update, 4, 2)
UPDATE(batchnorm_average, 5, 3)

/* ---- rules ---- */

static int parts(const void *attrs, int64_t *ret_whole)
{
    const struct rw_groups_attrs *const a = attrs;
    *ret_whole = a->whole;
    return a->more ? (int)a->more + 1 : 0;
}

/* x, or the value that is virtually concatenated, in the type in which the op reads it, which a recipe may have
   widened. */
static rw_tensor *x_of(rw_grad_call *g)
{
    const struct rw_groups_attrs *const a = rw_grad_attrs(g);
    rw_tensor *const x = a->more ? rw_grad_whole(g) : rw_grad_input(g, 0);
    return a->more ? rw_cast(rw_grad_tape(g), x, rw_tensor_dtype(rw_grad_input(g, 0))) : x;
}

static bool wants_x(const rw_grad_call *g)
{
    const struct rw_groups_attrs *const a = rw_grad_attrs(g);
    return a->more ? rw_grad_whole_wanted(g) : rw_grad_wanted(g, 0);
}

static rw_status set_x(rw_grad_call *g, rw_tensor *dx)
{
    const struct rw_groups_attrs *const a = rw_grad_attrs(g);
    if (!a->more) return rw_grad_set_narrowed(g, 0, dx);
    rw_tensor *const x = rw_grad_whole(g);
    return rw_grad_set_whole(g, dx ? rw_cast(rw_grad_tape(g), dx, rw_tensor_dtype(x)) : NULL);
}

/* Is there a gradient for statistics that were given? */
static bool wants_statistics(const rw_grad_call *g, const struct rw_groups *of)
{
    const int mean = rw_groups_weight(of) + 2;
    return of->given && (rw_grad_wanted(g, mean) || rw_grad_wanted(g, mean + 1));
}

/* The gradients of given statistics: those of (x - mean) r with r = (var + eps)^-1/2, where h is the gradient of xh. */
static rw_status set_statistics(rw_grad_call *g, const struct rw_groups *of, rw_tensor *h, rw_tensor *xh, rw_tensor *r)
{
    rw_tape *const t = rw_grad_tape(g);
    const int mean = rw_groups_weight(of) + 2;
    const rw_shape row = RW_SHAPE(of->groups, of->width), vector = rw_tensor_shape(rw_grad_input(g, mean));
    if (rw_grad_wanted(g, mean)) {
        rw_tensor *const sum = rw_sum_to(t, rw_neg(t, rw_mul(t, r, h)), row);
        RW_CHECK(rw_grad_set_narrowed(g, mean, rw_reshape(t, sum, vector)));
    }
    if (!rw_grad_wanted(g, mean + 1)) return RW_OK;
    rw_tensor *const sum = rw_sum_to(t, rw_mul(t, h, xh), row), *const half = rw_scale(t, rw_mul(t, r, r), -0.5);
    return rw_grad_set_narrowed(g, mean + 1, rw_reshape(t, rw_mul(t, sum, half), vector));
}

/*
 * Composed of ops, with x as [segments, rows, groups, width]: xh = (x - mean) / sqrt(var + eps), dx = r (h - mean(h) -
 * xh mean(h xh)) with h = dy weight and r = 1 / sqrt(var + eps). The means are 0 if the statistics are constants.
 */
static rw_status grad_again(rw_grad_call *g, const struct rw_groups *of, rw_tensor *dz)
{
    rw_tape *const t = rw_grad_tape(g);
    const int weight = rw_groups_weight(of);
    rw_tensor *const x0 = rw_grad_widened(g, x_of(g)), *const w0 = rw_grad_widened(g, rw_grad_input(g, weight));
    const rw_shape image = rw_tensor_shape(x0), vector = rw_tensor_shape(w0);
    const rw_shape cut = RW_SHAPE(of->segments, of->rows, of->groups, of->width), row = RW_SHAPE(of->groups, of->width);
    rw_tensor *const x = rw_reshape(t, x0, cut), *const w = rw_reshape(t, w0, row);
    rw_tensor *const dy = rw_reshape(t, rw_grad_widened(g, dz), cut);
    rw_tensor *centred, *r;
    if (of->given) {
        rw_tensor *const mean = rw_reshape(t, rw_cast(t, rw_grad_input(g, weight + 2), rw_tensor_dtype(x0)), row);
        rw_tensor *const var = rw_reshape(t, rw_cast(t, rw_grad_input(g, weight + 3), rw_tensor_dtype(x0)), row);
        r = rw_pow_scalar(t, rw_add_scalar(t, var, of->eps), -0.5);
        centred = rw_sub(t, x, mean);
    } else {
        centred = rw_centred_at(RW_HERE, t, x, RW_AXES(1, 3));
        r = rw_norm_scale(t, rw_mean(t, rw_mul(t, centred, centred), RW_AXES(1, 3), true), of->eps);
    }
    rw_tensor *const xh = rw_mul(t, centred, r), *h = rw_mul(t, dy, w);
    if (wants_statistics(g, of)) RW_CHECK(set_statistics(g, of, h, xh, r));
    if (wants_x(g)) {
        if (!of->given) {
            rw_tensor *const inner = rw_mul(t, xh, rw_mean(t, rw_mul(t, h, xh), RW_AXES(1, 3), true));
            h = rw_sub(t, h, rw_add(t, inner, rw_mean(t, h, RW_AXES(1, 3), true)));
        }
        RW_CHECK(set_x(g, rw_reshape(t, rw_mul(t, r, h), image)));
    }
    if (rw_grad_wanted(g, weight))
        RW_CHECK(rw_grad_set_narrowed(g, weight, rw_reshape(t, rw_sum_to(t, rw_mul(t, dy, xh), row), vector)));
    if (!rw_grad_wanted(g, weight + 1)) return RW_OK;
    return rw_grad_set_narrowed(g, weight + 1, rw_reshape(t, rw_sum_to(t, dy, row), vector));
}

/* Records the fused backward op. It includes the gradient of a relu of the result, unless the relu was applied to a
   sum; in that case dz already includes it. */
static rw_status grad_at_once(rw_grad_call *g, const struct rw_groups *of, bool relu, rw_tensor *dz)
{
    struct rw_groups_attrs a = *(const struct rw_groups_attrs *)rw_grad_attrs(g);
    a.relu = relu;
    const int weight = rw_groups_weight(of), x = rw_groups_backward_x(relu);
    rw_tensor *in[RW_PIECES_MAX + 5] = {
        dz, rw_grad_input(g, weight), of->given ? rw_grad_input(g, weight + 2) : rw_grad_output(g, 1),
        of->given ? rw_grad_input(g, weight + 3) : rw_grad_output(g, 2), rw_grad_input(g, weight + 1)
    };
    rw_tensor *out[3] = { NULL, NULL, NULL };
    for (int i = 0; i < weight; i++) in[x + i] = rw_grad_input(g, i);
    rw_apply(rw_grad_tape(g), a.groups ? &rw_op_group_norm_backward : &rw_op_batchnorm_backward, in, x + weight, &a,
             sizeof a, out);
    if (wants_x(g)) RW_CHECK(set_x(g, out[0]));
    for (int i = 0; i < 2; i++)
        if (rw_grad_wanted(g, weight + i)) RW_CHECK(rw_grad_set(g, weight + i, out[1 + i]));
    return RW_OK;
}

/* Computed statistics have no gradient, because only the update of running statistics reads them. Given ones may be any
   tensors; their gradients are composed of ops. */
static rw_status grad(rw_grad_call *g)
{
    const struct rw_groups_attrs *const a = rw_grad_attrs(g);
    const rw_layout *const y = rw_tensor_layout(rw_grad_output(g, 0));
    const struct rw_groups of = rw_groups_of(a, y, rw_groups_channels(y));
    const int weight = rw_groups_weight(&of), added = rw_groups_added(&of);
    const bool again = rw_grad_is_differentiable(g) || wants_statistics(g, &of);
    const bool adds = rw_grad_n_inputs(g) > added, apart = of.relu && (adds || again);
    rw_tensor *const dz = apart ? rw_relu_slope(g, rw_grad_output(g, 0), rw_grad_upstream(g, 0))
                                : rw_grad_upstream(g, 0);
    if (adds && rw_grad_wanted(g, added)) RW_CHECK(rw_grad_set(g, added, dz));
    if (!wants_x(g) && !rw_grad_wanted(g, weight) && !rw_grad_wanted(g, weight + 1) && !wants_statistics(g, &of))
        return RW_OK;
    return again ? grad_again(g, &of, dz) : grad_at_once(g, &of, of.relu && !apart, dz);
}

RW_BUILTIN_OP(batchnorm_eval, "x weight bias running_mean running_var add", "F.batch_norm(training=False)")
#define FORWARD(NAME, ADDED, OUT, RECOMPUTE)                                                                       \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = RW_OP_VARIADIC, .n_outputs = OUT,           \
                                            .inplace = RW_INPLACE({ 0, 0 }, { 0, ADDED }), .check = check_forward, \
                                            .kernel = RW_KERNELS(rw_groups), .grad = grad, .cost = cost,           \
                                            .workspace = RW_WORKSPACES(workspace, workspace),                      \
                                            .recompute_output = RECOMPUTE, .cast_f32 = RW_OP_ALL_INPUTS,           \
                                            .parts = parts };
FORWARD(batchnorm_eval, 5, 1, NULL)
FORWARD(group_norm_given, 5, 1, NULL)

/* Recomputes the result from the statistics kept for backward: x is read once. A replay would read it twice, to compute
   the statistics first. */
static rw_tensor *recompute(rw_tape *t, const rw_op_call *call, int i, rw_tensor *const *in, rw_tensor *const *out)
{
    struct rw_groups_attrs a = *(const struct rw_groups_attrs *)call->attrs;
    const struct rw_groups g = groups_of(call);
    const int added = rw_groups_added(&g);
    rw_tensor *of[RW_PIECES_MAX + 5];
    for (int k = 0; k < added; k++) of[k] = in[k];
    of[added] = out[1], of[added + 1] = out[2];
    of[added + 2] = call->n_inputs > added ? in[added] : NULL;
    const rw_op_def *const op = a.groups ? &rw_op_group_norm_given : &rw_op_batchnorm_eval;
    a.given = 1;
    return i ? NULL : rw_apply(t, op, of, call->n_inputs > added ? added + 3 : added + 2, &a, sizeof a, NULL);
}

RW_BUILTIN_OP(batchnorm, "x weight bias add", "F.batch_norm(training=True)")
RW_BUILTIN_OP(group_norm, "x weight bias", "F.group_norm")
RW_BUILTIN_OP(instance_norm, "x weight bias", "F.instance_norm")
FORWARD(batchnorm, 3, 3, recompute)
FORWARD(group_norm, 3, 3, recompute)
FORWARD(instance_norm, 3, 3, recompute)

/* ---- public functions ---- */

static bool has_channels(rw_site at, rw_tape *t, rw_tensor *x, const char *name)
{
    if (!rw_operand_check(at, t, x, name, "x")) return false;
    if (rw_tensor_shape(x).rank >= 2) return true;
    return rw_refuse_operand_at(at, t, RW_ERR_SHAPE, name, "x", x, "[n, c] or [n, c, ...]");
}

/* An omitted weight or bias: ones or zeros without a gradient. Called inside of the composite. */
static rw_tensor *vector_or(rw_site at, rw_tape *t, rw_tensor *vector, const rw_tensor *x, double value)
{
    if (vector != rw_none()) return vector;
    return rw_full_at(at, t, rw_tensor_dtype(x), RW_SHAPE(rw_tensor_shape(x).dim[1]), value);
}

/* x in channels-last order, as the kernels read it; [n, c] already has it. */
static rw_tensor *inside(rw_site at, rw_tape *t, rw_tensor *x)
{
    return rw_tensor_shape(x).rank > 2 ? rw_channels_inside_at(at, t, x) : x;
}

/* Records an op on in[0], which is channels-last, or the first of several concatenation inputs. */
static rw_tensor *apply(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *const *in, int n,
                        const struct rw_groups_attrs *a, rw_tensor **out)
{
    rw_tensor *const y = rw_apply_at(at, t, op, in, n, a, sizeof *a, out);
    return y && rw_tensor_shape(y).rank > 2 ? rw_channels_outside_at(at, t, y) : y;
}

/* Checks the number of batches: a buffer with one number, of the type of the running statistics, used instead of a
   momentum. */
static bool batches_are_sound(rw_site at, rw_tape *t, const rw_tensor *mean, const rw_batchnorm_params *p)
{
    const char *text = NULL;
    if (p->momentum > 0)
        return !rw_refuse_at(at, t, RW_ERR_ARGUMENT, "batchnorm(momentum): expected 0 with batches, got %g",
                             p->momentum);
    if (mean == rw_none()) text = "RW_NONE without running statistics";
    else if (rw_tensor_kind_of(p->batches) != RW_TENSOR_BUFFER) text = "a buffer made by rw_buffer()";
    if (text) return !rw_refuse_at(at, t, RW_ERR_ARGUMENT, "batchnorm(batches): expected %s, got another tensor", text);
    if (rw_shape_numel(rw_tensor_shape(p->batches)) != 1 || rw_tensor_shape(p->batches).rank > 1)
        return rw_refuse_operand_at(at, t, RW_ERR_ARGUMENT, "batchnorm", "batches", p->batches, "shape [] or [1]");
    if (rw_tensor_dtype(p->batches) == rw_tensor_dtype(mean)) return true;
    return !rw_refuse_at(at, t, RW_ERR_ARGUMENT, "batchnorm(batches): expected %s, the type of running_mean, got %s",
                         rw_dtype_name(rw_tensor_dtype(mean)), rw_dtype_name(rw_tensor_dtype(p->batches)));
}

/* Checks the running statistics: none, or both buffers; in evaluation any that exist. */
static bool statistics_are_sound(rw_site at, rw_tape *t, rw_tensor *mean, rw_tensor *var, const rw_batchnorm_params *p)
{
    const char *fault = NULL;
    if (!mean) fault = "running_mean is NULL; expected a buffer or RW_NONE";
    else if (!var) fault = "running_var is NULL; expected a buffer or RW_NONE";
    else if (mean == rw_none() && var != rw_none())
        fault = "running_mean: expected a tensor as running_var is one, got RW_NONE";
    else if (mean != rw_none() && var == rw_none())
        fault = "running_var: expected a tensor as running_mean is one, got RW_NONE";
    else if (p->evaluate && mean == rw_none())
        fault = "running_mean: expected a tensor in evaluation, got RW_NONE";
    else if (!p->evaluate && mean != rw_none() &&
             (rw_tensor_kind_of(mean) != RW_TENSOR_BUFFER || rw_tensor_kind_of(var) != RW_TENSOR_BUFFER))
        fault = "running_mean, running_var: expected buffers made by rw_buffer(), got another tensor";
    if (fault) return !rw_refuse_at(at, t, RW_ERR_ARGUMENT, "batchnorm: %s", fault);
    if (!(p->momentum >= 0 && p->momentum <= 1))
        return !rw_refuse_at(at, t, RW_ERR_ARGUMENT, "batchnorm(momentum): expected 0 to 1, got %g", p->momentum);
    return !p->batches || p->batches == rw_none() || batches_are_sound(at, t, mean, p);
}

/* Checks the addend: none, or one with x's shape. */
static bool addend_is_sound(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *add)
{
    if (!add || add == rw_none()) return true;
    if (!rw_operand_check(at, t, add, "batchnorm", "add")) return false;
    return rw_operand_has_shape_at(at, t, "batchnorm", "add", add, rw_tensor_shape(x));
}

/*
 * Updates running statistics from the statistics of the first output. The factor n / (n - 1) makes the variance an
 * unbiased estimate. The op reads the buffers when the step ends, so of two uses of a layer on one tape the second
 * continues from the first.
 */
static bool update(rw_site at, rw_tape *t, rw_tensor *const *of, rw_tensor *mean, rw_tensor *var,
                   const rw_batchnorm_params *p, int64_t n)
{
    const bool counts = p->batches && p->batches != rw_none();
    const struct rw_running_attrs a = { counts ? 0 : rw_or_default(p->momentum, 0.1), (double)n / (double)(n - 1) };
    rw_tensor *const in[] = { of[1], of[2], mean, var, p->batches };
    const rw_op_def *const op = counts ? &rw_op_batchnorm_average : &rw_op_batchnorm_update;
    return rw_apply_at(at, t, op, in, op->n_inputs, &a, sizeof a, NULL) != NULL;
}

/* Records batchnorm and the update of its running statistics; see the public header for the contract. */
rw_tensor *rw_batchnorm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias, rw_tensor *mean,
                           rw_tensor *var, const rw_batchnorm_params *params)
{
    RW_ENTER_OP(t);
    static const rw_batchnorm_params defaults;
    const rw_batchnorm_params *const p = params ? params : &defaults;
    if (!has_channels(at, t, x, "batchnorm") || !statistics_are_sound(at, t, mean, var, p)) return NULL;
    if (!addend_is_sound(at, t, x, p->add)) return NULL;
    struct rw_groups_attrs a = { .eps = rw_constant(x, rw_or_default(p->eps, 1e-5)), .given = p->evaluate,
                                 .relu = p->relu };
    const rw_composite c = rw_composite_begin(t, "batchnorm");
    rw_tensor *in[RW_PIECES_MAX + 5], *out[3];
    const rw_shape s = rw_tensor_shape(x);
    int n = rw_virtual_concat_inputs(inside(at, t, x), s.rank - 1, in, &a.more, &a.whole);
    in[n++] = vector_or(at, t, weight, x, 1), in[n++] = vector_or(at, t, bias, x, 0);
    if (p->evaluate) in[n++] = mean, in[n++] = var;
    if (p->add && p->add != rw_none()) in[n++] = inside(at, t, p->add);
    rw_tensor *y = apply(at, t, p->evaluate ? &rw_op_batchnorm_eval : &rw_op_batchnorm, in, n, &a, out);
    const int64_t rows = rw_shape_numel(s) / (s.dim[1] ? s.dim[1] : 1);
    const bool moves = !p->evaluate && mean != rw_none() && rows; /* an empty batch does not change them */
    if (y && moves && !update(at, t, out, mean, var, p, rows)) y = NULL;
    return rw_composite_end(&c, y);
}

static rw_tensor *of_images(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *x, int64_t groups,
                            rw_tensor *weight, rw_tensor *bias, double eps)
{
    struct rw_groups_attrs a = { .eps = rw_constant(x, eps), .groups = groups };
    const rw_composite c = rw_composite_begin(t, op->name);
    rw_tensor *in[RW_PIECES_MAX + 2];
    int n = rw_virtual_concat_inputs(inside(at, t, x), rw_tensor_shape(x).rank - 1, in, &a.more, &a.whole);
    in[n++] = vector_or(at, t, weight, x, 1), in[n++] = vector_or(at, t, bias, x, 0);
    return rw_composite_end(&c, apply(at, t, op, in, n, &a, NULL));
}

rw_tensor *rw_group_norm_at(rw_site at, rw_tape *t, rw_tensor *x, int groups, rw_tensor *weight, rw_tensor *bias,
                            double eps)
{
    RW_ENTER_OP(t);
    if (!has_channels(at, t, x, "group_norm")) return NULL;
    if (groups < 1) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "group_norm(groups): expected 1 or more, got %d", groups);
        return NULL;
    }
    return of_images(at, t, &rw_op_group_norm, x, groups, weight, bias, eps);
}

rw_tensor *rw_instance_norm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias, double eps)
{
    RW_ENTER_OP(t);
    if (!rw_operand_check(at, t, x, "instance_norm", "x")) return NULL;
    const rw_shape s = rw_tensor_shape(x);
    int64_t pixels = s.rank > 2 ? 1 : 0;
    for (int i = 2; i < s.rank; i++) pixels *= s.dim[i];
    if (s.rank < 3 || pixels == 1) {
        rw_refuse_operand_at(at, t, RW_ERR_SHAPE, "instance_norm", "x", x, "%s",
                             s.rank < 3 ? "[n, c, ...]" : "2 elements or more per channel, for a variance");
        return NULL;
    }
    const int64_t c = s.dim[1];
    return of_images(at, t, &rw_op_instance_norm, x, c ? c : 1, weight, bias, eps);
}
