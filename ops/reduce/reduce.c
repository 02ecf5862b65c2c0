/* sum, mean, max, sum_to, logsumexp: checks and gradient rules of the reductions, and how their inputs are cut. */
#include "ops/reduce/reduce.h"

#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/shape/shape.h"
#include "ops/common/util.h"

#include <rewind/compare.h>
#include <rewind/composite.h>

#include <math.h>
#include <string.h>

static rw_shape reduced_shape(rw_shape in, uint32_t mask, bool keep)
{
    rw_shape out = { 0 };
    for (int i = 0; i < in.rank; i++) {
        if (!(mask >> i & 1)) out.dim[out.rank++] = in.dim[i];
        else if (keep) out.dim[out.rank++] = 1;
    }
    return out;
}

static rw_status check_reduce(rw_op_call *call)
{
    const struct rw_reduce_attrs *const a = call->attrs;
    uint32_t mask;
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_axes_mask(call, a->axes, call->in[0].layout->rank, &mask));
    if (a->kind == RW_REDUCE_MAX)
        for (int i = 0; i < call->in[0].layout->rank; i++)
            if ((mask >> i & 1) && call->in[0].layout->dim[i] == 0)
                return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "1 element or more along axis %d for a maximum", i);
    return rw_op_output(call, 0, call->in[0].dtype, reduced_shape(rw_in_shape(call, 0), mask, a->keep));
}

static rw_op_cost cost_reduce(const rw_op_call *call)
{
    const struct rw_reduce_attrs *const a = call->attrs;
    const double flops = a->kind == RW_REDUCE_LOGSUMEXP ? 12 : 1;
    return (rw_op_cost){ .flops = flops * (double)call->in[0].layout->numel, .bytes = rw_op_operand_bytes(call) };
}

size_t rw_reduce_sum_workspace_cpu(const rw_layout *in, uint32_t mask)
{
    const struct rw_reduce_plan plan = rw_reduce_plan(in, mask);
    const int64_t outputs = plan.groups.numel * (plan.run_reduced ? 1 : plan.run);
    return plan.parts > 1 ? (size_t)(plan.parts * outputs) * sizeof(double) : 0;
}

/* Doubles: one per output and part; logsumexp also has a maximum and a sum per output. */
static size_t workspace_cpu(const rw_op_call *call)
{
    const struct rw_reduce_attrs *const a = call->attrs;
    const rw_layout *const in = call->in[0].layout;
    const struct rw_reduce_plan plan = rw_reduce_plan(in, rw_reduce_mask(a->axes, in->rank));
    const int64_t parts = plan.parts;
    const int64_t per_output = (parts > 1 ? parts : 0) + (a->kind == RW_REDUCE_LOGSUMEXP ? 2 : 0);
    return (size_t)(call->out[0].layout->numel * per_output) * sizeof(double);
}

/* A view of dy in the shape of the input: reduced axes have extent 1 and are broadcast. */
static rw_tensor *stretch(rw_grad_call *g, rw_tensor *dy)
{
    rw_tape *const t = rw_grad_tape(g);
    const struct rw_reduce_attrs *const a = rw_grad_attrs(g);
    const rw_shape in = rw_tensor_shape(rw_grad_input(g, 0));
    const uint32_t mask = rw_reduce_mask(a->axes, in.rank);
    return rw_broadcast_to(t, rw_reshape(t, dy, reduced_shape(in, mask, true)), in);
}

static rw_status grad_sum(rw_grad_call *g)
{
    return rw_grad_set(g, 0, stretch(g, rw_grad_upstream(g, 0)));
}

static rw_status grad_mean(rw_grad_call *g)
{
    const int64_t out = rw_shape_numel(rw_tensor_shape(rw_grad_output(g, 0)));
    const int64_t in = rw_shape_numel(rw_tensor_shape(rw_grad_input(g, 0)));
    return rw_grad_set(
        g, 0, stretch(g, rw_scale(rw_grad_tape(g), rw_grad_upstream(g, 0), in ? (double)out / (double)in : 0)));
}

