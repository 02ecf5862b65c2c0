/* Passes 2 to 4: checks names in policies, opens the problem, decides by policy, budget or budgets of parts, places
   buffers and assembles the plan. */
#include "plan/build.h"

#include "base/alloc.h"
#include "ops/common/pass_ops.h"
#include "place/arena.h"
#include "plan/addressable_arena.h"
#include "plan/assemble.h"
#include "plan/dump_passes.h"
#include "plan/fastest_in_budget.h"
#include "record/unmatched_policy_names.h"
#include "remat/policy/offload_fraction.h"
#include "remat/policy/policy_to_choice.h"

#include <assert.h>
#include <string.h>

static bool is_op(const rw_context *ctx, const char *name)
{
    for (size_t i = 0; i < ctx->n_ops; i++)
        if (!strcmp(ctx->ops[i]->name, name)) return true;
    return rw_op_is_builtin(name);
}

/* Checked here and not when the policy is set, because a custom op is known only after it has been recorded. */
static rw_status check_names_of(rw_context *ctx, const struct rw_policy *policy)
{
    size_t column = sizeof "ops:";
    for (size_t i = 0; policy->kind == RW_POLICY_OPS && i < policy->n_names; i++) {
        char part[RW_POLICY_PART];
        if (!is_op(ctx, policy->names[i]))
            return rw_fail(ctx, RW_ERR_POLICY,
                           "policy \"%s\", column %zu: expected the name of a built-in op or of one recorded in this "
                           "context, got \"%s\"",
                           rw_policy_part(policy->spec, policy->spec + column - 1, part), column, policy->names[i]);
        column += strlen(policy->names[i]) + 1;
    }
    return RW_OK;
}

static rw_status check_op_names(const rw_tape *t, const struct rw_policy *policy)
{
    rw_status status = check_names_of(t->ctx, policy);
    for (size_t i = 0; !status && !policy->whole && i < t->n_parts; i++)
        status = check_names_of(t->ctx, &t->parts[i].policy);
    return status;
}

/* Once, before the first plan that offloads something or might. */
rw_status rw_try_to_measure_store(rw_context *ctx)
{
    struct rw_store_place *const store = &ctx->store;
    if (!store->fns->measure || (store->rate.out > 0 && store->rate.in > 0)) return RW_OK;
    struct rw_store_rate rate;
    const rw_status status = store->fns->measure(ctx->device_state, store->path, ctx->threads, &rate);
    if (status) return status;
    rw_store_learn(store, rw_store_cost_of(rate));
    return RW_OK;
}

static rw_status measure_store(rw_context *ctx)
{
    const rw_status status = rw_try_to_measure_store(ctx);
    if (status) return rw_fail(ctx, status, "planning: the speed of copies to and from files could not be measured");
    return RW_OK;
}

/* Marks offload values under every policy. */
rw_status rw_measure_store_for_budgets(const struct rw_problem *p, const struct rw_policy *policy)
{
    struct rw_choice none;
    rw_status status = rw_policy_choose(p, &rw_policy_none, &none);
    if (status) return rw_fail(p->t->ctx, status, "planning: %s", rw_status_name(status));
    if (policy->moves || rw_choice_moves(p, &none)) status = measure_store(p->t->ctx);
    rw_choice_finish(&none);
    return status;
}

static rw_status decide_by_budget(struct rw_planning *g, const struct rw_policy *policy, struct rw_limits *limits)
{
    struct rw_decision d = { .cost = { 0 } };
    rw_status status = rw_measure_store_for_budgets(&g->problem, policy);
    if (!status) status = rw_budget_decide(&g->problem, policy, limits, &d);
    g->choice = d.choice;
    g->schedule = d.schedule;
    g->cost = d.cost;
    g->offset = d.offset;
    g->arena = d.arena;
    g->least = d.least;
    g->budget = d.budget;
    return status;
}

/* If a part offloads values, its candidates are simulated with the store's rates. */
static rw_status decide_parts(struct rw_planning *g)
{
    const struct rw_problem *const p = &g->problem;
    rw_status status = rw_choice_moves(p, &g->choice) ? measure_store(p->t->ctx) : RW_OK;
    if (!status) status = rw_part_budgets_decide(p, &g->choice, &g->parts);
    if (status == RW_ERR_BUDGET) rw_part_budgets_refuse(p->t, &g->parts, &g->least);
    return status;
}

/* A budget decides by itself and has placed its schedule. Any other policy gives one choice, which budgets of parts
   may change, and which is simulated once for its schedule. */
