/* Compares each replay with the digest of the first execution, and each returned value with the digest before its
   copy out. */
#include "verify/digest_check.h"

#include "base/alloc.h"
#include "base/digest.h"
#include "verify/report.h"

#include <stdio.h>
#include <string.h>

/* A parameter or input that was digested when a step first read it: address of its bytes. */
struct leaf {
    uint32_t value;
    const void *data;
    size_t bytes;
};

/* Of one run, then of another. */
struct replays {
    struct rw_observer observer; /* first: the run hands it back */
    struct replays *next;        /* in the list of spare ones */
    struct digests *all;
    rw_context *ctx;
    size_t n_values, cap_values;
    struct rw_digest *first; /* digests in device memory, one per recorded value, and one for the other side of a
                                comparison */
    bool *known;             /* which of them are digests */
    struct leaf *leaves;
    size_t n_leaves, cap_leaves;
    size_t odd; /* the first action that drew other numbers than before */
};

/* Of a context. */
struct digests {
    struct rw_attach attach; /* first, because the pool returns it */
    rw_context *ctx;
    struct replays *spare;
};

static struct rw_digest *other(const struct replays *r)
{
    return r->first + r->n_values;
}

static rw_status digest(const struct replays *r, const void *data, size_t bytes, struct rw_digest *to)
{
    return r->ctx->device->digest(r->ctx->device_state, data, bytes, r->ctx->threads, to);
}

static bool is_noted_leaf(const rw_tape *t, const rw_plan *plan, uint32_t value)
{
    if (value >= plan->mark_values) return false;
    const struct rw_tensor *const base = rw_tape_value(t, rw_tape_base(t, value));
    return base->producer == RW_NONE_ID && t->leaves[base->leaf].kind != RW_LEAF_GRADIENT;
}

static uint32_t input_value(const struct rw_at *at, int i)
{
    return rw_plan_operand(at->run->tape, at->run->plan, at->node->first_input + (uint32_t)i);
}

/* Digests what the first execution reads, to determine later why a replay differs. A view is digested by its span. */
static rw_status note_leaves(struct replays *r, const struct rw_at *at)
{
    for (int i = 0; i < at->n_in; i++) {
        const uint32_t v = input_value(at, i);
        if (!is_noted_leaf(at->run->tape, at->run->plan, v) || r->known[v]) continue;
        if (!rw_grow(&r->leaves, &r->cap_leaves, r->n_leaves, 1, sizeof *r->leaves)) return RW_ERR_MEMORY;
        const struct leaf leaf = { v, at->in[i].data, rw_view_span(&at->in[i]) };
        const rw_status status = digest(r, leaf.data, leaf.bytes, &r->first[v]);
        if (status) return status;
        r->leaves[r->n_leaves++] = leaf;
        r->known[v] = true;
    }
    return RW_OK;
}

static rw_status digest_outputs(struct replays *r, const struct rw_at *at)
{
    rw_status status = RW_OK;
    for (int i = 0; !status && i < at->n_out; i++) {
        const uint32_t v = at->node->first_output + (uint32_t)i;
        status = digest(r, at->out[i].data, rw_view_bytes(&at->out[i]), &r->first[v]);
        r->known[v] = true;
    }
    return status;
}

static rw_status compare_outputs(struct replays *r, const struct rw_at *at)
{
    const struct rw_device_fns *const device = r->ctx->device;
    rw_status status = RW_OK;
    for (int i = 0; !status && i < at->n_out; i++) {
        const uint32_t v = at->node->first_output + (uint32_t)i;
        if (!r->known[v]) continue;
        status = digest(r, at->out[i].data, rw_view_bytes(&at->out[i]), other(r));
        if (!status)
            status = device->compare(r->ctx->device_state, &r->first[v], other(r), (uint32_t)at->action,
                                     at->run->words);
    }
    return status;
}

