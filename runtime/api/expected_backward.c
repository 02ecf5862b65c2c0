/* Begins, continues and drops steps whose backward is expected, and plans them ahead. */
#include "api/expected_backward.h"

#include "api/execute_request.h"
#include "autodiff/gradient_edges.h"
#include "base/alloc.h"
#include "run/run_advance.h"
#include "run/source_addresses.h"
#include "verify/verify.h"

#include <string.h>

#define RW_AHEAD_UNUSED_MAX 4 /* after this many, only a structure that has occurred twice is planned ahead */

/* ---- what a step is expected to do ---- */

/* Is every value of forward kept until backward has read it? Then several backwards can share them. */
static bool keeps_everything(const rw_tape *t, const struct rw_policy *p)
{
    return p->kind == RW_POLICY_NONE && !p->n_discards && !p->n_moved_tags && !p->n_moved_regions &&
           (p->whole || !t->n_parts) && !t->ctx->eager;
}

/*
 * Lists the losses of e whose backwards follow that of *root, in ascending order: a program may call them in another
 * order in each step, which makes no other plan. Returns their number; 0 if e has no backward of *root.
 */
static size_t list_later(const struct rw_expected *e, uint32_t root, uint32_t *ret_later)
{
    size_t n = 0, at = 0;
    while (at < e->n_roots && e->roots[at] != root) at++;
    for (size_t i = 0; at < e->n_roots && i < e->n_roots; i++) {
        if (i == at) continue;
        size_t place = n++;
        for (; place && ret_later[place - 1] > e->roots[i]; place--) ret_later[place] = ret_later[place - 1];
        ret_later[place] = e->roots[i];
    }
    return n;
}

/*
 * Makes the request of e's step with backward at *root. extra: a value that it computes in any case, RW_NONE_ID for
 * none. policy: NULL for the tape's. False without memory. Free *ret_values, which the request refers to, with
 * rw_free().
 */
static bool request_step(const rw_tape *t, const struct rw_expected *e, const uint32_t *root, uint32_t extra,
                         const struct rw_policy *policy, struct rw_request *ret, uint32_t **ret_values)
{
    uint32_t *const values = rw_malloc((e->n_reads + 1 + e->n_roots) * sizeof *values);
    if (!values) return false;
    const bool has_extra = extra != RW_NONE_ID, is_rare = has_extra && !rw_expected_has(e, extra, false);
    *ret = rw_program_step(t, root, 1);
    if (policy) ret->policy = policy;
    ret->n_reads = rw_expected_values(e, is_rare, values);
    if (has_extra && !rw_expected_has(e, extra, true)) values[ret->n_reads++] = extra;
    ret->reads = values;
    ret->seeded = e->seeded;
    if (e->n_roots > 1 && keeps_everything(t, ret->policy)) {
        ret->later = values + ret->n_reads;
        ret->n_later = list_later(e, *root, values + ret->n_reads);
    }
    *ret_values = values;
    return true;
}

static bool is_at(const rw_tape *t, const struct rw_expected *e)
{
    const struct rw_tape_point at = rw_tape_point(t);
    return rw_point_is_same(&at, &e->ahead.at);
}

/* ---- running up to a value ---- */

/* Finds the action that computes a base value which the plan holds for reading. */
static bool find_action(const rw_plan *p, uint32_t base, size_t *ret_action)
{
    for (size_t i = 0; i < p->n_sources; i++) {
        const struct rw_source *const s = &p->sources[i];
        if (s->kind != RW_SOURCE_RESULT || p->results[s->index].of != RW_NONE_ID) continue;
        if (p->results[s->index].value != base) continue;
        *ret_action = s->first;
        return true;
    }
    return false;
}

/* Where the run may stop next: before backward, or for a run ahead before the first node that is not recorded yet. */
static size_t stop_after(const struct rw_run *r, size_t action)
{
    const rw_plan *const p = r->plan;
    const size_t end = action < p->n_forward ? p->n_forward : p->n_before;
    if (!(r->flags & RW_RUN_AHEAD)) return end;
    size_t to = r->next_action;
    while (to < end && p->actions[to].node < r->tape->n_nodes) to++;
    return to;
}

