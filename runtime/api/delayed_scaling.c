/* Delayed scaling: its buffers, and the update of the histories after a step. record/delayed_scales.c records their
   use. */
#include "api/cached_update_plan.h"
#include "api/recorder_list.h"
#include "api/scaler.h"
#include "base/alloc.h"
#include "ops/float8/fp8_scaling_ops.h"
#include "record/delayed_scales.h"
#include "record/precision_recipe.h"
#include "record/recipe_slots.h"

#include <stdio.h>
#include <string.h>

#define HISTORY_MAX 1024
#define MARGIN_MAX 6

/* Delayed scaling as a recorder: in a list, and in the plan of its call. */
struct recorder {
    struct rw_step_recorder recorder; /* must be first */
    rw_delayed_scaling *d;
    bool holds; /* it is one of its users */
};

struct rw_delayed_scaling {
    struct rw_delayed_rows rows; /* must be first: recording finds them there */
    struct recorder own;
    struct rw_delayed_attrs attrs;
    struct rw_update update;
    rw_scaler *planned_for; /* the scaler that the planned update uses; NULL: none */
    struct rw_dependent on_scaler;
    struct rw_dependent *dependents; /* plans of rw_backward_with() */
    size_t n_users;         /* itself, until it is destroyed, and the graphs that use it: the last one frees it */
};

/* ---- recording ---- */

/*
 * Records the update. In a step it follows the commits that store amaxes: commits run in the order of their recording.
 */
static rw_status finish(struct rw_step_recorder *r, struct rw_recording *now)
{
    const rw_delayed_scaling *const d = ((struct recorder *)r)->d;
    rw_tensor *in[4];
    int n = 0;
    if (now->skip) in[n++] = now->skip;
    in[n++] = &d->rows.amax->tensor;
    in[n++] = &d->rows.scale->tensor;
    in[n++] = &d->rows.history->tensor;
    return rw_update_record(now->t, "rw_delayed_scaling_update", &rw_op_delayed_update, in, n, &d->attrs,
                            sizeof d->attrs, NULL);
}

static void count(rw_delayed_scaling *d)
{
    d->rows.scale->version++;
    d->rows.history->version++;
    d->rows.amax->version++;
}

static void release(rw_delayed_scaling *d);

/* ---- in a list ---- */

static rw_status check_given(const rw_recorder *given, const struct rw_recorder_check *at)
{
    const rw_delayed_scaling *const d = given->of_;
    if (!d) return rw_recorder_refuse(at, RW_ERR_ARGUMENT, "d", "expected delayed scaling, got NULL");
    if (d->rows.ctx == at->t->ctx) return RW_OK;
    return rw_recorder_refuse(at, RW_ERR_ARGUMENT, "d", "expected delayed scaling of the tape's context, got delayed "
                              "scaling of another context");
}

static rw_status open_recorder(const rw_recorder *given, const struct rw_recorder_use *use,
                               struct rw_step_recorder **ret)
{
    struct recorder *const x = rw_calloc(1, sizeof *x);
    if (!x) return rw_fail(use->ctx, RW_ERR_MEMORY, "%s: out of memory", use->call);
    x->d = given->of_;
    x->holds = use->is_graph;
    x->d->n_users += x->holds;
    *ret = &x->recorder;
    return RW_OK;
}

static void close_recorder(struct rw_step_recorder *r, bool never_ran)
{
    const struct recorder *const x = (struct recorder *)r;
    if (x->holds) release(x->d);
    rw_free(r);
}

static void depend(struct rw_step_recorder *r, struct rw_dependent *d, void (*gone)(struct rw_dependent *d))
{
    rw_depend(&((struct recorder *)r)->d->dependents, d, gone);
}

static void launched(struct rw_step_recorder *r)
{
    count(((struct recorder *)r)->d);
}

static const struct rw_recorder_kind kind = { .name = "rw_record_delayed_scaling",
                                              .stage = RW_STAGE_AFTER,
                                              .check = check_given,
                                              .open = open_recorder,
                                              .close = close_recorder,
                                              .depend = depend,
                                              .finish = finish,
                                              .launched = launched };

rw_recorder rw_record_delayed_scaling(rw_delayed_scaling *d)
{
    RW_LOOKS_ONLY;
    return (rw_recorder){ .kind_ = &kind, .of_ = d };
}

/* ---- creation and destruction ---- */

