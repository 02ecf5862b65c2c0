/* Copies buffers before commits that can fail, and restores them. */
#include "run/commit_rollback.h"

#include "base/alloc.h"
#include "ops/common/pass_ops.h"
#include "run/enforce_total_budget.h"

struct rw_commit_rollback {
    struct rw_param *param;
    void *copy;
};

/* A built-in commit cannot fail: it only copies or adds. */
static bool can_fail(const struct rw_run *r, const struct rw_action *a)
{
    if (a->kind != RW_ACTION_COMMIT || a->node >= r->plan->mark_nodes) return false;
    const struct rw_node *const node = &r->tape->nodes[a->node];
    return rw_run_context(r)->ops[node->op]->kernel[RW_DEVICE_AUTO] != rw_op_is_own;
}

/* End of the commits to save: after the last one that can fail; `from` if none can. */
static size_t end_of_saved(const struct rw_run *r, size_t from, size_t to)
{
    while (to > from && !can_fail(r, &r->plan->actions[to - 1])) to--;
    return to;
}

static bool is_saved(const struct rw_run *r, const struct rw_param *p)
{
    for (size_t i = 0; i < r->n_undo; i++)
        if (r->undo[i].param == p) return true;
    return false;
}

static rw_status save(struct rw_run *r, struct rw_param *p)
{
    rw_context *const ctx = rw_run_context(r);
    if (is_saved(r, p) || !p->bytes) return RW_OK;
    if (!rw_total_fits_beside(r, r->undo_bytes + p->bytes)) return RW_ERR_BUDGET;
    if (!rw_grow(&r->undo, &r->cap_undo, r->n_undo, 1, sizeof *r->undo)) return RW_ERR_MEMORY;
    void *const copy = rw_context_alloc(ctx, p->bytes, false);
    if (!copy) return RW_ERR_MEMORY;
    r->undo[r->n_undo++] = (struct rw_commit_rollback){ p, copy };
    r->undo_bytes += p->bytes;
    return ctx->device->upload(ctx->device_state, copy, p->data, p->bytes);
}

static rw_status save_outputs(struct rw_run *r, const struct rw_action *a)
{
    const rw_plan *const p = r->plan;
    const struct rw_node *const node = rw_plan_node(r->tape, p, a->node);
    rw_status status = RW_OK;
    for (uint32_t i = 0; !status && i < node->n_outputs; i++) {
        const struct rw_source *const s = &p->sources[rw_word_source(p->words[a->word + node->n_inputs + i])];
        if (s->kind == RW_SOURCE_PARAM) status = save(r, rw_run_context(r)->by_id[s->index]);
    }
    return status;
}

rw_status rw_commit_rollback_save(struct rw_run *r, size_t from, size_t to)
{
    const bool captured = !rw_run_context(r)->device->on_host && (r->flags & RW_RUN_CLEARS);
    const size_t end = captured ? from : end_of_saved(r, from, to);
    rw_status status = RW_OK;
    for (size_t i = from; !status && i < end; i++) status = save_outputs(r, &r->plan->actions[i]);
    if (!status) return RW_OK;
    rw_commit_rollback_forget(r);
    return rw_fail(rw_run_context(r), status,
                   "run: copies of the buffers that the step's commits write do not fit into %s",
                   status == RW_ERR_BUDGET ? "the policy's total" : "memory");
}

void rw_commit_rollback_restore(struct rw_run *r)
{
    rw_context *const ctx = rw_run_context(r);
    for (size_t i = 0; i < r->n_undo; i++) {
        struct rw_param *const p = r->undo[i].param;
        if (ctx->device->upload(ctx->device_state, p->data, r->undo[i].copy, p->bytes)) p->version++;
    }
    rw_commit_rollback_forget(r);
}

void rw_commit_rollback_forget(struct rw_run *r)
{
    rw_context *const ctx = rw_run_context(r);
    while (r->n_undo) ctx->device->free(ctx->device_state, r->undo[--r->n_undo].copy);
    r->undo_bytes = 0;
}