static void mark_producer(const rw_tape *t, uint32_t value, bool *nodes)
{
    const uint32_t producer = rw_tape_value(t, rw_tape_base(t, value))->producer;
    if (producer != RW_NONE_ID) nodes[producer] = true;
}

/* Marks the nodes that the marked ones need. */
static void mark_needed(const rw_tape *t, bool *nodes)
{
    for (size_t n = t->n_nodes; n-- > 0;) {
        const struct rw_node *const node = &t->nodes[n];
        for (uint32_t i = 0; nodes[n] && i < node->n_inputs; i++)
            mark_producer(t, t->operands[node->first_input + i], nodes);
    }
}

/*
 * The end of the actions before `to` that may run to compute a value. An op with an effect runs only once, so it must
 * not run before the program requests something that needs it: an input that it reads may still be written.
 */
static size_t stop_before_effects(const struct rw_run *r, uint32_t base, size_t to)
{
    const rw_tape *const t = r->tape;
    const rw_plan *const p = r->plan;
    bool *needed = NULL;
    size_t i = r->next_action;
    for (; i < to && p->n_effects; i++) {
        const struct rw_action *const a = &p->actions[i];
        if (rw_action_is_move(a->kind) || a->node >= p->mark_nodes) continue;
        if (!(t->ctx->ops[t->nodes[a->node].op]->flags & RW_OP_STATEFUL)) continue;
        if (!needed) {
            needed = rw_calloc(t->n_nodes, sizeof *needed);
            if (!needed) break;
            mark_producer(t, base, needed);
            mark_needed(t, needed);
        }
        if (!needed[a->node]) break;
    }
    rw_free(needed);
    return p->n_effects ? i : to;
}

/* Runs until the value is computed. False if the run does not compute it now; a failed run has ended. */
static bool advance_to(struct rw_run *r, uint32_t base)
{
    rw_tape *const t = r->tape;
    size_t action;
    if (!find_action(r->plan, base, &action) || action < r->next_action) return false;
    const size_t to = stop_before_effects(r, base, stop_after(r, action));
    if (action >= to) return false;
    if (rw_run_through(r, to)) {
        rw_forget_error(t->ctx);
        rw_runs_end_assumed(t);
    }
    return true;
}

/* Does forward read gradients? They are read when their op runs, so not before the program has requested that. */
static bool reads_gradients(const rw_plan *p)
{
    for (size_t i = 0; i < p->n_sources; i++) {
        const struct rw_source *const s = &p->sources[i];
        const bool is_gradient = s->kind == RW_SOURCE_OLD || s->kind == RW_SOURCE_ADDEND;
        if (is_gradient && s->leaf != RW_NONE_ID && s->first < p->n_before) return true;
    }
    return false;
}

/* ---- beginning a step ---- */

/* Finds or makes the run of a request; NULL if there is no plan or it cannot be made. */
static struct rw_run *find_run(rw_tape *t, const struct rw_expected *e, const struct rw_request *request)
{
    struct rw_run *r = NULL;
    if (is_at(t, e)) return rw_run_find(t, request, &r) ? NULL : r;
    bool is_fresh = !t->n_held && t->ctx->verify != RW_VERIFY_FULL;
    for (size_t i = 0; i < t->n_effects; i++) is_fresh &= !t->effects[i].done;
    rw_plan *const plan = is_fresh ? rw_plan_find_ahead(t, request, &e->ahead) : NULL;
    if (!plan) return NULL;
    rw_runs_end_assumed(t);
    rw_history_of(t->ctx)->n_unused = 0;
    return rw_run_make(t, plan, RW_RUN_AHEAD, &r) ? NULL : r;
}

