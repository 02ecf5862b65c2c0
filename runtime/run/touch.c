/* See touch.h. */
#include "run/touch.h"

#include "base/alloc.h"
#include "run/call.h"

#include <string.h>

#define PAGE 4096u

static void touch(struct rw_touches *x, const rw_plan *plan, size_t action, uint32_t word, uint64_t bytes)
{
    if (rw_word_is_source(word) || !bytes) return;
    const uint64_t at = rw_word_offset(plan, word);
    for (uint64_t page = at / PAGE; page <= (at + bytes - 1) / PAGE; page++) {
        if (x->seen[page]) continue;
        x->seen[page] = true;
        x->bytes[action] += PAGE;
    }
}

static bool touch_operands(struct rw_touches *x, const rw_tape *t, const rw_plan *plan, size_t action)
{
    const struct rw_action *const a = &plan->actions[action];
    const struct rw_node *const node = rw_plan_node(t, plan, a->node);
    const size_t n = (size_t)node->n_inputs + node->n_outputs;
    if (!rw_grow(&x->desc, &x->cap_desc, 0, n, sizeof *x->desc)) return false;
    const rw_op_call call = rw_plan_call(t, plan, node, x->desc);
    for (int i = 0; i < call.n_outputs; i++)
        touch(x, plan, action, plan->words[a->word + node->n_inputs + (uint32_t)i],
              (uint64_t)call.out[i].layout->numel * rw_dtype_size(call.out[i].dtype));
    return true;
}

rw_status rw_touches_count(struct rw_touches *x, const rw_tape *t, const rw_plan *plan)
{
    const size_t pages = (size_t)(plan->arena_bytes / PAGE) + 1;
    if (!rw_grow(&x->bytes, &x->cap, 0, plan->n_actions, sizeof *x->bytes) ||
        !rw_grow(&x->seen, &x->cap_seen, 0, pages, sizeof *x->seen))
        return RW_ERR_MEMORY;
    memset(x->bytes, 0, plan->n_actions * sizeof *x->bytes);
    memset(x->seen, 0, pages * sizeof *x->seen);
    x->sum = 0;
    for (size_t i = 0, w = 0; i < plan->n_actions; i++) {
        if (!rw_action_is_move(plan->actions[i].kind) && !touch_operands(x, t, plan, i)) return RW_ERR_MEMORY;
        for (; w < plan->n_workspaces && plan->workspaces[w].action == i; w++) {
            const struct rw_action *const a = &plan->actions[i];
            touch(x, plan, i, plan->words[a->word + a->n_words - 1u], plan->workspaces[w].bytes);
        }
        x->sum += x->bytes[i];
    }
    return RW_OK;
}

void rw_touches_finish(struct rw_touches *x)
{
    rw_free(x->bytes);
    rw_free(x->seen);
    rw_free(x->desc);
    *x = (struct rw_touches){ 0 };
}
