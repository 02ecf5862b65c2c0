/*
 * Assembles a plan from a schedule. The nodes that differentiation recorded move from the tape into the plan (its
 * tail), and every operand becomes one 32-bit word.
 */
#include "plan/assemble.h"

#include "autodiff/costs.h"
#include "base/alloc.h"
#include "ops/common/pass_ops.h"
#include "remat/schedule/fused_update.h"

#include <math.h>
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

/* Moves the nodes that differentiation recorded from the tape to the plan. */
static bool take_tail(const rw_tape *t, rw_plan *plan, const struct rw_tape_mark *mark)
{
    plan->mark_nodes = (uint32_t)mark->nodes;
    plan->mark_operands = (uint32_t)mark->operands;
    plan->mark_attrs = (uint32_t)mark->attrs;
    plan->mark_values = (uint32_t)mark->values;
    plan->recorded = (struct rw_tape_point){ mark->hash, mark->words, t->ctx->layouts.generation };
    plan->first_site = mark->nodes ? t->nodes[0].site : RW_NONE_ID;
    plan->n_values = t->n_values - mark->values;
    plan->values = rw_malloc(plan->n_values * sizeof *plan->values);
    if (!plan->values) return false;
    for (size_t i = 0; i < plan->n_values; i++) {
        const struct rw_tensor *const v = rw_tape_value(t, (uint32_t)(mark->values + i));
        plan->values[i] = (struct rw_value_desc){ .layout = v->layout, .dtype = v->dtype };
    }
    return copy_array(&plan->nodes, &plan->n_nodes, t->nodes + mark->nodes, t->n_nodes - mark->nodes,
                      sizeof *t->nodes) &&
           copy_array(&plan->operands, &plan->n_operands, t->operands + mark->operands, t->n_operands - mark->operands,
                      sizeof *t->operands) &&
           copy_array(&plan->attrs, &plan->n_attrs, t->attrs + mark->attrs, t->n_attrs - mark->attrs, 1);
}

/* Clears leaves that gradient rules read directly from the context: in a later step the tape has another leaf at
   that index, or none. */
static void forget_leaves_of_the_tail(rw_plan *plan, const struct rw_tape_mark *mark)
{
    for (size_t i = 0; i < plan->n_sources; i++)
        if (plan->sources[i].leaf >= mark->leaves) plan->sources[i].leaf = RW_NONE_ID;
}

/* True for actions that execute a node a second time: replays, and the first of two backward passes. */
static bool is_replay(const struct rw_problem *p, const struct rw_action *a)
{
    return a->kind == RW_ACTION_REPLAY ||
           (a->node >= p->targets.first_pass && a->node < p->targets.end_first_pass);
}

/* A linear layer that a gradient rule records counts as forward executed again, such as the logits of
   linear_cross_entropy, computed in chunks. */
static bool is_of_model(const struct rw_problem *p, const struct rw_action *a)
{
    const struct rw_node *const node = &p->t->nodes[a->node];
    return !is_replay(p, a) && !(node->adjoint && p->t->ctx->ops[node->op]->bias);
}

static void count_cost(const struct rw_problem *p, const struct rw_schedule *s, rw_cost *cost)
{
    for (size_t i = 0; i < s->n_actions; i++) {
        const struct rw_action *const a = &s->actions[i];
        if (rw_action_is_move(a->kind)) continue;
        const rw_op_cost c = p->cost[a->node];
        if (is_replay(p, a)) cost->replayed_flops += c.flops, cost->replayed_bytes += c.bytes, cost->replayed_nodes++;
        else if (a->kind == RW_ACTION_BACKWARD)
            cost->backward_flops += c.flops, cost->backward_bytes += c.bytes, cost->backward_nodes++;
        else cost->forward_flops += c.flops, cost->forward_bytes += c.bytes, cost->forward_nodes++;
        if (is_of_model(p, a)) cost->model_flops += c.model_flops;
    }
}

