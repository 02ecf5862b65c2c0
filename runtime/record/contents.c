/* What parameters and buffers hold: written, reached by address, set to initial values. */
#include "base/alloc.h"
#include "record/context.h"
#include "record/own_ops.h"
#include "record/param.h"

#include <math.h>

static rw_status write_gradient(rw_context *ctx, struct rw_param *p, const void *data)
{
    const rw_status room = rw_gradient_room(ctx, p, "rw_write");
    if (room) return room;
    const rw_status status = ctx->device->upload(ctx->device_state, p->grad, data, p->grad_bytes);
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
    const bool gradient = x->flags & RW_VALUE_GRADIENT;
    const size_t has = gradient ? p->grad_bytes : p->bytes;
    if (!data && bytes) return rw_fail_null(ctx, "rw_write", "data");
    if (bytes != has)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_write: %zu bytes given, %s\"%s\" has %zu", bytes,
                       gradient ? "the gradient of " : "", rw_param_name(p), has);
    if (!gradient) p->version++;
    const rw_status status = !bytes     ? RW_OK
                             : gradient ? write_gradient(ctx, p, data)
                                        : ctx->device->upload(ctx->device_state, p->data, data, bytes);
    return status ? rw_fail(ctx, status, "rw_write: \"%s\": the copy to the device failed", rw_param_name(p)) : RW_OK;
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
    if (rw_check_runs(ctx, "rw_tensor_data")) return NULL;
    if (!(x->flags & RW_VALUE_GRADIENT)) return p->data;
    rw_status status = rw_gradient_check(ctx, p, "rw_tensor_data");
    if (!status) status = rw_gradient_room(ctx, p, "rw_tensor_data");
    if (!status && p->grad_clear) {
        status = ctx->device->clear(ctx->device_state, p->grad, p->grad_bytes);
        if (status) rw_fail(ctx, status, "rw_tensor_data: \"%s\": the device failed", rw_param_name(p));
        else p->grad_clear = false;
    }
    return status ? NULL : p->grad;
}

static void count_fill(struct rw_param *p, bool draws)
{
    if (draws) p->tensor.owner.ctx->generator.offset += (uint64_t)(p->numel + 3) / 4;
    p->version++;
}

/* Fills on the host, then uploads, so that every device starts from the same bits. */
static rw_status fill(rw_tensor *x, const char *what, bool normal, double a, double b)
{
    struct rw_param *const p = rw_param_of(x);
    rw_context *const ctx = rw_tensor_context(x);
    if (!p || (x->flags & RW_VALUE_GRADIENT) || !rw_dtype_is_float((rw_dtype)x->dtype))
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s: needs a floating-point parameter or buffer", what);
    if (!isfinite(a) || !isfinite(b) || b < (normal ? 0 : a))
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s: %g and %g", what, a, b);
    if (ctx->plan_only) { /* of what it would fill the host may not have so much */
        count_fill(p, normal || a != b);
        return RW_OK;
    }
    int threads;
    if (rw_team(ctx, what, ctx->threads, &threads)) return ctx->status;
    void *const host = rw_malloc_aligned(p->bytes, 256);
    if (!host) return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory", what);
    const rw_ticket ticket = { ctx->generator.seed, ctx->generator.offset };
    if (normal)
        rw_random_fill_normal(host, (rw_dtype)x->dtype, p->numel, ticket, a, b, threads);
    else
        rw_random_fill_uniform(host, (rw_dtype)x->dtype, p->numel, ticket, a, b, threads);
    count_fill(p, normal || a != b);
    const rw_status status = ctx->device->upload(ctx->device_state, p->data, host, p->bytes);
    rw_free_aligned(host);
    return status ? rw_fail(ctx, status, "%s: \"%s\": the copy to the device failed", what, rw_param_name(p)) : RW_OK;
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
