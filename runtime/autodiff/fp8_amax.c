/* Records the commits that write a step's amaxes into the buffers of delayed scaling. */
#include "autodiff/fp8_amax.h"

#include "base/alloc.h"
#include "ops/float8/fp8_scaling_ops.h"
#include "record/delayed_scales.h"

static uint32_t producer_of(const rw_tape *t, uint32_t value)
{
    return rw_tape_value(t, rw_tape_base(t, value))->producer;
}

/* By node and by leaf: a loss or gradient depends on it. */
struct needed {
    bool *nodes, *leaves;
};

static void spread(const rw_tape *t, const struct needed *needed)
{
    for (size_t n = t->n_nodes; n-- > 0;) {
        const struct rw_node *const node = &t->nodes[n];
        for (uint32_t i = 0; needed->nodes[n] && i < node->n_inputs; i++) {
            const struct rw_tensor *const x = rw_tape_value(t, rw_tape_base(t, t->operands[node->first_input + i]));
            if (x->leaf != RW_NONE_ID) needed->leaves[x->leaf] = true;
            else needed->nodes[x->producer] = true;
        }
    }
}

static bool is_needed(const rw_tape *t, const struct needed *needed, const struct rw_tape_amax *a)
{
    return a->codes == RW_NONE_ID ? needed->nodes[producer_of(t, a->value)] : needed->leaves[a->codes];
}

/* Collects the amaxes that belong to one buffer, into rows and, followed by the buffer, into in. */
static rw_status record(rw_tape *t, const struct rw_amaxes *all, uint32_t buffer, bool counts,
                        const struct needed *needed, rw_tensor **in, uint32_t *rows)
{
    const rw_op_def *const op = counts ? &rw_op_note_counts : &rw_op_note_amax;
    int n = 0;
    for (size_t i = 0; i < all->n; i++) {
        const struct rw_tape_amax *const a = &all->list[i];
        if (a->buffer != buffer || !is_needed(t, needed, a)) continue;
        in[n] = rw_tape_value(t, a->value);
        rows[n++] = a->row;
    }
    in[n] = &t->ctx->by_id[buffer]->tensor;
    if (!n || rw_apply_at(RW_HERE, t, op, in, n + 1, rows, (size_t)n * sizeof *rows, NULL)) return RW_OK;
    return t->ctx->status;
}

static bool is_first_of_its_buffer(const struct rw_amaxes *all, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (all->list[k].buffer == all->list[i].buffer) return false;
    return true;
}

rw_status rw_amaxes_record(rw_tape *t, bool *nodes)
{
    const struct rw_amaxes *const all = rw_amaxes_of(t);
    const size_t n = all->n;
    const struct needed needed = { nodes, rw_calloc(t->n_leaves, sizeof *needed.leaves) };
    rw_tensor **const in = rw_malloc((n + 1) * sizeof *in);
    uint32_t *const rows = rw_malloc(n * sizeof *rows);
    const bool reserved = needed.leaves && in && rows;
    rw_status status = reserved ? RW_OK : rw_fail(t->ctx, RW_ERR_MEMORY, "planning: out of memory");
    if (!status) spread(t, &needed);
    t->origin = rw_origin_of(t, RW_NONE_ID);
    for (size_t i = 0; !status && i < n; i++)
        if (is_first_of_its_buffer(all, i))
            status = record(t, all, all->list[i].buffer, all->list[i].counts, &needed, in, rows);
    t->origin = (struct rw_origin){ 0 };
    rw_free(needed.leaves);
    rw_free(in);
    rw_free(rows);
    return status;
}
