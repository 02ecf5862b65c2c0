/*
 * ckpt_verify() and REWIND_VERIFY=1: over one tape, first the plan without recompute, then the plan with it. The first
 * run executes each node in isolation, too, and digests every value; the second is compared with it action by action,
 * so the first difference identifies the node at fault. To find its bytes and the likely cause, both plans run once
 * more.
 */
#include "verify/verify.h"

#include "autodiff/roots.h"
#include "base/alloc.h"
#include "ops/common/pass_ops.h"
#include "plan/cache.h"
#include "run/run_advance.h"
#include "run/source_addresses.h"
#include "verify/observer.h"
#include "verify/report.h"

#include <stdio.h>
#include <string.h>

/* The step to verify: its requested outputs, its seeds and its recorders. */
struct subject {
    rw_tape *t;
    const struct rw_request *request;
    const void *const *seeds;
    const struct rw_patterns *probe;
    struct rw_isolation *iso;
};

/* The run without recompute. */
struct reference {
    rw_plan *plan; /* counted */
    struct rw_table table;
};

/* State of a context under REWIND_VERIFY=1. */
struct verifier {
    struct rw_attach attach; /* first, because the pool returns it */
    struct rw_patterns probe;
    struct rw_isolation iso;
};

static rw_status no_memory(const struct subject *x)
{
    return rw_fail(x->t->ctx, RW_ERR_MEMORY, "verification: out of memory");
}

/* ---- rehearsals ---- */

/* Ends before the commits, because only the real backward writes buffers. A finding of the observer also ends the
   rehearsal, and is not an error yet. */
static rw_status rehearse(const struct subject *x, struct rw_verifier *w, rw_plan *plan)
{
    struct rw_run *r;
    const size_t end = plan->n_actions - plan->n_commits;
    rw_status status = rw_run_make(x->t, plan, RW_RUN_REHEARSAL, &r);
    if (status) return status;
    status = rw_run_watch(r, &w->observer);
    if (status) {
        rw_run_end(r);
        return status;
    }
    r->margin = rw_verifier_margin(w);
    r->seeds = x->seeds;
    status = rw_run_through(r, end);
    if (!status && end < plan->n_actions) rw_run_end(r);
    if (status != RW_ERR_MISMATCH || !w->found.mismatches) return status;
    rw_error_clear(x->t->ctx);
    return RW_OK;
}

static rw_status plan_for(const struct subject *x, const struct rw_policy *policy, rw_plan **ret_plan)
{
    struct rw_request request = *x->request;
    request.policy = policy;
    const rw_status status = rw_plan_get(x->t, &request, ret_plan);
    if (!status) (*ret_plan)->references++;
    return status;
}

static void finish_reference(struct reference *ref)
{
    rw_table_free(&ref->table);
    rw_plan_release(ref->plan);
}

static void take_found(const struct rw_verifier *w, ckpt_report *report)
{
    *report = w->found;
    report->mismatches = w->mismatches > 1 ? w->mismatches : 1;
}

/* *report has mismatches if isolated execution found a fault. Finish the observer also after a failure. */
static rw_status make_reference(const struct subject *x, struct reference *ref, ckpt_report *report)
{
    struct rw_verifier w;
    rw_status status = plan_for(x, &rw_policy_none, &ref->plan);
    if (status) return status;
    if (!rw_table_make(&ref->table, ref->plan)) return no_memory(x);
    rw_verifier_init(&w, RW_WATCH_RECORDS, RW_PATTERN_NAN, x->probe);
    w.table = &ref->table;
    w.iso = x->iso;
    status = rehearse(x, &w, ref->plan);
    if (w.found.mismatches) take_found(&w, report);
    rw_verifier_finish(&w);
    return status;
}

/* ---- two plans of one step ---- */

/* A recorded value by its number, a value of the tail by its distance from the tail's first; a leaf of the tail is
   only marked as one. */
static uint32_t operand(const rw_plan *p, uint32_t node, uint32_t i)
{
    const uint32_t v = p->operands[p->nodes[node].first_input + i - p->mark_operands];
    if (v < p->mark_values) return v;
    return v < rw_plan_first_computed(p) ? RW_NONE_ID : v - rw_plan_first_computed(p) + RW_WORD_SOURCE;
}

