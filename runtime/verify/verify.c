/*
 * ckpt_verify(): the plan without recompute, then the plan with it, over one tape. The first run leaves a digest of
 * every value; the second is compared with it step by step, so the first difference is the node at fault. Its bytes and
 * the likely cause are found by running both plans once more.
 */
#include "verify/verify.h"

#include "run/run.h"
#include "api/ask.h"
#include "base/alloc.h"
#include "verify/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One watched run. */
struct watch {
    struct rw_observer observer;
    rw_tape *t;
    struct rw_digest *expected; /* per value, tail included */
    bool *known;
    bool compares;
    size_t mismatches, replayed;
    /* The first mismatch. */
    size_t step;
    int output;
    bool found, ticket_differs, input_differs;
    /* Capture: the bytes of one output of one step, or of the first computation of a node. */
    bool captures;
    uint32_t node;
    size_t at_step;
    void *bytes;
    size_t n_bytes;
    struct rw_digest digest;     /* of the captured bytes, as the device takes it */
    struct rw_digest *on_device; /* where the device puts one */
    rw_status status;            /* of a digest or copy that failed */
};

/* Where the bytes are: digests of two devices are not compared. A failure is reported when the step ends. */
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

static bool same_ticket(const struct watch *w, const struct rw_node *node, const rw_kernel *k)
{
    if (node->ticket == RW_NONE_ID) return true;
    const rw_ticket t = rw_plan_ticket(w->t, node);
    return t.seed == k->ticket.seed && t.offset == k->ticket.offset;
}

/*
 * Leaves are digested when a step first reads them. A strided view is digested as its span. Returns the first one whose
 * digest is another by now.
 */
