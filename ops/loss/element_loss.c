/*
 * Losses of single elements: binary cross-entropy with logits, Huber, smooth L1, Kullback-Leibler; and the negative
 * log-likelihood. Each is one element-wise op, or composed of several; reductions use ordinary ops.
 */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/loss/row_cross_entropy.h"
#include "ops/pointwise/pointwise.h"
#include "ops/reduce/reduce.h"

#include <rewind/compare.h>
#include <rewind/composite.h>

#include <math.h>

/* Checks that operands are floating-point tensors of one type that broadcast. */
static rw_status check_elements(rw_op_call *call)
{
    rw_shape shape = rw_in_shape(call, 0);
    RW_CHECK(rw_want_float(call, 0));
    for (int i = 1; i < call->n_inputs; i++) {
        RW_CHECK(rw_want_same_dtype(call, 0, i));
        RW_CHECK(rw_broadcast(call, shape, rw_in_shape(call, i), &shape));
    }
    return rw_op_output(call, 0, call->in[0].dtype, shape);
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 16);
}

#define ELEMENT_OP(NAME, N, GRAD)                                                                                      \
    RW_DECLARE_KERNELS(rw_##NAME)                                                                                      \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = N, .n_outputs = 1,                              \
                                            .strided = RW_OP_ALL_INPUTS, .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }),    \
                                            .check = check_elements, .kernel = RW_KERNELS(rw_##NAME), .grad = GRAD,    \
                                            .cost = cost, .cast_f32 = RW_OP_ALL_INPUTS };

static bool is_given(const rw_tensor *x)
{
    return x && x != rw_none();
}

static rw_tensor *scalar(rw_tape *t, rw_tensor *like, double value)
{
    return rw_full_at(RW_HERE, t, rw_tensor_dtype(like), RW_SCALAR, value);
}

/* ---- binary cross-entropy: (x, target y, weight p of positives) ---- */

ELEMENT_OP(bce_with_logits_slope, 3, NULL)

/* (p y + 1 - y) sigmoid(x) - p y */
static rw_tensor *bce_slope(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *in[] = { rw_grad_input(g, 0), rw_grad_input(g, 1), rw_grad_input(g, 2) };
    if (!rw_grad_is_differentiable(g)) return rw_apply(t, &rw_op_bce_with_logits_slope, in, 3, NULL, 0, NULL);
    for (int i = 0; i < 3; i++) in[i] = rw_grad_widened(g, in[i]);
    rw_tensor *const positive = rw_mul(t, in[2], in[1]);
    rw_tensor *const all = rw_add_scalar(t, rw_sub(t, positive, in[1]), 1);
    return rw_grad_narrowed(g, 0, rw_sub(t, rw_mul(t, all, rw_sigmoid(t, in[0])), positive));
}

static rw_status grad_bce(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0), *const x = rw_grad_input(g, 0), *const y = rw_grad_input(g, 1);
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set_broadcast(g, 0, rw_mul(t, dy, bce_slope(g))));
    if (!rw_grad_wanted(g, 1) && !rw_grad_wanted(g, 2)) return RW_OK;
    rw_tensor *const missed = rw_softplus(t, rw_neg(t, x)); /* the loss of a positive */
    if (rw_grad_wanted(g, 1)) {
        rw_tensor *const more = rw_mul(t, rw_add_scalar(t, rw_grad_input(g, 2), -1), missed);
        rw_tensor *const finite = rw_masked_fill(t, more, rw_eq_scalar(t, x, -INFINITY), 0); /* -x is infinite there */
        RW_CHECK(rw_grad_set_broadcast(g, 1, rw_mul(t, dy, rw_sub(t, finite, x))));
    }
    if (!rw_grad_wanted(g, 2)) return RW_OK;
    return rw_grad_set_broadcast(g, 2, rw_mul(t, dy, rw_mul(t, y, missed)));
}

RW_BUILTIN_OP(bce_with_logits, "x target pos_weight", "F.binary_cross_entropy_with_logits")
ELEMENT_OP(bce_with_logits, 3, grad_bce)

/* ---- Huber: d^2 / 2 for a difference d up to delta, linear beyond ---- */

RW_INTERNAL_OP(huber_backward, "x y dy")
RW_DECLARE_KERNELS(rw_huber_backward)
static const rw_op_def rw_op_huber_backward = { .name = "huber_backward", .n_inputs = 3, .n_outputs = 1,
                                                .strided = RW_OP_ALL_INPUTS, .inplace = RW_INPLACE({ 0, 2 }),
                                                .check = check_elements, .kernel = RW_KERNELS(rw_huber_backward),
                                                .cost = cost };

