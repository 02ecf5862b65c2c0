/*
 * rw_backward_with(): backward, then one plan of what its list records. The context keeps the plan of the last list. It
 * does not keep the objects of the list alive: the plan ends with the first of them.
 */
#include "api/backward_with.h"

#include "api/cached_update_plan.h"
#include "api/expected_backward.h"
#include "api/recorder_list.h"
#include "autodiff/roots.h"
#include "base/alloc.h"
#include "record/gradient_state.h"
#include "record/param.h"

#include <string.h>

static const char name[] = "rw_backward_with";

struct rw_backward_recorders {
    rw_context *ctx;
    rw_recorder list[RW_RECORDERS_MAX]; /* that it was opened for */
    struct rw_recorders open;
    struct rw_update update;
    struct kept_by {
        struct rw_dependent on; /* must be first */
        struct rw_backward_recorders *recorders;
    } kept_by[RW_RECORDERS_MAX];
    size_t n_params; /* number of parameters that it was planned for */
    bool ran;        /* its plan ran at least once, or may have done so in part */
};

/* Of a context: the plan of its last list. Destroyed with the context's handle, because its tape is a user of it. */
static struct rw_extension extension = { .name = "backward_recorders",
                                         .size = sizeof(struct rw_backward_recorders *) };

struct rw_backward_recorders *rw_backward_recorders_of(const rw_context *ctx)
{
    struct rw_backward_recorders *const *const place = rw_extension_find(&ctx->extensions, &extension);
    return place ? *place : NULL;
}

static void set(const rw_context *ctx, struct rw_backward_recorders *x)
{
    struct rw_backward_recorders **const place = rw_extension_find(&ctx->extensions, &extension);
    *place = x;
}

static void end(struct rw_backward_recorders *x, bool never_ran)
{
    rw_update_close(&x->update);
    for (size_t i = 0; i < RW_RECORDERS_MAX; i++) rw_depend_end(&x->kept_by[i].on);
    rw_recorders_close(&x->open, never_ran);
    rw_free(x);
}

void rw_backward_recorders_destroy(rw_context *ctx)
{
    struct rw_backward_recorders *const x = rw_backward_recorders_of(ctx);
    if (!x) return;
    set(ctx, NULL);
    end(x, false);
}

static void gone(struct rw_dependent *d)
{
    rw_backward_recorders_destroy(((struct kept_by *)(void *)d)->recorders->ctx);
}

/* ---- the plan ---- */

/* Is it the same list, apart from numbers? */
static bool is_same(const rw_recorder *a, const rw_recorder *b)
{
    bool same = true;
    for (size_t i = 0; same && i < RW_RECORDERS_MAX; i++)
        same = a[i].kind_ == b[i].kind_ && a[i].of_ == b[i].of_ && a[i].def_ == b[i].def_;
    return same;
}

static bool is_current(const struct rw_backward_recorders *x, const rw_recorder *list)
{
    bool is = is_same(x->list, list) && x->n_params == x->ctx->n_params && !rw_update_is_stale(&x->update);
    for (size_t i = 0; is && i < x->open.n; i++) {
        const struct rw_step_recorder *const r = x->open.entry[i];
        is = !r->kind->is_current || r->kind->is_current(r);
    }
    return is;
}

static rw_status open_list(struct rw_backward_recorders *x, const rw_recorder *list)
{
    rw_status status = rw_recorders_open(&x->open, list, name, x->ctx, false);
    if (!status) status = rw_update_open(&x->update, x->ctx, x->open.entry, x->open.n, NULL);
    if (!status) status = rw_recorders_attend(&x->open, x->update.run);
    for (size_t i = 0; !status && i < x->open.n; i++) {
        struct rw_step_recorder *const r = x->open.entry[i];
        x->kept_by[i].recorders = x;
        if (r->kind->depend) r->kind->depend(r, &x->kept_by[i].on, gone);
    }
    memcpy(x->list, list, sizeof x->list);
    x->n_params = x->ctx->n_params;
    return status;
}

/* The plan of another list is kept if this fails. */
static rw_status plan(rw_context *ctx, const rw_recorder *list)
{
    const bool is_known = rw_extension_make(&ctx->extensions, &extension);
    struct rw_backward_recorders *const x = is_known ? rw_calloc(1, sizeof *x) : NULL;
    if (!x) return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory", name);
    x->ctx = ctx;
    const rw_status status = open_list(x, list);
    if (status) {
        end(x, true);
        return status;
    }
    rw_backward_recorders_destroy(ctx);
    set(ctx, x);
    return RW_OK;
}

/* Numbers of the list, such as a norm, may differ in each call. */
static rw_status renumber(struct rw_backward_recorders *x, const rw_recorder *list)
{
    rw_status status = RW_OK;
    for (size_t i = 0, k = 0; !status && i < RW_RECORDERS_MAX; i++) {
        if (!list[i].kind_) continue;
        struct rw_step_recorder *const r = x->open.entry[k++];
        if (r->kind->renumber) status = r->kind->renumber(r, list[i].number_);
    }
    return status;
}

