/* Parameters and buffers: creation, contents, gradients. */
#include "record/param.h"

#include "base/alloc.h"
#include "record/context.h"
#include "record/own_ops.h"

#include <rewind/ops.h>

#include <stdio.h>
#include <string.h>

struct rw_param *rw_param_of(const rw_tensor *x)
{
    if (!x || !(x->flags & RW_VALUE_CONTEXT)) return NULL;
    return x->owner.ctx->params[x->id];
}

static void free_param(rw_context *ctx, struct rw_param *p)
{
    ctx->device->free(ctx->device_state, p->data);
    ctx->device->free(ctx->device_state, p->grad);
    rw_free(p->name);
    rw_free(p);
}

static bool fill_param(rw_context *ctx, struct rw_param *p, const char *name, rw_dtype dtype, rw_shape shape,
                       bool trainable)
{
    const rw_layout *const layout = rw_layout_dense(&ctx->layouts, shape);
    if (!layout || !rw_grow(&ctx->params, &ctx->cap_params, ctx->n_params, 1, sizeof *ctx->params)) return false;
    p->tensor = (struct rw_tensor){ .owner.ctx = ctx, .id = (uint32_t)ctx->n_params, .layout = layout->id,
                                    .dtype = (uint8_t)dtype, .producer = RW_NONE_ID, .leaf = RW_NONE_ID,
                                    .base = RW_NONE_ID,
                                    .flags = RW_VALUE_CONTEXT | (trainable ? RW_VALUE_REQUIRES : 0) };
    p->gradient = p->tensor;
    p->gradient.flags = RW_VALUE_CONTEXT | RW_VALUE_GRADIENT;
    p->numel = layout->numel;
    p->bytes = (size_t)layout->numel * rw_dtype_size(dtype);
    p->grad_clear = true;
    p->name = rw_strdup(name);
    p->data = ctx->device->alloc(ctx->device_state, p->bytes);
    if (!p->name || !p->data) return false;
    if (trainable && !(p->grad = ctx->device->alloc(ctx->device_state, p->bytes))) return false;
    return ctx->device->clear(ctx->device_state, p->data, p->bytes) == RW_OK;
}

static rw_tensor *create(rw_site at, rw_context *ctx, const char *what, const char *name, rw_dtype dtype,
                         rw_shape shape, bool trainable)
{
    if (!ctx) return NULL;
    if (!name || !*name || strlen(name) > 255) {
        rw_fail(ctx, RW_ERR_ARGUMENT, "%s at %s:%d: a name of 1 to 255 characters is needed", what, at.file, at.line);
        return NULL;
    }
    if (rw_param_find(ctx, name)) {
        rw_fail(ctx, RW_ERR_ARGUMENT, "%s at %s:%d: the name \"%s\" is taken", what, at.file, at.line, name);
        return NULL;
    }
    if (!rw_shape_check(ctx, what, at, dtype, shape)) return NULL;
    if (trainable && !rw_dtype_is_float(dtype)) {
        rw_fail(ctx, RW_ERR_DTYPE, "%s at %s:%d: parameter \"%s\" of type %s carries no gradient; use rw_buffer()",
                what, at.file, at.line, name, rw_dtype_name(dtype));
        return NULL;
    }
    struct rw_param *const p = rw_calloc(1, sizeof *p);
    if (!p || !fill_param(ctx, p, name, dtype, shape, trainable)) {
        if (p) free_param(ctx, p);
        rw_fail(ctx, RW_ERR_MEMORY, "%s at %s:%d: out of memory for \"%s\"", what, at.file, at.line, name);
        return NULL;
    }
    ctx->params[ctx->n_params++] = p;
    ctx->memory.parameters += p->bytes;
    if (p->grad) ctx->memory.gradients += p->bytes;
    return &p->tensor;
}

rw_tensor *rw_param_at(rw_site at, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape)
{
    return create(at, ctx, "rw_param", name, dtype, shape, true);
}

rw_tensor *rw_buffer_at(rw_site at, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape)
{
    return create(at, ctx, "rw_buffer", name, dtype, shape, false);
}

rw_tensor *rw_param_get(const rw_context *ctx, size_t index)
{
    return ctx && index < ctx->n_params ? &ctx->params[index]->tensor : NULL;
}

rw_tensor *rw_param_find(const rw_context *ctx, const char *name)
{
    for (size_t i = 0; ctx && name && i < ctx->n_params; i++)
        if (!strcmp(ctx->params[i]->name, name)) return &ctx->params[i]->tensor;
    return NULL;
}

/* Contents */

