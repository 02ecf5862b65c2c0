/* Passes 2 to 4: name what is to be held, differentiated (sinks.h), schedule, place, and keep the result as a plan. See build.h. */
#include "plan/build.h"

#include "plan/layout_plan.h"
#include "autodiff/targets.h"
#include "base/alloc.h"
#include "plan/cache.h"
#include "record/own_ops.h"

#include <assert.h>
#include <string.h>

static bool copy_array(void *ret, size_t *ret_n, const void *from, size_t n, size_t size)
{
    void *const p = rw_malloc(n * size);
    if (!p) return false;
    if (n) memcpy(p, from, n * size);
    memcpy(ret, &p, sizeof p);
    *ret_n = n;
    return true;
}

/* What differentiation recorded leaves the tape and becomes the plan's. */
static bool take_tail(const rw_tape *t, rw_plan *plan, const struct rw_tape_mark *mark)
{
    plan->mark_nodes = (uint32_t)mark->nodes;
    plan->mark_operands = (uint32_t)mark->operands;
    plan->mark_attrs = (uint32_t)mark->attrs;
    plan->mark_values = (uint32_t)mark->values;
    plan->n_values = t->n_values - mark->values;
    plan->values = rw_malloc(plan->n_values * sizeof *plan->values);
    if (!plan->values) return false;
    for (size_t i = 0; i < plan->n_values; i++) {
        const struct rw_tensor *const v = rw_tape_value(t, (uint32_t)(mark->values + i));
        plan->values[i] = (struct rw_value_desc){ .layout = v->layout, .dtype = v->dtype };
    }
    return copy_array(&plan->nodes, &plan->n_nodes, t->nodes + mark->nodes, t->n_nodes - mark->nodes, sizeof *t->nodes) &&
           copy_array(&plan->operands, &plan->n_operands, t->operands + mark->operands, t->n_operands - mark->operands,
                      sizeof *t->operands) &&
           copy_array(&plan->attrs, &plan->n_attrs, t->attrs + mark->attrs, t->n_attrs - mark->attrs, 1);
}

/* What a gradient rule read of the context by itself: the tape will have another leaf in that place, or none. */
static void forget_leaves_of_the_tail(rw_plan *plan, const struct rw_tape_mark *mark)
{
    for (size_t i = 0; i < plan->n_sources; i++)
        if (plan->sources[i].leaf >= mark->leaves) plan->sources[i].leaf = RW_NONE_ID;
}

static rw_status assemble(const struct rw_sinks *sinks, struct rw_schedule *s, const struct rw_tape_mark *mark, rw_plan **ret_plan)
{
    rw_context *const ctx = sinks->ctx;
    const struct rw_request *const request = sinks->request;
    rw_plan *const plan = rw_calloc(1, sizeof *plan);
    if (!plan) return rw_fail(ctx, RW_ERR_MEMORY, "planning: out of memory");
    plan->references = 1;
    plan->serial = ++ctx->plans->serial;
    plan->kind = request->kind;
    plan->root = request->n_values ? request->values[0] : RW_NONE_ID;
    rw_status status = take_tail(sinks->t, plan, mark) ? RW_OK : RW_ERR_MEMORY;
    if (!status) status = rw_layout_plan(sinks->t, s, plan);
    if (!status) forget_leaves_of_the_tail(plan, mark);
    if (!status && !copy_array(&plan->gradients, &plan->n_gradients, sinks->params, sinks->n_params, sizeof *sinks->params))
        status = RW_ERR_MEMORY;
    if (status) {
        rw_plan_release(plan);
        return rw_fail(ctx, status, "planning: %s", rw_status_name(status));
    }
    *ret_plan = plan;
    return RW_OK;
}

static bool is_op(const rw_context *ctx, const char *name)
{
    for (size_t i = 0; i < ctx->n_ops; i++)
        if (!strcmp(ctx->ops[i]->name, name)) return true;
    return rw_op_is_builtin(name);
}

