/*
 * What the control groups of this process allow it of memory: each group from its own up to the root of what is
 * mounted, of version 2 and of version 1. Files are opened by a function, so that tests hand over texts.
 */
#ifndef RW_DEVICE_CPU_CGROUP_H
#define RW_DEVICE_CPU_CGROUP_H

#include <stdint.h>
#include <stdio.h>

/* NULL where there is no such file. */
typedef FILE *(*rw_open_file)(void *self, const char *path);

/* A number of bytes, and the file that says so; UINT64_MAX and NULL where none does. */
struct rw_cgroup_bound {
    uint64_t bytes;
    const char *file;
};

/* The least of all groups'. `both`: of memory and swap together, as version 1 counts them. */
struct rw_cgroup_memory {
    struct rw_cgroup_bound memory, swap, both;
};

/*
 * Whatever can't be read or makes no sense bounds nothing. A mount that shows other groups than this process' bounds
 * nothing either; one from above a namespace's root, which does not say where below it the process is, bounds by the
 * group that it begins with.
 */
struct rw_cgroup_memory rw_cgroup_memory(rw_open_file open, void *self);

#endif
