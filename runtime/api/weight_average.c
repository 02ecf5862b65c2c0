/*
 * Moving averages of the weights. Averages are states of the context, and adding the parameters is a commit like an
 * optimizer's update, with the parameters in place of gradients and the averages in place of parameters.
 */
#include "api/weight_average.h"

#include "api/cached_update_plan.h"
#include "base/alloc.h"
#include "ops/optim/update_ops.h"
#include "record/fp8_weight_cache.h"

#include <stdio.h>

#define GROUP 4096 /* parameters per node */

struct member {
    struct rw_param *param;
    struct rw_param *average; /* one of `states` */
};

struct rw_weight_average {
    struct rw_step_recorder recorder; /* first */
    rw_context *ctx;
    struct member *members;
    struct rw_param *states;  /* the averages: callers hold their tensors */
    struct rw_param **rows; /* by group; written only when the decay changes */
    size_t n, n_groups, bytes;
    struct rw_update update;
    struct rw_dependent *dependents; /* checkpoints */
};

static rw_status no_memory(rw_context *ctx)
{
    return rw_fail(ctx, RW_ERR_MEMORY, "rw_weight_average_create: out of memory");
}

static size_t group_size(const rw_weight_average *a, size_t group)
{
    const size_t rest = a->n - group * GROUP;
    return rest < GROUP ? rest : GROUP;
}

/* ---- recording ---- */

static rw_status record_group(rw_weight_average *a, size_t group, rw_tape *t, rw_tensor **in)
{
    static const struct rw_update_attrs attrs = { RW_UPDATE_AVERAGE, 0 };
    const struct member *const x = &a->members[group * GROUP];
    const size_t n = group_size(a, group);
    in[0] = &a->rows[group]->tensor;
    for (size_t i = 0; i < n; i++) {
        in[1 + i] = &x[i].param->tensor;
        in[1 + n + i] = &x[i].average->tensor;
    }
    return rw_update_record(t, "rw_weight_average_step", &rw_op_average, in, (int)(1 + 2 * n), &attrs, sizeof attrs,
                            NULL);
}

static rw_status record(struct rw_step_recorder *r, struct rw_recording *now)
{
    rw_weight_average *const a = (rw_weight_average *)r;
    rw_tensor **const in = rw_malloc((1 + 2 * (a->n < GROUP ? a->n : GROUP)) * sizeof *in);
    rw_status status = in ? RW_OK : no_memory(a->ctx);
    for (size_t g = 0; !status && g < a->n_groups; g++) status = record_group(a, g, now->t, in);
    rw_free(in);
    return status;
}

static const struct rw_recorder_kind kind = { .name = "rw_weight_average_step", .record = record };

static rw_status open_update(rw_weight_average *a, struct rw_update *ret)
{
    struct rw_step_recorder *const recorder = &a->recorder;
    return rw_update_open(ret, a->ctx, &recorder, 1, NULL);
}

/* ---- making and ending ---- */

static rw_status add_rows(rw_weight_average *a)
{
    const size_t groups = (a->n + GROUP - 1) / GROUP;
    a->rows = rw_calloc(groups, sizeof(struct rw_param *));
    if (!a->rows) return RW_ERR_MEMORY;
    for (; a->n_groups < groups; a->n_groups++) {
        const int64_t n = (int64_t)group_size(a, a->n_groups);
        struct rw_param *const p = rw_state_create(a->ctx, RW_I32, RW_SHAPE(n, RW_UPDATE_ROW_WORDS));
        if (!p) return RW_ERR_MEMORY;
        a->rows[a->n_groups] = p;
    }
    return RW_OK;
}

static rw_status upload_decay(rw_weight_average *a, double decay)
{
    rw_context *const ctx = a->ctx;
    struct rw_update_row row = { .lr = 1, .b1 = decay, .c1 = 1 - decay, .decay = 1, .correction1 = 1,
                                 .correction2 = 1 };
    struct rw_update_row *const rows = rw_malloc(GROUP * sizeof *rows);
    rw_status status = rows ? RW_OK : RW_ERR_MEMORY;
    rw_update_row_finish(&row);
    for (size_t i = 0; rows && i < GROUP; i++) rows[i] = row;
    for (size_t g = 0; !status && g < a->n_groups; g++)
        status = ctx->device->upload(ctx->device_state, a->rows[g]->data, rows, a->rows[g]->bytes);
    rw_free(rows);
    return status;
}

/* Adds an average for each trained parameter, in at least float32. */
static rw_status add_members(rw_weight_average *a)
{
    rw_context *const ctx = a->ctx;
    a->members = rw_calloc(ctx->n_params, sizeof *a->members);
    a->states = rw_calloc(ctx->n_params, sizeof *a->states);
    if (!a->members || !a->states) return RW_ERR_MEMORY;
    for (size_t i = 0; i < ctx->n_params; i++) {
        struct rw_param *const p = ctx->params[i];
        const rw_dtype wide = p->tensor.dtype == RW_F64 ? RW_F64 : RW_F32;
        struct rw_param *const s = &a->states[a->n];
        if (!rw_param_is_trained(p)) continue;
        char name[sizeof "average of " + RW_NAME_MAX];
        snprintf(name, sizeof name, "average of %s", p->name);
        if (!rw_state_create_in(s, ctx, name, wide, rw_layout_shape(rw_layout_of(ctx, &p->tensor))))
            return RW_ERR_MEMORY;
        a->members[a->n++] = (struct member){ p, s };
        a->bytes += s->bytes;
    }
    return RW_OK;
}

