/* The verifier's inner side. */
#ifndef RW_VERIFY_VERIFY_H
#define RW_VERIFY_VERIFY_H

#include "plan/build.h"

#include <rewind/verify.h>

/* REWIND_VERIFY=1: ckpt_verify() of a step whose backward begins with these seeds (run.h). Its report becomes the error
   message. */
rw_status rw_verify_or_fail(rw_tape *t, const struct rw_request *request, const void *const *seeds);

#endif
