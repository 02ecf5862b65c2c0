/*
 * Descents from the peak: lists the values that may leave the peak, accepts the first change that does not raise it,
 * and starts from several compact choices. Source: FastSA (Imanishi et al., 2023), cited in peak_descent.h.
 */
#include "remat/planner/peak_descent.h"

#include "base/alloc.h"
#include "remat/schedule/live_set.h"

#include <stdlib.h>
#include <string.h>

/*
 * Maximum length of a schedule, in multiples of the actions of `none`. Replaying everything for every reader is of no
 * use.
 */
#define LONGEST 8
/* Maximum number of changes that are simulated at one peak. */
#define TRIES 12
/* Descents start from this many of the smallest candidates so far. */
#define SMALLEST 4
/* Maximum number of nodes for changes of single values. On longer tapes whole stages change. */
#define EACH_MAX 256
/* Descents by stages are tried if skip connections hold more than this fraction (1 / 10) of the bytes of `none`. */
#define SKIPPED_PART 10

struct move {
    uint32_t group;
    uint8_t drop;   /* new fate of its values */
    uint64_t bytes; /* of its values at the peak */
};

struct descent {
    struct rw_candidates *c;
    const struct rw_replayable *g;
    uint32_t *group; /* value -> group of values that change together */
    uint32_t n_groups;
    struct rw_compact_choice r; /* the current compact choice */
    uint64_t peak;
    double seconds;
    uint32_t at;     /* the action of the peak */
    size_t left;     /* actions that may still be simulated */
    uint32_t *before, *after; /* by buffer: its last use before the peak, and its first after it */
    bool *there;     /* by buffer: the action of the peak uses it */
    size_t cap_buffers;
    struct move *move; /* by group and kind of change: the possible changes, the largest first */
    size_t n_moves;
};

/* Simulates the compact choice into the caller's scratch. */
static rw_status simulate(struct descent *d, const struct rw_compact_choice *r, struct rw_cost_of_schedule *cost)
{
    struct rw_simulation *const room = d->c->sims.room;
    rw_status status = rw_compact_choice_expand(r, d->g, &room->choice);
    if (status) return status;
    status = rw_simulate_briefly(d->g->p, &room->choice, room, cost);
    d->left -= d->left < room->schedule.n_actions ? d->left : room->schedule.n_actions;
    d->c->n_simulations++;
    return status;
}

/* ---- what can leave the peak ---- */

/* Finds the uses of each buffer next to the peak. */
static rw_status find_uses(struct descent *d)
{
    const struct rw_schedule *const s = &d->c->sims.room->schedule;
    size_t cap_after = d->cap_buffers, cap_there = d->cap_buffers;
    if (!rw_grow(&d->after, &cap_after, 0, s->n_buffers, sizeof *d->after) ||
        !rw_grow(&d->there, &cap_there, 0, s->n_buffers, sizeof *d->there) ||
        !rw_grow(&d->before, &d->cap_buffers, 0, s->n_buffers, sizeof *d->before))
        return RW_ERR_MEMORY;
    for (size_t b = 0; b < s->n_buffers; b++) {
        d->before[b] = d->after[b] = RW_NONE_ID;
        d->there[b] = false;
    }
    for (uint32_t i = 0; i < s->n_actions; i++)
        for (uint32_t k = 0; k < s->actions[i].n_words; k++) {
            const uint32_t b = s->refs[s->actions[i].word + k];
            if (i < d->at) d->before[b] = i;
            else if (i == d->at) d->there[b] = true;
            else if (d->after[b] == RW_NONE_ID) d->after[b] = i;
        }
    return RW_OK;
}

static void add_move(struct descent *d, uint32_t v, uint8_t drop)
{
    struct move *const m = &d->move[2 * d->group[v] + (drop == RW_DROP_NOT)];
    m->group = d->group[v];
    m->bytes += d->g->bytes[v];
    if (rw_drop_rank(drop) > rw_drop_rank(m->drop)) m->drop = drop; /* the whole group takes the strongest fate */
}

static int larger_first(const void *pa, const void *pb)
{
    const struct move *const a = pa, *const b = pb;
    if (a->bytes != b->bytes) return a->bytes > b->bytes ? -1 : 1;
    if (a->drop != b->drop) return a->drop > b->drop ? -1 : 1;
    return a->group < b->group ? -1 : a->group > b->group;
}

