/*
 * Local search over placement orders (order_search.h).
 *
 * Invariant: an offset depends only on the neighbors (buffers whose lifetimes overlap) that precede the buffer in the
 * order. So after one buffer has moved in the order, only it and the neighbors that it has passed are placed again,
 * then the later neighbors of those whose offsets changed, and so on; all others keep their offsets. That is what makes
 * thousands of trials affordable. Work is counted in inspected neighbors, not in seconds, so the result is the same on
 * every machine.
 */
#include "place/order_search.h"

#include "base/alloc.h"
#include "base/round_up.h"

#include <stdlib.h>
#include <string.h>

/* Limits of memory and work: a few milliseconds. Work is counted in inspected neighbors. */
#define NEIGHBOURS_MAX ((uint64_t)1 << 22)
#define SEARCH_WORK ((uint64_t)1 << 24)
#define WORK_PER_PAIR 256 /* so that a few buffers take less */
#define MOVES_IN_VAIN 100
#define BLOCK 64 /* steps per block, of which the maximum load is stored */

/* A buffer with more than zero bytes. */
struct item {
    uint64_t bytes, offset;
    uint32_t first, last, index; /* index: in the list of lifetimes */
    uint64_t load;               /* maximum of the live bytes during its lifetime */
    uint64_t crowd;              /* bytes of all its neighbors */
};

struct range {
    uint64_t from, to;
};

struct search {
    struct item *item;
    uint32_t n;
    uint32_t *beside, *beside_at; /* neighbors of i: beside[beside_at[i] .. beside_at[i + 1]) */
    uint32_t *order, *place;      /* the order, and its inverse */
    uint64_t *best, size;         /* the best offsets, and their arena */
    uint64_t least, goal, work;   /* goal: a size that is good enough */
    uint64_t above;               /* sum of the bytes by which buffers exceed the goal */
    struct range *taken;          /* of one buffer's neighbours */
    uint32_t *stamp, now;         /* stamp[i] == now: buffer i must be placed again */
    uint32_t *moved, n_moved;     /* by the last change of the order, and their offsets before */
    uint64_t *was;
    uint32_t state; /* of draw() */
};

/* Pseudo-random numbers, the same in every run. */
static uint32_t draw(struct search *s, uint32_t n)
{
    s->state = s->state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)s->state * n >> 32);
}

/* ---- overlapping lifetimes ---- */

/* Prefix sums over steps: bytes and numbers of buffers that begin at or before a step, and that end before it. */
struct steps {
    uint32_t n;
    uint64_t *begun, *ended;
    uint32_t *n_begun, *n_ended;
    uint64_t *most; /* the maximum load of each BLOCK of steps */
};

static void steps_finish(struct steps *t)
{
    rw_free(t->begun);
    rw_free(t->ended);
    rw_free(t->n_begun);
    rw_free(t->n_ended);
    rw_free(t->most);
}

static uint64_t load_at(const struct steps *t, uint32_t step)
{
    return t->begun[step] - t->ended[step];
}

/* Prefix sums give the load of any step in one subtraction; maxima per BLOCK give the largest load of a lifetime in
   few steps. */
static bool steps_init(struct steps *t, const struct item *item, uint32_t n)
{
    *t = (struct steps){ .n = 1 };
    for (uint32_t i = 0; i < n; i++)
        if (item[i].last >= t->n) t->n = item[i].last + 1;
    t->begun = rw_calloc(t->n + 1, sizeof *t->begun);
    t->ended = rw_calloc(t->n + 1, sizeof *t->ended);
    t->n_begun = rw_calloc(t->n + 1, sizeof *t->n_begun);
    t->n_ended = rw_calloc(t->n + 1, sizeof *t->n_ended);
    t->most = rw_calloc(t->n / BLOCK + 1, sizeof *t->most);
    if (!t->begun || !t->ended || !t->n_begun || !t->n_ended || !t->most) return false;
    for (uint32_t i = 0; i < n; i++) {
        t->begun[item[i].first] += item[i].bytes, t->n_begun[item[i].first]++;
        t->ended[item[i].last + 1] += item[i].bytes, t->n_ended[item[i].last + 1]++;
    }
    for (uint32_t k = 1; k <= t->n; k++) {
        t->begun[k] += t->begun[k - 1], t->n_begun[k] += t->n_begun[k - 1];
        t->ended[k] += t->ended[k - 1], t->n_ended[k] += t->n_ended[k - 1];
    }
    for (uint32_t k = 0; k < t->n; k++)
        if (load_at(t, k) > t->most[k / BLOCK]) t->most[k / BLOCK] = load_at(t, k);
    return true;
}

