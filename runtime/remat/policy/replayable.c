/* Builds the graph of values that can be recomputed from a problem, and the fates of everything kept. */
#include "remat/policy/replayable.h"

#include "base/alloc.h"
#include "base/round_up.h"
#include "remat/policy/policy_to_choice.h"

#include <math.h>

/* Allocates the arrays for that many nodes and values. */
static bool reserve(struct rw_replayable *g, size_t nodes, size_t values)
{
    const rw_tape *const t = g->p->t;
    g->node = rw_malloc(nodes * sizeof *g->node);
    g->seconds = rw_malloc(nodes * sizeof *g->seconds);
    g->again = rw_malloc(nodes * sizeof *g->again);
    g->input_at = rw_malloc((nodes + 1) * sizeof *g->input_at);
    g->output_at = rw_malloc((nodes + 1) * sizeof *g->output_at);
    g->value = rw_malloc(values * sizeof *g->value);
    g->producer = rw_malloc(values * sizeof *g->producer);
    g->bytes = rw_malloc(values * sizeof *g->bytes);
    g->last_read = rw_malloc(values * sizeof *g->last_read);
    g->late = rw_calloc(values, sizeof *g->late);
    g->flags = rw_calloc(values, sizeof *g->flags);
    g->kept = rw_calloc(t->n_values, sizeof *g->kept);
    g->value_of = rw_malloc(t->n_values * sizeof *g->value_of);
    g->place_of = rw_malloc(t->n_nodes * sizeof *g->place_of);
    return g->node && g->seconds && g->again && g->input_at && g->output_at && g->value && g->producer && g->bytes &&
           g->last_read && g->late && g->flags && g->kept && g->value_of && g->place_of;
}

/* Does the caller request that one of its outputs is recomputed? The others are recomputed with it. */
static bool is_replayed_by_hand(const struct rw_problem *p, const struct rw_node *node)
{
    for (uint32_t i = 0; i < node->n_outputs; i++)
        if (rw_tape_value(p->t, node->first_output + i)->flags & RW_VALUE_RECOMPUTE) return true;
    return false;
}

static uint8_t flags_of(const struct rw_problem *p, uint32_t base)
{
    const struct rw_tensor *const x = rw_tape_value(p->t, base);
    const struct rw_node *const node = &p->t->nodes[x->producer];
    const bool once = p->t->ctx->ops[node->op]->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC);
    const bool is_kept = rw_part_keeps(p, node) && !is_replayed_by_hand(p, node); /* marks take precedence */
    const bool fixed = once || (x->flags & RW_VALUE_SAVE) || is_kept;
    const bool free = p->wanted[base] || (x->flags & RW_VALUE_OFFLOAD);
    const bool waits = rw_policy_may_move(p, p->targets.request->policy, base);
    return (uint8_t)((free ? RW_IS_FREE : 0) | (fixed ? RW_IS_FIXED : 0) | (waits ? RW_MAY_WAIT : 0) |
                     (rw_value_stays(p, base) ? RW_STAYS : 0));
}

static enum rw_why why_of(const struct rw_problem *p, uint32_t base)
{
    const rw_tape *const t = p->t;
    const struct rw_tensor *const x = rw_tape_value(t, base);
    const struct rw_node *const node = &t->nodes[x->producer];
    if (t->ctx->ops[node->op]->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC)) return RW_WHY_EFFECT;
    if (node->adjoint) return RW_WHY_ADJOINT;
    if (p->wanted[base]) return RW_WHY_RESULT;
    if (x->flags & RW_VALUE_SAVE) return RW_WHY_CALLER_SAVES;
    if (x->flags & RW_VALUE_OFFLOAD) return RW_WHY_CALLER_MOVES;
    return x->flags & RW_VALUE_RECOMPUTE ? RW_WHY_CALLER_REPLAYS : RW_WHY_BUDGET;
}

/*
 * Lists the fates if everything possible is kept. Values that the caller has marked to be offloaded or replayed keep
 * these fates in every choice.
 */
static void list_fates(struct rw_replayable *g)
{
    for (uint32_t v = 0; v < g->p->t->n_values; v++) {
        if (!rw_problem_makes(g->p, v)) continue;
        const enum rw_why why = why_of(g->p, v);
        const enum rw_what what = why == RW_WHY_CALLER_MOVES     ? RW_MOVE
                                  : why == RW_WHY_CALLER_REPLAYS ? RW_REPLAY
                                                                 : RW_KEEP;
        g->kept[v] = (struct rw_fate){ .what = (uint8_t)what, .why = (uint8_t)why };
    }
}

static void add_output(struct rw_replayable *g, uint32_t base, uint32_t place)
{
    const rw_tape *const t = g->p->t;
    const uint32_t v = (uint32_t)g->n_values;
    g->value[v] = base;
    g->value_of[base] = v;
    g->producer[v] = g->last_read[v] = place;
    g->bytes[v] = rw_round_up(rw_tensor_bytes(rw_tape_value(t, base)), t->ctx->device->alignment);
    g->flags[v] = flags_of(g->p, base);
    g->n_values++;
}

