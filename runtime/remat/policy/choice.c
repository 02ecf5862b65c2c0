/* Choices: construction and validation, including the tree of segments with jumps to ancestors. */
#include "remat/policy/choice.h"

#include "base/alloc.h"

void rw_choice_finish(struct rw_choice *c)
{
    rw_free(c->segment);
    rw_free(c->segment_of);
    rw_free(c->fate);
    *c = (struct rw_choice){ 0 };
}

rw_status rw_choice_init(struct rw_choice *c, const struct rw_problem *p)
{
    *c = (struct rw_choice){ .segment_of = rw_calloc(p->t->n_nodes, sizeof *c->segment_of),
                             .fate = rw_calloc(p->t->n_values, sizeof *c->fate) };
    if (c->segment_of && c->fate && rw_choice_add_segment(c, 0) == 0) return RW_OK;
    rw_choice_finish(c);
    return RW_ERR_MEMORY;
}

/*
 * Two jumps of equal length are joined to one of twice the length. Source: Myers, "An applicative random-access stack",
 * Information Processing Letters 17 (1983).
 */
static uint32_t jump_from(const struct rw_segment *segment, uint32_t parent)
{
    const uint32_t first = segment[parent].jump, second = segment[first].jump;
    const uint32_t depth = segment[first].depth;
    return segment[parent].depth - depth == depth - segment[second].depth ? second : parent;
}

void rw_choice_set_segment(struct rw_choice *c, uint32_t s, uint32_t parent)
{
    c->segment[s] = (struct rw_segment){ .parent = parent, .end = s + 1 };
    if (!s) return;
    c->segment[s].depth = c->segment[parent].depth + 1;
    c->segment[s].jump = jump_from(c->segment, parent);
}

uint32_t rw_choice_add_segment(struct rw_choice *c, uint32_t parent)
{
    if (!rw_grow(&c->segment, &c->cap_segments, c->n_segments, 1, sizeof *c->segment)) return RW_NONE_ID;
    const uint32_t s = (uint32_t)c->n_segments++;
    rw_choice_set_segment(c, s, parent);
    return s;
}

void rw_choice_close(struct rw_choice *c)
{
    for (uint32_t s = (uint32_t)c->n_segments; s-- > 1;) {
        struct rw_segment *const around = &c->segment[c->segment[s].parent];
        if (around->end < c->segment[s].end) around->end = c->segment[s].end;
    }
}

static bool tree_is_valid(const struct rw_choice *c)
{
    for (uint32_t s = 0; s < c->n_segments; s++) {
        const struct rw_segment *const x = &c->segment[s];
        if (x->end <= s || x->end > c->n_segments) return false;
        if (!s) continue;
        if (x->parent >= s || x->depth != c->segment[x->parent].depth + 1) return false;
        if (x->jump != jump_from(c->segment, x->parent)) return false;
        if (s >= c->segment[x->parent].end || x->end > c->segment[x->parent].end) return false;
    }
    if (!c->n_segments) return false;
    const struct rw_segment *const step = &c->segment[0];
    return step->end == c->n_segments && !step->parent && !step->depth && !step->jump;
}

static bool fate_is_valid(const struct rw_choice *c, const struct rw_problem *p, uint32_t v)
{
    const struct rw_tape *const t = p->t;
    const struct rw_fate *const f = &c->fate[v];
    const struct rw_node *const node = &t->nodes[rw_tape_value(t, v)->producer];
    const bool once = t->ctx->ops[node->op]->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC);
    if ((once || node->adjoint || p->wanted[v]) && rw_fate_drops(f)) return false;
    if (f->level) return f->what == RW_KEEP || f->what == RW_KEEP_FIRST;
    return f->what == RW_KEEP || f->what == RW_REPLAY || f->what == RW_MOVE;
}

static bool node_is_valid(const struct rw_choice *c, const struct rw_tape *t, size_t n)
{
    const struct rw_node *const node = &t->nodes[n];
    const bool follows = node->adjoint && node->of != RW_NONE_ID;
    return c->segment_of[n] < c->n_segments && (!follows || c->segment_of[n] == c->segment_of[node->of]);
}

bool rw_choice_is_valid(const struct rw_choice *c, const struct rw_problem *p)
{
    if (!tree_is_valid(c)) return false;
    for (size_t n = 0; n < p->t->n_nodes; n++)
        if (!node_is_valid(c, p->t, n)) return false;
    for (uint32_t v = 0; v < p->t->n_values; v++)
        if (rw_problem_makes(p, v) && !fate_is_valid(c, p, v)) return false;
    return true;
}
