/*
 * rw_no_grad_begin() and rw_no_grad_end(): what is recorded in between requires no gradient. Each node notes whether it
 * was (struct rw_node), so that neither differentiation nor a value that is marked later goes into it.
 */
#include "record/tape.h"

#include <rewind/tape.h>

rw_status rw_no_grad_begin(rw_tape *t)
{
    if (!t || rw_is_called_by_a_kernel(t->ctx, "rw_no_grad_begin")) return RW_ERR_ARGUMENT;
    t->open_no_grads++;
    return RW_OK;
}

rw_status rw_no_grad_end(rw_tape *t)
{
    if (!t || rw_is_called_by_a_kernel(t->ctx, "rw_no_grad_end")) return RW_ERR_ARGUMENT;
    if (!t->open_no_grads)
        return rw_fail(t->ctx, RW_ERR_REGION, "rw_no_grad_end: there is no open rw_no_grad_begin() on the tape");
    t->open_no_grads--;
    return RW_OK;
}
