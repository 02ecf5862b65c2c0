/*
 * Greedy fill of greedy_fill.h: gaps of dropped values, a segment tree of live bytes over the actions, and the order of
 * trials.
 */
#include "remat/planner/greedy_fill.h"

#include "base/alloc.h"
#include "base/round_up.h"

#include <stdlib.h>
#include <string.h>

/* ---- live bytes and gaps ---- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/*
 * The last action that has each buffer as an operand. For a buffer whose memory is reused this is before the end of its
 * lifetime.
 */
static void find_last_reads(const struct rw_schedule *s, uint32_t *last)
{
    for (uint32_t a = 0; a < s->n_actions; a++)
        for (uint32_t k = 0; k < s->actions[a].n_words; k++) last[s->refs[s->actions[a].word + k]] = a;
}

/*
 * Goes through the gaps in the order in which buffers are computed. next: value -> the next entry for its gaps, which
 * grows by each; gap: where they are written, NULL to count them only. ended: scratch by value, the last read of its
 * previous buffer.
 */
static void each_gap(const struct rw_greedy_fill *f, const struct rw_schedule *s, const uint32_t *last, uint32_t *ended,
                     uint32_t *next, struct rw_gap *gap)
{
    for (size_t v = 0; v < f->g->n_values; v++) ended[v] = RW_NONE_ID;
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        const uint32_t v = b->value == RW_NONE_ID ? RW_NONE_ID : f->g->value_of[b->value];
        if (v == RW_NONE_ID) continue;
        if (ended[v] != RW_NONE_ID && ended[v] < b->first) {
            if (gap) gap[next[v]] = (struct rw_gap){ .from = ended[v], .to = b->first - 1 };
            next[v]++;
        }
        ended[v] = last[i];
    }
}

/* Counts the gaps of each value, and then writes each to its place. */
static rw_status list_gaps(struct rw_greedy_fill *f, const struct rw_schedule *s, const uint32_t *last, uint32_t *ended)
{
    const size_t n = f->g->n_values;
    memset(f->gap_at, 0, (n + 1) * sizeof *f->gap_at);
    each_gap(f, s, last, ended, f->gap_at, NULL);
    for (size_t v = 0; v < n; v++) {
        const uint32_t count = f->gap_at[v];
        f->gap_at[v] = (uint32_t)f->n_gaps;
        f->n_gaps += count;
    }
    f->gap = rw_malloc(f->n_gaps * sizeof *f->gap);
    if (!f->gap) return RW_ERR_MEMORY;
    each_gap(f, s, last, ended, f->gap_at, f->gap);
    memmove(f->gap_at + 1, f->gap_at, n * sizeof *f->gap_at); /* each entry is now at the end of its gaps */
    f->gap_at[0] = 0;
    return RW_OK;
}

static rw_status find_gaps(struct rw_greedy_fill *f, const struct rw_schedule *s)
{
    uint32_t *const last = rw_calloc(s->n_buffers, sizeof *last);
    uint32_t *const ended = rw_malloc(f->g->n_values * sizeof *ended);
    rw_status status = last && ended ? RW_OK : RW_ERR_MEMORY;
    if (!status) {
        find_last_reads(s, last);
        status = list_gaps(f, s, last, ended);
    }
    rw_free(last);
    rw_free(ended);
    return status;
}

/* By action: its leaf. A gap begins or has ended where a leaf begins. */
static void find_leaves(struct rw_greedy_fill *f, size_t n_actions, uint32_t *leaf)
{
    memset(leaf, 0, (n_actions + 1) * sizeof *leaf);
    for (size_t k = 0; k < f->n_gaps; k++) leaf[f->gap[k].from] = leaf[f->gap[k].to + 1] = 1;
    leaf[0] = 0;
    for (size_t a = 1; a <= n_actions; a++) leaf[a] += leaf[a - 1];
    for (size_t k = 0; k < f->n_gaps; k++) {
        f->gap[k].first = leaf[f->gap[k].from];
        f->gap[k].last = leaf[f->gap[k].to];
    }
    const size_t n = n_actions ? leaf[n_actions - 1] + 1 : 1;
    for (f->n_leaves = 1; f->n_leaves < n;) f->n_leaves *= 2;
}

/* By action: the change of the live bytes before it. */
static void count_changes(const struct rw_greedy_fill *f, const struct rw_schedule *s, int64_t *change)
{
    const uint64_t alignment = f->g->p->t->ctx->device->alignment;
    memset(change, 0, (s->n_actions + 1) * sizeof *change);
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (!rw_buffer_is_placed(s, i)) continue;
        const int64_t bytes = (int64_t)rw_round_up(b->bytes, alignment);
        change[b->first] += bytes;
        change[b->last + 1] -= bytes;
    }
}

