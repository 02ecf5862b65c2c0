/*
 * Mixture of experts: routers, their losses and their load balance. Only the choice of experts is a special op; the
 * rest is composed of ordinary ops, so gradients of any order exist and every loss is a value of the tape. Row counts
 * are effects, written once when the step ends.
 */
#include "base/null_argument_text.h"
#include "base/public_entry.h"
#include "ops/moe/moe.h"

#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <rewind/composite.h>

#include <math.h>

bool rw_moe_is_there(rw_site at, rw_tape *t, const char *name, const char *argument, const void *pointer)
{
    if (!pointer) rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s: %s is NULL; expected %s", name, argument,
                               rw_expected_of_null(argument));
    return pointer != NULL;
}

/* ---- the router ---- */

struct router {
    rw_site at;
    rw_tape *t;
    const rw_moe_router_params *p;
    rw_tensor *index;
};

static rw_tensor *scores_of(const struct router *r, rw_tensor *logits)
{
    if (r->p->score == RW_MOE_SOFTMAX) return rw_softmax_at(r->at, r->t, logits, -1);
    if (r->p->score == RW_MOE_SIGMOID) return rw_sigmoid_at(r->at, r->t, logits);
    return logits;
}

static rw_tensor *weights_of(const struct router *r, rw_tensor *scores)
{
    const double scale = rw_or_default(r->p->scale, 1);
    rw_tensor *w = rw_moe_select_at(r->at, r->t, scores, r->index);
    if (r->p->score == RW_MOE_SOFTMAX_OF_CHOSEN) w = rw_softmax_at(r->at, r->t, w, -1);
    if (r->p->normalize) {
        rw_tensor *const sum = rw_sum_at(r->at, r->t, w, RW_AXES(-1), true);
        w = rw_div_at(r->at, r->t, w, rw_add_scalar_at(r->at, r->t, sum, 1e-20));
    }
    return scale != 1 ? rw_scale_at(r->at, r->t, w, scale) : w;
}

/* Records the router: scores, the choice of experts, and their normalized weights. */
rw_tensor *rw_moe_router_at(rw_site at, rw_tape *t, rw_tensor *logits, const rw_moe_router_params *params,
                            rw_tensor **ret_index, rw_tensor **ret_scores)
{
    RW_ENTER_OP(t);
    if (ret_index) *ret_index = NULL;
    if (ret_scores) *ret_scores = NULL;
    if (!rw_operand_check(at, t, logits, "moe_router", "logits")) return NULL;
    if (!rw_moe_is_there(at, t, "moe_router", "params", params)) return NULL;
    if (!rw_moe_is_there(at, t, "moe_router", "ret_index", ret_index)) return NULL;
    const rw_composite c = rw_composite_begin(t, "moe_router");
    const rw_dtype dtype = rw_tensor_dtype(logits);
    struct router r = { at, t, params, NULL };
    if (dtype != RW_F32 && dtype != RW_F64) {
        rw_refuse_operand_at(at, t, RW_ERR_DTYPE, "moe_router", "logits", logits, "f32 or f64, as scores are compared");
        return rw_composite_end(&c, NULL);
    }
    if (!isfinite(params->scale) || params->score > RW_MOE_SIGMOID) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "moe_router(scale, score): expected a finite number and one of "
                     "rw_moe_score, 0 to %d, got %g and %d", RW_MOE_SIGMOID, params->scale, (int)params->score);
        return rw_composite_end(&c, NULL);
    }
    rw_tensor *const scores = scores_of(&r, logits);
    r.index = rw_moe_topk_at(at, t, scores, params->bias ? params->bias : rw_none(), &params->choice);
    rw_tensor *const weights = rw_composite_end(&c, r.index ? weights_of(&r, scores) : NULL);
    if (!weights) return NULL;
    *ret_index = r.index;
    if (ret_scores) *ret_scores = scores;
    return weights;
}

/* ---- losses ---- */

rw_tensor *rw_moe_aux_loss_at(rw_site at, rw_tape *t, rw_tensor *scores, const rw_moe_routes *routes,
                              double coefficient)
{
    RW_ENTER_OP(t);
    if (!rw_operand_check(at, t, scores, "moe_aux_loss", "scores")) return NULL;
    if (!rw_moe_is_there(at, t, "moe_aux_loss", "routes", routes)) return NULL;
    const rw_composite c = rw_composite_begin(t, "moe_aux_loss");
    const rw_shape s = rw_tensor_shape(scores), index = rw_tensor_shape(routes->inverse);
    const double tokens = s.rank == 2 ? (double)s.dim[0] : 0, k = index.rank == 2 ? (double)index.dim[1] : 0;
    const double factor = tokens * k > 0 ? coefficient * (double)s.dim[1] / (k * tokens * tokens) : 0;
    rw_tensor *const load = rw_cast_at(at, t, routes->load, rw_tensor_dtype(scores));
    rw_tensor *const sum = rw_sum_at(at, t, scores, RW_AXES(0), false);
    rw_tensor *const both = rw_sum_at(at, t, rw_mul_at(at, t, sum, load), RW_ALL_AXES, false);
    return rw_composite_end(&c, rw_scale_at(at, t, both, factor));
}

