/*
 * Cross-entropy by row, with class weights, label smoothing and z-loss. A row keeps two numbers in addition to its
 * logits (loss.h); backward writes the gradient over them. Reductions use ordinary ops.
 */
#include "ops/loss/row_cross_entropy.h"

#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/loss/loss.h"
#include "ops/pointwise/pointwise.h"

#include <rewind/composite.h>
#include <rewind/custom_grad.h>

#include <math.h>

/* ---- checks ---- */

/* Checks class weights and their sum, from input `first` on: both or neither. */
static rw_status check_weights(rw_op_call *call, int first, int64_t classes, rw_dtype dtype)
{
    if (call->n_inputs == first) return RW_OK;
    RW_CHECK(rw_expect_inputs(call, first + 2, first + 2, "weight with the sum of weights, or neither"));
    RW_CHECK(rw_expect_dtype(call, first, "weight", dtype));
    RW_CHECK(rw_expect_dtype(call, first + 1, "weight_sum", dtype));
    return rw_expect_shape(call, first, "weight", RW_SHAPE(classes));
}

static rw_status check_rows(rw_op_call *call)
{
    RW_CHECK(rw_expect_inputs(call, 2, 4, "logits, target and optionally weight and weight_sum"));
    RW_CHECK(rw_loss_check_targets(call));
    const rw_layout *const x = call->in[0].layout;
    const rw_dtype dtype = rw_loss_dtype(call->in[0].dtype);
    RW_CHECK(check_weights(call, 2, x->dim[x->rank - 1], dtype));
    RW_CHECK(rw_op_output(call, 0, dtype, rw_in_shape(call, 1)));
    return rw_op_output(call, 1, dtype, rw_loss_kept_shape(rw_in_shape(call, 1)));
}