/* Begins the expected step, or continues it, up to the value. False if the step has no run. */
static bool begin(rw_tape *t, const struct rw_expected *e, uint32_t base)
{
    struct rw_request request;
    uint32_t *values;
    if (!request_step(t, e, e->roots, base, NULL, &request, &values)) return false;
    struct rw_run *const r = find_run(t, e, &request);
    rw_free(values);
    rw_forget_error(t->ctx);
    if (r && r->state == RW_RUN_NEW) r->flags |= RW_RUN_ASSUMED;
    const bool runs = r && (r->state != RW_RUN_NEW || !reads_gradients(r->plan)) && advance_to(r, base);
    if (r && !runs && r->state == RW_RUN_NEW) rw_run_end(r);
    return r;
}

/* May the scalar be a loss that is read before its backward? */
static bool may_be_loss(const rw_tape *t, const struct rw_tensor *v)
{
    return t->open_region == RW_NONE_ID && t->open_part == RW_NONE_ID && (v->flags & RW_VALUE_REQUIRES) &&
           rw_layout_get(&t->ctx->layouts, v->layout)->numel == 1 && rw_is_in_forward(t, v);
}

/* Begins the step whose loss the value may be, for a tape of which nothing is known yet. */
static void begin_as_loss(rw_tape *t, uint32_t loss)
{
    const struct rw_request step = rw_program_step(t, &loss, 1);
    struct rw_run *r;
    if (!rw_run_find(t, &step, &r)) {
        if (r->state == RW_RUN_NEW) r->flags |= RW_RUN_ASSUMED;
        size_t action = 0;
        const size_t to = stop_before_effects(r, loss, r->plan->n_forward);
        const bool runs = to > r->next_action && (!find_action(r->plan, rw_tape_base(t, loss), &action) || action < to);
        if (runs && rw_run_through(r, to)) rw_runs_end_assumed(t);
        else if (!runs && r->state == RW_RUN_NEW) rw_run_end(r); /* all of forward is held already, or an effect is
                                                                    before the loss */
    }
    rw_forget_error(t->ctx);
}

/* Leaves those nodes marked that are effects which have not happened, or depend on one. Effects that were marked do not
   count. */
static void keep_after_effects(const rw_tape *t, bool *nodes)
{
    size_t effect = 0;
    for (uint32_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        bool is_after = false;
        while (effect < t->n_effects && t->effects[effect].node < n) effect++;
        if (effect < t->n_effects && t->effects[effect].node == n) is_after = !t->effects[effect].done && !nodes[n];
        for (uint32_t i = 0; i < node->n_inputs; i++) {
            const uint32_t producer = rw_tape_value(t, rw_tape_base(t, t->operands[node->first_input + i]))->producer;
            is_after |= producer != RW_NONE_ID && nodes[producer];
        }
        nodes[n] = is_after;
    }
}

/*
 * Removes the values that need an effect which has not happened, unless `base` needs it, too: an effect does not happen
 * ahead of its request. Returns how many are left; 0 without memory.
 */
static size_t without_effects(const rw_tape *t, uint32_t base, uint32_t *values, size_t n)
{
    if (!rw_tape_pending_effects(t, NULL)) return n;
    bool *const nodes = rw_calloc(t->n_nodes, sizeof *nodes);
    size_t left = 0;
    if (nodes) {
        mark_producer(t, base, nodes);
        mark_needed(t, nodes);
        keep_after_effects(t, nodes);
    }
    for (size_t i = 0; nodes && i < n; i++) {
        const uint32_t producer = rw_tape_value(t, values[i])->producer;
        if (producer == RW_NONE_ID || !nodes[producer]) values[left++] = values[i];
    }
    rw_free(nodes);
    return left;
}

