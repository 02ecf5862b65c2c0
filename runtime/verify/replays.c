/* Replays against the digests of what they repeat. See replays.h. */
#include "verify/replays.h"

#include "base/alloc.h"
#include "base/digest.h"
#include "verify/report.h"

#include <stdio.h>
#include <string.h>

/* A parameter or input that was digested when a step first read it: where its bytes are. */
struct leaf {
    uint32_t value;
    const void *data;
    size_t bytes;
};

struct rw_replays {
    struct rw_observer observer; /* first: the walker hands it back */
    rw_context *ctx;
    rw_tape *t; /* of this run */
    size_t n_values;
    struct rw_digest *first; /* in the device's memory: of each recorded value; one more, for the other of two */
    bool *known;             /* which of them are digests */
    struct leaf *leaves;
    size_t n_leaves, cap_leaves;
    size_t odd_step; /* the first that drew other numbers than it had drawn before */
};

static struct rw_digest *other(const struct rw_replays *r)
{
    return r->first + r->n_values;
}

static rw_status digest(const struct rw_replays *r, const void *data, size_t bytes, struct rw_digest *to)
{
    return r->ctx->device->digest(r->ctx->device_state, data, bytes, r->ctx->threads, to);
}

static bool is_noted_leaf(const rw_tape *t, const rw_plan *plan, uint32_t value)
{
    if (value >= plan->mark_values) return false;
    const struct rw_tensor *const base = rw_tape_value(t, rw_tape_base(t, value));
    return base->producer == RW_NONE_ID && t->leaves[base->leaf].kind != RW_LEAF_GRADIENT;
}

/* What the first computation reads is digested too, to tell later why a replay gave other bytes. Views as their span. */
static rw_status note_leaves(struct rw_replays *r, const rw_plan *plan, const struct rw_node *node, const rw_kernel *k)
{
    for (int i = 0; i < k->n_inputs; i++) {
        const uint32_t v = rw_plan_operand(r->t, plan, node->first_input + (uint32_t)i);
        if (!is_noted_leaf(r->t, plan, v) || r->known[v]) continue;
        if (!rw_grow(&r->leaves, &r->cap_leaves, r->n_leaves, 1, sizeof *r->leaves)) return RW_ERR_MEMORY;
        const struct leaf leaf = { v, k->in[i].data, rw_view_span(&k->in[i]) };
        const rw_status status = digest(r, leaf.data, leaf.bytes, &r->first[v]);
        if (status) return status;
        r->leaves[r->n_leaves++] = leaf;
        r->known[v] = true;
    }
    return RW_OK;
}

static rw_status digest_outputs(struct rw_replays *r, const struct rw_node *node, const rw_kernel *k)
{
    rw_status status = RW_OK;
    for (int i = 0; !status && i < k->n_outputs; i++) {
        const uint32_t v = node->first_output + (uint32_t)i;
        status = digest(r, k->out[i].data, rw_view_bytes(&k->out[i]), &r->first[v]);
        r->known[v] = true;
    }
    return status;
}

static rw_status compare_outputs(struct rw_replays *r, const struct rw_node *node, size_t step, const rw_kernel *k)
{
    rw_status status = RW_OK;
    for (int i = 0; !status && i < k->n_outputs; i++) {
        const uint32_t v = node->first_output + (uint32_t)i;
        if (!r->known[v]) continue;
        status = digest(r, k->out[i].data, rw_view_bytes(&k->out[i]), other(r));
        if (!status)
            status = r->ctx->device->compare(r->ctx->device_state, &r->first[v], other(r), (uint32_t)step);
    }
    return status;
}

static bool draws_others(const struct rw_replays *r, const struct rw_node *node, const rw_kernel *k)
{
    if (node->ticket == RW_NONE_ID) return false;
    const rw_ticket before = rw_plan_ticket(r->t, node);
    return before.seed != k->ticket.seed || before.offset != k->ticket.offset;
}

static rw_status after_step(struct rw_observer *o, const rw_plan *plan, size_t step, const rw_kernel *k)
{
    struct rw_replays *const r = (struct rw_replays *)o;
    const struct rw_action *const s = &plan->actions[step];
    if (!(s->flags & RW_ACTION_DIGEST)) return RW_OK;
    const struct rw_node *const node = rw_plan_node(r->t, plan, s->node);
    rw_status status;
    if (s->kind == RW_ACTION_REPLAY) {
        if (r->odd_step == SIZE_MAX && draws_others(r, node, k)) r->odd_step = step;
        status = compare_outputs(r, node, step, k);
    } else {
        status = note_leaves(r, plan, node, k);
        if (!status) status = digest_outputs(r, node, k);
    }
    if (status == RW_ERR_MISMATCH) return rw_replays_report(r->t, plan, step);
    return status ? rw_fail(r->ctx, status, "REWIND_VERIFY=digest: a value could not be digested") : RW_OK;
}

