/* Streams optimizer states through a window: dividing them into blocks, copying around an update, and restarts. */
#include "api/optimizer_offload.h"

#include "api/set_offload_store.h"
#include "base/alloc.h"
#include "base/round_up.h"
#include "run/run_advance.h"

#define SLOTS 3
#define PAGE 4096
#define WINDOW ((size_t)64 << 20)
#define WINDOW_MIN ((size_t)64 << 10) /* a page of each state fits into a slot */

/* Events of a slot: its block was copied in; it was updated; it was copied out. Runs of graphs have their own events,
   because they may be captured, and whatever waits for an event of a capture becomes part of it. */
enum { GOT, UPDATED, PUT, EVENTS };

struct rw_optimizer_offload {
    struct rw_observer observer; /* must be first */
    rw_context *ctx;
    const char *call;
    const rw_op_def *op;
    const struct rw_store_fns *fns;
    char *path; /* the folder of files; NULL in host memory */
    void *store;
    uint64_t *at; /* place of each block in the store, and the end after the last one */
    size_t n_blocks;
    void *memory;
    char *window; /* in it, page-aligned */
    size_t slot_bytes, n_slots;
    struct rw_events *events;
    size_t next; /* of the current or last run: the block that is updated next */
    bool in_graph;    /* that run is a graph's */
    bool after_graph; /* only runs of graphs were queued after one of them */
    bool torn;   /* the store is inconsistent */
    bool failed; /* the store may be the cause */
};

static const char *place_of(const struct rw_optimizer_offload *a)
{
    return a->path ? a->path : a->fns->name;
}

/* ---- checks ---- */

static rw_status check_fields(rw_context *ctx, const char *call, const rw_state_offload *where)
{
    const bool in_file = where->place == RW_STATE_FILE, has_path = where->path && *where->path;
    if (where->place < RW_STATE_DEVICE || where->place > RW_STATE_FILE)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s(states.place): expected %d to %d, got %d", call, RW_STATE_DEVICE,
                       RW_STATE_FILE, (int)where->place);
    if (in_file != has_path)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s(states.path): expected %s, got \"%s\"", call,
                       in_file ? "an existing folder on a disk with RW_STATE_FILE" : "none without RW_STATE_FILE",
                       has_path ? where->path : "");
    if (where->window && where->window < WINDOW_MIN)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s(states.window): expected 0 (the default) or at least %zu bytes, got "
                       "%zu", call, WINDOW_MIN, where->window);
    return RW_OK;
}

rw_status rw_optimizer_offload_check(rw_context *ctx, const char *call, const rw_state_offload *where,
                                     bool *ret_offloaded)
{
    const rw_status status = check_fields(ctx, call, where);
    *ret_offloaded = where->place == RW_STATE_FILE || (where->place == RW_STATE_HOST && !ctx->device->on_host);
    return status;
}

/* ---- division into blocks ---- */

static uint64_t bytes_of(const struct rw_piece *p, int j)
{
    return (uint64_t)p->n * rw_dtype_size(p->dtype[j]);
}

/* Bytes from the first state to state j; all of them for j == n_states. */
static uint64_t span_to(const struct rw_piece *p, int j)
{
    uint64_t span = 0;
    for (int i = 0; i < j; i++) span += rw_round_up(bytes_of(p, i), PAGE);
    return span;
}

/* The pieces so far. */
struct cut {
    struct rw_pieces to;
    size_t slot_bytes, cap_first, cap_at, most;
    uint64_t *at;
    uint64_t used; /* of the open block */
};

static bool open_block(struct cut *c)
{
    const size_t n = c->to.n_groups;
    if (!rw_grow(&c->to.first, &c->cap_first, n, 2, sizeof *c->to.first)) return false;
    if (!rw_grow(&c->at, &c->cap_at, n, 2, sizeof *c->at)) return false;
    c->at[n] = n ? c->at[n - 1] + c->used : 0;
    c->to.first[n] = c->to.n;
    c->to.n_groups++;
    c->used = 0;
    return true;
}