static rw_status count_live(struct rw_greedy_fill *f, const struct rw_schedule *s)
{
    uint32_t *const leaf = rw_malloc((s->n_actions + 1) * sizeof *leaf);
    int64_t *const change = rw_malloc((s->n_actions + 1) * sizeof *change);
    rw_status status = leaf && change ? RW_OK : RW_ERR_MEMORY;
    if (!status) {
        find_leaves(f, s->n_actions, leaf);
        f->live = rw_calloc(f->n_leaves, sizeof *f->live);
        if (!f->live) status = RW_ERR_MEMORY;
    }
    if (!status) count_changes(f, s, change);
    int64_t live = 0;
    for (size_t a = 0; !status && a < s->n_actions; a++) {
        live += change[a];
        f->live[leaf[a]] = larger(f->live[leaf[a]], live);
    }
    rw_free(leaf);
    rw_free(change);
    return status;
}

/* Lists the gaps, and counts the live bytes of the schedule between their ends. */
rw_status rw_greedy_fill_init(struct rw_greedy_fill *f, const struct rw_replayable *g, const struct rw_schedule *s)
{
    *f = (struct rw_greedy_fill){ .g = g, .n_forward = s->n_forward };
    f->gap_at = rw_malloc((g->n_values + 1) * sizeof *f->gap_at);
    rw_status status = f->gap_at ? find_gaps(f, s) : RW_ERR_MEMORY;
    if (!status) status = count_live(f, s);
    if (!status) {
        f->tree = rw_malloc(2 * f->n_leaves * sizeof *f->tree);
        f->candidate = rw_malloc(g->n_values * sizeof *f->candidate);
        if (!f->tree || !f->candidate) status = RW_ERR_MEMORY;
    }
    if (status) rw_greedy_fill_finish(f);
    return status;
}

void rw_greedy_fill_finish(struct rw_greedy_fill *f)
{
    rw_free(f->live);
    rw_free(f->tree);
    rw_free(f->gap);
    rw_free(f->gap_at);
    rw_free(f->candidate);
    *f = (struct rw_greedy_fill){ 0 };
}

/* ---- a tree over the leaves: the maximum in a range, and adding to a range ---- */

static void reset_tree(struct rw_greedy_fill *f)
{
    const size_t n = f->n_leaves;
    f->n_full = 0;
    for (size_t i = 0; i < n; i++) f->tree[n + i] = (struct rw_live_tree){ .most = f->live[i] };
    for (size_t i = n; i-- > 1;)
        f->tree[i] = (struct rw_live_tree){ .most = larger(f->tree[2 * i].most, f->tree[2 * i + 1].most) };
}

/*
 * The maximum of the live bytes in the gap. Walks up from both of its ends: what was added to a node counts for what
 * was found below it.
 */
static int64_t most_in(const struct rw_greedy_fill *f, const struct rw_gap *gap)
{
    const struct rw_live_tree *const tree = f->tree;
    size_t i = f->n_leaves + gap->first, k = f->n_leaves + gap->last;
    int64_t left = tree[i].most, right = tree[k].most;
    while (i / 2 != k / 2) {
        if (!(i % 2)) left = larger(left, tree[i + 1].most);
        if (k % 2) right = larger(right, tree[k - 1].most);
        i /= 2;
        k /= 2;
        left += tree[i].added;
        right += tree[k].added;
    }
    int64_t most = larger(left, right);
    while (i /= 2) most += tree[i].added;
    return most;
}

/*
 * The first leaf of the gap, below node i, with more live bytes; n_leaves if there is none. Node i covers [first,
 * first + span). Of equally long gaps the later ones are tried first, so the first full leaf is in most of those that
 * follow.
 */
static struct rw_full_leaf first_above(const struct rw_greedy_fill *f, size_t i, size_t first, size_t span,
                                       const struct rw_gap *gap, int64_t most)
{
    const struct rw_full_leaf none = { .leaf = (uint32_t)f->n_leaves };
    if (f->tree[i].most <= most || gap->last < first || gap->first >= first + span) return none;
    if (span == 1) return (struct rw_full_leaf){ (uint32_t)first, f->tree[i].most };
    const int64_t added = f->tree[i].added;
    struct rw_full_leaf x = first_above(f, 2 * i, first, span / 2, gap, most - added);
    if (x.leaf == f->n_leaves) x = first_above(f, 2 * i + 1, first + span / 2, span / 2, gap, most - added);
    x.live += added;
    return x;
}

static bool is_known_full(const struct rw_greedy_fill *f, const struct rw_gap *gap, int64_t most)
{
    const size_t n = f->n_full < RW_FULL_LEAVES ? f->n_full : RW_FULL_LEAVES;
    for (size_t i = 0; i < n; i++)
        if (f->full[i].live > most && gap->first <= f->full[i].leaf && f->full[i].leaf <= gap->last) return true;
    return false;
}

/* Do the live bytes exceed `most` at some action of the gap? */
static bool exceeds(struct rw_greedy_fill *f, const struct rw_gap *gap, int64_t most)
{
    if (f->tree[1].most <= most) return false;
    if (is_known_full(f, gap, most)) return true;
    if (most_in(f, gap) <= most) return false;
    f->full[f->n_full++ % RW_FULL_LEAVES] = first_above(f, 1, 0, f->n_leaves, gap, most);
    return true;
}

