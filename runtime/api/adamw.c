/*
 * AdamW over the parameters of a context. See rewind/optim.h.
 *
 * Moments and master copies are states of the context, which an op reads and writes. What changes from step to step -
 * the learning rate, the bias corrections - is in rows that are uploaded before each update: the plan stays the same.
 */
#include "api/adamw.h"

#include "api/update.h"
#include "base/alloc.h"
#include "record/own_ops.h"

#include <math.h>

/* A node has at most so many parameters: with masters, nine operands of each. */
#define GROUP 4096

struct member {
    struct rw_param *param, *m, *v;
    struct rw_param *master; /* of a parameter of 16 bits, else NULL */
    uint64_t step;           /* updates made: the bias correction of a parameter counts its own gradients */
    uint32_t version;        /* of the parameter's contents that the master copy is one of */
    bool due;                /* it takes part in the update that was prepared */
};

struct rw_adamw {
    struct rw_recorder recorder; /* first */
    rw_context *ctx;
    rw_adamw_params params;
    struct member *members;
    struct rw_adamw_row *rows; /* of the members */
    struct rw_param **uploaded; /* the same in the device's memory, by group */
    size_t n, n_groups, bytes;
    struct rw_update update;
    size_t n_users; /* itself, until rw_adamw_destroy(), and the graphs that step with it: the last one frees it */
};

static rw_status no_memory(rw_context *ctx, const char *what)
{
    return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory", what);
}

/* ---- recording ---- */

static size_t group_size(const rw_adamw *opt, size_t group)
{
    const size_t rest = opt->n - group * GROUP;
    return rest < GROUP ? rest : GROUP;
}

/* The gradient that planning made or found; else that of the parameter, which is clear. */
static rw_tensor *gradient_of(const struct member *x, rw_tensor *const *gradient)
{
    rw_tensor *const g = gradient[x->param->tensor.id];
    return g ? g : &x->param->gradient;
}

static rw_status record_group(rw_adamw *opt, size_t group, rw_tape *t, rw_tensor *const *gradient, rw_tensor **in)
{
    const struct member *const x = &opt->members[group * GROUP];
    const size_t n = group_size(opt, group);
    size_t end = 1 + 4 * n;
    in[0] = &opt->uploaded[group]->tensor;
    for (size_t i = 0; i < n; i++) {
        in[1 + i] = gradient_of(&x[i], gradient);
        in[1 + n + i] = &x[i].param->tensor;
        in[1 + 2 * n + i] = &x[i].m->tensor;
        in[1 + 3 * n + i] = &x[i].v->tensor;
        if (x[i].master) in[end++] = &x[i].master->tensor;
    }
    return rw_update_record(t, "rw_adamw_step", &rw_op_adamw, in, (int)end, NULL);
}

static rw_status record(struct rw_recorder *r, rw_tape *t, rw_tensor **gradient)
{
    rw_adamw *const opt = (rw_adamw *)r;
    rw_status status = RW_OK;
    rw_tensor **const in = rw_malloc((1 + 5 * (opt->n < GROUP ? opt->n : GROUP)) * sizeof *in);
    if (!in) return no_memory(opt->ctx, "rw_adamw_step");
    for (size_t g = 0; !status && g < opt->n_groups; g++) status = record_group(opt, g, t, gradient, in);
    rw_free(in);
    return status;
}

struct rw_recorder *rw_adamw_recorder(rw_adamw *opt)
{
    return &opt->recorder;
}

/* ---- making and ending ---- */

static double or_default(double x, double fallback)
{
    return x == 0 ? fallback : x < 0 ? 0 : x;
}

static rw_status check_params(rw_context *ctx, const rw_adamw_params *p)
{
    const char *const field = !(p->lr >= 0 && isfinite(p->lr))  ? "lr"
                              : !(p->beta1 < 1)                 ? "beta1"
                              : !(p->beta2 < 1)                 ? "beta2"
                              : !(p->eps >= 0 && isfinite(p->eps)) ? "eps"
                              : !isfinite(p->weight_decay)      ? "weight_decay"
                                                                : NULL;
    if (!field) return RW_OK;
    const double value = field[0] == 'l'   ? p->lr
                         : field[0] == 'e' ? p->eps
                         : field[0] == 'w' ? p->weight_decay
                         : field[4] == '1' ? p->beta1
                                           : p->beta2;
    return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_adamw_create: %s is %g", field, value);
}

