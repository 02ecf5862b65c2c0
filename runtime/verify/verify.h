/* Internal functions of the verifier. */
#ifndef RW_VERIFY_VERIFY_H
#define RW_VERIFY_VERIFY_H

#include "plan/build.h"
#include "run/run_state.h"

#include <rewind/verify.h>

/*
 * REWIND_VERIFY=1: observes every later run of the context that belongs to the program. Each node is first executed in
 * isolation, and the values of a step's forward part are digested.
 */
rw_status rw_verify_attach(rw_context *ctx);

/*
 * REWIND_VERIFY=1: runs a step under its policy and compares it with a rehearsal without recompute, with the same seeds
 * (run.h). The step writes gradients to separate memory; they are published when everything is equal. Otherwise the
 * report becomes the error message, and gradients are unchanged.
 */
rw_status rw_verify_and_run(rw_tape *t, const struct rw_request *request, const void *const *seeds);

/* The same for a step that runs afterwards, the first launch of a graph: both runs are rehearsals. */
rw_status rw_verify_or_fail(rw_tape *t, const struct rw_request *request, const void *const *seeds);

#endif
