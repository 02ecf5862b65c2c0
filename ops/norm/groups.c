/* batchnorm, group_norm and instance_norm, and the running statistics of the first. See groups.h. */
#include "ops/norm/groups.h"

#include "ops/common/channels.h"
#include "ops/common/kernels.h"
#include "ops/norm/norm.h"
#include "ops/pointwise/pointwise.h"
#include "ops/shape/joined.h"
#include "record/maker.h"
#include "record/own_ops.h"

#include <rewind/norm.h>

#include <math.h>

/* ---- checks ---- */

/* Input `at` is x, or the first of its pieces, which have one type and differ in their channels alone. */
static rw_status check_image(rw_op_call *call, int at, struct rw_groups *ret)
{
    const struct rw_groups_attrs *const a = call->attrs;
    const rw_layout *const x = call->in[at].layout;
    RW_CHECK(rw_want_float(call, at));
    if (x->rank < 2) return rw_op_error(call, RW_ERR_SHAPE, "x needs two axes");
    if (!(a->eps >= 0 && isfinite(a->eps))) return rw_op_error(call, RW_ERR_ARGUMENT, "eps %g", a->eps);
    int64_t c = rw_groups_channels(x);
    for (int i = at + 1; i <= at + a->more; i++) {
        rw_shape s = rw_in_shape(call, i);
        RW_CHECK(rw_want_same_dtype(call, at, i));
        if (s.rank == x->rank && __builtin_add_overflow(c, s.dim[s.rank - 1], &c)) c = INT64_MAX;
        s.dim[x->rank - 1] = rw_groups_channels(x);
        if (!rw_shape_equal(s, rw_in_shape(call, at)))
            return rw_op_error(call, RW_ERR_SHAPE, "piece %d of x has another shape", i - at);
    }
    if (a->groups < 0 || (a->groups && c % a->groups))
        return rw_op_error(call, RW_ERR_ARGUMENT, "%lld groups of %lld channels", (long long)a->groups, (long long)c);
    *ret = rw_groups_of(a, x, c);
    return RW_OK;
}

static rw_status want_vector(rw_op_call *call, int i, rw_dtype dtype, int64_t n, const char *name)
{
    RW_CHECK(rw_want_dtype(call, i, dtype));
    if (call->in[i].layout->rank == 1 && call->in[i].layout->dim[0] == n) return RW_OK;
    return rw_op_error(call, RW_ERR_SHAPE, "%s is not [%lld]", name, (long long)n);
}

static rw_status want_statistics(rw_op_call *call, int i, const struct rw_groups *g)
{
    const rw_dtype wide = rw_groups_wide(call->in[0].dtype);
    RW_CHECK(want_vector(call, i, wide, g->segments * g->groups, "the mean"));
    return want_vector(call, i + 1, wide, g->segments * g->groups, "the variance");
}

/* (x, weight, bias[, mean, variance][, what is added]) -> y[, mean, variance] */
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
        return rw_op_error(call, RW_ERR_SHAPE, "1 element of a channel has no variance");
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
    if (!rw_shape_equal(rw_in_shape(call, 0), dy))
        return rw_op_error(call, RW_ERR_SHAPE, "dy has not x's shape");
    RW_CHECK(want_statistics(call, 2, &g));
    if (g.relu) RW_CHECK(want_vector(call, 4, call->in[0].dtype, g.c, "bias"));
    RW_CHECK(rw_op_output_like(call, 0, 0));
    for (int i = 1; i < 3; i++) RW_CHECK(rw_op_output_like(call, i, 1));
    return RW_OK;
}

/* (mean, variance, running mean, running variance[, number of batches]), a commit to the last two, or three. */
static rw_status check_update(rw_op_call *call)
{
    for (int i = 1; i < 4; i++) {
        RW_CHECK(rw_want_same_dtype(call, 0, i));
        if (!rw_shape_equal(rw_in_shape(call, 0), rw_in_shape(call, i)))
            return rw_op_error(call, RW_ERR_SHAPE, "the running %s has another shape", i == 2 ? "mean" : "variance");
    }
    for (int i = 2; i < call->n_inputs; i++) RW_CHECK(rw_op_output_like(call, i - 2, i));
    return RW_OK;
}