static void count_effects(const rw_tape *t, const struct rw_schedule *s, rw_plan *plan)
{
    for (size_t i = 0; i < s->n_actions; i++) {
        const rw_op_def *const op = t->ctx->ops[t->nodes[s->actions[i].node].op];
        plan->n_effects += (op->flags & RW_OP_STATEFUL) && !rw_action_is_move(s->actions[i].kind);
        plan->n_commits += s->actions[i].kind == RW_ACTION_COMMIT;
    }
}

/* Waking other threads saves at most this time, and costs whole time slices of the scheduler if their cores are
   busy. A node runs in one thread or in all: with a few threads, later nodes would find less of what they read in
   their caches. */
#define ALONE_BELOW_S 30e-6

/* By op: does it have a cost function? A custom op without one may take any time. */
static bool *list_known_costs(const rw_context *ctx)
{
    bool *const known = rw_malloc(ctx->n_ops * sizeof *known);
    for (size_t i = 0; known && i < ctx->n_ops; i++)
        known[i] = ctx->ops[i]->cost || rw_op_is_builtin(ctx->ops[i]->name);
    return known;
}

/* Marks small nodes, at nominal rates, so that a plan does not depend on what was measured. */
static rw_status mark_little_work(const struct rw_problem *p, rw_plan *plan)
{
    bool *const known = list_known_costs(p->t->ctx);
    if (!known) return RW_ERR_MEMORY;
    for (size_t i = 0; i < plan->n_actions; i++) {
        struct rw_action *const a = &plan->actions[i];
        if (rw_action_is_move(a->kind) || !known[p->t->nodes[a->node].op]) continue;
        const double seconds = rw_nominal_seconds(p->cost[a->node]);
        if (seconds < ALONE_BELOW_S) a->flags |= RW_ACTION_ALONE;
        else if (seconds <= RW_LITTLE_MAX * RW_LITTLE_S)
            a->little = (uint8_t)ceil(seconds / RW_LITTLE_S) & RW_LITTLE_MAX;
    }
    rw_free(known);
    return RW_OK;
}

/* Marks actions that REWIND_VERIFY=digest digests: both computations of values that are replayed, and offloaded
   values before and after. The output of a recompute node is that of its original node. */
static rw_status mark_digests(const rw_tape *t, rw_plan *plan)
{
    bool *const again = rw_calloc(t->n_nodes, sizeof *again);
    if (!again) return RW_ERR_MEMORY;
    for (size_t i = 0; i < plan->n_actions; i++) {
        const struct rw_action *const a = &plan->actions[i];
        if (a->kind != RW_ACTION_REPLAY && a->kind != RW_ACTION_IN) continue;
        again[a->node] = true;
        if (t->nodes[a->node].adjoint && a->kind == RW_ACTION_REPLAY) again[t->nodes[a->node].of] = true;
    }
    for (size_t i = 0; i < plan->n_actions; i++)
        if (again[plan->actions[i].node]) plan->actions[i].flags |= RW_ACTION_DIGEST;
    rw_free(again);
    return RW_OK;
}

static uint32_t word_of(const struct rw_schedule *s, uint32_t buffer, const uint64_t *offset, uint32_t unit)
{
    const uint32_t root = rw_buffer_root(s, buffer);
    const uint32_t source = s->buffers[root].source;
    return source == RW_NONE_ID ? rw_word_of_offset(offset[root], unit) : rw_word_of_source(source);
}

/* The workspace: a buffer without a value, the last of an action's words. NULL: the action has none. */
static const struct rw_buffer *workspace_of(const struct rw_schedule *s, const struct rw_action *a)
{
    if (!a->n_words) return NULL;
    const struct rw_buffer *const b = &s->buffers[s->refs[a->word + a->n_words - 1]];
    return b->value == RW_NONE_ID && b->source == RW_NONE_ID ? b : NULL;
}

