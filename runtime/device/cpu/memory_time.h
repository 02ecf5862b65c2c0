/*
 * What memory costs that is not in the caches: how large a block may be until going through it takes clearly longer a
 * byte, and how much longer it takes to write and to read a byte of a block that is far larger.
 */
#ifndef RW_DEVICE_CPU_MEMORY_TIME_H
#define RW_DEVICE_CPU_MEMORY_TIME_H

#include "device/cpu/cpu.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RW_MEMORY_TIMED ((size_t)256 << 20)

/* In a block of RW_MEMORY_TIMED bytes, in so many threads: a fifth of a second. False where all of it is near. */
bool rw_cpu_memory_time(void *block, int threads, uint64_t *ret_near, double *ret_seconds);

#endif
