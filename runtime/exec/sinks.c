/* What a plan is for. See sinks.h. */
#include "exec/sinks.h"

#include "autodiff/accumulate.h"
#include "autodiff/differentiate.h"
#include "memory/alloc.h"
#include "ops/pointwise/pointwise.h"
#include "ops/shape/shape.h"
#include "record/record.h"

static rw_status no_memory(const struct rw_sinks *s)
{
    return rw_fail(s->ctx, RW_ERR_MEMORY, "planning: out of memory");
}

static rw_status add_sink(struct rw_sinks *s, struct rw_sink sink)
{
    if (!rw_grow(&s->sink, &s->cap, s->n, 1, sizeof *s->sink)) return no_memory(s);
    s->sink[s->n++] = sink;
    return RW_OK;
}

/* A gradient can be written straight to where it belongs when a node makes it whole and nobody else has taken it. */
static bool is_bindable(const struct rw_sinks *s, const rw_tensor *g, const bool *taken)
{
    return g->base == g->id && g->producer != RW_NONE_ID && !taken[g->id] &&
           rw_layout_is_whole(rw_tensor_layout(s->ctx, g));
}

/* A node recorded here belongs to backward, and to the region of the node that made its input. */
static void stamp_last_node(struct rw_sinks *s, const rw_tensor *after)
{
    struct rw_node *const node = &s->t->nodes[s->t->n_nodes - 1];
    node->level = 1;
    if (after->producer != RW_NONE_ID) node->region = s->t->nodes[after->producer].region;
}

static rw_site any_site(const struct rw_sinks *s)
{
    return s->t->n_nodes ? s->ctx->sites[s->t->nodes[0].site] : RW_HERE;
}

/* Notes whose place the node recorded last takes. */
static bool take_place(struct rw_sinks *s, uint32_t product)
{
    const size_t n = s->t->n_nodes - s->first_sink_node;
    if (!rw_grow(&s->instead, &s->cap_instead, s->n_instead, n - s->n_instead, sizeof *s->instead)) return false;
    while (s->n_instead < n) s->instead[s->n_instead++] = RW_NONE_ID;
    s->instead[n - 1] = product;
    return true;
}

static rw_tensor *copy_of(struct rw_sinks *s, rw_tensor *g)
{
    rw_tensor *const copy = rw_apply_at(any_site(s), s->t, &rw_op_contiguous, &g, 1, NULL, 0, NULL);
    if (copy) stamp_last_node(s, g);
    return copy;
}

/*
 * old + g, written over old: the parameter's gradient is both an input and where the sum goes. A product that nobody else
 * reads is added by a node that takes its place.
 */
static rw_tensor *added_to(struct rw_sinks *s, struct rw_param *p, rw_tensor *g)
{
    const uint32_t product = g->base == g->id && s->reads[g->id] == 1 ? rw_product_of(s->t, g) : RW_NONE_ID;
    rw_tensor *const sum = product == RW_NONE_ID ? rw_accumulate_at(any_site(s), s->t, &p->gradient, g)
                                                 : rw_add_product_at(any_site(s), s->t, &p->gradient, g);
    if (!sum) return NULL;
    stamp_last_node(s, g);
    return take_place(s, product) ? sum : NULL;
}

static rw_status sink_param(struct rw_sinks *s, uint32_t param, rw_tensor *g, bool *taken)
{
    struct rw_param *const p = s->ctx->params[param];
    const bool adds = !p->grad_clear && !s->request->private_gradients;
    rw_tensor *const y = adds ? added_to(s, p, g) : is_bindable(s, g, taken) ? g : copy_of(s, g);
    if (!y) return s->ctx->status ? s->ctx->status : no_memory(s);
    if (y == g) taken[g->id] = true;
    if (!rw_grow(&s->params, &s->cap_params, s->n_params, 1, sizeof *s->params)) return no_memory(s);
    if (!s->request->private_gradients) s->params[s->n_params++] = param;
    return add_sink(s, (struct rw_sink){ .value = y->id, .of = param, .of_param = true,
                                         .into_gradient = !s->request->private_gradients });
}

/* Who reads what, before sinks read too. */
static bool count_reads(struct rw_sinks *s)
{
    const rw_tape *const t = s->t;
    s->reads = rw_calloc(t->n_values, sizeof *s->reads);
    if (!s->reads) return false;
    for (size_t i = 0; i < t->n_operands; i++) s->reads[rw_tape_base(t, t->operands[i])]++;
    for (size_t i = 0; i < t->n_retained; i++)
        if (s->grads[t->retained[i]]) s->reads[s->grads[t->retained[i]]->base]++;
    for (size_t i = 0; i < t->n_leaves; i++) {
        const struct rw_leaf *const leaf = &t->leaves[i];
        if (leaf->kind == RW_LEAF_PARAM && leaf->value < s->n_recorded && s->grads[leaf->value])
            s->reads[s->grads[leaf->value]->base]++;
    }
    return true;
}