static rw_status check_first_max(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

/* 1 at the first maximal element of each group, else 0. */
RW_DECLARE_CUDA_WORKSPACE(rw_reduce_workspace_cuda)
RW_DECLARE_KERNELS(rw_first_max)
static const rw_op_def rw_op_first_max = { .name = "first_max",
                                           .n_inputs = 2,
                                           .n_outputs = 1,
                                           .flags = RW_OP_NO_GRADIENT,
                                           .check = check_first_max,
                                           .kernel = RW_KERNELS(rw_first_max) };

static rw_status grad_max(rw_grad_call *g)
{
    const struct rw_reduce_attrs a = *(const struct rw_reduce_attrs *)rw_grad_attrs(g);
    rw_tensor *const in[] = { rw_grad_input(g, 0), rw_grad_output(g, 0) };
    rw_tensor *const first = rw_apply(rw_grad_tape(g), &rw_op_first_max, in, 2, &a, sizeof a, NULL);
    return rw_grad_set(g, 0, rw_mul(rw_grad_tape(g), stretch(g, rw_grad_upstream(g, 0)), first));
}

/* softmax over a set of axes: permutes them to the end and joins them to one row. */
static rw_tensor *softmax_over(rw_tape *t, rw_tensor *x, uint32_t mask)
{
    const rw_shape in = rw_tensor_shape(x);
    int order[RW_MAX_RANK], back[RW_MAX_RANK], n = 0;
    int64_t rows = 1, row = 1;
    for (int last = 0; last < 2; last++)
        for (int i = 0; i < in.rank; i++) {
            if ((int)(mask >> i & 1) != last) continue;
            back[i] = n;
            order[n++] = i;
            *(last ? &row : &rows) *= in.dim[i];
        }
    rw_tensor *const permuted = rw_permute(t, x, order);
    if (!permuted) return NULL;
    rw_tensor *const y = rw_softmax(t, rw_reshape(t, permuted, RW_SHAPE(rows, row)), 1);
    return rw_permute(t, rw_reshape(t, y, rw_tensor_shape(permuted)), back);
}

/*
 * exp(x - logsumexp(x)), computed as a softmax. The maximum is subtracted first, so a group may have any offset, and a
 * group of -inf gives 0. In a group with +inf the other elements are 0 as well, where a softmax would be NaN.
 */
static rw_tensor *shares(rw_grad_call *g, rw_tensor *x)
{
    rw_tape *const t = rw_grad_tape(g);
    const int rank = rw_tensor_shape(x).rank;
    const uint32_t mask = rw_reduce_mask(((const struct rw_reduce_attrs *)rw_grad_attrs(g))->axes, rank);
    rw_tensor *const total = rw_grad_output(g, 0);
    rw_tensor *const limit = rw_masked_fill(t, total, rw_ne_scalar(t, total, INFINITY), -INFINITY);
    if (!limit) return NULL;
    rw_tensor *const below = rw_lt(t, x, stretch(g, limit));
    for (int axis = 0; axis < rank; axis++)
        if (mask == 1u << axis) return rw_masked_fill(t, rw_softmax(t, x, axis), below, 0);
    return rw_masked_fill(t, softmax_over(t, x, mask), below, 0);
}

static rw_status grad_logsumexp(rw_grad_call *g)
{
    rw_tensor *const dy = stretch(g, rw_grad_upstream(g, 0));
    return rw_grad_set(g, 0, rw_mul(rw_grad_tape(g), shares(g, rw_grad_input(g, 0)), dy));
}

#define REDUCE(NAME, GRAD, RAISED)                                                                                     \
    static const rw_op_def rw_op_##NAME = { .name = #NAME,                                                             \
                                            .n_inputs = 1,                                                             \
                                            .n_outputs = 1,                                                            \
                                            .check = check_reduce,                                                     \
                                            .kernel = RW_KERNELS(rw_reduce),                                           \
                                            .grad = GRAD,                                                              \
                                            .cost = cost_reduce,                                                       \
                                            .workspace = RW_WORKSPACES(workspace_cpu, rw_reduce_workspace_cuda),       \
                                            .cast_f32 = RAISED };