static uint64_t largest_load(const struct steps *t, uint32_t first, uint32_t last)
{
    uint64_t most = 0;
    for (uint32_t k = first; k <= last;) {
        const bool whole = k % BLOCK == 0 && k + BLOCK - 1 <= last;
        const uint64_t here = whole ? t->most[k / BLOCK] : load_at(t, k);
        if (here > most) most = here;
        k += whole ? BLOCK : 1;
    }
    return most;
}

static int earlier_first(const void *pa, const void *pb)
{
    const struct item *const a = pa, *const b = pb;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

/* Sweeps over the buffers by first step with the list of live ones; a pair is found when the later one begins. */
static void list_neighbours(struct search *s, uint32_t *alive, uint32_t *filled)
{
    uint32_t n_alive = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t still = 0;
        for (uint32_t k = 0; k < n_alive; k++) {
            const uint32_t j = alive[k];
            if (s->item[j].last < s->item[i].first) continue;
            s->beside[filled[i]++] = j;
            s->beside[filled[j]++] = i;
            alive[still++] = j;
        }
        alive[still++] = i;
        n_alive = still;
    }
}

/* Lists the neighbors of all buffers; *ret_few: whether there are few enough. */
static bool find_neighbours(struct search *s, const struct steps *t, bool *ret_few)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        struct item *const b = &s->item[i];
        s->beside_at[i] = (uint32_t)sum;
        sum += t->n_begun[b->last] - t->n_ended[b->first] - 1;
        b->crowd = t->begun[b->last] - t->ended[b->first] - b->bytes;
        b->load = largest_load(t, b->first, b->last);
        if (sum > NEIGHBOURS_MAX) break;
    }
    *ret_few = sum <= NEIGHBOURS_MAX;
    if (!*ret_few) return true;
    s->beside_at[s->n] = (uint32_t)sum;
    s->beside = rw_malloc((sum ? sum : 1) * sizeof *s->beside);
    uint32_t *const filled = rw_malloc(s->n * sizeof *filled);
    if (s->beside && filled) {
        memcpy(filled, s->beside_at, s->n * sizeof *filled);
        list_neighbours(s, s->order, filled); /* the order is not there yet */
    }
    const bool ok = s->beside && filled;
    rw_free(filled);
    return ok;
}

/* ---- placing in an order ---- */

/* The lowest gap between the neighbors that precede buffer i. If a neighbor blocks an offset, it blocks all offsets
   up to its own end, so the search continues there. That holds for any order of inspection, so no sorting is needed. */
static uint64_t lowest_free(struct search *s, uint32_t i)
{
    const uint64_t bytes = s->item[i].bytes;
    uint64_t at = 0, looked = s->beside_at[i + 1] - s->beside_at[i];
    uint32_t n = 0;
    for (uint32_t k = s->beside_at[i]; k < s->beside_at[i + 1]; k++) {
        const struct item *const b = &s->item[s->beside[k]];
        if (s->place[s->beside[k]] < s->place[i]) s->taken[n++] = (struct range){ b->offset, b->offset + b->bytes };
    }
    for (bool again = n > 0; again;) {
        uint32_t above = 0;
        looked += n;
        again = false;
        for (uint32_t k = 0; k < n; k++) {
            if (s->taken[k].to <= at) continue;
            if (s->taken[k].from >= at + bytes) s->taken[above++] = s->taken[k];
            else at = s->taken[k].to, again = true;
        }
        n = above;
    }
    s->work = s->work > looked ? s->work - looked : 0;
    return at;
}

/* Places the stamped buffers again, in the order, and then stamps the later neighbors of each whose offset changed. */
static void place_again(struct search *s, uint32_t from)
{
    s->n_moved = 0;
    for (uint32_t p = from; p < s->n; p++) {
        const uint32_t i = s->order[p];
        if (s->stamp[i] != s->now) continue;
        const uint64_t offset = lowest_free(s, i);
        if (offset == s->item[i].offset) continue;
        s->moved[s->n_moved] = i;
        s->was[s->n_moved++] = s->item[i].offset;
        s->item[i].offset = offset;
        for (uint32_t k = s->beside_at[i]; k < s->beside_at[i + 1]; k++)
            if (s->place[s->beside[k]] > p) s->stamp[s->beside[k]] = s->now;
    }
}

