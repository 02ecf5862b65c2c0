/* ckpt_explain(): prints a plan. It plans anew, because a cached plan does not keep the reasons for its decisions. */
#include "autodiff/differentiate.h"
#include "autodiff/roots.h"
#include "base/sigpipe_safe_output.h"
#include "plan/advice.h"
#include "plan/explain_rows.h"
#include "plan/prediction.h"
#include "record/unmatched_policy_names.h"
#include "remat/schedule/live_set.h"

#include <rewind/recompute.h>

#include <inttypes.h>
#include <string.h>

/* Everything to print, collected before the first word is printed. */
struct explanation {
    struct rw_explain_rows lines;
    struct rw_advice advice;
    rw_prediction prediction;
};

/* The reason for a line. A value that is read outside of replayed regions may be computed inside of one or not, or
   there is no replayed region. A node that is replayed for one output also recomputes its other outputs, whatever
   was decided about them. */
static const char *reason_of(const struct rw_planning *g, const struct rw_explain_rows *l, const struct rw_line *line)
{
    const uint32_t value = g->schedule.buffers[line->buffer].value;
    const struct rw_fate fate = g->choice.fate[value];
    const bool is_decided = (fate.level || fate.what == RW_REPLAY) && fate.why != RW_WHY_OUTSIDE &&
                            fate.why != RW_WHY_OP;
    if (line->what == RW_LINE_DEFERRED) return "only backward reads it: computed there for the first time";
    if (line->what == RW_LINE_REPLAYED && !is_decided) return "its op is replayed for another output";
    if (fate.why != RW_WHY_OUTSIDE) return rw_why_text(fate.why);
    if (!l->replays) return "nothing is replayed under this policy";
    return g->choice.segment_of[rw_tape_value(g->problem.t, value)->producer]
               ? "computed in a replayed region, read outside it"
               : "computed outside any replayed region";
}

/* n: how many say the same. */
static void print_value(const struct rw_planning *g, const struct rw_explain_rows *l, const struct rw_line *line,
                        const char *indent, uint32_t n, FILE *out)
{
    static const char *const what[] = { [RW_LINE_KEPT] = "kept", [RW_LINE_REPLAYED] = "replayed",
                                        [RW_LINE_MOVED] = "offloaded", [RW_LINE_DEFERRED] = "deferred" };
    const rw_tape *const t = g->problem.t;
    const struct rw_buffer *const b = &g->schedule.buffers[line->buffer];
    const struct rw_tensor *const v = rw_tape_value(t, b->value);
    const struct rw_node *const node = &t->nodes[v->producer];
    const rw_site at = t->ctx->sites[node->site];
    char region[128], op[80];
    rw_region_path(t, rw_node_region(t, node), region, sizeof region);
    if (n > 1) snprintf(op, sizeof op, "%" PRIu32 " x %s", n, t->ctx->ops[node->op]->name);
    else snprintf(op, sizeof op, "%s", t->ctx->ops[node->op]->name);
    fprintf(out, "%s  %-9s %11" PRIu64 "  %-14s %-24s %s:%d%s%s  (%s)\n", indent, what[line->what],
            rw_buffer_room(&g->problem, b), op, region, rw_file_of(at), (int)at.line,
            v->tag ? "  " : "", v->tag ? t->ctx->names.text[v->tag - 1] : "", reason_of(g, l, line));
}

/* Prints the first of several equal lines, with their number. */
static void print_once(const struct rw_planning *g, const struct rw_explain_rows *l, uint32_t i, const char *indent,
                       FILE *out)
{
    if (l->line[i].like == i) print_value(g, l, &l->line[i], indent, l->line[i].count, out);
}

static void print_block(const struct rw_planning *g, const struct rw_explain_rows *l, uint32_t block, FILE *out)
{
    const struct rw_block *const x = &l->block[block];
    char region[128];
    rw_region_path(g->problem.t, block, region, sizeof region);
    fprintf(out, "  %" PRIu32 " x %s, %" PRIu64 " bytes kept in each:\n", x->count, region, x->kept);
    for (uint32_t i = x->first; i != RW_NONE_ID; i = l->line[i].next) print_once(g, l, i, "  ", out);
}

