/* Rows of counts: their numbering by weights, their buffer, and the slot of an operand. */
#include "record/quantization_counts.h"

#include "base/alloc.h"
#include "ops/float8/fp8_scaling_ops.h"
#include "record/delayed_scales.h"
#include "record/recipe_slots.h"

static void release(struct rw_counts *c)
{
    if (!c) return;
    rw_free(c->weights);
    rw_free(c->at);
    rw_free(c);
}

static void destroy(rw_context *ctx, void *state)
{
    release(*(struct rw_counts **)state);
}

/* Of a context: its counts. Made when a monitor first requests sites. */
static struct rw_extension counts_extension = { .name = "counts", .size = sizeof(struct rw_counts *),
                                                .destroy = destroy };

struct rw_counts *rw_counts_of(const rw_context *ctx)
{
    struct rw_counts *const *const place = rw_extension_find(&ctx->extensions, &counts_extension);
    return place ? *place : NULL;
}

static bool may_be_weight(const rw_context *ctx, const struct rw_param *p)
{
    const rw_dtype dtype = (rw_dtype)p->tensor.dtype;
    return rw_layout_of(ctx, &p->tensor)->rank == 2 && (dtype == RW_F32 || dtype == RW_BF16 || dtype == RW_F16);
}

/* Numbers the possible weights in the order of creation. */
static bool number_rows(const rw_context *ctx, struct rw_counts *c)
{
    c->weights = rw_malloc((ctx->n_params + 1) * sizeof *c->weights);
    c->at = rw_calloc(RW_DELAYED_OPERANDS * ctx->n_params + 1, sizeof *c->at);
    if (!c->weights || !c->at) return false;
    for (size_t i = 0; i < ctx->n_params; i++) {
        const struct rw_param *const p = ctx->params[i];
        if (may_be_weight(ctx, p)) c->weights[c->n_weights++] = p->serial;
    }
    c->n = RW_DELAYED_OPERANDS * c->n_weights;
    return true;
}

/* Finds the buffer. Parameters are only added, so with an equal number of rows an earlier buffer is reused. */
static bool find_room(rw_context *ctx, struct rw_counts *c)
{
    const struct rw_counts *const had = rw_counts_of(ctx);
    const bool same = had && had->n == c->n;
    c->noted = same ? had->noted
                    : rw_state_create(ctx, RW_I32, RW_SHAPE(c->n ? (int64_t)c->n : 1, RW_CODES_WORDS));
    return c->noted;
}

rw_status rw_counts_make(struct rw_counts **ret, rw_context *ctx, const void *watcher)
{
    const struct rw_counts *const had = rw_counts_of(ctx);
    if (had && had->watcher && had->watcher != watcher)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_monitor_watch: expected one monitor to observe FP8 statistics of a "
                       "context, got a second");
    struct rw_counts *const c = rw_calloc(1, sizeof *c);
    if (!c || !rw_extension_make(&ctx->extensions, &counts_extension) || !number_rows(ctx, c) || !find_room(ctx, c)) {
        release(c);
        return rw_fail(ctx, RW_ERR_MEMORY, "rw_monitor_watch: out of memory");
    }
    c->watcher = watcher;
    *ret = c;
    return RW_OK;
}

void rw_counts_drop(rw_context *ctx, struct rw_counts *c)
{
    const struct rw_counts *const used = rw_counts_of(ctx);
    if (c && (!used || used->noted != c->noted)) rw_state_destroy(ctx, c->noted);
    release(c);
}

void rw_counts_set(const rw_context *ctx, struct rw_counts *c)
{
    struct rw_counts **const place = rw_extension_find(&ctx->extensions, &counts_extension);
    release(*place);
    *place = c;
}

void rw_counts_close(const rw_context *ctx, const void *watcher)
{
    struct rw_counts *const c = rw_counts_of(ctx);
    if (c && c->watcher == watcher) c->watcher = NULL;
}

bool rw_counts_slot_at(rw_site at, const rw_tape *t, const struct rw_tensor *weight, rw_delayed_operand which,
                       struct rw_counts_slot *ret)
{
    const struct rw_counts *const c = rw_counts_of(t->ctx);
    if (!c || !c->watcher || weight->leaf == RW_NONE_ID || t->leaves[weight->leaf].kind != RW_LEAF_PARAM) return false;
    const uint32_t i = rw_serial_find(c->weights, c->n_weights, t->leaves[weight->leaf].serial);
    if (i == RW_NONE_ID) return false;
    *ret = (struct rw_counts_slot){ c->noted->tensor.id, i * RW_DELAYED_OPERANDS + (uint32_t)which };
    c->at[ret->row] = rw_site_kept(t->ctx, at);
    return true;
}

rw_status rw_counts_note(rw_tape *t, uint32_t buffer, uint32_t row, const rw_tensor *counts)
{
    return rw_amaxes_note(t, (struct rw_tape_amax){ counts->id, buffer, row, RW_NONE_ID, true });
}
