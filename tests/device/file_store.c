/*
 * A device's file store in isolation: values of any length are copied out and in, more of them than are queued at a
 * time; a failure is reported to waits for that copy or later ones, and not to waits for earlier ones.
 */
#include "run/offload_folder_fixture.h"

#include "device/file_checksums.h"
#include "record/context.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096
#define PIECE ((size_t)4 << 20)

TestSuite(file_store, .init = make_folder, .fini = remove_folder);

/* Memory of the device, as large as the store. */
struct desk {
    struct fixture b;
    const struct rw_device_fns *device;
    const struct rw_store_fns *fns;
    void *state, *store;
    char *memory;
    struct rw_events *events;
    size_t bytes;
};

static struct desk desk_open(size_t bytes, size_t n_events)
{
    struct desk d = { .b = fixture_open(3, 1), .bytes = bytes };
    d.device = d.b.ctx->device;
    d.fns = d.device->file_store;
    d.state = d.b.ctx->device_state;
    cr_assert_eq(d.fns->open(d.state, folder, bytes, &d.store), RW_OK);
    d.memory = d.device->alloc(d.state, bytes);
    d.events = d.device->make_events(d.state, n_events);
    cr_assert(d.memory && d.events);
    return d;
}

static void desk_close(struct desk *d)
{
    d->device->finish(d->state);
    d->fns->close(d->state, d->store);
    d->device->free_events(d->state, d->events);
    d->device->free(d->state, d->memory);
    fixture_close(&d->b);
}

static unsigned char *pattern(size_t bytes)
{
    unsigned char *const p = malloc(bytes);
    uint32_t x = 1;
    for (size_t i = 0; i < bytes; i++) p[i] = (unsigned char)((x = x * 1664525u + 1013904223u) >> 24);
    return p;
}

static void fill(struct desk *d, const unsigned char *with)
{
    cr_assert_eq(d->device->upload(d->state, d->memory, with, d->bytes), RW_OK);
}

/* After the work queued on compute so far; event `mark` is compute's, mark + 1 the copy's. */
static void put(struct desk *d, size_t mark, size_t at, size_t bytes)
{
    cr_assert_eq(d->device->signal(d->state, RW_LANE_COMPUTE, d->events, mark), RW_OK);
    cr_assert_eq(d->device->wait(d->state, RW_LANE_OUT, d->events, mark), RW_OK);
    cr_assert_eq(d->fns->put(d->state, RW_LANE_OUT, d->store, at, d->memory + at, bytes), RW_OK);
    cr_assert_eq(d->device->signal(d->state, RW_LANE_OUT, d->events, mark + 1), RW_OK);
}

static void get(struct desk *d, size_t mark, size_t at, size_t bytes)
{
    cr_assert_eq(d->device->signal(d->state, RW_LANE_COMPUTE, d->events, mark), RW_OK);
    cr_assert_eq(d->device->wait(d->state, RW_LANE_IN, d->events, mark), RW_OK);
    cr_assert_eq(d->fns->get(d->state, RW_LANE_IN, d->memory + at, d->store, at, bytes), RW_OK);
    cr_assert_eq(d->device->signal(d->state, RW_LANE_IN, d->events, mark + 1), RW_OK);
}

static rw_status await(struct desk *d, size_t mark)
{
    return d->device->wait(d->state, RW_LANE_COMPUTE, d->events, mark + 1);
}

static void expect_memory(struct desk *d, const unsigned char *want, size_t at, size_t bytes)
{
    unsigned char *const got = malloc(bytes + 1);
    cr_assert_eq(d->device->download(d->state, got, d->memory + at, bytes), RW_OK);
    cr_assert_eq(first_difference(got, want + at, bytes), -1, "%zu bytes at %zu: byte %ld", bytes, at,
                 first_difference(got, want + at, bytes));
    free(got);
}

