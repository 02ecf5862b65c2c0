/* max_pool2d, avg_pool2d and adaptive pooling, with the ops of their gradients: checks, rules and public functions. */
#include "ops/conv/pool.h"

#include "base/public_entry.h"
#include "ops/common/channels_last.h"
#include "ops/common/declare_kernels.h"

#include <rewind/composite.h>
#include <rewind/conv.h>

/* ---- checks ---- */

static const char *const KERNEL[] = { "kernel[0]", "kernel[1]" }, *const STRIDE[] = { "stride[0]", "stride[1]" },
                  *const DILATION[] = { "dilation[0]", "dilation[1]" },
                  *const PADDING[] = { "padding[0]", "padding[1]" };

static rw_status check_numbers(rw_op_call *call)
{
    const struct rw_pool_attrs *const a = call->attrs;
    for (int i = 0; i < 2; i++) {
        if (a->kernel[i] < 1) return rw_unexpected_int(call, RW_ERR_ARGUMENT, KERNEL[i], a->kernel[i], "1 or more");
        if (a->stride[i] < 1) return rw_unexpected_int(call, RW_ERR_ARGUMENT, STRIDE[i], a->stride[i], "1 or more");
        if (a->dilation[i] < 1)
            return rw_unexpected_int(call, RW_ERR_ARGUMENT, DILATION[i], a->dilation[i], "1 or more");
        if (a->padding[i] < 0 || a->padding[i] > a->kernel[i] / 2)
            return rw_unexpected_int(call, RW_ERR_ARGUMENT, PADDING[i], a->padding[i], "0 to %lld, half of the kernel",
                                     (long long)(a->kernel[i] / 2));
    }
    return RW_OK;
}

static rw_status check_places(rw_op_call *call)
{
    const struct rw_pool_attrs *const a = call->attrs;
    if (a->kernel[0] * a->kernel[1] <= RW_POOL_PLACES) return RW_OK;
    return rw_unexpected_int(call, RW_ERR_ARGUMENT, "kernel", a->kernel[0] * a->kernel[1],
                             "a window of at most %d elements", RW_POOL_PLACES);
}

static rw_status check_image(rw_op_call *call, int i)
{
    RW_CHECK(rw_want_float(call, i));
    RW_CHECK(rw_expect_rank(call, i, NULL, 4, "four axes"));
    return check_numbers(call);
}

/* A last window that is incomplete counts only if it begins within the image or before it. It may be the first window,
   which then extends less than a stride beyond the image. */
static int64_t number_of_windows(const struct rw_pool_attrs *a, int i, int64_t extent, int64_t beyond_first)
{
    if (beyond_first < 0) return a->up && beyond_first > -a->stride[i] ? 1 : 0;
    const int64_t more = a->up && beyond_first % a->stride[i] ? 1 : 0, n = beyond_first / a->stride[i] + 1 + more;
    return more && (n - 1) * a->stride[i] >= extent + a->padding[i] ? n - 1 : n;
}

/* The shape of the result of pooling x [n, h, w, c]. */
static rw_status shape_of_result(rw_op_call *call, rw_shape x, rw_shape *ret)
{
    const struct rw_pool_attrs *const a = call->attrs;
    *ret = x;
    for (int i = 0; i < 2; i++) {
        const int64_t padded = x.dim[1 + i] + 2 * a->padding[i];
        const int64_t window = (a->kernel[i] - 1) * a->dilation[i] + 1;
        if (x.dim[1 + i] < 1)
            return rw_unexpected_int(call, RW_ERR_SHAPE, "x", x.dim[1 + i], "a height and width above 0");
        if (a->adaptive[i]) {
            ret->dim[1 + i] = a->adaptive[i];
            continue;
        }
        ret->dim[1 + i] = number_of_windows(a, i, x.dim[1 + i], padded - window);
        if (!ret->dim[1 + i])
            return rw_unexpected_int(call, RW_ERR_SHAPE, "x", padded,
                                     "a padded extent of at least %lld, that of the dilated window", (long long)window);
    }
    return RW_OK;
}

static rw_status check_avg(rw_op_call *call)
{
    rw_shape y;
    RW_CHECK(check_image(call, 0));
    RW_CHECK(shape_of_result(call, rw_in_shape(call, 0), &y));
    return rw_op_output(call, 0, call->in[0].dtype, y);
}

