/*
 * Optimizers of any kind over the parameters of a context: states, settings and updates. optimizer_nodes.c records.
 *
 * States and master copies are states of the context, which an op reads and writes. Numbers that change from step to
 * step, such as the learning rate and the bias corrections, are in rows that are uploaded before each update, so the
 * plan stays the same. A row belongs to a piece: a parameter or, if states are offloaded, the part of it that is in the
 * window at a time (optimizer_offload.h).
 */
#include "api/optimizer.h"

#include "api/optimizer_coverage.h"
#include "api/optimizer_nodes.h"
#include "base/alloc.h"
#include "base/explicit_zero_param.h"
#include "record/gradient_state.h"

#include <rewind/ops.h>

#include <float.h>
#include <math.h>
#include <stdio.h>

static rw_status no_memory(rw_context *ctx, const char *what)
{
    return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory", what);
}

/* ---- creation and destruction ---- */

/* Adds a parameter as one piece, and decides about its master copy and the types of its states. */
static rw_status add_member(rw_optimizer *opt, struct rw_param *p)
{
    const rw_dtype dtype = (rw_dtype)p->tensor.dtype;
    struct rw_member *const x = &opt->members[opt->n];
    struct rw_pieces *const all = &opt->pieces;
    struct rw_piece piece = { .member = opt->n, .n = p->numel };
    *x = (struct rw_member){ .param = p, .piece = opt->n, .version = p->version - 1, .lr_factor = 1,
                             .weight_decay = -1 };
    x->has_master = rw_dtype_size(dtype) == 2 && !(opt->numbers.stochastic_rounding && dtype == RW_BF16);
    if (!rw_grow(&all->piece, &all->cap, all->n, 1, sizeof *all->piece)) return RW_ERR_MEMORY;
    piece.n_states = opt->kind->attrs.states;
    for (int j = 0; j < piece.n_states; j++) piece.dtype[j] = dtype == RW_F64 ? RW_F64 : opt->numbers.moments;
    if (x->has_master) piece.dtype[piece.n_states++] = RW_F32;
    all->piece[all->n++] = piece;
    opt->n++;
    rw_param_hold(p);
    return RW_OK;
}

static rw_status add_states_of(rw_optimizer *opt, struct rw_piece *p)
{
    const rw_layout *const layout = rw_layout_of(opt->ctx, &opt->members[p->member].param->tensor);
    for (int j = 0; j < p->n_states; j++) {
        p->state[j] = rw_state_create(opt->ctx, p->dtype[j], rw_layout_shape(layout));
        if (!p->state[j]) return RW_ERR_MEMORY;
        opt->bytes += p->state[j]->bytes;
    }
    return RW_OK;
}

/* Adds states in device memory, with as many parameters in a group as a node takes. */
static rw_status add_pieces(rw_optimizer *opt)
{
    struct rw_pieces *const all = &opt->pieces;
    const size_t groups = (all->n + RW_GROUP_MAX - 1) / RW_GROUP_MAX;
    all->first = rw_calloc(groups + 1, sizeof *all->first);
    rw_status status = all->first ? RW_OK : RW_ERR_MEMORY;
    for (size_t g = 0; !status && g <= groups; g++) all->first[g] = g < groups ? g * RW_GROUP_MAX : all->n;
    all->n_groups = status ? 0 : groups;
    for (size_t i = 0; !status && i < all->n; i++) status = add_states_of(opt, &all->piece[i]);
    return status ? no_memory(opt->ctx, opt->kind->create) : RW_OK;
}

/* Adds offloaded states. This cuts the pieces, so members get the index of their first piece. */
static rw_status add_offloaded_pieces(rw_optimizer *opt, const rw_state_offload *where)
{
    const rw_status status =
        rw_optimizer_offload_open(&opt->offload, opt->ctx, opt->kind->create, opt->kind->op, where, RW_GROUP_MAX,
                                  &opt->pieces);
    if (status) return status;
    opt->bytes += rw_optimizer_offload_window(opt->offload);
    for (size_t i = opt->pieces.n; i-- > 0;) opt->members[opt->pieces.piece[i].member].piece = i;
    return RW_OK;
}

