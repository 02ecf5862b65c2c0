/* Passes 2 to 4: differentiate, name what is to be held, schedule, place, and keep the result as a plan. See build.h. */
#include "exec/build.h"

#include "autodiff/accumulate.h"
#include "autodiff/differentiate.h"
#include "exec/layout_plan.h"
#include "memory/alloc.h"
#include "ops/names.h"
#include "ops/pointwise/pointwise.h"
#include "ops/shape/shape.h"
#include "record/record.h"

#include <assert.h>
#include <string.h>

/* A plan in the making. */
struct build {
    rw_tape *t;
    rw_context *ctx;
    const struct rw_request *request;
    rw_tensor **grads; /* per recorded value, of a step */
    size_t n_recorded;
    struct rw_sink *sinks;
    size_t n_sinks, cap_sinks;
    uint32_t *params; /* with a gradient */
    size_t n_params, cap_params;
    uint32_t *reads;        /* per base of the tape: by nodes, and as the gradient of a leaf */
    uint32_t *instead;      /* per node recorded for a sink: the product whose place it takes, or RW_NONE_ID */
    size_t n_instead, cap_instead, first_sink_node;
    uint32_t *early, *next; /* nodes that run right after the one that completes their input */
    size_t n_regular;
};

static rw_status no_memory(const struct build *b)
{
    return rw_fail(b->ctx, RW_ERR_MEMORY, "planning: out of memory");
}

static rw_status add_sink(struct build *b, struct rw_sink sink)
{
    if (!rw_grow(&b->sinks, &b->cap_sinks, b->n_sinks, 1, sizeof *b->sinks)) return no_memory(b);
    b->sinks[b->n_sinks++] = sink;
    return RW_OK;
}

/* A gradient can be written straight to where it belongs when a node makes it whole and nobody else has taken it. */
static bool is_bindable(const struct build *b, const rw_tensor *g, const bool *taken)
{
    return g->base == g->id && g->producer != RW_NONE_ID && !taken[g->id] &&
           rw_layout_is_whole(rw_tensor_layout(b->ctx, g));
}

/* A node recorded here belongs to backward, and to the region of the node that made its input. */
static void stamp_last_node(struct build *b, const rw_tensor *after)
{
    struct rw_node *const node = &b->t->nodes[b->t->n_nodes - 1];
    node->level = 1;
    if (after->producer != RW_NONE_ID) node->region = b->t->nodes[after->producer].region;
}

static rw_site any_site(const struct build *b)
{
    return b->t->n_nodes ? b->ctx->sites[b->t->nodes[0].site] : RW_HERE;
}

/* Notes whose place the node recorded last takes. */
static bool take_place(struct build *b, uint32_t product)
{
    const size_t n = b->t->n_nodes - b->first_sink_node;
    if (!rw_grow(&b->instead, &b->cap_instead, b->n_instead, n - b->n_instead, sizeof *b->instead)) return false;
    while (b->n_instead < n) b->instead[b->n_instead++] = RW_NONE_ID;
    b->instead[n - 1] = product;
    return true;
}

static rw_tensor *copy_of(struct build *b, rw_tensor *g)
{
    rw_tensor *const copy = rw_apply_at(any_site(b), b->t, &rw_op_contiguous, &g, 1, NULL, 0, NULL);
    if (copy) stamp_last_node(b, g);
    return copy;
}

/*
 * old + g, written over old: the parameter's gradient is both an input and where the sum goes. A product that nobody else
 * reads is added by a node that takes its place.
 */
static rw_tensor *added_to(struct build *b, struct rw_param *p, rw_tensor *g)
{
    const uint32_t product = g->base == g->id && b->reads[g->id] == 1 ? rw_product_of(b->t, g) : RW_NONE_ID;
    rw_tensor *const sum = product == RW_NONE_ID ? rw_accumulate_at(any_site(b), b->t, &p->gradient, g)
                                                 : rw_add_product_at(any_site(b), b->t, &p->gradient, g);
    if (!sum) return NULL;
    stamp_last_node(b, g);
    return take_place(b, product) ? sum : NULL;
}

static rw_status sink_param(struct build *b, uint32_t param, rw_tensor *g, bool *taken)
{
    struct rw_param *const p = b->ctx->params[param];
    const bool adds = !p->grad_clear && !b->request->private_gradients;
    rw_tensor *const y = adds ? added_to(b, p, g) : is_bindable(b, g, taken) ? g : copy_of(b, g);
    if (!y) return b->ctx->status ? b->ctx->status : no_memory(b);
    if (y == g) taken[g->id] = true;
    if (!rw_grow(&b->params, &b->cap_params, b->n_params, 1, sizeof *b->params)) return no_memory(b);
    if (!b->request->private_gradients) b->params[b->n_params++] = param;
    return add_sink(b, (struct rw_sink){ .value = y->id, .of = param, .of_param = true,
                                         .into_gradient = !b->request->private_gradients });
}

