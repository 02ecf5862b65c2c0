/*
 * Order and bytes of parts with budgets. The order of a part comes from the hull of minimum cuts over its own values.
 */
#include "remat/planner/parts_with_budgets.h"

#include "base/alloc.h"

#include <string.h>

static bool has_budget(const struct rw_tape_part *part)
{
    return part->policy.kind == RW_POLICY_BUDGET;
}

bool rw_has_part_budgets(const rw_tape *t, const struct rw_policy *policy)
{
    for (size_t i = 0; !policy->whole && i < t->n_parts; i++)
        if (has_budget(&t->parts[i])) return true;
    return false;
}

/* ---- ownership ---- */

/* Parts with budgets do not nest, so a recorded node belongs to at most one. An adjoint node belongs to the part of the
   node that it differentiates, which comes before it. */
static void find_owners(struct rw_parts *x)
{
    const rw_tape *const t = x->p->t;
    for (uint32_t n = 0; n < t->n_nodes; n++) x->part_of[n] = RW_NONE_ID;
    for (uint32_t i = 0; i < t->n_parts; i++) {
        if (!has_budget(&t->parts[i])) continue;
        for (uint32_t n = t->parts[i].first; n < t->parts[i].end && n < t->n_nodes; n++)
            if (!t->nodes[n].adjoint) x->part_of[n] = i;
    }
    for (uint32_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        if (node->adjoint && node->of != RW_NONE_ID) x->part_of[n] = x->part_of[node->of];
    }
}

/* Does a region inside of the part belong to a part inside of it? Then that part decides. */
static bool is_decided_inside(const rw_tape *t, uint32_t region, uint32_t part)
{
    uint32_t at = region == RW_NONE_ID ? RW_NONE_ID : t->regions[region].part;
    if (at == part) return false;
    while (at != RW_NONE_ID && at != part) at = t->parts[at].parent;
    return at == part;
}

/* Do the policies re-execute the node? */
static bool is_replayed(const struct rw_parts *x, const struct rw_choice *base, uint32_t n)
{
    const struct rw_node *const node = &x->p->t->nodes[n];
    bool again = base->segment_of[n];
    for (uint32_t i = 0; i < node->n_outputs; i++) again |= rw_fate_drops(&base->fate[node->first_output + i]);
    return again;
}

struct order_scratch {
    uint8_t *flags, *need; /* by value */
    bool *outside;         /* by value: a node outside of its part reads it that may be re-executed */
    bool *again;           /* by value: whatever the budgets are, backward or a replay reads it */
    bool *has;             /* by place */
};

/* Finds which values replays read that a budget of another part, or no budget, decides about. */
static void find_readers(const struct rw_parts *x, const struct rw_choice *base, struct order_scratch *s)
{
    const struct rw_replayable *const g = &x->graph;
    for (uint32_t v = 0; v < g->n_values; v++) s->again[v] = g->late[v];
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const uint32_t n = g->node[i];
        const bool again = is_replayed(x, base, n);
        for (uint32_t k = g->input_at[i]; k < g->input_at[i + 1]; k++) {
            const uint32_t v = g->input[k];
            const bool crosses = x->part_of[g->node[g->producer[v]]] != x->part_of[n];
            s->again[v] |= again;
            s->outside[v] |= crosses && (again || x->part_of[n] != RW_NONE_ID);
        }
    }
}

/* Finds the values that their part decides about. */
static void find_decided(struct rw_parts *x, const struct rw_choice *base, const bool *outside)
{
    const struct rw_replayable *const g = &x->graph;
    const rw_tape *const t = x->p->t;
    for (uint32_t v = 0; v < g->n_values; v++) {
        const uint32_t n = g->node[g->producer[v]], part = x->part_of[n];
        const struct rw_fate *const fate = &base->fate[g->value[v]];
        x->decides[v] = part != RW_NONE_ID && !base->segment_of[n] && fate->why == RW_WHY_OUTSIDE &&
                        fate->what == RW_KEEP && rw_value_may_drop(g, v) && !outside[v] &&
                        !is_decided_inside(t, rw_node_region(t, &t->nodes[n]), part);
    }
}

/* ---- order ---- */

/* Only values of the part that it decides about may be dropped. */
static void set_flags(const struct rw_parts *x, struct rw_part_order *o, struct order_scratch *s)
{
    const struct rw_replayable *const g = &x->graph;
    for (uint32_t v = 0; v < g->n_values; v++) {
        const bool own = x->part_of[g->node[g->producer[v]]] == o->part;
        const bool is_free = g->flags[v] & RW_IS_FREE;
        s->flags[v] = (uint8_t)(g->flags[v] | (own && x->decides[v] ? 0 : RW_IS_FIXED));
        if (own && s->outside[v] && !g->late[v] && !is_free) o->beside += g->bytes[v];
    }
}

