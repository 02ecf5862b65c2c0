/* Validates the definition of an op. */
#include "ops/common/pass_ops.h"
#include "record/context.h"

#include <stdio.h>
#include <string.h>

/* All bits of rw_op_flags. */
#define PUBLIC_FLAGS (2u * RW_OP_CODES - 1)

static const char *name_fault(const rw_op_def *op)
{
    if (!op->name || !*op->name) return "name: expected 1 byte or more, got none";
    if (op->name[strspn(op->name, "abcdefghijklmnopqrstuvwxyz0123456789_")])
        return "name: expected the characters a to z, 0 to 9 and _, got others";
    if (rw_op_is_builtin(op->name) && op->kernel[RW_DEVICE_AUTO] != rw_op_is_own)
        return "name: expected one that no built-in op has, got a built-in op's";
    if ((op->flags & ~PUBLIC_FLAGS) && op->kernel[RW_DEVICE_AUTO] != rw_op_is_own)
        return "flags: expected bits of rw_op_flags, got others";
    if (op->fused && op->kernel[RW_DEVICE_AUTO] != rw_op_is_own)
        return "fused: expected NULL, got a pair; only built-in ops have one";
    return op->check ? NULL : "check is NULL; expected a function";
}

static const char *commit_fault(const rw_op_def *op)
{
    const uint32_t with = RW_OP_STATEFUL | RW_OP_NO_GRADIENT;
    if (!(op->flags & RW_OP_COMMIT) || (op->flags & with) == with) return NULL;
    return "flags: expected RW_OP_COMMIT with RW_OP_STATEFUL and RW_OP_NO_GRADIENT, got it without";
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
    else if (!counts(op->n_inputs, 0)) snprintf(text, size, "n_inputs: expected 0 to %d or RW_OP_VARIADIC, got %d",
                                                RW_OP_MAX_OPERANDS, op->n_inputs);
    else if (!counts(op->n_outputs, 1)) snprintf(text, size, "n_outputs: expected 1 to %d or RW_OP_VARIADIC, got %d",
                                                 RW_OP_MAX_OPERANDS, op->n_outputs);
    else if (op->bias < 0 || (op->n_inputs >= 0 && op->bias >= op->n_inputs && op->bias))
        snprintf(text, size, "bias: expected the number of an input or 0, got %d", op->bias);
    else if (!overwrites_soundly(op)) snprintf(text, size, "inplace: expected operands of the op, got others");
    else if (!(op->flags & RW_OP_VIEW) && !op->kernel[kind]) {
        snprintf(text, size, "kernel: expected one for the device %s, got NULL", rw_device_name(kind));
        return RW_ERR_UNSUPPORTED;
    } else return RW_OK;
    return RW_ERR_ARGUMENT;
}
