/*
 * Where a plan's sources lie, and whether they still are what the tape relies on. A part of a run looks at the sources
 * that its own actions name, and at no other: what nobody reads any more may have changed.
 */
#include "run/sources.h"

static bool is_named(const struct rw_source *s, size_t from, size_t to)
{
    return s->first < to && s->last >= from;
}

static rw_status check_input(const rw_tape *t, const struct rw_leaf *leaf)
{
    if (!leaf->ran || leaf->version == leaf->written) return RW_OK;
    const char *const name = rw_tensor_name(rw_tape_value(t, leaf->value));
    return rw_fail(t->ctx, RW_ERR_CHANGED,
                   "input %s%s(value %u) was written by rw_input_write() after the forward pass had read it; "
                   "reset the tape and record the step again",
                   name, *name ? " " : "", leaf->value);
}

static rw_status check_param(const rw_tape *t, const struct rw_leaf *leaf)
{
    const struct rw_param *const p = t->ctx->params[leaf->param];
    if (p->version == leaf->version) return RW_OK;
    return rw_fail(t->ctx, RW_ERR_CHANGED,
                   "parameter \"%s\" changed after it was recorded; what is computed from it now would not match; "
                   "reset the tape and record the step again",
                   p->name);
}

/* Law 8: what a replay reads must be what the forward pass read. A gradient may change; its leaf may be one that
   planning made on another tape and cut off again. */
static rw_status check(const rw_tape *t, const struct rw_source *s)
{
    if (s->kind == RW_SOURCE_GRADIENT) return rw_gradient_check(t->ctx, t->ctx->params[s->index], "run");
    if (s->leaf == RW_NONE_ID) return RW_OK;
    const struct rw_leaf *const leaf = &t->leaves[s->leaf];
    if (leaf->kind == RW_LEAF_INPUT) return check_input(t, leaf);
    return leaf->kind == RW_LEAF_PARAM ? check_param(t, leaf) : RW_OK;
}

static void *address(const struct rw_run *r, const struct rw_source *s)
{
    rw_tape *const t = r->tape;
    char *const results = r->results->data;
    switch ((enum rw_source_kind)s->kind) {
    case RW_SOURCE_PARAM: return t->ctx->params[s->index]->data;
    case RW_SOURCE_GRADIENT: return t->ctx->params[s->index]->grad;
    case RW_SOURCE_INPUT: return t->leaves[s->index].data;
    case RW_SOURCE_HELD: return rw_tape_held(t, s->index);
    case RW_SOURCE_RESULT: return results ? results + r->plan->results[s->index].offset : NULL;
    case RW_SOURCE_STORE:
    case RW_SOURCE_NOWHERE: break;
    }
    return NULL;
}

static void note_read(rw_tape *t, const struct rw_source *s)
{
    if (s->kind != RW_SOURCE_INPUT || s->leaf == RW_NONE_ID) return;
    struct rw_leaf *const leaf = &t->leaves[s->leaf];
    leaf->version = leaf->written;
    leaf->ran = true;
}

rw_status rw_run_resolve(struct rw_run *r, size_t from, size_t to)
{
    const rw_plan *const p = r->plan;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < p->n_sources; i++)
        if (is_named(&p->sources[i], from, to)) status = check(r->tape, &p->sources[i]);
    for (size_t i = 0; !status && i < p->n_sources; i++) {
        if (!is_named(&p->sources[i], from, to)) continue;
        note_read(r->tape, &p->sources[i]);
        r->sources[i] = address(r, &p->sources[i]);
    }
    return status;
}
