/* Transitions between the states of a gradient, its memory, and its scale. */
#include "record/gradient_state.h"

#include "record/context.h"

/* The scale of a context's gradients. */
struct scale {
    uint64_t n_unscalings; /* so far: their numbers */
    uint64_t unscaling;    /* unscaling of what a caller writes now; 0: it is scaled, as what backward adds */
    const struct rw_param *buffer; /* buffer of the scaler whose scale backward used; NULL: none */
    uint32_t version;              /* of that buffer at that time */
};

static struct rw_extension scale_extension = { .name = "gradient_scale", .size = sizeof(struct scale) };

rw_status rw_gradients_open(rw_context *ctx)
{
    return rw_extension_make(&ctx->extensions, &scale_extension) ? RW_OK : RW_ERR_MEMORY;
}

static struct scale *scale_of(const rw_context *ctx)
{
    return rw_extension_find(&ctx->extensions, &scale_extension);
}

/* ---- reading ---- */

rw_status rw_gradient_check(rw_context *ctx, const struct rw_param *p, const char *what)
{
    if (p->gradient.state != RW_GRADIENT_SPOILED) return RW_OK;
    return rw_fail(ctx, RW_ERR_MODIFIED,
                   "%s: the gradient of \"%s\" holds a partial sum of a backward that failed while it was "
                   "added to it; call rw_zero_grad() to use it again",
                   what, p->name);
}

rw_status rw_gradients_check(rw_context *ctx, const char *what)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < ctx->n_params; i++) status = rw_gradient_check(ctx, ctx->params[i], what);
    return status;
}

rw_status rw_gradient_read(rw_context *ctx, const struct rw_param *p, const char *what, const void **ret)
{
    *ret = rw_gradient_is_clear(&p->gradient) ? NULL : p->gradient.data;
    return rw_gradient_check(ctx, p, what);
}

static rw_status store_zeros(rw_context *ctx, const struct rw_param *p, const char *what)
{
    const rw_status status = ctx->device->clear(ctx->device_state, p->gradient.data, p->gradient.bytes);
    return status ? rw_fail(ctx, status, "%s: the gradient of \"%s\" could not be cleared", what, p->name) : RW_OK;
}

rw_status rw_gradient_store(rw_context *ctx, struct rw_param *p, const char *what)
{
    if (!rw_gradient_is_clear(&p->gradient)) return RW_OK;
    const rw_status status = rw_gradient_room(ctx, p, what);
    return status ? status : store_zeros(ctx, p, what);
}

/* ---- writing ---- */

rw_status rw_gradient_room(rw_context *ctx, struct rw_param *p, const char *what)
{
    struct rw_gradient *const g = &p->gradient;
    if (g->data) return RW_OK;
    g->data = rw_context_alloc(ctx, g->bytes, false);
    if (!g->data) return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory for the gradient of \"%s\"", what, p->name);
    ctx->memory.gradients += g->bytes;
    return RW_OK;
}

void rw_gradient_written(struct rw_gradient *g)
{
    g->state = RW_GRADIENT_SUM;
    g->version++;
}

void rw_gradient_given(rw_context *ctx, struct rw_gradient *g)
{
    rw_gradient_written(g);
    g->unscaled = scale_of(ctx)->unscaling;
    g->unused = false; /* it contains nothing of an earlier backward */
}

void rw_gradient_spoil(struct rw_gradient *g)
{
    if (rw_gradient_is_clear(g)) return;
    g->state = RW_GRADIENT_SPOILED;
    g->version++;
}

void rw_gradient_used_up(struct rw_gradient *g)
{
    if (!g->shared) g->state = RW_GRADIENT_CLEAR;
}

void rw_gradients_changed(rw_context *ctx)
{
    for (size_t i = 0; i < ctx->n_params; i++)
        ctx->params[i]->gradient.version += !rw_gradient_is_clear(&ctx->params[i]->gradient);
}

/* A shared gradient that is zero does not count: its caller writes there. */
const struct rw_param *rw_gradient_unused(const rw_context *ctx)
{
    for (size_t i = 0; i < ctx->n_params; i++)
        if (ctx->params[i]->gradient.unused) return ctx->params[i];
    return NULL;
}

static void clear(rw_context *ctx, struct rw_param *p)
{
    struct rw_gradient *const g = &p->gradient;
    g->unscaled = 0;
    g->unused = false;
    if (rw_gradient_is_clear(g)) return;
    g->version++;
    g->state = !g->shared ? RW_GRADIENT_CLEAR
               : store_zeros(ctx, p, "rw_zero_grad") ? RW_GRADIENT_SPOILED
                                                     : RW_GRADIENT_SUM;
}

