/*
 * Optimizers over the parameters of a context, whatever their kind. See rewind/optim.h and rewind/optimizers.h.
 *
 * States and master copies are states of the context, which an op reads and writes. What changes from step to step -
 * the learning rate, the bias corrections - is in rows that are uploaded before each update: the plan stays the same.
 */
#include "api/optimizer.h"

#include "api/update.h"
#include "base/alloc.h"

#include <rewind/ops.h>

#include <math.h>

/* A node has at most so many parameters: with masters, nine operands of each. */
#define GROUP 4096
#define OPERANDS (3 + RW_UPDATE_STATES) /* inputs of each, without its sums */

struct member {
    struct rw_param *param;
    struct rw_param *state[RW_UPDATE_STATES];
    struct rw_param *sums;   /* of an update by itself; NULL: nobody has watched */
    struct rw_param *master; /* of a parameter of 16 bits that is not rounded by chance, else NULL */
    uint64_t step;           /* updates made: the bias correction of a parameter counts its own gradients */
    uint32_t version;        /* of the parameter's contents that the master copy is one of */
    bool due;                /* it takes part in the update that was prepared */
    double lr_factor;        /* rw_optimizer_set() */
    double weight_decay;     /* likewise; below zero: the optimizer's, by the parameter's rank */
};

struct rw_adamw {
    struct rw_recorder recorder; /* first */
    rw_context *ctx;
    const struct rw_optimizer_kind *kind;
    struct rw_optimizer_numbers numbers;
    struct member *members;
    struct rw_update_row *rows; /* of the members */
    struct rw_param **uploaded; /* the same in the device's memory, by group */
    /* Of one that follows a scaler, by group: what its parameters have left out, and the rows that go by that. */
    struct rw_param **pending, **due;
    struct rw_param **sums; /* by group; NULL: nobody has watched */
    size_t n_watchers;
    enum rw_optimizer_sums last_sums; /* of the last update */
    uint64_t n_updates; /* of this optimizer, since it was made */
    rw_tensor *const *found; /* of what is recorded now */
    size_t n, n_groups, bytes;
    struct rw_update update;
    bool update_follows; /* it was planned by an optimizer that did */
    bool update_sums;    /* it was planned while somebody watched */
    size_t n_users; /* itself, until rw_adamw_destroy(), and the graphs that step with it: the last one frees it */
};

static rw_status no_memory(rw_context *ctx, const char *what)
{
    return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory", what);
}

/* ---- recording ---- */

static size_t group_size(const rw_optimizer *opt, size_t group)
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

/* The rows that the update goes by: as they were uploaded, or what is left of them where some are left out. */
static rw_status record_rows(const rw_optimizer *opt, size_t group, rw_tape *t, rw_tensor **ret_rows)
{
    rw_tensor *in[4], *out[2];
    int n = 0;
    *ret_rows = &opt->uploaded[group]->tensor;
    if (!opt->pending) return RW_OK;
    if (opt->found) in[n++] = *opt->found;
    in[n++] = &opt->uploaded[group]->tensor;
    in[n++] = &opt->pending[group]->tensor;
    in[n++] = &opt->due[group]->tensor;
    const rw_status status = rw_update_record(t, "rw_adamw_step", &rw_op_update_rows, in, n, &opt->kind->attrs,
                                              sizeof opt->kind->attrs, out);
    if (!status) *ret_rows = out[1];
    return status;
}

static struct rw_update_attrs attrs_of(const rw_optimizer *opt)
{
    struct rw_update_attrs attrs = opt->kind->attrs;
    attrs.sums = opt->n_watchers > 0;
    return attrs;
}