static bool same_node(const rw_plan *a, const rw_plan *b, uint32_t i)
{
    const struct rw_node *const x = &a->nodes[i], *const y = &b->nodes[i];
    bool same = x->op == y->op && x->n_inputs == y->n_inputs && x->n_outputs == y->n_outputs;
    for (uint32_t k = 0; same && k < x->n_inputs; k++) same = operand(a, i, k) == operand(b, i, k);
    return same;
}

/* True if gradient rules recorded the same nodes for both plans; otherwise the report names the rule. */
static bool have_one_tail(const rw_tape *t, const rw_plan *a, const rw_plan *b, ckpt_report *report)
{
    uint32_t i = 0;
    while (i < a->n_nodes && i < b->n_nodes && same_node(a, b, i)) i++;
    const uint64_t computed_a = a->mark_values + a->n_values - rw_plan_first_computed(a);
    const uint64_t computed_b = b->mark_values + b->n_values - rw_plan_first_computed(b);
    if (i == a->n_nodes && i == b->n_nodes && computed_a == computed_b) return true;
    const struct rw_node *const last = i < b->n_nodes ? &b->nodes[i] : i < a->n_nodes ? &a->nodes[i] : NULL;
    *report = (ckpt_report){ .mismatches = 1, .cause = CKPT_CAUSE_RULE };
    const rw_plan *const of = i < b->n_nodes ? b : a;
    if (last) rw_report_place(t, of, last->of == RW_NONE_ID ? last : &t->nodes[last->of], false, report);
    snprintf(report->detail, sizeof report->detail, "%zu nodes were recorded, and %zu the second time", a->n_nodes,
             b->n_nodes);
    return false;
}

/* ---- the report ---- */

/* Executes the plan once more to get the bytes of the node's output, in a plain run or at an action of the other
   run. */
static void re_execute(const struct subject *x, rw_plan *plan, uint32_t node, size_t at_action, int output,
                       struct rw_verifier *ret)
{
    const enum rw_pattern pattern = at_action == SIZE_MAX ? RW_PATTERN_NAN : RW_PATTERN_LOW;
    rw_verifier_init(ret, RW_WATCH_CAPTURES, pattern, x->probe);
    ret->node = node;
    ret->at_action = at_action;
    ret->output = output;
    if (rehearse(x, ret, plan)) rw_error_clear(x->t->ctx); /* what is known already is the result */
}

static bool equal_bytes(const struct rw_verifier *a, const struct rw_verifier *b)
{
    return a->bytes && b->bytes && a->n_bytes == b->n_bytes && !memcmp(a->bytes, b->bytes, a->n_bytes);
}

static ckpt_cause find_cause(const struct rw_verifier *second, const struct rw_verifier *plain,
                             const struct rw_verifier *again, const struct rw_digest *first, const rw_op_def *op)
{
    if (second->moved) return CKPT_CAUSE_MOVED;
    if (second->ticket_differs) return CKPT_CAUSE_TICKET;
    if (second->input_differs) return CKPT_CAUSE_INPUT_CHANGED;
    if (plain->bytes && !rw_digest_equal(plain->digest, *first)) return CKPT_CAUSE_NONDETERMINISTIC;
    if (op->flags & RW_OP_OWN_ADDS) return CKPT_CAUSE_ORDER;
    if (equal_bytes(again, plain)) return CKPT_CAUSE_CORRUPTION;
    return equal_bytes(again, second) ? CKPT_CAUSE_CORRUPTION : CKPT_CAUSE_NONDETERMINISTIC;
}

static rw_dtype dtype_of(const rw_tape *t, const rw_plan *plan, uint32_t v)
{
    return v < plan->mark_values ? (rw_dtype)rw_tape_value(t, v)->dtype
                                 : (rw_dtype)plan->values[v - plan->mark_values].dtype;
}