static rw_status check_backward(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_op_cost cost(const rw_op_call *call)
{
    return (rw_op_cost){ .flops = 14 * (double)call->in[0].layout->numel, .bytes = rw_op_operand_bytes(call) };
}

/* ---- ops on targets alone ---- */

/* target[, weights, their sum] -> 1 / (total weight of the targets that count), or 0 if the total is 0 */
static rw_status check_share(rw_op_call *call)
{
    const struct rw_row_loss_attrs *const a = call->attrs;
    RW_CHECK(rw_want_dtype(call, 0, RW_I32));
    RW_CHECK(check_weights(call, 1, a->classes, (rw_dtype)a->dtype));
    return rw_op_output(call, 0, (rw_dtype)a->dtype, RW_SCALAR);
}

/* target[, weights, their sum] -> the weight of each class in each row [..., classes], and 1 or 0 for each row [...] */
static rw_status check_shares_of_classes(rw_op_call *call)
{
    const struct rw_row_loss_attrs *const a = call->attrs;
    rw_shape shape = rw_in_shape(call, 0);
    RW_CHECK(rw_want_dtype(call, 0, RW_I32));
    RW_CHECK(check_weights(call, 1, a->classes, (rw_dtype)a->dtype));
    RW_CHECK(rw_op_output(call, 1, (rw_dtype)a->dtype, shape));
    shape.dim[shape.rank++] = a->classes;
    return rw_op_output(call, 0, (rw_dtype)a->dtype, shape);
}

RW_BUILTIN_OP(cross_entropy_share, "target weight weight_sum", "its gradient")
RW_DECLARE_KERNELS(rw_cross_entropy_share)
static const rw_op_def rw_op_share = { .name = "cross_entropy_share", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                       .flags = RW_OP_NO_GRADIENT, .check = check_share,
                                       .kernel = RW_KERNELS(rw_cross_entropy_share) };

RW_BUILTIN_OP(cross_entropy_shares, "target weight weight_sum", "its gradient")
RW_DECLARE_KERNELS(rw_cross_entropy_shares)
static const rw_op_def rw_op_shares = { .name = "cross_entropy_shares", .n_inputs = RW_OP_VARIADIC, .n_outputs = 2,
                                        .flags = RW_OP_NO_GRADIENT, .check = check_shares_of_classes,
                                        .kernel = RW_KERNELS(rw_cross_entropy_shares) };

static bool is_given(const rw_tensor *x)
{
    return x && x != rw_none();
}

static rw_tensor *of_targets(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *target,
                             const struct rw_class_weights *w, const struct rw_row_loss_attrs *a, rw_tensor **ret_outs)
{
    rw_tensor *const in[] = { target, w->weight, w->sum };
    return rw_apply_at(at, t, op, in, is_given(w->weight) ? 3 : 1, a, sizeof *a, ret_outs);
}

/* ---- rows ---- */

RW_INTERNAL_OP(cross_entropy_rows_backward, "logits target kept dy weight weight_sum")
/* logits, target, values kept per row, gradient of the losses[, weights, their sum] -> gradient of the logits */
RW_DECLARE_KERNELS(rw_cross_entropy_rows_backward)
static const rw_op_def rw_op_rows_backward = { .name = "cross_entropy_rows_backward", .n_inputs = RW_OP_VARIADIC,
                                               .n_outputs = 1, .inplace = RW_INPLACE({ 0, 0 }),
                                               .check = check_backward,
                                               .kernel = RW_KERNELS(rw_cross_entropy_rows_backward), .cost = cost };

/*
 * dy (p (s + 2 z l) - shares), with p = softmax(logits), s the sum of a row's shares and l its log-sum-exp, in the
 * losses' type. Logits and dy are selected for the rows that count: elsewhere they may be NaN or infinite, and 0 times
 * that would be NaN.
 */
static rw_tensor *composed(rw_tape *t, rw_tensor *logits, rw_tensor *target, rw_tensor *dy,
                           const struct rw_class_weights *w, const struct rw_row_loss_attrs *attrs)
{
    struct rw_row_loss_attrs a = *attrs;
    rw_shape one = rw_tensor_shape(logits);
    rw_tensor *out[2];
    a.classes = one.dim[one.rank - 1];
    a.dtype = rw_loss_dtype(rw_tensor_dtype(logits));
    one.dim[one.rank - 1] = 1;
    if (!of_targets(RW_HERE, t, &rw_op_shares, target, w, &a, out)) return NULL;
    rw_tensor *factor = rw_sum(t, out[0], RW_AXES(-1), true), *const counts = rw_reshape(t, out[1], one);
    rw_tensor *const x = rw_take_at(RW_HERE, t, rw_cast(t, logits, (rw_dtype)a.dtype), counts);
    dy = rw_take_at(RW_HERE, t, rw_reshape(t, dy, one), counts);
    if (a.z > 0) {
        rw_tensor *const l = rw_mul(t, rw_logsumexp(t, x, RW_AXES(-1), true), counts);
        factor = rw_add(t, factor, rw_scale(t, l, 2 * a.z));
    }
    factor = rw_loss_factors(t, x, factor, counts);
    rw_tensor *const slope = rw_sub(t, rw_mul(t, rw_softmax(t, x, -1), factor), out[0]);
    return rw_cast(t, rw_mul(t, slope, dy), rw_tensor_dtype(logits));
}

rw_tensor *rw_cross_entropy_rows_gradient(rw_tape *t, rw_tensor *logits, rw_tensor *target, rw_tensor *kept,
                                          rw_tensor *dy, const struct rw_class_weights *w,
                                          const struct rw_row_loss_attrs *a, bool again)
{
    if (again) return composed(t, logits, target, dy, w, a);
    rw_tensor *const in[] = { logits, target, kept, dy, w->weight, w->sum };
    return rw_apply(t, &rw_op_rows_backward, in, is_given(w->weight) ? 6 : 4, a, sizeof *a, NULL);
}

static rw_status grad_rows(rw_grad_call *g)
{
    const struct rw_row_loss_attrs a = *(const struct rw_row_loss_attrs *)rw_grad_attrs(g);
    struct rw_class_weights w = { RW_NONE, RW_NONE };
    if (rw_grad_n_inputs(g) > 2) w.weight = rw_grad_input(g, 2), w.sum = rw_grad_input(g, 3);
    return rw_grad_set(g, 0,
                       rw_cross_entropy_rows_gradient(rw_grad_tape(g), rw_grad_input(g, 0), rw_grad_input(g, 1),
                                                      rw_grad_output(g, 1), rw_grad_upstream(g, 0), &w, &a,
                                                      rw_grad_is_differentiable(g)));
}

RW_BUILTIN_OP(cross_entropy_rows, "logits target weight weight_sum", "F.cross_entropy with its options")
RW_DECLARE_KERNELS(rw_cross_entropy_rows)
static const rw_op_def rw_op_rows = { .name = "cross_entropy_rows", .n_inputs = RW_OP_VARIADIC, .n_outputs = 2,
                                      .check = check_rows, .kernel = RW_KERNELS(rw_cross_entropy_rows),
                                      .grad = grad_rows, .cost = cost };

rw_tensor *rw_cross_entropy_rows_at(rw_site at, rw_tape *t, rw_tensor *logits, rw_tensor *target,
                                    const struct rw_class_weights *w, const struct rw_row_loss_attrs *a,
                                    rw_tensor **ret_kept)
{
    rw_tensor *const in[] = { logits, target, w->weight, w->sum };
    rw_tensor *out[2] = { NULL, NULL };
    rw_apply_at(at, t, &rw_op_rows, in, is_given(w->weight) ? 4 : 2, a, sizeof *a, out);
    if (ret_kept) *ret_kept = out[1];
    return out[0];
}

/* ---- functions ---- */

struct rw_class_weights rw_class_weights_at(rw_site at, rw_tape *t, rw_tensor *weight, rw_dtype dtype)
{
    if (weight == RW_NONE) return (struct rw_class_weights){ RW_NONE, RW_NONE };
    rw_tensor *const cast = weight ? rw_cast_at(at, t, weight, dtype) : NULL;
    rw_tensor *const w = cast ? rw_detach_at(at, t, cast) : NULL;
    return (struct rw_class_weights){ w, w ? rw_sum_at(at, t, w, RW_ALL_AXES, false) : NULL };
}

/* Converts the parameters of a function to attributes; see row_cross_entropy.h. */
bool rw_row_loss_attrs_of(rw_site at, rw_tape *t, const char *what, const rw_cross_entropy_params *params,
                          struct rw_row_loss_attrs *ret)
{
    static const rw_cross_entropy_params defaults;
    const rw_cross_entropy_params *const p = params ? params : &defaults;
    *ret = (struct rw_row_loss_attrs){ .ignore = p->has_ignore_index ? p->ignore_index : -100,
                                       .smoothing = rw_or_default(p->label_smoothing, 0),
                                       .z = rw_or_default(p->z_loss, 0) };
    if (!(ret->smoothing >= 0 && ret->smoothing < 1))
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(label_smoothing): expected a number in [0, 1), got %g", what,
                     ret->smoothing);
    else if (!(ret->z >= 0 && isfinite(ret->z)))
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(z_loss): expected a finite number of 0 or more, got %g", what,
                     ret->z);
    else if (p->reduction < RW_REDUCTION_MEAN || p->reduction > RW_REDUCTION_NONE)
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(reduction): expected RW_REDUCTION_MEAN (%d) to RW_REDUCTION_NONE "
                     "(%d), got %d", what, RW_REDUCTION_MEAN, RW_REDUCTION_NONE, (int)p->reduction);
    else if (p->ignore_index && !p->has_ignore_index)
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(ignore_index): expected 0 without has_ignore_index, got %d; set "
                     "has_ignore_index as well", what,
                     (int)p->ignore_index);
    else if (p->chunk < 0)
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(chunk): expected 0 (the default) or more rows, got %lld", what,
                     (long long)p->chunk);
    else return true;
    return false;
}

