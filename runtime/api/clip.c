/* rw_clip_grad_norm(): see rewind/tensor.h. */
#include "api/clip.h"

#include "api/update.h"
#include "base/alloc.h"
#include "record/own_ops.h"

/* Of a context. */
struct rw_clipping {
    struct rw_clip clip;
    struct rw_update update;
    size_t n_params; /* it was planned for so many */
};

static rw_status record_all(struct rw_clip *c, rw_tape *t, rw_tensor **gradient, rw_tensor **in, rw_tensor **out)
{
    rw_context *const ctx = c->ctx;
    int n = 0;
    in[n++] = &c->limit->tensor;
    in[n++] = &c->norm->tensor;
    for (size_t i = 0; i < ctx->n_params; i++) {
        rw_tensor *const g = gradient[ctx->params[i]->tensor.id];
        if (g) in[n++] = g;
    }
    const rw_status status = rw_update_record(t, "rw_clip_grad_norm", &rw_op_clip_grad_norm, in, n, NULL, 0, out);
    for (size_t i = 0, k = 1; !status && i < ctx->n_params; i++) {
        rw_tensor **const g = &gradient[ctx->params[i]->tensor.id];
        if (*g) *g = out[k++];
    }
    return status;
}

static rw_status record(struct rw_recorder *r, rw_tape *t, rw_tensor **gradient)
{
    struct rw_clip *const c = (struct rw_clip *)r;
    const size_t most = c->ctx->n_params + 2;
    rw_tensor **const both = rw_malloc(2 * most * sizeof *both);
    if (!both) return rw_fail(c->ctx, RW_ERR_MEMORY, "rw_clip_grad_norm: out of memory");
    const rw_status status = record_all(c, t, gradient, both, both + most);
    rw_free(both);
    return status;
}

/* ---- inside backward ---- */

static struct rw_clip *clip_of(struct rw_first_pass *f)
{
    return (struct rw_clip *)(void *)((char *)f - offsetof(struct rw_clip, pass));
}

static const rw_site here = { "rw_clip_grad_norm", 0 };

static rw_tensor *show(struct rw_first_pass *f, rw_tape *t, uint32_t param, rw_tensor *gradient)
{
    struct rw_clip *const c = clip_of(f);
    c->squares[param] = rw_apply_at(here, t, &rw_op_grad_squares, &gradient, 1, NULL, 0, NULL);
    return c->squares[param] ? gradient : NULL;
}

/* In the order in which the recorder has them. */
static rw_status end(struct rw_first_pass *f, rw_tape *t)
{
    struct rw_clip *const c = clip_of(f);
    rw_context *const ctx = c->ctx;
    rw_tensor **const in = rw_malloc((ctx->n_params + 1) * sizeof *in);
    int n = 0;
    if (!in) return rw_fail(ctx, RW_ERR_MEMORY, "rw_clip_grad_norm: out of memory");
    in[n++] = &c->limit->tensor;
    for (size_t i = 0; i < ctx->n_params; i++) {
        rw_tensor *const x = c->squares[ctx->params[i]->tensor.id];
        if (x) in[n++] = x;
    }
    c->factor = rw_apply_at(here, t, &rw_op_clip_factor, in, n, NULL, 0, NULL);
    rw_free(in);
    return c->factor ? RW_OK : ctx->status;
}

static rw_tensor *change(struct rw_first_pass *f, rw_tape *t, rw_tensor *gradient)
{
    rw_tensor *const in[] = { clip_of(f)->factor, gradient };
    return rw_apply_at(here, t, &rw_op_clip_scale, in, 2, NULL, 0, NULL);
}

rw_status rw_clip_pass_begin(struct rw_clip *c, struct rw_first_pass **ret)
{
    c->squares = rw_calloc(c->ctx->n_ids, sizeof *c->squares);
    if (!c->squares) return rw_fail(c->ctx, RW_ERR_MEMORY, "rw_clip_grad_norm: out of memory");
    *ret = &c->pass;
    c->pass.next = NULL;
    return RW_OK;
}

