/*
 * Placement in an order: each buffer at the lowest offset that is free during its whole life. Some order leads to the
 * smallest arena there is, so what is looked for is an order: first a few rankings, then, from the best of these,
 * orders in which one buffer has moved, as long as less lies above what is aimed at.
 */
#ifndef RW_PLACE_ORDERS_H
#define RW_PLACE_ORDERS_H

#include "remat/lives.h"

/*
 * Improves offsets that are valid. least: the largest sum of live bytes. *size: the arena's, which never grows. The
 * work is bounded, and where too many lives share steps there is none. False without memory: offsets are undefined.
 */
bool rw_place_in_orders(struct rw_life *life, size_t n, uint64_t alignment, uint64_t least, uint64_t *size);

#endif
