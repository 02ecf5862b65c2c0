/*
 * Pareto local search of local_search.h. Each try_ function adds one neighbor, simulates it, and removes it again if it
 * is dominated. Source: Paquete, Chiarandini and Stuetzle (2004), cited there.
 */
#include "remat/planner/local_search.h"

#include "remat/planner/offload_min_cut.h"

/* Tapes of up to this length try two values at once, with every node as a segment. */
#define VERY_SHORT 10
/* Up to this many values, every set is dropped once. With fewer places than this, forward is cut in every way. */
#define ALL_DROPS_MAX 11
#define ALL_CUTS_MAX 8
/* Up to this many combinations of kept, replayed and offloaded values are tried. */
#define ALL_MOVES_MAX 4096

/* Is there a better candidate, or an equal one before it? */
static bool is_beaten(const struct rw_candidates *c, size_t candidate)
{
    const struct rw_candidate *const x = &c->candidate[candidate];
    for (size_t i = 0; i < c->n; i++) {
        const struct rw_candidate *const y = &c->candidate[i];
        if (i == candidate || y->peak > x->peak || y->seconds > x->seconds) continue;
        if (y->peak < x->peak || y->seconds < x->seconds || y->moved < x->moved) return true;
        if (i < candidate && y->moved == x->moved) return true;
    }
    return false;
}

static rw_status add_simulated(struct rw_candidates *c, struct rw_compact_choice r)
{
    const rw_status status = rw_candidates_add(c, r);
    return status ? status : rw_candidates_simulate(c);
}

/* Adds the compact choice, and removes it if it is dominated. */
static rw_status add(struct rw_candidates *c, struct rw_compact_choice r)
{
    const rw_status status = add_simulated(c, r);
    if (status || !is_beaten(c, c->n - 1)) return status;
    rw_compact_choice_finish(&c->candidate[--c->n].compact);
    c->n_simulated--;
    return RW_OK;
}

static bool is_flat(const struct rw_compact_choice *r)
{
    for (size_t i = 0; i < r->n_stretches; i++)
        if (r->stretch[i].parent != RW_NONE_ID) return false;
    return true;
}

/* The fate for a compact choice in which segments do not nest. */
static uint8_t outermost(uint8_t drop)
{
    return drop <= RW_DROP_ONCE ? drop : rw_drop_is_after_first(drop) ? RW_DROP_AFTER_FIRST : RW_DROP_AT;
}

/* Tries all other fates of value v. */
static rw_status try_drops(struct rw_candidates *c, size_t from, uint32_t v)
{
    const uint8_t is = c->candidate[from].compact.drop[v];
    const uint8_t most = c->candidate[from].compact.n_stretches ? RW_DROP_AT : RW_DROP_ONCE;
    const uint8_t first = rw_drop_rank(is) == 3 ? rw_drop_after_first(is) : RW_DROP_AFTER_FIRST;
    rw_status status = RW_OK;
    for (unsigned i = RW_DROP_NOT; !status && i <= (most < RW_DROP_AT ? most : RW_DROP_AT + 1u); i++) {
        const uint8_t drop = i > RW_DROP_AT ? first : (uint8_t)i;
        struct rw_compact_choice r;
        if (drop == is) continue;
        status = rw_compact_choice_copy(&r, &c->candidate[from].compact, &c->graph);
        if (status) break;
        r.drop[v] = drop;
        status = add(c, r);
    }
    return status;
}

/* Changes two values at once from kept to dropped or back. Above all this exchanges one for the other. */
static rw_status try_pair(struct rw_candidates *c, size_t from, uint32_t v, uint32_t w)
{
    struct rw_compact_choice r;
    const uint8_t drop = c->candidate[from].compact.n_stretches ? RW_DROP_AT : RW_DROP_ONCE;
    const rw_status status = rw_compact_choice_copy(&r, &c->candidate[from].compact, &c->graph);
    if (status) return status;
    r.drop[v] = r.drop[v] ? RW_DROP_NOT : drop;
    r.drop[w] = r.drop[w] ? RW_DROP_NOT : drop;
    return add(c, r);
}

/* Copies the stretches of another compact choice, with one cut added before that place, or removed if there was one.
   Nodes after the last stretch belong to none; a cut among them makes their first part a stretch. */
