/*
 * What a step finds in the processor's caches, as if those that were used least recently left first (LRU), memory by
 * memory: a buffer of the arena, a parameter. It says which bytes come from afar, and what that costs
 * (autodiff/costs.h).
 *
 *     newest                                            oldest
 *     | y, just written | w | x1 | (dead: h1) | x0 ... | what was there before |
 *     '------------------- the bytes that caches hold, always all -------------'
 *
 * What is used goes to the front; what it lacked comes from afar and pushes as much out at the other end. What is
 * written for the first time lies where something died, the last first, as placement packs it: in so far as that is
 * still there, nothing comes. A step begins where the one before it ended, the other way round: backward ends with what
 * forward begins with. So as many bytes as caches hold are used for the first time for nothing.
 *
 * What threads have read that others wrote (autodiff/across.h) lies in more than one's caches, and who writes there
 * next has to have it taken out of the others'. In `none`'s forward that is rare, as memory comes from afar; what is
 * made again is written where backward has just read.
 *
 * However a step is arranged, of m bytes that are alive at a moment and used again, all but those that caches hold come
 * from afar twice: until then, as what pushed the others out, and from then on. bound.h rests on that.
 *
 * Source: Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9
 * (1970).
 */
#ifndef RW_REMAT_CACHES_H
#define RW_REMAT_CACHES_H

#include "autodiff/across.h"
#include "autodiff/costs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rw_cached {
    uint64_t bytes; /* of it, in the caches; it is in the list where there are any */
    uint32_t newer, older;
    uint32_t below; /* of what is dead: what died before it */
    bool used, dead;
    bool shared; /* it is in more than one thread's */
};

/* All zero is empty; used again by the next step. */
struct rw_caches {
    struct rw_cached *of; /* by memory; behind the last one what was there before the step */
    size_t n, cap;
    uint32_t newest, oldest, dead;
};

/* A step of n memories begins. RW_ERR_MEMORY. */
rw_status rw_caches_begin(struct rw_caches *x, size_t n, uint64_t near_bytes);
void rw_caches_finish(struct rw_caches *x);

enum rw_use {
    RW_USE_READ,   /* of the arena, each thread what it wrote */
    RW_USE_ACROSS, /* of the arena, read by threads that did not write it */
    RW_USE_WRITE,  /* of the arena */
    RW_USE_BESIDE  /* of what has memory of its own, step after step */
};

/* Of the arena by a call, by operand: inputs come first. across: rw_call_across() of it. */
static inline enum rw_use rw_use_of(uint32_t operand, uint32_t n_inputs, uint64_t across)
{
    if (operand >= n_inputs) return RW_USE_WRITE;
    return rw_is_across(across, operand) ? RW_USE_ACROSS : RW_USE_READ;
}

/* Bytes of a use that take longer. */
struct rw_fetched {
    uint64_t far;    /* they come from afar */
    uint64_t shared; /* they are written where more than one thread's caches hold what was there */
};

static inline void rw_fetched_add(struct rw_fetched *sum, struct rw_fetched f)
{
    sum->far += f.far;
    sum->shared += f.shared;
}

/* How much longer. */
static inline double rw_fetched_seconds(struct rw_fetched f, struct rw_memory_cost m)
{
    return (double)f.far * rw_far_seconds(m) + (double)f.shared * rw_shared_seconds(m);
}

/* So many bytes of it are used. */
struct rw_fetched rw_caches_use(struct rw_caches *x, uint32_t memory, uint64_t bytes, enum rw_use use);

/* Nobody uses it any more. Said again of the same it changes nothing. */
void rw_caches_die(struct rw_caches *x, uint32_t memory);

#endif