/* Here and not where the policy is set: an op of the caller's own is known once it has been recorded. */
static rw_status check_op_names(rw_context *ctx, const struct rw_policy *policy)
{
    size_t column = sizeof "ops:";
    for (size_t i = 0; policy->kind == RW_POLICY_OPS && i < policy->n_names; i++) {
        if (!is_op(ctx, policy->names[i]))
            return rw_fail(ctx, RW_ERR_POLICY, "policy \"%s\", column %zu: no op is called \"%s\": it is neither built in nor "
                           "recorded in this context", policy->spec, column, policy->names[i]);
        column += strlen(policy->names[i]) + 1;
    }
    return RW_OK;
}

rw_status rw_plan_build_details(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan,
                                struct rw_build_details *details, struct rw_tape_mark *ret_mark)
{
    struct rw_sinks sinks = { 0 };
    RW_ON_DEVICE_OF(t->ctx); /* for those who ask a library how much workspace it takes */
    const bool eager = t->ctx->eager;
    assert(rw_tape_is_valid(t));
    t->ctx->eager = false; /* what planning records runs as part of the plan */
    *ret_mark = rw_tape_mark(t);
    *details = (struct rw_build_details){ 0 };
    rw_status status = check_op_names(t->ctx, request->policy);
    if (!status) status = rw_sinks_init(&sinks, t, request);
    if (!status) {
        const struct rw_schedule_request wanted = { .policy = request->policy, .sinks = sinks.sink, .n_sinks = sinks.n };
        status = rw_schedule_init(&details->schedule, &details->scopes, t, &wanted);
        if (status) rw_fail(t->ctx, status, "planning: %s", rw_status_name(status));
    }
    if (!status) status = assemble(&sinks, &details->schedule, ret_mark, ret_plan);
    rw_sinks_finish(&sinks);
    t->ctx->eager = eager;
    assert(status || rw_tape_is_valid(t));
    assert(status || rw_plan_is_valid(t, *ret_plan));
    if (status) rw_build_details_finish(t, details, ret_mark);
    return status;
}

void rw_build_details_finish(rw_tape *t, struct rw_build_details *details, const struct rw_tape_mark *mark)
{
    rw_schedule_finish(&details->schedule);
    rw_scopes_finish(&details->scopes);
    rw_tape_cut(t, mark);
}

rw_status rw_plan_build(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan)
{
    struct rw_build_details details;
    struct rw_tape_mark mark;
    const rw_status status = rw_plan_build_details(t, request, ret_plan, &details, &mark);
    if (!status) rw_build_details_finish(t, &details, &mark);
    return status;
}

struct rw_plan_key rw_request_key(const rw_tape *t, const struct rw_request *request)
{
    struct rw_hash h = t->hash;
    rw_hash_mix(&h, (uint64_t)request->kind << 2 | (uint64_t)request->effects << 1 | request->private_gradients);
    rw_hash_mix(&h, t->n_nodes);
    rw_hash_mix(&h, (uint64_t)t->ctx->threads); /* workspaces are per thread */
    for (size_t i = 0; i < request->n_values; i++) rw_hash_mix(&h, request->values[i]);
    if (request->kind == RW_PLAN_STEP) rw_hash_mix_bytes(&h, request->policy->spec, strlen(request->policy->spec));
    for (size_t i = 0; i < t->n_held; i++) rw_hash_mix(&h, (uint64_t)t->held[i].value << 8 | 1);
    for (size_t i = 0; i < t->n_effects; i++) rw_hash_mix(&h, t->effects[i].done);
    for (size_t i = 0; request->kind == RW_PLAN_STEP && i < t->n_leaves; i++)
        if (t->leaves[i].kind == RW_LEAF_PARAM) rw_hash_mix(&h, t->ctx->params[t->leaves[i].param]->grad_clear);
    return (struct rw_plan_key){ h.a, h.b };
}

rw_status rw_plan_get(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan)
{
    const struct rw_plan_key key = rw_request_key(t, request);
    rw_plan *plan = rw_plan_cache_find(t->ctx->plans, key);
    if (!plan) {
        const rw_status status = rw_plan_build(t, request, &plan);
        if (status) return status;
        rw_plan_cache_add(t->ctx->plans, key, plan);
    }
    *ret_plan = plan;
    return RW_OK;
}
