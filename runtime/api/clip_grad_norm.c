/*
 * rw_clip_grad_norm() and rw_record_clip(): recording, planning and reading the norms. rewind/tensor.h documents the
 * call.
 */
#include "api/clip_grad_norm.h"

#include "api/cached_update_plan.h"
#include "api/recorder_list.h"
#include "base/alloc.h"
#include "ops/optim/update_ops.h"
#include "record/gradient_state.h"

#include <math.h>

/* The clipping of a context. */
struct rw_clipping {
    struct rw_clip clip;
    struct rw_update update;
    size_t n_params; /* number of parameters it was planned for */
};

/* Of a context that clips, made with its first clipping. */
struct clippings {
    struct rw_clipping *own; /* created by the first rw_clip_grad_norm() */
    struct rw_clip *last;    /* queued last; NULL: none, or it was destroyed */
    uint64_t n;              /* number of those that were queued */
};

static struct rw_extension clippings_extension = { .name = "clippings", .size = sizeof(struct clippings) };

static struct clippings *clippings_of(const rw_context *ctx)
{
    return rw_extension_find(&ctx->extensions, &clippings_extension);
}

static struct rw_clipping *own_of(const rw_context *ctx)
{
    const struct clippings *const all = clippings_of(ctx);
    return all ? all->own : NULL;
}

/* One node reads and writes each gradient, and has five more operands. */
#define CLIPPED_MAX ((RW_OP_MAX_OPERANDS - 5) / 2)

/* Appends the existing gradients or sums to `in`, in the order of the parameters, and stores whose they are. */
static int list(struct rw_clip *c, rw_tensor *const *of_param, rw_tensor **in)
{
    const rw_context *const ctx = c->ctx;
    int n = 0;
    for (size_t i = 0; i < ctx->n_params; i++) {
        const uint32_t id = ctx->params[i]->tensor.id;
        if (!of_param[id]) continue;
        c->sums.of[n] = ctx->params[i]->serial;
        in[n++] = of_param[id];
    }
    c->sums.n = (size_t)n;
    return n;
}

/* Records one node for all gradients, and replaces them by its outputs. */
static rw_status record_all(struct rw_clip *c, rw_tape *t, rw_tensor **gradient, rw_tensor **in, rw_tensor **out)
{
    const rw_context *const ctx = c->ctx;
    in[0] = &c->limit->tensor;
    in[1] = &c->norm->tensor;
    in[2] = &c->sums.state->tensor;
    const struct rw_clip_attrs attrs = { .keeps_nonfinite = c->keeps_nonfinite };
    const int n = 3 + list(c, gradient, in + 3);
    if (c->sums.n > CLIPPED_MAX)
        return rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_clip_grad_norm: expected at most %d parameters, got %zu",
                       CLIPPED_MAX, c->sums.n);
    const rw_status status = rw_update_record(t, "rw_clip_grad_norm", &rw_op_clip_grad_norm, in, n, &attrs,
                                              sizeof attrs, out);
    for (size_t i = 0, k = 2; !status && i < ctx->n_params; i++) {
        rw_tensor **const g = &gradient[ctx->params[i]->tensor.id];
        if (*g) *g = out[k++];
    }
    return status;
}

static rw_status record_at_once(struct rw_clip *c, const struct rw_recording *now)
{
    const size_t most = c->ctx->n_params + 3;
    rw_tensor **const both = rw_malloc(2 * most * sizeof *both);
    if (!both) return rw_fail(c->ctx, RW_ERR_MEMORY, "rw_clip_grad_norm: out of memory");
    const rw_status status = record_all(c, now->t, now->gradient, both, both + most);
    rw_free(both);
    return status;
}

/* ---- inside backward ---- */

static const rw_site here = { "rw_clip_grad_norm", 0 };

static rw_status begin(struct rw_step_recorder *r, const struct rw_recording *now)
{
    struct rw_clip *const c = (struct rw_clip *)r;
    if (!now->in_two_passes) return RW_OK;
    c->squares = rw_calloc(c->ctx->n_ids, sizeof *c->squares);
    return c->squares ? RW_OK : rw_fail(c->ctx, RW_ERR_MEMORY, "rw_clip_grad_norm: out of memory");
}

static void end(struct rw_step_recorder *r)
{
    struct rw_clip *const c = (struct rw_clip *)r;
    rw_free(c->squares);
    c->squares = NULL;
    c->factor = c->norm_now = NULL;
}

