/*
 * Placement: no two live buffers overlap, results for typical training steps are close to the lower bound and
 * deterministic, and the work is n log n.
 */
#include "base/alloc.h"
#include "place/gaps.h"
#include "place/place.h"
#include "support/work_counter.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 1;

static uint64_t draw(uint64_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % n;
}

static double check(struct rw_lifetime *life, size_t n)
{
    uint64_t size, again;
    cr_assert_eq(rw_place(life, n, 256, &size), RW_OK);
    cr_assert(rw_place_is_valid(life, n, 256, size));
    uint64_t *const offsets = malloc((n + 1) * sizeof *offsets);
    for (size_t i = 0; i < n; i++) offsets[i] = life[i].offset;
    cr_assert_eq(rw_place(life, n, 256, &again), RW_OK);
    cr_assert_eq(size, again);
    for (size_t i = 0; i < n; i++) cr_assert_eq(offsets[i], life[i].offset, "not the same twice");
    free(offsets);
    const uint64_t least = rw_largest_live(life, n, 256);
    cr_assert_geq(size, least);
    return least ? (double)size / (double)least : 1;
}

/* Kept values of a few sizes per layer, transient ones, and replays: a step under full recompute with `replays`. */
static size_t training_step(struct rw_lifetime *life, int layers, bool replays)
{
    static const uint64_t sizes[] = { 1, 1, 3, 1, 1, 1, 4, 4 }; /* sizes of a block's values, in units of its input */
    const uint64_t unit = 65536 + 256 * draw(64);
    size_t n = 0;
    uint32_t step = 0;
    const uint32_t per = 20, end = (uint32_t)layers * per;
    for (int l = 0; l < layers; l++) {
        const uint32_t back = end + (uint32_t)(layers - 1 - l) * 2 * per;
        for (int v = 0; v < 8; v++, step += 2) {
            const bool kept = !replays || v == 0;
            const uint32_t twice = 2 * (uint32_t)v, done = back + per - twice;
            const uint64_t bytes = sizes[v] * unit;
            life[n++] = (struct rw_lifetime){ step, kept ? done + 15 : step + 3, bytes, 0 };
            life[n++] = (struct rw_lifetime){ step, step + 1, unit / 3, 0 };
            if (replays && v) life[n++] = (struct rw_lifetime){ back + twice, done + 16, bytes, 0 };
            life[n++] = (struct rw_lifetime){ done + 14, done + 17, bytes, 0 };
        }
        step = (uint32_t)(l + 1) * per;
    }
    return n;
}

Test(place, random_lifetimes_never_overlap)
{
    for (int round = 0; round < 2000; round++) {
        struct rw_lifetime life[64];
        const size_t n = draw(64);
        for (size_t i = 0; i < n; i++) {
            const uint32_t first = (uint32_t)draw(40);
            life[i] = (struct rw_lifetime){ first, first + (uint32_t)draw(20), draw(5) ? draw(5000) : 0, 0 };
        }
        check(life, n);
    }
}

Test(place, training_steps_come_within_two_percent)
{
    static struct rw_lifetime life[8192];
    for (int layers = 2; layers <= 48; layers += layers < 12 ? 2 : 12)
        for (int replays = 0; replays < 2; replays++) {
            const double ratio = check(life, training_step(life, layers, replays));
            cr_assert_leq(ratio, 1.02, "%d layers%s: %.4f", layers, replays ? " with replays" : "", ratio);
        }
}

/* Compared with a model that has one byte per unit of address. */
static uint64_t slow_take(unsigned char *taken, uint64_t range, uint64_t bytes, bool low)
{
    uint64_t found = UINT64_MAX;
    for (uint64_t at = 0, run = 0; at < range; at++) {
        run = taken[at] ? 0 : run + 1;
        const bool ends = at + 1 == range || taken[at + 1];
        if (low && run == bytes) return at + 1 - bytes;
        if (!low && ends && run >= bytes) found = at + 1 - bytes;
    }
    return found;
}

