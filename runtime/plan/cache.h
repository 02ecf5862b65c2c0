/*
 * The plan cache: plans by the structure of what they run, so a training loop is planned once. A key is the words on
 * which a plan depends, and their hash (record/tape_key.h).
 */
#ifndef RW_PLAN_CACHE_H
#define RW_PLAN_CACHE_H

#include "plan/build.h"

/* Maximum number of entries, and maximum bytes of all plans except the newest, which always stays. */
#define RW_PLAN_CACHE_SIZE 32
#define RW_PLAN_CACHE_BYTES ((size_t)256 << 20)

struct rw_plan_key {
    struct rw_hash hash;
    size_t n;
    uint64_t *words; /* of the tape (record/tape_key.h), then of the request; owned. NULL if words are not kept */
};

struct rw_plan_cache {
    struct rw_plan_entry {
        struct rw_plan_key key;
        rw_plan *plan;
        uint64_t used; /* time of last use: the least recently used entry is evicted */
    } entries[RW_PLAN_CACHE_SIZE];
    size_t n;
    size_t bytes, most_bytes; /* bytes of plans with their keys; limit, 0: RW_PLAN_CACHE_BYTES */
    struct rw_key request;    /* the words of the request to find */
    uint64_t clock;
    uint64_t hits, misses;
};

extern struct rw_extension rw_plan_cache_extension;

static inline struct rw_plan_cache *rw_plan_cache_of(const rw_context *ctx)
{
    return rw_extension_find(&ctx->extensions, &rw_plan_cache_extension);
}

/* Call when a context is created. RW_ERR_MEMORY, not recorded. */
rw_status rw_plan_cache_open(rw_context *ctx);

/*
 * A tape that is being recorded as before: its final mark and number of effects, and the bytes that the context held
 * when the step was planned. Under a total the plan depends on these, and inputs that come later are not held yet.
 */
struct rw_ahead {
    struct rw_tape_point at;
    size_t n_effects;
    uint64_t holds;
};

/* Builds a key: equal for two requests exactly if a plan of one is a plan of the other. RW_ERR_MEMORY, recorded. */
rw_status rw_request_key(const rw_tape *t, const struct rw_request *request, struct rw_plan_key *ret_key);
void rw_plan_key_finish(struct rw_plan_key *key);

/* The plan of a request without recorders: from the context's cache, or a new one, which is added. The cache keeps
   the reference. */
rw_status rw_plan_get(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan);

/*
 * Finds the plan of a request for the time when the tape will reach that point, if it had one there before; NULL: none.
 * The tape recorded so far must equal the earlier recording: the caller compares marks on the way.
 */
rw_plan *rw_plan_find_ahead(rw_tape *t, const struct rw_request *request, const struct rw_ahead *ahead);

/* Takes over the key, which becomes empty, and the caller's reference. */
void rw_plan_cache_add(struct rw_plan_cache *cache, struct rw_plan_key *key, rw_plan *plan);

/* Drops all plans. */
void rw_plan_cache_finish(struct rw_plan_cache *cache);

#endif