/* Who reads what, before sinks read too. */
static bool count_reads(struct build *b)
{
    const rw_tape *const t = b->t;
    b->reads = rw_calloc(t->n_values, sizeof *b->reads);
    if (!b->reads) return false;
    for (size_t i = 0; i < t->n_operands; i++) b->reads[rw_tape_base(t, t->operands[i])]++;
    for (size_t i = 0; i < t->n_retained; i++)
        if (b->grads[t->retained[i]]) b->reads[b->grads[t->retained[i]]->base]++;
    for (size_t i = 0; i < t->n_leaves; i++) {
        const struct rw_leaf *const leaf = &t->leaves[i];
        if (leaf->kind == RW_LEAF_PARAM && leaf->value < b->n_recorded && b->grads[leaf->value])
            b->reads[b->grads[leaf->value]->base]++;
    }
    return true;
}

static rw_status sink_gradients(struct build *b)
{
    const rw_tape *const t = b->t;
    const size_t n_values = b->n_recorded;
    bool *const taken = rw_calloc(t->n_values, sizeof *taken);
    if (!taken || !count_reads(b)) {
        rw_free(taken);
        return no_memory(b);
    }
    rw_status status = RW_OK;
    const size_t n_leaves = t->n_leaves;
    for (size_t i = 0; !status && i < t->n_retained; i++) {
        rw_tensor *g = b->grads[t->retained[i]];
        if (!g) continue;
        if (!is_bindable(b, g, taken)) g = copy_of(b, g);
        else taken[g->id] = true;
        status = g ? add_sink(b, (struct rw_sink){ .value = g->id, .of = t->retained[i] }) : b->ctx->status;
    }
    for (size_t i = 0; !status && i < n_leaves; i++) {
        const struct rw_leaf leaf = t->leaves[i];
        if (leaf.kind != RW_LEAF_PARAM || leaf.value >= n_values || !b->grads[leaf.value]) continue;
        if (b->ctx->params[leaf.param]->grad) status = sink_param(b, leaf.param, b->grads[leaf.value], taken);
    }
    rw_free(taken);
    return status;
}

/* All of them in tape order. */
static rw_status run_last(struct build *b)
{
    rw_free(b->early);
    rw_free(b->next);
    b->early = b->next = NULL;
    return RW_OK;
}

/* Behind which node may a sink's node run: that of its latest input, or the product that it stands for. */
static uint32_t node_before(const struct build *b, uint32_t n)
{
    const rw_tape *const t = b->t;
    const struct rw_node *const node = &t->nodes[n];
    const size_t i = n - b->first_sink_node;
    if (i < b->n_instead && b->instead[i] != RW_NONE_ID) return b->instead[i];
    uint32_t after = RW_NONE_ID;
    for (int k = 0; k < node->n_inputs; k++) {
        const uint32_t in = rw_tape_base(t, t->operands[node->first_input + (uint32_t)k]);
        const uint32_t p = rw_tape_value(t, in)->producer;
        if (p != RW_NONE_ID && (after == RW_NONE_ID || p > after)) after = p;
    }
    return after;
}

/* Lists the sinks' nodes behind those. */
static rw_status run_early(struct build *b)
{
    const rw_tape *const t = b->t;
    const size_t first = b->first_sink_node;
    b->n_regular = t->n_nodes;
    if (first == t->n_nodes) return RW_OK;
    b->early = rw_malloc(t->n_nodes * sizeof *b->early);
    b->next = rw_malloc(t->n_nodes * sizeof *b->next);
    if (!b->early || !b->next) return no_memory(b);
    for (size_t n = 0; n < t->n_nodes; n++) b->early[n] = b->next[n] = RW_NONE_ID;
    for (uint32_t n = (uint32_t)t->n_nodes; n-- > first;) {
        const uint32_t after = node_before(b, n);
        /* the gradient is a leaf, or a value of forward */
        if (after == RW_NONE_ID || after >= first || !t->nodes[after].level) return run_last(b);
        b->next[n] = b->early[after];
        b->early[after] = n;
    }
    b->n_regular = first;
    return RW_OK;
}

static bool has_trainable_leaf(const rw_tape *t)
{
    for (size_t i = 0; i < t->n_leaves; i++)
        if (rw_tape_value(t, t->leaves[i].value)->flags & RW_VALUE_REQUIRES) return true;
    return false;
}

/*
 * Effects belong to the step: they run with backward, or with an eval when there is nothing to train. What a stateful
 * or non-deterministic node gives is held from its first run on, so that nothing ever runs it twice.
 */
