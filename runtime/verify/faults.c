/* Planted faults. See faults.h. */
#include "verify/faults.h"

#ifndef RW_FAULTS
rw_status rw_faults_attach(rw_context *ctx)
{
    return RW_OK;
}
#else
#include "base/alloc.h"

#include <string.h>

struct rw_fault rw_fault;

/* An observer without state, and who attaches it, in one. */
struct faults {
    struct rw_attach attach; /* first: the context hands it back */
    struct rw_observer observer;
};

static const rw_op_def *op_of(const struct rw_at *at)
{
    return at->run->tape->ctx->ops[at->node->op];
}

static bool strikes(const struct rw_at *at)
{
    if (!rw_fault.kind || rw_fault.kind == RW_FAULT_STORE || !at->node) return false;
    if (!at->run->plan->cost.replayed_nodes || strcmp(op_of(at)->name, rw_fault.op)) return false;
    const bool replay = at->kind == RW_ACTION_REPLAY;
    if (rw_fault.kind == RW_FAULT_REORDER ? replay : !replay) return false;
    return rw_fault.skip-- == 0;
}

/* One element of the slot that a move is about to read. The queue may not have come so far: it is waited for. */
static void spoil_slot(const struct rw_at *at)
{
    const rw_plan *const plan = at->run->plan;
    const struct rw_action *const a = &plan->actions[at->action];
    const rw_context *const ctx = at->run->tape->ctx;
    if (at->run->store->fns->in_file || rw_fault.skip-- != 0) return;
    rw_fault.struck++;
    rw_fault.at = ctx->sites[rw_plan_node(at->run->tape, plan, a->node)->site];
    ctx->device->finish(ctx->device_state);
    const uint32_t slot = plan->sources[rw_word_source(plan->words[a->word])].index;
    ((unsigned char *)at->run->store->data)[plan->slots[slot].offset] ^= 1;
}

static void note_strike(const struct rw_at *at)
{
    rw_fault.struck++;
    rw_fault.at = at->run->tape->ctx->sites[at->node->site];
}

static void flip(const struct rw_at *at, void *data, size_t byte_at)
{
    const rw_context *const ctx = at->run->tape->ctx;
    unsigned char byte = 0, *const p = (unsigned char *)data + byte_at;
    ctx->device->download(ctx->device_state, &byte, p, 1);
    byte ^= 1;
    ctx->device->upload(ctx->device_state, p, &byte, 1);
}

static rw_status before(struct rw_observer *o, struct rw_at *at)
{
    if (rw_fault.kind == RW_FAULT_STORE && at->kind == RW_ACTION_IN) spoil_slot(at);
    if (rw_fault.kind == RW_FAULT_CORRUPT || rw_fault.kind == RW_FAULT_REORDER || !strikes(at)) return RW_OK;
    const rw_plan *const plan = at->run->plan;
    const uint32_t *const words = plan->words + plan->actions[at->action].word;
    note_strike(at);
    if (rw_fault.kind == RW_FAULT_TICKET) at->ticket.offset++;
    for (int i = 0; rw_fault.kind == RW_FAULT_PARAMETER && i < at->n_in; i++) {
        if (!rw_word_is(plan, words[i], RW_SOURCE_PARAM)) continue;
        flip(at, at->in[i].data, 0);
        break;
    }
    return RW_OK;
}

static rw_status after(struct rw_observer *o, const struct rw_at *at)
{
    if ((rw_fault.kind != RW_FAULT_CORRUPT && rw_fault.kind != RW_FAULT_REORDER) || !strikes(at)) return RW_OK;
    if (!at->n_out || !rw_view_bytes(&at->out[0])) return RW_OK;
    note_strike(at);
    /* A sum taken in another order differs in its last place: that is what is planted. */
    const size_t byte_at = (size_t)rw_fault.element * rw_dtype_size(at->out[0].dtype) % rw_view_bytes(&at->out[0]);
    flip(at, at->out[0].data, byte_at);
    return RW_OK;
}

static rw_status attach(struct rw_attach *self, struct rw_run *r, struct rw_observer **ret_observer)
{
    /* One may be planted between two launches of a graph. */
    if (rw_fault.kind || (r->flags & RW_RUN_OWNED)) *ret_observer = &((struct faults *)self)->observer;
    return RW_OK;
}

static void destroy(struct rw_attach *self)
{
    rw_free(self);
}

rw_status rw_faults_attach(rw_context *ctx)
{
    struct faults *const f = rw_calloc(1, sizeof *f);
    if (!f) return RW_ERR_MEMORY;
    *f = (struct faults){ { .next = ctx->attach, .attach = attach, .destroy = destroy },
                          { .before = before, .after = after } };
    ctx->attach = &f->attach;
    return RW_OK;
}
#endif
