/*
 * Which bytes of a step miss the processor's caches, and the time that this costs (autodiff/costs.h). Models one cache
 * with least-recently-used replacement (LRU), whose entries are whole memories: a buffer of the arena, or a parameter.
 *
 *     newest                                            oldest
 *     | y, just written | w | x1 | (dead: h1) | x0 ... | contents from before the step |
 *     '------------------- the bytes that caches hold, always full -------------'
 *
 * A memory that is used moves to the front. Its bytes that were not in the cache are misses, and evict as many at the
 * other end. A memory that is written for the first time takes the place of dead ones, the most recently freed first,
 * as placement packs them: bytes of these that are still cached are no misses. A step begins with the cache as the step
 * before left it, in reverse: backward ends with what forward begins with. So the first uses of as many bytes as the
 * caches hold cost nothing.
 *
 * What threads have read that others wrote (autodiff/cache_coherence_traffic.h) is in the caches of several cores. The
 * next writer has to invalidate the copies in the other caches. In the forward of `none` this is rare, because memory
 * comes from outside of the caches. But recomputed values are written where backward has just read.
 *
 * However a step is arranged: of m bytes that are live at a moment and used again, all but those that the caches hold
 * miss twice. They miss once up to that moment, where they evict the others, and once after it. bound.h relies on this.
 *
 * Source: Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9
 * (1970).
 */
#ifndef RW_REMAT_SCHEDULE_CACHE_MODEL_H
#define RW_REMAT_SCHEDULE_CACHE_MODEL_H

#include "autodiff/cache_coherence_traffic.h"
#include "autodiff/costs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rw_cached {
    uint64_t bytes; /* of it, in the caches; it is in the list if there are any */
    uint32_t newer, older;
    uint32_t below; /* of a dead one: the one that died before it */
    bool used, dead;
    bool shared; /* it is in the caches of several threads */
};

/* All zero is empty. The next step reuses it. */
struct rw_cache_model {
    struct rw_cached *of; /* by memory; after the last one: the contents from before the step */
    size_t n, cap;
    uint32_t newest, oldest, dead;
};

/* Begins a step of n memories. RW_ERR_MEMORY. */
rw_status rw_cache_model_begin(struct rw_cache_model *x, size_t n, uint64_t near_bytes);
void rw_cache_model_finish(struct rw_cache_model *x);

enum rw_use {
    RW_USE_READ,   /* of the arena, each thread reads what it wrote */
    RW_USE_ACROSS, /* of the arena, read by threads that did not write it */
    RW_USE_WRITE,  /* of the arena */
    RW_USE_BESIDE  /* of memory outside of the arena, the same in every step */
};

/* The use of an operand of the arena by a call. Inputs come first. across: rw_cache_transfers() of the call. */
static inline enum rw_use rw_use_of(uint32_t operand, uint32_t n_inputs, uint64_t across)
{
    if (operand >= n_inputs) return RW_USE_WRITE;
    return rw_is_cache_transfer(across, operand) ? RW_USE_ACROSS : RW_USE_READ;
}

/* The bytes of a use that take longer. */
struct rw_fetched {
    uint64_t far;    /* cache misses */
    uint64_t shared; /* written where the caches of several threads hold the old contents */
};

static inline void rw_fetched_add(struct rw_fetched *sum, struct rw_fetched f)
{
    sum->far += f.far;
    sum->shared += f.shared;
}

/* The additional time of these bytes. */
static inline double rw_fetched_seconds(struct rw_fetched f, struct rw_memory_cost m)
{
    return (double)f.far * rw_cache_misses_seconds(m) + (double)f.shared * rw_shared_seconds(m);
}

/* Uses that many bytes of a memory. */
struct rw_fetched rw_cache_model_use(struct rw_cache_model *x, uint32_t memory, uint64_t bytes, enum rw_use use);

/* The memory has had its last use. A second call for the same memory changes nothing. */
void rw_cache_model_die(struct rw_cache_model *x, uint32_t memory);

#endif