RW_BUILTIN_OP(logsumexp, "x", "torch.logsumexp")
RW_BUILTIN_OP(max, "x", "torch.amax, but that the first of equals takes the gradient")
RW_BUILTIN_OP(mean, "x", "torch.mean")
RW_BUILTIN_OP(sum, "x", "torch.sum")
RW_DECLARE_KERNELS(rw_reduce)
REDUCE(sum, grad_sum, RW_OP_INPUT(0))
REDUCE(mean, grad_mean, RW_OP_INPUT(0))
REDUCE(max, grad_max, 0)
REDUCE(logsumexp, grad_logsumexp, RW_OP_INPUT(0))

static rw_tensor *reduce(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *x, uint32_t axes, bool keep, int kind)
{
    const struct rw_reduce_attrs a = { axes, keep, kind, 0 };
    return rw_apply_at(at, t, op, &x, 1, &a, sizeof a, NULL);
}

rw_tensor *rw_sum_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep)
{
    RW_ENTER_OP(t);
    return reduce(at, t, &rw_op_sum, x, axes, keep, RW_REDUCE_SUM);
}

rw_tensor *rw_mean_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep)
{
    RW_ENTER_OP(t);
    return reduce(at, t, &rw_op_mean, x, axes, keep, RW_REDUCE_MEAN);
}

rw_tensor *rw_max_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep)
{
    RW_ENTER_OP(t);
    return reduce(at, t, &rw_op_max, x, axes, keep, RW_REDUCE_MAX);
}

rw_tensor *rw_logsumexp_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep)
{
    RW_ENTER_OP(t);
    return reduce(at, t, &rw_op_logsumexp, x, axes, keep, RW_REDUCE_LOGSUMEXP);
}

/* sum_to: the axes that broadcasting stretched, then the shape */

struct sum_to_attrs {
    struct rw_reduce_attrs reduce;
    int64_t rank;
    int64_t dim[RW_MAX_RANK];
};

/* The result has the type of the last input: x, or the addend. */
static rw_status check_sum_to(rw_op_call *call)
{
    const struct sum_to_attrs *const a = call->attrs;
    rw_shape shape = { .rank = (int32_t)a->rank }, joint;
    memcpy(shape.dim, a->dim, sizeof shape.dim);
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_broadcast(call, shape, rw_in_shape(call, 0), &joint));
    if (!rw_shape_equal(joint, rw_in_shape(call, 0)))
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "a shape that %s broadcasts to",
                             rw_shape_text((char[RW_SHAPE_TEXT]){ "" }, RW_SHAPE_TEXT, shape));
    return rw_op_output(call, 0, call->in[call->n_inputs - 1].dtype, shape);
}

static rw_status grad_sum_to(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_narrowed(g, 0, rw_grad_upstream(g, 0));
    return rw_grad_set(g, 0, rw_broadcast_to(rw_grad_tape(g), dy, rw_tensor_shape(rw_grad_input(g, 0))));
}

RW_BUILTIN_OP(sum_to, "x", "Tensor.sum_to_size")
static const rw_op_def rw_op_sum_to = { .name = "sum_to", .n_inputs = 1, .n_outputs = 1, .check = check_sum_to,
                                        .kernel = RW_KERNELS(rw_reduce), .grad = grad_sum_to, .cost = cost_reduce,
                                        .workspace = RW_WORKSPACES(workspace_cpu, rw_reduce_workspace_cuda),
                                        .cast_f32 = RW_OP_INPUT(0) };

/* (x, an addend of that shape) -> the addend plus sum_to of x */
static rw_status check_sum_to_add(rw_op_call *call)
{
    RW_CHECK(check_sum_to(call));
    RW_CHECK(rw_want_sum_of(call, 1, 0));
    return rw_expect_shape(call, 1, NULL, rw_layout_shape(call->out[0].layout));
}

