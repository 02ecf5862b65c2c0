/*
 * Limits of memory and processor time that the control groups of this process set. Each group from its own up to the
 * root of the mount counts, in version 2 and version 1. A function opens the files, so that tests can supply texts.
 */
#ifndef RW_DEVICE_CPU_CGROUP_H
#define RW_DEVICE_CPU_CGROUP_H

#include <stdint.h>
#include <stdio.h>

/* NULL if there is no such file. */
typedef FILE *(*rw_open_file)(void *self, const char *path);

/* A number of bytes, and the file that sets it; UINT64_MAX and NULL if none does. */
struct rw_cgroup_bound {
    uint64_t bytes;
    const char *file;
};

/* The minimum over all groups. `both`: of memory and swap together, as version 1 counts them. */
struct rw_cgroup_memory {
    struct rw_cgroup_bound memory, swap, both;
};

/*
 * Reads the limits. A file that cannot be read or understood sets no limit. A mount that does not show this process's
 * groups sets none either. A mount of a group above a namespace's root does not say where the process is below it; then
 * the group at the beginning of the mount counts.
 */
struct rw_cgroup_memory rw_cgroup_memory(rw_open_file open, void *self);

/* Core time per time (1.5: one and a half cores), the minimum over all groups; INFINITY: there is no quota. The rest is
   as above. */
double rw_cgroup_cores(rw_open_file open, void *self);

#endif