static rw_status write_gradient(rw_context *ctx, struct rw_param *p, const void *data)
{
    const rw_status status = ctx->device->upload(ctx->device_state, p->grad, data, p->bytes);
    p->grad_spoiled = status && !p->grad_clear;
    if (!status) p->grad_clear = false;
    return status;
}

rw_status rw_write(rw_tensor *x, const void *data, size_t bytes)
{
    struct rw_param *const p = rw_param_of(x);
    rw_context *const ctx = rw_tensor_context(x);
    if (!p)
        return rw_fail(ctx, RW_ERR_ARGUMENT,
                       "rw_write: needs a parameter, a buffer or a parameter's gradient; rw_input_write() is "
                       "for inputs");
    if (!data || bytes != p->bytes)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_write: %zu bytes given, \"%s\" has %zu", data ? bytes : 0, p->name,
                       p->bytes);
    const bool gradient = x->flags & RW_VALUE_GRADIENT;
    if (!gradient) p->version++;
    const rw_status status = gradient ? write_gradient(ctx, p, data)
                                      : ctx->device->upload(ctx->device_state, p->data, data, bytes);
    return status ? rw_fail(ctx, status, "rw_write: \"%s\": the copy to the device failed", p->name) : RW_OK;
}

void *rw_tensor_data(rw_tensor *x)
{
    struct rw_param *const p = rw_param_of(x);
    rw_context *const ctx = rw_tensor_context(x);
    if (!p) {
        rw_fail(ctx, RW_ERR_ARGUMENT,
                "rw_tensor_data: only parameters, buffers and gradients of parameters stay in one place");
        return NULL;
    }
    if (!(x->flags & RW_VALUE_GRADIENT)) return p->data;
    rw_status status = rw_gradient_check(ctx, p, "rw_tensor_data");
    if (!status && p->grad_clear) {
        status = ctx->device->clear(ctx->device_state, p->grad, p->bytes);
        if (status) rw_fail(ctx, status, "rw_tensor_data: \"%s\": the device failed", p->name);
        else p->grad_clear = false;
    }
    return status ? NULL : p->grad;
}

/* Fills on the host, then uploads, so that every device starts from the same bits. */
static rw_status fill(rw_tensor *x, const char *what, bool normal, double a, double b)
{
    struct rw_param *const p = rw_param_of(x);
    rw_context *const ctx = rw_tensor_context(x);
    if (!p || (x->flags & RW_VALUE_GRADIENT) || !rw_dtype_is_float((rw_dtype)x->dtype))
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s: needs a floating-point parameter or buffer", what);
    void *const host = rw_malloc_aligned(p->bytes, 256);
    if (!host) return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory", what);
    const rw_ticket ticket = { ctx->generator.seed, ctx->generator.offset };
    if (normal)
        rw_random_fill_normal(host, (rw_dtype)x->dtype, p->numel, ticket, a, b, ctx->threads);
    else
        rw_random_fill_uniform(host, (rw_dtype)x->dtype, p->numel, ticket, a, b, ctx->threads);
    if (normal || a != b) ctx->generator.offset += (uint64_t)(p->numel + 3) / 4;
    p->version++;
    const rw_status status = ctx->device->upload(ctx->device_state, p->data, host, p->bytes);
    rw_free_aligned(host);
    return status ? rw_fail(ctx, status, "%s: \"%s\": the copy to the device failed", what, p->name) : RW_OK;
}

rw_status rw_init_normal(rw_tensor *x, double mean, double std)
{
    return fill(x, "rw_init_normal", true, mean, std);
}

rw_status rw_init_uniform(rw_tensor *x, double lo, double hi)
{
    return fill(x, "rw_init_uniform", false, lo, hi);
}

rw_status rw_init_constant(rw_tensor *x, double value)
{
    return fill(x, "rw_init_constant", false, value, value);
}

/* Gradients */

void rw_zero_grad(rw_context *ctx)
{
    for (size_t i = 0; ctx && i < ctx->n_params; i++) {
        ctx->params[i]->grad_clear = true;
        ctx->params[i]->grad_spoiled = false;
    }
}

rw_status rw_gradient_check(rw_context *ctx, const struct rw_param *p, const char *what)
{
    if (!p->grad_spoiled) return RW_OK;
    return rw_fail(ctx, RW_ERR_CHANGED,
                   "%s: the gradient of \"%s\" holds a part of a backward that failed while it was "
                   "added to it; rw_zero_grad() makes it usable again",
                   what, p->name);
}

rw_status rw_gradients_check(rw_context *ctx, const char *what)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < ctx->n_params; i++) status = rw_gradient_check(ctx, ctx->params[i], what);
    return status;
}