static void add_to_node(struct rw_live_tree *node, int64_t bytes)
{
    node->most += bytes;
    node->added += bytes;
}

static void refresh_above(struct rw_live_tree *tree, size_t i)
{
    while (i /= 2) tree[i].most = larger(tree[2 * i].most, tree[2 * i + 1].most) + tree[i].added;
}

/* Adds bytes to all actions of the gap, and updates the maxima above its ends. */
static void add_to(struct rw_greedy_fill *f, const struct rw_gap *gap, int64_t bytes)
{
    size_t i = f->n_leaves + gap->first, end = f->n_leaves + gap->last + 1;
    for (; i < end; i /= 2, end /= 2) {
        if (i % 2) add_to_node(&f->tree[i++], bytes);
        if (end % 2) add_to_node(&f->tree[--end], bytes);
    }
    refresh_above(f->tree, f->n_leaves + gap->first);
    refresh_above(f->tree, f->n_leaves + gap->last);
}

/* ---- order of trials ---- */

static int worthier_first(const void *pa, const void *pb)
{
    const struct rw_greedy_fill_candidate *const a = pa, *const b = pb;
    if (a->later != b->later) return a->later ? 1 : -1;
    if (a->worth != b->worth) return a->worth > b->worth ? -1 : 1;
    return a->value > b->value ? -1 : a->value < b->value;
}

/* Seconds of replays that are saved if the value is kept. */
static double saved_by(const struct rw_greedy_fill *f, uint32_t v)
{
    return f->g->seconds[f->g->producer[v]] * (f->gap_at[v + 1] - f->gap_at[v]);
}

static bool may_be_kept(const struct rw_greedy_fill *f, const struct rw_compact_choice *base, uint32_t v)
{
    return base->drop[v] && f->gap_at[v] < f->gap_at[v + 1];
}

static void sort_candidates(struct rw_greedy_fill *f)
{
    if (f->n_candidates) qsort(f->candidate, f->n_candidates, sizeof *f->candidate, worthier_first);
}

/* The first order of greedy_fill.h. */
void rw_greedy_fill_rank(struct rw_greedy_fill *f, const struct rw_compact_choice *base, const bool *replayed_by_better)
{
    const struct rw_replayable *const g = f->g;
    f->n_candidates = 0;
    for (uint32_t v = 0; v < g->n_values; v++) {
        if (!may_be_kept(f, base, v)) continue;
        double length = 0;
        for (uint32_t k = f->gap_at[v]; k < f->gap_at[v + 1]; k++)
            length += (double)(f->gap[k].to - f->gap[k].from) + 1;
        const bool later = !replayed_by_better || replayed_by_better[g->producer[v]];
        const double bytes = (double)g->bytes[v] + 1;
        const double worth = later ? saved_by(f, v) / (bytes * length) : 1 / length;
        f->candidate[f->n_candidates++] = (struct rw_greedy_fill_candidate){ .value = v, .later = later,
                                                                             .worth = worth };
    }
    sort_candidates(f);
}

void rw_greedy_fill_rank_by_seconds(struct rw_greedy_fill *f, const struct rw_compact_choice *base)
{
    f->n_candidates = 0;
    for (uint32_t v = 0; v < f->g->n_values; v++)
        if (may_be_kept(f, base, v))
            f->candidate[f->n_candidates++] = (struct rw_greedy_fill_candidate){ .value = v, .worth = saved_by(f, v) };
    sort_candidates(f);
}

/* Keeps the value for its first visit, if there is room for that. */
static void fill_first(struct rw_greedy_fill *f, int64_t most, uint32_t v, uint8_t *drop)
{
    const struct rw_gap *const first = &f->gap[f->gap_at[v]];
    const int64_t bytes = (int64_t)f->g->bytes[v];
    if (rw_drop_rank(*drop) < 3 || first->from >= f->n_forward || f->gap_at[v + 1] - f->gap_at[v] < 2) return;
    if (exceeds(f, first, most - bytes)) return;
    add_to(f, first, bytes);
    *drop = rw_drop_after_first(*drop);
}

/* Tries all values in order. */
void rw_greedy_fill_to(struct rw_greedy_fill *f, uint64_t most, struct rw_compact_choice *r)
{
    const struct rw_replayable *const g = f->g;
    reset_tree(f);
    for (size_t i = 0; i < f->n_candidates; i++) {
        const uint32_t v = f->candidate[i].value;
        const int64_t bytes = (int64_t)g->bytes[v];
        bool fits = true;
        for (uint32_t k = f->gap_at[v]; fits && k < f->gap_at[v + 1]; k++)
            fits = !exceeds(f, &f->gap[k], (int64_t)most - bytes);
        if (!fits) {
            fill_first(f, (int64_t)most, v, &r->drop[v]);
            continue;
        }
        for (uint32_t k = f->gap_at[v]; k < f->gap_at[v + 1]; k++) add_to(f, &f->gap[k], bytes);
        r->drop[v] = RW_DROP_NOT;
    }
}