static rw_status sink_gradients(struct rw_sinks *s)
{
    const rw_tape *const t = s->t;
    const size_t n_values = s->n_recorded;
    bool *const taken = rw_calloc(t->n_values, sizeof *taken);
    if (!taken || !count_reads(s)) {
        rw_free(taken);
        return no_memory(s);
    }
    rw_status status = RW_OK;
    const size_t n_leaves = t->n_leaves;
    for (size_t i = 0; !status && i < t->n_retained; i++) {
        rw_tensor *g = s->grads[t->retained[i]];
        if (!g) continue;
        if (!is_bindable(s, g, taken)) g = copy_of(s, g);
        else taken[g->id] = true;
        status = g ? add_sink(s, (struct rw_sink){ .value = g->id, .of = t->retained[i] }) : s->ctx->status;
    }
    for (size_t i = 0; !status && i < n_leaves; i++) {
        const struct rw_leaf leaf = t->leaves[i];
        if (leaf.kind != RW_LEAF_PARAM || leaf.value >= n_values || !s->grads[leaf.value]) continue;
        if (s->ctx->params[leaf.param]->grad) status = sink_param(s, leaf.param, s->grads[leaf.value], taken);
    }
    rw_free(taken);
    return status;
}

/* All of them in tape order. */
static rw_status run_last(struct rw_sinks *s)
{
    rw_free(s->early);
    rw_free(s->next);
    s->early = s->next = NULL;
    return RW_OK;
}

/* Behind which node may a sink's node run: that of its latest input, or the product that it stands for. */
static uint32_t node_before(const struct rw_sinks *s, uint32_t n)
{
    const rw_tape *const t = s->t;
    const struct rw_node *const node = &t->nodes[n];
    const size_t i = n - s->first_sink_node;
    if (i < s->n_instead && s->instead[i] != RW_NONE_ID) return s->instead[i];
    uint32_t after = RW_NONE_ID;
    for (int k = 0; k < node->n_inputs; k++) {
        const uint32_t in = rw_tape_base(t, t->operands[node->first_input + (uint32_t)k]);
        const uint32_t p = rw_tape_value(t, in)->producer;
        if (p != RW_NONE_ID && (after == RW_NONE_ID || p > after)) after = p;
    }
    return after;
}

/* Lists the sinks' nodes behind those. */
static rw_status run_early(struct rw_sinks *s)
{
    const rw_tape *const t = s->t;
    const size_t first = s->first_sink_node;
    s->n_regular = t->n_nodes;
    if (first == t->n_nodes) return RW_OK;
    s->early = rw_malloc(t->n_nodes * sizeof *s->early);
    s->next = rw_malloc(t->n_nodes * sizeof *s->next);
    if (!s->early || !s->next) return no_memory(s);
    for (size_t n = 0; n < t->n_nodes; n++) s->early[n] = s->next[n] = RW_NONE_ID;
    for (uint32_t n = (uint32_t)t->n_nodes; n-- > first;) {
        const uint32_t after = node_before(s, n);
        /* the gradient is a leaf, or a value of forward */
        if (after == RW_NONE_ID || after >= first || !t->nodes[after].level) return run_last(s);
        s->next[n] = s->early[after];
        s->early[after] = n;
    }
    s->n_regular = first;
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
static rw_status sink_effects(struct rw_sinks *s, size_t n_recorded)
{
    const rw_tape *const t = s->t;
    const bool all = s->request->kind == RW_PLAN_STEP || (s->request->effects && !has_trainable_leaf(t));
    rw_status status = RW_OK;
    for (size_t n = 0; !status && n < n_recorded; n++) {
        const struct rw_node *const node = &t->nodes[n];
        const rw_op_def *const op = s->ctx->ops[node->op];
        if (!(op->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC)) || node->done) continue;
        const bool runs = all && (op->flags & RW_OP_STATEFUL);
        for (uint32_t i = 0; !status && i < node->n_outputs; i++) {
            const uint32_t v = node->first_output + i;
            if (rw_tape_held(t, v)) continue;
            status = add_sink(s, (struct rw_sink){ .value = v, .of = RW_NONE_ID, .only_if_needed = !runs });
        }
    }
    return status;
}

rw_status rw_sinks_init(struct rw_sinks *s, rw_tape *t, const struct rw_request *request)
{
    *s = (struct rw_sinks){ .t = t, .ctx = t->ctx, .request = request };
    const size_t n_recorded = t->n_nodes;
    s->n_recorded = t->n_values;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < s->request->n_values; i++) {
        const uint32_t base = rw_tape_base(t, s->request->values[i]);
        if (rw_tape_value(t, base)->producer == RW_NONE_ID || rw_tape_held(t, base)) continue;
        status = add_sink(s, (struct rw_sink){ .value = base, .of = RW_NONE_ID });
    }
    if (!status) status = sink_effects(s, n_recorded);
    if (status || s->request->kind != RW_PLAN_STEP) {
        s->n_regular = n_recorded;
        return status;
    }
    status = rw_differentiate(t, s->request->values[0], false, &s->grads);
    s->first_sink_node = t->n_nodes;
    if (!status) status = sink_gradients(s);
    return status ? status : run_early(s);
}

void rw_sinks_finish(struct rw_sinks *s)
{
    rw_free(s->grads);
    rw_free(s->sink);
    rw_free(s->params);
    rw_free(s->reads);
    rw_free(s->instead);
    rw_free(s->early);
    rw_free(s->next);
}
