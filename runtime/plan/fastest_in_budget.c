/* Places frontier points until one fits the budget. The points are sorted by time, so the first that fits is the
   fastest; a point whose simulated peak already exceeds the budget is skipped without placement. No budget selects an
   arena that a plan cannot address. */
#include "plan/fastest_in_budget.h"

#include "base/alloc.h"
#include "place/arena.h"
#include "plan/addressable_arena.h"
#include "remat/planner/frontier.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct search {
    const struct rw_problem *p;
    struct rw_frontier frontier;
    struct rw_choice choice; /* of the point placed last */
    struct rw_schedule schedule; /* the same */
    struct rw_cost_of_schedule cost;
    uint64_t *offset; /* of its buffers */
    size_t cap_offset;
    uint64_t arena; /* size of the arena */
    uint64_t beside; /* total: bytes that the context holds in addition to the arena */
    uint64_t least;  /* see struct rw_decision */
    uint64_t bytes;  /* of the budget, after it is resolved */
};

static void finish(struct search *s)
{
    rw_choice_finish(&s->choice);
    rw_schedule_finish(&s->schedule);
    rw_frontier_finish(&s->frontier);
    rw_free(s->offset);
}

static rw_status find_frontier(struct search *s, const struct rw_policy *policy)
{
    const rw_status status = rw_frontier_init(&s->frontier, s->p);
    return !status && policy->moves ? rw_frontier_add_moved(&s->frontier) : status;
}

static rw_status place(struct search *s, size_t point, uint64_t *ret_bytes)
{
    rw_choice_finish(&s->choice);
    rw_status status = rw_frontier_choose(&s->frontier, point, &s->choice);
    struct rw_simulation *const room = s->frontier.candidates.sims.room;
    if (!status) status = rw_simulate(s->p, &s->choice, room, &s->cost);
    if (status) return status;
    const struct rw_schedule before = s->schedule; /* its memory is used for the next one */
    s->schedule = room->schedule;
    room->schedule = before;
    if (!rw_grow(&s->offset, &s->cap_offset, 0, s->schedule.n_buffers, sizeof *s->offset)) return RW_ERR_MEMORY;
    return rw_place_schedule(&s->schedule, s->p->t->ctx->device->alignment, s->offset, ret_bytes);
}

/* Finds the fastest point that fits: the one placed last. */
static rw_status find(struct search *s, uint64_t bytes, bool *ret_found)
{
    const uint64_t most = rw_arena_size_max(s->p->t->ctx);
    *ret_found = false;
    if (bytes > most) bytes = most;
    for (size_t i = 0; i < s->frontier.n_points; i++) {
        if (s->frontier.point[i].peak > bytes) continue;
        const rw_status status = place(s, i, &s->arena);
        *ret_found = !status && s->arena <= bytes;
        if (status || *ret_found) return status;
    }
    return RW_OK;
}

/* Finds the smallest placed size. A point is never placed in less than its peak. */
static rw_status find_least(struct search *s, uint64_t *ret_bytes)
{
    rw_status status = RW_OK;
    *ret_bytes = UINT64_MAX;
    for (size_t i = s->frontier.n_points; !status && i-- > 0;) {
        uint64_t size = 0;
        if (s->frontier.point[i].peak >= *ret_bytes) continue;
        status = place(s, i, &size);
        if (!status && size < *ret_bytes) *ret_bytes = size;
    }
    return status;
}

static rw_status place_none(struct search *s, uint64_t *ret_bytes)
{
    size_t i = 0;
    while (s->frontier.point[i].candidate) i++; /* number 0 is `none` */
    return place(s, i, ret_bytes);
}

static rw_status refuse(struct search *s, const struct rw_policy *policy, uint64_t bytes)
{
    uint64_t least, none;
    const char *const word = policy->total ? "total" : "budget";
    rw_status status = find_least(s, &least);
    if (!status) status = rw_arena_check_size(s->p->t, least);
    if (!status) status = place_none(s, &none);
    if (status) return status;
    s->least = least + s->beside;
    char part[RW_POLICY_PART];
    return rw_fail(s->p->t->ctx, RW_ERR_BUDGET,
                   "policy \"%s\", column %zu: the step does not fit into %llu bytes; the minimum is %s:%lluB%s; under "
                   "none it takes %llu",
                   rw_policy_part(policy->spec, policy->spec, part), strlen(word) + 2,
                   (unsigned long long)(policy->total ? policy->bytes : bytes), word, (unsigned long long)s->least,
                   policy->moves ? "+offload" : "", (unsigned long long)(none + s->beside));
}

