/* What a plan is for. See targets.h. */
#include "autodiff/targets.h"

#include "autodiff/amaxes.h"
#include "autodiff/rule.h"
#include "base/alloc.h"
#include "record/own_ops.h"
#include "record/overwrite.h"

static rw_status no_memory(const struct rw_targets *s)
{
    return rw_fail(s->ctx, RW_ERR_MEMORY, "planning: out of memory");
}

static rw_status add_target(struct rw_targets *s, struct rw_target target)
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

static bool is_taken(const struct rw_targets *s, uint32_t base)
{
    return base < s->cap_taken && s->taken[base];
}

static rw_tensor *copy_of(const struct rw_targets *s, rw_tensor *g)
{
    return rw_apply_at(RW_HERE, s->t, &rw_op_contiguous, &g, 1, NULL, 0, NULL); /* the site is the origin's */
}

/*
 * Does a node that differentiation recorded make the value? A rule may return a value of the recorded part (a loss that
 * computes its gradient in forward). Such a value may have been computed already, or be computed without backward: a
 * copy of it becomes the gradient.
 */
static bool is_of_backward(const struct rw_targets *s, const rw_tensor *base)
{
    return base->producer != RW_NONE_ID && base->producer >= s->n_recorded;
}

/* The gradient of a marked value is written in place when a backward node makes all of it and no other target has it.
 */
static rw_status take_retained(struct rw_targets *s, uint32_t value, rw_tensor *g)
{
    const bool bindable = g->base == g->id && is_of_backward(s, g) && !is_taken(s, g->id) &&
                          rw_layout_is_whole(rw_layout_of(s->ctx, g));
    rw_tensor *const y = bindable ? g : copy_of(s, g);
    if (!y) return s->ctx->status ? s->ctx->status : no_memory(s);
    return add_target(s, (struct rw_target){ .value = y->id, .of = value });
}

/* May the node write that output over a gradient, where it reads that at all? */
static bool works_in_place(const struct rw_targets *s, const struct rw_node *node, uint32_t output, uint32_t gradient)
{
    for (uint32_t i = 0; i < node->n_inputs; i++)
        if (rw_tape_base(s->t, s->t->operands[node->first_input + i]) == gradient)
            return rw_may_overwrite(s->t, node, output, i);
    return true;
}

/*
 * Can g be written into a parameter's gradient? A view that is all of a buffer will do: only the bytes stay. Where the
 * sum began with what the gradient holds, nobody may read that from then on. Only rules at work since g was made may
 * have: the search is short.
 */
static bool is_bindable(const struct rw_targets *s, const rw_tensor *g, const rw_tensor *seed)
{
    const rw_tape *const t = s->t;
    const struct rw_tensor *const whole = rw_tape_value(t, g->base);
    const rw_layout *const l = rw_layout_of(s->ctx, g);
    if (!is_of_backward(s, whole) || is_taken(s, whole->id)) return false;
    if (!rw_layout_is_whole(l) || rw_tensor_bytes(whole) != rw_tensor_bytes(g)) return false;
    const struct rw_node *const maker = &t->nodes[whole->producer];
    if (!works_in_place(s, maker, whole->id - maker->first_output, seed->id)) return false;
    const size_t after = whole->producer + 1 < t->n_nodes ? maker[1].first_input : t->n_operands;
    for (size_t i = after; i < t->n_operands; i++)
        if (rw_tape_base(t, t->operands[i]) == seed->id) return false;
    return true;
}

/* Made dense where it is complete: the update is recorded behind everything else. */
static rw_status use_up(struct rw_targets *s, uint32_t param, rw_tensor *g)
{
    if (!rw_layout_of(s->ctx, g)->dense) g = copy_of(s, g);
    if (!g) return s->ctx->status ? s->ctx->status : no_memory(s);
    if (!rw_grow(&s->used_up, &s->cap_used_up, s->n_used_up, 1, sizeof *s->used_up)) return no_memory(s);
    s->used_up[s->n_used_up++] = (struct rw_used_up){ param, g->id };
    return RW_OK;
}