/* The gradient of the Huber loss, fused or composed of ops. */
static rw_status grad_huber(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    const struct rw_pointwise_attrs a = *(const struct rw_pointwise_attrs *)rw_grad_attrs(g);
    rw_tensor *in[] = { rw_grad_input(g, 0), rw_grad_input(g, 1), rw_grad_upstream(g, 0) };
    rw_tensor *slope;
    if (rw_grad_is_differentiable(g)) {
        for (int i = 0; i < 3; i++) in[i] = rw_grad_widened(g, in[i]);
        rw_tensor *const d = rw_scale(t, rw_sub(t, in[0], in[1]), 1 / a.constant), *const one = scalar(t, in[0], 1);
        rw_tensor *const clipped = rw_maximum(t, rw_minimum(t, d, one), rw_neg(t, one));
        slope = rw_grad_narrowed(g, 0, rw_mul(t, in[2], rw_scale(t, clipped, a.constant)));
    } else {
        slope = rw_apply(t, &rw_op_huber_backward, in, 3, &a, sizeof a, NULL);
    }
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set_broadcast(g, 0, slope));
    return rw_grad_wanted(g, 1) ? rw_grad_set_broadcast(g, 1, rw_neg(t, slope)) : RW_OK;
}

RW_BUILTIN_OP(huber, "x y", "F.huber_loss, F.smooth_l1_loss")
ELEMENT_OP(huber, 2, grad_huber)

/* ---- Kullback-Leibler: t (log t - x), with x a logarithm ---- */

/* log(y) + 1 - x, for the elements where y is not 0. To be differentiated again it is finite elsewhere too: the
   gradient of the selection is 0 there, and 0 times infinity would be NaN. */
static rw_tensor *kl_slope(rw_grad_call *g, rw_tensor *x, rw_tensor *y)
{
    rw_tape *const t = rw_grad_tape(g);
    if (rw_grad_is_differentiable(g)) {
        x = rw_take_at(RW_HERE, t, x, y);
        y = rw_masked_fill(t, y, rw_eq_scalar(t, y, 0), 1);
    }
    return rw_sub(t, rw_add_scalar(t, rw_log(t, y), 1), x);
}

static rw_status grad_kl(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const x = rw_grad_input(g, 0), *const y = rw_grad_input(g, 1), *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set_broadcast(g, 0, rw_neg(t, rw_mul(t, dy, y))));
    if (!rw_grad_wanted(g, 1)) return RW_OK;
    return rw_grad_set_broadcast(g, 1, rw_take_at(RW_HERE, t, rw_mul(t, dy, kl_slope(g, x, y)), y));
}

RW_BUILTIN_OP(kl_div, "x target", "F.kl_div")
ELEMENT_OP(kl_div, 2, grad_kl)

/* ---- functions ---- */

static bool takes(rw_site at, rw_tape *t, const char *what, rw_reduction reduction)
{
    if (reduction >= RW_REDUCTION_MEAN && reduction <= RW_REDUCTION_NONE) return true;
    rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(reduction): expected RW_REDUCTION_MEAN (%d) to RW_REDUCTION_NONE "
                 "(%d), got %d", what, RW_REDUCTION_MEAN, RW_REDUCTION_NONE, (int)reduction);
    return false;
}

/* Reduces elements in the type of losses; without a reduction each keeps its own type. */
static rw_tensor *reduce(rw_site at, rw_tape *t, rw_tensor *loss, rw_reduction reduction)
{
    if (!loss || reduction == RW_REDUCTION_NONE) return loss;
    rw_tensor *const wide = rw_cast_at(at, t, loss, rw_loss_dtype(rw_tensor_dtype(loss)));
    if (!wide) return NULL;
    return reduction == RW_REDUCTION_SUM ? rw_sum_at(at, t, wide, RW_ALL_AXES, false)
                                         : rw_mean_at(at, t, wide, RW_ALL_AXES, false);
}

static rw_tensor *weighed(rw_site at, rw_tape *t, rw_tensor *loss, rw_tensor *weight)
{
    return loss && is_given(weight) ? rw_mul_at(at, t, loss, weight) : loss;
}

