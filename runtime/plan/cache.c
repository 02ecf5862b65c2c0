/* The plan cache: a few dozen entries, searched in order, the least recently used one replaced. */
#include "plan/plan.h"
#include "plan/cache.h"

rw_plan *rw_plan_cache_find(struct rw_plan_cache *cache, struct rw_plan_key key)
{
    for (size_t i = 0; i < cache->n; i++) {
        struct rw_plan_entry *const e = &cache->entries[i];
        if (e->key.a != key.a || e->key.b != key.b) continue;
        e->used = ++cache->clock;
        cache->hits++;
        return e->plan;
    }
    cache->misses++;
    return NULL;
}

static struct rw_plan_entry *oldest(struct rw_plan_cache *cache)
{
    struct rw_plan_entry *e = &cache->entries[0];
    for (size_t i = 1; i < cache->n; i++)
        if (cache->entries[i].used < e->used) e = &cache->entries[i];
    return e;
}

void rw_plan_cache_add(struct rw_plan_cache *cache, struct rw_plan_key key, rw_plan *plan)
{
    struct rw_plan_entry *e;
    if (cache->n < RW_PLAN_CACHE_SIZE) {
        e = &cache->entries[cache->n++];
    } else {
        e = oldest(cache);
        rw_plan_release(e->plan);
    }
    *e = (struct rw_plan_entry){ .key = key, .plan = plan, .used = ++cache->clock };
}

void rw_plan_cache_finish(struct rw_plan_cache *cache)
{
    for (size_t i = 0; i < cache->n; i++) rw_plan_release(cache->entries[i].plan);
    cache->n = 0;
}

size_t rw_plan_cache_bytes(const struct rw_plan_cache *cache)
{
    size_t bytes = 0;
    for (size_t i = 0; i < cache->n; i++) bytes += rw_plan_bytes(cache->entries[i].plan);
    return bytes;
}
