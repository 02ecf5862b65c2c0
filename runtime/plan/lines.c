/* See lines.h. */
#include "plan/lines.h"

#include "base/alloc.h"
#include "record/tape.h"
#include "remat/live.h"

#include <stdlib.h>

static bool is_kept(const struct rw_schedule *s, const uint32_t *holder, uint32_t buffer)
{
    const struct rw_buffer *const b = &s->buffers[buffer];
    return b->first < s->n_before && b->last >= s->n_before && holder[rw_buffer_root(s, buffer)] == buffer;
}

/* Which buffers a copy takes out of the device's memory. */
static bool *list_moved(const struct rw_schedule *s)
{
    bool *const moved = rw_calloc(s->n_buffers, sizeof *moved);
    for (size_t i = 0; moved && i < s->n_actions; i++)
        if (s->actions[i].kind == RW_ACTION_OUT) moved[s->refs[s->actions[i].word]] = true;
    return moved;
}

/* What stands in a line but its region. */
static void mix_line(struct rw_hash *h, const struct rw_planning *g, uint32_t buffer, enum rw_line_what what)
{
    const rw_tape *const t = g->problem.t;
    const struct rw_buffer *const b = &g->schedule.buffers[buffer];
    const struct rw_tensor *const v = rw_tape_value(t, b->value);
    const struct rw_node *const node = &t->nodes[v->producer];
    const uint32_t region = rw_node_region(t, node);
    rw_hash_mix(h, (uint64_t)node->op << 32 | node->site);
    rw_hash_mix(h, b->bytes);
    rw_hash_mix(h, (uint64_t)t->regions[region].name << 32 | (uint64_t)v->tag << 8 | what);
    rw_hash_mix(h, g->choice.fate[b->value].why);
}

static void add(struct rw_lines *l, const struct rw_planning *g, uint32_t buffer, enum rw_line_what what,
                const uint32_t *outermost)
{
    const rw_tape *const t = g->problem.t;
    const struct rw_buffer *const b = &g->schedule.buffers[buffer];
    const uint32_t region = rw_node_region(t, &t->nodes[rw_tape_value(t, b->value)->producer]);
    const uint32_t block = region == RW_NONE_ID ? RW_NONE_ID : outermost[region], at = (uint32_t)l->n++;
    l->line[at] = (struct rw_line){ buffer, (uint8_t)what, RW_NONE_ID, block };
    l->replays |= what == RW_LINE_REPLAYED;
    if (block == RW_NONE_ID) return;
    struct rw_block *const x = &l->block[block];
    if (x->first == RW_NONE_ID) x->first = at;
    else l->line[x->last].next = at;
    x->last = at;
    struct rw_hash h = { x->hash, x->hash };
    mix_line(&h, g, buffer, what);
    x->hash = h.a ^ h.b;
    if (what == RW_LINE_KEPT) x->kept += rw_buffer_room(&g->problem, b);
}

struct order {
    uint64_t hash;
    uint32_t name, region;
};

static int by_likeness(const void *a, const void *b)
{
    const struct order *const x = a, *const y = b;
    if (x->name != y->name) return x->name < y->name ? -1 : 1;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return x->region < y->region ? -1 : x->region > y->region;
}

static rw_status find_likes(struct rw_lines *l, const rw_tape *t)
{
    struct order *const order = rw_malloc(t->n_regions * sizeof *order);
    size_t n = 0;
    if (!order) return RW_ERR_MEMORY;
    for (uint32_t r = 0; r < t->n_regions; r++)
        if (l->block[r].first != RW_NONE_ID) order[n++] = (struct order){ l->block[r].hash, t->regions[r].name, r };
    qsort(order, n, sizeof *order, by_likeness);
    for (size_t i = 0; i < n; i++) {
        const bool same = i && order[i].name == order[i - 1].name && order[i].hash == order[i - 1].hash;
        struct rw_block *const x = &l->block[order[i].region];
        x->like = same ? l->block[order[i - 1].region].like : order[i].region;
        l->block[x->like].count++;
    }
    rw_free(order);
    return RW_OK;
}

static rw_status fill(struct rw_lines *l, const struct rw_planning *g, const bool *moved, uint32_t *holder,
                      uint32_t *outermost)
{
    const rw_tape *const t = g->problem.t;
    const struct rw_schedule *const s = &g->schedule;
    for (uint32_t r = 0; r < t->n_regions; r++) {
        const uint32_t parent = t->regions[r].parent;
        outermost[r] = parent == RW_NONE_ID ? r : outermost[parent];
        l->block[r] = (struct rw_block){ .first = RW_NONE_ID, .last = RW_NONE_ID, .like = r };
    }
    rw_find_holders(s, (uint32_t)s->n_before - 1, holder); /* no step begins with backward */
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (b->source != RW_NONE_ID || b->value == RW_NONE_ID) continue;
        if (!moved[i] && !b->replay && !is_kept(s, holder, i)) continue;
        if (!rw_grow(&l->line, &l->cap, l->n, 1, sizeof *l->line)) return RW_ERR_MEMORY;
        add(l, g, i, moved[i] ? RW_LINE_MOVED : b->replay ? RW_LINE_REPLAYED : RW_LINE_KEPT, outermost);
    }
    return find_likes(l, t);
}

rw_status rw_lines_init(struct rw_lines *l, const struct rw_planning *g)
{
    const rw_tape *const t = g->problem.t;
    uint32_t *const holder = rw_malloc(g->schedule.n_buffers * sizeof *holder);
    uint32_t *const outermost = rw_malloc(t->n_regions * sizeof *outermost);
    bool *const moved = list_moved(&g->schedule);
    *l = (struct rw_lines){ .block = rw_malloc(t->n_regions * sizeof *l->block) };
    const bool room = holder && outermost && moved && l->block;
    const rw_status status = room ? fill(l, g, moved, holder, outermost) : RW_ERR_MEMORY;
    rw_free(holder);
    rw_free(outermost);
    rw_free(moved);
    if (status) rw_lines_finish(l);
    return status;
}

void rw_lines_finish(struct rw_lines *l)
{
    rw_free(l->line);
    rw_free(l->block);
    *l = (struct rw_lines){ 0 };
}