rw_tensor *rw_moe_z_loss_at(rw_site at, rw_tape *t, rw_tensor *logits, double coefficient)
{
    RW_ENTER_OP(t);
    if (!rw_operand_check(at, t, logits, "moe_z_loss", "logits")) return NULL;
    const rw_composite c = rw_composite_begin(t, "moe_z_loss");
    rw_tensor *const z = rw_logsumexp_at(at, t, logits, RW_AXES(-1), false);
    rw_tensor *const mean = rw_mean_at(at, t, rw_mul_at(at, t, z, z), RW_ALL_AXES, false);
    return rw_composite_end(&c, rw_scale_at(at, t, mean, coefficient));
}

/* ---- balance ---- */

struct rw_moe_balance_attrs {
    double rate;
};

/* bias [E], total [E] -> the bias of the next step, and zeros. */
static rw_status check_balance(rw_op_call *call)
{
    const struct rw_moe_balance_attrs *const a = call->attrs;
    const rw_shape s = rw_in_shape(call, 0);
    for (int i = 0; i < 2; i++) RW_CHECK(rw_want_dtype(call, i, RW_F32));
    if (s.rank != 1 || s.dim[0] < 1 || s.dim[0] > RW_MOE_EXPERTS_MAX)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "[E] with 1 to %d experts", RW_MOE_EXPERTS_MAX);
    RW_CHECK(rw_expect_shape_of(call, 1, NULL, 0, NULL));
    if (!isfinite(a->rate)) return rw_unexpected_real(call, "rate", a->rate, "a finite number");
    RW_CHECK(rw_op_output_like(call, 0, 0));
    return rw_op_output_like(call, 1, 1);
}

RW_BUILTIN_OP(moe_balance, "bias total", "-")
RW_DECLARE_KERNELS(rw_moe_balance)
static const rw_op_def rw_op_moe_balance = { .name = "moe_balance", .n_inputs = 2, .n_outputs = 2,
                                             .flags = RW_OP_NO_GRADIENT, .check = check_balance,
                                             .kernel = RW_KERNELS(rw_moe_balance) };

/* load [E], total [E] -> total. A commit of its own, not an assignment of a sum: several of them in one step add up. */
static rw_status check_count(rw_op_call *call)
{
    for (int i = 0; i < 2; i++) RW_CHECK(rw_want_dtype(call, i, RW_F32));
    RW_CHECK(rw_expect_shape_of(call, 1, NULL, 0, NULL));
    return rw_op_output_like(call, 0, 1);
}

RW_BUILTIN_OP(moe_count, "load total", "-")
RW_DECLARE_KERNELS(rw_accumulate)
static const rw_op_def rw_op_moe_count = { .name = "moe_count", .n_inputs = 2, .n_outputs = 1,
                                           .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                                           .check = check_count, .kernel = RW_KERNELS(rw_accumulate) };

rw_status rw_moe_count_at(rw_site at, rw_tape *t, rw_tensor *total, const rw_moe_routes *routes)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (!rw_moe_is_there(at, t, "moe_count", "routes", routes)) return RW_ERR_ARGUMENT;
    rw_tensor *const in[] = { routes->load, total };
    if (rw_apply_at(at, t, &rw_op_moe_count, in, 2, NULL, 0, NULL)) return RW_OK;
    const rw_status status = t ? rw_error_status(rw_tape_context(t)) : RW_OK;
    return status ? status : RW_ERR_ARGUMENT;
}

rw_tensor *rw_moe_balance_at(rw_site at, rw_tape *t, rw_tensor *bias, rw_tensor *total, double rate)
{
    RW_ENTER_OP(t);
    const rw_composite c = rw_composite_begin(t, "moe_balance");
    const struct rw_moe_balance_attrs a = { (double)(float)rate };
    rw_tensor *const in[] = { bias, total };
    rw_tensor *out[2] = { NULL, NULL };
    rw_tensor *const next = rw_apply_at(at, t, &rw_op_moe_balance, in, 2, &a, sizeof a, out);
    const bool written = next && !rw_assign_at(at, t, bias, out[0]) && !rw_assign_at(at, t, total, out[1]);
    return rw_composite_end(&c, written ? next : NULL);
}
