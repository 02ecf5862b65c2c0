/* Lanes of the CUDA device: functions of its table. device.h documents them. */
#ifndef RW_DEVICE_CUDA_COPY_STREAMS_H
#define RW_DEVICE_CUDA_COPY_STREAMS_H

#include "device/cuda/cuda.h"

struct rw_events;

rw_status rw_cuda_open_lanes(struct rw_cuda *cuda);
void rw_cuda_close_lanes(struct rw_cuda *cuda);
rw_status rw_cuda_wait_for_lanes(struct rw_cuda *cuda);

struct rw_events *rw_cuda_make_events(void *state, size_t n);
void rw_cuda_free_events(void *state, struct rw_events *events);
rw_status rw_cuda_signal(void *state, int lane, struct rw_events *events, size_t event);
rw_status rw_cuda_wait(void *state, int lane, struct rw_events *events, size_t event);

#endif