/* Options of rw_linear_cross_entropy() alone are rejected elsewhere, not ignored. */
static bool has_no_layer(rw_site at, rw_tape *t, const char *what, const rw_cross_entropy_params *p)
{
    const char *const name = !p ? NULL : is_given(p->bias) ? "bias" : is_given(p->class_weight) ? "class_weight"
                                       : p->chunk ? "chunk" : NULL;
    if (name)
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(%s): expected none, got one; rw_linear_cross_entropy() has it", what,
                     name);
    return !name;
}

rw_tensor *rw_reduce_rows_at(rw_site at, rw_tape *t, rw_tensor *rows, rw_tensor *target,
                             const struct rw_class_weights *w, const struct rw_row_loss_attrs *attrs,
                             rw_reduction reduction)
{
    if (!rows || reduction == RW_REDUCTION_NONE) return rows;
    rw_tensor *const sum = rw_sum_at(at, t, rows, RW_ALL_AXES, false);
    if (!sum || reduction == RW_REDUCTION_SUM) return sum;
    struct rw_row_loss_attrs a = *attrs;
    a.dtype = rw_tensor_dtype(rows);
    a.classes = is_given(w->weight) ? rw_tensor_shape(w->weight).dim[0] : 0;
    rw_tensor *const share = of_targets(at, t, &rw_op_share, target, w, &a, NULL);
    return share ? rw_mul_at(at, t, sum, share) : NULL;
}

