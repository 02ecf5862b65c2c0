/* The verifier's inner side. */
#ifndef RW_VERIFY_VERIFY_H
#define RW_VERIFY_VERIFY_H

#include "exec/run.h"
#include "verify/digest.h"

#include <rewind/verify.h>

/* REWIND_VERIFY=digest: remembers each value that will be replayed and checks its replay. */
struct rw_digest_observer {
    struct rw_observer observer; /* first: the walker hands it back */
    rw_tape *t;
    struct rw_digest *first; /* per recorded value */
    bool *known;
};

rw_status rw_digest_observer_init(struct rw_digest_observer *o, rw_tape *t, const rw_plan *plan);
void rw_digest_observer_finish(struct rw_digest_observer *o);

/* REWIND_VERIFY=1: ckpt_verify() whose report becomes the error message. */
rw_status rw_verify_or_fail(rw_tape *t, rw_tensor *loss);

#endif
