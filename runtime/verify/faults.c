/* Planted faults. See faults.h. */
#include "verify/faults.h"

#ifdef RW_FAULTS
#include "run/run.h"
#include "record/tape.h"

#include <string.h>

struct rw_fault rw_fault;

static bool plan_replays(const rw_plan *plan)
{
    return plan->cost.replayed_nodes > 0;
}

static bool strikes(const rw_plan *plan, const struct rw_action *step, const rw_kernel *k)
{
    if (!rw_fault.kind || !plan_replays(plan) || strcmp(k->op->name, rw_fault.op)) return false;
    const bool replay = step->kind == RW_ACTION_REPLAY;
    if (rw_fault.kind == RW_FAULT_REORDER ? replay : !replay) return false;
    return rw_fault.skip-- == 0;
}

static void note_strike(const rw_tape *t, const rw_plan *plan, const struct rw_action *step)
{
    rw_fault.struck++;
    rw_fault.at = t->ctx->sites[rw_plan_node(t, plan, step->node)->site];
}

static void flip(rw_tape *t, void *data, size_t at)
{
    const rw_context *const ctx = t->ctx;
    unsigned char byte = 0, *const p = (unsigned char *)data + at;
    ctx->device->download(ctx->device_state, &byte, p, 1);
    byte ^= 1;
    ctx->device->upload(ctx->device_state, p, &byte, 1);
}

void rw_fault_before(rw_tape *t, const rw_plan *plan, const struct rw_action *step, rw_kernel *k)
{
    if (rw_fault.kind == RW_FAULT_CORRUPT || rw_fault.kind == RW_FAULT_REORDER || !strikes(plan, step, k)) return;
    note_strike(t, plan, step);
    if (rw_fault.kind == RW_FAULT_TICKET) k->ticket.offset++;
    for (int i = 0; rw_fault.kind == RW_FAULT_PARAMETER && i < k->n_inputs; i++) {
        if (!rw_word_is(plan, plan->words[step->word + (uint32_t)i], RW_SOURCE_PARAM)) continue;
        flip(t, k->in[i].data, 0);
        return;
    }
}

void rw_fault_after(rw_tape *t, const rw_plan *plan, const struct rw_action *step, const rw_kernel *k)
{
    if ((rw_fault.kind != RW_FAULT_CORRUPT && rw_fault.kind != RW_FAULT_REORDER) || !strikes(plan, step, k)) return;
    if (!k->n_outputs || !rw_view_bytes(&k->out[0])) return;
    note_strike(t, plan, step);
    /* A sum taken in another order differs in its last place: that is what is planted. */
    const size_t at = (size_t)rw_fault.element * rw_dtype_size(k->out[0].dtype) % rw_view_bytes(&k->out[0]);
    flip(t, k->out[0].data, at);
}
#endif
