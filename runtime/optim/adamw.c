/* AdamW over the parameters of a context, and clipping of their joint gradient. See rewind/optim.h, rewind/tensor.h. */
#include "optim/adamw.h"

#include "memory/alloc.h"
#include "ops/optim/optim.h"

#include <math.h>
#include <string.h>

struct state {
    struct rw_param *param;
    void *m, *v, *master;
    uint32_t version; /* of the parameter's contents that master is a copy of */
    uint64_t step;    /* updates made: the bias correction of a parameter counts its own gradients */
    bool due;         /* has a gradient in the step that is prepared */
};

struct rw_adamw {
    rw_context *ctx;
    rw_adamw_params params;
    struct state *states;
    size_t n, bytes;
};

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

static void copy_master(struct state *s)
{
    for (int64_t i = 0; i < s->param->numel; i++) {
        const uint32_t bits = (uint32_t)((const uint16_t *)s->param->data)[i] << 16;
        memcpy((float *)s->master + i, &bits, sizeof bits);
    }
    s->version = s->param->version;
}

static bool add_state(rw_adamw *opt, struct rw_param *p)
{
    struct state *const s = &opt->states[opt->n++];
    *s = (struct state){ .param = p, .m = zeros(opt, moment_size(p)), .v = zeros(opt, moment_size(p)) };
    if (!s->m || !s->v) return false;
    if (p->tensor.dtype != RW_BF16) return true;
    s->master = zeros(opt, (size_t)p->numel * sizeof(float));
    if (s->master) copy_master(s);
    return s->master != NULL;
}

rw_status rw_adamw_create(rw_adamw **ret_opt, rw_context *ctx, const rw_adamw_params *params)
{
    if (!ret_opt || !ctx) return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_adamw_create: NULL argument");
    rw_adamw *opt = rw_calloc(1, sizeof *opt);
    const rw_adamw_params p = params ? *params : (rw_adamw_params){ 0 };
    bool ok = opt != NULL;
    if (ok) {
        opt->ctx = ctx;
        opt->params = (rw_adamw_params){ .lr = or_default(p.lr, 1e-3), .beta1 = or_default(p.beta1, 0.9),
                                         .beta2 = or_default(p.beta2, 0.999), .eps = or_default(p.eps, 1e-8),
                                         .weight_decay = or_default(p.weight_decay, 0.01), .decay_all = p.decay_all };
        opt->states = rw_calloc(ctx->n_params, sizeof *opt->states);
        ok = opt->states != NULL;
    }
    for (size_t i = 0; ok && i < ctx->n_params; i++)
        if (ctx->params[i]->grad) ok = add_state(opt, ctx->params[i]);
    if (opt) ctx->memory.optimizer += opt->bytes;
    if (!ok) {
        rw_adamw_destroy(&opt);
        return rw_fail(ctx, RW_ERR_MEMORY, "rw_adamw_create: out of memory");
    }
    *ret_opt = opt;
    return RW_OK;
}

void rw_adamw_destroy(rw_adamw **popt)
{
    if (!popt || !*popt) return;
    rw_adamw *const opt = *popt;
    rw_context *const ctx = opt->ctx;
    for (size_t i = 0; i < opt->n; i++) {
        ctx->device->free(ctx->device_state, opt->states[i].m);
        ctx->device->free(ctx->device_state, opt->states[i].v);
        ctx->device->free(ctx->device_state, opt->states[i].master);
    }
    ctx->memory.optimizer -= opt->bytes;
    rw_free(opt->states);
    rw_free(opt);
    *popt = NULL;
}

void rw_adamw_set_lr(rw_adamw *opt, double lr)
{
    if (opt) opt->params.lr = lr;
}

rw_context *rw_adamw_context(const rw_adamw *opt)
{
    return opt->ctx;
}

rw_status rw_adamw_prepare(rw_adamw *opt)
{
    for (size_t i = 0; i < opt->n; i++) {
        struct state *const s = &opt->states[i];
        s->due = !s->param->grad_clear;
        if (!s->due) continue;
        /* written, loaded or initialized since the last step: the new contents count, not the old copy */
        if (s->master && s->version != s->param->version) copy_master(s);
        s->step++;
        s->version = ++s->param->version;
    }
    return RW_OK;
}

static void update(const rw_adamw *opt, const struct state *s)
{
    const rw_adamw_params *const p = &opt->params;
    const bool decays = p->decay_all || rw_tensor_layout(opt->ctx, &s->param->tensor)->rank > 1;
    const struct rw_adamw_update u = { .param = s->param->data, .grad = s->param->grad, .m = s->m, .v = s->v, .master = s->master,
                                       .dtype = (rw_dtype)s->param->tensor.dtype, .n = s->param->numel, .lr = p->lr,
                                       .beta1 = p->beta1, .beta2 = p->beta2, .eps = p->eps,
                                       .weight_decay = decays ? p->weight_decay : 0,
                                       .correction1 = 1 - pow(p->beta1, (double)s->step),
                                       .correction2 = 1 - pow(p->beta2, (double)s->step), .threads = opt->ctx->threads };
    rw_adamw_update_cpu(&u);
}

rw_status rw_adamw_queue(rw_adamw *opt)
{
    for (size_t i = 0; i < opt->n; i++)
        if (opt->states[i].due) update(opt, &opt->states[i]);
    return RW_OK;
}

rw_status rw_adamw_step(rw_adamw *opt)
{
    if (!opt) return RW_ERR_ARGUMENT;
    rw_status status = rw_gradients_check(opt->ctx, "rw_adamw_step");
    if (!status) status = rw_adamw_prepare(opt);
    return status ? status : rw_adamw_queue(opt);
}

rw_status rw_clip_grad_norm(rw_context *ctx, double max_norm, double *ret_norm)
{
    if (!ctx) return RW_ERR_ARGUMENT;
    if (!(max_norm > 0)) return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_clip_grad_norm: a norm of %g", max_norm);
    const rw_status spoiled = rw_gradients_check(ctx, "rw_clip_grad_norm");
    if (spoiled) return spoiled;
    double sum = 0;
    for (size_t i = 0; i < ctx->n_params; i++) {
        const struct rw_param *const p = ctx->params[i];
        if (p->grad && !p->grad_clear) sum += rw_sum_squares_cpu(p->grad, (rw_dtype)p->tensor.dtype, p->numel, ctx->threads);
    }
    const double norm = sqrt(sum);
    for (size_t i = 0; norm > max_norm && i < ctx->n_params; i++) {
        const struct rw_param *const p = ctx->params[i];
        if (p->grad && !p->grad_clear) rw_scale_buffer_cpu(p->grad, (rw_dtype)p->tensor.dtype, p->numel, max_norm / norm, ctx->threads);
    }
    if (ret_norm) *ret_norm = norm;
    return RW_OK;
}
