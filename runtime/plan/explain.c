/* ckpt_explain(): a plan in words. Plans afresh, because a cached plan does not keep its reasons. */
#include "plan/build.h"
#include "base/alloc.h"
#include "base/round.h"

#include <rewind/checkpoint.h>

#include <inttypes.h>

static const char *const reasons[] = {
    [RW_DECIDE_KEEP_OUTSIDE] = "input of a replayed region, or outside any",
    [RW_DECIDE_KEEP_CALLER] = "ckpt_save()",
    [RW_DECIDE_KEEP_OP] = "the policy keeps this op's outputs",
    [RW_DECIDE_KEEP_NAME] = "the policy keeps this name",
    [RW_DECIDE_KEEP_EFFECT] = "its op may run only once",
    [RW_DECIDE_KEEP_RESULT] = "asked for",
    [RW_DECIDE_KEEP_ADJOINT] = "made by a gradient rule",
    [RW_DECIDE_REPLAY_REGION] = "inside a replayed region",
    [RW_DECIDE_REPLAY_CALLER] = "ckpt_recompute()",
};

static void print_value(const rw_tape *t, const struct rw_build_details *d, const struct rw_buffer *b, FILE *out)
{
    const struct rw_tensor *const v = rw_tape_value(t, b->value);
    const struct rw_node *const node = &t->nodes[v->producer];
    const rw_site at = t->ctx->sites[node->site];
    char region[128];
    rw_region_path(t, rw_node_region(t, node), region, sizeof region);
    fprintf(out, "  %-8s %12" PRIu64 "  %-14s %-24s %s:%d%s%s  (%s)\n", b->replay ? "replayed" : "kept", b->bytes,
            t->ctx->ops[node->op]->name, region, at.file, (int)at.line, v->tag ? "  " : "",
            v->tag ? t->ctx->names[v->tag - 1] : "", reasons[d->scopes.decision[b->value]]);
}

struct peak {
    size_t step;
    uint64_t bytes;
};

/* The step with the largest sum of live bytes. */
static rw_status find_peak(const struct rw_schedule *s, uint32_t unit, struct peak *ret)
{
    *ret = (struct peak){ 0 };
    int64_t live = 0;
    int64_t *const delta = rw_calloc(s->n_actions + 1, sizeof *delta);
    if (!delta) return RW_ERR_MEMORY;
    for (size_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (b->source != RW_NONE_ID || b->merged != i) continue;
        const int64_t bytes = (int64_t)rw_round_up(b->bytes, unit);
        delta[b->first] += bytes;
        delta[b->last + 1] -= bytes;
    }
    for (size_t i = 0; i < s->n_actions; i++) {
        live += delta[i];
        if (live > (int64_t)ret->bytes) *ret = (struct peak){ i, (uint64_t)live };
    }
    rw_free(delta);
    return RW_OK;
}

static uint32_t loss_of(const rw_tape *t)
{
    if (t->last_loss != RW_NONE_ID) return t->last_loss;
    for (uint32_t v = (uint32_t)t->n_values; v-- > 0;) {
        const struct rw_tensor *const x = rw_tape_value(t, v);
        if (x->producer != RW_NONE_ID && (x->flags & RW_VALUE_REQUIRES) &&
            rw_layout_get(&t->ctx->layouts, x->layout)->numel == 1)
            return v;
    }
    return RW_NONE_ID;
}

/* Of several values that shared a buffer one after the other, the one that is there when backward begins. */
static bool is_kept(const struct rw_schedule *s, uint32_t buffer)
{
    const struct rw_buffer *const b = &s->buffers[buffer];
    uint32_t root = buffer;
    while (s->buffers[root].merged != root) root = s->buffers[root].merged;
    if (b->first >= s->n_forward || b->last < s->n_forward) return false;
    for (uint32_t i = buffer + 1; i < s->n_buffers && s->buffers[i].first < s->n_forward; i++) {
        uint32_t other = i;
        while (s->buffers[other].merged != other) other = s->buffers[other].merged;
        if (other == root) return false;
    }
    return true;
}

static void print_plan(const rw_tape *t, const rw_plan *plan, const struct rw_build_details *d, struct peak peak,
                       FILE *out)
{
    const struct rw_schedule *const s = &d->schedule;
    fprintf(out, "policy %s: %zu nodes forward, %zu replayed, %zu backward\n", t->policy_spec, plan->cost.forward_nodes,
            plan->cost.replayed_nodes, plan->cost.backward_nodes);
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (b->source != RW_NONE_ID || b->value == RW_NONE_ID) continue;
        if (b->replay || is_kept(s, i)) print_value(t, d, b, out);
    }
    const size_t at = peak.step;
    const struct rw_node *const node = s->n_actions ? &t->nodes[s->actions[at].node] : NULL;
    fprintf(out, "kept %" PRIu64 " bytes; peak %" PRIu64 " bytes", plan->kept_bytes, plan->arena_bytes);
    if (node) {
        static const char *const kinds[] = { "forward", "replay", "adjoint", "commit" };
        const rw_site site = t->ctx->sites[node->site];
        fprintf(out, ", reached (%" PRIu64 " live) at step %zu of %zu: %s of %s, %s:%d", peak.bytes, at, s->n_actions,
                kinds[s->actions[at].kind], t->ctx->ops[node->op]->name, site.file, (int)site.line);
    }
    fprintf(out, "\n");
}

rw_status ckpt_explain(rw_tape *t, FILE *out)
{
    if (!t || !out) return RW_ERR_ARGUMENT;
    rw_context *const ctx = t->ctx;
    if (ctx->status) return ctx->status;
    const uint32_t loss = loss_of(t);
    if (loss == RW_NONE_ID || t->open_region != RW_NONE_ID)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "ckpt_explain: %s",
                       loss == RW_NONE_ID ? "no loss has been recorded" : "a region is open");
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss, .n_values = 1, .policy = &t->policy };
    struct rw_build_details details;
    struct rw_tape_mark mark;
    rw_plan *plan;
    struct peak peak;
    rw_status status = rw_plan_build_details(t, &request, &plan, &details, &mark);
    if (status) return status;
    status = find_peak(&details.schedule, plan->unit, &peak);
    if (status) rw_fail(ctx, status, "ckpt_explain: out of memory");
    else print_plan(t, plan, &details, peak, out);
    rw_build_details_finish(t, &details, &mark);
    rw_plan_release(plan);
    return status;
}
