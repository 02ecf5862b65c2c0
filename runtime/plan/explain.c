/* ckpt_explain(): a plan in words. Plans afresh, because a cached plan does not keep its reasons. */
#include "base/alloc.h"
#include "plan/build.h"
#include "remat/live.h"

#include <rewind/checkpoint.h>

#include <inttypes.h>
#include <string.h>

static const char *const reasons[] = {
    [RW_WHY_OUTSIDE] = "input of a replayed region, or outside any",
    [RW_WHY_CALLER_SAVES] = "ckpt_save()",
    [RW_WHY_OP] = "the policy keeps this op's outputs",
    [RW_WHY_NAME] = "the policy keeps this name",
    [RW_WHY_EFFECT] = "its op may run only once",
    [RW_WHY_RESULT] = "asked for",
    [RW_WHY_ADJOINT] = "made by a gradient rule",
    [RW_WHY_REGION] = "inside a replayed region",
    [RW_WHY_DISCARD] = "made in a region that is discarded",
    [RW_WHY_CALLER_REPLAYS] = "ckpt_recompute()",
    [RW_WHY_CALLER_MOVES] = "ckpt_offload()",
    [RW_WHY_NAME_MOVES] = "the policy moves this name",
    [RW_WHY_REGION_MOVES] = "the policy moves what it keeps of this region",
};

static void print_value(const struct rw_planning *g, const struct rw_buffer *b, const char *what, FILE *out)
{
    const rw_tape *const t = g->problem.t;
    const struct rw_tensor *const v = rw_tape_value(t, b->value);
    const struct rw_node *const node = &t->nodes[v->producer];
    const rw_site at = t->ctx->sites[node->site];
    char region[128];
    rw_region_path(t, rw_node_region(t, node), region, sizeof region);
    fprintf(out, "  %-8s %12" PRIu64 "  %-14s %-24s %s:%d%s%s  (%s)\n", what,
            rw_buffer_room(&g->problem, b), t->ctx->ops[node->op]->name, region, at.file, (int)at.line,
            v->tag ? "  " : "", v->tag ? t->ctx->names.text[v->tag - 1] : "", reasons[g->choice.fate[b->value].why]);
}

static bool is_kept(const struct rw_schedule *s, const uint32_t *holder, uint32_t buffer)
{
    const struct rw_buffer *const b = &s->buffers[buffer];
    return b->first < s->n_before && b->last >= s->n_before && holder[rw_buffer_root(s, buffer)] == buffer;
}

/* Which buffers a copy takes out of the device's memory. */
static bool *list_moved(const struct rw_schedule *s)
{
    bool *const moved = rw_calloc(s->n_buffers, sizeof *moved);
    for (size_t i = 0; moved && i < s->n_actions; i++)
        if (s->actions[i].kind == RW_ACTION_OUT) moved[s->refs[s->actions[i].word]] = true;
    return moved;
}

static void print_values(const struct rw_planning *g, const uint32_t *holder, const bool *moved, FILE *out)
{
    const struct rw_schedule *const s = &g->schedule;
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (b->source != RW_NONE_ID || b->value == RW_NONE_ID) continue;
        if (moved[i]) print_value(g, b, "moved", out);
        else if (b->replay) print_value(g, b, "replayed", out);
        else if (is_kept(s, holder, i)) print_value(g, b, "kept", out);
    }
}

static void print_peak(const struct rw_planning *g, const rw_plan *plan, FILE *out)
{
    const struct rw_schedule *const s = &g->schedule;
    const rw_context *const ctx = g->problem.t->ctx;
    fprintf(out, "kept %" PRIu64 " bytes; ", plan->kept_bytes);
    if (plan->n_slots) fprintf(out, "moved out %" PRIu64 " bytes; ", plan->store_bytes);
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

static bool has_region(const rw_tape *t, const char *name)
{
    for (size_t i = 0; i < t->n_regions; i++)
        if (!strcmp(t->ctx->names.text[t->regions[i].name], name)) return true;
    return false;
}

/* A name that is misspelt replays nothing, which looks like a policy that saves nothing. */
static void print_unknown(const rw_tape *t, char *const *names, size_t n, const char *what, FILE *out)
{
    for (size_t i = 0; i < n; i++)
        if (!has_region(t, names[i]))
            fprintf(out, "  warning: no region is called \"%s\", nothing is %s for it\n", names[i], what);
}

static void print_unknown_regions(const rw_tape *t, const struct rw_policy *policy, FILE *out)
{
    if (policy->kind == RW_POLICY_SELECTIVE) print_unknown(t, policy->names, policy->n_names, "replayed", out);
    print_unknown(t, policy->discards, policy->n_discards, "discarded", out);
    print_unknown(t, policy->moved_regions, policy->n_moved_regions, "moved", out);
}

static rw_status print_plan(const struct rw_planning *g, const rw_plan *plan, FILE *out)
{
    rw_context *const ctx = g->problem.t->ctx;
    uint32_t *const holder = rw_malloc(g->schedule.n_buffers * sizeof *holder);
    bool *const moved = list_moved(&g->schedule);
    if (!holder || !moved) {
        rw_free(holder);
        rw_free(moved);
        return rw_fail(ctx, RW_ERR_MEMORY, "ckpt_explain: out of memory");
    }
    rw_find_holders(&g->schedule, (uint32_t)g->schedule.n_before - 1, holder); /* no step begins with backward */
    fprintf(out, "policy %s: %zu nodes forward, %zu replayed, %zu backward\n", g->problem.t->policy_spec,
            plan->cost.forward_nodes, plan->cost.replayed_nodes, plan->cost.backward_nodes);
    print_unknown_regions(g->problem.t, &g->problem.t->policy, out);
    for (size_t i = 0; !g->problem.t->policy.whole && i < g->problem.t->n_parts; i++)
        print_unknown_regions(g->problem.t, &g->problem.t->parts[i].policy, out);
    print_values(g, holder, moved, out);
    print_peak(g, plan, out);
    rw_free(holder);
    rw_free(moved);
    return RW_OK;
}

static uint32_t loss_of(const rw_tape *t)
{
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
    if (!t) return RW_ERR_ARGUMENT;
    rw_context *const ctx = t->ctx;
    if (ctx->status) return ctx->status;
    if (!out) return rw_fail_null(ctx, "ckpt_explain", "out");
    if (t->open_region != RW_NONE_ID || t->open_part != RW_NONE_ID)
        return rw_fail(ctx, RW_ERR_REGION, "ckpt_explain: a region is open");
    const uint32_t loss = t->n_roots ? RW_NONE_ID : loss_of(t);
    if (loss == RW_NONE_ID && !t->n_roots)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "ckpt_explain: no loss has been recorded");
    struct rw_request request = t->n_roots ? rw_step_request(t, t->roots, t->n_roots) : rw_step_request(t, &loss, 1);
    request.seeded = t->n_roots && t->seeded;
    struct rw_planning planning;
    rw_plan *plan;
    rw_status status = rw_planning_open(&planning, t, &request);
    if (status) return status;
    status = rw_planning_place(&planning, &plan);
    if (!status) {
        status = print_plan(&planning, plan, out);
        rw_plan_release(plan);
    }
    rw_planning_close(&planning);
    return status;
}
