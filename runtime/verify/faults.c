/* Plants faults as an observer: changes memory, tickets or results before or after the named action. */
#include "verify/faults.h"

#ifndef RW_FAULTS
rw_status rw_faults_attach(rw_context *ctx)
{
    return RW_OK;
}
#else
#include "base/alloc.h"
#include "run/execute.h"

#include <string.h>

struct rw_fault rw_fault;

/* An action that adds to a sum: the addend, rounded to the type, and the result. In host memory. */
struct addition {
    const void *at; /* address of the result */
    rw_dtype dtype;
    size_t n;
    void *sum, *term, *total;
};

#define PAST 8 /* additions that are remembered: other additions occur between two of one sum */

/* The observer, which is also its own entry in the list of rw_runs_attach(). */
struct faults {
    struct rw_attach attach; /* first, because the pool returns it */
    struct rw_observer observer;
    struct addition past[PAST], now; /* for RW_FAULT_REORDER; the oldest first */
    size_t n_past;
    void *reordered;           /* result to substitute for that of the current action; NULL: none */
};

static struct faults *faults_of(struct rw_observer *o)
{
    return (struct faults *)(void *)((char *)o - offsetof(struct faults, observer));
}

static const rw_op_def *op_of(const struct rw_at *at)
{
    return at->run->tape->ctx->ops[at->node->op];
}

static bool strikes(const struct rw_at *at)
{
    if (!rw_fault.kind || rw_fault.kind == RW_FAULT_STORE || rw_fault.kind == RW_FAULT_REORDER ||
        rw_fault.kind == RW_FAULT_COMMIT || !at->node)
        return false;
    if (!at->run->plan->cost.replayed_nodes || strcmp(op_of(at)->name, rw_fault.op)) return false;
    return at->kind == RW_ACTION_REPLAY && rw_fault.skip-- == 0;
}

static void halve(const struct rw_at *at, void *data)
{
    const rw_context *const ctx = at->run->tape->ctx;
    float scale = 0;
    ctx->device->download(ctx->device_state, &scale, data, sizeof scale);
    scale /= 2;
    ctx->device->upload(ctx->device_state, data, &scale, sizeof scale);
}

/* Changes one element of the slot that a copy is about to read. Waits for the queue first, which may still write it. */
static void spoil_slot(const struct rw_at *at)
{
    const rw_plan *const plan = at->run->plan;
    const struct rw_action *const a = &plan->actions[at->action];
    const rw_context *const ctx = at->run->tape->ctx;
    if (at->run->store->fns->in_file || rw_fault.skip-- != 0) return;
    rw_fault.struck++;
    rw_fault.at = rw_plan_site(at->run->tape, plan, rw_plan_node(at->run->tape, plan, a->node));
    ctx->device->finish(ctx->device_state);
    const uint32_t slot = plan->sources[rw_word_source(plan->words[a->word])].index;
    ((unsigned char *)at->run->store->data)[plan->slots[slot].offset] ^= 1;
}

static void note_strike(const struct rw_at *at)
{
    rw_fault.struck++;
    rw_fault.at = rw_plan_site(at->run->tape, at->run->plan, at->node);
}

static void flip(const struct rw_at *at, void *data, size_t byte_at)
{
    const rw_context *const ctx = at->run->tape->ctx;
    unsigned char byte = 0, *const p = (unsigned char *)data + byte_at;
    ctx->device->download(ctx->device_state, &byte, p, 1);
    byte ^= 1;
    ctx->device->upload(ctx->device_state, p, &byte, 1);
}

/* ---- the order of three terms ---- */

static void forget(struct addition *a)
{
    rw_free(a->sum);
    rw_free(a->term);
    rw_free(a->total);
    *a = (struct addition){ 0 };
}

/* True for an op whose input 0 is the sum so far, which may be absent elsewhere: accumulate, matmul_add and the
   like. */
static bool adds_to_a_sum(const struct rw_at *at)
{
    if (!at->node || at->kind == RW_ACTION_REPLAY || !at->run->plan->cost.replayed_nodes) return false;
    if (op_of(at)->optional != RW_OP_INPUT(0) || at->n_out != 1 || !at->in[0].data) return false;
    return at->in[0].layout->dense && at->in[0].layout->numel == at->out[0].layout->numel &&
           (at->out[0].dtype == RW_F32 || at->out[0].dtype == RW_F64);
}