/* Records binary cross-entropy with optional weights; see the public header for the contract. */
rw_tensor *rw_bce_with_logits_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *target, rw_tensor *weight,
                                 rw_tensor *pos_weight, rw_reduction reduction)
{
    RW_ENTER_OP(t);
    static const char what[] = "bce_with_logits";
    if (!rw_operand_check(at, t, x, what, "x") || !rw_operand_check(at, t, target, what, "target") ||
        (weight != RW_NONE && !rw_operand_check(at, t, weight, what, "weight")) ||
        (pos_weight != RW_NONE && !rw_operand_check(at, t, pos_weight, what, "pos_weight")) ||
        !takes(at, t, what, reduction))
        return NULL;
    const rw_composite c = rw_composite_begin(t, what);
    rw_tensor *const p = is_given(pos_weight) ? pos_weight
                                              : rw_full_at(at, t, rw_tensor_dtype(x), RW_SCALAR, 1);
    rw_tensor *const in[] = { x, target, p };
    rw_tensor *const loss = p ? rw_apply_at(at, t, &rw_op_bce_with_logits, in, 3, NULL, 0, NULL) : NULL;
    return rw_composite_end(&c, reduce(at, t, weighed(at, t, loss, weight), reduction));
}

static rw_tensor *huber(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y, double delta)
{
    const struct rw_pointwise_attrs a = { delta };
    rw_tensor *const in[] = { x, y };
    return rw_apply_at(at, t, &rw_op_huber, in, 2, &a, sizeof a, NULL);
}

static bool takes_pair(rw_site at, rw_tape *t, const char *what, rw_tensor *x, rw_tensor *y, rw_reduction reduction)
{
    return rw_operand_check(at, t, x, what, "x") && rw_operand_check(at, t, y, what, "y") &&
           takes(at, t, what, reduction);
}

rw_tensor *rw_huber_loss_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y, double delta, rw_reduction reduction)
{
    RW_ENTER_OP(t);
    static const char what[] = "huber_loss";
    if (!takes_pair(at, t, what, x, y, reduction)) return NULL;
    if (!(delta > 0 && isfinite(delta) && rw_constant(x, delta) > 0)) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(delta): expected a finite number above 0 in x's type, got %g", what,
                     delta);
        return NULL;
    }
    const rw_composite c = rw_composite_begin(t, what);
    return rw_composite_end(&c, reduce(at, t, huber(at, t, x, y, delta), reduction));
}

rw_tensor *rw_mse_loss_with_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y, rw_reduction reduction)
{
    RW_ENTER_OP(t);
    static const char what[] = "mse_loss_with";
    if (!takes_pair(at, t, what, x, y, reduction)) return NULL;
    const rw_composite c = rw_composite_begin(t, what);
    if (reduction == RW_REDUCTION_MEAN) return rw_composite_end(&c, rw_mse_loss_at(at, t, x, y));
    rw_tensor *const d = rw_sub_at(at, t, x, y);
    return rw_composite_end(&c, reduce(at, t, d ? rw_mul_at(at, t, d, d) : NULL, reduction));
}

/* |d| - beta / 2 beyond beta, d^2 / (2 beta) up to it: Huber divided by beta; |d| for a beta of 0. */
rw_tensor *rw_smooth_l1_loss_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y, double beta,
                                rw_reduction reduction)
{
    RW_ENTER_OP(t);
    static const char what[] = "smooth_l1_loss";
    if (!takes_pair(at, t, what, x, y, reduction)) return NULL;
    if (!(beta >= 0 && isfinite(beta) && isfinite(1 / (beta > 0 ? rw_constant(x, beta) : 1)))) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(beta): expected 0, or a number whose inverse is finite, got %g", what,
                     beta);
        return NULL;
    }
    const rw_composite c = rw_composite_begin(t, what);
    rw_tensor *loss = beta > 0 ? huber(at, t, x, y, beta) : rw_sub_at(at, t, x, y);
    if (loss) loss = beta > 0 ? rw_scale_at(at, t, loss, 1 / beta) : rw_abs_at(at, t, loss);
    return rw_composite_end(&c, reduce(at, t, loss, reduction));
}

static rw_tensor *kl_of_logarithms(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *target)
{
    rw_tensor *const less = rw_sub_at(at, t, target, x), *const p = less ? rw_exp_at(at, t, target) : NULL;
    return p ? rw_mul_at(at, t, p, less) : NULL;
}

rw_tensor *rw_kl_div_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *target, bool log_target,
                        rw_reduction reduction)
{
    RW_ENTER_OP(t);
    static const char what[] = "kl_div";
    rw_tensor *const in[] = { x, target };
    if (!rw_operand_check(at, t, target, what, "target") || !takes_pair(at, t, what, x, target, reduction)) return NULL;
    const rw_composite c = rw_composite_begin(t, what);
    rw_tensor *const loss = log_target ? kl_of_logarithms(at, t, x, target)
                                       : rw_apply_at(at, t, &rw_op_kl_div, in, 2, NULL, 0, NULL);
    return rw_composite_end(&c, reduce(at, t, loss, reduction));
}
