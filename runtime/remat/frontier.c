/* See frontier.h. */
#include "remat/frontier.h"

#include "base/alloc.h"
#include "remat/bound.h"
#include "remat/neighbours.h"
#include "remat/propose.h"

#include <stdlib.h>

/* How much is tried: so many actions are simulated in all, fewer where each is looked up in the caches' books, but at
   least so many candidates; half as many again, in another order, where it is more than these. */
#define ACTIONS_IN_ALL 120000
#define ACTIONS_WITH_BOOKS 90000
#define CANDIDATES_LEAST 96
#define CANDIDATES_MOST 512

rw_status rw_frontier_choose(const struct rw_frontier *f, size_t point, struct rw_choice *ret_choice)
{
    return rw_candidate_choose(&f->candidates, f->point[point].candidate, ret_choice);
}

struct rw_frontier_point rw_frontier_point_of(const struct rw_candidates *c, uint32_t candidate)
{
    const struct rw_candidate *const x = &c->candidate[candidate];
    return (struct rw_frontier_point){ x->peak, x->moved, x->seconds, candidate };
}

int rw_frontier_faster_first(const void *pa, const void *pb)
{
    const struct rw_frontier_point *const a = pa, *const b = pb;
    if (a->seconds != b->seconds) return a->seconds < b->seconds ? -1 : 1;
    if (a->moved != b->moved) return a->moved < b->moved ? -1 : 1;
    if (a->peak != b->peak) return a->peak < b->peak ? -1 : 1;
    return a->candidate < b->candidate ? -1 : 1;
}

/* Named candidates stay: what people write by hand is never better than the planner's answer for its memory. */
static rw_status list_points(struct rw_frontier *f)
{
    struct rw_candidates *const c = &f->candidates;
    struct rw_frontier_point *const point = rw_malloc(c->n * sizeof *point);
    if (!point) return RW_ERR_MEMORY;
    for (uint32_t i = 0; i < c->n; i++)
        point[i] = rw_frontier_point_of(c, i);
    qsort(point, c->n, sizeof *point, rw_frontier_faster_first);
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < c->n; i++) {
        struct rw_candidate *const x = &c->candidate[point[i].candidate];
        const bool is_smaller = point[i].peak < least;
        if (is_smaller) least = point[i].peak;
        if (is_smaller || x->named) point[f->n_points++] = point[i];
        else rw_recipe_finish(&x->recipe);
    }
    f->point = point;
    return RW_OK;
}

static rw_status propose_all(struct rw_candidates *c)
{
    rw_status status = rw_propose_none(c);
    if (status) return status;
    const size_t all = c->graph.p->memory.picoseconds ? ACTIONS_WITH_BOOKS : ACTIONS_IN_ALL;
    const size_t n = all / (c->n_actions + 1);
    const size_t n_try = n < CANDIDATES_LEAST ? CANDIDATES_LEAST : n > CANDIDATES_MOST ? CANDIDATES_MOST : n;
    status = rw_propose_recipes(c, n_try, n > CANDIDATES_LEAST ? n_try / 2 : 0);
    if (!status) status = rw_propose_named(c);
    if (!status && c->graph.n_nodes <= RW_SHORT_TAPE) status = rw_search_neighbours(c, RW_NEIGHBOURS_MOST);
    return status;
}

rw_status rw_frontier_init(struct rw_frontier *f, const struct rw_problem *p)
{
    *f = (struct rw_frontier){ .n_points = 0 };
    rw_status status = rw_candidates_init(&f->candidates, p);
    if (status) return status;
    status = propose_all(&f->candidates);
    if (!status) status = list_points(f);
    if (status) rw_frontier_finish(f);
    return status;
}

/* What runs whatever is chosen: each node once. */
static double seconds_without_replays(const struct rw_problem *p, const struct rw_schedule *s)
{
    double seconds = 0;
    for (size_t i = 0; i < s->n_actions; i++) {
        const struct rw_action *const a = &s->actions[i];
        if (a->kind != RW_ACTION_REPLAY && !rw_action_is_move(a->kind)) seconds += rw_problem_seconds(p, a->node);
    }
    return seconds;
}

rw_status rw_frontier_seconds_without_replays(struct rw_frontier *f, double *ret_seconds)
{
    struct rw_candidates *const c = &f->candidates;
    const rw_status status = rw_candidate_simulate(c, 0, c->sims.room);
    if (!status) *ret_seconds = seconds_without_replays(c->graph.p, &c->sims.room->schedule);
    return status;
}

rw_status rw_frontier_bound(struct rw_frontier *f, uint64_t bytes, double *ret_seconds)
{
    struct rw_candidates *const c = &f->candidates;
    const struct rw_schedule *const none = &c->sims.room->schedule;
    rw_status status = rw_candidate_simulate(c, 0, c->sims.room);
    if (!status) status = rw_bound_replay(&c->graph, none, bytes, ret_seconds);
    if (!status) *ret_seconds += seconds_without_replays(c->graph.p, none);
    return status;
}

void rw_frontier_finish(struct rw_frontier *f)
{
    rw_candidates_finish(&f->candidates);
    rw_free(f->point);
    *f = (struct rw_frontier){ 0 };
}
