/*
 * Static placement, by two families of heuristics:
 *
 *   two-ended   sweeps over the steps with a fixed capacity; a buffer with a long lifetime takes the lowest gap that
 *               fits, one with a short lifetime the highest. Kept activations then form a stack at the bottom that
 *               backward pops from its top, and transients never split it. n log n, tried for several limits of "long"
 *               and, while none fits, for growing capacities. If none fits: all from the bottom of an unlimited range.
 *   by order    each buffer at the lowest offset that is free during its whole lifetime, in several orders
 *   (order_search.c).
 *               Only for a few thousand buffers, and if two-ended placement is above the bound.
 */
#include "place/place.h"

#include "base/alloc.h"
#include "base/round_up.h"
#include "place/gaps.h"
#include "place/order_search.h"

#include <string.h>

#define ORDERS_MAX 6000

/* Limits of work: 100,000 buffers take tens of milliseconds, whatever their lifetimes are. */
#define TAKES_PER_BUFFER 1
#define TAKES_MIN 100000

static uint32_t last_step(const struct rw_lifetime *life, size_t n)
{
    uint32_t last = 0;
    for (size_t i = 0; i < n; i++)
        if (life[i].last > last) last = life[i].last;
    return last;
}

uint64_t rw_largest_live(const struct rw_lifetime *life, size_t n, uint64_t alignment)
{
    const size_t steps = (size_t)last_step(life, n) + 1;
    int64_t *const delta = rw_malloc((steps + 1) * sizeof *delta);
    if (!delta) return 0;
    const uint64_t most = rw_lifetimes_sweep(life, NULL, n, alignment, delta, steps).bytes;
    rw_free(delta);
    return most;
}

/* Buffers by first and by last step: two counting sorts. */
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

static bool sort_by(const struct rw_lifetime *life, size_t n, uint32_t steps, bool by_last, uint32_t **ret,
                    uint32_t **ret_at)
{
    uint32_t *const order = rw_malloc(n * sizeof *order), *const at = rw_calloc((size_t)steps + 2, sizeof *at);
    *ret = order;
    *ret_at = at;
    if (!order || !at) return false;
    for (size_t i = 0; i < n; i++) at[(by_last ? life[i].last : life[i].first) + 1]++;
    for (uint32_t s = 0; s <= steps; s++) at[s + 1] += at[s];
    for (size_t i = n; i-- > 0;) order[--at[(by_last ? life[i].last : life[i].first) + 1]] = (uint32_t)i;
    /* at[s + 1] is now the start of step s */
    memmove(at, at + 1, (size_t)steps * sizeof *at);
    at[steps] = (uint32_t)n;
    return true;
}

static bool events_init(struct events *e, const struct rw_lifetime *life, size_t n)
{
    *e = (struct events){ .steps = last_step(life, n) + 1 };
    return sort_by(life, n, e->steps, false, &e->begin, &e->begin_at) &&
           sort_by(life, n, e->steps, true, &e->end, &e->end_at);
}

enum outcome { FITS, DOES_NOT_FIT, NO_MEMORY };

/* State of the tries: they share the tree of gaps, and `takes_left` limits the work of all of them together. */
struct tries {
    struct rw_lifetime *life;
    const struct events *events;
    uint64_t alignment;
    struct rw_gaps gaps;
    uint64_t takes_left;
};

#define ALL_LONG UINT32_MAX
#define SUM_MAX ((uint64_t)1 << 63)

/* Places all buffers within `capacity`; a lifetime of more than life_limit steps is long. *ret_top: the highest
   address used. */
static enum outcome two_ended(struct tries *t, uint64_t capacity, uint32_t life_limit, uint64_t *ret_top)
{
    const struct events *const e = t->events;
    *ret_top = 0;
    if (!rw_gaps_reset(&t->gaps, capacity)) return NO_MEMORY;
    for (uint32_t s = 0; s < e->steps; s++) {
        for (uint32_t k = e->begin_at[s]; k < e->begin_at[s + 1]; k++) {
            struct rw_lifetime *const b = &t->life[e->begin[k]];
            b->offset = 0;
            if (!b->bytes) continue;
            const uint64_t bytes = rw_round_up(b->bytes, t->alignment);
            b->offset = rw_gaps_take(&t->gaps, bytes, life_limit == ALL_LONG || b->last - b->first > life_limit);
            if (t->takes_left) t->takes_left--;
            if (b->offset == UINT64_MAX) return DOES_NOT_FIT;
            if (b->offset + bytes > *ret_top) *ret_top = b->offset + bytes;
        }
        for (uint32_t k = e->end_at[s]; k < e->end_at[s + 1]; k++) {
            const struct rw_lifetime *const b = &t->life[e->end[k]];
            const uint64_t to = b->offset + rw_round_up(b->bytes, t->alignment);
            if (b->bytes && !rw_gaps_give(&t->gaps, b->offset, to)) return NO_MEMORY;
        }
    }
    return FITS;
}

