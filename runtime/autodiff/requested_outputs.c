/*
 * Builds the list of requested outputs of a plan. For a step the order is: seeds of the sums, backward (twice for fused
 * updates that need all gradients first), destinations of gradients, copies for readers of old contents, amaxes, then
 * the commits of recorders. Copies that commits need come last, because only then all writes are known.
 *
 * Why copies at all: gradients are written in place while backward runs, and commits write parameters at its end. Three
 * kinds of readers must not see that: ops of the program that read a gradient, commits that read what another commit
 * writes, and a commit that reads its own target through a view. Each gets a copy that runs early enough, so no order
 * of actions can change a value.
 */
#include "autodiff/requested_outputs.h"

#include "autodiff/fp8_amax.h"
#include "autodiff/rule.h"
#include "base/alloc.h"
#include "ops/common/pass_ops.h"
#include "record/delayed_scales.h"
#include "record/overwrite.h"

static rw_status no_memory(const struct rw_outputs *s)
{
    return rw_fail(s->ctx, RW_ERR_MEMORY, "planning: out of memory");
}

static rw_status add_target(struct rw_outputs *s, struct rw_target target)
{
    const uint32_t base = rw_tape_base(s->t, target.value);
    const size_t had = s->cap_taken;
    if (!rw_grow(&s->target, &s->cap, s->n, 1, sizeof *s->target) ||
        !rw_grow(&s->taken, &s->cap_taken, base, 1, sizeof *s->taken))
        return no_memory(s);
    for (size_t v = had; v < s->cap_taken; v++) s->taken[v] = false;
    s->taken[base] = true;
    s->target[s->n++] = target;
    return RW_OK;
}

static bool is_taken(const struct rw_outputs *s, uint32_t base)
{
    return base < s->cap_taken && s->taken[base];
}

static rw_tensor *copy_of(const struct rw_outputs *s, rw_tensor *g)
{
    return rw_apply_at(RW_HERE, s->t, &rw_op_contiguous, &g, 1, NULL, 0, NULL); /* the site is the origin's */
}

/*
 * True if differentiation recorded the value's producer. A rule may return a value of the recorded part (a loss that
 * computes its gradient in forward). Such a value may already be computed, or be computed without backward, so it
 * cannot be the gradient's memory: a copy of it becomes the gradient.
 */
static bool is_of_backward(const struct rw_outputs *s, const rw_tensor *base)
{
    return base->producer != RW_NONE_ID && base->producer >= s->n_recorded;
}

/* The gradient of a marked value is written in place if a backward node computes all of it and it is no other
   output. */
static rw_status take_retained(struct rw_outputs *s, uint32_t value, rw_tensor *g)
{
    const bool bindable = g->base == g->id && is_of_backward(s, g) && !is_taken(s, g->id) &&
                          rw_layout_is_whole(rw_layout_of(s->ctx, g));
    rw_tensor *const y = bindable ? g : copy_of(s, g);
    if (!y) return s->ctx->status ? s->ctx->status : no_memory(s);
    return add_target(s, (struct rw_target){ .value = y->id, .of = value });
}

/* Can the node write that output over the gradient's memory, if it reads the gradient at all? */
static bool works_in_place(const struct rw_outputs *s, const struct rw_node *node, uint32_t output, uint32_t gradient)
{
    for (uint32_t i = 0; i < node->n_inputs; i++)
        if (rw_tape_base(s->t, s->t->operands[node->first_input + i]) == gradient)
            return rw_may_overwrite(s->t, node, output, i);
    return true;
}

/*
 * Can g be written directly to a parameter's gradient? g may be a view of a whole buffer, because only the bytes
 * remain. The node that computes it must be able to overwrite the seed, and no later node may read the seed, because
 * its contents are gone by then. Only nodes of rules recorded since g can do so, which keeps the search short.
 */
