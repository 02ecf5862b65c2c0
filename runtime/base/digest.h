/* 128-bit digests of byte ranges, which the verifier compares instead of keeping every value. */
#ifndef RW_BASE_DIGEST_H
#define RW_BASE_DIGEST_H

#include <rewind/op.h>

struct rw_digest {
    uint64_t lo, hi;
};

/* XXH3-128 over fixed chunks, so that the digest does not depend on the number of threads. */
struct rw_digest rw_digest_bytes(const void *data, size_t bytes, int threads);

static inline bool rw_digest_equal(struct rw_digest a, struct rw_digest b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

#endif
