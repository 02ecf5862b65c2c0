/*
 * Delayed scaling: its buffers, and what moves the histories on when a step has been made. See rewind/precision.h; what
 * recording does with them is record/delayed.c's.
 */
#include "api/delayed.h"

#include "api/scaler.h"
#include "api/update.h"
#include "base/alloc.h"
#include "record/delayed.h"
#include "record/recipe.h"

#include <stdio.h>
#include <string.h>

#define MOST_HISTORY 1024
#define MOST_MARGIN 6

struct rw_delayed {
    struct rw_delayed_rows rows; /* first: recording finds them there */
    struct rw_recorder recorder;
    struct rw_delayed_attrs attrs;
    rw_tensor *const *found; /* while it is recorded */
    struct rw_update update;
    rw_scaler *planned_for; /* by which the update goes; NULL: by none */
    struct rw_dependent on_scaler;
    size_t n_users;         /* itself, until rw_delayed_destroy(), and the graphs that use it: the last one frees it */
};

/* ---- recording ---- */

/* In a step behind what notes its amaxes: commits run in the order in which they were recorded. */
static rw_status record(struct rw_recorder *r, rw_tape *t, rw_tensor **gradient)
{
    rw_delayed *const d = (rw_delayed *)(void *)((char *)r - offsetof(rw_delayed, recorder));
    rw_tensor *in[4];
    int n = 0;
    if (d->found) in[n++] = *d->found;
    in[n++] = &d->rows.amax->tensor;
    in[n++] = &d->rows.scale->tensor;
    in[n++] = &d->rows.history->tensor;
    return rw_update_record(t, "rw_delayed_update", &rw_op_delayed_update, in, n, &d->attrs, sizeof d->attrs, NULL);
}

struct rw_recorder *rw_delayed_recorder(rw_delayed *d, rw_tensor *const *found)
{
    d->recorder = (struct rw_recorder){ .record = record, .late = true };
    d->found = found;
    return &d->recorder;
}

/* ---- making and ending ---- */

static rw_status check_params(rw_context *ctx, const rw_delayed_params *p)
{
    const char *const field = p->history < 1 || p->history > MOST_HISTORY                   ? "history"
                              : p->rule != RW_DELAYED_MAX && p->rule != RW_DELAYED_MOST_RECENT ? "rule"
                              : p->margin < 0 || p->margin > MOST_MARGIN                    ? "margin"
                              : !*p->name || strlen(p->name) > 200                          ? "name"
                                                                                            : NULL;
    if (field) return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_delayed_create: %s makes no sense", field);
    if (p->gradient_dtype == RW_F8_E5M2 || p->gradient_dtype == RW_F8_E4M3) return RW_OK;
    return rw_fail(ctx, RW_ERR_DTYPE, "rw_delayed_create: there are no codes of gradients of %s",
                   rw_dtype_name(p->gradient_dtype));
}

static rw_delayed_params with_defaults(const rw_delayed_params *given)
{
    rw_delayed_params p = given ? *given : (rw_delayed_params){ 0 };
    if (!p.history) p.history = 16;
    if (!p.gradient_dtype) p.gradient_dtype = RW_F8_E5M2;
    if (!p.name) p.name = "fp8";
    return p;
}

static bool may_be_weight(const rw_context *ctx, const struct rw_param *p)
{
    const rw_dtype dtype = (rw_dtype)p->tensor.dtype;
    return rw_layout_of(ctx, &p->tensor)->rank == 2 && (dtype == RW_F32 || dtype == RW_BF16 || dtype == RW_F16);
}

/* Its own buffers, of an earlier one of the name, are no weights. */
static bool is_own(const struct rw_param *p, const char *name)
{
    const size_t n = strlen(name);
    return !strncmp(p->name, name, n) && !strcmp(p->name + n, ".history");
}

