/*
 * Addresses of a plan's sources, and the check that they still have the versions on which the tape relies. A part of a
 * run only checks sources that its own actions use: others may have changed.
 */
#include "run/source_addresses.h"

#include "base/round_up.h"
#include "record/gradient_state.h"
#include "run/root_gradients.h"

static bool is_named(const struct rw_source *s, size_t from, size_t to)
{
    return s->first < to && s->last >= from;
}

static const struct rw_source *outside(const rw_plan *p, size_t i)
{
    return &p->sources[p->outside[i]];
}

static rw_status check_input(const rw_tape *t, const struct rw_leaf *leaf)
{
    if (!leaf->ran || leaf->version == leaf->written) return RW_OK;
    const char *const name = rw_tensor_name(rw_tape_value(t, leaf->value));
    return rw_fail(t->ctx, RW_ERR_MODIFIED,
                   "input %s%s(value %u) was written by rw_input_write() after the forward pass had read it; "
                   "reset the tape and record the step again",
                   name, *name ? " " : "", leaf->value);
}

static rw_status check_param(const rw_tape *t, const struct rw_leaf *leaf)
{
    const struct rw_param *const p = t->ctx->by_id[leaf->param];
    if (p->version == leaf->version) return leaf->weight ? check_param(t, &t->leaves[leaf->weight - 1]) : RW_OK;
    return rw_fail(t->ctx, RW_ERR_MODIFIED,
                   "parameter \"%s\" changed after it was recorded; results from it would not match; "
                   "reset the tape and record the step again",
                   rw_param_name(p));
}

rw_status rw_leaf_check(const rw_tape *t, uint32_t leaf)
{
    const struct rw_leaf *const l = &t->leaves[leaf];
    if (l->kind == RW_LEAF_INPUT) return check_input(t, l);
    return l->kind == RW_LEAF_PARAM ? check_param(t, l) : RW_OK;
}

static bool is_gradient(const struct rw_source *s)
{
    return s->kind == RW_SOURCE_GRADIENT || s->kind == RW_SOURCE_OLD || s->kind == RW_SOURCE_ADDEND;
}

/* A recorded leaf relies on the contents of the gradient at that time; in a graph, on what the first reader of the
   launch read. Leaves with which the step's own sums start are not on the tape: they continue from the present
   contents. */
static rw_status check_gradient(const rw_tape *t, const struct rw_source *s)
{
    const struct rw_param *const p = t->ctx->by_id[s->index];
    const rw_status status = rw_gradient_check(t->ctx, p, "run");
    if (status || s->leaf == RW_NONE_ID) return status;
    const struct rw_leaf *const leaf = &t->leaves[s->leaf];
    if (!leaf->ran || leaf->version == p->gradient.version) return RW_OK;
    return rw_fail(t->ctx, RW_ERR_MODIFIED,
                   "the gradient of \"%s\" changed after an op that reads it was recorded; results from it would "
                   "not match; record the op after the change, or reset the tape and record the step again",
                   p->name);
}

/* Law 8: a replay reads what the forward pass read. And the step's contributions have the same scale as the sum that
   they are added to. */
static rw_status check(const struct rw_run *r, const struct rw_source *s)
{
    const rw_tape *const t = r->tape;
    const bool adds = s->kind == RW_SOURCE_GRADIENT && !(r->flags & (RW_RUN_UPDATE | RW_RUN_REHEARSAL));
    const rw_status status = adds ? rw_gradient_check_sum(t->ctx, t->ctx->by_id[s->index], "backward") : RW_OK;
    if (status) return status;
    if (is_gradient(s)) return check_gradient(t, s);
    return s->leaf == RW_NONE_ID ? RW_OK : rw_leaf_check(t, s->leaf);
}

static void *addend(const struct rw_run *r, const struct rw_gradient *g)
{
    return rw_gradient_is_clear(g) || (r->flags & RW_RUN_ADDS_NONE) ? NULL : g->data;
}

/* Address of a source. RW_SOURCE_ADDEND is NULL for a clear gradient, which the op treats as absent: so one plan
   serves first and later micro-batches. */
static void *address(const struct rw_run *r, const struct rw_source *s)
{
    rw_tape *const t = r->tape;
    const struct rw_param *const p = is_gradient(s) ? t->ctx->by_id[s->index] : NULL;
    char *const results = r->results->data;
    switch ((enum rw_source_kind)s->kind) {
    case RW_SOURCE_PARAM: return t->ctx->by_id[s->index]->data;
    case RW_SOURCE_GRADIENT:
    case RW_SOURCE_OLD: return p->gradient.data;
    case RW_SOURCE_ADDEND: return addend(r, &p->gradient);
    case RW_SOURCE_SEED: return rw_seed_of(r, s->index);
    case RW_SOURCE_INPUT: return t->leaves[s->index].data;
    case RW_SOURCE_HELD: return rw_tape_held(t, s->index);
    case RW_SOURCE_RESULT: return results ? results + r->plan->results[s->index].offset : NULL;
    case RW_SOURCE_STORE: /* the store copies */
    case RW_SOURCE_NOWHERE: break;
    }
    return NULL;
}