/* The first pass records the sum of squares, the second the clipping. */
static rw_tensor *pass(struct rw_step_recorder *r, struct rw_recording *now, uint32_t param, rw_tensor *gradient)
{
    struct rw_clip *const c = (struct rw_clip *)r;
    if (!now->is_first_pass) {
        rw_tensor *const in[] = { c->factor, gradient };
        return rw_apply_at(here, now->t, &rw_op_clip_scale, in, 2, NULL, 0, NULL);
    }
    c->squares[param] = rw_apply_at(here, now->t, &rw_op_grad_squares, &gradient, 1, NULL, 0, NULL);
    return c->squares[param] ? gradient : NULL;
}

/* Adds the squares in the order in which the recorder lists them. */
static rw_status end_of_pass(struct rw_step_recorder *r, struct rw_recording *now)
{
    struct rw_clip *const c = (struct rw_clip *)r;
    rw_context *const ctx = c->ctx;
    rw_tensor **const in = rw_malloc((ctx->n_params + 1) * sizeof *in), *out[2];
    if (!in) return rw_fail(ctx, RW_ERR_MEMORY, "rw_clip_grad_norm: out of memory");
    in[0] = &c->limit->tensor;
    c->factor = rw_apply_at(here, now->t, &rw_op_clip_factor, in, 1 + list(c, c->squares, in + 1), NULL, 0, out);
    rw_free(in);
    if (!c->factor) return ctx->status;
    c->norm_now = out[1];
    return RW_OK;
}

/* Records the node that stores the norm and the sums of the first pass. */
static rw_status record_results(struct rw_clip *c, rw_tape *t)
{
    rw_tensor **const in = rw_malloc((c->ctx->n_params + 3) * sizeof *in);
    if (!in) return rw_fail(c->ctx, RW_ERR_MEMORY, "rw_clip_grad_norm: out of memory");
    in[0] = c->norm_now;
    int n = 1 + list(c, c->squares, in + 1);
    in[n++] = &c->norm->tensor;
    in[n++] = &c->sums.state->tensor;
    const rw_status status = rw_update_record(t, "rw_clip_grad_norm", &rw_op_clip_note, in, n, NULL, 0, NULL);
    rw_free(in);
    return status;
}

static rw_status record(struct rw_step_recorder *r, struct rw_recording *now)
{
    struct rw_clip *const c = (struct rw_clip *)r;
    return now->in_two_passes ? record_results(c, now->t) : record_at_once(c, now);
}

/* ---- creation and destruction ---- */

static void close_sums(rw_context *ctx, struct rw_clip_sums *s)
{
    rw_state_destroy(ctx, s->state);
    rw_free(s->read);
    rw_free(s->of);
    *s = (struct rw_clip_sums){ 0 };
}

static bool open_sums(rw_context *ctx, struct rw_clip_sums *s)
{
    *s = (struct rw_clip_sums){ .state = rw_state_create(ctx, RW_F64, RW_SHAPE((int64_t)ctx->n_params + 1)),
                                .read = rw_calloc(ctx->n_params + 1, sizeof *s->read),
                                .of = rw_calloc(ctx->n_params + 1, sizeof *s->of) };
    if (s->state && s->read && s->of) return true;
    close_sums(ctx, s);
    return false;
}

static const struct rw_recorder_kind clip_kind;

static void clip_close(struct rw_clip *c)
{
    if (!c->ctx) return;
    struct clippings *const all = clippings_of(c->ctx);
    if (all && all->last == c) all->last = NULL;
    rw_state_destroy(c->ctx, c->limit);
    rw_state_destroy(c->ctx, c->norm);
    close_sums(c->ctx, &c->sums);
    *c = (struct rw_clip){ 0 };
}

/* A clipping of the current parameters. RW_ERR_MEMORY, recorded; then nothing is allocated. */
static rw_status clip_open(struct rw_clip *c, rw_context *ctx)
{
    *c = (struct rw_clip){ .recorder.kind = &clip_kind,
                           .ctx = ctx,
                           .limit = rw_state_create(ctx, RW_F64, RW_SCALAR),
                           .norm = rw_state_create(ctx, RW_F64, RW_SCALAR) };
    const bool is_known = rw_extension_make(&ctx->extensions, &clippings_extension);
    if (is_known && c->limit && c->norm && open_sums(ctx, &c->sums)) return RW_OK;
    clip_close(c);
    return rw_fail(ctx, RW_ERR_MEMORY, "rw_clip_grad_norm: out of memory");
}

/* ---- results ---- */