static rw_status grad_sum_to_add(rw_grad_call *g)
{
    if (rw_grad_wanted(g, 1)) RW_CHECK(rw_grad_set(g, 1, rw_grad_upstream(g, 0)));
    return rw_grad_wanted(g, 0) ? grad_sum_to(g) : RW_OK;
}

RW_INTERNAL_OP(sum_to_add, "x sum")
static const rw_op_def rw_op_sum_to_add = { .name = "sum_to_add", .n_inputs = 2, .n_outputs = 1,
                                            .inplace = RW_INPLACE({ 0, 1 }), .optional = RW_OP_INPUT(1),
                                            .check = check_sum_to_add, .kernel = RW_KERNELS(rw_reduce),
                                            .grad = grad_sum_to_add, .cost = cost_reduce,
                                            .workspace = RW_WORKSPACES(workspace_cpu, rw_reduce_workspace_cuda) };

/* sum: NULL for none. */
static rw_tensor *sum_to(rw_site at, rw_tape *t, rw_tensor *x, rw_shape shape, rw_tensor *sum)
{
    struct sum_to_attrs a = { .reduce = { .kind = RW_REDUCE_SUM }, .rank = shape.rank };
    shape = rw_shape_clean(shape);
    memcpy(a.dim, shape.dim, sizeof a.dim);
    const rw_shape in = rw_tensor_shape(x);
    for (int i = 0; i < in.rank && shape.rank >= 0 && shape.rank <= in.rank; i++) {
        const int k = i - (in.rank - shape.rank);
        if (k < 0 || (shape.dim[k] == 1 && in.dim[i] != 1)) a.reduce.axes |= 1u << i;
    }
    rw_tensor *const operands[] = { x, sum };
    return rw_apply_at(at, t, sum ? &rw_op_sum_to_add : &rw_op_sum_to, operands, sum ? 2 : 1, &a, sizeof a, NULL);
}

rw_tensor *rw_sum_to_at(rw_site at, rw_tape *t, rw_tensor *x, rw_shape shape)
{
    RW_ENTER_OP(t);
    return sum_to(at, t, x, shape, NULL);
}

rw_status rw_grad_set_sum_to(rw_grad_call *g, int i, rw_tensor *dx)
{
    const rw_shape shape = rw_tensor_shape(rw_grad_input(g, i));
    return rw_grad_set_sum(g, i, sum_to(RW_HERE, rw_grad_tape(g), dx, shape, rw_grad_wide_addend(g, i)));
}

rw_status rw_grad_set_broadcast(rw_grad_call *g, int i, rw_tensor *dx)
{
    if (!dx) return rw_grad_set(g, i, NULL);
    const rw_shape shape = rw_tensor_shape(rw_grad_input(g, i));
    return rw_shape_equal(shape, rw_tensor_shape(dx)) ? rw_grad_set(g, i, dx) : rw_grad_set_sum_to(g, i, dx);
}

uint32_t rw_reduce_mask(uint32_t axes, int rank)
{
    if (axes == RW_ALL_AXES) return (1u << rank) - 1;
    uint32_t mask = axes & 0xff;
    for (int i = 8; i < 16; i++)
        if (axes >> i & 1) mask |= 1u << (7 - i + rank);
    return mask;
}

static void add_axis(struct rw_reduce_axes *a, int64_t dim, int64_t stride)
{
    a->dim[a->rank] = dim;
    a->stride[a->rank++] = stride;
    a->numel *= dim;
}

static void cut_parts(struct rw_reduce_plan *p)
{
    const int64_t tasks = p->groups.numel * p->chunks;
    int64_t parts = 1;
    if (p->run_reduced) {
        if (tasks == 1 && p->rows.numel == 1) parts = (p->run + RW_REDUCE_BLOCK - 1) / RW_REDUCE_BLOCK;
    } else if (tasks && tasks < RW_REDUCE_PARTS) {
        const int64_t most = p->groups.numel * p->rows.numel * p->run / RW_REDUCE_BLOCK / tasks;
        parts = RW_REDUCE_PARTS / tasks;
        if (parts > most) parts = most;
        if (parts > p->rows.numel / 64) parts = p->rows.numel / 64;
    }
    p->parts = parts < 1 ? 1 : parts;
}

