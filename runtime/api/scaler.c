/*
 * Loss scaling: creation, and the order of calls of a step. scaler_nodes.c records.
 *
 * Everything that changes is memory of the context that commits read and write; the host only tracks which call may
 * follow which. The seed of backward is the scale's own memory.
 */
#include "api/scaler.h"

#include "api/expected_backward.h"
#include "api/optimizer_coverage.h"
#include "api/optimizer.h"
#include "api/scaler_nodes.h"
#include "autodiff/roots.h"
#include "base/alloc.h"
#include "base/explicit_zero_param.h"
#include "record/gradient_state.h"
#include "ops/optim/loss_scaling_ops.h"
#include "verify/verify.h"

#include <float.h>
#include <math.h>

#define COUNT_MAX (1 << 24) /* float32 counts exactly up to this */

static rw_status no_memory(rw_context *ctx, const char *what)
{
    return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory", what);
}

/* The recorders of the single calls: each does one of the two things that the recorder of a list does. */
static const struct rw_recorder_kind unscaler_kind = { .name = "rw_scaler_unscale",
                                                       .record = rw_scaler_record_unscaling };
static const struct rw_recorder_kind updater_kind = { .name = "rw_scaler_update", .finish = rw_scaler_record_next };

rw_tensor *rw_scaler_found(const rw_scaler *s)
{
    return &s->found->tensor;
}

/* ---- creation and destruction ---- */

static bool is_scale(double x)
{
    return x >= (double)FLT_MIN && x <= (double)FLT_MAX;
}

/* Checks parameters that have their defaults already. */
static rw_status check_params(rw_context *ctx, const rw_scaler_params *p)
{
    static const char scale[] = "a normal number of float32 above 0", count[] = "1 to 16777216";
    const struct {
        const char *name;
        double value;
        bool allowed;
        const char *expected;
    } fields[] = {
        { "init_scale", p->init_scale, is_scale(p->init_scale), scale },
        { "growth_factor", p->growth_factor, p->growth_factor > 1 && isfinite(p->growth_factor),
          "a finite number above 1" },
        { "backoff_factor", p->backoff_factor, p->backoff_factor > 0 && p->backoff_factor < 1,
          "a number between 0 and 1" },
        { "growth_interval", (double)p->growth_interval, p->growth_interval >= 1 && p->growth_interval <= COUNT_MAX,
          count },
        { "hysteresis", (double)p->hysteresis, p->hysteresis >= 1 && p->hysteresis <= COUNT_MAX, count },
        { "min_scale", p->min_scale, is_scale(p->min_scale), scale },
        { "max_scale", p->max_scale, is_scale(p->max_scale) && p->max_scale >= p->min_scale,
          "a normal number of float32, min_scale or more" },
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!fields[i].allowed)
            return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_scaler_create(%s): expected %s, got %g", fields[i].name,
                           fields[i].expected, fields[i].value);
    return RW_OK;
}

static rw_scaler_params with_defaults(const rw_scaler_params *given)
{
    rw_scaler_params p = given ? *given : (rw_scaler_params){ 0 };
    p.init_scale = rw_or_default(p.init_scale, 65536);
    p.growth_factor = rw_or_default(p.growth_factor, 2);
    p.backoff_factor = rw_or_default(p.backoff_factor, 0.5);
    if (!p.growth_interval) p.growth_interval = 2000;
    if (!p.hysteresis) p.hysteresis = 1;
    p.min_scale = rw_or_default(p.min_scale, (double)FLT_MIN);
    p.max_scale = rw_or_default(p.max_scale, (double)FLT_MAX);
    if (!p.name) p.name = "scaler";
    return p;
}