/* Prints the first of several equal regions and values. */
static void print_values(const struct rw_planning *g, const struct rw_explain_rows *l, bool all, FILE *out)
{
    for (uint32_t i = 0; i < l->n; i++) {
        const uint32_t block = l->line[i].block;
        if (all) print_value(g, l, &l->line[i], "", 1, out);
        else if (block == RW_NONE_ID) print_once(g, l, i, "", out);
        else if (l->block[l->block[block].like].first == i) print_block(g, l, l->block[block].like, out);
    }
}

static void print_share(FILE *out, const char *name, size_t bytes, size_t whole)
{
    if (bytes) fprintf(out, "  %-28s %14zu  %5.1f %%\n", name, bytes, 100 * (double)bytes / (double)whole);
}

static void print_memory(const rw_prediction *p, FILE *out)
{
    const rw_memory_breakdown *const b = &p->at_peak;
    const struct {
        const char *name;
        size_t bytes;
    } lines[] = {
        { "parameters", b->parameters },   { "gradients", b->gradients },
        { "optimizer", b->optimizer },     { "inputs", b->inputs },
        { "results", b->results },         { "kept for backward", b->kept },
        { "replayed", b->replayed },       { "transient in forward", b->transient },
        { "intermediate gradients", b->adjoint }, { "workspace", b->workspace },
        { "fragmentation", b->fragmentation },
    };
    fprintf(out, "at the peak the context holds %zu bytes on the device:\n", p->total_bytes);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        print_share(out, lines[i].name, lines[i].bytes, p->total_bytes);
    const size_t fixed = b->parameters + b->gradients + b->optimizer;
    if (2 * fixed > p->total_bytes)
        fprintf(out, "  more than half are parameters, gradients and optimizer: no policy changes those, nor do batch "
                     "or length\n");
}

static void print_holdings(const struct rw_planning *g, const struct rw_advice *a, FILE *out)
{
    static const char *const kinds[] = { [RW_LIVE_TRANSIENT] = "transient", [RW_LIVE_KEPT] = "kept",
                                         [RW_LIVE_REPLAYED] = "replayed", [RW_LIVE_ADJOINT] = "gradient",
                                         [RW_LIVE_WORKSPACE] = "workspace" };
    const rw_tape *const t = g->problem.t;
    if (a->n_held) fprintf(out, "most of the arena then:\n");
    for (size_t i = 0; i < a->n_held; i++) {
        const struct rw_holding_line *const h = &a->held[i];
        const struct rw_node *const node = h->value == RW_NONE_ID ? NULL
                                                                  : &t->nodes[rw_tape_value(t, h->value)->producer];
        const rw_site at = node ? t->ctx->sites[node->site] : (rw_site){ 0 };
        char region[128] = "";
        if (node) rw_region_path(t, rw_node_region(t, node), region, sizeof region);
        fprintf(out, "  %5.1f %% %12" PRIu64 "  %4" PRIu32 " x %-9s %s", 100 * (double)h->bytes / (double)g->cost.peak,
                h->bytes, h->count, kinds[h->kind], node ? t->ctx->ops[node->op]->name : "");
        if (node) fprintf(out, "  %s%s%s:%d", region, *region ? "  " : "", rw_file_of(at), (int)at.line);
        fprintf(out, "\n");
    }
}

/* Prints where values could be offloaded to. */
static void print_store(const rw_context *ctx, const struct rw_advice *a, FILE *out)
{
    const char *const path = ctx->store.path;
    if (a->store == RW_STORE_IS_WEIGHED)
        fprintf(out, ", budget:SIZE+offload may also offload values to %s\n", path ? path : "host memory");
    else if (a->store == RW_STORE_IS_BROKEN)
        fprintf(out, "\n  nothing can be offloaded to %s: its speed could not be measured\n",
                path ? path : "host memory");
    else
        fprintf(out, "\n  values can also be offloaded to a file (offload:NAME, budget:SIZE+offload), where "
                     "rw_context_set_offload() or REWIND_OFFLOAD names a folder on a disk\n");
}