Test(file_store, values_of_any_length_come_back)
{
    static const size_t lengths[] = { 1, PAGE - 1, PAGE, PAGE + 1, PIECE - 1, 2 * PIECE + 3, PIECE, 3, PIECE + PAGE };
    enum { N = sizeof lengths / sizeof *lengths };
    size_t at[N + 1] = { 0 };
    for (int i = 0; i < N; i++) at[i + 1] = at[i] + (lengths[i] + PAGE - 1) / PAGE * PAGE;
    struct desk d = desk_open(at[N], 4 * N);
    unsigned char *const want = pattern(at[N]);
    for (int round = 0; round < 3; round++) {
        plant.delay = round * 200;
        plant.refuses_direct = round == 2;
        want[round]++;
        fill(&d, want);
        for (size_t i = 0; i < N; i++) put(&d, 2 * i, at[i], lengths[i]);
        for (size_t i = 0; i < N; i++) cr_assert_eq(await(&d, 2 * i), RW_OK);
        cr_assert_eq(d.device->clear(d.state, d.memory, at[N]), RW_OK);
        for (size_t i = N; i-- > 0;) get(&d, 2 * N + 2 * i, at[i], lengths[i]);
        for (size_t i = 0; i < N; i++) {
            cr_assert_eq(await(&d, 2 * N + 2 * i), RW_OK);
            expect_memory(&d, want, at[i], lengths[i]);
        }
        cr_assert_eq(d.device->finish(d.state), RW_OK);
    }
    free(want);
    desk_close(&d);
}

/* Only the store's own lanes wait: the copy in for the copy out, and the copy out for nothing. */
Test(file_store, a_value_comes_back_while_it_goes_out)
{
    struct desk d = desk_open(3 * PIECE, 8);
    unsigned char *const want = pattern(3 * PIECE);
    for (int round = 0; round < 3; round++) {
        plant.delay = round * 500;
        want[round]++;
        fill(&d, want);
        put(&d, 0, 0, 3 * PIECE - 5);
        cr_assert_eq(d.device->wait(d.state, RW_LANE_IN, d.events, 1), RW_OK);
        get(&d, 2, 0, 3 * PIECE - 5);
        cr_assert_eq(await(&d, 2), RW_OK);
        expect_memory(&d, want, 0, 3 * PIECE - 5);
    }
    free(want);
    desk_close(&d);
}

Test(file_store, more_copies_than_are_queued_at_a_time)
{
    enum { N = 2500, SLOTS = 50 };
    struct desk d = desk_open(SLOTS * PAGE, 4);
    unsigned char *const want = pattern(SLOTS * PAGE);
    fill(&d, want);
    for (size_t i = 0; i < N; i++) put(&d, 0, i % SLOTS * PAGE, PAGE - i % 7);
    cr_assert_eq(await(&d, 0), RW_OK);
    cr_assert_eq(plant.writes, N);
    cr_assert_eq(d.device->clear(d.state, d.memory, SLOTS * PAGE), RW_OK);
    for (size_t i = 0; i < N; i++) get(&d, 2, i % SLOTS * PAGE, PAGE - i % 7);
    cr_assert_eq(await(&d, 2), RW_OK);
    for (size_t i = 0; i < SLOTS; i++) expect_memory(&d, want, i * PAGE, PAGE - 6);
    free(want);
    desk_close(&d);
}

Test(file_store, a_failure_is_reported_to_its_waiter)
{
    enum { N = 6 };
    struct desk d = desk_open(N * PAGE, 2 * N);
    unsigned char *const want = pattern(N * PAGE);
    char text[RW_MESSAGE_MAX];
    for (int out = 0; out < 2; out++)
        for (int nth = 0; nth < N; nth++) {
            fill(&d, want);
            for (size_t i = 0; i < N; i++) put(&d, 2 * i, i * PAGE, PAGE);
            cr_assert_eq(d.device->finish(d.state), RW_OK);
            plant = (struct plant){ .error = EIO };
            *(out ? &plant.fail_write : &plant.fail_read) = 1 + nth;
            for (size_t i = 0; i < N; i++) (out ? put : get)(&d, 2 * i, i * PAGE, PAGE);
            for (int k = 0; k < 2 * N; k++) {
                const int i = nth % 2 ? k % N : (2 * N - 1 - k) % N; /* some already have the error of a later copy */
                cr_assert_eq(await(&d, 2 * (size_t)i), i < nth ? RW_OK : RW_ERR_IO, "copy %d of %d", i, nth);
                d.device->take_message(d.state, text, sizeof text);
                cr_assert_eq(strstr(text, out ? "could not be written" : "could not be read") != NULL, i >= nth, "%s",
                             text);
                cr_assert(i < nth || strstr(text, folder));
            }
            cr_assert_eq(out ? plant.writes : plant.reads, nth + 1, "nothing is copied after it");
            cr_assert_eq(d.device->finish(d.state), RW_OK, "it was told");
            for (size_t i = 0; i < N; i++) get(&d, 2 * i, i * PAGE, PAGE);
            cr_assert_eq(d.device->finish(d.state), RW_OK, "and is forgotten");
            expect_memory(&d, want, 0, N * PAGE);
        }
    free(want);
    desk_close(&d);
}

