/* Checksums of file pieces: a hash table by position, and the limit on their time. */
#include "device/file_checksums.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <string.h>
#include <xxhash.h>

#define SHARE 0.02
#define ALWAYS ((uint64_t)16 << 20)

void rw_checksums_init(struct rw_checksums *c)
{
    *c = (struct rw_checksums){ .size = 0 };
    pthread_mutex_init(&c->mutex, NULL);
}

void rw_checksums_finish(struct rw_checksums *c)
{
    pthread_mutex_destroy(&c->mutex);
    rw_free(c->table);
}

/* ---- the table, with the mutex held ---- */

/* The entry of a position, or the free entry for it. */
static struct rw_checksum *place_of(const struct rw_checksums *c, uint64_t at)
{
    size_t i = (size_t)((at >> 9) * 0x9e3779b97f4a7c15u >> 20) & (c->size - 1);
    while (c->table[i].bytes && c->table[i].at != at) i = (i + 1) & (c->size - 1);
    return &c->table[i];
}

static bool grow(struct rw_checksums *c)
{
    struct rw_checksums larger = { .size = c->size ? 2 * c->size : 64 };
    larger.table = rw_calloc(larger.size, sizeof *larger.table);
    if (!larger.table) return false;
    for (size_t i = 0; i < c->size; i++)
        if (c->table[i].bytes) *place_of(&larger, c->table[i].at) = c->table[i];
    rw_free(c->table);
    c->table = larger.table;
    c->size = larger.size;
    return true;
}

/* Stores a checksum. Without memory nothing is known about that position. */
static void set(struct rw_checksums *c, const struct rw_checksum *one)
{
    if (2 * (c->n + 1) > c->size && !grow(c)) {
        if (c->size && place_of(c, one->at)->bytes) *place_of(c, one->at) = *one;
        return;
    }
    struct rw_checksum *const place = place_of(c, one->at);
    c->n += !place->bytes;
    *place = *one;
}

/* Marks a position as unknown. SIZE_MAX bytes are never read, so the entry stays in use and never matches. */
static void forget(struct rw_checksums *c, uint64_t at)
{
    struct rw_checksum *const place = c->size ? place_of(c, at) : NULL;
    if (place && place->bytes) place->bytes = SIZE_MAX;
}

/* ---- checksums ---- */

static uint64_t sum_of(struct rw_checksums *c, const void *bytes, size_t n)
{
    const double begin = rw_now_s();
    const uint64_t sum = XXH3_64bits(bytes, n);
    const double took = rw_now_s() - begin;
    pthread_mutex_lock(&c->mutex);
    c->summing_s += took;
    pthread_mutex_unlock(&c->mutex);
    return sum;
}

void rw_checksums_add_time(struct rw_checksums *c, size_t bytes, double seconds)
{
    pthread_mutex_lock(&c->mutex);
    c->copying_s += seconds;
    c->copied += bytes;
    pthread_mutex_unlock(&c->mutex);
}

void rw_checksums_note(struct rw_checksums *c, const void *bytes, size_t n, uint64_t at)
{
    pthread_mutex_lock(&c->mutex);
    const bool affordable = c->copied < ALWAYS || c->summing_s <= SHARE * c->copying_s;
    if (!affordable) forget(c, at);
    pthread_mutex_unlock(&c->mutex);
    if (!affordable || !n) return;
    const struct rw_checksum one = { at, sum_of(c, bytes, n), n };
    pthread_mutex_lock(&c->mutex);
    set(c, &one);
    pthread_mutex_unlock(&c->mutex);
}

bool rw_checksums_match(struct rw_checksums *c, const void *bytes, size_t n, uint64_t at)
{
    pthread_mutex_lock(&c->mutex);
    const struct rw_checksum known = c->size ? *place_of(c, at) : (struct rw_checksum){ 0 };
    pthread_mutex_unlock(&c->mutex);
    return known.bytes != n || sum_of(c, bytes, n) == known.sum;
}
