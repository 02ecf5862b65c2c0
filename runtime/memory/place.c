/*
 * Static placement. Two families of heuristics:
 *
 *   two-ended   walk the steps in order inside a fixed capacity; what lives long takes the lowest gap that fits, what
 *               dies soon the highest. Kept activations then form a stack at the bottom that backward takes down from
 *               its top, and transients never split it. n log n, tried for several ideas of "long" and, while none
 *               fits, for growing capacities.
 *   by size     largest buffer first, each at the lowest offset that is free during its whole life. Quadratic, so only
 *               for a few thousand buffers. Source: Pisarchyk and Lee, "Efficient memory management for deep neural net
 *               inference", arXiv 2001.03288.
 */
#include "memory/place.h"

#include "memory/alloc.h"

#include <stdlib.h>
#include <string.h>

#define BY_SIZE_MOST 6000

static uint64_t rounded(uint64_t bytes, uint64_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

static uint32_t last_step(const struct rw_life *life, size_t n)
{
    uint32_t last = 0;
    for (size_t i = 0; i < n; i++)
        if (life[i].last > last) last = life[i].last;
    return last;
}

uint64_t rw_largest_live(const struct rw_life *life, size_t n, uint64_t alignment)
{
    const size_t steps = (size_t)last_step(life, n) + 2;
    int64_t *const delta = rw_calloc(steps, sizeof *delta);
    if (!delta) return 0;
    for (size_t i = 0; i < n; i++) {
        delta[life[i].first] += (int64_t)rounded(life[i].bytes, alignment);
        delta[life[i].last + 1] -= (int64_t)rounded(life[i].bytes, alignment);
    }
    int64_t live = 0, most = 0;
    for (size_t s = 0; s < steps; s++) {
        live += delta[s];
        if (live > most) most = live;
    }
    rw_free(delta);
    return (uint64_t)most;
}

/* Buffers by the step at which they begin and at which they end: two counting sorts. */
struct events {
    uint32_t steps;
    uint32_t *begin, *begin_at; /* begin[begin_at[s] .. begin_at[s + 1]) begin at step s */
    uint32_t *end, *end_at;
};

static void events_finish(struct events *e)
{
    rw_free(e->begin);
    rw_free(e->begin_at);
    rw_free(e->end);
    rw_free(e->end_at);
}

static bool sort_by(const struct rw_life *life, size_t n, uint32_t steps, bool by_last, uint32_t **ret, uint32_t **ret_at)
{
    uint32_t *const order = rw_malloc(n * sizeof *order), *const at = rw_calloc((size_t)steps + 2, sizeof *at);
    *ret = order;
    *ret_at = at;
    if (!order || !at) return false;
    for (size_t i = 0; i < n; i++) at[(by_last ? life[i].last : life[i].first) + 1]++;
    for (uint32_t s = 0; s <= steps; s++) at[s + 1] += at[s];
    for (size_t i = n; i-- > 0;) order[--at[(by_last ? life[i].last : life[i].first) + 1]] = (uint32_t)i;
    /* at[s + 1] is now the beginning of step s */
    memmove(at, at + 1, (size_t)steps * sizeof *at);
    at[steps] = (uint32_t)n;
    return true;
}

static bool events_init(struct events *e, const struct rw_life *life, size_t n)
{
    *e = (struct events){ .steps = last_step(life, n) + 1 };
    return sort_by(life, n, e->steps, false, &e->begin, &e->begin_at) && sort_by(life, n, e->steps, true, &e->end, &e->end_at);
}

/* The gaps of an arena, in order of address, neighbours joined. */
struct gaps {
    struct gap {
        uint64_t from, to;
    } *gap;
    size_t n, cap;
};

static size_t lower_bound(const struct gaps *g, uint64_t from)
{
    size_t lo = 0, hi = g->n;
    while (lo < hi) {
        const size_t mid = (lo + hi) / 2;
        if (g->gap[mid].from < from) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static bool give(struct gaps *g, uint64_t from, uint64_t to)
{
    size_t i = lower_bound(g, from);
    const bool joins_left = i > 0 && g->gap[i - 1].to == from, joins_right = i < g->n && g->gap[i].from == to;
    if (joins_left && joins_right) {
        g->gap[i - 1].to = g->gap[i].to;
        memmove(&g->gap[i], &g->gap[i + 1], (--g->n - i) * sizeof *g->gap);
    } else if (joins_left) {
        g->gap[i - 1].to = to;
    } else if (joins_right) {
        g->gap[i].from = from;
    } else {
        if (!rw_grow(&g->gap, &g->cap, g->n, 1, sizeof *g->gap)) return false;
        memmove(&g->gap[i + 1], &g->gap[i], (g->n++ - i) * sizeof *g->gap);
        g->gap[i] = (struct gap){ from, to };
    }
    return true;
}

/* The lowest or the highest gap that fits; UINT64_MAX when none does. */
static uint64_t take(struct gaps *g, uint64_t bytes, bool low)
{
    for (size_t k = 0; k < g->n; k++) {
        const size_t i = low ? k : g->n - 1 - k;
        struct gap *const gap = &g->gap[i];
        if (gap->to - gap->from < bytes) continue;
        const uint64_t offset = low ? gap->from : gap->to - bytes;
        if (low) gap->from += bytes;
        else gap->to -= bytes;
        if (gap->from == gap->to) memmove(gap, gap + 1, (--g->n - i) * sizeof *g->gap);
        return offset;
    }
    return UINT64_MAX;
}

enum outcome { FITS, DOES_NOT_FIT, NO_MEMORY };

/* Places all in `capacity`; what lives more than `life_limit` steps is long-lived. */
static enum outcome two_ended(struct rw_life *life, const struct events *e, struct gaps *g, uint64_t alignment, uint64_t capacity,
                              uint32_t life_limit)
{
    g->n = 0;
    if (capacity && !give(g, 0, capacity)) return NO_MEMORY;
    for (uint32_t s = 0; s < e->steps; s++) {
        for (uint32_t k = e->begin_at[s]; k < e->begin_at[s + 1]; k++) {
            struct rw_life *const b = &life[e->begin[k]];
            b->offset = 0;
            if (!b->bytes) continue;
            b->offset = take(g, rounded(b->bytes, alignment), b->last - b->first > life_limit);
            if (b->offset == UINT64_MAX) return DOES_NOT_FIT;
        }
        for (uint32_t k = e->end_at[s]; k < e->end_at[s + 1]; k++) {
            const struct rw_life *const b = &life[e->end[k]];
            if (b->bytes && !give(g, b->offset, b->offset + rounded(b->bytes, alignment))) return NO_MEMORY;
        }
    }
    return FITS;
}

static enum outcome best_two_ended(struct rw_life *life, const struct events *e, uint64_t alignment, uint64_t least,
                                   uint64_t *ret_size)
{
    static const unsigned permille[] = { 0, 5, 10, 15, 20, 30, 50, 80, 120, 200, 350, 600, 1000, 2000, 4000 };
    struct gaps gaps = { 0 };
    enum outcome outcome = DOES_NOT_FIT;
    for (size_t c = 0; outcome == DOES_NOT_FIT && c < sizeof permille / sizeof *permille; c++) {
        const uint64_t capacity = rounded(least + least / 1000 * permille[c] + (c ? alignment : 0), alignment);
        for (uint32_t limit = e->steps / 2; outcome == DOES_NOT_FIT; limit /= 3) {
            outcome = two_ended(life, e, &gaps, alignment, capacity, limit);
            *ret_size = capacity;
            if (limit < 3) break;
        }
    }
    rw_free(gaps.gap);
    return outcome;
}

/* By size */

struct ranked {
    uint64_t bytes;
    uint32_t index, span;
};

static int larger_first(const void *pa, const void *pb)
{
    const struct ranked *const a = pa, *const b = pb;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
    if (a->span != b->span) return a->span < b->span ? 1 : -1;
    return a->index < b->index ? -1 : 1;
}

/* placed: indexes in order of offset. The lowest gap between those that share a step with b. */
static uint64_t lowest_free(const struct rw_life *life, const uint32_t *placed, size_t n, const struct rw_life *b,
                            uint64_t bytes, uint64_t alignment)
{
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const struct rw_life *const p = &life[placed[i]];
        if (p->last < b->first || p->first > b->last) continue;
        if (p->offset >= at + bytes) break;
        const uint64_t end = p->offset + rounded(p->bytes, alignment);
        if (end > at) at = end;
    }
    return at;
}

static bool by_size(struct rw_life *life, size_t n, uint64_t alignment, uint64_t *ret_size)
{
    struct ranked *const rank = rw_malloc(n * sizeof *rank);
    uint32_t *const placed = rw_malloc(n * sizeof *placed);
    const bool ok = rank && placed;
    size_t n_placed = 0;
    *ret_size = 0;
    for (size_t i = 0; ok && i < n; i++)
        rank[i] = (struct ranked){ rounded(life[i].bytes, alignment), (uint32_t)i, life[i].last - life[i].first };
    if (ok) qsort(rank, n, sizeof *rank, larger_first);
    for (size_t i = 0; ok && i < n; i++) {
        struct rw_life *const b = &life[rank[i].index];
        b->offset = rank[i].bytes ? lowest_free(life, placed, n_placed, b, rank[i].bytes, alignment) : 0;
        if (!rank[i].bytes) continue;
        size_t k = n_placed++;
        for (; k > 0 && life[placed[k - 1]].offset > b->offset; k--) placed[k] = placed[k - 1];
        placed[k] = rank[i].index;
        if (b->offset + rank[i].bytes > *ret_size) *ret_size = b->offset + rank[i].bytes;
    }
    rw_free(rank);
    rw_free(placed);
    return ok;
}

rw_status rw_place(struct rw_life *life, size_t n, uint64_t alignment, uint64_t *ret_size)
{
    *ret_size = 0;
    if (!n) return RW_OK;
    struct events events;
    const uint64_t least = rw_largest_live(life, n, alignment);
    bool empty = true;
    for (size_t i = 0; i < n && empty; i++) empty = life[i].bytes == 0;
    if (!least && !empty) return RW_ERR_MEMORY;
    enum outcome outcome = NO_MEMORY;
    uint64_t size = 0;
    if (events_init(&events, life, n)) outcome = best_two_ended(life, &events, alignment, least, &size);
    rw_status status = outcome == NO_MEMORY ? RW_ERR_MEMORY : RW_OK;
    if (!status && (outcome == DOES_NOT_FIT || size > least) && (n <= BY_SIZE_MOST || outcome == DOES_NOT_FIT)) {
        uint64_t *const offsets = rw_malloc(n * sizeof *offsets);
        uint64_t other;
        if (!offsets) status = RW_ERR_MEMORY;
        for (size_t i = 0; !status && i < n; i++) offsets[i] = life[i].offset;
        if (!status && !by_size(life, n, alignment, &other)) status = RW_ERR_MEMORY;
        if (!status && outcome == FITS && size <= other) {
            for (size_t i = 0; i < n; i++) life[i].offset = offsets[i];
        } else if (!status) {
            size = other;
        }
        rw_free(offsets);
    }
    events_finish(&events);
    if (!status) *ret_size = size;
    return status;
}

/* Validity: walks the steps with a sorted list of what is live. */
bool rw_place_is_valid(const struct rw_life *life, size_t n, uint64_t alignment, uint64_t size)
{
    struct events e;
    struct gaps free_now = { 0 };
    bool ok = events_init(&e, life, n) && (!size || give(&free_now, 0, size));
    for (uint32_t s = 0; ok && n && s < e.steps; s++) {
        for (uint32_t k = e.begin_at[s]; ok && k < e.begin_at[s + 1]; k++) {
            const struct rw_life *const b = &life[e.begin[k]];
            const uint64_t bytes = rounded(b->bytes, alignment), from = b->offset, to = from + bytes;
            if (!bytes) continue;
            size_t i = lower_bound(&free_now, from + 1);
            ok = from % alignment == 0 && i > 0 && free_now.gap[i - 1].from <= from && to <= free_now.gap[i - 1].to;
            if (!ok) break;
            const struct gap whole = free_now.gap[--i];
            memmove(&free_now.gap[i], &free_now.gap[i + 1], (--free_now.n - i) * sizeof *free_now.gap);
            if (whole.from < from) ok = give(&free_now, whole.from, from);
            if (ok && to < whole.to) ok = give(&free_now, to, whole.to);
        }
        for (uint32_t k = e.end_at[s]; ok && k < e.end_at[s + 1]; k++) {
            const struct rw_life *const b = &life[e.end[k]];
            if (b->bytes) ok = give(&free_now, b->offset, b->offset + rounded(b->bytes, alignment));
        }
    }
    rw_free(free_now.gap);
    events_finish(&e);
    return ok;
}
