/* AdamW over the parameters of a context, and clipping of their joint gradient. See rewind/optim.h, rewind/tensor.h. */
#include "api/adamw.h"

#include "base/alloc.h"
#include "device/cpu/threads.h"
#include "ops/optim/optim.h"

#include <math.h>
#include <string.h>

struct state {
    struct rw_param *param;
    uint32_t version; /* of the parameter's contents that the master copy is one of */
    uint64_t step;    /* updates made: the bias correction of a parameter counts its own gradients */
};

struct rw_adamw {
    rw_context *ctx;
    const struct rw_optim_fns *fns;
    rw_adamw_params params;
    struct state *states;
    struct rw_optim_tensor *tensors; /* the states' */
    struct rw_optim_step *steps;
    size_t n, bytes;
    void *device; /* the device's own memory */
    size_t n_users; /* itself, until rw_adamw_destroy(), and the graphs that step with it: the last one frees it */
};

static rw_status device_failed(rw_context *ctx, rw_status status, const char *what)
{
    return rw_fail(ctx, status, "%s: %s", what, status == RW_ERR_MEMORY ? "out of memory" : "the device failed");
}

static double or_default(double x, double fallback)
{
    return x == 0 ? fallback : x < 0 ? 0 : x;
}

static size_t moment_size(const struct rw_param *p)
{
    return (size_t)p->numel * (p->tensor.dtype == RW_F64 ? sizeof(double) : sizeof(float));
}

static void *zeros(rw_adamw *opt, size_t bytes)
{
    void *const p = opt->ctx->device->alloc(opt->ctx->device_state, bytes);
    if (p && opt->ctx->device->clear(opt->ctx->device_state, p, bytes)) {
        opt->ctx->device->free(opt->ctx->device_state, p);
        return NULL;
    }
    if (p) opt->bytes += bytes;
    return p;
}

static rw_status copy_master(const rw_adamw *opt, size_t i)
{
    const struct rw_optim_tensor *const t = &opt->tensors[i];
    opt->states[i].version = opt->states[i].param->version;
    return opt->fns->widen(opt->ctx->device_state, t->master, t->param, t->dtype, t->n);
}

static rw_status add_state(rw_adamw *opt, struct rw_param *p)
{
    struct rw_optim_tensor *const t = &opt->tensors[opt->n];
    opt->states[opt->n] = (struct state){ .param = p };
    *t = (struct rw_optim_tensor){ .param = p->data, .grad = p->grad, .m = zeros(opt, moment_size(p)),
                                   .v = zeros(opt, moment_size(p)), .n = p->numel, .dtype = (rw_dtype)p->tensor.dtype };
    opt->n++;
    if (!t->m || !t->v) return RW_ERR_MEMORY;
    if (rw_dtype_size(t->dtype) != 2) return RW_OK;
    t->master = zeros(opt, (size_t)p->numel * sizeof(float));
    return t->master ? copy_master(opt, opt->n - 1) : RW_ERR_MEMORY;
}

static rw_status add_states(rw_adamw *opt)
{
    rw_context *const ctx = opt->ctx;
    size_t bytes = 0;
    opt->states = rw_calloc(ctx->n_params, sizeof *opt->states);
    opt->tensors = rw_calloc(ctx->n_params, sizeof *opt->tensors);
    opt->steps = rw_calloc(ctx->n_params, sizeof *opt->steps);
    if (!opt->states || !opt->tensors || !opt->steps) return RW_ERR_MEMORY;
    for (size_t i = 0; i < ctx->n_params; i++) {
        const rw_status status = ctx->params[i]->grad ? add_state(opt, ctx->params[i]) : RW_OK;
        if (status) return status;
    }
    if (!opt->fns->open) return RW_OK;
    const rw_status status = opt->fns->open(&opt->device, ctx->device_state, opt->tensors, opt->n, &bytes);
    opt->bytes += bytes;
    return status;
}

rw_status rw_adamw_create(rw_adamw **ret_opt, rw_context *ctx, const rw_adamw_params *params)
{
    if (!ret_opt || !ctx) return rw_fail_null(ctx, "rw_adamw_create", ctx ? "ret_opt" : "ctx");
    RW_ON_DEVICE_OF(ctx);
    rw_adamw *opt = rw_calloc(1, sizeof *opt);
    const rw_adamw_params p = params ? *params : (rw_adamw_params){ 0 };
    if (!opt) return rw_fail(ctx, RW_ERR_MEMORY, "rw_adamw_create: out of memory");
    opt->ctx = ctx;
    opt->n_users = 1;
    ctx->n_users++;
    opt->fns = rw_optim_of(ctx->kind);
    opt->params = (rw_adamw_params){ .lr = or_default(p.lr, 1e-3), .beta1 = or_default(p.beta1, 0.9),
                                     .beta2 = or_default(p.beta2, 0.999), .eps = or_default(p.eps, 1e-8),
                                     .weight_decay = or_default(p.weight_decay, 0.01), .decay_all = p.decay_all };
    const rw_status status = add_states(opt);
    ctx->memory.optimizer += opt->bytes;
    if (status) {
        rw_adamw_destroy(&opt);
        return device_failed(ctx, status, "rw_adamw_create");
    }
    *ret_opt = opt;
    return RW_OK;
}

