/* Decides whether a handle is valid for a call, and words the fault. */
#include "record/handle_check.h"

#include <rewind/ops.h>

#include <stdio.h>
#include <string.h>

/* For any tensor that is to be used on a tape of ctx. */
static const char *owner_fault(const rw_context *ctx, const rw_tensor *x)
{
    if (!x) return "is NULL";
    if (x == rw_none()) return "is RW_NONE";
    if (rw_tensor_context(x) != ctx) return "belongs to another context";
    if (x->flags == RW_VALUE_GONE && x->id == RW_NONE_ID) return "belongs to averages that were destroyed";
    return x->flags & RW_VALUE_GONE ? "belongs to a tape that was destroyed" : NULL;
}

static const char *value_fault(const rw_tape *t, const rw_tensor *x)
{
    if (x->owner.tape != t) return "is a value of another tape";
    if (x->flags & RW_VALUE_GRADIENT)
        return x->id == RW_NONE_ID ? "is a gradient from before rw_tape_reset()"
                                   : "is the gradient of a tape value, which can be read, not used in an op; rw_grad() "
                                     "records gradients as ops";
    if (!rw_tape_has(t, x)) return "was recorded before rw_tape_reset()";
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
        return x->flags & RW_VALUE_GRADIENT ? "is the gradient of a parameter"
                                            : "is a parameter or buffer";
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

const char *rw_fault_text(char *text, const rw_tensor *x, const char *argument, const char *expected,
                          const char *fault)
{
    if (!x) {
        snprintf(text, RW_FAULT_TEXT, "%s is NULL; expected %s", argument, expected);
        return text;
    }
    const char *const name = rw_tensor_name(x), *const quote = *name ? "\"" : "";
    const bool is_noun = !strncmp(fault, "is ", 3);
    snprintf(text, RW_FAULT_TEXT, "%s%s%s%s%s: expected %s, got %s%s", argument, *name ? " " : "", quote, name, quote,
             expected, is_noun ? "" : "one that ", is_noun ? fault + 3 : fault);
    return text;
}

bool rw_operand_check(rw_site at, const rw_tape *t, const rw_tensor *x, const char *what, const char *argument)
{
    RW_ENTER_RECORDING(t, false);
    const char *const fault = t ? rw_operand_fault(t, x) : "";
    if (!what) what = "rw_operand_check";
    if (!argument) argument = "x";
    if (!fault) return true;
    if (t && t->origin.adjoint && !x) return false; /* in a rule, NULL results of failed ops are not an error */
    if (t && t->composite && !t->origin.adjoint) what = t->composite;
    char text[RW_FAULT_TEXT];
    if (!t) snprintf(text, sizeof text, "t is NULL; expected a tape");
    else rw_fault_text(text, x, argument, x ? "a tensor of this tape or a parameter of its context"
                                            : "a tensor, or RW_NONE if the argument is optional", fault);
    rw_fail(t ? t->ctx : rw_tensor_context(x), RW_ERR_ARGUMENT, "%s at %s:%d: %s", what, rw_file_of(at), at.line, text);
    return false;
}