/* Checks parameters that have their defaults already. */
static rw_status check_params(rw_context *ctx, const rw_delayed_scaling_params *p)
{
    if (p->history < 1 || p->history > HISTORY_MAX)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_delayed_scaling_create(history): expected 1 to %d, got %lld",
                       HISTORY_MAX, (long long)p->history);
    if (p->rule != RW_DELAYED_MAX && p->rule != RW_DELAYED_MOST_RECENT)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_delayed_scaling_create(rule): expected RW_DELAYED_MAX (%d) or "
                       "RW_DELAYED_MOST_RECENT (%d), got %d", RW_DELAYED_MAX, RW_DELAYED_MOST_RECENT, (int)p->rule);
    if (p->margin < 0 || p->margin > MARGIN_MAX)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_delayed_scaling_create(margin): expected 0 to %d, got %d", MARGIN_MAX,
                       (int)p->margin);
    if (!*p->name || strlen(p->name) > 200)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_delayed_scaling_create(name): expected 1 to 200 bytes, got %zu",
                       strlen(p->name));
    if (p->gradient_dtype == RW_F8_E5M2 || p->gradient_dtype == RW_F8_E4M3) return RW_OK;
    return rw_fail(ctx, RW_ERR_DTYPE, "rw_delayed_scaling_create(gradient_dtype): expected f8_e4m3 or f8_e5m2, got %s",
                   rw_dtype_name(p->gradient_dtype));
}

static rw_delayed_scaling_params with_defaults(const rw_delayed_scaling_params *given)
{
    rw_delayed_scaling_params p = given ? *given : (rw_delayed_scaling_params){ 0 };
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

/* Buffers of an earlier delayed scaling with this name are not weights. */
static bool is_own(const struct rw_param *p, const char *name)
{
    const size_t n = strlen(name);
    return !strncmp(p->name, name, n) && !strcmp(p->name + n, ".history");
}

/* Numbers the weights of rank 2: each has rows in the buffers. */
static rw_status number_rows(struct rw_delayed_rows *d, const char *name, int64_t *ret_n)
{
    const rw_context *const ctx = d->ctx;
    d->weights = rw_malloc((ctx->n_params + 1) * sizeof *d->weights);
    if (!d->weights) return rw_fail(d->ctx, RW_ERR_MEMORY, "rw_delayed_scaling_create: out of memory");
    for (size_t i = 0; i < ctx->n_params; i++) {
        const struct rw_param *const p = ctx->params[i];
        if (may_be_weight(ctx, p) && !is_own(p, name)) d->weights[d->n++] = p->serial;
    }
    *ret_n = (int64_t)d->n;
    if (d->n) return RW_OK;
    return rw_fail(d->ctx, RW_ERR_ARGUMENT, "rw_delayed_scaling_create(ctx): expected a weight of rank 2, got none");
}

/* The three buffers. Existing ones are checked before a new one is created. */
struct buffers {
    char name[3][256];
    rw_shape shape[3];
    rw_tensor *found[3];
};

/* Finds existing buffers by name, and checks their shapes. */
static rw_status find_buffers(rw_context *ctx, const rw_delayed_scaling_params *p, int64_t n, struct buffers *b)
{
    static const char *const what[] = { "scale", "history", "amax" };
    for (int i = 0; i < 3; i++) {
        snprintf(b->name[i], sizeof b->name[i], "%s.%s", p->name, what[i]);
        b->shape[i] = i == 1 ? RW_SHAPE(n * RW_DELAYED_OPERANDS, p->history) : RW_SHAPE(n * RW_DELAYED_OPERANDS);
        rw_tensor *const x = b->found[i] = rw_param_find(ctx, b->name[i]);
        if (x && (rw_tensor_kind_of(x) != RW_TENSOR_BUFFER || rw_tensor_dtype(x) != RW_F32 ||
                  !rw_shape_equal(rw_tensor_shape(x), b->shape[i])))
            return rw_fail(ctx, RW_ERR_ARGUMENT,
                           "rw_delayed_scaling_create(name): expected \"%s\" to be free or an f32 buffer of the same "
                           "shape, got another", b->name[i]);
    }
    return RW_OK;
}

static rw_status write_ones(rw_tensor *x)
{
    const int64_t n = rw_shape_numel(rw_tensor_shape(x));
    float *const ones = rw_malloc((size_t)n * sizeof *ones);
    if (!ones) return rw_fail(rw_tensor_context(x), RW_ERR_MEMORY, "rw_delayed_scaling_create: out of memory");
    for (int64_t i = 0; i < n; i++) ones[i] = 1;
    const rw_status status = rw_write(x, ones, (size_t)n * sizeof *ones);
    rw_free(ones);
    return status;
}

/* Creates the missing buffers. On failure those that were created are removed. */
static rw_status make_buffers(rw_context *ctx, struct buffers *b, struct rw_param **ret)
{
    const rw_site at = { "rw_delayed_scaling_create", 0 };
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

static rw_status make(rw_delayed_scaling *d, const rw_delayed_scaling_params *p)
{
    struct buffers b;
    struct rw_param *created[3];
    int64_t n;
    rw_status status = number_rows(&d->rows, p->name, &n);
    if (!status) status = find_buffers(d->rows.ctx, p, n, &b);
    if (!status) status = make_buffers(d->rows.ctx, &b, created);
    if (status) return status;
    d->rows.scale = created[0];
    d->rows.history = created[1];
    d->rows.amax = created[2];
    return RW_OK;
}

/* Finds or creates the buffers of all weights that exist now. */
rw_status rw_delayed_scaling_create(rw_delayed_scaling **ret_delayed, rw_context *ctx,
                                    const rw_delayed_scaling_params *params)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ret_delayed || !ctx) return rw_fail_null(ctx, "rw_delayed_scaling_create", ctx ? "ret_delayed" : "ctx");
    if (ctx->status) return ctx->status;
    const rw_delayed_scaling_params p = with_defaults(params);
    rw_status status = check_params(ctx, &p);
    if (status) return status;
    rw_delayed_scaling *d = rw_calloc(1, sizeof *d);
    if (!d) return rw_fail(ctx, RW_ERR_MEMORY, "rw_delayed_scaling_create: out of memory");
    *d = (rw_delayed_scaling){ .rows = { .ctx = ctx, .gradient_dtype = p.gradient_dtype },
                               .own = { .recorder.kind = &kind, .d = d },
                               .attrs = { p.gradient_dtype, p.rule == RW_DELAYED_MOST_RECENT,
                                          p.margin }, .n_users = 1 };
    ctx->n_users++;
    status = make(d, &p);
    if (status) rw_delayed_scaling_destroy(&d);
    else *ret_delayed = d;
    return status;
}

