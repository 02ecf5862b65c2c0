/* AdamW over many parameters at once: its check, its cost, and the numbers of a row that follow from the others. */
#include "ops/optim/adamw.h"

#include "ops/common/kernels.h"
#include "ops/common/util.h"

#include <math.h>

void rw_adamw_row_finish(struct rw_adamw_row *r, uint64_t step)
{
    r->correction1 = 1 - pow(r->beta1, (double)step);
    r->correction2 = 1 - pow(r->beta2, (double)step);
    r->b1 = (float)r->beta1, r->b2 = (float)r->beta2;
    r->c1 = (float)(1 - r->beta1), r->c2 = (float)(1 - r->beta2);
    r->decay = (float)(1 - r->lr * r->weight_decay);
    r->rate = (float)(r->lr / r->correction1);
    r->root = (float)(1 / sqrt(r->correction2));
    r->eps32 = (float)r->eps;
}

static rw_dtype wide_of(rw_dtype dtype)
{
    return dtype == RW_F64 ? RW_F64 : RW_F32;
}

/* Input i has the shape of parameter p, and this type. */
static rw_status want_like(rw_op_call *call, int i, int p, rw_dtype dtype)
{
    if (i >= call->n_inputs) return rw_op_error(call, RW_ERR_ARGUMENT, "%d inputs are too few", call->n_inputs);
    RW_CHECK(rw_want_dtype(call, i, dtype));
    if (rw_shape_equal(rw_in_shape(call, i), rw_in_shape(call, p))) return RW_OK;
    return rw_op_error(call, RW_ERR_SHAPE, "input %d has another shape than its parameter", i);
}

static rw_status check_one(rw_op_call *call, int n, int i, int *masters)
{
    const int p = rw_adamw_param(n, i);
    RW_CHECK(rw_want_float(call, p));
    const rw_dtype dtype = call->in[p].dtype;
    RW_CHECK(want_like(call, rw_adamw_grad(i), p, call->in[rw_adamw_grad(i)].dtype));
    RW_CHECK(rw_want_sum_of(call, rw_adamw_grad(i), p));
    RW_CHECK(want_like(call, rw_adamw_m(n, i), p, wide_of(dtype)));
    RW_CHECK(want_like(call, rw_adamw_v(n, i), p, wide_of(dtype)));
    return rw_dtype_size(dtype) == 2 ? want_like(call, rw_adamw_master(n, (*masters)++), p, RW_F32) : RW_OK;
}

static rw_status check(rw_op_call *call)
{
    const rw_shape rows = rw_in_shape(call, 0);
    const int n = rows.rank == 2 ? (int)rows.dim[0] : 0;
    int masters = 0;
    RW_CHECK(rw_want_dtype(call, 0, RW_I32));
    if (rows.rank != 2 || rows.dim[1] != RW_ADAMW_ROW_WORDS || call->n_inputs < 1 + 4 * n)
        return rw_op_error(call, RW_ERR_SHAPE, "the rows do not fit %d inputs", call->n_inputs);
    for (int i = 0; i < n; i++) RW_CHECK(check_one(call, n, i, &masters));
    if (call->n_inputs != 1 + 4 * n + masters)
        return rw_op_error(call, RW_ERR_ARGUMENT, "%d inputs are too many", call->n_inputs);
    call->n_outputs = 3 * n + masters;
    for (int i = 0; i < call->n_outputs; i++) RW_CHECK(rw_op_output_like(call, i, rw_adamw_param(n, i)));
    return RW_OK;
}

/* As many elements as are written are read, and the gradients. */
static rw_op_cost cost(const rw_op_call *call)
{
    const int n = (int)call->in[0].layout->dim[0];
    double elements = 0;
    for (int i = 0; i < n; i++) elements += (double)call->in[rw_adamw_param(n, i)].layout->numel;
    return (rw_op_cost){ 15 * elements, rw_cost_bytes(call) };
}

RW_DECLARE_KERNELS(rw_adamw)
const rw_op_def rw_op_adamw = { .name = "adamw", .n_inputs = RW_OP_VARIADIC, .n_outputs = RW_OP_VARIADIC,
                                .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                                .optional = RW_OP_ALL_INPUTS & ~RW_OP_INPUT(0),
                                .check = check, .kernel = RW_KERNELS(rw_adamw), .cost = cost };
