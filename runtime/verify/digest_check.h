/*
 * REWIND_VERIFY=digest: every value that a step replays or offloads is digested when it is first computed, and again
 * when it is recomputed or has returned. Digests stay where the bytes are and the device compares them, so nothing is
 * waited for, and a captured graph checks itself in each launch. The observer sees both halves of a run.
 */
#ifndef RW_VERIFY_DIGEST_CHECK_H
#define RW_VERIFY_DIGEST_CHECK_H

#include "run/run_state.h"

/* Observes all later steps of the context. RW_ERR_MEMORY. */
rw_status rw_digest_check_attach(rw_context *ctx);

#endif
