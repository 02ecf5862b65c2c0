/* The host's threads for a context, with the words for where there are too few. */
#include "device/cpu/threads.h"
#include "record/context.h"

rw_status rw_team(rw_context *ctx, const char *what, int threads, int *ret_threads)
{
    const rw_status status = rw_threads_ready(threads, ret_threads);
    if (!status) return RW_OK;
    return rw_fail(ctx, status,
                   "%s: %d threads cannot be started (a limit of threads, processes or memory): "
                   "rw_context_set_threads() takes fewer",
                   what, threads);
}