/* Records the loss for class indices. The mean without weights, smoothing and z-loss is one op. */
static rw_tensor *record(rw_site at, rw_tape *t, rw_tensor *logits, rw_tensor *target, rw_tensor *weight,
                         const struct rw_row_loss_attrs *a, rw_reduction reduction)
{
    if (weight == RW_NONE && reduction == RW_REDUCTION_MEAN && a->smoothing == 0 && a->z == 0)
        return rw_cross_entropy_mean_at(at, t, logits, target, a->ignore);
    const struct rw_class_weights w = rw_class_weights_at(at, t, weight, rw_loss_dtype(rw_tensor_dtype(logits)));
    if (!w.sum) return NULL;
    return rw_reduce_rows_at(at, t, rw_cross_entropy_rows_at(at, t, logits, target, &w, a, NULL), target, &w, a,
                             reduction);
}

/* The share of each class in each row: its probability, smoothed, times its weight. */
static rw_tensor *soft_shares(rw_site at, rw_tape *t, rw_tensor *target, rw_tensor *weight, int64_t classes,
                              const struct rw_row_loss_attrs *a, rw_dtype dtype)
{
    rw_tensor *share = rw_cast_at(at, t, target, dtype);
    if (share && a->smoothing > 0) share = rw_scale_at(at, t, share, 1 - a->smoothing);
    if (share && a->smoothing > 0) share = rw_add_scalar_at(at, t, share, a->smoothing / (double)classes);
    return share && is_given(weight) ? rw_mul_at(at, t, share, weight) : share;
}

/* For targets that are probabilities: -sum(share log(softmax(x))) of each row and z-loss, by ordinary ops; the mean is
   over the rows. */
static rw_tensor *record_soft(rw_site at, rw_tape *t, rw_tensor *logits, rw_tensor *target, rw_tensor *weight,
                              const struct rw_row_loss_attrs *a, rw_reduction reduction)
{
    const rw_shape s = rw_tensor_shape(logits);
    const rw_dtype dtype = rw_loss_dtype(rw_tensor_dtype(logits));
    const int64_t classes = s.dim[s.rank - 1], rows = rw_shape_numel(s) / classes;
    const struct rw_class_weights w = rw_class_weights_at(at, t, weight, dtype);
    rw_tensor *const x = w.sum ? rw_cast_at(at, t, logits, dtype) : NULL;
    rw_tensor *const share = x ? soft_shares(at, t, target, w.weight, classes, a, dtype) : NULL;
    rw_tensor *const p = share ? rw_log_softmax_at(at, t, x, -1) : NULL;
    rw_tensor *const each = p ? rw_mul_at(at, t, p, share) : NULL;
    rw_tensor *loss = each ? rw_sum_at(at, t, rw_neg_at(at, t, each), RW_AXES(-1), false) : NULL;
    if (loss && a->z > 0) {
        rw_tensor *const l = rw_logsumexp_at(at, t, x, RW_AXES(-1), false);
        rw_tensor *const square = l ? rw_scale_at(at, t, rw_mul_at(at, t, l, l), a->z) : NULL;
        loss = square ? rw_add_at(at, t, loss, square) : NULL;
    }
    if (!loss || reduction == RW_REDUCTION_NONE) return loss;
    loss = rw_sum_at(at, t, loss, RW_ALL_AXES, false);
    return !loss || reduction == RW_REDUCTION_SUM ? loss : rw_scale_at(at, t, loss, rows ? 1 / (double)rows : 0);
}

/* Checks that probabilities have the logits' shape; numbers of classes are checked by the ops. */
static bool fits_probabilities(rw_site at, rw_tape *t, const rw_tensor *logits, const rw_tensor *target,
                               const rw_tensor *weight, const rw_cross_entropy_params *p)
{
    static const char what[] = "cross_entropy_with";
    const rw_shape s = rw_tensor_shape(logits);
    if (p && p->has_ignore_index)
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "cross_entropy_with(has_ignore_index): expected false, as target holds "
                     "probabilities, got true");
    else if (!rw_dtype_is_float(rw_tensor_dtype(logits)))
        return rw_refuse_operand_at(at, t, RW_ERR_DTYPE, what, "logits", logits, "a floating-point type");
    else if (s.rank < 1 || s.dim[s.rank - 1] < 1)
        return rw_refuse_operand_at(at, t, RW_ERR_SHAPE, what, "logits", logits, "[..., classes] with 1 class or more");
    else
        return rw_operand_has_shape_at(at, t, what, "target", target, s) &&
               (!is_given(weight) ||
                rw_operand_has_shape_at(at, t, what, "weight", weight, RW_SHAPE(s.dim[s.rank - 1])));
    return false;
}

