/*
 * Minimum cut and lower hull of min_cut.h. The network has node 2 + place for q of each graph node, and then one node
 * for p of each value. Source: Picard (1976) and Eisner and Severance (1976), cited there.
 */
#include "remat/planner/min_cut.h"

#include "base/alloc.h"

#include <string.h>

/* Capacities are scaled to this sum: as fine as integers allow without overflow of 64 bits. */
#define CAPACITY 1e18

static uint32_t q_of(uint32_t place)
{
    return 2 + place;
}

static uint32_t p_of(const struct rw_min_cut *c, uint32_t value)
{
    return 2 + (uint32_t)c->g->n_nodes + value;
}

static rw_status require(struct rw_min_cut *c, uint32_t place, uint32_t value)
{
    uint32_t e;
    return c->g->flags[value] & RW_IS_FREE ? RW_OK : rw_max_flow_add(&c->flow, q_of(place), p_of(c, value), &e);
}

/* Adds all edges without capacities. prepare() sets those of the places that a cut decides. */
static rw_status add_edges(struct rw_min_cut *c)
{
    const struct rw_replayable *const g = c->g;
    rw_status status = RW_OK;
    for (uint32_t i = 0; !status && i < g->n_nodes; i++) {
        status = rw_max_flow_add(&c->flow, 0, q_of(i), &c->gain[i]);
        for (uint32_t k = g->input_at[i]; !status && k < g->input_at[i + 1]; k++) status = require(c, i, g->input[k]);
        for (uint32_t v = g->output_at[i]; !status && v < g->output_at[i + 1]; v++)
            if (rw_value_may_drop(g, v)) status = require(c, i, v);
    }
    for (uint32_t v = 0; !status && v < g->n_values; v++) status = rw_max_flow_add(&c->flow, p_of(c, v), 1,
                                                                                   &c->price[v]);
    return status;
}

rw_status rw_min_cut_init(struct rw_min_cut *c, const struct rw_replayable *g)
{
    *c = (struct rw_min_cut){ .g = g,
                              .gain = rw_malloc(g->n_nodes * sizeof *c->gain),
                              .price = rw_malloc(g->n_values * sizeof *c->price),
                              .place = rw_malloc(g->n_nodes * sizeof *c->place),
                              .state = rw_malloc(g->n_values * sizeof *c->state) };
    const bool has_all = c->gain && c->price && c->place && c->state;
    rw_status status = has_all ? rw_max_flow_init(&c->flow, 2 + g->n_nodes + g->n_values) : RW_ERR_MEMORY;
    if (!status) status = add_edges(c);
    if (status) rw_min_cut_finish(c);
    return status;
}

void rw_min_cut_finish(struct rw_min_cut *c)
{
    rw_max_flow_finish(&c->flow);
    rw_free(c->gain);
    rw_free(c->price);
    rw_free(c->place);
    rw_free(c->state);
    *c = (struct rw_min_cut){ 0 };
}

/* Bytes of a value that its price counts. */
static double priced_bytes(const struct rw_min_cut *c, uint32_t v)
{
    return c->factor ? c->factor[v] * (double)c->g->bytes[v] : (double)c->g->bytes[v];
}

/* The same of values that are not kept if the node is replayed. */
static double saved_bytes(const struct rw_min_cut *c, const uint8_t *need, uint32_t place)
{
    const struct rw_replayable *const g = c->g;
    double bytes = 0;
    for (uint32_t v = g->output_at[place]; v < g->output_at[place + 1]; v++)
        if (rw_value_may_drop(g, v) && need[v] != RW_NEED_THERE) bytes += priced_bytes(c, v);
    return bytes;
}

/* Flags of a value: a place that is replayed at the lower price requires it; it is in the network. */
enum { IS_REQUIRED = 1, IS_USED = 2 };

/* The end of the places that can be replayed: no place from it on computes a value that is needed later. */
static size_t find_end(const struct rw_replayable *g, const uint8_t *need)
{
    size_t v = g->n_values;
    while (v && need[v - 1] != RW_NEED_LATER) v--;
    return v ? g->producer[v - 1] + 1 : 0;
}

/* The edges of a place are consecutive: that of its gain, then those to the values that it requires. */
static uint32_t edges_end(const struct rw_min_cut *c, uint32_t place)
{
    return place + 1 < c->g->n_nodes ? c->gain[place + 1] : c->g->n_values ? c->price[0] : (uint32_t)c->flow.n_edges;
}

/* Marks the values that a replay of the place requires. */
static void mark_required(struct rw_min_cut *c, uint32_t place)
{
    const struct rw_replayable *const g = c->g;
    for (uint32_t k = g->input_at[place]; k < g->input_at[place + 1]; k++) c->state[g->input[k]] = IS_REQUIRED;
    for (uint32_t v = g->output_at[place]; v < g->output_at[place + 1]; v++)
        if (rw_value_may_drop(g, v)) c->state[v] = IS_REQUIRED;
}