/* Lists the changes at the peak. A value that the peak's action does not use, but an earlier and a later one do, is
   dropped in between: for the whole step if only forward has read it so far, else after the first visit that reads it,
   or in each. A value that a replay has computed there is kept. */
static rw_status list_moves(struct descent *d)
{
    const struct rw_schedule *const s = &d->c->sims.room->schedule;
    const rw_status status = find_uses(d);
    if (status) return status;
    memset(d->move, 0, 2 * d->n_groups * sizeof *d->move);
    for (uint32_t b = 0; b < s->n_buffers; b++) {
        const struct rw_buffer *const x = &s->buffers[b];
        const uint32_t v = x->value == RW_NONE_ID ? RW_NONE_ID : d->g->value_of[x->value];
        if (v == RW_NONE_ID || x->source != RW_NONE_ID || !rw_value_may_drop(d->g, v)) continue;
        const uint8_t is = d->r.drop[v];
        const bool is_live = d->there[b] || (d->before[b] != RW_NONE_ID && d->after[b] != RW_NONE_ID);
        if (is_live && x->replay && is != RW_DROP_NOT) add_move(d, v, RW_DROP_NOT);
        if (!is_live || d->there[b]) continue;
        const bool is_early = d->before[b] < s->n_forward;
        const uint8_t most = d->r.n_stretches ? RW_DROP_AT : RW_DROP_ONCE;
        const bool is_kept = is == RW_DROP_NOT && !x->replay;
        const uint8_t next = is_early ? RW_DROP_ONCE : most == RW_DROP_AT ? RW_DROP_AFTER_FIRST : most;
        if (rw_drop_rank(is) < rw_drop_rank(most)) add_move(d, v, is_kept ? next : most);
    }
    size_t n = 0;
    for (size_t i = 0; i < 2 * d->n_groups; i++)
        if (d->move[i].bytes) d->move[n++] = d->move[i];
    if (n) qsort(d->move, n, sizeof *d->move, larger_first);
    d->n_moves = n;
    return RW_OK;
}

/* ---- one descent ---- */

/* Is the value recomputed once, or kept for replays alone? */
static bool is_for_replays(const struct descent *d, uint32_t v)
{
    const uint8_t drop = d->r.drop[v];
    return drop == RW_DROP_ONCE || (drop == RW_DROP_NOT && !d->g->late[v] && rw_value_may_drop(d->g, v));
}

/* with_inputs: what a replay of its values may read is recomputed in each visit as well. */
static void apply(const struct descent *d, const struct move *m, bool with_inputs, struct rw_compact_choice *r)
{
    for (uint32_t v = 0; with_inputs && v < d->g->n_values; v++)
        if (is_for_replays(d, v)) r->drop[v] = RW_DROP_AT;
    for (uint32_t v = 0; v < d->g->n_values; v++)
        if (d->group[v] == m->group && rw_value_may_drop(d->g, v) &&
            (rw_drop_rank(m->drop) > rw_drop_rank(r->drop[v]) || !m->drop))
            r->drop[v] = m->drop;
}

static bool is_beaten(const struct rw_candidates *c, const struct rw_cost_of_schedule *x)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->candidate[i].peak <= x->peak && c->candidate[i].seconds <= x->seconds) return true;
    return false;
}

/* Adds the current compact choice as a candidate, unless one is as small and as fast. */
static rw_status note(struct descent *d, const struct rw_cost_of_schedule *cost)
{
    struct rw_compact_choice copy;
    if (is_beaten(d->c, cost)) return RW_OK;
    rw_status status = rw_compact_choice_copy(&copy, &d->r, d->g);
    if (!status) status = rw_candidates_add(d->c, copy);
    if (status) return status;
    struct rw_candidate *const x = &d->c->candidate[d->c->n - 1];
    x->peak = cost->peak;
    x->seconds = cost->seconds;
    x->moved = cost->moved;
    d->c->n_simulated = d->c->n;
    return RW_OK;
}

/* A change that keeps a value must lower the peak; otherwise the descent might cycle. */
static bool is_accepted(const struct descent *d, const struct move *m, const struct rw_cost_of_schedule *cost)
{
    const size_t longest = LONGEST * (d->c->n_actions + 1);
    if (d->c->sims.room->schedule.n_actions > longest) return false;
    return cost->peak < d->peak || (cost->peak == d->peak && m->drop);
}

