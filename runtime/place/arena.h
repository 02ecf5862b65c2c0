/* Pass 4 for a schedule: where each of its buffers lies in the arena. */
#ifndef RW_PLACE_ARENA_H
#define RW_PLACE_ARENA_H

#include "remat/schedule.h"

/*
 * Offsets of the buffers that have memory of their own, after merging; offset has room for one a buffer. *ret_bytes is
 * the arena's size. RW_ERR_MEMORY.
 */
rw_status rw_place_schedule(const struct rw_schedule *s, uint64_t alignment, uint64_t *offset, uint64_t *ret_bytes);

/* The same for what waits outside the device: offsets of the schedule's slots are filled in. */
rw_status rw_place_slots(struct rw_schedule *s, uint64_t *ret_bytes);

#endif
