/*
 * Pass 4 for a schedule. Buffers whose lives touch share memory where an op may write in place; the rest is placed by
 * place/place.h; then the steps keep one word per operand.
 */
#include "plan/layout_plan.h"

#include "base/alloc.h"
#include "base/round.h"
#include "place/place.h"

#include <string.h>

/* In place */

static uint32_t root_of(const struct rw_schedule *s, uint32_t buffer)
{
    while (s->buffers[buffer].merged != buffer) buffer = s->buffers[buffer].merged;
    return buffer;
}

static const struct rw_tensor *input_value(const rw_tape *t, const struct rw_node *node, int i)
{
    return rw_tape_value(t, t->operands[node->first_input + (uint32_t)i]);
}

/* A dense part of a buffer is not enough: an op that broadcasts it reads it again after the rest has been written over. */
static bool is_whole_buffer(const rw_tape *t, const struct rw_tensor *v)
{
    return rw_layout_is_whole(rw_tensor_layout(t->ctx, v)) && rw_tensor_bytes(v) == rw_tensor_bytes(rw_tape_value(t, v->base));
}

/* No other operand of the step may look into the buffer, unless it is the very same dense value. */
static bool is_alone(const rw_tape *t, const struct rw_schedule *s, const struct rw_action *step, int i)
{
    const struct rw_node *const node = &t->nodes[step->node];
    for (int k = 0; k < node->n_inputs; k++) {
        if (s->refs[step->word + (uint32_t)k] != s->refs[step->word + (uint32_t)i]) continue;
        if (!is_whole_buffer(t, input_value(t, node, k))) return false;
        if (k != i && !(t->ctx->ops[node->op]->inplace >> k & 1)) return false;
    }
    return true;
}

/* Does step `index` let its output 0 take the memory of each of its inputs that lies in that buffer? */
static bool takes_over(const rw_tape *t, const struct rw_schedule *s, uint32_t index, uint32_t buffer)
{
    const struct rw_action *const step = &s->actions[index];
    const struct rw_node *const node = &t->nodes[step->node];
    for (int i = 0; i < node->n_inputs; i++)
        if (s->refs[step->word + (uint32_t)i] == buffer)
            return i < 32 && (t->ctx->ops[node->op]->inplace >> i & 1) && is_alone(t, s, step, i);
    return true;
}

/* Is what a gradient holds read no more once buffer b is written, but by the step that writes b and may do so in
   place? */
static bool is_free(const rw_tape *t, const struct rw_schedule *s, uint32_t gradient, const struct rw_buffer *b)
{
    const struct rw_action *const maker = &s->actions[b->first];
    for (size_t i = 0; i < s->n_read_gradients; i++) {
        const struct rw_buffer *const r = &s->buffers[s->read_gradients[i]];
        if (s->sources[r->source].index != gradient || r->last < b->first) continue;
        if (r->last > b->first) return false;
        if (&s->buffers[s->refs[maker->word + t->nodes[maker->node].n_inputs]] != b) return false;
        if (!takes_over(t, s, b->first, s->read_gradients[i])) return false;
    }
    return true;
}

/* May output 0 of the step take over the memory of input i, as far as the two say? */
static bool may_take(const rw_tape *t, const struct rw_schedule *s, uint32_t index, int i, uint32_t in)
{
    const struct rw_action *const step = &s->actions[index];
    const struct rw_buffer *const b = &s->buffers[in];
    return (t->ctx->ops[t->nodes[step->node].op]->inplace >> i & 1) && b->source == RW_NONE_ID && b->last == index &&
           b->bytes && is_alone(t, s, step, i);
}

static bool writes_in_place(const rw_tape *t, const struct rw_action *step)
{
    const struct rw_node *const node = &t->nodes[step->node];
    return t->ctx->ops[node->op]->inplace && node->n_outputs && step->kind != RW_ACTION_COMMIT;
}

/*
 * Output 0 is a parameter's gradient: an input that dies here is made there to begin with, and so is what that was made
 * from in the same way, when nothing else uses that memory meanwhile. A sum of gradients then needs no second buffer.
 */
static void merge_into_gradient(const rw_tape *t, struct rw_schedule *s, uint32_t index)
{
    const struct rw_action *const step = &s->actions[index];
    const struct rw_node *const node = &t->nodes[step->node];
    if (!writes_in_place(t, step)) return;
    const struct rw_buffer *const o = &s->buffers[s->refs[step->word + node->n_inputs]];
    if (o->source == RW_NONE_ID || s->sources[o->source].kind != RW_SOURCE_GRADIENT) return;
    for (int i = 0; i < node->n_inputs && i < 32; i++) {
        struct rw_buffer *const b = &s->buffers[s->refs[step->word + (uint32_t)i]];
        if (!may_take(t, s, index, i, s->refs[step->word + (uint32_t)i])) continue;
        if (b->bytes != rw_tensor_bytes(rw_tape_value(t, o->value))) continue;
        if (!is_free(t, s, s->sources[o->source].index, b)) continue;
        b->source = o->source;
        return;
    }
}