static rw_status copy_cut(struct rw_compact_choice *r, const struct rw_compact_choice *from, uint32_t place,
                          uint32_t n_nodes)
{
    for (size_t i = 0; i < from->n_stretches; i++) {
        struct rw_stretch x = from->stretch[i];
        const bool joins = x.first == place && r->n_stretches && r->stretch[r->n_stretches - 1].end == place;
        if (joins) {
            r->stretch[r->n_stretches - 1].end = x.end;
            continue;
        }
        const struct rw_stretch front = { x.first, place, RW_NONE_ID };
        const bool splits = x.first < place && place < x.end;
        if (splits && rw_compact_choice_add_stretch(r, front) == RW_NONE_ID) return RW_ERR_MEMORY;
        if (splits) x.first = place;
        if (rw_compact_choice_add_stretch(r, x) == RW_NONE_ID) return RW_ERR_MEMORY;
    }
    const uint32_t rest = from->n_stretches ? from->stretch[from->n_stretches - 1].end : 0;
    if (rest && place == rest) r->stretch[r->n_stretches - 1].end = n_nodes;
    const struct rw_stretch all = { rest, place, RW_NONE_ID };
    return place <= rest || rw_compact_choice_add_stretch(r, all) != RW_NONE_ID ? RW_OK : RW_ERR_MEMORY;
}

/*
 * Adds or removes one cut. Dropped values stay dropped, but if forward had no cut before, they are now recomputed for
 * each segment.
 */
static rw_status try_cut(struct rw_candidates *c, size_t from, uint32_t place)
{
    struct rw_compact_choice r;
    rw_status status = rw_compact_choice_init(&r, &c->graph);
    if (status) return status;
    const struct rw_compact_choice *const base = &c->candidate[from].compact;
    for (size_t v = 0; v < c->graph.n_values; v++) r.drop[v] = base->drop[v];
    status = copy_cut(&r, base, place, (uint32_t)c->graph.n_nodes);
    if (!base->n_stretches) {
        for (size_t v = 0; v < c->graph.n_values; v++)
            if (r.drop[v]) r.drop[v] = RW_DROP_AT;
        const struct rw_stretch rest = { place, (uint32_t)c->graph.n_nodes, RW_NONE_ID };
        if (!status && rw_compact_choice_add_stretch(&r, rest) == RW_NONE_ID) status = RW_ERR_MEMORY;
    }
    if (!status) return add(c, r);
    rw_compact_choice_finish(&r);
    return status;
}

/* Makes every node a segment. */
static rw_status cut_everywhere(struct rw_compact_choice *r, const struct rw_replayable *g)
{
    rw_status status = RW_OK;
    for (uint32_t i = 0, end; !status && i < g->n_nodes; i = end) {
        for (end = i + 1; end < g->n_nodes && !rw_place_may_begin(g, end);) end++;
        if (rw_compact_choice_add_stretch(r, (struct rw_stretch){ i, end, RW_NONE_ID }) == RW_NONE_ID)
            status = RW_ERR_MEMORY;
    }
    return status;
}

/* Drops the same values, but with every node as a segment: they are recomputed for each reader. */
static rw_status try_each(struct rw_candidates *c, size_t from)
{
    struct rw_compact_choice r;
    rw_status status = rw_compact_choice_init(&r, &c->graph);
    if (status) return status;
    for (size_t v = 0; v < c->graph.n_values; v++)
        if (c->candidate[from].compact.drop[v])
            r.drop[v] = rw_drop_is_after_first(c->candidate[from].compact.drop[v]) ? RW_DROP_AFTER_FIRST : RW_DROP_AT;
    status = cut_everywhere(&r, &c->graph);
    if (!status) return add(c, r);
    rw_compact_choice_finish(&r);
    return status;
}

/* Changes two values, with every node as a segment. Some values are then recomputed once, and others for each reader.
   drops: index of the fate of v, plus 4 times that of w. */
static rw_status try_two_of_each(struct rw_candidates *c, size_t from, uint32_t v, uint32_t w, unsigned drops)
{
    struct rw_compact_choice r;
    rw_status status = rw_compact_choice_init(&r, &c->graph);
    if (status) return status;
    static const uint8_t as[] = { RW_DROP_NOT, RW_DROP_ONCE, RW_DROP_AT, RW_DROP_AFTER_FIRST };
    for (size_t i = 0; i < c->graph.n_values; i++) r.drop[i] = outermost(c->candidate[from].compact.drop[i]);
    r.drop[v] = as[drops % 4];
    r.drop[w] = as[drops / 4];
    status = cut_everywhere(&r, &c->graph);
    if (!status) return add(c, r);
    rw_compact_choice_finish(&r);
    return status;
}