static rw_status decide(struct rw_planning *g, const struct rw_request *request, struct rw_limits *limits)
{
    const struct rw_problem *const p = &g->problem;
    if (request->policy->kind == RW_POLICY_BUDGET) return decide_by_budget(g, request->policy, limits);
    struct rw_simulation sim = { 0 };
    rw_status status = rw_policy_choose(p, request->policy, &g->choice);
    if (!status && rw_has_part_budgets(p->t, request->policy)) status = decide_parts(g);
    if (!status && rw_choice_moves(p, &g->choice)) status = measure_store(p->t->ctx);
    if (!status) status = rw_simulate(p, &g->choice, &sim, &g->cost);
    if (!status) {
        g->schedule = sim.schedule; /* exactly the schedule whose cost was counted */
        sim.schedule = (struct rw_schedule){ 0 };
    }
    rw_simulation_finish(&sim);
    if (!status || status == RW_ERR_BUDGET) return status;
    return rw_fail(p->t->ctx, status, "planning: %s", rw_status_name(status));
}

rw_status rw_planning_open_problem(struct rw_problem *ret, rw_tape *t, const struct rw_request *request)
{
    rw_status status = rw_tape_misses_nothing(t, "planning a step");
    if (!status) status = check_op_names(t, request->policy);
    if (!status) status = rw_unmatched_check(t, request->policy);
    if (!status) status = rw_part_budgets_check(t, request->policy);
    return status ? status : rw_problem_open(ret, t, request);
}

rw_status rw_planning_open_with_limits(struct rw_planning *g, rw_tape *t, const struct rw_request *request,
                                       struct rw_limits *limits)
{
    *g = (struct rw_planning){ .policy = request->policy,
                                .total_bytes = request->policy->total ? request->policy->bytes : 0 };
    rw_status status = rw_planning_open_problem(&g->problem, t, request);
    if (!status) status = decide(g, request, limits);
    if (status) rw_planning_close(g);
    return status;
}

rw_status rw_planning_open(struct rw_planning *g, rw_tape *t, const struct rw_request *request)
{
    return rw_planning_open_with_limits(g, t, request, NULL);
}

/* Of a context: the serial of its latest plan. */
static struct rw_extension serials_extension = { .name = "plan_serials", .size = sizeof(uint64_t) };

/* A decision by budget has already placed them. */
static rw_status place_buffers(struct rw_planning *g)
{
    if (g->offset) return RW_OK;
    g->offset = rw_malloc(g->schedule.n_buffers * sizeof *g->offset);
    if (!g->offset) return RW_ERR_MEMORY;
    return rw_place_schedule(&g->schedule, g->problem.t->ctx->device->alignment, g->offset, &g->arena);
}

/* Assembling moves the adjoint nodes from the tape to the plan, so it is the last step. */
rw_status rw_planning_place(struct rw_planning *g, rw_plan **ret_plan)
{
    rw_context *const ctx = g->problem.t->ctx;
    uint64_t *const serial = rw_extension_make(&ctx->extensions, &serials_extension), store = 0;
    rw_plan *plan = NULL;
    rw_status status = serial ? place_buffers(g) : RW_ERR_MEMORY;
    if (!status) status = rw_place_slots(&g->schedule, &store);
    if (!status) status = rw_arena_check_size(g->problem.t, g->arena);
    if (!status) status = rw_plan_assemble(&g->problem, &g->schedule, g->offset, &plan);
    rw_free(g->offset); /* another schedule may follow */
    g->offset = NULL;
    if (status) return rw_fail(ctx, status, "planning: %s", rw_status_name(status));
    plan->serial = ++*serial;
    plan->arena_bytes = g->arena;
    plan->store_bytes = store;
    plan->total_bytes = g->total_bytes;
    plan->budget_bytes = g->budget;
    plan->largest_live = g->cost.peak;
    plan->kept_bytes = g->cost.kept;
    plan->replayed_bytes = g->cost.replayed;
    plan->workspace_bytes = g->cost.workspace;
    assert(rw_plan_is_valid(g->problem.t, plan));
    status = rw_plan_dump(g, plan);
    if (status) rw_plan_release(plan);
    else *ret_plan = plan;
    return status;
}

void rw_planning_close(struct rw_planning *g)
{
    rw_schedule_finish(&g->schedule);
    rw_choice_finish(&g->choice);
    rw_free(g->offset);
    rw_part_uses_finish(&g->parts);
    rw_problem_close(&g->problem);
}

rw_status rw_plan_build(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan)
{
    struct rw_planning planning;
    rw_status status = rw_planning_open(&planning, t, request);
    if (status) return status;
    status = rw_planning_place(&planning, ret_plan);
    rw_planning_close(&planning);
    return status;
}