/* ---- a step ---- */

/* Gradients of another scale, or unscaled ones, are refused before anything runs. */
static rw_status before_backward(const struct rw_backward_recorders *x)
{
    rw_status status = RW_OK;
    if (x->open.n && !rw_recorders_seed(&x->open)) status = rw_gradients_check_unscaled(x->ctx, name);
    for (size_t i = 0; !status && i < x->open.n; i++) {
        const struct rw_step_recorder *const r = x->open.entry[i];
        if (r->kind->before_backward) status = r->kind->before_backward(r, name);
    }
    return status;
}

static rw_status backward(const struct rw_backward_recorders *x, rw_tape *t, uint32_t loss)
{
    const void *const seed = rw_recorders_seed(&x->open), *const seeds[] = { seed };
    rw_status status = before_backward(x);
    if (!status) status = rw_roots_note(t, &loss, 1, seed != NULL, name);
    if (!status) status = rw_begun_backward(t, loss, seed ? seeds : NULL);
    for (size_t i = 0; !status && i < x->open.n; i++) {
        struct rw_step_recorder *const r = x->open.entry[i];
        if (r->kind->after_backward) r->kind->after_backward(r);
    }
    return status;
}

/* Number of recorders of the list that write gradients. */
static size_t count_writers(const struct rw_backward_recorders *x)
{
    size_t n = 0;
    for (size_t i = 0; i < x->open.n; i++) n += x->open.entry[i]->kind->reads_all;
    return n;
}

/* The first of several writers finds a clear gradient absent. The next one reads its memory, which has that of an
   earlier step. */
static rw_status store_zeros(const struct rw_backward_recorders *x)
{
    rw_status status = RW_OK;
    if (count_writers(x) < 2) return RW_OK;
    for (size_t i = 0; !status && i < x->ctx->n_params; i++)
        if (x->ctx->params[i]->gradient.data) status = rw_gradient_store(x->ctx, x->ctx->params[i], name);
    return status;
}

static rw_status update(struct rw_backward_recorders *x)
{
    rw_status status = rw_gradients_check(x->ctx, name);
    for (size_t i = 0; !status && i < x->open.n; i++) {
        const struct rw_step_recorder *const r = x->open.entry[i];
        if (r->kind->check_update) status = r->kind->check_update(r, name);
    }
    if (!status) status = store_zeros(x);
    if (!status) status = rw_recorders_prepare(&x->open);
    if (status) return status;
    x->ran = true;
    status = rw_update_run(&x->update);
    if (status) {
        rw_recorders_failed(&x->open);
        return status;
    }
    if (count_writers(x)) rw_gradients_changed(x->ctx);
    rw_recorders_launched(&x->open);
    return RW_OK;
}

/* Ends the plan of the context if its first step failed before the update: what opening the list has changed, such as
   where an optimizer counts, is taken back. Also if nothing else would end it. */
static void keep_or_end(rw_context *ctx, rw_status status)
{
    struct rw_backward_recorders *const x = rw_backward_recorders_of(ctx);
    if (!x || (!ctx->destroyed && (!status || x->ran))) return;
    set(ctx, NULL);
    end(x, !x->ran);
}

static rw_status backward_with(rw_tape *t, uint32_t loss, const rw_recorder *list)
{
    rw_context *const ctx = t->ctx;
    const struct rw_backward_recorders *const last = rw_backward_recorders_of(ctx);
    rw_status status = last && is_current(last, list) ? RW_OK : plan(ctx, list);
    if (status) return status;
    struct rw_backward_recorders *const x = rw_backward_recorders_of(ctx);
    status = renumber(x, list);
    if (!status) status = backward(x, t, loss);
    if (!status) status = update(x);
    keep_or_end(ctx, status);
    return status;
}

static bool is_empty(const rw_recorder *list)
{
    bool is = true;
    for (size_t i = 0; i < RW_RECORDERS_MAX; i++) is &= !list[i].kind_;
    return is;
}

/* Checks the arguments, and runs the two parts. */
rw_status rw_backward_with(rw_tape *t, rw_tensor *loss, const rw_backward_params *params)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, name, "t");
    static const rw_backward_params none;
    const rw_recorder *const list = params ? params->recorders : none.recorders;
    const uint32_t id = rw_loss_check(t, loss, name);
    if (id == RW_NONE_ID) return t->ctx->status;
    rw_status status = rw_recorders_check(list, name, t, loss, false);
    if (!status) status = rw_check_runs(t->ctx, name);
    if (status) return status;
    return is_empty(list) ? backward(&(struct rw_backward_recorders){ .ctx = t->ctx }, t, id)
                          : backward_with(t, id, list);
}