static void close_update(rw_delayed_scaling *d)
{
    rw_update_close(&d->update);
    rw_depend_end(&d->on_scaler);
    d->planned_for = NULL;
}

/* The plan has a state of the scaler as an operand. */
static void scaler_gone(struct rw_dependent *on)
{
    close_update((rw_delayed_scaling *)(void *)((char *)on - offsetof(rw_delayed_scaling, on_scaler)));
}

/* The last user frees it. */
static void release(rw_delayed_scaling *d)
{
    rw_context *const ctx = d->rows.ctx;
    if (--d->n_users) return;
    rw_dependents_tell(&d->dependents);
    close_update(d);
    rw_free(d->rows.weights);
    rw_free(d);
    rw_context_release(ctx);
}

void rw_delayed_scaling_destroy(rw_delayed_scaling **pd)
{
    RW_ENTER(pd && *pd ? (*pd)->rows.ctx : NULL, );
    if (!pd || !*pd) return;
    rw_delayed_scaling *const d = *pd;
    *pd = NULL;
    rw_recipes_forget(d->rows.ctx, d);
    release(d);
}

int64_t rw_delayed_scaling_row(const rw_delayed_scaling *d, const rw_tensor *weight)
{
    RW_LOOKS_ONLY;
    const struct rw_param *const p = d ? rw_param_of(weight) : NULL;
    if (!p || weight->owner.ctx != d->rows.ctx || (weight->flags & RW_VALUE_GRADIENT)) return -1;
    const uint32_t row = rw_delayed_row_of(&d->rows, p->serial);
    return row == RW_NONE_ID ? -1 : (int64_t)row;
}

/* ---- a step ---- */

static rw_status plan(rw_delayed_scaling *d, rw_scaler *s)
{
    struct rw_update created;
    struct rw_step_recorder *const recorder = &d->own.recorder;
    const rw_status status = rw_update_open(&created, d->rows.ctx, &recorder, 1, s ? rw_scaler_found(s) : NULL);
    if (status) return status;
    close_update(d);
    d->update = created;
    d->planned_for = s;
    if (s) rw_scaler_depend(s, &d->on_scaler, scaler_gone);
    return RW_OK;
}

/* Plans the update again for another scaler or number of threads, and runs it. */
rw_status rw_delayed_scaling_update(rw_delayed_scaling *d, rw_scaler *s)
{
    RW_ENTER(d ? d->rows.ctx : NULL, RW_ERR_ARGUMENT);
    if (!d) return rw_fail_null(NULL, "rw_delayed_scaling_update", "d");
    rw_context *const ctx = d->rows.ctx;
    if (ctx->status) return ctx->status;
    if (s && rw_scaler_context(s) != ctx)
        return rw_fail(ctx, RW_ERR_ARGUMENT,
                       "rw_delayed_scaling_update(scaler): expected one of the same context, got one of "
                       "another context");
    const rw_status runs = rw_check_runs(ctx, "rw_delayed_scaling_update");
    if (runs) return runs;
    const bool planned = d->update.run && !rw_update_is_stale(&d->update) && d->planned_for == s;
    rw_status status = planned ? RW_OK : plan(d, s);
    if (!status) status = rw_update_run(&d->update);
    if (!status) count(d);
    return status;
}
