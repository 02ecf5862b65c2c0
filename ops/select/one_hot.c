/* one_hot: each index becomes a row of zeros with a single 1. */
#include "base/public_entry.h"
#include "ops/select/one_hot.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <rewind/create.h>

static rw_status check(rw_op_call *call)
{
    const struct rw_one_hot_attrs *const a = call->attrs;
    rw_shape shape = rw_in_shape(call, 0);
    RW_CHECK(rw_want_dtype(call, 0, RW_I32));
    if (a->classes < 1) return rw_unexpected_int(call, RW_ERR_SHAPE, "classes", a->classes, "1 or more");
    if (shape.rank >= RW_MAX_RANK)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "a rank of at most %d", RW_MAX_RANK - 1);
    shape.dim[shape.rank++] = a->classes;
    return rw_op_output(call, 0, (rw_dtype)a->dtype, shape);
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 0);
}

RW_BUILTIN_OP(one_hot, "index", "F.one_hot")
RW_DECLARE_KERNELS(rw_one_hot)
static const rw_op_def rw_op_one_hot = { .name = "one_hot", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_NO_GRADIENT,
                                         .check = check, .kernel = RW_KERNELS(rw_one_hot), .cost = cost };

rw_tensor *rw_one_hot_at(rw_site at, rw_tape *t, rw_tensor *index, int64_t classes, rw_dtype dtype)
{
    RW_ENTER_OP(t);
    const struct rw_one_hot_attrs a = { classes, dtype };
    return rw_apply_at(at, t, &rw_op_one_hot, &index, 1, &a, sizeof a, NULL);
}