/* The number of elements that fit into the rest of the slot, in whole pages unless they are the last. */
static int64_t fitting(const struct cut *c, const struct rw_piece *rest)
{
    if (!rest->n_states) return rest->n;
    struct rw_piece unit = *rest; /* a page of the narrowest state */
    unit.n = 0;
    for (int j = 0; j < rest->n_states; j++) {
        const int64_t n = PAGE / (int64_t)rw_dtype_size(rest->dtype[j]);
        unit.n = n > unit.n ? n : unit.n;
    }
    const int64_t n = (int64_t)((c->slot_bytes - c->used) / span_to(&unit, unit.n_states)) * unit.n;
    return n < rest->n ? n : rest->n;
}

/* Divides a parameter into pieces, and opens a new block whenever the current one is full. */
static bool cut_one(struct cut *c, struct rw_piece rest)
{
    for (;;) {
        const bool full = c->to.n - c->to.first[c->to.n_groups - 1] == c->most;
        struct rw_piece p = rest;
        p.n = full ? 0 : fitting(c, &rest);
        if (full || p.n < (rest.n ? 1 : 0)) {
            if (!open_block(c)) return false;
            continue;
        }
        p.at = c->at[c->to.n_groups - 1] + c->used;
        c->used += span_to(&p, p.n_states);
        if (!rw_grow(&c->to.piece, &c->to.cap, c->to.n, 1, sizeof p)) return false;
        c->to.piece[c->to.n++] = p;
        rest.from += p.n;
        rest.n -= p.n;
        if (!rest.n) return true;
    }
}

static bool cut_all(struct cut *c, const struct rw_pieces *whole)
{
    bool ok = open_block(c);
    for (size_t i = 0; ok && i < whole->n; i++) ok = cut_one(c, whole->piece[i]);
    if (!ok) return false;
    c->to.first[c->to.n_groups] = c->to.n;
    c->at[c->to.n_groups] = c->at[c->to.n_groups - 1] + c->used;
    return true;
}

/* Divides all parameters and computes the size of a slot. */
static rw_status cut(struct rw_optimizer_offload *a, size_t window, size_t most, struct rw_pieces *pieces)
{
    struct cut c = { .slot_bytes = window / SLOTS / PAGE * PAGE, .most = most };
    if (!cut_all(&c, pieces)) {
        rw_free(c.to.piece);
        rw_free(c.to.first);
        rw_free(c.at);
        return RW_ERR_MEMORY;
    }
    rw_free(pieces->piece);
    rw_free(pieces->first);
    *pieces = c.to;
    a->at = c.at;
    a->n_blocks = c.to.n_groups;
    for (size_t b = 0; b < a->n_blocks; b++)
        if (a->at[b + 1] - a->at[b] > a->slot_bytes) a->slot_bytes = (size_t)(a->at[b + 1] - a->at[b]);
    a->n_slots = a->n_blocks < SLOTS ? a->n_blocks : SLOTS;
    return RW_OK;
}

/* ---- copies ---- */

/* Events of both kinds of runs, and one more for the beginning of a run. */
static size_t n_events(const struct rw_optimizer_offload *a)
{
    return 2 * a->n_slots * EVENTS + 1;
}

static rw_status wait_for(const struct rw_optimizer_offload *a, int lane, size_t event)
{
    const struct rw_device_fns *const device = a->ctx->device;
    return device->wait ? device->wait(a->ctx->device_state, lane, a->events, event) : RW_OK;
}

static rw_status signal_that(const struct rw_optimizer_offload *a, int lane, size_t event)
{
    const struct rw_device_fns *const device = a->ctx->device;
    return device->signal ? device->signal(a->ctx->device_state, lane, a->events, event) : RW_OK;
}

static size_t event_of(const struct rw_optimizer_offload *a, size_t slot, size_t event)
{
    return ((a->in_graph ? a->n_slots : 0) + slot) * EVENTS + event;
}

static rw_status wait(const struct rw_optimizer_offload *a, int lane, size_t slot, size_t event)
{
    return wait_for(a, lane, event_of(a, slot, event));
}

static rw_status signal(const struct rw_optimizer_offload *a, int lane, size_t slot, size_t event)
{
    return signal_that(a, lane, event_of(a, slot, event));
}

/* Copies in start after everything that was queued on the compute lane. */
static rw_status start_after_compute(const struct rw_optimizer_offload *a)
{
    const rw_status status = signal_that(a, RW_LANE_COMPUTE, n_events(a) - 1);
    return status ? status : wait_for(a, RW_LANE_IN, n_events(a) - 1);
}

