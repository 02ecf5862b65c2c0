/* Counts the cores in the affinity mask. */
#include "base/cores.h"

#include <errno.h>
#include <sched.h>
#include <unistd.h>

#define CPUS_MAX 65536 /* the size grows until the kernel's mask fits, which exceeds cpu_set_t on large machines */

static int online(void)
{
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : (int)n;
}

int rw_cores(void)
{
    for (size_t cpus = CPU_SETSIZE; cpus <= CPUS_MAX; cpus *= 2) {
        cpu_set_t *const set = CPU_ALLOC(cpus);
        const size_t size = CPU_ALLOC_SIZE(cpus);
        if (!set) return online();
        const int error = sched_getaffinity(0, size, set) ? errno : 0, n = error ? 0 : CPU_COUNT_S(size, set);
        CPU_FREE(set);
        if (!error && n > 0) return n;
        if (error != EINVAL) return online();
    }
    return online();
}