/* Through the hands of those who asked for a first pass. */
static rw_tensor *passed(const struct rw_targets *s, uint32_t param, rw_tensor *g)
{
    for (struct rw_first_pass *f = s->request->first; f && g; f = f->next)
        g = s->in_first_pass ? f->show(f, s->t, param, g) : f->change(f, s->t, g);
    return g;
}

static rw_status take_param(struct rw_targets *s, uint32_t value, rw_tensor *g)
{
    const uint32_t param = s->t->leaves[rw_tape_value(s->t, value)->leaf].param;
    const rw_tensor *const seed = s->seeds[value];
    if (g == seed) return RW_OK; /* nothing was added */
    g = passed(s, param, g);
    if (!g) return s->ctx->status;
    if (s->in_first_pass) return RW_OK;
    if (s->request->used_up && s->request->used_up[param]) return use_up(s, param, g);
    while (g && !is_bindable(s, g, seed)) g = copy_of(s, g);
    if (!g) return s->ctx->status ? s->ctx->status : no_memory(s);
    if (!rw_grow(&s->params, &s->cap_params, s->n_params, 1, sizeof *s->params)) return no_memory(s);
    s->params[s->n_params++] = param;
    return add_target(s, (struct rw_target){ .value = g->id, .of = param, .into_gradient = true });
}

static rw_status take(struct rw_grad_taker *taker, uint32_t value, rw_tensor *g)
{
    struct rw_targets *const s = (struct rw_targets *)taker;
    const struct rw_tensor *const v = rw_tape_value(s->t, value);
    const bool is_param = v->leaf != RW_NONE_ID && s->t->leaves[v->leaf].kind == RW_LEAF_PARAM;
    if (is_param) return take_param(s, value, g);
    return s->in_first_pass ? RW_OK : take_retained(s, value, g);
}

/* The sum of a parameter begins with what its gradient holds: an operand that is absent while the gradient is clear. */
static rw_status plant_seeds(struct rw_targets *s)
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

/* Parameters whose gradient the program reads: a leaf of it that is not the seed of a sum has readers. */
static void find_readers(const struct rw_targets *s, bool *readers)
{
    const rw_tape *const t = s->t;
    for (size_t i = 0; i < t->n_operands; i++) {
        const uint32_t leaf = rw_tape_value(t, rw_tape_base(t, t->operands[i]))->leaf;
        if (leaf == RW_NONE_ID || t->leaves[leaf].kind != RW_LEAF_GRADIENT) continue;
        if (leaf < s->first_seed || leaf >= s->first_seed + s->n_seeds) readers[t->leaves[leaf].param] = true;
    }
}

/* What the program itself reads of a gradient stays what it was until everything else has run. */
static rw_status keep_for_readers(struct rw_targets *s)
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

/* Effects belong to the step: they run with its backward, or with an eval that asks for them. */
static bool effects_happen(const struct rw_targets *s)
{
    return s->request->kind == RW_PLAN_STEP || s->request->effects;
}

/* What a stateful or non-deterministic node gives is held from its first run on, so that nothing ever runs it twice. */
static rw_status target_effects(struct rw_targets *s)
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

static rw_status begin_at_roots(struct rw_targets *s)
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
 * ---- what commits read ----
 *
 * Invariant: a commit reads nothing that a commit or a gradient of the same step writes before it, nor what it writes
 * itself, by whichever leaf or view. Where the program recorded such a read, the commit reads a copy of the leaf, which
 * is recorded here and so runs before the first commit, and before the first gradient is written. `instead` maps the
 * leaf to its copy; the operand it writes stays the leaf itself.
 */

static bool reserve_copies(struct rw_targets *s)
{
    const size_t had = s->n_instead, n = s->t->n_leaves;
    if (!rw_grow(&s->instead, &s->cap_instead, had, n - had, sizeof *s->instead)) return false;
    for (size_t i = had; i < n; i++) s->instead[i] = RW_NONE_ID;
    s->n_instead = n;
    return true;
}

/* Records the copy of what a leaf held before the step, once. */
static rw_status copy_leaf(struct rw_targets *s, uint32_t leaf)
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

