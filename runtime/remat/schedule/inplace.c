/*
 * Merges buffers: first sums into parameters' gradients, from the last action back, then outputs into inputs in the
 * arena.
 */
#include "remat/schedule/inplace.h"

#include "record/overwrite.h"

/* May that output of action `index` overwrite the first input that is in that buffer? */
static bool takes_over(const rw_tape *t, const struct rw_schedule *s, uint32_t index, uint32_t output, uint32_t buffer)
{
    const struct rw_action *const action = &s->actions[index];
    const struct rw_node *const node = &t->nodes[action->node];
    for (uint32_t i = 0; i < node->n_inputs; i++)
        if (s->refs[action->word + i] == buffer) return rw_may_overwrite(t, node, output, i);
    return true;
}

/* The index of the output that buffer b is, among the outputs of the action that writes it. */
static uint32_t output_of(const rw_tape *t, const struct rw_schedule *s, const struct rw_buffer *b)
{
    const struct rw_action *const producer = &s->actions[b->first];
    const uint32_t *const outputs = s->refs + producer->word + t->nodes[producer->node].n_inputs;
    uint32_t output = 0;
    while (output < t->nodes[producer->node].n_outputs && &s->buffers[outputs[output]] != b) output++;
    return output;
}

/* The first read of that gradient, or of a later one if it is not read. */
static size_t first_read(const struct rw_schedule *s, uint32_t gradient)
{
    size_t low = 0, high = s->n_read_gradients;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (s->read_gradients[middle].gradient < gradient) low = middle + 1;
        else high = middle;
    }
    return low;
}

/*
 * May buffer b use that gradient's memory? Either the gradient's old contents have had their last read before b is
 * written, or the action that writes b is the last reader and may overwrite what it reads.
 */
static bool is_free(const rw_tape *t, const struct rw_schedule *s, uint32_t gradient, const struct rw_buffer *b)
{
    for (size_t i = first_read(s, gradient); i < s->n_read_gradients; i++) {
        const struct rw_read_gradient read = s->read_gradients[i];
        const struct rw_buffer *const r = &s->buffers[read.buffer];
        if (read.gradient != gradient) break;
        if (r->last < b->first) continue;
        if (r->last > b->first) return false;
        if (!takes_over(t, s, b->first, output_of(t, s, b), read.buffer)) return false;
    }
    return true;
}

/* Can an output of action `index` reuse the memory of the input in buffer `in`? */
static bool may_take(const struct rw_schedule *s, uint32_t index, uint32_t in)
{
    const struct rw_buffer *const b = &s->buffers[in];
    return b->source == RW_NONE_ID && b->last == index && b->bytes;
}

/* Forward writes no gradients: a step may be suspended after forward while another one adds to the same gradient. */
static bool is_computed_in_backward(const struct rw_schedule *s, const struct rw_buffer *b)
{
    return b->first >= s->n_forward && !rw_action_is_move(s->actions[b->first].kind);
}

/* The buffers of both sides of an in-place pair, as operands of the action. */
static void find_sides(const rw_tape *t, const struct rw_schedule *s, uint32_t index, const rw_inplace *pair,
                       uint32_t *ret_out, uint32_t *ret_in)
{
    const struct rw_action *const action = &s->actions[index];
    const struct rw_node *const node = &t->nodes[action->node];
    *ret_out = s->refs[action->word + node->n_inputs + pair->output];
    *ret_in = s->refs[action->word + pair->input];
}

/* Does an input of the action already use that memory? */
static bool is_used(const rw_tape *t, const struct rw_schedule *s, uint32_t index, uint32_t source)
{
    const struct rw_action *const action = &s->actions[index];
    for (uint32_t i = 0; i < t->nodes[action->node].n_inputs; i++)
        if (s->buffers[s->refs[action->word + i]].source == source) return true;
    return false;
}

/*
 * If an output is a parameter's gradient, computes an input that has its last use here directly in the gradient's
 * memory, if nothing else uses that memory meanwhile. The same then applies to the inputs from which that input was
 * computed, because actions are visited in reverse. So a sum of gradients needs no second buffer.
 */
static void merge_into_gradient(const rw_tape *t, struct rw_schedule *s, uint32_t index, const rw_inplace *pair)
{
    uint32_t out, in;
    find_sides(t, s, index, pair, &out, &in);
    const struct rw_buffer *const o = &s->buffers[out];
    struct rw_buffer *const b = &s->buffers[in];
    if (o->source == RW_NONE_ID || s->sources[o->source].kind != RW_SOURCE_GRADIENT) return;
    if (!may_take(s, index, in) || b->bytes != rw_tensor_bytes(rw_tape_value(t, o->value))) return;
    if (!is_computed_in_backward(s, b) || is_used(t, s, index, o->source)) return;
    if (is_free(t, s, s->sources[o->source].index, b)) b->source = o->source;
}

/* Has another output of the action reused that memory? */
static bool is_taken(const rw_tape *t, const struct rw_schedule *s, uint32_t index, uint32_t in)
{
    const struct rw_action *const action = &s->actions[index];
    const struct rw_node *const node = &t->nodes[action->node];
    for (uint32_t i = 0; i < node->n_outputs; i++)
        if (s->buffers[s->refs[action->word + node->n_inputs + i]].merged == in) return true;
    return false;
}

/* An output reuses the memory of an input that has its last use here. */
static void merge_in_arena(const rw_tape *t, struct rw_schedule *s, uint32_t index, const rw_inplace *pair)
{
    uint32_t out, in;
    find_sides(t, s, index, pair, &out, &in);
    struct rw_buffer *const o = &s->buffers[out];
    in = rw_buffer_root(s, in);
    if (o->source != RW_NONE_ID || o->merged != out || !may_take(s, index, in)) return;
    if (s->buffers[in].bytes != o->bytes || is_taken(t, s, index, in)) return;
    o->merged = in;
    s->buffers[in].last = o->last;
}

/* Calls `merge` for each pair of output and input that the action may write in place, in the order of its op. */
static void merge_each(const struct rw_problem *p, struct rw_schedule *s, uint32_t index,
                       void (*merge)(const rw_tape *t, struct rw_schedule *s, uint32_t index, const rw_inplace *pair))
{
    const struct rw_action *const action = &s->actions[index];
    if (!action->may_overwrite) return;
    const uint64_t may = p->overwrites[action->node];
    const struct rw_node *const node = &p->t->nodes[action->node];
    const rw_inplace *const pair = p->t->ctx->ops[node->op]->inplace;
    for (size_t k = 0; pair[k].output != UINT16_MAX; k++) {
        if (k < RW_OVERWRITES_LAST ? !(may >> k & 1) : !rw_may_overwrite(p->t, node, pair[k].output, pair[k].input))
            continue;
        merge(p->t, s, index, &pair[k]);
    }
}

void rw_merge_in_place(const struct rw_problem *p, struct rw_schedule *s)
{
    for (uint32_t i = (uint32_t)s->n_actions; i-- > s->n_forward;) merge_each(p, s, i, merge_into_gradient);
    for (uint32_t i = 0; i < s->n_actions; i++) merge_each(p, s, i, merge_in_arena);
}
