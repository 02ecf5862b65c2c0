/* The verifier's inner side. */
#ifndef RW_VERIFY_VERIFY_H
#define RW_VERIFY_VERIFY_H

#include "plan/build.h"
#include "run/run.h"

#include <rewind/verify.h>

/*
 * REWIND_VERIFY=1: every run of the context that is the program's own is watched from now on. Each node that it runs
 * runs in a room first, and what the forward part of a step has made is noted.
 */
rw_status rw_verify_attach(rw_context *ctx);

/*
 * REWIND_VERIFY=1: a step runs to its end under its policy and is held against a rehearsal without recompute, whose
 * backward begins with these seeds (run.h) too. It writes gradients to memory of its own: they are handed out when all
 * that was compared is equal. Else the report becomes the error message, and the gradients are what they were.
 */
rw_status rw_verify_and_run(rw_tape *t, const struct rw_request *request, const void *const *seeds);

/* The same for a step that somebody else runs afterwards, the first launch of a graph: both runs are rehearsals. */
rw_status rw_verify_or_fail(rw_tape *t, const struct rw_request *request, const void *const *seeds);

#endif
