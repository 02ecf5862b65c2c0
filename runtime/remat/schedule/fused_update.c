/* Moves fused updates to their earliest place, and measures the gradients that are then live. */
#include "remat/schedule/fused_update.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* An update and the action before which it is inserted. Actions are numbered without the updates. */
struct update {
    uint32_t at, index;
};

static int by_place(const void *pa, const void *pb)
{
    const struct update *const a = pa, *const b = pb;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* Actions first to end are the updates. Late ones, if any, follow. */
struct updates {
    size_t first, end;
};

static bool is_late(const struct rw_problem *p, const struct rw_action *a)
{
    return a->kind == RW_ACTION_COMMIT && p->targets.end_update != RW_NONE_ID && a->node >= p->targets.end_update;
}

static struct updates find_updates(const struct rw_problem *p, const struct rw_schedule *s)
{
    size_t end = s->n_actions;
    while (end && is_late(p, &s->actions[end - 1])) end--;
    size_t first = end;
    while (first && rw_action_is_fused_update(p, &s->actions[first - 1])) first--;
    return (struct updates){ first, end };
}

/* Index of a buffer's memory: a buffer of the arena, or a source. Sources come after the buffers. */
static size_t memory_of(const struct rw_schedule *s, uint32_t buffer)
{
    const uint32_t source = s->buffers[buffer].source;
    return source == RW_NONE_ID ? buffer : s->n_buffers + source;
}

/* Earliest places for one memory: after the last other action that has it as an operand; after the last update so far
   that writes it; after the last update so far that has it as an operand. */
struct last_use {
    uint32_t others, writers, updates;
};

static uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The earliest place of an update: after all other actions that have an operand in common with it, and after updates
   with a common operand that one of the two writes. */
static uint32_t place_of(const struct rw_problem *p, const struct rw_schedule *s, const struct rw_action *a,
                         struct last_use *last_use)
{
    const uint32_t n_inputs = p->t->nodes[a->node].n_inputs;
    uint32_t at = (uint32_t)(s->n_before > s->n_forward ? s->n_before : s->n_forward);
    for (uint32_t w = 0; w < a->n_words; w++) {
        const struct last_use *const b = &last_use[memory_of(s, s->refs[a->word + w])];
        at = most(at, most(b->others, w < n_inputs ? b->writers : b->updates));
    }
    for (uint32_t w = 0; w < a->n_words; w++) {
        struct last_use *const b = &last_use[memory_of(s, s->refs[a->word + w])];
        b->updates = most(b->updates, at);
        if (w >= n_inputs) b->writers = most(b->writers, at);
    }
    return at;
}

static void find_places(const struct rw_problem *p, const struct rw_schedule *s, struct updates u,
                        struct last_use *last_use, struct update *update)
{
    for (uint32_t i = 0; i < u.first; i++)
        for (uint32_t w = 0; w < s->actions[i].n_words; w++)
            last_use[memory_of(s, s->refs[s->actions[i].word + w])].others = i + 1;
    for (size_t i = u.first; i < u.end; i++)
        update[i - u.first] = (struct update){ place_of(p, s, &s->actions[i], last_use), (uint32_t)i };
    qsort(update, u.end - u.first, sizeof *update, by_place);
}

/* Merges the updates into the other actions. Late ones stay where they are. */
static void merge(struct rw_schedule *s, struct updates u, const struct update *update, struct rw_action *merged)
{
    size_t n = 0, next = 0;
    for (uint32_t i = 0; i <= u.first; i++) {
        while (next < u.end - u.first && update[next].at == i) merged[n++] = s->actions[update[next++].index];
        if (i < u.first) merged[n++] = s->actions[i];
    }
    memcpy(s->actions, merged, n * sizeof *merged);
}

/* Computes the lifetimes again, for the new order of the actions. */
static void find_lives(struct rw_schedule *s)
{
    for (size_t b = 0; b < s->n_buffers; b++) s->buffers[b].first = UINT32_MAX;
    for (uint32_t i = 0; i < s->n_actions; i++)
        for (uint32_t w = 0; w < s->actions[i].n_words; w++) {
            struct rw_buffer *const b = &s->buffers[s->refs[s->actions[i].word + w]];
            if (b->first == UINT32_MAX) b->first = i;
            b->last = i;
        }
}

/* Moves each update to its earliest place, and computes the lifetimes again. */
rw_status rw_fused_updates(const struct rw_problem *p, struct rw_schedule *s)
{
    const struct updates u = find_updates(p, s);
    if (u.first == u.end) return RW_OK;
    struct last_use *const last_use = rw_calloc(s->n_buffers + s->n_sources, sizeof *last_use);
    struct update *const update = rw_malloc((u.end - u.first) * sizeof *update);
    struct rw_action *const merged = rw_malloc(u.end * sizeof *merged);
    const rw_status status = last_use && update && merged ? RW_OK : RW_ERR_MEMORY;
    if (!status) {
        find_places(p, s, u, last_use, update);
        merge(s, u, update, merged);
        find_lives(s);
    }
    rw_free(last_use);
    rw_free(update);
    rw_free(merged);
    return status;
}

/* ---- bytes of gradients ---- */

static bool *mark_gradients(const struct rw_problem *p)
{
    bool *const is = rw_calloc(p->t->n_values, sizeof *is);
    for (size_t i = 0; is && i < p->targets.n_used_up; i++)
        is[rw_tape_base(p->t, p->targets.used_up[i].value)] = true;
    return is;
}

/* Is the action an update of one parameter with its gradient in the arena? The gradient is its second operand. */
static bool is_used_up(const struct rw_problem *p, const struct rw_schedule *s, const struct rw_action *a,
                       const bool *is_gradient, uint32_t *ret_root)
{
    if (!rw_action_is_fused_update(p, a) || a->n_words < 2) return false;
    const struct rw_buffer *const b = &s->buffers[s->refs[a->word + 1]];
    if (b->source != RW_NONE_ID || b->value == RW_NONE_ID || !is_gradient[b->value]) return false;
    *ret_root = rw_buffer_root(s, s->refs[a->word + 1]);
    return s->buffers[*ret_root].source == RW_NONE_ID;
}

/* Sweeps over the lifetimes of the gradients that updates consume. */
rw_status rw_updates_gradients(const struct rw_problem *p, const struct rw_schedule *s, uint64_t *ret_bytes)
{
    struct rw_lifetime *const life = rw_malloc(s->n_actions * sizeof *life);
    int64_t *const delta = rw_malloc((s->n_actions + 1) * sizeof *delta);
    bool *const is_gradient = mark_gradients(p);
    const rw_status status = life && delta && is_gradient ? RW_OK : RW_ERR_MEMORY;
    size_t n = 0;
    for (size_t i = 0; !status && i < s->n_actions; i++) {
        uint32_t root;
        if (!is_used_up(p, s, &s->actions[i], is_gradient, &root)) continue;
        const struct rw_buffer *const b = &s->buffers[root];
        life[n++] = (struct rw_lifetime){ .first = b->first, .last = b->last, .bytes = b->bytes };
    }
    if (!status) *ret_bytes = rw_lifetimes_sweep(life, NULL, n, 1, delta, s->n_actions).bytes;
    rw_free(life);
    rw_free(delta);
    rw_free(is_gradient);
    return status;
}
