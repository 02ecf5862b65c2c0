/* Calls of public functions for docs_ops_table.c, which records them to see their ops. */
#include "ops/docs_ops_table_calls.h"

#include <stddef.h>
#include <stdio.h>

#define CALL(NAME, ...)                                         \
    static rw_tensor *record_##NAME(rw_tape *t, rw_dtype dtype) \
    {                                                           \
        return __VA_ARGS__;                                     \
    }

static rw_tensor *in(rw_tape *t, rw_dtype dtype, rw_shape shape)
{
    rw_tensor *const x = rw_input(t, dtype, shape, NULL, 0);
    return rw_dtype_is_float(dtype) ? rw_require_grad(t, x) : x;
}

/* A buffer of the context, created by the first call. */
static rw_tensor *buffer(rw_tape *t, const char *role, rw_dtype dtype, rw_shape shape)
{
    char name[32];
    rw_context *const ctx = rw_tape_context(t);
    snprintf(name, sizeof name, "%s_%s", role, rw_dtype_name(dtype));
    rw_tensor *const there = rw_param_find(ctx, name);
    return there ? there : rw_buffer(ctx, name, dtype, shape);
}

#define X in(t, dtype, RW_SHAPE(2, 3))
#define IMAGE in(t, dtype, RW_SHAPE(2, 3, 4, 4))
#define HEADS in(t, dtype, RW_SHAPE(1, 2, 3, 4))
#define INDEX in(t, RW_I32, RW_SHAPE(2))
#define PARAMS(TYPE, ...) &(TYPE){ __VA_ARGS__ }

/* ---- ops that no case records ---- */

CALL(arange, rw_arange(t, dtype, 0, 3, 1))
CALL(argmax, rw_argmax(t, X, 1, false))
CALL(argmin, rw_argmin(t, X, 1, false))
CALL(dequantize, rw_dequantize(t, in(t, RW_F8_E4M3, RW_SHAPE(2, 3)), in(t, RW_F32, RW_SCALAR), RW_SCALING_TENSOR,
                               dtype))
CALL(detach, rw_detach(t, X))
CALL(logical_not, rw_logical_not(t, X))
CALL(moe_topk, rw_moe_topk(t, X, in(t, dtype, RW_SHAPE(3)), PARAMS(rw_moe_choice, .k = 2)))
CALL(quantize, rw_quantize(t, X, RW_NONE, NULL, &(rw_tensor *){ NULL }, NULL))
CALL(sign, rw_sign(t, X))
CALL(straight_through, rw_straight_through(t, rw_scale(t, X, 2), X))
CALL(moe_balance, rw_moe_balance(t, buffer(t, "bias", dtype, RW_SHAPE(3)), buffer(t, "total", dtype, RW_SHAPE(3)),
                                 0.1))

static rw_tensor *record_assign(rw_tape *t, rw_dtype dtype)
{
    rw_tensor *const x = X;
    return rw_assign(t, buffer(t, "buffer", dtype, RW_SHAPE(2, 3)), x) ? NULL : x;
}

/* A rule that reads its data. */
static rw_status times_x(rw_grad_call *g, const void *data)
{
    return rw_grad_set(g, 1, rw_mul(rw_grad_tape(g), rw_grad_upstream(g, 0), rw_grad_input(g, 1)));
}

static rw_tensor *record_custom_grad(rw_tape *t, rw_dtype dtype)
{
    rw_tensor *const x = X;
    return rw_custom_grad(t, rw_scale(t, x, 2), &x, 1, times_x, NULL, 0);
}

static rw_tensor *record_batchnorm(rw_tape *t, rw_dtype dtype)
{
    const rw_dtype wide = dtype == RW_F64 ? RW_F64 : RW_F32;
    rw_tensor *const mean = buffer(t, "mean", wide, RW_SHAPE(3)), *const var = buffer(t, "var", wide, RW_SHAPE(3));
    return rw_batchnorm(t, IMAGE, in(t, wide, RW_SHAPE(3)), in(t, wide, RW_SHAPE(3)), mean, var, NULL);
}

static rw_tensor *record_embedding_bag_offsets(rw_tape *t, rw_dtype dtype)
{
    return rw_embedding_bag_with(t, X, INDEX, PARAMS(rw_embedding_bag_params, .offsets = INDEX));
}

static rw_tensor *record_embedding_bag_argmax(rw_tape *t, rw_dtype dtype)
{
    return rw_embedding_bag_with(t, X, INDEX, PARAMS(rw_embedding_bag_params, .mode = RW_BAG_MAX, .offsets = INDEX));
}

static rw_tensor *record_batchnorm_average(rw_tape *t, rw_dtype dtype)
{
    const rw_dtype wide = dtype == RW_F64 ? RW_F64 : RW_F32;
    rw_tensor *const mean = buffer(t, "mean", wide, RW_SHAPE(3)), *const var = buffer(t, "var", wide, RW_SHAPE(3));
    return rw_batchnorm(t, IMAGE, RW_NONE, RW_NONE, mean, var,
                        PARAMS(rw_batchnorm_params, .batches = buffer(t, "batches", wide, RW_SCALAR)));
}

