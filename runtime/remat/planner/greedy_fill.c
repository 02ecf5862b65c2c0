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

static void count_live(struct rw_greedy_fill *f, const struct rw_schedule *s)
{
    const uint64_t alignment = f->g->p->t->ctx->device->alignment;
    int64_t *const live = f->live + f->n_leaves; /* by action */
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (!rw_buffer_is_placed(s, i)) continue;
        const int64_t bytes = (int64_t)rw_round_up(b->bytes, alignment);
        live[b->first] += bytes;
        if (b->last + 1 < f->n_actions) live[b->last + 1] -= bytes;
    }
    for (size_t a = 1; a < f->n_actions; a++) live[a] += live[a - 1];
    for (size_t i = f->n_leaves; i-- > 1;) f->live[i] = larger(f->live[2 * i], f->live[2 * i + 1]);
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

static int by_value(const void *pa, const void *pb)
{
    const struct rw_gap *const a = pa, *const b = pb;
    if (a->value != b->value) return a->value < b->value ? -1 : 1;
    return a->from < b->from ? -1 : a->from > b->from;
}

/* Buffers are in the order in which they are computed. ended: value -> last read of its previous buffer. */
static rw_status list_gaps(struct rw_greedy_fill *f, const struct rw_schedule *s, const uint32_t *last, uint32_t *ended)
{
    for (size_t v = 0; v < f->g->n_values; v++) ended[v] = RW_NONE_ID;
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        const uint32_t v = b->value == RW_NONE_ID ? RW_NONE_ID : f->g->value_of[b->value];
        if (v == RW_NONE_ID) continue;
        if (ended[v] != RW_NONE_ID && ended[v] < b->first) {
            if (!rw_grow(&f->gap, &f->cap_gaps, f->n_gaps, 1, sizeof *f->gap)) return RW_ERR_MEMORY;
            f->gap[f->n_gaps++] = (struct rw_gap){ .value = v, .from = ended[v], .to = b->first - 1,
                                                   .early = ended[v] < s->n_forward };
        }
        ended[v] = last[i];
    }
    if (f->n_gaps) qsort(f->gap, f->n_gaps, sizeof *f->gap, by_value);
    size_t k = 0;
    for (uint32_t v = 0; v <= f->g->n_values; v++) {
        while (k < f->n_gaps && f->gap[k].value < v) k++;
        f->gap_at[v] = (uint32_t)k;
    }
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

/* Counts the live bytes at each action of the schedule, and lists the gaps. */
rw_status rw_greedy_fill_init(struct rw_greedy_fill *f, const struct rw_replayable *g, const struct rw_schedule *s)
{
    *f = (struct rw_greedy_fill){ .g = g, .n_actions = s->n_actions, .n_leaves = 1 };
    while (f->n_leaves < s->n_actions) f->n_leaves *= 2;
    f->live = rw_calloc(2 * f->n_leaves, sizeof *f->live);
    f->most = rw_malloc(2 * f->n_leaves * sizeof *f->most);
    f->added = rw_malloc(2 * f->n_leaves * sizeof *f->added);
    f->gap_at = rw_malloc((g->n_values + 1) * sizeof *f->gap_at);
    f->candidate = rw_malloc(g->n_values * sizeof *f->candidate);
    rw_status status = f->live && f->most && f->added && f->gap_at && f->candidate ? RW_OK : RW_ERR_MEMORY;
    if (!status) {
        count_live(f, s);
        status = find_gaps(f, s);
    }
    if (status) rw_greedy_fill_finish(f);
    return status;
}

void rw_greedy_fill_finish(struct rw_greedy_fill *f)
{
    rw_free(f->live);
    rw_free(f->most);
    rw_free(f->added);
    rw_free(f->gap);
    rw_free(f->gap_at);
    rw_free(f->candidate);
    *f = (struct rw_greedy_fill){ 0 };
}

/* ---- a tree over the actions: the maximum in a range, and adding to a range ---- */