/* In the order of the actions, which differs from that of the buffers if updates are inside of backward. */
static rw_status list_workspaces(const struct rw_schedule *s, rw_plan *plan)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_actions; i++) n += workspace_of(s, &s->actions[i]) != NULL;
    plan->workspaces = rw_malloc(n * sizeof *plan->workspaces);
    if (!plan->workspaces) return RW_ERR_MEMORY;
    for (uint32_t i = 0; i < s->n_actions; i++) {
        const struct rw_buffer *const b = workspace_of(s, &s->actions[i]);
        if (b) plan->workspaces[plan->n_workspaces++] = (struct rw_plan_workspace){ i, b->bytes };
    }
    return RW_OK;
}

static rw_status list_slots(const struct rw_schedule *s, rw_plan *plan)
{
    plan->slots = rw_malloc(s->n_slots * sizeof *plan->slots);
    if (!plan->slots) return RW_ERR_MEMORY;
    for (; plan->n_slots < s->n_slots; plan->n_slots++)
        plan->slots[plan->n_slots] = (struct rw_plan_slot){ s->slots[plan->n_slots].offset,
                                                            s->slots[plan->n_slots].bytes, RW_NONE_ID };
    for (size_t i = 0; i < s->n_actions; i++) {
        const struct rw_action *const a = &s->actions[i];
        if (a->kind != RW_ACTION_OUT) continue;
        const uint32_t slot = s->sources[s->buffers[s->refs[a->word + 1]].source].index;
        plan->slots[slot].value = s->buffers[s->refs[a->word]].value;
    }
    return RW_OK;
}

static rw_status list_aside(rw_plan *plan)
{
    for (size_t i = 0; i < plan->n_actions; i++) plan->n_aside += plan->actions[i].lane != RW_LANE_COMPUTE;
    plan->aside = rw_malloc(plan->n_aside * sizeof *plan->aside);
    if (!plan->aside) return RW_ERR_MEMORY;
    size_t n = 0;
    for (size_t i = 0; i < plan->n_actions; i++)
        if (plan->actions[i].lane != RW_LANE_COMPUTE) plan->aside[n++] = (uint32_t)i;
    return RW_OK;
}

static rw_status list_outside(rw_plan *plan)
{
    plan->outside = rw_malloc((plan->n_sources - plan->n_results) * sizeof *plan->outside);
    if (!plan->outside) return RW_ERR_MEMORY;
    for (size_t i = 0; i < plan->n_sources; i++)
        if (plan->sources[i].kind != RW_SOURCE_RESULT) plan->outside[plan->n_outside++] = (uint32_t)i;
    return RW_OK;
}

/* ---- fused actions ---- */

static const struct rw_node *node_at(const struct rw_problem *p, const rw_plan *plan, size_t action)
{
    const bool runs = action < plan->n_actions && !rw_action_is_move(plan->actions[action].kind);
    return runs ? &p->t->nodes[plan->actions[action].node] : NULL;
}

/* A node with no inputs and one output, such as the fill of a seed gradient. */
static bool is_source(const struct rw_node *node)
{
    return node && node->n_inputs == 0 && node->n_outputs == 1;
}

/* Do the words of the two actions name the memory that the pair requires? */
static bool operands_fit(const rw_plan *plan, const struct rw_fused_pair *pair, size_t first, size_t last)
{
    const uint32_t *const a = plan->words + plan->actions[first].word;
    const uint32_t *const b = plan->words + plan->actions[last].word;
    for (int i = 0; i < pair->n_same; i++)
        if (b[pair->same[i].of_second] != a[pair->same[i].of_first]) return false;
    return true;
}

/* The action between the two makes the second one's operand `filled`, and writes over none of the first one's, before
   which it is executed. */
static bool fill_fits(const struct rw_problem *p, const rw_plan *plan, const struct rw_fused_pair *pair, size_t first)
{
    const uint32_t *const a = plan->words + plan->actions[first].word;
    const uint32_t filled = plan->words[plan->actions[first + 1].word];
    const struct rw_node *const node = node_at(p, plan, first);
    for (int i = 0; i < node->n_inputs + node->n_outputs; i++)
        if (a[i] == filled) return false;
    return plan->words[plan->actions[first + 2].word + pair->filled] == filled;
}

