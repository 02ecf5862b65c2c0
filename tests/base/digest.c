/*
 * Digests of a device's memory: they differ if any byte differs and for bytes in another order, and are the same for
 * every number of threads and every start address.
 */
#include "support/support.h"

#include "device/device.h"
#include "record/context.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static struct fixture b;
static struct rw_digest *digests; /* on the device */
static unsigned char *room;

enum { ROOM = 1 << 21 };

static void open_device(void)
{
    b = fixture_open(1, 3);
    digests = b.ctx->device->alloc(b.ctx->device_state, sizeof *digests);
    room = b.ctx->device->alloc(b.ctx->device_state, ROOM);
    cr_assert(digests && room);
}

static void close_device(void)
{
    b.ctx->device->free(b.ctx->device_state, digests);
    b.ctx->device->free(b.ctx->device_state, room);
    fixture_close(&b);
}

TestSuite(digest, .init = open_device, .fini = close_device);

static struct rw_digest digest_of(const unsigned char *data, size_t n, size_t offset, int threads)
{
    const struct rw_device_fns *const device = b.ctx->device;
    struct rw_digest d;
    if (n) cr_assert_eq(device->upload(b.ctx->device_state, room + offset, data, n), RW_OK);
    cr_assert_eq(device->digest(b.ctx->device_state, room + offset, n, threads, digests), RW_OK);
    cr_assert_eq(device->download(b.ctx->device_state, &d, digests, sizeof d), RW_OK);
    return d;
}

static unsigned char *bytes_of(size_t n)
{
    unsigned char *const data = malloc(n + 1);
    for (size_t i = 0; i < n; i++) data[i] = (unsigned char)((uint32_t)i * 2654435761u >> 13);
    return data;
}

static void expect_another(unsigned char *data, size_t n, size_t at)
{
    const struct rw_digest d = digest_of(data, n, 0, 2);
    data[at] ^= 4;
    cr_assert_not(rw_digest_equal(d, digest_of(data, n, 0, 2)), "byte %zu of %zu", at, n);
    data[at] ^= 4;
}

Test(digest, sees_every_byte_of_short_ranges)
{
    for (size_t n = 1; n <= 40; n++) {
        unsigned char *const data = bytes_of(n);
        for (size_t at = 0; at < n; at++) expect_another(data, n, at);
        free(data);
    }
}

/* Bytes at the boundaries of the pieces that threads and blocks take, powers of two up to a chunk's MiB; and at the
   end. */
Test(digest, sees_the_ends_of_what_it_is_cut_into)
{
    const size_t n = (size_t)(1 << 20) + 64 * 1024 + 13;
    unsigned char *const data = bytes_of(n);
    for (size_t cut = 64; cut < n; cut *= 4) {
        expect_another(data, n, cut - 1);
        expect_another(data, n, cut);
    }
    expect_another(data, n, 1 << 20);
    for (size_t back = 1; back <= 16; back++) expect_another(data, n, n - back);
    free(data);
}

Test(digest, depends_neither_on_threads_nor_on_where_bytes_begin)
{
    const size_t n = (size_t)(1 << 20) + 4099;
    unsigned char *const data = bytes_of(n);
    const struct rw_digest d = digest_of(data, n, 0, 1);
    for (int threads = 2; threads < 6; threads++) cr_assert(rw_digest_equal(d, digest_of(data, n, 0, threads)));
    for (size_t offset = 1; offset < 9; offset += 3) cr_assert(rw_digest_equal(d, digest_of(data, n, offset, 2)));
    free(data);
}

/* Exchanged words, blocks and chunks. */
Test(digest, depends_on_the_order)
{
    const size_t n = (size_t)2 << 20;
    unsigned char *const data = bytes_of(n), *const kept = malloc(n);
    const struct rw_digest d = digest_of(data, n, 0, 2);
    for (size_t size = 8; size <= n / 2; size *= 8) {
        memcpy(kept, data, size);
        memmove(data, data + size, size);
        memcpy(data + size, kept, size);
        cr_assert(memcmp(data, kept, size), "pieces of %zu are equal", size);
        cr_assert_not(rw_digest_equal(d, digest_of(data, n, 0, 2)), "pieces of %zu", size);
        memcpy(data + size, data, size);
        memcpy(data, kept, size);
    }
    cr_assert(rw_digest_equal(d, digest_of(data, n, 0, 2)));
    free(data);
    free(kept);
}

/* On the CPU chunks are digested in groups of 256 MiB. */
Test(digest, sees_bytes_after_the_first_group)
{
    NEEDS_HOST_MEMORY();
    const size_t group = (size_t)256 << 20, n = group + ((size_t)1 << 20) + 5;
    unsigned char *const data = calloc(n, 1);
    const struct rw_digest d = rw_digest_bytes(data, n, 2);
    const size_t places[] = { 0, group - 1, group, group + 1, n - 6, n - 5, n - 1 };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        data[places[i]] ^= 1;
        cr_assert_not(rw_digest_equal(d, rw_digest_bytes(data, n, 2)), "byte %zu", places[i]);
        data[places[i]] ^= 1;
    }
    free(data);
}
