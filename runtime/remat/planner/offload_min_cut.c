/* Minimum cuts at two prices: of a kept and of an offloaded byte. offload_min_cut.h has the method. */
#include "remat/planner/offload_min_cut.h"

#include "base/alloc.h"
#include "remat/planner/min_cut.h"

#include <string.h>

/* Maximum number of prices of a byte, and number of lengths of the first part. */
#define PRICES_MAX 8
#define PARTS 8

bool rw_value_may_move(const struct rw_replayable *g, uint32_t v)
{
    return !(g->flags[v] & (RW_IS_FREE | RW_STAYS));
}

struct moved_cuts {
    struct rw_candidates *c;
    const struct rw_replayable *g;
    struct rw_min_cut closure;
    struct rw_cut cut;
    uint8_t *need;
    double *factor;      /* by value: its price divided by l */
    bool *late;          /* by value: backward or a replay reads it */
    uint32_t end[PARTS]; /* places where the first parts end */
    double price[PRICES_MAX]; /* increasing */
    size_t n_prices;
};

/* Cuts forward into parts with equal bytes of the values that backward reads and that may be offloaded. */
static void find_parts(struct moved_cuts *m)
{
    const struct rw_replayable *const g = m->g;
    double all = 0, computed = 0;
    size_t n = 0;
    for (uint32_t v = 0; v < g->n_values; v++)
        if (g->late[v] && rw_value_may_move(g, v)) all += (double)g->bytes[v];
    for (uint32_t v = 0; v < g->n_values; v++) {
        if (!g->late[v] || !rw_value_may_move(g, v)) continue;
        computed += (double)g->bytes[v];
        while (n < PARTS && computed * PARTS >= all * (double)(n + 1)) m->end[n++] = g->producer[v] + 1;
    }
    while (n < PARTS) m->end[n++] = (uint32_t)g->n_nodes;
}

/* Chooses prices at which the cut without offload changes, evenly among all of them. */
static rw_status find_prices(struct moved_cuts *m, size_t most)
{
    struct rw_hull h;
    const rw_status status = rw_min_cut_hull(&m->closure, m->need, 4 * PRICES_MAX, &h);
    if (status) return status;
    const size_t n = h.n < 2 ? 0 : h.n - 1, take = n < most ? n : most;
    for (size_t k = 1; k <= take; k++) {
        const struct rw_cut *const a = &h.cut[k * n / take - 1], *const b = a + 1;
        m->price[m->n_prices++] = (b->seconds - a->seconds) / (a->kept - b->kept) * (1 + 1e-6);
    }
    rw_hull_finish(&h);
    return RW_OK;
}

static void set_factors(struct moved_cuts *m, double factor, uint32_t end)
{
    const struct rw_replayable *const g = m->g;
    for (uint32_t v = 0; v < g->n_values; v++)
        m->factor[v] = g->producer[v] < end && rw_value_may_move(g, v) ? factor : 1;
}

static void find_late(struct moved_cuts *m)
{
    const struct rw_replayable *const g = m->g;
    for (uint32_t v = 0; v < g->n_values; v++) m->late[v] = g->late[v] != 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = g->input_at[i]; m->cut.replayed[i] && k < g->input_at[i + 1]; k++)
            m->late[g->input[k]] = true;
}

/* Adds the choice of the last cut: values of the first part that are not replayed are offloaded. Omits a choice that
   equals the candidate before. */
static rw_status add_choice(struct moved_cuts *m, uint32_t end)
{
    const struct rw_replayable *const g = m->g;
    struct rw_compact_choice r;
    rw_status status = rw_compact_choice_init(&r, g);
    if (status) return status;
    find_late(m);
    for (uint32_t v = 0; v < g->n_values; v++) {
        if (m->cut.replayed[g->producer[v]] && rw_value_may_drop(g, v)) r.drop[v] = RW_DROP_ONCE;
        else if (g->producer[v] < end && m->late[v] && rw_value_may_move(g, v)) r.drop[v] = RW_DROP_MOVED;
    }
    const struct rw_compact_choice *const last = m->c->n ? &m->c->candidate[m->c->n - 1].compact : NULL;
    const bool is_same = last && last->drop && !last->n_stretches && !memcmp(last->drop, r.drop, g->n_values);
    if (!is_same) return rw_candidates_add(m->c, r);
    rw_compact_choice_finish(&r);
    return RW_OK;
}

/* Adds the cuts at price l of a kept byte and l * factor of an offloaded one, for all lengths of the first part. */
static rw_status try_prices(struct moved_cuts *m, double price, double factor)
{
    rw_status status = RW_OK;
    m->closure.factor = m->factor;
    for (size_t k = 0; !status && k < PARTS; k++) {
        set_factors(m, factor, m->end[k]);
        rw_min_cut_solve(&m->closure, m->need, price, &m->cut);
        status = add_choice(m, m->end[k]);
    }
    m->closure.factor = NULL;
    return status;
}

/* The number of prices whose pairs are at most `most` candidates. Each price is paired with itself, every lower one and
   0. */
static size_t prices_for(size_t most)
{
    size_t n = 1;
    while (n < PRICES_MAX && (n + 1) * (n + 4) / 2 * PARTS <= most) n++;
    return n;
}

static rw_status try_all(struct moved_cuts *m, size_t most)
{
    for (uint32_t v = 0; v < m->g->n_values; v++) m->need[v] = m->g->late[v] ? RW_NEED_LATER : RW_NEED_NOT;
    find_parts(m);
    rw_status status = find_prices(m, prices_for(most));
    for (size_t i = 0; !status && i < m->n_prices; i++) {
        status = try_prices(m, m->price[i], 0);
        for (size_t k = 0; !status && k <= i; k++) status = try_prices(m, m->price[i], m->price[k] / m->price[i]);
    }
    return status ? status : rw_candidates_simulate(m->c);
}

rw_status rw_propose_moved_cuts(struct rw_candidates *c, size_t most)
{
    const struct rw_replayable *const g = &c->graph;
    struct moved_cuts m = { .c = c, .g = g };
    if (!g->n_nodes) return RW_OK;
    m.need = rw_malloc(g->n_values * sizeof *m.need);
    m.factor = rw_malloc(g->n_values * sizeof *m.factor);
    m.late = rw_malloc(g->n_values * sizeof *m.late);
    m.cut.replayed = rw_malloc(g->n_nodes * sizeof *m.cut.replayed);
    rw_status status = m.need && m.factor && m.late && m.cut.replayed ? rw_min_cut_init(&m.closure, g) : RW_ERR_MEMORY;
    if (!status) status = try_all(&m, most);
    rw_min_cut_finish(&m.closure);
    rw_free(m.need);
    rw_free(m.factor);
    rw_free(m.late);
    rw_free(m.cut.replayed);
    return status;
}
