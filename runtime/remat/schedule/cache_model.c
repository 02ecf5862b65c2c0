/*
 * Least-recently-used list of the memories in the caches, with bytes per memory. Source: Mattson, Gecsei, Slutz and
 * Traiger (1970), cited in cache_model.h.
 */
#include "remat/schedule/cache_model.h"

#include "base/alloc.h"
#include "record/node.h"

#include <string.h>

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void take_out(struct rw_cache_model *x, uint32_t m)
{
    const struct rw_cached *const c = &x->of[m];
    if (c->newer == RW_NONE_ID) x->newest = c->older;
    else x->of[c->newer].older = c->older;
    if (c->older == RW_NONE_ID) x->oldest = c->newer;
    else x->of[c->older].newer = c->newer;
}

static void put_in_front(struct rw_cache_model *x, uint32_t m)
{
    x->of[m].newer = RW_NONE_ID;
    x->of[m].older = x->newest;
    if (x->newest == RW_NONE_ID) x->oldest = m;
    else x->of[x->newest].newer = m;
    x->newest = m;
}

/* Evicts at most that many bytes of a memory; returns how many. */
static uint64_t give_up(struct rw_cache_model *x, uint32_t m, uint64_t most)
{
    struct rw_cached *const c = &x->of[m];
    const uint64_t bytes = least(most, c->bytes);
    if (bytes && bytes == c->bytes) take_out(x, m);
    c->bytes -= bytes;
    return bytes;
}

rw_status rw_cache_model_begin(struct rw_cache_model *x, size_t n, uint64_t near_bytes)
{
    const uint32_t before = (uint32_t)n;
    if (!rw_grow(&x->of, &x->cap, 0, n + 1, sizeof *x->of)) return RW_ERR_MEMORY;
    memset(x->of, 0, (n + 1) * sizeof *x->of);
    x->n = n;
    x->newest = x->oldest = RW_NONE_ID;
    x->dead = before;
    x->of[before] = (struct rw_cached){ .bytes = near_bytes, .below = RW_NONE_ID };
    if (near_bytes) put_in_front(x, before);
    return RW_OK;
}

void rw_cache_model_finish(struct rw_cache_model *x)
{
    rw_free(x->of);
    *x = (struct rw_cache_model){ 0 };
}

/* First write of that many bytes, in the place of dead memories. Bytes that those do not have are misses. */
static struct rw_fetched take_over(struct rw_cache_model *x, uint64_t bytes)
{
    struct rw_fetched ret = { .far = bytes };
    while (ret.far && x->dead != RW_NONE_ID) {
        const uint64_t there = give_up(x, x->dead, ret.far);
        ret.far -= there;
        if (x->of[x->dead].shared) ret.shared += there;
        if (ret.far) x->dead = x->of[x->dead].below;
    }
    return ret;
}

/* Misses of a use of a memory of which `missing` bytes are not cached. */
static struct rw_fetched fetch(struct rw_cache_model *x, const struct rw_cached *c, uint64_t missing, enum rw_use use)
{
    if (!c->used && use == RW_USE_WRITE) return take_over(x, missing);
    if (!c->used && use == RW_USE_BESIDE) missing -= give_up(x, (uint32_t)x->n, missing);
    return (struct rw_fetched){ missing, c->shared && use == RW_USE_WRITE ? c->bytes : 0 };
}

/* Counts the misses, evicts as many bytes from the other end, and moves the memory to the front. */
struct rw_fetched rw_cache_model_use(struct rw_cache_model *x, uint32_t memory, uint64_t bytes, enum rw_use use)
{
    struct rw_cached *const c = &x->of[memory];
    const uint64_t missing = bytes > c->bytes ? bytes - c->bytes : 0;
    const struct rw_fetched ret = fetch(x, c, missing, use);
    const uint64_t far = ret.far;
    uint64_t room = 0;
    c->shared = use == RW_USE_ACROSS || (c->shared && use != RW_USE_WRITE);
    if (!missing && x->newest == memory) return ret; /* the common case: an op reads the output of the op before it */
    if (c->bytes) take_out(x, memory);
    while (room < far && x->oldest != RW_NONE_ID) room += give_up(x, x->oldest, far - room);
    c->used = true;
    c->bytes += missing - (far - room);
    if (c->bytes) put_in_front(x, memory);
    return ret;
}

void rw_cache_model_die(struct rw_cache_model *x, uint32_t memory)
{
    if (x->of[memory].dead || !x->of[memory].bytes) return;
    x->of[memory].dead = true;
    x->of[memory].below = x->dead;
    x->dead = memory;
}