static bool is_bindable(const struct rw_outputs *s, const rw_tensor *g, const rw_tensor *seed)
{
    const rw_tape *const t = s->t;
    const struct rw_tensor *const whole = rw_tape_value(t, g->base);
    const rw_layout *const l = rw_layout_of(s->ctx, g);
    if (!is_of_backward(s, whole) || is_taken(s, whole->id)) return false;
    if (!rw_layout_is_whole(l) || rw_tensor_bytes(whole) != rw_tensor_bytes(g)) return false;
    const struct rw_node *const producer = &t->nodes[whole->producer];
    if (!works_in_place(s, producer, whole->id - producer->first_output, seed->id)) return false;
    const size_t after = whole->producer + 1 < t->n_nodes ? producer[1].first_input : t->n_operands;
    for (size_t i = after; i < t->n_operands; i++)
        if (rw_tape_base(t, t->operands[i]) == seed->id) return false;
    return true;
}

/* A consumed gradient is made dense when it is complete; its update is recorded after everything else and moved
   forward in the schedule (remat/schedule/fused_update.h). */
static rw_status use_up(struct rw_outputs *s, uint32_t param, rw_tensor *g)
{
    if (!rw_layout_of(s->ctx, g)->dense) g = copy_of(s, g);
    if (!g) return s->ctx->status ? s->ctx->status : no_memory(s);
    if (!rw_grow(&s->used_up, &s->cap_used_up, s->n_used_up, 1, sizeof *s->used_up)) return no_memory(s);
    s->used_up[s->n_used_up++] = (struct rw_used_up){ param, g->id };
    return RW_OK;
}

/* Passes a complete gradient through the recorders. In one pass those that need all gradients change them later, by
   commits. */
static rw_tensor *passed(struct rw_outputs *s, uint32_t param, rw_tensor *g)
{
    for (size_t i = 0; g && i < s->request->n_recorders; i++) {
        struct rw_step_recorder *const r = s->request->recorders[i];
        const bool is_passed = r->kind->gradient && (s->now.in_two_passes || !r->kind->reads_all);
        if (is_passed) g = r->kind->gradient(r, &s->now, param, g);
    }
    return g;
}

static rw_status take_param(struct rw_outputs *s, uint32_t value, rw_tensor *g)
{
    const uint32_t param = s->t->leaves[rw_tape_value(s->t, value)->leaf].param;
    const rw_tensor *const seed = s->seeds[value];
    if (g == seed) return RW_OK; /* nothing was added */
    g = passed(s, param, g);
    if (!g) return s->ctx->status ? s->ctx->status : no_memory(s);
    if (s->now.is_first_pass) return RW_OK;
    if (s->request->used_up && s->request->used_up[param]) return use_up(s, param, g);
    while (g && !is_bindable(s, g, seed)) g = copy_of(s, g);
    if (!g) return s->ctx->status ? s->ctx->status : no_memory(s);
    if (!rw_grow(&s->params, &s->cap_params, s->n_params, 1, sizeof *s->params)) return no_memory(s);
    s->params[s->n_params++] = param;
    return add_target(s, (struct rw_target){ .value = g->id, .of = param, .into_gradient = true });
}

static rw_status take(struct rw_grad_taker *taker, uint32_t value, rw_tensor *g)
{
    struct rw_outputs *const s = (struct rw_outputs *)taker;
    const struct rw_tensor *const v = rw_tape_value(s->t, value);
    const bool is_param = v->leaf != RW_NONE_ID && s->t->leaves[v->leaf].kind == RW_LEAF_PARAM;
    if (is_param) return take_param(s, value, g);
    return s->now.is_first_pass ? RW_OK : take_retained(s, value, g);
}

/* Creates the seeds: the sum of a parameter's gradient starts with its present contents, an operand that is absent
   while the gradient is clear. */
static rw_status plant_seeds(struct rw_outputs *s)
{
    rw_tape *const t = s->t;
    s->first_seed = t->n_leaves;
    for (size_t i = 0; i < s->first_seed; i++) {
        const struct rw_leaf leaf = t->leaves[i];
        struct rw_param *const p = leaf.kind == RW_LEAF_PARAM ? s->ctx->by_id[leaf.param] : NULL;
        if (!p || !rw_param_is_trained(p)) continue;
        s->grads[leaf.value] = s->seeds[leaf.value] =
            rw_tape_resolve(t, &p->gradient.tensor, "planning", "a gradient", RW_HERE);
        if (!s->seeds[leaf.value]) return s->ctx->status;
        s->n_seeds++;
    }
    return RW_OK;
}