static rw_status record_group(rw_optimizer *opt, size_t group, rw_tape *t, rw_tensor *const *gradient, rw_tensor **in)
{
    const struct member *const x = &opt->members[group * GROUP];
    const size_t n = group_size(opt, group), states = (size_t)opt->kind->attrs.states;
    const struct rw_update_attrs attrs = attrs_of(opt);
    size_t end = 1 + (2 + states) * n;
    const rw_status status = record_rows(opt, group, t, &in[0]);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        in[1 + i] = gradient_of(&x[i], gradient);
        in[1 + n + i] = &x[i].param->tensor;
        for (size_t j = 0; j < states; j++) in[1 + (2 + j) * n + i] = &x[i].state[j]->tensor;
        if (x[i].master) in[end++] = &x[i].master->tensor;
    }
    if (attrs.sums) in[end++] = &opt->sums[group]->tensor;
    return rw_update_record(t, "rw_adamw_step", opt->kind->op, in, (int)end, &attrs, sizeof attrs, NULL);
}

/* Its row, its gradient, itself, its states. */
static rw_status record_one(rw_optimizer *opt, size_t i, rw_tape *t, rw_tensor *g)
{
    const struct member *const x = &opt->members[i];
    const int64_t row = (int64_t)(i % GROUP);
    const struct rw_update_attrs attrs = attrs_of(opt);
    rw_tensor *in[2 + OPERANDS] = { NULL, g, &x->param->tensor };
    int n = 3;
    in[0] = rw_slice_at((rw_site){ "rw_adamw_step", 0 }, t, &opt->uploaded[i / GROUP]->tensor, 0, row, row + 1);
    if (!in[0]) return opt->ctx->status;
    for (int j = 0; j < opt->kind->attrs.states; j++) in[n++] = &x->state[j]->tensor;
    if (x->master) in[n++] = &x->master->tensor;
    if (attrs.sums) in[n++] = &x->sums->tensor;
    return rw_update_record(t, "rw_adamw_step", opt->kind->op, in, n, &attrs, sizeof attrs, NULL);
}

static rw_status record_inside(struct rw_recorder *r, rw_tape *t, rw_tensor **gradient)
{
    rw_optimizer *const opt = (rw_optimizer *)r;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < opt->n; i++) {
        rw_tensor *const g = gradient[opt->members[i].param->tensor.id];
        if (g) status = record_one(opt, i, t, g);
    }
    return status;
}

static rw_status record(struct rw_recorder *r, rw_tape *t, rw_tensor **gradient)
{
    rw_optimizer *const opt = (rw_optimizer *)r;
    rw_status status = RW_OK;
    rw_tensor **const in = rw_malloc((2 + OPERANDS * (opt->n < GROUP ? opt->n : GROUP)) * sizeof *in);
    if (!in) return no_memory(opt->ctx, "rw_adamw_step");
    for (size_t g = 0; !status && g < opt->n_groups; g++) status = record_group(opt, g, t, gradient, in);
    rw_free(in);
    return status;
}

struct rw_recorder *rw_optimizer_recorder(rw_adamw *opt, rw_tensor *const *found)
{
    opt->recorder = (struct rw_recorder){ .record = record };
    opt->found = found;
    return &opt->recorder;
}

struct rw_recorder *rw_optimizer_recorder_inside(rw_adamw *opt, bool *used_up)
{
    opt->recorder = (struct rw_recorder){ .record = record_inside };
    opt->found = NULL;
    for (size_t i = 0; i < opt->n; i++) used_up[opt->members[i].param->tensor.id] = true;
    return &opt->recorder;
}

/* ---- making and ending ---- */

static struct rw_param *state_like(rw_adamw *opt, const struct rw_param *p, rw_dtype dtype)
{
    rw_context *const ctx = opt->ctx;
    struct rw_param *const s = rw_state_create(ctx, dtype, rw_layout_shape(rw_layout_of(ctx, &p->tensor)));
    if (s) opt->bytes += s->bytes;
    return s;
}