/* The compute lane continues when everything is copied out. */
static rw_status join(const struct rw_optimizer_offload *a)
{
    rw_status status = RW_OK;
    for (size_t slot = 0; !status && slot < a->n_slots; slot++) status = wait(a, RW_LANE_COMPUTE, slot, PUT);
    return status;
}

static char *slot_at(const struct rw_optimizer_offload *a, size_t slot)
{
    return a->window + slot * a->slot_bytes;
}

/*
 * Copies a block in after the previous block of its slot was copied out; in a graph's run the first blocks need not
 * wait.
 */
static rw_status get(const struct rw_optimizer_offload *a, size_t block)
{
    if (block >= a->n_blocks) return RW_OK;
    const size_t slot = block % a->n_slots;
    const uint64_t bytes = a->at[block + 1] - a->at[block];
    rw_status status = a->in_graph && block < a->n_slots ? RW_OK : wait(a, RW_LANE_IN, slot, PUT);
    if (!status && bytes)
        status = a->fns->get(a->ctx->device_state, RW_LANE_IN, slot_at(a, slot), a->store, a->at[block], bytes);
    return status ? status : signal(a, RW_LANE_IN, slot, GOT);
}

static rw_status put(const struct rw_optimizer_offload *a, size_t block)
{
    const size_t slot = block % a->n_slots;
    const uint64_t bytes = a->at[block + 1] - a->at[block];
    rw_status status = signal(a, RW_LANE_COMPUTE, slot, UPDATED);
    if (!status) status = wait(a, RW_LANE_OUT, slot, UPDATED);
    if (!status && bytes)
        status = a->fns->put(a->ctx->device_state, RW_LANE_OUT, a->store, a->at[block], slot_at(a, slot), bytes);
    return status ? status : signal(a, RW_LANE_OUT, slot, PUT);
}

/* ---- around an update ---- */

static bool is_update(const struct rw_optimizer_offload *a, const struct rw_at *at)
{
    return at->node && a->ctx->ops[at->node->op] == a->op;
}

static rw_status failed(const struct rw_optimizer_offload *a, rw_status status)
{
    if (!status) return RW_OK;
    return rw_fail(a->ctx, status, "rw_optimizer_step: optimizer states could not be copied to or from %s; %s",
                   place_of(a), a->next ? "some parameters are updated and others are not: load a checkpoint"
                           : "no parameter has changed");
}

static rw_status begin(struct rw_observer *o, struct rw_run *r, size_t from, size_t to)
{
    struct rw_optimizer_offload *const a = (struct rw_optimizer_offload *)o;
    a->next = 0;
    a->in_graph = !(r->flags & RW_RUN_UPDATE);
    rw_status status = a->in_graph || a->after_graph ? start_after_compute(a) : RW_OK;
    a->after_graph = a->in_graph;
    if (!status) status = get(a, 0);
    if (!status) status = get(a, 1);
    return failed(a, status);
}

static rw_status before(struct rw_observer *o, struct rw_at *at)
{
    const struct rw_optimizer_offload *const a = (struct rw_optimizer_offload *)o;
    return is_update(a, at) ? failed(a, wait(a, RW_LANE_COMPUTE, a->next % a->n_slots, GOT)) : RW_OK;
}

/* On a host, and with files, the update waits for its last copies, because no later call checks them. */
static rw_status after(struct rw_observer *o, const struct rw_at *at)
{
    struct rw_optimizer_offload *const a = (struct rw_optimizer_offload *)o;
    if (!is_update(a, at)) return RW_OK;
    const size_t block = a->next++;
    rw_status status = put(a, block);
    if (!status) status = get(a, block + SLOTS - 1);
    if (!status && a->next == a->n_blocks && a->in_graph) status = join(a);
    const bool last = a->next == a->n_blocks && (a->ctx->device->on_host || a->fns->in_file);
    if (!status && last) status = a->ctx->device->finish(a->ctx->device_state);
    if (!status && last) a->next = 0;
    return failed(a, status);
}

static void end(struct rw_observer *o, struct rw_run *r, rw_status status, size_t action)
{
    struct rw_optimizer_offload *const a = (struct rw_optimizer_offload *)o;
    if (!status) return;
    a->failed = true;
    a->torn |= a->next > 0;
}

rw_status rw_optimizer_offload_before_launch(struct rw_optimizer_offload *a)
{
    a->in_graph = false;
    a->next = 0;
    return failed(a, join(a));
}