/* Finds parameters whose gradients the program reads: they have a leaf that is not the seed of a sum and that a node
   reads. */
static void find_readers(const struct rw_outputs *s, bool *readers)
{
    const rw_tape *const t = s->t;
    for (size_t i = 0; i < t->n_operands; i++) {
        const uint32_t leaf = rw_tape_value(t, rw_tape_base(t, t->operands[i]))->leaf;
        if (leaf == RW_NONE_ID || t->leaves[leaf].kind != RW_LEAF_GRADIENT) continue;
        if (leaf < s->first_seed || leaf >= s->first_seed + s->n_seeds) readers[t->leaves[leaf].param] = true;
    }
}

/* Delays writing of gradients that the program reads: the sum goes to a value of its own, and a copy to the gradient
   runs after everything else, so all readers see the old contents. */
static rw_status keep_for_readers(struct rw_outputs *s)
{
    bool *const readers = rw_calloc(s->ctx->n_ids, sizeof *readers);
    if (!readers) return no_memory(s);
    rw_status status = RW_OK;
    find_readers(s, readers);
    s->t->origin = rw_origin_of(s->t, RW_NONE_ID);
    for (size_t i = 0; !status && i < s->n; i++) {
        struct rw_target *const target = &s->target[i];
        if (!target->into_gradient || !readers[target->of]) continue;
        rw_tensor *const copy = copy_of(s, rw_tape_value(s->t, target->value));
        if (copy) target->value = copy->id;
        else status = s->ctx->status ? s->ctx->status : no_memory(s);
    }
    s->t->origin = (struct rw_origin){ 0 };
    rw_free(readers);
    return status;
}

bool rw_has_gradient(const rw_tape *t)
{
    for (uint32_t v = 0; v < t->n_values; v++) {
        const struct rw_tensor *const x = rw_tape_value(t, v);
        if (x->producer != RW_NONE_ID && (x->flags & RW_VALUE_REQUIRES)) return true;
    }
    return false;
}

/* Effects belong to a step: they run with its backward, or with an eval that requests them. */
static bool effects_happen(const struct rw_outputs *s)
{
    return s->request->kind == RW_PLAN_STEP || s->request->effects;
}

/* Outputs of stateful and non-deterministic nodes are held from their first execution on, so that nothing executes
   them twice. */
static rw_status target_effects(struct rw_outputs *s)
{
    const rw_tape *const t = s->t;
    const bool all = effects_happen(s);
    rw_status status = RW_OK;
    for (size_t n = 0; !status && n < s->n_recorded; n++) {
        const struct rw_node *const node = &t->nodes[n];
        const rw_op_def *const op = s->ctx->ops[node->op];
        if (!(op->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC))) continue;
        if ((op->flags & RW_OP_STATEFUL) && rw_tape_effect(t, (uint32_t)n)->done) continue;
        const bool runs = all && (op->flags & RW_OP_STATEFUL);
        for (uint32_t i = 0; !status && i < node->n_outputs; i++) {
            const uint32_t v = node->first_output + i;
            if (rw_tape_held(t, v)) continue;
            status = add_target(s, (struct rw_target){ .value = v, .of = RW_NONE_ID, .only_if_needed = !runs });
        }
    }
    return status;
}

static rw_status begin_at_roots(struct rw_outputs *s)
{
    rw_tape *const t = s->t;
    const struct rw_request *const q = s->request;
    struct rw_root *const roots = rw_calloc(q->n_values, sizeof *roots);
    rw_status status = roots ? RW_OK : no_memory(s);
    for (size_t i = 0; !status && i < q->n_values; i++) {
        roots[i].value = q->values[i];
        if (!q->seeded) continue;
        roots[i].seed = rw_tape_add_seed(t, (uint32_t)i, rw_tape_value(t, q->values[i]));
        if (!roots[i].seed) status = no_memory(s);
    }
    if (!status) status = rw_differentiate(t, roots, q->n_values, NULL, 0, s->grads, &s->taker);
    rw_free(roots);
    return status;
}