/* The last action of the pair that begins with this one; `first` itself if there is none. */
static size_t fused_with(const struct rw_problem *p, const rw_plan *plan, size_t first)
{
    rw_context *const ctx = p->t->ctx;
    const struct rw_node *const node = node_at(p, plan, first);
    const struct rw_fused_pair *const pair = node ? ctx->ops[node->op]->fused : NULL;
    if (!pair || !pair->kernel[ctx->kind]) return first;
    const bool fills = is_source(node_at(p, plan, first + 1));
    const size_t last = first + 1 + fills;
    const struct rw_node *const second = node_at(p, plan, last);
    if (!second || ctx->ops[second->op] != pair->second || node->n_inputs + node->n_outputs > RW_FUSED_OPERANDS ||
        second->n_inputs + second->n_outputs > RW_FUSED_OPERANDS)
        return first;
    if (!operands_fit(plan, pair, first, last)) return first;
    return !fills || fill_fits(p, plan, pair, first) ? last : first;
}

static rw_status list_fused(const struct rw_problem *p, rw_plan *plan)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->n_actions; i++) n += fused_with(p, plan, i) > i;
    plan->fused = rw_malloc(n * sizeof *plan->fused);
    if (!plan->fused) return RW_ERR_MEMORY;
    for (size_t i = 0; i < plan->n_actions && plan->n_fused < n; i++) {
        const size_t last = fused_with(p, plan, i);
        if (last == i) continue;
        plan->fused[plan->n_fused++] = (struct rw_fused_actions){
            (uint32_t)i, (uint32_t)last, p->t->ctx->ops[node_at(p, plan, i)->op]->fused
        };
    }
    return RW_OK;
}

/*
 * What a deferred node reads counts as read by forward, where the node has its place: an input that changes between
 * forward and backward is refused, as if the node had run. The node after it is in forward, see
 * autodiff/planning_problem.c.
 */
static rw_status note_deferred(const struct rw_problem *p, rw_plan *plan)
{
    uint32_t *const at = rw_malloc(p->mark.nodes * sizeof *at); /* node -> the first action of forward after it */
    if (!at) return RW_ERR_MEMORY;
    uint32_t next = 0;
    for (uint32_t i = 0; i < plan->n_forward; i++) {
        const struct rw_action *const a = &plan->actions[i];
        while (!rw_action_is_move(a->kind) && next <= a->node) at[next++] = i;
    }
    for (size_t i = plan->n_forward; i < plan->n_actions; i++) {
        const struct rw_action *const a = &plan->actions[i];
        if (a->kind != RW_ACTION_FORWARD || !p->deferrable[a->node]) continue;
        for (uint32_t k = 0; k < a->n_words; k++) {
            const uint32_t word = plan->words[a->word + k];
            if (!rw_word_is_source(word)) continue;
            struct rw_source *const source = &plan->sources[rw_word_source(word)];
            if (source->first > at[a->node]) source->first = at[a->node];
        }
    }
    rw_free(at);
    return RW_OK;
}

/* Sets the range of actions that use a source: a part of a run checks only sources of its own actions. */
static void note_operands(rw_plan *plan, uint32_t index)
{
    const struct rw_action *const a = &plan->actions[index];
    if (a->n_words > plan->most_operands) plan->most_operands = a->n_words;
    for (uint32_t k = 0; k < a->n_words; k++) {
        const uint32_t word = plan->words[a->word + k];
        if (!rw_word_is_source(word)) continue;
        struct rw_source *const source = &plan->sources[rw_word_source(word)];
        if (source->first == UINT32_MAX) source->first = index;
        source->last = index;
    }
}

/* Turns buffer IDs into words. Merged buffers share the offset of their root, so an in-place output has the word of
   its input. */