void rw_zero_grad(rw_context *ctx)
{
    RW_ENTER(ctx, );
    if (!ctx) return;
    struct scale *const s = scale_of(ctx);
    for (size_t i = 0; i < ctx->n_params; i++) clear(ctx, ctx->params[i]);
    s->unscaling = 0;
    s->buffer = NULL;
}

void rw_gradient_give_up(rw_context *ctx, struct rw_param *p)
{
    struct rw_gradient *const g = &p->gradient;
    if (!rw_gradient_can_give_up(g)) return;
    ctx->device->free(ctx->device_state, g->data);
    g->data = NULL;
    ctx->memory.gradients -= g->bytes;
}

void *rw_gradient_share(rw_context *ctx, struct rw_param *p, const char *what)
{
    struct rw_gradient *const g = &p->gradient;
    rw_status status = rw_gradient_check(ctx, p, what);
    if (!status) status = rw_gradient_room(ctx, p, what);
    if (!status) status = rw_gradient_store(ctx, p, what);
    if (status) return NULL;
    if (rw_gradient_is_clear(g)) rw_gradient_given(ctx, g);
    else g->version++; /* the caller may write now */
    g->shared = true;
    return g->data;
}

/* ---- the scale ---- */

rw_status rw_gradient_check_sum(rw_context *ctx, const struct rw_param *p, const char *what)
{
    const struct rw_gradient *const g = &p->gradient;
    if (!g->unscaled || rw_gradient_is_clear(g)) return RW_OK;
    return rw_fail(ctx, RW_ERR_MODIFIED,
                   "%s: the gradient of \"%s\" was unscaled by a scaler; backward would add gradients of another "
                   "scale to it; call rw_zero_grad() first", what, p->name);
}

rw_status rw_gradients_check_scale(rw_context *ctx, const struct rw_param *buffer, const char *what)
{
    const struct scale *const s = scale_of(ctx);
    if (!s->buffer) return RW_OK;
    if (s->buffer != buffer)
        return rw_fail(ctx, RW_ERR_MODIFIED,
                       "%s: backward multiplied the gradients by the scale of another scaler, \"%s\"; expected \"%s\"; "
                       "call rw_zero_grad() between them", what, s->buffer->name, buffer->name);
    if (s->version == buffer->version) return RW_OK;
    return rw_fail(ctx, RW_ERR_MODIFIED,
                   "%s: the scale in \"%s\" changed after backward had multiplied gradients by it; call rw_zero_grad() "
                   "and run backward again", what, buffer->name);
}

rw_status rw_gradients_check_unscaled(rw_context *ctx, const char *what)
{
    const struct rw_param *const buffer = scale_of(ctx)->buffer;
    if (!buffer) return RW_OK;
    return rw_fail(ctx, RW_ERR_MODIFIED,
                   "%s: expected unscaled gradients, got gradients that rw_scaler_backward() has multiplied by the "
                   "scale in \"%s\"; call rw_scaler_unscale() first, or rw_scaler_step(), or rw_zero_grad() to drop "
                   "them", what, buffer->name);
}

void rw_gradients_scaled(rw_context *ctx, const struct rw_param *buffer)
{
    struct scale *const s = scale_of(ctx);
    s->buffer = buffer;
    s->version = buffer->version;
}

rw_status rw_gradients_unscaling(rw_context *ctx, const char *what, uint64_t *ret)
{
    const struct rw_param *first = NULL;
    for (size_t i = 0; i < ctx->n_params; i++) {
        const struct rw_param *const p = ctx->params[i];
        if (rw_gradient_is_clear(&p->gradient)) continue;
        if (!first) first = p;
        if (p->gradient.unscaled == first->gradient.unscaled) continue;
        return rw_fail(ctx, RW_ERR_MODIFIED,
                       "%s: the gradients of \"%s\" and \"%s\" have different scales: one was unscaled, the other was "
                       "not, or by another call; call rw_zero_grad() before backward", what, first->name, p->name);
    }
    if (first) *ret = first->gradient.unscaled;
    return RW_OK;
}

uint64_t rw_gradients_unscaled(rw_context *ctx)
{
    struct scale *const s = scale_of(ctx);
    s->unscaling = ++s->n_unscalings;
    s->buffer = NULL;
    for (size_t i = 0; i < ctx->n_params; i++) {
        struct rw_gradient *const g = &ctx->params[i]->gradient;
        if (rw_gradient_is_clear(g)) continue;
        g->unscaled = s->unscaling;
        g->version++;
    }
    return s->unscaling;
}

void rw_gradients_unscaled_end(rw_context *ctx, uint64_t unscaling)
{
    struct scale *const s = scale_of(ctx);
    if (s->unscaling == unscaling) s->unscaling = 0;
}