static rw_status sink_effects(struct build *b, size_t n_recorded)
{
    const rw_tape *const t = b->t;
    const bool all = b->request->kind == RW_PLAN_STEP || (b->request->effects && !has_trainable_leaf(t));
    rw_status status = RW_OK;
    for (size_t n = 0; !status && n < n_recorded; n++) {
        const struct rw_node *const node = &t->nodes[n];
        const rw_op_def *const op = b->ctx->ops[node->op];
        if (!(op->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC)) || node->done) continue;
        const bool runs = all && (op->flags & RW_OP_STATEFUL);
        for (uint32_t i = 0; !status && i < node->n_outputs; i++) {
            const uint32_t v = node->first_output + i;
            if (rw_tape_held(t, v)) continue;
            status = add_sink(b, (struct rw_sink){ .value = v, .of = RW_NONE_ID, .only_if_needed = !runs });
        }
    }
    return status;
}

static rw_status name_sinks(struct build *b)
{
    rw_tape *const t = b->t;
    const size_t n_recorded = t->n_nodes;
    b->n_recorded = t->n_values;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < b->request->n_values; i++) {
        const uint32_t base = rw_tape_base(t, b->request->values[i]);
        if (rw_tape_value(t, base)->producer == RW_NONE_ID || rw_tape_held(t, base)) continue;
        status = add_sink(b, (struct rw_sink){ .value = base, .of = RW_NONE_ID });
    }
    if (!status) status = sink_effects(b, n_recorded);
    if (status || b->request->kind != RW_PLAN_STEP) {
        b->n_regular = n_recorded;
        return status;
    }
    status = rw_differentiate(t, b->request->values[0], false, &b->grads);
    b->first_sink_node = t->n_nodes;
    if (!status) status = sink_gradients(b);
    return status ? status : run_early(b);
}

static void build_finish(struct build *b)
{
    rw_free(b->grads);
    rw_free(b->sinks);
    rw_free(b->params);
    rw_free(b->reads);
    rw_free(b->instead);
    rw_free(b->early);
    rw_free(b->next);
}

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
static bool take_tail(const struct build *b, rw_plan *plan, const struct rw_tape_mark *mark)
{
    const rw_tape *const t = b->t;
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

static rw_status assemble(struct build *b, struct rw_schedule *s, const struct rw_tape_mark *mark, rw_plan **ret_plan)
{
    rw_plan *const plan = rw_calloc(1, sizeof *plan);
    if (!plan) return no_memory(b);
    plan->references = 1;
    plan->serial = ++b->ctx->cache.serial;
    plan->kind = b->request->kind;
    plan->root = b->request->n_values ? b->request->values[0] : RW_NONE_ID;
    rw_status status = take_tail(b, plan, mark) ? RW_OK : RW_ERR_MEMORY;
    if (!status) status = rw_layout_plan(b->t, s, plan);
    if (!status) forget_leaves_of_the_tail(plan, mark);
    if (!status && !copy_array(&plan->gradients, &plan->n_gradients, b->params, b->n_params, sizeof *b->params))
        status = RW_ERR_MEMORY;
    if (status) {
        rw_plan_release(plan);
        return rw_fail(b->ctx, status, "planning: %s", rw_status_name(status));
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
    struct build b = { .t = t, .ctx = t->ctx, .request = request };
    RW_ON_DEVICE_OF(t->ctx); /* for those who ask a library how much workspace it takes */
    const bool eager = t->ctx->eager;
    assert(rw_tape_is_valid(t));
    t->ctx->eager = false; /* what planning records runs as part of the plan */
    *ret_mark = rw_tape_mark(t);
    *details = (struct rw_build_details){ 0 };
    rw_status status = check_op_names(t->ctx, request->policy);
    if (!status) status = name_sinks(&b);
    if (!status) {
        const struct rw_schedule_request wanted = { .policy = request->policy, .sinks = b.sinks, .n_sinks = b.n_sinks,
                                                    .early = b.early, .next = b.next, .n_regular = b.n_regular };
        status = rw_schedule_init(&details->schedule, &details->scopes, t, &wanted);
        if (status) rw_fail(t->ctx, status, "planning: %s", rw_status_name(status));
    }
    if (!status) status = assemble(&b, &details->schedule, ret_mark, ret_plan);
    build_finish(&b);
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
    for (size_t i = 0; i < t->n_effects; i++) rw_hash_mix(&h, t->nodes[t->effects[i]].done);
    for (size_t i = 0; request->kind == RW_PLAN_STEP && i < t->n_leaves; i++)
        if (t->leaves[i].kind == RW_LEAF_PARAM) rw_hash_mix(&h, t->ctx->params[t->leaves[i].param]->grad_clear);
    return (struct rw_plan_key){ h.a, h.b };
}

rw_status rw_plan_get(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan)
{
    const struct rw_plan_key key = rw_request_key(t, request);
    rw_plan *plan = rw_plan_cache_find(&t->ctx->cache, key);
    if (!plan) {
        const rw_status status = rw_plan_build(t, request, &plan);
        if (status) return status;
        rw_plan_cache_add(&t->ctx->cache, key, plan);
    }
    *ret_plan = plan;
    return RW_OK;
}