/* Finds the buffer of that name, or creates one with these numbers. */
static rw_status find_buffer(rw_scaler *s, const rw_scaler_params *p)
{
    rw_context *const ctx = s->ctx;
    const rw_shape shape = RW_SHAPE(RW_SCALER_NUMBERS);
    const float first[RW_SCALER_NUMBERS] = { (float)p->init_scale, 0, (float)p->hysteresis, 0 };
    rw_tensor *x = rw_param_find(ctx, p->name);
    const bool known = x;
    if (known && (rw_tensor_kind_of(x) != RW_TENSOR_BUFFER || rw_tensor_dtype(x) != RW_F32 ||
                  !rw_shape_equal(rw_tensor_shape(x), shape)))
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_scaler_create(name): expected \"%s\" to be free or a scaler's buffer, "
                       "got another", p->name);
    if (!known) x = rw_buffer_at((rw_site){ "rw_scaler_create", 0 }, ctx, p->name, RW_F32, shape);
    if (!x) return ctx->status;
    s->numbers = rw_param_of(x);
    return known ? RW_OK : rw_write(x, first, sizeof first);
}

/* Creates the buffer last, because it stays. */
static rw_status make(rw_scaler *s, const rw_scaler_params *p)
{
    s->found = rw_state_create(s->ctx, RW_I32, RW_SCALAR);
    if (!s->found) return no_memory(s->ctx, "rw_scaler_create");
    return find_buffer(s, p);
}

/* Checks the parameters, and finds or creates the buffer. */
rw_status rw_scaler_create(rw_scaler **ret_scaler, rw_context *ctx, const rw_scaler_params *params)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ret_scaler || !ctx) return rw_fail_null(ctx, "rw_scaler_create", ctx ? "ret_scaler" : "ctx");
    if (ctx->status) return ctx->status;
    const rw_scaler_params p = with_defaults(params);
    rw_status status = check_params(ctx, &p);
    if (status) return status;
    rw_scaler *s = rw_calloc(1, sizeof *s);
    if (!s) return no_memory(ctx, "rw_scaler_create");
    *s = (rw_scaler){ .ctx = ctx, .n_users = 1,
                      .unscaler = { .recorder.kind = &unscaler_kind, .s = s },
                      .updater = { .recorder.kind = &updater_kind, .s = s },
                      .rule = { .growth = p.growth_factor, .backoff = p.backoff_factor, .least = p.min_scale,
                                .most = p.max_scale, .interval = p.growth_interval, .hysteresis = p.hysteresis,
                                .refill_at_growth = p.refill_at_growth } };
    ctx->n_users++;
    status = make(s, &p);
    if (status) rw_scaler_destroy(&s);
    else *ret_scaler = s;
    return status;
}

void rw_scaler_share(rw_scaler *s)
{
    s->n_users++;
}

void rw_scaler_depend(rw_scaler *s, struct rw_dependent *d, void (*gone)(struct rw_dependent *d))
{
    rw_depend(&s->dependents, d, gone);
}

static void drop_step(struct rw_stepped *step)
{
    *step->link = step->next;
    if (step->next) step->next->link = step->link;
    rw_depend_end(&step->on_optimizer);
    rw_update_close(&step->update);
    rw_free(step);
}

void rw_scaler_release(rw_scaler *s)
{
    rw_context *const ctx = s->ctx;
    if (--s->n_users) return;
    rw_dependents_tell(&s->dependents);
    rw_update_close(&s->unscaling);
    rw_update_close(&s->updating);
    while (s->steps) drop_step(s->steps);
    rw_state_destroy(ctx, s->found);
    rw_free(s);
    rw_context_release(ctx);
}

void rw_scaler_destroy(rw_scaler **ps)
{
    RW_ENTER(ps && *ps ? (*ps)->ctx : NULL, );
    if (!ps || !*ps) return;
    rw_scaler *const s = *ps;
    *ps = NULL;
    rw_scaler_release(s);
}

rw_context *rw_scaler_context(const rw_scaler *s)
{
    return s->ctx;
}

/* ---- backward ---- */

const void *rw_scaler_seed(const rw_scaler *s)
{
    return s->numbers->data;
}

rw_status rw_scaler_check_loss(const rw_tape *t, const rw_tensor *loss, const char *what)
{
    if (loss->dtype == RW_F32) return RW_OK;
    return rw_fail(t->ctx, RW_ERR_DTYPE, "%s(loss): expected f32, got %s", what,
                   rw_dtype_name((rw_dtype)loss->dtype));
}

