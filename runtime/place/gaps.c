/* A treap in one array. Source: Seidel and Aragon, "Randomized search trees", Algorithmica 16, 1996. */
#include "place/gaps.h"

#include "base/alloc.h"

#include <assert.h>

static void refresh(struct rw_gaps *g, uint32_t i)
{
    struct rw_gap *const gap = &g->gap[i];
    gap->largest = gap->to - gap->from;
    for (int side = 0; side < 2; side++)
        if (g->gap[gap->child[side]].largest > gap->largest) gap->largest = g->gap[gap->child[side]].largest;
}

/* Updates the ancestors of node i. Stops at the first whose largest gap is unchanged, because none above it can
   change. */
static void refresh_upwards(struct rw_gaps *g, uint32_t i)
{
    for (; i; i = g->gap[i].parent) {
        const uint64_t before = g->gap[i].largest;
        refresh(g, i);
        if (g->gap[i].largest == before) return;
    }
}

static void put_in_place_of(struct rw_gaps *g, uint32_t old, uint32_t i)
{
    const uint32_t parent = g->gap[old].parent;
    if (i) g->gap[i].parent = parent;
    if (parent) g->gap[parent].child[g->gap[parent].child[1] == old] = i;
    else g->root = i;
}

/* Rotates node i and its parent. */
static void rotate(struct rw_gaps *g, uint32_t i)
{
    const uint32_t parent = g->gap[i].parent;
    const int side = g->gap[parent].child[1] == i;
    const uint32_t inner = g->gap[i].child[!side];
    put_in_place_of(g, parent, i);
    g->gap[parent].child[side] = inner;
    if (inner) g->gap[inner].parent = parent;
    g->gap[i].child[!side] = parent;
    g->gap[parent].parent = i;
    refresh(g, parent);
    refresh(g, i);
}

static uint32_t next_rank(struct rw_gaps *g)
{
    uint32_t x = g->last_rank;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return g->last_rank = x;
}

static uint32_t new_gap(struct rw_gaps *g, uint64_t from, uint64_t to)
{
    uint32_t i = g->unused;
    if (i) {
        g->unused = g->gap[i].parent;
    } else {
        if (!rw_grow(&g->gap, &g->cap, g->n, 1, sizeof *g->gap)) return 0;
        i = (uint32_t)g->n++;
    }
    g->gap[i] = (struct rw_gap){ .from = from, .to = to, .largest = to - from, .rank = next_rank(g) };
    return i;
}

static bool insert(struct rw_gaps *g, uint64_t from, uint64_t to)
{
    const uint32_t i = new_gap(g, from, to);
    if (!i) return false;
    uint32_t parent = 0;
    for (uint32_t at = g->root; at; at = g->gap[at].child[g->gap[at].from < from]) parent = at;
    g->gap[i].parent = parent;
    if (parent) g->gap[parent].child[g->gap[parent].from < from] = i;
    else g->root = i;
    refresh_upwards(g, parent);
    while (g->gap[i].parent && g->gap[g->gap[i].parent].rank < g->gap[i].rank) rotate(g, i);
    return true;
}

/* Requires that all `largest` are correct: an unchanged subtree ends the update. */
static void erase(struct rw_gaps *g, uint32_t i)
{
    struct rw_gap *const gap = &g->gap[i];
    while (gap->child[0] && gap->child[1])
        rotate(g, gap->child[g->gap[gap->child[1]].rank > g->gap[gap->child[0]].rank]);
    put_in_place_of(g, i, gap->child[gap->child[0] == 0]);
    refresh_upwards(g, gap->parent);
    gap->parent = g->unused;
    g->unused = i;
}

/* Finds the last gap that starts below `address`, and the first that does not. */
static void neighbours(const struct rw_gaps *g, uint64_t address, uint32_t *ret_below, uint32_t *ret_above)
{
    *ret_below = *ret_above = 0;
    for (uint32_t at = g->root; at;) {
        const bool below = g->gap[at].from < address;
        if (below) *ret_below = at;
        else *ret_above = at;
        at = g->gap[at].child[below];
    }
}

void rw_gaps_finish(struct rw_gaps *g)
{
    rw_free(g->gap);
    *g = (struct rw_gaps){ 0 };
}

bool rw_gaps_reset(struct rw_gaps *g, uint64_t to)
{
    if (!rw_grow(&g->gap, &g->cap, 0, 2, sizeof *g->gap)) return false;
    g->gap[0] = (struct rw_gap){ 0 };
    g->n = 1;
    g->root = g->unused = 0;
    g->last_rank = 2463534242u;
    return !to || insert(g, 0, to);
}

/* Frees a range. Adjacent gaps are merged at once, so that the largest gap is always visible in the tree. */
bool rw_gaps_give(struct rw_gaps *g, uint64_t from, uint64_t to)
{
    uint32_t below, above;
    neighbours(g, from, &below, &above);
    assert(from < to && (!below || g->gap[below].to <= from) && (!above || to <= g->gap[above].from));
    const bool joins_below = below && g->gap[below].to == from, joins_above = above && g->gap[above].from == to;
    if (!joins_below && !joins_above) return insert(g, from, to);
    if (joins_below && joins_above) {
        to = g->gap[above].to;
        erase(g, above);
    }
    const uint32_t i = joins_below ? below : above;
    if (joins_below) g->gap[i].to = to;
    else g->gap[i].from = from;
    refresh_upwards(g, i);
    return true;
}

/* Descends to the lowest (or highest) gap that fits: a subtree whose largest gap fits contains one, so no
   backtracking is needed. */
uint64_t rw_gaps_take(struct rw_gaps *g, uint64_t bytes, bool low)
{
    uint32_t i = g->root;
    if (g->gap[i].largest < bytes) return UINT64_MAX;
    for (;;) {
        struct rw_gap *const gap = &g->gap[i];
        if (g->gap[gap->child[!low]].largest >= bytes) i = gap->child[!low];
        else if (gap->to - gap->from >= bytes) break;
        else i = gap->child[low];
    }
    struct rw_gap *const gap = &g->gap[i];
    const uint64_t offset = low ? gap->from : gap->to - bytes;
    if (low) gap->from += bytes;
    else gap->to -= bytes;
    refresh_upwards(g, i);
    if (gap->from == gap->to) erase(g, i);
    return offset;
}

bool rw_gaps_take_at(struct rw_gaps *g, uint64_t from, uint64_t to, bool *ret_free)
{
    uint32_t i, above;
    neighbours(g, from + 1, &i, &above);
    *ret_free = i && to <= g->gap[i].to;
    if (!*ret_free) return true;
    const uint64_t whole_from = g->gap[i].from, whole_to = g->gap[i].to;
    if (whole_from < from) {
        g->gap[i].to = from;
        refresh_upwards(g, i);
        return to == whole_to || insert(g, to, whole_to);
    }
    g->gap[i].from = to;
    refresh_upwards(g, i);
    if (to == whole_to) erase(g, i);
    return true;
}
