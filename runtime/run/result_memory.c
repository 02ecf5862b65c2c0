/* Blocks of results and their reference counts: reuse per plan, held values, gradient handles. */
#include "run/result_memory.h"

#include "base/alloc.h"

#include <string.h>

/* Of a tape whose runs have had results: its blocks. */
struct blocks {
    struct rw_results *first;
};

/* Drops held values from t->n_values on: the nodes recorded last were rolled back. REWIND_EAGER=1 has executed them. */
static void cut(rw_tape *t, void *state)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_held; i++) {
        if (t->held[i].value < t->n_values) t->held[n++] = t->held[i];
        else rw_results_release(t->ctx, t->held[i].in);
    }
    t->n_held = n;
}

static void destroy(rw_context *ctx, void *state)
{
    for (struct rw_results *r = ((struct blocks *)state)->first, *next; r; r = next) {
        next = r->next;
        rw_results_release(ctx, r);
    }
}

static struct rw_extension results_extension = { .name = "results", .size = sizeof(struct blocks), .cut = cut,
                                                 .destroy = destroy };

static struct rw_results *first_block(const rw_tape *t)
{
    const struct blocks *const blocks = rw_extension_find(&t->extensions, &results_extension);
    return blocks ? blocks->first : NULL;
}

/* Among free blocks, that of the same plan first, then any. Under `total:` only one that is not larger than planned. */
static struct rw_results *free_block(const rw_tape *t, const rw_plan *plan)
{
    struct rw_results *found = NULL;
    for (struct rw_results *r = first_block(t); r; r = r->next) {
        if (r->references > 1 || (plan->total_bytes && r->bytes != plan->results_bytes)) continue;
        if (r->plan == plan->serial) return r;
        if (!found || r->bytes > found->bytes) found = r;
    }
    return found;
}

static struct rw_results *add_block(rw_tape *t)
{
    struct blocks *const blocks = rw_extension_make(&t->extensions, &results_extension);
    struct rw_results *const r = blocks ? rw_calloc(1, sizeof *r) : NULL;
    if (!r) return NULL;
    *r = (struct rw_results){ .next = blocks->first, .references = 1 };
    blocks->first = r;
    return r;
}

static bool make_room(rw_context *ctx, struct rw_results *r, size_t bytes)
{
    if (r->bytes >= bytes) return true;
    void *const data = rw_context_alloc(ctx, bytes, false);
    if (!data) return false;
    ctx->device->free(ctx->device_state, r->data);
    ctx->memory.results += bytes - r->bytes;
    r->data = data;
    r->bytes = bytes;
    return true;
}

struct rw_results *rw_results_take(rw_tape *t, const rw_plan *plan)
{
    struct rw_results *r = free_block(t, plan);
    if (!r) r = add_block(t);
    if (!r) return NULL;
    r->references++; /* now, so that it is not among the unused blocks that are freed if memory is exhausted */
    if (!make_room(t->ctx, r, plan->results_bytes)) {
        r->references--;
        return NULL;
    }
    r->plan = plan->serial;
    r->step = t->step;
    t->ctx->results_in_use += r->bytes;
    return r;
}

/* Drops n references. */
static void release(rw_context *ctx, struct rw_results *r, int n)
{
    const int before = r->references;
    r->references -= n;
    if (before > 1 && r->references <= 1) ctx->results_in_use -= r->bytes;
    if (r->references) return;
    ctx->memory.results -= r->bytes;
    ctx->device->free(ctx->device_state, r->data);
    rw_free(r);
}

void rw_results_release(rw_context *ctx, struct rw_results *r)
{
    if (r) release(ctx, r, 1);
}

/* Blocks that a run used after that step are kept. False if there is none to free. */
static bool free_blocks(rw_tape *t, uint64_t step)
{
    struct blocks *const blocks = rw_extension_find(&t->extensions, &results_extension);
    bool freed = false;
    if (!blocks) return false;
    for (struct rw_results **link = &blocks->first; *link;) {
        struct rw_results *const r = *link;
        if (r->references > 1 || r->step > step) {
            link = &r->next;
            continue;
        }
        *link = r->next;
        freed |= r->bytes > 0;
        rw_results_release(t->ctx, r);
    }
    return freed;
}

