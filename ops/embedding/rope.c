/* rope: rotary position embedding. Its gradient is the rotation by the negative angle: the same op. */
#include "ops/embedding/rope.h"

#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <rewind/attention.h>
#include <rewind/composite.h>
#include <rewind/create.h>
#include <rewind/custom_grad.h>

#include <math.h>

static rw_status check_frequencies(rw_op_call *call, int i)
{
    RW_CHECK(rw_want_dtype(call, i, rw_rope_wide(call->in[0].dtype)));
    return rw_expect_shape(call, i, NULL, RW_SHAPE(call->in[0].layout->dim[3] / 2));
}

/* Checks x, positions and optional frequencies, and the attributes. */
static rw_status check(rw_op_call *call)
{
    const struct rw_rope_attrs *const a = call->attrs;
    const rw_layout *const x = call->in[0].layout;
    RW_CHECK(rw_want_float(call, 0));
    if (x->rank != 4 || x->dim[3] % 2)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "[batch, heads, seq, d] with an even d");
    if (!a->given && !(a->base > 0 && isfinite(a->base)))
        return rw_unexpected_real(call, "base", a->base, "a finite number above 0");
    if (!isfinite(a->scale)) return rw_unexpected_real(call, "scale", a->scale, "a finite number");
    if (a->given) RW_CHECK(check_frequencies(call, 2));
    if (call->n_inputs > 1) {
        RW_CHECK(rw_want_dtype(call, 1, RW_I32));
        RW_CHECK(rw_expect_shape(call, 1, NULL, RW_SHAPE(x->dim[2])));
    }
    return rw_op_output_like(call, 0, 0);
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 3);
}

/* The table, then the angular frequencies in whole vectors of 8. */
static size_t workspace(const rw_op_call *call)
{
    const rw_layout *const x = call->in[0].layout;
    const int64_t half = x->dim[3] / 2;
    return rw_rope_table_bytes(x->dim[2], half, call->in[0].dtype) + (size_t)((half + 7) / 8 * 8) * sizeof(double);
}

static rw_status grad(rw_grad_call *g);

RW_BUILTIN_OP(rope, "x positions frequencies", "-")
RW_DECLARE_KERNELS(rw_rope)
static const rw_op_def rw_op_rope = { .name = "rope",
                                      .n_inputs = RW_OP_VARIADIC,
                                      .n_outputs = 1,
                                      .strided = RW_OP_INPUT(0),
                                      .inplace = RW_INPLACE({ 0, 0 }),
                                      .check = check,
                                      .kernel = RW_KERNELS(rw_rope),
                                      .grad = grad,
                                      .cost = cost,
                                      .workspace = RW_WORKSPACES(workspace, workspace) };

static rw_status grad(rw_grad_call *g)
{
    struct rw_rope_attrs a = *(const struct rw_rope_attrs *)rw_grad_attrs(g);
    a.inverse = !a.inverse;
    const int n = rw_grad_n_inputs(g);
    rw_tensor *in[] = { rw_grad_upstream(g, 0), NULL, NULL };
    for (int i = 1; i < n; i++) in[i] = rw_grad_input(g, i);
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &rw_op_rope, in, n, &a, sizeof a, NULL));
}

rw_tensor *rw_rope_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *positions, double base)
{
    RW_ENTER_OP(t);
    const struct rw_rope_attrs a = { .base = rw_constant(x, base), .scale = 1 };
    rw_tensor *const in[] = { x, positions };
    return rw_apply_at(at, t, &rw_op_rope, in, positions == rw_none() ? 1 : 2, &a, sizeof a, NULL);
}

/* Frequencies as the op reads them: a constant, in the type of angles. */
static rw_tensor *constant(rw_site at, rw_tape *t, rw_tensor *frequencies, const rw_tensor *x)
{
    rw_tensor *const wide = rw_cast_at(at, t, frequencies, rw_rope_wide(rw_tensor_dtype(x)));
    return wide ? rw_detach_at(at, t, wide) : NULL;
}

/* Records the rotation with the caller's options; see the public header for the contract. */
rw_tensor *rw_rope_with_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *positions, const rw_rope_params *params)
{
    RW_ENTER_OP(t);
    static const char what[] = "rope_with";
    static const rw_rope_params defaults;
    const rw_rope_params *const p = params ? params : &defaults;
    const bool given = p->frequencies && p->frequencies != rw_none();
    if (!rw_operand_check(at, t, x, what, "x") ||
        (positions != rw_none() && !rw_operand_check(at, t, positions, what, "positions")) ||
        (given && !rw_operand_check(at, t, p->frequencies, what, "frequencies")))
        return NULL;
    if (given && !rw_dtype_is_float(rw_tensor_dtype(p->frequencies))) {
        rw_refuse_operand_at(at, t, RW_ERR_DTYPE, what, "frequencies", p->frequencies, "a floating-point type");
        return NULL;
    }
    const struct rw_rope_attrs a = { .base = given ? 0 : rw_constant(x, rw_or_default(p->base, 10000)),
                                     .interleaved = p->interleaved, .given = given,
                                     .scale = rw_constant(x, rw_or_default(p->scale, 1)) };
    const rw_composite c = rw_composite_begin(t, what);
    const rw_shape s = rw_tensor_shape(x);
    if (given && positions == rw_none())
        positions = rw_arange_at(at, t, RW_I32, 0, s.rank == 4 ? (double)s.dim[2] : 0, 1);
    rw_tensor *const in[] = { x, positions, given && positions ? constant(at, t, p->frequencies, x) : NULL };
    const int n = given ? 3 : positions == rw_none() ? 1 : 2;
    return rw_composite_end(&c, given && !in[2] ? NULL : rw_apply_at(at, t, &rw_op_rope, in, n, &a, sizeof a, NULL));
}
