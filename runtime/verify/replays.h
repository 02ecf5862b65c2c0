/*
 * REWIND_VERIFY=digest: every value that a step replays, or moves out of the device's memory, is digested when it is
 * first computed and when it is there again. Digests stay where the bytes are, and the device compares them: nothing is
 * waited for, and a captured graph checks itself at each launch. An observer of each such run: it sees both of its
 * halves.
 */
#ifndef RW_VERIFY_REPLAYS_H
#define RW_VERIFY_REPLAYS_H

#include "run/run.h"

/* Watches all steps of the context from now on. RW_ERR_MEMORY. */
rw_status rw_replays_attach(rw_context *ctx);

#endif