/* Adds each input of a node once. */
static bool add_inputs(struct rw_replayable *g, const struct rw_node *node, uint32_t place, size_t *n)
{
    const rw_tape *const t = g->p->t;
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const uint32_t v = g->value_of[rw_tape_base(t, t->operands[node->first_input + i])];
        if (v == RW_NONE_ID || g->last_read[v] == place) continue; /* before, it is an earlier place */
        if (!rw_grow(&g->input, &g->cap_input, *n, 1, sizeof *g->input)) return false;
        g->input[(*n)++] = v;
        g->last_read[v] = place;
    }
    return true;
}

static void note_late_reads(struct rw_replayable *g, const struct rw_node *node, uint32_t at)
{
    const rw_tape *const t = g->p->t;
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const uint32_t v = g->value_of[rw_tape_base(t, t->operands[node->first_input + i])];
        if (v != RW_NONE_ID) g->late[v] = at;
    }
}

/* Adds a place with the inputs of `reads`, as a part of node n that takes that many seconds. */
static bool begin_place(struct rw_replayable *g, uint32_t n, const struct rw_node *reads, double seconds,
                        size_t *n_inputs)
{
    const uint32_t place = (uint32_t)g->n_nodes++;
    g->node[place] = n;
    g->seconds[place] = seconds;
    g->input_at[place] = (uint32_t)*n_inputs;
    g->output_at[place] = (uint32_t)g->n_values;
    return add_inputs(g, reads, place, n_inputs);
}

/* Adds a node, and after it its recompute nodes. Their seconds add up to those of the node. */
static bool add_node(struct rw_replayable *g, uint32_t n, size_t *n_inputs)
{
    const struct rw_problem *const p = g->p;
    const struct rw_node *const node = &p->t->nodes[n];
    double seconds = rw_problem_seconds(p, n);
    const uint32_t place = g->place_of[n] = (uint32_t)g->n_nodes;
    if (!begin_place(g, n, node, seconds, n_inputs)) return false;
    for (uint32_t i = 0; i < node->n_outputs; i++) {
        const uint32_t v = node->first_output + i;
        if (rw_problem_makes(p, v) && p->recompute_node[v] == RW_NONE_ID) add_output(g, v, place);
    }
    for (uint32_t i = 0; i < node->n_outputs; i++) {
        const uint32_t v = node->first_output + i, recompute_node = p->recompute_node[v];
        if (!rw_problem_makes(p, v) || recompute_node == RW_NONE_ID) continue;
        const double part = fmin(rw_problem_seconds(p, recompute_node), seconds);
        if (!begin_place(g, n, &p->t->nodes[recompute_node], part, n_inputs)) return false;
        add_output(g, v, (uint32_t)g->n_nodes - 1);
        g->seconds[place] = seconds -= part;
    }
    return true;
}

/* Adds the nodes of forward in order, and notes the reads of adjoint nodes. */
static rw_status fill(struct rw_replayable *g)
{
    const struct rw_problem *const p = g->p;
    size_t n_inputs = 0;
    for (uint32_t v = 0; v < p->t->n_values; v++) g->value_of[v] = RW_NONE_ID;
    for (uint32_t n = 0; n < p->t->n_nodes; n++) g->place_of[n] = RW_NONE_ID;
    for (uint32_t i = 0; i < p->n_order; i++) {
        const uint32_t n = p->order[i];
        if (p->t->nodes[n].adjoint) note_late_reads(g, &p->t->nodes[n], i);
        else if (!add_node(g, n, &n_inputs)) return RW_ERR_MEMORY;
    }
    g->input_at[g->n_nodes] = (uint32_t)n_inputs;
    g->output_at[g->n_nodes] = (uint32_t)g->n_values;
    for (size_t i = 0; i < g->n_nodes; i++) g->again[i] = p->deferrable[g->node[i]] ? 0 : g->seconds[i];
    return RW_OK;
}

rw_status rw_replayable_init(struct rw_replayable *g, const struct rw_problem *p)
{
    *g = (struct rw_replayable){ .p = p };
    size_t nodes = p->t->n_nodes - p->first_recompute_node, values = 0;
    for (size_t i = 0; i < p->n_order; i++) {
        const struct rw_node *const node = &p->t->nodes[p->order[i]];
        if (!node->adjoint) nodes++, values += node->n_outputs;
    }
    rw_status status = reserve(g, nodes, values) ? RW_OK : RW_ERR_MEMORY;
    if (!status) status = fill(g);
    if (!status) list_fates(g);
    if (status) rw_replayable_finish(g);
    return status;
}

void rw_replayable_finish(struct rw_replayable *g)
{
    void *const arrays[] = { g->node, g->seconds, g->again, g->input_at, g->input, g->output_at, g->value, g->producer,
                             g->bytes, g->last_read, g->late, g->flags, g->kept, g->value_of, g->place_of };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) rw_free(arrays[i]);
    *g = (struct rw_replayable){ 0 };
}
