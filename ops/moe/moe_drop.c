/* Capacity of experts: the op that selects which of an expert's slots are kept and which are dropped. */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/moe/moe.h"

#include <math.h>

/* Four roundings, of the factor to a double, of its product, of the quotient and of the last product, are together at
   most 2^-51 of the result. So a result that exceeds an integer by at most 2^-51 of itself counts as that integer. */
int64_t rw_moe_capacity(int64_t tokens, int64_t k, int64_t experts, double factor)
{
    RW_ENTER_ANYWHERE;
    if (tokens < 1 || k < 1 || experts < 1 || !(factor > 0)) return 0;
    const double rows = ceil((double)tokens * (double)k * factor / (double)experts * (1 - 0x1p-50));
    if (!(rows < (double)tokens)) return tokens;
    return rows > 1 ? (int64_t)rows : 1; /* a product that underflows is above 0, too */
}

/* Inputs: index [T, k], order [T k], inverse [T, k], offsets [E + 1], and weights [T, k] if these determine the
   selection. */
static rw_status check_drop(rw_op_call *call)
{
    const struct rw_moe_drop_attrs *const a = call->attrs;
    const rw_shape s = rw_in_shape(call, 0);
    for (int i = 0; i < 4; i++) RW_CHECK(rw_want_dtype(call, i, RW_I32));
    RW_CHECK(rw_expect_rank(call, 0, NULL, 2, "[T, k]"));
    RW_CHECK(rw_expect_shape(call, 1, NULL, RW_SHAPE(rw_shape_numel(s))));
    RW_CHECK(rw_expect_shape_of(call, 2, NULL, 0, NULL));
    if (rw_in_shape(call, 3).rank != 1 || rw_in_shape(call, 3).dim[0] < 2)
        return rw_unexpected(call, RW_ERR_SHAPE, 3, NULL, "[E + 1] with 1 expert or more");
    if (a->capacity < 1) return rw_unexpected_int(call, RW_ERR_ARGUMENT, "capacity", a->capacity, "1 or more");
    if (call->n_inputs == 5) {
        RW_CHECK(rw_want_float(call, 4));
        RW_CHECK(rw_expect_shape_of(call, 4, NULL, 0, NULL));
    }
    return rw_op_output(call, 0, RW_I32, s);
}

RW_BUILTIN_OP(moe_drop, "index order inverse offsets weights", "-")
RW_DECLARE_KERNELS(rw_moe_drop)
static const rw_op_def rw_op_moe_drop = { .name = "moe_drop", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                          .flags = RW_OP_NO_GRADIENT, .check = check_drop,
                                          .kernel = RW_KERNELS(rw_moe_drop) };

rw_tensor *rw_moe_drop_at(rw_site at, rw_tape *t, rw_tensor *index, rw_tensor *weights, const rw_moe_routes *routes,
                          int64_t capacity)
{
    RW_ENTER_OP(t);
    if (!rw_moe_is_there(at, t, "moe_drop", "routes", routes)) return NULL;
    const struct rw_moe_drop_attrs a = { capacity };
    rw_tensor *const in[] = { index, routes->order, routes->inverse, routes->offsets, weights };
    return rw_apply_at(at, t, &rw_op_moe_drop, in, weights == rw_none() ? 4 : 5, &a, sizeof a, NULL);
}
