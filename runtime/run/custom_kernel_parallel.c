/* rw_kernel_parallel(): runs a job of a custom kernel on the library's threads (base/thread_team.h). */
#include "base/thread_team.h"
#include "record/api_entry.h"

#include <rewind/op.h>

void rw_kernel_parallel(const rw_kernel *k, rw_kernel_job job, void *of)
{
    RW_ENTER_ANYWHERE; /* the job runs in the same mode on every thread */
    if (job) rw_team_run(k ? k->threads : 1, job, of);
}
