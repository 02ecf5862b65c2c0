/*
 * The maximum memory that this process could ever hold: the machine's memory, as far as control groups (cgroup.h) and
 * the process's own limits (RLIMIT_AS, RLIMIT_DATA) allow. All code that needs the size of the machine uses this.
 *
 * It is an upper bound, not the free memory. Other memory under the same limit counts against it, including that of
 * this process, but may be released before the memory is needed: page cache, arenas of other plans, other processes of
 * the group. So a block that exceeds the limit by itself is impossible and is refused; for a smaller block nothing is
 * known. Limits can change while the process runs, so each call reads them again: some ten files, less than a
 * millisecond.
 */
#ifndef RW_DEVICE_CPU_MEMORY_LIMITS_H
#define RW_DEVICE_CPU_MEMORY_LIMITS_H

#include "device/cpu/cgroup.h"
#include "device/device.h"

/* The limits as read. UINT64_MAX: there is no such limit, or it is unknown. */
struct rw_memory_facts {
    uint64_t memory, swap; /* of the machine */
    struct rw_cgroup_memory groups;
    uint64_t address_space, data;
};

struct rw_memory_limits {
    uint64_t resident;          /* maximum in memory at once, without swap */
    struct rw_device_memory all; /* including swap, also in words */
};

struct rw_memory_limits rw_memory_limits_of(const struct rw_memory_facts *facts);

/* The limits of this process, now. From any thread. */
struct rw_memory_limits rw_memory_limits(void);

#endif