/* ---- functions that are composed of other ops ---- */

#define ATTENTION &(rw_attention_params){ .causal = true, .window = 2 }
#define LOGITS in(t, dtype, RW_SHAPE(2, 3)), INDEX

CALL(adaptive_avg_pool2d, rw_adaptive_avg_pool2d(t, IMAGE, 2, 3))
CALL(adaptive_max_pool2d, rw_adaptive_max_pool2d(t, IMAGE, 2, 3))
CALL(attention_lse, rw_attention_lse(t, HEADS, HEADS, HEADS, ATTENTION, &(rw_tensor *){ NULL }))
CALL(clamp_tensor, rw_clamp_tensor(t, X, X, X))
CALL(cross_entropy_with, rw_cross_entropy_with(t, LOGITS, RW_NONE, PARAMS(rw_cross_entropy_params, .z_loss = 1e-4)))
CALL(einsum, rw_einsum(t, "bik,bkj->bij", ((rw_tensor *const[]){ in(t, dtype, RW_SHAPE(2, 3, 4)),
                                                                 in(t, dtype, RW_SHAPE(2, 4, 5)) }), 2))
CALL(eq_scalar, rw_eq_scalar(t, X, 1))
CALL(embedding_bag_with, rw_embedding_bag_with(t, X, in(t, RW_I32, RW_SHAPE(2, 3)), PARAMS(rw_embedding_bag_params,
                                                                                          .mode = RW_BAG_MAX)))
CALL(embedding_with, rw_embedding_with(t, X, INDEX, PARAMS(rw_embedding_params, .has_padding_index = true)))
CALL(full, rw_full(t, dtype, RW_SHAPE(2, 3), 1))
CALL(ge_scalar, rw_ge_scalar(t, X, 1))
CALL(global_avg_pool2d, rw_global_avg_pool2d(t, IMAGE))
CALL(gt_scalar, rw_gt_scalar(t, X, 1))
CALL(huber_loss, rw_huber_loss(t, X, X, 1, RW_REDUCTION_MEAN))
CALL(le_scalar, rw_le_scalar(t, X, 1))
CALL(lt_scalar, rw_lt_scalar(t, X, 1))
CALL(masked_fill, rw_masked_fill(t, X, in(t, RW_BOOL, RW_SHAPE(2, 3)), 1))
CALL(moe_z_loss, rw_moe_z_loss(t, X, 1e-3))
CALL(mse_loss_with, rw_mse_loss_with(t, X, X, RW_REDUCTION_SUM))
CALL(ne_scalar, rw_ne_scalar(t, X, 1))
CALL(nll_loss, rw_nll_loss(t, LOGITS, RW_NONE, NULL))
CALL(norm, rw_norm(t, X, 2, RW_AXES(1), false))
CALL(normalize, rw_normalize(t, X, 2, 1, 1e-12))
CALL(ones, rw_ones(t, dtype, RW_SHAPE(2, 3)))
CALL(prod, rw_prod(t, X, RW_AXES(1), false))
CALL(rope_with, rw_rope_with(t, HEADS, RW_NONE, NULL))
CALL(smooth_l1_loss, rw_smooth_l1_loss(t, X, X, 1, RW_REDUCTION_MEAN))
CALL(stack, rw_stack(t, ((rw_tensor *const[]){ X, X }), 2, 0))
CALL(transpose, rw_transpose(t, X, 0, 1))
CALL(var, rw_var(t, X, RW_AXES(1), true, false))
CALL(zeros, rw_zeros(t, dtype, RW_SHAPE(2, 3)))

/* Weights for two steps: a further step would repeat the ops. */
static rw_recurrent_weights recurrent_of(rw_tape *t, rw_dtype dtype, int gates)
{
    return (rw_recurrent_weights){ in(t, dtype, RW_SHAPE(gates * 2, 3)), in(t, dtype, RW_SHAPE(gates * 2, 2)),
                                   in(t, dtype, RW_SHAPE(gates * 2)), in(t, dtype, RW_SHAPE(gates * 2)) };
}

static rw_tensor *record_lstm(rw_tape *t, rw_dtype dtype)
{
    const rw_recurrent_weights w = recurrent_of(t, dtype, 4);
    rw_tensor *const state = in(t, dtype, RW_SHAPE(1, 2));
    return rw_lstm(t, in(t, dtype, RW_SHAPE(2, 1, 3)), state, state, &w, NULL, NULL);
}

static rw_tensor *record_gru(rw_tape *t, rw_dtype dtype)
{
    const rw_recurrent_weights w = recurrent_of(t, dtype, 3);
    return rw_gru(t, in(t, dtype, RW_SHAPE(2, 1, 3)), in(t, dtype, RW_SHAPE(1, 2)), &w, NULL);
}

static rw_tensor *record_unbind(rw_tape *t, rw_dtype dtype)
{
    rw_tensor *part[2];
    return rw_unbind(t, X, 0, part, 2) ? NULL : part[0];
}

static rw_tensor *record_moe_router(rw_tape *t, rw_dtype dtype)
{
    rw_tensor *index;
    return rw_moe_router(t, X, PARAMS(rw_moe_router_params, .choice = { .k = 2 }, .score = RW_MOE_SOFTMAX,
                                      .normalize = true), &index, NULL);
}

