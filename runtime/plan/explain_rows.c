/* Rows of ckpt_explain(): collects them, hashes them by contents, and groups equal regions and values. */
#include "plan/explain_rows.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "record/tape.h"
#include "remat/schedule/live_set.h"

#include <stdlib.h>

const char *rw_why_text(unsigned why)
{
    static const char *const reasons[] = {
        [RW_WHY_OUTSIDE] = "read outside every recomputed region",
        [RW_WHY_CALLER_SAVES] = "ckpt_keep()",
        [RW_WHY_OP] = "the policy keeps this op's outputs",
        [RW_WHY_NAME] = "the policy keeps this name",
        [RW_WHY_EFFECT] = "its op may run only once",
        [RW_WHY_RESULT] = "requested",
        [RW_WHY_ADJOINT] = "computed by a gradient rule",
        [RW_WHY_REGION] = "inside a replayed region",
        [RW_WHY_DISCARD] = "computed in a region that is discarded",
        [RW_WHY_CALLER_REPLAYS] = "ckpt_recompute()",
        [RW_WHY_CALLER_MOVES] = "ckpt_offload()",
        [RW_WHY_NAME_MOVES] = "the policy offloads this name",
        [RW_WHY_REGION_MOVES] = "the policy offloads the kept values of this region",
        [RW_WHY_BUDGET] = "the budget: bytes weighed against seconds",
    };
    return reasons[why];
}

static bool is_kept(const struct rw_schedule *s, const uint32_t *holder, uint32_t buffer)
{
    const struct rw_buffer *const b = &s->buffers[buffer];
    return b->first < s->n_before && b->last >= s->n_before && holder[rw_buffer_root(s, buffer)] == buffer;
}

/* Which buffers a copy offloads. */
static bool *list_moved(const struct rw_schedule *s)
{
    bool *const moved = rw_calloc(s->n_buffers, sizeof *moved);
    for (size_t i = 0; moved && i < s->n_actions; i++)
        if (s->actions[i].kind == RW_ACTION_OUT) moved[s->refs[s->actions[i].word]] = true;
    return moved;
}

/* Is it what a deferred node computed, the first time? */
static bool is_deferred(const struct rw_planning *g, uint32_t buffer)
{
    const struct rw_schedule *const s = &g->schedule;
    const struct rw_buffer *const b = &s->buffers[buffer];
    const struct rw_action *const a = &s->actions[b->first];
    return b->first >= s->n_forward && a->kind == RW_ACTION_FORWARD && g->problem.deferrable[a->node];
}

static uint32_t region_of(const struct rw_planning *g, uint32_t buffer)
{
    const rw_tape *const t = g->problem.t;
    return rw_node_region(t, &t->nodes[rw_tape_value(t, g->schedule.buffers[buffer].value)->producer]);
}

/* Hash of a row's contents without its region. */
static uint64_t hash_of(const struct rw_planning *g, const struct rw_line *line)
{
    const rw_tape *const t = g->problem.t;
    const struct rw_buffer *const b = &g->schedule.buffers[line->buffer];
    const struct rw_tensor *const v = rw_tape_value(t, b->value);
    const struct rw_node *const node = &t->nodes[v->producer];
    const struct rw_fate fate = g->choice.fate[b->value];
    struct rw_hash h = { 0, 0 };
    rw_hash_mix(&h, (uint64_t)node->op << 32 | node->site);
    rw_hash_mix(&h, b->bytes);
    rw_hash_mix(&h, (uint64_t)v->tag << 8 | line->what);
    rw_hash_mix(&h, (uint64_t)(fate.level > 0) << 16 | (uint64_t)fate.what << 8 | fate.why);
    rw_hash_mix(&h, fate.why == RW_WHY_OUTSIDE && g->choice.segment_of[v->producer]);
    return h.a ^ h.b;
}

static uint64_t mixed(uint64_t into, uint64_t more)
{
    struct rw_hash h = { into, into };
    rw_hash_mix(&h, more);
    return h.a ^ h.b;
}

/* ---- finding equal rows and regions by sorting ---- */

struct order {
    uint64_t hash;
    uint32_t parent, name, number; /* of a line: its region and nothing */
};

static int compare(const struct order *x, const struct order *y)
{
    if (x->parent != y->parent) return x->parent < y->parent ? -1 : 1;
    if (x->name != y->name) return x->name < y->name ? -1 : 1;
    return x->hash < y->hash ? -1 : x->hash > y->hash;
}

static int by_likeness(const void *a, const void *b)
{
    const struct order *const x = a, *const y = b;
    const int other = compare(x, y);
    return other ? other : x->number < y->number ? -1 : x->number > y->number;
}

static void find_like_regions(struct rw_explain_rows *l, const rw_tape *t, struct order *order)
{
    size_t n = 0;
    for (uint32_t r = 0; r < t->n_regions; r++)
        if (l->block[r].hash)
            order[n++] = (struct order){ l->block[r].hash, t->regions[r].parent, t->regions[r].name, r };
    qsort(order, n, sizeof *order, by_likeness);
    for (size_t i = 0; i < n; i++) {
        const bool same = i && !compare(&order[i], &order[i - 1]);
        struct rw_block *const x = &l->block[order[i].number];
        x->like = same ? l->block[order[i - 1].number].like : order[i].number;
        l->block[x->like].count++;
    }
}

