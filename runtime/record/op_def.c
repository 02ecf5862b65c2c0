/* What a definition of an op has to say, whoever wrote it. */
#include "record/context.h"
#include "record/own_ops.h"

#include <stdio.h>
#include <string.h>

static const char *name_fault(const rw_op_def *op)
{
    if (!op->name || !*op->name) return "the op has no name";
    if (op->name[strspn(op->name, "abcdefghijklmnopqrstuvwxyz0123456789_")])
        return "an op's name is of the characters a to z, 0 to 9 and _";
    if (rw_op_is_builtin(op->name) && op->kernel[RW_DEVICE_AUTO] != rw_op_is_own)
        return "the op has the name of a built-in one";
    if (op->parts && op->kernel[RW_DEVICE_AUTO] != rw_op_is_own) return "parts is the library's own; expected NULL";
    return op->check ? NULL : "the op has no check";
}

static const char *commit_fault(const rw_op_def *op)
{
    const uint32_t with = RW_OP_STATEFUL | RW_OP_NO_GRADIENT;
    if (!(op->flags & RW_OP_COMMIT) || (op->flags & with) == with) return NULL;
    return "flags: RW_OP_COMMIT goes with RW_OP_STATEFUL and RW_OP_NO_GRADIENT";
}

static bool counts(int n, int least)
{
    return n == RW_OP_VARIADIC || (n >= least && n <= RW_OP_MAX_OPERANDS);
}

static bool overwrites_soundly(const rw_op_def *op)
{
    for (const rw_inplace *p = op->inplace; p && p->output != UINT16_MAX; p++)
        if ((op->n_outputs >= 0 && p->output >= op->n_outputs) || (op->n_inputs >= 0 && p->input >= op->n_inputs))
            return false;
    return true;
}

rw_status rw_op_def_fault(const rw_op_def *op, rw_device kind, char *text, size_t size)
{
    const char *fault = name_fault(op);
    if (!fault) fault = commit_fault(op);
    if (fault) snprintf(text, size, "%s", fault);
    else if (!counts(op->n_inputs, 0)) snprintf(text, size, "n_inputs is %d", op->n_inputs);
    else if (!counts(op->n_outputs, 1)) snprintf(text, size, "n_outputs is %d; an op has an output at least",
                                                 op->n_outputs);
    else if (!overwrites_soundly(op)) snprintf(text, size, "inplace names an operand that the op does not have");
    else if (!(op->flags & RW_OP_VIEW) && !op->kernel[kind]) {
        snprintf(text, size, "the op has no kernel for the device %s", rw_device_name(kind));
        return RW_ERR_UNSUPPORTED;
    } else return RW_OK;
    return RW_ERR_ARGUMENT;
}
