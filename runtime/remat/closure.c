/* See closure.h. */
#include "remat/closure.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

/* Capacities: as fine as integers allow whose sum has room in 64 bits. */
#define CAPACITY 1e18

static uint32_t q_of(uint32_t place)
{
    return 2 + place;
}

static uint32_t p_of(const struct rw_closure *c, uint32_t value)
{
    return 2 + (uint32_t)c->g->n_nodes + value;
}

static rw_status ask_for(struct rw_closure *c, uint32_t place, uint32_t value)
{
    uint32_t e;
    if (c->g->flags[value] & RW_IS_FREE) return RW_OK;
    const rw_status status = rw_flow_add(&c->flow, q_of(place), p_of(c, value), &e);
    if (!status) rw_flow_set(&c->flow, e, RW_FLOW_UNLIMITED);
    return status;
}

static rw_status add_edges(struct rw_closure *c)
{
    const struct rw_replayable *const g = c->g;
    rw_status status = RW_OK;
    for (uint32_t i = 0; !status && i < g->n_nodes; i++) {
        status = rw_flow_add(&c->flow, 0, q_of(i), &c->gain[i]);
        for (uint32_t k = g->input_at[i]; !status && k < g->input_at[i + 1]; k++) status = ask_for(c, i, g->input[k]);
        for (uint32_t v = g->output_at[i]; !status && v < g->output_at[i + 1]; v++) status = ask_for(c, i, v);
    }
    for (uint32_t v = 0; !status && v < g->n_values; v++) status = rw_flow_add(&c->flow, p_of(c, v), 1, &c->price[v]);
    return status;
}

rw_status rw_closure_init(struct rw_closure *c, const struct rw_replayable *g)
{
    *c = (struct rw_closure){ .g = g,
                              .gain = rw_malloc(g->n_nodes * sizeof *c->gain),
                              .price = rw_malloc(g->n_values * sizeof *c->price) };
    rw_status status = c->gain && c->price ? rw_flow_init(&c->flow, 2 + g->n_nodes + g->n_values) : RW_ERR_MEMORY;
    if (!status) status = add_edges(c);
    if (status) rw_closure_finish(c);
    return status;
}

void rw_closure_finish(struct rw_closure *c)
{
    rw_flow_finish(&c->flow);
    rw_free(c->gain);
    rw_free(c->price);
    *c = (struct rw_closure){ 0 };
}

/* Bytes that a replay of the node saves keeping. */
static double saved_bytes(const struct rw_replayable *g, const uint8_t *need, uint32_t place)
{
    double bytes = 0;
    for (uint32_t v = g->output_at[place]; v < g->output_at[place + 1]; v++)
        if (rw_value_may_drop(g, v) && need[v] != RW_NEED_THERE) bytes += (double)g->bytes[v];
    return bytes;
}

static void set_capacities(struct rw_closure *c, const uint8_t *need, double price)
{
    const struct rw_replayable *const g = c->g;
    double sum = 0;
    for (size_t i = 0; i < g->n_nodes; i++) sum += g->seconds[i];
    for (size_t v = 0; v < g->n_values; v++) sum += price * (double)g->bytes[v];
    const double scale = sum > 0 ? CAPACITY / sum : 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const double gain = price * saved_bytes(g, need, i) - g->seconds[i];
        rw_flow_set(&c->flow, c->gain[i], gain > 0 ? (int64_t)(gain * scale) : 0);
        for (uint32_t e = c->flow.first[q_of(i)]; e != UINT32_MAX; e = c->flow.edge[e].next)
            if (!(e & 1)) rw_flow_set(&c->flow, e, RW_FLOW_UNLIMITED);
    }
    for (uint32_t v = 0; v < g->n_values; v++) {
        const bool is_paid = need[v] || (g->flags[v] & RW_IS_FREE);
        rw_flow_set(&c->flow, c->price[v], is_paid ? 0 : (int64_t)(price * (double)g->bytes[v] * scale));
    }
}

void rw_closure_solve(struct rw_closure *c, const uint8_t *need, double price, struct rw_cut *cut)
{
    const struct rw_replayable *const g = c->g;
    set_capacities(c, need, price);
    rw_flow_run(&c->flow);
    cut->kept = cut->seconds = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        cut->replayed[i] = c->flow.level[q_of(i)] != UINT32_MAX;
        if (cut->replayed[i]) cut->seconds += g->seconds[i];
    }
    for (uint32_t v = 0; v < g->n_values; v++) {
        if (need[v] == RW_NEED_THERE || (g->flags[v] & RW_IS_FREE)) continue;
        const bool has = need[v] || c->flow.level[p_of(c, v)] != UINT32_MAX;
        const bool made = cut->replayed[g->maker[v]] && rw_value_may_drop(g, v);
        if (has && !made) cut->kept += (double)g->bytes[v];
    }
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

static rw_status solve_into(struct rw_closure *c, const uint8_t *need, double price, struct rw_hull *h, size_t at)
{
    struct rw_cut cut = { .replayed = rw_malloc(c->g->n_nodes * sizeof *cut.replayed) };
    if (!cut.replayed) return RW_ERR_MEMORY;
    rw_closure_solve(c, need, price, &cut);
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

/* Does x lie between a and b, and below the line through them? */
static bool is_below(const struct rw_cut *a, const struct rw_cut *x, const struct rw_cut *b)
{
    if (x->kept >= a->kept || x->kept <= b->kept) return false;
    const double line = a->seconds + (b->seconds - a->seconds) * (a->kept - x->kept) / (a->kept - b->kept);
    return x->seconds < line * (1 - 1e-9);
}

/* The widest gap in bytes between neighbours behind which something may lie; h->n for none. done: by cut, the gap
   behind it has been looked into. */
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

double rw_closure_highest_price(const struct rw_closure *c)
{
    const struct rw_replayable *const g = c->g;
    double sum = 0, least = INFINITY;
    for (size_t i = 0; i < g->n_nodes; i++) sum += g->seconds[i];
    for (size_t v = 0; v < g->n_values; v++)
        if (g->bytes[v] && (double)g->bytes[v] < least) least = (double)g->bytes[v];
    return sum / least;
}

static rw_status find_hull(struct rw_closure *c, const uint8_t *need, size_t most, struct rw_hull *h, bool *done)
{
    rw_status status = solve_into(c, need, 0, h, 0);
    if (!status) status = solve_into(c, need, rw_closure_highest_price(c), h, 1);
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

rw_status rw_closure_hull(struct rw_closure *c, const uint8_t *need, size_t most, struct rw_hull *h)
{
    *h = (struct rw_hull){ 0 };
    bool *const done = rw_calloc(most + 2, sizeof *done);
    const rw_status status = done ? find_hull(c, need, most, h, done) : RW_ERR_MEMORY;
    rw_free(done);
    if (status) rw_hull_finish(h);
    return status;
}