/*
 * Sets the needs: only values of the part are needed. A replay may read any other one. If that read alone keeps the
 * value, and `priced`, its bytes count like those of the part. Returns whether there is such a value.
 */
static bool set_needs(const struct rw_parts *x, const struct rw_part_order *o, bool priced, struct order_scratch *s)
{
    const struct rw_replayable *const g = &x->graph;
    bool some = false;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const bool own = x->part_of[g->node[i]] == o->part;
        for (uint32_t v = g->output_at[i]; v < g->output_at[i + 1]; v++)
            s->need[v] = own ? g->late[v] || s->outside[v] ? RW_NEED_LATER : RW_NEED_NOT
                             : priced && !s->again[v] ? RW_NEED_NOT : RW_NEED_THERE;
        for (uint32_t k = g->input_at[i]; own && k < g->input_at[i + 1]; k++) {
            const uint32_t v = g->input[k];
            some |= x->part_of[g->node[g->producer[v]]] != o->part && !s->again[v] && !(g->flags[v] & RW_IS_FREE);
        }
    }
    return some;
}

static bool drops_something(const struct rw_parts *x, uint32_t place)
{
    for (uint32_t v = x->graph.output_at[place]; v < x->graph.output_at[place + 1]; v++)
        if (x->decides[v]) return true;
    return false;
}

static void append_cut(struct rw_parts *x, struct rw_part_order *o, const struct rw_cut *cut, bool *has)
{
    for (uint32_t i = 0; i < x->graph.n_nodes; i++) {
        if (has[i] || !cut->replayed[i] || x->part_of[x->graph.node[i]] != o->part || !drops_something(x, i)) continue;
        has[i] = true;
        x->place[x->n_places++] = i;
        o->n++;
    }
}

/* Appends the places that each cut of the hull replays and the one before does not. */
static rw_status append_hull(struct rw_parts *x, struct rw_part_order *o, struct rw_min_cut *closure, size_t most_cuts,
                             struct order_scratch *s)
{
    struct rw_hull hull;
    const rw_status status = rw_min_cut_hull(closure, s->need, most_cuts, &hull);
    if (status) return status;
    for (size_t i = 0; i < hull.n; i++) append_cut(x, o, &hull.cut[i], s->has);
    rw_hull_finish(&hull);
    return RW_OK;
}

/* First the places whose replays pay for the values of others that they alone keep, then the rest. */
static rw_status find_order(struct rw_parts *x, struct rw_part_order *o, size_t most_cuts, struct order_scratch *s)
{
    struct rw_replayable seen = x->graph; /* the same graph, with its own flags */
    struct rw_min_cut closure;
    o->first = x->n_places;
    set_flags(x, o, s);
    seen.flags = s->flags;
    rw_status status = rw_min_cut_init(&closure, &seen);
    if (status) return status;
    if (set_needs(x, o, true, s)) status = append_hull(x, o, &closure, most_cuts, s);
    set_needs(x, o, false, s);
    if (!status) status = append_hull(x, o, &closure, most_cuts, s);
    rw_min_cut_finish(&closure);
    return status;
}

static bool reserve_order(const struct rw_replayable *g, struct order_scratch *s)
{
    *s = (struct order_scratch){ .flags = rw_malloc(g->n_values), .need = rw_malloc(g->n_values),
                                 .outside = rw_calloc(g->n_values, sizeof *s->outside),
                                 .again = rw_calloc(g->n_values, sizeof *s->again),
                                 .has = rw_calloc(g->n_nodes, sizeof *s->has) };
    return s->flags && s->need && s->outside && s->again && s->has;
}

/* Finds the values that parts decide about, and the order of each part with a budget. */
static rw_status find_orders(struct rw_parts *x, const struct rw_choice *base, size_t most_cuts)
{
    struct order_scratch s;
    rw_status status = reserve_order(&x->graph, &s) ? RW_OK : RW_ERR_MEMORY;
    if (!status) {
        find_readers(x, base, &s);
        find_decided(x, base, s.outside);
    }
    for (uint32_t i = 0; !status && i < x->p->t->n_parts; i++) {
        if (!has_budget(&x->p->t->parts[i])) continue;
        x->order[x->n] = (struct rw_part_order){ .part = i };
        status = find_order(x, &x->order[x->n++], most_cuts, &s);
    }
    rw_free(s.flags);
    rw_free(s.need);
    rw_free(s.outside);
    rw_free(s.again);
    rw_free(s.has);
    return status;
}