/* Lists the places to decide. Clears the capacities of the places that the last cut decided. */
static void list_places(struct rw_min_cut *c, const uint8_t *need, const bool *less, const bool *more)
{
    const uint32_t end = (uint32_t)find_end(c->g, need);
    for (size_t k = 0; k < c->n_places; k++)
        for (uint32_t e = c->gain[c->place[k]]; e < edges_end(c, c->place[k]); e += 2) rw_max_flow_set(&c->flow, e, 0);
    c->n_places = 0;
    if (c->g->n_values) memset(c->state, 0, c->g->n_values * sizeof *c->state);
    for (uint32_t i = 0; i < end; i++) {
        if (less && less[i]) mark_required(c, i);
        else if (!more || more[i]) c->place[c->n_places++] = i;
    }
}

/* Adds a value to the network once, with its price. */
static void use_value(struct rw_min_cut *c, const uint8_t *need, uint32_t v, double price, double scale)
{
    if (c->state[v] & IS_USED) return;
    const bool is_paid = need[v] || c->state[v] & IS_REQUIRED;
    rw_max_flow_set(&c->flow, c->price[v], is_paid ? 0 : (int64_t)(price * priced_bytes(c, v) * scale));
    c->flow.used[c->flow.n_used++] = p_of(c, v);
    c->state[v] |= IS_USED;
}

/* Adds a place to the network, with its gain and the values that it requires. Links the source's edge to it, so that
   the source has edges to the places to decide only. */
static void use_place(struct rw_min_cut *c, const uint8_t *need, uint32_t i, double price, double scale)
{
    const struct rw_replayable *const g = c->g;
    struct rw_max_flow *const f = &c->flow;
    const double gain = price * saved_bytes(c, need, i) - g->again[i];
    rw_max_flow_set(f, c->gain[i], gain > 0 ? (int64_t)(gain * scale) : 0);
    f->edge[c->gain[i]].next = f->first[0];
    f->first[0] = c->gain[i];
    f->used[f->n_used++] = q_of(i);
    for (uint32_t e = c->gain[i] + 2; e < edges_end(c, i); e += 2) rw_max_flow_set(f, e, RW_FLOW_UNLIMITED);
    for (uint32_t k = g->input_at[i]; k < g->input_at[i + 1]; k++)
        if (!(g->flags[g->input[k]] & RW_IS_FREE)) use_value(c, need, g->input[k], price, scale);
    for (uint32_t v = g->output_at[i]; v < g->output_at[i + 1]; v++)
        if (rw_value_may_drop(g, v)) use_value(c, need, v, price, scale);
}

/*
 * Sets the network for a price: the places to decide, and their capacities. Seconds and bytes are scaled to integers,
 * so that results do not depend on the machine. Running the flow changes its edges, so each call sets all that it uses.
 */
static void prepare(struct rw_min_cut *c, const uint8_t *need, double price, const bool *less, const bool *more)
{
    const struct rw_replayable *const g = c->g;
    double sum = 0;
    for (size_t i = 0; i < g->n_nodes; i++) sum += g->again[i];
    for (size_t v = 0; v < g->n_values; v++) sum += price * (double)g->bytes[v];
    const double scale = sum > 0 ? CAPACITY / sum : 0;
    list_places(c, need, less, more);
    c->flow.first[0] = UINT32_MAX;
    c->flow.n_used = 0;
    for (size_t k = 0; k < c->n_places; k++) use_place(c, need, c->place[k], price, scale);
}

/* Nodes on the source's side of the minimum cut are replayed, values on it are available. */
void rw_min_cut_solve_between(struct rw_min_cut *c, const uint8_t *need, double price, const bool *less,
                              const bool *more, struct rw_cut *cut)
{
    const struct rw_replayable *const g = c->g;
    const uint32_t *const level = c->flow.level;
    prepare(c, need, price, less, more);
    rw_max_flow_run(&c->flow);
    for (uint32_t i = 0; i < g->n_nodes; i++) cut->replayed[i] = less && less[i];
    for (size_t k = 0; k < c->n_places; k++) cut->replayed[c->place[k]] = level[q_of(c->place[k])] != UINT32_MAX;
    cut->kept = cut->seconds = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (cut->replayed[i]) cut->seconds += g->again[i];
    for (uint32_t v = 0; v < g->n_values; v++) {
        if (need[v] == RW_NEED_THERE || (g->flags[v] & RW_IS_FREE)) continue;
        const bool is_reached = c->state[v] & IS_USED && level[p_of(c, v)] != UINT32_MAX;
        const bool has = need[v] || c->state[v] & IS_REQUIRED || is_reached;
        const bool is_replayed = cut->replayed[g->producer[v]] && rw_value_may_drop(g, v);
        if (has && !is_replayed) cut->kept += (double)g->bytes[v];
    }
}

