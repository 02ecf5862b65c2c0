/*
 * The device of a context that only plans: the functions of the real device, except those for memory. The real device
 * answers all questions about itself: its libraries, its clock, the rates of its stores. A block of memory is an
 * address without memory, so parameters of any size take no memory. Writes are dropped, and reads are refused.
 */
#ifndef RW_DEVICE_PLAN_ONLY_DEVICE_H
#define RW_DEVICE_PLAN_ONLY_DEVICE_H

#include "device/device.h"

struct rw_device_fns rw_device_for_planning(const struct rw_device_fns *real);

#endif
