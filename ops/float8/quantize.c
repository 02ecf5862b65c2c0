/* quantize and dequantize: FP8 data with one scale per tensor or block. */
#include "ops/float8/quantize.h"

#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/float8/fp8_scaling_ops.h"

#include <limits.h>

static bool is_f8(int64_t dtype)
{
    return dtype == RW_F8_E4M3 || dtype == RW_F8_E5M2;
}

static bool is_narrow_enough(int64_t dtype)
{
    return dtype == RW_F32 || dtype == RW_BF16 || dtype == RW_F16;
}

static rw_dtype scale_dtype(const struct rw_quantize_attrs *a)
{
    return a->scaling == RW_SCALING_MX ? RW_F8_E8M0 : RW_F32;
}

/* The shape of the scales of a tensor for a scaling mode. */
static rw_status scales_shape(rw_op_call *call, const struct rw_quantize_attrs *a, rw_shape *ret)
{
    const rw_layout *const x = call->in[0].layout;
    *ret = RW_SCALAR;
    if (a->scaling < 0 || a->scaling >= RW_SCALING_COUNT)
        return rw_unexpected_int(call, RW_ERR_ARGUMENT, "scaling", (int32_t)a->scaling, "one of rw_scaling, 0 to %d",
                                 RW_SCALING_COUNT - 1);
    if (a->scaling == RW_SCALING_TENSOR) return RW_OK;
    if (x->rank < 1) return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "rank 1 or more, as blocks are along an axis");
    const struct rw_scales s = rw_scales_of(x, a->scaling);
    if (a->scaling == RW_SCALING_128X128) {
        *ret = RW_SHAPE(s.down, s.across);
        return RW_OK;
    }
    *ret = rw_layout_shape(x);
    ret->dim[x->rank - 1] = s.across;
    return RW_OK;
}

/* Checks x and an optional scale, and describes FP8 data, scales and amax. */
static rw_status check_quantize(rw_op_call *call)
{
    const struct rw_quantize_attrs *const a = call->attrs;
    rw_shape scales;
    RW_CHECK(rw_expect_inputs(call, 1, 2, "x and optionally scale"));
    if (!is_narrow_enough(call->in[0].dtype))
        return rw_unexpected(call, RW_ERR_DTYPE, 0, "x", "f32, bf16 or f16");
    if (!is_f8(a->dtype)) return rw_unexpected_dtype(call, "dtype", a->dtype, "f8_e4m3 or f8_e5m2");
    RW_CHECK(scales_shape(call, a, &scales));
    if (call->n_inputs == 2) {
        RW_CHECK(rw_want_dtype(call, 1, RW_F32));
        if (a->scaling != RW_SCALING_TENSOR)
            return rw_unexpected_int(call, RW_ERR_SHAPE, "scaling", a->scaling,
                                     "RW_SCALING_TENSOR (%d), as scale is given", RW_SCALING_TENSOR);
        if (call->in[1].layout->numel != 1)
            return rw_unexpected(call, RW_ERR_SHAPE, 1, "scale", "one element, for the whole tensor");
    }
    RW_CHECK(rw_op_output(call, 0, (rw_dtype)a->dtype, rw_in_shape(call, 0)));
    RW_CHECK(rw_op_output(call, 1, scale_dtype(a), scales));
    return rw_op_output(call, 2, RW_F32, scales);
}

static rw_status check_counted(rw_op_call *call)
{
    RW_CHECK(check_quantize(call));
    return rw_op_output(call, 3, RW_I32, RW_SHAPE(RW_CODES_WORDS));
}

/* Attributes: the row of each. */
static rw_status check_note(rw_op_call *call)
{
    const int n = call->n_inputs - 1;
    const uint32_t *const row = call->attrs;
    RW_CHECK(rw_expect_inputs(call, 2, INT_MAX, "counts of one op or more, and the table of counts"));
    for (int i = 0; i <= n; i++) RW_CHECK(rw_want_dtype(call, i, RW_I32));
    for (int i = 0; i < n; i++)
        if (call->in[i].layout->numel != RW_CODES_WORDS ||
            (int64_t)row[i] >= call->in[n].layout->numel / RW_CODES_WORDS)
            return rw_unexpected(call, RW_ERR_SHAPE, i, NULL, "%d elements, for row %u of a table of %lld",
                                 (int)RW_CODES_WORDS, row[i], (long long)(call->in[n].layout->numel / RW_CODES_WORDS));
    return rw_op_output_like(call, 0, n);
}