/* Memory that the step writes, by parameter: a set of these. */
enum { WRITES_DATA = 1, WRITES_GRADIENT = 2 };

/* The memory that the operand names; 0 for a value that a node makes. *ret_param and *ret_leaf are set otherwise. */
static unsigned memory_of(const rw_tape *t, uint32_t operand, uint32_t *ret_param, uint32_t *ret_leaf)
{
    *ret_leaf = rw_tape_value(t, rw_tape_base(t, t->operands[operand]))->leaf;
    if (*ret_leaf == RW_NONE_ID) return 0;
    const struct rw_leaf *const leaf = &t->leaves[*ret_leaf];
    *ret_param = leaf->param;
    return leaf->kind == RW_LEAF_PARAM ? WRITES_DATA : leaf->kind == RW_LEAF_GRADIENT ? WRITES_GRADIENT : 0;
}

static rw_status copy_for_commit(struct rw_targets *s, const struct rw_node *node, uint8_t *written)
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

/* For every commit that has not run, in order; `written`: by parameter, the memory written before the first. */
static rw_status copy_for_commits(struct rw_targets *s, uint8_t *written)
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

static rw_status keep_for_commits(struct rw_targets *s)
{
    if (!s->t->n_effects) return RW_OK;
    uint8_t *const written = rw_calloc(s->ctx->n_ids, sizeof *written);
    if (!written) return no_memory(s);
    const rw_status status = copy_for_commits(s, written);
    rw_free(written);
    return status;
}

/* The same for gradients that backward writes; called before keep_for_readers() records what writes them. */
static rw_status keep_gradients_for_commits(struct rw_targets *s)
{
    if (!s->t->n_effects) return RW_OK;
    uint8_t *const written = rw_calloc(s->ctx->n_ids, sizeof *written);
    if (!written) return no_memory(s);
    for (size_t i = 0; i < s->n_params; i++) written[s->params[i]] = WRITES_GRADIENT;
    const rw_status status = copy_for_commits(s, written);
    rw_free(written);
    return status;
}

/* What runs once cannot be part of two passes. */
static rw_status check_twice(const struct rw_targets *s, size_t first)
{
    const rw_tape *const t = s->t;
    for (size_t n = first; n < t->n_nodes; n++) {
        const rw_op_def *const op = s->ctx->ops[t->nodes[n].op];
        if (!(op->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC))) continue;
        const rw_site at = s->ctx->sites[t->nodes[n].site];
        return rw_fail(s->ctx, RW_ERR_UNSUPPORTED,
                       "planning: backward cannot run twice: the gradient of what was recorded at %s:%d is made by %s, "
                       "which %s", at.file, at.line, op->name,
                       op->flags & RW_OP_STATEFUL ? "runs once" : "gives other bytes the second time");
    }
    return RW_OK;
}

/* Backward for the sake of what is of all gradients; then sums begin again with what they began with. */
static rw_status pass_first(struct rw_targets *s, size_t n_values)
{
    rw_tape *const t = s->t;
    const size_t n_nodes = t->n_nodes, n_amaxes = t->n_amaxes;
    s->in_first_pass = true;
    rw_status status = begin_at_roots(s);
    s->in_first_pass = false;
    if (!status) status = check_twice(s, n_nodes);
    t->origin = rw_origin_of(t, RW_NONE_ID);
    for (struct rw_first_pass *f = s->request->first; !status && f; f = f->next) status = f->end(f, t);
    t->origin = (struct rw_origin){ 0 };
    if (status) return status;
    t->n_amaxes = n_amaxes;
    rw_free(s->grads);
    s->grads = rw_calloc(t->n_values, sizeof *s->grads);
    if (!s->grads) return no_memory(s);
    for (size_t v = 0; v < n_values; v++) s->grads[v] = s->seeds[v];
    return RW_OK;
}