/*
 * ---- copies for commits ----
 *
 * Invariant: a commit reads no memory that a commit or a gradient of the same step writes before it, nor memory that it
 * writes itself, through any leaf or view. If the program recorded such a read, the commit reads a copy of the leaf.
 * The copy is recorded here, so it runs before the first commit and before the first gradient is written. `instead`
 * maps the leaf to its copy; the operand that the commit writes remains the leaf itself.
 */

static bool reserve_copies(struct rw_outputs *s)
{
    const size_t had = s->n_instead, n = s->t->n_leaves;
    if (!rw_grow(&s->instead, &s->cap_instead, had, n - had, sizeof *s->instead)) return false;
    for (size_t i = had; i < n; i++) s->instead[i] = RW_NONE_ID;
    s->n_instead = n;
    return true;
}

/* Records, once, a copy of a leaf's contents before the step. */
static rw_status copy_leaf(struct rw_outputs *s, uint32_t leaf)
{
    rw_tape *const t = s->t;
    if (s->n_instead < t->n_leaves && !reserve_copies(s)) return no_memory(s);
    if (s->instead[leaf] != RW_NONE_ID) return RW_OK;
    t->origin = rw_origin_of(t, RW_NONE_ID);
    const rw_tensor *const copy = copy_of(s, rw_tape_value(t, t->leaves[leaf].value));
    t->origin = (struct rw_origin){ 0 };
    if (copy) s->instead[leaf] = copy->id;
    return copy ? RW_OK : s->ctx->status ? s->ctx->status : no_memory(s);
}

/* Memory that the step writes, by parameter; flags. */
enum { WRITES_DATA = 1, WRITES_GRADIENT = 2 };

/* The memory that the operand refers to; 0 for the output of a node. Otherwise *ret_param and *ret_leaf are set. */
static unsigned memory_of(const rw_tape *t, uint32_t operand, uint32_t *ret_param, uint32_t *ret_leaf)
{
    *ret_leaf = rw_tape_value(t, rw_tape_base(t, t->operands[operand]))->leaf;
    if (*ret_leaf == RW_NONE_ID) return 0;
    const struct rw_leaf *const leaf = &t->leaves[*ret_leaf];
    *ret_param = leaf->param;
    return leaf->kind == RW_LEAF_PARAM ? WRITES_DATA : leaf->kind == RW_LEAF_GRADIENT ? WRITES_GRADIENT : 0;
}

/* Marks the memory that this commit writes, before looking at its reads: so a commit that reads its own target also
   gets a copy. */
static rw_status copy_for_commit(struct rw_outputs *s, const struct rw_node *node, uint8_t *written)
{
    const rw_tape *const t = s->t;
    const uint32_t first = node->first_input, n = node->n_inputs; /* recording moves nodes */
    const uint32_t n_read = n - node->n_outputs;
    rw_status status = RW_OK;
    uint32_t param, leaf;
    for (uint32_t i = n_read; i < n; i++) {
        const unsigned memory = memory_of(t, first + i, &param, &leaf);
        if (memory) written[param] |= (uint8_t)memory;
    }
    for (uint32_t i = 0; !status && i < n_read; i++) {
        const unsigned memory = memory_of(t, first + i, &param, &leaf);
        if (memory && (written[param] & memory)) status = copy_leaf(s, leaf);
    }
    return status;
}

/* Copies for every commit that has not run, in order; `written`: by parameter, the memory written before the first. */
static rw_status copy_for_commits(struct rw_outputs *s, uint8_t *written)
{
    const rw_tape *const t = s->t;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < t->n_effects; i++) {
        const struct rw_node *const node = &t->nodes[t->effects[i].node];
        if (!t->effects[i].done && (s->ctx->ops[node->op]->flags & RW_OP_COMMIT))
            status = copy_for_commit(s, node, written);
    }
    return status;
}

static rw_status keep_for_commits(struct rw_outputs *s)
{
    if (!s->t->n_effects) return RW_OK;
    uint8_t *const written = rw_calloc(s->ctx->n_ids, sizeof *written);
    if (!written) return no_memory(s);
    const rw_status status = copy_for_commits(s, written);
    rw_free(written);
    return status;
}

