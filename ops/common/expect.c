/* Error messages of failed checks of inputs and attributes: argument, expected value, actual value. */
#include "ops/common/expect.h"

#include "base/public_entry.h"
#include "ops/common/pass_ops.h"

#include <stdarg.h>
#include <stdio.h>

#define NAME_MAX_BYTES 48
#define FORM_MAX_BYTES 256

/* The given name, or else the name of the input at that position. */
static const char *name_of(const rw_op_call *call, int i, const char *name, char *text)
{
    return name ? name : rw_op_input_name(call->op, i, text, NAME_MAX_BYTES);
}

rw_status rw_unexpected(rw_op_call *call, rw_status status, int i, const char *name, const char *form, ...)
{
    char own[NAME_MAX_BYTES], expected[FORM_MAX_BYTES], got[RW_SHAPE_TEXT];
    va_list args;
    va_start(args, form);
    vsnprintf(expected, sizeof expected, form, args);
    va_end(args);
    if (status == RW_ERR_DTYPE) snprintf(got, sizeof got, "%s", rw_dtype_name(call->in[i].dtype));
    else rw_shape_text(got, sizeof got, rw_layout_shape(call->in[i].layout));
    return rw_op_error(call, status, "%s: expected %s, got %s", name_of(call, i, name, own), expected, got);
}

rw_status rw_unexpected_int(rw_op_call *call, rw_status status, const char *name, int64_t got, const char *form, ...)
{
    char expected[FORM_MAX_BYTES];
    va_list args;
    va_start(args, form);
    vsnprintf(expected, sizeof expected, form, args);
    va_end(args);
    return rw_op_error(call, status, "%s: expected %s, got %lld", name, expected, (long long)got);
}

rw_status rw_unexpected_real(rw_op_call *call, const char *name, double got, const char *form, ...)
{
    char expected[FORM_MAX_BYTES];
    va_list args;
    va_start(args, form);
    vsnprintf(expected, sizeof expected, form, args);
    va_end(args);
    return rw_op_error(call, RW_ERR_ARGUMENT, "%s: expected %s, got %g", name, expected, got);
}

rw_status rw_unexpected_dtype(rw_op_call *call, const char *name, int64_t got, const char *form)
{
    if (got >= 0 && got < RW_DTYPE_COUNT)
        return rw_op_error(call, RW_ERR_DTYPE, "%s: expected %s, got %s", name, form, rw_dtype_name((rw_dtype)got));
    return rw_op_error(call, RW_ERR_DTYPE, "%s: expected %s, got %lld", name, form, (long long)got);
}

rw_status rw_unexpected_shape(rw_op_call *call, int i, const char *name, rw_shape want)
{
    char text[RW_SHAPE_TEXT];
    rw_shape_text(text, sizeof text, want);
    return rw_unexpected(call, RW_ERR_SHAPE, i, name, "shape %s", text);
}

rw_status rw_unexpected_shape_of(rw_op_call *call, int i, const char *name, int like, const char *like_name)
{
    char own[NAME_MAX_BYTES], text[RW_SHAPE_TEXT];
    rw_shape_text(text, sizeof text, rw_layout_shape(call->in[like].layout));
    return rw_unexpected(call, RW_ERR_SHAPE, i, name, "shape %s, that of %s", text,
                         name_of(call, like, like_name, own));
}

rw_status rw_expect_inputs(rw_op_call *call, int min, int max, const char *form)
{
    if (call->n_inputs >= min && call->n_inputs <= max) return RW_OK;
    return rw_op_error(call, RW_ERR_ARGUMENT, "expected %s, got %d inputs", form, call->n_inputs);
}

rw_status rw_expect_float(rw_op_call *call, int i, const char *name)
{
    if (rw_dtype_is_float(call->in[i].dtype)) return RW_OK;
    return rw_unexpected(call, RW_ERR_DTYPE, i, name, "a floating-point type");
}

rw_status rw_expect_dtype(rw_op_call *call, int i, const char *name, rw_dtype dtype)
{
    if (call->in[i].dtype == dtype) return RW_OK;
    return rw_unexpected(call, RW_ERR_DTYPE, i, name, "%s", rw_dtype_name(dtype));
}

rw_status rw_expect_dtype_of(rw_op_call *call, int i, const char *name, int like, const char *like_name)
{
    char own[NAME_MAX_BYTES], other[NAME_MAX_BYTES];
    if (call->in[i].dtype == call->in[like].dtype) return RW_OK;
    return rw_op_error(call, RW_ERR_DTYPE, "%s: expected %s, the type of %s, got %s; rw_cast() converts",
                       name_of(call, i, name, own), rw_dtype_name(call->in[like].dtype),
                       name_of(call, like, like_name, other), rw_dtype_name(call->in[i].dtype));
}

bool rw_refuse_operand_at(rw_site at, rw_tape *t, rw_status status, const char *what, const char *name,
                          const rw_tensor *x, const char *form, ...)
{
    char expected[FORM_MAX_BYTES], got[RW_SHAPE_TEXT];
    va_list args;
    va_start(args, form);
    vsnprintf(expected, sizeof expected, form, args);
    va_end(args);
    if (status == RW_ERR_DTYPE) snprintf(got, sizeof got, "%s", rw_dtype_name(rw_tensor_dtype(x)));
    else rw_shape_text(got, sizeof got, rw_tensor_shape(x));
    rw_refuse_at(at, t, status, "%s(%s): expected %s, got %s", what, name, expected, got);
    return false;
}

bool rw_operand_has_shape_at(rw_site at, rw_tape *t, const char *what, const char *name, const rw_tensor *x,
                             rw_shape want)
{
    char text[RW_SHAPE_TEXT];
    if (rw_shape_equal(rw_tensor_shape(x), want)) return true;
    rw_shape_text(text, sizeof text, want);
    return rw_refuse_operand_at(at, t, RW_ERR_SHAPE, what, name, x, "shape %s", text);
}