/* Statistics take most: they are found in x, or in backward the sums with dy. */
static rw_op_cost cost(const rw_op_call *call)
{
    const struct rw_groups_attrs *const a = call->attrs;
    return rw_cost_pointwise(call, a->given && call->n_outputs == 1 ? 3 : 8);
}

/* Of y and of dx, which are whole. */
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

/* x, or what its pieces make up; in the type in which the op takes it, which a recipe may have raised. */
static rw_tensor *x_of(rw_grad_call *g)
{
    const struct rw_groups_attrs *const a = rw_grad_attrs(g);
    rw_tensor *const x = a->more ? rw_grad_value(g, a->whole) : rw_grad_input(g, 0);
    return a->more ? rw_cast(rw_grad_tape(g), x, rw_tensor_dtype(rw_grad_input(g, 0))) : x;
}

static bool wants_x(const rw_grad_call *g)
{
    const struct rw_groups_attrs *const a = rw_grad_attrs(g);
    return a->more ? rw_grad_value_wanted(g, a->whole) : rw_grad_wanted(g, 0);
}

static rw_status set_x(rw_grad_call *g, rw_tensor *dx)
{
    const struct rw_groups_attrs *const a = rw_grad_attrs(g);
    if (!a->more) return rw_grad_set_narrowed(g, 0, dx);
    rw_tensor *const x = rw_grad_value(g, a->whole);
    return rw_grad_set_value(g, x, dx ? rw_cast(rw_grad_tape(g), dx, rw_tensor_dtype(x)) : NULL);
}