/* Backward with the scale as its seed. Marks the gradients as scaled by it. */
rw_status rw_scaler_backward(rw_scaler *s, rw_tape *t, rw_tensor *loss)
{
    RW_ENTER(RW_CONTEXT_OF(s), RW_ERR_ARGUMENT);
    if (!s || !t) return rw_fail_null(t ? t->ctx : s ? s->ctx : NULL, "rw_scaler_backward", s ? "t" : "s");
    if (s->ctx != t->ctx)
        return rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_scaler_backward(s): expected a scaler of the tape's context, "
                       "got a scaler of another context");
    const uint32_t id = rw_loss_check(t, loss, "rw_scaler_backward");
    if (id == RW_NONE_ID) return t->ctx->status;
    rw_status status = rw_scaler_check_loss(t, loss, "rw_scaler_backward");
    if (!status) status = rw_check_runs(t->ctx, "rw_scaler_backward");
    if (!status) status = rw_gradients_check_scale(t->ctx, s->numbers, "rw_scaler_backward");
    if (!status) status = rw_roots_note(t, &id, 1, true, "rw_scaler_backward");
    if (status) return status;
    const void *const seeds[] = { rw_scaler_seed(s) };
    status = rw_begun_backward(t, id, seeds);
    if (!status) rw_gradients_scaled(t->ctx, s->numbers);
    return status;
}

/* ---- a step ---- */

static rw_status plan(struct rw_update *u, rw_scaler *s, struct rw_step_recorder *recorder)
{
    struct rw_update created;
    const rw_status status = rw_update_open(&created, s->ctx, &recorder, 1, rw_scaler_found(s));
    if (status) return status;
    rw_update_close(u);
    *u = created;
    return RW_OK;
}

static bool is_planned(const struct rw_update *u)
{
    return u->run && !rw_update_is_stale(u);
}

/* A NULL scaler has no context to record an error in. */
static rw_status begin(rw_scaler *s, const char *what)
{
    if (!s) return rw_fail_null(NULL, what, "s");
    if (s->ctx->status) return s->ctx->status;
    const rw_status runs = rw_check_runs(s->ctx, what);
    return runs ? runs : rw_gradients_check(s->ctx, what);
}

/* In this period an optimizer was stepped with other gradients, whose result rw_scaler_update() has not counted yet. */
static rw_status check_period(const rw_scaler *s, const char *what)
{
    if (!s->stepped || s->stepped_in != s->numbers->version) return RW_OK;
    return rw_fail(s->ctx, RW_ERR_ARGUMENT, "%s: expected rw_scaler_update() after an optimizer was stepped "
                   "with other gradients, got none; call that first", what);
}

rw_status rw_scaler_check_scaled(const rw_scaler *s, const char *what)
{
    const rw_status status = check_period(s, what);
    return status ? status : rw_gradients_check_scale(s->ctx, s->numbers, what);
}

/* Plans the unscaling again if parameters were added, and runs it. */
static rw_status unscale(rw_scaler *s)
{
    if (!is_planned(&s->unscaling) || s->n_params != s->ctx->n_params) {
        const rw_status planned = plan(&s->unscaling, s, &s->unscaler.recorder);
        if (planned) return planned;
        s->n_params = s->ctx->n_params;
    }
    const rw_status status = rw_update_run(&s->unscaling);
    if (status) return status;
    s->unscaled = rw_gradients_unscaled(s->ctx);
    s->unscaled_in = s->numbers->version;
    return RW_OK;
}

static bool has_unscaled(const rw_scaler *s)
{
    return s->unscaled && s->unscaled_in == s->numbers->version;
}

/* Has it unscaled the current gradients? An error if another scaler has. */
static rw_status find_unscaling(const rw_scaler *s, const char *what, bool *ret)
{
    uint64_t found = has_unscaled(s) ? s->unscaled : 0;
    const rw_status status = rw_gradients_unscaling(s->ctx, what, &found);
    if (status) return status;
    *ret = found;
    if (!found || found == s->unscaled) return RW_OK;
    return rw_fail(s->ctx, RW_ERR_ARGUMENT, "%s: expected gradients unscaled by this scaler, got gradients unscaled by "
                   "another scaler", what);
}