uint64_t rw_gradients_to_come(const struct rw_problem *p)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->targets.n_params; i++) {
        const struct rw_param *const param = p->t->ctx->by_id[p->targets.params[i]];
        if (!param->gradient.data) bytes += param->gradient.bytes;
    }
    return bytes;
}

/* Resolves a policy to arena bytes. Per cent refer to the arena of `none`. A total leaves what remains after everything
   else: results are equal for all candidates, the rest is counted in the context. Arenas of other steps do not count,
   because free arenas and suspended steps are released when the step runs (run/enforce_total_budget.h). */
static rw_status resolve(struct search *s, const struct rw_policy *policy, uint64_t *ret_bytes)
{
    uint64_t none = 0;
    *ret_bytes = policy->bytes;
    if (policy->bytes && !policy->total) return RW_OK;
    const rw_status status = place_none(s, &none);
    if (status) return status;
    if (!policy->total) {
        *ret_bytes = (uint64_t)((double)none * policy->percent / 100);
        return RW_OK;
    }
    s->beside = rw_context_holds(s->p->t->ctx) + rw_gradients_to_come(s->p) + s->schedule.results_bytes;
    *ret_bytes = policy->bytes > s->beside ? policy->bytes - s->beside : 0;
    return RW_OK;
}

static rw_status find_bound(struct search *s, const struct rw_policy *policy, uint64_t bytes, double *ret_seconds)
{
    return policy->moves ? rw_frontier_bound_moved(&s->frontier, bytes, ret_seconds)
                         : rw_frontier_bound(&s->frontier, bytes, ret_seconds);
}

#ifndef NDEBUG
/* True if the last placed point is not faster than the bound for so many bytes. */
static bool is_above_bound(struct search *s, const struct rw_policy *policy, uint64_t bytes)
{
    double bound;
    return find_bound(s, policy, bytes, &bound) || (bound >= 0 && bound <= s->cost.seconds * (1 + 1e-9));
}
#endif

static rw_status decide(struct search *s, const struct rw_policy *policy)
{
    bool found = false;
    rw_status status = find_frontier(s, policy);
    if (!status) status = resolve(s, policy, &s->bytes);
    const bool has_arena = !policy->total || policy->bytes >= s->beside; /* an arena of 0 bytes is one */
    if (!status && has_arena) status = find(s, s->bytes, &found);
    assert(status || !found || is_above_bound(s, policy, s->bytes));
    return status || found ? status : refuse(s, policy, s->bytes);
}

/* The caller has taken the last placed point, so the limits place points again. */
static rw_status find_limits(struct search *s, const struct rw_policy *policy, struct rw_limits *ret)
{
    const rw_status status = find_bound(s, policy, s->bytes, &ret->bound);
    rw_bound_destroy(&s->frontier.bound); /* placing needs memory of its own */
    return status ? status : find_least(s, &ret->least);
}

static void take(struct search *s, struct rw_decision *ret)
{
    *ret = (struct rw_decision){ s->choice, s->schedule, s->cost, s->offset, s->arena, s->bytes };
    s->choice = (struct rw_choice){ 0 };
    s->schedule = (struct rw_schedule){ 0 };
    s->offset = NULL;
    s->cap_offset = 0;
}

rw_status rw_budget_decide(const struct rw_problem *p, const struct rw_policy *policy, struct rw_limits *limits,
                           struct rw_decision *ret)
{
    struct search s = { .p = p };
    rw_status status = decide(&s, policy);
    *ret = (struct rw_decision){ .least = s.least };
    if (!status) take(&s, ret); /* the point placed last */
    if (!status && limits) status = find_limits(&s, policy, limits);
    if (status && status != RW_ERR_BUDGET) rw_fail(p->t->ctx, status, "planning: %s", rw_status_name(status));
    finish(&s);
    return status;
}

/* Sizes of all points, to be placed by several threads. */
struct sizes {
    struct rw_frontier *f;
    uint64_t *size;
};

static rw_status find_size(void *of, size_t i, struct rw_simulation *room)
{
    const struct sizes *const x = of;
    struct rw_candidates *const c = &x->f->candidates;
    const uint64_t alignment = c->graph.p->t->ctx->device->alignment;
    x->size[i] = UINT64_MAX;
    if (x->f->point[i].peak == UINT64_MAX) return RW_OK; /* a named policy whose schedule is too long */
    const rw_status status = rw_candidate_simulate(c, x->f->point[i].candidate, room);
    return status ? status : rw_place_schedule(&room->schedule, alignment, NULL, &x->size[i]);
}

/* Lists placed points, the fastest first, without dominated ones: those not smaller than a faster point, and those
   that are as fast as a smaller one. *ret_n of 0: no point can be addressed. */
