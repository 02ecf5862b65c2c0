/* roll, flip, and the padding modes that copy elements of the tensor: checks, rules and public functions. */
#include "base/public_entry.h"
#include "ops/select/axis_remap.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/shape/shape.h"

#include <rewind/composite.h>
#include <rewind/select.h>

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 0);
}

static rw_status check(rw_op_call *call)
{
    const struct rw_remap_attrs *const a = call->attrs;
    rw_shape shape = rw_in_shape(call, 0);
    int axis;
    RW_CHECK(rw_axis(call, (int)a->axis, shape.rank, &axis));
    shape.dim[axis] = a->to;
    return rw_op_output(call, 0, call->in[0].dtype, shape);
}

static rw_status check_back(rw_op_call *call)
{
    const struct rw_remap_attrs *const a = call->attrs;
    rw_shape shape = rw_in_shape(call, 0);
    if (a->mode == RW_REMAP_WINDOWS) shape.rank--;
    shape.dim[a->axis] = a->from;
    return rw_op_output(call, 0, call->in[0].dtype, rw_shape_clean(shape));
}

static const rw_op_def *op_of(enum rw_remap_mode mode);

static rw_tensor *apply(rw_site at, rw_tape *t, rw_tensor *x, const struct rw_remap_attrs *a)
{
    return rw_apply_at(at, t, op_of((enum rw_remap_mode)a->mode), &x, 1, a, sizeof *a, NULL);
}

/* A sum over places is linear: its gradient is the copy. */
static rw_status grad_back(rw_grad_call *g)
{
    const struct rw_remap_attrs *const a = rw_grad_attrs(g);
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (a->mode == RW_REMAP_WINDOWS) return rw_grad_set(g, 0, rw_unfold(t, dy, (int)a->axis, a->size, a->step));
    return rw_grad_set(g, 0, apply(RW_HERE, t, dy, a));
}

RW_INTERNAL_OP(remap_back, "dy")
RW_DECLARE_KERNELS(rw_remap_back)
static const rw_op_def rw_op_remap_back = { .name = "remap_back", .n_inputs = 1, .n_outputs = 1, .check = check_back,
                                            .kernel = RW_KERNELS(rw_remap_back), .grad = grad_back, .cost = cost };

rw_tensor *rw_remap_back(rw_tape *t, rw_tensor *dy, const struct rw_remap_attrs *a)
{
    return rw_apply(t, &rw_op_remap_back, &dy, 1, a, sizeof *a, NULL);
}

/* Every place has one source and every element one place, so the inverse is such a move, too. */
static rw_status grad(rw_grad_call *g)
{
    struct rw_remap_attrs a = *(const struct rw_remap_attrs *)rw_grad_attrs(g);
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (a.axis < 0) a.axis += rw_tensor_shape(dy).rank;
    if (a.mode == RW_REMAP_ROLL && a.before) a.before = a.from - a.before;
    const bool moves = a.mode == RW_REMAP_ROLL || a.mode == RW_REMAP_FLIP;
    return rw_grad_set(g, 0, moves ? apply(RW_HERE, t, dy, &a) : rw_remap_back(t, dy, &a));
}

RW_BUILTIN_OP(circular_pad, "x", "F.pad(mode='circular')")
RW_BUILTIN_OP(flip, "x", "torch.flip")
RW_BUILTIN_OP(reflect_pad, "x", "F.pad(mode='reflect')")
RW_BUILTIN_OP(replicate_pad, "x", "F.pad(mode='replicate')")
RW_BUILTIN_OP(roll, "x", "torch.roll")
RW_DECLARE_KERNELS(rw_remap)
#define DEFINE(NAME)                                                                             \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = 1, .n_outputs = 1,        \
                                            .check = check, .kernel = RW_KERNELS(rw_remap),      \
                                            .grad = grad, .cost = cost };
DEFINE(flip)
DEFINE(roll)
DEFINE(reflect_pad)
DEFINE(replicate_pad)
DEFINE(circular_pad)

static const rw_op_def *op_of(enum rw_remap_mode mode)
{
    static const rw_op_def *const ops[] = { [RW_REMAP_FLIP] = &rw_op_flip, [RW_REMAP_ROLL] = &rw_op_roll,
                                            [RW_REMAP_REFLECT] = &rw_op_reflect_pad,
                                            [RW_REMAP_REPLICATE] = &rw_op_replicate_pad,
                                            [RW_REMAP_CIRCULAR] = &rw_op_circular_pad };
    return ops[mode];
}

/* 0 for an axis that does not exist, which the check reports. */
static int64_t extent_of(const rw_tensor *x, int axis)
{
    const rw_shape s = rw_tensor_shape(x);
    const int64_t i = axis < 0 ? (int64_t)axis + s.rank : axis;
    return i >= 0 && i < s.rank ? s.dim[i] : 0;
}

rw_tensor *rw_flip_at(rw_site at, rw_tape *t, rw_tensor *x, int axis)
{
    RW_ENTER_OP(t);
    const int64_t n = extent_of(x, axis);
    const struct rw_remap_attrs a = { .mode = RW_REMAP_FLIP, .axis = axis, .from = n, .to = n };
    return apply(at, t, x, &a);
}

