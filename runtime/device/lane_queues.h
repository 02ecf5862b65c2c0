/*
 * Lanes of a device: queues of work. Each runs its work in order; different lanes run in parallel. Kernels are queued
 * on the first lane, copies out of and into the device's memory on the others.
 */
#ifndef RW_DEVICE_LANE_QUEUES_H
#define RW_DEVICE_LANE_QUEUES_H

enum rw_lane { RW_LANE_COMPUTE, RW_LANE_OUT, RW_LANE_IN, RW_LANES };

#endif
