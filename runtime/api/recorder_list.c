/* Checks, opens and walks a list of recorders. It knows the order of their stages, and no recorder. */
#include "api/recorder_list.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- checks ---- */

rw_status rw_recorder_refuse(const struct rw_recorder_check *at, rw_status status, const char *argument,
                             const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return rw_fail(at->t->ctx, status, "%s(recorders[%zu]): %s(%s): %s", at->call, at->index,
                   at->list[at->index].kind_->name, argument, text);
}

/* Compares an entry with one before it. */
static rw_status check_pair(const struct rw_recorder_check *at, size_t before)
{
    const rw_recorder *const x = &at->list[at->index], *const y = &at->list[before];
    if (x->kind_ == y->kind_ && x->kind_->is_single)
        return rw_fail(at->t->ctx, RW_ERR_ARGUMENT, "%s(recorders[%zu]): expected one %s() in a list, got another at "
                       "recorders[%zu]", at->call, at->index, x->kind_->name, before);
    const bool is_custom = x->def_ || y->def_; /* it has what the caller gave it */
    if (x->of_ && x->of_ == y->of_ && !is_custom)
        return rw_fail(at->t->ctx, RW_ERR_ARGUMENT, "%s(recorders[%zu]): expected an object that the list does not "
                       "have yet, got that of recorders[%zu]: %s(), %s()", at->call, at->index, before, y->kind_->name,
                       x->kind_->name);
    if (x->kind_->stage < y->kind_->stage)
        return rw_fail(at->t->ctx, RW_ERR_ARGUMENT, "%s(recorders[%zu]): expected %s() before %s(), got it after "
                       "recorders[%zu]; each entry uses the results of those before it", at->call, at->index,
                       x->kind_->name, y->kind_->name, before);
    return RW_OK;
}

static rw_status check_entry(const struct rw_recorder_check *at)
{
    const rw_recorder *const x = &at->list[at->index];
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < at->index; i++)
        if (at->list[i].kind_) status = check_pair(at, i);
    if (status) return status;
    if (x->kind_->needs_graph && !at->is_graph)
        return rw_fail(at->t->ctx, RW_ERR_UNSUPPORTED, "%s(recorders[%zu]): expected a recorder that runs after "
                       "backward, got %s(), which needs a graph: rw_graph_create()", at->call, at->index,
                       x->kind_->name);
    return x->kind_->check ? x->kind_->check(x, at) : RW_OK;
}

rw_status rw_recorders_check(const rw_recorder *list, const char *call, const rw_tape *t, const rw_tensor *loss,
                             bool is_graph)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < RW_RECORDERS_MAX; i++) {
        const struct rw_recorder_check at = { .call = call, .t = t, .loss = loss, .list = list, .index = i,
                                              .is_graph = is_graph };
        if (list[i].kind_) status = check_entry(&at);
    }
    return status;
}

/* ---- opening and closing ---- */

rw_status rw_recorders_open(struct rw_recorders *r, const rw_recorder *list, const char *call, rw_context *ctx,
                            bool is_graph)
{
    struct rw_recorder_use use = { .call = call, .ctx = ctx, .is_graph = is_graph };
    rw_status status = RW_OK;
    *r = (struct rw_recorders){ .n = 0 };
    for (size_t i = 0; i < RW_RECORDERS_MAX; i++) use.skips |= list[i].kind_ && list[i].kind_->skips;
    for (size_t i = 0; !status && i < RW_RECORDERS_MAX; i++) {
        if (!list[i].kind_) continue;
        status = list[i].kind_->open(&list[i], &use, &r->entry[r->n]);
        if (!status) r->entry[r->n++]->kind = list[i].kind_;
    }
    if (status) rw_recorders_close(r, true);
    return status;
}

/* In reverse order, as they were opened: no recorder outlives one that it may refer to. */
void rw_recorders_close(struct rw_recorders *r, bool never_ran)
{
    while (r->n) {
        struct rw_step_recorder *const last = r->entry[--r->n];
        last->kind->close(last, never_ran);
    }
}

/* ---- walks ---- */

const void *rw_recorders_seed(const struct rw_recorders *r)
{
    const void *seed = NULL;
    for (size_t i = 0; !seed && i < r->n; i++)
        if (r->entry[i]->kind->seed) seed = r->entry[i]->kind->seed(r->entry[i]);
    return seed;
}

bool rw_recorders_consume(const struct rw_recorders *r, bool *used_up)
{
    bool inside = false;
    for (size_t i = 0; i < r->n; i++) {
        inside |= r->entry[i]->kind->updates_inside;
        if (r->entry[i]->kind->consume) r->entry[i]->kind->consume(r->entry[i], used_up);
    }
    return inside;
}

rw_status rw_recorders_attend(const struct rw_recorders *r, struct rw_run *run)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < r->n; i++)
        if (r->entry[i]->kind->attend) status = r->entry[i]->kind->attend(r->entry[i], run);
    return status;
}

rw_status rw_recorders_check_launch(const struct rw_recorders *r, const struct rw_run *run, const char *call)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < r->n; i++)
        if (r->entry[i]->kind->check_launch) status = r->entry[i]->kind->check_launch(r->entry[i], run, call);
    return status;
}

rw_status rw_recorders_before(const struct rw_recorders *r)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < r->n; i++)
        if (r->entry[i]->kind->before) status = r->entry[i]->kind->before(r->entry[i]);
    return status;
}

rw_status rw_recorders_prepare(const struct rw_recorders *r)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < r->n; i++)
        if (r->entry[i]->kind->prepare) status = r->entry[i]->kind->prepare(r->entry[i]);
    return status;
}

void rw_recorders_failed(const struct rw_recorders *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->entry[i]->kind->failed) r->entry[i]->kind->failed(r->entry[i]);
}

void rw_recorders_launched(const struct rw_recorders *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->entry[i]->kind->launched) r->entry[i]->kind->launched(r->entry[i]);
}

/* ---- captures ---- */

static const void *address_of(const struct rw_step_recorder *r)
{
    return r->kind->address ? r->kind->address(r) : NULL;
}

bool rw_recorders_have_moved(const struct rw_recorders *r)
{
    bool have = false;
    for (size_t i = 0; !have && i < r->n; i++) have = r->entry[i]->captured_address != address_of(r->entry[i]);
    return have;
}

void rw_recorders_captured(const struct rw_recorders *r, bool is_valid)
{
    for (size_t i = 0; i < r->n; i++) {
        struct rw_step_recorder *const x = r->entry[i];
        if (x->kind->captured) x->kind->captured(x);
        if (is_valid) x->captured_address = address_of(x);
    }
}