void rw_optimizer_offload_launched(struct rw_optimizer_offload *a, bool ran)
{
    a->next = ran ? a->n_blocks : 0;
}

const void *rw_optimizer_offload_store(const struct rw_optimizer_offload *a)
{
    return a->store;
}

bool rw_optimizer_offload_is_in_file(const struct rw_optimizer_offload *a)
{
    return a->fns->in_file;
}

struct rw_observer *rw_optimizer_offload_observer(struct rw_optimizer_offload *a)
{
    return &a->observer;
}

/* ---- creation and destruction ---- */

/* Writes zeros to all blocks, which also shows that the whole store can be written. */
static rw_status put_zeros(struct rw_optimizer_offload *a)
{
    rw_context *const ctx = a->ctx;
    rw_status status = ctx->device->clear(ctx->device_state, a->window, a->slot_bytes);
    if (!status) status = ctx->device->finish(ctx->device_state);
    for (size_t b = 0; !status && b < a->n_blocks; b++) {
        const uint64_t bytes = a->at[b + 1] - a->at[b];
        if (bytes) status = a->fns->put(ctx->device_state, RW_LANE_OUT, a->store, a->at[b], a->window, bytes);
    }
    const rw_status finished = ctx->device->finish(ctx->device_state);
    return status ? status : finished;
}

static void count(struct rw_optimizer_offload *a, bool more)
{
    rw_memory *const m = &a->ctx->memory;
    size_t *const outside = a->fns->in_file ? &m->files : &m->host;
    const size_t bytes = (size_t)a->at[a->n_blocks];
    *outside += more ? bytes : -bytes;
}

/* Opens the store; a plan-only context only counts its bytes. */
static rw_status open_store(struct rw_optimizer_offload *a)
{
    rw_context *const ctx = a->ctx;
    if (ctx->plan_only) {
        a->store = a;
        count(a, true);
        return RW_OK;
    }
    rw_status status = a->fns->open(ctx->device_state, a->path, a->at[a->n_blocks], &a->store);
    if (!status) count(a, true);
    if (!status) status = put_zeros(a);
    if (!status) return RW_OK;
    return rw_fail(ctx, status, "%s: %llu bytes of optimizer states do not fit in %s", a->call,
                   (unsigned long long)a->at[a->n_blocks], place_of(a));
}

static rw_status open_window(struct rw_optimizer_offload *a)
{
    rw_context *const ctx = a->ctx;
    const struct rw_device_fns *const device = ctx->device;
    a->memory = rw_context_alloc(ctx, rw_optimizer_offload_window(a), false);
    if (!a->memory) return RW_ERR_MEMORY;
    a->window = (char *)a->memory + (rw_round_up((uintptr_t)a->memory, PAGE) - (uintptr_t)a->memory);
    if (device->make_events) a->events = device->make_events(ctx->device_state, n_events(a));
    return device->make_events && !a->events ? RW_ERR_MEMORY : RW_OK;
}

static rw_status place_states(const struct rw_optimizer_offload *a, struct rw_pieces *pieces)
{
    for (size_t b = 0; b < a->n_blocks; b++)
        for (size_t i = pieces->first[b]; i < pieces->first[b + 1]; i++) {
            struct rw_piece *const p = &pieces->piece[i];
            char *const to = slot_at(a, b % a->n_slots) + (p->at - a->at[b]);
            for (int j = 0; j < p->n_states; j++) {
                p->state[j] = rw_state_at(a->ctx, p->dtype[j], RW_SHAPE(p->n), to + span_to(p, j));
                if (!p->state[j]) return RW_ERR_MEMORY;
            }
        }
    return RW_OK;
}

static void drop_states(const struct rw_optimizer_offload *a, struct rw_pieces *pieces)
{
    for (size_t i = 0; i < pieces->n; i++)
        for (int j = 0; j < RW_PIECE_STATES; j++) {
            rw_state_destroy(a->ctx, pieces->piece[i].state[j]);
            pieces->piece[i].state[j] = NULL;
        }
}

