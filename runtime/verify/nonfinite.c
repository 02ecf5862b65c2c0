/*
 * rw_find_nonfinite(): a rehearsal of the step in which every value is checked. Inputs of a node are checked before it
 * runs, because it may overwrite them.
 */
#include <rewind/nonfinite.h>

#include "autodiff/roots.h"
#include "base/alloc.h"
#include "base/sigpipe_safe_output.h"
#include "plan/cache.h"
#include "run/run_advance.h"
#include "verify/report.h"

#include <math.h>
#include <string.h>

struct search {
    struct rw_observer observer; /* first: the run hands it back */
    rw_context *ctx;
    bool nan_alone;
    rw_nonfinite found;
    const struct rw_held *held; /* values computed before the search */
    size_t n_held;
    double least, greatest; /* of the node's inputs */
    void *host;             /* a copy of one value */
    size_t cap_host;
};

/* Statistics of one value. */
struct seen {
    int64_t first, count, elements; /* number of elements that are not finite; first -1: none */
    double got, least, greatest;
};

/* ---- one value ---- */

static struct seen look_at(const struct search *s, const void *data, const rw_view *v)
{
    struct seen seen = { .first = -1, .elements = v->layout->numel, .least = INFINITY, .greatest = -INFINITY };
    for (int64_t i = 0; i < seen.elements; i++) {
        uint64_t bits;
        const double x = rw_report_number(data, (size_t)rw_layout_place(v->layout, i), v->dtype, &bits);
        if (x < seen.least) seen.least = x;
        if (x > seen.greatest) seen.greatest = x;
        if (isfinite(x) || (s->nan_alone && !isnan(x))) continue;
        if (!seen.count++) {
            seen.first = i;
            seen.got = x;
        }
    }
    return seen;
}

static rw_status look(struct search *s, const rw_view *v, struct seen *ret)
{
    const rw_context *const ctx = s->ctx;
    const size_t bytes = (size_t)v->layout->span * rw_dtype_size(v->dtype);
    *ret = (struct seen){ .first = -1, .least = INFINITY, .greatest = -INFINITY };
    if (!rw_dtype_is_float(v->dtype) || !v->data || !v->layout->numel) return RW_OK;
    if (ctx->device->on_host) {
        *ret = look_at(s, v->data, v);
        return RW_OK;
    }
    if (!rw_grow(&s->host, &s->cap_host, 0, bytes, 1)) return RW_ERR_MEMORY;
    const rw_status status = ctx->device->download(ctx->device_state, s->host, v->data, bytes);
    if (!status) *ret = look_at(s, s->host, v);
    return status;
}

static bool are_other_bytes(struct search *s, const struct rw_held *h, const rw_view *v, rw_status *status)
{
    const rw_context *const ctx = s->ctx;
    const size_t bytes = (size_t)v->layout->span * rw_dtype_size(v->dtype);
    if (ctx->device->on_host) return memcmp(h->data, v->data, bytes);
    if (!rw_grow(&s->host, &s->cap_host, 0, 2 * bytes, 1)) *status = RW_ERR_MEMORY;
    char *const host = s->host;
    if (!*status) *status = ctx->device->download(ctx->device_state, host, h->data, bytes);
    if (!*status) *status = ctx->device->download(ctx->device_state, host + bytes, v->data, bytes);
    return !*status && memcmp(host, host + bytes, bytes);
}

/* If the value was read before, compares its bytes with those. */
static rw_status compare(struct search *s, const struct rw_at *at, uint32_t value, const rw_view *v, bool *ret_differs)
{
    rw_status status = RW_OK;
    *ret_differs = false;
    if (value >= at->run->plan->mark_values || !v->data || !v->layout->numel) return RW_OK;
    for (size_t i = 0; i < s->n_held && !*ret_differs && !status; i++)
        if (s->held[i].value == value && s->held[i].data) *ret_differs = are_other_bytes(s, &s->held[i], v, &status);
    return status;
}

/* ---- inputs and outputs of a node ---- */

/* The recorded op whose gradient the node computes, through rules of rules; outside of rules the node's own op. */
static const char *op_of_program(const rw_tape *t, const struct rw_node *node)
{
    while (node->adjoint && node->of != RW_NONE_ID) node = &t->nodes[node->of];
    return t->ctx->ops[node->op]->name;
}

