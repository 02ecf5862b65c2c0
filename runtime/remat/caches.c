/* See caches.h. */
#include "remat/caches.h"

#include "base/alloc.h"
#include "record/node.h"

#include <string.h>

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void take_out(struct rw_caches *x, uint32_t m)
{
    const struct rw_cached *const c = &x->of[m];
    if (c->newer == RW_NONE_ID) x->newest = c->older;
    else x->of[c->newer].older = c->older;
    if (c->older == RW_NONE_ID) x->oldest = c->newer;
    else x->of[c->older].newer = c->newer;
}

static void put_in_front(struct rw_caches *x, uint32_t m)
{
    x->of[m].newer = RW_NONE_ID;
    x->of[m].older = x->newest;
    if (x->newest == RW_NONE_ID) x->oldest = m;
    else x->of[x->newest].newer = m;
    x->newest = m;
}

/* At most so many bytes of what is there; returns how many. */
static uint64_t give_up(struct rw_caches *x, uint32_t m, uint64_t most)
{
    struct rw_cached *const c = &x->of[m];
    const uint64_t bytes = least(most, c->bytes);
    if (bytes && bytes == c->bytes) take_out(x, m);
    c->bytes -= bytes;
    return bytes;
}

rw_status rw_caches_begin(struct rw_caches *x, size_t n, uint64_t near_bytes)
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

void rw_caches_finish(struct rw_caches *x)
{
    rw_free(x->of);
    *x = (struct rw_caches){ 0 };
}

/* So many bytes that are written for the first time, from what nobody uses any more: far is what that does not have. */
static struct rw_fetched take_over(struct rw_caches *x, uint64_t bytes)
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

/* Of what the caches have all but those that are missing. */
static struct rw_fetched fetch(struct rw_caches *x, const struct rw_cached *c, uint64_t missing, enum rw_use use)
{
    if (!c->used && use == RW_USE_WRITE) return take_over(x, missing);
    if (!c->used && use == RW_USE_BESIDE) missing -= give_up(x, (uint32_t)x->n, missing);
    return (struct rw_fetched){ missing, c->shared && use == RW_USE_WRITE ? c->bytes : 0 };
}

struct rw_fetched rw_caches_use(struct rw_caches *x, uint32_t memory, uint64_t bytes, enum rw_use use)
{
    struct rw_cached *const c = &x->of[memory];
    const uint64_t missing = bytes > c->bytes ? bytes - c->bytes : 0;
    const struct rw_fetched ret = fetch(x, c, missing, use);
    const uint64_t far = ret.far;
    uint64_t room = 0;
    c->shared = use == RW_USE_ACROSS || (c->shared && use != RW_USE_WRITE);
    if (!missing && x->newest == memory) return ret; /* as an op finds what the one before it made */
    if (c->bytes) take_out(x, memory);
    while (room < far && x->oldest != RW_NONE_ID) room += give_up(x, x->oldest, far - room);
    c->used = true;
    c->bytes += missing - (far - room);
    if (c->bytes) put_in_front(x, memory);
    return ret;
}

void rw_caches_die(struct rw_caches *x, uint32_t memory)
{
    if (x->of[memory].dead || !x->of[memory].bytes) return;
    x->of[memory].dead = true;
    x->of[memory].below = x->dead;
    x->dead = memory;
}
