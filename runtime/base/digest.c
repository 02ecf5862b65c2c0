/* Digests by xxHash (https://xxhash.com): of chunks in parallel, then of the chunks' digests. */
#include "base/digest.h"

#include "base/thread_team.h"

#include <string.h>
#include <xxhash.h>

#define CHUNK ((size_t)1 << 20)
#define MAX_GROUP 256

static struct rw_digest digest(const void *data, size_t bytes, struct rw_digest seed)
{
    const XXH128_hash_t h = XXH3_128bits_withSeed(data, bytes, seed.lo ^ seed.hi * 0x9e3779b97f4a7c15u);
    return (struct rw_digest){ h.low64, h.high64 };
}

/* Some chunks of a group. */
struct group {
    const char *data;
    size_t bytes;
    struct rw_digest parts[MAX_GROUP];
};

static void digest_chunks(void *of, int64_t first, int64_t end)
{
    struct group *const g = of;
    for (int64_t i = first; i < end; i++) {
        const size_t at = (size_t)i * CHUNK, rest = g->bytes - at;
        g->parts[i] = digest(g->data + at, rest < CHUNK ? rest : CHUNK, (struct rw_digest){ 0 });
    }
}

struct rw_digest rw_digest_bytes(const void *data, size_t bytes, int threads)
{
    struct rw_digest sum = { 0 };
    if (bytes <= CHUNK) return bytes ? digest(data, bytes, sum) : sum;
    const char *const p = data;
    for (size_t group = 0; group < bytes; group += CHUNK * MAX_GROUP) {
        struct group g = { .data = p + group, .bytes = bytes - group };
        const int n = (int)(g.bytes >= CHUNK * MAX_GROUP ? MAX_GROUP : (g.bytes + CHUNK - 1) / CHUNK);
        rw_team_for(threads, n, digest_chunks, &g);
        sum = digest(g.parts, (size_t)n * sizeof *g.parts, sum);
    }
    return sum;
}
