/*
 * Values of a CUDA device that wait in files. A copy passes through pinned memory, two pieces of 4 MiB a lane, by two
 * streams: the lane's own, which copies between the device and a piece, and one beside it, whose host functions write
 * the pieces to the file and read them. So the file is busy while the next piece is copied.
 *
 *     lane out    copy 0   copy 1            copy 2            copy 3            the lane waits for the last write
 *     its files            write 0..........  write 1.......... write 2.......... write 3..........
 *
 * The device cannot be told that a host function failed. What fails is noted, what is queued behind it does nothing,
 * and where the compute lane waits for a copy the host waits with it: so what reads a value that never came is not
 * queued. It costs little, for the host is ahead by what was queued before. rw_cuda_files_finish() tells what nobody
 * has been told, and forgets.
 */
#ifndef RW_DEVICE_CUDA_FILES_H
#define RW_DEVICE_CUDA_FILES_H

#include "device/cuda/cuda.h"

struct rw_cuda_files;

/* Of a lane: the number of the copy to or from a file that was queued on it last; 0 where its last copy was none. */
uint64_t rw_cuda_files_last(const struct rw_cuda *cuda, int lane);
/* A copy that is none has been queued. */
void rw_cuda_files_passed(struct rw_cuda *cuda, int lane);

/* Waits for the event, which comes behind the copy of that number: RW_OK, or why that one or one before it failed. */
rw_status rw_cuda_files_await(struct rw_cuda *cuda, cudaEvent_t event, uint64_t number);

/* With the device's lanes done: waits for what they did not, tells what failed, forgets it. */
rw_status rw_cuda_files_finish(struct rw_cuda *cuda);
/* Frees it all; the lanes are done. NULL-safe. */
void rw_cuda_files_close(struct rw_cuda *cuda);

#endif