static rw_status check_max(rw_op_call *call)
{
    RW_CHECK(check_avg(call));
    RW_CHECK(check_places(call));
    return rw_op_output(call, 1, RW_I32, RW_SHAPE(rw_pool_words(call->out[0].layout->numel)));
}

/* Checks a dx with the extents of the attributes: pooling it gives the shape of dy, input i. */
static rw_status check_dx(rw_op_call *call, int i)
{
    const struct rw_pool_attrs *const a = call->attrs;
    RW_CHECK(check_image(call, i));
    const rw_shape dy = rw_in_shape(call, i);
    rw_shape x = dy, y;
    for (int k = 0; k < 2; k++) x.dim[1 + k] = a->result_extent[k];
    RW_CHECK(rw_op_check_shape(call, x));
    RW_CHECK(shape_of_result(call, x, &y));
    RW_CHECK(rw_expect_shape(call, i, "dy", y));
    return rw_op_output(call, 0, call->in[i].dtype, x);
}

static rw_status want_places(rw_op_call *call, int i, const rw_layout *of)
{
    RW_CHECK(check_places(call));
    RW_CHECK(rw_expect_dtype(call, i, "places", RW_I32));
    const int64_t words = rw_pool_words(of->numel);
    if (call->in[i].layout->numel == words) return RW_OK;
    return rw_unexpected(call, RW_ERR_SHAPE, i, "places", "%lld elements", (long long)words);
}

static rw_status check_avg_backward(rw_op_call *call)
{
    return check_dx(call, 0);
}

static rw_status check_max_backward(rw_op_call *call)
{
    RW_CHECK(check_dx(call, 1));
    return want_places(call, 0, call->in[1].layout);
}

static rw_status check_pick(rw_op_call *call)
{
    RW_CHECK(check_avg(call));
    return want_places(call, 1, call->out[0].layout);
}

/* One comparison or addition for each element of each window. */
static rw_op_cost cost(const rw_op_call *call)
{
    const struct rw_pool_attrs *const a = call->attrs;
    const double window = (double)(a->kernel[0] * a->kernel[1]);
    return (rw_op_cost){ .flops = window * (double)call->out[0].layout->numel, .bytes = rw_op_operand_bytes(call) };
}

/* ---- rules ---- */

static rw_status grad_max(rw_grad_call *g);
static rw_status grad_max_backward(rw_grad_call *g);
static rw_status grad_pick(rw_grad_call *g);
static rw_status grad_avg(rw_grad_call *g);
static rw_status grad_avg_backward(rw_grad_call *g);

