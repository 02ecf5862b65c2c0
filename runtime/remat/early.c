/* See early.h. */
#include "remat/early.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* An update and the action that it comes in front of, as actions are numbered without the updates. */
struct update {
    uint32_t at, index;
};

static int by_place(const void *pa, const void *pb)
{
    const struct update *const a = pa, *const b = pb;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static size_t first_update(const struct rw_problem *p, const struct rw_schedule *s)
{
    size_t n = s->n_actions;
    while (n && rw_action_is_early(p, &s->actions[n - 1])) n--;
    return n;
}

/* Memory is a source, or a buffer of the arena: sources come behind the buffers. */
static size_t memory_of(const struct rw_schedule *s, uint32_t buffer)
{
    const uint32_t source = s->buffers[buffer].source;
    return source == RW_NONE_ID ? buffer : s->n_buffers + source;
}

/* Behind the last of the other actions that names any memory which the update names. */
static uint32_t place_of(const struct rw_schedule *s, const struct rw_action *a, const uint32_t *behind)
{
    uint32_t at = (uint32_t)(s->n_before > s->n_forward ? s->n_before : s->n_forward);
    for (uint32_t w = 0; w < a->n_words; w++) {
        const uint32_t least = behind[memory_of(s, s->refs[a->word + w])];
        if (least > at) at = least;
    }
    return at;
}

static void find_places(const struct rw_schedule *s, size_t first, uint32_t *behind, struct update *update)
{
    for (uint32_t i = 0; i < first; i++)
        for (uint32_t w = 0; w < s->actions[i].n_words; w++)
            behind[memory_of(s, s->refs[s->actions[i].word + w])] = i + 1;
    for (size_t i = first; i < s->n_actions; i++)
        update[i - first] = (struct update){ place_of(s, &s->actions[i], behind), (uint32_t)i };
    qsort(update, s->n_actions - first, sizeof *update, by_place);
}

static void merge(struct rw_schedule *s, size_t first, const struct update *update, struct rw_action *merged)
{
    size_t n = 0, next = 0;
    for (uint32_t i = 0; i <= first; i++) {
        while (next < s->n_actions - first && update[next].at == i) merged[n++] = s->actions[update[next++].index];
        if (i < first) merged[n++] = s->actions[i];
    }
    memcpy(s->actions, merged, n * sizeof *merged);
}

/* Lives, of the actions as they stand now. */
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

rw_status rw_updates_early(const struct rw_problem *p, struct rw_schedule *s)
{
    const size_t first = first_update(p, s);
    if (first == s->n_actions) return RW_OK;
    uint32_t *const behind = rw_calloc(s->n_buffers + s->n_sources, sizeof *behind);
    struct update *const update = rw_malloc((s->n_actions - first) * sizeof *update);
    struct rw_action *const merged = rw_malloc(s->n_actions * sizeof *merged);
    const rw_status status = behind && update && merged ? RW_OK : RW_ERR_MEMORY;
    if (!status) {
        find_places(s, first, behind, update);
        merge(s, first, update, merged);
        find_lives(s);
    }
    rw_free(behind);
    rw_free(update);
    rw_free(merged);
    return status;
}

/* ---- what gradients take ---- */

/* The gradient is the second operand of an update of one parameter. */
static bool is_used_up(const struct rw_problem *p, const struct rw_schedule *s, const struct rw_action *a,
                       uint32_t *ret_root)
{
    if (!rw_action_is_early(p, a)) return false;
    *ret_root = rw_buffer_root(s, s->refs[a->word + 1]);
    return s->buffers[*ret_root].source == RW_NONE_ID;
}

rw_status rw_updates_gradients(const struct rw_problem *p, const struct rw_schedule *s, uint64_t *ret_bytes)
{
    struct rw_life *const life = rw_malloc(s->n_actions * sizeof *life);
    int64_t *const delta = rw_malloc((s->n_actions + 1) * sizeof *delta);
    const rw_status status = life && delta ? RW_OK : RW_ERR_MEMORY;
    size_t n = 0;
    for (size_t i = 0; !status && i < s->n_actions; i++) {
        uint32_t root;
        if (!is_used_up(p, s, &s->actions[i], &root)) continue;
        const struct rw_buffer *const b = &s->buffers[root];
        life[n++] = (struct rw_life){ .first = b->first, .last = b->last, .bytes = b->bytes };
    }
    if (!status) *ret_bytes = rw_lives_sweep(life, NULL, n, 1, delta, s->n_actions).bytes;
    rw_free(life);
    rw_free(delta);
    return status;
}
