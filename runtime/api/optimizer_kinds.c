/*
 * The kinds of optimizers: their numbers with checks and defaults, and the rows of an update. rewind/optimizers.h
 * documents the defaults and which numbers are refused.
 */
#include "api/optimizer.h"
#include "api/optimizer_struct.h"
#include "base/explicit_zero_param.h"

#include <math.h>

/* ---- numbers ---- */

/* Checks the numbers of all kinds; those that a kind does not use are zero and pass. */
static const struct rw_optimizer_numbers *checked(rw_context *ctx, const char *call,
                                                  const struct rw_optimizer_numbers *n)
{
    const struct {
        const char *name;
        double value;
        bool allowed; /* if it is finite */
        const char *expected;
    } fields[] = {
        { "lr", n->lr, n->lr >= 0, "0 or more" },
        { "beta1", n->beta1, n->beta1 < 1, "below 1" },
        { "beta2", n->beta2, n->beta2 < 1, "below 1" },
        { "eps", n->eps, n->eps >= 0, "0 or more" },
        { "weight_decay", n->weight_decay, true, "a finite number" },
        { "momentum", n->momentum, n->momentum < 1, "below 1" },
        { "dampening", n->dampening, n->dampening < 1 && n->dampening > -1e300, "below 1 and above -1e300" },
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].allowed && isfinite(fields[i].value)) continue;
        rw_fail(ctx, RW_ERR_ARGUMENT, "%s(%s): expected %s, got %g", call, fields[i].name, fields[i].expected,
                fields[i].value);
        return NULL;
    }
    return n;
}

/* ---- rows of an update ---- */

static void no_rule(struct rw_update_row *r, const struct rw_optimizer_numbers *n)
{
    *r = (struct rw_update_row){ .lr = n->lr, .eps = n->eps, .decay = 1, .correction1 = 1, .correction2 = 1 };
}

static void adam_row(struct rw_update_row *r, const struct rw_optimizer_numbers *n, uint64_t step)
{
    no_rule(r, n);
    r->b1 = n->beta1, r->c1 = 1 - n->beta1;
    r->b2 = n->beta2, r->c2 = 1 - n->beta2;
    r->l2 = n->weight_decay;
    r->correction1 = 1 - pow(n->beta1, (double)step);
    r->correction2 = 1 - pow(n->beta2, (double)step);
}

static void adamw_row(struct rw_update_row *r, const struct rw_optimizer_numbers *n, uint64_t step)
{
    adam_row(r, n, step);
    r->l2 = 0;
    r->decay = 1 - n->lr * n->weight_decay;
}

/* The first gradient becomes the momentum. */
static void sgd_row(struct rw_update_row *r, const struct rw_optimizer_numbers *n, uint64_t step)
{
    no_rule(r, n);
    r->b1 = step > 1 ? n->momentum : 0, r->c1 = step > 1 ? 1 - n->dampening : 1;
    r->b2 = n->momentum;
    r->nesterov = n->nesterov;
    r->l2 = n->weight_decay;
}

static void lion_row(struct rw_update_row *r, const struct rw_optimizer_numbers *n, uint64_t step)
{
    no_rule(r, n);
    r->b1 = n->beta1, r->c1 = 1 - n->beta1;
    r->b2 = n->beta2, r->c2 = 1 - n->beta2;
    r->decay = 1 - n->lr * n->weight_decay;
}

static const struct rw_optimizer_kind adamw = { "adamw", "rw_adamw_create", &rw_op_adamw, { RW_UPDATE_ADAM, 2 },
                                                { "exp_avg", "exp_avg_sq" }, adamw_row };
static const struct rw_optimizer_kind adam = { "adam", "rw_adam_create", &rw_op_adam, { RW_UPDATE_ADAM, 2 },
                                               { "exp_avg", "exp_avg_sq" }, adam_row };
static const struct rw_optimizer_kind sgd = { "sgd", "rw_sgd_create", &rw_op_sgd, { RW_UPDATE_SGD, 1 },
                                              { "momentum_buffer" }, sgd_row };
static const struct rw_optimizer_kind plain_sgd = { "sgd", "rw_sgd_create", &rw_op_sgd, { RW_UPDATE_SGD, 0 }, { 0 },
                                                    sgd_row };
static const struct rw_optimizer_kind lion = { "lion", "rw_lion_create", &rw_op_lion, { RW_UPDATE_LION, 1 },
                                               { "exp_avg" }, lion_row };

/* ---- creation ---- */

static rw_status check_call(rw_optimizer **ret, rw_context *ctx, const char *call)
{
    if (!ret || !ctx) return rw_fail_null(ctx, call, ctx ? "ret_opt" : "ctx");
    return ctx->status;
}