/* The same for gradients that backward writes. Called before keep_for_readers() records their writes. */
static rw_status keep_gradients_for_commits(struct rw_outputs *s)
{
    if (!s->t->n_effects) return RW_OK;
    uint8_t *const written = rw_calloc(s->ctx->n_ids, sizeof *written);
    if (!written) return no_memory(s);
    for (size_t i = 0; i < s->n_params; i++) written[s->params[i]] = WRITES_GRADIENT;
    const rw_status status = copy_for_commits(s, written);
    rw_free(written);
    return status;
}

/* A node that may run only once cannot be part of two passes. */
static rw_status check_twice(const struct rw_outputs *s, size_t first)
{
    const rw_tape *const t = s->t;
    for (size_t n = first; n < t->n_nodes; n++) {
        const rw_op_def *const op = s->ctx->ops[t->nodes[n].op];
        if (!(op->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC))) continue;
        const rw_site at = s->ctx->sites[t->nodes[n].site];
        return rw_fail(s->ctx, RW_ERR_UNSUPPORTED,
                       "planning: backward cannot run twice: the gradient of the op recorded at %s:%d is computed by "
                       "%s, which %s", rw_file_of(at), at.line, op->name,
                       op->flags & RW_OP_STATEFUL ? "may run only once" : "is not deterministic");
    }
    return RW_OK;
}

/* Records the first of two backward passes, for what depends on all gradients. Then the sums are reset to their
   seeds. */
static rw_status pass_first(struct rw_outputs *s, size_t n_values)
{
    rw_tape *const t = s->t;
    struct rw_amaxes *amaxes = rw_amaxes_of(t);
    const size_t n_nodes = t->n_nodes, n_amaxes = amaxes ? amaxes->n : 0;
    s->now.is_first_pass = true;
    rw_status status = begin_at_roots(s);
    s->first_pass = (uint32_t)n_nodes;
    s->end_first_pass = (uint32_t)t->n_nodes;
    if (!status) status = check_twice(s, n_nodes);
    t->origin = rw_origin_of(t, RW_NONE_ID);
    for (size_t i = 0; !status && i < s->request->n_recorders; i++) {
        struct rw_step_recorder *const r = s->request->recorders[i];
        if (r->kind->end_of_pass) status = r->kind->end_of_pass(r, &s->now);
    }
    s->now.is_first_pass = false;
    t->origin = (struct rw_origin){ 0 };
    if (status) return status;
    amaxes = rw_amaxes_of(t);
    if (amaxes) amaxes->n = n_amaxes;
    rw_free(s->grads);
    s->grads = rw_calloc(t->n_values, sizeof *s->grads);
    if (!s->grads) return no_memory(s);
    for (size_t v = 0; v < n_values; v++) s->grads[v] = s->seeds[v];
    return RW_OK;
}

static rw_status differentiate(struct rw_outputs *s)
{
    rw_tape *const t = s->t;
    const size_t n_values = t->n_values;
    s->grads = rw_calloc(n_values, sizeof *s->grads);
    s->seeds = rw_calloc(n_values, sizeof *s->seeds);
    if (!s->grads || !s->seeds) return no_memory(s);
    rw_status status = plant_seeds(s);
    if (!status && s->now.in_two_passes) status = pass_first(s, n_values);
    if (!status) status = begin_at_roots(s);
    if (!status) status = keep_gradients_for_commits(s);
    return status ? status : keep_for_readers(s);
}

/* Requests the commits that were recorded as effects from `first` on; they run at the end of the step. */
static rw_status target_commits(struct rw_outputs *s, size_t first)
{
    const rw_tape *const t = s->t;
    rw_status status = RW_OK;
    for (size_t i = first; !status && i < t->n_effects; i++) {
        const struct rw_node *const node = &t->nodes[t->effects[i].node];
        for (uint32_t k = 0; !status && k < node->n_outputs; k++)
            status = add_target(s, (struct rw_target){ .value = node->first_output + k, .of = RW_NONE_ID });
    }
    return status;
}

static void mark_producer(const struct rw_outputs *s, bool *needed, uint32_t value)
{
    const uint32_t producer = rw_tape_value(s->t, rw_tape_base(s->t, value))->producer;
    if (producer != RW_NONE_ID) needed[producer] = true;
}