rw_tensor *rw_roll_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t shift, int axis)
{
    RW_ENTER_OP(t);
    const int64_t n = extent_of(x, axis), rest = n ? shift % n : 0;
    const struct rw_remap_attrs a = { .mode = RW_REMAP_ROLL, .axis = axis, .from = n, .to = n,
                                      .before = rest < 0 ? rest + n : rest };
    return apply(at, t, x, &a);
}

/* pad */

static rw_tensor *pad_constant(rw_site at, rw_tape *t, rw_tensor *x, int axis, int64_t before, int64_t after,
                               double value)
{
    rw_shape shape = rw_tensor_shape(x);
    const int64_t n = shape.dim[axis];
    if (before < 0 || after < 0) {
        x = rw_slice_at(at, t, x, axis, before < 0 ? -before : 0, after < 0 ? n + after : n);
        if (before < 0) before = 0;
        if (after < 0) after = 0;
        if (!x || (!before && !after)) return x;
        shape = rw_tensor_shape(x);
    }
    shape.dim[axis] += before + after;
    return rw_pad_axis_at(at, t, x, shape, axis, before, value);
}

static rw_tensor *pad_axis(rw_site at, rw_tape *t, rw_tensor *x, int axis, const int64_t *pad, rw_pad_mode mode,
                           double value)
{
    static const enum rw_remap_mode modes[] = { [RW_PAD_REFLECT] = RW_REMAP_REFLECT,
                                                [RW_PAD_REPLICATE] = RW_REMAP_REPLICATE,
                                                [RW_PAD_CIRCULAR] = RW_REMAP_CIRCULAR };
    const int64_t n = rw_tensor_shape(x).dim[axis];
    if (!pad[0] && !pad[1]) return x;
    if (mode == RW_PAD_CONSTANT) return pad_constant(at, t, x, axis, pad[0], pad[1], value);
    const struct rw_remap_attrs a = { .mode = modes[mode], .axis = axis, .from = n, .to = n + pad[0] + pad[1],
                                      .before = pad[0] };
    return apply(at, t, x, &a);
}

/* The violated expectation, as text; NULL if the padding is valid for an axis of extent n. */
static const char *pad_mistake(int64_t n, const int64_t *pad, rw_pad_mode mode)
{
    static const int64_t most = INT64_C(1) << 60;
    for (int side = 0; side < 2; side++) {
        if (pad[side] > most || pad[side] < -most) return "at most 2^60 on a side";
        if (mode == RW_PAD_CONSTANT) continue;
        if (pad[side] < 0) return "0 or more, as only RW_PAD_CONSTANT crops";
        if (mode == RW_PAD_REFLECT && pad[side] && pad[side] >= n) return "less than the extent for RW_PAD_REFLECT";
        if (mode == RW_PAD_CIRCULAR && pad[side] > n) return "at most the extent for RW_PAD_CIRCULAR";
        if (mode == RW_PAD_REPLICATE && pad[side] && !n) return "an extent above 0 for RW_PAD_REPLICATE";
    }
    if (mode != RW_PAD_CONSTANT) return NULL;
    const int64_t cut = (pad[0] < 0 ? pad[0] : 0) + (pad[1] < 0 ? pad[1] : 0);
    return n + cut < 0 ? "to crop at most the extent" : NULL;
}

/* Reports invalid paddings before anything is recorded. */
static bool pad_refused(rw_site at, rw_tape *t, rw_shape x, const int64_t *pad, size_t n, rw_pad_mode mode)
{
    if ((unsigned)mode >= RW_PAD_MODE_COUNT)
        return rw_refuse_at(at, t, RW_ERR_ARGUMENT, "pad(mode): expected RW_PAD_CONSTANT (%d) to RW_PAD_CIRCULAR (%d), "
                            "got %d", RW_PAD_CONSTANT, RW_PAD_MODE_COUNT - 1, (int)mode);
    if (n % 2 || n / 2 > (size_t)x.rank || (n && !pad))
        return rw_refuse_at(at, t, RW_ERR_SHAPE, "pad(pad, n): expected two numbers per axis, 0 to %d, got %zu%s",
                            2 * x.rank, n, pad ? "" : " at NULL");
    for (int i = 0; i < (int)n / 2; i++) {
        const char *const mistake = pad_mistake(x.dim[x.rank - 1 - i], pad + 2 * i, mode);
        if (mistake)
            return rw_refuse_at(at, t, RW_ERR_SHAPE, "pad(pad[%d], pad[%d]): expected %s, got %lld and %lld for extent "
                                "%lld", 2 * i, 2 * i + 1, mistake, (long long)pad[2 * i], (long long)pad[2 * i + 1],
                                (long long)x.dim[x.rank - 1 - i]);
    }
    return false;
}

rw_tensor *rw_pad_at(rw_site at, rw_tape *t, rw_tensor *x, const int64_t *pad, size_t n, rw_pad_mode mode,
                     double value)
{
    RW_ENTER_OP(t);
    if (!rw_operand_check(at, t, x, "pad", "x")) return NULL;
    const int rank = rw_tensor_shape(x).rank;
    if (pad_refused(at, t, rw_tensor_shape(x), pad, n, mode)) return NULL;
    const rw_composite c = rw_composite_begin(t, "pad");
    for (int i = 0; i < (int)n / 2 && x; i++) x = pad_axis(at, t, x, rank - 1 - i, pad + 2 * i, mode, value);
    return rw_composite_end(&c, x);
}