static rw_status add_member(rw_optimizer *opt, struct rw_param *p)
{
    const rw_dtype dtype = (rw_dtype)p->tensor.dtype, wide = dtype == RW_F64 ? RW_F64 : RW_F32;
    const bool narrow = rw_dtype_size(dtype) == 2;
    struct member *const x = &opt->members[opt->n++];
    *x = (struct member){ .param = p, .version = p->version - 1, .lr_factor = 1, .weight_decay = -1 };
    for (int i = 0; i < opt->kind->attrs.states; i++)
        if (!(x->state[i] = state_like(opt, p, wide))) return RW_ERR_MEMORY;
    if (!narrow || (opt->numbers.stochastic_rounding && dtype == RW_BF16)) return RW_OK;
    return (x->master = state_like(opt, p, RW_F32)) ? RW_OK : RW_ERR_MEMORY;
}

static rw_status add_rows(rw_adamw *opt)
{
    const size_t groups = (opt->n + GROUP - 1) / GROUP;
    opt->rows = rw_calloc(opt->n, sizeof *opt->rows);
    opt->uploaded = rw_calloc(groups, sizeof(struct rw_param *));
    if (!opt->rows || !opt->uploaded) return RW_ERR_MEMORY;
    for (; opt->n_groups < groups; opt->n_groups++) {
        const int64_t n = (int64_t)group_size(opt, opt->n_groups);
        struct rw_param *const rows = rw_state_create(opt->ctx, RW_I32, RW_SHAPE(n, RW_UPDATE_ROW_WORDS));
        if (!rows) return RW_ERR_MEMORY;
        opt->uploaded[opt->n_groups] = rows;
    }
    return RW_OK;
}

static void free_states(rw_context *ctx, struct rw_param **states, size_t n)
{
    for (size_t i = 0; states && i < n; i++) rw_state_destroy(ctx, states[i]);
    rw_free(states);
}

/* By group, so many numbers for each of its parameters. */
static struct rw_param **add_states(const rw_adamw *opt, rw_dtype dtype, int64_t numbers)
{
    struct rw_param **const states = rw_calloc(opt->n_groups, sizeof(struct rw_param *));
    for (size_t g = 0; states && g < opt->n_groups; g++) {
        states[g] = rw_state_create(opt->ctx, dtype, RW_SHAPE((int64_t)group_size(opt, g), numbers));
        if (states[g]) continue;
        free_states(opt->ctx, states, g);
        return NULL;
    }
    return states;
}

bool rw_optimizer_follows(const rw_adamw *opt)
{
    return opt->pending;
}

rw_status rw_optimizer_follow(rw_adamw *opt)
{
    if (opt->pending) return RW_OK;
    opt->due = add_states(opt, RW_I32, RW_UPDATE_ROW_WORDS);
    opt->pending = opt->due ? add_states(opt, RW_I32, 2) : NULL;
    if (opt->pending) return RW_OK;
    free_states(opt->ctx, opt->due, opt->n_groups);
    opt->due = NULL;
    return no_memory(opt->ctx, "rw_scaler_step");
}

/* ---- watching ---- */

static void free_sums(rw_optimizer *opt)
{
    for (size_t i = 0; i < opt->n; i++) {
        rw_state_destroy(opt->ctx, opt->members[i].sums);
        opt->members[i].sums = NULL;
    }
    free_states(opt->ctx, opt->sums, opt->n_groups);
    opt->sums = NULL;
}

/* They stay until the optimizer goes: a graph may write them. */
static rw_status add_sums(rw_optimizer *opt)
{
    opt->sums = add_states(opt, RW_F64, RW_UPDATE_SUMS);
    bool made = opt->sums;
    for (size_t i = 0; made && i < opt->n; i++) {
        opt->members[i].sums = rw_state_create(opt->ctx, RW_F64, RW_SHAPE(1, RW_UPDATE_SUMS));
        made = opt->members[i].sums;
    }
    if (made) return RW_OK;
    free_sums(opt);
    return no_memory(opt->ctx, "rw_monitor_watch");
}

rw_status rw_optimizer_watch(rw_optimizer *opt)
{
    const rw_status status = opt->sums ? RW_OK : add_sums(opt);
    if (!status) opt->n_watchers++;
    return status;
}

