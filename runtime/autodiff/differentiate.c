/* Pass 2: visits the tape in reverse and calls each op's gradient rule, which records adjoint nodes. rule.c adds the
   contributions of a rule to the sums. A gradient is passed on (taken) at the first moment at which no earlier node
   can contribute to it, so that commits of updates can follow it directly. */
#include "autodiff/differentiate.h"

#include "autodiff/gradient_edges.h"
#include "autodiff/rule.h"
#include "base/alloc.h"

#include <rewind/create.h>

#include <stdio.h>
#include <string.h>

/* True if a node's outputs are constants for gradients: by its op, or because it was recorded in a no-grad scope. */
static bool stops_gradients(const rw_tape *t, size_t n)
{
    return (t->ctx->ops[t->nodes[n].op]->flags & RW_OP_NO_GRADIENT) ||
           t->nodes[n].no_grad;
}

void rw_spread_requirement(rw_tape *t)
{
    for (size_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        const struct rw_edges e = rw_edges_of(t, node);
        bool requires = false;
        for (uint32_t i = 0; i < rw_edges_count(&e); i++)
            requires |= rw_tape_value(t, rw_edge(t, &e, i))->flags & RW_VALUE_REQUIRES;
        if (!requires || stops_gradients(t, n)) continue;
        for (int i = 0; i < node->n_outputs; i++) {
            struct rw_tensor *const v = rw_tape_value(t, node->first_output + (uint32_t)i);
            if (rw_dtype_is_float((rw_dtype)v->dtype)) v->flags |= RW_VALUE_REQUIRES;
        }
    }
}

/*
 * By value: is it one of x, or does it depend on one? Only these are differentiated: not what was recorded before all
 * of x, nor what is independent of x. All of them require gradients, because x does.
 */
static bool *find_requested(const rw_tape *t, const uint32_t *x, size_t n)
{
    bool *const requested = rw_calloc(t->n_values, sizeof *requested);
    for (size_t i = 0; requested && i < n; i++) requested[x[i]] = true;
    for (size_t k = 0; requested && k < t->n_nodes; k++) {
        const struct rw_node *const node = &t->nodes[k];
        const struct rw_edges e = rw_edges_of(t, node);
        bool depends = false;
        for (uint32_t i = 0; !depends && i < rw_edges_count(&e); i++) depends = requested[rw_edge(t, &e, i)];
        if (!depends || stops_gradients(t, k)) continue;
        for (uint32_t v = node->first_output; v < node->first_output + node->n_outputs; v++)
            requested[v] |= rw_dtype_is_float((rw_dtype)rw_tape_value(t, v)->dtype);
    }
    return requested;
}

struct walk {
    rw_tape *t;
    rw_tensor **grads;
    bool *requested; /* by value; NULL: all */
    uint32_t least;  /* the first requested value, 0 for all: nodes before it are skipped */
    bool again;
    struct rw_grad_taker *taker;
    struct rw_use *use;  /* by value; NULL without a taker */
    rw_tensor **room;    /* arrays per operand for a rule, sized for the largest node: upstream, result, lent, is_sum */
};

/* Copies the attributes, because the tape's array may move while the rule records. */
static bool copy_attrs(struct rw_grad_call *g)
{
    unsigned char *const copy = g->node.attrs_size <= RW_RULE_ATTRS ? g->small : rw_malloc(g->node.attrs_size);
    if (copy && g->node.attrs_size) memcpy(copy, g->tape->attrs + g->node.attrs, g->node.attrs_size);
    g->attrs = copy;
    return copy != NULL;
}

/* Open regions, parts, recipes and no-grad scopes of a tape, and the sizes of their lists. */
struct open {
    uint32_t region, part, recipe;
    size_t regions, parts;
    unsigned no_grads;
};

static struct open open_of(const rw_tape *t)
{
    return (struct open){ t->open_region, t->open_part, t->open_recipe, t->n_regions, t->n_parts,
                          t->open_no_grads };
}

/* A rule must close what it opens, and nothing else. Otherwise all later nodes would be recorded into its region, or
   backward refused. */