static void print_rows(const struct rw_planning *g, const rw_plan *plan, const struct rw_advice *a, FILE *out)
{
    fprintf(out, a->n_rows ? "policies that take less:\n" : "no policy that was tried takes less\n");
    for (size_t i = 0; i < a->n_rows; i++) {
        const struct rw_advice_row *const r = &a->row[i];
        fprintf(out, "  %-32s %14" PRIu64 " bytes less (%4.1f %% of the arena), %+5.1f %% time", r->policy,
                plan->arena_bytes - r->bytes, 100 - 100 * (double)r->bytes / (double)plan->arena_bytes,
                100 * (r->seconds / g->cost.seconds - 1));
        if (r->moved) fprintf(out, ", %" PRIu64 " bytes are offloaded", r->moved);
        fprintf(out, "\n");
    }
    if (a->is_long)
        fprintf(out, "  only full and uniform:2 are tried for more than %d nodes; rw_tape_plan() tries any policy\n",
                RW_ADVICE_NODES);
    if (g->parts.n) {
        fprintf(out, "  parts of the tape have budgets, so budget:SIZE of the whole tape is refused\n");
        return;
    }
    fprintf(out, "  budget:SIZE finds the fastest step whose arena takes at most SIZE");
    print_store(g->problem.t->ctx, a, out);
}

static void print_peak(const struct rw_planning *g, const rw_plan *plan, FILE *out)
{
    const struct rw_schedule *const s = &g->schedule;
    const rw_context *const ctx = g->problem.t->ctx;
    fprintf(out, "kept %" PRIu64 " bytes; ", plan->kept_bytes);
    if (plan->n_slots) fprintf(out, "offloaded %" PRIu64 " bytes; ", plan->store_bytes);
    fprintf(out, "peak %" PRIu64 " bytes", plan->arena_bytes);
    if (s->n_actions) {
        const struct rw_action *const at = &s->actions[g->cost.peak_action];
        const struct rw_node *const node = &g->problem.t->nodes[at->node];
        const rw_site site = ctx->sites[node->site];
        fprintf(out, ", reached (%" PRIu64 " live) at action %" PRIu32 " of %zu: %s of %s, %s:%d", g->cost.peak,
                g->cost.peak_action, s->n_actions, rw_action_kind_name(at->kind), ctx->ops[node->op]->name, site.file,
                (int)site.line);
    }
    fprintf(out, "\n");
}

static void print_parts(const struct rw_planning *g, FILE *out)
{
    const rw_tape *const t = g->problem.t;
    for (size_t i = 0; i < g->parts.n; i++) {
        const struct rw_part_use *const use = &g->parts.use[i];
        const struct rw_tape_part *const part = &t->parts[use->part];
        const rw_site at = t->ctx->sites[part->site];
        fprintf(out, "part of %s:%d, %s: takes %" PRIu64 " bytes at most, %" PRIu64 " are allowed, %" PRIu64
                " with all kept\n", rw_file_of(at), (int)at.line, part->policy.spec, use->bytes, use->budget, use->all);
    }
}

/* A misspelled name has no effect, which looks like a policy that saves nothing. */
static void print_unmatched(const rw_tape *t, FILE *out)
{
    struct rw_unmatched names[64];
    char others[256];
    const size_t n = rw_unmatched_names(t, names, 64);
    for (size_t i = 0; i < n && i < 64; i++) {
        rw_unmatched_print_others(t, names[i].is_tag, others, sizeof others);
        fprintf(out, "  warning: no %s is called \"%s\", nothing is %s for it; %s\n",
                names[i].is_tag ? "value" : "region", names[i].name, names[i].what, others);
    }
}

