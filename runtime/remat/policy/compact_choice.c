/* Compact choices: copying, and expansion to a full choice. */
#include "remat/policy/compact_choice.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

rw_status rw_compact_choice_init(struct rw_compact_choice *r, const struct rw_replayable *g)
{
    *r = (struct rw_compact_choice){ .drop = rw_calloc(g->n_values, sizeof *r->drop) };
    return r->drop ? RW_OK : RW_ERR_MEMORY;
}

rw_status rw_compact_choice_copy(struct rw_compact_choice *r, const struct rw_compact_choice *from,
                                 const struct rw_replayable *g)
{
    rw_status status = rw_compact_choice_init(r, g);
    if (status) return status;
    r->ends_at_views = from->ends_at_views;
    if (g->n_values) memcpy(r->drop, from->drop, g->n_values * sizeof *r->drop);
    for (size_t i = 0; !status && i < from->n_stretches; i++)
        if (rw_compact_choice_add_stretch(r, from->stretch[i]) == RW_NONE_ID) status = RW_ERR_MEMORY;
    if (status) rw_compact_choice_finish(r);
    return status;
}

void rw_compact_choice_finish(struct rw_compact_choice *r)
{
    rw_free(r->drop);
    rw_free(r->stretch);
    *r = (struct rw_compact_choice){ 0 };
}

uint32_t rw_compact_choice_add_stretch(struct rw_compact_choice *r, struct rw_stretch stretch)
{
    if (!rw_grow(&r->stretch, &r->cap_stretches, r->n_stretches, 1, sizeof *r->stretch)) return RW_NONE_ID;
    r->stretch[r->n_stretches] = stretch;
    return (uint32_t)r->n_stretches++;
}

/* Assigns the nodes of a stretch, and the views after each of them, to its segment. If a view were outside, the visit
   would end where backward differentiates it; with ends_at_views this is intended. */
static void set_segment(const struct rw_compact_choice *r, const struct rw_replayable *g, struct rw_choice *c,
                        const struct rw_stretch *x, uint32_t segment)
{
    const struct rw_problem *const p = g->p;
    const uint32_t end = x->end < g->n_nodes ? g->node[x->end] : (uint32_t)p->mark.nodes;
    for (uint32_t n = g->node[x->first]; n < end; n++)
        if (!p->t->nodes[n].adjoint && !(r->ends_at_views && g->place_of[n] == RW_NONE_ID)) c->segment_of[n] = segment;
}

/* Segment s + 1 is stretch s: both lists are in preorder. */
static rw_status add_segments(const struct rw_compact_choice *r, const struct rw_replayable *g, struct rw_choice *c)
{
    for (size_t s = 0; s < r->n_stretches; s++) {
        const struct rw_stretch *const x = &r->stretch[s];
        const uint32_t segment = rw_choice_add_segment(c, x->parent == RW_NONE_ID ? 0 : x->parent + 1);
        if (segment == RW_NONE_ID) return RW_ERR_MEMORY;
        set_segment(r, g, c, x, segment);
    }
    rw_choice_close(c);
    for (size_t n = 0; n < g->p->t->n_nodes; n++) {
        const struct rw_node *const node = &g->p->t->nodes[n];
        if (node->adjoint && node->of != RW_NONE_ID) c->segment_of[n] = c->segment_of[node->of];
    }
    return RW_OK;
}

/*
 * The fate of a value that is dropped or offloaded. The caller's marks take precedence, except that a value marked for
 * replay can get a level.
 */
static struct rw_fate fate_of(struct rw_fate kept, uint8_t drop)
{
    struct rw_fate fate = { .why = kept.why };
    if (drop == RW_DROP_MOVED) return (struct rw_fate){ .what = RW_MOVE, .why = RW_WHY_BUDGET };
    if (kept.why != RW_WHY_CALLER_REPLAYS && kept.why != RW_WHY_BUDGET) return kept;
    if (rw_drop_is_after_first(drop) && kept.why == RW_WHY_BUDGET) fate.what = RW_KEEP_FIRST;
    drop = rw_drop_at(drop);
    if (drop == RW_DROP_ONCE) fate.what = RW_REPLAY;
    else fate.level = drop - RW_DROP_AT + 1u;
    return fate;
}

/* Removes the segments of a choice of the same problem, and keeps all values that can be dropped. */
static rw_status reset(struct rw_choice *c, const struct rw_replayable *g)
{
    const bool had_segments = c->n_segments > 1;
    const size_t n = g->p->mark.values; /* later values are kept by every choice */
    c->n_segments = 0;
    if (rw_choice_add_segment(c, 0) == RW_NONE_ID) return RW_ERR_MEMORY;
    if (had_segments) memset(c->segment_of, 0, g->p->t->n_nodes * sizeof *c->segment_of);
    if (n) memcpy(c->fate, g->kept, n * sizeof *c->fate);
    return RW_OK;
}

static rw_status begin(struct rw_choice *c, const struct rw_replayable *g)
{
    if (c->fate) return reset(c, g);
    const rw_status status = rw_choice_init(c, g->p);
    if (!status && g->p->t->n_values) memcpy(c->fate, g->kept, g->p->t->n_values * sizeof *c->fate);
    return status;
}

/* Starts from the fates with everything kept, and adds segments and drops. */
rw_status rw_compact_choice_expand(const struct rw_compact_choice *r, const struct rw_replayable *g,
                                   struct rw_choice *c)
{
    rw_status status = begin(c, g);
    if (!status && r->n_stretches) status = add_segments(r, g, c);
    if (status) {
        rw_choice_finish(c);
        return status;
    }
    for (uint32_t v = 0; v < g->n_values; v++)
        if (r->drop[v]) c->fate[g->value[v]] = fate_of(g->kept[g->value[v]], r->drop[v]);
    assert(rw_choice_is_valid(c, g->p));
    return RW_OK;
}

rw_status rw_compact_choice_choose(const struct rw_compact_choice *r, const struct rw_replayable *g,
                                   struct rw_choice *ret_choice)
{
    struct rw_choice c = { 0 };
    const rw_status status = rw_compact_choice_expand(r, g, &c);
    if (!status) *ret_choice = c;
    return status;
}