static rw_status check_open(const struct rw_grad_call *g, const rw_op_def *op, const struct open *before)
{
    rw_tape *const t = g->tape;
    char what[RW_MESSAGE_MAX / 2];
    const unsigned left = t->open_no_grads;
    t->open_no_grads = before->no_grads;
    if (t->open_region == before->region && t->open_part == before->part && t->open_recipe == before->recipe && !left)
        return RW_OK;
    const rw_site at = rw_rule_site(g);
    snprintf(what, sizeof what, "gradient rule of %s at %s:%d", op->name, rw_file_of(at), at.line);
    const rw_status status = rw_open_check(t, what);
    t->open_region = before->region;
    t->open_part = before->part;
    t->open_recipe = before->recipe;
    t->n_regions = before->regions;
    t->n_parts = before->parts;
    if (status) return status;
    return rw_fail(t->ctx, RW_ERR_REGION,
                   left ? "%s: expected rw_no_grad_end() for each rw_no_grad_begin(), got too few"
                        : "%s: expected no end of a scope that the rule has not begun, got one", what);
}

/* The status of a rule whose recorded ops have all succeeded. RW_ERR_MISMATCH is not a status of rules. */
static rw_status check_returned(const struct rw_grad_call *g, const rw_op_def *op, rw_status status)
{
    if (rw_is_status((int)status) && status != RW_ERR_MISMATCH) return status;
    const rw_site at = rw_rule_site(g);
    return rw_fail(g->tape->ctx, RW_ERR_ARGUMENT,
                   "gradient rule of %s at %s:%d: expected a status of a rule, got %d", op->name, rw_file_of(at),
                   at.line, (int)status);
}

/* Calls a rule. An error that it has recorded takes precedence over the status that it returns, so the first cause
   is reported. A rule that succeeds must have set a gradient, or gradients would silently be lost. */
static rw_status run_rule(struct rw_grad_call *g, const rw_op_def *op)
{
    rw_tape *const t = g->tape;
    const struct open before = open_of(t);
    if (!copy_attrs(g)) return RW_ERR_MEMORY;
    t->n_rules++;
    t->open_no_grads = 0; /* rw_backward() may be called in a no-grad scope; the rule's ops have gradients
                             nevertheless */
    const enum rw_callback callback = rw_callback_enter(t->ctx, RW_CALLBACK_RULE);
    rw_status status = op->grad(g);
    rw_callback_leave(t->ctx, callback); /* a refused call has recorded an error */
    t->n_rules--;
    const rw_status left = check_open(g, op, &before);
    if (t->ctx->status) status = t->ctx->status;
    else status = status ? check_returned(g, op, status) : left;
    if (!status && !g->has_set)
        status = rw_fail(t->ctx, RW_ERR_ARGUMENT, "gradient rule of %s at %s:%d: expected rw_grad_set(), got no call",
                         op->name, rw_rule_site(g).file, rw_rule_site(g).line);
    if (!status) status = rw_rule_settle(g);
    if (g->attrs != g->small) rw_free((void *)(uintptr_t)g->attrs);
    return status;
}

/* Calls the rule of a node if a gradient flows into one of its outputs and one of its edges needs a gradient.
   Otherwise nothing is recorded, so ops without a rule are allowed there. */
static rw_status apply_rule(struct rw_grad_call *g)
{
    rw_context *const ctx = g->tape->ctx;
    const rw_op_def *const op = ctx->ops[g->node.op];
    bool flows = false, wanted = false;
    for (int i = 0; i < g->node.n_outputs; i++) {
        g->upstream[i] = g->grads[g->node.first_output + (uint32_t)i];
        flows |= g->upstream[i] != NULL;
    }
    const struct rw_edges e = rw_edges_of(g->tape, &g->node);
    for (uint32_t i = 0; i < rw_edges_count(&e); i++)
        wanted |= rw_value_is_wanted(g->tape, g->requested, rw_edge(g->tape, &e, i));
    if (!flows || !wanted || stops_gradients(g->tape, g->index)) return RW_OK;
    const rw_site at = rw_rule_site(g);
    if (!op->grad)
        return rw_fail(ctx, RW_ERR_NO_GRADIENT,
                       "%s at %s:%d: expected an op with a gradient rule, as a gradient flows through it, got one "
                       "without", op->name,
                       rw_file_of(at), at.line);
    const rw_status status = run_rule(g, op);
    if (status)
        rw_fail(ctx, status, "gradient rule of %s at %s:%d: %s", op->name,
                rw_file_of(at), at.line, rw_status_name(status));
    return status;
}