static struct rw_param *state_like(rw_adamw *opt, const struct rw_param *p, rw_dtype dtype)
{
    rw_context *const ctx = opt->ctx;
    struct rw_param *const s = rw_state_create(ctx, dtype, rw_layout_shape(rw_layout_of(ctx, &p->tensor)));
    if (s) opt->bytes += s->bytes;
    return s;
}

static rw_status add_member(rw_adamw *opt, struct rw_param *p)
{
    const rw_dtype dtype = (rw_dtype)p->tensor.dtype, wide = dtype == RW_F64 ? RW_F64 : RW_F32;
    const bool narrow = rw_dtype_size(dtype) == 2;
    struct member *const x = &opt->members[opt->n++];
    *x = (struct member){ .param = p, .version = p->version - 1, .m = state_like(opt, p, wide),
                          .v = state_like(opt, p, wide) };
    if (narrow) x->master = state_like(opt, p, RW_F32);
    return x->m && x->v && (x->master || !narrow) ? RW_OK : RW_ERR_MEMORY;
}

static rw_status add_rows(rw_adamw *opt)
{
    const size_t groups = (opt->n + GROUP - 1) / GROUP;
    opt->rows = rw_calloc(opt->n, sizeof *opt->rows);
    opt->uploaded = rw_calloc(groups, sizeof(struct rw_param *));
    if (!opt->rows || !opt->uploaded) return RW_ERR_MEMORY;
    for (; opt->n_groups < groups; opt->n_groups++) {
        const int64_t n = (int64_t)group_size(opt, opt->n_groups);
        struct rw_param *const rows = rw_state_create(opt->ctx, RW_I32, RW_SHAPE(n, RW_ADAMW_ROW_WORDS));
        if (!rows) return RW_ERR_MEMORY;
        opt->uploaded[opt->n_groups] = rows;
    }
    return RW_OK;
}

static rw_status add_members(rw_adamw *opt)
{
    rw_context *const ctx = opt->ctx;
    opt->members = rw_calloc(ctx->n_params, sizeof *opt->members);
    rw_status status = opt->members ? RW_OK : RW_ERR_MEMORY;
    for (size_t i = 0; !status && i < ctx->n_params; i++)
        if (ctx->params[i]->grad) status = add_member(opt, ctx->params[i]);
    if (!status) status = add_rows(opt);
    return status ? no_memory(ctx, "rw_adamw_create") : rw_update_open(&opt->update, ctx, &opt->recorder);
}

rw_status rw_adamw_create(rw_adamw **ret_opt, rw_context *ctx, const rw_adamw_params *params)
{
    if (!ret_opt || !ctx) return rw_fail_null(ctx, "rw_adamw_create", ctx ? "ret_opt" : "ctx");
    if (ctx->status) return ctx->status;
    const rw_adamw_params p = params ? *params : (rw_adamw_params){ 0 };
    rw_status status = check_params(ctx, &p);
    if (status) return status;
    rw_adamw *opt = rw_calloc(1, sizeof *opt);
    if (!opt) return no_memory(ctx, "rw_adamw_create");
    opt->recorder.record = record;
    opt->ctx = ctx;
    opt->n_users = 1;
    ctx->n_users++;
    opt->params = (rw_adamw_params){ .lr = or_default(p.lr, 1e-3), .beta1 = or_default(p.beta1, 0.9),
                                     .beta2 = or_default(p.beta2, 0.999), .eps = or_default(p.eps, 1e-8),
                                     .weight_decay = or_default(p.weight_decay, 0.01), .decay_all = p.decay_all };
    status = add_members(opt);
    ctx->memory.optimizer += opt->bytes;
    if (status) rw_adamw_destroy(&opt);
    else *ret_opt = opt;
    return status;
}

static void free_all(rw_adamw *opt)
{
    rw_context *const ctx = opt->ctx;
    rw_update_close(&opt->update);
    for (size_t i = 0; i < opt->n; i++) {
        rw_state_destroy(ctx, opt->members[i].m);
        rw_state_destroy(ctx, opt->members[i].v);
        rw_state_destroy(ctx, opt->members[i].master);
    }
    for (size_t g = 0; g < opt->n_groups; g++) rw_state_destroy(ctx, opt->uploaded[g]);
    ctx->memory.optimizer -= opt->bytes;
    rw_free(opt->members);
    rw_free(opt->rows);
    rw_free(opt->uploaded);
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
    free_all(opt);
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
    if (!opt) return;
    if (lr >= 0 && isfinite(lr)) opt->params.lr = lr;
    else rw_fail(opt->ctx, RW_ERR_ARGUMENT, "rw_adamw_set_lr: a learning rate of %g", lr);
}