/* Writes the name of a value. A leaf's name is that of its buffer, of which the op may read a view. */
static void name_value(const rw_tape *t, uint32_t value, bool leaf, char *text, size_t size)
{
    const struct rw_tensor *const x = rw_tape_value(t, leaf ? rw_tape_base(t, value) : value);
    const struct rw_leaf *const l = x->leaf != RW_NONE_ID ? &t->leaves[x->leaf] : NULL;
    const bool gradient = l && l->kind == RW_LEAF_GRADIENT, param = gradient || (l && l->kind == RW_LEAF_PARAM);
    snprintf(text, size, "%s%s", gradient ? "gradient of " : "",
             param ? rw_param_name(t->ctx->by_id[l->param]) : rw_tensor_name(x));
}

static void note(struct search *s, const struct rw_at *at, const struct seen *seen, uint32_t value, bool leaf)
{
    const rw_tape *const t = at->run->tape;
    ckpt_report place = { 0 };
    rw_report_place(t, at->run->plan, at->node, false, &place);
    s->found = (rw_nonfinite){ .found = seen->count,
                               .leaf = leaf,
                               .backward = at->node->adjoint,
                               .element = seen->first,
                               .count = seen->count,
                               .elements = seen->elements,
                               .got = seen->got,
                               .least = s->least,
                               .greatest = s->greatest };
    snprintf(s->found.op, sizeof s->found.op, "%s", op_of_program(t, at->node));
    if (at->node->adjoint) memcpy(s->found.rule_op, place.op, sizeof s->found.rule_op);
    memcpy(s->found.region, place.region, sizeof s->found.region);
    memcpy(s->found.site, place.site, sizeof s->found.site);
    if (value < at->run->plan->mark_values)
        name_value(t, value, leaf, s->found.value, sizeof s->found.value);
}

static bool is_leaf(const struct rw_at *at, uint32_t value)
{
    if (value >= at->run->plan->mark_values) return false;
    const rw_tape *const t = at->run->tape;
    return rw_tape_value(t, rw_tape_base(t, value))->producer == RW_NONE_ID;
}

/* A leaf has no producer, so a leaf that is not finite is reported at the first node that reads it. */
static rw_status before(struct rw_observer *o, struct rw_at *at)
{
    struct search *const s = (struct search *)o;
    s->least = INFINITY;
    s->greatest = -INFINITY;
    for (int i = 0; at->node && i < at->n_in; i++) {
        const uint32_t v = rw_plan_operand(at->run->tape, at->run->plan, at->node->first_input + (uint32_t)i);
        struct seen seen;
        const rw_status status = look(s, &at->in[i], &seen);
        if (status) return status;
        s->least = fmin(s->least, seen.least);
        s->greatest = fmax(s->greatest, seen.greatest);
        if (!seen.count || !is_leaf(at, v)) continue;
        note(s, at, &seen, v, true);
        return RW_ERR_MISMATCH;
    }
    return RW_OK;
}

/* The first hit in execution order ends the rehearsal. All inputs of that node were finite, or their producers would
   have been reported before it. A finite output is reported too if it has other bytes than the value that was read
   earlier: then the op itself is not deterministic, or the earlier value was corrupted. */
static rw_status after(struct rw_observer *o, const struct rw_at *at)
{
    struct search *const s = (struct search *)o;
    for (int i = 0; at->node && i < at->n_out; i++) {
        const uint32_t value = at->node->first_output + (uint32_t)i;
        struct seen seen;
        bool differs;
        rw_status status = look(s, &at->out[i], &seen);
        if (!status) status = compare(s, at, value, &at->out[i], &differs);
        if (status) return status;
        if (!seen.count && !differs) continue;
        note(s, at, &seen, value, false);
        s->found.differs = differs;
        return RW_ERR_MISMATCH;
    }
    return RW_OK;
}

/* ---- the rehearsal ---- */

/* Ends before the commits, because only the real backward writes buffers. No result is committed: the tape keeps
   what was computed before. And additions to gradients find them clear: after clipping by a norm that is NaN every
   gradient is NaN, and the first op that adds to one would be reported. */
