/* Starts the host threads of a context, with the message if they cannot be started. */
#include "base/thread_team.h"
#include "record/context.h"

rw_status rw_start_threads(rw_context *ctx, const char *what, int threads)
{
    const rw_status status = rw_team_ready(threads);
    if (!status) return RW_OK;
    return rw_fail(ctx, status,
                   "%s: %d threads could not be started (a limit of threads, processes or memory); lower the number: "
                   "rw_context_set_threads()",
                   what, threads);
}
