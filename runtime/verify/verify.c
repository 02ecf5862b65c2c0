/*
 * ckpt_verify(): the plan without recompute, then the plan with it, over one tape. The first run leaves a digest of
 * every value; the second is compared with it step by step, so the first difference is the node at fault. Its bytes and
 * the likely cause are found by running both plans once more.
 */
#include "verify/verify.h"

#include "plan/cache.h"
#include "run/advance.h"
#include "base/alloc.h"
#include "autodiff/roots.h"
#include "verify/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One watched run. */
struct watch {
    struct rw_observer observer;
    rw_tape *t;
    const void *const *seeds;
    struct rw_digest *expected; /* per value, tail included */
    bool *known;
    bool compares;
    size_t mismatches, replayed;
    /* The first mismatch. */
    size_t action;
    int output;
    bool found, ticket_differs, input_differs, moved;
    /* Capture: the bytes of one output of one action, or of the first computation of a node. */
    bool captures;
    uint32_t node;
    size_t at_action;
    void *bytes;
    size_t n_bytes;
    struct rw_digest digest;     /* of the captured bytes, as the device takes it */
    struct rw_digest *on_device; /* where the device puts one */
    rw_status status;            /* of a digest or copy that failed */
};

/* Where the bytes are: digests of two devices are not compared. A failure is reported when the action ends. */
static struct rw_digest digest_of(struct watch *w, const void *data, size_t bytes)
{
    const rw_context *const ctx = w->t->ctx;
    struct rw_digest d = { 0 };
    rw_status status = ctx->device->digest(ctx->device_state, data, bytes, ctx->threads, w->on_device);
    if (!status) status = ctx->device->download(ctx->device_state, &d, w->on_device, sizeof d);
    if (!w->status) w->status = status;
    return d;
}

static struct rw_digest digest_view(struct watch *w, const rw_view *v)
{
    return digest_of(w, v->data, rw_view_bytes(v));
}

static void copy_bytes(struct watch *w, const rw_view *v)
{
    const rw_context *const ctx = w->t->ctx;
    w->n_bytes = rw_view_bytes(v);
    w->bytes = rw_malloc(w->n_bytes);
    if (!w->bytes) return; /* the report then has no values */
    const rw_status status = ctx->device->download(ctx->device_state, w->bytes, v->data, w->n_bytes);
    if (!w->status) w->status = status;
}

static bool same_ticket(const struct rw_at *at)
{
    if (at->node->ticket == RW_NONE_ID) return true;
    const rw_ticket t = rw_plan_ticket(at->run->tape, at->node);
    return t.seed == at->ticket.seed && t.offset == at->ticket.offset;
}

/*
 * Leaves are digested when an action first reads them. A strided view is digested as its span. Returns the first one
 * whose digest is another by now.
 */
static uint32_t changed_leaf(struct watch *w, const struct rw_at *at, bool note)
{
    const rw_plan *const p = at->run->plan;
    for (int i = 0; i < at->n_in; i++) {
        const uint32_t v = rw_plan_operand(w->t, p, at->node->first_input + (uint32_t)i);
        if (v >= p->mark_values || rw_tape_value(w->t, rw_tape_base(w->t, v))->producer != RW_NONE_ID) continue;
        if (w->t->leaves[rw_tape_value(w->t, rw_tape_base(w->t, v))->leaf].kind == RW_LEAF_GRADIENT) continue;
        const struct rw_digest d = digest_of(w, at->in[i].data, rw_view_span(&at->in[i]));
        if (note && !w->known[v]) {
            w->expected[v] = d;
            w->known[v] = true;
        } else if (!note && w->known[v] && !rw_digest_equal(d, w->expected[v])) {
            return v;
        }
    }
    return RW_NONE_ID;
}

static rw_status watch_status(const struct watch *w)
{
    return w->status ? rw_fail(w->t->ctx, w->status, "ckpt_verify: a value could not be read") : RW_OK;
}

static rw_status before(struct rw_observer *o, struct rw_at *at)
{
    struct watch *const w = (struct watch *)o;
    if (at->node && !w->compares && !w->captures) changed_leaf(w, at, true);
    return watch_status(w);
}

static void capture_view(struct watch *w, const rw_view *v)
{
    w->digest = digest_view(w, v);
    copy_bytes(w, v);
}

static void capture(struct watch *w, const struct rw_at *at)
{
    if (at->run->plan->actions[at->action].node != w->node) return;
    if (w->at_action != SIZE_MAX ? at->action != w->at_action : at->kind == RW_ACTION_REPLAY) return;
    capture_view(w, &at->out[w->output]);
}