static rw_status rehearse(struct search *s, rw_tape *t, rw_plan *plan)
{
    struct rw_run *r;
    rw_status status = rw_run_make(t, plan, RW_RUN_REHEARSAL | RW_RUN_ADDS_NONE, &r);
    if (status) return status;
    status = rw_run_watch(r, &s->observer);
    if (!status) status = rw_run_advance(r, plan->n_actions - plan->n_commits);
    if (!status) status = rw_runs_wait(t->ctx);
    rw_run_end(r);
    if (status != RW_ERR_MISMATCH || !(s->found.found || s->found.differs)) return status;
    rw_error_clear(t->ctx); /* that is how the run ended */
    return RW_OK;
}

/* Runs with an empty list of held values, so that values read before are recomputed. */
static rw_status search(struct search *s, rw_tape *t, uint32_t loss)
{
    const struct rw_request request = rw_step_request(t, &loss, 1);
    struct rw_held *const held = t->held;
    const size_t n_held = t->n_held, cap_held = t->cap_held;
    rw_plan *plan;
    s->held = held;
    s->n_held = n_held;
    t->held = NULL;
    t->n_held = t->cap_held = 0;
    rw_status status = rw_plan_get(t, &request, &plan);
    if (!status) {
        plan->references++;
        status = rehearse(s, t, plan);
        rw_plan_release(plan);
    }
    rw_results_let_go(t);
    rw_free(t->held);
    t->held = held;
    t->n_held = n_held;
    t->cap_held = cap_held;
    return status;
}

static rw_status check_effects(const rw_tape *t)
{
    for (size_t i = 0; i < t->n_effects; i++) {
        const rw_op_def *const op = t->ctx->ops[t->nodes[t->effects[i].node].op];
        if (!(op->flags & RW_OP_COMMIT))
            return rw_fail(t->ctx, RW_ERR_UNSUPPORTED,
                           "rw_find_nonfinite: expected a step that can run twice, got one with %s and its effect",
                           op->name);
    }
    return RW_OK;
}

rw_status rw_find_nonfinite(rw_tape *t, rw_tensor *loss, unsigned flags, rw_nonfinite *ret)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_find_nonfinite", "t");
    rw_context *const ctx = t->ctx;
    if (ctx->status) return ctx->status;
    if (!ret) return rw_fail_null(ctx, "rw_find_nonfinite", "ret");
    if (flags & ~(unsigned)RW_NONFINITE_NAN)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_find_nonfinite(flags): expected 0 or RW_NONFINITE_NAN, got %#x",
                       flags);
    const uint32_t id = rw_loss_check(t, loss, "rw_find_nonfinite");
    if (id == RW_NONE_ID || rw_check_runs(ctx, "rw_find_nonfinite") || check_effects(t)) return ctx->status;
    struct search s = { .observer = { .before = before, .after = after },
                        .ctx = ctx,
                        .nan_alone = flags & RW_NONFINITE_NAN };
    const rw_status status = search(&s, t, id);
    rw_free(s.host);
    if (!status) *ret = s.found;
    return status;
}

static void print(const rw_nonfinite *w, FILE *out)
{
    if (w->differs)
        fprintf(out,
                "%s%s%s at %s: different bytes than were read before: a hardware fault, or an op that is not a "
                "function of its inputs, which ckpt_verify() names\n",
                w->op, *w->region ? " in " : "", w->region, w->site);
    if (!w->found) {
        if (!w->differs) fprintf(out, "every value of the step is finite\n");
        return;
    }
    fprintf(out,
            "%s%s%s%s: %g, the first of %lld of %lld elements, at %lld; %s %s%s%s at %s",
            w->leaf       ? "initial value"
            : w->backward ? "gradient"
                          : "forward value",
            *w->value ? " of \"" : "", w->value, *w->value ? "\"" : "", w->got, (long long)w->count,
            (long long)w->elements, (long long)w->element,
            w->leaf       ? "first read by"
            : w->backward ? "of"
                          : "by",
            w->op, *w->region ? " in " : "", w->region, w->site);
    if (*w->rule_op) fprintf(out, ", computed by %s", w->rule_op);
    if (w->least > w->greatest) fprintf(out, ", which reads nothing\n");
    else fprintf(out, ", which reads %g to %g\n", w->least, w->greatest);
}

void rw_nonfinite_print(const rw_nonfinite *w, FILE *out)
{
    RW_ENTER_ANYWHERE;
    if (!w || !out) return;
    struct rw_printing printing = rw_printing_begin(out);
    print(w, out);
    rw_printing_end(&printing);
}
