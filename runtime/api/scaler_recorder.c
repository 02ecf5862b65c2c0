/* A loss scaler in a list of recorders: rw_record_scaler(). */
#include "api/recorder_list.h"
#include "api/scaler.h"
#include "api/scaler_nodes.h"
#include "base/alloc.h"
#include "record/gradient_state.h"

static rw_status check_given(const rw_recorder *given, const struct rw_recorder_check *at)
{
    const rw_scaler *const s = given->of_;
    if (!s) return rw_recorder_refuse(at, RW_ERR_ARGUMENT, "s", "expected a scaler, got NULL");
    if (s->ctx != at->t->ctx)
        return rw_recorder_refuse(at, RW_ERR_ARGUMENT, "s", "expected a scaler of the tape's context, got a scaler of "
                                  "another context");
    return rw_scaler_check_loss(at->t, at->loss, at->call);
}

static rw_status open_recorder(const rw_recorder *given, const struct rw_recorder_use *use,
                               struct rw_step_recorder **ret)
{
    struct rw_scaler_recorder *const x = rw_calloc(1, sizeof *x);
    if (!x) return rw_fail(use->ctx, RW_ERR_MEMORY, "%s: out of memory", use->call);
    x->s = given->of_;
    x->holds = use->is_graph;
    if (x->holds) rw_scaler_share(x->s);
    *ret = &x->recorder;
    return RW_OK;
}

static void close_recorder(struct rw_step_recorder *r, bool never_ran)
{
    const struct rw_scaler_recorder *const x = (struct rw_scaler_recorder *)r;
    if (x->holds) rw_scaler_release(x->s);
    rw_free(r);
}

static void depend(struct rw_step_recorder *r, struct rw_dependent *d, void (*gone)(struct rw_dependent *d))
{
    rw_scaler_depend(((struct rw_scaler_recorder *)r)->s, d, gone);
}

static rw_status before_backward(const struct rw_step_recorder *r, const char *call)
{
    return rw_scaler_check_scaled(((const struct rw_scaler_recorder *)r)->s, call);
}

/* Those that an earlier list has unscaled would be divided by the scale again. */
static rw_status check_update(const struct rw_step_recorder *r, const char *call)
{
    rw_context *const ctx = ((const struct rw_scaler_recorder *)r)->s->ctx;
    uint64_t unscaling = 0;
    const rw_status status = rw_gradients_unscaling(ctx, call, &unscaling);
    if (status || !unscaling) return status;
    return rw_fail(ctx, RW_ERR_ARGUMENT, "%s: expected gradients that are multiplied by the scale, got unscaled ones; "
                   "call rw_zero_grad() before it", call);
}

static void after_backward(struct rw_step_recorder *r)
{
    const rw_scaler *const s = ((struct rw_scaler_recorder *)r)->s;
    rw_gradients_scaled(s->ctx, s->numbers);
}

static const void *seed_of(const struct rw_step_recorder *r)
{
    return rw_scaler_seed(((const struct rw_scaler_recorder *)r)->s);
}

static void launched(struct rw_step_recorder *r)
{
    rw_scaler_launched(((struct rw_scaler_recorder *)r)->s);
}

static const struct rw_recorder_kind kind = { .name = "rw_record_scaler",
                                              .stage = RW_STAGE_UNSCALE,
                                              .is_single = true,
                                              .skips = true,
                                              .reads_all = true,
                                              .check = check_given,
                                              .open = open_recorder,
                                              .close = close_recorder,
                                              .depend = depend,
                                              .seed = seed_of,
                                              .before_backward = before_backward,
                                              .after_backward = after_backward,
                                              .check_update = check_update,
                                              .begin = rw_scaler_record_begin,
                                              .gradient = rw_scaler_record_gradient,
                                              .record = rw_scaler_record_unscaling,
                                              .finish = rw_scaler_record_next,
                                              .end = rw_scaler_record_end,
                                              .launched = launched };

rw_recorder rw_record_scaler(rw_scaler *s)
{
    RW_LOOKS_ONLY;
    return (rw_recorder){ .kind_ = &kind, .of_ = s };
}
