/*
 * Lanes of a device: what is queued on one runs in order, different ones run side by side. Kernels are queued on the
 * first; on the others values leave the device's memory and come back.
 */
#ifndef RW_DEVICE_LANE_H
#define RW_DEVICE_LANE_H

enum rw_lane { RW_LANE_COMPUTE, RW_LANE_OUT, RW_LANE_IN, RW_LANES };

#endif