/* A plan whose effects have happened is not executed once more. */
static void describe_mismatch(const struct subject *x, const struct reference *ref, rw_plan *plan,
                              const struct rw_verifier *second, ckpt_report *report)
{
    const rw_tape *const t = x->t;
    const struct rw_action a = plan->actions[second->action];
    const struct rw_node node = *rw_plan_node(t, plan, a.node);
    const uint32_t v = node.first_output + (uint32_t)second->output;
    const uint32_t plain_node = a.node < plan->mark_nodes ? a.node : a.node - plan->mark_nodes + ref->plan->mark_nodes;
    struct rw_verifier plain = { 0 }, again = { 0 };
    if (ref->plan->n_effects == ref->plan->n_commits)
        re_execute(x, ref->plan, plain_node, SIZE_MAX, second->output, &plain);
    if (plan->n_effects == plan->n_commits) re_execute(x, plan, a.node, second->action, second->output, &again);
    rw_report_place(t, plan, &node, a.kind == RW_ACTION_REPLAY, report);
    if (v < plan->mark_values)
        snprintf(report->value, sizeof report->value, "%s", rw_tensor_name(rw_tape_value(t, v)));
    report->cause = find_cause(second, &plain, &again, &ref->table.digest[rw_table_at(&ref->table, plan, v)],
                               t->ctx->ops[node.op]);
    if (plain.bytes && second->bytes)
        rw_report_element(plain.bytes, second->bytes, second->n_bytes, dtype_of(t, plan, v), report);
    rw_verifier_finish(&plain);
    rw_verifier_finish(&again);
}

static size_t count_nondeterministic(const rw_tape *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_nodes; i++)
        if (t->ctx->ops[t->nodes[i].op]->flags & RW_OP_NONDETERMINISTIC) n += t->nodes[i].n_outputs;
    return n;
}

static void count(const struct rw_verifier *second, const rw_tape *t, const rw_plan *plan, ckpt_report *report)
{
    report->replayed = second->replayed;
    report->mismatches = second->mismatches;
    report->identical = !second->mismatches;
    report->kept_nondeterministic = count_nondeterministic(t);
    report->gradients += plan->n_gradient_results + plan->n_gradients;
}

/* After the second run, which has ended or was stopped by a finding. */
static void judge(const struct subject *x, const struct reference *ref, rw_plan *plan, const struct rw_verifier *second,
                  ckpt_report *report)
{
    if (second->found.mismatches && !second->any) {
        take_found(second, report);
        return;
    }
    count(second, x->t, plan, report);
    if (second->any) describe_mismatch(x, ref, plan, second, report);
}

/* ---- both runs rehearsed ---- */

static rw_status compare_plans(const struct subject *x, struct reference *ref, ckpt_report *report)
{
    rw_plan *plan;
    struct rw_verifier second;
    rw_status status = plan_for(x, &x->t->policy, &plan);
    if (status) return status;
    rw_verifier_init(&second, RW_WATCH_COMPARES, RW_PATTERN_LOW, x->probe);
    second.table = &ref->table;
    if (have_one_tail(x->t, ref->plan, plan, report)) {
        status = rehearse(x, &second, plan);
        if (!status) judge(x, ref, plan, &second, report);
    }
    rw_verifier_finish(&second);
    rw_plan_release(plan);
    return status;
}

static rw_status verify(const struct subject *x, ckpt_report *report)
{
    struct reference ref = { 0 };
    rw_status status = make_reference(x, &ref, report);
    if (!status && !report->mismatches) status = compare_plans(x, &ref, report);
    finish_reference(&ref);
    return status;
}

/* With the context's memory for isolated executions, or with memory for this one call. */
static rw_status with_room(rw_tape *t, const struct rw_request *request, const void *const *seeds,
                           rw_status (*work)(const struct subject *x, ckpt_report *report), ckpt_report *report)
{
    struct rw_patterns probe;
    struct rw_isolation iso = { 0 };
    rw_status status = rw_patterns_open(&probe, t->ctx);
    rw_isolation_open(&iso, &probe);
    const struct subject x = { t, request, seeds, &probe, &iso };
    if (!status) status = work(&x, report);
    rw_isolation_close(&iso);
    rw_patterns_close(&probe);
    return status;
}

static rw_status verdict(const rw_tape *t, rw_status status, const ckpt_report *report)
{
    char text[RW_MESSAGE_MAX];
    if (status || report->identical) return status;
    rw_report_text(report, text, sizeof text);
    return rw_fail(t->ctx, RW_ERR_MISMATCH, "%s", text);
}

