/* Breaks down the memory at a plan's peak by kind, and finds the node at the peak. */
#include "plan/prediction.h"

#include "base/alloc.h"
#include "plan/fastest_in_budget.h"
#include "remat/schedule/live_set.h"

#include <stdio.h>

static rw_status sum_at_peak(const struct rw_planning *g, uint64_t *sums)
{
    const struct rw_schedule *const s = &g->schedule;
    const uint32_t at = g->cost.peak_action;
    uint32_t *const holder = rw_malloc(s->n_buffers * sizeof *holder);
    if (!holder) return RW_ERR_MEMORY;
    rw_find_holders(s, at, holder);
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (!rw_buffer_is_placed(s, i) || !rw_buffer_lives(b, at)) continue;
        sums[rw_live_kind_of(&g->problem, s, i, holder[i])] += rw_buffer_room(&g->problem, b);
    }
    rw_free(holder);
    return RW_OK;
}

static rw_memory_breakdown bytes_at_peak(const struct rw_planning *g, const rw_plan *plan, const uint64_t *sums)
{
    const rw_context *const ctx = g->problem.t->ctx;
    const rw_memory *const now = &ctx->memory;
    return (rw_memory_breakdown){ .parameters = now->parameters,
                                  .gradients = now->gradients + rw_gradients_to_come(&g->problem),
                                  .optimizer = now->optimizer,
                                  .inputs = now->inputs,
                                  .results = ctx->results_in_use + plan->results_bytes,
                                  .transient = sums[RW_LIVE_TRANSIENT],
                                  .kept = sums[RW_LIVE_KEPT],
                                  .replayed = sums[RW_LIVE_REPLAYED],
                                  .adjoint = sums[RW_LIVE_ADJOINT],
                                  .workspace = sums[RW_LIVE_WORKSPACE],
                                  .fragmentation = plan->arena_bytes - g->cost.peak,
                                  .host = plan->store_bytes };
}

static void describe(const struct rw_planning *g, rw_peak_location *where)
{
    const rw_tape *const t = g->problem.t;
    const struct rw_schedule *const s = &g->schedule;
    if (!s->n_actions) return;
    const struct rw_action *const at = &s->actions[g->cost.peak_action];
    const struct rw_node *const node = &t->nodes[at->node];
    const rw_site site = t->ctx->sites[node->site];
    const uint16_t tag = node->n_outputs ? rw_tape_value(t, node->first_output)->tag : 0;
    snprintf(where->op, sizeof where->op, "%s", t->ctx->ops[node->op]->name);
    snprintf(where->name, sizeof where->name, "%s", tag ? t->ctx->names.text[tag - 1] : "");
    snprintf(where->file, sizeof where->file, "%s", site.file);
    rw_region_path(t, rw_node_region(t, node), where->region, sizeof where->region);
    where->line = (int)site.line;
    where->kind = rw_action_kind_name(at->kind);
    where->action = g->cost.peak_action;
    where->actions = s->n_actions;
}

rw_status rw_predict(const struct rw_planning *g, const rw_plan *plan, rw_prediction *ret)
{
    uint64_t sums[RW_LIVE_KINDS] = { 0 };
    const rw_status status = sum_at_peak(g, sums);
    if (status) return status;
    const rw_memory_breakdown b = bytes_at_peak(g, plan, sums);
    *ret = (rw_prediction){ .peak_bytes = plan->arena_bytes,
                            .largest_live = g->cost.peak,
                            .total_bytes = b.parameters + b.gradients + b.optimizer + b.inputs + b.results +
                                           plan->arena_bytes,
                            .library_bytes = plan->holding ? plan->holding->bytes : 0,
                            .ms = g->cost.seconds * 1e3,
                            .cost = plan->cost,
                            .at_peak = b,
                            .where = { .kind = "" } };
    describe(g, &ret->where);
    return RW_OK;
}
