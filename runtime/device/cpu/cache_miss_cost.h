/*
 * Measures the time of memory accesses that miss the caches: the block size up to which a byte takes about the same
 * time, and the additional seconds to write and read a byte of a much larger block. Writes are sequential, as in most
 * kernels. Reads are half sequential, and half a few columns of many rows, as products read the operand that they pack;
 * prefetchers help less with these. Also measures the additional seconds to write a byte that another thread has read:
 * its cache line has to be invalidated in that thread's caches, which takes long if the two threads share no last-level
 * cache.
 */
#ifndef RW_DEVICE_CPU_CACHE_MISS_COST_H
#define RW_DEVICE_CPU_CACHE_MISS_COST_H

#include "device/cpu/cpu.h"
#include "device/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RW_MEMORY_TIMED ((size_t)256 << 20)
#define RW_MEMORY_SIZES 6

/*
 * Computes sizes and prices from times alone. written[i]: seconds per byte that is rewritten in blocks of 8, 16 ... 256
 * MiB; read: additional seconds per byte read in the largest block, relative to the smallest. A block size counts as
 * cached if its time per byte is in the first quarter between smallest and largest block: at twice the size of the
 * caches about half of a pass misses. Returns false and writes nothing if the largest block is not clearly slower.
 */
bool rw_cpu_memory_price(const double *written, double read, uint64_t *ret_near, double *ret_seconds);

/*
 * Measures in a block of RW_MEMORY_TIMED bytes with that many threads, for about 0.2 seconds. False if all of it is
 * cached.
 */
bool rw_cpu_memory_time(void *block, int threads, struct rw_memory_times *ret);

#endif