static void compare(struct watch *w, const struct rw_at *at)
{
    for (int i = 0; i < at->n_out; i++) {
        const uint32_t v = at->node->first_output + (uint32_t)i;
        w->replayed += at->kind == RW_ACTION_REPLAY;
        if (!w->known[v] || rw_digest_equal(digest_view(w, &at->out[i]), w->expected[v])) continue;
        w->mismatches++;
        if (w->found) continue;
        w->found = true;
        w->action = at->action;
        w->output = i;
        w->ticket_differs = !same_ticket(at);
        w->input_differs = changed_leaf(w, at, false) != RW_NONE_ID;
        copy_bytes(w, &at->out[i]);
    }
}

static rw_status after(struct rw_observer *o, const struct rw_at *at)
{
    struct watch *const w = (struct watch *)o;
    if (!at->node) return RW_OK;
    if (w->captures) {
        capture(w, at);
    } else if (w->compares) {
        compare(w, at);
    } else {
        for (int i = 0; i < at->n_out; i++) {
            w->expected[at->node->first_output + (uint32_t)i] = digest_view(w, &at->out[i]);
            w->known[at->node->first_output + (uint32_t)i] = true;
        }
    }
    return watch_status(w);
}

/* A value that was moved back is what a replay is: it has to have the bytes of its first making. */
static rw_status arrived(struct rw_observer *o, const struct rw_at *at)
{
    struct watch *const w = (struct watch *)o;
    if (w->captures && at->action == w->at_action) capture_view(w, &at->out[0]);
    if (!w->compares || !w->known[at->value] || rw_digest_equal(digest_view(w, &at->out[0]), w->expected[at->value]))
        return watch_status(w);
    w->mismatches++;
    if (!w->found) {
        const rw_plan *const plan = at->run->plan;
        w->found = w->moved = true;
        w->action = at->action;
        w->output = (int)(at->value - rw_plan_node(w->t, plan, plan->actions[at->action].node)->first_output);
        copy_bytes(w, &at->out[0]);
    }
    return watch_status(w);
}

/* Buffers are written by the real backward alone: a rehearsal ends before its commits. */
static rw_status rehearse(struct watch *w, rw_plan *plan)
{
    struct rw_run *r;
    const size_t end = plan->n_actions - plan->n_commits;
    const bool stops = end < plan->n_actions;
    rw_status status = rw_run_make(w->t, plan, RW_RUN_REHEARSAL, &r);
    if (status) return status;
    rw_run_watch(r, &w->observer);
    r->seeds = w->seeds;
    status = rw_run_through(r, end);
    if (!status && stops) rw_run_end(r);
    return status;
}

static rw_status run_watched(struct watch *w, rw_plan *plan)
{
    rw_context *const ctx = w->t->ctx;
    w->on_device = ctx->device->alloc(ctx->device_state, sizeof *w->on_device);
    if (!w->on_device) return rw_fail(ctx, RW_ERR_MEMORY, "ckpt_verify: out of memory");
    const rw_status status = rehearse(w, plan);
    ctx->device->free(ctx->device_state, w->on_device);
    return status;
}

/* A step that is verified: what is asked for, and what its backward begins with. */
struct subject {
    rw_tape *t;
    const struct rw_request *request;
    const void *const *seeds;
};

static struct watch watch_of(const struct subject *x)
{
    return (struct watch){ .observer = { .before = before, .after = after, .arrived = arrived }, .t = x->t,
                           .seeds = x->seeds };
}

static rw_status plan_for(const struct subject *x, const struct rw_policy *policy, rw_plan **ret_plan)
{
    struct rw_request request = *x->request;
    request.policy = policy;
    return rw_plan_get(x->t, &request, ret_plan);
}

/* The bytes of the node once more, in a plain run or at an action of the other one. */
static void run_again(const struct subject *x, rw_plan *plan, uint32_t node, size_t at_action, int output,
                      struct watch *ret)
{
    *ret = watch_of(x);
    ret->captures = true;
    ret->node = node;
    ret->at_action = at_action;
    ret->output = output;
    run_watched(ret, plan);
}

static bool equal_bytes(const struct watch *a, const struct watch *b)
{
    return a->bytes && b->bytes && a->n_bytes == b->n_bytes && !memcmp(a->bytes, b->bytes, a->n_bytes);
}

static ckpt_cause find_cause(const struct watch *second, const struct watch *plain, const struct watch *again,
                             const struct rw_digest *first, const rw_op_def *op)
{
    if (second->moved) return CKPT_CAUSE_MOVED;
    if (second->ticket_differs) return CKPT_CAUSE_TICKET;
    if (second->input_differs) return CKPT_CAUSE_INPUT_CHANGED;
    if (plain->bytes && !rw_digest_equal(plain->digest, *first)) return CKPT_CAUSE_NONDETERMINISTIC;
    if (!strcmp(op->name, "accumulate")) return CKPT_CAUSE_ORDER;
    if (equal_bytes(again, plain)) return CKPT_CAUSE_CORRUPTION;
    return equal_bytes(again, second) ? CKPT_CAUSE_CORRUPTION : CKPT_CAUSE_NONDETERMINISTIC;
}

