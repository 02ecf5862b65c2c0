/* Plans by the structure of what they run. A training loop pays for planning once. */
#ifndef RW_PLAN_CACHE_H
#define RW_PLAN_CACHE_H

#include "plan/build.h"

/* Most entries, and most bytes of all plans but the newest: that one stays however large it is. */
#define RW_PLAN_CACHE_SIZE 32
#define RW_PLAN_CACHE_BYTES ((size_t)256 << 20)

struct rw_plan_key {
    uint64_t a, b;
};

struct rw_plan_cache {
    struct rw_plan_entry {
        struct rw_plan_key key;
        rw_plan *plan;
        uint64_t used; /* the least recently used one makes room */
    } entries[RW_PLAN_CACHE_SIZE];
    size_t n;
    size_t bytes, most_bytes; /* of the plans; 0: RW_PLAN_CACHE_BYTES */
    uint64_t clock;
    uint64_t hits, misses;
};

/* The same for two requests that would give the same plan. */
struct rw_plan_key rw_request_key(const rw_tape *t, const struct rw_request *request);

/* The plan of a request: from the context's cache, or a new one put there. The cache keeps the reference. One
   without recorders. */
rw_status rw_plan_get(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan);

/* The plan of that key, or NULL. The cache keeps its reference. */
rw_plan *rw_plan_cache_find(struct rw_plan_cache *cache, struct rw_plan_key key);

/* Takes over the caller's reference. */
void rw_plan_cache_add(struct rw_plan_cache *cache, struct rw_plan_key key, rw_plan *plan);

void rw_plan_cache_finish(struct rw_plan_cache *cache);

#endif
