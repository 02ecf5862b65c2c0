/*
 * Updates of many parameters at once: their check, their cost, and the numbers of a row that follow from the others.
 * One op for each rule, so that traces and messages have its name; their kernels are one.
 */
#include "ops/common/kernels.h"
#include "ops/common/util.h"
#include "ops/optim/update.h"

#include <math.h>

void rw_update_row_finish(struct rw_update_row *r)
{
    r->f.b1 = (float)r->b1, r->f.b2 = (float)r->b2;
    r->f.c1 = (float)r->c1, r->f.c2 = (float)r->c2;
    r->f.decay = (float)r->decay;
    r->f.l2 = (float)r->l2;
    r->f.rate = (float)(r->lr / r->correction1);
    r->f.root = (float)(1 / sqrt(r->correction2));
    r->f.eps = (float)r->eps;
}

/* Of the states of a parameter, but for its master copy. */
static rw_dtype state_of(const struct rw_update_attrs *a, rw_dtype dtype)
{
    return dtype == RW_F64 ? RW_F64 : (rw_dtype)a->moments;
}

/* Input i has the shape of parameter p, and this type. */
static rw_status want_like(rw_op_call *call, int i, int p, rw_dtype dtype)
{
    if (i >= call->n_inputs) return rw_op_error(call, RW_ERR_ARGUMENT, "%d inputs are too few", call->n_inputs);
    RW_CHECK(rw_want_dtype(call, i, dtype));
    if (rw_shape_equal(rw_in_shape(call, i), rw_in_shape(call, p))) return RW_OK;
    return rw_op_error(call, RW_ERR_SHAPE, "input %d has another shape than its parameter", i);
}

/* A state or a master copy of parameter p: of all of it, or of as many elements of it as the one beside it. */
static rw_status want_state(rw_op_call *call, int i, int p, int beside, rw_dtype dtype)
{
    const struct rw_update_attrs *const a = call->attrs;
    if (!a->windows) return want_like(call, i, p, dtype);
    if (i >= call->n_inputs) return rw_op_error(call, RW_ERR_ARGUMENT, "%d inputs are too few", call->n_inputs);
    RW_CHECK(rw_want_dtype(call, i, dtype));
    const int64_t numel = call->in[i].layout->numel;
    if (rw_in_shape(call, i).rank == 1 && numel <= call->in[p].layout->numel && numel == call->in[beside].layout->numel)
        return RW_OK;
    return rw_op_error(call, RW_ERR_SHAPE, "input %d is no window of its parameter", i);
}

/* A gradient has the parameter's type or float32; what is averaged into float32 may have 16 bits. */
static rw_status want_gradient(rw_op_call *call, int rule, int i, int p)
{
    const rw_dtype to = call->in[p].dtype, g = call->in[i].dtype;
    const bool wider = rw_dtype_size(to) == 2 && g == RW_F32;
    const bool averaged = rule == RW_UPDATE_AVERAGE && to == RW_F32 && rw_dtype_size(g) == 2;
    return want_like(call, i, p, wider || averaged ? g : to);
}

/* masters: how many of those before it have one. all: of all of 16 bits, else of float16 alone. */
static rw_status check_one(rw_op_call *call, int n, int i, bool all, int *masters)
{
    const struct rw_update_attrs *const a = call->attrs;
    const int p = rw_update_param(n, i);
    RW_CHECK(rw_want_float(call, p));
    const rw_dtype dtype = call->in[p].dtype;
    RW_CHECK(want_gradient(call, a->rule, rw_update_grad(i), p));
    const int first = rw_update_state(n, 0, i);
    for (int s = 0; s < a->states; s++)
        RW_CHECK(want_state(call, rw_update_state(n, s, i), p, first, state_of(a, dtype)));
    if (rw_dtype_size(dtype) != 2 || (dtype == RW_BF16 && !all)) return RW_OK;
    const int master = rw_update_state(n, a->states, (*masters)++);
    return want_state(call, master, p, a->states ? first : master, RW_F32);
}

static rw_status check_sums(rw_op_call *call, int i, int n)
{
    const rw_shape shape = rw_in_shape(call, i);
    RW_CHECK(rw_want_dtype(call, i, RW_F64));
    if (shape.rank == 2 && shape.dim[0] == n && shape.dim[1] == RW_UPDATE_SUMS) return RW_OK;
    return rw_op_error(call, RW_ERR_SHAPE, "input %d has no room for the sums of %d parameters", i, n);
}

static rw_status check(rw_op_call *call)
{
    const struct rw_update_attrs *const a = call->attrs;
    const rw_shape rows = rw_in_shape(call, 0);
    const int n = rows.rank == 2 ? (int)rows.dim[0] : 0, least = 1 + (2 + a->states) * n + a->sums;
    int masters = 0;
    RW_CHECK(rw_want_dtype(call, 0, RW_I32));
    if (rows.rank != 2 || rows.dim[1] != RW_UPDATE_ROW_WORDS || call->n_inputs < least)
        return rw_op_error(call, RW_ERR_SHAPE, "the rows do not fit %d inputs", call->n_inputs);
    int without = call->n_inputs - least;
    for (int i = 0; i < n; i++) without -= rw_dtype_size(call->in[rw_update_param(n, i)].dtype) == 2;
    for (int i = 0; i < n; i++) RW_CHECK(check_one(call, n, i, without >= 0, &masters));
    if (call->n_inputs != least + masters)
        return rw_op_error(call, RW_ERR_ARGUMENT, "%d inputs are too many", call->n_inputs);
    if (a->sums) RW_CHECK(check_sums(call, call->n_inputs - 1, n));
    call->n_outputs = (1 + a->states) * n + masters + a->sums;
    for (int i = 0; i < call->n_outputs; i++) RW_CHECK(rw_op_output_like(call, i, rw_update_param(n, i)));
    return RW_OK;
}

/* As many elements as are written are read, and the gradients. */
static rw_op_cost cost(const rw_op_call *call)
{
    const struct rw_update_attrs *const a = call->attrs;
    static const double operations[] = { [RW_UPDATE_ADAM] = 15, [RW_UPDATE_LION] = 9, [RW_UPDATE_SGD] = 5,
                                         [RW_UPDATE_AVERAGE] = 3 };
    const int n = (int)call->in[0].layout->dim[0];
    double elements = 0;
    for (int i = 0; i < n; i++) elements += (double)call->in[rw_update_extent(a, n, i, false, 0)].layout->numel;
    return (rw_op_cost){ operations[a->rule] * elements, rw_cost_bytes(call) };
}

RW_DECLARE_KERNELS(rw_update)
RW_DECLARE_CUDA_WORKSPACE(rw_update_workspace_cuda)
#define UPDATE(text)                                                                                       \
    {                                                                                                      \
        .name = text, .n_inputs = RW_OP_VARIADIC, .n_outputs = RW_OP_VARIADIC,                             \
        .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,                                        \
        .optional = RW_OP_ALL_INPUTS & ~RW_OP_INPUT(0), .check = check, .kernel = RW_KERNELS(rw_update),   \
        .cost = cost, .workspace = RW_WORKSPACES(NULL, rw_update_workspace_cuda)                           \
    }
const rw_op_def rw_op_adamw = UPDATE("adamw");
const rw_op_def rw_op_adam = UPDATE("adam");
const rw_op_def rw_op_sgd = UPDATE("sgd");
const rw_op_def rw_op_lion = UPDATE("lion");
const rw_op_def rw_op_average = UPDATE("average");