static void print_plan(const struct rw_planning *g, const rw_plan *plan, const struct explanation *e, unsigned flags,
                       FILE *out)
{
    const rw_tape *const t = g->problem.t;
    fprintf(out, "policy %s: %zu nodes forward, %zu replayed, %zu backward\n", t->policy_spec,
            plan->cost.forward_nodes, plan->cost.replayed_nodes, plan->cost.backward_nodes);
    print_unmatched(t, out);
    print_values(g, &e->lines, flags & CKPT_EXPLAIN_ALL, out);
    print_peak(g, plan, out);
    print_parts(g, out);
    print_memory(&e->prediction, out);
    print_holdings(g, &e->advice, out);
    print_rows(g, plan, &e->advice, out);
}

static rw_status print_all(const struct rw_planning *g, const rw_plan *plan, const struct explanation *e,
                           unsigned flags, FILE *out)
{
    struct rw_printing printing = rw_printing_begin(out);
    print_plan(g, plan, e, flags, out);
    const char *const why = rw_printing_end(&printing);
    return why ? rw_fail(g->problem.t->ctx, RW_ERR_IO, "ckpt_explain: out cannot be written to: %s", why) : RW_OK;
}

static rw_status explain_plan(const struct rw_planning *g, const rw_plan *plan, unsigned flags, FILE *out)
{
    struct explanation e = { 0 };
    rw_status status = rw_explain_rows_init(&e.lines, g);
    if (!status) status = rw_predict(g, plan, &e.prediction);
    if (!status) status = rw_advise(g, plan->arena_bytes, &e.advice);
    if (status) rw_fail(g->problem.t->ctx, status, "ckpt_explain: %s", rw_status_name(status));
    else status = print_all(g, plan, &e, flags, out);
    rw_explain_rows_finish(&e.lines);
    return status;
}

/* A value may have been marked after its use. */
static uint32_t loss_of(rw_tape *t)
{
    rw_spread_requirement(t);
    for (uint32_t v = (uint32_t)t->n_values; v-- > 0;) {
        const struct rw_tensor *const x = rw_tape_value(t, v);
        if (x->producer != RW_NONE_ID && (x->flags & RW_VALUE_REQUIRES) &&
            rw_layout_get(&t->ctx->layouts, x->layout)->numel == 1)
            return v;
    }
    return RW_NONE_ID;
}

rw_status ckpt_explain(rw_tape *t, FILE *out)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    return ckpt_explain_with(t, out, 0);
}

rw_status ckpt_explain_with(rw_tape *t, FILE *out, unsigned flags)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "ckpt_explain_with", "t");
    rw_context *const ctx = t->ctx;
    if (ctx->status) return ctx->status;
    if (!out) return rw_fail_null(ctx, "ckpt_explain", "out");
    if (flags & ~(unsigned)CKPT_EXPLAIN_ALL)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "ckpt_explain(flags): expected 0 or CKPT_EXPLAIN_ALL, got %#x", flags);
    if (t->open_region != RW_NONE_ID || t->open_part != RW_NONE_ID || t->open_recipe != RW_NONE_ID)
        return rw_fail(ctx, RW_ERR_REGION, "ckpt_explain: expected no open region, got one; call ckpt_end() first");
    const struct rw_last_roots *const last = rw_roots_of(t);
    const uint32_t loss = last ? RW_NONE_ID : loss_of(t);
    if (loss == RW_NONE_ID && !last)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "ckpt_explain(t): expected a tape with a loss, got none recorded");
    struct rw_request request = last ? rw_step_request(t, last->values, last->n) : rw_step_request(t, &loss, 1);
    request.seeded = last && last->seeded;
    struct rw_planning planning;
    rw_plan *plan;
    rw_status status = rw_planning_open(&planning, t, &request);
    if (status) return status;
    status = rw_planning_place(&planning, &plan);
    if (!status) {
        status = explain_plan(&planning, plan, flags, out);
        rw_plan_release(plan);
    }
    rw_planning_close(&planning);
    return status;
}