rw_status ckpt_verify(rw_tape *t, rw_tensor *loss, ckpt_report *ret_report)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "ckpt_verify", "t");
    const uint32_t id = rw_loss_check(t, loss, "ckpt_verify");
    if (id == RW_NONE_ID) return t->ctx->status;
    rw_status status = rw_check_runs(t->ctx, "ckpt_verify");
    if (!status) status = rw_roots_note(t, &id, 1, false, "ckpt_verify");
    if (status) return status;
    const struct rw_request request = rw_step_request(t, &id, 1);
    ckpt_report report = { 0 };
    status = with_room(t, &request, NULL, verify, &report);
    if (status) return status;
    if (!ret_report) return verdict(t, status, &report);
    *ret_report = report;
    return report.identical ? RW_OK : RW_ERR_MISMATCH;
}

rw_status rw_verify_or_fail(rw_tape *t, const struct rw_request *request, const void *const *seeds)
{
    ckpt_report report = { 0 };
    return verdict(t, with_room(t, request, seeds, verify, &report), &report);
}

/* ---- the run that counts ---- */

/* The producer of the first value whose bytes differ from those at the start of its step. */
static void compare_begun(const rw_tape *t, const struct rw_table *begun, const struct reference *ref,
                          ckpt_report *report)
{
    const char *changed = NULL;
    for (uint32_t v = 0; v < begun->mark && v < ref->table.mark; v++) {
        if (!begun->known[v] || !ref->table.known[v]) continue;
        if (rw_digest_equal(begun->digest[v], ref->table.digest[v])) continue;
        const struct rw_tensor *const x = rw_tape_value(t, v);
        const struct rw_tensor *const base = rw_tape_value(t, rw_tape_base(t, v));
        if (base->producer == RW_NONE_ID) {
            const struct rw_leaf *const leaf = &t->leaves[base->leaf];
            const bool param = leaf->kind == RW_LEAF_PARAM;
            if (!changed) changed = param ? rw_param_name(t->ctx->by_id[leaf->param]) : rw_tensor_name(base);
            continue;
        }
        *report = (ckpt_report){ .mismatches = 1, .cause = changed ? CKPT_CAUSE_INPUT_CHANGED
                                                                  : CKPT_CAUSE_NONDETERMINISTIC };
        rw_report_place(t, NULL, &t->nodes[x->producer], false, report);
        snprintf(report->value, sizeof report->value, "%s", rw_tensor_name(x));
        snprintf(report->detail, sizeof report->detail,
                 "when the loss was read it gave different bytes than now%s%.64s%s",
                 changed ? ": \"" : "", changed ? changed : "", changed ? "\" has changed since" : "");
        return;
    }
}

/* Takes the digests of the step's forward part, if a read of its loss has executed that. */
static struct rw_table take_begun(rw_tape *t, const struct rw_request *request)
{
    struct rw_run *const stopped = rw_run_stopped(t, request);
    struct rw_verifier *const w = stopped ? rw_verifier_of_run(stopped) : NULL;
    struct rw_table table = { 0 };
    if (!w || w->table != &w->own) return table;
    table = w->own;
    w->own = (struct rw_table){ 0 };
    w->table = NULL;
    return table;
}

/* Up to its commits. If one of these is refused, so is the step, before its gradients are published. */
static rw_status run_compared(const struct subject *x, struct rw_run *r)
{
    rw_status status = rw_run_check(r, r->next_action, r->plan->n_actions);
    if (!status) status = rw_run_advance(r, r->plan->n_actions - r->plan->n_commits);
    if (!status) status = rw_runs_wait(x->t->ctx);
    if (!status) status = rw_verifier_check_results(rw_verifier_of_run(r), r);
    return status;
}

/* Everything was equal: publishes the gradients, then runs the commits. */
static rw_status finish_run(struct rw_run *r)
{
    const size_t end = r->plan->n_actions;
    rw_status status = rw_run_publish(r);
    if (!status && r->plan->n_commits) return rw_run_through(r, end);
    if (!status) status = rw_run_settle(r);
    rw_run_end(r);
    return status;
}

/* Runs the step with recompute and compares it with the reference. A step that is already suspended is continued,
   not restarted: its forward half is what the program has seen, so that is what must be verified. Gradients go to
   separate memory, and are published only after the comparison. */