static bool is_awaited(const rw_tape *t, const struct rw_tensor *v)
{
    return (v->flags & RW_VALUE_RETAIN) ||
           (v->leaf != RW_NONE_ID && t->leaves[v->leaf].kind == RW_LEAF_PARAM && (v->flags & RW_VALUE_REQUIRES));
}

static rw_status pass_on(const struct walk *w, uint32_t value)
{
    if (!w->taker || !w->grads[value] || !is_awaited(w->t, rw_tape_value(w->t, value))) return RW_OK;
    return w->taker->take(w->taker, value, w->grads[value]);
}

/* Passes on gradients of leaves: after the walk has passed the first node that uses a leaf, its gradient is
   complete. */
static rw_status complete(const struct walk *w, const struct rw_node *node, uint32_t n)
{
    rw_status status = RW_OK;
    const struct rw_edges e = rw_edges_of(w->t, node);
    for (uint32_t i = 0; w->taker && !status && i < rw_edges_count(&e); i++) {
        const uint32_t in = rw_edge(w->t, &e, i);
        if (w->use[in].first != n || rw_tape_value(w->t, in)->leaf == RW_NONE_ID) continue;
        w->use[in].first = RW_NONE_ID; /* one value may be several inputs */
        status = pass_on(w, in);
    }
    return status;
}

/* Passes on gradients of a node's outputs, when the walk reaches the node. An output may only be read through its
   parts. */
static rw_status pass_on_outputs(const struct walk *w, const struct rw_node *node)
{
    rw_status status = RW_OK;
    for (uint32_t i = 0; w->taker && !status && i < node->n_outputs; i++) status = pass_on(w, node->first_output + i);
    return status;
}

/* Visits one node in reverse order. When the walk reaches it, all later nodes have contributed to its outputs, so
   their gradients are complete: they are passed on before the rule runs. After the rule, gradients of leaves for
   which this was the first use are complete. */
static rw_status visit(const struct walk *w, uint32_t n)
{
    rw_tape *const t = w->t;
    const struct rw_node *const node = &t->nodes[n];
    rw_tensor **const result = w->room + node->n_outputs, **const lent = result + node->n_inputs;
    struct rw_grad_call g;
    g.tape = t;
    g.index = n;
    g.node = *node;
    g.use = w->use;
    g.grads = w->grads;
    g.requested = w->requested;
    g.again = w->again;
    g.has_set = false;
    g.upstream = w->room;
    g.result = result;
    g.lent = lent;
    g.is_sum = (bool *)(lent + node->n_inputs);
    memset(result, 0, node->n_inputs * (2 * sizeof *result + sizeof *g.is_sum));
    t->origin = rw_origin_of(t, n);
    rw_status status = pass_on_outputs(w, &g.node);
    if (!status) status = apply_rule(&g);
    return status ? status : complete(w, &g.node, n);
}

static rw_status failure(const rw_tape *t)
{
    return t->ctx->status ? t->ctx->status : RW_ERR_MEMORY;
}

/* For a tape without nodes, which has only inputs. */
static bool originate_anywhere(rw_tape *t)
{
    static const rw_site anywhere = { "(an input)", 0 };
    t->origin.site = rw_site_index(t->ctx, anywhere);
    return t->origin.site != RW_NONE_ID;
}

/* Starts at a root: its seed belongs to the root's producer, so nodes recorded here have that origin. */
static rw_status begin_at(const struct walk *w, const struct rw_root *root)
{
    rw_tape *const t = w->t;
    const struct rw_tensor *const y = rw_tape_value(t, root->value);
    if (!rw_value_is_wanted(t, w->requested, y->id)) return RW_OK;
    t->origin = rw_origin_of(t, y->producer);
    if (!t->n_nodes && !originate_anywhere(t)) return failure(t);
    rw_tensor *seed = root->seed;
    if (!seed)
        seed = rw_full_at(RW_HERE, t, (rw_dtype)y->dtype, rw_layout_shape(rw_layout_of(t->ctx, y)), 1.0);
    rw_tensor **const sum = &w->grads[root->value];
    if (seed && *sum) seed = rw_accumulate_at(RW_HERE, t, *sum, seed);
    if (seed) *sum = seed;
    return seed ? RW_OK : failure(t);
}

static bool is_repeated(const struct rw_root *roots, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (roots[k].value == roots[i].value) return true;
    return false;
}

/* Starts at all roots. A leaf that no visited node uses is complete at once. *ret_end: one past the first node to
   visit. */