void rw_optimizer_unwatch(rw_optimizer *opt)
{
    opt->n_watchers--;
}

bool rw_optimizer_is_watched(const rw_optimizer *opt)
{
    return opt->n_watchers > 0;
}

rw_status rw_optimizer_read_sums(rw_optimizer *opt, double (*ret)[RW_UPDATE_SUMS], uint64_t *seen, bool *ret_known)
{
    rw_context *const ctx = opt->ctx;
    const bool together = opt->last_sums == RW_SUMS_TOGETHER;
    *ret_known = opt->last_sums != RW_NO_SUMS && opt->n_updates != *seen;
    *seen = opt->n_updates;
    if (!*ret_known) return RW_OK;
    rw_status status = rw_runs_wait(ctx);
    for (size_t i = 0; !status && i < opt->n; i += together ? GROUP : 1) {
        const struct rw_param *const from = together ? opt->sums[i / GROUP] : opt->members[i].sums;
        status = ctx->device->download(ctx->device_state, ret[i], from->data, from->bytes);
        if (status) rw_fail(ctx, status, "an optimizer's sums could not be read: the device failed");
    }
    return status;
}

static rw_status add_members(rw_adamw *opt)
{
    rw_context *const ctx = opt->ctx;
    opt->members = rw_calloc(ctx->n_params, sizeof *opt->members);
    rw_status status = opt->members ? RW_OK : RW_ERR_MEMORY;
    for (size_t i = 0; !status && i < ctx->n_params; i++)
        if (rw_param_is_trained(ctx->params[i])) status = add_member(opt, ctx->params[i]);
    if (!status) status = add_rows(opt);
    return status ? no_memory(ctx, opt->kind->create) : rw_update_open(&opt->update, ctx, &opt->recorder);
}

rw_status rw_optimizer_make(rw_optimizer **ret, rw_context *ctx, const struct rw_optimizer_kind *kind,
                            const struct rw_optimizer_numbers *numbers)
{
    rw_optimizer *opt = rw_calloc(1, sizeof *opt);
    if (!opt) return no_memory(ctx, kind->create);
    opt->recorder.record = record;
    opt->ctx = ctx;
    opt->kind = kind;
    opt->numbers = *numbers;
    opt->n_users = 1;
    ctx->n_users++;
    const rw_status status = add_members(opt);
    ctx->memory.optimizer += opt->bytes;
    if (status) rw_optimizer_destroy(&opt);
    else *ret = opt;
    return status;
}

static void free_all(rw_adamw *opt)
{
    rw_context *const ctx = opt->ctx;
    rw_update_close(&opt->update);
    for (size_t i = 0; i < opt->n; i++) {
        for (int j = 0; j < RW_UPDATE_STATES; j++) rw_state_destroy(ctx, opt->members[i].state[j]);
        rw_state_destroy(ctx, opt->members[i].master);
        rw_state_destroy(ctx, opt->members[i].sums);
    }
    free_states(ctx, opt->uploaded, opt->n_groups);
    free_states(ctx, opt->pending, opt->n_groups);
    free_states(ctx, opt->due, opt->n_groups);
    free_states(ctx, opt->sums, opt->n_groups);
    ctx->memory.optimizer -= opt->bytes;
    rw_free(opt->members);
    rw_free(opt->rows);
    rw_free(opt);
}

void rw_optimizer_share(rw_adamw *opt)
{
    opt->n_users++;
}

void rw_optimizer_release(rw_adamw *opt)
{
    rw_context *const ctx = opt->ctx;
    if (--opt->n_users) return;
    free_all(opt);
    rw_context_release(ctx);
}

void rw_optimizer_destroy(rw_optimizer **popt)
{
    if (!popt || !*popt) return;
    rw_optimizer *const opt = *popt;
    *popt = NULL;
    rw_optimizer_release(opt);
}

