/*
 * The offload store of a CUDA device in files. A copy passes through pinned memory, with two pieces of 4 MiB per lane,
 * on two streams. The lane's own stream copies between the device and a piece. A second stream runs host functions that
 * write pieces to the file and read them. So the file is busy while the next piece is copied.
 *
 *     lane out    copy 0   copy 1            copy 2            copy 3            the lane waits for the last write
 *     its files            write 0..........  write 1.......... write 2.......... write 3..........
 *
 * The device cannot be told that a host function failed. A failure is recorded, and copies that are queued after it do
 * nothing. Where the compute lane waits for a copy, the host waits too, so an action that reads a missing value is not
 * queued. This costs little, because the host is ahead by the work queued before. rw_cuda_files_finish() reports a
 * failure that no wait has reported, and clears it.
 */
#ifndef RW_DEVICE_CUDA_OFFLOAD_FILE_STORE_CUDA_H
#define RW_DEVICE_CUDA_OFFLOAD_FILE_STORE_CUDA_H

#include "device/cuda/cuda.h"

struct rw_cuda_files;

/* The number of the lane's last copy if it was to or from a file, otherwise 0. */
uint64_t rw_cuda_files_last(const struct rw_cuda *cuda, int lane);
/* Records that another kind of copy has been queued. */
void rw_cuda_files_passed(struct rw_cuda *cuda, int lane);

/* Waits for the event, which follows the copy of that number. RW_OK, or why that copy or an earlier one failed. */
rw_status rw_cuda_files_await(struct rw_cuda *cuda, cudaEvent_t event, uint64_t number);

/* When the device's lanes are done: waits for the file streams, reports a failure and clears it. */
rw_status rw_cuda_files_finish(struct rw_cuda *cuda);
/* Frees everything; the lanes must be done. NULL-safe. */
void rw_cuda_files_close(struct rw_cuda *cuda);

#endif