static void describe_mismatch(const struct subject *x, rw_plan *none, rw_plan *plan, const struct watch *first,
                              const struct watch *second, ckpt_report *report)
{
    const rw_tape *const t = x->t;
    const struct rw_action a = plan->actions[second->action];
    const struct rw_node node = *rw_plan_node(t, plan, a.node);
    const uint32_t v = node.first_output + (uint32_t)second->output;
    struct watch plain, again;
    run_again(x, none, a.node, SIZE_MAX, second->output, &plain);
    run_again(x, plan, a.node, second->action, second->output, &again);
    rw_report_place(t, &node, a.kind == RW_ACTION_REPLAY, report);
    if (v < plan->mark_values) strncpy(report->value, rw_tensor_name(rw_tape_value(t, v)), sizeof report->value - 1);
    const rw_dtype dtype = v < plan->mark_values ? (rw_dtype)rw_tape_value(t, v)->dtype
                                                 : (rw_dtype)plan->values[v - plan->mark_values].dtype;
    report->cause = find_cause(second, &plain, &again, &first->expected[v], t->ctx->ops[node.op]);
    if (plain.bytes && second->bytes) rw_report_element(plain.bytes, second->bytes, second->n_bytes, dtype, report);
    rw_free(plain.bytes);
    rw_free(again.bytes);
}

static size_t count_nondeterministic(const rw_tape *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_nodes; i++)
        if (t->ctx->ops[t->nodes[i].op]->flags & RW_OP_NONDETERMINISTIC) n += t->nodes[i].n_outputs;
    return n;
}

static rw_status compare_plans(const struct subject *x, rw_plan *none, struct watch *first, ckpt_report *report)
{
    rw_plan *plan;
    rw_status status = plan_for(x, &x->t->policy, &plan);
    if (status) return status;
    plan->references++;
    struct watch second = watch_of(x);
    second.compares = true;
    second.expected = first->expected;
    second.known = first->known;
    status = run_watched(&second, plan);
    if (!status) {
        report->replayed = second.replayed;
        report->mismatches = second.mismatches;
        report->identical = !second.mismatches;
        report->kept_nondeterministic = count_nondeterministic(x->t);
        for (size_t i = 0; i < plan->n_results; i++) report->gradients += plan->results[i].of != RW_NONE_ID;
        report->gradients += plan->n_gradients;
        if (second.found) describe_mismatch(x, none, plan, first, &second, report);
    }
    rw_free(second.bytes);
    rw_plan_release(plan);
    return status;
}

static rw_status verify(const struct subject *x, ckpt_report *report)
{
    rw_context *const ctx = x->t->ctx;
    rw_plan *none;
    rw_status status = plan_for(x, &rw_policy_none, &none);
    if (status) return status;
    none->references++;
    struct watch first = watch_of(x);
    const size_t n = none->mark_values + none->n_values;
    first.expected = rw_calloc(n, sizeof *first.expected);
    first.known = rw_calloc(n, sizeof *first.known);
    if (!first.expected || !first.known) status = rw_fail(ctx, RW_ERR_MEMORY, "ckpt_verify: out of memory");
    if (!status) status = run_watched(&first, none);
    if (!status) status = compare_plans(x, none, &first, report);
    rw_free(first.expected);
    rw_free(first.known);
    rw_plan_release(none);
    return status;
}

rw_status ckpt_verify(rw_tape *t, rw_tensor *loss, ckpt_report *ret_report)
{
    if (!t) return RW_ERR_ARGUMENT;
    const uint32_t id = rw_loss_check(t, loss, "ckpt_verify");
    if (id == RW_NONE_ID) return t->ctx->status;
    t->last_loss = id;
    const struct rw_request request = rw_step_request(t, &id, 1);
    const struct subject x = { t, &request, NULL };
    ckpt_report report = { 0 };
    const rw_status status = verify(&x, &report);
    if (status) return status;
    if (ret_report) *ret_report = report;
    return report.identical ? RW_OK : RW_ERR_MISMATCH;
}

rw_status rw_verify_or_fail(rw_tape *t, const struct rw_request *request, const void *const *seeds)
{
    const struct subject x = { t, request, seeds };
    ckpt_report report = { 0 };
    const rw_status status = verify(&x, &report);
    if (status || report.identical) return status;
    char text[RW_MESSAGE_MAX];
    rw_report_text(&report, text, sizeof text);
    return rw_fail(t->ctx, RW_ERR_MISMATCH, "%s", text);
}
