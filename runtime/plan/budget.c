/* See budget.h. */
#include "plan/budget.h"

#include "base/alloc.h"
#include "place/arena.h"
#include "remat/frontier.h"

struct search {
    const struct rw_problem *p;
    struct rw_frontier frontier;
    struct rw_choice choice; /* of the point that was placed last */
    struct rw_simulation sim;
    struct rw_cost_of_schedule cost;
    uint64_t *offset;
    size_t cap_offset;
};

static rw_status place(struct search *s, size_t point, uint64_t *ret_bytes)
{
    rw_choice_finish(&s->choice);
    rw_status status = rw_frontier_choose(&s->frontier, point, &s->choice);
    if (!status) status = rw_simulate(s->p, &s->choice, &s->sim, &s->cost);
    if (status) return status;
    if (!rw_grow(&s->offset, &s->cap_offset, 0, s->sim.schedule.n_buffers, sizeof *s->offset)) return RW_ERR_MEMORY;
    return rw_place_schedule(&s->sim.schedule, s->p->t->ctx->device->alignment, s->offset, ret_bytes);
}

/* The fastest that fits is the one placed last. */
static rw_status find(struct search *s, uint64_t bytes, bool *ret_found)
{
    *ret_found = false;
    for (size_t i = 0; i < s->frontier.n_points; i++) {
        uint64_t size = 0;
        if (s->frontier.point[i].peak > bytes) continue;
        const rw_status status = place(s, i, &size);
        *ret_found = !status && size <= bytes;
        if (status || *ret_found) return status;
    }
    return RW_OK;
}

/* The smallest placed size. Nothing is placed in less than its peak. */
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

static rw_status refuse(struct search *s, const struct rw_policy *policy, uint64_t bytes)
{
    uint64_t least;
    const rw_status status = find_least(s, &least);
    if (status) return status;
    char part[RW_POLICY_PART];
    return rw_fail(s->p->t->ctx, RW_ERR_BUDGET,
                   "policy \"%s\", column 8: the step doesn't fit into %llu bytes; the least budget that would do is "
                   "budget:%lluB%s",
                   rw_policy_part(policy->spec, policy->spec, part), (unsigned long long)bytes,
                   (unsigned long long)least, policy->moves ? "+offload" : "");
}

/* A share is of what `none` takes. */
static rw_status resolve(struct search *s, const struct rw_policy *policy, uint64_t *ret_bytes)
{
    uint64_t none = 0;
    size_t i = 0;
    while (s->frontier.point[i].candidate) i++;
    *ret_bytes = policy->bytes;
    const rw_status status = policy->bytes ? RW_OK : place(s, i, &none);
    if (!policy->bytes) *ret_bytes = (uint64_t)((double)none * policy->percent / 100);
    return status;
}

static rw_status decide(struct search *s, const struct rw_policy *policy)
{
    uint64_t bytes = 0;
    bool found = false;
    rw_status status = rw_frontier_init(&s->frontier, s->p);
    if (!status && policy->moves) status = rw_frontier_add_moved(&s->frontier);
    if (!status) status = resolve(s, policy, &bytes);
    if (!status) status = find(s, bytes, &found);
    return status || found ? status : refuse(s, policy, bytes);
}

rw_status rw_budget_decide(const struct rw_problem *p, const struct rw_policy *policy, struct rw_decision *ret)
{
    struct search s = { .p = p };
    const rw_status status = decide(&s, policy);
    *ret = (struct rw_decision){ 0 };
    if (!status) {
        *ret = (struct rw_decision){ s.choice, s.sim.schedule, s.cost }; /* the very one that was placed */
        s.choice = (struct rw_choice){ 0 };
        s.sim.schedule = (struct rw_schedule){ 0 };
    } else if (status != RW_ERR_BUDGET) {
        rw_fail(p->t->ctx, status, "planning: %s", rw_status_name(status));
    }
    rw_choice_finish(&s.choice);
    rw_simulation_finish(&s.sim);
    rw_frontier_finish(&s.frontier);
    rw_free(s.offset);
    return status;
}