/* Records the amaxes that the step's losses and gradients depend on. What an effect or a later read needs does not
   count: it may already be computed, or be computed after this step, and neither may change what is recorded. */
static rw_status note_amaxes(struct rw_outputs *s)
{
    const size_t n_effects = s->t->n_effects;
    const struct rw_amaxes *const amaxes = rw_amaxes_of(s->t);
    if (!amaxes || !amaxes->n) return RW_OK;
    bool *const needed = rw_calloc(s->t->n_nodes, sizeof *needed);
    if (!needed) return no_memory(s);
    for (size_t i = 0; i < s->request->n_values; i++) mark_producer(s, needed, s->request->values[i]);
    for (size_t i = 0; i < s->n; i++)
        if (s->target[i].of != RW_NONE_ID) mark_producer(s, needed, s->target[i].value);
    for (size_t i = 0; i < s->n_used_up; i++) mark_producer(s, needed, s->used_up[i].value);
    const rw_status status = rw_amaxes_record(s->t, needed);
    rw_free(needed);
    return status ? status : target_commits(s, n_effects);
}

/* The gradients that recorders get: in a step the completed sums, otherwise the parameters' own memory. */
static rw_status find_gradients(const struct rw_outputs *s, rw_tensor **gradient)
{
    rw_context *const ctx = s->ctx;
    for (size_t i = 0; i < s->n; i++)
        if (s->target[i].into_gradient) gradient[s->target[i].of] = rw_tape_value(s->t, s->target[i].value);
    for (size_t i = 0; i < s->n_used_up; i++)
        gradient[s->used_up[i].param] = rw_tape_value(s->t, s->used_up[i].value);
    for (size_t i = 0; s->request->kind != RW_PLAN_STEP && i < ctx->n_params; i++) {
        struct rw_param *const p = ctx->params[i];
        if (!rw_param_is_trained(p)) continue;
        rw_tensor *const g = rw_tape_resolve(s->t, &p->gradient.tensor, "planning", "a gradient", RW_HERE);
        if (!g) return ctx->status;
        gradient[p->tensor.id] = g;
    }
    return RW_OK;
}

/* What recorders add to the end of the step, in reverse order: the one that began first ends last. Fused updates do not
   include it. */
static rw_status finish_recorders(struct rw_outputs *s)
{
    const struct rw_request *const q = s->request;
    rw_status status = RW_OK;
    for (size_t i = q->n_recorders; !status && i-- > 0;) {
        struct rw_step_recorder *const r = q->recorders[i];
        if (!r->kind->finish) continue;
        if (q->used_up && s->end_update == RW_NONE_ID) s->end_update = (uint32_t)s->t->n_nodes;
        status = r->kind->finish(r, &s->now);
    }
    return status;
}

/* Records the nodes of recorders and requests them as commits at the end of the step. */
static rw_status record_updates(struct rw_outputs *s)
{
    rw_tape *const t = s->t;
    const size_t n_effects = t->n_effects;
    s->now.gradient = rw_calloc(s->ctx->n_ids, sizeof(rw_tensor *));
    if (!s->now.gradient) return no_memory(s);
    rw_status status = find_gradients(s, s->now.gradient);
    if (s->request->used_up) s->first_update = (uint32_t)t->n_nodes;
    for (size_t i = 0; !status && i < s->request->n_recorders; i++) {
        struct rw_step_recorder *const r = s->request->recorders[i];
        if (r->kind->record) status = r->kind->record(r, &s->now);
    }
    if (!status) status = finish_recorders(s);
    rw_free(s->now.gradient);
    s->now.gradient = NULL;
    return status ? status : target_commits(s, n_effects);
}

/* ---- values read in addition to the loss ---- */

bool rw_value_is_small(const rw_tape *t, uint32_t base)
{
    return rw_tensor_bytes(rw_tape_value(t, base)) <= RW_SMALL_BYTES;
}