static bool has_states(const rw_optimizer *opt)
{
    bool any = false;
    for (size_t i = 0; i < opt->pieces.n; i++) any |= opt->pieces.piece[i].n_states && opt->pieces.piece[i].n;
    return any;
}

static rw_status add_rows(rw_optimizer *opt)
{
    const size_t groups = opt->pieces.n_groups;
    opt->rows = rw_calloc(opt->pieces.n, sizeof *opt->rows);
    opt->uploaded = rw_calloc(groups, sizeof(struct rw_param *));
    if (!opt->rows || !opt->uploaded) return no_memory(opt->ctx, opt->kind->create);
    for (size_t g = 0; g < groups; g++) {
        const int64_t n = (int64_t)rw_group_size(opt, g);
        opt->uploaded[g] = rw_state_create(opt->ctx, RW_I32, RW_SHAPE(n, RW_UPDATE_ROW_WORDS));
        if (!opt->uploaded[g]) return no_memory(opt->ctx, opt->kind->create);
    }
    return RW_OK;
}

static void free_states(rw_context *ctx, struct rw_param **states, size_t n)
{
    for (size_t i = 0; states && i < n; i++) rw_state_destroy(ctx, states[i]);
    rw_free(states);
}

/* Adds a state per group, with that many numbers for each of its pieces. */
static struct rw_param **add_states(const rw_optimizer *opt, rw_dtype dtype, int64_t numbers)
{
    struct rw_param **const states = rw_calloc(opt->pieces.n_groups, sizeof(struct rw_param *));
    for (size_t g = 0; states && g < opt->pieces.n_groups; g++) {
        states[g] = rw_state_create(opt->ctx, dtype, RW_SHAPE((int64_t)rw_group_size(opt, g), numbers));
        if (states[g]) continue;
        free_states(opt->ctx, states, g);
        return NULL;
    }
    return states;
}

bool rw_optimizer_follows(const rw_optimizer *opt)
{
    return opt->pending;
}

rw_status rw_optimizer_follow(rw_optimizer *opt, const char *call)
{
    if (opt->pending) return RW_OK;
    opt->due = add_states(opt, RW_I32, RW_UPDATE_ROW_WORDS);
    opt->pending = opt->due ? add_states(opt, RW_I32, 2) : NULL;
    if (opt->pending) return RW_OK;
    free_states(opt->ctx, opt->due, opt->pieces.n_groups);
    opt->due = NULL;
    return no_memory(opt->ctx, call);
}

void rw_optimizer_unfollow(rw_optimizer *opt)
{
    free_states(opt->ctx, opt->pending, opt->pieces.n_groups);
    free_states(opt->ctx, opt->due, opt->pieces.n_groups);
    opt->pending = opt->due = NULL;
}

/* ---- sums for observers ---- */

static void free_sums(rw_optimizer *opt)
{
    for (size_t i = 0; i < opt->n; i++) {
        rw_state_destroy(opt->ctx, opt->members[i].sums);
        opt->members[i].sums = NULL;
    }
    free_states(opt->ctx, opt->sums, opt->pieces.n_groups);
    opt->sums = NULL;
}