static rw_status try_pairs_of_each(struct rw_candidates *c, size_t from)
{
    rw_status status = RW_OK;
    for (uint32_t v = 0; !status && v < c->graph.n_values; v++)
        for (uint32_t w = v + 1; !status && w < c->graph.n_values; w++)
            for (unsigned drops = 1; !status && drops < 16; drops++)
                if (c->weighty[v] && c->weighty[w])
                    status = try_two_of_each(c, from, v, w, drops);
    return status;
}

/* Is one of them kept and the other dropped? */
static bool is_exchange(const struct rw_candidates *c, size_t candidate, uint32_t v, uint32_t w)
{
    const uint8_t *const drop = c->candidate[candidate].compact.drop;
    return !drop[v] != !drop[w];
}

/* All neighbors of one candidate. */
static rw_status take_turn(struct rw_candidates *c, size_t candidate)
{
    rw_status status = RW_OK;
    for (uint32_t v = 0; !status && v < c->graph.n_values; v++)
        if (c->weighty[v]) status = try_drops(c, candidate, v);
    for (uint32_t i = 1; !status && i < c->graph.n_nodes && is_flat(&c->candidate[candidate].compact); i++)
        if (rw_place_may_begin(&c->graph, i) && rw_candidates_may_cut(c, i)) status = try_cut(c, candidate, i);
    for (uint32_t v = 0; !status && v < c->graph.n_values; v++)
        for (uint32_t w = v + 1; !status && w < c->graph.n_values; w++)
            if (c->weighty[v] && c->weighty[w] && (c->n_weighty <= VERY_SHORT || is_exchange(c, candidate, v, w)))
                status = try_pair(c, candidate, v, w);
    return status;
}

typedef rw_status turn_fn(struct rw_candidates *c, size_t candidate);

/*
 * Turns of the candidates that are not dominated, or of those that are, from `first` on, up to a number of simulations.
 */
static rw_status take_turns_of(struct rw_candidates *c, bool beaten, size_t first, size_t most_simulations,
                               turn_fn *turn)
{
    rw_status status = RW_OK;
    for (size_t i = first; !status && i < c->n && c->n_simulations < most_simulations; i++)
        if (!c->candidate[i].named && !c->candidate[i].part && is_beaten(c, i) == beaten) status = turn(c, i);
    return status;
}

static rw_status take_turns(struct rw_candidates *c, size_t first, size_t most_simulations, turn_fn *turn)
{
    return take_turns_of(c, false, first, most_simulations, turn);
}

/* Turns of some candidates, and then of all candidates that these turns have found. */
static rw_status search_beside(struct rw_candidates *c, bool beaten, size_t most_simulations, turn_fn *turn)
{
    const size_t found = c->n, most = c->n_simulations + most_simulations;
    const rw_status status = take_turns_of(c, beaten, 0, most, turn);
    return status ? status : take_turns(c, found, most + most_simulations, take_turn);
}

/* Drops every set of values once, if there are few values. */
static rw_status try_all_drops(struct rw_candidates *c)
{
    uint32_t value[ALL_DROPS_MAX], n = 0;
    for (uint32_t v = 0; v < c->graph.n_values; v++) {
        if (!c->weighty[v]) continue;
        if (n == ALL_DROPS_MAX) return RW_OK;
        value[n++] = v;
    }
    rw_status status = RW_OK;
    for (uint32_t set = 1; !status && set >> n == 0; set++) {
        struct rw_compact_choice r;
        status = rw_compact_choice_init(&r, &c->graph);
        if (status) break;
        for (uint32_t i = 0; i < n; i++)
            if (set >> i & 1) r.drop[value[i]] = RW_DROP_ONCE;
        status = add(c, r);
    }
    return status;
}

/* Drops what a candidate drops, with forward cut before each place of a set. `place` has one more entry, the end. */
static rw_status try_cuts(struct rw_candidates *c, size_t from, const uint32_t *place, size_t n_places, uint32_t set)
{
    struct rw_compact_choice r;
    rw_status status = rw_compact_choice_init(&r, &c->graph);
    if (status) return status;
    for (size_t v = 0; v < c->graph.n_values; v++) r.drop[v] = outermost(c->candidate[from].compact.drop[v]);
    for (size_t i = 0, first = 0; !status && i <= n_places; i++) {
        if (i < n_places && !(set >> i & 1)) continue;
        const struct rw_stretch stretch = { (uint32_t)first, place[i], RW_NONE_ID };
        if (rw_compact_choice_add_stretch(&r, stretch) == RW_NONE_ID) status = RW_ERR_MEMORY;
        first = place[i];
    }
    if (!status) return add(c, r);
    rw_compact_choice_finish(&r);
    return status;
}