/*
 * Of primitives, x as [segments, rows, groups, width]: xh = (x - mean) / sqrt(var + eps), dx = r (h - mean(h) - xh
 * mean(h xh)) with h = dy weight, the means being 0 where the statistics are constants.
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

/* The fused backward op. It goes through the relu of the result itself, unless that stood behind a sum: dz has then. */
static rw_status grad_at_once(rw_grad_call *g, const struct rw_groups *of, bool relu, rw_tensor *dz)
{
    struct rw_groups_attrs a = *(const struct rw_groups_attrs *)rw_grad_attrs(g);
    a.relu = relu;
    const int weight = rw_groups_weight(of), x = rw_groups_backward_x(relu);
    rw_tensor *in[RW_PIECES_MOST + 5] = {
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

/* Into mean and variance nothing flows: nobody reads them but the update. */
static rw_status grad(rw_grad_call *g)
{
    const struct rw_groups_attrs *const a = rw_grad_attrs(g);
    const rw_layout *const y = rw_tensor_layout(rw_grad_output(g, 0));
    const struct rw_groups of = rw_groups_of(a, y, rw_groups_channels(y));
    const int weight = rw_groups_weight(&of), added = rw_groups_added(&of);
    const bool adds = rw_grad_n_inputs(g) > added, apart = of.relu && (adds || rw_grad_again(g));
    rw_tensor *const dz = apart ? rw_relu_slope(g, rw_grad_output(g, 0), rw_grad_upstream(g, 0))
                                : rw_grad_upstream(g, 0);
    if (adds && rw_grad_wanted(g, added)) RW_CHECK(rw_grad_set(g, added, dz));
    if (!wants_x(g) && !rw_grad_wanted(g, weight) && !rw_grad_wanted(g, weight + 1)) return RW_OK;
    return rw_grad_again(g) ? grad_again(g, &of, dz) : grad_at_once(g, &of, of.relu && !apart, dz);
}

#define FORWARD(NAME, ADDED, OUT, REMAKE)                                                                          \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = RW_OP_VARIADIC, .n_outputs = OUT,           \
                                            .inplace = RW_INPLACE({ 0, 0 }, { 0, ADDED }), .check = check_forward, \
                                            .kernel = RW_KERNELS(rw_groups), .grad = grad, .cost = cost,           \
                                            .workspace = RW_WORKSPACES(workspace, workspace), .remake = REMAKE,    \
                                            .raised = RW_OP_ALL_INPUTS, .parts = parts };
FORWARD(batchnorm_eval, 5, 1, NULL)
FORWARD(group_norm_given, 5, 1, NULL)

/* The result again, of the statistics that are kept for backward: x is read once, not twice to find them first. */
static rw_tensor *remake(rw_tape *t, const rw_op_call *call, int i, rw_tensor *const *in, rw_tensor *const *out)
{
    struct rw_groups_attrs a = *(const struct rw_groups_attrs *)call->attrs;
    const struct rw_groups g = groups_of(call);
    const int added = rw_groups_added(&g);
    rw_tensor *of[RW_PIECES_MOST + 5];
    for (int k = 0; k < added; k++) of[k] = in[k];
    of[added] = out[1], of[added + 1] = out[2];
    of[added + 2] = call->n_inputs > added ? in[added] : NULL;
    const rw_op_def *const op = a.groups ? &rw_op_group_norm_given : &rw_op_batchnorm_eval;
    a.given = 1;
    return i ? NULL : rw_apply(t, op, of, call->n_inputs > added ? added + 3 : added + 2, &a, sizeof a, NULL);
}

FORWARD(batchnorm, 3, 3, remake)
FORWARD(group_norm, 3, 3, remake)
FORWARD(instance_norm, 3, 3, remake)

/* ---- public functions ---- */

static bool has_channels(rw_site at, rw_tape *t, rw_tensor *x, const char *name)
{
    if (!rw_operand_check(at, t, x, name, "x")) return false;
    const int rank = rw_tensor_shape(x).rank;
    if (rank >= 2) return true;
    rw_refuse_at(at, t, RW_ERR_SHAPE, "%s: x of rank %d, needs [n, c] or [n, c, ...]", name, rank);
    return false;
}

/* A weight or a bias that is left out: ones or zeros, which no gradient is asked for. Inside of a composite. */
static rw_tensor *vector_or(rw_site at, rw_tape *t, rw_tensor *vector, const rw_tensor *x, double value)
{
    if (vector != rw_none()) return vector;
    return rw_fill_at(at, t, rw_tensor_dtype(x), RW_SHAPE(rw_tensor_shape(x).dim[1]), value);
}

/* x as the kernels take it; [n, c] is so already. */
static rw_tensor *inside(rw_site at, rw_tape *t, rw_tensor *x)
{
    return rw_tensor_shape(x).rank > 2 ? rw_channels_inside_at(at, t, x) : x;
}

/* What is recorded of in[0], which is inside, or the first of several pieces. */
static rw_tensor *apply(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *const *in, int n,
                        const struct rw_groups_attrs *a, rw_tensor **out)
{
    rw_tensor *const y = rw_apply_at(at, t, op, in, n, a, sizeof *a, out);
    return y && rw_tensor_shape(y).rank > 2 ? rw_channels_outside_at(at, t, y) : y;
}

/* What is wrong with the number of batches, if anything is. */
static const char *fault_of_batches(const rw_tensor *mean, const rw_batchnorm_params *p)
{
    if (p->momentum > 0) return "both a momentum and a number of batches";
    if (mean == rw_none()) return "a number of batches without running statistics";
    if (rw_tensor_kind_of(p->batches) != RW_TENSOR_BUFFER) return "the number of batches must be a buffer";
    if (rw_shape_numel(rw_tensor_shape(p->batches)) != 1 || rw_tensor_shape(p->batches).rank > 1)
        return "the number of batches is more than a number";
    if (rw_tensor_dtype(p->batches) != rw_tensor_dtype(mean)) return "the number of batches is of another type";
    return NULL;
}

/* Running statistics are none, both buffers, or in evaluation whatever there is. */
static bool statistics_are_sound(rw_site at, rw_tape *t, rw_tensor *mean, rw_tensor *var, const rw_batchnorm_params *p)
{
    const char *fault = NULL;
    if (!mean || !var) fault = "running statistics are NULL";
    else if ((mean == rw_none()) != (var == rw_none())) fault = "one of the running statistics is missing";
    else if (p->evaluate && mean == rw_none()) fault = "evaluation needs running statistics";
    else if (!p->evaluate && mean != rw_none() &&
             (rw_tensor_kind_of(mean) != RW_TENSOR_BUFFER || rw_tensor_kind_of(var) != RW_TENSOR_BUFFER))
        fault = "running statistics must be buffers made by rw_buffer()";
    else if (!(p->momentum >= 0 && p->momentum <= 1)) fault = "the momentum is not between 0 and 1";
    else if (p->batches && p->batches != rw_none()) fault = fault_of_batches(mean, p);
    if (fault) rw_refuse_at(at, t, RW_ERR_ARGUMENT, "batchnorm: %s", fault);
    return !fault;
}

/* Nothing is added, or what has x's shape. */
static bool addend_is_sound(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *add)
{
    if (!add || add == rw_none()) return true;
    if (!rw_operand_check(at, t, add, "batchnorm", "add")) return false;
    if (rw_shape_equal(rw_tensor_shape(x), rw_tensor_shape(add))) return true;
    rw_refuse_at(at, t, RW_ERR_SHAPE, "batchnorm: what is added has not x's shape");
    return false;
}

/*
 * Of x's first output's statistics: n / (n - 1) makes a variance that of all there is, not of the batch. The op reads
 * what it writes when the step ends, so that of two uses of a layer on one tape the second goes on from the first.
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

rw_tensor *rw_batchnorm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias, rw_tensor *mean,
                           rw_tensor *var, const rw_batchnorm_params *params)
{
    static const rw_batchnorm_params defaults;
    const rw_batchnorm_params *const p = params ? params : &defaults;
    if (!has_channels(at, t, x, "batchnorm") || !statistics_are_sound(at, t, mean, var, p)) return NULL;
    if (!addend_is_sound(at, t, x, p->add)) return NULL;
    struct rw_groups_attrs a = { .eps = rw_constant(x, rw_or_default(p->eps, 1e-5)), .given = p->evaluate,
                                 .relu = p->relu };
    const struct rw_composite c = rw_composite_begin(t, "batchnorm");
    rw_tensor *in[RW_PIECES_MOST + 5], *out[3];
    const rw_shape s = rw_tensor_shape(x);
    int n = rw_joined_pieces(inside(at, t, x), s.rank - 1, in, &a.more, &a.whole);
    in[n++] = vector_or(at, t, weight, x, 1), in[n++] = vector_or(at, t, bias, x, 0);
    if (p->evaluate) in[n++] = mean, in[n++] = var;
    if (p->add && p->add != rw_none()) in[n++] = inside(at, t, p->add);
    rw_tensor *y = apply(at, t, p->evaluate ? &rw_op_batchnorm_eval : &rw_op_batchnorm, in, n, &a, out);
    const int64_t rows = rw_shape_numel(s) / (s.dim[1] ? s.dim[1] : 1);
    const bool moves = !p->evaluate && mean != rw_none() && rows; /* a batch of nothing says nothing of them */
    if (y && moves && !update(at, t, out, mean, var, p, rows)) y = NULL;
    return rw_composite_end(&c, y);
}

