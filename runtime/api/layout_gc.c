/*
 * Marks and sweeps layouts. In use are those of a tape's values, of returned gradients, of parameters and states, and
 * of running plans. Cached plans are dropped, because their keys contain indexes that may soon mean other layouts. What
 * else was compared by words, expected steps and runs that were begun ahead, does not match any more: its points have
 * the earlier generation (rw_tape_point).
 */
#include "api/layout_gc.h"

#include "base/alloc.h"
#include "plan/cache.h"
#include "record/param.h"
#include "run/run_state.h"

static void mark_plan(bool *used, const rw_plan *p)
{
    for (size_t i = 0; i < p->n_values; i++) used[p->values[i].layout] = true;
    for (size_t i = 0; i < p->n_results; i++) used[p->results[i].layout] = true;
}

static void mark_tape(bool *used, const rw_tape *t, bool leaves)
{
    for (const struct rw_run *r = rw_runs_of(t)->first; r; r = r->next) mark_plan(used, r->plan);
    for (uint32_t i = 0; !leaves && i < t->n_values; i++) used[rw_tape_value(t, i)->layout] = true;
    for (size_t i = 0; i < t->n_gradients; i++) used[t->gradients[i]->tensor.layout] = true;
}

void rw_layout_gc(rw_context *ctx, const rw_tape *leaving)
{
    struct rw_layout_table *const table = &ctx->layouts;
    bool *const used = rw_layout_sweep_is_due(table) ? rw_calloc(table->n, sizeof *used) : NULL;
    if (!used) return; /* without memory: at the next reset */
    for (size_t i = 0; i < ctx->n_ids; i++) /* a parameter's gradient has its layout */
        if (ctx->by_id[i]) used[ctx->by_id[i]->tensor.layout] = true;
    for (const rw_tape *t = ctx->tapes; t; t = t->next) mark_tape(used, t, t == leaving);
    rw_plan_cache_finish(rw_plan_cache_of(ctx));
    rw_layout_sweep(table, used);
    rw_free(used);
}