RW_BUILTIN_OP(avg_pool2d, "x", "F.avg_pool2d")
RW_BUILTIN_OP(max_pool2d, "x", "F.max_pool2d")
RW_INTERNAL_OP(avg_pool2d_backward, "dy")
#define POOL(NAME, IN, OUT, CHECK, GRAD)                                                                            \
    RW_DECLARE_KERNELS(rw_##NAME)                                                                                   \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = IN, .n_outputs = OUT, .check = CHECK,        \
                                            .kernel = RW_KERNELS(rw_##NAME), .grad = GRAD, .cost = cost };
POOL(max_pool2d, 1, 2, check_max, grad_max)
POOL(max_pool2d_backward, 2, 1, check_max_backward, grad_max_backward)
POOL(max_pool2d_pick, 2, 1, check_pick, grad_pick)
POOL(avg_pool2d, 1, 1, check_avg, grad_avg)
POOL(avg_pool2d_backward, 1, 1, check_avg_backward, grad_avg_backward)

/* Records one of these ops; with the extents of x for a dx. */
static rw_tensor *pooled(rw_grad_call *g, const rw_op_def *op, rw_tensor *a, rw_tensor *b, const rw_tensor *x)
{
    struct rw_pool_attrs attrs = *(const struct rw_pool_attrs *)rw_grad_attrs(g);
    for (int i = 0; i < 2; i++) attrs.result_extent[i] = x ? rw_tensor_shape(x).dim[1 + i] : 0;
    return rw_apply(rw_grad_tape(g), op, (rw_tensor *const[]){ a, b }, b ? 2 : 1, &attrs, sizeof attrs, NULL);
}

static rw_status grad_max(rw_grad_call *g)
{
    if (!rw_grad_upstream(g, 0)) return rw_grad_set(g, 0, NULL);
    return rw_grad_set(g, 0, pooled(g, &rw_op_max_pool2d_backward, rw_grad_output(g, 1), rw_grad_upstream(g, 0),
                                    rw_grad_input(g, 0)));
}

static rw_status grad_max_backward(rw_grad_call *g)
{
    return rw_grad_set(g, 1, pooled(g, &rw_op_max_pool2d_pick, rw_grad_upstream(g, 0), rw_grad_input(g, 0), NULL));
}

static rw_status grad_pick(rw_grad_call *g)
{
    return rw_grad_set(g, 0, pooled(g, &rw_op_max_pool2d_backward, rw_grad_input(g, 1), rw_grad_upstream(g, 0),
                                    rw_grad_input(g, 0)));
}

static rw_status grad_avg(rw_grad_call *g)
{
    return rw_grad_set(g, 0, pooled(g, &rw_op_avg_pool2d_backward, rw_grad_upstream(g, 0), NULL, rw_grad_input(g, 0)));
}

static rw_status grad_avg_backward(rw_grad_call *g)
{
    return rw_grad_set(g, 0, pooled(g, &rw_op_avg_pool2d, rw_grad_upstream(g, 0), NULL, NULL));
}

/* ---- public functions ---- */

static bool is_image(rw_site at, rw_tape *t, rw_tensor *x, const char *name)
{
    if (!rw_operand_check(at, t, x, name, "x")) return false;
    if (rw_tensor_shape(x).rank == 4) return true;
    return rw_refuse_operand_at(at, t, RW_ERR_SHAPE, name, "x", x, "[n, c, h, w]");
}

/* An image that is not empty, so that it has a mean or maximum. */
static bool is_image_of_some(rw_site at, rw_tape *t, rw_tensor *x, const char *name)
{
    if (!is_image(at, t, x, name)) return false;
    const rw_shape s = rw_tensor_shape(x);
    if (s.dim[2] && s.dim[3]) return true;
    return rw_refuse_operand_at(at, t, RW_ERR_SHAPE, name, "x", x, "[n, c, h, w] with h and w above 0");
}

/* Options that only the other op has are rejected, not ignored. */
static bool has_options(rw_site at, rw_tape *t, const rw_op_def *op, const rw_pool2d_params *p)
{
    const bool most = op == &rw_op_max_pool2d;
    if (most && p->divisor_override)
        return !rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(divisor_override): expected 0 for a maximum, got %lld",
                             op->name, (long long)p->divisor_override);
    if (!most && (p->dilation[0] > 1 || p->dilation[1] > 1))
        return !rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(dilation): expected 0 or 1 for an average, got %d and %d",
                             op->name, p->dilation[0], p->dilation[1]);
    return true;
}

/* Checks the parameters and records a pooling op on the channels-last image. */
static rw_tensor *pool(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *x, const rw_pool2d_params *p)
{
    struct rw_pool_attrs a = { .exclude = 0 };
    if (!is_image(at, t, x, op->name)) return NULL;
    if (!p) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s: params is NULL; expected rw_pool2d_params", op->name);
        return NULL;
    }
    if (!has_options(at, t, op, p)) return NULL;
    a.exclude = op == &rw_op_avg_pool2d && p->exclude_padding;
    a.up = p->ceil_mode;
    a.divisor = p->divisor_override;
    for (int i = 0; i < 2; i++) {
        a.kernel[i] = p->kernel[i];
        a.stride[i] = p->stride[i] ? p->stride[i] : p->kernel[i];
        a.padding[i] = p->padding[i];
        a.dilation[i] = p->dilation[i] ? p->dilation[i] : 1;
    }
    const rw_composite c = rw_composite_begin(t, op->name);
    rw_tensor *const inside = rw_channels_inside_at(at, t, x);
    rw_tensor *const y = rw_apply_at(at, t, op, &inside, 1, &a, sizeof a, NULL);
    return rw_composite_end(&c, y ? rw_channels_outside_at(at, t, y) : NULL);
}

rw_tensor *rw_max_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_pool2d_params *params)
{
    RW_ENTER_OP(t);
    return pool(at, t, &rw_op_max_pool2d, x, params);
}