static rw_status differentiate(struct rw_targets *s)
{
    rw_tape *const t = s->t;
    const size_t n_values = t->n_values;
    s->grads = rw_calloc(n_values, sizeof *s->grads);
    s->seeds = rw_calloc(n_values, sizeof *s->seeds);
    if (!s->grads || !s->seeds) return no_memory(s);
    rw_status status = plant_seeds(s);
    if (!status && s->request->first) status = pass_first(s, n_values);
    if (!status) status = begin_at_roots(s);
    if (!status) status = keep_gradients_for_commits(s);
    return status ? status : keep_for_readers(s);
}

/* What the tape has put among the effects from `first` on runs when the step ends. */
static rw_status target_commits(struct rw_targets *s, size_t first)
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

static void mark_maker(const struct rw_targets *s, bool *needed, uint32_t value)
{
    const uint32_t maker = rw_tape_value(s->t, rw_tape_base(s->t, value))->producer;
    if (maker != RW_NONE_ID) needed[maker] = true;
}

/* Of what the step's losses and gradients depend on. */
static rw_status note_amaxes(struct rw_targets *s)
{
    const size_t n_effects = s->t->n_effects;
    if (!s->t->n_amaxes) return RW_OK;
    bool *const needed = rw_calloc(s->t->n_nodes, sizeof *needed);
    if (!needed) return no_memory(s);
    for (size_t i = 0; i < s->request->n_values; i++) mark_maker(s, needed, s->request->values[i]);
    for (size_t i = 0; i < s->n; i++)
        if (!s->target[i].only_if_needed) mark_maker(s, needed, s->target[i].value);
    for (size_t i = 0; i < s->n_used_up; i++) mark_maker(s, needed, s->used_up[i].value);
    const rw_status status = rw_amaxes_record(s->t, needed);
    rw_free(needed);
    return status ? status : target_commits(s, n_effects);
}

/* The gradients as recorders find them: the sums of a step; beside a step what the parameters' own memory holds. */
static rw_status find_gradients(const struct rw_targets *s, rw_tensor **gradient)
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

/* What recorders put on the tape runs when the step ends, as everything that commits does. */
static rw_status record_updates(struct rw_targets *s)
{
    rw_tape *const t = s->t;
    const size_t n_effects = t->n_effects;
    rw_tensor **const gradient = rw_calloc(s->ctx->n_ids, sizeof(rw_tensor *));
    if (!gradient) return no_memory(s);
    rw_status status = find_gradients(s, gradient);
    if (s->request->used_up) s->first_update = (uint32_t)t->n_nodes;
    for (struct rw_recorder *r = s->request->recorders; !status && r; r = r->next) {
        if (r->late && s->request->used_up && s->end_update == RW_NONE_ID) s->end_update = (uint32_t)t->n_nodes;
        status = r->record(r, t, gradient);
    }
    rw_free(gradient);
    return status ? status : target_commits(s, n_effects);
}

rw_status rw_targets_init(struct rw_targets *s, rw_tape *t, const struct rw_request *request)
{
    *s = (struct rw_targets){ .taker.take = take, .t = t, .ctx = t->ctx, .request = request,
                              .n_recorded = (uint32_t)t->n_nodes, .first_update = RW_NONE_ID,
                              .end_update = RW_NONE_ID };
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < s->request->n_values; i++) {
        const uint32_t base = rw_tape_base(t, s->request->values[i]);
        if (rw_tape_value(t, base)->producer == RW_NONE_ID || rw_tape_held(t, base)) continue;
        if (s->request->kind == RW_PLAN_STEP && is_taken(s, base)) continue;
        status = add_target(s, (struct rw_target){ .value = base, .of = RW_NONE_ID });
    }
    if (!status) status = target_effects(s);
    if (!status && s->request->kind == RW_PLAN_STEP) status = differentiate(s);
    if (!status && s->request->kind == RW_PLAN_STEP) status = note_amaxes(s);
    if (!status && s->request->recorders) status = record_updates(s);
    return status || !effects_happen(s) ? status : keep_for_commits(s);
}

void rw_targets_finish(struct rw_targets *s)
{
    rw_free(s->grads);
    rw_free(s->seeds);
    rw_free(s->target);
    rw_free(s->taken);
    rw_free(s->instead);
    rw_free(s->params);
    rw_free(s->used_up);
}