static uint32_t changed_leaf(struct watch *w, const rw_plan *p, const struct rw_node *node, const rw_kernel *k,
                             bool note)
{
    for (int i = 0; i < k->n_inputs; i++) {
        const uint32_t v = rw_plan_operand(w->t, p, node->first_input + (uint32_t)i);
        if (v >= p->mark_values || rw_tape_value(w->t, rw_tape_base(w->t, v))->producer != RW_NONE_ID) continue;
        if (w->t->leaves[rw_tape_value(w->t, rw_tape_base(w->t, v))->leaf].kind == RW_LEAF_GRADIENT) continue;
        const struct rw_digest d = digest_of(w, k->in[i].data, rw_view_span(&k->in[i]));
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

static rw_status before_step(struct rw_observer *o, const rw_plan *plan, size_t step, rw_kernel *k)
{
    struct watch *const w = (struct watch *)o;
    if (!w->compares && !w->captures) changed_leaf(w, plan, rw_plan_node(w->t, plan, plan->actions[step].node), k, true);
    return watch_status(w);
}

static void capture(struct watch *w, const rw_plan *plan, size_t step, const rw_kernel *k)
{
    const struct rw_action *const s = &plan->actions[step];
    if (s->node != w->node || (w->at_step != SIZE_MAX ? step != w->at_step : s->kind == RW_ACTION_REPLAY)) return;
    const rw_view *const v = &k->out[w->output];
    w->digest = digest_view(w, v);
    copy_bytes(w, v);
}

static void compare(struct watch *w, const rw_plan *plan, size_t step, const rw_kernel *k)
{
    const struct rw_node *const node = rw_plan_node(w->t, plan, plan->actions[step].node);
    for (int i = 0; i < k->n_outputs; i++) {
        const uint32_t v = node->first_output + (uint32_t)i;
        w->replayed += plan->actions[step].kind == RW_ACTION_REPLAY;
        if (!w->known[v] || rw_digest_equal(digest_view(w, &k->out[i]), w->expected[v])) continue;
        w->mismatches++;
        if (w->found) continue;
        w->found = true;
        w->step = step;
        w->output = i;
        w->ticket_differs = !same_ticket(w, node, k);
        w->input_differs = changed_leaf(w, plan, node, k, false) != RW_NONE_ID;
        copy_bytes(w, &k->out[i]);
    }
}

static rw_status after_step(struct rw_observer *o, const rw_plan *plan, size_t step, const rw_kernel *k)
{
    struct watch *const w = (struct watch *)o;
    const struct rw_node *const node = rw_plan_node(w->t, plan, plan->actions[step].node);
    if (w->captures) {
        capture(w, plan, step, k);
    } else if (w->compares) {
        compare(w, plan, step, k);
    } else {
        for (int i = 0; i < k->n_outputs; i++) {
            w->expected[node->first_output + (uint32_t)i] = digest_view(w, &k->out[i]);
            w->known[node->first_output + (uint32_t)i] = true;
        }
    }
    return watch_status(w);
}

static rw_status run_watched(struct watch *w, rw_plan *plan)
{
    rw_context *const ctx = w->t->ctx;
    w->on_device = ctx->device->alloc(ctx->device_state, sizeof *w->on_device);
    if (!w->on_device) return rw_fail(ctx, RW_ERR_MEMORY, "ckpt_verify: out of memory");
    rw_arena_take(w->t);
    plan->references++;
    rw_note_plan_memory(ctx, plan);
    const size_t end = plan->n_actions - plan->n_commits; /* buffers are written by the real backward alone */
    rw_status status = rw_plan_run(w->t, plan, 0, end, &w->observer);
    if (!status) status = rw_plan_settle(w->t, plan, 0, end);
    rw_plan_release(plan);
    ctx->device->free(ctx->device_state, w->on_device);
    return status;
}

static struct watch watch_of(rw_tape *t)
{
    return (struct watch){ .observer = { before_step, after_step }, .t = t };
}

static rw_status plan_for(rw_tape *t, uint32_t loss, const struct rw_policy *policy, rw_plan **ret_plan)
{
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss, .n_values = 1, .policy = policy,
                                        .private_gradients = true };
    return rw_plan_get(t, &request, ret_plan);
}

/* The bytes of the node once more, in a plain run or at a step of the other one. */
static void run_again(rw_tape *t, rw_plan *plan, uint32_t node, size_t at_step, int output, struct watch *ret)
{
    *ret = watch_of(t);
    ret->captures = true;
    ret->node = node;
    ret->at_step = at_step;
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
    if (second->ticket_differs) return CKPT_CAUSE_TICKET;
    if (second->input_differs) return CKPT_CAUSE_INPUT_CHANGED;
    if (plain->bytes && !rw_digest_equal(plain->digest, *first)) return CKPT_CAUSE_NONDETERMINISTIC;
    if (!strcmp(op->name, "accumulate")) return CKPT_CAUSE_ORDER;
    if (equal_bytes(again, plain)) return CKPT_CAUSE_CORRUPTION;
    return equal_bytes(again, second) ? CKPT_CAUSE_CORRUPTION : CKPT_CAUSE_NONDETERMINISTIC;
}

static void describe_mismatch(rw_tape *t, rw_plan *none, rw_plan *plan, const struct watch *first,
                              const struct watch *second, ckpt_report *report)
{
    const struct rw_action step = plan->actions[second->step];
    const struct rw_node node = *rw_plan_node(t, plan, step.node);
    const uint32_t v = node.first_output + (uint32_t)second->output;
    struct watch plain, again;
    run_again(t, none, step.node, SIZE_MAX, second->output, &plain);
    run_again(t, plan, step.node, second->step, second->output, &again);
    rw_report_place(t, &node, step.kind == RW_ACTION_REPLAY, report);
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

static rw_status compare_plans(rw_tape *t, rw_plan *none, uint32_t loss, struct watch *first, ckpt_report *report)
{
    rw_plan *plan;
    rw_status status = plan_for(t, loss, &t->policy, &plan);
    if (status) return status;
    plan->references++;
    struct watch second = watch_of(t);
    second.compares = true;
    second.expected = first->expected;
    second.known = first->known;
    status = run_watched(&second, plan);
    if (!status) {
        report->replayed = second.replayed;
        report->mismatches = second.mismatches;
        report->identical = !second.mismatches;
        report->kept_nondeterministic = count_nondeterministic(t);
        for (size_t i = 0; i < plan->n_results; i++) report->gradients += plan->results[i].of != RW_NONE_ID;
        if (second.found) describe_mismatch(t, none, plan, first, &second, report);
    }
    rw_free(second.bytes);
    rw_plan_release(plan);
    return status;
}

rw_status ckpt_verify(rw_tape *t, rw_tensor *loss, ckpt_report *ret_report)
{
    if (!t) return RW_ERR_ARGUMENT;
    const uint32_t id = rw_loss_check(t, loss, "ckpt_verify");
    if (id == RW_NONE_ID) return t->ctx->status;
    t->last_loss = id;
    static const struct rw_policy keep_all = { .spec = (char *)"none" };
    ckpt_report report = { 0 };
    rw_plan *none;
    rw_status status = plan_for(t, id, &keep_all, &none);
    if (status) return status;
    none->references++;
    struct watch first = watch_of(t);
    const size_t n = none->mark_values + none->n_values;
    first.expected = rw_calloc(n, sizeof *first.expected);
    first.known = rw_calloc(n, sizeof *first.known);
    if (!first.expected || !first.known) status = rw_fail(t->ctx, RW_ERR_MEMORY, "ckpt_verify: out of memory");
    if (!status) status = run_watched(&first, none);
    if (!status) status = compare_plans(t, none, id, &first, &report);
    rw_free(first.expected);
    rw_free(first.known);
    rw_plan_release(none);
    if (status) return status;
    if (ret_report) *ret_report = report;
    return report.identical ? RW_OK : RW_ERR_MISMATCH;
}

rw_status rw_verify_or_fail(rw_tape *t, rw_tensor *loss)
{
    ckpt_report report;
    const rw_status status = ckpt_verify(t, loss, &report);
    if (status != RW_ERR_MISMATCH) return status;
    char text[RW_MESSAGE_MAX];
    rw_report_text(&report, text, sizeof text);
    return rw_fail(t->ctx, RW_ERR_MISMATCH, "%s", text);
}