static size_t workspace_of(const struct rw_at *at)
{
    const rw_plan *const p = at->run->plan;
    for (size_t i = 0; i < p->n_workspaces; i++)
        if (p->workspaces[i].action == at->action) return p->workspaces[i].bytes;
    return 0;
}

/* The addend of an action: its kernel's result for a sum of zeros, in separate memory. */
static rw_status take_term(const struct rw_at *at, void *ret_term)
{
    rw_context *const ctx = at->run->tape->ctx;
    const size_t bytes = rw_view_bytes(&at->out[0]), workspace = workspace_of(at);
    rw_view *const in = rw_malloc((size_t)at->n_in * sizeof *in), out = at->out[0];
    void *const zeros = ctx->device->alloc(ctx->device_state, bytes),
         *const room = workspace ? ctx->device->alloc(ctx->device_state, workspace) : NULL;
    rw_view to = out;
    to.data = ctx->device->alloc(ctx->device_state, bytes);
    rw_status status = in && zeros && to.data && (room || !workspace) ? RW_OK : RW_ERR_MEMORY;
    if (!status) status = ctx->device->clear(ctx->device_state, zeros, bytes);
    if (!status) {
        rw_kernel k = rw_execute_kernel(at);
        memcpy(in, at->in, (size_t)at->n_in * sizeof *in);
        in[0].data = zeros;
        k.in = in;
        k.out = &to;
        k.workspace = room;
        k.workspace_bytes = workspace;
        status = rw_call_kernel(ctx, k.op->kernel[ctx->kind], &k);
    }
    if (!status) status = ctx->device->download(ctx->device_state, ret_term, to.data, bytes);
    ctx->device->free(ctx->device_state, to.data);
    ctx->device->free(ctx->device_state, room);
    ctx->device->free(ctx->device_state, zeros);
    rw_free(in);
    return status;
}

static rw_status note_addition(const struct rw_at *at, struct addition *ret)
{
    const rw_context *const ctx = at->run->tape->ctx;
    const size_t bytes = rw_view_bytes(&at->out[0]);
    *ret = (struct addition){ .at = at->out[0].data, .dtype = at->out[0].dtype,
                              .n = (size_t)at->out[0].layout->numel, .sum = rw_malloc(bytes),
                              .term = rw_malloc(bytes), .total = rw_malloc(bytes) };
    if (!ret->sum || !ret->term || !ret->total) return RW_ERR_MEMORY;
    const rw_status status = ctx->device->download(ctx->device_state, ret->sum, at->in[0].data, bytes);
    return status ? status : take_term(at, ret->term);
}

/* The remembered action that computed the sum to which this one adds; NULL if none did. */
static const struct addition *before_it(const struct faults *f, const struct rw_at *at)
{
    const size_t bytes = rw_view_bytes(&at->out[0]);
    for (size_t i = f->n_past; i-- > 0 && i + PAST >= f->n_past;) {
        const struct addition *const a = &f->past[i % PAST];
        if (a->at == at->in[0].data && a->dtype == f->now.dtype && a->n == f->now.n &&
            !memcmp(a->total, f->now.sum, bytes))
            return a;
    }
    return NULL;
}

/* a + (b + c), each sum rounded. True when that is not (a + b) + c. */
static bool add_in_other_order(const struct addition *last, const struct addition *now, void *ret)
{
    bool other = false;
    for (size_t i = 0; i < now->n; i++) {
        if (now->dtype == RW_F64) {
            const double *const a = last->sum, *const b = last->term, *const c = now->term;
            other |= (((double *)ret)[i] = a[i] + (b[i] + c[i])) != (a[i] + b[i]) + c[i];
        } else {
            const float *const a = last->sum, *const b = last->term, *const c = now->term;
            other |= (((float *)ret)[i] = a[i] + (b[i] + c[i])) != (a[i] + b[i]) + c[i];
        }
    }
    return other;
}

static rw_status before_addition(struct faults *f, const struct rw_at *at)
{
    const rw_status status = note_addition(at, &f->now);
    const struct addition *const last = status || strcmp(op_of(at)->name, rw_fault.op) ? NULL : before_it(f, at);
    if (!last) return status;
    f->reordered = rw_malloc(rw_view_bytes(&at->out[0]));
    if (!f->reordered) return RW_ERR_MEMORY;
    if (add_in_other_order(last, &f->now, f->reordered) && rw_fault.skip-- == 0) {
        note_strike(at);
        return RW_OK;
    }
    rw_free(f->reordered);
    f->reordered = NULL;
    return RW_OK;
}

