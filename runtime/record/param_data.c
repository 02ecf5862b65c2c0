/* Contents of parameters and buffers: writes, addresses, initial values. */
#include "base/alloc.h"
#include "ops/random/random_fill.h"
#include "record/context.h"
#include "record/gradient_state.h"
#include "record/param.h"

#include <float.h>
#include <math.h>

static rw_status write_gradient(rw_context *ctx, struct rw_param *p, const void *data)
{
    struct rw_gradient *const g = &p->gradient;
    const rw_status room = rw_gradient_room(ctx, p, "rw_write");
    if (room) return room;
    const rw_status status = ctx->device->upload(ctx->device_state, g->data, data, g->bytes);
    if (status) rw_gradient_spoil(g);
    else rw_gradient_given(ctx, g);
    return status;
}

rw_status rw_write(rw_tensor *x, const void *data, size_t bytes)
{
    RW_ENTER(rw_tensor_context(x), RW_ERR_ARGUMENT);
    struct rw_param *const p = rw_param_of(x);
    rw_context *const ctx = rw_tensor_context(x);
    if (!p)
        return rw_fail(ctx, RW_ERR_ARGUMENT,
                       "rw_write(x): expected a parameter, a buffer or a parameter's gradient, got another tensor; "
                       "rw_input_write() is for inputs");
    const bool gradient = x->flags & RW_VALUE_GRADIENT;
    const size_t has = gradient ? p->gradient.bytes : p->bytes;
    if (!data && bytes) return rw_fail_null(ctx, "rw_write", "data");
    if (bytes != has)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_write(bytes): expected %zu, the size of %s\"%s\", got %zu", has,
                       gradient ? "the gradient of " : "", rw_param_name(p), bytes);
    if (!gradient) p->version++;
    const rw_status status = !bytes     ? RW_OK
                             : gradient ? write_gradient(ctx, p, data)
                                        : ctx->device->upload(ctx->device_state, p->data, data, bytes);
    return status ? rw_fail(ctx, status, "rw_write: \"%s\": the copy to the device failed", rw_param_name(p)) : RW_OK;
}

void *rw_tensor_data(rw_tensor *x)
{
    RW_ENTER(rw_tensor_context(x), NULL);
    struct rw_param *const p = rw_param_of(x);
    rw_context *const ctx = rw_tensor_context(x);
    if (!p) {
        rw_fail(ctx, RW_ERR_ARGUMENT,
                "rw_tensor_data(x): expected a parameter, a buffer or a parameter's gradient, got another tensor, "
                "whose memory is reused");
        return NULL;
    }
    if (rw_check_runs(ctx, "rw_tensor_data")) return NULL;
    return x->flags & RW_VALUE_GRADIENT ? rw_gradient_share(ctx, p, "rw_tensor_data") : p->data;
}

static void count_fill(struct rw_param *p, bool draws)
{
    if (draws) p->tensor.owner.ctx->generator.offset += (uint64_t)(p->numel + 3) / 4;
    p->version++;
}

/* The largest finite number of a floating-point type. */
static double largest_of(rw_dtype dtype)
{
    return dtype == RW_F64 ? DBL_MAX : dtype == RW_F32 ? (double)FLT_MAX : dtype == RW_BF16 ? 0x1.fep127 : 65504;
}

/* A mean and a deviation, or the bounds of an interval: a width that is not finite would make every number infinite. */
static rw_status check_numbers(rw_context *ctx, const struct rw_param *p, const char *what, bool normal, double a,
                               double b)
{
    const rw_dtype dtype = (rw_dtype)p->tensor.dtype;
    const double most = largest_of(dtype);
    const char *expected = NULL;
    if (!isfinite(a) || !isfinite(b)) expected = "finite numbers";
    else if (normal && b < 0) expected = "a std of 0 or more";
    else if (!normal && b < a) expected = "lo at most hi";
    else if (!normal && !isfinite(b - a)) expected = "bounds whose difference is finite";
    else if (fabs(a) > most || fabs(b) > most) expected = "values that the parameter's type can hold";
    if (!expected) return RW_OK;
    return rw_fail(ctx, RW_ERR_ARGUMENT, "%s: %s of \"%s\" (%s): expected %s, got %g and %g", what,
                   normal ? "mean, std" : "lo, hi", p->name, rw_dtype_name(dtype), expected, a, b);
}

/* Fills on the host, then uploads, so that every device starts from the same bits. */
static rw_status fill(rw_tensor *x, const char *what, bool normal, double a, double b)
{
    struct rw_param *const p = rw_param_of(x);
    rw_context *const ctx = rw_tensor_context(x);
    if (!p || (x->flags & RW_VALUE_GRADIENT) || !rw_dtype_is_float((rw_dtype)x->dtype))
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s(x): expected a floating-point parameter or buffer, got another tensor",
                       what);
    const rw_status status = check_numbers(ctx, p, what, normal, a, b);
    if (status) return status;
    if (ctx->plan_only) { /* the host may not have the memory to generate it */
        count_fill(p, normal || a != b);
        return RW_OK;
    }
    if (rw_start_threads(ctx, what, ctx->threads)) return ctx->status;
    void *const host = rw_malloc_aligned(p->bytes, 256);
    if (!host) return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory", what);
    const rw_ticket ticket = { ctx->generator.seed, ctx->generator.offset };
    if (normal)
        rw_random_fill_normal(host, (rw_dtype)x->dtype, p->numel, ticket, a, b, ctx->threads);
    else
        rw_random_fill_uniform(host, (rw_dtype)x->dtype, p->numel, ticket, a, b, ctx->threads);
    count_fill(p, normal || a != b);
    const rw_status moved = ctx->device->upload(ctx->device_state, p->data, host, p->bytes);
    rw_free_aligned(host);
    return moved ? rw_fail(ctx, moved, "%s: \"%s\": the copy to the device failed", what, rw_param_name(p)) : RW_OK;
}

rw_status rw_init_normal(rw_tensor *x, double mean, double std)
{
    RW_ENTER(rw_tensor_context(x), RW_ERR_ARGUMENT);
    return fill(x, "rw_init_normal", true, mean, std);
}

rw_status rw_init_uniform(rw_tensor *x, double lo, double hi)
{
    RW_ENTER(rw_tensor_context(x), RW_ERR_ARGUMENT);
    return fill(x, "rw_init_uniform", false, lo, hi);
}

rw_status rw_init_constant(rw_tensor *x, double value)
{
    RW_ENTER(rw_tensor_context(x), RW_ERR_ARGUMENT);
    return fill(x, "rw_init_constant", false, value, value);
}
