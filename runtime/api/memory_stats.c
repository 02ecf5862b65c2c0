/* rw_memory_stats() and rw_tape_cost(): the numbers of plans and pools. */
#include "api/step_prediction.h"
#include "plan/cache.h"
#include "run/run_advance.h"

static size_t tape_bytes(const rw_tape *t)
{
    return t->n_nodes * sizeof *t->nodes + t->n_operands * sizeof *t->operands + t->n_attrs +
           t->n_values * sizeof(struct rw_tensor) + t->n_leaves * sizeof *t->leaves +
           t->n_tickets * (sizeof *t->tickets + sizeof *t->ticket_blocks) + t->n_regions * sizeof *t->regions +
           t->n_parts * sizeof *t->parts + (t->key.words ? t->key.n * sizeof *t->key.words : 0);
}

rw_status rw_memory_stats(const rw_context *ctx, rw_memory *ret_memory)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ctx) return rw_fail_null(NULL, "rw_memory_stats", "ctx");
    if (!ret_memory) return rw_fail_null((rw_context *)(uintptr_t)ctx, "rw_memory_stats", "ret_memory");
    *ret_memory = ctx->memory;
    rw_extensions_report(&ctx->extensions, ctx, ret_memory);
    for (const rw_tape *t = ctx->tapes; t; t = t->next) {
        ret_memory->tape += tape_bytes(t);
        rw_extensions_report(&t->extensions, ctx, ret_memory);
    }
    ret_memory->tables = rw_tables_bytes(ctx);
    if (ctx->device->library_bytes) ret_memory->library = ctx->device->library_bytes(ctx->device_state);
    return ctx->device->used ? ctx->device->used(ctx->device_state, &ret_memory->device) : RW_OK;
}

static rw_status cost_of(rw_tape *t, const struct rw_request *request, void *result)
{
    rw_plan *plan;
    const rw_status status = rw_plan_get(t, request, &plan);
    if (!status) *(rw_cost *)result = plan->cost;
    return status;
}

rw_status rw_tape_cost(rw_tape *t, rw_tensor *loss, rw_cost *ret_cost)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_tape_cost", "t");
    if (!ret_cost) return rw_fail_null(t->ctx, "rw_tape_cost", "ret_cost");
    return rw_plan_under(t, loss, NULL, "rw_tape_cost", cost_of, ret_cost);
}