void rw_adamw_destroy(rw_adamw **popt)
{
    rw_optimizer_destroy(popt);
}

/* ---- settings ---- */

void rw_adamw_set_lr(rw_adamw *opt, double lr)
{
    if (!opt) return;
    if (lr >= 0 && isfinite(lr)) opt->numbers.lr = lr;
    else rw_fail(opt->ctx, RW_ERR_ARGUMENT, "rw_adamw_set_lr: a learning rate of %g", lr);
}

void rw_optimizer_set_lr(rw_optimizer *opt, double lr)
{
    rw_adamw_set_lr(opt, lr);
}

static struct member *member_of(const rw_optimizer *opt, const rw_tensor *param)
{
    for (size_t i = 0; i < opt->n; i++)
        if (&opt->members[i].param->tensor == param) return &opt->members[i];
    return NULL;
}

rw_status rw_optimizer_set(rw_optimizer *opt, rw_tensor *param, const rw_optimizer_settings *settings)
{
    if (!opt) return RW_ERR_ARGUMENT;
    const rw_optimizer_settings s = settings ? *settings : (rw_optimizer_settings){ 0 };
    struct member *const x = member_of(opt, param);
    if (!x) return rw_fail(opt->ctx, RW_ERR_ARGUMENT, "rw_optimizer_set: not a parameter that the optimizer has");
    if (!isfinite(s.lr_factor) || !isfinite(s.weight_decay))
        return rw_fail(opt->ctx, RW_ERR_ARGUMENT, "rw_optimizer_set: \"%s\": a factor of %g, a decay of %g",
                       x->param->name, s.lr_factor, s.weight_decay);
    x->lr_factor = s.lr_factor == 0 ? 1 : s.lr_factor < 0 ? 0 : s.lr_factor;
    x->weight_decay = s.weight_decay == 0 ? -1 : s.weight_decay < 0 ? 0 : s.weight_decay;
    return RW_OK;
}

rw_context *rw_optimizer_context(const rw_optimizer *opt)
{
    return opt->ctx;
}

/* ---- over a restart ---- */

static void settle_group(rw_optimizer *opt, size_t group, const int32_t (*pending)[2])
{
    for (size_t i = 0; i < group_size(opt, group); i++) {
        struct member *const x = &opt->members[group * GROUP + i];
        x->step -= (uint64_t)pending[i][0];
        if (pending[i][1]) x->version = x->param->version - 1;
    }
}

rw_status rw_optimizer_settle(rw_optimizer *opt)
{
    rw_context *const ctx = opt->ctx;
    if (!opt->pending) return RW_OK;
    int32_t(*const pending)[2] = rw_malloc(GROUP * sizeof *pending);
    if (!pending) return no_memory(ctx, "rw_optimizer_settle");
    rw_status status = rw_runs_wait(ctx);
    for (size_t g = 0; !status && g < opt->n_groups; g++) {
        struct rw_param *const p = opt->pending[g];
        rw_status moved = ctx->device->download(ctx->device_state, pending, p->data, p->bytes);
        if (!moved) moved = ctx->device->clear(ctx->device_state, p->data, p->bytes);
        if (moved) status = rw_fail(ctx, moved, "an optimizer's counts could not be read: the device failed");
        else settle_group(opt, g, pending);
    }
    rw_free(pending);
    return status;
}

const char *rw_optimizer_kind_name(const rw_optimizer *opt)
{
    return opt->kind->name;
}

double rw_optimizer_lr(const rw_optimizer *opt)
{
    return opt->numbers.lr;
}

size_t rw_optimizer_members(const rw_optimizer *opt)
{
    return opt->n;
}

struct rw_kept rw_optimizer_kept(const rw_optimizer *opt, size_t i)
{
    const struct member *const x = &opt->members[i];
    struct rw_kept k = { .param = x->param, .step = x->step, .current = x->version == x->param->version };
    for (; k.n < opt->kind->attrs.states; k.n++) {
        k.name[k.n] = opt->kind->state[k.n];
        k.state[k.n] = x->state[k.n];
    }
    if (!x->master) return k;
    k.name[k.n] = "master";
    k.state[k.n++] = x->master;
    return k;
}

