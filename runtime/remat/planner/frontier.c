/* Collects the candidates in their fixed order, and reduces them to the frontier. */
#include "remat/planner/frontier.h"

#include "base/alloc.h"
#include "remat/planner/peak_descent.h"
#include "remat/planner/local_search.h"
#include "remat/planner/candidate_gen.h"

#include <stdlib.h>

/* Number of candidates: the actions that are simulated in total, divided by those of `none`. There are fewer with a
   cache model, which takes longer. If the number is above the minimum, half as many again are filled in another
   order. */
#define ACTIONS_IN_ALL 120000
#define ACTIONS_WITH_CACHES 90000
#define CANDIDATES_MIN 96
#define CANDIDATES_MAX 512

rw_status rw_frontier_choose(const struct rw_frontier *f, size_t point, struct rw_choice *ret_choice)
{
    return rw_candidate_choose(&f->candidates, f->point[point].candidate, ret_choice);
}

struct rw_frontier_entry rw_frontier_point_of(const struct rw_candidates *c, uint32_t candidate)
{
    const struct rw_candidate *const x = &c->candidate[candidate];
    return (struct rw_frontier_entry){ x->peak, x->moved, x->seconds, candidate };
}

int rw_frontier_faster_first(const void *pa, const void *pb)
{
    const struct rw_frontier_entry *const a = pa, *const b = pb;
    if (a->seconds != b->seconds) return a->seconds < b->seconds ? -1 : 1;
    if (a->moved != b->moved) return a->moved < b->moved ? -1 : 1;
    if (a->peak != b->peak) return a->peak < b->peak ? -1 : 1;
    return a->candidate < b->candidate ? -1 : 1;
}

/*
 * Lists the points. Named candidates are not removed, so that the planner's answer is never worse than a hand-written
 * policy at its memory.
 */
static rw_status list_points(struct rw_frontier *f)
{
    struct rw_candidates *const c = &f->candidates;
    struct rw_frontier_entry *const point = rw_malloc(c->n * sizeof *point);
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
        else rw_compact_choice_finish(&x->compact);
    }
    f->point = point;
    return RW_OK;
}

/* Adds all candidates. The order is part of the planner's results. */
static rw_status propose_all(struct rw_candidates *c)
{
    rw_status status = rw_propose_none(c);
    if (!status) status = rw_candidates_weigh(c);
    if (status) return status;
    const size_t all = c->graph.p->memory.picoseconds ? ACTIONS_WITH_CACHES : ACTIONS_IN_ALL;
    const size_t n = all / (c->n_work + 1);
    const size_t n_try = n < CANDIDATES_MIN ? CANDIDATES_MIN : n > CANDIDATES_MAX ? CANDIDATES_MAX : n;
    status = rw_propose_compact_choices(c, n_try, n > CANDIDATES_MIN ? n_try / 2 : 0);
    if (!status) status = rw_propose_named(c);
    if (status || !rw_candidates_are_of_short_tape(c)) return status;
    status = rw_local_search(c, RW_NEIGHBOURS_MAX);
    const size_t first = c->n;
    if (!status) status = rw_propose_descents(c, RW_DESCENT_ACTIONS);
    return status ? status : rw_search_rest(c, first, RW_NEIGHBOURS_MAX);
}

rw_status rw_frontier_init(struct rw_frontier *f, const struct rw_problem *p)
{
    *f = (struct rw_frontier){ .n_points = 0 };
    rw_status status = rw_candidates_init(&f->candidates, p);
    if (status) return status;
    status = propose_all(&f->candidates);
    if (!status) status = list_points(f);
    rw_simulations_trim(&f->candidates.sims);
    if (status) rw_frontier_finish(f);
    return status;
}

static rw_status open_bound(struct rw_frontier *f)
{
    struct rw_candidates *const c = &f->candidates;
    if (f->bound) return RW_OK;
    rw_status status = rw_candidate_simulate(c, 0, c->sims.room);
    struct rw_schedule none = c->sims.room->schedule;
    c->sims.room->schedule = (struct rw_schedule){ 0 };
    rw_simulation_finish(c->sims.room); /* the network of the bound is as large as the scratch memory */
    if (!status) status = rw_bound_create(&f->bound, &c->graph, &none);
    rw_schedule_finish(&none);
    return status;
}

rw_status rw_frontier_bound(struct rw_frontier *f, uint64_t bytes, double *ret_seconds)
{
    const rw_status status = open_bound(f);
    if (!status) *ret_seconds = rw_bound_seconds(f->bound, bytes);
    return status;
}

rw_status rw_frontier_bound_moved(struct rw_frontier *f, uint64_t bytes, double *ret_seconds)
{
    const rw_status status = open_bound(f);
    if (!status) *ret_seconds = rw_bound_seconds_moved(f->bound, bytes);
    return status;
}

void rw_frontier_finish(struct rw_frontier *f)
{
    rw_bound_destroy(&f->bound);
    rw_candidates_finish(&f->candidates);
    rw_free(f->point);
    *f = (struct rw_frontier){ 0 };
}