static size_t count_longer(const struct tries *t, size_t n, uint32_t limit)
{
    size_t longer = 0;
    for (size_t i = 0; i < n; i++) longer += t->life[i].last - t->life[i].first > limit;
    return longer;
}

/* Tries every limit of "long" that is not equivalent to the one before, until one fits. */
static enum outcome fit_in(struct tries *t, size_t n, uint64_t capacity, uint64_t *ret_top)
{
    enum outcome outcome = DOES_NOT_FIT;
    size_t before = SIZE_MAX;
    for (uint32_t limit = t->events->steps / 2; outcome == DOES_NOT_FIT && t->takes_left; limit /= 3) {
        const size_t longer = count_longer(t, n, limit);
        if (longer != before) outcome = two_ended(t, capacity, limit, ret_top);
        before = longer;
        if (limit < 3) break;
    }
    return outcome;
}

/* Always fits: places everything from the bottom of a range that could hold all buffers side by side. If their sum
   cannot be represented, half of the representable range is enough for the live ones (autodiff/planning_problem.c). */
static enum outcome from_the_bottom(struct tries *t, size_t n, uint64_t *ret_top)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n && sum < SUM_MAX; i++) sum += rw_round_up(t->life[i].bytes, t->alignment);
    return two_ended(t, sum < SUM_MAX ? sum : SUM_MAX, ALL_LONG, ret_top);
}

/*
 * Tries capacities close to the bound first. If none fits, placement from the bottom gives the size below which
 * capacities are worth trying.
 */
static enum outcome best_two_ended(struct tries *t, size_t n, uint64_t least, uint64_t *ret_top)
{
    static const unsigned permille[] = { 0, 5, 10, 15, 20, 30, 40, 50, 65, 80, 100, 120, 150, 200 };
    const size_t close = 5, all = sizeof permille / sizeof *permille;
    enum outcome outcome = DOES_NOT_FIT;
    uint64_t below = UINT64_MAX;
    for (size_t c = 0; c < all && (t->takes_left || c <= close); c++) {
        if (c == close) {
            outcome = from_the_bottom(t, n, &below);
            *ret_top = below;
            if (outcome == NO_MEMORY || !t->takes_left) return outcome;
        }
        const uint64_t more = least / 1000 * permille[c] + (c ? t->alignment : 0);
        const uint64_t capacity = rw_round_up(least + more, t->alignment);
        if (capacity >= below) break;
        outcome = fit_in(t, n, capacity, ret_top);
        if (outcome != DOES_NOT_FIT) return outcome;
    }
    return from_the_bottom(t, n, ret_top);
}

/* The local search over orders is only tried if the cheap heuristics left room above the lower bound. */
rw_status rw_place(struct rw_lifetime *life, size_t n, uint64_t alignment, uint64_t *ret_size)
{
    *ret_size = 0;
    if (!n) return RW_OK;
    struct events events;
    const uint64_t least = rw_largest_live(life, n, alignment);
    bool empty = true;
    for (size_t i = 0; i < n && empty; i++) empty = life[i].bytes == 0;
    if (!least && !empty) return RW_ERR_MEMORY;
    struct tries tries = { life, &events, alignment, { 0 }, TAKES_PER_BUFFER * n + TAKES_MIN };
    enum outcome outcome = NO_MEMORY;
    uint64_t size = 0;
    if (events_init(&events, life, n)) outcome = best_two_ended(&tries, n, least, &size);
    bool ok = outcome == FITS;
    if (ok && size > least && n <= ORDERS_MAX) ok = rw_order_search(life, n, alignment, least, &size);
    rw_gaps_finish(&tries.gaps);
    events_finish(&events);
    if (ok) *ret_size = size;
    return ok ? RW_OK : RW_ERR_MEMORY;
}

/* Validity: sweeps over the steps; a buffer that begins must find its whole range free. */
bool rw_place_is_valid(const struct rw_lifetime *life, size_t n, uint64_t alignment, uint64_t size)
{
    struct events e;
    struct rw_gaps free_now = { 0 };
    bool ok = events_init(&e, life, n) && rw_gaps_reset(&free_now, size);
    for (uint32_t s = 0; ok && n && s < e.steps; s++) {
        for (uint32_t k = e.begin_at[s]; ok && k < e.begin_at[s + 1]; k++) {
            const struct rw_lifetime *const b = &life[e.begin[k]];
            bool is_free = true;
            if (!b->bytes) continue;
            const uint64_t end = b->offset + rw_round_up(b->bytes, alignment);
            ok = b->offset % alignment == 0 && rw_gaps_take_at(&free_now, b->offset, end, &is_free) && is_free;
        }
        for (uint32_t k = e.end_at[s]; ok && k < e.end_at[s + 1]; k++) {
            const struct rw_lifetime *const b = &life[e.end[k]];
            if (b->bytes) ok = rw_gaps_give(&free_now, b->offset, b->offset + rw_round_up(b->bytes, alignment));
        }
    }
    rw_gaps_finish(&free_now);
    events_finish(&e);
    return ok;
}
