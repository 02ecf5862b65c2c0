/* A hash of words in two lanes, for tables of costs and for comparing lines of a report. */
#ifndef RW_BASE_HASH_H
#define RW_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct rw_hash {
    uint64_t a, b;
};

static inline void rw_hash_mix(struct rw_hash *h, uint64_t x)
{
    h->a = (h->a ^ x) * 0x9e3779b97f4a7c15u;
    h->a ^= h->a >> 32;
    h->b = (h->b + x) * 0xd6e8feb86659fd93u;
    h->b ^= h->b >> 29;
}

static inline void rw_hash_mix_bytes(struct rw_hash *h, const void *data, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)data;
    uint64_t x;
    for (; bytes >= 8; p += 8, bytes -= 8) {
        memcpy(&x, p, 8);
        rw_hash_mix(h, x);
    }
    if (!bytes) return;
    x = 0;
    memcpy(&x, p, bytes);
    rw_hash_mix(h, x ^ (uint64_t)bytes << 56);
}

#endif