/* Checks the given numbers before defaults replace some of them. */
static rw_status make(rw_optimizer **ret, rw_context *ctx, const struct rw_optimizer_kind *kind,
                      const struct rw_optimizer_numbers *given, const struct rw_optimizer_numbers *defaults,
                      const rw_state_offload *where)
{
    if (!checked(ctx, kind->create, given)) return ctx->status;
    if (given->moments != RW_F32 && given->moments != RW_BF16)
        return rw_fail(ctx, RW_ERR_DTYPE, "%s(moments): expected f32 or bf16, got %s", kind->create,
                       rw_dtype_name(given->moments));
    const struct rw_optimizer_numbers n = {
        .lr = rw_or_default_positive(given->lr, defaults->lr),
        .beta1 = rw_or_default_positive(given->beta1, defaults->beta1),
        .beta2 = rw_or_default_positive(given->beta2, defaults->beta2),
        .eps = rw_or_default_positive(given->eps, defaults->eps),
        .weight_decay = rw_or_default_positive(given->weight_decay, defaults->weight_decay),
        .momentum = rw_or_default_positive(given->momentum, 0), .dampening = rw_or_default(given->dampening, 0),
        .nesterov = given->nesterov,
        .decay_all = given->decay_all, .stochastic_rounding = given->stochastic_rounding,
        .moments = given->moments,
    };
    return rw_optimizer_make(ret, ctx, kind, &n, where);
}

rw_status rw_adamw_create(rw_optimizer **ret_opt, rw_context *ctx, const rw_adamw_params *params)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    const rw_status status = check_call(ret_opt, ctx, adamw.create);
    if (status) return status;
    const rw_adamw_params p = params ? *params : (rw_adamw_params){ 0 };
    const struct rw_optimizer_numbers given = { .lr = p.lr, .beta1 = p.beta1, .beta2 = p.beta2, .eps = p.eps,
                                                .weight_decay = p.weight_decay, .decay_all = p.decay_all,
                                                .stochastic_rounding = p.stochastic_rounding, .moments = p.moments };
    return make(ret_opt, ctx, &adamw, &given,
                &(struct rw_optimizer_numbers){ .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                                                .weight_decay = 0.01 },
                &p.states);
}

rw_status rw_adam_create(rw_optimizer **ret_opt, rw_context *ctx, const rw_adam_params *params)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    const rw_status status = check_call(ret_opt, ctx, adam.create);
    if (status) return status;
    const rw_adam_params p = params ? *params : (rw_adam_params){ 0 };
    const struct rw_optimizer_numbers given = { .lr = p.lr, .beta1 = p.beta1, .beta2 = p.beta2, .eps = p.eps,
                                                .weight_decay = p.weight_decay, .decay_all = p.decay_all,
                                                .stochastic_rounding = p.stochastic_rounding, .moments = p.moments };
    return make(ret_opt, ctx, &adam, &given,
                &(struct rw_optimizer_numbers){ .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 }, &p.states);
}

/* SGD without momentum has no state, so it is a kind of its own. */
rw_status rw_sgd_create(rw_optimizer **ret_opt, rw_context *ctx, const rw_sgd_params *params)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    const rw_status status = check_call(ret_opt, ctx, sgd.create);
    if (status) return status;
    const rw_sgd_params p = params ? *params : (rw_sgd_params){ 0 };
    const struct rw_optimizer_numbers given = { .lr = p.lr, .momentum = p.momentum, .dampening = p.dampening,
                                                .nesterov = p.nesterov, .weight_decay = p.weight_decay,
                                                .decay_all = p.decay_all,
                                                .stochastic_rounding = p.stochastic_rounding };
    const bool has_momentum = rw_or_default_positive(p.momentum, 0) > 0;
    if (p.nesterov && (!has_momentum || rw_or_default(p.dampening, 0) != 0))
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_sgd_create(momentum, dampening): expected a momentum above 0 and no "
                       "dampening with nesterov, got %g and %g", p.momentum, p.dampening);
    return make(ret_opt, ctx, has_momentum ? &sgd : &plain_sgd, &given, &(struct rw_optimizer_numbers){ .lr = 1e-3 },
                &p.states);
}

rw_status rw_lion_create(rw_optimizer **ret_opt, rw_context *ctx, const rw_lion_params *params)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    const rw_status status = check_call(ret_opt, ctx, lion.create);
    if (status) return status;
    const rw_lion_params p = params ? *params : (rw_lion_params){ 0 };
    const struct rw_optimizer_numbers given = { .lr = p.lr, .beta1 = p.beta1, .beta2 = p.beta2,
                                                .weight_decay = p.weight_decay, .decay_all = p.decay_all,
                                                .stochastic_rounding = p.stochastic_rounding };
    return make(ret_opt, ctx, &lion, &given,
                &(struct rw_optimizer_numbers){ .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.99 }, &p.states);
}