/* Computes the small values that such a step has read in one evaluation. */
static void evaluate_together(rw_tape *t, const struct rw_expected *e, uint32_t base)
{
    uint32_t *const values = rw_malloc((e->n_reads + 1) * sizeof *values);
    if (!values) return;
    const size_t n = rw_expected_values(e, !rw_expected_has(e, base, false), values);
    const bool effects = rw_has_due_effects(t);
    size_t missing = 0;
    for (size_t i = 0; i < n; i++)
        if (values[i] != base && values[i] < t->n_values && !rw_tape_held(t, values[i])) values[missing++] = values[i];
    if (!effects) missing = without_effects(t, base, values, missing);
    values[missing++] = base;
    if (missing > 1 && rw_evaluate(t, values, missing, effects)) rw_forget_error(t->ctx);
    rw_free(values);
}

/* Is it a loss of the expected step? */
static bool is_root(const struct rw_expected *e, uint32_t value)
{
    bool is = false;
    for (size_t i = 0; !is && i < e->n_roots; i++) is = e->roots[i] == value;
    return is;
}

/*
 * Assumes that x is the loss if no step of the structure is known. If one is, x is a view of a value that is not small,
 * which the expected step does not hold: it is a loss only if it was one.
 */
static void begin_if_loss(rw_tape *t, const struct rw_expected *e, const rw_tensor *x)
{
    if (!rw_log_has_backward(t) && may_be_loss(t, x) && (!e || is_root(e, x->id))) begin_as_loss(t, x->id);
}

/* Continues an assumed run, begins an expected step, or evaluates, in this order. */
void rw_begin_step_for(rw_tape *t, const rw_tensor *x)
{
    const struct rw_tensor *const v = rw_tape_value(t, x->base);
    if (t->ctx->eager || v->producer == RW_NONE_ID || rw_tape_held(t, v->id)) return;
    const bool is_known = t->n_users == 1 && t->ctx->verify != RW_VERIFY_FULL, is_small = rw_value_is_small(t, v->id);
    struct rw_expected *const e = is_known ? rw_history_find(t) : NULL;
    struct rw_run *r = rw_run_assumed(t);
    if (r && rw_run_is_overtaken(r)) {
        rw_run_end(r);
        r = NULL;
    }
    const bool goes_on = r && (rw_run_is_reached(r) || (e && rw_point_is_same(&e->ahead.at, &r->plan->recorded)));
    if (goes_on && advance_to(r, v->id)) return;
    if (e && is_small && e->n_roots && !rw_log_has_backward(t) && begin(t, e, v->id)) return;
    if (e && is_small) evaluate_together(t, e, v->id);
    else begin_if_loss(t, e, x);
}

/* ---- backward ---- */

bool rw_is_of_more(rw_status status)
{
    return status == RW_ERR_BUDGET || status == RW_ERR_MEMORY || status == RW_ERR_UNSUPPORTED ||
           status == RW_ERR_NO_GRADIENT || status == RW_ERR_ARGUMENT;
}

/* Only the first backward of a step computes what is expected. REWIND_VERIFY=1 has a plan of its own. */
bool rw_backward_request(rw_tape *t, const uint32_t *loss, const struct rw_policy *policy, struct rw_request *ret,
                         uint32_t **ret_values)
{
    const rw_context *const ctx = t->ctx;
    const bool is_first = !ctx->eager && t->n_users == 1 && !rw_log_has_backward(t);
    const struct rw_expected *const e = is_first && ctx->verify != RW_VERIFY_FULL ? rw_history_find(t) : NULL;
    const bool is_more = e && is_at(t, e) && (e->n_reads || e->n_roots > 1);
    if (!is_more || !request_step(t, e, loss, RW_NONE_ID, policy, ret, ret_values)) return false;
    ret->seeded = false;
    return true;
}