/* Adds the sums. They exist as long as the optimizer, because a graph may write them. */
static rw_status add_sums(rw_optimizer *opt)
{
    opt->sums = add_states(opt, RW_F64, RW_UPDATE_SUMS);
    bool has_sums = opt->sums;
    for (size_t i = 0; has_sums && i < opt->n; i++) {
        opt->members[i].sums = rw_state_create(opt->ctx, RW_F64, RW_SHAPE(1, RW_UPDATE_SUMS));
        has_sums = opt->members[i].sums;
    }
    if (has_sums) return RW_OK;
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

static rw_status record_step(struct rw_step_recorder *r, struct rw_recording *now)
{
    return rw_optimizer_record_after((rw_optimizer *)r, now);
}

static const struct rw_recorder_kind step_kind = { .name = "rw_optimizer_step", .record = record_step };

struct rw_step_recorder *rw_optimizer_recorder(rw_optimizer *opt)
{
    return &opt->own;
}

static rw_status open_update(rw_optimizer *opt, struct rw_update *ret)
{
    struct rw_step_recorder *const recorder = rw_optimizer_recorder(opt);
    rw_status status = rw_update_open(ret, opt->ctx, &recorder, 1, NULL);
    if (status) return status;
    status = rw_optimizer_attend(opt, ret->run);
    if (status) rw_update_close(ret);
    return status;
}

/* ---- rates ---- */

/* Whether the parameter decays by its rank. */
static bool decays_by_rank(const rw_optimizer *opt, const struct rw_member *x)
{
    return opt->numbers.decay_all || rw_layout_of(opt->ctx, &x->param->tensor)->rank > 1;
}

/* The numbers of the parameter's updates, with these settings of it. */
static struct rw_optimizer_numbers numbers_of(const rw_optimizer *opt, const struct rw_member *x, double lr,
                                              double lr_factor, double weight_decay)
{
    struct rw_optimizer_numbers n = opt->numbers;
    n.lr = lr * lr_factor;
    n.weight_decay = weight_decay >= 0 ? weight_decay : decays_by_rank(opt, x) ? n.weight_decay : 0;
    return n;
}

bool rw_optimizer_rate_fits(const rw_optimizer *opt, size_t i, double lr, double lr_factor, double weight_decay)
{
    const struct rw_member *const x = &opt->members[i];
    const double most = x->param->tensor.dtype == RW_F64 ? DBL_MAX : (double)FLT_MAX;
    const struct rw_optimizer_numbers n = numbers_of(opt, x, lr, lr_factor, weight_decay);
    struct rw_update_row row;
    opt->kind->row(&row, &n, 1); /* of all steps, the first divides the rate by the smallest correction */
    return row.lr / row.correction1 <= most && fabs(row.decay) <= most && fabs(row.l2) <= most;
}

/* Refuses a rate whose product with the settings of the parameter is not finite: 0 times it would be NaN. */
static rw_status check_rate(const rw_optimizer *opt, size_t i, double lr, double lr_factor, double weight_decay,
                            const char *call)
{
    const struct rw_member *const x = &opt->members[i];
    if (rw_optimizer_rate_fits(opt, i, lr, lr_factor, weight_decay)) return RW_OK;
    return rw_fail(opt->ctx, RW_ERR_ARGUMENT,
                   "%s: expected an update whose numbers are finite in %s, got a learning rate of %g, an lr_factor of "
                   "%g and a weight_decay of %g for \"%s\"", call,
                   rw_dtype_name(x->param->tensor.dtype == RW_F64 ? RW_F64 : RW_F32), lr, lr_factor,
                   numbers_of(opt, x, lr, lr_factor, weight_decay).weight_decay, x->param->name);
}

/* The same for all parameters, with the settings that they have. */
static rw_status check_rates(const rw_optimizer *opt, double lr, const char *call)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < opt->n; i++)
        status = check_rate(opt, i, lr, opt->members[i].lr_factor, opt->members[i].weight_decay, call);
    return status;
}

static rw_status check_first_rates(const rw_optimizer *opt)
{
    char call[64];
    snprintf(call, sizeof call, "%s(lr)", opt->kind->create);
    return check_rates(opt, opt->numbers.lr, call);
}

/* ---- all parameters ---- */

/* Adds all parameters that are trained and not excluded, their states, and the planned update. */
static rw_status add_members(rw_optimizer *opt, const rw_state_offload *where)
{
    rw_context *const ctx = opt->ctx;
    bool offload = false;
    rw_status status = rw_optimizer_offload_check(ctx, opt->kind->create, where, &offload);
    if (status) return status;
    opt->members = rw_calloc(ctx->n_params, sizeof *opt->members);
    status = opt->members ? RW_OK : RW_ERR_MEMORY;
    for (size_t i = 0; !status && i < ctx->n_params; i++)
        if (rw_param_is_for_optimizers(ctx->params[i])) status = add_member(opt, ctx->params[i]);
    if (status) return no_memory(ctx, opt->kind->create);
    status = offload && has_states(opt) ? add_offloaded_pieces(opt, where) : add_pieces(opt);
    if (!status) status = rw_states_check_bytes(ctx, opt->bytes, opt->kind->create);
    if (!status) status = check_first_rates(opt);
    if (!status) status = add_rows(opt);
    return status ? status : open_update(opt, &opt->update);
}

