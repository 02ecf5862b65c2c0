/*
 * Plans by the structure of what they run. A training loop pays for planning once. A key is the words of what a plan
 * depends on, and their hash (record/key.h).
 */
#ifndef RW_PLAN_CACHE_H
#define RW_PLAN_CACHE_H

#include "plan/build.h"

/* Most entries, and most bytes of all plans but the newest: that one stays however large it is. */
#define RW_PLAN_CACHE_SIZE 32
#define RW_PLAN_CACHE_BYTES ((size_t)256 << 20)

struct rw_plan_key {
    struct rw_hash hash;
    size_t n;
    uint64_t *words; /* of the tape (record/key.h), then of the request; owned. NULL where they are not kept */
};

struct rw_plan_cache {
    struct rw_plan_entry {
        struct rw_plan_key key;
        rw_plan *plan;
        uint64_t used; /* the least recently used one makes room */
    } entries[RW_PLAN_CACHE_SIZE];
    size_t n;
    size_t bytes, most_bytes; /* of the plans with their keys; 0: RW_PLAN_CACHE_BYTES */
    struct rw_key request;    /* the words of the request that is looked for */
    uint64_t clock;
    uint64_t hits, misses;
};

/* Equal for two requests exactly when a plan of one is a plan of the other. RW_ERR_MEMORY, recorded. */
rw_status rw_request_key(const rw_tape *t, const struct rw_request *request, struct rw_plan_key *ret_key);
void rw_plan_key_finish(struct rw_plan_key *key);

/* The plan of a request: from the context's cache, or a new one put there. The cache keeps the reference. One
   without recorders. */
rw_status rw_plan_get(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan);

/* Takes over the key, which becomes empty, and the caller's reference. */
void rw_plan_cache_add(struct rw_plan_cache *cache, struct rw_plan_key *key, rw_plan *plan);

void rw_plan_cache_finish(struct rw_plan_cache *cache);

#endif