static rw_status compact(const struct rw_schedule *s, rw_plan *plan, const uint64_t *offset)
{
    plan->words = rw_malloc(s->n_refs * sizeof *plan->words);
    if (!plan->words || !copy_array(&plan->actions, &plan->n_actions, s->actions, s->n_actions, sizeof *s->actions) ||
        !copy_array(&plan->waits, &plan->n_waits, s->waits, s->n_waits, sizeof *s->waits) ||
        !copy_array(&plan->sources, &plan->n_sources, s->sources, s->n_sources, sizeof *s->sources) ||
        !copy_array(&plan->results, &plan->n_results, s->results, s->n_results, sizeof *s->results))
        return RW_ERR_MEMORY;
    for (size_t i = 0; i < s->n_refs; i++) plan->words[i] = word_of(s, s->refs[i], offset, plan->unit);
    plan->n_words = s->n_refs;
    for (size_t i = 0; i < plan->n_sources; i++) plan->sources[i].first = UINT32_MAX;
    for (uint32_t i = 0; i < plan->n_actions; i++) note_operands(plan, i);
    for (size_t i = 0; i < plan->n_results; i++) plan->n_gradient_results += plan->results[i].of != RW_NONE_ID;
    plan->n_forward = s->n_forward;
    plan->n_before = s->n_before;
    plan->results_bytes = s->results_bytes;
    rw_status status = list_slots(s, plan);
    if (!status) status = list_aside(plan);
    if (!status) status = list_outside(plan);
    return status ? status : list_workspaces(s, plan);
}

static rw_status list_used_up(const struct rw_problem *p, const struct rw_schedule *s, rw_plan *plan)
{
    const struct rw_outputs *const targets = &p->targets;
    plan->used_up = rw_malloc(targets->n_used_up * sizeof *plan->used_up);
    if (!plan->used_up) return RW_ERR_MEMORY;
    for (; plan->n_used_up < targets->n_used_up; plan->n_used_up++)
        plan->used_up[plan->n_used_up] = targets->used_up[plan->n_used_up].param;
    return plan->n_used_up ? rw_updates_gradients(p, s, &plan->used_up_bytes) : RW_OK;
}

static rw_status fill(rw_plan *plan, const struct rw_problem *p, const struct rw_schedule *s, const uint64_t *offset)
{
    const struct rw_outputs *const targets = &p->targets;
    plan->references = 1;
    plan->kind = targets->request->kind;
    plan->unit = (uint32_t)p->t->ctx->device->alignment;
    plan->threads = p->t->ctx->threads;
    plan->holding = rw_library_ref_share(p->holding);
    plan->seeded = targets->request->seeded;
    if (plan->kind == RW_PLAN_STEP && !copy_array(&plan->roots, &plan->n_roots, targets->request->values,
                                                  targets->request->n_values, sizeof *plan->roots))
        return RW_ERR_MEMORY;
    rw_status status = take_tail(p->t, plan, &p->mark) ? RW_OK : RW_ERR_MEMORY;
    if (!status) status = compact(s, plan, offset);
    if (!status && p->n_deferrable) status = note_deferred(p, plan);
    if (!status) status = list_fused(p, plan);
    if (!status) status = mark_digests(p->t, plan);
    if (!status) status = mark_little_work(p, plan);
    if (!status) status = list_used_up(p, s, plan);
    if (status) return status;
    forget_leaves_of_the_tail(plan, &p->mark);
    count_cost(p, s, &plan->cost);
    count_effects(p->t, s, plan);
    return copy_array(&plan->gradients, &plan->n_gradients, targets->params, targets->n_params, sizeof *targets->params)
               ? RW_OK
               : RW_ERR_MEMORY;
}

rw_status rw_plan_assemble(const struct rw_problem *p, const struct rw_schedule *s, const uint64_t *offset,
                           rw_plan **ret_plan)
{
    rw_plan *const plan = rw_calloc(1, sizeof *plan);
    if (!plan) return RW_ERR_MEMORY;
    const rw_status status = fill(plan, p, s, offset);
    if (status) rw_plan_release(plan);
    else *ret_plan = plan;
    return status;
}