/* The clipping was queued, and is now the last one of its context. */
static void clip_count(struct rw_clip *c)
{
    struct clippings *const all = clippings_of(c->ctx);
    all->last = c;
    all->n++;
}

uint64_t rw_clip_number(const rw_context *ctx)
{
    const struct clippings *const all = clippings_of(ctx);
    return all ? all->n : 0;
}

rw_status rw_clip_read(rw_context *ctx, uint64_t *seen, const struct rw_clip **ret, double *ret_norm)
{
    struct rw_clip *const c = rw_clip_number(ctx) != *seen ? clippings_of(ctx)->last : NULL;
    *seen = rw_clip_number(ctx);
    *ret = NULL;
    if (!c) return RW_OK;
    rw_status status = rw_runs_wait(ctx);
    if (status) return status;
    const size_t bytes = c->sums.n * sizeof *c->sums.read;
    status = ctx->device->download(ctx->device_state, ret_norm, c->norm->data, sizeof *ret_norm);
    if (!status && bytes) status = ctx->device->download(ctx->device_state, c->sums.read, c->sums.state->data, bytes);
    if (status) return rw_fail(ctx, status, "rw_clip_grad_norm: the norms could not be read: %s",
                               rw_status_name(status));
    *ret = c;
    return RW_OK;
}

/* Sets the maximum norm for work that is queued from now on. */
static rw_status clip_set(struct rw_clip *c, double max_norm)
{
    rw_context *const ctx = c->ctx;
    if (c->set == max_norm) return RW_OK;
    const rw_status status = ctx->device->upload(ctx->device_state, c->limit->data, &max_norm, sizeof max_norm);
    if (status) return rw_fail(ctx, status, "rw_clip_grad_norm: the device failed");
    c->set = max_norm;
    return RW_OK;
}

/* ---- in a list ---- */

static rw_status check_given(const rw_recorder *given, const struct rw_recorder_check *at)
{
    if (given->number_ > 0) return RW_OK;
    return rw_recorder_refuse(at, RW_ERR_ARGUMENT, "max_norm", "expected a number above 0, got %g", given->number_);
}

static rw_status open_recorder(const rw_recorder *given, const struct rw_recorder_use *use,
                               struct rw_step_recorder **ret)
{
    struct rw_clip *const c = rw_calloc(1, sizeof *c);
    if (!c) return rw_fail(use->ctx, RW_ERR_MEMORY, "%s: out of memory", use->call);
    rw_status status = clip_open(c, use->ctx);
    if (!status && (status = clip_set(c, given->number_))) clip_close(c);
    if (status) rw_free(c);
    else *ret = &c->recorder;
    return status;
}

static void close_recorder(struct rw_step_recorder *r, bool never_ran)
{
    clip_close((struct rw_clip *)r);
    rw_free(r);
}

static rw_status renumber(struct rw_step_recorder *r, double max_norm)
{
    return clip_set((struct rw_clip *)r, max_norm);
}

static void launched(struct rw_step_recorder *r)
{
    clip_count((struct rw_clip *)r);
}

static const struct rw_recorder_kind clip_kind = { .name = "rw_record_clip",
                                                   .stage = RW_STAGE_CLIP,
                                                   .is_single = true,
                                                   .reads_all = true,
                                                   .check = check_given,
                                                   .open = open_recorder,
                                                   .close = close_recorder,
                                                   .renumber = renumber,
                                                   .begin = begin,
                                                   .gradient = pass,
                                                   .end_of_pass = end_of_pass,
                                                   .record = record,
                                                   .end = end,
                                                   .launched = launched };

rw_recorder rw_record_clip(double max_norm)
{
    RW_ENTER_ANYWHERE;
    return (rw_recorder){ .kind_ = &clip_kind, .number_ = max_norm };
}

/* ---- the call ---- */

void rw_clipping_destroy(rw_context *ctx)
{
    struct rw_clipping *const own = own_of(ctx);
    if (!own) return;
    rw_update_close(&own->update);
    clip_close(&own->clip);
    rw_free(own);
    clippings_of(ctx)->own = NULL;
}

static rw_status make(rw_context *ctx)
{
    struct rw_clipping *const c = rw_calloc(1, sizeof *c);
    if (!c) return rw_fail(ctx, RW_ERR_MEMORY, "rw_clip_grad_norm: out of memory");
    const rw_status status = clip_open(&c->clip, ctx);
    if (status) rw_free(c);
    else clippings_of(ctx)->own = c;
    return status;
}