static rw_status after_addition(struct faults *f, const struct rw_at *at)
{
    const rw_context *const ctx = at->run->tape->ctx;
    const size_t bytes = rw_view_bytes(&at->out[0]);
    rw_status status = RW_OK;
    if (f->reordered) status = ctx->device->upload(ctx->device_state, at->out[0].data, f->reordered, bytes);
    if (!status) status = ctx->device->download(ctx->device_state, f->now.total, at->out[0].data, bytes);
    rw_free(f->reordered);
    f->reordered = NULL;
    struct addition *const place = &f->past[f->n_past++ % PAST];
    forget(place);
    *place = f->now;
    f->now = (struct addition){ 0 };
    return status;
}

/* ---- the observer ---- */

static void let_go(struct faults *f)
{
    for (size_t i = 0; i < PAST; i++) forget(&f->past[i]);
    f->n_past = 0;
    forget(&f->now);
    rw_free(f->reordered);
    f->reordered = NULL;
}

static rw_status begin(struct rw_observer *o, struct rw_run *r, size_t from, size_t to)
{
    let_go(faults_of(o));
    return RW_OK;
}

static rw_status before(struct rw_observer *o, struct rw_at *at)
{
    if (rw_fault.kind == RW_FAULT_STORE && at->kind == RW_ACTION_IN) spoil_slot(at);
    if (rw_fault.kind == RW_FAULT_REORDER && adds_to_a_sum(at)) return before_addition(faults_of(o), at);
    if (rw_fault.kind == RW_FAULT_CORRUPT || !strikes(at)) return RW_OK;
    const rw_plan *const plan = at->run->plan;
    const uint32_t *const words = plan->words + plan->actions[at->action].word;
    note_strike(at);
    if (rw_fault.kind == RW_FAULT_TICKET) at->ticket.offset++;
    if (rw_fault.kind == RW_FAULT_SCALE && at->n_in > 1) halve(at, at->in[1].data);
    for (int i = 0; rw_fault.kind == RW_FAULT_PARAMETER && i < at->n_in; i++) {
        if (!rw_word_is(plan, words[i], RW_SOURCE_PARAM)) continue;
        flip(at, at->in[i].data, 0);
        break;
    }
    return RW_OK;
}

static rw_status commit_twice(const struct rw_at *at)
{
    if (at->kind != RW_ACTION_COMMIT || strcmp(op_of(at)->name, rw_fault.op) || rw_fault.skip-- != 0) return RW_OK;
    const rw_kernel k = rw_execute_kernel(at);
    note_strike(at);
    rw_context *const ctx = at->run->tape->ctx;
    return rw_call_kernel(ctx, k.op->kernel[ctx->kind], &k);
}

static rw_status after(struct rw_observer *o, const struct rw_at *at)
{
    struct faults *const f = faults_of(o);
    if (rw_fault.kind == RW_FAULT_COMMIT && at->node) return commit_twice(at);
    if (rw_fault.kind == RW_FAULT_REORDER && f->now.at) return after_addition(f, at);
    if (rw_fault.kind != RW_FAULT_CORRUPT || !strikes(at)) return RW_OK;
    if (!at->n_out || !rw_view_bytes(&at->out[0])) return RW_OK;
    note_strike(at);
    const size_t byte_at = (size_t)rw_fault.element * rw_dtype_size(at->out[0].dtype) % rw_view_bytes(&at->out[0]);
    flip(at, at->out[0].data, byte_at);
    return RW_OK;
}

static rw_status attach(struct rw_attach *self, struct rw_run *r, struct rw_observer **ret_observer)
{
    /* A fault may be planted between two launches of a graph. */
    if (rw_fault.kind || (r->flags & RW_RUN_OWNED)) *ret_observer = &((struct faults *)self)->observer;
    return RW_OK;
}

static void destroy(struct rw_attach *self)
{
    let_go((struct faults *)self);
    rw_free(self);
}

rw_status rw_faults_attach(rw_context *ctx)
{
    struct faults *const f = rw_calloc(1, sizeof *f);
    if (!f) return RW_ERR_MEMORY;
    f->attach = (struct rw_attach){ .attach = attach, .destroy = destroy };
    f->observer = (struct rw_observer){ .begin = begin, .before = before, .after = after };
    rw_runs_attach(ctx, &f->attach);
    return RW_OK;
}
#endif
