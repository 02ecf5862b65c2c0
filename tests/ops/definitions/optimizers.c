/* Definitions of parameter updates (rewind/optimizers.h). A trial's result is the final value of the parameter. */
#include "support/compare.h"
#include "support/definition_runner.h"

#include <math.h>
#include <stdlib.h>

enum {
    OP_KIND,
    OP_MOMENTUM,
    OP_DAMPENING,
    OP_NESTEROV,
    OP_DECAY,
    OP_DECAY_ALL,
    OP_RANK,
    OP_FACTOR,
    OP_OWN_DECAY,
    OP_GAP
};
enum { SGD, ADAM, ADAMW, LION, OPTIMIZERS };
enum { STEPS = 3 };
#define LR 0.0625
#define BETA1 0.875
#define BETA2 0.75
#define EPS 0x1p-4

static bool update_make(struct def_trial *c)
{
    if (c->v[OP_KIND] != SGD && (c->v[OP_MOMENTUM] || c->v[OP_DAMPENING] || c->v[OP_NESTEROV])) return false;
    if (c->v[OP_DAMPENING] && (!c->v[OP_MOMENTUM] || c->v[OP_NESTEROV])) return false;
    if (c->v[OP_NESTEROV] && !c->v[OP_MOMENTUM]) return false;
    rw_shape s = def_shape(c->v[OP_RANK]);
    def_operand(c, 0, s, DEF_SIGNED, DEF_DENSE);
    s.rank = c->v[OP_RANK] + 1;
    s.dim[0] = STEPS;
    for (int d = 0; d < c->v[OP_RANK]; d++) s.dim[d + 1] = c->in[0].shape.dim[d];
    def_operand(c, 1, s, DEF_SIGNED, DEF_DENSE);
    c->out[0] = c->in[0].shape;
    return true;
}

/* The optimizer of the trial's kind and options. */
static rw_status create(rw_optimizer **opt, rw_context *ctx, const struct def_trial *c)
{
    const double decay = c->v[OP_DECAY] ? 0.5 : RW_ZERO;
    const bool all = c->v[OP_DECAY_ALL];
    switch (c->v[OP_KIND]) {
    case SGD:
        return rw_sgd_create(opt, ctx,
                             &(rw_sgd_params){ .lr = LR,
                                               .momentum = c->v[OP_MOMENTUM] ? 0.75 : 0,
                                               .dampening = c->v[OP_DAMPENING] ? 0.25 : 0,
                                               .nesterov = c->v[OP_NESTEROV],
                                               .weight_decay = decay,
                                               .decay_all = all });
    case ADAM:
        return rw_adam_create(
            opt, ctx,
            &(rw_adam_params){
                .lr = LR, .beta1 = BETA1, .beta2 = BETA2, .eps = EPS, .weight_decay = decay, .decay_all = all });
    case ADAMW:
        return rw_adamw_create(
            opt, ctx,
            &(rw_adamw_params){
                .lr = LR, .beta1 = BETA1, .beta2 = BETA2, .eps = EPS, .weight_decay = decay, .decay_all = all });
    default:
        return rw_lion_create(
            opt, ctx,
            &(rw_lion_params){ .lr = LR, .beta1 = BETA1, .beta2 = BETA2, .weight_decay = decay, .decay_all = all });
    }
}

static bool write_all(rw_tensor *to, const real *x)
{
    const int64_t n = rw_shape_numel(rw_tensor_shape(to));
    unsigned char *const data = calloc((size_t)n + 1, 8);
    for (int64_t i = 0; i < n; i++) number_put(data, rw_tensor_dtype(to), i, (double)x[i]);
    const rw_status status = rw_write(to, data, rw_tensor_bytes(to));
    free(data);
    return status == RW_OK;
}