void rw_clip_pass_end(struct rw_clip *c)
{
    rw_free(c->squares);
    c->squares = NULL;
    c->factor = NULL;
}

/* ---- making and ending ---- */

rw_status rw_clip_open(struct rw_clip *c, rw_context *ctx)
{
    *c = (struct rw_clip){ .recorder.record = record, .pass = { NULL, show, end, change }, .ctx = ctx,
                           .limit = rw_state_create(ctx, RW_F64, RW_SCALAR),
                           .norm = rw_state_create(ctx, RW_F64, RW_SCALAR) };
    if (c->limit && c->norm) return RW_OK;
    rw_clip_close(c);
    return rw_fail(ctx, RW_ERR_MEMORY, "rw_clip_grad_norm: out of memory");
}

void rw_clip_close(struct rw_clip *c)
{
    if (!c->ctx) return;
    rw_state_destroy(c->ctx, c->limit);
    rw_state_destroy(c->ctx, c->norm);
    *c = (struct rw_clip){ 0 };
}

rw_status rw_clip_set(struct rw_clip *c, double max_norm)
{
    rw_context *const ctx = c->ctx;
    if (c->set == max_norm) return RW_OK;
    const rw_status status = ctx->device->upload(ctx->device_state, c->limit->data, &max_norm, sizeof max_norm);
    if (status) return rw_fail(ctx, status, "rw_clip_grad_norm: the device failed");
    c->set = max_norm;
    return RW_OK;
}

void rw_clipping_destroy(rw_context *ctx)
{
    if (!ctx->clipping) return;
    rw_update_close(&ctx->clipping->update);
    rw_clip_close(&ctx->clipping->clip);
    rw_free(ctx->clipping);
    ctx->clipping = NULL;
}

static rw_status make(rw_context *ctx)
{
    struct rw_clipping *const c = rw_calloc(1, sizeof *c);
    if (!c) return rw_fail(ctx, RW_ERR_MEMORY, "rw_clip_grad_norm: out of memory");
    const rw_status status = rw_clip_open(&c->clip, ctx);
    if (status) rw_free(c);
    else ctx->clipping = c;
    return status;
}

/* The plan is one of all parameters: a new one needs another. */
static rw_status plan(rw_context *ctx)
{
    struct rw_clipping *const c = ctx->clipping;
    if (c->update.run && c->n_params == ctx->n_params && !rw_update_is_stale(&c->update)) return RW_OK;
    struct rw_update made;
    const rw_status status = rw_update_open(&made, ctx, &c->clip.recorder);
    if (status) return status;
    rw_update_close(&c->update);
    c->update = made;
    c->n_params = ctx->n_params;
    return RW_OK;
}

static rw_status run(rw_context *ctx, double max_norm)
{
    const rw_status status = rw_clip_set(&ctx->clipping->clip, max_norm);
    return status ? status : rw_update_run(&ctx->clipping->update);
}

static rw_status read_norm(rw_context *ctx, double *ret_norm)
{
    double norm;
    rw_status status = rw_runs_wait(ctx);
    if (status) return status;
    status = ctx->device->download(ctx->device_state, &norm, ctx->clipping->clip.norm->data, sizeof norm);
    if (status) return rw_fail(ctx, status, "rw_clip_grad_norm: the device failed");
    *ret_norm = norm;
    return RW_OK;
}

rw_status rw_clip_grad_norm(rw_context *ctx, double max_norm, double *ret_norm)
{
    if (!ctx) return RW_ERR_ARGUMENT;
    if (ctx->status) return ctx->status;
    if (!(max_norm > 0)) return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_clip_grad_norm: a norm of %g", max_norm);
    rw_status status = rw_gradients_check(ctx, "rw_clip_grad_norm");
    if (!status && !ctx->clipping) status = make(ctx);
    if (!status) status = plan(ctx);
    if (!status) status = run(ctx, max_norm);
    return status || !ret_norm ? status : read_norm(ctx, ret_norm);
}
