/*
 * The most memory that this process could ever hold: what the machine has, and what control groups (cgroup.h) and the
 * process' own limits (RLIMIT_AS, RLIMIT_DATA) leave of it. All that asks for the size of the machine asks here.
 *
 * It is a bound and not what is free: whatever else is held under such a limit, by this process too, counts against it,
 * but may be given back before the memory is needed - page cache, arenas of other plans, another process of the group.
 * So a block that is larger than the limit by itself can never be had, and is refused with reason; of one that is not,
 * nobody can tell. Limits may be changed from outside while the process runs: they are read anew with each call, some
 * ten files and less than a millisecond.
 */
#ifndef RW_DEVICE_CPU_MEMORY_LIMITS_H
#define RW_DEVICE_CPU_MEMORY_LIMITS_H

#include "device/cpu/cgroup.h"
#include "device/device.h"

/* What is read. UINT64_MAX, of each: there is no such limit, or nobody says. */
struct rw_memory_facts {
    uint64_t memory, swap; /* of the machine */
    struct rw_cgroup_memory groups;
    uint64_t address_space, data;
};

struct rw_memory_limits {
    uint64_t resident;          /* what may be in memory at once, without swap */
    struct rw_device_memory all; /* with room to swap, in words too */
};

struct rw_memory_limits rw_memory_limits_of(const struct rw_memory_facts *facts);

/* Of this process, now. From any thread. */
struct rw_memory_limits rw_memory_limits(void);

#endif