/* Tries all sets of cuts, if there are few places. */
static rw_status try_all_cuts(struct rw_candidates *c, size_t from)
{
    uint32_t place[ALL_CUTS_MAX], n = 0;
    for (uint32_t i = 1; i < c->graph.n_nodes; i++) {
        if (!rw_place_may_begin(&c->graph, i) || !rw_candidates_may_cut(c, i)) continue;
        if (n + 1 == ALL_CUTS_MAX) return RW_OK;
        place[n++] = i;
    }
    place[n] = (uint32_t)c->graph.n_nodes;
    rw_status status = RW_OK;
    for (uint32_t set = (1u << n) - 1; !status && set; set--) status = try_cuts(c, from, place, n, set);
    return status;
}

rw_status rw_local_search(struct rw_candidates *c, size_t most_simulations)
{
    const size_t n = c->n, most = c->n_simulations + most_simulations;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n; i++)
        if (!c->candidate[i].named) status = try_each(c, i);
    if (!status) status = take_turns(c, 0, most, take_turn);
    if (status || c->n_weighty > VERY_SHORT) return status;
    status = search_beside(c, false, most_simulations, try_pairs_of_each);
    return status ? status : search_beside(c, true, most_simulations, take_turn);
}

rw_status rw_search_rest(struct rw_candidates *c, size_t first, size_t most_simulations)
{
    rw_status status = try_all_drops(c);
    if (!status) status = take_turns(c, first, c->n_simulations + most_simulations, take_turn);
    return status ? status : take_turns(c, 0, c->n_simulations + most_simulations, try_all_cuts);
}

/* ---- with offload ---- */

/* Lists the possible fates of a value in a compact choice. */
static size_t list_drops(const struct rw_candidates *c, const struct rw_compact_choice *r, uint32_t v, uint8_t *drops)
{
    size_t n = 0;
    drops[n++] = RW_DROP_NOT;
    if (rw_value_may_drop(&c->graph, v)) {
        drops[n++] = RW_DROP_ONCE;
        if (r->n_stretches) drops[n++] = RW_DROP_AT;
    }
    if (rw_value_may_move(&c->graph, v)) drops[n++] = RW_DROP_MOVED;
    return n;
}

static rw_status try_two(struct rw_candidates *c, size_t from, uint32_t v, uint8_t drop_v, uint32_t w, uint8_t drop_w)
{
    struct rw_compact_choice r;
    const rw_status status = rw_compact_choice_copy(&r, &c->candidate[from].compact, &c->graph);
    if (status) return status;
    r.drop[v] = drop_v;
    r.drop[w] = drop_w;
    return add(c, r);
}

static rw_status try_moves(struct rw_candidates *c, size_t from)
{
    rw_status status = RW_OK;
    for (uint32_t v = 0; !status && v < c->graph.n_values; v++) {
        uint8_t drops[4];
        const size_t n = list_drops(c, &c->candidate[from].compact, v, drops);
        for (size_t i = 0; !status && i < n; i++)
            if (drops[i] != c->candidate[from].compact.drop[v]) status = try_two(c, from, v, drops[i], v, drops[i]);
    }
    return status;
}

/* Changes two values at once. */
static rw_status try_pairs_of_moves(struct rw_candidates *c, size_t from)
{
    rw_status status = RW_OK;
    for (uint32_t v = 0; !status && v < c->graph.n_values; v++)
        for (uint32_t w = v + 1; !status && w < c->graph.n_values; w++) {
            uint8_t of_v[4], of_w[4];
            const struct rw_compact_choice *const base = &c->candidate[from].compact;
            const size_t n = list_drops(c, base, v, of_v), m = list_drops(c, base, w, of_w);
            for (size_t i = 0; !status && i < n * m; i++) {
                const uint8_t *const is = c->candidate[from].compact.drop;
                const uint8_t drop_v = of_v[i / m], drop_w = of_w[i % m];
                if (drop_v != is[v] && drop_w != is[w]) status = try_two(c, from, v, drop_v, w, drop_w);
            }
        }
    return status;
}

/* Writes the choice of a candidate that offloads a part of its base as a compact choice. */
static rw_status compact_of_moved(struct rw_candidates *c, uint32_t candidate, struct rw_compact_choice *r)
{
    const struct rw_candidate *const base = &c->candidate[c->candidate[candidate].base];
    struct rw_choice choice;
    rw_status status = rw_candidate_choose(c, candidate, &choice);
    if (status) return status;
    status = base->named ? rw_compact_choice_init(r, &c->graph) : rw_compact_choice_copy(r, &base->compact, &c->graph);
    for (uint32_t v = 0; !status && v < c->graph.n_values; v++) {
        const struct rw_fate *const fate = &choice.fate[c->graph.value[v]];
        if (fate->what == RW_MOVE && fate->why == RW_WHY_BUDGET) r->drop[v] = RW_DROP_MOVED;
    }
    rw_choice_finish(&choice);
    return status;
}