static rw_status open_all(struct rw_optimizer_offload *a, const rw_state_offload *where, size_t most,
                          struct rw_pieces *pieces)
{
    rw_context *const ctx = a->ctx;
    const bool in_file = where->place == RW_STATE_FILE;
    rw_status status = in_file ? rw_folder_find(ctx, a->call, where->path, &a->path) : RW_OK;
    if (status) return status;
    a->fns = in_file ? ctx->device->file_store : ctx->device->store;
    status = cut(a, where->window ? where->window : WINDOW, most, pieces);
    if (!status) status = open_window(a);
    if (!status) status = place_states(a, pieces);
    if (status) return rw_fail(ctx, status, "%s: out of memory", a->call);
    status = rw_runs_wait(ctx);
    return status ? status : open_store(a);
}

rw_status rw_optimizer_offload_open(struct rw_optimizer_offload **ret, rw_context *ctx, const char *call,
                                    const rw_op_def *op,
                                    const rw_state_offload *where, size_t most, struct rw_pieces *pieces)
{
    struct rw_optimizer_offload *const a = rw_calloc(1, sizeof *a);
    if (!a) return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory", call);
    *a = (struct rw_optimizer_offload){ .observer = { .begin = begin, .before = before, .after = after, .end = end },
                                        .ctx = ctx, .call = call, .op = op };
    const rw_status status = open_all(a, where, most, pieces);
    if (status) {
        drop_states(a, pieces);
        rw_optimizer_offload_close(a);
        return status;
    }
    *ret = a;
    return RW_OK;
}

void rw_optimizer_offload_close(struct rw_optimizer_offload *a)
{
    if (!a) return;
    rw_context *const ctx = a->ctx;
    if (a->store) {
        rw_runs_wait(ctx);
        if (!ctx->plan_only) a->fns->close(ctx->device_state, a->store);
        count(a, false);
    }
    if (a->events) ctx->device->free_events(ctx->device_state, a->events);
    ctx->device->free(ctx->device_state, a->memory);
    rw_free(a->path);
    rw_free(a->at);
    rw_free(a);
}

size_t rw_optimizer_offload_window(const struct rw_optimizer_offload *a)
{
    return a->n_slots * a->slot_bytes + PAGE;
}

/* ---- over a restart ---- */

bool rw_optimizer_offload_is_torn(const struct rw_optimizer_offload *a)
{
    return a->torn;
}

/* Opens a new store if the old one may have failed, or is closed because it belongs to the parent process. */
rw_status rw_optimizer_offload_rewrite_begin(struct rw_optimizer_offload *a)
{
    void *const old = a->store;
    const bool is_gone = a->fns->is_closed && a->fns->is_closed(old);
    a->torn = true;
    if (!a->failed && !is_gone) return RW_OK;
    const rw_status status = open_store(a);
    void *const gone = status ? a->store : old;
    if (a->store != old) {
        a->fns->close(a->ctx->device_state, gone);
        count(a, false);
    }
    if (status) a->store = old;
    else a->failed = false;
    return status;
}

void rw_optimizer_offload_rewrite_end(struct rw_optimizer_offload *a)
{
    a->torn = false;
}

/* Waits for a copy outside of an update. Whatever failed may be due to the store. */
static rw_status finish_copy(struct rw_optimizer_offload *a, rw_status status)
{
    const rw_status finished = a->ctx->device->finish(a->ctx->device_state);
    if (!status) status = finished;
    a->failed |= status != RW_OK;
    return status;
}

rw_status rw_optimizer_offload_read(struct rw_optimizer_offload *a, const struct rw_piece *p, int j, size_t at,
                                    void *to, size_t bytes)
{
    rw_context *const ctx = a->ctx;
    rw_status status =
        a->fns->get(ctx->device_state, RW_LANE_IN, a->window, a->store, p->at + span_to(p, j), bytes_of(p, j));
    status = finish_copy(a, status);
    return status ? status : ctx->device->download(ctx->device_state, to, a->window + at, bytes);
}

rw_status rw_optimizer_offload_write(struct rw_optimizer_offload *a, const struct rw_piece *p, int j, const void *from)
{
    rw_context *const ctx = a->ctx;
    const struct rw_device_fns *const device = ctx->device;
    const uint64_t bytes = bytes_of(p, j);
    rw_status status = device->upload(ctx->device_state, a->window, from, bytes);
    if (!status) status = device->finish(ctx->device_state);
    if (!status)
        status = a->fns->put(ctx->device_state, RW_LANE_OUT, a->store, p->at + span_to(p, j), a->window, bytes);
    return finish_copy(a, status);
}