/* Records cross-entropy for class indices or probabilities; see the public header for the contract. */
rw_tensor *rw_cross_entropy_with_at(rw_site at, rw_tape *t, rw_tensor *logits, rw_tensor *target, rw_tensor *weight,
                                    const rw_cross_entropy_params *params)
{
    RW_ENTER_OP(t);
    static const char what[] = "cross_entropy_with";
    struct rw_row_loss_attrs a;
    if (!rw_operand_check(at, t, logits, what, "logits") || !rw_operand_check(at, t, target, what, "target") ||
        (weight != RW_NONE && !rw_operand_check(at, t, weight, what, "weight")) ||
        !rw_row_loss_attrs_of(at, t, what, params, &a) || !has_no_layer(at, t, what, params))
        return NULL;
    const rw_reduction reduction = params ? params->reduction : RW_REDUCTION_MEAN;
    const bool soft = rw_dtype_is_float(rw_tensor_dtype(target));
    if (soft && !fits_probabilities(at, t, logits, target, weight, params)) return NULL;
    const rw_composite c = rw_composite_begin(t, what);
    return rw_composite_end(&c, soft ? record_soft(at, t, logits, target, weight, &a, reduction)
                                     : record(at, t, logits, target, weight, &a, reduction));
}

/* Selects the target's log-probability before it is multiplied by its share: elsewhere a probability of 0 has an
   infinite logarithm, and 0 times that would be NaN. */
static rw_tensor *record_nll(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *target, rw_tensor *weight,
                             struct rw_row_loss_attrs *a, rw_reduction reduction)
{
    const rw_shape s = rw_tensor_shape(x);
    a->dtype = rw_loss_dtype(rw_tensor_dtype(x));
    a->classes = s.rank ? s.dim[s.rank - 1] : 0;
    const struct rw_class_weights w = rw_class_weights_at(at, t, weight, (rw_dtype)a->dtype);
    rw_tensor *const wide = w.sum ? rw_cast_at(at, t, x, (rw_dtype)a->dtype) : NULL;
    rw_tensor *const share = wide ? of_targets(at, t, &rw_op_shares, target, &w, a, NULL) : NULL;
    rw_tensor *const own = share ? rw_mul_at(at, t, rw_take_at(at, t, wide, share), share) : NULL;
    rw_tensor *const rows = own ? rw_sum_at(at, t, rw_neg_at(at, t, own), RW_AXES(-1), false) : NULL;
    return rw_reduce_rows_at(at, t, rows, target, &w, a, reduction);
}

/* The checks of rw_loss_check_targets(), before a tensor of that shape is created. */
static bool fits_targets(rw_site at, rw_tape *t, const char *what, const rw_tensor *x, const rw_tensor *target)
{
    rw_shape rows = rw_tensor_shape(x);
    if (rows.rank < 1 || rows.dim[rows.rank - 1] < 1)
        return rw_refuse_operand_at(at, t, RW_ERR_SHAPE, what, "x", x, "[..., classes] with 1 class or more");
    rows.rank--;
    if (!rw_operand_has_shape_at(at, t, what, "target", target, rows)) return false;
    if (rw_tensor_dtype(target) != RW_I32)
        return rw_refuse_operand_at(at, t, RW_ERR_DTYPE, what, "target", target, "i32");
    if (rw_dtype_is_float(rw_tensor_dtype(x))) return true;
    return rw_refuse_operand_at(at, t, RW_ERR_DTYPE, what, "x", x, "a floating-point type");
}

/* Records the negative log-likelihood; see the public header for the contract. */
rw_tensor *rw_nll_loss_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *target, rw_tensor *weight,
                          const rw_cross_entropy_params *params)
{
    RW_ENTER_OP(t);
    static const char what[] = "nll_loss";
    struct rw_row_loss_attrs a;
    if (!rw_operand_check(at, t, x, what, "x") || !rw_operand_check(at, t, target, what, "target") ||
        (weight != RW_NONE && !rw_operand_check(at, t, weight, what, "weight")) ||
        !rw_row_loss_attrs_of(at, t, what, params, &a) || !has_no_layer(at, t, what, params) ||
        !fits_targets(at, t, what, x, target))
        return NULL;
    if (a.smoothing > 0 || a.z > 0) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(label_smoothing, z_loss): expected 0, as x holds "
                     "log-probabilities, got %g and %g", what, a.smoothing, a.z);
        return NULL;
    }
    const rw_composite c = rw_composite_begin(t, what);
    return rw_composite_end(&c, record_nll(at, t, x, target, weight, &a,
                                           params ? params->reduction : RW_REDUCTION_MEAN));
}
