/* Run-time side of `total:SIZE`: sums what the context holds, releases free memory, and reports what does not fit. */
#include "run/enforce_total_budget.h"

static bool is_bounded(const struct rw_run *r)
{
    return r->plan->total_bytes && !r->margin && !(r->flags & (RW_RUN_REHEARSAL | RW_RUN_PRIVATE));
}

static size_t would_hold(const struct rw_run *r, size_t bytes)
{
    const rw_context *const ctx = r->tape->ctx;
    const rw_memory *const m = &ctx->memory;
    return m->parameters + m->gradients + m->optimizer + m->inputs + m->results + m->arenas +
           (bytes ? rw_arena_growth(ctx, &r->pool->arenas, r->had, bytes) : 0);
}

static bool is_within(const struct rw_run *r, size_t bytes)
{
    return would_hold(r, bytes) <= r->plan->total_bytes;
}

bool rw_total_fits(const struct rw_run *r, size_t bytes)
{
    rw_context *const ctx = r->tape->ctx;
    if (!is_bounded(r) || is_within(r, bytes)) return true;
    rw_arenas_free_others(ctx, &r->pool->arenas, r->had, bytes);
    if (is_within(r, bytes)) return true;
    rw_results_free_unused(ctx);
    return is_within(r, bytes);
}

bool rw_total_fits_beside(const struct rw_run *r, size_t bytes)
{
    rw_context *const ctx = r->tape->ctx;
    if (!is_bounded(r) || would_hold(r, 0) + bytes <= r->plan->total_bytes) return true;
    rw_arenas_free_others(ctx, &r->pool->arenas, r->had, 0);
    rw_results_free_unused(ctx);
    return would_hold(r, 0) + bytes <= r->plan->total_bytes;
}

rw_status rw_total_refuse(const struct rw_run *r)
{
    return rw_fail(r->tape->ctx, RW_ERR_BUDGET,
                   "policy \"total:%lluB\", column 7: the step does not fit into %llu bytes, because the context "
                   "holds more than when the step was planned; the minimum is total:%zuB",
                   (unsigned long long)r->plan->total_bytes, (unsigned long long)r->plan->total_bytes,
                   would_hold(r, r->arena ? 0 : (size_t)r->plan->arena_bytes));
}