/* Simulates one change, and makes it the current compact choice if it is accepted. */
static rw_status try_move(struct descent *d, const struct move *m, bool with_inputs, bool *ret_accepted)
{
    struct rw_compact_choice r;
    struct rw_cost_of_schedule cost;
    rw_status status = rw_compact_choice_copy(&r, &d->r, d->g);
    if (status) return status;
    apply(d, m, with_inputs, &r);
    status = simulate(d, &r, &cost);
    *ret_accepted = !status && is_accepted(d, m, &cost);
    if (!*ret_accepted) {
        rw_compact_choice_finish(&r);
        return status;
    }
    rw_compact_choice_finish(&d->r);
    d->r = r;
    d->peak = cost.peak;
    d->seconds = cost.seconds;
    d->at = cost.peak_action;
    return note(d, &cost);
}

/* Tries moves until one is accepted. */
static rw_status try_moves(struct descent *d, bool with_inputs, bool *ret_accepted)
{
    rw_status status = RW_OK;
    *ret_accepted = false;
    for (size_t i = 0; !status && !*ret_accepted && i < d->n_moves && i < TRIES && d->left; i++)
        if (!with_inputs || rw_drop_rank(d->move[i].drop) > 1)
            status = try_move(d, &d->move[i], with_inputs, ret_accepted);
    return status;
}

static bool any_is_for_replays(const struct descent *d)
{
    for (uint32_t v = 0; v < d->g->n_values; v++)
        if (is_for_replays(d, v)) return d->r.n_stretches > 0;
    return false;
}

/* Descends from d->r while a change is accepted. A value that is recomputed for a visit needs its inputs there: if
   these are kept, or recomputed once for all visits, the peak may only move to them, so at last both change. */
static rw_status descend(struct descent *d)
{
    struct rw_cost_of_schedule cost;
    rw_status status = simulate(d, &d->r, &cost);
    if (status) return status;
    d->peak = cost.peak;
    d->at = cost.peak_action;
    status = note(d, &cost);
    for (bool continues = true; !status && continues && d->left;) {
        status = list_moves(d);
        if (!status) status = try_moves(d, false, &continues);
        if (!status && !continues && any_is_for_replays(d)) status = try_moves(d, true, &continues);
    }
    return status;
}

/* ---- starting points ---- */

/* Cuts forward into that many stages of about equal bytes, each a segment; n_stages 0: each node is one. The values of
   a stage that the next stage reads are one group, its others a second one. If each node is a stage, each value is a
   group. */
static rw_status cut_stages(struct descent *d, size_t n_stages)
{
    const struct rw_replayable *const g = d->g;
    uint64_t all = 0, computed = 0;
    uint32_t *const stage = rw_malloc(g->n_nodes * sizeof *stage);
    if (!stage) return RW_ERR_MEMORY;
    rw_status status = RW_OK;
    for (size_t v = 0; v < g->n_values; v++) all += g->bytes[v];
    uint32_t first = 0, n = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        if (i > first && rw_place_may_begin(g, i) && (!n_stages || computed * n_stages >= all * (n + 1))) {
            if (rw_compact_choice_add_stretch(&d->r, (struct rw_stretch){ first, i, RW_NONE_ID }) == RW_NONE_ID)
                status = RW_ERR_MEMORY;
            first = i;
            n++;
        }
        stage[i] = n;
        for (uint32_t v = g->output_at[i]; v < g->output_at[i + 1]; v++) {
            computed += g->bytes[v];
            d->group[v] = n_stages ? 2 * n : v;
        }
        for (uint32_t k = g->input_at[i]; n_stages && k < g->input_at[i + 1]; k++)
            if (stage[g->producer[g->input[k]]] + 1 == n) d->group[g->input[k]] = 2 * (n - 1) + 1;
    }
    const struct rw_stretch last = { first, (uint32_t)g->n_nodes, RW_NONE_ID };
    if (!status && rw_compact_choice_add_stretch(&d->r, last) == RW_NONE_ID) status = RW_ERR_MEMORY;
    d->n_groups = n_stages ? 2 * (n + 1) : (uint32_t)g->n_values;
    rw_free(stage);
    return status;
}

static rw_status descend_by_stages(struct descent *d, size_t n_stages)
{
    rw_status status = rw_compact_choice_init(&d->r, d->g);
    if (status) return status;
    status = cut_stages(d, n_stages);
    if (!status) status = descend(d);
    rw_compact_choice_finish(&d->r);
    return status;
}