/* ---- the report ---- */

static bool has_changed(const struct rw_replays *r, const struct leaf *leaf)
{
    const struct rw_device_fns *const device = r->ctx->device;
    void *const state = r->ctx->device_state;
    struct rw_digest before, now;
    return !digest(r, leaf->data, leaf->bytes, other(r)) && !device->download(state, &now, other(r), sizeof now) &&
           !device->download(state, &before, &r->first[leaf->value], sizeof before) && !rw_digest_equal(before, now);
}

/* The first operand of the node that is a leaf and holds other bytes by now. */
static uint32_t changed_leaf(const struct rw_replays *r, const rw_plan *plan, const struct rw_node *node)
{
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const uint32_t v = rw_plan_operand(r->t, plan, node->first_input + i);
        for (size_t l = 0; l < r->n_leaves; l++)
            if (r->leaves[l].value == v && has_changed(r, &r->leaves[l])) return v;
    }
    return RW_NONE_ID;
}

/* Why, where that can be told. */
static void find_cause(const struct rw_replays *r, const rw_plan *plan, size_t step, char *text, size_t size)
{
    const rw_tape *const t = r->t;
    const uint32_t leaf = changed_leaf(r, plan, rw_plan_node(t, plan, plan->actions[step].node));
    if (r->odd_step == step) {
        snprintf(text, size, ": it drew other random numbers");
    } else if (leaf != RW_NONE_ID) {
        const rw_tensor *const v = rw_tape_value(t, rw_tape_base(t, leaf));
        const struct rw_leaf *const l = &t->leaves[v->leaf];
        const bool param = l->kind == RW_LEAF_PARAM;
        snprintf(text, size, ": %s \"%s\" changed in between", param ? "parameter" : "input",
                 param ? t->ctx->params[l->param]->name : rw_tensor_name(v));
    }
}

rw_status rw_replays_report(rw_tape *t, const rw_plan *plan, size_t step)
{
    char cause[160] = "";
    ckpt_report report = { .mismatches = 1 };
    rw_report_place(t, rw_plan_node(t, plan, plan->actions[step].node), true, &report);
    /* Somebody else's run of the plan may have been queued since a graph was captured: of that one nothing is said. */
    if (plan->replays->t == t) find_cause(plan->replays, plan, step, cause, sizeof cause);
    return rw_fail(t->ctx, RW_ERR_MISMATCH,
                   "REWIND_VERIFY=digest: the replay of %s at %s (region \"%s\") gave other bytes than its forward%s",
                   report.op, report.site, report.region, cause);
}

/* ---- a plan's ---- */

static struct rw_replays *create(rw_context *ctx, const rw_plan *plan)
{
    struct rw_replays *const r = rw_calloc(1, sizeof *r);
    if (!r) return NULL;
    r->observer.after = after_step;
    r->ctx = ctx;
    r->n_values = plan->mark_values;
    r->known = rw_malloc(r->n_values * sizeof *r->known);
    r->first = ctx->device->alloc(ctx->device_state, (r->n_values + 1) * sizeof *r->first);
    if (r->known && r->first) return r;
    rw_replays_destroy(r);
    return NULL;
}

rw_status rw_replays_watch(rw_tape *t, rw_plan *plan, struct rw_observer **ret_observer)
{
    *ret_observer = NULL;
    if (t->ctx->verify != RW_VERIFY_DIGEST) return RW_OK;
    if (!plan->replays) plan->replays = create(t->ctx, plan);
    struct rw_replays *const r = plan->replays;
    if (!r) return rw_fail(t->ctx, RW_ERR_MEMORY, "REWIND_VERIFY=digest: out of memory");
    r->t = t;
    memset(r->known, 0, r->n_values * sizeof *r->known);
    r->n_leaves = 0;
    r->odd_step = SIZE_MAX;
    *ret_observer = &r->observer;
    return RW_OK;
}

void rw_replays_destroy(struct rw_replays *r)
{
    if (!r) return;
    r->ctx->device->free(r->ctx->device_state, r->first);
    rw_free(r->known);
    rw_free(r->leaves);
    rw_free(r);
}
