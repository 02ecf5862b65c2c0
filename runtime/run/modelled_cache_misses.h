/*
 * Bytes of each action of a plan that miss the modelled cache, as the simulator counts them for a schedule
 * (remat/schedule/cache_model.h). A node's cost is its time with operands in cache; the rest of its measured time is
 * due to these misses. For plans without offload.
 */
#ifndef RW_RUN_MODELLED_CACHE_MISSES_H
#define RW_RUN_MODELLED_CACHE_MISSES_H

#include "plan/plan.h"
#include "record/tape.h"
#include "remat/schedule/cache_model.h"

/* All zero is empty; reused by the next plan. */
struct rw_cache_misses {
    uint64_t of;         /* the plan's serial; 0: none */
    uint64_t near_bytes; /* with which it was counted */
    struct rw_fetched *fetched; /* by action */
    size_t cap;
    struct rw_cache_model caches;
    struct rw_cache_misses_memory {
        uint64_t bytes;
        size_t last; /* action that names it */
    } *memory;           /* the plan's sources, then the buffers of the arena in the order of their first use */
    size_t n_memory, cap_memory;
    uint32_t *buffer_at; /* unit of the arena -> the buffer that starts there */
    size_t cap_buffer_at;
    uint32_t *word; /* word of the plan -> memory */
    size_t cap_word;
    rw_operand_desc *desc; /* of one call */
    size_t cap_desc;
};

/* Counts for caches of near_bytes. RW_ERR_MEMORY: no counts. */
rw_status rw_cache_misses_count(struct rw_cache_misses *x, const rw_tape *t, const rw_plan *plan, uint64_t near_bytes);
void rw_cache_misses_finish(struct rw_cache_misses *x);

#endif
