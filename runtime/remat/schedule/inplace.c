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

/* Does an input of the action already use that memory? */
static bool is_used(const rw_tape *t, const struct rw_schedule *s, const struct rw_action *action, uint32_t source)
{
    for (uint32_t i = 0; i < t->nodes[action->node].n_inputs; i++)
        if (s->buffers[s->refs[action->word + i]].source == source) return true;
    return false;
}

/*
 * If an output is a parameter's gradient, computes an input that has its last use here directly in the gradient's
 * memory, if nothing else uses that memory meanwhile. The same then applies to the inputs from which that input was
 * computed, because actions are visited in reverse. So a sum of gradients needs no second buffer.
 */
static void merge_into_gradient(const struct rw_problem *p, struct rw_schedule *s, uint32_t index, uint32_t out,
                                uint32_t in)
{
    const struct rw_buffer *const o = &s->buffers[out];
    struct rw_buffer *const b = &s->buffers[in];
    if (o->source == RW_NONE_ID || s->sources[o->source].kind != RW_SOURCE_GRADIENT) return;
    if (!may_take(s, index, in) || b->bytes != p->bytes[o->value]) return;
    if (!is_computed_in_backward(s, b) || is_used(p->t, s, &s->actions[index], o->source)) return;
    if (is_free(p->t, s, s->sources[o->source].index, b)) b->source = o->source;
}

/* An action with its node, and the buffers of its operands. */
struct writer {
    uint32_t index;
    const struct rw_node *node;
    const uint32_t *inputs, *outputs;
};

/* Has another output of the action reused that memory? */
static bool is_taken(const struct rw_schedule *s, const struct writer *w, uint32_t in)
{
    for (uint32_t i = 0; i < w->node->n_outputs; i++)
        if (s->buffers[w->outputs[i]].merged == in) return true;
    return false;
}

/* An output reuses the memory of an input that has its last use here. Returns whether it does. */
static inline bool merge_in_arena(struct rw_schedule *s, const struct writer *w, uint32_t out, uint32_t in)
{
    in = rw_buffer_root(s, in);
    if (!may_take(s, w->index, in)) return false;
    struct rw_buffer *const o = &s->buffers[out];
    if (o->source != RW_NONE_ID || o->merged != out || s->buffers[in].bytes != o->bytes) return false;
    if (w->node->n_outputs > 1 && is_taken(s, w, in)) return false;
    o->merged = in;
    s->buffers[in].last = o->last;
    return true;
}

static inline struct writer writer_of(const struct rw_problem *p, const struct rw_schedule *s, uint32_t index)
{
    const struct rw_action *const a = &s->actions[index];
    const struct rw_node *const node = &p->t->nodes[a->node];
    const uint32_t *const inputs = s->refs + a->word;
    return (struct writer){ index, node, inputs, inputs + node->n_inputs };
}

/* Does some output have memory outside of the arena? Most actions of backward have none. */
static inline bool writes_source(const struct rw_schedule *s, const struct writer *w)
{
    for (uint32_t i = 0; i < w->node->n_outputs; i++)
        if (s->buffers[w->outputs[i]].source != RW_NONE_ID) return true;
    return false;
}

#define LATE ((uint64_t)1 << RW_OVERWRITES_LAST)

/* Merges the pairs of output and input that an action of backward may write in place, in the order of its op. */
static void merge_gradients_of(const struct rw_problem *p, struct rw_schedule *s, const struct writer *w, uint64_t may)
{
    const rw_inplace *const pair = p->t->ctx->ops[w->node->op]->inplace;
    for (uint64_t left = may & ~LATE; left; left &= left - 1) {
        const rw_inplace *const x = &pair[__builtin_ctzll(left)];
        merge_into_gradient(p, s, w->index, w->outputs[x->output], w->inputs[x->input]);
    }
    for (size_t k = RW_OVERWRITES_LAST; may & LATE && pair[k].output != UINT16_MAX; k++)
        if (rw_may_overwrite(p->t, w->node, pair[k].output, pair[k].input))
            merge_into_gradient(p, s, w->index, w->outputs[pair[k].output], w->inputs[pair[k].input]);
}

/* The same in the arena. Once its only output is merged, no other pair of an action can be. */
static void merge_others_of(const struct rw_problem *p, struct rw_schedule *s, const struct writer *w, uint64_t may)
{
    const rw_inplace *const pair = p->t->ctx->ops[w->node->op]->inplace;
    const bool is_single = w->node->n_outputs == 1;
    for (uint64_t left = may & ~LATE; left; left &= left - 1) {
        const rw_inplace *const x = &pair[__builtin_ctzll(left)];
        if (merge_in_arena(s, w, w->outputs[x->output], w->inputs[x->input]) && is_single) return;
    }
    for (size_t k = RW_OVERWRITES_LAST; may & LATE && pair[k].output != UINT16_MAX; k++)
        if (rw_may_overwrite(p->t, w->node, pair[k].output, pair[k].input))
            merge_in_arena(s, w, w->outputs[pair[k].output], w->inputs[pair[k].input]);
}

void rw_merge_in_place(const struct rw_problem *p, struct rw_schedule *s)
{
    for (uint32_t i = (uint32_t)s->n_actions; i-- > s->n_forward;) {
        if (!s->actions[i].may_overwrite) continue;
        const struct writer w = writer_of(p, s, i);
        if (writes_source(s, &w)) merge_gradients_of(p, s, &w, p->overwrites[s->actions[i].node]);
    }
    for (uint32_t i = 0; i < s->n_actions; i++) {
        if (!s->actions[i].may_overwrite) continue;
        const struct writer w = writer_of(p, s, i);
        merge_others_of(p, s, &w, p->overwrites[s->actions[i].node]);
    }
}