/* Builds the graph, and the orders of all parts. */
rw_status rw_parts_init(struct rw_parts *x, const struct rw_problem *p, const struct rw_choice *base, size_t most_cuts)
{
    *x = (struct rw_parts){ .p = p };
    rw_status status = rw_replayable_init(&x->graph, p);
    if (status) return status;
    x->part_of = rw_malloc(p->t->n_nodes * sizeof *x->part_of);
    x->decides = rw_calloc(x->graph.n_values, sizeof *x->decides);
    x->place = rw_malloc(x->graph.n_nodes * sizeof *x->place);
    x->order = rw_malloc(p->t->n_parts * sizeof *x->order);
    status = x->part_of && x->decides && x->place && x->order ? RW_OK : RW_ERR_MEMORY;
    if (!status) {
        find_owners(x);
        status = find_orders(x, base, most_cuts);
    }
    if (status) rw_parts_finish(x);
    return status;
}

void rw_parts_finish(struct rw_parts *x)
{
    void *const arrays[] = { x->part_of, x->decides, x->place, x->order, x->life, x->holder, x->keep, x->delta };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) rw_free(arrays[i]);
    rw_replayable_finish(&x->graph);
    *x = (struct rw_parts){ 0 };
}

/* Resets the values that the part decides about, and drops those of the first places of its order. */
void rw_parts_choose(const struct rw_parts *x, const struct rw_part_order *o, size_t n_dropped, struct rw_choice *c)
{
    const struct rw_replayable *const g = &x->graph;
    for (uint32_t v = 0; v < g->n_values; v++)
        if (x->decides[v] && x->part_of[g->node[g->producer[v]]] == o->part)
            c->fate[g->value[v]] = (struct rw_fate){ .what = RW_KEEP, .why = RW_WHY_BUDGET };
    for (size_t i = 0; i < n_dropped; i++) {
        const uint32_t place = x->place[o->first + i];
        for (uint32_t v = g->output_at[place]; v < g->output_at[place + 1]; v++)
            if (x->decides[v]) c->fate[g->value[v]].what = RW_REPLAY;
    }
}

/* ---- bytes ---- */

/*
 * The part of a buffer: that of its producer. A workspace belongs to the node that runs, or to the node whose value a
 * recompute node computes.
 */
static uint32_t owner_of(const struct rw_parts *x, const struct rw_schedule *s, const struct rw_buffer *b)
{
    const rw_tape *const t = x->p->t;
    uint32_t value = b->value;
    if (value == RW_NONE_ID) {
        const struct rw_action *const a = &s->actions[b->first];
        const struct rw_node *const node = &t->nodes[a->node];
        if (!node->n_outputs) return x->part_of[a->node];
        value = s->buffers[s->refs[a->word + node->n_inputs]].value;
    }
    const uint32_t producer = value == RW_NONE_ID ? RW_NONE_ID : rw_tape_value(t, value)->producer;
    return producer == RW_NONE_ID ? RW_NONE_ID : x->part_of[producer];
}

static void begin_life(struct rw_parts *x, const struct rw_schedule *s, uint32_t buffer, uint32_t part)
{
    const struct rw_buffer *const b = &s->buffers[buffer];
    const uint32_t root = rw_buffer_root(s, buffer);
    x->holder[root] = buffer;
    x->life[buffer] = (struct rw_lifetime){ .first = b->first, .last = s->buffers[root].last, .bytes = b->bytes };
    x->keep[buffer] = s->buffers[root].source == RW_NONE_ID && owner_of(x, s, b) == part;
}

/* Lists the lifetimes. Each of several values that share memory holds it until the next one reuses it: first the owner,
   then the others in the order of their numbers (live_set.h). */
static void list_lives(struct rw_parts *x, const struct rw_schedule *s, uint32_t part)
{
    for (uint32_t i = 0; i < s->n_buffers; i++)
        if (s->buffers[i].merged == i) begin_life(x, s, i, part);
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        if (s->buffers[i].merged == i) continue;
        x->life[x->holder[rw_buffer_root(s, i)]].last = s->buffers[i].first - 1;
        begin_life(x, s, i, part);
    }
}

rw_status rw_parts_count(struct rw_parts *x, const struct rw_schedule *s, const struct rw_part_order *o,
                         uint64_t *ret_bytes)
{
    if (!rw_grow(&x->life, &x->cap_life, 0, s->n_buffers, sizeof *x->life) ||
        !rw_grow(&x->holder, &x->cap_holder, 0, s->n_buffers, sizeof *x->holder) ||
        !rw_grow(&x->keep, &x->cap_keep, 0, s->n_buffers, sizeof *x->keep) ||
        !rw_grow(&x->delta, &x->cap_delta, 0, s->n_actions + 1, sizeof *x->delta))
        return RW_ERR_MEMORY;
    list_lives(x, s, o->part);
    *ret_bytes = rw_lifetimes_sweep(x->life, x->keep, s->n_buffers, x->p->t->ctx->device->alignment, x->delta,
                                    s->n_actions).bytes;
    return RW_OK;
}
