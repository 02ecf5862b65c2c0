/* max_pool2d and avg_pool2d, and the ops that their gradients are. See pool.h. */
#include "ops/conv/pool.h"

#include "ops/common/channels.h"
#include "ops/common/kernels.h"
#include "record/own_ops.h"

#include <rewind/conv.h>

/* ---- checks ---- */

static rw_status check_numbers(rw_op_call *call)
{
    const struct rw_pool_attrs *const a = call->attrs;
    for (int i = 0; i < 2; i++) {
        if (a->kernel[i] < 1)
            return rw_op_error(call, RW_ERR_ARGUMENT, "kernel %lld of axis %d", (long long)a->kernel[i], i);
        if (a->stride[i] < 1)
            return rw_op_error(call, RW_ERR_ARGUMENT, "stride %lld of axis %d", (long long)a->stride[i], i);
        if (a->dilation[i] < 1)
            return rw_op_error(call, RW_ERR_ARGUMENT, "dilation %lld of axis %d", (long long)a->dilation[i], i);
        if (a->padding[i] < 0 || a->padding[i] > a->kernel[i] / 2)
            return rw_op_error(call, RW_ERR_ARGUMENT, "padding %lld of axis %d: 0 to half of the kernel",
                               (long long)a->padding[i], i);
    }
    return RW_OK;
}

static rw_status check_places(rw_op_call *call)
{
    const struct rw_pool_attrs *const a = call->attrs;
    if (a->kernel[0] * a->kernel[1] <= RW_POOL_PLACES) return RW_OK;
    return rw_op_error(call, RW_ERR_ARGUMENT, "a window of %lld elements; %d are possible",
                       (long long)(a->kernel[0] * a->kernel[1]), RW_POOL_PLACES);
}

static rw_status check_image(rw_op_call *call, int i)
{
    RW_CHECK(rw_want_float(call, i));
    if (call->in[i].layout->rank != 4) return rw_op_error(call, RW_ERR_SHAPE, "input %d has not four axes", i);
    return check_numbers(call);
}

/* A last window that is not whole begins within the image, or in front of it, to be one. It may be the first, which
   then reaches less than a stride behind what there is. */
static int64_t number_of_windows(const struct rw_pool_attrs *a, int i, int64_t extent, int64_t beyond_first)
{
    if (beyond_first < 0) return a->up && beyond_first > -a->stride[i] ? 1 : 0;
    const int64_t more = a->up && beyond_first % a->stride[i] ? 1 : 0, n = beyond_first / a->stride[i] + 1 + more;
    return more && (n - 1) * a->stride[i] >= extent + a->padding[i] ? n - 1 : n;
}