static bool draws_others(const struct rw_at *at)
{
    if (at->node->ticket == RW_NONE_ID) return false;
    const rw_ticket before = rw_run_ticket(at->run, at->node);
    return before.seed != at->ticket.seed || before.offset != at->ticket.offset;
}

/* ---- the report ---- */

static bool has_changed(const struct replays *r, const struct leaf *leaf)
{
    const struct rw_device_fns *const device = r->ctx->device;
    void *const state = r->ctx->device_state;
    struct rw_digest before, now;
    return !digest(r, leaf->data, leaf->bytes, other(r)) && !device->download(state, &now, other(r), sizeof now) &&
           !device->download(state, &before, &r->first[leaf->value], sizeof before) && !rw_digest_equal(before, now);
}

/* The first operand of the node that is a leaf and has other bytes now. */
static uint32_t changed_leaf(const struct replays *r, const struct rw_run *run, const struct rw_node *node)
{
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const uint32_t v = rw_plan_operand(run->tape, run->plan, node->first_input + i);
        for (size_t l = 0; l < r->n_leaves; l++)
            if (r->leaves[l].value == v && has_changed(r, &r->leaves[l])) return v;
    }
    return RW_NONE_ID;
}

/* The cause of a mismatch, if it can be determined. */
static void find_cause(const struct replays *r, const struct rw_run *run, size_t action, char *text, size_t size)
{
    const rw_tape *const t = run->tape;
    const uint32_t leaf = changed_leaf(r, run, rw_plan_node(t, run->plan, run->plan->actions[action].node));
    if (r->odd == action) {
        snprintf(text, size, ": it drew different random numbers");
    } else if (leaf != RW_NONE_ID) {
        const rw_tensor *const v = rw_tape_value(t, rw_tape_base(t, leaf));
        const struct rw_leaf *const l = &t->leaves[v->leaf];
        const bool param = l->kind == RW_LEAF_PARAM;
        snprintf(text, size, ": %s \"%s\" changed between the two runs", param ? "parameter" : "input",
                 param ? rw_param_name(t->ctx->by_id[l->param]) : rw_tensor_name(v));
    }
}

/* Records that an action, a replay or a copy in, gave other bytes. */
static rw_status report_replay(const struct replays *r, const struct rw_run *run, size_t action)
{
    char cause[160] = "";
    ckpt_report report = { .mismatches = 1 };
    rw_report_place(run->tape, run->plan, rw_plan_node(run->tape, run->plan, run->plan->actions[action].node), true,
                    &report);
    if (rw_action_is_move(run->plan->actions[action].kind))
        return rw_fail(r->ctx, RW_ERR_MISMATCH,
                       "REWIND_VERIFY=digest: the result of %s at %s (region \"%s\") was offloaded and read back with "
                       "different bytes",
                       report.op, report.site, report.region);
    find_cause(r, run, action, cause, sizeof cause);
    return rw_fail(r->ctx, RW_ERR_MISMATCH,
                   "REWIND_VERIFY=digest: the replay of %s at %s (region \"%s\") gave different bytes than its "
                   "forward%s",
                   report.op, report.site, report.region, cause);
}

/* ---- the observer ---- */

/* A continued run keeps the digests of its first half. */
static rw_status begin(struct rw_observer *o, struct rw_run *run, size_t from, size_t to)
{
    struct replays *const r = (struct replays *)o;
    if (from) return RW_OK;
    memset(r->known, 0, r->n_values * sizeof *r->known);
    r->n_leaves = 0;
    r->odd = SIZE_MAX;
    return RW_OK;
}

static rw_status after(struct rw_observer *o, const struct rw_at *at)
{
    struct replays *const r = (struct replays *)o;
    if (!at->node || !(at->run->plan->actions[at->action].flags & RW_ACTION_DIGEST)) return RW_OK;
    rw_status status;
    if (at->kind == RW_ACTION_REPLAY) {
        if (r->odd == SIZE_MAX && draws_others(at)) r->odd = at->action;
        status = compare_outputs(r, at);
    } else {
        status = note_leaves(r, at);
        if (!status) status = digest_outputs(r, at);
    }
    if (status == RW_ERR_MISMATCH) return report_replay(r, at->run, at->action);
    return status ? rw_fail(r->ctx, status, "REWIND_VERIFY=digest: a value could not be digested") : RW_OK;
}

