/* Tries prefixes of each part's order, evenly spaced and in increasing length, and takes the fastest with which the
   part fits; then counts all parts together. */
#include "plan/part_budgets.h"

#include "base/alloc.h"

/* Limits of work: simulated actions for all parts together, but at least so many choices per part. */
#define ACTIONS_IN_ALL 120000
#define CHOICES_MIN 16
#define CHOICES_MAX 256

struct decider {
    const struct rw_problem *p;
    struct rw_parts parts;
    struct rw_simulation sim;
    size_t n_try; /* for each part */
};

rw_status rw_part_budgets_check(const rw_tape *t, const struct rw_policy *policy)
{
    if (policy->kind != RW_POLICY_BUDGET || !rw_has_part_budgets(t, policy)) return RW_OK;
    uint32_t i = 0;
    while (t->parts[i].policy.kind != RW_POLICY_BUDGET) i++;
    const rw_site begun = t->ctx->sites[t->parts[i].site];
    return rw_fail(t->ctx, RW_ERR_UNSUPPORTED,
                   "policy \"%.100s\": the part begun at %s:%d has a budget of its own, \"%.100s\"; expected a "
                   "budget of the tape or budgets of parts, got both", policy->spec, begun.file, (int)begun.line,
                   t->parts[i].policy.spec);
}

void rw_part_budgets_refuse(const rw_tape *t, const struct rw_part_uses *uses, uint64_t *ret_least)
{
    size_t i = 0;
    while (uses->use[i].part != uses->refused) i++;
    const struct rw_part_use *const use = &uses->use[i];
    const struct rw_tape_part *const part = &t->parts[use->part];
    const rw_site at = t->ctx->sites[part->site];
    char text[RW_POLICY_PART];
    *ret_least = use->least;
    rw_fail(t->ctx, RW_ERR_BUDGET,
            "ckpt_policy_begin at %s:%d: policy \"%s\", column 8: the part does not fit into %llu bytes; the minimum "
            "is budget:%lluB; under none it takes %llu", rw_file_of(at), (int)at.line,
            rw_policy_part(part->policy.spec, part->policy.spec, text), (unsigned long long)use->budget,
            (unsigned long long)use->least, (unsigned long long)use->all);
}

void rw_part_uses_finish(struct rw_part_uses *uses)
{
    rw_free(uses->use);
    *uses = (struct rw_part_uses){ .refused = RW_NONE_ID };
}

static rw_status try_first(struct decider *d, struct rw_choice *c, const struct rw_part_order *o, size_t n_dropped,
                           uint64_t *ret_bytes, double *ret_seconds)
{
    struct rw_cost_of_schedule cost = { 0 };
    rw_parts_choose(&d->parts, o, n_dropped, c);
    rw_status status = rw_simulate(d->p, c, &d->sim, &cost);
    if (!status) status = rw_parts_count(&d->parts, &d->sim.schedule, o, ret_bytes);
    *ret_bytes += o->beside;
    *ret_seconds = cost.seconds;
    return status;
}

static uint64_t budget_of(const struct rw_policy *policy, uint64_t all)
{
    return policy->bytes ? policy->bytes : (uint64_t)((double)all * policy->percent / 100);
}

/*
 * Finds the fastest of the tried prefixes with which the part fits, the shortest of several. Without a price of memory
 * the first that fits is the fastest, and the others are not tried. *c is left with all of the part kept.
 */
static rw_status decide_part(struct decider *d, struct rw_choice *c, const struct rw_part_order *o,
                             struct rw_part_use *use, size_t *ret_dropped)
{
    const size_t n = o->n + 1 < d->n_try ? o->n + 1 : d->n_try;
    const bool is_first_best = !d->p->memory.picoseconds;
    rw_status status = RW_OK;
    bool found = false;
    double best = 0;
    use->part = o->part;
    use->least = UINT64_MAX;
    for (size_t i = 0; !status && i < n && !(is_first_best && found); i++) {
        const size_t n_dropped = i * o->n / (n > 1 ? n - 1 : 1);
        uint64_t bytes = 0;
        double seconds = 0;
        status = try_first(d, c, o, n_dropped, &bytes, &seconds);
        if (!i) use->all = bytes, use->budget = budget_of(&d->p->t->parts[o->part].policy, bytes);
        if (bytes < use->least) use->least = bytes;
        if (bytes > use->budget || (found && !(seconds < best))) continue;
        found = true;
        best = seconds;
        *ret_dropped = n_dropped;
    }
    rw_parts_choose(&d->parts, o, 0, c);
    return status ? status : found ? RW_OK : RW_ERR_BUDGET;
}

/* Simulates all parts together and records the bytes of each. */
static rw_status count_all(struct decider *d, const struct rw_choice *c, struct rw_part_uses *ret)
{
    struct rw_cost_of_schedule cost;
    rw_status status = rw_simulate(d->p, c, &d->sim, &cost);
    for (size_t i = 0; !status && i < ret->n; i++) {
        struct rw_part_use *const use = &ret->use[i];
        status = rw_parts_count(&d->parts, &d->sim.schedule, &d->parts.order[i], &use->bytes);
        if (status || use->bytes <= use->budget) continue;
        use->least = use->bytes;
        ret->refused = use->part;
        return RW_ERR_BUDGET;
    }
    return status;
}

static rw_status decide_each(struct decider *d, struct rw_choice *c, size_t *dropped, struct rw_part_uses *ret)
{
    rw_status status = RW_OK;
    for (size_t i = 0; i < d->parts.n; i++) rw_parts_choose(&d->parts, &d->parts.order[i], 0, c);
    for (size_t i = 0; !status && i < d->parts.n; i++) {
        struct rw_part_use *const use = &ret->use[ret->n++];
        status = decide_part(d, c, &d->parts.order[i], use, &dropped[i]);
        if (status == RW_ERR_BUDGET) ret->refused = use->part;
    }
    for (size_t i = 0; !status && i < d->parts.n; i++) rw_parts_choose(&d->parts, &d->parts.order[i], dropped[i], c);
    return status ? status : count_all(d, c, ret);
}

/* Depends only on the tape and its parts, not on a budget. */
static size_t count_tries(const struct rw_problem *p)
{
    const rw_tape *const t = p->t;
    size_t n_parts = 0;
    for (size_t i = 0; i < t->n_parts; i++) n_parts += t->parts[i].policy.kind == RW_POLICY_BUDGET;
    const size_t n = ACTIONS_IN_ALL / (p->n_order + 1) / n_parts;
    return n < CHOICES_MIN ? CHOICES_MIN : n > CHOICES_MAX ? CHOICES_MAX : n;
}

rw_status rw_part_budgets_decide(const struct rw_problem *p, struct rw_choice *c, struct rw_part_uses *ret)
{
    struct decider d = { .p = p, .n_try = count_tries(p) };
    *ret = (struct rw_part_uses){ .refused = RW_NONE_ID };
    rw_status status = rw_parts_init(&d.parts, p, c, d.n_try / 4);
    if (status) return status;
    size_t *const dropped = rw_calloc(d.parts.n, sizeof *dropped);
    ret->use = rw_calloc(d.parts.n, sizeof *ret->use);
    status = dropped && ret->use ? decide_each(&d, c, dropped, ret) : RW_ERR_MEMORY;
    rw_free(dropped);
    rw_simulation_finish(&d.sim);
    rw_parts_finish(&d.parts);
    return status;
}
