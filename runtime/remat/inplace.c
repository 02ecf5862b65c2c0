/* See inplace.h. */
#include "remat/inplace.h"

#include "record/overwrite.h"

/* Does action `index` let its output 0 take the memory of each of its inputs that lies in that buffer? */
static bool takes_over(const rw_tape *t, const struct rw_schedule *s, uint32_t index, uint32_t buffer)
{
    const struct rw_action *const action = &s->actions[index];
    const struct rw_node *const node = &t->nodes[action->node];
    for (int i = 0; i < node->n_inputs; i++)
        if (s->refs[action->word + (uint32_t)i] == buffer)
            return rw_may_overwrite(t, node, 0, (uint32_t)i);
    return true;
}

/* The first read of a gradient, or of one behind it. */
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
 * May buffer b lie in that gradient's memory? When b is written, what the gradient held must have been read for the
 * last time; or the action that writes b is the last reader, and may write over what it reads.
 */
static bool is_free(const rw_tape *t, const struct rw_schedule *s, uint32_t gradient, const struct rw_buffer *b)
{
    const struct rw_action *const maker = &s->actions[b->first];
    for (size_t i = first_read(s, gradient); i < s->n_read_gradients; i++) {
        const struct rw_read_gradient read = s->read_gradients[i];
        const struct rw_buffer *const r = &s->buffers[read.buffer];
        if (read.gradient != gradient) break;
        if (r->last < b->first) continue;
        if (r->last > b->first) return false;
        if (&s->buffers[s->refs[maker->word + t->nodes[maker->node].n_inputs]] != b) return false;
        if (!takes_over(t, s, b->first, read.buffer)) return false;
    }
    return true;
}

/* May output 0 of the action take over the memory of input i, as far as the two say? */
static bool may_take(const rw_tape *t, const struct rw_schedule *s, uint32_t index, int i, uint32_t in)
{
    const struct rw_action *const action = &s->actions[index];
    const struct rw_buffer *const b = &s->buffers[in];
    return b->source == RW_NONE_ID && b->last == index && b->bytes &&
           rw_may_overwrite(t, &t->nodes[action->node], 0, (uint32_t)i);
}

static bool writes_in_place(const rw_tape *t, const struct rw_action *action)
{
    const struct rw_node *const node = &t->nodes[action->node];
    return t->ctx->ops[node->op]->inplace && node->n_outputs && action->kind != RW_ACTION_COMMIT &&
           !rw_action_is_move(action->kind);
}

/* Forward writes no gradient: a step may stop behind it while another one adds to the same. */
static bool is_made_in_backward(const struct rw_schedule *s, const struct rw_buffer *b)
{
    return b->first >= s->n_forward && !rw_action_is_move(s->actions[b->first].kind);
}

/*
 * Output 0 is a parameter's gradient: an input that dies here is made there to begin with, and so is what that was made
 * from in the same way, when nothing else uses that memory meanwhile. A sum of gradients then needs no second buffer.
 */
static void merge_into_gradient(const rw_tape *t, struct rw_schedule *s, uint32_t index)
{
    const struct rw_action *const action = &s->actions[index];
    const struct rw_node *const node = &t->nodes[action->node];
    if (!writes_in_place(t, action)) return;
    const struct rw_buffer *const o = &s->buffers[s->refs[action->word + node->n_inputs]];
    if (o->source == RW_NONE_ID || s->sources[o->source].kind != RW_SOURCE_GRADIENT) return;
    for (int i = 0; i < node->n_inputs; i++) {
        struct rw_buffer *const b = &s->buffers[s->refs[action->word + (uint32_t)i]];
        if (!may_take(t, s, index, i, s->refs[action->word + (uint32_t)i])) continue;
        if (b->bytes != rw_tensor_bytes(rw_tape_value(t, o->value))) continue;
        if (!is_made_in_backward(s, b) || !is_free(t, s, s->sources[o->source].index, b)) continue;
        b->source = o->source;
        return;
    }
}

/* Output 0 takes over input i's memory when that input dies here. */
static void merge_in_arena(const rw_tape *t, struct rw_schedule *s, uint32_t index)
{
    const struct rw_action *const action = &s->actions[index];
    const struct rw_node *const node = &t->nodes[action->node];
    if (!writes_in_place(t, action)) return;
    struct rw_buffer *const o = &s->buffers[s->refs[action->word + node->n_inputs]];
    if (o->source != RW_NONE_ID) return;
    for (int i = 0; i < node->n_inputs; i++) {
        const uint32_t in = rw_buffer_root(s, s->refs[action->word + (uint32_t)i]);
        if (!may_take(t, s, index, i, in) || s->buffers[in].bytes != o->bytes) continue;
        o->merged = in;
        s->buffers[in].last = o->last;
        return;
    }
}

void rw_merge_in_place(const rw_tape *t, struct rw_schedule *s)
{
    for (uint32_t i = (uint32_t)s->n_actions; i-- > 0;) merge_into_gradient(t, s, i);
    for (uint32_t i = 0; i < s->n_actions; i++) merge_in_arena(t, s, i);
}