void rw_optimizer_resume(rw_adamw *opt, size_t i, uint64_t step, bool current)
{
    struct member *const x = &opt->members[i];
    x->step = step;
    x->version = x->param->version - !current;
}

/* ---- an update ---- */

/* Most parameters are at one step and one rate, and decay or do not: the numbers of two kinds are worked out once. */
struct known {
    uint64_t step; /* 0: none */
    double lr, weight_decay;
    struct rw_update_row row;
};

static void fill_row(const rw_optimizer *opt, size_t i, struct known *known)
{
    const struct member *const x = &opt->members[i];
    struct rw_optimizer_numbers n = opt->numbers;
    const bool decays = n.decay_all || rw_layout_of(opt->ctx, &x->param->tensor)->rank > 1;
    struct known *const k = &known[decays];
    n.lr *= x->lr_factor;
    n.weight_decay = x->weight_decay >= 0 ? x->weight_decay : decays ? n.weight_decay : 0;
    if (k->step != x->step + 1 || k->lr != n.lr || k->weight_decay != n.weight_decay) {
        *k = (struct known){ .step = x->step + 1, .lr = n.lr, .weight_decay = n.weight_decay };
        opt->kind->row(&k->row, &n, k->step);
        rw_update_row_finish(&k->row);
        k->row.step = (uint32_t)k->step;
    }
    opt->rows[i] = k->row;
    opt->rows[i].fresh = x->version != x->param->version;
    opt->rows[i].stream = (uint32_t)i + 1;
    opt->rows[i].seed = opt->ctx->generator.seed;
}

rw_status rw_optimizer_prepare(rw_adamw *opt, enum rw_optimizer_sums sums)
{
    rw_context *const ctx = opt->ctx;
    struct known known[2] = { 0 };
    rw_status status = RW_OK;
    for (size_t i = 0; i < opt->n; i++) {
        opt->members[i].due = !opt->members[i].param->grad_clear;
        opt->rows[i].step = 0;
        if (opt->members[i].due) fill_row(opt, i, known);
    }
    for (size_t g = 0; !status && g < opt->n_groups; g++)
        status = ctx->device->upload(ctx->device_state, opt->uploaded[g]->data, &opt->rows[g * GROUP],
                                     opt->uploaded[g]->bytes);
    if (status) return rw_fail(ctx, status, "rw_adamw_step: the device failed");
    opt->last_sums = sums;
    return RW_OK;
}

void rw_optimizer_count(rw_adamw *opt)
{
    opt->n_updates++;
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
    const rw_status status = rw_update_open(&made, opt->ctx, rw_optimizer_recorder(opt, NULL));
    if (status) return status;
    rw_update_close(&opt->update);
    opt->update = made;
    opt->update_follows = opt->pending;
    opt->update_sums = opt->n_watchers > 0;
    return RW_OK;
}

rw_status rw_adamw_step(rw_adamw *opt)
{
    if (!opt) return RW_ERR_ARGUMENT;
    rw_context *const ctx = opt->ctx;
    if (ctx->status) return ctx->status;
    rw_status status = rw_gradients_check(ctx, "rw_adamw_step");
    const bool stale = rw_update_is_stale(&opt->update) || opt->update_follows != rw_optimizer_follows(opt) ||
                       opt->update_sums != rw_optimizer_is_watched(opt);
    if (!status && stale) status = plan_again(opt);
    if (!status) status = rw_optimizer_prepare(opt, opt->update_sums ? RW_SUMS_TOGETHER : RW_NO_SUMS);
    if (!status) status = rw_update_run(&opt->update);
    if (!status) rw_optimizer_count(opt);
    return status;
}

rw_status rw_optimizer_step(rw_optimizer *opt)
{
    return rw_adamw_step(opt);
}