/* Does an effect that has not happened write the parameter? */
static bool is_written(const rw_tape *t, uint32_t param)
{
    bool is = false;
    for (size_t i = 0; !is && i < t->n_effects; i++) {
        const struct rw_node *const node = &t->nodes[t->effects[i].node];
        if (t->effects[i].done || !(t->ctx->ops[node->op]->flags & RW_OP_COMMIT)) continue;
        for (uint32_t k = node->n_inputs - node->n_outputs; k < node->n_inputs; k++) {
            uint32_t of, leaf;
            is |= memory_of(t, node->first_input + k, &of, &leaf) == WRITES_DATA && of == param;
        }
    }
    return is;
}

/* An evaluation that writes the memory of a requested view holds a copy of what the view showed before. */
static rw_status target_view(struct rw_outputs *s, uint32_t view)
{
    rw_tape *const t = s->t;
    const uint32_t base = rw_tape_base(t, view), leaf = rw_tape_value(t, base)->leaf;
    const bool is_view = view != base && leaf != RW_NONE_ID && t->leaves[leaf].kind == RW_LEAF_PARAM;
    if (!s->request->effects || !is_view || rw_tape_held(t, view) || !is_written(t, t->leaves[leaf].param))
        return RW_OK;
    t->origin = rw_origin_of(t, RW_NONE_ID);
    const rw_tensor *const copy = copy_of(s, rw_tape_value(t, view));
    t->origin = (struct rw_origin){ 0 };
    if (!copy) return s->ctx->status ? s->ctx->status : no_memory(s);
    return add_target(s, (struct rw_target){ .value = copy->id, .of = RW_NONE_ID, .view = view });
}

static rw_status target_values(struct rw_outputs *s, const uint32_t *values, size_t n)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n; i++) {
        const uint32_t base = rw_tape_base(s->t, values[i]);
        status = target_view(s, values[i]);
        if (status) break;
        if (rw_tape_value(s->t, base)->producer == RW_NONE_ID || rw_tape_held(s->t, base)) continue;
        if (s->request->kind == RW_PLAN_STEP && is_taken(s, base)) continue;
        status = add_target(s, (struct rw_target){ .value = base, .of = RW_NONE_ID });
    }
    return status;
}

/* Is it a tensor of one element, or a view of one, that the forward part computes and a step can hold? */
static bool is_scalar(const struct rw_outputs *s, const rw_tensor *x)
{
    const rw_tape *const t = s->t;
    const uint32_t producer = rw_tape_value(t, x->base)->producer;
    return producer != RW_NONE_ID && !t->nodes[producer].adjoint && rw_layout_of(s->ctx, x)->numel == 1 &&
           rw_value_is_small(t, x->base);
}

/* Holds the scalars that the step computes anyway, so that reading one later, a term of the loss for example, is a
   copy. */
static rw_status target_scalars(struct rw_outputs *s)
{
    const rw_tape *const t = s->t;
    rw_status status = RW_OK;
    for (uint32_t v = 0; !status && v < t->n_values; v++) {
        const uint32_t base = rw_tape_base(t, v);
        if (!is_scalar(s, rw_tape_value(t, v)) || is_taken(s, base) || rw_tape_held(t, base)) continue;
        status = add_target(s, (struct rw_target){ .value = base, .of = RW_NONE_ID, .only_if_needed = true });
    }
    return status;
}

/* ---- several backwards of one tape ---- */

/* Marks the values of the recorded part that nodes after it read on the way to the targets of `s`. */
static void find_read(const struct rw_outputs *s, bool *needed, bool *read)
{
    const rw_tape *const t = s->t;
    for (size_t i = 0; i < s->n; i++) {
        const uint32_t base = rw_tape_base(t, s->target[i].value), producer = rw_tape_value(t, base)->producer;
        if (producer != RW_NONE_ID && producer >= s->n_recorded) needed[producer] = true;
    }
    for (size_t n = t->n_nodes; n-- > s->n_recorded;) {
        const struct rw_node *const node = &t->nodes[n];
        for (uint32_t i = 0; needed[n] && i < node->n_inputs; i++) {
            const uint32_t base = rw_tape_base(t, t->operands[node->first_input + i]);
            const uint32_t producer = rw_tape_value(t, base)->producer;
            if (producer == RW_NONE_ID) continue;
            if (producer >= s->n_recorded) needed[producer] = true;
            else read[base] = true;
        }
    }
}

