/* The verifier's inner side. */
#ifndef RW_VERIFY_VERIFY_H
#define RW_VERIFY_VERIFY_H

#include "record/tape.h"

#include <rewind/verify.h>

/* REWIND_VERIFY=1: ckpt_verify() whose report becomes the error message. */
rw_status rw_verify_or_fail(rw_tape *t, rw_tensor *loss);

#endif