rw_context *rw_adamw_context(const rw_adamw *opt)
{
    return opt->ctx;
}

/* ---- over a restart ---- */

const char *rw_adamw_kind(const rw_adamw *opt)
{
    return "adamw";
}

double rw_adamw_lr(const rw_adamw *opt)
{
    return opt->params.lr;
}

size_t rw_adamw_members(const rw_adamw *opt)
{
    return opt->n;
}

struct rw_kept rw_adamw_kept(const rw_adamw *opt, size_t i)
{
    const struct member *const x = &opt->members[i];
    return (struct rw_kept){ .param = x->param, .name = { "exp_avg", "exp_avg_sq", "master" },
                             .state = { x->m, x->v, x->master }, .n = x->master ? 3 : 2, .step = x->step,
                             .current = x->version == x->param->version };
}

void rw_adamw_resume(rw_adamw *opt, size_t i, uint64_t step, bool current)
{
    struct member *const x = &opt->members[i];
    x->step = step;
    x->version = x->param->version - !current;
}

/* ---- an update ---- */

/* Most parameters are at one step and decay or do not: the numbers of the two kinds are worked out once. */
struct known {
    uint64_t step; /* 0: none */
    struct rw_adamw_row row;
};

static void fill_row(const rw_adamw *opt, size_t i, struct known *known)
{
    const rw_adamw_params *const p = &opt->params;
    const struct member *const x = &opt->members[i];
    const bool decays = p->decay_all || rw_layout_of(opt->ctx, &x->param->tensor)->rank > 1;
    struct known *const k = &known[decays];
    if (k->step != x->step + 1) {
        k->step = x->step + 1;
        k->row = (struct rw_adamw_row){ .lr = p->lr, .beta1 = p->beta1, .beta2 = p->beta2, .eps = p->eps,
                                        .weight_decay = decays ? p->weight_decay : 0 };
        rw_adamw_row_finish(&k->row, k->step);
    }
    opt->rows[i] = k->row;
    opt->rows[i].fresh = x->version != x->param->version;
}

rw_status rw_adamw_prepare(rw_adamw *opt)
{
    rw_context *const ctx = opt->ctx;
    struct known known[2] = { 0 };
    rw_status status = RW_OK;
    for (size_t i = 0; i < opt->n; i++) {
        opt->members[i].due = !opt->members[i].param->grad_clear;
        if (opt->members[i].due) fill_row(opt, i, known);
    }
    for (size_t g = 0; !status && g < opt->n_groups; g++)
        status = ctx->device->upload(ctx->device_state, opt->uploaded[g]->data, &opt->rows[g * GROUP],
                                     opt->uploaded[g]->bytes);
    return status ? rw_fail(ctx, status, "rw_adamw_step: the device failed") : RW_OK;
}

void rw_adamw_count(rw_adamw *opt)
{
    for (size_t i = 0; i < opt->n; i++) {
        struct member *const x = &opt->members[i];
        if (!x->due) continue;
        x->step++;
        x->version = ++x->param->version;
    }
}

static rw_status plan_again(rw_adamw *opt)
{
    struct rw_update made;
    const rw_status status = rw_update_open(&made, opt->ctx, &opt->recorder);
    if (status) return status;
    rw_update_close(&opt->update);
    opt->update = made;
    return RW_OK;
}

rw_status rw_adamw_step(rw_adamw *opt)
{
    if (!opt) return RW_ERR_ARGUMENT;
    rw_context *const ctx = opt->ctx;
    if (ctx->status) return ctx->status;
    rw_status status = rw_gradients_check(ctx, "rw_adamw_step");
    if (!status && rw_update_is_stale(&opt->update)) status = plan_again(opt);
    if (!status) status = rw_adamw_prepare(opt);
    if (!status) status = rw_update_run(&opt->update);
    if (!status) rw_adamw_count(opt);
    return status;
}
