/* See neighbours.h. */
#include "remat/neighbours.h"

#include "remat/move.h"

/* Nodes of a tape of which two values at once are tried where every node is a segment. */
#define VERY_SHORT 10

/* Is there one as good, before it, or a better one? */
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

static rw_status add_simulated(struct rw_candidates *c, struct rw_recipe r)
{
    const rw_status status = rw_candidates_add(c, r);
    return status ? status : rw_candidates_simulate(c);
}

/* Adds the recipe and lets go of it at once when it is beaten. */
static rw_status add(struct rw_candidates *c, struct rw_recipe r)
{
    const rw_status status = add_simulated(c, r);
    if (status || !is_beaten(c, c->n - 1)) return status;
    rw_recipe_finish(&c->candidate[--c->n].recipe);
    c->n_simulated--;
    return RW_OK;
}

static bool is_flat(const struct rw_recipe *r)
{
    for (size_t i = 0; i < r->n_stretches; i++)
        if (r->stretch[i].parent != RW_NONE_ID) return false;
    return true;
}

/* Where value v is dropped otherwise. */
static rw_status try_drops(struct rw_candidates *c, size_t from, uint32_t v)
{
    const uint8_t is = c->candidate[from].recipe.drop[v];
    const uint8_t most = c->candidate[from].recipe.n_stretches ? RW_DROP_AT : RW_DROP_ONCE;
    rw_status status = RW_OK;
    for (uint8_t drop = RW_DROP_NOT; !status && drop <= most; drop++) {
        struct rw_recipe r;
        if (drop == is) continue;
        status = rw_recipe_copy(&r, &c->candidate[from].recipe, &c->graph);
        if (status) break;
        r.drop[v] = drop;
        status = add(c, r);
    }
    return status;
}

/* Two values at once, each kept where it was dropped and dropped where it was kept: one for the other, above all. */
static rw_status try_pair(struct rw_candidates *c, size_t from, uint32_t v, uint32_t w)
{
    struct rw_recipe r;
    const uint8_t drop = c->candidate[from].recipe.n_stretches ? RW_DROP_AT : RW_DROP_ONCE;
    const rw_status status = rw_recipe_copy(&r, &c->candidate[from].recipe, &c->graph);
    if (status) return status;
    r.drop[v] = r.drop[v] ? RW_DROP_NOT : drop;
    r.drop[w] = r.drop[w] ? RW_DROP_NOT : drop;
    return add(c, r);
}

/* The stretches of another recipe, with a cut in front of that place where there was none, or without the one there.
   Behind its last stretch begins what lies in none, the rest. */
static rw_status copy_cut(struct rw_recipe *r, const struct rw_recipe *from, uint32_t place, uint32_t n_nodes)
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
        if (splits && rw_recipe_add_stretch(r, front) == RW_NONE_ID) return RW_ERR_MEMORY;
        if (splits) x.first = place;
        if (rw_recipe_add_stretch(r, x) == RW_NONE_ID) return RW_ERR_MEMORY;
    }
    const uint32_t rest = from->n_stretches ? from->stretch[from->n_stretches - 1].end : 0;
    if (rest && place == rest) r->stretch[r->n_stretches - 1].end = n_nodes;
    const struct rw_stretch all = { rest, place, RW_NONE_ID };
    return place <= rest || rw_recipe_add_stretch(r, all) != RW_NONE_ID ? RW_OK : RW_ERR_MEMORY;
}

/* What is dropped stays, but is made again for each segment where forward was whole before. */
static rw_status try_cut(struct rw_candidates *c, size_t from, uint32_t place)
{
    struct rw_recipe r;
    rw_status status = rw_recipe_init(&r, &c->graph);
    if (status) return status;
    const struct rw_recipe *const base = &c->candidate[from].recipe;
    for (size_t v = 0; v < c->graph.n_values; v++) r.drop[v] = base->drop[v];
    status = copy_cut(&r, base, place, (uint32_t)c->graph.n_nodes);
    if (!base->n_stretches) {
        for (size_t v = 0; v < c->graph.n_values; v++)
            if (r.drop[v]) r.drop[v] = RW_DROP_AT;
        const struct rw_stretch rest = { place, (uint32_t)c->graph.n_nodes, RW_NONE_ID };
        if (!status && rw_recipe_add_stretch(&r, rest) == RW_NONE_ID) status = RW_ERR_MEMORY;
    }
    if (!status) return add(c, r);
    rw_recipe_finish(&r);
    return status;
}