/* Finds what backward of another loss reads of the forward part, by recording that backward and cutting it off
   again. */
static rw_status note_read_by(const struct rw_outputs *s, uint32_t loss, bool *read)
{
    rw_tape *const t = s->t;
    const struct rw_tape_mark mark = rw_tape_mark(t);
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss, .n_values = 1,
                                        .policy = s->request->policy };
    struct rw_outputs other;
    rw_status status = rw_outputs_init(&other, t, &request);
    bool *const needed = status ? NULL : rw_calloc(t->n_nodes, sizeof *needed);
    if (!status && !needed) status = no_memory(s);
    if (!status) find_read(&other, needed, read);
    rw_free(needed);
    rw_outputs_finish(&other);
    rw_tape_cut(t, &mark);
    return status;
}

/* ckpt_recompute() and ckpt_offload() also mean that the value is not kept for a later backward: that recomputes it. */
static bool is_not_to_be_kept(const rw_tape *t, uint32_t base)
{
    return rw_tape_value(t, base)->flags & (RW_VALUE_RECOMPUTE | RW_VALUE_OFFLOAD);
}

/* Holds those values from the first backward on, so that later backwards execute no node of the forward part. */
static rw_status target_read_later(struct rw_outputs *s)
{
    const uint32_t n = (uint32_t)s->t->n_values;
    if (!s->request->n_later) return RW_OK;
    bool *const read = rw_calloc(n, sizeof *read);
    rw_status status = read ? target_values(s, s->request->later, s->request->n_later) : no_memory(s);
    for (size_t i = 0; !status && i < s->request->n_later; i++) status = note_read_by(s, s->request->later[i], read);
    for (uint32_t v = 0; !status && v < n; v++)
        if (read[v] && !is_not_to_be_kept(s->t, v)) status = target_values(s, &v, 1);
    rw_free(read);
    return status;
}

/* ---- the whole ---- */

static rw_status begin_recorders(struct rw_outputs *s)
{
    const struct rw_request *const q = s->request;
    rw_status status = RW_OK;
    s->now = (struct rw_recording){ .t = s->t, .skip = q->skip };
    for (size_t i = 0; q->used_up && i < q->n_recorders; i++)
        s->now.in_two_passes |= q->recorders[i]->kind->reads_all;
    for (size_t i = 0; !status && i < q->n_recorders; i++) {
        struct rw_step_recorder *const r = q->recorders[i];
        if (r->kind->begin) status = r->kind->begin(r, &s->now);
    }
    return status;
}

static rw_status record_all(struct rw_outputs *s)
{
    const struct rw_request *const request = s->request;
    rw_status status = begin_recorders(s);
    if (!status) status = target_values(s, request->values, request->n_values);
    if (!status) status = target_values(s, request->reads, request->n_reads);
    if (!status) status = target_read_later(s);
    if (!status) status = target_effects(s);
    if (!status && request->kind == RW_PLAN_STEP) status = target_scalars(s);
    if (!status && request->kind == RW_PLAN_STEP) status = differentiate(s);
    if (!status && request->kind == RW_PLAN_STEP) status = note_amaxes(s);
    if (!status && request->n_recorders) status = record_updates(s);
    return status || !effects_happen(s) ? status : keep_for_commits(s);
}

rw_status rw_outputs_init(struct rw_outputs *s, rw_tape *t, const struct rw_request *request)
{
    *s = (struct rw_outputs){ .taker.take = take, .t = t, .ctx = t->ctx, .request = request,
                              .n_recorded = (uint32_t)t->n_nodes, .first_update = RW_NONE_ID,
                              .end_update = RW_NONE_ID };
    const rw_status status = record_all(s);
    for (size_t i = 0; i < request->n_recorders; i++)
        if (request->recorders[i]->kind->end) request->recorders[i]->kind->end(request->recorders[i]);
    return status;
}

void rw_outputs_finish(struct rw_outputs *s)
{
    rw_free(s->grads);
    rw_free(s->seeds);
    rw_free(s->target);
    rw_free(s->taken);
    rw_free(s->instead);
    rw_free(s->params);
    rw_free(s->used_up);
}