static rw_status number_rows(struct rw_delayed_rows *d, const char *name, int64_t *ret_n)
{
    const rw_context *const ctx = d->ctx;
    d->weights = rw_malloc((ctx->n_params + 1) * sizeof *d->weights);
    if (!d->weights) return rw_fail(d->ctx, RW_ERR_MEMORY, "rw_delayed_create: out of memory");
    for (size_t i = 0; i < ctx->n_params; i++) {
        const struct rw_param *const p = ctx->params[i];
        if (may_be_weight(ctx, p) && !is_own(p, name)) d->weights[d->n++] = p->serial;
    }
    *ret_n = (int64_t)d->n;
    return d->n ? RW_OK : rw_fail(d->ctx, RW_ERR_ARGUMENT, "rw_delayed_create: the context has no weights of rank 2");
}

/* The three buffers: those that are there fit, before one is made. */
struct buffers {
    char name[3][256];
    rw_shape shape[3];
    rw_tensor *found[3];
};

static rw_status find_buffers(rw_context *ctx, const rw_delayed_params *p, int64_t n, struct buffers *b)
{
    static const char *const what[] = { "scale", "history", "amax" };
    for (int i = 0; i < 3; i++) {
        snprintf(b->name[i], sizeof b->name[i], "%s.%s", p->name, what[i]);
        b->shape[i] = i == 1 ? RW_SHAPE(n * RW_DELAYED_OPERANDS, p->history) : RW_SHAPE(n * RW_DELAYED_OPERANDS);
        rw_tensor *const x = b->found[i] = rw_param_find(ctx, b->name[i]);
        if (x && (rw_tensor_kind_of(x) != RW_TENSOR_BUFFER || rw_tensor_dtype(x) != RW_F32 ||
                  !rw_shape_equal(rw_tensor_shape(x), b->shape[i])))
            return rw_fail(ctx, RW_ERR_ARGUMENT,
                           "rw_delayed_create: the name \"%s\" is taken by something else, or by histories of another "
                           "shape", b->name[i]);
    }
    return RW_OK;
}

static rw_status write_ones(rw_tensor *x)
{
    const int64_t n = rw_shape_numel(rw_tensor_shape(x));
    float *const ones = rw_malloc((size_t)n * sizeof *ones);
    if (!ones) return rw_fail(rw_tensor_context(x), RW_ERR_MEMORY, "rw_delayed_create: out of memory");
    for (int64_t i = 0; i < n; i++) ones[i] = 1;
    const rw_status status = rw_write(x, ones, (size_t)n * sizeof *ones);
    rw_free(ones);
    return status;
}

/* All three, or none that was not there. */
static rw_status make_buffers(rw_context *ctx, struct buffers *b, struct rw_param **ret)
{
    const rw_site at = { "rw_delayed_create", 0 };
    rw_status status = RW_OK;
    int n = 0;
    while (!status && n < 3) {
        rw_tensor *const x = b->found[n] ? b->found[n] : rw_buffer_at(at, ctx, b->name[n], RW_F32, b->shape[n]);
        if (!x) status = ctx->status;
        else ret[n++] = rw_param_of(x);
    }
    if (!status && !b->found[0]) status = write_ones(&ret[0]->tensor);
    while (status && n-- > 0)
        if (!b->found[n]) rw_buffer_take_back(ctx, ret[n]);
    return status;
}

static rw_status make(rw_delayed *d, const rw_delayed_params *p)
{
    struct buffers b;
    struct rw_param *made[3];
    int64_t n;
    rw_status status = number_rows(&d->rows, p->name, &n);
    if (!status) status = find_buffers(d->rows.ctx, p, n, &b);
    if (!status) status = make_buffers(d->rows.ctx, &b, made);
    if (status) return status;
    d->rows.scale = made[0];
    d->rows.history = made[1];
    d->rows.amax = made[2];
    return RW_OK;
}

