/* The descriptors of what run/ keeps with contexts and tapes. run_advance.c ends it. */
#include "run/run_state.h"

static bool open(rw_tape *t, void *state)
{
    return rw_extension_make(&t->extensions, &rw_tape_runs_extension);
}

struct rw_extension rw_pool_extension = { .name = "pool", .size = sizeof(struct rw_pool), .open = open };
struct rw_extension rw_tape_runs_extension = { .name = "tape_runs", .size = sizeof(struct rw_tape_runs) };
