/*
 * Optimizer updates of many parameters at once: their check, their cost, and the derived numbers of a row. There is one
 * op per rule, so that traces and messages have its name; all use the same kernels.
 */
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/optim/update.h"

#include <rewind/composite.h>

#include <limits.h>
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

/* The type of a parameter's states, except its master copy. */
static rw_dtype state_of(const struct rw_update_attrs *a, rw_dtype dtype)
{
    return dtype == RW_F64 ? RW_F64 : (rw_dtype)a->moments;
}

#define OPERANDS "rows, then a gradient, a parameter, states and a master copy for each row, and optionally sums"

/* Checks that input i has the shape of parameter p, and this type. */
static rw_status want_like(rw_op_call *call, int i, int p, rw_dtype dtype)
{
    RW_CHECK(rw_expect_inputs(call, i + 1, INT_MAX, OPERANDS));
    RW_CHECK(rw_want_dtype(call, i, dtype));
    return rw_expect_shape_of(call, i, NULL, p, "its parameter");
}

/* Checks a state or a master copy of parameter p: for the whole parameter, or for as many elements as the one next to
   it. */
static rw_status want_state(rw_op_call *call, int i, int p, int beside, rw_dtype dtype)
{
    const struct rw_update_attrs *const a = call->attrs;
    if (!a->windows) return want_like(call, i, p, dtype);
    RW_CHECK(rw_expect_inputs(call, i + 1, INT_MAX, OPERANDS));
    RW_CHECK(rw_want_dtype(call, i, dtype));
    const int64_t numel = call->in[i].layout->numel;
    if (rw_in_shape(call, i).rank == 1 && numel <= call->in[p].layout->numel && numel == call->in[beside].layout->numel)
        return RW_OK;
    return rw_unexpected(call, RW_ERR_SHAPE, i, NULL, "[n] with n = %lld, and at most the parameter's %lld elements",
                         (long long)call->in[beside].layout->numel, (long long)call->in[p].layout->numel);
}

/* A gradient has the parameter's type or float32; what is averaged into float32 may have 16 bits. */
static rw_status want_gradient(rw_op_call *call, int rule, int i, int p)
{
    const rw_dtype to = call->in[p].dtype, g = call->in[i].dtype;
    const bool wider = rw_dtype_size(to) == 2 && g == RW_F32;
    const bool averaged = rule == RW_UPDATE_AVERAGE && to == RW_F32 && rw_dtype_size(g) == 2;
    return want_like(call, i, p, wider || averaged ? g : to);
}

/* masters: the number of earlier parameters with a master copy. all: all 16-bit parameters have one, else only those of
   float16. */
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
    RW_CHECK(rw_expect_dtype(call, i, "sums", RW_F64));
    return rw_expect_shape(call, i, "sums", RW_SHAPE(n, RW_UPDATE_SUMS));
}

/* Checks the rows and the operands of all parameters, and describes the outputs. */
static rw_status check(rw_op_call *call)
{
    const struct rw_update_attrs *const a = call->attrs;
    const rw_shape rows = rw_in_shape(call, 0);
    const int n = rows.rank == 2 ? (int)rows.dim[0] : 0, least = 1 + (2 + a->states) * n + a->sums;
    int masters = 0;
    RW_CHECK(rw_want_dtype(call, 0, RW_I32));
    if (rows.rank != 2 || rows.dim[1] != RW_UPDATE_ROW_WORDS || call->n_inputs < least)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, "rows", "[n, %lld] for at least %d inputs, not %d",
                             (long long)RW_UPDATE_ROW_WORDS, least, call->n_inputs);
    int without = call->n_inputs - least;
    for (int i = 0; i < n; i++) without -= rw_dtype_size(call->in[rw_update_param(n, i)].dtype) == 2;
    for (int i = 0; i < n; i++) RW_CHECK(check_one(call, n, i, without >= 0, &masters));
    RW_CHECK(rw_expect_inputs(call, least + masters, least + masters, OPERANDS));
    if (a->sums) RW_CHECK(check_sums(call, call->n_inputs - 1, n));
    call->n_outputs = (1 + a->states) * n + masters + a->sums;
    for (int i = 0; i < call->n_outputs; i++) RW_CHECK(rw_op_output_like(call, i, rw_update_param(n, i)));
    return RW_OK;
}

/* Everything that is written is also read, and the gradients. */
static rw_op_cost cost(const rw_op_call *call)
{
    const struct rw_update_attrs *const a = call->attrs;
    static const double operations[] = { [RW_UPDATE_ADAM] = 15, [RW_UPDATE_LION] = 9, [RW_UPDATE_SGD] = 5,
                                         [RW_UPDATE_AVERAGE] = 3 };
    const int n = (int)call->in[0].layout->dim[0];
    double elements = 0;
    for (int i = 0; i < n; i++) elements += (double)call->in[rw_update_extent(a, n, i, false, 0)].layout->numel;
    return (rw_op_cost){ .flops = operations[a->rule] * elements, .bytes = rw_op_operand_bytes(call) };
}

RW_INTERNAL_OP(adam, "rows")
RW_INTERNAL_OP(adamw, "rows")
RW_INTERNAL_OP(average, "rows")
RW_INTERNAL_OP(lion, "rows")
RW_INTERNAL_OP(sgd, "rows")
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
