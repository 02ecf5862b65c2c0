/*
 * Placement by order: buffers are placed one after the other, each at the lowest offset that is free during its whole
 * lifetime. Some order gives the smallest possible arena, so the search is for an order: first a few rankings, then a
 * local search from the best of them, which moves one buffer at a time while fewer bytes exceed the target size.
 */
#ifndef RW_PLACE_ORDER_SEARCH_H
#define RW_PLACE_ORDER_SEARCH_H

#include "remat/schedule/lifetimes.h"

/*
 * Improves valid offsets. least: the largest sum of live bytes. *size: size of the arena, which never grows. The work
 * is bounded; if too many lifetimes overlap, nothing is done. False without memory: offsets are then undefined.
 */
bool rw_order_search(struct rw_lifetime *life, size_t n, uint64_t alignment, uint64_t least, uint64_t *size);

#endif
