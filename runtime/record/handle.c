/* See handle.h. */
#include "record/handle.h"

#include "record/own_ops.h"

#include <rewind/ops.h>

/* Of any tensor that is meant to be used on a tape of ctx. */
static const char *owner_fault(const rw_context *ctx, const rw_tensor *x)
{
    if (!x) return "is NULL";
    if (x == rw_none()) return "is RW_NONE, where a tensor is needed";
    if (rw_tensor_context(x) != ctx) return "belongs to another context";
    if (x->flags == RW_VALUE_GONE && x->id == RW_NONE_ID) return "belongs to averages that were destroyed";
    return x->flags & RW_VALUE_GONE ? "belongs to a tape that was destroyed" : NULL;
}

static const char *value_fault(const rw_tape *t, const rw_tensor *x)
{
    if (x->owner.tape != t) return "is not a value of this tape, but of another tape";
    if (x->flags & RW_VALUE_GRADIENT)
        return x->id == RW_NONE_ID ? "is a gradient of before rw_tape_reset()"
                                   : "is the gradient of a tape value, which can be read, not used in an op; rw_grad() "
                                     "records gradients as ops";
    if (!rw_tape_has(t, x)) return "is of before rw_tape_reset()";
    if (!rw_value_is_committed(t, x)) return NULL;
    return "is the output of an op that writes buffers (RW_OP_COMMIT), which runs when the step ends; read the buffer";
}

const char *rw_operand_fault(const rw_tape *t, const rw_tensor *x)
{
    const char *const fault = owner_fault(t->ctx, x);
    return fault || (x->flags & RW_VALUE_CONTEXT) ? fault : value_fault(t, x);
}

const char *rw_value_fault(const rw_tape *t, const rw_tensor *x)
{
    const char *const fault = owner_fault(t->ctx, x);
    if (fault) return fault;
    if (x->flags & RW_VALUE_CONTEXT)
        return x->flags & RW_VALUE_GRADIENT ? "is the gradient of a parameter, not a value of this tape"
                                            : "is a parameter or buffer, not a value of this tape";
    return value_fault(t, x);
}

const char *rw_readable_fault(const rw_tape *t, const rw_tensor *x)
{
    const char *const fault = owner_fault(t ? t->ctx : rw_tensor_context(x), x);
    if (fault || (x->flags & RW_VALUE_CONTEXT)) return fault;
    if (!t) t = x->owner.tape;
    const bool gradient = x->owner.tape == t && (x->flags & RW_VALUE_GRADIENT) && x->id != RW_NONE_ID;
    return gradient ? NULL : value_fault(t, x);
}

bool rw_operand_check(rw_site at, const rw_tape *t, const rw_tensor *x, const char *what, const char *argument)
{
    const char *const fault = t ? rw_operand_fault(t, x) : "cannot be used: the tape is NULL";
    if (!fault) return true;
    if (t && t->origin.adjoint && !x) return false; /* a rule may go on with what another op did not give it */
    const char *const name = x ? rw_tensor_name(x) : "", *const quote = *name ? "\"" : "";
    if (t && t->composite && !t->origin.adjoint) what = t->composite;
    rw_fail(t ? t->ctx : rw_tensor_context(x), RW_ERR_ARGUMENT, "%s at %s:%d: %s %s%s%s%s%s", what, at.file, at.line,
            argument, quote, name, quote, *name ? " " : "", fault);
    return false;
}