static void reset_tree(struct rw_greedy_fill *f)
{
    memset(f->added, 0, 2 * f->n_leaves * sizeof *f->added);
    memcpy(f->most, f->live, 2 * f->n_leaves * sizeof *f->most);
}

/* Do the live bytes exceed `most` at some action of the gap? Node i covers [first, first + span). Does not descend
   where the maximum below is small enough. */
static bool exceeds(const struct rw_greedy_fill *f, size_t i, size_t first, size_t span, const struct rw_gap *gap,
                    int64_t most)
{
    if (f->most[i] <= most || gap->to < first || gap->from >= first + span) return false;
    if (gap->from <= first && gap->to >= first + span - 1) return true;
    const int64_t below = most - f->added[i];
    return exceeds(f, 2 * i, first, span / 2, gap, below) ||
           exceeds(f, 2 * i + 1, first + span / 2, span / 2, gap, below);
}

/* Adds bytes to all actions of the gap, and updates the maxima on the way up. */
static void add_to(struct rw_greedy_fill *f, size_t i, size_t first, size_t span, const struct rw_gap *gap,
                   int64_t bytes)
{
    if (gap->to < first || gap->from >= first + span) return;
    if (gap->from <= first && gap->to >= first + span - 1) {
        f->most[i] += bytes;
        f->added[i] += bytes;
        return;
    }
    add_to(f, 2 * i, first, span / 2, gap, bytes);
    add_to(f, 2 * i + 1, first + span / 2, span / 2, gap, bytes);
    f->most[i] = larger(f->most[2 * i], f->most[2 * i + 1]) + f->added[i];
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

/* The maximum of the compact choice's own live bytes in the gap. Walks up from the leaves. */
static int64_t most_in(const struct rw_greedy_fill *f, const struct rw_gap *gap)
{
    int64_t most = 0;
    size_t first = f->n_leaves + gap->from, end = f->n_leaves + gap->to + 1;
    for (; first < end; first /= 2, end /= 2) {
        if (first % 2) most = larger(most, f->live[first++]);
        if (end % 2) most = larger(most, f->live[--end]);
    }
    return most;
}

static int64_t most_in_gaps(const struct rw_greedy_fill *f, uint32_t v)
{
    int64_t most = 0;
    for (uint32_t k = f->gap_at[v]; k < f->gap_at[v + 1]; k++) most = larger(most, most_in(f, &f->gap[k]));
    return most;
}

static void sort_candidates(struct rw_greedy_fill *f)
{
    for (size_t i = 0; i < f->n_candidates; i++) {
        const uint32_t v = f->candidate[i].value;
        f->candidate[i].least = most_in_gaps(f, v) + (int64_t)f->g->bytes[v];
    }
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
    if (rw_drop_rank(*drop) < 3 || !first->early || f->gap_at[v + 1] - f->gap_at[v] < 2) return;
    if (exceeds(f, 1, 0, f->n_leaves, first, most - bytes)) return;
    add_to(f, 1, 0, f->n_leaves, first, bytes);
    *drop = rw_drop_after_first(*drop);
}

/* Tries all values in order. turn.least rejects most of those without room before the tree is searched. */
void rw_greedy_fill_to(struct rw_greedy_fill *f, uint64_t most, struct rw_compact_choice *r)
{
    const struct rw_replayable *const g = f->g;
    reset_tree(f);
    for (size_t i = 0; i < f->n_candidates; i++) {
        const uint32_t v = f->candidate[i].value;
        const int64_t bytes = (int64_t)g->bytes[v];
        bool fits = f->candidate[i].least <= (int64_t)most;
        for (uint32_t k = f->gap_at[v]; fits && k < f->gap_at[v + 1]; k++)
            fits = !exceeds(f, 1, 0, f->n_leaves, &f->gap[k], (int64_t)most - bytes);
        if (!fits) {
            fill_first(f, (int64_t)most, v, &r->drop[v]);
            continue;
        }
        for (uint32_t k = f->gap_at[v]; k < f->gap_at[v + 1]; k++) add_to(f, 1, 0, f->n_leaves, &f->gap[k], bytes);
        r->drop[v] = RW_DROP_NOT;
    }
}