bool rw_results_free_unused(rw_context *ctx)
{
    bool freed = false;
    for (rw_tape *t = ctx->tapes; t; t = t->next) freed |= free_blocks(t, UINT64_MAX);
    return freed;
}

void rw_results_trim(rw_tape *t)
{
    if (t->step >= RW_RESULTS_IDLE_STEPS) free_blocks(t, t->step - RW_RESULTS_IDLE_STEPS);
}

rw_status rw_results_hold_between(rw_tape *t, struct rw_results *results, const struct rw_result *r)
{
    const size_t at = rw_tape_held_below(t, r->value);
    if (at < t->n_held && t->held[at].value == r->value) return RW_OK;
    if (!rw_grow(&t->held, &t->cap_held, t->n_held, 1, sizeof *t->held)) return RW_ERR_MEMORY;
    memmove(t->held + at + 1, t->held + at, (t->n_held++ - at) * sizeof *t->held);
    t->held[at] = rw_held_in(results, r);
    results->references++;
    return RW_OK;
}

static bool add_handle(rw_tape *t)
{
    if (!rw_grow(&t->gradients, &t->cap_gradients, t->n_handles, 1, sizeof *t->gradients)) return false;
    struct rw_gradient_handle *const handle = rw_calloc(1, sizeof *handle);
    if (!handle) return false;
    t->gradients[t->n_handles++] = handle;
    return true;
}

bool rw_results_reserve(rw_tape *t, const rw_plan *plan)
{
    if (!rw_grow(&t->held, &t->cap_held, t->n_held, plan->n_results, sizeof *t->held)) return false;
    while (t->n_handles < t->n_gradients + plan->n_gradient_results)
        if (!add_handle(t)) return false;
    return true;
}

static struct rw_gradient_handle *handle_of(rw_tape *t, uint32_t value)
{
    const size_t at = rw_tape_gradients_above(t, value);
    if (at < t->n_gradients && t->gradients[at]->tensor.id == value) return t->gradients[at];
    if (t->n_handles == t->n_gradients && !add_handle(t)) return NULL;
    struct rw_gradient_handle *const handle = t->gradients[t->n_gradients];
    memmove(t->gradients + at + 1, t->gradients + at, (t->n_gradients++ - at) * sizeof *t->gradients);
    return t->gradients[at] = handle;
}

rw_status rw_results_hand_out(rw_tape *t, struct rw_results *results, const struct rw_result *r)
{
    struct rw_gradient_handle *const handle = handle_of(t, r->of);
    if (!handle) return RW_ERR_MEMORY;
    rw_results_release(t->ctx, handle->in);
    results->references++;
    *handle = (struct rw_gradient_handle){
        .tensor = { .owner.tape = t, .id = r->of, .layout = r->layout, .dtype = r->dtype, .flags = RW_VALUE_GRADIENT,
                    .producer = RW_NONE_ID, .leaf = RW_NONE_ID },
        .data = (char *)results->data + r->offset, .in = results
    };
    return RW_OK;
}

void rw_results_let_go(rw_tape *t)
{
    for (size_t i = 0, next; i < t->n_held; i = next) { /* one release for adjacent values of a block */
        struct rw_results *const in = t->held[i].in;
        for (next = i + 1; next < t->n_held && t->held[next].in == in;) next++;
        release(t->ctx, in, (int)(next - i));
    }
    t->n_held = 0;
}

/* Drops all held values at a reset. Handles of gradients become stale, and rotate like the chunks of values, so that
   their memory is reused as late as possible. */
void rw_results_forget(rw_tape *t)
{
    rw_results_let_go(t);
    for (size_t i = 0; i < t->n_gradients; i++) {
        struct rw_gradient_handle *const handle = t->gradients[i];
        rw_results_release(t->ctx, handle->in);
        handle->tensor.id = RW_NONE_ID; /* a later use of this handle is reported as stale */
        handle->data = NULL;
        handle->in = NULL;
    }
    if (t->n_gradients) {
        while (t->n_handles < t->n_gradients + RW_VALUE_CHUNKS)
            if (!add_handle(t)) break;
        rw_rest(t->gradients, t->n_gradients, t->n_handles);
    }
    t->n_gradients = 0;
}