/* Plans the clipping again if the number of parameters or the handling of infinite norms has changed. */
static rw_status plan(rw_context *ctx, bool keeps_nonfinite)
{
    struct rw_clipping *const c = own_of(ctx);
    const bool fits = c->n_params == ctx->n_params && c->clip.keeps_nonfinite == keeps_nonfinite;
    if (c->update.run && fits && !rw_update_is_stale(&c->update)) return RW_OK;
    struct rw_update created;
    struct rw_clip_sums sums = c->clip.sums;
    if (!open_sums(ctx, &c->clip.sums)) {
        c->clip.sums = sums;
        return rw_fail(ctx, RW_ERR_MEMORY, "rw_clip_grad_norm: out of memory");
    }
    const bool kept = c->clip.keeps_nonfinite;
    c->clip.keeps_nonfinite = keeps_nonfinite;
    struct rw_step_recorder *const recorder = &c->clip.recorder;
    const rw_status status = rw_update_open(&created, ctx, &recorder, 1, NULL);
    if (status) {
        c->clip.keeps_nonfinite = kept;
        close_sums(ctx, &c->clip.sums);
        c->clip.sums = sums;
        return status;
    }
    rw_update_close(&c->update);
    close_sums(ctx, &sums);
    c->update = created;
    c->n_params = ctx->n_params;
    return RW_OK;
}

static rw_status run(rw_context *ctx, double max_norm)
{
    const rw_status status = clip_set(&own_of(ctx)->clip, max_norm);
    return status ? status : rw_update_run(&own_of(ctx)->update);
}

/* A call with an infinite max_norm only measures. */
static void count(rw_context *ctx, double max_norm)
{
    clip_count(&own_of(ctx)->clip);
    if (isfinite(max_norm)) rw_gradients_changed(ctx);
}

static rw_status read_norm(rw_context *ctx, double *ret_norm)
{
    rw_status status = rw_runs_wait(ctx);
    if (status) return status;
    status = ctx->device->download(ctx->device_state, ret_norm, own_of(ctx)->clip.norm->data, sizeof *ret_norm);
    return status ? rw_fail(ctx, status, "rw_clip_grad_norm: the device failed") : RW_OK;
}

/* Clips and waits for the norm. If it is not finite, the gradients are unchanged and the call fails. */
static rw_status clip_finite(rw_context *ctx, double max_norm, double *ret_norm, const char *name)
{
    double norm = 0;
    rw_status status = run(ctx, max_norm);
    if (!status) status = read_norm(ctx, &norm);
    if (!status && !isfinite(norm))
        status = rw_fail(ctx, RW_ERR_ARGUMENT, "%s: the norm of the gradients is %g; expected a finite one; skip the "
                         "step: rw_error_clear(), rw_zero_grad()", name, norm);
    if (status) return status;
    count(ctx, max_norm);
    if (ret_norm) *ret_norm = norm;
    return RW_OK;
}

static rw_status clip(rw_context *ctx, double max_norm, double *ret_norm)
{
    double norm;
    rw_status status = run(ctx, max_norm);
    if (!status) count(ctx, max_norm);
    if (status || !ret_norm) return status;
    status = read_norm(ctx, &norm);
    if (!status) *ret_norm = norm;
    return status;
}

/* name: the public function, for messages. */
static rw_status clip_by(const char *name, rw_context *ctx, double max_norm, bool refuses, double *ret_norm)
{
    if (!ctx) return rw_fail_null(NULL, name, "ctx");
    if (ctx->status) return ctx->status;
    if (!(max_norm > 0))
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s(max_norm): expected a number above 0, got %g", name, max_norm);
    rw_status status = rw_check_runs(ctx, name);
    if (!status) status = rw_gradients_check(ctx, name);
    if (!status) status = rw_gradients_check_unscaled(ctx, name);
    if (!status && !own_of(ctx)) status = make(ctx);
    if (!status) status = plan(ctx, refuses);
    if (status) return status;
    return refuses ? clip_finite(ctx, max_norm, ret_norm, name) : clip(ctx, max_norm, ret_norm);
}

rw_status rw_clip_grad_norm_with(rw_context *ctx, double max_norm, const rw_clip_grad_norm_params *params,
                                 double *ret_norm)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    return clip_by("rw_clip_grad_norm_with", ctx, max_norm, params && params->error_if_nonfinite, ret_norm);
}

rw_status rw_clip_grad_norm(rw_context *ctx, double max_norm, double *ret_norm)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    return clip_by("rw_clip_grad_norm", ctx, max_norm, false, ret_norm);
}
