/* The list of candidates: which values are significant, and simulation of candidates by the context's threads. */
#include "remat/planner/candidates.h"

#include "base/alloc.h"
#include "remat/policy/policy_to_choice.h"
#include "remat/policy/offload_fraction.h"

#include <math.h>

/* Maximum length of a tape whose tiny values are ignored. Longer tapes take too long to simulate for a search. */
#define LONG_WITH_SPECKS 96

/* A named policy is abandoned above this multiple of the actions of `none`. With regions nested a thousand deep it
   would recompute the innermost ones a thousand times, and its schedule would be as long. */
#define LONGEST 8

rw_status rw_candidates_init(struct rw_candidates *c, const struct rw_problem *p)
{
    *c = (struct rw_candidates){ .n = 0 };
    rw_status status = rw_replayable_init(&c->graph, p);
    c->length = rw_candidates_length(c->graph.n_nodes, c->graph.n_values);
    if (!status) status = rw_simulations_init(&c->sims, p->t->ctx->threads);
    if (status) rw_candidates_finish(c);
    return status;
}

void rw_candidates_finish(struct rw_candidates *c)
{
    for (size_t i = 0; i < c->n; i++)
        if (!c->candidate[i].named) rw_compact_choice_finish(&c->candidate[i].compact);
    rw_free(c->candidate);
    rw_free(c->weighty);
    rw_simulations_finish(&c->sims);
    rw_replayable_finish(&c->graph);
    *c = (struct rw_candidates){ 0 };
}

static bool makes_weighty(const struct rw_candidates *c, uint32_t place)
{
    bool makes = false;
    for (uint32_t v = c->graph.output_at[place]; v < c->graph.output_at[place + 1]; v++) makes |= c->weighty[v];
    return makes;
}

uint64_t rw_candidates_speck(const struct rw_candidates *c)
{
    const size_t n = c->length;
    return n <= RW_SHORT_TAPE || n > LONG_WITH_SPECKS ? 0 : c->candidate[0].peak / RW_SPECK_PART;
}

rw_status rw_candidates_weigh(struct rw_candidates *c)
{
    const struct rw_replayable *const g = &c->graph;
    const bool is_short = c->length <= RW_SHORT_TAPE;
    size_t nodes = 0, values = 0;
    c->weighty = rw_malloc(g->n_values * sizeof *c->weighty);
    if (!c->weighty) return RW_ERR_MEMORY;
    for (uint32_t v = 0; v < g->n_values; v++)
        c->weighty[v] = rw_value_may_drop(g, v) && (is_short || g->bytes[v] > c->candidate[0].peak / RW_SPECK_PART);
    for (uint32_t v = 0; v < g->n_values; v++) values += c->weighty[v];
    for (uint32_t i = 0; i < g->n_nodes; i++) nodes += makes_weighty(c, i);
    c->n_weighty = is_short ? c->length : rw_candidates_length(nodes, values);
    return RW_OK;
}

bool rw_candidates_are_of_short_tape(const struct rw_candidates *c)
{
    return c->n_weighty <= RW_SHORT_TAPE && c->length <= LONG_WITH_SPECKS;
}

bool rw_candidates_may_cut(const struct rw_candidates *c, uint32_t place)
{
    if (c->length <= RW_SHORT_TAPE) return true;
    return makes_weighty(c, place) || makes_weighty(c, place - 1);
}

static rw_status choose(const struct rw_candidates *c, const struct rw_candidate *x, struct rw_choice *ret_choice)
{
    if (x->named) return rw_policy_choose(c->graph.p, &x->policy, ret_choice);
    return rw_compact_choice_choose(&x->compact, &c->graph, ret_choice);
}

rw_status rw_candidate_choose(const struct rw_candidates *c, uint32_t candidate, struct rw_choice *ret_choice)
{
    const struct rw_candidate *const x = &c->candidate[candidate];
    if (!x->part) return choose(c, x, ret_choice);
    rw_status status = choose(c, &c->candidate[x->base], ret_choice);
    if (status) return status;
    status = rw_move_first(c->graph.p, ret_choice, x->part, RW_MOVED_PARTS);
    if (status) rw_choice_finish(ret_choice);
    return status;
}

/* Simulates a choice of a candidate. Sets a limit of actions for named policies, and gives those above it infinite
   costs. */
static rw_status simulate(struct rw_candidates *c, uint32_t candidate, const struct rw_choice *choice,
                          struct rw_simulation *room)
{
    struct rw_candidate *const x = &c->candidate[candidate];
    struct rw_cost_of_schedule cost;
    room->order.most_actions = candidate && x->named ? LONGEST * (c->n_actions + 1) : 0;
    const rw_status status = rw_simulate_briefly(c->graph.p, choice, room, &cost);
    room->order.most_actions = 0;
    if (status == RW_ERR_UNSUPPORTED) {
        x->peak = UINT64_MAX;
        x->seconds = INFINITY;
        return RW_OK;
    }
    if (status) return status;
    x->peak = cost.peak;
    x->moved = cost.moved;
    x->seconds = cost.seconds;
    return RW_OK;
}

rw_status rw_candidate_simulate(struct rw_candidates *c, uint32_t candidate, struct rw_simulation *room)
{
    const struct rw_candidate *const x = &c->candidate[candidate];
    struct rw_choice choice;
    if (!x->named && !x->part) {
        const rw_status status = rw_compact_choice_expand(&x->compact, &c->graph, &room->choice);
        return status ? status : simulate(c, candidate, &room->choice, room);
    }
    rw_status status = rw_candidate_choose(c, candidate, &choice);
    if (status) return status;
    status = simulate(c, candidate, &choice, room);
    rw_choice_finish(&choice);
    return status;
}

static rw_status simulate_next(void *of, size_t i, struct rw_simulation *room)
{
    struct rw_candidates *const c = of;
    return rw_candidate_simulate(c, (uint32_t)(c->n_simulated + i), room);
}

rw_status rw_candidates_simulate(struct rw_candidates *c)
{
    const size_t n = c->n - c->n_simulated;
    const rw_status status = rw_simulations_share(&c->sims, n, c->n_actions, simulate_next, c);
    c->n_simulations += n;
    c->n_simulated = c->n;
    return status;
}

static rw_status add(struct rw_candidates *c, struct rw_candidate x)
{
    if (!rw_grow(&c->candidate, &c->cap, c->n, 1, sizeof *c->candidate)) {
        rw_compact_choice_finish(&x.compact);
        return RW_ERR_MEMORY;
    }
    c->candidate[c->n++] = x;
    return RW_OK;
}

rw_status rw_candidates_add(struct rw_candidates *c, struct rw_compact_choice compact)
{
    return add(c, (struct rw_candidate){ .compact = compact });
}

rw_status rw_candidates_add_named(struct rw_candidates *c, struct rw_policy policy)
{
    return add(c, (struct rw_candidate){ .named = true, .policy = policy });
}

rw_status rw_candidates_add_moved(struct rw_candidates *c, uint32_t base, uint8_t part)
{
    return add(c, (struct rw_candidate){ .base = base, .part = part });
}