rw_status rw_delayed_create(rw_delayed **ret_delayed, rw_context *ctx, const rw_delayed_params *params)
{
    if (!ret_delayed || !ctx) return rw_fail_null(ctx, "rw_delayed_create", ctx ? "ret_delayed" : "ctx");
    if (ctx->status) return ctx->status;
    const rw_delayed_params p = with_defaults(params);
    rw_status status = check_params(ctx, &p);
    if (status) return status;
    rw_delayed *d = rw_calloc(1, sizeof *d);
    if (!d) return rw_fail(ctx, RW_ERR_MEMORY, "rw_delayed_create: out of memory");
    *d = (rw_delayed){ .rows = { .ctx = ctx, .gradient_dtype = p.gradient_dtype },
                       .attrs = { p.gradient_dtype, p.rule == RW_DELAYED_MOST_RECENT, p.margin }, .n_users = 1 };
    ctx->n_users++;
    status = make(d, &p);
    if (status) rw_delayed_destroy(&d);
    else *ret_delayed = d;
    return status;
}

void rw_delayed_share(rw_delayed *d)
{
    d->n_users++;
}

static void close_update(rw_delayed *d)
{
    rw_update_close(&d->update);
    rw_depend_end(&d->on_scaler);
    d->planned_for = NULL;
}

/* The plan names a state of the scaler. */
static void scaler_gone(struct rw_dependent *on)
{
    close_update((rw_delayed *)(void *)((char *)on - offsetof(rw_delayed, on_scaler)));
}

void rw_delayed_release(rw_delayed *d)
{
    rw_context *const ctx = d->rows.ctx;
    if (--d->n_users) return;
    close_update(d);
    rw_free(d->rows.weights);
    rw_free(d);
    rw_context_release(ctx);
}

void rw_delayed_destroy(rw_delayed **pd)
{
    if (!pd || !*pd) return;
    rw_delayed *const d = *pd;
    *pd = NULL;
    rw_recipes_forget(d->rows.ctx, d);
    rw_delayed_release(d);
}

rw_context *rw_delayed_context(const rw_delayed *d)
{
    return d->rows.ctx;
}

int64_t rw_delayed_row(const rw_delayed *d, const rw_tensor *weight)
{
    const struct rw_param *const p = d ? rw_param_of(weight) : NULL;
    if (!p || weight->owner.ctx != d->rows.ctx || (weight->flags & RW_VALUE_GRADIENT)) return -1;
    const uint32_t row = rw_delayed_row_of(&d->rows, p->serial);
    return row == RW_NONE_ID ? -1 : (int64_t)row;
}

/* ---- a step ---- */

static rw_status plan(rw_delayed *d, rw_scaler *s)
{
    struct rw_update made;
    const rw_status status =
        rw_update_open(&made, d->rows.ctx, rw_delayed_recorder(d, s ? rw_scaler_found(s) : NULL));
    if (status) return status;
    close_update(d);
    d->update = made;
    d->planned_for = s;
    if (s) rw_scaler_depend(s, &d->on_scaler, scaler_gone);
    return RW_OK;
}

void rw_delayed_count(rw_delayed *d)
{
    d->rows.scale->version++;
    d->rows.history->version++;
    d->rows.amax->version++;
}

rw_status rw_delayed_update(rw_delayed *d, rw_scaler *s)
{
    if (!d) return RW_ERR_ARGUMENT;
    rw_context *const ctx = d->rows.ctx;
    if (ctx->status) return ctx->status;
    if (s && rw_scaler_context(s) != ctx)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_delayed_update: the scaler belongs to another context");
    const rw_status runs = rw_check_runs(ctx, "rw_delayed_update");
    if (runs) return runs;
    const bool planned = d->update.run && !rw_update_is_stale(&d->update) && d->planned_for == s;
    rw_status status = planned ? RW_OK : plan(d, s);
    if (!status) status = rw_update_run(&d->update);
    if (!status) rw_delayed_count(d);
    return status;
}