static rw_status check_dequantize(rw_op_call *call)
{
    const struct rw_quantize_attrs *const a = call->attrs;
    rw_shape scales;
    if (!is_f8(call->in[0].dtype))
        return rw_unexpected(call, RW_ERR_DTYPE, 0, NULL, "f8_e4m3 or f8_e5m2");
    if (!is_narrow_enough(a->dtype)) return rw_unexpected_dtype(call, "dtype", a->dtype, "f32, bf16 or f16");
    RW_CHECK(scales_shape(call, a, &scales));
    RW_CHECK(rw_want_dtype(call, 1, scale_dtype(a)));
    RW_CHECK(rw_expect_shape(call, 1, NULL, scales));
    return rw_op_output(call, 0, (rw_dtype)a->dtype, rw_in_shape(call, 0));
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 6);
}

static size_t workspace(const rw_op_call *call)
{
    const struct rw_quantize_attrs *const a = call->attrs;
    if (a->scaling != RW_SCALING_TENSOR) return 0;
    return (size_t)(rw_quantize_parts(call->in[0].layout->numel) + 1) * sizeof(uint32_t);
}

RW_BUILTIN_OP(dequantize, "codes scale", "-")
RW_BUILTIN_OP(quantize, "x scale", "-")
RW_DECLARE_KERNELS(rw_quantize)
static const rw_op_def rw_op_quantize = { .name = "quantize", .n_inputs = RW_OP_VARIADIC, .n_outputs = 3,
                                          .flags = RW_OP_NO_GRADIENT | RW_OP_CODES, .check = check_quantize,
                                          .kernel = RW_KERNELS(rw_quantize), .cost = cost,
                                          .workspace = RW_WORKSPACES(workspace, workspace) };
RW_DECLARE_KERNELS(rw_dequantize)
static const rw_op_def rw_op_dequantize = { .name = "dequantize", .n_inputs = 2, .n_outputs = 1,
                                            .flags = RW_OP_NO_GRADIENT | RW_OP_CODES, .check = check_dequantize,
                                            .kernel = RW_KERNELS(rw_dequantize), .cost = cost };

RW_INTERNAL_OP(note_counts, "counts[]")
/* With the same name, because policies match ops by name. */
static const rw_op_def counted = { .name = "quantize", .n_inputs = RW_OP_VARIADIC, .n_outputs = 4,
                                   .flags = RW_OP_NO_GRADIENT | RW_OP_CODES, .check = check_counted,
                                   .kernel = RW_KERNELS(rw_quantize), .cost = cost,
                                   .workspace = RW_WORKSPACES(workspace, workspace) };
RW_DECLARE_KERNELS(rw_note_counts)
const rw_op_def rw_op_note_counts = { .name = "note_counts", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                      .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                                      .check = check_note, .kernel = RW_KERNELS(rw_note_counts) };

/* Records quantize with counts for a monitor; see the declaration. */
rw_tensor *rw_quantize_counted_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *scale,
                                  const rw_quantize_params *params, rw_tensor **ret_scale, rw_tensor **ret_amax,
                                  rw_tensor **ret_counts)
{
    static const rw_quantize_params defaults;
    const rw_quantize_params *const p = params ? params : &defaults;
    const struct rw_quantize_attrs a = { p->dtype ? p->dtype : RW_F8_E4M3, p->scaling, p->power_of_two };
    if (!ret_scale) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "quantize: ret_scale is NULL; expected where the scale is stored");
        return NULL;
    }
    rw_tensor *const in[] = { x, scale };
    rw_tensor *out[4] = { NULL };
    rw_apply_at(at, t, ret_counts ? &counted : &rw_op_quantize, in, scale == rw_none() ? 1 : 2, &a, sizeof a, out);
    *ret_scale = out[1];
    if (ret_amax) *ret_amax = out[2];
    if (ret_counts) *ret_counts = out[3];
    return out[0];
}

rw_tensor *rw_quantize_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *scale, const rw_quantize_params *params,
                          rw_tensor **ret_scale, rw_tensor **ret_amax)
{
    RW_ENTER_OP(t);
    return rw_quantize_counted_at(at, t, x, scale, params, ret_scale, ret_amax, NULL);
}

rw_tensor *rw_dequantize_at(rw_site at, rw_tape *t, rw_tensor *codes, rw_tensor *scale, rw_scaling scaling,
                            rw_dtype dtype)
{
    RW_ENTER_OP(t);
    const struct rw_quantize_attrs a = { dtype, scaling, 0 };
    rw_tensor *const in[] = { codes, scale };
    return rw_apply_at(at, t, &rw_op_dequantize, in, 2, &a, sizeof a, NULL);
}