/* Routes given as inputs: their op is not part of the function. */
static rw_moe_routes routes(rw_tape *t)
{
    return (rw_moe_routes){ in(t, RW_I32, RW_SHAPE(4)), in(t, RW_I32, RW_SHAPE(2, 2)), in(t, RW_I32, RW_SHAPE(4)),
                            in(t, RW_F32, RW_SHAPE(3)) };
}

static rw_tensor *record_moe_aux_loss(rw_tape *t, rw_dtype dtype)
{
    const rw_moe_routes r = routes(t);
    return rw_moe_aux_loss(t, X, &r, 0.01);
}

static rw_tensor *record_moe_count(rw_tape *t, rw_dtype dtype)
{
    const rw_moe_routes r = routes(t);
    rw_tensor *const total = buffer(t, "rows", dtype, RW_SHAPE(3));
    return rw_moe_count(t, total, &r) ? NULL : total;
}

static rw_tensor *record_moe_linear_of_tokens(rw_tape *t, rw_dtype dtype)
{
    const rw_moe_routes r = routes(t);
    return rw_moe_linear_of_tokens(t, X, in(t, dtype, RW_SHAPE(3, 5, 3)), &r);
}

const struct table_call table_calls[] = {
    /* clang-format off: one line each */
    { "adaptive_avg_pool2d", "F.adaptive_avg_pool2d", record_adaptive_avg_pool2d },
    { "adaptive_max_pool2d", "F.adaptive_max_pool2d", record_adaptive_max_pool2d },
    { "arange", NULL, record_arange },
    { "argmax", NULL, record_argmax },
    { "argmin", NULL, record_argmin },
    { "assign", NULL, record_assign },
    { "attention_lse", "torch.ops.aten._scaled_dot_product_flash_attention", record_attention_lse },
    { "batchnorm", NULL, record_batchnorm },
    { "batchnorm_average", NULL, record_batchnorm_average },
    { "clamp_tensor", "torch.clamp of tensors, but that the first of equals takes the gradient", record_clamp_tensor },
    { "cross_entropy_with", "F.cross_entropy with its options", record_cross_entropy_with },
    { "custom_grad", NULL, record_custom_grad },
    { "dequantize", NULL, record_dequantize },
    { "detach", NULL, record_detach },
    { "einsum", "torch.einsum", record_einsum },
    { "embedding_bag_argmax", NULL, record_embedding_bag_argmax },
    { "embedding_bag_offsets", NULL, record_embedding_bag_offsets },
    { "embedding_bag_with", "F.embedding_bag with its options", record_embedding_bag_with },
    { "embedding_with", "F.embedding(padding_idx=)", record_embedding_with },
    { "eq_scalar", "torch.eq", record_eq_scalar },
    { "full", "torch.full", record_full },
    { "ge_scalar", "torch.ge", record_ge_scalar },
    { "global_avg_pool2d", "F.adaptive_avg_pool2d(1)", record_global_avg_pool2d },
    { "gru", "torch.nn.GRU", record_gru },
    { "gt_scalar", "torch.gt", record_gt_scalar },
    { "huber_loss", "F.huber_loss", record_huber_loss },
    { "le_scalar", "torch.le", record_le_scalar },
    { "logical_not", NULL, record_logical_not },
    { "lstm", "torch.nn.LSTM", record_lstm },
    { "lt_scalar", "torch.lt", record_lt_scalar },
    { "masked_fill", "Tensor.masked_fill", record_masked_fill },
    { "moe_aux_loss", "-", record_moe_aux_loss },
    { "moe_balance", NULL, record_moe_balance },
    { "moe_count", "-", record_moe_count },
    { "moe_linear_of_tokens", "torch._grouped_mm of x[index]", record_moe_linear_of_tokens },
    { "moe_router", "F.softmax, torch.topk, torch.gather", record_moe_router },
    { "moe_topk", NULL, record_moe_topk },
    { "moe_z_loss", "-", record_moe_z_loss },
    { "mse_loss_with", "F.mse_loss(reduction=)", record_mse_loss_with },
    { "ne_scalar", "torch.ne", record_ne_scalar },
    { "nll_loss", "F.nll_loss", record_nll_loss },
    { "norm", "torch.linalg.vector_norm", record_norm },
    { "normalize", "F.normalize", record_normalize },
    { "ones", "torch.ones", record_ones },
    { "prod", "torch.prod", record_prod },
    { "quantize", NULL, record_quantize },
    { "rope_with", "-", record_rope_with },
    { "sign", NULL, record_sign },
    { "smooth_l1_loss", "F.smooth_l1_loss", record_smooth_l1_loss },
    { "stack", "torch.stack", record_stack },
    { "straight_through", NULL, record_straight_through },
    { "transpose", "torch.transpose", record_transpose },
    { "unbind", "torch.unbind", record_unbind },
    { "var", "torch.var", record_var },
    { "zeros", "torch.zeros", record_zeros },
    { NULL, NULL, NULL },
    /* clang-format on */
};