/* Output 0 takes over input i's memory when that input dies here. */
static void merge_in_arena(const rw_tape *t, struct rw_schedule *s, uint32_t index)
{
    const struct rw_action *const step = &s->actions[index];
    const struct rw_node *const node = &t->nodes[step->node];
    if (!writes_in_place(t, step)) return;
    struct rw_buffer *const o = &s->buffers[s->refs[step->word + node->n_inputs]];
    if (o->source != RW_NONE_ID) return;
    for (int i = 0; i < node->n_inputs && i < 32; i++) {
        const uint32_t in = root_of(s, s->refs[step->word + (uint32_t)i]);
        if (!may_take(t, s, index, i, in) || s->buffers[in].bytes != o->bytes) continue;
        o->merged = in;
        s->buffers[in].last = o->last;
        return;
    }
}

static void merge_in_place(const rw_tape *t, struct rw_schedule *s)
{
    for (uint32_t i = (uint32_t)s->n_actions; i-- > 0;) merge_into_gradient(t, s, i);
    for (uint32_t i = 0; i < s->n_actions; i++) merge_in_arena(t, s, i);
}

/* Placement */

static rw_status place(const rw_tape *t, struct rw_schedule *s, rw_plan *plan, uint64_t *offsets)
{
    const uint64_t alignment = t->ctx->device->alignment;
    struct rw_life *const lives = rw_malloc(s->n_buffers * sizeof *lives);
    uint32_t *const of = rw_malloc(s->n_buffers * sizeof *of);
    size_t n = 0;
    rw_status status = lives && of ? RW_OK : RW_ERR_MEMORY;
    for (uint32_t i = 0; !status && i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (b->source != RW_NONE_ID || b->merged != i) continue;
        of[n] = i;
        lives[n++] = (struct rw_life){ .first = b->first, .last = b->last, .bytes = b->bytes };
    }
    if (!status) status = rw_place(lives, n, alignment, &plan->arena_bytes);
    if (!status) plan->largest_live = rw_largest_live(lives, n, alignment);
    if (!status && plan->arena_bytes && !plan->largest_live) status = RW_ERR_MEMORY;
    if (!status && plan->arena_bytes / alignment >= RW_WORD_SOURCE) status = RW_ERR_MEMORY; /* no word says where */
    for (size_t i = 0; !status && i < n; i++) offsets[of[i]] = lives[i].offset;
    rw_free(lives);
    rw_free(of);
    return status;
}

/* Statistics */

static void count_bytes(const rw_tape *t, const struct rw_schedule *s, rw_plan *plan, int64_t *delta)
{
    const uint64_t unit = t->ctx->device->alignment;
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (b->source != RW_NONE_ID || b->merged != i) continue;
        const uint64_t bytes = rw_round_up(b->bytes, unit);
        if (b->value == RW_NONE_ID && bytes > plan->workspace_bytes) plan->workspace_bytes = bytes;
        if (b->first < s->n_forward && b->last >= s->n_forward) plan->kept_bytes += bytes;
        if (!b->replay) continue;
        delta[b->first] += (int64_t)bytes;
        delta[b->last + 1] -= (int64_t)bytes;
    }
    int64_t live = 0;
    for (size_t i = 0; i < s->n_actions; i++) {
        live += delta[i];
        if (live > (int64_t)plan->replayed_bytes) plan->replayed_bytes = (uint64_t)live;
    }
}

static void count_cost(const rw_tape *t, const struct rw_schedule *s, rw_cost *cost)
{
    for (size_t i = 0; i < s->n_actions; i++) {
        const struct rw_node *const node = &t->nodes[s->actions[i].node];
        rw_desc in[RW_OP_MAX_INPUTS], out[RW_OP_MAX_OUTPUTS];
        const rw_op_call call = rw_call_of(t, node, in, out);
        const rw_op_cost c = rw_call_cost(&call);
        const uint8_t kind = s->actions[i].kind;
        *(kind == RW_ACTION_REPLAY ? &cost->replayed_flops : kind == RW_ACTION_BACKWARD ? &cost->backward_flops
                                                                                   : &cost->forward_flops) += c.flops;
        *(kind == RW_ACTION_REPLAY ? &cost->replayed_bytes : kind == RW_ACTION_BACKWARD ? &cost->backward_bytes
                                                                                   : &cost->forward_bytes) += c.bytes;
        *(kind == RW_ACTION_REPLAY ? &cost->replayed_nodes : kind == RW_ACTION_BACKWARD ? &cost->backward_nodes
                                                                                   : &cost->forward_nodes) += 1;
    }
}

