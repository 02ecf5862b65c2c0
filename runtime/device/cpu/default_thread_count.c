/* The default number of threads, from REWIND_THREADS, cores and quota. */
#include "device/cpu/default_thread_count.h"

#include "base/cores.h"

#include <rewind/context.h>

#include <math.h>
#include <stdlib.h>

int rw_threads_of(int cores, double quota)
{
    const double n = fmax(1, fmin(cores, ceil(quota)));
    return n < RW_MAX_THREADS ? (int)n : RW_MAX_THREADS;
}

static FILE *open_file(void *self, const char *path)
{
    return fopen(path, "re");
}

rw_status rw_threads_default(int *ret_threads)
{
    const char *const wanted = getenv("REWIND_THREADS");
    if (!wanted || !*wanted) {
        *ret_threads = rw_threads_of(rw_cores(), rw_cgroup_cores(open_file, NULL));
        return RW_OK;
    }
    char *end;
    const long n = strtol(wanted, &end, 10);
    if (*end || n < 1 || n > RW_MAX_THREADS) return RW_ERR_ARGUMENT;
    *ret_threads = (int)n;
    return RW_OK;
}
