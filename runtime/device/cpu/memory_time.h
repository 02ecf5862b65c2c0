/*
 * What memory costs that is not in the caches: how large a block may be until going through it takes clearly longer a
 * byte, and how much longer it takes to write and to read a byte of a block that is far larger. Written straight
 * through, as most kernels do; read half straight through, and half by a few columns of many rows, as products read
 * the operand that they pack: prefetchers help them less. And how much longer a byte takes to write that another thread
 * has read: it has to leave that one's caches, which takes long where the two do not share the last one.
 */
#ifndef RW_DEVICE_CPU_MEMORY_TIME_H
#define RW_DEVICE_CPU_MEMORY_TIME_H

#include "device/cpu/cpu.h"
#include "device/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RW_MEMORY_TIMED ((size_t)256 << 20)
#define RW_MEMORY_SIZES 6

/*
 * Of times alone. written[i]: seconds that a byte takes which is written again, in blocks of 8, 16 ... 256 MiB; read:
 * how much longer than in the smallest of them one takes that is read in the largest. Near are blocks of which a byte
 * takes less than a quarter of the way from the smallest's time to the largest's: in twice what the caches hold about
 * half of a pass is far. False, and nothing is said, where the largest's is not clearly longer.
 */
bool rw_cpu_memory_price(const double *written, double read, uint64_t *ret_near, double *ret_seconds);

/* In a block of RW_MEMORY_TIMED bytes, in so many threads: a fifth of a second. False where all of it is near. */
bool rw_cpu_memory_time(void *block, int threads, struct rw_memory_times *ret);

#endif