rw_status rw_scaler_unscale(rw_scaler *s)
{
    RW_ENTER(RW_CONTEXT_OF(s), RW_ERR_ARGUMENT);
    bool unscaled = false;
    rw_status status = begin(s, "rw_scaler_unscale");
    if (!status) status = find_unscaling(s, "rw_scaler_unscale", &unscaled);
    if (status) return status;
    if (unscaled)
        return rw_fail(s->ctx, RW_ERR_ARGUMENT,
                       "rw_scaler_unscale: expected scaled gradients, got some that are unscaled already; call it once "
                       "after the last backward of a step, and rw_zero_grad() before the next step");
    status = rw_scaler_check_scaled(s, "rw_scaler_unscale");
    return status ? status : unscale(s);
}

static void optimizer_gone(struct rw_dependent *d)
{
    drop_step((struct rw_stepped *)d);
}

/* The entry of the optimizer; NULL: none. */
static struct rw_stepped *known_step(const rw_scaler *s, const rw_optimizer *opt)
{
    struct rw_stepped *step = s->steps;
    while (step && step->opt != opt) step = step->next;
    return step;
}

/* The entry of the optimizer, or a new one without a plan; NULL without memory. */
static struct rw_stepped *step_of(rw_scaler *s, rw_optimizer *opt)
{
    struct rw_stepped *step = known_step(s, opt);
    if (step) return step;
    step = rw_calloc(1, sizeof *step);
    if (!step) return NULL;
    step->opt = opt;
    step->next = s->steps;
    step->link = &s->steps;
    if (step->next) step->next->link = &step->next;
    s->steps = step;
    rw_optimizer_depend(opt, &step->on_optimizer, optimizer_gone);
    return step;
}

/* Finds the planned update of an optimizer, or plans it. */
static rw_status find_step(rw_scaler *s, rw_optimizer *opt, struct rw_stepped **ret)
{
    const bool watched = rw_optimizer_is_watched(opt);
    struct rw_stepped *const step = step_of(s, opt);
    if (!step) return no_memory(s->ctx, "rw_scaler_step");
    if (!is_planned(&step->update) || step->sums != watched) {
        rw_status status = plan(&step->update, s, rw_optimizer_recorder(opt));
        if (status) return status;
        status = rw_optimizer_attend(opt, step->update.run);
        if (status) {
            rw_update_close(&step->update);
            return status;
        }
    }
    step->sums = watched;
    *ret = step;
    return RW_OK;
}

static rw_status check_once(const rw_scaler *s, const rw_optimizer *opt)
{
    const struct rw_stepped *const step = known_step(s, opt);
    if (!step || !step->ran || step->ran_in != s->numbers->version) return RW_OK;
    return rw_fail(s->ctx, RW_ERR_ARGUMENT, "rw_scaler_step: expected rw_scaler_update() since the optimizer was "
                   "stepped, got none; call that first");
}

/* Counts a step. A step with gradients of an earlier period uses a result that was counted already. */
static void count_step(rw_scaler *s, struct rw_stepped *step)
{
    rw_optimizer_count(step->opt);
    if (!has_unscaled(s)) return;
    s->stepped = step->ran = true;
    s->stepped_in = step->ran_in = s->numbers->version;
}

/* Whether the optimizer may be stepped now. Changes nothing. */
static rw_status check_step(const rw_scaler *s, const rw_optimizer *opt, bool *ret_unscaled)
{
    rw_status status = rw_optimizer_coverage_check(s->ctx, "rw_scaler_step");
    if (!status) status = rw_optimizer_check(opt, "rw_scaler_step");
    if (!status) status = check_once(s, opt);
    if (!status) status = find_unscaling(s, "rw_scaler_step", ret_unscaled);
    return status || *ret_unscaled ? status : rw_scaler_check_scaled(s, "rw_scaler_step");
}

/* Plans the step, unscales if that has not happened, and uploads the update's numbers. */
static rw_status prepare_step(rw_scaler *s, rw_optimizer *opt, bool unscaled, struct rw_stepped **ret)
{
    rw_status status = find_step(s, opt, ret);
    if (!status && !unscaled) status = unscale(s);
    if (status) return status;
    return rw_optimizer_prepare(opt, rw_optimizer_is_watched(opt) ? RW_SUMS_TOGETHER : RW_NO_SUMS);
}

