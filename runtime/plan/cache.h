/* Plans by the structure of what they run. A training loop pays for planning once. */
#ifndef RW_PLAN_CACHE_H
#define RW_PLAN_CACHE_H

#include "plan/build.h"

#define RW_PLAN_CACHE_SIZE 32

struct rw_plan_cache {
    struct rw_plan_entry {
        struct rw_plan_key key;
        rw_plan *plan;
        uint64_t used; /* the least recently used one makes room */
    } entries[RW_PLAN_CACHE_SIZE];
    size_t n;
    uint64_t clock;
    uint64_t serial;
    uint64_t hits, misses;
};

/* The plan of that key, or NULL. The cache keeps its reference. */
rw_plan *rw_plan_cache_find(struct rw_plan_cache *cache, struct rw_plan_key key);

/* Takes over the caller's reference. */
void rw_plan_cache_add(struct rw_plan_cache *cache, struct rw_plan_key key, rw_plan *plan);

void rw_plan_cache_finish(struct rw_plan_cache *cache);
size_t rw_plan_cache_bytes(const struct rw_plan_cache *cache);

#endif