static rw_status list_points(struct search *s, const struct rw_policy *policy, const uint64_t *sizes,
                             rw_frontier_point *points, size_t *ret_n)
{
    const uint64_t most = rw_arena_size_max(s->p->t->ctx);
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < s->frontier.n_points; i++) {
        const double ms = s->frontier.point[i].seconds * 1e3;
        const uint64_t size = sizes[i];
        double bound = 0;
        if (size > most || (*ret_n && size >= points[*ret_n - 1].peak_bytes)) continue;
        status = find_bound(s, policy, size, &bound);
        *ret_n -= *ret_n && points[*ret_n - 1].ms == ms;
        points[(*ret_n)++] = (rw_frontier_point){ .peak_bytes = size, .ms = ms };
        points[*ret_n - 1].bound_ms = fmin(bound * 1e3, points[*ret_n - 1].ms); /* summed in another order */
    }
    return status;
}

static void reverse(rw_frontier_point *points, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        const rw_frontier_point other = points[i];
        points[i] = points[n - 1 - i];
        points[n - 1 - i] = other;
    }
}

rw_status rw_budget_least(const struct rw_problem *p, const struct rw_policy *policy, uint64_t *ret_bytes)
{
    struct search s = { .p = p };
    rw_status status = find_frontier(&s, policy);
    if (!status) status = find_least(&s, ret_bytes);
    finish(&s);
    return status;
}

static const char *const shares[] = { "75%", "50%", "25%" };

/* Offers only budgets that fit. */
static rw_status offer(struct search *s, const struct rw_policy *policy, uint64_t bytes, const char *size,
                       struct rw_budget_offer *ret, size_t *ret_n)
{
    bool found;
    const rw_status status = find(s, bytes, &found);
    if (status || !found) return status;
    struct rw_budget_offer *const x = &ret[(*ret_n)++];
    *x = (struct rw_budget_offer){ .bytes = s->arena, .cost = s->cost };
    snprintf(x->policy, sizeof x->policy, "budget:%s%s", size, policy->moves ? "+offload" : "");
    return RW_OK;
}

static rw_status offer_all(struct search *s, bool moves, struct rw_budget_offer *ret, size_t *ret_n)
{
    char size[24];
    uint64_t bytes = 0;
    struct rw_policy policy = { .kind = RW_POLICY_BUDGET, .moves = moves };
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < sizeof shares / sizeof *shares; i++) {
        policy.percent = strtod(shares[i], NULL);
        status = resolve(s, &policy, &bytes);
        if (!status) status = offer(s, &policy, bytes, shares[i], ret, ret_n);
    }
    if (!status) status = find_least(s, &bytes);
    snprintf(size, sizeof size, "%lluB", (unsigned long long)bytes);
    return status ? status : offer(s, &policy, bytes, size, ret, ret_n);
}

/* Points with offload follow the others on the same frontier. */
rw_status rw_budget_offers(const struct rw_problem *p, bool moves, struct rw_budget_offer ret[RW_OFFERS_MAX],
                           size_t *ret_n)
{
    struct search s = { .p = p };
    *ret_n = 0;
    rw_status status = rw_frontier_init(&s.frontier, p);
    if (!status) status = offer_all(&s, false, ret, ret_n);
    if (!status && moves) status = rw_frontier_add_moved(&s.frontier);
    if (!status && moves) status = offer_all(&s, true, ret, ret_n);
    finish(&s);
    return status;
}

rw_status rw_budget_points(const struct rw_problem *p, const struct rw_policy *policy, rw_frontier_point **ret_points,
                           size_t *ret_n)
{
    struct search s = { .p = p };
    struct sizes sizes = { .f = &s.frontier };
    rw_frontier_point *points = NULL;
    uint64_t least;
    size_t n = 0;
    rw_status status = find_frontier(&s, policy);
    const size_t n_points = s.frontier.n_points;
    if (!status) {
        points = rw_malloc(n_points * sizeof *points);
        sizes.size = rw_malloc(n_points * sizeof *sizes.size);
        if (!points || !sizes.size) status = RW_ERR_MEMORY;
    }
    struct rw_candidates *const c = &s.frontier.candidates;
    if (!status) status = rw_simulations_share(&c->sims, n_points, c->n_actions, find_size, &sizes);
    if (!status) status = list_points(&s, policy, sizes.size, points, &n);
    if (!status && !n) status = find_least(&s, &least);
    if (!status && !n) status = rw_arena_check_size(p->t, least);
    finish(&s);
    rw_free(sizes.size);
    if (status) {
        rw_free(points);
        return status;
    }
    reverse(points, n);
    *ret_points = points;
    *ret_n = n;
    return RW_OK;
}
