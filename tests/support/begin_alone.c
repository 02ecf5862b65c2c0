/* Sets the number of threads that small ops begin with. Separate from support.c, which programs other than the suites
   link with the public library only. */
#include "support/support.h"

#include "run/run_state.h"

void begin_alone(rw_context *ctx)
{
    struct rw_op_thread_table *const all = &rw_pool_of(ctx)->op_threads;
    *all = (struct rw_op_thread_table){ .of = { { .last_run = 1, .alone = true } }, .last_run = 1 };
}