Test(place, gaps_are_found_where_a_plain_search_finds_them)
{
    enum { RANGE = 300, MAX = 100 };
    struct rw_gaps g = { 0 };
    for (int round = 0; round < 200; round++) {
        unsigned char taken[RANGE + 1] = { 0 };
        uint64_t from[MAX], to[MAX];
        size_t n = 0;
        cr_assert(rw_gaps_reset(&g, RANGE));
        for (int turn = 0; turn < 400; turn++) {
            if (n < MAX && draw(2)) {
                const bool low = draw(2), fixed = draw(4) == 0;
                const uint64_t bytes = 1 + draw(draw(4) ? 4 : 60), place = draw(RANGE - bytes);
                uint64_t at = slow_take(taken, RANGE, bytes, low);
                if (fixed) {
                    bool is_free;
                    at = memchr(taken + place, 1, bytes) ? UINT64_MAX : place;
                    cr_assert(rw_gaps_take_at(&g, place, place + bytes, &is_free));
                    cr_assert_eq(is_free, at != UINT64_MAX);
                } else {
                    cr_assert_eq(rw_gaps_take(&g, bytes, low), at);
                }
                if (at == UINT64_MAX) continue;
                memset(taken + at, 1, bytes);
                from[n] = at;
                to[n++] = at + bytes;
            } else if (n) {
                const size_t i = draw(n);
                cr_assert(rw_gaps_give(&g, from[i], to[i]));
                memset(taken + from[i], 0, to[i] - from[i]);
                from[i] = from[--n];
                to[i] = to[n];
            }
        }
    }
    rw_gaps_finish(&g);
}

Test(place, the_walker_finds_an_overlap)
{
    struct rw_lifetime life[2] = { { 0, 5, 512, 0 }, { 5, 9, 512, 256 } };
    cr_assert_not(rw_place_is_valid(life, 2, 256, 1024));
    life[1].offset = 512;
    cr_assert(rw_place_is_valid(life, 2, 256, 1024));
    cr_assert_not(rw_place_is_valid(life, 2, 256, 768), "it ends above the arena");
    life[0].last = 4;
    life[1].offset = 0;
    cr_assert(rw_place_is_valid(life, 2, 256, 512), "one after the other");
}

/* More buffers than the quadratic heuristic accepts: the two-ended one must suffice alone. */
Test(place, very_deep_models_come_within_two_percent)
{
    static struct rw_lifetime life[16384];
    for (int replays = 0; replays < 2; replays++) {
        const size_t n = training_step(life, 400, replays);
        cr_assert_gt(n, 9000);
        const double ratio = check(life, n);
        cr_assert_leq(ratio, 1.02, "%zu buffers: %.4f", n, ratio);
    }
}

/* Random lifetimes: no heuristic is designed for these, but none may waste much. */
Test(place, lifetimes_without_order_stay_within_a_quarter)
{
    static struct rw_lifetime life[3000];
    for (size_t n = 10; n <= 3000; n *= 2) {
        for (size_t i = 0; i < n; i++) {
            const uint32_t first = (uint32_t)draw(n);
            const uint32_t steps = (uint32_t)draw(draw(4) ? 20 : n);
            life[i] = (struct rw_lifetime){ first, first + steps, draw(1u << (8 + draw(14))), 0 };
        }
        const double ratio = check(life, n);
        cr_assert_leq(ratio, 1.25, "%zu buffers: %.4f", n, ratio);
    }
}

/* The value of trying several heuristics: on the average over many sets of lifetimes, few and many buffers, a single
   one is worse. */
static double average(size_t n, int rounds)
{
    static struct rw_lifetime life[8192];
    double sum = 0;
    for (int round = 0; round < rounds; round++) {
        for (size_t i = 0; i < n; i++) {
            const uint32_t first = (uint32_t)draw(2 * n);
            life[i] = (struct rw_lifetime){ first, first + (uint32_t)draw(draw(3) ? 12 : n), 256 * (1 + draw(60)), 0 };
        }
        sum += check(life, n);
    }
    return sum / rounds;
}