rw_tensor *rw_avg_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_pool2d_params *params)
{
    RW_ENTER_OP(t);
    return pool(at, t, &rw_op_avg_pool2d, x, params);
}

/* x as [n, h, w, c], which is also how it is stored for the mean. */
static rw_tensor *mean_of_all(rw_site at, rw_tape *t, rw_tensor *x)
{
    rw_tensor *const y = rw_mean_at(at, t, rw_channels_inside_at(at, t, x), RW_AXES(1, 2), true);
    return y ? rw_channels_outside_at(at, t, y) : NULL;
}

rw_tensor *rw_global_avg_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    RW_ENTER_OP(t);
    if (!is_image_of_some(at, t, x, "global_avg_pool2d")) return NULL;
    const rw_composite c = rw_composite_begin(t, "global_avg_pool2d");
    return rw_composite_end(&c, mean_of_all(at, t, x));
}

/* ---- adaptive pooling ---- */

/* Windows that divide an extent as evenly as possible: the maximum number of elements of a window. */
static int64_t widest(int64_t extent, int64_t windows)
{
    return extent % windows ? extent / windows + 2 : extent / windows;
}

/* [n, h, w, c] -> [n, h, w, c]. Along an axis whose extent does not change, a window is one element. */
static rw_tensor *cut_evenly(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *x, int64_t h, int64_t w)
{
    if (!x) return NULL;
    const rw_shape s = rw_tensor_shape(x);
    const struct rw_pool_attrs a = { .kernel = { widest(s.dim[1], h), widest(s.dim[2], w) }, .stride = { 1, 1 },
                                     .dilation = { 1, 1 }, .adaptive = { h, w } };
    return rw_apply_at(at, t, op, &x, 1, &a, sizeof a, NULL);
}

/*
 * For windows with more elements than a byte can index: the maximum of each row of a window, then the maximum of these.
 * The first row among equal ones has the first of equal elements.
 */
static rw_tensor *largest(rw_site at, rw_tape *t, rw_tensor *x, int64_t h, int64_t w)
{
    const rw_shape s = rw_tensor_shape(x);
    if (widest(s.dim[1], h) * widest(s.dim[2], w) > RW_POOL_PLACES)
        x = cut_evenly(at, t, &rw_op_max_pool2d, x, s.dim[1], w);
    return cut_evenly(at, t, &rw_op_max_pool2d, x, h, w);
}

/* The requested extents, with 0 replaced by those of x. False, with an error, if they are invalid or x is empty. */
static bool extents_of(rw_site at, rw_tape *t, rw_tensor *x, const char *what, int64_t *h, int64_t *w)
{
    if (!is_image_of_some(at, t, x, what)) return false;
    const rw_shape s = rw_tensor_shape(x);
    if (!*h) *h = s.dim[2];
    if (!*w) *w = s.dim[3];
    if (*h >= 0 && *w >= 0) return true;
    rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(height, width): expected 0 (that of x) or more, got %lld and %lld", what,
                 (long long)*h, (long long)*w);
    return false;
}

rw_tensor *rw_adaptive_avg_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t height, int64_t width)
{
    RW_ENTER_OP(t);
    static const char what[] = "adaptive_avg_pool2d";
    if (!extents_of(at, t, x, what, &height, &width)) return NULL;
    const rw_composite c = rw_composite_begin(t, what);
    if (height == 1 && width == 1) return rw_composite_end(&c, mean_of_all(at, t, x));
    rw_tensor *const y = cut_evenly(at, t, &rw_op_avg_pool2d, rw_channels_inside_at(at, t, x), height, width);
    return rw_composite_end(&c, y ? rw_channels_outside_at(at, t, y) : NULL);
}

rw_tensor *rw_adaptive_max_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t height, int64_t width)
{
    RW_ENTER_OP(t);
    static const char what[] = "adaptive_max_pool2d";
    if (!extents_of(at, t, x, what, &height, &width)) return NULL;
    const rw_composite c = rw_composite_begin(t, what);
    rw_tensor *const inside = rw_channels_inside_at(at, t, x);
    rw_tensor *const y = inside ? largest(at, t, inside, height, width) : NULL;
    return rw_composite_end(&c, y ? rw_channels_outside_at(at, t, y) : NULL);
}