/* Runs the step with what it is expected to compute. False: it was not tried, or has failed because of that. */
static bool run_expected(rw_tape *t, const struct rw_request *request, const void *const *seeds, rw_status *ret_status)
{
    struct rw_run *r;
    const rw_status status = *ret_status = rw_run_find(t, request, &r);
    if (status) {
        if (rw_is_of_more(status)) rw_forget_error(t->ctx);
        return !rw_is_of_more(status);
    }
    if (rw_run_check(r, r->next_action, r->plan->n_actions)) {
        if (r->state == RW_RUN_NEW) rw_run_end(r);
        rw_forget_error(t->ctx); /* unless it is one of the loss: then it is found again */
        return false;
    }
    if (r->state == RW_RUN_NEW) r->flags |= RW_RUN_ASSUMED;
    return rw_run_assumed_part(r, seeds, false, ret_status);
}

/* Runs the expected step if there is one, otherwise the step of the loss alone. */
static rw_status run_backward(rw_tape *t, uint32_t loss, const void *const *seeds)
{
    struct rw_request request = rw_program_step(t, &loss, 1), more;
    uint32_t *values = NULL;
    request.seeded = seeds;
    if (t->ctx->verify == RW_VERIFY_FULL) return rw_verify_and_run(t, &request, seeds);
    const bool is_more = rw_backward_request(t, &loss, NULL, &more, &values);
    rw_status status = rw_log_backward(t, loss, seeds);
    bool is_done = status != RW_OK;
    if (is_more && !is_done) {
        more.seeded = seeds;
        is_done = run_expected(t, &more, seeds, &status);
    }
    rw_free(values);
    return is_done ? status : rw_run_request(t, &request, seeds, false);
}

rw_status rw_begun_backward(rw_tape *t, uint32_t loss, const void *const *seeds)
{
    const rw_status status = run_backward(t, loss, seeds);
    if (!status) rw_tape_note_requested(t, &loss, 1, RW_REQUESTED_STEP, true);
    return status;
}

/* ---- an input that is written ---- */

/* Marks the nodes that forward and backward of requested roots need. Backward also differentiates views, whose rules
   may read other operands than the elements of the view depend on, and follows the edge to a value whose parts the op
   reads in its place. */
static void mark_steps(const rw_tape *t, bool *nodes)
{
    for (uint32_t v = 0; v < t->n_values; v++) {
        const uint32_t producer = rw_tape_value(t, v)->producer;
        if (t->requested[v] & RW_REQUESTED_STEP && producer != RW_NONE_ID) nodes[producer] = true;
    }
    for (size_t n = t->n_nodes; n-- > 0;) {
        const struct rw_node *const node = &t->nodes[n];
        if (!nodes[n]) continue;
        const uint32_t whole = rw_edges_of(t, node).whole, n_read = node->n_inputs + (whole != RW_NONE_ID ? 1u : 0u);
        for (uint32_t i = 0; i < n_read; i++) {
            const uint32_t v = i < node->n_inputs ? t->operands[node->first_input + i] : whole;
            const uint32_t producer = rw_tape_value(t, v)->producer;
            if (producer != RW_NONE_ID) nodes[producer] = true;
        }
    }
}

/*
 * Marks the nodes on which requests of the program depend: values that it requested, effects that have happened or that
 * belong to a step which it requested, and what these need.
 */
static void mark_requested(const rw_tape *t, bool *nodes)
{
    mark_steps(t, nodes);
    for (uint32_t v = 0; v < t->n_values; v++)
        if (t->requested[v]) mark_producer(t, v, nodes);
    for (size_t i = 0; i < t->n_effects; i++) {
        const struct rw_effect *const e = &t->effects[i];
        nodes[e->node] |= e->done && !t->ctx->eager;
    }
    mark_needed(t, nodes);
}

/* Marks the nodes that depend on the leaf. */
static void mark_readers(const rw_tape *t, uint32_t leaf, bool *nodes)
{
    for (size_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        for (uint32_t i = 0; i < node->n_inputs; i++) {
            const struct rw_tensor *const v = rw_tape_value(t, rw_tape_base(t, t->operands[node->first_input + i]));
            nodes[n] |= v->leaf == leaf || (v->producer != RW_NONE_ID && nodes[v->producer]);
        }
    }
}

