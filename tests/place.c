/* Placement: no two live buffers overlap, near the lower bound on what training steps look like, the same twice, n log n. */
#include "memory/place.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t state = 1;

static uint64_t draw(uint64_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % n;
}

static double check(struct rw_life *life, size_t n)
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

/* Kept values of a few sizes per layer, transients, and replays: a step under full recompute when `replays`. */
static size_t training_step(struct rw_life *life, int layers, bool replays)
{
    static const uint64_t sizes[] = { 1, 1, 3, 1, 1, 1, 4, 4 }; /* of the values of a block, in block inputs */
    const uint64_t unit = 65536 + 256 * draw(64);
    size_t n = 0;
    uint32_t step = 0;
    const uint32_t per = 20, end = (uint32_t)layers * per;
    for (int l = 0; l < layers; l++) {
        const uint32_t back = end + (uint32_t)(layers - 1 - l) * 2 * per;
        for (int v = 0; v < 8; v++, step += 2) {
            const bool kept = !replays || v == 0;
            life[n++] = (struct rw_life){ step, kept ? back + per + 15 - 2 * (uint32_t)v : step + 3, sizes[v] * unit, 0 };
            life[n++] = (struct rw_life){ step, step + 1, unit / 3, 0 };
            if (replays && v) life[n++] = (struct rw_life){ back + 2 * (uint32_t)v, back + per + 16 - 2 * (uint32_t)v, sizes[v] * unit, 0 };
            life[n++] = (struct rw_life){ back + per + 14 - 2 * (uint32_t)v, back + per + 17 - 2 * (uint32_t)v, sizes[v] * unit, 0 };
        }
        step = (uint32_t)(l + 1) * per;
    }
    return n;
}

Test(place, random_lives_never_overlap)
{
    for (int round = 0; round < 2000; round++) {
        struct rw_life life[64];
        const size_t n = draw(64);
        for (size_t i = 0; i < n; i++) {
            const uint32_t first = (uint32_t)draw(40);
            life[i] = (struct rw_life){ first, first + (uint32_t)draw(20), draw(5) ? draw(5000) : 0, 0 };
        }
        check(life, n);
    }
}

Test(place, training_steps_come_within_two_percent)
{
    static struct rw_life life[8192];
    for (int layers = 2; layers <= 48; layers += layers < 12 ? 2 : 12)
        for (int replays = 0; replays < 2; replays++) {
            const double ratio = check(life, training_step(life, layers, replays));
            cr_assert_leq(ratio, 1.02, "%d layers%s: %.4f", layers, replays ? " with replays" : "", ratio);
        }
}

Test(place, the_walker_finds_an_overlap)
{
    struct rw_life life[2] = { { 0, 5, 512, 0 }, { 5, 9, 512, 256 } };
    cr_assert_not(rw_place_is_valid(life, 2, 256, 1024));
    life[1].offset = 512;
    cr_assert(rw_place_is_valid(life, 2, 256, 1024));
    cr_assert_not(rw_place_is_valid(life, 2, 256, 768), "it ends above the arena");
    life[0].last = 4;
    life[1].offset = 0;
    cr_assert(rw_place_is_valid(life, 2, 256, 512), "one after the other");
}

static double seconds_for(size_t n)
{
    struct rw_life *const life = malloc(n * sizeof *life);
    for (size_t i = 0; i < n; i++) {
        const uint32_t first = (uint32_t)(i / 2);
        life[i] = (struct rw_life){ first, i % 2 ? first + 3 : (uint32_t)(2 * n - first), 256 * (1 + draw(8)), 0 };
    }
    struct timespec a, b;
    uint64_t size;
    clock_gettime(CLOCK_MONOTONIC, &a);
    cr_assert_eq(rw_place(life, n, 256, &size), RW_OK);
    clock_gettime(CLOCK_MONOTONIC, &b);
    cr_assert(rw_place_is_valid(life, n, 256, size));
    free(life);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

Test(place, ten_times_the_buffers_take_no_hundred_times_as_long)
{
    const double small = seconds_for(20000), large = seconds_for(200000);
    cr_assert_lt(large, 40 * small + 0.05, "%g s, then %g s", small, large);
}
