/* Digests by xxHash (https://xxhash.com): chunks in parallel, then a digest of the chunks' digests. */
#include "base/digest.h"

#include <string.h>
#include <xxhash.h>

#define CHUNK ((size_t)1 << 20)
#define MAX_GROUP 256

static struct rw_digest digest(const void *data, size_t bytes, struct rw_digest seed)
{
    const XXH128_hash_t h = XXH3_128bits_withSeed(data, bytes, seed.lo ^ seed.hi * 0x9e3779b97f4a7c15u);
    return (struct rw_digest){ h.low64, h.high64 };
}

struct rw_digest rw_digest_bytes(const void *data, size_t bytes, int threads)
{
    struct rw_digest sum = { 0 };
    if (bytes <= CHUNK) return bytes ? digest(data, bytes, sum) : sum;
    const char *const p = data;
    for (size_t group = 0; group < bytes; group += CHUNK * MAX_GROUP) {
        struct rw_digest parts[MAX_GROUP];
        const size_t rest = bytes - group;
        const int n = (int)(rest >= CHUNK * MAX_GROUP ? MAX_GROUP : (rest + CHUNK - 1) / CHUNK);
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int i = 0; i < n; i++) {
            const size_t at = (size_t)i * CHUNK;
            parts[i] = digest(p + group + at, rest - at < CHUNK ? rest - at : CHUNK, (struct rw_digest){ 0 });
        }
        sum = digest(parts, (size_t)n * sizeof *parts, sum);
    }
    return sum;
}
