/*
 * rw_no_grad_begin() and rw_no_grad_end(). Each node records whether it was inside such a scope (struct rw_node), so
 * neither differentiation nor a value that is marked later reaches it.
 */
#include "record/tape.h"

#include <rewind/tape.h>

rw_status rw_no_grad_begin(rw_tape *t)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_no_grad_begin", "t");
    t->open_no_grads++;
    return RW_OK;
}

rw_status rw_no_grad_end(rw_tape *t)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_no_grad_end", "t");
    if (!t->open_no_grads)
        return rw_fail(t->ctx, RW_ERR_REGION,
                       "rw_no_grad_end: expected an open no-grad scope, got none; call rw_no_grad_begin() first");
    t->open_no_grads--;
    return RW_OK;
}