static rw_status begin(const struct walk *w, const struct rw_root *roots, size_t n, uint32_t *ret_end)
{
    rw_status status = RW_OK;
    *ret_end = 0;
    for (size_t i = 0; !status && i < n; i++) {
        const struct rw_tensor *const y = rw_tape_value(w->t, roots[i].value);
        status = begin_at(w, &roots[i]);
        if (w->grads[y->id] && y->producer != RW_NONE_ID && y->producer >= *ret_end) *ret_end = y->producer + 1;
    }
    for (size_t i = 0; w->taker && !status && i < n; i++) {
        const uint32_t v = roots[i].value, use = w->use[v].first;
        if (is_repeated(roots, i) || (use != RW_NONE_ID && use < *ret_end)) continue;
        if (rw_tape_value(w->t, v)->leaf == RW_NONE_ID) continue;
        w->t->origin = rw_origin_of(w->t, rw_tape_value(w->t, v)->producer);
        status = pass_on(w, v);
    }
    return status;
}

/* Finds the first and last user of each value. Nodes after all roots do not contribute, such as those of an earlier
   differentiation. */
static rw_status find_uses(struct walk *w, const struct rw_root *roots, size_t n_roots)
{
    const rw_tape *const t = w->t;
    uint32_t end = 0;
    for (size_t i = 0; i < n_roots; i++) {
        const uint32_t producer = rw_tape_value(t, roots[i].value)->producer;
        if (producer != RW_NONE_ID && producer >= end) end = producer + 1;
    }
    w->use = rw_calloc(t->n_values, sizeof *w->use);
    if (!w->use) return rw_fail(t->ctx, RW_ERR_MEMORY, "backward: out of memory");
    for (size_t v = 0; v < t->n_values; v++) w->use[v].first = RW_NONE_ID;
    for (uint32_t n = (uint32_t)t->n_nodes; n-- > 0;) {
        const struct rw_edges e = rw_edges_of(t, &t->nodes[n]);
        for (uint32_t i = 0; i < rw_edges_count(&e); i++) {
            struct rw_use *const use = &w->use[rw_edge(t, &e, i)];
            use->first = n;
            use->n += n < end;
        }
    }
    return RW_OK;
}

static rw_status make_room(struct walk *w)
{
    const rw_tape *const t = w->t;
    size_t most = 0;
    for (size_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        const size_t room = (node->n_outputs + 2u * node->n_inputs) * sizeof *w->room + node->n_inputs * sizeof(bool);
        if (room > most) most = room;
    }
    w->room = rw_malloc(most);
    return w->room ? RW_OK : rw_fail(t->ctx, RW_ERR_MEMORY, "backward: out of memory");
}

/* Might the node read value `least` or a later one? Values are numbered in the order of nodes. */
static bool reads_after(const struct walk *w, uint32_t n)
{
    return !w->least || w->t->nodes[n].first_output > w->least;
}

/* By value: only these gradients are requested; NULL: all. */
static rw_status request(struct walk *w, const uint32_t *x, size_t n)
{
    w->least = x ? RW_NONE_ID : 0;
    for (size_t i = 0; x && i < n; i++)
        if (x[i] < w->least) w->least = x[i];
    w->requested = x ? find_requested(w->t, x, n) : NULL;
    return !x || w->requested ? RW_OK : rw_fail(w->t->ctx, RW_ERR_MEMORY, "backward: out of memory");
}

/* The walk stops early if only some gradients are requested: nodes before the first requested value cannot depend on
   one. */
rw_status rw_differentiate(rw_tape *t, const struct rw_root *roots, size_t n_roots, const uint32_t *x, size_t n_x,
                           rw_tensor **grads, struct rw_grad_taker *taker)
{
    struct walk w = { .t = t, .grads = grads, .again = x != NULL, .taker = taker };
    const struct rw_origin around = t->origin; /* of a rule that calls rw_grad() */
    uint32_t n = 0;
    rw_spread_requirement(t);
    rw_status status = request(&w, x, n_x);
    if (!status && taker) status = find_uses(&w, roots, n_roots);
    if (!status) status = make_room(&w);
    if (!status) status = begin(&w, roots, n_roots, &n);
    while (!status && n-- > 0 && reads_after(&w, n)) status = visit(&w, n);
    t->origin = around;
    rw_free(w.requested);
    rw_free(w.use);
    rw_free(w.room);
    return status;
}