rw_status rw_optimizer_make(rw_optimizer **ret, rw_context *ctx, const struct rw_optimizer_kind *kind,
                            const struct rw_optimizer_numbers *numbers, const rw_state_offload *where)
{
    rw_optimizer *opt = rw_calloc(1, sizeof *opt);
    if (!opt) return no_memory(ctx, kind->create);
    opt->ctx = ctx;
    opt->kind = kind;
    opt->own.kind = &step_kind;
    opt->numbers = *numbers;
    opt->n_users = 1;
    ctx->n_users++;
    const rw_status status = add_members(opt, where);
    ctx->memory.optimizer += opt->bytes;
    if (status) rw_optimizer_destroy(&opt);
    else *ret = opt;
    return status;
}

/* Frees the optimizer after its last use. */
static void free_all(rw_optimizer *opt)
{
    rw_context *const ctx = opt->ctx;
    rw_dependents_tell(&opt->dependents);
    rw_update_close(&opt->update);
    for (size_t i = 0; i < opt->pieces.n; i++)
        for (int j = 0; j < RW_PIECE_STATES; j++) rw_state_destroy(ctx, opt->pieces.piece[i].state[j]);
    for (size_t i = 0; i < opt->n; i++) {
        rw_state_destroy(ctx, opt->members[i].sums);
        rw_param_release(opt->members[i].param);
    }
    rw_optimizer_offload_close(opt->offload);
    free_states(ctx, opt->uploaded, opt->pieces.n_groups);
    free_states(ctx, opt->pending, opt->pieces.n_groups);
    free_states(ctx, opt->due, opt->pieces.n_groups);
    free_states(ctx, opt->sums, opt->pieces.n_groups);
    ctx->memory.optimizer -= opt->bytes;
    rw_free(opt->members);
    rw_free(opt->pieces.piece);
    rw_free(opt->pieces.first);
    rw_free(opt->rows);
    rw_free(opt);
}

void rw_optimizer_share(rw_optimizer *opt)
{
    opt->n_users++;
}

void rw_optimizer_depend(rw_optimizer *opt, struct rw_dependent *d, void (*gone)(struct rw_dependent *d))
{
    rw_depend(&opt->dependents, d, gone);
}

void rw_optimizer_release(rw_optimizer *opt)
{
    rw_context *const ctx = opt->ctx;
    if (--opt->n_users) return;
    free_all(opt);
    rw_context_release(ctx);
}

void rw_optimizer_destroy(rw_optimizer **popt)
{
    RW_ENTER(popt && *popt ? (*popt)->ctx : NULL, );
    if (!popt || !*popt) return;
    rw_optimizer *const opt = *popt;
    *popt = NULL;
    rw_optimizer_release(opt);
}

/* ---- settings ---- */

void rw_optimizer_set_lr(rw_optimizer *opt, double lr)
{
    RW_ENTER(RW_CONTEXT_OF(opt), );
    if (!opt) return;
    if (!(lr >= 0 && isfinite(lr)))
        rw_fail(opt->ctx, RW_ERR_ARGUMENT, "rw_optimizer_set_lr(lr): expected a finite number of 0 or more, got %g",
                lr);
    else if (!check_rates(opt, lr, "rw_optimizer_set_lr(lr)")) opt->numbers.lr = lr;
}

static struct rw_member *member_of(const rw_optimizer *opt, const rw_tensor *param)
{
    for (size_t i = 0; i < opt->n; i++)
        if (&opt->members[i].param->tensor == param) return &opt->members[i];
    return NULL;
}

bool rw_optimizer_holds(const rw_optimizer *opt, const struct rw_param *param)
{
    return member_of(opt, &param->tensor) != NULL;
}