Test(file_store, a_failure_without_a_waiter_is_reported_at_the_end)
{
    struct desk d = desk_open(PAGE, 2);
    char text[RW_MESSAGE_MAX];
    plant = (struct plant){ .error = ENOSPC, .fail_write = 1 };
    put(&d, 0, 0, PAGE);
    cr_assert_eq(d.device->finish(d.state), RW_ERR_IO);
    d.device->take_message(d.state, text, sizeof text);
    cr_assert(strstr(text, strerror(ENOSPC)), "%s", text);
    cr_assert_eq(d.device->finish(d.state), RW_OK);
    desk_close(&d);
}

Test(file_store, its_speed_is_measured)
{
    struct desk d = desk_open(PAGE, 2);
    struct rw_store_rate rate = { 0 };
    cr_assert_eq(d.fns->measure(d.state, folder, 2, &rate), RW_OK);
    cr_assert(rate.out > 1e5 && rate.in > 1e5);
    cr_assert(rate.loss >= 0 && rate.loss < 1e-6);
    struct rw_store_rate beside = { 0 };
    cpu_set_t cores;
    cr_assert_eq(sched_getaffinity(0, sizeof cores, &cores), 0);
    cr_assert_eq(d.fns->measure(d.state, folder, CPU_COUNT(&cores), &beside), RW_OK);
    cr_assert_eq(beside.loss > 0, d.device->on_host, "all cores compute");
    plant = (struct plant){ .error = EIO, .fail_write = 2 };
    cr_assert_eq(d.fns->measure(d.state, folder, 1, &rate), RW_ERR_IO);
    desk_close(&d);
}

/* ---- checksums ---- */

/* The first 16 MiB always have one; later ones take at most a fiftieth of the copies' time. A piece written without one
   is not compared with that of an older piece. */
Test(file_store, checksums_take_a_fiftieth_of_the_copies_time)
{
    struct rw_checksums c;
    unsigned char piece[512] = { 1 };
    rw_checksums_init(&c);
    for (uint64_t at = 0; at < 4096 * 512; at += 512) {
        piece[3] = (unsigned char)(at >> 9);
        piece[4] = (unsigned char)(at >> 17);
        rw_checksums_note(&c, piece, sizeof piece, at);
    }
    for (uint64_t at = 0; at < 4096 * 512; at += 512) {
        piece[3] = (unsigned char)(at >> 9);
        piece[4] = (unsigned char)(at >> 17);
        cr_expect(rw_checksums_match(&c, piece, sizeof piece, at));
        piece[511] ^= 1;
        cr_expect_not(rw_checksums_match(&c, piece, sizeof piece, at));
        cr_expect(rw_checksums_match(&c, piece, 256, at), "another piece is none that is known");
        piece[511] ^= 1;
    }
    rw_checksums_add_time(&c, 16 << 20, 0);
    cr_expect_gt(c.summing_s, 0);
    piece[0] = 9;
    rw_checksums_note(&c, piece, sizeof piece, 512);
    cr_expect(rw_checksums_match(&c, piece, sizeof piece, 512), "nothing is known of it");
    rw_checksums_add_time(&c, 0, 1000);
    rw_checksums_note(&c, piece, sizeof piece, 512);
    cr_expect(rw_checksums_match(&c, piece, sizeof piece, 512));
    piece[0] = 8;
    cr_expect_not(rw_checksums_match(&c, piece, sizeof piece, 512));
    rw_checksums_finish(&c);
}
