/* cumsum: prefix sums along one axis. Its gradient is the sum of the suffixes, from the other end. */
#include "ops/reduce/cumsum.h"

#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <rewind/reductions.h>

static rw_status check(rw_op_call *call)
{
    const struct rw_cumsum_attrs *const a = call->attrs;
    int axis;
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_axis(call, (int)a->axis, call->in[0].layout->rank, &axis));
    return rw_op_output_like(call, 0, 0);
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 1);
}

static rw_tensor *apply(rw_site at, rw_tape *t, rw_tensor *x, int64_t axis, bool backwards);

static rw_status grad(rw_grad_call *g)
{
    const struct rw_cumsum_attrs *const a = rw_grad_attrs(g);
    return rw_grad_set(g, 0, apply(RW_HERE, rw_grad_tape(g), rw_grad_upstream(g, 0), a->axis, !a->backwards));
}

RW_BUILTIN_OP(cumsum, "x", "torch.cumsum")
RW_DECLARE_KERNELS(rw_cumsum)
const rw_op_def rw_op_cumsum = { .name = "cumsum", .n_inputs = 1, .n_outputs = 1,
                                 .inplace = RW_INPLACE({ 0, 0 }), .check = check,
                                 .kernel = RW_KERNELS(rw_cumsum), .grad = grad, .cost = cost,
                                 .cast_f32 = RW_OP_INPUT(0) };

static rw_tensor *apply(rw_site at, rw_tape *t, rw_tensor *x, int64_t axis, bool backwards)
{
    const struct rw_cumsum_attrs a = { axis, backwards };
    return rw_apply_at(at, t, &rw_op_cumsum, &x, 1, &a, sizeof a, NULL);
}

/* Stores the axis counted from the first one, so that equal calls have equal attributes. */
rw_tensor *rw_cumsum_at(rw_site at, rw_tape *t, rw_tensor *x, int axis)
{
    RW_ENTER_OP(t);
    const int rank = rw_tensor_shape(x).rank;
    return apply(at, t, x, axis < 0 && axis >= -rank ? axis + rank : axis, false);
}