static rw_status refuse_param(const rw_optimizer *opt, const rw_tensor *param)
{
    const struct rw_param *const p = rw_param_of(param);
    if (!param) return rw_fail_null(opt->ctx, "rw_optimizer_set", "param");
    if (!p || rw_tensor_context(param) != opt->ctx)
        return rw_fail(opt->ctx, RW_ERR_ARGUMENT, "rw_optimizer_set(param): expected a parameter of the optimizer's "
                       "context, got %s", p ? "one of another context" : "another kind of tensor, or one that is gone");
    return rw_fail(opt->ctx, RW_ERR_ARGUMENT,
                   "rw_optimizer_set(param): expected a parameter that the optimizer has, got \"%s\"; create the "
                   "optimizer after all parameters, and do not exclude it (rw_optimizer_exclude())", rw_param_name(p));
}

rw_status rw_optimizer_set(rw_optimizer *opt, rw_tensor *param, const rw_optimizer_settings *settings)
{
    RW_ENTER(RW_CONTEXT_OF(opt), RW_ERR_ARGUMENT);
    if (!opt) return rw_fail_null(NULL, "rw_optimizer_set", "opt");
    const rw_optimizer_settings s = settings ? *settings : (rw_optimizer_settings){ 0 };
    struct rw_member *const x = member_of(opt, param);
    if (!x) return refuse_param(opt, param);
    if (!isfinite(s.lr_factor) || !isfinite(s.weight_decay))
        return rw_fail(opt->ctx, RW_ERR_ARGUMENT, "rw_optimizer_set: lr_factor, weight_decay of \"%s\": expected "
                       "finite numbers, got %g and %g", x->param->name, s.lr_factor, s.weight_decay);
    const double lr_factor = rw_or_default_positive(s.lr_factor, 1);
    const double weight_decay = rw_or_default_positive(s.weight_decay, -1);
    const rw_status status = check_rate(opt, (size_t)(x - opt->members), opt->numbers.lr, lr_factor, weight_decay,
                                        "rw_optimizer_set(lr_factor, weight_decay)");
    if (status) return status;
    x->lr_factor = lr_factor;
    x->weight_decay = weight_decay;
    return RW_OK;
}

rw_context *rw_optimizer_context(const rw_optimizer *opt)
{
    return opt->ctx;
}

/* ---- an update ---- */

/*
 * The numbers of the last row. Most parameters have one step and one rate, and either decay or do not, so two of these
 * avoid most computations.
 */
struct known {
    uint64_t step; /* 0: none */
    double lr, weight_decay;
    struct rw_update_row row;
};

static double rate_of(const rw_optimizer *opt, const struct rw_member *x)
{
    return opt->numbers.lr * x->lr_factor;
}

/* Fills in the row of a member. */
static void fill_row(const rw_optimizer *opt, size_t i, struct known *known)
{
    const struct rw_member *const x = &opt->members[i];
    struct rw_update_row *const row = &opt->rows[x->piece];
    const struct rw_optimizer_numbers n = numbers_of(opt, x, opt->numbers.lr, x->lr_factor, x->weight_decay);
    struct known *const k = &known[decays_by_rank(opt, x)];
    if (k->step != x->step + 1 || k->lr != n.lr || k->weight_decay != n.weight_decay) {
        *k = (struct known){ .step = x->step + 1, .lr = n.lr, .weight_decay = n.weight_decay };
        opt->kind->row(&k->row, &n, k->step);
        rw_update_row_finish(&k->row);
        k->row.step = (uint32_t)k->step;
    }
    *row = k->row;
    row->fresh = x->version != x->param->version;
    row->stream = (uint32_t)i + 1;
    row->seed = opt->ctx->generator.seed;
}

/*
 * Fills in the rows: one per parameter, copied to each of its pieces with the piece's own first element. A rate of 0
 * freezes a parameter: its row is skipped. The update's formula would not keep its bytes, because x - 0 * u is NaN if
 * the gradient is not finite, and 0 if x is -0.
 */
