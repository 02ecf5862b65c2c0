/* Pass 4 for a schedule: the offset of each of its buffers in the arena. */
#ifndef RW_PLACE_ARENA_H
#define RW_PLACE_ARENA_H

#include "remat/schedule/schedule.h"

/*
 * Computes offsets of the buffers that have memory of their own, after merging; offset has one entry per buffer,
 * or is NULL if only the size is wanted. *ret_bytes is the arena's size. RW_ERR_MEMORY.
 */
rw_status rw_place_schedule(const struct rw_schedule *s, uint64_t alignment, uint64_t *offset, uint64_t *ret_bytes);

/* The same for offloaded values: sets the offsets of the schedule's slots in the store. */
rw_status rw_place_slots(struct rw_schedule *s, uint64_t *ret_bytes);

#endif