void rw_min_cut_solve(struct rw_min_cut *c, const uint8_t *need, double price, struct rw_cut *cut)
{
    rw_min_cut_solve_between(c, need, price, NULL, NULL, cut);
}

/* ---- the hull ---- */

static bool insert(struct rw_hull *h, size_t at, struct rw_cut cut)
{
    if (!rw_grow(&h->cut, &h->cap, h->n, 1, sizeof *h->cut)) return false;
    memmove(h->cut + at + 1, h->cut + at, (h->n - at) * sizeof *h->cut);
    h->cut[at] = cut;
    h->n++;
    return true;
}

void rw_hull_finish(struct rw_hull *h)
{
    for (size_t i = 0; i < h->n; i++) rw_free(h->cut[i].replayed);
    rw_free(h->cut);
    *h = (struct rw_hull){ 0 };
}

/* Inserts the cut at a price into the hull. It is between the cuts before and after it. */
static rw_status solve_into(struct rw_min_cut *c, const uint8_t *need, double price, struct rw_hull *h, size_t at)
{
    struct rw_cut cut = { .replayed = rw_malloc(c->g->n_nodes * sizeof *cut.replayed) };
    if (!cut.replayed) return RW_ERR_MEMORY;
    const bool *const less = at ? h->cut[at - 1].replayed : NULL, *const more = at < h->n ? h->cut[at].replayed : NULL;
    rw_min_cut_solve_between(c, need, price, less, more, &cut);
    if (insert(h, at, cut)) return RW_OK;
    rw_free(cut.replayed);
    return RW_ERR_MEMORY;
}

static void remove_cut(struct rw_hull *h, size_t at)
{
    rw_free(h->cut[at].replayed);
    memmove(h->cut + at, h->cut + at + 1, (h->n - at - 1) * sizeof *h->cut);
    h->n--;
}

/* Is x between a and b in kept bytes, and below the line through them? */
static bool is_below(const struct rw_cut *a, const struct rw_cut *x, const struct rw_cut *b)
{
    if (x->kept >= a->kept || x->kept <= b->kept) return false;
    const double line = a->seconds + (b->seconds - a->seconds) * (a->kept - x->kept) / (a->kept - b->kept);
    return x->seconds < line * (1 - 1e-9);
}

/* The widest gap in bytes between two neighbors that may have a cut between them; h->n if there is none. done: by cut,
   the gap after it has been searched. */
static size_t widest_gap(const struct rw_hull *h, const bool *done)
{
    size_t widest = h->n;
    double most = 0;
    for (size_t i = 0; i + 1 < h->n; i++) {
        const double gap = h->cut[i].kept - h->cut[i + 1].kept;
        if (done[i] || gap <= most) continue;
        most = gap;
        widest = i;
    }
    return widest;
}

double rw_min_cut_highest_price(const struct rw_min_cut *c)
{
    const struct rw_replayable *const g = c->g;
    double sum = 0;
    for (size_t i = 0; i < g->n_nodes; i++) sum += g->seconds[i];
    return 2 * sum / (double)g->p->t->ctx->device->alignment; /* sum alone would be a tie */
}

/*
 * Bisects the widest gap until the hull has `most` cuts or no gap can have another cut. Splitting the widest gap first
 * makes a partial hull divide the bytes evenly.
 */
static rw_status find_hull(struct rw_min_cut *c, const uint8_t *need, size_t most, struct rw_hull *h, bool *done)
{
    rw_status status = solve_into(c, need, 0, h, 0);
    if (!status) status = solve_into(c, need, rw_min_cut_highest_price(c), h, 1);
    for (size_t at; !status && h->n < most && (at = widest_gap(h, done)) < h->n;) {
        const struct rw_cut a = h->cut[at], b = h->cut[at + 1];
        const double price = (b.seconds - a.seconds) / (a.kept - b.kept);
        status = solve_into(c, need, price, h, at + 1);
        if (status) break;
        if (is_below(&a, &h->cut[at + 1], &b)) {
            memmove(done + at + 1, done + at, (h->n - at - 1) * sizeof *done);
            done[at + 1] = false;
        } else {
            remove_cut(h, at + 1);
            done[at] = true;
        }
    }
    return status;
}

rw_status rw_min_cut_hull(struct rw_min_cut *c, const uint8_t *need, size_t most, struct rw_hull *h)
{
    *h = (struct rw_hull){ 0 };
    bool *const done = rw_calloc(most + 2, sizeof *done);
    const rw_status status = done ? find_hull(c, need, most, h, done) : RW_ERR_MEMORY;
    rw_free(done);
    if (status) rw_hull_finish(h);
    return status;
}