/* The shape of what is pooled from x [n, h, w, c]. */
static rw_status shape_of_result(rw_op_call *call, rw_shape x, rw_shape *ret)
{
    const struct rw_pool_attrs *const a = call->attrs;
    *ret = x;
    for (int i = 0; i < 2; i++) {
        const int64_t padded = x.dim[1 + i] + 2 * a->padding[i];
        const int64_t window = (a->kernel[i] - 1) * a->dilation[i] + 1;
        if (x.dim[1 + i] < 1) return rw_op_error(call, RW_ERR_SHAPE, "an image without elements");
        if (a->adaptive[i]) {
            ret->dim[1 + i] = a->adaptive[i];
            continue;
        }
        ret->dim[1 + i] = number_of_windows(a, i, x.dim[1 + i], padded - window);
        if (!ret->dim[1 + i])
            return rw_op_error(call, RW_ERR_SHAPE, "a window of %lld, x has %lld with its padding", (long long)window,
                               (long long)padded);
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

/* A dx of the extents that the attributes say, of which dy, input i, is pooled. */
static rw_status check_dx(rw_op_call *call, int i)
{
    const struct rw_pool_attrs *const a = call->attrs;
    RW_CHECK(check_image(call, i));
    const rw_shape dy = rw_in_shape(call, i);
    rw_shape x = dy, y;
    for (int k = 0; k < 2; k++) x.dim[1 + k] = a->made[k];
    RW_CHECK(rw_op_shape(call, x));
    RW_CHECK(shape_of_result(call, x, &y));
    if (!rw_shape_equal(y, dy)) return rw_op_error(call, RW_ERR_SHAPE, "dy has not the shape of what is pooled");
    return rw_op_output(call, 0, call->in[i].dtype, x);
}

static rw_status want_places(rw_op_call *call, int i, const rw_layout *of)
{
    RW_CHECK(check_places(call));
    RW_CHECK(rw_want_dtype(call, i, RW_I32));
    if (call->in[i].layout->numel == rw_pool_words(of->numel)) return RW_OK;
    return rw_op_error(call, RW_ERR_SHAPE, "places of other elements");
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

/* A comparison or a sum for each element of each window. */
static rw_op_cost cost(const rw_op_call *call)
{
    const struct rw_pool_attrs *const a = call->attrs;
    const double window = (double)(a->kernel[0] * a->kernel[1]);
    return (rw_op_cost){ window * (double)call->out[0].layout->numel, rw_cost_bytes(call) };
}

/* ---- rules ---- */

static rw_status grad_max(rw_grad_call *g);
static rw_status grad_max_backward(rw_grad_call *g);
static rw_status grad_pick(rw_grad_call *g);
static rw_status grad_avg(rw_grad_call *g);
static rw_status grad_avg_backward(rw_grad_call *g);

#define POOL(NAME, IN, OUT, CHECK, GRAD)                                                                            \
    RW_DECLARE_KERNELS(rw_##NAME)                                                                                   \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = IN, .n_outputs = OUT, .check = CHECK,        \
                                            .kernel = RW_KERNELS(rw_##NAME), .grad = GRAD, .cost = cost };
POOL(max_pool2d, 1, 2, check_max, grad_max)
POOL(max_pool2d_backward, 2, 1, check_max_backward, grad_max_backward)
POOL(max_pool2d_pick, 2, 1, check_pick, grad_pick)
POOL(avg_pool2d, 1, 1, check_avg, grad_avg)
POOL(avg_pool2d_backward, 1, 1, check_avg_backward, grad_avg_backward)

/* One of these ops; with the extents of x where a dx is made. */
static rw_tensor *pooled(rw_grad_call *g, const rw_op_def *op, rw_tensor *a, rw_tensor *b, const rw_tensor *x)
{
    struct rw_pool_attrs attrs = *(const struct rw_pool_attrs *)rw_grad_attrs(g);
    for (int i = 0; i < 2; i++) attrs.made[i] = x ? rw_tensor_shape(x).dim[1 + i] : 0;
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
    rw_refuse_at(at, t, RW_ERR_SHAPE, "%s: x of rank %d needs four axes", name, rw_tensor_shape(x).rank);
    return false;
}

/* One whose mean or maximum there is. */
static bool is_image_of_some(rw_site at, rw_tape *t, rw_tensor *x, const char *name)
{
    if (!is_image(at, t, x, name)) return false;
    const rw_shape s = rw_tensor_shape(x);
    if (s.dim[2] && s.dim[3]) return true;
    rw_refuse_at(at, t, RW_ERR_SHAPE, "%s: an image of %lld x %lld elements", name, (long long)s.dim[2],
                 (long long)s.dim[3]);
    return false;
}

/* What the other of the two has alone is refused, not left out. */
static bool has_options(rw_site at, rw_tape *t, const rw_op_def *op, const rw_pool2d_params *p)
{
    const bool most = op == &rw_op_max_pool2d;
    const char *fault = NULL;
    if (most && p->divisor_override) fault = "a maximum has no divisor";
    else if (!most && (p->dilation[0] > 1 || p->dilation[1] > 1)) fault = "an average has no dilation";
    if (fault) rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s: %s", op->name, fault);
    return !fault;
}

static rw_tensor *pool(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *x, const rw_pool2d_params *p)
{
    struct rw_pool_attrs a = { .exclude = 0 };
    if (!is_image(at, t, x, op->name)) return NULL;
    if (!p) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s: params is NULL", op->name);
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
    const struct rw_composite c = rw_composite_begin(t, op->name);
    rw_tensor *const inside = rw_channels_inside_at(at, t, x);
    rw_tensor *const y = rw_apply_at(at, t, op, &inside, 1, &a, sizeof a, NULL);
    return rw_composite_end(&c, y ? rw_channels_outside_at(at, t, y) : NULL);
}

rw_tensor *rw_max_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_pool2d_params *params)
{
    return pool(at, t, &rw_op_max_pool2d, x, params);
}

rw_tensor *rw_avg_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_pool2d_params *params)
{
    return pool(at, t, &rw_op_avg_pool2d, x, params);
}

/* x inside, which lies there for the mean too. */
static rw_tensor *mean_of_all(rw_site at, rw_tape *t, rw_tensor *x)
{
    rw_tensor *const y = rw_mean_at(at, t, rw_channels_inside_at(at, t, x), RW_AXES(1, 2), true);
    return y ? rw_channels_outside_at(at, t, y) : NULL;
}

rw_tensor *rw_global_avg_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    if (!is_image_of_some(at, t, x, "global_avg_pool2d")) return NULL;
    const struct rw_composite c = rw_composite_begin(t, "global_avg_pool2d");
    return rw_composite_end(&c, mean_of_all(at, t, x));
}

/* ---- adaptive pooling ---- */

/* Of windows that cut an extent as evenly as they can: as many elements as the largest may have. */
static int64_t widest(int64_t extent, int64_t made)
{
    return extent % made ? extent / made + 2 : extent / made;
}

/* x inside -> inside. Along an axis that stays as it is, a window is an element. */
static rw_tensor *cut_evenly(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *x, int64_t h, int64_t w)
{
    if (!x) return NULL;
    const rw_shape s = rw_tensor_shape(x);
    const struct rw_pool_attrs a = { .kernel = { widest(s.dim[1], h), widest(s.dim[2], w) }, .stride = { 1, 1 },
                                     .dilation = { 1, 1 }, .adaptive = { h, w } };
    return rw_apply_at(at, t, op, &x, 1, &a, sizeof a, NULL);
}

/*
 * Windows too large for a place of a byte: the largest of each row of one, then of these. The first row among equals
 * has the first of equals.
 */
static rw_tensor *largest(rw_site at, rw_tape *t, rw_tensor *x, int64_t h, int64_t w)
{
    const rw_shape s = rw_tensor_shape(x);
    if (widest(s.dim[1], h) * widest(s.dim[2], w) > RW_POOL_PLACES)
        x = cut_evenly(at, t, &rw_op_max_pool2d, x, s.dim[1], w);
    return cut_evenly(at, t, &rw_op_max_pool2d, x, h, w);
}

/* The extents asked for, 0 being those of x; false, with an error, where there are none, or no elements to pool. */
static bool extents_of(rw_site at, rw_tape *t, rw_tensor *x, const char *what, int64_t *h, int64_t *w)
{
    if (!is_image_of_some(at, t, x, what)) return false;
    const rw_shape s = rw_tensor_shape(x);
    if (!*h) *h = s.dim[2];
    if (!*w) *w = s.dim[3];
    if (*h >= 0 && *w >= 0) return true;
    rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s: a result of %lld x %lld", what, (long long)*h, (long long)*w);
    return false;
}

rw_tensor *rw_adaptive_avg_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t height, int64_t width)
{
    static const char what[] = "adaptive_avg_pool2d";
    if (!extents_of(at, t, x, what, &height, &width)) return NULL;
    const struct rw_composite c = rw_composite_begin(t, what);
    if (height == 1 && width == 1) return rw_composite_end(&c, mean_of_all(at, t, x));
    rw_tensor *const y = cut_evenly(at, t, &rw_op_avg_pool2d, rw_channels_inside_at(at, t, x), height, width);
    return rw_composite_end(&c, y ? rw_channels_outside_at(at, t, y) : NULL);
}

rw_tensor *rw_adaptive_max_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t height, int64_t width)
{
    static const char what[] = "adaptive_max_pool2d";
    if (!extents_of(at, t, x, what, &height, &width)) return NULL;
    const struct rw_composite c = rw_composite_begin(t, what);
    rw_tensor *const inside = rw_channels_inside_at(at, t, x);
    rw_tensor *const y = inside ? largest(at, t, inside, height, width) : NULL;
    return rw_composite_end(&c, y ? rw_channels_outside_at(at, t, y) : NULL);
}