/* Runs in a context of its own, because a parameter exists as long as its context. */
static bool updated(const struct def_trial *c, rw_context *ctx, unsigned char *ret)
{
    static const double factors[] = { 0, 0.5, RW_ZERO }, decays[] = { 0, 0.25, RW_ZERO };
    rw_optimizer *opt = NULL;
    rw_tensor *const w = rw_param(ctx, "w", c->dtype, c->out[0]);
    bool is_right = w && !create(&opt, ctx, c) && write_all(w, c->in[0].x);
    if (is_right && (c->v[OP_FACTOR] || c->v[OP_OWN_DECAY]))
        is_right = !rw_optimizer_set(opt, w,
                                     &(rw_optimizer_settings){ .lr_factor = factors[c->v[OP_FACTOR]],
                                                               .weight_decay = decays[c->v[OP_OWN_DECAY]] });
    for (int step = 0; step < STEPS && is_right; step++) {
        rw_zero_grad(ctx);
        if (!c->v[OP_GAP] || step != 1) is_right = write_all(rw_gradient(w), c->in[1].x + step * c->in[0].numel);
        is_right &= !rw_optimizer_step(opt);
    }
    if (is_right) is_right = !rw_read(NULL, w, ret, rw_tensor_bytes(w));
    rw_optimizer_destroy(&opt);
    return is_right;
}

static bool update_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    struct fixture own = fixture_open(1, rw_context_threads(rw_tape_context(t)));
    unsigned char *const data = calloc((size_t)c->in[0].numel + 1, 8);
    (void)x;
    if (updated(c, own.ctx, data))
        y[0] = rw_input(t, c->dtype, c->out[0], data, (size_t)rw_shape_numel(c->out[0]) * rw_dtype_size(c->dtype));
    free(data);
    fixture_close(&own);
    return y[0];
}

struct state {
    real x, first, second;
    int steps;
};

/* One element's update by the optimizer's published formula. */
static void update(const struct def_trial *c, struct state *s, real g, real lr, real decay)
{
    const real before = s->x;
    s->steps++;
    if (c->v[OP_KIND] <= ADAM) g += decay * before;
    else s->x *= 1 - lr * decay;
    if (c->v[OP_KIND] == SGD) {
        const real keep = c->v[OP_MOMENTUM] ? 0.75L : 0, damp = c->v[OP_DAMPENING] ? 0.25L : 0;
        s->first = s->steps == 1 ? g : keep * s->first + (1 - damp) * g;
        s->x -= lr * (!c->v[OP_MOMENTUM] ? g : c->v[OP_NESTEROV] ? g + keep * s->first : s->first);
    } else if (c->v[OP_KIND] == LION) {
        const real direction = (real)BETA1 * s->first + (1 - (real)BETA1) * g;
        s->x -= lr * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
        s->first = (real)BETA2 * s->first + (1 - (real)BETA2) * g;
    } else {
        s->first = (real)BETA1 * s->first + (1 - (real)BETA1) * g;
        s->second = (real)BETA2 * s->second + (1 - (real)BETA2) * g * g;
        const real m = s->first / (1 - powl(BETA1, s->steps)), v = s->second / (1 - powl(BETA2, s->steps));
        s->x -= lr * m / (sqrtl(v) + (real)EPS);
    }
}

static void update_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    static const real factors[] = { 1, 0.5L, 0 }, decays[] = { -1, 0.25L, 0 };
    const bool decays_by_rank = c->v[OP_DECAY_ALL] || c->out[0].rank > 1;
    real decay = decays[c->v[OP_OWN_DECAY]];
    if (decay < 0) decay = c->v[OP_DECAY] && decays_by_rank ? 0.5L : 0;
    for (int64_t i = 0; i < c->in[0].numel; i++) {
        struct state s = { .x = x[0][i] };
        for (int step = 0; step < STEPS; step++) {
            if ((c->v[OP_GAP] && step == 1) || c->v[OP_FACTOR] == 2) continue; /* no gradient; frozen */
            update(c, &s, x[1][step * c->in[0].numel + i], (real)LR * factors[c->v[OP_FACTOR]], decay);
        }
        y[0][i] = s.x;
    }
}

const struct definition def_optimizers[] = { { .name = "updates",
                                               .ops = "",
                                               .factor = { { "kind", OPTIMIZERS },
                                                           { "momentum", 2 },
                                                           { "dampening", 2 },
                                                           { "nesterov", 2 },
                                                           { "decay", 2 },
                                                           { "decay all", 2 },
                                                           { "rank", 3 },
                                                           { "factor", 3 },
                                                           { "own decay", 3 },
                                                           { "gap", 2 } },
                                               .make = update_make,
                                               .record = update_record,
                                               .reference = update_reference,
                                               .roundings = 10,
                                               .only_wide = true,
                                               .no_gradient = true },
                                             { 0 } };