/* Descends from what a candidate drops. If it has no segments, each node becomes one. */
static rw_status descend_from(struct descent *d, size_t candidate)
{
    rw_status status = rw_compact_choice_copy(&d->r, &d->c->candidate[candidate].compact, d->g);
    if (status) return status;
    d->n_groups = (uint32_t)d->g->n_values;
    for (uint32_t v = 0; v < d->n_groups; v++) d->group[v] = v;
    if (!d->r.n_stretches) status = cut_stages(d, 0);
    if (!status) status = descend(d);
    rw_compact_choice_finish(&d->r);
    return status;
}

/* The smallest of the first n candidates whose peak is above `above`; n for none. */
static size_t next_smallest(const struct rw_candidates *c, size_t n, uint64_t above, bool without_segments)
{
    size_t best = n;
    for (size_t i = 0; i < n; i++) {
        const struct rw_candidate *const x = &c->candidate[i];
        if (x->named || x->part || !x->compact.drop || x->peak <= above) continue;
        if (without_segments && x->compact.n_stretches) continue;
        if (best == n || x->peak < c->candidate[best].peak) best = i;
    }
    return best;
}

/* Maximum bytes that forward keeps for its own reads at any place. If they are few, stages find nothing that nested
   checkpointing does not find. */
static uint64_t find_skipped_bytes(const struct rw_replayable *g, int64_t *delta)
{
    memset(delta, 0, (g->n_nodes + 2) * sizeof *delta);
    for (uint32_t v = 0; v < g->n_values; v++) {
        if (g->last_read[v] == g->producer[v]) continue;
        delta[g->producer[v] + 1] += (int64_t)g->bytes[v];
        delta[g->last_read[v] + 1] -= (int64_t)g->bytes[v];
    }
    int64_t live = 0, most = 0;
    for (size_t i = 0; i <= g->n_nodes; i++) {
        live += delta[i];
        if (live > most) most = live;
    }
    return (uint64_t)most;
}

static rw_status has_skips(const struct descent *d, bool *ret)
{
    int64_t *const delta = rw_malloc((d->g->n_nodes + 2) * sizeof *delta);
    if (!delta) return RW_ERR_MEMORY;
    *ret = find_skipped_bytes(d->g, delta) > d->c->candidate[0].peak / SKIPPED_PART;
    rw_free(delta);
    return RW_OK;
}

/* Descends from the smallest cut, from stages with everything kept, and from the smallest segmented candidates. */
static rw_status descend_all(struct descent *d, size_t most_actions)
{
    const size_t n = d->c->n;
    const bool is_long = d->g->n_nodes > EACH_MAX;
    bool skips = false;
    rw_status status = has_skips(d, &skips);
    const size_t flat = next_smallest(d->c, n, 0, true);
    d->left = most_actions / 2;
    if (!status && flat < n && !is_long) status = descend_from(d, flat);
    for (size_t stages = 32; !status && skips && stages >= 8; stages /= 2) {
        d->left = most_actions / 4;
        if (d->g->n_nodes > 2 * stages) status = descend_by_stages(d, stages);
    }
    d->left = most_actions / 4;
    uint64_t above = 0;
    for (int i = 0; !status && i < SMALLEST && !is_long; i++) {
        const size_t candidate = next_smallest(d->c, n, above, false);
        if (candidate == n) break;
        above = d->c->candidate[candidate].peak;
        if (d->c->candidate[candidate].compact.n_stretches) status = descend_from(d, candidate);
    }
    return status;
}

rw_status rw_propose_descents(struct rw_candidates *c, size_t most_actions)
{
    struct descent d = { .c = c, .g = &c->graph };
    const size_t groups = c->graph.n_values > c->graph.n_nodes ? c->graph.n_values : c->graph.n_nodes;
    d.group = rw_malloc((groups + 1) * sizeof *d.group);
    d.move = rw_malloc(2 * (2 * groups + 4) * sizeof *d.move);
    rw_status status = d.group && d.move ? RW_OK : RW_ERR_MEMORY;
    if (!status && c->graph.n_nodes) status = descend_all(&d, most_actions);
    rw_free(d.group);
    rw_free(d.move);
    rw_free(d.before);
    rw_free(d.after);
    rw_free(d.there);
    return status;
}