static rw_status arrived(struct rw_observer *o, const struct rw_at *at)
{
    struct replays *const r = (struct replays *)o;
    if (at->value >= r->n_values || !r->known[at->value]) return RW_OK;
    rw_status status = digest(r, at->out[0].data, rw_view_bytes(&at->out[0]), other(r));
    if (!status)
        status = r->ctx->device->compare(r->ctx->device_state, &r->first[at->value], other(r), (uint32_t)at->action,
                                         at->run->words);
    if (status == RW_ERR_MISMATCH) return report_replay(r, at->run, at->action);
    return status ? rw_fail(r->ctx, status, "REWIND_VERIFY=digest: a value could not be digested") : RW_OK;
}

static void end(struct rw_observer *o, struct rw_run *run, rw_status status, size_t action)
{
    if (status == RW_ERR_MISMATCH) report_replay((struct replays *)o, run, action);
}

static void detach(struct rw_observer *o, struct rw_run *run)
{
    struct replays *const r = (struct replays *)o;
    r->next = r->all->spare;
    r->all->spare = r;
}

/* ---- a context's ---- */

static bool make_room(struct replays *r, size_t n_values)
{
    const struct rw_device_fns *const device = r->ctx->device;
    r->n_values = n_values;
    if (r->first && r->cap_values >= n_values) return true;
    device->free(r->ctx->device_state, r->first);
    rw_free(r->known);
    r->cap_values = n_values;
    r->known = rw_malloc(n_values * sizeof *r->known);
    r->first = device->alloc(r->ctx->device_state, (n_values + 1) * sizeof *r->first);
    return r->known && r->first;
}

static void destroy_replays(struct replays *r)
{
    r->ctx->device->free(r->ctx->device_state, r->first);
    rw_free(r->known);
    rw_free(r->leaves);
    rw_free(r);
}

static struct replays *take(struct digests *all)
{
    struct replays *const spare = all->spare;
    if (spare) {
        all->spare = spare->next;
        return spare;
    }
    struct replays *const r = rw_calloc(1, sizeof *r);
    if (!r) return NULL;
    r->observer = (struct rw_observer){ .begin = begin, .after = after, .arrived = arrived, .end = end,
                                         .detach = detach };
    r->all = all;
    r->ctx = all->ctx;
    return r;
}

static rw_status attach(struct rw_attach *self, struct rw_run *run, struct rw_observer **ret_observer)
{
    struct digests *const all = (struct digests *)self;
    if ((run->flags & RW_RUN_REHEARSAL) || (!run->plan->cost.replayed_nodes && !run->plan->n_slots))
        return RW_OK;
    struct replays *const r = take(all);
    if (r && make_room(r, run->plan->mark_values)) {
        *ret_observer = &r->observer;
        return RW_OK;
    }
    if (r) destroy_replays(r);
    return rw_fail(all->ctx, RW_ERR_MEMORY, "REWIND_VERIFY=digest: out of memory");
}

static void destroy(struct rw_attach *self)
{
    struct digests *const all = (struct digests *)self;
    while (all->spare) {
        struct replays *const r = all->spare;
        all->spare = r->next;
        destroy_replays(r);
    }
    rw_free(all);
}

rw_status rw_digest_check_attach(rw_context *ctx)
{
    struct digests *const all = rw_calloc(1, sizeof *all);
    if (!all) return RW_ERR_MEMORY;
    *all = (struct digests){ .attach = { .attach = attach, .destroy = destroy }, .ctx = ctx };
    rw_runs_attach(ctx, &all->attach);
    return RW_OK;
}
