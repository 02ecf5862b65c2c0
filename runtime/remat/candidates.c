/* See candidates.h. */
#include "remat/candidates.h"

#include "base/alloc.h"
#include "remat/choose.h"
#include "remat/move.h"

rw_status rw_candidates_init(struct rw_candidates *c, const struct rw_problem *p)
{
    *c = (struct rw_candidates){ .n = 0 };
    rw_status status = rw_replayable_init(&c->graph, p);
    if (!status) status = rw_simulations_init(&c->sims, p->t->ctx->threads);
    if (status) rw_candidates_finish(c);
    return status;
}

void rw_candidates_finish(struct rw_candidates *c)
{
    for (size_t i = 0; i < c->n; i++)
        if (!c->candidate[i].named) rw_recipe_finish(&c->candidate[i].recipe);
    rw_free(c->candidate);
    rw_simulations_finish(&c->sims);
    rw_replayable_finish(&c->graph);
    *c = (struct rw_candidates){ 0 };
}

static rw_status choose(const struct rw_candidates *c, const struct rw_candidate *x, struct rw_choice *ret_choice)
{
    if (x->named) return rw_policy_choose(c->graph.p, &x->policy, ret_choice);
    return rw_recipe_choose(&x->recipe, &c->graph, ret_choice);
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

rw_status rw_candidate_simulate(struct rw_candidates *c, uint32_t candidate, struct rw_simulation *room)
{
    struct rw_choice choice;
    struct rw_cost_of_schedule cost;
    rw_status status = rw_candidate_choose(c, candidate, &choice);
    if (status) return status;
    status = rw_simulate_briefly(c->graph.p, &choice, room, &cost);
    rw_choice_finish(&choice);
    if (status) return status;
    c->candidate[candidate].peak = cost.peak;
    c->candidate[candidate].moved = cost.moved;
    c->candidate[candidate].seconds = cost.seconds;
    return RW_OK;
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
        rw_recipe_finish(&x.recipe);
        return RW_ERR_MEMORY;
    }
    c->candidate[c->n++] = x;
    return RW_OK;
}

rw_status rw_candidates_add(struct rw_candidates *c, struct rw_recipe recipe)
{
    return add(c, (struct rw_candidate){ .recipe = recipe });
}

rw_status rw_candidates_add_named(struct rw_candidates *c, struct rw_policy policy)
{
    return add(c, (struct rw_candidate){ .named = true, .policy = policy });
}

rw_status rw_candidates_add_moved(struct rw_candidates *c, uint32_t base, uint8_t part)
{
    return add(c, (struct rw_candidate){ .base = base, .part = part });
}