static rw_tensor *of_images(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *x, int64_t groups,
                            rw_tensor *weight, rw_tensor *bias, double eps)
{
    struct rw_groups_attrs a = { .eps = rw_constant(x, eps), .groups = groups };
    const struct rw_composite c = rw_composite_begin(t, op->name);
    rw_tensor *in[RW_PIECES_MOST + 2];
    int n = rw_joined_pieces(inside(at, t, x), rw_tensor_shape(x).rank - 1, in, &a.more, &a.whole);
    in[n++] = vector_or(at, t, weight, x, 1), in[n++] = vector_or(at, t, bias, x, 0);
    return rw_composite_end(&c, apply(at, t, op, in, n, &a, NULL));
}

rw_tensor *rw_group_norm_at(rw_site at, rw_tape *t, rw_tensor *x, int groups, rw_tensor *weight, rw_tensor *bias,
                            double eps)
{
    if (!has_channels(at, t, x, "group_norm")) return NULL;
    if (groups < 1) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "group_norm: %d groups", groups);
        return NULL;
    }
    return of_images(at, t, &rw_op_group_norm, x, groups, weight, bias, eps);
}

rw_tensor *rw_instance_norm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias, double eps)
{
    if (!rw_operand_check(at, t, x, "instance_norm", "x")) return NULL;
    const rw_shape s = rw_tensor_shape(x);
    int64_t pixels = s.rank > 2 ? 1 : 0;
    for (int i = 2; i < s.rank; i++) pixels *= s.dim[i];
    if (s.rank < 3 || pixels == 1) {
        rw_refuse_at(at, t, RW_ERR_SHAPE, s.rank < 3 ? "instance_norm: x of rank %d, needs [n, c, ...]"
                                                     : "instance_norm: x of rank %d has 1 element of each channel, "
                                                       "which has no variance", s.rank);
        return NULL;
    }
    const int64_t c = s.dim[1];
    return of_images(at, t, &rw_op_instance_norm, x, c ? c : 1, weight, bias, eps);
}