static void find_like_lines(struct rw_explain_rows *l, const struct rw_planning *g, struct order *order)
{
    for (uint32_t i = 0; i < l->n; i++)
        order[i] = (struct order){ hash_of(g, &l->line[i]), region_of(g, l->line[i].buffer), 0, i };
    qsort(order, l->n, sizeof *order, by_likeness);
    for (size_t i = 0; i < l->n; i++) {
        const bool same = i && !compare(&order[i], &order[i - 1]);
        struct rw_line *const x = &l->line[order[i].number];
        x->like = same ? l->line[order[i - 1].number].like : order[i].number;
        l->line[x->like].count++;
    }
}

/* ---- regions ---- */

/* The hash of a region covers its own rows and the regions inside, which have higher numbers; 0 if there are none. */
static void hash_regions(struct rw_explain_rows *l, const struct rw_planning *g)
{
    const rw_tape *const t = g->problem.t;
    for (uint32_t i = 0; i < l->n; i++) {
        const uint32_t region = region_of(g, l->line[i].buffer);
        if (region != RW_NONE_ID) l->block[region].hash = mixed(l->block[region].hash, hash_of(g, &l->line[i]));
    }
    for (uint32_t r = (uint32_t)t->n_regions; r-- > 0;) {
        const uint32_t parent = t->regions[r].parent;
        if (parent == RW_NONE_ID || !l->block[r].hash) continue;
        l->block[parent].hash = mixed(l->block[parent].hash, mixed(l->block[r].hash, t->regions[r].name));
    }
}

/* Finds regions that have equals and are not inside of another such region. */
static void find_blocks(struct rw_explain_rows *l, const rw_tape *t)
{
    for (uint32_t r = 0; r < t->n_regions; r++) {
        const uint32_t parent = t->regions[r].parent, around = parent == RW_NONE_ID ? parent : l->block[parent].block;
        const bool several = l->block[l->block[r].like].count > 1;
        l->block[r].block = around != RW_NONE_ID ? around : several ? r : RW_NONE_ID;
    }
}

static void fill_blocks(struct rw_explain_rows *l, const struct rw_planning *g)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct rw_line *const line = &l->line[i];
        const uint32_t region = region_of(g, line->buffer);
        line->block = region == RW_NONE_ID ? RW_NONE_ID : l->block[region].block;
        if (line->block == RW_NONE_ID) continue;
        struct rw_block *const x = &l->block[line->block];
        if (x->first == RW_NONE_ID) x->first = i;
        else l->line[x->last].next = i;
        x->last = i;
        if (line->what == RW_LINE_KEPT) x->kept += rw_buffer_room(&g->problem, &g->schedule.buffers[line->buffer]);
    }
}

/* ---- all of it ---- */

static rw_status list_lines(struct rw_explain_rows *l, const struct rw_planning *g, const bool *moved, uint32_t *holder)
{
    const struct rw_schedule *const s = &g->schedule;
    rw_find_holders(s, (uint32_t)s->n_before - 1, holder); /* no step begins with backward */
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (b->source != RW_NONE_ID || b->value == RW_NONE_ID) continue;
        const bool deferred = is_deferred(g, i);
        if (!moved[i] && !b->replay && !deferred && !is_kept(s, holder, i)) continue;
        if (!rw_grow(&l->line, &l->cap, l->n, 1, sizeof *l->line)) return RW_ERR_MEMORY;
        const enum rw_line_what what = moved[i]    ? RW_LINE_MOVED
                                       : deferred  ? RW_LINE_DEFERRED
                                       : b->replay ? RW_LINE_REPLAYED
                                                   : RW_LINE_KEPT;
        l->line[l->n++] = (struct rw_line){ .buffer = i, .what = (uint8_t)what, .next = RW_NONE_ID };
        l->replays |= what == RW_LINE_REPLAYED;
    }
    return RW_OK;
}

static rw_status find_likes(struct rw_explain_rows *l, const struct rw_planning *g)
{
    const rw_tape *const t = g->problem.t;
    struct order *const order = rw_malloc((t->n_regions + l->n) * sizeof *order);
    if (!order) return RW_ERR_MEMORY;
    for (uint32_t r = 0; r < t->n_regions; r++)
        l->block[r] = (struct rw_block){ .first = RW_NONE_ID, .last = RW_NONE_ID, .like = r };
    hash_regions(l, g);
    find_like_regions(l, t, order);
    find_like_lines(l, g, order);
    find_blocks(l, t);
    fill_blocks(l, g);
    rw_free(order);
    return RW_OK;
}

rw_status rw_explain_rows_init(struct rw_explain_rows *l, const struct rw_planning *g)
{
    uint32_t *const holder = rw_malloc(g->schedule.n_buffers * sizeof *holder);
    bool *const moved = list_moved(&g->schedule);
    *l = (struct rw_explain_rows){ .block = rw_malloc(g->problem.t->n_regions * sizeof *l->block) };
    rw_status status = holder && moved && l->block ? list_lines(l, g, moved, holder) : RW_ERR_MEMORY;
    if (!status) status = find_likes(l, g);
    rw_free(holder);
    rw_free(moved);
    if (status) rw_explain_rows_finish(l);
    return status;
}

void rw_explain_rows_finish(struct rw_explain_rows *l)
{
    rw_free(l->line);
    rw_free(l->block);
    *l = (struct rw_explain_rows){ 0 };
}