/* Every node a segment. */
static rw_status cut_everywhere(struct rw_recipe *r, const struct rw_replayable *g)
{
    rw_status status = RW_OK;
    for (uint32_t i = 0, end; !status && i < g->n_nodes; i = end) {
        for (end = i + 1; end < g->n_nodes && !rw_place_may_begin(g, end);) end++;
        if (rw_recipe_add_stretch(r, (struct rw_stretch){ i, end, RW_NONE_ID }) == RW_NONE_ID) status = RW_ERR_MEMORY;
    }
    return status;
}

/* The same dropped, but every node a segment: made again for each that reads it. */
static rw_status try_each(struct rw_candidates *c, size_t from)
{
    struct rw_recipe r;
    rw_status status = rw_recipe_init(&r, &c->graph);
    if (status) return status;
    for (size_t v = 0; v < c->graph.n_values; v++)
        if (c->candidate[from].recipe.drop[v]) r.drop[v] = RW_DROP_AT;
    status = cut_everywhere(&r, &c->graph);
    if (!status) return add(c, r);
    rw_recipe_finish(&r);
    return status;
}

/* Two values otherwise, where every node is a segment: some are made again once, beside others that are made again for
   each that reads them. drops: of v, and times 3 of w. */
static rw_status try_two_of_each(struct rw_candidates *c, size_t from, uint32_t v, uint32_t w, unsigned drops)
{
    struct rw_recipe r;
    rw_status status = rw_recipe_init(&r, &c->graph);
    if (status) return status;
    for (size_t i = 0; i < c->graph.n_values; i++) {
        const uint8_t drop = c->candidate[from].recipe.drop[i];
        r.drop[i] = drop < RW_DROP_AT ? drop : RW_DROP_AT;
    }
    r.drop[v] = (uint8_t)(drops % 3);
    r.drop[w] = (uint8_t)(drops / 3);
    status = cut_everywhere(&r, &c->graph);
    if (!status) return add(c, r);
    rw_recipe_finish(&r);
    return status;
}

static rw_status try_pairs_of_each(struct rw_candidates *c, size_t from)
{
    rw_status status = RW_OK;
    for (uint32_t v = 0; !status && v < c->graph.n_values; v++)
        for (uint32_t w = v + 1; !status && w < c->graph.n_values; w++)
            for (unsigned drops = 1; !status && drops < 9; drops++)
                if (rw_value_may_drop(&c->graph, v) && rw_value_may_drop(&c->graph, w))
                    status = try_two_of_each(c, from, v, w, drops);
    return status;
}

static rw_status take_turn(struct rw_candidates *c, size_t candidate)
{
    rw_status status = RW_OK;
    for (uint32_t v = 0; !status && v < c->graph.n_values; v++)
        if (rw_value_may_drop(&c->graph, v)) status = try_drops(c, candidate, v);
    for (uint32_t i = 1; !status && i < c->graph.n_nodes && is_flat(&c->candidate[candidate].recipe); i++)
        if (rw_place_may_begin(&c->graph, i)) status = try_cut(c, candidate, i);
    for (uint32_t v = 0; !status && v < c->graph.n_values; v++)
        for (uint32_t w = v + 1; !status && w < c->graph.n_values; w++)
            if (rw_value_may_drop(&c->graph, v) && rw_value_may_drop(&c->graph, w))
                status = try_pair(c, candidate, v, w);
    return status;
}

typedef rw_status turn_fn(struct rw_candidates *c, size_t candidate);

/* Turns of what nothing beats, or of the others, from that candidate on, until so many simulations have been made. */
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

/* What such turns find has turns of its own. */
static rw_status search_beside(struct rw_candidates *c, bool beaten, size_t most_simulations, turn_fn *turn)
{
    const size_t found = c->n, most = c->n_simulations + most_simulations;
    const rw_status status = take_turns_of(c, beaten, 0, most, turn);
    return status ? status : take_turns(c, found, most + most_simulations, take_turn);
}

rw_status rw_search_neighbours(struct rw_candidates *c, size_t most_simulations)
{
    const size_t n = c->n, most = c->n_simulations + most_simulations;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n; i++)
        if (!c->candidate[i].named) status = try_each(c, i);
    if (!status) status = take_turns(c, 0, most, take_turn);
    if (status || c->graph.n_nodes > VERY_SHORT) return status;
    status = search_beside(c, false, most_simulations, try_pairs_of_each);
    return status ? status : search_beside(c, true, most_simulations, take_turn);
}

/* ---- where values may move ---- */

/* Backward need not read it: it may be read by what is replayed. */
static bool may_move(const struct rw_replayable *g, uint32_t v)
{
    const struct rw_tensor *const x = rw_tape_value(g->p->t, g->value[v]);
    return !(g->flags[v] & RW_IS_FREE) && !(x->flags & (RW_VALUE_SAVE | RW_VALUE_RECOMPUTE)) &&
           rw_tensor_bytes(x) >= RW_LEAST_MOVED;
}

