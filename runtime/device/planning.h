/*
 * The device of a context that plans only: another one's table of functions, but for memory. What is asked of the
 * device itself - its libraries, its clock, how fast its stores are - is answered by it; a block of memory is an
 * address that nothing lies at, so parameters of any size are there and take none. Contents that are written are
 * dropped, what would read them is refused.
 */
#ifndef RW_DEVICE_PLANNING_H
#define RW_DEVICE_PLANNING_H

#include "device/device.h"

struct rw_device_fns rw_device_for_planning(const struct rw_device_fns *real);

#endif
