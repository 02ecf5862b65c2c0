/* The default number of threads of a context. base/thread_team.h has the threads themselves. */
#ifndef RW_DEVICE_CPU_DEFAULT_THREAD_COUNT_H
#define RW_DEVICE_CPU_DEFAULT_THREAD_COUNT_H

#include "device/cpu/cgroup.h"

#include <rewind/status.h>

/*
 * REWIND_THREADS, or else the number of cores that this process may use, or fewer if a control group's quota allows
 * less core time. At most RW_MAX_THREADS. RW_ERR_ARGUMENT if REWIND_THREADS is not a valid number.
 */
rw_status rw_threads_default(int *ret_threads);

/* The default for these cores and this quota in cores, rounded up; INFINITY: there is no quota. */
int rw_threads_of(int cores, double quota);

#endif