/* From now on the optimizer counts on the device, which invalidates graphs that count on the host: not if the step has
   changed nothing. */
static rw_status run_step(rw_scaler *s, rw_optimizer *opt, bool unscaled)
{
    const bool followed = rw_optimizer_follows(opt);
    struct rw_stepped *step = NULL;
    bool changed = false;
    rw_status status = rw_optimizer_follow(opt, "rw_scaler_step");
    if (!status) status = prepare_step(s, opt, unscaled, &step);
    if (!status) {
        status = rw_update_run(&step->update);
        if (status) changed = rw_optimizer_failed(opt);
        else count_step(s, step);
    }
    if (!status || followed || changed) return status;
    step = known_step(s, opt);
    if (step) drop_step(step); /* its plan has the counts */
    rw_optimizer_unfollow(opt);
    return status;
}

/* Unscales if that has not happened, and updates the optimizer's parameters. */
rw_status rw_scaler_step(rw_scaler *s, rw_optimizer *opt)
{
    RW_ENTER(RW_CONTEXT_OF(s), RW_ERR_ARGUMENT);
    rw_status status = begin(s, "rw_scaler_step");
    if (status) return status;
    if (!opt) return rw_fail_null(s->ctx, "rw_scaler_step", "opt");
    if (rw_optimizer_context(opt) != s->ctx)
        return rw_fail(s->ctx, RW_ERR_ARGUMENT, "rw_scaler_step(opt): expected an optimizer of the scaler's "
                       "context, got an optimizer of another context");
    bool unscaled = false;
    status = check_step(s, opt, &unscaled);
    return status ? status : run_step(s, opt, unscaled);
}

static void count_update(rw_scaler *s)
{
    s->numbers->version++;
    rw_gradients_unscaled_end(s->ctx, s->unscaled);
}

void rw_scaler_launched(rw_scaler *s)
{
    s->unscaled = rw_gradients_unscaled(s->ctx);
    count_update(s);
}

rw_status rw_scaler_update(rw_scaler *s)
{
    RW_ENTER(RW_CONTEXT_OF(s), RW_ERR_ARGUMENT);
    if (!s) return rw_fail_null(NULL, "rw_scaler_update", "s");
    if (s->ctx->status) return s->ctx->status;
    const rw_status runs = rw_check_runs(s->ctx, "rw_scaler_update");
    if (runs) return runs;
    if (!has_unscaled(s))
        return rw_fail(s->ctx, RW_ERR_ARGUMENT, "rw_scaler_update: expected rw_scaler_unscale() or "
                       "rw_scaler_step() since the last update, got none: nothing was unscaled");
    rw_status status = is_planned(&s->updating) ? RW_OK : plan(&s->updating, s, &s->updater.recorder);
    if (!status) status = rw_update_run(&s->updating);
    if (!status) count_update(s);
    return status;
}

/* Reads scale and counters from the device. */
rw_status rw_scaler_get(rw_scaler *s, rw_scaler_state *ret_state)
{
    RW_ENTER(RW_CONTEXT_OF(s), RW_ERR_ARGUMENT);
    if (!s || !ret_state) return rw_fail_null(s ? s->ctx : NULL, "rw_scaler_get", s ? "ret_state" : "s");
    rw_context *const ctx = s->ctx;
    if (ctx->status) return ctx->status;
    float now[RW_SCALER_NUMBERS];
    int32_t found;
    rw_status status = rw_check_runs(ctx, "rw_scaler_get");
    if (!status) status = rw_runs_wait(ctx);
    if (status) return status;
    status = ctx->device->download(ctx->device_state, now, s->numbers->data, sizeof now);
    if (!status) status = ctx->device->download(ctx->device_state, &found, s->found->data, sizeof found);
    if (status) return rw_fail(ctx, status, "rw_scaler_get: the device failed");
    *ret_state = (rw_scaler_state){ .scale = (double)now[0], .growth_tracker = (int64_t)now[1],
                                    .hysteresis = (int32_t)now[2], .skipped = (int64_t)now[3],
                                    .found_inf = found != 0 };
    return RW_OK;
}