/* Evaluates the offsets, and keeps the best. */
static void judge(struct search *s)
{
    uint64_t size = 0;
    s->above = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const uint64_t end = s->item[i].offset + s->item[i].bytes;
        if (end > size) size = end;
        if (end > s->goal) s->above += end - s->goal;
    }
    s->work = s->work > s->n ? s->work - s->n : 0;
    if (size >= s->size) return;
    s->size = size;
    for (uint32_t i = 0; i < s->n; i++) s->best[i] = s->item[i].offset;
}

static void place_all(struct search *s)
{
    s->now++;
    for (uint32_t p = 0; p < s->n; p++) {
        s->place[s->order[p]] = p;
        s->stamp[p] = s->now;
        s->item[p].offset = UINT64_MAX;
    }
    place_again(s, 0);
    judge(s);
}

/* ---- orders ---- */

/* Rankings; the first buffer is placed first: the largest; at the highest load, ties by longest lifetime or by size;
   with the most bytes in neighbors; the largest product of those bytes and its own. */
enum ranking { BY_BYTES, BY_LOAD_AND_SPAN, BY_LOAD_AND_BYTES, BY_CROWD, BY_CROWD_AND_BYTES, N_RANKINGS };

struct ranked {
    double weight, second;
    uint32_t index;
};

static struct ranked rank_of(const struct search *s, enum ranking ranking, uint32_t i)
{
    const struct item *const b = &s->item[i];
    const double bytes = (double)b->bytes, span = (double)(b->last - b->first) + 1;
    const uint64_t fine = s->least / 256 + 1, coarse = s->least / 16 + 1;
    if (ranking == BY_LOAD_AND_SPAN) return (struct ranked){ (double)(b->load / fine), span, i };
    if (ranking == BY_LOAD_AND_BYTES) return (struct ranked){ (double)(b->load / coarse), bytes, i };
    if (ranking == BY_CROWD) return (struct ranked){ (double)b->crowd, bytes, i };
    if (ranking == BY_CROWD_AND_BYTES) return (struct ranked){ (double)b->crowd * bytes, bytes, i };
    return (struct ranked){ bytes, span, i };
}

static int heavier_first(const void *pa, const void *pb)
{
    const struct ranked *const a = pa, *const b = pb;
    if (a->weight != b->weight) return a->weight < b->weight ? 1 : -1;
    if (a->second != b->second) return a->second < b->second ? 1 : -1;
    return a->index < b->index ? -1 : 1;
}

static bool order_by(struct search *s, enum ranking ranking)
{
    struct ranked *const rank = rw_malloc(s->n * sizeof *rank);
    if (!rank) return false;
    for (uint32_t i = 0; i < s->n; i++) rank[i] = rank_of(s, ranking, i);
    qsort(rank, s->n, sizeof *rank, heavier_first);
    for (uint32_t i = 0; i < s->n; i++) s->order[i] = rank[i].index;
    rw_free(rank);
    return true;
}

/* Moves the buffer at position `from` to `to`; those between shift by one. */
static void shift(struct search *s, uint32_t from, uint32_t to)
{
    const uint32_t i = s->order[from], low = from < to ? from : to, high = from < to ? to : from;
    if (to < from) memmove(s->order + to + 1, s->order + to, (from - to) * sizeof *s->order);
    else memmove(s->order + from, s->order + from + 1, (to - from) * sizeof *s->order);
    s->order[to] = i;
    for (uint32_t p = low; p <= high; p++) s->place[s->order[p]] = p;
}

/* Changes the order. A neighbor between the two positions has lost a predecessor, or gained one, so it is placed
   again. */
static void move(struct search *s, uint32_t from, uint32_t to)
{
    const uint32_t i = s->order[from], low = from < to ? from : to, high = from < to ? to : from;
    shift(s, from, to);
    s->stamp[i] = ++s->now;
    for (uint32_t k = s->beside_at[i]; k < s->beside_at[i + 1]; k++) {
        const uint32_t p = s->place[s->beside[k]];
        if (p >= low && p <= high) s->stamp[s->beside[k]] = s->now;
    }
    place_again(s, low);
    judge(s);
}

static void take_back(struct search *s, uint32_t from, uint32_t to)
{
    for (uint32_t k = 0; k < s->n_moved; k++) s->item[s->moved[k]].offset = s->was[k];
    shift(s, to, from);
}