struct rw_reduce_plan rw_reduce_plan(const rw_layout *in, uint32_t mask)
{
    struct rw_reduce_plan p = { .groups.numel = 1, .rows.numel = 1, .run = 1, .run_reduced = true, .count = 1 };
    int64_t dim[RW_MAX_RANK], step = 1;
    bool reduced[RW_MAX_RANK];
    int n = 0;
    for (int i = 0; i < in->rank; i++) {
        const bool r = mask >> i & 1;
        if (r) p.count *= in->dim[i];
        if (in->dim[i] == 1) continue;
        if (n && reduced[n - 1] == r) {
            dim[n - 1] *= in->dim[i];
            continue;
        }
        dim[n] = in->dim[i];
        reduced[n++] = r;
    }
    if (n) {
        p.run = step = dim[n - 1];
        p.run_reduced = reduced[n - 1];
    }
    struct rw_reduce_axes *const axes[] = { &p.groups, &p.rows };
    for (int i = 0; i < n - 1; i++) {
        int64_t stride = step;
        for (int k = i + 1; k < n - 1; k++) stride *= dim[k];
        add_axis(axes[reduced[i]], dim[i], stride);
    }
    p.chunks = p.run_reduced ? 1 : (p.run + RW_REDUCE_COLUMNS - 1) / RW_REDUCE_COLUMNS;
    cut_parts(&p);
    return p;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void cut_columns(struct rw_reduce_cut *c, const struct rw_reduce_plan *p)
{
    while (c->lanes < 32 && c->lanes * c->pack < p->run) c->lanes *= 2;
    c->chunks = (p->run + c->lanes * c->pack - 1) / (c->lanes * c->pack);
    const int64_t blocks = p->groups.numel * c->chunks, rows = RW_REDUCE_CUDA_THREADS / c->lanes;
    if (blocks) c->parts = least(RW_REDUCE_CUDA_BLOCKS / blocks, p->rows.numel / (rows * 8));
}

static void cut_runs(struct rw_reduce_cut *c, const struct rw_reduce_plan *p)
{
    const int64_t elements = p->rows.numel * p->run, grain = RW_REDUCE_CUDA_THREADS * 16;
    c->part = elements;
    if (!p->groups.numel) return;
    const int64_t parts = least(RW_REDUCE_CUDA_BLOCKS / p->groups.numel, elements / (2 * grain));
    if (parts < 2) return;
    c->part = (elements / parts + grain - 1) / grain * grain;
    c->parts = (elements + c->part - 1) / c->part;
}

struct rw_reduce_cut rw_reduce_cut(const struct rw_reduce_plan *p, const rw_layout *in, rw_dtype dtype)
{
    struct rw_reduce_cut c = { .pack = 1, .lanes = 1, .chunks = 1, .parts = 1 };
    const int32_t pack = (int32_t)(16 / rw_dtype_size(dtype));
    const bool lone = p->run_reduced && p->rows.numel == 1 && p->groups.numel == 1; /* the rest is read one by one */
    if (dtype != RW_F64 && (lone || p->run % pack == 0)) c.pack = pack;
    if (p->run_reduced) cut_runs(&c, p);
    else cut_columns(&c, p);
    if (c.parts < 1) c.parts = 1;
    return c;
}

/* A state per output and part: logsumexp's is a maximum and a sum. */
size_t rw_reduce_cuda_workspace(const struct rw_reduce_plan *p, const rw_layout *in, rw_dtype dtype, int kind)
{
    const int64_t parts = rw_reduce_cut(p, in, dtype).parts, outputs = p->groups.numel * (p->run_reduced ? 1 : p->run);
    const size_t number = dtype == RW_F64 ? sizeof(double) : sizeof(float);
    return parts < 2 ? 0 : (size_t)(parts * outputs) * number * (kind == RW_REDUCE_LOGSUMEXP ? 2 : 1);
}