static void count_effects(const rw_tape *t, const struct rw_schedule *s, rw_plan *plan)
{
    for (size_t i = 0; i < s->n_actions; i++) {
        plan->n_effects += (t->ctx->ops[t->nodes[s->actions[i].node].op]->flags & RW_OP_STATEFUL) != 0;
        plan->n_commits += s->actions[i].kind == RW_ACTION_COMMIT;
    }
}

/* The digest flag marks what REWIND_VERIFY=digest looks at: values that are replayed, both times. */
static rw_status mark_digests(const rw_tape *t, struct rw_schedule *s)
{
    bool *const replayed = rw_calloc(t->n_nodes, sizeof *replayed);
    if (!replayed) return RW_ERR_MEMORY;
    for (size_t i = 0; i < s->n_actions; i++)
        if (s->actions[i].kind == RW_ACTION_REPLAY) replayed[s->actions[i].node] = true;
    for (size_t i = 0; i < s->n_actions; i++) 
        if (replayed[s->actions[i].node]) s->actions[i].flags |= RW_ACTION_DIGEST;
    rw_free(replayed);
    return RW_OK;
}

/* The compact form */

static uint32_t word_of(const struct rw_schedule *s, uint32_t buffer, const uint64_t *offsets, uint32_t unit)
{
    const uint32_t root = root_of(s, buffer);
    const struct rw_buffer *const b = &s->buffers[root];
    return b->source == RW_NONE_ID ? rw_word_of_offset(offsets[root], unit) : rw_word_of_source(b->source);
}

/* A workspace is a buffer without a value that one action alone uses: they come in the order of the actions. */
static rw_status list_workspaces(const struct rw_schedule *s, rw_plan *plan)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_buffers; i++) n += s->buffers[i].value == RW_NONE_ID;
    plan->workspaces = rw_malloc(n * sizeof *plan->workspaces);
    if (!plan->workspaces) return RW_ERR_MEMORY;
    for (size_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (b->value != RW_NONE_ID) continue;
        plan->workspaces[plan->n_workspaces++] = (struct rw_plan_workspace){ b->first, b->bytes };
    }
    return RW_OK;
}

static rw_status compact(const struct rw_schedule *s, rw_plan *plan, const uint64_t *offsets)
{
    plan->actions = rw_malloc(s->n_actions * sizeof *plan->actions);
    plan->words = rw_malloc(s->n_refs * sizeof *plan->words);
    plan->sources = rw_malloc(s->n_sources * sizeof *plan->sources);
    plan->results = rw_malloc(s->n_results * sizeof *plan->results);
    if (!plan->actions || !plan->words || !plan->sources || !plan->results) return RW_ERR_MEMORY;
    for (size_t i = 0; i < s->n_refs; i++) 
        plan->words[i] = word_of(s, s->refs[i], offsets, plan->unit);
    if (s->n_actions) memcpy(plan->actions, s->actions, s->n_actions * sizeof *plan->actions);
    if (s->n_sources) memcpy(plan->sources, s->sources, s->n_sources * sizeof *plan->sources);
    if (s->n_results) memcpy(plan->results, s->results, s->n_results * sizeof *plan->results);
    plan->n_actions = s->n_actions;
    plan->n_words = s->n_refs;
    plan->n_sources = s->n_sources;
    plan->n_results = s->n_results;
    plan->n_forward = s->n_forward;
    plan->results_bytes = s->results_bytes;
    return list_workspaces(s, plan);
}

rw_status rw_layout_plan(const rw_tape *t, struct rw_schedule *s, rw_plan *plan)
{
    merge_in_place(t, s);
    plan->unit = (uint32_t)t->ctx->device->alignment;
    uint64_t *const offsets = rw_calloc(s->n_buffers, sizeof *offsets);
    int64_t *const delta = rw_calloc(s->n_actions + 1, sizeof *delta);
    rw_status status = offsets && delta ? place(t, s, plan, offsets) : RW_ERR_MEMORY;
    if (!status) status = mark_digests(t, s);
    if (!status) status = compact(s, plan, offsets);
    if (!status) {
        count_bytes(t, s, plan, delta);
        count_cost(t, s, &plan->cost);
        count_effects(t, s, plan);
    }
    rw_free(offsets);
    rw_free(delta);
    return status;
}