/* A random buffer that exceeds the goal, or a neighbor of one. */
static uint32_t in_the_way(struct search *s)
{
    uint32_t n = 0, i = 0;
    for (uint32_t k = 0; k < s->n; k++)
        if (s->item[k].offset + s->item[k].bytes > s->goal && !draw(s, ++n)) i = k;
    const uint32_t beside = s->beside_at[i + 1] - s->beside_at[i];
    return beside && !draw(s, 3) ? s->beside[s->beside_at[i] + draw(s, beside)] : i;
}

/* Local search: moves one buffer at a time, as long as that helps. A slightly worse order is sometimes accepted, to
   leave local minima. */
static void look_around(struct search *s)
{
    uint64_t above = s->above, least_above = above;
    for (int vain = 0; vain < MOVES_IN_VAIN && s->work && s->size > s->goal; vain++) {
        const uint32_t from = s->place[in_the_way(s)], to = draw(s, draw(s, 2) ? s->n : from + 1);
        if (from == to) continue;
        move(s, from, to);
        if (s->above > above + (draw(s, 2) ? 0 : above / 500)) {
            take_back(s, from, to);
            continue;
        }
        above = s->above;
        if (above >= least_above) continue;
        least_above = above;
        vain = 0;
    }
}

/* Tries all rankings, then searches from each of them, the best first, until the work is used. */
static bool search(struct search *s)
{
    enum ranking by_worth[N_RANKINGS];
    uint64_t above[N_RANKINGS];
    int n = 0;
    for (enum ranking r = 0; r < N_RANKINGS && s->work && s->size > s->goal; r++, n++) {
        int at = n;
        if (!order_by(s, r)) return false;
        place_all(s);
        for (; at > 0 && above[at - 1] > s->above; at--) above[at] = above[at - 1], by_worth[at] = by_worth[at - 1];
        above[at] = s->above;
        by_worth[at] = r;
    }
    for (int start = 0; s->work && s->size > s->goal; start++) {
        if (!order_by(s, by_worth[start % n])) return false;
        place_all(s);
        look_around(s);
    }
    return true;
}

static bool search_init(struct search *s, const struct rw_lifetime *life, size_t n, uint64_t alignment)
{
    s->item = rw_malloc(n * sizeof *s->item);
    s->beside_at = rw_malloc((n + 1) * sizeof *s->beside_at);
    s->order = rw_malloc(n * sizeof *s->order);
    s->place = rw_malloc(n * sizeof *s->place);
    s->best = rw_malloc(n * sizeof *s->best);
    s->taken = rw_malloc(n * sizeof *s->taken);
    s->stamp = rw_calloc(n, sizeof *s->stamp);
    s->moved = rw_malloc(n * sizeof *s->moved);
    s->was = rw_malloc(n * sizeof *s->was);
    if (!s->item || !s->beside_at || !s->order || !s->place || !s->best || !s->taken || !s->stamp || !s->moved ||
        !s->was)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!life[i].bytes) continue;
        s->best[s->n] = life[i].offset;
        s->item[s->n++] = (struct item){ .bytes = rw_round_up(life[i].bytes, alignment),
                                         .first = life[i].first,
                                         .last = life[i].last,
                                         .index = (uint32_t)i };
    }
    return true;
}

static void search_finish(struct search *s)
{
    rw_free(s->item);
    rw_free(s->beside);
    rw_free(s->beside_at);
    rw_free(s->order);
    rw_free(s->place);
    rw_free(s->best);
    rw_free(s->taken);
    rw_free(s->stamp);
    rw_free(s->moved);
    rw_free(s->was);
}

bool rw_order_search(struct rw_lifetime *life, size_t n, uint64_t alignment, uint64_t least, uint64_t *size)
{
    struct search s = { .size = *size, .least = least, .goal = least + least / 1024, .state = 1 };
    struct steps t = { 0 };
    bool few = false, ok = search_init(&s, life, n, alignment);
    if (ok) qsort(s.item, s.n, sizeof *s.item, earlier_first);
    s.work = (uint64_t)s.n * s.n * WORK_PER_PAIR < SEARCH_WORK ? (uint64_t)s.n * s.n * WORK_PER_PAIR : SEARCH_WORK;
    for (uint32_t i = 0; ok && i < s.n; i++) s.best[i] = life[s.item[i].index].offset;
    ok = ok && steps_init(&t, s.item, s.n) && find_neighbours(&s, &t, &few) && (!few || search(&s));
    for (uint32_t i = 0; ok && i < s.n; i++) life[s.item[i].index].offset = s.best[i];
    if (ok) *size = s.size;
    steps_finish(&t);
    search_finish(&s);
    return ok;
}