Test(place, each_way_of_placing_earns_its_time)
{
    state = 12345;
    const double few = average(20, 300), some = average(400, 10), many = average(6500, 4);
    cr_expect_leq(few, 1.001, "%.5f", few);
    cr_expect_leq(some, 1.031, "%.5f", some);
    cr_expect_leq(many, 1.105, "%.5f", many);
}

/* Too many buffers for randomized orders: a stack that is built and removed again, with short-lived buffers in between.
   The capacities that are tried first are close to the bound. */
Test(place, a_stack_of_thousands_comes_within_two_percent)
{
    enum { N = 6500 };
    static struct rw_lifetime life[N];
    state = 12345;
    for (uint32_t i = 0; i < N; i++) {
        const bool brief = i % 4 || i > N / 2;
        const uint32_t last = brief ? i + (uint32_t)draw(4) : 2 * N - i;
        life[i] = (struct rw_lifetime){ i, last, 256 * (1 + draw(60)), 0 };
    }
    const double ratio = check(life, N);
    cr_assert_leq(ratio, 1.02, "%.4f", ratio);
}

Test(place, nothing_and_nothing_but_empty_buffers)
{
    struct rw_lifetime life[2] = { { 0, 3, 0, 77 }, { 1, 1, 0, 78 } };
    cr_assert_eq(check(life, 0), 1);
    cr_assert_eq(check(life, 2), 1);
    cr_assert_eq(life[0].offset, 0);
    cr_assert_eq(life[1].offset, 0);
}

Test(place, every_allocation_that_fails_is_reported)
{
    struct rw_lifetime life[200];
    for (size_t i = 0; i < 200; i++) {
        const uint32_t first = (uint32_t)draw(100);
        life[i] = (struct rw_lifetime){ first, first + (uint32_t)draw(30), 1 + draw(9000), 0 };
    }
    uint64_t size;
    const uint64_t before = rw_alloc_count();
    cr_assert_eq(rw_place(life, 200, 256, &size), RW_OK);
    const uint64_t n = rw_alloc_count() - before;
    for (uint64_t i = 1; i <= n; i++) {
        rw_alloc_fail_at(i);
        cr_assert_eq(rw_place(life, 200, 256, &size), RW_ERR_MEMORY, "allocation %d of %d", (int)i, (int)n);
        rw_alloc_fail_at(0);
    }
}

/* The work that placing n blocks takes; the placement must be valid. */
static uint64_t work_for(size_t n, bool scattered)
{
    struct rw_lifetime *const life = malloc(n * sizeof *life);
    for (size_t i = 0; i < n; i++) {
        const uint32_t first = scattered ? (uint32_t)draw(n) : (uint32_t)(i / 2);
        const uint32_t last = scattered ? first + (uint32_t)draw(n / 4) : i % 2 ? first + 3 : (uint32_t)(2 * n - first);
        life[i] = (struct rw_lifetime){ first, last, 256 * (1 + draw(8)), 0 };
    }
    uint64_t size;
    const uint64_t before = work_done();
    cr_assert_eq(rw_place(life, n, 256, &size), RW_OK);
    const uint64_t work = work_done() - before;
    cr_assert(rw_place_is_valid(life, n, 256, size));
    free(life);
    return work;
}

/* n log n would be 12 times, n squared 100 times. */
Test(place, ten_times_the_buffers_are_no_hundred_times_the_work)
{
    for (int scattered = 0; scattered < 2; scattered++) {
        const uint64_t small = work_for(20000, scattered), large = work_for(200000, scattered);
        cr_assert_gt(small, 20000);
        cr_assert_lt(large, 13 * small, "%llu, then %llu", (unsigned long long)small, (unsigned long long)large);
    }
}