/* What a value can become. */
static size_t list_drops(const struct rw_candidates *c, size_t from, uint32_t v, uint8_t *drops)
{
    size_t n = 0;
    drops[n++] = RW_DROP_NOT;
    if (rw_value_may_drop(&c->graph, v)) {
        drops[n++] = RW_DROP_ONCE;
        if (c->candidate[from].recipe.n_stretches) drops[n++] = RW_DROP_AT;
    }
    if (may_move(&c->graph, v)) drops[n++] = RW_DROP_MOVED;
    return n;
}

static rw_status try_two(struct rw_candidates *c, size_t from, uint32_t v, uint8_t drop_v, uint32_t w, uint8_t drop_w)
{
    struct rw_recipe r;
    const rw_status status = rw_recipe_copy(&r, &c->candidate[from].recipe, &c->graph);
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
        const size_t n = list_drops(c, from, v, drops);
        for (size_t i = 0; !status && i < n; i++)
            if (drops[i] != c->candidate[from].recipe.drop[v]) status = try_two(c, from, v, drops[i], v, drops[i]);
    }
    return status;
}

/* Two values, each otherwise. */
static rw_status try_pairs_of_moves(struct rw_candidates *c, size_t from)
{
    rw_status status = RW_OK;
    for (uint32_t v = 0; !status && v < c->graph.n_values; v++)
        for (uint32_t w = v + 1; !status && w < c->graph.n_values; w++) {
            uint8_t of_v[4], of_w[4];
            const size_t n = list_drops(c, from, v, of_v), m = list_drops(c, from, w, of_w);
            for (size_t i = 0; !status && i < n * m; i++) {
                const uint8_t *const is = c->candidate[from].recipe.drop;
                const uint8_t drop_v = of_v[i / m], drop_w = of_w[i % m];
                if (drop_v != is[v] && drop_w != is[w]) status = try_two(c, from, v, drop_v, w, drop_w);
            }
        }
    return status;
}

static rw_status recipe_of_moved(struct rw_candidates *c, uint32_t candidate, struct rw_recipe *r)
{
    const struct rw_candidate *const base = &c->candidate[c->candidate[candidate].base];
    struct rw_choice choice;
    rw_status status = rw_candidate_choose(c, candidate, &choice);
    if (status) return status;
    status = base->named ? rw_recipe_init(r, &c->graph) : rw_recipe_copy(r, &base->recipe, &c->graph);
    for (uint32_t v = 0; !status && v < c->graph.n_values; v++) {
        const struct rw_fate *const fate = &choice.fate[c->graph.value[v]];
        if (fate->what == RW_MOVE && fate->why == RW_WHY_BUDGET) r->drop[v] = RW_DROP_MOVED;
    }
    rw_choice_finish(&choice);
    return status;
}

/* What moves a part of what a recipe or `none` keeps becomes a recipe of its own, where that is no worse: of `none`
   it may be, where parts of the tape have policies of their own. */
static rw_status write_down(struct rw_candidates *c, uint32_t candidate)
{
    struct rw_candidate *const x = &c->candidate[candidate], before = *x;
    if (!x->part || (x->base && c->candidate[x->base].named)) return RW_OK;
    rw_status status = recipe_of_moved(c, candidate, &x->recipe);
    if (status) return status;
    x->part = 0;
    status = rw_candidate_simulate(c, candidate, c->sims.room);
    if (!status && x->peak <= before.peak && x->seconds <= before.seconds) return RW_OK;
    rw_recipe_finish(&x->recipe);
    *x = before;
    return status;
}

/* `none` has no recipe; the one that keeps all is beaten by it and would never have a turn. */
static rw_status take_turn_of_kept(struct rw_candidates *c)
{
    struct rw_recipe r;
    rw_status status = rw_recipe_init(&r, &c->graph);
    if (!status) status = add_simulated(c, r);
    const size_t kept = c->n - 1;
    if (!status) status = try_moves(c, kept);
    return status || c->graph.n_nodes > RW_SHORT_TAPE ? status : try_pairs_of_moves(c, kept);
}

rw_status rw_search_moved_neighbours(struct rw_candidates *c, size_t most_simulations)
{
    rw_status status = RW_OK;
    for (uint32_t i = 0; !status && i < c->n; i++)
        if (!c->candidate[i].named && !is_beaten(c, i)) status = write_down(c, i);
    if (!status) status = take_turn_of_kept(c);
    if (!status) status = take_turns(c, 0, c->n_simulations + most_simulations, try_moves);
    if (status || c->graph.n_nodes > RW_SHORT_TAPE) return status;
    return take_turns(c, 0, c->n_simulations + most_simulations, try_pairs_of_moves);
}