static rw_status run_against(const struct subject *x, const struct reference *ref, ckpt_report *report)
{
    struct rw_run *r;
    rw_status status = rw_run_find(x->t, x->request, &r);
    if (status) return status;
    if (!have_one_tail(x->t, ref->plan, r->plan, report)) {
        rw_run_end(r);
        return RW_OK;
    }
    struct rw_verifier *const w = rw_verifier_of_run(r);
    rw_plan *const plan = r->plan;
    plan->references++;
    w->role = RW_WATCH_COMPARES;
    w->table = (struct rw_table *)&ref->table;
    w->says = false;
    r->seeds = x->seeds;
    r->flags |= RW_RUN_PRIVATE;
    status = run_compared(x, r);
    if (status == RW_ERR_MISMATCH && w->found.mismatches) {
        rw_error_clear(x->t->ctx);
        status = RW_OK;
    }
    const struct rw_verifier second = *w;
    w->bytes = NULL; /* owned by the copy */
    const bool equal = !second.mismatches && !second.found.mismatches;
    if (!status && equal) {
        count(&second, x->t, plan, report);
        status = finish_run(r);
    } else {
        rw_run_end(r);
        if (!status) judge(x, ref, plan, &second, report);
    }
    rw_free(second.bytes);
    rw_plan_release(plan);
    return status;
}

static rw_status verify_and_run(const struct subject *x, ckpt_report *report)
{
    struct reference ref = { 0 };
    struct rw_table begun = take_begun(x->t, x->request);
    rw_status status = make_reference(x, &ref, report);
    if (!status && begun.digest && !report->mismatches) compare_begun(x->t, &begun, &ref, report);
    rw_table_free(&begun);
    if (!status && !report->mismatches) status = run_against(x, &ref, report);
    else rw_run_end(rw_run_stopped(x->t, x->request)); /* it started from values that were not confirmed */
    finish_reference(&ref);
    return status;
}

/* ---- a context's ---- */

static void detach(struct rw_observer *o, struct rw_run *r)
{
    struct rw_verifier *const w = (struct rw_verifier *)o;
    rw_verifier_finish(w);
    rw_free(w);
}

static rw_status watch_run(struct rw_attach *self, struct rw_run *r, struct rw_observer **ret_observer)
{
    struct verifier *const v = (struct verifier *)self;
    const bool step = r->plan->kind == RW_PLAN_STEP;
    if (r->flags & (RW_RUN_REHEARSAL | RW_RUN_OWNED)) return RW_OK;
    struct rw_verifier *const w = rw_malloc(sizeof *w);
    if (!w) return RW_ERR_MEMORY;
    /* a step is compared with a rehearsal that starts with NaN; any other run is the only one */
    rw_verifier_init(w, step ? RW_WATCH_RECORDS : RW_WATCH_TRIES, step ? RW_PATTERN_LOW : RW_PATTERN_NAN, &v->probe);
    w->observer.detach = detach;
    w->iso = &v->iso;
    w->says = true;
    w->table = step ? &w->own : NULL;
    if (step && !rw_table_make(&w->own, r->plan)) {
        rw_verifier_finish(w);
        rw_free(w);
        return RW_ERR_MEMORY;
    }
    r->margin = rw_verifier_margin(w);
    *ret_observer = &w->observer;
    return RW_OK;
}

static void destroy(struct rw_attach *self)
{
    struct verifier *const v = (struct verifier *)self;
    rw_isolation_close(&v->iso);
    rw_patterns_close(&v->probe);
    rw_free(v);
}

rw_status rw_verify_attach(rw_context *ctx)
{
    struct verifier *const v = rw_calloc(1, sizeof *v);
    if (!v) return RW_ERR_MEMORY;
    v->attach = (struct rw_attach){ .attach = watch_run, .destroy = destroy };
    const rw_status status = rw_patterns_open(&v->probe, ctx);
    if (status) {
        destroy(&v->attach);
        return status;
    }
    rw_isolation_open(&v->iso, &v->probe);
    rw_runs_attach(ctx, &v->attach);
    return RW_OK;
}

rw_status rw_verify_and_run(rw_tape *t, const struct rw_request *request, const void *const *seeds)
{
    ckpt_report report = { 0 };
    struct rw_attach *a = rw_pool_of(t->ctx)->attach;
    while (a->attach != watch_run) a = a->next;
    struct verifier *const v = (struct verifier *)a;
    /* a suspended forward half is continued; it may have been planned for given seeds, and so must its reference be */
    const struct rw_run *const begun = rw_run_stopped(t, request);
    struct rw_request own = *request;
    if (begun) own.seeded = begun->plan->seeded;
    const struct subject x = { t, &own, seeds, &v->probe, &v->iso };
    return verdict(t, verify_and_run(&x, &report), &report);
}