static void note_read(const struct rw_run *r, const struct rw_source *s)
{
    rw_tape *const t = r->tape;
    if (s->leaf == RW_NONE_ID || (s->kind != RW_SOURCE_INPUT && !is_gradient(s))) return;
    struct rw_leaf *const leaf = &t->leaves[s->leaf];
    leaf->is_requested |= (r->flags & RW_RUN_OWNED) != 0; /* a launch is a request of all that it reads */
    leaf->version = is_gradient(s) ? t->ctx->by_id[s->index]->gradient.version : leaf->written;
    leaf->ran = true;
}

/* Allocates a gradient that the run writes, or whose bytes it reads. A private run writes to memory of its own. */
static rw_status make_room(const struct rw_run *r, const struct rw_source *s)
{
    const bool private = r->flags & (RW_RUN_REHEARSAL | RW_RUN_PRIVATE);
    rw_context *const ctx = r->tape->ctx;
    const bool wanted = s->kind == RW_SOURCE_OLD || (s->kind == RW_SOURCE_GRADIENT && !private);
    return wanted ? rw_gradient_room(ctx, ctx->by_id[s->index], "run") : RW_OK;
}

static rw_status store_zeros(rw_context *ctx, const struct rw_source *s)
{
    return s->kind == RW_SOURCE_OLD ? rw_gradient_store(ctx, ctx->by_id[s->index], "run") : RW_OK;
}

/* Rehearsals and private runs read the parameters' gradients, and write to memory of their own. */
static rw_status redirect_gradients(struct rw_run *r)
{
    rw_context *const ctx = r->tape->ctx;
    const rw_plan *const p = r->plan;
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->n_gradients; i++)
        bytes += rw_round_up(ctx->by_id[p->gradients[i]]->gradient.bytes, p->unit);
    if (!r->own_gradients && !(r->own_gradients = rw_context_alloc(ctx, bytes, false)))
        return rw_fail(ctx, RW_ERR_MEMORY, "run: out of memory (the gradients take %llu bytes)",
                       (unsigned long long)bytes);
    char *at = r->own_gradients;
    for (size_t i = 0; i < p->n_sources; i++) {
        if (p->sources[i].kind != RW_SOURCE_GRADIENT) continue;
        r->sources[i] = at;
        at += rw_round_up(ctx->by_id[p->sources[i].index]->gradient.bytes, p->unit);
    }
    return RW_OK;
}

/* If one copy fails, all gradients are spoiled: some contain sums of this step and others do not. */
static rw_status copy_gradients(const struct rw_run *r)
{
    rw_context *const ctx = r->tape->ctx;
    const rw_plan *const p = r->plan;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < p->n_sources; i++) {
        if (p->sources[i].kind != RW_SOURCE_GRADIENT) continue;
        const struct rw_gradient *const g = &ctx->by_id[p->sources[i].index]->gradient;
        status = ctx->device->upload(ctx->device_state, g->data, r->sources[i], g->bytes);
    }
    for (size_t i = 0; status && i < p->n_gradients; i++) rw_gradient_spoil(&ctx->by_id[p->gradients[i]]->gradient);
    return status;
}

rw_status rw_run_publish(struct rw_run *r)
{
    rw_context *const ctx = r->tape->ctx;
    const rw_plan *const p = r->plan;
    rw_status status = RW_OK;
    r->pool->active = r;
    for (size_t i = 0; !status && i < p->n_gradients; i++)
        status = rw_gradient_room(ctx, ctx->by_id[p->gradients[i]], "run");
    r->pool->active = NULL;
    if (!status) status = copy_gradients(r);
    r->flags &= (uint16_t)~RW_RUN_PRIVATE;
    return status ? rw_fail(ctx, status, "run: the gradients could not be copied") : RW_OK;
}

rw_status rw_run_check(const struct rw_run *r, size_t from, size_t to)
{
    const rw_plan *const p = r->plan;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < p->n_outside; i++)
        if (is_named(outside(p, i), from, to)) status = check(r, outside(p, i));
    return status;
}

/* All sources are checked before any memory is allocated or zeroed, so a refused run changes nothing. Reads are
   recorded only at the end, when the run can no longer be refused: the tape relies on these versions from then on. */
rw_status rw_run_resolve(struct rw_run *r, size_t from, size_t to)
{
    const rw_plan *const p = r->plan;
    rw_status status = rw_run_check(r, from, to);
    for (size_t i = 0; !status && i < p->n_outside; i++)
        if (is_named(outside(p, i), from, to)) status = make_room(r, outside(p, i));
    for (size_t i = 0; !status && i < p->n_outside; i++)
        if (is_named(outside(p, i), from, to)) status = store_zeros(r->tape->ctx, outside(p, i));
    if (!status && to > p->n_forward) status = rw_root_gradients_prepare(r);
    for (size_t i = 0; !status && i < p->n_outside; i++)
        if (is_named(outside(p, i), from, to)) note_read(r, outside(p, i));
    for (size_t i = 0; !status && i < p->n_sources; i++)
        if (is_named(&p->sources[i], from, to)) r->sources[i] = address(r, &p->sources[i]);
    const bool private = r->flags & (RW_RUN_REHEARSAL | RW_RUN_PRIVATE);
    if (!status && private && to > p->n_forward) status = redirect_gradients(r);
    return status;
}