/* Replaces a candidate that offloads a part of what a compact choice or `none` keeps with a compact choice of its
   own, so that a search can start from it. Keeps the old candidate if the compact choice is worse, which can happen
   for `none` if parts of the tape have their own policies. */
static rw_status write_down(struct rw_candidates *c, uint32_t candidate)
{
    struct rw_candidate *const x = &c->candidate[candidate], before = *x;
    if (!x->part || (x->base && c->candidate[x->base].named)) return RW_OK;
    rw_status status = compact_of_moved(c, candidate, &x->compact);
    if (status) return status;
    x->part = 0;
    status = rw_candidate_simulate(c, candidate, c->sims.room);
    if (!status && x->peak <= before.peak && x->seconds <= before.seconds) return RW_OK;
    rw_compact_choice_finish(&x->compact);
    *x = before;
    return status;
}

/*
 * Turns from a compact choice that keeps everything. `none` has no compact choice, and an equal compact choice is
 * dominated by it, so it would never have a turn.
 */
static rw_status take_turn_of_kept(struct rw_candidates *c)
{
    struct rw_compact_choice r;
    rw_status status = rw_compact_choice_init(&r, &c->graph);
    if (!status) status = add_simulated(c, r);
    const size_t kept = c->n - 1;
    if (!status) status = try_moves(c, kept);
    return status || c->length > RW_SHORT_TAPE ? status : try_pairs_of_moves(c, kept);
}

/* Whether backward, or a node that is replayed once, reads the value. Otherwise its fate makes no difference. */
static bool is_read_again(const struct rw_replayable *g, const uint8_t *drop, uint32_t v)
{
    if (g->late[v]) return true;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = g->input_at[i]; k < g->input_at[i + 1]; k++)
            for (uint32_t w = g->output_at[i]; g->input[k] == v && w < g->output_at[i + 1]; w++)
                if (drop[w] == RW_DROP_ONCE) return true;
    return false;
}

struct all_moves {
    struct rw_candidates *c;
    struct rw_compact_choice r;
    size_t left;   /* combinations */
    bool is_count; /* they are counted and not tried */
};

/* Goes through every combination of the fates of the first n values. Those after them are decided, so the readers of
   each value are. */
static rw_status each_combination(struct all_moves *m, uint32_t n)
{
    if (!n) {
        struct rw_compact_choice copy;
        m->left--;
        if (m->is_count) return RW_OK;
        const rw_status status = rw_compact_choice_copy(&copy, &m->r, &m->c->graph);
        return status ? status : add(m->c, copy);
    }
    const uint32_t v = n - 1;
    uint8_t drops[4];
    const size_t n_drops = is_read_again(&m->c->graph, m->r.drop, v) ? list_drops(m->c, &m->r, v, drops) : 1;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n_drops && m->left; i++) {
        m->r.drop[v] = n_drops > 1 ? drops[i] : RW_DROP_NOT;
        status = each_combination(m, v);
    }
    m->r.drop[v] = RW_DROP_NOT;
    return status;
}

/* Tries every combination of the fates of all values, if there are few. */
static rw_status try_all_moves(struct rw_candidates *c)
{
    struct all_moves m = { .c = c, .left = ALL_MOVES_MAX + 1, .is_count = true };
    const uint32_t n = (uint32_t)c->graph.n_values;
    rw_status status = rw_compact_choice_init(&m.r, &c->graph);
    if (!status) status = each_combination(&m, n);
    const bool are_few = m.left;
    m.left = ALL_MOVES_MAX;
    m.is_count = false;
    if (!status && are_few) status = each_combination(&m, n);
    rw_compact_choice_finish(&m.r);
    return status;
}

rw_status rw_local_search_moved(struct rw_candidates *c, size_t most_simulations)
{
    rw_status status = RW_OK;
    for (uint32_t i = 0; !status && i < c->n; i++)
        if (!c->candidate[i].named && !is_beaten(c, i)) status = write_down(c, i);
    if (!status) status = take_turn_of_kept(c);
    if (!status) status = take_turns(c, 0, c->n_simulations + most_simulations, try_moves);
    if (status || c->length > RW_SHORT_TAPE) return status;
    status = take_turns(c, 0, c->n_simulations + most_simulations, try_pairs_of_moves);
    return status ? status : try_all_moves(c);
}
