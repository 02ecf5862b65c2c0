/* Tracks by value which random op its numbers come from, and compares call sites. */
#include "record/arg_eval_order_check.h"

static void destroy(rw_context *ctx, void *state)
{
    rw_free(((struct rw_order_check *)state)->drawn_by);
}

static bool open(rw_tape *t, void *state)
{
    return rw_extension_make(&t->extensions, &rw_order_check_extension);
}

struct rw_extension rw_order_check_extension = { .name = "order_check", .size = sizeof(struct rw_order_check),
                                                 .open = open, .destroy = destroy };

rw_status rw_order_check_begin(rw_context *ctx)
{
    return rw_extension_make(&ctx->extensions, &rw_order_check_extension) ? RW_OK : RW_ERR_MEMORY;
}

/* Could a call at `inner` be an argument of one at `outer`? */
static bool is_within(const rw_context *ctx, uint32_t inner, uint32_t outer)
{
    const rw_site *const a = &ctx->sites[inner], *const b = &ctx->sites[outer];
    return a->file == b->file && a->line >= b->line && a->line - b->line <= RW_ORDER_LINES;
}

/* The random node, recorded in an argument of this call, from which the value's numbers come; RW_NONE_ID for none.
   Leaves have no entries. */
static uint32_t drawn_by(const struct rw_order_check *o, const rw_tape *t, uint32_t site, const struct rw_tensor *x)
{
    if (x->producer == RW_NONE_ID) return RW_NONE_ID;
    const uint32_t node = o->drawn_by[x->id];
    return node != RW_NONE_ID && is_within(t->ctx, t->nodes[node].site, site) ? node : RW_NONE_ID;
}

bool rw_order_meets(const struct rw_order_check *o, const rw_tape *t, uint32_t site, struct rw_tensor *const *in, int n,
                    uint32_t ret_nodes[2])
{
    ret_nodes[0] = RW_NONE_ID;
    for (int i = 0; i < n; i++) {
        const uint32_t node = drawn_by(o, t, site, in[i]);
        if (node == RW_NONE_ID || node == ret_nodes[0]) continue;
        ret_nodes[ret_nodes[0] != RW_NONE_ID] = node;
        if (ret_nodes[0] != node) return true;
    }
    return false;
}

static bool is_of_context(const rw_tape *t, const struct rw_tensor *x)
{
    return x->leaf != RW_NONE_ID && t->leaves[x->leaf].kind != RW_LEAF_INPUT;
}

void rw_order_note(struct rw_order_check *o, const rw_tape *t, const struct rw_node *node)
{
    uint32_t by = RW_NONE_ID;
    bool alone = true;
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const struct rw_tensor *const x = rw_tape_value(t, t->operands[node->first_input + i]);
        const uint32_t of_x = drawn_by(o, t, node->site, x);
        alone &= of_x != RW_NONE_ID || is_of_context(t, x);
        if (of_x != RW_NONE_ID) by = of_x;
    }
    if (!alone || node->adjoint) by = RW_NONE_ID;
    if (!node->adjoint && node->ticket != RW_NONE_ID) by = (uint32_t)(node - t->nodes);
    for (uint32_t i = 0; i < node->n_outputs; i++) o->drawn_by[node->first_output + i] = by;
}