/* Drops the held values that depend on the leaf, none of which was requested. */
static void drop_readers(rw_tape *t, const bool *readers)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_held; i++) {
        const uint32_t producer = rw_tape_value(t, t->held[i].value)->producer;
        if (producer != RW_NONE_ID && readers[producer]) rw_results_release(t->ctx, t->held[i].in);
        else t->held[n++] = t->held[i];
    }
    t->n_held = n;
}

/* Refuses the write in eager mode if an op with an effect has read the input: the effect cannot happen twice. */
static rw_status check_effects(const rw_tape *t, uint32_t leaf, const bool *readers)
{
    for (size_t i = 0; i < t->n_effects; i++) {
        const struct rw_node *const node = &t->nodes[t->effects[i].node];
        const rw_site at = t->ctx->sites[node->site];
        const char *const name = rw_tensor_name(rw_tape_value(t, t->leaves[leaf].value));
        if (!t->effects[i].done || !readers[t->effects[i].node]) continue;
        return rw_fail(t->ctx, RW_ERR_MODIFIED,
                       "rw_input_write(x): input %s%s(value %u): REWIND_EAGER=1 has executed %s, recorded at %s:%d, "
                       "which has an effect and read the old elements; write the input before the op is recorded",
                       name, *name ? " " : "", t->leaves[leaf].value, t->ctx->ops[node->op]->name, rw_file_of(at),
                       at.line);
    }
    return RW_OK;
}

/* Does a request of the program depend on the leaf? It is recorded, because that does not change within a step. */
static bool is_requested(rw_tape *t, uint32_t leaf, bool *nodes, const bool *readers)
{
    mark_requested(t, nodes);
    bool is = false;
    for (size_t n = 0; !is && n < t->n_nodes; n++) is = nodes[n] && readers[n];
    t->leaves[leaf].is_requested = is;
    return is;
}

/* Does the rest of the run read a held value of one of the nodes? */
static bool reads_held(const struct rw_run *r, const struct rw_source *s, const bool *nodes)
{
    return s->kind == RW_SOURCE_HELD && s->last >= r->next_action && nodes[rw_tape_value(r->tape, s->index)->producer];
}

/*
 * Has the suspended run executed one of the nodes, or will it read a held value of one? Nodes that its plan has added
 * run after the suspension.
 */
static bool has_used(const struct rw_run *r, const bool *nodes)
{
    const rw_plan *const p = r->plan;
    bool used = false;
    for (size_t i = 0; !used && i < r->next_action; i++) {
        const struct rw_action *const a = &p->actions[i];
        used = !rw_action_is_move(a->kind) && a->node < p->mark_nodes && nodes[a->node];
    }
    for (size_t i = 0; !used && i < p->n_sources; i++) used = reads_held(r, &p->sources[i], nodes);
    return used;
}

/* Would the rest of the run read the input or a held value of the nodes, or execute an effect among the nodes? Then it
   would compute from old and new elements together. */
static bool needs_them_later(const struct rw_run *r, uint32_t leaf, const bool *nodes)
{
    const rw_plan *const p = r->plan;
    const rw_tape *const t = r->tape;
    bool needs = false;
    for (size_t i = 0; !needs && i < p->n_sources; i++) {
        const struct rw_source *const s = &p->sources[i];
        const bool is_input = s->kind == RW_SOURCE_INPUT && s->index == leaf && s->last >= r->next_action;
        needs = is_input || reads_held(r, s, nodes);
    }
    for (size_t i = 0; !needs && i < t->n_effects; i++)
        needs = nodes[t->effects[i].node] && !t->effects[i].done;
    return needs;
}

/* Lets the run go on without publishing values of the nodes. False without memory. */
static bool outdate(struct rw_run *r, const bool *nodes)
{
    if (!r->outdated) r->outdated = rw_calloc(r->plan->mark_nodes, sizeof *r->outdated);
    for (size_t n = 0; r->outdated && n < r->plan->mark_nodes; n++) r->outdated[n] |= nodes[n];
    return r->outdated;
}