static void free_states(rw_adamw *opt)
{
    rw_context *const ctx = opt->ctx;
    RW_ON_DEVICE_OF(ctx);
    if (opt->device) opt->fns->close(opt->device);
    for (size_t i = 0; i < opt->n; i++) {
        ctx->device->free(ctx->device_state, opt->tensors[i].m);
        ctx->device->free(ctx->device_state, opt->tensors[i].v);
        ctx->device->free(ctx->device_state, opt->tensors[i].master);
    }
    ctx->memory.optimizer -= opt->bytes;
    rw_free(opt->states);
    rw_free(opt->tensors);
    rw_free(opt->steps);
    rw_free(opt);
}

void rw_adamw_share(rw_adamw *opt)
{
    opt->n_users++;
}

void rw_adamw_release(rw_adamw *opt)
{
    rw_context *const ctx = opt->ctx;
    if (--opt->n_users) return;
    free_states(opt);
    rw_context_release(ctx);
}

void rw_adamw_destroy(rw_adamw **popt)
{
    if (!popt || !*popt) return;
    rw_adamw *const opt = *popt;
    *popt = NULL;
    rw_adamw_release(opt);
}

void rw_adamw_set_lr(rw_adamw *opt, double lr)
{
    if (opt) opt->params.lr = lr;
}

rw_context *rw_adamw_context(const rw_adamw *opt)
{
    return opt->ctx;
}

static struct rw_optim_step step_of(const rw_adamw *opt, size_t i)
{
    const rw_adamw_params *const p = &opt->params;
    const struct state *const s = &opt->states[i];
    const bool decays = p->decay_all || rw_layout_of(opt->ctx, &s->param->tensor)->rank > 1;
    return (struct rw_optim_step){ .lr = p->lr, .beta1 = p->beta1, .beta2 = p->beta2, .eps = p->eps,
                                   .weight_decay = decays ? p->weight_decay : 0,
                                   .correction1 = 1 - pow(p->beta1, (double)s->step),
                                   .correction2 = 1 - pow(p->beta2, (double)s->step), .due = true };
}

rw_status rw_adamw_prepare(rw_adamw *opt)
{
    rw_status status = RW_OK;
    RW_ON_DEVICE_OF(opt->ctx);
    for (size_t i = 0; i < opt->n && !status; i++) {
        struct state *const s = &opt->states[i];
        opt->steps[i].due = !s->param->grad_clear;
        if (!opt->steps[i].due) continue;
        /* written, loaded or initialized since the last step: the new contents count, not the old copy */
        if (opt->tensors[i].master && s->version != s->param->version) status = copy_master(opt, i);
        s->step++;
        s->version = ++s->param->version;
        opt->steps[i] = step_of(opt, i);
    }
    if (!status && opt->fns->prepare) status = opt->fns->prepare(opt->device, opt->steps);
    return status ? device_failed(opt->ctx, status, "rw_adamw_step") : RW_OK;
}

rw_status rw_adamw_queue(rw_adamw *opt)
{
    RW_ON_DEVICE_OF(opt->ctx);
    const rw_status status = opt->fns->update(opt->device, opt->tensors, opt->steps, opt->n,
                                              rw_threads_usable(opt->ctx->threads));
    return status ? device_failed(opt->ctx, status, "rw_adamw_step") : RW_OK;
}

rw_status rw_adamw_step(rw_adamw *opt)
{
    if (!opt) return RW_ERR_ARGUMENT;
    int threads;
    rw_status status = rw_gradients_check(opt->ctx, "rw_adamw_step");
    if (!status && opt->ctx->device->on_host) status = rw_team(opt->ctx, "rw_adamw_step", opt->ctx->threads, &threads);
    if (!status) status = rw_adamw_prepare(opt);
    return status ? status : rw_adamw_queue(opt);
}

rw_status rw_clip_grad_norm(rw_context *ctx, double max_norm, double *ret_norm)
{
    if (!ctx) return RW_ERR_ARGUMENT;
    if (!(max_norm > 0)) return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_clip_grad_norm: a norm of %g", max_norm);
    int threads = ctx->threads;
    rw_status status = rw_gradients_check(ctx, "rw_clip_grad_norm");
    if (!status && ctx->device->on_host) status = rw_team(ctx, "rw_clip_grad_norm", ctx->threads, &threads);
    if (status) return status;
    struct rw_clip_tensor *const gradients = rw_calloc(ctx->n_params, sizeof *gradients);
    if (!gradients) return rw_fail(ctx, RW_ERR_MEMORY, "rw_clip_grad_norm: out of memory");
    size_t n = 0;
    for (size_t i = 0; i < ctx->n_params; i++) {
        const struct rw_param *const p = ctx->params[i];
        if (!p->grad || p->grad_clear) continue;
        gradients[n++] = (struct rw_clip_tensor){ p->grad, p->numel, (rw_dtype)p->tensor.dtype };
    }
    RW_ON_DEVICE_OF(ctx);
    const struct rw_optim_fns *const fns = rw_optim_of(ctx->kind);
    status = fns->clip(ctx->device_state, gradients, n, max_norm, ret_norm, threads);
    rw_free(gradients);
    return status ? device_failed(ctx, status, "rw_clip_grad_norm") : RW_OK;
}