static void fill_rows(rw_optimizer *opt)
{
    struct known known[2] = { 0 };
    for (size_t i = 0; i < opt->n; i++) {
        struct rw_member *const x = &opt->members[i];
        x->due = !rw_gradient_is_clear(&x->param->gradient) && rate_of(opt, x) > 0;
        if (x->due) fill_row(opt, i, known);
        else opt->rows[x->piece] = (struct rw_update_row){ .skips = 1 };
    }
    for (size_t k = 0; k < opt->pieces.n; k++) {
        const struct rw_piece *const p = &opt->pieces.piece[k];
        opt->rows[k] = opt->rows[opt->members[p->member].piece];
        opt->rows[k].from = (uint64_t)p->from;
    }
}

rw_status rw_optimizer_prepare(rw_optimizer *opt, enum rw_optimizer_sums sums)
{
    rw_context *const ctx = opt->ctx;
    rw_status status = rw_optimizer_check(opt, "rw_optimizer_step");
    if (status) return status;
    fill_rows(opt);
    for (size_t g = 0; !status && g < opt->pieces.n_groups; g++)
        status = ctx->device->upload(ctx->device_state, opt->uploaded[g]->data, &opt->rows[opt->pieces.first[g]],
                                     opt->uploaded[g]->bytes);
    if (status) return rw_fail(ctx, status, "rw_optimizer_step: the device failed");
    opt->prepared_sums = (uint8_t)sums;
    return RW_OK;
}

void rw_optimizer_count(rw_optimizer *opt)
{
    opt->n_updates++;
    opt->last_sums = opt->prepared_sums;
    for (size_t i = 0; i < opt->n; i++) {
        struct rw_member *const x = &opt->members[i];
        rw_gradient_used(&x->param->gradient);
        x->updated = x->due;
        if (!x->due) continue;
        x->step++;
        x->version = ++x->param->version;
    }
}

bool rw_optimizer_failed(rw_optimizer *opt)
{
    const bool is_torn = opt->offload && rw_optimizer_offload_is_torn(opt->offload);
    for (size_t i = 0; is_torn && i < opt->n; i++) opt->members[i].param->version += opt->members[i].due;
    return is_torn;
}

rw_status rw_optimizer_attend(rw_optimizer *opt, struct rw_run *run)
{
    return opt->offload ? rw_run_watch(run, rw_optimizer_offload_observer(opt->offload)) : RW_OK;
}

const void *rw_optimizer_store(const rw_optimizer *opt)
{
    return opt->offload ? rw_optimizer_offload_store(opt->offload) : NULL;
}

static rw_status plan_again(rw_optimizer *opt)
{
    struct rw_update created;
    const rw_status status = open_update(opt, &created);
    if (status) return status;
    rw_update_close(&opt->update);
    opt->update = created;
    opt->update_follows = opt->pending;
    opt->update_sums = opt->n_watchers > 0;
    return RW_OK;
}

/* Plans again if threads, skipping or observers have changed, then uploads the rows and runs. */
rw_status rw_optimizer_step(rw_optimizer *opt)
{
    RW_ENTER(RW_CONTEXT_OF(opt), RW_ERR_ARGUMENT);
    if (!opt) return rw_fail_null(NULL, "rw_optimizer_step", "opt");
    rw_context *const ctx = opt->ctx;
    if (ctx->status) return ctx->status;
    const rw_status runs = rw_check_runs(ctx, "rw_optimizer_step");
    if (runs) return runs;
    rw_status status = rw_gradients_check(ctx, "rw_optimizer_step");
    if (!status) status = rw_gradients_check_unscaled(ctx, "rw_optimizer_step");
    if (!status) status = rw_optimizer_coverage_check(ctx, "rw_optimizer_step");
    const bool stale = rw_update_is_stale(&opt->update) || opt->update_follows != rw_optimizer_follows(opt) ||
                       opt->update_sums != rw_optimizer_is_watched(opt);
    if (!status && stale) status = plan_again(opt);
    if (!status) status = rw_optimizer_prepare(opt, opt->update_sums ? RW_SUMS_TOGETHER : RW_NO_SUMS);
    if (status) return status;
    status = rw_update_run(&opt->update);
    if (status) rw_optimizer_failed(opt);
    else rw_optimizer_count(opt);
    return status;
}