static void drop_from_runs(const rw_tape *t, uint32_t leaf, const bool *nodes)
{
    for (struct rw_run *r = rw_runs_of(t)->first, *next; r; r = next) {
        next = r->next;
        if (r->state != RW_RUN_STOPPED || !has_used(r, nodes)) continue;
        if (needs_them_later(r, leaf, nodes) || !outdate(r, nodes)) rw_run_end(r);
    }
}

/*
 * The law of an input that is written. The library computes more than the program requests: values that the last step
 * read, a step that a read begins, in eager mode everything. What was only computed ahead binds nothing, whichever call
 * runs it now: a suspended step that a read began still computes the other values after rw_forward() has requested its
 * forward part. So if no request depends on the input, everything that was computed from it is dropped: held values,
 * steps that a read began, and what each other suspended step has computed. Such a step goes on, because nothing that
 * was requested of it depends on the input, and publishes the rest. If it would still read the input, it ends and is
 * recomputed; that is refused if another input, which it had read for a request, was written as well.
 *
 * Parameters, buffers and gradients have no such write: a tape relies on the contents at recording, and whatever would
 * read others is refused. If only values that were not requested would, the request is run alone: see find_run() in
 * execute_request.c.
 */
rw_status rw_begun_written(rw_tape *t, uint32_t leaf)
{
    bool *const nodes = rw_calloc(t->n_nodes, sizeof *nodes), *const readers = rw_calloc(t->n_nodes, sizeof *readers);
    rw_status status = nodes && readers ? RW_OK : rw_fail(t->ctx, RW_ERR_MEMORY, "rw_input_write: out of memory");
    if (!status) mark_readers(t, leaf, readers);
    if (!status && !is_requested(t, leaf, nodes, readers)) {
        status = check_effects(t, leaf, readers);
        if (!status) {
            rw_runs_end_assumed(t);
            drop_from_runs(t, leaf, readers);
            drop_readers(t, readers);
            t->leaves[leaf].ran = false;
        }
    }
    rw_free(nodes);
    rw_free(readers);
    return status;
}

/* ---- planning ahead ---- */

static bool reads_before_its_end(const struct rw_expected *e)
{
    for (size_t i = 0; i < e->n_points; i++)
        if (!rw_point_is_same(&e->points[i], &e->ahead.at)) return e->n_roots;
    return false;
}

/*
 * Can this tape be planned ahead? Not if it has recorded more after its backward, or has open scopes: then it does not
 * repeat.
 */
static bool can_plan(const rw_tape *t, const struct rw_expected *e)
{
    const rw_context *const ctx = t->ctx;
    return is_at(t, e) && !ctx->status && !ctx->eager && !ctx->destroyed && !t->bereft &&
           ctx->verify != RW_VERIFY_FULL && t->n_users == 1 && t->open_region == RW_NONE_ID &&
           t->open_part == RW_NONE_ID && t->open_recipe == RW_NONE_ID && !t->open_no_grads;
}

/* Makes the plan of the same step again, if its program reads values before the step is recorded. */
void rw_begun_plan_ahead(rw_tape *t, struct rw_expected *e)
{
    struct rw_history *const h = rw_history_of(t->ctx);
    struct rw_request request;
    uint32_t *values;
    if (!reads_before_its_end(e) || !can_plan(t, e)) return;
    const bool is_new = e->steps == 1;
    if (is_new && h->n_unused >= RW_AHEAD_UNUSED_MAX) return;
    if (!request_step(t, e, e->roots, RW_NONE_ID, NULL, &request, &values)) return;
    rw_plan *plan;
    e->ahead.holds = rw_context_holds(t->ctx);
    for (size_t i = 0; i < t->n_effects; i++) t->effects[i].done = false;
    if (rw_plan_get(t, &request, &plan)) rw_forget_error(t->ctx);
    h->n_unused += is_new;
    rw_free(values);
}