/* Frees the average. Tensors of the averages that callers hold are kept as stale handles. */
static void free_all(rw_weight_average *a)
{
    rw_context *const ctx = a->ctx;
    rw_dependents_tell(&a->dependents);
    rw_update_close(&a->update);
    rw_tapes_miss(ctx, a->states, a->n);
    for (size_t i = 0; i < a->n; i++) rw_kept_codes_drop(ctx, &a->states[i]);
    rw_states_end(ctx, a->states, a->n);
    if (a->n) rw_context_keep(ctx, a->states);
    else rw_free(a->states);
    for (size_t g = 0; g < a->n_groups; g++) rw_state_destroy(ctx, a->rows[g]);
    ctx->memory.optimizer -= a->bytes;
    rw_free(a->members);
    rw_free(a->rows);
    rw_free(a);
    rw_context_release(ctx);
}

static bool is_decay(double decay)
{
    return decay >= 0 && decay < 1; /* false for NaN */
}

static rw_status bad_decay(rw_context *ctx, const char *call, double decay)
{
    return rw_fail(ctx, RW_ERR_ARGUMENT, "%s(decay): expected 0 or more and less than 1, got %g", call, decay);
}

/* Averages begin as copies of the parameters: the first step has decay 0. */
static rw_status begin(rw_weight_average *a, double decay)
{
    rw_context *const ctx = a->ctx;
    rw_status status = add_members(a);
    if (!status) status = add_rows(a);
    if (!status) status = upload_decay(a, 0);
    if (status) return no_memory(ctx);
    status = rw_states_check_bytes(ctx, a->bytes, "rw_weight_average_create");
    if (status) return status;
    status = open_update(a, &a->update);
    if (!status && !ctx->plan_only) status = rw_update_run(&a->update);
    if (!status) status = rw_runs_wait(ctx);
    return status ? status : upload_decay(a, decay) ? no_memory(ctx) : RW_OK;
}

/* The averages begin as copies of the parameters. */
rw_status rw_weight_average_create(rw_weight_average **ret, rw_context *ctx, double decay)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ret || !ctx) return rw_fail_null(ctx, "rw_weight_average_create", ctx ? "ret_average" : "ctx");
    if (ctx->status) return ctx->status;
    if (!is_decay(decay)) return bad_decay(ctx, "rw_weight_average_create", decay);
    rw_weight_average *a = rw_calloc(1, sizeof *a);
    if (!a) return no_memory(ctx);
    a->recorder.kind = &kind;
    a->ctx = ctx;
    ctx->n_users++;
    const rw_status status = begin(a, decay);
    ctx->memory.optimizer += a->bytes;
    if (status) rw_weight_average_destroy(&a);
    else *ret = a;
    return status;
}

void rw_average_depend(rw_weight_average *a, struct rw_dependent *d, void (*gone)(struct rw_dependent *d))
{
    rw_depend(&a->dependents, d, gone);
}

void rw_weight_average_destroy(rw_weight_average **pa)
{
    RW_ENTER(pa && *pa ? (*pa)->ctx : NULL, );
    if (!pa || !*pa) return;
    rw_weight_average *const a = *pa;
    *pa = NULL;
    free_all(a);
}

/* ---- use ---- */

rw_status rw_weight_average_set_decay(rw_weight_average *a, double decay)
{
    RW_ENTER(RW_CONTEXT_OF(a), RW_ERR_ARGUMENT);
    if (!a) return rw_fail_null(NULL, "rw_weight_average_set_decay", "average");
    if (a->ctx->status) return a->ctx->status;
    if (!is_decay(decay)) return bad_decay(a->ctx, "rw_weight_average_set_decay", decay);
    const rw_status status = upload_decay(a, decay);
    if (!status) return RW_OK;
    return rw_fail(a->ctx, status, "rw_weight_average_set_decay: the copy to the device failed");
}

/* Plans again if the number of threads has changed, and runs the update. */
rw_status rw_weight_average_step(rw_weight_average *a)
{
    RW_ENTER(RW_CONTEXT_OF(a), RW_ERR_ARGUMENT);
    if (!a) return rw_fail_null(NULL, "rw_weight_average_step", "average");
    if (a->ctx->status) return a->ctx->status;
    const rw_status runs = rw_check_runs(a->ctx, "rw_weight_average_step");
    if (runs) return runs;
    if (rw_update_is_stale(&a->update)) {
        struct rw_update created;
        const rw_status status = open_update(a, &created);
        if (status) return status;
        rw_update_close(&a->update);
        a->update = created;
    }
    const rw_status status = rw_update_run(&a->update);
    for (size_t i = 0; !status && i < a->n; i++) a->members[i].average->version++;
    return status;
}

rw_tensor *rw_weight_average_of(const rw_weight_average *a, const rw_tensor *param)
{
    RW_LOOKS_ONLY;
    for (size_t i = 0; a && i < a->n; i++)
        if (&a->members[i].param->tensor == param) return &a->members[i].average->tensor;
    return NULL;
}

rw_context *rw_average_context(const rw_weight_average *a)
{
    return a->ctx;
}

size_t rw_average_members(const rw_weight_average *a)
{
    return a->n;
}

struct rw_param *rw_average_param(const rw_weight_average *a, size_t i)
{
    return a->members[i].param;
}

struct rw_param *rw_average_state(const rw_weight_average *a, size_t i)
{
    return a->members[i].average;
}
